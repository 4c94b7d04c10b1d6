"""Sums under encryption as the last stage of a channel: clients have a common key, the server adds ciphertexts.

A reply is coded as for a secure sum, so that a simulation adds the very same codes, and the sums have the same bits.
Between machines the clients in a sum vote for it (`unalike.crypto.votes`), then two of them open it, and must agree on
it; tags show them that it is the sum that they were told of (`unalike.crypto.tags`). So it takes two exchanges more
than an open sum.
"""

from __future__ import annotations

import dataclasses as dc

from unalike.channel.stage import Sees, refuse
from unalike.channel.stages.secure_sum import NUMBER, Summed
from unalike.crypto import batchcrypt, ckks, tags
from unalike.crypto.common_key import CKKS, PAILLIER, SYMMETRIC
from unalike.crypto.encrypted_sum import Vector, cipher_bytes, exact_bits
from unalike.crypto.ring import carry_bits
from unalike.crypto.secure_sum import KEY
from unalike.crypto.votes import ROW
from unalike.settings.knobs import knob

OPENERS = 2  # clients that open a sum, and must agree


@dc.dataclass(frozen=True)
class Encrypted(Summed):
    """Replies are encrypted with a key that all clients have, and the server has not."""

    tags = tags.COUNT

    @property
    def scheme(self) -> str:
        """Return the scheme's name, as in a common key."""
        raise NotImplementedError

    @property
    def key_bits(self) -> int:
        """Return the bits of a Paillier key; 0 for another scheme."""
        return 0

    def vector_bytes(self, count: int, bits: int, clients: int) -> int:
        return cipher_bytes(self.scheme, Vector(count, bits, clients), self.key_bits)

    def side(self, clients: int) -> int:
        """Its row in the list of replies."""
        return ROW

    def down(self, clients: int) -> int:
        """Everybody's number, and what tells this try from others."""
        return clients * NUMBER + KEY

    def opening_bytes(self, down: int, up: int, clients: int) -> tuple[int, int]:
        """The list of replies to all who vote for it, and with their votes to two who open the sum."""
        voting, opening = KEY + clients * ROW, down + clients * (ROW + KEY)
        return clients * voting + OPENERS * opening, clients * KEY + OPENERS * up

    def who_opens(self, clients: int) -> str:
        """Return in words who holds the key, and who together can open what."""
        raise NotImplementedError

    def promise(self, clients: int) -> str:
        return (
            f"{self.who_opens(clients)}; a server that lies has only sums opened that more than half of their clients "
            f"agree to, each to one in an exchange: from one exchange it learns nothing of fewer than {self.least} "
            "clients together"
        )

    @property
    def sees(self) -> Sees:
        return Sees(
            server="ciphertexts, and the sum over those who came; everything, if one client gives it the common key",
            clients="the sum, where they open it; with the common key and what travels, everything",
            wire="ciphertexts",
            shields=True,
        )


@dc.dataclass(frozen=True)
class Paillier(Encrypted):
    """Packed Paillier after BatchCrypt (Zhang et al. 2020): many signed codes with padding bits in one ciphertext. With
    `clip:1.0,quantise:8:LIMIT` before it codes are short, as in the paper; all else is in fixed point."""

    name = "paillier"

    key: int = knob(2048, "bits of the common key", least=1024, most=8192)
    bits: int = knob(40, "bits of a number in fixed point", least=8, most=48)
    limit: float = knob(8192.0, "the largest number in fixed point", above=0)
    least: int = knob(3, "clients of a sum; of fewer there is none", least=2)

    @property
    def scheme(self) -> str:
        return PAILLIER

    @property
    def key_bits(self) -> int:
        return self.key

    def who_opens(self, clients: int) -> str:
        return batchcrypt.who_opens(clients)


@dc.dataclass(frozen=True)
class Ckks(Encrypted):
    """CKKS (tenseal), used exactly: codes are spaced so that its error is far below half a code, and openers round.
    With a symmetric key clients are faster, and the server has no key at all."""

    name = "ckks"

    key: str = knob(
        "public", "who can encrypt: all with a public key, or those with the secret", choices=("public", "symmetric")
    )
    bits: int = knob(30, "bits of a number in fixed point", least=8, most=36)
    limit: float = knob(256.0, "the largest number in fixed point", above=0)
    least: int = knob(3, "clients of a sum; of fewer there is none", least=2)

    @property
    def scheme(self) -> str:
        return SYMMETRIC if self.key == "symmetric" else CKKS

    def check_codes(self, name: str, bits: int, clients: int, whole: bool) -> None:
        if whole:
            raise refuse(self, f"{name!r} is of whole numbers, too long for CKKS: take paillier or secure-sum.")
        most, padding = exact_bits(clients), carry_bits(clients)
        if most - padding < tags.BITS:
            raise refuse(self, f"{clients} clients are too many for CKKS to add exactly: take paillier or secure-sum.")
        if bits + padding > most:
            raise refuse(
                self,
                f"codes of {bits} bits of {clients} clients are longer than the {most} bits that CKKS adds exactly: "
                f"give it at most {most - padding} bits, or take paillier or secure-sum.",
            )

    def who_opens(self, clients: int) -> str:
        return ckks.who_opens(clients, self.key == "symmetric")
