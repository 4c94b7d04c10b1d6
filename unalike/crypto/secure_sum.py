"""A secure sum: the server learns the sum of clients' vectors and nothing of any one of them.

Double masking after Bonawitz et al. (2017), on the graph of SecAgg+ (Bell et al. 2020). With keys for sealing known for
the whole run, one sum takes three messages to each client, four where clients first agree on who came:

    deal     each client makes a masking key and a seed of its own, and deals Shamir shares of both to its neighbours,
             sealed; the server passes them on. The public masking key travels inside the seal, so nobody need sign it.
    mask     vector + mask of the own seed ± one mask for each neighbour, modulo 2^bits. The masks of a pair come from
             both masking keys, bound to everything that all must have been told alike: the cohort and its keys, who
             dealt, and the request itself. Told different things, masks do not cancel, and the sum is noise.
    (agree   each client signs the list of those whose vectors came, and goes on when enough neighbours signed the same)
    open     each client gives, of each neighbour, either the share of its own seed (its vector came) or that of its
             masking key (it was lost), never both, and only once.

Fewer than `threshold` neighbours of a client left: `Void`, and nothing is learnt. Secrets are used for one sum only.
Nothing here talks to a network: `Member` is a client's part, `Collector` the server's.
"""

from __future__ import annotations

import dataclasses as dc
import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from unalike.crypto import shamir
from unalike.crypto.graph import Lattice
from unalike.crypto.masks import add_masks, agreement, agreements, derived, expanded, extracted, public_of
from unalike.errors import UnalikeError

KEY = 32  # bytes of a key, a seed, a digest
NONCE, TAG = 12, 16
# bytes of a sealed part: two shares and a public key
CONTENT = 2 * shamir.BYTES + KEY
SEALED = NONCE + CONTENT + TAG
Verify = Callable[[int, bytes, bytes], bool]  # (client, statement, signature)


class Void(UnalikeError):
    """Raised when the sum cannot be opened; nothing about any client was learnt."""


class Blamed(UnalikeError):
    """Raised at a client when what another one sent cannot be used; `client` is its number."""

    def __init__(self, message: str, client: int):
        super().__init__(message)
        self.client = client


class RunKey:
    """A client's X25519 key for sealing shares, one per run. If it leaks later, recorded messages of this run can be
    opened, and of no other."""

    def __init__(self, private: bytes | None = None):
        self._private = private or os.urandom(KEY)
        self.public = public_of(self._private)
        self._agreed: dict[bytes, bytes] = {}  # by public key of another client, ready to derive keys from

    def sealing(self, other: bytes, info: bytes) -> Any:
        """Return the cipher shared by this key and another client's for a purpose."""
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        if other not in self._agreed:
            self._agreed[other] = extracted(agreement(self._private, other))
        return ChaCha20Poly1305(expanded(self._agreed[other], b"unalike secure sum, seal " + info, KEY))


@dc.dataclass(frozen=True)
class Group:
    """The clients that may take part in one sum, and its rules: both ends must have the same.

    label: of the sum (run, round, exchange); keys: the public run keys, by client; degree: number of neighbours of
    each; threshold: how many of them open a secret; identities: who each client is, from one sum and run to the next.
    """

    label: bytes
    keys: Mapping[int, bytes]
    degree: int
    threshold: int
    identities: Mapping[int, bytes] = dc.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.threshold <= self.degree:
            raise UnalikeError(f"The threshold must lie in [1, {self.degree}], the neighbours; got {self.threshold}.")

    @functools.cached_property
    def digest(self) -> bytes:
        """Return a hash of everything in the group."""
        rules = repr((self.label, self.degree, self.threshold)).encode()
        about = (_number(c) + self.keys[c] + self.identities.get(c, b"") for c in sorted(self.keys))
        return hashlib.sha256(rules + b"".join(about)).digest()

    @functools.cached_property
    def lattice(self) -> Lattice:
        return Lattice([*self.keys], self.degree, self.digest)

    def context(self, present: Iterable[int], request: bytes) -> bytes:
        """Return a hash of everything that all clients of the sum must have been told alike."""
        return hashlib.sha256(self.digest + _listed(present) + hashlib.sha256(request).digest()).digest()


@dc.dataclass(frozen=True)
class Dealt:
    """A client's dealt shares: its public masking key, a commitment to its own seed, and the sealed shares by
    neighbour."""

    public: bytes
    commitment: bytes
    sealed: Mapping[int, bytes]


