"""A model as one flat vector: where each tensor lies in it, and which part of it is the head."""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from unalike.errors import UnalikeError, did_you_mean


class Layout:
    """Names, shapes and positions of tensors in a flat vector [..., size].

    `align` starts every tensor at a multiple of that many numbers (the batched engine on a GPU wants 64 bytes); the
    vectors that methods see are never padded, so norms, noise and byte counts are exact. Weights of convolutions named
    in `turned` lie with their input channels last, as fast layers read them.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, tuple[int, ...]]],
        head: str | None = None,
        align: int = 1,
        norms: frozenset[str] = frozenset(),
        turned: frozenset[str] = frozenset(),
    ):
        """norms: names of parameters that belong to normalisation layers."""
        self.named = [(name, tuple(shape)) for name, shape in named]
        self.head_name, self.norms, self.turned = head, norms, turned
        self.places: list[tuple[str, int, int, tuple[int, ...]]] = []
        offset = 0
        for name, shape in self.named:
            size = int(torch.Size(shape).numel())
            self.places.append((name, offset, size, shape))
            offset += -(-size // align) * align
        self.size = offset
        self._pieces, self._which = self._split()
        self._chosen: dict[str, list[bool]] = {}
        # names that are no part, cached because every reply's shape asks for them again
        self._absent: set[str] = set()
        self._head = [self._in_head(name) for name, *_ in self.places]
        self.head_size = sum(p[2] for p, h in zip(self.places, self._head, strict=True) if h)
        self.body_size = sum(p[2] for p, h in zip(self.places, self._head, strict=True) if not h)

    @property
    def head_shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the head's tensors."""
        return [shape for (_, _, _, shape), head in zip(self.places, self._head, strict=True) if head]

    def _in_head(self, name: str) -> bool:
        if self.head_name is None:
            return False
        return self.head_name == "" or name.startswith(self.head_name + ".")

    def aligned(self, align: int, turned: frozenset[str] = frozenset()) -> Layout:
        """Return a layout of the same tensors with another alignment, and these weights turned."""
        return Layout(self.named, self.head_name, align, self.norms, turned)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return tensors by name, as views of the vector; leading dimensions stay."""
        if not self.places:
            return {}
        lead = flat.shape[:-1]
        # one split, not a slice each: its gradient is one concatenation, a slice's is a whole vector of zeros
        parts = flat.split_with_sizes(self._pieces, -1)
        return {n: self._shaped(n, parts[i], lead, s) for (n, _, _, s), i in zip(self.places, self._which, strict=True)}

    def _shaped(self, name: str, part: Tensor, lead: torch.Size, shape: tuple[int, ...]) -> Tensor:
        if name not in self.turned:
            return part.reshape((*lead, *shape))
        out, inner, *window = shape
        return part.reshape((*lead, out, *window, inner)).movedim(-1, -3)

    def _split(self) -> tuple[list[int], list[int]]:
        """Return the sizes of tensors and of the gaps behind them, and the tensors' numbers among these."""
        sizes: list[int] = []
        which: list[int] = []
        ends = [*(place[1] for place in self.places), self.size][1:]
        for (_, offset, size, _), end in zip(self.places, ends, strict=True):
            which.append(len(sizes))
            sizes += [size, end - offset - size] if end > offset + size else [size]
        return sizes, which

    def flat(self, tensors: dict[str, Tensor]) -> Tensor:
        """Return the vector of one set of tensors (no leading dimensions)."""
        if not self.places:
            return torch.zeros(0)
        first = next(iter(tensors.values()))
        out = torch.zeros(self.size, dtype=first.dtype, device=first.device)
        for name, offset, size, _ in self.places:
            out[offset : offset + size] = tensors[name].detach().reshape(-1)
        return out

    def repack(self, flat: Tensor, other: Layout) -> Tensor:
        """Return the same numbers in the order of the layout `other`."""
        if self.size == other.size and self.turned == other.turned:
            return flat
        lead = flat.shape[:-1]
        out = flat.new_zeros(*lead, other.size)
        for (name, o, k, shape), (_, o2, _, _) in zip(self.places, other.places, strict=True):
            part, into = flat[..., o : o + k], out[..., o2 : o2 + k]
            if (name in self.turned) != (name in other.turned):
                part, into = self._shaped(name, part, lead, shape), other._shaped(name, into, lead, shape)
            into.copy_(part)
        return out

    # ---- parts by name: a method may share, send or train only some of a model

    def chosen(self, part: str) -> list[bool]:
        """Return which tensors belong to a part, in the order of `places`.

        A part is "head", "body" (all before the head), "norm" (layers that normalise), the name of a layer or of one
        of its tensors, "first 2" or "last 2" (layers with weights), several with " + " between them, or "all but " and
        any of these.
        """
        if part not in self._chosen:
            self._chosen[part] = self._choose(part)
        return self._chosen[part]

    def _choose(self, part: str) -> list[bool]:
        names = [name for name, *_ in self.places]
        if part.startswith("all but "):
            return [not inside for inside in self.chosen(part.removeprefix("all but "))]
        if " + " in part:
            return [any(inside) for inside in zip(*map(self.chosen, part.split(" + ")), strict=True)]
        if part in ("head", "body"):
            return [inside == (part == "head") for inside in self._head]
        if part == "norm":
            return [name in self.norms for name in names]
        if counted := re.fullmatch(r"(first|last) ([1-9]\d*)", part):
            layers = list(dict.fromkeys(map(layer_of, names)))
            count = int(counted[2])
            some = layers[:count] if counted[1] == "first" else layers[-count:]
            return [layer_of(name) in some for name in names]
        inside = [name == part or name.startswith(part + ".") for name in names]
        if not any(inside):
            named = filter(None, dict.fromkeys(map(layer_of, names)))
            known = ["head", "body", "norm", "first 2", "last 2", *named]
            raise UnalikeError(f"The model has no part {part!r}.{did_you_mean(part, known)}")
        return inside

    def has(self, part: str) -> bool:
        """Return whether there is a part of this name."""
        try:
            if part not in self._absent:
                self.chosen(part)
        except UnalikeError:
            self._absent.add(part)
        return part not in self._absent

    def part_size(self, part: str) -> int:
        """Return the number of values in a part."""
        return sum(p[2] for p, inside in zip(self.places, self.chosen(part), strict=True) if inside)

    def part(self, flat: Tensor, part: str) -> Tensor:
        """Return the values of a part of a model vector."""
        inside = zip(self.places, self.chosen(part), strict=True)
        parts = [flat.narrow(-1, p[1], p[2]) for p, wanted in inside if wanted]
        return torch.cat(parts, -1) if parts else flat.narrow(-1, 0, 0)

    def with_part(self, flat: Tensor, part: str, numbers: Tensor) -> Tensor:
        """Return the model vector with a part replaced by these numbers."""
        out, at = [], 0
        for (_, offset, size, _), inside in zip(self.places, self.chosen(part), strict=True):
            out.append(numbers.narrow(-1, at, size) if inside else flat.narrow(-1, offset, size))
            at += size if inside else 0
        return torch.cat(out, -1)

    def mask(self, part: str) -> Tensor:
        """Return which numbers of a vector belong to a part, bool [size]."""
        out = torch.zeros(self.size, dtype=torch.bool)
        for (_, offset, size, _), inside in zip(self.places, self.chosen(part), strict=True):
            out[offset : offset + size] = inside
        return out

    def head(self, flat: Tensor) -> Tensor:
        """Return the head's values of a model vector."""
        return self.part(flat, "head")

    def body(self, flat: Tensor) -> Tensor:
        """Return the values before the head of a model vector."""
        return self.part(flat, "body")

    def join(self, body: Tensor, head: Tensor) -> Tensor:
        """Return the model vector with this body and this head."""
        out, at = [], {True: 0, False: 0}
        for (_, _, size, _), is_head in zip(self.places, self._head, strict=True):
            source = head if is_head else body
            out.append(source.narrow(-1, at[is_head], size))
            at[is_head] += size
        return torch.cat(out, -1)


