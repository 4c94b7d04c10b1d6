"""Who runs the client half. `choose` makes the engine that was asked for, or the one that fits, and says why."""

from __future__ import annotations

from typing import Any

from torch import nn

from unalike.engines.base import Engine, Job
from unalike.engines.batched import Batched
from unalike.engines.flower import Flower
from unalike.engines.loopback import Loopback
from unalike.engines.ray import Ray
from unalike.engines.sequential import Sequential
from unalike.engines.workers import Workers, available_cores
from unalike.errors import EngineRefused, UnalikeError, unknown

ENGINES: dict[str, type[Engine]] = {e.name: e for e in (Sequential, Workers, Batched, Loopback, Ray, Flower)}
TINY = 50_000  # parameters up to which a stack of clients beats single ones on a CPU (docs/engines.md)
OPTIONS = {
    "batched": ("clients_at_once", "memory", "compile", "fast"),
    "workers": ("workers",),
    "flower": ("remote",),
    "ray": ("workers", "address", "inner", "clients_at_once", "memory", "compile", "fast"),
}


def choose(name: str, job: Job, cohort: int, options: dict[str, Any]) -> tuple[Engine, str]:
    """The engine and the reason for it, one sentence."""
    if name != "auto":
        if name not in ENGINES:
            raise unknown("engine", name, ["auto", *ENGINES])
        try:
            return _make(name, job, options), f"{name}: as asked"
        except EngineRefused as error:
            raise EngineRefused(f"The {name} engine cannot run this model: {error}. Use engine='auto'.") from error
    name, reason = _suggest(job, cohort)
    try:
        return _make(name, job, options), f"{name}: {reason}"
    except EngineRefused as error:
        second = "workers" if job.model.device.type == "cpu" and available_cores() > 1 else "sequential"
        return _make(second, job, options), f"{second}: {name} refused, {error}"


def _make(name: str, job: Job, options: dict[str, Any]) -> Engine:
    known = {o for names in OPTIONS.values() for o in names}
    for option in options:
        if option not in known:
            raise unknown("engine option", option, known)
    return ENGINES[name](job, **{k: v for k, v in options.items() if k in OPTIONS.get(name, ())})


def _suggest(job: Job, cohort: int) -> tuple[str, str]:
    """The measured rule of docs/engines.md."""
    modules = list(job.model.module.modules())
    size = job.model.layout.size
    recurrent = any(isinstance(m, nn.RNNBase) for m in modules)
    convolution = any(isinstance(m, nn.modules.conv._ConvNd) for m in modules)
    if cohort == 1:
        return "sequential", "one client a round"
    if job.model.device.type != "cpu":
        if any(isinstance(m, nn.GRU | nn.RNN) for m in modules):  # the LSTM has a stacked form of its own
            return "sequential", "GRU and RNN layers cannot be stacked over clients"
        return "batched", f"{job.model.device.type} device"
    if size <= TINY and not recurrent and not convolution:
        return "batched", f"{size:,} parameters are few enough to stack {cohort} clients on a CPU"
    if available_cores() > 1:
        what = "recurrent layers" if recurrent else "convolutions" if convolution else f"{size:,} parameters"
        return "workers", f"{what} on a CPU with {available_cores()} cores"
    return "sequential", "one CPU core"


__all__ = ["ENGINES", "Engine", "Job", "UnalikeError", "choose"]
