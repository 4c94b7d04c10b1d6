"""Layers that draw, keep statistics or cannot be stacked, held against torch.nn and across the engines."""

import copy
import functools
import inspect
import random
import warnings

import pytest
import torch
from reference import ENGINES, Each, batches, fedavg, federation, seeded, simulate, train, vector
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import unalike as ua
from unalike.nn import recurrent
from unalike.nn.fast import quicken
from unalike.nn.keyed import KEY
from unalike.nn.layers import WEIGHT, PoolingFirst, computed, copied, prepare
from unalike.nn.layout import find_head
from unalike.nn.normed import PureOldWeightNorm, PureWeightNorm

SIZES = (7, 4, 11)  # with batches of 3: last batches of one, one and two
LOCAL = ua.LocalTraining(epochs=2, batch_size=3, lr=0.2)
STORED = ua.LocalTraining(epochs=2, batch_size=3, lr=0.2, shuffle=False)


def sgd(parameters, k, t):
    return torch.optim.SGD(parameters, lr=0.2)


def passes(sizes):
    return lambda k, t: batches(sizes[k], 3, -(-sizes[k] // 3) * 2)


def same(runs, atol=1e-10):
    first = runs[0]
    for run in runs[1:]:
        torch.testing.assert_close(run.server.deltas, first.server.deltas, atol=atol, rtol=0)
        assert run.history[-1]["train_loss"] == pytest.approx(first.history[-1]["train_loss"], abs=1e-10)


# ---- dropout


class TimeFirst(nn.Module):
    """Dropout on [time, batch, features]: the padding of a short batch lies in the middle."""

    def __init__(self, p):
        super().__init__()
        self.inner, self.drop, self.out = nn.Linear(3, 5), nn.Dropout(p), nn.Linear(5, 3)

    def forward(self, x):
        h = self.drop(torch.tanh(self.inner(x.transpose(0, 1))))
        return self.out(h.mean(0))


class Recurrent(nn.Module):
    def __init__(self, p, kind=nn.LSTM):
        super().__init__()
        self.recurrent, self.out = kind(3, 4, num_layers=2, dropout=p, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.recurrent(x)[0][:, -1])


DROPPING = {
    "Dropout": (
        lambda p: nn.Sequential(nn.Linear(3, 8), nn.Dropout(p), nn.Tanh(), nn.Dropout(p), nn.Linear(8, 3)),
        (3,),
    ),
    "Dropout2d": (
        lambda p: nn.Sequential(nn.Conv2d(1, 6, 3), nn.Dropout2d(p), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)),
        (1, 4, 4),
    ),
    "time first": (TimeFirst, (4, 3)),
    "LSTM": (Recurrent, (4, 3)),
    "GRU": (lambda p: Recurrent(p, nn.GRU), (4, 3)),
}


@pytest.mark.parametrize("name", DROPPING)
def test_dropout_is_the_same_on_every_engine(name):
    make, features = DROPPING[name]
    fed = federation(SIZES, features)
    runs = [simulate(seeded(lambda: make(0.5)), fed, LOCAL, e) for e in ("sequential", "workers", "batched")]
    runs.append(simulate(seeded(lambda: make(0.5)), fed, LOCAL, "batched", clients_at_once=2))
    same(runs)
    without = simulate(seeded(lambda: make(0.0)), fed, LOCAL)
    assert (without.server.deltas - runs[0].server.deltas).abs().max() > 1e-3
    other = simulate(seeded(lambda: make(0.5)), fed, LOCAL, seed=1)
    assert (other.server.deltas - runs[0].server.deltas).abs().max() > 1e-3


def drawn(layer, x, key=5):
    layer = prepare(layer, pure=False)
    setattr(layer, KEY, torch.tensor(key))
    return layer(x)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.8])
def test_dropout_keeps_and_scales_as_torch_does(p):
    out = drawn(nn.Dropout(p), torch.ones(200, 500))
    assert float((out > 0).double().mean()) == pytest.approx(1 - p, abs=4 * (p * (1 - p) / 1e5) ** 0.5)
    torch.testing.assert_close(out[out > 0].unique(), torch.tensor([1 / (1 - p)]))
    channels = drawn(nn.Dropout2d(p), torch.ones(200, 100, 2, 3))
    assert (channels == channels[:, :, :1, :1]).all()
    assert float((channels > 0).double().mean()) == pytest.approx(1 - p, abs=4 * (p * (1 - p) / 2e4) ** 0.5)


def test_dropout_of_nothing_of_everything_and_in_evaluation():
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(drawn(nn.Dropout(0.0), x), x)
    assert torch.equal(drawn(nn.Dropout(1.0), x), torch.zeros(5, 4))
    assert torch.equal(drawn(nn.Dropout(0.5).eval(), x), x)


def test_masks_are_independent_between_rows_layers_and_calls():
    ones = torch.ones(64, 64)
    mask = drawn(nn.Dropout(0.5), ones) > 0
    agree = [(mask[k] == mask[k + 1]).double().mean() for k in range(63)]
    agree += [(mask[:, k] == mask[:, k + 1]).double().mean() for k in range(63)]
    assert min(agree) > 0.2 and max(agree) < 0.8

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return torch.stack([self.drop(x), self.drop(x)])

    model = ua.model.Model(nn.Sequential(nn.Linear(64, 64), Twice(), nn.Dropout(0.5)))
    key = torch.tensor(3)
    outputs = []
    for each in (model.live(), model.pure()):
        hooked = []
        each.module[1].register_forward_hook(lambda _, args, out, seen=hooked: seen.append(out))
        if isinstance(each, ua.model.BoundModule):
            each.vector.copy_(model.start)
            each(ones, key)
            each(ones, key)
        else:
            for _ in range(2):
                each(model.start, model.start_buffers, ones, key)
        first, second = hooked[0] != 0
        assert 0.4 < float((first == second).double().mean()) < 0.6  # one layer used twice draws twice
        assert torch.equal(*hooked)  # and the same key gives the same draws
        outputs.append(hooked[0])
    torch.testing.assert_close(*outputs)


