"""Pieces in a row: size laws behind a dealer, strengths, periods, and what random compositions promise."""

import dataclasses
import re
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unalike as ua
from unalike import partition
from unalike.data.partition import PARTITIONS, PIECES, parse
from unalike.data.partition.pieces import Change
from unalike.data.partition.resize import resized
from unalike.data.skew import CHANGES
from unalike.data.skew.samples import changed, per_row
from unalike.errors import UnalikeError

LABELS = np.random.default_rng(0).permutation(np.arange(6000) % 10)
DEALERS = ["dirichlet:0.3", "shards:2", "classes:2", "similarity:0.1", "prior-dirichlet:0.3", "power-law-classes:2"]
LAWS = ["lognormal:1", "power-law:1.5", "quantity:0.5"]


def says(*pieces):
    """The call raises one line that has all these pieces in this order."""
    return pytest.raises(UnalikeError, match=r"^[^\n]*" + "[^\n]*".join(map(re.escape, pieces)) + r"[^\n]*$")


def sizes_of(parts):
    return np.array([len(part) for part in parts])


def table(labels, parts):
    """Samples of each client and class, [clients, classes]."""
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


def label_distance(labels, parts):
    """How far clients' label shares are from everybody's: total variation, weighed by samples."""
    counts = table(labels, parts)
    far = np.abs(counts / counts.sum(1, keepdims=True) - counts.sum(0) / counts.sum()).sum(1) / 2
    return float((far * counts.sum(1)).sum() / counts.sum())


def gini(sizes):
    """0 for equal sizes, near 1 where one client has all."""
    sizes = np.sort(sizes)
    ranks = np.arange(1, len(sizes) + 1)
    return float(((2 * ranks - len(sizes) - 1) * sizes).sum() / (len(sizes) * sizes.sum()))


def all_once(parts, n):
    return np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))


# ---- strengths


@pytest.mark.parametrize("text", DEALERS)
def test_label_skew_grows_with_the_strength(text):
    split = parse(text)
    far = [label_distance(LABELS, split.at(s)(LABELS, 30, 1)) for s in (0, 0.25, 0.5, 0.75, 1)]
    chance = label_distance(LABELS, partition.IID()(LABELS, 30, 1))
    assert np.all(np.diff(far) > 0.02) and far[0] < 2 * chance
    whole, half = (sizes_of(split.at(s)(LABELS, 30, 1)) for s in (1, 0.5))
    assert np.array_equal(whole, half)


@pytest.mark.parametrize("text", LAWS)
def test_sizes_spread_with_the_strength(text):
    law = parse(text)
    spread = [gini(sizes_of(law.at(s)(LABELS, 30, 1))) for s in (0, 0.25, 0.5, 0.75, 1)]
    assert spread[0] == 0 and np.all(np.diff(spread) > 0.02)
    assert all_once(law.at(0.5)(LABELS, 30, 1), len(LABELS))


def test_a_size_law_at_half_strength_by_hand():
    """Of 11 samples Zipf's law gives 5, 3, 2, 1; equal would be 2.75 each. Half-way: 3.875, 2.875, 2.375, 1.875."""
    law = partition.PowerLaw(1.0, strength=0.5)
    assert law.sizes_at_strength(11, 4, 0).tolist() == [4, 3, 2, 2]
    assert law.sizes(11, 4, 0).tolist() == [5, 3, 2, 1]


def test_test_same_goes_with_full_strength_only():
    data = ua.load("digits")
    with says("full strength only", "similarity:0.1@0.5"):
        data.split("similarity:0.1@0.5", 5, test="same")
    with says("test='same' does not go", "similarity:0.1|quantity:1.0"):
        data.split("similarity:0.1|quantity:1", 5, test="same")


# ---- sizes


