"""Partitions on numbers small enough to be worked out, and what Dirichlet and lognormal draws must look like."""

import numpy as np
import pytest

from unalike import partition


def counts_of(labels, parts):
    """[clients, classes]."""
    return np.array([np.bincount(labels[rows], minlength=labels.max() + 1) for rows in parts])


@pytest.mark.parametrize("seed", range(10))
def test_dirichlet_gives_nothing_more_to_a_client_that_has_its_even_share(seed):
    """Ten classes of 100 for ten clients: whoever has 100 when a class's turn comes has none of it."""
    labels = np.arange(1000) % 10
    counts = counts_of(labels, partition.Dirichlet(0.3, min_size=0)(labels, 10, seed))
    before = counts.cumsum(1) - counts
    assert (before >= 100).any() and not counts[before >= 100].any()


def test_classes_give_spare_samples_to_the_smallest():
    """Everybody owns every class. Of 5 samples for two clients, one is spare: the second class's goes to whoever did
    not get the first's. Of 7 for four, three are: 4 · 7 samples are 7 each."""
    for kinds, total, clients in ((2, 5, 2), (4, 7, 4)):
        labels = np.arange(kinds * total) % kinds
        for seed in range(5):
            sizes = [len(rows) for rows in partition.Classes(kinds)(labels, clients, seed)]
            assert sizes == [kinds * total // clients] * clients


def test_power_law_classes_have_lognormal_amounts():
    """Beyond 5 of each class the amounts are lognormal(0, 2): of 400 logarithms the deviation is 2 ± 0.07."""
    labels = np.arange(1_000_000) % 2
    counts = counts_of(labels, partition.PowerLawClasses(2)(labels, 200, 0))
    amounts = counts[counts > 5] - 5
    assert len(amounts) > 390 and np.log(amounts).std() == pytest.approx(2.0, abs=0.2)


def test_largest_remainders_are_rounded_up():
    """11 samples by 12 : 6 : 4 : 3 are 5.28, 2.64, 1.76 and 1.32: the third and the second are rounded up."""
    assert [len(rows) for rows in partition.PowerLaw(1.0)(np.zeros(11, int), 4, 0)] == [5, 3, 2, 1]
