"""Paillier: golden numbers of other libraries, what its sums and products decrypt to, and bytes that are refused."""

import pytest
from goldens import golden
from hypothesis import given, settings
from hypothesis import strategies as st

from unalike.crypto import paillier
from unalike.crypto.paillier import PublicKey, SecretKey
from unalike.errors import UnalikeError

CHANNEL = golden("channel_paillier")["cases"]
TREES = golden("trees_paillier_packing")
KEY = SecretKey(int(TREES["p"]), int(TREES["q"]))


def golden_key(case):
    return SecretKey(int(case["p"]), int(case["q"]))


def ciphers_of(key, case):
    return [key.encrypt(int(m), pow(int(r), key.n, key.squared)) for m, r in zip(case["plain"], case["r"], strict=True)]


@pytest.fixture(scope="module")
def key():
    return KEY


@pytest.mark.parametrize("case", CHANNEL, ids=lambda case: case["name"])
def test_ciphertexts_and_sums_are_another_library_s(case):
    key = golden_key(case)
    for scheme in (key, key.public):
        ciphers = ciphers_of(scheme, case)
        assert ciphers == [int(c) for c in case["cipher"]]
        assert scheme.total(ciphers) == int(case["product"])
    if "signed_sum" in case:
        total = key.decrypt(key.total(ciphers))
        assert key.n == int(case["n"]) and case["g"] == "n+1"
        assert total == int(case["signed_sum"]) and total % key.n == int(case["decrypted_sum"])
        index, factor, power, number = case["power"]
        assert key.times(ciphers[index], factor) == int(power) and key.decrypt(int(power)) == int(number)


def test_packed_codes_sum_as_the_golden_ones_do():
    case = CHANNEL[-1]
    key, slot, offset = golden_key(case), case["slot_bits"], case["offset"]
    for codes, plain in zip(case["codes"], case["plain"], strict=True):
        assert sum((code + offset) << slot * place for place, code in enumerate(codes)) == int(plain)
    number = key.decrypt(int(case["product"]))
    assert number == int(case["decrypted"])
    cells = [number >> slot * place & (1 << slot) - 1 for place in range(len(case["sums"]))]
    assert [cell - case["clients"] * offset for cell in cells] == case["sums"]


def test_pairs_and_packed_cells_are_the_trees_golden_ones(key):
    slot, h_bits = TREES["slot_bits"], TREES["h_bits"]
    assert [g * (1 << h_bits) + h for g, h in TREES["g_h"]] == [int(m) for m in TREES["plain"]]
    ciphers = ciphers_of(key, TREES)
    assert ciphers == [int(c) for c in TREES["cipher"]] and key.total(ciphers) == int(TREES["product"])
    assert paillier.divided(key.decrypt(int(TREES["product"])), h_bits, 2)[::-1] == TREES["sum_g_h"]
    packed = key.pack(ciphers[:2], slot)
    assert packed == int(TREES["packed_0_1"])
    assert paillier.divided(key.decrypt(packed), slot, 2) == [int(m) for m in TREES["plain"][:2]]


