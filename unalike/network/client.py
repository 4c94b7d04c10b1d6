"""A client of a real federation: its data, its state, its own rules, and answers to what a server asks.

What the client decides itself: its data and which splits of them; which methods it runs; how many steps of one
training at most. It runs what it has installed. A method, model or loss from a file is run only if the client was
given that very file, down to its last byte.
"""

from __future__ import annotations

import dataclasses as dc
import hashlib
import json
import operator
import re
import reprlib
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import unalike
from unalike import config
from unalike.channel import STAGES, Channel, parse
from unalike.channel.channel import as_table, registered
from unalike.channel.stage import Stage
from unalike.channel.stages.noise import AUTO, Noise
from unalike.channel.stages.secure_sum import Summed
from unalike.client import FileStates, Job, Node, OneClient, StateFolder, data_sizes, state_shapes
from unalike.client.preparing import sums_for
from unalike.client.secure import SecureClient
from unalike.client.state_on_disk import with_channel
from unalike.data.federation import SPLITS, Federation
from unalike.data.preparation import Preparation
from unalike.data.public import Public
from unalike.data.remote import alone
from unalike.draws import Draws, SecretDraws
from unalike.errors import UnalikeError
from unalike.files import hold, release, replace
from unalike.messages import wire
from unalike.messages.check import check_allowed
from unalike.messages.request import united
from unalike.messages.sealed import Sealer
from unalike.methods import METHODS
from unalike.network.link import Away, ClientLink, Parts
from unalike.network.seal import Keyring
from unalike.nn.numerics import DTYPES, find_device
from unalike.nn.task import Task, default_loss

# what a plan may say
PLANNED = (*(table for table in config.TABLES if table not in ("data", "run")), config.MODELS_TABLE)
PLANNED_RUN = ("seed", "dtype", "buffers", "architecture", "channel")  # of [run]
LACKS_PUBLIC = "The run has a public set, and this client has none: give it the server's file (--public)."
OTHER_PUBLIC = "The run's public set is not this client's: give both the same file (--public)."
BOUNDS: dict[str, Callable[[Any, Any], bool]] = {  # of --require
    "norm": operator.le, "multiplier": operator.ge, "threshold": operator.ge, "least": operator.ge,
}  # fmt: skip
RUN_ID = re.compile(r"[0-9a-f]{16}")


