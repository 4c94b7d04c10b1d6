"""A federation's server and clients without a network between them: what is asked, answered, kept, and refused."""

import json
import re
import shutil

import numpy as np
import pytest
import safetensors.torch
import torch
from small import federation, refused, timeless

import unalike as ua
from unalike import config
from unalike.client import OneClient, Rehearsal
from unalike.contract.fields import LOSS
from unalike.data.remote import alone
from unalike.messages import wire
from unalike.messages.request import united
from unalike.network import client as clients
from unalike.network import server
from unalike.network.client import Client
from unalike.network.link import Lost
from unalike.network.policy import Policy

KEYS = {f"site-{k}": f"ecdsa-sha2-nistp384 {k} somebody".encode() for k in range(4)}
ON_PUBLIC = ("feddf", "fedmd", "dapper", "cronus", "data-sharing", "xormixfl")  # test_public_set.py has these
ON_HALVES = ("fedmeta",)  # clients' samples are divided in two: test_public_set.py too
METHODS = [n for n, method in ua.METHODS.items() if not method.pooled and not method.serverless]
METHODS = [name for name in METHODS if name not in (*ON_PUBLIC, *ON_HALVES)]
METHODS = [name for name in METHODS if ua.METHODS[name].asynchronous != "is"]  # test_arrivals_between.py


class Direct:
    """A network of function calls. `meddle(client, header, answer)` may change an answer or lose it."""

    def __init__(self, people, meddle=lambda client, header, answer: answer):
        self.people, self.meddle = people, meddle
        self.away = set()
        self.passed = {"down": 0, "up": 0}
        self.asked = []

    def online(self):
        return set(range(len(self.people))) - self.away

    def exchange(self, requests, seconds):
        for k, parts in requests.items():
            header, _ = united(parts)
            self.asked.append((k, header))
            if k in self.away:
                yield k, Lost("it has left")
                continue
            answer = self.meddle(k, header, self.people[k].answer(parts))
            if header["kind"] == "request":
                self.passed["down"] += sum(wire.payload(wire.decode(part)[1]) for part in parts)
                self.passed["up"] += payload(answer) if readable(answer) else 0
            if answer is not None:
                yield k, answer


def payload(answer):
    fields = wire.decode(answer)[1]
    return wire.payload({name: value for name, value in fields.items() if name != LOSS})


def readable(answer):
    try:
        return isinstance(answer, bytes) and wire.decode(answer)[0]["kind"] == "reply"
    except ua.UnalikeError:
        return False


def data(sizes=(8, 4, 12, 10)):
    return federation(sizes=sizes)


def own(fed, k):
    """Client k's data, as it has them."""

    def part(columns):
        return [columns.of(k)]

    further = {name: part(columns) for name, columns in fed.further.items()}
    return ua.Federation.from_arrays(part(fed.train), client_tests=part(fed.test), client_splits=further)


@pytest.fixture
def people(tmp_path):
    fed = data()
    rules = Policy.open(methods=tuple(ua.METHODS), repeatable=True, allow_samples=True)
    return [Client(own(fed, k), tmp_path / f"site-{k}", rules) for k in range(4)]


def tables(name="fedavg", rounds=3, **changes):
    out = {
        "model": {"name": "mlp", "hidden": [4]},
        "method": {"name": name},
        "local": {"epochs": 1, "batch_size": 4, "lr": 0.1},
        "run": {"rounds": rounds, "device": "cpu", "allow_samples": bool(ua.METHODS[name].ships)},
    }
    for table, values in changes.items():
        out[table] = {**out[table], **values}
    return out


def served(settings, link, said=None, **options):
    fed = data()
    say = (said if said is not None else []).append
    return server.run(settings, link, KEYS, test=fed.global_test, classes=3, say=say, deadline=5.0, **options)


def simulated(settings, public=None, **run):
    fed = data().replace(public=public)
    return config.run({**settings, "run": {**settings["run"], "engine": "sequential", **run}}, federation=fed)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------- the same run


@pytest.mark.parametrize("method", METHODS)
def test_a_federation_computes_what_a_simulation_does(method, people):
    same_as_simulated(tables(method), Direct(people))


