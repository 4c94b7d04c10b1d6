"""Every partition: what it promises, the authors' own index lists, and impossible requests."""

import itertools
import json
import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import GOLDEN, ROOT

from unalike.data import partition
from unalike.data.partition import PARTITIONS, PIECES, parse, prior, tools
from unalike.errors import UnalikeError

FEDDC = json.loads((GOLDEN / "partition_feddc.json").read_text())
SIMILARITY = json.loads((GOLDEN / "partition_rfedavg_similarity.json").read_text())


def says(*pieces):
    """The call raises one line that has all these pieces in this order."""
    return pytest.raises(UnalikeError, match=r"^[^\n]*" + "[^\n]*".join(pieces) + r"[^\n]*$")


def table(labels, parts):
    """Samples of each client and class, [clients, classes]."""
    kinds = labels.max() + 1
    return np.array([np.bincount(labels[part], minlength=kinds) for part in parts])


def shuffled(*counts):
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))


# ---- every partition

# What may be asked of each, possible or not: every combination of these arguments.
ARGUMENTS = {
    "iid": [["", ":true"]],
    "dirichlet": [[":1e-9", ":0.01", ":0.5", ":100"], ["", ":1", ":3"]],
    "prior-dirichlet": [[":1e-9", ":0.01", ":0.5", ":1e300"], ["", ":0.3", ":9"]],
    "shards": [["", ":1", ":3", ":6"]],
    "classes": [[":1", ":2", ":4", ":6"]],
    "similarity": [[":0", ":0.1", ":0.5", ":1"], ["", ":spread", ":drop"]],
    "lognormal": [[":0", ":0.3", ":2", ":20"]],
    "power-law": [[":0", ":1", ":1.5", ":100"]],
    "power-law-classes": [[":1", ":2", ":5"], [":mnist", ":letters"], ["", ":drop"]],
    "quantity": [[":1e-300", ":0.05", ":0.5", ":1e300"], ["", "@0.5"]],
    "periods": [["", ":when"]],
    "natural": [["", ":writer"]],
}


def texts(name):
    return [name + "".join(pieces) for pieces in itertools.product(*ARGUMENTS[name])]


def possible(split, labels, clients):
    """Whether a request can be met, from first principles."""
    n, totals = len(labels), np.unique(labels, return_counts=True)[1]
    kinds = len(totals)
    if isinstance(split, partition.Natural):
        return clients <= kinds
    if isinstance(split, partition.Shards):
        return n >= clients * split.per_client
    if isinstance(split, partition.Classes):
        slots = clients * split.per_client
        return split.per_client <= kinds <= slots <= np.minimum(totals, clients).sum()
    if isinstance(split, partition.PowerLawClasses):
        owners = [sum((c - k) % kinds < split.classes for k in range(clients)) for c in range(kinds)]
        least = 5 if split.form == "mnist" else 2
        return (
            n >= clients
            and split.classes <= kinds
            and all(0 < least * o <= t for o, t in zip(owners, totals, strict=True))
        )
    if isinstance(split, partition.Similarity) and split.leftovers == "drop":
        mixed = round(split.share * n)
        return mixed // clients + (n - mixed) // clients > 0
    return n >= clients * getattr(split, "min_size", 1)


def uses_all(split, labels, clients):
    if isinstance(split, partition.Natural):
        return clients == len(np.unique(labels))
    return getattr(split, "leftovers", "spread") == "spread"


def check(split, labels, clients, seed):
    """One request: met, or refused with one line where it cannot be met."""
    if not possible(split, labels, clients):
        with says("clients"):
            split(labels, clients, seed)
        return None
    parts = split(labels, clients, seed)
    rows = np.concatenate(parts)
    assert len(parts) == clients and min(len(part) for part in parts) >= getattr(split, "min_size", 1)
    assert len(np.unique(rows)) == len(rows) <= len(labels) and rows.min() >= 0 and rows.max() < len(labels)
    if uses_all(split, labels, clients):
        assert len(rows) == len(labels)
    return parts


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_sample_goes_to_one_client(name):
    met = [0, 0]

    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(
        text=st.sampled_from(texts(name)),
        clients=st.integers(1, 20),
        n=st.integers(1, 400),
        kinds=st.integers(1, 12),
        seed=st.integers(0, 2**64 - 1),
    )
    def test(text, clients, n, kinds, seed):
        split = parse(text)
        assert parse(str(split)) == split and str(split).startswith(name)
        labels = np.random.default_rng(seed % 97).integers(0, kinds, n) * 7 - 3  # any integers will do
        parts = check(split, labels, clients, seed)
        met[parts is None] += 1
        for one, two in zip(parts or [], (parts and split(labels.copy(), clients, seed)) or [], strict=True):
            assert np.array_equal(one, two)

    test()
    assert min(met) > 2, f"(met, refused) = {met}: the requests do not show both"


