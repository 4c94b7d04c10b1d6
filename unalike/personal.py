"""A client's own model on its own data, as a client function: what evaluation runs, here and on a real client."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable
from typing import Any

from torch import Tensor

from unalike.contract import Batch, Fields, Me, Method, Work
from unalike.errors import UnalikeError
from unalike.model import Loss


def scored(method: Method, metrics: dict[str, Loss], split: str) -> Callable[..., Any]:
    """The client function that finds the method's personal model and answers its mean loss and metrics."""

    def scores(batch: Batch) -> dict[str, Tensor]:
        return {"loss": batch.losses, **{n: metric(batch.output, batch.y) for n, metric in metrics.items()}}

    def score(me: Me, s: Fields, m: Fields, vector: Tensor) -> Any:
        return me.average(scores, vector, data=split).then(lambda me, s, m, values: ({}, values))

    def evaluate(me: Me, s: Fields, m: Fields) -> Any:
        return _chain(method.personal(me, s, m), score, me, s, m)

    evaluate.__name__ = "personal"  # what an error calls it
    evaluate.split = split  # type: ignore[attr-defined]  # a network has to name it
    return evaluate


def _chain(out: Any, then: Callable[..., Any], me: Me, s: Fields, m: Fields) -> Any:
    """`then(me, s, m, vector)` after a client function that ends in a vector instead of (state, reply)."""
    if not isinstance(out, Work):
        return then(me, s, m, out)
    following = out.next
    if following is None:
        raise UnalikeError(f"personal asked for {out.kind} without .then(...): name what comes next.")

    def next(me: Me, s: Fields, m: Fields, result: Any, **keep: Any) -> Any:
        return _chain(following(me, s, m, result, **keep), then, me, s, m)

    return dc.replace(out, next=next)
