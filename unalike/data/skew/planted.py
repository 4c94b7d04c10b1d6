"""Which clients are changed, and how far: groups of clients, or a level for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from unalike import draws
from unalike.data.partition import tools
from unalike.errors import UnalikeError


def drawn_groups(name: str, clients: int, groups: int, seed: int, share: float = 0.0) -> np.ndarray:
    """Draw the group of every client, int64 [N], at random and as even as possible. Group 0 is not changed; with a
    `share` above 0, only that share of the clients is in the other groups."""
    if groups > clients:
        raise UnalikeError(f"{name} must make {groups} groups of {clients} clients: ask for at most {clients}.")
    of = np.arange(clients) % groups
    if share:
        others = int(share * clients + 0.5)
        if others < groups - 1:
            raise UnalikeError(
                f"{name} with share={share:g} has {others} of {clients} clients for {groups - 1} groups beside the "
                "first: ask for a larger share."
            )
        of = np.where(np.arange(clients) < others, np.arange(clients) % (groups - 1) + 1, 0)
    return draws.generator(draws.check_seed(seed), "groups", name).permutation(of)


def levels(name: str, clients: int, groups: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what to record as planted, and how far every client is changed, float64 [N] evenly from 0 to 1. With
    groups, all clients of a group are changed alike and the groups are recorded; without (0), each client has its own
    level, which is recorded."""
    if groups:
        planted = drawn_groups(name, clients, groups, seed)
        return planted, planted / max(groups - 1, 1)
    own = np.arange(clients) / max(clients - 1, 1)
    return own, own


def turns(name: str, clients: int, groups: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what to record as planted, and the part of a full circle by which every client is turned, float64 [N]: g/G
    for group g of G; without groups (0), k/N for client k of N. So the last does not coincide with the first."""
    if groups:
        planted = drawn_groups(name, clients, groups, seed)
        return planted, planted / groups
    own = np.arange(clients) / clients
    return own, own


def check_groups(name: str, groups: Any) -> None:
    """Raise unless `groups` is 0 (every client by itself) or at least 2."""
    tools.count(f"{name}'s groups", groups, least=0)
    if groups == 1:
        raise UnalikeError(f"{name}'s groups=1 would leave all clients alike: give 0, each by itself, or 2 or more.")
