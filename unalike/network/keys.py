"""Certificates for a server and keys for clients, as files. Private ones are readable by their owner alone.

The server's folder has ca.key, ca.crt (give it to every client), server.key, server.crt, and clients/NAME.pub, one for
every client that may join. A client makes its own pair, and its private key never leaves its machine.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import re
from pathlib import Path
from typing import Any

from unalike.crypto.common_key import CommonKey
from unalike.errors import UnalikeError

ALWAYS = ("127.0.0.1", "::1", "localhost")


def make_server(folder: Path, hosts: list[str]) -> None:
    """Make a certificate authority, and the server's certificate for these host names and addresses."""
    x509, hashes, ser, ec = _cryptography()
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    if (folder / "ca.key").exists():
        raise UnalikeError(f"{folder} has a ca.key already: give another folder, or remove it first.")
    (folder / "clients").mkdir(parents=True, exist_ok=True)

    def certificate(subject: str, public: Any, signer: Any, days: int, *extensions: tuple[Any, bool]) -> bytes:
        name = lambda text: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])  # noqa: E731
        start = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=5)
        builder = x509.CertificateBuilder().subject_name(name(subject)).issuer_name(name("federation CA"))
        builder = builder.public_key(public).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(start).not_valid_after(start + dt.timedelta(days=days))
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(signer, hashes.SHA256()).public_bytes(ser.Encoding.PEM)

    def usage(**on: bool) -> Any:
        every = "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign"
        names = [*every.split(), "crl_sign", "encipher_only", "decipher_only"]
        return x509.KeyUsage(**{name: on.get(name, False) for name in names})

    def named(host: str) -> Any:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return x509.DNSName(host)

    ca, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_id = x509.SubjectKeyIdentifier.from_public_key(ca.public_key())
    ca_certificate = certificate(
        "federation CA", ca.public_key(), ca, 3650,
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (usage(key_cert_sign=True, crl_sign=True), True),
        (ca_id, False),
    )  # fmt: skip
    server_certificate = certificate(
        "federation server", server.public_key(), ca, 825,
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (usage(digital_signature=True), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName([named(h) for h in dict.fromkeys((*hosts, *ALWAYS))]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ca_id), False),
    )  # fmt: skip
    private = lambda key: key.private_bytes(ser.Encoding.PEM, ser.PrivateFormat.PKCS8, ser.NoEncryption())  # noqa: E731
    _save(folder / "ca.key", private(ca), secret=True)
    _save(folder / "ca.crt", ca_certificate)
    _save(folder / "server.key", private(server), secret=True)
    _save(folder / "server.crt", server_certificate)


def make_node(file: Path) -> Path:
    """Make a client's private key, and beside it the public key to give to the server's operator; return the public
    key's path."""
    _, _, ser, ec = _cryptography()
    if file.exists():
        raise UnalikeError(f"{file} is there already: give another name, or remove it first.")
    file.parent.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    _save(file, key.private_bytes(ser.Encoding.PEM, ser.PrivateFormat.OpenSSH, ser.NoEncryption()), secret=True)
    public = file.with_name(f"{file.name}.pub")
    _save(public, key.public_key().public_bytes(ser.Encoding.OpenSSH, ser.PublicFormat.OpenSSH) + b"\n")
    return public


def make_common(file: Path, scheme: str, bits: int) -> CommonKey:
    """Make a key that all clients have in common and the server does not; its file must reach each client by a safe
    channel."""
    key = CommonKey.new(scheme, bits)
    file.parent.mkdir(parents=True, exist_ok=True)
    _save(file, key.to_bytes(), secret=True)
    return key


def read_common(file: Path) -> CommonKey:
    """Read a common key from its file."""
    try:
        return CommonKey.from_bytes(file.read_bytes())
    except OSError as error:
        raise UnalikeError(f"The common key {file} cannot be read: {error.strerror}.") from None
    except UnalikeError as error:
        raise UnalikeError(f"{file}: {error}") from None


def roster(folder: Path) -> dict[str, bytes]:
    """Return the public keys of the clients that may join, by name and in the order of their names: client 0 is the
    first."""
    files = sorted((folder / "clients").glob("*.pub"), key=lambda f: f.stem)
    if not files:
        raise UnalikeError(f"{folder / 'clients'} has no client's key: put each client's .pub file there.")
    keys = {f.stem: f.read_bytes() for f in files}
    for name, key in keys.items():
        if not re.match(rb"ecdsa-sha2-nistp(256|384|521) ", key):
            raise UnalikeError(f"{folder / 'clients' / name}.pub is no key of `unalike keys node`.")
    bodies = [b" ".join(key.split()[:2]) for key in keys.values()]
    if len(set(bodies)) < len(bodies):
        raise UnalikeError(f"{folder / 'clients'} has one key under two names: every client needs its own.")
    return keys


def _save(file: Path, data: bytes, secret: bool = False) -> None:
    """Write a file that is never readable by others if it is secret, not even for a moment."""
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    except FileExistsError:
        raise UnalikeError(f"{file} is there already: give another name, or remove it first.") from None
    with open(handle, "wb") as f:
        f.write(data)


def _cryptography() -> tuple[Any, Any, Any, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ModuleNotFoundError:
        raise UnalikeError("Keys need the package cryptography: pip install 'unalike[flower]'.") from None
    return x509, hashes, serialization, ec
