"""The server's side of the contract, at the places where a review found it wanting."""

import dataclasses as dc

import numpy as np
import pytest
import torch
from small import ENGINES, LOCAL, assert_same, federation, logged, model, refused, run

import unalike as ua
from unalike.testing.toys import PeerTable

# ---------------------------------------------------------------- BatchNorm's statistics over exchanges


class Halves(ua.FedAvg):
    """The cohort in two exchanges, each from the same model."""

    def round(self, server, cohort):
        parts = [cohort.only(ids).call(self.client, w=server.w) for ids in np.array_split(cohort.ids, 2)]
        server.w = server.w + sum(p.sum("delta") for p in parts) / float(cohort.samples.sum())


class Twice(ua.FedAvg):
    """Everybody trains twice; only the second time counts."""

    def round(self, server, cohort):
        cohort.call(self.client, w=2 * server.w)
        server.w = server.w + cohort.call(self.client, w=server.w).mean("delta")


class Early(ua.FedAvg):
    """A training before round 1."""

    def setup(self, server, everyone):
        self.round(server, everyone)


FULL = dc.replace(LOCAL, batch_size=None)  # the full batch: no order that depends on the exchange


@pytest.mark.parametrize("engine", ENGINES)
def test_statistics_are_averaged_over_all_exchanges_of_a_round(engine):
    given = {"module": model(batch_norm=True), "local": FULL, "engine": engine, "rounds": 2}
    plain = run(ua.FedAvg(), **given).server
    for method in (Halves(), Twice()):
        other = run(method, **given).server
        torch.testing.assert_close(other.buffers, plain.buffers)
        torch.testing.assert_close(other.w, plain.w)


def test_statistics_of_the_setup_count():
    given = {"module": model(batch_norm=True), "local": FULL, "clients_per_round": 6}
    early, plain = run(Early(), rounds=0, **given).server, run(ua.FedAvg(), rounds=1, **given).server
    torch.testing.assert_close(early.buffers, plain.buffers)


# ---------------------------------------------------------------- known, once staged


class Second(ua.FedAvg):
    """Two exchanges: in the second nobody is new any more, nor is a row of the table."""

    keeps = {"count": ua.Field("scalar")}
    sends = {"first": ua.Field("scalar", read="each")}
    tables = {"seen": ua.Field("scalar")}

    def client(self, me, s, m):
        return {"count": s.count + 1}, {"first": me.first.to(s.count.dtype)}

    def setup(self, server, everyone):
        server.seen = []

    def round(self, server, cohort):
        table = server.table("seen")
        before = table.known(cohort.ids).tolist()
        table[cohort.ids] = torch.ones(len(cohort))
        firsts = [cohort.call(self.client).each("first").tolist() for _ in range(2)]
        server.seen = [*server.seen, [before, table.known(cohort.ids).tolist(), *firsts]]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_staged_is_known(engine):
    seen = run(Second(), engine=engine, rounds=2, clients_per_round=[[0, 1], [1, 2]]).server.seen
    assert seen == [[[False, False], [True, True], [1, 1], [0, 0]], [[True, False], [True, True], [0, 1], [0, 0]]]


# ---------------------------------------------------------------- cohorts, tables, messages


def in_a_round(body):
    class One(ua.FedAvg):
        tables = {"means": ua.Field("features")}

        def round(self, server, cohort):
            body(self, server, cohort)

    return run(One(), rounds=1, clients_per_round=[[1, 3, 4]])


def test_only_refuses_a_client_twice():
    with refused("only.*: client 3 is named twice"):
        in_a_round(lambda self, server, cohort: cohort.only([3, 1, 3]))


@pytest.mark.parametrize("shape", [(2, 4), (3, 5), (4,), (3, 4, 1), ()])
def test_a_table_refuses_rows_of_another_shape(shape):
    with refused(r"A table was given rows of shape \[.*\]: 3 clients need \[3, 4\]"):
        in_a_round(lambda self, server, cohort: server.table("means").__setitem__(cohort.ids, torch.zeros(shape)))


