"""How unlike clients are: numbers worked out by hand, nothing where samples go round at random, more with more skew."""

import types

import numpy as np
import pytest
import torch

import unalike as ua
from unalike.data.skew.measure import MEANINGS, _distance

NAMES = ["label_distance", "size_gini", "feature_mmd", "disagreement", "drift"]


def fed(*clients, **parts):
    """Clients of (x, y) each; x may be numbers."""
    pairs = [(np.asarray(x, np.float32).reshape(len(y), -1), np.asarray(y)) for x, y in clients]
    return ua.Federation.from_arrays(pairs, **parts)


def labelled(*labels):
    return fed(*((np.arange(len(y)), y) for y in labels))


def measured(text, name, seeds=2, clients=10, data="digits", **options):
    """The mean over seeds of one number, for digits dealt like this."""
    pool = ua.load(data, **options)
    return np.mean([ua.skew.measure(pool.split(text, clients, seed=s), s)[name] for s in range(seeds)])


# ---------------------------------------------------------------- by hand


def test_label_distance_by_hand():
    # Two clients with one label each: their distance to the pool (1/2, 1/2) is 1/2. Dealt at random, two of four are
    # alike with probability 1/3, so the expectation is 1/6: (1/2 - 1/6) / (1 - 1/6) = 2/5.
    assert ua.skew.measure(labelled([0, 0], [1, 1]))["label_distance"] == pytest.approx(2 / 5, abs=1e-12)
    # Mixed, the distance is 0 and below what chance gives: (0 - 1/6) / (5/6).
    assert ua.skew.measure(labelled([0, 1], [0, 1]))["label_distance"] == pytest.approx(-1 / 5, abs=1e-12)
    # One sample each: nothing can be said.
    assert ua.skew.measure(labelled([0], [1], [0], [1]))["label_distance"] == pytest.approx(0, abs=1e-12)
    # Clients count by their samples: 3 zeros and a one at the first, a one at the second; pool (3/5, 2/5). Distances
    # 3/20 and 3/5, weighed 4/5 and 1/5: 6/25. The second gets a 0 with 3/5, a 1 with 2/5: E|X0 - 3/5| = 12/25 in both
    # classes and for both clients (one's gain is the other's loss), c = 12/25 · 4 / 2 / 5 = 24/125.
    unequal = ua.skew.measure(labelled([0, 0, 0, 1], [1]))["label_distance"]
    assert unequal == pytest.approx((6 / 25 - 24 / 125) / (1 - 24 / 125), abs=1e-12)


def test_expectation_of_the_label_distance_is_that_of_random_deals():
    sizes, labels = np.array([7, 2, 11, 5]), np.repeat([0, 1, 2], [3, 9, 13])
    random = np.random.default_rng(0)
    distances = []
    for _ in range(300):
        dealt = np.split(random.permutation(labels), np.cumsum(sizes)[:-1])
        distances.append(_distance(np.stack([np.bincount(part, minlength=3) for part in dealt])))
    assert abs(np.mean(distances)) < 4 * np.std(distances) / len(distances) ** 0.5


def test_a_number_to_predict_counts_by_tenths():
    y = np.arange(20, dtype=np.float32)
    # Tenths of two samples: of 10 classes with 2 each, a client has 5 whole classes. Distance 1/2; two of a class are
    # together with probability 9/19, then their class is 1 from its mean: c = 9/19 / 2.
    halves = ua.skew.measure(fed((y[:10], y[:10]), (y[10:], y[10:])))["label_distance"]
    assert halves == pytest.approx((1 / 2 - 9 / 38) / (1 - 9 / 38), abs=1e-12)
    two = np.stack([y, np.tile(y[:10], 2)], 1)  # the second target is dealt evenly
    both = ua.skew.measure(fed((y[:10], two[:10]), (y[10:], two[10:])))["label_distance"]
    assert both == pytest.approx((halves + (0 - 9 / 38) / (1 - 9 / 38)) / 2, abs=1e-12)


def test_gini_by_hand():
    sizes = [1, 1, 2, 4]  # differences of pairs: 0 1 3 1 3 2, twice, over 16 pairs: 20/16; over twice the mean 2: 5/16
    assert ua.skew.measure(labelled(*([0] * n for n in sizes)))["size_gini"] == pytest.approx(5 / 16)
    assert ua.skew.measure(labelled([0], [0]))["size_gini"] == 0


