"""Data that drift: what is declared, and what each round then has, by hand."""

import dataclasses as dc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import federation, refused

import unalike as ua
from unalike.contract.requests import PUBLIC
from unalike.data.columns import Columns
from unalike.data.drifting import Drifting, Present, fill
from unalike.data.partition import Composed, parse
from unalike.data.partition.pieces import Change
from unalike.data.skew import Drift, Permute, Stream
from unalike.data.skew.planted import levels


@dc.dataclass(frozen=True)
class Lift(Change):
    """A change of features for tests: client k's are higher by its level, up to 8."""

    name = "lift"

    def change(self, fed, seed):
        planted, level = levels(self.name, len(fed), 0, seed)

        def lifted(columns):
            by = torch.from_numpy(8 * self.strength * level[columns.owners()])
            return Columns(columns.x + by.to(columns.x.dtype)[:, None], columns.y, columns.offsets)

        return fed.map(lifted, planted={**fed.planted, self.name: planted})


def numbered(*sizes, labels=None, **parts):
    """Clients whose samples are numbered: x of client k is 100 k, 100 k + 1, …"""
    xs = [torch.arange(n, dtype=torch.float32)[:, None].expand(n, 2) + 100 * k for k, n in enumerate(sizes)]
    ys = [torch.tensor(labels or [0, 1] * n)[:n] for n in sizes]
    return ua.Federation.from_arrays([*zip(xs, ys, strict=True)], **{"classes": 3, **parts})


def there(fed, client=0):
    return fed.train.of(client)[0][:, 0].tolist()


# ---------------------------------------------------------------- a change that grows


def test_steps_by_hand():
    """Four steps over nine rounds: one every second round, the first in round 3, the last in round 9."""
    drift = Drift(9, Permute(2), steps=4)
    assert [drift.phase(r) for r in range(1, 12)] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 4]
    assert [Drift(3, Permute(2)).phase(r) for r in (1, 2, 3, 4)] == [0, 5, 10, 10]


def test_a_change_grows_to_its_own_strength():
    fed = numbered(2, 2, 2)
    drifting = fed.skewed(Drift(5, Lift(strength=0.5), steps=2))
    assert torch.equal(drifting.train.x, fed.train.x) and drifting.drift.rounds == 5
    for round, most in ((1, 0), (2, 0), (3, 2), (4, 2), (5, 4), (50, 4)):
        now = drifting.at(round)
        assert now.drift is None and torch.equal(now.train.y, fed.train.y)
        by = (now.train.x - fed.train.x)[:, 0].tolist()
        assert by == [0, 0, most / 2, most / 2, most, most]
    assert drifting.planted["lift"].tolist() == drifting.at(3).planted["lift"].tolist() == [0, 0.5, 1]


def test_all_splits_drift_and_what_is_nobodys_does_not():
    fed = federation(validation=True).named_splits(query=0.5).with_public(torch.ones(3, 5), torch.tensor([0, 1, 2]))
    drifting = fed.skewed(Drift(2, Lift()))
    now = drifting.at(2)
    assert list(now.splits) == ["train", "validation", "test", "query"]
    for name, columns in now.splits.items():
        far = columns.of(5)[0] - fed.splits[name].of(5)[0]
        torch.testing.assert_close(far, torch.full_like(far, 8.0))
    assert torch.equal(now.global_test[0], fed.global_test[0]) and torch.equal(now.public[0], fed.public[0])


def test_labels_drift_as_permute_says():
    fed = ua.load("digits").split("iid|drift:11:permute:2", 4, test=0.2)
    plain = ua.load("digits").split("iid", 4, test=0.2)
    for round, strength in ((1, 0.0), (6, 0.5), (11, 1.0)):
        changed = plain.skewed(Permute(2, strength=strength))
        assert torch.equal(fed.at(round).train.y, changed.train.y) and torch.equal(fed.at(round).test.y, changed.test.y)
    assert fed.planted["permute"].tolist() == changed.planted["permute"].tolist()


# ---------------------------------------------------------------- a stream


