"""A real server that dies in a round: what it has spent is on disk, and a round done again is paid for again."""

import json

import pytest
import torch
from small import refused
from test_network_messages import Direct, data, own, served, tables

import unalike as ua
from unalike.channel import accountant
from unalike.channel.passage import SECRET
from unalike.network.client import Client
from unalike.network.link import Lost
from unalike.network.policy import Policy
from unalike.run.run import SECRET as COHORTS

CENTRAL = {"channel": "clip:1.0,noise:2.0"}
TREE = {"channel": "clip:1.0,tree-noise:100.0:2", "clients_per_round": "turns:2"}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(accountant, "loss_epsilon", lambda *_: 1.25)


@pytest.fixture
def people(tmp_path):
    return [Client(own(data(), k), tmp_path / f"site-{k}", Policy.open()) for k in range(4)]


class Dies(ua.Callback):
    """Ends the process after this round was shown to clients, before its checkpoint."""

    def __init__(self, round):
        self.round = round

    def on_round(self, run, line):
        if line["round"] == self.round:
            raise KeyboardInterrupt


def asked(tmp_path, rounds, **run):
    settings = tables("fedavg", rounds, run={"folder": str(tmp_path / "run"), "evaluate_clients": "none", **run})
    return {**settings, "method": {"name": "fedavg", "weights": "uniform"}}


def crashed(settings, link, round, **options):
    with pytest.raises(KeyboardInterrupt):
        served(settings, link, callbacks=[Dies(round)], **options)


def ledger(tmp_path):
    return [json.loads(line) for line in (tmp_path / "run/spent.jsonl").read_text().splitlines()]


def test_a_round_done_again_is_counted_again(tmp_path, people):
    settings, link = asked(tmp_path, 2, **CENTRAL), Direct(people)
    crashed(settings, link, 1)
    crashed(settings, link, 1, resume=True)
    run = served(settings, link, resume=True)
    assert [(line["round"], line["exchange"]) for line in ledger(tmp_path)] == [(1, 1), (1, 1), (1, 1), (2, 1)]
    assert [line["spent"][0][-1] for line in ledger(tmp_path)] == [1, 2, 3, 4]
    assert run.server.values["_spent"] == ledger(tmp_path)[-1]["spent"]
    more = served(asked(tmp_path, 3, **CENTRAL), link, resume=True)  # from a whole checkpoint nothing is added
    assert more.server.values["_spent"][0][-1] == 5


def test_clients_of_a_round_done_again_are_drawn_again(tmp_path, people):
    settings, link = asked(tmp_path, 2, **CENTRAL, clients_per_round="bernoulli:0.9"), Direct(people)
    secrets = [served(settings | {"run": settings["run"] | {"rounds": 1}}, link).server.values[COHORTS]]
    crashed(settings, link, 2, resume=True)
    secrets += [served(settings, link, resume=True).server.values[COHORTS] for _ in range(2)]
    assert secrets[0] != secrets[1] == secrets[2]


def test_a_tree_that_was_cut_off_is_left_for_a_new_one(tmp_path, people):
    """The same draws around other replies would show the difference of the replies."""
    models, lost = [], []

    def meddle(k, header, answer):
        if len(models) == 1 and not lost and header["kind"] == "request" and header["round"] == 1:
            lost.append(k)
            return Lost("gone")
        return answer

    class Sees(ua.Callback):
        def on_round(self, run, line):
            if line["round"] == 2:
                models.append(run.server.w.clone())

    settings, link = asked(tmp_path, 2, **TREE), Direct(people, meddle)
    with pytest.raises(KeyboardInterrupt):
        served(settings, link, callbacks=[Sees(), Dies(2)])
    run = served(settings, link, callbacks=[Sees()], resume=True)
    first, again = models
    assert len(lost) == 1
    assert float((first - again).norm()) > 20  # noise; an update is at most 1 long
    assert run.server.values["_spent"][0][-1] == 2 and torch.isfinite(run.server.w).all()


def test_a_tree_that_was_not_cut_off_goes_on(tmp_path, people):
    link = Direct(people)
    one = served(asked(tmp_path, 1, **TREE), link)
    two = served(asked(tmp_path, 2, **TREE), link, resume=True)
    assert two.server.values[SECRET] == one.server.values[SECRET]
    assert two.server.values["_spent"] == one.server.values["_spent"]


def test_a_ledger_that_was_changed_and_one_with_half_a_line(tmp_path, people):
    link, file = Direct(people), tmp_path / "run/spent.jsonl"
    served(asked(tmp_path, 2, **CENTRAL), link)
    whole = file.read_text()
    file.write_text(whole + '{"round": 3, "exch')  # the exchange was not made
    assert served(asked(tmp_path, 3, **CENTRAL), link, resume=True).server.values["_spent"][0][-1] == 3
    assert len(ledger(tmp_path)) == 3
    for text in ("", whole.splitlines()[0] + "\n", "{}\n" * 3):
        file.write_text(text)
        with refused("was changed.*begin a new run"):
            served(asked(tmp_path, 4, **CENTRAL), link, resume=True)


def test_a_simulation_has_no_ledger(tmp_path):
    from test_network_messages import simulated

    simulated(asked(tmp_path, 1, **CENTRAL))
    assert not (tmp_path / "run/spent.jsonl").exists()
