"""Clients that arrive when they can: what many of them under way cost, and a real federation with a slow one.

    python benchmarks/arrivals.py               # both of these
    python benchmarks/arrivals.py flight        # 100, 1,000 and 10,000 of 12,000 clients under way: a minute
    python benchmarks/arrivals.py federation    # six real clients, one ten times slower: a minute and a half

flight: processor time of a step of one arrival (FedAsync, 610 parameters, lognormal speeds) and of the first, in which
all begin, the versions of the model that somebody still works with, and megabytes of memory beyond those before. Steps
must cost what arrives: with 10,000 under way at most 1.5 times what they cost with 100.

federation: six processes of clients on this machine, one of which may run a tenth of the time (it is stopped and let go
by signals), in rounds that wait for all, and with `buffer:3`: seconds for six answers, and whose they are. The goals:
asynchronously at most half, and the slow client's answers are among them.
"""

import argparse
import collections
import contextlib
import signal
import statistics
import threading
import time

import numpy as np
import torch
from million import anonymous_bytes

import unalike as ua
from unalike import config
from unalike.network import one_machine, server

TIMES, HALF = 1.5, 0.5
CLIENTS, SLOW, PERIOD, SHARE = 6, 5, 0.05, 0.1
WORK = {
    "data": {"name": "digits", "clients": CLIENTS, "partition": "iid"},
    "model": {"name": "mlp", "hidden": [200]},
    "method": {"name": "fedavg"},
    "local": {"steps": 1500, "batch_size": 50, "lr": 0.1},
    "run": {"evaluate_clients": "none", "evaluate_every": 1000},
}


class Steps(ua.Callback):
    """Processor seconds from step to step, and the most versions of the model that were kept after any."""

    def __init__(self):
        self.moments, self.versions = [time.process_time()], 0

    def on_round(self, run, line):
        self.moments.append(time.process_time())
        self.versions = max(self.versions, len(run.arrivals.under_way.calls))


def flight(steps):
    x, y = np.random.default_rng(0).normal(size=(24_000, 60)).astype(np.float32), np.arange(24_000) % 10
    fed = ua.Federation(ua.data.Columns(torch.tensor(x), torch.tensor(y), np.arange(12_001) * 2), classes=10)
    found = {}
    for many in (100, 1_000, 10_000):
        watch, before = Steps(), anonymous_bytes()
        ua.simulate(
            torch.nn.Linear(60, 10), fed, ua.FedAsync(0.1), rounds=steps, clients_per_round=many, device="cpu",
            engine="batched", clock=ua.Clock(speeds="lognormal:1.0"), local=ua.LocalTraining(epochs=2, batch_size=1),
            evaluate_clients="none", callbacks=[watch],
        )  # fmt: skip
        first, *others = np.diff(watch.moments)
        found[many] = statistics.median(others)
        more = (anonymous_bytes() - before) / 1e6
        print(
            f"{many:6,} under way: {1000 * found[many]:6.2f} ms a step (the first {first:.2f} s), "
            f"{watch.versions} versions kept, {more:.0f} MB"
        )
    times = found[10_000] / found[100]
    print(f"with 10,000 under way a step costs {times:.2f} times what it costs with 100 (goal: at most {TIMES})")
    return times <= TIMES


@contextlib.contextmanager
def slowed(process):
    """Let a process run a tenth of the time."""
    over = threading.Event()

    def pace():
        while not over.is_set():
            process.send_signal(signal.SIGSTOP)
            time.sleep(PERIOD * (1 - SHARE))
            process.send_signal(signal.SIGCONT)
            time.sleep(PERIOD * SHARE)

    thread = threading.Thread(target=pace)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Answers(ua.Callback):
    """Who answers after the first round, in what time, and how old the oldest answer was. A process is slow from then
    on: starting up is not counted."""

    def __init__(self, process):
        self.process, self.slow = process, contextlib.ExitStack()
        self.moments, self.oldest, self.who = [], 0, collections.Counter()

    def on_reply(self, run, outcome):
        self.who.update(outcome.ids.tolist() if self.moments else ())

    def on_round(self, run, line):
        self.moments.append(time.perf_counter())
        self.oldest = max(self.oldest, line.get("staleness_most", 0))
        if line["round"] == 1:
            self.slow.enter_context(slowed(self.process))


def federation():
    fed, found = config.make_data(WORK["data"]), {}
    for name, run in (("rounds", {"rounds": 4}), ("buffer:3", {"rounds": 19, "asynchronous": "buffer:3"})):
        with one_machine.federation(fed) as (here, link):
            watch = Answers(here.processes[f"client-{SLOW:04d}"])
            tables = {**WORK, "run": {**WORK["run"], "clients_per_round": CLIENTS, **run}}
            del tables["data"]
            asked = {"wait": 90, "deadline": 120, "classes": 10, "check": here.processes.check}
            with watch.slow:
                server.run(tables, link, here.public, test=fed.global_test, callbacks=[watch], **asked)
        answers, seconds = watch.who.total(), watch.moments[-1] - watch.moments[0]
        found[name] = seconds * CLIENTS / answers
        print(
            f"{name:8}: {found[name]:5.2f} s for {CLIENTS} answers ({answers} in {seconds:.1f} s); "
            f"the slow client's: {watch.who[SLOW]}, oldest {watch.oldest} versions"
        )
    share, late = found["buffer:3"] / found["rounds"], watch.who[SLOW]
    print(f"asynchronously {share:.2f} of the time (goal: at most {HALF:.2f}), slow answers that count: {late}")
    return share <= HALF and late > 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["flight", "federation"], help="default: both")
    parser.add_argument("--steps", type=int, default=300, help="of the server, in flight (default: 300)")
    args = parser.parse_args()
    reached = [flight(args.steps)] if args.what != "federation" else []
    reached += [federation()] if args.what != "flight" else []
    raise SystemExit(not all(reached))
