"""Clients with different networks: every engine, resuming, BatchNorm, what is counted, what is refused."""

import dataclasses as dc

import pytest
import torch
from small import ENGINES, LOCAL, assert_same, federation, model, refused, run
from torch import nn

import unalike as ua

NAMES = ["small", "large", "small", "large", "large", "small"]
METHODS = [ua.FedAvg(), ua.FedProx(mu=0.1), ua.Scaffold(), ua.FedAvgM()]


def large():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 3))


def several(method=None, **changes):
    return run(method, module={"small": model(), "large": large()}, **{"architecture": NAMES, **changes})


def distance(a, b):
    return max(float((a[name] - b[name]).abs().sum()) for name in a.names)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
@pytest.mark.parametrize(("dtype", "near"), [("float32", 1e-5), ("float64", 1e-9)])
def test_every_engine_gives_the_same(method, dtype, near):
    first, *others = (several(method, engine=engine, dtype=dtype) for engine in ENGINES)
    assert distance(first.server.w, ua.Vectors({n: t.start for n, t in first.tasks.items()})) > 1e-3
    for other in others:
        assert distance(first.server.w, other.server.w) < near
        assert distance(first.server.buffers, other.server.buffers) < near
        for mine, yours in zip(first.history, other.history, strict=True):
            assert mine["bytes_up"] == yours["bytes_up"] and mine["bytes_down"] == yours["bytes_down"]
            assert mine["test_loss"] == pytest.approx(yours["test_loss"], abs=1e-4)
            assert mine["clients_loss"] == pytest.approx(yours["clients_loss"], abs=1e-4)
        for k in range(6):
            for name, value in first.clients[k].items():
                torch.testing.assert_close(value, other.clients[k][name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("engine", ["sequential", "batched", "loopback"])
@pytest.mark.parametrize("method", [ua.Scaffold(), ua.FedAvgM()], ids=lambda m: m.name)
def test_resumed_equals_uninterrupted(method, engine, tmp_path):
    local = ua.LocalTraining(epochs=1, batch_size=4, lr=0.1, momentum=0.9, keep_optimizer=True)
    whole = several(method, engine=engine, rounds=4, local=local)
    several(method, engine=engine, rounds=2, local=local, folder=tmp_path / "run")
    again = several(method, engine=engine, rounds=4, local=local, folder=tmp_path / "run", resume=True)
    assert again.server.w.names == ["small", "large"]
    for name, value in whole.server.values.items():
        assert distance(value, again.server.values[name]) == 0, name
    for k in range(6):
        assert all(torch.equal(value, again.clients[k][name]) for name, value in whole.clients[k].items())
    seconds = {"seconds", "seconds_evaluation"}
    strip = lambda lines: [{k: v for k, v in line.items() if k not in seconds} for line in lines]  # noqa: E731
    assert strip(whole.history) == strip(again.history)


def test_a_folder_of_other_networks_or_other_clients_is_another_run(tmp_path):
    several(rounds=1, folder=tmp_path / "run")
    with refused("holds another run"):
        several(rounds=2, folder=tmp_path / "run", resume=True, architecture=NAMES[::-1])
    with refused("models.large.fingerprint.*pass a function that builds the model"):
        other = {"small": model(), "large": nn.Sequential(*large()[:-1], nn.Linear(6, 3))}
        run(module=other, architecture=NAMES, rounds=2, folder=tmp_path / "run", resume=True)


# ---------------------------------------------------------------- what it computes


HALVES = [ua.FedAvg(), ua.Scaffold(), ua.FedAdam(), ua.QFedAvg(), ua.FedNova(), ua.FedFa(), ua.FedDyn(), ua.FedDC()]


@pytest.mark.parametrize("method", HALVES, ids=lambda m: m.name)
def test_each_half_is_a_federation_of_its_own(method):
    """Two copies of one network: what each computes is what a run of its clients alone computes. The clients are
    numbered anew there, so that nothing may be drawn: full batches."""
    local = ua.LocalTraining(epochs=2, batch_size=None, lr=0.1)
    given = {"local": local, "clients_per_round": 1.0, "dtype": "float64", "buffers": "average"}
    both = run(method, module={"a": model(True), "b": model(True)}, architecture=list("aababb"), **given)
    fed = federation()
    for name, ids in {"a": [0, 1, 3], "b": [2, 4, 5]}.items():
        half = ua.Federation.from_arrays([fed.train.of(k) for k in ids], test=fed.global_test, classes=3)
        alone = run(method, module=model(True), data=half, **given)
        torch.testing.assert_close(both.server.w[name], alone.server.w, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(both.server.buffers[name], alone.server.buffers, rtol=1e-12, atol=1e-12)
        assert both.history[-1][f"test_{name}_loss"] == pytest.approx(alone.history[-1]["test_loss"], rel=1e-9)


def test_two_copies_draw_as_one_network_does():
    """The same clients in the same rounds with shuffled batches: one network's clients take part, the other's not."""
    rounds = [[0, 2], [2, 5], [0, 5]]
    both = several(clients_per_round=rounds)
    alone = run(module=model(), clients_per_round=rounds)
    torch.testing.assert_close(both.server.w["small"], alone.server.w, rtol=0, atol=0)
    assert torch.equal(both.server.w["large"], both.tasks["large"].start)  # nobody brought it
    for method in (ua.QFedAvg(), ua.FedNova(), ua.FedFa()):  # which divide by sums of their own
        rests = several(method, clients_per_round=rounds)
        assert torch.equal(rests.server.w["large"], rests.tasks["large"].start)
        assert not torch.equal(rests.server.w["small"], rests.tasks["small"].start)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_network_without_participants_stays(engine):
    rounds = [[1, 3], [0, 1, 2], [4]]
    seen = []

    class Watch(ua.Callback):
        def on_round(self, run, line):
            seen.append((run.server.w.clone(), run.server.buffers.clone(), line))

    several(engine=engine, clients_per_round=rounds, callbacks=[Watch()])
    (first, statistics, line), (second, later, _), (third, last, _) = seen
    assert torch.equal(first["small"], model_vector(model())) and not torch.equal(first["small"], second["small"])
    assert torch.equal(second["small"], third["small"]) and not torch.equal(second["large"], third["large"])
    assert statistics["small"].numel() == 0 and not torch.equal(later["large"], last["large"])
    assert line["bytes_up"] == 2 * 4 * (first["large"].numel() + statistics["large"].numel()) == line["bytes_down"]


def model_vector(module):
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def test_local_statistics_stay_with_their_clients():
    done = several(buffers="local", engine="batched", clients_per_round=1.0)
    assert "buffers" in done.clients[1] and "buffers" not in done.clients[0]
    assert done.clients[1]["buffers"].shape == (14,)


def test_what_is_reported_is_the_mean_over_clients():
    line = several(architecture="small:4, large:2").history[-1]
    assert line["test_loss"] == pytest.approx((4 * line["test_small_loss"] + 2 * line["test_large_loss"]) / 6)


# ---------------------------------------------------------------- methods that read more


@dc.dataclass(frozen=True)
class Everything(ua.Method):
    """One field of every kind."""

    keeps = {"head": ua.Field("head")}
    sends = {
        "delta": ua.Field(read="each"),
        "body": ua.Field("body"),
        "head": ua.Field("head"),
        "loss": ua.Field("scalar", read="each", weight="one"),
    }

    def setup(self, server, everyone):
        server.trail = [server.w, 2 * server.w]
        server.models = server.init(2)

    def client(self, me, s, m):
        return me.losses(m.w).then(self.measured)

    def measured(self, me, s, m, loss):
        return me.train(m.w * m.scale, push=m.extra).then(self.done, loss=loss)

    def done(self, me, s, m, theta, loss):
        body, head = me.layout.body(theta - m.w), me.layout.head(theta - m.w)
        return {"head": head}, {"delta": theta - m.w, "body": body, "head": head, "loss": loss}

    def round(self, server, cohort):
        scale = ua.PerClient(torch.linspace(0.9, 1.1, len(cohort)))
        extra = ua.PerClient(ua.Vectors({n: torch.zeros(rows, server.w[n].numel()) for n, rows in self.rows(cohort)}))
        replies = cohort.call(self.client, w=server.w, scale=scale, extra=extra)
        assert replies.each("loss").shape == (len(cohort),)
        server.seen = {name: [*map(int, replies.ids_of(name))] for name in replies.architectures}
        assert {n: len(rows) for n, rows in replies.each("delta").items()} == dict(self.rows(cohort))
        server.head = replies.mean("head")
        step = server.layout.join(replies.mean("body"), replies.mean("head"))
        server.w = server.w + (step if isinstance(server.head, ua.Vectors) else replies.mean("delta"))

    def rows(self, cohort):
        return [(n, sum(NAMES[k] == n for k in cohort.ids)) for n in ("small", "large")]


@pytest.mark.parametrize("engine", ENGINES)
def test_fields_of_every_kind(engine, tmp_path):
    done = several(
        Everything(), engine=engine, clients_per_round=[[5, 1, 0], [3, 2, 1], [0, 1, 2]], folder=tmp_path / "r"
    )
    assert done.server.seen == {"small": [0, 2], "large": [1]}
    assert done.server.head.names == ["small", "large"]  # 4 and 6 features: the heads are not one
    assert done.server.models["large"].shape == (2, done.tasks["large"].layout.size)
    assert not torch.equal(done.server.models["small"][0], done.server.models["small"][1])
    again = several(Everything(), engine=engine, clients_per_round=[[5, 1, 0], [3, 2, 1], [0, 1, 2]],
                    folder=tmp_path / "r", resume=True)  # fmt: skip
    assert distance(again.server.trail[1], 2 * ua.Vectors({n: t.start for n, t in again.tasks.items()})) == 0
    reference = several(Everything(), clients_per_round=[[5, 1, 0], [3, 2, 1], [0, 1, 2]])
    assert distance(done.server.w, reference.server.w) < 1e-5


def test_heads_of_equal_shapes_are_averaged_over_everybody():
    def deep():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3))

    done = run(Everything(), module={"small": model(), "large": deep()}, architecture=NAMES)
    assert done.server.head.shape == (15,)


# ---------------------------------------------------------------- using it


def test_models_and_predictions_by_network(tmp_path):
    done = several()
    x = federation().global_test[0]
    for client, name in enumerate(NAMES[:2]):
        with torch.no_grad():
            want = done.models[name](x).softmax(1)
        for prediction in (done.predict(x, client=client), done.predict(x, architecture=name)):
            torch.testing.assert_close(torch.tensor(prediction.probabilities), want.double())
    file = done.save(tmp_path / "large.unalike", architecture="large")
    assert (ua.load_model(file, build=large).predict(x).classes == done.predict(x, client=1).classes).all()
    assert done.save(tmp_path / "own.unalike", client=0).exists()
    with refused(r"Clients have 2 networks: run.models\['small'\]"):
        done.model  # noqa: B018
    with refused("no architecture 'huge'"):
        done.predict(x, architecture="huge")
    with refused("one network: run.model"):
        run(rounds=0).models  # noqa: B018


def test_personal_models_are_each_networks_own():
    local = several(ua.methods.reference.LocalOnly(), engine="batched", clients_per_round=1.0)
    one = several(ua.methods.reference.LocalOnly(), clients_per_round=1.0)
    assert local.history[-1]["clients_loss"] == pytest.approx(one.history[-1]["clients_loss"], abs=1e-4)
    x = federation().global_test[0]
    for client in (0, 1):
        found = local.predict(x, client=client).probabilities
        torch.testing.assert_close(torch.tensor(found), torch.tensor(one.predict(x, client=client).probabilities),
                                   rtol=1e-4, atol=1e-4)  # fmt: skip


def test_one_network_by_name_is_the_run_of_one_network():
    assert_same(run(), run(module={"only": model()}, architecture=["only"] * 6))
    assert isinstance(run(module={"only": model()}).server.w, torch.Tensor)


# ---------------------------------------------------------------- what cannot be


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"architecture": None}, "There are 2 networks: say which client has which"),
        ({"architecture": NAMES[:5]}, "architecture has 5 entries for 6 clients"),
        ({"architecture": [*NAMES[:5], "smal"]}, "client 5 'smal'. Did you mean 'small'"),
        ({"architecture": ["small"] * 6}, "No client has the network 'large'"),
        ({"architecture": "small, large"}, "must be a list of names"),
        ({"architecture": "small:3"}, "3 entries for 6 clients"),
        ({"method": ua.methods.CLASSES["Centralized"]()}, "trains one network on pooled data"),
        ({"method": ua.RFedAvgPlus()}, r"sends 'mean' of the shape 'features'.*\[4\] in the network 'small' and \[6\]"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, match):
    with refused(match):
        several(**changes)


