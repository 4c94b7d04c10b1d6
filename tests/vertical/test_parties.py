"""Tables, ids and alignment: who matches, what is told, and mistakes that end in one line."""

import numpy as np
import pytest
import torch
from vertical_cases import bank_and_shop, cancer, write

from unalike import vertical as v
from unalike.errors import UnalikeError
from unalike.vertical import psi
from unalike.vertical.align import align
from unalike.vertical.links import Direct
from unalike.vertical.node import Node
from unalike.vertical.tables import Table, read_table


def from_tables(bank, shop, **options):
    return v.Parties.from_tables({"bank": bank, "shop": shop}, id="customer", label=("bank", "default"), **options)


def test_rows_are_matched_by_id_and_the_report_says_how_many(tmp_path):
    parties = from_tables(*bank_and_shop(tmp_path))
    assert parties.report.matched == {"shop": 110} and parties.report.aligned == 110
    guest, host = parties.guest, parties.hosts[0]
    ids = [guest.table.ids[k] for k in guest.positions]
    assert ids == [host.table.ids[k] for k in host.positions] and len(set(ids)) == 110
    text = str(parties.report)
    assert "110 matched; bank alone 10; shop alone 2" in text and "110 rows are learned from" in text
    assert "Neither learned an id that it does not have" in text


def test_the_aligned_order_is_no_party_s_own(tmp_path):
    parties = from_tables(*bank_and_shop(tmp_path))
    for node in (parties.guest, parties.hosts[0]):
        steps = (node.positions[1:] - node.positions[:-1]).sign()
        assert 0.3 < float((steps > 0).double().mean()) < 0.7


def test_ids_are_compared_without_spaces_and_in_composed_form(tmp_path):
    bank = {"customer": [" a ", "Zoe\u0301", "b"], "income": [1.0, 2.0, 3.0], "default": [0, 1, 0]}
    shop = {"customer": ["a", "Zo\u00e9", "B"], "orders": [1.0, 2.0, 3.0]}
    assert from_tables(bank, shop).report.aligned == 2
    assert from_tables(bank, shop, fold_case=True).report.aligned == 3


def test_ids_that_are_there_twice(tmp_path):
    bank, shop = bank_and_shop(tmp_path)
    with open(shop, "a") as file:
        file.write("c020,1.0,2.0\n")
    with pytest.raises(UnalikeError, match=r"1 id is twice in .*shop.csv \(line \d+, line 114\)"):
        from_tables(bank, shop)
    parties = from_tables(bank, shop, duplicates="drop")
    assert parties.report.aligned == 109 and "1 id twice in shop" in str(parties.report)


def test_mistakes_of_tables_are_one_line(tmp_path):
    bank, shop = bank_and_shop(tmp_path)
    with pytest.raises(UnalikeError, match="no party 'bonk'"):
        v.Parties.from_tables({"bank": bank, "shop": shop}, id="customer", label=("bonk", "default"))
    with pytest.raises(UnalikeError, match=r"bank.csv has no column 'custmer'. Did you mean 'customer'"):
        v.Parties.from_tables({"bank": bank, "shop": shop}, id="custmer", label=("bank", "default"))
    empty = write(tmp_path / "empty.csv", {"customer": ["a", ""], "orders": [1, 2]})
    with pytest.raises(UnalikeError, match=r"'customer' of .*empty.csv is empty in line 3"):
        from_tables(bank, empty)
    others = write(tmp_path / "others.csv", {"customer": ["q", "r"], "orders": [1, 2]})
    with pytest.raises(UnalikeError, match="No id is at all parties"):
        from_tables(bank, others)


def test_columns_that_two_parties_have(tmp_path):
    bank, _ = bank_and_shop(tmp_path)
    rows = [line.split(",") for line in bank.read_text().split()[1:]]
    shop = {"customer": [r[0] for r in rows], "age": [int(r[2]) + 1 for r in rows], "income": [r[1] for r in rows],
            "orders": [float(k) for k in range(len(rows))]}  # fmt: skip
    with pytest.raises(UnalikeError, match="age and income of shop are at another party too"):
        from_tables(bank, shop)
    uses = {o: from_tables(bank, shop, overlap=o).uses for o in ("guest", "both")}
    assert uses["guest"] == {"bank": ["income", "age"], "shop": ["orders"]}
    assert uses["both"]["shop"] == ["age", "income", "orders"]
    with pytest.raises(UnalikeError, match="the guest has no column"):
        from_tables(bank, shop, overlap="host")
    report = from_tables(bank, shop, overlap="both").report
    assert "age and income are at bank and at shop, and tell 100% of bank's people apart" in report.before[0]


@pytest.mark.parametrize("unmatched", ["missing", "mask"])
def test_rows_that_do_not_match_can_be_kept(tmp_path, unmatched):
    parties = from_tables(*bank_and_shop(tmp_path), unmatched=unmatched, test=0.2)
    assert parties.report.aligned == 120
    run = v.fit(v.LogisticRegression(lr=0.5), parties, epochs=20)
    host, guest = parties.hosts[0], parties.guest
    assert int((~host.me.present).sum()) == 10 and not host.me.x[~host.me.present].any()
    flags = guest.me.columns - 2
    assert flags == (unmatched == "mask")
    if flags:
        assert torch.equal(guest.me.x[:, -1] == 1, ~host.me.present)
    assert run.history[-1]["test_accuracy"] > 0.75


