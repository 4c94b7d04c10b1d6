"""Several workers of one thread each, one client at a time each: the fast way on a CPU for all but tiny models.

The workers are Python threads, each with a module of its own. PyTorch lets go of the interpreter's lock inside its
operations, so for models of some size threads are as fast as processes (`docs/engines.md` has the measurement), and
nothing needs to be copied, pickled or started. PyTorch itself is held to one thread meanwhile: its own threads and
ours would fight over the cores.
"""

from __future__ import annotations

import os
import queue
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from unalike.client import Job, OneClient
from unalike.contract.call import Call, Outcome
from unalike.engines.engine import Engine
from unalike.engines.options import WorkerCount
from unalike.engines.sequential import one
from unalike.nn.numerics import one_thread


class Workers(Engine):
    name = "workers"

    def __init__(self, job: Job, workers: WorkerCount = None):
        super().__init__(job)
        self.workers = workers or available_cores()
        self._idle: queue.SimpleQueue[OneClient] = queue.SimpleQueue()
        for _ in range(self.workers):
            self._idle.put(OneClient(job))
        self._pool = ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(1,))

    def _one(self, call: Call, position: int, client: int) -> Outcome:
        one_client = self._idle.get()
        try:
            return one(self.job, one_client, call, position, client)
        finally:
            self._idle.put(one_client)

    def call(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        """Replies come back in client order; a few are in flight at any time, so memory does not grow."""
        waiting: deque[Future[Outcome]] = deque()
        try:
            with one_thread():
                for position, client in enumerate(ids):
                    waiting.append(self._pool.submit(self._one, call, position, int(client)))
                    if len(waiting) > 2 * self.workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
