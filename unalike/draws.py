"""Randomness as a function of (seed, round, client, purpose): nothing here has a state to lose.

A key is a 64-bit number; value number i of a key is a hash of both (the finaliser of SplitMix64, Steele, Lea & Flood
2014). The hash is written in plain int64 tensor arithmetic, so it gives the same bits for one client, under `vmap`
for a whole cohort, compiled, and on a GPU. Batch orders, sampling, dropout and simulated noise all come from here.

The hash can be undone, and a key is short: who knows three of the numbers finds the key, and with it all others. So the
noise of a real client comes from no key: `SecretDraws` asks the operating system.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from unalike.errors import UnalikeError

BLOCK = 1 << 17  # how many numbers a CPU draws at once: few enough for its cache, enough for the cost of a call
SERIAL = 1 << 15  # up to so many numbers PyTorch computes in one thread; its threads wait for each other if others work
Place = tuple[slice, slice]  # rows and columns
Block = tuple[int, int, np.ndarray]
WHOLE = slice(None), slice(None)
_STEP, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_ONE, _STEP64, _LAST64 = np.uint64(1), np.uint64(_STEP), np.uint64(31)
_LOW64, _FINE64 = np.uint64(40), np.uint64(11)  # bits that numbers of 24 and of 53 bits leave out
_ROUNDS64 = [(np.uint64(30), np.uint64(_MIX1)), (np.uint64(27), np.uint64(_MIX2))]


def check_seed(seed: int, bits: int = 64) -> int:
    """Return the seed; raise unless it is an integer in 0..2^bits - 1."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= int(seed) < 1 << bits:
        raise UnalikeError(f"seed={seed!r} must be an integer from 0 to 2^{bits} - 1.")
    return int(seed)


def _signed(z: int) -> int:
    return z - (1 << 64) if z >> 63 else z


def key(seed: int, *parts: int | str) -> int:
    """Return one signed 64-bit key for a seed and any names and numbers."""
    return int.from_bytes(hashlib.blake2b(_named((int(seed), *parts)), digest_size=8).digest(), "little", signed=True)


def _named(parts: Sequence[int | str]) -> bytes:
    """Return names and numbers as bytes; different parts give different bytes."""
    return "\0".join(f"str:{p}" if isinstance(p, str) else f"int:{int(p)}" for p in parts).encode()


def client_keys(seed: int, round: int, purpose: str, ids: np.ndarray) -> np.ndarray:
    """Return one key per client, int64 [c], in one vectorised pass."""
    z = (np.asarray(ids).astype(np.uint64) + _ONE) * _STEP64 + np.uint64(key(seed, round, purpose) & _MASK)
    return _mixed(z).view(np.int64)


def _mixed(z: np.ndarray) -> np.ndarray:
    """Mix the bits of uint64 numbers in place, as `bits` does."""
    return _finished(_half_mixed(z, np.empty_like(z)))


def _half_mixed(z: np.ndarray, scratch: np.ndarray) -> np.ndarray:
    """Mix the bits of uint64 numbers in place, but for the last step, which leaves the upper 31 bits alone."""
    for by, mix in _ROUNDS64:
        z ^= np.right_shift(z, by, out=scratch)
        z *= mix
    return z


def _finished(z: np.ndarray) -> np.ndarray:
    """Do the last step of mixing in place."""
    z ^= z >> _LAST64
    return z


def generator(seed: int | bytes, *parts: int | str) -> np.random.Generator:
    """Return a new NumPy generator for (seed, parts), for the server's draws of one round. A seed may be a secret of 16
    to 64 bytes: the generator's 128-bit key is then a hash that cannot be computed without the secret."""
    if isinstance(seed, bytes):
        own = hashlib.blake2b(_named(parts), key=seed, digest_size=16).digest()
        return np.random.Generator(np.random.Philox(key=int.from_bytes(own, "little")))
    return np.random.Generator(np.random.Philox(key=key(seed, *parts) & _MASK))


def new_secret() -> bytes:
    """Return 32 bytes from the operating system, for `generator`."""
    return os.urandom(32)


