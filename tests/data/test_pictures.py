"""Folders of pictures: one's own clients and classes, and everything that can be wrong with them."""

import json

import numpy as np
import pytest
from test_tables import says

from unalike import config
from unalike.cli import main
from unalike.data import pictures
from unalike.data.pictures import from_pictures, layout, picture_dataset

Image = pytest.importorskip("PIL.Image")
rng = np.random.default_rng(0)


def draw(path, size=(4, 6), mode="RGB"):
    """Write a picture of random pixels, (height, width); return them as [channels, height, width] in 0..1."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = size if mode == "L" else (*size, len(mode))
    pixels = rng.integers(0, 256, shape, np.uint8)
    Image.fromarray(pixels, mode if mode == "RGBA" else None).save(path)
    colours = pixels[..., None] if mode == "L" else pixels[..., :3]
    return colours.transpose(2, 0, 1) / np.float32(255)


@pytest.fixture
def folder(tmp_path):
    """Two clients, two classes, two pictures each."""
    for client in ("b", "a"):
        for kind in ("dog", "cat"):
            for name in ("1.png", "2.png"):
                draw(tmp_path / "pics" / client / kind / name)
    return tmp_path / "pics"


def test_clients_and_classes(folder):
    wanted = draw(folder / "a" / "dog" / "3.PNG")
    (folder / "a" / "dog" / "notes.txt").write_text("x")
    draw(folder / ".thumbs" / "dog" / "1.png")
    fed = from_pictures(folder)
    assert fed.names == ["a", "b"] and fed.label_names == ["cat", "dog"] and fed.sizes.tolist() == [5, 4]
    x, y = fed.train.of(0)
    assert x.shape == (5, 3, 4, 6) and str(x.dtype) == "torch.float32" and y.tolist() == [0, 0, 1, 1, 1]
    assert np.allclose(x[4], wanted)
    fed = from_pictures(folder, test=0.25, validation=0.25, seed=1)
    assert len(fed.test.x) == 2 and len(fed.validation.x) == 2
    fed.check()


def test_classes_alone_are_dealt_by_a_partition(folder):
    data = picture_dataset(folder / "a")
    assert data.natural is None and len(data) == 4 and data.name == "a"
    assert len(data.split("iid", clients=2)) == 2
    with says("folders of classes, without clients", "split"):
        from_pictures(folder / "a")
    assert layout(folder) == "clients" and layout(folder / "a") == "classes" and layout(folder / "a" / "dog") == ""
    assert layout(folder / "missing") == layout("") == layout(3) == layout("a\0b") == ""
    np.savez(folder / "a.npz", x=np.zeros((2, 2)), y=np.zeros(2))
    assert layout(folder) == ""  # a file a client


def test_a_test_folder(folder, tmp_path):
    folder.rename(tmp_path / "train")
    top = tmp_path / "all"
    top.mkdir()
    (tmp_path / "train").rename(top / "train")
    wanted = draw(top / "test" / "dog" / "x.png")
    fed = from_pictures(top)
    assert fed.global_test[1].tolist() == [1] and np.allclose(fed.global_test[0][0], wanted) and len(fed) == 2
    assert layout(top) == "clients"
    (top / "test" / "dog").rename(top / "test" / "owl")
    with says("x.png is of the class 'owl', which no training picture has"):
        from_pictures(top)
    (top / "test" / "a").mkdir()
    (top / "test" / "owl").rename(top / "test" / "a" / "dog")
    assert picture_dataset(top).split(test="same").test.sizes.tolist() == [1, 0]


def test_grey_and_coloured(folder):
    for file in folder.rglob("*.png"):
        draw(file, mode="L")
    assert from_pictures(folder).train.x.shape == (8, 1, 4, 6)
    wanted = draw(folder / "a" / "cat" / "1.png", mode="RGBA")
    x = from_pictures(folder).train.x
    assert x.shape == (8, 3, 4, 6) and np.allclose(x[0], wanted)
    assert (x[1][0] == x[1][1]).all() and (x[1][0] == x[1][2]).all()  # grey ones in three channels
    Image.fromarray(np.zeros((4, 6), np.uint16)).save(folder / "a" / "cat" / "1.png")
    with says("1.png has more than 8 bits"):
        from_pictures(folder)


def test_sizes(folder):
    draw(folder / "a" / "cat" / "2.png", size=(4, 5))
    with says("2.png has 5 × 4 pixels and .*1.png 6 × 4", "--size 64"):
        from_pictures(folder)
    assert from_pictures(folder, 3).train.x.shape == (8, 3, 3, 3)
    stripes = np.zeros((2, 6, 3), np.uint8)
    stripes[:, 2:4] = 255  # the centre
    Image.fromarray(stripes).save(folder / "a" / "cat" / "1.png")
    assert (from_pictures(folder, 2).train.x[0] == 1).all()


def test_wrong_folders(folder, monkeypatch):
    with says("missing does not exist"):
        from_pictures(folder / "missing")
    with says("1.png lies at another depth"):
        from_pictures(folder / "a" / "dog")
    (folder / "none").mkdir()
    with says("none has no pictures", "CLIENT/CLASS/"):
        from_pictures(folder / "none")
    draw(folder / "dog" / "1.png")
    with says("1.png lies at another depth", "CLIENT/CLASS/"):
        from_pictures(folder)
    (folder / "dog" / "1.png").rename(folder / "a" / "cat" / "3.png")
    (folder / "a" / "cat" / "3.png").write_bytes(b"no picture")
    with says("3.png is not a whole picture"):
        from_pictures(folder)
    for file in folder.rglob("dog/*.png"):
        file.unlink()
    with says("are of the class 'cat': nothing to learn"):
        from_pictures(folder)

    def absent(name):
        raise ImportError(name)

    draw(folder / "a" / "dog" / "1.png")
    monkeypatch.setattr(pictures.importlib, "import_module", absent)
    with says("needs Pillow", "pip install pillow"):
        from_pictures(folder)


def test_a_run_on_pictures(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = "run --data-folder pics --data.size 4 --test 0.25 --rounds 1 --json --folder out"
    assert main(line.split()) == 0
    assert json.loads(capsys.readouterr().out)["final"]["round"] == 1
    assert config.load_toml("out/config.toml")["data"]["size"] == 4
    assert main(["data", "describe", "--folder", "pics", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["label counts"] == [[2, 2], [2, 2]] and found["a sample"] == "float32 [3, 4, 6]"
    dealt = {"folder": "pics/a", "partition": "iid", "clients": 2}
    assert len(config.make_data(config.check({"data": dealt, "run": {"rounds": 1}})["data"])) == 2
    assert main(["run", "--data-folder", "pics", "--data.size", "0", "--rounds", "1"]) == 2
    assert "size must be at least 1" in capsys.readouterr().err
