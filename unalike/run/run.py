"""A run: rounds of a method on a federation, with evaluation, a run folder and resuming."""

from __future__ import annotations

import copy
import dataclasses as dc
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unalike.channel import Channel, Sight, parse, who_sees
from unalike.channel.channel import shared_draws
from unalike.channel.summing import Summing
from unalike.client import ClientStore, FileStates, Job, data_sizes, state_shapes
from unalike.client.samples import NO_PUBLIC
from unalike.client.state_on_disk import ChannelStates
from unalike.contract import BUFFERS, Architectures, Cohort, Layouts, Method, Outcome, Server, ServerDraws, Vectors
from unalike.contract.architectures import assigned_names
from unalike.contract.method import check_serverless
from unalike.data import Federation
from unalike.data.drifting import Present
from unalike.draws import new_secret
from unalike.engines import choose_engine
from unalike.engines.engine import Engine
from unalike.engines.families import Families, StatesByArchitecture
from unalike.engines.flower import ACKNOWLEDGED
from unalike.errors import Diverged, UnalikeError, first_line
from unalike.messages.check import check_allowed, reply_fields
from unalike.metrics import evaluate_set
from unalike.metrics.lines import choose as choose_round
from unalike.metrics.names import Number, directions, numbers, score_in, scores
from unalike.nn.layers import copied
from unalike.nn.task import BoundModule, Task, cross_entropy
from unalike.run.arrivals import Arrivals, check_together
from unalike.run.callbacks import Callback
from unalike.run.clock import Clock
from unalike.run.clusters import cluster_line, clusters
from unalike.run.deploy import save
from unalike.run.evaluate import by_class, choose_clients, evaluated, global_models, shares_one_model
from unalike.run.facts import facts, usual_settings
from unalike.run.folder import RunFolder, taken_engine
from unalike.run.ledger import Ledger
from unalike.run.newcomers import Newcomers, divide
from unalike.run.predict import Prediction, predictor
from unalike.run.round import Round
from unalike.run.sampling import Bernoulli, Uniform, draw, sampling
from unalike.run.server_work import ServerWork
from unalike.run.settings import RunSettings
from unalike.run.spending import LASTING, Exhausted, SampleSpending, Spending, chosen_noise, drawing
from unalike.training.settings import LocalTraining
from unalike.trees.fit import column_names
from unalike.trees.forest import boosted
from unalike.trees.model import Boosted

# file in the run's folder: how features were prepared
PREPARATION = "preparation.json"
# key in the server's values: bytes down, up and between clients before round 1
SETUP_BYTES = "_setup_bytes"
# key in the server's values, stored only in its checkpoint: the secret from which cohorts are drawn
SECRET = "_secret"
WAYS = ("down", "up", "peer")  # directions of traffic


