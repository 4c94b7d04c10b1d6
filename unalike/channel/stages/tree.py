"""Noise on prefix sums, in a tree (DP-FTRL): it needs no sampling, so it suits clients that come when they can."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from unalike.channel.events import Event, TreeGaussian
from unalike.channel.stage import Sees, Stage, Total, refuse
from unalike.channel.stages.clip import AdaptiveClip
from unalike.channel.stages.noise import CENTRAL, Noise
from unalike.settings.knobs import knob

Node = tuple[int, int]  # (l, k) covers the steps k·2^l + 1 … (k + 1)·2^l


@dc.dataclass(frozen=True)
class TreeNoise(Noise):
    """N(0, (z·C)²) for every node of a binary tree over `leaves` rounds (Kairouz et al. 2021). The sum of all updates
    up to step t has the noise of the nodes of t's binary expansion, ⌊log₂ t⌋ + 1 of them at most; what a round adds to
    its own sum is the difference to the step before:

        noise of step t = N(t) − N(t − 1),   N(t) = Σ of nodes of t

    A node's noise is drawn again from its place when it is needed, so nothing is kept. Each client may take part once
    in a tree; a new one begins after `leaves` rounds. Clients need not be drawn in secret.
    """

    name = "tree-noise"

    leaves: int = knob(1, "rounds of one tree, in which each client takes part once at most", least=1)

    @property
    def sees(self) -> Sees:
        return CENTRAL

    def event(self, q: float) -> Event:
        return TreeGaussian(self.leaves, self.z)  # for a whole tree; its first round spends it

    def fit(self, before: Sequence[Stage], size: int) -> Stage:
        fitted = super().fit(before, size)
        if isinstance(fitted, Noise) and isinstance(fitted.clip, AdaptiveClip):
            raise refuse(self, "the nodes of a tree need one bound for all its rounds: take clip.")
        return fitted

    def server(self, total: Total) -> None:
        if total.round < 0 or total.exchange:
            raise refuse(self, "a tree has one exchange per round, and this method has more.")
        sigma, (tree, step) = self.z * self.bound(total.values), divmod(total.round, self.leaves)
        for name, value in total.sums.items() if sigma else ():
            # the tree's number is part of each node's purpose; a draw depends on the purpose alone
            new, old = (self._prefix(total, name, value, tree, s) for s in (step + 1, step))
            total.sums[name] = value + sigma * (new - old)

    def _prefix(self, total: Total, name: str, like: Tensor, tree: int, step: int) -> Tensor:
        """Return N(step); 0 before the first step."""
        noise = torch.zeros_like(like, dtype=torch.float64)
        for level, k in nodes(step):
            noise += total.lasting(f"tree {tree} node {level} {k} of {name}", tuple(like.shape), like)
        return noise


def nodes(step: int) -> Iterator[Node]:
    """Yield the nodes that cover the steps 1 … step: one for each set bit of `step`, the largest first."""
    done = 0
    for level in reversed(range(step.bit_length())):
        if step >> level & 1:
            yield level, done >> level
            done += 1 << level
