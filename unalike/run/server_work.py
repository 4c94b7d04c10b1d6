"""The server's own computations: training, outputs and averages on the public set, or on no samples at all.

The server runs the same loop as a client, as if it were one more client. Clients' data are never used here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike import draws
from unalike.client import ClientStore, Job, OneClient
from unalike.client.samples import Samples, no_labels
from unalike.contract import BUFFERS, Answer, Best, Call, Fields, Me, Method, Request, Vectors
from unalike.contract.requests import PUBLIC, DataName
from unalike.data import Federation
from unalike.errors import Diverged, UnalikeError
from unalike.nn.task import Task
from unalike.training.settings import LocalTraining

# names for samples that the method passes, and for no samples
GIVEN, NOTHING = "given", "nothing"
# name of a request's result if it is a single tensor (no method's field has this name)
RESULT = " result"
SCHEDULES = ("constant", "cosine")
NONE = torch.empty(0)


class ServerJob(Job):
    """The server's job: its samples are the public set, samples that a method passes, or none."""

    def __init__(self, method: Method, task: Task, data: Federation, local: LocalTraining, seed: int):
        super().__init__(method, task, data, local, seed, ClientStore({}, 1, task.device), 1.0)
        self.asks: Callable[..., Answer]
        self.given: Mapping[str, Tensor] | None = None

    def samples(self, data: DataName) -> Samples:
        if data == PUBLIC:
            return super().samples(PUBLIC)
        like = self.data.train
        if data == NOTHING:
            return Samples(like.x.new_zeros(1, 0), no_labels(1, like.y), None, 1, labelled=False)
        if data == GIVEN and self.given is not None:
            x, y = self._cast(self.given["x"], like.x), self.given.get("y")
            return Samples.of(PUBLIC, self.data.splits, (x, None if y is None else self._cast(y, like.y)))
        return super().samples(data)

    def _cast(self, values: Tensor, like: Tensor) -> Tensor:
        """Cast values to the type of samples. Numbers that clients sent come as flat rows whatever a sample's shape is,
        and tokens and labels among them come as numbers of the run's dtype."""
        if values[:1].numel() == like[:1].numel():
            values = values.reshape(len(values), *like.shape[1:])
        if values.is_floating_point() and not like.is_floating_point():
            return values.round().to(self.task.device, like.dtype)
        return values.to(self.task.device, self.task.dtype if values.is_floating_point() else None)

    def numbers(self, ids: np.ndarray, round: int) -> dict[str, np.ndarray]:
        names = ("n", "relative_size", "lr", "first_lr", "steps", "mean_steps")
        return {name: np.ones(len(ids)) for name in names}

    def keys(self, ids: np.ndarray, round: int, purpose: str) -> np.ndarray:
        return draws.client_keys(self.seed, round, f"server {purpose}", ids)

    def function(self, function: Any) -> Callable[..., Answer]:
        return self.asks

    def who(self, client: int) -> str:
        return "the server"


