"""Trees between parties: the joined table's trees, bit for bit, under every cipher, with what each party may see."""

import itertools

import numpy as np
import pytest
import torch
from goldens import golden
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

import unalike as ua
from unalike.trees import Boosted, Boosting, exact
from unalike.trees.fit import boost
from unalike.trees.tree import LEAF, Tree
from unalike.vertical import Parties, SecureBoost, fit, links
from unalike.vertical.candidates import Candidates
from unalike.vertical.links import Loopback
from unalike.vertical.methods.secure_boost import importance
from unalike.vertical.pairs import Clear, Width, split

LOADERS = {"breast cancer": load_breast_cancer, "wine": load_wine, "diabetes": load_diabetes}
SMALL = {"trees": 2, "depth": 3, "bins": 16}


def table(name):
    x, y = LOADERS[name](return_X_y=True)
    return x.astype(np.float32), y.astype(np.float32) if name == "diabetes" else y


def divided(x, y, parties, **options):
    """The table's columns, dealt to so many parties."""
    parts = np.array_split(np.arange(x.shape[1]), parties)
    return Parties.from_arrays({f"party{k}": x[:, own] for k, own in enumerate(parts)}, y, **options)


def joined(run, classes):
    """The trees of all parties as one model, with everybody's lookup opened: nobody can do this in earnest."""
    guest, hosts = run.session.me, [node.me for node in run.parties.hosts]
    offsets = np.cumsum([0, guest.columns, *(me.columns for me in hosts)])
    trees = []
    for number in range(int(guest.count)):
        grown = []
        for output in range(guest.outputs):
            party, record, bin, missing = guest.forest[:, number, output].numpy()
            tree = Tree.empty(run.method.depth)
            tree.value[:], tree.gain[:] = guest.value[number, output], guest.gain[number, output]
            for place in np.flatnonzero(party != LEAF):
                found = (record[place], bin[place], missing[place])
                if party[place]:
                    found = hosts[party[place] - 1].lookup[record[place]].tolist()
                tree.column[place] = found[0] + offsets[party[place]]
                tree.bin[place], tree.missing_left[place] = found[1], bool(found[2])
            grown.append(tree)
        trees.append(grown)
    cuts = torch.cat([guest.cuts, *(me.cuts for me in hosts)])
    return Boosted(cuts, torch.zeros(len(cuts), dtype=torch.bool), classes, float(guest.base), trees)


def same(model, pooled):
    """Whether both have the same splits, gains and leaves, bit for bit."""
    parts = ("column", "bin", "missing_left", "gain", "value")
    pairs = list(zip(model.all_trees, pooled.all_trees, strict=True))
    equal = all(np.array_equal(getattr(a, part), getattr(b, part)) for a, b in pairs for part in parts)
    return equal and torch.equal(model.cuts, pooled.cuts) and model.base == pooled.base


@pytest.mark.parametrize("engine", ["direct", "tls"], indirect=True)
def test_golden(engine, monkeypatch):
    file = golden("trees_histogram")
    codes, y = np.array(file["codes"], np.float32), np.array(file["y"]).astype(int)
    monkeypatch.setattr(SecureBoost, "learn_cuts", lambda self, me, rows: setattr(me, "cuts", whole(me.columns)))
    own, theirs = file["vertical"]["guest_columns"], file["vertical"]["host_columns"]
    parties = Parties.from_arrays({"guest": codes[:, own], "host": codes[:, theirs]}, y)
    run = fit(SecureBoost(trees=3, depth=3, bins=8, bits=512), parties, epochs=3, engine=engine)
    assert np.abs(run.session.me.margin[:, 0].numpy() - np.array(file["margins"])).max() < 1e-12
    pooled = boost(
        Boosting(trees=3, depth=3, bins=8), Boosted(whole(10), torch.zeros(10).bool(), 2), *as_rows(codes, y)
    )
    assert same(joined(run, 2), pooled)


def whole(columns):
    return torch.arange(7.0).expand(columns, 7).contiguous()


def as_rows(codes, y):
    return torch.tensor(codes, dtype=torch.uint8), torch.tensor(y)


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("parties", [2, 3])
def test_parties_grow_the_pooled_trees(name, parties):
    x, y = table(name)
    run = fit(SecureBoost(**SMALL, cipher="none"), divided(x, y, parties), epochs=2)
    pooled = ua.trees.fit(Boosting(**SMALL), (x, y))
    assert same(joined(run, pooled.classes), pooled)
    assert torch.equal(run.session.me.margin, pooled.margins(x))


