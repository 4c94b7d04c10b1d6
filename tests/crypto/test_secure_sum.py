"""Secure sums: golden numbers, sums that are right or void whoever is lost or lies, and nobody opened alone."""

import dataclasses as dc
import hashlib
import random

import numpy as np
import pytest
from goldens import golden

from unalike.crypto import ring, secure_sum, shamir
from unalike.crypto.masks import add_mask, add_masks, agreement, derived, mask, pair_seed, public_of
from unalike.crypto.secure_sum import Collector, Dealt, Group, Member, RunKey, Void
from unalike.crypto.secure_sum import _add as masks_of
from unalike.errors import UnalikeError

INFO = b"unalike secure sum, round 7"
SIZE, BITS = 50, 20


def hex_of(text):
    return bytes.fromhex(text)


@pytest.mark.parametrize("case", golden("channel_secure_sum")["cases"], ids=lambda case: case["name"])
def test_masked_vectors_and_sums_are_the_golden_ones(case):
    n, bits = case["clients"], case["modulus_bits"]
    private, public = ([hex_of(k) for k in case[f"{kind}_keys"]] for kind in ("private", "public"))
    assert [public_of(key) for key in private] == public
    own = [hex_of(seed) for seed in case["self_seeds"]]
    assert mask(own[0], case["size"]).tolist()[: len(case["first_self_mask"])] == case["first_self_mask"]
    seeds = {(i, j): pair_seed(private[i], public[j], INFO) for i in range(n) for j in range(n) if i != j}
    assert {key: seeds[tuple(map(int, key.split(",")))].hex() for key in case["pair_seeds"]} == case["pair_seeds"]
    assert all(seeds[i, j] == seeds[j, i] for i, j in seeds)
    total = np.zeros(case["size"], dtype=np.uint32)
    for i in range(n):
        words = ring.residues(np.array(case["codes"][i]), bits)
        add_mask(words, own[i])
        for j in range(n):
            if i != j:
                add_mask(words, seeds[i, j], minus=j < i)
        assert ring.reduced(words, bits).tolist() == case["masked"][i]
        if i not in case["dropped"]:
            total += words
    for i in range(n):
        if i not in case["dropped"]:
            add_mask(total, own[i], minus=True)
        for j in case["dropped"]:
            if i not in case["dropped"]:
                add_mask(total, seeds[i, j], minus=i < j)
    assert ring.signed(ring.reduced(total, bits), bits).tolist() == case["sum_of_the_others"]


@pytest.mark.parametrize("kind", [np.uint32, np.uint64])
def test_masks_of_several_blocks_are_one_stream(kind):
    long = mask(bytes(16), 200_000, kind)
    assert len(np.unique(long)) > 199_000 and (mask(bytes(16), 70_000, kind) == long[:70_000]).all()


def test_a_mask_goes_on_from_one_vector_to_the_next():
    """Never the same mask twice: the difference of two vectors under one would be in the clear."""
    seeds = [(bytes(16), False), (bytes(15) + b"\x01", True)]
    parts = [np.zeros(size, dtype=kind) for size, kind in ((3, np.uint64), (70_000, np.uint32), (5, np.uint64))]
    add_masks(parts, seeds)
    streams = [np.frombuffer(mask(seed, 40_000, np.uint64).tobytes(), dtype=np.uint8) for seed, _ in seeds]
    start = 0
    for part in parts:
        plus, minus = (stream[start : start + part.nbytes].view(part.dtype) for stream in streams)
        assert (part == plus - minus).all()
        start += part.nbytes


def test_keys_are_derived_by_hkdf():
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    for size in (16, 32):
        assert derived(b"secret", b"what for", size) == HKDF(SHA256(), size, None, b"what for").derive(b"secret")


# ---------------------------------------------------------------- one sum, with everything that may go wrong


