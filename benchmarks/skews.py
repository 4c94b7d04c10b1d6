"""What each kind of skew costs: FedAvg and SCAFFOLD under every kind at three strengths, beside clients that are alike.

    python benchmarks/skews.py [part of a kind ...] [--data digits hapt] [--seeds 5] [--processes 2]
    python benchmarks/skews.py --page       only write docs/skews-measured.md from what is there

Twenty clients, all in every round; a fifth of a client's samples are its own test, and a run is judged by the accuracy
of the one common model on all these tests. Both methods have the same local training, chosen once on clients that are
alike. Finished runs are kept in benchmarks/skews.csv and not run again.
"""

import argparse
import csv
import multiprocessing
import statistics
from pathlib import Path

import torch

import unalike as ua

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "skews.csv", HERE.parent / "docs" / "skews-measured.md"
COLUMNS = ("data", "kind", "strength", "method", "seed", "accuracy")
METHODS = ("fedavg", "scaffold")
STRENGTHS = (0.3, 0.6, 1.0)
ROUNDS = {"digits": 30, "hapt": 15}
ALIKE = "iid"

# kind: what to write, the survey's name for it, and the data sets that it can be made of
KINDS = {
    "natural": ("people as they are", ("hapt",)),
    "dirichlet:0.1": ("labels, by Dirichlet", ("digits", "hapt")),
    "classes:1": ("labels, one class a client", ("digits", "hapt")),
    "shards:2": ("labels, two shards a client", ("digits", "hapt")),
    "quantity:0.3": ("sizes", ("digits", "hapt")),
    "noise:2": ("features, Gaussian noise", ("digits", "hapt")),
    "impulse:0.6": ("features, impulse noise", ("digits", "hapt")),
    "shift:2:4": ("features, shifted in four groups", ("digits", "hapt")),
    "rotate:4": ("features, turned in four groups", ("digits",)),
    "blur:4": ("features, blurred in four groups", ("digits", "hapt")),
    "contrast:4": ("features, contrast in four groups", ("digits", "hapt")),
    "colour:2": ("features, colours in two groups", ("digits",)),
    "views:2:0.2": ("features, two views of the same things", ("digits", "hapt")),
    "permute:2": ("labels' meaning, two groups", ("digits", "hapt")),
    "crowd:0.6": ("labels by crowds", ("digits", "hapt")),
    "periods": ("time, disjoint periods", ("digits", "hapt")),
    "drift:20:rotate:0:90": ("time, pictures that turn", ("digits",)),
    "drift:10:shift:2:0": ("time, features that shift", ("digits", "hapt")),
    "stream:20:0.5:labels": ("time, labels that come one after the other", ("digits", "hapt")),
    "dirichlet:0.1|rotate:4": ("features and labels", ("digits",)),
    "dirichlet:0.1|shift:2:4": ("features and labels", ("hapt",)),
    "dirichlet:0.1|quantity:0.3": ("labels and sizes", ("digits", "hapt")),
}


def text(kind, strength):
    """The partition's text, every piece of it at this strength; changes alone are of clients that were alike."""
    pieces = [f"{piece}@{strength:g}" for piece in kind.split("|")]
    dealt = kind.partition(":")[0].partition("|")[0] in ua.partition.PARTITIONS
    return "|".join(pieces if dealt else [ALIKE, *pieces])


def run(job):
    """One run: (what it is, the accuracy on all clients' own tests)."""
    data, kind, strength, method, seed = job
    torch.set_num_threads(1)
    pool = ua.load(data, **({"image": True} if data == "digits" else {}))
    partition = ALIKE if kind == ALIKE else text(kind, strength)
    fed = pool.split(partition, 20, seed=seed, test=0.2)
    torch.manual_seed(seed)
    model = ua.models.mlp(fed.train.x[0].numel(), hidden=(64,), classes=fed.classes)
    result = ua.simulate(
        model, fed, ua.methods.METHODS[method](), rounds=ROUNDS[data], engine="batched", device="cpu", seed=seed,
        local=ua.LocalTraining(epochs=2, batch_size=16 if data == "digits" else 32, lr=0.1),
        evaluate_every=ROUNDS[data],
    )  # fmt: skip
    return *job, result.history[-1]["pooled_accuracy"]


