"""Run several runs as one stack of clients: ten seeds with ten clients each, of a tiny model, are a hundred clients
wide, and one step of a hundred costs little more than one of ten.

Every run stays an ordinary run, with its own folder, rounds, sampling and evaluation, in its own thread; but one thread
works at a time, in a fixed order. A run that calls its engine waits until all the others have called too, or have
ended. Then calls of the same client function in the same round are answered by one `Batched` engine, in which the runs'
clients stand side by side. A client's draws come from its own run's seed and its own number, so a run computes the same
as it would alone, up to rounding.

Runs may differ in seed, data, start of the model, amounts of work and rates; if they differ in more, they are answered
one after another. A run that diverges leaves, and the others go on.
"""

from __future__ import annotations

import copy
import dataclasses as dc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike.client import Job, Shapes
from unalike.contract import Call, Outcome, settings
from unalike.data import Columns, Federation
from unalike.data.columns import offsets_of
from unalike.data.drifting import fill
from unalike.data.federation import as_arguments
from unalike.engines.batched.engine import Batched
from unalike.engines.engine import Engine
from unalike.errors import Diverged, EngineRefused
from unalike.nn.numerics import numerics
from unalike.nn.task import Task
from unalike.training.settings import LocalTraining, ShortenedTraining, amount

AMOUNTS, PLAIN = ("epochs", "steps", "lr"), (int, float, type(None))


def together(
    starts: Sequence[Callable[[Member], Any]], precision: str = "highest", deterministic: bool = False
) -> list[Any]:
    """Run several runs in lockstep. Each start is called with a `Member`, makes a run with the engine option `member=`
    and returns any value; these values are returned in order, with a `Diverged` in place of a run that diverged. When
    all have ended, the first error of another kind is raised. precision and deterministic apply to all runs."""
    lockstep = Lockstep(starts)
    # a run that ends first must not restore the settings while others still run
    with numerics(precision, deterministic):
        lockstep.hold()
    for member in lockstep.members:
        if member.error is not None and not isinstance(member.error, Diverged):
            raise member.error
    return [member.error or member.value for member in lockstep.members]


class Stopped(BaseException):
    """Raised in a run when the lockstep ends before it."""