# ---- BatchNorm

NORMS = [(nn.BatchNorm1d, (4,)), (nn.BatchNorm1d, (4, 3)), (nn.BatchNorm2d, (4, 3, 2)), (nn.BatchNorm3d, (4, 2, 2, 2))]


def pure_norm(norm, weights):
    pure = prepare(norm, pure=True)
    setattr(pure, WEIGHT, weights)
    return pure


@pytest.mark.parametrize("kind,shape", NORMS)
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_is_torch_nn(kind, shape, padding, affine):
    draw = torch.Generator().manual_seed(0)
    norm = kind(4, momentum=0.3, affine=affine).double()
    for p in norm.parameters():
        p.data.normal_(generator=draw)
    weights = torch.tensor([1 / 5] * 5 + [0.0] * padding, dtype=torch.float64)
    pure = pure_norm(norm, weights)
    for step in range(3):
        x = torch.randn(5 + padding, *shape, generator=draw, dtype=torch.float64) * 3 + step
        x.requires_grad_()
        expected, got = norm(x[:5]), pure(x)[:5]
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)
        (one,) = torch.autograd.grad(expected.sin().sum(), x)
        (two,) = torch.autograd.grad(got.sin().sum(), x)
        torch.testing.assert_close(two, one, atol=1e-11, rtol=0)
        torch.testing.assert_close(pure.running_mean, norm.running_mean, atol=1e-12, rtol=0)
        torch.testing.assert_close(pure.running_var, norm.running_var, atol=1e-12, rtol=0)
    torch.testing.assert_close(pure.eval()(x), norm.eval()(x), atol=1e-12, rtol=0)


@pytest.mark.parametrize("pure", [True, False])
def test_one_value_a_channel_is_normalised_as_in_evaluation(pure):
    norm = nn.BatchNorm1d(4).double()
    norm.running_mean.normal_(generator=torch.Generator().manual_seed(0))
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64)
    expected = copy.deepcopy(norm).eval()(x)
    padded = torch.cat([x, 9 * x]) if pure else x
    layer = pure_norm(norm, torch.tensor([1.0, 0.0], dtype=torch.float64)) if pure else prepare(norm, pure=False)
    torch.testing.assert_close(layer(padded)[:1], expected, atol=1e-12, rtol=0)
    assert torch.equal(layer.running_mean, norm.running_mean) and torch.equal(layer.running_var, norm.running_var)
    images = nn.BatchNorm2d(2).double()  # one image has many values a channel
    image = torch.randn(1, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    layer = pure_norm(images, torch.ones(1, dtype=torch.float64)) if pure else prepare(images, pure=False)
    torch.testing.assert_close(layer(image), images(image), atol=1e-12, rtol=0)
    torch.testing.assert_close(layer.running_var, images.running_var, atol=1e-12, rtol=0)


def test_a_wrong_input_to_batch_norm_is_still_found():
    for pure in (True, False):
        with pytest.raises(ValueError, match="expected 4D input"):
            prepare(nn.BatchNorm2d(3), pure)(torch.ones(2, 3))


def normed():
    return seeded(lambda: nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)))


NORMED_SIZES = (8, 5, 11)  # with batches of 3 all last batches have two samples


@pytest.mark.parametrize("engine", ENGINES)
def test_averaged_statistics_are_the_weighted_mean(engine):
    fed = federation(NORMED_SIZES)
    module, deltas = fedavg(normed(), fed, sgd, passes(NORMED_SIZES), rounds=2)
    run = simulate(normed(), fed, STORED, engine, rounds=2)
    torch.testing.assert_close(run.server.deltas, deltas, atol=1e-10, rtol=0)
    for name in ("1.running_mean", "1.running_var", "0.weight"):
        torch.testing.assert_close(run.model.state_dict()[name], module.state_dict()[name], atol=1e-10, rtol=0)
    values = 5 * 3 + 5 + 10 + 18 + 10  # weights, then running mean and variance
    assert run.history[0]["bytes_up"] == run.history[0]["bytes_down"] == 3 * 8 * values


@pytest.mark.parametrize("engine", ENGINES)
def test_local_statistics_stay_with_their_client(engine):
    fed = federation(NORMED_SIZES)
    mean, own = normed(), [normed() for _ in NORMED_SIZES]
    for t in range(2):
        for k, module in enumerate(own):
            with torch.no_grad():
                for p, q in zip(module.parameters(), mean.parameters(), strict=True):
                    p.copy_(q)
            train(module, *fed.train.of(k), passes(NORMED_SIZES)(k, t), sgd(module.parameters(), k, t))
        new = sum(n * vector(m) for n, m in zip(NORMED_SIZES, own, strict=True)) / sum(NORMED_SIZES)
        nn.utils.vector_to_parameters(new, mean.parameters())
    run = simulate(normed(), fed, STORED, engine, rounds=2, buffers="local")
    torch.testing.assert_close(run.server.w, vector(mean), atol=1e-10, rtol=0)
    for k, module in enumerate(own):
        expected = torch.cat([module[1].running_mean, module[1].running_var])
        own = run.task.start_buffers + run.clients[k]["buffers"]  # kept as a difference
        torch.testing.assert_close(own, expected, atol=1e-10, rtol=0)
    assert run.history[0]["bytes_up"] == run.history[0]["bytes_down"] == 3 * 8 * 48


