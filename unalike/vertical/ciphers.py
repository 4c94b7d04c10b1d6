"""Encrypted numbers for vertical methods: encrypt residues, multiply them by columns, mask, decrypt.

A scheme reads and writes rows of bytes. `made` returns the key owner's end, `taken` the other parties'.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from unalike.crypto import ckks, paillier
from unalike.errors import UnalikeError

# binary digits after the point of columns and of residues
COLUMN_BITS, RESIDUE_BITS = 20, 40
SLOTS = ckks.MULTIPLYING.slots
# shortest key; shorter ones are refused even in tests
FEWEST_BITS = 512


class Scheme(Protocol):
    """One party's end of an encryption."""

    def public(self) -> Tensor: ...
    def seal(self, values: Tensor) -> Tensor: ...
    def products(self, sealed: Tensor, x: Tensor, outputs: int) -> tuple[Tensor, Any]: ...
    def opened(self, sealed: Tensor, count: int | None, who: str) -> Tensor: ...
    def unmasked(self, opened: Tensor, mask: Any) -> Tensor: ...


class Paillier:
    """Exact sums of fixed-point numbers; masks are uniform modulo n, so that an opened number reveals nothing at
    all."""

    def __init__(self, key: paillier.PublicKey):
        self.key = key
        self.plain_width = (key.bits + 7) // 8

    def public(self) -> Tensor:
        return _bytes(self.key.to_bytes())

    def seal(self, values: Tensor) -> Tensor:
        """Encrypt numbers, row by row."""
        numbers = [paillier.fixed(value, RESIDUE_BITS) for value in values.flatten().tolist()]
        return _bytes(self.key.ciphers_to_bytes(map(self.key.encrypt, numbers)))

    def added(self, sealed: Sequence[Tensor], count: int, whose: Sequence[str]) -> Tensor:
        """Add several parties' encrypted numbers, element by element; the last are this party's own."""
        parts = [self._read(part, count, who) for part, who in zip(sealed, [*whose, "this party"], strict=True)]
        return _bytes(self.key.ciphers_to_bytes(map(self.key.total, zip(*parts, strict=True))))

    def products(self, sealed: Tensor, x: Tensor, outputs: int) -> tuple[Tensor, list[int]]:
        """Return Xᵀ times the encrypted numbers, each sum with a fresh mask, and the masks."""
        ciphers = self._read(sealed, len(x) * outputs, "the guest")
        columns = torch.round(x * 2.0**COLUMN_BITS).to(torch.int64).T.tolist()
        sums = [self.key.weighted(ciphers[k::outputs], columns) for k in range(outputs)]
        flat = [cipher for row in zip(*sums, strict=True) for cipher in row]
        masks = [secrets.randbelow(int(self.key.n)) for _ in flat]
        masked = (cipher * self.key.encrypt(mask) % self.key.squared for cipher, mask in zip(flat, masks, strict=True))
        return _bytes(self.key.ciphers_to_bytes(masked)), masks

    def opened(self, sealed: Tensor, count: int | None, who: str) -> Tensor:
        """Decrypt; return the numbers modulo n, as bytes."""
        key = self.key
        assert isinstance(key, paillier.SecretKey)
        number = len(sealed) // key.width if count is None else count
        plain = [key.decrypt(cipher) % int(key.n) for cipher in self._read(sealed, number, who)]
        return _bytes(b"".join(one.to_bytes(self.plain_width, "little") for one in plain))

    def parts(self, opened: Tensor, counts: Sequence[int], who: str) -> list[Tensor]:
        """Divide opened numbers among the parties that they belong to."""
        if len(opened) != sum(counts) * self.plain_width:
            raise UnalikeError(f"{who} opened another number of sums than was asked for.")
        return list(opened.split([count * self.plain_width for count in counts]))

    def unmasked(self, opened: Tensor, mask: list[int]) -> Tensor:
        """Remove this party's masks, and return the sums as real numbers."""
        width, n, data = self.plain_width, int(self.key.n), opened.numpy().tobytes()
        if len(data) != len(mask) * width:
            raise UnalikeError("the guest opened another number of sums than it was sent.")
        sums = [(int.from_bytes(data[k * width : (k + 1) * width], "little") - m) % n for k, m in enumerate(mask)]
        signed = [s - n if 2 * s > n else s for s in sums]
        return torch.tensor([paillier.unfixed(s, COLUMN_BITS + RESIDUE_BITS) for s in signed], dtype=torch.float64)

    def _read(self, sealed: Tensor, count: int, who: str) -> list[int]:
        try:
            return self.key.ciphers_from_bytes(sealed.numpy().tobytes(), count)
        except UnalikeError as error:
            raise UnalikeError(f"{who} sent ciphertexts that are none: {error}") from None


