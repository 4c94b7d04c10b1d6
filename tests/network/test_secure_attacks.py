"""What a server that lies tries in several sums, by words of errors and by its plan, and clients that spoil sums: with
the protection nothing of one client comes out, and without it (each taken away in turn) its numbers do."""

# ruff: noqa: F811 (parameters are named after fixtures)

import pytest
import torch
from small import federation, refused
from test_network_messages import Direct, served, simulated
from test_secure_between import at, pairs, people, person, settings_of  # noqa: F401 (two of them are fixtures)

import unalike as ua
from unalike.channel.stages import SecureSum
from unalike.client.node import Node
from unalike.client.preparing import slots_of, unlimbed, widths_of
from unalike.client.secure import SecureClient, as_bytes
from unalike.client.settled import Settled
from unalike.crypto import ring, secure_sum
from unalike.crypto.secure_sum import Collector, Member, Void
from unalike.data.preparation import Recipe
from unalike.engines.preparing import RUN, SUMS, HiddenPreparation, _read
from unalike.engines.secure import MaskedSums
from unalike.messages import wire
from unalike.network import keys
from unalike.network.client import Client
from unalike.network.policy import Policy
from unalike.network.preparing import beginning
from unalike.network.seal import PublicKeys

STAGE = "secure-sum:0.6"


def changed(parts, where=0, **header):
    """A request with another header."""
    before, tensors = wire.decode(parts[where])
    before.pop("format")
    new = wire.encode({**before, **header}, tensors)
    return (new, *parts[1:]) if where == 0 else (*parts[:where], new, *parts[where + 1 :])


# ---------------------------------------------------------------- clients under other numbers


class Renumbering:
    """Prepares features over some of the clients, always under the numbers 0, 1, 2."""

    run, terms, keys = RUN, b"", PublicKeys()

    def __init__(self, people, who, pairs):
        self.people, self.who = people, who
        self.public = [pairs[k].read_text() for k in who]
        for number, message in beginning(SecureSum(), range(len(who))).items():
            assert wire.decode(people[who[number]].answer((wire.encode(message, {}),)))[0]["kind"] == "reply"

    def ask(self, requests):
        for number, parts in requests.items():
            yield number, self.people[self.who[number]].answer(tuple(parts))

    def refuse(self, client, reason):
        raise ua.UnalikeError(reason)

    again = None


def sums_without_one(people, pairs, left_out):
    who = [k for k in range(4) if k != left_out]
    sizes = {number: len(people[k].data.train.y) for number, k in enumerate(who)}
    link = Renumbering(people, who, pairs)
    return HiddenPreparation(Recipe.of(None, 5), SecureSum(), link, sizes, 1)._totals({}, ("present", "sum"))["sum"]


@pytest.fixture
def five(people, tmp_path, pairs):
    """Four clients with samples enough for a preparation."""
    fed = federation(sizes=(16,) * 4)
    return [person(fed, k, tmp_path / "prepared", Policy(require=("secure-sum",)), pairs) for k in range(4)]


def test_other_clients_under_the_same_numbers_are_other_clients(five, pairs):
    sums_without_one(five, pairs, 3)
    with refused("second sum of round 1 over other clients"):
        sums_without_one(five, pairs, 2)


def test_by_their_numbers_alone_each_client_s_sums_would_come_out(five, pairs, monkeypatch):
    real = SecureClient._open_once
    by_number = lambda self, came: real(self, [bytes([k]) for k, _ in enumerate(sorted(came))])  # noqa: E731
    monkeypatch.setattr(SecureClient, "_open_once", by_number)
    sums = torch.stack([sums_without_one(five, pairs, k) for k in range(4)])
    assert torch.allclose(sums.sum(0) / 3 - sums[1], five[1].data.train.of(0)[0].double().sum(0))


# ---------------------------------------------------------------- lists that are not the same for all


class Killed(Exception):
    pass


