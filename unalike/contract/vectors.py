"""Vectors: one tensor per architecture, if clients have different networks."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from unalike.errors import UnalikeError, did_you_mean
from unalike.nn.layout import Layout


class Vectors:
    """One tensor per architecture, by name: the type of `server.w` if clients have different networks.

    Arithmetic, torch functions and the methods of tensors apply to each part (`v + 0.5 * u`, `torch.zeros_like(v)`,
    `v.square().sum()`), with numbers and tensors as they are and other `Vectors` part by part. `v["small"]` and
    `v.items()` give the parts; any other index (`v[0]`) applies to each.
    """

    __array_ufunc__ = None  # a NumPy number times Vectors is Vectors
    _parts: dict[str, Any]

    def __init__(self, parts: Mapping[str, Any]):
        if not parts:
            raise UnalikeError("Vectors need a tensor for at least one architecture.")
        self.__dict__["_parts"] = dict(parts)

    @property
    def names(self) -> list[str]:
        """Return the names of the architectures."""
        return list(self._parts)

    def items(self) -> Iterable[tuple[str, Any]]:
        """Return pairs of an architecture and its tensor."""
        return self._parts.items()

    def map(self, fn: Callable[[Tensor], Any]) -> Vectors:
        """Return the results of a function of each part, as `Vectors`."""
        return Vectors({name: fn(part) for name, part in self._parts.items()})

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return each(operator.getitem, self, key)
        if key not in self._parts:
            raise UnalikeError(f"There is no architecture {key!r} here.{did_you_mean(key, self._parts)}")
        return self._parts[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(key, str):
            each(operator.setitem, self, key, value)
            return
        self[key]  # architectures cannot be added
        self._parts[key] = value

    def __iter__(self) -> Iterator[Vectors]:
        """Yield rows, as a tensor does: `items()` gives the parts."""
        for k in range(len(self)):
            yield self[k]

    def __len__(self) -> int:
        return _agreed("len()", {name: len(part) for name, part in self._parts.items()})

    def __bool__(self) -> bool:
        return bool(_agreed("bool()", {name: bool(part) for name, part in self._parts.items()}))

    def __float__(self) -> float:
        return float(_agreed("float()", {name: float(part) for name, part in self._parts.items()}))

    def __repr__(self) -> str:
        return f"Vectors({', '.join(f'{name} {list(torch.as_tensor(p).shape)}' for name, p in self._parts.items())})"

    # ---- behaviour of tensors

    if TYPE_CHECKING:  # set below, all in the same way

        def __add__(self, other: object) -> Vectors: ...
        def __radd__(self, other: object) -> Vectors: ...
        def __sub__(self, other: object) -> Vectors: ...
        def __rsub__(self, other: object) -> Vectors: ...
        def __mul__(self, other: object) -> Vectors: ...
        def __rmul__(self, other: object) -> Vectors: ...
        def __truediv__(self, other: object) -> Vectors: ...
        def __rtruediv__(self, other: object) -> Vectors: ...
        def __neg__(self) -> Vectors: ...

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return each(func, *args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(Tensor, name):
            raise AttributeError(f"Vectors have no {name!r}.")
        found = {key: getattr(part, name) for key, part in self._parts.items()}
        if not callable(next(iter(found.values()))):
            return _joined(name, found)
        return lambda *args, **kwargs: each(_caller(name), self, *args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        raise UnalikeError(f"Vectors take no {name!r}: set a part with v['name'] = tensor.")


def by_network(fn: Callable[..., Any], *args: Any) -> Any:
    """Call a function for each architecture if there are several (`each`), else once. `server.layout` may be among the
    arguments."""
    args = tuple(Vectors(dict(arg.items())) if isinstance(arg, Layouts) else arg for arg in args)
    return each(fn, *args) if any(isinstance(arg, Vectors) for arg in args) else fn(*args)


def each(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function for each architecture, with that architecture's part of every `Vectors` among the arguments, also
    inside lists. Tensors are returned as `Vectors`; other values must be equal for all, and are returned once."""
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Vectors)]
    names = given[0].names
    for other in given[1:]:
        if set(other.names) != set(names):
            raise UnalikeError(f"Vectors of {', '.join(names)} and of {', '.join(other.names)} do not go together.")

    def part(name: str) -> Any:
        own_args, own_kwargs = tree_map(lambda v: v[name] if isinstance(v, Vectors) else v, (args, kwargs))
        return fn(*own_args, **own_kwargs)

    return _joined(getattr(fn, "__name__", "this"), {name: part(name) for name in names})


def _caller(name: str) -> Callable[..., Any]:
    """Return a function that calls this method of its first argument."""

    def call(thing: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(thing, name)(*args, **kwargs)

    call.__name__ = name
    return call


def _joined(what: str, found: dict[str, Any]) -> Any:
    """Return tensors as `Vectors`, tuples of tensors as tuples of `Vectors`, and any other value if it is equal for
    all."""
    first = next(iter(found.values()))
    if isinstance(first, Tensor):
        return Vectors(found)
    if isinstance(first, tuple) and first and all(isinstance(part, Tensor) for part in first):
        return tuple(_joined(what, {name: value[k] for name, value in found.items()}) for k in range(len(first)))
    return _agreed(what, found)


def _agreed(what: str, found: dict[str, Any]) -> Any:
    """Return the value that all architectures agree on."""
    (name, first), *others = found.items()
    for other, value in others:
        if isinstance(first, np.ndarray) or type(value) is not type(first) or first != value:
            raise UnalikeError(
                f"{what} differs between the architectures {name!r} and {other!r}: take one of them, v[{name!r}], or "
                "all, v.items()."
            )
    return first


def _binary(fn: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """Return an operator and its reflected form."""
    return (lambda self, other: each(fn, self, other)), (lambda self, other: each(fn, other, self))


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"):
    _own, _mirrored = _binary(getattr(operator, f"__{_name}__"))
    setattr(Vectors, f"__{_name}__", _own)
    setattr(Vectors, f"__r{_name}__", _mirrored)
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Vectors, f"__{_name}__", _binary(getattr(operator, _name))[0])
for _name in ("neg", "pos", "abs", "invert"):
    setattr(Vectors, f"__{_name}__", (lambda fn: lambda self: each(fn, self))(getattr(operator, _name)))
Vectors.__hash__ = object.__hash__  # type: ignore[method-assign,assignment]


class Layouts:
    """The layouts of several architectures: `server.layout.body(server.w)` takes and gives `Vectors`;
    `server.layout["small"]` is one of them."""

    def __init__(self, layouts: Mapping[str, Layout]):
        self._layouts = dict(layouts)

    def __getitem__(self, name: str) -> Layout:
        if name not in self._layouts:
            raise UnalikeError(f"There is no architecture {name!r} here.{did_you_mean(name, self._layouts)}")
        return self._layouts[name]

    def items(self) -> Iterable[tuple[str, Layout]]:
        """Return pairs of an architecture and its layout."""
        return self._layouts.items()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if not callable(getattr(Layout, name, None)):
            found = {key: getattr(layout, name) for key, layout in self._layouts.items()}
            return _agreed(f"server.layout.{name}", found)

        return lambda *args, **kwargs: each(_caller(name), Vectors(self._layouts), *args, **kwargs)
