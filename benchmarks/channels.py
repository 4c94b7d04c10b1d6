"""What each stage of a channel costs of a round, in one run.

    python benchmarks/channels.py [--device cuda] [part of a name ...]

On a CPU the CNN of benchmarks/engines.py (878,538 parameters, ten clients a round, five steps each), on a GPU FedDC's
CNN (797,962 parameters, 20 clients, 20 steps). "inside": the time in the channel's two halves, with the device waited
for at both ends; workers pass replies through the client half in threads of their own, several at once, and their
seconds are added up. "longer": by how much a round is longer than one without a channel, medians over the rounds of
two pairs of runs. A stage that is marked must make it at most 15 % longer.
"""

import argparse
import contextlib
import statistics
import threading
import time

import torch
from engines import cnn_878538, images

import unalike as ua
from unalike.channel import Passage

LIMIT = 0.15
STAGES = {  # stages, and whether the limit holds for them
    "clip": ("clip:1.0", True),
    "clip, noise": ("clip:1.0,noise:1.0", True),
    "quantise, 8 bits": ("quantise:8", True),
    "top 1 % with feedback": ("topk:0.01", True),
    "QSGD, 4 bits": ("qsgd:7", False),
    "ternary": ("ternary", False),
    "half": ("half", False),
    "random 1 %": ("randomk:0.01", False),
    "sparse ternary 1 %": ("stc:0.01", False),
    "local noise": ("clip:1.0,local-noise:0.001", False),
    "secure sum": ("secure-sum", True),
    "secure sum of 8 bits": ("quantise:8:0.1,secure-sum", True),
    "all of it": ("topk:0.1,quantise:8,clip:1.0,noise:1.0", False),
}


class Clock:
    """Adds up the seconds inside the channel, in all threads."""

    def __init__(self, device):
        self.seconds, self.device = 0.0, device
        self.lock, self.thread = threading.Lock(), threading.local()

    def around(self, half):
        def timed(passage, *args):
            if getattr(self.thread, "inside", False):  # one half may call another
                return half(passage, *args)
            self.thread.inside = True
            self.wait()
            began = time.perf_counter()
            out = half(passage, *args)
            self.wait()
            with self.lock:
                self.seconds += time.perf_counter() - began
            self.thread.inside = False
            return out

        return timed

    def wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()


class Shares(ua.Callback):
    """After each round, the channel's seconds over those of the rest of the round."""

    def __init__(self, clock, warm):
        self.clock, self.warm, self.shares = clock, warm, []

    def on_round(self, run, line):
        inside, self.clock.seconds = self.clock.seconds, 0.0
        if line["round"] > self.warm:
            self.shares.append((inside / (line["seconds"] - inside), inside, line["seconds"]))


@contextlib.contextmanager
def watched(device, warm):
    """Let the channel's halves be timed, and give the callback that takes their share of each round."""
    clock, halves = Clock(device), (Passage.send, Passage.take, Passage.close)
    Passage.send, Passage.take, Passage.close = (clock.around(half) for half in halves)
    try:
        yield Shares(clock, warm)
    finally:
        Passage.send, Passage.take, Passage.close = halves


def run(stages, device, rounds, warm, drawn):
    """Return the seconds inside the channel and of a whole round, round by round. drawn: whether cohorts are."""
    torch.manual_seed(0)
    gpu = device == "cuda"
    module = ua.models.cnn_feddc() if gpu else cnn_878538()
    x, y, offsets = images(100 if gpu else 40, 500 if gpu else 100, (3, 32, 32))
    fed = ua.Federation(ua.data.Columns(x, y, offsets))
    local = ua.LocalTraining(epochs=2 if gpu else 1, batch_size=50 if gpu else 20, lr=0.01)
    cohort = ua.sampling.Bernoulli(0.2 if gpu else 0.25) if drawn else 20 if gpu else 10
    with watched(device, warm) as shares:
        ua.simulate(
            module, fed, ua.FedAvg(weights="uniform"), rounds=rounds, clients_per_round=cohort, device=device,
            local=local, channel=stages, callbacks=[shares], precision="tf32" if gpu else "highest",
            evaluate_every=10**6,
        )  # fmt: skip
    return [seconds for _, *seconds in shares.shares]


def measured(stages, device, rounds):
    """Return the seconds inside the channel, of a round with it, and of one without: medians."""
    inside, whole, bare = [], [], []
    for _ in range(2):
        with_it = run(stages, device, rounds, 2, "noise" in stages)
        inside += [one for one, _ in with_it]
        whole += [one for _, one in with_it]
        bare += [one for _, one in run(None, device, rounds, 2, "noise" in stages)]
    return map(statistics.median, (inside, whole, bare))


def main(names, device, rounds):
    print(f"{'stages':<26}{'inside, ms':>12}{'round, ms':>12}{'longer':>9}{'limit':>8}")
    passed = True
    for name, (stages, limited) in STAGES.items():
        if names and not any(part in name for part in names):
            continue
        inside, whole, bare = measured(stages, device, rounds)
        passed &= not limited or whole / bare <= 1 + LIMIT
        limit = f"{LIMIT:.0%}" if limited else ""
        print(f"{name:<26}{1e3 * inside:>12.2f}{1e3 * whole:>12.1f}{whole / bare - 1:>9.1%}{limit:>8}", flush=True)
    return 0 if passed else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    raise SystemExit(main(given.names, given.device, given.rounds))
