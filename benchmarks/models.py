"""Architectures beside a bare PyTorch loop, in one run: steady rounds, the first round from a cold cache, 30 rounds.

    python benchmarks/models.py [part of a name ...] [--device cuda] [--limit 540] [--each 60] [--out models.jsonl]

Twenty clients, ten steps of 32 samples each, tf32 on a GPU (on a CPU fewer: the goals are a GPU's), `auto`. Every
architecture has a process of its own, with empty caches of the compiler and of Triton. A line of JSON is written as
soon as an architecture is through; one that would not fit into the time limit is left out and named. torch, numpy and
safetensors are enough.

first    seconds from the call of `simulate` to the end of its first round, caches cold
thirty   seconds of a call of `simulate` with 30 rounds, caches cold, and the bare loop's 30 (its first, and 29 times
         the median of the others)
steady   seconds a round once nothing is compiled any more (of the last ten rounds, with a +, where the compiler had not
         ended in time), and of the bare loop; their ratio
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import unalike as ua

BATCH = 32
FULL = {"clients": 20, "steps": 10, "rounds": 30}
SMALL = {"clients": 4, "steps": 3, "rounds": 3}  # on a CPU, where it is only tried that all run


# ---------------------------------------------------------------- architectures


class Residual(nn.Module):
    """x + f(x), with GroupNorm."""

    def __init__(self, width):
        super().__init__()
        conv = lambda: nn.Conv2d(width, width, 3, padding=1, bias=False)  # noqa: E731
        self.inner = nn.Sequential(conv(), nn.GroupNorm(4, width), nn.ReLU(), conv(), nn.GroupNorm(4, width))

    def forward(self, x):
        return F.relu(x + self.inner(x))


def residual():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), Residual(32), nn.MaxPool2d(2), nn.Conv2d(32, 64, 1), Residual(64),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def depthwise():
    blocks = []
    for i, o in ((32, 64), (64, 64), (64, 128)):
        blocks += [nn.Conv2d(i, i, 3, padding=1, groups=i), nn.Conv2d(i, o, 1), nn.ReLU(), nn.AvgPool2d(2)]
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), *blocks, nn.Flatten(), nn.Linear(128 * 16, 10))


def batch_norm():
    layers = []
    for i, o in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 10))


class Text(nn.Module):
    """Tokens, something over them, and a head on the mean."""

    def __init__(self, body, width, out=None):
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(80, width), body, nn.Linear(out or width, 80)

    def forward(self, x):
        y = self.body(self.embedding(x))
        return self.head((y[0] if isinstance(y, tuple) else y).mean(1))


class ByHand(nn.Module):
    """Self-attention as one writes it."""

    def __init__(self, width=64, heads=4):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


def transformer(layers=2):
    stack = [nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(layers)]
    return Text(nn.Sequential(*stack), 64)


class LowRank(nn.Module):
    """A frozen linear layer and an adapter of low rank."""

    def __init__(self, layer, rank=4):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down, self.up = nn.Linear(layer.in_features, rank, False), nn.Linear(rank, layer.out_features, False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


class Centred(nn.Module):
    """Takes the batch's mean away: samples meet, so that clients cannot be stacked."""

    def forward(self, x):
        return x - x.mean(0)


class Looking(nn.Module):
    """Looks at a value: neither a stack nor a graph can follow."""

    def forward(self, x):
        return x if x.abs().max().item() < 100 else x / 10


class GPT(nn.Module):
    """A decoder with a causal mask in a buffer."""

    def __init__(self, width=64, length=32):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True, activation="gelu")
        self.embedding, self.places = nn.Embedding(80, width), nn.Parameter(torch.randn(length, width) / 50)
        self.blocks = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, 80)
        self.register_buffer("mask", torch.triu(torch.full((length, length), float("-inf")), 1))

    def forward(self, x):
        return self.head(self.blocks(self.embedding(x) + self.places, mask=self.mask)[:, -1])