@pytest.mark.parametrize("cipher", ["paillier", "ou"])
def test_ciphers_change_no_bit(cipher):
    x, y = table("breast cancer")
    x, y = x[:120, :8], y[:120]
    run = fit(SecureBoost(**SMALL, bits=768), divided(x, y, 2), protection=cipher, epochs=2, engine="loopback")
    assert run.method.cipher == cipher and same(joined(run, 2), ua.trees.fit(Boosting(**SMALL), (x, y)))
    forms = {row.field: row.form for row in run.sees}
    assert forms["pairs"] == forms["sums"] == "sealed"


def test_paillier_is_the_default_and_clear_is_said_to_be_clear():
    assert SecureBoost().cipher == SecureBoost().under("none").cipher == "paillier"
    x, y = table("wine")
    run = fit(SecureBoost(**SMALL, cipher="none"), divided(x, y, 2), epochs=1)
    told = {row.field: (row.form, row.tells) for row in run.sees}
    assert told["pairs"][0] == "clear" and "labels" in told["pairs"][1]
    with pytest.raises(ua.UnalikeError, match="paillier or ou"):
        SecureBoost().under("ckks")
    with pytest.raises(ua.UnalikeError, match="no validation rows"):
        SecureBoost(patience=3)


def test_rows_that_a_host_lacks_are_missing_values():
    x, y = table("breast cancer")
    ids = [f"p{k}" for k in range(len(y))]
    guest = {"id": ids, "label": [str(v) for v in y], **{f"g{k}": x[:, k] for k in range(4)}}
    there = np.arange(len(y)) % 4 > 0
    host = {"id": [i for i, t in zip(ids, there, strict=True) if t], **{f"h{k}": x[there, 20 + k] for k in range(4)}}
    options = {"id": "id", "label": ("a", "label"), "unmatched": "missing", "scale": "none"}
    parties = Parties.from_tables({"a": guest, "b": host}, **options)
    run = fit(SecureBoost(**SMALL, cipher="none"), parties, epochs=2)
    order = parties.guest.positions.numpy()
    holes = np.where(there[:, None], x[:, 20:24], np.nan)
    pooled = ua.trees.fit(Boosting(**SMALL), (np.concatenate([x[:, :4], holes], 1)[order], y[order]))
    assert same(joined(run, 2), pooled) and any(t.missing_left[t.splits].any() for t in pooled.all_trees)


def test_samples_of_columns_and_rows_are_the_pooled_ones():
    x, y = table("breast cancer")
    settings = {**SMALL, "columns": 0.3, "rows": 0.6}
    run = fit(SecureBoost(**settings, cipher="none"), divided(x, y, 3), epochs=2, seed=5)
    assert same(joined(run, 2), ua.trees.fit(Boosting(**settings), (x, y), seed=5))
    assert not same(joined(run, 2), ua.trees.fit(Boosting(**settings), (x, y), seed=6))


def test_leaves_are_limited_as_in_the_pooled_run():
    x, y = table("breast cancer")
    settings = {"trees": 2, "depth": 4, "bins": 16, "leaves": 6}
    run = fit(SecureBoost(**settings, cipher="none"), divided(x, y, 2), epochs=2)
    assert same(joined(run, 2), ua.trees.fit(Boosting(**settings), (x, y)))


def test_the_first_tree_by_the_guest_alone():
    x, y = table("breast cancer")
    run = fit(SecureBoost(**SMALL, cipher="none", first_alone=True), divided(x, y, 2), epochs=2)
    forest = run.session.me.forest[0, :, 0]
    assert not (forest[0] > 0).any() and (forest[1] > 0).any()
    alone = ua.trees.fit(Boosting(**{**SMALL, "trees": 1}), (x[:, :15], y)).all_trees[0]
    assert np.array_equal(run.session.me.value[0, 0].numpy(), alone.value)


def test_importance_by_party_is_that_of_its_columns():
    x, y = table("breast cancer")
    run = fit(SecureBoost(**SMALL, cipher="none"), divided(x, y, 3), epochs=2)
    found = importance(run.session.me, run.parties.names)
    columns = joined(run, 2).importance()
    of = lambda low: sum(v for name, v in columns.items() if low <= int(name.split()[1]) < low + 10)  # noqa: E731
    assert found == pytest.approx({"party0": of(0), "party1": of(10), "party2": of(20)})


