"""The weights' gradient of stacked convolutions as products of matrices: PyTorch's, for each client by itself."""

import pytest
import torch

from unalike.nn.fast.products import weight_products


def gradients(x, g, k, stride, padding):
    """Each client's own, by PyTorch: [C, O, K, K, I]."""
    each = [
        torch.nn.grad.conv2d_weight(
            own.permute(0, 3, 1, 2), (g.shape[-1], x.shape[-1], k, k), back.permute(0, 3, 1, 2), stride, padding
        )
        for own, back in zip(x, g, strict=True)
    ]
    return torch.stack(each).permute(0, 1, 3, 4, 2)


def case(k, stride, padding, clients=3, pictures=4):
    torch.manual_seed(0)
    h, w = 9, 7
    x = torch.randn(clients, pictures, h, w, 8, dtype=torch.float64)
    high, wide = ((n + 2 * padding - k) // stride + 1 for n in (h, w))
    return x, torch.randn(clients, pictures, high, wide, 16, dtype=torch.float64)


@pytest.mark.parametrize("programs", [1, 7, 1000])  # shares of a client: 1, and so many that they end anywhere
@pytest.mark.parametrize(
    ("k", "stride", "padding"), [(3, 1, 1), (3, 1, 0), (5, 1, 2), (1, 1, 0), (3, 2, 1), (1, 2, 0), (5, 2, 2)]
)
def test_it_is_pytorchs_gradient(k, stride, padding, programs):
    x, g = case(k, stride, padding)
    torch.testing.assert_close(weight_products(g, x, k, stride, padding, programs), gradients(x, g, k, stride, padding))


@pytest.mark.parametrize("programs", [1, 1000])
def test_a_client_whose_numbers_overflow_touches_no_other(programs):
    x, g = case(3, 1, 1)
    want = gradients(x, g, 3, 1, 1)
    x[1] = torch.inf
    found = weight_products(g, x, 3, 1, 1, programs)
    torch.testing.assert_close(found[[0, 2]], want[[0, 2]])
    assert not found[1].isfinite().any()
