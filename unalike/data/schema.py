"""The meaning of a table's columns: everything needed to turn rows of words and numbers into the x and y of a model.

A schema holds names and categories, but no numbers from anyone's data. It is the same for all clients: in a real
federation it is agreed on before the run.
"""

from __future__ import annotations

import dataclasses as dc
from typing import Any, Literal, Self

Kind = Literal["number", "flag", "category", "date"]


@dc.dataclass(frozen=True)
class Column:
    """A column of the table that the model learns from; a category has one 0/1 feature per value."""

    name: str
    kind: Kind = "number"
    values: tuple[str, ...] = ()

    @property
    def features(self) -> list[str]:
        """Return the names of the features that this column becomes."""
        return [f"{self.name}={value}" for value in self.values] if self.kind == "category" else [self.name]


@dc.dataclass(frozen=True)
class Schema:
    """The columns that x is made of, in order; the label's column and its values (None: a number to predict).

    A feature is a column of x. A missing cell is NaN in all features of its column.
    """

    columns: tuple[Column, ...]
    label: str
    label_names: tuple[str, ...] | None = None

    @property
    def features(self) -> list[str]:
        """Return the name of each feature."""
        return [name for column in self.columns for name in column.features]

    @property
    def scaled(self) -> list[bool]:
        """Return for each feature whether it has a unit: numbers and dates do, 0/1 features do not."""
        return [column.kind in ("number", "date") for column in self.columns for _ in column.features]

    @property
    def sources(self) -> list[int]:
        """Return for each feature the number of its column."""
        return [k for k, column in enumerate(self.columns) for _ in column.features]

    def difference(self, other: Schema) -> str:
        """Return in words the first column in which another schema differs; "" if they are equal."""
        mine, theirs = ({c.name: c for c in schema.columns} for schema in (self, other))
        for name in [*mine, *theirs]:
            if name not in theirs or name not in mine:
                return f"column {name!r} is in one of them only"
            if mine[name].kind != theirs[name].kind:
                return f"column {name!r} is a {mine[name].kind} in one and a {theirs[name].kind} in the other"
            if mine[name].values != theirs[name].values:
                lone = sorted({*mine[name].values} ^ {*theirs[name].values})
                return f"column {name!r} has other categories, or in another order{f': {lone[0]!r}' if lone else ''}"
        if [*mine] != [*theirs]:
            first = next(a for a, b in zip(mine, theirs, strict=True) if a != b)
            return f"their columns are in another order, from {first!r} on"
        if (self.label, self.label_names) != (other.label, other.label_names):
            return f"what is to be learned, column {self.label!r}, is not the same"
        return ""

    def plain(self) -> dict[str, Any]:
        """Return the schema as plain values for JSON."""
        return dc.asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        """Return the schema that `plain` wrote."""
        columns = tuple(Column(c["name"], c["kind"], tuple(c["values"])) for c in plain["columns"])
        names = plain["label_names"]
        return cls(columns, plain["label"], None if names is None else tuple(names))
