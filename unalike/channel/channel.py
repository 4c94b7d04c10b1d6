"""A channel: the stages between clients' replies and the server's sums, fitted to a method and a model."""

from __future__ import annotations

import contextlib
import dataclasses as dc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

import torch
from torch import Tensor

from unalike import draws
from unalike.channel.private import check_private
from unalike.channel.stage import Common, Draw, Flight, Form, Stage, Total, Way, refuse
from unalike.channel.stages import STAGES, IntegerNoise, Noise, Summed
from unalike.contract import Field, Method
from unalike.contract.architectures import SHARED
from unalike.errors import UnalikeError, unknown
from unalike.nn.task import Task
from unalike.settings.typed import hints, misfit, short
from unalike.text import listed

Find = Callable[[str], type[Stage]]
# prefix of a channel's own values among the server's values
KEPT = "_channel "
READERS: dict[Any, Callable[[str], Any]] = {  # the more specific types first
    type(None): lambda text: {"none": None}[text.lower()],
    bool: lambda text: {"true": True, "false": False}[text.lower()],
    int: int,
    float: float,
    str: str,
}


# ---------------------------------------------------------------- reading what a user writes


def registered(kind: str) -> type[Stage]:
    """Return the built-in stage of this name."""
    found = STAGES.get(kind.lower())
    if found is None:
        raise unknown("stage of a channel", kind, STAGES)
    return found


def parse(given: Any, find: Find = registered) -> tuple[Stage, ...]:
    """Return stages from 'clip:1.0,topk:0.01', from a list of stages, of such texts and of tables {kind = "clip", norm
    = 1.0}, or from a dict from fields to such lists. find: returns the class of a stage by its kind."""
    if given is None or isinstance(given, Stage):
        return () if given is None else (given,)
    if isinstance(given, str):
        return tuple(from_table(as_table(text, find), find) for text in texts(given))
    if isinstance(given, Mapping) and "kind" in given:
        return (from_table(given, find),)
    if isinstance(given, Mapping):
        return tuple(stage.on([field]) for field, stages in given.items() for stage in parse(stages, find))
    if isinstance(given, Sequence):
        return tuple(stage for one in given for stage in parse(one, find))
    raise UnalikeError(f"channel must be stages, such as 'clip:1.0,topk:0.01'; got {short(given)}.")