def test_a_window_slides_by_hand():
    """Ten samples, four at a time: their window has six to go in three steps."""
    fed = numbered(10, 1, 3).skewed("stream:4:0.4")
    assert [there(fed.at(r)) for r in (1, 2, 3, 4, 9)] == [
        [0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [6, 7, 8, 9], [6, 7, 8, 9],
    ]  # fmt: skip
    assert {tuple(there(fed.at(r), 1)) for r in range(1, 6)} == {(100,)}  # one sample stays
    assert [there(fed.at(r), 2) for r in (1, 2, 3, 4)] == [[200], [200], [201], [202]]
    assert fed.at(3).sizes.tolist() == [4, 1, 1]
    assert there(fed) == list(range(10))  # the federation itself has all that there will be


def test_clients_may_be_ahead():
    """Three clients 0, 2 and 4 rounds ahead of a window that has eight to go in four steps."""
    fed = numbered(10, 10, 10).skewed("stream:5:0.2:time:4")
    first = [[there(fed.at(r), k)[0] - 100 * k for k in range(3)] for r in (1, 2, 3, 5)]
    assert first == [[0, 4, 8], [2, 6, 8], [4, 8, 8], [8, 8, 8]]
    assert fed.planted["stream"].tolist() == [0, 0.5, 1]


def test_labels_as_time():
    """By labels the first class comes first; samples of one class keep their order."""
    fed = numbered(6, labels=[2, 1, 0, 2, 1, 0]).skewed(Stream(3, 0.34, "labels"))
    assert [there(fed.at(r)) for r in (1, 2, 3)] == [[2, 5], [1, 4], [0, 3]]


def test_a_drift_of_labels_does_not_move_a_stream_by_labels():
    fed = numbered(8, 8, labels=[2, 1, 0, 2, 1, 0, 1, 2])
    alone, both = (fed.skewed(text).at(3) for text in ("stream:3:0.5:labels", "drift:3:permute:2|stream:3:0.5:labels"))
    assert torch.equal(alone.train.x, both.train.x) and not torch.equal(alone.train.y, both.train.y)


def test_strength_of_a_stream():
    """The share that keeps its place grows with the strength; nothing is lost, and clients keep their own."""
    fed = numbered(400, 100)
    shares = []
    for strength in (0.0, 0.3, 0.7, 1.0):
        order = Stream(2, strength=strength)._ordered(fed.train, 3)
        assert sorted(order[:400]) == list(range(400)) and sorted(order[400:]) == list(range(400, 500))
        shares.append((order == np.arange(500)).mean())
    assert shares == pytest.approx([0, 0.3, 0.7, 1], abs=0.06)
    other = Stream(2, strength=0.0)._ordered(fed.train, 4)
    assert (other != Stream(2, strength=0.0)._ordered(fed.train, 3)).any()


def test_samples_of_a_stream_come_in_the_order_of_the_data_set():
    ds = ua.Dataset(torch.arange(60.0)[:, None], torch.arange(60) % 3)
    fed = ds.split("dirichlet:1|stream:3", 4, test=0.2)
    assert all(there(fed, k) == sorted(there(fed, k)) for k in range(4))
    plain = ds.split("dirichlet:1", 4, test=0.2)
    assert any(there(plain, k) != sorted(there(plain, k)) for k in range(4))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=6), st.floats(0.01, 0.99), st.integers(2, 9), st.integers(0, 9),
    st.sampled_from(["time", "labels"]), st.floats(0, 1),
)  # fmt: skip
def test_sizes_never_change_and_samples_are_the_clients_own(sizes, share, rounds, ahead, order, strength):
    fed = numbered(*sizes).skewed(Stream(rounds, share, order, ahead, strength=strength))
    for round in range(1, rounds + 2):
        now = fed.at(round)
        assert now.sizes.tolist() == [max(1, int(share * n + 1e-9)) for n in sizes]
        for k, n in enumerate(sizes):
            rows = there(now, k)
            assert len({*rows}) == len(rows) and {*rows} <= {100 * k + i for i in range(n)}


# ---------------------------------------------------------------- declared


@pytest.mark.parametrize(
    "text",
    ["drift:50:permute:3", "drift:50:5:permute:3@0.5", "stream:50", "stream:50:0.3:labels:10@0.5", "drift:4:permute"],
)
def test_text(text):
    piece = parse(text)
    assert str(parse(str(piece))) == str(piece) and parse(str(piece)) == piece
    assert parse(f"iid|{text}") == Composed((parse("iid"), piece))
    assert str(parse("drift:50:5:permute:3@0.5")) == "drift:50:5:permute:3@0.5"
    assert Drift(50, "permute:3@0.5", 5, strength=0.5) == Drift(50, Permute(3), steps=5, strength=0.25)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("drift:50", "'drift:50' does not say what drifts: write 'drift:rounds:change'"),
        ("drift:permute:2", "does not say what drifts"),
        ("drift:50:5:5:permute:2", "does not say what drifts"),
        ("drift:1:permute:2", "Drift's rounds=1 must be a whole number of 2"),
        ("drift:5:0:permute:2", "Drift's steps=0"),
        ("drift:50:dirichlet:0.3", "dirichlet:0.3 cannot grow as rounds pass: Drift takes a change"),
        ("drift:50:stream:5", "cannot grow"),
        ("drift:50:permute:2@2", "strength=2.0 must be a number from 0 to 1"),
        ("stream:1", "Stream's rounds=1"),
        ("stream:5:1", "Stream's share=1.0 must be a number above 0 and below 1"),
        ("stream:5:0.5:size", "order='size' must be one of time, labels"),
        ("stream:5:0.5:time:-1", "ahead=-1"),
        ("stream:5|stream:6", "are a stream already"),
    ],
)
def test_mistakes(text, message):
    with refused(message):
        federation().skewed(text)


def test_what_cannot_be_done_is_said_when_it_is_asked_for():
    with refused("permute must make 2 groups of 1 clients"):
        numbered(6).skewed("drift:3:permute:2")
    with refused("rotate changes pictures"):
        federation().skewed("drift:3:rotate:2")
    with refused("crowd:0.3:0.5 changes how many samples clients have"):
        federation().skewed("drift:3:crowd:0.3:0.5")
    later = federation().skewed("drift:3:noise:1").replace(classes=3)
    later.train.x[0, 0] = torch.nan  # since then
    with refused("NaN or infinite"):  # before round 1
        Present(later, torch.device("cpu"), torch.float32)


