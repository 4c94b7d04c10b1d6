"""One million samples to 10,000 clients, by every kind of partition that copies nothing: seconds and peak memory.

    python benchmarks/million_samples.py [--samples 1000000] [--clients 10000] [TEXT ...]

Each text is dealt in a process of its own: `deal` is the dealing of int64 labels alone (ten classes), `split` the whole
Dataset.split of samples of eight numbers with a fifth of every client's held out, `memory` the most that the process
held, Python, torch and the data included. Goals for each: 10 s and 3 GB on two cores.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import time

import numpy as np
import torch

import unalike as ua
from unalike.data.partition import PARTITIONS, parse

SECONDS, GIGABYTES = 10, 3
KINDS = {  # how each is asked for
    "iid": ["iid", "iid:true"],
    "dirichlet": ["dirichlet:0.3", "dirichlet:0.3@0.5", "dirichlet:0.3|quantity:0.5", "dirichlet:0.3|permute:2"],
    "prior-dirichlet": ["prior-dirichlet:1", "prior-dirichlet:0.3", "prior-dirichlet:0.1"],
    "shards": ["shards:2"],
    "classes": ["classes:1", "classes:2", "classes:2|power-law:1"],
    "similarity": ["similarity:0.1"],
    "lognormal": ["lognormal:0.3"],
    "power-law": ["power-law:0.5"],
    "quantity": ["quantity:0.5", "quantity:0.5@0.5"],
    "power-law-classes": ["power-law-classes:2"],
    "periods": ["periods", "periods|quantity:0.5"],
    "natural": ["natural"],
}


def measure(text, samples, clients):
    """Return seconds to deal the labels, seconds of the whole split, and the most bytes that were held."""
    rng = np.random.default_rng(0)
    y, whose = rng.integers(0, 10, samples), rng.permutation(samples) % clients
    labels = whose if text.startswith("natural") else y
    start = time.perf_counter()
    parts = parse(text)(labels, clients, 0)
    deal = time.perf_counter() - start
    assert len(parts) == clients and sum(map(len, parts)) == samples and min(map(len, parts)) > 0
    del parts
    data = ua.Dataset(torch.zeros(samples, 8), y, columns={"whose": whose, "when": whose}, natural="whose", time="when")
    start = time.perf_counter()
    fed = data.split(text, clients, 0, test=0.2)
    split = time.perf_counter() - start
    assert len(fed) == clients and len(fed.train.y) + len(fed.test.y) == samples
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"deal": deal, "split": split, "held": held}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", metavar="TEXT")
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.samples, args.clients)))
        raise SystemExit
    assert set(KINDS) == set(PARTITIONS), "a partition is not measured"
    versions = f"unalike {ua.__version__}, numpy {np.__version__}, torch {torch.__version__}"
    print(f"{versions}, Python {platform.python_version()}")
    print(f"{args.samples:,} samples to {args.clients:,} clients, {torch.get_num_threads()} threads\n")
    print(f"{'partition':<28} {'deal':>8} {'split':>8} {'memory':>9}")
    ok = True
    for text in args.texts or [text for texts in KINDS.values() for text in texts]:
        command = [sys.executable, __file__, "--one", text, f"--samples={args.samples}", f"--clients={args.clients}"]
        found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        ok &= max(found["deal"], found["split"]) < SECONDS and found["held"] < GIGABYTES * 1e9
        print(f"{text:<28} {found['deal']:6.2f} s {found['split']:6.2f} s {found['held'] / 1e9:6.2f} GB", flush=True)
    print(f"\nall within {SECONDS} s and {GIGABYTES} GB: {'reached' if ok else 'NOT reached'}")
    raise SystemExit(0 if ok else 1)
