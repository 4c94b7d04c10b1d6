"""A small federation whose features are still to be prepared, for the tests of preparing."""

import numpy as np

import unalike as ua
from unalike.data.preparation import Recipe

SIZES = (9, 1, 30, 4)


def federation(target=True):
    rng = np.random.default_rng(3)
    parts = []
    for n in SIZES:
        x = rng.normal(size=(n, 3)) * [1e-3, 1e5, 2] + [7, 1.7e9, -5]
        x[rng.random(x.shape) < 0.2] = np.nan
        parts.append((x, rng.normal(size=n) if target else np.arange(n) % 2))
    return ua.Federation.from_arrays(parts).replace(recipe=Recipe.of(None, 3, target=target))
