"""Pieces in a row as a config says them, for every kind of data: what is dealt, what is changed, how many clients."""

import numpy as np
import pytest

import unalike as ua
from unalike import config
from unalike.errors import UnalikeError

FEDPROX = {"name": "synthetic-fedprox", "clients": 6, "seed": 1}


def refused(*pieces, **data):
    with pytest.raises(UnalikeError) as error:
        config.check({"data": data, "run": {"rounds": 1}})
        config.make_data(data)
    assert all(piece in str(error.value) for piece in pieces) and "\n" not in str(error.value), error.value


def test_named_data():
    data = {"name": "digits", "clients": 6, "seed": 1}
    alone, dealt = (config.make_data({**data, "partition": text}) for text in ("permute:2", "dirichlet:0.1|permute:2"))
    assert np.ptp(alone.sizes) <= 1 < np.ptp(dealt.sizes)  # alone, they follow iid
    assert np.array_equal(alone.planted["permute"], dealt.planted["permute"])
    by_hand = ua.load("digits").split("dirichlet:0.1|permute:2", 6, seed=1)
    assert dealt.fingerprint() == by_hand.fingerprint()


def test_a_federation_with_its_own_clients_is_only_changed():
    plain = config.make_data(FEDPROX)
    for text in ("permute:2", "natural|permute:2"):
        fed = config.make_data({**FEDPROX, "partition": text})
        assert fed.fingerprint() == plain.skewed("permute:2", seed=1).fingerprint() != plain.fingerprint()
    assert config.make_data({**FEDPROX, "partition": "natural"}).fingerprint() == plain.fingerprint()
    dealt = config.make_data({**FEDPROX, "partition": "iid|permute:2"})
    assert len(dealt) == 6 and np.ptp(dealt.sizes) <= 1 and set(dealt.planted) == {"permute"}
    refused("natural keeps the clients' own", **FEDPROX, partition="natural|quantity:1")


def write_table(folder):
    rows = [f"{k % 4},{9 - k // 4},{k},{k % 2}" for k in range(40)]
    (folder / "t.csv").write_text("who,when,a,ill\n" + "\n".join(rows) + "\n")
    return {"table": str(folder / "t.csv"), "label": "ill", "features": ["a"]}


def test_a_table(tmp_path):
    table = write_table(tmp_path)
    own = {**table, "client": "who"}
    assert config.make_data({**own, "partition": "permute:2"}).names == ["0", "1", "2", "3"]
    assert config.make_data({**own, "partition": "natural|permute:2"}).planted["permute"].shape == (4,)
    assert len(config.make_data({**own, "partition": "iid|quantity:1", "clients": 3})) == 3
    assert len(config.make_data({**table, "partition": "permute:2", "clients": 5})) == 5
    timed = config.make_data({**table, "time": "when", "partition": "periods", "clients": 2, "scale": "none"})
    assert timed.train.of(0)[0].min() > timed.train.of(1)[0].max()  # the last rows are the oldest


def test_a_folder_of_pictures(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for who in "ab":
        for kind in ("cat", "dog"):
            (tmp_path / who / kind).mkdir(parents=True)
            for k in range(3):
                image.new("L", (4, 4), 40 * k).save(tmp_path / who / kind / f"{k}.png")
    data = {"folder": str(tmp_path)}
    config.check({"data": {**data, "partition": "natural|permute:2"}, "run": {"rounds": 1}})
    fed = config.make_data({**data, "partition": "permute:2"})
    assert fed.names == ["a", "b"] and sorted(fed.planted["permute"]) == [0, 1]
    assert len(config.make_data({**data, "partition": "iid|permute:2", "clients": 3})) == 3
    assert config.make_data({**data, "partition": "views:2:0"}).names[:2] == ["a view 0", "a view 1"]


def test_a_folder_of_client_files_takes_changes_alone(tmp_path):
    for k in range(4):
        np.savez(tmp_path / f"c{k}.npz", x=np.ones((5, 4), np.float32) * k, y=np.arange(5) % 2)
    data = {"folder": str(tmp_path), "test": 0.2}
    plain, changed = (config.make_data({**data, **more}) for more in ({}, {"partition": "permute:2"}))
    assert changed.names == plain.names and sorted(changed.planted["permute"]) == [0, 0, 1, 1]
    assert changed.fingerprint() == plain.skewed("permute:2").fingerprint()
    config.check({"data": {**data, "partition": "natural|permute:2"}, "run": {"rounds": 1}})
    refused("dirichlet:0.1 deals samples", "give changes alone", **data, partition="dirichlet:0.1|permute:2")


@pytest.mark.parametrize(
    "data, clients",
    [
        ({"name": "digits", "partition": "permute:2"}, 10),
        ({"name": "digits", "partition": "dirichlet:0.1|views:2", "clients": 8}, 8),
        ({"name": "femnist"}, None),
        ({"name": "femnist", "partition": "permute:2"}, None),
        ({"name": "femnist", "partition": "natural:writer|permute:2"}, None),
        ({"name": "femnist", "partition": "iid|permute:2"}, 10),
        ({"name": "synthetic-fedprox"}, 30),
        ({"name": "synthetic-fedprox", "partition": "iid"}, 30),
        ({**FEDPROX, "partition": "permute:2"}, 6),
        ({**FEDPROX, "partition": "views:2"}, 12),
        ({**FEDPROX, "partition": "iid|views:2"}, 6),
    ],
)
def test_how_many_clients_there_will_be(data, clients):
    assert config.population(data) == clients
    if data["name"] != "femnist":
        assert len(config.make_data(data)) == clients


def test_rows_that_make_no_sense_are_refused_before_data_are_read():
    for text, line in {
        "dirichlet:0.1|shards:2": "both deal the samples",
        "permute:2|iid": "must come first",
        "natural|quantity:1": "cannot follow",
        "iid|permut:2": "Did you mean 'permute'",
    }.items():
        with pytest.raises(UnalikeError, match=line.replace("|", r"\|")):
            config.check({"data": {"name": "digits", "partition": text}, "run": {"rounds": 1}})
