"""A server that lies tries to have two encrypted sums opened whose difference is one client's reply, and gets one at
most; with the votes taken away it gets both, and the reply."""

import pytest
import torch

from unalike.channel import SecureSum
from unalike.channel.stages.encrypted import Paillier
from unalike.channel.summing import Slot, tag_slots
from unalike.client.encrypted import WHO, EncryptedClient, sum_label
from unalike.client.secure import ATTEMPT, PRESENT, SecureClient, as_bytes
from unalike.client.settled import Settled
from unalike.crypto import ring, votes
from unalike.crypto.common_key import CommonKey
from unalike.crypto.encrypted_sum import Vector
from unalike.errors import UnalikeError
from unalike.messages import wire

CLIENTS, VICTIM, DECOY, STAGE = 5, 4, 5, Paillier(1024)
EVERYBODY, OTHERS = [*range(CLIENTS)], [*range(CLIENTS - 1)]
NUMBERS, BITS = 6, 40
SLOTS = [Slot("d", NUMBERS, BITS), *tag_slots(Paillier.tags, BITS)]
VECTOR = Vector(NUMBERS + Paillier.tags, BITS, CLIENTS)
SUM = f"sum:{BITS + ring.carry_bits(CLIENTS)}"
REPLIES = torch.arange(CLIENTS * NUMBERS).view(CLIENTS, NUMBERS) ** 3 - 999
NOTHING = torch.zeros(NUMBERS, dtype=torch.int64)


@pytest.fixture(scope="module")
def key():
    return CommonKey.new("paillier", 1024)


class Lying:
    """A server that keeps no rules, and its clients, which do. Each has a number, which the server chose."""

    def __init__(self, key, folder):
        self.key, self.folder = key, folder
        self.clients = {k: self.client(k, k) for k in EVERYBODY} | {DECOY: self.client(DECOY, VICTIM)}
        self.refusals = []

    def client(self, place, number):
        """Start a client, perhaps again: what it keeps is on its disk."""
        return EncryptedClient("run", number, STAGE, self.key, settled=Settled(self.folder / f"{place}.jsonl"))

    def restart(self, *places):
        for place in places:
            self.clients[place] = self.client(place, self.clients[place].client)

    def replies(self, places=EVERYBODY, attempt=1, when=(0, 0), empty=(DECOY,)):
        """Have clients reply to a request; return (label, each reply's row and ciphertext by client). empty: clients
        whose reply is of zeros."""
        about = {PRESENT: torch.arange(CLIENTS), ATTEMPT: as_bytes(bytes([attempt] * 32))}
        found = {}
        for place in places:
            codes = {slot.name: torch.zeros(slot.count, dtype=torch.int64) for slot in SLOTS}
            own = NOTHING if place in empty else REPLIES[place]
            sent = self.clients[place].hidden(when, b"asked", about, SLOTS, {**codes, "d": own})
            found[place] = (sent[WHO].numpy().tobytes(), sent[SUM].numpy().tobytes())
        label = sum_label("run", when, bytes([attempt] * 32), b"asked", range(CLIENTS), STAGE.least, SLOTS)
        return label, found

    def tell(self, place, stage, when, **parts):
        """Ask a client; return its answer's parts, None if it refuses."""
        header = {"kind": "sum", "stage": stage, "run": "run", "round": when[0], "exchange": when[1]}
        try:
            return wire.decode(self.clients[place].answer(header, parts))[1]
        except UnalikeError as error:
            self.refusals.append(str(error))
            return None

    def voted(self, label, replies, when=(0, 0)):
        """Ask everybody in a list to vote for it; return the votes by row."""
        came, found = listed(replies), {}
        for place, (row, _) in replies.items():
            answer = self.tell(place, "vote", when, came=came, label=as_bytes(label))
            if answer is not None:
                found[row] = answer["vote"].numpy().tobytes()
        return found

    def opened(self, replies, given, openers=None, when=(0, 0)):
        """Ask clients one after the other to open the sum of a list, with these votes; return it, None if all
        refuse."""
        opener, total = self.clients[0].opener, None
        for _, cipher in replies.values():
            one = opener.read(cipher, VECTOR)
            total = one if total is None else opener.plus(total, one)
        cast = given_rows(replies, given)
        parts = {"came": listed(replies), "votes": cast, SUM: as_bytes(opener.written(total))}
        for place in replies if openers is None else openers:
            answer = self.tell(place, "open", when, **parts)
            if answer is not None:
                words = ring.unpack(answer[SUM].numpy(), VECTOR.count, VECTOR.sum_bits)
                return torch.from_numpy(ring.signed(words, VECTOR.sum_bits)[:NUMBERS])
        return None

    def sum(self, label, replies, openers=None, when=(0, 0)):
        """Do all that can be done to have the sum of these replies opened."""
        return self.opened(replies, self.voted(label, replies, when), openers, when)


