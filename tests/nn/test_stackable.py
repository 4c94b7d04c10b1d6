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
from unalike.errors import UnalikeError
from unalike.nn import fast
from unalike.nn.layers import Enlarging, prepare, statistics
from unalike.nn.networks import Network
from unalike.nn.task import Task
from unalike.run.facts import start_fingerprint

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


class Follows(nn.Module):
    """A buffer that follows the largest number it has seen."""

    def __init__(self, begin, persistent, keeps=True):
        super().__init__()
        self.head, self.keeps = nn.Linear(4, 3), keeps
        self.register_buffer("largest", torch.tensor([begin]), persistent=persistent)

    def forward(self, x):
        if self.training:
            largest = torch.maximum(self.largest, x.abs().max().reshape(1))
            self.largest = largest if self.keeps else largest.repeat(2)
        return self.head(x / (1 + self.largest[:1]))


@pytest.mark.parametrize("persistent", [True, False])
def test_what_training_changes_is_a_statistic(persistent):
    x, y = 5 * torch.randn(6, 4), torch.arange(6) % 3
    task = Task(Follows(0.0, persistent))
    task.check(x, y)
    assert [name for name, *_ in task.buffer_layout.places] == ["largest"] and not task.constants and task.repeats
    fed = ua.Federation.from_arrays([(x[:3], y[:3]), (x[3:], y[3:])], classes=3)
    given = {"rounds": 2, "local": ua.LocalTraining(steps=2, lr=0.1), "engine": "sequential"}
    runs = [
        ua.simulate(copy.deepcopy(task.module), fed, ua.FedAvg(), clients_per_round=[order] * 2, **given)
        for order in ([0, 1], [1, 0])
    ]
    assert testing.difference(*runs) < 1e-6  # nothing leaks from one client to the next
    assert 0 < float(runs[0].model.largest) < float(x.abs().max())  # a mean of both


@pytest.mark.parametrize(("begin", "keeps"), [(-torch.inf, True), (0.0, False)])
def test_a_statistic_that_cannot_be_averaged_is_refused(begin, keeps):
    with pytest.raises(UnalikeError, match=r"changes its buffer 'largest' in training.*finite numbers and keep its"):
        Task(Follows(begin, False, keeps)).check(torch.randn(2, 4), torch.tensor([0, 1]))


def test_constants_of_further_networks_do_not_travel():
    network = Network("own", lambda sizes: Constants(), {}, 0, torch.zeros(1))
    assert bool(network.start.isfinite().all()) and "table" not in [name for name, *_ in network.layout.places]


def test_constants_are_part_of_the_start():
    one, two = Task(Constants()), Task(Constants())
    two.module.load_state_dict(one.module.state_dict())
    two = Task(two.module)
    assert start_fingerprint(one) == start_fingerprint(two)
    two.module.table += 1
    assert start_fingerprint(one) != start_fingerprint(two)


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_a_scalar_parameter(engine):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.temperature = nn.Linear(4, 3), nn.Parameter(torch.tensor(1.0))

        def forward(self, x):
            return self.head(x) * self.temperature

    x, y = torch.randn(6, 4), torch.arange(6) % 3
    fed = ua.Federation.from_arrays([(x[:3], y[:3]), (x[3:], y[3:])], classes=3)
    run = ua.simulate(Scaled(), fed, ua.FedAvg(), rounds=1, local=ua.LocalTraining(steps=2, lr=0.1), engine=engine)
    assert float(run.model.temperature.detach()) != 1


def test_frozen_and_shared_convolutions_are_not_turned(monkeypatch):
    monkeypatch.setattr(fast, "ON_CPU", (frozenset({"alone"}), frozenset()))
    convs = [nn.Conv2d(16, 16, 3, padding=1) for _ in range(3)]
    convs[0].requires_grad_(False)
    convs[2].weight = convs[1].weight
    task = Task(nn.Sequential(*convs, nn.Flatten(), nn.Linear(256, 3)))
    task.check(torch.randn(2, 16, 4, 4), torch.tensor([0, 1]))
    assert fast.turned(task) == {"1.weight"}
    pure = task.pure(align=1, fast=True, turned=fast.turned(task))  # tries a stack
    assert pure.fast == ["0", "1", "2"]


class Frozen(nn.Module):
    """Frozen weights, a table of positions, BatchNorm and a convolution behind it."""

    def __init__(self):
        super().__init__()
        self.base, self.norm = nn.Linear(8, 8).requires_grad_(False), nn.BatchNorm1d(4)
        self.conv, self.head = nn.Conv1d(4, 4, 3, padding=1), nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 3))
        self.head[0].requires_grad_(False)
        self.frozen, self.up = nn.Conv1d(4, 4, 3, padding=1).requires_grad_(False), nn.ConvTranspose1d(4, 4, 2, 2)
        self.register_buffer("table", torch.randn(4, 8))

    def forward(self, x):
        x = self.frozen(self.conv(self.norm(self.base(x) + self.table)))
        return self.head(self.up(x, [16]).flatten(1))


def test_bf16_beside_float32_in_a_stack():
    torch.manual_seed(0)
    module, x, y = Frozen(), torch.randn(6, 4, 8), torch.arange(6) % 3

    def outputs(precision):
        task = Task(module, head="head", precision=precision)
        task.check(x, y)
        pure = task.pure(align=1)  # tries a stack
        weight, key = torch.full((6,), 1 / 6), torch.zeros((), dtype=torch.int64)
        two, buffers = torch.stack([task.start, 2 * task.start]), torch.stack([task.start_buffers] * 2)
        assert pure.mixed == (precision == "bf16")
        features = torch.randn(2, 6, 64, generator=torch.Generator().manual_seed(0))
        of_head = vmap(lambda v, f: pure.head(v, f))(two, features)
        return torch.cat([vmap(lambda v, b: pure(v, b, x, key, weight)[0])(two, buffers), of_head])

    exact, rounded = outputs("highest"), outputs("bf16")
    torch.testing.assert_close(rounded, exact, atol=0.1, rtol=0.1)
    assert rounded.dtype == torch.float32 and not torch.equal(rounded, exact)


def test_a_model_that_is_bf16_throughout_needs_no_casts():
    task = Task(nn.Sequential(nn.Linear(8, 3)), precision="bf16")
    task.check(torch.randn(2, 8), torch.tensor([0, 1]))
    assert not task.pure(align=1).mixed


def test_trees_grow_on_a_cpu(monkeypatch):
    """Also where there is a GPU, and however a GPU is to multiply; nothing of them is faster there."""
    checked = []
    monkeypatch.setattr("unalike.run.simulate.find_device", lambda name: torch.device("meta"))
    monkeypatch.setattr("unalike.run.simulate.check_precision", lambda *given: checked.append(given))
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    fed = ua.Federation.from_arrays([(x[:9], y[:9]), (x[9:], y[9:])], classes=2)
    run = ua.simulate(None, fed, ua.HistBoost(trees=1, depth=1), rounds=1, device="cuda", precision="tf32")
    assert (run.task.device.type, run.task.precision) == ("cpu", "highest")
    assert checked == [("tf32", torch.device("meta"))]
