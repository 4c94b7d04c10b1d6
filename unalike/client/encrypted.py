"""A client's part in sums under encryption: its reply encrypted with the common key, and sums opened for the server.

Whoever has the common key can open any ciphertext, so a client opens only what its tags show to be the sum of the
replies of those who are listed, all of whom were asked the same as itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unalike.channel.stages.encrypted import Encrypted
from unalike.channel.stages.secure_sum import SecureSum, Summed
from unalike.channel.summing import TAG, Slot, gathered, grouped
from unalike.client.secure import (
    ATTEMPT,
    MASKED,
    PRESENT,
    HidingClient,
    Parts,
    SecureClient,
    Signer,
    as_bytes,
    label,
    numbers,
    octets,
    whole,
)
from unalike.crypto import ring, tags
from unalike.crypto.common_key import CommonKey
from unalike.crypto.encrypted_sum import PaillierOpener, Vector, opener
from unalike.crypto.secure_sum import KEY
from unalike.errors import UnalikeError

TRIES = 3  # sums of one exchange that are no sums, after which a client opens nothing more of it, however often asked


class Answered(NamedTuple):
    """What a client remembers of the reply that it sent last: who was asked, and how its sum is to be read."""

    label: bytes
    present: frozenset[int]
    slots: list[Slot]


class EncryptedClient(HidingClient):
    """One client's part in the encrypted sums of a run. key: that all clients have in common."""

    def __init__(
        self,
        run: str,
        client: int,
        stage: Encrypted,
        key: CommonKey,
        shares: int = 0,
        say: Callable[[str], None] = lambda text: None,
    ):
        super().__init__(run, client, stage, shares, say)
        if key.scheme != stage.scheme:
            raise UnalikeError(f"The run's channel has {stage}, and the common key is for {key.scheme}.")
        self.key, self.opener = key, opener(key)
        if isinstance(self.opener, PaillierOpener) and self.opener.key.bits != stage.key_bits:
            raise UnalikeError(
                f"The run's channel has {stage}, a key of {stage.key_bits} bits; the common key has "
                f"{self.opener.key.bits}."
            )
        self._answered: Answered | None = None

    @property
    def _stages(self) -> dict[str, Callable[[dict[str, Any], Parts], dict[str, Tensor]]]:
        return {"key": self._give_key, "open": self._open}

    def _give_key(self, header: dict[str, Any], parts: Parts) -> dict[str, Tensor]:
        """Tell which key this client has, and the public part of it, without which the server cannot add."""
        public = self.opener.key.to_bytes() if isinstance(self.opener, PaillierOpener) else b""
        return {"fingerprint": as_bytes(self.key.fingerprint), "public": as_bytes(public)}

    def clients(self, when: tuple[int, int], parts: Parts) -> int:
        present = numbers(parts, PRESENT)
        if self.client not in present or len(present) < self.least:
            raise UnalikeError(
                f"{len(present)} clients are to take part in a sum; this client wants to be one of {self.least}."
            )
        return len(present)

    def hidden(
        self, when: tuple[int, int], asked: bytes, parts: Parts, slots: Sequence[Slot], codes: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        clients, present = self.clients(when, parts), numbers(parts, PRESENT)
        attempt = octets(parts, ATTEMPT, KEY).hex()
        about = _about(label(self.run, *when, attempt) + asked, present, slots)
        if self._numbers.setdefault(about, self.client) != self.client:
            raise UnalikeError("The server asks this client for two replies in one sum, under two numbers: refused.")
        self._when, self._answered = when, Answered(about, frozenset(present), [*slots])
        found = tags.tags(self.key.secret, about, self.client, _tagged(slots, codes))
        made = {f"{TAG}{place}": torch.tensor([value]) for place, value in enumerate(found)}
        vectors = gathered(slots, clients, {**codes, **made})
        return {f"{MASKED}{bits}": self._encrypted(some, bits, clients) for bits, some in vectors.items()}

    def _encrypted(self, codes: np.ndarray, bits: int, clients: int) -> Tensor:
        return as_bytes(self.opener.encrypted(codes, Vector(len(codes), bits - ring.carry_bits(clients), clients)))

    def _open(self, header: dict[str, Any], parts: Parts) -> dict[str, Tensor]:
        """Open the sum of those who came."""
        when, came, answered = (
            (whole(header, "round"), whole(header, "exchange")),
            numbers(parts, "came"),
            self._answered,
        )
        if answered is None or self._when != when:
            raise UnalikeError(
                f"This client has sent no reply of round {when[0] + 1}, exchange {when[1]}, since it was started: it "
                "opens no sum of it."
            )
        if not answered.present >= {*came} or self.client not in came or len(came) < self.least:
            raise UnalikeError("The server's list of those who came cannot be: nothing is opened.")
        if self._wrong.get(when, 0) >= TRIES:
            raise UnalikeError(
                "The server has sent sums that are none: this client opens nothing more of this exchange."
            )
        sums = self._sums_of(answered, parts, came)
        self._open_once(came)
        lost = len(answered.present) - len(came)
        self.say(f"round {when[0] + 1}: opened the sum of {len(came)} clients, {lost} lost")
        return {
            f"{MASKED}{bits}": torch.from_numpy(ring.pack(ring.residues(some, bits), bits))
            for bits, some in sums.items()
        }

    def _sums_of(self, answered: Answered, parts: Parts, came: list[int]) -> dict[int, np.ndarray]:
        """Return the sums in the ciphertexts, without their tags; refuse what is not the sum of those who came.

        All refusals are alike, and take the same work: a server that changes ciphertexts must not learn from them what
        is inside."""
        try:
            sums, codes = self._opened(answered, parts, len(came))
        except Exception:  # whatever a library says of such bytes
            sums, codes = {}, {slot.name: torch.zeros(slot.count, dtype=torch.int64) for slot in answered.slots}
        found = tags.reduced([int(codes[f"{TAG}{place}"]) for place in range(tags.COUNT)])
        expected = tags.of_sum(self.key.secret, answered.label, came, _tagged(answered.slots, codes))
        if not sums or found != expected:
            self._wrong[self._when] = self._wrong.get(self._when, 0) + 1
            raise UnalikeError(
                f"What the server wants opened is not the sum of the replies of {len(came)} clients to what this "
                "client was asked: nothing is opened."
            )
        for place in range(tags.COUNT):
            codes[f"{TAG}{place}"].zero_()  # views of the sums
        return sums

    def _opened(self, answered: Answered, parts: Parts, summed: int) -> tuple[dict[int, np.ndarray], dict[str, Tensor]]:
        """Return what is in the ciphertexts, by modulus and by slot."""
        clients, sums = len(answered.present), dict[int, np.ndarray]()
        for bits, some in grouped(answered.slots, clients).items():
            vector = Vector(sum(slot.count for slot in some), bits - ring.carry_bits(clients), clients)
            ciphers = self.opener.read(_octets(parts, f"{MASKED}{bits}"), vector)
            sums[bits] = self.opener.opened(ciphers, vector, summed)
        return sums, _by_slot(answered.slots, clients, sums)


def hiding_client(
    run: str,
    client: int,
    stage: Summed,
    key: CommonKey | None,
    shares: int = 0,
    signer: Signer | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> HidingClient:
    """Return a client's part in the sums that a stage makes. key: that clients have in common, where it encrypts."""
    if isinstance(stage, SecureSum):
        return SecureClient(run, client, stage, shares, signer, say)
    assert isinstance(stage, Encrypted)
    if key is None:
        raise UnalikeError(
            f"The run's channel has {stage}, for which all clients have a common key: give it (--common); "
            "`unalike keys common FILE` makes one."
        )
    return EncryptedClient(run, client, stage, key, shares, say)


def new_common_key(stage: Summed) -> CommonKey | None:
    """Return a new key for the clients of a stage that encrypts; None for any other."""
    return CommonKey.new(stage.scheme, stage.key_bits) if isinstance(stage, Encrypted) else None


def _about(name: bytes, present: Sequence[int], slots: Sequence[Slot]) -> bytes:
    """Stand for what all clients of a sum must have been told alike, and for what is in it."""
    layout = json.dumps([present, [[slot.name, slot.count, slot.bits] for slot in slots]]).encode()
    return hashlib.sha256(name + b"\0" + layout).digest()


def _tagged(slots: Sequence[Slot], codes: Mapping[str, Tensor]) -> list[np.ndarray]:
    """Return the codes that tags are made of: all but the tags."""
    names = [slot.name for slot in slots if not slot.name.startswith(TAG)]
    return [codes[name].reshape(-1).cpu().numpy() for name in names if name in codes]


def _by_slot(slots: Sequence[Slot], clients: int, sums: Mapping[int, np.ndarray]) -> dict[str, Tensor]:
    out: dict[str, Tensor] = {}
    for bits, some in grouped(slots, clients).items():
        parts = torch.from_numpy(sums[bits]).split([slot.count for slot in some])
        out |= dict(zip((slot.name for slot in some), parts, strict=True))
    return out


def _octets(parts: Parts, name: str) -> bytes:
    value = parts.get(name)
    if value is None or value.dtype != torch.uint8 or value.dim() != 1:
        raise UnalikeError(f"A message about a sum must have bytes of {name!r}.")
    return value.numpy().tobytes()