@dc.dataclass(frozen=True)
class ModelTable(ua.Method):
    tables = {"last": ua.Field()}


@dc.dataclass(frozen=True)
class FeatureTable(ua.Method):
    tables = {"means": ua.Field("features")}


def test_other_refusals():
    with refused("table 'last' of rows of the shape 'model', which differs between networks"):
        several(ModelTable())
    with refused(r"has a table 'means' of the shape 'features'.*\[4\] in the network 'small' and \[6\] in 'large'"):
        several(FeatureTable())
    with refused("architecture says which client has which of several networks, and there is one"):
        run(architecture=NAMES)
    with refused("A network is called 'the small one'"):
        run(module={"the small one": model(), "large": large()}, architecture=NAMES)
    with refused("There is no network"):
        ua.simulate({}, federation(), ua.FedAvg(), rounds=1)


def test_functions_of_the_client_and_auto():
    done = several(architecture=lambda k: NAMES[k], engine="auto", local=LOCAL)
    assert [done.architectures.name(k) for k in range(6)] == NAMES
    assert "small" in done.reason or "for each of 2 networks" in done.reason


# ---------------------------------------------------------------- rows for single clients


@dc.dataclass(frozen=True)
class Echo(ua.Method):
    """Every client sends back what was sent to it alone."""

    sends = {"row": ua.Field("scalar", read="each"), "vector": ua.Field(read="each")}

    def client(self, me, s, m):
        return {}, {"row": m.row + 0.5, "vector": m.vector}

    def round(self, server, cohort):
        rows = {n: [k for k in cohort.ids if NAMES[k] == n] for n in server.w.names}
        vectors = ua.Vectors({n: torch.tensor(ids)[:, None] + torch.zeros_like(server.w[n]) for n, ids in rows.items()})
        row = torch.tensor(cohort.ids, dtype=torch.float32)
        replies = cohort.call(self.client, row=ua.PerClient(row), vector=ua.PerClient(vectors))
        assert replies.each("row").tolist() == (row + 0.5).tolist()
        assert all(torch.equal(part, vectors[n]) for n, part in replies.each("vector").items())
        assert replies.sum("row") == sum(float(k + 0.5) * n for k, n in zip(cohort.ids, cohort.samples, strict=True))
        assert cohort.populations["small"] == 3 and cohort.population == 6


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_reach_the_clients_that_they_are_for(engine):
    several(Echo(), engine=engine, clients_per_round=[[5, 1, 3, 0], [4, 2, 5, 1]], rounds=2)