def listed(replies):
    return as_bytes(b"".join(sorted(row for row, _ in replies.values()))).view(-1, votes.ROW)


def given_rows(replies, given):
    rows = sorted(row for row, _ in replies.values())
    return as_bytes(b"".join(given.get(row, bytes(32)) for row in rows)).view(-1, 32)


def without(replies, *places):
    return {place: one for place, one in replies.items() if place not in places}


# ---------------------------------------------------------------- the attacks: each returns what was opened


def two_clients(server):
    label, replies = server.replies()
    return server.sum(label, replies, [0]), server.sum(label, without(replies, VICTIM), [1])


def all_votes_before_any_opening(server):
    """No client has opened anything when it is asked to vote a second time."""
    label, replies = server.replies()
    few = without(replies, VICTIM)
    first, second = server.voted(label, replies), server.voted(label, few)
    return server.opened(replies, first, [0]), server.opened(few, second, [1])


def votes_divided(server):
    """Each half is asked to vote for its own list."""
    label, replies = server.replies()
    few, (a, b) = without(replies, VICTIM), ((0, 1, VICTIM), (2, 3))
    came, found = {a: replies, b: few}, []
    for half, those in came.items():
        cast = {}
        for place in half:
            answer = server.tell(place, "vote", (0, 0), came=listed(those), label=as_bytes(label))
            cast |= {} if answer is None else {those[place][0]: answer["vote"].numpy().tobytes()}
        found.append(server.opened(those, cast))
    return tuple(found)


def the_same_client_twice(server):
    label, replies = server.replies()
    return server.sum(label, replies, [0]), server.sum(label, without(replies, VICTIM), [0])


def after_a_restart(server):
    """All memory is gone."""
    first = server.sum(*server.replies(attempt=1))
    server.restart(*EVERYBODY)
    return first, server.sum(*server.replies(OTHERS, attempt=2))


def restarted_in_turn(server):
    """Who votes for the second list was started again after its first vote, and who opens it has not voted."""
    label, replies = server.replies()
    first = server.sum(label, replies, [0])
    server.restart(0, 2, 3)
    return first, server.sum(label, without(replies, VICTIM), [1])


def after_a_void_attempt(server):
    """The first attempt is void, the server says, when it has the votes for it, and begins again without one client.
    That one still opens the first sum."""
    label, replies = server.replies(attempt=1)
    cast = server.voted(label, replies)
    second = server.sum(*server.replies(OTHERS, attempt=2))
    return server.opened(replies, cast, [VICTIM]), second


def leaving_one_out_the_second_time(server):
    """The round is asked for again, as after a server was killed."""
    first = server.sum(*server.replies(attempt=1))
    return first, server.sum(*server.replies(OTHERS, attempt=2))


