"""The server's own work: training, outputs and averages on the public set, on tensors of its own, or on draws."""

import copy
import dataclasses as dc
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unalike as ua
from unalike import testing
from unalike.contract import Best, Field, Method
from unalike.errors import Diverged, UnalikeError

LOCAL = ua.LocalTraining(epochs=1, batch_size=5, lr=0.05, shuffle=False)
CHANGES = {"rounds": 1, "local": LOCAL, "dtype": "float64", "engine": "sequential"}


@dc.dataclass(frozen=True)
class Distils(Method):
    """FedDF's shape: clients' models are teachers on the public set."""

    steps: int = 4
    sends = {"delta": Field(), "theta": Field(read="each")}

    def done(self, me, s, m, theta):
        return {}, {"delta": theta - m.w, "theta": theta}

    def gap(self, batch):
        q = batch.rows.target
        return batch.mean((q * (q.log() - batch.output.log_softmax(-1))).sum(-1))

    def round(self, server, cohort):
        replies = cohort.call(self.client, w=server.w)
        fused = server.w + replies.mean("delta")
        teachers = server.outputs(replies.each("theta"))
        server.teachers = teachers
        server.scores = {name: float(value) for name, value in server.average(self.score, fused).items()}
        server.w = server.train(
            fused, own=0.0, loss=self.gap, rows={"target": teachers.mean(0).softmax(-1)}, steps=self.steps,
            batch_size=4, lr=0.1, momentum=0.5, clip_norm=1.0, schedule="cosine", keep="student", shuffle=False,
        )  # fmt: skip

    def score(self, batch):
        return {"loss": batch.losses, "right": (batch.output.argmax(-1) == batch.y).to(batch.output.dtype)}


@pytest.mark.parametrize("kind, dtype", [("mlp", "float32"), ("norm", "float64"), ("lstm", "float64")])
def test_every_engine_agrees(kind, dtype):
    testing.check_engines(Distils(), kind, dtype)


def test_resumed_is_uninterrupted():
    testing.check_resume(Distils())


def test_by_hand():
    """Teachers, scores and student, with torch's own modules, optimizer and schedule."""
    module, data = testing.task("mlp")
    done = ua.simulate(module, data, Distils(), clients_per_round=[[0, 2]], **CHANGES)
    x, y = data.public
    teachers, start = [], copy.deepcopy(module).double()
    for client in (0, 2):
        net = copy.deepcopy(start)
        own, labels = data.train.of(client)
        for a in range(0, len(labels), 5):
            net.zero_grad()
            F.cross_entropy(net(own[a : a + 5]), labels[a : a + 5]).backward()
            with torch.no_grad():
                for p in net.parameters():
                    p -= 0.05 * p.grad
        teachers.append(net)
    with torch.no_grad():
        outputs = torch.stack([net(x) for net in teachers])
        shares = [7 / 19, 12 / 19]
        student = copy.deepcopy(start)
        for p, *them in zip(student.parameters(), *(net.parameters() for net in teachers), strict=True):
            p.copy_(sum(share * q for share, q in zip(shares, them, strict=True)))
        assert abs(float(done.server.scores["loss"]) - float(F.cross_entropy(student(x), y))) < 1e-12
        assert abs(float(done.server.scores["right"]) - float((student(x).argmax(-1) == y).double().mean())) < 1e-12
    torch.testing.assert_close(done.server.teachers, outputs)
    target = outputs.mean(0).softmax(-1)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    for k in range(4):
        rows = slice(4 * (k % 3), 4 * (k % 3) + 4)
        optimizer.zero_grad()
        q = target[rows]
        ((q * (q.log() - student(x[rows]).log_softmax(-1))).sum(-1)).mean().backward()
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    wanted = torch.cat([p.detach().reshape(-1) for p in student.parameters()])
    torch.testing.assert_close(done.server.w, wanted, atol=1e-9, rtol=0)