@dc.dataclass(frozen=True)
class Rules:
    """What a client is willing to do.

    methods: names of methods it runs (None: all that are built in); files: Python files of its own or that it has
    looked at, from which it runs methods, models, losses and metrics; max_steps: mini-batch steps of a training;
    repeatable: privacy noise from the run's seed, which the server knows, for tests; else from the operating system;
    allow_samples: runs methods that send its own samples to the server; require: stages that a run's channel must
    have, on all fields. "clip" is any clip and "local-noise" any noise above 0; of "clip:1.0" and "local-noise:2.0" the
    numbers are bounds: at most that norm, at least that multiplier. Other settings that are given must be the same.
    allow_evaluation: answers exact scores on its own samples though it requires noise.
    """

    methods: tuple[str, ...] | None = None
    files: tuple[Path, ...] = ()
    max_steps: int | None = None
    repeatable: bool = False
    allow_samples: bool = False
    require: tuple[str, ...] = ()
    allow_evaluation: bool = False

    def __post_init__(self) -> None:
        for text in self.require:
            for stage in () if text in STAGES else parse(text):
                if isinstance(stage, Noise) and stage.multiplier == AUTO:
                    raise UnalikeError(f"--require {text}: give the least multiplier as a number, or the name alone.")
        for name in self.methods or ():
            if name not in METHODS:
                raise unalike.errors.unknown("method", name, METHODS)
        for file in self.files:
            if not file.is_file():
                raise UnalikeError(f"There is no file {file}.")

    def check_channel(self, stages: Sequence[Stage]) -> None:
        """Refuse a run whose channel lacks what this client insists on."""
        for wanted in self.require:
            if not any(_meets(stage, wanted) for stage in stages if not stage.fields):
                has = ", ".join(map(str, stages)) or "none"
                raise UnalikeError(
                    f"This client answers through a channel with {wanted} only (--require); the run's has {has}."
                )

    @property
    def requires_noise(self) -> bool:
        """Whether it answers through noise, or in sums, only."""
        return any(issubclass(registered(as_table(text)["kind"]), Noise | Summed) for text in self.require)

    def check_evaluation(self) -> None:
        """Refuse to answer exact scores where replies need noise."""
        if self.requires_noise and not self.allow_evaluation:
            raise UnalikeError(
                "This client answers through noise or in sums only (--require), and scores on its own samples are "
                "exact: it is not evaluated, unless it is started with --allow-evaluation."
            )

    def _with_own(self, plan: dict[str, Any], value: Any) -> Any:
        """A part of the plan with files that are this client's own, or an error if there is one it was not given."""
        there = {file.name: file for file in self.files}

        def own(name: str, thing: str) -> str:
            if name not in there:
                raise UnalikeError(f"The run wants {name}:{thing}; this client was not given {name} (--file).")
            if digest(there[name]) != plan["files"].get(name):
                raise UnalikeError(f"The run's {name} is not this client's {name}: give both the same file.")
            return f"{there[name].resolve()}:{thing}"

        return with_files(value, own)

    def settings(self, plan: dict[str, Any]) -> dict[str, Any]:
        """The plan's settings of a run. A channel comes as tables: a text could name a file of which nobody looks."""
        found = {k: plan["run"][k] for k in PLANNED_RUN if k in plan["run"]}
        stages = found.get("channel", [])
        if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
            raise UnalikeError(f"The plan's channel must be tables; got {reprlib.repr(stages)}.")
        return found | ({"channel": self._with_own(plan, stages)} if stages else {})

    def tables(self, plan: dict[str, Any]) -> dict[str, Any]:
        """The plan's tables with files that are this client's own."""
        tables = self._with_own(plan, plan["tables"])
        method = tables.get("method", {})
        name = method.get("name", "fedavg")
        if "file" not in method and self.methods is not None and name not in self.methods:
            raise UnalikeError(f"The run is of {name!r}; this client runs {', '.join(self.methods)} only (--methods).")
        return tables


def _meets(stage: Stage, wanted: str) -> bool:
    """Return whether a run's stage is the one that a client insists on, within the bounds that it names."""
    table = as_table(wanted)
    if type(stage) is not registered(table.pop("kind")):
        return False
    if isinstance(stage, Noise) and (stage.multiplier == AUTO or not stage.z):
        return False
    return all(BOUNDS.get(name, operator.eq)(getattr(stage, name), value) for name, value in table.items())


