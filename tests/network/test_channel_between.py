"""A channel between machines: the same run as simulated, parts that lie, what clients insist on."""

import pytest
import torch
from following import Follow
from small import refused
from test_network_messages import (
    Direct,
    P,
    changed,
    close,
    data,
    kept,
    own,
    people,  # noqa: F401 (a fixture)
    same_as_simulated,
    served,
    simulated,
    tables,
    without,
)

import unalike as ua
from unalike.channel import STAGES
from unalike.messages import wire
from unalike.network.client import Client
from unalike.network.policy import Policy

PACKED = "clip:1.0,topk:0.1,quantise:7:none:nearest"  # draws nothing
RUNS = {
    "all of it": ("fedavg", PACKED),
    "drawn codes": ("scaffold", "topk:0.3,qsgd:5"),
    "drawn places": ("fedfa", "randomk:0.5:true,half"),
    "signs": ("feddc", "stc:0.2"),
    "tables": ("scaffold", [{"kind": "topk", "share": 0.1, "fields": ["control"]}, {"kind": "clip", "norm": 0.1}]),
    "a method that keeps nothing": ("qfedavg", "clip:0.1,ternary"),
}


def settings_of(method="scaffold", channel=PACKED, rounds=3, **run):
    return tables(method, rounds, run={"channel": channel, **run})


@pytest.fixture(autouse=True)
def following(monkeypatch):
    monkeypatch.setitem(STAGES, "follow", Follow)


@pytest.mark.parametrize("name", RUNS)
def test_a_federation_computes_what_a_simulation_does(name, people):  # noqa: F811
    """Also to the byte: what passed is what both count."""
    same_as_simulated(settings_of(*RUNS[name]), Direct(people))


@pytest.mark.parametrize("channel", ["clip:0.1,local-noise:0.5", "clip:0.1,quantise:12:0.1,skellam:1:4"])
def test_noise_that_clients_draw_is_that_of_a_simulation(channel, people):  # noqa: F811
    """These clients draw from the run's seed, for tests (--repeatable)."""
    settings = settings_of("fedavg", channel, evaluate_clients="all")
    same_as_simulated({**settings, "method": {"name": "fedavg", "weights": "uniform"}}, Direct(people))


def test_what_is_told_counts_and_moves(people):  # noqa: F811
    """The bound of the stage goes down with the requests, a bit comes up with every reply, and the bound moves."""
    link, settings = Direct(people), settings_of("fedavg", "follow")
    same_as_simulated(settings, link)
    assert link.passed == {"down": 3 * 4 * (4 * P + 8), "up": 3 * 4 * (4 * P + 1)}
    assert simulated(settings).server.values["_channel bound"] != 0.05


def errors_agree(run, folder, name="error-delta"):
    for k in range(4):
        close(kept(folder, k)[f"channel.{name}"], run._channel_store[k][name])


def test_clients_keep_what_the_simulator_would(people, tmp_path):  # noqa: F811
    served(settings_of(), Direct(people))
    simulation = simulated(settings_of())
    errors_agree(simulation, tmp_path)
    errors_agree(simulation, tmp_path, "error-control")


def test_an_answer_that_is_lost_leaves_no_error(people, tmp_path):  # noqa: F811
    def meddle(k, header, answer):
        return None if k == 2 and header.get("round") == 1 else answer

    settings = settings_of("fedavg", "topk:0.1", rounds=4)
    run = served(settings, Direct(people, meddle))
    simulation = simulated(settings, clients_per_round=[[0, 1, 2, 3], [0, 1, 3], [0, 1, 2, 3], [0, 1, 2, 3]])
    close(run.server.w, simulation.server.w)
    errors_agree(simulation, tmp_path)


def test_every_request_comes_twice(people, tmp_path):  # noqa: F811
    """A network that repeats itself: the second answer is the first, also where it was drawn; no error moves twice."""
    people[1].policy = Policy.open()  # draws that nobody can repeat

    class Twice(Direct):
        def exchange(self, requests, seconds):
            for k, parts in requests.items():
                first = self.people[k].answer(parts)
                if wire.decode(parts[0])[0]["kind"] == "request":
                    assert self.people[k].answer(parts) == first
                yield k, first

    settings = settings_of("fedavg", "topk:0.2,half", evaluate_clients="none")
    run, simulation = served(settings, Twice(people)), simulated(settings)
    close(run.server.w, simulation.server.w)
    errors_agree(simulation, tmp_path)
    served(settings_of("fedavg", "topk:0.2,ternary"), Twice(people))


