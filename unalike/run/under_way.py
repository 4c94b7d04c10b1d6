"""Clients under way in an asynchronous run: who has begun with which version of the model, and when each arrives.

Nothing is computed early: a reply is computed when it arrives, from the message of its version. So a run costs what
arrives, however many are under way; what is kept are the messages of versions that somebody still works with.
"""

from __future__ import annotations

import heapq
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from unalike import draws
from unalike.contract import Call
from unalike.errors import UnalikeError
from unalike.run.clock import Devices

KEPT = "_under_way "  # prefix of its names among the server's values of a checkpoint
TRIES = 16  # draws among all clients before those that are free are counted out
PATIENCE = 10_000  # looks at a clock by which nobody is there, and clients that vanish, in succession


class Piece(NamedTuple):
    """A client's work: when it ends, its number, who does it, from which version, and whether it is lost."""

    end: float
    number: int
    client: int
    version: int
    lost: bool


class UnderWay:
    """Those at work, at most `places` of them.

    A client that has answered rests until the server's next version, so that it begins with each version once. first:
    gives the clients of a version that everybody begins together; listed: these are the only ones that may begin.
    """

    def __init__(
        self, devices: Devices, seed: int, places: int, first: Callable[[int], np.ndarray], listed: bool = False
    ):
        self.devices, self.seed, self.places, self.first, self.listed = devices, seed, places, first, listed
        self.time, self.number, self.lost = 0.0, 0, 0
        self.heap: list[Piece] = []
        self.busy: set[int] = set()
        self.resting: set[int] = set()
        self.version = -1  # the present one
        self.calls: dict[int, Call] = {}  # by version
        self._users: dict[int, int] = {}  # how many work with a version
        self._seconds: Callable[[np.ndarray], np.ndarray] = lambda ids: np.zeros(len(ids))

    # ---- beginning

    def start(self, call: Call, seconds: Callable[[np.ndarray], np.ndarray]) -> int:
        """Let free clients begin with a version; return how many. seconds: how long clients take for it."""
        if call.round in self.calls:
            raise UnalikeError("cohort.start was called twice in a round: start one function, and wait for arrivals.")
        self.calls[call.round], self._seconds, self.version = call, seconds, call.round
        self._forget()
        self.resting.clear()
        before = self.number
        self._begin(self._chosen(call.round), call.round)
        return self.number - before

    def _chosen(self, version: int) -> np.ndarray:
        if self.heap and not self.listed:
            return self._drawn(self.places - len(self.heap))
        ids = self.first(version)
        free = [client for client in ids.tolist() if client not in self.busy]
        return np.array(free[: self.places - len(self.heap)], dtype=np.int64)

    def _drawn(self, count: int) -> np.ndarray:
        """Return this many clients that are free and present, or fewer if there are not enough."""
        if count <= 0:
            return np.empty(0, dtype=np.int64)
        rng, found = draws.generator(self.seed, "arrivals", self.number), dict[int, None]()
        for _ in range(TRIES):
            some = self._free(rng.integers(self.devices.population, size=2 * count + 8))
            found |= dict.fromkeys(some.tolist())
            if len(found) >= count:
                break
        else:
            found |= dict.fromkeys(self._free(rng.permutation(self.devices.population)).tolist())
        return np.sort(np.array([*found][:count], dtype=np.int64))

    def _free(self, ids: np.ndarray) -> np.ndarray:
        free = np.array([k not in self.busy and k not in self.resting for k in ids.tolist()], dtype=bool)
        ids = ids[free]
        return ids[self.devices.there(ids, self.time)]

    def _begin(self, ids: np.ndarray, version: int) -> None:
        seconds = self._seconds(ids)
        lost, share = self.devices.vanishing(ids, self.number)  # anew, each time that it begins
        ends = self.time + np.where(lost, share * seconds, seconds)
        for end, client, gone in zip(ends.tolist(), ids.tolist(), lost.tolist(), strict=True):
            heapq.heappush(self.heap, Piece(end, self.number, client, version, gone))
            self.number += 1
        self.busy.update(ids.tolist())
        self._users[version] = self._users.get(version, 0) + len(ids)

    # ---- arriving

    def arrived(self, count: int) -> list[tuple[Call, np.ndarray]]:
        """Let time pass until so many have arrived, fewer where no more can; return the calls that they answer, oldest
        first, with the clients of each in ascending order."""
        self._check(count)
        most = PATIENCE + 2 * self.places  # all at work may vanish, some of them twice, before the first arrives
        got, patience = list[Piece](), most
        while len(got) < count and patience:
            if not self.heap or self.heap[0].end > self.time:
                self._refill()
            if self.heap:
                piece = self._next()
                got += [] if piece.lost else [piece]
                patience = patience - 1 if piece.lost else most
            elif self.devices.pause:
                self.time += self.devices.pause - self.time % self.devices.pause
                patience -= 1
            else:
                break
        if not got:
            raise UnalikeError("Nobody arrives: no client is there, or all vanish (clock: available, dropout).")
        return self._by_version(got)

    def _check(self, count: int) -> None:
        if self.version not in self.calls:
            raise UnalikeError("cohort.arrived was called before cohort.start: nobody is under way.")
        if count > (everybody := self.devices.population):
            raise UnalikeError(
                f"A step of the server waits for {count} arrivals, and there are {everybody} clients, each of which "
                f"arrives once in a step: let it wait for {everybody} at most (buffer, asynchronous)."
            )

    def _refill(self) -> None:
        """Before time goes on, let others begin in the places of those that have arrived."""
        if not self.listed and len(self.heap) < self.places:
            self._begin(self._drawn(self.places - len(self.heap)), self.version)

    def _next(self) -> Piece:
        piece = heapq.heappop(self.heap)
        self.time = max(self.time, piece.end)
        self._leave(piece)
        return piece

    def _leave(self, piece: Piece) -> None:
        self.busy.discard(piece.client)
        if not piece.lost:  # who has vanished may begin again
            self.resting.add(piece.client)
        self._users[piece.version] -= 1
        self.lost += piece.lost

    def _by_version(self, got: Sequence[Piece]) -> list[tuple[Call, np.ndarray]]:
        versions = sorted({piece.version for piece in got})
        found = [(v, np.sort([piece.client for piece in got if piece.version == v])) for v in versions]
        out = [(self.calls[version], ids) for version, ids in found]
        self._forget()
        return out

    def _forget(self) -> None:
        """Keep the messages of the present version, and of those that somebody works with."""
        self._users = {version: users for version, users in self._users.items() if users}
        self.calls = {v: call for v, call in self.calls.items() if v == self.version or v in self._users}

    # ---- a checkpoint

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds, by names that no method's state has."""
        pieces, calls = sorted(self.heap), {v: call for v, call in self.calls.items() if self._users.get(v)}
        whole = [[p.number, p.client, p.version, p.lost] for p in pieces]
        out: dict[str, Any] = {
            "ends": torch.tensor([p.end for p in pieces], dtype=torch.float64),
            "pieces": torch.tensor(whole, dtype=torch.int64).reshape(-1, 4),
            "numbers": [self.time, self.number, self.lost],
            "versions": [*calls],
            "functions": [str(call.function) for call in calls.values()],
            "names": sorted({name for call in calls.values() for name in call.shared}),
            "told": sorted({name for call in calls.values() for name in call.told}),
        }
        out |= {f"message {name}": [c.shared[name] for c in calls.values()] for name in out["names"]}
        out |= {f"told {name}": [float(c.told[name]) for c in calls.values()] for name in out["told"]}
        return {KEPT + name: value for name, value in out.items()}

    def restore(self, values: dict[str, Any]) -> None:
        """Take what a checkpoint holds out of the server's values."""
        kept = {name.removeprefix(KEPT): values.pop(name) for name in [*values] if name.startswith(KEPT)}
        if not kept:
            return
        messages: dict[str, list[Tensor]] = {name: kept[f"message {name}"] for name in kept["names"]}
        for k, (version, function) in enumerate(zip(kept["versions"], kept["functions"], strict=True)):
            shared = {name: rows[k] for name, rows in messages.items()}
            told = {name: kept[f"told {name}"][k] for name in kept.get("told", ())}
            self.calls[version] = Call(function, shared, {}, version, 0, told=told)
        for end, (number, client, version, lost) in zip(kept["ends"].tolist(), kept["pieces"].tolist(), strict=True):
            self.heap.append(Piece(end, number, client, version, bool(lost)))
            self.busy.add(client)
            self._users[version] = self._users.get(version, 0) + 1
        self.time, self.number, self.lost = float(kept["numbers"][0]), *map(int, kept["numbers"][1:])


