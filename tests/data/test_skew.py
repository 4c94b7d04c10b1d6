"""What all changes of clients' data keep: every one of the registry."""

import inspect

import numpy as np
import pytest
import torch

import unalike as ua
from unalike.data import Federation, partition
from unalike.data.partition.pieces import Change
from unalike.data.skew import CHANGES, samples
from unalike.errors import UnalikeError

TEXTS = {
    "noise": "noise:0.8",
    "impulse": "impulse:0.4",
    "shift": "shift:1.5",
    "rotate": "rotate:6",
    "blur": "blur:0:1.5",
    "contrast": "contrast:0:0.1",
    "colour": "colour",
    "permute": "permute:3",
    "crowd": "crowd:0.6",
}
GROUPED = {
    "noise": "noise:0.8:3",
    "impulse": "impulse:0.4:3",
    "shift": "shift:1.5:3",
    "rotate": "rotate:3",
    "blur": "blur:3",
    "contrast": "contrast:3",
    "colour": "colour:3",
    "permute": "permute:3",
    "crowd": "crowd:0.6:0.0:3",
}
NAMES = [*TEXTS]


def says(*pieces):
    """The call raises one line that has all these pieces in this order."""
    return pytest.raises(UnalikeError, match=r"^[^\n]*" + "[^\n]*".join(pieces) + r"[^\n]*$")


def made(shape=(1, 6, 6), sizes=(12, 9, 15, 8, 11, 10), classes=5, **more):
    """A federation of six clients with all splits, a global test set and a public set."""
    rng = np.random.default_rng(4)
    pair = lambda n: (rng.random((n, *shape)).astype(np.float32) * 3 - 1, rng.integers(0, classes, n))  # noqa: E731
    fed = Federation.from_arrays([pair(n) for n in sizes], test=pair(7), classes=classes, **more)
    return fed.split_clients(test=0.2, validation=0.2).with_public(*pair(5))


def tensors(fed):
    return [t for columns in fed.splits.values() for t in (columns.x, columns.y)]


def same(a, b):
    return all(torch.equal(s, t) for s, t in zip(tensors(a), tensors(b), strict=True))


def test_every_change_is_tested_here():
    own = {kind.name for kind in CHANGES.values() if kind.__module__.rpartition(".")[2] in OWN}
    assert own == set(TEXTS) == set(GROUPED)


OWN = ("features", "pictures", "labels")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("texts", [TEXTS, GROUPED])
def test_a_text_is_read_and_printed_back(name, texts):
    piece = partition.parse(texts[name])
    assert isinstance(piece, Change) and str(piece) == texts[name] and partition.parse(str(piece)) == piece
    half = piece.at(0.5)
    assert str(half) == f"{texts[name]}@0.5" and partition.parse(str(half)) == half
    assert str(partition.parse("iid") | half) == f"iid|{half}"


@pytest.mark.parametrize("name", NAMES)
def test_without_strength_nothing_is_changed(name):
    fed = made()
    weak = fed.skewed(partition.parse(TEXTS[name]).at(0), seed=3)
    assert same(weak, fed) and name in weak.planted and not fed.planted
    assert not same(fed.skewed(TEXTS[name], seed=3), fed)


@pytest.mark.parametrize("texts", [TEXTS, GROUPED])
@pytest.mark.parametrize("name", NAMES)
def test_the_first_group_or_level_is_never_changed(name, texts):
    fed = made()
    skewed = fed.skewed(texts[name], seed=3)
    planted = skewed.planted[name]
    assert planted.shape == (6,) and len(np.unique(planted)) == (3 if "groups" in texts[name] else len({*planted}))
    for k in range(6):
        untouched = [torch.equal(a, b) for a, b in zip(skewed.train.of(k), fed.train.of(k), strict=True)]
        assert all(untouched) if planted[k] == 0 else not all(untouched) or name == "crowd"


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_bits_and_another_does_not(name):
    fed, text = made(), GROUPED[name]
    assert same(fed.skewed(text, seed=3), fed.skewed(text, seed=3))
    others = [fed.skewed(text, seed=s) for s in range(4, 8)]
    assert not all(same(fed.skewed(text, seed=3), other) for other in others)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_nobody_s_stays_and_every_sample_is_kept(name):
    fed = made()
    skewed = fed.skewed(TEXTS[name], seed=1)
    assert skewed.global_test[0] is fed.global_test[0] and skewed.global_test[1] is fed.global_test[1]
    assert skewed.public[0] is fed.public[0] and skewed.public[1] is fed.public[1]
    assert [*skewed.splits] == [*fed.splits] and skewed.train.x.dtype == fed.train.x.dtype
    for split, columns in fed.splits.items():
        assert np.array_equal(skewed.splits[split].offsets, columns.offsets)
    skewed.check()


