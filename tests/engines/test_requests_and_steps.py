"""Corners an independent review found: each was wrong once."""

import dataclasses as dc

import pytest
import torch

import unalike as ua
from unalike import testing
from unalike.contract.requests import Train
from unalike.engines.batched import graphs
from unalike.engines.batched.step import Step, StepKind

ENGINES = testing.ENGINES


@dc.dataclass(frozen=True)
class KeepsTheMessage(ua.Method):
    """Keeps the received vector, and the server writes into its own in place."""

    keeps = {"last": ua.Field()}

    def done(self, me, s, m, theta):
        return {"last": m.w}, {"delta": theta - m.w}

    def round(self, server, cohort):
        server.w += cohort.call(self.client, w=server.w).mean("delta")


@pytest.mark.parametrize("engine", ENGINES)
def test_kept_state_does_not_change_with_the_server(engine):
    module, _ = testing.task("mlp")
    run = testing.run(KeepsTheMessage(), "mlp", engine=engine, rounds=1)
    start = torch.nn.utils.parameters_to_vector(module.parameters())
    assert torch.equal(run.clients[0]["last"], start.detach())
    assert not torch.equal(run.server.w, start)


@dc.dataclass(frozen=True)
class Nested(ua.Method):
    def client(self, me, s, m):
        return me.average(self.rows, m.w, pair=(me.n, me.relative_size)).then(self.done)

    def rows(self, batch, pair):
        return batch.losses * pair[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_nested_tensors_in_args_are_refused(engine):
    with pytest.raises(ua.UnalikeError, match="give each tensor a name of its own"):
        testing.run(Nested(), "mlp", engine=engine, rounds=1)


@dc.dataclass(frozen=True)
class Twice(ua.Method):
    """Trains twice in one exchange, with so many steps each; reports what `me` says afterwards."""

    first: int = 2
    second: int = 2

    sends = {"delta": ua.Field(), "K": ua.Field("scalar", read="each"), "lr": ua.Field("scalar", read="each")}

    def client(self, me, s, m):
        return me.train(m.w, steps=self.first).then(self.again)

    def again(self, me, s, m, theta):
        if not self.second:
            return self.end(me, s, m, theta)
        return me.train(theta, steps=self.second, lr=0.5 * me.first_lr).then(self.end)

    def end(self, me, s, m, theta):
        return {}, {"delta": theta - m.w, "K": me.steps, "lr": me.lr}

    def round(self, server, cohort):
        replies = cohort.call(self.client, w=server.w)
        server.w, server.K, server.lr = server.w + replies.mean("delta"), replies.each("K"), replies.each("lr")


@pytest.mark.parametrize("engine", ENGINES)
def test_k_and_lr_are_what_was_done(engine):
    run = testing.run(Twice(2, 5), "mlp", engine=engine, rounds=1)
    assert (run.server.K == 5).all() and torch.allclose(run.server.lr, torch.tensor(0.025))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_kept_optimizer_goes_on_within_an_exchange(engine):
    local = ua.LocalTraining(steps=1, batch_size=None, lr=0.05, momentum=0.9, keep_optimizer=True)

    @dc.dataclass(frozen=True)
    class Same(Twice):
        def again(self, me, s, m, theta):
            return me.train(theta, steps=self.second).then(self.end) if self.second else self.end(me, s, m, theta)

    halves = testing.run(Same(2, 2), "mlp", engine=engine, local=local, dtype="float64", rounds=2)
    whole = testing.run(Same(4, 0), "mlp", engine=engine, local=local, dtype="float64", rounds=2)
    assert (halves.server.w - whole.server.w).abs().max() < 1e-12


@dc.dataclass(frozen=True)
class Silent(ua.Method):
    """Keeps its vector and sends a number."""

    keeps = {"model": ua.Field()}
    sends = {"one": ua.Field("scalar")}

    def done(self, me, s, m, theta):
        return {"model": theta}, {"one": 1.0}

    def round(self, server, cohort):
        cohort.call(self.client, w=server.w)


@pytest.mark.parametrize("engine", ENGINES)
def test_divergence_is_noticed_where_nothing_is_sent(engine):
    local = ua.LocalTraining(epochs=2, batch_size=5, lr=[0.1, 0.1, 3e38, 0.1, 0.1, 0.1])
    with pytest.raises(ua.Diverged, match="client 2 ") as caught:
        testing.run(Silent(), "mlp", engine=engine, local=local)
    assert caught.value.clients == [2]


@dc.dataclass(frozen=True)
class Penalty(ua.Method):
    """An extra loss on the weights themselves, and a sum over samples: gradient μθ, so the same as a pull."""

    mu: float = 0.5
    affine: bool = False

    def client(self, me, s, m):
        how = {"pull": self.mu} if self.affine else {"loss": self.extra}
        return me.train(m.w, **how).then(self.done)

    def extra(self, batch):
        zero = batch.sum(batch.features).sum() * 0
        return self.mu / 2 * batch.vector.square().sum() + zero


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ("mlp", "cnn"))
def test_an_extra_loss_sees_the_vector(engine, kind):
    penalty, pull = (testing.run(Penalty(affine=a), kind, engine=engine, dtype="float64") for a in (False, True))
    assert (penalty.server.w - pull.server.w).abs().max() < 1e-12