def test_the_optimizer_is_kept_by_name():
    @dc.dataclass(frozen=True)
    class Twice(Method):
        """The same training in every round, with and without an optimizer that lives on."""

        keep: str | None = "own"

        def round(self, server, cohort):
            server.w = server.train(server.w, steps=3, batch_size=4, lr=0.01, optimizer="adam", keep=self.keep)

    ends = {}
    for keep in ("own", None):
        ends[keep] = [ua.simulate(*testing.task("mlp"), Twice(keep), **{**CHANGES, "rounds": r}) for r in (1, 2)]
    assert torch.equal(ends["own"][0].server.w, ends[None][0].server.w)
    assert not torch.equal(ends["own"][1].server.w, ends[None][1].server.w)
    state = ends["own"][1].server.values["_optimizer of own"]
    assert state.shape == (2 * 119 + 1,) and float(state[-1]) == 6  # two rounds of three steps


@dc.dataclass(frozen=True)
class Looks(Method):
    """Trains on the server, and takes the vector that a judge likes best."""

    judge: str = "later"
    every: int | None = 3  # a pass over the public set
    patience: int | None = None
    seen = []

    def round(self, server, cohort):
        judges = {"later": lambda batch: len(self.seen), "earlier": lambda batch: -len(self.seen)}
        best = None
        if self.every:

            def fn(batch):
                self.seen.append(batch.vector)
                return batch.weights.new_full((len(batch.y),), float(judges[self.judge](batch)))

            best = Best(fn, torch.tensor([0, 2]), self.every, self.patience)
        server.w = server.train(
            server.w, steps=8, batch_size=4, lr=0.01, optimizer="adam", schedule="cosine", shuffle=False, best=best
        )


def test_the_best_vector_of_a_training():
    """Parts of a training are one training: rate and optimizer go on. The best is kept, the first of equals too."""

    def end(*given):
        Looks.seen.clear()
        return ua.simulate(*testing.task("mlp"), Looks(*given), **CHANGES)

    plain = end("later", None)
    later = end("later")
    assert len(Looks.seen) == 1 + 3 and (plain.server.w - later.server.w).abs().max() < 1e-15
    assert torch.equal(Looks.seen[0], plain.task.start) and torch.equal(Looks.seen[-1], later.server.w)
    assert torch.equal(end("earlier").server.w, plain.task.start)
    assert torch.equal(end("earlier", 3, 3).server.w, plain.task.start) and len(Looks.seen) == 2  # and there it ended
    assert (end("later", 3, 3).server.w - plain.server.w).abs().max() < 1e-15
    for asked in ({"keep": "own", "steps": 3}, {"epochs": 1}):

        class Wrong(Method):
            def round(self, server, cohort, asked=asked):
                server.train(server.w, best=Best(None), **asked)

        with pytest.raises(UnalikeError, match="best= looks at the vectors of one training: say steps"):
            ua.simulate(*testing.task("mlp"), Wrong(), **CHANGES)


def test_on_tensors_of_its_own_on_no_samples_and_never_on_clients_data():
    class Own(Method):
        nets = {"bias": lambda sizes: nn.Linear(1, sizes["classes"])}

        def setup(self, server, everyone):
            server.bias = server.start("bias")

        def round(self, server, cohort):
            x = server.normal("x", (6, 6))
            y = server.integers("y", (6,), 3)
            server.w = server.train(server.w, data={"x": x, "y": y}, steps=2, batch_size=3)
            server.bias = server.train(
                server.bias, data=None, net="bias", own=0.0, loss=self.drawn, args={"w": server.w}, steps=3, lr=0.2
            )

        def drawn(self, batch, w):
            z = batch.uniform("z", (4, 1))
            logits = batch.call("bias", batch.vector, z) + batch.head(w, batch.normal("features", (4, 5)))
            return F.cross_entropy(logits, batch.integers("labels", (4,), 3))

    first, again = (ua.simulate(*testing.task("mlp"), Own(), **CHANGES) for _ in range(2))
    assert torch.equal(first.server.bias, again.server.bias) and torch.equal(first.server.w, again.server.w)
    assert not torch.equal(first.server.bias, first.task.nets["bias"].start)
    assert first.history[0]["bytes_up"] == first.history[0]["bytes_down"] == 0
    other = ua.simulate(*testing.task("mlp"), Own(), **CHANGES, seed=4)
    assert not torch.equal(first.server.bias, other.server.bias)

    @dc.dataclass(frozen=True)
    class Peeks(Method):
        data: str = "train"

        def round(self, server, cohort):
            server.w = server.train(server.w, data=self.data)

    for name in ("train", "test", "validation", "support"):
        with pytest.raises(UnalikeError, match=f"no clients' data, and data='{name}' was asked for"):
            ua.simulate(*testing.task("mlp"), Peeks(name), **CHANGES)


