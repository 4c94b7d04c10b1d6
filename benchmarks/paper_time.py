"""FedDC's CIFAR-10 experiment on one GPU: our seconds a round beside those of a plain loop, in one run.

    python benchmarks/paper_time.py [--data FOLDER] [--rounds 600] [--participants 15] [--precision bf16]
    python benchmarks/paper_time.py --whole      # FedDC's 600 rounds, each client with probability 0.15, caches cold
    python benchmarks/paper_time.py --seeds 3 --rounds 100     # the same, three seeds in one stack beside one alone

The plain loop is FedAvg as one writes it in PyTorch: one client after another, an optimizer each, batches by an index
on the device, flips and crops on the whole batch. It is timed for 3 rounds after one to warm up, and extrapolated; ours
is timed for 20 after those that compile, which are printed beside. Without --data the pictures are noise of the same
size: the time is the same.
"""

import argparse
import copy
import functools
import os
import platform
import statistics
import tempfile
import time

import numpy as np
import torch
from torch.nn import functional as F

import unalike as ua
from unalike.engines.batched import lockstep
from unalike.run.sampling import Bernoulli

CLIENTS, SAMPLES, EPOCHS, BATCH = 100, 500, 5, 50
PLAIN, OURS = 3, 20


def noise():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * SAMPLES, 3, 32, 32, generator=g)
    y = torch.randint(0, 10, (CLIENTS * SAMPLES,), generator=g)
    test = torch.randn(10_000, 3, 32, 32, generator=g), torch.randint(0, 10, (10_000,), generator=g)
    return ua.Federation(ua.data.Columns(x, y, np.arange(CLIENTS + 1) * SAMPLES), global_test=test, classes=10)


def augmented(x):
    """Flip half of the pictures; shift half of them by up to 4 places."""
    x = torch.where(torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5, x, x.flip(-1))
    a, b = (int(v) for v in torch.randint(0, 9, (2,)))
    moved = F.pad(x, (4, 4, 4, 4))[:, :, a : a + 32, b : b + 32]
    return torch.where(torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5, x, moved)


class Plain:
    """FedAvg by hand, on the device; FedDC's own step adds one product and one sum to each of these."""

    def __init__(self, module, fed, device, bf16):
        self.module, self.device, self.bf16 = copy.deepcopy(module).to(device), device, bf16
        self.train, self.test = fed.train, fed.global_test

    def loss(self, x, y):
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            return F.cross_entropy(self.module(x), y)

    def round(self, participants):
        began = time.perf_counter()
        start = {k: v.clone() for k, v in self.module.state_dict().items()}
        mean = {k: torch.zeros_like(v) for k, v in start.items()}
        for client in torch.randperm(len(self.train.sizes))[:participants].tolist():
            self.module.load_state_dict(start)
            x, y = self.train.of(client)
            optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1, weight_decay=1e-3)
            for _ in range(EPOCHS):
                for rows in torch.randperm(len(y), device=self.device).split(BATCH):
                    optimizer.zero_grad()
                    self.loss(augmented(x[rows]), y[rows]).backward()
                    torch.nn.utils.clip_grad_norm_(self.module.parameters(), 10.0)
                    optimizer.step()
            for k, v in self.module.state_dict().items():
                mean[k] += v / participants
        self.module.load_state_dict(mean)
        with torch.no_grad():
            right = sum(
                int((self.module(x).argmax(1) == y).sum())
                for x, y in zip(self.test[0].split(1000), self.test[1].split(1000), strict=True)
            )
        assert 0 <= right <= len(self.test[1])  # reading it is what waits for the device
        return time.perf_counter() - began


LOCAL = ua.LocalTraining(
    epochs=EPOCHS, batch_size=BATCH, lr=0.1, lr_decay=0.998, weight_decay=1e-3, clip_norm=10.0,
    augment="flip,crop:4:0.5",
)  # fmt: skip


def simulated(given, module, fed, times, member=None, seed=0):
    """Run FedDC with cohorts that vary in size."""
    return ua.simulate(
        module, fed, ua.FedDC(alpha=0.01, scaling="official"), rounds=given.rounds, callbacks=[times], seed=seed,
        clients_per_round=Bernoulli(given.participants / CLIENTS), device=given.device, precision=given.precision,
        local=LOCAL, member=member,
    )  # fmt: skip