class Member(Engine):
    """A run in a lockstep: an engine that stands in front of the run's own and shares its calls with the other runs."""

    def __init__(self, lockstep: Lockstep, start: Callable[[Member], Any]):
        self.lockstep, self.start = lockstep, start
        self.own: Batched | None = None
        self.asked: tuple[Call, np.ndarray] | None = None
        self.answer: list[Outcome] | Exception = []
        self.value: Any = None
        self.error: BaseException | None = None
        self.over = False
        self.together = 1  # number of runs in its first stack
        # its own share of the last answer, in seconds
        self.share = 0.0

    @property
    def runs(self) -> int:
        """Return how many runs were started together."""
        return len(self.lockstep.members)

    def wrap(self, engine: Engine) -> Engine:
        """Return this member in front of a run's engine, or the engine itself if it makes no stacks."""
        if not isinstance(engine, Batched):
            return engine
        self.own, self.job, self.name, self.compile = engine, engine.job, engine.name, engine.compile
        return self

    @property
    def remark(self) -> str:
        return f"; {self.together} runs in one stack" if self.together > 1 else ""

    def call(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        assert self.own is not None
        if not isinstance(call.function, str):  # personal models may differ between runs
            yield from self.own.call(call, ids)
            return
        began, self.asked = time.perf_counter(), (call, ids)
        self.lockstep.wait(self)
        self.others_seconds += time.perf_counter() - began - self.share
        if isinstance(self.answer, Exception):
            raise self.answer
        yield from self.answer

    def renew(self) -> None:
        super().renew()
        for stack in self.lockstep.stacks:
            stack.stale = stack.stale or self in stack.members

    @property
    def notes(self) -> list[str]:
        return [] if self.own is None else self.own.notes

    def close(self) -> None:
        if self.own is not None:
            self.own.close()

    def work(self) -> None:
        """Run the thread: the run from its first turn to its end."""
        try:
            self.lockstep.turn(self)
            self.value = self.start(self)
        except Stopped:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.over, self.asked = True, None
            self.lockstep.give_back()


class Lockstep:
    """Decides whose turn it is, and which engine answers."""

    def __init__(self, starts: Sequence[Callable[[Member], Any]]):
        self.members = [Member(self, start) for start in starts]
        self.stacks: list[SharedStack] = []
        self._changed = threading.Condition()
        self._whose: Member | None = None
        self._stopped = False

    def hold(self) -> None:
        """Let the runs take turns until all have ended."""
        for member in self.members:
            threading.Thread(target=member.work, daemon=True).start()
        try:
            while going := [member for member in self.members if not member.over]:
                for member in going:
                    if member.asked is None:
                        self._give(member)
                self._answer([member for member in going if member.asked is not None])
        # Ctrl-C: every run closes its folder; the round in progress is lost
        except BaseException:
            self._stopped = True
            self._returned()
            for member in self.members:
                while not member.over:
                    self._give(member)
            raise
        finally:
            for stack in self.stacks:
                stack.engine.close()

    # ---- turns

    def _give(self, member: Member) -> None:
        """Give a member its turn, until it calls its engine or ends."""
        with self._changed:
            self._whose = member
            self._changed.notify_all()
        self._returned()

    def _returned(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._whose is None)

    def give_back(self) -> None:
        with self._changed:
            self._whose = None
            self._changed.notify_all()

    def turn(self, member: Member) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._whose is member)
        if self._stopped:
            raise Stopped

    def wait(self, member: Member) -> None:
        self.give_back()
        self.turn(member)

    # ---- answers

    def _answer(self, asking: list[Member]) -> None:
        """Answer the calls of the earliest exchange, and among them those that ask for the same; the others wait, so
        that runs resumed at different rounds catch up with each other."""
        if not asking:
            return
        first = min(asking, key=lambda member: _when(member.asked))
        group = [member for member in asking if _question(member.asked) == _question(first.asked)]
        stack = next((stack for stack in self.stacks if first in stack.members), None) or self._stack(first)
        group = [member for member in group if member in stack.members]
        if len(group) > 1 and stack.fails is None:
            began = time.perf_counter()
            try:
                stack.answer(group)
                for member in group:
                    member.share = (time.perf_counter() - began) / len(group)
            # a fault of one run, or of stacking: answer each alone, which shows which it is
            except Exception as error:
                stack.answer_alone(group)
                if not any(isinstance(member.answer, Exception) for member in group):
                    stack.fails = str(error)
        else:
            stack.answer_alone(group)
        for member in group:
            member.asked = None

    def _stack(self, first: Member) -> SharedStack:
        """Return a stack of all runs that can stand beside this one. All have called or ended: none comes later."""
        free = [
            member
            for member in self.members
            if member.asked and not any(member in stack.members for stack in self.stacks)
        ]
        self.stacks.append(SharedStack([member for member in free if member is first or alike(first.own, member.own)]))
        return self.stacks[-1]


def _when(asked: Any) -> tuple[int, int]:
    return asked[0].round, asked[0].exchange


def _question(asked: Any) -> tuple[Any, ...]:
    """Return a value that is equal for calls that one stack can answer, as far as the calls tell."""
    call: Call = asked[0]
    shapes = [
        (name, value.shape[skip:], value.dtype)
        for skip, part in ((0, call.shared), (1, call.rows))
        for name, value in sorted(part.items())
    ]
    return (*_when(asked), call.trained, call.function, shapes)


