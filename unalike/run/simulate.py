"""`simulate`: check what was asked for and run a method on a federation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from unalike.contract.method import Method
from unalike.data.federation import Federation
from unalike.draws import check_seed
from unalike.errors import UnalikeError, unknown
from unalike.nn.numerics import DTYPES, PRECISIONS, check_precision, find_device, numerics
from unalike.nn.task import Loss, Task
from unalike.run.callbacks import Callback
from unalike.run.run import Run
from unalike.training.settings import LocalTraining


def simulate(
    model: nn.Module,
    federation: Federation,
    method: Method,
    *,
    rounds: int,
    clients_per_round: Any = 1.0,
    local: LocalTraining | None = None,
    loss: Loss | nn.Module | str | None = None,
    metrics: Mapping[str, Loss] | None = None,
    head: str | None = None,
    buffers: str = "average",
    seed: int = 0,
    engine: str = "auto",
    device: str = "auto",
    dtype: str = "float32",
    precision: str = "highest",
    deterministic: bool = False,
    callbacks: Sequence[Callback] = (),
    folder: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: int = 1,
    evaluate_every: int = 1,
    evaluate_clients: str | int = "auto",
    state_memory: int = 2 << 30,
    recipe: dict[str, Any] | None = None,
    **engine_options: Any,
) -> Run:
    """Run `method` for so many rounds and give back the `Run`.

    clients_per_round: a fraction, a count, a list of client lists, or one of `ua.sampling`.
    loss, metrics: functions of (output, y) with one value a sample; default cross-entropy and accuracy. A metric of
      which less is better says so: `metric.higher_is_better = False`.
    buffers: what happens to BatchNorm's statistics: "average", "local" (each client keeps its own) or "freeze".
    engine: "auto", "sequential", "workers", "batched", "loopback" or "ray"; engine options are `workers`,
      `clients_at_once`, `memory` (bytes for a stack of clients) and `compile`; of "ray" also `address` and `inner`.
    precision: "highest", or on a GPU "tf32" or "bf16"; "bf16" also on a CPU that has it (twice as fast on a CNN).
    folder: where the run is written; with resume=True it continues after its last checkpoint.
    evaluate_clients: "auto", "all", "none" or a number of clients (the same ones each time).
    state_memory: bytes of client state kept in memory; beyond it goes to files.
    recipe: the tables of the config file this run comes from, written into its config.toml.
    """
    if not isinstance(method, Method):
        given = getattr(method, "__name__", type(method).__name__)
        raise UnalikeError(f"method must be a method such as ua.FedAvg(); got {given}.")
    if not isinstance(federation, Federation):
        raise UnalikeError(f"The data must be a Federation; got {type(federation).__name__}: use Dataset.split(...).")
    for name, value, low in (
        ("rounds", rounds, 0),
        ("checkpoint_every", checkpoint_every, 1),
        ("evaluate_every", evaluate_every, 1),
    ):
        if type(value) is not int or value < low:
            raise UnalikeError(f"{name} must be a whole number of at least {low}; got {value!r}.")
    check_seed(seed)
    if resume and folder is None:
        raise UnalikeError("resume=True needs the folder of the run to continue: give folder=...")
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    check_precision(precision, find_device(device))
    with numerics(precision, deterministic):
        run = Run(
            Task(model, loss, metrics, head, DTYPES[dtype], find_device(device), precision, buffers),
            federation,
            method,
            local or LocalTraining(),
            rounds=rounds,
            clients_per_round=clients_per_round,
            seed=seed,
            engine=engine,
            engine_options=engine_options,
            folder=folder,
            resume=resume,
            checkpoint_every=checkpoint_every,
            evaluate_every=evaluate_every,
            evaluate_clients=evaluate_clients,
            state_memory=state_memory,
            recipe=recipe,
        )
        try:
            run.go(callbacks)
        finally:
            run.close()
    return run
