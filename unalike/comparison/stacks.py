"""Several runs of a comparison in one stack: seeds of a method, and trials that differ in the learning rate alone.

Each stays an ordinary run, with its own folder and the numbers that it has alone, to rounding
(engines/batched/lockstep.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from unalike import config
from unalike.data import Federation
from unalike.engines.batched import lockstep
from unalike.engines.choose import stacks_pay
from unalike.errors import EngineRefused
from unalike.nn.numerics import one_thread

Tables = dict[str, dict[str, Any]]
LOOSE = {"data": ("seed",), "run": ("seed", "folder"), "local": ("lr",)}  # in which runs of one stack may differ
BYTES = 1 << 30  # most bytes of all data in a stack, and of a copy of them


class Kept:
    """The data of runs, made when they are first asked for; the last ones are kept, as many as fit into the bytes."""

    def __init__(self) -> None:
        self.made: dict[str, Federation] = {}
        self.most = 1  # federations that fit

    def of(self, tables: Tables) -> Federation:
        """Return the data of a run with these tables."""
        key = json.dumps(tables["data"], sort_keys=True, default=str)
        fed = self.made.pop(key, None)
        if fed is None:
            fed = config.make_data(tables["data"])
            self.most = max(1, BYTES // (2 * fed.train.x.nbytes + 1))
        self.made[key] = fed
        while len(self.made) > self.most:
            del self.made[next(iter(self.made))]
        return fed


def kind(tables: Tables) -> str:
    """Return a text that is equal for runs that may share a stack."""
    plain = {name: {k: v for k, v in table.items() if k not in LOOSE.get(name, ())} for name, table in tables.items()}
    return json.dumps(plain, sort_keys=True, default=str)


def fits(tables: Tables, fed: Federation) -> bool:
    """Return whether runs like this one are made in one stack: it pays, and nobody asked for bits that repeat."""
    run = tables["run"]
    usual = run.get("engine", "auto") in ("auto", "batched") and not run.get("deterministic")
    if not usual or config.MODELS_TABLE in tables:
        return False
    return stacks_pay(config.make_model(config.check(tables)["model"], fed, 0), fed.train.sizes)


def together(starts: Sequence[Callable[..., Any]], tables: Tables) -> list[Any]:
    """Return what each of these runs gives: one by itself, several in one stack. tables: of the first."""
    if len(starts) > 1:
        try:
            with one_thread():
                return lockstep.together(starts, tables["run"].get("precision", "highest"))
        except EngineRefused:  # a model that cannot be stacked: each run finds another engine
            pass
    return [start() for start in starts]
