"""Everything that touches Flower: the two ends of its network spoken from processes of ours, and its SuperLink.

Stock Flower starts a process for every message. Here the server and every client are one process each for as long as
they live, and only the SuperLink between them is Flower's; no code travels, a client runs what it has installed.

Most of these imports are not Flower's public face: hence `flwr>=1.41,<1.42`, and none of them anywhere else.
Flower answers some failures by a SIGINT to its own process or by leaving it; its own retries and heartbeats are
therefore not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hashlib
import hmac
import logging
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from unalike.errors import UnalikeError, first_line
from unalike.network.app import answer_of, content, parts_of
from unalike.network.clock import clock_words
from unalike.network.link import MAX_MESSAGE, Away, Lost, Parts, Untrusted
from unalike.network.processes import lifeline

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own libraries' deprecations
    import httpx
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
    from flwr.app import Message
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import fab_to_proto, message_from_proto, message_to_proto, user_config_to_proto
    from flwr.proto import fleet_pb2 as fleet
    from flwr.proto import runtime_pb2 as runtime
    from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.fab import Fab
    from flwr.supercore.inflatable import inflatable_object as objects
    from flwr.supercore.inflatable import inflatable_protobuf_utils as calls
    from flwr.supercore.inflatable import inflatable_utils as transfer
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor


logging.getLogger("flwr").setLevel(logging.WARNING)

FIRST_WAIT = 0.05  # for an object still on its way up; Flower's own first wait is a second
SOON = 5.0  # seconds in which a server gets to know a client
FIRST_RETRY = 0.2  # seconds; doubled from time to time
BEAT = 10.0  # seconds between a client's signs of life, Flower's least; it counts as gone after two
SECRET, SECRET_HEADER = "UNALIKE_ADMIN_SECRET", "x-unalike-secret"

STUB = b"""
[project]
name = "unalike-run"
version = "0.0.1"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "unalike"
[tool.flwr.app.components]
serverapp = "stub:app"
clientapp = "stub:app"
[tool.flwr.app.config]
"""


def _stub() -> Fab:
    """A run must name an app to Flower; clients that hold their own code never open this one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from flwr.cli.build import build_fab_from_files  # half a second that clients need not spend

        data, _ = build_fab_from_files({"pyproject.toml": STUB, "stub.py": b"app = None\n"})
    return Fab(hashlib.sha256(data).hexdigest(), data, {})


# ---------------------------------------------------------------- what both ends share


def _fetch(tree: Any, message_id: str, ask: Callable[[str], bytes], seconds: float) -> Message:
    """Return a message with all its objects, up to a limit of bytes and of time."""
    total = 0

    def counted(object_id: str) -> bytes:
        nonlocal total
        data = ask(object_id)
        total += len(data)
        if total > MAX_MESSAGE:
            raise transfer.ObjectPullError(object_id, f"the message has more than {MAX_MESSAGE} bytes.")
        return data

    ids = [node.object_id for node in objects.iterate_object_tree(tree)]
    limit = max(seconds, 1.0)
    found = transfer.pull_objects(ids, counted, initial_backoff=FIRST_WAIT, backoff_cap=1.0, max_time=limit)
    message = transfer.inflate_object_from_contents(message_id, found)
    if not isinstance(message, Message):
        raise UnalikeError("A message has a record that is none of ours.")
    message.metadata.__dict__["_message_id"] = message_id
    return message


class _End:
    """An end of Flower's network: messages go through `_http`, as `_node`, in pieces."""

    _http: Any
    _node: Any

    def _ask(self, fn: Callable[[Any], Any], request: Any) -> Any:
        """Make one request of Flower's and return its answer."""
        raise NotImplementedError

    def _take(self, tree: Any, run: int, message_id: str, seconds: float) -> Message:
        """Fetch a message and confirm that it has come."""
        get = lambda request: self._ask(self._http.PullObject, request)  # noqa: E731
        message = _fetch(tree, message_id, calls.make_pull_object_fn_protobuf(get, self._node, run), seconds)
        confirm = lambda request: self._ask(self._http.ConfirmMessageReceived, request)  # noqa: E731
        calls.make_confirm_message_received_fn_protobuf(confirm, self._node, run)(message_id)
        return message

    def _push(self, messages: list[Message], request: type, run: int, **more: Any) -> Any:
        """Send messages, and those of their objects that the SuperLink does not have; return its answer."""
        with objects.no_object_id_recompute():
            nested: dict[str, Any] = {}
            for message in messages:
                message.metadata.__dict__["_message_id"] = message.object_id
                nested.update(objects.get_all_nested_objects(message))
            heads = [message_to_proto(remove_content_from_message(message)) for message in messages]
            trees = [objects.get_object_tree(message) for message in messages]
            asked = request(messages_list=heads, message_object_trees=trees, **more)
            pushed = self._ask(self._http.PushMessages, asked)
            put = lambda request: self._ask(self._http.PushObject, request)  # noqa: E731
            push = calls.make_push_object_fn_protobuf(put, self._node, run, pushed.session_id)
            transfer.push_objects(nested, push, object_ids_to_push=set(pushed.objects_to_push))
        return pushed


