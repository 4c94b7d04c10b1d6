"""`unalike data import`: official files of sets that no registry has, in small, in their real formats."""

import dataclasses as dc
import json
import shutil

import numpy as np
import pytest
from test_sources import TWEETS, leaf, pixels, png, write_emnist, write_tweets

import unalike as ua
from unalike import cli
from unalike.data import fetch, importing
from unalike.data.sources import FACTS


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("UNALIKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UNALIKE_OFFLINE", "1")
    for name, train, test in (("cifar100", 6, 6), ("emnist", 6, 6), ("tiny-imagenet", 2, 1)):
        monkeypatch.setitem(FACTS, name, dc.replace(FACTS[name], train=train, test=test))


def cifar100(home):
    home = home / "cifar-100-binary"
    home.mkdir(parents=True)
    for name in ("train", "test"):
        labels = np.stack([np.arange(6), np.arange(6) * 19], 1).astype(np.uint8)
        (home / f"{name}.bin").write_bytes(np.concatenate([labels, pixels(6, 3072)], 1).tobytes())


def emnist(home):
    home.mkdir()
    write_emnist(home, "letters", np.array([1, 2, 10, 11, 26, 3]))


def femnist(home):
    leaf(home, {"f0001": ([[1.0] * 784, [0.5] * 784], [3, 61])}, {"f0001": ([[1.0] * 784], [3])})


def sent140(home):
    home.mkdir()
    write_tweets(home, TWEETS)


def tiny_imagenet(home):
    home = home / "tiny-imagenet-200"
    for name in ("n01", "n02"):
        (home / "train" / name / "images").mkdir(parents=True)
        (home / "train" / name / "images" / f"{name}_0.png").write_bytes(png(pixels(64, 64, 3)))
    (home / "val/images").mkdir(parents=True)
    (home / "val/images/val_0.png").write_bytes(png(pixels(64, 64, 3)))
    (home / "val/val_annotations.txt").write_text("val_0.png\tn02\t0\t0\t9\t9\n")
    (home / "wnids.txt").write_text("n02\nn01\n")


MAKE = {"cifar100": cifar100, "emnist": emnist, "femnist": femnist, "sent140": sent140, "tiny-imagenet": tiny_imagenet}


def bring(name, path):
    return cli.main(["data", "import", name, str(path), "--json"])


@pytest.mark.parametrize("name", importing.SETS)
@pytest.mark.parametrize("zipped", [False, True])
def test_a_set_that_was_imported_loads_by_its_name(name, zipped, tmp_path, capsys):
    home = tmp_path / "given"
    MAKE[name](home)
    want = ua.load(name, folder=str(home))
    path = shutil.make_archive(str(tmp_path / "official"), "zip", home) if zipped else home
    with pytest.raises(ua.UnalikeError, match="is not here"):
        ua.load(name)
    assert bring(name, path) == 0
    place = json.loads(capsys.readouterr().out)["folder"]
    assert place.startswith(str(tmp_path / "cache"))
    shutil.rmtree(home)
    data = ua.load(name)
    assert data.y.tolist() == want.y.tolist() and np.array_equal(np.asarray(data.x), np.asarray(want.x))
    assert cli.main(["data", "list", "--json"]) == 0
    listed = {row["name"]: row["where"] for row in json.loads(capsys.readouterr().out)["data"]}
    assert listed[name] == "imported"


def fails(name, path, capsys, message):
    assert bring(name, path) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert fetch.imported(name) is None and not [*(fetch.cache() / fetch.SCRATCH).glob("*")]


def test_files_that_are_not_the_set_are_one_line(tmp_path, capsys):
    fails("cifar100", tmp_path / "nowhere", capsys, "is not there")
    fails("mnist", tmp_path, capsys, "There is no data set to import 'mnist'")
    empty = tmp_path / "empty"
    empty.mkdir()
    for name in importing.SETS:
        fails(name, empty, capsys, f"{empty} is not {name}")
    (tmp_path / "bad.zip").write_bytes(b"PK no archive")
    fails("tiny-imagenet", tmp_path / "bad.zip", capsys, "bad.zip")


def test_half_a_set_and_wrong_labels_are_refused(tmp_path, capsys, monkeypatch):
    home = tmp_path / "given"
    cifar100(home)
    monkeypatch.setitem(FACTS, "cifar100", dc.replace(FACTS["cifar100"], train=7))
    fails("cifar100", home, capsys, "it has 6 + 6 samples, the official files have 7 + 6")
    (home / "cifar-100-binary" / "train.bin").write_bytes(b"\0" * 100)  # cut off
    fails("cifar100", home, capsys, "is not cifar100")
    leaf(tmp_path / "leaf", {"f1": ([[1.0] * 784], [62])})
    fails("femnist", tmp_path / "leaf", capsys, "labels are not 0 to 61")


def test_a_copy_that_was_changed_is_noticed_and_another_import_mends_it(tmp_path, capsys):
    home = tmp_path / "given"
    cifar100(home)
    assert bring("cifar100", home) == 0
    place = fetch.imported("cifar100")
    file = place / "cifar-100-binary" / "test.bin"
    file.write_bytes(file.read_bytes()[::-1])
    with pytest.raises(ua.UnalikeError, match=r"test\.bin has another SHA-256.*unalike data import cifar100"):
        ua.load("cifar100")
    assert bring("cifar100", home) == 0 and len(ua.load("cifar100")) == 6
    capsys.readouterr()
