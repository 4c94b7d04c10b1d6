"""Sums under encryption between machines: the same run as simulated; a server that cheats opens nothing."""

import pytest
import torch
from small import refused
from test_network_messages import Direct, data, own, same_as_simulated, served, simulated
from test_secure_between import Counting, OtherPlans, at, first_time, idle, settings_of, spoilt

import unalike as ua
from unalike.channel.stages.encrypted import Paillier
from unalike.client.secure import as_bytes
from unalike.client.settled import Settled
from unalike.crypto.common_key import CommonKey
from unalike.crypto.encrypted_sum import Vector
from unalike.engines.encrypted import EncryptedSums
from unalike.messages import wire
from unalike.network.client import Client
from unalike.network.policy import Policy

PAILLIER, CKKS = "paillier:1024", "ckks:symmetric"


@pytest.fixture(autouse=True)
def first_of_the_list(monkeypatch):
    """Sums are opened by the first clients of the list, where others draw."""
    monkeypatch.setattr("unalike.engines.encrypted.shuffled", sorted)


@pytest.fixture(scope="module")
def keys():
    return {PAILLIER: CommonKey.new("paillier", 1024), CKKS: CommonKey.new("ckks-symmetric")}


@pytest.fixture
def make(tmp_path, keys):
    """Return the function that makes clients; changed: other common keys of some, by number; only: some of them, which
    may have been there before."""

    def people(channel=CKKS, changed=None, folder="", policy=None, only=range(4)):
        fed, rules = data(), policy or Policy.open(methods=tuple(ua.METHODS), repeatable=True)
        each = {**dict.fromkeys(range(4), keys[channel]), **(changed or {})}
        return [Client(own(fed, k), tmp_path / f"{folder}{k}", rules, common=each[k]) for k in only]

    return people


def run_of(channel=CKKS, method="fedavg", rounds=1, **run):
    return settings_of(method, channel, rounds, **run)


@pytest.mark.parametrize(("method", "channel"), [("scaffold", PAILLIER), ("fedavg", CKKS)])
def test_a_federation_computes_what_a_simulation_does(method, channel, make):
    settings = run_of(channel, method, rounds=2)
    same_as_simulated(settings, Counting(make(channel)))


def test_sums_have_the_same_bits(make):
    settings = run_of(f"quantise:8:0.1,{CKKS}", evaluate_clients="none")
    assert torch.equal(served(settings, Direct(make())).server.w, simulated(settings).server.w)


def test_three_messages_a_round_and_two_openers(make):
    opened = []

    def listen(client, header, answer):
        if header.get("stage") == "open":
            opened.append(wire.decode(answer)[1]["sum:32"])
        return answer

    link = Direct(make(), listen)
    served(run_of(rounds=2, evaluate_clients="none"), link)
    work = [header.get("stage", header["kind"]) for _, header in link.asked]
    assert [work.count(kind) for kind in ("key", "request", "vote", "open", "deal")] == [4, 8, 8, 4, 0]
    assert len(opened) == 4 and not any(part[-8:].any() for part in opened)  # the two tags stay with clients


def test_a_server_that_gives_one_client_another_plan_gets_nothing(make):
    with refused("void"):
        served(run_of(evaluate_clients="none"), OtherPlans(make(), idle))


# ---------------------------------------------------------------- who is lost, or has another key


def test_the_sum_is_that_of_those_who_came(make):
    said = []
    lost = served(run_of(evaluate_clients="none"), Direct(make(), at("request", [1], None)), said)
    plain = served(run_of("none", evaluate_clients="none"), Direct(make(folder="open-"), at("request", [1], None)))
    torch.testing.assert_close(lost.server.w, plain.server.w, rtol=0, atol=1e-6)
    assert any("no answer" in line for line in said)


def test_others_open_in_place_of_those_who_are_lost(make):
    settings = run_of(evaluate_clients="none")
    done = served(settings, Direct(make(), at("open", [0, 1], None)))
    assert torch.equal(done.server.w, simulated(settings).server.w)


