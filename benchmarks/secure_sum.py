"""Secure sums, one role after the other in one process: seconds of a client and of the server, and bytes.

    python benchmarks/secure_sum.py            # all rows: some five minutes on two quiet cores
    python benchmarks/secure_sum.py --small    # the first row and the schemes beside it
    python benchmarks/secure_sum.py --simulation [--device cuda]    # what a simulation pays for the codes of a sum

30 % of the clients are lost after their shares were dealt and before their vectors came: the dear case. One client is
timed whole, the others only deal and open. The server adds one vector as often as clients came; of the masks that it
takes off 400 are timed and multiplied, and of the secrets that it puts together 15. So these are parts of the protocol,
timed and added up; that the sums come out right is for tests.
CKKS and packed Paillier stand beside it: 10 clients, timed on some ciphertexts and multiplied.

Goals on two quiet cores: 1e6 numbers, 100 clients: client 0.2 s, server 3 s; 1e6 × 1,000 (100 neighbours, 38 open):
0.2, 40; 1e7 × 100 (62, 32): 1, 20. The load of the machine is printed: under load the figures mean nothing.

--simulation runs FedDC's CIFAR experiment on random pictures (797,962 parameters, 15 of 100 clients a round, 50 steps
of 50 each) with `secure-sum`, and takes the time inside the channel apart from the rest of the same round. Goal: 10 %.
"""

import argparse
import os
import random
import statistics
import time

import numpy as np

from unalike.crypto import batchcrypt, ckks, paillier, ring
from unalike.crypto.masks import add_masks, agreement, derived, public_of
from unalike.crypto.secure_sum import SEALED, Collector, Group, Member, RunKey
from unalike.crypto.shamir import BYTES

ROWS = [  # numbers, clients, neighbours, threshold, goal of a client, of the server
    (1_000_000, 100, 99, 67, 0.2, 3.0),
    (1_000_000, 1_000, 100, 38, 0.2, 40.0),
    (10_000_000, 100, 62, 32, 1.0, 20.0),
]
CODE_BITS, LOST = 8, 0.3
SIMULATED = 0.1  # share of a simulated round, at most


def clock(function, *args):
    """Return the seconds of a call, and what it gives."""
    began = time.process_time()
    out = function(*args)
    return time.process_time() - began, out


def setting(clients: int, degree: int, threshold: int) -> tuple[Group, dict[int, Member]]:
    chance = random.Random(0)
    keys = {c: RunKey(chance.randbytes(32)) for c in range(clients)}
    group = Group(b"benchmark", {c: key.public for c, key in keys.items()}, degree, threshold)
    return group, {c: Member(c, key, group) for c, key in keys.items()}


def measured(size: int, clients: int, degree: int, threshold: int) -> tuple[float, float, int]:
    """Return seconds of one client, seconds of the server, and bytes that a client sends."""
    group, members = setting(clients, degree, threshold)
    bits = CODE_BITS + ring.carry_bits(clients)
    server = Collector(group, b"request")
    dealing, dealt = clock(members[0].deal)
    server.take_dealt(0, dealt)
    for c in range(1, clients):
        server.take_dealt(c, members[c].deal())
    codes = np.random.default_rng(0).integers(-127, 128, size)

    def masked(c: int) -> np.ndarray:
        members[c].accept(server.delivery(c), server.present, b"request")
        words = ring.residues(codes, bits)
        members[c].mask([words])
        return ring.pack(ring.reduced(words, bits), bits)

    masking, packed = clock(masked, 0)
    came = range(round(clients * (1 - LOST)))
    unpacking, words = clock(ring.unpack, packed, size, bits)
    adding = 0.0
    for c in came:  # one real vector; the others' masks are only counted, which costs the server the same
        if c:
            members[c].accept(server.delivery(c), server.present, b"request")
            members[c]._masked = True
        seconds, _ = clock(server.take_masked, c, [words])
        adding += seconds + unpacking
    opening, _ = clock(members[0].open, came)
    taking = 0.0
    for c in came:
        taking += clock(server.take_opened, c, members[c].open(came))[0]
    there = {*came}
    lost = [c for c in range(clients) if c not in there]
    masks = len(came) + sum(len(there & {*group.lattice.of(c)}) for c in lost)
    sharing = sum(clock(server._secret, c, c in there)[0] for c in list(came)[:10] + lost[:5]) / 15 * clients
    total = np.zeros(size, dtype=ring.word(bits))
    some = min(masks, 400)
    removing = clock(add_masks, [total], [(bytes(16), True)] * some)[0] / some * masks
    public = public_of(bytes(31) + b"1")
    agreements = clock(lambda: [derived(agreement(bytes(31) + b"2", public), b"") for _ in range(100)])[0] / 100 * masks
    bytes_up = len(packed) + 64 + degree * (SEALED + BYTES)
    return dealing + masking + opening, adding + taking + sharing + removing + agreements, bytes_up


