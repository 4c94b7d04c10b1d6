"""Many workers of one owner, on one machine or several: the cohort is divided among Ray actors, one per CPU core or
GPU, and each runs the fastest engine of its device on its share.

A worker keeps the state rows of the clients it has run, so that a client's state need not be sent to it again; new
state also comes back with the replies, into the same store that every engine uses. There it is committed and
checkpointed as always, and from there a worker that takes over a client (because the old one died or is too busy) gets
its rows. Every draw is a function of (seed, round, client, purpose), so a repeated share gives the same result.
"""

from __future__ import annotations

import collections
import dataclasses as dc
import importlib
import logging
import math
import os
import shutil
import socket
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from unalike.client import ClientStore, Job
from unalike.contract.call import Call, Outcome
from unalike.data import Columns, Federation, RemoteFederation
from unalike.data.drifting import fill, own_memory
from unalike.data.federation import as_arguments
from unalike.data.pixels import held_by, made_of
from unalike.engines.batched import Batched
from unalike.engines.engine import Engine
from unalike.engines.options import WorkerCount
from unalike.engines.workers import available_cores
from unalike.errors import UnalikeError, first_line
from unalike.nn.numerics import numerics, one_thread
from unalike.settings.knobs import Knob
from unalike.settings.typed import Known
from unalike.training.settings import ShortenedTraining

INNER = ("auto", "sequential", "workers", "batched")
Address = Annotated[
    str | None, Knob("of a Ray cluster to join: auto, host:port or ray://host:port; else one is started")
]
Inner = Annotated[str, Knob("the engine that each worker of the ray engine runs", choices=INNER, noun="inner engine")]
# how often a share is given to a new worker before the fault is blamed on its clients
TRIES = 3
# seconds to wait for workers: a busy cluster may first have to free some cores
START_SECONDS = 120
KNOCK_SECONDS = 10
STOP_SECONDS = 5
QUIET = {"log_to_driver": False, "logging_level": logging.CRITICAL}

Arrays = dict[str, np.ndarray]
Rows = list[tuple[np.ndarray, Arrays]]  # some clients and their rows by name


@dc.dataclass
class Piece:
    """Clients that one worker runs in one go, by their positions in the cohort, and the pending answer."""

    positions: np.ndarray
    answer: Any = None
    tries: int = 0