class Ckks:
    """Approximate numbers, thousands in one ciphertext (CKKS, by tenseal): ten times quicker than Paillier.

    Opened numbers are rounded before they are returned: exact decryptions of approximate ciphertexts reveal the key (Li
    and Micciancio 2021). Rounding makes the attack harder; it is not a proof against it.
    """

    mask_bits = 10

    def __init__(self, context: Any):
        self.context = context

    def public(self) -> Tensor:
        return _bytes(self.context.serialize(save_secret_key=False))

    def seal(self, values: Tensor) -> Tensor:
        """Encrypt the columns of numbers, in pieces of 4096 rows."""
        columns = [ckks.encrypted(self.context, column.numpy(), SLOTS) for column in values.T]
        return _bytes(ckks.joined([cipher for column in columns for cipher in column]))

    def products(self, sealed: Tensor, x: Tensor, outputs: int) -> tuple[Tensor, Tensor]:
        """Return Xᵀ times the encrypted numbers with a mask on every sum, and the masks."""
        per = -(-len(x) // SLOTS)
        vectors = self._read(sealed, per * outputs, "the guest")
        bound = float(x.abs().sum(0).max()) + 1.0
        mask = (torch.tensor([secrets.randbits(53) for _ in range(x.shape[1] * outputs)]).double() / 2**52 - 1) * bound
        mask = mask * 2**self.mask_bits
        sums = []
        for k, column in enumerate(x.T):
            for output in range(outputs):
                parts = [vectors[output * per + i].dot(piece.tolist()) for i, piece in enumerate(column.split(SLOTS))]
                total = parts[0]
                for part in parts[1:]:
                    total = total + part
                total.add_([float(mask[k * outputs + output])])
                sums.append(total.serialize())
        return _bytes(ckks.joined(sums)), mask

    def opened(self, sealed: Tensor, count: int | None, who: str) -> Tensor:
        """Decrypt, and round to multiples of 2⁻²⁰."""
        numbers = [vector.decrypt()[0] for vector in self._read(sealed, count, who)]
        values = torch.tensor(numbers, dtype=torch.float64)
        return _bytes((torch.round(values * 2.0**20) / 2.0**20).numpy().tobytes())

    def unmasked(self, opened: Tensor, mask: Tensor) -> Tensor:
        if len(opened) != 8 * len(mask):
            raise UnalikeError("the guest opened another number of sums than it was sent.")
        values = torch.frombuffer(bytearray(opened.numpy().tobytes()), dtype=torch.float64)
        if not torch.isfinite(values).all():
            raise UnalikeError("the guest opened a number that is not finite.")
        return values - mask

    def _read(self, sealed: Tensor, count: int | None, who: str) -> list[Any]:
        try:
            ciphers = ckks.divided(sealed.numpy().tobytes(), count)
            return [ckks.vector_of(self.context, cipher) for cipher in ciphers]
        except UnalikeError as error:
            raise UnalikeError(f"{who} sent ciphertexts that are none: {error}") from None


def made(cipher: str, bits: int, randomness: str) -> Any:
    """Return a scheme with a new secret key."""
    if cipher == "paillier":
        return Paillier(paillier.generate(bits, randomness))
    return Ckks(ckks.Keys(parameters=ckks.MULTIPLYING).context)


def taken(cipher: str, key: Tensor, bits: int, randomness: str) -> Any:
    """Return a scheme with another party's public key."""
    if cipher == "paillier":
        return Paillier(paillier.PublicKey.from_bytes(key.numpy().tobytes(), bits, randomness))
    return Ckks(ckks.context_of(key.numpy().tobytes()))


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)
