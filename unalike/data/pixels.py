"""Pictures held as bytes: a quarter of the memory of the float32 numbers that a model reads.

To PyTorch a tensor of type `Pixels` is the tensor of these numbers, (byte / 255 - mean) / deviation by channel. They
are computed when they are asked for, always by the same operations in the same order, so that a batch has the same bits
as if all pictures had been converted at once (on a CPU; on a GPU to rounding).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from unalike.errors import UnalikeError


class Pixels(Tensor):
    """Samples [n, C, ...] held as bytes. On another device, joined with others or split into pieces they are bytes too;
    rows that are picked, and everything that is computed, are ordinary numbers. It cannot be written to."""

    held: Held

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: Held, dtype: torch.dtype = torch.float32) -> Pixels:
        if held.bytes.dtype != torch.uint8 or held.bytes.dim() < 2:
            raise UnalikeError(f"Pixels hold bytes [n, C, ...], not {held.bytes.dtype} {list(held.bytes.shape)}.")
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, held.bytes.shape, dtype=dtype, device=held.bytes.device
        )
        made.held = held
        return made  # type: ignore[no-any-return]

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        """Return the bytes that the samples really take."""
        return self.held.bytes.nbytes

    def numbers(self) -> Tensor:
        """Return all numbers as an ordinary tensor."""
        return self.held.read().to(self.dtype)

    def numpy(self, **how: Any) -> Any:
        return self.numbers().numpy(**how)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def __dlpack__(self, *given: Any, **how: Any) -> Any:
        return self.numbers().__dlpack__(*given, **how)

    def share_memory_(self) -> Pixels:
        self.held.bytes.share_memory_()
        return self

    def __setitem__(self, *_: Any) -> NoReturn:
        _refuse()

    def tolist(self) -> Any:
        return self.numbers().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Pixels({list(self.shape)} {str(self.dtype).removeprefix('torch.')}, {self.device}, held as bytes)"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Pixels, (self.held, self.dtype)

    def __deepcopy__(self, memo: dict[int, Any]) -> Pixels:
        return self  # nothing can change it

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if (own := OWN.get(func)) is not None and (found := own(*args, **kwargs)) is not None:
            return found
        if func.overloadpacket.__name__.endswith("_") and isinstance(args[0], Pixels):  # PyTorch's operations in place
            _refuse()
        return func(*tree_map(numbers, args), **tree_map(numbers, kwargs))


CONSTANTS = ("most", "mean", "deviation")


class Held(NamedTuple):
    """What `Pixels` hold: bytes [n, C, ...], and 255, the mean and the deviation of each channel [C, 1, ...], float32;
    the last two are empty where numbers stay in 0..1."""

    bytes: Tensor
    most: Tensor
    mean: Tensor
    deviation: Tensor

    def read(self, rows: Tensor | None = None) -> Tensor:
        """Return the numbers of these samples (rows of any shape), float32; by default of all."""
        x = self.bytes if rows is None else self.bytes.index_select(0, rows.reshape(-1))
        # (divided by tensors: a number would be replaced by its reciprocal, by CUDA's kernels and by the compiler)
        x = x.to(torch.float32).div_(self.most)
        if len(self.mean):
            x.sub_(self.mean).div_(self.deviation)
        return x if rows is None else x.reshape(*rows.shape, *x.shape[1:])

    def of(self, bytes: Tensor) -> Held:
        """Return these bytes with the same constants, on their device."""
        return Held(bytes, *(t.to(bytes.device) for t in self[1:]))


def pixels(bytes: Tensor, mean: Sequence[float] = (), deviation: Sequence[float] = ()) -> Pixels:
    """Return pictures [n, C, ...] held as bytes; without a mean and a deviation of each channel their numbers are in
    0..1."""
    shape = (-1, *[1] * (bytes.dim() - 2)) if len(mean) else (0,)
    constants = (torch.tensor(values, dtype=torch.float32).view(shape) for values in (mean, deviation))
    return Pixels(Held(bytes, torch.tensor(255.0), *constants))


def rows_of(x: Tensor, rows: Tensor) -> Tensor:
    """Return x[rows] as numbers, in a way that on a CPU copies whole samples and not number by number."""
    if isinstance(x, Pixels):
        return x.held.read(rows).to(x.dtype)
    return x.index_select(0, rows.reshape(-1)).reshape(*rows.shape, *x.shape[1:])


def held_by(x: Tensor) -> tuple[Tensor, ...]:
    """Return the ordinary tensors that x consists of: what a compiled function can be given, or another process."""
    return tuple(x.held) if isinstance(x, Pixels) else (x,)


def read(held: Sequence[Tensor], rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return these rows of a tensor of such parts, numbers of `dtype`, by operations that can be compiled."""
    return held[0][rows] if len(held) == 1 else Held(held[0][rows], *held[1:]).read().to(dtype)


