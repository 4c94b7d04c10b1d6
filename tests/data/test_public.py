"""The public set and further splits of a federation."""

import numpy as np
import pytest
import torch

from unalike.data import Columns, Federation, RemoteFederation
from unalike.data.public import public_hash
from unalike.data.remote import alone
from unalike.errors import UnalikeError


def says(*pieces):
    """The call raises one line that has all these pieces in this order."""
    return pytest.raises(UnalikeError, match=r"^[^\n]*" + "[^\n]*".join(pieces) + r"[^\n]*$")


def rows(n, seed=0, classes=4):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)).astype(np.float32), rng.integers(0, classes, n)


def small():
    return Federation.from_arrays([rows(n, n) for n in (5, 1, 8, 2)], classes=4, test=rows(3))


def equal(a, b):
    assert torch.equal(a[0], b[0]) and (a[1] is b[1] is None or torch.equal(a[1], b[1]))


@pytest.mark.parametrize("labelled", [True, False])
def test_a_public_set_is_kept_by_every_copy(labelled, tmp_path):
    x, y = rows(7)
    fed = small().with_public(x, y if labelled else None, shipped=True).named_splits(support=0.5, query=0.5)
    assert isinstance(fed.public[0], torch.Tensor) and (fed.public[1] is not None) == labelled and fed.shipped
    fed.check()
    copies = [fed.replace(), fed.map(lambda c: c), fed.pooled(), fed.mapped(tmp_path / "m"), alone(fed.pooled(), 1, 3)]
    for copy in (*copies, fed.to("cpu", torch.float64).to("cpu", torch.float32)):
        equal(copy.public, fed.public)
        assert copy.shipped and list(copy.splits) == ["train", "support", "query"]
        assert torch.equal(copy.splits["query"].x, fed.splits["query"].x)
    assert np.array_equal(copies[3].splits["query"].offsets, fed.splits["query"].offsets)
    moved = fed.to("cpu", torch.float64)
    assert moved.public[0].dtype == torch.float64 and (not labelled or moved.public[1].dtype == torch.int64)
    words = "7 labelled in the public set" if labelled else "7 unlabelled in the public set"
    assert words in repr(fed) and "7 in the query split" in repr(fed)
    bare = fed.replace(public=None, shipped=False)
    assert bare.public is None and not bare.shipped and small().public is None


def test_the_public_set_is_part_of_the_fingerprint():
    x, y = rows(7)
    other = x.copy()
    other[-1, -1] += 1
    none, sets = small(), [(x, y), (x, None), (other, y), (x[:6], y[:6])]
    prints = [none.fingerprint()] + [none.with_public(*pair).fingerprint() for pair in sets]
    assert len(set(prints)) == 5
    assert none.with_public(x, y).replace(public=None).fingerprint() == prints[0] == "1f4eeb549e31cd6e"
    assert none.with_public(x, y, shipped=True).fingerprint() == prints[1]
    assert len({public_hash(none.with_public(*pair).public) for pair in sets}) == 4


def test_a_public_set_that_does_not_fit_is_refused():
    fed, (x, y) = small(), rows(4)
    with says("public set is a ndarray", "pair"):
        fed.replace(public=x)
    with says("public set has x float \\[2\\]", "float \\[3\\]"):
        fed.with_public(x[:, :2])
    with says("public set has x integer"):
        fed.with_public(y[:, None].repeat(3, 1))
    with says("public set has y float"):
        fed.with_public(x, x[:, 0])
    with says("public set", "one label per sample"):
        fed.with_public(x, y[:2])
    with says("public set is empty"):
        fed.with_public(x[:0])
    with says("shipped=True", "there is none"):
        fed.replace(shipped=True)
    with says("the public set, sample 1 has the label 4", "classes=4"):
        fed.with_public(x, np.array([0, 4, 1, 1])).check()
    x[2, 1] = np.nan
    with says("x of the public set, sample 2", "NaN"):
        fed.with_public(x).check()
    fed.with_public(x).check(gaps=True)