@contextlib.contextmanager
def torch_seed(seed: int, *parts: int | str) -> Iterator[None]:
    """Seed torch's global generator, from which layers draw their weights, with (seed, parts); restore its state at the
    end of the block."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(seed, *parts) & 0xFFFFFFFF)
        yield


def bits(key: Tensor, counter: Tensor) -> Tensor:
    """Return 64 random bits (as int64) for each pair of key and counter."""

    def shift_right(z: Tensor, by: int) -> Tensor:  # logical: int64 >> keeps the sign
        return (z >> by) & ((1 << (64 - by)) - 1)

    # -~counter is counter + 1. Compiled, counter + 1 would be taken for an index, and Inductor cannot multiply an
    # index by a number of 64 bits
    z = key - ~counter * _signed(_STEP)
    z = (z ^ shift_right(z, 30)) * _signed(_MIX1)
    z = (z ^ shift_right(z, 27)) * _signed(_MIX2)
    return z ^ shift_right(z, 31)


def fold(key: Tensor, number: Tensor | int) -> Tensor:
    """Return a new key from a key and a number (a step, a layer)."""
    counter = number if isinstance(number, Tensor) else torch.full((), number, device=key.device)
    return bits(key, counter)


def whole(key: Tensor, counter: Tensor) -> Tensor:
    """Return whole numbers from 0 to 2**24 - 1, which float32 and float64 hold exactly."""
    return whole_of(bits(key, counter))


def whole_of(bits: Tensor) -> Tensor:
    """Return the whole numbers from 0 to 2**24 - 1 that these bits hold."""
    return (bits >> 40) & 0xFFFFFF


def uniform(key: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return uniform numbers in [0, 1). They have 24 random bits each, so that float32 and float64 give the same
    numbers."""
    count = math.prod(shape)
    if _at_once(key, count):
        return _uniform_of(_bits(key, count), dtype).reshape((*key.shape, *shape))
    out = torch.empty(len(key), count, dtype=dtype)
    for place, block in uniform_blocks(key, count, dtype):
        out[place] = block
    return out.reshape((len(key), *shape))


def _uniform_of(bits: Tensor, dtype: torch.dtype) -> Tensor:
    return whole_of(bits).to(dtype) / (1 << 24)


def uniform_blocks(key: Tensor, count: int, dtype: torch.dtype = torch.float32) -> Iterator[tuple[Place, Tensor]]:
    """Yield the numbers of `uniform(key, (count,), dtype)` for a stack of keys, with their place in the result: on a
    CPU in blocks small enough to stay in the cache, so that whoever uses a block at once finds it there."""
    if _at_once(key, count):
        yield WHOLE, uniform(key, (count,), dtype)
        return
    for row, start, z in _blocks(key, count, BLOCK):
        z >>= _LOW64  # the last step of mixing would not change these bits
        block = torch.from_numpy(z.view(np.int64)).to(dtype).mul_(2.0**-24)
        yield (slice(row, row + 1), slice(start, start + len(z))), block[None]


def integers(key: Tensor, shape: tuple[int, ...], high: int) -> Tensor:
    """Return whole numbers from 0 to high - 1; high is at most 2**24."""
    _check_high(high)
    counter = torch.arange(math.prod(shape), device=key.device)
    return (whole(_each(key), counter) * high >> 24).reshape((*key.shape, *shape))


def _check_high(high: int) -> None:
    if not 1 <= high <= 1 << 24:
        raise UnalikeError(f"Whole numbers below {high} were asked for: it must be from 1 to 2^24.")