def made_of(held: Sequence[Tensor], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the tensor of such parts."""
    return held[0] if len(held) == 1 else Pixels(Held(*held), dtype)


def numbers(x: Tensor) -> Tensor:
    """Return x as an ordinary tensor; x itself if it is one."""
    return x.numbers() if isinstance(x, Pixels) else x


def kept(x: Tensor, rows: Tensor) -> Tensor:
    """Return some rows of x, held as x is."""
    rows = rows.to(x.device)
    if not isinstance(x, Pixels):
        return x.index_select(0, rows)
    return Pixels(x.held.of(x.held.bytes.index_select(0, rows)), x.dtype)


def _refuse() -> NoReturn:
    raise UnalikeError("These pictures are held as bytes and cannot be changed in place: change x.clone().")


# ---------------------------------------------------------------- operations that need not read all; None: they must


def _slice(x: Pixels, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor | None:
    return None if dim else x.held.of(x.held.bytes[slice(start, end, step)]).read().to(x.dtype)


def _split(x: Pixels, sizes: Any, dim: int = 0) -> list[Pixels] | None:
    return None if dim else [Pixels(x.held.of(part), x.dtype) for part in x.held.bytes.split(sizes)]


def _moved(x: Pixels, *, dtype: Any = None, device: Any = None, non_blocking: bool = False, **more: Any) -> Any:
    dtype = dtype or x.dtype
    if not dtype.is_floating_point or more.get("memory_format") not in (None, torch.preserve_format):
        return None
    return Pixels(x.held.of(x.held.bytes.to(device or x.device, non_blocking=non_blocking)), dtype)


def _detached(x: Pixels) -> Pixels:
    return Pixels(x.held, x.dtype)


def _joined(parts: Sequence[Tensor], dim: int = 0) -> Pixels | None:
    first = parts[0]
    if dim or not isinstance(first, Pixels) or not all(_alike(first, part) for part in parts[1:]):
        return None
    return Pixels(first.held.of(torch.cat([part.held.bytes for part in parts])), first.dtype)  # type: ignore[attr-defined]


def _alike(one: Pixels, other: Tensor) -> bool:
    same = isinstance(other, Pixels) and one.dtype == other.dtype and one.device == other.device
    return same and all(map(torch.equal, one.held[1:], other.held[1:]))  # type: ignore[attr-defined]


def _picked(x: Tensor, dim: int, rows: Tensor) -> Tensor | None:
    return rows_of(x, rows) if dim == 0 and isinstance(x, Pixels) else None


def _indexed(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor | None:
    if not isinstance(x, Pixels) or len(indices) != 1 or indices[0] is None:
        return None
    rows = indices[0].to(x.device)
    if rows.dtype in (torch.bool, torch.uint8):  # a mask
        return rows_of(x, rows.nonzero()[:, 0]) if rows.shape == x.shape[:1] else None
    return rows_of(x, torch.where(rows < 0, rows + len(x), rows))


def _selected(x: Pixels, dim: int, index: int) -> Tensor | None:
    return None if dim else x.held.of(x.held.bytes[index]).read().to(x.dtype)


def _new(make: Any) -> Callable[..., Tensor]:
    return lambda x, *args, **kwargs: make(torch.empty(0, dtype=x.dtype, device=x.device), *args, **kwargs)


aten = torch.ops.aten
OWN: dict[Any, Callable[..., Any]] = {
    aten.slice.Tensor: _slice,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    aten._to_copy.default: _moved,
    aten.detach.default: _detached,
    aten.alias.default: _detached,
    aten.cat.default: _joined,
    aten.index_select.default: _picked,
    aten.index.Tensor: _indexed,
    aten.select.int: _selected,
    **{make: _new(make) for make in (aten.new_empty.default, aten.new_zeros.default, aten.new_full.default)},
}
