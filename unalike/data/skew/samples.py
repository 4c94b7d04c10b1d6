"""Helpers for changes of samples: checks of which data can be changed, the units of the data, and changing rows in
chunks.

All numbers are computed on the CPU as float64 and then rounded to the samples' type, so that the result depends neither
on the device nor the platform nor the size of a chunk. A sample that is not changed keeps its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike import draws
from unalike.data.columns import Columns
from unalike.data.federation import as_arguments
from unalike.errors import UnalikeError

CHUNK = 1 << 20  # numbers that are changed in one go
Fn = Callable[[Tensor, np.ndarray, Tensor], Tensor]


def changed(fed: Any, name: str, planted: np.ndarray, touched: np.ndarray, fn: Fn, seed: int) -> Any:
    """Return the federation with the samples of some clients changed, in every split.

    touched: bool [N], the clients to change. fn(x, owners, keys) returns new samples for x [n, ...], float64; owners
    [n] are their clients, keys [n] a random key for each, made from seed, split, client and position.
    """
    seed = draws.check_seed(seed)
    splits = fed.splits
    if touched.any():
        splits = {split: _split(columns, touched, fn, (seed, f"{name} {split}")) for split, columns in splits.items()}
    return fed.replace(**as_arguments(splits), planted={**fed.planted, name: planted})


def _split(columns: Columns, touched: np.ndarray, fn: Fn, purpose: tuple[int, str]) -> Columns:
    owners = columns.owners()
    position = np.arange(len(owners)) - columns.offsets[owners]
    keys = draws.client_keys(purpose[0], 0, purpose[1], np.arange(len(columns)))
    rows = np.flatnonzero(touched[owners])
    if not len(rows):
        return columns
    x = columns.x.clone()
    for some in np.split(rows, range(_rows(x), len(rows), _rows(x))):
        own = draws.bits(torch.from_numpy(keys[owners[some]]), torch.from_numpy(position[some]))
        at = torch.from_numpy(some).to(x.device)
        made = fn(columns.x[at].cpu().double(), owners[some], own).to(x.dtype)
        if not made.isfinite().all():
            kind = str(x.dtype).removeprefix("torch.")
            raise UnalikeError(f"{purpose[1].split()[0]} makes numbers too large for {kind}: ask for less.")
        x[at] = made.to(x.device)
    return Columns(x, columns.y, columns.offsets)


def _rows(x: Tensor) -> int:
    return max(1, CHUNK // max(1, x[:1].numel()))


def numbers(name: str, fed: Any, forms: str = "", *dims: int) -> Tensor:
    """Return the training samples; raise if this change cannot be applied to them: tokens, features not prepared yet,
    missing cells, or x without the required number of dimensions."""
    ready(name, fed)
    x = fed.train.x
    if not x.is_floating_point():
        kind = str(x.dtype).removeprefix("torch.")
        raise UnalikeError(
            f"{name} changes numbers, and these samples are tokens ({kind}): use a change of labels, such as "
            "'permute:2', or convert pictures to floats."
        )
    if dims and x.dim() not in dims:
        raise UnalikeError(
            f"{name} changes {forms}, and a sample here has shape {list(x.shape[1:])}: load pictures as such "
            "(ua.load('digits', image=True), --data.image), or take 'noise:0.5' or 'shift:1'."
        )
    checked(fed)
    return x


def ready(name: str, fed: Any) -> None:
    """Raise if features are on other machines, or not prepared yet."""
    here(name, fed)
    if fed.recipe is not None:
        raise UnalikeError(
            f"{name} changes features as models see them, and these are raw, for clients to prepare: prepare them "
            "first (`Federation.prepared`), or simulate (unalike run)."
        )


def here(name: str, fed: Any) -> None:
    """Raise if the clients' samples are on other machines."""
    if fed.remote:
        raise UnalikeError(f"{name} changes samples, and these are on other machines: change them there.")


def checked(fed: Any, gaps: bool = False) -> None:
    """Raise for values that are not finite (with `gaps`, missing cells are allowed), and for labels that are no
    class."""
    for what, x, y, columns in fed.sets():
        fed.check_set(what, x, y, columns, gaps)


def spread(x: Tensor) -> Tensor:
    """Return the standard deviation of every feature; for pictures and signals, of every channel; [1, C, 1, ...]."""
    count = x.numel() // max(1, _units(x))
    mean = torch.stack([_total(chunk) for chunk in _chunks(x)]).sum(0) / count
    squares = torch.stack([_total((chunk - mean).square()) for chunk in _chunks(x)])
    return (squares.sum(0) / count).sqrt().float().double()  # float32 hides the order of summation


def reach(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and largest value of every feature; for pictures and signals, of every channel."""
    over = _others(x)
    low = torch.stack([chunk.amin(over, keepdim=True) for chunk in _chunks(x)]).amin(0)
    high = torch.stack([chunk.amax(over, keepdim=True) for chunk in _chunks(x)]).amax(0)
    return low, high


def _chunks(x: Tensor) -> Iterator[Tensor]:
    return (chunk.cpu().double() for chunk in x.split(_rows(x)))


def _total(x: Tensor) -> Tensor:
    return x.sum(_others(x), keepdim=True)


def _others(x: Tensor) -> list[int]:
    return [d for d in range(x.dim()) if d != 1]


def _units(x: Tensor) -> int:
    return x.shape[1] if x.dim() > 1 else 1


def per_row(values: np.ndarray, like: Tensor) -> Tensor:
    """Return one number per row, shaped to multiply rows of samples."""
    return torch.from_numpy(np.asarray(values, np.float64)).reshape(-1, *[1] * (like.dim() - 1))


def uniform(keys: Tensor, shape: tuple[int, ...], purpose: int = 0) -> Tensor:
    """Return numbers in (0, 1) for every key, float64 [n, *shape], different for each purpose; 32 bits each."""
    count = int(np.prod(shape))
    z = draws.bits(draws.fold(keys, purpose)[:, None], torch.arange(count)[None])
    return ((((z >> 32) & 0xFFFFFFFF).double() + 0.5) / (1 << 32)).reshape(-1, *shape)


def normal(keys: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return standard normal numbers for every key, float64 [n, *shape] (Box-Muller)."""
    radius, angle = uniform(keys, shape, 0), uniform(keys, shape, 1)
    return torch.sqrt(-2 * torch.log(radius)) * torch.cos(2 * torch.pi * angle)
