"""The server's side of the contract: its state, a cohort to call, and replies to read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike import random, wire
from unalike.contract import Field, Method, PerClient
from unalike.engines.base import BUFFERS, Call, Engine, Outcome
from unalike.errors import Diverged, UnalikeError, did_you_mean
from unalike.layout import Layout
from unalike.local import carried
from unalike.model import Model
from unalike.store import ClientStore

MAX_SUM_BYTES = 64 << 20  # float64 scratch while a stack of replies is summed


class Server:
    """The server's state: `w`, and whatever a method assigns (tensors, numbers, text, lists of these).

    `buffers` holds BatchNorm's statistics where a model has any; `table(name)` is a declared table with one row per
    client; `init(k)` gives k differently initialised models, [k, P].
    """

    def __init__(self, model: Model, tables: dict[str, ClientStore], seed: int):
        self.__dict__.update(_values={}, _model=model, _tables=tables, _seed=seed)
        self.w = model.start.clone()
        if model.buffer_layout.size and model.buffer_policy == "average":
            self.buffers = model.start_buffers.clone()

    def __setattr__(self, name: str, value: Any) -> None:
        self._values[name] = value.detach() if isinstance(value, Tensor) else value

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            if name.startswith("__"):
                raise AttributeError(name) from None
            there = [known for known in self._values if not known.startswith("_")]
            raise UnalikeError(f"The server has no {name!r}.{did_you_mean(name, there)}") from None

    @property
    def layout(self) -> Layout:
        """Where the model's tensors lie in a vector (`body`, `head`, `join`)."""
        return self._model.layout

    def table(self, name: str) -> Table:
        if name not in self._tables:
            raise UnalikeError(f"The method declares no table {name!r}.{did_you_mean(name, self._tables)}")
        return Table(self._tables[name])

    def init(self, count: int) -> Tensor:
        """`count` models, each with weights of its own, drawn from the run's seed. The first is the given one."""
        model, out = self._model, [self._model.start]
        for k in range(1, count):
            module = copy.deepcopy(model.module).cpu()  # the same draws whatever the device
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(random.key(self._seed, "init", k) & 0xFFFFFFFF)
                for layer in module.modules():
                    if hasattr(layer, "reset_parameters"):
                        layer.reset_parameters()
            out.append(model.layout.flat(dict(module.named_parameters())).to(model.device))
        return torch.stack(out)


class Table:
    """A declared table on the server: rows by client number, zeros where nothing was written."""

    def __init__(self, store: ClientStore):
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
        """Which of these clients have a row."""
        return ~self._store.read(np.asarray(ids, dtype=np.int64))[1]


