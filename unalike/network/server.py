"""The server of a real federation: it finds its clients, sends the plan, and then runs as a simulation does.

The server has no data. The clients tell how many samples they have and of what kind; a `RemoteFederation` of these
facts takes the place of a simulation's federation.
"""

from __future__ import annotations

import contextlib
import dataclasses as dc
import hashlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import unalike
from unalike import config
from unalike.channel.stages import Summed
from unalike.client import ClientStore
from unalike.client.preparing import NoSums, prepared_together
from unalike.client.secure import plan_digest
from unalike.data import SPLITS, Federation, RemoteFederation
from unalike.data.joined import JoinedFederation
from unalike.data.preparation import Preparation, Recipe
from unalike.data.public import Public, public_hash
from unalike.data.schema import Schema
from unalike.errors import UnalikeError
from unalike.messages import wire
from unalike.messages.check import unreadable
from unalike.network.attendance import Attendance
from unalike.network.limits import Limits
from unalike.network.link import Lost, ServerLink
from unalike.network.plans import LACKS_PUBLIC, OTHER_PUBLIC, network_digest
from unalike.network.policy import PLANNED, PLANNED_RUN, digest, with_files
from unalike.network.preparing import beginning, prepared_in_sums
from unalike.network.profile import Profile, Times
from unalike.network.roster import KeepRoster, Roster
from unalike.network.seal import PublicKeys
from unalike.network.status_file import StatusFile
from unalike.run.callbacks import Callback
from unalike.run.deploy import DEPLOYABLE
from unalike.run.run import Run
from unalike.text import named, printable

# more splits of a client's samples are a mistake, or an attack
MOST_SPLITS = 64
# if enough clients are there and no further one came for so many seconds, the federation begins
GRACE = 5.0
# seconds for each of the two messages to a late client
GREETING = 20.0
# seconds for a message whose answer changes nothing
NEWS = 5.0
HELLO = {"kind": "hello", "version": unalike.__version__}


@dc.dataclass(frozen=True)
class Own:
    """The server's own sets and settings for clients whose samples are of one kind.

    test: (x, y) to evaluate the global model on; public: (x, y or None) that every client has too; shipped: its bytes
    count; recipe: how features are prepared, or just "standard" or "client"; schema: what the features are.
    """

    test: tuple[Any, Any] | None = None
    public: Public | None = None
    shipped: bool = False
    recipe: Recipe | str | None = None
    schema: Schema | None = None

    def recipe_for(self, data: Federation) -> Recipe | None:
        """Return how these features are prepared."""
        if not isinstance(self.recipe, str):
            return self.recipe
        return Recipe.of(self.schema, data.train.x[:1].numel(), self.recipe, target=data.classes is None)