def with_votes_that_it_made_up(server):
    label, replies = server.replies()
    few = without(replies, VICTIM)
    rows = sorted(row for row, _ in few.values())
    text = votes.statement("run", 0, 0, label, rows)
    made = {row: votes.vote(b"a guess".ljust(32), text, votes.Reply.from_bytes(row).identity) for row in rows}
    return server.sum(label, replies, [0]), server.opened(few, made, [1])


def with_votes_of_another_exchange(server):
    """In exchange 1 all but one take part, and vote."""
    label, replies = server.replies()
    first, few = server.sum(label, replies, [0]), without(replies, VICTIM)
    cast = server.voted(label, few, when=(0, 1))
    assert len(cast) == len(few)  # it is their first vote there
    return first, server.opened(few, cast, [1])


def with_votes_for_another_list(server):
    """Votes for all, shown as votes for all but one."""
    label, replies = server.replies()
    cast, few = server.voted(label, replies), without(replies, VICTIM)
    return server.opened(replies, cast, [0]), server.opened(few, cast, [1])


def two_clients_under_one_number(server):
    """The lists have the same numbers; in the second another client takes the place of one."""
    first = server.sum(*server.replies(attempt=1))
    return first, server.sum(*server.replies([*OTHERS, DECOY], attempt=2))


def two_replies_of_one_client(server):
    """One client is asked twice under one label, and all others' replies are used again."""
    label, replies = server.replies()
    first = server.sum(label, replies, [0])
    _, another = server.replies([VICTIM], empty=[VICTIM])
    return first, server.sum(label, {**replies, **another}, [1])


ATTACKS = {
    attack.__name__: attack
    for attack in (
        two_clients, all_votes_before_any_opening, votes_divided, the_same_client_twice, after_a_restart,
        restarted_in_turn, after_a_void_attempt, leaving_one_out_the_second_time, with_votes_that_it_made_up,
        with_votes_of_another_exchange, with_votes_for_another_list, two_clients_under_one_number,
        two_replies_of_one_client,
    )
}  # fmt: skip


def unguarded(monkeypatch):
    """Take the votes away, and the record of them."""
    monkeypatch.setattr(Settled, "settle", lambda self, *about: None)
    monkeypatch.setattr(EncryptedClient, "_check_votes", lambda self, *about: None)
    monkeypatch.setattr(EncryptedClient, "_open_once", lambda self, came: None)


@pytest.fixture
def server(key, tmp_path):
    return Lying(key, tmp_path)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_lying_server_has_one_of_two_sums_opened_at_most(name, server):
    first, second = ATTACKS[name](server)
    assert second is None and server.refusals
    # only where votes are divided has the first too few of them
    assert (first is None) == (name == "votes_divided")
    assert first is None or torch.equal(first, REPLIES.sum(0))


@pytest.mark.parametrize("name", ATTACKS)
def test_without_votes_it_learns_a_reply(name, server, monkeypatch):
    unguarded(monkeypatch)
    first, second = ATTACKS[name](server)
    assert torch.equal(first - second, REPLIES[VICTIM])


# ---------------------------------------------------------------- lists and sums that are none


def test_wrong_sums_are_counted_although_right_ones_come_between(server):
    label, replies = server.replies()
    cast = server.voted(label, replies)
    for wrong in (bytes(2), b"", b"\xff"):
        assert torch.equal(server.opened(replies, cast, [0]), REPLIES.sum(0))
        parts = {"came": listed(replies), "votes": given_rows(replies, cast), SUM: as_bytes(wrong)}
        assert server.tell(0, "open", (0, 0), **parts) is None
    refused_all(server, "is not the sum of the replies")
    assert server.opened(replies, cast, [0]) is None and "opens nothing more" in server.refusals[-1]


