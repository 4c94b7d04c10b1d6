"""The last stage of a channel that leaves the server only sums, never a single client's reply, masked or encrypted.

Everything in a reply is inside: every field, BatchNorm's statistics, the training loss, the number of samples. So a
method must read only sums, and clients apply weights: n / n_max, which all can compute, in place of n.

In a simulation nothing is masked: whole codes are added in the same ring as in a real federation, and the sums have the
same bits. The protocol between machines: docs/secure-sums.md.
"""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from unalike.channel.stage import Form, Sees, Stage, refuse
from unalike.crypto.graph import corrupt_borne, least_opened
from unalike.crypto.ring import carry_bits, packed_bytes
from unalike.crypto.secure_sum import KEY, SEALED
from unalike.crypto.shamir import BYTES
from unalike.errors import UnalikeError
from unalike.settings.knobs import knob

NUMBER, SIGNATURE = 8, 96  # bytes of a client's number in a list, and of a signature (P-384)
# what clients are told: the samples of the largest client
LARGEST = "largest"


@dc.dataclass(frozen=True)
class Summed(Stage):
    """What the server gets is a sum of whole codes.

    Fields that stages before it have coded (`quantise` with a limit, integer noise) are summed as they are. All others
    are coded in fixed point: `bits` from -limit to limit, far finer than a float32 is near 1.
    """

    wide = True
    hides = True
    tags: ClassVar[int] = 0  # numbers by which whoever opens a sum knows that it is one

    @property
    def bits(self) -> int:
        """Return the bits of a number in fixed point."""
        raise NotImplementedError

    @property
    def limit(self) -> float:
        """Return the largest number in fixed point."""
        raise NotImplementedError

    @property
    def least(self) -> int:
        """Return the fewest clients of a sum."""
        raise NotImplementedError

    def check(self, before: Sequence[Stage], after: Sequence[Stage]) -> None:
        if after:
            if after[0].hides:
                raise refuse(self, f"{after[0]} comes after it: one of them is enough.")
            raise refuse(self, f"{after[0]} comes after it, and must come before: what leaves a client is hidden last.")
        if self.fields:
            raise refuse(self, "it is on all fields of a reply: one in the clear would tell what the others hide.")
        if other := next((stage for stage in before if stage.hides), None):
            raise refuse(self, f"{other} comes before it: one of them is enough.")

    def check_form(self, name: str, form: Form) -> None:
        """Refuse codes that cannot be added: with each client's own unit, or its own choice of entries."""
        if form.positions == "sent":
            raise refuse(self, f"{name!r} has entries of each client's own choice: take randomk, which all draw alike.")
        if form.unit == "sent":
            raise refuse(self, f"the codes of {name!r} have a unit of each client's own: give quantise a limit.")

    def check_clients(self, clients: int) -> None:
        """Refuse a sum over too few clients."""
        if clients < self.least:
            raise UnalikeError(
                f"{self.name}: {clients} clients take part, and a sum of fewer than {self.least} (least) hides too "
                "little."
            )

    def check_codes(self, name: str, bits: int, clients: int, whole: bool) -> None:
        """Refuse codes of a part of a reply that cannot be summed. whole: it is a field of whole numbers."""

    def told(self, values: Mapping[str, Any]) -> dict[str, float]:
        return {LARGEST: float(values.get(LARGEST, 1.0))}

    def vector_bytes(self, count: int, bits: int, clients: int) -> int:
        """Return the bytes that a client sends for `count` codes of `bits` bits, summed over `clients` clients."""
        return packed_bytes(count, bits + carry_bits(clients))

    def opening_bytes(self, down: int, up: int, clients: int) -> tuple[int, int]:
        """Return the bytes, down and up, for all clients together, of opening a sum, beside `side` and `down`. down:
        bytes of the hidden sum; up: of the opened sum."""
        return 0, 0

    def promise(self, clients: int) -> str:
        """Return in words who together can open what, in sums over `clients` clients."""
        raise NotImplementedError

    def side(self, clients: int) -> int:
        """Return the bytes that a client sends beside its numbers, in a sum over `clients` clients."""
        return 0

    def down(self, clients: int) -> int:
        """Return the bytes that a client receives beside the message, in a sum over `clients` clients."""
        return 0

    @property
    def sees(self) -> Sees:
        return Sees(server="the sum over those who came, and who came", shields=True)


@dc.dataclass(frozen=True)
class SecureSum(Summed):
    """Masks that cancel in the sum (Bonawitz et al. 2017; graph of Bell et al. 2020). `unalike.crypto.secure_sum` has
    the protocol; between machines it takes two exchanges more than an open sum, with `agree` three."""

    name = "secure-sum"

    threshold: float = knob(0.67, "share of a client's neighbours that open a sum: so many must stay", above=0, most=1)
    neighbours: int | None = knob(None, "with how many others a client shares masks; none: with all", least=2)
    bits: int = knob(40, "bits of a number in fixed point", least=8, most=48)
    limit: float = knob(8192.0, "the largest number in fixed point", above=0)
    least: int = knob(3, "clients of a sum; of fewer there is none", least=2)
    agree: bool = knob(False, "clients sign the list of those who came before they open the sum")

    def degree(self, clients: int) -> int:
        """Return how many neighbours each of `clients` clients has."""
        if self.neighbours is None or self.neighbours >= clients - 1:
            return clients - 1
        return self.neighbours + self.neighbours % 2

    def opening(self, clients: int) -> int:
        """Return how many of a client's neighbours open its secrets: more than the share of them, and at least two,
        so that no one client can."""
        self.check_clients(clients)
        degree = self.degree(clients)
        return min(degree, max(2, int(self.threshold * degree) + (self.threshold < 1)))

    def side(self, clients: int) -> int:
        """Public key, commitment, sealed shares, opened shares, and where clients agree a signature."""
        return 2 * KEY + self.degree(clients) * (SEALED + BYTES) + self.agree * SIGNATURE

    def down(self, clients: int) -> int:
        """Everybody's number, key, signature and identity; who dealt, and their sealed shares; who came, and that it is
        agreed."""
        agreed = clients * (NUMBER + SIGNATURE) if self.agree else 0
        return clients * (NUMBER + 2 * KEY + SIGNATURE + 2 * NUMBER) + self.degree(clients) * SEALED + agreed

    def promise(self, clients: int) -> str:
        degree, opening = self.degree(clients), self.opening(clients)
        borne = corrupt_borne(degree, opening)
        text = f"{opening} of a client's {degree} neighbours together with the server open what it sent"
        if borne < 0:
            return f"{text}; a server that lies opens it alone"
        fewest, alone = (
            least_opened(clients, opening, corrupt) if degree == clients - 1 else 0 for corrupt in (borne, 0)
        )
        some = f", and gets no sum of fewer than {fewest} others" if fewest > 1 and not self.agree else ""
        if 0 < alone < self.least and not self.agree:
            some += f"; alone it may get a sum of {alone}, fewer than {self.least} (least), where it tells clients lies"
        return f"{text}; a server that lies needs more than {borne} of them{some}"

    @property
    def sees(self) -> Sees:
        return Sees(
            server="the sum over those who came, and who came; one client's own only if too many others help it",
            clients="nothing of each other below the threshold",
            wire="masked codes, and sealed shares of their masks",
            shields=True,
        )
