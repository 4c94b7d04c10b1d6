"""What numbers mean: the label, the unit, which way is better, and the order in which they are shown.

A metric of your own gets all this from its name. Higher is better unless the function says otherwise:

    def miss(output, y): ...
    miss.higher_is_better = False

The run keeps that in its config.toml, under [model] of the facts, where reports and comparisons find it.
"""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from unalike.errors import UnalikeError

Unit = Literal["percent", "pp²", "plain", "count", "bytes", "seconds"]
Better = Literal["higher", "lower", "neither"]
Source = Literal["evaluation", "training", "bookkeeping"]


@dc.dataclass(frozen=True)
class Number:
    """A number in a round's line, or of a run as a whole.

    key: its name in the line; label: for an axis; words: for a sentence; short: for a narrow column of a terminal.
    unit: a share is shown as percent. metric: what is measured, such as accuracy. score: what it is, in words, if
    methods may be compared by it. summary: the title of its column in a report, if it has one.
    """

    key: str
    label: str
    unit: Unit = "plain"
    better: Better = "neither"
    source: Source = "evaluation"
    metric: str = ""
    words: str = ""
    short: str = ""
    score: str = ""
    summary: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", self.words or self.key.replace("_", " "))

    @property
    def larger(self) -> bool:
        return self.better == "higher"

    @property
    def name(self) -> str:
        """Return the metric's name for a sentence: "AUC"."""
        return spoken(self.metric)

    @property
    def validation(self) -> str:
        """Return the key of the same metric on validation data."""
        return f"validation_{self.metric}"


SPOKEN = {"auc": "AUC", "f1": "F1", "rmse": "RMSE", "mae": "MAE", "r2": "R²", "brier": "Brier score"}
SHARES = ("accuracy", "balanced_accuracy")  # shown as percent
# metrics that are compared over all clients' samples together instead of by the mean over clients
TOGETHER = ("auc", "f1", "balanced_accuracy", "log_loss", "brier", "calibration_error", "rmse", "mae", "r2")


def spoken(metric: str) -> str:
    """Return a metric's name for a sentence: "AUC", "balanced accuracy"."""
    return SPOKEN.get(metric, metric.replace("_", " "))


def numbers(metrics: Mapping[str, bool] | None = None) -> dict[str, Number]:
    """Return all numbers by key, in display order; metrics: whether higher is better, by name, the headline first."""
    given = {} if "accuracy" in (metrics or {}) else {"accuracy": True}
    given |= metrics or {}
    first = next(iter(metrics or given))
    rows = [number for name, higher in given.items() for number in _metric(name, higher, name == first)]
    validation = [_validation(name, higher) for name, higher in given.items()]
    return {number.key: number for number in (*rows, *_loss(), *validation, *_others())}


