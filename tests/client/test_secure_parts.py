"""What a client refuses of a server that wants to isolate its reply in a sum."""

import json
from types import SimpleNamespace

import pytest
import torch
from small import refused

from unalike.channel import SecureSum
from unalike.client.secure import PRESENT, SecureClient, as_bytes, bound, bound_at_client, identity, plan_digest
from unalike.crypto.secure_sum import Group, RunKey
from unalike.messages import wire

SHARED = wire.encode({"kind": "request", "function": "client"}, {"w": torch.zeros(2)})
ONE = torch.ones((), dtype=torch.float64)


def parts(header=None, **own):
    return SHARED, wire.encode({"run": "r", "acknowledged": 1, **(header or {})}, {PRESENT: torch.arange(3), **own})


@pytest.mark.parametrize("name", ["w", ":largest", "center", "strength"])
def test_values_for_one_client_alone_are_refused(name):
    assert bound(parts(**{name: ONE})) == bound(parts(**{name: 1e300 * ONE}))  # so nothing else would show it
    with refused(f"brings '{name}' for this client alone"):
        bound_at_client(parts(**{name: ONE}))


@pytest.mark.parametrize("name", ["function", "trained", "round", "recipe"])
def test_a_header_for_one_client_alone_is_refused(name):
    with refused(f"brings '{name}' for this client alone"):
        bound_at_client(parts({name: "other"}))


def test_rows_that_a_method_declares_are_taken():
    assert bound_at_client(parts()) == bound(parts()) != bound_at_client(parts(share=ONE), ["share"])
    for name in ("w", ":largest"):
        with refused(f"brings '{name}' for this client alone"):
            bound_at_client(parts(**{name: ONE}), ["share", name])


ATTEMPTS = {name: f"{number:016x}" for number, name in enumerate(("first", "second", "third", "fourth"))}


class Signer:
    """Takes any signature but "false"; a key is written in two ways. verified: how often it looked at one."""

    verified = 0

    def verify(self, public, data, signature):
        self.verified += 1
        return signature != b"false".ljust(96, b"\0")

    def point(self, public=None):
        return b"own" if public is None else public.strip().encode()


def people(names, own="own"):
    """The identities in a request for shares."""
    known = [identity(Signer(), name) for name in (own, *names)]
    return as_bytes(b"".join(known)).view(-1, 32)


@pytest.mark.parametrize(
    ("keys", "words", "said"),
    [
        ("a b c", None, "a b c"), ("a a c", "does not say who takes part", "a a c"),
        ("a b own", "does not say who takes part", "a b own"), ("a a c", "not who the server says", "a b c"),
        ("a b own", "not who the server says", "a b c"), ("a b c", "not who the server says", "a b d"),
        ("a x c", "Client 2 had another key before", "a x c"),
    ],
)  # fmt: skip
def test_one_client_cannot_be_many_or_pass_for_another(keys, words, said):
    """keys: those that the server gives for clients 1 to 3; said: who it says they are."""
    client = SecureClient("r", 0, SecureSum(), signer=Signer())
    pairs = {k: RunKey() for k in range(1, 4)}
    public = b"".join([client._key.public, *(pair.public for pair in pairs.values())])
    parts = {"clients": torch.arange(4), "keys": as_bytes(public).view(-1, 32), "signatures": torch.zeros(4, 96).byte()}

    def deal(names, attempt, known=None):
        told = {str(k): f" {name}" for k, name in enumerate(names.split(), 1)}
        about = {**parts, "identities": people((known or names).split())}
        return client._deal({"round": 0, "exchange": 0, "attempt": ATTEMPTS[attempt], "public": told}, about)

    if words is None:
        assert deal(keys, "first").keys() == deal(keys, "second").keys()
        return
    if "before" in words:
        deal("a b c", "first")
    for attempt in ("second", "third"):
        with refused(words):
            deal(keys, attempt, said)


