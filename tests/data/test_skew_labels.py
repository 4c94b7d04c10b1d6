"""Permuted labels and crowd labels, by hand."""

import numpy as np
import pytest
import torch

from unalike.data import Federation
from unalike.data.skew import Crowd, Permute
from unalike.errors import UnalikeError


def made(clients=5, each=2000, classes=4):
    """One number a sample, which says who and which it is."""
    rng = np.random.default_rng(3)
    pairs = [
        ((np.arange(each) + k * each)[:, None].astype(np.float32), rng.integers(0, classes, each))
        for k in range(clients)
    ]
    return Federation.from_arrays(pairs, classes=classes)


# ---- permute


@pytest.mark.parametrize("strength", [0.0, 0.1, 0.5, 0.8, 1.0])
def test_the_share_of_classes_that_is_moved(strength):
    names = Permute(4, strength=strength).names(10, 0)
    moved = (names != np.arange(10)).sum(1)
    assert moved[0] == 0 and (moved[1:] == (max(2, 10 * strength) if strength else 0)).all()
    assert (np.sort(names, 1) == np.arange(10)).all()  # still every name once


def test_stronger_permutations_move_the_same_classes_and_more():
    weak, strong = (Permute(5, strength=s).names(10, 1) != np.arange(10) for s in (0.3, 0.7))
    assert (strong | ~weak).all() and strong.sum() > weak.sum()


def test_groups_have_names_of_their_own():
    names = Permute(7).names(4, 0)  # 6 cycles of 4 classes, all of them
    assert len(np.unique(names, axis=0)) == 7
    for groups, classes, ways in ((8, 4, 6), (3, 2, 1)):
        with pytest.raises(
            UnalikeError,
            match=f"^permute must name {classes} classes in {groups - 1} new ways: there are only {ways}; ",
        ):
            Permute(groups).names(classes, 0)


@pytest.mark.parametrize(("groups", "classes"), [(5, 10), (3, 3), (4, 4), (12, 10)])
def test_groups_have_names_of_their_own_at_every_strength(groups, classes):
    for seed in range(20):
        for strength in (0.01, 0.3, 0.5, 0.7):
            names = Permute(groups, strength=strength).names(classes, seed)
            assert len(np.unique(names, axis=0)) == groups


def test_names_hold_in_every_split_of_a_client():
    fed = made().split_clients(test=0.2, validation=0.1)
    skewed = fed.skewed("permute:3", seed=1)
    names, group = Permute(3).names(4, 1), skewed.planted["permute"]
    for split, columns in fed.splits.items():
        for k in range(5):
            assert np.array_equal(skewed.splits[split].of(k)[1], names[group[k]][columns.of(k)[1]])


@pytest.mark.parametrize(("groups", "share", "clients", "sizes"), [
    (2, 0.2, 5, [4, 1]), (2, 0.2, 12, [10, 2]), (3, 0.5, 8, [4, 2, 2]), (4, 0.5, 8, [4, 2, 1, 1]), (2, 1.0, 3, [0, 3]),
])  # fmt: skip
def test_a_share_of_clients_names_the_classes_otherwise(groups, share, clients, sizes):
    fed = made(clients, each=20)
    skewed = fed.skewed(Permute(groups, share), seed=2)
    of = skewed.planted["permute"]
    assert np.bincount(of, minlength=groups).tolist() == sizes
    for k in range(clients):
        assert np.array_equal(skewed.train.of(k)[1], fed.train.of(k)[1]) == (of[k] == 0)
    drawn = {tuple(fed.skewed(f"permute:{groups}:{share}", seed=s).planted["permute"]) for s in range(8)}
    assert len(drawn) > 1 or share == 1  # who it is, is drawn
    assert np.array_equal(fed.skewed(f"permute:{groups}:{share}@0", seed=2).planted["permute"], of)  # and nothing else


def test_a_share_too_small_for_its_groups_is_one_line():
    line = "^permute with share=0.2 has 1 of 5 clients for 2 groups beside the first: ask for a larger share.$"
    with pytest.raises(UnalikeError, match=line):
        made().skewed("permute:3:0.2")
    with pytest.raises(UnalikeError, match=r"^Permute's share=1.5 must be a number from 0 to 1, such as 0.2.$"):
        Permute(2, 1.5)


# ---- crowd


def test_the_rows_of_a_confusion_matrix_average_to_the_annotator_s_rate():
    matrices = Crowd(0.8, strength=0.5).matrices(5, 4, 7)
    assert matrices.shape == (5, 4, 4) and np.allclose(matrices.sum(2), 1) and (matrices >= 0).all()
    wrong = 1 - matrices[:, range(4), range(4)]
    assert np.allclose(wrong.mean(1), 0.4 * np.arange(5) / 4)
    assert np.array_equal(matrices[0], np.eye(4)) and (wrong[1:].std(1) > 0.01).all()
    shares = matrices[3] / matrices[3].sum(1, keepdims=True), matrices[4] / matrices[4].sum(1, keepdims=True)
    assert np.abs(shares[0] - shares[1]).max() > 0.1  # they confuse differently
    assert (Crowd(1.0).matrices(5, 4, 7)[4][range(4), range(4)] < 1e-12).all()  # always wrong


