"""Boosted trees that grow by messages, through a channel: `ua.trees.fit(..., channel=...)`."""

from __future__ import annotations

from typing import Any

from unalike.contract.method import Method
from unalike.errors import UnalikeError
from unalike.run.simulate import simulate
from unalike.trees.fit import by_messages
from unalike.trees.model import Boosted


@by_messages
def grown(method: Any, data: Any, seed: int, channel: Any) -> Boosted:
    """Grow a method's trees by messages through a channel."""
    if not isinstance(method, Method) or method.network != "forest":
        raise UnalikeError("Through a channel trees are grown by a method, such as ua.HistBoost(trees=20).")
    rounds = method.network_options()["trees"]
    run = simulate(None, data, method, rounds=rounds, seed=seed, channel=channel, evaluate_every=rounds)
    model = run.forest
    assert model is not None
    model.run = run
    return model