def test_each_party_standardises_by_its_own_training_rows(tmp_path):
    parties = from_tables(*bank_and_shop(tmp_path), test=0.3, unmatched="mask")
    v.fit(v.LogisticRegression(), parties, epochs=1)
    for node in (parties.guest, parties.hosts[0]):
        rows = parties.train[node.me.present[parties.train]]
        x = node.me.x[:, :2]
        assert (
            float(x[rows].mean(0).abs().max()) < 1e-6 and float((x[rows].std(0, correction=0) - 1).abs().max()) < 1e-5
        )
        assert float(x[node.me.present].mean(0).abs().max()) > 1e-3


def test_a_host_is_told_before_ids_are_compared_how_far_shared_columns_identify():
    told, ids = [], [str(k) for k in range(50)]
    node = Node(shared_table("shop", ids), tell=told.append)
    guest = Node(shared_table("bank", ids))
    node.handle({"kind": "points", "columns": guest.table.columns}, {})
    assert told == ["zip, which the guest has too, tell 100% of this party's people apart"]
    align(guest, [Direct(node)])
    assert told[-1] == "the guest matched 50 of this party's 50 people"


def shared_table(name, ids):
    return read_table(
        name, {"customer": ids, "zip": [float(one) for one in ids], f"{name} own": [1.5] * 50}, "customer"
    )


def test_three_parties_have_the_rows_that_all_have():
    ids = {"guest": "abcdef", "one": "fedcxa", "two": "zbcdfa"}
    tables = [Table(name, list(text), torch.arange(6.0)[:, None].double()) for name, text in ids.items()]
    nodes = [Node(table) for table in tables]
    matched = align(nodes[0], [Direct(node) for node in nodes[1:]])
    assert matched == {"one": 5, "two": 5}
    found = ["".join(ids[n.name][k] for k in n.positions) for n in nodes]
    assert set(found[0]) == set("acdf") and len(set(found)) == 1


def test_points_are_on_the_curve_and_sent_points_show_no_order():
    """A point of the twist would stay on the twist: one bit per id for whoever looks."""
    import gmpy2

    ids = [f"id {k}" for k in range(40)]
    side = psi.Side(ids, bytes(range(32)))
    for one in psi.as_points(side.once, "a"):
        u = int.from_bytes(one, "little")
        assert gmpy2.legendre((u**3 + 486662 * u**2 + u) % psi.PRIME, psi.PRIME) == 1
    assert sorted(psi.as_points(side.once, "a")) == psi.as_points(side.once, "a")
    assert side.order.tolist() != list(range(40))


@pytest.mark.parametrize(
    ("points", "line"),
    [
        (torch.zeros(2, 31, dtype=torch.uint8), "must be bytes, 32 each"),
        (torch.zeros(2, 32), "must be bytes"),
        (torch.ones(2, 32, dtype=torch.uint8), "a point twice"),
        (torch.zeros(1, 32, dtype=torch.uint8), "low order"),
    ],
)
def test_points_that_are_none_are_refused(points, line):
    side = psi.Side(["a"])
    with pytest.raises(UnalikeError, match=line):
        side.twice(points, "shop")


def test_tables_are_divided_for_experiments():
    data = cancer(200)
    parties = v.split(data, {"clinic": 10, "lab": 20}, matched=0.6, errors=0.1, seed=3)
    assert parties.report.matched == {"lab": 120}
    guest, host = parties.guest, parties.hosts[0]
    true = {tuple(row[:10]): tuple(row[10:]) for row in data[0]}
    joined = [
        true[tuple(a.tolist())] == tuple(b.tolist())
        for a, b in zip(guest.table.x[guest.positions], host.table.x[host.positions], strict=True)
    ]
    assert sum(joined) == 108  # a tenth of 120 carry another's id


def test_halves_of_pictures_and_overlapping_columns():
    x = np.arange(2 * 4 * 6).reshape(2, 4, 6).astype(float)
    parties = v.split((x, [0, 1]), {"left": "left", "right": "right"})
    found = parties.hosts[0].table.x[parties.hosts[0].positions], parties.guest.table.x[parties.guest.positions]
    for right, left in zip(*found, strict=True):
        whole = torch.cat([left.reshape(4, 3), right.reshape(4, 3)], 1)
        assert any(torch.equal(whole, torch.from_numpy(picture)) for picture in x)
    with pytest.raises(UnalikeError, match="divided into left, right, top, bottom"):
        v.split((x, [0, 1]), {"left": "left", "right": "rigth"})
    parties = v.split(cancer(100), {"clinic": 10, "lab": 20}, overlap=3, overlap_noise=0.5)
    assert len(parties.uses["lab"]) == 23 and parties.uses["lab"][:3] == parties.uses["clinic"][:3]
    assert len(v.split(cancer(100), {"clinic": 10, "lab": 20}, overlap=3, columns="guest").uses["lab"]) == 20
    with pytest.raises(UnalikeError, match="the table has 30 in all"):
        v.split(cancer(100), {"clinic": 10, "lab": 21})
