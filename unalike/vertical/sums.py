"""Sums that tell no single host's number: hosts add masks that cancel each other, and the guest reads the sum alone.

A number becomes a whole multiple of 2⁻⁴⁴, modulo 2⁶⁴. Each two hosts share a secret (X25519, fresh keys for every
session, which the guest passes on); one adds the mask that is made from it, the other takes it off. A mask is used
once: it is bound to how many sums came before and to the request. Told of different rows, hosts add masks that do not
cancel, and the sum is noise. Every host of a run is in every sum, and there are two or more.

It needs no shares and no second round as sums over clients do (`unalike/crypto/secure_sum.py`): where a host is lost,
nothing of the batch counts, and the session begins again with new keys.

Not hidden: what a guest learns that gives hosts keys of its own making (a host that was given the others' .pub files
refuses those), and what all other hosts together with the guest learn of one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from unalike.crypto.masks import add_masks, agreement, derived, public_of
from unalike.errors import UnalikeError
from unalike.vertical.fields import Field

BINARY_PLACES = 44
KEY = 32  # bytes
FEWEST = 2  # fewest hosts of a sum
STATEMENT = b"unalike vertical 1, key for sums: "


class Signer(Protocol):
    """A host's signing key, and the public keys that it accepts of others (`unalike.network.seal.Keyring`)."""

    @property
    def public(self) -> str:
        """Return the public key, as text."""
        ...

    @property
    def has_peers(self) -> bool:
        """Return whether it was given the other hosts' public keys."""
        ...

    def sign(self, data: bytes) -> bytes:
        """Return a signature."""
        ...

    def verify(self, public: str, data: bytes, signature: bytes) -> bool:
        """Return whether the owner of a public key signed this; refuse a key that this party was not given."""
        ...


def summed(method: Any) -> tuple[str, ...]:
    """Return the fields of a method of which the guest needs only the sum over hosts."""
    return tuple(name for name, field in method.sends.items() if is_summed(field))


def is_summed(field: Field) -> bool:
    """Return whether the guest needs only the sum of a field over hosts; it gets every host's value if sums are not
    secure."""
    return field.read == "sum" and field.to == "guest" and field.kind == "float" and not field.sealed


def request_digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """Return a hash of what all hosts of a sum must have been asked alike: the function, when, and for which rows."""
    asked = repr([header.get(name) for name in ("function", "epoch", "step")]).encode()
    rows = tensors["rows"].numpy().tobytes() if "rows" in tensors else b""
    return hashlib.sha256(asked + b"\0" + rows).digest()


class Masks:
    """One host's masks for one session. hosts: their number; signer: vouches for keys, if it is given."""

    def __init__(self, hosts: int, signer: Signer | None = None):
        if hosts < FEWEST:
            raise UnalikeError("a sum of one host's numbers hides nothing: secure sums need two hosts or more.")
        self._hosts, self._signer = hosts, signer
        self._private = os.urandom(KEY)
        self.public = public_of(self._private)
        self._pairs: list[
            tuple[bytes, bool]
            # a secret shared with each other host; whether its mask is subtracted
        ] = []
        self._sums = 0

    def introduction(self) -> dict[str, str]:
        """Return what other hosts are told: the key, and whose it is."""
        if self._signer is None:
            return {"key": self.public.hex(), "identity": "", "signature": ""}
        signature = self._signer.sign(STATEMENT + self.public)
        return {"key": self.public.hex(), "identity": self._signer.public, "signature": signature.hex()}

    def meet(self, introductions: Any) -> None:
        """Take the introductions of all hosts, including this one's own."""
        keys = [self._key(one) for one in introductions] if isinstance(introductions, list) else []
        if len(keys) != self._hosts or len({*keys}) != len(keys) or self.public not in keys:
            raise UnalikeError(f"the guest must name {self._hosts} hosts for secure sums, this one among them.")
        others = [key for key in keys if key != self.public]
        self._pairs = [(agreement(self._private, key), key < self.public) for key in others]

    def _key(self, introduction: Any) -> bytes:
        try:
            key, signature = (bytes.fromhex(introduction[name]) for name in ("key", "signature"))
            identity = str(introduction["identity"])
        except (KeyError, TypeError, ValueError):
            raise UnalikeError("the guest's introduction of another host cannot be read.") from None
        if len(key) != KEY:
            raise UnalikeError("the guest names a key for secure sums that is none.")
        signer = self._signer if self._signer is not None and self._signer.has_peers else None
        if signer is not None and not signer.verify(identity, STATEMENT + key, signature):
            raise UnalikeError("the guest names a key for secure sums that the other host did not sign.")
        return key

    def over(self, fields: Mapping[str, Tensor], names: Sequence[str], request: bytes) -> dict[str, Tensor]:
        """Return fields with masks over those that are read as sums; every call has new masks."""
        if not self._pairs:
            raise UnalikeError("the guest asked for a sum before it named the hosts of it.")
        self._sums += 1
        context = request + self._sums.to_bytes(8, "big")
        return {name: self._masked(v, context + name.encode()) if name in names else v for name, v in fields.items()}

    def _masked(self, value: Tensor, context: bytes) -> Tensor:
        words = coded(value, self._hosts).view(np.uint64).reshape(-1)
        add_masks([words], [(derived(secret, STATEMENT + context), minus) for secret, minus in self._pairs])
        return torch.from_numpy(words.view(np.int64).reshape(value.shape))


def coded(value: Tensor, hosts: int) -> np.ndarray:
    """Return numbers as whole multiples of 2⁻⁴⁴; refuse numbers whose sum over hosts could be too large."""
    codes = np.round(value.detach().numpy() * 2.0**BINARY_PLACES)
    largest = 2.0**63 / hosts
    if not (np.abs(codes) < largest).all():
        raise UnalikeError(
            f"a score is {value.abs().max():.3g}, and secure sums take numbers below {largest / 2**BINARY_PLACES:.3g}: "
            "standardise columns, or take a smaller lr."
        )
    return codes.astype(np.int64)


def opened(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of what hosts sent, as numbers; single parts cannot be read."""
    total = torch.zeros_like(parts[0])
    for part in parts:
        total = total + part  # int64 wraps: modulo 2⁶⁴
    return total.double() / 2.0**BINARY_PLACES
