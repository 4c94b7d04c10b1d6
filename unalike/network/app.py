"""A plain Flower app, for users who run Flower already: unalike's server and clients under stock `flwr run`.

Only Flower's public interface is used here. Stock Flower starts a process for every message, so it is slow (15 to 20 s
per round on one machine, against about one with `unalike local-federation`), and by default its SuperNodes run the code
of the app that they are sent. A client's state is in a folder, so it survives between these processes. See
examples/flower-app.

On a SuperNode:  --node-config 'data="/path/mine.npz" state="/path/state" policy="/path/policy.toml"'
For a run:       --run-config 'config="/path/run.toml" nodes=4'
"""

from __future__ import annotations

import os
import secrets
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from unalike.errors import UnalikeError, first_line
from unalike.network.link import MAX_MESSAGE, Left, Lost, Parts
from unalike.text import printable

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read at import; otherwise every exit may wait for the network
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
# no proxy for loopback; programs differ in which of the two names they read
for _name in ("NO_PROXY", "no_proxy"):
    os.environ[_name] = ",".join(filter(None, (os.environ.get(_name), "127.0.0.1", "localhost", "::1")))

with warnings.catch_warnings():
    # deprecations inside Flower's own libraries
    warnings.simplefilter("ignore")
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

# bytes per record: Flower stores a record as one object of at most 2 GiB
PIECE = 16 << 20
LEFT = 5
GONE = {3: "it did not answer in time", LEFT: "it has left"}  # Flower's error codes
MAX_PARTS = 8  # most parts of a message
# values that a record may have beside its bytes: the answering process, its duration, a notice for the client's owner
ABOUT: dict[str, type] = {"process": str, "seconds": float, "notice": str}


def content(parts: Parts, salt: bytes | None = None, **about: Any) -> RecordDict:
    """Return bytes as Flower's records: one record per part (or per piece of a large one), as few as possible, because
    the SuperLink handles one request per object and stores objects that are equal for all clients once.

    Objects are identified by a hash of their content, and the first to declare a hash decides what is stored under it.
    So that nobody can predict a message, its records hold a salt, the same in all messages of an exchange. about:
    further values of the last part's first record (`ABOUT`).
    """
    salt, last = secrets.token_bytes(16) if salt is None else salt, f"{len(parts) - 1}.0"
    pieces: dict[str, Any] = {
        f"{k}.{a // PIECE}": {"bytes": bytes(part[a : a + PIECE]), "salt": salt}
        for k, part in enumerate(parts)
        for a in range(0, max(len(part), 1), PIECE)
    }
    pieces[last] |= about
    return RecordDict({name: ConfigRecord(piece) for name, piece in pieces.items()})


def about_of(records: RecordDict) -> dict[str, Any]:
    """Return the values in a message's records beside its bytes (`ABOUT`), if they have the right types."""
    return {
        name: record[name]
        for record in records.values()
        for name, kind in ABOUT.items()
        if isinstance(record, ConfigRecord) and isinstance(record.get(name), kind)
    }


def parts_of(records: RecordDict) -> list[bytes]:
    """Return the bytes in Flower's records; refuse records that `content` did not make."""
    parts: dict[int, dict[int, bytes]] = {}
    total = 0  # one record may occur under many names
    for name, record in records.items():
        part, _, piece = name.partition(".")
        ours = isinstance(record, ConfigRecord) and not record.keys() - {"bytes", "salt", *ABOUT}
        data = record.get("bytes") if ours else None
        if not (_number(part) and _number(piece) and isinstance(data, bytes)):
            raise UnalikeError("A message has a record that is none of ours.")
        total += len(data)
        if len(parts) > MAX_PARTS or total > MAX_MESSAGE:
            raise UnalikeError(f"A message has more than {MAX_MESSAGE} bytes, or more than {MAX_PARTS} parts.")
        parts.setdefault(int(part), {})[int(piece)] = data
    if sorted(parts) != list(range(len(parts))) or any(sorted(p) != list(range(len(p))) for p in parts.values()):
        raise UnalikeError("A message lacks one of its pieces.")
    return [b"".join(parts[k][j] for j in range(len(parts[k]))) for k in range(len(parts))]


def _number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 6


def answer_of(message: Message) -> bytes | Lost:
    """Return a reply's bytes, or why there are none."""
    if message.has_error():
        kind = Left if message.error.code == LEFT else Lost
        return kind(GONE.get(message.error.code, printable(f"{message.error.code} {message.error.reason}")))
    parts = parts_of(message.content)
    return parts[0] if len(parts) == 1 else Lost("its answer has more than one part")


class GridLink:
    """The server's end over Flower's Grid: nodes are numbered in the order of their ids."""

    def __init__(self, grid: Grid, nodes: list[int], poll: float = 0.3):
        self.grid, self.nodes, self.poll = grid, nodes, poll

    def online(self) -> set[int]:
        return {self.nodes.index(node) for node in self.grid.get_node_ids() if node in self.nodes}

    def exchange(self, requests: Mapping[int, Parts], seconds: float) -> Iterator[tuple[int, bytes | Lost]]:
        end = time.monotonic() + seconds
        salt = secrets.token_bytes(16)
        asked = [Message(content(parts, salt), self.nodes[k], "train", ttl=seconds) for k, parts in requests.items()]
        waiting = dict(zip(self.grid.push_messages(asked), requests, strict=True))
        while waiting and time.monotonic() < end:
            for reply in self.grid.pull_messages(waiting):
                client = waiting.pop(reply.metadata.reply_to_message_id, None)
                if client is not None:
                    try:
                        answer = answer_of(reply)
                    # any error in decoding: the records come from one client and concern it alone
                    except Exception as error:
                        answer = Lost(first_line(error))
                    yield client, answer
            if waiting:
                time.sleep(self.poll)

    def close(self, done: bool) -> None:
        """Do nothing: Flower itself ends the run."""


def server_app() -> ServerApp:
    """Return a ServerApp that runs a config file on the connected nodes."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from unalike import config
        from unalike.data.extras import read_public
        from unalike.network import server

        settings: Any = context.run_config
        count, deadline = int(settings["nodes"]), float(settings["deadline"])
        end = time.monotonic() + deadline
        while len(nodes := sorted(grid.get_node_ids())) < count:
            if time.monotonic() > end:
                few = f"There are {len(nodes)} nodes after {deadline:g} s, and nodes={count} were asked for."
                raise UnalikeError(few)
            time.sleep(0.3)
        keys = {f"node-{node}": str(node).encode() for node in nodes}
        tables = config.read_tables(str(settings["config"]))
        public = read_public(Path(settings["public"])) if settings.get("public") else None
        server.run(tables, GridLink(grid, nodes), keys, deadline=deadline, public=public, say=print)

    return app


def client_app() -> ClientApp:
    """Return a ClientApp that answers from its node's data and state."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        from unalike.network.client import Client
        from unalike.network.join import read_client, with_public
        from unalike.network.policy import Policy, read_policy

        settings: Any = context.node_config
        rules = read_policy(Path(settings["policy"])) if settings.get("policy") else {}
        policy = Policy.of({**rules, "repeatable": bool(settings.get("repeatable", False))}, "The node's policy")
        data = read_client(Path(settings["data"]))
        data = with_public(data, Path(settings["public"])) if settings.get("public") else data
        client = Client(data, Path(settings["state"]), policy, "cpu", print)
        try:
            return Message(content([client.answer(parts_of(message.content))]), reply_to=message)
        finally:
            client.close()

    return app
