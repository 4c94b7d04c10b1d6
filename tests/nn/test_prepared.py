"""Layers and numbers of a model that a stack must treat apart: transposed convolutions, causal masks, constants, and
float32 numbers beside bf16."""

import copy

import pytest
import torch
from torch import nn
from torch.func import vmap

import unalike as ua
from unalike import testing
from unalike.engines.batched import Batched
from unalike.nn.layers import Enlarging, prepare, statistics
from unalike.nn.task import Task

CAUSAL = torch.triu(torch.full((4, 4), -torch.inf), 1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("window", [2, (3, 1)])
def test_windows_that_do_not_overlap_are_a_product(window, bias):
    torch.manual_seed(0)
    plain = nn.ConvTranspose2d(3, 5, window, stride=window, bias=bias).double()
    ours = prepare(nn.Sequential(plain), pure=True)[0]
    assert type(ours) is Enlarging
    x = torch.randn(2, 3, 4, 6, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(ours(x), plain(x))
    sizes = [plain.output_padding[0] + n * w for n, w in zip((4, 6), plain.kernel_size, strict=True)]
    torch.testing.assert_close(ours(x, sizes), plain(x, sizes))
    g = torch.randn_like(plain(x))
    for got, want in zip(*(torch.autograd.grad(m(x), [x, *m.parameters()], g) for m in (ours, plain)), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    "options",
    [{"stride": 1}, {"stride": 2, "padding": 1}, {"stride": 2, "groups": 2}, {"stride": 2, "dilation": 2},
     {"stride": 2, "output_padding": 1}],
)  # fmt: skip
def test_other_transposed_convolutions_stay(options):
    layer = prepare(nn.Sequential(nn.ConvTranspose2d(4, 4, 2, **options)), pure=True)[0]
    assert type(layer) is nn.ConvTranspose2d


@pytest.mark.parametrize("pure", [True, False])
def test_masks_are_not_looked_at(monkeypatch, pure):
    """PyTorch's own encoder compares its mask with a causal one and waits for the answer."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True), 2)
    x, other = torch.randn(2, 3, 4, 8)
    wanted = encoder(x, CAUSAL), decoder(x, other, CAUSAL)
    ours = prepare(nn.ModuleList([encoder, decoder]), pure)

    def looks(*_, **__):
        raise AssertionError("it looks at the mask")

    monkeypatch.setattr(nn.modules.transformer, "_generate_square_subsequent_mask", looks)
    with pytest.raises(AssertionError, match="looks"):
        encoder(x, CAUSAL)
    torch.testing.assert_close((ours[0](x, CAUSAL), ours[1](x, other, CAUSAL)), wanted)
    torch.testing.assert_close(ours[0](x, mask=CAUSAL, is_causal=True), wanted[0])


class Constants(nn.Module):
    """A causal mask in a buffer, a table that is no part of the state, and statistics."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("mask", CAUSAL)
        self.register_buffer("table", torch.arange(16.0).reshape(4, 4) / 10, persistent=False)

    def forward(self, x):
        y = self.embedding(x) + self.table
        weights = (y @ y.transpose(-2, -1) + self.mask).softmax(-1)
        return self.head(self.norm((weights @ y).mean(1)))


def test_constants_are_no_statistics():
    assert list(statistics(Constants())) == ["norm.running_mean", "norm.running_var"]


def test_a_model_with_a_mask_of_infinities_trains_on_every_engine():
    """Averaged like statistics, the mask would be ∞ − ∞."""
    torch.manual_seed(0)
    x, y = torch.randint(0, 7, (20, 4)), torch.arange(20) % 3
    fed = ua.Federation.from_arrays([(x[:8], y[:8]), (x[8:], y[8:])], classes=3)
    model, local = Constants(), ua.LocalTraining(epochs=2, batch_size=4, lr=0.1)
    given = {"rounds": 2, "local": local, "dtype": "float64", "evaluate_clients": "none"}
    runs = [ua.simulate(copy.deepcopy(model), fed, ua.FedAvg(), engine=e, **given) for e in ("sequential", "batched")]
    assert testing.difference(*runs) < 1e-9 and bool(runs[0].server.w.isfinite().all())
    assert isinstance(runs[1].engine, Batched)


class Frozen(nn.Module):
    """Frozen weights, a table of positions, BatchNorm and a convolution behind it."""

    def __init__(self):
        super().__init__()
        self.base, self.norm = nn.Linear(8, 8).requires_grad_(False), nn.BatchNorm1d(4)
        self.conv, self.head = nn.Conv1d(4, 4, 3, padding=1), nn.Linear(32, 3)
        self.register_buffer("table", torch.randn(4, 8))

    def forward(self, x):
        return self.head(self.conv(self.norm(self.base(x) + self.table)).flatten(1))


def test_bf16_beside_float32_in_a_stack():
    torch.manual_seed(0)
    module, x, y = Frozen(), torch.randn(6, 4, 8), torch.arange(6) % 3

    def outputs(precision):
        task = Task(module, precision=precision)
        task.check(x, y)
        pure = task.pure(align=1)  # tries a stack
        weight, key = torch.full((6,), 1 / 6), torch.zeros((), dtype=torch.int64)
        two, buffers = torch.stack([task.start, 2 * task.start]), torch.stack([task.start_buffers] * 2)
        assert pure.mixed == (precision == "bf16")
        return vmap(lambda v, b: pure(v, b, x, key, weight)[0])(two, buffers)

    exact, rounded = outputs("highest"), outputs("bf16")
    torch.testing.assert_close(rounded, exact, atol=0.05, rtol=0.05)
    assert rounded.dtype == torch.float32 and not torch.equal(rounded, exact)


def test_a_model_that_is_bf16_throughout_needs_no_casts():
    task = Task(nn.Sequential(nn.Linear(8, 3)), precision="bf16")
    task.check(torch.randn(2, 8), torch.tensor([0, 1]))
    assert not task.pure(align=1).mixed


def test_trees_grow_on_a_cpu(monkeypatch):
    """Also where there is a GPU; nothing of them is faster there."""
    asked = []
    monkeypatch.setattr("unalike.run.simulate.find_device", lambda name: (asked.append(name), torch.device("cpu"))[1])
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    fed = ua.Federation.from_arrays([(x[:9], y[:9]), (x[9:], y[9:])], classes=2)
    ua.simulate(None, fed, ua.HistBoost(trees=1, depth=1), rounds=1, device="auto")
    ua.simulate(nn.Linear(3, 2), fed, ua.FedAvg(), rounds=1, device="auto")
    assert asked == ["cpu", "auto"]
