"""Evaluate a run: the global models on the global test set, each client's own model on its own data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unalike import draws
from unalike.client.evaluation import predicts
from unalike.contract import EVALUATION, Call, Evaluate, Message, Method, Outcome, Server, Vectors
from unalike.contract.peers import check_message
from unalike.data.columns import Columns
from unalike.errors import UnalikeError
from unalike.messages.request import message_parts
from unalike.metrics.by_class import class_means, class_table
from unalike.metrics.evaluation import Scores, clients_line, evaluate_columns, merged, validation_line
from unalike.nn.metrics import COUNTS, MEANS, statistics
from unalike.nn.task import Task

if TYPE_CHECKING:
    from unalike.run.run import Run

# a difference this small between a client's two numbers is rounding
SAME = 1e-5
# the largest population of which every client is evaluated by default
EVALUATE_ALL = 2000


def choose_clients(asked: str | int, population: int, seed: int, secretive: bool = False) -> np.ndarray:
    """Return the clients on whose own data the model is evaluated; they are the same in every round. secretive: noise
    protects real clients, and exact scores would bypass it; then no client is evaluated unless the user asks for it."""
    if asked == "auto" and secretive:
        asked = "none"
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
    """Return whether every client's own model is the global model."""
    kind = type(method)
    one = kind.personal is Method.personal and kind.published is Method.published
    return one and not method.serverless and not predicts(method)


def global_models(method: Method, server: Server) -> tuple[dict[str, Tensor | Vectors], dict[str, float]]:
    """Return the method's global models, and the weight of each in the reported numbers if the method weighs them."""
    models = method.models(server)
    if not isinstance(models, dict):
        raise UnalikeError(
            f"{type(method).__name__}.models must return a dict from names to vectors, such as {{'ema': vector}}; it "
            f"returned a {type(models).__name__}."
        )
    vectors: dict[str, Tensor | Vectors] = {n: v[0] if isinstance(v, tuple) else v for n, v in models.items()}
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
    """Return the numbers of round t's evaluation; write the single clients' numbers to `run.client_values`."""
    line: dict[str, Any] = _test(run)
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
        line |= clients_line(scores, metrics, run.higher) | _gains(run, columns, ids)
    return line


def _gains(run: Run, columns: Columns, ids: np.ndarray) -> dict[str, float]:
    """Return the shares of clients for which their own model is better, and worse, than the global model. Compared is
    the headline metric (without metrics, the loss), over the clients for which it is defined; empty unless there are
    both models."""
    alone = run.architectures is not None or run.data.remote or run.task.buffer_policy == "local"
    if alone or shares_one_model(run.method):
        return {}
    models, shares = global_models(run.method, run.server)
    vector = next(iter(models.values()), None)
    if not isinstance(vector, Tensor) or shares:
        return {}
    name, larger = next(iter(run.higher.items()), ("loss", False))
    common = evaluate_columns(run.task, run.bound(vector), columns, ids).values[name]
    run.client_values[f"global_{name}"] = common
    ahead = (run.client_values[name] - common) * (1 if larger else -1)
    defined = ~np.isnan(ahead)
    if not defined.any():
        return {}
    ahead, tie = ahead[defined], SAME * np.maximum(1, np.abs(common[defined]))
    return {"gain_share": float((ahead > tie).mean()), "lose_share": float((ahead < -tie).mean())}


def _tested(run: Run, architecture: str | None = None) -> bool:
    """Return whether there is a global test set (for this architecture)."""
    name = next(iter(run.tasks)) if architecture is None else architecture
    test = run.parts[name].global_test
    return test is not None and len(test[0]) > 0


def _test(run: Run) -> dict[str, float | None]:
    """Evaluate the global models on the global test set."""
    if not any(_tested(run, name) for name in run.tasks):
        return {}
    models, shares = global_models(run.method, run.server)
    line: dict[str, float | None] = {}
    for k, (name, vector) in enumerate(models.items()):
        first = k == 0 and not shares
        if isinstance(vector, Vectors):
            found = _by_architecture(run, vector)
            line |= {f"test_{'' if first else f'{name}_'}{a}_{key}": v for a in found for key, v in found[a].items()}
            scores = _mean(run, found)
        else:
            scores = run.test_scores(vector) if _tested(run) else {}
        for key, value in scores.items():
            if shares:
                before = line.get(f"test_{key}", 0.0)
                line[f"test_{key}"] = None if value is None or before is None else before + shares[name] * value
            line[f"test_{key}" if first else f"test_{name}_{key}"] = value
    return line


def _by_architecture(run: Run, vectors: Vectors) -> dict[str, dict[str, float | None]]:
    """Return the numbers of each network on its global test set."""
    return {name: run.test_scores(vector, name) for name, vector in vectors.items() if _tested(run, name)}


def _mean(run: Run, found: dict[str, dict[str, float | None]]) -> dict[str, float | None]:
    """Return the mean of the networks' numbers, weighted by their clients; None where one is not defined."""
    assert run.architectures is not None
    shares = {name: run.architectures.shares[name] for name in found}
    total, out = sum(shares.values()), dict[str, float | None]()
    for key in next(iter(found.values())):
        values = {name: scores[key] for name, scores in found.items()}
        defined = [shares[name] * value for name, value in values.items() if value is not None]
        out[key] = sum(defined) / total if len(defined) == len(values) else None
    return out


