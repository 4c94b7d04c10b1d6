"""A channel: the stages between clients' replies and the server's sums, fitted to a method and a model."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unalike.channel.private import check_private
from unalike.channel.stage import Common, Draw, Flight, Form, Stage, Total, Way, refuse
from unalike.channel.stages import STAGES, Noise
from unalike.contract import Field, Method
from unalike.contract.architectures import SHARED
from unalike.errors import UnalikeError, unknown
from unalike.nn.task import Task
from unalike.settings.typed import hints

KEPT = "_channel "  # prefix, among the server's values, of what a channel keeps there
READERS: dict[Any, Callable[[str], Any]] = {
    float: float,
    float | str: lambda text: text if text == "auto" else float(text),
    float | None: lambda text: None if text.lower() == "none" else float(text),
    int: int,
    bool: lambda text: {"true": True, "false": False}[text.lower()],
    str: str,
}


# ---------------------------------------------------------------- what a user writes


def parse(given: Any) -> tuple[Stage, ...]:
    """The stages of 'clip:1.0,topk:0.01', of a list of stages, of such texts and of tables {kind = "clip", norm = 1.0};
    or of a dict from fields to such lists."""
    if given is None or isinstance(given, Stage):
        return () if given is None else (given,)
    if isinstance(given, str):
        return tuple(_stage(text.strip()) for text in given.split(",") if text.strip())
    if isinstance(given, Mapping) and "kind" in given:
        return (_from_table(given),)
    if isinstance(given, Mapping):
        return tuple(stage.on([field]) for field, stages in given.items() for stage in parse(stages))
    if isinstance(given, Sequence):
        return tuple(stage for one in given for stage in parse(one))
    raise UnalikeError(f"channel must be stages, such as 'clip:1.0,topk:0.01'; got {given!r}.")


def _stage(text: str) -> Stage:
    name, *values = [piece.strip() for piece in text.split(":")]
    kind = STAGES.get(name.lower())
    if kind is None:
        raise unknown("stage of a channel", name, STAGES)
    names = [f.name for f in kind.arguments()]
    usage = ":".join([kind.name, *names])
    if len(values) > len(names):
        raise UnalikeError(f"channel: {text!r} has {len(values)} arguments: write at most {usage!r}.")
    types, given = hints(kind), {}
    for argument, value in zip(names, values, strict=False):
        try:
            given[argument] = READERS[types[argument].hint](value)
        except (ValueError, KeyError):
            raise UnalikeError(f"channel: {text!r} has {argument}={value!r}, which cannot be: {usage!r}.") from None
    return _made(kind, given)


def _from_table(table: Mapping[str, Any]) -> Stage:
    options = {name: value for name, value in table.items() if name != "kind"}
    kind = STAGES.get(str(table["kind"]).lower())
    if kind is None:
        raise unknown("stage of a channel", str(table["kind"]), STAGES)
    known = {"fields", *(f.name for f in kind.arguments())}
    for name in options:
        if name not in known:
            raise unknown(f"setting of the stage {kind.name}", name, known)
    if "fields" in options:
        options["fields"] = tuple(options["fields"])
    return _made(kind, options)


def _made(kind: type[Stage], options: dict[str, Any]) -> Stage:
    try:
        return kind(**options)
    except TypeError:
        needed = [f.name for f in kind.arguments() if f.default is dc.MISSING and f.name not in options]
        raise UnalikeError(f"channel: {kind.name} lacks {needed[0]}.") from None


# ---------------------------------------------------------------- fitted to a run


class Channel:
    """The stages, and on which of a method's fields each acts.

    sizes: of the fields that stages act on. shapes: what the stages keep for each client, as a store needs it.
    """

    def __init__(self, stages: Sequence[Stage], method: Method, task: Task):
        self.stages, self.layout, self.dtype = tuple(stages), task.layout, task.dtype
        fields = method.sends
        self.sizes = {n: _size(f, method, task) for n, f in fields.items() if f.read != "sealed"}
        self.acts = [self._fields(stage, fields, method) for stage in self.stages]
        for k, stage in enumerate(stages):
            before, after = self._beside(k, range(k)), self._beside(k, range(k + 1, len(stages)))
            stage.check(before, after)
            self.stages = (*self.stages[:k], stage.fit(before, self._count(k)), *self.stages[k + 1 :])
        if self.private:
            check_private(self.stages, self.acts, method, task)
        self.shapes: dict[str, tuple[tuple[int, ...], torch.dtype, str]] = {
            name: ((self.sizes[field],), task.dtype, "run")
            for stage, names in zip(self.stages, self.acts, strict=True)
            for name, field in stage.keeps(names).items()
        }
        self.extra = tuple(name for stage in self.stages for name in stage.extra)

    def _fields(self, stage: Stage, fields: Mapping[str, Field], method: Method) -> tuple[str, ...]:
        if stage.fields:
            for name in stage.fields:
                if name not in self.sizes:
                    raise unknown(f"field for {stage}", name, self.sizes)
            return stage.fields
        found = tuple(n for n in self.sizes if stage.wide or _of_model(fields[n], method))
        if not found:
            raise refuse(stage, f"{type(method).__name__} sends nothing that it could act on.")
        return found

    def _beside(self, k: int, others: Iterable[int]) -> list[Stage]:
        """Return those of other stages that act on a field of stage k."""
        return [self.stages[j] for j in others if not set(self.acts[j]).isdisjoint(self.acts[k])]

    def _count(self, k: int) -> int:
        """Return how many numbers stage k acts on, in all its fields together."""
        return sum(self.sizes[name] for name in self.acts[k])

    @property
    def noises(self) -> list[Noise]:
        """Its stages that bound what can be learnt of a client."""
        return [stage for stage in self.stages if isinstance(stage, Noise)]

    @property
    def central(self) -> bool:
        """Whether the bound is of what is learnt from sums, so that who takes part must not show either."""
        return any(not stage.local for stage in self.noises)

    @property
    def private(self) -> bool:
        """Whether its noise bounds what can be learnt of a client."""
        return any(stage.private for stage in self.stages)

    # ---- sizes

    def forms(self, fields: Sequence[str]) -> dict[str, Form]:
        """What travels of these fields of a reply, of those that stages act on."""
        bits = 8 * torch.empty((), dtype=self.dtype).element_size()
        forms = {n: Form(self.sizes[n], self.sizes[n], bits) for n in fields if any(n in acts for acts in self.acts)}
        for stage, acts in zip(self.stages, self.acts, strict=True):
            forms |= {name: stage.form(form) for name, form in forms.items() if name in acts}
        return forms

    # ---- at the client

    def client(
        self, up: Mapping[str, Tensor], draw: Draw, common: Common, kept: dict[str, Tensor], told: Mapping[str, float]
    ) -> Way:
        """Take a stack of replies through the stages; `way.kept` is what the clients keep after it."""
        touched = {name for acts in self.acts for name in acts}
        flights = {n: Flight.of(rows) for n, rows in up.items() if n in touched and rows.is_floating_point()}
        if self.private and len(flights) < len(up):
            name = next(name for name in up if name not in flights)
            raise UnalikeError(f"channel: {name!r} is of whole numbers, which noise does not cover: send it as floats.")
        way = Way(flights, draw, common, dict(kept), told, self.layout)
        for number, (stage, acts) in enumerate(zip(self.stages, self.acts, strict=True)):
            some = dc.replace(way, flights={n: f for n, f in way.flights.items() if n in acts})
            some.draw = _Numbered(draw, number)
            if some.flights:
                stage.client(some)
            way.flights |= some.flights
        return way

    # ---- at the server

    def agreed(self, field: str, common: Common, device: torch.device | str = "cpu") -> Flight:
        """Return what both ends know of a field before it comes, from which `packing.unpack` makes a flight."""
        blank = Flight.of(torch.empty(1, self.sizes[field], dtype=self.dtype, device=device))
        for stage, acts in zip(self.stages, self.acts, strict=True):
            if field in acts:
                blank = stage.agreed(blank, field, common)
        return blank

    def told(self, values: Mapping[str, Any]) -> dict[str, float]:
        """What clients are told before they answer; values: what the server keeps."""
        own = kept_of(values)
        return {name: value for stage in self.stages for name, value in stage.told(own).items()}

    def server(self, total: Total, names: Sequence[str]) -> None:
        """Take the sums through the stages, the last first; names: the fields that came."""
        for stage, acts in reversed([*zip(self.stages, self.acts, strict=True)]):
            some = dc.replace(total, sums={n: total.sums[n] for n in names if n in acts and n in total.sums})
            if some.sums:
                stage.server(some)
            total.sums |= some.sums


class _Numbered:
    """The draws of one stage of several: two alike in one channel draw otherwise."""

    def __init__(self, draw: Draw, number: int):
        self._draw, self._number = draw, number

    def uniform(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        return self._draw.uniform(f"{purpose} {self._number}", shape)

    def normal(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        return self._draw.normal(f"{purpose} {self._number}", shape)


def kept_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a channel keeps among the server's values, by its own names."""
    return {name.removeprefix(KEPT): value for name, value in values.items() if name.startswith(KEPT)}


def _of_model(field: Field, method: Method) -> bool:
    """Whether a field has the size of the model or of a part of it."""
    words = [size for size in field.names if isinstance(size, str)]
    return any(word not in SHARED and not isinstance(getattr(method, word, None), int) for word in words)


def _size(field: Field, method: Method, task: Task) -> int:
    return int(torch.Size(field.resolve(task.sizes, method)).numel())