def test_quantity_is_a_dirichlet_draw():
    """The variance of a share of Dir(a, …, a) over N is (N - 1) / N² / (N a + 1): at a = 2 and N = 1000, shares times N
    have deviation 0.707; at 1e300 all are alike, at 1e-300 one client has nearly all."""
    sizes = partition.Quantity(2.0).sizes(10_000_000, 1000, 0)
    assert sizes.sum() == 10_000_000 and (sizes / 10_000).std() == pytest.approx(0.707, abs=0.06)
    assert np.ptp(partition.Quantity(1e300).sizes(1000, 10, 3)) <= 2
    assert sorted(partition.Quantity(1e-300).sizes(1000, 10, 3)) == [1] * 9 + [991]
    with says("alpha=0 must be a number above 0"):
        partition.Quantity(0)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("dealer", ["iid", *DEALERS])
def test_a_size_law_behind_a_dealer_gives_its_sizes_and_keeps_mixes(dealer, law):
    n = len(LABELS)
    first, both = parse(dealer)(LABELS, 30, 2), parse(f"{dealer}|{law}")(LABELS, 30, 2)
    assert all_once(both, n)
    assert np.array_equal(sizes_of(both), parse(law).sizes(n, 30, 2))
    # nearer to the clients' own mixes than a dealing at random with the same sizes
    mixes = [table(LABELS, parts) for parts in (first, both, parse(law)(LABELS, 30, 2))]
    own, new, chance = (m / m.sum(1, keepdims=True) for m in mixes)
    far = np.abs(new - own).sum(1).mean()
    if dealer != "iid":
        assert far < 0.7 * np.abs(chance - own).sum(1).mean()


def test_equal_sizes_for_dirichlet_clients():
    """A law at strength 0 asks for equal sizes: the mixes stay, Dirichlet's sizes go."""
    first, both = (parse(t)(LABELS, 30, 0) for t in ("dirichlet:0.3", "dirichlet:0.3|quantity:1@0"))
    assert np.ptp(sizes_of(first)) > 50 and set(sizes_of(both)) == {200}
    assert label_distance(LABELS, both) == pytest.approx(label_distance(LABELS, first), abs=0.05)


def test_sizes_that_the_mixes_allow_are_met_exactly():
    """Two classes of 60; clients of class 0, of class 1, of both. Sizes 40, 40, 40 allow these mixes. With 60, 20, 40
    the first takes all of class 0, so that the third must turn to class 1."""
    labels = np.repeat([0, 1], 60)
    parts = [np.arange(30), np.arange(60, 90), np.r_[30:60, 90:120]]
    assert table(labels, resized(parts, labels, np.array([40, 40, 40]), 0)).tolist() == [[40, 0], [0, 40], [20, 20]]
    shifted = table(labels, resized(parts, labels, np.array([60, 20, 40]), 0))
    assert shifted.sum(0).tolist() == [60, 60] and shifted.sum(1).tolist() == [60, 20, 40]
    assert shifted[0, 0] >= 55 and shifted[1, 1] == 20 and shifted[2, 1] >= 35


def test_numbers_to_predict_keep_their_levels():
    y = np.random.default_rng(3).normal(size=2000)
    first, both = (parse(t)(y, 20, 0) for t in ("shards:1", "shards:1|quantity:1"))
    assert all_once(both, 2000) and np.array_equal(sizes_of(both), partition.Quantity(1).sizes(2000, 20, 0))
    means = [[y[part].mean() for part in parts] for parts in (first, both)]
    assert np.corrcoef(*means)[0, 1] > 0.9


def test_a_partition_of_ones_own_may_be_resized_and_changed():
    def halves(labels, clients, seed):
        return np.array_split(np.argsort(labels, kind="stable"), clients)

    fed = ua.load("digits").split(halves | partition.Quantity(1.0) | ua.skew.Permute(2), 4, seed=1)
    n = len(ua.load("digits"))
    assert fed.sizes.tolist() == partition.Quantity(1.0).sizes(n, 4, 1).tolist() and set(fed.planted) == {"permute"}


