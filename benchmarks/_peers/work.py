"""The work that every peer is given, and the clock that it is timed with. Needs numpy alone: every environment has it.

A peer's script is started with two folders, the work and where its weights go. It asks `next()` before every round and
calls `done(weights)` after it; benchmarks/peers.py says at the other end of its standard input when a round may begin.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np


class Work:
    """Data, initial weights, who takes part in which round, and how clients train: the same for every peer."""

    def __init__(self, folder):
        self.folder = Path(folder)
        for name, value in json.loads((self.folder / "settings.json").read_text()).items():
            setattr(self, name, value)  # workload, rounds, batch, epochs, lr, shuffle, compare, options
        self.x, self.y, self.offsets, self.cohorts = (
            np.load(self.folder / f"{name}.npy") for name in ("x", "y", "offsets", "cohorts")
        )
        self.initial = dict(np.load(self.folder / "initial.npz"))

    @property
    def clients(self):
        return len(self.offsets) - 1

    def client(self, c):
        """One client's samples."""
        rows = slice(self.offsets[c], self.offsets[c + 1])
        return self.x[rows], self.y[rows]


class Clock:
    """Times rounds when told to. What a framework prints goes to the log, not into the conversation."""

    def __init__(self, work, out):
        self.work, self.out, self.round, self.began = work, Path(out), 0, None
        self.orders, self.answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)

    def start(self):
        """Before the framework is set up: what it does until its first round ends counts as the first round."""
        self.answers.write("ready\n")
        self.answers.flush()
        return self._wait()

    def next(self):
        """Wait for the word to begin a round; the number of threads for it."""
        return self._wait() if self.began is None else self.threads

    def _wait(self):
        order = self.orders.readline()
        if not order:
            os._exit(1)  # the other side is gone; frameworks with daemons would go on waiting
        self.threads, self.began = int(order), time.perf_counter()
        return self.threads

    def done(self, weights):
        """A round has ended. weights: a function without arguments that gives {name: array}."""
        seconds, self.began = time.perf_counter() - self.began, None
        self.round += 1
        if self.round == self.work.compare:
            np.savez(self.out, **weights())
        self.answers.write(f"{seconds}\n")
        self.answers.flush()

    @property
    def more(self):
        return self.round < self.work.rounds


def begin():
    """The work and the clock that the command line names."""
    work = Work(sys.argv[1])
    return work, Clock(work, sys.argv[2])