# ---------------------------------------------------------------- a client


class Member:
    """A client in one sum. draw: returns random bytes; the operating system's, except in tests."""

    def __init__(self, client: int, key: RunKey, group: Group, draw: shamir.Draw = os.urandom):
        if group.keys.get(client) != key.public:
            raise UnalikeError("The server names another run key for this client than its own.")
        self.client, self.key, self.group, self.draw = client, key, group, draw
        self.neighbours = group.lattice.of(client)
        self._masking, self._seed = draw(KEY), draw(KEY)
        self._theirs: dict[int, tuple[bytes, bytes, bytes]] = {}  # for each neighbour that dealt: both shares, key
        self._context = b""
        self._present: frozenset[int] = frozenset()
        self._masked = False
        self._came: frozenset[int] | None = None  # the list that it signed or opened

    def deal(self) -> Dealt:
        """Return the shares of both secrets, each sealed for its neighbour."""
        points, threshold = [v + 1 for v in self.neighbours], self.group.threshold
        seeds, keys = (
            shamir.deal(int.from_bytes(secret, "big"), threshold, points, self.draw)
            for secret in (self._seed, self._masking)
        )
        public = public_of(self._masking)
        sealed = {v: self._sealed(v, _share(seeds[v + 1]) + _share(keys[v + 1]) + public) for v in self.neighbours}
        return Dealt(public, commitment(self.group, self.client, self._seed), sealed)

    def _sealed(self, other: int, content: bytes) -> bytes:
        nonce, about = self.draw(NONCE), _way(self.group, self.client, other)
        return nonce + self.key.sealing(self.group.keys[other], about).encrypt(nonce, content, about)

    def accept(self, sealed: Mapping[int, bytes], present: Sequence[int], request: bytes) -> None:
        """Take the shares that neighbours dealt. present: all clients that dealt; request: the request to be
        answered."""
        if self._masked:
            raise UnalikeError("Shares of a sum come before a client masks its answer, and not again.")
        self._present = frozenset(present)
        there = self._present & self.group.lattice.near(self.client)
        if not self._present <= self.group.keys.keys() or self.client not in self._present or sealed.keys() != there:
            raise UnalikeError("The server does not say properly who takes part in this sum.")
        if len(there) < self.group.threshold:
            raise UnalikeError(
                f"{len(there)} neighbours take part in this sum, and {self.group.threshold} are needed to open it."
            )
        self._theirs = {v: self._opened_part(v, part) for v, part in sealed.items()}
        self._context = self.group.context(present, request)

    def _opened_part(self, other: int, sealed: bytes) -> tuple[bytes, bytes, bytes]:
        from cryptography.exceptions import InvalidTag

        about = _way(self.group, other, self.client)
        try:
            content = self.key.sealing(self.group.keys[other], about).decrypt(sealed[:NONCE], sealed[NONCE:], about)
        except (InvalidTag, ValueError):
            content = b""
        if len(content) != CONTENT:
            raise Blamed(
                f"What client {other} dealt cannot be opened: it, or the server, did not keep the rules.", other
            )
        return content[: shamir.BYTES], content[shamir.BYTES : -KEY], content[-KEY:]

    def mask(self, vectors: Sequence[np.ndarray]) -> None:
        """Add this client's masks to vectors of uint32 or uint64, in place; allowed only once."""
        if self._masked or not self._context:
            raise UnalikeError("A client masks one answer in a sum, after the shares have come.")
        self._masked = True
        shared = [(secret, other < self.client) for secret, other in zip(self._secrets(), self._theirs, strict=True)]
        _add(vectors, [(self._seed, False), *shared], self._context)

    def _secrets(self) -> list[bytes]:
        """Return the secrets that this client shares with its neighbours; name one whose masking key is none, which the
        server has not seen, as it came inside the seal."""
        keys = [key for _, _, key in self._theirs.values()]
        try:
            return agreements(self._masking, keys)
        except UnalikeError:
            other = next(other for other, key in zip(self._theirs, keys, strict=True) if not _is_key(key))
            raise Blamed(f"What client {other} dealt has no key in it: it did not keep the rules.", other) from None

    def statement(self, came: Iterable[int]) -> bytes:
        """Return the statement that a client signs to agree on who came."""
        return b"unalike secure sum, came " + self._context + _listed(came)

    def agree(self, came: Sequence[int]) -> bytes:
        """Return the statement to sign about who came: for one list only, after this client's own answer."""
        self._settle(came)
        return self.statement(came)

    def _settle(self, came: Sequence[int]) -> frozenset[int]:
        """Refuse a list of those who came that cannot be, or is not the one that this client settled on before."""
        found = frozenset(came)
        if not self._masked or self.client not in found or not found <= self._present:
            raise UnalikeError("The server's list of those who came cannot be.")
        if self._came is not None and self._came != found:
            raise UnalikeError("The server asks to open a second list of those who came: nothing more is opened.")
        self._came = found
        return found

    def check_agreed(self, came: Sequence[int], signatures: Mapping[int, bytes], verify: Verify) -> None:
        """Refuse to continue if too few neighbours signed this list."""
        text = self.statement(came)
        good = [v for v in self.neighbours if v in signatures and v in came and verify(v, text, signatures[v])]
        if len(good) < self.group.threshold:
            raise UnalikeError(
                f"{len(good)} neighbours signed the list of those who came, and {self.group.threshold} must: nothing "
                "is opened."
            )

    def open(self, came: Sequence[int], least: int = 1) -> dict[int, bytes]:
        """Return one share for each neighbour that dealt, chosen by the list of clients whose vectors came. least: the
        fewest clients that must have come."""
        found = self._settle(came)
        there = found & self._theirs.keys()
        if len(there) < self.group.threshold or len(found) < least:
            raise UnalikeError(
                f"{len(found)} clients came, {len(there)} of them neighbours; {max(least, 1)} and "
                f"{self.group.threshold} are needed: nothing is opened."
            )
        return {v: seed if v in found else key for v, (seed, key, _) in self._theirs.items()}