class Replay(UnderWay):
    """Arrivals as they are given: of every server step, who arrives with which version."""

    def __init__(self, devices: Devices, steps: Sequence[Sequence[tuple[int, int]]]):
        super().__init__(devices, 0, 0, lambda version: np.empty(0, dtype=np.int64), listed=True)
        self.steps = [self._checked(now, step) for now, step in enumerate(steps)]

    def _checked(self, now: int, step: Any) -> list[tuple[int, int]]:
        """Return one step's arrivals; refuse those that cannot be."""
        try:
            found = [(operator.index(client), operator.index(version)) for client, version in step]
        except (TypeError, ValueError):
            found = []
        most = self.devices.population
        if not found or not all(0 <= k < most and 0 <= version <= now for k, version in found):
            raise UnalikeError(
                f"asynchronous: step {now + 1} must list who arrives, (client below {most}, version of at most {now}) "
                f"each; got {step!r}."
            )
        if len({*found}) < len(found):
            raise UnalikeError(f"asynchronous: in step {now + 1} a client arrives twice with one version: {step!r}.")
        return found

    def start(self, call: Call, seconds: Callable[[np.ndarray], np.ndarray]) -> int:
        self.calls[call.round], self.version = call, call.round
        # (counted anew, also for versions that a checkpoint held)
        self._users = Counter(version for step in self.steps[call.round :] for _, version in step)
        self._forget()
        return self._users.get(call.round, 0)

    def arrived(self, count: int) -> list[tuple[Call, np.ndarray]]:
        now = self.version
        if now >= len(self.steps):
            raise UnalikeError(
                f"asynchronous lists {len(self.steps)} steps, and this is step {now + 1}: list them all."
            )
        self.time += 1.0
        return self._by_version([Piece(self.time, 0, client, version, False) for client, version in self.steps[now]])


