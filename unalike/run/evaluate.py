"""Evaluation of a run: the global models on the global test set, each client's own model on its own data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unalike import draws
from unalike.client.evaluation import predicts
from unalike.contract import EVALUATION, Call, Evaluate, Message, Method, Outcome, Server
from unalike.contract.peers import check_message
from unalike.data.columns import Columns
from unalike.data.remote import RemoteFederation
from unalike.errors import UnalikeError
from unalike.messages.request import message_parts
from unalike.metrics.by_class import class_means, class_table
from unalike.metrics.evaluation import Scores, clients_line, evaluate_columns, validation_line
from unalike.nn.metrics import COUNTS, MEANS, statistics

if TYPE_CHECKING:
    from unalike.run.run import Run

EVALUATE_ALL = 2000  # populations up to which every client is evaluated unless asked otherwise


def choose_clients(asked: str | int, population: int, seed: int) -> np.ndarray:
    """Return the clients whose own data the model is evaluated on: the same ones each time."""
    if asked == "auto":
        asked = "all" if population <= EVALUATE_ALL else EVALUATE_ALL
    if asked == "none":
        return np.empty(0, dtype=np.int64)
    if asked == "all":
        return np.arange(population)
    if type(asked) is not int or asked < 1:
        raise UnalikeError(f"evaluate_clients must be 'auto', 'all', 'none' or a whole number; got {asked!r}.")
    rng = draws.generator(seed, "evaluated clients")
    return np.sort(rng.choice(population, min(asked, population), replace=False))


def shares_one_model(method: Method) -> bool:
    """Return whether every client's own model is the global one."""
    kind = type(method)
    one = kind.personal is Method.personal and kind.published is Method.published
    return one and not method.serverless and not predicts(method)


def global_models(method: Method, server: Server) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the method's global models, and the share of each in the reported numbers where it weighs them."""
    models = method.models(server)
    if not isinstance(models, dict):
        raise UnalikeError(
            f"{type(method).__name__}.models must return a dict from names to vectors, such as {{'ema': vector}}; it "
            f"returned a {type(models).__name__}."
        )
    vectors = {name: value[0] if isinstance(value, tuple) else value for name, value in models.items()}
    weights = {name: float(value[1]) for name, value in models.items() if isinstance(value, tuple)}
    if not weights:
        return vectors, {}
    total = sum(weights.values())
    if len(weights) < len(models) or min(weights.values()) < 0 or not 0 < total < float("inf"):
        raise UnalikeError(
            f"{type(method).__name__}.models gives the weights {weights} for {len(models)} models: all must "
            "have one of 0 or more, with a positive sum, or none."
        )
    return vectors, {name: weight / total for name, weight in weights.items()}


def evaluated(run: Run, t: int) -> dict[str, Any]:
    """Return the numbers of round t's evaluation; the clients' own go to `run.client_values` too."""
    line: dict[str, Any] = _test(run) if run.data.global_test and len(run.data.global_test[0]) else {}
    for split in ("test", "validation"):
        columns = run.data.splits.get(split)
        ids = run.evaluated_clients
        if columns is None or not len(ids := ids[columns.sizes[ids] > 0]):
            continue
        ids, scores = _client_scores(run, split, ids, t)
        if not len(ids):
            continue
        metrics = run.task.metrics_for(columns.y)
        if split == "validation":
            line |= validation_line(scores, metrics)
            continue
        run.client_values = {"client": ids, **scores.values}
        run.client_means = scores.means
        line |= clients_line(scores, metrics, run.higher)
    return line


def _test(run: Run) -> dict[str, float | None]:
    """Evaluate the global models on the global test set."""
    models, shares = global_models(run.method, run.server)
    line: dict[str, float | None] = {}
    for k, (name, vector) in enumerate(models.items()):
        for key, value in run.test_scores(vector).items():
            if shares:
                before = line.get(f"test_{key}", 0.0)
                line[f"test_{key}"] = None if value is None or before is None else before + shares[name] * value
            line[f"test_{key}" if k == 0 and not shares else f"test_{name}_{key}"] = value
    return line


