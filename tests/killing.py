"""What tests/run/test_kill.py runs in processes of its own.

`python tests/killing.py run FOLDER` is a plain run. `random FOLDER` and `steps FOLDER` fork: a fork of a process
with one thread is as good as a new interpreter and saves importing torch each time. Each prints one line of JSON.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import small
import torch

import unalike as ua
from unalike import files
from unalike.run import folder as runs

ROUNDS = 150


def go(folder, rounds=ROUNDS, **changes):
    return small.run(ua.Scaffold(), rounds=rounds, folder=folder, resume=True, checkpoint_every=2, **changes)


def forked(work):
    """The child that does it; its exit code is 0 only if nothing went wrong."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    return child


def code_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def saved(folder):
    """The round of the checkpoint on disk; -1 before the first."""
    file = folder / "checkpoint/manifest.json"
    return json.loads(file.read_text())["round"] if file.exists() else -1


def at_random(folder):
    """Ten kills at random moments. How far a child gets before its death is counted in checkpoints, and only the rest
    in time: a slow machine may spend any share of its time on setting the run up."""
    began = time.perf_counter()
    assert code_of(forked(lambda: go(folder / "whole"))) == 0
    round_s = (time.perf_counter() - began) / ROUNDS
    draw, kills = random.Random(2024), []
    for _ in range(10):
        before = saved(folder / "killed")
        child = forked(lambda: go(folder / "killed"))
        further, until = draw.randrange(13), time.monotonic() + 60
        while saved(folder / "killed") < before + further and time.monotonic() < until:
            time.sleep(round_s / 10)
        time.sleep(draw.uniform(0, 3) * round_s)
        os.kill(child, signal.SIGKILL)
        kills.append((code_of(child), saved(folder / "killed")))
    return {"kills": kills, "last": code_of(forked(lambda: go(folder / "killed")))}


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def fatal(function, n):
    """The n-th call is never made: the process dies instead."""
    left = n

    def call(*args, **kwargs):
        nonlocal left
        left -= 1
        if left == 0:
            die()
        return function(*args, **kwargs)

    return call


class Half:
    """A file that gets half of what is written to it."""

    def __init__(self, file):
        self.file = file

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, data):
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        die()

    def __getattr__(self, name):
        return getattr(self.file, name)


def tearing(n):
    """`open`, of which the n-th file tears."""
    left = n

    def call(*args, **kwargs):
        nonlocal left
        left -= 1
        file = open(*args, **kwargs)  # noqa: SIM115 (the run closes it)
        return Half(file) if left == 0 else file

    return call


FAULTS = {
    "before replace": lambda n: setattr(os, "replace", fatal(os.replace, n)),
    "half written": lambda n: [setattr(place, "open", call) for call in [tearing(n)] for place in (runs, files)],
    "before unlink": lambda n: setattr(Path, "unlink", fatal(Path.unlink, n)),
}


def at_every_step(folder):
    return {engine: steps_of(folder / engine, engine) for engine in ("sequential", "loopback")}


def steps_of(folder, engine):
    """Kill at the first, second, ... use of the disk until a run gets through; go on after each and compare."""
    settings = {"rounds": 2, "clients_per_round": 2, "engine": engine}
    smooth = small.run(ua.Scaffold(), **settings)
    settings["keep_checkpoints"] = 1  # so that one is removed
    steps = {}
    for fault, arm in FAULTS.items():
        n, killed = 0, True
        while killed:
            n += 1
            where = folder / f"{fault} {n}"

            def doomed(arm=arm, n=n, where=where):
                arm(n)
                go(where, **settings)

            def mend(where=where):
                small.assert_same(smooth, go(where, **settings))

            code = code_of(forked(doomed))
            assert code in (0, -signal.SIGKILL), f"{fault} {n}"
            killed = code != 0
            assert code_of(forked(mend)) == 0, f"killed {fault} {n}"
        steps[fault] = n - 1
    return steps


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert not Path("/proc/self/task").exists() or len(list(Path("/proc/self/task").iterdir())) == 1
    what, where = sys.argv[1], Path(sys.argv[2])
    work = {"run": lambda folder: go(folder) and None, "random": at_random, "steps": at_every_step}[what]
    print(json.dumps(work(where)))
