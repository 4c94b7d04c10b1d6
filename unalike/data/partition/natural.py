"""Clients that the data came with."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from unalike.data.partition.pieces import Dealer
from unalike.data.partition.tools import count
from unalike.errors import UnalikeError


@dataclasses.dataclass(frozen=True)
class Natural(Dealer):
    """One client a value of a column of the data set: a writer, a speaker, a person, a hospital.

    `column` None is the column that the data set itself calls its client. Fewer clients than values: those with most
    samples (of equal ones, the first by name), as rFedAvg does with the users of Sent140; the rest is left out.
    Clients come in the order of their names, rows in theirs; the seed changes nothing. Called by itself it is given
    the column in place of labels.
    """

    name: ClassVar[str] = "natural"
    resizable: ClassVar[bool] = False
    column: str | None = None

    def parts(self, values: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        return _rows(values, self.chosen(values, clients))

    def chosen(self, values: np.ndarray, clients: int) -> np.ndarray:
        """Return the values that become clients."""
        count("clients", clients)
        found, sizes = np.unique(values, return_counts=True)
        if clients > len(found):
            of = "" if self.column is None else f" in the column {self.column!r}"
            raise UnalikeError(
                f"The partition {str(self)!r} must give {clients} clients but there are {len(found)}{of}: "
                f"ask for at most {len(found)}."
            )
        return found[np.sort(np.argsort(-sizes, kind="stable")[:clients])]

    def train_and_test(
        self, values: np.ndarray, test_values: np.ndarray, clients: int, seed: int
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the training rows and test rows of each client; a client may have no test rows."""
        chosen = self.chosen(values, clients)
        return _rows(values, chosen), _rows(test_values, chosen)


def _rows(values: np.ndarray, chosen: np.ndarray) -> list[np.ndarray]:
    """Return the rows that have each of the (sorted) values, in stored order."""
    values = np.asarray(values)
    owner = np.searchsorted(chosen, values)
    owner[chosen[np.minimum(owner, len(chosen) - 1)] != values] = len(chosen)
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.cumsum(np.bincount(owner, minlength=len(chosen) + 1))[:-1])[:-1]
