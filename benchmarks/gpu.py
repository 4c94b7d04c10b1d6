"""Seconds a round on one GPU: four kinds of model, with and without the layers that have kernels of their own.

    python benchmarks/gpu.py [part of a name ...] [--precision bf16 tf32 highest] [--rounds 5] [--profile]

Both ways run in one process, in blocks that alternate; the ratio is that of the medians. TFLOP/s counts the products
of a round once (forward and backward of the plain model); the share is that of the rate which a large product of the
same precision reaches in this run.
"""

import argparse
import platform
import statistics
import time

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import unalike as ua


def images(clients, n, shape, classes=10):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(clients * n, *shape, generator=g)
    return x, torch.randint(0, classes, (clients * n,), generator=g), np.arange(clients + 1) * n


def tokens(clients, n, length=80, vocabulary=80):
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, vocabulary, (clients * n, length), generator=g)
    return x, torch.randint(0, vocabulary, (clients * n,), generator=g), np.arange(clients + 1) * n


# name: model, data, local training, and the goal in seconds a round
WORK = {
    "FedDC's CIFAR CNN, 100 clients × 50 steps of 50": (
        ua.models.cnn_feddc, lambda: images(100, 500, (3, 32, 32)),
        {"epochs": 5, "batch_size": 50, "clip_norm": 10.0, "weight_decay": 1e-3}, 0.35,
    ),
    "MLP 784-200-200-10, 100 clients × 60 steps of 50": (
        lambda: ua.models.mlp(784, classes=10), lambda: images(100, 600, (784,)),
        {"epochs": 5, "batch_size": 50}, 0.025,
    ),
    "softmax regression 60-10, 100 clients × 30 steps of 10": (
        lambda: nn.Linear(60, 10), lambda: images(100, 60, (60,)), {"epochs": 5, "batch_size": 10}, 0.0015,
    ),
    "char LSTM, hidden 100, 10 clients × 20 steps of 10": (
        ua.models.CharLSTM, lambda: tokens(10, 200), {"epochs": 1, "batch_size": 10}, 0.100,
    ),
}  # fmt: skip


def ceiling(precision):
    """TFLOP/s of one large product."""
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    a = torch.randn(8192, 8192, device="cuda", dtype=kind)
    for _ in range(3):
        a @ a
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(10):
        a @ a
    torch.cuda.synchronize()
    return 10 * 2 * 8192**3 / (time.perf_counter() - began) / 1e12


def products(module, x, y, steps):
    """TFLOP of one round: a step of one batch counted, times the steps of all clients."""
    with FlopCounterMode(display=False) as counter:
        nn.functional.cross_entropy(module(x), y).backward()
    return counter.get_total_flops() * steps / 1e12


def run(module, fed, local, rounds, precision, **options):
    began = time.perf_counter()
    result = ua.simulate(
        module, fed, ua.FedAvg(), rounds=rounds + 2, engine="batched", device="cuda", precision=precision, compile=True,
        local=ua.LocalTraining(lr=0.05, **local), **options,
    )  # fmt: skip
    times = [line["seconds_clients"] if "seconds_clients" in line else line["seconds"] for line in result.history]
    modes = {p.mode for ps in result.engine.steps.values() for p in ps}
    notes = result.engine.notes
    return statistics.median(times[2:]), times[0], "+".join(modes), notes, result, time.perf_counter() - began


def beside(module, fed, local, rounds, precision):
    """An LSTM that is unrolled takes minutes to compile; cuDNN's, one client after another, is what is to be beaten."""
    result = ua.simulate(
        module, fed, ua.FedAvg(), rounds=rounds, engine="sequential", device="cuda", precision=precision,
        local=ua.LocalTraining(lr=0.05, **local),
    )  # fmt: skip
    seconds = statistics.median(line["seconds"] for line in result.history[1:])
    print(f"  {precision:<8} one client after another (cuDNN) {1000 * seconds:9.2f} ms a round", flush=True)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--precision", nargs="+", default=["bf16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="where a round's time goes, kernel by kernel")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: needs a CUDA device")
        return
    print(f"unalike {ua.__version__}, torch {torch.__version__}, Python {platform.python_version()}")
    print(torch.cuda.get_device_name(), flush=True)
    missed = 0
    for name, (build, data, local, goal) in WORK.items():
        if args.workloads and not any(part in name for part in args.workloads):
            continue
        torch.manual_seed(0)
        module, (x, y, offsets) = build(), data()
        fed = ua.Federation(ua.data.Columns(x, y, offsets))
        settings = ua.LocalTraining(**local)
        clients = np.arange(len(offsets) - 1)
        steps = int(settings.counts(clients, fed.sizes, 0).sum())
        batch = local["batch_size"]
        flop = products(build(), x[:batch], y[:batch], steps)
        print(f"\n{name} ({flop:.2f} TFLOP a round, goal {1000 * goal:g} ms)", flush=True)
        best = float("inf")
        for precision in args.precision:
            top = ceiling(precision)
            got = {}
            for fast in (False, True, False, True):
                if not fast and any(isinstance(m, nn.LSTM) for m in module.modules()):
                    got.setdefault(False, []).append(beside(module, fed, local, args.rounds, precision))
                    continue
                seconds, first, mode, notes, result, _ = run(module, fed, local, args.rounds, precision, fast=fast)
                got.setdefault(fast, []).append(seconds)
                layers = ", ".join(result.engine.quick.fast) if fast else "none"
                print(
                    f"  {precision:<8} fast={fast!s:<6} {1000 * seconds:9.2f} ms a round ({mode}; first round "
                    f"{first:.1f} s; fast layers: {layers or 'none fit'}) {'; '.join(notes)}", flush=True,
                )  # fmt: skip
            plain, quick = (statistics.median(got[k]) for k in (False, True))
            best = min(best, plain, quick)
            rate = flop / quick
            print(
                f"  {precision:<8} ratio {plain / quick:.2f}x, {rate:.1f} TFLOP/s, {100 * rate / top:.1f} % of the "
                f"{top:.0f} that one large product reaches", flush=True,
            )  # fmt: skip
            if args.profile:
                profile(module, fed, local, precision)
        missed += best > goal
        print(f"  best {1000 * best:.2f} ms: {'reached' if best <= goal else 'NOT reached'}", flush=True)
    raise SystemExit(1 if missed else 0)


def profile(module, fed, local, precision):
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    class Watch(ua.Callback):
        def on_round(self, run, line):
            if line["round"] == 2:
                self.watch = record(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU])
                self.watch.__enter__()
            if line["round"] == 3:
                self.watch.__exit__(None, None, None)
                print(
                    self.watch.key_averages().table(sort_by="cuda_time_total", row_limit=24, max_name_column_width=70)
                )

    run(module, fed, local, 3, precision, callbacks=[Watch()])


if __name__ == "__main__":
    main()
