"""What vertical learning costs: matching ids, an epoch of protected regression, and the same on phe where it is
installed.

    python benchmarks/vertical.py [psi paillier ckks] [--whole]

psi       two processes with 100,000 ids each, half of them common, over a pipe. Goal: at most 10 s wall. paillier  an
epoch of logistic regression on 24,000 rows, 12 columns at the host, batches of 1,000, keys of 2,048 bits, guest and
          host one after another in one process; and encryption alone, by the key's owner. Goals: 10 and 40 times phe.
ckks      the same epoch with CKKS, in batches that fill a ciphertext.

phe is GPL and no dependency: install it by hand (`pip install phe`) to see the ratio. Its epoch is measured on 1,000
rows and multiplied, as it is the same for every row; --whole measures all 24,000 (six minutes). Rows are made up: how
long an epoch takes does not depend on what they say. Seconds are those of one core; run it on a quiet machine.
"""

import argparse
import multiprocessing
import sys
import time

import numpy as np
import torch

from unalike import vertical as v
from unalike.crypto import paillier
from unalike.messages import wire
from unalike.vertical import ciphers
from unalike.vertical.align import align
from unalike.vertical.node import Node
from unalike.vertical.run import Settings, simulated
from unalike.vertical.tables import Table

IDS, ROWS, COLUMNS, BATCH, BITS = 100_000, 24_000, 12, 1_000, 2048
GOALS = {"psi": 10.0, "epoch": 10.0, "encryption": 40.0}


class PipeLink:
    """A host in another process, over a pipe."""

    name = "host"

    def __init__(self, pipe):
        self.pipe = pipe

    def send(self, header, tensors):
        self.pipe.send_bytes(wire.encode(header, tensors))

    def receive(self):
        return wire.decode(self.pipe.recv_bytes())


def table(name, first):
    ids = [f"person {k}" for k in range(first, first + IDS)]
    return Table(name, ids, torch.zeros(IDS, 1, dtype=torch.float64))


def host(pipe):
    """Answer as a host until the guest has gone."""
    torch.set_num_threads(1)
    node = Node(table("host", IDS // 2))
    pipe.send_bytes(b"ready")
    while True:
        try:
            pipe.send_bytes(node.answer(pipe.recv_bytes()))
        except EOFError:
            return


def psi():
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=host, args=(there,), daemon=True)
    process.start()
    there.close()
    here.recv_bytes()
    guest = Node(table("guest", 0))
    began = time.perf_counter()
    matched = align(guest, [PipeLink(here)])
    seconds = time.perf_counter() - began
    here.close()
    process.join()
    assert matched == {"host": IDS // 2}
    print(f"psi: {IDS:,} ids each, two processes: {seconds:.1f} s wall (goal {GOALS['psi']:g})")
    return seconds <= GOALS["psi"]


def epoch(cipher, batch=BATCH):
    """Return the seconds of one epoch, guest and host in one process."""
    draw = np.random.default_rng(0)
    x = {"guest": draw.normal(size=(ROWS, 11)), "host": draw.normal(size=(ROWS, COLUMNS))}
    parties = v.Parties.from_arrays(x, (draw.random(ROWS) < 0.5).astype(int))
    session = simulated(parties, v.SealedLogistic(cipher=cipher, bits=BITS), Settings(batch_size=batch))
    session.set_up()
    if cipher == "paillier":
        session.me.scheme.key.noise()  # the table of powers, made once a run
    began = time.process_time()
    session.epoch(1)
    return time.process_time() - began


def per_second(function, seconds=3.0):
    """Return how often a function runs in a second of one core."""
    count, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        function(count)
        count += 1
    return count / (time.process_time() - began)


def phe_epoch(phe, rows):
    """Return the seconds that phe needs for a whole epoch of the same protocol, from so many rows."""
    public, private = phe.generate_paillier_keypair(n_length=BITS)
    draw = np.random.default_rng(0)
    residues = [paillier.fixed(r, ciphers.RESIDUE_BITS) for r in draw.normal(size=rows)]
    columns = np.round(draw.normal(size=(COLUMNS, rows)) * 2**ciphers.COLUMN_BITS).astype(int).tolist()
    began = time.process_time()
    for first in range(0, rows, BATCH):
        sealed = [public.encrypt(r) for r in residues[first : first + BATCH]]
        for column in columns:
            total = sealed[0] * column[first]
            for cipher, number in zip(sealed[1:], column[first + 1 :], strict=False):
                total = total + cipher * number
            private.decrypt(total + 12345)
    return (time.process_time() - began) * ROWS / rows


def protected(whole):
    own, rate = epoch("paillier"), per_second(paillier.generate(BITS).encrypt)
    print(f"paillier: an epoch of {ROWS:,} × {COLUMNS}: {own:.1f} s of one core; encryption {rate:,.0f} per second")
    try:
        import phe
    except ImportError:
        print("phe is not installed: no ratio")
        return True
    rows = ROWS if whole else BATCH
    theirs = phe_epoch(phe, rows)
    their_rate = per_second(phe.generate_paillier_keypair(n_length=BITS)[0].encrypt)
    how = "measured" if whole else f"from {rows:,} rows"
    print(f"phe: {theirs:.0f} s ({how}), encryption {their_rate:,.0f} per second")
    ratios = {"epoch": theirs / own, "encryption": rate / their_rate}
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.1f} times phe's speed (goal {GOALS[name]:g})")
    return all(ratio >= GOALS[name] for name, ratio in ratios.items())


def ckks():
    print(f"ckks: the same epoch in batches of {ciphers.SLOTS}: {epoch('ckks', ciphers.SLOTS):.1f} s of one core")
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="psi, paillier, ckks; all by default")
    parser.add_argument("--whole", action="store_true", help="phe on all rows")
    args = parser.parse_args()
    torch.set_num_threads(1)
    parts = {"psi": psi, "paillier": lambda: protected(args.whole), "ckks": ckks}
    reached = [parts[name]() for name in args.parts or parts]
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
