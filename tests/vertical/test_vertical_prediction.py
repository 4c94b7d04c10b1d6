"""Prediction: jointly, with a party away, and one party's share by itself."""

import csv

import numpy as np
import pytest
import torch
from vertical_cases import bank_and_shop, cancer, write

from unalike import vertical as v
from unalike.errors import UnalikeError


def trained(tmp_path, method=None, **options):
    tables = dict(zip(("bank", "shop"), bank_and_shop(tmp_path), strict=True))
    unmatched = options.pop("unmatched", "drop")
    parties = v.Parties.from_tables(tables, id="customer", label=("bank", "default"), unmatched=unmatched)
    return v.fit(method or v.LogisticRegression(lr=0.5), parties, epochs=20, **options), tables


def rows_of(path, keep):
    with open(path) as file:
        rows = [row for row in csv.DictReader(file) if keep(row)]
    return {name: [row[name] for row in rows] for name in rows[0]}


@pytest.mark.parametrize("method", [v.LogisticRegression(lr=0.5), v.SplitNN(lr=0.5)], ids=lambda m: m.name)
def test_new_rows_are_predicted_as_training_rows_are(tmp_path, method):
    run, tables = trained(tmp_path, method)
    session = run.session
    z = session.method.scores(session.me, session.hosts, session.train)
    expected = session.loss.likelihood(z)[:, 1]
    ids = [session.guest.table.ids[k] for k in session.guest.positions[session.train]]
    bank = rows_of(tables["bank"], lambda row: row["customer"] in ids)
    found = run.predict({"bank": bank, "shop": tables["shop"]})
    by_id = dict(zip(bank["customer"], found.probabilities[:, 1], strict=True))
    assert np.abs(np.array([by_id[one] for one in ids]) - expected.detach().numpy()).max() < 1e-12
    assert found.names == ("0", "1") and set(found.labels) == {"0", "1"}


def test_rows_without_a_party_are_refused_unless_a_fallback_was_declared(tmp_path):
    run, tables = trained(tmp_path)
    with pytest.raises(UnalikeError, match=r"10 of 120 rows are not at every party: missing at shop \(10\)"):
        run.predict(tables)
    with pytest.raises(UnalikeError, match=r"120 of 120 rows .* fallback='zero'"):
        run.predict({"bank": tables["bank"]})
    with pytest.raises(UnalikeError, match="bank must be there"):
        run.predict({"shop": tables["shop"]})
    with pytest.raises(UnalikeError, match="no party 'bakery'"):
        run.predict({"bank": tables["bank"], "bakery": tables["shop"]})


def test_a_missing_party_counts_as_zero_or_the_guest_answers_alone(tmp_path):
    zero, tables = trained(tmp_path, fallback="zero")
    own = zero.predict({"bank": tables["bank"]}).probabilities[:, 1]
    guest = zero.parties.guest
    x = guest.preparation.apply(guest.table.x).double()
    assert np.abs(own - torch.sigmoid(x @ guest.me.theta + guest.me.b)[:, 0].numpy()).max() < 1e-12

    alone, tables = trained(tmp_path, fallback="alone")
    mixed, without = alone.predict(tables), alone.predict({"bank": tables["bank"]})
    matched = alone.parties.guest.table.ids
    there = {alone.parties.hosts[0].table.ids[k] for k in range(len(alone.parties.hosts[0].table))}
    absent = np.array([one not in there for one in matched])
    assert absent.sum() == 10
    assert np.array_equal(mixed.probabilities[absent], without.probabilities[absent])
    assert not np.isclose(mixed.probabilities[~absent], without.probabilities[~absent]).all()
    y = alone.parties.guest.table.y.numpy()
    assert (mixed.classes == y).mean() > (without.classes == y).mean() > 0.5


