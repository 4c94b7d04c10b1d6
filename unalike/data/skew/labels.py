"""Changes of labels: clients that name the classes differently, and clients that make mistakes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np
import torch

from unalike import draws
from unalike.data.columns import Columns
from unalike.data.federation import as_arguments
from unalike.data.partition import tools
from unalike.data.partition.pieces import Change
from unalike.data.skew.planted import check_groups, drawn_groups, levels
from unalike.data.skew.samples import checked, here
from unalike.errors import UnalikeError

UNLABELLED = "unlabelled"  # the further split of samples whose labels are missing
# numbers of confusion matrices computed at a time
BLOCK = 1 << 21
# a cycle of more classes than this is practically never drawn twice
SHORT = 8
# draws of a cycle before giving up on one that differs from all groups' at every strength
TRIES = 100


@dataclasses.dataclass(frozen=True)
class Permute(Change):
    """Label preference: groups of clients that name the classes otherwise, in training and in their own tests.

    Group 0 keeps the labels; every other group has a permutation of its own, a cycle that moves the share `strength`
    of the classes (at least two, where it is above 0). So P(y|x) differs, and no one model can be right for all: the
    setting of clustered federated learning (CFL, arXiv:1910.01991). The global test set keeps its labels: expect a
    global model to be wrong there too, as it learns the names of all groups.

    Groups are equally large, unless `share` says how many of the clients are not in group 0: permute:2:0.2 is one
    client in five with wrong labels among honest ones, a poisoned one, and what it sends is wrong in every class.
    """

    name: ClassVar[str] = "permute"
    of_features: ClassVar[bool] = False
    groups: int = 2
    share: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        tools.count("Permute's groups", self.groups, least=2)
        tools.number("Permute's share", self.share, 0, 1, 0.2)

    def change(self, fed: Any, seed: int) -> Any:
        classes = _classes(self.name, fed)
        groups = drawn_groups(self.name, len(fed), self.groups, seed, self.share)
        names = torch.from_numpy(self.names(classes, seed).reshape(-1))

        def renamed(columns: Columns) -> Columns:
            group = torch.from_numpy(groups[columns.owners()]).to(columns.y.device)
            return Columns(columns.x, names.to(columns.y.device)[group * classes + columns.y], columns.offsets)

        return fed.map(renamed, planted={**fed.planted, self.name: groups})

    def names(self, classes: int, seed: int) -> np.ndarray:
        """Return every group's name for each class, int64 [groups, classes]."""
        if self.groups - 1 > math.factorial(min(classes, 20) - 1):
            raise UnalikeError(
                f"permute must name {classes} classes in {self.groups - 1} new ways: there are only "
                f"{math.factorial(classes - 1)}; ask for fewer groups."
            )
        moved = max(2, round(self.strength * classes)) if self.strength else 0
        names = np.tile(np.arange(classes), (self.groups, 1))
        for group, order in enumerate(self._orders(classes, seed), start=1):
            names[group, order[:moved]] = np.roll(order[:moved], 1)
        return names

    def _orders(self, classes: int, seed: int) -> list[np.ndarray]:
        """Return the classes in the order of each group's cycle. No two groups have the same cycle nor, if there are
        enough classes, the same short cycle at a low strength."""
        rng = draws.generator(draws.check_seed(seed), "permute")
        seen: set[tuple[int, ...]] = set()
        orders: list[np.ndarray] = []
        tries = 0
        while len(orders) < self.groups - 1:
            order = rng.permutation(classes)
            cycles = {_cycle(order[:moved]) for moved in range(2, min(SHORT, classes) + 1)}
            whole, tries = _cycle(order), tries + 1
            if whole not in seen and (tries > TRIES or not cycles & seen):
                orders.append(order)
                seen |= {whole, *cycles}
                tries = 0
        return orders


