"""One round: its exchanges with clients, message checks, byte counts, the sums of replies, divergence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from unalike.channel import Sums
from unalike.contract import BUFFERS, Answer, Call, Message, Outcome, Replies, Server, function_name
from unalike.engines.engine import Engine
from unalike.errors import Diverged, UnalikeError
from unalike.messages import wire
from unalike.messages.check import check_reply, reply_fields
from unalike.messages.request import message_parts


class Round:
    """The exchanges of one round (-1: of the set-up); `listeners` are shown every outcome on its way."""

    def __init__(self, engine: Engine, server: Server, round: int, listeners: Sequence[Callable[[Outcome], None]] = ()):
        self.engine, self.method, self.server = engine, engine.job.method, server
        self.population, self.round, self.listeners = len(engine.job.data), round, listeners
        self.exchange = self.trained = self.lost = 0  # lost: most clients that did not answer an exchange
        self.bytes_down = self.bytes_up = 0
        self.losses: list[np.ndarray] = []
        self._buffers: list[tuple[np.ndarray, Tensor, float]] = []  # of each exchange: who trained, sum, weight
        self.fields = reply_fields(self.method, engine.job.task)

    # ---- what a cohort asks

    def samples(self, ids: np.ndarray) -> np.ndarray:
        """Return the clients' numbers of training samples."""
        return self.engine.job.data.train.sizes[ids]

    def rates(self, ids: np.ndarray) -> np.ndarray:
        """Return the clients' learning rates in this round."""
        return self.engine.job.local.rates(ids, self.round)

    def call(self, fn: Callable[..., Answer], ids: np.ndarray, message: Message) -> Replies:
        """Run a client function of the method on these clients and gather their replies."""
        if len(ids) == 0:
            raise UnalikeError(f"{type(self.method).__name__} called a cohort of no clients in round {self.round + 1}.")
        name = function_name(self.method, fn)
        task = self.engine.job.task
        shared, rows = message_parts(message, len(ids), self.server.values, task)
        self.bytes_down += wire.payload(shared) * len(ids) + wire.payload(rows)
        call = Call(name, shared, rows, self.round, self.exchange, self.trained)
        self.exchange += 1
        sums, trained = Sums(self.fields, self.method, self.engine.ordered), 0
        for outcome in self.engine.call(call, ids):
            check_reply(outcome.up, self.fields, task, self.method, name)
            self.bytes_up += wire.payload(outcome.up)
            trained = max(trained, outcome.trained)
            sums.add(outcome)
            sums.add_losses(self._losses(outcome))  # waits for the device: after it was given the sums to do
            for listener in self.listeners:
                listener(outcome)
        sums.close(ids)
        self.trained += trained
        self.lost = max(self.lost, len(ids) - len(sums.ids))
        self.losses.append(sums.losses)
        if BUFFERS in sums.names:
            # a client that trained again counts as it is now: its earlier exchange goes, for want of single rows
            self._buffers = [part for part in self._buffers if not np.isin(part[0], ids).any()]
            self._buffers.append((ids, sums.total(BUFFERS), sums.weights[BUFFERS]))
        return Replies(sums, task.dtype)

    def finish(self) -> None:
        """End the round: buffers averaged over all clients that trained become the server's."""
        if self._buffers:
            _, sums, weights = zip(*self._buffers, strict=True)
            mean = torch.stack(sums).sum(0) / sum(weights)
            self.server.buffers = self.server.buffers + mean.to(self.server.buffers.dtype)

    @property
    def train_loss(self) -> float | None:
        """The mean training loss of all clients that trained."""
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
                    finite &= torch.isfinite(value).reshape(len(value), -1).all(1).cpu().numpy()
        bad = np.isinf(outcome.loss) | ~finite
        if bad.any():
            clients = [int(k) for k in outcome.ids[bad]]
            named = ", ".join(map(str, clients[:5])) + (" and others" if len(clients) > 5 else "")
            raise Diverged(
                f"Round {self.round + 1}: the loss or weights of client {named} became NaN or infinite; the last "
                "checkpoint is kept. A smaller lr or clip_norm=10 usually helps.",
                self.round + 1,
                clients,
            )
        return outcome.loss