def many(n, folder, monkeypatch, **rules):
    """n clients with signing keys."""
    fed = federation(sizes=(16,) * n)
    pairs = [keys.make_node(folder / "keys" / f"client-{k:02d}") for k in range(n)]
    monkeypatch.setattr("test_network_messages.KEYS", {f"site-{k:02d}": f.read_bytes() for k, f in enumerate(pairs)})
    monkeypatch.setattr("test_network_messages.data", lambda *_: fed)
    return [person(fed, k, folder, Policy(least_steps=1, **rules), pairs) for k in range(n)], pairs


def with_few_neighbours(folder, monkeypatch):
    """24 clients on a ring, each with 8 neighbours, all agree on who came, and the sum of all is opened. Then the
    server asks again: one half of the ring, around client 3, is told that it and two others on the far side are lost,
    and the other half that nobody is. Each half agrees. Return what the sums differ in."""
    people, _ = many(24, folder, monkeypatch, require=("secure-sum:0.51:least=3:neighbours=8",))
    victim, totals, rings, signed = 3, [], [], {}

    class Taking(Collector):
        def __init__(self, group, request):
            super().__init__(group, request)
            rings.append(group.lattice._order)

        def total(self):
            totals.append([vector.copy() for vector in super().total()])
            raise Killed

    def told(k):
        place = {client: (at - rings[-1].index(victim) + 12) % 24 - 12 for at, client in enumerate(rings[-1])}
        lost = [victim, *(client for client in place if place[client] in (11, -12))] if abs(place[k]) <= 6 else []
        return [client for client in range(24) if client not in lost]

    class Lying(Direct):
        def exchange(self, requests, seconds):
            stage = (lambda header: header.get("stage", header["kind"]))(wire.decode(requests[0][0])[0])
            out = dict(requests)
            for k, (first, *rest) in requests.items() if stage in ("agree", "open") else ():
                header, parts = wire.decode(first)
                header.pop("format")
                alike = [signed[c] if c in signed and told(c) == told(k) else bytes(96) for c in told(k)]
                lists = {"came": torch.tensor(told(k)), "signatures": as_bytes(b"".join(alike)).view(-1, 96)}
                out[k] = (wire.encode(header, {name: lists[name] for name in parts}), *rest)
            for k, answer in super().exchange(out, seconds):
                if stage == "agree":
                    signed[k] = wire.decode(answer)[1]["signature"].numpy().tobytes()
                if (k, stage) != (victim, "request"):
                    yield k, answer

    channel = "secure-sum:0.51:8:least=3:agree=true"
    settings = settings_of(channel=channel, rounds=1, folder=str(folder / "run"), evaluate_clients="none")
    settings["local"]["batch_size"] = 16
    monkeypatch.setattr("unalike.engines.secure.Collector", Taking)
    with pytest.raises(Killed):
        served(settings, Direct(people))
    try:
        served(settings, Lying(people), said := [], resume=True)
    except Killed:
        apart = ring.signed(ring.reduced(totals[0][0] - totals[1][0], 45), 45)
        assert apart[-3:].tolist() == [1, 16, 1]  # one that trained, on its 16 samples
        return apart
    except ua.UnalikeError:
        assert any("second sum of round 1 over other clients" in line for line in said)
    return None


class Preparing:
    """Asks for the first sum of a preparation; with `told`, tells each client another list of those who came."""

    run, terms, keys = RUN, b"", PublicKeys()
    again = None

    def __init__(self, people, pairs, stage, victim, told=None):
        self.people, self.stage, self.victim, self.told = people, stage, victim, told
        self.public, self.said = [pair.read_text() for pair in pairs], []
        for k, message in beginning(stage, range(len(people))).items():
            assert wire.decode(people[k].answer((wire.encode(message, {}),)))[0]["kind"] == "reply"

    def ask(self, requests):
        for k, parts in requests.items():
            header = wire.decode(parts[0])[0]
            if self.told and header.pop("format") and header.get("stage") == "open":
                parts = (wire.encode(header, {"came": torch.tensor(self.told(k))}),)
            answer = self.people[k].answer(tuple(parts))
            if not (self.told and k == self.victim and header["kind"] == "prepare"):
                yield k, answer

    def refuse(self, client, reason):
        self.said.append(reason)

    def sum(self):
        recipe, everybody = Recipe.of(None, 5), range(len(self.people))
        header = {"kind": "prepare", "stage": SUMS, "version": ua.__version__, "run": RUN, "round": 0}
        shared = wire.encode({**header, "recipe": recipe.plain()}, {})
        requests = {k: (shared, wire.encode({}, {})) for k in everybody}
        slots = slots_of(widths_of(("present", "sum"), recipe, 1), 0)
        sums = MaskedSums(self.stage, self, RUN)
        return unlimbed(sums.collect((0, 0), [*everybody], lambda n: slots, requests, _read, 3, 1).totals["sum"])


