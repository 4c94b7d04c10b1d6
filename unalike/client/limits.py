"""What a real client's owner allows for one piece of work on its samples: the fewest samples, and the most steps.

The gradient of a single sample reveals that sample: for a linear model x = dW/db. So work on few samples is refused,
however a run asks for it: by its settings, a method's own training, chosen rows, an average, an evaluation.
"""

from __future__ import annotations

import dataclasses as dc

import numpy as np
import torch
from torch import Tensor

from unalike.client.samples import Chosen
from unalike.errors import UnalikeError
from unalike.training import LocalTraining

ALLOW = "`{setting} = {value}` in its policy, or --{flag} {value}, allows it"


@dc.dataclass(frozen=True)
class Limits:
    """max_steps: most steps of one training; least_batch: fewest own samples per step; least_steps: fewest steps of one
    training, or as many samples in fewer, larger ones. A simulation has no limits."""

    max_steps: int | None = None
    least_batch: int = 1
    least_steps: int = 1

    def check_training(
        self, local: LocalTraining, chosen: Chosen, ids: np.ndarray, round: int, only: Tensor | None = None
    ) -> None:
        """Refuse a client's training on these samples if it has too many steps, or reads too few samples. only: the
        rows that it chooses, if any."""
        steps = int(local.counts(ids, chosen.sizes, round)[0])
        if self.max_steps is not None and steps > self.max_steps:
            raise UnalikeError(
                f"The run wants {steps} steps per round of this client, which does {self.max_steps} at most "
                "(--max-steps)."
            )
        if chosen.samples.own is not None:
            self.check_rows(self.own_rows(chosen, only), "steps on")
            self._check_batches(local, chosen, steps)

    def _check_batches(self, local: LocalTraining, chosen: Chosen, steps: int) -> None:
        size, share = int(chosen.sizes[0]), self.own_rows(chosen) / int(chosen.sizes[0])
        batch = size if local.batch_size is None else min(local.batch_size, size)
        self.check_rows(int(batch * share), "steps on")
        passed = int(local.per_epoch(chosen.sizes)[0])
        rest = size - (passed - 1) * batch
        if steps >= passed and not local.drop_last and int(rest * share * passed) < self.least_batch:
            raise UnalikeError(
                f"The run's batches of {batch} leave {rest} of this client's {size} samples for the last step of a "
                f"pass, in which each weighs too much: take another batch_size, or drop_last = true "
                f"({self._allow('least_batch', int(rest * share * passed))})."
            )
        if steps < self.least_steps and int(steps * batch * share) < self.least_steps * self.least_batch:
            raise UnalikeError(
                f"The run wants {steps} step{'s' * (steps != 1)} of {batch} samples in a training; this client does "
                f"{self.least_steps} at least, or fewer larger ones ({self._allow('least_steps', steps)})."
            )

    def check_rows(self, rows: int, verb: str = "numbers over") -> None:
        """Refuse work on fewer of a client's own samples than allowed."""
        if rows < self.least_batch:
            raise UnalikeError(
                f"The run wants {verb} {rows} of this client's samples; it works on {self.least_batch} at least "
                f"({self._allow('least_batch', rows)})."
            )

    @staticmethod
    def own_rows(chosen: Chosen, only: Tensor | None = None) -> int:
        """Return how many of a client's own samples are among the chosen ones. If some are chosen repeatedly, return
        the number as if all were chosen as often as the most frequent one."""
        if only is not None and not chosen.samples.public:
            counts = torch.bincount(only[only >= 0].reshape(-1))
            return int(counts.sum() / counts.max()) if counts.numel() else 0
        return int(min(chosen.own[0], chosen.sizes[0]))

    @staticmethod
    def _allow(setting: str, value: int) -> str:
        return ALLOW.format(setting=setting, value=max(value, 1), flag=setting.replace("_", "-"))
