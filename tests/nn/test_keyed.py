"""Attention and a model's own draws: those of torch.nn, on every engine, from a key."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from reference import ENGINES, federation, seeded, simulate
from torch import nn
from torch.func import grad, vmap

import unalike as ua
from unalike.nn.keyed import KEY, KeyedAttention, OwnCalls, attention, show_compiler
from unalike.nn.layers import prepare

SIZES = (7, 4, 11)  # with batches of 3: last batches of one, one and two
LOCAL = ua.LocalTraining(epochs=1, batch_size=3, lr=0.2)
F64 = torch.float64


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


# ---- attention

SEEN = torch.tensor([[True, False, True, True], [True, True, False, True], [False] * 4])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": 0.3},
        {"is_causal": True},
        {"attn_mask": SEEN},
        {"attn_mask": torch.where(SEEN, normal(3, 4, seed=1), -torch.inf)},
    ],
    ids=["plain", "scaled", "causal", "mask", "added mask"],
)
def test_attention_is_torch_nn(options):
    q, k, v = normal(2, 2, 3, 5), normal(2, 2, 4, 5, seed=1), normal(2, 2, 4, 6, seed=2)
    if options.get("attn_mask") is not None:  # a query that sees nothing: PyTorch's gradient there is nan
        options = {"attn_mask": options["attn_mask"][:2]}
        q = q[..., :2, :]
    q.requires_grad_()
    expected, got = F.scaled_dot_product_attention(q, k, v, **options), attention(q, k, v, **options)
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)
    (one,), (two,) = (torch.autograd.grad(out.sin().sum(), q) for out in (expected, got))
    torch.testing.assert_close(two, one, atol=1e-12, rtol=0)


def test_a_query_that_sees_nothing_gets_zeros():
    q = normal(3, 5).requires_grad_()
    out = attention(q, normal(4, 5), normal(4, 6), attn_mask=SEEN)
    assert out[:2].abs().min() > 0 and not out[2].any()
    (g,) = torch.autograd.grad(out.sum(), q)
    assert g.isfinite().all() and not g[2].any()


def test_grouped_queries():
    q, k, v = normal(2, 4, 3, 5), normal(2, 2, 3, 5, seed=1), normal(2, 2, 3, 5, seed=2)
    expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(attention(q, k, v, enable_gqa=True), expected, atol=1e-12, rtol=0)


LAYERS = {
    "usual": {},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False},
    "own keys": {"add_bias_kv": True, "add_zero_attn": True},
    "other widths": {"kdim": 3, "vdim": 2, "batch_first": True},
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("masked", [False, True])
def test_multihead_attention_is_torch_nn(name, masked):
    options = LAYERS[name]
    layer = seeded(lambda: nn.MultiheadAttention(6, 2, **options))
    pure = prepare(layer, pure=True)
    assert type(pure) is KeyedAttention
    turn = (lambda t: t) if options.get("batch_first") else (lambda t: t.transpose(0, 1))
    q = turn(normal(2, 3, 6))
    k = turn(normal(2, 4, options.get("kdim", 6), seed=1))
    v = turn(normal(2, 4, options.get("vdim", 6), seed=2))
    padding = torch.tensor([[False, False, True, False], [False] * 4])
    blocked = torch.zeros(4, 3, 4, dtype=torch.bool)
    blocked[1, 2, 1] = blocked[3, 0, 3] = True
    masks = {"key_padding_mask": padding, "attn_mask": blocked} if masked else {}
    for weights in ({}, {"average_attn_weights": False}, {"need_weights": False}):
        expected, got = layer(q, k, v, **masks, **weights), pure(q, k, v, **masks, **weights)
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)
    if "kdim" not in options:
        torch.testing.assert_close(pure(q, q, q), layer(q, q, q), atol=1e-12, rtol=0)
        torch.testing.assert_close(pure(q[:, 0], q[:, 1], q[:, 1]), layer(q[:, 0], q[:, 1], q[:, 1]))


def test_dropout_within_attention_keeps_its_share():
    layer = prepare(nn.MultiheadAttention(2, 1, dropout=0.3), pure=False)
    setattr(layer, KEY, torch.tensor(5))
    _, weights = layer(*[torch.zeros(400, 2)] * 3)
    kept = weights > 0
    assert float(kept.double().mean()) == pytest.approx(0.7, abs=0.01)
    torch.testing.assert_close(weights[kept].unique(), torch.tensor([1 / 400 / 0.7]))
    torch.testing.assert_close(layer.eval()(*[torch.zeros(4, 2)] * 3)[1], torch.full((4, 4), 0.25))


def test_a_stack_of_attention_takes_no_loop_over_clients():
    torch._C._functorch._set_vmap_fallback_warning_enabled(True)
    encoder = prepare(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).double(), pure=True)
    x = normal(2, 3, 5, 4)

    def user(q):
        with OwnCalls(torch.tensor(0), stacked=True):
            return F.scaled_dot_product_attention(q, q, q).sum()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vmap(grad(lambda x: encoder(x).sum()))(x)
        vmap(grad(user))(normal(2, 3, 2, 5, 4))
        with torch.no_grad():
            vmap(encoder.eval())(x)


# ---- runs


class Encoder(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, **options)
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.encoder(x).mean(1))


class Own(nn.Module):
    """A model whose forward draws by itself."""

    def __init__(self, change):
        super().__init__()
        self.inner, self.out, self.change = nn.Linear(4, 4), nn.Linear(4, 3), change

    def forward(self, x):
        h = torch.tanh(self.inner(x))
        return self.out((self.change(h) if self.training else h).mean(1))


DRAWING = {
    "TransformerEncoderLayer": Encoder,
    "F.dropout": lambda: Own(lambda h: F.dropout(h, 0.5)),
    "F.dropout1d": lambda: Own(lambda h: F.dropout1d(h, 0.5)),
    "attention": lambda: Own(lambda h: F.scaled_dot_product_attention(h, h, h, dropout_p=0.5)),
    "rand": lambda: Own(lambda h: h * torch.rand(h.shape) + torch.rand(4)),
    "randn_like": lambda: Own(lambda h: h + torch.randn_like(h)),
    "randn": lambda: Own(lambda h: h + torch.randn(*h.shape, dtype=h.dtype)),
    "bernoulli": lambda: Own(lambda h: h * torch.bernoulli(torch.full_like(h, 0.3))),
    "bernoulli_": lambda: Own(lambda h: h * torch.empty_like(h).bernoulli_(0.3)),
    "exponential_": lambda: Own(lambda h: h * torch.empty_like(h).exponential_(2.0)),
    "normal": lambda: Own(lambda h: torch.normal(h, 0.5) + torch.normal(0.0, 0.1, (4,), dtype=h.dtype)),
    "gumbel_softmax": lambda: Own(lambda h: F.gumbel_softmax(h, 0.7) + F.gumbel_softmax(h, hard=True, dim=1)),
    "AlphaDropout": lambda: Own(nn.AlphaDropout(0.5)),
    "FeatureAlphaDropout": lambda: Own(nn.FeatureAlphaDropout(0.5)),
    "RReLU": lambda: Own(nn.RReLU()),
    "uniform_ and normal_": lambda: Own(lambda h: h + torch.empty_like(h).uniform_(-1, 1) * h.clone().normal_(0, 2)),
}


@pytest.mark.parametrize("name", DRAWING)
def test_draws_of_a_model_are_the_same_on_every_engine(name):
    fed, make = federation(SIZES, (5, 4)), DRAWING[name]
    before = torch.get_rng_state()
    engines = ENGINES if name in ("TransformerEncoderLayer", "F.dropout") else ("sequential", "batched")
    runs = [simulate(seeded(make), fed, LOCAL, e) for e in engines]
    for run in runs[1:]:
        torch.testing.assert_close(run.server.deltas, runs[0].server.deltas, atol=1e-10, rtol=0)
    assert torch.equal(simulate(seeded(make), fed, LOCAL).server.deltas, runs[0].server.deltas)  # bit for bit
    other = simulate(seeded(make), fed, LOCAL, seed=1)
    assert (other.server.deltas - runs[0].server.deltas).abs().max() > 1e-3
    assert torch.equal(torch.get_rng_state(), before)


def test_draws_have_their_laws():
    with OwnCalls(torch.tensor(3)):
        uniform, gauss, coins = torch.rand(20000), torch.randn(20000), torch.bernoulli(torch.full((20000,), 0.3))
        dropped, again = F.dropout(torch.ones(20000), 0.2), F.dropout(torch.ones(20000), 0.2)
        own = torch.rand(2, generator=torch.Generator().manual_seed(0))
    assert float(uniform.mean()) == pytest.approx(0.5, abs=0.01) and uniform.min() >= 0 and uniform.max() < 1
    assert float(gauss.mean()) == pytest.approx(0, abs=0.03) and float(gauss.std()) == pytest.approx(1, abs=0.03)
    assert float(coins.mean()) == pytest.approx(0.3, abs=0.015)
    assert float((dropped > 0).double().mean()) == pytest.approx(0.8, abs=0.015)
    assert not torch.equal(dropped, again)
    assert torch.equal(own, torch.rand(2, generator=torch.Generator().manual_seed(0)))


def test_further_draws_have_their_laws():
    ones, x, shares = torch.ones(20000, dtype=F64), normal(200, 100), torch.tensor([0.5, 0.3, 0.2])
    with OwnCalls(torch.tensor(3)):
        late, shifted = torch.empty(20000).exponential_(2.0), torch.normal(3 * ones, 0.5)
        soft = F.gumbel_softmax(x, 0.5)
        hard = F.gumbel_softmax(shares.log().expand(20000, 3), hard=True)
        dropped, leaky = F.alpha_dropout(ones, 0.3, training=True), F.rrelu(-ones, 0.1, 0.5, training=True)
        noisy = F.alpha_dropout(x, 0.3, training=True)
        channels = F.feature_alpha_dropout(x[..., None].expand(-1, -1, 3), 0.3, training=True)
    assert late.min() > 0 and float(late.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(late.std()) == pytest.approx(0.5, abs=0.02)
    assert float(shifted.mean()) == pytest.approx(3, abs=0.02) and float(shifted.std()) == pytest.approx(0.5, abs=0.02)
    torch.testing.assert_close(soft.sum(-1), ones[:200])
    assert hard.unique().tolist() == [0, 1]
    torch.testing.assert_close(hard.mean(0), shares, atol=0.015, rtol=0)
    theirs = F.alpha_dropout(ones, 0.3, training=True).unique()
    torch.testing.assert_close(dropped.unique(), theirs, atol=1e-12, rtol=0)
    assert float((dropped > 0).double().mean()) == pytest.approx(0.7, abs=0.015)
    for out in (noisy, channels):  # mean and variance stay
        assert float(out.mean()) == pytest.approx(0, abs=0.04) and float(out.std()) == pytest.approx(1, abs=0.04)
    assert all((channels[..., k] == channels[..., 0]).all() for k in (1, 2)) and noisy.unique().numel() > 10000
    assert leaky.min() >= -0.5 and leaky.max() <= -0.1 and float(leaky.mean()) == pytest.approx(-0.3, abs=0.01)


def test_no_gradient_flows_through_torch_normal():
    mean, std = (torch.ones(4, requires_grad=True) for _ in range(2))
    with OwnCalls(torch.tensor(3)):
        drawn = torch.normal(mean, std)
    assert not drawn.requires_grad and not torch.normal(mean, std).detach().requires_grad
    with OwnCalls(torch.tensor(3)):
        assert torch.normal(torch.ones(2), torch.ones(2, dtype=F64)).dtype == torch.float32
        assert torch.rand_like(input=mean).shape == F.dropout(input=mean, p=0.5).shape == mean.shape


def test_a_model_that_draws_nothing_is_called_as_it_is():
    task = ua.model.Model(nn.Linear(3, 2))
    task.check(torch.ones(2, 3), torch.tensor([0, 1]))
    assert not task.own_calls and not task.live().keyed


def test_the_compiler_asks_about_all_draws():
    def draw(x, key):
        with OwnCalls(key):
            return torch.randn_like(x) + torch.rand_like(x) + torch.normal(x, 1.0)

    show_compiler()
    x, key = normal(3, 4), torch.tensor(7)
    compiled = torch.compile(draw, backend="eager", fullgraph=True)(x, key)
    assert torch.equal(compiled, draw(x, key))


@pytest.mark.slow  # half a minute of tracing
def test_compiled_draws_are_the_eager_ones(monkeypatch):
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **k: compile(f, **{**k, "backend": "aot_eager"}))
    fed = federation((6, 3), (5, 4))
    for name in ("TransformerEncoderLayer", "F.dropout", "attention", "randn_like", "normal", "gumbel_softmax"):
        eager, compiled = (simulate(seeded(DRAWING[name]), fed, LOCAL, "batched", compile=c) for c in (False, True))
        assert not compiled.engine.notes
        torch.testing.assert_close(compiled.server.deltas, eager.server.deltas, atol=1e-10, rtol=0)


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_a_resumed_run_draws_as_if_it_had_never_stopped(tmp_path, engine):
    fed, folder = federation((6, 3), (5, 4)), str(tmp_path / "run")
    options = {"method": ua.Scaffold(), "engine": engine}
    whole = simulate(seeded(Encoder), fed, LOCAL, rounds=2, **options)
    simulate(seeded(Encoder), fed, LOCAL, rounds=1, folder=folder, **options)
    again = simulate(seeded(Encoder), fed, LOCAL, rounds=2, folder=folder, resume=True, **options)
    assert torch.equal(whole.server.w, again.server.w)
