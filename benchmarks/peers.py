"""The same FedAvg work on unalike, a bare hand-written loop, Flower, pfl-research, FedJAX and FedLab, in one run.

    python benchmarks/peers.py                 # installs the peers, measures, writes docs/benchmarks.md
    python benchmarks/peers.py --exact         # no times: with shuffling off all must compute the same weights
    python benchmarks/peers.py --workloads compiled    # one part of the page, with the peers that it names
    python benchmarks/peers.py --peers FedJAX --workloads softmax --pairs 3 --no-page

Every peer is installed from the package registry into an environment of its own (once; some 4 GB) and runs there the
script in benchmarks/_peers/, on the same data, initial weights, cohorts and steps. A peer and unalike live side by
side and take turns, a round each, so that both see the same machine; a ratio is the median over pairs of rounds. The
loop, pfl and FedLab have a round with one and a round with all threads in every pair, and the better number counts.
The first round, which holds whatever a framework starts or compiles, and one last round are outside the pairs: during
these two the memory of the whole tree of processes is sampled.
"""

import argparse
import contextlib
import json
import os
import platform
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from _environment import environment
from _peers import page
from engines import CPU
from torch.nn import functional as F

import unalike as ua
from unalike.data.fetch import cache
from unalike.engines.workers import available_cores

SCRIPTS = Path(__file__).parent / "_peers"
OURS, LOOP = "unalike", "bare loop"
# name: (script, what is installed, whose version is shown, whether PyTorch's number of threads is ours to choose)
PEERS = {
    LOOP: ("loop.py", (), "torch", True),
    "Flower": ("with_flower.py", ("torch==2.13.0", "flwr[simulation]==1.41.0"), "flwr", False),
    "pfl": ("with_pfl.py", ("torch==2.13.0", "pfl[pytorch]==0.6.0"), "pfl", True),
    # jax 0.5.3: the newer ones have lost jax.tree_map, which FedJAX calls
    "FedJAX": ("with_fedjax.py", ("fedjax==0.0.17", "jax==0.5.3", "jaxlib==0.5.3"), "fedjax", False),
    "FedLab": ("with_fedlab.py", ("torch==2.13.0", "fedlab==1.3.0"), "fedlab", True),
}
# short name: (name in engines.py, what the page calls it, rounds and relative difference of weights for --exact).
# The CNN's is wide: rounding (probably near-ties in ReLU or pooling) changes a client's path by percents.
SOFTMAX = "softmax regression 60→10, 100 of 1000 clients × 30 steps of 10"
WORKLOADS = {
    "softmax": ("softmax regression, eager", SOFTMAX, 3, 1e-4),
    "compiled": ("softmax regression, compiled", f"{SOFTMAX}, ours with compiled steps", 3, 1e-4),
    "cnn": ("CNN of 878,538 parameters", "CNN of 878,538 parameters, 10 clients × 5 steps of 20", 1, 0.05),
}
# where ours does not choose its engine; and which peers are measured, if not all
OPTIONS = {"compiled": {"engine": "batched", "compile": True}}
BESIDE = {"compiled": (LOOP, "FedJAX")}
LEARNING_RATE = 0.05
SIZE, DIRECTION, FALL = 0.04, 0.9, 0.05  # how far a peer's weights may be from ours: see `agreement`
FEDJAX_GOALS = {"softmax": 8.0, "compiled": 20.0}
QUIET = 1.5  # load up to which a measurement is taken at its word
PATIENCE = 180  # seconds for one answer of a peer


# ---------------------------------------------------------------- environments


def version(python, package):
    ask = f"from importlib.metadata import version; print(version('{package}'))"
    return subprocess.run([python, "-c", ask], capture_output=True, text=True).stdout.strip()


# ---------------------------------------------------------------- processes