def test_feature_mmd_by_hand():
    # Two points far apart: within a client the kernel is 1. The median squared distance is the one between them, so
    # across it is exp(-1/2). Mean within 1, of all pairs of clients (1 + e) / 2: the difference is (1 - e) / 2.
    found = ua.skew.measure(fed(([0, 0, 0], [0, 1, 0]), ([5, 5, 5], [1, 0, 0])))
    assert found["feature_mmd"] == pytest.approx((1 - np.exp(-0.5)) / 2, abs=1e-6)
    # Weighed by samples, 2/3 and 1/3: 1 - (5/9 + 4/9 e).
    found = ua.skew.measure(fed(([0, 0, 0, 0], [0, 1, 0, 1]), ([5, 5], [1, 0])))
    assert found["feature_mmd"] == pytest.approx(4 / 9 * (1 - np.exp(-0.5)), abs=1e-6)


def test_disagreement_by_hand():
    # Two clients see the same two places and call them otherwise. Of a sample's five nearest neighbours three are at
    # the other client (the nearest and two of the next, 0.001 to 0.011 away), with the other label:
    # min(1, 6/5) · (1 - 0).
    x = np.repeat([0.0, 9.0], 20) + np.tile(np.arange(20) / 100, 2)
    y = np.repeat([0, 1], 20)
    assert ua.skew.measure(fed((x, y), (x + 0.001, 1 - y)))["disagreement"] == 1
    assert ua.skew.measure(fed((x, y), (x + 0.001, y)))["disagreement"] == 0  # the nearest is right wherever it is
    # Far apart, their names cannot be compared.
    assert ua.skew.measure(fed((x, y), (x + 99, 1 - y)))["disagreement"] == 0
    # The neighbour elsewhere is 10 more, at home as much: 10² / (2 · 25). A tenth of the target are matched; all are.
    target = np.repeat([0.0, 10.0], 20)
    assert ua.skew.measure(fed((x, target), (x + 0.001, 10 - target)))["disagreement"] == pytest.approx(2)


def test_drift_by_hand():
    first = fed(([0] * 8, [0] * 8), ([0] * 8, [0] * 8))
    last = fed(([5] * 8, [0] * 8), ([0] * 8, [0] * 8))  # one of two clients goes elsewhere
    found = ua.skew.measure(drifting(first, last))["drift"]
    # Of 16 samples that are looked at 4 lie at 5: of 120 pairs 48 are 5 apart. The median distance is 0, the mean of
    # the squared ones 10; the kernel of the two places is exp(-25/20). 1 + 1 - 2 exp(-5/4) at one client, 0 at
    # the other.
    assert found == pytest.approx(1 - np.exp(-1.25), abs=1e-6)
    assert ua.skew.measure(drifting(first, first))["drift"] == pytest.approx(0, abs=1e-9)
    renamed = fed(([0] * 8, [1] * 8), ([0] * 8, [0] * 8))
    # x stays; other labels have nothing in common: 1 + 1 - 0 at one client, 0 at the other.
    assert ua.skew.measure(drifting(first, renamed))["drift"] == pytest.approx(1, abs=1e-6)


def drifting(first, last, rounds=5):
    """A federation whose data are `first` in round 0 and `last` in the last drifting round."""
    first = first.replace()
    first.drift = types.SimpleNamespace(rounds=rounds)
    first.at = lambda r: last if r >= rounds else first
    return first


def test_the_same_pictures_before_and_after_are_no_drift():
    random = np.random.default_rng(1)
    still = fed(*((random.normal(size=(60, 5)), np.zeros(60, int)) for _ in range(4)))
    values = [ua.skew.measure(drifting(still, still), s)["drift"] for s in range(5)]
    assert abs(np.mean(values)) < 0.005  # comparing a sample with itself would give -0.03


# ---------------------------------------------------------------- nothing without skew, more with more


def test_iid_clients_are_alike():
    found = [ua.skew.measure(ua.load("digits").split("iid", 10, seed=s), s) for s in range(2)]
    assert list(found[0]) == NAMES == list(MEANINGS)
    means = {name: np.mean([f[name] for f in found]) for name in NAMES}
    assert abs(means["label_distance"]) < 0.02 and means["size_gini"] < 0.005 and abs(means["feature_mmd"]) < 0.002
    assert abs(means["disagreement"]) < 0.02 and means["drift"] == 0


