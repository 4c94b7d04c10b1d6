"""Ten seeds of four small methods on digits beside three seeds made one run after another.

    python benchmarks/seeds.py [--rounds 30] [--most 2.0]

Both are `unalike compare` with its reference lines, each in a process of its own; CPU seconds and wall seconds. Fails
if ten seeds in stacks take more than `most` times the wall seconds of three seeds without.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time

METHODS = ("fedavg", "fedprox", "scaffold", "feddyn")
PLAIN = "from unalike.comparison import stacks; stacks.fits = lambda *_: False; "
START = "import sys; from unalike.cli import main; sys.exit(main())"


def measured(seeds, rounds, stacked):
    """(wall seconds, CPU seconds) of a comparison."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["compare", *METHODS, "--data", "digits", "--partition", "dirichlet:0.3", "--clients", "50"]
        words += ["--rounds", str(rounds), "--seeds", str(seeds), "--folder", folder + "/out", "-q"]
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", ("" if stacked else PLAIN) + START, *words], capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 3):
        raise SystemExit(done.stderr.decode())
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--most", type=float, default=2.0)
    args = parser.parse_args()
    found = {}
    for name, seeds, stacked in (("before", 3, False), ("now", 10, True)):
        found[name] = measured(seeds, args.rounds, stacked)
        print(f"{seeds:>3} seeds, {'in stacks' if stacked else 'one by one':<11} {found[name][0]:7.1f} s, "
              f"{found[name][1]:7.1f} s of CPU", flush=True)  # fmt: skip
    ratio = found["now"][0] / found["before"][0]
    print(f"ratio {ratio:.2f}, of CPU {found['now'][1] / found['before'][1]:.2f}; must be at most {args.most:g}")
    return int(ratio > args.most)


if __name__ == "__main__":
    raise SystemExit(main())
