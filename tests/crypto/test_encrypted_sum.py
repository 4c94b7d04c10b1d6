"""Vectors under encryption add up to the bits of sums in the clear, and tags show what is no sum."""

import numpy as np
import pytest
from small import refused

from unalike.crypto import ckks, tags
from unalike.crypto.common_key import PAILLIER, SCHEMES, CommonKey
from unalike.crypto.encrypted_sum import CkksAdder, PaillierAdder, Vector, cipher_bytes, exact_bits, opener
from unalike.crypto.paillier import PublicKey

CLIENTS = 5


@pytest.fixture(scope="module", params=SCHEMES)
def key(request):
    return CommonKey.new(request.param, 1024)


def adder_of(key):
    """What a server has: the public key of Paillier, and nothing of CKKS."""
    if key.scheme != PAILLIER:
        return CkksAdder()
    return PaillierAdder(PublicKey.from_bytes(key.paillier().public.to_bytes(), least=1024))


def codes_of(vector, seed=0):
    most = (1 << vector.bits - 1) - 1
    rng = np.random.default_rng(seed)
    out = [rng.integers(-most, most + 1, vector.count) for _ in range(vector.clients)]
    for codes in out:
        codes[:2] = most, -most  # the largest sums that can be
    return out


@pytest.mark.parametrize("bits", [8, 35])
def test_a_sum_has_the_bits_of_the_sum_in_the_clear(key, bits):
    client, server, vector = opener(key), adder_of(key), Vector(40 if bits > 8 else 200, bits, CLIENTS)
    codes = codes_of(vector)
    sent = [client.encrypted(one, vector) for one in codes]
    assert {len(one) for one in sent} == {cipher_bytes(key.scheme, vector, 1024)}
    total = server.read(sent[0], vector)
    for one in sent[1:]:
        total = server.plus(total, server.read(one, vector))
    opened = client.opened(client.read(server.written(total), vector), vector, CLIENTS)
    assert opened.dtype == np.int64 and (opened == sum(codes)).all()


def test_a_key_survives_its_file_and_no_other_file_is_one(key):
    again = CommonKey.from_bytes(key.to_bytes())
    assert again == key and again.fingerprint == key.fingerprint != CommonKey.new(key.scheme, 1024).fingerprint
    vector = Vector(3, 8, 1)
    sent = opener(key).encrypted(np.array([1, -2, 3]), vector)
    client = opener(again)
    assert client.opened(client.read(sent, vector), vector, 1).tolist() == [1, -2, 3]
    for wrong in (b"", b"{}", key.to_bytes().replace(key.scheme.encode(), b"rot13"), key.to_bytes()[:-9]):
        with refused("This is no common key"):
            CommonKey.from_bytes(wrong)


def test_a_key_without_its_secret_half_opens_nothing():
    public = ckks.Keys().public()
    with refused("no secret key of CKKS"):
        ckks.Keys.of(public, symmetric=False)


@pytest.mark.parametrize(
    "change", [lambda sent: sent[:-1], lambda sent: bytes(len(sent)), lambda sent: b"\xff" * len(sent)]
)
def test_bytes_that_are_no_ciphertexts_are_refused(key, change):
    vector = Vector(3, 8, 2)
    sent = opener(key).encrypted(np.array([1, 2, 3]), vector)
    with refused("ciphertext"):
        adder_of(key).read(change(sent), vector)


def test_ckks_refuses_sums_that_it_cannot_round():
    key = CommonKey.new("ckks-symmetric")
    with refused("CKKS adds 38 exactly"):
        opener(key).encrypted(np.zeros(3, dtype=np.int64), Vector(3, 36, 5))


def test_more_clients_bring_more_error_and_leave_fewer_bits():
    assert [exact_bits(n) for n in (3, 1024, 1025, 4096, 4097, 100_000)] == [38, 38, 37, 37, 36, 34]


def test_ckks_notices_what_is_no_whole_code():
    """A server that adds half a code to a sum."""
    client, vector = opener(CommonKey.new("ckks-symmetric")), Vector(3, 8, 2)
    half = ckks.encrypted(client.context, np.full(ckks.SLOTS, 0.5) * 2.0 ** (24 - 9))
    whole = client.read(client.encrypted(np.array([1, 2, 3]), vector), vector)
    spoilt = client.plus(whole, [ckks.tenseal().ckks_vector_from(client.context, half[0])])
    with refused("no sum of whole codes"):
        client.opened(spoilt, vector, 2)


# ---------------------------------------------------------------- tags

SECRET, LABEL = bytes(range(32)), b"one sum"
VECTORS = [[np.array([5, -7, 1 << 40]), np.array([k])] for k in range(3)]
ROWS = [b"reply %d" % k for k in range(4)]


def added(*clients):
    """Return the tags and the vectors of a sum of these clients."""
    sums = [sum(VECTORS[k][place] for k in clients) for place in range(2)]
    found = [tags.tags(SECRET, LABEL, ROWS[k], VECTORS[k]) for k in clients]
    return tags.reduced([sum(some) for some in zip(*found, strict=True)]), sums


def test_tags_of_a_sum_are_those_that_are_expected():
    found, sums = added(0, 1, 2)
    assert found == tags.of_sum(SECRET, LABEL, ROWS[:3], sums)


def test_tags_show_every_other_sum():
    found, sums = added(0, 1, 2)
    others = {
        "one client's in place of the sum": tags.of_sum(SECRET, LABEL, ROWS[:3], VECTORS[0]),
        "fewer clients than are in it": tags.of_sum(SECRET, LABEL, ROWS[:2], sums),
        "another client": tags.of_sum(SECRET, LABEL, [*ROWS[:2], ROWS[3]], sums),
        "another label": tags.of_sum(SECRET, b"another", ROWS[:3], sums),
        "one number changed": tags.of_sum(SECRET, LABEL, ROWS[:3], [sums[0] + np.array([0, 1, 0]), sums[1]]),
        "two numbers exchanged": tags.of_sum(SECRET, LABEL, ROWS[:3], [sums[0][[1, 0, 2]], sums[1]]),
    }
    assert not [name for name, other in others.items() if any(a == b for a, b in zip(found, other, strict=True))]


def test_three_times_one_reply_is_not_the_sum_of_three():
    found = tags.tags(SECRET, LABEL, ROWS[0], VECTORS[0])
    expected = tags.of_sum(SECRET, LABEL, ROWS[:3], [3 * part for part in VECTORS[0]])
    assert tags.reduced([3 * one for one in found]) != expected


@pytest.mark.parametrize("factor", [(1 << 29) - 3, *tags.PRIMES, tags.PRIMES[0] * tags.PRIMES[1]])
def test_a_multiple_of_a_prime_in_a_sum_is_noticed(factor):
    """A server that adds a reply so many times leaves the tag of that prime as it is: the others show it."""
    found, sums = added(0, 1, 2)
    more = [sums[0] + factor * np.array([0, 1, 0]), sums[1]]
    other = tags.of_sum(SECRET, LABEL, ROWS[:3], more)
    assert sum(a != b for a, b in zip(found, other, strict=True)) >= 3


def test_primes_are_primes_and_differ():
    assert len({*tags.PRIMES}) == tags.COUNT and max(tags.PRIMES) < 1 << tags.BITS - 1
    assert all(pow(2, p - 1, p) == pow(3, p - 1, p) == 1 for p in tags.PRIMES)
