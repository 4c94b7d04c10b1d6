"""A federation besieged: thousands of structured changes of valid messages, at the server's end and at a client's.

    python benchmarks/siege.py                   10,000 changes, some twenty minutes on two cores
    python benchmarks/siege.py --shots 500       fewer
    python benchmarks/siege.py --seed 7          others

At the server's end a run of each scene (methods, channels, sealed rows, sums for preparing) is made with changed
answers in every exchange, and then again with what became of these: refused answers are lost, those that were taken
come as they were read. Both runs must be the same to the bit, so that a refused answer leaves no trace and a taken one
counts as what it says, once, for its client alone. At the client's end a changed request goes before every valid one;
whatever it was, the valid one must be answered as it would have been, or refused with a reason.

Printed: how many were refused, harmless (they say the same), or lies (another proper answer, which costs its own
client), and whatever crashed, hung or changed a sum: nothing may.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _siege.field import SCENES, client_siege, server_siege

ROUNDS = 24  # of a run with a change in every exchange
# kinds of messages whose answers are changed, the scenes, and the share of all shots
SERVER = {
    ("request",): ([*SCENES], 0.45),
    ("evaluate",): (["fedavg", "scaffold"], 0.12),
    ("wrap",): (["sealed"], 0.05),
    ("hello",): (["fedavg", "sealed"], 0.06),
    ("plan",): (["fedavg", "quantised"], 0.03),
    ("prepare",): (["prepared"], 0.05),
}
CLIENT = 0.24  # of all shots


class Count:
    """What became of all shots, and the faults."""

    def __init__(self):
        self.fates: Counter = Counter()
        self.faults: list[str] = []
        self.reasons: Counter = Counter()

    def add(self, where, shots, faults):
        self.fates.update(f"{where}: {shot.fate or 'not settled'}" for shot in shots)
        self.reasons.update(shot.change for shot in shots if shot.fate == "refused")
        self.faults += [f"{where}: {fault}" for fault in faults if fault]

    @property
    def shots(self):
        return sum(self.fates.values())


def besiege(shots: int, seed: int, scenes=None, rounds: int = ROUNDS) -> Count:
    """Make about so many changes; scenes: these only."""
    found = Count()
    for kinds, (some, share) in SERVER.items():
        some = [scene for scene in some if scenes is None or scene in scenes]
        if not some:
            continue
        once = kinds[0] in ("hello", "plan", "prepare")  # messages of a start, of which a run has one
        for number, scene in enumerate(some):
            quota, done, k = shots * share / len(some), 0, 0
            while done < quota:
                k += 1
                begun = seed * 1_000_003 + number * 10_007 + k
                few = min(int(quota - done) + 1, 2 if kinds == ("prepare",) else 1 << 30)  # enough must be left
                one, wrong = server_siege(scene, kinds, 1 if once else min(rounds, few), begun, few)
                found.add(f"server, {kinds[0]}", one, [wrong and f"{scene}, seed {begun}: {wrong}"])
                done += max(1, len(one))
    some = [scene for scene in SCENES if scenes is None or scene in scenes]
    for number, scene in enumerate(some):
        one, wrong = client_siege(scene, int(shots * CLIENT / len(some)) + 1, seed * 1_000_003 + number)
        found.add("client", one, [f"{scene}: {fault}" for fault in wrong])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shots", type=int, default=10_000, help="changes of messages [10000]")
    parser.add_argument("--seed", type=int, default=0, help="of the changes [0]")
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    found = besiege(args.shots, args.seed)
    for fate, count in sorted(found.fates.items()):
        print(f"{fate:<28}{count:>8,}")
    print(f"{found.shots:,} changes in {time.perf_counter() - began:.0f} s; faults: {len(found.faults)}")
    for fault in found.faults[:50]:
        print("FAULT", fault[:400])
    return 1 if found.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