class _Secret:
    """Says the secret that the SuperLink's inner door asks for."""

    def __init__(self, secret: str):
        self.secret = secret

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        context.request.headers[SECRET_HEADER] = self.secret
        return call_next(context)


class Refused(Exception):
    """The other end answered, and the answer is no."""

    def __init__(self, status: int, text: str, date: str | None = None):
        """date: when it answered, by its own clock."""
        super().__init__(f"{status} {text[:200]}")
        self.status, self.clock = status, clock_words(date, datetime.datetime.now(datetime.UTC))


def _call(
    fn: Callable[[Any], Any],
    request: Any,
    stop: threading.Event,
    patience: float,
    waiting: Callable[[str], None] = lambda reason: None,
) -> Any:
    """One request of Flower's; waits out a server that is away, up to `patience` seconds. waiting: told why, once."""
    wait, end = FIRST_RETRY, time.monotonic() + patience
    while True:
        try:
            return fn(request)
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in (502, 503, 504):
                given = error.response
                raise Refused(given.status_code, given.text, given.headers.get("date")) from None
            reason = f"it answers {error.response.status_code}"
        except httpx.TransportError as error:
            reason = first_line(error)
            if "CERTIFICATE" in reason.upper():
                raise Untrusted(
                    f"The server's certificate is not to be trusted ({reason}): give this federation's ca.crt, and an "
                    "address that the certificate names."
                ) from None
        if time.monotonic() > end or stop.wait(wait):
            raise Away(f"The server is out of reach ({reason}).")
        if wait == FIRST_RETRY:
            waiting(reason)
        wait = min(wait * 2, 5.0)


# ---------------------------------------------------------------- the server's end