class Posting(Protocol):
    """An engine whose clients are elsewhere and answer when they can (`unalike.engines.flower.Flower`)."""

    def post(self, call: Call, ids: np.ndarray) -> np.ndarray: ...
    def arrival(self) -> tuple[int, bool] | None: ...


class BetweenMachines(UnderWay):
    """Real clients: when they arrive is theirs to say. After a restart they are asked again for what they were doing,
    and answer with what they have kept."""

    def __init__(self, *given: Any, engine: Posting):
        super().__init__(*given)
        self.engine = engine
        self._asked = True  # whether those under way have been sent their calls by this process

    def restore(self, values: dict[str, Any]) -> None:
        super().restore(values)
        self._asked = not self.heap

    def _chosen(self, version: int) -> np.ndarray:
        if not self._asked:
            for call, ids in [(self.calls[v], self._at_work(v)) for v in sorted({p.version for p in self.heap})]:
                self._left_out({*ids.tolist()} - {*self.engine.post(call, ids).tolist()})
            self._asked = True
        return super()._chosen(version)

    def _left_out(self, absent: set[int]) -> None:
        """Let the work of clients be lost that are no longer there to be asked for it."""
        for piece in [one for one in self.heap if one.client in absent]:
            self._take_out(piece)
            self._leave(piece._replace(lost=True))

    def _leave(self, piece: Piece) -> None:
        super()._leave(piece)
        self.resting.add(piece.client)  # a lost answer is not asked for twice

    def _take_out(self, piece: Piece) -> None:
        self.heap.remove(piece)
        heapq.heapify(self.heap)

    def _at_work(self, version: int) -> np.ndarray:
        return np.sort([piece.client for piece in self.heap if piece.version == version])

    def _begin(self, ids: np.ndarray, version: int) -> None:
        if len(ids):
            ids = self.engine.post(self.calls[version], ids)
        super()._begin(ids, version)

    def arrived(self, count: int) -> list[tuple[Call, np.ndarray]]:
        self._check(count)
        got = list[Piece]()
        while len(got) < count and (found := self.engine.arrival()) is not None:
            client, of_use = found
            piece = next(one for one in self.heap if one.client == client)
            self._take_out(piece)
            self._leave(piece._replace(lost=not of_use))
            got += [piece] if of_use else []
            if len(got) < count:
                self._refill()
        if not got:
            raise UnalikeError("No client gave an answer of use; see that they are there, then go on (--resume).")
        return self._by_version(got)