@pytest.mark.parametrize(
    "text, pieces",
    [
        ("dirichlet:0.3|shards:2", ["dirichlet:0.3 and shards both deal", "size law"]),
        ("iid|quantity:1|quantity:2", ["both deal"]),
        ("quantity:1|lognormal:1", ["quantity:1.0 and lognormal:1.0 both say how many"]),
        ("quantity:1|dirichlet:0.3", ["both deal"]),
        ("natural|quantity:1", ["natural keeps the clients' own samples", "leave it out"]),
        ("permute:2|iid", ["iid deals the samples: it must come first"]),
        ("iid|permute:2|quantity:1", ["quantity:1.0 deals the samples: it must come first"]),
    ],
)
def test_rows_of_pieces_that_make_no_sense(text, pieces):
    with says(*pieces):
        parse(text)


# ---- periods


def test_periods_are_stretches_of_time():
    days = np.array([30, 4, 200, 4, 100, 1, 31])
    assert [p.tolist() for p in partition.Periods()(days, 3, 0)] == [[5, 1, 3], [0, 6], [4, 2]]
    dates = np.array(["2024-11-30", "2024-03-01", "2023-12-31"])
    assert [p.tolist() for p in partition.Periods()(dates, 3, 9)] == [[2], [1], [0]]
    longer = parse("periods|power-law:1")(days, 3, 0)
    assert [p.tolist() for p in longer] == [[5, 1, 3, 0], [6, 4], [2]]  # 6 : 3 : 2 of 7 are 4, 2 and 1
    assert all_once(parse("periods@0.3")(np.arange(100), 4, 0), 100)


