"""Grow trees on a federation or a table that is in this process: sums of whole numbers are the same either way.

This is the quick path of a simulation. `ua.simulate(None, fed, ua.HistBoost(...))` sends messages and gives the same
bits, through any channel; so do real clients. `fit(..., channel=...)` uses messages too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike import draws
from unalike.errors import UnalikeError
from unalike.trees import exact
from unalike.trees.bins import check_categories, pooled_cuts
from unalike.trees.grow import Growth
from unalike.trees.model import Boosted
from unalike.trees.settings import Boosting
from unalike.trees.table import Rows
from unalike.trees.tree import Tree


def fit(
    settings: Boosting,
    data: Any,
    *,
    seed: int = 0,
    categories: Sequence[int] = (),
    validation: tuple[Any, Any] | None = None,
    names: Sequence[str] | None = None,
    channel: Any = None,
) -> Boosted:
    """Return boosted trees for a `Federation`, or a pair (x, y) of one table; missing values are NaN.

    categories: columns whose values are numbers of categories, from 0; validation: (x, y) that `patience` looks at (of
    a federation, its clients' validation split, if not given); channel: stages between clients and the server's sums,
    such as "secure-sum": trees then grow by messages, and the run, with bytes and perhaps ε, is the model's `run`.
    """
    if channel:
        return _through(settings, data, seed, channel, (categories, validation, names))
    x, y, classes, found = _rows(data)
    validation = found if validation is None else _pair(*validation)
    named = list(names) if names is not None else column_names(data, x.shape[1])
    flags = torch.zeros(x.shape[1], dtype=torch.bool)
    flags[list(categories)] = True
    check_categories(x, flags, settings.bins, named)
    base = start_margin(settings, classes, int(exact.fixed(y.double()).sum()), len(y))
    model = Boosted(pooled_cuts(x, settings.bins), flags, classes, base, [], named)
    return boost(settings, model, model.codes(x), y, seed, validation, _sizes(data))


def boost(
    settings: Boosting,
    model: Boosted,
    codes: Tensor,
    y: Tensor,
    seed: int = 0,
    validation: Any = None,
    sizes: np.ndarray | None = None,
) -> Boosted:
    """Add trees to a model whose cuts are known; sizes: the number of rows of each client, if clients draw rows."""
    rows = Rows(codes, model.bins, model.categories)
    margin, watch = model.start(len(y)), Watch(settings, model, validation)
    for number in range(settings.trees):
        own = exact.derivatives(margin, y, model.classes)
        drawn = drawn_rows(settings, seed, number, len(y), sizes)
        own = own if drawn is None else own * drawn[:, None, None]
        allowed = drawn_columns(settings, seed, number, codes.shape[1])
        grown = []
        for output in range(model.outputs):
            tree = grow(settings, rows, own[:, output], allowed, model.categories)
            margin[:, output] += torch.from_numpy(tree.value[rows.place])
            grown.append(tree)
        model.trees.append(grown)
        if watch.ends():
            break
    return model


def grow(settings: Boosting, rows: Rows, derivatives: Tensor, allowed: Tensor, categories: Tensor) -> Tree:
    """Return a tree grown on these rows; each row then stands at its leaf."""
    rows.begin(derivatives)
    growth = Growth(settings, allowed, categories)
    while len(growth.asked):
        growth.take(rows.sums(growth.asked))
        rows.divide(growth.tree, growth.divided)
    return growth.tree


class Watch:
    """Watches the loss on validation rows: tells when no tree has helped for `patience` rounds, and removes those
    trees."""

    def __init__(self, settings: Boosting, model: Boosted, validation: tuple[Tensor, Tensor] | None):
        self.patience, self.model = settings.patience, model
        if settings.patience is not None and validation is None:
            raise UnalikeError("patience looks at validation rows: give validation=(x, y), or split off a share.")
        self.best, self.at = float("inf"), 0
        if self.patience is not None and validation is not None:
            self.codes, self.y = model.codes(validation[0]), validation[1]
            self.margin = model.start(len(self.y))

    def ends(self) -> bool:
        """Evaluate the last round's trees; return whether boosting is over."""
        if self.patience is None:
            return False
        newest = Boosted(self.model.cuts, self.model.categories, self.model.classes, 0.0, self.model.trees[-1:])
        self.margin += newest.margins_of(self.codes)
        loss = int(exact.losses(self.margin, self.y, self.model.classes).sum())
        if loss < self.best:
            self.best, self.at = loss, len(self.model.trees)
        over = len(self.model.trees) - self.at >= self.patience
        if over:
            del self.model.trees[self.at :]
        return over


def drawn_columns(settings: Boosting, seed: int, number: int, columns: int) -> Tensor:
    """Return which columns tree `number` may split by, as a server would draw them in that round."""
    order = draws.generator(seed, number, "server columns").permutation(columns)
    return allowed_columns(settings, order)


def allowed_columns(settings: Boosting, order: np.ndarray) -> Tensor:
    """Return a mask of the first columns in this order, as many as the setting's share allows."""
    out = torch.zeros(len(order), dtype=torch.bool)
    out[order[: int(np.ceil(settings.columns * len(order)))]] = True
    return out


def drawn_rows(settings: Boosting, seed: int, number: int, rows: int, sizes: np.ndarray | None = None) -> Tensor | None:
    """Return 1 for rows that tree `number` learns from and 0 for others; None if it learns from all. sizes: of clients,
    which draw among their own rows (`Growing.derived`)."""
    if settings.rows == 1:
        return None
    if sizes is None:
        key = torch.tensor(draws.key(seed, number, "rows of a tree"))
        return (draws.uniform(key, (rows,), torch.float64) < settings.rows).to(torch.int64)
    keys = torch.from_numpy(draws.client_keys(seed, number, "draws 0", np.arange(len(sizes))))
    own = [draws.KeyedDraws(key).uniform("rows", (int(n),)) for key, n in zip(keys, sizes, strict=True)]
    return (torch.cat(own) < settings.rows).to(torch.int64)


def start_margin(settings: Boosting, classes: int | None, label: int, size: int) -> float:
    """Return the start of the margins; label: the sum of all labels, a whole multiple of 2^-30; size: their number."""
    if settings.base is not None or classes is not None:
        return settings.base or 0.0
    return label / exact.SCALE / max(1, size)


# ---------------------------------------------------------------- by messages

Grower = Callable[[Any, Any, int, Any], Boosted]  # method, federation, seed, channel
_growers: list[Grower] = []


def by_messages(grower: Grower) -> Grower:
    """Register `grower` for trees that grow by messages: runs are above this folder, which cannot import them."""
    _growers[:] = [grower]
    return grower


def _through(settings: Boosting, data: Any, seed: int, channel: Any, more: tuple[Any, Any, Any]) -> Boosted:
    categories, validation, names = more
    if len(categories) or validation is not None:
        raise UnalikeError(
            "Through a channel there are the clients' own rows alone: leave categories and validation out (clients' "
            "validation split: data.split(..., validation=0.2))."
        )
    model = _growers[0](settings, data, seed, channel)
    model.names = list(names) if names is not None else model.names
    return model


# ---------------------------------------------------------------- arguments


def _rows(data: Any) -> tuple[Tensor, Tensor, int | None, tuple[Tensor, Tensor] | None]:
    if isinstance(data, tuple | list):
        x, y = _pair(*data)
        return x, y, None if y.is_floating_point() else max(int(y.max()) + 1, 2), None
    train, validation = data.train, data.validation
    x, y = _pair(train.x, train.y)
    return x, y, data.classes, None if validation is None else _pair(validation.x, validation.y)


def _pair(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    x, y = torch.as_tensor(x).flatten(1).to(torch.float32), torch.as_tensor(y)
    if y.dim() != 1 or len(y) != len(x) or not len(y):
        raise UnalikeError(f"x and y have shapes {list(x.shape)} and {list(y.shape)}: one label a row is needed.")
    if torch.isinf(x).any():
        raise UnalikeError("x has an infinite value: make it a number, or NaN where it is missing.")
    if y.is_floating_point() and not float(y.abs().max()) * len(y) * exact.SCALE < exact.LARGEST / 4:
        raise UnalikeError("Numbers to predict are too large for sums in 2^-30: divide them by their spread.")
    return x, y.float().double() if y.is_floating_point() else y.to(torch.int64)


def _sizes(data: Any) -> np.ndarray | None:
    """Return the number of rows of each client; None for one table."""
    return None if isinstance(data, tuple | list) else data.train.sizes


def column_names(data: Any, columns: int) -> list[str] | None:
    """Return the names of a federation's columns, if it has them."""
    preparation, schema = getattr(data, "preparation", None), getattr(data, "schema", None)
    found = preparation.features if preparation is not None else schema.features if schema is not None else None
    return list(found) if found is not None and len(found) == columns else None