@pytest.mark.parametrize(
    "kind,name,least",
    [
        ("dirichlet:0.1", "label_distance", 0.6),
        ("classes:1", "label_distance", 0.85),
        ("iid|permute:2", "disagreement", 0.4),
    ],
)
def test_it_grows_with_the_strength(kind, name, least):
    values = [measured(f"{kind}@{strength}", name) for strength in (0, 0.5, 1)]
    assert abs(values[0]) < 0.03 and values[0] + 0.1 < values[1] < values[2] - 0.1 and values[2] > least


@pytest.mark.slow
@pytest.mark.parametrize(
    "name,kind",
    [
        *(("label_distance", kind) for kind in ("dirichlet:0.1", "prior-dirichlet:0.3", "shards:2", "classes:1")),
        *(("size_gini", kind) for kind in ("quantity:0.5", "lognormal:1", "power-law:1")),
        *(
            ("feature_mmd", f"iid|{kind}")
            for kind in ("noise:1", "impulse:0.5", "shift:1:4", "rotate:4:180", "blur:0:2")
        ),
        *(("feature_mmd", f"iid|{kind}") for kind in ("contrast", "colour", "views:2:0.5")),
        *(("disagreement", kind) for kind in ("iid|permute:2", "iid|crowd:0.6")),
        *(("drift", f"iid|{kind}") for kind in ("drift:9:rotate:4:180", "drift:9:permute:2", "stream:9:0.5:labels")),
    ],
)
def test_every_kind_grows_with_its_strength_by_its_own_number(name, kind):
    values = [measured(f"{kind}@{s}", name, seeds=5, clients=20, image=True) for s in (0, 0.25, 0.5, 0.75, 1)]
    assert values == sorted(values) and abs(values[0]) < 0.01 and values[-1] > abs(values[0]) + 0.003


def test_tiny_clients_that_are_alike_do_not_disagree():
    random = np.random.default_rng(0)
    values = []
    for _ in range(10):  # labels at random: at home and elsewhere they differ as often
        tiny = fed(*((random.normal(size=(6, 2)), random.integers(0, 2, 6)) for _ in range(40)))
        values.append(ua.skew.measure(tiny.replace(classes=2))["disagreement"])
    assert abs(np.mean(values)) < 0.04


def test_label_skew_alone_is_no_disagreement():
    assert measured("classes:1", "disagreement") == 0 and abs(measured("dirichlet:0.1", "disagreement")) < 0.03
    assert measured("dirichlet:1|permute:2", "disagreement") > 0.2


def test_a_clock_that_is_set_apart_moves_the_features():
    values = [measured(None, "feature_mmd", seeds=1, clients=None, data="series", offset=o) for o in (0.0, 0.5, 1.0)]
    assert abs(values[0]) < 0.003 and values[0] + 0.1 < values[1] < values[2] - 0.02


# ---------------------------------------------------------------- what there is to look at


def test_the_same_seed_gives_the_same_numbers():
    many = ua.load("digits").split("dirichlet:0.5", 60)
    assert ua.skew.measure(many, 1) == ua.skew.measure(many, 1) != ua.skew.measure(many, 2)


def test_tokens_are_told_apart_by_how_often_they_occur():
    random = np.random.default_rng(0)
    x, y = random.integers(0, 50, (400, 8)), random.integers(0, 2, 400)
    pairs = [(torch.from_numpy(x[i::4]), y[i::4]) for i in range(4)]
    assert abs(ua.skew.measure(ua.Federation.from_arrays(pairs))["feature_mmd"]) < 0.002
    other = [(tokens + 100 * k, labels) for k, (tokens, labels) in enumerate(pairs)]
    assert ua.skew.measure(ua.Federation.from_arrays(other))["feature_mmd"] > 0.02


def test_clients_of_one_sample_say_nothing_about_features():
    assert list(ua.skew.measure(labelled([0], [1]))) == ["label_distance", "size_gini", "drift"]


def test_joined_federations_are_measured_by_their_labels():
    one, two = labelled([0, 0, 1], [1, 1, 1]), fed((np.zeros((3, 7)), [0, 1, 0]), classes=2)
    assert list(ua.skew.measure(ua.Federation.joined({"a": one, "b": two}))) == ["label_distance", "size_gini"]


def test_remote_samples_cannot_be_measured():
    from unalike.data.remote import RemoteFederation

    far = RemoteFederation.from_sizes(
        {"train": np.array([3, 4])}, (torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)), keys=["a", "b"]
    )
    with pytest.raises(ua.UnalikeError, match="on other machines"):
        ua.skew.measure(far)
