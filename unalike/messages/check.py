"""Checks of messages at both ends: a client checks requests, a server checks replies."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike.contract import BUFFERS, LOSS, Call, Evaluate, Field, Method, Outcome, client_functions
from unalike.errors import UnalikeError, did_you_mean, line_of
from unalike.messages import wire
from unalike.messages.request import TOLD, identity
from unalike.nn.metrics import MEANS, statistics
from unalike.nn.task import Task
from unalike.text import printable

MAX_FIELDS = 64
DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool)  # dtypes that a request may have
# splits that a client may be asked to evaluate on
SPLITS = ("test", "validation")
# a larger loss or metric is no measurement, and would dominate any mean
LARGEST_LOSS = 1e15
# most that a number in an update may exceed the model's largest: more would ruin the run for all
LARGEST = 1e12
LOSS_FIELD = Field("scalar", read="each", weight="one")


# ---------------------------------------------------------------- at the client: requests


def asked_call(header: dict[str, Any], method: Method) -> Call:
    """Return the call of a request; it must name this version, this method, and a function that may be called."""
    evaluation = header.get("kind") == "evaluate"
    expected = {"kind": "evaluate" if evaluation else "request", **identity(method)}
    for key, value in expected.items():
        if header.get(key) != value:
            raise UnalikeError(f"The request is for {key} {_given(header, key)}; this client runs {value!r}.")
    for key, low in (("round", -1), ("exchange", 0), ("trained", 0)):
        if type(header.get(key)) is not int or not low <= header[key] < 1 << 31:
            raise UnalikeError(
                f"The request has {key} {_given(header, key)}: it must be a whole number of at least {low}."
            )
    # a round counts when it is over: an exchange of it that says so would make the client forget its beginning
    counted, last = header.get("acknowledged"), header["round"] if evaluation else header["round"] - 1
    if counted is not None and (type(counted) is not int or not -1 <= counted <= last):
        raise UnalikeError(f"The request acknowledges round {reprlib.repr(counted)}: it must be one up to {last}.")
    function = _evaluation(header) if evaluation else _function(header, method)
    return Call(function, {}, {}, header["round"], header["exchange"], header["trained"])


def _given(header: dict[str, Any], key: str) -> str:
    return reprlib.repr(header.get(key))


def _function(header: dict[str, Any], method: Method) -> str:
    name, options = header.get("function"), list(client_functions(method))
    if name not in options:
        raise UnalikeError(
            f"{type(method).__name__} has no function {_given(header, 'function')} to call."
            f"{did_you_mean(str(name), options)}"
        )
    return str(name)


def _evaluation(header: dict[str, Any]) -> Evaluate:
    if header.get("split") not in SPLITS:
        raise UnalikeError(
            f"The request is to evaluate on {_given(header, 'split')}: it must be 'test' or 'validation'."
        )
    return Evaluate(header["split"])


def check_fields(tensors: dict[str, Tensor], task: Task) -> None:
    """Check a request's tensors: the expected dtypes, all finite; the model and its statistics have their shape,
    perhaps several in a stack. (Other fields are not declared; a function checks them by using them.)"""
    if len(tensors) > MAX_FIELDS:
        raise UnalikeError(f"The request has {len(tensors)} fields: at most {MAX_FIELDS} are taken.")
    shapes = {"w": [task.layout.size], BUFFERS: [task.buffer_layout.size]}
    for name, value in tensors.items():
        shape, want = list(value.shape), shapes.get(name, [])
        if value.dtype not in (*DTYPES, task.dtype):
            raise UnalikeError(f"The request's {name!r} is {value.dtype}: it must be a float, an integer or a bool.")
        if want and shape[-1:] != want:
            raise UnalikeError(f"The request's {name!r} has shape {shape}: it must end in {want}.")
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise UnalikeError(f"The request's {name!r} has a value that is NaN or infinite.")


def take_told(tensors: dict[str, Tensor], wanted: Iterable[str]) -> dict[str, float]:
    """Remove from a request's fields the channel's values that the server tells: these numbers, each above 0."""
    told = {name.removeprefix(TOLD): tensors.pop(name) for name in [*tensors] if name.startswith(TOLD)}
    if told.keys() != {*wanted}:
        raise UnalikeError(
            f"The request tells of the channel {_named(told)}; this client's channel is told {_named(wanted)}."
        )
    for name, value in told.items():
        if value.dtype != torch.float64 or value.dim() or not 0 < float(value) < math.inf:
            raise UnalikeError(f"The request's {name!r}, of the channel, must be a number above 0, and finite.")
    return {name: float(value) for name, value in told.items()}


def _named(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


# ---------------------------------------------------------------- at the server: replies


def reply_fields(method: Method, task: Task) -> dict[str, Field]:
    """Return the fields that a reply may have: those that the method declares, the mean training loss, and BatchNorm's
    statistics if the server averages them."""
    if LOSS in method.sends or BUFFERS in method.sends:
        taken = LOSS if LOSS in method.sends else BUFFERS
        raise UnalikeError(f"{type(method).__name__} declares a field {taken!r}: that name is reserved, take another.")
    for name, field in method.sends.items():
        if "samples" in field.names:
            raise UnalikeError(
                f"{type(method).__name__} sends {name!r} with a row for each sample: such fields stay with the client."
            )
    averaged = {BUFFERS: Field((task.buffer_layout.size,))} if task.averages_buffers else {}
    return {**method.sends, **averaged, LOSS: LOSS_FIELD}


def check_reply(up: Mapping[str, Tensor], fields: Mapping[str, Field], task: Task, method: Method, name: str) -> None:
    """Check that every field of a stack of replies is declared and has its declared shape."""
    kind = type(method).__name__
    for key, value in up.items():
        if key not in fields:
            raise UnalikeError(
                f"{kind}.{name} sends {printable(key, 80)!r}, which `sends` does not declare."
                f"{did_you_mean(key[:80], fields)}"
            )
        want = fields[key].resolve(task.sizes, method)
        if tuple(value.shape[1:]) != want:
            raise UnalikeError(
                f"{kind}.{name} sends {key!r} with shape {list(value.shape[1:])}; `sends` declares {list(want)}."
            )
        if fields[key].read == "sealed" and value.dtype != task.dtype:
            raise UnalikeError(f"{kind}.{name} sends {key!r} as {value.dtype}: a sealed field is {task.dtype}.")


def received_outcome(
    client: int,
    answer: bytes,
    asked: dict[str, Any],
    samples: int,
    task: Task,
    read: Callable[[dict[str, Tensor]], tuple[dict[str, Tensor], dict[str, Any]]],
    hidden: bool = False,
) -> Outcome:
    """Return a client's reply as an outcome. It must answer this request and have this client's number of samples; all
    its numbers must be finite and of the task's dtype. read: turns the sent tensors into a stack of one, and further
    values of the outcome. hidden: the reply tells neither its samples nor its work nor its loss."""
    header, sent = wire.decode(answer)
    if header.get("kind") == "error":
        raise UnalikeError(printable(header.get("reason"), 500))
    for key, value in asked.items():
        if header.get(key) != value and key not in ("kind", "trained"):
            raise UnalikeError(f"its reply is to another request: {key} is not {value!r}.")
    if header.get("kind") != "reply":
        raise UnalikeError("its answer is no reply.")
    told = [name for name in ("samples", "batches") if name in header] + [LOSS] * (LOSS in sent)
    if hidden and told:
        raise UnalikeError(f"its reply tells {told[0]!r}, which the run's channel hides.")
    if not hidden and (type(header.get("samples")) is not int or header["samples"] != samples):
        raise UnalikeError(f"it has {_given(header, 'samples')} samples now and had {samples} at the beginning.")
    trained = header.get("trained")
    if type(trained) is not int or not 0 <= trained < 1000:
        raise UnalikeError("its reply does not say how often it trained.")
    batches = header.get("batches", 0)
    if type(batches) is not int or not 0 <= batches < 1 << 48:
        raise UnalikeError(
            f"its reply says that it read {_given(header, 'batches')} mini-batches: give a whole number."
        )
    loss = sent_loss(sent)
    if math.isinf(loss) or abs(loss) > LARGEST_LOSS:
        raise UnalikeError("its loss became infinite." if math.isinf(loss) else f"its loss is {loss:g}.")
    up, more = read(sent)
    # metrics are computed in double precision
    kinds = (task.dtype, torch.float64) if asked.get("kind") == "evaluate" else (task.dtype,)
    for name, value in up.items():
        # `check_kinds` and `check_evaluation` decide which of these it must be; sealed rows are bytes
        if value.dtype not in (*kinds, torch.int64, torch.int32, torch.bool, torch.uint8):
            raise UnalikeError(f"its {printable(name)!r} is {value.dtype}: it must be {task.dtype}.")
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise UnalikeError(f"its {name!r} has a value that is NaN or infinite.")
    one = np.array([client]), up, np.array([samples]), np.array([loss]), trained
    return Outcome(*one, finite=np.array([True]), batches=np.array([batches]), **more)


def unreadable(error: Exception) -> str:
    """Return why an answer is not usable; an unexpected error is named by its type."""
    return str(error) if isinstance(error, UnalikeError) else f"its answer cannot be read ({line_of(error)})."


def check_kinds(up: Mapping[str, Tensor], like: Mapping[str, Tensor], most: float, weight: int) -> None:
    """Check that the fields of a reply have the dtypes that the function sends (`like`: a stand-in's reply), and values
    that cannot spoil a sum: floats up to `most`, whole numbers so small that `weight` of them fit into 64 bits."""
    for name, value in up.items():
        if name in like and value.dtype != like[name].dtype:
            raise UnalikeError(f"its {name!r} is {value.dtype}: it must be {like[name].dtype}.")
        if not value.numel() or value.dtype == torch.bool:
            continue
        largest = max(-int(value.min()), int(value.max())) if not value.is_floating_point() else value.abs().max()
        if float(largest) > (most if value.is_floating_point() else (1 << 62) / max(1, weight)):
            raise UnalikeError(f"its {name!r} has a number of {float(largest):.3g}, which no training makes.")


def check_evaluation(up: Mapping[str, Tensor], task: Task, y: Tensor) -> None:
    """Check a client's answer to an evaluation: a number in its range for the loss and every metric (one that is not
    defined for its samples is left out), and means of every statistic that are possible for samples."""
    metrics, means = task.metrics_for(y), statistics(task.metrics_for(y))
    names = {"loss", *metrics, *(MEANS + name for name in means)}
    needed = names - {name for name, metric in metrics.items() if not metric.always}
    if not needed <= up.keys() <= names or any(up[n].shape != (1,) for n in up.keys() & {"loss", *metrics}):
        raise UnalikeError(f"its evaluation must be one number each of {', '.join(sorted({'loss', *metrics}))}.")
    for name in up.keys() & {"loss", *metrics}:
        if not up[name].is_floating_point() or abs(float(up[name])) > LARGEST_LOSS:
            raise UnalikeError(f"its {name} is {up[name].flatten()[0].item():g}, {up[name].dtype}: no measurement.")
    for name, metric in metrics.items():
        if name in up and not metric.low - 1e-6 <= float(up[name]) <= metric.high + 1e-6:
            raise UnalikeError(f"its {name} is {float(up[name]):g}: it must be in [{metric.low:g}, {metric.high:g}].")
    for name, statistic in means.items():
        value = up[MEANS + name]
        if value.dtype != torch.float64 or list(value.shape) != [1, task.statistics[name]]:
            raise UnalikeError(f"its {MEANS + name!r} must be {task.statistics[name]} numbers, float64.")
        if not statistic.holds(value[0]):
            raise UnalikeError(f"its {MEANS + name!r} cannot be the means of samples.")


def sent_loss(sent: dict[str, Tensor]) -> float:
    """Remove the training loss from a reply's fields and return it; NaN if the client did not train."""
    value = sent.pop(LOSS, None)
    if value is None:
        return float("nan")
    if value.dtype != torch.float64 or value.dim() or value.isnan():
        raise UnalikeError("its loss is no number.")
    return float(value)


def check_allowed(method: Method, allowed: bool, whose: str) -> None:
    """Refuse a method that sends samples if that is not allowed; whose: "run" or "client", for the message."""
    if method.ships and not allowed:
        raise UnalikeError(
            f"{type(method).__name__} sends clients' own samples to the server ({method.ships}): this {whose} must "
            "allow it, by --allow-samples (in Python allow_samples=True)."
        )