def same_as_simulated(settings, link, **public):
    said = []
    real, simulation = served(settings, link, said, **public), simulated(settings, **public)
    assert not said
    close(real.server.w, simulation.server.w)
    # a real server does not learn who is in which cluster, nor how the global model does client by client
    hidden = {"gain_share", "lose_share", *(["clusters"] if "cluster" in simulation.method.keeps else [])}
    for mine, theirs in zip(timeless(real.history), timeless(simulation.history), strict=True):
        assert mine.keys() == theirs.keys() - hidden
        for key, value in mine.items():
            assert value == theirs[key] or value == pytest.approx(theirs[key], rel=1e-5, abs=1e-6), key
    for name in ("down", "up"):  # what really passed, against what the simulator counts
        assert link.passed[name] == simulation.summary()[f"bytes_{name}"] == real.summary()[f"bytes_{name}"]


@pytest.mark.parametrize("changes", [{"run": {"dtype": "float64"}}, {"run": {"clients_per_round": 2}}])
def test_other_settings_too(changes, people):
    settings = tables("scaffold", **changes)
    close(served(settings, Direct(people)).server.w, simulated(settings).server.w)


def test_clients_keep_what_the_simulator_would(people, tmp_path):
    settings = tables("scaffold")
    served(settings, Direct(people))
    simulation = simulated(settings)
    for k in range(4):
        close(kept(tmp_path, k)["control"], simulation.clients[k]["control"])


def kept(folder, k):
    (file,) = (folder / f"site-{k}").glob("*/state.safetensors")
    return safetensors.torch.load_file(file)


def test_nothing_that_is_pooled(people):
    with refused("site-0: Centralized pools data, which stay here"):
        served(tables("centralized"), Direct(people))


# ---------------------------------------------------------------- what is lost


def means_agree(run, folder):
    """SCAFFOLD's server keeps the mean of the clients' control variates: only if no reply counts at one end alone."""
    total = sum(kept(folder, k)["control"] for k in range(4))
    close(run.server.control * 4, total)


