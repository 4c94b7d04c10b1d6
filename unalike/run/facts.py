"""The facts of a run: all that decides what it computes, as its config.toml holds them."""

from __future__ import annotations

import dataclasses as dc
import hashlib
import typing
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import unalike
from unalike.contract.method import Method, settings
from unalike.data.federation import Federation
from unalike.engines.families import Families
from unalike.metrics.names import lower_ones
from unalike.nn.task import Task
from unalike.settings.knobs import knobs
from unalike.settings.typed import Known, hints
from unalike.training import LocalTraining

if TYPE_CHECKING:
    from unalike.run.run import Run


def facts(run: Run, fingerprint: str, engine_options: dict[str, Any]) -> dict[str, Any]:
    """Return the facts by table; fingerprint: of the data."""
    task = run.task
    asked = {name: getattr(run.settings, name) for name, knob in knobs(run.settings).items() if knob.fact}
    sampled = {name: value for name, value in dc.asdict(run.sampling).items() if value is not False}
    participation = {"kind": type(run.sampling).__name__, **sampled}
    return {
        "unalike": {"version": unalike.__version__},
        "run": asked
        | _newcomers(run)
        | _privacy(run)
        | {"device": task.device.type, "deterministic": torch.are_deterministic_algorithms_enabled()},
        "engine": {
            **_plain({k: v for k, v in engine_options.items() if isinstance(v, str | int | float)}),
            "took": run.engine.name,
            "compiled": bool(getattr(run.engine, "compile", False)),
            **_taken(run),
        },
        "participation": participation,
        **({} if run.channel is None else {"channel": {"stages": [str(stage) for stage in run.channel.stages]}}),
        "method": _plain(settings(run.method)),
        "local": _local(run.local),
        **_models(run),
        "data": {
            "clients": len(run.data),
            "samples": int(run.data.train.sizes.sum()),
            "fingerprint": fingerprint,
            **_public(run.data),
        },
    }


def usual_settings(method: Method) -> dict[str, Any]:
    """Return the options of a method at their defaults, as a config holds them, but those that may be None: a config
    without such a one is of a run that had said so."""
    known: Known = hints(type(method)) if dc.is_dataclass(method) else {}
    own = {n: _plain(s.default) for n, s in known.items() if type(None) not in typing.get_args(s.hint)}
    return {"method": own, "run": {"delta": 1e-5}}


def _local(local: LocalTraining) -> dict[str, Any]:
    """Return the settings of training; what hides samples only where it does, for runs of before knew nothing of it."""
    left_out = () if local.sample_clip is not None else ("sample_clip", "sample_noise")
    return {f.name: _plain(getattr(local, f.name)) for f in dc.fields(local) if f.name not in left_out}


def _newcomers(run: Run) -> dict[str, Any]:
    """Return the settings of clients that take no part, where there are any."""
    chosen = run.settings
    return {"new_clients": chosen.new_clients, "new_steps": chosen.new_steps} if chosen.new_clients else {}


def _privacy(run: Run) -> dict[str, Any]:
    """δ, where there is noise: the ε of a log are all at the same."""
    noised = run.spending is not None or run.sample_spending is not None
    return {"delta": run.settings.delta} if noised else {}


def _taken(run: Run) -> dict[str, Any]:
    """Return the engine of each network's clients, where there are several."""
    parts = run.engine.parts if isinstance(run.engine, Families) else {}
    took = {n: {"took": e.name, "compiled": bool(getattr(e, "compile", False))} for n, e in parts.items()}
    return {"parts": took} if took else {}


def _models(run: Run) -> dict[str, Any]:
    """Return the table of the model; of several networks what they have in common, and a table each."""
    task, several = run.task, run.architectures
    common = {
        "buffers": task.buffer_policy,
        "loss": getattr(task.loss, "__name__", type(task.loss).__name__),
        "metrics": list(run.higher),
        "lower_is_better": lower_ones(run.higher),
    }
    if several is None:
        return {"model": {**_network(task), **common, "fingerprint": start_fingerprint(task)}}
    own = {
        name: {**_network(task), "clients": len(several.clients(name)), "fingerprint": start_fingerprint(task)}
        for name, task in run.tasks.items()
    }
    who = hashlib.sha256(several.of.tobytes()).hexdigest()[:16]
    return {"model": {**common, "architecture_fingerprint": who}, "models": own}


def _network(task: Task) -> dict[str, Any]:
    return {
        "class": type(task.module).__qualname__,
        "parameters": task.layout.size,
        "head": task.head,
        **({} if task.output is None else {"output": _plain(task.output)}),
    }


def start_fingerprint(task: Task) -> str:
    """Return 16 hex digits of a sha256 over the weights and statistics that a network starts with."""
    start = hashlib.sha256(task.start.cpu().numpy().tobytes() + task.start_buffers.cpu().numpy().tobytes())
    return start.hexdigest()[:16]


def _public(data: Federation) -> dict[str, Any]:
    """Return the public set's size and hash, where there is one."""
    rows = data.public_rows
    return {"public_samples": rows, "public_fingerprint": data.public_fingerprint()} if rows else {}


def _plain(value: Any) -> Any:
    """Return a setting as a config holds it: a function by its name, an array as a list."""
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if callable(value):
        return f"function {getattr(value, '__qualname__', type(value).__name__)}"
    return value.tolist() if isinstance(value, np.ndarray | Tensor) else value