def tree(pid):
    """A process and everything below it."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):  # it has ended meanwhile
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def memory(pid):
    """Bytes that a tree of processes holds, shared pages counted once (Linux's PSS)."""
    total = 0
    for one in tree(pid):
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


class Peer:
    """A framework at work in a process of its own, one round at a time."""

    def __init__(self, name, python, script, work, out):
        self.name, self.peak, self.log = name, 0, work.parent / f"{name}.log"
        settings = {
            "PYTHONPATH": str(SCRIPTS), "RAY_TMPDIR": str(work.parent), "RAY_USAGE_STATS_ENABLED": "0",
            "FLWR_TELEMETRY_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }  # fmt: skip
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [python, SCRIPTS / script, work, out], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env=os.environ | settings, cwd=work.parent,
            )  # fmt: skip

    def answer(self):
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        line = self.process.stdout.readline().strip() if ready else b""
        if not line:
            lines = [text.strip() for text in self.log.read_text().splitlines() if "Error" in text]
            raise RuntimeError(lines[-1][:160] if lines else f"no answer within {PATIENCE} s" if not ready else "ended")
        return line.decode()

    def round(self, threads):
        time.sleep(0.2)  # threads of the other side may still be spinning after its round
        self.process.stdin.write(f"{threads}\n".encode())
        self.process.stdin.flush()
        return float(self.answer())

    def watched_round(self, threads):
        """A round during which memory is sampled, which would disturb a timed one."""
        over = threading.Event()

        def watch():
            while not over.is_set():
                self.peak = max(self.peak, memory(self.process.pid))
                over.wait(0.1)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            return self.round(threads)
        finally:
            over.set()
            watcher.join()

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        for pid in reversed(tree(self.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


# ---------------------------------------------------------------- the work


def prepare(folder, workload, rounds, compare, shuffle, learning_rate):
    """Write what every peer reads."""
    build, data, per_round, batch, epochs, *_ = CPU[WORKLOADS[workload][0]]
    torch.manual_seed(0)
    module, (x, y, offsets) = build(), data()
    rng = np.random.default_rng(0)
    cohorts = np.stack([np.sort(rng.choice(len(offsets) - 1, per_round, replace=False)) for _ in range(rounds)])
    folder.mkdir()
    for name, value in {"x": x.numpy(), "y": y.numpy(), "offsets": offsets, "cohorts": cohorts}.items():
        np.save(folder / f"{name}.npy", value)
    np.savez(folder / "initial.npz", **{name: p.detach().numpy() for name, p in module.named_parameters()})
    torch.save(module, folder / "module.pt")
    settings = {"workload": workload, "rounds": rounds, "batch": batch, "epochs": epochs, "lr": learning_rate}
    settings |= {"shuffle": shuffle, "compare": compare, "options": OPTIONS.get(workload, {"engine": "auto"})}
    (folder / "settings.json").write_text(json.dumps(settings))


def side_by_side(name, python, workload, folder, pairs, threads, exact, wrong_rate):
    """One peer and unalike, a round each in turn. Times, memory and weights of both."""
    script, _, _, chooses = PEERS[name]
    cores = available_cores()
    threads = (threads or sorted({1, cores})) if chooses and not exact else [1 if chooses else cores]
    compare = WORKLOADS[workload][2] if exact else pairs + 1
    sides = {}
    try:
        for side, program, own, turns in ((OURS, sys.executable, "ours.py", [cores]), (name, python, script, threads)):
            work, out = folder / f"work-{side}", folder / f"{side}.npz"
            rounds = compare if exact else pairs * len(turns) + 2
            rate = LEARNING_RATE if side == OURS else wrong_rate or LEARNING_RATE
            prepare(work, workload, rounds, compare, not exact, rate)
            sides[side] = Peer(side, program, own, work, out)
            sides[side].answer()  # it is ready
        first = {side: peer.watched_round(threads[-1] if side == name else cores) for side, peer in sides.items()}
        times = []
        for _ in range(compare - 1 if exact else pairs):
            times.append((sides[OURS].round(cores), [sides[name].round(t) for t in threads]))
        if not exact:
            for peer in sides.values():
                peer.watched_round(threads[-1])
    finally:
        for peer in sides.values():
            peer.close()
    weights = {side: dict(np.load(folder / f"{side}.npz")) for side in sides}
    return first, times, threads, {side: peer.peak for side, peer in sides.items()}, weights


def mean_loss(workload, weights):
    build, data, *_ = CPU[WORKLOADS[workload][0]]
    module, (x, y, _) = build(), data()
    module.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in weights.items()})
    with torch.no_grad():
        parts = [
            F.cross_entropy(module(a), b, reduction="sum") for a, b in zip(x.split(500), y.split(500), strict=True)
        ]
    return float(sum(parts)) / len(y)


def flat(weights, names):
    return np.concatenate([np.asarray(weights[name], dtype=np.float64).ravel() for name in names])


def agreement(workload, ours, theirs, exact):
    """Whether a peer's weights are those of the same work, and the figures.

    With shuffling each framework draws its own order of samples, so weights agree in size and trend only: the change
    from the initial weights must be as long as ours to 4 %, point the same way (cosine 0.9 or more), and the loss over
    everybody's data must have fallen as far as ours to 5 %. (Different orders alone gave up to 2.2 %, 0.93 and 1.5 %; a
    learning rate a tenth too large gives 6 %.) Without shuffling they must be the same.
    """
    torch.manual_seed(0)
    start = {name: p.detach().numpy() for name, p in CPU[WORKLOADS[workload][0]][0]().named_parameters()}
    names = list(start)
    w0, a, b = (flat(weights, names) for weights in (start, ours, theirs))
    a, b = a - w0, b - w0
    if exact:
        difference = float(np.linalg.norm(b - a) / np.linalg.norm(a))
        return difference <= WORKLOADS[workload][3], f"difference {difference:.1e}"
    size = float(np.linalg.norm(b) / np.linalg.norm(a))
    cosine = float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
    before, mine, loss = (mean_loss(workload, weights) for weights in (start, ours, theirs))
    fall = (before - loss) / (before - mine)
    fine = abs(size - 1) <= SIZE and cosine >= DIRECTION and abs(fall - 1) <= FALL
    return fine, f"size {size:.3f}, cosine {cosine:.3f}, loss {before:.4f} → {loss:.4f}, fall {fall:.3f} of ours"


# ---------------------------------------------------------------- results


def measure(name, python, workload, args):
    """A row of the table: a dict, with `problem` where the peer did not run or did other work."""
    with tempfile.TemporaryDirectory(prefix="p") as folder:  # short: Ray makes sockets below it
        try:
            first, times, threads, peaks, weights = side_by_side(
                name, python, workload, Path(folder), args.pairs, args.threads, args.exact, args.wrong_rate
            )
        except (RuntimeError, OSError) as error:
            return {"problem": f"does not run: {error}"}
    fine, figures = agreement(workload, weights[OURS], weights[name], args.exact)
    row = {"first": first[name], "memory": peaks[name], "agreement": figures}
    if not args.exact:
        best = min(range(len(threads)), key=lambda k: statistics.median(theirs[k] for _, theirs in times))
        row |= {
            "threads": threads[best] if PEERS[name][3] else None,
            "seconds": statistics.median(theirs[best] for _, theirs in times),
            "ratio": statistics.median(theirs[best] / ours for ours, theirs in times),
            "ours": [ours for ours, _ in times],
        }
    row |= {"ours_first": first[OURS], "ours_memory": peaks[OURS]}
    if not fine:
        row["problem"] = f"other weights than ours: {figures}"
    return row


def report(name, workload, row):
    if "seconds" in row:
        used = f" ({row['threads']} threads)" if row["threads"] else ""
        ours = statistics.median(row["ours"])
        print(
            f"{workload:<9}{name:<10}{row['seconds']:>9.4f} s a round{used}, ours {ours:.4f}, "
            f"ratio {row['ratio']:.2f}x, first round {row['first']:.1f} s (ours {row['ours_first']:.1f}), memory "
            f"{row['memory'] / 2**20:.0f} MiB (ours {row['ours_memory'] / 2**20:.0f}); {row['agreement']}"
        )
    else:
        print(f"{workload:<9}{name:<10}{row.get('agreement', '')}")
    if "problem" in row:
        print(f"{workload:<9}{name:<10}PROBLEM: {row['problem']}")
    sys.stdout.flush()


def goals(results):
    """What must hold: {words: whether it does, None where a peer gave no figure}."""

    def holds(workload, name, test):
        row = results.get(workload, {}).get(name)
        return None if row is None or "problem" in row else test(row)

    asked = {name for rows in results.values() for name in rows} - {LOOP}
    found = {}
    for workload, goal in FEDJAX_GOALS.items():
        if "FedJAX" in results.get(workload, ()):
            words = f"softmax regression{', compiled,' * (workload == 'compiled')} at least {goal:.0f}× FedJAX"
            found[words] = holds(workload, "FedJAX", lambda row, goal=goal: row["ratio"] >= goal)
    for name in sorted(asked) if "cnn" in results else ():
        found[f"CNN ahead of {name}"] = holds("cnn", name, lambda row: row["ratio"] > 1)
    for name in ("Flower", "pfl"):
        for workload in (w for w, rows in results.items() if name in rows):
            words = f"{workload}: memory below {name}'s"
            found[words] = holds(workload, name, lambda row: row["ours_memory"] < row["memory"])
    return found


def ours_of(rows):
    """Our own row: medians over what was measured beside every peer."""
    good = [row for row in rows.values() if "seconds" in row]
    return {
        "seconds": statistics.median(t for row in good for t in row["ours"]),
        "first": statistics.median(row["ours_first"] for row in good),
        "memory": max(row["ours_memory"] for row in good),
        "ratio": 1.0, "threads": None, "agreement": "",
    }  # fmt: skip


def write_page(workload, rows, versions, header, found):
    """Write a workload's part of the page."""
    rows, title = {OURS: ours_of(rows), **rows}, WORKLOADS[workload][1]
    parts = [f"**{title[0].upper()}{title[1:]}**\n", header, ""]
    parts.append("| | s a round | our round is shorter by | first round, s | memory, MiB | weights beside ours |")
    parts.append("|---|---|---|---|---|---|")
    panel = []
    for name, row in rows.items():
        label = f"{name} {versions[name]}" if name != LOOP else name
        if "seconds" not in row:
            parts.append(f"| {label} | {row['problem']} | | | | |")
            continue
        threads = f" ({row['threads']} thread{'s' * (row['threads'] > 1)})" if row["threads"] else ""
        ratio = "" if name == OURS else f"{row['ratio']:.2f}×"
        words = row.get("problem") or row["agreement"]
        parts.append(
            f"| {label} | {row['seconds']:.3f}{threads} | {ratio} | {row['first']:.1f} | "
            f"{row['memory'] / 2**20:.0f} | {words} |"
        )
        if "problem" not in row:
            panel.append((name, row["seconds"], f"{row['seconds']:.3f} s{' · ' * bool(ratio)}{ratio}", name == OURS))
    said = {True: "reached", False: "**missed**", None: "**not measured**"}
    parts += ["\nWhat was asked for:\n", *(f"- {words}: {said[ok]}" for words, ok in found.items())]
    alt = f"Seconds a round, shorter is better. {title}: " + ", ".join(
        f"{name} {value:.3f}" for name, value, *_ in panel
    )
    page.bars(f"peers-{workload}.svg", alt + ".", {title: panel})
    page.put(f"peers, {workload}", f"![{alt}.](images/peers-{workload}.svg)\n\n" + "\n".join(parts))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", nargs="+", type=int, help="PyTorch's threads to try, instead of 1 and all cores")
    parser.add_argument("--environments", type=Path, default=cache() / "peers", help="where the peers are installed")
    parser.add_argument("--exact", action="store_true", help="no shuffling, no times: compare the weights themselves")
    parser.add_argument("--no-page", action="store_true", help="print only")
    parser.add_argument("--wrong-rate", type=float, help="give the peers this learning rate, to see the check fail")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the peers are ended too
    pythons, results, versions = {}, {}, {OURS: ua.__version__}
    reasons = {}
    wanted = {name for workload in args.workloads for name in BESIDE.get(workload, PEERS)}
    args.peers = [name for name in args.peers if name in wanted]
    for name in args.peers:
        home, packages = args.environments.absolute() / name.lower(), PEERS[name][1]
        pythons[name], reasons[name] = environment(home, packages) if packages else (sys.executable, "")
        versions[name] = version(pythons[name], PEERS[name][2]) if pythons[name] else ""
    shown = ", ".join(f"{PEERS[n][2]} {v}" if n in PEERS else f"{n} {v}" for n, v in versions.items())
    load = os.getloadavg()[0]
    header = f"{shown}; Python {platform.python_version()}, {available_cores()} cores, load {load:.1f} before"
    print(header, flush=True)
    began = time.perf_counter()
    for workload in args.workloads:
        for name in (name for name in args.peers if name in BESIDE.get(workload, PEERS)):
            row = measure(name, pythons[name], workload, args) if pythons[name] else {"problem": reasons[name]}
            results.setdefault(workload, {})[name] = row
            report(name, workload, row)
    ending = f" and {os.getloadavg()[0]:.1f} after {time.perf_counter() - began:.0f} s"
    print(f"load{ending}")
    agree = all("problem" not in row for rows in results.values() for row in rows.values())
    if args.exact:
        print("every peer computes the same weights" if agree else "NOT every peer computes the same weights")
        return agree
    found = goals(results)
    for words, ok in found.items():
        print(f"{words}: { {True: 'reached', False: 'MISSED', None: 'not measured'}[ok] }")
    header += f"{ending}; {args.pairs} pairs."
    if load > QUIET or args.threads or args.pairs < 5:
        header += " **Provisional**: the machine was busy, or less was measured than the text above says."
    for workload, rows in results.items():
        # some of the peers alone would take the others off the page
        if set(rows) == set(BESIDE.get(workload, PEERS)) and not args.no_page:
            write_page(workload, rows, versions, header, goals({workload: rows}))
    return agree and all(found.values())


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