def normal(key: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return standard normal numbers (Box-Muller)."""
    count = math.prod(shape)
    if _at_once(key, count):
        return normal_of(_bits(key, count), dtype).reshape((*key.shape, *shape))
    out = torch.empty(len(key), count, dtype=dtype)
    for row, start, z in _blocks(key, count, BLOCK):
        out[row, start : start + len(z)] = normal_of(torch.from_numpy(_finished(z).view(np.int64)), dtype)
    return out.reshape((len(key), *shape))


def normal_of(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the standard normal numbers that these bits hold (Box-Muller)."""
    radius = (whole_of(bits).to(dtype) + 1) / (1 << 24)
    angle = ((bits >> 8) & 0xFFFFFF).to(dtype) * (2 * math.pi / (1 << 24))
    return torch.sqrt(-2 * torch.log(radius)) * torch.cos(angle)


def _at_once(key: Tensor, count: int) -> bool:
    """Return whether `count` numbers per key are drawn in one operation. Many numbers are drawn in blocks on a CPU."""
    return not key.dim() or key.device.type != "cpu" or count <= BLOCK or torch.compiler.is_compiling()


def _bits(key: Tensor, count: int) -> Tensor:
    """Return the first `count` random bits of one key, or of each key of a stack."""
    return bits(_each(key), torch.arange(count, device=key.device))


def _blocks(key: Tensor, count: int, size: int, stride: int = 1, first: int = 0) -> Iterator[Block]:
    """Yield the bits of each key of a stack in blocks of `size`, for the counters first, first + stride, ..., `count`
    in all: the key's row, the block's place among its numbers, and uint64 of which the last step of mixing is left
    (`_finished`), to be overwritten. NumPy shifts without a sign, and in place: a CPU takes a quarter of the time."""
    # all blocks of all keys are computed in the same memory
    steps, (whole, scratch) = _steps(size, stride), np.empty((2, min(size, count)), dtype=np.uint64)
    for row, own in enumerate(key.tolist()):
        for start in range(0, count, size):
            n = min(size, count - start)
            begin = np.uint64((own + (first + start * stride + 1) * _STEP) & _MASK)
            yield row, start, _half_mixed(np.add(steps[:n], begin, out=whole[:n]), scratch[:n])


@functools.lru_cache(maxsize=4)
def _steps(count: int, stride: int) -> np.ndarray:
    """Return by how much the counters of a block lie above its first one, before mixing."""
    return np.arange(count, dtype=np.uint64) * np.uint64(stride * _STEP & _MASK)


def fine_normal(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return standard normal numbers, float64, whose tails reach 8.6. The tails of `normal` end at 5.8, too early for
    noise that must hide other numbers."""
    count = math.prod(shape)
    if key.device.type == "cpu" and not torch.compiler.is_compiling():
        out = torch.empty(count, dtype=torch.float64)
        halves = (_blocks(key[None], count, SERIAL, 2, k) for k in (0, 1))
        for (_, start, even), (_, _, odd) in zip(*halves, strict=True):
            radius, angle = (_fine_shares(z) for z in (even, odd))
            block = radius.neg_().log1p_().mul_(-2).sqrt_().mul_(angle.mul_(2 * math.pi).cos_())
            out[start : start + len(block)] = block
        return out.reshape(shape)
    drawn = bits(key, torch.arange(2 * count, device=key.device))
    radius, angle = ((drawn[k::2] >> 11 & ((1 << 53) - 1)).double() / 2**53 for k in (0, 1))
    return (torch.sqrt(-2 * torch.log1p(-radius)) * torch.cos(2 * math.pi * angle)).reshape(shape)


def _fine_shares(z: np.ndarray) -> Tensor:
    """Return uniform numbers in [0, 1) of 53 bits, from a block of `_blocks`."""
    z = _finished(z)
    z >>= _FINE64
    return torch.from_numpy(z.view(np.int64)).double().mul_(2.0**-53)


def _each(key: Tensor) -> Tensor:
    """Add a last dimension to a stack of keys, so that each key can draw several numbers; return a single key
    unchanged."""
    return key[..., None] if key.dim() else key


# ---------------------------------------------------------------- sources of clients' random numbers


class Draws(Protocol):
    """Random numbers of one client, or of a stack of clients; for a stack, a dimension for the clients comes before the
    shape."""

    def uniform(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Return uniform numbers in [0, 1)."""
        ...

    def uniform_blocks(self, purpose: str, count: int) -> Iterator[tuple[Place, Tensor]]:
        """Yield `uniform(purpose, (count,))` of a stack in parts, each with its rows and columns."""
        ...

    def normal(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Return standard normal numbers."""
        ...

    def integers(self, purpose: str, shape: tuple[int, ...], high: int) -> Tensor:
        """Return whole numbers from 0 to high - 1; high is at most 2**24."""
        ...

    def at(self, number: int) -> Draws:
        """Return the source of the numbers of one training or one step, given its number."""
        ...

    def key(self) -> Tensor:
        """Return a key for draws that need not be secret, such as dropout."""
        ...


class KeyedDraws:
    """Random numbers of simulated clients: value i of a client is a function of its key, the purpose and i alone.

    keys: int64, one client's key [] or the keys of a stack [c]. Results have shape [*shape] or [c, *shape] and lie on
    the keys' device.
    """

    def __init__(self, keys: Tensor, dtype: torch.dtype = torch.float32):
        self.keys, self.dtype = keys, dtype

    def uniform(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        return uniform(self._key(purpose), shape, self.dtype)

    def uniform_blocks(self, purpose: str, count: int) -> Iterator[tuple[Place, Tensor]]:
        return uniform_blocks(self._key(purpose), count, self.dtype)

    def normal(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        return normal(self._key(purpose), shape, self.dtype)

    def integers(self, purpose: str, shape: tuple[int, ...], high: int) -> Tensor:
        return integers(self._key(purpose), shape, high)

    def at(self, number: int) -> KeyedDraws:
        return KeyedDraws(fold(self.keys, number), self.dtype)

    def key(self) -> Tensor:
        return self.keys

    def _key(self, purpose: str) -> Tensor:
        return fold(self.keys, key(0, purpose))


class SecretDraws:
    """Random numbers of a real client, from the operating system's cryptographic generator. Nobody else can predict
    them, and they never repeat, whatever the purpose.

    count: number of clients, for results of shape [count, *shape]; None for one client, [*shape].
    """

    def __init__(
        self,
        count: int | None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        key: Tensor | None = None,
    ):
        """key: for draws that need not be secret; None draws one from the operating system at first use."""
        self.count, self.device, self.dtype, self._key = count, device, dtype, key

    def uniform(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        # the dtype's precision; with more bits a number might be rounded to 1
        digits = 1 - round(math.log2(torch.finfo(self.dtype).eps))
        return self._shaped(_secret_shares(self._numbers(shape), digits), shape)

    def uniform_blocks(self, purpose: str, count: int) -> Iterator[tuple[Place, Tensor]]:
        yield WHOLE, self.uniform(purpose, (count,))

    def normal(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        count = self._numbers(shape)
        radius, angle = _secret_shares(2 * ((count + 1) // 2)).reshape(2, -1)
        # + 2^-53: the logarithm of 0 must not occur
        radius, angle = np.sqrt(-2 * np.log(radius + 2.0**-53)), 2 * np.pi * angle
        pairs = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        return self._shaped(pairs[:count], shape)

    def integers(self, purpose: str, shape: tuple[int, ...], high: int) -> Tensor:
        _check_high(high)
        # the remainder favours no value by more than 2^-40
        values = _secret_bits(self._numbers(shape)) % np.uint64(high)
        return torch.from_numpy(values.astype(np.int64)).reshape(self._shape(shape)).to(self.device)

    def at(self, number: int) -> SecretDraws:
        return SecretDraws(self.count, self.device, self.dtype, fold(self.key(), number))

    def key(self) -> Tensor:
        if self._key is None:
            own = _secret_bits(self._numbers(())).view(np.int64)
            self._key = torch.from_numpy(own).reshape(self._shape(())).to(self.device)
        return self._key

    def _shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(shape) if self.count is None else (self.count, *shape)

    def _numbers(self, shape: tuple[int, ...]) -> int:
        return math.prod(self._shape(shape))

    def _shaped(self, values: np.ndarray, shape: tuple[int, ...]) -> Tensor:
        return torch.from_numpy(values).reshape(self._shape(shape)).to(self.device, self.dtype)


def lasting_normal(secret: bytes, purpose: str, shape: tuple[int, ...]) -> Tensor:
    """Return standard normal numbers, float64, as a function of a secret and a purpose, by a cryptographic hash
    (SHAKE-256). For noise that a server must be able to draw again."""
    count = math.prod(shape)
    stream = hashlib.shake_256(secret + _named(["normal", purpose])).digest(16 * count)
    shares = (np.frombuffer(stream, dtype=np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    radius, angle = shares.reshape(2, -1)
    values = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)
    return torch.from_numpy(values).reshape(shape)


def _secret_bits(count: int) -> np.ndarray:
    """Return uint64 [count] from the operating system."""
    return np.frombuffer(bytearray(os.urandom(8 * count)), dtype=np.uint64)


def _secret_shares(count: int, digits: int = 53) -> np.ndarray:
    """Return float64 [count], uniform in [0, 1), with `digits` random bits each."""
    return (_secret_bits(count) >> np.uint64(64 - digits)).astype(np.float64) * 2.0**-digits
