"""Checks of a run's plan, and of the network that it names."""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import unalike
from unalike import config
from unalike.data.schema import Schema
from unalike.errors import UnalikeError
from unalike.network.policy import PLANNED
from unalike.network.runs import RUN_ID

LACKS_PUBLIC = "The run has a public set, and this client has none: give it the server's file (--public)."
OTHER_PUBLIC = "The run's public set is not this client's: give both the same file (--public)."


def check_schema(own: Schema | None, plain: Any) -> None:
    """Refuse a federation whose tables differ from this client's, before anything is sent; plain: the federation's
    schema."""
    if own is None or plain is None:
        return
    try:
        difference = own.difference(Schema.from_plain(plain))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UnalikeError("The server's schema is none.") from None
    if difference:
        raise UnalikeError(
            f"This client's schema is not the federation's: {difference}. Take the server's schema.json (--schema)."
        )


def check_plan(plan: Any) -> None:
    """Check that all parts of a plan are there and have the right types; its tables are checked like any config."""
    whole = lambda low, high: lambda v: type(v) is int and low <= v < high  # noqa: E731
    table = lambda v: isinstance(v, dict) and all(isinstance(k, str) for k in v)  # noqa: E731
    wanted: dict[str, Callable[[Any], bool]] = {
        "version": lambda v: v == unalike.__version__,
        "clients": whole(1, 10_000_000),
        "client": whole(0, 10_000_000),
        "classes": lambda v: v is None or whole(1, 1 << 31)(v),
        "mean": lambda v: type(v) is float and 0 < v < 1e15,
        "tables": lambda v: table(v) and all(k in PLANNED and table(t) for k, t in v.items()),
        "run": table,
        "files": table,
        "preparation": lambda v: v is None or table(v),
        "network": lambda v: v is None or isinstance(v, str),
        "public": lambda v: v is None or (isinstance(v, str) and bool(RUN_ID.fullmatch(v))),
        "once": lambda v: v is None or (isinstance(v, str) and bool(RUN_ID.fullmatch(v))),
    }
    for name, right in wanted.items():
        needed = name not in ("network", "public", "once")  # optional: plans without them leave these out
        if not isinstance(plan, dict) or (needed and name not in plan) or not right(plan.get(name)):
            given = reprlib.repr(plan.get(name) if isinstance(plan, dict) else plan)
            raise UnalikeError(f"The plan's {name} is {given}, which cannot be.")


def network_digest(module: nn.Module, start: bool = False) -> str:
    """Return 16 hex digits of a SHA-256 over a network's structure: its layers, and the names and shapes of its weights
    and statistics. The weights are left out, because the server sends them; with `start`, for methods whose server
    sends none, 16 more digits over the weights follow."""
    layers = [(name, type(layer).__qualname__) for name, layer in module.named_modules()]
    tensors = [(name, list(value.shape)) for name, value in module.state_dict().items() if isinstance(value, Tensor)]
    made_of = hashlib.sha256(json.dumps([layers, tensors]).encode()).hexdigest()[:16]
    if not start:
        return made_of
    values = [value for value in module.state_dict().values() if isinstance(value, Tensor)]
    weights = b"".join(
        value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for value in values
    )
    return made_of + hashlib.sha256(weights).hexdigest()[:16]


def check_network(wanted: str | None, module: nn.Module, start: bool) -> None:
    """Refuse a run whose network is not the one that this client builds, or starts with other weights."""
    built = network_digest(module, start)
    if wanted is None or wanted == built:
        return
    same = "use the same version of PyTorch and the same files."
    if wanted[:16] != built[:16]:
        raise UnalikeError(f"The network that this client builds is not the one that the server builds: {same}")
    raise UnalikeError(
        f"The weights that this client's network starts with are not the server's, and nobody sends them: {same}"
    )


def own_network(tables: dict[str, Any], architecture: Any, client: int, clients: int) -> dict[str, Any]:
    """Return this client's [model] table: the only one, or the plan's for its architecture."""
    networks, common = tables.get(config.MODELS_TABLE), tables.get("model", {})
    if networks is None:
        return common
    names = config.network_names({**tables, "run": {"architecture": architecture}}, clients)
    return {**common, **networks[names[client]]}