@pytest.mark.parametrize("name", NAMES)
def test_strength_moves_it_steadily(name):
    """How far samples and labels are from what they were grows with the strength, from 0 on."""
    fed, piece = made(sizes=[60] * 6, classes=8), partition.parse(GROUPED[name])
    piece = ua.skew.Rotate(3, 90.0) if name == "rotate" else piece  # farther, pictures come round again
    far = []
    for strength in (0, 0.25, 0.5, 1):
        skewed = fed.skewed(piece.at(strength), seed=2)
        moved = (skewed.train.x - fed.train.x).double().square().mean() + (
            skewed.train.y != fed.train.y
        ).double().mean()
        far.append(float(moved))
    assert far[0] == 0 and far == sorted(far) and len({*far}) == 4


@pytest.mark.parametrize("name", NAMES)
def test_draws_do_not_depend_on_chunks_or_on_the_device_s_type(name, monkeypatch):
    fed = made()
    whole = fed.skewed(TEXTS[name], seed=1)
    monkeypatch.setattr(samples, "CHUNK", 36 * 5)
    monkeypatch.setattr(ua.skew.labels, "BLOCK", 2 * 25)
    assert same(fed.skewed(TEXTS[name], seed=1), whole)
    monkeypatch.undo()
    double = fed.to("cpu", torch.float64).skewed(TEXTS[name], seed=1)
    assert double.train.x.dtype == torch.float64
    torch.testing.assert_close(double.train.x.float(), whole.train.x)
    assert torch.equal(double.train.y, whole.train.y)


FINGERPRINTS = {
    "noise": "a5312851b70b3d12",
    "impulse": "2bdffeeafbc47a78",
    "shift": "9abeaa241fcae761",
    "rotate": "2541bdb4647e5568",
    "blur": "43b6ae2b086f3bff",
    "contrast": "eb94682e40872339",
    "colour": "057b452e188c51f5",
    "permute": "1a599e5e90a0e5d0",
    "crowd": "43dccd5c3378bf22",
    "noise:0.5@0.5|rotate:3:100|crowd:0.3:0.2": "e271cca44c5d9c15",
}


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_the_same_federation_on_every_platform(name):
    assert made().skewed(TEXTS.get(name, name), seed=9).fingerprint() == FINGERPRINTS[name]


def test_two_kinds_cross_at_random():
    """Groups of two kinds are drawn apart: all four pairs occur, and the pairs differ from seed to seed."""
    fed = made(sizes=[5] * 40)
    skewed = fed.skewed("rotate:2|permute:2", seed=0)
    pairs = np.stack([skewed.planted["rotate"], skewed.planted["permute"]], 1)
    assert len(np.unique(pairs, axis=0)) == 4
    assert np.bincount(skewed.planted["rotate"]).tolist() == np.bincount(skewed.planted["permute"]).tolist() == [20, 20]
    other = fed.skewed("rotate:2|permute:2", seed=1)
    assert not np.array_equal(other.planted["rotate"], skewed.planted["rotate"])


BAD = [
    "noise:0", "noise:nan", "noise:0.5:1", "noise:0.5@2", "noise", "impulse:2", "shift:-1", "rotate:4:720", "rotate:1",
    "rotate:x", "blur:0:0", "contrast:0:-1", "colour:1", "permute:1", "crowd:1.5", "crowd:0.1:-1",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_bad_parameters_are_one_line(text):
    with says("must be|lacks|alike"):
        partition.parse(text)


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_changed_is_one_line(name):
    tokens = Federation.from_arrays([(np.arange(12).reshape(4, 3), [0, 1, 2, 0])] * 6)
    gaps = made(shape=(3,)).map(lambda c: ua.data.Columns(c.x.index_fill(1, torch.tensor([1]), np.nan), c.y, c.offsets))
    text = GROUPED[name]
    if not CHANGES[name].of_features:
        assert tokens.skewed(text) and gaps.skewed(text)
        number = Federation.from_arrays([(np.ones((4, 3)), np.ones(4))] * 6)
        with says(f"{name} changes classes, and these data have a number to predict"):
            number.skewed(text)
        wrong = Federation.from_arrays([(np.ones((4, 3)), [0, 1, 2, 9])] * 6, classes=3)
        with says("has the label 9"):
            wrong.skewed(text)
        return
    with says(f"{name} changes numbers", "tokens", "int64", "permute:2"):
        tokens.skewed(text)
    if name in ("rotate", "blur", "contrast", "colour"):
        with says(f"{name} changes pictures", r"shape \[3\]", "image=True"):
            made(shape=(3,)).skewed(text)
    else:
        with says("NaN or infinite", "prepared"):
            gaps.skewed(text)


@pytest.mark.parametrize("name", NAMES)
def test_samples_on_other_machines_are_not_changed(name):
    fed = made()
    away = ua.data.RemoteFederation(fed.train, keys=list("abcdef"), classes=5)
    with says(f"{name} changes samples, and these are on other machines"):
        away.skewed(GROUPED[name])


@pytest.mark.parametrize("name", NAMES)
def test_its_documentation_says_what_a_user_needs(name):
    text = inspect.getdoc(CHANGES[name])
    assert "strength" in text and "global" in text and "test" in text
