"""A client of a real federation: its data, its state, and its answers to a server's requests.

The owner's decisions are in the client's policy (`policy.py`), which is checked for every plan and every request.
Everything that leaves is written to the audit log first (`audit.py`). The client runs only code that it has installed:
a method, model or loss from a file runs only if the client was given that very file, identical to the last byte.
"""

from __future__ import annotations

import functools
import reprlib
import time
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import unalike
from unalike import config
from unalike.channel import Channel
from unalike.channel.stages import SecureSum, Summed
from unalike.client import FileStates, Job, Node, OneClient, StateFolder, data_sizes, state_shapes
from unalike.client.encrypted import hiding_client
from unalike.client.preparing import hidden_sums_for, sums_for
from unalike.client.samples import Chosen
from unalike.client.secure import MOST, HidingClient, plan_digest
from unalike.client.settled import FILE as SUMS
from unalike.client.settled import Settled
from unalike.client.state_on_disk import with_channel
from unalike.contract import LOSS, Call
from unalike.crypto.common_key import CommonKey
from unalike.crypto.secure_sum import Blamed
from unalike.data.columns import samples_hash
from unalike.data.federation import SPLITS, Federation
from unalike.data.preparation import Preparation
from unalike.data.public import Public
from unalike.data.remote import alone
from unalike.draws import Draws, SecretDraws
from unalike.engines.preparing import BEGIN, RUN
from unalike.errors import UnalikeError, Withheld
from unalike.files import hold_alone, release, replace
from unalike.messages import wire
from unalike.messages.check import reply_fields
from unalike.messages.request import Asked, asked
from unalike.messages.sealed import Sealer
from unalike.network.audit import Audit
from unalike.network.link import Away, ClientLink, Parts, Untrusted
from unalike.network.plans import (
    LACKS_PUBLIC,
    OTHER_PUBLIC,
    check_network,
    check_plan,
    check_schema,
    network_digest,
    own_network,
)
from unalike.network.policy import Policy, no_files
from unalike.network.runs import RUN_ID, Runs
from unalike.network.seal import Keyring
from unalike.network.words import facts_words, plan_words, sums_words
from unalike.nn.numerics import DTYPES, find_device, kept_memory
from unalike.nn.task import Task, default_loss
from unalike.settings.toml import dump_toml
from unalike.text import printable

# longest pause in seconds between attempts of a client in trouble
LONGEST = 60.0


class OwnJob(Job):
    """A job with noise that the server cannot predict."""

    def draws(self, who: int | np.ndarray, round: int, purpose: str) -> Draws:
        return SecretDraws(None if np.ndim(who) == 0 else len(np.atleast_1d(who)), self.task.device, self.task.dtype)


