"""Pictures held as bytes beside the same pictures as float32: memory, and seconds a round.

    python benchmarks/pictures.py [--device cpu|cuda] [--rounds 6] [--pictures 50000] [--models softmax cnn]

Random pictures of CIFAR-10's shape are dealt to 100 clients. Each kind has a process of its own: MB that it holds, and
at most held (beside PyTorch), when the data are read, when they are split and the data set is released, and after the
rounds (on a GPU: that tensors took there). Rounds: FedAvg, 10 clients a round, batches of 20 (the CNN)
or 50. Runs of both kinds take turns; the ratio is the median over pairs. Fails if bytes take more than 0.3 times the
memory of numbers after the split, or the weights of a CPU differ.
"""

import argparse
import multiprocessing
import platform
import statistics

import numpy as np
import torch
from torch import nn

import unalike as ua
from unalike.data.pixels import numbers
from unalike.data.sources.common import images

MODELS = {
    "softmax": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), 50, {"engine": "batched"}),
    "cnn": (ua.models.cnn_feddc, 20, {}),
}
KINDS = ("bytes", "numbers")
MOST = 0.3


def memory(word):
    """MB of this process that Linux calls VmRSS (now) or VmHWM (at most)."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(word)) / 1024


def pictures(kind, count):
    pixels = np.random.default_rng(0).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    x = images(pixels, (0.491, 0.482, 0.447), (0.247, 0.243, 0.262), True)
    return x if kind == "bytes" else numbers(x)


def work(pipe, kind, args):
    """Answer with the memory, then with seconds of the rounds of each model that is asked for, and a sum of weights."""
    torch.ones(8).sum()
    base = memory("VmRSS")
    data = ua.Dataset(pictures(kind, args.pictures), torch.arange(args.pictures) % 10)
    told = {"read": memory("VmRSS") - base}
    fed = data.split("iid", clients=100, test=0.1)
    del data
    told |= {"split": memory("VmRSS") - base, "peak": memory("VmHWM") - base}
    pipe.send(told)
    while (name := pipe.recv()) is not None:
        build, batch, options = MODELS[name]
        torch.manual_seed(0)
        run = ua.simulate(
            build(), fed, ua.FedAvg(), rounds=args.rounds, clients_per_round=10, device=args.device,
            local=ua.LocalTraining(epochs=1, batch_size=batch, lr=0.01), **options,
        )  # fmt: skip
        seconds = [line["seconds"] for line in run.history]
        there = torch.cuda.max_memory_allocated() / 2**20 if args.device == "cuda" else memory("VmHWM") - base
        del run.engine
        weights = [p.detach().cpu().numpy() for p in run.model.parameters()]
        pipe.send((statistics.median(seconds[1:]), there, weights))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=50_000)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    args = parser.parse_args()
    print(f"unalike {ua.__version__}, torch {torch.__version__}, Python {platform.python_version()}, {args.device}")
    context, pipes, split, wrong = multiprocessing.get_context("spawn"), {}, {}, 0
    for kind in KINDS:
        pipes[kind], theirs = context.Pipe()
        context.Process(target=work, args=(theirs, kind, args), daemon=True).start()
        told = pipes[kind].recv()
        split[kind] = told["split"]
        print(f"{kind:<8} MB: " + ", ".join(f"{name} {value:.0f}" for name, value in told.items()), flush=True)
    wrong += split["bytes"] > MOST * split["numbers"]
    print(f"{split['bytes'] / split['numbers']:.2f} of the memory after the split (at most {MOST})")
    for name in args.models:
        pairs, most = [], {}
        for _ in range(args.pairs):
            found = {}
            for kind in KINDS:
                pipes[kind].send(name)
                found[kind] = pipes[kind].recv()
                most[kind] = found[kind][1]
            pairs.append([found[kind][0] for kind in KINDS])
            same = all(map(np.array_equal, *(found[kind][2] for kind in KINDS)))
        wrong += not same and args.device == "cpu"
        ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(
            f"{name:<8} {ours:.4f} s a round, of numbers {theirs:.4f}; ratio "
            f"{statistics.median(a / b for a, b in pairs):.3f}; weights {'equal' if same else 'differ'}; at most "
            f"{most['bytes']:.0f} and {most['numbers']:.0f} MB", flush=True,
        )  # fmt: skip
    for pipe in pipes.values():
        pipe.send(None)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