def of_ckks(size: int, symmetric: bool) -> tuple[float, float, float]:
    """Return seconds of encrypting the numbers, of adding 10 clients' and opening the sum, and bytes of a number."""
    keys, some = ckks.Keys(symmetric), 20 * ckks.SLOTS
    numbers = np.random.default_rng(0).normal(size=some)
    encrypting, ciphers = clock(ckks.encrypted, keys.context, numbers)
    adding, total = clock(ckks.added, keys.context, [ciphers] * 10)
    opening, _ = clock(keys.decrypted, total, some)
    return encrypting * size / some, (adding + opening) * size / some, sum(map(len, ciphers)) / some


def of_paillier(size: int) -> tuple[float, float, float]:
    """Return the same for packed Paillier with a key of 2048 bits."""
    key = paillier.generate(2048)
    packing = batchcrypt.Packing(CODE_BITS, 1024, key.bits)
    some = 40 * packing.slots
    codes = np.random.default_rng(0).integers(-127, 128, some)
    public = key.public
    public.encrypt(0)  # makes its table of powers
    encrypting, ciphers = clock(packing.encrypted, public, codes)
    adding, total = clock(packing.added, public, [ciphers] * 10)
    opening, _ = clock(packing.decrypted, key, total, some, 10)
    return encrypting * size / some, (adding + opening) * size / some, len(ciphers) * public.width / some


def simulation(device: str, rounds: int, clients: int) -> int:
    """Print the share of a round that a simulation spends on secure sums; return whether it is above the goal."""
    from channels import watched  # beside this file
    from engines import images

    import unalike as ua

    good, gpu = True, device == "cuda"
    x, y, offsets = images(100, 500, (3, 32, 32))
    fed = ua.Federation(ua.data.Columns(x, y, offsets))
    local = ua.LocalTraining(epochs=5, batch_size=50, lr=0.1, weight_decay=1e-3, clip_norm=10.0)
    print(f"FedDC, {clients} of 100 clients, {device}   channel ms   round ms   share   goal")
    for stages in ("secure-sum", "quantise:8:1.0,secure-sum"):
        with watched(device, warm=1) as shares:
            ua.simulate(
                ua.models.cnn_feddc(), fed, ua.FedDC(alpha=0.01), rounds=rounds + 1, clients_per_round=clients,
                device=device, local=local, channel=stages, callbacks=[shares],
                precision="tf32" if gpu else "highest", evaluate_every=10**6,
            )  # fmt: skip
        share, inside, whole = (statistics.median(one) for one in zip(*shares.shares, strict=True))
        good = good and share <= SIMULATED
        print(f"{stages:<34} {1e3 * inside:<12.1f} {1e3 * whole:<10.0f} {share:<7.1%} {SIMULATED:.0%}", flush=True)
    print(f"goal: {'reached' if good else 'NOT reached'}")
    return int(not good)


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--small", action="store_true", help="the first row only")
    flags.add_argument("--simulation", action="store_true", help="the share of a simulated round of FedDC's CNN")
    flags.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="of a simulation")
    flags.add_argument("--rounds", type=int, default=4, help="of a simulation, after the first")
    flags.add_argument("--clients", type=int, default=15, help="of a simulated round")
    args = flags.parse_args()
    if args.simulation:
        print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
        return simulation(args.device, args.rounds, args.clients)
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    print("numbers     clients  neighbours  threshold   client s    server s   bytes up   goals")
    good = True
    for size, clients, degree, threshold, most, most_server in ROWS[: 1 if args.small else None]:
        client, server, sent = measured(size, clients, degree, threshold)
        good = good and client <= most and server <= most_server
        line = f"{size:<11,} {clients:<8,} {degree:<11} {threshold:<11} {client:<11.2f} {server:<10.1f}"
        print(f"{line} {sent:<10,} {most:g}, {most_server:g}", flush=True)
    print("\n1e6 numbers, 10 clients   a client s   server s   bytes a number")
    for name, found in {
        "CKKS, public key": of_ckks(1_000_000, False), "CKKS, symmetric key": of_ckks(1_000_000, True),
        "packed Paillier-2048": of_paillier(1_000_000),
    }.items():  # fmt: skip
        print(f"{name:<25} {found[0]:<12.2f} {found[1]:<10.2f} {found[2]:.1f}", flush=True)
    client, server, sent = measured(1_000_000, 10, 9, 6)
    print(f"{'secure sum':<25} {client:<12.2f} {server:<10.2f} {sent / 1e6:.1f}")
    print(f"load of the machine after: {os.getloadavg()[0]:.1f}")
    print(f"goals: {'reached' if good else 'NOT reached'}")
    return int(not good)


if __name__ == "__main__":
    raise SystemExit(main())