class Federation:
    """Clients and a server in one process. lost: by stage, who does not answer there; liars: by stage, what becomes of
    an answer."""

    def __init__(self, clients=6, degree=None, threshold=4, seed=0, lost=None, liars=None, agree=False):
        self.chance, self.agree = random.Random(seed), agree
        self.keys = {c: RunKey(self.chance.randbytes(32)) for c in range(clients)}
        public = {c: key.public for c, key in self.keys.items()}
        self.group = Group(b"run 1 round 2 exchange 0", public, degree or clients - 1, threshold)
        self.vectors = np.random.default_rng(seed).integers(-500, 500, (clients, SIZE))
        self.lost, self.liars = lost or {}, liars or {}
        self.members = {c: Member(c, key, self.group, self.chance.randbytes) for c, key in self.keys.items()}
        self.server = Collector(self.group, b"the request")
        self.seen = {}  # all that the server got of each client

    def answers(self, stage, of, make):
        """Yield what clients answer in a stage; one that raises is lost."""
        for client in of:
            if client in self.lost.get(stage, ()):
                continue
            try:
                answer = make(client)
            except UnalikeError:
                continue
            lie = self.liars.get(stage, {}).get(client)
            yield client, answer if lie is None else lie(answer)

    def run(self):
        self.deal()
        self.mask()
        self.open()
        found = self.server.total()
        return ring.signed(ring.reduced(found[0], BITS), BITS)

    def deal(self):
        for client, dealt in self.answers("deal", self.members, lambda c: self.members[c].deal()):
            try:
                self.server.take_dealt(client, dealt)
            except UnalikeError:
                continue
            self.seen[client] = [dealt]

    def masked(self, client, request=b"the request"):
        member = self.members[client]
        member.accept(self.server.delivery(client), self.server.present, request)
        words = ring.residues(self.vectors[client], BITS)
        member.mask([words])
        return ring.reduced(words, BITS)

    def mask(self):
        for client, words in self.answers("mask", self.server.present, self.masked):
            self.server.take_masked(client, [words])
            self.seen[client].append(words)

    def open(self):
        came = self.server.came
        if self.agree:
            signed = dict(self.answers("agree", came, lambda c: sign(c, self.members[c].statement(came))))
        for client, shares in self.answers("open", [*came], lambda c: self.opened(c, signed if self.agree else None)):
            self.server.take_opened(client, shares)
            self.seen[client].append(shares)

    def opened(self, client, signed):
        if signed is not None:
            self.members[client].check_agreed(self.server.came, signed, lambda c, text, s: s == sign(c, text))
        return self.members[client].open(self.server.came)

    def right(self):
        return self.vectors[self.server.came].sum(0).tolist()


def sign(client, text):
    """Stand for a signature."""
    return hashlib.sha256(b"key %d" % client + text).digest()


@pytest.mark.parametrize("agree", [False, True])
@pytest.mark.parametrize(
    "lost",
    [{}, {"deal": [1]}, {"mask": [0]}, {"open": [5]}, {"deal": [0], "mask": [3]}, {"mask": [2], "open": [4]}],
    ids=str,
)
def test_the_sum_is_right_whoever_is_lost(lost, agree):
    federation = Federation(lost=lost, threshold=3, agree=agree)
    assert federation.run().tolist() == federation.right()
    assert len(federation.server.came) == 6 - len(lost.get("deal", [])) - len(lost.get("mask", []))


@pytest.mark.parametrize("seed", range(4))
def test_sums_on_a_graph_are_right_too(seed):
    chance = random.Random(seed)
    lost = {stage: chance.sample(range(20), 2) for stage in ("deal", "mask", "open")}
    federation = Federation(20, 10, 4, seed, lost)
    assert federation.run().tolist() == federation.right()


@pytest.mark.parametrize(
    "lost", [{"deal": [0, 1]}, {"mask": [0, 1]}, {"open": [0, 1]}, {"mask": [0], "open": [1]}], ids=str
)
def test_with_too_few_left_the_sum_is_void(lost):
    federation = Federation(lost=lost, threshold=5 if "deal" in lost else 4)
    with pytest.raises(Void, match="void, nothing was learnt"):
        federation.run()


def test_who_has_too_few_neighbours_that_dealt_is_left_out_before_it_counts():
    federation = Federation(20, 8, 4)
    federation.lost["deal"] = [*federation.group.lattice.of(0)[:5]]
    total = federation.run()
    assert total.tolist() == federation.right()
    assert 0 not in federation.server.came and len(federation.server.came) > 8


