"""The facts of a run: every setting that decides its result, as written to config.toml."""

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
    """Return the facts by table; fingerprint: a hash of the data."""
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
        **run.arrivals.facts(),
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
    """Return a method's options at their defaults, without those that may be None. A config that lacks one of these was
    written before the option existed, by a run that had the default."""
    known: Known = hints(type(method)) if dc.is_dataclass(method) else {}
    own = {n: _plain(s.default) for n, s in known.items() if type(None) not in typing.get_args(s.hint)}
    return {"method": own, "run": {"delta": 1e-5}}


def _local(local: LocalTraining) -> dict[str, Any]:
    """Return the settings of local training. DP-SGD's settings appear only where it is used: configs of earlier
    versions lack them."""
    left_out = () if local.sample_clip is not None else ("sample_clip", "sample_noise")
    return {f.name: _plain(getattr(local, f.name)) for f in dc.fields(local) if f.name not in left_out}


def _newcomers(run: Run) -> dict[str, Any]:
    """Return the settings of newcomers (clients that take no part in training), if there are any."""
    chosen = run.settings
    return {"new_clients": chosen.new_clients, "new_steps": chosen.new_steps} if chosen.new_clients else {}


def _privacy(run: Run) -> dict[str, Any]:
    """Return δ if there is noise: every ε in a log is at the same δ."""
    noised = run.spending is not None or run.sample_spending is not None
    return {"delta": run.settings.delta} if noised else {}


def _taken(run: Run) -> dict[str, Any]:
    """Return the engine chosen for each network's clients, if there are several networks."""
    parts = run.engine.parts if isinstance(run.engine, Families) else {}
    took = {n: {"took": e.name, "compiled": bool(getattr(e, "compile", False))} for n, e in parts.items()}
    return {"parts": took} if took else {}


def _models(run: Run) -> dict[str, Any]:
    """Return the facts about the model; for several networks, the common facts and one table per network."""
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
    """Return 16 hex digits of a SHA-256 over the weights and statistics with which a network starts, and its
    constants."""
    numbers = task.start, task.start_buffers, *task.constants.values()
    start = hashlib.sha256(b"".join(t.cpu().numpy().tobytes() for t in numbers))
    return start.hexdigest()[:16]


def _public(data: Federation) -> dict[str, Any]:
    """Return the public set's size and hash, where there is one."""
    rows = data.public_rows
    return {"public_samples": rows, "public_fingerprint": data.public_fingerprint()} if rows else {}


def _plain(value: Any) -> Any:
    """Return a setting in the form a config holds: a function as its name, an array as a list."""
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if callable(value):
        return f"function {getattr(value, '__qualname__', type(value).__name__)}"
    return value.tolist() if isinstance(value, np.ndarray | Tensor) else value
