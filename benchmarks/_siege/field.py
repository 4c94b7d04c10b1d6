"""The field of a siege: six small clients and a server in one process, and runs in which some messages are changed."""

import contextlib
import dataclasses as dc
import json
import os
import random
import signal
import tempfile
from pathlib import Path

import torch
from _siege.mutations import mutated

import unalike as ua
from unalike.data.preparation import Recipe
from unalike.messages import wire
from unalike.network import server
from unalike.network.client import Client
from unalike.network.limits import Bound, Limits
from unalike.network.link import Lost
from unalike.network.policy import Policy

SITES = 6
LIMITS = Limits(least=SITES // 2, norm=Bound(times=20.0), tries=0)
HANG = 60  # seconds after which a message counts as one that hangs

# method, channel, and what else the run has
SCENES = {
    "fedavg": {"method": "fedavg"},
    "scaffold": {"method": "scaffold"},
    "two exchanges": {"method": "rfedavg-plus"},
    "sparse": {"method": "fedavg", "channel": "clip:1.0,topk:0.2"},
    "quantised": {"method": "fedavg", "channel": "clip:1.0,quantise:8"},
    "sealed": {"method": "def-kt", "sealed": True},
    "prepared": {"method": "fedavg", "prepare": True},
}


def samples(k: int) -> tuple:
    draw = torch.Generator().manual_seed(100 + k)
    n = 8 + 2 * k
    return torch.randn(n, 5, generator=draw), torch.arange(n) % 3


def tables(scene: str, rounds: int, evaluate: bool) -> dict:
    about = SCENES[scene]
    run = {"rounds": rounds, "device": "cpu", "evaluate_clients": "all" if evaluate else "none"}
    return {
        "model": {"name": "mlp", "hidden": [4]}, "method": {"name": about["method"]},
        "local": {"epochs": 1, "batch_size": 8, "lr": 0.1},
        "run": run | ({"channel": about["channel"]} if "channel" in about else {}),
    }  # fmt: skip


class Field:
    """Clients of a scene, their folders and keys; gone at the end."""

    def __init__(self, scene: str):
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # waiting for a disk proves nothing here
        self.scene, self._home = scene, tempfile.TemporaryDirectory(prefix="siege-", dir=memory)
        self.folder = Path(self._home.name)
        self._count = 0
        self.keys = {f"site-{k}": f"ecdsa-sha2-nistp384 {k} somebody".encode() for k in range(SITES)}
        if SCENES[scene].get("sealed"):
            self.keys = {f"site-{k}": self._make_key(k) for k in range(SITES)}

    def _make_key(self, k: int) -> bytes:
        from unalike.network import keys

        return keys.make_node(self.folder / f"site-{k}").read_bytes()

    def people(self) -> list[Client]:
        """Return the clients that have kept nothing yet."""
        self._count += 1
        return [self.person(k, self.folder / f"{self._count}-{k}") for k in range(SITES)]

    def person(self, k: int, folder: Path) -> Client:
        ring = None
        if SCENES[self.scene].get("sealed"):
            from unalike.network.seal import Keyring

            ring = Keyring(self.folder / f"site-{k}", None)
        data = ua.Federation.from_arrays([samples(k)], client_tests=[samples(k + 50)])
        return Client(data, folder, Policy.open(methods=tuple(ua.METHODS), repeatable=True), sealer=ring)

    def close(self) -> None:
        self._home.cleanup()


@dc.dataclass
class Shot:
    """One changed message. fate: "refused", "harmless" (it says the same), "lie" (another proper answer)."""

    client: int
    change: str
    before: bytes
    after: bytes
    fate: str = ""
    reason: str = ""

    def settle(self) -> None:
        if self.fate == "refused":
            return
        with contextlib.suppress(ua.UnalikeError):
            self.fate = "harmless" if same(self.before, self.after) else "lie"


def same(one: bytes, two: bytes) -> bool:
    """Return whether two messages say the same."""
    (a, s), (b, t) = wire.decode(one), wire.decode(two)
    if json.dumps(a, sort_keys=True) != json.dumps(b, sort_keys=True) or s.keys() != t.keys():
        return False
    return all(_equal(s[n], t[n]) for n in s)


def transplanted(before: bytes, after: bytes, now: bytes) -> bytes:
    """Return the change from `before` to `after` made of another valid message of the same kind: keys and nonces of
    sealed rows are new in every run, and all that was not changed is this run's own."""
    (a, s), (b, t), (c, u) = wire.decode(before), wire.decode(after), wire.decode(now)
    header = _graft(a, b, c)
    header.pop("format")
    kept = {name: u[name] if name in s and name in u and _equal(s[name], t[name]) else t[name] for name in t}
    return wire.encode(header, kept)


def _graft(before, after, now):
    if json.dumps(before) == json.dumps(after):
        return now
    if isinstance(after, dict) and isinstance(before, dict) and isinstance(now, dict):
        return {k: _graft(before[k], v, now[k]) if k in before and k in now else v for k, v in after.items()}
    if isinstance(after, list) and isinstance(before, list) and isinstance(now, list) and len(before) == len(after):
        return [_graft(*three) for three in zip(before, after, now, strict=True)]
    return after


def _equal(one: torch.Tensor, two: torch.Tensor) -> bool:
    return one.dtype == two.dtype and torch.equal(one, two)


class Besieged:
    """A link of function calls, in which the answers of some clients are changed in every exchange that is aimed at.

    kinds: of requests whose answers are changed; script: instead, what became of the shots of an earlier run: refused
    answers are lost, others come as they were read.
    """

    def __init__(self, people, draw: random.Random | None, kinds=(), script: dict | None = None, most: int = 1 << 30):
        self.people, self.draw, self.kinds, self.script, self.most = people, draw, kinds, script, most
        self.shots: dict[tuple, Shot] = {}
        self.last: Shot | None = None
        self.earlier: list[bytes] = []
        self.number = 0

    def online(self):
        return set(range(len(self.people)))

    def close(self, done):
        pass

    def exchange(self, requests, seconds):
        self.number += 1
        aims = self._aim(requests)
        for k, parts in requests.items():
            answer = self.people[k].answer(parts)
            place = (self.number, k)
            self.last = None
            if self.script is not None:
                yield from self._as_written(place, k, answer)
            elif k in aims:
                yield from self._changed(place, k, answer)
            else:
                self.earlier = [*self.earlier[-30:], answer]
                yield k, answer
        self.last = None

    def _aim(self, requests):
        """Return the clients whose answers are changed: as many as may fail without an end of the run."""
        if self.script is not None or self.draw is None or len(self.shots) >= self.most:
            return []
        kind = wire.decode(next(iter(requests.values()))[0])[0].get("kind")
        few = 1 if kind in ("prepare", "hello", "plan") else max(1, len(requests) // 2)  # whom it costs all rounds
        return self.draw.sample(sorted(requests), few) if kind in self.kinds else []

    def _changed(self, place, k, answer):
        if self.earlier and self.draw.random() < 0.06:
            name, other = "replayed", self.draw.choice(self.earlier)
        else:
            name, other = mutated(answer, self.draw)
        self.last = self.shots[place] = Shot(k, name, answer, other)
        yield k, other
        self.last = None
        if self.draw.random() < 0.15:  # and once more, after it was taken or refused
            yield k, other

    def _as_written(self, place, k, answer):
        shot = self.script.get(place)
        if shot is None:
            yield k, answer
        elif shot.fate == "refused":
            yield k, Lost("refused in the other run")
        else:
            yield k, transplanted(shot.before, shot.after, answer)

    def hear(self, text: str) -> None:
        """Hear what the server says, and write down a refusal."""
        late = [shot for shot in self.shots.values() if text.startswith(f"site-{shot.client} does not take part now")]
        if self.last is not None and text.startswith(f"site-{self.last.client} is left out"):
            self.last.fate, self.last.reason = "refused", text
        for shot in late[-1:]:  # of greetings and plans: it is said when all have answered
            shot.fate, shot.reason = "refused", text


def run(field: Field, link: Besieged, rounds: int, evaluate: bool):
    """Return the run of a scene over a link."""
    prepare = SCENES[field.scene].get("prepare")
    recipe = Recipe.of(None, 5) if prepare else None
    return server.run(
        tables(field.scene, rounds, evaluate), link, field.keys, classes=3, deadline=5.0, say=link.hear, limits=LIMITS,
        recipe=recipe,
    )  # fmt: skip


class Hang(Exception):
    """A message that was not done with in time."""


@contextlib.contextmanager
def watched(seconds: int = HANG):
    """Turn a block that does not end into `Hang`."""

    def late(*_):
        raise Hang(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def server_siege(scene: str, kinds: tuple, rounds: int, seed: int, most: int = 1 << 30) -> tuple[list[Shot], str]:
    """Run a scene with changed answers, and again with what became of them; return the shots, and what is wrong
    (nothing, if the two runs are the same to the bit)."""
    field, draw = Field(scene), random.Random(seed)
    evaluate = "evaluate" in kinds
    first = Besieged(field.people(), draw, kinds, most=most)
    try:
        with watched():
            one = run(field, first, rounds, evaluate)
        shots = [*first.shots.values()]
        for shot in shots:
            shot.settle()
        unread = [shot for shot in shots if not shot.fate]
        if unread:
            return shots, f"an answer was taken that cannot be read: {unread[0].change}"
        second = Besieged(field.people(), None, script=first.shots)
        two = run(field, second, rounds, evaluate)
        return shots, difference(one, two)
    except Exception as error:  # any: that is what is looked for
        return [*first.shots.values()], f"{type(error).__name__}: {error}"
    finally:
        field.close()


def difference(one, two) -> str:
    """Return the first thing in which two runs differ."""
    for name, value in one.server.values.items():
        other = two.server.values[name]
        if isinstance(value, torch.Tensor) and not torch.equal(value, other):
            return f"the server's {name} is not that of the run without these answers"
        if isinstance(value, torch.Tensor) and not torch.isfinite(value).all():
            return f"the server's {name} is not finite"
    mine, yours = timeless(one.history), timeless(two.history)
    return "" if mine == yours else f"the lines differ: {mine} and {yours}"


def timeless(lines: list[dict]) -> str:
    return json.dumps([{k: v for k, v in line.items() if not k.startswith("seconds")} for line in lines])


# ---------------------------------------------------------------- the client's end


class Recorder(Besieged):
    """Keeps all requests to one client."""

    def __init__(self, people, whose=0):
        super().__init__(people, None)
        self.whose, self.conversation = whose, []

    def exchange(self, requests, seconds):
        if self.whose in requests:
            self.conversation.append(tuple(requests[self.whose]))
        yield from super().exchange(requests, seconds)


def client_siege(scene: str, count: int, seed: int) -> tuple[list[Shot], list[str]]:
    """Send changed requests to a client, each before the valid one; return the shots and the faults found."""
    field, draw = Field(scene), random.Random(seed)
    link = Recorder(field.people())
    shots, faults = [], []
    try:
        run(field, link, 2, evaluate=True)
        conversation = link.conversation
        wanted = _answers(field.person(0, field.folder / "wanted"), conversation)
        number = 0
        while len(shots) < count:
            number += 1
            person = field.person(0, field.folder / f"besieged-{number}")
            for k, parts in enumerate(conversation):
                if len(shots) < count:
                    with watched():
                        shots.append(_shoot(person, parts, conversation, draw, faults))
                    if shots[-1].fate == "answered" and _begins(shots[-1].after) and not _begins(parts[0]):
                        break  # it was told to begin the round again, by another of the method's functions
                answer = person.answer(parts)
                if _refusal(answer):
                    break  # it says why it cannot: that costs this client its rounds
                if not (_alike if SCENES[scene].get("sealed") else same)(answer, wanted[k]):
                    faults.append(f"after {shots[-1].change} the client answers otherwise, to request {k}")
            person.close()
    except Exception as error:
        faults.append(f"{type(error).__name__}: {error}")
    finally:
        field.close()
    return shots, faults


def _answers(person: Client, conversation) -> list[bytes]:
    return [person.answer(parts) for parts in conversation]


def _begins(part: bytes) -> bool:
    """Return whether a request, of which this is the shared part, begins a round."""
    header, _ = wire.decode(part)
    return header.get("kind") == "request" and header.get("exchange") == 0


def _alike(one: bytes, two: bytes) -> bool:
    """Return whether two answers are of one form: sealed rows and keys are new each time."""
    (a, s), (b, t) = wire.decode(one), wire.decode(two)
    return a.keys() == b.keys() and {n: v.shape for n, v in s.items()} == {n: v.shape for n, v in t.items()}


def _refusal(answer: bytes) -> str:
    header, _ = wire.decode(answer)
    return str(header.get("reason")) if header["kind"] == "error" else ""


def _shoot(person: Client, parts, conversation, draw: random.Random, faults: list[str]) -> Shot:
    """Send a client a changed request, and look at its answer."""
    name, changed = _changed_parts(parts, conversation, draw)
    answer = person.answer(changed)
    reason = _refusal(answer)
    if "a fault inside the client" in reason:
        faults.append(f"{name}: {reason}")
    return Shot(0, name, parts[0], changed[0] if changed else b"", "refused" if reason else "answered", reason)


def _changed_parts(parts, conversation, draw: random.Random):
    """Another request: one part changed, parts in another order, one twice or not at all, or one of another time."""
    kind = draw.random()
    if kind < 0.03:
        return "no parts", ()
    if kind < 0.06:
        return "a part twice", (*parts, parts[0])
    if kind < 0.09:
        return "a part missing", parts[1:] if draw.random() < 0.5 else parts[:1]
    if kind < 0.12:
        other = draw.choice(conversation)
        return "parts of two requests", (parts[0], *other[1:])
    if kind < 0.15:
        return "turned round", parts[::-1]
    k = draw.randrange(len(parts))
    name, other = mutated(parts[k], draw)
    return name, (*parts[:k], other, *parts[k + 1 :])
