"""Sums under encryption between machines: the same run as simulated; a server that cheats opens nothing."""

import pytest
import torch
from small import refused
from test_network_messages import Direct, data, own, same_as_simulated, served, simulated
from test_secure_between import Counting, at, settings_of, spoilt

import unalike as ua
from unalike.channel.stages.encrypted import Paillier
from unalike.channel.summing import Slot, tag_slots
from unalike.client.encrypted import EncryptedClient
from unalike.client.secure import ATTEMPT, PRESENT, as_bytes
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
    """Return the function that makes clients; changed: other common keys of some, by number."""

    def people(channel=CKKS, changed=None, folder="", policy=None):
        fed, rules = data(), policy or Policy.open(methods=tuple(ua.METHODS), repeatable=True)
        each = {**dict.fromkeys(range(4), keys[channel]), **(changed or {})}
        return [Client(own(fed, k), tmp_path / f"{folder}{k}", rules, common=each[k]) for k in range(4)]

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


def test_two_messages_a_round_and_two_openers(make):
    opened = []

    def listen(client, header, answer):
        if header.get("stage") == "open":
            opened.append(wire.decode(answer)[1]["sum:32"])
        return answer

    link = Direct(make(), listen)
    served(run_of(rounds=2, evaluate_clients="none"), link)
    work = [header.get("stage", header["kind"]) for _, header in link.asked]
    assert [work.count(kind) for kind in ("key", "request", "open", "deal")] == [4, 8, 4, 0]
    assert len(opened) == 4 and not any(part[-8:].any() for part in opened)  # the two tags stay with clients


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


@pytest.mark.parametrize(("stage", "who"), [("key", [1, 2]), ("request", [0, 1]), ("open", [0, 1, 2])])
def test_with_too_few_left_the_round_is_void(stage, who, make):
    with refused("Round 1: .*void"):
        served(run_of(), Direct(make(), at(stage, who, None)))


def test_a_client_with_another_key_is_left_out(make):
    said = []
    done = served(run_of(evaluate_clients="none"), Direct(make(changed={2: CommonKey.new("ckks-symmetric")})), said)
    assert done.history[0]["lost"] == 1
    assert any("its common key is not that of the other clients" in line for line in said)


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


def test_what_clients_insist_on(make):
    strict = lambda wanted: Policy.open(require=(wanted,), repeatable=True)  # noqa: E731
    settings = run_of(PAILLIER, evaluate_clients="none")
    served(settings, Direct(make(PAILLIER, policy=strict("paillier:1024"))))
    for wanted in ("paillier:2048", "ckks", "secure-sum"):
        with refused("This client answers through a channel with"):
            served(settings, Direct(make(PAILLIER, policy=strict(wanted), folder=wanted)))


# ---------------------------------------------------------------- who lies


class Cheating(Direct):
    """A server that changes what it sends: parts of requests of one kind, by client."""

    def __init__(self, people, stage, change):
        super().__init__(people)
        self.stage, self.change, self.kept = stage, change, {}

    def exchange(self, requests, seconds):
        out = {}
        for k, parts in requests.items():
            header, tensors = wire.decode(parts[0])
            if header.get("stage", header["kind"]) == self.stage:
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


def two_of_four(link, k, tensors):
    return {**tensors, "came": torch.tensor([0, 1, 2])}


@pytest.mark.parametrize("channel", [PAILLIER, CKKS])
@pytest.mark.parametrize(
    ("stage", "change"),
    [("request", another_model), ("open", one_reply), ("open", two_of_four), ("open", a_thousand_times)],
)
def test_a_server_that_cheats_has_nothing_opened(stage, change, channel, make):
    people, said = make(channel), []
    with refused("no 2 of them alike: the sum is void"):
        served(run_of(channel), Cheating(people, stage, change), said)
    refusals = {line.partition(": ")[2] for line in said if "list of those who came" not in line}
    # all alike: one that said more would tell what is inside
    assert len(refusals) == 1 and "is not the sum of the replies" in next(iter(refusals))


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
        served(run_of(), Guessing(people, "open", one_reply), said)
    assert any("opens nothing more of this exchange" in line for line in said)


