"""Whole numbers modulo 2^bits: codes of either sign as residues, and residues packed into bytes without gaps."""

from __future__ import annotations

import math

import numpy as np

from unalike.errors import UnalikeError

MOST_BITS = 64
# a residue of up to this many bits lies within eight bytes, wherever in a byte it begins
WIDE = 57


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
    out = np.zeros((len(groups), bits), dtype=np.uint8)
    for place, byte, shift in _overlaps(bits):
        column = groups[:, place]
        out[:, byte] |= (column >> np.uint64(shift) if shift >= 0 else column << np.uint64(-shift)).astype(np.uint8)
    return out.reshape(-1)[: packed_bytes(len(words), bits)]


def unpack(data: np.ndarray, count: int, bits: int) -> np.ndarray:
    """Return the residues that `pack` packed; refuse bytes that it cannot have made."""
    if data.dtype != np.uint8 or data.shape != (packed_bytes(count, bits),):
        raise UnalikeError(f"{count} numbers of {bits} bits are {packed_bytes(count, bits)} bytes; got {data.shape}.")
    if count * bits % 8 and data[-1] >> (count * bits % 8):
        raise UnalikeError("there are bits behind the last number.")
    groups = math.ceil(count / 8)
    octets = np.zeros((groups + 1) * bits + 8, dtype=np.uint8)
    octets[: len(data)] = data
    out = np.zeros((groups, 8), dtype=word(bits))
    if bits > WIDE:
        for place, byte, shift in _overlaps(bits):
            column = octets[byte : groups * bits : bits].astype(np.uint64)
            out[:, place] |= column << np.uint64(shift) if shift >= 0 else column >> np.uint64(-shift)
    # a residue lies within the 4 or 8 bytes from its first one
    else:
        kind = np.dtype("<u4" if bits <= WIDE - 32 else "<u8")
        for place in range(8):
            first, shift = divmod(place * bits, 8)
            out[:, place] = np.ndarray((groups,), kind, octets, first, (bits,)) >> kind.type(shift)
    return reduced(out.reshape(-1)[:count], bits)


def _overlaps(bits: int) -> list[tuple[int, int, int]]:
    """Return (index of a residue among eight, a byte that it reaches into, its bit that is the byte's lowest)."""
    return [
        (place, byte, 8 * byte - place * bits)
        for place in range(8)
        for byte in range(place * bits // 8, math.ceil((place + 1) * bits / 8))
    ]