# ---------------------------------------------------------------- the server


class Collector:
    """The server in one sum: it passes shares on, adds masked vectors, and takes the masks off the sum."""

    def __init__(self, group: Group, request: bytes):
        self.group, self.request = group, request
        self.dealt: dict[int, Dealt] = {}
        self.came: list[int] = []
        # clients whose share of another's secret did not fit, each with that other one
        self.misfits: dict[int, int] = {}
        self._totals: list[np.ndarray] = []
        self._given: dict[int, Mapping[int, bytes]] = {}  # shares by who gave them, then by the client that they open

    def take_dealt(self, client: int, dealt: Dealt) -> None:
        """Take a client's dealt shares; refuse them unless they are for exactly its neighbours."""
        if len(dealt.public) != KEY or len(dealt.commitment) != KEY or not _all_are(dealt.sealed.values(), SEALED):
            raise UnalikeError("its shares are not as long as they must be.")
        if dealt.sealed.keys() != self.group.lattice.near(client):
            raise UnalikeError("its shares are not for its neighbours.")
        agreement(os.urandom(KEY), dealt.public)  # raises for a key that is none, which others would stumble over
        self.dealt[client] = dealt

    @functools.cached_property
    def present(self) -> list[int]:
        """Return the clients that take part from here on: those that dealt, and have enough neighbours that did. Read
        it when all have dealt."""
        there = {*self.dealt}
        while short := {c for c in there if len(there & self.group.lattice.near(c)) < self.group.threshold}:
            there -= short
        if not there:
            raise Void(
                f"{len(self.dealt)} of {len(self.group.keys)} clients dealt shares, and every client needs "
                f"{self.group.threshold} neighbours that did: the sum is void, nothing was learnt."
            )
        return sorted(there)

    @functools.cached_property
    def _there(self) -> frozenset[int]:
        return frozenset(self.present)

    def given_by(self, client: int) -> list[int]:
        """Return the neighbours of a client that take part, in ascending order: it gets a share of each."""
        return [v for v in self.group.lattice.of(client) if v in self._there]

    def delivery(self, client: int) -> dict[int, bytes]:
        """Return the sealed shares for a client, by sender."""
        return {v: self.dealt[v].sealed[client] for v in self.given_by(client)}

    def take_masked(self, client: int, vectors: Sequence[np.ndarray]) -> None:
        """Add a client's masked vectors."""
        if client in self.came or client not in self._there:
            raise UnalikeError("it has no vector to send in this sum, or sent it before.")
        if not self._totals:
            self._totals = [np.zeros_like(v) for v in vectors]
        for total, vector in zip(self._totals, vectors, strict=True):
            np.add(total, vector, out=total)
        self.came.append(client)

    def check_openable(self) -> None:
        """Raise `Void` if too few came for the sum to be opened, before anybody is asked to: then it may be asked for
        again."""
        came = {*self.came}
        secrets = [client for client in self.present if client in came or self._touches(client, came)]
        if any(len(came & self.group.lattice.near(client)) < self.group.threshold for client in secrets):
            raise Void(
                f"{len(came)} of {len(self.present)} clients answered, and every client needs {self.group.threshold} "
                "neighbours that did: the sum is void, nothing was learnt."
            )

    def take_opened(self, client: int, shares: Mapping[int, bytes]) -> None:
        """Take the shares that a client gave to open the sum."""
        there = self.group.lattice.near(client) & self._there
        if client not in self.came or shares.keys() != there or not _all_are(shares.values(), shamir.BYTES):
            raise UnalikeError("it did not give one share of each neighbour.")
        self._given[client] = shares

    def total(self) -> list[np.ndarray]:
        """Return the sums over the clients that came, without masks; raise `Void` if too few shares came."""
        came = {*self.came}
        context = self.group.context(self.present, self.request)
        secrets = {c: self._secret(c, c in came) for c in self.present if c in came or self._touches(c, came)}
        own = [(secret, True) for client, secret in secrets.items() if client in came]
        shared = [
            (agreement(secret, self.dealt[other].public), other < client)
            for client, secret in secrets.items() if client not in came
            for other in sorted(self.group.lattice.near(client) & came)
        ]  # fmt: skip
        _add(self._totals, [*own, *shared], context)
        return self._totals

    def _touches(self, client: int, came: set[int]) -> bool:
        """Return whether masks that a lost client shares are in the sum."""
        return not came.isdisjoint(self.group.lattice.near(client))

    def _secret(self, client: int, came: bool) -> bytes:
        """Return a client's own seed or, for a lost client, its masking key."""
        # in one order, whoever answered first: Lagrange's weights are then those of the sum before
        givers = [v for v in self.group.lattice.of(client) if client in self._given.get(v, ())]
        needed, what = self.group.threshold, "own seed" if came else "masking key"
        if len(givers) < needed:
            raise Void(
                f"{len(givers)} neighbours of client {client} helped to open the sum, and {needed} must: it is void, "
                "nothing was learnt."
            )
        for left_out in (None, *givers):
            some = [v for v in givers if v != left_out][:needed]
            found = shamir.combine({v + 1: int.from_bytes(self._given[v][client], "big") for v in some})
            if len(some) == needed and found < 1 << 256 and self._is_right(client, found.to_bytes(KEY, "big"), came):
                if left_out is not None:
                    self.misfits[left_out] = client
                return found.to_bytes(KEY, "big")
        raise Void(
            f"The shares of client {client}'s {what} do not fit each other: the sum is void, nothing was learnt."
        )

    def _is_right(self, client: int, secret: bytes, came: bool) -> bool:
        dealt = self.dealt[client]
        return commitment(self.group, client, secret) == dealt.commitment if came else public_of(secret) == dealt.public