class Replies:
    """What came back from a call, as far as it was declared: sums and means of every field, single values only of
    fields declared `read="each"` or `"peers"`. Sums are float64, in client order."""

    def __init__(self, fields: dict[str, Field], dtype: torch.dtype):
        self._fields, self._dtype = fields, dtype
        self._sums: dict[str, Tensor] = {}
        self._weights: dict[str, float] = {}
        self._each: dict[str, list[Tensor]] = {}
        self._ids: list[np.ndarray] = []
        self._loss: list[np.ndarray] = []

    @property
    def ids(self) -> np.ndarray:
        """The clients that answered, in order."""
        return np.concatenate(self._ids) if self._ids else np.empty(0, dtype=np.int64)

    @property
    def count(self) -> int:
        """How many answered."""
        return sum(len(part) for part in self._ids)

    def add(self, outcome: Outcome) -> None:
        self._ids.append(outcome.ids)
        for name, values in outcome.up.items():
            field = self._fields[name]
            weights = outcome.samples if field.weight == "samples" else np.ones(len(outcome.ids))
            flat = values.reshape(len(values), -1)
            w = carried(values.device, np.asarray(weights, dtype=np.float64))[0]
            rows = max(1, MAX_SUM_BYTES // (8 * max(1, flat.shape[1])))
            for a in range(0, len(flat), rows):
                part = (w[a : a + rows] @ flat[a : a + rows].double()).view(values.shape[1:])
                self._sums[name] = self._sums[name].add_(part) if name in self._sums else part
            self._weights[name] = self._weights.get(name, 0.0) + float(weights.sum())
            if field.read != "sum":
                self._each.setdefault(name, []).append(values)

    def sum(self, name: str) -> Tensor:
        """Σ weight · value over those who answered."""
        self._known(name)
        return self._sums[name].to(self._dtype)

    def mean(self, name: str) -> Tensor:
        """Σ weight · value / Σ weight."""
        self._known(name)
        return (self._sums[name] / self._weights[name]).to(self._dtype)

    def each(self, name: str) -> Tensor:
        """One row per client, in the order of `ids`."""
        self._known(name)
        if self._fields[name].read == "sum":
            raise UnalikeError(
                f"The reply field {name!r} is declared read='sum': reading it client by client needs read='each'."
            )
        return torch.cat(self._each[name])

    def _known(self, name: str) -> None:
        if name not in self._sums:
            raise UnalikeError(f"The replies have no field {name!r}.{did_you_mean(name, self._sums)}")

    def losses(self) -> np.ndarray:
        """Mean training loss per client, NaN where none trained."""
        return np.concatenate(self._loss) if self._loss else np.empty(0)


class Cohort:
    """The clients of a round, or a part of them: `call` runs a client function on each and gathers the replies."""

    def __init__(self, context: RoundContext, ids: np.ndarray):
        self._context, self.ids = context, ids

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def population(self) -> int:
        """How many clients there are in all."""
        return self._context.population

    @property
    def everyone(self) -> Cohort:
        """All clients there are, of this cohort or not."""
        return Cohort(self._context, np.arange(self.population))

    @property
    def samples(self) -> np.ndarray:
        """Training samples of each client of this cohort."""
        return self._context.engine.job.data.train.sizes[self.ids]

    @property
    def round(self) -> int:
        """The round, from 0; -1 while setting up."""
        return self._context.round

    @property
    def rates(self) -> np.ndarray:
        """This round's local learning rate of each client of this cohort."""
        return self._context.engine.job.local.rates(self.ids, self.round)

    def only(self, ids: Iterable[int]) -> Cohort:
        """The same cohort, cut to these clients."""
        ids = np.asarray(ids, dtype=np.int64)
        stranger = np.setdiff1d(ids, self.ids)
        if len(stranger):
            raise UnalikeError(f"only(): client {int(stranger[0])} is not in this cohort of {len(self.ids)}.")
        clients, times = np.unique(ids, return_counts=True)
        if len(clients) < len(ids):
            raise UnalikeError(f"only(): client {int(clients[times > 1][0])} is named twice: name each client once.")
        return Cohort(self._context, ids)

    def call(self, fn: Callable[..., Any], **message: Any) -> Replies:
        """Run `fn(me, s, m)` on every client; values in `message` go to all, `PerClient(rows)` one row to each."""
        return self._context.call(fn, self.ids, message)


class RoundContext:
    """One round's exchanges: message checks, byte counts, staged state, divergence."""

    def __init__(self, engine: Engine, method: Method, server: Server, population: int, round: int):
        self.engine, self.method, self.server = engine, method, server
        self.population, self.round = population, round
        self.exchange = self.trained = self.lost = 0  # lost: most clients that did not answer an exchange
        self.bytes_down = self.bytes_up = 0
        self.losses: list[np.ndarray] = []
        self._buffers: list[tuple[np.ndarray, Tensor, float]] = []  # of each exchange: who trained, sum, weight
        model = engine.job.model
        self.sizes = sizes_of(model)
        self.fields = reply_fields(method, model)

    def call(self, fn: Callable[..., Any], ids: np.ndarray, message: dict[str, Any]) -> Replies:
        if len(ids) == 0:
            raise UnalikeError(f"{type(self.method).__name__} called a cohort of no clients in round {self.round + 1}.")
        model = self.engine.job.model
        shared, rows = message_parts(message, len(ids), self.server, model)
        self.bytes_down += wire.payload(shared) * len(ids) + wire.payload(rows)
        replies = Replies(self.fields, model.dtype)
        call = Call(fn, shared, rows, self.round, self.exchange, self.trained)
        trained = 0
        self.exchange += 1
        for outcome in self.engine.call(call, ids):
            check_reply(outcome.up, self.fields, self.sizes, self.method, fn.__name__)
            self.bytes_up += wire.payload(outcome.up)
            trained = max(trained, outcome.trained)
            replies.add(outcome)
            replies._loss.append(self._losses(outcome))  # waits for the device: after it was given the sums to do
            if self.engine.watch is not None:
                self.engine.watch(outcome)
        self.trained += trained
        self.lost = max(self.lost, len(ids) - replies.count)
        self.losses.append(replies.losses())
        if BUFFERS in replies._sums:
            # a client that trained again counts as it is now: its earlier exchange goes, for want of single rows
            self._buffers = [part for part in self._buffers if not np.isin(part[0], ids).any()]
            self._buffers.append((ids, replies._sums[BUFFERS], replies._weights[BUFFERS]))
        return replies

    def finish(self) -> None:
        """The end of the round: buffers averaged over all who trained become the server's."""
        if self._buffers:
            _, sums, weights = zip(*self._buffers, strict=True)
            mean = torch.stack(sums).sum(0) / sum(weights)
            self.server.buffers = self.server.buffers + mean.to(self.server.buffers.dtype)

    def _losses(self, outcome: Outcome) -> np.ndarray:
        """The clients' losses, where nobody's loss or weights are gone."""
        finite = outcome.finite
        if finite is None:
            finite = np.ones(len(outcome.ids), dtype=bool)
            for value in outcome.up.values():
                if value.is_floating_point():
                    finite &= torch.isfinite(value).reshape(len(value), -1).all(1).cpu().numpy()
        bad = np.isinf(outcome.loss) | ~finite
        if bad.any():
            clients = [int(k) for k in outcome.ids[bad]]
            named = ", ".join(map(str, clients[:5])) + (" and others" if len(clients) > 5 else "")
            raise Diverged(
                f"Round {self.round + 1}: the loss or weights of client {named} became NaN or infinite; the last "
                "checkpoint is kept. A smaller lr or clip_norm=10 usually helps.",
                self.round + 1,
                clients,
            )
        return outcome.loss


def reply_fields(method: Method, model: Model) -> dict[str, Field]:
    """What a reply may hold: what the method declares, and BatchNorm's statistics where the server averages them."""
    averaged = model.buffer_layout.size and model.buffer_policy == "average"
    return {**method.sends, **({BUFFERS: Field((model.buffer_layout.size,))} if averaged else {})}


def check_reply(
    up: dict[str, Tensor], fields: dict[str, Field], sizes: dict[str, int], method: Method, function: str
) -> None:
    """Every field of a stack of replies is declared and has its declared shape."""
    name = type(method).__name__
    for key, value in up.items():
        if key not in fields:
            raise UnalikeError(
                f"{name}.{function} sends {key!r}, which `sends` does not declare.{did_you_mean(key, fields)}"
            )
        want = fields[key].resolve(sizes, method)
        if tuple(value.shape[1:]) != want:
            raise UnalikeError(
                f"{name}.{function} sends {key!r} with shape {list(value.shape[1:])}; `sends` declares {list(want)}."
            )


def sizes_of(model: Model) -> dict[str, int]:
    """The sizes that shapes of fields are named after."""
    return {
        "model": model.layout.size,
        "body": model.layout.body_size,
        "head": model.layout.head_size,
        "features": model.features,
        "pairs": model.features * (model.features + 1) // 2,
        "classes": model.outputs,
    }


def message_parts(
    message: dict[str, Any], count: int, server: Server, model: Model
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A message to `count` clients: what all get, with BatchNorm's statistics, and the rows that differ."""
    shared, rows = {}, {}
    for name, value in message.items():
        if isinstance(value, PerClient):
            if len(value.rows) != count:
                raise UnalikeError(
                    f"PerClient {name!r} has {len(value.rows)} rows for {count} clients: give one row each."
                )
            rows[name] = _rows(value.rows, model)
        else:
            shared[name] = _tensor(value, model)
    if BUFFERS in server._values and BUFFERS not in message:
        shared[BUFFERS] = server.buffers
    return shared, rows


def _rows(rows: Any, model: Model) -> Tensor:
    """Rows of a message as a tensor; numpy's float64 would else meet a model of float32."""
    if isinstance(rows, Tensor):
        return rows.to(model.device)
    values = torch.as_tensor(rows, device=model.device)
    return values.to(model.dtype) if values.is_floating_point() else values


def _tensor(value: Any, model: Model) -> Tensor:
    """A part of a message as a tensor: numbers become 0-dimensional ones."""
    if isinstance(value, Tensor):
        return value.to(model.device)
    if isinstance(value, bool | int):
        return torch.tensor(value, device=model.device)
    if isinstance(value, float):
        return torch.tensor(value, dtype=model.dtype, device=model.device)
    raise UnalikeError(f"A message holds tensors and numbers; got {type(value).__name__}.")
