"""Packed Paillier: the sums of codes, slots that hold n clients, and what does not fit."""

import numpy as np
import pytest
from goldens import golden

from unalike.crypto.batchcrypt import Packing, who_opens
from unalike.crypto.paillier import SecretKey
from unalike.errors import UnalikeError

CASE = golden("channel_paillier")["cases"][-1]


def test_packed_numbers_are_the_golden_ones():
    packing = Packing(CASE["bits_a_code"], CASE["clients"], 2 + CASE["slot_bits"] * CASE["slots_a_plaintext"])
    assert (packing.offset, packing.slot) == (CASE["offset"], CASE["slot_bits"])
    found = [packing.packed(np.array(codes)) for codes in CASE["codes"]]
    assert [[str(p) for p in plain] for plain in found] == [[plain] for plain in CASE["plain"]]
    assert packing.unpacked([int(CASE["decrypted"])], len(CASE["sums"]), CASE["clients"]).tolist() == CASE["sums"]


def test_the_largest_codes_of_all_clients_stay_in_their_slots():
    key = SecretKey(int(CASE["p"]), int(CASE["q"]))
    packing = Packing(8, 3, key.bits)
    codes = np.array([[-127, 127, 0] * 10] * 3)
    ciphers = packing.added(key.public, [packing.encrypted(key.public, row) for row in codes])
    assert len(ciphers) == packing.count(30)
    assert packing.decrypted(key, ciphers, 30, 3).tolist() == codes.sum(0).tolist()


def test_two_of_three_clients_are_summed_too():
    key = SecretKey(int(CASE["p"]), int(CASE["q"]))
    packing = Packing(4, 3, key.bits)
    codes = np.array([[1, -7, 7], [2, -7, 7]])
    ciphers = packing.added(key.public, [packing.encrypted(key.public, row) for row in codes])
    assert packing.decrypted(key, ciphers, 3, 2).tolist() == [3, -14, 14]


def test_what_does_not_fit_is_refused():
    packing = Packing(4, 2, 64)
    with pytest.raises(UnalikeError, match="lie in"):
        packing.packed(np.array([8]))
    with pytest.raises(UnalikeError, match="3 clients"):
        packing.added(None, [[1], [1], [1]])
    with pytest.raises(UnalikeError, match="runs over"):
        packing.unpacked([63], 1, 1)


def test_who_can_open_is_said():
    assert "any one client" in who_opens(5)