def _metric(name: str, higher: bool, first: bool) -> Iterator[Number]:
    """Yield the numbers of a metric: on the test set, over all clients' samples together, and over clients. A report's
    table shows only the first two for built-in metrics other than the headline."""
    share, said = name in SHARES, spoken(name)
    title = said[:1].upper() + said[1:]
    of = "" if name == "accuracy" and first else f"{said}, "  # accuracy is the default meaning
    unit: Unit = "percent" if share else "plain"
    better: Better = "higher" if higher else "lower"

    def number(key: str, label: str, words: str, short: str = "", score: str = "", summary: str = "") -> Number:
        summary = summary if first or name not in TOGETHER or key.startswith(("test_", "pooled_")) else ""
        return Number(key, f"{title}, {label}", unit, better, "evaluation", name, words, short, score, summary)

    on_test, on_own = f"{said} of the global model on the test set", f"{said} on clients' own test samples"
    counted, chosen = f"{on_own}, every client counted once", f"{of}selected on validation"
    mean, worst, variance = (f"{of}{words}" for words in ("mean over clients", "worst 20 %", "variance over clients"))
    together = f"pooled {said}"
    yield number(f"test_{name}", "test set", f"test {said}", "test set", on_test, said)
    yield number(f"selected_{name}", "selected on validation", chosen, summary=chosen)
    if name in TOGETHER:
        all_samples = f"{said} over all clients' test samples together"
        yield number(f"pooled_{name}", "all clients' samples together", together, "together", all_samples, together)
    yield number(f"clients_{name}_mean", "mean over clients", mean, "own data", counted, mean)
    yield number(f"clients_{name}_worst20", "worst 20 % of clients", worst, "worst 20 %", summary=worst)
    if name == "accuracy":
        label, short, points = "Variance over clients (pp²)", "variance pp²", "variance, pp²"
        key = "clients_accuracy_variance_pp2"
        yield Number(key, label, "pp²", "lower", metric=name, words=variance, short=short, summary=points)
    else:
        label = f"{title}, variance over clients (× 10⁴)"
        yield Number(f"clients_{name}_variance_pp2", label, better="lower", metric=name, words=variance)
    yield number(f"clients_{name}_best20", "best 20 % of clients", f"{of}best 20 %")
    if name not in TOGETHER:
        yield number(f"pooled_{name}", "all clients' samples together", together)
    new = f"{of}new clients"
    yield number(f"new_{name}_mean", "new clients, after training on their own", new, "new clients", summary=new)
    yield number(f"new_{name}_worst20", "worst 20 % of new clients", f"{of}worst 20 % of new clients")
    begun = f"{new} as they come"
    yield number(f"new_{name}_start", "new clients, before training on their own", begun, "as they come", summary=begun)
    key, label = f"clients_{name}_count", f"Clients for which {said} is defined"
    yield Number(key, label, "count", source="bookkeeping", metric=name)


def _loss() -> Iterator[Number]:
    on_test, on_own = "loss of the global model on the test set", "loss on clients' own test samples"
    own = f"{on_own}, every client counted once"
    yield Number("test_loss", "Loss, test set", better="lower", metric="loss", score=on_test, summary="loss")
    yield Number("clients_loss", "Loss, mean over clients", better="lower", metric="loss", score=own)
    yield Number("pooled_loss", "Loss, all clients' samples together", better="lower", metric="loss")
    yield Number("new_loss", "Loss, new clients", better="lower", metric="loss")
    yield Number("validation_loss", "Loss, validation", better="lower", metric="loss")


def _validation(name: str, higher: bool) -> Number:
    label = f"{spoken(name)[:1].upper()}{spoken(name)[1:]}, validation"
    unit: Unit = "percent" if name in SHARES else "plain"
    return Number(f"validation_{name}", label, unit, "higher" if higher else "lower", metric=name)