class Run:
    """A run in progress or finished.

    model: the module with the global weights; history: one dict per round; numbers: the descriptions of their values,
    by key; higher: whether higher is better, by metric; server, clients: their states; task: the module with loss,
    metrics and layout; reason: which engine ran and why; seconds_total.

    Where clients have different networks: tasks and models by architecture; architectures: which client has which; task
    is the first. parts: the data of each architecture, which may be the same for all. newcomers: the clients that take
    no part in training, if any.
    """

    rounds_done: int

    def __init__(
        self,
        tasks: dict[str, Task],
        federation: Federation,
        method: Method,
        local: LocalTraining,
        settings: RunSettings,
        engine_options: dict[str, Any],
        recipe: dict[str, Any] | None,
        clock: Clock | None = None,
    ):
        federation.check(gaps=method.network == "forest")  # trees learn where missing values go
        self.tasks, self.task = tasks, (task := next(iter(tasks.values())))
        self.method, self.local, self.settings = method, local, settings
        for own in tasks.values():
            own.buffer_policy = method.buffers or own.buffer_policy
        self.rounds, self.seed = settings.rounds, settings.seed
        fingerprint = federation.fingerprint()
        if settings.new_clients and len(tasks) > 1:
            raise UnalikeError("new_clients: clients have different networks, and a newcomer has none.")
        federation, newcomers = divide(federation, settings)
        self.sampling = sampling(settings.clients_per_round)
        self.sampling.check(len(federation))
        self._present = None if federation.drift is None else Present(federation, task.device, task.dtype)
        here = federation.to(task.device, task.dtype) if self._present is None else self._present.data
        self.data = self._training = here
        self.parts: dict[str, Federation] = getattr(self.data, "parts", dict.fromkeys(tasks, self.data))
        if getattr(method, "pooled", False):
            self._pool()
        check_serverless(method)
        check_allowed(method, settings.allow_samples, "run")
        if method.needs_public and not federation.public_rows:
            raise UnalikeError(NO_PUBLIC)
        for own in tasks.values():
            if method.serverless and own.buffer_policy == "average":
                # without a server there is nobody to average statistics
                own.buffer_policy = "local"
        self.population = len(self._training)
        for name, own in tasks.items():
            self._try(own, self.parts[name] if len(tasks) > 1 else self._training)
        self.architectures = self._find_architectures()
        self.channel = self._find_channel(clock)
        self._settle_sampling()
        self.arrivals = Arrivals(self, clock, self._training, drifts=self._present is not None)
        self.higher = directions(task.metrics_for(self.data.train.y))
        self.numbers = numbers(self.higher)
        self._check_amounts()
        hidden = self.hidden and self.data.remote  # then clients' scores are hidden too
        # clients under way are busy with their work: nobody waits for their scores
        busy = bool(self.arrivals.arriving) and self.data.remote
        self.evaluated_clients = choose_clients(settings.evaluate_clients, len(self.data), self.seed, hidden or busy)
        self._bound = {name: own.live() for name, own in tasks.items()}
        self.folder: RunFolder | None = None
        where = Path(settings.folder) if settings.folder is not None else None
        self._assemble(engine_options, where)
        self.arrivals.begin(self.engine)
        self.newcomers = None if newcomers is None else Newcomers(self, newcomers)
        # last, so that a mistake in the arguments leaves no folder behind
        if where is not None:
            config = facts(self, fingerprint, engine_options)
            try:
                kept = settings.keep_checkpoints, settings.from_round
                self.folder = RunFolder(where, config, settings.resume, _again(recipe), usual_settings(method), *kept)
            except BaseException:
                self.close()
                raise
            for store in self._stores.values():
                if isinstance(store, FileStates):
                    store.clear()
            if self.data.preparation is not None:
                self.folder.keep(PREPARATION, self._features())
        self.history: list[dict[str, Any]] = []
        self.client_values: dict[str, np.ndarray] = {}
        self.client_means: dict[str, Tensor] = {}
        # of the evaluated clients, if the method has clusters
        self.clusters: np.ndarray | None = None
        self.rounds_done = 0
        # the round at which the run ended early, because a further one would spend too much privacy
        self._last = 0
        self._notes: list[str] = [] if self.spending is None else self.spending.notes(self.population)
        # why the run ended early, if its privacy was spent
        self.ended = ""
        self.seconds_total = 0.0
        self._listeners: list[Callable[[Outcome], None]] = []

    def _features(self) -> dict[str, Any]:
        """Return how features were prepared and what they are; a user of the model must prepare rows in the same
        way."""
        data = self.data
        plain = {
            name: value and value.plain() for name, value in data.facts.items() if name in ("schema", "preparation")
        }
        return {**plain, "label_names": data.label_names}

    def _pool(self) -> None:
        """Train on one client that holds all clients' data; evaluation still uses each client's own data."""
        if len(self.tasks) > 1:
            raise UnalikeError(
                f"{type(self.method).__name__} trains one network on pooled data: give one network, or leave "
                "this method out (unalike compare --no-references)."
            )
        if not shares_one_model(self.method):
            name = type(self.method).__name__
            raise UnalikeError(f"{name} trains on pooled data: there are no personal models, leave out `personal`.")
        self._training, self.sampling = self.data.pooled(), Uniform(fraction=1.0)
        if self.task.buffer_policy == "local":
            # the one client's statistics are the global ones
            self.task.buffer_policy = "average"

    def _check_amounts(self) -> None:
        """Check that per-client lists have one entry per client, that a round can have as many clients as hidden sums
        need, and that `drop_last` leaves every client at least one batch."""
        for name in ("epochs", "steps", "lr"):
            value = getattr(self.local, name)
            if isinstance(value, Sequence | np.ndarray) and len(value) != self.population:
                raise UnalikeError(f"{name} has {len(value)} entries for {self.population} clients: give one each.")
        self.method.check_clients(self.population)
        if self.channel is not None and self.channel.hides:
            whole = isinstance(self.sampling, Bernoulli)  # whose rounds may have everybody
            self.channel.check_clients(self.population if whole else self.sampling.size(self.population))
            if self.data.remote:
                self.local.check_alike()
        if self.local.drop_last:
            self.local.counts(np.arange(self.population), self._training.train.sizes, 0)

    def _try(self, task: Task, data: Federation) -> None:
        """Try the model on two samples of its data, and build the method's further networks."""
        x, y = data.train.x[:2], data.train.y[:2]
        plain = task.loss is cross_entropy and not y.is_floating_point()
        # a label that is too large would crash a GPU: see `_check_labels`
        task.check(x, torch.zeros_like(y) if plain else y, **data_sizes(data))
        task.take_nets(self.method.nets, self.seed)
        _check_labels(task, data)

    def _find_architectures(self) -> Architectures | None:
        """Return which client has which network, checked with the method; None if there is only one network."""
        assigned = self.settings.architecture
        heads = {name: task.layout.head_shapes for name, task in self.tasks.items()}
        sizes = {name: task.sizes for name, task in self.tasks.items()}
        if len(self.tasks) == 1:
            if assigned is not None:
                Architectures(assigned, self.population, sizes, heads)  # only for its checks
            return None
        joined = getattr(self.data, "architecture", None)
        if joined is not None and assigned is not None and assigned_names(assigned, self.population) != joined:
            raise UnalikeError(
                "Joined federations say themselves which client has which network: leave out architecture."
            )
        if joined is None and assigned is None:
            names = ", ".join(map(repr, self.tasks))
            raise UnalikeError(
                f"There are {len(self.tasks)} networks: say which client has which, architecture=[...] with {names}, "
                "one name per client."
            )
        given = assigned if joined is None else joined
        found = Architectures(given, self.population, sizes, heads)  # type: ignore[arg-type]
        found.check(self.method)
        return found

    def _find_channel(self, clock: Clock | None) -> Channel | None:
        """Return the channel that replies pass through, checked with the method and the clock; None if there is
        none."""
        stages = parse(self.settings.channel)
        if stages and self.architectures is not None:
            raise UnalikeError("channel: clients have different networks; a channel needs one for all.")
        channel = Channel(stages, self.method, self.task) if stages else None
        if channel is not None and (channel.private or channel.hides):
            # before it is asked how cohorts are drawn: no way of drawing would help
            check_together(self.method, self.settings, clock)
        if channel is None or not channel.private:
            if self.settings.epsilon is not None or self.settings.max_epsilon is not None:
                raise UnalikeError("epsilon is spent by noise, and there is none: channel='clip:1.0,noise:auto'.")
            return channel
        chosen = chosen_noise(stages, self.settings, drawing(channel, self.sampling, self.population))
        return Channel(chosen, self.method, self.task)

    def who_sees(self, real: bool | None = None) -> list[Sight]:
        """Return who sees what in this run: rows for the server, other clients, the wire and the final model. real:
        whether the run is between machines; needed where a simulation stands in for such a run."""
        stages = () if self.channel is None else self.channel.stages
        real = self.data.remote if real is None else real
        judged = choose_clients(self.settings.evaluate_clients, len(self.data), self.seed, self.hidden and real)
        rows = who_sees(
            self.method,
            stages,
            real=real,
            common=bool(self.vectors()),
            statistics=any(task.averages_buffers for task in self.tasks.values()),
            judged=len(judged) > 0 and not {"test", "validation"}.isdisjoint(self.data.splits),
            samples=bool(self.local.sample_clip is not None and self.local.sample_noise),
            reply=self._reply_bytes(),
        )
        if self.channel is not None and self.channel.hides:
            rows.append(Sight("together", "the server and clients", self.channel.hiding.promise(self._mean_cohort())))
        return rows

    def _mean_cohort(self) -> int:
        """Return the mean number of clients in a sum, over all rounds."""
        least = 0 if self.channel is None else self.channel.hiding.least
        return max(least, round(self.sampling.mean(self.population)))

    def _reply_bytes(self) -> tuple[int, int] | None:
        """Return the bytes of a reply with all of the method's fields, without the channel and with it."""
        if self.channel is None:
            return None
        whole = sum(form.bytes for form in self.channel.plain([*self.channel.sizes]).values())
        if self.channel.hides:
            return whole, self._summed_bytes(self.channel)
        return whole, whole - self.channel.saved([*self.channel.sizes])

    def _summed_bytes(self, channel: Channel) -> int:
        """Return the bytes that one client sends for secure sums of all of the method's fields, in a cohort of mean
        size."""
        fields = reply_fields(self.method, self.task)
        common, told = shared_draws(self.seed, 0, 0), channel.told({})
        summing = Summing(channel, fields, self.method, common, told, self._mean_cohort())
        shapes = {name: f.resolve(self.task.sizes, self.method) for name, f in fields.items() if name in channel.sizes}
        return summing.bytes(summing.slots({name: torch.empty(shape) for name, shape in shapes.items()}))

    def _settle_sampling(self) -> None:
        """Allow empty rounds under a channel that protects clients, because its privacy bounds count them; check that
        the run can have them."""
        if self.private and isinstance(self.sampling, Bernoulli):
            self.sampling = dc.replace(self.sampling, empty=True)
        if getattr(self.sampling, "empty", False) and self.architectures is not None:
            raise UnalikeError("Bernoulli(empty=True): clients have different networks; empty rounds need one for all.")

    @property
    def private(self) -> bool:
        """Return whether the channel's noise bounds what can be learnt about a client."""
        return self.channel is not None and self.channel.private

    @property
    def hidden(self) -> bool:
        """Return whether the channel hides what single clients send."""
        return self.channel is not None and self.channel.hidden

    @property
    def secretive(self) -> bool:
        """Return whether cohorts and the server's noise must be secret. Clients know the run's seed, so this is so in a
        real federation whose channel protects."""
        return self.private and self.data.remote

    def cohort(self, t: int) -> np.ndarray:
        """Return the clients of round t (from 0), in ascending order."""
        seed = bytes.fromhex(self.server.values[SECRET]) if self.secretive else self.seed
        if self.arrivals.devices is not None:
            return self.arrivals.cohort(t)
        return draw(self.sampling, seed, t, self._training.train.sizes)

    def _assemble(self, options: dict[str, Any], where: Path | None) -> None:
        task, method = self.task, self.method
        own = {name: self._store(name, where / "clients" if where else None) for name in self.tasks}
        self.clients: ClientStore | FileStates | StatesByArchitecture = next(iter(own.values()))
        self._own_stores = {"clients": self.clients}
        if self.data.remote:
            own = dict.fromkeys(own, self.clients)  # one store for all clients
        elif self.architectures is not None:
            self.clients = StatesByArchitecture(own, self.architectures)
            self._own_stores = {f"clients-{name}": store for name, store in own.items()}
        self.tables = {
            name: ClientStore({"row": (f.resolve(task.sizes, method), task.dtype, "run")}, self.population, task.device)
            for name, f in method.tables.items()
        }
        self._channel_store: ClientStore | ChannelStates | None = None
        if isinstance(self.clients, FileStates):
            self._channel_store = self.clients.channel
        elif self.channel is not None and self.channel.shapes and not self.data.remote:
            memory = self.settings.state_memory
            folder = where / "channel" if where else None
            self._channel_store = ClientStore(self.channel.shapes, self.population, task.device, memory, folder)
        self.server = self._new_server()
        self.spending: Spending | None = None
        if self.channel is not None and self.channel.private:
            q = drawing(self.channel, self.sampling, self.population)
            expected = self.sampling.mean(self.population)
            self.spending = Spending(self.channel, self.settings, q, self.server.values, expected)
        self.sample_spending: SampleSpending | None = None
        if self.local.sample_clip is not None:
            self.sample_spending = SampleSpending(self.local, self.tasks.values(), self.settings, self.server.values)
        found = {name: self._engine(name, own[name], options, where) for name in self.tasks}
        (self.engine, self._reason), *_ = found.values()
        if self.architectures is not None:
            self.engine = Families({name: engine for name, (engine, _) in found.items()}, self.architectures)
            self._reason = _reasons({name: reason for name, (_, reason) in found.items()})

    def _store(self, name: str, files: Path | None) -> ClientStore | FileStates:
        """Return the store for the states of a network's clients."""
        task, several = self.tasks[name], self.architectures is not None
        shapes = state_shapes(self.method, task, self.local)
        files = files / name if files is not None and several else files
        if self.settings.engine == "loopback":
            return FileStates(shapes, files, task.device, self.channel.shapes if self.channel else None)
        # the server only records which of the clients' rounds counted
        if self.data.remote:
            return ClientStore(ACKNOWLEDGED, self.population)
        memory = self.settings.state_memory // len(self.tasks)
        return ClientStore(shapes, self.population, task.device, memory, files)

    def _new_server(self) -> Server:
        task, averaged = self.task, any(task.averages_buffers for task in self.tasks.values())
        nets = {name: net.start for name, net in task.nets.items()}
        # with several networks, row i of each public set is the same sample
        public = next(iter(self.parts.values())).public
        self.server_draws = ServerDraws(self.seed, task.start, public)
        self.server_work = ServerWork(self.method, self.tasks, self.parts, self.seed)
        alone = type(self.method).__name__ if self.method.serverless else ""
        if self.architectures is None:
            values: dict[str, Any] = {"w": task.start.clone()}
            values |= {BUFFERS: task.start_buffers.clone()} if averaged else {}
            fresh: Any = functools.partial(task.fresh, self.seed)
            given: Any = (task.layout, self.tables, fresh, self.server_draws, alone, nets, self.server_work)
            return Server(*given, **({} if alone else values))
        tasks = self.tasks.items()
        values = {"w": Vectors({name: own.start.clone() for name, own in tasks})}
        values |= {BUFFERS: Vectors({name: own.start_buffers.clone() for name, own in tasks})} if averaged else {}
        layouts = Layouts({name: own.layout for name, own in tasks})
        fresh = lambda k: Vectors({n: t.fresh(self.seed, k) for n, t in tasks})  # noqa: E731
        given = (layouts, self.tables, fresh, self.server_draws, alone, nets, self.server_work)
        return Server(*given, **({} if alone else values))

    def _engine(self, name: str, states: Any, options: dict[str, Any], where: Path | None) -> tuple[Engine, str]:
        """Return the engine for a network's clients, and the reason for the choice."""
        task, cohort = self.tasks[name], self.sampling.size(self.population)
        data = self._training if len(self.tasks) == 1 else self.parts[name]
        sizes = self._training.train.sizes
        mean = float((sizes if self.architectures is None else sizes[self.architectures.clients(name)]).mean())
        drifts = self._present is not None
        local = self.arrivals.local
        job = Job(self.method, task, data, local, self.seed, states, mean, drifts=drifts, channel=self.channel)
        # the engine is not chosen again half-way by measured times
        several = self.architectures is not None
        taken = taken_engine(where, task.device.type, name if several else None) if where is not None else None
        # each network has its own stacks: they are not shared with other runs
        if self.architectures is not None:
            options = {key: value for key, value in options.items() if key != "member"}
            options |= {"turns": len(self.tasks)} if self.settings.engine == "ray" else {}
            cohort = max(1, round(cohort * self.architectures.shares[name]))
        return choose_engine(self.settings.engine, job, cohort, options, self.rounds, taken)

    @property
    def _stores(self) -> dict[str, Any]:
        channel = {} if self._channel_store is None else {"channel": self._channel_store}
        return {**self._own_stores, **{f"table-{n}": s for n, s in self.tables.items()}, **channel}

    def close(self) -> None:
        self.engine.close()
        if self.newcomers is not None:
            self.newcomers.close()
        # state of a round that failed; after the engine, whose workers may still be writing
        for store in self._stores.values():
            store.discard()
        if self.folder is not None:
            self.folder.close()

    # ---- the rounds

    def go(self, callbacks: Sequence[Callback]) -> None:
        """Run from the last checkpoint, or from the start, to the last round."""
        if self.folder and self.folder.manifest is not None:
            self.rounds_done = self.folder.load(self.server, self._stores, self.task.device)
            self.arrivals.restore(self.server.values)
            self._keep_ledger()
            self.server_draws.round = self.server_work.round = self.rounds_done - 1
            self._enter(max(1, self.rounds_done))
            self.history = self.folder.history()
            self.seconds_total = sum(line["seconds"] + line["seconds_evaluation"] for line in self.history)
        else:
            self._keep_ledger()
            self._setup()
            self._save()
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
        stop = self._used_up()
        while self.rounds_done < self.rounds and not stop:
            line = self._affordable_round(self.rounds_done)
            stop = line is None or any([callback.on_round(self, line) for callback in callbacks]) or self._used_up()
            if stop or self.saved(self.rounds_done):
                self._save()
        for callback in callbacks:
            callback.on_end(self)

    def _save(self) -> None:
        """Write a checkpoint, where the run has a folder."""
        if self.folder:
            with self.arrivals.kept_in(self.server.values):
                self.folder.save(self.rounds_done, self.server, self._stores)

    def _keep_ledger(self) -> None:
        """Keep a ledger on disk of what the noise spends, if clients are real and a crashed run may be resumed. A
        simulation needs none: a repeated round draws the same noise."""
        if self.spending is not None:
            if self.secretive and self.folder is not None and self.spending.keep(Ledger(self.folder)):
                self.server.values[SECRET] = new_secret().hex()  # repeated rounds get newly drawn clients
            self.spending.stay_within(self.rounds_done, self.rounds)

    def _affordable_round(self, t: int) -> dict[str, Any] | None:
        """Return a round's line; None if one of its exchanges would spend too much privacy. Then the state is as before
        the round, except for the record of what was spent."""
        if self.spending is None or self.spending.most is None:
            return self._round(t)
        before = copy.deepcopy(self.server.values)
        try:
            return self._round(t)
        except Exhausted as end:
            spent = {name: value for name, value in self.server.values.items() if name in LASTING}
            self.server.values.clear()
            self.server.values.update(before, **spent)
            for store in self._stores.values():
                store.discard()
            if self.secretive and self.spending.begun:
                self.server.values[SECRET] = new_secret().hex()  # the round may be repeated, with newly drawn clients
            self._enter(max(1, t))
            self._end(str(end))
            return None

    def _end(self, why: str) -> None:
        """Record why the run ends before its last round."""
        if not self.ended:
            self.ended = why
            self._notes.append(why)

    def _setup(self) -> None:
        if self.secretive:
            self.server.values[SECRET] = new_secret().hex()
        through = self.channel, self._channel_store, None, self.secretive, False, self.spending
        exchanges = Round(self.engine, self.server, -1, (), *through)
        self.server_work.buffers = exchanges.statistics
        self.method.setup(self.server, Cohort(exchanges, np.arange(self.population)))
        exchanges.finish()
        if self.sample_spending is not None and exchanges.passes is not None and exchanges.passes.any():
            self.sample_spending.add(exchanges.passes)
        self._commit()
        shipped = self._training.shipped_bytes()
        # kept with the server's state: another process may run the first round
        if exchanges.exchange or shipped:
            peer = [exchanges.bytes_peer] if exchanges.bytes_peer else []
            self.server.values[SETUP_BYTES] = [exchanges.bytes_down + shipped, exchanges.bytes_up, *peer]

    def _round(self, t: int) -> dict[str, Any]:
        began, others = time.perf_counter(), self.engine.others_seconds
        self._enter(t + 1)
        arriving = self.arrivals.arriving
        ids = np.empty(0, dtype=np.int64) if arriving else self.cohort(t)
        self.server_draws.round = self.server_work.round = t
        expected = self.sampling.mean(self.population)
        empty = not len(ids) and not arriving
        through = self.channel, self._channel_store, expected, self.secretive, empty, self.spending
        exchanges = Round(self.engine, self.server, t, self._listeners, *through, **self.arrivals.of_round(t))
        self.server_work.buffers = exchanges.statistics
        drawn = not isinstance(self.sampling, Uniform) or len(ids) < self.population
        self._run_round(Cohort(exchanges, ids, drawn, of_round=True, arriving=arriving), empty)
        exchanges.finish()
        self.arrivals.end(exchanges)
        if self.data.remote:
            self._check_finite(t)
        if self.spending is not None:
            self.spending.end()
        if self.sample_spending is not None and exchanges.passes is not None:
            self.sample_spending.add(exchanges.passes)
        self._commit()
        began += self.engine.others_seconds - others
        trained = time.perf_counter() - began
        self.exchanges = exchanges.exchange
        self.rounds_done = t + 1
        line: dict[str, Any] = {
            "round": t + 1,
            "clients": len(exchanges.arrivals) if arriving else len(ids),
            "train_loss": None if self.private else exchanges.train_loss,
            "bytes_down": exchanges.bytes_down,
            "bytes_up": exchanges.bytes_up,
            "batches": exchanges.batches,
        }
        if self.channel is not None:
            line["bytes_up_plain"] = exchanges.bytes_up + exchanges.bytes_saved
        if exchanges.bytes_peer:
            line["bytes_peer"] = exchanges.bytes_peer
        if exchanges.lost:
            line["lost"] = exchanges.lost
        line |= self.arrivals.line(exchanges)
        if self._present is not None:
            line["data_drift"] = self._present.moved
        if t == 0 and SETUP_BYTES in self.server.values:
            line |= {f"setup_bytes_{way}": count for way, count in self._setup_bytes().items()}
        if self.spending is not None:
            line |= self.spending.line(last=t + 1 == self.rounds or self._used_up())
        if self.sample_spending is not None:
            line |= self.sample_spending.line()
        if self.evaluated(t + 1):
            line |= self.evaluate()
        line["seconds"] = round(trained, 6)
        line["seconds_evaluation"] = round(time.perf_counter() - began - trained, 6)
        self.seconds_total += time.perf_counter() - began
        self.history.append(line)
        if self.folder:
            self.folder.log(line)
        return line

    def _used_up(self) -> bool:
        """Return whether one more round would spend more of the clients' privacy than is allowed."""
        if self.spending is None or not self.spending.used_up(self.rounds_done):
            return False
        self._last = self.rounds_done
        if self.rounds_done < self.rounds:
            self._end(f"One round more would spend more than ε = {self.spending.most:g}: the run ends here.")
        return True

    def _run_round(self, cohort: Cohort, empty: bool) -> None:
        """Run the method's round; check that a round with an empty cohort gives finite numbers too."""
        if not empty:
            self.method.round(self.server, cohort)
            return
        try:
            self.method.round(self.server, cohort)
        except (ArithmeticError, LookupError, ValueError, RuntimeError) as error:
            raise self._needs_somebody(cohort.round, first_line(error)) from error
        for name, value in self.server.values.items():
            if not _finite(value):
                raise self._needs_somebody(cohort.round, f"its {name!r} becomes NaN or infinite")

    def _check_finite(self, t: int) -> None:
        """Raise before saving if the server's state is not finite: no client could continue from it."""
        for name, value in self.server.values.items():
            parts = value.items() if isinstance(value, Vectors) else [("", value)]
            if not all(_finite(part) for _, part in parts):
                raise Diverged(
                    f"Round {t + 1}: the server's {name!r} became NaN or infinite; the last checkpoint is kept. A "
                    "smaller lr helps, or a bound on updates (--max-norm).", t + 1, [],
                )  # fmt: skip

    def _needs_somebody(self, t: int, why: str) -> UnalikeError:
        return UnalikeError(
            f"Nobody takes part in round {t + 1}, and {type(self.method).__name__} needs somebody ({why}): draw again "
            "when nobody comes (leave out empty), or take fixed cohorts."
        )

    def _enter(self, round: int) -> None:
        """Give the clients the samples of this round (from 1), if their data drift."""
        if self._present is not None and self._present.enter(round):
            self.engine.renew()

    def _setup_bytes(self) -> dict[str, int]:
        """Return the bytes sent before round 1: down, up, and between clients if there are any."""
        return dict(zip(WAYS, self.server.values.get(SETUP_BYTES, ()), strict=False))

    def _commit(self) -> None:
        for store in self._stores.values():
            store.commit()

    # ---- for callbacks and reports

    def evaluated(self, round: int) -> bool:
        """Return whether the models are evaluated after this round (counted from 1)."""
        return round % self.settings.evaluate_every == 0 or round in (self.rounds, self._last)

    def saved(self, round: int) -> bool:
        """Return whether a checkpoint follows this round (counted from 1)."""
        return round % self.settings.checkpoint_every == 0 or round == self.rounds

    @property
    def reason(self) -> str:
        """Return which engine runs, and why."""
        return self._reason + self.engine.remark

    @property
    def notes(self) -> list[str]:
        """Return remarks for the end of the run, about the engine and about privacy spent."""
        return [*(self.folder.notes if self.folder else ()), *self.engine.notes, *self._notes]

    def home(self, callback: str) -> RunFolder:
        """Return the run's folder, for a callback of this name to write into; raise if the run has none."""
        if self.folder is None:
            raise UnalikeError(f"{callback} writes into the run's folder, and this run has none: give folder=...")
        return self.folder

    @property
    def buffers(self) -> Tensor | Vectors:
        """Return BatchNorm's statistics as the server has them."""
        if self.architectures is None:
            return self.server.values.get(BUFFERS, self.task.start_buffers)
        start = Vectors({name: task.start_buffers for name, task in self.tasks.items()})
        return self.server.values.get(BUFFERS, start)

    def vectors(self) -> dict[str, Tensor | Vectors]:
        """Return the method's global models by name; the reported one comes first."""
        return global_models(self.method, self.server)[0]

    def bound(self, vector: Tensor, architecture: str | None = None) -> BoundModule:
        """Return the module with this vector and the server's statistics; call it with train=False."""
        name = next(iter(self.tasks)) if architecture is None else architecture
        buffers = self.buffers
        self._bound[name].vector.copy_(vector)
        self._bound[name].buffers.copy_(buffers[name] if isinstance(buffers, Vectors) else buffers)
        return self._bound[name]

    def evaluate(self) -> dict[str, Any]:
        """Evaluate the models as they are now; return the numbers of a round's line and set `client_values`."""
        t = self.rounds_done - 1
        self.clusters = clusters(self)
        line = evaluated(self, t) | cluster_line(self, self.clusters)
        return line | ({} if self.newcomers is None else self.newcomers.line(t))

    def test_scores(self, vector: Tensor, architecture: str | None = None) -> dict[str, float | None]:
        """Return the loss and metrics of a vector on the global test set (of the architecture's own data where data
        differ)."""
        name = next(iter(self.tasks)) if architecture is None else architecture
        test = self.parts[name].global_test
        assert test is not None
        return evaluate_set(self.tasks[name], self.bound(vector, name), test)

    # ---- results

    @property
    def model(self) -> nn.Module:
        """The module with the final global weights and statistics, ready for use (`eval()` is set). If there are
        several global models, the first."""
        vector = self._reported()
        if isinstance(vector, Vectors):
            first = next(iter(self.tasks))
            raise UnalikeError(
                f"Clients have {len(self.tasks)} networks: run.models[{first!r}] is one of them; predict and save take "
                f"architecture={first!r} or client=0."
            )
        buffers = self.buffers
        assert not isinstance(buffers, Vectors)
        return self.module_with(vector, buffers)

    @property
    def models(self) -> dict[str, nn.Module]:
        """The modules with the final global weights by architecture, where clients have different networks."""
        vector, buffers = self._reported(), self.buffers
        if not isinstance(vector, Vectors) or not isinstance(buffers, Vectors):
            raise UnalikeError("All clients have one network: run.model is the module with the global weights.")
        return {name: self.module_with(part, buffers[name], name) for name, part in vector.items()}

    def _reported(self) -> Tensor | Vectors:
        vector = next(iter(self.vectors().values()), None)
        if vector is None:
            name = type(self.method).__name__
            raise UnalikeError(f"{name} has no global model: run.predict(x, client=0) uses a client's own.")
        return vector

    def module_with(self, vector: Tensor, buffers: Tensor, architecture: str | None = None) -> nn.Module:
        """Return a copy of the module with these weights and statistics; `eval()` is set."""
        task = self.task if architecture is None else self.tasks[architecture]
        module = copied(task.module)
        tensors = task.layout.views(vector)
        tensors |= task.buffer_layout.views(buffers) if task.buffer_layout.size else {}
        with torch.no_grad():
            for name, value in (*module.named_parameters(), *module.named_buffers()):
                if name in tensors:
                    value.copy_(tensors[name])
        return module.eval()

    @property
    def forest(self) -> Boosted | None:
        """The trees that the run has grown, with cuts, gains and names of columns; None where its method grows none."""
        values = self.server.values
        if self.method.network != "forest" or "cuts" not in values:
            return None
        return boosted(values, self.data.classes, column_names(self.data, len(values["cuts"])))

    def predict(
        self, x: Any, client: int | str | None = None, architecture: str | None = None
    ) -> Prediction | np.ndarray:
        """Predict rows as they were before preparation: an array, or rows of a table if the data came from one.

        Classification gives a `Prediction` (labels, classes, probabilities), regression the numbers in their own unit.
        client: use this client's own model, given by number or name, instead of the global one. architecture: use this
        network's global model, where clients have different networks.
        """
        return predictor(self, client, architecture).predict(x)

    def save(
        self,
        path: str | Path,
        client: int | str | None = None,
        source: str | None = None,
        architecture: str | None = None,
    ) -> Path:
        """Write the model (or a client's own, or an architecture's) with everything needed to use it as one file, for
        `ua.load_model` and `unalike predict`. source: where a model of your own is built; it is named to whoever reads
        the file."""
        return save(predictor(self, client, architecture), path, source)

    def _without_channel(self) -> dict[str, int]:
        """Return the bytes that would have gone up without the channel, if there is one."""
        if self.channel is None:
            return {}
        return {"bytes_up_plain": sum(line.get("bytes_up_plain", 0) for line in self.history)}

    def to_pandas(self) -> Any:
        """Return the history as a pandas data frame, one row per round."""
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
        """Return one row per class (class, samples, recall, precision, f1), for the global model on the global test
        set, or over all clients' test samples if there is no such set."""
        return by_class(self)

    def summary(self) -> dict[str, Any]:
        """Return the final numbers, and those of the round chosen by validation data. Never the best round on test
        data."""
        final = next((line for line in reversed(self.history) if self.evaluated(line["round"])), None)
        before = self._setup_bytes()
        sent = {way: before.get(way, 0) + sum(line.get(f"bytes_{way}", 0) for line in self.history) for way in WAYS}
        return {
            "final": final,
            "selected": choose_round(self.history, *scores(self.numbers)),
            "rounds": self.rounds_done,
            **{f"bytes_{way}": count for way, count in sent.items() if count or way != "peer"},
            **self._without_channel(),
            "seconds": self.seconds_total,
            "engine": self.reason,
            **self._privacy(),
            **({"ended": self.ended} if self.ended else {}),
        }

    def _privacy(self) -> dict[str, Any]:
        """Return what was spent and what is guaranteed for it, if there is noise."""
        found: dict[str, Any] = {}
        if self.spending is not None:
            spent = self.spending.line(last=False)["epsilon"]
            found |= {"epsilon": spent, "delta": self.spending.delta, "guarantee": str(self.spending.guarantee())}
        if self.sample_spending is not None:
            found["sample_guarantee"] = str(self.sample_spending.guarantee())
        return found


