"""Prepare features between machines: two exchanges, in which a client answers with sums over its training samples.

`SENDS` declares everything that leaves a client. The server needs only the sum over clients of each field, never a
single client's value, so a secure sum can carry it (`hidden_sums_for`). unalike/data/preparation.py defines the sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import unalike
from unalike.channel.summing import COUNT, SAMPLES, Slot, tag_slots
from unalike.client.secure import ABOUT, HidingClient, bound_at_client, whole
from unalike.contract import Field
from unalike.data.columns import Columns
from unalike.data.federation import Federation
from unalike.data.joined import JoinedFederation
from unalike.data.preparation import Preparation, Recipe, Sums, concluded, first_sums, means, second_sums, totals
from unalike.errors import UnalikeError, first_line
from unalike.messages import wire
from unalike.messages.request import Asked
from unalike.text import named, printable

KIND = "prepare"
# limit for a feature, which becomes a float32
LARGEST = 3.5e38
SENDS = {
    "present": Field(("features",), read="sum", weight="one"),  # number of rows that have the feature
    "sum": Field(("features",), read="sum", weight="one"),
    "squares": Field(("features",), read="sum", weight="one"),  # squared distances from the mean over all clients
    "y_sum": Field(("targets",), read="sum", weight="one"),
    "y_squares": Field(("targets",), read="sum", weight="one"),
}
LIMB, LIMBS, LOWEST = 24, 27, -355  # numbers below 2^293, in steps of 2^-355: squares of the smallest float32 too
SAMPLES_LIMBS = 2
# sends one request to every client and yields (client, its answer)
Ask = Callable[[bytes], Iterable[tuple[int, bytes]]]


# ---------------------------------------------------------------- at the client


def sums_for(header: dict[str, Any], tensors: dict[str, Tensor], columns: Columns) -> bytes:
    """Answer a request for sums over one client's training samples."""
    found = _sums_of(header, tensors, columns)
    return _reply(columns, {name: rows[0] for name, rows in found.items()})


def hidden_sums_for(request: Asked, columns: Columns, hiding: HidingClient) -> bytes:
    """Answer a request for the same sums so that the server learns only their totals over clients."""
    tensors = dict(request.tensors)
    about = {name: tensors.pop(name) for name in ABOUT if name in tensors}
    found = _sums_of(request.header, tensors, columns)
    when = whole(request.header, "round"), 0
    if when[0] != int(bool(tensors)):
        raise UnalikeError("A preparation has two sums: round 0 without means, and round 1 about them.")
    hiding.prepare(tensors)
    parts = slots_of({name: rows.shape[1] for name, rows in found.items()}, hiding.tags)
    codes = {name: limbs(rows[0]) for name, rows in found.items()}
    codes |= {COUNT: torch.ones(1, dtype=torch.int64), SAMPLES: _whole_limbs(len(columns.y), SAMPLES_LIMBS)}
    codes |= {slot.name: torch.zeros(1, dtype=torch.int64) for slot in tag_slots(hiding.tags)}
    return _reply(columns, hiding.hidden(when, bound_at_client(request.parts), about, parts, codes))


def _reply(columns: Columns, parts: dict[str, Tensor]) -> bytes:
    answer = {"kind": "reply", "version": unalike.__version__, "samples": len(columns.y)}
    return wire.encode(answer, parts)


def _sums_of(header: dict[str, Any], tensors: dict[str, Tensor], columns: Columns) -> Sums:
    x, y, plain = columns.x, columns.y, header.get("recipe")
    if not isinstance(plain, dict):
        raise UnalikeError("The request to prepare features has no recipe.")
    recipe = Recipe.from_plain(plain)
    if not recipe.fits(x):
        raise UnalikeError(
            f"The run prepares {len(recipe.scaled)} features; a sample of this client is {list(x.shape[1:])} {x.dtype}."
        )
    if recipe.target and not y.is_floating_point():
        raise UnalikeError("The run predicts a number; this client's labels are classes.")
    return second_sums(columns, *_centers(tensors, columns, recipe)) if tensors else first_sums(columns, recipe)


def _centers(tensors: dict[str, Tensor], columns: Columns, recipe: Recipe) -> tuple[Tensor, Tensor | None]:
    shapes = {"center": columns.x.shape[1]} | ({"y_center": _targets(columns.y)} if recipe.target else {})
    for name, value in tensors.items():
        if list(value.shape) != [shapes.get(name)] or value.dtype != torch.float64 or not value.isfinite().all():
            raise UnalikeError(f"The request to prepare features has {name!r}, {list(value.shape)}: no such means.")
    if tensors.keys() != shapes.keys():
        raise UnalikeError("The request to prepare features lacks some of the means.")
    return tensors["center"], tensors.get("y_center")


def _targets(y: Tensor) -> int:
    return math.prod(y.shape[1:])


# ---------------------------------------------------------------- sums as whole codes


def slots_of(widths: Mapping[str, int], tags: int) -> list[Slot]:
    """Return the slots in which these sums are added without being seen, and what counts who is in them."""
    sums = [Slot(name, LIMBS * count, LIMB + 1) for name, count in widths.items()]
    return [*sums, Slot(COUNT, 1, LIMB + 1), Slot(SAMPLES, SAMPLES_LIMBS, LIMB + 1), *tag_slots(tags)]