@pytest.mark.parametrize("name", [name for name in PARTITIONS if name not in ("natural", "periods")])
def test_the_seed_matters(name):
    labels = np.arange(600) % 6
    text = {"classes": "classes:2", "power-law-classes": "power-law-classes:2"}.get(name, f"{name}:1")
    split = parse("iid" if name == "iid" else text)
    for seed, other in ((0, 1), (5, 5 + 2**32), (2**32, 2**33)):
        one, two = split(labels, 6, seed), split(labels, 6, other)
        assert any(not np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_more_clients_than_16_bits():
    parts = partition.IID(balanced=True)(np.arange(140_000) % 2, 70_000, 0)
    rows = np.stack(parts)  # two each
    assert len(np.unique(rows)) == 140_000 and ((rows % 2).sum(1) == 1).all()


class Counting(np.random.RandomState):
    """Counts the words that are read ahead for redraws."""

    words = 0

    def randint(self, low, high=None, size=None, dtype=int):
        if dtype is np.uint32:
            Counting.words += size
        return super().randint(low, high, size, dtype)


def test_two_thousand_random_requests_end(monkeypatch):
    rng = np.random.default_rng(0)
    draws = []
    whole = partition.Dirichlet._draw
    monkeypatch.setattr(partition.Dirichlet, "_draw", lambda *a: draws.append(1) or whole(*a))
    monkeypatch.setattr(prior, "legacy", lambda seed: Counting(seed))
    monkeypatch.setattr(prior, "REDRAWS", 50_000)
    met = 0
    for seed in range(2000):
        name = rng.choice(list(PARTITIONS))
        argument = {
            "iid": "iid:true",
            "shards": f"shards:{rng.integers(1, 6)}",
            "classes": f"classes:{rng.integers(1, 6)}",
            "power-law-classes": f"power-law-classes:{rng.integers(1, 4)}:{rng.choice(['mnist', 'letters'])}",
            "natural": "natural",
            "periods": "periods",
        }
        text = argument.get(str(name), f"{name}:{rng.choice([1e-300, 1e-3, 0.05, 0.3, 1.0])}")
        if name == "prior-dirichlet":
            text += f":{rng.choice([0.0, 1.0, 20.0])}"
        labels = rng.choice(rng.integers(0, 99, rng.integers(1, 12)), rng.integers(1, 300))
        draws.clear()
        Counting.words = 0
        met += check(parse(text), labels, int(rng.integers(1, 40)), seed) is not None
        # two words a redraw, and at most a block is read and not used; a sample itself takes few
        assert Counting.words <= 2 * (50_000 + 1000 * len(labels)) + 100 * len(labels) + 2 * prior.BLOCK
        assert len(draws) <= 20
    assert 800 < met < 1900


# ---- FedDyn's and FedDC's form


@pytest.mark.parametrize(
    "case, text, seed",
    [
        ("dirichlet0.3_balanced_seed20", "prior-dirichlet:0.3", 20),
        ("dirichlet0.6_balanced_seed20", "prior-dirichlet:0.6", 20),
        ("iid_balanced_seed23", "lognormal:0", 23),
        ("iid_unbalanced0.3_seed23", "lognormal:0.3", 23),
    ],
)
def test_feddc_index_for_index(case, text, seed):
    parts = parse(text)(np.array(FEDDC["labels"]), 5, seed)
    assert [part.tolist() for part in parts] == FEDDC["client_indices_in_stored_order"][case]


def authors_loop(labels, clients, alpha, sigma, seed):
    """FedDC's dealing restated with RandomState's scalar calls only (labels 0..K-1, all of which occur)."""
    stream = np.random.RandomState(seed)
    order = stream.permutation(len(labels))
    drawn = stream.lognormal(np.log(int(len(labels) / clients)), sigma, clients)
    room = (drawn / drawn.sum() * len(labels)).astype(int)
    room[0] += len(labels) - room.sum()
    kinds = labels.max() + 1
    edges = np.cumsum(stream.dirichlet([alpha] * kinds, size=clients), axis=1)
    rows = [list(order[labels[order] == label]) for label in range(kinds)]
    parts = [[] for _ in range(clients)]
    while room.sum():
        k = stream.randint(clients)
        if not room[k]:
            continue
        room[k] -= 1
        label = np.argmax(stream.uniform() <= edges[k])
        while not rows[label]:
            label = np.argmax(stream.uniform() <= edges[k])
        parts[k].insert(0, rows[label].pop())
    return parts


@pytest.mark.parametrize("clients, kinds, sigma", [(1, 3, 0.0), (2, 5, 0.3), (8, 2, 0.0), (9, 4, 0.5), (33, 3, 0.3)])
def test_prior_dirichlet_is_the_authors_stream(clients, kinds, sigma):
    labels = np.random.default_rng(clients).permutation(np.arange(40 * clients) % kinds)
    for seed in range(3):
        parts = partition.PriorDirichlet(2.0, sigma)(labels, clients, seed)
        assert [part.tolist() for part in parts] == authors_loop(labels, clients, 2.0, sigma, seed)


def test_feddc_sizes_have_the_authors_truncation():
    """As seen in the authors' program: 599 and 499 on CIFAR-10's 50,000 samples, 600 each on MNIST's 60,000."""
    sizes = [len(part) for part in partition.LogNormal(0.0)(np.zeros(50_000, int), 100, 20)]
    assert sizes == [599] + [499] * 99
    assert {len(part) for part in partition.LogNormal(0.0)(np.zeros(60_000, int), 100, 20)} == {600}
    sizes = [len(part) for part in partition.PriorDirichlet(0.6)(np.arange(50_000) % 10, 100, 20)]
    assert sizes == [599] + [499] * 99


def test_prior_dirichlet_ends_where_the_authors_loop_does_not():
    """Two clients that both want one class only: whoever comes second must take the other."""
    labels = np.arange(100) % 2
    parts = partition.PriorDirichlet(1e-9)(labels, 2, 1)
    counts = table(labels, parts)
    assert counts.sum() == 100 and (counts.sum(1) == 50).all()
    parts = partition.PriorDirichlet(1e-9)(np.arange(1000) % 10, 50, 0)
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))


