"""Who is changed, and how far: groups of clients, or a level for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from unalike import draws
from unalike.data.partition import tools
from unalike.errors import UnalikeError


def drawn_groups(name: str, clients: int, groups: int, seed: int, share: float = 0.0) -> np.ndarray:
    """Return the group of every client, int64 [N]: as even as can be, drawn at random. Group 0 is not changed; with a
    `share` above 0, only so many of the clients are in the other groups."""
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
    """Return what is planted, and how far every client is changed, float64 [N] evenly from 0 to 1. With groups all of
    a group are changed alike, and their groups are planted; without (0), each by a level of its own, which is."""
    if groups:
        planted = drawn_groups(name, clients, groups, seed)
        return planted, planted / max(groups - 1, 1)
    own = np.arange(clients) / max(clients - 1, 1)
    return own, own


def turns(name: str, clients: int, groups: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what is planted, and which part of a circle every client is turned by, float64 [N]: g/G of group g of G,
    without groups (0) k/N of client k of N; so the last does not come round to the first."""
    if groups:
        planted = drawn_groups(name, clients, groups, seed)
        return planted, planted / groups
    own = np.arange(clients) / clients
    return own, own


def check_groups(name: str, groups: Any) -> None:
    """Raise unless this is 0, every client by itself, or 2 groups or more."""
    tools.count(f"{name}'s groups", groups, least=0)
    if groups == 1:
        raise UnalikeError(f"{name}'s groups=1 would leave all clients alike: give 0, each by itself, or 2 or more.")