@pytest.mark.parametrize("engine", ENGINES)
def test_frozen_statistics_are_used_and_never_move(engine):
    module = normed()
    module[1].running_mean += 0.5
    module[1].running_var *= 2
    fed = federation(NORMED_SIZES)
    expected = copy.deepcopy(module)
    expected[1].train = lambda mode=True: expected[1]  # held in evaluation mode
    expected[1].training = False
    deltas = []
    for k in range(3):
        one = copy.deepcopy(expected)
        one[1].train = lambda mode=True, norm=one[1]: norm
        train(one, *fed.train.of(k), passes(NORMED_SIZES)(k, 0), sgd(one.parameters(), k, 0))
        deltas.append(vector(one) - vector(module))
    run = simulate(module, fed, STORED, engine, buffers="freeze")
    torch.testing.assert_close(run.server.deltas, torch.stack(deltas), atol=1e-10, rtol=0)
    assert torch.equal(run.model[1].running_mean, module[1].running_mean)
    assert run.history[0]["bytes_up"] == 3 * 8 * 48


def test_the_three_policies_differ():
    fed = federation(NORMED_SIZES)
    after = [simulate(normed(), fed, STORED, rounds=2, buffers=b).model for b in ("average", "local", "freeze")]
    x = torch.ones(1, 3, dtype=torch.float64)
    outputs = [m.eval()(x) for m in after]
    assert min((outputs[a] - outputs[b]).abs().max() for a, b in ((0, 1), (0, 2), (1, 2))) > 1e-3
    with pytest.raises(ua.UnalikeError, match="Did you mean 'freeze'"):
        simulate(normed(), fed, STORED, buffers="frozen")


@pytest.mark.parametrize("buffers", ["average", "local", "freeze"])
def test_a_last_batch_of_one_sample_works_on_every_engine(buffers):
    sizes = (4, 7, 1, 9)
    fed = federation(sizes)
    runs = [simulate(normed(), fed, STORED, e, rounds=2, buffers=buffers) for e in ENGINES]
    same(runs)
    if buffers == "average":
        for run in runs[1:]:
            torch.testing.assert_close(run.server.buffers, runs[0].server.buffers, atol=1e-10, rtol=0)
        alone = simulate(normed(), fed, STORED, clients_per_round=[[2]])  # a client of one sample moves no statistics
        assert torch.equal(alone.model[1].running_var, torch.ones(5, dtype=torch.float64))
        assert alone.server.deltas.abs().max() > 1e-3


# ---- LSTM, GroupNorm


RECURRENT = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN, "ReLU": functools.partial(nn.RNN, nonlinearity="relu")}


@pytest.mark.parametrize(
    "num_layers,bidirectional,bias", [(1, False, True), (2, False, False), (1, True, True), (2, True, True)]
)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers_are_torch_nn(kind, num_layers, bidirectional, bias, batch_first, given):
    draw, options = torch.Generator().manual_seed(0), {"batch_first": batch_first, "bidirectional": bidirectional}
    layer = seeded(lambda: RECURRENT[kind](3, 4, num_layers, bias=bias, **options))
    pure = prepare(layer, pure=True)
    assert type(pure) is recurrent.PURE[type(layer)]
    x = torch.randn(5, 6, 3, generator=draw, dtype=torch.float64)
    shape = (num_layers * (2 if bidirectional else 1), 5 if batch_first else 6, 4)
    states = [torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(2 if kind == "LSTM" else 1)]
    state = None if not given else states if kind == "LSTM" else states[0]
    expected, got = layer(x, state), pure(x, state)
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)
    for output, module in ((expected, layer), (got, pure)):
        (output[0].sin().sum() + sum(t.cos().sum() for t in output[1])).backward()
        assert all(p.grad is not None for p in module.parameters())
    for one, two in zip(layer.parameters(), pure.parameters(), strict=True):
        torch.testing.assert_close(two.grad, one.grad, atol=1e-11, rtol=0)


CELLS = {
    "LSTM": nn.LSTMCell,
    "GRU": nn.GRUCell,
    "RNN": nn.RNNCell,
    "ReLU": functools.partial(nn.RNNCell, nonlinearity="relu"),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("kind", CELLS)
def test_recurrent_cells_are_torch_nn(kind, bias, given):
    layer = seeded(lambda: CELLS[kind](3, 4, bias=bias))
    pure = prepare(layer, pure=True)
    assert type(pure) is recurrent.CELLS[type(layer)] and type(prepare(layer, pure=False)) is type(layer)
    draw = torch.Generator().manual_seed(0)
    x, h, c = (torch.randn(5, n, generator=draw, dtype=torch.float64) for n in (3, 4, 4))
    state = ((h, c) if kind == "LSTM" else h) if given else None
    for parts in (lambda t: t, lambda t: t[0]):  # a batch, and a single sample
        hx = tuple(map(parts, state)) if isinstance(state, tuple) else None if state is None else parts(state)
        expected, got = layer(input=parts(x), hx=hx), pure(input=parts(x), hx=hx)
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)
    for out in (expected, got):
        (out[0].sin().sum() + out[-1].cos().sum()).backward()
    for one, two in zip(layer.parameters(), pure.parameters(), strict=True):
        torch.testing.assert_close(two.grad, one.grad, atol=1e-11, rtol=0)