@pytest.mark.parametrize(
    "given, words",
    [
        ({"schedule": "linear"}, "'constant', or falls by a 'cosine'"),
        ({"loss": "gap"}, "failed for the server"),
        ({"steps": 0}, "steps must be a whole number above 0"),
        ({"net": "critic", "own": 0.0, "loss": lambda batch: 0.0}, "no network 'critic'"),
    ],
)
def test_what_cannot_be_is_said(given, words):
    class Asks(Method):
        def round(self, server, cohort):
            server.w = server.train(server.w, **given)

    with pytest.raises(UnalikeError, match=words):
        ua.simulate(*testing.task("mlp"), Asks(), **CHANGES)


def test_the_server_draws_for_itself():
    """Neither its orders nor its draws are those of a client."""
    seen = {}

    class Watches(Method):
        def client(self, me, s, m):
            return me.train(m.w, data="public", step=self.mine, steps=2, batch_size=4).then(self.done)

        def mine(self, theta, batches, lr):
            seen.setdefault("client", []).append((batches[0].index.tolist(), float(batches[0].uniform("a", ()))))
            return theta

        def own(self, theta, batches, lr):
            seen.setdefault("server", []).append((batches[0].index.tolist(), float(batches[0].uniform("a", ()))))
            return theta

        def round(self, server, cohort):
            cohort.call(self.client, w=server.w)
            server.w = server.train(server.w, step=self.own, steps=2, batch_size=4)

    changes = {**CHANGES, "local": ua.LocalTraining(lr=0.1), "clients_per_round": [[0]]}
    ua.simulate(*testing.task("mlp"), Watches(), **changes)
    (orders, draws), (others, more) = (zip(*seen[who], strict=True) for who in ("client", "server"))
    assert orders != others and not set(draws) & set(more)


def test_a_server_that_diverges_stops_the_run():
    class Wild(Method):
        def round(self, server, cohort):
            server.w = server.train(server.w, lr=1e200, steps=3)

    with pytest.raises(Diverged, match="Round 1: the server's own training became NaN or infinite"):
        ua.simulate(*testing.task("mlp"), Wild(), **CHANGES)


def test_statistics_stay_the_clients_and_are_those_of_the_round():
    """BatchNorm: teachers are judged with the statistics that this round's clients made; distilling changes none."""
    module, data = testing.task("norm")
    changes = {**CHANGES, "clients_per_round": [[0, 2]]}
    done = ua.simulate(module, data, Distils(), **changes)
    plain = ua.simulate(module, data, ua.FedAvg(), **changes)
    assert torch.equal(done.buffers, plain.buffers) and not torch.equal(done.buffers, done.task.start_buffers)
    bound = done.bound(plain.server.w)
    with torch.no_grad():
        output, _ = bound(data.public[0].double(), train=False)
    wanted = F.cross_entropy(output, data.public[1])
    assert math.isclose(float(done.server.scores["loss"]), float(wanted), rel_tol=1e-12)
