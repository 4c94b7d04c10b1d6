"""Linear layers through oneDNN: the same numbers as PyTorch's own, and only where they are meant."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from unalike.nn import layers, linear
from unalike.nn.linear import DirectLinear

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="a build without oneDNN")


@pytest.fixture
def used(monkeypatch):
    """The products that went to oneDNN, on any processor."""
    monkeypatch.setattr(layers, "better", lambda: True)
    monkeypatch.setattr(linear, "PRODUCTS", 500_000)  # smaller layers are enough here
    calls, real = [], linear.multiply
    monkeypatch.setattr(linear, "multiply", lambda *args: calls.append(args) or real(*args))
    return calls


def direct(plain):
    return layers.prepare(nn.Sequential(plain), pure=False)[0]


@pytest.mark.parametrize("shape", [(20, 400), (4, 8, 400)])
@pytest.mark.parametrize("bias", [True, False])
def test_outputs_and_gradients_are_those_of_pytorch(used, shape, bias):
    torch.manual_seed(0)
    plain = nn.Linear(400, 300, bias=bias)
    layer, x, g = direct(plain), torch.randn(shape, requires_grad=True), torch.randn(*shape[:-1], 300)
    assert type(layer) is DirectLinear
    out, usual = layer(x), plain(x)
    torch.testing.assert_close(out, usual, rtol=1e-5, atol=1e-5)
    ours = torch.autograd.grad(out, (x, *layer.parameters()), g)
    theirs = torch.autograd.grad(usual, (x, *plain.parameters()), g)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)
    flat = [torch.autograd.grad(net(x).sum(), x)[0] for net in (layer, plain)]  # a gradient without memory of its own
    torch.testing.assert_close(*flat, rtol=1e-5, atol=1e-4)
    assert len(used) == 6  # forward, and the gradients of the input and the weights, twice


def test_its_gradient_can_be_differentiated_again(used):
    torch.manual_seed(0)
    plain, x = nn.Linear(400, 300), torch.randn(20, 400)
    seconds = []
    for layer in (direct(plain), plain):
        loss = torch.tanh(layer(x)).square().sum()
        first = torch.autograd.grad(loss, layer.weight, create_graph=True)[0]
        seconds.append(torch.autograd.grad(first.square().sum(), layer.weight)[0])
    torch.testing.assert_close(*seconds, rtol=1e-4, atol=1e-2)
    assert seconds[0].abs().max() > 1


@pytest.mark.parametrize(
    ("x", "autocast"),
    [
        (torch.zeros(7, 400), False),  # few samples
        (torch.zeros(20, 400, dtype=torch.float64), False),
        (torch.zeros(20, 400), True),
    ],
)
def test_what_is_not_faster_stays_as_it_was(used, x, autocast):
    layer = direct(nn.Linear(400, 300, dtype=x.dtype))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))
    assert not used


def test_inputs_that_do_not_fit_are_pytorchs_error(used):
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        direct(nn.Linear(400, 300))(torch.zeros(40, 200))


def test_stacks_and_layers_of_the_users_own_are_left_alone(used):
    class Own(nn.Linear):
        pass

    assert type(direct(Own(400, 300))) is Own
    assert type(layers.prepare(nn.Sequential(nn.Linear(400, 300)), pure=True)[0]) is nn.Linear
