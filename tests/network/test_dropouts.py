"""Drop-outs at every moment of a round, and servers and clients that die at every stage, in one process: the run ends
as a simulation with the same absences does, to the bit."""

import json
import os
import random

import pytest
import safetensors.torch
import torch
from small import federation, timeless

import unalike as ua
from unalike import config
from unalike.client.one_client import OneClient
from unalike.messages import wire
from unalike.network import server
from unalike.network.client import Client
from unalike.network.limits import Limits
from unalike.network.link import Left, Lost
from unalike.network.policy import Policy

MOMENTS = ("before", "work", "after", "evaluate")  # the request; the training; the answer's way; the evaluation
SIZES = (8, 4, 12, 10, 2, 6, 9, 5)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Died(BaseException):
    """The end of a process."""


class Sites:
    """Clients in one process, which can die and are started again from their folders; and the link to them.

    fate(client, header): the moment of this exchange at which the client drops out, if it does; dies(event): called
    before everything that the link does, to end the server.
    """

    def __init__(self, folder, sizes=SIZES, fate=lambda client, header: None, dies=lambda: None):
        self.folder, self.data, self.fate, self.dies = folder, federation(sizes=sizes), fate, dies
        self.people = [self.start(k) for k in range(len(sizes))]
        self.counted = {}  # the clients whose answers were handed over, by round and exchange
        self.restarts = 0

    def start(self, k):
        own = ua.Federation.from_arrays([self.data.train.of(k)], client_tests=[self.data.test.of(k)])
        return Client(own, self.folder / f"site-{k}", Policy.open(repeatable=True))

    def restart(self, k):
        self.restarts += 1
        self.people[k].close()
        self.people[k] = self.start(k)

    def online(self):
        self.dies()
        return set(range(len(self.people)))

    def close(self, done):
        pass

    def exchange(self, requests, seconds):
        self.dies()
        for k, parts in requests.items():
            header = dict(wire.decode(parts[0])[0])
            moment = self.fate(k, header)
            answer = self.answer(k, parts, moment)
            self.dies()
            if answer is None:
                yield k, Lost("nothing came")
                continue
            if header["kind"] == "request":
                self.counted.setdefault((header["round"], header["exchange"]), []).append(k)
            yield k, answer
        self.dies()

    def answer(self, k, parts, moment):
        """What comes of a request: the answer, or nothing."""
        if moment in ("before", "evaluate"):
            return None
        if moment == "work":
            return self.die_at_work(k, parts)
        answer = self.people[k].answer(parts)
        if moment == "after":
            self.restart(k)
            return None
        return answer

    def die_at_work(self, k, parts):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(OneClient, "run", _dies)
            with pytest.raises(Died):
                self.people[k].answer(parts)
        self.restart(k)


def _dies(*given):
    raise Died


def tables(method, rounds, folder=None, **run):
    more = {} if folder is None else {"folder": str(folder)}
    return {
        "model": {"name": "mlp", "hidden": [4]}, "method": {"name": method},
        "local": {"epochs": 1, "batch_size": 4, "lr": 0.1}, "run": {"rounds": rounds, "device": "cpu", **more, **run},
    }  # fmt: skip


def keys(sites):
    return {f"site-{k}": f"ecdsa-sha2-nistp384 {k} somebody".encode() for k in range(len(sites.people))}


def served(settings, sites, said=None, **options):
    options.setdefault("limits", Limits(tries=0))
    say = (said if said is not None else []).append
    fed = sites.data
    return server.run(settings, sites, keys(sites), test=fed.global_test, classes=3, say=say, deadline=5.0, **options)


def simulated(settings, sites, lists):
    run = {name: value for name, value in settings["run"].items() if name != "folder"}
    run |= {"engine": "sequential", "clients_per_round": lists}
    return config.run({**settings, "run": run}, federation=sites.data)


def dropping(seed, share=0.3):
    """Each client drops out of each exchange with this chance, at a moment drawn by lot."""
    draw = random.Random(seed)

    def fate(k, header):
        if header["kind"] not in ("request", "evaluate") or draw.random() > share:
            return None
        return "evaluate" if header["kind"] == "evaluate" else draw.choice(MOMENTS[:3])

    return fate


def check_against_simulation(method, rounds, seed, folder):
    """A run with drop-outs, and the simulation with the same absences."""
    sites, said, moments = Sites(folder), [], set()
    fate = dropping(seed)
    sites.fate = lambda k, header: moments.add(moment := fate(k, header)) or moment
    settings = tables(method, rounds)
    run = served(settings, sites, said)
    lists = [sorted(sites.counted[t, 0]) for t in range(rounds)]
    assert moments == {None, *MOMENTS} and sites.restarts
    assert [line.get("lost", 0) for line in run.history] == [len(SIZES) - len(some) for some in lists]
    assert [line["clients"] for line in run.history] == [len(SIZES)] * rounds
    twin = simulated(settings, sites, lists)
    for name, value in twin.server.values.items():
        assert torch.equal(run.server.values[name], value) if isinstance(value, torch.Tensor) else True, name
    seen = ("train_loss", "test_accuracy", "test_loss", "batches")
    for mine, yours in zip(run.history, twin.history, strict=True):
        assert [mine[key] for key in seen] == [yours[key] for key in seen]
    return twin


def test_drop_outs_at_every_moment_leave_the_simulations_sums(tmp_path):
    """SCAFFOLD: the server's control variate is the mean of the clients' only if no answer counts at one end alone."""
    twin = check_against_simulation("scaffold", 5, 3, tmp_path)
    for k in range(len(SIZES)):  # all have heard of the last acknowledgement
        (file,) = (tmp_path / f"site-{k}").glob("*/state.safetensors")
        assert torch.equal(safetensors.torch.load_file(file)["control"], twin.clients[k]["control"])