class FlowerServer(_End):
    """The server's end of Flower's network: admits the registered keys, opens a run, exchanges messages.

    address, ca, secret: of the SuperLink's inner door; keys: the clients' public keys, by which they are numbered.
    """

    def __init__(self, address: str, ca: bytes, secret: str, keys: list[bytes], poll: float = 0.1):
        self._poll, self._stop = poll, threading.Event()
        self._node = Node(node_id=1)  # the SuperLink itself, by Flower's rule
        door = _Secret(secret)
        self._open = lambda kind, *more: kind.from_server_address(address, False, ca, [door, *more])
        with self._open(ControlHttpClient, RuntimeVersionHttpInterceptor(component_name="flwr CLI")) as control:
            public = [public_key_to_bytes(load_ssh_public_key(key)) for key in keys]  # type: ignore[arg-type]
            register = [RegisterNodeRequest(public_key=key) for key in public]
            self._ids = [int(self._ask(control.RegisterNode, request).node_id) for request in register]
            self._numbers = {node: number for number, node in enumerate(self._ids)}
            start = StartRunRequest(fab=fab_to_proto(_stub()), override_config=user_config_to_proto({}))
            self._ask(control.StartRun, start)
        with self._open(RuntimeHttpClient, RuntimeVersionHttpInterceptor(component_name="SuperExec")) as queue:
            task = runtime.AcquireTaskRequest(supported_task_types=["flwr-serverapp"])
            while not (token := self._ask(queue.AcquireTask, task).token):
                time.sleep(poll)
        version = RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")
        self._http = self._open(RuntimeHttpClient, version, RuntimeTokenHttpInterceptor(token))
        threading.Thread(target=self._beats, daemon=True).start()
        self._task = self._ask(self._http.PullTaskInput, runtime.PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = self._task.task_id, self._task.run.run_id  # Message() reads them
        TaskIdentity.node_id = self._task.context.node_id

    def _ask(self, fn: Callable[[Any], Any], request: Any) -> Any:
        try:
            return _call(fn, request, self._stop, 30.0)
        except (Refused, Away) as error:
            raise UnalikeError(f"Flower's SuperLink does not do what it should: {error}") from None

    def _beats(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(httpx.HTTPError):  # a later call of ours says it better
                self._http.SendTaskHeartbeat(runtime.SendTaskHeartbeatRequest())
            self._stop.wait(BEAT)

    def online(self) -> set[int]:
        there = self._ask(self._http.GetNodes, runtime.GetNodesRequest()).nodes
        return {self._numbers[n.node_id] for n in there if n.node_id in self._numbers}

    def exchange(self, requests: Mapping[int, Parts], seconds: float) -> Iterator[tuple[int, bytes | Lost]]:
        end = time.monotonic() + seconds
        asked = {k: Message(content(parts), self._ids[k], "train", ttl=seconds) for k, parts in requests.items()}
        pushed = self._push([*asked.values()], runtime.PushAppMessagesRequest, self._task.run.run_id)
        waiting = dict(zip(pushed.message_ids, asked, strict=True))
        waiting.pop("", None)
        while waiting and (left := end - time.monotonic()) > 0:
            found = self._ask(self._http.PullMessages, runtime.PullAppMessagesRequest(message_ids=list(waiting)))
            for proto, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                client = waiting.pop(proto.metadata.reply_to_message_id, None)
                if client is not None:
                    yield client, self._received(proto, tree, left)
            if waiting:
                time.sleep(self._poll)

    def _received(self, proto: Any, tree: Any, seconds: float) -> bytes | Lost:
        try:
            return answer_of(self._take(tree, self._task.run.run_id, proto.metadata.message_id, seconds))
        except UnalikeError as error:
            return Lost(str(error))
        except Exception as error:  # whatever Flower's decoding makes of bytes that lie
            return Lost(f"its answer cannot be read ({type(error).__name__})")

    def close(self, done: bool) -> None:
        """End the run in Flower's books."""
        self._stop.set()
        status, why = ("completed", "") if done else ("failed", "left early")
        with contextlib.suppress(httpx.HTTPError):  # it may be gone
            end = runtime.PushTaskOutputRequest(context=self._task.context, sub_status=status, details=why)
            self._http.PushTaskOutput(end)
        self._http.close()


# ---------------------------------------------------------------- a client's end


class FlowerClient(_End):
    """A client's end of Flower's network.

    address, ca: of the SuperLink's outer door; key: the private key's file; memory: a file for the name that the
    SuperLink gave; wait: seconds for a server that is away; patience: seconds for a server that thinks this key is
    still there, or does not know it; say: what a person should hear.
    """

    def __init__(
        self,
        address: str,
        ca: bytes,
        key: Path,
        memory: Path,
        wait: float = float("inf"),
        patience: float = 60.0,
        say: Callable[[str], None] = lambda text: None,
    ):
        try:
            private = load_ssh_private_key(key.read_bytes(), None)
            self._public = public_key_to_bytes(private.public_key())  # type: ignore[arg-type]
        except (OSError, ValueError, TypeError) as error:
            reason = first_line(error)
            raise UnalikeError(f"The key {key} cannot be read ({reason}): make one with `unalike keys node`.") from None
        self._memory, self._wait, self._patience = memory, wait, patience
        self._address, self._say = address, say
        version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        signed = NodeAuthHttpInterceptor(private, private.public_key())  # type: ignore[arg-type]
        self._http = FleetHttpClient.from_server_address(address, False, ca, [version, signed])
        self._stop, self._beating = threading.Event(), threading.Event()
        self._node: Any = None
        self._asked: Message | None = None

    def join(self) -> None:
        begin = time.monotonic()
        end = begin + self._patience
        request = fleet.ActivateNodeRequest(public_key=self._public, heartbeat_interval=BEAT)
        waiting = lambda reason: self._say(f"waiting for {self._address} ({reason})")  # noqa: E731
        self._say(f"joining {self._address}")
        refused = False
        while True:
            try:
                answer = _call(self._http.ActivateNode, request, self._stop, self._wait, waiting)
                break
            except Away as error:
                raise UnalikeError(f"{error} Start it, or see the address.") from None
            except Refused as error:
                if time.monotonic() > end:
                    why = error.clock or (
                        "Its .pub must be among the server's keys, and no other process may use it. (Or the clocks "
                        "differ: they must agree to a few seconds.)"
                    )
                    raise UnalikeError(f"The server does not let this key in ({error}). {why}") from None
                # a server that has just started, or has not noticed a predecessor's end, says 412 for a moment
                if not refused and (error.status != 412 or time.monotonic() > begin + min(SOON, self._patience / 2)):
                    again = f"trying again for {self._patience:g} s"
                    self._say(f"{self._address} refuses this key ({error}); {error.clock or again}")
                    refused = True
                self._leave_as_before()
                self._stop.wait(0.5)
        self._node = Node(node_id=answer.node_id)
        self._memory.write_text(str(answer.node_id))
        if not self._beating.is_set():
            self._beating.set()
            threading.Thread(target=self._beats, daemon=True).start()

    def _leave_as_before(self) -> None:
        """A client that was killed is thought to be there for two more beats, and would not be let in: say goodbye for
        it. Who has its key and its folder is its successor."""
        with contextlib.suppress(OSError, ValueError, httpx.HTTPError):
            self._http.DeactivateNode(fleet.DeactivateNodeRequest(node_id=int(self._memory.read_text())))

    def _beats(self) -> None:
        while not self._stop.wait(BEAT * 0.4):
            with contextlib.suppress(httpx.HTTPError):  # `receive` notices, and says it
                self._http.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=BEAT))

    def _ask(self, fn: Callable[[Any], Any], request: Any) -> Any:
        try:
            return _call(fn, request, self._stop, 15.0)
        except Refused as error:
            raise Away(f"The server does not know this client now ({error}).") from None

    def receive(self) -> Parts | None:
        found = self._ask(self._http.PullMessages, fleet.PullMessagesRequest(node=self._node))
        if not found.messages_list:
            return None
        about = message_from_proto(found.messages_list[0]).metadata
        try:
            message = self._take(found.message_object_trees[0], about.run_id, about.message_id, about.ttl)
        except Away:
            raise
        except Exception as error:  # whatever Flower's decoding makes of bytes that lie
            raise UnalikeError(f"A request cannot be read ({type(error).__name__}).") from None
        self._asked = message
        try:
            return parts_of(message.content)
        except (UnalikeError, ValueError):
            return [b""]  # which is no request, and is answered so

    def reply(self, answer: bytes) -> None:
        assert self._asked is not None
        reply, more = Message(content([answer]), reply_to=self._asked), {"clientapp_runtime_list": [0.0]}
        with contextlib.suppress(transfer.ObjectPushError):  # too late: the server has closed the exchange
            self._push([reply], fleet.PushMessagesRequest, reply.metadata.run_id, node=self._node, **more)

    def leave(self) -> None:
        self._stop.set()
        if self._node is not None:
            with contextlib.suppress(httpx.HTTPError):
                self._http.DeactivateNode(fleet.DeactivateNodeRequest(node_id=self._node.node_id))
        self._http.close()