def _client_scores(run: Run, split: str, ids: np.ndarray, t: int) -> tuple[np.ndarray, Scores]:
    """Return the loss and metrics of each client's own model on its own data; over a network, of those that answer."""
    task, columns = run.task, run.data.splits[split]
    if _one_model_here(run):
        return ids, evaluate_columns(task, run.bound(run.server.w), columns, ids)
    shared, rows = message_parts(published(run), run.population, run.server.values, task)
    rows = {name: values[torch.from_numpy(ids).to(task.device)] for name, values in rows.items()}
    found = _Answers(run, columns)
    for outcome in run.engine.call(Call(Evaluate(split), shared, rows, t, EVALUATION), ids):
        found.add(outcome)
    run.clients.discard()  # a personal model that is trained here leaves nothing behind
    return found.scores()


def published(run: Run) -> Message:
    """Return the message with which clients find their own models; a serverless method has no tensors in it."""
    message = run.method.published(run.server)
    if run.method.serverless:
        check_message(type(run.method).__name__, message)
    return message


def by_class(run: Run) -> list[dict[str, Any]]:
    """Return the metrics of every class: see `Run.by_class`."""
    data, test = run.data, run.data.splits.get("test")
    if data.classes is None:
        raise UnalikeError("The labels are numbers: there are no classes to look at one by one.")
    vector = next(iter(run.vectors().values()), None)
    if vector is not None and data.global_test is not None and len(data.global_test[1]):
        means, samples = class_means(run.task, run.bound(vector), *data.global_test), len(data.global_test[1])
    elif COUNTS.name in run.client_means and test is not None:
        means, samples = run.client_means[COUNTS.name], int(test.sizes[run.client_values["client"]].sum())
    elif test is not None and _one_model_here(run):
        means, samples = class_means(run.task, run.bound(run.server.w), test.x, test.y), len(test.y)
    else:
        raise UnalikeError(
            "There is nothing to count classes on: give a test set, or clients' test samples and the metric 'f1'."
        )
    return class_table(means, samples, data.label_names)


def _one_model_here(run: Run) -> bool:
    """Return whether all clients share the global model, and their data are here."""
    remote = isinstance(run.data, RemoteFederation)
    return shares_one_model(run.method) and run.task.buffer_policy != "local" and not remote


class _Answers:
    """Gathers the clients' answers to an evaluation; of long statistics only the sum is kept."""

    def __init__(self, run: Run, columns: Columns):
        self.metrics, self.sizes = run.task.metrics_for(columns.y), columns.sizes
        self.ids: list[np.ndarray] = []
        self.values: dict[str, list[np.ndarray]] = {name: [] for name in ("loss", *self.metrics)}
        self.rows: dict[str, list[Tensor]] = {name: [] for name in statistics(self.metrics, of_all=False)}
        self.counts: dict[str, Tensor] = {}

    def add(self, outcome: Outcome) -> None:
        self.ids.append(outcome.ids)
        undefined = torch.full((len(outcome.ids),), float("nan"))
        for name, values in self.values.items():
            values.append(outcome.up.get(name, undefined).double().cpu().numpy())
        weight = torch.from_numpy(self.sizes[outcome.ids]).double()[:, None]
        for name, rows in self.rows.items():
            rows.append(weight * outcome.up[MEANS + name].cpu())
        for name in statistics(self.metrics, of_all=True):
            # these are counts: whole numbers, whose sum is the same in any order
            some = (weight * outcome.up[MEANS + name].cpu()).round().sum(0)
            self.counts[name] = self.counts[name] + some if name in self.counts else some

    def scores(self) -> tuple[np.ndarray, Scores]:
        if not self.ids:
            return np.empty(0, dtype=np.int64), Scores({}, {}, np.empty(0))
        answered = np.concatenate(self.ids)
        order = np.argsort(answered, kind="stable")  # a network's answers come as they come
        ids = answered[order]
        sizes = self.sizes[ids]
        sums = {name: torch.cat(rows)[torch.from_numpy(order)].sum(0) for name, rows in self.rows.items()} | self.counts
        values = {name: np.concatenate(v)[order] for name, v in self.values.items()}
        return ids, Scores(values, {name: total / int(sizes.sum()) for name, total in sums.items()}, sizes)