@dc.dataclass(frozen=True)
class Elsewhere(ua.Method):
    """An average that calls the model with another vector."""

    sends = {"delta": ua.Field(), "seen": ua.Field("scalar")}

    def client(self, me, s, m):
        return me.average(self.rows, m.w, other=0.5 * m.w).then(self.measured)

    def rows(self, batch, other):
        return batch.forward(other)[0].square().sum(-1)

    def measured(self, me, s, m, seen):
        return {}, {"seen": seen, "delta": 0 * m.w}

    def round(self, server, cohort):
        server.seen = cohort.call(self.client, w=server.w).mean("seen")


def test_averages_elsewhere_with_an_aligned_layout(monkeypatch):
    """On CUDA vectors are padded to 64 bytes a tensor: so here, on the CPU."""
    plain = testing.run(Elsewhere(), "mlp", engine="sequential", dtype="float64")
    pure = ua.model.Model.pure
    monkeypatch.setattr(ua.model.Model, "pure", lambda self, **_: pure(self, 16))
    padded = testing.run(Elsewhere(), "mlp", engine="batched", dtype="float64")
    assert torch.allclose(plain.server.seen, padded.server.seen, atol=1e-12, rtol=0)
    for method in (ua.Scaffold(), Penalty()):
        one, two = (testing.run(method, "mlp", engine=e, dtype="float64") for e in ("sequential", "batched"))
        assert testing.difference(one, two) < 1e-12


def test_what_cannot_be_captured_falls_back(monkeypatch):
    """Without a GPU: a capture that fails leaves the run as it would have been."""

    def refused(*args):
        raise RuntimeError("operation not permitted when stream is capturing")

    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **k: compile(f, **{**k, "backend": "eager"}))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", refused)
    build = Step.__init__

    def graph_mode(self, *args):
        build(self, *args)
        self.mode = "graph"

    monkeypatch.setattr(Step, "__init__", graph_mode)
    changes = {"rounds": 1, "clients_per_round": [[0, 2]], "dtype": "float64"}
    run = testing.run(ua.Scaffold(), "mlp", engine="batched", compile=True, **changes)
    program = next(iter(run.engine.steps.values()))[0]
    assert program.mode == "compiled" and "not captured" in program.notes[0]
    assert testing.difference(run, testing.run(ua.Scaffold(), "mlp", engine="sequential", **changes)) < 1e-12


def test_a_number_that_changes_with_the_round_is_no_new_step():
    class Growing(ua.Method):
        def client(self, me, s, m):
            return me.train(m.w, pull=0.1 * (me.round + 1)).then(self.done)

    run = testing.run(Growing(), "mlp", engine="batched", rounds=6)
    assert len(run.engine.steps) == 1