class Cells(nn.Module):
    """A loop over a cell, as one writes it, and a head that is called by keyword."""

    def __init__(self, kind):
        super().__init__()
        self.cell, self.out = kind(3, 4), nn.Linear(4, 3)

    def forward(self, x):
        state = None
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return self.out(input=state[0] if isinstance(state, tuple) else state)


def old_weight_norm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and many use it
        conv, linear = nn.utils.weight_norm(nn.Conv1d(3, 4, 2)), nn.utils.weight_norm(nn.Linear(12, 3))
    return nn.Sequential(conv, nn.Tanh(), nn.Flatten(), linear)


def new_weight_norm():
    return nn.Sequential(weight_norm(nn.Conv1d(3, 4, 2)), nn.Tanh(), nn.Flatten(), weight_norm(nn.Linear(12, 3)))


MODELS = {
    "LSTMCell": (lambda: Cells(nn.LSTMCell), (4, 3)),
    "GRUCell": (lambda: Cells(nn.GRUCell), (4, 3)),
    "weight_norm": (new_weight_norm, (3, 4)),
    "weight_norm, old": (old_weight_norm, (3, 4)),
    "LSTM": (lambda: Recurrent(0.0), (4, 3)),
    "GRU": (lambda: Recurrent(0.0, nn.GRU), (4, 3)),
    "GroupNorm": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)),
        (1, 4, 4),
    ),
    "LayerNorm": (lambda: nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3)), (3,)),
    "InstanceNorm": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.InstanceNorm2d(3, affine=True), nn.Flatten(), nn.Linear(27, 3)),
        (1, 4, 4),
    ),
}


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("name", MODELS)
def test_models_train_as_in_torch(name, engine):
    make, features = MODELS[name]
    fed = federation(SIZES, features)
    module, deltas = fedavg(seeded(make), fed, sgd, passes(SIZES))
    run = simulate(seeded(make), fed, STORED, engine)
    torch.testing.assert_close(run.server.deltas, deltas, atol=1e-10, rtol=0)
    torch.testing.assert_close(vector(run.model), vector(module), atol=1e-10, rtol=0)


@pytest.mark.parametrize("make", [old_weight_norm, new_weight_norm])
def test_layers_with_weights_of_their_own_are_whole(make):
    """What a layer's weight is computed from belongs to the layer: to the head, and to the last layers."""
    task = ua.model.Model(make())
    layout = task.layout
    assert task.head == "3" and layout.head_size == 3 * 12 + 3 + 3
    names = [name for name, *_ in layout.places]
    for part, layer in (("head", "3."), ("last 1", "3."), ("first 1", "0."), ("body", "0.")):
        assert [n for n, inside in zip(names, layout.chosen(part), strict=True) if inside] == [
            n for n in names if n.startswith(layer)
        ]
    inner = [name for name, _ in task.module.named_modules() if name.startswith("3")][-1]
    assert ua.model.Model(make(), head=inner).head == "3"


@pytest.mark.parametrize("dim", [0, 1, -2, None])
def test_weight_norm_is_torch_nn(dim):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = [norm(nn.Linear(3, 4), dim=dim).double() for norm in (nn.utils.weight_norm, weight_norm)]
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    made += [weight_norm(nn.LayerNorm(3).double())] if dim == 0 else []  # a weight of one dimension
    for layer in made:
        pure = prepare(layer, pure=True)
        kinds = {type(m) for m in (*pure.modules(), *pure._forward_pre_hooks.values())}
        assert kinds & {PureWeightNorm, PureOldWeightNorm}
        gradients = []
        for one in (layer, pure):
            with torch.no_grad():
                for k, p in enumerate(one.parameters()):
                    p.copy_((1 + k) * torch.arange(1.0, 1 + p.numel()).reshape(p.shape).cos())
            gradients.append(torch.autograd.grad(one(x).sin().sum(), [*one.parameters()]))
        torch.testing.assert_close(pure(x), layer(x), atol=1e-12, rtol=0)
        torch.testing.assert_close(*gradients, atol=1e-12, rtol=0)


