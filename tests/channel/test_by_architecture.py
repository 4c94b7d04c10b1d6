"""Sums of replies from clients with different networks, by hand."""

import numpy as np
import torch

from unalike.channel import SumsByArchitecture
from unalike.contract import Architectures, Field, Outcome, Replies

SIZES = {"a": {"model": 2, "features": 1}, "b": {"model": 3, "features": 1}}
SENDS = {"delta": Field(read="each"), "mean": Field("features", read="each", weight="one")}


def gathered(*outcomes, cohort, sends=SENDS, heads=((), ())):
    several = Architectures(["a", "b", "a", "b"], 4, SIZES, dict(zip("ab", heads, strict=True)))
    sums = SumsByArchitecture(several, {"a": sends, "b": sends}, None, True, torch.zeros(1))
    for ids, samples, up in outcomes:
        outcome = Outcome(np.array(ids), up, np.array(samples), 10.0 * np.array(ids))
        sums.add(outcome)
        sums.add_losses(outcome.loss)
    sums.close(np.array(cohort))
    return Replies(sums, torch.float32, np.array(cohort), (0, 0))


def test_models_are_summed_by_architecture_and_other_fields_over_everybody():
    a = ([2, 0], [3, 1], {"delta": torch.tensor([[1.0, 2.0], [5.0, 6.0]]), "mean": torch.tensor([[2.0], [4.0]])})
    b = ([1], [2], {"delta": torch.tensor([[1.0, 1.0, 4.0]]), "mean": torch.tensor([[9.0]])})
    replies = gathered(a, b, cohort=[2, 1, 0])
    assert replies.ids.tolist() == [2, 1, 0] and replies.losses().tolist() == [20.0, 10.0, 0.0]
    assert replies.sum("delta")["a"].tolist() == [8.0, 12.0] and replies.sum("delta")["b"].tolist() == [2.0, 2.0, 8.0]
    assert replies.mean("delta")["a"].tolist() == [2.0, 3.0] and replies.mean("delta")["b"].tolist() == [1.0, 1.0, 4.0]
    assert replies.mean("mean").tolist() == [5.0] and replies.each("mean").tolist() == [[2.0], [9.0], [4.0]]
    assert replies.each("delta")["a"].tolist() == [[1.0, 2.0], [5.0, 6.0]]
    assert replies.architectures == ["a", "b"] and replies.ids_of("a").tolist() == [2, 0]


def test_architectures_that_nobody_brought_are_zeros():
    replies = gathered(([3], [2], {"delta": torch.tensor([[1.0, 1.0, 4.0]])}), cohort=[3])
    assert replies.mean("delta")["a"].tolist() == [0.0, 0.0] and replies.mean("delta")["b"].tolist() == [1.0, 1.0, 4.0]
    assert replies.each("delta")["a"].shape == (0, 2) and replies.mean("delta").dtype == torch.float32
    assert replies.architectures == ["b"]


def test_heads_of_equal_shapes_are_one():
    sends = {"top": Field("head")}
    sizes = {"top": torch.tensor([[2.0]])}, {"top": torch.tensor([[8.0]])}
    outcomes = [([k], [1], up) for k, up in enumerate(sizes)]
    SIZES["a"]["head"] = SIZES["b"]["head"] = 1
    assert gathered(*outcomes, cohort=[0, 1], sends=sends, heads=(((1,),), ((1,),))).mean("top").tolist() == [5.0]
    apart = gathered(*outcomes, cohort=[0, 1], sends=sends, heads=(((1, 1),), ((1,),))).mean("top")
    assert apart["a"].tolist() == [2.0] and apart["b"].tolist() == [8.0]