@pytest.mark.parametrize("when", ["before the checkpoint", "after the checkpoint"])
def test_a_server_that_dies_goes_on_where_it_was(when, people, tmp_path):  # noqa: F811
    class Die(ua.Callback):
        def on_round(self, run, line):
            if line["round"] == 2 and when == "before the checkpoint":
                raise KeyboardInterrupt
            return line["round"] == 2

    settings = settings_of("fedavg", ["follow", "topk:0.1"], rounds=4)
    kept_in = {**settings, "run": {**settings["run"], "folder": str(tmp_path / "run")}}
    if when == "before the checkpoint":
        with pytest.raises(KeyboardInterrupt):
            served(kept_in, Direct(people), callbacks=[Die()])
    else:
        served(kept_in, Direct(people), callbacks=[Die()])
    close(served(kept_in, Direct(people), resume=True).server.w, simulated(settings).server.w)


def test_a_client_that_is_started_anew_goes_on(people, tmp_path):  # noqa: F811
    link = Direct(people)

    class Restart(ua.Callback):
        def on_round(self, run, line):
            link.people[1].close()
            link.people[1] = Client(own(data(), 1), tmp_path / "site-1", Policy.open(repeatable=True))

    close(served(settings_of(), link, callbacks=[Restart()]).server.w, simulated(settings_of()).server.w)


def test_a_real_clients_draws_are_its_own(tmp_path):
    """Rounding by chance hides what it can only if the server cannot draw the same."""
    found = []
    for k in range(2):
        here = Client(own(data(), 0), tmp_path / str(k), Policy.open())
        link = Direct([here])
        link.meddle = lambda k, header, answer: (header["kind"] == "request" and found.append(answer)) or answer
        ua.network.server.run(
            settings_of("fedavg", "ternary", rounds=1, evaluate_clients="none"), link, {"one": b"ecdsa-sha2 0 me"},
            classes=3, deadline=5.0,
        )  # fmt: skip
        here.close()
    one, other = (wire.decode(answer)[1] for answer in found)
    assert torch.equal(one["delta:unit"], other["delta:unit"])
    assert not torch.equal(one["delta:codes"], other["delta:codes"])


# ---------------------------------------------------------------- parts that lie: 4 codes of 7 bits, 4 places of 6

OCTETS = torch.zeros(4, dtype=torch.uint8)
LEAST = torch.tensor([64, 0, 0, 0], dtype=torch.uint8)  # -64 in 7 bits
MOST = torch.tensor([*(63 * (1 + 2**7 + 2**14 + 2**21)).to_bytes(4, "little")], dtype=torch.uint8)  # 63, four times
MUST = "they must be codes, places, unit"
BEHIND = torch.tensor([0, 0, 0, 0x80], dtype=torch.uint8)
LIES = {
    "places that are none": ({"delta:places": torch.full((3,), 255, dtype=torch.uint8)}, "places go to 63"),
    "one place four times": ({"delta:places": OCTETS[:3]}, "not ascending"),
    "places too few": ({"delta:places": OCTETS[:2]}, "its places have the shape"),
    "no places": ({"delta:places": None}, MUST),
    "no codes": ({"delta:codes": None}, MUST),
    "no unit": ({"delta:unit": None}, MUST),
    "codes too many": ({"delta:codes": torch.zeros(5, dtype=torch.uint8)}, "its codes have the shape"),
    "codes in rows": ({"delta:codes": OCTETS[None]}, "its codes have the shape"),
    "codes of another kind": ({"delta:codes": OCTETS.to(torch.int8)}, "of torch.int8"),
    "a code that is none": ({"delta:codes": LEAST}, "codes go to 64"),
    "bits behind the last": ({"delta:codes": BEHIND}, "bits behind the last"),
    "a unit that is no number": ({"delta:unit": torch.tensor([float("nan")])}, "its unit is nan"),
    "a unit without end": ({"delta:unit": torch.tensor([float("inf")])}, "its unit is inf"),
    "a unit below 0": ({"delta:unit": torch.tensor([-1.0])}, "its unit is -1.0"),
    "a unit too large": (
        {"delta:unit": torch.tensor([3e38]), "delta:codes": MOST}, "'delta' has a value that is NaN or infinite"
    ),
    "two units": ({"delta:unit": torch.ones(2)}, "its unit have the shape"),
    "a part too many": ({"delta:gift": OCTETS}, MUST),
    "a field that is none": ({"gift:codes": OCTETS}, "'gift' comes in parts"),
    "the loss in parts": ({"training_loss:codes": OCTETS}, "'training_loss' comes in parts"),
    "both": ({"delta": torch.zeros(P)}, "'delta' did not go through the channel"),
    "both, in whole numbers": ({"delta": torch.zeros(P, dtype=torch.int64)}, "'delta' comes in parts"),
    "in full": (
        {"delta": torch.zeros(P), "delta:codes": None, "delta:places": None, "delta:unit": None},
        "'delta' did not go through the channel",
    ),
    "a number of no stage": ({":within": OCTETS[:1]}, "not the numbers that the channel"),
    "a field that is missing": (
        {"delta:codes": None, "delta:places": None, "delta:unit": None}, "it sent control, and client sends"
    ),
}  # fmt: skip