class SharedStack:
    """Some runs, their clients side by side in one engine."""

    def __init__(self, members: list[Member]):
        self.members = members
        self.fails: str | None = None
        # whether a run's samples have changed since they were copied here
        self.stale = False
        engines = [member.own for member in members if member.own is not None]
        self.job = Joint([engine.job for engine in engines])
        # a copy, to keep the options that the runs were given
        self.engine = copy.copy(engines[0])
        self.engine.take(self.job)

    def answer(self, group: list[Member]) -> None:
        """Answer all calls as one, and give each run its share of the outcome."""
        if self.stale:
            self.engine.renew()
            self.stale = False
        where = {member: k for k, member in enumerate(self.members)}
        calls = [(member, *member.asked) for member in group if member.asked]
        ids = np.concatenate([ids + self.job.base[where[member]] for member, _, ids in calls])
        rows = {
            name: torch.cat([_rows(call, name, len(ids)) for _, call, ids in calls])
            for name in (*calls[0][1].shared, *calls[0][1].rows)
        }
        call = dc.replace(calls[0][1], shared={}, rows=rows)
        outcomes = [*self.engine.call(call, ids)]
        self.job.rows.flush()
        parts = [(whose, part) for outcome in outcomes for whose, part in self._parts(outcome)]
        for member in group:
            member.answer = [part for whose, part in parts if whose == where[member]]
            if member.together == 1:
                member.together = len(group)

    def _parts(self, outcome: Outcome) -> Iterator[tuple[int, Outcome]]:
        for whose, at, own in self.job.parts(outcome.ids):
            index = torch.from_numpy(at).to(self.job.task.device)
            up = {name: values[index] for name, values in outcome.up.items()}
            batches = outcome.batches[at] if isinstance(outcome.batches, np.ndarray) else outcome.batches
            yield whose, Outcome(own, up, outcome.samples[at], outcome.loss[at], outcome.trained, batches=batches)

    def answer_alone(self, group: list[Member]) -> None:
        """Answer the calls one after another; an error concerns its own run alone."""
        self.job.rows.staged = []
        for member in group:
            assert member.own is not None and member.asked is not None
            began = time.perf_counter()
            try:
                member.answer = [*member.own.call(*member.asked)]
            except Exception as error:
                member.answer = error
            member.share = time.perf_counter() - began


def _rows(call: Call, name: str, count: int) -> Tensor:
    """Return a part of a message with one row per client."""
    if name in call.rows:
        return call.rows[name]
    return call.shared[name].expand(count, *call.shared[name].shape)