def test_labels_are_drawn_from_the_matrices():
    fed, crowd = made(), Crowd(0.6)
    skewed, matrices = fed.skewed(crowd, seed=7), crowd.matrices(5, 4, 7)
    for k in range(5):
        said, truth = skewed.train.of(k)[1].numpy(), fed.train.of(k)[1].numpy()
        counts = np.bincount(truth * 4 + said, minlength=16).reshape(4, 4)
        assert np.abs(counts / counts.sum(1, keepdims=True) - matrices[k]).max() < 0.08
    assert np.array_equal(skewed.planted["crowd"], np.arange(5) / 4)


def test_groups_have_one_rate_and_still_matrices_of_their_own():
    crowd = Crowd(0.5, 0.0, 2)
    matrices, group = crowd.matrices(4, 3, 1), made(4).skewed(crowd, seed=1).planted["crowd"]
    wrong = 1 - matrices[:, range(3), range(3)].mean(1)
    assert np.allclose(wrong, 0.5 * group) and sorted(group) == [0, 0, 1, 1]
    one, other = matrices[group == 1]
    assert np.abs(one - other).max() > 0.01


def test_tests_keep_the_truth():
    fed = made().split_clients(test=0.2, validation=0.2)
    skewed = fed.skewed("crowd:0.5")
    assert skewed.test is fed.test
    for split in ("train", "validation"):
        wrong = skewed.splits[split].y != fed.splits[split].y
        assert 0.2 < wrong.double().mean() < 0.3


def test_mistakes_stay_as_strength_grows():
    fed = made()
    weak, strong = (fed.skewed(Crowd(0.9, strength=s)).train.y for s in (0.4, 0.8))
    wrong = weak != fed.train.y
    assert wrong.any() and torch.equal(strong[wrong], weak[wrong])


def test_missing_labels_become_a_split_with_the_truth():
    fed = made(each=50)
    skewed = fed.skewed(Crowd(0.6, 0.4, strength=0.5), seed=2)
    assert [*skewed.splits] == ["train", "unlabelled"]
    assert skewed.sizes.tolist() == [40] * 5 and skewed.further["unlabelled"].sizes.tolist() == [10] * 5
    truth = {int(x): int(y) for x, y in zip(fed.train.x[:, 0], fed.train.y, strict=True)}
    labels = {int(x): int(y) for x, y in zip(skewed.train.x[:, 0], skewed.train.y, strict=True)}
    gone = {
        int(x): int(y)
        for x, y in zip(
            *(t.reshape(-1) for t in (skewed.further["unlabelled"].x, skewed.further["unlabelled"].y)), strict=True
        )
    }
    assert labels.keys() | gone.keys() == truth.keys() and not labels.keys() & gone.keys()
    assert gone == {x: truth[x] for x in gone} and labels != {x: truth[x] for x in labels}
    whole = fed.skewed(Crowd(0.6, strength=0.5), seed=2)  # the same mistakes, whatever is missing
    assert labels == {
        int(x): int(y) for x, y in zip(whole.train.x[:, 0], whole.train.y, strict=True) if int(x) in labels
    }
    for k in range(5):  # everybody's samples are still its own
        assert ((skewed.further["unlabelled"].of(k)[0] // 50) == k).all()


def test_a_client_keeps_a_label():
    fed = Federation.from_arrays([(np.ones((n, 1)), np.arange(n) % 2) for n in (1, 2, 5)], classes=2)
    skewed = fed.skewed("crowd:0:1")
    assert skewed.sizes.tolist() == [1, 1, 1] and skewed.further["unlabelled"].sizes.tolist() == [0, 1, 4]
    skewed.check()


def test_labels_are_taken_away_before_further_splits_are_made():
    fed = made(each=50)
    with pytest.raises(UnalikeError, match=r"^crowd takes training labels away, and support may have copies of them: "):
        fed.named_splits(support=0.5).skewed("crowd:0.3:0.1")
    after = fed.skewed("crowd:0.3").named_splits(support=1.0)
    assert torch.equal(after.further["support"].y, after.train.y)
    before = fed.named_splits(support=1.0).skewed("crowd:0.6")
    assert 0.2 < (before.further["support"].y != fed.train.y).double().mean() < 0.4


def test_labels_that_are_missing_stay_true():
    fed = made(each=50).skewed("crowd:0:0.5")
    assert fed.skewed("crowd:0.9").further["unlabelled"] is fed.further["unlabelled"]