def test_a_stack_of_normed_weights_takes_no_loop_over_clients():
    for make in (old_weight_norm, new_weight_norm):
        pure, x = prepare(make().double(), pure=True), torch.randn(2, 5, 3, 4, dtype=torch.float64)
        values = {name: torch.stack([p.detach(), 2 * p.detach()]) for name, p in pure.named_parameters()}
        loss = lambda values, x: torch.func.functional_call(pure, values, (x,)).sum()  # noqa: B023, E731
        torch._C._functorch._set_vmap_fallback_warning_enabled(True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.func.vmap(torch.func.grad(loss))(values, x)


@pytest.mark.parametrize("make", [old_weight_norm, new_weight_norm])
def test_new_weights_are_drawn_where_weights_are_computed(make):
    task = ua.model.Model(seeded(make))
    one, again, other = task.fresh(0, 1), task.fresh(0, 1), task.fresh(0, 2)
    assert torch.equal(one, again)
    for tensor, *rest in zip(*(task.layout.views(v).values() for v in (task.start, one, other)), strict=True):
        assert all((tensor - drawn).abs().max() > 1e-3 for drawn in rest)


class Keeping(nn.Module):
    """Keeps what it has computed, as one does to look at it."""

    def __init__(self):
        super().__init__()
        self.inner, self.out, self.kept = nn.Linear(3, 4), nn.Linear(4, 3), {}

    def forward(self, x):
        self.last = self.kept["h"] = torch.tanh(self.inner(x))
        self.pair = (self.last, [self.last])
        return self.out(self.last)


@pytest.mark.parametrize("make", [old_weight_norm, Keeping])
def test_what_a_stack_has_left_behind_is_not_copied(make):
    pure = prepare(make(), pure=True)
    shape = (2, 5, 3) if make is Keeping else (2, 5, 3, 4)
    values = {name: torch.stack([p.detach(), 2 * p.detach()]) for name, p in pure.named_parameters()}

    def loss(values, x):
        return torch.func.functional_call(pure, values, (x,)).sum()

    torch.func.vmap(torch.func.grad(loss))(values, torch.ones(shape))
    again = copy.deepcopy(pure, computed(pure))
    torch.testing.assert_close(again(torch.ones(shape[1:])), pure(torch.ones(shape[1:])))
    assert copied(pure) is not pure  # nor what the last call has left


class Padded(nn.Module):
    def __init__(self, by_hand):
        super().__init__()
        self.table, self.out, self.by_hand = nn.Embedding(5, 4, padding_idx=1), nn.Linear(4, 3), by_hand

    def forward(self, x):
        rows = nn.functional.embedding(x, self.table.weight, 1) if self.by_hand else self.table(x)
        return self.out(rows.sin().mean(1))


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("method", [ua.FedAvg(), ua.Scaffold()])
def test_padding_of_no_client_is_trained(by_hand, method):
    draw = torch.Generator().manual_seed(0)
    pairs = [tuple(torch.randint(n, (k, *w), generator=draw) for n, w in ((5, (3,)), (3, ()))) for k in SIZES]
    pairs[0][0][:2] = torch.tensor([0, 2, 3])  # the samples that are tried have none
    fed = ua.Federation.from_arrays(pairs, classes=3)
    runs = [
        simulate(seeded(lambda: Padded(by_hand)), fed, STORED, engine, method=method, rounds=2)
        for engine in ("sequential", "batched")
    ]
    torch.testing.assert_close(runs[0].server.w, runs[1].server.w, atol=1e-10, rtol=0)
    start = runs[0].task.start[4:8]
    assert all(torch.equal(run.server.w[4:8], start) for run in runs)


def test_a_head_is_the_last_layer_whatever_lists_follow():
    module = nn.Module()
    module.body, module.fc = nn.Linear(3, 4), nn.Linear(4, 3)
    module.scales = nn.ParameterList([nn.Parameter(torch.ones(1))])
    assert find_head(module, None) == "fc"


class Tempered(nn.Linear):
    def forward(self, temperature, h=None):
        return super().forward(h) / temperature


def test_a_head_with_other_arguments_too():
    class Model(nn.Module):
        def __init__(self, **given):
            super().__init__()
            self.head, self.given = Tempered(3, 3), given

        def forward(self, x):
            return self.head(**({"temperature": 2.0, "h": x} if not self.given else self.given))

    fed = federation(SIZES)
    assert simulate(seeded(Model), fed, STORED).task.features == 3
    constant = Model(temperature=2.0, h=None)
    constant.head.forward = lambda temperature, h: torch.zeros(2, 3)
    with pytest.raises(ua.UnalikeError, match="head 'head' is called without a tensor: name another head"):
        simulate(constant, fed, STORED)


def test_a_convolution_called_by_keyword_in_bf16():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.out = nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.Linear(36, 3)

        def forward(self, x):
            return self.out(self.norm(self.conv(input=x)).flatten(1))

    fed = federation(SIZES, (1, 4, 4))
    run = simulate(seeded(Model), fed, STORED, "batched", precision="bf16", dtype="float32")
    assert run.engine.name == "batched"


def test_a_weight_normed_lstm_trains_as_in_torch():
    def make():
        module = Recurrent(0.0)
        weight_norm(module.recurrent, "weight_hh_l0")
        return module

    fed = federation(SIZES, (4, 3))
    _, deltas = fedavg(seeded(make), fed, sgd, passes(SIZES))
    torch.testing.assert_close(simulate(seeded(make), fed, STORED).server.deltas, deltas, atol=1e-10, rtol=0)


REPLACED = [
    nn.Linear(2, 2), nn.Dropout(0.1), nn.Dropout2d(0.1), nn.Sequential(), nn.GroupNorm(1, 2), nn.BatchNorm2d(2),
    nn.ConvTranspose2d(2, 2, 2, 2), nn.Conv2d(4, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1, groups=32),
    nn.LSTM(2, 2), nn.GRU(2, 2), nn.RNN(2, 2), nn.LSTMCell(2, 2), nn.GRUCell(2, 2), nn.RNNCell(2, 2),
    nn.MultiheadAttention(2, 1), nn.AdaptiveAvgPool2d(1), nn.EmbeddingBag(2, 2),
]  # fmt: skip


@pytest.mark.parametrize("layer", REPLACED, ids=lambda layer: type(layer).__name__)
def test_layers_can_be_called_by_keyword(layer):
    """Whatever stands in for a layer names its arguments as torch does."""
    names = [*inspect.signature(type(layer).forward).parameters]
    for pure in (False, True):
        other = prepare(nn.Sequential(nn.Conv2d(4, 32, 3, padding=1), layer), pure)
        for kinds in ((), ("alone", "depthwise", "norms")):
            quicken(other, frozenset(kinds if pure else ()))
            assert [*inspect.signature(type(other[1]).forward).parameters] == names


# ---- frozen and tied weights


@pytest.mark.parametrize("engine", ENGINES)
def test_frozen_weights_neither_move_nor_travel(engine):
    module = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)))
    module[0].requires_grad_(False)
    module[2].bias.requires_grad_(False)
    fed = federation(SIZES)
    expected, deltas = fedavg(module, fed, lambda p, k, t: sgd([q for q in p if q.requires_grad], k, t), passes(SIZES))
    run = simulate(module, fed, STORED, engine)
    torch.testing.assert_close(run.server.deltas, deltas, atol=1e-10, rtol=0)
    for (name, p), q in zip(run.model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-10, rtol=0)
        assert torch.equal(p, module.get_parameter(name)) == (not q.requires_grad)
    trainable = 4 * 4 + 4 * 3 + 3
    assert run.history[0]["bytes_up"] == run.history[0]["bytes_down"] == 3 * 8 * trainable


