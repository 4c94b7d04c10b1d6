"""The operations behind the batched engine's fast layers, on a CPU: the same layers, gradients and runs as PyTorch's.
The kernels themselves are compared with these by benchmarks/gpu_check.py, on a GPU."""

import contextlib
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import unalike as ua
from unalike.errors import UnalikeError
from unalike.nn import fast
from unalike.nn.fast import norms, operation, products
from unalike.nn.layers import prepare, weighted_layers

ALL = frozenset({"pooled", "alone", "depthwise", "norms"})


def picture_model(first="relu"):
    two = [nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), *two, nn.Conv2d(16, 32, 3, bias=False),
        *(two if first == "relu" else two[::-1]), nn.Flatten(), nn.Linear(32 * 2 * 2, 5),
    )  # fmt: skip


def plain_model():
    """Convolutions with no pooling behind them: every window, both strides, with and without padding and bias."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 24, 3, 2, padding=1, bias=False),
        nn.Tanh(), nn.Conv2d(24, 16, 1), nn.ReLU(), nn.Conv2d(16, 16, 5, padding="same"), nn.Conv2d(16, 16, 1, 2),
        nn.Sigmoid(), nn.Conv2d(16, 32, 3), nn.Flatten(), nn.Linear(32 * 2 * 2, 5),
    )  # fmt: skip


PLAIN = ["0", "1", "3", "5", "7", "8", "10"]  # its convolutions and its GroupNorm


def channel_model():
    """Convolutions of each channel by itself, and what lies between them."""
    return nn.Sequential(
        nn.Conv2d(3, 3, 3, padding=1, groups=3), nn.Conv2d(3, 16, 1), nn.ReLU(), nn.Conv2d(16, 16, 5, 2, 2, groups=16),
        nn.AvgPool2d(2), nn.Conv2d(16, 16, 3, padding="same", groups=16, bias=False), nn.Flatten(), nn.Linear(144, 5),
    )  # fmt: skip


def norm_model():
    """Normalisation with and without factors, of pictures and of rows, behind convolutions and not."""
    return nn.Sequential(
        nn.GroupNorm(3, 3), nn.Tanh(), nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 12, 1, bias=False), nn.BatchNorm2d(12, affine=False), nn.Tanh(),
        nn.GroupNorm(4, 12, affine=False), nn.Tanh(), nn.Flatten(1, 2), nn.BatchNorm1d(60), nn.ReLU(), nn.Flatten(),
        nn.Linear(300, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.GroupNorm(2, 8), nn.Linear(8, 5),
    )  # fmt: skip


NORMS = ["0", "2", "3", "7", "9", "12", "16", "18"]


def text_model(kind=nn.LSTM, **options):
    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(11, 3)
            self.lstm = kind(3, 5, batch_first=True, **options)
            self.head = nn.Linear(10 if options.get("bidirectional") else 5, 5)

        def forward(self, x):
            y, state = self.lstm(self.embedding(x))
            hidden = state[0] if kind is nn.LSTM else state
            return self.head(y.mean(1) + hidden.mean(0).mean(-1, keepdim=True))

    return Text()


MODELS = {
    "pictures": (picture_model, lambda: torch.randn(4, 6, 3, 13, 13, dtype=torch.float64), ["0", "3"]),
    "pooled first": (lambda: picture_model("pool"), lambda: torch.randn(4, 6, 3, 13, 13).double(), ["0", "3"]),
    "alone": (plain_model, lambda: torch.randn(4, 6, 3, 13, 15, dtype=torch.float64)[..., :13], PLAIN),
    "alone, not square": (
        lambda: nn.Sequential(*plain_model()[:4], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5)),
        lambda: torch.randn(4, 6, 3, 8, 11, dtype=torch.float64),
        ["0", "1", "3"],
    ),
    "each channel": (channel_model, lambda: torch.randn(4, 6, 3, 13, 13, dtype=torch.float64), ["0", "3", "5"]),
    "norms": (norm_model, lambda: 3 + torch.randn(4, 6, 3, 13, 13, dtype=torch.float64), NORMS),
    "one layer": (text_model, lambda: torch.randint(0, 11, (4, 6, 7)), ["lstm"]),
    "two layers": (lambda: text_model(num_layers=2), lambda: torch.randint(0, 11, (4, 6, 7)), ["lstm"]),
    "both ways": (lambda: text_model(bidirectional=True), lambda: torch.randint(0, 11, (4, 6, 7)), ["lstm"]),
    "GRU": (lambda: text_model(nn.GRU, num_layers=2), lambda: torch.randint(0, 11, (4, 6, 7)), ["lstm"]),
    "GRU, no bias": (
        lambda: text_model(nn.GRU, bidirectional=True, bias=False),
        lambda: torch.randint(0, 11, (4, 6, 7)),
        ["lstm"],
    ),
    "RNN": (lambda: text_model(nn.RNN, bidirectional=True), lambda: torch.randint(0, 11, (4, 6, 7)), ["lstm"]),
    "RNN, ReLU": (lambda: text_model(nn.RNN, nonlinearity="relu"), lambda: torch.randint(0, 11, (4, 6, 7)), ["lstm"]),
    "no bias": (lambda: text_model(bias=False), lambda: torch.randint(0, 11, (4, 6, 7)), ["lstm"]),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_of_a_stack_is_that_of_the_plain_layers(name):
    build, data, changed = MODELS[name]
    torch.manual_seed(0)
    model, x, y = build().double(), data(), torch.randint(0, 5, (4, 6))
    stack = {n: p.detach() + 0.1 * torch.randn(4, *p.shape, dtype=p.dtype) for n, p in model.named_parameters()}
    plain, quick = prepare(model, True), prepare(model, True)
    assert fast.quicken(quick, ALL) == changed
    weight = torch.tensor([2, 1, 1, 0, 1, 1]).double() / 6  # of samples

    def gradients(module):
        def loss(p, statistics, x, y):
            tensors = {**p, **statistics, **dict.fromkeys(weighted_layers(module), weight)}
            losses = nn.functional.cross_entropy(functional_call(module, tensors, (x,)), y, reduction="none")
            return (losses * weight).sum(), {n: tensors[n].detach() for n in statistics}

        statistics = {n: b.expand(4, *b.shape) for n, b in module.named_buffers() if "running" in n}
        found, after = vmap(grad(loss, has_aux=True))(stack, statistics, x, y)
        return {**found, **after}

    want, got = gradients(plain), gradients(quick)
    for key in want:
        assert torch.allclose(got[key], want[key], rtol=0, atol=1e-13), (key, (got[key] - want[key]).abs().max())
        assert want[key].abs().max() > 1e-4


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2)],
        [nn.Conv2d(3, 16, (3, 5)), nn.ReLU(), nn.MaxPool2d(2)],
        [nn.Conv2d(3, 15, 3), nn.ReLU(), nn.MaxPool2d(2)],
        [nn.Conv2d(4, 16, 3, groups=2), nn.ReLU(), nn.MaxPool2d(2)],
        [nn.Conv2d(3, 16, 3, padding=1, padding_mode="circular"), nn.ReLU(), nn.MaxPool2d(2)],
        [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(3, 2)],
        [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)],
        [nn.Conv2d(3, 16, 3), nn.Tanh(), nn.MaxPool2d(2)],
        [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AvgPool2d(2)],
        [nn.Conv2d(3, 16, 3), nn.ReLU()],
    ],
)
def test_what_does_not_fit_stays_as_it_is(layers):
    module = nn.Sequential(*layers)
    assert fast.quicken(module, frozenset({"pooled"})) == []
    assert [type(m) for m in module] == [type(m) for m in layers]


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(16, 16, 3, groups=8),
        nn.Conv2d(16, 32, 3, groups=16),
        nn.Conv2d(16, 16, 3, groups=16, dilation=2),
        nn.Conv2d(16, 16, 9, groups=16),
        nn.Conv2d(16, 16, (3, 5), groups=16),
        nn.Conv2d(16, 16, 4, groups=16, padding="same"),
        nn.Conv2d(16, 16, 3, dilation=2),
        nn.Conv2d(16, 16, 3, stride=3),
        nn.Conv2d(16, 16, 3, stride=(1, 2)),
        nn.Conv2d(16, 16, (3, 5)),
        nn.Conv2d(16, 16, 2),
        nn.Conv2d(16, 16, 7),
        nn.Conv2d(16, 16, 3, padding=2),
        nn.Conv2d(16, 16, 3, padding=(1, 0)),
        nn.Conv2d(16, 16, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(16, 20, 3),
        nn.Conv2d(16, 8, 3),
        nn.Conv2d(3, 16, 1),
        nn.ConvTranspose2d(16, 16, 3),
    ],
    ids=lambda m: str(m)[: str(m).index("(")] + str(m)[-30:],
)
def test_a_convolution_that_the_kernel_cannot_do_stays_as_it_is(layer):
    kind = type(layer)
    assert fast.quicken(nn.Sequential(layer), ALL) == [] and type(layer) is kind


def test_what_is_replaced_follows_the_precision(monkeypatch):
    monkeypatch.setitem(fast.KINDS, "tf32", (frozenset({"alone"}), frozenset({"norms"})))
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert fast.kinds("tf32", gpu, torch.float32) == ({"alone"}, {"norms"})
    assert fast.kinds("tf32", cpu, torch.float32) == fast.ON_CPU
    # the kernels add in float32
    assert fast.kinds("tf32", gpu, torch.float64) == (frozenset(), frozenset())


def test_the_result_lies_with_its_channels_last():
    model = plain_model()[:4]
    fast.quicken(model, frozenset({"alone"}))
    assert model(torch.randn(2, 3, 8, 6)).is_contiguous(memory_format=torch.channels_last)


def test_without_convolutions_only_the_lstm_changes():
    assert fast.quicken(prepare(picture_model(), True), frozenset()) == []
    assert fast.quicken(prepare(text_model(), True), frozenset()) == ["lstm"]


PICTURES = ("pictures", "alone", "each channel", "norms")


def federation(kind):
    rng = np.random.default_rng(0)
    parts = []
    for n in (9, 4, 12):
        x = rng.normal(size=(n, 3, 13, 13)) if kind in PICTURES else rng.integers(0, 11, (n, 7))
        parts.append((x, rng.integers(0, 5, n)))
    return ua.Federation.from_arrays(parts, classes=5)


def run(kind, method, **options):
    torch.manual_seed(1)
    local = ua.LocalTraining(epochs=2, batch_size=4, lr=0.1)
    return ua.simulate(
        MODELS[kind][0](), federation(kind), method, rounds=2, local=local, dtype="float64", seed=1, **options
    )


def vector(run):
    return torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])


@pytest.mark.parametrize("method", [ua.Scaffold(), ua.RFedAvgPlus(lam=0.1)], ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("kind", [*PICTURES, "two layers", "GRU", "RNN"])
def test_runs_agree_with_one_client_after_another(kind, method, monkeypatch):
    monkeypatch.setattr(fast, "ON_CPU", (ALL, frozenset()))
    one, stack = run(kind, method, engine="sequential"), run(kind, method, engine="batched", fast=True)
    assert stack.engine.quick.fast == MODELS[kind][2] and not stack.engine.pure.fast
    assert torch.allclose(vector(one), vector(stack), rtol=0, atol=1e-11)


class Sharpness(ua.FedAvg):
    """A loss that differentiates a gradient."""

    def client(self, me, s, m):
        def loss(batch):
            return 0.1 * batch.grad(batch.vector).square().sum()

        return me.train(at=m.w, loss=loss).then(self.done)


@pytest.mark.parametrize("kind", PICTURES)
def test_a_gradient_of_a_gradient_is_refused_and_never_wrong(kind, monkeypatch):
    monkeypatch.setattr(fast, "ON_CPU", (ALL, frozenset()))
    plain = vector(run(kind, Sharpness(), engine="batched", fast=False))
    assert not torch.allclose(plain, vector(run(kind, ua.FedAvg(), engine="batched")), atol=1e-3)
    with pytest.raises(UnalikeError, match="use fast=False"):
        run(kind, Sharpness(), engine="batched", fast=True)


def test_fast_layers_that_give_no_numbers_are_refused(monkeypatch):
    monkeypatch.setattr(fast, "ON_CPU", (ALL, frozenset()))
    monkeypatch.setattr(fast.norms.FastGroupNorm, "forward", lambda self, x: float("nan") * x)
    with pytest.raises(UnalikeError, match="a layer of the model mixes the samples"):
        run("norms", ua.FedAvg(), engine="batched", fast=True)


def test_a_step_of_ones_own_keeps_the_plain_layers():
    class Steps(ua.FedAvg):
        def client(self, me, s, m):
            return me.train(at=m.w, step=lambda theta, batches, lr: theta - lr * batches[0].grad(theta)).then(self.done)

    one, stack = run("pictures", Steps(), engine="sequential"), run("pictures", Steps(), engine="batched", fast=True)
    assert torch.allclose(vector(one), vector(stack), rtol=0, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*PICTURES, "two layers", "GRU", "RNN"])
def test_compiled_without_a_break(kind, monkeypatch):
    monkeypatch.setattr(fast, "ON_CPU", (ALL, frozenset()))
    stack = run(kind, ua.FedAvg(), engine="batched", fast=True, compile=True)
    programs = [p for some in stack.engine.steps.values() for p in some]
    assert [p.mode for p in programs] == ["compiled"] and not programs[0].notes
    assert torch.allclose(vector(stack), vector(run(kind, ua.FedAvg(), engine="sequential")), rtol=0, atol=1e-11)


@pytest.mark.parametrize(("device", "begun"), [("cuda", ["ahead", "work"]), ("cpu", [])])
def test_kernels_that_cannot_be_compiled_ahead_are_no_error(monkeypatch, device, begun):
    """Their real call says what is wrong, if anything is."""
    done = []

    @contextlib.contextmanager
    def compiled_ahead():
        done.append("ahead")
        yield

    def work():
        done.append("work")
        raise RuntimeError("these numbers mean nothing")

    monkeypatch.setattr(operation, "kernels", lambda: types.SimpleNamespace(compiled_ahead=compiled_ahead))
    operation.compile_ahead(work, torch.device(device))
    assert done == begun


def test_results_are_zero_while_kernels_are_compiled_ahead(monkeypatch):
    """Nothing is written to them then, and a loss may not bear what was in that memory."""
    like = torch.ones(2, 3)
    monkeypatch.setattr(operation, "AHEAD", {1: []})
    for found in (operation.blank(like, 4, dtype=torch.int8), operation.blank_like(like)):
        assert not found.any()
    assert operation.blank(like, 4, dtype=torch.int8).dtype == torch.int8 and operation.blank(like, 2, 1).shape == (
        2,
        1,
    )
    monkeypatch.setattr(operation, "AHEAD", {})
    assert operation.blank(like, 4, 5).shape == (4, 5) and operation.blank_like(like, torch.int8).dtype == torch.int8


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (0, 1, 4, 2, 3), (0, 1, 2, 4, 3), (0, 1, 4, 3, 2), (1, 0, 3, 4, 2)])
def test_a_norm_can_write_its_pixels_as_one_line(order):
    """Channels first and last, and pixels turned: what a kernel writes to the flat result must be the result."""
    x = torch.randn(2, 3, 8, 4, 6).permute(order)
    y = norms._like(x).zero_()
    y.flatten(3).fill_(7.0)
    assert y.shape == x.shape and (y == 7).all()
    weights = torch.randn(2, x.shape[0], x.shape[2])
    normal, *_ = norms.group_norm(x, *weights, x.shape[2], 1e-5)
    for k in range(x.shape[0]):
        want = nn.functional.group_norm(x[k], x.shape[2], weights[0, k], weights[1, k])
        torch.testing.assert_close(normal[k], want)


def test_a_weights_gradient_bears_no_old_memory_while_kernels_are_compiled_ahead(monkeypatch):
    monkeypatch.setattr(operation, "AHEAD", {1: []})
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda t, *shape, **kind: t.new_full(shape, torch.nan, **kind))
    g, x = torch.ones(2, 4, 6, 6, 3), torch.ones(2, 4, 6, 6, 5)
    assert not products.weight_products(g, x, 3, 1, 1, 100, multiply=lambda *_: None).any()
