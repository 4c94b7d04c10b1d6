"""A client's part in sums under encryption: its reply encrypted with the common key, its vote for the list of replies,
and sums opened for the server.

Whoever has the common key can open any ciphertext, so a client opens only what its tags show to be the sum of the
listed replies, all to what it was asked itself, and only a list for which enough of the clients in it have voted: each
votes for one list of clients in an exchange (`unalike.crypto.votes`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unalike.channel.stages.encrypted import Encrypted
from unalike.channel.stages.secure_sum import SecureSum, Summed
from unalike.channel.summing import TAG, Slot, gathered, grouped
from unalike.client.secure import (
    ATTEMPT,
    MASKED,
    MOST,
    PRESENT,
    HidingClient,
    Parts,
    SecureClient,
    Signer,
    as_bytes,
    label,
    numbers,
    octets,
    rows,
    whole,
)
from unalike.client.settled import Settled
from unalike.crypto import ring, tags, votes
from unalike.crypto.common_key import CommonKey
from unalike.crypto.encrypted_sum import PaillierOpener, Vector, opener
from unalike.crypto.secure_sum import KEY
from unalike.crypto.votes import ROW, Reply
from unalike.errors import UnalikeError

WHO = "::who"  # part of an encrypted reply: its row in the list of replies
TRIES = 3  # sums of one exchange that are no sums, after which a client opens nothing more of it, however often asked


class Answered(NamedTuple):
    """What a client remembers of the reply that it sent last: its row, who was asked, and how its sum is to be read."""

    label: bytes
    reply: Reply
    present: frozenset[int]
    slots: list[Slot]


class EncryptedClient(HidingClient):
    """One client's part in the encrypted sums of a run. key: that all clients have in common; settled: the record of
    the sums that this client has agreed to, in this run and in all others."""

    def __init__(
        self,
        run: str,
        client: int,
        stage: Encrypted,
        key: CommonKey,
        shares: int = 0,
        say: Callable[[str], None] = lambda text: None,
        settled: Settled | None = None,
    ):
        super().__init__(run, client, stage, shares, say)
        self.settled = settled or Settled()
        if key.scheme != stage.scheme:
            raise UnalikeError(f"The run's channel has {stage}, and the common key is for {key.scheme}.")
        self.key, self.opener = key, opener(key)
        if isinstance(self.opener, PaillierOpener) and self.opener.key.bits != stage.key_bits:
            raise UnalikeError(
                f"The run's channel has {stage}, a key of {stage.key_bits} bits; the common key has "
                f"{self.opener.key.bits}."
            )
        self._answered: Answered | None = None

    @property
    def _stages(self) -> dict[str, Callable[[dict[str, Any], Parts], dict[str, Tensor]]]:
        return {"key": self._give_key, "vote": self._vote, "open": self._open}

    def _give_key(self, header: dict[str, Any], parts: Parts) -> dict[str, Tensor]:
        """Tell which key this client has, and the public part of it, without which the server cannot add."""
        public = self.opener.key.to_bytes() if isinstance(self.opener, PaillierOpener) else b""
        return {"fingerprint": as_bytes(self.key.fingerprint), "public": as_bytes(public)}

    def clients(self, when: tuple[int, int], parts: Parts) -> int:
        present = numbers(parts, PRESENT)
        if self.client not in present or len(present) < self.wanted:
            raise UnalikeError(
                f"{len(present)} clients are to take part in a sum; this client wants to be one of {self.wanted}."
            )
        return len(present)

    def hidden(
        self, when: tuple[int, int], asked: bytes, parts: Parts, slots: Sequence[Slot], codes: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        clients, present = self.clients(when, parts), numbers(parts, PRESENT)
        name = sum_label(self.run, when, octets(parts, ATTEMPT, KEY), asked, present, self.least, slots)
        reply = Reply.new(self.client, self.settled.identity)
        self._when, self._answered = when, Answered(name, reply, frozenset(present), [*slots])
        found = tags.tags(self.key.secret, name, reply.to_bytes(), _tagged(slots, codes))
        made = {f"{TAG}{place}": torch.tensor([value]) for place, value in enumerate(found)}
        vectors = gathered(slots, clients, {**codes, **made})
        hidden = {f"{MASKED}{bits}": self._encrypted(some, bits, clients) for bits, some in vectors.items()}
        return {**hidden, WHO: as_bytes(reply.to_bytes())}

    def reply_from(self, when: tuple[int, int], state: bytes) -> None:
        """Refuse another state as in every hidden sum, also after this client was started again."""
        if not self.settled.is_same_state((self.run, *when), state):
            raise self.settled.refusal(
                f"The server asks for round {when[0] + 1} again, from another state of this client, or from other "
                "samples, than before: refused."
            )

    def _encrypted(self, codes: np.ndarray, bits: int, clients: int) -> Tensor:
        return as_bytes(self.opener.encrypted(codes, Vector(len(codes), bits - ring.carry_bits(clients), clients)))

    def _vote(self, header: dict[str, Any], parts: Parts) -> dict[str, Tensor]:
        """Vote for a list of replies, for one in this exchange. A client that was started again since it replied can
        vote too: the record is on its disk, and whoever opens the sum sees that the reply is its own."""
        when, came = (whole(header, "round"), whole(header, "exchange")), _replies(parts)
        name = octets(parts, "label", KEY)
        if self.settled.identity not in {reply.identity for reply in came} or len(came) < self.wanted:
            raise _impossible()
        statement = self._settle(when, name, came)
        return {"vote": as_bytes(votes.vote(self.key.secret, statement, self.settled.identity))}

    def _settle(self, when: tuple[int, int], name: bytes, came: Sequence[Reply]) -> bytes:
        """Record that this client agrees to a sum; return what it votes for."""
        round, exchange = self._exchange(when)
        about = hashlib.sha256(repr(sorted(self._centers.items())).encode()).digest() if self._centers else b""
        self.settled.settle((self.run, round, exchange), name, came, about)
        return votes.statement(self.run, round, exchange, name + about, [reply.to_bytes() for reply in came])

    def _open(self, header: dict[str, Any], parts: Parts) -> dict[str, Tensor]:
        """Open the sum of those who came, if enough of them have voted for it."""
        when, came, answered = (whole(header, "round"), whole(header, "exchange")), _replies(parts), self._answered
        if answered is None or self._when != when:
            raise UnalikeError(
                f"This client has sent no reply of round {when[0] + 1}, exchange {when[1]}, since it was started: it "
                "opens no sum of it."
            )
        who = [reply.client for reply in came]
        if not answered.present >= {*who} or answered.reply not in came or len(came) < self.wanted:
            raise _impossible()
        if self._wrong.get(when, 0) >= TRIES:
            raise UnalikeError(
                "The server has sent sums that are none: this client opens nothing more of this exchange."
            )
        self._check_votes(self._settle(when, answered.label, came), came, parts)
        sums = self._sums_of(answered, parts, came)
        self._open_once(reply.identity for reply in came)
        lost = len(answered.present) - len(came)
        self._say_opened(when, len(came), lost)
        return {
            f"{MASKED}{bits}": torch.from_numpy(ring.pack(ring.residues(some, bits), bits))
            for bits, some in sums.items()
        }

    def _check_votes(self, statement: bytes, came: Sequence[Reply], parts: Parts) -> None:
        """Refuse a sum for which too few of the clients in it have voted."""
        given = dict(zip((reply.identity for reply in came), rows(parts, "votes", len(came), KEY), strict=True))
        found, needed = votes.counted(self.key.secret, statement, given), votes.needed(len(came), self.least)
        if found < needed:
            raise UnalikeError(
                f"{found} of {len(came)} clients have agreed to this sum, and {needed} must: nothing is opened."
            )

    def _sums_of(self, answered: Answered, parts: Parts, came: Sequence[Reply]) -> dict[int, np.ndarray]:
        """Return the sums in the ciphertexts, without their tags; refuse what is not the sum of those who came.

        All refusals are alike, and take the same work: a server that changes ciphertexts must not learn from them what
        is inside."""
        try:
            sums, codes = self._opened(answered, parts, len(came))
        except Exception:  # whatever a library says of such bytes
            sums, codes = {}, {slot.name: torch.zeros(slot.count, dtype=torch.int64) for slot in answered.slots}
        found = tags.reduced([int(codes[f"{TAG}{place}"]) for place in range(tags.COUNT)])
        replies = [reply.to_bytes() for reply in came]
        expected = tags.of_sum(self.key.secret, answered.label, replies, _tagged(answered.slots, codes))
        if not sums or found != expected:
            self._wrong[self._when] = self._wrong.get(self._when, 0) + 1
            raise UnalikeError(
                f"What the server wants opened is not the sum of the replies of {len(came)} clients to what this "
                "client was asked: nothing is opened."
            )
        for place in range(tags.COUNT):
            codes[f"{TAG}{place}"].zero_()  # views of the sums
        return sums

    def _opened(self, answered: Answered, parts: Parts, summed: int) -> tuple[dict[int, np.ndarray], dict[str, Tensor]]:
        """Return what is in the ciphertexts, by modulus and by slot."""
        clients, sums = len(answered.present), dict[int, np.ndarray]()
        for bits, some in grouped(answered.slots, clients).items():
            vector = Vector(sum(slot.count for slot in some), bits - ring.carry_bits(clients), clients)
            ciphers = self.opener.read(_octets(parts, f"{MASKED}{bits}"), vector)
            sums[bits] = self.opener.opened(ciphers, vector, summed)
        return sums, _by_slot(answered.slots, clients, sums)


def hiding_client(
    run: str,
    client: int,
    stage: Summed,
    key: CommonKey | None,
    shares: int = 0,
    signer: Signer | None = None,
    say: Callable[[str], None] = lambda text: None,
    settled: Callable[[], Settled] = Settled,
) -> HidingClient:
    """Return a client's part in the sums that a stage makes. Where it encrypts, key: that clients have in common;
    settled: returns the client's record of sums."""
    if isinstance(stage, SecureSum):
        return SecureClient(run, client, stage, shares, signer, say)
    assert isinstance(stage, Encrypted)
    if key is None:
        raise UnalikeError(
            f"The run's channel has {stage}, for which all clients have a common key: give it (--common); "
            "`unalike keys common FILE` makes one."
        )
    return EncryptedClient(run, client, stage, key, shares, say, settled())