# ---------------------------------------------------------------- the SuperLink, with two doors


def _door(app: Any, allow: Callable[[str, dict[bytes, bytes]], bool]) -> Any:
    """The app behind a door that answers 404 to what it does not allow."""

    async def guard(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not allow(scope["path"], dict(scope["headers"])):
            await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
            return
        await app(scope, receive, send)

    return guard


async def _superlink(outer: socket.socket, inner: socket.socket, tls: dict[str, dict[str, str]]) -> None:
    """Flower's SuperLink, which puts clients' calls, control and tasks on one port and asks only clients for a key:
    here the outer door lets clients' calls through and nothing else, and the inner one, on loopback, asks for a
    secret."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import uvicorn
        from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
        from flwr.superlink.main import create_app
    secret = os.environ.pop(SECRET).encode()
    app = create_app(_parse_superlink_lifespan_config(), SuperLinkLifespan)
    known = lambda path, headers: hmac.compare_digest(headers.get(SECRET_HEADER.encode(), b""), secret)  # noqa: E731
    doors = {"inner": _door(app, known), "outer": _door(app, lambda path, headers: path.startswith("/v1/fleet/"))}
    quiet: dict[str, Any] = {"access_log": False, "log_level": "warning", "timeout_graceful_shutdown": 1}
    servers = {}
    for name, door in doors.items():
        options: dict[str, Any] = {"lifespan": "on" if name == "inner" else "off", **tls[name], **quiet}
        servers[name] = uvicorn.Server(uvicorn.Config(door, **options))
    tasks = [asyncio.create_task(servers["inner"].serve(sockets=[inner]))]
    while not servers["inner"].started and not tasks[0].done():
        await asyncio.sleep(0.02)
    tasks.append(asyncio.create_task(servers["outer"].serve(sockets=[outer])))
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for server in servers.values():
        server.should_exit = True
    await asyncio.gather(*tasks)


def main() -> None:
    """`python -m unalike.network.flower OUTER INNER OUTER_KEYS INNER_KEYS SCRATCH`: a SuperLink on two sockets that
    its parent has opened, with certificates from these folders, which ends with its parent."""
    outer, inner, outer_keys, inner_keys, scratch = sys.argv[1:]
    lifeline(Path(scratch))
    tls = {
        name: {"ssl_keyfile": f"{folder}/server.key", "ssl_certfile": f"{folder}/server.crt"}
        for name, folder in (("outer", outer_keys), ("inner", inner_keys))
    }
    sys.argv = [
        "flower-superlink",
        *("--ssl-certfile", tls["outer"]["ssl_certfile"], "--ssl-keyfile", tls["outer"]["ssl_keyfile"]),
        *("--ssl-ca-certfile", f"{outer_keys}/ca.crt", "--enable-supernode-auth"),
        *("--isolation", "process", "--disable-runtime-dependency-installation"),
    ]
    asyncio.run(_superlink(socket.socket(fileno=int(outer)), socket.socket(fileno=int(inner)), tls))


if __name__ == "__main__":
    main()
