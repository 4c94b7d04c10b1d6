"""Rows of client state: first writes, two phases, growth, files, threads."""

import errno
import gc
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from reference import ENGINES, federation, mlp, simulate

import unalike as ua
from unalike.client.state_in_memory import ClientStore
from unalike.contract import Field, Method

SHAPES = {
    "a": ((3,), torch.float64, "run"),
    "count": ((), torch.int64, "run"),
    "flag": ((), torch.bool, "run"),
    "once": ((2,), torch.float32, "round"),
}


def ids(*clients):
    return np.array(clients, dtype=np.int64)


def rows(*numbers):
    return torch.tensor([[n, n + 0.5, -n] for n in numbers], dtype=torch.float64)


def keep(store, clients, **values):
    store.stage(ids(*clients), values)
    store.commit()


def test_before_the_first_write_there_are_zeros():
    store = ClientStore(SHAPES, 10)
    values, first = store.read(ids(3, 9))
    assert {n: (tuple(v.shape), v.dtype) for n, v in values.items()} == {
        "a": ((2, 3), torch.float64),
        "count": ((2,), torch.int64),
        "flag": ((2,), torch.bool),
        "once": ((2, 2), torch.float32),
    }
    assert not any(v.any() for v in values.values()) and first.tolist() == [True, True]
    assert len(store.known()) == 0 and store._used == 0


def test_a_row_is_allocated_on_first_write():
    store = ClientStore(SHAPES, 1_000_000)
    keep(store, [999_999, 5], a=rows(1, 2))
    assert store._used == 2 and store._rows["a"].shape == (16, 3)
    keep(store, [5], a=rows(3))
    assert store._used == 2
    values, first = store.read(ids(5, 6, 999_999))
    assert values["a"].tolist() == [[3, 3.5, -3], [0, 0, 0], [1, 1.5, -1]] and first.tolist() == [False, True, False]
    assert values["count"].tolist() == [0, 0, 0]  # a field that nobody wrote
    assert {n: v.dtype for n, v in values.items()} == {n: dtype for n, (_, dtype, _) in SHAPES.items()}
    assert store.known().tolist() == [5, 999_999]


def test_what_was_read_is_a_copy():
    store = ClientStore(SHAPES, 10)
    keep(store, [1], a=rows(1))
    store.read(ids(1))[0]["a"].add_(100)
    assert store[1]["a"].tolist() == [1, 1.5, -1]


def test_growth_keeps_every_row():
    store = ClientStore(SHAPES, 500)
    order = np.random.default_rng(0).permutation(500)
    for part in np.split(order, [1, 17, 40, 300]):
        store.stage(part, {"a": rows(*part.tolist()), "count": torch.from_numpy(part)})
        store.commit()
    values, first = store.read(np.arange(500))
    assert torch.equal(values["a"], rows(*range(500))) and values["count"].tolist() == list(range(500))
    assert not first.any() and store._rows["a"].shape[0] == 500  # never more rows than clients


# ---- two phases


def test_what_is_staged_is_seen_in_the_round_and_kept_by_the_commit():
    store = ClientStore(SHAPES, 10)
    keep(store, [1, 2], a=rows(1, 2))
    store.stage(ids(2, 3), {"a": rows(20, 30), "once": torch.ones(2, 2)})
    values, first = store.read(ids(1, 2, 3))
    assert values["a"][:, 0].tolist() == [1, 20, 30] and values["once"][:, 0].tolist() == [0, 1, 1]
    assert first.tolist() == [False, False, False]  # client 3 reads what it staged
    store.stage(ids(4), {"once": torch.ones(1, 2)})
    assert store.read(ids(4, 5))[1].tolist() == [True, True]  # a round's own does not count
    store.stage(ids(3), {"count": torch.tensor([7])})  # another exchange of the round adds to it
    store.stage(ids(2), {"a": rows(21)})
    values, _ = store.read(ids(1, 2, 3))
    assert values["a"][:, 0].tolist() == [1, 21, 30] and values["count"].tolist() == [0, 0, 7]
    store.commit()
    values, first = store.read(ids(1, 2, 3))
    assert values["a"][:, 0].tolist() == [1, 21, 30] and values["count"].tolist() == [0, 0, 7]
    assert not first.any()
    assert not values["once"].any()  # it lived for a round


