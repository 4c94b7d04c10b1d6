"""How long trees take, on two quiet cores: pooled, 100 clients in simulation, masked, and between two parties.

    python benchmarks/trees.py                       all; minutes
    python benchmarks/trees.py pooled clients        some of: pooled clients masked masks paillier ou a9a fedtree
    python benchmarks/trees.py paillier --trees 3    fewer trees of the encrypted runs
    python benchmarks/trees.py --credit FILE.npz     the UCI credit table (x_train 30,000 × 23, y_train), if you have it

Without --credit the table is made up: 30,000 × 23 with columns of the same kinds (amounts, months' states, flags), and
says so. The a9a-sized table is a1a's training and test rows by name, if they can be had (`unalike data get a1a`), else
made up: 32,561 × 123 of 0 and 1. Every encrypted run is compared with the pooled one: "equal" means the same leaves,
bit for bit. Goals: pooled 20 ms a tree, 100 clients 100 ms, masked 500 ms, Paillier 150 s for 20 trees, a9a 7 s a tree.

`masked` adds in the ring of the masks, as a simulation does. `masks` runs the whole protocol between 100 clients in one
process (engine loopback) and tells what one client and the server each take: on machines of their own clients work side
by side, so that a tree takes about the sum of both, and the network.

`fedtree` runs FedTree 1.0.5 beside it where it is installed: `pip install fedtree` brings a library that needs
libntl.so.44, the system's (libntl44) or that of the wheel passagemath-ntl 10.5.49, in LD_LIBRARY_PATH under that name.
Its keys of the stored program have 512 bits, ours 2048. Published by its authors (FedTree's documentation, Experiments;
16 threads of a Xeon, a9a, depth 6, 255 bins, two parties), seconds a tree: vertical with encryption FedTree 5.25, FATE
34.02; horizontal with secure sums FedTree 0.098, FATE 8.76. FATE was not run here.
"""

import argparse
import os
import time

import numpy as np
import torch

import unalike as ua
from unalike.data import Dataset

TREES = 20


def credit(file):
    """The credit table, or one like it."""
    if file:
        found = np.load(file)
        return found["x_train"].astype(np.float32), found["y_train"], "UCI credit"
    draw = np.random.default_rng(0)
    amounts = np.round(draw.lognormal(10, 1, (30_000, 13)))
    states = draw.choice(np.arange(-2, 9), p=[0.1, 0.2, 0.5, 0.1, 0.05, *[0.05 / 6] * 6], size=(30_000, 6))
    flags = draw.integers(0, 4, (30_000, 4))
    x = np.concatenate([amounts, states, flags], 1).astype(np.float32)
    chance = 1 / (1 + np.exp(1.5 - 0.8 * states[:, 0] - 0.3 * states[:, 1] + 0.1 * (np.log(amounts[:, 0]) - 10)))
    return x, (draw.random(30_000) < chance).astype(int), "made up, like UCI credit"


def a9a():
    """All rows of a1a, or a table like it."""
    try:
        data = ua.load("a1a")
        rows = torch.cat([data.x, data.test[0]]), torch.cat([data.y, data.test[1]])
        return rows[0].float().numpy(), rows[1].numpy(), "a1a, training and test rows"
    except (ua.UnalikeError, AttributeError, TypeError):
        draw = np.random.default_rng(1)
        x = (draw.random((32_561, 123)) < draw.beta(0.5, 3, 123)).astype(np.float32)
        return x, (x[:, :20] @ draw.normal(size=20) + draw.normal(size=32_561) > 0).astype(int), "made up, like a9a"


def leaves(model):
    return torch.stack([torch.from_numpy(tree.value) for tree in model.all_trees])


def timed(fn):
    start = time.perf_counter()
    out = fn()
    return out, time.perf_counter() - start


def pooled(x, y, depth=5, trees=TREES):
    one, few = (ua.HistBoost(trees=count, depth=depth) for count in (1, trees + 1))
    _, short = timed(lambda: ua.trees.fit(one, (x, y)))
    _, long = timed(lambda: ua.trees.fit(few, (x, y)))
    return (long - short) / trees


def clients(x, y, channel=(), rounds=5):
    """Seconds a tree by messages between 100 simulated clients; the set-up is not in it."""
    fed = Dataset(torch.tensor(x), torch.tensor(y)).split("dirichlet:0.3", 100, seed=0)
    method = ua.HistBoost(trees=rounds, depth=5)
    options = {"channel": [*channel], "evaluate_every": rounds, "engine": "batched"}
    run = ua.simulate(None, fed, method, rounds=rounds, **options)
    equal = torch.equal(run.server.value.flatten(0, 1), leaves(ua.trees.fit(method, fed)))
    return float(np.median([line["seconds"] for line in run.history[1:]])), equal


def real_masks(x, y, neighbours=None, rounds=2):
    """Seconds a tree of one of 100 clients and of the server, with the whole protocol of secure sums."""
    from unalike.client.state_on_disk import FileStates
    from unalike.engines.loopback import Loopback

    spent, marks, ask, commit = [0.0], [], Loopback.ask, FileStates.commit

    def timed_commit(self):  # clients' own work: each keeps its state
        start = time.perf_counter()
        commit(self)
        spent[0] += time.perf_counter() - start

    def timed_ask(self, requests):  # all clients work, as they would side by side; then the server reads their answers
        start = time.perf_counter()
        answers = list(ask(self, requests))
        spent[0] += time.perf_counter() - start
        yield from answers

    class Mark(ua.Callback):
        def on_round(self, run, line):
            marks.append((time.perf_counter(), spent[0]))

    Loopback.ask, FileStates.commit = timed_ask, timed_commit
    try:
        fed = Dataset(torch.tensor(x), torch.tensor(y)).split("dirichlet:0.3", 100, seed=0)
        stage = ua.channel.SecureSum(**({} if neighbours is None else {"neighbours": neighbours}))
        method, options = ua.HistBoost(trees=rounds, depth=5), {"evaluate_every": rounds + 1, "engine": "loopback"}
        run = ua.simulate(None, fed, method, rounds=rounds, channel=[stage], callbacks=[Mark()], **options)
    finally:
        Loopback.ask, FileStates.commit = ask, commit
    whole, clients = (marks[-1][k] - marks[0][k] for k in (0, 1))
    equal = torch.equal(run.server.value.flatten(0, 1), leaves(ua.trees.fit(method, fed)))
    return clients / 100 / (rounds - 1), (whole - clients) / (rounds - 1), equal


