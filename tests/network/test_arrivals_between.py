"""Asynchronous runs between machines: nobody waits for a slow client, its updates count, a killed server goes on."""

import signal

import pytest
import torch
from small import federation, refused
from test_network_messages import Direct, data, own, served, tables

import unalike as ua
from unalike.messages import wire
from unalike.network import one_machine, server
from unalike.network.client import Client
from unalike.network.limits import Limits
from unalike.network.link import Lost
from unalike.network.policy import Policy

SLOW = 3  # this client is slow


class Streaming(Direct):
    """A network on which clients answer after so many turns; `turns` is its clock."""

    def __init__(self, people, breaks=None, slow=10):
        super().__init__(people)
        self.turns, self.open, self.breaks, self.slow = 0, {}, breaks, slow
        self.order, self.twice = [], 0

    def stream(self, more, seconds):
        while True:
            for client, parts in more().items():
                self.twice += client in self.open
                self.open[client] = self.turns + (self.slow if client == SLOW else 1), parts
            if not self.open:
                return
            self.turns += 1
            for client, (due, parts) in sorted(self.open.items()):
                if due <= self.turns:
                    del self.open[client]
                    self.order.append(client)
                    if self.breaks is not None and len(self.order) >= self.breaks:
                        raise KeyboardInterrupt
                    yield from super().exchange({client: parts}, seconds)


def headers(parts):
    return [wire.decode(part)[0] for part in parts]


def people(folder):
    return [Client(own(data(), k), folder / f"site-{k}", Policy.open(repeatable=True)) for k in range(4)]


def settings(method="fedavg", rounds=12, **run):
    how = {"asynchronous": "buffer:2"} if method == "fedavg" else {}
    return tables(method, rounds, run={"clients_per_round": 4, **how, **run})


@pytest.mark.parametrize("method", ["fedavg", "fedbuff"])
def test_nobody_waits_for_a_slow_client(method, tmp_path):
    link = Streaming(people(tmp_path))
    chosen = settings(method)
    chosen["method"] |= {"buffer": 2} if method == "fedbuff" else {}
    run = served(chosen, link)
    assert run.rounds_done == 12 and link.twice == 0
    assert link.order.count(SLOW) in (1, 2)  # the others were not waited for in between ...
    assert max(line["staleness_most"] for line in run.history) >= 4  # ... and its late update counts
    assert [line["clients"] for line in run.history] == [2] * 12
    requests = [(k, header["round"]) for k, header in link.asked if header["kind"] == "request"]
    assert len({*requests}) == len(requests)  # each version once
    left = sum(wire.payload(wire.decode(part)[1]) for _, parts in link.open.values() for part in parts)
    assert run.summary()["bytes_down"] == link.passed["down"] + left  # counted once


def test_a_killed_server_goes_on_in_mid_flight(tmp_path):
    chosen = settings(rounds=10, folder=str(tmp_path / "run"))
    link = Streaming(sites := people(tmp_path), breaks=9)
    with pytest.raises(KeyboardInterrupt):
        served(chosen, link)
    assert SLOW in link.open and SLOW not in link.order  # it is at work when the server dies
    again = Streaming(sites, slow=3)
    run = served(chosen, again, resume=True)
    assert run.rounds_done == 10
    asked = [header["round"] for k, header in again.asked if k == SLOW and header["kind"] == "request"]
    assert asked[0] == 0  # it was asked again for what it was doing: everybody began with version 0
    assert max(line["staleness_most"] for line in run.history) >= 4


def test_who_has_left_when_the_server_goes_on_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "GRACE", 0.0)
    chosen = settings(rounds=10, folder=str(tmp_path / "run"))
    with pytest.raises(KeyboardInterrupt):
        served(chosen, Streaming(sites := people(tmp_path), breaks=9))
    again = Streaming(sites, slow=1)
    again.away = {SLOW}

    class Returns(ua.Callback):
        def on_round(self, run, line):
            again.away = set()

    run = served(chosen, again, resume=True, callbacks=[Returns()], limits=Limits(least=3))
    assert run.rounds_done == 10 and sum(line.get("lost", 0) for line in run.history) == 1
    asked = [header["round"] for k, header in again.asked if k == SLOW and header["kind"] == "request"]
    assert asked and min(asked) > 0  # it begins again, with a later version


def test_a_lost_answer_costs_that_client_alone(tmp_path):
    asked = []

    class Losing(Streaming):
        def stream(self, more, seconds):
            def noted():
                new = more()
                for client, parts in new.items():
                    asked.extend((client, header["round"]) for header in headers(parts) if "round" in header)
                return new

            for client, answer in super().stream(noted, seconds):
                yield client, Lost("its line is cut") if client == 0 else b"nonsense" if client == 1 else answer

    said = []
    run = served(settings(rounds=4), Losing(people(tmp_path)), said)
    assert run.rounds_done == 4 and sum(line.get("lost", 0) for line in run.history) > 2
    assert any("its line is cut" in line for line in said)
    assert len(asked) == len(set(asked)) > 4  # nobody is asked twice for one version


def test_what_is_refused(tmp_path):
    sites = people(tmp_path)
    with refused("hides replies"):
        served(settings(channel="secure-sum"), Streaming(sites))
    with refused("A clock is of simulations"):
        served({**settings(), "clock": {"latency": 1.0}}, Streaming(sites))
    with refused("carries no asynchronous runs"):
        served(settings(), Direct(sites))


def test_weights_are_those_of_the_versions(tmp_path):
    """With everybody waited for, it is the synchronous federation."""
    both = [served(tables("fedavg", 3, run={"evaluate_clients": "none"}), Direct(people(tmp_path / "a")))]
    both += [served(settings(rounds=3, asynchronous="buffer:4"), Streaming(people(tmp_path / "b")))]
    assert torch.allclose(both[0].server.w, both[1].server.w, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_a_real_federation_of_six_does_not_wait_for_one():
    """One client is stopped, and rounds go on without it. Let go, it answers with what it began, and that counts."""
    pytest.importorskip("flwr")
    fed = federation(sizes=(8, 4, 12, 10, 6, 9))
    chosen = settings(rounds=200, clients_per_round=6, asynchronous="buffer:3", evaluate_every=200)
    with one_machine.federation(fed) as (here, link):
        slow = here.processes["client-0005"]

        class Slow(ua.Callback):
            def on_round(self, run, line):
                if line["round"] in (1, 9):
                    slow.send_signal(signal.SIGSTOP if line["round"] == 1 else signal.SIGCONT)
                return line["round"] > 9 and line["staleness_most"] >= 6

        asked = {"wait": 90, "deadline": 90, "classes": 3, "check": here.processes.check}
        run = server.run(chosen, link, here.public, test=fed.global_test, callbacks=[Slow()], **asked)
    assert 9 < run.rounds_done < 200 and run.history[-1]["staleness_most"] >= 6
    assert all(line["clients"] == 3 for line in run.history) and not any("lost" in line for line in run.history)
