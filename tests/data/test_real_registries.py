"""Real registries, from an empty cache: `make test-network`. Counts, means and hashes of what comes.

Means and deviations of MNIST and CIFAR-10 are those everybody normalises with, of Fashion-MNIST those its users found;
the hashes of CIFAR-10 are those of the owner's binary archive. The rest is in each set's own paper.
"""

import json

import numpy as np
import pytest

import unalike as ua
from unalike.cli import main
from unalike.data import fetch
from unalike.data.sources import FACTS

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One empty cache for all of them."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("UNALIKE_CACHE", str(folder))
        patch.delenv("UNALIKE_OFFLINE", raising=False)
        yield folder


def test_get_the_four_from_an_empty_cache(cache, capsys):
    assert not any(cache.iterdir())
    assert main(["data", "get", "mnist", "fashion-mnist", "cifar10", "hapt", "--json"]) == 0
    got = {one["name"]: one for one in json.loads(capsys.readouterr().out)["data"]}
    assert list(got) == ["mnist", "fashion-mnist", "cifar10", "hapt"]
    for name in got:
        package = FACTS[name].package
        listed = json.loads((cache / package.folder / fetch.MANIFEST).read_text())["files"]
        assert {n: f["sha256"] for n, f in listed.items()} == dict(package.files)  # all of them known beforehand
        assert not fetch.verify(package)
    assert sorted(p.name for p in cache.iterdir() if p.is_dir()) == [
        "cifar10-1",
        "fashion-mnist-1",
        "hapt-1",
        "mnist-1",
    ]
    assert main(["data", "get", *got, "--verify", "-q"]) == 0


def plain(name, **options):
    data = ua.load(name, normalise=False, **options)
    return data, data.x.double().mean((0, 2, 3)).numpy(), data.x.double().std((0, 2, 3)).numpy()


@pytest.mark.parametrize("name,mean,std", [("mnist", 0.1307, 0.3081), ("fashion-mnist", 0.2860, 0.3530)])
def test_grey_pictures(cache, name, mean, std):
    data, found, spread = plain(name)
    assert data.x.shape == (60_000, 1, 28, 28) and data.test[0].shape == (10_000, 1, 28, 28) and data.classes == 10
    assert found.round(4) == pytest.approx([mean]) and spread.round(4) == pytest.approx([std])
    if name == "fashion-mnist":
        assert np.bincount(data.y).tolist() == [6000] * 10
    assert abs(ua.load(name).x.mean()) < 1e-3


def test_cifar10(cache):
    data, mean, std = plain("cifar10")
    assert data.x.shape == (50_000, 3, 32, 32) and data.test[0].shape == (10_000, 3, 32, 32)
    assert np.bincount(data.y).tolist() == [5000] * 10 and np.bincount(data.test[1]).tolist() == [1000] * 10
    assert mean.round(4).tolist() == [0.4914, 0.4822, 0.4465] and std.round(4).tolist() == [0.2470, 0.2435, 0.2616]
    small = ua.load("cifar10", size=28, constants="half")
    assert small.x.shape == (50_000, 3, 28, 28) and small.x.min() >= -1 and small.x.max() <= 1


def test_hapt(cache):
    data = ua.load("hapt")
    assert data.x.shape == (10_017, 6, 128) and data.classes == 6 and data.natural == "person"
    fed = data.split(test=0.2)
    assert len(fed) == 30 and fed.names == [str(k) for k in range(1, 31)]
    gravity = np.linalg.norm(data.x[:, :3].mean(2).numpy(), axis=1)
    assert 0.95 < np.median(gravity) < 1.05  # in g: the phone is on the earth


@pytest.mark.parametrize(
    "name,train,test,features", [("a1a", 1605, 30956, 123), ("svmguide1", 3089, 4000, 4), ("dna", 2000, 1186, 180),
                                 ("satimage", 4435, 2000, 36), ("vehicle", 500, 346, 18)],
)  # fmt: skip
def test_libsvm(cache, name, train, test, features):
    data = ua.load(name)
    assert data.x.shape == (train, features) and data.test[0].shape == (test, features)
    assert data.classes == FACTS[name].classes and data.x.abs().max() <= 1


def test_shakespeare(cache):
    data = ua.load("shakespeare", stride=20)
    assert data.x.shape[1] == 80 and data.classes == 80
    fed = data.split(test="same")
    assert 500 < len(fed) <= FACTS["shakespeare"].clients and "hamlet" in " ".join(fed.names).lower()


def test_a_run_that_nobody_prepared(cache, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = (
        "run --data mnist --partition dirichlet:0.3 --clients 100 --rounds 2 --clients-per-round 0.1 --model mlp --json"
    )
    assert main(line.split()) == 0
    assert json.loads(capsys.readouterr().out)["final"]["test_accuracy"] > 0.2
