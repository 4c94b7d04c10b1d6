"""Weigh and sum replies, and give access to single values of fields that declare it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from unalike.contract import Field, Outcome
from unalike.training.transfer import to_device

# bytes of float64 used while a stack of replies is summed
MAX_SCRATCH = 64 << 20


class Sums:
    """The replies to one call: a weighted sum per field, and rows of fields that declare `read="each"/"peers"`. Fields
    that declare `read="sealed"` have no sum: their rows are for other clients.

    Sums are float64, or int64 for whole numbers. With `ordered`, replies come in client order. Without, they come as
    clients answer, and rounding errors are kept separately, so that the order of arrival does not change the result.
    """

    def __init__(self, fields: Mapping[str, Field], method: object, ordered: bool = True):
        self.fields, self.method, self.ordered = fields, method, ordered
        self.weights: dict[str, float] = {}
        self._totals: dict[str, Tensor] = {}
        self._errors: dict[str, Tensor] = {}
        self._rows: dict[str, list[Tensor]] = {}
        self._ids: list[np.ndarray] = []
        self._losses: list[np.ndarray] = []

    # ---- adding replies

    def add(self, outcome: Outcome) -> None:
        """Add some clients' replies; their losses follow by `add_losses`, which may wait for a device."""
        self._ids.append(outcome.ids)
        for name, total in (outcome.summed or {}).items():
            self.weights[name] = self.weights.get(name, 0.0) + float(self._weigh(name, outcome).sum())
            self._accumulate(name, total)
        for name, values in outcome.up.items() if not outcome.sealed else {**outcome.up, **outcome.sealed}.items():
            if self.fields[name].read == "sealed":
                self._rows.setdefault(name, []).append(values)
                continue
            weights = self._weigh(name, outcome)
            self.weights[name] = self.weights.get(name, 0.0) + float(weights.sum())
            single = len(values) == 1 or 8 * values.shape[1:].numel() > MAX_SCRATCH
            if single and self.ordered and values.is_floating_point():
                # one reply, or rows that fill the scratch memory: nothing but the sum itself is written
                if name not in self._totals:
                    self._totals[name] = values.new_zeros(values.shape[1:], dtype=torch.float64)
                for row, weight in zip(values, weights, strict=True):
                    self._totals[name].add_(row, alpha=float(weight))
            else:
                for part in _partial_sums(values, weights):
                    self._accumulate(name, part)
            if self.fields[name].read != "sum":
                self._rows.setdefault(name, []).append(values)

    def add_losses(self, losses: np.ndarray) -> None:
        self._losses.append(losses)

    def _weigh(self, name: str, outcome: Outcome) -> np.ndarray:
        """Return the weight of each reply in this field's sum."""
        by_samples = self.fields[name].weighting(self.method) == "samples"
        return np.asarray(outcome.samples if by_samples else np.ones(len(outcome.ids)), dtype=np.float64)

    def _accumulate(self, name: str, part: Tensor) -> None:
        if name not in self._totals:
            self._totals[name] = part
        elif self.ordered or not part.is_floating_point():
            self._totals[name] += part
        # Knuth's two-sum: keeps what the rounded sum loses
        else:
            old = self._totals[name]
            new = old + part
            rest = new - old
            error = (old - (new - rest)) + (part - rest)
            self._totals[name] = new
            self._errors[name] = self._errors[name] + error if name in self._errors else error

    def close(self, cohort: np.ndarray) -> None:
        """End the call: put ids, rows and losses into the cohort's order."""
        if self.ordered or len(self._ids) < 2:
            return
        place = {int(client): k for k, client in enumerate(cohort)}
        order = np.argsort([place[int(client)] for client in self.ids], kind="stable")
        self._rows = {n: [torch.cat(rows)[torch.from_numpy(order)]] for n, rows in self._rows.items()}
        self._ids, self._losses = [self.ids[order]], [self.losses[order]]

    def replace(self, name: str, total: Tensor) -> None:
        """Replace a sum by the channel's version of it."""
        self._totals[name] = total
        self._errors.pop(name, None)

    def expect(self, count: float) -> None:
        """Make means divide by the expected number of clients instead of the number that came."""
        self.weights = dict.fromkeys(self.weights, count)

    # ---- results

    @property
    def ids(self) -> np.ndarray:
        return np.concatenate(self._ids) if self._ids else np.empty(0, dtype=np.int64)

    @property
    def losses(self) -> np.ndarray:
        return np.concatenate(self._losses) if self._losses else np.empty(0)

    @property
    def names(self) -> list[str]:
        return list({**self._totals, **self._rows})

    def total(self, name: str) -> Tensor:
        """Return Σ weight · value, float64 or int64."""
        return self._totals[name] + self._errors[name] if name in self._errors else self._totals[name]

    def rows(self, name: str) -> Tensor:
        """Return one row per client."""
        return torch.cat(self._rows[name])


def _partial_sums(values: Tensor, weights: np.ndarray):
    """Yield sums of weight · value over parts of a stack, each small enough for the scratch memory."""
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    w = to_device(values.device, weights)[0]
    rows = max(1, MAX_SCRATCH // (8 * max(1, flat.shape[1])))
    for a in range(0, max(1, len(flat)), rows):  # at least once, since the sum of no rows is zeros
        part, weight = flat[a : a + rows], w[a : a + rows]
        if values.is_floating_point():
            total = weight @ part.double()
        else:
            total = (part.to(torch.int64) * weight.to(torch.int64)[:, None]).sum(0)
        yield total.view(values.shape[1:])
