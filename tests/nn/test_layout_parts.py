"""Parts of a model's vector by name."""

import pytest
import torch

from unalike.errors import UnalikeError
from unalike.nn.layout import Layout

NAMED = [("a.weight", (2,)), ("a.bias", (1,)), ("b.n.weight", (1,)), ("b.c.weight", (2, 1)), ("h.weight", (3,))]
LAYOUT = Layout(NAMED, "h", norms=frozenset({"b.n.weight"}))


@pytest.mark.parametrize(
    "part, places",
    [
        ("head", [6, 7, 8]),
        ("body", [0, 1, 2, 3, 4, 5]),
        ("norm", [3]),
        ("all but norm", [0, 1, 2, 4, 5, 6, 7, 8]),
        ("first 1", [0, 1, 2]),
        ("last 2", [4, 5, 6, 7, 8]),
        ("b", [3, 4, 5]),
        ("a.bias", [2]),
        ("a.bias + norm", [2, 3]),
        ("all but a + h", [3, 4, 5]),
    ],
)
def test_what_a_part_holds(part, places):
    vector = torch.arange(9.0)
    assert LAYOUT.part(vector, part).tolist() == places
    assert LAYOUT.mask(part).nonzero().flatten().tolist() == places and LAYOUT.part_size(part) == len(places)
    changed = LAYOUT.with_part(vector, part, -torch.ones(len(places)))
    assert changed.tolist() == [-1.0 if k in places else float(k) for k in range(9)]
    stacked = LAYOUT.part(torch.stack([vector, vector + 10]), part)
    assert stacked.tolist() == [places, [k + 10 for k in places]]


def test_a_part_that_is_not_there_is_named():
    with pytest.raises(UnalikeError, match=r"no part 'hed'\. Did you mean 'head'"):
        LAYOUT.part(torch.zeros(9), "hed")
    assert LAYOUT.has("b.c") and not LAYOUT.has("c")


def test_aligned_vectors_have_the_same_parts():
    wide = LAYOUT.aligned(4)
    vector = LAYOUT.repack(torch.arange(9.0), wide)
    assert wide.part(vector, "norm").tolist() == [3.0] and int(wide.mask("last 2").sum()) == 5


def test_tensors_that_begin_at_multiples():
    """Gaps are no part of any tensor, and get no gradient."""
    layout = Layout([("a", (3,)), ("b", (2, 2)), ("c", (1,))], align=4)
    flat = torch.arange(2.0 * layout.size).reshape(2, -1).requires_grad_(True)
    views = layout.views(flat)
    assert {name: view.tolist()[1] for name, view in views.items()} == {
        "a": [12, 13, 14],
        "b": [[16, 17], [18, 19]],
        "c": [20],
    }
    (g,) = torch.autograd.grad(sum((k * view).sum() for k, view in enumerate(views.values(), 1)), flat)
    assert g[0].tolist() == [1, 1, 1, 0, 2, 2, 2, 2, 3, 0, 0, 0]


def test_turned_weights_lie_with_their_input_channels_last():
    named = [("conv.weight", (2, 3, 1, 2)), ("conv.bias", (2,)), ("head.weight", (2, 1))]
    plain = Layout(named, "head")
    turned = plain.aligned(4, frozenset({"conv.weight"}))
    vector = torch.arange(2.0 * plain.size).reshape(2, -1)
    packed = plain.repack(vector, turned)
    assert packed[0, :12].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]  # [out, height, width, in]
    for name, view in turned.views(packed).items():
        assert torch.equal(view, plain.views(vector)[name])
    assert turned.views(packed)["conv.weight"].movedim(-3, -1)[0].is_contiguous()
    assert torch.equal(turned.repack(packed, plain), vector) and turned.repack(packed, turned) is packed
    same = plain.aligned(1, frozenset({"conv.weight"}))  # as long as the plain one, and in another order
    assert same.size == plain.size and not torch.equal(plain.repack(vector, same), vector)
    assert torch.equal(turned.part(packed, "head"), plain.part(vector, "head"))
