"""The processes around a server: Flower's SuperLink and, for a federation on one machine, all clients.

Certificates and keys are as in a real federation, but made for this run. If the run has a folder, the clients' keys and
state are kept there, so that it can be resumed; everything else is removed at the end.
"""

from __future__ import annotations

import contextlib
import dataclasses as dc
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from unalike import config
from unalike.channel.stage import Stage
from unalike.channel.stages import Encrypted
from unalike.data.federation import Federation
from unalike.data.joined import JoinedFederation
from unalike.data.public import Public
from unalike.errors import UnalikeError
from unalike.files import replacing
from unalike.methods import METHODS
from unalike.network import keys, server
from unalike.network.limits import Limits
from unalike.network.policy import Policy
from unalike.network.processes import Processes
from unalike.run.callbacks import Callback
from unalike.run.run import Run
from unalike.settings.toml import dump_toml

LOCAL = "127.0.0.1"
# the public set, for all clients or for those of one network
PUBLIC = "public{}.safetensors"
POLICY = "policy.toml"  # policy of all clients
# in a run's folder: the clients' keys and state
KEPT = "federation"
# among these: the key that all clients have in common, if the run's channel encrypts
COMMON = "common.key"


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Give a temporary folder that is removed at the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="unalike-federation-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes any free port."""
    door = None
    try:
        info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        door = socket.socket(info[0])
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(info[4])
        door.listen(128)
        return door
    except (OSError, OverflowError) as error:
        if door is not None:
            door.close()
        raise UnalikeError(f"Cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}.") from None


class Superlink:
    """Flower's SuperLink as a child process: an outer port for the clients and an inner one for this process."""

    def __init__(self, processes: Processes, folder: Path, certificates: Path, outer: socket.socket):
        keys.make_server(folder / "inner", [])
        self.ca, self.secret = (folder / "inner" / "ca.crt").read_bytes(), secrets.token_hex(32)
        with outer, listen(LOCAL, 0) as inner:  # the child has its own copies
            self.address = f"{LOCAL}:{inner.getsockname()[1]}"
            doors = outer.fileno(), inner.fileno()
            words = [*doors, certificates, folder / "inner", folder]
            processes.start(
                "superlink", ["unalike.network.flower", *map(str, words)], doors, FLWR_HOME=str(folder / "flwr"),
                FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", UNALIKE_ADMIN_SECRET=self.secret,
            )  # fmt: skip

    def link(self, public: Mapping[str, bytes]) -> Any:
        """Return the server's end, for clients with these public keys."""
        return flower().FlowerServer(self.address, self.ca, self.secret, list(public.values()))


def flower() -> Any:
    """Return the module that needs Flower, or raise an error that says how to install it."""
    try:
        from unalike.network import flower
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("unalike"):
            raise
        raise UnalikeError(f"{error.name} is missing: pip install 'unalike[flower]'.") from None
    return flower


@contextlib.contextmanager
def serving(
    folder: Path, certificates: Path, public: Mapping[str, bytes], outer: socket.socket
) -> Iterator[tuple[Any, Processes]]:
    """Run a SuperLink for the duration of the block; give (link, processes)."""
    flower()
    processes = Processes(folder)
    try:
        with _linked(Superlink(processes, folder, certificates, outer), public) as link:
            yield link, processes
    finally:
        processes.stop()


@contextlib.contextmanager
def _linked(superlink: Superlink, public: Mapping[str, bytes]) -> Iterator[Any]:
    link, done = superlink.link(public), False
    try:
        yield link
        done = True
    finally:
        link.close(done)


class Local:
    """A federation on this machine: a SuperLink and one process per client, each with its own data file.

    kept: keys and state of an earlier federation of these clients; without it, they are made anew. files: the user's
    own Python files, from which a run may take a method, a model or a loss. stages: the run's channel, for which
    clients may need a common key.
    """

    def __init__(
        self,
        data: Federation,
        folder: Path,
        processes: Processes,
        kept: Path | None = None,
        files: Sequence[Path] = (),
        stages: Sequence[Stage] = (),
    ):
        self.data, self.folder, self.processes = data, folder, processes
        self.names = [f"client-{k:04d}" for k in range(len(data))]
        self.homes = folder / KEPT
        if kept is None:
            self._make()
        else:
            self._check(kept)
            self.homes.symlink_to(kept.resolve())
        encrypting = next((stage for stage in stages if isinstance(stage, Encrypted)), None)
        if encrypting is not None and not (self.homes / COMMON).exists():
            keys.make_common(self.homes / COMMON, encrypting.scheme, encrypting.key_bits)
        # all these clients belong to the user
        own = tuple(file.resolve() for file in files)
        policy = Policy.open(repeatable=True, methods=tuple(METHODS), files=own)
        (folder / POLICY).write_text(dump_toml(policy.plain()))
        keys.make_server(folder / "outer", [])
        for k, name in enumerate(self.names):
            shutil.copy(self.homes / name / "key.pub", folder / "outer" / "clients" / f"{name}.pub")
            write_client(data.part_of(k), k, folder / f"{name}.safetensors")
        for network, part in parts_of(data).items():
            if part.public is not None:
                write_public(part.public, folder / PUBLIC.format(network))
        self.public = keys.roster(folder / "outer")
        outer = listen(LOCAL, 0)
        self.address = f"{LOCAL}:{outer.getsockname()[1]}"
        self.superlink = Superlink(processes, folder, folder / "outer", outer)

    def _make(self) -> None:
        self.homes.mkdir(mode=0o700)
        (self.homes / "data").write_text(self.data.fingerprint())
        for name in self.names:
            (self.homes / name).mkdir(mode=0o700)
            keys.make_node(self.homes / name / "key")

    def _check(self, kept: Path) -> None:
        """Check that the clients' data are those of the earlier federation: the server itself knows clients only by
        their keys."""
        try:
            same = (kept / "data").read_text() == self.data.fingerprint()
            complete = all((kept / name / "key").is_file() for name in self.names)
        except OSError:
            complete = False
        if not complete:
            raise UnalikeError(
                f"{kept} lacks the clients' keys and state, without which the run cannot go on: put them back, or "
                "begin in another folder."
            )
        if not same:
            raise UnalikeError(f"{kept.parent} holds a run on other data: give its data, or choose another folder.")

    def keep(self, run: Path) -> None:
        """Move keys and state into the run's folder. It exists only once the run has begun, when the clients are
        already running: they are idle then, and find their state through a link."""
        with replacing(run / KEPT) as new:
            shutil.copytree(self.homes, new, ignore=shutil.ignore_patterns("lock"))
        os.rename(self.homes, self.folder / "before")
        self.homes.symlink_to((run / KEPT).resolve())

    def start(self, name: str) -> None:
        """Start the process of one client; it finds its state where an earlier process left it."""
        home, folder = self.homes / name, self.folder
        words = [
            "unalike.network.join", self.address, "--ca", folder / "outer" / "ca.crt", "--key", home / "key",
            "--data", folder / f"{name}.safetensors", "--state", home / "state",
            "--peers", folder / "outer" / "clients", "--device", "cpu", "--wait", "60", "--policy", folder / POLICY,
        ]  # fmt: skip
        if self.data.public_rows:
            architecture = getattr(self.data, "architecture", None)
            network = architecture[self.names.index(name)] if architecture else ""
            words += ["--public", folder / PUBLIC.format(network)]
        if (self.homes / COMMON).exists():
            words += ["--common", self.homes / COMMON]
        self.processes.start(name, [*map(str, words)], OMP_NUM_THREADS="1")


