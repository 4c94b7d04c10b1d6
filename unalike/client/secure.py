"""A client's part in secure sums between machines: its key for a run, shares dealt and given back, a masked answer.

Secrets are kept in memory only: a restarted client takes part from the next sum on, and cannot be made to open what it
sent before. Numbers of a message travel as tensors of bytes; everything a server says is checked.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from unalike.channel.stages.secure_sum import SIGNATURE, SecureSum, Summed
from unalike.channel.summing import Slot, gathered
from unalike.contract import BUFFERS
from unalike.crypto import ring
from unalike.crypto.secure_sum import KEY, SEALED, Group, Member, RunKey
from unalike.errors import UnalikeError
from unalike.messages import wire

# parts of a request: who takes part, their sealed shares, what tells one try of an exchange from another
PRESENT, SHARES, ATTEMPT = ABOUT = "::present", "::shares", "::attempt"
# what a client may be told for itself in a request's header
OWN_HEADER = {"format", "run", "acknowledged", "sealed"}
# prefix, before a number: a masked or encrypted vector of a reply
MASKED = "sum:"
MOST = 100_000  # most clients of a sum
ATTEMPTS = re.compile("[0-9a-f]{16}")
Parts = Mapping[str, Tensor]


class Verifier(Protocol):
    """Public keys (`unalike.network.seal.PublicKeys`)."""

    def verify(self, public: str, data: bytes, signature: bytes) -> bool:
        """Return whether the owner of a public key signed these bytes; refuse a key that is not accepted."""
        ...

    def point(self, public: str | None = None) -> bytes:
        """Return what a public key stands for, however it is written; a signer's own without one."""
        ...


class Signer(Verifier, Protocol):
    """A client's signing key, and the public keys that it accepts of others (`unalike.network.seal.Keyring`)."""

    def sign(self, data: bytes) -> bytes:
        """Return a signature of 96 bytes."""
        ...


def label(run: str, round: int, exchange: int, attempt: str) -> bytes:
    """Return the label of one sum. attempt: drawn by the server, anew if it has to begin again."""
    return f"{run} {round} {exchange} {attempt}".encode()


def key_statement(run: str, client: int, key: bytes) -> bytes:
    """Return the statement that a client signs about its key for a run."""
    return f"unalike secure sum, key of client {client} in run {run}: ".encode() + key


def identity(keys: Verifier, public: str | None = None) -> bytes:
    """Return who the owner of a public key is, whatever number it has in a run; the signer itself without one."""
    return hashlib.sha256(b"unalike secure sum, identity " + keys.point(public)).digest()


def bound(parts: Sequence[bytes], plan: bytes = b"") -> bytes:
    """Return the hash to which masks are bound: over the run's plan, the part of a request that is the same for all
    clients, and the names of what each client gets for itself. plan: as `plan_digest` returns it."""
    return _bound(parts[0], _own(parts)[1], plan)


def _bound(shared: bytes, own: Parts, plan: bytes) -> bytes:
    names = json.dumps(sorted(own.keys() - {*ABOUT})).encode()
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in (plan, shared, names))).digest()


def plan_digest(plan: Mapping[str, Any]) -> bytes:
    """Return a hash of all that a run's plan tells every client alike: all but the client's own number."""
    alike = json.loads(json.dumps({name: value for name, value in plan.items() if name != "client"}))
    return hashlib.sha256(json.dumps(alike, sort_keys=True).encode()).digest()


def bound_at_client(parts: Sequence[bytes], rows: Sequence[str] = (), plan: bytes = b"") -> bytes:
    """Return the hash to which masks are bound; refuse a request that tells this client alone anything but about the
    sum. A server that tells clients different plans, models, functions or weights could isolate one client's reply in
    it. rows: names that the method declares for each client; plan: as `plan_digest` returns it."""
    header, own = _own(parts)
    allowed = {name for name in rows if name not in ("w", BUFFERS) and not name.startswith(":")}
    for name in (*sorted(header.keys() - OWN_HEADER), *sorted(own.keys() - {*ABOUT} - allowed)):
        raise UnalikeError(f"The request brings {name[:50]!r} for this client alone: in a secure sum all get the same.")
    return _bound(parts[0], own, plan)