def limbs(values: Tensor) -> Tensor:
    """Return numbers as whole multiples of 2^LOWEST in limbs of LIMB bits, the lowest first, each with the number's
    sign: sums of limbs are exact, whatever the numbers' sizes."""
    numbers = values.double().tolist()
    if not all(abs(value) < math.ldexp(1, LIMB * LIMBS + LOWEST) for value in numbers):
        raise UnalikeError("A sum over this client's samples is too large to be added, or no number.")
    rows = [_whole_limbs(round(math.ldexp(value, -LOWEST)), LIMBS) for value in numbers]
    return torch.cat(rows) if rows else torch.empty(0, dtype=torch.int64)


def _whole_limbs(n: int, count: int) -> Tensor:
    mask, sign = (1 << LIMB) - 1, 1 if n > 0 else -1
    return torch.tensor([(abs(n) >> LIMB * k & mask) * sign for k in range(count)])


def whole_of(codes: Tensor) -> int:
    """Return the whole number whose limbs add up to these."""
    return sum(code << LIMB * k for k, code in enumerate(codes.tolist()))


def unlimbed(codes: Tensor) -> Tensor:
    """Return the numbers whose limbs add up to these, float64, correctly rounded."""
    return torch.tensor([whole_of(row) / (1 << -LOWEST) for row in codes.view(-1, LIMBS)], dtype=torch.float64)


# ---------------------------------------------------------------- at the server


class NoSums(UnalikeError):
    """Raised when a client's sums are missing or not usable."""

    def __init__(self, client: int, reason: str):
        super().__init__(named(f"client {client}", reason))
        self.client, self.reason = client, reason


def prepared_together(recipe: Recipe, ask: Ask, sizes: Mapping[int, int], targets: int = 1) -> Preparation:
    """Ask clients twice for their sums, and return the resulting preparation.

    sizes: training samples by client; targets: how many numbers are predicted at once.
    """
    request = {"kind": KIND, "version": unalike.__version__, "recipe": recipe.plain()}

    def totals_of(centers: Sums, names: Sequence[str]) -> Sums:
        return _added(ask(wire.encode(request, centers)), widths_of(names, recipe, targets), sizes)

    return prepared_from(recipe, totals_of, sum(sizes.values()))


def prepared_from(recipe: Recipe, totals_of: Callable[[Sums, Sequence[str]], Sums], samples: int) -> Preparation:
    """Return the preparation made from two totals over clients. totals_of: returns the totals of the named sums, given
    the centers that they are taken about."""
    first = totals_of({}, ("present", "sum"))
    center, y_center = means(first, samples)
    second = totals_of({"center": center} | ({} if y_center is None else {"y_center": y_center}), ("squares",))
    return concluded(recipe, first, second, samples)


def widths_of(names: Sequence[str], recipe: Recipe, targets: int) -> dict[str, int]:
    """Return how many numbers each of these sums has, and that of y after them, where y is a number."""
    asked = [*names, *([f"y_{names[-1]}"] if recipe.target else [])]
    lengths = {"features": len(recipe.scaled), "targets": targets}
    return {name: SENDS[name].resolve(lengths, None)[0] for name in asked}


def _added(answers: Iterable[tuple[int, bytes]], widths: dict[str, int], sizes: Mapping[int, int]) -> Sums:
    """Return the totals over all clients' answers, each of which is checked by itself."""
    rows: dict[int, Sums] = {}
    for client, answer in answers:
        try:
            header, sent = wire.decode(answer)
        # any error in decoding: the bytes come from one client and concern it alone
        except Exception as error:
            raise NoSums(client, f"{first_line(error)}.") from None
        if header.get("kind") != "reply":
            raise NoSums(client, printable(header.get("reason"), 500))
        if not right(sent, widths, sizes[client]):
            raise NoSums(client, f"it answers something else than sums over its {sizes[client]} samples.")
        rows[client] = sent
    if len(rows) != len(sizes):
        silent = min(sizes.keys() - rows.keys())
        raise NoSums(silent, "it does not answer, and features are prepared from all clients' sums.")
    return {name: totals(torch.stack([rows[k][name] for k in sizes])) for name in widths}


def right(sent: Sums, widths: dict[str, int], samples: int) -> bool:
    """Return whether these can be sums over this many samples."""
    if {name: list(value.shape) for name, value in sent.items()} != {name: [n] for name, n in widths.items()}:
        return False
    for name, value in sent.items():
        if value.dtype != (torch.int64 if name == "present" else torch.float64) or not value.isfinite().all():
            return False
        if name == "present" and bool(((value < 0) | (value > samples)).any()):
            return False
        if name.endswith("squares") and bool((value < 0).any()):
            return False
        if bool((value.abs() > LARGEST**2 * samples).any()):
            return False
    return True


def by_messages(data: Federation) -> Federation:
    """Prepare a federation as its clients would between machines, through the bytes of real messages; in a joined
    federation, each part."""
    if isinstance(data, JoinedFederation):
        return JoinedFederation({name: by_messages(part) for name, part in data.own.items()}, data.architecture)
    recipe = data.recipe
    if recipe is None:
        return data

    def ask(request: bytes) -> Iterable[tuple[int, bytes]]:
        header, tensors = wire.decode(request)
        for k in range(len(data)):
            x, y = data.train.of(k)
            yield k, sums_for(header, tensors, Columns(x, y, [0, len(y)]))

    return data.prepared_by(
        prepared_together(recipe, ask, dict(enumerate(data.train.sizes.tolist())), _targets(data.train.y))
    )
