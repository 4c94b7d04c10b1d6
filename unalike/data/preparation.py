"""Preparing features for a model: every unit made comparable, and gaps filled, from sums over all clients alone.

A model that is trained by gradient steps learns nothing from a column in the thousands beside one in the hundredths.
So each feature is standardised, z = (x − mean) / deviation, by the mean and deviation over all clients' training rows;
a 0/1 feature by the deviation of a fair coin, so that a rare category does not weigh too much. What is more than five
deviations from the mean counts as five: a slip in one cell (a weight of 7000 kg) must not decide where training goes.
Nobody needs to see anybody's rows for that. Two sums over clients are enough:

    1. of every feature: how many rows have it, and their sum            → the mean
    2. of every feature: the squared distances from that mean            → the deviation

(Sums of squares in one go would lose a column such as 1,700,000,000 ± 3 to rounding.) A cell that is missing becomes
the mean of its feature; a 0/1 feature more, "age missing", says that it was. A number to predict is standardised too.

A simulation, messages in one process and a real federation all add with `totals`, which is exact whatever the order:
the same preparation, bit for bit.
"""

from __future__ import annotations

import dataclasses as dc
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from unalike.data.columns import Columns
from unalike.data.schema import Schema
from unalike.errors import UnalikeError, one_of

SCALES = ("standard", "client", "none", "raw")
OWN_UNITS = ("none", "raw")  # every number keeps its unit
# the deviation of a fair coin, by which 0/1 features are divided
COIN = 0.5
FARTHEST = 5.0  # limit, in deviations from the mean
# a deviation below this share of the mean is rounding: the feature is constant
CONSTANT = 1e-12
Sums = dict[str, Tensor]


@dc.dataclass(frozen=True)
class Recipe:
    """How features are to be prepared.

    scale: "standard" (by all clients' means and deviations), "client" (each client by its own), "none" (missing cells
    are filled) or "raw" (not even that: for trees). scaled: for each feature, whether it has a unit, or is 0 or 1.
    sources: the column each feature comes from; a column has at most one "missing" feature. target: whether y is a
    number to be standardised. names: of the features, if they have any.
    """

    scale: str
    scaled: tuple[bool, ...]
    sources: tuple[int, ...]
    target: bool = False
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        one_of(self, "scale", *SCALES)

    @classmethod
    def of(cls, schema: Schema | None, features: int, scale: str = "standard", target: bool = False) -> Recipe:
        """Return the recipe for a table's features, or for this many plain numbers."""
        target = target and scale not in OWN_UNITS
        if schema is None:
            return cls(scale, (True,) * features, tuple(range(features)), target)
        return cls(scale, tuple(schema.scaled), tuple(schema.sources), target, tuple(schema.features))

    def fits(self, x: Tensor) -> bool:
        """Return whether the recipe fits these samples: each a row of that many floats."""
        return x.dim() == 2 and x.is_floating_point() and x.shape[1] == len(self.scaled)

    def scaled_by(self, scale: str) -> Recipe:
        """Return the recipe with another scale; with "none" and "raw", a number to predict keeps its unit too."""
        return dc.replace(self, scale=scale, target=self.target and scale not in OWN_UNITS)

    def plain(self) -> dict[str, Any]:
        """Return the recipe as plain values for JSON."""
        return dc.asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the recipe that `plain` wrote; refuse anything else."""
        try:
            scaled, sources, names = tuple(plain["scaled"]), tuple(plain["sources"]), plain["names"]
            scale, target = plain["scale"], plain["target"]
            right = all(type(v) is bool for v in (*scaled, target)) and all(type(v) is int for v in sources)
            right = right and len(scaled) == len(sources) and all(0 <= v < len(sources) for v in sources)
            right = right and (names is None or [type(name) for name in names] == [str] * len(scaled))
        except (KeyError, TypeError):
            right = False
        if not right:
            raise UnalikeError("That is no recipe for preparing features: use one version of unalike everywhere.")
        return cls(scale, scaled, sources, target, None if names is None else tuple(names))


# ---------------------------------------------------------------- clients' sums


def first_sums(columns: Columns, recipe: Recipe) -> Sums:
    """Return for each client and feature the number of its rows that have it and their sum; the same for y if it is a
    number. One row per client."""
    present = ~torch.isnan(columns.x)
    out = {"present": _added(present.to(torch.int64), columns), "sum": _added(_filled(columns.x, present), columns)}
    if recipe.target:
        out["y_sum"] = _added(_flat(columns.y), columns)
    return out


def second_sums(columns: Columns, center: Tensor, y_center: Tensor | None) -> Sums:
    """Return for each client the squared distances from the overall means, summed over its rows."""
    present = ~torch.isnan(columns.x)
    out = {"squares": _added(_filled(columns.x.double() - center.to(present.device), present).square(), columns)}
    if y_center is not None:
        out["y_squares"] = _added((_flat(columns.y) - y_center.to(present.device)).square(), columns)
    return out


def totals(rows: Tensor) -> Tensor:
    """Return the sum of the clients' rows, correctly rounded, so that it does not depend on their order."""
    if not rows.is_floating_point():
        return rows.sum(0)
    return torch.tensor([math.fsum(column) for column in rows.T.tolist()], dtype=torch.float64)