def lied(answer, tensors):
    for name in [name for name, value in tensors.items() if value is None]:
        answer = without(answer, name)
    return changed(answer, {name: value for name, value in tensors.items() if value is not None})


def cost_a_round_each(lies, settings, people):  # noqa: F811
    """A lie a round, by one client after another: each round closes with the others as if it had been silent."""
    lies = [*lies.values()]

    def meddle(k, header, answer):
        lying = header["kind"] == "request" and k == header["round"] % 4
        return lied(answer, lies[header["round"]][0]) if lying else answer

    said = []
    settings["run"] |= {"rounds": len(lies), "evaluate_clients": "none", "evaluate_every": len(lies)}
    run = served(settings, Direct(people, meddle), said)
    told = [text for text in said if "left out" in text]
    for t, (text, (_, reason)) in enumerate(zip(told, lies, strict=True)):
        assert text.startswith(f"site-{t % 4} is left out") and reason in text, (text, reason)
        assert "\n" not in text and len(text) < 300
    came = [[k for k in range(4) if k != t % 4] for t in range(len(lies))]
    close(run.server.w, simulated(settings, clients_per_round=came).server.w)


def test_parts_that_lie_cost_that_clients_round(people):  # noqa: F811
    cost_a_round_each(LIES, settings_of(), people)


NUMBERS = {
    "no bit": ({":within": None}, "numbers that the channel (follow) adds: within"),
    "a bit of 2": ({":within": OCTETS[:1] + 2}, "'within' must be one byte, 0 or 1"),
    "two bits": ({":within": OCTETS[:2]}, "'within' must be one byte"),
    "a large bit": ({":within": torch.tensor([1e9])}, "'within' must be one byte"),
}


def test_numbers_that_lie_cost_that_clients_round(people):  # noqa: F811
    cost_a_round_each(NUMBERS, settings_of("fedavg", "follow"), people)


# ---------------------------------------------------------------- what clients are told, and insist on


def test_a_plan_says_every_setting_of_a_stage(people):  # noqa: F811
    link = Direct(people)
    served(settings_of("fedavg", "clip,topk:0.5", rounds=1), link)
    plan = next(header["plan"] for _, header in link.asked if header["kind"] == "plan")
    stages = plan["run"]["channel"]
    assert stages[0].items() >= {"kind": "clip", "norm": 1.0}.items()
    assert stages[1] == {"kind": "topk", "share": 0.5, "feedback": True}
    for nothing in ("none", []):
        link = Direct(people)
        served(settings_of("fedavg", nothing, rounds=1), link)
        assert not any("channel" in header["plan"]["run"] for _, header in link.asked if header["kind"] == "plan")