@pytest.mark.parametrize("evaluated", ["all", "none"])
def test_an_answer_that_is_lost_counts_at_neither_end(evaluated, people, tmp_path):
    def meddle(k, header, answer):
        return None if k == 2 and header.get("round") == 1 else answer

    said = []
    settings = tables("scaffold", rounds=4, run={"evaluate_clients": evaluated})
    run = served(settings, Direct(people, meddle), said)
    assert any("site-2 is left out" in text and "no answer within 5 s" in text for text in said)
    assert [line.get("lost") for line in run.history] == [None, 1, None, None]
    assert said[-1] == "clients lost: 1, in 1 of 4 rounds"
    means_agree(run, tmp_path)
    lists = [[0, 1, 2, 3], [0, 1, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    close(run.server.w, simulated(settings, clients_per_round=lists).server.w)


def test_a_client_that_answers_half_a_round_is_left_out_of_it(people, tmp_path):
    """FedFa: the first exchange of round 2 is answered by all, the second not by site-1; its count must not go up."""

    def meddle(k, header, answer):
        return Lost("it has left") if (k, header.get("round"), header.get("exchange")) == (1, 1, 1) else answer

    served(tables("fedfa"), Direct(people, meddle))
    assert [int(kept(tmp_path, k)["taken"]) for k in range(4)] == [3, 2, 3, 3]


def test_a_client_that_is_away_and_comes_back(people, tmp_path):
    link = Direct(people)

    class Absent(ua.Callback):
        def on_round(self, run, line):
            link.away = {3} if line["round"] in (1, 2) else set()

    settings = tables("scaffold", rounds=4)
    run = served(settings, link, callbacks=[Absent()])
    means_agree(run, tmp_path)
    everybody, most = [0, 1, 2, 3], [0, 1, 2]
    close(run.server.w, simulated(settings, clients_per_round=[everybody, most, most, everybody]).server.w)


def test_a_client_that_is_started_anew_goes_on(people, tmp_path):
    link = Direct(people)

    class Restart(ua.Callback):
        def on_round(self, run, line):
            link.people[1].close()  # as the end of its process does
            link.people[1] = Client(own(data(), 1), tmp_path / "site-1", Policy.open(repeatable=True))

    settings = tables("scaffold")
    close(served(settings, link, callbacks=[Restart()]).server.w, simulated(settings).server.w)


def test_nobody_answers(people, tmp_path):
    link = Direct(people, lambda k, header, answer: None if header.get("round") == 1 else answer)
    with refused("Round 2: none of 4 clients gave an answer of use in time"):
        served(tables("scaffold", run={"folder": str(tmp_path / "run")}), link)
    link.meddle = lambda k, header, answer: answer
    settings = tables("scaffold", run={"folder": str(tmp_path / "run")})
    done = served(settings, link, resume=True)
    close(done.server.w, simulated(tables("scaffold")).server.w)


def test_a_request_that_is_repeated_is_not_trained_again(people, monkeypatch):
    """The network brings every request twice: the second gets the first's answer, and SCAFFOLD does not move twice."""
    trained = []
    run = OneClient.run

    def spy(self, *args):
        trained.append(not isinstance(self.job, Rehearsal))  # the server's own is no client's
        return run(self, *args)

    monkeypatch.setattr(OneClient, "run", spy)

    class Twice(Direct):
        def exchange(self, requests, seconds):
            for k, parts in requests.items():
                first = self.people[k].answer(parts)
                if united(parts)[0]["kind"] == "request":
                    assert self.people[k].answer(parts) == first
                yield k, first

    for method in ("fedavg", "scaffold"):  # with state and without
        trained.clear()
        settings = tables(method, run={"evaluate_clients": "none"})
        real = served(settings, Twice(people))
        assert sum(trained) == 4 * 3
        close(real.server.w, simulated(settings).server.w)


# ---------------------------------------------------------------- the server is started anew


@pytest.mark.parametrize("method", ["scaffold", "fedfa", "fedavg"])
@pytest.mark.parametrize("when", ["before the checkpoint", "after the checkpoint"])
def test_a_server_that_dies_goes_on_where_it_was(method, when, people, tmp_path):
    class Die(ua.Callback):
        """on_round comes before the round's checkpoint, and the end after it."""

        def on_round(self, run, line):
            if line["round"] == 2 and when == "before the checkpoint":
                raise KeyboardInterrupt
            return line["round"] == 2

    settings = tables(method, rounds=4, run={"folder": str(tmp_path / "run")})
    if when == "before the checkpoint":
        with pytest.raises(KeyboardInterrupt):
            served(settings, Direct(people), callbacks=[Die()])
    else:
        served(settings, Direct(people), callbacks=[Die()])
    real = served(settings, Direct(people), resume=True)
    close(real.server.w, simulated(tables(method, rounds=4)).server.w)


def test_a_new_run_of_the_same_config_begins_anew(people):
    settings = tables("scaffold")
    first = served(settings, Direct(people))
    close(served(settings, Direct(people)).server.w, first.server.w)


def test_state_that_is_gone_is_said(people, tmp_path):
    settings = tables("scaffold", run={"folder": str(tmp_path / "run")})

    class Lose(ua.Callback):
        def on_round(self, run, line):
            if line["round"] == 2:
                for file in (tmp_path / "site-0").glob("*/*.safetensors"):
                    file.unlink()

    said = []
    served(settings, Direct(people), said, callbacks=[Lose()])
    assert any("site-0 is left out" in t and "counts on this client's state of round 2" in t for t in said)


# ---------------------------------------------------------------- answers of no use


def changed(answer, tensors=None, **header):
    old, fields = wire.decode(answer)
    old.pop("format")
    return wire.encode({**old, **header}, {**fields, **(tensors or {})})


def without(answer, name):
    header, fields = wire.decode(answer)
    header.pop("format")
    return wire.encode(header, {k: v for k, v in fields.items() if k != name})


P = 5 * 4 + 4 + 4 * 3 + 3  # the model's parameters
HOSTILE = {
    "nothing": (lambda a: b"", "too short"),
    "cut short": (lambda a: a[:-3], "not readable"),
    "another program's": (lambda a: b"\x80\x04\x95" + a, "header"),
    "a request": (lambda a: changed(a, kind="request"), "no reply"),
    "of another round": (lambda a: changed(a, round=7), "another request: round"),
    "of another exchange": (lambda a: changed(a, exchange=3), "another request: exchange"),
    "of another run": (lambda a: changed(a, run="0" * 16), "another request: run"),
    "of another method": (lambda a: changed(a, method="FedAvg"), "another request: method"),
    "of other settings": (lambda a: changed(a, settings="0" * 12), "another request: settings"),
    "of another version": (lambda a: changed(a, version="9"), "another request: version"),
    "of another function": (lambda a: changed(a, function="done"), "another request: function"),
    "more samples": (lambda a: changed(a, samples=10**9), "1000000000 samples now"),
    "half a sample": (lambda a: changed(a, samples=12.0), "samples now"),
    "true samples": (lambda a: changed(a, samples=True), "samples now"),
    "no number for a loss": (lambda a: changed(a, {LOSS: torch.tensor(float("nan")).double()}), "loss is no number"),
    "losses": (lambda a: changed(a, {LOSS: torch.zeros(3).double()}), "loss is no number"),
    "a loss of another kind": (lambda a: changed(a, {LOSS: torch.tensor(3)}), "loss is no number"),
    "an infinite loss": (lambda a: changed(a, {LOSS: torch.tensor(float("inf")).double()}), "loss became infinite"),
    "many trainings": (lambda a: changed(a, trained=1 << 40), "trained"),
    "NaN": (lambda a: changed(a, {"delta": torch.full((P,), float("nan"))}), "NaN or infinite"),
    "infinity": (lambda a: changed(a, {"delta": torch.full((P,), float("inf"))}), "NaN or infinite"),
    "another shape": (lambda a: changed(a, {"delta": torch.zeros(P + 1)}), "shape"),
    "one number for all": (lambda a: changed(a, {"delta": torch.zeros(1)}), "shape"),
    "another dtype": (lambda a: changed(a, {"delta": torch.zeros(P, dtype=torch.float64)}), "float64"),
    "a field too many": (lambda a: changed(a, {"gift": torch.zeros(3)}), "does not declare"),
    "a field too few": (lambda a: without(a, "control"), "it sent delta, and client sends control, delta"),
    "an error": (lambda a: wire.encode({"kind": "error", "reason": "x" * 9999}, {}), "xxx"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_answer_of_no_use_is_left_out(name, people, tmp_path):
    """Client 2 lies in round 2, in one way each; the round closes with the others as if it had been silent."""
    garble, reason = HOSTILE[name]

    def meddle(k, header, answer):
        return garble(answer) if k == 2 and header["kind"] == "request" and header["round"] == 1 else answer

    said = []
    settings = tables("scaffold", rounds=2, run={"evaluate_clients": "none"})
    run = served(settings, Direct(people, meddle), said)
    (told,) = [text for text in said if "left out" in text]
    assert told.startswith("site-2 is left out") and reason in told and "\n" not in told and len(told) < 700
    close(run.server.w, simulated(settings, clients_per_round=[[0, 1, 2, 3], [0, 1, 3]]).server.w)


def test_an_evaluation_that_lies_is_left_out(people):
    def meddle(k, header, answer):
        return changed(answer, {"accuracy": torch.ones(4)}) if k == 1 and header["kind"] == "evaluate" else answer

    said = []
    run = served(tables(), Direct(people, meddle), said)
    assert any("site-1 is left out" in t and "one number each" in t for t in said)
    assert list(run.client_values["client"]) == [0, 2, 3]


METRICS = ["auc", "f1", "accuracy", "balanced_accuracy", "log_loss", "brier", "calibration_error"]


@pytest.mark.parametrize("method", ["fedavg", "local-only"])
def test_metrics_of_a_whole_set_are_those_of_a_simulation(method, people):
    """Also the numbers over all clients' samples together, of which the server sees sums only."""
    settings = tables(method, model={"metrics": METRICS})
    said = []
    real, simulation = served(settings, Direct(people), said), simulated(settings)
    assert not said
    for mine, theirs in zip(timeless(real.history), timeless(simulation.history), strict=True):
        assert mine.keys() == theirs.keys() and {f"pooled_{name}" for name in METRICS} <= mine.keys()
        for key, value in mine.items():
            assert value == theirs[key] or value == pytest.approx(theirs[key], rel=1e-5, abs=1e-6), key


def test_a_metric_that_a_client_does_not_have_is_left_out_of_its_answer(people):
    x, y = people[1].data.test.of(0)
    people[1].data = people[1].data.replace(test=ua.data.Columns(x[:1], y[:1], [0, 1]))
    said = []
    run = served(tables(model={"metrics": METRICS}), Direct(people), said)
    assert not said and np.isnan(run.client_values["auc"]).tolist() == [False, True, False, False]
    assert run.history[-1]["clients_auc_count"] == 3 and "clients_accuracy_count" not in run.history[-1]


LIES = {
    "a share above 1": ({"f1": torch.tensor(1.5, dtype=torch.float64)}, r"its f1 is 1.5: it must be in \[0, 1\]"),
    "a loss that is missing": ({"loss": None}, "one number each"),
    "means that are missing": ({"means.classes": None}, "one number each"),
    "a metric more": ({"other": torch.tensor(1.0)}, "one number each"),
    "means of another shape": ({"means.classes": torch.zeros(4, dtype=torch.float64)}, "must be 9 numbers, float64"),
    "means of another kind": ({"means.classes": torch.zeros(9, dtype=torch.int64)}, "must be 9 numbers, float64"),
    "means of no samples": ({"means.classes": torch.zeros(9, dtype=torch.float64)}, "cannot be the means of samples"),
    "bins below 0": ({"means.bins": -torch.ones(6 * 8192, dtype=torch.float64)}, "cannot be the means of samples"),
    "infinite": ({"means.bins": torch.full((6 * 8192,), torch.inf, dtype=torch.float64)}, "NaN or infinite"),
}


@pytest.mark.parametrize("name", LIES)
def test_an_evaluation_of_metrics_that_lies_is_left_out(name, people):
    fields, words = LIES[name]

    def meddle(k, header, answer):
        if k != 1 or header["kind"] != "evaluate":
            return answer
        missing = [field for field, value in fields.items() if value is None]
        return without(answer, missing[0]) if missing else changed(answer, fields)

    said = []
    run = served(tables(rounds=1, model={"metrics": METRICS}), Direct(people, meddle), said)
    assert any("site-1 is left out" in text and re.search(words, text) for text in said), said
    assert list(run.client_values["client"]) == [0, 2, 3]


FACTS = {
    "nothing": None,
    "no sizes": {"sizes": {}},
    "no training samples": {"sizes": {"train": 0, "test": 0, "validation": 0}},
    "minus samples": {"sizes": {"train": -5, "test": 0, "validation": 0}},
    "a shape beyond measure": {"x": [True, [1 << 20, 1 << 20]]},
    "a shape that is text": {"x": [True, "5"]},
    "classes beyond measure": {"classes": 1 << 40},
}


@pytest.mark.parametrize("name", FACTS)
def test_a_client_that_does_not_say_what_it_has(name, people):
    def meddle(k, header, answer):
        if k != 1 or header["kind"] != "hello":
            return answer
        facts = wire.decode(answer)[0]["facts"]
        return changed(answer, facts=FACTS[name] and {**facts, **FACTS[name]})

    with refused("site-1 does not say properly"):
        served(tables(), Direct(people, meddle))


def test_clients_with_other_data(people, tmp_path):
    x, y = torch.zeros(4, 6), torch.zeros(4, dtype=torch.int64)
    people[2] = Client(ua.Federation.from_arrays([(x, y)]), tmp_path / "other")
    with refused(r"site-2 has samples x float \[6\], y integer \[\], and site-0 x float \[5\]"):
        served(tables(), Direct(people))


def test_a_client_that_never_comes(people):
    link = Direct(people)
    link.away = {1, 3}
    with refused("no sign of site-1, site-3"):
        served(tables(), link, wait=0.01)


# ---------------------------------------------------------------- requests of no use


@pytest.fixture
def planned(people, tmp_path):
    """A client in the middle of a run, the parts of a good request, and the run's name."""
    caught = {}

    def meddle(k, header, answer):
        return answer

    class Catch(Direct):
        def exchange(self, requests, seconds):
            for k, parts in requests.items():
                header = united(parts)[0]
                caught.setdefault((k, header["kind"]), parts)
            return super().exchange(requests, seconds)

    served(tables("scaffold", rounds=2), Catch(people, meddle))
    return people[0], caught


def error(client, *parts):
    header, tensors = wire.decode(client.answer(parts))
    assert header["kind"] == "error" and not tensors and "\n" not in header["reason"], header
    return header["reason"]


def asked(parts, tensors=None, **changes):
    header, fields = united(parts)
    return wire.encode({**header, **changes}, {**fields, **(tensors or {})})


REQUESTS = {
    "nothing": (lambda p: b"", "too short"),
    "garbage": (lambda p: b"\x80\x04\x95" * 50, "header"),
    "no kind": (lambda p: asked(p, kind=None), "kind None"),
    "a kind that is a list": (lambda p: asked(p, kind=["request"]), "kind"),
    "an unknown kind": (lambda p: asked(p, kind="shell"), "kind 'shell'"),
    "a run elsewhere": (lambda p: asked(p, run="../../../../tmp"), "no run's name"),
    "a run that is none": (lambda p: asked(p, run=None), "no run's name"),
    "an unknown run": (lambda p: asked(p, run="0" * 16), "one run at a time, now"),
    "another method": (lambda p: asked(p, method="FedAvg"), "method 'FedAvg'"),
    "other settings": (lambda p: asked(p, settings="0" * 12), "settings"),
    "another version": (lambda p: asked(p, version="9"), "version '9'"),
    "a private function": (lambda p: asked(p, function="__init__"), "no function '__init__'"),
    "the server's function": (lambda p: asked(p, function="round"), "no function 'round'"),
    "a round before all": (lambda p: asked(p, round=-7), "round -7"),
    "an acknowledged future": (lambda p: asked(p, acknowledged=99), "acknowledges round 99"),
    "its own round acknowledged": (lambda p: asked(p, acknowledged=united(p)[0]["round"]), "must be one up to"),
    "an acknowledged text": (lambda p: asked(p, acknowledged="all"), "acknowledges round 'all'"),
    "NaN": (lambda p: asked(p, {"w": torch.full((P,), float("nan"))}), "NaN or infinite"),
    "another shape": (lambda p: asked(p, {"w": torch.zeros(P + 1)}), r"must end in [39]"),
    "one number for all": (lambda p: asked(p, {"w": torch.zeros(1)}), r"must end in [39]"),
    "another kind of number": (lambda p: asked(p, {"w": torch.zeros(P, dtype=torch.uint8)}), "uint8"),
    "too many fields": (lambda p: asked(p, {f"f{k}": torch.zeros(1) for k in range(99)}), "fields"),
}


def files(client):
    """What it keeps on disk, but for the log, which notes refusals too."""
    found = [f for f in client.folder.rglob("*") if f.is_file() and "audit" not in f.name]
    return {f: f.read_bytes() for f in found}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_client_refuses(name, planned):
    client, caught = planned
    garble, reason = REQUESTS[name]
    before = files(client)
    assert reason in error(client, garble(caught[0, "request"]))
    assert files(client) == before


def test_a_message_whose_parts_say_the_same_twice(planned):
    client, caught = planned
    shared, mine = caught[0, "request"]
    assert "in two of its parts" in error(client, shared, mine, mine)


def test_a_client_says_no_more_than_the_kind_of_a_fault_of_its_own(planned, monkeypatch):
    client, caught = planned
    monkeypatch.setitem(clients.ANSWERS, "request", lambda *a: 1 / 0)
    said = []
    client.say = said.append
    assert error(client, *caught[0, "request"]) == "a fault inside the client, ZeroDivisionError: its log has more."
    assert "division by zero" in said[0]


PLANS = {
    "nothing": None,
    "a list": [],
    "another version": {"version": "9"},
    "no clients": {"clients": 0},
    "minus one": {"client": -1},
    "one beyond": {"client": 4},
    "classes as text": {"classes": "3"},
    "too few classes": {"classes": 1},
    "no mean": {"mean": 0.0},
    "NaN": {"mean": float("nan")},
    "tables as text": {"tables": "all"},
    "data of its own": {"tables": {"data": {"folder": "/"}}},
    "an unknown method": {"tables": {"method": {"name": "fedevil"}}},
    "an unknown setting": {"tables": {"method": {"name": "fedavg", "shell": "x"}}},
    "an unknown model": {"tables": {"model": {"name": "backdoor"}}},
    "a wrong kind": {"tables": {"local": {"lr": "fast"}}},
    "pooled": {"tables": {"method": {"name": "centralized"}}},
    "a method's file": {"tables": {"method": {"file": "/etc/evil.py:Evil"}}},
    "a model's file": {"tables": {"model": {"file": "evil.py:build"}}},
    "a loss's file": {"tables": {"model": {"name": "linear", "loss": "evil.py:loss"}}},
    "a metric's file": {"tables": {"model": {"name": "linear", "metrics": ["evil.py:metric"]}}},
    "another seed": {"run": {"seed": -1}},
}


@pytest.mark.parametrize("name", PLANS)
def test_a_client_refuses_a_plan(name, planned):
    client, caught = planned
    header, _ = united(caught[0, "plan"])
    plan = {**header["plan"], **PLANS[name]} if isinstance(PLANS[name], dict) else PLANS[name]
    run = "f" * 16
    assert error(client, wire.encode({**header, "run": run, "plan": plan}, {}))
    assert not (client.folder / run / "plan.json").exists()


# ---------------------------------------------------------------- a client's own rules

OWN = """
import dataclasses
import unalike as ua

@dataclasses.dataclass(frozen=True)
class Mine(ua.Method):
    factor: float = 1.0

    def round(self, server, cohort):
        server.w = server.w + self.factor * cohort.call(self.client, w=server.w).mean("delta")
"""


def with_rules(tmp_path, rules):
    return Direct([Client(own(data(), k), tmp_path / f"ruled-{k}", rules) for k in range(4)])


def test_methods_it_does_not_run(tmp_path):
    with refused("site-0: The run is of 'scaffold'; this client runs fedavg, fedprox only"):
        served(tables("scaffold"), with_rules(tmp_path, Policy.open(methods=("fedavg", "fedprox"))))
    served(tables("fedprox"), with_rules(tmp_path / "again", Policy.open(methods=("fedavg", "fedprox"))))
    with refused("There is no method 'fedvag'. Did you mean 'fedavg'"):
        Policy.open(methods=("fedvag",))


def test_a_method_of_ones_own_needs_the_same_file_at_both_ends(tmp_path):
    there, here = tmp_path / "there" / "mine.py", tmp_path / "here" / "mine.py"
    for file in (there, here):
        file.parent.mkdir()
        file.write_text(OWN)
    settings = tables(method={"file": f"{there}:Mine", "factor": 0.5})
    del settings["method"]["name"]
    with refused("this client was not given mine.py"):
        served(settings, with_rules(tmp_path / "none", Policy.open()))
    run = served(settings, with_rules(tmp_path / "both", Policy.open(files=(here,), repeatable=True)))
    close(run.server.w, simulated(settings).server.w)
    here.write_text(OWN + "\n")
    with refused("The run's mine.py is not this client's mine.py"):
        served(settings, with_rules(tmp_path / "changed", Policy.open(files=(here,))))


def test_more_steps_than_it_does(tmp_path):
    with refused("site-2: The run wants 3 steps per round of this client, which does 2 at most"):
        served(tables(), with_rules(tmp_path, Policy.open(max_steps=2)))


def test_privacy_noise_is_the_clients_own(tmp_path):
    """A server that knows the seed could subtract noise drawn from it."""
    noisy = tables("rfedavg-plus", method={"noise_std": 1.0, "clip": 1.0, "lam": 1.0})
    known = simulated(noisy).server.w
    close(served(noisy, with_rules(tmp_path / "seeded", Policy.open(repeatable=True))).server.w, known)
    own_noise = served(noisy, with_rules(tmp_path / "own", Policy.open())).server.w
    assert (own_noise - known).abs().max() > 1e-4


def test_one_process_a_folder(tmp_path, people):
    with refused("in use by another process"):
        Client(own(data(), 0), tmp_path / "site-0")


def test_one_client_brings_its_own_data_alone(tmp_path):
    with refused("these are the data of 4 clients"):
        Client(data(), tmp_path / "all")
    with refused("these are the data of 4 clients"):
        alone(data(), 0, 4)


def test_a_run_may_have_more_classes_than_a_client_has_names_for(tmp_path, people):
    few = own(data(), 1)
    few = few.replace(train=few.train.take(np.flatnonzero(few.train.y < 2), [int((few.train.y < 2).sum())]), test=None)
    two = few.replace(classes=2, names=["ann"], label_names=["cat", "dog"])
    people[1] = Client(two, tmp_path / "two", Policy.open())
    run = served(tables(), Direct(people))
    assert run.data.classes == 3 and run.data.sizes[1] == len(two.train.y)


def test_checkpoints_of_every_round(people):
    with refused("checkpoint_every must be 1"):
        served(tables(run={"checkpoint_every": 2}), Direct(people))


def test_the_engine_alone_says_where_to_go():
    with refused("use `unalike local-federation N run.toml`"):
        ua.simulate(ua.models.build("linear", features=5, classes=3), data(), ua.FedAvg(), rounds=1, engine="flower")


def test_a_plan_is_kept_for_a_later_start(planned):
    client, _ = planned
    (file,) = client.folder.glob("*/plan.json")
    assert json.loads(file.read_text())["plan"]["client"] == 0
    shutil.rmtree(client.folder)
