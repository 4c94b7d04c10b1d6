"""A client on its own: its state in a folder, its answers as bytes. What a real federation runs at each owner's.

`loopback` runs it in one process; a network only has to carry the bytes.
"""

from __future__ import annotations

import hashlib
import reprlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

import unalike
from unalike import wire
from unalike.contract import Fields, client_functions, fingerprint
from unalike.engines.base import BUFFERS, Call, Job, Solo
from unalike.errors import UnalikeError, did_you_mean, first_line
from unalike.files import replace
from unalike.personal import scored
from unalike.store import Shapes

# beside pending state: a hash of the request, what was answered, and the round it belongs to; beside kept state, the
# round it was kept in
REQUEST, REPLY, ROUND = "__request__", "__reply__", "__round__"
MAX_FIELDS = 64
DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool)  # what a request may bring


class StateFolder:
    """One client's state: `state.safetensors` is kept, `pending.safetensors` waits for the server's acknowledgement
    and holds the last answer too: it may have been lost on its way."""

    def __init__(self, path: Path, shapes: Shapes, real: bool = False):
        # real: a real client's, written through to the disk and stamped with its round
        self.path, self.shapes, self.real = path, shapes, real

    def read(self) -> tuple[dict[str, Tensor], bool]:
        """The state, pending over kept over zeros, and whether there is none yet but for a round's own."""
        values = {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype, _) in self.shapes.items()}
        kept = self._load("state")
        values.update({n: v for n, v in (kept or {}).items() if n in self.shapes})
        pending = {n: v for n, v in (self._load("pending") or {}).items() if n in self.shapes}
        values.update(pending)
        there = {n for n in kept or {} if n != ROUND} | {n for n in pending if self.shapes[n][2] == "run"}
        return values, not there

    def stage(self, values: dict[str, Tensor]) -> None:
        """What the last answer leaves behind, together with what was staged before it in this round."""
        if values:
            self._save("pending", {**(self._load("pending") or {}), **values})

    def answered(self, digest: bytes) -> bytes | None:
        """The answer to this very request, if it was the last one and left anything behind."""
        pending = self._load("pending") or {}
        if REPLY not in pending or bytes(pending[REQUEST].numpy()) != digest:
            return None
        return bytes(pending[REPLY].numpy())

    def begin(self, round: int, exchange: int) -> None:
        """Forget what another round left pending, or this round when it starts anew: that reply was lost."""
        pending = self._load("pending")
        if pending is not None and (exchange == 0 or ROUND not in pending or int(pending[ROUND]) != round):
            self.discard()

    def commit(self) -> bool:
        """Keep what is pending; True if there was anything for longer than a round."""
        pending = self._load("pending")
        if pending is None:
            return False
        keep = {n: v for n, v in pending.items() if n in self.shapes and self.shapes[n][2] == "run"}
        stamp = {ROUND: pending[ROUND]} if self.real and self._stateful else {}
        if keep or stamp:
            self._save("state", {**(self._load("state") or {}), **keep, **stamp})
        self.discard()
        return bool(keep)

    @property
    def _stateful(self) -> bool:
        return any(life == "run" for _, _, life in self.shapes.values())

    def settle(self, acknowledged: int | None, commit: bool = True) -> None:
        """Bring the state to what the server counts on: the last of this client's rounds that entered its model
        (None: none did). What is pending from that round is kept; what the server never counted is forgotten.
        commit=False only looks: the server may yet fail before it has written its checkpoint."""
        at = {name: (self._load(name) or {}).get(ROUND) for name in ("state", "pending")}
        rounds = {name: None if value is None else int(value) for name, value in at.items()}
        if rounds["pending"] is not None and rounds["pending"] == acknowledged:
            if commit:
                self.commit()
        elif not self._stateful or rounds["state"] == acknowledged:
            if not commit:
                self.discard()  # an answer that the server has closed its round without
        elif acknowledged is None:  # the run begins anew
            self.discard()
            (self.path / "state.safetensors").unlink(missing_ok=True)
        else:
            has = "nothing" if rounds["state"] is None else f"the state of round {rounds['state'] + 1}"
            raise UnalikeError(
                f"The server counts on this client's state of round {acknowledged + 1}, and {self.path} has {has}: put "
                "the right folder back, or begin a new run."
            )

    def discard(self) -> None:
        (self.path / "pending.safetensors").unlink(missing_ok=True)

    def replace(self, values: dict[str, Tensor]) -> None:
        """Set the kept state (from a checkpoint)."""
        self.discard()
        self._save("state", values)

    def _load(self, name: str) -> dict[str, Tensor] | None:
        file = self.path / f"{name}.safetensors"
        try:
            return safetensors.torch.load_file(file) if file.exists() else None
        except Exception as error:
            raise UnalikeError(f"The client state {file} cannot be read: {first_line(error)}.") from error

    def _save(self, name: str, values: dict[str, Tensor]) -> None:
        plain = {n: v.detach().cpu().contiguous().clone() for n, v in values.items()}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            replace(self.path / f"{name}.safetensors", safetensors.torch.save(plain), sync=self.real)
        except OSError as error:
            raise UnalikeError(f"Cannot write client state to {self.path}: {error.strerror or error}.") from error


