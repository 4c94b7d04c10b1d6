"""Secure sums between machines: the same run as simulated, whoever is lost, killed or lies."""

import copy

import pytest
import torch
from small import federation, refused
from test_network_messages import KEYS, Direct, data, own, same_as_simulated, served, simulated, tables

import unalike as ua
from unalike.channel.stages import SecureSum
from unalike.client.secure import SecureClient
from unalike.crypto.secure_sum import Collector
from unalike.engines.secure import HiddenSums
from unalike.messages import wire
from unalike.network import keys
from unalike.network.client import Client
from unalike.network.limits import Limits
from unalike.network.policy import Policy
from unalike.network.seal import Keyring


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return signing_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def people(tmp_path, pairs, monkeypatch):
    return four_clients(tmp_path, pairs, monkeypatch)


def signing_keys(folder):
    """Signing keys of four clients, and the folder of their public halves."""
    return [keys.make_node(folder / f"client-{k}") for k in range(4)]


def four_clients(folder, pairs, monkeypatch):
    fed, rules = data(), Policy.open(methods=tuple(ua.METHODS), repeatable=True)
    public = {name: file.read_bytes() for name, file in zip(KEYS, pairs, strict=True)}
    monkeypatch.setattr("test_network_messages.KEYS", public)
    return [person(fed, k, folder, rules, pairs) for k in range(4)]


def person(fed, k, folder, rules, pairs):
    ring = Keyring(pairs[k].with_suffix(""), pairs[k].parent)
    return Client(own(fed, k), folder / f"site-{k}", rules, sealer=ring)


class Counting(Direct):
    """Counts the bytes of every stage of a sum; keys travel once in a run and are not counted."""

    def exchange(self, requests, seconds):
        for k, answer in super().exchange(requests, seconds):
            header = wire.decode(requests[k][0])[0]
            if header["kind"] == "sum" and header["stage"] != "key":
                self.passed["down"] += sum(wire.payload(wire.decode(part)[1]) for part in requests[k])
                self.passed["up"] += wire.payload(wire.decode(answer)[1])
            yield k, answer


def settings_of(method="fedavg", channel="secure-sum:0.6", rounds=2, **run):
    return tables(method, rounds, run={"channel": channel, "evaluate_clients": "all", **run})