class Client:
    """Answers a server's requests from this client's data; only one process at a time may use its folder."""

    def __init__(
        self,
        data: Federation,
        folder: Path,
        policy: Policy | None = None,
        device: str = "auto",
        say: Callable[[str], None] = lambda text: None,
        sealer: Sealer | None = None,
        ask: Callable[[str], bool] | None = None,
        common: CommonKey | None = None,
    ):
        """sealer: this client's keys, for methods whose clients seal rows for each other (`network.seal.Keyring`); ask:
        a function that shows a person the server's request and returns the answer; needed if the policy demands it;
        common: a key that all clients have, for sums under encryption."""
        if len(data) != 1:
            raise UnalikeError(f"A client brings its own data alone; these are the data of {len(data)} clients.")
        data.check(gaps=True)
        self.data, self.folder, self.policy, self.device = data, folder, policy or Policy(), find_device(device)
        self.say, self.ended, self.sealer, self.ask, self.common = say, False, sealer, ask, common
        if self.policy.ask and ask is None:
            raise UnalikeError("This client's policy says to ask, and there is nobody to be asked: start it by hand.")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.close = weakref.finalize(self, release, hold_alone(folder / "lock"))
        self.runs, self.audit = Runs(folder), Audit(folder)
        self._secures: dict[str, HidingClient] = {}
        self._preparing: Summed | None = None  # hides the sums from which features are prepared
        replace(folder / "policy.toml", dump_toml(self.policy.plain()).encode(), mode=0o600)
        self._nodes: dict[str, Node] = {}  # nodes of the current run, by its name
        self._agreed: set[str] = set()
        self._refused = ""  # this client's last refusal, in words

    # ---- requests

    def answer(self, parts: Parts) -> bytes:
        """Answer a request; any fault in it becomes a reply that says so in one line. The reply is in the audit log
        before it leaves; if it cannot be written there, nothing leaves."""
        header: dict[str, Any] = {}
        again = False
        try:
            request = asked(parts)
            header = request.header
            kind = header.get("kind")
            if not isinstance(kind, str) or kind not in ANSWERS:
                raise UnalikeError(f"There is nothing to answer to a message of kind {reprlib.repr(kind)}.")
            reply = ANSWERS[kind](self, request)
            again = kind == "request" and self._present(header).repeated
        except UnalikeError as error:
            self.say(f"refused: {(error.__cause__ or error) if isinstance(error, Withheld) else error}")
            self._refused = str(error)[:500]
            about = {"about": error.client} if isinstance(error, Blamed) else {}
            reply = wire.encode({"kind": "error", "reason": str(error)[:500], **about}, {})
        except Exception as error:
            # for the client's own terminal: it may quote data
            self.say(traceback.format_exc())
            reason = f"a fault inside the client, {type(error).__name__}: its log has more."
            reply = wire.encode({"kind": "error", "reason": reason}, {})
        self.audit.write(reply, header, again)
        return reply

    def _confirm(self, words: str) -> None:
        """Ask a person, if the policy demands it; a request that was agreed to once is not asked again."""
        if not self.policy.ask or words in self._agreed:
            return
        assert self.ask is not None
        if not self.ask(words):
            raise UnalikeError("This client's owner was asked, and did not say yes.")
        self._agreed.add(words)

    def _hello(self, request: Asked) -> bytes:
        """Answer a greeting with sizes and the kind of a sample."""
        _same_version(request.header)
        data = self.data
        check_schema(data.schema, request.header.get("schema"))
        kind = lambda t: [t.is_floating_point(), list(t.shape[1:])]  # noqa: E731
        sizes = dict.fromkeys(SPLITS, 0) | {name: len(columns.y) for name, columns in data.splits.items()}
        facts = {
            "sizes": sizes,
            "classes": data.classes,
            "x": kind(data.train.x),
            "y": kind(data.train.y),
            "public": data.public_fingerprint(),
        }
        self._confirm(facts_words(facts))
        self.ended = False
        return wire.encode({"kind": "reply", "version": unalike.__version__, "facts": facts}, {})

    def _prepare(self, request: Asked) -> bytes:
        """Answer with sums over the training samples, from which features are prepared."""
        _same_version(request.header)
        train = self.data.train
        self.policy.limits.check_rows(len(train.y), "sums over")
        stage = request.header.get("stage")
        if stage == BEGIN:
            return self._begin_preparing(request.header)
        hiding = self._secures.get(RUN) if stage is not None else None
        if stage is not None and hiding is None:
            raise UnalikeError("This client was not told how sums are hidden: it was started again, or was not asked.")
        self.policy.check_sums(None if hiding is None else self._preparing)
        self._confirm(sums_words(len(train.y), train.x[:1].numel(), hiding is not None))
        if hiding is not None:
            self._check_same_samples()
            answer = hidden_sums_for(request, train, hiding)
        else:
            answer = sums_for(request.header, request.tensors, train)
        self.say("sums of the features, for preparing them")
        return answer

    def _check_same_samples(self) -> None:
        """Refuse sums over other samples than in an earlier preparation: the difference would tell what changed."""
        if not self._settled.is_same_state((RUN, 0, 0), samples_hash(self.data.train.of(0))):
            raise self._settled.refusal(
                "This client's samples have changed since it gave sums to prepare features, and the difference of two "
                "such sums would tell how: refused."
            )

    def _begin_preparing(self, header: dict[str, Any]) -> bytes:
        """Take this client's number and the stage that hides its sums, if the policy agrees to it."""
        given, client = header.get("channel"), header.get("client")
        if not isinstance(given, list) or type(client) is not int or not 0 <= client < MOST:
            raise UnalikeError("The request to prepare features does not say how sums are hidden.")
        stages = self.policy.settings({"run": {"channel": given}, "files": {}})["channel"]
        found = [stage for stage in config.make_channel(stages) if isinstance(stage, Summed)]
        if len(found) != 1 or len(stages) != 1:
            raise UnalikeError("The request to prepare features does not say how sums are hidden.")
        self.policy.check_sums(found[0])
        made = self._made(RUN, client, found[0])
        if RUN in self._secures:
            made.remember(self._secures[RUN])
        self._secures[RUN], self._preparing = made, found[0]
        return wire.encode({"kind": "reply", "version": unalike.__version__}, {})

    def _plan(self, request: Asked) -> bytes:
        """Check the plan of a run, and keep it for a later start of this client."""
        run, plan = _run_id(request.header), request.header.get("plan")
        self.runs.check(run, self.policy)
        node = self._build(run, plan)
        job = node.job
        network = network_digest(job.task.module)
        self._confirm(plan_words(run, job, network, reply_fields(job.method, job.task)))
        node.state.path.mkdir(exist_ok=True, mode=0o700)
        self.runs.begin(run, plan, self.policy)
        self._nodes = {run: node}
        who = f"client {node.client} of {len(job.data)}"
        self.say(f"{who}: {type(job.method).__name__}, network {network}, run {run}")
        if job.channel is not None and job.channel.hides:
            self._say_who_opens(job.channel.hiding, len(job.data))
        return wire.encode({"kind": "reply", "run": run}, {})

    def _say_who_opens(self, stage: Summed, clients: int) -> None:
        """Tell the owner who together can open what this client will send."""
        self.say(f"replies are hidden by {stage}; in a sum of all {clients} clients: {stage.promise(clients)}")
        fewest = max(stage.least, self.policy.least_cohort)
        if isinstance(stage, SecureSum) and fewest < clients:
            self.say(f"the server chooses who is in a sum; in one of {fewest}, the fewest: {stage.promise(fewest)}")
        if isinstance(stage, SecureSum) and not (isinstance(self.sealer, Keyring) and self.sealer.has_peers):
            self.say(
                "without --peers the server says whose key is whose, and could make clients up: so this is against a "
                "server that does not lie"
            )

    def _request(self, request: Asked) -> bytes:
        began, header = time.perf_counter(), request.header
        if "acknowledged" not in header:
            raise UnalikeError("The request does not say which round of this client counts (acknowledged).")
        reply = self._present(header).answer(request)
        self.say(f"round {header['round'] + 1}: {header['function']}, {time.perf_counter() - began:.1f} s")
        return reply

    def _wrap(self, request: Asked) -> bytes:
        """Return the keys of rows that this client has sealed, wrapped for the clients that receive them."""
        header = request.header
        reply = self._present(header).wrap(header)
        named = ", ".join(f"{row['field']} for client {row['receiver']}" for row in header["rows"][:5])
        self.say(f"round {header['round'] + 1}: keys of {named}")
        return reply

    def _sum(self, request: Asked) -> bytes:
        """Answer one stage of a secure sum."""
        if request.header.get("run") == RUN:
            if RUN not in self._secures:
                raise UnalikeError("This client was started again: the preparation has to begin anew.")
            return self._secures[RUN].answer(request.header, request.tensors)
        secure = self._present(request.header).secure
        if secure is None:
            raise UnalikeError("The run's channel has no sums that hide replies.")
        return secure.answer(request.header, request.tensors)

    def _secure(self, run: str, client: int, channel: Channel | None) -> HidingClient | None:
        """Return this client's part in a run's sums, if its channel hides replies."""
        if channel is None or not channel.hides:
            return None
        return self._hiding(run, client, channel.hiding, channel.shares)

    def _hiding(self, run: str, client: int, stage: Summed, shares: int = 0) -> HidingClient:
        """Return this client's part in a run's sums: one for all plans of the run, so that it forgets nothing."""
        if run not in self._secures:
            self._secures[run] = self._made(run, client, stage, shares)
        if self._secures[run].rules != (client, stage, shares):
            raise UnalikeError(
                f"A second plan of run {run} has another number of this client, another stage or other noise than the "
                "first: it is refused. If you know why it has to, start this client again."
            )
        return self._secures[run]

    def _made(self, run: str, client: int, stage: Summed, shares: int = 0) -> HidingClient:
        signer = self.sealer if isinstance(self.sealer, Keyring) else None
        made = hiding_client(run, client, stage, self.common, shares, signer, self.say, lambda: self._settled)
        made.wanted = max(made.least, self.policy.least_cohort)
        return made

    @functools.cached_property
    def _settled(self) -> Settled:
        """Return the record of the sums that this client has agreed to, in all runs."""
        return Settled(self.folder / SUMS)

    def _evaluate(self, request: Asked) -> bytes:
        self.policy.check_evaluation()
        return self._present(request.header).answer(request)

    def _notice(self, request: Asked) -> bytes:
        """Show this client's owner why the server did without it, unless it said so itself."""
        reason = request.header.get("reason")
        if not isinstance(reason, str):
            raise UnalikeError("The server's notice has no reason.")
        if not self._refused or self._refused not in reason:
            self.say(f"the server did without this client: {printable(reason, 500)}")
        return wire.encode({"kind": "reply"}, {})

    def _end(self, request: Asked) -> bytes:
        """Note that the run is over, and keep the state that the server counted."""
        header = request.header
        told = header.get("acknowledged")
        if told is not None and type(told) is not int:
            raise UnalikeError(f"The request acknowledges round {reprlib.repr(told)}: it must be a whole number.")
        self._present(header).state.settle(told)
        self.say("the run is over")
        self.ended = True
        return wire.encode({"kind": "reply", "run": header["run"]}, {})

    # ---- parts of a run

    def _present(self, header: dict[str, Any]) -> Node:
        """Return the node of the current run; refuse a request for another run."""
        run = _run_id(header)
        if run not in self._nodes:
            self._nodes = {run: self._build(run, self.runs.plan(run))}
        return self._nodes[run]

    def _admit(self, run: str, call: Call) -> None:
        """Count a call that must be computed anew; refuse it if the limit is reached."""
        self.audit.tallies[run].admit(call, self.policy)

    def _public(self, wanted: str | None) -> Public | None:
        """Return this client's copy of the run's public set; refuse if it has none, or a different one."""
        if wanted is not None and self.data.public is None:
            raise UnalikeError(LACKS_PUBLIC)
        if wanted is not None and self.data.public_fingerprint() != wanted:
            raise UnalikeError(OTHER_PUBLIC)
        return None if wanted is None else self.data.public

    def _own_data(self, plan: dict[str, Any]) -> Federation:
        """Return this client's data alone, prepared as the plan says."""
        # the run may have more classes than this client has names for
        public = self._public(plan.get("public"))
        own = self.data.replace(classes=plan["classes"], label_names=None, global_test=None, public=public)
        if plan["preparation"] is not None:
            own = own.prepared_by(Preparation.from_plain(plan["preparation"]))
        # checks that labels are among the run's classes
        own.check()
        return own

    def _build(self, run: str, plan: Any) -> Node:
        """Return the node for a plan, after checking every part of it."""
        check_plan(plan)
        policy = self.policy
        policy.check_clients(plan["clients"])
        tables, settings = policy.tables(plan), policy.settings(plan)
        config.check({**tables, "data": {"folder": "."}, "run": {"rounds": 0, **settings}}, "The plan")
        no_files(tables)
        dtype = DTYPES[settings.get("dtype", "float32")]
        client, seed = plan["client"], settings.get("seed", 0)
        own = self._own_data(plan)
        method, local = config.make_method(tables.get("method", {})), config.make_local(tables.get("local", {}))
        device = find_device("cpu") if method.on_cpu else self.device
        data = alone(own, client, plan["clients"]).to(device, dtype)
        policy.check_method(method)
        sealed = [name for name, field in method.sends.items() if field.read == "sealed"]
        if sealed and self.sealer is None:
            raise UnalikeError(
                f"{type(method).__name__} seals {sealed[0]!r} for other clients: this needs a key (--key)."
            )
        network = own_network(tables, settings.get("architecture"), client, plan["clients"])
        policy.check_labels(method, data.train.of(client)[1])
        policy.check_size(lambda: config.make_model(network, data, seed))
        module = config.make_model(network, data, seed)
        check_network(plan.get("network"), module, method.serverless)
        policy.check_model(network_digest(module))
        loss, buffers = config.make_loss(network), settings.get("buffers", "average")
        if method.serverless and buffers == "average":
            # as at the server: without a server there is nobody to average statistics
            buffers = "local"
        loss.setdefault("loss", default_loss(data.train.y))
        unit = None if own.preparation is None else own.preparation.target
        task = Task(module, **loss, dtype=dtype, device=device, buffers=buffers, unit=unit)
        x, y = data.train.of(client)
        task.buffer_policy = method.buffers or task.buffer_policy
        task.check(x[:2], y[:2], **data_sizes(data))
        task.take_nets(method.nets, seed)
        stages = config.make_channel(settings.get("channel", []))
        policy.check_channel(stages)
        channel = Channel(stages, method, task) if stages else None
        if channel is not None and channel.hides:
            local.check_alike()
        hidden = channel is not None and channel.hidden
        policy.check_leaving([name for name in reply_fields(method, task) if name != LOSS or not hidden])
        shapes = state_shapes(method, task, local)
        kind = Job if policy.repeatable else OwnJob
        states = FileStates(shapes, self.folder)
        job = kind(method, task, data, local, seed, states, plan["mean"], policy.limits, channel=channel)
        policy.limits.check_training(local, Chosen(job.samples("train"), np.array([client])), np.array([client]), 0)
        kept = with_channel(shapes, channel.shapes if channel else {})
        state = StateFolder(self.folder / run, kept, real=True)
        secure = self._secure(run, client, channel)
        if secure is not None:
            secure.population = plan["clients"]
        admit = lambda call: self._admit(run, call)  # noqa: E731
        return Node(job, client, state, OneClient(job), self.sealer, secure, admit, plan_digest(plan))


