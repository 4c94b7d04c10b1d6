"""Choose an engine: the one that was asked for, or the one that fits, and say why."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import nn

from unalike.client.job import Job
from unalike.engines import costs
from unalike.engines.batched import Batched
from unalike.engines.costs import TINY
from unalike.engines.engine import Engine
from unalike.engines.flower import Flower
from unalike.engines.loopback import Loopback
from unalike.engines.ray import Ray
from unalike.engines.sequential import Sequential
from unalike.engines.workers import Workers, available_cores
from unalike.errors import EngineRefused, unknown
from unalike.nn.numerics import search_convolutions
from unalike.settings.knobs import check
from unalike.settings.typed import words

SKEWED = 4  # times the mean size of clients: with a client above it, several runs in a stack gain nothing
ENGINES: dict[str, type[Engine]] = {e.name: e for e in (Sequential, Workers, Batched, Loopback, Ray, Flower)}
OPTIONS = {option: setting for engine in ENGINES.values() for option, setting in engine.options().items()}


def choose_engine(
    name: str, job: Job, cohort: int, options: dict[str, Any], rounds: int = 0, taken: dict[str, Any] | None = None
) -> tuple[Engine, str]:
    """Return the engine and the reason for it in one sentence. taken: the engine that an earlier part of the same run
    used. With the option `member` the run shares its stacks with others (batched/lockstep.py)."""
    options = dict(options)
    member = options.pop("member", None)
    runs = 1 if member is None else member.runs
    engine, reason = _choose(name, job, cohort * runs, options, rounds, taken)
    engine.planned = rounds
    if name == "auto" and isinstance(engine, Sequential) and job.task.device.type == "cuda" and job.task.repeats:
        engine.capture()
    search_convolutions(job.task.device.type == "cuda" and not (isinstance(engine, Batched) and engine.early))
    if isinstance(engine, Batched) and engine.compile and job.task.device.type == "cpu":
        engine.after_compiling = functools.partial(costs.keep_compiling, job)
    return (engine if member is None else member.wrap(engine)), reason


def _choose(
    name: str, job: Job, cohort: int, options: dict[str, Any], rounds: int, taken: dict[str, Any] | None
) -> tuple[Engine, str]:
    if name != "auto":
        if name not in ENGINES:
            raise unknown("engine", name, ["auto", *ENGINES])
        try:
            return _make(name, job, options), f"{name}: as asked"
        except EngineRefused as error:
            raise EngineRefused(f"The {name} engine cannot run this model: {error}. Use engine='auto'.") from error
    if taken:
        name, reason = taken["took"], "as before"
        more = {"compile": taken["compiled"]} if job.task.device.type == "cpu" else {}
    else:
        name, reason, more = _suggest(job, cohort, rounds)
    try:
        return _make(name, job, {**more, **options}), f"{name}: {reason}"
    except EngineRefused as error:
        second = "workers" if job.task.device.type == "cpu" and available_cores() > 1 else "sequential"
        return _make(second, job, options), f"{second}: {name} refused, {error}"


def _make(name: str, job: Job, options: dict[str, Any]) -> Engine:
    for option, value in options.items():
        if option not in OPTIONS:
            raise unknown("engine option", option, OPTIONS)
        if value is not None:
            check("", option, value, OPTIONS[option].knob, words(OPTIONS[option].hint))
    own = ENGINES[name].options()
    return ENGINES[name](job, **{option: value for option, value in options.items() if option in own})


def heavy(module: nn.Module) -> tuple[bool, bool]:
    """Return whether a model has recurrent layers, and whether it has convolutions: on a CPU neither gains from
    stacking clients."""
    kinds = (nn.RNNBase, nn.modules.conv._ConvNd)
    recurrent, convolution = (any(isinstance(layer, kind) for layer in module.modules()) for kind in kinds)
    return recurrent, convolution


def stacks_pay(model: nn.Module, sizes: np.ndarray) -> bool:
    """Return whether several runs in one stack pay off: the model is tiny, of a kind that is fast in stacks, and no
    client is far larger than the others, so that it would be alone for most of the steps."""
    tiny = sum(p.numel() for p in model.parameters()) <= TINY
    return tiny and not any(heavy(model)) and bool(sizes.max() <= SKEWED * sizes.mean())


def _suggest(job: Job, cohort: int, rounds: int) -> tuple[str, str, dict[str, Any]]:
    """Suggest an engine by the model's layers and, if they do not decide, by the cost of a step on this machine
    (docs/engines.md)."""
    recurrent, convolution = heavy(job.task.module)
    if cohort == 1:
        return "sequential", "one client per round", {}
    if job.task.device.type != "cpu":
        return "batched", f"{job.task.device.type} device", {}
    if not recurrent and not convolution:
        return _by_costs(job, cohort, rounds)
    if available_cores() > 1:
        what = "recurrent layers" if recurrent else "convolutions"
        return "workers", f"{what} on a CPU with {available_cores()} cores", {}
    return "sequential", "one CPU core", {}


def _by_costs(job: Job, cohort: int, rounds: int) -> tuple[str, str, dict[str, Any]]:
    """Decide by measurement; by size if measuring is not worth it, or if the run must not depend on measured times."""
    size, cores = job.task.layout.size, available_cores()
    usual = "batched" if size <= TINY else "workers" if cores > 1 else "sequential"
    longest, total = costs.workload(job, cohort)
    short = total * rounds < costs.FEW or size > costs.LARGE
    if short or torch.are_deterministic_algorithms_enabled():
        many = f"stack {cohort} clients" if usual == "batched" else f"use {cores} of its cores"
        return usual, f"{size:,} parameters: on a CPU {many}", {}
    name, seconds = costs.measured(job).choose(usual, longest, total, rounds, costs.compiler())
    others = ", ".join(f"{other} {s:.3g} s" for other, s in seconds.items() if other != name)
    compile = {"compile": True} if "compiled" in name else {}
    return name.split(",")[0], f"{name} would train for some {seconds[name]:.3g} s; {others}", compile
