"""CKKS: sums to its error, who can open them, and bytes that are no key."""

import numpy as np
import pytest

from unalike.crypto import ckks
from unalike.errors import UnalikeError

pytest.importorskip("tenseal")


@pytest.mark.parametrize("symmetric", [False, True])
def test_sums_are_right_to_the_error_of_the_scheme(symmetric):
    keys = ckks.Keys(symmetric)
    numbers = np.random.default_rng(0).normal(size=(3, ckks.SLOTS + 5))
    # with a symmetric key only those who have it encrypt
    encryptor = keys.context if symmetric else ckks.context_of(keys.public())
    clients = [ckks.encrypted(encryptor, row) for row in numbers]
    total = ckks.added(ckks.context_of(keys.public()), clients)
    assert len(total) == 2
    assert np.abs(keys.decrypted(total, numbers.shape[1]) - numbers.sum(0)).max() < 2e-5


def test_without_the_secret_key_nothing_opens():
    keys = ckks.Keys()
    public = ckks.context_of(keys.public())
    cipher = ckks.encrypted(public, np.ones(3))[0]
    with pytest.raises(ValueError, match="secret"):
        ckks.tenseal().ckks_vector_from(public, cipher).decrypt()


def test_bytes_that_are_no_key_are_refused():
    with pytest.raises(UnalikeError, match="no key of CKKS"):
        ckks.context_of(b"rubbish")


def test_who_can_open_is_said():
    assert "any one client" in ckks.who_opens(4, False) and "no key" in ckks.who_opens(4, True)


def test_ciphertexts_travel_together_and_others_are_refused():
    data = ckks.joined([b"first", b"", b"third"])
    assert ckks.divided(data) == ckks.divided(data, 3) == [b"first", b"", b"third"]
    for wrong, count in ((data, 2), (data, 4), (data[:-1], 3), (data + b"x", 3), (b"\xff" * 9, None)):
        with pytest.raises(UnalikeError, match="not the ciphertexts asked for"):
            ckks.divided(wrong, count)


def test_bytes_that_are_no_ciphertext_are_refused():
    keys = ckks.Keys()
    cipher = ckks.encrypted(keys.context, np.ones(3))[0]
    for wrong in (b"", b"rubbish", cipher[:-7], cipher[:1000], cipher[100:], bytes(2000)):
        with pytest.raises(UnalikeError, match="no ciphertext"):
            ckks.vector_of(keys.context, wrong)
