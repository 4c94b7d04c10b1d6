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
    with pytest.raises(UnalikeError, match="no public key"):
        ckks.context_of(b"rubbish")


def test_who_can_open_is_said():
    assert "any one client" in ckks.who_opens(4, False) and "no key" in ckks.who_opens(4, True)
