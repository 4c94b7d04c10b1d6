"""Neighbours on a ring, and the choice of their number and of the threshold."""

import itertools
import math

import pytest

from unalike.crypto.graph import Choice, Lattice, choose, corrupt_borne, default_threshold, least_opened
from unalike.errors import UnalikeError


def test_neighbours_are_mutual_and_as_many_as_asked():
    ids = [3, 8, 9, 20, 21, 22, 40, 41]
    lattice = Lattice(ids, 4, b"seed")
    for client in ids:
        assert len({*lattice.of(client)}) == 4 and client not in lattice.of(client)
        assert all(client in lattice.of(other) for other in lattice.of(client))
    assert [lattice.of(c) for c in ids] != [Lattice(ids, 4, b"other").of(c) for c in ids]


def test_everybody_is_a_neighbour_where_the_degree_says_so():
    assert Lattice([1, 2, 3, 4], 3, b"").of(2) == (1, 3, 4)


@pytest.mark.parametrize("degree", [0, 4, 1])
def test_degrees_that_cannot_be_are_refused(degree):
    with pytest.raises(UnalikeError, match="neighbours"):
        Lattice([1, 2, 3, 4], degree, b"")


@pytest.mark.parametrize(
    ("clients", "corrupt", "lying", "choice"),
    [
        (100, 0.05, False, (48, 6)), (100, 0.1, False, (54, 11)), (100, 0.2, False, (68, 21)),
        (100, 0.1, True, (62, 32)), (100, 0.2, True, (68, 35)), (1000, 0.1, False, (100, 38)),
        (1000, 0.2, False, (158, 72)), (1000, 0.2, True, (222, 112)),
    ],
)  # fmt: skip
def test_choices_are_those_of_the_known_table(clients, corrupt, lying, choice):
    assert choose(clients, 0.3, corrupt, lying) == Choice(*choice)


@pytest.mark.parametrize(("clients", "choice"), [(100, (82, 42)), (1000, (222, 112)), (10_000, (306, 154))])
def test_choices_for_a_server_that_tries_all_the_orders_it_can(clients, choice):
    """In whole numbers: in one order both bounds are 2^80 times as narrow. Many clients need no more neighbours for it
    (the losses ask for as many)."""
    assert choose(clients, 0.3, 0.1, lying=True, tries=2.0**80) == Choice(*choice)
    degree, threshold = choice
    bad, marked, others = clients // 10, 4 * clients // 10, clients - 1
    ways = sum(math.comb(bad, j) * math.comb(others - bad, degree - j) for j in range(threshold, degree + 1))
    assert clients * ways << 120 < math.comb(others, degree)
    row = math.comb(clients - degree // 2, marked - degree // 2) if marked >= degree // 2 else 0
    assert clients * row << 120 < math.comb(clients, marked)


@pytest.mark.parametrize(("tries", "lying"), [(0.5, True), (2, False)])
def test_tries_are_those_of_a_server_that_lies(tries, lying):
    with pytest.raises(UnalikeError, match="tries is 1"):
        choose(100, 0.3, 0.1, lying, tries)


def test_everybody_where_no_smaller_number_will_do():
    assert choose(100, 1 / 3, 1 / 3) == Choice(99, 67)
    assert choose(5, 0.2, 0.2) == Choice(4, default_threshold(4))
    with pytest.raises(UnalikeError, match="not all"):
        choose(10, 0.5, 0.5)


@pytest.mark.parametrize(("clients", "threshold"), [(4, 3), (5, 3), (5, 4)])
@pytest.mark.parametrize("corrupt", [0, 1])
def test_no_lists_open_the_sum_of_fewer_than_the_bound(clients, threshold, corrupt):
    """Try every way to tell honest clients lists of those who came: the fewest in a sum that opens."""
    honest, needed = range(clients - corrupt), threshold - corrupt
    lists = [
        [{w, *some} for n in range(clients) for some in itertools.combinations({*range(clients)} - {w}, n)
         if n >= threshold]
        for w in honest
    ]  # fmt: skip
    fewest = clients
    for told in itertools.product(*lists):
        marks = [(sum(u in told[w] for w in honest if w != u), sum(u not in told[w] for w in honest)) for u in honest]
        opened, left_out = [came >= needed for came, _ in marks], [lost >= needed for _, lost in marks]
        if corrupt_borne(clients - 1, threshold) >= corrupt:
            assert not any(map(lambda a, b: a and b, opened, left_out))
        if all(a or b for a, b in zip(opened, left_out, strict=True)) and any(opened):
            fewest = min(fewest, sum(a and not b for a, b in zip(opened, left_out, strict=True)) or 1)
    assert fewest >= least_opened(clients, threshold, corrupt) > 0 or corrupt_borne(clients - 1, threshold) < corrupt
