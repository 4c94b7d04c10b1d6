"""Features prepared between machines: the same bits as in one place, sums and nothing else, and answers that lie."""

import json

import numpy as np
import pytest
import torch
from unprepared import SIZES, federation

import unalike as ua
from unalike.client.preparing import SENDS, by_messages, prepared_together, sums_for
from unalike.data.columns import Columns
from unalike.data.preparation import Recipe
from unalike.messages import wire


def answers(fed, seen=None, meddle=lambda k, answer: answer, order=1):
    """What every client answers to a request, in one order or the other."""

    def ask(request):
        header, tensors = wire.decode(request)
        for k in range(len(fed))[::order]:
            x, y = fed.train.of(k)
            answer = meddle(k, sums_for(header, tensors, Columns(x, y, [0, len(y)])))
            if seen is not None:
                seen.append(answer)
            yield k, answer

    return ask


@pytest.mark.parametrize("target", [True, False])
def test_messages_make_the_same_preparation_bit_for_bit_in_any_order(target):
    fed = federation(target)
    want = fed.prepared().preparation
    assert by_messages(fed).preparation == want
    assert prepared_together(fed.recipe, answers(fed, order=-1), dict(enumerate(SIZES))) == want
    assert torch.equal(by_messages(fed).train.x, fed.prepared().train.x)


def test_nothing_but_declared_sums_leaves_a_client():
    fed, seen = federation(), []
    prepared_together(fed.recipe, answers(fed, seen), dict(enumerate(SIZES)))
    assert len(seen) == 2 * len(SIZES)
    names = set()
    for message in seen:
        header, sent = wire.decode(message)
        assert set(header) == {"format", "kind", "version", "samples"}
        for name, value in sent.items():
            names.add(name)
            assert SENDS[name].read == "sum" and list(value.shape) == [1 if name.startswith("y_") else 3]
    assert names == set(SENDS)


def test_federations_without_a_recipe_are_left_alone():
    fed = federation().replace(recipe=None)
    assert by_messages(fed) is fed


@pytest.mark.parametrize(
    "change",
    [
        lambda s: {**s, "rows": torch.ones(30, 3)},
        lambda s: {k: v for k, v in s.items() if k != "sum"},
        lambda s: {**s, "present": s["present"] * 1000},
        lambda s: {**s, "present": -s["present"] - 1},
        lambda s: {**s, "sum": s["sum"] * float("nan")},
        lambda s: {**s, "sum": s["sum"].float()},
        lambda s: {**s, "sum": s["sum"] * 0 + 1e308},
        lambda s: {**s, "sum": s["sum"][:2]},
    ],
)
def test_an_answer_that_is_no_sum_is_refused_by_name(change):
    def meddle(k, answer):
        header, sent = wire.decode(answer)
        header.pop("format")
        return wire.encode(header, change(sent)) if k == 2 else answer

    fed = federation()
    with pytest.raises(ua.UnalikeError, match="client 2 answers something else than sums over its 30 samples"):
        prepared_together(fed.recipe, answers(fed, meddle=meddle), dict(enumerate(SIZES)))


def test_squares_are_not_negative():
    def meddle(k, answer):
        header, sent = wire.decode(answer)
        header.pop("format")
        return wire.encode(header, {**sent, "squares": -sent["squares"] - 1} if "squares" in sent else sent)

    fed = federation()
    with pytest.raises(ua.UnalikeError, match="client 0 answers something else"):
        prepared_together(fed.recipe, answers(fed, meddle=meddle), dict(enumerate(SIZES)))


def test_everybody_must_answer():
    fed = federation()
    ask = lambda request: [pair for pair in answers(fed)(request) if pair[0] != 1]  # noqa: E731
    with pytest.raises(ua.UnalikeError, match="client 1 does not answer"):
        prepared_together(fed.recipe, ask, dict(enumerate(SIZES)))


@pytest.mark.parametrize(
    "header, tensors, words",
    [
        ({}, {}, "no recipe"),
        ({"recipe": {"scale": "standard"}}, {}, "no recipe for preparing"),
        ({"recipe": {k: v for k, v in Recipe.of(None, 3).plain().items() if k != "scale"}}, {}, "no recipe for"),
        ({"recipe": Recipe.of(None, 5).plain()}, {}, "prepares 5 features"),
        ({"recipe": Recipe.of(None, 3).plain()}, {"center": torch.ones(2).double()}, "no such means"),
        ({"recipe": Recipe.of(None, 3).plain()}, {"center": torch.ones(3)}, "no such means"),
        ({"recipe": Recipe.of(None, 3, target=True).plain()}, {"center": torch.ones(3).double()}, "lacks some"),
        ({"recipe": {**Recipe.of(None, 3).plain(), "scale": "best"}}, {}, "'standard'"),
    ],
)
def test_a_client_refuses_what_is_no_such_request(header, tensors, words):
    x, y = federation().train.of(2)
    with pytest.raises(ua.UnalikeError, match=words):
        sums_for(json.loads(json.dumps(header)), tensors, Columns(x, y, [0, len(y)]))
    with pytest.raises(ua.UnalikeError, match="labels are classes"):
        sums_for({"recipe": Recipe.of(None, 3, target=True).plain()}, {}, Columns(x, np.arange(30) % 2, [0, 30]))