def test_large_derivatives_and_a_sample_of_the_others():
    x, y = table("breast cancer")
    method = SecureBoost(trees=3, depth=3, bins=16, cipher="none", top=0.2, other=0.25)
    full, some = (fit(m, divided(x, y, 2), epochs=3) for m in (SecureBoost(**SMALL, cipher="none"), method))
    assert some.history[1]["bytes_down"] < full.history[1]["bytes_down"]
    assert some.history[2]["train_loss"] < some.history[1]["train_loss"] < some.history[0]["train_loss"]
    guest = some.session.me
    pair = torch.stack([torch.arange(-284, 285), torch.ones(569).long()], 1)[:, None] << 20
    chosen, weighed = method.sample(guest, 0, pair)
    assert len(chosen) == 114 + 114
    assert abs(float(weighed[..., 1].sum()) / float(pair[..., 1].sum()) - 1) < 0.01


def test_killed_and_continued(tmp_path):
    x, y = table("wine")
    method = SecureBoost(trees=4, depth=2, bins=8, cipher="none")
    whole_run = fit(method, divided(x, y, 2, test=0.2), epochs=3)
    fit(method, divided(x, y, 2, test=0.2), epochs=1, folder=tmp_path / "run")
    again = fit(method, divided(x, y, 2, test=0.2), epochs=3, folder=tmp_path / "run", resume=True)
    assert same(joined(again, 3), joined(whole_run, 3)) and again.history[-1] == whole_run.history[-1]


def test_prediction_with_everybody_and_with_a_host_away():
    x, y = table("breast cancer")
    names = [[f"a{k}" for k in range(15)], [f"b{k}" for k in range(15)]]
    ids = [f"p{k}" for k in range(len(y))]
    columns = [
        {"id": ids, **dict(zip(n, part.T, strict=True))} for n, part in zip(names, (x[:, :15], x[:, 15:]), strict=True)
    ]
    tables = {"guest": {**columns[0], "label": [str(v) for v in y]}, "host": columns[1]}
    parties = Parties.from_tables(tables, id="id", label=("guest", "label"), scale="none")
    run = fit(SecureBoost(**SMALL, cipher="none"), parties, epochs=2, fallback="zero")
    pooled = joined(run, 2)
    everybody = run.predict({"guest": columns[0], "host": columns[1]})
    assert np.abs(np.asarray(everybody.probabilities) - pooled.probabilities(x).numpy()).max() < 1e-9
    away = run.predict({"guest": columns[0]})
    holes = np.concatenate([x[:, :15], np.full_like(x[:, 15:], np.nan)], 1)
    assert np.abs(np.asarray(away.probabilities) - pooled.probabilities(holes).numpy()).max() < 1e-9


# ---- what crosses


class Tapped(Loopback):
    """A link that keeps all bytes."""

    said: dict[str, list[bytes]] = {}

    def send(self, header, tensors):
        super().send(header, tensors)
        for value in tensors.values():
            self.said["down"].append(value.contiguous().numpy().tobytes())

    def receive(self):
        header, tensors = super().receive()
        for value in tensors.values():
            self.said["up"].append(value.contiguous().numpy().tobytes())
        return header, tensors


