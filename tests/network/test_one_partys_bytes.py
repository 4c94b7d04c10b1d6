"""One party's bytes cost only that party's round: hostile answers and claims, and what a server takes at most."""

import json
import re

import pytest
import torch
from small import refused
from test_network_messages import KEYS, Direct, P, changed, close, data, own, people, served, simulated, tables

import unalike as ua
from unalike.contract.fields import LOSS
from unalike.messages import wire
from unalike.network import attendance, server
from unalike.network.client import Client
from unalike.network.limits import Bound, Limits
from unalike.network.link import Lost
from unalike.network.policy import Policy
from unalike.network.status_file import STATUS
from unalike.text import printable

__all__ = ["people"]  # a fixture
NONE = {"evaluate_clients": "none"}


def lying(garble, client=2, kind="request", when=lambda header: True):
    def meddle(k, header, answer):
        return garble(answer) if k == client and header["kind"] == kind and when(header) else answer

    return meddle


def left_out(said, name):
    return [text for text in said if text.startswith(f"{name} is left out")]


# ---------------------------------------------------------------- answers

HOSTILE = {
    "complex": (
        lambda a: changed(a, {"delta": torch.ones(P, dtype=torch.complex64)}),
        "complex64: it must be torch.float32",
    ),
    "complex NaN": (lambda a: changed(a, {"delta": torch.full((P,), complex("nan"))}), "complex64"),
    "whole numbers": (lambda a: changed(a, {"delta": torch.full((P,), 1 << 62)}), "int64: it must be torch.float32"),
    "truths": (lambda a: changed(a, {"delta": torch.ones(P, dtype=torch.bool)}), "bool: it must be torch.float32"),
    "bytes": (lambda a: changed(a, {"delta": torch.ones(P, dtype=torch.uint8)}), "uint8: it must be torch.float32"),
    "the largest float": (lambda a: changed(a, {"delta": torch.full((P,), 3.4e38)}), "3.4e\\+38, which no training"),
    "1e30": (lambda a: changed(a, {"delta": torch.full((P,), -1e30)}), "1e\\+30, which no training makes"),
    "a loss beyond measure": (
        lambda a: changed(a, {LOSS: torch.tensor(1e300, dtype=torch.float64)}),
        "its loss is 1e\\+300",
    ),
    "a complex loss": (lambda a: changed(a, {LOSS: torch.tensor(1j, dtype=torch.complex64)}), "loss is no number"),
    "samples of 400 digits": (lambda a: changed(a, samples=10**400), "samples now"),
    "batches of 400 digits": (lambda a: changed(a, batches=10**400), "mini-batches"),
    "a list of samples": (lambda a: changed(a, samples=[7] * 300_000), r"\[7, 7, 7"),
    "an escape": (lambda a: wire.encode({"kind": "error", "reason": "\x1b[2J\nroot# "}, {}), r"\\x1b\[2J\\nroot#"),
    "a long name": (lambda a: changed(a, {"x" * 1_000_000: torch.zeros(1)}), "does not declare"),
    "a name that moves": (lambda a: changed(a, {"\x1b[31m\u202e": torch.zeros(1)}), r"x1b\[31m"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_answer_of_any_kind_costs_its_client_the_round_and_nobody_else(name, people):
    garble, reason = HOSTILE[name]
    said, settings = [], tables("fedavg", rounds=2, run=NONE)
    run = served(settings, Direct(people, lying(garble, when=lambda header: header["round"] == 0)), said)
    (told,) = left_out(said, "site-2")
    assert re.search(reason, told), told
    assert told.isprintable() and len(told) < 700
    close(run.server.w, simulated(settings, clients_per_round=[[0, 1, 3], [0, 1, 2, 3]]).server.w)


def test_a_fault_while_an_answer_is_read_is_that_clients(people, monkeypatch):
    """Whatever a decoder raises: nobody can list all of it."""
    from unalike.engines import flower

    real = flower.check_kinds

    def fragile(up, *rest):
        if any((value == 7).any() for value in up.values()):
            raise ZeroDivisionError("nobody thought of that")
        real(up, *rest)

    monkeypatch.setattr(flower, "check_kinds", fragile)
    said = []
    run = served(
        tables(rounds=1, run=NONE), Direct(people, lying(lambda a: changed(a, {"delta": torch.full((P,), 7.0)}))), said
    )
    assert "cannot be read (ZeroDivisionError: nobody thought of that)" in left_out(said, "site-2")[0]
    assert run.history[0]["lost"] == 1


SCORES = {
    "complex": {"loss": torch.tensor(1j, dtype=torch.complex64)},
    "complex NaN": {"loss": torch.tensor(complex("nan"), dtype=torch.complex64)},
    "1e18": {"loss": torch.tensor(1e18)},
    "2.5e37": {"loss": torch.tensor(2.5e37)},
    "whole": {"loss": torch.tensor(1 << 60)},
    "nested": {"loss": torch.ones(1, 1)},
    "a truth": {"accuracy": torch.tensor(True)},
}


@pytest.mark.parametrize("name", SCORES)
def test_an_absurd_evaluation_is_left_out_of_the_mean(name, people):
    said, settings = [], tables(rounds=1)
    run = served(settings, Direct(people, lying(lambda a: changed(a, SCORES[name]), 1, "evaluate")), said)
    assert left_out(said, "site-1") and 0 < run.history[0]["clients_loss"] < 10
    assert run.client_values["client"].tolist() == [0, 2, 3]


def test_a_state_that_became_infinite_is_not_written_down(people, tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "import unalike as ua\n\n\nclass Break(ua.FedAvg):\n    def round(self, server, cohort):\n"
        "        super().round(server, cohort)\n        server.w = server.w / (1 - cohort.round)\n"
    )
    for person in people:
        person.policy = Policy.open(files=(file,), repeatable=True)
    settings = {**tables(run={"folder": str(tmp_path / "run"), **NONE}), "method": {"file": f"{file}:Break"}}
    with pytest.raises(ua.UnalikeError, match="Round 2: the server's 'w' became NaN or infinite; the last checkpoint"):
        served(settings, Direct(people))
    assert json.loads((tmp_path / "run" / "checkpoint" / "manifest.json").read_text())["round"] == 1


# ---------------------------------------------------------------- norms


def test_an_update_beyond_the_cohorts_median_is_left_out(people):
    said, settings = [], tables(rounds=1, run=NONE)
    for client in (0, 2):  # the first to answer, before there is a median, and one in the middle
        link = Direct(people, lying(lambda a: changed(a, {"delta": torch.full((P,), 5.0)}), client))
        run = served(settings, link, said, limits=Limits(norm=Bound.read("4x", "--max-norm")))
        assert "the norm of its 'delta' is 31.2, and at most" in left_out(said, f"site-{client}")[0]
        others = [k for k in range(4) if k != client]
        close(run.server.w, simulated(settings, clients_per_round=[others]).server.w)
    said.clear()
    link = Direct(people, lying(lambda a: changed(a, {"delta": torch.full((P,), 5.0)})))
    served(settings, link, said, limits=Limits(norm=Bound.read("31", "--max-norm")))
    assert "at most 31 is taken" in left_out(said, "site-2")[0]
    said.clear()
    served(settings, Direct(people), said, limits=Limits(norm=Bound.read("31,4x", "--max-norm")))
    assert not said


def test_bounds_are_read_and_judged():
    assert Bound.read("1e6,5x", "") == Bound(1e6, 5.0) and Bound.read("none", "") == Bound()
    assert Bound(times=5.0).limit([1.0, 2.0, 90.0]) == 10.0
    assert Bound(7.0, 5.0).limit([1.0, 2.0, 90.0]) == 7.0
    assert Bound(times=5.0).limit([1.0, 90.0]) == Bound(times=5.0).limit([0.0, 0.0, 3.0]) == float("inf")
    for wrong in ("x", "-1", "0x", "nan", "5y", ""):
        with refused("--max-norm must be a number"):
            Bound.read(wrong, "--max-norm")
    for wrong in ({"least": 0}, {"tries": -1}, {"enough": 0.0}, {"enough": 1.5}, {"classes": 0}):
        with refused(f"{next(iter(wrong))} must be"):
            Limits(**wrong)
    assert [Limits(enough=e).sufficient(10) for e in (1.0, 0.75, 8, 20)] == [10, 8, 8, 10]


# ---------------------------------------------------------------- claims


def claiming(client, **facts):
    def meddle(k, header, answer):
        if k != client or header["kind"] != "hello":
            return answer
        told = wire.decode(answer)[0]["facts"]
        sizes = {**told["sizes"], **facts.get("sizes", {})}
        return changed(answer, facts={**told, **facts, "sizes": sizes})

    return meddle


CLAIMS = {
    "samples": (dict(sizes={"train": 10**12}), "says that it has 1,000,000,000,000 samples, and the server takes"),
    "classes": (dict(classes=4_000_000), "says that it has 4,000,000 classes: say how many"),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_out_of_line_is_refused_before_anybody_gets_a_plan(name, people):
    facts, words = CLAIMS[name]
    link = Direct(people, claiming(1, **facts))
    with refused(f"site-1 {words}"):
        served(tables(), link)
    assert [header["kind"] for _, header in link.asked if header["kind"] != "hello"] == ["notice"]
    said, settings = [], tables(rounds=1, run=NONE)
    run = served(settings, Direct(people, claiming(1, **facts)), said, limits=Limits(least=3))
    assert any(text.startswith("site-1 does not take part now: it says") for text in said)
    close(run.server.w, simulated(settings, clients_per_round=[[0, 2, 3]]).server.w)


def test_caps_that_the_server_is_told(people):
    with refused("site-2 says that it has 12 samples, and the server takes at most 11"):
        served(tables(), Direct(people), limits=Limits(samples=Bound(11)))
    with refused(r"site-3 says that it has 9 classes: the run has 3 \(--classes\)"):
        served(tables(model={"classes": 3}), Direct(people, claiming(3, classes=9)))
    assert served(tables(rounds=0), Direct(people), limits=Limits(classes=5)).data.classes == 5


def test_it_is_said_who_weighs_more_than_all_others_together(people):
    said = []
    served(tables(rounds=0), Direct(people, claiming(0, sizes={"train": 1000})), said)
    assert any(text.startswith("site-0 says that it has 1,000 of 1,026 samples, and weighs 97.5%") for text in said)


# ---------------------------------------------------------------- who is there


def test_it_begins_with_enough_clients_and_takes_in_the_others_when_they_come(people, tmp_path, monkeypatch):
    """Site 3 comes after round 1. It gets hello and plan then; its own size weighs, not the stand-in's."""
    monkeypatch.setattr(server, "GRACE", 0.0)
    link, said = Direct(people), []
    link.away = {3}

    class Come(ua.Callback):
        def on_round(self, run, line):
            link.away = set()

    folder = tmp_path / "run"
    settings = tables("scaffold", rounds=3, run={"folder": str(folder)})
    run = served(settings, link, said, callbacks=[Come()], limits=Limits(least=3))
    assert said[0] == "beginning with 3 of 4 clients, without site-3" and "site-3 has joined" in said
    assert [line.get("lost") for line in run.history] == [1, None, None]
    lists = [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3]]
    del settings["run"]["folder"]
    close(run.server.w, simulated(settings, clients_per_round=lists).server.w)
    assert run.engine.sizes.tolist() == [8, 4, 12, 10]
    assert run.client_values["client"].tolist() == [0, 1, 2, 3]  # it is judged too
    told = json.loads((folder / STATUS).read_text())
    assert (told["round"], told["done"], told["lost"]) == (3, True, 1)
    assert [one["state"] for one in told["clients"]] == ["online"] * 4
    assert told["clients"][3]["samples"] == 10 and told["clients"][3]["last_round"] == 3
    assert sum(one["weight"] for one in told["clients"]) == pytest.approx(1.0)
    assert [line["round"] for line in told["losses"]] == [1, 2, 3]


def test_a_run_goes_on_with_others_than_it_began_with(people, tmp_path, monkeypatch):
    """The plan names the run, and so the clients' state: it must be the same though another client is away now."""
    monkeypatch.setattr(server, "GRACE", 0.0)
    folder, limits = str(tmp_path / "run"), Limits(least=3)
    link = Direct(people)
    link.away = {3}
    served(tables("scaffold", rounds=1, run={"folder": folder, **NONE}), link, limits=limits)
    link.away = {0}
    settings = tables("scaffold", rounds=3, run={"folder": folder, **NONE})
    run = served(settings, link, resume=True, limits=limits)
    settings["run"].pop("folder")
    lists = [[0, 1, 2], [1, 2, 3], [1, 2, 3]]
    close(run.server.w, simulated(settings, clients_per_round=lists).server.w)
    people[1].close()
    people[1] = Client(own(data((8, 5, 12, 10)), 1), tmp_path / "site-1", Policy.open(repeatable=True))
    link.away = set()
    with refused("site-1 has 5 samples now and had 4 at the beginning"):
        served(tables("scaffold", rounds=4, run={"folder": folder, **NONE}), link, resume=True)
    (tmp_path / "run" / "roster.json").write_text("[]")
    with refused("roster.json is not as a server wrote it"):
        served(tables("scaffold", rounds=4, run={"folder": folder, **NONE}), link, resume=True)


STARTS = {
    "a garbled hello": ("hello", lambda a: b"\x00" * 9),
    "no facts": ("hello", lambda a: changed(a, facts=[])),
    "another shape": ("hello", lambda a: changed(a, facts={**wire.decode(a)[0]["facts"], "x": [True, [6]]})),
    "a refused plan": ("plan", lambda a: wire.encode({"kind": "error", "reason": "no"}, {})),
    "a plan without an answer": ("plan", lambda a: None),
}


@pytest.mark.parametrize("name", STARTS)
def test_one_client_does_not_stop_the_start(name, people):
    kind, garble = STARTS[name]
    said, settings = [], tables(rounds=1, run=NONE)
    link = Direct(people, lying(garble, 0, kind))
    run = served(settings, link, said, limits=Limits(least=3))
    assert any(text.startswith("site-0 does not take part now") for text in said)
    close(run.server.w, simulated(settings, clients_per_round=[[1, 2, 3]]).server.w)
    with refused("site-0"):
        served(settings, link)


def test_too_few_clients_do_not_begin(people, monkeypatch):
    monkeypatch.setattr(server, "GRACE", 0.0)
    link = Direct(people)
    link.away = {1, 2}
    with refused("After 0.01 s there is no sign of site-1, site-2"):
        served(tables(), link, wait=0.01, limits=Limits(least=3))
    with refused("least is 5, and 4 clients are registered"):
        served(tables(), link, limits=Limits(least=5))


def test_a_round_waits_until_as_many_are_there_as_must_be(people):
    """Two leave after round 1, and come back when the server has looked twice; then they stay away."""

    class Leaving(Direct):
        looks = 0

        def online(self):
            self.looks += 1
            if self.away and self.looks > 1 and not self.gone:
                self.away = set()
            return super().online()

    class Leave(ua.Callback):
        def on_round(self, run, line):
            link.away, link.looks, link.gone = {0, 1}, 0, line["round"] == 2

    link, said = Leaving(people), []
    with refused("After 1 s 2 clients are there, and 3 must be: see to them"):
        served(tables(run=NONE), link, said, callbacks=[Leave()], wait=1.0, limits=Limits(least=3))
    assert said == ["waiting: 2 clients are there, and 3 must be"] * 2
    assert [k for k, header in link.asked if header.get("round") == 1] == [0, 1, 2, 3]


def test_who_keeps_failing_is_set_aside_and_asked_again_rarely(people):
    said, asked = [], []

    def meddle(k, header, answer):
        if header["kind"] == "request" and k == 2:
            asked.append(header["round"])
            return b"nothing" if header["round"] < 5 else answer
        return answer

    run = served(tables(rounds=7, run=NONE), Direct(people, meddle), said, limits=Limits(tries=2))
    assert asked == [0, 1, 5, 6]
    assert [line.get("lost") for line in run.history] == [1] * 5 + [None] * 2
    assert any(
        t == "site-2 has failed 2 times in a row and is set aside: it is asked again in 4 exchanges" for t in said
    )
    assert said.count("site-2 answers again") == 1


def test_where_everybody_is_set_aside_everybody_is_asked():
    found = attendance.Attendance(["a", "b"], 1, lambda text: None, lambda: {0, 1})
    for k in (0, 1):
        found.joined(k)
        found.failed(k, "x")
    assert found.due([0, 1]) == {0, 1}
    assert found.records[0].pause == 3
    found.failed(0, "x")
    assert found.records[0].pause == 8
    found.answered(1, 3)
    assert found.due([0, 1]) == {1}
    assert found.records[1].last == 3


def test_an_exchange_closes_when_enough_have_answered(people):
    said, settings = [], tables(rounds=2, run=NONE)
    link = Direct(people)
    run = served(settings, link, said, limits=Limits(enough=0.75))
    assert [line["lost"] for line in run.history] == [1, 1]
    close(run.server.w, simulated(settings, clients_per_round=[[0, 1, 2]] * 2).server.w)
    assert (3, 0) not in [(k, header.get("round")) for k, header in link.asked]  # it was not waited for


# ---------------------------------------------------------------- what is printed


def test_what_others_say_is_printed_escaped_and_cut():
    assert printable("a\x1b[2J\r\n\u202eb") == "a\\x1b[2J\\r\\n\\u202eb"
    assert printable("x" * 400, 10) == "xxxxxxxxxx… (400 characters)"
    assert printable("é, 中") == "é, 中" and printable(None) == "None"
    said = []
    clients = server.Clients(Direct([]), KEYS, 1.0, said.append)
    clients.refuse(0, Lost("\x1b]0;owned\x07"))
    clients._notice(1, "two\nlines")
    assert all(text.isprintable() for text in said) and len(said) == 2