class Node:
    """Answers requests for one client."""

    def __init__(self, job: Job, client: int, state: StateFolder, solo: Solo):
        self.job, self.client, self.state, self.solo = job, client, state, solo

    def handle(self, *parts: bytes) -> bytes:
        """The answer to a request, which may come in parts: what all clients get, and what is this client's own. A
        request that came before gets the answer it got then."""
        header, tensors = united(parts)
        function = self._check(header, "request")
        self._check_fields(tensors)
        sha = hashlib.sha256()
        for part in parts:
            sha.update(part)
        again = self.state.answered(sha.digest())
        if again is not None:
            return again
        networked = "acknowledged" in header
        if networked:
            self.state.settle(header["acknowledged"])
        self.state.begin(header["round"], header["exchange"])
        call = Call(function, {}, {}, header["round"], header["exchange"], header["trained"])
        kept, sent, loss = self._run(call, tensors)
        reply = self._reply(header, sent, int(self.job.data.train.sizes[self.client]), loss, self.solo.trained)
        if kept or networked:
            as_tensor = lambda data: torch.frombuffer(bytearray(data), dtype=torch.uint8)  # noqa: E731
            kept |= {REQUEST: as_tensor(sha.digest()), REPLY: as_tensor(reply)}
            kept[ROUND] = torch.tensor(header["round"])
            self.state.stage(kept)
        return reply

    def evaluate(self, *parts: bytes) -> bytes:
        """Loss and metrics of this client's own model on its own data; nothing is kept."""
        header, tensors = united(parts)
        self._check(header, "evaluate")
        self._check_fields(tensors)
        if header.get("split") not in ("test", "validation"):
            given = reprlib.repr(header.get("split"))
            raise UnalikeError(f"The request is to evaluate on {given}: it must be 'test' or 'validation'.")
        columns = self.job.split(header["split"])
        self.state.settle(header.get("acknowledged"), commit=False)
        function = scored(self.job.method, self.job.model.metrics_for(columns.y), header["split"])
        call = Call(function, {}, {}, header["round"], header["exchange"], header["trained"])
        _, scores, _ = self._run(call, tensors)
        return self._reply(header, scores, int(columns.sizes[self.client]), float("nan"), 0)

    def _run(self, call: Call, tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor], float]:
        device = self.job.model.device
        state, first = self.state.read()
        message = Fields({k: v.to(device) for k, v in tensors.items()})
        state = {k: v.to(device) for k, v in state.items()}
        return self.solo.run(call, self.client, state, torch.tensor(first, device=device), message)

    def _reply(self, header: dict[str, Any], sent: dict[str, Tensor], samples: int, loss: float, trained: int) -> bytes:
        answer = {**header, "kind": "reply", "samples": samples, "loss": loss, "trained": trained}
        answer.pop("acknowledged", None)
        return wire.encode(answer, sent)

    def _check(self, header: dict[str, Any], kind: str) -> Any:
        """A request must name this program's version, this method, and one of its own functions."""
        method = type(self.job.method)
        expected = request_header(self.job, Call(self.job.method.client, {}, {}, 0, 0)) | {"kind": kind}
        for key in ("kind", "method", "settings", "version"):
            if header.get(key) != expected[key]:
                given = reprlib.repr(header.get(key))
                raise UnalikeError(f"The request is for {key} {given}; this client runs {expected[key]!r}.")
        for key, low in (("round", -1), ("exchange", 0), ("trained", 0)):
            if type(header.get(key)) is not int or not low <= header[key] < 1 << 31:
                given = reprlib.repr(header.get(key))
                raise UnalikeError(f"The request has {key} {given}: it must be a whole number of at least {low}.")
        told = header.get("acknowledged")
        if told is not None and (type(told) is not int or not -1 <= told <= header["round"]):
            given = reprlib.repr(told)
            raise UnalikeError(f"The request acknowledges round {given}: it must be one up to {header['round']}.")
        name, options = header.get("function"), list(client_functions(self.job.method))
        if name not in options:
            given = reprlib.repr(name)
            raise UnalikeError(f"{method.__name__} has no function {given} to call.{did_you_mean(str(name), options)}")
        return getattr(self.job.method, str(name))

    def _check_fields(self, tensors: dict[str, Tensor]) -> None:
        """Numbers of the expected kinds, all finite; the model and its statistics have their shape, perhaps several in
        a stack. (What else a function reads, it checks by using it: requests' fields are not declared.)"""
        if len(tensors) > MAX_FIELDS:
            raise UnalikeError(f"The request has {len(tensors)} fields: at most {MAX_FIELDS} are taken.")
        model = self.job.model
        shapes = {"w": [model.layout.size], BUFFERS: [model.buffer_layout.size]}
        for name, value in tensors.items():
            shape, want = list(value.shape), shapes.get(name, [])
            if value.dtype not in (*DTYPES, model.dtype):
                raise UnalikeError(
                    f"The request's {name!r} is {value.dtype}: it must be a float, an integer or a bool."
                )
            if want and shape[-1:] != want:
                raise UnalikeError(f"The request's {name!r} has shape {shape}: it must end in {want}.")
            if value.is_floating_point() and not torch.isfinite(value).all():
                raise UnalikeError(f"The request's {name!r} has a value that is NaN or infinite.")


def united(parts: Iterable[bytes]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The parts of a message as one; no part may say again what another said."""
    header: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for part in parts:
        more, fields = wire.decode(part)
        more.pop("format")
        twice = (header.keys() & more.keys()) | (tensors.keys() & fields.keys())
        if twice:
            raise UnalikeError(f"A message says {min(twice)!r} in two of its parts.")
        header |= more
        tensors |= fields
    return header, tensors


def check_function(job: Job, call: Call) -> None:
    """Over a wire a function goes by its name."""
    if getattr(job.method, call.fn.__name__, None) != call.fn:
        raise UnalikeError(
            f"{call.fn.__name__} is not a function of {type(job.method).__name__}: over a network only the method's "
            "own functions can be called."
        )


def request_header(job: Job, call: Call) -> dict[str, Any]:
    """What a request says about itself."""
    return {
        "kind": "request",
        "method": type(job.method).__name__,
        "settings": fingerprint(job.method),
        "version": unalike.__version__,
        "function": call.fn.__name__,
        "round": call.round,
        "exchange": call.exchange,
        "trained": call.trained,
    }
