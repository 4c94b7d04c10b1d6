"""Residues modulo 2^bits: two's complement, and bytes without gaps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unalike.crypto import ring
from unalike.errors import UnalikeError


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 64), st.data())
def test_packing_gives_back_what_was_packed(bits, data):
    numbers = data.draw(st.lists(st.integers(0, 2**bits - 1), max_size=20))
    words = np.array(numbers, dtype=ring.word(bits))
    found = ring.pack(words, bits)
    assert len(found) == ring.packed_bytes(len(words), bits)
    whole = sum(number << place * bits for place, number in enumerate(numbers))
    assert int.from_bytes(found.tobytes(), "little") == whole
    assert ring.unpack(found, len(words), bits).tolist() == numbers


@pytest.mark.parametrize("bits", range(1, 65))
def test_every_width_comes_back(bits):
    most = 2**bits - 1
    numbers = [most, 0, most, *(most * k // 11 for k in range(11)), most]
    words = np.array(numbers, dtype=ring.word(bits))
    assert ring.unpack(ring.pack(words, bits), len(words), bits).tolist() == numbers


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(2, 64), st.data())
def test_codes_of_either_sign_come_back(bits, data):
    half = 2 ** (bits - 1)
    codes = np.array(data.draw(st.lists(st.integers(-half, half - 1), min_size=1, max_size=9)), dtype=np.int64)
    words = ring.residues(codes, bits)
    assert words.tolist() == [int(code) % 2**bits for code in codes]
    assert ring.signed(words, bits).tolist() == codes.tolist()


def test_bytes_that_nobody_packed_are_refused():
    data = ring.pack(np.array([1, 2, 3], dtype=np.uint32), 3)
    for wrong in (data[:1], data | np.uint8(128), data.astype(np.int8)):
        with pytest.raises(UnalikeError):
            ring.unpack(wrong, 3, 3)


@pytest.mark.parametrize(("clients", "bits"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (100, 7), (1024, 10)])
def test_a_sum_needs_so_many_bits_more(clients, bits):
    assert ring.carry_bits(clients) == bits
