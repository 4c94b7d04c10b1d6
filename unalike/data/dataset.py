"""One pooled data set, before it is divided among clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch

from unalike import draws
from unalike.data import options
from unalike.data import partition as partitions
from unalike.data.columns import Columns, Pair, as_pair
from unalike.data.extras import rows_aside, with_extras
from unalike.data.federation import Federation, carve, check_carved
from unalike.data.pixels import kept
from unalike.data.preparation import Recipe
from unalike.data.schema import Schema
from unalike.errors import UnalikeError, did_you_mean
from unalike.settings.knobs import Knob

# number of clients if neither the caller nor the data say
CLIENTS = 10


class Dataset:
    """Samples and labels, optionally with a test set (x, y) that becomes the federation's global test set.

    `columns` has further values of the training rows by name (the writer, the hospital), `test_columns` those of the
    test rows. `natural` names the column that is the client in real life, `time` the column with the time (for
    'periods'). `label_names` are the classes' names. For data from a table, `schema` describes the features, `scale`
    says how they are prepared after the split (`Federation.prepared`), and `notes` are remarks made while reading it.
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        test: tuple[Any, Any] | None = None,
        classes: int | None = None,
        name: str = "data",
        *,
        columns: Mapping[str, Any] | None = None,
        test_columns: Mapping[str, Any] | None = None,
        natural: str | None = None,
        time: str | None = None,
        label_names: Sequence[str] | None = None,
        schema: Schema | None = None,
        scale: str | None = None,
        notes: Sequence[str] = (),
    ):
        self.name, self.schema, self.scale, self.notes = name, schema, scale, [*notes]
        self.x, self.y = as_pair(x, y, f"{name!r}")
        if not len(self.x):
            raise UnalikeError(f"The data set {name!r} is empty: give at least one sample.")
        whole = Federation(
            Columns(self.x, self.y, [0, len(self.x)]), global_test=test, classes=classes, label_names=label_names
        )
        self.test, self.classes, self.label_names = whole.global_test, whole.classes, whole.label_names
        test_rows = 0 if self.test is None else len(self.test[0])
        self.columns = {key: self._values(key, v, len(self), "training") for key, v in (columns or {}).items()}
        self.test_columns = {key: self._values(key, v, test_rows, "test") for key, v in (test_columns or {}).items()}
        self.natural, self.time = natural, time
        for column in (natural, time):
            if column is not None:
                self._column(column)

    def _values(self, key: str, values: Any, rows: int, what: str) -> np.ndarray:
        """Return the column as an array; raise unless it has one text or whole number per row."""
        array = np.asarray(values)
        if array.dtype.kind == "O" and all(isinstance(value, str) for value in array.flat):
            array = array.astype(str)
        if array.ndim != 1 or array.dtype.kind not in "iuU":
            raise UnalikeError(
                f"The column {key!r} of {self.name!r} has shape {list(array.shape)} and dtype {array.dtype}: it must "
                "be one text or whole number per row; fill what is missing."
            )
        if len(array) != rows:
            raise UnalikeError(
                f"The column {key!r} of {self.name!r} has {len(array)} values for {rows} {what} rows: give one per row."
            )
        return array

    def _column(self, key: str) -> np.ndarray:
        if key not in self.columns:
            of_table = "" if self.schema is None else f" Of a table say client={key!r} or time={key!r}."
            raise UnalikeError(
                f"The data set {self.name!r} has no column {key!r}.{did_you_mean(key, self.columns)}{of_table}"
            )
        return self.columns[key]

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        kind = "regression" if self.classes is None else f"{self.classes} classes"
        test = "no test set" if self.test is None else f"{len(self.test[0])} test samples"
        by = "" if self.natural is None else f", clients by {self.natural!r}"
        return f"Dataset({self.name!r}, {len(self)} samples, {test}, x {list(self.x.shape[1:])}, {kind}{by})"

    def split(
        self,
        partition: Annotated[partitions.Partition | str | None, options.PARTITION] = None,
        clients: Annotated[int | None, options.CLIENTS] = None,
        seed: options.Seed = 0,
        test: Annotated[float | str, options.TEST] = 0.0,
        validation: options.Validation = 0.0,
        *,
        drop_empty: Annotated[bool, Knob("leave clients without a sample out")] = False,
        public: Annotated[Any, options.PUBLIC] = 0,
        public_labels: Annotated[bool, options.LABELS] = True,
        shipped: Annotated[bool, options.SHIPPED] = False,
        splits: Annotated[dict[str, float] | None, options.SPLITS] = None,
        raw: bool = False,
    ) -> Federation:
        """Deal the samples to clients ('dirichlet:0.3' or a partition), then carve per-client splits, then change what
        clients have got ('dirichlet:0.3|permute:2').

        Without a partition: the data's own clients where they have such a column, else 'iid'; without `clients`: all
        natural ones, else 10. `test` and `validation` are shares of each client's samples; test="same" deals the data
        set's test rows instead, in the same way as the training rows ('similarity' and 'natural' can do that). All
        test rows stay the global test set. Clients without a sample (a partition of your own,
        'dirichlet:0.1:0') are an error, or left out with `drop_empty`. `raw` leaves features to be prepared later;
        changes of features are then refused, as they are made of prepared ones.

        `public` is a public set: a share or a number of the samples, set aside before clients get theirs; a pair
        (x, y or None) or another data set; a file; or 'noise:1000'. Without `public_labels` it has no labels;
        `shipped`: the server sends it to every client once, and its bytes count. `splits`, as
        {"support": 0.5, "query": 0.5}, divides every client's training samples (`Federation.named_splits`).
        """
        if isinstance(public, int | float) and public:
            rest, aside = self._set_aside(rows_aside(public, len(self)), seed)
            more: dict[str, Any] = {"drop_empty": drop_empty, "public": aside, "public_labels": public_labels}
            more |= {"shipped": shipped, "splits": splits, "raw": raw}
            return rest.split(partition, clients, seed, test, validation, **more)
        recipe = self._recipe_of(partition)
        dealer: Any = recipe.dealer
        labels, test_labels, names = self.y.cpu().numpy(), None, None
        if self.test is not None:
            test_labels = self.test[1].cpu().numpy()
        if isinstance(dealer, partitions.Periods):
            labels = self._times(dealer)
        if isinstance(dealer, partitions.Natural):
            labels, test_labels = self._natural(dealer, test == "same")
            clients = len(np.unique(labels)) * recipe.copies if clients is None else clients
        clients = self._dealt_to(recipe, CLIENTS if clients is None else clients)
        if isinstance(dealer, partitions.Natural):
            names = dealer.chosen(labels, clients)

        test_parts = None
        if test == "same":
            parts, test_parts = self._same(recipe, labels, test_labels, clients, seed)
        elif isinstance(test, str):
            raise UnalikeError(f"test={test!r} must be a share of each client's samples, such as 0.2, or 'same'.")
        else:
            parts = recipe(labels, clients, seed)
        parts = self._checked(dealer, parts, clients)
        if any(change.in_order for change in recipe.changes):
            parts = _by_time(parts, self._times(dealer))
            test_parts = test_parts and _by_time(test_parts, self.test_columns.get(self.time or ""))
        empty = [k for k, part in enumerate(parts) if not len(part)]
        if empty and (not drop_empty or len(empty) == clients):
            raise UnalikeError(
                f"The partition {partitions.called(dealer)} leaves {len(empty)} of {clients} clients empty: ask for "
                "fewer clients, or leave these out with drop_empty=True."
            )
        filled = np.setdiff1d(np.arange(clients), empty)
        share = 0.0 if isinstance(test, str) else test
        draws.check_seed(seed)
        check_carved(share, validation)
        dealt: dict[str, Any] = _deal((self.x, self.y), [parts[k] for k in filled], share, validation, seed)
        if self.test and test_parts:
            dealt |= {"test": _deal(self.test, [test_parts[k] for k in filled])["train"]}
        fed = Federation(
            **dealt,
            global_test=self.test,
            classes=self.classes,
            names=None if names is None else [str(names[k]) for k in filled],
            label_names=self.label_names,
            schema=self.schema,
            recipe=self._recipe(),
            notes=self.notes,
        )

        def ready(fed: Federation) -> Federation:
            return recipe.change(fed if raw or self.scale is None else fed.prepared(), seed)

        return with_extras(fed, public, public_labels, splits, seed, shipped, ready)

    def _set_aside(self, rows: int, seed: int) -> tuple[Dataset, Pair]:
        """Draw `rows` rows by the seed; return the data set without them, and the rows."""
        draws.check_seed(seed)
        aside = np.zeros(len(self), bool)
        aside[draws.generator(seed, "public").choice(len(self), rows, replace=False)] = True
        remaining, drawn = (torch.from_numpy(np.flatnonzero(rows)) for rows in (~aside, aside))
        rest = Dataset(
            kept(self.x, remaining),
            kept(self.y, remaining),
            self.test,
            self.classes,
            self.name,
            columns={key: values[~aside] for key, values in self.columns.items()},
            test_columns=self.test_columns,
            natural=self.natural,
            time=self.time,
            label_names=self.label_names,
            schema=self.schema,
            scale=self.scale,
            notes=self.notes,
        )
        return rest, (kept(self.x, drawn), kept(self.y, drawn))

    def _recipe_of(self, partition: Any) -> partitions.Composed:
        """Return the partition as a sequence of pieces, the first of which deals the samples."""
        given = partitions.parse(partition) if isinstance(partition, str) else partition
        recipe = partitions.Composed(()) if given is None else partitions.composed(given)
        own = "iid" if self.natural is None else "natural"
        return recipe if recipe.dealer is not None else partitions.Composed((partitions.parse(own), *recipe.pieces))

    def _dealt_to(self, recipe: partitions.Composed, clients: int) -> int:
        """Return the number of clients that samples are dealt to, if later changes make several clients of one."""
        copies = recipe.copies
        if isinstance(clients, (int, np.integer)) and clients % copies:
            least = clients // copies * copies
            either = f"{least} or {least + copies}" if least else f"{copies}"
            raise UnalikeError(
                f"'{recipe}' makes sets of {copies} clients, and {clients} is no multiple: ask for {either}."
            )
        return clients // copies if copies > 1 else clients

    def _times(self, partition: Any) -> np.ndarray:
        """Return the time of every training row: the time column, else the order in which rows are stored."""
        column = self.time
        if isinstance(partition, partitions.Periods) and partition.column is not None:
            column = partition.column
        return np.arange(len(self)) if column is None else self._column(column)

    def _recipe(self) -> Recipe | None:
        if self.scale is None:
            return None
        return Recipe.of(self.schema, self.x[:1].numel(), self.scale, target=self.classes is None)

    def _natural(self, partition: partitions.Natural, with_test: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the column that names the client, of the training rows and of the test rows."""
        column = self.natural if partition.column is None else partition.column
        if column is None:
            raise UnalikeError(
                f"The data set {self.name!r} does not say who its clients are: name a column, such as 'natural:user', "
                f"or use another partition.{did_you_mean('', self.columns)}"
            )
        values = self._column(column)
        if with_test and self.test is not None and column not in self.test_columns:
            raise UnalikeError(
                f"test='same' needs the column {column!r} of the test rows of {self.name!r}: give test_columns, or a "
                "share such as test=0.2."
            )
        return values, self.test_columns.get(column)

    def _same(
        self, recipe: partitions.Composed, labels: np.ndarray, test_labels: np.ndarray | None, clients: int, seed: int
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        partition: Any = recipe.dealer
        if recipe.law is not None or not hasattr(partition, "train_and_test"):
            raise UnalikeError(
                f"test='same' does not go with the partition {recipe}: use 'similarity' or 'natural', or a "
                "share such as test=0.2."
            )
        if partition.strength != 1:
            raise UnalikeError(
                f"test='same' deals test rows at full strength only, and {partition} is below: leave the strength out, "
                "or use a share such as test=0.2."
            )
        if test_labels is None:
            raise UnalikeError(f"test='same' was asked for but {self.name!r} has no test set: use a share.")
        parts, test_parts = partition.train_and_test(labels, test_labels, clients, seed)
        if not any(len(part) for part in test_parts):
            raise UnalikeError(
                f"test='same' of {len(test_labels)} test samples leaves none for any of {clients} clients: use a share."
            )
        return parts, test_parts

    def _checked(self, partition: Any, parts: Any, clients: int) -> list[np.ndarray]:
        """Return one array of row numbers per client; raise if the partition returned anything else."""
        who = partitions.called(partition)
        try:
            parts = [np.asarray(part) for part in parts]
            whole = all(part.ndim == 1 and (part.dtype.kind in "iu" or not len(part)) for part in parts)
        except (TypeError, ValueError):
            whole = False
        if not whole:
            raise UnalikeError(f"The partition {who} must give a list of row numbers for every client: mend it.")
        parts = [part.astype(np.int64) for part in parts]
        rows = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        if len(parts) != clients or (len(rows) and (rows.min() < 0 or rows.max() >= len(self))):
            raise UnalikeError(
                f"The partition {who} gave {len(parts)} parts for {clients} clients, with row "
                f"numbers up to {rows.max(initial=0)}: it must give one part per client, of rows in "
                f"0..{len(self) - 1}; mend it."
            )
        return parts


def _by_time(parts: list[np.ndarray], times: np.ndarray | None) -> list[np.ndarray]:
    """Return every client's rows in order of time; rows of the same time, and all rows if `times` is None, in the order
    in which they are stored."""
    ordered = [np.sort(part) for part in parts]
    return ordered if times is None else [part[np.argsort(times[part], kind="stable")] for part in ordered]


def _deal(
    pair: Pair, parts: list[np.ndarray], test: float = 0.0, validation: float = 0.0, seed: int = 0
) -> dict[str, Columns]:
    """Copy each client's rows of the pair into columns, one for each split. (Each row is copied once: the samples may
    fill much of the memory.)"""
    whole = Columns(*pair, [0, len(pair[0])])
    rows, sizes = np.concatenate(parts), np.array([len(part) for part in parts])
    carved = carve(sizes, test, validation, seed) if test or validation else {"train": (slice(None), sizes)}
    return {name: whole.take(rows[places], counts) for name, (places, counts) in carved.items()}
