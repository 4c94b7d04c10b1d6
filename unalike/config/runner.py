"""Carry out the run that a config describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from unalike.channel.stage import Stage
from unalike.channel.stages import Summed
from unalike.client.preparing import by_messages
from unalike.config.build import (
    as_stored,
    make_clock,
    make_data,
    make_local,
    make_loss_of,
    make_method,
    make_models,
    make_sampling,
)  # fmt: skip
from unalike.config.channels import make_channel
from unalike.config.checks import absolute, check
from unalike.data.federation import Federation
from unalike.data.joined import JoinedFederation
from unalike.engines.preparing import by_hidden_messages
from unalike.run.run import Run
from unalike.run.simulate import simulate


def run(
    config: dict[str, Any],
    callbacks: Any = (),
    resume: bool = False,
    federation: Federation | None = None,
    before: Callable[[dict[str, Any], Any], None] = lambda tables, networks: None,
    **options: Any,
) -> Run:
    """Carry out the run that a config describes and return it. With a `federation`, [data] is ignored. before: called
    with the checked tables and the model (a dict for several networks) before the run begins; options: of the engine,
    if a file cannot hold them."""
    tables = absolute(check(config if federation is None else {**config, "data": _stand_in(config, federation)}))
    settings = dict(tables["run"])
    settings["clients_per_round"] = make_sampling(settings.get("clients_per_round", 1.0))
    settings["channel"] = make_channel(settings.get("channel", ()))
    settings["resume"] = resume or settings.get("resume", False)
    if federation is None:
        # loopback prepares features by messages, with the same bits; changes of features come after preparing
        raw = settings.get("engine") == "loopback" and not as_stored(tables["data"])[1]
        federation = make_data(tables["data"], raw)
        federation = _by_messages(federation, settings["channel"]) if raw else federation
    else:
        tables["data"] = dict(config.get("data", {}))
    module = make_models(tables, federation, settings.get("seed", 0))
    before(tables, module)
    return simulate(
        module,
        federation,
        make_method(tables["method"]),
        local=make_local(tables["local"]),
        clock=make_clock(tables["clock"]),
        callbacks=callbacks,
        recipe=tables,
        **make_loss_of(tables),
        **settings,
        **options,
    )


def _by_messages(federation: Federation, stages: Sequence[Stage]) -> Federation:
    """Return the federation, prepared by messages, whose sums the channel hides if it hides replies."""
    hiding = next((stage for stage in stages if isinstance(stage, Summed)), None)
    return by_messages(federation) if hiding is None else by_hidden_messages(federation, hiding)


def _stand_in(config: dict[str, Any], federation: Federation) -> dict[str, Any]:
    """Return a [data] table that passes the checks in place of a given federation; a joined federation itself says
    which client has which network."""
    folder = {"folder": "."}
    joined = isinstance(federation, JoinedFederation) and "architecture" not in config.get("run", {})
    return {name: folder for name in federation.parts} if joined else folder  # type: ignore[attr-defined]
