"""The server of a real federation: who is there, what is to be done, and then the same run as in a simulation.

The server has no data. The clients tell how many samples they have and of what kind; a `RemoteFederation` of these
facts takes the place of a simulation's federation.
"""

from __future__ import annotations

import contextlib
import dataclasses as dc
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import unalike
from unalike import config
from unalike.client import ClientStore
from unalike.client.preparing import prepared_together
from unalike.data import SPLITS, Federation, RemoteFederation
from unalike.data.joined import JoinedFederation
from unalike.data.preparation import Recipe
from unalike.data.public import Public, public_hash
from unalike.data.schema import Schema
from unalike.errors import UnalikeError
from unalike.messages import wire
from unalike.network.client import (
    LACKS_PUBLIC,
    OTHER_PUBLIC,
    PLANNED,
    PLANNED_RUN,
    digest,
    network_digest,
    with_files,
)  # fmt: skip
from unalike.network.link import Lost, ServerLink
from unalike.run.callbacks import Callback
from unalike.run.deploy import DEPLOYABLE
from unalike.run.run import Run

MOST_SPLITS = 64  # of a client's samples: more are a mistake, or worse


@dc.dataclass(frozen=True)
class Own:
    """What the server itself has, and does, for clients whose samples are of one kind.

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
    """The clients of a run, as its engine asks them. Whoever does not answer by the deadline is left out."""

    run = ""
    # stand for the clients' public sets as they were read, before any preparation
    public_sets: Sequence[str | None] = ()

    def __init__(
        self,
        link: ServerLink,
        keys: Mapping[str, bytes],
        deadline: float,
        say: Callable[[str], None] = lambda text: None,
    ):
        self.link, self.names, self.deadline, self.say = link, list(keys), deadline, say
        self.public = [b" ".join(key.split()[:2]).decode("ascii", "replace") for key in keys.values()]

    def ask(self, requests: Mapping[int, Sequence[bytes]]) -> Iterator[tuple[int, bytes]]:
        """Yield the answers that come in time, as they come."""
        silent = set(requests)
        for client, answer in self.link.exchange(requests, self.deadline):
            silent.discard(client)
            if isinstance(answer, Lost):
                self.refuse(client, answer)
            else:
                yield client, answer
        for client in sorted(silent):
            self.refuse(client, f"no answer within {self.deadline:g} s")

    def refuse(self, client: int, reason: str) -> None:
        self.say(f"{self.names[client]} is left out of this exchange: {reason}")

    def wait(self, seconds: float, check: Callable[[], None] = lambda: None) -> None:
        """Until everybody is there."""
        end = time.monotonic() + seconds
        while missing := set(range(len(self.names))) - self.link.online():
            check()
            if time.monotonic() > end:
                who = ", ".join(self.names[k] for k in sorted(missing))
                raise UnalikeError(f"After {seconds:g} s there is no sign of {who}: start it, or take its key out.")
            time.sleep(0.1)

    def tell(self, messages: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """A message without numbers to each, which everybody must answer properly: the answers' headers."""
        answers = dict(self.ask({k: (wire.encode(message, {}),) for k, message in messages.items()}))
        out = {}
        for client in messages:
            if client not in answers:
                raise UnalikeError(f"{self.names[client]} does not answer within {self.deadline:g} s.")
            header, _ = wire.decode(answers[client])
            if header.get("kind") != "reply":
                raise UnalikeError(f"{self.names[client]}: {str(header.get('reason'))[:500]}")
            out[client] = header
        return out

    def federation(
        self,
        keys: list[str],
        own: Own,
        classes: int | None = None,
        parts: Mapping[str, Own] | None = None,
        networks: Sequence[str] | None = None,
    ) -> Federation:
        """Ask all clients for the size and kind of their data; the result has at least `classes` classes, or those of
        the schema.

        networks: the name of each client's, where there are several; their samples may then be of different kinds, and
        `parts` has what the server has for each, in place of `own`.
        """
        hello = {"kind": "hello", "version": unalike.__version__}
        answers = self.tell({k: hello for k in range(len(self.names))})
        facts = [self._facts(k, answers[k].get("facts")) for k in range(len(self.names))]
        differ = parts is not None or any(fact["x"] != facts[0]["x"] for fact in facts)
        joined = networks is not None and differ
        whose = [*networks] if networks is not None and differ else [""] * len(facts)  # all are of one kind: no names
        groups = [*dict.fromkeys(whose)]
        self._alike(facts, whose)
        having = parts if joined and parts is not None else _for_each(own, groups)
        hashes = {name: None if (pair := having[name].public) is None else public_hash(pair) for name in groups}
        self.public_sets = [hashes[name] for name in whose]
        self._same_public(facts)
        most = _classes(facts, having.values(), classes)
        found = {
            name: self._remote(np.flatnonzero(np.array(whose) == name), facts, keys, having[name], most)
            for name in groups
        }
        return JoinedFederation(found, whose) if joined else found[""]

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

    def _alike(self, facts: list[dict[str, Any]], networks: Sequence[str]) -> None:
        """Refuse clients whose labels are of different kinds, and samples that differ between those of a network."""
        first = dict[str, int]()
        for k, fact in enumerate(facts):
            mate = first.setdefault(networks[k], k)
            other = 0 if fact["y"] != facts[0]["y"] else mate
            if fact["y"] != facts[0]["y"] or fact["x"] != facts[mate]["x"]:
                both = f", both for the network {networks[k]!r}" if networks[k] == networks[other] != "" else ""
                raise UnalikeError(
                    f"{self.names[k]} has samples {_kind(fact)}, and {self.names[other]} {_kind(facts[other])}{both}: "
                    "prepare all in the same way."
                )

    def _same_public(self, facts: list[dict[str, Any]]) -> None:
        """Refuse a client that lacks the run's public set, or has another."""
        for client, (fact, wanted) in enumerate(zip(facts, self.public_sets, strict=True)):
            if wanted is not None and fact.get("public") != wanted:
                raise UnalikeError(f"{self.names[client]}: {OTHER_PUBLIC if fact.get('public') else LACKS_PUBLIC}")

    def _facts(self, client: int, facts: Any) -> dict[str, Any]:
        ok = (
            isinstance(facts, dict)
            and isinstance(facts.get("sizes"), dict)
            and all(_whole(facts["sizes"].get(name)) for name in SPLITS)
            and len(facts["sizes"]) <= MOST_SPLITS
            and all(name.isidentifier() and name != "public" and _whole(n) for name, n in facts["sizes"].items())
            and facts["sizes"]["train"] > 0
            and all(_is_kind(facts.get(letter)) for letter in "xy")
            and (facts.get("classes") is None or (_whole(facts["classes"]) and facts["classes"] < 1 << 31))
        )
        if not ok:
            raise UnalikeError(f"{self.names[client]} does not say properly how many samples it has, and of what kind.")
        return facts

    def prepared(self, data: Federation, recipe: Recipe | None, ids: Sequence[int]) -> Federation:
        """Ask these clients, whose data these are, for the sums that their features are prepared by; everybody must
        answer."""
        if recipe is None:
            return data
        x, y = data.train.x, data.train.y
        if not recipe.fits(x):
            raise UnalikeError(
                f"The run prepares {len(recipe.scaled)} features; samples of the clients are {list(x.shape[1:])}, "
                f"{x.dtype}."
            )

        def ask(request: bytes) -> Iterator[tuple[int, bytes]]:
            return self.ask({k: (request,) for k in ids})

        try:
            sizes = dict(zip(ids, data.train.sizes.tolist(), strict=True))
            found = prepared_together(recipe, ask, sizes, y[:1].numel())
        except UnalikeError as error:
            raise UnalikeError(f"The features cannot be prepared: {error}") from None
        self.say(f"features prepared from sums over {len(ids)} clients")
        return data.prepared_by(found)

    def plan(self, tables: dict[str, Any], data: Federation, keys: list[str], networks: Any = None) -> None:
        """Send the plan to all clients, each with the digest of its network. The run's name comes from the plan and the
        keys: the same run, resumed by a new server, finds the clients' state."""
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
        self.tell({k: {"kind": "plan", "run": self.run, "plan": one} for k, one in enumerate(own)})

    def _of_part(self, part: Federation, client: int) -> dict[str, Any]:
        """Return what a client's plan says of its kind of samples: how they are prepared, and the public set."""
        out: dict[str, Any] = {"preparation": part.preparation and part.preparation.plain()}
        if self.public_sets[client] is not None:  # only then: a plan without one is what it always was
            out["public"] = self.public_sets[client]
        return out

    def end(self, run: Run) -> None:
        """Tell everybody that the run is over, and what of theirs counted. A client that is away hears it next time."""
        assert isinstance(run.clients, ClientStore)  # real clients of all networks have one
        known = run.clients.known()
        rows = run.clients.rows_of(known).get("acknowledged") if len(known) else None
        counted = {} if rows is None else {int(k): int(v) - 2 for k, v in zip(known, rows, strict=True) if int(v)}
        message = {"kind": "end", "run": self.run}
        requests = {k: (wire.encode({**message, "acknowledged": counted.get(k)}, {}),) for k in self.link.online()}
        for _ in self.link.exchange(requests, min(self.deadline, 5.0)):
            pass  # some leave at once, and their answer with them


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
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
    say: Callable[[str], None] = lambda text: None,
    check: Callable[[], None] = lambda: None,
) -> Run:
    """Run a config on the clients of these keys, as `unalike.config.run` does on data of one's own.

    keys: public keys by the clients' names; deadline: seconds for an exchange; wait: seconds until all are there; test:
    (x, y) of the server's own to evaluate the global model on; classes: at least so many; recipe: how features are
    prepared before anything else, if they are, or just "standard" or "client"; schema: what the features are; public:
    (x, y or None) that every client has too, else it is refused; shipped: its bytes count; parts: all these by network,
    where the clients' samples are of different kinds; architecture: the network of each client, where [run] does not
    say it; check: called while waiting, to raise what it knows.
    """
    for name, value in (("deadline", deadline), ("wait", wait)):
        if not value > 0:
            raise UnalikeError(f"{name} must be more than 0 seconds; got {value!r}.")
    settings = dict(tables.get("run", {}))
    if settings.get("checkpoint_every", 1) != 1:
        raise UnalikeError(
            "checkpoint_every must be 1: clients' state goes on round by round, and so must the server's."
        )
    clients = Clients(link, keys, deadline, say)
    marks = [hashlib.sha256(b" ".join(key.split()[:2])).hexdigest() for key in keys.values()]
    clients.wait(wait, check)
    own = Own(test, public, shipped, recipe, schema)
    networks = _networks(tables, architecture, len(keys))
    data = _prepared(clients, clients.federation(marks, own, classes, parts, networks), own, parts)
    done = config.run(
        {**tables, "run": {**settings, "engine": "flower"}}, callbacks=callbacks, resume=resume, federation=data,
        before=lambda checked, networks: clients.plan(checked, data, marks, networks), remote=clients,
    )  # fmt: skip
    clients.end(done)
    if done.folder is not None:  # what exports need data for, and the server has none
        with contextlib.suppress(UnalikeError):  # a method without a global model
            _save(done, done.folder.path / DEPLOYABLE, tables)
    if lost := [line["lost"] for line in done.history if "lost" in line]:
        say(f"clients lost: {sum(lost)}, in {len(lost)} of {len(done.history)} rounds")
    return done