@pytest.mark.parametrize("over", ("batch", "epoch"))
@pytest.mark.parametrize("drop_last", (False, True))
def test_averages_over_mini_batches(over, drop_last):
    class Measure(ua.Method):
        sends = {"loss": ua.Field("scalar", read="each")}

        def client(self, me, s, m):
            return me.losses(m.w, over=over).then(self.got)

        def got(self, me, s, m, loss):
            return {}, {"loss": loss}

        def round(self, server, cohort):
            server.loss = cohort.call(self.client, w=server.w).each("loss")

    module, fed = testing.task("mlp")
    clients = [fed.train.of(k) for k in (0, 2, 3)]  # 7, 12 and 9 samples
    fed = ua.Federation.from_arrays(clients, classes=3)

    def loss(engine, shuffle):
        local = ua.LocalTraining(epochs=1, batch_size=4, shuffle=shuffle, drop_last=drop_last)
        return ua.simulate(module, fed, Measure(), rounds=1, local=local, engine=engine, dtype="float64").server.loss

    want = []
    for x, y in clients:
        n = 4 if over == "batch" else len(y) // 4 * 4 if drop_last else len(y)
        want.append(torch.nn.functional.cross_entropy(module.double()(x[:n].double()), y[:n]).item())
    for engine in ENGINES:
        assert torch.allclose(loss(engine, False), torch.tensor(want, dtype=torch.float64), atol=1e-12, rtol=0)
    assert torch.allclose(loss("sequential", True), loss("batched", True), atol=1e-12, rtol=0)


def test_a_smaller_cohort_compiles_nothing_new(monkeypatch):
    compile, graphs = torch.compile, []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda f, **k: compile(f, **{**k, "backend": counting, "fullgraph": True}))
    for cohorts in ([[0, 1, 2, 3, 5]], [[0, 1, 2, 3, 5], [0, 2, 3, 5]]):  # 5 and 4 share their steps
        changes = {"rounds": len(cohorts), "clients_per_round": cohorts, "dtype": "float64"}
        run = testing.run(ua.Scaffold(), "linear", engine="batched", compile=True, **changes)
        assert testing.difference(run, testing.run(ua.Scaffold(), "linear", engine="sequential", **changes)) < 1e-12
        assert len(graphs) == 2  # all five, and the prefix in which the longest goes on


def test_steps_in_one_compiled_call(monkeypatch):
    """Where many follow one another, and the rest one by one: 9 steps are two calls of 4 and one of 1."""
    compile, called = torch.compile, []

    def noted(f, **k):
        whole = compile(f, **{**k, "backend": "eager", "fullgraph": True})
        return lambda *args: (called.append(f.__name__), whole(*args))[1]

    monkeypatch.setattr(torch, "compile", noted)
    monkeypatch.setattr(graphs, "MANY", 5)
    changes = {"rounds": 1, "clients_per_round": [[0, 1, 2, 3]], "dtype": "float64"}
    changes["local"] = ua.LocalTraining(steps=9, batch_size=5, lr=0.05, momentum=0.9)
    run = testing.run(ua.Scaffold(), "linear", engine="batched", compile=True, **changes)
    assert called == ["_steps_at"] * 3 + ["_step_at"] * 2  # the first of each is a trial
    assert testing.difference(run, testing.run(ua.Scaffold(), "linear", engine="sequential", **changes)) < 1e-12


def test_few_programs_serve_cohorts_of_all_sizes(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda f, **k: f)
    run = testing.run(ua.FedAvg(), "linear", engine="batched", rounds=0, compile=True)
    setting = StepKind.of(run.local, Train(run.server.w))
    widths = [run.engine.step(setting, w).width for w in (15, 14, 20, 15, 13, 24, 28, 9, 11, 30)]
    assert widths == [15, 15, 20, 15, 15, 30, 30, 12, 12, 30]
    assert [p.width for p in run.engine.steps[setting]] == [15, 20, 30, 12]