def test_a_client_that_is_lost_while_all_vote_is_in_the_sum(make):
    """Three of four are enough, and the two that open it are of these."""
    settings = run_of(evaluate_clients="none")
    link = Direct(make(), at("vote", [0], None))
    assert torch.equal(served(settings, link).server.w, simulated(settings).server.w)
    assert [k for k, header in link.asked if header.get("stage") == "open"] == [1, 2]


def test_clients_that_do_not_vote_are_asked_again(make):
    """Nobody computes anything again."""
    said, settings, link = [], run_of(evaluate_clients="none"), Direct(make(), first_time("vote", [1, 2]))
    assert torch.equal(served(settings, link, said).server.w, simulated(settings).server.w)
    (line,) = [line for line in said if line.endswith("It is asked for again.")]
    assert "2 of the 4 clients in the sum have agreed to it, and 3 must" in line
    asked = [k for k, header in link.asked if header.get("stage") == "vote"]
    assert asked == [0, 1, 2, 3, 1, 2] and len([1 for _, header in link.asked if header["kind"] == "request"]) == 4


@pytest.mark.parametrize(
    ("stage", "who"), [("key", [1, 2]), ("request", [0, 1]), ("vote", [0, 1]), ("open", [0, 1, 2])]
)
def test_with_too_few_left_the_round_is_void(stage, who, make):
    with refused("Round 1: .*void"):
        served(run_of(), Direct(make(), at(stage, who, None)))


def test_clients_that_were_started_again_vote_for_the_reply_that_they_sent(make):
    """Two of four, whose votes are needed; those that remember the request open the sum."""
    people, settings = make(), run_of(evaluate_clients="none")

    def restarted(client, header, answer):
        if header["kind"] == "request" and client in (0, 1):
            people[client].close()
            people[client] = make(only=[client])[0]
        return answer

    said, link = [], Direct(people, restarted)
    assert torch.equal(served(settings, link, said).server.w, simulated(settings).server.w)
    assert len([line for line in said if "has sent no reply of round 1" in line]) == 2


def test_a_client_with_another_key_is_left_out(make):
    said, heard, people = [], [], make(changed={2: CommonKey.new("ckks-symmetric")})
    people[2].say = heard.append
    done = served(run_of(evaluate_clients="none"), Direct(people), said)
    assert done.history[0]["lost"] == 1
    why = "its common key is not that of the other clients (join --common)."
    assert any(why in line for line in said) and f"the server did without this client: {why}" in heard


@pytest.mark.parametrize(
    ("channel", "key", "words"),
    [
        (CKKS, None, "all clients have a common key: give it (--common)"),
        (CKKS, PAILLIER, "and the common key is for paillier"),
        ("paillier:2048", PAILLIER, "a key of 2048 bits; the common key has 1024"),
    ],
)
def test_a_client_without_the_run_s_key_refuses_the_plan(channel, key, words, make, keys):
    with pytest.raises(ua.UnalikeError) as told:
        served(run_of(channel), Direct(make(changed=dict.fromkeys(range(4), keys.get(key)))))
    assert words in str(told.value)


def test_a_client_with_a_copy_of_another_s_state_folder_is_left_out(make):
    """Both would vote under one identity."""
    people, said = make(), []
    people[3]._settled = Settled()
    people[3]._settled.identity = people[1]._settled.identity
    done = served(run_of(evaluate_clients="none"), Direct(people), said)
    assert any("site-3" in line and "the same client as client 1: each needs a state folder" in line for line in said)
    assert done.history[0]["lost"] == 1


def test_what_clients_insist_on(make):
    strict = lambda wanted: Policy.open(require=(wanted,), repeatable=True)  # noqa: E731
    settings = run_of(PAILLIER, evaluate_clients="none")
    served(settings, Direct(make(PAILLIER, policy=strict("paillier:1024"))))
    for wanted in ("paillier:2048", "ckks", "secure-sum"):
        with refused("This client answers through a channel with"):
            served(settings, Direct(make(PAILLIER, policy=strict(wanted), folder=wanted)))