def read():
    if not RESULTS.exists():
        return {}
    with RESULTS.open() as file:
        rows = list(csv.DictReader(file))
    key = lambda r: (r["data"], r["kind"], float(r["strength"]), r["method"], int(r["seed"]))  # noqa: E731
    return {key(row): float(row["accuracy"]) for row in rows}


def jobs(args):
    done = read()
    wanted = [(ALIKE, 0.0, d) for d in args.data]
    for kind, (_, sets) in KINDS.items():
        if not args.kinds or any(part in kind for part in args.kinds):
            wanted += [(kind, s, d) for d in sets if d in args.data for s in STRENGTHS]
    every = [(d, k, s, m, seed) for k, s, d in wanted for m in METHODS for seed in range(args.seeds)]
    return [job for job in every if job not in done]


def work(args):
    todo = jobs(args)
    new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file, multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        out = csv.writer(file, lineterminator="\n")
        if new:
            out.writerow(COLUMNS)
        for k, row in enumerate(pool.imap_unordered(run, todo), start=1):
            out.writerow([*row[:5], f"{row[5]:.4f}"])
            file.flush()
            print(f"{k} of {len(todo)}", *row[:5], f"{row[5]:.3f}", flush=True)


def loss(done, data, kind, strength, method):
    """Points lost against clients that are alike: the mean over paired seeds and its standard error."""
    pairs = [
        100 * (done[data, ALIKE, 0.0, method, seed] - value)
        for (d, k, s, m, seed), value in done.items()
        if (d, k, s, m) == (data, kind, strength, method)
    ]
    if len(pairs) < 2:
        return "…"
    return f"{statistics.mean(pairs):.1f} ± {statistics.stdev(pairs) / len(pairs) ** 0.5:.1f}"


def page():
    done = read()
    names = {"digits": "Handwritten digits", "hapt": "HAPT, a phone's motion"}
    parts = ["# What each kind of skew costs\n", INTRODUCTION]
    for data, title in names.items():
        alike = []
        for method in METHODS:
            values = [v for (d, k, _, m, _), v in done.items() if (d, k, m) == (data, ALIKE, method)]
            alike.append(f"{method} {100 * statistics.mean(values):.1f} %")
        parts.append(
            f"## {title}\n\nWith clients that are alike (`iid`): {', '.join(alike)}. Points lost against that:\n"
        )
        heads = [f"{m} at {s:g}" for m in METHODS for s in STRENGTHS]
        rows = [f"| kind | written | {' | '.join(heads)} |", "|" + "---|" * (2 + len(heads))]
        for kind, (words, sets) in KINDS.items():
            if data in sets:
                cells = [loss(done, data, kind, s, m) for m in METHODS for s in STRENGTHS]
                rows.append(f"| {words} | `{kind.replace('|', chr(92) + '|')}` | {' | '.join(cells)} |")
        parts.append("\n".join(rows) + "\n")
    PAGE.write_text("\n".join(parts))


INTRODUCTION = """Twenty clients, all in every round; a fifth of every client's samples are its own test, and a cell
is how many points of accuracy the one common model loses on all these tests against clients that are alike: mean over
five seeds and its standard error, each beside its own run with `iid`. Both methods train alike (two epochs a round, a
network of one hidden layer of 64, rate 0.1); nothing is tuned to a kind of skew. In a composed kind every piece has the
strength of the column. A negative number is a gain: under `periods` or a stream a client's own test is of its own time.
Made by `python benchmarks/skews.py`, the runs one by one in [benchmarks/skews.csv](../benchmarks/skews.csv); the kinds
are explained in [skews.md](skews.md).
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--data", nargs="+", default=list(ROUNDS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--page", action="store_true")
    args = parser.parse_args()
    if not args.page:
        work(args)
    page()


if __name__ == "__main__":
    main()
