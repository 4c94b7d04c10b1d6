"""Whole numbers modulo 2^bits: codes of either sign as residues, and residues packed into bytes without gaps."""

from __future__ import annotations

import math

import numpy as np

from unalike.errors import UnalikeError

MOST_BITS = 64


def word(bits: int) -> type[np.unsignedinteger]:
    """Return the unsigned type whose overflow is compatible with residues modulo 2^bits."""
    if not 1 <= bits <= MOST_BITS:
        raise UnalikeError(f"A ring has 1 to {MOST_BITS} bits; got {bits}.")
    return np.uint32 if bits <= 32 else np.uint64


def residues(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return int64 codes as residues; negative ones in two's complement."""
    return reduced(codes.astype(np.int64).view(np.uint64).astype(word(bits)), bits)


def reduced(words: np.ndarray, bits: int) -> np.ndarray:
    """Return words modulo 2^bits."""
    return words & words.dtype.type((1 << bits) - 1)


def signed(words: np.ndarray, bits: int) -> np.ndarray:
    """Return residues as int64 codes in [-2^(bits-1), 2^(bits-1))."""
    shift = MOST_BITS - bits
    return (words.astype(np.uint64) << np.uint64(shift)).view(np.int64) >> shift


def carry_bits(clients: int) -> int:
    """Return the additional bits that a sum over clients needs beyond one client's code."""
    return max(clients - 1, 0).bit_length()


def packed_bytes(count: int, bits: int) -> int:
    """Return how many bytes `pack` makes of `count` residues."""
    return math.ceil(count * bits / 8)


def pack(words: np.ndarray, bits: int) -> np.ndarray:
    """Return residues as bytes, one after another, the lowest bit first; unused bits at the end are 0."""
    groups = np.zeros((math.ceil(len(words) / 8), 8), dtype=np.uint64)  # eight residues fill `bits` bytes
    groups.reshape(-1)[: len(words)] = words
    out = np.zeros((len(groups) + 1) * bits + 8, dtype=np.uint8)
    for place in range(8):
        own, shift, beyond = _places(out, len(groups), bits, place)
        own |= (groups[:, place] << np.uint64(shift)).astype(own.dtype)
        if beyond is not None:
            beyond |= (groups[:, place] >> np.uint64(64 - shift)).astype(np.uint8)
    return out[: packed_bytes(len(words), bits)]


def unpack(data: np.ndarray, count: int, bits: int) -> np.ndarray:
    """Return the residues that `pack` packed; refuse bytes that it cannot have made."""
    if data.dtype != np.uint8 or data.shape != (packed_bytes(count, bits),):
        raise UnalikeError(f"{count} numbers of {bits} bits are {packed_bytes(count, bits)} bytes; got {data.shape}.")
    if count * bits % 8 and data[-1] >> (count * bits % 8):
        raise UnalikeError("there are bits behind the last number.")
    groups = math.ceil(count / 8)
    octets = np.zeros((groups + 1) * bits + 8, dtype=np.uint8)
    octets[: len(data)] = data
    out = np.empty((groups, 8), dtype=word(bits))
    for place in range(8):
        own, shift, beyond = _places(octets, groups, bits, place)
        out[:, place] = own >> own.dtype.type(shift)
        if beyond is not None:
            out[:, place] |= beyond.astype(np.uint64) << np.uint64(64 - shift)
    return reduced(out.reshape(-1)[:count], bits)


def _places(octets: np.ndarray, groups: int, bits: int, place: int) -> tuple[np.ndarray, int, np.ndarray | None]:
    """Return where the residue at `place` of every eight lies: words that begin with its first byte, its lowest bit in
    them, and the bytes behind those words if it reaches into them. Words of one place never overlap."""
    size = next((size for size in (1, 2, 4) if bits + 7 <= 8 * size), 8)
    first, shift = divmod(place * bits, 8)
    own = np.ndarray((groups,), f"<u{size}", octets, first, (bits,))
    beyond = np.ndarray((groups,), np.uint8, octets, first + 8, (bits,)) if shift + bits > 64 else None
    return own, shift, beyond