def _client_scores(run: Run, split: str, ids: np.ndarray, t: int) -> tuple[np.ndarray, Scores]:
    """Return the loss and metrics of each client's own model on its own data; over a network, of the clients that
    answer."""
    task = run.task
    if _one_model_here(run):
        return ids, _shared_scores(run, split, ids)
    shared, rows = message_parts(published(run), run.population, run.server.values, task)
    rows = rows_of(run, rows, ids)
    found = Answers(task, run.data.splits[split])
    for outcome in run.engine.call(Call(Evaluate(split), shared, rows, t, EVALUATION), ids):
        found.add(outcome)
    # training a personal model for evaluation must leave no state behind
    run.clients.discard()
    return found.scores()


def rows_of(run: Run, rows: dict[str, Any], ids: np.ndarray) -> dict[str, Any]:
    """Select these clients' rows from rows for all clients; rows of several architectures stay apart."""
    where = torch.from_numpy(ids).to(run.task.device)
    out = {}
    for name, values in rows.items():
        if isinstance(values, Vectors):
            assert run.architectures is not None
            own = {a: np.isin(run.architectures.clients(a), ids) for a in values.names}
            out[name] = Vectors({a: part[torch.from_numpy(own[a]).to(part.device)] for a, part in values.items()})
        else:
            out[name] = values[where]
    return out


def _shared_scores(run: Run, split: str, ids: np.ndarray) -> Scores:
    """Return the scores of the model that all these clients share; where networks differ, one model per network."""
    if run.architectures is None:
        return evaluate_columns(run.task, run.bound(run.server.w), run.data.splits[split], ids)
    parts = []
    for name, places in run.architectures.groups(ids):
        bound = run.bound(run.server.values["w"][name], name)
        parts.append((places, evaluate_columns(run.tasks[name], bound, run.parts[name].splits[split], ids[places])))
    return merged(parts)


def published(run: Run) -> Message:
    """Return the message from which clients find their own models; for a serverless method it has no tensors."""
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
    if vector is not None and _tested(run):
        means, samples = _test_means(run, vector), _test_samples(run)
    elif COUNTS.name in run.client_means and test is not None:
        means, samples = run.client_means[COUNTS.name], int(test.sizes[run.client_values["client"]].sum())
    elif test is not None and _one_model_here(run) and run.architectures is None:
        means, samples = class_means(run.task, run.bound(run.server.w), test.x, test.y), len(test.y)
    else:
        raise UnalikeError(
            "There is nothing to count classes on: give a test set, or clients' test samples and the metric 'f1'."
        )
    return class_table(means, samples, data.label_names)


def _test_samples(run: Run) -> int:
    tests = {id(part): part.global_test for part in run.parts.values()}
    return sum(len(test[1]) for test in tests.values() if test is not None)


def _test_means(run: Run, vector: Tensor | Vectors) -> Tensor:
    """Return the mean statistics of every class on the test set; several networks are weighted by their numbers of
    clients."""
    parts = vector.items() if isinstance(vector, Vectors) else [(next(iter(run.tasks)), vector)]
    shares = {name: 1.0 for name, _ in parts} if run.architectures is None else run.architectures.shares
    found = [
        (shares[name], class_means(run.tasks[name], run.bound(part, name), *test))
        for name, part in parts
        if (test := run.parts[name].global_test) is not None  # some networks' data may have no test set
    ]
    return torch.stack([share * means for share, means in found]).sum(0) / sum(share for share, _ in found)


def _one_model_here(run: Run) -> bool:
    """Return whether all clients of a network share the global model and their data are in this process."""
    return shares_one_model(run.method) and run.task.buffer_policy != "local" and not run.data.remote


class Answers:
    """Collect the clients' answers to an evaluation; of long statistics only the sum is kept."""

    def __init__(self, task: Task, columns: Columns):
        self.metrics, self.sizes = task.metrics_for(columns.y), columns.sizes
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
            # counts are whole numbers: their sum does not depend on the order
            some = (weight * outcome.up[MEANS + name].cpu()).round().sum(0)
            self.counts[name] = self.counts[name] + some if name in self.counts else some

    def scores(self) -> tuple[np.ndarray, Scores]:
        if not self.ids:
            return np.empty(0, dtype=np.int64), Scores({}, {}, np.empty(0))
        answered = np.concatenate(self.ids)
        order = np.argsort(answered, kind="stable")  # answers come over a network in any order
        ids = answered[order]
        sizes = self.sizes[ids]
        sums = {name: torch.cat(rows)[torch.from_numpy(order)].sum(0) for name, rows in self.rows.items()} | self.counts
        values = {name: np.concatenate(v)[order] for name, v in self.values.items()}
        return ids, Scores(values, {name: total / int(sizes.sum()) for name, total in sums.items()}, sizes)
