"""When changes are made: after tests are carved and features prepared, before further splits; and who keeps what."""

import json

import numpy as np
import pytest
import torch

import unalike as ua
from unalike import config
from unalike.cli import main
from unalike.comparison.jobs import taste
from unalike.data import Dataset, Federation
from unalike.data.remote import alone
from unalike.errors import UnalikeError


def says(*pieces):
    """The call raises one line that has all these pieces in this order."""
    return pytest.raises(UnalikeError, match=r"^[^\n]*" + "[^\n]*".join(pieces) + r"[^\n]*$")


def pool(scale=None, gaps=False, **more):
    """60 samples of three features in units of their own."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(60, 3)) * [1, 50, 0.01]).astype(np.float32)
    if gaps:
        x[::7, 1] = np.nan
    return Dataset(x, rng.integers(0, 3, 60), test=(x[:9], np.arange(9) % 3), scale=scale, **more)


def raw_public():
    return np.full((4, 3), 100.0, np.float32), np.array([0, 1, 2, 0])


# ---- in a split


def test_tests_are_carved_first_so_that_rows_stay():
    plain, skewed = (pool().split(f"iid{more}", 5, test=0.2, validation=0.1) for more in ("", "|shift:1|permute:2"))
    for name, columns in plain.splits.items():
        assert np.array_equal(columns.offsets, skewed.splits[name].offsets)
        for k in np.flatnonzero((skewed.planted["shift"] == 0) & (skewed.planted["permute"] == 0)):
            assert torch.equal(columns.of(k)[0], skewed.splits[name].of(k)[0])
    assert torch.equal(plain.global_test[0], skewed.global_test[0])
    direct = plain.skewed("shift:1|permute:2")
    assert torch.equal(direct.test.x, skewed.test.x) and torch.equal(direct.train.y, skewed.train.y)


@pytest.mark.parametrize("scale", ["standard", "client"])
def test_features_are_prepared_and_then_changed(scale):
    """Noise of one prepared unit for every feature, gaps filled; the preparation is that of the data as they were."""
    data = pool(scale, gaps=True)
    plain, skewed = (data.split(text, 4, test=0.2) for text in ("iid", "iid|shift:1:2"))
    assert skewed.preparation == plain.preparation and skewed.recipe is None
    k = int(np.flatnonzero(skewed.planted["shift"] == 1)[0])
    by = skewed.train.of(k)[0] - plain.train.of(k)[0]
    assert torch.allclose(by, by[:1].expand_as(by), atol=1e-5) and by[0].abs().max() > 0.1
    assert torch.equal(skewed.global_test[0], plain.global_test[0])


@pytest.mark.parametrize("public", [raw_public(), "noise:6", 0.2], ids=["pair", "noise", "share"])
def test_a_public_set_is_prepared_once_and_never_changed(public):
    plain, skewed = (pool("standard").split(text, 4, public=public) for text in ("iid", "iid|noise:3|permute:2"))
    assert torch.equal(plain.public[0], skewed.public[0])
    if isinstance(public, tuple):
        assert torch.equal(skewed.public[0], skewed.preparation.apply(torch.from_numpy(public[0])))
        assert torch.equal(skewed.public[1], torch.from_numpy(public[1]))
    if isinstance(public, float):
        assert torch.equal(plain.public[1], skewed.public[1])


@pytest.mark.parametrize("scale", [None, "standard"])
def test_further_splits_are_made_of_changed_samples(scale):
    fed = pool(scale).split("iid|noise:2|crowd:0.9", 4, splits={"support": 0.5, "query": 0.5})
    for k in range(4):
        rows = {tuple(x.tolist()): int(y) for x, y in zip(*fed.train.of(k), strict=True)}
        parts = [pair for name in ("support", "query") for pair in zip(*fed.further[name].of(k), strict=True)]
        assert {tuple(x.tolist()): int(y) for x, y in parts} == rows


def test_raw_features_are_not_changed_and_labels_are():
    fed = pool("standard").split("iid|permute:2", 4, raw=True)
    assert fed.recipe is not None and sorted(fed.planted["permute"]) == [0, 0, 1, 1]
    with says("noise changes features as models see them, and these are raw", "prepared"):
        pool("standard").split("iid|noise:1", 4, raw=True)
    for text in ("shift:1", "views:2"):
        with says(f"{text[:5]} changes features as models see them"):
            fed.skewed(text)
    assert "shift" in fed.prepared().skewed("shift:1").planted
    assert "noise" in pool().split("noise:1", 4, raw=True).planted  # nothing is to be prepared here


# ---- joined federations, and fewer or more clients


def parts():
    rng = np.random.default_rng(1)
    pair = lambda n, *shape: (rng.random((n, *shape)).astype(np.float32), rng.integers(0, 2, n))  # noqa: E731
    pictures = Federation.from_arrays([pair(4, 1, 4, 4) for _ in range(3)], classes=2)
    signals = Federation.from_arrays([pair(4, 2, 9) for _ in range(2)], classes=2)
    return {"pictures": pictures, "signals": signals}


def test_the_parts_of_joined_federations_are_planted():
    fed = Federation.joined(parts())
    assert fed.planted.keys() == {"network"} and fed.planted["network"].tolist() == [0, 0, 0, 1, 1]
    other = ua.data.joined.JoinedFederation(parts(), ["signals", "pictures", "pictures", "signals", "pictures"])
    assert other.planted["network"].tolist() == [1, 0, 0, 1, 0]


def test_what_is_planted_in_a_part_is_kept_where_its_clients_are():
    own = parts()
    own = {"pictures": own["pictures"].skewed("rotate:3|blur", seed=1), "signals": own["signals"].skewed("blur:2")}
    order = ["signals", "pictures", "pictures", "signals", "pictures"]
    fed = ua.data.joined.JoinedFederation(own, order).to("cpu", torch.float64)
    turned = own["pictures"].planted["rotate"].tolist()
    assert fed.planted["rotate"].tolist() == [-1, turned[0], turned[1], -1, turned[2]]
    groups = own["signals"].planted["blur"].tolist()  # levels in one part and groups in the other
    assert fed.planted["blur"].tolist() == [groups[0], 0, 0.5, groups[1], 1]
    part = fed.parts["pictures"]
    assert part.planted["rotate"].tolist() == fed.planted["rotate"].tolist()
    assert np.isnan(part.planted["blur"][[0, 3]]).all() and part.planted["blur"][[1, 2, 4]].tolist() == [0, 0.5, 1]
    with says("Joined federations stay as they are"):
        fed.skewed("noise:1")


def test_planted_follows_the_clients(tmp_path):
    fed = parts()["pictures"].skewed("rotate:3|blur", seed=1)
    kept = Federation.open_mapped(fed.mapped(tmp_path / "m") and tmp_path / "m").to("cpu", torch.float64).replace()
    for name in ("rotate", "blur"):
        assert (
            np.array_equal(kept.planted[name], fed.planted[name])
            and kept.planted[name].dtype == fed.planted[name].dtype
        )
    assert taste(fed, 2).planted["rotate"].tolist() == fed.planted["rotate"][:2].tolist()
    one = Federation.from_arrays([fed.train.of(0)]).skewed("blur")
    assert np.isnan(alone(one, 2, 4).planted["blur"][[0, 1, 3]]).all() and alone(one, 2, 4).planted["blur"][2] == 0
    assert fed.pooled().planted == {}


# ---- configs and flags


def test_synthetic_clients_keep_their_samples():
    table = {"name": "synthetic-feddc", "clients": 6}
    plain, skewed = config.make_data(dict(table)), config.make_data({**table, "partition": "shift:1"})
    assert np.array_equal(plain.sizes, skewed.sizes) and skewed.planted["shift"].tolist() == [0, 1, 2, 3, 4, 5]
    assert torch.equal(plain.train.of(0)[0], skewed.train.of(0)[0])
    same = config.make_data({**table, "partition": "natural|shift:1"})
    assert torch.equal(same.train.x, skewed.train.x)
    dealt = config.make_data({**table, "partition": "iid|shift:1"})
    assert not torch.equal(dealt.train.of(0)[0], plain.train.of(0)[0])


def test_a_folder_of_clients_is_changed_after_it_was_prepared(tmp_path):
    rng = np.random.default_rng(2)
    for name in "abc":
        np.savez(tmp_path / f"{name}.npz", x=rng.normal(size=(9, 2)) * [1, 1000], y=rng.integers(0, 2, 9))
    table = {"folder": str(tmp_path), "scale": "standard", "splits": {"support": 1.0}}
    plain, skewed = config.make_data(dict(table)), config.make_data({**table, "partition": "shift:1"})
    by = skewed.train.of(2)[0] - plain.train.of(2)[0]
    assert by.abs().max() < 3 and by[0].abs().max() > 0.1 and torch.equal(skewed.train.of(0)[0], plain.train.of(0)[0])
    assert torch.equal(skewed.further["support"].x, skewed.train.x)


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(5)
    lines = [f"{rng.normal() * 1000:.1f},{rng.normal():.3f},{'yes' if rng.random() < 0.5 else 'no'}" for _ in range(80)]
    file = tmp_path / "t.csv"
    file.write_text("\n".join(["height,width,label", *lines]))
    return str(file)


def test_a_table_is_described_as_it_is_stored_and_changed_once_prepared(table, capsys):
    data = {"table": table, "label": "label", "clients": 4, "partition": "iid|shift:1.5|crowd:0.3"}
    assert config.as_stored(data) == ({**data, "partition": "iid|crowd:0.3"}, "shift:1.5")
    assert config.as_stored({**data, "partition": "shift:1"})[0] == {"table": table, "label": "label", "clients": 4}
    given = [f"--{name}={value}" for name, value in data.items()]
    assert main(["data", "describe", *given]) == 0
    assert (
        "shift:1.5 changes prepared features: columns are shown as they are stored"
        in capsys.readouterr().out.replace("\n", " ")
    )
    assert main(["data", "describe", *given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["features"][0]["most"] > 100
    settings, fed, _ = config.defaults.held_out(data, "test")
    plain = config.defaults.held_out({**data, "partition": "iid|crowd:0.3"}, "test")[1]
    assert settings["partition"] == data["partition"] and fed.planted["shift"].tolist() == [0, 1, 2, 3]
    assert torch.equal(fed.test.of(0)[0], plain.test.of(0)[0]) and not torch.equal(
        fed.test.of(1)[0], plain.test.of(1)[0]
    )


def test_loopback_changes_the_same_and_a_real_federation_refuses(table, capsys):
    data = {"table": table, "label": "label", "clients": 4, "partition": "iid|shift:1", "test": 0.2}
    runs = [config.run({"data": data, "run": {"rounds": 1, "engine": engine}}) for engine in ("sequential", "loopback")]
    assert torch.equal(*(run.data.train.x for run in runs)) and torch.equal(*(run.server.w for run in runs))
    words = [f"--{name}={value}" for name, value in data.items()]
    assert main(["local-federation", "4", *words, "--rounds", "1"]) == 2
    said = capsys.readouterr().err.strip()
    assert "shift changes features as models see them, and these are raw" in said and "\n" not in said


def test_the_number_of_clients_is_known_when_only_changes_are_named():
    table = {"name": "digits", "partition": "noise:0.5"}
    assert config.population(table) == 10
    assert config.population({"name": "digits", "partition": "dirichlet:0.3|noise:0.5", "clients": 7}) == 7
