"""A federation whose clients have different networks: the plan, that all are asked at once, what is refused."""

import pytest
import torch
from small import refused, timeless
from test_network_messages import Direct, data, own, served, simulated, tables

import unalike as ua
from unalike.network import client as clients
from unalike.network.client import Client
from unalike.network.link import Lost
from unalike.network.policy import Policy

NETWORKS = {"small": {"name": "mlp", "hidden": [4]}, "large": {"name": "mlp", "hidden": [6, 5]}}


def networks(name="fedavg", rounds=3, **run):
    out = tables(name, rounds)
    return {**out, "model": {}, "models": NETWORKS, "run": {**out["run"], "architecture": "small:1, large:3", **run}}


@pytest.fixture
def people(tmp_path):
    return [Client(own(data(), k), tmp_path / f"site-{k}", Policy.open(repeatable=True)) for k in range(4)]


class AllAtOnce(Direct):
    """Counts how many clients every exchange asks."""

    def exchange(self, requests, seconds):
        self.widths = [*getattr(self, "widths", []), len(requests)]
        return super().exchange(requests, seconds)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedfa"])
def test_it_equals_the_simulation_and_everybody_is_asked_at_once(name, people, tmp_path):
    link = AllAtOnce(people)
    done = served(networks(name, folder=str(tmp_path / "run")), link)
    reference = simulated(networks(name))
    for network in NETWORKS:
        torch.testing.assert_close(done.server.w[network], reference.server.w[network], rtol=1e-6, atol=1e-6)
    keys = ("clients", "bytes_up", "bytes_down", "test_large_accuracy", "clients_accuracy_mean")
    for mine, yours in zip(timeless(done.history), timeless(reference.history), strict=True):
        assert {k: mine[k] for k in keys} == pytest.approx({k: yours[k] for k in keys}, abs=1e-6)
    assert set(link.widths) == {4}
    assert link.passed == {way: sum(line[f"bytes_{way}"] for line in done.history) for way in ("down", "up")}
    files = sorted(file.name for file in (tmp_path / "run").glob("*.unalike"))
    assert files == ["model-large.unalike", "model-small.unalike"]
    x = data().global_test[0]
    loaded = ua.load_model(tmp_path / "run" / "model-small.unalike").predict(x)
    assert (loaded.classes == reference.predict(x, architecture="small").classes).all()


def test_a_resumed_federation_goes_on(people, tmp_path):
    where = str(tmp_path / "run")
    whole = simulated(networks("scaffold", rounds=4))
    served(networks("scaffold", rounds=2, folder=where), Direct(people))
    done = served(networks("scaffold", rounds=4, folder=where), Direct(people), resume=True)
    for network in NETWORKS:
        torch.testing.assert_close(done.server.w[network], whole.server.w[network], rtol=1e-6, atol=1e-6)


def test_a_network_whose_clients_are_lost_stays(people):
    def meddle(k, header, answer):
        return Lost("it has left") if k == 0 and header.get("round") == 2 and header["kind"] == "request" else answer

    kept = []

    class Keep(ua.Callback):
        def on_round(self, run, line):
            kept.append(run.server.w.clone())

    served(networks(), Direct(people, meddle), callbacks=[Keep()])
    assert torch.equal(kept[1]["small"], kept[2]["small"]) and not torch.equal(kept[1]["large"], kept[2]["large"])


def test_a_client_that_builds_another_network_refuses(people, monkeypatch):
    build = clients.config.make_model

    def other(table, federation, seed):
        return build({**table, "hidden": [7]}, federation, seed)

    monkeypatch.setattr(clients.config, "make_model", other)  # the server builds its own by another way
    for settings in (networks(), tables()):
        with refused("site-0: The network that this client builds is not the one that the server builds"):
            served(settings, Direct(people))


def test_a_client_is_told_its_own_network(people):
    link = Direct(people)
    served(networks(rounds=0), link)
    plans = {k: header["plan"] for k, header in link.asked if header["kind"] == "plan"}
    assert plans[0]["network"] != plans[1]["network"] == plans[3]["network"]
    sizes = [people[k]._nodes[run].job.task.layout.size for k in (0, 1) for run in people[k]._nodes]
    assert sizes == [5 * 4 + 4 + 4 * 3 + 3, 5 * 6 + 6 + 6 * 5 + 5 + 5 * 3 + 3]


def test_a_plan_that_gives_a_client_no_network_is_refused(people):
    def meddle(k, header, answer):
        if header["kind"] != "plan":
            return answer
        plan = {**header["plan"], "run": {**header["plan"]["run"], "architecture": ["small"]}}
        return people[k].answer([clients.wire.encode({**header, "plan": plan}, {})])

    with refused("site-0: .run. architecture must name one of small, large for each of 4 clients"):
        served(networks(), Direct(people, meddle))
