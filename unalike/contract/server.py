"""The server's side of the contract: its state, a cohort to call, and replies to read."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from unalike.contract.client import Answer
from unalike.contract.fields import Field, Fields, PerClient
from unalike.contract.peers import Sealed, addressed, has_tensor
from unalike.contract.requests import PUBLIC
from unalike.contract.server_draws import ServerDraws
from unalike.contract.vectors import Layouts, Vectors
from unalike.errors import NoSuchField, UnalikeError, did_you_mean, unknown
from unalike.nn.layout import Layout

Message = dict[str, Tensor | Vectors | float | PerClient]  # what a server sends: to all, or one row to each client


@dc.dataclass(frozen=True)
class Best:
    """Which vector of a training on the server is returned: the one with the largest mean of `fn(batch)`, one number
    per sample, over the rows `only` of the public set (all, if not given). It is evaluated at the start and every
    `every` steps. `patience`: the training ends after that many steps without a gain (None: it does not)."""

    fn: Callable[..., Tensor]
    only: Tensor | None = None
    every: int = 100
    patience: int | None = None


class Server:
    """The server's state: `w`, and everything a method assigns (tensors, numbers, text, lists of these).

    `buffers` holds BatchNorm's statistics if a model has any; `table(name)` is a declared table with one row per
    client; `init(k)` returns k differently initialised models, [k, P]; `values` is everything that was assigned, by
    name. If clients have different networks, `w`, `buffers` and the result of `init` are `Vectors`, and `layout` takes
    them. A serverless method's server holds no tensors: no `w`, and only numbers and text.

    Draws are functions of (seed, round, purpose): `uniform`, `normal`, `integers`, `coin`, `shuffled`, and `draw`, rows
    of the public set.
    """

    w: Tensor
    buffers: Tensor
    values: dict[str, Any]
    # where the model's tensors lie in a vector (`body`, `head`, `join`)
    layout: Layout

    def __init__(
        self,
        layout: Layout | Layouts,
        tables: Mapping[str, Rows],
        fresh: Callable[[int], Any],
        draws: ServerDraws,
        serverless: str = "",
        nets: Mapping[str, Tensor] | None = None,
        work: Work | None = None,
        /,
        **values: Any,
    ):
        """fresh: returns model number k of the run's seed, for `init`; serverless: the name of a method without a
        server, which may assign no tensors; nets: the start vectors of the method's further networks; work: carries out
        the server's own computations."""
        own = {"_tables": tables, "_fresh": fresh, "_draws": draws, "_serverless": serverless, "_starts": nets or {}}
        self.__dict__.update(values={}, layout=layout, _work=work, **own)
        for name, value in values.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__ or hasattr(Server, name):
            raise UnalikeError(f"server.{name} is the server's own: give the method's state another name.")
        if self._serverless and has_tensor(value):
            raise UnalikeError(
                f"{self._serverless} is serverless, and assigns server.{name}, a tensor: the server of such a method "
                "holds numbers and text; models are kept by clients."
            )
        self.values[name] = value.detach() if isinstance(value, Tensor | Vectors) else value

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            if name.startswith("__"):
                raise AttributeError(name) from None
            if name == "w" and self.__dict__.get("_serverless"):
                raise UnalikeError(
                    f"{self._serverless} is serverless: there is no server.w. A client's first model is me.start."
                ) from None
            public = [known for known in self.values if not known.startswith("_")]
            raise NoSuchField(f"The server has no {name!r}.{did_you_mean(name, public)}") from None

    def table(self, name: str) -> Table:
        if name not in self._tables:
            raise UnalikeError(f"The method declares no table {name!r}.{did_you_mean(name, self._tables)}")
        return Table(self._tables[name])

    def start(self, net: str) -> Tensor:
        """Return the start vector of one of the method's further networks (`nets`), a function of the run's seed."""
        if net not in self._starts:
            raise unknown("network", net, self._starts)
        return self._starts[net].clone()

    def init(self, count: int) -> Tensor:
        """Return `count` models, each with its own weights, drawn from the run's seed; the first is the given one."""
        return torch.stack([self._fresh(k) for k in range(count)])

    # ---- the server's own work: on the public set, on its own tensors or on no samples; never on clients' data

    def train(
        self,
        at: Tensor,
        data: str | Mapping[str, Tensor] | None = PUBLIC,
        *,
        net: str = "model",
        schedule: str = "constant",
        keep: str | None = None,
        architectures: list[str] | None = None,
        best: Best | None = None,
        **asked: object,
    ) -> Tensor:
        """Train a vector here and now, and return it; of `Vectors`, each architecture's part.

        data: "public", {"x": …, "y": …}, or None, where a loss works on draws alone. The other arguments are those of
        `me.train`, but settings of `LocalTraining` that are not given are its defaults, not the run's. net: one of
        the method's `nets`. schedule: "cosine" lets the rate fall to 0. keep: a name under which the server keeps the
        optimizer's state for the next time. architectures: only these are trained, the others stay as they are. best:
        not the last vector is returned but the best on the way (`Best`); say `steps` then, the most that are made.
        BatchNorm's statistics of the model stay what the clients' samples made them.
        """
        slots, kept = None, f"_optimizer of {keep}"
        if "slots" in asked or "keep_optimizer" in asked:
            raise UnalikeError("server.train keeps an optimizer's state by name: keep='student'.")
        if keep is not None and not keep.isidentifier():
            raise UnalikeError(f"keep={keep!r} is a name for the optimizer's state: letters, digits and _.")
        if keep is not None:
            fresh = lambda vector: vector.new_zeros(2 * vector.shape[-1] + 1)  # noqa: E731
            fresh_slots = at.map(fresh) if isinstance(at, Vectors) else fresh(at)
            slots = self.values.get(kept, fresh_slots)
        if best is not None and (keep is not None or not isinstance(asked.get("steps"), int)):
            raise UnalikeError("best= looks at the vectors of one training: say steps=..., and leave out keep.")
        vector, slots = self._worker.train(at, data, architectures, schedule, slots, {"net": net, **asked}, best)
        if keep is not None:
            self.values[kept] = slots
        return vector

    def outputs(
        self,
        at: Tensor | None,
        data: str | Mapping[str, Tensor] = PUBLIC,
        only: Tensor | None = None,
        fn: Callable[..., Tensor] | None = None,
        **args: object,
    ) -> Tensor:
        """Return the model's output for every sample of the public set (or its rows `only`), [rows, outputs], or the
        rows that `fn(batch, **args)` gives. at: a vector; several, [m, P], which give [m, rows, outputs]; or `Vectors`
        of several, which give one architecture after another; None: `fn` needs no model."""
        return self._worker.outputs(at, data, only, fn, args)

    def average(
        self,
        fn: Callable[..., Tensor | dict[str, Tensor]],
        at: Tensor,
        data: str | Mapping[str, Tensor] = PUBLIC,
        only: Tensor | None = None,
        rows: Mapping[str, Tensor] | None = None,
        **args: object,
    ) -> Tensor | dict[str, Tensor]:
        """Return the mean over the public set of `fn(batch, **args)`, as `me.average` does over a client's samples."""
        return self._worker.average(fn, at, data, only, rows, args)

    @property
    def _worker(self) -> Work:
        if self._serverless:
            raise UnalikeError(f"{self._serverless} is serverless: there is no server that could work.")
        return self._work

    # ---- draws: functions of (seed, round, purpose)

    def uniform(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Return uniform numbers in [0, 1)."""
        return self._draws.uniform(purpose, shape)

    def normal(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Return standard normal numbers."""
        return self._draws.normal(purpose, shape)

    def integers(self, purpose: str, shape: tuple[int, ...], high: int) -> Tensor:
        """Return whole numbers from 0 to high - 1."""
        return self._draws.integers(purpose, shape, high)

    def coin(self, purpose: str, p: float) -> bool:
        """Return True with probability p."""
        return self._draws.coin(purpose, p)

    def shuffled(self, purpose: str, n: int) -> np.ndarray:
        """Return the numbers from 0 to n - 1 in a random order: `cohort.ids[server.shuffled("pairs", len(cohort))]`."""
        return self._draws.shuffled(purpose, n)

    def draw(self, purpose: str, n: int, stratify: bool = False) -> Tensor:
        """Return n different rows of the public set, in ascending order; stratify: every class in proportion to its
        share of the set, up to rounding."""
        return self._draws.draw(purpose, n, stratify)


class Work(Protocol):
    """The server's own computations (`unalike.run.server_work.ServerWork`)."""

    def train(
        self, at: Any, data: Any, architectures: Any, schedule: str, slots: Any, asked: Any, best: Best | None
    ) -> Any: ...
    def outputs(self, at: Any, data: Any, only: Any, fn: Any, args: Any) -> Tensor: ...
    def average(self, fn: Any, at: Any, data: Any, only: Any, rows: Any, args: Any) -> Any: ...


class Rows(Protocol):
    """Rows by client number, for tables (`unalike.client.state_in_memory.ClientStore`)."""

    shapes: dict[str, Any]

    def read(self, ids: np.ndarray) -> tuple[dict[str, Tensor], Tensor]: ...
    def stage(self, ids: np.ndarray, values: dict[str, Tensor]) -> None: ...


class Table:
    """A declared table on the server: rows by client number, zeros where nothing was written."""

    def __init__(self, store: Rows):
        self._store = store

    def __getitem__(self, ids: Iterable[int]) -> Tensor:
        return self._store.read(np.asarray(ids, dtype=np.int64))[0]["row"]

    def __setitem__(self, ids: Iterable[int], rows: Tensor) -> None:
        ids, rows = np.asarray(ids, dtype=np.int64), torch.as_tensor(rows)
        want = [len(ids), *self._store.shapes["row"][0]]
        if list(rows.shape) != want:
            raise UnalikeError(f"A table was given rows of shape {list(rows.shape)}: {len(ids)} clients need {want}.")
        self._store.stage(ids, {"row": rows})

    def known(self, ids: Iterable[int]) -> Tensor:
        """Return which of these clients have a row."""
        return ~self._store.read(np.asarray(ids, dtype=np.int64))[1]


class Received(Protocol):
    """The replies to a call, as a channel has collected them (`unalike.channel.Sums`)."""

    @property
    def fields(self) -> Mapping[str, Field]: ...
    @property
    def weights(self) -> Mapping[str, Any]: ...
    @property
    def ids(self) -> np.ndarray: ...
    @property
    def losses(self) -> np.ndarray: ...
    @property
    def names(self) -> list[str]: ...
    def total(self, name: str) -> Any: ...
    def rows(self, name: str) -> Any: ...


class Replies:
    """The replies to a call, as far as they were declared: sums and means of fields; single values only of fields
    declared `read="each"` or `"peers"`; fields declared `read="sealed"` can only be passed on to other clients. If
    clients have different networks, fields of a model's shape are `Vectors`, with zeros for architectures without
    replies."""

    def __init__(
        self,
        received: Received,
        dtype: torch.dtype,
        asked: np.ndarray,
        when: tuple[int, int],
        serverless: str = "",
        noised: str = "",
        expected: float | None = None,
    ):
        """asked: the clients that were called; when: round and exchange; serverless: the name of a method without a
        server, which may read nothing; noised: the name of a method whose replies have noise, so that losses may not be
        read; expected: if the number of answers must stay secret too, its mean over all rounds."""
        self._received, self._dtype = received, dtype
        self._asked, self._when, self._serverless = asked, when, serverless
        self._noised, self._expected = noised, expected

    @property
    def ids(self) -> np.ndarray:
        """Return the clients that answered, in order."""
        if self._expected is not None:
            raise hidden(self._noised, "who answered (replies.ids)")
        return self._received.ids

    @property
    def count(self) -> int | float:
        """Return how many clients answered; under noise on the sums, the mean number over all rounds."""
        return len(self._received.ids) if self._expected is None else self._expected

    @property
    def architectures(self) -> list[str]:
        """Return the networks of the clients that answered, if there are several."""
        return list(getattr(self._received, "architectures", ()))

    def ids_of(self, architecture: str) -> np.ndarray:
        """Return the clients with this network that answered, in the order of the rows of `each(...)[architecture]`."""
        if architecture not in self.architectures:
            raise UnalikeError(
                f"No client with the network {architecture!r} answered.{did_you_mean(architecture, self.architectures)}"
            )
        found: np.ndarray = getattr(self._received, "ids_of")(architecture)  # noqa: B009 (only where there are several)
        return found

    def sum(self, name: str) -> Tensor:
        """Return Σ weight · value over the clients that answered."""
        return self._total(name).to(self._dtype)

    def whole(self, name: str) -> Tensor:
        """Return the sum of a field of whole numbers exactly, int64."""
        total = self._total(name)
        if total.is_floating_point():
            raise UnalikeError(f"The reply field {name!r} is no field of whole numbers: read its sum.")
        return total

    def mean(self, name: str) -> Tensor:
        """Return Σ weight · value / Σ weight."""
        return (self._total(name) / self._received.weights[name]).to(self._dtype)

    def each(self, name: str) -> Tensor:
        """Return one row per client, in the order of `ids`."""
        self._readable(name)
        if self._received.fields[name].read == "sum":
            raise UnalikeError(
                f"The reply field {name!r} is declared read='sum': reading it client by client needs read='each'."
            )
        return self._received.rows(name)

    def pass_on(self, name: str, to: Iterable[int]) -> Sealed:
        """Return the rows of a field declared `read="sealed"` or `"peers"` as a part of a message to other clients.

        `to` has one receiver for each client that was *called*, in their order: the row of the j-th goes to `to[j]`.
        Each receiver gets one row. If a client did not answer, its receiver is left out of the call with these rows.
        """
        self._check(name)
        read = self._received.fields[name].read
        if read not in ("peers", "sealed"):
            raise UnalikeError(
                f"The reply field {name!r} is declared read={read!r}: passing it on to other clients needs "
                "read='sealed', or 'peers' where the server may see it."
            )
        to, rows = np.asarray(to, dtype=np.int64), self._received.rows(name)
        if isinstance(rows, Vectors):
            raise UnalikeError(
                f"pass_on({name!r}): its shape {self._received.fields[name].shape!r} differs between the networks; "
                "pass on what all clients have in common."
            )
        return addressed(name, self._when, rows, self._asked, self._received.ids, to)

    def losses(self) -> np.ndarray:
        """Return the mean training loss per client, NaN for a client that did not train."""
        self._open()
        if self._noised:
            raise hidden(self._noised, "clients' losses (replies.losses)")
        return self._received.losses

    def _check(self, name: str) -> None:
        if name not in self._received.names:
            raise UnalikeError(f"The replies have no field {name!r}.{did_you_mean(name, self._received.names)}")

    def _open(self) -> None:
        if self._serverless:
            raise UnalikeError(
                f"{self._serverless} is serverless, and reads replies: its server half may only pass them on."
            )

    def _readable(self, name: str) -> None:
        self._check(name)
        self._open()
        if self._received.fields[name].read == "sealed":
            raise UnalikeError(
                f"The reply field {name!r} is declared read='sealed': the server cannot read it; pass_on({name!r}, "
                "to=...) hands it to other clients."
            )

    def _total(self, name: str) -> Tensor:
        self._readable(name)
        return self._received.total(name)


class Arrived(NamedTuple):
    """Replies that arrived together and began with one version of the message. age: how many server steps were made
    since; began: the message that they began with."""

    age: int
    replies: Replies
    began: Fields


def hidden(method: str, what: str) -> UnalikeError:
    """Return the error for a method that reads what noise on its replies must hide."""
    return UnalikeError(
        f"{method} reads {what}, which the channel is to hide: this method does not run under it. "
        "docs/privacy.md lists those that do."
    )


class Exchanges(Protocol):
    """The round that a cohort belongs to (`unalike.run.round.Round`)."""

    population: int
    round: int
    # how much of BatchNorm's statistics is taken from this round's clients
    share: float
    # the name of a method whose sums have noise, so that who takes part must stay secret
    hides: str

    @property
    def populations(self) -> int | Vectors: ...
    def samples(self, ids: np.ndarray) -> np.ndarray: ...
    def rates(self, ids: np.ndarray) -> np.ndarray: ...
    def call(self, fn: Callable[..., Answer], ids: np.ndarray, message: Message, of_round: bool = False) -> Replies: ...
    def start(self, fn: Callable[..., Answer], message: Message) -> None: ...
    def arrived(self, count: int) -> list[Arrived]: ...


class Cohort:
    """The clients of a round, or some of them: `call` runs a client function on each and collects the replies."""

    def __init__(
        self, exchanges: Exchanges, ids: np.ndarray, drawn: bool = False, of_round: bool = False, arriving: str = ""
    ):
        """drawn: these are clients that were drawn for the round, not all clients; of_round: these are all of the
        round's clients, drawn or not; arriving: the method's name if clients arrive when they can, so that nobody knows
        them beforehand."""
        self._exchanges, self._ids, self._drawn, self._of_round = exchanges, ids, drawn, of_round
        self._arriving = arriving

    @property
    def ids(self) -> np.ndarray:
        """Return the clients, in ascending order."""
        if self._arriving:
            raise UnalikeError(
                f"{self._arriving} asks who takes part (cohort.ids, len(cohort), cohort.samples), and in an "
                "asynchronous run nobody knows before they arrive."
            )
        if self._drawn and self._exchanges.hides:
            raise hidden(self._exchanges.hides, "who takes part (cohort.ids, len(cohort), cohort.samples)")
        return self._ids

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def population(self) -> int:
        """Return the number of all clients."""
        return self._exchanges.population

    @property
    def populations(self) -> int | Vectors:
        """Return the number of all clients; if they have different networks, the number for each: the divisor for a sum
        of a model-shaped field over all clients."""
        return self._exchanges.populations

    @property
    def everyone(self) -> Cohort:
        """Return a cohort of all clients, in this cohort or not."""
        return Cohort(self._exchanges, np.arange(self.population))

    @property
    def samples(self) -> np.ndarray:
        """Return the training samples of each client of this cohort."""
        return self._exchanges.samples(self.ids)

    @property
    def round(self) -> int:
        """Return the round, from 0; -1 during set-up."""
        return self._exchanges.round

    @property
    def rates(self) -> np.ndarray:
        """Return this round's local learning rate of each client of this cohort; of all clients if noise hides who
        takes part."""
        if self._arriving:
            return self._exchanges.rates(self._ids)
        hides = self._drawn and self._exchanges.hides
        return self._exchanges.rates(np.arange(self.population) if hides else self.ids)

    def only(self, ids: Iterable[int]) -> Cohort:
        """Return this cohort reduced to these clients."""
        if self._exchanges.hides:
            raise hidden(self._exchanges.hides, "replies of a part of the clients (cohort.only)")
        ids = np.asarray(ids, dtype=np.int64)
        stranger = np.setdiff1d(ids, self.ids)
        if len(stranger):
            raise UnalikeError(f"only(): client {int(stranger[0])} is not in this cohort of {len(self.ids)}.")
        clients, times = np.unique(ids, return_counts=True)
        if len(clients) < len(ids):
            raise UnalikeError(f"only(): client {int(clients[times > 1][0])} is named twice: name each client once.")
        return Cohort(self._exchanges, ids)

    def call(self, fn: Callable[..., Answer], **message: Tensor | Vectors | float | PerClient) -> Replies:
        """Run `fn(me, s, m)`, a function of the method, on every client; values in `message` go to all,
        `PerClient(rows)` one row to each."""
        return self._exchanges.call(fn, self._ids, message, self._of_round)

    # ---- of methods made for clients that arrive when they can (`asynchronous = "is"`)

    def start(self, fn: Callable[..., Answer], **message: Tensor | Vectors | float | PerClient) -> None:
        """Let clients that are free begin with `fn(me, s, m)` and this message, as many as there are places; return at
        once. As clients arrive, others begin with the same message, until the next `start`."""
        self._exchanges.start(fn, message)

    def arrived(self, count: int) -> list[Arrived]:
        """Wait until `count` clients have arrived, whatever version they began with; return their replies by version,
        the oldest first: `for age, replies, began in cohort.arrived(10)`."""
        return self._exchanges.arrived(count)

    def share_of_statistics(self, share: float) -> None:
        """Say how much of BatchNorm's statistics is taken from this round's clients; the rest stays the server's own.
        All of it, if a method does not say."""
        self._exchanges.share = share
