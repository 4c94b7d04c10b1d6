"""A stage of a channel: one step on a reply's path from a client to the server's sums (clip, noise, compress).

A stage is written for a stack of clients, flat: numbers are [c, n], and the result for one row depends on that row
alone. So one client on its own machine and a thousand in a simulation run the same code.
"""

from __future__ import annotations

import dataclasses as dc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from unalike import draws
from unalike.errors import UnalikeError
from unalike.nn.layout import Layout
from unalike.settings.knobs import KNOB, Knob, check_fields
from unalike.settings.typed import hints, words

if TYPE_CHECKING:
    from typing import Self

Common = Callable[[str], np.random.Generator]


@dc.dataclass(frozen=True)
class Form:
    """How a field travels, known before there are any numbers: so its bytes are counted, not guessed.

    size: of the field, P. count: how many numbers travel, n. bits: per number. kind: "float" (as in the model), "half",
    "bfloat", or "codes", whole numbers of `bits` bits. positions: "all" entries travel; or some, whose places are
    "sent" with them, or "drawn" alike by all, so that they need not travel. unit: the value of a code of 1 is "sent",
    is "common" to all and agreed in advance, or there is "none". unit_bits: of a unit that is sent, as many as the
    model's numbers have. most: the largest code, of either sign (0: as many as the bits hold); codes of 1 bit are
    signs.
    """

    size: int
    count: int
    bits: int
    kind: str = "float"
    positions: str = "all"
    unit: str = "none"
    unit_bits: int = 32
    most: int = 0

    @property
    def place_bits(self) -> int:
        """Return the bits per place if places are listed; 0 if one bit per entry is shorter than a list."""
        each = max(1, math.ceil(math.log2(max(2, self.size))))
        return each if self.count * each < self.size else 0

    @property
    def place_bytes(self) -> int:
        """Return the bytes of all places."""
        if self.positions != "sent":
            return 0
        return math.ceil((self.count * self.place_bits if self.place_bits else self.size) / 8)

    @property
    def bytes(self) -> int:
        """Return the bytes of one client's reply in this field."""
        unit = self.unit_bits // 8 if self.unit == "sent" else 0
        return math.ceil(self.count * self.bits / 8) + self.place_bytes + unit


@dc.dataclass
class Flight:
    """One field of a stack of replies on its way.

    values [c, n]: floats, or whole numbers (float or int64) if the form has codes. at: int64 [c, n], ascending: their
    places, if not all entries travel. unit: [c, 1], the value of a code of 1; a plain number if it is common to all.
    """

    form: Form
    values: Tensor
    at: Tensor | None = None
    unit: Tensor | float | None = None

    @classmethod
    def of(cls, rows: Tensor) -> Flight:
        """Return a field as the client function left it."""
        flat = rows.reshape(len(rows), -1)
        return cls(Form(flat.shape[1], flat.shape[1], 8 * flat.element_size()), flat)

    def worth(self) -> Tensor:
        """Return the numbers that travel, as the server will read them, [c, n]."""
        return self.values if self.unit is None else self.values * self.unit

    def dense(self) -> Tensor:
        """Return the whole field as the server will read it, [c, P], with zeros for entries that do not travel."""
        values = self.worth()
        if self.at is None:
            return values
        return values.new_zeros(len(values), self.form.size).scatter_(1, self.at, values)


class Draw(Protocol):
    """Random numbers for a stack of clients, independent for each (`unalike.draws`): [c, *shape]."""

    def uniform(self, purpose: str, shape: tuple[int, ...]) -> Tensor: ...
    def uniform_blocks(self, purpose: str, count: int) -> Iterator[tuple[draws.Place, Tensor]]: ...
    def normal(self, purpose: str, shape: tuple[int, ...]) -> Tensor: ...


@dc.dataclass
class Way:
    """A stack of replies on its way through the stages.

    flights: the fields, by name. draw: each client's own random numbers. common: a generator per purpose, the same for
    all clients and the server in this exchange. kept: state that stages keep for each client, by the names that they
    declare; stages read and replace it. told: values that the server sends to all clients, by name. layout: where the
    model's tensors lie. extra: numbers that a stage adds to the reply for its own server half, [c] each.
    """

    flights: dict[str, Flight]
    draw: Draw
    common: Common
    kept: dict[str, Tensor] = dc.field(default_factory=dict)
    told: Mapping[str, float] = dc.field(default_factory=dict)
    layout: Layout | None = None
    extra: dict[str, Tensor] = dc.field(default_factory=dict)


@dc.dataclass
class Total:
    """The sums of one exchange, as the server half of a stage reads and changes them.

    sums: float64, by field. came: how many clients answered; expected: how many come on the average of all rounds.
    extra: sums of the stages' own numbers. values: what the channel keeps at the server permanently, by name.
    normal(purpose, shape, like): the server's normal draws, new in every exchange. lasting: likewise, but the same for
    a purpose in every round. round, exchange: when. hidden: the server has only these sums, no single reply.
    """

    sums: dict[str, Tensor]
    came: int
    expected: float
    extra: dict[str, float]
    values: dict[str, Any]
    normal: Callable[[str, tuple[int, ...], Tensor], Tensor]
    lasting: Callable[[str, tuple[int, ...], Tensor], Tensor]
    round: int = 0
    exchange: int = 0
    hidden: bool = False


class Sees(NamedTuple):
    """How a stage changes who sees what, in words, for the table of a run (`who_sees`).

    server, clients, wire: the effect for each; empty if there is none. shields: the server no longer gets replies as
    clients computed them, and `server` says what it gets.
    """

    server: str = ""
    clients: str = ""
    wire: str = ""
    shields: bool = False


