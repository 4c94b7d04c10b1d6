"""Evaluate a client's own model on its own data, as a client function; simulations and real clients run the same."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unalike.contract import Answer, Average, Batch, Fields, Me, Method, Outputs, Request
from unalike.contract.requests import Measure, Train
from unalike.nn.metrics import MEANS, Metric, need_outputs, statistics
from unalike.nn.task import Task

# the sum of the weights behind a mean: 1, up to rounding
COUNT = MEANS + "count"


def evaluation(
    method: Method, task: Task, metrics: dict[str, Metric], split: str, steps: int | None = None
) -> Callable[..., Answer]:
    """Return the client function that finds the method's personal model (or, with `steps`, a newcomer's after that many
    steps) and answers its mean loss, its metrics, and the means of their statistics."""
    plain = {name: m.rows for name, m in metrics.items() if m.rows is not None}
    summed, whole = statistics(metrics, of_all=False), need_outputs(metrics)

    def scores(batch: Batch) -> dict[str, Tensor]:
        output, y = task.original(batch.output, batch.y)
        rows = {"loss": batch.losses, **{name: metric(output, y) for name, metric in plain.items()}}
        means = {MEANS + name: s.rows(output, y) for name, s in summed.items() if s.rows is not None}
        count = {COUNT: torch.ones_like(batch.weights, dtype=torch.float64)} if means else {}
        return {**rows, **means, **count}

    def score(me: Me, s: Fields, m: Fields, vector: Tensor) -> Answer:
        if vector.dim() > 1:
            together = Average(None, mean_scores, {"vectors": vector}, split)
            return together.then(mean_outputs, vectors=vector) if whole else together.then(end)
        found = me.average(scores, vector, data=split)
        return found.then(measure, vector=vector) if whole else found.then(end)

    def measure(me: Me, s: Fields, m: Fields, found: dict[str, Tensor], vector: Tensor) -> Answer:
        return Measure(vector, split).then(both, found=found)

    def both(me: Me, s: Fields, m: Fields, measured: dict[str, Tensor], found: dict[str, Tensor]) -> Answer:
        return {}, {**_own(metrics, found), **measured}

    def end(me: Me, s: Fields, m: Fields, found: dict[str, Tensor]) -> Answer:
        return {}, {**_own(metrics, found)}

    def personal(me: Me, s: Fields, m: Fields) -> Answer:
        return _chain(method.personal(me, s, m), score, me, s, m)

    def newcomer(me: Me, s: Fields, m: Fields) -> Answer:
        return _chain(method.arrival(me, s, m), adapt if steps else score, me, s, m)

    def adapt(me: Me, s: Fields, m: Fields, vector: Tensor) -> Answer:
        # several models that are averaged are not trained
        if vector.dim() > 1:
            return score(me, s, m, vector)
        part = None if method.adapts == "all" else method.adapts
        return me.train(vector, steps=steps, part=part).then(score)

    # by outputs that do not come from one vector

    def mean_scores(batch: Batch, vectors: Tensor) -> dict[str, Tensor]:
        return scores(batch.with_output(mean_output(batch, vectors)))

    def mean_outputs(me: Me, s: Fields, m: Fields, found: dict[str, Tensor], vectors: Tensor) -> Answer:
        return Outputs(None, mean_output, {"vectors": vectors}, split).then(measure_outputs, found=found)

    def predicted(me: Me, s: Fields, m: Fields) -> Answer:
        found = Average(None, own_scores, as_arguments(me, s, m), split)
        return found.then(outputs) if whole else found.then(end)

    def own_scores(batch: Batch, **args: Any) -> dict[str, Tensor]:
        return scores(batch.with_output(from_arguments(method, batch, args)))

    def outputs(me: Me, s: Fields, m: Fields, found: dict[str, Tensor]) -> Answer:
        return Outputs(None, own_outputs, as_arguments(me, s, m), split).then(measure_outputs, found=found)

    def own_outputs(batch: Batch, **args: Any) -> Tensor:
        return from_arguments(method, batch, args)

    def measure_outputs(me: Me, s: Fields, m: Fields, rows: Tensor, found: dict[str, Tensor]) -> Answer:
        return Measure(None, split, rows).then(both, found=found)

    if steps is not None:
        return newcomer
    return predicted if predicts(method) else personal


def mean_output(batch: Batch, vectors: Tensor) -> Tensor:
    """Return the mean of the outputs of several models [k, P]."""
    return torch.stack([batch.forward(vector)[0] for vector in vectors.unbind()]).mean(0)


def predicts(method: Method) -> bool:
    """Return whether clients' models are evaluated by the method's own outputs (`Method.predict`)."""
    return type(method).predict is not Method.predict and method.predicts


PARTS = ("me.", "s.", "m.")  # prefixes of arguments


def as_arguments(me: Me, s: Fields, m: Fields) -> dict[str, Any]:
    """Return a client, its state and its message as arguments of a request, because tensors reach a function of samples
    in no other way."""
    parts = zip(PARTS, (me.numbers, s, m), strict=True)
    named = {prefix + name: value for prefix, part in parts for name, value in dict.items(part)}
    return {**named, "me.start": me.start, "round": me.round, "local": me.local}


def from_arguments(method: Method, batch: Batch, args: dict[str, Any]) -> Tensor:
    """Return the method's outputs for a batch, from the arguments made by `as_arguments`."""
    given = [{n.removeprefix(p): v for n, v in args.items() if n.startswith(p)} for p in PARTS]
    me = Me(given[0], args["round"], args["local"], batch.layout)
    return method.predict(me, Fields(given[1]), Fields(given[2]), batch)


def _own(metrics: dict[str, Metric], found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the metrics that are functions of means to the results."""
    if COUNT not in found:
        return found
    out = {k: v / found[COUNT] if k.startswith(MEANS) else v for k, v in found.items() if k != COUNT}
    for name, metric in metrics.items():
        if metric.grouped is None and metric.statistic is not None and metric.value is not None:
            out[name] = metric.value(out[MEANS + metric.statistic.name])
    return out


def own_model(method: Method) -> Callable[..., Answer]:
    """Return the client function that finds the method's personal model and answers with it; for use at the client
    itself."""

    def answer(me: Me, s: Fields, m: Fields, vector: Tensor) -> Answer:
        return {}, {"vector": vector}

    def personal(me: Me, s: Fields, m: Fields) -> Answer:
        return _chain(method.personal(me, s, m), answer, me, s, m)

    return personal


def _chain(out: Tensor | Request, then: Callable[..., Answer], me: Me, s: Fields, m: Fields) -> Answer:
    """Call `then(me, s, m, vector)` after a client function that ends in a vector instead of (state, reply), or in a
    training without `.then`, whose result is the vector."""
    if not isinstance(out, Request):
        return then(me, s, m, out)
    following = out.next if isinstance(out, Train) else out.following("personal")

    def next(me: Me, s: Fields, m: Fields, result: Any, **keep: Any) -> Answer:
        vector = result if following is None else following(me, s, m, result, **keep)
        return _chain(vector, then, me, s, m)

    return dc.replace(out, next=next)