@pytest.mark.parametrize(
    ("require", "channel", "lacks"),
    [
        (("clip",), "clip:3", None),
        (("clip:1.0", "topk"), "clip:1,topk:0.5", None),
        (("clip:1.0",), "clip:0.5", None),  # a norm is a bound from above
        (("clip:1.0",), "clip:2.0", "clip:1.0"),
        (("clip:1.0:1",), "clip:0.5", "clip:1.0:1"),
        (("local-noise",), "clip:1,local-noise:0.01", None),
        (("local-noise",), "clip:1,local-noise:0", "local-noise"),
        (("noise",), "clip:1,noise:0", "noise"),
        (("clip:1.0", "local-noise:2.0"), "clip:0.5,local-noise:2.5", None),  # a multiplier is one from below
        (("local-noise:2.0",), "clip:1,local-noise:1.5", "local-noise:2.0"),
        (("local-noise:2.0:laplace",), "clip:1,local-noise:2.5", "local-noise:2.0:laplace"),
        (("clip", "topk"), "clip:1.0", "topk"),
        (("clip",), "none", "clip"),
        (("clip",), [{"kind": "clip", "fields": ["control"]}], "clip"),
    ],
)
def test_a_client_insists_on_stages(require, channel, lacks, people):  # noqa: F811
    people[3].policy = Policy.open(repeatable=True, require=require)
    method = "fedavg" if "noise" in str(channel) else "scaffold"
    settings = settings_of(method, channel, rounds=1, clients_per_round=1.0)
    settings["method"] |= {"weights": "uniform"} if method == "fedavg" else {}
    if lacks is None:
        served(settings, Direct(people))
        return
    with refused(f"site-3: This client answers through a channel with {lacks} only"):
        served(settings, Direct(people))


def test_rules_name_stages_that_there_are():
    wrongs = (("clpi", "clip"), ("clip:-1", "norm"), ("clip:1:2:3", "clip:norm"), ("noise:auto", "as a number"))
    for wrong, words in wrongs:
        with refused(words):
            Policy.open(require=(wrong,))


BAD = {
    "a number": 3,
    "a stage that is none": [{"kind": "melt"}],
    "no kind": [{"norm": 1.0}],
    "a setting that is none": [{"kind": "clip", "size": 1.0}],
    "a norm in words": [{"kind": "clip", "norm": "long"}],
    "a norm below 0": [{"kind": "clip", "norm": -1.0}],
    "a list for a norm": [{"kind": "clip", "norm": [1.0]}],
    "a field that is none": [{"kind": "clip", "fields": ["gift"]}],
    "fields that are no list": [{"kind": "clip", "fields": 7}],
    "a wrong order": [{"kind": "quantise"}, {"kind": "topk"}],
}


def test_a_plan_whose_channel_cannot_be_is_refused(people):  # noqa: F811
    link = Direct(people)
    served(settings_of("fedavg", "clip", rounds=0), link)
    header = next(header for _, header in link.asked if header["kind"] == "plan")
    for name, channel in BAD.items():
        plan = {**header["plan"], "run": {**header["plan"]["run"], "channel": channel}}
        answer = wire.decode(people[0].answer([wire.encode({**header, "plan": plan}, {})]))[0]
        assert answer["kind"] == "error", name
        assert "fault inside" not in answer["reason"] and "\n" not in answer["reason"], (name, answer)


OWN = """
import dataclasses as dc
import unalike as ua

@dc.dataclass(frozen=True)
class Damp(ua.channel.Stage):
    factor: float = 0.5

    def one(self, flight, name, way):
        return dc.replace(flight, values=flight.values * self.factor)
"""


def test_a_stage_of_ones_own_needs_the_same_file_at_both_ends(tmp_path, people):  # noqa: F811
    there, here = tmp_path / "there" / "mine.py", tmp_path / "here" / "mine.py"
    for file in (there, here):
        file.parent.mkdir()
        file.write_text(OWN)
    settings = settings_of("fedavg", f"{there}:Damp:0.25,half", rounds=1)
    with refused("this client was not given mine.py"):
        served(settings, Direct(people))
    for client in people:
        client.policy = Policy.open(files=(here,), repeatable=True)
    close(served(settings, Direct(people)).server.w, simulated(settings).server.w)


def test_a_plan_cannot_run_a_file_that_the_client_was_not_given(tmp_path, people):  # noqa: F811
    link, evil, trace = Direct(people), tmp_path / "evil.py", tmp_path / "trace"
    served(settings_of("fedavg", "clip", rounds=0), link)
    header = next(header for _, header in link.asked if header["kind"] == "plan")
    evil.write_text(f"from pathlib import Path\nPath({str(trace)!r}).touch()\nclass Stage: pass\n")
    name = f"{evil}:Stage"
    for channel in (name, [name], [[name]], [{"kind": name}], [{"kind": "clip", "fields": [name]}], {"kind": name}):
        plan = {**header["plan"], "run": {**header["plan"]["run"], "channel": channel}}
        answer = wire.decode(people[0].answer([wire.encode({**header, "plan": plan}, {})]))[0]
        assert answer["kind"] == "error" and not trace.exists(), channel