def with_agreement_the_second_time(folder, monkeypatch):
    """Eleven clients prepare features. The first sum is of all but client 3, without agreement, and each is told that
    two others are lost too, for each two others; the second is of all, who agree. Return the sums' difference."""
    people, pairs = many(11, folder, monkeypatch, require=("secure-sum",))
    others = [k for k in range(11) if k != 3]

    def told(k):
        place = others.index(k)
        return sorted({*others} - {others[(place + 1) % 10], others[(place + 2) % 10]})

    class Choosing(Collector):
        """Takes of each client's shares those which it gave for what is true."""

        def take_opened(self, client, shares):
            super().take_opened(client, shares)
            self._given[client] = {v: s for v, s in shares.items() if (v in told(client)) == (v in self.came)}

    monkeypatch.setattr("unalike.engines.secure.Collector", Choosing)
    first = Preparing(people, pairs, SecureSum(), 3, told).sum()
    monkeypatch.setattr("unalike.engines.secure.Collector", Collector)
    second = Preparing(people, pairs, SecureSum(agree=True), 3)
    try:
        apart = second.sum() - first
    except Void:
        assert any("second sum of round 1 over other clients" in line for line in second.said)
        return None
    assert torch.allclose(apart, people[3].data.train.of(0)[0].double().sum(0))
    return apart


@pytest.mark.parametrize("attack", [with_few_neighbours, with_agreement_the_second_time])
def test_a_second_sum_of_an_exchange_is_opened_only_where_all_have_agreed_to_one_list_in_both(
    attack, tmp_path, monkeypatch
):
    assert attack(tmp_path / "with", monkeypatch) is None
    monkeypatch.setattr(SecureClient, "_agreed", property(lambda self: self.stage.agree))
    monkeypatch.setattr(SecureClient, "_loose", property(lambda self: set(), lambda self, value: None), raising=False)
    assert attack(tmp_path / "without", monkeypatch) is not None


# ---------------------------------------------------------------- another state of one client


class Walking(Direct):
    """Has round 1 summed twice over the same clients. In between, client 2 alone is taken to another state: it answers
    a later exchange of round 0, counting on no round, which makes it forget what it keeps."""

    def __init__(self, people):
        super().__init__(people)
        self.victim, self.walking = 2, False

    def exchange(self, requests, seconds):
        if self.walking and wire.decode(next(iter(requests.values()))[0])[0]["kind"] == "request":
            requests = {self.victim: changed(requests[self.victim], 1, acknowledged=None)}
        yield from super().exchange(requests, seconds)


def twice(monkeypatch, link, totals):
    real = MaskedSums._collected

    def collected(self, when, ids, slots, asked, read, least):
        found = real(self, when, ids, slots, asked, read, least)
        if when == (1, 0):
            link.walking, walk = True, {k: changed(parts, round=0, exchange=1) for k, parts in asked.items()}
            with refused("void"):
                real(self, (0, 1), ids, slots, walk, read, least)
            link.walking = False
            again = real(self, when, ids, slots, asked, read, least)
            totals.extend([found.totals, again.totals])
            return again
        return found

    monkeypatch.setattr(MaskedSums, "_collected", collected)