@pytest.mark.slow
@pytest.mark.parametrize("method", ("fedavg", "scaffold", "feddyn"))
def test_thirty_rounds_of_drop_outs(method, tmp_path):
    check_against_simulation(method, 30, 1, tmp_path)


@pytest.mark.slow
def test_drop_outs_between_two_exchanges(tmp_path):
    """rFedAvg+ asks twice in a round: it ends, and whoever missed one of the two exchanges is counted as lost."""
    sites = Sites(tmp_path, fate=dropping(5))
    run = served(tables("rfedavg-plus", 30), sites)
    assert len(run.history) == 30 and torch.isfinite(run.server.w).all()
    both = [{*sites.counted[t, 0]} & {*sites.counted[t, 1]} for t in range(30)]
    assert [line.get("lost", 0) for line in run.history] == [len(SIZES) - len(some) for some in both]


# ---------------------------------------------------------------- servers that die


class Until:
    """Ends the server at the n-th event of the link, or of its disk."""

    def __init__(self, n):
        self.left, self.reached = n, False

    def __call__(self):
        self.left -= 1
        if self.left == 0:
            self.reached = True
            raise Died


def killed_and_resumed(folder, n, settings, expected):
    """Kill the server at its n-th event, go on, and compare; whether there was such an event."""
    where = folder / str(n)
    sites, until = Sites(where, SIZES[:3]), Until(n)
    sites.dies = until
    settings = {**settings, "run": {**settings["run"], "folder": str(where / "run")}}
    try:
        run = served(settings, sites)
    except Died:
        sites.dies = lambda: None
        for k in range(3):
            if n % 2:
                sites.restart(k)
        run = served(settings, sites, resume=(where / "run/config.toml").exists())
    assert torch.equal(run.server.w, expected.server.w) and torch.equal(run.server.control, expected.server.control)
    assert timeless(run.history) == timeless(expected.history)
    return until.reached


def events(folder):
    """An undisturbed run, and a list as long as what its link does."""
    sites, count = Sites(folder, SIZES[:3]), []
    sites.dies = lambda: count.append(1)
    return served(tables("scaffold", 2), sites), count


def test_a_server_killed_at_some_stages_goes_on(tmp_path):
    expected, count = events(tmp_path / "whole")
    for n in range(3, len(count) + 1, max(1, len(count) // 6)):
        assert killed_and_resumed(tmp_path, n, tables("scaffold", 2), expected)


@pytest.mark.slow
def test_a_server_killed_at_every_stage_goes_on(tmp_path):
    expected, count = events(tmp_path / "whole")
    n = 1
    while killed_and_resumed(tmp_path, n, tables("scaffold", 2), expected):
        n += 1
    assert n > len(count)


# ---------------------------------------------------------------- clients that die


def client_killed(folder, n, settings):
    """Kill a client at the n-th file that it puts into place, start it again; whether there was such a file. The run
    must be the simulation's without the rounds that it lost."""
    sites, until, real = Sites(folder / str(n), SIZES[:3]), Until(n), os.replace
    usual = sites.answer

    def answer(k, parts, moment):
        if k != 1:
            return usual(k, parts, moment)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "replace", lambda *given: (until(), real(*given))[1])
            try:
                return usual(k, parts, moment)
            except Died:
                pass
        sites.restart(k)
        return None

    sites.answer = answer
    rounds = settings["run"]["rounds"]
    run = served(settings, sites, limits=Limits(least=2, tries=0))
    lists = [sorted(sites.counted[t, 0]) for t in range(rounds)]
    if all(len(some) == 3 for some in lists):  # it died in a greeting, or not at all
        assert "lost" not in run.history[-1]
    twin = simulated(settings, sites, lists)
    assert torch.equal(run.server.w, twin.server.w) and torch.equal(run.server.control, twin.server.control)
    return until.reached


def test_a_client_killed_while_it_writes_loses_that_round_alone(tmp_path):
    settings = tables("scaffold", 3, evaluate_clients="none")
    assert client_killed(tmp_path, 4, settings) and client_killed(tmp_path, 6, settings)


@pytest.mark.slow
def test_a_client_killed_at_every_file(tmp_path):
    settings, n = tables("scaffold", 3), 1
    while client_killed(tmp_path, n, settings):
        n += 1
    assert n > 6


def test_the_one_that_left_is_not_waited_for(tmp_path):
    sites = Sites(tmp_path, SIZES[:3])
    usual = sites.exchange
    sites.exchange = lambda requests, s: ((k, Left("it has left") if k == 1 and _round(requests) else a)
                                          for k, a in usual(requests, s))  # fmt: skip
    run = served(tables("fedavg", 2), sites)
    assert [line["lost"] for line in run.history] == [1, 1] and json.dumps(run.history)


def _round(requests):
    return wire.decode(next(iter(requests.values()))[0])[0]["kind"] == "request"


def test_an_answer_that_comes_twice_counts_once(tmp_path):
    """Nor does one that nobody asked for count."""
    sites = Sites(tmp_path, SIZES[:3])
    usual = sites.exchange

    def twice(requests, seconds):
        for k, answer in usual(requests, seconds):
            yield k, answer
            yield k, answer
            yield 7, answer

    sites.exchange = twice
    settings = tables("fedavg", 2)
    assert torch.equal(served(settings, sites).server.w, simulated(settings, sites, [[0, 1, 2]] * 2).server.w)