def experiment(given, module, fed):
    """Run the experiment as it is, with empty caches of the compiler, and print what it took."""
    times, share = Times(), given.participants / CLIENTS
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {name: f"{folder}/{name}" for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
        began = time.perf_counter()
        run = simulated(given, module, fed, times)
        took = time.perf_counter() - began
    print(f"FedDC, {given.rounds} rounds of {share:.0%} (varying): {took:.1f} s in all (goal 60)")
    print(f"  first round {times.seconds[0]:.2f} s; the others {statistics.median(times.seconds[1:]):.4f} s, ", end="")
    print(f"last fifty {statistics.median(times.seconds[-50:]):.4f} s; notes {run.notes}", flush=True)


def stacked(given, module, fed):
    """Run one seed alone, then several in one stack, and print what a run took; kernels are made before."""
    simulated(argparse.Namespace(**{**vars(given), "rounds": 3}), module, fed, Times())
    began = time.perf_counter()
    simulated(given, module, fed, Times())
    alone, began = time.perf_counter() - began, time.perf_counter()
    print(f"FedDC, {given.rounds} rounds, one seed alone: {alone:.1f} s", flush=True)
    clocks = [Times() for _ in range(given.seeds)]
    starts = [
        functools.partial(lambda k, member: simulated(given, module, fed, clocks[k], member, k), k)
        for k in range(given.seeds)
    ]
    runs = lockstep.together(starts, given.precision)
    took = time.perf_counter() - began
    print(f"{given.seeds} seeds in one stack: {took:.1f} s, {given.seeds * alone / took:.2f} times as fast", flush=True)
    paces = [statistics.median(clock.seconds[len(clock.seconds) // 2 :]) for clock in clocks]
    print(f"  a round of one in the second half: {statistics.mean(paces):.4f} s; notes {runs[0].notes}")


class Times(ua.Callback):
    def __init__(self):
        self.seconds = []

    def on_round(self, run, line):
        self.seconds.append(line["seconds"] + line["seconds_evaluation"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder with CIFAR-10")
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--participants", type=int, default=15)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--whole", action="store_true", help="run all rounds, with cohorts that vary in size")
    parser.add_argument("--seeds", type=int, default=0, help="run so many seeds in one stack, beside one alone")
    given = parser.parse_args()
    device = torch.device(given.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("skipped: needs a CUDA device")
        return
    fed = noise()
    if given.data:
        fed = ua.load("cifar10", folder=given.data).split("prior-dirichlet:0.3", CLIENTS, seed=20)
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
    print(f"{name}, torch {torch.__version__}; {given.participants} of {CLIENTS} clients a round, {given.precision}")
    torch.manual_seed(0)
    module = ua.models.cnn_feddc()
    if given.whole:
        experiment(given, module, fed)
        return
    if given.seeds:
        stacked(given, module, fed)
        return
    on_device = fed.to(device, torch.float32)
    plain = Plain(module, on_device, device, given.precision == "bf16")
    plain.round(1)
    loop = statistics.median(plain.round(given.participants) for _ in range(PLAIN))
    hours = loop * given.rounds / 3600
    print(f"plain loop: {loop:.3f} s a round (median of {PLAIN}); {given.rounds} rounds would take {hours:.2f} h")
    for method in (ua.FedAvg(), ua.FedDC(alpha=0.01, scaling="official")):
        times = Times()
        ua.simulate(
            module, fed, method, rounds=OURS + 3, clients_per_round=given.participants, device=given.device,
            precision=given.precision, engine="batched", local=LOCAL, callbacks=[times], compile=given.device == "cuda",
        )  # fmt: skip
        ours, first = statistics.median(times.seconds[3:]), sum(times.seconds[:3])
        whole = (ours * given.rounds + first) / 60
        print(
            f"{type(method).__name__}: {ours:.4f} s a round (median of {OURS}), first three {first:.1f} s; "
            f"{given.rounds} rounds: {whole:.1f} min; {loop / ours:.1f} times the plain loop's speed"
        )


if __name__ == "__main__":
    main()