def test_the_time_of_a_data_set():
    x, y, day = np.arange(8.0)[:, None], np.arange(8) % 2, np.array([7, 6, 5, 4, 3, 2, 1, 0])
    at = lambda fed: [fed.train.of(k)[0][:, 0].tolist() for k in range(len(fed))]  # noqa: E731
    plain = ua.Dataset(x, y, columns={"day": day})
    assert at(plain.split("periods", 2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert at(plain.split("periods:day", 2)) == [[7, 6, 5, 4], [3, 2, 1, 0]]
    timed = ua.Dataset(x, y, columns={"day": day}, time="day")
    assert at(timed.split("periods", 2)) == at(plain.split("periods:day", 2))
    assert sorted(np.concatenate(at(timed.split("periods", 2, public=2)))) != list(range(8))  # columns go with rows
    streamed = timed.split("iid|stream:2", 2, seed=1)  # oldest first
    assert all(one == sorted(one, reverse=True) for one in at(streamed))
    assert at(plain.split("periods:day|stream:2", 2)) == [[7, 6, 5, 4], [3, 2, 1, 0]]
    with says("no column 'days'", "Did you mean 'day'"):
        ua.Dataset(x, y, columns={"day": day}, time="days")
    with says("no column 'hour'"):
        plain.split("periods:hour", 2)


def test_the_time_of_a_table():
    rows = [{"a": float(k), "ill": k % 2, "date": f"2024-0{9 - k}-01"} for k in range(8)]
    data = ua.data.tables.table_dataset(rows, "ill", time="date", scale="none")
    assert data.time == "date" and data.x.shape == (8, 1)
    assert data.split("periods", 2).train.x[:, 0].tolist() == [7, 6, 5, 4, 3, 2, 1, 0]


# ---- what compositions promise

PIECE = {  # what may be asked of each; drawn at random below
    "iid": ["iid", "iid:true"],
    "dirichlet": ["dirichlet:0.01", "dirichlet:0.5"],
    "prior-dirichlet": ["prior-dirichlet:0.5", "prior-dirichlet:0.5:1"],
    "shards": ["shards:1", "shards:2"],
    "classes": ["classes:1", "classes:3"],
    "similarity": ["similarity:0", "similarity:0.5"],
    "lognormal": ["lognormal:0", "lognormal:2"],
    "power-law": ["power-law:0", "power-law:3"],
    "quantity": ["quantity:0.05", "quantity:5"],
    "power-law-classes": ["power-law-classes:1", "power-law-classes:2:letters"],
    "periods": ["periods"],
    "permute": ["permute:2", "permute:3", "permute:2:0.3"],
    "views": ["views:2", "views:3:0", "views:2:1"],
    "noise": ["noise:0.5", "noise:0.5:2"],
    "impulse": ["impulse:0.3"],
    "shift": ["shift:1:2"],
    "rotate": ["rotate:2"],
    "blur": ["blur"],
    "contrast": ["contrast:2"],
    "colour": ["colour"],
    "crowd": ["crowd:0.4:0.3", "crowd:0.9"],
    "drift": ["drift:5:noise:0.5"],
    "stream": ["stream:5"],
}
STRENGTHS = st.sampled_from(["", "@0", "@0.3", "@1"])


def one_of(names):
    texts = st.sampled_from([text for name in names for text in PIECE[name]])
    return st.tuples(texts, STRENGTHS).map("".join)


def what_changes(text):
    """What a change changes: a drift, what its own skew does; asked for twice it is refused, which has its own test."""
    name, *rest = text.split(":")
    return rest[1] if name == "drift" else name.partition("@")[0]


@st.composite
def requests(draw):
    """A text of pieces in a row: a dealer or none, a size law or none, changes."""
    dealers = [name for name in PIECE if name in PARTITIONS]
    laws = [name for name in dealers if issubclass(PARTITIONS[name], partition.SizeLaw)]
    changes = [name for name in PIECE if name in CHANGES]
    first = draw(one_of([name for name in dealers if name not in laws]))
    dealt = draw(st.sampled_from([[first], [first, draw(one_of(laws))], [draw(one_of(laws))], []]))
    after = draw(st.lists(one_of(changes), max_size=3, unique_by=what_changes))
    return "|".join([*dealt, *after]) or "iid"


def check(text, clients, n, kinds, seed):
    """One request; return whether it was met. Each sample is at one client, or with views at as many as there are
    views, and nobody is without. All numbers of a sample are its own, and every view shows some of them; what else
    changes samples must leave every client as many as it has without."""
    recipe = partition.composed(parse(text))
    assert partition.composed(parse(str(recipe))) == recipe
    x = np.arange(1.0, n + 1)[:, None, None, None] * np.ones((1, 1, 3, 6))
    data = ua.Dataset(x, np.random.default_rng(seed).integers(0, kinds, n), classes=kinds)
    share = 0.2 if n > 5 * clients else 0.0
    try:
        fed = data.split(text, clients, seed, test=share)
    except UnalikeError as error:
        assert "\n" not in str(error)
        return False
    dealt = [piece for piece in recipe.pieces if not isinstance(piece, Change) or piece.copies > 1]
    plain = data.split(partition.Composed(tuple(dealt)), clients, seed, test=share)
    assert len(fed) == clients and fed.sizes.min() >= 1
    assert np.array_equal(*(sum(columns.sizes for columns in one.splits.values()) for one in (fed, plain)))
    touched = any(change.of_features and change.copies == 1 for change in recipe.changes)
    rows = [c.x.flatten(1).amax(1) for c in (plain if touched else fed).splits.values()]
    found = torch.cat(rows).round().long().numpy() - 1
    assert np.array_equal(np.bincount(found, minlength=n), np.full(n, recipe.copies))
    assert fed.fingerprint() == data.split(text, clients, seed, test=share).fingerprint()
    return True


def test_every_sample_is_accounted_for():
    met = [0, 0]

    @settings(max_examples=120, deadline=None, derandomize=True, database=None)
    @given(
        text=requests(),
        clients=st.integers(1, 12),
        n=st.integers(1, 150),
        kinds=st.integers(1, 8),
        seed=st.integers(0, 99),
    )
    def test(text, clients, n, kinds, seed):
        met[not check(text, clients, n, kinds, seed)] += 1

    test()
    assert min(met) > 20, f"(met, refused) = {met}: the requests do not show both"


def test_every_piece_is_composed_here():
    assert set(PIECES) - set(PIECE) == {"natural"}


@pytest.mark.parametrize(
    "text, fingerprint",
    [
        ("dirichlet:0.3|quantity:0.5", "24d5cf78500fa590"),
        ("shards:2@0.5|lognormal:0.5@0.5", "83d04519007c2909"),
        ("classes:2|power-law:1|permute:3|views:2:0.5@0.5", "94d4e722c5ce590b"),
        ("periods|quantity:1|views:2", "b1ab4aa9bd839037"),
    ],
)
def test_the_same_seed_gives_the_same_federation_everywhere(text, fingerprint):
    """x are eighths, which no arithmetic rounds."""
    x = (np.arange(1200 * 8) % 97).reshape(1200, 8) / 8
    fed = ua.Dataset(x.astype(np.float32), np.arange(1200) * 7 % 10).split(text, 20, seed=5, test=0.2)
    assert fed.fingerprint() == fingerprint


def test_a_change_stands_once_in_a_row():
    for text, name in (("rotate:2|rotate:3", "rotate"), ("permute:2|drift:5:permute:3", "permute")):
        with says(f"{name} stands twice in '{text.replace(':2|', '|') if name == 'permute' else text}'"):
            parse(text)
    with says("noise stands twice"):
        ua.skew.Noise(1.0) | ua.skew.Shift(1.0) | ua.skew.Noise(2.0)


def test_what_is_no_partition_is_refused_in_one_line():
    data = ua.Dataset(torch.zeros(60, 2), torch.arange(60) % 3)
    for wrong in (3, ["iid"], ua.skew.Permute, ua.partition.IID):
        with says("is no skew: give a partition, a change, or a text"):
            data.split(wrong, 4)
        with says("is no skew: give a partition, a change, or a text"):
            ua.skew.Permute(2) | wrong


def test_a_function_that_deals_wrongly_is_called_by_its_name():
    data = ua.Dataset(torch.zeros(60, 2), torch.arange(60) % 3)

    def mine(labels, clients, seed):
        return parts[0]

    parts = [None]
    for parts[0] in (None, [[0.5, 1.5]] * 4, [[True, False]] * 4, [["a"]] * 4, [3, 4, 5, 6], [[[1], [2]]] * 4):
        with says("The partition mine must give a list of row numbers for every client"):
            data.split(mine, 4)
    for parts[0], what in (([[1]], "gave 1 parts"), ([[1], [2], [3], []], "leaves 1 of 4 clients empty")):
        with says(f"The partition mine {what}"):
            data.split(mine, 4)
    with says("iid and mine both deal the samples"):
        partition.IID() | mine
    parts[0] = [[1], (2,), np.array([3], np.uint8), torch.tensor([4])]
    assert data.split(mine, 4).sizes.tolist() == [1, 1, 1, 1]


@dataclasses.dataclass(frozen=True)
class Brighter(Change):
    """A change of one's own, as docs/partitions.md has it."""

    name: ClassVar[str] = "brighter"
    by: float = 1.0

    def change(self, fed, seed):
        far = np.arange(len(fed)) / (len(fed) - 1)

        def brighter(x, owners, keys):
            return x + per_row(far[owners], x) * self.by * self.strength

        return changed(fed, self.name, far, far * self.strength > 0, brighter, seed)


def test_a_change_of_one_s_own_composes_and_drifts():
    data = ua.Dataset(torch.zeros(60, 2), torch.arange(60) % 3)
    fed = data.split("iid" | Brighter(4.0, strength=0.5) | ua.skew.Permute(2), 5)
    assert list(fed.planted) == ["brighter", "permute"] and fed.train.of(4)[0].unique().tolist() == [2.0]
    slow = data.split(partition.IID() | ua.skew.Drift(3, Brighter(4.0)), 5)
    assert [slow.at(round).train.of(4)[0].max().item() for round in (1, 2, 3)] == [0.0, 2.0, 4.0]
