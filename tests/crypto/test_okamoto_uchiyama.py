import io
import math
import time

import pytest

from unalike import UnalikeError
from unalike.crypto import okamoto_uchiyama, paillier
from unalike.crypto.noise_maker import NoiseMaker, made

KEY = okamoto_uchiyama.generate(384)
PUBLIC = okamoto_uchiyama.PublicKey.from_bytes(KEY.to_bytes(), 384)


def test_sums_of_signed_numbers():
    numbers = [0, 1, -1, 12345678901234567, -(2**60)]
    ciphers = [PUBLIC.encrypt(number) for number in numbers]
    assert [KEY.decrypt(c) for c in ciphers] == numbers
    assert KEY.decrypt(math.prod(ciphers) % PUBLIC.modulus) == sum(numbers)
    assert len({*ciphers, PUBLIC.encrypt(1), PUBLIC.refreshed(ciphers[1])}) == 7


def test_packed_cells_come_back():
    cells = [5, -7, 2**30]
    assert PUBLIC.slots(40) == 3
    packed = PUBLIC.refreshed(PUBLIC.pack([PUBLIC.encrypt(c) for c in cells], 40))
    assert paillier.divided(KEY.decrypt(packed), 40, 3) == cells
    data = PUBLIC.ciphers_to_bytes([packed])
    assert PUBLIC.ciphers_from_bytes(data, 1) == [packed]
    for bad, count in ((data[1:], 1), (data, 2), (b"\xff" * len(data), 1)):
        with pytest.raises(UnalikeError):
            PUBLIC.ciphers_from_bytes(bad, count)


def test_its_weakness():
    """Who learns what one ciphertext of his own decrypts to has the key: it is said so, and never a default."""
    large = 1 << 200
    answer = KEY.decrypt(PUBLIC.encrypt(large))
    assert math.gcd(large - answer, int(PUBLIC.n)) == KEY.p
    assert "weakness" in okamoto_uchiyama.__doc__


def test_a_short_key_is_refused():
    with pytest.raises(UnalikeError, match="are wanted"):
        okamoto_uchiyama.PublicKey.from_bytes(KEY.to_bytes(), 2048)


def test_noise_as_the_second_process_makes_it():
    key = paillier.generate(256)
    secret = key.secret_to_bytes()
    count = lambda n: n.to_bytes(8, "little")  # noqa: E731
    sink = io.BytesIO()
    made(io.BytesIO(count(len(secret)) + b"short   " + secret + count(70) + count(0) + count(3)), sink)
    found = key.ciphers_from_bytes(sink.getvalue(), 73)
    assert [key.decrypt(noise) for noise in found] == [0] * 73 and len(set(found)) == 73


@pytest.mark.slow
def test_noise_made_by_another_process_is_noise():
    key = paillier.generate(256)
    maker = NoiseMaker(key)
    try:
        maker.ask(20)
        found = [next(maker) for _ in range(5)]  # what is not ready is made here
        while maker.left:  # at last all that was asked for comes
            time.sleep(0.01)
            found.append(next(maker))
        assert {key.decrypt(noise) for noise in found} == {0} and len(set(found)) == len(found)
        maker.ask(10)
        maker.ask(10)
        assert maker.left == 10
    finally:
        maker.close()
    assert key.decrypt(key.encrypt(7, next(maker))) == 7