def _added(values: Tensor, columns: Columns) -> Tensor:
    """Sum every client's rows; a client's sum is the same whether it is computed here or at the client."""
    values = values.cpu()
    if not len(values):
        return torch.zeros(len(columns), *values.shape[1:], dtype=values.dtype)
    filled = np.flatnonzero(columns.sizes)  # reduceat cannot sum an empty part
    out = np.zeros((len(columns), *values.shape[1:]), values.numpy().dtype)
    out[filled] = np.add.reduceat(values.numpy(), columns.offsets[:-1][filled], axis=0)
    return torch.from_numpy(out)


def _filled(x: Tensor, present: Tensor) -> Tensor:
    return torch.where(present, x.double(), 0.0)


def _flat(y: Tensor) -> Tensor:
    return y.double().reshape(len(y), math.prod(y.shape[1:]))


# ---------------------------------------------------------------- from sums to a preparation


@dc.dataclass(frozen=True)
class Preparation:
    """The transformation of every row, in training and when a model is used.

    center, scale, fill: for each feature, z = (x − center) / scale, and the value for a missing cell; without `fill`
    missing cells stay so. limit: the largest |z|, if there is a limit. indicators: the features with an extra "missing"
    feature, one per column. target: mean and deviation of the predicted number or numbers. own: scale each client by
    the mean and deviation of its own training rows (a row without a client by those of all clients). The result is
    float32.
    """

    center: tuple[float, ...]
    scale: tuple[float, ...]
    fill: tuple[float, ...]
    scaled: tuple[bool, ...]
    indicators: tuple[int, ...] = ()
    target: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    own: bool = False
    names: tuple[str, ...] | None = None
    limit: float | None = None

    @property
    def width(self) -> int:
        """Return the number of features that the model sees."""
        return len(self.center) + len(self.indicators)

    def apply(self, x: Tensor) -> Tensor:
        """Return raw features [n, D] as the model sees them, float32 [n, width]."""
        if x.dim() != 2 or x.shape[1] != len(self.center):
            raise UnalikeError(f"x has shape {list(x.shape)}: it must be [n, {len(self.center)}], one row per sample.")
        center, scale = (torch.tensor(v, dtype=torch.float64, device=x.device) for v in (self.center, self.scale))
        return self._finish(x, (x.double() - center) / scale)

    def raw(self, feature: int, value: float) -> float:
        """Return what a prepared value was before, to a millionth of the feature's scale: prepared values are float32.
        One that clients made by numbers of their own stays as it is."""
        if self.own or feature >= len(self.center) or (self.center[feature], self.scale[feature]) == (0.0, 1.0):
            return value
        center, scale = self.center[feature], self.scale[feature]
        return round(value * scale + center, 6 - math.floor(math.log10(scale))) + 0.0  # (minus zero becomes zero)

    def apply_columns(self, columns: Columns, train: Columns) -> Columns:
        """Return a split with prepared features; `train` has the raw training rows of the same clients."""
        x = self._own(columns, train) if self.own else self.apply(columns.x)
        return Columns(x, self.apply_target(columns.y), columns.offsets)

    def _own(self, columns: Columns, train: Columns) -> Tensor:
        """Prepare each client's rows by the mean and deviation of its own training rows."""
        parts = []
        for k in range(len(columns)):
            x, known = columns.of(k)[0], train.of(k)[0]
            present = ~torch.isnan(known)
            n = present.sum(0).clamp(min=1)
            mean = _filled(known, present).sum(0) / n
            scale = _deviation(_filled(known.double() - mean, present).square().sum(0), n, mean)
            scale = torch.where(torch.tensor(self.scaled, device=x.device), scale, COIN)
            parts.append(self._finish(x, (x.double() - mean) / scale))
        return torch.cat(parts)

    def _finish(self, x: Tensor, z: Tensor) -> Tensor:
        z = z if self.limit is None else z.clamp(-self.limit, self.limit)
        if not self.fill:
            return z.float()
        fill = torch.tensor(self.fill, dtype=torch.float64, device=x.device)
        missing = torch.isnan(x)
        z = torch.where(missing, fill, z)
        return torch.cat([z, missing[:, list(self.indicators)].double()], 1).float()

    def apply_target(self, y: Tensor) -> Tensor:
        """Return labels unchanged, and numbers to predict standardised."""
        if self.target is None:
            return y
        mean, scale = (torch.tensor(v, dtype=torch.float64, device=y.device) for v in self.target)
        if len(mean) != math.prod(y.shape[1:]):
            raise UnalikeError(f"y has shape {list(y.shape)}, and {len(mean)} numbers per sample were prepared.")
        return ((_flat(y) - mean) / scale).reshape(y.shape).float()

    @property
    def features(self) -> list[str] | None:
        """Return the names of the features that the model sees."""
        if self.names is None:
            return None
        column = lambda k: self.names[k].partition("=")[0]  # type: ignore[index]  # noqa: E731
        return [*self.names, *(f"{column(k)} missing" for k in self.indicators)]

    def plain(self) -> dict[str, Any]:
        """Return the preparation as plain values for JSON; every number is kept exactly."""
        return dc.asdict(self)

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        """Return the preparation that `plain` wrote; refuse anything else."""
        bad = UnalikeError("That is no preparation of features: use one version of unalike everywhere.")
        if not isinstance(plain, Mapping) or {f.name for f in dc.fields(cls)} != set(plain):
            raise bad
        try:
            numbers = {name: _numbers(plain[name]) for name in ("center", "scale", "fill")}
            scaled, indicators = tuple(map(bool, plain["scaled"])), tuple(plain["indicators"])
            mean, spread = (None, None) if plain["target"] is None else map(_numbers, plain["target"])
            target = None if mean is None or spread is None else (mean, spread)
            names = None if plain["names"] is None else tuple(map(str, plain["names"]))
            (limit,) = (None,) if plain["limit"] is None else _numbers([plain["limit"]])
        except (TypeError, ValueError):
            raise bad from None
        width = len(numbers["center"])
        right = len(scaled) == len(numbers["scale"]) == width and len(numbers["fill"]) in (0, width)
        right = right and (bool(numbers["fill"]) or not indicators)
        right = right and all(type(k) is int and 0 <= k < width for k in indicators)
        right = right and len(set(indicators)) == len(indicators) and min(numbers["scale"], default=1) > 0
        right = right and (names is None or len(names) == width) and (limit is None or limit > 0)
        right = right and (target is None or (len(target[0]) == len(target[1]) and min(target[1], default=0) > 0))
        if not right:
            raise bad
        own = bool(plain["own"])
        return cls(**numbers, scaled=scaled, indicators=indicators, target=target, own=own, names=names, limit=limit)