@contextlib.contextmanager
def federation(
    data: Federation, kept: Path | None = None, files: Sequence[Path] = (), stages: Sequence[Stage] = ()
) -> Iterator[tuple[Local, Any]]:
    """Give a running federation of these clients and the server's link to it; after the block only what `Local.keep`
    kept is left. kept: the folder where an earlier federation kept its keys and state; files: code that clients may
    run; stages: the run's channel."""
    flower()
    with scratch() as folder:
        processes = Processes(folder)
        try:
            local = Local(data, folder, processes, kept, files, stages)
            for name in local.names:
                local.start(name)
            with _linked(local.superlink, local.public) as link:
                yield local, link
        finally:
            processes.stop()


class Keep(Callback):
    """Moves keys and state into the run's folder as soon as it exists."""

    def __init__(self, local: Local):
        self.local = local

    def on_start(self, run: Run) -> None:
        if run.folder is not None:
            self.local.keep(run.folder.path)


def run(
    tables: dict[str, Any],
    data: Federation,
    *,
    deadline: float = 600.0,
    limits: Limits | None = None,
    profile: bool = False,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Run:
    """Run a config on a real federation on this machine, one process per client of `data`. A run with a folder keeps
    the clients' keys and state there, and can be resumed."""
    check_data(data)
    where = tables.get("run", {}).get("folder")
    begun = where is not None and (Path(where) / "config.toml").exists()
    kept = Path(where) / KEPT if begun else None
    stages = config.make_channel(tables.get("run", {}).get("channel", ()))
    with federation(data, kept, config.code_in(tables), stages) as (local, link):
        return server.run(
            tables, link, local.public, deadline=deadline, wait=60.0, classes=data.classes, **_having(data),
            limits=limits, profile=profile, callbacks=callbacks if begun else [Keep(local), *callbacks],
            resume=resume, say=say, check=local.processes.check,
        )  # fmt: skip


def check_data(data: Federation) -> None:
    """Raise if these data cannot be split among real clients."""
    if data.drift is not None:
        raise UnalikeError(
            f"'{data.drift.changes[0][0]}' makes data drift as rounds pass, and real clients' data change by "
            "themselves: leave it out, or simulate it (`unalike run --engine loopback`)."
        )
    for part in parts_of(data).values():
        part.check(gaps=part.recipe is not None)


def parts_of(data: Federation) -> dict[str, Federation]:
    """Return the parts of a joined federation by name; any other federation itself, under the name ""."""
    return data.own if isinstance(data, JoinedFederation) else {"": data}


def _having(data: Federation) -> dict[str, Any]:
    """Return the arguments of `server.run` about data that are not the clients' own: test and public sets, schema."""
    own = {
        name: server.Own(part.global_test, part.public, part.shipped, part.recipe, part.schema)
        for name, part in parts_of(data).items()
    }
    if isinstance(data, JoinedFederation):
        return {"parts": own, "architecture": data.architecture}
    return {field.name: getattr(own[""], field.name) for field in dc.fields(server.Own)}


def write_public(public: Public, file: Path) -> None:
    """Write a public set as the file that server and clients are given."""
    tensors = zip("xy", public, strict=True)
    out = {name: tensor.cpu().contiguous().clone() for name, tensor in tensors if tensor is not None}
    file.write_bytes(safetensors.torch.save(out))


def write_client(data: Federation, client: int, file: Path) -> None:
    """Write one client's samples as the file that a real client would have."""
    out: dict[str, torch.Tensor] = {}
    for name, columns in data.splits.items():
        suffix = "" if name == "train" else f"_{name}"
        x, y = columns.of(client)
        out |= {f"x{suffix}": x.cpu().contiguous().clone(), f"y{suffix}": y.cpu().contiguous().clone()}
    file.write_bytes(safetensors.torch.save(out))
