"""The processes around a server: Flower's SuperLink beside it, and for a federation on one machine all clients too.

Certificates and keys are as in a real federation; here they are made for the occasion and go with it.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from unalike.callbacks import Callback
from unalike.data.federation import Federation
from unalike.errors import UnalikeError
from unalike.network import keys, server
from unalike.network.processes import Processes
from unalike.simulate import Run

LOCAL = "127.0.0.1"


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder of our own that goes at the end."""
    folder = Path(tempfile.mkdtemp(prefix="unalike-federation-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def listen(host: str, port: int) -> socket.socket:
    """An open door; 0 takes any free port."""
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
    """Flower's SuperLink as a child process: an outer door for the clients and an inner one for this process."""

    def __init__(self, processes: Processes, folder: Path, certificates: Path, outer: socket.socket):
        keys.make_server(folder / "inner", [])
        self.ca, self.secret = (folder / "inner" / "ca.crt").read_bytes(), secrets.token_hex(32)
        with outer, listen(LOCAL, 0) as inner:  # the child has its own copies
            self.address = f"{LOCAL}:{inner.getsockname()[1]}"
            doors = outer.fileno(), inner.fileno()
            processes.start(
                "superlink",
                ["unalike.network.flower", *map(str, doors), str(certificates), str(folder / "inner"), str(folder)],
                doors,
                FLWR_HOME=str(folder / "flwr"),
                FLWR_TELEMETRY_ENABLED="0",
                FLWR_DISABLE_UPDATE_CHECK="1",
                UNALIKE_ADMIN_SECRET=self.secret,
            )

    def link(self, public: Mapping[str, bytes]) -> Any:
        """The server's end, for clients with these public keys."""
        return flower().FlowerServer(self.address, self.ca, self.secret, list(public.values()))


def flower() -> Any:
    """The module that needs Flower."""
    try:
        from unalike.network import flower
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("unalike"):
            raise
        raise UnalikeError(f"{error.name} is missing: pip install 'unalike[flower]'.") from None
    return flower


@contextlib.contextmanager
def serving(folder: Path, certificates: Path, public: Mapping[str, bytes], outer: socket.socket) -> Iterator[Any]:
    """(link, processes) of a SuperLink that runs as long as the block does."""
    flower()
    processes = Processes(folder)
    try:
        superlink = Superlink(processes, folder, certificates, outer)
        yield from _linked(superlink, public, processes)
    finally:
        processes.stop()


def _linked(superlink: Superlink, public: Mapping[str, bytes], processes: Processes) -> Iterator[Any]:
    link, done = superlink.link(public), False
    try:
        yield link, processes
        done = True
    finally:
        link.close(done)


class Local:
    """A federation on this machine: a SuperLink and a process for every client, each with its own file of data."""

    def __init__(self, data: Federation, folder: Path, processes: Processes):
        self.data, self.folder, self.processes = data, folder, processes
        self.names = [f"client-{k:04d}" for k in range(len(data))]
        keys.make_server(folder / "outer", [])
        for k, name in enumerate(self.names):
            home = folder / name
            home.mkdir(mode=0o700)
            public = keys.make_node(home / "key")
            shutil.copy(public, folder / "outer" / "clients" / f"{name}.pub")
            write_client(data, k, home / "data.safetensors")
        self.public = keys.roster(folder / "outer")
        outer = listen(LOCAL, 0)
        self.address = f"{LOCAL}:{outer.getsockname()[1]}"
        self.superlink = Superlink(processes, folder, folder / "outer", outer)

    def start(self, name: str) -> None:
        """The process of one client; its state is where an earlier one left it."""
        home = self.folder / name
        self.processes.start(
            name,
            [
                *("unalike.network.join", self.address, "--ca", str(self.folder / "outer" / "ca.crt")),
                *("--key", str(home / "key"), "--data", str(home / "data.safetensors"), "--state", str(home / "state")),
                *("--device", "cpu", "--wait", "60", "--repeatable"),
            ],
            OMP_NUM_THREADS="1",
        )


@contextlib.contextmanager
def federation(data: Federation) -> Iterator[tuple[Local, Any]]:
    """A running federation of these clients and the server's link to it; nothing is left of it after the block."""
    flower()
    with scratch() as folder:
        processes = Processes(folder)
        try:
            local = Local(data, folder, processes)
            for name in local.names:
                local.start(name)
            for link, _ in _linked(local.superlink, local.public, processes):
                yield local, link
        finally:
            processes.stop()


def run(
    tables: dict[str, Any],
    data: Federation,
    *,
    deadline: float = 600.0,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Run:
    """A config on a real federation on this machine, one process for every client of `data`."""
    data.check()
    with federation(data) as (local, link):
        return server.run(
            tables,
            link,
            local.public,
            deadline=deadline,
            wait=60.0,
            test=data.global_test,
            classes=data.classes,
            callbacks=callbacks,
            resume=resume,
            say=say,
            check=local.processes.check,
        )


def write_client(data: Federation, client: int, file: Path) -> None:
    """One client's samples as the file that it would bring itself."""
    out: dict[str, torch.Tensor] = {}
    for suffix, columns in (("", data.train), ("_test", data.test), ("_validation", data.validation)):
        if columns is not None:
            x, y = columns.of(client)
            out |= {f"x{suffix}": x.cpu().contiguous().clone(), f"y{suffix}": y.cpu().contiguous().clone()}
    file.write_bytes(safetensors.torch.save(out))