def _again(recipe: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the config tables to keep in the folder, without `from_round`: a run goes back once, not whenever it is
    resumed."""
    if recipe is None or "from_round" not in recipe["run"]:
        return recipe
    return {**recipe, "run": {name: value for name, value in recipe["run"].items() if name != "from_round"}}


def _finite(value: Any) -> bool:
    """Return whether a value of the server's state is free of NaN and infinity."""
    if isinstance(value, list | tuple):
        return all(map(_finite, value))
    return not isinstance(value, float | Tensor) or bool(torch.isfinite(torch.as_tensor(value)).all())


def _spoken(number: Number) -> str:
    """Return a number's label with the name of its metric."""
    metric = number.metric.replace("_", " ")
    return number.words if metric.lower() in number.words.lower() else f"{metric} {number.words}"


def _reasons(reasons: dict[str, str]) -> str:
    """Return the engines of several networks, and the reasons."""
    engines = dict.fromkeys(reason.partition(": ")[0] for reason in reasons.values())
    why = {name: reason.partition(": ")[2] for name, reason in reasons.items()}
    if len({*reasons.values()}) == 1:
        return f"{next(iter(engines))}: {next(iter(why.values()))}, for each of {len(reasons)} networks"
    return f"{' and '.join(engines)}: {'; '.join(f'{name}: {reason}' for name, reason in reasons.items())}"


def _check_labels(task: Task, data: Federation) -> None:
    """Raise if labels do not fit the model's outputs: they would crash deep inside a loss or, on a GPU, kill the
    process."""
    if data.classes is not None and task.loss is cross_entropy and data.classes > task.outputs:
        raise UnalikeError(
            f"The labels run to {data.classes - 1} and the model has {task.outputs} outputs: it needs at least "
            f"{data.classes}."
        )
