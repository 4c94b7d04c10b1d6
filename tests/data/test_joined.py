"""Federations of different shapes as one."""

import numpy as np
import pytest
import torch

from unalike.data import Federation
from unalike.errors import UnalikeError


def says(*pieces):
    """The call raises one line that has all these pieces in this order."""
    return pytest.raises(UnalikeError, match=r"^[^\n]*" + "[^\n]*".join(pieces) + r"[^\n]*$")


def part(sizes, shape, seed=0, **more):
    rng = np.random.default_rng(seed)
    pairs = [(rng.normal(size=(n, *shape)).astype(np.float32), rng.integers(0, 3, n)) for n in sizes]
    return Federation.from_arrays(pairs, classes=3, **more)


def pictures(**more):
    return part([4, 2, 6], (1, 4, 4), 0, **more)


def signals(**more):
    return part([3, 5], (7,), 1, **more)


def both(**more):
    return Federation.joined({"pictures": pictures(**more), "signals": signals(**more)})


def test_clients_are_numbered_part_after_part():
    a, b = pictures(), signals()
    fed = Federation.joined({"pictures": a, "signals": b})
    assert isinstance(fed, Federation) and len(fed) == 5 and fed.classes == 3 and fed.names is None
    assert fed.architecture == ["pictures"] * 3 + ["signals"] * 2
    assert fed.sizes.tolist() == [4, 2, 6, 3, 5] and fed.train.offsets.tolist() == [0, 4, 6, 12, 15, 20]
    assert torch.equal(fed.train.y, torch.cat([a.train.y, b.train.y])) and len(fed.train) == 5
    assert fed.train.owners().tolist() == [0] * 4 + [1] * 2 + [2] * 6 + [3] * 3 + [4] * 5 and fed.train.owner(12) == 3
    for k, (own, j) in enumerate([(a, 0), (a, 1), (a, 2), (b, 0), (b, 1)]):
        x, y = fed.train.of(k)
        assert torch.equal(x, own.train.of(j)[0]) and torch.equal(y, own.train.of(j)[1])
    assert np.array_equal(fed.label_counts(), np.concatenate([a.label_counts(), b.label_counts()]))
    fed.check()


def test_a_part_has_everybody_and_only_its_own_samples():
    fed = both()
    assert list(fed.parts) == ["pictures", "signals"] and [len(p) for p in fed.parts.values()] == [5, 5]
    assert fed.parts["pictures"].sizes.tolist() == [4, 2, 6, 0, 0]
    assert fed.parts["signals"].sizes.tolist() == [0, 0, 0, 3, 5]
    assert torch.equal(fed.parts["signals"].train.of(3)[0], signals().train.of(0)[0])
    assert fed.parts["signals"].train.x.shape == (8, 7) and fed.parts["pictures"].classes == 3


def test_splits_that_one_part_lacks():
    a, b = pictures().split_clients(test=0.5), signals().named_splits(support=0.4)
    fed = Federation.joined({"pictures": a, "signals": b})
    assert list(fed.splits) == ["train", "test", "support"] and list(fed.further) == ["support"]
    assert fed.test.sizes.tolist() == [2, 1, 3, 0, 0] and fed.splits["support"].sizes.tolist() == [0, 0, 0, 1, 2]
    assert torch.equal(fed.test.of(1)[0], a.test.of(1)[0]) and len(fed.test.of(4)[0]) == 0
    assert "test" not in fed.parts["signals"].splits and fed.validation is None


def test_names_are_distinct():
    assert Federation.joined({"a": pictures(names=["x", "y", "z"]), "b": signals()}).names == [*"xyz", "b 0", "b 1"]
    same = Federation.joined({"a": pictures(names=["x", "y", "z"]), "b": signals(names=["x", "q"])})
    assert same.names == ["a x", "a y", "a z", "b x", "b q"] and same.parts["b"].names == same.names
    assert same.client_name(3) == "client 3 ('b x')"


def test_moving_and_fingerprints():
    fed = both()
    assert fed.to("cpu") is fed and fed.to("cpu", torch.float32) is fed
    moved = fed.to("cpu", torch.float64)
    assert moved.parts["signals"].train.x.dtype == torch.float64 and moved.architecture == fed.architecture
    prints = {fed.fingerprint(), pictures().fingerprint(), signals().fingerprint()}
    prints |= {Federation.joined({"signals": signals(), "pictures": pictures()}).fingerprint()}
    prints |= {Federation.joined({"photos": pictures(), "signals": signals()}).fingerprint()}
    assert len(prints) == 5 and both().fingerprint() == fed.fingerprint()
    assert repr(fed).startswith("Federation.joined(pictures: Federation(3 clients") and "signals: Fed" in repr(fed)


def test_public_sets_go_row_by_row():
    x, y = (torch.zeros(6, 1, 4, 4), torch.zeros(6, 7)), torch.tensor([0, 1, 2, 0, 1, 2])
    a, b = pictures().with_public(x[0], y, shipped=True), signals().with_public(x[1])
    fed = Federation.joined({"pictures": a, "signals": b})
    assert fed.public_rows == 6 and fed.shipped and fed.parts["signals"].public[0].shape == (6, 7)
    assert both().public is None and both().public_rows == 0 and not both().shipped
    with says("public set each", "parts"):
        _ = fed.public
    with says("'signals' and 'pictures' have 5 and 6 samples", "row i must be the same thing"):
        Federation.joined({"pictures": a, "signals": signals().with_public(x[1][:5])})
    with says("have 0 and 6 samples"):
        Federation.joined({"pictures": a, "signals": signals()})
    with says("different labels", "row i"):
        Federation.joined({"pictures": a, "signals": signals().with_public(x[1], y.flip(0))})


def test_what_cannot_be_joined():
    with says("by name to join them"):
        Federation.joined({})
    with says("by name to join them"):
        Federation.joined([pictures(), signals()])
    with says("named 'a b'"):
        Federation.joined({"a b": pictures()})
    with says("The part 'a' is a JoinedFederation"):
        Federation.joined({"a": both()})
    with says("labels of 'b' and 'a' differ \\(4 and 3 classes\\)"):
        Federation.joined({"a": pictures(), "b": signals().replace(classes=4)})
    with says("names of the labels of 'b' and 'a' differ"):
        named = lambda fed, names: fed.replace(label_names=names)  # noqa: E731
        Federation.joined({"a": named(pictures(), [*"abc"]), "b": named(signals(), [*"abd"])})


def test_there_is_no_one_array_of_samples():
    fed = both()
    with says("different shapes \\(pictures \\[1, 4, 4\\], signals \\[7\\]\\): ask one of its `parts`"):
        _ = fed.train.x
    for change in (
        lambda: fed.replace(classes=4),
        lambda: fed.map(lambda columns: columns),
        lambda: fed.split_clients(test=0.2),
        lambda: fed.named_splits(support=0.5),
        lambda: fed.with_public(torch.zeros(2, 7)),
        lambda: fed.prepared(),
        lambda: fed.mapped("nowhere"),
        lambda: fed.train.take(np.array([0]), np.array([1, 0, 0, 0, 0])),
    ):
        with says("stay as they are", "the parts first"):
            change()
    with says("cannot be pooled"):
        fed.pooled()


def test_a_fault_names_its_part():
    b = signals()
    b.train.x[4, 0] = float("nan")
    with says("signals: x of client 1, sample 1 of its training split", "NaN"):
        Federation.joined({"pictures": pictures(), "signals": b}).check()