def test_preparation_reaches_the_public_set():
    rng = np.random.default_rng(1)
    x, y = rng.normal(3, 2, (20, 3)), rng.normal(5, 4, 20)
    fed = Federation.from_arrays([(x, y)]).with_public(x, y).named_splits(support=0.4)
    done = fed.prepared()
    equal(done.public, (done.train.x, done.train.y))
    assert abs(float(done.public[0].mean())) < 1e-6 and abs(float(done.public[1].std(correction=0)) - 1) < 1e-6
    assert fed.with_public(x).prepared().public[1] is None
    assert done.splits["support"].x.abs().max() < 4  # of about 3 ± 6 before


# ---- further splits


def test_named_splits_divide_the_training_samples():
    fed = small()
    split = fed.named_splits(support=0.5, query=0.5, seed=3)
    assert split.train is fed.train and list(split.further) == ["support", "query"]
    support, query = split.splits["support"], split.splits["query"]
    assert support.sizes.tolist() == [3, 1, 4, 1] and query.sizes.tolist() == [2, 0, 4, 1]
    for k in range(4):
        both = torch.cat([support.of(k)[0], query.of(k)[0]])
        assert sorted(both.tolist()) == sorted(fed.train.of(k)[0].tolist())
        where = [fed.train.of(k)[0].tolist().index(row) for row in support.of(k)[0].tolist()]
        assert where == sorted(where)
    again, other = fed.named_splits(3, support=0.5, query=0.5), fed.named_splits(4, support=0.5, query=0.5)
    assert torch.equal(again.splits["query"].x, query.x) and not torch.equal(other.splits["query"].x, query.x)
    tenth = fed.named_splits(few=0.1, most=0.9)
    assert tenth.splits["few"].sizes.tolist() == [1, 1, 1, 1] and tenth.splits["most"].sizes.tolist() == [4, 0, 7, 1]
    assert fed.named_splits(half=0.5).splits["half"].sizes.tolist() == [3, 1, 4, 1]
    assert list(split.named_splits(third=0.3).further) == ["support", "query", "third"]


@pytest.mark.parametrize(
    "shares, line",
    [
        ({}, ("no splits to make",)),
        ({"a": 0.6, "b": 0.6}, ("sum to 1.2", "at most 1")),
        ({"a": 0.0}, ("a=0.0 must be a share",)),
        ({"a": True}, ("a=True must be a share",)),
        ({"test": 0.5}, ("named 'test'", "none of train, validation, test, public")),
        ({"public": 0.5}, ("named 'public'",)),
        ({"a b": 0.5}, ("named 'a b'", "letters")),
    ],
)
def test_named_splits_that_cannot_be_are_refused(shares, line):
    with says(*line):
        small().named_splits(**shares)


def test_further_splits_are_checked():
    fed = small()
    with says("split 'a' is a tuple", "Columns"):
        fed.replace(splits={"a": rows(2)})
    with says("The a split has 1 clients"):
        fed.replace(splits={"a": Columns(*rows(2), [0, 2])})
    with says("divided already \\(support\\)", "carve test"):
        fed.named_splits(support=0.5).split_clients(test=0.2)
    bad = fed.train.y.clone()
    bad[6] = 9
    with says("client 2, sample 0 of its a split has the label 9"):
        fed.replace(splits={"a": Columns(fed.train.x, bad, fed.train.offsets)}, classes=4).check()


def test_a_remote_federation_has_them_too():
    like = torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64)
    sizes = {"train": np.array([2, 3]), "support": np.array([1, 2]), "query": np.zeros(2, int)}
    bare = RemoteFederation.from_sizes(sizes, like, keys=["k", "l"], classes=4)
    fed = bare.with_public(*rows(5))
    assert list(fed.splits) == ["train", "support"] and fed.splits["support"].sizes.tolist() == [1, 2]
    moved = fed.to("cpu", torch.float64)
    assert type(moved) is RemoteFederation and moved.public[0].dtype == torch.float64
    assert moved.splits["support"].x.untyped_storage().nbytes() == 3 * 8
    assert fed.fingerprint() != bare.fingerprint()
    with says("the public set, sample 0 has the label 4"):
        fed.with_public(rows(5)[0], np.full(5, 4)).check()
