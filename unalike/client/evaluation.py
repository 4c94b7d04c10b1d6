"""A client's own model on its own data, as a client function: what evaluation runs, here and on a real client."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable
from typing import Any

from torch import Tensor

from unalike.contract import Answer, Batch, Fields, Me, Method, Request
from unalike.nn.task import Loss


def evaluation(method: Method, metrics: dict[str, Loss], split: str) -> Callable[..., Answer]:
    """Return the client function that finds the method's personal model and answers its mean loss and metrics."""

    def scores(batch: Batch) -> dict[str, Tensor]:
        return {"loss": batch.losses, **{n: metric(batch.output, batch.y) for n, metric in metrics.items()}}

    def score(me: Me, s: Fields, m: Fields, vector: Tensor) -> Answer:
        return me.average(scores, vector, data=split).then(lambda me, s, m, values: ({}, values))

    def personal(me: Me, s: Fields, m: Fields) -> Answer:
        return _chain(method.personal(me, s, m), score, me, s, m)

    return personal


def own_model(method: Method) -> Callable[..., Answer]:
    """Return the client function that finds the method's personal model and answers it: for use where the client is."""

    def answer(me: Me, s: Fields, m: Fields, vector: Tensor) -> Answer:
        return {}, {"vector": vector}

    def personal(me: Me, s: Fields, m: Fields) -> Answer:
        return _chain(method.personal(me, s, m), answer, me, s, m)

    return personal


def _chain(out: Tensor | Request, then: Callable[..., Answer], me: Me, s: Fields, m: Fields) -> Answer:
    """Call `then(me, s, m, vector)` after a client function that ends in a vector instead of (state, reply)."""
    if not isinstance(out, Request):
        return then(me, s, m, out)
    following = out.following("personal")

    def next(me: Me, s: Fields, m: Fields, result: Any, **keep: Any) -> Answer:
        return _chain(following(me, s, m, result, **keep), then, me, s, m)

    return dc.replace(out, next=next)