def with_files(value: Any, other: Callable[[str, str], str]) -> Any:
    """Return tables, or a value of theirs, with `other(file, thing)` in place of every "file.py:thing"."""
    if isinstance(value, dict):
        return {k: with_files(v, other) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [with_files(v, other) for v in value]
    return other(*value.rpartition(":")[::2]) if config.is_file(value) else value


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def network_digest(module: nn.Module, start: bool = False) -> str:
    """Return 16 hex digits of a sha256 over what a network is made of: its layers, and the names and shapes of its
    weights and statistics. Not over the weights, which the server sends; with `start`, for methods whose server sends
    none, 16 more over these."""
    layers = [(name, type(layer).__qualname__) for name, layer in module.named_modules()]
    tensors = [(name, list(value.shape)) for name, value in module.state_dict().items() if isinstance(value, Tensor)]
    made_of = hashlib.sha256(json.dumps([layers, tensors]).encode()).hexdigest()[:16]
    if not start:
        return made_of
    values = [value for value in module.state_dict().values() if isinstance(value, Tensor)]
    weights = b"".join(
        value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for value in values
    )
    return made_of + hashlib.sha256(weights).hexdigest()[:16]


def _check_network(wanted: str | None, module: nn.Module, start: bool) -> None:
    """Refuse a run whose network is not the one that this client builds, or starts at other weights."""
    built = network_digest(module, start)
    if wanted is None or wanted == built:
        return
    same = "use the same version of PyTorch and the same files."
    if wanted[:16] != built[:16]:
        raise UnalikeError(f"The network that this client builds is not the one that the server builds: {same}")
    raise UnalikeError(
        f"The weights that this client's network starts with are not the server's, and nobody sends them: {same}"
    )


def _own_network(tables: dict[str, Any], architecture: Any, client: int, clients: int) -> dict[str, Any]:
    """Return the [model] table of this client: the only one, or the plan's for its architecture."""
    networks, common = tables.get(config.MODELS_TABLE), tables.get("model", {})
    if networks is None:
        return common
    names = config.network_names({**tables, "run": {"architecture": architecture}}, clients)
    return {**common, **networks[names[client]]}


class OwnJob(Job):
    """A job whose noise the server cannot know."""

    def draws(self, who: int | np.ndarray, round: int, purpose: str) -> Draws:
        return SecretDraws(None if np.ndim(who) == 0 else len(np.atleast_1d(who)), self.task.device, self.task.dtype)


class Client:
    """Answers a server's requests from this client's data; one process at a time may use its folder."""

    def __init__(
        self,
        data: Federation,
        folder: Path,
        rules: Rules | None = None,
        device: str = "auto",
        say: Callable[[str], None] = lambda text: None,
        sealer: Sealer | None = None,
    ):
        """sealer: this client's keys, for methods whose clients seal rows for each other (`network.seal.Keyring`)."""
        if len(data) != 1:
            raise UnalikeError(f"A client brings its own data alone; these are the data of {len(data)} clients.")
        data.check(gaps=True)
        self.data, self.folder, self.rules, self.device = data, folder, rules or Rules(), find_device(device)
        self.say, self.ended, self.sealer = say, False, sealer
        self._nodes: dict[str, Node] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self.close = weakref.finalize(self, release, _locked(folder / "lock"))

    # ---- every request ends here

    def answer(self, parts: Parts) -> bytes:
        """The reply; whatever is wrong with the request becomes a reply that says so in one line."""
        try:
            header, _ = united(parts)
            kind = header.get("kind")
            if not isinstance(kind, str) or kind not in ANSWERS:
                raise UnalikeError(f"There is nothing to answer to a message of kind {reprlib.repr(kind)}.")
            return ANSWERS[kind](self, header, parts)
        except UnalikeError as error:
            self.say(f"refused: {error}")
            return wire.encode({"kind": "error", "reason": str(error)[:500]}, {})
        except Exception as error:
            self.say(traceback.format_exc())  # for the client's own eyes: it may quote data
            reason = f"a fault inside the client, {type(error).__name__}: its log has more."
            return wire.encode({"kind": "error", "reason": reason}, {})

    def _hello(self, header: dict[str, Any], parts: Parts) -> bytes:
        """Who is here: sizes and the kind of a sample."""
        _same_version(header)
        data = self.data
        kind = lambda t: [t.is_floating_point(), list(t.shape[1:])]  # noqa: E731
        sizes = dict.fromkeys(SPLITS, 0) | {name: len(columns.y) for name, columns in data.splits.items()}
        facts = {
            "sizes": sizes,
            "classes": data.classes,
            "x": kind(data.train.x),
            "y": kind(data.train.y),
            "public": data.public_fingerprint(),
        }
        self.ended = False
        return wire.encode({"kind": "reply", "version": unalike.__version__, "facts": facts}, {})

    def _prepare(self, header: dict[str, Any], parts: Parts) -> bytes:
        """Sums over the training samples, from which features are prepared."""
        _same_version(header)
        answer = sums_for(header, united(parts)[1], self.data.train)
        self.say("sums of the features, for preparing them")
        return answer

    def _plan(self, header: dict[str, Any], parts: Parts) -> bytes:
        """What is to be done: looked at, and kept for a later start of this client."""
        run, plan = _run_id(header), header.get("plan")
        node = self._build(run, plan)
        replace(node.state.path / "plan.json", json.dumps(plan).encode())
        method = node.job.method
        self.say(f"client {node.client} of {len(node.job.data)}: {type(method).__name__}, run {run}")
        return wire.encode({"kind": "reply", "run": run}, {})

    def _request(self, header: dict[str, Any], parts: Parts) -> bytes:
        began = time.perf_counter()
        reply = self._node(header).handle(*parts)
        self.say(f"round {header['round'] + 1}: {header['function']}, {time.perf_counter() - began:.1f} s")
        return reply

    def _wrap(self, header: dict[str, Any], parts: Parts) -> bytes:
        """Keys of rows that this client has sealed, for the clients that they are passed on to."""
        reply = self._node(header).wrap(header)
        named = ", ".join(f"{row['field']} for client {row['receiver']}" for row in header["rows"][:5])
        self.say(f"round {header['round'] + 1}: keys of {named}")
        return reply

    def _sum(self, header: dict[str, Any], parts: Parts) -> bytes:
        """A stage of a secure sum."""
        secure = self._node(header).secure
        if secure is None:
            raise UnalikeError("The run's channel has no secure sum.")
        return secure.answer(header, united(parts)[1])

    def _secure(self, run: str, client: int, channel: Channel | None) -> SecureClient | None:
        """Return this client's part in a run's secure sums, where it has any."""
        if channel is None or not channel.hides:
            return None
        signer = self.sealer if isinstance(self.sealer, Keyring) else None
        return SecureClient(run, client, channel.hiding, channel.shares, signer=signer, say=self.say)

    def _evaluate(self, header: dict[str, Any], parts: Parts) -> bytes:
        self.rules.check_evaluation()
        return self._node(header).handle(*parts)

    def _end(self, header: dict[str, Any], parts: Parts) -> bytes:
        """The run is over; what the server counted is kept."""
        told = header.get("acknowledged")
        if told is not None and type(told) is not int:
            raise UnalikeError(f"The request acknowledges round {reprlib.repr(told)}: it must be a whole number.")
        self._node(header).state.settle(told)
        self.say("the run is over")
        self.ended = True
        return wire.encode({"kind": "reply", "run": header["run"]}, {})

    # ---- what a run needs

    def _node(self, header: dict[str, Any]) -> Node:
        run = _run_id(header)
        if run not in self._nodes:
            file = self.folder / run / "plan.json"
            try:
                plan = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                raise UnalikeError(f"This client has no plan of the run {run}.") from None
            self._build(run, plan)
        return self._nodes[run]

    def _public(self, wanted: str | None) -> Public | None:
        """Return this client's copy of the run's public set; refuse where it has none, or another."""
        if wanted is not None and self.data.public is None:
            raise UnalikeError(LACKS_PUBLIC)
        if wanted is not None and self.data.public_fingerprint() != wanted:
            raise UnalikeError(OTHER_PUBLIC)
        return None if wanted is None else self.data.public

    def _build(self, run: str, plan: Any) -> Node:
        """The node of a plan, after every part of it was checked."""
        _check_plan(plan)
        tables = self.rules.tables(plan)
        settings = self.rules.settings(plan)
        config.check({**tables, "data": {"folder": "."}, "run": {"rounds": 0, **settings}}, "The plan")
        dtype = DTYPES[settings.get("dtype", "float32")]
        client, seed = plan["client"], settings.get("seed", 0)
        # the run may have more classes than this client has names for
        public = self._public(plan.get("public"))
        own = self.data.replace(classes=plan["classes"], label_names=None, global_test=None, public=public)
        if plan["preparation"] is not None:
            own = own.prepared_by(Preparation.from_plain(plan["preparation"]))
        own.check()  # its labels are among the run's classes
        data = alone(own, client, plan["clients"]).to(self.device, dtype)
        method, local = config.make_method(tables.get("method", {})), config.make_local(tables.get("local", {}))
        check_allowed(method, self.rules.allow_samples, "client")
        means = not method.ships and any("input" in field.names for field in method.sends.values())
        if means and self.rules.methods is None:
            raise UnalikeError(
                f"{type(method).__name__} sends what it makes of the samples themselves: this client runs it only if "
                "its owner has named it (--methods)."
            )
        if method.pooled:
            raise UnalikeError(f"{type(method).__name__} pools data, which stay here.")
        sealed = [name for name, field in method.sends.items() if field.read == "sealed"]
        if sealed and self.sealer is None:
            raise UnalikeError(
                f"{type(method).__name__} seals {sealed[0]!r} for other clients: this needs a key (--key)."
            )
        network = _own_network(tables, settings.get("architecture"), client, plan["clients"])
        module = config.make_model(network, data, seed)
        _check_network(plan.get("network"), module, method.serverless)
        loss, buffers = config.make_loss(network), settings.get("buffers", "average")
        if method.serverless and buffers == "average":
            buffers = "local"  # as at the server: there is nobody to average statistics
        loss.setdefault("loss", default_loss(data.train.y))
        unit = None if own.preparation is None else own.preparation.target
        task = Task(module, **loss, dtype=dtype, device=self.device, buffers=buffers, unit=unit)
        x, y = data.train.of(client)
        task.buffer_policy = method.buffers or task.buffer_policy
        task.check(x[:2], y[:2], **data_sizes(data))
        task.take_nets(method.nets, seed)
        stages = config.make_channel(settings.get("channel", []))
        self.rules.check_channel(stages)
        channel = Channel(stages, method, task) if stages else None
        shapes = state_shapes(method, task, local)
        states, limit = FileStates(shapes, self.folder), self.rules.max_steps
        kind = Job if self.rules.repeatable else OwnJob
        job = kind(method, task, data, local, seed, states, plan["mean"], limit, channel=channel)
        job.check_steps(int(local.counts(np.array([client]), np.array([len(y)]), 0)[0]))
        kept = with_channel(shapes, channel.shapes if channel else {})
        state = StateFolder(self.folder / run, kept, real=True)
        state.path.mkdir(exist_ok=True)
        self._nodes[run] = Node(job, client, state, OneClient(job), self.sealer, self._secure(run, client, channel))
        return self._nodes[run]


def _same_version(header: dict[str, Any]) -> None:
    if header.get("version") != unalike.__version__:
        given = reprlib.repr(header.get("version"))
        raise UnalikeError(
            f"The server runs version {given} and this client {unalike.__version__}: use one everywhere."
        )


def _run_id(header: dict[str, Any]) -> str:
    """It becomes a folder's name, so it may be nothing else."""
    run = header.get("run")
    if not isinstance(run, str) or not RUN_ID.fullmatch(run):
        raise UnalikeError(f"The request is of the run {reprlib.repr(run)}, which is no run's name.")
    return run


def _check_plan(plan: Any) -> None:
    """All parts are there and are what they should be; the tables are checked as any config is."""
    whole = lambda low, high: lambda v: type(v) is int and low <= v < high  # noqa: E731
    table = lambda v: isinstance(v, dict) and all(isinstance(k, str) for k in v)  # noqa: E731
    wanted: dict[str, Callable[[Any], bool]] = {
        "version": lambda v: v == unalike.__version__,
        "clients": whole(1, 10_000_000),
        "client": whole(0, 10_000_000),
        "classes": lambda v: v is None or whole(1, 1 << 31)(v),
        "mean": lambda v: type(v) is float and 0 < v < 1e15,
        "tables": lambda v: table(v) and all(k in PLANNED and table(t) for k, t in v.items()),
        "run": table,
        "files": table,
        "preparation": lambda v: v is None or table(v),
        "network": lambda v: v is None or isinstance(v, str),
        "public": lambda v: v is None or (isinstance(v, str) and bool(RUN_ID.fullmatch(v))),
    }
    for name, right in wanted.items():
        if not isinstance(plan, dict) or not right(plan.get(name)):
            given = reprlib.repr(plan.get(name) if isinstance(plan, dict) else plan)
            raise UnalikeError(f"The plan's {name} is {given}, which cannot be.")


def _locked(file: Path) -> int | None:
    """Lock a file and return its handle; closing the handle releases the lock."""
    try:
        return hold(file)
    except BlockingIOError:
        raise UnalikeError(
            f"{file.parent} is in use by another process: one client, one folder, one process."
        ) from None


ANSWERS: dict[str, Callable[[Client, dict[str, Any], Parts], bytes]] = {
    "hello": Client._hello, "prepare": Client._prepare, "plan": Client._plan, "request": Client._request,
    "wrap": Client._wrap, "sum": Client._sum, "evaluate": Client._evaluate, "end": Client._end,
}  # fmt: skip


def attend(link: ClientLink, client: Client, once: bool = False, poll: float = 0.2) -> None:
    """Join, and answer until told otherwise: for ever, or until a run is over."""
    link.join()
    client.say("joined")
    try:
        while not (once and client.ended):
            try:
                parts = link.receive()
                if parts is None:
                    time.sleep(poll)
                else:
                    link.reply(client.answer(parts))
            except UnalikeError as error:  # bytes that are no message at all: the server hears nothing
                client.say(str(error))
            except Away as error:
                client.say(f"{error} Joining again.")
                link.join()
                client.say("joined")
    finally:
        link.leave()