def test_a_sum_is_not_asked_for_again_from_a_state_that_has_changed_under_the_same_number(people, monkeypatch):
    said, totals = [], []
    twice(monkeypatch, link := Walking(people), totals)
    with refused("void"):
        served(settings_of("scaffold", STAGE, evaluate_clients="none"), link, said)
    assert any("site-2" in line and "from another state of this client than before" in line for line in said)
    assert not totals


def test_without_a_hash_of_the_state_its_change_would_come_out(people, monkeypatch):
    totals = []
    monkeypatch.setattr(Node, "_stands_for", lambda self, state, first: b"")
    twice(monkeypatch, link := Walking(people), totals)
    served(settings_of("scaffold", STAGE, evaluate_clients="none"), link)
    apart = {name: int((totals[1][name] - totals[0][name]).abs().max()) for name in totals[0]}
    assert apart[":count"] == 0 and max(apart.values()) > 0


def test_the_state_is_remembered_over_a_restart_where_sums_are_encrypted(tmp_path):
    first = Settled(tmp_path / "sums.jsonl")
    assert first.is_same_state(("r", 1, 0), b"one")
    again = Settled(tmp_path / "sums.jsonl")
    assert again.identity == first.identity
    assert again.is_same_state(("r", 1, 0), b"one") and not again.is_same_state(("r", 1, 0), b"two")
    assert again.is_same_state(("r", 1, 1), b"two")
    assert "sums.jsonl" not in str(again.refusal("No.")) and "sums.jsonl" in str(again.refusal("No.").__cause__)


# ---------------------------------------------------------------- what a plan may weaken


@pytest.mark.parametrize(
    ("require", "channel", "fits"),
    [
        ("secure-sum", "secure-sum:0.01", False), ("secure-sum", "secure-sum:0.67:least=2", False),
        ("secure-sum", "secure-sum:0.8:2", False), ("secure-sum", "secure-sum:limit=0.001", False),
        ("secure-sum:0.01", "secure-sum:0.01", True), ("secure-sum:least=2", "secure-sum:least=2", True),
        ("secure-sum:limit=1", "secure-sum:limit=1", True), ("secure-sum", "secure-sum:0.8:least=4", True),
    ],
)  # fmt: skip
def test_a_stage_that_is_required_by_its_name_has_its_defaults_at_least(require, channel, fits):
    rules, (stage,) = Policy(require=(require,)), ua.channel.parse(channel)
    if fits:
        rules.check_channel([stage])
        rules.check_sums(stage)
    else:
        with refused("(--require)"):
            rules.check_channel([stage])


def test_the_fewest_clients_of_a_run_are_those_of_its_sums_too(people, tmp_path, pairs):
    """The server lets three of four take part."""
    fed, said = people[0].data, []
    people[0] = Client(fed, tmp_path / "careful", Policy.open(least_cohort=4), sealer=people[0].sealer)
    with refused("void"):
        served(settings_of(channel=STAGE, rounds=1), Direct(people, at("key", [3], None)), said)
    assert any("3 clients are to take part in a sum; this client wants 4" in line for line in said)


# ---------------------------------------------------------------- words of errors


def test_an_error_s_words_tell_nothing_of_a_reply(people):
    """The run's limit is far below any reply: what they would be stays with each client."""
    said, own_log = [], []
    people[1].say = own_log.append
    with refused("0 of 4 clients answered"):
        served(settings_of(channel="secure-sum:0.6:limit=1e-6", rounds=1), Direct(people), said)
    told = [line for line in said if "beyond the limit of the run's channel; its own log says more" in line]
    assert len(told) >= 4 and not any("goes to" in line for line in said)
    assert any("goes to" in line for line in own_log)


def test_no_client_is_larger_than_the_largest(people):
    """Else its weight would be above 1, and the limit would tell by how much."""

    class Lying(Direct):
        def exchange(self, requests, seconds):
            out = {}
            for k, (shared, *rest) in requests.items():
                header, tensors = wire.decode(shared)
                header.pop("format")
                small = {n: v * 0.1 if n == ":largest" else v for n, v in tensors.items()}
                out[k] = (wire.encode(header, small), *rest)
            yield from super().exchange(out, seconds)

    said = []
    with refused("void"):
        served(settings_of(channel=STAGE, rounds=1), Lying(people), said)
    assert any("says that all clients have fewer samples than this one" in line for line in said)


