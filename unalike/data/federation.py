"""The clients' data as columns: one array a field and an offset a client, so population is only an index.

Nothing here loops over clients in Python, except where the caller hands over one array or one file a
client: a federation of 1,000,000 clients is checked, split and fingerprinted in seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unalike import draws
from unalike.errors import UnalikeError, did_you_mean, first_line

Pair = tuple[torch.Tensor, torch.Tensor]

CHUNK_BYTES = 16 << 20  # what check() and fingerprint() look at in one go
WHOLE_BYTES = 64 << 20  # a column above this is fingerprinted by a sample of its rows
MAPPED_FORMAT = "unalike-columns-1"
MAPPED_INDEX = "columns.json"
FILE_KEYS = ("x", "y", "x_test", "y_test", "x_validation", "y_validation")
SUFFIXES = (".npz", ".safetensors")
MOST_CLASSES = 1 << 20  # found in labels: beyond this they are numbers of something else


def as_tensor(value: Any, what: str) -> torch.Tensor:
    """A tensor over the same memory where possible; float64 stays float64, uint8 stays uint8."""
    if isinstance(value, torch.Tensor):
        if value.is_complex() or value.layout != torch.strided:
            raise UnalikeError(f"{what} is {value.dtype} ({value.layout}): give a dense, real, numeric tensor.")
        return value.detach() if value.requires_grad else value
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        raise UnalikeError(f"{what} has rows of unequal shape: all samples must have one shape; pad them.") from None
    if array.dtype.kind not in "biuf":
        raise UnalikeError(f"{what} has dtype {array.dtype}: it must be numeric; encode it as numbers first.")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    elif array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    array = np.ascontiguousarray(array) if array.ndim else array
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def as_pair(x: Any, y: Any, what: str) -> Pair:
    """Samples and labels of equal length: integer labels become int64, float labels (regression) stay."""
    x, y = as_tensor(x, f"x of {what}"), as_tensor(y, f"y of {what}")
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
        raise UnalikeError(
            f"x of {what} has shape {list(x.shape)} and y {list(y.shape)}: the first sizes must be equal; "
            "give one label a sample."
        )
    if y.dtype.is_floating_point:
        if y.ndim > 2:
            raise UnalikeError(f"y of {what} has shape {list(y.shape)}: targets must be [n] or [n, k]; flatten them.")
        return x, y
    if y.ndim > 1:
        raise UnalikeError(
            f"y of {what} has shape {list(y.shape)}: class labels must be [n]; use y.reshape(-1), "
            "y.argmax(1) for one-hot rows, or floats for regression."
        )
    return x, y.to(torch.int64)


Signature = tuple[tuple[bool, torch.Size], tuple[bool, torch.Size]]


def _signature(x: torch.Tensor, y: torch.Tensor) -> Signature:
    """What must agree among clients and splits: float or not, and the shape of a sample and of a label."""
    return (x.dtype.is_floating_point, x.shape[1:]), (y.dtype.is_floating_point, y.shape[1:])


def _agree(got: Signature, must: Signature, what: str, other: str) -> None:
    if got == must:
        return
    letter, one, two = next((c, g, m) for c, g, m in zip("xy", got, must, strict=True) if g != m)
    words = [f"{'float' if is_float else 'integer'} {list(shape)}" for is_float, shape in (one, two)]
    raise UnalikeError(
        f"{what} has {letter} {words[0]} a sample and {other} {words[1]}: they must be equal; "
        "prepare both in the same way."
    )


class Columns:
    """One split of all clients: client k owns rows `offsets[k]:offsets[k+1]` of `x` and `y`.

    x [total, ...] may lie in a memory map; y [total] is int64 class labels, or floats [total] or [total, k].
    Integer x are tokens to the simulator: images must be floats.
    """

    __slots__ = ("_sizes", "offsets", "x", "y")

    def __init__(self, x: Any, y: Any, offsets: Any):
        self.x, self.y = as_pair(x, y, "the columns")
        given = np.asarray(offsets)
        if given.ndim != 1 or len(given) < 2 or given.dtype.kind not in "iu":
            raise UnalikeError(
                f"The offsets have shape {list(given.shape)} and dtype {given.dtype}: they must be N+1 "
                "integers; give np.concatenate([[0], np.cumsum(sizes)])."
            )
        bounds = given.astype(np.int64, copy=False).view()
        sizes = np.diff(bounds)
        if bounds[0] != 0 or bounds[-1] != len(self.x) or (sizes < 0).any():
            raise UnalikeError(
                f"The offsets run from {bounds[0]} to {bounds[-1]} for {len(self.x)} rows: they must rise "
                "from 0 to the number of rows; give np.concatenate([[0], np.cumsum(sizes)])."
            )
        bounds.flags.writeable = sizes.flags.writeable = False
        self.offsets, self._sizes = bounds, sizes

    @property
    def sizes(self) -> np.ndarray:
        """Samples of every client, int64 [N]."""
        return self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def of(self, k: int) -> Pair:
        """Client k's rows, as views."""
        if not 0 <= k < len(self._sizes):
            raise UnalikeError(f"There is no client {k}: there are {len(self)}, numbered from 0.")
        start, stop = int(self.offsets[k]), int(self.offsets[k + 1])
        return self.x[start:stop], self.y[start:stop]

    def owner(self, row: int) -> int:
        """The client that owns this row."""
        return int(np.searchsorted(self.offsets, row, side="right")) - 1

    def owners(self) -> np.ndarray:
        """The owner of every row, int64 [total]."""
        return np.repeat(np.arange(len(self)), self._sizes)

    def take(self, rows: np.ndarray, sizes: np.ndarray) -> Columns:
        """The given rows, already grouped by client, as new columns."""
        index = torch.from_numpy(rows).to(self.x.device)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return Columns(self.x.index_select(0, index), self.y.index_select(0, index), offsets)