# ---------------------------------------------------------------- liars


def spoilt(data):
    return bytes([data[0] ^ 1, *data[1:]])


def other_seals(dealt):
    return dc.replace(dealt, sealed={v: spoilt(part) for v, part in dealt.sealed.items()})


def other_public(dealt):
    return Dealt(public_of(bytes(31) + b"\x01"), dealt.commitment, dealt.sealed)


def wrong_shares(shares):
    return {v: spoilt(share) for v, share in shares.items()}


def test_one_wrong_share_is_found_and_the_sum_is_right():
    federation = Federation(threshold=4, liars={"open": {2: wrong_shares}})
    assert federation.run().tolist() == federation.right()
    assert federation.server.misfits.keys() == {2}


def test_masks_are_bound_to_who_the_clients_are():
    group = Federation().group
    known = dc.replace(group, identities={client: bytes([client]) for client in group.keys})
    others = dc.replace(group, identities={**known.identities, 2: b"x"})
    assert len({one.context([0, 1, 2], b"request") for one in (group, known, others)}) == 3


def test_of_a_wrong_share_who_gave_and_who_dealt_it_are_named():
    """Nobody but these two can know which of them changed it."""
    federation = Federation(threshold=4, liars={"open": {2: lambda shares: shares | {4: spoilt(shares[4])}}})
    assert federation.run().tolist() == federation.right()
    assert federation.server.misfits == {2: 4}


def test_wrong_shares_of_too_many_are_void():
    federation = Federation(threshold=4, liars={"open": {2: wrong_shares, 3: wrong_shares}})
    with pytest.raises(Void, match="do not fit each other"):
        federation.run()


def test_a_client_that_deals_rubbish_is_not_in_anybody_s_way_alone():
    """Who cannot open what was dealt says so and is lost; here everybody: the sum is void."""
    federation = Federation(threshold=3, liars={"deal": {2: other_seals}})
    with pytest.raises((Void, UnalikeError)):
        federation.run()
    assert federation.server.came == [2]


def test_a_client_that_publishes_another_key_makes_the_sum_void_only_where_it_is_lost():
    federation = Federation(threshold=3, liars={"deal": {2: other_public}}, lost={"mask": [2]})
    with pytest.raises(Void, match="client 2's masking key"):
        federation.run()
    federation = Federation(threshold=3, liars={"deal": {2: other_public}})
    assert federation.run().tolist() == federation.right()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda d: dc.replace(d, sealed={}),
        lambda d: dc.replace(d, sealed={**d.sealed, 1: b"short"}),
        lambda d: dc.replace(d, public=b""),
        lambda d: dc.replace(d, commitment=b"x"),
    ],
)
def test_what_is_dealt_to_others_than_neighbours_is_refused(wrong):
    federation = Federation()
    with pytest.raises(UnalikeError, match="its shares"):
        federation.server.take_dealt(0, wrong(federation.members[0].deal()))


def test_signatures_of_others_do_not_count():
    federation = Federation(threshold=4, agree=True, liars={"agree": {0: spoilt, 1: spoilt}})
    with pytest.raises(Void, match="neighbours of client 0 helped"):
        federation.run()


# ---------------------------------------------------------------- a server that lies


def ready(**options):
    """A federation whose members have masked."""
    federation = Federation(**options)
    federation.deal()
    federation.mask()
    return federation


def test_a_second_list_opens_nothing_more():
    federation = ready(threshold=3)
    first = federation.members[0].open([0, 1, 2, 3, 4])
    assert federation.members[0].open([4, 3, 2, 1, 0]) == first
    with pytest.raises(UnalikeError, match="second list"):
        federation.members[0].open([0, 1, 2, 3, 4, 5])


def test_a_client_signs_one_list_and_opens_no_other():
    member = ready(threshold=3).members[0]
    statement = member.agree([0, 1, 2, 3])
    assert member.agree([3, 2, 1, 0]) == statement
    for ask in (member.agree, member.open):
        with pytest.raises(UnalikeError, match="second list"):
            ask([0, 1, 2, 4])
    assert member.open([0, 1, 2, 3])