def test_prior_dirichlet_near_zero_is_one_class_each():
    """Below about 0.001 all of Dir's gammas underflow; proportions are then one random class, not a mixture."""
    labels = np.arange(1000) % 10
    counts = table(labels, partition.PriorDirichlet(1e-9)(labels, 20, 0))
    assert (counts.max(1) / counts.sum(1)).mean() > 0.5 and len(set(counts.argmax(1))) > 4


def test_lognormal_sizes():
    labels = np.zeros(100_000, int)
    sizes = np.array([len(part) for part in partition.LogNormal(0.5)(labels, 1000, 3)])
    spread = np.log(sizes).std()  # of 1000 draws: 0.5 ± 0.011
    assert abs(spread - 0.5) < 0.05 and sizes.sum() == 100_000


# ---- the two Dirichlet forms against theory


def moments(split, clients, kinds, n, seeds):
    """Means over seeds: the sum of squares of class 0's shares among clients, and the sizes' spread."""
    labels = np.arange(n) % kinds
    squares, spreads = [], []
    for seed in range(seeds):
        counts = table(labels, split(labels, clients, seed))
        squares.append(((counts[:, 0] / counts[:, 0].sum()) ** 2).sum())
        spreads.append(counts.sum(1).std() / counts.sum(1).mean())
    return np.mean(squares), np.mean(spreads)


def test_dirichlet_shares_a_class_by_dirichlet_proportions():
    """E[sum of squares] of Dir(a, …, a) over N is (a + 1) / (N a + 1): 1.5 / 6; sizes follow and are unequal.

    The standard error over 300 seeds is 0.005. Client by client it would be about 0.13.
    """
    squares, spread = moments(partition.Dirichlet(0.5), clients=10, kinds=2, n=2000, seeds=300)
    assert abs(squares - 0.25) < 0.02 and spread > 0.5