# ---------------------------------------------------------------- both


def commitment(group: Group, client: int, seed: bytes) -> bytes:
    """Return the commitment that a client publishes to its own seed; it reveals a wrong share."""
    return hashlib.sha256(b"unalike secure sum, seed " + group.digest + _number(client) + seed).digest()


def _add(vectors: Sequence[np.ndarray], secrets: Sequence[tuple[bytes, bool]], context: bytes) -> None:
    """Add the masks of secrets to the vectors of a sum; each secret comes with whether its mask is subtracted."""
    info = b"unalike secure sum, mask " + context
    add_masks(vectors, [(derived(secret, info), minus) for secret, minus in secrets])


def _way(group: Group, sender: int, receiver: int) -> bytes:
    return group.digest + _number(sender) + _number(receiver)


def _number(value: int) -> bytes:
    return value.to_bytes(8, "big")


def _listed(clients: Iterable[int]) -> bytes:
    return b"".join(map(_number, sorted(clients)))


def _is_key(public: bytes) -> bool:
    """Return whether these bytes are an X25519 key that secrets can be shared with."""
    try:
        return bool(agreement(os.urandom(KEY), public))
    except UnalikeError:
        return False


def _all_are(parts: Iterable[bytes], size: int) -> bool:
    """Return whether all parts have this size."""
    return {len(part) for part in parts} <= {size}


def _share(value: int) -> bytes:
    return value.to_bytes(shamir.BYTES, "big")