class Ray(Engine):
    name = "ray"

    @classmethod
    def options(cls) -> Known:
        """Return its own options, and those of the engines that its workers run."""
        return super().options() | Batched.options()

    def __init__(
        self,
        job: Job,
        workers: WorkerCount = None,
        address: Address = None,
        inner: Inner = "auto",
        turns: int = 1,
        **options: Any,
    ):
        """turns: engines of this run that take turns on the same cores and GPUs (one for each network)."""
        super().__init__(job)
        # share of a core or GPU; Ray counts in ten-thousandths
        self.part = math.floor(1e4 / turns) / 1e4
        if not isinstance(job.states, ClientStore) or isinstance(job.data, RemoteFederation):
            raise UnalikeError("The ray engine simulates clients whose data are here: give it a Federation.")
        self.states = job.states
        self.ray = load_ray()
        self.exchanges = 0
        # closes what we opened: a Ray of our own, or a connection
        self._own = ExitStack()
        self.actors: list[Any] = []
        self.starts: list[Any] = []  # each worker's report after its start
        parcel = pack(self.ray, job, inner, options)
        try:
            self._connect(address, workers)
            count = self._count(workers)
            # all workers together may keep as much client state in memory as the driver
            self._parcel = self.ray.put((parcel, job.states.budget // count))
            self._data = self.ray.put(columns_of(job.data))
            self.owner = np.full(len(job.data), -1, dtype=np.int16)  # the worker that has a client's rows
            for slot in range(count):
                self._hire(slot)
            self.inner, self.at_once = self._started()
        except BaseException:
            self.close()
            raise

    # ---- Ray

    def _connect(self, address: str | None, workers: int | None) -> None:
        """Join the cluster at the address, or the one this process is connected to, or start our own."""
        if self.ray.is_initialized():
            return
        try:
            if address is None:
                self._own.enter_context(local_ray(max(workers or 0, available_cores())))
            else:
                knock(address)
                self.ray.init(address=address, **QUIET)
                self._own.callback(self.ray.shutdown)  # closes the connection; the cluster goes on
        except UnalikeError:
            raise
        except Exception as error:
            where = f"There is no Ray cluster to join at {address!r}" if address else "Ray does not start here"
            raise UnalikeError(f"{where}: {first_line(error)}.") from error

    def _count(self, asked: int | None) -> int:
        """Return the number of workers: as asked, or one per core or GPU."""
        resource, word = ("GPU", "GPUs") if self._gpu else ("CPU", "cores")
        there = int(self.ray.cluster_resources().get(resource, 0))
        if (asked or 1) > there:
            raise UnalikeError(
                f"Ray has {there} {word} here and {asked or 1} are asked for: give workers={there or 1}."
            )
        return asked or there

    @property
    def _gpu(self) -> int:
        return int(self.job.task.device.type == "cuda")

    def _hire(self, slot: int) -> None:
        """Start a new worker in this slot; it is sent the job first."""
        actor = self._new()
        self.actors[slot:] = [actor, *self.actors[slot + 1 :]]
        self.starts[slot:] = [actor.start.remote(self._parcel, self._data), *self.starts[slot + 1 :]]

    def _new(self) -> Any:
        needs = {"num_cpus": self.part, "num_gpus": self.part * self._gpu}
        return self.ray.remote(Worker).options(**needs, max_restarts=0).remote()

    def _started(self) -> tuple[str, int]:
        """Wait for all workers; return the engine that they run, and how many clients it takes in one go."""
        try:
            reasons, sizes = zip(*self.ray.get(self.starts, timeout=START_SECONDS), strict=True)
            return reasons[0], min(sizes)
        except self.ray.exceptions.RayTaskError as error:
            raise _theirs(error) from error
        except self.ray.exceptions.GetTimeoutError as error:
            raise UnalikeError(
                f"Ray did not give {len(self.actors)} workers within {START_SECONDS} s: others use the cluster; ask "
                "for fewer with workers=..."
            ) from error
        except self.ray.exceptions.RayError as error:
            raise UnalikeError(f"A Ray worker died while it was started: {first_line(error)}.") from error

    def close(self) -> None:
        """Stop the workers; stop Ray itself only if it is our own."""
        if self.job.states.shapes:
            # dead, or still busy with a round that failed elsewhere
            with suppress(Exception):
                self.ray.get([actor.stop.remote() for actor in self.actors], timeout=STOP_SECONDS)
        for actor in self.actors:
            # a worker, or a cluster, that is already dead
            with suppress(Exception):
                self.ray.kill(actor)
        self.actors = []
        self._own.close()

    # ---- an exchange

    def renew(self) -> None:
        """Send the current samples to the workers, and to later replacements of dead ones."""
        super().renew()
        self._data = self.ray.put(columns_of(self.job.data))
        for actor in self.actors:
            actor.renew.remote(self._data)  # done before the next request

    def call(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        """Yield replies in client order; replies that come early wait in Ray's object store, which spills to disk when
        full."""
        exchange = Exchange(self, call, ids)
        exchange.send(range(len(self.actors)))
        ready: dict[int, Outcome] = {}
        with one_thread():  # the cores belong to the workers
            for position in range(len(ids)):
                if position not in ready:
                    ready |= exchange.receive(position)
                yield ready.pop(position)

    def replace(self, slot: int) -> None:
        """Replace a worker that died, or whose answer was lost: its state may be ahead of ours."""
        with suppress(Exception):
            self.ray.kill(self.actors[slot])
        self.owner[self.owner == slot] = -1
        self._hire(slot)


class Exchange:
    """One call on its way through the workers."""

    def __init__(self, engine: Ray, call: Call, ids: np.ndarray):
        self.engine, self.call, self.ids = engine, call, ids
        engine.exchanges += 1
        self.number = engine.exchanges
        self.ray, self.job = engine.ray, engine.job
        self.keep = isinstance(call.function, str)  # an evaluation keeps no state
        job, n = self.job, self.job.data.train.sizes[ids]
        shorter = job.local.part if isinstance(job.local, ShortenedTraining) else {}
        order = (call.function, arrays(call.shared), call.round, call.exchange, call.trained, shorter)
        self.order = self.ray.put(order)
        cost = job.local.counts(ids, n, call.round) * np.minimum(n, job.local.batch_size or n)
        slots = deal(cost, engine.owner[ids], len(engine.actors))
        self.pieces: dict[int, collections.deque[Piece]] = {}
        for slot in range(len(engine.actors)):
            positions = np.flatnonzero(slots == slot)
            parts = [positions[a : a + engine.at_once] for a in range(0, len(positions), engine.at_once)]
            self.pieces[slot] = collections.deque(Piece(part) for part in parts)
        self.slots = slots
        self.orders: dict[int, Any] = {}

    def send(self, slots: Any) -> None:
        """Send these workers everything that they have still to do."""
        for slot in slots:
            actor = self.engine.actors[slot]
            if self.pieces[slot]:
                self.orders[slot] = actor.order.remote(self.number, self.order, self.keep)
            for piece in self.pieces[slot]:
                ids = self.ids[piece.positions]
                index = torch.from_numpy(piece.positions).to(self.job.task.device)
                rows = arrays({name: values[index] for name, values in self.call.rows.items()})
                piece.answer = actor.run.remote(self.number, ids, rows, self._missing(slot, ids))
                if self.keep and self.job.states.shapes:
                    self.engine.owner[ids] = slot

    def _missing(self, slot: int, ids: np.ndarray) -> Rows:
        """Return the state of clients whose rows this worker lacks, if they have any."""
        ids, shapes = ids[self.engine.owner[ids] != slot], self.job.states.shapes
        if not len(ids) or not shapes:
            return []
        values, first = self.engine.states.read(ids)
        # state of the round itself: none before its first exchange
        begun = {"round"} if self.keep and self.call.exchange else set()
        found = []
        for lives, some in ((begun | {"run"}, ~first.cpu().numpy()), (begun, first.cpu().numpy())):
            names = [name for name, (_, _, life) in shapes.items() if life in lives]
            if some.any() and names:
                mask = torch.from_numpy(some).to(first.device)
                found.append((ids[some], arrays({name: values[name][mask] for name in names})))
        return found

    def receive(self, position: int) -> dict[int, Outcome]:
        """Return the outcomes of the piece that begins at this position; a dead worker's share goes to a new one."""
        slot = int(self.slots[position])
        piece = self.pieces[slot][0]
        while True:
            try:
                outcomes, kept = self.ray.get(piece.answer)
                break
            except self.ray.exceptions.RayTaskError as error:
                self._check(self.engine.starts[slot], self.orders[slot])
                raise _theirs(error) from error
            except self.ray.exceptions.RayError as error:
                piece.tries += 1
                if piece.tries > TRIES:
                    raise UnalikeError(
                        f"Round {self.call.round + 1}: {TRIES + 1} Ray workers died one after another with client "
                        f"{self.ids[piece.positions[0]]} ({first_line(error)}): see that their memory suffices."
                    ) from error
                self.engine.replace(slot)
                self.send([slot])
        self.pieces[slot].popleft()
        for ids, rows in kept:
            self.engine.states.stage(ids, tensors(rows, self.job.task.device))
        found: dict[int, Outcome] = {}
        place = {int(self.ids[p]): int(p) for p in piece.positions}
        for ids, up, samples, loss, trained, batches in outcomes:
            sent = tensors(up, self.job.task.device)
            for k, client in enumerate(ids):
                one = slice(k, k + 1)
                up_one = {name: value[one] for name, value in sent.items()}
                found[place[int(client)]] = Outcome(
                    ids[one], up_one, samples[one], loss[one], trained, batches=batches[one]
                )
        return found

    def _check(self, *earlier: Any) -> None:
        """Raise if an earlier answer explains why a later one is an error."""
        try:
            self.ray.get(list(earlier))
        except self.ray.exceptions.RayTaskError as error:
            raise _theirs(error) from error


def deal(cost: np.ndarray, owner: np.ndarray, workers: int) -> np.ndarray:
    """Assign clients to workers. First pass: longest job first, to the least loaded worker; this fixes the finishing
    time. Second pass: prefer the worker that already has a client's rows, unless that would finish later."""
    longest, slots, latest = np.argsort(-cost, kind="stable"), np.empty(len(cost), dtype=np.int64), 0.0
    for preferred in (np.full(len(cost), -1), owner):
        busy = np.zeros(workers)
        for k in longest:
            slot = preferred[k]
            if slot < 0 or busy[slot] + cost[k] > latest:
                slot = busy.argmin()
            busy[slot] += cost[k]
            slots[k] = slot
        latest = busy.max()
    return slots


# ---------------------------------------------------------------- packing


def load_ray() -> Any:
    """Return the module ray, if it is installed, with its usage reports switched off."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default; otherwise it warns
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UnalikeError("The ray engine needs Ray: pip install 'unalike[ray]'.") from error


def knock(address: str) -> None:
    """Raise unless something listens at the address: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdecimal():
        raise UnalikeError(f"address={address!r} must be 'auto', 'host:port' or 'ray://host:port'.")
    socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_SECONDS).close()


@contextmanager
def local_ray(cores: int) -> Iterator[None]:
    """Run a Ray on this machine, without its dashboard, for the duration of the block; no process or file is left
    behind."""
    ray, folder = load_ray(), tempfile.mkdtemp(prefix="unalike-ray-")
    try:
        ray.init(address="local", num_cpus=cores, include_dashboard=False, _temp_dir=folder, **QUIET)
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def pack(ray: Any, job: Job, inner: str, options: dict[str, Any]) -> bytes:
    """Return the job without its data and states, as bytes. Ray's own pickle takes the user's functions and classes by
    value; it travels only between machines of one owner."""
    for name, module in list(sys.modules.items()):
        # a file given as path/to/file.py:name: workers could not import it
        if name.startswith("unalike_user_"):
            ray.cloudpickle.register_pickle_by_value(module)
    task = job.task
    parts = {"the method": job.method, "the model": task.module, "the loss": task.loss}
    parts |= {f"the metric {name!r}": metric.function for name, metric in (task.metrics or {}).items()}
    parts["the local training"] = job.local
    for what, part in parts.items():
        try:
            ray.cloudpickle.dumps(part)
        except Exception as error:
            name = getattr(part, "__name__", type(part).__name__)
            raise UnalikeError(
                f"{what.capitalize()} ({name}) cannot be sent to Ray's workers: {first_line(error)}. Keep what cannot "
                "be pickled out of it."
            ) from error
    deterministic = torch.are_deterministic_algorithms_enabled()
    rest = (job.seed, job.mean_samples, job.states.shapes, job.data.facts, job.drifts, deterministic, inner, options)
    return ray.cloudpickle.dumps((sys.path, ray.cloudpickle.dumps((job.method, task, job.local, *rest))))


def columns_of(data: Federation) -> dict[str, tuple[Any, ...]]:
    """Return the columns as arrays: each machine holds them once, in memory that its workers share."""
    columns: dict[str, Any] = {name: (_arrays(c.x), _array(c.y), c.offsets) for name, c in data.splits.items()}
    if data.public is not None:
        x, y = data.public
        columns["public"] = _arrays(x), None if y is None else _array(y)
    return columns


def _arrays(x: Tensor) -> tuple[np.ndarray, ...]:
    """Return samples as arrays; pictures stay bytes."""
    return tuple(map(_array, held_by(x)))


def _samples(arrays: tuple[np.ndarray, ...]) -> Tensor:
    return made_of([*map(_tensor, arrays)])


def splits_of(columns: dict[str, Any]) -> dict[str, Columns]:
    """Return the splits made from such arrays, in the same memory."""
    return {name: Columns(_samples(x), _tensor(y), offsets) for name, (x, y, offsets) in columns.items()}


def arrays(values: dict[str, Tensor]) -> Arrays:
    return {name: _array(value) for name, value in values.items()}


def _array(value: Tensor) -> np.ndarray:
    return value.detach().cpu().contiguous().numpy()


def tensors(values: Arrays, device: torch.device) -> dict[str, Tensor]:
    return {name: _tensor(value).to(device) for name, value in values.items()}


def _tensor(value: np.ndarray) -> Tensor:
    """Return a tensor over Ray's shared memory, without a copy; received tensors are never written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(value)


def _theirs(error: Any) -> UnalikeError:
    """Return an error from a worker's code without Ray's wrapping."""
    cause = error.cause
    if isinstance(cause, UnalikeError):
        return cause
    if isinstance(cause, ModuleNotFoundError):
        return UnalikeError(f"Ray's workers have {cause}: install it on every machine of the cluster.")
    return UnalikeError(f"A Ray worker failed: {type(cause).__name__}: {first_line(cause)}.")


# ---------------------------------------------------------------- in the worker's process


class WorkerRows(ClientStore):
    """A worker's rows of its clients; it records new state, to be sent back with the replies."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.noted: Rows = []

    def stage(self, ids: np.ndarray, values: dict[str, Tensor]) -> None:
        super().stage(ids, values)
        if values:
            self.noted.append((ids, arrays(values)))

    def commit(self) -> None:
        super().commit()
        self._changed = []  # checkpoints are not made here


class Worker:
    """The actor: a model, the data, the rows of its clients, and an engine."""

    def start(self, parcel: tuple[bytes, int], columns: dict[str, Any]) -> tuple[str, int]:
        """Unpack the job and choose the engine; return its reason, and how many clients it takes in one go."""
        cloudpickle = importlib.import_module("ray").cloudpickle
        packed, budget = parcel
        path, inside = cloudpickle.loads(packed)
        # so that files next to the user's files can be imported, if they are on this machine
        sys.path.extend(p for p in path if p not in sys.path)
        method, task, local, seed, mean, shapes, parts, drifts, deterministic, inner, options = cloudpickle.loads(
            inside
        )
        numerics(task.precision, deterministic).__enter__()  # for the whole life of this process
        torch.set_num_threads(1)
        if (public := columns.pop("public", None)) is not None:
            x, y = public
            parts["public"] = _samples(x), None if y is None else _tensor(y)
        parts |= as_arguments(splits_of(columns))
        data = Federation(**parts).to(task.device, task.dtype)
        data = own_memory(data) if drifts else data
        self.folder = Path(tempfile.gettempdir()) / f"unalike-ray-rows-{os.getpid()}"
        self.rows = WorkerRows(shapes, len(data), task.device, budget, self.folder)
        self.job = Job(method, task, data, local, seed, self.rows, mean, drifts=drifts)
        from unalike.engines.choose import choose_engine  # imported here, because that module imports this one

        # 2 means several: a worker does not know how many
        self.engine, reason = choose_engine(inner, self.job, 2, {"workers": 1, **options})
        self.round: int | None = None
        self.number = 0
        return reason, getattr(self.engine, "clients_at_once", 1)

    def renew(self, columns: dict[str, Any]) -> None:
        """Take over the clients' current samples."""
        columns.pop("public", None)
        fill(self.job.data, self.job.data.replace(**as_arguments(splits_of(columns))))
        self.engine.renew()

    def order(self, number: int, order: tuple[Any, ...], keep: bool) -> None:
        """Prepare for the next runs. A later round, or an evaluation, means that the previous round counted."""
        function, shared, round, exchange, trained, shorter = order
        if isinstance(self.job.local, ShortenedTraining):
            self.job.local.part.clear()
            self.job.local.part.update(shorter)
        if round != self.round or not keep:
            self.rows.commit()
            self.round = round
        self.number, self.keep = number, keep
        self.call = Call(function, tensors(shared, self.job.task.device), {}, round, exchange, trained)

    def run(self, number: int, ids: np.ndarray, rows: Arrays, missing: Rows) -> tuple[list[tuple[Any, ...]], Rows]:
        """Run these clients; return their replies and the state that they keep."""
        if number != self.number:
            raise UnalikeError("A Ray worker did not get what it was to do.")
        for whose, values in missing:
            self.rows.stage(whose, tensors(values, self.job.task.device))
        self.rows.noted = []
        call = dc.replace(self.call, rows=tensors(rows, self.job.task.device))
        found = self.engine.call(call, ids)
        outcomes = [(o.ids, arrays(o.up), o.samples, o.loss, o.trained, o.batches) for o in found]
        kept, self.rows.noted = self.rows.noted, []
        if not self.keep:
            self.rows.discard()
            return outcomes, []
        return outcomes, kept

    def stop(self) -> None:
        """Remove the rows from disk, if they are there: an actor has no time to do so when it is stopped."""
        shutil.rmtree(self.folder, ignore_errors=True)
