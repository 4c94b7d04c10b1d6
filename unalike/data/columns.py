"""One split of all clients as columns: an array per field, and an offset per client.

Nothing here loops over clients in Python, except `stack`, whose caller gives one pair of arrays per client.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from unalike.data.pixels import Pixels, kept
from unalike.errors import UnalikeError

# written into folders of mapped columns and into fingerprints
FORMAT = "unalike-columns-1"
# bytes of a column that are looked at in one go
CHUNK_BYTES = 16 << 20

Pair = tuple[torch.Tensor, torch.Tensor]


def as_tensor(value: Any, what: str) -> torch.Tensor:
    """Return a tensor over the same memory where possible; float64 stays float64, uint8 stays uint8."""
    if isinstance(value, torch.Tensor):
        if value.is_complex() or value.layout != torch.strided:
            raise UnalikeError(f"{what} is {value.dtype} ({value.layout}): give a dense, real, numeric tensor.")
        return value.detach() if value.requires_grad else value
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        raise UnalikeError(f"{what} has rows of unequal shape: all samples must have one shape; pad them.") from None
    if array.dtype.kind not in "biuf":
        raise UnalikeError(f"{what} has dtype {array.dtype}: it must be numeric; encode it as numbers first.")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    elif array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    array = np.ascontiguousarray(array) if array.ndim else array
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def as_pair(x: Any, y: Any, what: str) -> Pair:
    """Return samples and labels of equal length; integer labels become int64, float labels (regression) stay."""
    x, y = as_tensor(x, f"x of {what}"), as_tensor(y, f"y of {what}")
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
        raise UnalikeError(
            f"x of {what} has shape {list(x.shape)} and y {list(y.shape)}: the first sizes must be equal; "
            "give one label per sample."
        )
    if y.dtype.is_floating_point:
        if y.ndim > 2:
            raise UnalikeError(f"y of {what} has shape {list(y.shape)}: targets must be [n] or [n, k]; flatten them.")
        return x, y
    if y.ndim > 1:
        raise UnalikeError(
            f"y of {what} has shape {list(y.shape)}: class labels must be [n]; use y.reshape(-1), "
            "y.argmax(1) for one-hot rows, or floats for regression."
        )
    return x, y.to(torch.int64)


def agree(got: Pair, must: Pair, what: str, other: str) -> None:
    """Raise if the samples or labels of two pairs differ in kind or shape; `what` and `other` name their owners."""
    for letter, pair in zip("xy", zip(got, must, strict=True), strict=True):
        one, two = (f"{'float' if t.is_floating_point() else 'integer'} {list(t.shape[1:])}" for t in pair)
        if one != two:
            raise UnalikeError(
                f"{what} has {letter} {one} per sample and {other} {two}: they must be equal; "
                "prepare both in the same way."
            )


def offsets_of(sizes: Any) -> np.ndarray:
    """Return the offsets of clients with these numbers of rows, int64 [N + 1]."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


class Columns:
    """One split of all clients: client k owns rows `offsets[k]:offsets[k+1]` of `x` and `y`.

    x [total, ...] may lie in a memory map; y [total] is int64 class labels, or floats [total] or [total, k].
    Integer x are tokens to the simulator: images must be floats.
    """

    __slots__ = ("_sizes", "offsets", "x", "y")

    def __init__(self, x: Any, y: Any, offsets: Any):
        self.x, self.y = as_pair(x, y, "the columns")
        given = np.asarray(offsets)
        if given.ndim != 1 or len(given) < 2 or given.dtype.kind not in "iu":
            raise UnalikeError(
                f"The offsets have shape {list(given.shape)} and dtype {given.dtype}: they must be N+1 "
                "integers; give np.concatenate([[0], np.cumsum(sizes)])."
            )
        bounds = given.astype(np.int64, copy=False).view()
        sizes = np.diff(bounds)
        if bounds[0] != 0 or bounds[-1] != len(self.x) or (sizes < 0).any():
            raise UnalikeError(
                f"The offsets run from {bounds[0]} to {bounds[-1]} for {len(self.x)} rows: they must rise "
                "from 0 to the number of rows; give np.concatenate([[0], np.cumsum(sizes)])."
            )
        bounds.flags.writeable = sizes.flags.writeable = False
        self.offsets, self._sizes = bounds, sizes

    @property
    def sizes(self) -> np.ndarray:
        """Samples per client, int64 [N]."""
        return self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def of(self, k: int) -> Pair:
        """Return client k's rows, as views."""
        if not 0 <= k < len(self._sizes):
            raise UnalikeError(f"There is no client {k}: there are {len(self)}, numbered from 0.")
        start, stop = int(self.offsets[k]), int(self.offsets[k + 1])
        return self.x[start:stop], self.y[start:stop]

    def renew(self) -> None:
        """Called after samples were changed in place; caches are cleared here."""

    def owner(self, row: int) -> int:
        """Return the client that owns this row."""
        return int(np.searchsorted(self.offsets, row, side="right")) - 1

    def owners(self) -> np.ndarray:
        """Return the owner of every row, int64 [total]."""
        return np.repeat(np.arange(len(self)), self._sizes)

    def take(self, rows: np.ndarray, sizes: np.ndarray) -> Columns:
        """Copy the given rows, already grouped by client, into new columns."""
        index = torch.from_numpy(rows)
        return Columns(kept(self.x, index), kept(self.y, index), offsets_of(sizes))