class Federation:
    """N clients with a training split each; optionally validation and test splits, and a global test set.

    `classes` is the number of labels (found from the labels where not given), None for regression. `names` are the
    clients', `label_names` the classes'.
    """

    def __init__(
        self,
        train: Columns,
        *,
        validation: Columns | None = None,
        test: Columns | None = None,
        global_test: tuple[Any, Any] | None = None,
        classes: int | None = None,
        names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ):
        self.train, self.validation, self.test = train, validation, test
        self.global_test: Pair | None = None
        if global_test is not None:
            if not isinstance(global_test, (tuple, list)) or len(global_test) != 2:
                raise UnalikeError(f"The global test set is a {type(global_test).__name__}: it must be a pair (x, y).")
            self.global_test = as_pair(*global_test, "the global test set")
        expected = _signature(train.x, train.y)
        for what, x, y, columns in self._parts():
            if columns is not None and len(columns) != len(train):
                raise UnalikeError(
                    f"The {what} has {len(columns)} clients and the training split {len(train)}: they must "
                    "be equal; give clients without such samples an empty part."
                )
            _agree(_signature(x, y), expected, f"The {what}", "the training split")
        if names is not None:
            names = [str(name) for name in names]
            if len(names) != len(train) or len(set(names)) != len(names):
                raise UnalikeError(
                    f"There are {len(names)} names ({len(set(names))} distinct) for {len(train)} clients: "
                    "every client needs its own."
                )
        self.names = names
        self.classes = self._count_classes(classes)
        self.label_names = None if label_names is None else [str(name) for name in label_names]
        if label_names is not None and len(label_names) != self.classes:
            raise UnalikeError(
                f"There are {len(label_names)} names of labels and {self.classes} classes: give one a class."
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
            found = max((int(y.max()) + 1 for _, _, y, _ in self._parts() if len(y)), default=0)
            if found > MOST_CLASSES:
                raise UnalikeError(f"The largest label is {found - 1}: number the classes 0, 1, 2, …, or give classes.")
            return found
        if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or given < 1:
            raise UnalikeError(
                f"classes={given!r} must be a positive integer; leave it out to find it from the labels."
            )
        return int(given)

    def _parts(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, Columns | None]]:
        for what, columns in (
            ("training split", self.train),
            ("validation split", self.validation),
            ("test split", self.test),
        ):
            if columns is not None:
                yield what, columns.x, columns.y, columns
        if self.global_test is not None:
            yield "global test set", *self.global_test, None

    def __len__(self) -> int:
        return len(self.train)

    @property
    def sizes(self) -> np.ndarray:
        """Training samples of every client, int64 [N]."""
        return self.train.sizes

    def __repr__(self) -> str:
        kind = "regression" if self.classes is None else f"{self.classes} classes"
        rest = "".join(f", {len(x)} in the {what}" for what, x, _, _ in list(self._parts())[1:])
        shape = f"x {list(self.train.x.shape[1:])} {str(self.train.x.dtype).removeprefix('torch.')}"
        return f"Federation({len(self)} clients, {len(self.train.x)} training samples{rest}, {shape}, {kind})"

    def client_name(self, k: int) -> str:
        """How messages call client k."""
        return f"client {k}" if self.names is None else f"client {k} ({self.names[k]!r})"

    # ---- building

    @classmethod
    def from_arrays(
        cls,
        clients: Iterable[tuple[Any, Any]],
        *,
        test: tuple[Any, Any] | None = None,
        client_tests: Iterable[tuple[Any, Any] | None] | None = None,
        client_validations: Iterable[tuple[Any, Any] | None] | None = None,
        classes: int | None = None,
        names: Sequence[str] | None = None,
    ) -> Federation:
        """One (x, y) a client, in RAM. `test` is the global test set; a client without its own test: None."""
        pairs = list(clients)
        if not pairs:
            raise UnalikeError("There are no clients: give at least one pair (x, y).")
        called = [f"client {k}" for k in range(len(pairs))] if names is None else [f"client {n!r}" for n in names]
        called += [f"client {k}" for k in range(len(called), len(pairs))]
        train = _stack(pairs, called, None)
        splits: list[Columns | None] = []
        for given, word in ((client_validations, "validation"), (client_tests, "test")):
            if given is None:
                splits.append(None)
                continue
            parts = list(given)
            if len(parts) != len(pairs):
                raise UnalikeError(
                    f"There are {len(parts)} client {word} sets for {len(pairs)} clients: give one a client, "
                    "None for a client without."
                )
            splits.append(_stack(parts, [f"the {word} set of {name}" for name in called], train))
        return cls(train, validation=splits[0], test=splits[1], global_test=test, classes=classes, names=names)

    @classmethod
    def from_folder(
        cls,
        path: str | os.PathLike,
        *,
        test_fraction: float = 0.0,
        validation_fraction: float = 0.0,
        seed: int = 0,
    ) -> Federation:
        """One .npz or .safetensors file a client, in the order of the file names; the stems become the names.

        Keys: x, y, optionally x_test, y_test, x_validation, y_validation, the same in every file. A file
        `_test.npz` or `_test.safetensors` with x and y is the global test set. Other kinds of files are
        passed over.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise UnalikeError(f"{folder} is not a folder: give a folder with one .npz or .safetensors file a client.")
        found = sorted(f for f in folder.iterdir() if f.suffix in SUFFIXES and f.is_file() and f.name[0] != ".")
        globals_ = [f for f in found if f.name.startswith("_")]
        files = [f for f in found if not f.name.startswith("_")]
        for file in globals_:
            if file.stem != "_test" or len(globals_) > 1:
                raise UnalikeError(
                    f"{file}: of the names that begin with '_' there may be one only, the global test set "
                    "'_test.npz' or '_test.safetensors'; rename or remove it."
                )
        if not files:
            raise UnalikeError(f"{folder} has no client files: put one .npz or .safetensors file a client there.")
        twice = {f.stem for f in files if f.suffix == ".npz"} & {f.stem for f in files if f.suffix != ".npz"}
        if twice:
            raise UnalikeError(f"{folder} has {min(twice)!r} as .npz and as .safetensors: keep one file a client.")

        contents = [_read_file(file) for file in files]
        keys = set(contents[0])
        for file, content in zip(files, contents, strict=True):
            if set(content) != keys:
                raise UnalikeError(
                    f"{file} has the keys {', '.join(sorted(content))} and {files[0].name} "
                    f"{', '.join(sorted(keys))}: give every client file the same keys."
                )
        called = [str(file) for file in files]
        train = _stack([(c["x"], c["y"]) for c in contents], called, None)
        splits: dict[str, Any] = {
            word: _stack([(c[f"x_{word}"], c[f"y_{word}"]) for c in contents], called, train)
            for word in ("validation", "test")
            if f"x_{word}" in keys
        }
        global_test = None
        if globals_:
            content = _read_file(globals_[0])
            if set(content) != {"x", "y"}:
                raise UnalikeError(
                    f"{globals_[0]} has the keys {', '.join(sorted(content))}: it must have x and y only."
                )
            global_test = content["x"], content["y"]
            _agree(_signature(*global_test), _signature(train.x, train.y), str(globals_[0]), "the clients")
        fed = cls(train, **splits, global_test=global_test, names=[file.stem for file in files])
        if test_fraction or validation_fraction:
            fed = fed.split_clients(test=test_fraction, validation=validation_fraction, seed=seed)
        return fed

    def split_clients(self, *, test: float = 0.0, validation: float = 0.0, seed: int = 0) -> Federation:
        """Carve test and validation splits out of every client's training samples.

        A client's share is rounded to whole samples, so small clients may get none; each keeps at least one
        to train on. Which samples go depends on (seed, client) only; all keep their order.
        """
        for word, share, there in (("test", test, self.test), ("validation", validation, self.validation)):
            if not isinstance(share, (int, float)) or not 0 <= share < 1:
                raise UnalikeError(f"{word}={share!r} must be a fraction in [0, 1), such as 0.2.")
            if share and there is not None:
                raise UnalikeError(
                    f"{word}={share} was asked for but the clients have a {word} split: leave {word} out."
                )
        if test + validation >= 1:
            raise UnalikeError(
                f"test={test} and validation={validation} leave nothing to train on: their sum must be < 1."
            )
        check_seed(seed)
        if not test and not validation:
            return self

        train, sizes = self.train, self.train.sizes
        spare = np.maximum(sizes - 1, 0)
        n_test = np.minimum(np.floor(sizes * test + 0.5).astype(np.int64), spare)
        n_validation = np.minimum(np.floor(sizes * validation + 0.5).astype(np.int64), spare - n_test)
        for word, share, counts in (("test", test, n_test), ("validation", validation, n_validation)):
            if share and not counts.any():
                raise UnalikeError(
                    f"{word}={share} of at most {sizes.max(initial=0)} samples a client is less than one "
                    "sample for every client: ask for a larger share."
                )
        owners = train.owners()
        position = np.arange(len(owners)) - np.repeat(train.offsets[:-1], sizes)
        keys = draws.client_keys(seed, 0, "split", np.arange(len(self)))
        drawn = draws.bits(torch.from_numpy(np.repeat(keys, sizes)), torch.from_numpy(position)).numpy()
        order = np.lexsort((drawn, owners))  # grouped by client, shuffled within
        part = np.zeros(len(owners), np.int8)
        part[order] = np.where(
            position < np.repeat(n_test, sizes),
            1,
            np.where(position < np.repeat(n_test + n_validation, sizes), 2, 0),
        )

        def cut(which: int, counts: np.ndarray) -> Columns:
            return train.take(np.flatnonzero(part == which), counts)

        return Federation(
            cut(0, sizes - n_test - n_validation),
            validation=cut(2, n_validation) if validation else self.validation,
            test=cut(1, n_test) if test else self.test,
            global_test=self.global_test,
            classes=self.classes,
            names=self.names,
            label_names=self.label_names,
        )

    def pooled(self) -> Federation:
        """One client that holds everybody's data, split by split; the tensors are these, not copies."""

        def pool(columns: Columns | None) -> Columns | None:
            return None if columns is None else Columns(columns.x, columns.y, np.array([0, len(columns.y)]))

        return Federation(
            Columns(self.train.x, self.train.y, np.array([0, len(self.train.y)])),
            validation=pool(self.validation),
            test=pool(self.test),
            global_test=self.global_test,
            classes=self.classes,
            label_names=self.label_names,
        )

    # ---- where it lies

    def mapped(self, folder: str | os.PathLike) -> Federation:
        """Write every column as .npy into a new folder; gives this federation with its tensors memory-mapped.

        The folder appears under its name only when complete.
        """
        target = Path(folder)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UnalikeError(f"{target} exists already: open it with Federation.open_mapped, or give a new folder.")
        for what, x, y, _ in self._parts():
            for tensor in (x, y):
                if tensor.dtype == torch.bfloat16:
                    raise UnalikeError(
                        f"The {what} is bfloat16, which .npy files cannot hold: call .to('cpu', torch.float32) first."
                    )
        scratch = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.tmp"
        try:
            scratch.mkdir(parents=True)
            parts = []
            for what, x, y, columns in self._parts():
                stem = what.split()[0]
                parts.append(stem)
                np.save(scratch / f"{stem}_x.npy", x.cpu().numpy(), allow_pickle=False)
                np.save(scratch / f"{stem}_y.npy", y.cpu().numpy(), allow_pickle=False)
                if columns is not None:
                    np.save(scratch / f"{stem}_offsets.npy", columns.offsets, allow_pickle=False)
            index = {"format": MAPPED_FORMAT, "classes": self.classes, "names": self.names, "parts": parts}
            index["label_names"] = self.label_names
            (scratch / MAPPED_INDEX).write_text(json.dumps(index), encoding="utf-8")
            if target.exists():
                target.rmdir()  # empty: seen above
            scratch.rename(target)
        except OSError as error:
            raise UnalikeError(
                f"{target} could not be written ({error.strerror}): free space or give another."
            ) from None
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return Federation.open_mapped(target)

    @classmethod
    def open_mapped(cls, folder: str | os.PathLike) -> Federation:
        """Open a folder that `mapped` wrote; rows are read from disk when touched (writes stay private)."""
        source = Path(folder)
        try:
            index = json.loads((source / MAPPED_INDEX).read_text(encoding="utf-8"))
            if index["format"] != MAPPED_FORMAT:
                raise UnalikeError(
                    f"{source} has the format {index['format']!r}: this version reads {MAPPED_FORMAT!r}."
                )
            pairs = {p: (_map(source / f"{p}_x.npy"), _map(source / f"{p}_y.npy")) for p in index["parts"]}
            columns: dict[str, Any] = {
                {"training": "train"}.get(p, p): Columns(
                    *pairs[p], np.load(source / f"{p}_offsets.npy", allow_pickle=False)
                )
                for p in index["parts"]
                if p != "global"
            }
            train = columns.pop("train")
            options = {
                "global_test": pairs.get("global"),
                "classes": index["classes"],
                "names": index["names"],
                "label_names": index.get("label_names"),
            }
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = first_line(error)
            raise UnalikeError(
                f"{source} is not a complete folder of columns ({reason}): write it again with Federation.mapped."
            ) from None
        return cls(train, **columns, **options)

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
        # a tensor used twice (a test set that is the training set) moves once
        moved: dict[int, torch.Tensor] = {}

        def move(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) not in moved:
                moved[id(tensor)] = tensor.to(device, dtype if tensor.dtype.is_floating_point else None)
            return moved[id(tensor)]

        def move_columns(columns: Columns | None) -> Columns | None:
            return None if columns is None else Columns(move(columns.x), move(columns.y), columns.offsets)

        tensors = [t for _, x, y, _ in self._parts() for t in (x, y)]
        if device.type == "cuda":
            _fits(device, {id(t): t for t in tensors if t.device.type != "cuda"}.values(), dtype)
        if all(move(t) is t for t in tensors):
            return self
        return Federation(
            Columns(move(self.train.x), move(self.train.y), self.train.offsets),
            validation=move_columns(self.validation),
            test=move_columns(self.test),
            global_test=None if self.global_test is None else (move(self.global_test[0]), move(self.global_test[1])),
            classes=self.classes,
            names=self.names,
            label_names=self.label_names,
        )

    # ---- looking at it

    def fingerprint(self) -> str:
        """16 hex digits of a sha256 over shapes, dtypes, offsets and content, equal on every device.

        A column above 64 MB is sampled: rows at a fixed stride and the last one. Names do not count.
        """
        sha = hashlib.sha256(f"{MAPPED_FORMAT} classes={self.classes}".encode())
        for what, x, y, columns in self._parts():
            sha.update(what.encode())
            if columns is not None:
                sha.update(np.ascontiguousarray(columns.offsets).tobytes())
            for tensor in (x, y):
                sha.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
                size = tensor.numel() * tensor.element_size()
                if size > WHOLE_BYTES:
                    _update(sha, tensor[-1:])
                    tensor = tensor[:: -(-size // WHOLE_BYTES)]
                _update(sha, tensor)
        return sha.hexdigest()[:16]

    def check(self) -> None:
        """Raise for the first thing that training could not survive: see the messages."""
        empty = np.flatnonzero(self.train.sizes == 0)
        if len(empty):
            first = ", ".join(self.client_name(int(k)) for k in empty[:3]) + (", …" if len(empty) > 3 else "")
            raise UnalikeError(
                f"{len(empty)} of {len(self)} clients have no training samples ({first}): every client needs "
                "at least one; leave these out."
            )
        for what, x, y, columns in self._parts():
            if x.dtype in (torch.uint8, torch.bool):
                raise UnalikeError(
                    f"x of the {what} is {str(x.dtype).removeprefix('torch.')}, which would be taken for "
                    "tokens: convert it to float, for images x.float() / 255."
                )
            for letter, tensor in (("x", x), ("y", y)):
                row = _first_bad_row(tensor, lambda t: ~torch.isfinite(t)) if tensor.dtype.is_floating_point else None
                if row is not None:
                    raise UnalikeError(
                        f"{letter} of {self._place(what, columns, row)} has a value that is NaN or infinite: "
                        "all must be finite; clean the data."
                    )
            classes = self.classes
            if classes is None:
                continue
            row = _first_bad_row(y, lambda t, top=classes: (t < 0) | (t >= top))  # type: ignore[misc]
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
        """Training samples of every client and class, int64 [N, classes]."""
        if self.classes is None:
            raise UnalikeError(
                "Label counts were asked for but the labels are floats (regression): there are no classes."
            )
        y = self.train.y.cpu().numpy()
        if len(y) and (y.min() < 0 or y.max() >= self.classes):
            self.check()  # says which client
        cells = self.train.owners() * self.classes + y
        return np.bincount(cells, minlength=len(self) * self.classes).reshape(len(self), self.classes)


def _fits(device: torch.device, tensors: Iterable[torch.Tensor], dtype: torch.dtype | None) -> None:
    """Raise where these tensors are more than a GPU has free: better than CUDA's own words, half of them moved."""
    width = lambda t: dtype.itemsize if dtype is not None and t.dtype.is_floating_point else t.element_size()  # noqa: E731
    need, free = sum(t.numel() * width(t) for t in tensors), torch.cuda.mem_get_info(device)[0]
    if need > free:
        raise UnalikeError(
            f"The data need {need / 1e9:.3g} GB on the GPU, {free / 1e9:.3g} GB are free: use device='cpu' or fewer."
        )


def check_seed(seed: int, bits: int = 64) -> int:
    """A seed is an integer in 0..2^bits-1."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= int(seed) < 1 << bits:
        raise UnalikeError(f"seed={seed!r} must be an integer from 0 to 2^{bits} - 1.")
    return int(seed)


def _stack(parts: Sequence[Any], called: Sequence[str], like: Columns | None) -> Columns:
    """One pair a client into columns; `like` gives shape and dtype where every part is empty."""
    xs, ys, sizes = [], [], np.zeros(len(parts), np.int64)
    expected = None if like is None else _signature(like.x, like.y)
    first = "the training split"
    for k, part in enumerate(parts):
        if part is None and like is not None:
            continue
        if not isinstance(part, (tuple, list)) or len(part) != 2:
            raise UnalikeError(f"{called[k]} is a {type(part).__name__}: every client must be a pair (x, y).")
        x, y = as_pair(part[0], part[1], called[k])
        if not len(x):
            continue
        signature = _signature(x, y)
        if expected is None:
            expected, first = signature, called[k]
        _agree(signature, expected, called[k], first)
        xs.append(x)
        ys.append(y)
        sizes[k] = len(x)
    if not xs:
        if like is None:
            raise UnalikeError(f"None of the {len(parts)} clients has a training sample: give each at least one.")
        xs, ys = [like.x[:0]], [like.y[:0]]
    x, y = (torch.cat(xs), torch.cat(ys)) if len(xs) > 1 else (xs[0], ys[0])
    return Columns(x, y, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def _read_file(file: Path) -> dict[str, torch.Tensor]:
    """The arrays of one client's file, numeric and finite, with matching pairs of keys."""
    try:
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as archive:
                raw: dict[str, Any] = {key: archive[key] for key in archive.files}
        else:
            from safetensors.torch import load_file

            raw = load_file(file)
    except Exception as error:  # numpy, zipfile and safetensors each have their own for a bad file
        if "allow_pickle" in str(error) and zipfile.is_zipfile(file):
            raise UnalikeError(f"{file} holds pickled objects, which are never loaded: save numeric arrays.") from None
        raise UnalikeError(f"{file} cannot be read: write it again as a valid {file.suffix} file.") from None
    for key in raw:
        if key not in FILE_KEYS:
            raise UnalikeError(f"{file} has an unknown key {key!r}.{did_you_mean(key, FILE_KEYS)}")
    content = {}
    for suffix in ("", "_test", "_validation"):
        have = [letter + suffix for letter in "xy" if letter + suffix in raw]
        if len(have) == 1 or (not have and not suffix):
            missing = [letter + suffix for letter in "xy" if letter + suffix not in raw]
            raise UnalikeError(
                f"{file} has no {' and no '.join(missing)}: every file needs x and y, and x_test goes with "
                "y_test, x_validation with y_validation; add it."
            )
        if not have:
            continue
        x, y = as_pair(raw["x" + suffix], raw["y" + suffix], str(file))
        for letter, tensor in (("x", x), ("y", y)):
            if tensor.dtype.is_floating_point and _first_bad_row(tensor, lambda t: ~torch.isfinite(t)) is not None:
                raise UnalikeError(
                    f"{file}: {letter}{suffix} has NaN or infinite values: all must be finite; clean them."
                )
            content[letter + suffix] = tensor
    if not len(content["x"]):
        raise UnalikeError(f"{file} has no training samples: every client needs at least one; remove the file.")
    return content


def _map(file: Path) -> torch.Tensor:
    # "c", copy on write: torch wants writable memory, and the file stays as it is
    array = np.load(file, mmap_mode="c", allow_pickle=False)
    return torch.from_numpy(array if array.size else np.array(array))


def _chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The rows, a few megabytes at a time."""
    if not tensor.numel():
        return iter(())
    row_bytes = tensor.numel() // len(tensor) * tensor.element_size()
    return iter(tensor.split(max(1, CHUNK_BYTES // row_bytes)))


def _update(sha: Any, tensor: torch.Tensor) -> None:
    for chunk in _chunks(tensor):
        sha.update(chunk.contiguous().cpu().reshape(-1).view(torch.uint8).numpy())


def _first_bad_row(tensor: torch.Tensor, bad: Callable[[torch.Tensor], torch.Tensor]) -> int | None:
    start = 0
    for chunk in _chunks(tensor):
        wrong = bad(chunk)
        if wrong.any():
            return start + int(wrong.reshape(len(chunk), -1).any(1).nonzero()[0])
        start += len(chunk)
    return None
