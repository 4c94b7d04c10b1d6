"""The facts of a run: all that decides what it computes, as its config.toml holds them."""

from __future__ import annotations

import dataclasses as dc
import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import unalike
from unalike.contract.method import settings
from unalike.data.federation import Federation
from unalike.metrics.names import lower_ones
from unalike.settings.knobs import knobs

if TYPE_CHECKING:
    from unalike.run.run import Run


def facts(run: Run, fingerprint: str, engine_options: dict[str, Any]) -> dict[str, Any]:
    """Return the facts by table; fingerprint: of the data."""
    task = run.task
    start = hashlib.sha256(task.start.cpu().numpy().tobytes() + task.start_buffers.cpu().numpy().tobytes())
    asked = {name: getattr(run.settings, name) for name, knob in knobs(run.settings).items() if knob.fact}
    participation = {"kind": type(run.sampling).__name__, **dc.asdict(run.sampling)}
    return {
        "unalike": {"version": unalike.__version__},
        "run": asked | {"device": task.device.type, "deterministic": torch.are_deterministic_algorithms_enabled()},
        "engine": {
            **_plain({k: v for k, v in engine_options.items() if isinstance(v, str | int | float)}),
            "took": run.engine.name,
            "compiled": bool(getattr(run.engine, "compile", False)),
        },
        "participation": participation,
        "method": _plain(settings(run.method)),
        "local": {f.name: _plain(getattr(run.local, f.name)) for f in dc.fields(run.local)},
        "model": {
            "class": type(task.module).__qualname__,
            "parameters": task.layout.size,
            "head": task.head,
            **({} if task.output is None else {"output": _plain(task.output)}),
            "buffers": task.buffer_policy,
            "loss": getattr(task.loss, "__name__", type(task.loss).__name__),
            "metrics": list(run.higher),
            "lower_is_better": lower_ones(run.higher),
            "fingerprint": start.hexdigest()[:16],
        },
        "data": {
            "clients": len(run.data),
            "samples": int(run.data.train.sizes.sum()),
            "fingerprint": fingerprint,
            **_public(run.data),
        },
    }


def _public(data: Federation) -> dict[str, Any]:
    """The public set's size and hash, where there is one."""
    rows = data.public_rows
    return {"public_samples": rows, "public_fingerprint": data.public_fingerprint()} if rows else {}


def _plain(value: Any) -> Any:
    """A setting as a config holds it: a function by its name, an array as a list."""
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if callable(value):
        return f"function {getattr(value, '__qualname__', type(value).__name__)}"
    return value.tolist() if isinstance(value, np.ndarray | Tensor) else value