class ViT(nn.Module):
    """A transformer over patches of a picture."""

    def __init__(self, width=64):
        super().__init__()
        self.patches, self.places = nn.Conv2d(3, width, 4, 4), nn.Parameter(torch.randn(1, 64, width) / 50)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2) + self.places).mean(1))


class UNet(nn.Module):
    """Down, and up again by a transposed convolution."""

    def __init__(self):
        super().__init__()
        block = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.ReLU())  # noqa: E731
        self.first, self.low = block(3, 32), nn.Sequential(block(32, 64), block(64, 64))
        self.up, self.last, self.head = nn.ConvTranspose2d(64, 32, 2, 2), block(64, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = self.first(x)
        x = torch.cat([x, self.up(self.low(F.max_pool2d(x, 2)))], 1)
        return self.head(self.last(x).mean((2, 3)))


class Inverted(nn.Module):
    """An inverted residual with squeeze and excitation."""

    def __init__(self, i, o, stride):
        super().__init__()
        wide, self.skips = 4 * i, i == o and stride == 1
        self.into = nn.Sequential(
            nn.Conv2d(i, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.SiLU(),
        )  # fmt: skip
        self.squeeze = nn.Sequential(nn.Linear(wide, i), nn.ReLU(), nn.Linear(i, wide), nn.Sigmoid())
        self.out = nn.Sequential(nn.Conv2d(wide, o, 1, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        y = self.into(x)
        y = self.out(y * self.squeeze(y.mean((2, 3)))[:, :, None, None])
        return x + y if self.skips else y


def mobile():
    blocks = [Inverted(i, o, stride) for i, o, stride in ((16, 24, 1), (24, 24, 1), (24, 40, 2), (40, 40, 1))]
    first = nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.SiLU()
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 10))


def with_layer(layer):
    """Return a CNN with this layer in the middle."""
    model = batch_norm()
    return nn.Sequential(*model[:4], layer, *model[4:])


def adapters():
    model = Text(nn.Sequential(*(ByHand() for _ in range(4))), 64).requires_grad_(False)
    for block in model.body:
        block.qkv, block.up = LowRank(block.qkv), LowRank(block.up)
    model.head.requires_grad_(True)
    return model


def recurrent(kind, **options):
    both = 2 if options.get("bidirectional") else 1
    return Text(kind(64, 64, num_layers=2, batch_first=True, **options), 64, 64 * both)


def pictures(n, shape=(3, 32, 32)):
    g = torch.Generator().manual_seed(0)
    return torch.randn(n, *shape, generator=g), torch.randint(0, 10, (n,), generator=g)


def tokens(n, length=32):
    g = torch.Generator().manual_seed(0)
    return torch.randint(0, 80, (n, length), generator=g), torch.randint(0, 80, (n,), generator=g)


MODELS = {
    "mlp": (lambda: ua.models.mlp(784, classes=10), lambda n: pictures(n, (784,))),
    "residual": (residual, pictures),
    "depthwise": (depthwise, pictures),
    "batchnorm": (batch_norm, pictures),
    "attention": (lambda: Text(ByHand(), 64), tokens),
    "transformer": (transformer, tokens),
    "lora": (adapters, tokens),
    "bilstm": (lambda: recurrent(nn.LSTM, bidirectional=True), tokens),
    "gru": (lambda: recurrent(nn.GRU), tokens),
    "rnn": (lambda: recurrent(nn.RNN), tokens),
    "gpt": (GPT, tokens),
    "vit": (ViT, pictures),
    "unet": (UNet, pictures),
    "mobile": (mobile, pictures),
    "feddc": (ua.models.cnn_feddc, pictures),
    "centred": (lambda: with_layer(Centred()), pictures),
    "looking": (lambda: with_layer(Looking()), pictures),
    "resnet18": (lambda: ua.models.ResNet18(classes=10, stem="cifar"), pictures),
}
GOALS = {"resnet18": 7.0, "centred": 1.0, "looking": 1.0}  # of the steady ratio on a GPU; 10 elsewhere


# ---------------------------------------------------------------- one architecture


class BareLoop:
    """FedAvg as one would write it by hand."""

    def __init__(self, module, x, y, clients, steps, device):
        self.module, self.x, self.y = module.to(device), x.to(device), y.to(device)
        self.clients, self.steps, self.device = clients, steps, device

    def round(self):
        start = {k: v.clone() for k, v in self.module.state_dict().items()}
        mean, each = (
            {k: torch.zeros_like(v, dtype=torch.float64) for k, v in start.items()},
            len(self.y) // self.clients,
        )
        self.module.train()
        trained = [p for p in self.module.parameters() if p.requires_grad]
        for c in range(self.clients):
            self.module.load_state_dict(start)
            x, y = self.x[c * each : (c + 1) * each], self.y[c * each : (c + 1) * each]
            optimizer, order = torch.optim.SGD(trained, lr=0.01), torch.randperm(each, device=self.device)
            for i in range(self.steps):
                rows = order[i * BATCH : (i + 1) * BATCH]
                optimizer.zero_grad()
                F.cross_entropy(self.module(x[rows]), y[rows]).backward()
                optimizer.step()
            for k, v in self.module.state_dict().items():
                mean[k] += v.double() / self.clients
        self.module.load_state_dict({k: v.to(start[k].dtype) for k, v in mean.items()})
        return float(next(self.module.parameters()).sum())  # waits for the device

    def seconds(self, rounds):
        return [self._timed() for _ in range(rounds)]

    def _timed(self):
        began = time.perf_counter()
        self.round()
        return time.perf_counter() - began


class Clock(ua.Callback):
    """When each round ended; with `settled`, the run ends so many rounds after the engine has settled, or when its time
    is up."""

    def __init__(self, settled=None, limit=None):
        self.began, self.ends, self.settled, self.limit, self.since = time.perf_counter(), [], settled, limit, None

    def on_round(self, run, line):
        self.ends.append(time.perf_counter() - self.began)
        if self.since is None and len(self.ends) > 3 and getattr(run.engine, "settled", True):
            self.since = len(self.ends)
        late = self.limit is not None and self.ends[-1] > self.limit
        return late or (self.settled is not None and self.since and len(self.ends) >= self.since + self.settled)

    def steady(self):
        return statistics.median(np.diff(self.ends[self.since :] if self.since else self.ends[-10:]))


def simulated(build, data, args, rounds, clock, **options):
    x, y = data(args.clients * args.steps * BATCH)
    fed = ua.Federation(ua.data.Columns(x, y, np.arange(args.clients + 1) * args.steps * BATCH))
    torch.manual_seed(0)
    precision = "tf32" if args.device == "cuda" else "highest"
    clock.began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ua.simulate(
            build(), fed, ua.FedAvg(), rounds=rounds, callbacks=[clock], device=args.device, precision=precision,
            local=ua.LocalTraining(steps=args.steps, batch_size=BATCH, lr=0.01), evaluate_clients="none", **options,
        )  # fmt: skip


def repeats(build, data, args):
    """Whether two runs with deterministic=True have the same bits."""
    vectors = [simulated(build, data, args, 2, Clock(), deterministic=True).server.w for _ in range(2)]
    return bool(torch.equal(*vectors))


def one(name, args):
    """Measure one architecture in this process; returns what is found."""
    build, data = MODELS[name]
    began, cuda = time.perf_counter(), args.device == "cuda"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = cuda
    torch.ones(1, device=args.device)
    cold = Clock()
    run = simulated(build, data, args, args.rounds, cold)
    found = {"name": name, "device": args.device, "engine": run.engine.name, "reason": run.reason}
    found |= {"first": cold.ends[0], "thirty": cold.ends[-1], "notes": run.notes}
    torch.manual_seed(0)
    loop = BareLoop(build(), *data(args.clients * args.steps * BATCH), args.clients, args.steps, args.device)
    first, *others = loop.seconds(4 if cuda else 2)
    bare = statistics.median(others)
    found |= {"bare_first": first, "bare_thirty": first + (args.rounds - 1) * bare}
    left = args.each - (time.perf_counter() - began)
    clock = Clock(settled=args.settled, limit=max(1.0, left))
    long = simulated(build, data, args, 1_000_000, clock, evaluate_every=1000)
    bare = statistics.median([*others, *loop.seconds(2)])  # before and after ours
    found |= {
        "bare": bare,
        "steady": clock.steady(),
        "ratio": bare / clock.steady(),
        "settled": clock.since is not None,
    }
    steps = [step for kept in getattr(long.engine, "steps", {}).values() for step in kept]
    found |= {"modes": sorted({step.mode for step in steps}), "long_notes": long.notes}
    if args.repeat:
        found["repeats"] = repeats(build, data, args)
    return found


# ---------------------------------------------------------------- all of them


def child(name, args):
    """Measure one architecture in a process of its own, with cold caches; None where it did not end in time."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {n: str(Path(folder, n.lower())) for n in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
        more = ["--repeat"] if args.repeat else []
        for option in ("device", "each", "clients", "steps", "rounds", "settled"):
            more += [f"--{option}", str(getattr(args, option))]
        command = [sys.executable, __file__, "--one", name, *more]
        environment = {**os.environ, **caches, "UNALIKE_CACHE": folder}
        try:
            done = subprocess.run(command, env=environment, timeout=3 * args.each, capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            return {"name": name, "error": f"did not end within {3 * args.each} s"}
    if done.returncode:
        return {"name": name, "error": done.stderr.strip().splitlines()[-1:]}
    return json.loads(done.stdout.splitlines()[-1])


def line(found):
    if "error" in found:
        return f"{found['name']:<14}FAILED: {found['error']}"
    numbers = f"{found['first']:>8.2f}{found['thirty']:>9.2f}{found['bare_thirty']:>9.2f}"
    still = " " if found["settled"] else "+"
    numbers += f"{1000 * found['steady']:>10.2f}{1000 * found['bare']:>10.1f}{found['ratio']:>8.2f}x{still}"
    return f"{found['name']:<14}{found['engine']:<12}{numbers}  {','.join(found['modes'])}"


def passed(found):
    """Whether an architecture reaches the goals of a GPU; elsewhere, whether it ran."""
    if "error" in found or found["device"] != "cuda":
        return "error" not in found
    quick = found["thirty"] <= found["bare_thirty"]
    return quick and found["first"] <= 5 and found["ratio"] >= GOALS.get(found["name"], 10.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of names of architectures; all if none is given")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds for all; the others are left out")
    parser.add_argument("--each", type=float, default=60.0, help="seconds after which an architecture's run is ended")
    parser.add_argument("--out", help="a file for the results, a line an architecture")
    for name, full in FULL.items():
        parser.add_argument(f"--{name}", type=int, help=f"[{full} on a GPU, {SMALL[name]} on a CPU]")
    parser.add_argument(
        "--settled", type=int, default=10, help="rounds that are timed when nothing is compiled any more"
    )
    parser.add_argument("--repeat", action="store_true", help="try whether deterministic=True repeats bit for bit")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    for name, value in (FULL if args.device == "cuda" else SMALL).items():
        setattr(args, name, getattr(args, name) or value)
    if args.one:
        print(json.dumps(one(args.one, args)))
        return 0
    usual = [name for name in MODELS if args.device == "cuda" or name != "resnet18"]  # that takes minutes on a CPU
    names = [name for name in MODELS if any(part in name for part in args.names)] if args.names else usual
    print(f"unalike {ua.__version__}, torch {torch.__version__}, Python {platform.python_version()}, {args.device}")
    print(f"{'':<14}{'engine':<12}{'first s':>8}{'30, s':>9}{'bare 30':>9}{'steady ms':>10}{'bare ms':>10}{'ratio':>9}")
    began, missed = time.perf_counter(), []
    for name in names:
        if time.perf_counter() - began > args.limit - args.each:
            print(f"{name:<14}left out: the time is up", flush=True)
            missed.append(name)
            continue
        found = child(name, args)
        missed += [] if passed(found) else [name]
        if args.out:
            with open(args.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
        print(line(found), flush=True)
    print("every goal is reached" if not missed else f"NOT reached: {', '.join(missed)}")
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