# ---------------------------------------------------------------- who lies


class Cheating(Direct):
    """A server that changes what it sends: parts of requests of some kinds, by client."""

    def __init__(self, people, stages, change):
        super().__init__(people)
        self.stages, self.change, self.kept = stages, change, {}

    def exchange(self, requests, seconds):
        out = {}
        for k, parts in requests.items():
            header, tensors = wire.decode(parts[0])
            if header.get("stage", header["kind"]) in self.stages:
                header.pop("format")
                parts = (wire.encode(header, self.change(self, k, dict(tensors))), *parts[1:])
            out[k] = parts
        for k, answer in super().exchange(out, seconds):
            if wire.decode(requests[k][0])[0]["kind"] == "request":
                self.kept[k] = answer
            yield k, answer


def another_model(link, k, tensors):
    return {**tensors, "w": tensors["w"] * 0} if k == 2 else tensors


def one_reply(link, k, tensors):
    """Have client 1's reply opened in place of the sum."""
    sent = wire.decode(link.kept[1])[1]
    return {name: sent.get(name, value) for name, value in tensors.items()}


def a_thousand_times(link, k, tensors):
    """A sum that was added to itself until codes run over their places."""
    secure = next(iter(link.people[0]._nodes.values())).secure
    out = dict(tensors)
    for name in [name for name in tensors if name.startswith("sum:")]:
        bits = int(name.removeprefix("sum:")) - 2  # a code's, of four clients
        count = sum(slot.count for slot in secure._answered.slots if slot.bits == bits)
        ciphers = secure.opener.read(tensors[name].numpy().tobytes(), Vector(count, bits, 4))
        for _ in range(10):
            ciphers = secure.opener.plus(ciphers, ciphers)
        out[name] = as_bytes(secure.opener.written(ciphers))
    return out


def three_of_four(link, k, tensors):
    """Have the sum of all opened as that of three."""
    return {name: value[:3] if name in ("came", "votes") else value for name, value in tensors.items()}


@pytest.mark.parametrize("channel", [PAILLIER, CKKS])
@pytest.mark.parametrize(
    ("stages", "change"),
    [(["request"], another_model), (["open"], one_reply), (["vote", "open"], three_of_four),
     (["open"], a_thousand_times)],
)  # fmt: skip
def test_a_server_that_cheats_has_nothing_opened(stages, change, channel, make):
    people, said = make(channel), []
    with refused("no 2 of them alike: the sum is void"):
        served(run_of(channel), Cheating(people, stages, change), said)
    of_lists = ("list of those who came", "have agreed to this sum")  # said before anything is looked at
    refusals = {line.partition(": ")[2] for line in said if not any(words in line for words in of_lists)}
    # all alike: one that said more would tell what is inside
    assert len(refusals) == 1 and "is not the sum of the replies" in next(iter(refusals))


def test_votes_for_all_open_no_sum_of_some(make):
    said = []
    with refused("no 2 of them alike: the sum is void"):
        served(run_of(), Cheating(make(), ["open"], three_of_four), said)
    assert len([line for line in said if "a second sum of it, over other clients" in line]) == 3


def test_after_some_sums_that_are_none_a_client_opens_nothing_more(make):
    """Tags can be guessed once in 2^77; so that nobody tries."""
    people, said = make(), []

    class Guessing(Cheating):
        def exchange(self, requests, seconds):
            header = wire.decode(next(iter(requests.values()))[0])[0]
            for _ in range(3 if header.get("stage") == "open" else 0):
                list(super().exchange(requests, seconds))
            return super().exchange(requests, seconds)

    with refused("void"):
        served(run_of(), Guessing(people, ["open"], one_reply), said)
    assert any("opens nothing more of this exchange" in line for line in said)


