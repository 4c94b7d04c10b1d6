"""2,000 random compositions of dealers, size laws and changes: each is met or refused with one line, and all end soon.

    python benchmarks/skew_requests.py [--requests 2000] [--seed 0]

A request draws pieces with their arguments and strengths (now and then absurd ones), 1 to 40 clients, 1 to 400 small
pictures of up to 12 classes. What is met is checked: every sample is at one client, or with views at as many as there
are views; no client is empty; changes leave every client as many samples as it had; the same seed gives the same
federation again (every tenth). Prints the seconds of all and of the slowest.
"""

import argparse
import time

import numpy as np
import torch

import unalike as ua
from unalike.data.partition import PARTITIONS, PIECES, Composed, SizeLaw, composed, parse
from unalike.data.skew import CHANGES

VALUES = {"float": ["1e-9", "0.05", "0.3", "1", "3"], "int": ["1", "2", "3", "5"], "bool": ["true", "false"]}
LAWS = [name for name, kind in PARTITIONS.items() if issubclass(kind, SizeLaw)]
DEALERS = [name for name in PARTITIONS if name not in LAWS and name != "natural"]


def piece(rng, name):
    """Return a text of one piece with some of its arguments, and now and then a strength."""
    if name == "drift":
        return f"drift:{rng.integers(1, 9)}:{piece(rng, str(rng.choice([c for c in CHANGES if c != name])))}"
    fields = PIECES[name].arguments()
    needed = sum(str(f.type) in VALUES and f.default.__class__.__name__ == "_MISSING_TYPE" for f in fields)
    usable = [f for f in fields if str(f.type) in VALUES]
    count = rng.integers(needed, len(usable) + 1) if len(usable) == len(fields) else needed
    text = ":".join([name, *(str(rng.choice(VALUES[str(f.type)])) for f in usable[:count])])
    return text + str(rng.choice(["", "", "@0", "@0.4", "@1"]))


def request(rng):
    """Return pieces in a row: a dealer or none, a size law or none, changes."""
    names = [str(rng.choice(kind)) for kind, chance in ((DEALERS, 0.8), (LAWS, 0.4)) if rng.random() < chance]
    names += [str(name) for name in rng.choice(list(CHANGES), rng.integers(0, 3), replace=False)]
    return "|".join(piece(rng, name) for name in names or ["iid"])


def met(rng, text, seed):
    """Return whether a request was met; raise where what it gave is wrong."""
    clients, n, kinds = int(rng.integers(1, 41)), int(rng.integers(1, 401)), int(rng.integers(1, 13))
    x = np.arange(1.0, n + 1)[:, None, None, None] * np.ones((1, 1, 3, 6))  # every number of a sample is its own
    data = ua.Dataset(x, rng.integers(0, kinds, n), classes=kinds)
    try:
        recipe = composed(parse(text))
        fed = data.split(text, clients, seed)
    except ua.UnalikeError as error:
        assert "\n" not in str(error), error
        return False
    dealt = [piece for piece in recipe.pieces if piece not in recipe.changes or piece.copies > 1]
    plain = data.split(Composed(tuple(dealt)), clients, seed)
    rows = torch.cat([columns.x.flatten(1).amax(1) for columns in plain.splits.values()]).round().long() - 1
    sizes = [sum(columns.sizes for columns in one.splits.values()) for one in (fed, plain)]
    assert len(fed) == clients and fed.sizes.min() >= 1 and np.array_equal(*sizes), text
    assert (np.bincount(rows.numpy(), minlength=n) == recipe.copies).all(), text
    assert seed % 10 or fed.fingerprint() == data.split(text, clients, seed).fingerprint(), text
    return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng, times, answered = np.random.default_rng(args.seed), [], 0
    for seed in range(args.requests):
        text, start = request(rng), time.perf_counter()
        answered += met(rng, text, seed)
        times.append((time.perf_counter() - start, text))
    slowest, what = max(times)
    print(f"{args.requests} requests: {answered} met, {args.requests - answered} refused with one line")
    print(f"{sum(t for t, _ in times):.1f} s, the slowest {slowest:.2f} s ({what})")
