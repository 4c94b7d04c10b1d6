"""The virtual clock in synchronous rounds: who answers in time, and how long the server waits."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable

import numpy as np

from unalike.channel import Channel
from unalike.contract import Call
from unalike.engines.engine import Engine
from unalike.messages import wire
from unalike.run.clock import Devices
from unalike.training.settings import LocalTraining


class Work:
    """What a call takes of a client: mini-batches and bytes, found by a rehearsal of the function and kept."""

    def __init__(self, engine: Engine, channel: Channel | None):
        self.engine, self.channel = engine, channel
        self._known: dict[str, tuple[list[LocalTraining], int]] = {}

    def _of(self, call: Call) -> tuple[list[LocalTraining], int]:
        assert isinstance(call.function, str)
        if call.function not in self._known:
            sent = self.engine.rehearsal.sent(call)
            saved = 0 if self.channel is None else self.channel.saved([name for name in sent if name in self._sizes])
            trainings = [*self.engine.rehearsal.trainings(call)]
            self._known[call.function] = trainings, wire.payload(sent) - saved
        return self._known[call.function]

    @property
    def _sizes(self) -> dict[str, int]:
        return {} if self.channel is None else self.channel.sizes

    def steps(self, call: Call, ids: np.ndarray) -> np.ndarray:
        """Return the mini-batches that each of these clients trains on."""
        trainings, _ = self._of(call)
        sizes, none = self.engine.sizes[ids], np.zeros(len(ids), dtype=np.int64)
        return sum((local.counts(ids, sizes, call.round) for local in trainings), none)

    def up(self, call: Call) -> int:
        """Return the bytes of a reply."""
        return self._of(call)[1]


@dc.dataclass
class Timing:
    """One round on the clock: `time` goes on with every exchange, and one client at least is waited for. enough: how
    many answers the server waits for, where it has asked more clients; gone: those that were late or vanished, and take
    no further part in the round."""

    devices: Devices
    work: Work
    round: int
    time: float
    enough: int | None = None
    gone: set[int] = dc.field(default_factory=set)

    def exchange(self, call: Call, ids: np.ndarray, down: float) -> np.ndarray:
        """Let the clients do their part; return which of them answer in time. down: bytes that each is sent."""
        if not len(ids):
            return np.ones(0, dtype=bool)
        clock, steps = self.devices.clock, self.work.steps(call, ids)
        seconds = self.devices.seconds(ids, self.round, self.time, steps, down, self.work.up(call))
        here = ~np.isin(ids, [*self.gone])
        vanished, share = self.devices.vanishing(ids, self.round)
        vanished &= bool((here & ~vanished).any())  # one stays at least
        ends = np.where(vanished, share * seconds, seconds)  # the server notices that a client is gone
        there, wait = here & ~vanished, float(ends[here].max(initial=0.0))
        if self.enough is not None and there.sum() >= self.enough:
            wait = float(np.sort(ends[there])[self.enough - 1])
            there &= (ends <= wait) & (np.cumsum(there & (ends <= wait)) <= self.enough)
        if clock.cutoff is not None and wait > clock.cutoff:
            wait = max(clock.cutoff, float(ends[there].min(initial=np.inf)) if there.any() else 0.0)
            there &= ends <= wait
        self.time += wait
        self.gone |= {*ids[~there].tolist()}
        return there


def partial_work(
    local: LocalTraining, devices: Devices, sizes: np.ndarray, travel: Callable[[np.ndarray], np.ndarray]
) -> LocalTraining:
    """Return local training that ends with the last step that fits into the cutoff, one at least; travel: the seconds
    that clients' messages are on their way."""
    cutoff = devices.clock.cutoff
    assert cutoff is not None

    def steps(client: int, round: int) -> int:
        ids = np.array([client])
        whole = int(local.counts(ids, sizes[ids], round)[0])
        fit = (cutoff - travel(ids)[0]) / devices.step_seconds(ids, round)[0]
        return max(1, min(whole, int(np.floor(fit + 1e-9))))

    return local.replaced(steps=steps)