def test_clients_that_all_come_back_with_another_key_have_their_sum(keys):
    sums = EncryptedSums(Paillier(1024), None, "r")
    other = CommonKey.new("paillier", 1024)
    for key in (keys[PAILLIER], other):
        public = key.paillier().public.to_bytes()
        sums._asked_again([])
        sums.keys = {k: (key.fingerprint, public) for k in range(3)}
        assert sums._group([0, 1, 2])[1].key.to_bytes() == public


def test_an_opener_that_lies_is_outvoted(make):
    said, settings = [], run_of(evaluate_clients="none")
    done = served(settings, Direct(make(), at("open", [0], spoilt("sum:32"))), said)
    assert torch.equal(done.server.w, simulated(settings).server.w)
    assert any("site-0" in line and "it opened another sum" in line for line in said)


class Killed(Exception):
    pass


def killed_in(stage):
    """Kill the server when the first client has answered in a stage."""

    def meddle(client, header, answer):
        if header.get("stage") == stage:
            raise Killed
        return answer

    return meddle


@pytest.mark.parametrize("stage", ["vote", "open"])
def test_a_server_that_was_killed_goes_on(stage, make, tmp_path):
    """The same clients reply anew, and agree to that too, also when all were started again meanwhile."""
    people, settings = make(), run_of("ckks:symmetric", "scaffold", 2, folder=str(tmp_path / "run"))
    with pytest.raises(Killed):
        served(settings, Direct(people, killed_in(stage)))
    for person in people:
        person.close()
    again = served(settings, Direct(make()), resume=True)
    assert torch.equal(again.server.w, simulated(run_of("ckks:symmetric", "scaffold", 2)).server.w)


@pytest.mark.parametrize(("stage", "started_again"), [("vote", False), ("open", True)])
def test_two_sums_of_a_round_that_differ_by_one_client_are_not_opened(stage, started_again, make, tmp_path):
    """Clients have agreed to the sum of all before the server was killed. It asks for the sum without client 3; in one
    stage one client alone has agreed to the first, and then the other two are too few."""
    people, settings = make(), run_of(folder=str(tmp_path / "run"), evaluate_clients="none")
    with pytest.raises(Killed):
        served(settings, Direct(people, killed_in(stage)))
    if started_again:
        for person in people:
            person.close()
        people = make()
    said = []
    with refused("Round 1: . of the 3 clients in the sum have agreed to it, and 3 must: the sum is void"):
        served(settings, Direct(people, at("request", [3], None)), said, resume=True)
    refusals = [line for line in said if "a second sum of it, over other clients" in line]
    assert len(refusals) == (1 if stage == "vote" else 3)


# ---------------------------------------------------------------- the command


def test_a_common_key_by_command(tmp_path, capsys):
    from unalike.__main__ import main
    from unalike.network.keys import read_common

    file = tmp_path / "home" / "common.key"
    assert main(["keys", "common", str(file), "--bits", "1024"]) == 0
    said = capsys.readouterr().out
    assert "never to the server" in said and read_common(file).fingerprint.hex()[:16] in said
    assert file.stat().st_mode & 0o777 == 0o600 and read_common(file).paillier().bits == 1024
    assert main(["keys", "common", str(file), "--scheme", "ckks"]) == 2
    for wrong in (["--bits", "512"], ["--bits", "0"], ["--scheme", "ckks", "--bits", "2048"]):
        assert main(["keys", "common", str(tmp_path / "weak.key"), *wrong]) == 2
    assert not (tmp_path / "weak.key").exists()
    assert main(["keys", "node", str(tmp_path / "other"), "--scheme", "ckks"]) == 2
    (tmp_path / "none.key").write_text("{}")
    with refused("none.key: This is no common key"):
        read_common(tmp_path / "none.key")
    with refused("cannot be read"):
        read_common(tmp_path / "nothing.key")