def test_prior_dirichlet_gives_a_client_dirichlet_proportions():
    """E[sum of squares] of a client's own proportions over K classes is (a + 1) / (K a + 1): 1.5 / 6; equal sizes."""
    labels = np.arange(20_000) % 10
    values = []
    for seed in range(5):
        counts = table(labels, partition.PriorDirichlet(0.5)(labels, 400, seed))
        sizes = counts.sum(1)
        assert np.ptp(sizes) == 0
        values.append(((counts * (counts - 1)).sum(1) / (sizes * (sizes - 1))).mean())  # without the sampling's share
    assert abs(np.mean(values) - 0.25) < 0.02
    # class by class, with one client able to take most of a class, this would be 0.25
    squares, spread = moments(partition.PriorDirichlet(0.5), clients=10, kinds=2, n=2000, seeds=30)
    assert squares < 0.17 and spread < 0.05


def test_dirichlet_as_drawn_may_leave_clients_empty():
    labels = np.arange(100) % 2
    parts = partition.Dirichlet(0.01, min_size=0)(labels, 50, 0)
    assert min(len(part) for part in parts) == 0 and sum(len(part) for part in parts) == 100


# ---- similarity


@pytest.mark.parametrize("case", SIMILARITY["results"])
def test_similarity_index_for_index(case):
    split = partition.Similarity(float(case.removeprefix("s=")), leftovers="drop")
    labels, test_labels = np.array(SIMILARITY["train_labels"]), np.array(SIMILARITY["test_labels"])
    parts, test_parts = split.train_and_test(labels, test_labels, SIMILARITY["num_user"], 0)
    got = [{"train": a.tolist(), "test": b.tolist()} for a, b in zip(parts, test_parts, strict=True)]
    assert got == SIMILARITY["results"][case]
    for one, two in zip(parts, split(labels, SIMILARITY["num_user"], 0), strict=True):
        assert np.array_equal(one, two)


def test_similarity_leaves_the_global_stream_alone():
    random.seed(3)
    before = random.getstate()
    partition.Similarity(0.5)(np.arange(50) % 5, 5, 0)
    assert random.getstate() == before


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(share=st.floats(0, 1), clients=st.integers(1, 20), extra=st.integers(0, 100), test=st.integers(0, 50))
def test_similarity_spreads_leftovers_evenly(share, clients, extra, test):
    labels = np.random.default_rng(1).integers(0, 7, clients + extra)
    parts, test_parts = partition.Similarity(share).train_and_test(labels, np.arange(test) % 7, clients, 0)
    for found, rows in ((parts, clients + extra), (test_parts, test)):
        sizes = [len(part) for part in found]
        assert sum(sizes) == len(set(np.concatenate(found).tolist())) == rows and max(sizes) - min(sizes) <= 1


def test_similarity_that_drops_everything():
    with says("'similarity:0.5:drop' leaves clients empty", "5 clients for 6 samples", "leftovers='spread'"):
        partition.Similarity(0.5, "drop")(np.arange(6), 5, 0)  # 3 and 3: no slice of either


def test_similarity_is_the_similarity():
    labels = shuffled(*[1000] * 10)
    none, some, full = (table(labels, partition.Similarity(s)(labels, 20, 0)) for s in (0.0, 0.5, 1.0))
    assert ((none > 0).sum(1) <= 2).all() and (none.sum(1) == 500).all()
    # 250 sorted ones of at most two labels; 25 of each label expected at random
    assert (np.sort(some, 1)[:, -2:].sum(1) > 250).all() and (some.min(1) > 5).all()
    assert full.min() > 20 and full.max() < 85  # 50 expected, standard deviation 6.5: beyond 4.5 of them


# ---- classes


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(each=st.integers(1, 6), clients=st.integers(1, 30), counts=st.lists(st.integers(1, 60), min_size=1, max_size=10))
def test_classes_gives_exactly_so_many(each, clients, counts):
    labels = shuffled(*counts)
    parts = check(partition.Classes(each), labels, clients, 0)
    if parts is not None:
        assert ((table(labels, parts) > 0).sum(1) == each).all()


