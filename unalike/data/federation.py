"""A federation: the clients' data as named splits of columns, so that a client is only an index.

Nothing here loops over clients in Python, except where the caller gives one array or one file per client: a
federation of 1,000,000 clients is checked, split and fingerprinted in seconds.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from unalike import draws
from unalike.data import files
from unalike.data.columns import FORMAT, Columns, Pair, agree, as_pair, first_bad_row, first_infinite_row, stack
from unalike.data.drifting import Drifting
from unalike.data.pixels import Pixels
from unalike.data.preparation import Preparation, Recipe, prepare
from unalike.data.public import Public, as_public, hash_tensor, public_hash
from unalike.data.schema import Schema
from unalike.errors import UnalikeError

SPLITS = ("train", "validation", "test")
# more classes than this mean that labels are not class numbers
MOST_CLASSES = 1 << 20


class Federation:
    """N clients with a training split each; optionally validation and test splits, and a global test set.

    `splits` has the splits by name ("train", "validation", "test", then further ones, `further`), in this order;
    `train`, `validation` and `test` are the same columns, or None. `public` is a pair (x, y or None) that the server
    and all clients have, or None; `shipped`: the server sends it to every client once.

    `classes` is the number of classes (found from the labels if not given), None for regression. `names` are the
    clients' names, `label_names` the classes'. Data from a table have its `schema`, and `notes`: remarks made while
    reading it. Features that are still to be prepared have a `recipe`; prepared ones have their `preparation`.
    `planted` records what a made-to-order skew did to every client, by the skew's name: groups as whole numbers, or how
    far each client is changed. `drift` says how samples change with the round, if they do: the splits are then the
    samples before any drift, and `at(round)` those of a round.
    """

    # whether the samples are on other machines
    remote = False

    def __init__(
        self,
        train: Columns,
        *,
        validation: Columns | None = None,
        test: Columns | None = None,
        splits: Mapping[str, Columns] | None = None,
        global_test: tuple[Any, Any] | None = None,
        public: tuple[Any, Any] | None = None,
        shipped: bool = False,
        classes: int | None = None,
        names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        schema: Schema | None = None,
        recipe: Recipe | None = None,
        preparation: Preparation | None = None,
        notes: Sequence[str] = (),
        planted: Mapping[str, Any] | None = None,
        drift: Drifting | None = None,
    ):
        given = zip(SPLITS, (train, validation, test), strict=True)
        self.splits: dict[str, Columns] = {name: columns for name, columns in given if columns is not None}
        self.splits |= _named(splits or {})
        self.global_test: Pair | None = None
        if global_test is not None:
            if not isinstance(global_test, (tuple, list)) or len(global_test) != 2:
                raise UnalikeError(f"The global test set is a {type(global_test).__name__}: it must be a pair (x, y).")
            self.global_test = as_pair(*global_test, "the global test set")
        for what, x, y, columns in self.sets():
            if columns is not None and len(columns) != len(train):
                raise UnalikeError(
                    f"The {what} has {len(columns)} clients and the training split {len(train)}: they must "
                    "be equal; give clients without such samples an empty part."
                )
            agree((x, y), (train.x, train.y), f"The {what}", "the training split")
        self.public: Public | None = None if public is None else as_public(public, train)
        self.shipped = bool(shipped)
        if shipped and public is None:
            raise UnalikeError("shipped=True is about a public set, and there is none: give `public` too.")
        if names is not None:
            names = [str(name) for name in names]
            if len(names) != len(train) or len(set(names)) != len(names):
                raise UnalikeError(
                    f"There are {len(names)} names ({len(set(names))} distinct) for {len(train)} clients: "
                    "every client needs its own."
                )
        self.names = names
        self.classes = self._count_classes(classes)
        self.schema, self.recipe, self.preparation, self.notes = schema, recipe, preparation, [*notes]
        self.planted = {name: np.asarray(values) for name, values in (planted or {}).items()}
        for name, values in self.planted.items():
            if values.shape != (len(train),):
                raise UnalikeError(f"planted {name!r} has shape {list(values.shape)}: it must be one value per client.")
        self.drift = drift
        self.label_names = None if label_names is None else [str(name) for name in label_names]
        if label_names is not None and len(label_names) != self.classes:
            raise UnalikeError(
                f"There are {len(label_names)} names of labels and {self.classes} classes: give one per class."
            )

    def _count_classes(self, given: int | None) -> int | None:
        if self.train.y.dtype.is_floating_point:
            if given is not None:
                raise UnalikeError(
                    f"classes={given} was given but the labels are {self.train.y.dtype}: class labels must "
                    "be integers; convert them, or leave classes out for regression."
                )
            return None
        if given is None:
            found = max((int(y.max()) + 1 for _, _, y, _ in self.sets() if len(y)), default=0)
            if found > MOST_CLASSES:
                raise UnalikeError(f"The largest label is {found - 1}: number the classes 0, 1, 2, …, or give classes.")
            return found
        if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or given < 1:
            raise UnalikeError(
                f"classes={given!r} must be a positive integer; leave it out to find it from the labels."
            )
        return int(given)

    @property
    def train(self) -> Columns:
        """Return the training split."""
        return self.splits["train"]

    @property
    def validation(self) -> Columns | None:
        """Return the clients' validation split, None if there is none."""
        return self.splits.get("validation")

    @property
    def test(self) -> Columns | None:
        """Return the clients' test split, None if there is none."""
        return self.splits.get("test")

    @property
    def further(self) -> dict[str, Columns]:
        """Return the splits beside train, validation and test, by name."""
        return {name: columns for name, columns in self.splits.items() if name not in SPLITS}

    @property
    def facts(self) -> dict[str, Any]:
        """Return everything but the samples, as keywords for the constructor: classes, names, schema, notes and so
        on."""
        names = ("classes", "names", "label_names", "schema", "recipe", "preparation", "notes", "shipped", "planted")
        return {name: getattr(self, name) for name in (*names, "drift")}

    def sets(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, Columns | None]]:
        """Yield every labelled set of samples as (description, x, y, columns); the global test set has no columns. The
        public set is left out, because it may have no labels."""
        for name, columns in self.splits.items():
            yield f"{'training' if name == 'train' else name} split", columns.x, columns.y, columns
        if self.global_test is not None:
            yield "global test set", *self.global_test, None

    def replace(self, **parts: Any) -> Self:
        """Return a copy with some of the constructor's arguments replaced and the others kept."""
        sets = {"global_test": self.global_test, "public": self.public}
        return type(self)(**{**as_arguments(self.splits), **sets, **self.facts, **parts})

    def map(self, fn: Callable[[Columns], Columns], **parts: Any) -> Self:
        """Return a copy with `fn` applied to every split's columns; `parts` are replaced, as in `replace`."""
        splits = {name: fn(columns) for name, columns in self.splits.items()}
        return self.replace(**{**as_arguments(splits), **parts})

    def only(self, clients: Any) -> Self:
        """Return the federation of these clients alone, numbered in the given order; sets that all clients share
        stay."""
        ids = np.asarray(clients, dtype=np.int64)
        if self.drift is not None:
            raise UnalikeError("Data that drift are declared for all clients: some of them cannot be taken out.")

        def cut(columns: Columns) -> Columns:
            sizes = columns.sizes[ids]
            begin = np.cumsum(sizes) - sizes  # first row of each client
            rows = np.arange(sizes.sum()) + np.repeat(columns.offsets[ids] - begin, sizes)
            return columns.take(rows, sizes)

        names = None if self.names is None else [self.names[k] for k in ids]
        return self.map(cut, names=names, planted={name: values[ids] for name, values in self.planted.items()})

    def each_part(self, fn: Callable[[Federation], Federation]) -> Federation:
        """Apply `fn` to this federation; for a joined federation, to each of its parts, and join the results."""
        return fn(self)

    def at(self, round: int) -> Federation:
        """Return the federation as it is in this round (from 1): the samples of its clients drift in all splits; its
        sizes, global test set and public set do not. A federation without drift returns itself."""
        return self if self.drift is None else self.drift.present(self, round)

    def with_public(self, x: Any, y: Any = None, shipped: bool = False) -> Self:
        """Return a copy with a public set, labelled or not; `shipped`: the server sends it to every client once, and
        its bytes count as those of the set-up."""
        return self.replace(public=(x, y), shipped=shipped)

    def __len__(self) -> int:
        return len(self.train)

    @property
    def public_rows(self) -> int:
        """Return the number of samples in the public set, 0 if there is none."""
        return 0 if self.public is None else len(self.public[0])

    def public_fingerprint(self) -> str | None:
        """Return 16 hex digits that identify the public set, None if there is none."""
        return None if self.public is None else public_hash(self.public)

    def shipped_bytes(self) -> int:
        """Return the bytes of sending the public set to every client once; 0 if it is not shipped."""
        tensors = self.public if self.shipped and self.public is not None else ()
        return len(self) * sum(t.numel() * t.element_size() for t in tensors if t is not None)

    @property
    def sizes(self) -> np.ndarray:
        """Training samples per client, int64 [N]."""
        return self.train.sizes

    def __repr__(self) -> str:
        kind = "regression" if self.classes is None else f"{self.classes} classes"
        rest = "".join(f", {len(x)} in the {what}" for what, x, _, _ in list(self.sets())[1:])
        if self.public is not None:
            rest += f", {len(self.public[0])} {'un' if self.public[1] is None else ''}labelled in the public set"
        shape = f"x {list(self.train.x.shape[1:])} {str(self.train.x.dtype).removeprefix('torch.')}"
        drift = "" if self.drift is None else f", drifting over {self.drift.rounds} rounds"
        return f"Federation({len(self)} clients, {len(self.train.x)} training samples{rest}, {shape}, {kind}{drift})"

    def client_name(self, k: int) -> str:
        """Return client k's name for messages."""
        return f"client {k}" if self.names is None else f"client {k} ({self.names[k]!r})"

    def part_of(self, client: int) -> Federation:
        """Return the federation that holds a client's samples: this one or, if it is joined, the client's part."""
        return self

    def some_names(self, clients: np.ndarray) -> str:
        """Return up to three of these clients' names for messages, and a mark if there are more."""
        return ", ".join(self.client_name(int(k)) for k in clients[:3]) + (", …" if len(clients) > 3 else "")

    # ---- building

    @staticmethod
    def joined(parts: Mapping[str, Federation]) -> Federation:
        """Join federations, given by name, whose samples may have different shapes: pictures at some clients, signals
        at others. Clients are numbered part after part; each has the architecture with its part's name."""
        from unalike.data.joined import JoinedFederation  # imported here, because it is a subclass of Federation

        return JoinedFederation(parts)

    @classmethod
    def from_arrays(
        cls,
        clients: Iterable[tuple[Any, Any]],
        *,
        test: tuple[Any, Any] | None = None,
        client_tests: Iterable[tuple[Any, Any] | None] | None = None,
        client_validations: Iterable[tuple[Any, Any] | None] | None = None,
        client_splits: Mapping[str, Iterable[tuple[Any, Any] | None]] | None = None,
        classes: int | None = None,
        names: Sequence[str] | None = None,
    ) -> Federation:
        """Build a federation of one (x, y) per client, in RAM.

        `test` is the global test set; in `client_tests`, `client_validations` and the further `client_splits` by name,
        None is a client without one.
        """
        pairs = list(clients)
        if not pairs:
            raise UnalikeError("There are no clients: give at least one pair (x, y).")
        called = [f"client {k}" for k in range(len(pairs))] if names is None else [f"client {n!r}" for n in names]
        called += [f"client {k}" for k in range(len(called), len(pairs))]
        train = stack(pairs, called, None)
        splits: dict[str, Any] = {"train": train}
        for word, given in {"validation": client_validations, "test": client_tests, **(client_splits or {})}.items():
            if given is None:
                continue
            parts = list(given)
            if len(parts) != len(pairs):
                raise UnalikeError(
                    f"There are {len(parts)} client {word} sets for {len(pairs)} clients: give one per client, "
                    "None for a client without."
                )
            splits[word] = stack(parts, [f"the {word} set of {name}" for name in called], train)
        return cls(**as_arguments(splits), global_test=test, classes=classes, names=names)

    @classmethod
    def from_folder(
        cls,
        path: str | os.PathLike,
        *,
        test_fraction: float = 0.0,
        validation_fraction: float = 0.0,
        seed: int = 0,
        scale: str | None = None,
        raw: bool = False,
    ) -> Federation:
        """Read one .npz or .safetensors file per client, in the order of the file names; the stems become the names.

        Keys: x, y, optionally x_test, y_test, x_validation, y_validation, and x_NAME, y_NAME of further splits, the
        same in every file. A file
        `_test.npz` or `_test.safetensors` with x and y is the global test set. Other kinds of files are
        passed over. The fractions and the seed are those of `split_clients`. `scale` prepares the features
        (`prepared`), and a NaN in x is then a missing cell; `raw` leaves that for later.
        """
        fed = cls(**files.read_folder(Path(path), gaps=scale is not None))
        if test_fraction or validation_fraction:
            fed = fed.split_clients(test=test_fraction, validation=validation_fraction, seed=seed)
        if scale is None:
            return fed
        fed = fed.replace(recipe=Recipe.of(None, fed.train.x[:1].numel(), scale, target=fed.classes is None))
        return fed if raw else fed.prepared()

    def split_clients(self, *, test: float = 0.0, validation: float = 0.0, seed: int = 0) -> Federation:
        """Carve test and validation splits out of every client's training samples.

        A client's share is rounded to whole samples, so small clients may get none; each keeps at least one
        to train on. Which samples go depends on (seed, client) only; all keep their order.
        """
        check_carved(test, validation)
        for word, share in (("test", test), ("validation", validation)):
            if share and word in self.splits:
                raise UnalikeError(
                    f"{word}={share} was asked for but the clients have a {word} split: leave {word} out."
                )
        draws.check_seed(seed)
        if not test and not validation:
            return self
        if self.further:
            raise UnalikeError(
                f"The training samples are divided already ({', '.join(self.further)}), and samples of these would be "
                "tested on: carve test and validation first, then call named_splits."
            )
        if "views" in self.planted:
            raise UnalikeError(
                "Several clients have the same samples (views), and one would train on what another is tested on: "
                "carve test and validation first, then call skewed."
            )
        if self.preparation is not None:
            raise UnalikeError(
                "The features were prepared already, and rows that helped in that are no test: split first, or give "
                "from_table the share."
            )

        carved = carve(self.train.sizes, test, validation, seed)
        return self.replace(**{name: self.train.take(rows, sizes) for name, (rows, sizes) in carved.items()})

    def named_splits(self, seed: int = 0, **shares: float) -> Self:
        """Divide every client's training samples into further splits: `named_splits(support=0.5, query=0.5)`.

        The training split itself stays whole. Each split has at least one of a client's samples where the client has
        as many as there are splits. Which samples go where depends on (seed, client) only; all keep their order.
        """
        draws.check_seed(seed)
        check_shares(shares)
        if not shares:
            raise UnalikeError("There are no splits to make: give their shares, such as support=0.5, query=0.5.")
        if there := [name for name in shares if name in self.further]:
            raise UnalikeError(f"There is a split {there[0]!r} already: give the new one another name.")
        counts = _shared_out(self.train.sizes, list(shares.values()))
        part = _parts(self.train.sizes, counts, seed, "named splits")
        splits = {name: self.train.take(np.flatnonzero(part == i + 1), counts[i]) for i, name in enumerate(shares)}
        return self.replace(splits={**self.further, **splits})

    def skewed(self, changes: Any, seed: int = 0) -> Self:
        """Return the federation with its clients made unlike: 'rotate:4|permute:2', or changes of unalike.skew."""
        from unalike.data.partition import composed, parse  # imported here, because changes import federations

        recipe = composed(parse(changes) if isinstance(changes, str) else changes)
        if not recipe.natural:
            raise UnalikeError(f"{recipe.dealer} deals samples, and these have their clients: give changes alone.")
        return recipe.change(self, draws.check_seed(seed))

    def prepared(self, recipe: Recipe | str | None = None) -> Self:
        """Return the federation as models should see it: features in comparable units, missing cells filled, a number
        to predict standardised, all by sums over the clients' training samples (unalike/data/preparation.py).

        recipe: "standard", "client" (each client by its own numbers), "none" (fill only), "raw" (not even that), or a
        `Recipe`; by default the federation's own, else "standard". A federation that is already prepared is returned
        unchanged.
        """
        if self.preparation is not None and recipe is None:
            return self
        if self.preparation is not None:
            raise UnalikeError("The features of this federation are prepared already: begin with the raw ones.")
        if not isinstance(recipe, Recipe):
            own = self.recipe or Recipe.of(self.schema, self.train.x[:1].numel(), target=self.classes is None)
            recipe = own if recipe is None else own.scaled_by(recipe)
        self.check(gaps=True)
        return self.prepared_by(prepare(self.train, recipe))

    def prepared_by(self, preparation: Preparation) -> Self:
        """Return the federation with every sample prepared in this way."""
        return self._prepared(preparation, lambda columns: preparation.apply_columns(columns, self.train))

    def _prepared(self, preparation: Preparation, columns: Callable[[Columns], Columns]) -> Self:
        test = self.global_test
        if test is not None:
            test = preparation.apply(test[0]), preparation.apply_target(test[1])
        public = self.public
        if public is not None:
            x, y = public
            public = preparation.apply(x), None if y is None else preparation.apply_target(y)
        return self.map(columns, global_test=test, public=public, recipe=None, preparation=preparation)

    def pooled(self) -> Federation:
        """Return a federation of one client that holds all clients' data, split by split; the tensors are shared, not
        copied."""
        if self.drift is not None:
            raise UnalikeError("These data drift, each client's in its own way: pool those of a round, fed.at(round).")
        return self.map(lambda columns: Columns(columns.x, columns.y, [0, len(columns.y)]), names=None, planted={})

    # ---- memory and devices

    def mapped(self, folder: str | os.PathLike) -> Federation:
        """Write every column as .npy into a new folder; return this federation with its tensors memory-mapped.

        The folder appears under its name only when complete.
        """
        for what, tensor in self._tensors():
            if tensor.dtype == torch.bfloat16:
                raise UnalikeError(
                    f"The {what} is bfloat16, which .npy files cannot hold: call .to('cpu', torch.float32) first."
                )
        files.write_mapped(Path(folder), self.splits, self.global_test, self.public, self.facts)
        return Federation.open_mapped(folder)

    @classmethod
    def open_mapped(cls, folder: str | os.PathLike) -> Federation:
        """Open a folder that `mapped` wrote; rows are read from disk when touched (writes stay private)."""
        parts = files.open_mapped(Path(folder))
        return cls(**as_arguments(parts.pop("splits")), **parts)

    def to(self, device: str | torch.device, dtype: torch.dtype | None = None) -> Federation:
        """Move every tensor, floats to `dtype` where given, integers as they are; may return self."""
        try:
            device = torch.device(device)
        except (RuntimeError, TypeError):
            raise UnalikeError(f"There is no device {device!r}: give 'cpu', 'cuda' or 'cuda:0'.") from None
        if device.type == "cuda" and not torch.cuda.is_available():
            raise UnalikeError(f"The device {str(device)!r} was asked for but torch sees no GPU here: use 'cpu'.")
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise UnalikeError(f"dtype={dtype!r} must be a floating-point torch dtype, such as torch.float32.")
        # a tensor that is used twice (a test set that is the training set) is moved once
        moved: dict[int, torch.Tensor] = {}

        def move(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) not in moved:
                moved[id(tensor)] = tensor.to(device, dtype if tensor.dtype.is_floating_point else None)
            return moved[id(tensor)]

        tensors = [tensor for _, tensor in self._tensors()]
        if device.type == "cuda":
            _fits(device, {id(t): t for t in tensors if t.device.type != "cuda"}.values(), dtype)
        if all(move(t) is t for t in tensors):
            return self
        return self.moved(move, lambda columns: Columns(move(columns.x), move(columns.y), columns.offsets))

    def moved(self, move: Callable[[torch.Tensor], torch.Tensor], fn: Callable[[Columns], Columns]) -> Self:
        """Return a copy with `fn` applied to every split, and `move` to each tensor of the sets without an owner
        (global test, public)."""
        test, public = self.global_test, self.public
        if test is not None:
            test = move(test[0]), move(test[1])
        if public is not None:
            public = move(public[0]), None if public[1] is None else move(public[1])
        return self.map(fn, global_test=test, public=public)

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor of samples or labels, with the name of its set."""
        for what, x, y, _ in self.sets():
            yield what, x
            yield what, y
        for tensor in self.public or ():
            if tensor is not None:
                yield "public set", tensor

    # ---- inspection

    def fingerprint(self) -> str:
        """Return 16 hex digits of a sha256 over shapes, dtypes, offsets and content, equal on every device.

        A column above 64 MB is sampled: rows at a fixed stride and the last one. Names do not count.
        """
        sha = hashlib.sha256(f"{FORMAT} classes={self.classes}".encode())
        for what, x, y, columns in self.sets():
            sha.update(what.encode())
            if columns is not None:
                sha.update(np.ascontiguousarray(columns.offsets).tobytes())
            for tensor in (x, y):
                hash_tensor(sha, tensor)
        if self.public is not None:
            sha.update(f"public {public_hash(self.public)}".encode())
        if self.drift is not None:
            sha.update(f"drift {self.drift}".encode())
        return sha.hexdigest()[:16]

    def check(self, gaps: bool = False) -> None:
        """Raise for the first fault in the data that would break training. `gaps`: x may have missing cells (NaN), to
        be filled later."""
        empty = np.flatnonzero(self.train.sizes == 0)
        if len(empty):
            raise UnalikeError(
                f"{len(empty)} of {len(self)} clients have no training samples ({self.some_names(empty)}): every "
                "client needs at least one; leave these out."
            )
        for what, x, y, columns in self.sets():
            self.check_set(what, x, y, columns, gaps)
        if self.public is not None:
            self.check_set("public set", *self.public, None, gaps)

    def check_set(
        self, what: str, x: torch.Tensor, y: torch.Tensor | None, columns: Columns | None, gaps: bool
    ) -> None:
        """Raise for the first fault of one set: pictures as bytes, values that are not finite, labels out of range."""
        if x.dtype in (torch.uint8, torch.bool):
            raise UnalikeError(
                f"x of the {what} is {str(x.dtype).removeprefix('torch.')}, which would be taken for "
                "tokens: convert it to float, for images x.float() / 255."
            )
        for letter, tensor in (("x", x), ("y", y)):
            row = None if tensor is None else first_infinite_row(tensor, gaps and letter == "x")
            if row is not None:
                raise UnalikeError(
                    f"{letter} of {self._place(what, columns, row)} has a value that is NaN or infinite: "
                    "all must be finite; clean the data, or prepare x (`Federation.prepared`)."
                )
        classes = self.classes
        if classes is None or y is None:
            return
        row = first_bad_row(y, lambda t: (t < 0) | (t >= classes))
        if row is not None:
            raise UnalikeError(
                f"{self._place(what, columns, row)} has the label {int(y[row])}: labels must be 0 or "
                f"more and below classes={classes}; renumber them or raise classes."
            )

    def _place(self, what: str, columns: Columns | None, row: int) -> str:
        if columns is None:
            return f"the {what}, sample {row}"
        k = columns.owner(row)
        return f"{self.client_name(k)}, sample {row - int(columns.offsets[k])} of its {what}"

    def label_counts(self) -> np.ndarray:
        """Return the training samples per client and class, int64 [N, classes]."""
        if self.classes is None:
            raise UnalikeError(
                "Label counts were asked for but the labels are floats (regression): there are no classes."
            )
        y = self.train.y.cpu().numpy()
        if len(y) and (y.min() < 0 or y.max() >= self.classes):
            self.check()  # its message names the client
        cells = self.train.owners() * self.classes + y
        return np.bincount(cells, minlength=len(self) * self.classes).reshape(len(self), self.classes)


def as_arguments(splits: Mapping[str, Columns | None]) -> dict[str, Any]:
    """Return splits by name as keywords for the constructor: train, validation and test, the others as `splits`."""
    own = {name: columns for name, columns in splits.items() if name in SPLITS}
    return {**own, "splits": {name: c for name, c in splits.items() if name not in SPLITS and c is not None}}


def check_name(name: Any) -> None:
    """Raise unless `name` is a valid, free name for a further split."""
    if not isinstance(name, str) or not name.isidentifier() or name in (*SPLITS, "public"):
        raise UnalikeError(
            f"A further split is named {name!r}: it needs a name of letters, digits and _ that is none of "
            f"{', '.join(SPLITS)}, public."
        )


def check_shares(shares: Mapping[str, Any]) -> None:
    """Raise unless these are valid names and shares of further splits."""
    for name, share in shares.items():
        check_name(name)
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise UnalikeError(f"{name}={share!r} must be a share of a client's training samples in (0, 1].")
    if sum(shares.values()) > 1 + 1e-9:
        raise UnalikeError(
            f"The shares of the splits ({', '.join(shares)}) sum to {sum(shares.values()):g}: it must be at most 1, "
            "as in support=0.5, query=0.5."
        )


def _named(splits: Mapping[str, Columns]) -> dict[str, Columns]:
    """Return further splits; raise if a name is invalid or already used."""
    for name, columns in splits.items():
        check_name(name)
        if not isinstance(columns, Columns):
            raise UnalikeError(f"The split {name!r} is a {type(columns).__name__}: it must be Columns.")
    return dict(splits)


def _shared_out(sizes: np.ndarray, shares: Sequence[float]) -> list[np.ndarray]:
    """Return how many of each client's samples each share gets, int64 [N] per share: at least one each, if there are
    enough."""
    counts, before = [], np.zeros(len(sizes), np.int64)
    for i, total in enumerate(np.cumsum(shares)):
        least = np.minimum(before + 1, sizes)
        most = np.maximum(sizes - (len(shares) - 1 - i), least)
        edge = np.clip(np.floor(sizes * total + 0.5).astype(np.int64), least, most)
        counts.append(edge - before)
        before = edge
    return counts


def check_carved(test: float, validation: float) -> None:
    """Check shares of every client's samples to be carved out."""
    for word, share in (("test", test), ("validation", validation)):
        if not isinstance(share, (int, float)) or not 0 <= share < 1:
            raise UnalikeError(f"{word}={share!r} must be a fraction in [0, 1), such as 0.2.")
    if test + validation >= 1:
        raise UnalikeError(f"test={test} and validation={validation} leave nothing to train on: their sum must be < 1.")