def test_before_its_own_vector_left_a_client_signs_nothing():
    federation = Federation(threshold=3)
    federation.deal()
    with pytest.raises(UnalikeError, match="cannot be"):
        federation.members[0].agree([0, 1, 2, 3])


def test_who_dealt_does_not_change_after_a_client_has_masked():
    federation = ready(threshold=3)
    with pytest.raises(UnalikeError, match="not again"):
        federation.masked(0, b"another request")


def test_each_neighbour_is_opened_by_one_of_its_two_secrets():
    federation = ready(threshold=3)
    given = federation.members[0].open([0, 1, 2, 3])
    seed, key, _ = federation.members[0]._theirs[1]
    assert given[1] == seed != key
    seed, key, _ = federation.members[0]._theirs[4]
    assert given[4] == key != seed


@pytest.mark.parametrize(("came", "least"), [([0, 1], 1), ([1, 2, 3, 4], 1), ([0, 1, 2, 3, 99], 1), ([0, 1, 2, 3], 5)])
def test_lists_that_are_too_short_or_cannot_be_open_nothing(came, least):
    with pytest.raises(UnalikeError, match="came"):
        ready(threshold=3).members[0].open(came, least)


def test_before_its_own_vector_left_a_client_opens_nothing():
    federation = Federation(threshold=3)
    federation.deal()
    with pytest.raises(UnalikeError, match="cannot be"):
        federation.members[0].open([0, 1, 2, 3, 4])


def test_one_answer_is_masked_once():
    federation = ready(threshold=3)
    with pytest.raises(UnalikeError, match="one answer"):
        federation.members[0].mask([np.zeros(3, dtype=np.uint32)])


@pytest.mark.parametrize("where", ["request", "present"])
def test_clients_that_were_told_different_things_do_not_add_up(where):
    """One client gets another request, or another list of those who dealt: its masks cancel with nobody's."""
    federation = Federation(threshold=3)
    federation.deal()
    present = federation.server.present
    for client in present:
        member, odd = federation.members[client], client == 0
        there = [c for c in present if c != 5] if odd and where == "present" else present
        sealed = {v: part for v, part in federation.server.delivery(client).items() if v in there}
        member.accept(sealed, there, b"another" if odd and where == "request" else b"the request")
        words = ring.residues(federation.vectors[client], BITS)
        member.mask([words])
        federation.server.take_masked(client, [ring.reduced(words, BITS)])
    for client in present:
        came = [c for c in present if c != 5] if client == 0 and where == "present" else present
        federation.server._given[client] = federation.members[client].open(came)
    total = ring.signed(ring.reduced(federation.server.total()[0], BITS), BITS)
    assert np.count_nonzero(total == federation.right()) < 3


def test_masks_are_bound_to_everybody_who_dealt_neighbour_or_not():
    group = Federation(20, 4, 3).group
    assert group.context(range(19), b"r") != group.context(range(20), b"r") != group.context(range(20), b"s")


def test_shares_open_for_no_other_cohort_threshold_or_label():
    federation = Federation(threshold=3)
    federation.deal()
    for group in (
        dc.replace(federation.group, threshold=2),
        dc.replace(federation.group, label=b"another"),
        dc.replace(federation.group, keys={**federation.group.keys, 9: RunKey(bytes(31) + b"\x02").public}, degree=6),
    ):
        member = Member(0, federation.keys[0], group, federation.chance.randbytes)
        sealed = federation.server.delivery(0)
        with pytest.raises(UnalikeError, match=r"cannot be opened|does not say properly"):
            member.accept(sealed, federation.server.present, b"the request")


def test_a_member_refuses_another_key_than_its_own():
    federation = Federation()
    with pytest.raises(UnalikeError, match="another run key"):
        Member(0, federation.keys[1], federation.group)


# ---------------------------------------------------------------- what a curious server sees of one client

VICTIM = 0
SETTINGS = [(3, 2), (7, 5)]  # clients, threshold; the server has one friend fewer than the threshold