def test_classes_are_even():
    labels = shuffled(*[100] * 10)
    counts = table(labels, partition.Classes(2)(labels, 25, 0))
    assert (counts.sum(1) == 40).all() and set(counts.flat) == {0, 20}
    pairs = {tuple(np.flatnonzero(row)) for row in counts}
    assert len(pairs) > 12  # at random: clients do not go in groups
    other = table(labels, partition.Classes(2)(labels, 25, 1))
    assert ((other > 0) != (counts > 0)).any(1).sum() > 12  # and another seed gives them other classes
    # a class of 300 has three times the owners of one of 100, and nobody has more than another
    counts = table(shuffled(300, 100, 100, 100), partition.Classes(1)(shuffled(300, 100, 100, 100), 12, 0))
    assert ((counts > 0).sum(0) == [6, 2, 2, 2]).all() and (counts.sum(1) == 50).all()
    # a class of 2 samples cannot have 3 owners; others take its place
    labels = shuffled(2, 50, 50)
    counts = table(labels, partition.Classes(2)(labels, 6, 0))
    assert (counts > 0).sum(0)[0] <= 2 and ((counts > 0).sum(1) == 2).all()


def test_classes_impossible():
    labels = np.arange(100) % 10
    with says("'classes:11'", "each of 3 clients 11 of 10 classes", "at most 10"):
        partition.Classes(11)(labels, 3, 0)
    with says("each of 4 clients 2 of 10 classes", "without a client"):
        partition.Classes(2)(labels, 4, 0)
    with says("small classes have too few samples"):
        partition.Classes(2)(shuffled(100, 3), 10, 0)


# ---- power laws


def test_power_law_sizes():
    labels = shuffled(*[500] * 10)
    parts = partition.PowerLaw(1.0)(labels, 4, 0)
    assert [len(part) for part in parts] == [2400, 1200, 800, 600]  # 1, 1/2, 1/3, 1/4 of 25/12
    assert table(labels, parts)[3].min() > 30  # labels at random: 60 expected, standard deviation 7
    assert {len(part) for part in partition.PowerLaw(0.0)(labels, 50, 0)} == {100}
    assert [len(part) for part in partition.PowerLaw(50.0)(labels, 3, 0)] == [4998, 1, 1]
    assert sorted(len(part) for part in partition.PowerLaw(0.0)(labels[:103], 5, 0)) == [20, 20, 21, 21, 21]
    assert tools.apportion(np.zeros(3), 7).tolist() == [3, 2, 2]


def test_power_law_classes_of_fedprox():
    """1000 clients of MNIST's 70,000: digits k and k+1, at least 5 of each; mean 69, standard deviation 106 there."""
    labels = shuffled(6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958)  # MNIST's
    parts = partition.PowerLawClasses()(labels, 1000, 0)
    counts = table(labels, parts)
    for k, row in enumerate(counts):
        assert set(np.flatnonzero(row)) == {k % 10, (k + 1) % 10} and row[row > 0].min() >= 5
    sizes = counts.sum(1)
    assert sizes.sum() == 70_000 and np.median(sizes) < 40 < 80 < sizes.std()  # heavy: half the clients are small
    fewer = sum(len(part) for part in partition.PowerLawClasses(leftovers="drop")(labels, 1000, 0))
    assert 70_000 - 2000 < fewer < 70_000 - 500  # half a sample lost for each of 2000 amounts


def test_power_law_classes_of_letters():
    """200 clients of five of ten letters, the same of each; the median of lognormal(4, 1) + 5 is e^4 + 5 = 59.6."""
    labels = shuffled(*[4000] * 10)
    counts = table(labels, partition.PowerLawClasses(5, "letters", "drop")(labels, 200, 0))
    for k, row in enumerate(counts):
        assert set(np.flatnonzero(row)) == {(k + j) % 10 for j in range(5)} and len(set(row[row > 0])) == 1
        assert row.max() >= 2
    assert 45 < np.median(counts.sum(1)) < 75
    every = table(labels, partition.PowerLawClasses(5, "letters")(labels, 200, 0))
    assert every.sum() == 40_000 and np.corrcoef(every.sum(1), counts.sum(1))[0, 1] > 0.99
    # too few for the sizes drawn: scaled down, no letter twice
    labels = shuffled(*[300] * 10)
    assert table(labels, partition.PowerLawClasses(5, "letters", "drop")(labels, 200, 0)).sum() <= 3000