def _numbers(values: Sequence[Any]) -> tuple[float, ...]:
    out = tuple(map(float, values))
    if not all(map(math.isfinite, out)):
        raise ValueError
    return out


def means(sums: Mapping[str, Tensor], samples: int) -> tuple[Tensor, Tensor | None]:
    """Return the mean of every feature over the rows that have it, and of y, from the totals of the first sums."""
    center = sums["sum"] / sums["present"].clamp(min=1)
    return center, sums["y_sum"] / samples if "y_sum" in sums else None


def concluded(recipe: Recipe, first: Mapping[str, Tensor], second: Mapping[str, Tensor], samples: int) -> Preparation:
    """Return the preparation that follows from a recipe and the totals of both sums."""
    mean, y_mean = means(first, samples)
    deviation = _deviation(second["squares"], first["present"].clamp(min=1), mean)
    if recipe.scale in OWN_UNITS:
        center, scale, fill = torch.zeros_like(mean), torch.ones_like(mean), mean
    else:
        center, scale = mean, torch.where(torch.tensor(recipe.scaled), deviation, COIN)
        fill = torch.zeros_like(mean)
    lacking = (first["present"] < samples).tolist()
    indicators = {column: k for k, column in reversed([*enumerate(recipe.sources)]) if lacking[k]}
    if recipe.scale == "raw":
        fill, indicators = fill[:0], {}
    target = None
    if y_mean is not None:
        y_scale = _deviation(second["y_squares"], torch.tensor(samples), y_mean)
        target = tuple(y_mean.tolist()), tuple(y_scale.tolist())
    return Preparation(
        center=tuple(center.tolist()),
        scale=tuple(scale.tolist()),
        fill=tuple(fill.tolist()),
        scaled=recipe.scaled,
        indicators=tuple(sorted(indicators.values())),
        target=target,
        own=recipe.scale == "client",
        names=recipe.names,
        limit=None if recipe.scale in OWN_UNITS else FARTHEST,
    )


def _deviation(squares: Tensor, count: Tensor, mean: Tensor) -> Tensor:
    """Return √(squares / count), and 1 for a feature that is constant."""
    found = (squares / count).sqrt()
    return torch.where(found > CONSTANT * mean.abs(), found, 1.0)


def prepare(columns: Columns, recipe: Recipe) -> Preparation:
    """Return the preparation for clients whose training rows are all in this process."""
    if not recipe.fits(columns.x):
        shape = f"{list(columns.x.shape[1:])} {columns.x.dtype}"
        raise UnalikeError(f"A sample is {shape}: features to be scaled must be one row of floats per sample.")
    samples = len(columns.y)
    first = {name: totals(rows) for name, rows in first_sums(columns, recipe).items()}
    second = second_sums(columns, *means(first, samples))
    return concluded(recipe, first, {name: totals(rows) for name, rows in second.items()}, samples)
