"""The samples that a request names: a client's own, rows of the public set, or both."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from unalike.contract.requests import PUBLIC, DataName
from unalike.data import Columns
from unalike.errors import UnalikeError

NO_PUBLIC = (
    "The method works on a public set, and there is none: give --public 0.1 ([data] public in a file), in Python "
    "fed.with_public(x, y) or Dataset.split(public=0.1)."
)


@dc.dataclass(frozen=True, eq=False)
class Samples:
    """The samples named by a request's `data`, of all clients: rows of `x` and `y`.

    own: the clients' own samples among them; public: number of rows of the public set, which begin at `base`; labelled:
    whether all have labels (if not, y is -1, or NaN).
    """

    x: Tensor
    y: Tensor
    own: Columns | None
    public: int = 0
    base: int = 0
    labelled: bool = True

    @classmethod
    def of(cls, data: DataName, splits: Mapping[str, Columns], public: tuple[Tensor, Tensor | None] | None) -> Samples:
        """Return the samples of this name: a split, "public", or a split and "public"."""
        names = (data,) if isinstance(data, str) else tuple(data)
        own = splits[names[0]] if names[0] != PUBLIC else None
        if own is not None and len(names) == 1:
            return cls(own.x, own.y, own)
        if public is None:
            raise UnalikeError(NO_PUBLIC)
        px, py = public
        labels = no_labels(len(px), splits["train"].y) if py is None else py
        if own is None:
            return cls(px, labels, None, len(px), 0, py is not None)
        return cls(torch.cat([own.x, px]), torch.cat([own.y, labels]), own, len(px), len(own.x), py is not None)

    def renew(self) -> None:
        """Copy the clients' own samples again, if they were copied to stand beside public ones."""
        if self.own is not None and self.public:
            self.x[: self.base].copy_(self.own.x)
            self.y[: self.base].copy_(self.own.y)


def no_labels(rows: int, like: Tensor) -> Tensor:
    """Return invalid labels: -1, or NaN if labels are floats."""
    return like.new_full((rows, *like.shape[1:]), float("nan") if like.is_floating_point() else -1)


class Chosen:
    """The samples of one request, for some clients: how many each has (`sizes`), how many of them are its `own`, which
    begin at `offsets`; the others are rows of the public set."""

    def __init__(self, samples: Samples, ids: np.ndarray, only: Tensor | None = None):
        """only: chosen rows of the public set, or of the clients' own samples if there are no others; the same [r] for
        all or [c, r]. -1 at the end of a row means that it has fewer."""
        none, own = np.zeros(len(ids), dtype=np.int64), samples.own
        self.samples = samples
        self.own: np.ndarray = none if own is None else own.sizes[ids]
        self.offsets: np.ndarray = none if own is None else own.offsets[ids]
        rows: int | np.ndarray = samples.public
        if only is not None:
            rows = _checked(only, samples.public, self.own)
        self.sizes = self.own + rows
        if only is not None and not samples.public:
            self.sizes = none + rows

    def find(self, index: Tensor, offset: Tensor, own: Tensor, only: Tensor | None) -> Tensor:
        """Return where samples lie in `samples.x`. index [..., c, B]: numbers within each client's data; offset, own,
        only: `offsets` and `own` on the device, and the chosen rows, in the order of the index."""
        samples = self.samples
        if not samples.public and only is None:
            return index + offset[:, None]
        place = index if samples.own is None or not samples.public else (index - own[:, None]).clamp(min=0)
        if only is not None:
            place = (
                only[place] if only.dim() == 1 else only[torch.arange(len(only), device=only.device)[:, None], place]
            )
        if not samples.public:
            return place + offset[:, None]
        if samples.own is None:
            return place
        return torch.where(index < own[:, None], index + offset[:, None], samples.base + place)


def row_values(values: Tensor, index: Tensor, own: Tensor | None, shared: bool) -> Tensor:
    """Return rows of a tensor that has one row per sample. index: [c, ..., B]; values: [c, rows, ...], or [rows, ...]
    if all clients have the same (`shared`); own: [c], for a union: that many own samples come before the public ones,
    and have zeros."""
    lead = (len(index), *([1] * (index.dim() - 1)))
    place = index if own is None else (index - own.reshape(lead)).clamp(min=0)
    clients = torch.arange(len(index), device=index.device).reshape(lead)
    found = values[place] if shared else values[clients, place]
    if own is None:
        return found
    public = index >= own.reshape(lead)
    public = public.reshape(*index.shape, *([1] * (found.dim() - index.dim())))
    return torch.where(public, found, torch.zeros_like(found))


def _checked(only: Tensor, public: int, own: np.ndarray) -> int | np.ndarray:
    """Check chosen rows and return how many there are, for all or for each client: a row out of range would kill the
    process on a GPU."""
    if only.dtype != torch.int64 or only.dim() < 1 or not only.shape[-1]:
        raise UnalikeError(
            f"only= must be whole numbers [r], rows of the samples; got {only.dtype} {list(only.shape)}."
        )
    if public and only.shape[-1] > public:
        raise UnalikeError(f"only= asks for {only.shape[-1]} rows of a public set that has {public}.")
    low, high = (int(v) for v in only.aminmax())
    few = public or int(own.min())  # rows that every client has
    if low < -1 or high >= few:
        _one_too_far(only, public, own)
    if low >= 0:
        return only.shape[-1]
    real = only >= 0
    if (real[..., 1:] & ~real[..., :-1]).any():
        raise UnalikeError("only= has a -1 before other rows: they stand at the end, where a client has fewer rows.")
    return real.sum(-1).cpu().numpy()


def _one_too_far(only: Tensor, public: int, own: np.ndarray) -> None:
    """Raise for the row that does not exist; a client with more samples than others may be asked for all of its own."""
    lows, highs = (t.reshape(-1).cpu().numpy() for t in only.reshape(-1, only.shape[-1]).aminmax(dim=-1))
    sizes = np.full(1, public) if public else own
    for low, high, size in np.broadcast(lows, highs, sizes):
        if low < -1 or high >= size:
            whose = "public set" if public else "client"
            raise UnalikeError(f"only= asks for row {low if low < -1 else high} of a {whose} that has {size}.")
