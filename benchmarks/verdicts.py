"""How often a verdict claims something that is not so, and how often it finds what is so; no training, made-up results.

    python benchmarks/verdicts.py            # about a minute on one core

Equal methods: 200 comparisons of four methods (and both reference lines) whose numbers have one distribution, under
several kinds of noise, each looked at after 3, 5, 8, ... 50 seeds. Counted is a comparison that claims anything, at any
look and anywhere in its text. The level of 5 % allows 10 on average; more than 16 would be a fault (chance 0.03).

One better method: better by two standard errors of a difference over ten seeds. Seeds are added until it is decided, 50
at most. Counted is a comparison whose answer in short names that method.
"""

from __future__ import annotations

import argparse
import math
import random
import re
from collections.abc import Callable

from unalike.comparison.verdict import Verdict, verdict
from unalike.results.evidence import SCORES, Evidence

SEEDS, COMPARISONS, MOST_FALSE, LEAST_RIGHT = 50, 200, 16, 0.8
LOOKS = (3, 5, 8, 10, 15, 20, 30, 40, 50)
CLAIM = re.compile(r"(^|\| )sure:|surely better than \w+:|^Surely|^yes:|^no:", re.MULTILINE)
NOISE: dict[str, Callable[[random.Random], float]] = {
    "normal": lambda draw: draw.gauss(0, 1),
    "heavy tails": lambda draw: draw.gauss(0, 1) / math.sqrt(max(draw.gammavariate(1.0, 1.0), 1e-9)),
    "skewed": lambda draw: draw.expovariate(1.0),
    "few test samples": lambda draw: round(draw.gauss(0, 0.8)),
    "now and then a failure": lambda draw: -20.0 if draw.random() < 0.1 else draw.gauss(0, 1),
}


def drawn(draw: random.Random, noise: Callable[[random.Random], float], label: str, better: float = 0.0) -> Evidence:
    """Made-up results of a method in all seeds, in units of the noise; its own data, worst clients, rounds and bytes
    are as noisy, and partly of the same noise."""
    common = [noise(draw) for _ in range(SEEDS)]
    mixed = lambda: [0.6 * c + 0.8 * noise(draw) + better for c in common]  # noqa: E731
    selected = [0.7 + 0.01 * (c + better) for c in common]
    rounds = [max(1, round(30 - 4 * v)) for v in mixed()]
    return Evidence(
        label, label, list(range(SEEDS)), reference=label in ("centralized", "local-only"), selected=selected,
        final=selected, own=[0.7 + 0.01 * v for v in mixed()], worst=[0.5 + 0.02 * v for v in mixed()],
        rounds_to=list(rounds), bytes_to=[1000 * r for r in rounds], bytes=[100_000] * SEEDS,
    )  # fmt: skip


def cut(found: Evidence, seeds: int) -> Evidence:
    """The same method after fewer seeds."""
    lists = {name: value[:seeds] for name, value in vars(found).items() if isinstance(value, list)}
    return Evidence(**{**vars(found), **lists})


def judged(methods: list[Evidence], seeds: int) -> Verdict:
    some = [cut(m, seeds) for m in methods]
    return verdict(some, some[0], SCORES[0], 0.6)


def text(found: Verdict) -> str:
    """Everything that would be printed as a sentence or as an answer."""
    return "\n".join([*found.lines, *(f"{a.method} | {a.sure}" for a in found.answers)])


def claims_something(found: Verdict) -> bool:
    """Whether anything is called sure, in the text or in the folded table of tests, of which the text says less."""
    tested = any(claim.sure for claim in found.claims.values())
    assert tested or not CLAIM.search(text(found)), text(found)
    return tested


def false_claims(kind: str, comparisons: int) -> int:
    draw = random.Random(f"equal {kind}")
    names = ("fedavg", "b", "c", "d", "centralized", "local-only")
    count = 0
    for _ in range(comparisons):
        methods = [drawn(draw, NOISE[kind], name) for name in names]
        count += any(claims_something(judged(methods, seeds)) for seeds in LOOKS)
    return count


def right_names(others: int, comparisons: int) -> tuple[float, float]:
    """The share of comparisons that name the better method, and how many seeds were run on average."""
    draw = random.Random(f"better {others}")
    better = 2 / math.sqrt(10) * math.sqrt(2)  # two standard errors of a mean difference of ten pairs
    right, spent = 0, 0
    for _ in range(comparisons):
        methods = [drawn(draw, NOISE["normal"], name) for name in ("fedavg", "b", "c", "d")[:others]]
        methods.append(drawn(draw, NOISE["normal"], "better", better))
        seeds = next((n for n in range(3, SEEDS) if judged(methods, n).decided), SEEDS)
        spent += seeds
        right += judged(methods, seeds).lines[0].startswith("In short: better,")
    return right / comparisons, spent / comparisons


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=COMPARISONS)
    given = parser.parse_args()
    fine = True
    for kind in NOISE:
        count = false_claims(kind, given.comparisons)
        fine &= count <= MOST_FALSE * given.comparisons / COMPARISONS
        print(f"equal methods, {kind}: {count} of {given.comparisons} comparisons claim something", flush=True)
    for others in (1, 3):
        share, seeds = right_names(others, given.comparisons)
        fine &= share >= LEAST_RIGHT
        print(
            f"one better of {others + 1}: named in {100 * share:.0f} %, after {seeds:.0f} seeds on average", flush=True
        )
    print("as it should be" if fine else "NOT as it should be")
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
