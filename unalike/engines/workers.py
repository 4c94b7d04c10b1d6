"""Several workers with one thread each, each running one client at a time: the fast way on a CPU for all but tiny
models.

The workers are Python threads, each with its own module. PyTorch releases the interpreter's lock inside its operations,
so for models of some size threads are as fast as processes (`docs/engines.md` has the measurement), and nothing needs
to be copied, pickled or started. Meanwhile PyTorch itself is limited to one thread: its threads and ours would compete
for the cores.
"""

from __future__ import annotations

import os
import queue
from collections import deque
from collections.abc import Callable, Iterator
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

    def _one(self, call: Call, position: int, client: int, send: Callable[[Outcome], None]) -> Outcome:
        one_client = self._idle.get()
        try:
            outcome = one(self.job, one_client, call, position, client)
        finally:
            self._idle.put(one_client)
        send(outcome)
        return outcome

    def call(self, call: Call, ids: np.ndarray) -> Iterator[Outcome]:
        return self.call_and_send(call, ids, lambda outcome: None)

    def call_and_send(self, call: Call, ids: np.ndarray, send: Callable[[Outcome], None]) -> Iterator[Outcome]:
        """Yield replies in client order; only a few are in flight at any time, so memory does not grow."""
        waiting: deque[Future[Outcome]] = deque()
        try:
            with one_thread():
                for position, client in enumerate(ids):
                    waiting.append(self._pool.submit(self._one, call, position, int(client), send))
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
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