def _same_version(header: dict[str, Any]) -> None:
    if header.get("version") != unalike.__version__:
        given = reprlib.repr(header.get("version"))
        raise UnalikeError(
            f"The server runs version {given} and this client {unalike.__version__}: use one everywhere."
        )


def _run_id(header: dict[str, Any]) -> str:
    """Return the run's name; refuse anything that could not safely be a folder's name, and the preparation's."""
    run = header.get("run")
    if not isinstance(run, str) or not RUN_ID.fullmatch(run) or run == RUN:
        raise UnalikeError(f"The request is of the run {reprlib.repr(run)}, which is no run's name.")
    return run


# kinds of messages and the functions that answer them; every answer goes into the audit log
ANSWERS: dict[str, Callable[[Client, Asked], bytes]] = {
    "hello": Client._hello, "prepare": Client._prepare, "plan": Client._plan, "request": Client._request,
    "wrap": Client._wrap, "sum": Client._sum, "evaluate": Client._evaluate, "end": Client._end,
    "notice": Client._notice,
}  # fmt: skip


class Backoff:
    """Reports a problem once, and waits longer each time it recurs."""

    def __init__(self, say: Callable[[str], None], first: float, pause: Callable[[float], None]):
        self.say, self.first, self.pause = say, first, pause
        self.calm()

    def calm(self) -> None:
        """Forget the problem: it is over."""
        self.said, self.wait = "", self.first

    def bear(self, trouble: str) -> None:
        """Report the problem if it is new, and wait."""
        if trouble != self.said:
            self.say(trouble)
        self.said = trouble
        self.pause(self.wait)
        self.wait = min(self.wait * 2, LONGEST)


@kept_memory()
def attend(
    link: ClientLink, client: Client, once: bool = False, poll: float = 0.2, pause: Callable[[float], None] = time.sleep
) -> None:
    """Join, and answer requests for ever, or with `once` until a run is over."""
    link.join()
    client.say("joined")
    patience = Backoff(client.say, poll, pause)
    try:
        while not (once and client.ended):
            try:
                parts = link.receive()
                if parts is None:
                    pause(poll)
                else:
                    link.reply(client.answer(parts))
                patience.calm()
            except Untrusted as error:
                patience.bear(f"{error} Waiting for the server that this client knows.")
            # bytes that are no message at all get no answer
            except UnalikeError as error:
                patience.bear(str(error))
            except Away as error:
                client.say(f"{error} Joining again.")
                _rejoin(link, client, patience)
    finally:
        link.leave()


def _rejoin(link: ClientLink, client: Client, patience: Backoff) -> None:
    """Join again; a server whose certificate is not trusted is waited for like one that is away."""
    while True:
        try:
            link.join()
            client.say("joined")
            return
        except Untrusted as error:
            patience.bear(f"{error} Waiting for the server that this client knows.")