def tapped(monkeypatch, cipher):
    """What crosses while two trees grow: (messages to the host, messages to the guest, the run, columns and labels)."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(60, 4)).astype(np.float32), draw.integers(0, 2, 60)
    monkeypatch.setitem(links.ENGINES, "loopback", Tapped)
    Tapped.said = {"down": [], "up": []}
    method = SecureBoost(trees=2, depth=2, bins=8, cipher=cipher, bits=512)
    run = fit(method, divided(x, y, 2), epochs=2, engine="loopback")
    return Tapped.said["down"], Tapped.said["up"], run, x, y


def holds(messages, values):
    """Whether a message has one of these numbers at one of its places, as float64, or two of them as float32."""
    wide = values.astype(np.int64 if values.dtype.kind == "i" else np.float64).view(np.int64)
    pairs = [] if values.dtype.kind == "i" else values.astype(np.float32)[: len(values) // 2 * 2].view(np.int64)
    wanted = {int(one) for one in (*wide, *pairs)} - {0, 1}
    return any(wanted & set(np.frombuffer(m[: len(m) // 8 * 8], np.int64).tolist()) for m in messages)


@pytest.mark.parametrize("cipher", ["paillier", "none"])
def test_no_message_holds_a_plain_derivative_label_value_or_cut(monkeypatch, cipher):
    down, up, run, x, y = tapped(monkeypatch, cipher)
    guest, host, labels = run.session.me, run.parties.hosts[0].me, torch.tensor(y)
    second = guest.base + run.method.added(guest, run.session.hosts, run.session.train, [0])[:, 0]
    margins = torch.zeros(60, 1).double(), second
    derivatives = np.concatenate([exact.derivatives(m, labels, 2).flatten().numpy() for m in margins])
    # under encryption nothing is found; in clear the derivatives are, so that the search is one that can find
    assert holds(down, derivatives) == (cipher == "none")
    assert not any(y.astype(kind).tobytes() in m for m in down for kind in (np.uint8, np.int64, np.float64))
    assert not holds(down, x[:, :2].T.flatten()) and not holds(down, guest.cuts.numpy().flatten())
    assert not holds(up, x[:, 2:].T.flatten()) and not holds(up, host.cuts.numpy().flatten())
    codes = run.method.coded(host).numpy()
    assert not any(codes[:, k].tobytes() in message for message in up for k in range(2))


def test_candidates_are_shuffled_and_the_commonest_code_is_never_summed():
    codes = np.random.default_rng(0).integers(0, 6, (80, 3)).astype(np.uint8)
    codes[:50, 1] = 2
    found = Candidates(codes, 5, np.ones(3, bool))
    assert sorted(found.order) == list(range(len(found))) and found.order != list(range(len(found)))
    values, clear = list(range(80)), Clear()
    sums = found.sums(np.arange(80), values, 0, clear.add)
    for number, total in enumerate(sums):
        _, candidate = found.at(number)
        side = found.left(candidate)[codes[:, candidate.column]]
        side = side if found.sends_left(candidate) else ~side
        assert total == sum(np.array(values)[side])
        assert not side[codes[:, candidate.column] == found.common[candidate.column]].any()
    many = Candidates(np.repeat(codes, 50, 0), 5, np.ones(3, bool))
    assert len(found.groups(np.arange(80))) == 3 and len(many.groups(np.arange(4000))) < 3


def test_cells_of_several_columns_together_are_those_of_each():
    codes = np.random.default_rng(1).integers(0, 4, (3000, 5)).astype(np.uint8)
    found = Candidates(codes, 3, np.ones(5, bool))
    assert max(map(len, found.groups(np.arange(3000)))) > 1
    values = np.random.default_rng(2).integers(-9, 9, 3000).tolist()
    cells = found.cells(np.arange(3000), values, 0, Clear().add)
    for column in range(5):
        for code in set(range(4)) - {found.common[column]}:
            assert cells[column][code] == sum(np.array(values)[codes[:, column] == code])


def test_a_pair_in_one_number():
    width = Width.of(4, 1 << 30)
    for g, h in ((-123456789, 987654), (536870912, 268435456), (-(1 << 30), 1), (5, 0)):
        assert split((g << width.low) + h, width.low) == (g, h)


def test_what_does_not_fit_is_refused():
    x, y = table("wine")
    run = fit(SecureBoost(**SMALL, cipher="none"), divided(x, y, 2), epochs=1)
    host, method = run.parties.hosts[0].me, run.method
    from unalike.contract import Fields

    short = torch.zeros(3, dtype=torch.uint8)
    for fields, function in ((Fields(nodes=short), method.sum), (Fields(nodes=short, chosen=short), method.split)):
        with pytest.raises(ua.UnalikeError, match="told the nodes of"):
            function(host, fields)
    asked = torch.full((2, 1), 10**6, dtype=torch.int32).view(torch.uint8).flatten()
    with pytest.raises(ua.UnalikeError, match="a split that is not there"):
        method.way(host, Fields(rows=torch.arange(2), asked=asked))
    with pytest.raises(ua.UnalikeError, match="another number of sums"):
        Clear().opened(b"123", 1, 1, Width(40, 81))


def test_many_columns_with_one_value_each_are_added_as_few_are():
    """In a node all rows have flags that are rare elsewhere: columns are joined only as far as their number fits."""
    draw = np.random.default_rng(0)
    codes = (draw.random((150, 24)) < 0.1).astype(np.uint8)
    codes[:45, :20] = 1
    rows, values = np.arange(45), draw.integers(-9, 9, 150).tolist()
    found = Candidates(codes, 32, np.ones(24, bool), shuffled=False)
    cells = found.cells(rows, values, 0, lambda a, b: a + b)
    for column, code in itertools.product(range(24), range(33)):
        there = [values[row] for row in rows if codes[row, column] == code != found.common[column]]
        assert cells[column][code] == sum(there), (column, code)