@dc.dataclass(frozen=True)
class Rows(ua.Method):
    """A client's own model is the published one, times a number of its own."""

    def published(self, server):
        own = {n: torch.ones(3, server.w[n].numel()) for n in server.w.names}
        return {"w": server.w, "scale": ua.PerClient(torch.arange(6.0)), "own": ua.PerClient(ua.Vectors(own))}

    def personal(self, me, s, m):
        return m.w * m.scale * m.own


def test_published_rows_are_each_clients_own():
    done = several(Rows(), rounds=1, evaluate_clients=4)
    x = federation().global_test[0]
    assert set(done.client_values["client"]) < set(range(6))
    for client in (0, 1, 5):
        module = done.module_with(client * done.server.w[NAMES[client]], done.buffers[NAMES[client]], NAMES[client])
        with torch.no_grad():
            want = module(x).softmax(1).double()
        torch.testing.assert_close(torch.tensor(done.predict(x, client=client).probabilities), want)
        if client in done.client_values["client"]:
            place = done.client_values["client"].tolist().index(client)
            own, y = federation().test.of(client)
            with torch.no_grad():
                loss = nn.functional.cross_entropy(module(own), y)
            assert done.client_values["loss"][place] == pytest.approx(float(loss), rel=1e-4)


def test_wrong_numbers_of_rows_are_refused():
    @dc.dataclass(frozen=True)
    class Short(ua.Method):
        def round(self, server, cohort):
            rows = {"small": server.w["small"][None], "large": torch.stack([server.w["large"]] * 5)}
            cohort.call(self.client, w=server.w, own=ua.PerClient(ua.Vectors(rows)))

    with refused("PerClient 'own' has 1 rows for 3 clients with the network 'small'"):
        several(Short(), clients_per_round=1.0)
    with refused("PerClient 'own' has 6 rows for 3 clients"):
        several(Short(), clients_per_round=3)


