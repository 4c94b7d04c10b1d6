"""The joint model beside each party alone and the pooled table."""

import numpy as np
import pytest

from unalike import vertical as v
from unalike.vertical.compare import compare


def parties(numbers=False, **options):
    """A bank and a shop with words, numbers and gaps, on which a comparison must not go by other preparations."""
    draw, people = np.random.default_rng(0), [f"c{k}" for k in range(120)]
    income, orders = draw.normal(size=(2, 120))
    kind = draw.choice(["gold", "blue", "grey"], 120)
    score = income - 2 * orders + (kind == "gold")
    bank = {"id": people, "income": income, "label": score if numbers else np.where(score > 0, "yes", "no")}
    gaps = [None if k % 9 == 0 else float(value) for k, value in enumerate(orders)]
    shop = {"id": people[::-1], "orders": gaps[::-1], "kind": list(kind)[::-1]}
    return v.Parties.from_tables({"bank": bank, "shop": shop}, id="id", label=("bank", "label"), test=0.3, **options)


@pytest.mark.parametrize("numbers", [False, True])
def test_the_joint_model_of_a_regression_is_the_pooled_one(numbers):
    method = v.LinearRegression(lr=0.3) if numbers else v.LogisticRegression(lr=0.5)
    found = compare(method, parties(numbers), epochs=10, batch_size=30)
    scores = {line.name: line.scores for line in found.lines}
    assert list(scores) == ["joint", "bank", "shop", "pooled"]
    for name, value in scores["joint"].items():
        assert scores["pooled"][name] == pytest.approx(value, abs=1e-9)
    assert scores["bank"]["loss"] > scores["joint"]["loss"] + 0.05
    assert found.gain[0] > 0 and "The cooperation is worth it to bank" in found.verdict