def test_the_noise_that_a_server_draws_has_the_stated_size_and_is_its_secret(people):  # noqa: F811
    """From the operating system, others each time: by six standard errors of P numbers' deviation."""

    def noised(channel):
        settings = settings_of("fedavg", channel, rounds=1, clients_per_round=1.0)
        return served({**settings, "method": {"name": "fedavg", "weights": "uniform"}}, Direct(people)).server.w

    plain = noised("clip:0.01,noise:0")
    drawn = torch.stack([4 * (noised("clip:0.01,noise:5.0") - plain) / 0.05 for _ in range(8)])  # of four clients' sum
    assert len(drawn[:, 0].unique()) == 8
    assert float(drawn.square().mean()) == pytest.approx(1, abs=6 * (2 / drawn.numel()) ** 0.5)


def uniform(channel, **run):
    settings = settings_of("fedavg", channel, rounds=1, clients_per_round=1.0, **run)
    return {**settings, "method": {"name": "fedavg", "weights": "uniform"}}


def evaluated(link):
    return {k for k, header in link.asked if header["kind"] == "evaluate"}


def scores(run):
    return [row.words for row in run.who_sees() if row.of == "clients' scores"]


@pytest.mark.parametrize("noise", ["noise:1.0", "local-noise:1.0"])
def test_under_noise_real_clients_are_not_evaluated_unless_it_is_asked_for(noise, people):  # noqa: F811
    quiet, asked, clipped = Direct(people), Direct(people), Direct(people)
    run = served(uniform(f"clip:1.0,{noise}"), quiet)
    assert not evaluated(quiet) and not scores(run) and not run.client_values and "test_loss" in run.history[0]
    run = served(uniform(f"clip:1.0,{noise}", evaluate_clients="all"), asked)
    assert evaluated(asked) == {0, 1, 2, 3} and "exact, past the noise" in scores(run)[0]
    served(uniform("clip:1.0"), clipped)
    assert evaluated(clipped) == {0, 1, 2, 3}
    simulation = simulated(uniform(f"clip:1.0,{noise}"))
    assert len(simulation.client_values["client"]) == 4
    assert scores(simulation) and not [row for row in simulation.who_sees(real=True) if row.of == "clients' scores"]


def test_a_client_that_needs_noise_answers_no_evaluation_unless_it_allows_it(people):  # noqa: F811
    for k, rules in (
        (1, {"require": ("local-noise",)}),
        (3, {"require": ("local-noise:0.5",), "allow_evaluation": True}),
    ):
        people[k].policy = Policy.open(repeatable=True, **rules)
    people[2].policy = Policy.open(repeatable=True, require=("clip",))
    answers, said = {}, []

    def hear(k, header, answer):
        if header["kind"] == "evaluate":
            answers[k] = wire.decode(answer)[0]
        return answer

    run = served(uniform("clip:1.0,local-noise:1.0", evaluate_clients="all"), Direct(people, hear), said)
    assert [answers[k]["kind"] for k in range(4)] == ["reply", "error", "reply", "reply"]
    assert "--allow-evaluation" in answers[1]["reason"] and "\n" not in answers[1]["reason"]
    assert run.client_values["client"].tolist() == [0, 2, 3]


WIDE = {"name": "mlp", "hidden": [2000]}
STATED = {
    "noise:3.0": 0.03,
    "local-noise:3.0": 0.03 * 2,  # four clients
    "tree-noise:3.0:1": 0.03,
    "quantise:16:0.1,skellam:3.0:4": 0.03,
}


@pytest.mark.parametrize("noise", STATED)
def test_real_noise_on_the_sum_has_the_stated_size(noise, tmp_path):
    """Drawn from the operating system, at clients or the server, of some 18,000 numbers in two rounds: a tenth off
    would be 19 standard errors."""
    people = [Client(own(data(), k), tmp_path / str(k), Policy.open()) for k in range(4)]  # noqa: F811

    def moved(channel):
        settings = {**uniform(channel, dtype="float64", evaluate_every=2), "model": WIDE}
        settings["run"]["rounds"], settings["local"]["lr"] = 2, 1e-9
        return served(settings, Direct(people)).server.w.double()

    drawn = 4 * (moved(f"clip:0.01,{noise}") - moved("clip:0.01"))  # of the sum, in two rounds
    sigma = STATED[noise] * 2**0.5
    assert drawn.numel() > 15_000 and float(drawn.std()) == pytest.approx(sigma, rel=0.1)
    assert abs(float(drawn.mean())) < 8 * sigma / drawn.numel() ** 0.5