class Clients:
    """The clients of a run, as its engine calls them. A client that does not answer by the deadline is left out."""

    run, terms, keys = "", b"", PublicKeys()
    # hashes of the clients' public sets as they were read, before preparation
    public_sets: Sequence[str | None] = ()

    def __init__(
        self,
        link: ServerLink,
        keys: Mapping[str, bytes],
        deadline: float,
        say: Callable[[str], None] = lambda text: None,
        limits: Limits | None = None,
        earlier: Roster | None = None,
    ):
        """earlier: what an earlier server of this run recorded about the clients."""
        self.link, self.names, self.deadline, self.say = link, list(keys), deadline, say
        self.public = [b" ".join(key.split()[:2]).decode("ascii", "replace") for key in keys.values()]
        self.limits, self.earlier = limits or Limits(), earlier
        self.needed = self.limits.needed(len(self.names))
        self.attendance = Attendance(self.names, self.limits.tries, say, link.online)
        self.times = Times()
        self.facts: dict[int, dict[str, Any]] = {}  # facts of the clients that have told them
        self._outbox: dict[int, Sequence[bytes]] = {}  # requests of an asynchronous run
        self._stream: Iterator[tuple[int, bytes | Lost]] | None = None
        self._patience, self._check = 600.0, lambda: None
        self._untold: dict[int, str] = {}  # why the server did without clients, for their owners
        # greetings by client: the schema depends on its kind of samples
        self._hellos: list[dict[str, Any]] = []
        self._plans: list[dict[str, Any]] = []
        # samples in each split of each client when the run began
        self._begun: list[dict[str, int]] = []
        # each client's kind of samples, if there are several
        self._whose: list[str] = []
        link.notice = self._notice  # type: ignore[attr-defined]
        link.times = self.times  # type: ignore[attr-defined]

    def _notice(self, client: int, text: str) -> None:
        self.say(f"{self.names[client]}: {printable(text)}")

    # ---- exchanges

    def ask(self, requests: Mapping[int, Sequence[bytes]]) -> Generator[tuple[int, bytes], None, None]:
        """Yield the answers of the clients that take part and are not set aside, as they come in time."""
        due = self.attendance.due(requests)
        return self._answers({k: parts for k, parts in requests.items() if k in due})

    def post(self, requests: Mapping[int, Sequence[bytes]]) -> set[int]:
        """Hand requests to clients that take part and are not set aside, whose answers `arrival` gives; return
        which."""
        due = self.attendance.due(requests)
        self._outbox |= {k: parts for k, parts in requests.items() if k in due}
        return due

    def arrival(self) -> tuple[int, bytes | None] | None:
        """Wait for the next answer to what was posted: (client, answer), without one where it is lost; None where
        nobody is at work."""
        if self._stream is None:
            stream = getattr(self.link, "stream", None)
            if stream is None:
                raise UnalikeError("This network carries no asynchronous runs: its link has no stream.")
            self._stream = stream(self._drained, self.deadline)
        client, answer = next(self._stream, (None, b""))
        if client is None:
            self._stream = None
            return None
        if isinstance(answer, Lost):
            self.refuse(client, answer)
            return client, None
        return client, answer

    def _drained(self) -> dict[int, Sequence[bytes]]:
        posted, self._outbox = self._outbox, {}
        return posted

    def _answers(self, requests: Mapping[int, Sequence[bytes]]) -> Generator[tuple[int, bytes], None, None]:
        """Yield the answers that come in time, as they come; report the clients that are left out."""
        silent, answers = set(requests), self.link.exchange(requests, self.deadline) if requests else iter(())
        while True:
            with self.times.spent("exchanges"):
                client, answer = next(answers, (None, b""))
            if client is None:
                break
            if client not in silent:
                # a second answer, or one that was not asked for
                continue
            silent.discard(client)
            if isinstance(answer, Lost):
                self.refuse(client, answer)
            else:
                yield client, answer
        for client in sorted(silent):
            self.refuse(client, f"no answer within {self.deadline:g} s")

    def sufficient(self, asked: int) -> int:
        """Return how many usable answers close an exchange with `asked` clients."""
        return self.limits.sufficient(asked)

    def accept(self, client: int, round: int) -> None:
        """Record that a client's answer is usable."""
        self.attendance.answered(client, round)

    def refuse(self, client: int, reason: str, blame: bool = True) -> None:
        """Report that nothing usable came from a client; blame: whether it counts as the client's failure."""
        said = type(reason)(printable(reason, 500)) if isinstance(reason, Lost) else printable(reason, 500)
        self.say(f"{self.names[client]} is left out of this exchange: {said}")
        if not isinstance(said, Lost):
            self._untold[client] = said
        if blame:
            self.attendance.failed(client, said)

    def again(self, reason: str, least: int, among: Collection[int]) -> None:
        """Report that a sum is tried again, and wait a while until enough of these clients are there."""
        self.say(f"{printable(reason, 500)} It is asked for again.")
        end = time.monotonic() + min(self.deadline, GREETING)
        while len(self.link.online() & {*among}) < least and time.monotonic() < end:
            self._check()
            time.sleep(0.1)

    def wait(self, seconds: float, check: Callable[[], None] = lambda: None) -> None:
        """Wait until all clients are there; if fewer are needed, until these are and no further one has come for a
        while."""
        self._patience, self._check = seconds, check
        end, seen, since = time.monotonic() + seconds, set[int](), time.monotonic()
        while missing := set(range(len(self.names))) - (there := self.link.online()):
            check()
            if there != seen:
                seen, since = there, time.monotonic()
            enough = len(there) >= self.needed and time.monotonic() > since + GRACE
            who = ", ".join(self.names[k] for k in sorted(missing))
            if enough or (time.monotonic() > end and len(there) >= self.needed):
                self.say(f"beginning with {len(there)} of {len(self.names)} clients, without {who}")
                break
            if time.monotonic() > end:
                raise UnalikeError(f"After {seconds:g} s there is no sign of {who}: start it, or take its key out.")
            time.sleep(0.1)

    def _gather(self) -> None:
        """Wait until enough clients are there to continue, if a number was set."""
        end, told = time.monotonic() + self._patience, False
        while self.limits.least is not None and len(there := self.link.online()) < self.limits.least:
            few = f"{len(there)} clients are there, and {self.limits.least} must be"
            if not told:
                self.say(f"waiting: {few}")
            if time.monotonic() > end:
                raise UnalikeError(f"After {self._patience:g} s {few}: see to them, then go on (--resume).")
            told = True
            self._check()
            time.sleep(0.1)

    def tell(self, messages: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """Send each client a message without tensors; return the headers of the valid answers. Raise if fewer clients
        answered than are needed."""
        wrong = dict[int, str]()
        asked = {k: (wire.encode(message, {}),) for k, message in messages.items()}
        headers, answers = {}, dict(self.quiet(asked, wrong))
        for client in messages:
            if client in answers:
                try:
                    headers[client] = _header(answers[client])
                # any error in decoding: the bytes come from one client and concern it alone
                except Exception as error:
                    wrong[client] = unreadable(error)
            else:
                wrong.setdefault(client, f"it does not answer within {self.deadline:g} s.")
        self._without(wrong, len(headers))
        return headers

    def quiet(self, requests: Mapping[int, Sequence[bytes]], wrong: dict[int, str]) -> Iterator[tuple[int, bytes]]:
        """Yield the answers; record in `wrong` why others do not come."""
        for client, answer in self.link.exchange(requests, self.deadline) if requests else ():
            if isinstance(answer, Lost):
                wrong[client] = answer
            else:
                yield client, answer

    def _without(self, wrong: Mapping[int, str], left: int) -> None:
        """Continue without these clients, each of which has a reason, if enough are left; else raise the first
        reason."""
        self._untold |= {k: printable(reason, 500) for k, reason in wrong.items() if not isinstance(reason, Lost)}
        if wrong and left < self.needed:
            client = min(wrong)
            self._tell_why()
            raise UnalikeError(named(self.names[client], printable(wrong[client], 500)))
        for client, reason in sorted(wrong.items()):
            said = printable(reason, 500)
            self.say(f"{self.names[client]} does not take part now: {said}")
            self.attendance.records[client].reason = said
            self.attendance.not_greeted(client)

    def _tell_why(self) -> None:
        """Tell clients why the server did without them: their owners see what the server's owner has seen."""
        there, untold, self._untold = self.link.online(), self._untold, {}
        notices = {k: {"kind": "notice", "reason": reason} for k, reason in untold.items() if k in there}
        asked = {k: (wire.encode(notice, {}),) for k, notice in notices.items()}
        for _ in self.link.exchange(asked, min(self.deadline, NEWS)) if asked else ():
            pass

    # ---- the clients' data

    def federation(
        self,
        keys: list[str],
        own: Own,
        classes: int | None = None,
        parts: Mapping[str, Own] | None = None,
        networks: Sequence[str] | None = None,
    ) -> Federation:
        """Ask the connected clients for the size and kind of their data; the result has at least `classes` classes, or
        those of the schema.

        networks: the name of each client's network, if there are several; their samples may then be of different kinds,
        and `parts` has the server's own sets for each, in place of `own`.
        """
        everybody = range(len(self.names))
        there = everybody if self.needed == len(self.names) else sorted(self.link.online())
        each = [own] * len(self.names) if parts is None or networks is None else [parts[name] for name in networks]
        self._hellos = [HELLO if one.schema is None else {**HELLO, "schema": one.schema.plain()} for one in each]
        answers = self.tell({k: self._hellos[k] for k in there})
        facts = self._proper({k: header.get("facts") for k, header in answers.items()})
        differ = parts is not None or any(fact["x"] != facts[min(facts)]["x"] for fact in facts.values())
        joined = networks is not None and differ
        if joined and len(facts) < len(self.names):
            raise UnalikeError("Clients' samples have different shapes: then all of them must be there to begin.")
        # one kind of samples needs no names
        whose = [*networks] if networks is not None and differ else [""] * len(self.names)
        groups = [*dict.fromkeys(whose)]
        having = parts if joined and parts is not None else _for_each(own, groups)
        hashes = {name: None if (pair := having[name].public) is None else public_hash(pair) for name in groups}
        self.public_sets, self._whose = [hashes[name] for name in whose], whose
        most = [*_class_counts(having.values()), classes or 0]
        for judge in (self._unlike, self._other_public, self._too_many, lambda f: self._beyond(f, most)):
            wrong = judge(facts)
            facts = {k: fact for k, fact in facts.items() if k not in wrong}
            self._without(wrong, len(facts))
        self.facts = dict(facts)
        self._weigh()
        count = self._classes(most)
        complete = [self._at_the_start(k) for k in everybody]
        self._begun = [fact["sizes"] for fact in complete]
        found = {
            name: self._remote(np.flatnonzero(np.array(whose) == name), complete, keys, having[name], count)
            for name in groups
        }
        return JoinedFederation(found, whose) if joined else found[""]

    def _at_the_start(self, client: int) -> dict[str, Any]:
        """Return a client's facts as they were when the run began. A client that was not there then counts as having
        the others' mean number of samples, and none for evaluation, until it comes."""
        facts = self.facts.get(client)
        if self.earlier:
            return {**(facts or self.facts[min(self.facts)]), "sizes": self.earlier.begun[client]}
        mean = max(1, round(sum(fact["sizes"]["train"] for fact in self.facts.values()) / len(self.facts)))
        return facts or {**self.facts[min(self.facts)], "sizes": {**dict.fromkeys(SPLITS, 0), "train": mean}}

    def _classes(self, known: Sequence[int]) -> int | None:
        """Return the number of classes: as the server was told, or as found in clients' data, test and public sets, a
        schema, and the roster; None for regression."""
        seen = [fact["classes"] for fact in self.facts.values() if fact["classes"] is not None]
        if not seen:
            return None
        before = self.earlier.classes if self.earlier else None
        return max(*known, self.limits.classes or max(*seen, before or 0))

    def _weigh(self) -> None:
        """Report if one client has more samples than all others together."""
        sizes = {k: fact["sizes"]["train"] for k, fact in self.facts.items()}
        heaviest = max(sizes, key=lambda k: sizes[k])
        share = sizes[heaviest] / sum(sizes.values())
        if len(sizes) > 2 and share > 0.5:
            self.say(
                f"{self.names[heaviest]} says that it has {sizes[heaviest]:,} of {sum(sizes.values()):,} samples, and "
                f"weighs {share:.1%} where clients are weighed by samples (--max-samples bounds it)"
            )

    # ---- clients that come after the start

    def welcome(self) -> dict[int, dict[str, int]]:
        """Greet clients that have come since the start and send them the plan; return the samples of clients that the
        run began without."""
        self._gather()
        self._tell_why()
        known = {k: fact["sizes"] for k, fact in self.facts.items() if fact["sizes"] != self._begun[k]}
        strangers = self.attendance.strangers()
        if not strangers or not (there := strangers & self.link.online()):
            return known
        patient, self.deadline = self.deadline, min(self.deadline, GREETING)
        needed, self.needed = self.needed, 0  # none of them is required
        try:
            found = self._newcomers(there)
        finally:
            self.deadline, self.needed = patient, needed
        for client in found:
            self.attendance.joined(client)
            self.say(f"{self.names[client]} has joined")
        return {**known, **found}

    def _newcomers(self, there: set[int]) -> dict[int, dict[str, int]]:
        facts = self._proper({k: h.get("facts") for k, h in self.tell({k: self._hellos[k] for k in there}).items()})
        for judge in (self._unlike, self._other_public, self._too_many, self._too_many_for_the_run):
            wrong = judge(facts)
            facts = {k: fact for k, fact in facts.items() if k not in wrong}
            self._without(wrong, len(facts))
        self.facts |= facts
        accepted = self.tell({k: self._plans[k] for k in facts})
        return {k: facts[k]["sizes"] for k in accepted}

    # ---- checks of clients' facts

    def _proper(self, told: Mapping[int, Any]) -> dict[int, dict[str, Any]]:
        """Return the facts that are well-formed."""
        wrong = {k: "it does not say properly how many samples it has, and of what kind." for k in told}
        wrong = {k: reason for k, reason in wrong.items() if not _well_formed(told[k])}
        self._without(wrong, len(told) - len(wrong))
        return {k: fact for k, fact in told.items() if k not in wrong}

    def _unlike(self, facts: Mapping[int, dict[str, Any]]) -> dict[int, str]:
        """Return the clients whose labels differ in kind from all others', or whose samples differ from those of their
        network. The norm is the majority's kind if clients may stay away, else the first client's."""
        known = {**facts, **self.facts}
        labels = _usual({k: fact["y"] for k, fact in known.items()}, self.needed < len(self.names))
        wrong = {}
        for k, fact in facts.items():
            mates = {j: other["x"] for j, other in known.items() if self._whose[j] == self._whose[k]}
            mate = _usual(mates, self.needed < len(self.names))
            other = labels if fact["y"] != known[labels]["y"] else mate
            if fact["y"] != known[labels]["y"] or fact["x"] != known[mate]["x"]:
                both = (
                    f", both for the network {self._whose[k]!r}" if self._whose[k] == self._whose[other] != "" else ""
                )
                wrong[k] = (
                    f"it has samples {_kind(fact)}, and {self.names[other]} {_kind(known[other])}{both}: "
                    "prepare all in the same way."
                )
        return wrong

    def _other_public(self, facts: Mapping[int, dict[str, Any]]) -> dict[int, str]:
        """Return the clients that lack the run's public set, or have a different one."""
        lacking = {k: fact for k, fact in facts.items() if self.public_sets[k] not in (None, fact.get("public"))}
        return {k: OTHER_PUBLIC if fact.get("public") else LACKS_PUBLIC for k, fact in lacking.items()}

    def _too_many(self, facts: Mapping[int, dict[str, Any]]) -> dict[int, str]:
        """Return the clients that claim more samples than the server accepts, or others than when the run began."""
        sizes = {k: fact["sizes"]["train"] for k, fact in {**self.facts, **facts}.items()}
        wrong = {k: reason for k, reason in self.limits.too_many_samples(sizes).items() if k in facts}
        for k in facts if self.earlier else ():
            before = self.earlier.sizes.get(self.names[k]) if self.earlier else None
            if before and before["train"] != facts[k]["sizes"]["train"]:
                wrong[k] = (
                    f"it has {facts[k]['sizes']['train']} samples now and had {before['train']} at the beginning."
                )
        return wrong

    def _beyond(self, facts: Mapping[int, dict[str, Any]], known: Iterable[int]) -> dict[int, str]:
        return self.limits.too_many_classes({k: fact["classes"] for k, fact in facts.items()}, known)

    def _too_many_for_the_run(self, facts: Mapping[int, dict[str, Any]]) -> dict[int, str]:
        """Return the late clients that have more classes than the run's model."""
        most = self._plans[0]["plan"]["classes"]
        late = {k: fact["classes"] for k, fact in facts.items() if fact["classes"] is not None}
        return {k: f"it has {n} classes, and the run {most}." for k, n in late.items() if most is None or n > most}

    def _remote(
        self, ids: np.ndarray, facts: list[dict[str, Any]], keys: list[str], own: Own, classes: int | None
    ) -> RemoteFederation:
        """Return the federation of clients whose samples are of one kind."""
        some = [facts[k] for k in ids]
        like = _zeros(*some[0]["x"]), _zeros(*some[0]["y"])
        splits = [*SPLITS, *sorted({name for f in some for name in f["sizes"]} - {*SPLITS})]
        sizes = {name: np.array([f["sizes"].get(name, 0) for f in some]) for name in splits}
        names = None if own.schema is None else own.schema.label_names
        return RemoteFederation.from_sizes(
            sizes, like, keys=[keys[k] for k in ids], global_test=own.test, public=own.public, shipped=own.shipped,
            classes=classes, names=[self.names[k] for k in ids], schema=own.schema,
            label_names=names if names is not None and classes == len(names) else None,
        )  # fmt: skip

    def prepared(
        self, data: Federation, recipe: Recipe | None, ids: Sequence[int], stage: Summed | None = None
    ) -> Federation:
        """Ask these clients for the sums from which their features are prepared, and return the prepared data; all that
        take part must answer. A resumed run keeps the preparation that it began with. stage: hides single sums."""
        before = self.earlier.preparation if self.earlier and len({*self._whose}) == 1 else None
        if recipe is None:
            if before:
                raise UnalikeError(
                    "This run began with features that were prepared: give --schema FILE, or --prepare, as it began."
                )
            return data
        x, y = data.train.x, data.train.y
        if not recipe.fits(x):
            raise UnalikeError(
                f"The run prepares {len(recipe.scaled)} features; samples of the clients are {list(x.shape[1:])}, "
                f"{x.dtype}."
            )
        if before:
            return data.prepared_by(Preparation.from_plain(before))
        sizes = dict(zip(ids, data.train.sizes.tolist(), strict=True))
        if stage is not None:
            begun = self.tell(beginning(stage, [k for k in ids if k in self.facts]))
            self.facts = {k: fact for k, fact in self.facts.items() if k in begun or k not in ids}
        while True:
            there = {k: n for k, n in sizes.items() if k in self.facts}

            def ask(request: bytes, there: dict[int, int] = there) -> Iterator[tuple[int, bytes]]:
                return self.quiet({k: (request,) for k in there}, {})

            try:
                if stage is not None:
                    found = prepared_in_sums(self, recipe, stage, there, y[:1].numel())
                else:
                    found = prepared_together(recipe, ask, there, y[:1].numel())
                break
            except NoSums as error:
                if len(self.facts) - 1 < self.needed:
                    why = named(self.names[error.client], error.reason)
                    raise UnalikeError(f"The features cannot be prepared: {why}") from None
                del self.facts[error.client]
                self._without({error.client: error.reason}, len(self.facts))
            except UnalikeError as error:
                raise UnalikeError(f"The features cannot be prepared: {error}") from None
        hidden = "" if stage is None else f", by {stage.name}"
        self.say(f"features prepared from sums over {len(there)} clients{hidden}")
        return data.prepared_by(found)

    def plan(self, tables: dict[str, Any], data: Federation, keys: list[str], networks: Any = None) -> None:
        """Send the plan to all clients, each with the digest of its network. The run's name is made from the plan and
        the keys, so that a new server that resumes the run finds the clients' state. A number that is drawn when the
        run begins is in the plan: clients keep what they answered in a run, and would refuse one of the same settings
        that takes another course."""
        told_all = {t: tables[t] for t in PLANNED if tables.get(t)} | {"run": _planned_run(tables["run"])}
        planned, files = _portable(told_all)
        plan: dict[str, Any] = {
            "version": unalike.__version__,
            "clients": len(data),
            "classes": data.classes,
            "mean": float(data.train.sizes.mean()),
            "tables": planned,
            "files": files,
            "run": planned.pop("run"),
        }
        once = os.urandom(8).hex() if self.earlier is None else self.earlier.once
        plan |= {"once": once} if once else {}  # none in runs that earlier versions began
        told = [self._of_part(data.part_of(k), k) for k in range(len(data))]
        named = {**plan, **told[0]}
        if isinstance(data, JoinedFederation):
            plan["run"] = {**plan["run"], "architecture": data.architecture}
            named = {**plan, "parts": told}
        self.run = hashlib.sha256(json.dumps([named, keys], sort_keys=True).encode()).hexdigest()[:16]
        asked = {**tables, "run": plan["run"]}
        built, means = _digests(networks, asked, len(data)), _mean_sizes(networks, asked, data.train.sizes)
        each = enumerate(zip(built, means, strict=True))
        own = [{**plan, **told[k], "client": k, "network": network, "mean": mean} for k, (network, mean) in each]
        self.terms = plan_digest(own[0])  # (only where there is one network are sums hidden)
        self._plans = [{"kind": "plan", "run": self.run, "plan": one} for one in own]
        told_sizes = {self.names[k]: fact["sizes"] for k, fact in self.facts.items()}
        self.roster = Roster(keys, data.classes, told[0]["preparation"], self._begun, told_sizes, once)
        for client in self.tell({k: self._plans[k] for k in sorted(self.facts)}):
            self.attendance.joined(client)

    def _of_part(self, part: Federation, client: int) -> dict[str, Any]:
        """Return the part of a client's plan about its kind of samples: how they are prepared, and the public set."""
        out: dict[str, Any] = {"preparation": part.preparation and part.preparation.plain()}
        # left out if there is none, so that plans without one stay as they were
        if self.public_sets[client] is not None:
            out["public"] = self.public_sets[client]
        return out

    def end(self, run: Run) -> None:
        """Tell all clients that the run is over, and which of their rounds counted. A client that is away hears it next
        time."""
        assert isinstance(run.clients, ClientStore)  # real clients of all networks share one
        self._tell_why()
        known = run.clients.known()
        rows = run.clients.rows_of(known).get("acknowledged") if len(known) else None
        counted = {} if rows is None else {int(k): int(v) - 2 for k, v in zip(known, rows, strict=True) if int(v)}
        message = {"kind": "end", "run": self.run}
        there = [k for k in self.link.online() if self.attendance.records[k].planned]
        requests = {k: (wire.encode({**message, "acknowledged": counted.get(k)}, {}),) for k in there}
        for _ in self.link.exchange(requests, min(self.deadline, NEWS)) if requests else ():
            # a client that leaves at once may take its answer along
            pass


def run(
    tables: dict[str, Any],
    link: ServerLink,
    keys: Mapping[str, bytes],
    *,
    deadline: float = 600.0,
    wait: float = 600.0,
    test: tuple[Any, Any] | None = None,
    classes: int | None = None,
    recipe: Recipe | str | None = None,
    schema: Schema | None = None,
    public: Public | None = None,
    shipped: bool = False,
    parts: Mapping[str, Own] | None = None,
    architecture: Sequence[str] | None = None,
    limits: Limits | None = None,
    profile: bool = False,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
    say: Callable[[str], None] = lambda text: None,
    check: Callable[[], None] = lambda: None,
) -> Run:
    """Run a config on the clients with these keys, as `unalike.config.run` does on local data.

    keys: public keys by the clients' names; deadline: seconds for an exchange; wait: seconds until all are there; test:
    (x, y) of the server to evaluate the global model on; classes: at least this many; recipe: how features are prepared
    before anything else, or just "standard" or "client"; schema: what the features are; public: (x, y or None), which
    every client must have too; shipped: its bytes count; parts: all these by network, if the clients' samples are of
    different kinds; architecture: the network of each client, if [run] does not say it; limits: how many clients are
    needed, and what they may send; profile: report at the end where the seconds of a round went; check: called while
    waiting, to raise errors.
    """
    for name, value in (("deadline", deadline), ("wait", wait)):
        if not value > 0:
            raise UnalikeError(f"{name} must be more than 0 seconds; got {value!r}.")
    settings = dict(tables.get("run", {}))
    if settings.get("checkpoint_every", 1) != 1:
        raise UnalikeError(
            "checkpoint_every must be 1: clients' state goes on round by round, and so must the server's."
        )
    marks = [hashlib.sha256(b" ".join(key.split()[:2])).hexdigest() for key in keys.values()]
    earlier = Roster.of(settings.get("folder"), marks) if resume or settings.get("resume") else None
    limits = limits or Limits()
    if limits.classes is None and type(declared := tables.get("model", {}).get("classes")) is int:
        limits = dc.replace(limits, classes=declared)
    clients = Clients(link, keys, deadline, say, limits, earlier)
    profiled = Profile(clients.times)
    own_callbacks = [KeepRoster(clients), StatusFile(clients), *([profiled] if profile else [])]
    clients.wait(wait, check)
    own = Own(test, public, shipped, recipe, schema)
    networks = _networks(tables, architecture, len(keys))
    stages = config.make_channel(settings.get("channel", ()))
    hiding = next((stage for stage in stages if isinstance(stage, Summed)), None)
    data = _prepared(clients, clients.federation(marks, own, classes, parts, networks), own, parts, hiding)
    done = config.run(
        {**tables, "run": {**settings, "engine": "flower"}}, callbacks=[*callbacks, *own_callbacks], resume=resume,
        federation=data,
        before=lambda checked, networks: clients.plan(checked, data, marks, networks), remote=clients,
    )  # fmt: skip
    clients.end(done)
    # exports would need data, which the server does not have
    if done.folder is not None:
        with contextlib.suppress(UnalikeError):  # a method without a global model
            _save(done, done.folder.path / DEPLOYABLE, tables)
    if lost := [line["lost"] for line in done.history if "lost" in line]:
        say(f"clients lost: {sum(lost)}, in {len(lost)} of {len(done.history)} rounds")
    for row in profiled.rows() if profile else ():
        say("{:<14} {:>8} {:>5}  {}".format(*row))
    return done


def _networks(tables: dict[str, Any], architecture: Sequence[str] | None, clients: int) -> list[str] | None:
    """Return the name of each client's network, None if there is one for all."""
    if len(tables.get(config.MODELS_TABLE, {})) < 2:
        return None
    settings = tables.get("run", {})
    named = {"architecture": architecture, **settings}
    return config.network_names({**tables, "run": named}, clients)


def _prepared(
    clients: Clients, data: Federation, own: Own, parts: Mapping[str, Own] | None, hiding: Summed | None
) -> Federation:
    """Return the data with features prepared from clients' sums, if asked for; several kinds of samples are prepared
    separately."""
    if not isinstance(data, JoinedFederation):
        return clients.prepared(data, own.recipe_for(data), range(len(data)), hiding)
    found = {}
    for name, part in data.own.items():
        ids = [k for k, network in enumerate(data.architecture) if network == name]
        found[name] = clients.prepared(part, (parts or {}).get(name, own).recipe_for(part), ids, hiding)
    return JoinedFederation(found, data.architecture)


def _planned_run(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that its clients are told; for a channel, every setting of its stages."""
    planned = {name: settings[name] for name in PLANNED_RUN if name in settings}
    stages = config.channel_tables(planned.pop("channel", []))
    return {**planned, "channel": stages} if stages else planned


def _for_each(own: Own, networks: Sequence[str]) -> dict[str, Own]:
    """Return the server's own sets for each network's clients, if their samples turn out to be of different kinds: then
    one test set or one public set cannot serve all."""
    if len(networks) > 1:
        for what, value in (("test set", own.test), ("public set", own.public), ("schema", own.schema)):
            if value is not None:
                raise UnalikeError(
                    f"The clients' samples have different shapes, and there is one {what}: give one for each network "
                    f"({networks[0]}=FILE)."
                )
    return dict.fromkeys(networks, own)


def _class_counts(having: Iterable[Own]) -> Iterator[int]:
    """Yield the numbers of classes that the server knows by itself: from its test and public sets, and a schema."""
    for own in having:
        for labels in (own.test and own.test[1], own.public and own.public[1]):
            if labels is not None:
                yield int(torch.as_tensor(labels).max()) + 1
        yield len((own.schema and own.schema.label_names) or ())


def _digests(networks: Any, tables: dict[str, Any], clients: int) -> list[str | None]:
    """Return the digest of each client's network, including its start weights if clients must know them without the
    server."""
    start = config.make_method(tables["method"]).serverless
    if not isinstance(networks, dict):
        return [None if networks is None else network_digest(networks, start)] * clients
    built = {name: network_digest(module, start) for name, module in networks.items()}
    return [built[name] for name in config.network_names(tables, clients)]


def _mean_sizes(networks: Any, tables: dict[str, Any], sizes: np.ndarray) -> list[float]:
    """Return the mean number of samples over the clients of each client's network, for relative sizes."""
    if not isinstance(networks, dict):
        return [float(sizes.mean())] * len(sizes)
    names = np.array(config.network_names(tables, len(sizes)))
    return [float(sizes[names == name].mean()) for name in names]


def _save(run: Run, file: Path, tables: dict[str, Any]) -> None:
    """Write the model as one file; with several networks, one file each (model-small.unalike)."""
    if run.architectures is None:
        run.save(file, source=tables.get("model", {}).get("file"))
        return
    for name in run.tasks:
        source = tables[config.MODELS_TABLE][name].get("file")
        run.save(file.with_stem(f"{file.stem}-{name}"), architecture=name, source=source)


def _portable(tables: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return tables that name files without their folders, and the content of those files."""
    files: dict[str, str] = {}

    def bare(path: str, thing: str) -> str:
        name, content = Path(path).name, digest(Path(path))
        if files.setdefault(name, content) != content:
            raise UnalikeError(f"Two files of this run are called {name}: give them different names.")
        return f"{name}:{thing}"

    return with_files(tables, bare), files


def _zeros(is_float: bool, shape: list[int]) -> torch.Tensor:
    return torch.zeros(1, *shape, dtype=torch.float32 if is_float else torch.int64)


def _header(answer: bytes) -> dict[str, Any]:
    """Return the header of a valid answer; raise the reason that a refusal gives."""
    header, _ = wire.decode(answer)
    if header.get("kind") != "reply":
        raise UnalikeError(printable(header.get("reason"), 500))
    return header


def _usual(kinds: Mapping[int, Any], by_most: bool) -> int:
    """Return a client that has the kind of most clients, or just the first."""
    if not by_most:
        return min(kinds)
    count = Counter(json.dumps(kind) for kind in kinds.values())
    most = max(count.values())
    return min(k for k, kind in kinds.items() if count[json.dumps(kind)] == most)


def _well_formed(facts: Any) -> bool:
    """Return whether facts say, in the right types, how many samples a client has and of what kind."""
    return (
        isinstance(facts, dict)
        and isinstance(facts.get("sizes"), dict)
        and all(_whole(facts["sizes"].get(name)) for name in SPLITS)
        and len(facts["sizes"]) <= MOST_SPLITS
        and all(name.isidentifier() and name != "public" and _whole(n) for name, n in facts["sizes"].items())
        and facts["sizes"]["train"] > 0
        and all(_is_kind(facts.get(letter)) for letter in "xy")
        and "classes" in facts
        and (facts["classes"] is None or (_whole(facts["classes"]) and facts["classes"] < 1 << 31))
    )


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 48


def _is_kind(value: Any) -> bool:
    """Return whether a value describes a sample or a label: whether it is of floats, and a shape that is not too
    large."""
    if not isinstance(value, list) or [type(part) for part in value] != [bool, list]:
        return False
    shape = value[1]
    return len(shape) <= 8 and all(map(_whole, shape)) and math.prod(map(float, shape)) < 1 << 31


def _kind(fact: dict[str, Any]) -> str:
    words = [f"{letter} {'float' if fact[letter][0] else 'integer'} {fact[letter][1]}" for letter in "xy"]
    return ", ".join(words)