def test_what_lasts_is_done_first():
    fed = numbered(6, 6)
    one, other = (fed.skewed(text) for text in ("drift:3:permute:2|views:2:1", "views:2:1|drift:3:permute:2"))
    assert len(one) == 4 and one.planted["permute"].tolist() == other.planted["permute"].tolist()
    assert torch.equal(one.at(3).train.y, other.at(3).train.y)
    with refused("These data drift, and noise:0.5 is to last: ask for it before what drifts"):
        fed.skewed("drift:3:permute:2").skewed("noise:0.5")


def test_rounds_are_whole_numbers_from_1():
    fed = federation()
    assert fed.at(3) is fed
    for round in (0, 1.5, True):
        with refused("rounds are whole numbers from 1"):
            fed.skewed("stream:5").at(round)


def test_a_change_of_sizes_cannot_grow():
    @dc.dataclass(frozen=True)
    class First(Change):
        name = "first"

        def change(self, fed, seed):
            return fed.map(lambda c: c.take(c.offsets[:-1].copy(), np.ones(len(c), int)))

    with refused("first changes how many samples clients have"):
        federation().skewed(Drift(5, First()))


def test_it_goes_where_the_federation_goes(tmp_path):
    fed = federation().skewed("drift:5:permute:2|stream:9", seed=3)
    copies = [fed.mapped(tmp_path / "m"), fed.to("cpu", torch.float64), fed.replace(), fed.map(lambda c: c)]
    for copy in copies:
        assert copy.drift == fed.drift and copy.drift.rounds == 9
        assert torch.equal(copy.at(4).train.y, fed.at(4).train.y)
    assert Drifting.from_plain(fed.drift.plain()) == fed.drift
    assert "drifting over 9 rounds" in repr(fed) and "drifting" not in repr(fed.at(1))
    with refused("pool those of a round"):
        fed.pooled()


def test_fingerprints_tell_drifts_apart():
    fed = federation()
    texts = ("drift:5:permute:2", "drift:6:permute:2", "drift:5:permute:2@0.5", "stream:5")
    found = {fed.skewed(text).fingerprint() for text in texts}
    found |= {fed.fingerprint(), fed.skewed("drift:5:permute:2", seed=1).fingerprint()}
    assert len(found) == 6
    assert fed.skewed("drift:5:permute:2").at(1).fingerprint() == fed.fingerprint()


# ---------------------------------------------------------------- the present, in place


def test_the_present_is_filled_in_place_and_the_federation_stays():
    fed = federation().skewed(Drift(5, Lift(), steps=2))
    before = fed.fingerprint()
    present = Present(fed, torch.device("cpu"), torch.float32)
    x = present.data.train.x
    assert x.data_ptr() != fed.train.x.data_ptr()
    assert [present.enter(r) for r in (1, 2, 3, 4, 5, 6, 2)] == [False, False, True, False, True, False, True]
    present.enter(5)
    assert present.data.train.x is x and torch.equal(x, fed.at(5).train.x)
    assert fed.fingerprint() == before


def test_nothing_is_computed_inside_a_phase(monkeypatch):
    asked = []
    monkeypatch.setattr(Permute, "change", lambda self, fed, seed: asked.append(self.strength) or fed)
    fed = federation().skewed("drift:9:4:permute:2")
    present = Present(fed, torch.device("cpu"), torch.float32)
    for round in range(1, 12):
        present.enter(round)
    assert asked == [1.0, 1.0, 0.25, 0.5, 0.75, 1.0]  # first when it is declared, and before the run


def test_parts_of_joined_federations_drift_each_in_its_way():
    one, two = numbered(4, 4), numbered(6)
    fed = ua.Federation.joined({"a": one.skewed("drift:3:permute:2"), "b": two.skewed("stream:5")})
    assert fed.drift.rounds == 5 and ua.Federation.joined({"a": one}).drift is None
    present = Present(fed, torch.device("cpu"), torch.float32)
    labels = present.data.train.y.clone()
    present.enter(3)
    now = fed.at(3)
    assert torch.equal(present.data.train.y, now.train.y) and not torch.equal(labels, now.train.y)
    assert torch.equal(present.data.parts["b"].train.x, two.skewed("stream:5").at(3).train.x)
    assert torch.equal(one.train.y, numbered(4, 4).train.y)


def test_a_copy_beside_public_samples_is_written_again():
    from unalike.client.samples import Samples

    fed = federation().with_public(torch.ones(3, 5), torch.tensor([0, 1, 2])).skewed(Drift(2, Lift()))
    present = Present(fed, torch.device("cpu"), torch.float32)
    samples = Samples.of(("train", PUBLIC), present.data.splits, present.data.public)
    x = samples.x
    fill(present.data, fed.at(2))
    samples.renew()
    assert torch.equal(x, torch.cat([fed.at(2).train.x, fed.public[0]]))