def test_a_discarded_round_leaves_nothing():
    store = ClientStore(SHAPES, 10)
    keep(store, [1], a=rows(1))
    store.changed()
    store.stage(ids(1, 2), {"a": rows(10, 20), "once": torch.ones(2, 2)})
    store.discard()
    store.commit()
    values, first = store.read(ids(1, 2))
    assert values["a"][:, 0].tolist() == [1, 0] and first.tolist() == [False, True] and not values["once"].any()
    assert store.known().tolist() == [1] and len(store.changed()[0]) == 0


def test_a_state_for_a_round_alone_makes_no_row():
    store = ClientStore(SHAPES, 10)
    keep(store, [4], once=torch.ones(1, 2))
    assert store._used == 0 and store.read(ids(4))[1].tolist() == [True] and len(store.changed()[0]) == 0


def test_staging_nothing_is_nothing():
    store = ClientStore({}, 10)
    keep(store, [4])
    assert store.read(ids(4))[0] == {} and len(store.known()) == 0


# ---- files


@pytest.mark.parametrize("where", ["folder", None])
def test_beyond_the_budget_rows_are_in_files_and_read_the_same(tmp_path, where):
    row = 3 * 8 + 8 + 1
    plain = ClientStore(SHAPES, 300)
    mapped = ClientStore(SHAPES, 300, budget=40 * row, folder=tmp_path / "rows" if where else None)
    rng = np.random.default_rng(0)
    was_mapped = []
    for t in range(12):
        cohort = np.sort(rng.choice(300, 15, replace=False))
        values = {"a": torch.from_numpy(rng.normal(size=(15, 3))), "count": torch.from_numpy(cohort + t)}
        for store in (plain, mapped):
            store.stage(cohort, values)
            store.commit()
        was_mapped.append(mapped.mapped)
        everybody = np.arange(300)
        (one, first), (two, also) = plain.read(everybody), mapped.read(everybody)
        assert torch.equal(first, also) and all(torch.equal(one[n], two[n]) for n in SHAPES)
        (changed, one), (also, two) = plain.changed(), mapped.changed()
        assert changed.tolist() == also.tolist() == cohort.tolist() and all(torch.equal(one[n], two[n]) for n in one)
    assert was_mapped[0] is False and was_mapped[-1] is True and plain.mapped is False
    if where:
        assert sorted(f.name for f in (tmp_path / "rows").iterdir()) == ["a.rows", "count.rows", "flag.rows"]


def test_a_scratch_folder_goes_with_its_store(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = ClientStore(SHAPES, 300, budget=1)
    keep(store, [1], a=rows(1))
    assert len(list(tmp_path.iterdir())) == 1
    del store
    gc.collect()
    assert list(tmp_path.iterdir()) == []


# ---- checkpoints


def test_changed_rows_restore_the_store():
    store, other = ClientStore(SHAPES, 50), ClientStore(SHAPES, 50, budget=1)
    keep(store, [3, 1, 7], a=rows(3, 1, 7), flag=torch.tensor([True, False, True]))
    keep(store, [1], count=torch.tensor([5]))
    for expected in ([1, 3, 7], [7, 9]):
        clients, values = store.changed()
        assert clients.tolist() == expected and set(values) == {"a", "count", "flag"}
        other.restore(clients, values)
        keep(store, [9, 7], a=rows(9, 70))
    assert [c.tolist() for c, _ in (store.changed(), store.changed())] == [[7, 9], []]
    (one, first), (two, also) = store.read(np.arange(50)), other.read(np.arange(50))
    assert torch.equal(first, also) and all(torch.equal(one[n], two[n]) for n in SHAPES)
    assert len(other.changed()[0]) == 0  # what was restored is in the checkpoint already


def test_one_clients_state():
    store = ClientStore(SHAPES, 50)
    keep(store, [3], a=rows(3))
    assert {n: v.tolist() for n, v in store[3].items()} == {"a": [3, 3.5, -3], "count": 0, "flag": False}
    for k in (-1, 50):
        with pytest.raises(ua.UnalikeError, match=f"There is no client {k}: there are 50"):
            store[k]


# ---- threads


def test_threads_stage_side_by_side():
    store = ClientStore(SHAPES, 2000)
    keep(store, range(0, 2000, 2), a=rows(*range(0, 2000, 2)))

    def one(k):
        before = store.read(ids(k))[0]["a"][0, 0].item()
        store.stage(ids(k), {"a": rows(k + 0.25), "once": torch.full((1, 2), float(k))})
        after = store.read(ids(k))[0]
        return before == (0 if k % 2 else k) and after["a"][0, 0] == k + 0.25 and after["once"][0, 0] == k

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(2000)))
    store.commit()
    assert torch.equal(store.read(np.arange(2000))[0]["a"], rows(*(k + 0.25 for k in range(2000))))