@pytest.mark.parametrize("randomness", ["short", "full"])
@pytest.mark.parametrize("owner", [True, False])
def test_what_is_encrypted_is_decrypted(key, randomness, owner):
    scheme = SecretKey(key.p, key.q, randomness) if owner else PublicKey(key.n, randomness)
    numbers = [0, 1, -1, 12345, -(1 << 200), (int(key.n) - 1) // 2, -(int(key.n) - 1) // 2]
    ciphers = [scheme.encrypt(m) for m in numbers]
    assert [key.decrypt(c) for c in ciphers] == numbers
    again = [scheme.refreshed(c) for c in ciphers]
    assert [key.decrypt(c) for c in again] == numbers
    assert len({*ciphers, *again, *(scheme.encrypt(m) for m in numbers)}) == 3 * len(numbers)


def test_the_owner_makes_the_same_noise_as_others(key):
    """Modulo p² and q² apart, or at once: the same powers of the same h."""
    other = PublicKey(key.n)
    other.__dict__["_base"] = key._base
    digits = [paillier.digits_of(12345**30, window, -(-448 // window)) for window in (other.window, key.window)]
    at_p, at_q = key._powers_apart
    apart = key._joined(
        paillier.raised(at_p, digits[1], key.p_squared), paillier.raised(at_q, digits[1], key.q_squared)
    )
    assert (
        paillier.raised(other._table, digits[0], key.squared)
        == apart
        == pow(key._base, 12345**30 % 2**448, key.squared)
    )


def test_the_short_exponent_s_base_is_an_nth_power_of_a_minus_square(key, monkeypatch):
    monkeypatch.setattr(paillier, "unit", lambda n: n - 7)
    fresh = PublicKey(key.n)
    assert fresh._base == pow(-49, key.n, key.squared)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.integers(-(2**70), 2**70), st.integers(-(2**20), 2**20)), min_size=1, max_size=40))
def test_weighted_sums_are_those_of_the_numbers(pairs):
    key = KEY
    numbers, weights = zip(*pairs, strict=True)
    ciphers = [key.encrypt(m) for m in numbers]
    columns = [weights, [abs(w) for w in weights], [0] * len(pairs)]
    found = [key.decrypt(c) for c in key.weighted(ciphers, columns)]
    assert found == [sum(m * w for m, w in zip(numbers, column, strict=True)) for column in columns]
    assert key.decrypt(key.plus(key.times(ciphers[0], -3), 5)) == -3 * numbers[0] + 5


@given(st.lists(st.integers(-(2**11), 2**11 - 1), min_size=1, max_size=30))
def test_joined_cells_are_divided_again(cells):
    assert paillier.divided(paillier.joined(cells, 12), 12, len(cells)) == cells


def test_cells_that_do_not_fit_are_refused(key):
    with pytest.raises(UnalikeError, match="12 bits with its sign"):
        paillier.joined([2**11], 12)
    assert key.slots(101) == 5
    with pytest.raises(UnalikeError, match="6 cells of 101 bits do not fit"):
        key.pack([1] * 6, 101)


def test_reals_become_whole_numbers_and_come_back():
    assert paillier.fixed(-1.5, 20) == -3 << 19 and paillier.unfixed(-3 << 19, 20) == -1.5
    with pytest.raises(UnalikeError, match="finite"):
        paillier.fixed(float("nan"), 20)


def test_a_new_key_has_the_length_asked_for_and_other_primes_each_time():
    keys = [paillier.generate(128) for _ in range(3)]
    assert {k.bits for k in keys} == {128} and len({k.n for k in keys}) == 3
    assert all(k.p % 4 == k.q % 4 == 3 for k in keys)
    assert keys[0].decrypt(keys[0].public.encrypt(-77)) == -77
    with pytest.raises(UnalikeError, match="even number of bits"):
        paillier.generate(65)


def test_ciphertexts_pass_as_bytes_and_nonsense_is_refused(key):
    ciphers = [key.encrypt(m) for m in (3, -4)]
    data = key.ciphers_to_bytes(ciphers)
    assert len(data) == 2 * key.width and key.public.ciphers_from_bytes(data, 2) == ciphers
    with pytest.raises(UnalikeError, match="3 ciphertexts take"):
        key.ciphers_from_bytes(data, 3)
    for wrong, line in ((0, "out of range"), (key.squared, "out of range"), (key.p, "factor in common")):
        with pytest.raises(UnalikeError, match=line):
            key.ciphers_from_bytes(key.ciphers_to_bytes([ciphers[0], wrong]), 2)


def test_keys_pass_as_bytes_and_bad_ones_are_refused(key):
    assert PublicKey.from_bytes(key.to_bytes(), least=511).n == key.n
    again = SecretKey.secret_from_bytes(key.secret_to_bytes())
    assert (again.p, again.q) == (key.p, key.q)
    with pytest.raises(UnalikeError, match="511 bits; 2048 to"):
        PublicKey.from_bytes(key.to_bytes())
    for n in (2**61 - 1, (2**31 - 1) ** 2, 3 * (2**61 - 1)):
        with pytest.raises(UnalikeError, match="two large primes"):
            PublicKey.from_bytes(n.to_bytes(16, "little"), least=60)
    with pytest.raises(UnalikeError, match="no secret"):
        SecretKey.secret_from_bytes(bytes(64))
    with pytest.raises(UnalikeError, match="two different primes"):
        SecretKey(key.p, key.p)