class Idle(nn.Module):
    """Has a layer that its output does not depend on, before the one that it does."""

    def __init__(self):
        super().__init__()
        self.idle, self.out = nn.Linear(3, 2), nn.Linear(3, 3)

    def forward(self, x):
        return self.out(x)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_weights_without_a_gradient_stay(engine, momentum):
    local = ua.LocalTraining(epochs=1, batch_size=3, lr=0.2, momentum=momentum)
    deltas = simulate(seeded(Idle), federation(SIZES), local, engine).server.deltas
    assert not deltas[:, :8].any() and deltas[:, 8:].all()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.mix, self.out = nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5)
        self.out.weight = self.embedding.weight

    def forward(self, x):
        return self.out(torch.tanh(self.mix(self.embedding(x).mean(1))))


@pytest.mark.parametrize("engine", ENGINES)
def test_tied_weights_are_one(engine):
    draw = torch.Generator().manual_seed(0)
    pairs = [(torch.randint(5, (n, 3), generator=draw), torch.randint(5, (n,), generator=draw)) for n in SIZES]
    fed = ua.Federation.from_arrays(pairs, classes=5)
    expected, deltas = fedavg(seeded(Tied), fed, sgd, passes(SIZES))
    run = simulate(seeded(Tied), fed, STORED, engine)
    torch.testing.assert_close(run.server.deltas, deltas, atol=1e-10, rtol=0)
    after = run.model
    torch.testing.assert_close(after.out.weight, expected.out.weight, atol=1e-10, rtol=0)
    assert after.out.weight is after.embedding.weight
    assert run.history[0]["bytes_up"] == 3 * 8 * (20 + 20 + 5)


# ---- what is refused


def between(layer):
    return nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 3))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "layer,words",
    [
        (nn.SyncBatchNorm(4), "Layer '1' is SyncBatchNorm"),
        (nn.BatchNorm1d(4, momentum=None), "Layer '1' has momentum=None"),
        (nn.BatchNorm1d(4, track_running_stats=False), "Layer '1' has no running statistics"),
    ],
)
def test_layers_that_no_engine_can_run(layer, words, engine):
    with pytest.raises(ua.UnalikeError) as caught:
        simulate(between(layer), federation(SIZES), LOCAL, engine)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_modules_of_torch_jit_are_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        scripted = torch.jit.script(nn.Linear(4, 4))
    for module in (scripted, between(scripted)):
        with pytest.raises(ua.UnalikeError, match=r"layers made by torch\.jit: give those that they were made of"):
            ua.model.Model(module)


class Complex(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.w, self.out = w, nn.Linear(4, 3)
        self.register_buffer("turn", torch.polar(torch.ones(4), torch.arange(4.0)))

    def forward(self, x):
        w = self.w if self.w.is_complex() else torch.view_as_complex(self.w)
        return self.out(((x.to(w.dtype) @ w) * self.turn).real)


def test_complex_numbers():
    """Parameters are refused, before their imaginary part is lost; buffers keep theirs."""
    start = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ua.UnalikeError, match=r"'w' is complex: keep it as a real one .* torch\.view_as_complex"):
        ua.model.Model(Complex(nn.Parameter(torch.view_as_complex(start))))
    module = Complex(nn.Parameter(start))
    task = ua.model.Model(module, dtype=torch.float64)
    assert task.module.turn.dtype == torch.complex128 and task.module.w.dtype == torch.float64
    torch.testing.assert_close(task.module.turn, module.turn.to(torch.complex128))
    module = Complex(nn.Parameter(start.double())).double()
    module.turn = module.turn.real + 1j * torch.arange(4.0).sin()
    fed = federation(SIZES)
    expected, _ = fedavg(module, fed, sgd, passes(SIZES))
    torch.testing.assert_close(simulate(module, fed, STORED).server.w, vector(expected), atol=1e-10, rtol=0)


