"""The adjusted Rand index, by hand."""

import pytest

from unalike.metrics.clusters import adjusted_rand


@pytest.mark.parametrize(
    ("found", "planted", "index"),
    [
        ([5, 5, 1, 1], [0, 0, 1, 1], 1.0),  # names do not matter
        # pairs together: 1 in both, 2 and 1 of 6; by chance 2·1/6, at most (2 + 1)/2
        ([0, 0, 1, 1], [0, 0, 1, 2], (1 - 1 / 3) / (3 / 2 - 1 / 3)),
        ([0, 0, 1, 1], [0, 1, 0, 1], -0.5),  # worse than chance: (0 − 4/6) / (2 − 4/6)
        ([0, 0, 0, 0], [0, 0, 1, 1], 0.0),  # one cluster says nothing
        ([0, 0, 0], [7, 7, 7], 1.0),
        ([0, 1, 2], [2, 0, 1], 1.0),
        ([3], [0], 1.0),
    ],
)
def test_adjusted_rand(found, planted, index):
    assert adjusted_rand(found, planted) == pytest.approx(index, abs=1e-12)
    assert adjusted_rand(planted, found) == pytest.approx(index, abs=1e-12)
