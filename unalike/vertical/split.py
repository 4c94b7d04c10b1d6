"""Make parties from any table, for experiments: who has which columns, how many people match, how many are mixed up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike.data.dataset import Dataset
from unalike.data.schema import Column, Schema
from unalike.draws import generator
from unalike.errors import UnalikeError
from unalike.vertical.parties import Parties
from unalike.vertical.tables import Table

HALVES = {
    "left": (slice(None), slice(None, 0.5)), "right": (slice(None), slice(0.5, None)),
    "top": (slice(None, 0.5), slice(None)), "bottom": (slice(0.5, None), slice(None)),
}  # fmt: skip


def split(
    data: Any,
    parts: Mapping[str, int | str | Sequence[int]],
    overlap: int = 0,
    overlap_noise: float = 0.0,
    matched: float = 1.0,
    errors: float = 0.0,
    seed: int = 0,
    columns: str = "both",
    **options: Any,
) -> Parties:
    """Divide a table among parties; the first is the guest, which gets the labels.

    data: a Dataset or (x, y). parts: for each party the number of its columns (in order), a list of them or, for
    pictures, "left", "right", "top" or "bottom". overlap: how many of the guest's columns every host has too, with
    noise of `overlap_noise` deviations on the host's copy; columns: whose copies are used ("guest", "host" or "both").
    matched: the share of the guest's people that a host has; it has as many other people as it lacks. errors: the share
    of a host's matched rows whose ids are swapped. Other options are those of `Parties`.
    """
    x, y, classes, names = _pair(data)
    for word, value in (("matched", matched), ("errors", errors)):
        if not 0 <= value <= 1:
            raise UnalikeError(f"{word} must lie in [0, 1]; got {value!r}.")
    chosen = _columns(x, parts)
    flat, draw = x.reshape(len(x), -1), generator(seed, "vertical split")
    guest_name, *host_names = parts
    if not 0 <= overlap <= len(chosen[guest_name]):
        raise UnalikeError(f"overlap={overlap}: {guest_name} has {len(chosen[guest_name])} columns.")
    people = [f"person {k}" for k in draw.permutation(len(flat))]
    guest = Table(guest_name, people, flat[:, chosen[guest_name]], _schema(chosen[guest_name], names), y)
    hosts = []
    for name in host_names:
        shared = chosen[guest_name][:overlap]
        values = torch.cat([_noised(flat[:, shared], overlap_noise, draw), flat[:, chosen[name]]], 1)
        ids = _ids(people, matched, errors, draw, name)
        order = torch.from_numpy(draw.permutation(len(flat)))
        table = Table(name, [ids[k] for k in order.tolist()], values[order], _schema([*shared, *chosen[name]], names))
        hosts.append(table)
    return Parties(guest, hosts, overlap=columns if overlap else "refuse", seed=seed, classes=classes, **options)


def _pair(data: Any) -> tuple[Tensor, Tensor, int | None, Sequence[str] | None]:
    if isinstance(data, Dataset):
        features = data.schema.features if data.schema is not None else None
        return data.x.double(), data.y, data.classes, features
    x, y = (torch.as_tensor(np.asarray(part)) for part in data)
    y = y.double() if y.is_floating_point() else y.long()
    return x.double(), y, None if y.is_floating_point() else int(y.max()) + 1, None


def _columns(x: Tensor, parts: Mapping[str, int | str | Sequence[int]]) -> dict[str, list[int]]:
    places, out, at = torch.arange(x[0].numel()).reshape(x.shape[1:]), {}, 0
    for name, part in parts.items():
        if isinstance(part, str):
            out[name] = _half(places, name, part)
        elif isinstance(part, int):
            out[name], at = list(range(at, at + part)), at + part
        else:
            out[name] = [int(k) for k in part]
        if not out[name] or max(out[name]) >= x[0].numel() or min(out[name]) < 0:
            raise UnalikeError(f"{name} asks for columns {part!r}; the table has {x[0].numel()} in all.")
    return out


def _half(places: Tensor, name: str, which: str) -> list[int]:
    if which not in HALVES or places.dim() < 2:
        raise UnalikeError(f"{name}={which!r}: pictures are divided into {', '.join(HALVES)}.")
    rows, columns = (
        slice(*(None if end is None else round(end * size) for end in (cut.start, cut.stop)))
        for cut, size in zip(HALVES[which], places.shape[-2:], strict=True)
    )
    return places[..., rows, columns].flatten().tolist()


def _noised(values: Tensor, noise: float, draw: np.random.Generator) -> Tensor:
    return values + noise * values.std(0) * torch.from_numpy(draw.standard_normal(values.shape)) if noise else values


def _ids(people: list[str], matched: float, errors: float, draw: np.random.Generator, name: str) -> list[str]:
    """Return the ids of a host's rows: the guest's, some swapped with each other, and some of other people."""
    ids, chosen = list(people), draw.permutation(len(people))
    common = chosen[: round(matched * len(people))]
    for k in chosen[len(common) :]:
        ids[k] = f"other {name} {k}"
    wrong = common[: round(errors * len(common))]
    for k, other in zip(wrong, np.roll(wrong, 1), strict=True):
        ids[k] = people[other]
    return ids


def _schema(places: Sequence[int], names: Sequence[str] | None) -> Schema:
    return Schema(tuple(Column(names[k] if names else f"column {k}") for k in places), "")
