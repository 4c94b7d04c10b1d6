"""A client on its own: its state in a folder, its answers as bytes. This is what each owner runs in a real federation.

`loopback` runs it in one process; a network only has to carry the bytes.
"""

from __future__ import annotations

import dataclasses as dc
import functools
import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike.channel.channel import Channel, shared_draws
from unalike.channel.stage import Way
from unalike.channel.summing import BeyondLimit, Summing
from unalike.channel.travel import packed
from unalike.client.job import Job
from unalike.client.one_client import OneClient
from unalike.client.secure import ABOUT, HidingClient, bound_at_client
from unalike.client.state_on_disk import CHANNEL, REPLY, REQUEST, ROUND, StateFolder
from unalike.contract import LOSS, Call, Evaluate, Fields
from unalike.data.columns import digest, samples_hash
from unalike.errors import Diverged, UnalikeError, Withheld
from unalike.messages import wire
from unalike.messages.check import asked_call, check_fields, check_reply, reply_fields, take_told
from unalike.messages.request import Asked, asked
from unalike.messages.sealed import Sealer, asked_wraps, bytes_of, deliveries, key_about, row_about, row_of, text_of


class Node:
    """Answers requests for one client."""

    def __init__(
        self,
        job: Job,
        client: int,
        state: StateFolder,
        one_client: OneClient,
        sealer: Sealer | None = None,
        secure: HidingClient | None = None,
        admit: Callable[[Call], None] = lambda call: None,
        plan: bytes = b"",
    ):
        """sealer: seals rows for other clients; without one they are sent in the clear (`loopback`). secure: its part
        in sums of replies that the server does not see, if any. admit: raises if the owner does not allow one more
        newly computed answer. plan: a hash of the run's plan, to which hidden sums are bound."""
        self.job, self.client, self.state, self.one_client = job, client, state, one_client
        self.sealer, self.secure, self.admit, self.plan, self.repeated = sealer, secure, admit, plan, False

    def handle(self, *parts: bytes) -> bytes:
        """Answer a request, which may come in two parts: one that all clients get, and this client's own."""
        return self.answer(asked(parts))

    def answer(self, request: Asked) -> bytes:
        """Answer a request; a repeated request gets the same answer as before (`repeated` says so). The client's state
        is read once and written once."""
        header, tensors, self.repeated = request.header, dict(request.tensors), False
        call = asked_call(header, self.job.method)
        channel = None if isinstance(call.function, Evaluate) else self.job.channel
        dealt = {name: tensors.pop(name) for name in ABOUT if name in tensors}
        told = take_told(tensors, () if channel is None else channel.told({}))
        tensors = self._opened(header, call, tensors)
        check_fields(tensors, self.job.task)
        if isinstance(call.function, Evaluate):
            self.admit(call)
            return self._evaluate(header, call, call.function.split, tensors)
        with self.state.open():
            again = self.state.answered(request.digest)
            if again is not None:
                self.repeated = True
                return again
            self.admit(call)
            return self._exchange(request, dc.replace(call, told=told), tensors, dealt)

    def _exchange(self, request: Asked, call: Call, tensors: dict[str, Tensor], dealt: dict[str, Tensor]) -> bytes:
        """Run a new call, keep its state as pending, and return the reply's bytes. dealt: the parts of the request that
        are about the sum."""
        header, networked = request.header, "acknowledged" in request.header
        hides = self.job.channel is not None and self.job.channel.hides
        asked = bound_at_client(request.parts, self.job.method.own_rows, self.plan) if hides else b""
        if networked:
            self.state.settle(header["acknowledged"])
        self.state.begin(call.round, call.exchange)
        state, first = self.state.read()
        if networked and self.secure is not None:
            self.secure.reply_from((call.round, call.exchange), self._stands_for(state, first))
        with _withholding(hides and networked):
            kept, sent, loss = self._run(call, tensors, state, first)
        # only declared fields, in their declared shapes, may leave
        fields, (task, method) = reply_fields(self.job.method, self.job.task), (self.job.task, self.job.method)
        check_reply({name: value[None] for name, value in sent.items()}, fields, task, method, str(call.function))
        if hides:
            sent, errors = self._summed(call, sent, state, loss, asked, dealt, networked)
        else:
            sent, errors = self._through(call, sent, state)
        sent, keys = self._sealed(header, call, sent)
        kept |= keys | errors
        reply = self._reply(header, sent, loss)
        if kept or networked:
            kept |= {REQUEST: _as_tensor(request.digest), REPLY: _as_tensor(reply), ROUND: torch.tensor(call.round)}
            self.state.stage(kept)
        return reply

    def wrap(self, header: dict[str, Any]) -> bytes:
        """Answer a request for the keys of rows that this client has sealed, each wrapped for its receiver."""
        out = []
        for row in asked_wraps(header):
            key = self.state.pending(_key_name(row.exchange, row.field), header["round"])
            if key is None or self.sealer is None:
                raise UnalikeError(f"This client has sealed no {row.field!r} in round {header['round'] + 1}.")
            about = row_about(header["run"], header["round"], row.exchange, row.field, self.client)
            about = key_about(about, row.receiver, row.part, header["at"])
            out.append(text_of(self.sealer.wrap(key, row.key, about)))
        answer = {name: header[name] for name in ("run", "round", "at")}
        return wire.encode({"kind": "reply", **answer, "wrapped": out}, {})

    def _stands_for(self, state: dict[str, Tensor], first: bool) -> bytes:
        """Return a hash of the state that a reply is made from, and of the samples."""
        sha = hashlib.sha256(self._samples + bytes([first]))
        for name in sorted(state):
            sha.update(f"{name} {state[name].dtype} {list(state[name].shape)} ".encode())
            digest(sha, state[name].reshape(-1))
        return sha.digest()

    @functools.cached_property
    def _samples(self) -> bytes:
        """Return a hash of the training samples."""
        return samples_hash(self.job.data.train.of(self.client))

    def _through(
        self, call: Call, sent: dict[str, Tensor], state: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Pass a reply through the run's channel; return the parts that travel, and the state that its stages keep
        here."""
        if self.job.channel is None:
            return sent, {}
        way = self._way(call, {name: value[None] for name, value in sent.items()}, state, self.job.channel)
        return packed(way, sent), {CHANNEL + name: value[0] for name, value in way.kept.items()}

    def _summed(
        self,
        call: Call,
        sent: dict[str, Tensor],
        state: dict[str, Tensor],
        loss: float,
        asked: bytes,
        dealt: dict[str, Tensor],
        networked: bool,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Pass a reply through a channel that leaves the server only sums; return the hidden vectors, and the state
        that its stages keep here.

        asked: stands for what all clients are told alike; dealt: the parts of the request that are about the sum.
        """
        job, channel, secure = self.job, self.job.channel, self.secure
        if secure is None or channel is None:
            raise UnalikeError("This client has no part in secure sums.")
        sealed = {n: v for n, v in sent.items() if n in job.method.sends and job.method.sends[n].read == "sealed"}
        when, samples = (call.round, call.exchange), np.array([job.data.train.sizes[self.client]])
        common = shared_draws(job.seed, *when)
        summing = Summing(channel, job.summed_fields, job.method, common, call.told, secure.clients(when, dealt))
        if networked and samples[0] > summing.largest:
            raise UnalikeError("The request says that all clients have fewer samples than this one.")
        with _withholding(networked):
            up = summing.weighed({n: v[None] for n, v in sent.items() if n not in sealed}, samples)
            way = self._way(call, up, state, channel)
            slots = summing.slots({name: rows[0] for name, rows in up.items()})
            codes = summing.codes(slots, up, way, np.array([loss]), samples)
        out = secure.hidden(when, asked, dealt, slots, codes)
        return {**out, **sealed}, {CHANNEL + name: value[0] for name, value in way.kept.items()}

    def _way(self, call: Call, up: dict[str, Tensor], state: dict[str, Tensor], channel: Channel) -> Way:
        """Pass a reply, a stack of one, through the client half of the stages and return its way."""
        job = self.job
        # in codes a number that is not finite would not show
        for name, value in up.items():
            coded = channel.touches(name, value) or (channel.hides and value.is_floating_point())
            if coded and not torch.isfinite(value).all():
                who = [] if job.hidden else [self.client]  # under noise no client is named
                named = f"client {self.client}" if who else "a client"
                raise Diverged(
                    f"Round {call.round + 1}: {name!r} of {named} became NaN or infinite. A smaller lr or clip_norm=10 "
                    "usually helps.", call.round + 1, who,
                )  # fmt: skip
        kept = {name: state[CHANNEL + name][None].to(job.task.device) for name in channel.shapes}
        draw = job.channel_draws(np.array([self.client]), call.round, call.exchange)
        common = shared_draws(job.seed, call.round, call.exchange)
        return channel.client(up, draw, common, kept, call.told)

    def _sealed(
        self, header: dict[str, Any], call: Call, sent: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Seal the fields that the method declares sealed; return the reply, and the keys that stay here until the
        round is over."""
        if self.sealer is None:
            return sent, {}
        sent, keys = dict(sent), {}
        for name in [n for n in sent if n in self.job.method.sends and self.job.method.sends[n].read == "sealed"]:
            about = row_about(header["run"], call.round, call.exchange, name, self.client)
            row, key = self.sealer.seal(bytes_of(name, sent[name], self.job.task.dtype), about)
            sent[name], keys[_key_name(call.exchange, name)] = _as_tensor(row), _as_tensor(key)
        return sent, keys

    def _opened(self, header: dict[str, Any], call: Call, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the message with the rows opened that other clients have sealed for this one."""
        parts = deliveries(header, tensors)
        clear = [name for name, value in tensors.items() if value.dim() and name not in parts]
        if clear and self.job.method.serverless and self.sealer is not None:
            raise UnalikeError(
                f"The request brings {clear[0]!r} in the clear: what clients send to each other is sealed."
            )
        if not parts:
            return tensors
        if self.sealer is None:
            raise UnalikeError("The request brings a sealed row, and this client was given no key.")
        tensors, method = dict(tensors), self.job.method
        for part, given in parts.items():
            about = row_about(header["run"], call.round, given.exchange, given.field, given.sender)
            where = key_about(about, self.client, part, call.exchange)
            key = self.sealer.unwrap(given.wrapped_key, given.key, where)
            row = self.sealer.open(bytes(tensors[part].numpy()), key, about)
            tensors[part] = row_of(row, part, method.sends.get(given.field), self.job.task, method)
        return tensors

    def _evaluate(self, header: dict[str, Any], call: Call, split: str, tensors: dict[str, Tensor]) -> bytes:
        """Answer with the loss and metrics of this client's own model on its own data; nothing is kept."""
        columns = self.job.split(split)
        with self.state.open() as content:
            self.state.settle(header.get("acknowledged"), commit=False)
            state = self.state.read()
            content.changed = False
        _, scores, _ = self._run(call, tensors, *state)
        defined = self.job.task.metrics_for(columns.y)
        scores = {n: v for n, v in scores.items() if n not in defined or defined[n].always or not v.isnan()}
        told = {"samples": int(columns.sizes[self.client]), "trained": 0, "batches": 0}
        return _encoded({**header, **told}, scores)

    def _run(
        self, call: Call, tensors: dict[str, Tensor], state: dict[str, Tensor], first: bool
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], float]:
        device = self.job.task.device
        message = Fields({k: v.to(device) for k, v in tensors.items()})
        state = {k: v.to(device) for k, v in state.items() if not k.startswith(CHANNEL)}
        return self.one_client.run(call, self.client, state, torch.tensor(first, device=device), message)

    def _reply(self, header: dict[str, Any], sent: dict[str, Tensor], loss: float) -> bytes:
        """Return the reply's bytes; if nothing is hidden, the training loss is one of its fields, and the header has
        the numbers of samples and mini-batches."""
        trained = self.one_client.trained
        answer = {**header, "trained": trained}
        if not self.job.hidden:
            answer |= {"samples": int(self.job.data.train.sizes[self.client])}
            answer |= {"batches": self.one_client.batches if trained else 0}
            sent = sent if math.isnan(loss) else {**sent, LOSS: torch.tensor(loss, dtype=torch.float64)}
        return _encoded(answer, sent)


@contextmanager
def _withholding(withhold: bool) -> Iterator[None]:
    """Keep the words of errors that are about this client's own numbers: to a server that gets sums alone, one that
    quoted its loss or its largest change would tell more than any reply."""
    try:
        yield
    except Diverged:  # names no number
        raise
    except UnalikeError as error:
        if not withhold:
            raise
        beyond = isinstance(error, BeyondLimit)
        why = "a number of its reply is beyond the limit of the run's channel" if beyond else "its reply cannot be made"
        raise Withheld(f"{why}; its own log says more.") from error


def _encoded(header: dict[str, Any], sent: dict[str, Tensor]) -> bytes:
    """Return the bytes of a reply, whose header repeats the request's."""
    answer = {**header, "kind": "reply"}
    answer.pop("acknowledged", None)
    return wire.encode(answer, sent)


def _key_name(exchange: int, field: str) -> str:
    """Return the name under which the key of a sealed row is pending."""
    return f"__key__ {exchange} {field}"


def _as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
