"""The virtual clock in synchronous rounds: who answers in time, and how long the server waits."""

from __future__ import annotations

import dataclasses as dc

import numpy as np

from unalike.channel import Channel
from unalike.client.rehearsal import Training
from unalike.contract import Call
from unalike.engines.engine import Engine
from unalike.messages import wire
from unalike.run.clock import Devices
from unalike.training.settings import ShortenedTraining


class Work:
    """What a call takes of a client: mini-batches and bytes, found by a rehearsal of the function and kept."""

    def __init__(self, engine: Engine, channel: Channel | None):
        self.engine, self.channel = engine, channel
        self._known: dict[str, tuple[list[Training], int]] = {}

    def _of(self, call: Call) -> tuple[list[Training], int]:
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
        none = np.zeros(len(ids), dtype=np.int64)
        return sum((training.steps(self.engine.job, ids, call.round) for training in trainings), none)

    def up(self, call: Call) -> int:
        """Return the bytes of a reply."""
        return self._of(call)[1]


@dc.dataclass
class Timing:
    """One round on the clock: `time` goes on with every exchange, and one client at least is waited for. enough: how
    many answers the server waits for, where it has asked more clients; local: the clients' training, where late ones do
    the steps that fit; gone: those that were late or vanished, and take no further part in the round."""

    devices: Devices
    work: Work
    round: int
    time: float
    enough: int | None = None
    local: ShortenedTraining | None = None
    gone: set[int] = dc.field(default_factory=set)

    def exchange(self, call: Call, ids: np.ndarray, down: float) -> np.ndarray:
        """Let the clients do their part; return which of them answer in time. down: bytes that each is sent."""
        if not len(ids):
            return np.ones(0, dtype=bool)
        clock, travel = self.devices.clock, self.devices.travel(ids, self.time, down, self.work.up(call))
        each = self.devices.step_seconds(ids, self.round, self.time)
        if self.local is not None:
            self._shorten(self.local, call, ids, travel, each)
        seconds = travel + self.work.steps(call, ids) * each
        here = ~np.isin(ids, [*self.gone])
        vanished, share = self.devices.vanishing(ids, self.round)
        vanished &= bool((here & ~vanished).any())  # one stays at least
        ends = np.where(vanished, share * seconds, seconds)  # the server notices that a client is gone
        if clock.cutoff is not None:  # 0.1 + 0.1 + 0.1 is in time for 0.3
            ends = np.where(np.isclose(ends, clock.cutoff, rtol=1e-9, atol=0), clock.cutoff, ends)
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

    def _shorten(
        self, local: ShortenedTraining, call: Call, ids: np.ndarray, travel: np.ndarray, each: np.ndarray
    ) -> None:
        """Let clients that would be late do the steps that fit into the cutoff, each of their trainings in proportion.
        travel: the seconds of their messages; each: those of a mini-batch."""
        local.part.clear()  # steps are counted whole first
        asked, left = self.work.steps(call, ids), (self.devices.clock.cutoff or np.inf) - travel
        fit = np.floor(left / each + 1e-9).clip(min=0)
        late = np.flatnonzero(fit < asked)
        local.part.update({int(ids[k]): (int(fit[k]), int(asked[k])) for k in late})
