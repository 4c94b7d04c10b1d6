"""`simulate`: rounds of a method on a federation, with evaluation, a run folder and resuming."""

from __future__ import annotations

import dataclasses as dc
import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import unalike
from unalike.callbacks import Callback
from unalike.contract import Method, settings
from unalike.data.federation import Federation, check_seed
from unalike.data.index import Index
from unalike.engines import choose
from unalike.engines.base import BUFFERS, OPTIMIZER, Call, Engine, Job
from unalike.engines.flower import ACKNOWLEDGED
from unalike.engines.loopback import FileStates
from unalike.errors import UnalikeError, unknown
from unalike.exchange import Cohort, RoundContext, Server, message_parts, sizes_of
from unalike.local import LocalTraining, slot_names
from unalike.metrics import evaluate_columns, evaluate_set, spread
from unalike.metrics.lines import choose as choose_round
from unalike.metrics.names import directions, lower_ones, numbers, scores
from unalike.model import Loss, Model
from unalike.personal import scored
from unalike.runs import RunFolder, taken_engine
from unalike.sampling import Uniform, draw, sampling
from unalike.store import ClientStore, Shapes

DTYPES = {"float32": torch.float32, "float64": torch.float64}
DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("highest", "tf32", "bf16")
SETUP_BYTES = "_setup_bytes"  # among the server's values: what went down and up before round 1
EVALUATE_ALL = 2000  # populations up to which every client is evaluated unless asked otherwise


def simulate(
    model: nn.Module,
    federation: Federation,
    method: Method,
    *,
    rounds: int,
    clients_per_round: Any = 1.0,
    local: LocalTraining | None = None,
    loss: Loss | nn.Module | str | None = None,
    metrics: Mapping[str, Loss] | None = None,
    head: str | None = None,
    buffers: str = "average",
    seed: int = 0,
    engine: str = "auto",
    device: str = "auto",
    dtype: str = "float32",
    precision: str = "highest",
    deterministic: bool = False,
    callbacks: Sequence[Callback] = (),
    folder: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: int = 1,
    evaluate_every: int = 1,
    evaluate_clients: str | int = "auto",
    state_memory: int = 2 << 30,
    recipe: dict[str, Any] | None = None,
    **engine_options: Any,
) -> Run:
    """Run `method` for so many rounds and give back the `Run`.

    clients_per_round: a fraction, a count, a list of client lists, or one of `ua.sampling`.
    loss, metrics: functions of (output, y) with one value a sample; default cross-entropy and accuracy. A metric of
      which less is better says so: `metric.higher_is_better = False`.
    buffers: what happens to BatchNorm's statistics: "average", "local" (each client keeps its own) or "freeze".
    engine: "auto", "sequential", "workers", "batched", "loopback" or "ray"; engine options are `workers`,
      `clients_at_once`, `memory` (bytes for a stack of clients) and `compile`; of "ray" also `address` and `inner`.
    precision: "highest", or on a GPU "tf32" or "bf16"; "bf16" also on a CPU that has it (twice as fast on a CNN).
    folder: where the run is written; with resume=True it continues after its last checkpoint.
    evaluate_clients: "auto", "all", "none" or a number of clients (the same ones each time).
    state_memory: bytes of client state kept in memory; beyond it goes to files.
    recipe: the tables of the config file this run comes from, written into its config.toml.
    """
    if not isinstance(method, Method):
        given = getattr(method, "__name__", type(method).__name__)
        raise UnalikeError(f"method must be a method such as ua.FedAvg(); got {given}.")
    if not isinstance(federation, Federation):
        raise UnalikeError(f"The data must be a Federation; got {type(federation).__name__}: use Dataset.split(...).")
    for name, value, low in (
        ("rounds", rounds, 0),
        ("checkpoint_every", checkpoint_every, 1),
        ("evaluate_every", evaluate_every, 1),
    ):
        if type(value) is not int or value < low:
            raise UnalikeError(f"{name} must be a whole number of at least {low}; got {value!r}.")
    check_seed(seed)
    if resume and folder is None:
        raise UnalikeError("resume=True needs the folder of the run to continue: give folder=...")
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    if precision != "highest" and _device(device).type == "cpu" and not (precision == "bf16" and _bf16_on_cpu()):
        raise UnalikeError(f"precision={precision!r} is not for this CPU: use 'highest'.")
    with _numerics(precision, deterministic):
        run = Run(
            Model(model, loss, metrics, head, DTYPES[dtype], _device(device), precision, buffers),
            federation,
            method,
            local or LocalTraining(),
            rounds=rounds,
            clients_per_round=clients_per_round,
            seed=seed,
            engine=engine,
            engine_options=engine_options,
            folder=folder,
            resume=resume,
            checkpoint_every=checkpoint_every,
            evaluate_every=evaluate_every,
            evaluate_clients=evaluate_clients,
            state_memory=state_memory,
            recipe=recipe,
        )
        try:
            run.go(callbacks)
        finally:
            run.close()
    return run


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise unknown("device", name, DEVICES) from None
    if device.type not in DEVICES:
        raise unknown("device", name, DEVICES)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UnalikeError(f"device={name!r} was asked for and this machine has no CUDA device: use 'auto' or 'cpu'.")
    return device