def refused_all(server, words):
    assert server.refusals and all(words in text for text in server.refusals)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_made_up_client_in_the_list_opens_nothing(guarded, server, monkeypatch):
    """Clients cannot know that it is none, and vote; the tags of the sum show it, also to whoever opens it without
    votes."""
    if not guarded:
        unguarded(monkeypatch)
    label, replies = server.replies()
    made_up = votes.Reply.new(VICTIM, b"nobody".ljust(32)).to_bytes()
    empty = as_bytes(server.clients[0].opener.encrypted(torch.zeros(VECTOR.count).long().numpy(), VECTOR)).numpy()
    those = {**without(replies, VICTIM), "nobody": (made_up, empty.tobytes())}
    came, cast = listed(those), {}
    for place in OTHERS:
        cast[replies[place][0]] = server.tell(place, "vote", (0, 0), came=came, label=as_bytes(label))
    given = {row: answer["vote"].numpy().tobytes() for row, answer in cast.items()}
    assert len(given) == len(OTHERS) == votes.needed(CLIENTS, STAGE.least)
    assert server.opened(those, given, OTHERS) is None
    refused_all(server, "is not the sum of the replies")


def test_votes_for_one_reply_open_no_other_of_the_same_client(server):
    """A server that asks one client twice under one label, and shows the list with its first reply for both."""
    label, replies = server.replies()
    cast = server.voted(label, replies)
    assert torch.equal(server.opened(replies, cast, [0]), REPLIES.sum(0))
    _, another = server.replies([VICTIM], empty=[VICTIM])
    changed = {**replies, VICTIM: (replies[VICTIM][0], another[VICTIM][1])}
    assert server.opened(changed, cast, OTHERS) is None
    refused_all(server, "is not the sum of the replies")


def test_one_client_under_several_numbers_is_one(server):
    """As everybody in turn, it would have its own reply opened, three times."""
    replies = {}
    for number in range(3):
        server.clients[0].client = number
        label, (replies[number],) = (lambda found: (found[0], found[1].values()))(server.replies([0]))
    server.clients |= dict.fromkeys(range(3), server.clients[0])
    assert server.sum(label, replies) is None
    refused_all(server, "a client is twice")


def test_who_is_not_in_a_list_does_not_vote_for_it_or_open_it(server):
    label, replies = server.replies()
    few = without(replies, VICTIM)
    assert server.tell(VICTIM, "vote", (0, 0), came=listed(few), label=as_bytes(label)) is None
    assert server.opened(few, server.voted(label, few), [VICTIM]) is None
    assert server.sum(label, without(replies, 0, 1, 2)) is None  # too few, whoever votes
    refused_all(server, "list of those who came cannot be")


def test_a_sum_that_was_opened_under_masks_counts_too(server):
    """Features may be prepared under masks, and then again under encryption, by the same process."""
    earlier = SecureClient("run", 0, SecureSum())
    earlier._when = (0, 0)
    earlier._open_once(OTHERS)
    server.clients[0].remember(earlier)
    label, replies = server.replies()
    assert server.sum(label, replies, [0]) is None
    refused_all(server, "second sum of round 1 over other clients, whose difference")


def test_votes_of_clients_that_know_other_means_do_not_count(server):
    """In a preparation all sums about the means of one set of clients are about the same."""
    for client in server.clients.values():
        client.prepare({"center": torch.zeros(3)})
    label, replies = server.replies()
    for place in (1, 2):
        server.clients[place].prepare({})
    assert server.sum(label, replies, [0]) is None
    refused_all(server, "3 of 5 clients have agreed to this sum, and 4 must")


def test_clients_with_other_rules_do_not_add_up(server):
    """A server could tell the one that opens that two clients are enough."""
    easy = EncryptedClient("run", 0, Paillier(1024, least=2), server.key, settled=Settled(server.folder / "0.jsonl"))
    server.clients[0] = easy
    label, replies = server.replies()
    assert server.sum(label, replies, [0]) is None
    refused_all(server, "0 of 5 clients have agreed to this sum")
    server.refusals.clear()
    assert easy._answered.label != label and server.sum(easy._answered.label, replies, [0]) is None
    refused_all(server, "is not the sum of the replies")