def find_head(module: nn.Module, head: str | None) -> str:
    """Return the head's name: the given one (checked), else the last layer with trainable weights."""
    trained = [(n, m) for n, m in module.named_modules() if any(p.requires_grad for p in m.parameters(False))]
    # a list of parameters is no layer: the one that has it is
    lists = (nn.ParameterList, nn.ParameterDict)
    owners = {_owner(name.rpartition(".")[0] if isinstance(m, lists) else name) for name, m in trained}
    layers = [name for name, _ in module.named_modules() if name in owners]
    if head is not None:
        known = {name for name, _ in module.named_modules()}
        if head not in known:
            raise UnalikeError(f"The model has no layer {head!r} to be its head.{did_you_mean(head, layers)}")
        return _owner(head)
    if not layers:
        raise UnalikeError("The model has no trainable weights: nothing could be learned or sent.")
    return layers[-1]


def layer_of(parameter: str) -> str:
    """Return the name of the layer that a parameter belongs to."""
    return _owner(parameter.rpartition(".")[0])


def _owner(module: str) -> str:
    """Return the name of the layer whose weights a module of this name holds: `weight_norm` and others of torch's
    parametrizations keep them in modules of their own, which the model's forward does not call."""
    parts = module.split(".")
    return ".".join(parts[: parts.index("parametrizations")]) if "parametrizations" in parts else module