# ---------------------------------------------------------------- what goes across


def shared(labels=True):
    draw = torch.Generator().manual_seed(4)
    return federation().with_public(torch.randn(9, 5, generator=draw), torch.arange(9) % 3 if labels else None)


@dc.dataclass(frozen=True)
class Consensus(ua.Method):
    """Everybody's scores of the public samples are averaged and learned by all, whatever their networks."""

    sends = {
        "scores": ua.Field(("public", "classes"), weight="one"),
        "norm": ua.Field("all but norm"),
        "delta": ua.Field(),
    }

    def tell(self, me, s, m):
        return me.outputs(m.w, data="public").then(self.told)

    def told(self, me, s, m, scores):
        return {}, {"scores": scores}

    def client(self, me, s, m):
        return me.train(m.w, data="public", rows={"target": m.mean}, own=0.0, loss=self.distance).then(self.done)

    def distance(self, batch):
        return batch.mean((batch.output - batch.rows.target).square().sum(-1))

    def done(self, me, s, m, theta):
        return {}, {"delta": theta - m.w, "norm": me.layout.part(theta, "all but norm")}

    def round(self, server, cohort):
        scores = cohort.call(self.tell, w=server.w)
        assert scores.mean("scores").shape == (9, 3)
        replies = cohort.call(self.client, w=server.w, mean=scores.mean("scores"))
        server.rest = replies.mean("norm")
        server.w = server.w + replies.mean("delta")