class Joint(Job):
    """The jobs of several runs as one: client k of run r is client base[r] + k, and every question about it goes to its
    own run's job."""

    def __init__(self, jobs: list[Job]):
        self.jobs = jobs
        self.base = np.cumsum([0, *(len(job.data.train) for job in jobs)])
        self.rows = JointStates(jobs[0].states.shapes, self)
        first = jobs[0]
        data, local = _side_by_side([job.data for job in jobs]), self._local()
        super().__init__(first.method, first.task, data, local, first.seed, self.rows, first.mean_samples)

    @property
    def start(self) -> Tensor:
        """Return the start vector if all runs have the same; otherwise each run is answered alone."""
        if all(torch.equal(job.task.start, self.jobs[0].task.start) for job in self.jobs):
            return self.jobs[0].task.start
        raise EngineRefused("me.start differs between these runs: they are answered one after another.")

    def start_of(self, net: str) -> Tensor:
        starts = [job.start_of(net) for job in self.jobs]
        if all(torch.equal(start, starts[0]) for start in starts):
            return starts[0]
        raise EngineRefused("me.start_of differs between these runs: they are answered one after another.")

    def parts(self, ids: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield for every run among these clients its number, the positions of its clients, and their own numbers."""
        owner = np.searchsorted(self.base, ids, side="right") - 1
        for whose in np.unique(owner):
            at = np.flatnonzero(owner == whose)
            yield int(whose), at, ids[at] - self.base[whose]

    def renew(self) -> None:
        fill(self.data, _side_by_side([job.data for job in self.jobs]))
        super().renew()

    def numbers(self, ids: np.ndarray, round: int) -> dict[str, np.ndarray]:
        out: dict[str, np.ndarray] = {}
        for whose, at, own in self.parts(ids):
            for name, values in self.jobs[whose].numbers(own, round).items():
                out.setdefault(name, np.empty(len(ids)))[at] = values
        return out

    def keys(self, ids: np.ndarray, round: int, purpose: str) -> np.ndarray:
        out = np.empty(len(ids), dtype=np.int64)
        for whose, at, own in self.parts(ids):
            out[at] = self.jobs[whose].keys(own, round, purpose)
        return out

    def _local(self) -> LocalTraining:
        """Return the runs' local training; an amount that differs between runs becomes a function of the client."""
        own = {name: [getattr(job.local, name) for job in self.jobs] for name in AMOUNTS}
        several = [n for n, given in own.items() if not all(type(v) in PLAIN and v == given[0] for v in given)]
        return self.jobs[0].local.replaced(**{name: self._amount(name) for name in several})

    def _amount(self, name: str) -> Callable[[int, int], float]:
        def of_client(client: int, round: int) -> float:
            [(whose, _, own)] = self.parts(np.array([client]))
            return float(amount(name, getattr(self.jobs[whose].local, name), own, round)[0])

        return of_client


class JointStates:
    """The clients' states, each in its own run's store; new states are passed on when the call is done."""

    def __init__(self, shapes: Shapes, joint: Joint):
        self.shapes, self.joint = shapes, joint
        self.staged: list[tuple[np.ndarray, dict[str, Tensor]]] = []

    def read(self, ids: np.ndarray) -> tuple[dict[str, Tensor], Tensor]:
        order, states, first = [], [], []
        for whose, at, own in self.joint.parts(ids):
            state, new = self.joint.jobs[whose].states.read(own)
            order.append(at)
            states.append(state)
            first.append(new)
        back = torch.from_numpy(np.argsort(np.concatenate(order))).to(first[0].device)
        values = {name: torch.cat([state[name] for state in states])[back] for name in self.shapes}
        return values, torch.cat(first)[back]

    def stage(self, ids: np.ndarray, values: dict[str, Tensor]) -> None:
        self.staged.append((ids, values))

    def flush(self) -> None:
        for ids, values in self.staged:
            for whose, at, own in self.joint.parts(ids):
                index = torch.from_numpy(at)
                mine = {name: value[index.to(value.device)] for name, value in values.items()}
                self.joint.jobs[whose].states.stage(own, mine)
        self.staged = []


def _side_by_side(data: Sequence[Federation]) -> Federation:
    """Join federations into one with all their clients, without splits that some of them lack."""

    def joined(name: str) -> Columns | None:
        if any(name not in one.splits for one in data):
            return None
        parts = [one.splits[name] for one in data]
        sizes = np.concatenate([part.sizes for part in parts])
        return Columns(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]), offsets_of(sizes))

    # the runs' clients often have the same names, and a federation's names are distinct
    splits = as_arguments({name: joined(name) for name in data[0].splits})
    return data[0].replace(**splits, global_test=None, names=None, planted={})


# ---------------------------------------------------------------- which runs can be stacked


def alike(a: Batched | None, b: Batched | None) -> bool:
    """Return whether two runs differ in nothing but seed, data, start of the model, amounts of work and rates."""
    if a is None or b is None:
        return False
    return (
        type(a.job.method) is type(b.job.method)
        and str(settings(a.job.method)) == str(settings(b.job.method))
        and _kind(a.job.local) == _kind(b.job.local)
        # which clients are late is each run's own
        and not isinstance(a.job.local, ShortenedTraining)
        and a.job.states.shapes == b.job.states.shapes
        # each run draws its own batches of a public set, for all its clients
        and a.job.data.public is b.job.data.public is None
        and _same_model(a, b)
    )


def _kind(local: LocalTraining) -> tuple[bool, LocalTraining]:
    return local.steps is None, dc.replace(local, epochs=1, steps=None, lr=1.0)


def _same_model(a: Batched, b: Batched) -> bool:
    """Return whether both models are the same function of a vector: equal descriptions, and equal outputs for a few
    samples."""
    one, two = a.job.task, b.job.task
    if _described(one) != _described(two) or not torch.equal(one.start_buffers, two.start_buffers):
        return False
    rows = a.job.data.train.x[:8]
    if rows.shape[1:] != b.job.data.train.x.shape[1:]:
        return False
    vector = one.layout.repack(one.start, a.pure.layout)
    with torch.no_grad():
        return torch.equal(*(e.pure(vector, one.start_buffers, rows, train=False)[0] for e in (a, b)))


def _described(task: Task) -> tuple[Any, ...]:
    settings = (task.dtype, task.device, task.precision, task.buffer_policy, task.loss)
    return (*settings, task.layout.places, task.buffer_layout.places, task.head, str(task.module))