def test_a_signature_is_looked_at_once_and_again_for_another_run_key():
    signer = Signer()
    client = SecureClient("r", 0, SecureSum(), signer=signer)
    public = [client._key.public, *(RunKey().public for _ in range(3))]
    names = {str(k): name for k, name in enumerate("abc", 1)}

    def deal(attempt, signature=b""):
        keys = as_bytes(b"".join(public)).view(-1, 32)
        signatures = as_bytes(signature.ljust(96, b"\0") * 4).view(4, -1)
        parts = {"clients": torch.arange(4), "keys": keys, "signatures": signatures, "identities": people("abc")}
        return client._deal({"round": 0, "exchange": 0, "attempt": ATTEMPTS[attempt], "public": names}, parts)

    deal("first")
    deal("second")
    assert signer.verified == 3
    public[2] = RunKey().public
    with refused("The key of client 2 is not signed by it"):
        deal("third", b"false")
    deal("fourth")
    assert signer.verified == 5


SECOND = [
    ([0, 1, 2, 3], True, True),
    ([0, 1, 2], False, False),
    ([0, 1, 2, 5, 6], False, False),
    ([0, 4, 5, 6], True, False),
    ([0, 1, 4, 5, 6], False, False),
]


def in_a_sum(agreed, neighbours=6, threshold=5, earlier=None):
    client = SecureClient("r", 0, SecureSum(agree=agreed), signer=Signer())
    client._when, group = (0, 0), Group(b"", dict.fromkeys(range(7), b""), neighbours, threshold)
    client._member = SimpleNamespace(group=group)
    if earlier is not None:
        client.remember(earlier)
    return client


@pytest.mark.parametrize(("agreed", "second", "fits"), [
    (agreed, second, where[not agreed]) for second, *where in SECOND for agreed in (True, False)
])  # fmt: skip
def test_two_sums_are_over_the_same_clients_or_differ_by_many_on_which_all_agree(agreed, second, fits):
    """Clients 5 and 6 may work with the server and take themselves out of the second sum. Where clients do not agree on
    who came, others may have been told another list."""
    client = in_a_sum(agreed)
    client._open_once(map(bytes, [[0], [1], [2], [3]]))
    if fits:
        client._open_once(bytes([k]) for k in second)
    else:
        with refused("whose difference"):
            client._open_once(bytes([k]) for k in second)


@pytest.mark.parametrize(
    ("before", "neighbours", "threshold", "fits"),
    [(True, 6, 4, True), (True, 6, 3, False), (True, 4, 3, False), (False, 6, 4, False)],
)
def test_clients_agree_only_where_all_are_neighbours_and_in_both_sums(before, neighbours, threshold, fits):
    first = in_a_sum(before)
    first._open_once(map(bytes, [[0], [1], [2], [3]]))
    second = in_a_sum(True, neighbours, threshold, first)
    if fits:
        second._open_once(bytes([k]) for k in (0, 4, 5, 6))
    else:
        with refused("whose difference"):
            second._open_once(bytes([k]) for k in (0, 4, 5, 6))


@pytest.mark.parametrize("attempt", [None, 1, "first", "\ud800" * 16, "0" * 15, "0" * 17])
def test_an_attempt_is_sixteen_digits(attempt):
    client = SecureClient("r", 0, SecureSum())
    parts = {"clients": torch.arange(3), "keys": torch.zeros(3, 32).byte(), "signatures": torch.zeros(3, 96).byte()}
    parts["identities"] = parts["keys"]
    with refused("must say which attempt it is"):
        client._deal({"round": 0, "exchange": 0, "attempt": attempt}, parts)


def test_nobody_is_in_a_sum_who_is_not_in_the_run():
    client = SecureClient("r", 0, SecureSum())
    client.population = 3
    parts = {"clients": torch.tensor([0, 1, 2, 3]), "keys": torch.zeros(4, 32).byte()}
    with refused("Client 3 is to take part in a sum of 3 clients"):
        client._deal({"round": 0, "exchange": 0, "attempt": ATTEMPTS["first"]}, parts)


def test_the_hash_stands_for_the_plan():
    """The client's own number aside, which is all that differs in right ones."""
    plan = {"client": 0, "tables": {"local": {"lr": 0.1, "betas": (0.9, 0.99)}}, "run": {"seed": 1}}
    one = plan_digest(plan)
    assert one == plan_digest({**json.loads(json.dumps(plan)), "client": 3})
    others = [{**plan, "run": {"seed": 2}}, {**plan, "tables": {"local": {"lr": 0.2}}}, {**plan, "classes": 3}]
    assert len({one, *map(plan_digest, others)}) == 4
    hashes = {bound(parts(), plan) for plan in (b"", one, plan_digest(others[0]))}
    assert len(hashes) == 3 and bound_at_client(parts(), plan=one) == bound(parts(), one)