def test_scores_of_public_samples_go_across():
    first, *others = (several(Consensus(), data=shared(False), engine=e, dtype="float64") for e in ENGINES)
    assert first.server.rest["large"].numel() == first.server.w["large"].numel() - 14
    for other in others:
        assert distance(first.server.w, other.server.w) < 1e-9


@dc.dataclass(frozen=True)
class Meme(ua.Method):
    """A small network that all clients have in common travels; models stay where they are."""

    nets = {"meme": lambda sizes: nn.Linear(sizes["classes"], 2)}
    keeps = {"model": ua.Field()}
    sends = {"meme": ua.Field("meme")}

    def setup(self, server, everyone):
        server.meme = server.start("meme")

    def client(self, me, s, m):
        return me.train(me.own(s.model)).then(self.done)

    def done(self, me, s, m, theta):
        return {"model": theta}, {"meme": m.meme + theta.mean()}

    def round(self, server, cohort):
        server.meme = cohort.call(self.client, meme=server.meme).mean("meme")


def test_further_networks_are_everybodys():
    first, *others = (several(Meme(), engine=engine, dtype="float64") for engine in ENGINES)
    assert first.server.meme.shape == (8,)
    for other in others:
        torch.testing.assert_close(first.server.meme, other.server.meme, rtol=1e-9, atol=1e-9)


def test_further_networks_of_different_sizes_are_refused():
    @dc.dataclass(frozen=True)
    class Wide(Meme):
        nets = {"meme": lambda sizes: nn.Linear(sizes["features"], 2)}

    with refused(r"'meme'.*\[10\] in the network 'small' and \[14\] in 'large'"):
        several(Wide())


@dc.dataclass(frozen=True)
class Gossip(ua.Method):
    """Without a server, scores of the public samples go from client to client."""

    serverless = True
    keeps = {"theta": ua.Field(), "heard": ua.Field(("public", "classes"))}
    sends = {"scores": ua.Field(("public", "classes"), read="sealed"), "theta": ua.Field(read="sealed")}

    def personal(self, me, s, m):
        return me.own(s.theta)

    def tell(self, me, s, m):
        return me.train(self.personal(me, s, m)).then(self.trained)

    def trained(self, me, s, m, theta):
        return me.outputs(theta, data="public").then(self.told, theta=theta)

    def told(self, me, s, m, scores, theta):
        return {"theta": theta, "heard": s.heard}, {"scores": scores, "theta": theta}

    def hear(self, me, s, m):
        return {"theta": self.personal(me, s, m), "heard": m.scores}, {}

    def round(self, server, cohort):
        sent = cohort.call(self.tell)
        cohort.call(self.hear, scores=sent.pass_on("scores", to=cohort.ids[::-1]))


def test_rows_from_client_to_client_go_across_where_they_are_the_same_for_all():
    first, *others = (several(Gossip(), data=shared(), engine=engine, dtype="float64") for engine in ENGINES)
    assert any(first.clients[k]["heard"].abs().sum() > 0 for k in range(6))
    for other in others:
        for k in range(6):
            for name, value in first.clients[k].items():
                torch.testing.assert_close(value, other.clients[k][name], rtol=1e-9, atol=1e-9)
        assert first.history[-1]["bytes_peer"] == other.history[-1]["bytes_peer"] == 3 * 27 * 8

    @dc.dataclass(frozen=True)
    class Models(Gossip):
        def round(self, server, cohort):
            cohort.call(self.hear, scores=cohort.call(self.tell).pass_on("theta", to=cohort.ids[::-1]))

    with refused("its shape 'model' differs between the networks"):
        several(Models(), data=shared())