def test_flags_of_absent_rows_are_used_at_prediction(tmp_path):
    run, tables = trained(tmp_path, unmatched="mask", fallback="zero")
    session = run.session
    z = session.method.scores(session.me, session.hosts, torch.arange(120))
    expected = torch.empty(120, dtype=torch.float64)
    expected[session.guest.positions] = torch.sigmoid(z[:, 0])
    assert np.abs(run.predict(tables).probabilities[:, 1] - expected.numpy()).max() < 1e-12


def test_numbers_come_back_in_their_unit():
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    names = [f"p{k}" for k in range(len(x))]
    tables = {
        "clinic": {"id": names, "age": x[:, 0], "bmi": x[:, 2], "y": y + 0.5},
        "lab": {"id": names, "s5": x[:, 8], "bp": x[:, 3]},
    }
    parties = v.Parties.from_tables(tables, id="id", label=("clinic", "y"))
    found = v.fit(v.LinearRegression(lr=0.3), parties, epochs=60).predict(tables)
    assert np.corrcoef(found, y)[0, 1] > 0.6 and abs(found.mean() - y.mean()) < 5


def test_one_party_s_share_is_exported_and_used_by_itself(tmp_path):
    run, tables = trained(tmp_path)
    file = run.export("shop", tmp_path / "shop.share")
    ids, found = v.Share(file).numbers(tables["shop"], "customer")
    node = run.parties.hosts[0]
    rows = [ids.index(node.table.ids[k]) for k in node.positions]
    assert np.abs(found["z"][rows] - (node.me.x @ node.me.theta).numpy()).max() < 1e-12
    with pytest.raises(UnalikeError, match=r"no party 'shup'\. Did you mean 'shop'"):
        run.export("shup", tmp_path / "no")
    (tmp_path / "nonsense").write_bytes(b"nonsense" * 9)
    with pytest.raises(UnalikeError):
        v.Share(tmp_path / "nonsense")
    other = write(tmp_path / "other.csv", {"customer": ["a", "b"], "returns": [1, 2]})
    with pytest.raises(UnalikeError, match="has no column 'orders'"):
        v.Share(file).numbers(other, "customer")


def test_new_rows_are_coded_by_the_words_that_the_model_learned(tmp_path):
    """A table with other words in a column must not be read as if its first word were the model's first."""
    bank, _ = bank_and_shop(tmp_path)
    names = [row.split(",")[0] for row in bank.read_text().split()[1:]]
    shop = {
        "customer": names,
        "kind": [("gold", "silver", "tin")[k % 3] for k in range(120)],
        "n": [k % 7 for k in range(120)],
    }
    parties = v.Parties.from_tables({"bank": bank, "shop": shop}, id="customer", label=("bank", "default"))
    run = v.fit(v.LogisticRegression(lr=0.5), parties, epochs=3, fallback="zero")
    node = parties.hosts[0]
    few = {name: [column[k] for k in (1, 4, 7)] for name, column in shop.items()}  # silver alone
    ids, found = v.Share(run.export("shop", tmp_path / "s")).numbers(few, "customer")
    place = {node.table.ids[k]: i for i, k in enumerate(node.positions.tolist())}
    expected = (node.me.x @ node.me.theta)[[place[one] for one in ids]]
    assert np.abs(found["z"] - expected.numpy()).max() < 1e-12

    from unalike.vertical.node import Node
    from unalike.vertical.tables import read_table

    for reader in (None, lambda schema: read_table("shop", few, "customer", schema=schema)):
        late = Node(read_table("shop", few, "customer"), reader=reader)
        late.positions = torch.arange(3)
        if reader is None:
            with pytest.raises(UnalikeError, match="shop has other columns, or other words in them"):
                late.adopt(run.shares["shop"])
        else:
            late.adopt(run.shares["shop"])
            assert np.abs((late.me.x @ late.me.theta - expected).numpy()).max() < 1e-12


def test_a_share_of_another_party_is_refused():
    run = v.fit(v.LogisticRegression(), v.split(cancer(60), {"a": 3, "b": 3, "c": 3}), epochs=1)
    with pytest.raises(UnalikeError, match="That is the share of b, not of c"):
        run.parties.hosts[1].adopt(run.shares["b"])
