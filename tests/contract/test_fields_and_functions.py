"""Declared weights, names of functions, and what a cohort hands out."""

import dataclasses as dc

import numpy as np
import pytest
import small
import torch
from small import refused

import unalike as ua
from unalike.contract.method import function_name


@dc.dataclass(frozen=True)
class Option(ua.Method):
    """Weighs its replies as an option says."""

    counts: str = "samples"

    sends = {"one": ua.Field("scalar", weight="counts"), "n": ua.Field("scalar", weight="one")}

    def client(self, me, s, m):
        return {}, {"one": me.n, "n": me.n}

    def round(self, server, cohort):
        replies = cohort.call(self.client, w=server.w)
        server.mean, server.plain = float(replies.mean("one")), float(replies.mean("n"))


def test_an_option_by_its_name_is_a_weight():
    """Of clients with 8, 4 and 12 samples: Σ n² / Σ n = 224 / 24, and a mean of 8."""
    given = {"rounds": 1, "clients_per_round": [[0, 1, 2]], "dtype": "float64"}
    by_samples, uniform = (small.run(Option(counts), **given).server for counts in ("samples", "uniform"))
    assert by_samples.mean == pytest.approx(224 / 24) and by_samples.plain == 8
    assert uniform.mean == uniform.plain == 8
    with refused("Option declares weight='counts': it must be 'samples', 'one', or an option"):
        small.run(Option("clients"), **given)


class Renamed(Option):
    ask = lambda self, me, s, m: ({}, {"n": me.n})  # noqa: E731


def test_a_function_has_the_name_under_which_the_method_has_it():
    method = Renamed()
    assert function_name(method, method.client) == "client"
    assert method.ask.__name__ == "<lambda>" and function_name(method, method.ask) == "ask"
    with refused("client is not a function of Renamed"):
        function_name(method, ua.FedAvg().client)  # of the same name, another method's
    with refused("<lambda> is not a function of Renamed: only a method's own functions can be called"):
        function_name(method, lambda me, s, m: None)


@dc.dataclass(frozen=True)
class Rows(ua.Method):
    """Clients send back the row they were given."""

    count: int = 3

    sends = {"row": ua.Field("scalar", read="each", weight="one")}

    def client(self, me, s, m):
        assert m.row.dtype == me.n.dtype
        return {}, {"row": m.row}

    def round(self, server, cohort):
        replies = cohort.call(self.client, row=ua.PerClient(np.arange(self.count) + 0.5))
        server.rows = replies.each("row")


@pytest.mark.parametrize("engine", small.ENGINES)
def test_rows_reach_their_clients_in_the_models_dtype(engine):
    done = small.run(Rows(), engine=engine, rounds=1, dtype="float32")
    assert done.server.rows.tolist() == [0.5, 1.5, 2.5] and done.server.rows.dtype == torch.float32


@pytest.mark.parametrize("count", [2, 4])
def test_there_is_one_row_for_each_client(count):
    with refused(f"PerClient 'row' has {count} rows for 3 clients"):
        small.run(Rows(count), rounds=1)


@pytest.mark.parametrize("name", ["values", "table", "layout"])
def test_what_is_the_servers_own_cannot_be_assigned(name):
    class Takes(ua.FedAvg):
        def setup(self, server, everyone):
            setattr(server, name, 1)

    with refused(f"server.{name} is the server's own"):
        small.run(Takes(), rounds=1)


@pytest.mark.parametrize("name", ["buffers", "training_loss"])
def test_reserved_fields_cannot_be_declared(name):
    class Takes(ua.FedAvg):
        sends = {"delta": ua.Field(), name: ua.Field("scalar")}

    with refused(f"Takes declares a field '{name}': that name is reserved"):
        small.run(Takes(), rounds=1)


class Heard(ua.Callback):
    def __init__(self):
        self.replies = []

    def on_reply(self, run, outcome):
        self.replies += outcome.ids.tolist()


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_listeners_hear_every_reply_of_every_exchange(engine):
    """FedFa asks its clients twice; they come in stacks of two, or one by one."""
    heard = Heard()
    more = {"clients_at_once": 2} if engine == "batched" else {}
    small.run(ua.FedFa(), engine=engine, rounds=1, clients_per_round=5, callbacks=[heard], **more)
    assert sorted(heard.replies) == sorted(2 * heard.replies[:5]) and len(set(heard.replies)) == 5


@dc.dataclass(frozen=True)
class Losses(ua.Method):
    """Two exchanges, each with a half of the cohort."""

    def round(self, server, cohort):
        halves = [cohort.only(cohort.ids[:2]), cohort.only(cohort.ids[2:])]
        replies = [half.call(self.client, w=server.w) for half in halves]
        server.losses = [float(loss) for reply in replies for loss in reply.losses()]


def test_the_training_loss_is_that_of_all_exchanges():
    done = small.run(Losses(), rounds=1, clients_per_round=5)
    assert done.history[0]["train_loss"] == pytest.approx(np.mean(done.server.losses), rel=1e-12)
    assert len(set(done.server.losses)) == 5