@pytest.fixture
def replying(keys):
    """Return three clients of a sum under encryption, and the function that makes one's reply."""
    stage, slots = Paillier(1024), [Slot("d", 5, 40), *tag_slots(Paillier.tags, 40)]
    clients = [EncryptedClient("r", k, stage, keys[PAILLIER]) for k in range(3)]
    codes = {slot.name: torch.ones(slot.count, dtype=torch.int64) for slot in slots}
    about = {PRESENT: torch.arange(3), ATTEMPT: as_bytes(bytes(32))}
    return clients, lambda client: client.hidden((0, 0), b"asked", about, slots, codes)


def added(clients, replies, name="sum:42"):
    """Return the sum of ciphertexts."""
    opener, vector = clients[0].opener, Vector(5 + Paillier.tags, 40, 3)
    total = opener.read(replies[0][name].numpy().tobytes(), vector)
    for reply in replies[1:]:
        total = opener.plus(total, opener.read(reply[name].numpy().tobytes(), vector))
    return as_bytes(opener.written(total))


def test_wrong_sums_are_counted_although_right_ones_come_between(replying):
    clients, hidden = replying
    right = added(clients, [hidden(client) for client in clients])
    header, came = {"round": 0, "exchange": 0}, torch.arange(3)
    for wrong in (right.flip(0), torch.empty(0, dtype=torch.uint8), right.roll(1)):
        clients[0]._open(header, {"came": came, "sum:42": right})
        with refused("is not the sum of the replies"):
            clients[0]._open(header, {"came": came, "sum:42": wrong})
    with refused("opens nothing more"):
        clients[0]._open(header, {"came": came, "sum:42": right})


def test_one_client_does_not_reply_under_several_numbers(replying, keys):
    """As everybody in turn, it would have opened its own reply, three times."""
    clients, hidden = replying
    hidden(clients[0])
    again = EncryptedClient("r", 1, Paillier(1024), keys[PAILLIER])
    again.remember(clients[0])
    with refused("two replies in one sum, under two numbers"):
        hidden(again)


def test_clients_that_all_come_back_with_another_key_have_their_sum(keys):
    sums = EncryptedSums(Paillier(1024), None, "r")
    other = CommonKey.new("paillier", 1024)
    for key in (keys[PAILLIER], other):
        public = key.paillier().public.to_bytes()
        sums._forget()
        sums.keys = {k: (key.fingerprint, public) for k in range(3)}
        assert sums._group([0, 1, 2])[1].key.to_bytes() == public


def test_an_opener_that_lies_is_outvoted(make):
    said, settings = [], run_of(evaluate_clients="none")
    done = served(settings, Direct(make(), at("open", [0], spoilt("sum:32"))), said)
    assert torch.equal(done.server.w, simulated(settings).server.w)
    assert any("site-0" in line and "it opened another sum" in line for line in said)


def test_two_sums_of_a_round_that_differ_by_one_client_are_not_opened(make, tmp_path):
    """Client 0 has opened the sum of all before the server was killed: the sum without client 3 is for others to open,
    and where these have done the same, for nobody."""

    class Killed(Exception):
        pass

    def killed(client, header, answer):
        if header.get("stage") == "open" and client == last:
            raise Killed
        return answer

    for last, void in ((0, False), (1, True)):
        people = make(folder=f"{last}-")
        settings = run_of(folder=str(tmp_path / f"run-{last}"), evaluate_clients="none")
        with pytest.raises(Killed):
            served(settings, Direct(people, killed))
        said, link = [], Direct(people, at("request", [3], None))
        try:
            done = served(settings, link, said, resume=True)
            assert not void and done.history[0]["lost"] == 1
        except ua.UnalikeError as error:
            assert void and "no 2 of them alike: the sum is void" in str(error)
        assert len([line for line in said if "second sum of round 1" in line]) == last + 1


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
    assert main(["keys", "node", str(tmp_path / "other"), "--scheme", "ckks"]) == 2
    (tmp_path / "none.key").write_text("{}")
    with refused("none.key: This is no common key"):
        read_common(tmp_path / "none.key")
    with refused("cannot be read"):
        read_common(tmp_path / "nothing.key")