def carve(sizes: np.ndarray, test: float, validation: float, seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Deal the rows of clients with these numbers of samples to "train" and, where a share is not 0, to "test" and
    "validation": the rows of each, grouped by client and in order, and how many are each client's."""
    spare = np.maximum(sizes - 1, 0)
    n_test = np.minimum(np.floor(sizes * test + 0.5).astype(np.int64), spare)
    n_validation = np.minimum(np.floor(sizes * validation + 0.5).astype(np.int64), spare - n_test)
    counts = {"train": sizes - n_test - n_validation, "test": n_test, "validation": n_validation}
    shares = {"train": 1.0, "test": test, "validation": validation}
    for word in ("test", "validation"):
        if (share := shares[word]) and not counts[word].any():
            raise UnalikeError(
                f"{word}={share} of at most {sizes.max(initial=0)} samples per client is less than one "
                "sample for every client: ask for a larger share."
            )
    part = _parts(sizes, [n_test, n_validation], seed, "split")
    return {word: (np.flatnonzero(part == i), counts[word]) for i, word in enumerate(counts) if shares[word]}


def _parts(sizes: np.ndarray, counts: Sequence[np.ndarray], seed: int, purpose: str) -> np.ndarray:
    """Draw a part for every row of clients with these numbers of samples, int8 [total]: part 1 for as many rows of each
    client as counts[0] says, 2 for counts[1], and so on; 0 for the remaining rows."""
    owners = np.repeat(np.arange(len(sizes)), sizes)
    position = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    keys = draws.client_keys(seed, 0, purpose, np.arange(len(sizes)))
    drawn = draws.bits(torch.from_numpy(np.repeat(keys, sizes)), torch.from_numpy(position)).numpy()
    order = np.lexsort((drawn, owners))  # grouped by client, shuffled within each
    part = np.zeros(len(owners), np.int8)
    edges = np.cumsum(counts, axis=0)
    for i in reversed(range(len(counts))):
        part[order[position < np.repeat(edges[i], sizes)]] = i + 1
    return part


def _fits(device: torch.device, tensors: Iterable[torch.Tensor], dtype: torch.dtype | None) -> None:
    """Raise if the tensors need more memory than the GPU has free; CUDA itself would fail half-way."""
    floats = lambda t: dtype is not None and t.dtype.is_floating_point and not isinstance(t, Pixels)  # noqa: E731
    need = sum(t.numel() * dtype.itemsize if dtype and floats(t) else t.nbytes for t in tensors)
    free = torch.cuda.mem_get_info(device)[0]
    if need > free:
        raise UnalikeError(
            f"The data need {need / 1e9:.3g} GB on the GPU, {free / 1e9:.3g} GB are free: use device='cpu' or fewer."
        )
