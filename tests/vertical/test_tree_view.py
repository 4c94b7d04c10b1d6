"""What a party's folder holds for its report: of another party's splits no column, no cut, no way of a value."""

import json

import numpy as np
import pytest

import unalike as ua
from unalike.trees.picture import FILE
from unalike.vertical import Parties, SecureBoost, fit
from unalike.vertical.methods.secure_boost import importance

DRAW = np.random.default_rng(3)
X = DRAW.normal(size=(200, 4))
Y = ((X[:, 0] > 0) ^ (X[:, 3] > 0.2)).astype(int)
IDS = [f"p{k}" for k in range(200)]
BANK = {"id": IDS, "debt": X[:, 0] * 100 + 7, "age": X[:, 1], "label": [str(v) for v in Y]}
SHOP = {"id": IDS, "visits": X[:, 2], "spent": X[:, 3] * 50}


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    folder = tmp_path_factory.mktemp("views") / "run"
    parties = Parties.from_tables({"bank": BANK, "shop": SHOP}, id="id", label=("bank", "label"))
    run = fit(SecureBoost(trees=4, depth=2, bins=8, cipher="none"), parties, epochs=4, folder=folder)
    return run, *(json.loads((folder / name / FILE).read_text()) for name in ("bank", "shop"))


def test_the_guest_sees_its_own_splits_and_that_there_are_others(grown):
    run, bank, _ = grown
    assert bank["who"] == "bank" and bank["trees"] == 4 and len(bank["drawn"]) == 3
    by_party, own = (dict(map(tuple, shares["rows"])) for shares in bank["shares"])
    assert by_party == pytest.approx(importance(run.session.me, ["bank", "shop"]), abs=1e-5)
    assert set(own) <= {"debt", "age"} and sum(own.values()) == pytest.approx(by_party["bank"], abs=1e-4)
    text = json.dumps(bank)
    assert "visits" not in text and "spent" not in text and "shop, split 0" in text


def test_cuts_are_in_the_units_of_the_guests_table(grown):
    _, bank, _ = grown
    cuts = [
        float(node[1].split(" ≤ ")[1])
        for tree in bank["drawn"] for node in tree["nodes"] if str(node[1]).startswith("debt")
    ]  # fmt: skip
    assert cuts and all(min(abs(BANK["debt"] - cut)) < 1e-3 * max(1, abs(cut)) for cut in cuts)


def test_a_host_sees_how_often_its_columns_were_split_by(grown):
    run, _, shop = grown
    host = run.parties.hosts[0].me
    columns = host.lookup[: int(host.count), 0].tolist()
    assert shop["who"] == "shop" and shop["trees"] is None and shop["drawn"] == []
    (shares,) = shop["shares"]
    assert str(len(columns)) in shares["of"]
    assert dict(map(tuple, shares["rows"]))["spent"] == pytest.approx(columns.count(1) / len(columns), abs=1e-5)
    assert "gain" not in json.dumps(shop) and "debt" not in json.dumps(shop)


def test_models_without_trees_have_no_view(tmp_path):
    parties = Parties.from_tables({"bank": BANK, "shop": SHOP}, id="id", label=("bank", "label"))
    fit(ua.vertical.LogisticRegression(), parties, epochs=1, folder=tmp_path / "run")
    assert not (tmp_path / "run" / "bank" / FILE).exists()