def placed(values: np.ndarray, places: np.ndarray, clients: int) -> np.ndarray:
    """Spread values of some clients over all clients: these at their `places`; the other clients get -1, or NaN if
    values are floats."""
    out = np.full(clients, -1 if values.dtype.kind in "iu" else np.nan, values.dtype)
    out[places] = values
    return out


def stack(parts: Sequence[Any], called: Sequence[str], like: Columns | None) -> Columns:
    """Join one pair (x, y) per client into columns; `like` gives shape and dtype if every part is empty.

    `called` names the clients in messages; a part that is None (allowed with `like`) is a client without rows.
    """
    xs, ys, sizes = [], [], np.zeros(len(parts), np.int64)
    expected = None if like is None else (like.x, like.y)
    first = "the training split"
    for k, part in enumerate(parts):
        if part is None and like is not None:
            continue
        if not isinstance(part, (tuple, list)) or len(part) != 2:
            raise UnalikeError(f"{called[k]} is a {type(part).__name__}: every client must be a pair (x, y).")
        x, y = as_pair(part[0], part[1], called[k])
        if not len(x):
            continue
        if expected is None:
            expected, first = (x, y), called[k]
        agree((x, y), expected, called[k], first)
        xs.append(x)
        ys.append(y)
        sizes[k] = len(x)
    if not xs:
        if like is None:
            raise UnalikeError(f"None of the {len(parts)} clients has a training sample: give each at least one.")
        xs, ys = [like.x[:0]], [like.y[:0]]
    x, y = (torch.cat(xs), torch.cat(ys)) if len(xs) > 1 else (xs[0], ys[0])
    return Columns(x, y, offsets_of(sizes))


def chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the rows in chunks of a few megabytes."""
    if not tensor.numel():
        return iter(())
    row_bytes = tensor.numel() // len(tensor) * tensor.element_size()
    return iter(tensor.split(max(1, CHUNK_BYTES // row_bytes)))


def digest(sha: Any, tensor: torch.Tensor) -> None:
    """Feed the tensor's bytes to a hash."""
    for chunk in chunks(tensor):
        sha.update(chunk.contiguous().cpu().reshape(-1).view(torch.uint8).numpy())


def samples_hash(parts: Iterable[torch.Tensor]) -> bytes:
    """Return a hash of samples, given as their columns."""
    sha = hashlib.sha256()
    for tensor in parts:
        sha.update(f"{tensor.dtype} {list(tensor.shape)} ".encode())
        digest(sha, tensor)
    return sha.digest()


def first_bad_row(tensor: torch.Tensor, bad: Callable[[torch.Tensor], torch.Tensor]) -> int | None:
    """Return the first row with an element for which `bad` is true; None if there is none."""
    start = 0
    for chunk in chunks(tensor):
        wrong = bad(chunk)
        if wrong.any():
            return start + int(wrong.reshape(len(chunk), -1).any(1).nonzero()[0])
        start += len(chunk)
    return None


def first_infinite_row(tensor: torch.Tensor, gaps: bool = False) -> int | None:
    """Return the first row with a NaN or infinite element, None if there is none; with `gaps` NaN is allowed."""
    bad = torch.isinf if gaps else lambda t: ~torch.isfinite(t)
    finite = isinstance(tensor, Pixels) or not tensor.dtype.is_floating_point
    return None if finite else first_bad_row(tensor, bad)
