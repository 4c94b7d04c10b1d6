"""Seconds a round of FedMD beside a bare hand-written PyTorch loop: 20 clients, two CNNs, 5,000 public pictures.

    python benchmarks/fedmd.py [--device cuda] [--precision highest tf32 bf16] [--rounds 5] [--goal 5]
    python benchmarks/fedmd.py --device cpu --clients 4 --public 256 --own 128

Ten clients have McMahan's CNN and ten FedDC's, both on 3×32×32 random pictures. A round is: everybody's logits on the
public set, their mean, one digest epoch (Adam) and one epoch on one's own data (SGD), batches of 128. The loop is what
one writes by hand: one client after another, plain modules and torch.optim, data on the device. Blocks of rounds
alternate; the ratio is that of the medians. Before that both train a round from the same weights in the same order of
samples, and the consensus of the resulting models must be the same. Needs torch, numpy and safetensors only.
"""

import argparse
import contextlib
import copy
import platform
import statistics
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import unalike as ua

KINDS = {"fedavg": lambda: ua.models.cnn_fedavg(3, 32), "feddc": lambda: ua.models.cnn_feddc()}
BATCH, DIGEST_LR, LR = 128, 1e-3, 0.05


def pictures(n, seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, 32, 32, generator=g), torch.randint(0, 10, (n,), generator=g)


class BareLoop:
    """FedMD as one would write it by hand."""

    def __init__(self, models, public, own, args, precision, shuffle=True):
        """models: one module a client; own: (x, y) of each."""
        self.device, self.precision, self.shuffle = torch.device(args.device), precision, shuffle
        self.models = [m.to(self.device) for m in models]
        self.public = public[0].to(self.device)
        self.own = [(x.to(self.device), y.to(self.device)) for x, y in own]

    def products(self):
        """The same precision as ours."""
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.precision == "tf32"
        bf16 = self.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16) if bf16 else contextlib.nullcontext()

    def batches(self, n):
        order = torch.randperm(n, device=self.device) if self.shuffle else torch.arange(n, device=self.device)
        return order.split(BATCH)

    def consensus(self):
        total = 0
        with torch.no_grad(), self.products():
            for model in self.models:
                model.eval()
                total = total + torch.cat([model(x) for x in self.public.split(BATCH)]).float()
        return total / len(self.models)

    def round(self):
        target = self.consensus()
        order = self.batches(len(self.public))
        for model, (x, y) in zip(self.models, self.own, strict=True):
            model.train()
            digest, revisit = (
                torch.optim.Adam(model.parameters(), lr=DIGEST_LR),
                torch.optim.SGD(model.parameters(), lr=LR),
            )
            for rows in order:
                digest.zero_grad(set_to_none=True)
                with self.products():
                    loss = F.mse_loss(model(self.public[rows]).float(), target[rows])
                loss.backward()
                digest.step()
            for rows in self.batches(len(x)):
                revisit.zero_grad(set_to_none=True)
                with self.products():
                    loss = F.cross_entropy(model(x[rows]).float(), y[rows])
                loss.backward()
                revisit.step()

    def timed(self, rounds):
        seconds = []
        for _ in range(rounds):
            self.wait()
            began = time.perf_counter()
            self.round()
            self.wait()
            seconds.append(time.perf_counter() - began)
        return seconds

    def wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def ours(modules, fed, args, precision, rounds, kinds, **options):
    method = ua.FedMD(batch=BATCH, lr=DIGEST_LR, distance="squared", warm_public=0, warm_own=0)
    local = ua.LocalTraining(epochs=1, batch_size=BATCH, lr=LR, shuffle=options.pop("shuffle", True))
    return ua.simulate(
        modules, fed, method, architecture=kinds, rounds=rounds, local=local, engine="batched", device=args.device,
        precision=precision, evaluate_every=rounds, compile=args.device == "cuda", **options,
    )  # fmt: skip


def same(modules, fed, public, own, kinds, args):
    """Train a round both ways in stored order; return the largest difference of the consensus, and its size."""
    loop = BareLoop([copy.deepcopy(modules[k]) for k in kinds], public, own, args, "highest", shuffle=False)
    begun = loop.consensus()
    loop.round()
    run = ours(modules, fed, args, "highest", 1, kinds, shuffle=False)
    theirs = loop.consensus()
    for k, model in enumerate(loop.models):
        nn.utils.vector_to_parameters(run.clients[k]["theta"].to(loop.device), model.parameters())
    return (loop.consensus() - theirs).abs().max().item(), (theirs - begun).abs().max().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", nargs="+", default=["highest"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--public", type=int, default=5000)
    parser.add_argument("--own", type=int, default=500, help="training samples a client")
    parser.add_argument("--goal", type=float, help="exit with 1 where no precision is so many times faster")
    args = parser.parse_args()
    device = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or platform.machine()
    print(f"unalike {ua.__version__}, torch {torch.__version__}, Python {platform.python_version()}; {device}")
    torch.manual_seed(0)
    modules = {name: ua.models.keep_start(build()) for name, build in KINDS.items()}
    kinds = [list(KINDS)[2 * k // args.clients] for k in range(args.clients)]
    public, everybody = pictures(args.public, 1), pictures(args.clients * args.own, 2)
    own = list(zip(everybody[0].split(args.own), everybody[1].split(args.own), strict=True))
    fed = ua.Federation(ua.data.Columns(*everybody, np.arange(args.clients + 1) * args.own), public=public)
    gap, moved = same(modules, fed, public, own, kinds, args)
    print(f"consensus after a round: {gap:.1e} apart, while the round moved it by {moved:.1e}", flush=True)
    if not gap <= 1e-2 * moved:
        raise SystemExit("the two do not compute the same")
    best = 0.0
    for precision in args.precision:
        loop = BareLoop([copy.deepcopy(modules[k]) for k in kinds], public, own, args, precision)
        loop.timed(1)
        bare, fast = [], []
        for _ in range(2):
            bare += loop.timed(args.rounds)
            run = ours(modules, fed, args, precision, args.rounds + 2, kinds)
            fast += [line["seconds"] for line in run.history[2:]]
        slow, quick = statistics.median(bare), statistics.median(fast)
        best = max(best, slow / quick)
        print(
            f"{precision:<8} loop {1000 * slow:9.1f} ms a round, ours {1000 * quick:9.1f}: {slow / quick:.2f}x",
            flush=True,
        )
    if args.goal:
        raise SystemExit(0 if best >= args.goal else f"the goal of {args.goal:g}x is not reached")


if __name__ == "__main__":
    main()