# ---------------------------------------------------------------- a client that spoils sums


def test_a_client_that_deals_nonsense_to_all_is_left_out(people):
    def nonsense(answer):
        header, parts = wire.decode(answer)
        header.pop("format")
        return wire.encode(header, {**parts, "sealed": parts["sealed"] ^ 1})

    said = []
    done = served(settings_of(channel=STAGE, evaluate_clients="none"), Direct(people, at("deal", [1], nonsense)), said)
    assert any("site-1 is left out of this exchange: 3 clients cannot use what it dealt" in line for line in said)
    assert [line.get("lost", 0) for line in done.history] == [1, 0]
    ids = [[0, 2, 3], [0, 1, 2, 3]]
    settings = settings_of(channel=STAGE, evaluate_clients="none")
    assert torch.equal(done.server.w, simulated(settings, clients_per_round=ids).server.w)


def test_a_client_that_seals_a_key_that_is_none_is_left_out(people, monkeypatch):
    """The server gets a right one, and cannot see the other."""
    made, lying = secure_sum.public_of, []

    class Liar(Member):
        def deal(self):
            lying.append(self.client == 1)
            found = super().deal()
            lying.clear()
            return secure_sum.Dealt(made(self._masking), found.commitment, found.sealed)

    monkeypatch.setattr(secure_sum, "public_of", lambda private: bytes(32) if any(lying) else made(private))
    monkeypatch.setattr("unalike.client.secure.Member", Liar)
    said = []
    done = served(settings_of(channel=STAGE, rounds=1, evaluate_clients="none"), Direct(people), said)
    assert any("What client 1 dealt has no key in it" in line for line in said) and done.history[0]["lost"] == 1


def test_one_accuser_is_not_enough(people):
    """Client 0 says that it cannot use what client 1 dealt, and client 2 is away: the sum is void, and asked for again
    of all."""
    first = {0, 2}

    def meddle(k, header, answer):
        if header["kind"] != "request" or k not in first:
            return answer
        first.discard(k)
        return wire.encode({"kind": "error", "reason": "cannot be opened", "about": 1}, {}) if k == 0 else None

    said = []
    done = served(settings_of(channel=STAGE, rounds=1, evaluate_clients="none"), Direct(people, meddle), said)
    assert any("asked for again" in line for line in said) and not any("what it dealt" in line for line in said)
    assert "lost" not in done.history[0]


# ---------------------------------------------------------------- preparations


def test_samples_that_have_changed_are_not_prepared_again(people, tmp_path, pairs):
    """The difference of two sums would be that of the samples; the record is on the disk."""
    fed = federation(sizes=(16,) * 4)
    people = [person(fed, k, tmp_path / "p", people[k].policy, pairs) for k in range(4)]
    prepare = {"recipe": Recipe.of(None, 5)}
    served(settings_of(channel=STAGE, rounds=1, evaluate_clients="none"), Direct(people), **prepare)
    for k in (0, 1):
        people[k].close()
    more = federation(sizes=(20, 16, 16, 16))
    people[0] = person(more, 0, tmp_path / "p", people[0].policy, pairs)
    people[1] = person(fed, 1, tmp_path / "p", people[1].policy, pairs)
    with refused("This client's samples have changed since it gave sums to prepare features"):
        served(settings_of(channel=STAGE, rounds=1, evaluate_clients="none"), Direct(people), **prepare)


def test_a_client_that_was_started_again_says_that_the_preparation_begins_anew(people):
    header = {"kind": "sum", "stage": "open", "run": RUN, "round": 0, "exchange": 0}
    answer = wire.decode(people[0].answer((wire.encode(header, {}),)))[0]
    assert answer["reason"] == "This client was started again: the preparation has to begin anew."