def _networks(tables: dict[str, Any], architecture: Sequence[str] | None, clients: int) -> list[str] | None:
    """Return the name of each client's network, None where there is one for all."""
    if len(tables.get(config.MODELS_TABLE, {})) < 2:
        return None
    settings = tables.get("run", {})
    named = {"architecture": architecture, **settings}
    return config.network_names({**tables, "run": named}, clients)


def _prepared(clients: Clients, data: Federation, own: Own, parts: Mapping[str, Own] | None) -> Federation:
    """Return the data with features prepared from sums, where they are; of several kinds, each by itself."""
    if not isinstance(data, JoinedFederation):
        return clients.prepared(data, own.recipe_for(data), range(len(data)))
    found = {}
    for name, part in data.own.items():
        ids = [k for k, network in enumerate(data.architecture) if network == name]
        found[name] = clients.prepared(part, (parts or {}).get(name, own).recipe_for(part), ids)
    return JoinedFederation(found, data.architecture)


def _planned_run(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that its clients are told; of a channel, every setting of its stages."""
    planned = {name: settings[name] for name in PLANNED_RUN if name in settings}
    stages = config.channel_tables(planned.pop("channel", []))
    return {**planned, "channel": stages} if stages else planned


def _for_each(own: Own, networks: Sequence[str]) -> dict[str, Own]:
    """Return what the server has for each network's clients, where their samples turn out to be of different kinds: it
    cannot be one test set or one public set."""
    if len(networks) > 1:
        for what, value in (("test set", own.test), ("public set", own.public), ("schema", own.schema)):
            if value is not None:
                raise UnalikeError(
                    f"The clients' samples have different shapes, and there is one {what}: give one for each network "
                    f"({networks[0]}=FILE)."
                )
    return dict.fromkeys(networks, own)


def _classes(facts: list[dict[str, Any]], having: Iterable[Own], classes: int | None) -> int | None:
    """Return how many classes there are: in clients' data, test and public sets, a schema; None for numbers."""
    seen = [f["classes"] for f in facts if f["classes"] is not None]
    if not seen:
        return None
    for own in having:
        for labels in (own.test and own.test[1], own.public and own.public[1]):
            if labels is not None:
                seen.append(int(torch.as_tensor(labels).max()) + 1)
        seen.append(len((own.schema and own.schema.label_names) or ()))
    return max(*seen, classes or 0)


def _digests(networks: Any, tables: dict[str, Any], clients: int) -> list[str | None]:
    """Return the digest of each client's network, with its first weights where clients must know them themselves."""
    start = config.make_method(tables["method"]).serverless
    if not isinstance(networks, dict):
        return [None if networks is None else network_digest(networks, start)] * clients
    built = {name: network_digest(module, start) for name, module in networks.items()}
    return [built[name] for name in config.network_names(tables, clients)]


def _mean_sizes(networks: Any, tables: dict[str, Any], sizes: np.ndarray) -> list[float]:
    """Return what each client compares its own number of samples with: the mean over the clients of its network."""
    if not isinstance(networks, dict):
        return [float(sizes.mean())] * len(sizes)
    names = np.array(config.network_names(tables, len(sizes)))
    return [float(sizes[names == name].mean()) for name in names]


def _save(run: Run, file: Path, tables: dict[str, Any]) -> None:
    """Write the model as one file; of several networks, a file each (model-small.unalike)."""
    if run.architectures is None:
        run.save(file, source=tables.get("model", {}).get("file"))
        return
    for name in run.tasks:
        source = tables[config.MODELS_TABLE][name].get("file")
        run.save(file.with_stem(f"{file.stem}-{name}"), architecture=name, source=source)


def _portable(tables: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Tables that name files by their last name alone, and what is in those files."""
    files: dict[str, str] = {}

    def bare(path: str, thing: str) -> str:
        name, content = Path(path).name, digest(Path(path))
        if files.setdefault(name, content) != content:
            raise UnalikeError(f"Two files of this run are called {name}: give them different names.")
        return f"{name}:{thing}"

    return with_files(tables, bare), files


def _zeros(is_float: bool, shape: list[int]) -> torch.Tensor:
    return torch.zeros(1, *shape, dtype=torch.float32 if is_float else torch.int64)


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 48


def _is_kind(value: Any) -> bool:
    """Whether this says of a sample or a label if it is of floats, and its shape, which is not too large."""
    if not isinstance(value, list) or [type(part) for part in value] != [bool, list]:
        return False
    shape = value[1]
    return len(shape) <= 8 and all(map(_whole, shape)) and math.prod(map(float, shape)) < 1 << 31


def _kind(fact: dict[str, Any]) -> str:
    words = [f"{letter} {'float' if fact[letter][0] else 'integer'} {fact[letter][1]}" for letter in "xy"]
    return ", ".join(words)
