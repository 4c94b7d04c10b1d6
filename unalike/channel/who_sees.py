"""Who sees what in a run: the server, other clients, the wire, holders of the final model.

One table for a run, made from the method's declarations (`Field.read`), from the stages' own descriptions
(`Stage.sees`) and from a few facts about the run. Its rows are data: the command line, JSON and the report show the
same. It describes the facts, not promises: only noise with a stated ε is a guarantee.
"""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Iterator, Sequence

from unalike.channel.stage import Stage
from unalike.contract import Method
from unalike.contract.privacy import READERS, words_of
from unalike.text import listed

SERVER, CLIENTS, WIRE, MODEL = "the server", "other clients", "on the wire", "the final model"
REBUILT = "training samples can be rebuilt from it"
BOUNDED = (
    "noise in the local steps bounds what it tells of one sample; what a client's samples have in common is not hidden"
)
AT_SERVER = {  # by `Field.read`
    "sum": f"each client's own, though the method needs the sum only: {REBUILT}",
    "each": f"each client's own, by design: {REBUILT}",
    "peers": f"each client's own, by design: {REBUILT}",
    "sealed": "nothing: it is sealed for another client",
}
AT_CLIENTS = {
    "sum": "nothing but what the sum does to the model",
    "each": "what the server makes of it",
    "peers": "the same as the server, by design",
    "sealed": "the one client that it is for: all of it",
}
TRAVELS = {
    True: "TLS: sizes and times only",
    False: "nothing travels in a simulation; between machines TLS leaves sizes and times",
}

_SCORES = "what evaluation measures on each client's own samples"
_PAST = ": it goes past the channel"
_EXACT = ': exact, past the noise and outside every ε; evaluate_clients = "none" leaves it out'


@dc.dataclass(frozen=True)
class Sight:
    """One row: who sees what of something, in words."""

    who: str
    of: str
    words: str


def who_sees(
    method: Method,
    stages: Sequence[Stage] = (),
    *,
    real: bool = False,
    common: bool = True,
    statistics: bool = False,
    judged: bool = False,
    samples: bool = False,
    reply: tuple[int, int] | None = None,
) -> list[Sight]:
    """Return the rows for a run.

    real: between machines, not simulated. common: there is a model that all clients share. statistics: BatchNorm's are
    averaged. judged: models are evaluated on clients' own samples. samples: noise in local steps hides single samples.
    reply: bytes of one reply without the channel and with it.
    """
    private, hides = any(stage.private for stage in stages), any(stage.hides for stage in stages)
    scores = _SCORES + (_EXACT if private else _PAST if stages else "")
    return [
        *_server(method, stages, private, statistics and not hides, BOUNDED if samples else REBUILT),
        *([Sight(SERVER, "clients' scores", scores)] if judged and not method.pooled else []),
        *_clients(method, stages, private, real),
        Sight(WIRE, "every message", TRAVELS[real]),
        *_wire(stages, reply),
        *_model(method, private, common),
    ]


def _server(method: Method, stages: Sequence[Stage], private: bool, statistics: bool, tells: str) -> Iterator[Sight]:
    if method.pooled:
        yield Sight(SERVER, "every client's data", "all of it: it is pooled in one place")
        return
    hides = any(stage.hides for stage in stages)
    loss = "" if private or hides or method.serverless else "; the training loss of each reply"
    yield Sight(SERVER, "the clients", f"who takes part and when, how many samples each has{loss}")
    # the stage that leaves only sums comes last
    shield = next((stage.sees.server for stage in reversed(stages) if stage.sees.shields), "")
    for read, what in _sent(method):
        acted = read != "sealed" and shield
        yield Sight(SERVER, what, shield if acted else AT_SERVER[read].replace(REBUILT, tells))
    if statistics:
        yield Sight(SERVER, "BatchNorm's statistics", f"each client's own{', past the channel' if stages else ''}")
    for stage in stages:
        seen = stage.seen(hides and not stage.hides)
        if seen.server and not seen.shields:
            yield Sight(SERVER, str(stage), seen.server)


def _clients(method: Method, stages: Sequence[Stage], private: bool, real: bool) -> Iterator[Sight]:
    if method.pooled:
        return
    if not method.serverless:
        yield Sight(CLIENTS, "the model", "what the server sends in each round it takes part in")
    if real and not private:
        yield Sight(CLIENTS, "the clients", "who takes part when: it follows from the run's seed, which all are told")
    yield from (Sight(CLIENTS, what, AT_CLIENTS[read]) for read, what in _sent(method))
    yield from (Sight(CLIENTS, str(s), s.sees.clients) for s in stages if s.sees.clients)


def _wire(stages: Sequence[Stage], reply: tuple[int, int] | None) -> Iterator[Sight]:
    yield from (Sight(WIRE, str(s), s.sees.wire) for s in stages if s.sees.wire)
    if reply is not None:
        saved = f", {reply[0]:,} without the channel" if reply[0] != reply[1] else ", as without the channel"
        yield Sight(WIRE, "a reply", f"{reply[1]:,} bytes{saved}")


def _model(method: Method, private: bool, common: bool) -> Iterator[Sight]:
    if method.pooled:
        holders = "the one place that holds the data"
    elif common:
        holders = "the server, and every client that it sends it to"
    else:
        holders = "there is none for all: each client has its own"
    yield Sight(MODEL, "who holds it", holders)
    bound = "only as far as ε allows" if private else "nothing bounds that here"
    yield Sight(MODEL, "what it tells", f"who has it can ask whether a sample was trained on: {bound}")


def _sent(method: Method) -> Iterator[tuple[str, str]]:
    """Yield how fields are read, and what they are in words; fields that are read in the same way come together."""
    for read in READERS:
        found = dict.fromkeys(words_of(n, f) for n, f in method.sends.items() if f.read == read)
        if found:
            yield read, listed([*found])
