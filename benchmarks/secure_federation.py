"""Eight clients in processes of their own, on digits: seconds a round in the open and with a secure sum, by stage.

    python benchmarks/secure_federation.py                # about two minutes on two quiet cores
    python benchmarks/secure_federation.py --work 5       # local work takes 5 s a round
    python benchmarks/secure_federation.py --agree        # clients agree on who came: one exchange more
    python benchmarks/secure_federation.py --channel quantise:8:0.1,paillier    # or ckks:symmetric, in place of it

The goals, on two quiet cores: a round with the secure sum takes at most 4 times an open one; with 5 s of local work at
most 1.5 times (encryption is held to the same). The load of the machine is printed: under load the figures mean
nothing.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import unalike as ua
from unalike.channel.stages import Encrypted
from unalike.engines.encrypted import EncryptedSums
from unalike.engines.secure import MaskedSums
from unalike.network import one_machine

CLIENTS, ROUNDS = 8, 6
STAGES = {"_group": "keys", "_deal": "shares", "_mask": "work and masked answers", "_open": "opening"}
ENCRYPTED = {"_group": "keys", "_added": "work and encrypted answers", "_votes": "votes", "_opened": "opening"}
SLOW = '''
import time
from torch import nn

class Net(nn.Sequential):
    """A network whose training on a client's own samples takes its time; a stand-in has too few of them."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 1333), nn.ReLU(), nn.Linear(1333, 10))

    def forward(self, x):
        if self.training and len(x) > 20:
            time.sleep({seconds})
        return super().forward(x)
'''


class Clock(ua.Callback):
    """When each round ended."""

    def __init__(self):
        self.moments = [time.perf_counter()]

    def on_round(self, run, line):
        self.moments.append(time.perf_counter())


def tables(channel: str, work: float, folder: Path) -> dict:
    """The settings of a run: a model of 99,985 numbers."""
    model = {"name": "mlp", "hidden": [1333]}
    if work:
        (folder / "slow.py").write_text(SLOW.replace("{seconds}", str(work)))
        model = {"file": f"{folder / 'slow.py'}:Net"}
    return {
        "model": model, "method": {"name": "fedavg"},
        "local": {"steps": 1, "batch_size": 10_000} if work else {"epochs": 1, "batch_size": 50},
        "run": {"rounds": ROUNDS, "evaluate_clients": "none", "channel": channel},
    }  # fmt: skip


def timed(spent: dict[str, list[float]], sums: type, stages: dict[str, str]) -> None:
    """Let every stage of a sum write down its seconds."""
    for name in stages:
        inner = getattr(sums, name)

        def outer(*args, inner=inner, name=name, **options):
            began = time.perf_counter()
            try:
                return inner(*args, **options)
            finally:
                spent.setdefault(name, []).append(time.perf_counter() - began)

        setattr(sums, name, outer)


def seconds(channel: str, work: float, data: ua.Federation) -> list[float]:
    """Return the seconds of each round but the first."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        one_machine.run(tables(channel, work, Path(folder)), data, callbacks=[clock])
    return [b - a for a, b in zip(clock.moments[1:], clock.moments[2:], strict=False)]


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--work", type=float, default=0.0, help="seconds that local work takes beside training")
    flags.add_argument("--agree", action="store_true", help="clients agree on who came")
    flags.add_argument("--channel", help="another channel in place of secure-sum")
    args = flags.parse_args()
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    data = ua.load("digits").split(ua.partition.Dirichlet(0.5), clients=CLIENTS, seed=0, test=0.2)
    spent: dict[str, list[float]] = {}
    channel = args.channel or f"secure-sum:agree={str(args.agree).lower()}"
    encrypts = any(isinstance(stage, Encrypted) for stage in ua.channel.parse(channel))
    stages = ENCRYPTED if encrypts else STAGES
    timed(spent, EncryptedSums if encrypts else MaskedSums, stages)
    found = {name: seconds(name, args.work, data) for name in ("none", channel)}
    for name, each in found.items():
        listed = ", ".join(f"{s:.2f}" for s in each)
        print(f"{name:<24} {statistics.median(each):6.2f} s a round ({listed})", flush=True)
    for name, words in stages.items():
        if name in spent:
            print(f"  {words:<26} {statistics.median(spent[name]):6.3f} s")
    ratio = statistics.median(found[channel]) / statistics.median(found["none"])
    goal = 1.5 if args.work else 4.0
    print(f"load of the machine after: {os.getloadavg()[0]:.1f}")
    print(f"{ratio:.2f} times an open round; at most {goal:g}: {'reached' if ratio <= goal else 'NOT reached'}")
    return int(ratio > goal)


if __name__ == "__main__":
    raise SystemExit(main())