def test_power_law_classes_impossible():
    labels = np.arange(100) % 10
    with says("'power-law-classes:11'", "at most 10 classes per client"):
        partition.PowerLawClasses(11)(labels, 10, 0)
    with says("leaves classes without a client: ask for at least 9 clients"):
        partition.PowerLawClasses(2)(labels, 8, 0)
    with says("at least 5 samples of each", "a class has 10 samples for 4 clients", "fewer clients"):
        partition.PowerLawClasses(2)(labels, 20, 0)


# ---- natural


def test_natural_is_exact():
    values = np.array(["b", "a", "b", "c", "a", "b", "d"])
    split = partition.Natural()
    assert [part.tolist() for part in split(values, 4, 0)] == [[1, 4], [0, 2, 5], [3], [6]]
    assert split.chosen(values, 3).tolist() == ["a", "b", "c"]  # c and d have one each: the first by name
    assert [part.tolist() for part in split(values, 1, 9)] == [[0, 2, 5]]
    _, tests = split.train_and_test(values, np.array(["z", "c", "b", "0", "b"]), 3, 0)
    assert [part.tolist() for part in tests] == [[], [2, 4], [1]]
    numbers = np.array([10, 9, 10, 100])
    assert [part.tolist() for part in split(numbers, 3, 0)] == [[1], [0, 2], [3]]  # as numbers, not as texts
    with says("'natural:who' must give 5 clients but there are 4 in the column 'who': ask for at most 4"):
        partition.Natural("who")(values, 5, 0)


# ---- spelling


@pytest.mark.parametrize(
    "text, made",
    [
        ("classes:2", partition.Classes(2)),
        ("prior-dirichlet:0.3", partition.PriorDirichlet(0.3)),
        ("prior-dirichlet:0.3:0.3", partition.PriorDirichlet(0.3, sigma=0.3)),
        ("lognormal:0.3", partition.LogNormal(0.3)),
        ("power-law:1.5", partition.PowerLaw(1.5)),
        ("power-law-classes", partition.PowerLawClasses()),
        ("power-law-classes:5:letters:drop", partition.PowerLawClasses(5, "letters", "drop")),
        ("similarity:0.1", partition.Similarity(0.1)),
        ("similarity:0.1:drop", partition.Similarity(0.1, leftovers="drop")),
        ("natural", partition.Natural()),
        ("natural:Writer ID", partition.Natural("Writer ID")),
        ("dirichlet:0.1:0", partition.Dirichlet(0.1, min_size=0)),
    ],
)
def test_spelled(text, made):
    assert parse(text) == made and str(made) == text


@pytest.mark.parametrize(
    "text, pieces",
    [
        ("classes", ["lacks per_client", "such as 'classes:2'"]),
        ("classes:0", ["per_client=0 must be"]),
        ("lognormal", ["lacks sigma", "such as 'lognormal:0.3'"]),
        ("lognormal:-1", ["sigma=-1.0 must be a number from 0 to 20"]),
        ("lognormal:inf", ["sigma=inf must be"]),
        ("prior-dirichlet:0", ["alpha=0.0 must be"]),
        ("prior-dirichlet:1:nan", ["sigma=nan must be"]),
        ("power-law:-1", ["exponent=-1.0 must be"]),
        ("similarity:1.1", ["share=1.1 must be a number from 0 to 1"]),
        ("similarity:0.1:keep", ["Similarity leftovers must be 'spread' or 'drop'; got 'keep'"]),
        ("power-law-classes:2:cifar", ["form must be 'mnist' or 'letters'"]),
        ("natural:a:b", ["has 2 arguments"]),
        ("similarty:0.1", ["Did you mean 'similarity'"]),
    ],
)
def test_refused(text, pieces):
    with says(*pieces):
        parse(text)


def test_all_are_tried_here():
    assert set(ARGUMENTS) == set(PARTITIONS)


def test_the_page_has_them_all():
    page = (ROOT / "docs" / "partitions.md").read_text(encoding="utf-8")
    spelled = re.findall(r"^\| `([^`]+)` \| `(\w+)", page, re.MULTILINE)
    assert {text.split(":")[0] for text, _ in spelled} == set(PIECES)
    assert all(type(parse(text)).__name__ == kind for text, kind in spelled)