@dataclasses.dataclass(frozen=True)
class Crowd(Change):
    """Crowd labels: every client is an annotator with mistakes of its own, and some labels may be missing.

    Client k draws the label of a sample of class c from row c of its own confusion matrix (`matrices`). The mistakes of
    its rows average to its rate, strength · error · k/(N−1) at client k of N; with `groups`, error · g/(G−1) in group g
    of G. Some classes are harder to an annotator than others, and a class is mistaken for the others in shares from a
    flat Dirichlet distribution: annotators confuse differently. Labels for training and validation are drawn; a
    client's own tests and the global test set keep the truth, so scores say how much was learned in spite of mistakes.

    `missing`: strength · missing of every client's training labels, the same share for all, are missing, but never a
    client's last. These samples leave the training split and become the further split "unlabelled" (`fed.further`),
    with the TRUE labels: they are there for scoring pseudo-labels, and a method that trains on them cheats.

    In the survey's words crowdsourced labels (label preference skew). A larger strength makes more labels wrong, and
    those that were before. Further splits that are there before it are labelled too, by draws of their own.
    """

    name: ClassVar[str] = "crowd"
    of_features: ClassVar[bool] = False
    error: float
    missing: float = 0.0
    groups: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        tools.number("Crowd's error", self.error, 0, 1, 0.3)
        tools.number("Crowd's missing", self.missing, 0, 1, 0.1)
        check_groups("Crowd", self.groups)

    def change(self, fed: Any, seed: int) -> Any:
        classes = _classes(self.name, fed)
        if self.missing and fed.further:
            raise UnalikeError(
                f"crowd takes training labels away, and {', '.join(fed.further)} may have copies of them: change "
                "labels first, then make further splits."
            )
        planted, far = levels(self.name, len(fed), self.groups, seed)
        rates = far * self.error * self.strength
        splits = {
            name: columns if name in ("test", UNLABELLED) else self._annotated(columns, rates, classes, seed, name)
            for name, columns in fed.splits.items()
        }
        if self.missing * self.strength:
            splits |= self._parted(fed.train, splits["train"], seed)
        return fed.replace(**as_arguments(splits), planted={**fed.planted, self.name: planted})

    def matrices(self, clients: int, classes: int, seed: int) -> np.ndarray:
        """Return every client's confusion matrix, float64 [clients, classes, classes]: row c has the probabilities of
        the labels that it gives to samples of class c."""
        rates = levels(self.name, clients, self.groups, seed)[1] * self.error * self.strength
        wrong, others = _mistakes(np.arange(clients), rates, classes, seed)
        matrices = wrong[:, :, None] * others
        matrices[:, np.arange(classes), np.arange(classes)] = 1 - wrong
        return matrices

    def _annotated(self, columns: Columns, rates: np.ndarray, classes: int, seed: int, split: str) -> Columns:
        """Return a split with the labels that its clients assign."""
        if not rates.any():
            return columns
        y, owners = columns.y.cpu().numpy().copy(), columns.owners()
        position = np.arange(len(y)) - columns.offsets[owners]
        keys = draws.client_keys(draws.check_seed(seed), 0, f"crowd {split}", np.arange(len(columns)))
        some = max(1, BLOCK // classes**2)
        for first in range(0, len(columns), some):
            clients = np.arange(first, min(first + some, len(columns)))
            rows = slice(columns.offsets[first], columns.offsets[clients[-1] + 1])
            wrong, others = _mistakes(clients, rates[clients], classes, seed)
            own = draws.bits(torch.from_numpy(keys[owners[rows]]), torch.from_numpy(position[rows]))
            at, truth = owners[rows] - first, y[rows]
            missed = _drawn(own, 0) < wrong[at, truth]
            chances = np.cumsum(others[at[missed], truth[missed]], axis=1)
            y[rows][missed] = _picked(chances, _drawn(own, 1)[missed])
        return Columns(columns.x, torch.from_numpy(y).to(columns.y.device), columns.offsets)

    def _parted(self, truth: Columns, labelled: Columns, seed: int) -> dict[str, Columns]:
        """Return the training split without the samples whose labels are missing, and these samples with their true
        labels."""
        sizes, owners = truth.sizes, truth.owners()
        lost = np.minimum(
            np.floor(sizes * self.missing * self.strength + 0.5).astype(np.int64), np.maximum(sizes - 1, 0)
        )
        keys = draws.client_keys(draws.check_seed(seed), 0, "crowd missing", np.arange(len(truth)))
        position = np.arange(len(owners)) - truth.offsets[owners]
        order = np.lexsort((draws.bits(torch.from_numpy(keys[owners]), torch.from_numpy(position)).numpy(), owners))
        gone = np.zeros(len(owners), bool)
        gone[order[position < lost[owners]]] = True
        return {
            "train": labelled.take(np.flatnonzero(~gone), sizes - lost),
            UNLABELLED: truth.take(np.flatnonzero(gone), lost),
        }


def _cycle(order: np.ndarray) -> tuple[int, ...]:
    """Return a cycle beginning with its smallest class, so that equal cycles compare equal."""
    return tuple(np.roll(order, -int(order.argmin())).tolist())


def _classes(name: str, fed: Any) -> int:
    """Return the number of classes; raise if labels cannot be changed."""
    here(name, fed)
    if fed.classes is None:
        raise UnalikeError(f"{name} changes classes, and these data have a number to predict: take 'noise:0.5', say.")
    if fed.classes < 2:
        raise UnalikeError(f"{name} changes classes, and these data have {fed.classes} class: it takes two.")
    checked(fed, gaps=True)
    return fed.classes


def _mistakes(clients: np.ndarray, rates: np.ndarray, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how often each client is wrong about each class, [c, K], with its rate as the mean; and the distribution
    of its wrong answers, [c, K, K], zero on the diagonal. Only the first depends on the rates."""
    keys = torch.from_numpy(draws.client_keys(draws.check_seed(seed), 0, "crowd", clients))
    harder = _drawn(draws.fold(keys, 0)[:, None], torch.arange(classes)[None])
    harder -= harder.mean(1, keepdims=True)  # in (-1, 1)
    wrong = rates[:, None] + np.minimum(rates, 1 - rates)[:, None] * harder
    others = -np.log(_drawn(draws.fold(keys, 1)[:, None], torch.arange(classes**2)[None])).reshape(-1, classes, classes)
    others[:, np.arange(classes), np.arange(classes)] = 0
    return wrong, others / others.sum(2, keepdims=True)


def _drawn(keys: torch.Tensor, counter: torch.Tensor | int) -> np.ndarray:
    """Return a number in (0, 1) for each key and counter."""
    bits = draws.fold(keys, counter).numpy()
    return ((bits.view(np.uint64) >> np.uint64(11)).astype(np.float64) + 0.5) / (1 << 53)


def _picked(chances: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Return for each row of cumulative probabilities the index that a number in (0, 1) falls on."""
    return (chances <= (drawn * chances[:, -1])[:, None]).sum(1)
