"""A run: rounds of a method on a federation, with evaluation, a run folder and resuming."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unalike.client import ClientStore, FileStates, Job, data_sizes, state_shapes
from unalike.contract import BUFFERS, Cohort, Method, Outcome, Server, ServerDraws, check_serverless
from unalike.data import Federation, RemoteFederation
from unalike.engines import choose_engine
from unalike.engines.flower import ACKNOWLEDGED
from unalike.errors import UnalikeError
from unalike.metrics import evaluate_set
from unalike.metrics.lines import choose as choose_round
from unalike.metrics.names import Number, directions, numbers, score_in, scores
from unalike.nn.task import BoundModule, Task, cross_entropy
from unalike.run.callbacks import Callback
from unalike.run.deploy import save
from unalike.run.evaluate import by_class, choose_clients, evaluated, global_models, shares_one_model
from unalike.run.facts import facts
from unalike.run.folder import RunFolder, taken_engine
from unalike.run.predict import Prediction, predictor
from unalike.run.round import Round
from unalike.run.sampling import Uniform, draw, sampling
from unalike.run.settings import RunSettings
from unalike.training.settings import LocalTraining

PREPARATION = "preparation.json"  # in the run's folder: what was done to the features
SETUP_BYTES = "_setup_bytes"  # among the server's values: what went down, up and between clients before round 1
WAYS = ("down", "up", "peer")  # of bytes


class Run:
    """A run in progress or finished.

    model: the module with the global weights; history: one dict per round; numbers: what those dicts hold, by key;
    higher: whether higher is better, by metric; server, clients: their states; task: the module with loss, metrics and
    layout; reason: which engine ran and why; seconds_total.
    """

    def __init__(
        self,
        task: Task,
        federation: Federation,
        method: Method,
        local: LocalTraining,
        settings: RunSettings,
        engine_options: dict[str, Any],
        recipe: dict[str, Any] | None,
    ):
        federation.check()
        task.buffer_policy = method.buffers or task.buffer_policy
        self.task, self.method, self.local, self.settings = task, method, local, settings
        self.rounds, self.seed = settings.rounds, settings.seed
        self.sampling = sampling(settings.clients_per_round)
        self.sampling.check(len(federation))
        fingerprint = federation.fingerprint()
        self.data = self._training = federation.to(task.device, task.dtype)
        if getattr(method, "pooled", False):
            self._pool()
        check_serverless(method)
        if method.serverless and task.buffer_policy == "average":
            task.buffer_policy = "local"  # there is nobody to average statistics
        self.population = len(self._training)
        x, y = self.data.train.x[:2], self.data.train.y[:2]
        plain = task.loss is cross_entropy and not y.is_floating_point()
        # a label too large kills a GPU: see `_check_labels`
        task.check(x, torch.zeros_like(y) if plain else y, **data_sizes(self._training))
        task.take_nets(method.nets, self.seed)
        _check_labels(task, self.data)
        self.higher = directions(task.metrics_for(self.data.train.y))
        self.numbers = numbers(self.higher)
        self._check_amounts()
        self.evaluated_clients = choose_clients(settings.evaluate_clients, len(self.data), self.seed)
        self._bound = task.live()
        self.folder: RunFolder | None = None
        where = Path(settings.folder) if settings.folder is not None else None
        self._assemble(engine_options, where)
        if where is not None:  # last: a mistake in the arguments leaves no folder behind
            config = facts(self, fingerprint, engine_options)
            try:
                self.folder = RunFolder(where, config, settings.resume, recipe)
            except BaseException:
                self.close()
                raise
            if isinstance(self.clients, FileStates):
                self.clients.clear()
            if self.data.preparation is not None:
                self.folder.keep(PREPARATION, self._features())
        self.history: list[dict[str, Any]] = []
        self.client_values: dict[str, np.ndarray] = {}
        self.client_means: dict[str, Tensor] = {}
        self.rounds_done = 0
        self.seconds_total = 0.0
        self._listeners: list[Callable[[Outcome], None]] = []

    def _features(self) -> dict[str, Any]:
        """What was done to the features, and what they are: whoever uses the model must do the same."""
        data = self.data
        plain = {
            name: value and value.plain() for name, value in data.facts.items() if name in ("schema", "preparation")
        }
        return {**plain, "label_names": data.label_names}

    def _pool(self) -> None:
        """Train on one client that holds everybody's data; evaluation still asks each client's own."""
        if not shares_one_model(self.method):
            name = type(self.method).__name__
            raise UnalikeError(f"{name} trains on pooled data: there are no personal models, leave out `personal`.")
        self._training, self.sampling = self.data.pooled(), Uniform(fraction=1.0)
        if self.task.buffer_policy == "local":
            self.task.buffer_policy = "average"  # the one client's own are everybody's

    def _check_amounts(self) -> None:
        """Check that per-client lists have one entry per client, and that `drop_last` leaves every client at least one
        batch."""
        for name in ("epochs", "steps", "lr"):
            value = getattr(self.local, name)
            if isinstance(value, Sequence | np.ndarray) and len(value) != self.population:
                raise UnalikeError(f"{name} has {len(value)} entries for {self.population} clients: give one each.")
        if self.local.drop_last:
            self.local.counts(np.arange(self.population), self._training.train.sizes, 0)

    def _assemble(self, options: dict[str, Any], where: Path | None) -> None:
        task, method, local, engine = self.task, self.method, self.local, self.settings.engine
        shapes = state_shapes(method, task, local)
        files = where / "clients" if where else None
        self.clients: ClientStore | FileStates
        if engine == "loopback":
            self.clients = FileStates(shapes, files, task.device)
        elif isinstance(self.data, RemoteFederation):  # the server knows only which of the clients' rounds counted
            self.clients = ClientStore(ACKNOWLEDGED, self.population)
        else:
            self.clients = ClientStore(shapes, self.population, task.device, self.settings.state_memory, files)
        self.tables = {
            name: ClientStore({"row": (f.resolve(task.sizes, method), task.dtype, "run")}, self.population, task.device)
            for name, f in method.tables.items()
        }
        values = {"w": task.start.clone()} | ({BUFFERS: task.start_buffers.clone()} if task.averages_buffers else {})
        fresh, alone = functools.partial(task.fresh, self.seed), ""
        if method.serverless:
            alone, values = type(method).__name__, {}
        self.server_draws = ServerDraws(self.seed, task.start, self.data.public)
        nets = {name: net.start for name, net in task.nets.items()}
        self.server = Server(task.layout, self.tables, fresh, self.server_draws, alone, nets, **values)
        mean = float(self._training.train.sizes.mean())
        job = Job(method, task, self._training, local, self.seed, self.clients, mean)
        # a stopwatch must not change a run half-way
        taken = taken_engine(where, task.device.type) if where is not None else None
        cohort = self.sampling.size(self.population)
        self.engine, self._reason = choose_engine(engine, job, cohort, options, self.rounds, taken)

    @property
    def _stores(self) -> dict[str, Any]:
        return {"clients": self.clients, **{f"table-{n}": s for n, s in self.tables.items()}}

    def close(self) -> None:
        self.engine.close()
        for store in self._stores.values():  # of a round that failed; after the engine, whose workers may be staging
            store.discard()
        if self.folder is not None:
            self.folder.close()

    # ---- the rounds

    def go(self, callbacks: Sequence[Callback]) -> None:
        """From the last checkpoint, or from the start, to the last round."""
        if self.folder and self.folder.manifest is not None:
            self.rounds_done = self.folder.load(self.server, self._stores, self.task.device)
            self.server_draws.round = self.rounds_done - 1
            self.history = self.folder.history()
            self.seconds_total = sum(line["seconds"] + line["seconds_evaluation"] for line in self.history)
        else:
            self._setup()
            if self.folder:
                self.folder.save(0, self.server, self._stores)
        if self.rounds_done > self.rounds:
            raise UnalikeError(
                f"The run has done {self.rounds_done} rounds and rounds={self.rounds} were asked for: there is no way "
                "back; choose another folder."
            )
        for callback in callbacks:
            callback.on_start(self)
        silent = Callback.on_reply
        hears = [callback for callback in callbacks if getattr(type(callback), "on_reply", silent) is not silent]
        self._listeners = [functools.partial(callback.on_reply, self) for callback in hears]
        stop = False
        while self.rounds_done < self.rounds and not stop:
            line = self._round(self.rounds_done)
            stop = any([callback.on_round(self, line) for callback in callbacks])
            if self.folder and (stop or self.saved(self.rounds_done)):
                self.folder.save(self.rounds_done, self.server, self._stores)
        for callback in callbacks:
            callback.on_end(self)

    def _setup(self) -> None:
        exchanges = Round(self.engine, self.server, -1)
        self.method.setup(self.server, Cohort(exchanges, np.arange(self.population)))
        exchanges.finish()
        self._commit()
        shipped = self._training.shipped_bytes()
        if exchanges.exchange or shipped:  # kept with the server's state: another process may run the first round
            peer = [exchanges.bytes_peer] if exchanges.bytes_peer else []
            self.server.values[SETUP_BYTES] = [exchanges.bytes_down + shipped, exchanges.bytes_up, *peer]

    def _round(self, t: int) -> dict[str, Any]:
        began, others = time.perf_counter(), self.engine.others_seconds
        ids = draw(self.sampling, self.seed, t, self._training.train.sizes)
        self.server_draws.round = t
        exchanges = Round(self.engine, self.server, t, self._listeners)
        self.method.round(self.server, Cohort(exchanges, ids))
        exchanges.finish()
        self._commit()
        began += self.engine.others_seconds - others
        trained = time.perf_counter() - began
        self.exchanges = exchanges.exchange
        self.rounds_done = t + 1
        line: dict[str, Any] = {
            "round": t + 1,
            "clients": len(ids),
            "train_loss": exchanges.train_loss,
            "bytes_down": exchanges.bytes_down,
            "bytes_up": exchanges.bytes_up,
        }
        if exchanges.bytes_peer:
            line["bytes_peer"] = exchanges.bytes_peer
        if exchanges.lost:
            line["lost"] = exchanges.lost
        if t == 0 and SETUP_BYTES in self.server.values:
            line |= {f"setup_bytes_{way}": count for way, count in self._setup_bytes().items()}
        if self.evaluated(t + 1):
            line |= evaluated(self, t)
        line["seconds"] = round(trained, 6)
        line["seconds_evaluation"] = round(time.perf_counter() - began - trained, 6)
        self.seconds_total += time.perf_counter() - began
        self.history.append(line)
        if self.folder:
            self.folder.log(line)
        return line

    def _setup_bytes(self) -> dict[str, int]:
        """The bytes before round 1: down, up, and between clients where there are any."""
        return dict(zip(WAYS, self.server.values.get(SETUP_BYTES, ()), strict=False))

    def _commit(self) -> None:
        for store in self._stores.values():
            store.commit()

    # ---- what callbacks and reports read

    def evaluated(self, round: int) -> bool:
        """Return whether the models are evaluated after this round (counted from 1)."""
        return round % self.settings.evaluate_every == 0 or round == self.rounds

    def saved(self, round: int) -> bool:
        """Return whether a checkpoint follows this round (counted from 1)."""
        return round % self.settings.checkpoint_every == 0 or round == self.rounds

    @property
    def reason(self) -> str:
        """Which engine runs, and why."""
        return self._reason + self.engine.remark

    def home(self, callback: str) -> RunFolder:
        """Return the run's folder, into which a callback of this name writes."""
        if self.folder is None:
            raise UnalikeError(f"{callback} writes into the run's folder, and this run has none: give folder=...")
        return self.folder

    @property
    def buffers(self) -> Tensor:
        """BatchNorm's statistics as the server has them."""
        return self.server.values.get(BUFFERS, self.task.start_buffers)

    def vectors(self) -> dict[str, Tensor]:
        """Return the method's global models by name; the first is the one that is reported."""
        return global_models(self.method, self.server)[0]

    def bound(self, vector: Tensor) -> BoundModule:
        """Return the module with this vector and the server's statistics, to be called with train=False."""
        self._bound.vector.copy_(vector)
        self._bound.buffers.copy_(self.buffers)
        return self._bound

    def evaluate(self) -> dict[str, Any]:
        """Evaluate the models as they are now: the numbers of a round's line, and `client_values`."""
        return evaluated(self, self.rounds_done - 1)

    def test_scores(self, vector: Tensor) -> dict[str, float | None]:
        """Return the loss and metrics of a vector on the global test set."""
        assert self.data.global_test is not None
        return evaluate_set(self.task, self.bound(vector), self.data.global_test)

    # ---- results

    @property
    def model(self) -> nn.Module:
        """The module with the final global weights (and statistics), ready to be used: `eval()` is set. Of several
        global models, the first."""
        vector = next(iter(self.vectors().values()), None)
        if vector is None:
            name = type(self.method).__name__
            raise UnalikeError(f"{name} has no global model: run.predict(x, client=0) uses a client's own.")
        return self.module_with(vector, self.buffers)

    def module_with(self, vector: Tensor, buffers: Tensor) -> nn.Module:
        """Return a copy of the module with these weights and statistics; `eval()` is set."""
        module = copy.deepcopy(self.task.module)
        tensors = self.task.layout.views(vector)
        tensors |= self.task.buffer_layout.views(buffers) if self.task.buffer_layout.size else {}
        with torch.no_grad():
            for name, value in (*module.named_parameters(), *module.named_buffers()):
                if name in tensors:
                    value.copy_(tensors[name])
        return module.eval()

    def predict(self, x: Any, client: int | str | None = None) -> Prediction | np.ndarray:
        """Predict rows as they were before any preparation: an array, or rows of a table where the data came from one.

        Classes give a `Prediction` (labels, classes, probabilities), a regression its numbers in their own unit.
        client: a client, by number or name, whose own model is used instead of the global one.
        """
        return predictor(self, client).predict(x)

    def save(self, path: str | Path, client: int | str | None = None, source: str | None = None) -> Path:
        """Write the model (or a client's own) with all that it takes to use it as one file, for `ua.load_model` and
        `unalike predict`; source: where a model of one's own is built, to be named when the file is read."""
        return save(predictor(self, client), path, source)

    def to_pandas(self) -> Any:
        """Return the history as a pandas data frame, a row a round."""
        try:
            import pandas
        except ImportError:
            raise UnalikeError("to_pandas needs pandas, which is not installed: pip install pandas.") from None
        return pandas.DataFrame(self.history)

    def __repr__(self) -> str:
        final = self.summary()["final"] or {}
        number = score_in(final, self.numbers)
        parts = [
            type(self.method).__name__,
            f"{len(self.data)} clients" + ("" if self.data.classes is None else f" with {self.data.classes} classes"),
            f"round {self.rounds_done} of {self.rounds}",
            *([f"{_spoken(number)} {final[number.key]:.3f}"] if number else []),
            *([str(self.folder.path)] if self.folder else []),
        ]
        return f"Run({', '.join(parts)})"

    def by_class(self) -> list[dict[str, Any]]:
        """Return a row a class (class, samples, recall, precision, f1): of the global model on the global test set,
        else over all clients' test samples together."""
        return by_class(self)

    def summary(self) -> dict[str, Any]:
        """The final numbers, and those of the round that validation data would have chosen. Never the best round on
        test data."""
        final = next((line for line in reversed(self.history) if self.evaluated(line["round"])), None)
        before = self._setup_bytes()
        sent = {way: before.get(way, 0) + sum(line.get(f"bytes_{way}", 0) for line in self.history) for way in WAYS}
        return {
            "final": final,
            "selected": choose_round(self.history, *scores(self.numbers)),
            "rounds": self.rounds_done,
            **{f"bytes_{way}": count for way, count in sent.items() if count or way != "peer"},
            "seconds": self.seconds_total,
            "engine": self.reason,
        }


def _spoken(number: Number) -> str:
    """A number's words, with the name of its metric."""
    metric = number.metric.replace("_", " ")
    return number.words if metric.lower() in number.words.lower() else f"{metric} {number.words}"


def _check_labels(task: Task, data: Federation) -> None:
    """Classes outside the model's outputs would crash deep inside a loss, or on a GPU kill the process."""
    if data.classes is not None and task.loss is cross_entropy and data.classes > task.outputs:
        raise UnalikeError(
            f"The labels run to {data.classes - 1} and the model has {task.outputs} outputs: it needs at least "
            f"{data.classes}."
        )