def view(monkeypatch, lost, without, clients, threshold):
    """Return what is left of the victim's masked vector when the server has taken off every mask that it can know: with
    the friends' keys and shares, and with what was opened. lost: the victim's vector came too late, so that its masking
    key was opened and not its own seed; without: the mask that the victim leaves out on purpose ("pair": those that it
    shares with honest clients, of three clients one)."""
    chance = random.Random(5)
    keys = {c: RunKey(chance.randbytes(32)) for c in range(clients)}
    group = Group(b"label", {c: key.public for c, key in keys.items()}, clients - 1, threshold)
    members = {c: Member(c, key, group, chance.randbytes) for c, key in keys.items()}
    friends, honest = [*range(1, threshold)], [*range(threshold, clients)]
    server = Collector(group, b"request")
    for client, member in members.items():
        server.take_dealt(client, member.deal())
    for client, member in members.items():
        member.accept(server.delivery(client), server.present, b"request")
    victim, context = members[VICTIM], group.context(server.present, b"request")

    def shared(other):
        return agreement(victim._masking, server.dealt[other].public)

    left_out = {None: [], "own": [victim._seed], "pair": [*map(shared, honest)]}[without]

    def add(vectors, secrets, context):
        masks_of(vectors, [pair for pair in secrets if pair[0] not in left_out], context)

    seen = ring.residues(np.arange(-20_000, 20_000) % 7, 32)
    with monkeypatch.context() as patch:
        patch.setattr(secure_sum, "_add", add)
        victim.mask([seen])
    if not lost:  # the own seed is opened by the others; it is in no pair's mask
        masks_of([seen], [(victim._seed, True)], context)
    # masks that friends, or the opened masking key, give away
    masks_of([seen], [(shared(other), True) for other in (friends + honest if lost else friends)], context)
    return seen


def unevenness(data):
    """Return chi-square of the bytes of words against even ones: 255 on the average, 23 its standard deviation."""
    counts = np.bincount(np.frombuffer(data.tobytes(), dtype=np.uint8), minlength=256)
    even = counts.sum() / 256
    return float(((counts - even) ** 2 / even).sum())


@pytest.mark.parametrize(("clients", "threshold"), SETTINGS)
@pytest.mark.parametrize("lost", [False, True])
def test_what_a_curious_server_and_its_friends_see_of_a_client_is_even(monkeypatch, lost, clients, threshold):
    assert unevenness(view(monkeypatch, lost, None, clients, threshold)) < 350


@pytest.mark.parametrize(("clients", "threshold"), SETTINGS)
@pytest.mark.parametrize(("lost", "without"), [(False, "pair"), (True, "own")])
def test_without_one_mask_it_is_not(monkeypatch, lost, without, clients, threshold):
    assert unevenness(view(monkeypatch, lost, without, clients, threshold)) > 1e6


@pytest.mark.parametrize(("clients", "threshold"), SETTINGS)
def test_shares_below_the_threshold_and_seals_are_even(clients, threshold):
    """All that is dealt for a client's secrets, over many sums: sealed parts, commitments, the shares that friends can
    open, and what these give together, which is neither secret."""
    chance, seals, shares, commitments, together = random.Random(1), b"", b"", b"", b""
    for number in range(450 // clients):
        federation = Federation(clients, threshold=threshold, seed=1000 + number)
        victim, dealt = federation.members[VICTIM], federation.members[VICTIM].deal()
        seals += b"".join(dealt.sealed.values())
        commitments += dealt.commitment
        opened = {f: federation.members[f]._opened_part(VICTIM, dealt.sealed[f])[:2] for f in range(1, threshold)}
        shares += b"".join(share[1:] for parts in opened.values() for share in parts)
        for kind, secret in enumerate((victim._seed, victim._masking)):
            found = shamir.combine({f + 1: int.from_bytes(parts[kind], "big") for f, parts in opened.items()})
            assert found != int.from_bytes(secret, "big")
            together += found.to_bytes(shamir.BYTES, "big")[1:]
    for data in (seals, shares, commitments, together):
        assert unevenness(np.frombuffer(data, dtype=np.uint8)) < 350
    assert unevenness(np.frombuffer(chance.randbytes(100) * 96, dtype=np.uint8)) > 350