class ServerWork:
    """The server's own work, for all architectures of a run. `round` is kept up to date by the run; `buffers`
    returns BatchNorm's statistics at this point of the round; `local` holds the settings of a training that asks for
    no others."""

    def __init__(self, method: Method, tasks: Mapping[str, Task], parts: Mapping[str, Federation], seed: int):
        self._method, self._tasks, self._parts, self._seed = method, tasks, parts, seed
        self.local = LocalTraining()
        self._workers: dict[str, OneClient] = {}
        self._round, self._trained, self._last = -1, 0, 0
        self.buffers: Callable[[], Tensor | Vectors | None] = lambda: None

    @property
    def round(self) -> int:
        return self._round

    @round.setter
    def round(self, round: int) -> None:
        self._round, self._trained, self._last = round, 0, 0

    # ---- requests: `server.train` and the like

    def train(
        self,
        at: Any,
        data: str | Mapping[str, Tensor] | None,
        architectures: list[str] | None,
        schedule: str,
        slots: Any,
        asked: dict[str, Any],
        best: Best | None = None,
    ) -> tuple[Any, Any]:
        """Return the trained vector (the `best` one along the way, if asked for) and, if an optimizer's state was
        given, the state after training."""
        if schedule not in SCHEDULES:
            raise UnalikeError(f"schedule={schedule!r}: the rate is 'constant', or falls by a 'cosine' to 0.")

        def one(name: str, part: Callable[[Any], Any]) -> tuple[Tensor, Tensor | None]:
            if isinstance(at, Vectors) and architectures is not None and name not in architectures:
                return part(at), part(slots)
            given = {key: part(value) for key, value in asked.items()}
            if best is not None:
                return self._best(name, part(at), data, schedule, given, best), None
            return self._trained_once(name, part(at), data, schedule, part(slots), given)

        self._last = self._trained
        found = self._each(at, one)
        # counted once, however many networks were trained
        self._trained = self._last
        return found

    def _trained_once(
        self, name: str, at: Tensor, data: Any, schedule: str, slots: Tensor | None, asked: dict[str, Any], **span: Any
    ) -> tuple[Tensor, Tensor | None]:
        asks = lambda me: me.train(at, data=_name(data), slots=slots, **asked)  # noqa: E731
        found = self._run(name, data, asks, schedule, **span)
        if not torch.isfinite(found[RESULT]).all():
            raise Diverged(
                f"Round {self.round + 1}: the server's own training became NaN or infinite; the last checkpoint is "
                "kept. A smaller lr usually helps.",
                self.round + 1,
                [],
            )
        return found[RESULT], found.get("slots")

    def _best(self, name: str, at: Tensor, data: Any, schedule: str, asked: dict[str, Any], best: Best) -> Tensor:
        """Train in parts of `best.every` steps; return the best of the vectors at the start and after each part."""

        def judged(vector: Tensor) -> float:
            asks = lambda me: me.average(best.fn, vector, PUBLIC, only=best.only)  # noqa: E731
            return float(self._run(name, PUBLIC, asks)[RESULT])

        steps, gained = asked["steps"], 0
        vector, slots = at, at.new_zeros(2 * at.shape[-1] + 1)
        top, score = at, judged(at)
        for number, done in enumerate(range(0, steps, best.every)):
            if best.patience is not None and done - gained >= best.patience:
                break
            count = min(best.every, steps - done)
            part = {**asked, "steps": count}
            span = {"span": (done, steps), "number": number}
            vector, slots = self._trained_once(name, vector, data, schedule, slots, part, **span)  # type: ignore[assignment]
            if (now := judged(vector)) > score:
                top, score, gained = vector, now, done + count
        return top

    def outputs(
        self, at: Any, data: str | Mapping[str, Tensor], only: Tensor | None, fn: Any, args: dict[str, Any]
    ) -> Tensor:
        """Return one row per sample, [..., rows, outputs]; for `Vectors`, one architecture after another."""

        def one(name: str, part: Callable[[Any], Any]) -> Tensor:
            given = {key: part(value) for key, value in args.items()}
            return self._run(name, data, lambda me: me.outputs(part(at), _name(data), only, fn, **given))[RESULT]

        if not isinstance(at, Vectors):
            return one(self._first, _itself)
        several = {name: vectors.dim() > 1 for name, vectors in at.items()}
        found = [one(name, _of(name)) for name, vectors in at.items() if not several[name] or len(vectors)]
        if not all(several.values()):
            # one vector per architecture: [architectures, rows, outputs]
            return torch.stack(found)
        if not found:
            raise UnalikeError("server.outputs was given no vector: no client of any network answered.")
        return torch.cat(found)

    def average(
        self,
        fn: Any,
        at: Any,
        data: str | Mapping[str, Tensor],
        only: Tensor | None,
        rows: Mapping[str, Tensor] | None,
        args: dict[str, Any],
    ) -> Any:
        """Return the mean over samples of a function's value for each."""

        def one(name: str, part: Callable[[Any], Any]) -> Any:
            given = {key: part(value) for key, value in args.items()}
            asks = lambda me: me.average(fn, part(at), _name(data), only=only, rows=part(rows), **given)  # noqa: E731
            found = self._run(name, data, asks)
            return found.pop(RESULT) if RESULT in found else found

        if not isinstance(at, Vectors):
            return one(self._first, _itself)
        return Vectors({name: one(name, _of(name)) for name in at.names})

    # ---- execution

    @property
    def _first(self) -> str:
        return next(iter(self._tasks))

    def _each(self, at: Any, one: Callable[..., tuple[Any, Any]]) -> tuple[Any, Any]:
        if not isinstance(at, Vectors):
            return one(self._first, _itself)
        found = {name: one(name, _of(name)) for name in at.names}
        slots = {name: more for name, (_, more) in found.items()}
        kept = None if any(more is None for more in slots.values()) else Vectors(slots)
        return Vectors({name: vector for name, (vector, _) in found.items()}), kept

    def _run(
        self,
        name: str,
        data: Any,
        asks: Callable[[Me], Request],
        schedule: str = "constant",
        span: tuple[int, int] | None = None,
        number: int = 0,
    ) -> dict[str, Tensor]:
        """Run one request like a client's; return its result, and further values that came with it, by name. span:
        where this training begins within a longer one, and that one's length; number: its place among the parts."""

        def end(me: Me, s: Fields, m: Fields, result: Any, **more: Tensor) -> Answer:
            return {}, {**(result if isinstance(result, dict) else {RESULT: result}), **more}

        def server(me: Me, s: Fields, m: Fields) -> Answer:
            return asks(me).then(end)

        if name not in self._workers:
            own = ServerJob(self._method, self._tasks[name], self._parts[name], self.local, self._seed)
            self._workers[name] = OneClient(own)
        worker = self._workers[name]
        job = worker.job
        assert isinstance(job, ServerJob)
        job.given = data if isinstance(data, Mapping) else None
        job.asks = server
        worker.schedule, worker.span = schedule, span
        buffers = self.buffers()
        buffers = buffers[name] if isinstance(buffers, Vectors) else buffers
        message = Fields({} if buffers is None else {BUFFERS: buffers})
        call = Call("server", {}, {}, self.round, 0, self._trained + number)
        first = torch.ones((), dtype=torch.bool, device=job.task.device)
        _, found, _ = worker.run(call, 0, {}, first, message)
        self._last = max(self._last, self._trained + number + worker.trained)
        # BatchNorm's statistics from the server's own samples are dropped: the clients' stay
        return {key: value for key, value in found.items() if key != BUFFERS}


def _name(data: object) -> str:
    """Return the name of the samples that the server works on; refuse clients' samples."""
    if data is None or data == PUBLIC:
        return NOTHING if data is None else PUBLIC
    if not isinstance(data, Mapping):
        raise UnalikeError(
            f"The server has no clients' data, and data={data!r} was asked for: it works on data='public', on tensors "
            "of its own, {'x': ..., 'y': ...}, or on None."
        )
    if not data.keys() <= {"x", "y"} or not all(isinstance(data.get(name, NONE), Tensor) for name in ("x", "y")):
        raise UnalikeError("The server's own samples are two tensors, {'x': ..., 'y': ...}; y may be left out.")
    if "x" not in data or ("y" in data and len(data["y"]) != len(data["x"])):
        raise UnalikeError("The server's own samples need x, and as many labels y as there are samples, or none.")
    return GIVEN


def _itself(value: Any) -> Any:
    return value


def _of(name: str) -> Callable[[Any], Any]:
    """Return a function that takes one architecture's part of `Vectors`, also within a dict, and leaves other values
    unchanged."""

    def part(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: part(v) for key, v in value.items()}
        return value[name] if isinstance(value, Vectors) else value

    return part