class Listed(nn.Module):
    """Weights in lists, which are no layers."""

    def __init__(self):
        super().__init__()
        self.w = nn.ParameterList([nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(4, 3))])
        self.b = nn.ParameterDict({"last": nn.Parameter(torch.zeros(3))})

    def forward(self, x):
        return torch.tanh(x @ self.w[0]) @ self.w[1] + self.b["last"]


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_lists_of_parameters_are_no_layers(engine):
    fed, module = federation(SIZES), seeded(Listed)
    expected, _ = fedavg(module, fed, sgd, passes(SIZES))
    run = simulate(module, fed, STORED, engine)
    torch.testing.assert_close(run.server.w, vector(expected), atol=1e-10, rtol=0)
    assert run.task.head == "" and ua.model.Model(nn.Sequential(nn.Linear(3, 3), Listed())).head == "1"


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_are_those_of_a_vector(kind, engine):
    width, draw = 4 if kind is nn.EmbeddingBag else 12, torch.Generator().manual_seed(0)
    pairs = [tuple(torch.randint(n, (k, *w), generator=draw) for n, w in ((9, (3,)), (3, ()))) for k in SIZES]
    fed = ua.Federation.from_arrays(pairs, classes=3)
    runs = [
        simulate(
            seeded(lambda: nn.Sequential(kind(9, 4, sparse=sparse), nn.Flatten(), nn.Linear(width, 3))),  # noqa: B023
            fed, STORED, engine,
        )
        for sparse in (True, False)
    ]  # fmt: skip
    assert torch.equal(runs[0].server.w, runs[1].server.w)


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("mode,weighted", [("sum", False), ("sum", True), ("mean", False), ("max", False)])
def test_bags_are_torch_nn(mode, weighted, padding):
    layer = seeded(lambda: nn.EmbeddingBag(5, 4, mode=mode, padding_idx=padding))
    pure, draw = prepare(layer, pure=True), torch.Generator().manual_seed(0)
    x = torch.randint(5, (7, 3), generator=draw)
    x[1] = 2  # nothing but padding
    given = {"per_sample_weights": torch.rand(7, 3, generator=draw, dtype=torch.float64)} if weighted else {}
    torch.testing.assert_close(pure(x, **given), layer(x, **given), atol=1e-12, rtol=0)
    (one,), (two,) = (torch.autograd.grad(m(x, **given).sin().sum(), m.weight) for m in (layer, pure))
    torch.testing.assert_close(two, one, atol=1e-12, rtol=0)
    flat, starts = x.reshape(-1), torch.arange(0, 21, 3)
    torch.testing.assert_close(pure(flat, starts), layer(flat, starts), atol=1e-12, rtol=0)


class Packed(Recurrent):
    def forward(self, x):
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.full((len(x),), 3), batch_first=True)
        return self.out(self.recurrent(packed)[1][0][-1])


def test_packed_sequences():
    fed = federation(SIZES, (4, 3))
    expected, _ = fedavg(seeded(lambda: Packed(0.0)), fed, sgd, passes(SIZES))
    run = simulate(seeded(lambda: Packed(0.0)), fed, STORED)
    torch.testing.assert_close(run.server.w, vector(expected), atol=1e-10, rtol=0)
    with pytest.raises(ua.EngineRefused, match="cannot be stacked"):
        simulate(seeded(lambda: Packed(0.0)), fed, STORED, "batched")
    with pytest.raises(ua.UnalikeError, match="with dropout reads a PackedSequence: set its dropout to 0"):
        simulate(seeded(lambda: Packed(0.5)), fed, STORED)


class OwnNorm(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(x) * 2


class OwnLSTM(nn.LSTM):
    pass


class OwnGRU(nn.GRU):
    pass


@pytest.mark.parametrize(
    "make,features,words",
    [
        (lambda: Recurrent(0.0, OwnGRU), (4, 3), "layer 'recurrent' is a GRU of its own kind (OwnGRU)"),
        (lambda: Recurrent(0.0, OwnLSTM), (4, 3), "layer 'recurrent' is an LSTM of its own kind (OwnLSTM)"),
        (lambda: between(OwnNorm(4)), (3,), "layer '1' is OwnNorm"),
        (
            lambda: nn.Sequential(nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten(), nn.Linear(6, 3)),
            (2, 3),
            "layer '0' is InstanceNorm1d with running statistics",
        ),
    ],
)
def test_layers_that_cannot_be_stacked(make, features, words):
    sizes = (8, 5)
    fed = federation(sizes, features)
    with pytest.raises(ua.EngineRefused) as caught:
        simulate(seeded(make), fed, LOCAL, "batched")
    assert words in str(caught.value) and "\n" not in str(caught.value) and "engine='auto'" in str(caught.value)
    expected, _ = fedavg(seeded(make), fed, sgd, passes(sizes))
    run = simulate(seeded(make), fed, STORED, "auto")
    assert run.reason.startswith(("workers: ", "sequential: "))
    if "recurrent" in words:  # auto does not even try to stack these
        assert "recurrent layers" in run.reason or "one CPU core" in run.reason
    else:
        assert f"batched refused, {words}" in run.reason
    for engine in ("sequential", "workers", "loopback"):
        run = simulate(seeded(make), fed, STORED, engine)
        torch.testing.assert_close(run.server.w, vector(expected), atol=1e-10, rtol=0)


def test_an_lstm_with_projections():
    module = seeded(lambda: Recurrent(0.0))
    module.recurrent, module.out = nn.LSTM(3, 4, proj_size=2, batch_first=True).double(), nn.Linear(2, 3).double()
    fed = federation(SIZES, (4, 3))
    with pytest.raises(ua.EngineRefused, match="LSTM with projections"):
        simulate(module, fed, LOCAL, "batched")
    expected, _ = fedavg(module, fed, sgd, passes(SIZES))
    torch.testing.assert_close(simulate(module, fed, STORED).server.w, vector(expected), atol=1e-10, rtol=0)
    module.recurrent = nn.LSTM(3, 4, 2, proj_size=2, dropout=0.5, batch_first=True).double()
    with pytest.raises(ua.UnalikeError, match="whose dropout has no counter-based form: set it to 0"):
        simulate(module, fed, LOCAL)


class Hidden(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 3)

    def forward(self, x):
        return self.out(x * random.random())


def test_hidden_randomness_is_found():
    fed, module = federation(SIZES), seeded(Hidden)
    before = torch.get_rng_state()
    with pytest.warns(UserWarning, match="draws random numbers of its own"):
        simulate(module, fed, LOCAL, rounds=0)
    assert torch.equal(torch.get_rng_state(), before)


class Centred(nn.Module):
    """Subtracts a running mean; the new one is put in the old one's place, or written into it."""

    def __init__(self, in_place):
        super().__init__()
        self.out, self.in_place = nn.Linear(3, 3), in_place
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, x):
        if self.training and self.in_place:
            self.centre.mul_(0.5).add_(0.5 * x.detach().mean(0))
        elif self.training:
            self.centre = 0.5 * self.centre + 0.5 * x.detach().mean(0)
        return self.out(x - self.centre)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 3)

    def forward(self, x):
        return self.out(x if x.sum().item() > 0 else 2 * x)


