"""One round: its exchanges with clients, message checks, byte counts, the sums of replies, divergence."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike.channel import Channel, Passage, Sums, SumsByArchitecture
from unalike.channel.aged import AgedSums
from unalike.channel.channel import KEPT
from unalike.channel.passage import Kept
from unalike.channel.stage import Common
from unalike.channel.stages.secure_sum import LARGEST
from unalike.channel.summing import Summing
from unalike.contract import (
    BUFFERS,
    Answer,
    Arrived,
    Call,
    Fields,
    Message,
    Method,
    Outcome,
    PerClient,
    Replies,
    Server,
    Vectors,
    function_name,
)  # fmt: skip
from unalike.contract.architectures import remaining
from unalike.contract.peers import Parcels, Sealed, check_message, parcels_of
from unalike.contract.staleness import staleness_weight
from unalike.engines.engine import Engine
from unalike.engines.families import Families, divided
from unalike.errors import Diverged, UnalikeError
from unalike.messages import wire
from unalike.messages.check import check_reply, reply_fields
from unalike.messages.request import message_parts, told_parts
from unalike.messages.sealed import peer_payload
from unalike.nn.numerics import finite_rows
from unalike.run.spending import Spending
from unalike.run.timing import Timing, Work
from unalike.run.under_way import UnderWay


class Round:
    """The exchanges of one round (round -1: the set-up). listeners: called with every outcome. channel: the stages that
    replies pass through, and the store for each client's state in them. expected: the cohort's mean size. secret:
    whether the server's noise comes from the operating system. nobody: whether the drawn cohort is empty. spending:
    asked before every exchange under noise, and told after it. timing: the clock, of a synchronous round. under_way: of
    an asynchronous one, with the work that its calls take. buffer: the arrivals that answer a call, if the method need
    not know that the run is asynchronous. staleness: how these count by their age."""

    def __init__(
        self,
        engine: Engine,
        server: Server,
        round: int,
        listeners: Sequence[Callable[[Outcome], None]] = (),
        channel: Channel | None = None,
        kept: Kept | None = None,
        expected: float | None = None,
        secret: bool = False,
        nobody: bool = False,
        spending: Spending | None = None,
        timing: Timing | None = None,
        under_way: UnderWay | None = None,
        work: Work | None = None,
        buffer: int = 0,
        staleness: str = "constant",
    ):
        self.timing, self.under_way, self.work, self.buffer, self.staleness = timing, under_way, work, buffer, staleness
        self.arrivals = np.empty(0, dtype=np.int64)  # who arrived in this round
        self.ages: list[int] = []  # of the replies that arrived
        self.share = 1.0  # of BatchNorm's statistics that is the clients', the rest is the server's own
        self.channel, self.kept, self.expected, self.secret, self.nobody = channel, kept, expected, secret, nobody
        self.spending = spending
        self.engine, self.method, self.server = engine, engine.job.method, server
        # then facts beside a reply's fields, such as its loss, are not used
        self.hidden = engine.job.hidden
        self.population, self.round, self.listeners = len(engine.job.data), round, listeners
        self.exchange = self.trained = 0
        self._silent: set[int] = set()
        self.bytes_down = self.bytes_up = self.bytes_peer = 0
        # bytes that the channel saved of those sent up
        self.bytes_saved = 0
        # batches that all clients together trained on
        self.batches = 0
        # how often a client used any one of its samples in a step, where that is counted (DP-SGD)
        self.passes = None if engine.job.local.sample_clip is None else np.zeros(self.population, dtype=np.int64)
        self.losses: list[np.ndarray] = []
        # per exchange, and per architecture where there are several: who trained, sum, weight
        self._buffers: dict[str, list[tuple[np.ndarray, Tensor, float]]] = {}
        parts = engine.parts if isinstance(engine, Families) else {"": engine}
        self.tasks = {name: part.job.task for name, part in parts.items()}
        self.fields = {name: reply_fields(self.method, task) for name, task in self.tasks.items()}
        self.hides = type(self.method).__name__ if channel is not None and channel.central else ""
        if self.hides:  # weights by sample counts have no bound
            equal = {n: dc.replace(field, weight="one") for n, field in self.fields[""].items()}
            self.fields = {"": equal}
        if spending is not None:
            spending.begin(round)
        self._serverless = type(self.method).__name__ if self.method.serverless else ""
        self._sealed = {name for name, field in self.method.sends.items() if field.read == "sealed"}

    # ---- requests of a cohort

    @property
    def populations(self) -> int | Vectors:
        """Return the number of clients, by architecture where there are several."""
        several = self.engine.architectures
        if several is None:
            return self.population
        return Vectors({name: len(several.clients(name)) for name in several.names})

    def samples(self, ids: np.ndarray) -> np.ndarray:
        """Return the clients' numbers of training samples."""
        return self.engine.sizes[ids]

    def rates(self, ids: np.ndarray) -> np.ndarray:
        """Return the clients' learning rates in this round."""
        ids = self.arrivals if self.buffer else ids
        return self.engine.job.local.rates(ids, self.round)

    @property
    def lost(self) -> int:
        """Return the number of clients that did not answer an exchange they were asked in."""
        return len(self._silent)

    def call(self, fn: Callable[..., Answer], ids: np.ndarray, message: Message, of_round: bool = False) -> Replies:
        """Run a client function of the method on these clients and collect their replies; of_round: they are all of the
        round's clients."""
        if self.buffer:
            return self._arriving(fn, message)
        if len(ids) == 0 and not self.nobody:
            raise UnalikeError(f"{type(self.method).__name__} called a cohort of no clients in round {self.round + 1}.")
        name = function_name(self.method, fn)
        task = self.engine.job.task
        if self._serverless:
            check_message(self._serverless, message)
        asked, when = ids, (self.round, self.exchange)
        sealed = {part: parcels_of(value) for part, value in message.items() if isinstance(value, Sealed)}
        plain = {part: value for part, value in message.items() if part not in sealed}
        shared, rows = message_parts(plain, len(ids), self.server.values, task)
        if self.channel is not None and self.channel.hides:
            _check_rows(self.method, [*rows, *sealed])
        parcels: dict[str, Parcels] = {}
        if sealed:
            ids, rows, parcels = self._delivered(sealed, ids, rows)
        passage = None if self.channel is None else self._passage(ids, self.channel, when, of_round)
        told = {} if passage is None else passage.told
        call = Call(name, shared, rows, self.round, self.exchange, self.trained, told=told)
        self.bytes_down += (down := self._payload(call, ids))
        if passage is not None and passage.summing is not None:
            self.bytes_down += passage.channel.hiding.down(len(ids)) * len(ids)
        if parcels:
            rows = {**rows, **{part: some.rows for part, some in parcels.items()}}
            parcels = {part: some for part, some in parcels.items() if some.field in self._sealed}
            call = dc.replace(call, rows=rows, parcels=parcels)
        if self.timing is not None:
            call, ids = self._in_time(self.timing, call, ids, down / max(1, len(ids)))
        if self.spending is not None:
            self.spending.ask(self.exchange, of_round)
        self.exchange += 1
        sums = self._gathered(call, ids, passage, of_round)
        self._silent |= {*asked.tolist()} - {*map(int, sums.ids)}
        return self._replies(sums, passage, asked, when)

    def _replies(self, sums: Any, passage: Passage | None, asked: np.ndarray, when: tuple[int, int]) -> Replies:
        secret = passage is not None and (passage.channel.private or passage.channel.hides)
        noised = type(self.method).__name__ if secret else ""
        constant = passage.expected if passage is not None and self.hides else None
        return Replies(sums, self.engine.job.task.dtype, asked, when, self._serverless, noised, constant)

    def _in_time(self, timing: Timing, call: Call, ids: np.ndarray, down: float) -> tuple[Call, np.ndarray]:
        """Return the call and the clients of those that answer before the server goes on."""
        there = timing.exchange(call, ids, down)
        if there.all():
            return call, ids
        rows = remaining(call.rows, ids, there, self.engine.architectures)
        parcels = {part: some.at(ids[there], part)[1] for part, some in call.parcels.items()}
        return dc.replace(call, rows=rows, parcels=parcels), ids[there]

    def _gathered(
        self, call: Call, ids: np.ndarray, passage: Passage | None, of_round: bool = False
    ) -> Sums | SumsByArchitecture:
        """Let the engine answer a call, and gather the replies."""
        name = str(call.function)
        expected = {}
        if self.passes is not None and len(ids):
            passes = self.engine.passes(call, ids)
            np.add.at(self.passes, ids, passes)
            expected = dict(zip(ids.tolist(), passes.tolist(), strict=True))
        sums, trained = self._sums(), 0
        if not len(ids) and isinstance(sums, Sums):
            sums.add(self._no_replies(call, name))
            sums.expect(1.0)  # so that means are zero too

        def send(outcome: Outcome) -> None:
            own = self._architecture(outcome)
            check_reply(outcome.up, self.fields[own], self.tasks[own], self.method, name)
            if passage is not None and passage.summing is not None and outcome.summed is None:
                # in whole codes a number that is not finite would not show
                self._losses(outcome)
            if passage is not None:
                passage.send(outcome)

        for outcome in self.engine.call_and_send(call, ids, send) if len(ids) else ():
            self.bytes_up += self._taken(outcome, passage)
            trained = max(trained, outcome.trained)
            if outcome.passes and outcome.passes > expected.get(int(outcome.ids[0]), 0):
                raise UnalikeError(
                    f"{type(self.method).__name__}.{name}: how long a client trains depends on its own values "
                    "(me.n, its message or state), so that sample_clip cannot count it."
                )
            self.batches += 0 if self.hidden else int(np.sum(outcome.batches))
            sums.add(outcome)
            # this waits for the device, so it comes after the sums were queued
            losses = self._losses(outcome)
            sums.add_losses(np.full(len(losses), np.nan) if self.hidden else losses)
            for listener in self.listeners:
                listener(outcome)
        sums.close(ids)
        if passage is not None and isinstance(sums, Sums):
            down, up = passage.opening_bytes(len(sums.ids))
            self.bytes_down, self.bytes_up = self.bytes_down + down, self.bytes_up + up
            self.bytes_saved += passage.saved(sums) - up
            if self.spending is not None and (sums.names or not len(ids)):
                self.spending.take(of_round)
            passage.close(sums)
        self.trained += trained
        self.losses.append(sums.losses if passage is None or passage.summing is None else passage.losses)
        if isinstance(sums, SumsByArchitecture):
            for own, who, total, weight in sums.buffers():
                self._take_buffers(own, who, total, weight)
        elif BUFFERS in sums.names:
            self._take_buffers("", ids, self._since(call, sums), sums.weights[BUFFERS])
        return sums

    def _since(self, call: Call, sums: Sums) -> Tensor:
        """Return the sum of the clients' statistics less the server's present ones, whichever they began with."""
        total = sums.total(BUFFERS)
        if self.under_way is None:
            return total
        return total + sums.weights[BUFFERS] * (call.shared[BUFFERS] - self.server.values[BUFFERS]).to(total)

    # ---- clients that arrive when they can

    def start(self, fn: Callable[..., Answer], message: Message) -> None:
        """Let free clients begin with a function of the method and this message."""
        name, method = function_name(self.method, fn), type(self.method).__name__
        if self.under_way is None:
            raise UnalikeError(f"{method} starts clients that arrive later: it must say asynchronous = 'is'.")
        if any(isinstance(part, PerClient | Sealed) for part in message.values()):
            raise UnalikeError(f"{method} sends each client a row of its own, and nobody knows who begins.")
        shared, _ = message_parts(message, 0, self.server.values, self.engine.job.task)
        shared = {part: value.clone() for part, value in shared.items()}  # as it is now, whatever the server does
        told = {} if self.channel is None else self.channel.told(self.server.values)
        call = Call(name, shared, {}, self.round, 0, told=told)
        self.under_way.start(call, lambda ids: self._seconds(call, ids))

    def _seconds(self, call: Call, ids: np.ndarray) -> np.ndarray:
        """Return how long clients take that begin now with this call, and count the bytes that they are sent."""
        assert self.under_way is not None and self.work is not None
        devices, each = self.under_way.devices, wire.payload({**call.shared, **told_parts(call)})
        self.bytes_down += each * len(ids)
        steps, up = self.work.steps(call, ids), self.work.up(call)
        return devices.seconds(ids, call.round, self.under_way.time, steps, each, up)

    def arrived(self, count: int) -> list[Arrived]:
        """Wait until so many replies have arrived; return them by the version they began with, the oldest first."""
        found = self._groups(count)
        return [Arrived(age, self._replies(sums, None, ids, when), began) for age, sums, ids, when, began in found]

    def _groups(self, count: int) -> list[tuple[int, Any, np.ndarray, tuple[int, int], Fields]]:
        if self.under_way is None:
            raise UnalikeError(f"{type(self.method).__name__} waits for clients that nobody started.")
        out = []
        for call, ids in self.under_way.arrived(count):
            when = (call.round, call.exchange)
            passage = None if self.channel is None else self._passage(ids, self.channel, when, of_round=False)
            if passage is not None:
                passage.told = call.told  # as they were told when they began
            out.append((self.round - call.round, self._gathered(call, ids, passage), ids, when, Fields(call.shared)))
            self.ages += [self.round - call.round] * len(ids)
        self.exchange += 1
        self.arrivals = np.sort(np.concatenate([self.arrivals, *(ids for _, _, ids, _, _ in out)]))
        return out

    def _arriving(self, fn: Callable[..., Answer], message: Message) -> Replies:
        """Answer a call of a method that knows nothing of arrivals by the next ones."""
        if self.exchange:
            raise UnalikeError(
                f"{type(self.method).__name__} calls its clients twice in a round, and in an asynchronous run those "
                "that answer are others each time: run it synchronously."
            )
        self.start(fn, message)
        groups = self._groups(self.buffer)
        sums = [(staleness_weight(self.staleness, age), sums) for age, sums, *_ in groups]
        ids, when = self.arrivals, (self.round, 0)
        return self._replies(AgedSums(sums) if len(sums) > 1 else sums[0][1], None, ids, when)

    def _no_replies(self, call: Call, name: str) -> Outcome:
        """Return the outcome of a call with no clients: every field that the function sends, with no rows."""
        sent = self.engine.rehearsal.sent(call)
        for field in sent:
            if self.fields[""][field].read != "sum":
                raise UnalikeError(
                    f"Nobody takes part in round {self.round + 1}, and {type(self.method).__name__} reads {field!r} of "
                    "each client by itself: draw again when nobody comes (leave out empty), or take fixed cohorts."
                )
        up = {field: value.new_zeros((0, *value.shape)) for field, value in sent.items()}
        check_reply(up, self.fields[""], self.tasks[""], self.method, name)
        return Outcome(np.empty(0, dtype=np.int64), up, np.empty(0), np.empty(0))

    def _passage(self, ids: np.ndarray, channel: Channel, when: tuple[int, int], of_round: bool) -> Passage:
        """Return the channel's `Passage` for an exchange with these clients."""
        job = self.engine.job
        expected = self.expected if self.expected is not None and of_round else float(len(ids))
        draw = lambda ids: job.channel_draws(ids, *when)  # noqa: E731
        if channel.hides:
            if not when[1]:
                self.engine.greet()
            self.server.values[KEPT + LARGEST] = float(self.engine.sizes.max())
        return Passage(
            channel, self.kept, self.server.values, draw, job.seed, when, expected, self.secret,
            self._summing if channel.hides else None, len(ids), frozenset(self._sealed),
        )  # fmt: skip

    def _summing(self, common: Common, told: Mapping[str, float], clients: int) -> Summing:
        """Return the description of the secure sum in an exchange whose single replies are hidden."""
        assert self.channel is not None
        return Summing(self.channel, self.fields[""], self.method, common, told, clients)

    def _taken(self, outcome: Outcome, passage: Passage | None) -> int:
        """Pass an outcome through the channel, if there is one; return the bytes of its numbers."""
        through = 0 if passage is None else passage.take(outcome)
        plain = self._to_server(outcome.up)
        if passage is not None:
            plain = {name: value for name, value in plain.items() if not passage.channel.touches(name, value)}
        return through + wire.payload(plain)

    def _delivered(
        self, sealed: dict[str, Parcels], ids: np.ndarray, rows: dict[str, Tensor]
    ) -> tuple[np.ndarray, dict[str, Tensor], dict[str, Parcels]]:
        """Bring rows sent by clients into the order of their receivers. Return the clients that have all their rows,
        the server's rows for them and the clients' rows for them. A receiver whose sender did not answer is left
        out."""
        there = np.ones(len(ids), dtype=bool)
        for part, some in sealed.items():
            if some.round != self.round:
                raise UnalikeError(
                    f"The rows of {some.field!r} came in round {some.round + 1} and are passed on in round "
                    f"{self.round + 1}: pass them on in the round they came in."
                )
            found, _ = some.at(ids, part)
            for client in ids[there & ~found]:
                self.engine.leave_out(int(client), f"the client that was to send it {some.field!r} did not answer.")
            there &= found
        parcels = {part: some.at(ids[there], part)[1] for part, some in sealed.items()}
        for some in parcels.values():
            self.bytes_peer += peer_payload(some.rows, self.method.sends[some.field])
        return ids[there], remaining(rows, ids, there, self.engine.architectures), parcels

    def _to_server(self, up: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the fields that the server can read; sealed fields are counted where they are passed on."""
        if not self._sealed.intersection(up):
            return up
        return {name: value for name, value in up.items() if name not in self._sealed}

    def _architecture(self, outcome: Outcome) -> str:
        """Return the architecture of an outcome's clients; "" if there is only one."""
        several = self.engine.architectures
        return "" if several is None else several.name(int(outcome.ids[0]))

    def _payload(self, call: Call, ids: np.ndarray) -> int:
        """Return the bytes of a call's numbers, summed over all clients."""
        several = self.engine.architectures
        parts = [("", call, ids)] if several is None else divided(several, call, ids)
        numbers = sum(wire.payload(own.shared) * len(some) + wire.payload(own.rows) for _, own, some in parts)
        return numbers + wire.payload(told_parts(call)) * len(ids)

    def _sums(self) -> Sums | SumsByArchitecture:
        several, ordered = self.engine.architectures, self.engine.ordered
        if several is None:
            return Sums(self.fields[""], self.method, ordered)
        return SumsByArchitecture(several, self.fields, self.method, ordered, self.engine.job.task.start)

    def _take_buffers(self, architecture: str, ids: np.ndarray, total: Tensor, weight: float) -> None:
        # a client that trained twice counts once, with its later result; single rows are not kept, so its whole earlier
        # exchange is dropped
        earlier = [part for part in self._buffers.get(architecture, ()) if not np.isin(part[0], ids).any()]
        self._buffers[architecture] = [*earlier, (ids, total, weight)]

    def statistics(self) -> Tensor | Vectors | None:
        """Return BatchNorm's statistics, averaged over the clients that trained in this round; the server's own if none
        did."""
        found: Tensor | Vectors | None = self.server.values.get(BUFFERS)
        for architecture, parts in self._buffers.items():
            _, sums, weights = zip(*parts, strict=True)
            mean = self.share * torch.stack(sums).sum(0) / sum(weights)
            if isinstance(found, Vectors):
                own = {architecture: found[architecture] + mean.to(found.dtype)}
                found = Vectors({**dict(found.items()), **own})
            elif found is not None:
                found = found + mean.to(found.dtype)
        return found

    def finish(self) -> None:
        """End the round: the server takes over the buffers averaged over all clients that trained."""
        if self._buffers:
            self.server.values[BUFFERS] = self.statistics()

    @property
    def train_loss(self) -> float | None:
        """Return the mean training loss of all clients that trained."""
        losses = np.concatenate(self.losses) if self.losses else np.empty(0)
        losses = losses[~np.isnan(losses)]
        return float(losses.mean()) if len(losses) else None

    def _losses(self, outcome: Outcome) -> np.ndarray:
        """Return the clients' training losses; raise `Diverged` if any loss or reply is not finite."""
        finite = outcome.finite
        if finite is None:
            finite = np.ones(len(outcome.ids), dtype=bool)
            for value in outcome.up.values():
                if value.is_floating_point():
                    finite &= finite_rows(value).cpu().numpy()
        bad = np.isinf(outcome.loss) | ~finite
        if bad.any():
            clients = [] if self.hidden else [int(k) for k in outcome.ids[bad]]  # under noise no client is named
            named = f"client {', '.join(map(str, clients[:5]))}" if clients else "a client"
            named += " and others" if len(clients) > 5 else ""
            raise Diverged(
                f"Round {self.round + 1}: the loss or weights of {named} became NaN or infinite; the last "
                "checkpoint is kept. A smaller lr or clip_norm=10 usually helps.",
                self.round + 1,
                clients,
            )
        return outcome.loss


def _check_rows(method: Method, names: list[str]) -> None:
    """Refuse rows for single clients that clients would refuse where replies are hidden in sums."""
    if other := next((name for name in names if name not in method.own_rows), None):
        raise UnalikeError(
            f"{type(method).__name__} sends {other!r} to each client for itself, and its replies are hidden in sums: "
            "there all clients get the same, but for parts that the method declares (own_rows)."
        )