def fedtree(x, y, depth, bins, trees, mode="vertical", privacy="he"):
    """Seconds a tree of FedTree between two parties; None where it is not installed."""
    try:
        from fedtree import FLClassifier
    except (ImportError, OSError) as error:
        print(f"FedTree cannot be loaded: {error}")
        return None
    settings = {"max_depth": depth, "max_num_bin": bins, "learning_rate": 0.3, "min_child_weight": 1, "lambda_ft": 1}
    model = FLClassifier(n_parties=2, mode=mode, privacy_tech=privacy, n_trees=trees, gamma=0, verbose=0,
                         objective="binary:logistic", **settings)  # fmt: skip
    return timed(lambda: model.fit(x, y))[1] / trees


def quick_path(x, y):
    fed = Dataset(torch.tensor(x), torch.tensor(y)).split("dirichlet:0.3", 100, seed=0)
    one, few = (ua.HistBoost(trees=count, depth=5) for count in (1, TREES + 1))
    _, short = timed(lambda: ua.trees.fit(one, fed))
    _, long = timed(lambda: ua.trees.fit(few, fed))
    return (long - short) / TREES


def between(x, y, cipher, depth, trees, columns):
    """Seconds of so many trees between a guest and a host, and whether they are the pooled ones."""
    parties = ua.vertical.Parties.from_arrays({"guest": x[:, :columns], "host": x[:, columns:]}, y)
    method = ua.vertical.SecureBoost(trees=trees, depth=depth, cipher=cipher)
    run, seconds = timed(lambda: ua.vertical.fit(method, parties, epochs=trees))
    own = run.session.me.value.flatten(0, 1)
    equal = torch.equal(own, leaves(ua.trees.fit(ua.HistBoost(trees=trees, depth=depth), (x, y))))
    line = run.history[-1]
    return seconds, equal, line["bytes_down"], line["bytes_up"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["pooled", "clients", "masked", "paillier", "ou", "a9a"])
    parser.add_argument("--credit", help="npz with x_train and y_train")
    parser.add_argument("--trees", type=int, default=TREES, help="of the encrypted runs")
    args = parser.parse_args()
    x, y, source = credit(args.credit)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; table: {source}, {x.shape[0]:,} × {x.shape[1]}")
    if "pooled" in args.what:
        print(f"pooled, depth 5: {1000 * pooled(x, y):.1f} ms a tree (goal 20)")
    if "clients" in args.what:
        seconds, equal = clients(x, y)
        print(f"100 clients, summed at once: {1000 * quick_path(x, y):.1f} ms a tree (goal 100)")
        print(f"100 clients, by messages in one process: {1000 * seconds:.0f} ms a tree, equal: {equal}")
    if "masked" in args.what:
        seconds, equal = clients(x, y, [ua.channel.SecureSum()])
        print(f"100 clients, secure sums (rings of the simulation): {1000 * seconds:.0f} ms a tree, equal: {equal}")
    for neighbours in (None, 54) if "masks" in args.what else ():  # 54: what crypto.graph.choose(100) finds enough
        client, server, equal = real_masks(x, y, neighbours)
        print(
            f"100 clients, real masks, {neighbours or 99} neighbours, a tree: a client {client:.2f} s, "
            f"the server {server:.2f} s, together {client + server:.2f} (goal 0.5); equal: {equal}"
        )
    for cipher in ("paillier", "ou"):
        if cipher in args.what:
            seconds, equal, down, up = between(x, y, cipher, 5, args.trees, 11)
            print(
                f"{cipher} 2048, depth 5: {seconds:.0f} s for {args.trees} trees, {seconds / args.trees:.2f} s a tree; "
                f"{down / 1e6:.1f} MB to the host, {up / 1e6:.2f} MB to the guest; equal: {equal}"
            )
    if "a9a" in args.what:
        x, y, source = a9a()
        trees = min(args.trees, 5)
        seconds, equal, down, up = between(x, y, "paillier", 6, trees, 61)
        print(f"{source}, {x.shape[0]:,} × {x.shape[1]}, Paillier, depth 6:")
        print(f"  {seconds / trees:.2f} s a tree (goal 7); equal: {equal}")
    if "fedtree" in args.what:
        x, y, _ = credit(args.credit)
        wide, labels, name = a9a()
        for what, given in (
            ("credit, depth 5, 32 bins, encrypted", (x, y, 5, 32, 2)),
            (f"{name}, depth 6, 255 bins, encrypted", (wide, labels, 6, 255, 2)),
            ("credit, depth 5, 32 bins, 2 parties with rows, secure sums", (x, y, 5, 32, 20, "horizontal", "sa")),
        ):
            if (seconds := fedtree(*given)) is not None:
                print(f"FedTree, {what}: {seconds:.2f} s a tree")


if __name__ == "__main__":
    main()