def _others() -> Iterator[Number]:
    label, words = "Accuracy of the mean of all local models, test set", "test accuracy of the mean of all local models"
    yield Number("test_all_accuracy", label, "percent", "higher", words=words)
    yield Number("validation_samples", "Validation samples", "count", source="bookkeeping")
    yield Number("train_loss", "Training loss", better="lower", source="training", metric="loss")
    spent = "ε spent by all rounds so far, at the run's δ"
    yield Number("epsilon", spent, better="lower", source="training", words="ε", short="ε", summary="ε")
    yield Number("epsilon_pld", "ε spent, the smallest that can be shown", better="lower", source="training", words="ε")
    sample = "ε spent for each sample of a client that takes part in every round, at the run's δ"
    yield Number("sample_epsilon", sample, better="lower", source="training", words="ε of a sample")
    yield Number("drift_mean", "Size of an update, mean", source="training")
    yield Number("drift_max", "Size of an update, largest", source="training")
    yield Number("drift_cosine", "Cosine between updates, mean", source="training")
    gain, lose = (f"Clients whose own model is {word} than the global one" for word in ("better", "worse"))
    yield Number(
        "gain_share", gain, "percent", "higher", words="clients that gain", short="gain", summary="clients that gain"
    )
    yield Number("lose_share", lose, "percent", "lower", words="clients that lose")
    yield Number("clusters", "Clusters in use", "count", summary="clusters")
    agree = "Agreement of clusters with planted groups (adjusted Rand)"
    yield Number("cluster_ari", agree, better="higher", words="adjusted Rand index", summary="ARI")
    yield Number("batches", "Mini-batches read in training", "count", source="bookkeeping")
    yield Number("lost", "Clients lost", "count", "lower", "training")
    slow, fast = (f"accuracy on classes of {word} devices" for word in ("slow", "fast"))
    yield Number("slow_accuracy", "Accuracy, classes of slow devices", "percent", "higher", words=slow)
    yield Number("fast_accuracy", "Accuracy, all other classes", "percent", "higher", words=fast)
    yield Number("staleness", "Age of replies in versions, mean", source="training")
    yield Number("staleness_most", "Age of the oldest reply in versions", "count", source="training")
    yield Number("under_way", "Clients under way", "count", source="bookkeeping")
    yield Number("virtual_seconds", "Virtual seconds", "seconds", source="bookkeeping", summary="virtual time")
    yield Number("round", "Round", "count", source="bookkeeping")
    yield Number("epoch", "Epoch", "count", source="bookkeeping")
    yield Number("exchanges", "Exchanges", "count", source="bookkeeping")
    yield Number("rounds", "Rounds", "count", source="bookkeeping", summary="rounds")
    yield Number("clients", "Clients", "count", source="bookkeeping")
    yield Number("bytes", "Bytes", "bytes", source="bookkeeping", summary="bytes")
    yield Number("seconds", "Seconds", "seconds", source="bookkeeping", summary="time")
    yield Number("bytes_up_plain", "bytes up without the channel", "bytes", source="bookkeeping")
    for name in (f"{when}bytes_{way}" for when in ("", "setup_") for way in ("down", "up", "peer")):
        yield Number(name, name.replace("_", " "), "bytes", source="bookkeeping")
    yield Number("seconds_evaluation", "Seconds of evaluation", "seconds", source="bookkeeping")


NUMBERS = numbers()


def of(key: str, known: Mapping[str, Number] = NUMBERS) -> Number:
    """Return the number with this key; an unknown one is described by its name."""
    if key in known:
        return known[key]
    last = key.rpartition("_")[2]
    better: Better = "higher" if last == "accuracy" else "lower" if last == "loss" else "neither"
    unit: Unit = "pp²" if "variance" in key else "percent" if "accuracy" in key else "plain"
    return Number(key, key.replace("_", " "), unit, better)


def scores(known: Mapping[str, Number] = NUMBERS, by: str = "") -> list[Number]:
    """Return the numbers that methods may be compared by, the preferred one first. by: "test" for those of the global
    model on the test set; "clients" for those on clients' own data, of each metric the mean over clients first."""
    found = [number for number in known.values() if number.score and by != ("clients" if _on_test(number) else "test")]
    metrics = [number.metric for number in found]
    mean_first = lambda n: (metrics.index(n.metric), not n.key.startswith("clients_"))  # noqa: E731
    return sorted(found, key=mean_first) if by == "clients" else found


def _on_test(number: Number) -> bool:
    return number.key.startswith("test_")


def score_in(line: Mapping[str, Any], known: Mapping[str, Number] = NUMBERS, by: str = "") -> Number | None:
    """Return the first of the scores (see `scores`) that a round's line has."""
    return next((score for score in scores(known, by) if line.get(score.key) is not None), None)


# ---------------------------------------------------------------- metrics of one's own


def directions(metrics: Mapping[str, Any]) -> dict[str, bool]:
    """Return for each metric whether higher is better, as its function says."""
    out = {name: getattr(function, "higher_is_better", True) for name, function in metrics.items()}
    for name, higher in out.items():
        if not isinstance(higher, bool):
            raise UnalikeError(f"higher_is_better of the metric {name!r} must be True or False; got {higher!r}.")
    return out


def lower_ones(metrics: Mapping[str, bool]) -> list[str] | None:
    """Return the metrics for which less is better, as a run's facts hold them; None if there are none."""
    return [name for name, higher in metrics.items() if not higher] or None


def from_facts(facts: Mapping[str, Any]) -> dict[str, bool]:
    """Return the metrics of a run's folder, with their direction; in folders of earlier versions higher is better."""
    model = facts.get("model", {})
    lower = model.get("lower_is_better", ())
    return {name: name not in lower for name in model.get("metrics", ())}