@pytest.mark.parametrize(
    "make,words",
    [
        (lambda: Centred(False), "a layer of the model mixes the samples of a batch"),
        (lambda: Centred(True), "a layer of the model mixes the samples of a batch"),
        (Branching, "the model cannot be stacked over clients: vmap: It looks like you're calling .item() on a Tensor"),
    ],
)
def test_models_that_cannot_be_stacked(make, words):
    sizes = (8, 5)
    fed = federation(sizes)
    with pytest.raises(ua.EngineRefused) as caught:
        simulate(seeded(make), fed, LOCAL, "batched")
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert f"batched refused, {words}" in simulate(seeded(make), fed, LOCAL, "auto").reason
    expected, deltas = fedavg(seeded(make), fed, sgd, passes(sizes), rounds=2)
    for engine in ("sequential", "workers", "loopback"):
        run = simulate(seeded(make), fed, STORED, engine, rounds=2)
        torch.testing.assert_close(run.server.deltas, deltas, atol=1e-10, rtol=0)
        for name, value in run.model.state_dict().items():
            torch.testing.assert_close(value, expected.state_dict()[name], atol=1e-10, rtol=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow  # half a minute of compiling
def test_compiled_layers_are_the_same():
    """Inductor once overflowed on the hash of an index, and crashed on masks turned into float64."""
    dtype = torch.float64
    module = nn.Sequential(nn.Linear(3, 18), nn.Dropout(0.4), nn.BatchNorm1d(18), nn.Linear(18, 3))
    model = ua.model.Model(module, dtype=dtype)
    pure, draw = model.pure(), torch.Generator().manual_seed(0)
    x = torch.randn(4, 5, 3, generator=draw, dtype=dtype)
    weights = torch.tensor([[0.2] * 5, [0.25] * 4 + [0], [0.5, 0.5, 0, 0, 0], [1, 0, 0, 0, 0]], dtype=dtype)
    step = torch.func.vmap(lambda x, w, k: pure(model.start, model.start_buffers, x, k, w)[::2])
    eager, compiled = (fn(x, weights, torch.arange(4)) for fn in (step, torch.compile(step, dynamic=False)))
    for one, two in zip(eager, compiled, strict=True):
        torch.testing.assert_close(two, one, atol=1e-10, rtol=0)


def test_a_maximum_before_a_relu_changes_no_bit():
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3),
        nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3), nn.ReLU(),
    )  # fmt: skip
    with torch.no_grad():
        for weight in made.parameters():  # whole numbers: many ties, and windows without a positive number
            weight.copy_((3 * weight / weight.abs().max()).round())
    turned = prepare(made, pure=False)
    assert type(turned) is PoolingFirst
    assert all(isinstance(layer, type(own)) for layer, own in zip(turned, made, strict=True))
    x = torch.randint(-2, 3, (5, 2, 13, 13)).float().requires_grad_(True)
    ends = [net(x) for net in (made, turned)]
    found = [
        torch.autograd.grad(end.square().sum(), (x, *net.requires_grad_(True).parameters()))
        for net, end in zip((made, turned), ends, strict=True)
    ]
    assert torch.equal(*ends) and ends[0].any() and all(map(torch.equal, *found)) and all(g.any() for g in found[0])
    halves = [net[2:](net[:2](x)) for net in (made, turned)]  # as a model may slice it
    assert torch.equal(*halves) and torch.equal(turned[:2](x), made[:2](x))


def test_a_relu_that_somebody_watches_stays_where_it_is():
    seen = []
    made = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    made[0].register_forward_hook(lambda layer, given, out: seen.append(out))
    x = torch.randn(1, 1, 4, 4)
    assert torch.equal(prepare(made, pure=False)(x), made(x)) and [len(out[0, 0]) for out in seen] == [4, 4]
    both = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2, return_indices=True))
    assert all(map(torch.equal, prepare(both, pure=False)(x), both(x)))


def test_the_users_module_is_left_alone():
    module = normed()
    kept = copy.deepcopy(module.state_dict())
    simulate(module, federation(SIZES), LOCAL, "batched", method=Each())
    assert all(torch.equal(v, kept[n]) for n, v in module.state_dict().items())
    assert module.training and type(module[1]) is nn.BatchNorm1d