def test_everyone_is_the_whole_population():
    def body(self, server, cohort):
        assert cohort.ids.tolist() == [1, 3, 4] and cohort.everyone.ids.tolist() == list(range(6))
        assert cohort.only([3]).everyone.call(self.client, w=server.w).count == 6

    assert in_a_round(body).history[0]["bytes_up"] == 6 * 39 * 4


class Own(ua.FedAvg):
    """Rows from numpy for each client; clients' own models from rows by client and a number."""

    def client(self, me, s, m):
        return me.train(m.w + m.shift).then(self.done)

    def round(self, server, cohort):
        shift = ua.PerClient(0.1 * cohort.ids.astype(np.float64))
        server.w = server.w + cohort.call(self.client, w=server.w, shift=shift).mean("delta")

    def published(self, server):
        return {"w": server.w, "row": ua.PerClient(np.arange(6) / 10), "scale": 2, "factor": 0.5}

    def personal(self, me, s, m):
        return m.w * (1 + m.row * m.scale * m.factor)


class OwnByHand(Own):
    def personal(self, me, s, m):
        return m.w * (1 + m.row)

    def published(self, server):
        return {"w": server.w, "row": ua.PerClient(torch.arange(6) / 10)}


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_published_is_a_message_like_any_other(engine):
    given = {"engine": engine, "evaluate_clients": 3, "rounds": 1, "seed": 1}
    a, b = run(Own(), **given), run(OwnByHand(), **given)
    assert len(a.client_values["client"]) == 3 and list(a.client_values["client"]) != [0, 1, 2]
    np.testing.assert_allclose(a.client_values["loss"], b.client_values["loss"], rtol=1e-6)
    x, y = federation().test.of(k := int(a.client_values["client"][-1]))
    module = a.model
    with torch.no_grad():
        for p in module.parameters():
            p *= 1 + k / 10
        assert a.client_values["loss"][-1] == pytest.approx(float(torch.nn.functional.cross_entropy(module(x), y)))


def test_published_rows_are_of_all_clients():
    class Wrong(Own):
        def published(self, server):
            return {"w": server.w, "row": ua.PerClient(torch.zeros(3))}

    with refused("PerClient 'row' has 3 rows for 6 clients"):
        run(Wrong())


# ---------------------------------------------------------------- several global models


def with_models(models):
    class Several(ua.FedAvg):
        def models(self, server):
            return models(server)

    return run(Several(), rounds=1)


def test_weighted_models_are_reported_by_their_mean():
    plain = with_models(lambda server: {"a": server.w, "b": 0 * server.w}).history[0]
    paired = with_models(lambda server: {"a": (server.w, 3), "b": (0 * server.w, torch.tensor(1.0))}).history[0]
    assert "test_a_loss" not in plain
    for key in ("loss", "accuracy"):
        a, b = plain[f"test_{key}"], plain[f"test_b_{key}"]
        assert (paired[f"test_a_{key}"], paired[f"test_b_{key}"]) == (a, b)
        assert paired[f"test_{key}"] == pytest.approx(0.75 * a + 0.25 * b) != a


def test_the_model_of_weighted_ones_is_the_first():
    done = with_models(lambda server: {"a": (server.w, 0.5), "b": (0 * server.w, 0.5)})
    assert torch.equal(torch.cat([p.detach().reshape(-1) for p in done.model.parameters()]), done.server.w)


@pytest.mark.parametrize("weights", [(0, 0), (1, -1), (1, float("nan"))])
def test_weights_of_models_must_be_weights(weights):
    with refused(r"Several\.models gives the weights .* for 2 models"):
        with_models(lambda server: {"a": (server.w, weights[0]), "b": (server.w, weights[1])})
    with refused(r"for 2 models: all must"):
        with_models(lambda server: {"a": (server.w, 1), "b": server.w})


def test_without_a_global_model():
    done = with_models(lambda server: {})
    assert not any(key.startswith("test_") for key in done.history[0]) and "clients_loss" in done.history[0]
    with refused("Several has no global model"):
        _ = done.model