def new_common_key(stage: Summed) -> CommonKey | None:
    """Return a new key for the clients of a stage that encrypts; None for any other."""
    return CommonKey.new(stage.scheme, stage.key_bits) if isinstance(stage, Encrypted) else None


def sum_label(
    run: str,
    when: tuple[int, int],
    attempt: bytes,
    asked: bytes,
    present: Sequence[int],
    least: int,
    slots: Sequence[Slot],
) -> bytes:
    """Return the label of an encrypted sum: it stands for what all its clients must have been told alike, its rules,
    and what is in it. asked: as `bound` returns it."""
    layout = json.dumps([[*present], least, [[slot.name, slot.count, slot.bits] for slot in slots]]).encode()
    return hashlib.sha256(label(run, *when, attempt.hex()) + asked + b"\0" + layout).digest()


def _replies(parts: Parts) -> list[Reply]:
    """Return the list of replies in a message."""
    value = parts.get("came")
    count = 0 if value is None or not value.dim() else len(value)
    if not 0 < count <= MOST:
        raise _impossible()
    return votes.listed(rows(parts, "came", count, ROW))


def _impossible() -> UnalikeError:
    return UnalikeError("The server's list of those who came cannot be: nothing is opened.")


def _tagged(slots: Sequence[Slot], codes: Mapping[str, Tensor]) -> list[np.ndarray]:
    """Return the codes that tags are made of: all but the tags."""
    names = [slot.name for slot in slots if not slot.name.startswith(TAG)]
    return [codes[name].reshape(-1).cpu().numpy() for name in names if name in codes]


def _by_slot(slots: Sequence[Slot], clients: int, sums: Mapping[int, np.ndarray]) -> dict[str, Tensor]:
    out: dict[str, Tensor] = {}
    for bits, some in grouped(slots, clients).items():
        parts = torch.from_numpy(sums[bits]).split([slot.count for slot in some])
        out |= dict(zip((slot.name for slot in some), parts, strict=True))
    return out


def _octets(parts: Parts, name: str) -> bytes:
    value = parts.get(name)
    if value is None or value.dtype != torch.uint8 or value.dim() != 1:
        raise UnalikeError(f"A message about a sum must have bytes of {name!r}.")
    return value.numpy().tobytes()