COMPRESSED = Sees(
    server="each client's reply, less precise: compression hides nothing that can be relied on", wire="fewer bytes"
)
UNKNOWN = Sees(server="a stage that does not say what it hides: it is taken to hide nothing")


@dc.dataclass(frozen=True)
class Stage:
    """One step of a channel.

    name: as in files; for a user's own stage without one, the class name in lower case. wide: it acts on every field of
    a reply that the server sums; otherwise only on fields of the model's shape, because a sum of class counts must not
    be compressed. fields: the fields that it acts on, if given. private: with the stages before it, it bounds what
    anyone can learn about a client (noise). local: for such a stage, the noise is in every single reply, so that the
    bound holds towards the server too. hides: the server gets only sums; it is the last stage. stretch: the factor by
    which it may lengthen a reply. codes: it decides how each number travels (as a code, in 16 bits). floats: it needs
    plain numbers, so it cannot follow such a stage.
    """

    name: ClassVar[str] = ""
    wide: ClassVar[bool] = False
    private: ClassVar[bool] = False
    local: ClassVar[bool] = False
    hides: ClassVar[bool] = False
    stretch: ClassVar[float] = math.inf
    codes: ClassVar[bool] = False
    floats: ClassVar[bool] = False
    extra: ClassVar[tuple[str, ...]] = ()  # names of the numbers that it adds to a reply

    fields: tuple[str, ...] = dc.field(default=(), kw_only=True, metadata={KNOB: Knob("its fields, where not all")})

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()

    def __post_init__(self) -> None:
        kinds = {name: words(setting.hint) for name, setting in hints(type(self)).items()}
        check_fields(self, f"{self.name}: ", kinds)

    def form(self, form: Form) -> Form:
        """Return the form after this stage, given the form before it."""
        return form

    def agreed(self, blank: Flight, name: str, common: Common) -> Flight:
        """Return what both ends know of a field before any of its numbers travels: its form, and places or a unit that
        are the same for all. blank: a flight without numbers."""
        return dc.replace(blank, form=self.form(blank.form))

    def keeps(self, fields: Sequence[str]) -> dict[str, str]:
        """Return the names of the state that it keeps for each client, each with the field whose size it has."""
        return {}

    def client(self, way: Way) -> None:
        """Change the flights, at the client."""
        for name, flight in way.flights.items():
            way.flights[name] = self.one(flight, name, way)

    def one(self, flight: Flight, name: str, way: Way) -> Flight:
        """Return one field as it leaves this stage."""
        return flight

    def server(self, total: Total) -> None:
        """Change the sums, at the server; the last stage comes first."""

    def told(self, values: Mapping[str, Any]) -> dict[str, float]:
        """Return what the server tells all clients before they answer, from the channel's values at the server."""
        return {}

    def bound(self, known: Mapping[str, Any]) -> float | None:
        """Return the largest norm of a reply after this stage; None if it sets no bound. known: the channel's values at
        the server, or the values that clients are told."""
        return None

    def check(self, before: Sequence[Stage], after: Sequence[Stage]) -> None:
        """Refuse a meaningless order of stages."""
        for other in (stage for stage in before if stage.codes and self.floats and self.meets(stage)):
            if self.codes:
                raise refuse(self, f"{other} comes before it and settles how numbers travel: leave one of them out.")
            raise refuse(self, f"it comes after {other}, which makes codes of numbers: put it before.")

    def meets(self, other: Stage) -> bool:
        """Return whether two stages may act on the same field."""
        return not (self.fields and other.fields) or bool({*self.fields} & {*other.fields})

    def fit(self, before: Sequence[Stage], size: int) -> Stage:
        """Return this stage fitted to the stages before it on its fields, and to the number of values in these
        fields."""
        return self

    @property
    def sees(self) -> Sees:
        """Return how it changes who sees what; a stage that only shortens replies need not define it."""
        whole = Form(1 << 20, 1 << 20, 32)
        return COMPRESSED if self.form(whole).bytes < whole.bytes else UNKNOWN

    def seen(self, summed: bool) -> Sees:
        """Return how it changes who sees what; summed: a later stage leaves the server only sums."""
        return self.sees._replace(server="") if summed and not self.private else self.sees

    # ---- as text

    @classmethod
    def arguments(cls) -> list[dc.Field]:
        """Return its parameters in order, without those that are given by name only."""
        return [f for f in dc.fields(cls) if not f.kw_only]

    def __str__(self) -> str:
        given: list[Any] = [getattr(self, f.name) for f in self.arguments()]
        while len(given) > 1 and given[-1] == self.arguments()[len(given) - 1].default:
            given.pop()
        values = (str(v).lower() if v is None or isinstance(v, bool) else str(v) for v in given)
        text = ":".join([self.name, *values])
        return f"{text}@{'+'.join(self.fields)}" if self.fields else text

    def on(self, fields: Sequence[str]) -> Self:
        """Return the same stage, on these fields only."""
        return dc.replace(self, fields=tuple(fields))


def refuse(stage: Stage, why: str) -> UnalikeError:
    """Return the error for a channel in which a stage has no meaning."""
    return UnalikeError(f"channel: {stage}: {why}")


def norms(flights: Iterator[Flight] | Sequence[Flight]) -> Tensor:
    """Return the norm of each client's reply over several fields, [c]."""
    squares = [part.double().square().sum(1) for flight in flights for part in parts(flight.worth())]
    return torch.stack(squares).sum(0).sqrt()


def parts(rows: Tensor) -> Sequence[Tensor]:
    """Return [c, n] as blocks of columns that stay in a CPU's cache while several operations work on them; on another
    device, undivided."""
    return rows.split(draws.BLOCK, 1) if rows.device.type == "cpu" else (rows,)
