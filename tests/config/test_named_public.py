"""Public sets that a config names: another data set without its labels, and what a function of one's own makes."""

import itertools

import numpy as np
import pytest
import torch
from small import refused

import unalike as ua
from unalike import config
from unalike.data import Dataset, sources

DIGITS = {"name": "digits", "clients": 3}
MAKE = """
import torch

def samples(n, seed):
    return torch.rand(n, 64) + seed

def labelled(n, seed):
    return torch.zeros(n, 64), torch.arange(n) % 10

def few(n, seed):
    return torch.rand(n - 1, 64)

def broken(n, seed):
    raise ValueError("no weights")

number = 3
"""


@pytest.fixture
def other(monkeypatch):
    """A data set of 40 other pictures, of which each number is the sample's own."""

    def letters(image: bool = False, folder: str = "", scale: float = 1.0) -> Dataset:
        assert not folder
        x = np.repeat(np.arange(40, dtype=np.float32), 64).reshape(40, 64) * scale
        return Dataset(x.reshape(-1, 1, 8, 8) if image else x, np.arange(40), classes=40, name="letters")

    monkeypatch.setitem(sources.SOURCES, "letters", letters)
    return letters


@pytest.fixture
def make(tmp_path, monkeypatch):
    (tmp_path / "make.py").write_text(MAKE)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "make.py"


def test_another_data_set_without_its_labels(other):
    fed = config.make_data({**DIGITS, "public": "letters:7"})
    x, y = fed.public
    rows = x[:, 0].tolist()
    assert y is None and x.shape == (7, 64) and rows == sorted(set(rows)) and len(fed.train.x) == 1438
    assert torch.equal(config.make_data({**DIGITS, "public": "letters:7"}).public[0], x)
    assert not torch.equal(config.make_data({**DIGITS, "public": "letters:7", "seed": 1}).public[0], x)
    assert len(config.make_data({**DIGITS, "public": "letters"}).public[0]) == 40
    pictures = config.make_data({**DIGITS, "public": "letters:7", "image": True})  # an option that both have
    assert pictures.public[0].shape == (7, 1, 8, 8)
    with refused("letters has 40 training samples"):
        config.make_data({**DIGITS, "public": "letters:41"})


def test_a_function_makes_samples(make):
    fed = config.make_data({**DIGITS, "public": "make.py:samples:9"})
    again = config.make_data({**DIGITS, "public": "make.py:samples:9"})
    assert fed.public[0].shape == (9, 64) and fed.public[1] is None
    assert torch.equal(fed.public[0], again.public[0])  # torch's own draws are the seed's
    later = config.make_data({**DIGITS, "public": "make.py:samples:9", "seed": 2}).public[0]
    assert later.min() >= 2 and not torch.equal(later - 2, fed.public[0])
    assert config.make_data({**DIGITS, "public": "make.py:labelled:9"}).public[1].tolist() == [*range(9)]
    assert config.make_data({**DIGITS, "public": "make.py:labelled:9", "public_labels": False}).public[1] is None
    with refused(r"must give 9 samples, and perhaps their labels; it gave 8"):
        config.make_data({**DIGITS, "public": "make.py:few:9"})
    with refused(r"make.py:broken\(9, 0\) failed: ValueError: no weights"):
        config.make_data({**DIGITS, "public": "make.py:broken:9"})


def test_a_run_with_each_kind_of_public_samples(make, other):
    ends = []
    for public in (0.1, "letters:20", "noise:20", "make.py:samples:20"):
        tables = {
            "data": {**DIGITS, "public": public},
            "method": {"name": "feddf", "steps": 2},
            "run": {"rounds": 1, "engine": "sequential"},
        }
        ends.append(config.run(config.check(tables)).server.w)
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(ends))


def test_a_config_can_be_run_from_anywhere(make):
    tables = {"data": {"public": "make.py:samples:9"}, "model": {}, "method": {}, "local": {}, "run": {}}
    assert config.absolute(tables)["data"]["public"] == f"{make}:samples:9"
    assert config.absolute({**tables, "data": {"public": "letters:9"}})["data"]["public"] == "letters:9"


@pytest.mark.parametrize(
    "public, line",
    [
        ("digits:20", "are the clients' own samples: set some aside"),
        ("mnist:", "must end with a whole number of samples, as in 'mnist:1000'"),
        ("mnist:0", "must end with a whole number"),
        ("make.py:samples", "must end with a whole number of samples, as in 'make.py:samples:1000'"),
        ("make.py:sample:9", "make.py has no 'sample'. Did you mean 'samples'"),
        ("make.py:number:9", r"must be a function of \(n, seed\) that gives n samples; it is 3"),
        ("gone.py:samples:9", "there is no file 'gone.py'"),
        ("minst:9", "must be a share .* or 'make.py:samples:1000'. Did you mean 'mnist'"),
        ("all of it", "must be a share .* or 'make.py:samples:1000'.$"),
    ],
)
def test_names_that_cannot_be(make, public, line):
    with refused(line) as error:
        config.check({"data": {**DIGITS, "public": public}, "run": {"rounds": 1}})
    assert "\n" not in str(error.value) and str(error.value).startswith("[data] ")


def test_the_option_says_so(capsys):
    assert ua.cli.main(["list", "data", "digits"]) == 0
    assert "cifar100:5000" in " ".join(capsys.readouterr().out.split())