# ---- in a run


class Carry(Method):
    """Two exchanges a round: the first leaves a note for the second and counts for good."""

    keeps = {"visits": Field("scalar"), "note": Field("scalar", life="round")}
    sends = {"seen": Field(("two",), read="each", weight="one")}
    two = 2

    def first(self, me, s, m):
        return {"visits": s.visits + 1, "note": s.note + 10 + m.t}, {}

    def second(self, me, s, m):
        return {}, {"seen": torch.stack([s.visits, s.note])}

    def round(self, server, cohort):
        cohort.call(self.first, t=float(len(server.seen)))
        server.seen = [*server.seen, cohort.call(self.second).each("seen").tolist()]

    def setup(self, server, everyone):
        server.seen = []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("state_memory", [2 << 30, 1])
def test_state_over_exchanges_and_rounds(engine, state_memory):
    run = simulate(
        mlp(), federation((3, 4, 5)), None, engine, rounds=3, method=Carry(), clients_per_round=[[0, 1], [1, 2], [1]],
        state_memory=state_memory,
    )  # fmt: skip
    assert run.server.seen == [[[1, 10], [1, 10]], [[2, 11], [1, 11]], [[3, 12]]]
    assert [run.clients[k]["visits"].item() for k in range(3)] == [1, 3, 1]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_that_fails_leaves_no_state(engine):
    kept = []

    class Fails(Carry):
        def round(self, server, cohort):
            super().round(server, cohort)
            if len(server.seen) == 2:
                raise RuntimeError("the server fell over")

    class Look(ua.Callback):
        def on_start(self, run):
            kept.append(run)

    with pytest.raises(RuntimeError, match="fell over"):
        simulate(mlp(), federation((3, 4)), None, engine, rounds=3, method=Fails(), callbacks=[Look()])
    assert [kept[0].clients[k]["visits"].item() for k in range(2)] == [1, 1]


def test_mapped_files_do_not_share_rows_with_an_earlier_store(tmp_path):
    first = ClientStore(SHAPES_MAPPED, 10, budget=1, folder=tmp_path)
    first.restore(np.arange(3), {"a": torch.ones(3, 4)})
    second = ClientStore(SHAPES_MAPPED, 10, budget=1, folder=tmp_path)
    second.restore(np.arange(3), {"a": torch.zeros(3, 4)})
    assert first.mapped and second.mapped
    assert torch.equal(first[1]["a"], torch.ones(4)) and torch.equal(second[1]["a"], torch.zeros(4))


def test_a_full_disk_under_mapped_rows_is_one_line(tmp_path, monkeypatch):
    store = ClientStore(SHAPES_MAPPED, 10, budget=1, folder=tmp_path)
    store.restore(np.arange(3), {"a": torch.ones(3, 4)})

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ua.UnalikeError, match=r"No space left on device\. Make room, then resume"):
        store.restore(np.arange(5), {"a": torch.ones(5, 4)})
    assert torch.equal(store[1]["a"], torch.ones(4))


SHAPES_MAPPED = {"a": ((4,), torch.float32, "run")}
