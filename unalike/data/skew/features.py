"""Changes of features of any kind: noise, wrong values, and a shift per group of clients."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from unalike import draws
from unalike.data.partition import tools
from unalike.data.partition.pieces import Change
from unalike.data.skew.planted import check_groups, drawn_groups, levels
from unalike.data.skew.samples import changed, normal, numbers, per_row, reach, spread, uniform


@dataclasses.dataclass(frozen=True)
class Noise(Change):
    """Attribute skew by noise: Gaussian noise, from none at the first client to `sigma` at the last.

    x + σ_k · sd · N(0, 1), σ_k = strength · sigma · k/(N−1) at client k of N; with `groups`, sigma · g/(G−1) in group g
    of G. sd is the standard deviation of each feature (of pictures and signals: of each channel) over all clients'
    training samples, so sigma = 1 is as much noise as signal. Every client's own tests are as noisy as its training;
    the global test set is clean. Expect the noisy clients to learn less, and their updates to point apart.

    From NIID-Bench's noise-based feature imbalance (arXiv:2102.02079), whose program adds noise of standard deviation
    noise · k/(n_parties−1) to pixels in [0, 1], draws it anew whenever a sample is read, and tests on copies of the
    test set with every party's noise. Here noise is in units of the data and drawn once.
    """

    name: ClassVar[str] = "noise"
    sigma: float
    groups: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        tools.above_zero("Noise's sigma", self.sigma)
        check_groups("Noise", self.groups)

    def change(self, fed: Any, seed: int) -> Any:
        scale = spread(numbers(self.name, fed)) * self.sigma * self.strength
        planted, far = levels(self.name, len(fed), self.groups, seed)

        def noisy(x: Tensor, owners: np.ndarray, keys: Tensor) -> Tensor:
            return x + per_row(far[owners], x) * scale * normal(keys, tuple(x.shape[1:]))

        return changed(fed, self.name, planted, far * self.strength > 0, noisy, seed)


@dataclasses.dataclass(frozen=True)
class Impulse(Change):
    """Attribute skew by impulse noise (salt and pepper): a share of the numbers is wrong, from none at the first client
    to `share` at the last.

    At client k of N each number is replaced with probability strength · share · k/(N−1) (with `groups`, · g/(G−1) in
    group g of G), half the time by the least and half by the largest value of its feature, or of its channel in
    pictures and signals, over all clients' training samples. A client's own tests are changed like its training; the
    global test set is not. A larger strength spoils more numbers, and those that were before.
    """

    name: ClassVar[str] = "impulse"
    share: float
    groups: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        tools.number("Impulse's share", self.share, 0, 1, 0.3)
        check_groups("Impulse", self.groups)

    def change(self, fed: Any, seed: int) -> Any:
        low, high = reach(numbers(self.name, fed))
        planted, far = levels(self.name, len(fed), self.groups, seed)
        share = far * self.share * self.strength

        def spoilt(x: Tensor, owners: np.ndarray, keys: Tensor) -> Tensor:
            hit = uniform(keys, tuple(x.shape[1:]), 0) < per_row(share[owners], x)
            salt = uniform(keys, tuple(x.shape[1:]), 1) < 0.5
            return torch.where(hit, torch.where(salt, high, low), x)

        return changed(fed, self.name, planted, share > 0, spoilt, seed)


@dataclasses.dataclass(frozen=True)
class Shift(Change):
    """Feature shift: the features of every group of clients lie elsewhere, by a vector of the group's own.

    x + strength · size · sd · v_g, where v_g is a random direction with a root mean square of 1, and sd the standard
    deviation of each feature (of pictures and signals: of each channel) over all clients' training samples: features
    are moved by `size` standard deviations on average. Group 0 stays. Without groups (0) every client is a group of its
    own: client k is moved by v_k, all by the full size, and client 0 stays.

    Another instrument, another hospital: labels mean the same, P(x) differs, in training and in a client's own tests.
    Expect one global model to suffer less than under permuted labels: it can learn all groups at once, if it is large
    enough.
    """

    name: ClassVar[str] = "shift"
    size: float
    groups: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        tools.above_zero("Shift's size", self.size)
        check_groups("Shift", self.groups)

    def change(self, fed: Any, seed: int) -> Any:
        scale = spread(numbers(self.name, fed)) * self.size * self.strength
        groups = drawn_groups(self.name, len(fed), self.groups, seed) if self.groups else np.arange(len(fed))
        keys = draws.client_keys(draws.check_seed(seed), 0, "shift's directions", groups)

        def moved(x: Tensor, owners: np.ndarray, _: Tensor) -> Tensor:
            some, which = np.unique(keys[owners], return_inverse=True)
            return x + scale * _directions(torch.from_numpy(some), tuple(x.shape[1:]))[torch.from_numpy(which)]

        return changed(fed, self.name, groups, (groups > 0) & (self.strength > 0), moved, seed)


def _directions(keys: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a random vector of a sample's shape for every key, with a root mean square of 1."""
    v = normal(keys, shape)
    size = v.square().reshape(len(v), -1).mean(1).sqrt()
    return v / size.reshape(-1, *[1] * (v.dim() - 1))
