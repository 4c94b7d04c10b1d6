"""Vectors: one tensor per architecture, by hand."""

import copy
import pickle

import numpy as np
import pytest
import torch
from small import refused

import unalike as ua
from unalike.contract import Layouts, Server
from unalike.nn.layout import Layout


def vectors(a=(1.0, 2.0), b=(3.0, 4.0, 5.0)):
    return ua.Vectors({"a": torch.tensor(a), "b": torch.tensor(b)})


def lists(found):
    return {name: part.tolist() for name, part in found.items()}


@pytest.mark.parametrize(
    ("found", "a", "b"),
    [
        (lambda v: v + 1, [2.0, 3.0], [4.0, 5.0, 6.0]),
        (lambda v: 1 - v, [0.0, -1.0], [-2.0, -3.0, -4.0]),
        (lambda v: v * v - 2 * v, [-1.0, 0.0], [3.0, 8.0, 15.0]),
        (lambda v: torch.tensor(2.0) * v / 4, [0.5, 1.0], [1.5, 2.0, 2.5]),
        (lambda v: np.float64(2) * v, [2.0, 4.0], [6.0, 8.0, 10.0]),
        (lambda v: -(v**2), [-1.0, -4.0], [-9.0, -16.0, -25.0]),
        (lambda v: v.square().sum(), 5.0, 50.0),
        (lambda v: torch.zeros_like(v), [0.0, 0.0], [0.0, 0.0, 0.0]),
        (lambda v: torch.where(v > 1, v, 0.0), [0.0, 2.0], [3.0, 4.0, 5.0]),
        (lambda v: torch.stack([v, 10 * v])[1], [10.0, 20.0], [30.0, 40.0, 50.0]),
        (lambda v: torch.tensor([2.0, 1.0]) @ torch.stack([v, v]), [3.0, 6.0], [9.0, 12.0, 15.0]),
        (lambda v: torch.stack([v, 2 * v]).max(0)[0], [2.0, 4.0], [6.0, 8.0, 10.0]),
        (lambda v: v[None].repeat(2, 1)[1], [1.0, 2.0], [3.0, 4.0, 5.0]),
        (lambda v: v / ua.Vectors({"b": 2, "a": 4}), [0.25, 0.5], [1.5, 2.0, 2.5]),
        (lambda v: v.map(lambda part: part.flip(0)), [2.0, 1.0], [5.0, 4.0, 3.0]),
    ],
)
def test_arithmetic_and_torch_functions_apply_to_each_part(found, a, b):
    assert lists(found(vectors())) == {"a": a, "b": b}


def test_adding_leaves_the_old_vectors_alone_and_methods_with_an_underscore_do_not():
    v = vectors()
    w = v
    w += 1
    assert lists(v) == lists(vectors())
    v.mul_(2)
    assert lists(v) == {"a": [2.0, 4.0], "b": [6.0, 8.0, 10.0]}
    v[0] = 7.0
    v["a"] = torch.zeros(1)
    assert lists(v) == {"a": [0.0], "b": [7.0, 8.0, 10.0]}


def test_rows_and_what_all_parts_agree_on():
    v = torch.stack([vectors(), vectors()])
    assert [lists(row) for row in v] == [lists(vectors())] * 2
    assert (len(v), v.dim(), v.dtype, v.names) == (2, 2, torch.float32, ["a", "b"])
    assert lists(v[0].to(torch.float64)) == lists(vectors()) and v.to(torch.float64).dtype == torch.float64


def test_copies_are_of_their_own():
    v = vectors()
    for same in (copy.deepcopy(v), pickle.loads(pickle.dumps(v)), v.clone()):
        v["a"].add_(1)
        assert lists(same) != lists(v) and same.names == v.names
        v["a"].sub_(1)
        assert lists(same) == lists(v)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (lambda v: v.shape, "shape differs between the architectures 'a' and 'b'.*v.items"),
        (lambda v: v.sum().item(), "item differs"),
        (lambda v: v.numpy(), "numpy differs"),
        (lambda v: len(v), "differs"),
        (lambda v: v["c"], "There is no architecture 'c'"),
        (lambda v: v + ua.Vectors({"a": torch.zeros(2)}), "Vectors of a, b and of a do not go together"),
        (lambda v: ua.Vectors({}), "at least one architecture"),
        (lambda v: setattr(v, "grad", 1), "take no 'grad'"),
        (lambda v: v.__setitem__("c", torch.zeros(1)), "no architecture 'c'"),
    ],
)
def test_what_has_no_one_answer_is_refused(wrong, match):
    with refused(match):
        wrong(vectors())


def test_the_server_keeps_no_graph_of_what_is_assigned():
    server = Server(None, {}, None, None, w=vectors())
    part = torch.ones(2, requires_grad=True)
    server.w = server.w + ua.Vectors({"a": 2 * part, "b": torch.zeros(3)})
    assert not server.w["a"].requires_grad and server.w["a"].tolist() == [3.0, 4.0]


def test_layouts_take_and_give_vectors():
    named = {"a": [("x", (1,)), ("h.w", (1,))], "b": [("x", (2,)), ("h.w", (1,))]}
    layouts = Layouts({name: Layout(places, "h") for name, places in named.items()})
    v = vectors()
    assert lists(layouts.body(v)) == {"a": [1.0], "b": [3.0, 4.0]}
    assert lists(layouts.join(layouts.body(v), torch.tensor([9.0]))) == {"a": [1.0, 9.0], "b": [3.0, 4.0, 9.0]}
    assert layouts["b"].size == 3 and layouts.head_size == 1
    with refused("server.layout.size differs"):
        layouts.size  # noqa: B018
    with refused("no architecture 'c'"):
        layouts["c"]