# ---------------------------------------------------------------- bytes of the setup


def test_setup_traffic_is_counted_once(tmp_path):
    down, up = 6 * 39 * 4, 6 * 4 * 4  # the model to everybody, four features back
    done = run(PeerTable(), folder=tmp_path / "whole")
    first, *rest = logged(tmp_path / "whole")
    assert (first["setup_bytes_down"], first["setup_bytes_up"]) == (down, up)
    assert not any("setup_bytes_up" in line for line in rest)
    summary = done.summary()
    assert summary["bytes_down"] == down + sum(line["bytes_down"] for line in done.history)
    assert summary["bytes_up"] == up + sum(line["bytes_up"] for line in done.history)
    for stop in (0, 1, 2):
        stopped = run(PeerTable(), rounds=stop, folder=tmp_path / str(stop))
        assert stopped.summary()["bytes_up"] == up + sum(line["bytes_up"] for line in stopped.history)
        resumed = run(PeerTable(), folder=tmp_path / str(stop), resume=True)
        assert_same(done, resumed)
        assert resumed.summary()["bytes_up"] == summary["bytes_up"]
    assert "setup_bytes_up" not in run().history[0]


# ---------------------------------------------------------------- all data in one place


class Centralized(ua.FedAvg):
    pooled = True


@pytest.mark.parametrize("engine", ENGINES)
def test_pooled_training_sees_one_client_and_is_evaluated_on_all(engine, tmp_path):
    data = federation(validation=True)
    given = {"local": FULL, "clients_per_round": 4, "rounds": 2, "engine": engine}
    pooled = run(Centralized(), data=data, folder=tmp_path / "run", **given)
    alone = run(ua.FedAvg(), data=data.pooled(), **{**given, "clients_per_round": 1})
    assert pooled.population == 1 and [line["clients"] for line in pooled.history] == [1, 1]
    assert torch.equal(pooled.server.w, alone.server.w)
    assert [line["test_loss"] for line in pooled.history] == [line["test_loss"] for line in alone.history]
    assert pooled.client_values["client"].tolist() == list(range(6)) and "validation_loss" in pooled.history[0]
    x, y = data.test.of(5)
    with torch.no_grad():
        assert pooled.client_values["loss"][5] == pytest.approx(
            float(torch.nn.functional.cross_entropy(pooled.model(x), y))
        )


def test_a_pooled_federation_shares_its_tensors():
    data = federation(validation=True)
    one = data.pooled()
    assert len(one) == 1 and one.sizes.tolist() == [sum(data.sizes)] and one.classes == 3
    assert one.train.x is data.train.x and one.test.x is data.test.x and one.validation.y is data.validation.y
    assert len(federation().pooled()) == 1


def test_pooled_training_and_clients_own_statistics():
    given = {"module": model(batch_norm=True), "local": FULL}
    own, mean = run(Centralized(), buffers="local", **given), run(Centralized(), buffers="average", **given)
    assert torch.equal(own.server.buffers, mean.server.buffers)


def test_pooled_training_has_no_personal_models():
    class Both(Own):
        pooled = True

    with refused("Both trains on pooled data: there are no personal models"):
        run(Both())


# ---------------------------------------------------------------- divergence


def test_large_finite_numbers_are_not_divergence():
    class Large(ua.FedAvg):
        value = 2e38

        def done(self, me, s, m, theta):
            return {}, {"delta": torch.full_like(theta, self.value)}

        def round(self, server, cohort):
            cohort.call(self.client, w=server.w)

    run(Large(), rounds=1)

    class TooLarge(Large):
        value = float("inf")

    with refused("became NaN or infinite", ua.Diverged):
        run(TooLarge(), rounds=1)


def test_models_that_are_no_dict_are_said():
    class FedEma(ua.FedAvg):
        def models(self, server):
            return server.w

    with refused(
        r"FedEma.models must return a dict from names to vectors, such as \{'ema': vector\}; it returned a Tensor"
    ):
        run(FedEma(), rounds=1)
