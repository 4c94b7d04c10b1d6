"""The settings of a run, each described once: `simulate`, [run] of a config file and the flags all read them here."""

from __future__ import annotations

import dataclasses as dc
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from unalike.contract import STALENESS, parse_staleness
from unalike.draws import check_seed
from unalike.engines import ENGINES
from unalike.errors import UnalikeError
from unalike.nn.numerics import DTYPES, PRECISIONS
from unalike.nn.task import BUFFER_POLICIES
from unalike.settings import typed
from unalike.settings.knobs import check_fields, knob, knobs

# for settings that change how a run is computed but not its result: they may change half-way
HOW: dict[str, Any] = {"free": True, "how": True}
CHOICE = ("auto", *ENGINES)
SHARE = "a share (0.2), a count (10), bernoulli:0.15, by-size:10, turns:10, or lists"
NETWORKS = "which client has which of several networks: a list of names, or small:10, large:10"
NEW = "clients that take no part and are only judged: a share (0.2) or a count (5)"
SAMPLES = "clients' own samples may be sent to the server, by methods that do so (unalike list methods)"
CHANNEL = "stages that replies go through: clip:1.0,topk:0.01 (unalike list stages), or a list of tables"
EPSILON = "what all rounds may spend at delta: finds the noise of noise:auto"
MOST = "stops before the round that would spend more than this at delta"
EXCHANGES = "sums of a round that noise:auto is found for: as many as the method asks clients for"
ARRIVALS = "buffer:10: the server goes on after so many arrivals, and clients_per_round are at work at any time"
KEPT = "how many checkpoints stay, the last ones; they share clients' state"
BACK = "with resume: go on from the kept checkpoint of this round, and forget the rounds after it"
PRODUCTS = "of products: tf32 and bf16 on a GPU, bf16 on a CPU that has it"
Function = TypeVar("Function", bound=Callable[..., Any])


@dc.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings of a run, apart from model, data, method and local training."""

    rounds: int = knob(words="how many rounds", least=0, free=True)
    clients_per_round: Any = knob(1.0, SHARE, written=float | str | list[list[int]], fact=False)
    architecture: Any = knob(None, NETWORKS, written=str | list[str], fact=False)
    channel: Any = knob((), CHANNEL, written=str | list[str] | list[dict[str, Any]], fact=False)
    epsilon: float | None = knob(None, EPSILON, above=0, fact=False)
    exchanges: int = knob(1, EXCHANGES, least=1, **HOW, fact=False)
    delta: float = knob(1e-5, "δ of the ε in each line, where there is noise", above=0, below=0.1, fact=False)
    max_epsilon: float | None = knob(None, MOST, above=0, **HOW, fact=False)
    asynchronous: Any = knob(None, ARRIVALS, written=str, fact=False)
    staleness: str = knob("polynomial:0.5", f"of an asynchronous run: {STALENESS}", fact=False)
    buffers: str = knob("average", "BatchNorm's statistics", choices=BUFFER_POLICIES, noun="buffer policy", fact=False)
    seed: int = knob(0, "of everything random in the run", least=0)
    engine: str = knob("auto", "who runs the clients (unalike list engines)", choices=CHOICE, noun="engine", **HOW)
    device: str = knob("auto", "where: auto, cpu, cuda or cuda:1", **HOW)
    dtype: str = knob("float32", "of weights and data", choices=DTYPES, noun="dtype")
    precision: str = knob("highest", PRODUCTS, choices=PRECISIONS, noun="precision", how=True)
    deterministic: bool = knob(False, "bit-identical repeats on a GPU too", **HOW)
    folder: str | Path | None = knob(None, "where the run is written", **HOW, fact=False)
    resume: bool = knob(False, "go on where the run in the folder ended", **HOW, fact=False)
    checkpoint_every: int = knob(1, "rounds between checkpoints", least=1, **HOW)
    keep_checkpoints: int = knob(2, KEPT, least=1, **HOW, fact=False)
    from_round: int | None = knob(None, BACK, least=0, **HOW, fact=False)
    evaluate_every: int = knob(1, "rounds between evaluations", least=1)
    evaluate_clients: str | int = knob("auto", "auto, all, none, or how many (the same ones each time)")
    new_clients: float | int = knob(0, NEW, least=0, fact=False)
    allow_samples: bool = knob(False, SAMPLES, fact=False)
    new_steps: int = knob(10, "steps that a new client trains on its own data before it is judged", least=0, fact=False)
    state_memory: int = knob(
        2 << 30, "bytes of client state in memory; the rest is in files", least=0, **HOW, fact=False
    )

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_fields(self, "", KINDS)
        parse_staleness(self.staleness)
        if self.resume and self.folder is None:
            raise UnalikeError("resume=True needs the folder of the run to continue: give folder=...")
        if self.from_round is not None and not self.resume:
            raise UnalikeError("from_round is where a run goes on from: give resume=True too (--resume FOLDER).")


KINDS = {name: typed.words(s.hint) for name, s in typed.hints(RunSettings).items() if s.knob.bounds}


def takes_settings(fn: Function) -> Function:
    """Add the settings of a run to the signature and the docstring of a function that takes them as keywords."""
    own = [p for p in inspect.signature(fn).parameters.values() if p.kind is not p.VAR_KEYWORD]
    given = [*inspect.signature(RunSettings).parameters.values()]
    options = inspect.Parameter("engine_options", inspect.Parameter.VAR_KEYWORD, annotation="Any")
    parameters = sorted([*own, *given], key=lambda p: p.kind)
    lines = [f"{name}: {knob.text}" for name, knob in knobs(RunSettings).items()]
    fn.__signature__ = inspect.Signature([*parameters, options], return_annotation="Run")  # type: ignore[attr-defined]
    fn.__doc__ = "\n    ".join([(fn.__doc__ or "").rstrip(), *lines])
    return fn


def split_options(given: dict[str, Any]) -> tuple[RunSettings, dict[str, Any]]:
    """Divide the keywords into settings of the run and options of the engine."""
    own = {f.name for f in dc.fields(RunSettings)}
    settings = RunSettings(**{name: value for name, value in given.items() if name in own})
    return settings, {name: value for name, value in given.items() if name not in own}
