"""Sums of replies by numbers that rounding would lose: order of arrival, whole numbers, weights, tall stacks."""

import itertools

import numpy as np
import pytest
import torch

from unalike.channel import Sums, sums
from unalike.contract import Field, Outcome


def outcome(clients, samples=None, **up):
    """The replies of these clients; each one's loss is ten times its number."""
    ids = np.array(clients)
    return Outcome(ids, up, np.ones(len(ids)) if samples is None else np.array(samples), 10.0 * ids)


def added(fields, *outcomes, ordered=True):
    gathered = Sums(fields, None, ordered)
    for one in outcomes:
        gathered.add(one)
        gathered.add_losses(one.loss)
    return gathered


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("values", [(1e16, 1.0, -1e16, 1.0), (1.0, 1e100, 1.0, -1e100), (1e16, 3.0, 3.0, -1e16)])
def test_whatever_the_order_of_arrival_nothing_is_lost(values):
    """In float64, 1e16 + 1 is 1e16: only what is kept apart brings the small numbers through."""
    wanted = sum(v for v in values if abs(v) < 1e10)
    for order in itertools.permutations(values):
        replies = [outcome([k], row=double(v)[None]) for k, v in enumerate(order)]
        assert added({"row": Field((1,), weight="one")}, *replies, ordered=False).total("row").tolist() == [wanted]


def test_a_row_alone_is_weighed_and_left_as_it_is():
    fields = {"row": Field((2,), read="each", weight="samples")}
    replies = [outcome([k], [k + 2], row=double(0.1, -3.0)[None]) for k in range(3)]
    gathered = added(fields, *replies)
    assert gathered.total("row").tolist() == pytest.approx([0.9, -27.0])
    assert gathered.rows("row").tolist() == [[0.1, -3.0]] * 3


def test_rows_and_losses_are_put_into_the_cohorts_order():
    fields = {"row": Field((1,), read="each", weight="one")}
    replies = [outcome([k], row=double(float(k))[None]) for k in (7, 2, 9)]
    gathered = added(fields, *replies, ordered=False)
    gathered.close(np.array([9, 2, 4, 7]))  # 4 has not answered
    assert gathered.ids.tolist() == [9, 2, 7]
    assert gathered.rows("row").tolist() == [[9.0], [2.0], [7.0]]
    assert gathered.losses.tolist() == [90.0, 20.0, 70.0]


@pytest.mark.parametrize("ordered", [True, False])
def test_whole_numbers_stay_whole(ordered):
    """2⁶² + 1 is no float64, 3 · 10⁹ no int32, and of three True two are more than True."""
    fields = {name: Field("scalar", weight="samples") for name in ("long", "int", "bool")}
    replies = [
        outcome(
            [k],
            [3],
            long=torch.tensor([long]),
            int=torch.tensor([500_000_000], dtype=torch.int32),
            bool=torch.tensor([k > 0]),
        )
        for k, long in enumerate(((1 << 60) + 1, 1, 0))
    ]
    gathered = added(fields, *replies, ordered=ordered)
    assert {name: int(gathered.total(name)) for name in fields} == {
        "long": 3 * ((1 << 60) + 2),
        "int": 3 * 1_500_000_000,
        "bool": 3 * 2,
    }
    assert {gathered.total(name).dtype for name in fields} == {torch.int64}


def test_each_field_has_the_weight_that_it_declares():
    """Values 2 and 5 of 10 and 30 samples, and 7 of 60 in a stack of its own."""
    fields = {"by_samples": Field("scalar"), "by_client": Field("scalar", weight="one")}
    stacks = [((0, 1), (10, 30), (2.0, 5.0)), ((2,), (60,), (7.0,))]
    replies = [outcome(ids, n, by_samples=double(*v), by_client=double(*v)) for ids, n, v in stacks]
    gathered = added(fields, *replies)
    assert gathered.weights == {"by_samples": 100.0, "by_client": 3.0}
    assert float(gathered.total("by_samples")) == 20 + 150 + 420
    assert float(gathered.total("by_client")) == 14


def test_rows_that_fill_the_scratch_memory_are_added_one_by_one(monkeypatch):
    """Rows of three numbers and scratch memory for two: weights count, and no rows at all are a sum of zeros."""
    monkeypatch.setattr(sums, "MAX_SCRATCH", 2 * 8)
    monkeypatch.setattr(sums, "_partial_sums", None)
    stacks = [((0, 1), (10, 30), [[1.0, 2.0, 4.0], [0.5, 0.0, 1.0]]), ((2,), (2,), [[1.0, 1.0, 0.25]])]
    replies = [outcome(ids, n, row=torch.tensor(rows)) for ids, n, rows in stacks]
    gathered = added({"row": Field((3,))}, *replies)
    assert gathered.total("row").dtype == torch.float64
    assert gathered.total("row").tolist() == [27.0, 22.0, 70.5]
    assert added({"row": Field((3,))}, outcome((), (), row=torch.zeros(0, 3))).total("row").tolist() == [0.0, 0.0, 0.0]


def test_a_tall_stack_is_summed_in_parts(monkeypatch):
    """Scratch memory for two rows of three numbers, and five rows: parts of 2, 2 and 1."""
    monkeypatch.setattr(sums, "MAX_SCRATCH", 2 * 3 * 8)
    rows = torch.arange(15.0).reshape(5, 3)
    gathered = added({"row": Field((3,), weight="one")}, outcome(range(5), row=rows))
    assert gathered.total("row").tolist() == [30.0, 35.0, 40.0]
