"""A client's keys, used to seal rows for other clients: the server that relays them cannot open them.

A row is encrypted with AES-256-GCM under a fresh key. That key is wrapped for its receiver as in HPKE's authenticated
mode (RFC 9180): a shared secret of a fresh pair and the receiver's key, and one of the sender's own key and the
receiver's, through HKDF-SHA256. So only the receiver can open it, and the receiver knows that the sender made it. Both
are bound to run, round, exchange, field, sender and receiver: they open nowhere else.

The keys are those that clients are registered with (P-384), which Flower signs calls with; what is derived from them
here is told apart from signatures by its own label.

Who vouches that a public key is a client's? Either the server, which must then be honest though it may be curious; or
the .pub files of the other clients that a client was given (`--peers`): then no other key is accepted.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from unalike.errors import UnalikeError, first_line
from unalike.messages.sealed import About

LABEL = b"unalike sealed row 1"
NONCE = 12
POINT = 97  # bytes of a point of P-384
# bytes of each of a signature's two numbers
HALF = 48
# a prefix, so that no signature could pass for one of Flower's calls
SIGNED = b"unalike secure sum 1 "


class PublicKeys:
    """Public keys that clients are registered with (a `Verifier`)."""

    def verify(self, public: str, data: bytes, signature: bytes) -> bool:
        """Return whether the owner of a public key signed these bytes; refuse a key that is not accepted."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

        _, ec = _cryptography()
        r, s = (int.from_bytes(half, "big") for half in (signature[:HALF], signature[HALF:]))
        try:
            self._peer(public).verify(encode_dss_signature(r, s), SIGNED + data, _ecdsa(ec))
        except InvalidSignature:
            return False
        return True

    def point(self, public: str | None = None) -> bytes:
        """Return the point of a public key, however it is written."""
        return _point(_public(public or ""))

    def _peer(self, text: str) -> Any:
        """Return a public key; refuse one that is not accepted."""
        return _public(text)


