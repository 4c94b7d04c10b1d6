"""How many clients are the worst 20 %."""

import numpy as np
import pytest

from unalike.metrics import spread


@pytest.mark.parametrize(("clients", "few"), [(3, 1), (7, 1), (8, 2), (12, 2), (13, 3), (18, 4)])
def test_the_worst_fifth_is_rounded_to_the_nearest(clients, few):
    """Of 8 clients 1.6 are a fifth: two; of 12, 2.4: two. Values 1 to n: the worst few average (few + 1) / 2."""
    found = spread(np.arange(1.0, clients + 1))
    assert found["worst20"] == (few + 1) / 2 and found["best20"] == clients - (few - 1) / 2
