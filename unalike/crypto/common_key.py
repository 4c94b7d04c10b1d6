"""A key that all clients of a federation have in common, and the server does not: for sums under encryption.

Beside the scheme's own key it holds a secret of 32 bytes. From it clients make tags, by which a client that opens a sum
sees that it is the announced sum and nothing else (`tags.py`).
"""

from __future__ import annotations

import base64
import dataclasses as dc
import hashlib
import json
import os
from typing import Any

from unalike.crypto import ckks, paillier
from unalike.errors import UnalikeError

PAILLIER, CKKS, SYMMETRIC = SCHEMES = ("paillier", "ckks", "ckks-symmetric")
KIND = "common key of clients"
SECRET = 32  # bytes


@dc.dataclass(frozen=True)
class CommonKey:
    """scheme: one of `SCHEMES`; secret: for tags; content: the scheme's secret key, as bytes."""

    scheme: str
    secret: bytes
    content: bytes

    @classmethod
    def new(cls, scheme: str, bits: int = paillier.BITS) -> CommonKey:
        """Make a key. bits: of a Paillier key."""
        if scheme == PAILLIER:
            content = paillier.generate(bits).secret_to_bytes()
        else:
            content = ckks.Keys(scheme == SYMMETRIC).secret()
        return cls(scheme, os.urandom(SECRET), content)

    @property
    def fingerprint(self) -> bytes:
        """Return a hash that identifies the key and reveals nothing about it."""
        return hashlib.sha256(b"unalike common key " + self.scheme.encode() + self.secret + self.content).digest()

    def paillier(self) -> paillier.SecretKey:
        """Return the key of a Paillier scheme."""
        return paillier.SecretKey.secret_from_bytes(self.content)

    def ckks(self) -> ckks.Keys:
        """Return the keys of a CKKS scheme."""
        return ckks.Keys.of(self.content, self.scheme == SYMMETRIC)

    def to_bytes(self) -> bytes:
        """Return the key as the text of a file, which is for clients alone."""
        content = base64.b64encode(self.content).decode()
        table = {"kind": KIND, "scheme": self.scheme, "secret": self.secret.hex(), "key": content}
        return json.dumps(table, indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> CommonKey:
        """Return the key that `to_bytes` wrote."""
        try:
            table: dict[str, Any] = json.loads(data)
            secret, content = bytes.fromhex(table["secret"]), base64.b64decode(table["key"], validate=True)
            right = table["kind"] == KIND and table["scheme"] in SCHEMES and len(secret) == SECRET
        except (ValueError, KeyError, TypeError):
            right = False
        if not right:
            raise UnalikeError("This is no common key: `unalike keys common FILE` makes one.")
        return cls(table["scheme"], secret, content)