def tables(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """Return stages as tables that `parse` reads, with nothing but numbers, texts and lists."""
    return [_table(stage) for stage in stages]


def _table(stage: Stage) -> dict[str, Any]:
    given = {field.name: getattr(stage, field.name) for field in stage.arguments()}
    return {"kind": stage.name, **given, **({"fields": [*stage.fields]} if stage.fields else {})}


def texts(channel: str) -> list[str]:
    """Split 'clip:1.0,topk:0.01' into one text per stage; 'none' gives an empty list."""
    found = [text.strip() for text in channel.split(",") if text.strip()]
    if not found:
        raise UnalikeError("channel is empty: name its stages, such as clip:1.0, or write none.")
    return [] if found == ["none"] else found


def as_table(text: str, find: Find = registered) -> dict[str, Any]:
    """Return a stage's text as a table: 'clip:1.0' and 'clip:norm=1.0' are {kind = "clip", norm = 1.0};
    'clip:1.0@delta+control' acts on these fields only."""
    words, at, fields = text.partition("@")
    name, *values = [piece.strip() for piece in words.split(":")]
    if name.endswith(".py") and values:  # a class in a file
        name = f"{name}:{values.pop(0)}"
    kind = find(name)
    names, types = [f.name for f in kind.arguments()], hints(kind)
    usage = ":".join([name, *names])
    if len(values) > len(names):
        raise UnalikeError(f"channel: {text!r} has {len(values)} arguments: write at most {usage!r}.")
    table: dict[str, Any] = {"kind": name}
    for place, value in enumerate(values):
        argument, equals, word = value.partition("=")
        argument, word = (argument, word) if equals else (names[place], value)
        if argument not in names:
            raise unknown(f"setting of the stage {kind.name}", argument, names)
        try:
            table[argument] = _read(word, types[argument].hint)
        except ValueError:
            raise UnalikeError(f"channel: {text!r} has {argument}={word!r}, which cannot be: {usage!r}.") from None
    return table | ({"fields": [field.strip() for field in fields.split("+")]} if at else {})


def as_text(table: Mapping[str, Any]) -> str:
    """Return a table as a text that `as_table` reads."""
    given = {name: value for name, value in table.items() if name not in ("kind", "fields")}
    words = [f"{name}={str(v).lower() if isinstance(v, bool) else v}" for name, v in given.items()]
    text = ":".join([str(table["kind"]), *words])
    return f"{text}@{'+'.join(table['fields'])}" if "fields" in table else text


def _read(word: str, hint: Any) -> Any:
    """Convert a word to the type of an annotation; raise ValueError if it cannot be."""
    for kind in sorted(get_args(hint) or (hint,), key=[*READERS].index):
        with contextlib.suppress(ValueError, KeyError):
            return READERS[kind](word)
    raise ValueError(word)


def from_table(table: Mapping[str, Any], find: Find = registered) -> Stage:
    """Return the stage of a table {kind = "clip", norm = 1.0}."""
    if not isinstance(table["kind"], str):
        raise UnalikeError(f"channel: kind must be the name of a stage; got {short(table['kind'])}.")
    options = {name: value for name, value in table.items() if name != "kind"}
    kind = find(table["kind"])
    own = {"fields", *(f.name for f in kind.arguments())}
    known = {name: hint for name, hint in hints(kind).items() if name in own}
    for name, value in options.items():
        if name not in known:
            raise unknown(f"setting of the stage {kind.name}", name, known)
        if problem := misfit(value, known[name].hint):
            raise UnalikeError(f"{kind.name}: {name} {problem}")
    if "fields" in options:
        options["fields"] = tuple(options["fields"])
    return _made(kind, options)


def _made(kind: type[Stage], options: dict[str, Any]) -> Stage:
    try:
        return kind(**options)
    except TypeError:
        needed = [f.name for f in kind.arguments() if f.default is dc.MISSING and f.name not in options]
        if not needed:
            raise
        raise UnalikeError(f"{kind.name} lacks {needed[0]}.") from None


def acting(stages: Sequence[Stage], method: Method) -> list[tuple[str, ...]]:
    """Return the fields of a method's replies that each stage acts on; refuse a meaningless order of stages, and stages
    that would act on nothing."""
    if stages and method.pooled:
        raise UnalikeError(f"channel: {type(method).__name__} pools all data: there are no replies to send through it.")
    acts = [_fields(stage, method) for stage in stages]
    for k, stage in enumerate(stages):
        stage.check(beside(stages, acts, k, range(k)), beside(stages, acts, k, range(k + 1, len(stages))))
        if stage.hides:
            _check_sums(stage, method)
    return acts


def _check_sums(stage: Stage, method: Method) -> None:
    """Refuse a method that reads more than sums, if a stage leaves the server only sums."""
    for name, field in method.sends.items():
        if field.read in ("each", "peers"):
            raise refuse(
                stage,
                f"{type(method).__name__} reads {name!r} of every single client (read={field.read!r}), and this leaves "
                "the server sums: take another method.",
            )


def beside(stages: Sequence[Stage], acts: Sequence[Sequence[str]], k: int, others: Iterable[int]) -> list[Stage]:
    """Return those of the stages `others` that act on a field of stage k."""
    return [stages[j] for j in others if not set(acts[j]).isdisjoint(acts[k])]


def _fields(stage: Stage, method: Method) -> tuple[str, ...]:
    read = {name: field for name, field in method.sends.items() if field.read != "sealed"}
    for name in stage.fields:
        if name not in read:
            raise unknown(f"field for {stage}", name, read)
    found = stage.fields or tuple(n for n, field in read.items() if stage.wide or _of_model(field, method))
    if not found:
        sent = f"sends {listed([*read])}, nothing of the model's size" if read else "sends the server nothing"
        cure = f"name the fields ({stage}@{next(iter(read))}) or leave it out" if read else "leave the channel out"
        raise refuse(stage, f"{type(method).__name__} {sent}: {cure}.")
    return found


# ---------------------------------------------------------------- fitted to a run


class Channel:
    """The stages, and the fields of a method on which each acts.

    dims, sizes: of the fields that stages may act on; touched: the fields that some stage acts on. shapes: of the state
    that stages keep for each client, for a store.
    """

    def __init__(self, stages: Sequence[Stage], method: Method, task: Task):
        self.stages, self.layout, self.dtype = tuple(stages), task.layout, task.dtype
        self.acts = acting(self.stages, method)
        fields = method.sends
        self.dims = {n: f.resolve(task.sizes, method) for n, f in fields.items() if f.read != "sealed"}
        self.sizes = {name: math.prod(dims) for name, dims in self.dims.items()}
        for k, stage in enumerate(self.stages):
            fitted = stage.fit(beside(self.stages, self.acts, k, range(k)), sum(self.sizes[n] for n in self.acts[k]))
            self.stages = (*self.stages[:k], fitted, *self.stages[k + 1 :])
        if self.private:
            check_private(self.stages, self.acts, method, task)
        self.shapes: dict[str, tuple[tuple[int, ...], torch.dtype, str]] = {
            name: ((self.sizes[field],), task.dtype, "run")
            for stage, names in zip(self.stages, self.acts, strict=True)
            for name, field in stage.keeps(names).items()
        }
        self.extra = tuple(name for stage in self.stages for name in stage.extra)
        self.touched = frozenset(name for acts in self.acts for name in acts)
        for name, form in self.forms([*self.touched]).items() if self.hides else ():
            self.hiding.check_form(name, form)

    def __str__(self) -> str:
        return ",".join(map(str, self.stages))

    @property
    def noises(self) -> list[Noise]:
        """Return the stages that bound what can be learnt about a client."""
        return [stage for stage in self.stages if isinstance(stage, Noise)]

    @property
    def central(self) -> bool:
        """Return whether the bound is about what is learnt from sums; then who takes part must stay secret too."""
        return any(not stage.local for stage in self.noises)

    @property
    def private(self) -> bool:
        """Return whether the noise bounds what can be learnt about a client."""
        return any(stage.private for stage in self.stages)

    @property
    def hides(self) -> bool:
        """Return whether the server gets only sums."""
        return any(stage.hides for stage in self.stages)

    @property
    def hiding(self) -> Summed:
        """Return the stage that leaves the server only sums."""
        stage = self.stages[-1]
        assert isinstance(stage, Summed)
        return stage

    @property
    def shares(self) -> int:
        """Return the number of clients whose shares of noise a sum must have; 0 if clients do not add the noise."""
        return max((stage.clients for stage in self.stages if isinstance(stage, IntegerNoise) and stage.z), default=0)

    def check_clients(self, clients: int) -> None:
        """Refuse rounds of so few clients that every hidden sum would be void."""
        try:
            self.hiding.check_clients(clients)
        except UnalikeError as error:
            raise UnalikeError(f"channel: {error}") from None
        if clients < self.shares:
            raise UnalikeError(
                f"channel: {clients} clients take part in a round, and their hidden sum must have {self.shares} shares "
                "of noise: state fewer, or let more clients take part."
            )

    @property
    def hidden(self) -> bool:
        """Return whether replies must say nothing about their clients outside the channel: a loss in the clear would
        escape every bound and every sum."""
        return self.private or self.hides

    # ---- sizes

    def plain(self, fields: Sequence[str]) -> dict[str, Form]:
        """Return the forms of these fields without the stages, for fields that stages act on."""
        bits = 8 * torch.empty((), dtype=self.dtype).element_size()
        return {n: Form(self.sizes[n], self.sizes[n], bits) for n in fields if n in self.touched}

    def saved(self, fields: Sequence[str]) -> int:
        """Return the bytes that the stages save in one reply with these fields; a stage's own number adds one byte."""
        after = self.forms(fields)
        own = sum(len(s.extra) for s, acts in zip(self.stages, self.acts, strict=True) if {*fields} & {*acts})
        return sum(form.bytes - after[name].bytes for name, form in self.plain(fields).items()) - own

    def forms(self, fields: Sequence[str]) -> dict[str, Form]:
        """Return the forms in which these fields of a reply travel, for fields that stages act on."""
        forms = self.plain(fields)
        for stage, acts in zip(self.stages, self.acts, strict=True):
            forms |= {name: stage.form(form) for name, form in forms.items() if name in acts}
        return forms

    # ---- at the client

    def touches(self, name: str, rows: Tensor) -> bool:
        """Return whether a field of a reply passes through stages: whole numbers do not."""
        return name in self.touched and rows.is_floating_point()

    def client(
        self, up: Mapping[str, Tensor], draw: Draw, common: Common, kept: dict[str, Tensor], told: Mapping[str, float]
    ) -> Way:
        """Pass a stack of replies through the stages; `way.kept` is the clients' new kept state."""
        flights = {name: Flight.of(rows) for name, rows in up.items() if self.touches(name, rows)}
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
        """Return what both ends know of a field in advance, from which `packing.unpack` makes a flight."""
        blank = Flight.of(torch.empty(1, self.sizes[field], dtype=self.dtype, device=device))
        for stage, acts in zip(self.stages, self.acts, strict=True):
            if field in acts:
                blank = stage.agreed(blank, field, common)
        return blank

    def told(self, values: Mapping[str, Any]) -> dict[str, float]:
        """Return what clients are told before they answer; values: the server's kept values."""
        own = kept_of(values)
        return {name: value for stage in self.stages for name, value in stage.told(own).items()}

    def server(self, total: Total, names: Sequence[str]) -> None:
        """Pass the sums through the stages in reverse order; names: the fields that came."""
        for stage, acts in reversed([*zip(self.stages, self.acts, strict=True)]):
            some = dc.replace(total, sums={n: total.sums[n] for n in names if n in acts and n in total.sums})
            if some.sums:
                stage.server(some)
            total.sums |= some.sums


class _Numbered:
    """The draws of one stage among several: two equal stages in one channel draw differently."""

    def __init__(self, draw: Draw, number: int):
        self._draw, self._number = draw, number

    def uniform(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        return self._draw.uniform(f"{purpose} {self._number}", shape)

    def uniform_blocks(self, purpose: str, count: int) -> Iterator[tuple[draws.Place, Tensor]]:
        return self._draw.uniform_blocks(f"{purpose} {self._number}", count)

    def normal(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        return self._draw.normal(f"{purpose} {self._number}", shape)


def shared_draws(seed: int, round: int, exchange: int) -> Common:
    """Return a function that gives, by purpose, generators that are the same for all clients and the server in an
    exchange."""
    return lambda purpose: draws.generator(seed, "channel", round, exchange, purpose)


def kept_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the channel's own values among the server's values, by their own names."""
    return {name.removeprefix(KEPT): value for name, value in values.items() if name.startswith(KEPT)}


def _of_model(field: Field, method: Method) -> bool:
    """Return whether a field has the size of the model or of a part of it."""
    words = [size for size in field.names if isinstance(size, str)]
    return any(word not in SHARED and not isinstance(getattr(method, word, None), int) for word in words)