def _own(parts: Sequence[bytes]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a client's own part of a request."""
    if len(parts) != 2:
        raise UnalikeError(
            "A request for a secure sum has two parts: what all clients get, and what is a client's own."
        )
    return wire.decode(parts[1])


class HidingClient:
    """One client's part in the sums of a run whose replies are hidden from the server.

    stage: the run's, which sets the rules of a sum; shares: of noise that a sum must have; say: called with messages
    for the owner.
    """

    def __init__(
        self, run: str, client: int, stage: Summed, shares: int = 0, say: Callable[[str], None] = lambda text: None
    ):
        self.run, self.client, self.say, self.least = run, client, say, max(stage.least, shares)
        self.wanted = self.least  # fewest clients of a sum that this client takes part in; its owner may want more
        self.rules = client, stage, shares
        self.tags = stage.tags
        self.population = MOST  # the clients of the run
        self._when = (-2, -1)
        # the sums that it has opened, by exchange: whose replies were in them, by identity, since numbers may change
        self._sums: dict[tuple[int, int], set[frozenset[bytes]]] = {}
        self._loose: set[tuple[int, int]] = set()  # exchanges with a sum of which each may have been told another list
        self._centers: dict[str, bytes] | None = None  # in a preparation: what its sums are taken about
        self._about: dict[tuple[frozenset[bytes], str], bytes] = {}  # the same of sums that it has opened
        self._wrong: dict[tuple[int, int], int] = {}  # sums to be opened that were none, by exchange
        self._states: dict[tuple[int, int], bytes] = {}  # a hash of the state that it replied from, by exchange

    @property
    def _stages(self) -> dict[str, Callable[[dict[str, Any], Parts], dict[str, Tensor]]]:
        """Return the functions for requests beside the reply itself, by name."""
        raise NotImplementedError

    def answer(self, header: dict[str, Any], parts: Parts) -> bytes:
        """Answer a request about a sum."""
        stage = header.get("stage")
        if not isinstance(stage, str) or stage not in self._stages:
            raise UnalikeError(f"A sum of this run has no stage {str(stage)[:50]!r}.")
        return wire.encode({"kind": "reply", "run": self.run, "stage": stage}, self._stages[stage](header, parts))

    def clients(self, when: tuple[int, int], parts: Parts) -> int:
        """Return how many clients take part in a sum. parts: of the request, about the sum."""
        raise NotImplementedError

    def hidden(
        self, when: tuple[int, int], asked: bytes, parts: Parts, slots: Sequence[Slot], codes: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the codes of a reply in the form in which they travel. asked: a hash of what all clients are told
        alike (`bound`); parts: of the request, about the sum."""
        raise NotImplementedError

    def reply_from(self, when: tuple[int, int], state: bytes) -> None:
        """Refuse a second reply in one exchange from another state: where all others' replies are the same again, the
        difference of two sums would tell what this client keeps. state: a hash of it, and of the samples."""
        if self._states.setdefault(when, state) != state:
            raise UnalikeError(
                f"The server asks for round {when[0] + 1} again, from another state of this client than before: "
                "refused. If you know why it has to, start this client again."
            )

    @property
    def _agreed(self) -> bool:
        """Return whether all clients of a sum are sure to be told the same list of those who came."""
        return False

    def remember(self, earlier: HidingClient) -> None:
        """Take over the record of what an earlier object has answered and opened."""
        self._sums, self._about, self._wrong = earlier._sums, earlier._about, earlier._wrong
        self._loose = earlier._loose

    def prepare(self, centers: Mapping[str, Tensor]) -> None:
        """Answer next with sums over samples, about these centers. All sums of a preparation are one exchange to the
        record of what was opened, and those of one set of clients have one center: sums of squares about two centers
        tell the sum."""
        self._centers = {name: value.numpy().tobytes() for name, value in centers.items()}

    def _exchange(self, when: tuple[int, int]) -> tuple[int, int]:
        """Return the exchange under which a sum is recorded: all of a preparation are one."""
        return when if self._centers is None else (0, 0)

    def _say_opened(self, when: tuple[int, int], came: int, lost: int) -> None:
        """Tell the owner that a sum was opened."""
        what = f"round {when[0] + 1}" if self._centers is None else "features"
        self.say(f"{what}: opened the sum of {came} clients, {lost} lost")

    def _open_once(self, came: Iterable[bytes]) -> None:
        """Record that the sum over these clients, by identity, is opened. Refuse a second sum of one exchange over
        other clients: this client's answer is the same in both, and their difference would reveal a few. A server that
        was killed may ask for the same sum again; and where clients agree on who came, in this sum and in the one
        before, once for one that differs by enough clients. (Else each client may be told another list, and what
        differs in each may be one client in all.)"""
        found, exchange = frozenset(came), self._exchange(self._when)
        before = self._sums.setdefault(exchange, set()) - {found}
        # each side for itself: who is only in one sum may work with the server, and take itself out
        sides = [side for other in before for side in (found - other, other - found)]
        centers = {(found, name): value for name, value in (self._centers or {}).items()}
        moved = any(self._about.get(key, value) != value for key, value in centers.items())
        agreed = self._agreed and exchange not in self._loose
        others = len(before) > (1 if agreed else 0) or any(0 < len(side) < self.wanted for side in sides)
        if others or moved:
            raise UnalikeError(
                f"The server asks for a second sum of round {self._when[0] + 1} over other clients, whose difference "
                "would tell too much: nothing is opened. If you know why it has to, start this client again."
            )
        self._sums[exchange].add(found)
        self._loose |= set() if self._agreed else {exchange}
        self._about |= centers


class SecureClient(HidingClient):
    """One client's secrets for the secure sums of a run. signer: without one, other clients' keys are taken on the
    server's word (`loopback`)."""

    def __init__(
        self,
        run: str,
        client: int,
        stage: SecureSum,
        shares: int = 0,
        signer: Signer | None = None,
        say: Callable[[str], None] = lambda text: None,
    ):
        super().__init__(run, client, stage, shares, say)
        self.stage, self.signer = stage, signer
        self._key = RunKey()
        self._verified: set[tuple[str, bytes, bytes]] = set()
        self._public: dict[int, str] = {}  # the others' signing keys
        self._points: dict[int, bytes] = {}  # and what they stand for
        self._member: Member | None = None
        self._dealt: dict[str, Tensor] = {}

    # ---- what the server asks, one answer each

    @property
    def _stages(self) -> dict[str, Callable[[dict[str, Any], Parts], dict[str, Tensor]]]:
        return {"key": self._give_key, "deal": self._deal, "agree": self._agree, "open": self._open}

    @property
    def _agreed(self) -> bool:
        """With few neighbours, clients that are far from each other on the ring may have agreed to different lists."""
        group = None if self._member is None else self._member.group
        everybody = group is not None and group.degree == len(group.keys) - 1 and 2 * group.threshold > group.degree
        return self.stage.agree and self.signer is not None and everybody

    def _give_key(self, header: dict[str, Any], parts: Parts) -> dict[str, Tensor]:
        signature = self._sign(self._statement(self.client, self._key.public))
        return {"key": as_bytes(self._key.public), "signature": as_bytes(signature)}

    def _sign(self, statement: bytes) -> bytes:
        """Return a signature; zeros if nobody checks it."""
        return bytes(SIGNATURE) if self.signer is None else self.signer.sign(statement)

    def _statement(self, client: int, key: bytes) -> bytes:
        return key_statement(self.run, client, key)

    def _deal(self, header: dict[str, Any], parts: Parts) -> dict[str, Tensor]:
        """Make secrets for a sum, and deal shares of them."""
        clients = numbers(parts, "clients")
        if clients[-1] >= self.population:
            raise UnalikeError(f"Client {clients[-1]} is to take part in a sum of {self.population} clients.")
        keys = dict(zip(clients, rows(parts, "keys", len(clients), KEY), strict=True))
        identities = dict(zip(clients, rows(parts, "identities", len(clients), KEY), strict=True))
        if len(clients) < self.wanted:
            raise UnalikeError(f"{len(clients)} clients are to take part in a sum; this client wants {self.wanted}.")
        when, attempt = (whole(header, "round"), whole(header, "exchange")), header.get("attempt")
        if not isinstance(attempt, str) or not ATTEMPTS.fullmatch(attempt):
            raise UnalikeError("A message about a secure sum must say which attempt it is.")
        name = label(self.run, *when, attempt)
        degree, opening = self.stage.degree(len(clients)), self.stage.opening(len(clients))
        group = Group(name, keys, degree, opening, identities)
        if self._member is not None and self._member.group.digest == group.digest:
            return self._dealt  # asked again: same answer
        member = Member(self.client, self._key, group)
        self._check_keys(header, member, dict(zip(clients, rows(parts, "signatures", len(clients)), strict=True)))
        self._when, self._member = when, member
        dealt = member.deal()
        sealed = b"".join(dealt.sealed[v] for v in member.neighbours)
        out = {"public": as_bytes(dealt.public), "commitment": as_bytes(dealt.commitment)}
        self._dealt = {**out, "sealed": as_bytes(sealed).view(-1, SEALED)}
        return self._dealt

    def _check_keys(self, header: dict[str, Any], member: Member, signatures: Mapping[int, bytes]) -> None:
        """Refuse a neighbour's key unless it is signed with a signing key that this client accepts, which nobody else
        has, which is the same during the run, and from which its identity is: one client that works with the server
        must not be many, and none must pass for another."""
        if self.signer is None:
            return
        identities = member.group.identities
        if identities.get(self.client) != identity(self.signer) or len({*identities.values()}) < len(identities):
            raise UnalikeError("The server does not say who takes part in a sum: it is not to be trusted.")
        public = header.get("public")
        for other in member.neighbours:
            text = public.get(str(other)) if isinstance(public, dict) else None
            if not isinstance(text, str) or len(text) > 1000:
                raise UnalikeError(f"The server does not say whose key client {other}'s is.")
            key = member.group.keys[other]
            if self._public.get(other) == text and (text, key, identities[other]) in self._verified:
                continue  # as in the sum before
            if not self._verify(text, other, self._statement(other, key), signatures[other]):
                raise UnalikeError(f"The key of client {other} is not signed by it: this server is not to be trusted.")
            point = self.signer.point(text)
            if point != self._points.setdefault(other, point):
                raise UnalikeError(f"Client {other} had another key before: this server is not to be trusted.")
            if identities[other] != identity(self.signer, text):
                raise UnalikeError(f"Client {other} is not who the server says: it is not to be trusted.")
            self._verified.add((text, key, identities[other]))
            self._public[other] = text

    def _verify(self, public: str, other: int, statement: bytes, signature: bytes) -> bool:
        """Return whether another client signed this; name it where its public key is refused."""
        try:
            return self.signer is not None and self.signer.verify(public, statement, signature)
        except UnalikeError as error:
            raise UnalikeError(f"Client {other}: {error}") from None

    def clients(self, when: tuple[int, int], parts: Parts) -> int:
        return len(self._sum(when).group.keys)

    def hidden(
        self, when: tuple[int, int], asked: bytes, parts: Parts, slots: Sequence[Slot], codes: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        clients = self.clients(when, parts)
        words = {bits: ring.residues(some, bits) for bits, some in gathered(slots, clients, codes).items()}
        self.mask(when, asked, parts, [*words.values()])
        return {f"{MASKED}{b}": torch.from_numpy(ring.pack(ring.reduced(some, b), b)) for b, some in words.items()}

    def mask(self, when: tuple[int, int], asked: bytes, parts: Parts, words: list[np.ndarray]) -> None:
        """Mask the vectors of the answer to a request, in place."""
        member = self._sum(when)
        present, sealed = numbers(parts, PRESENT), parts.get(SHARES)
        came = {*present}
        there = [v for v in member.neighbours if v in came]
        got = rows({SHARES: sealed} if sealed is not None else {}, SHARES, len(there), SEALED)
        member.accept(dict(zip(there, got, strict=True)), present, asked)
        member.mask(words)

    def _sum(self, when: tuple[int, int]) -> Member:
        if self._member is None or self._when != when:
            raise UnalikeError(
                f"This client has dealt no shares for round {when[0] + 1}, exchange {when[1]}: it was started again, "
                "or was not asked to."
            )
        return self._member

    def _agree(self, header: dict[str, Any], parts: Parts) -> dict[str, Tensor]:
        """Sign the list of clients that came."""
        member = self._sum((whole(header, "round"), whole(header, "exchange")))
        came = numbers(parts, "came")
        return {"signature": as_bytes(self._sign(member.agree(came)))}

    def _open(self, header: dict[str, Any], parts: Parts) -> dict[str, Tensor]:
        """Return the shares that open the sum over the clients that came."""
        member = self._sum((whole(header, "round"), whole(header, "exchange")))
        came = numbers(parts, "came")
        if self.stage.agree and self.signer is not None:
            signatures = dict(zip(came, rows(parts, "signatures", len(came)), strict=True))
            member.check_agreed(came, signatures, self._signed)
        shares = member.open(came, self.wanted)
        self._open_once(member.group.identities[client] for client in came)
        lost = len(member.group.keys) - len(came)
        self._say_opened(self._when, len(came), lost)
        return {"shares": as_bytes(b"".join(shares[v] for v in sorted(shares))).view(len(shares), -1)}

    def _signed(self, other: int, statement: bytes, signature: bytes) -> bool:
        return self._verify(self._public[other], other, statement, signature)


# ---------------------------------------------------------------- bytes as tensors


def as_bytes(data: bytes) -> Tensor:
    """Return bytes as a tensor."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def rows(parts: Parts, name: str, count: int, size: int | None = None) -> list[bytes]:
    """Return the rows of a part as bytes; refuse another number or length."""
    value = parts.get(name)
    if value is None or value.dtype != torch.uint8 or value.dim() != 2 or value.shape[0] != count:
        raise UnalikeError(f"A message about a secure sum must have {count} rows of {name.strip(':')!r}.")
    if size is not None and value.shape[1] != size:
        raise UnalikeError(f"The rows of {name.strip(':')!r} must be {size} bytes; got {value.shape[1]}.")
    data, length = value.numpy().tobytes(), value.shape[1]
    return [data[k * length : (k + 1) * length] for k in range(count)]


def octets(parts: Parts, name: str, size: int) -> bytes:
    """Return a part as `size` bytes."""
    value = parts.get(name)
    if value is None or value.dtype != torch.uint8 or value.dim() != 1 or len(value) != size:
        raise UnalikeError(f"A message about a secure sum must have {size} bytes of {name!r}.")
    return value.numpy().tobytes()


def numbers(parts: Parts, name: str) -> list[int]:
    """Return a list of clients: ascending, each once."""
    value = parts.get(name)
    if value is None or value.dtype != torch.int64 or value.dim() != 1 or not 0 < len(value) <= MOST:
        raise UnalikeError(f"A message about a secure sum must list clients in {name.strip(':')!r}.")
    found: list[int] = value.tolist()
    if found != sorted({*found}) or found[0] < 0:
        raise UnalikeError(f"The clients in {name.strip(':')!r} must be in ascending order, each once.")
    return found


def whole(header: Mapping[str, Any], name: str) -> int:
    """Return a whole number from a message's header."""
    value = header.get(name)
    if type(value) is not int or not -1 <= value < 1 << 31:
        raise UnalikeError(f"A message about a secure sum must say its {name}.")
    return value
