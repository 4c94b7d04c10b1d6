"""First and second derivatives of rows on their way to hosts and back: in the clear, or under the guest's key.

A pair becomes one number, g · 2^b + h, so that one addition adds both. Sums of a node's candidates are packed into
ciphertexts, as many as fit, and each gets fresh noise before it leaves the host: otherwise the guest, which knows what
it sent, could test guesses of which rows were added.
"""

from __future__ import annotations

import dataclasses as dc
import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from unalike.crypto import paillier
from unalike.crypto.noise_maker import NoiseMaker
from unalike.errors import UnalikeError

# from so many rows on, a second process is worth starting
MANY = 4_000


@dc.dataclass(frozen=True)
class Width:
    """The bits that the sums of a tree need: for second derivatives, and for a whole cell."""

    low: int
    slot: int

    @classmethod
    def of(cls, rows: int, largest: int) -> Width:
        """Return the widths for `rows` rows with derivatives of at most `largest`; they reveal no more than these two
        numbers."""
        low = (rows * largest).bit_length() + 1
        return cls(low, 2 * low + 1)


class Pairs(Protocol):
    """One party's end of the exchange of pairs."""

    def seal(self, pair: Tensor, width: Width) -> bytes: ...
    def read(self, data: bytes, rows: int) -> Sequence[Any]: ...
    def packed(self, sums: Sequence[Sequence[Any]], width: Width) -> bytes: ...
    def opened(self, data: bytes, nodes: int, candidates: int, width: Width) -> Tensor: ...


class Clear:
    """Pairs without encryption."""

    one = 0

    def add(self, a: int, b: int) -> int:
        return a + b

    def seal(self, pair: Tensor, width: Width) -> bytes:
        return pair.contiguous().numpy().tobytes()

    def read(self, data: bytes, rows: int) -> list[int]:
        if len(data) != 16 * rows:
            raise UnalikeError(f"the guest sent {len(data)} bytes for {rows} rows.")
        return [(g << 64) + h for g, h in np.frombuffer(data, np.int64).reshape(-1, 2).tolist()]

    def prepare(self, count: int) -> None:
        """Do nothing: there is no noise."""

    def packed(self, sums: Sequence[Sequence[int]], width: Width) -> bytes:
        cells = [split(cell, 64) for node in sums for cell in node]
        return np.array(cells, np.int64).tobytes()

    def opened(self, data: bytes, nodes: int, candidates: int, width: Width) -> Tensor:
        if len(data) != 16 * nodes * candidates:
            raise UnalikeError("a host sent another number of sums than it has candidates.")
        return torch.from_numpy(np.frombuffer(data, np.int64).reshape(nodes, candidates, 2).copy())


class Encrypted:
    """Pairs encrypted under a key that allows sums."""

    def __init__(self, key: Any):
        self.key, self.one = key, paillier.gmpy2_module().mpz(1)

    def add(self, a: int, b: int) -> int:
        return a * b % self.key.modulus

    def seal(self, pair: Tensor, width: Width) -> bytes:
        numbers = ((g << width.low) + h for g, h in pair.tolist())
        return self.key.ciphers_to_bytes(map(self.key.encrypt, numbers, self.noises(len(pair))))

    def noises(self, count: int) -> Iterable[int]:
        """Return `count` pieces of noise."""
        return (self.key.noise() for _ in range(count))

    def prepare(self, count: int) -> None:
        """Have noise made for `count` rows in advance, if possible; 0 means that no more is needed."""

    def read(self, data: bytes, rows: int) -> list[int]:
        return self.key.ciphers_from_bytes(data, rows)

    def packed(self, sums: Sequence[Sequence[int]], width: Width) -> bytes:
        room = self.key.slots(width.slot)
        flat = [cell for node in sums for cell in node]
        parts = [flat[k : k + room] for k in range(0, len(flat), room)]
        return self.key.ciphers_to_bytes(self.key.refreshed(self.key.pack(part, width.slot)) for part in parts)

    def opened(self, data: bytes, nodes: int, candidates: int, width: Width) -> Tensor:
        room, count = self.key.slots(width.slot), nodes * candidates
        ciphers = self.key.ciphers_from_bytes(data, -(-count // room))
        cells: list[int] = []
        for cipher in ciphers:
            some = min(room, count - len(cells))
            cells += paillier.divided(self.key.decrypt(cipher), width.slot, some)
        pairs = [split(cell, width.low) for cell in cells]
        return torch.tensor(pairs, dtype=torch.int64).reshape(nodes, candidates, 2)


class Owned(Encrypted):
    """The key owner's end (Paillier): with many rows, a second process makes the next tree's noise while hosts
    compute."""

    maker: NoiseMaker | None = None

    def noises(self, count: int) -> Iterable[int]:
        return super().noises(count) if self.maker is None else itertools.islice(self.maker, count)

    def prepare(self, count: int) -> None:
        if self.maker is None and count >= MANY and (os.cpu_count() or 1) > 1:
            self.maker = NoiseMaker(self.key)
        if self.maker is not None and count:
            self.maker.ask(count)
        elif self.maker is not None:
            self.maker.close()
            self.maker = None


def split(cell: int, low: int) -> tuple[int, int]:
    """Return the sums of first and second derivatives in a cell: the second are the low bits, and never negative."""
    second = cell % (1 << low)
    return (cell - second) >> low, second
