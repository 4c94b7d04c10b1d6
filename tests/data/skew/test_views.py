"""Several views of the same things: windows, copies, and that nobody trains on a set-mate's test samples."""

import itertools
import re

import numpy as np
import pytest
import torch

import unalike as ua
from unalike.data.partition import parse
from unalike.data.skew import Views
from unalike.errors import UnalikeError


def says(*pieces):
    return pytest.raises(UnalikeError, match=r"^[^\n]*" + "[^\n]*".join(map(re.escape, pieces)) + r"[^\n]*$")


def numbered(shape, n=60, **more):
    """Samples whose numbers are all n + 1 for sample n."""
    x = np.arange(1.0, n + 1).reshape(-1, *[1] * len(shape)) * np.ones((n, *shape))
    return ua.Dataset(x.astype(np.float32), np.arange(n) % 3, **more)


def things(columns, k):
    """The numbers of client k's samples: what is seen of one is its number."""
    return columns.of(k)[0].flatten(1).amax(1).tolist()


@pytest.mark.parametrize(
    "views, overlap, width, windows",
    [
        (2, 0.5, 6, [(0, 4), (2, 6)]),
        (2, 0, 6, [(0, 3), (3, 6)]),
        (3, 0.5, 8, [(0, 4), (2, 6), (4, 8)]),
        (2, 1, 5, [(0, 5), (0, 5)]),
        (3, 0, 3, [(0, 1), (1, 2), (2, 3)]),
        (2, 0, 5, [(0, 3), (3, 5)]),
    ],
)
def test_windows_by_hand(views, overlap, width, windows):
    """Of width 6 two windows that share half are 4 wide: 4 + 4 - 2."""
    assert Views(views, overlap).windows(width) == windows


@pytest.mark.parametrize("views, overlap, width", [(2, 0.3, 8), (5, 0.9, 28), (4, 0.1, 11), (7, 0.5, 7), (3, 0.77, 64)])
def test_windows_cover_everything(views, overlap, width):
    windows = Views(views, overlap).windows(width)
    assert windows[0][0] == 0 and windows[-1][1] == width
    assert all(b >= c for (_, b), (c, _) in itertools.pairwise(windows))
    assert all(0 <= a < b <= width for a, b in windows)


@pytest.mark.parametrize("shape", [(6,), (2, 6), (1, 4, 6)], ids=["vector", "signal", "picture"])
def test_each_sees_its_window_of_the_same_things(shape):
    fed = numbered(shape).split("views:2:0.5", 6, seed=1, test=0.2, validation=0.1)
    assert len(fed) == 6 and fed.planted["views"].tolist() == [0, 1] * 3
    for columns in fed.splits.values():
        for k in range(0, 6, 2):
            (a, y), (b, z) = columns.of(k), columns.of(k + 1)
            assert torch.equal(y, z) and torch.equal(a[..., 2:4], b[..., 2:4])
            assert not a[..., 4:].any() and not b[..., :2].any() and a[..., :4].all() and b[..., 2:].all()


def test_nobody_trains_on_what_a_set_mate_is_tested_on():
    fed = numbered((6,), 300).split("dirichlet:0.5|views:3:0.2", 12, seed=3, test=0.3, validation=0.2)
    for k in range(12):
        for mate in range(k // 3 * 3, k // 3 * 3 + 3):
            held = {*things(fed.test, mate), *things(fed.validation, mate)}
            assert held and not held & {*things(fed.train, k)}
    everything = [n for c in fed.splits.values() for k in range(12) for n in things(c, k)]
    assert sorted(everything) == sorted([*range(1, 301)] * 3)


def test_the_strength_fades_what_is_outside():
    at = [numbered((6,)).split(f"views:2:0@{s}", 2).train.of(0)[0] for s in (0, 0.25, 1)]
    plain = numbered((6,)).split("iid", 1).train.x
    assert torch.equal(at[0], plain) and torch.equal(at[1][:, 3:], 0.75 * plain[:, 3:])
    assert torch.equal(at[2][:, :3], plain[:, :3]) and not at[2][:, 3:].any()


def test_the_test_set_and_planted_groups():
    test = np.ones((4, 6), np.float32), np.arange(4) % 3
    fed = numbered((6,), test=test).split("iid|permute:2|views:2", 8, seed=2)
    assert torch.equal(fed.global_test[0], torch.from_numpy(test[0]))
    groups = fed.planted["permute"]
    assert np.array_equal(groups[::2], groups[1::2]) and sorted(groups) == [0] * 4 + [1] * 4
    each = numbered((6,)).split("iid|views:2|permute:2", 8, seed=2).planted["permute"]  # by client, not by set
    assert len(each) == 8 and not np.array_equal(each[::2], each[1::2])


def test_clients_that_there_are_become_several():
    data = numbered((6,), columns={"who": np.arange(60) % 4}, natural="who")
    fed = data.split("natural|views:2")
    assert fed.names[:3] == ["0 view 0", "0 view 1", "1 view 0"] and fed.sizes.tolist() == [15] * 8
    assert len(data.split("views:2", 4)) == 4
    again = data.split().skewed("views:2")
    assert again.fingerprint() == fed.fingerprint() and again.names == fed.names


def test_a_chunk_at_a_time(monkeypatch):
    whole = numbered((2, 6)).split("views:3", 6, seed=1)
    monkeypatch.setattr("unalike.data.skew.views.CHUNK", 30)
    assert numbered((2, 6)).split("views:3", 6, seed=1).fingerprint() == whole.fingerprint()


def test_refused():
    with says("sets of 3 clients", "10 is no multiple", "9 or 12"):
        numbered((6,)).split("views:3")
    with says("sets of 3 clients", "2 is no multiple", "ask for 3"):
        numbered((6,)).split("views:3", 2)
    with says("2 columns into 3 windows", "at most 2 views"):
        numbered((2,)).split("views:3", 3)
    with says("tokens"):
        ua.Dataset(np.arange(20).reshape(10, 2), np.arange(10) % 2).split("views:2", 2)
    with says("views=1 must be a whole number of 2 or more"):
        parse("views:1")
    with says("overlap=1.5 must be"):
        parse("views:2:1.5")