def _bf16_on_cpu() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware; where it does not, it is slower than float32."""
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # a build without oneDNN
        return False


@contextmanager
def _numerics(precision: str, deterministic: bool):
    """Set PyTorch's global switches for the run and put them back."""
    matmul, conv = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    before, search = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = not deterministic
    if deterministic:
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, conv
        torch.backends.cudnn.benchmark = search
        if torch.are_deterministic_algorithms_enabled() != before:  # the call alone imports the compiler: 1.7 s
            torch.use_deterministic_algorithms(before)


class Run:
    """A run in progress or finished.

    model: the module with the global weights; history: one dict a round; numbers: what those dicts hold, by key;
    higher: whether higher is better, by metric; server, clients: their states;
    reason: which engine ran and why; seconds_total.
    """

    def __init__(
        self,
        model: Model,
        federation: Federation,
        method: Method,
        local: LocalTraining,
        *,
        rounds: int,
        clients_per_round: Any,
        seed: int,
        engine: str,
        engine_options: dict[str, Any],
        folder: str | Path | None,
        resume: bool,
        checkpoint_every: int,
        evaluate_every: int,
        evaluate_clients: str | int,
        state_memory: int,
        recipe: dict[str, Any] | None,
    ):
        federation.check()
        self._model, self.method, self.rounds, self.seed = model, method, rounds, seed
        self.local = local
        self.sampling = sampling(clients_per_round)
        self.sampling.check(len(federation))
        self._checkpoint_every, self._evaluate_every = checkpoint_every, evaluate_every
        fingerprint = federation.fingerprint()
        self.data = self._training = federation.to(model.device, model.dtype)
        if getattr(method, "pooled", False):
            self._pool()
        self.population = len(self._training)
        x, y = self.data.train.x[:2], self.data.train.y[:2]
        plain = model.loss is unalike.model.cross_entropy and not y.is_floating_point()
        model.check(x, torch.zeros_like(y) if plain else y)  # a label too large kills a GPU: see next line
        _check_labels(model, self.data)
        self.higher = directions(model.metrics_for(self.data.train.y))
        self.numbers = numbers(self.higher)
        self._check_amounts()
        self._evaluated_clients = self._whom(evaluate_clients)
        self._live = model.live()
        self.folder: RunFolder | None = None
        where = Path(folder) if folder is not None else None
        self._assemble(engine, engine_options, where, state_memory)
        if where is not None:  # last: a mistake in the arguments leaves no folder behind
            config = self._config(fingerprint, engine, engine_options, evaluate_clients)
            try:
                self.folder = RunFolder(where, config, resume, recipe)
            except BaseException:
                self.close()
                raise
            if isinstance(self.clients, FileStates):
                self.clients.clear()
        self.history: list[dict[str, Any]] = []
        self.client_values: dict[str, np.ndarray] = {}
        self.rounds_done = 0
        self.seconds_total = 0.0

    def _pool(self) -> None:
        """Train on one client that holds everybody's data; evaluation still asks each client's own."""
        if not self._shared:
            name = type(self.method).__name__
            raise UnalikeError(f"{name} trains on pooled data: there are no personal models, leave out `personal`.")
        self._training, self.sampling = self.data.pooled(), Uniform(fraction=1.0)
        if self._model.buffer_policy == "local":
            self._model.buffer_policy = "average"  # the one client's own are everybody's

    @property
    def _shared(self) -> bool:
        """Whether every client's own model is the global one."""
        method = type(self.method)
        return method.personal is Method.personal and method.published is Method.published

    def _check_amounts(self) -> None:
        """Lists of work per client have an entry for each, and dropping short batches leaves nobody without any."""
        for name in ("epochs", "steps", "lr"):
            value = getattr(self.local, name)
            if isinstance(value, Sequence | np.ndarray) and len(value) != self.population:
                raise UnalikeError(f"{name} has {len(value)} entries for {self.population} clients: give one each.")
        if self.local.drop_last:
            self.local.counts(np.arange(self.population), self._training.train.sizes, 0)

    def _assemble(self, engine: str, options: dict[str, Any], where: Path | None, memory: int) -> None:
        model, method, local = self._model, self.method, self.local
        shapes = state_shapes(method, model, local)
        files = where / "clients" if where else None
        self.clients: ClientStore | FileStates
        if engine == "loopback":
            self.clients = FileStates(shapes, files, model.device)
        elif isinstance(self.data, Index):  # their state is theirs; the server knows which of their rounds counted
            self.clients = ClientStore(ACKNOWLEDGED, self.population)
        else:
            self.clients = ClientStore(shapes, self.population, model.device, memory, files)
        sizes = sizes_of(model)
        self.tables = {
            name: ClientStore({"row": (f.resolve(sizes, method), model.dtype, "run")}, self.population, model.device)
            for name, f in method.tables.items()
        }
        self.server = Server(model, self.tables, self.seed)
        mean = float(self._training.train.sizes.mean())
        job = Job(method, model, self._training, local, self.seed, self.clients, mean)
        # a stopwatch must not change a run half-way
        taken = taken_engine(where, model.device.type) if where is not None else None
        self.engine, self.reason = choose(engine, job, self.sampling.size(self.population), options, self.rounds, taken)

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
            self.rounds_done = self.folder.load(self.server, self._stores)
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
        stop = False
        while self.rounds_done < self.rounds and not stop:
            line = self._round(self.rounds_done)
            stop = any([callback.on_round(self, line) for callback in callbacks])
            if self.folder and (
                self.rounds_done % self._checkpoint_every == 0 or stop or self.rounds_done == self.rounds
            ):
                self.folder.save(self.rounds_done, self.server, self._stores)
        for callback in callbacks:
            callback.on_end(self)

    def _setup(self) -> None:
        context = RoundContext(self.engine, self.method, self.server, self.population, -1)
        self.method.setup(self.server, Cohort(context, np.arange(self.population)))
        context.finish()
        self._commit()
        if context.exchange:  # kept with the server's state: the first round may be run by another process
            self.server._values[SETUP_BYTES] = [context.bytes_down, context.bytes_up]

    def _round(self, t: int) -> dict[str, Any]:
        began, others = time.perf_counter(), self.engine.others_seconds
        ids = draw(self.sampling, self.seed, t, self._training.train.sizes)
        context = RoundContext(self.engine, self.method, self.server, self.population, t)
        self.method.round(self.server, Cohort(context, ids))
        context.finish()
        self._commit()
        began += self.engine.others_seconds - others
        trained = time.perf_counter() - began
        self.exchanges = context.exchange
        losses = np.concatenate(context.losses) if context.losses else np.empty(0)
        losses = losses[~np.isnan(losses)]
        self.rounds_done = t + 1
        line: dict[str, Any] = {
            "round": t + 1,
            "clients": len(ids),
            "train_loss": float(losses.mean()) if len(losses) else None,
            "bytes_down": context.bytes_down,
            "bytes_up": context.bytes_up,
        }
        if context.lost:
            line["lost"] = context.lost
        if t == 0 and SETUP_BYTES in self.server._values:
            line["setup_bytes_down"], line["setup_bytes_up"] = self.server._values[SETUP_BYTES]
        if self.evaluated(t + 1):
            line |= self._evaluate(t)
        line["seconds"] = round(trained, 6)
        line["seconds_evaluation"] = round(time.perf_counter() - began - trained, 6)
        self.seconds_total += time.perf_counter() - began
        self.history.append(line)
        if self.folder:
            self.folder.log(line)
        return line

    def _commit(self) -> None:
        for store in self._stores.values():
            store.commit()

    # ---- evaluation

    def evaluated(self, round: int) -> bool:
        """Whether the models are evaluated after this round (counted from 1)."""
        return round % self._evaluate_every == 0 or round == self.rounds

    def _whom(self, asked: str | int) -> np.ndarray:
        """The clients whose own data the model is evaluated on: the same ones each time."""
        if asked == "auto":
            asked = "all" if len(self.data) <= EVALUATE_ALL else EVALUATE_ALL
        if asked == "none":
            return np.empty(0, dtype=np.int64)
        if asked == "all":
            return np.arange(len(self.data))
        if type(asked) is not int or asked < 1:
            raise UnalikeError(f"evaluate_clients must be 'auto', 'all', 'none' or a whole number; got {asked!r}.")
        rng = unalike.random.generator(self.seed, "evaluated clients")
        return np.sort(rng.choice(len(self.data), min(asked, len(self.data)), replace=False))

    def _evaluate(self, t: int) -> dict[str, Any]:
        line: dict[str, Any] = self._test() if self.data.global_test and len(self.data.global_test[0]) else {}
        for split in ("test", "validation"):
            columns = getattr(self.data, split)
            ids = self._evaluated_clients
            if columns is None or not len(ids := ids[columns.sizes[ids] > 0]):
                continue
            ids, values = self._client_values(split, ids, t)
            if not len(ids):
                continue
            if split == "validation":
                weights = columns.sizes[ids]
                line |= {f"validation_{k}": float((v * weights).sum() / weights.sum()) for k, v in values.items()}
                continue
            self.client_values = {"client": ids, **values}
            line["clients_loss"] = float(values["loss"].mean())
            for name, v in values.items():
                if name != "loss":
                    each = spread(v, higher=self.higher[name])
                    line |= {f"clients_{name}_{key}": number for key, number in each.items()}
        return line

    def _models(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """The method's global models, and the share of each in the reported numbers where it weighs them."""
        models = self.method.models(self.server)
        if not any(isinstance(value, tuple) for value in models.values()):
            return models, {}
        weights = {name: float(value[1]) for name, value in models.items() if isinstance(value, tuple)}
        total = sum(weights.values())
        if len(weights) < len(models) or min(weights.values()) < 0 or not 0 < total < float("inf"):
            raise UnalikeError(
                f"{type(self.method).__name__}.models gives the weights {weights} for {len(models)} models: all must "
                "have one of 0 or more, with a positive sum, or none."
            )
        return {name: value[0] for name, value in models.items()}, {n: w / total for n, w in weights.items()}

    def _test(self) -> dict[str, float]:
        """The global models on the global test set."""
        assert self.data.global_test is not None
        models, shares = self._models()
        buffers = self.server._values.get(BUFFERS, self._model.start_buffers)
        line: dict[str, float] = {}
        for k, (name, vector) in enumerate(models.items()):
            scores = evaluate_set(self._model, self._live, vector, buffers, self.data.global_test)
            for key, value in scores.items():
                if shares:
                    line[f"test_{key}"] = line.get(f"test_{key}", 0.0) + shares[name] * value
                line[f"test_{key}" if k == 0 and not shares else f"test_{name}_{key}"] = value
        return line

    def _client_values(self, split: str, ids: np.ndarray, t: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Loss and metrics of each client's own model on its own data; over a network, of those that answer."""
        model, method = self._model, self.method
        columns = getattr(self.data, split)
        if self._shared and model.buffer_policy != "local" and not isinstance(self.data, Index):
            buffers = self.server._values.get(BUFFERS, model.start_buffers)
            return ids, evaluate_columns(model, self._live, self.server.w, buffers, columns, ids)
        metrics = model.metrics_for(columns.y)
        evaluate = scored(method, metrics, split)
        shared, rows = message_parts(method.published(self.server), self.population, self.server, model)
        rows = {name: values[torch.from_numpy(ids).to(model.device)] for name, values in rows.items()}
        runner = self.engine.evaluator()
        outcomes = list(runner.call(Call(evaluate, shared, rows, t, 1 << 20), ids))
        self.clients.discard()  # a personal model that is trained here leaves nothing behind
        if not outcomes:
            return ids[:0], {}
        values = {n: torch.cat([o.up[n] for o in outcomes]).double().cpu().numpy() for n in ("loss", *metrics)}
        return np.concatenate([o.ids for o in outcomes]), values

    # ---- results

    @property
    def model(self) -> nn.Module:
        """The module with the final global weights (and statistics), ready to be used: `eval()` is set. Of several
        global models, the first."""
        import copy

        module = copy.deepcopy(self._model.module)
        vector = next(iter(self._models()[0].values()), None)
        if vector is None:
            raise UnalikeError(f"{type(self.method).__name__} has no global model: see run.clients for their own.")
        tensors = self._model.layout.views(vector)
        buffers = self.server._values.get(BUFFERS, self._model.start_buffers)
        tensors |= self._model.buffer_layout.views(buffers) if self._model.buffer_layout.size else {}
        with torch.no_grad():
            for name, value in (*module.named_parameters(), *module.named_buffers()):
                if name in tensors:
                    value.copy_(tensors[name])
        return module.eval()

    def summary(self) -> dict[str, Any]:
        """The final numbers, and those of the round that validation data would have chosen. Never the best round on
        test data."""
        final = next((line for line in reversed(self.history) if self.evaluated(line["round"])), None)
        setup_down, setup_up = self.server._values.get(SETUP_BYTES, (0, 0))
        return {
            "final": final,
            "selected": choose_round(self.history, *scores(self.numbers)),
            "rounds": self.rounds_done,
            "bytes_down": setup_down + sum(line["bytes_down"] for line in self.history),
            "bytes_up": setup_up + sum(line["bytes_up"] for line in self.history),
            "seconds": self.seconds_total,
            "engine": self.reason,
        }

    def _config(
        self, fingerprint: str, engine: str, engine_options: dict[str, Any], evaluate_clients: str | int
    ) -> dict[str, Any]:
        """All that decides what the run computes."""
        model = self._model
        start = hashlib.sha256(model.start.cpu().numpy().tobytes() + model.start_buffers.cpu().numpy().tobytes())
        participation = {"kind": type(self.sampling).__name__, **dc.asdict(self.sampling)}
        return {
            "unalike": {"version": unalike.__version__},
            "run": {
                "rounds": self.rounds,
                "seed": self.seed,
                "engine": engine,
                "device": model.device.type,
                "dtype": str(model.dtype).removeprefix("torch."),
                "precision": model.precision,
                "deterministic": torch.are_deterministic_algorithms_enabled(),
                "checkpoint_every": self._checkpoint_every,
                "evaluate_every": self._evaluate_every,
                "evaluate_clients": evaluate_clients,
            },
            "engine": {
                **_plain({k: v for k, v in engine_options.items() if isinstance(v, str | int | float)}),
                "took": self.engine.name,
                "compiled": bool(getattr(self.engine, "compile", False)),
            },
            "participation": participation,
            "method": _plain(settings(self.method)),
            "local": {f.name: _plain(getattr(self.local, f.name)) for f in dc.fields(self.local)},
            "model": {
                "class": type(model.module).__qualname__,
                "parameters": model.layout.size,
                "head": model.head,
                "buffers": model.buffer_policy,
                "loss": getattr(model.loss, "__name__", type(model.loss).__name__),
                "metrics": list(self.higher),
                "lower_is_better": lower_ones(self.higher),
                "fingerprint": start.hexdigest()[:16],
            },
            "data": {
                "clients": len(self.data),
                "samples": int(self.data.train.sizes.sum()),
                "fingerprint": fingerprint,
            },
        }


def _plain(value: Any) -> Any:
    """A setting as a config holds it: a function by its name, an array as a list."""
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if callable(value):
        return f"function {getattr(value, '__qualname__', type(value).__name__)}"
    return value.tolist() if isinstance(value, np.ndarray | Tensor) else value


def _check_labels(model: Model, data: Federation) -> None:
    """Classes outside the model's outputs would crash deep inside a loss, or on a GPU kill the process."""
    if data.classes is not None and model.loss is unalike.model.cross_entropy and data.classes > model.outputs:
        raise UnalikeError(
            f"The labels run to {data.classes - 1} and the model has {model.outputs} outputs: it needs at least "
            f"{data.classes}."
        )


def state_shapes(method: Method, model: Model, local: LocalTraining) -> Shapes:
    """All that a client keeps: the method's fields, a kept optimizer, its own buffers."""
    sizes = sizes_of(model)
    shapes: Shapes = {n: (f.resolve(sizes, method), model.dtype, f.life) for n, f in method.keeps.items()}
    if local.keep_optimizer:
        for name, shape in slot_names(local).items():
            shapes[OPTIMIZER + name] = (
                (model.layout.size,) if shape == "model" else (1,),
                model.dtype,
                "run",
            )
    if model.buffer_layout.size and model.buffer_policy == "local":
        shapes[BUFFERS] = ((model.buffer_layout.size,), model.dtype, "run")
    return shapes


__all__ = ["Engine", "Run", "simulate"]
