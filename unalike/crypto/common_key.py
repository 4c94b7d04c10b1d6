"""A key that all clients of a federation have in common, and the server has not: for sums under encryption.

Besides the scheme's own key it holds a secret of 32 bytes, from which clients make the tags by which an opener sees
that it opens the sum that it was told of (`tags.py`), and nothing else.
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
        """Stands for the key: two clients with the same have the same key, and it tells nothing of it."""
        return hashlib.sha256(b"unalike common key " + self.scheme.encode() + self.secret + self.content).digest()

    def paillier(self) -> paillier.SecretKey:
        """Return the key of a Paillier scheme."""
        return paillier.SecretKey.secret_from_bytes(self.content)

    def ckks(self) -> ckks.Keys:
        """Return the keys of a CKKS scheme."""
        return ckks.Keys.of(self.content, self.scheme == SYMMETRIC)

    def to_bytes(self) -> bytes:
        """Write the key as the text of a file, which is for clients alone."""
        content = base64.b64encode(self.content).decode()
        table = {"kind": KIND, "scheme": self.scheme, "secret": self.secret.hex(), "key": content}
        return json.dumps(table, indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> CommonKey:
        """Read what `to_bytes` wrote."""
        try:
            table: dict[str, Any] = json.loads(data)
            secret, content = bytes.fromhex(table["secret"]), base64.b64decode(table["key"], validate=True)
            right = table["kind"] == KIND and table["scheme"] in SCHEMES and len(secret) == SECRET
        except (ValueError, KeyError, TypeError):
            right = False
        if not right:
            raise UnalikeError("This is no common key: `unalike keys common FILE` makes one.")
        return cls(table["scheme"], secret, content)