class Keyring(PublicKeys):
    """A client's private key and, if it was given them, the other clients' public keys (a `Sealer`).

    key: the file of its private key (`unalike keys node`); peers: a folder of .pub files.
    """

    def __init__(self, key: Path, peers: Path | None = None):
        ser, ec = _cryptography()
        try:
            self._private = ser.load_ssh_private_key(key.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            reason = first_line(error)
            raise UnalikeError(f"The key {key} cannot be read ({reason}): make one with `unalike keys node`.") from None
        if not isinstance(self._private, ec.EllipticCurvePrivateKey) or self._private.curve.name != "secp384r1":
            raise UnalikeError(f"The key {key} is not of `unalike keys node`: it must be of the curve P-384.")
        self._own = _point(self._private.public_key())
        self._known: set[bytes] | None = None
        if peers is not None:
            files = sorted(peers.glob("*.pub"))
            if not files:
                raise UnalikeError(f"{peers} has no .pub file: put the other clients' public keys there.")
            self._known = {_point(_public(file.read_text(encoding="utf-8", errors="replace"), file)) for file in files}
            self._known.add(self._own)

    def seal(self, row: bytes, about: About) -> tuple[bytes, bytes]:
        """Return the sealed row, and the key that opens it."""
        key = os.urandom(32)
        return _encrypt(key, row, _bound(about)), key

    def open(self, row: bytes, key: bytes, about: About) -> bytes:
        """Return the opened row; refuse one that was changed or is bound to something else."""
        return _decrypt(key, row, about)

    def wrap(self, key: bytes, receiver: str, about: About) -> bytes:
        """Return the key encrypted so that only the owner of the public key `receiver` can read it."""
        _, ec = _cryptography()
        other, fresh = self._peer(receiver), ec.generate_private_key(ec.SECP384R1())
        secret = fresh.exchange(ec.ECDH(), other) + self._private.exchange(ec.ECDH(), other)
        point = _point(fresh.public_key())
        return point + _encrypt(_derived(secret, point, self._own, _point(other), about), key, _bound(about))

    def unwrap(self, wrapped: bytes, sender: str, about: About) -> bytes:
        """Return a key that the owner of the public key `sender` wrapped for this client."""
        _, ec = _cryptography()
        other, point = self._peer(sender), wrapped[:POINT]
        try:
            fresh = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP384R1(), point)
        except ValueError:
            raise _unopened(about) from None
        secret = self._private.exchange(ec.ECDH(), fresh) + self._private.exchange(ec.ECDH(), other)
        return _decrypt(_derived(secret, point, _point(other), self._own, about), wrapped[POINT:], about)

    @property
    def public(self) -> str:
        """This client's public key, as its .pub file has it."""
        ser, _ = _cryptography()
        key = self._private.public_key()
        return key.public_bytes(ser.Encoding.OpenSSH, ser.PublicFormat.OpenSSH).decode()

    @property
    def has_peers(self) -> bool:
        """Return whether this client was given the other clients' keys, so that it need not trust the server for
        them."""
        return self._known is not None

    def sign(self, data: bytes) -> bytes:
        """Return this client's signature of some bytes: two numbers of 48 bytes."""
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

        _, ec = _cryptography()
        r, s = decode_dss_signature(self._private.sign(SIGNED + data, _ecdsa(ec)))
        return r.to_bytes(HALF, "big") + s.to_bytes(HALF, "big")

    def point(self, public: str | None = None) -> bytes:
        """Return the point of a public key, however it is written; of this client's own without one."""
        return self._own if public is None else super().point(public)

    def _peer(self, text: str) -> Any:
        """Return a public key; refuse one that this client does not accept."""
        public = _public(text)
        if self._known is not None and _point(public) not in self._known:
            raise UnalikeError(
                "The server names a key of another client that this client was not given (--peers): ask that client "
                "for its .pub file, and do not trust this server before you know why."
            )
        return public


def _ecdsa(ec: Any) -> Any:
    from cryptography.hazmat.primitives.hashes import SHA384

    return ec.ECDSA(SHA384())


def _public(text: str, file: Path | None = None) -> Any:
    ser, ec = _cryptography()
    try:
        public = ser.load_ssh_public_key(" ".join(text.split()[:2]).encode())
    # the library's own errors for malformed bytes
    except Exception:
        public = None
    if not isinstance(public, ec.EllipticCurvePublicKey) or public.curve.name != "secp384r1":
        whose = "A client's public key" if file is None else f"The public key {file}"
        raise UnalikeError(f"{whose} is not of `unalike keys node`: it must be of the curve P-384.")
    return public


def _point(public: Any) -> bytes:
    ser, _ = _cryptography()
    return public.public_bytes(ser.Encoding.X962, ser.PublicFormat.UncompressedPoint)


def _bound(about: About) -> bytes:
    return LABEL + json.dumps(about, sort_keys=True).encode()


def _derived(secret: bytes, fresh: bytes, sender: bytes, receiver: bytes, about: About) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), 32, salt=None, info=fresh + sender + receiver + _bound(about)).derive(secret)


def _encrypt(key: bytes, data: bytes, bound: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(NONCE)
    return nonce + AESGCM(key).encrypt(nonce, data, bound)


def _decrypt(key: bytes, data: bytes, about: About) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(data[:NONCE], data[NONCE:], _bound(about))
    except (InvalidTag, ValueError):
        raise _unopened(about) from None


def _unopened(about: About) -> UnalikeError:
    return UnalikeError(
        f"The row {about['field']!r} from client {about['sender']} cannot be opened: it was changed on its way, or is "
        "for another client, round or exchange."
    )


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ModuleNotFoundError:
        raise UnalikeError("Sealed rows need the package cryptography: pip install 'unalike[flower]'.") from None
    return serialization, ec