RUNS = {
    "fixed point": ("scaffold", "secure-sum"),
    "codes": ("fedavg", "quantise:8:0.1,secure-sum:agree=true"),
    "whole numbers": ("hist-boost", "secure-sum"),
    "few neighbours": ("fedavg", "secure-sum:0.6:2:agree=true"),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_federation_computes_what_a_simulation_does(name, people):
    small = {"trees": 2, "depth": 2, "bins": 4} if name == "whole numbers" else {}
    settings = settings_of(*RUNS[name])
    same_as_simulated({**settings, "method": {**settings["method"], **small}}, Counting(people))


def test_sums_have_the_same_bits(people):
    real = served(settings_of("scaffold"), Direct(people))
    assert torch.equal(real.server.w, simulated(settings_of("scaffold")).server.w)


def test_three_messages_a_round_and_the_key_once(people):
    link = Direct(people)
    served(settings_of(rounds=3), link)
    asked = [header.get("stage", header["kind"]) for client, header in link.asked if client == 0]
    work = [kind for kind in asked if kind in ("key", "deal", "request", "agree", "open")]
    assert work == ["key", *["deal", "request", "open"] * 3]


# ---------------------------------------------------------------- who is lost, or killed


def at(stage, who, change, rounds=(0,)):
    """Meddle with some clients' answers in one stage of some rounds. change: makes another answer; None loses it."""

    def meddle(client, header, answer):
        asked = header.get("stage", header["kind"])
        if asked == stage and client in who and header.get("round", 0) in rounds:
            return change(answer) if change else None
        return answer

    return meddle


LOST = [("key", [3]), ("deal", [2]), ("request", [1]), ("agree", [3]), ("open", [0])]
AFTER = ("agree", "open")  # whoever is lost there is in the sum


@pytest.mark.parametrize(("stage", "who"), LOST)
def test_the_sum_is_that_of_those_who_came(stage, who, people):
    """The server's step is checked against the open run in which the same client is lost."""
    said = []
    settings = settings_of(channel=f"secure-sum:0.6:agree={str(stage == 'agree').lower()}", rounds=1)
    secure = served(settings, Direct(people, at(stage, who, None)), said)
    lost_in_open = at("request", [] if stage in AFTER else who, None)
    fresh = [Client(own(data(), k), people[k].folder.parent / f"open-{k}", people[k].policy) for k in range(4)]
    plain = served(settings_of(channel="none", rounds=1), Direct(fresh, lost_in_open))
    torch.testing.assert_close(secure.server.w, plain.server.w, rtol=0, atol=1e-6)
    assert any("no answer" in line for line in said)


@pytest.mark.parametrize(("stage", "who"), [("key", [2, 3]), ("deal", [1, 2]), ("request", [0, 1]), ("open", [2, 3])])
def test_with_too_few_left_the_round_is_void(stage, who, people):
    with refused(r"Round 1: .*void"):
        served(settings_of(rounds=1), Direct(people, at(stage, who, None)))


def test_a_sum_that_could_not_be_opened_is_asked_for_again_without_the_lost_client(people):
    """Of four clients each needs all three others: one that is lost with its answer must not end the run."""
    said = []
    done = served(settings_of(channel="secure-sum", rounds=1), Direct(people, gone_from("request", 1)), said)
    assert done.history[-1]["lost"] == 1
    assert any(line.endswith("It is asked for again.") for line in said)


def gone_from(stage, client):
    """Lose a client from its first answer in a stage on."""
    gone = []

    def meddle(k, header, answer):
        if k == client and (gone or header.get("stage", header["kind"]) == stage):
            gone.append(k)
            return None
        return answer

    return meddle


def test_no_sum_has_less_noise_than_is_stated(people, monkeypatch):
    """Three of the four shares: the server notices, and clients would not open it for a server that did not."""
    settings = settings_of(channel="clip:0.1,quantise:12:0.1,skellam:1.0:4,secure-sum:0.5", rounds=1)
    settings["method"]["weights"] = "uniform"
    with refused("3 of 4 clients answered, and 4 must: the sum is void"):
        served(settings, Direct(people, at("request", [1], None)))
    monkeypatch.setattr(HiddenSums, "_check_came", lambda *_: None)
    said = []
    with refused("0 neighbours of client 0 helped to open the sum, and 2 must"):
        served(settings, Direct(people, at("request", [1], None)), said)
    assert sum("3 clients came, 2 of them neighbours; 4 and 2 are needed: nothing is opened" in x for x in said) == 3


def first_time(stage, who, exchange=0):
    """Lose some clients' answers in one stage, the first time only."""
    seen = set()

    def meddle(client, header, answer):
        here = header.get("stage", header["kind"]) == stage and header.get("exchange", 0) == exchange
        if here and client in who and client not in seen:
            seen.add(client)
            return None
        return answer

    return meddle


@pytest.mark.parametrize("stage", ["key", "deal", "request"])
def test_a_sum_that_is_void_before_it_was_opened_is_asked_for_again(stage, people):
    """With new secrets, and everybody's state as before."""
    said, link = [], Direct(people, first_time(stage, [1, 2]))
    done = served(settings_of("scaffold", rounds=2), link, said)
    assert torch.equal(done.server.w, simulated(settings_of("scaffold", rounds=2)).server.w)
    assert len([line for line in said if "void" in line and line.endswith("It is asked for again.")]) == 1
    attempts = [header["attempt"] for k, header in link.asked if k == 0 and header.get("stage") == "deal"]
    assert len(attempts) == len(set(attempts)) == (2 if stage == "key" else 3)


def test_one_of_four_that_is_lost_once_costs_no_round(people):
    """By default all of a client's three neighbours must stay, so nobody is asked to open the sum of three in vain."""
    said, link = [], Direct(people, first_time("request", [1]))
    done = served(settings_of("scaffold", "secure-sum", rounds=2), link, said)
    assert torch.equal(done.server.w, simulated(settings_of("scaffold", "secure-sum", rounds=2)).server.w)
    assert any("3 of 4 clients answered, and every client needs 3 neighbours that did" in line for line in said)


def test_clients_that_were_started_again_meanwhile_are_in_the_sum_that_is_asked_for_again(people, tmp_path, pairs):
    """Their keys are others than before."""
    lose = first_time("request", [1, 2])

    def meddle(client, header, answer):
        if (kept := lose(client, header, answer)) is None:
            people[client].close()
            people[client] = person(data(), client, tmp_path, people[client].policy, pairs)
        return kept

    done = served(settings_of("scaffold", rounds=1), Direct(people, meddle))
    assert torch.equal(done.server.w, simulated(settings_of("scaffold", rounds=1)).server.w)


def test_a_later_exchange_of_a_round_is_not_asked_for_again(people):
    """Clients have changed what they keep of this round."""
    said = []
    with refused("Round 1: .*void"):
        served(settings_of("rfedavg-plus"), Direct(people, first_time("request", [1, 2], exchange=1)), said)
    assert not any("asked for again" in line for line in said)


def test_a_sum_that_clients_were_asked_to_open_is_not_asked_for_again(people):
    said = []
    with refused("Round 1: .*void"):
        served(settings_of(rounds=1), Direct(people, first_time("open", [1, 2, 3])), said)
    assert not any("asked for again" in line for line in said)


def test_a_client_that_comes_late_and_has_the_most_samples_is_in_the_next_sum(people):
    """All are told whose samples are the most, by which they weigh themselves; without the sum of three, by default
    nothing could be opened."""
    link, said = Direct(people), []
    link.away = {2}

    class Comes(ua.Callback):
        def on_round(self, run, line):
            link.away = set()

    settings = settings_of(channel="secure-sum", rounds=3, evaluate_clients="none")
    done = served(settings, link, said, limits=Limits(least=3), callbacks=[Comes()])
    assert "site-2 has joined" in said and [line.get("lost", 0) for line in done.history] == [1, 0, 0]
    cohorts = [[0, 1, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    torch.testing.assert_close(done.server.w, simulated(settings, clients_per_round=cohorts).server.w)


@pytest.mark.parametrize("stage", ["deal", "request", "open"])
def test_a_client_that_was_killed_and_started_again_is_back_in_the_next_round(stage, people, tmp_path, pairs):
    """Its secrets are gone with its memory: it is left out of this sum, and nothing of it can be opened."""
    said = []

    def meddle(client, header, answer):
        if client == 1 and header.get("stage", header["kind"]) == stage and header.get("round") == 0:
            people[1].close()
            people[1] = person(data(), 1, tmp_path, people[1].policy, pairs)
            return None
        return answer

    done = served(settings_of(rounds=3), Direct(people, meddle), said)
    assert [line.get("lost", 0) for line in done.history] == [int(stage != "open"), 0, 0]
    assert any("left out" in line for line in said)


def test_a_run_of_the_same_settings_is_another_run(people):
    """Its clients' states, and who is in its sums, may be others than in the first, to the same numbers of rounds."""
    settings = settings_of("scaffold", rounds=3, evaluate_clients="none")
    served(settings, Direct(people, at("request", [1], None, rounds=(0, 1))))
    second = served(settings, Direct(people))
    assert torch.equal(second.server.w, simulated(settings).server.w)


def test_a_server_that_was_killed_goes_on(people, tmp_path):
    class Killed(Exception):
        pass

    def meddle(client, header, answer):
        if header.get("stage") == "open" and header["round"] == 1:
            raise Killed
        return answer

    settings = settings_of("scaffold", rounds=3, folder=str(tmp_path / "run"))
    with pytest.raises(Killed):
        served(settings, Direct(people, meddle))
    again = served(settings, Direct(people), resume=True)
    assert torch.equal(again.server.w, simulated(settings_of("scaffold", rounds=3)).server.w)


# ---------------------------------------------------------------- who lies


def spoilt(part):
    """Change the first byte of a part of an answer."""

    def change(answer):
        header, parts = wire.decode(answer)
        header.pop("format")
        parts[part].view(-1)[0] ^= 1
        return wire.encode(header, parts)

    return change


LIES = {
    "another key": ("key", "key", "the key for this run is not signed by it"),
    "another signature": ("key", "signature", "the key for this run is not signed by it"),
    "spoilt seals": ("deal", "sealed", "cannot be opened"),
    "a wrong signature": ("agree", "signature", None),
    "a wrong share": ("open", "shares", "did not fit"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_client_that_lies_costs_itself_or_the_round(name, people):
    stage, part, words = LIES[name]
    said = []
    link = Direct(people, at(stage, [1], spoilt(part)))
    try:
        done = served(settings_of(channel="secure-sum:0.5:agree=true", rounds=1), link, said)
    except ua.UnalikeError as error:
        assert "void" in str(error)
    else:
        whole = simulated(settings_of(channel="secure-sum:0.5", rounds=1)).server.w
        assert torch.equal(done.server.w, whole) is ("lost" not in done.history[0])
    assert words is None or any(words in line for line in said)


def test_a_masked_answer_that_counts_wrongly_makes_the_sum_void(people):
    def change(answer):
        header, parts = wire.decode(answer)
        header.pop("format")
        name = next(name for name in parts if name.startswith("sum:"))
        parts[name][-2] ^= 1
        return wire.encode(header, parts)

    with refused("did not keep the rules: the sum is void"):
        served(settings_of(rounds=1), Direct(people, at("request", [1], change)))


def test_a_server_that_sends_one_client_another_model_gets_nothing(people):
    """Its masks are bound to what it was asked."""

    class Lying(Direct):
        def exchange(self, requests, seconds):
            changed_parts = {}
            for k, parts in requests.items():
                header, tensors = wire.decode(parts[0])
                if header["kind"] == "request" and k == 2:
                    header.pop("format")
                    parts = (wire.encode(header, {**tensors, "w": tensors["w"] * 0}), *parts[1:])
                changed_parts[k] = parts
            return super().exchange(changed_parts, seconds)

    with refused("void"):
        served(settings_of(rounds=1), Lying(people))


class OtherPlans(Direct):
    """Gives all clients but client 2 a changed plan."""

    def __init__(self, people, change, spare=(2,)):
        super().__init__(people)
        self.change, self.spare = change, spare

    def exchange(self, requests, seconds):
        out = {}
        for k, parts in requests.items():
            header, tensors = wire.decode(parts[0])
            if header["kind"] == "plan" and k not in self.spare:
                header.pop("format")
                plan = copy.deepcopy(header["plan"])
                self.change(plan)
                parts = (wire.encode({**header, "plan": plan}, tensors), *parts[1:])
            out[k] = parts
        return super().exchange(out, seconds)


def idle(plan):
    plan["tables"]["local"]["lr"] = 1e-30


PLANS = {
    "rate": idle,
    "seed": lambda plan: plan["run"].update(seed=17),
    "samples": lambda plan: plan.update(mean=1e6),
    "stage": lambda plan: plan["run"]["channel"].insert(0, {"kind": "clip", "norm": 1e-9}),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_server_that_gives_one_client_another_plan_gets_nothing(name, people):
    """Else those who were told to learn nothing would leave the sum to that client."""
    with refused("void"):
        served(settings_of(rounds=1), OtherPlans(people, PLANS[name]))


def test_without_the_plan_in_the_masks_it_gets_that_client_s_reply(people, monkeypatch):
    for module in ("client", "server"):
        monkeypatch.setattr(f"unalike.network.{module}.plan_digest", lambda plan: b"")
    done = served(settings_of(rounds=1, evaluate_clients="none"), OtherPlans(people, idle))
    alone = settings_of(rounds=1, evaluate_clients="none")
    alone["local"]["lr"] = [1e-30, 1e-30, alone["local"]["lr"], 1e-30]
    assert torch.equal(done.server.w, simulated(alone).server.w)


def test_rates_of_clients_own_are_refused_by_the_server_and_by_clients(people, monkeypatch):
    """A plan that is the same for all may still leave all but one client nothing to do."""
    each = [1e-30, 1e-30, 0.1, 1e-30]
    settings = settings_of(rounds=1)
    with refused("lr is not the same for all clients: where replies are hidden in sums"):
        served({**settings, "local": {**settings["local"], "lr": each}}, Direct(people))
    with refused("lr is not the same for all clients"):
        served(settings, OtherPlans(people, lambda plan: plan["tables"]["local"].update(lr=each), spare=()))


def test_two_sums_of_which_each_client_is_told_another_pair_are_not_opened(tmp_path, monkeypatch):
    """Eleven clients open the sum of all. Then the server asks again, and tells each that client 3 is lost and two
    others are, for each two others: so for each the sums differ by three, as many as must be, and in truth by one."""
    said, opened = twice_opened(tmp_path / "with", monkeypatch)
    assert not opened and any("second sum of round 1" in line for line in said)
    monkeypatch.setattr(SecureClient, "_open_once", by_its_own_list)
    _, opened = twice_opened(tmp_path / "without", monkeypatch)
    assert opened


def by_its_own_list(client, came):
    """The rule without the protection: enough clients more or fewer than before, in the list that this client got."""
    before = client._sums.setdefault(client._when, set())
    if any(0 < len(side) < client.least for other in before for side in (other - {*came}, {*came} - other)):
        raise ua.UnalikeError("a second sum")
    before.add(frozenset(came))


def twice_opened(folder, monkeypatch):
    """Return what was said, and whether both sums were opened."""
    n, victim = 11, 3
    fed = federation(sizes=(8,) * n)
    pairs = [keys.make_node(folder / "keys" / f"client-{k:02d}") for k in range(n)]
    monkeypatch.setattr("test_network_messages.KEYS", {f"site-{k:02d}": f.read_bytes() for k, f in enumerate(pairs)})
    monkeypatch.setattr("test_network_messages.data", lambda *_: fed)
    people = [person(fed, k, folder, Policy.open(methods=("fedavg",)), pairs) for k in range(n)]
    others, said = [k for k in range(n) if k != victim], []

    def told(client):
        place = others.index(client)
        return sorted({*others} - {others[(place + 1) % 10], others[(place + 2) % 10]})

    class Killed(Exception):
        pass

    class Once(Collector):
        def total(self):
            super().total()
            raise Killed

    class Twice(Collector):
        """Takes of each client's shares those which it gave for what is true."""

        def take_opened(self, client, shares):
            super().take_opened(client, shares)
            true = {v: share for v, share in shares.items() if (v in told(client)) == (v in self.came)}
            self._given[client] = true

        def total(self):
            super().total()
            raise Killed

    class Lying(Direct):
        def exchange(self, requests, seconds):
            out = dict(requests)
            for k, parts in requests.items():
                header = wire.decode(parts[0])[0]
                if header.pop("format") and header.get("stage") == "open":
                    out[k] = (wire.encode(header, {"came": torch.tensor(told(k))}),)
            for k, answer in super().exchange(out, seconds):
                if k != victim or wire.decode(out[k][0])[0]["kind"] != "request":
                    yield k, answer

    settings = settings_of(channel="secure-sum", rounds=1, folder=str(folder / "run"), evaluate_clients="none")
    monkeypatch.setattr("unalike.engines.secure.Collector", Once)
    with pytest.raises(Killed):
        served(settings, Direct(people))
    monkeypatch.setattr("unalike.engines.secure.Collector", Twice)
    try:
        served(settings, Lying(people), said, resume=True)
    except Killed:
        return said, True
    except ua.UnalikeError:
        return said, False
    raise AssertionError


def test_a_request_that_does_not_say_which_round_counts_is_refused(people):
    """It would be answered from a state that nothing is compared with."""

    class Lying(Direct):
        def exchange(self, requests, seconds):
            out = dict(requests)
            for k, parts in requests.items():
                if wire.decode(parts[0])[0]["kind"] == "request":
                    header, own_parts = wire.decode(parts[1])
                    del header["format"], header["acknowledged"]
                    out[k] = (parts[0], wire.encode(header, own_parts))
            return super().exchange(out, seconds)

    said = []
    with refused("void"):
        served(settings_of("scaffold", rounds=1), Lying(people), said)
    assert any("does not say which round of this client counts" in line for line in said)


def test_a_key_that_is_none_costs_its_client_alone(people):
    """Client 3 is lost; with the key that it shares with client 1 its masks would be taken off the sum."""

    def change(answer):
        header, parts = wire.decode(answer)
        header.pop("format")
        return wire.encode(header, {**parts, "public": torch.zeros(32, dtype=torch.uint8)})

    said = []
    done = served(settings_of(channel="secure-sum:0.5", rounds=1), Direct(people, at("deal", [1], change)), said)
    assert done.history[0]["lost"] == 1 and any("site-1" in line and "key" in line for line in said)


@pytest.mark.parametrize("name", ["w", ":largest"])
def test_a_model_or_weight_of_its_own_is_refused_by_a_client(name, people):
    """With weights of its own making for all but one client, a server would have that client's reply as the sum."""

    class Lying(Direct):
        def exchange(self, requests, seconds):
            out = {}
            for k, parts in requests.items():
                header, tensors = wire.decode(parts[0])
                if header["kind"] == "request":
                    own_header, own_parts = wire.decode(parts[1])
                    header.pop("format"), own_header.pop("format")
                    moved = {name: tensors.pop(name) * (1.0 if k == 2 else 1e3)}
                    parts = (wire.encode(header, tensors), wire.encode(own_header, {**own_parts, **moved}))
                out[k] = parts
            return super().exchange(out, seconds)

    said = []
    with refused("0 of 4 clients answered"):
        served(settings_of(rounds=1), Lying(people), said)
    assert any("for this client alone" in line for line in said)


def test_a_sum_that_is_asked_for_again_is_from_the_same_state(people):
    """In the second try client 2 is to begin anew: if nothing else changes, the difference of the two sums is what it
    keeps."""

    class Lying(Direct):
        tries = 0

        def exchange(self, requests, seconds):
            out, header = dict(requests), wire.decode(next(iter(requests.values()))[0])[0]
            if header["kind"] != "request" or header["round"] != 1:
                yield from super().exchange(requests, seconds)
                return
            self.tries += 1
            if self.tries == 2:
                own_header, own_parts = wire.decode(requests[2][1])
                own_header.pop("format")
                assert own_header.pop("acknowledged") == 0
                out[2] = (requests[2][0], wire.encode({**own_header, "acknowledged": None}, own_parts))
            # with the first two answers alone the first try is void
            yield from ((k, answer) for k, answer in super().exchange(out, seconds) if k < 2 or self.tries == 2)

    said = []
    done = served(settings_of("scaffold", rounds=2, evaluate_clients="none"), Lying(people), said)
    assert any("site-2" in line and "from another state of this client than before" in line for line in said)
    assert [line.get("lost", 0) for line in done.history] == [0, 1]


def test_a_client_opens_for_no_second_list(people):
    said, lines = [], []

    class Greedy(Direct):
        def exchange(self, requests, seconds):
            first = wire.decode(next(iter(requests.values()))[0])
            if first[0].get("stage") == "open":
                header = {name: value for name, value in first[0].items() if name != "format"}
                for came in ([0, 1, 2], [0]):
                    answer = self.people[0].answer((wire.encode(header, {"came": torch.tensor(came)}),))
                    said.append(wire.decode(answer)[0])
            return super().exchange(requests, seconds)

    done = served(settings_of(rounds=1), Greedy(people), lines)
    assert said[0]["kind"] == "reply" and "second list" in said[1]["reason"]
    assert any("second list" in line for line in lines)  # the others' shares are enough
    assert torch.equal(done.server.w, simulated(settings_of(rounds=1)).server.w)


def test_two_sums_of_a_round_that_differ_by_one_client_are_not_opened(people, tmp_path):
    """A server that asks for the round again, without client 3, would have its answer as the difference."""

    class Killed(Exception):
        pass

    def killed(client, header, answer):
        if header.get("stage") == "open" and client == 3:
            raise Killed  # after the others have opened the sum of all
        return answer

    settings = settings_of(rounds=1, folder=str(tmp_path / "run"))
    with pytest.raises(Killed):
        served(settings, Direct(people, killed))
    said = []
    with refused("void"):
        served(settings, Direct(people, at("request", [3], None)), said, resume=True)
    assert any("second sum of round 1" in line for line in said)


@pytest.mark.parametrize(
    ("require", "channel", "fits"),
    [
        ("secure-sum", "clip:1.0", False), ("secure-sum", "secure-sum", True),
        ("secure-sum:0.7", "secure-sum:0.6", False), ("secure-sum:0.5:least=4", "secure-sum:0.6:least=4", True),
        ("secure-sum:0.5:least=4", "secure-sum:0.6", False),
        ("secure-sum:0.5:neighbours=2", "secure-sum:0.6", True),
        ("secure-sum:0.5:neighbours=3", "secure-sum:0.6:2", False),
    ],
)  # fmt: skip
def test_what_clients_insist_on(require, channel, fits, people, tmp_path):
    people[0] = Client(own(data(), 0), tmp_path / "strict", Policy.open(require=(require,)), sealer=people[0].sealer)
    if fits:
        served(settings_of(channel=channel, rounds=1, evaluate_clients="none"), Direct(people))
    else:
        with refused("This client answers through a channel with"):
            served(settings_of(channel=channel, rounds=1), Direct(people))


def test_a_stranger_among_the_peers_is_not_trusted(people, tmp_path, pairs):
    """Client 0 was given the public keys of three clients; the server names a fourth."""
    folder = tmp_path / "few"
    folder.mkdir()
    for file in pairs[:3]:
        (folder / file.name).write_bytes(file.read_bytes())
    ring = Keyring(pairs[0].with_suffix(""), folder)
    people[0] = Client(own(data(), 0), tmp_path / "wary", people[0].policy, sealer=ring)
    said = []
    served(settings_of(channel="secure-sum:0.5", rounds=1), Direct(people), said)
    assert any("Client 3: The server names a key" in line and "not given (--peers)" in line for line in said)


@pytest.mark.parametrize(("given", "words"), [(True, 1), (False, 2)])
def test_a_client_s_owner_reads_who_together_can_open_its_replies(given, words, people, pairs, tmp_path):
    """And, without the other clients' keys, that a server that lies is not among them."""
    said, ring = [], Keyring(pairs[0].with_suffix(""), pairs[0].parent if given else None)
    people[0] = Client(own(data(), 0), tmp_path / "reader", people[0].policy, say=said.append, sealer=ring)
    served(settings_of(channel="secure-sum", rounds=1), Direct(people))
    told = [line for line in said if "replies are hidden" in line or "--peers" in line]
    assert told[0].endswith(f"in a sum of all 4 clients: {SecureSum().promise(4)}") and len(told) == words
