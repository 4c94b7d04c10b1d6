"""Everything that touches Flower: both ends of its network, run inside processes of ours, and its SuperLink.

Stock Flower starts a process for every message. Here the server and every client are one long-lived process each, and
only the SuperLink between them is Flower's. No code travels: a client runs only what it has installed.

Most of these imports are not part of Flower's public interface: hence `flwr>=1.41,<1.42`, and no such import anywhere
else. Flower reacts to some failures with a SIGINT to its own process or by exiting; therefore its retries and
heartbeats are not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hashlib
import hmac
import json
import logging
import os
import secrets
import socket
import sys
import threading
import time
import warnings
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from unalike.errors import UnalikeError, first_line, line_of
from unalike.network.app import PIECE, about_of, answer_of, content, parts_of
from unalike.network.clock import clock_words
from unalike.network.door import WHOLE, Gate, door, gated, raise_file_limit
from unalike.network.keys import roster
from unalike.network.link import MAX_MESSAGE, Away, Lost, Parts, Untrusted
from unalike.network.processes import lifeline
from unalike.network.profile import Times
from unalike.text import printable

with warnings.catch_warnings():
    # deprecations inside Flower's own libraries
    warnings.simplefilter("ignore")
    import httpx
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
    from flwr.app import Message
    from flwr.app.message import remove_content_from_message
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
    from flwr.common.serde import fab_to_proto, message_from_proto, message_to_proto, user_config_to_proto
    from flwr.proto import fleet_pb2 as fleet
    from flwr.proto import runtime_pb2 as runtime
    from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
    from flwr.proto.message_pb2 import ObjectTree
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.date import now
    from flwr.supercore.fab import Fab
    from flwr.supercore.inflatable import inflatable_object as objects
    from flwr.supercore.inflatable import inflatable_protobuf_utils as calls
    from flwr.supercore.inflatable import inflatable_utils as transfer
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, verify_signature
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor


logging.getLogger("flwr").setLevel(logging.WARNING)

# wait for an object that is still being uploaded; Flower's own first wait is a second
FIRST_WAIT = 0.05
# seconds within which a server should know a client
SOON = 5.0
FIRST_RETRY = 0.2  # seconds; doubled at each retry
# seconds for which the SuperLink keeps a message beyond its deadline
GRACE = 30.0
# objects that the server fetches in parallel
PULLS = 4
MAX_DEPTH, MAX_OBJECTS = 3, MAX_MESSAGE // PIECE + 64  # limits on a message's tree of objects
# most bytes of a call or its answer, except objects
MAX_CALL = 1 << 20
MAX_OBJECT = PIECE + (1 << 20)  # most bytes of one object
TWO = "another process uses this client's key too, and the server's requests go to one or the other: stop one of them"
# seconds between a client's heartbeats, Flower's minimum; after two missed ones it counts as gone
BEAT = 10.0
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
    """Return an empty app: a run must name one to Flower, but clients with their own code never open it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from flwr.cli.build import build_fab_from_files  # takes half a second, which clients need not spend

        data, _ = build_fab_from_files({"pyproject.toml": STUB, "stub.py": b"app = None\n"})
    return Fab(hashlib.sha256(data).hexdigest(), data, {})


# ---------------------------------------------------------------- both ends


def object_ids(tree: Any) -> list[str]:
    """Return the ids of a message's objects (the message, its records, and theirs); refuse a tree that is larger or
    deeper than our messages are."""
    level, ids = [tree], list[str]()
    for _ in range(MAX_DEPTH):
        ids += [node.object_id for node in level]
        if len(ids) > MAX_OBJECTS:
            raise UnalikeError(f"A message has more than {MAX_OBJECTS} objects.")
        level = [child for node in level for child in node.children]
    if level:
        raise UnalikeError(f"A message's objects are nested more than {MAX_DEPTH} deep.")
    return list(dict.fromkeys(ids))


class _IncomingMessage:
    """A message whose objects arrive one by one."""

    def __init__(self, tree: Any, message_id: str):
        self.id, self.missing, self.found = message_id, object_ids(tree), dict[str, bytes]()
        self.size = 0

    def take(self, object_id: str, data: bytes) -> None:
        self.size += len(data)
        if self.size > MAX_MESSAGE:
            raise UnalikeError(f"A message has more than {MAX_MESSAGE} bytes.")
        self.found[object_id] = data
        self.missing.remove(object_id)

    def message(self) -> Message:
        """Return the message once all its objects have arrived."""
        message = transfer.inflate_object_from_contents(self.id, self.found)
        if not isinstance(message, Message):
            raise UnalikeError("A message has a record that is none of ours.")
        message.metadata.__dict__["_message_id"] = self.id
        return message


def _fetch(tree: Any, message_id: str, ask: Callable[[str], bytes], seconds: float) -> Message:
    """Fetch a message with all its objects, within limits of bytes and time."""
    coming, wait, end = _IncomingMessage(tree, message_id), FIRST_WAIT, time.monotonic() + max(seconds, 1.0)
    while coming.missing:
        for object_id in [*coming.missing]:
            with contextlib.suppress(transfer.ObjectUnavailableError):
                coming.take(object_id, ask(object_id))
        if coming.missing:
            if time.monotonic() > end:
                raise UnalikeError("A message did not come whole in time.")
            time.sleep(wait)
            wait = min(2 * wait, 1.0)
    return coming.message()


class _End:
    """One end of Flower's network: sends and receives messages through `_http`, as `_node`, in pieces."""

    _http: Any
    _node: Any

    def _ask(self, fn: Callable[[Any], Any], request: Any) -> Any:
        """Send one of Flower's requests and return its answer."""
        raise NotImplementedError

    def _pull(self, run: int) -> Callable[[str], bytes]:
        """Return a function that fetches an object's bytes; it raises ObjectUnavailableError if they are not uploaded
        yet."""
        get = lambda request: self._ask(self._http.PullObject, request)  # noqa: E731
        return calls.make_pull_object_fn_protobuf(get, self._node, run)

    def _confirm(self, run: int, message_id: str) -> None:
        """Confirm that a message has arrived: the SuperLink may delete it."""
        confirm = lambda request: self._ask(self._http.ConfirmMessageReceived, request)  # noqa: E731
        calls.make_confirm_message_received_fn_protobuf(confirm, self._node, run)(message_id)

    def _take(self, tree: Any, run: int, message_id: str, seconds: float) -> Message:
        """Fetch a message and confirm that it has arrived."""
        message = _fetch(tree, message_id, self._pull(run), seconds)
        self._confirm(run, message_id)
        return message

    def _push(self, messages: list[Message], request: type, run: int, **more: Any) -> Any:
        """Send messages, and those of their objects that the SuperLink lacks; return its answer."""
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


def _attempt(pull: Callable[[str], bytes]) -> Callable[[str], bytes | None]:
    """Return a function that fetches an object's bytes, or None if they are not uploaded yet."""

    def attempt(object_id: str) -> bytes | None:
        with contextlib.suppress(transfer.ObjectUnavailableError):
            return pull(object_id)
        return None

    return attempt


class _Secret:
    """Adds the secret that the SuperLink's inner port requires to every request."""

    def __init__(self, secret: str):
        self.secret = secret

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        context.request.headers[SECRET_HEADER] = self.secret
        return call_next(context)


class Refused(Exception):
    """Raised when the other end answers with a refusal."""

    def __init__(self, status: int, text: str, date: str | None = None):
        """date: the time of the answer by the other end's clock."""
        super().__init__(f"{status} {_detail(text)[:200]}".strip())
        self.status, self.clock = status, clock_words(date, datetime.datetime.now(datetime.UTC))


def _detail(text: str) -> str:
    """Return the words of a refusal; Flower's are in JSON."""
    try:
        return str(json.loads(text)["detail"])
    except (ValueError, KeyError, TypeError):
        return text


def _call(
    fn: Callable[[Any], Any],
    request: Any,
    stop: threading.Event,
    patience: float,
    waiting: Callable[[str], None] = lambda reason: None,
) -> Any:
    """Send one of Flower's requests; wait for a server that is away, up to `patience` seconds. waiting: called once
    with the reason for waiting."""
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

    address, ca, secret: of the SuperLink's inner port; keys: the clients' public keys, which give their numbers.
    """

    def __init__(self, address: str, ca: bytes, secret: str, keys: list[bytes], poll: float = 0.1):
        self._poll, self._stop = poll, threading.Event()
        self.notice: Callable[[int, str], None] = lambda client, text: None
        self.times: Any = Times()
        self._pool = ThreadPoolExecutor(PULLS)
        self._processes: dict[int, list[str]] = {}  # per client, the processes that answered last
        self._doubled: set[int] = set()
        # the SuperLink itself, by Flower's convention
        self._node = Node(node_id=1)
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
        self._run = self._task.run.run_id
        TaskIdentity.task_id, TaskIdentity.run_id = self._task.task_id, self._task.run.run_id  # Message() reads these
        TaskIdentity.node_id = self._task.context.node_id

    def _ask(self, fn: Callable[[Any], Any], request: Any) -> Any:
        try:
            return _call(fn, request, self._stop, 30.0)
        except (Refused, Away) as error:
            raise UnalikeError(f"Flower's SuperLink does not do what it should: {error}") from None

    def _beats(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(httpx.HTTPError):  # a later call of ours gives a better error
                self._http.SendTaskHeartbeat(runtime.SendTaskHeartbeatRequest())
            self._stop.wait(BEAT)

    def online(self) -> set[int]:
        there = self._ask(self._http.GetNodes, runtime.GetNodesRequest()).nodes
        return {self._numbers[n.node_id] for n in there if n.node_id in self._numbers}

    def exchange(self, requests: Mapping[int, Parts], seconds: float) -> Iterator[tuple[int, bytes | Lost]]:
        """Send each client its request and yield the answers as they come. Uploads are fetched in parallel, so that
        a client that stops half-way delays no other; at the deadline, answers that are complete by then are still
        taken."""
        end, salt = time.monotonic() + seconds, secrets.token_bytes(16)
        asked = {k: self._message(k, parts, salt, seconds) for k, parts in requests.items()}
        with self.times.spent("superlink"):
            pushed = self._push([*asked.values()], runtime.PushAppMessagesRequest, self._run)
        waiting = dict(zip(pushed.message_ids, asked, strict=True))
        waiting.pop("", None)
        coming: dict[int, _IncomingMessage] = {}
        self._slowest = 0.0
        last = False
        while (waiting or coming) and not last:
            last = time.monotonic() > end
            yield from self._declared(waiting, coming)
            yield from self._whole(coming)
            if (waiting or coming) and not last:
                time.sleep(self._poll)
        for client in coming:
            yield client, Lost("its answer had not come whole by the deadline")

    def stream(self, more: Callable[[], Mapping[int, Parts]], seconds: float) -> Iterator[tuple[int, bytes | Lost]]:
        """Give answers as they come, while further requests are sent."""
        waiting, coming, ends = dict[str, int](), dict[int, _IncomingMessage](), dict[int, float]()
        while True:
            if requests := more():
                salt = secrets.token_bytes(16)
                asked = {k: self._message(k, parts, salt, seconds) for k, parts in requests.items()}
                pushed = self._push([*asked.values()], runtime.PushAppMessagesRequest, self._run)
                waiting |= dict(zip(pushed.message_ids, asked, strict=True))
                ends |= dict.fromkeys(asked, time.monotonic() + seconds)
                if waiting.pop("", None) is not None:
                    yield from ((k, Lost("it cannot be reached")) for k in asked.keys() - {*waiting.values()})
                    continue  # whoever was told may have sent more
            if not waiting and not coming:
                return
            self._slowest = 0.0
            yield from self._declared(waiting, coming)
            yield from self._whole(coming)
            now = time.monotonic()
            for client in [k for k in {*waiting.values(), *coming} if now > ends[k]]:
                coming.pop(client, None)
                waiting = {message: k for message, k in waiting.items() if k != client}
                yield client, Lost(f"no answer within {seconds:g} s")
            time.sleep(self._poll)

    def _message(self, client: int, parts: Parts, salt: bytes, seconds: float) -> Message:
        about = {"notice": TWO} if client in self._doubled else {}
        # kept beyond the deadline, so that the SuperLink still has answers that came just before it
        return Message(content(parts, salt, **about), self._ids[client], "train", ttl=seconds + GRACE)

    def _declared(self, waiting: dict[str, int], coming: dict[int, _IncomingMessage]) -> Iterator[tuple[int, Lost]]:
        """Look once for answers that have been announced; these move from `waiting` to `coming`."""
        if not waiting:
            return
        with self.times.spent("superlink"):
            found = self._ask(self._http.PullMessages, runtime.PullAppMessagesRequest(message_ids=list(waiting)))
        for proto, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            client = waiting.pop(proto.metadata.reply_to_message_id, None)
            if client is not None:
                try:
                    coming[client] = _IncomingMessage(tree, proto.metadata.message_id)
                except UnalikeError as error:
                    yield client, Lost(str(error))

    def _whole(self, coming: dict[int, _IncomingMessage]) -> Iterator[tuple[int, bytes | Lost]]:
        """Fetch once whatever has arrived of each answer; yield the complete ones, and those that cannot be read."""
        attempt = _attempt(self._pull(self._run))
        for client, one in [*coming.items()]:
            try:
                with self.times.spent("superlink"):
                    for object_id, data in zip([*one.missing], self._pool.map(attempt, [*one.missing]), strict=True):
                        if data is not None:
                            one.take(object_id, data)
                    answer = None if one.missing else self._received(client, one)
            # any error that Flower's decoding raises for malformed bytes
            except Exception as error:
                answer = Lost(f"its answer cannot be read ({line_of(error)})")
            if answer is not None:
                del coming[client]
                yield client, answer

    def _received(self, client: int, coming: _IncomingMessage) -> bytes | Lost:
        message = coming.message()
        self._confirm(self._run, coming.id)
        if message.has_content():
            about = about_of(message.content)
            longer = min(about.get("seconds", 0.0), 1e6) - self._slowest
            # counted at once, because the last answer ends the exchange
            if longer > 0:
                self.times.clients += longer
                self._slowest += longer
            self._see(client, about.get("process", ""))
        return answer_of(message)

    def _see(self, client: int, process: str) -> None:
        """Detect one key used by two processes: an earlier process answers again after a later one has."""
        seen = self._processes.setdefault(client, [])
        if process in seen[:-1] and client not in self._doubled:
            self._doubled.add(client)
            self.notice(client, "two processes use its key at once, and share its requests: stop one of them")
        if process and process not in seen[-1:]:
            self._processes[client] = [*[p for p in seen[-3:] if p != process], process[:64]]

    def close(self, done: bool) -> None:
        """End the run in Flower's records."""
        self._stop.set()
        status, why = ("completed", "") if done else ("failed", "left early")
        with contextlib.suppress(httpx.HTTPError):  # the SuperLink may be gone
            end = runtime.PushTaskOutputRequest(context=self._task.context, sub_status=status, details=why)
            self._http.PushTaskOutput(end)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._http.close()


# ---------------------------------------------------------------- a client's end


def hardened(http: httpx.Client) -> None:
    """Make this HTTP client follow no redirects, unpack no compressed answers, and read none without limit."""
    http.follow_redirects = False
    http.headers["accept-encoding"] = "identity"
    http.event_hooks = {"request": [], "response": [_limited]}


def _limited(response: httpx.Response) -> None:
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        response.close()
        raise httpx.RemoteProtocolError("the answer is packed, which was not asked for")
    path = response.request.url.path
    response.stream = _Limited(response.stream, MAX_OBJECT if path == "/v1/fleet/pull-object" else MAX_CALL)


class _Limited(httpx.SyncByteStream):
    """An answer's bytes, limited in number and time."""

    def __init__(self, stream: Any, most: int, seconds: float = WHOLE):
        self.stream, self.left, self.end = stream, most, time.monotonic() + seconds

    def __iter__(self) -> Iterator[bytes]:
        for data in self.stream:
            self.left -= len(data)
            if self.left < 0 or time.monotonic() > self.end:
                raise httpx.RemoteProtocolError("the answer does not end")
            yield data

    def close(self) -> None:
        self.stream.close()


class FlowerClient(_End):
    """A client's end of Flower's network.

    address, ca: of the SuperLink's outer port; key: file of the private key; memory: file for the name that the
    SuperLink gave; wait: seconds to wait for a server that is away; patience: seconds to wait for a server that thinks
    this key is still connected, or does not know it; say: called with messages for a person.
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
        hardened(vars(self._http)["_client"])  # the attribute has no public name
        self._process, self._since = secrets.token_hex(8), 0.0
        self._stop, self._beating = threading.Event(), threading.Event()
        self._node: Any = None
        self._asked: Message | None = None

    def join(self) -> None:
        request = fleet.ActivateNodeRequest(public_key=self._public, heartbeat_interval=BEAT)
        self._say(f"joining {self._address}")
        begin: float | None = None  # when the server that is there first refused this key
        refused = False

        def waiting(reason: str) -> None:
            nonlocal begin
            # patience is with a server that answers: the time for which there was none does not count
            begin = None
            self._say(f"waiting for {self._address} ({reason})")

        while True:
            try:
                answer = _call(self._http.ActivateNode, request, self._stop, self._wait, waiting)
                break
            except Away as error:
                raise UnalikeError(f"{error} Start it, or see the address.") from None
            except Refused as error:
                begin = time.monotonic() if begin is None else begin
                if time.monotonic() > begin + self._patience:
                    why = error.clock or (
                        "Its .pub must be among the server's keys, and no other process may use it. (Or the clocks "
                        "differ: they must agree to a few seconds.)"
                    )
                    raise UnalikeError(f"The server does not let this key in ({error}). {why}") from None
                # a server that has just started, or has not noticed that a predecessor ended, answers 412 for a moment
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
        """Sign off on behalf of a killed predecessor: the server would count it as present for two more heartbeats and
        refuse this client. Having its key and its folder makes this process its successor."""
        with contextlib.suppress(OSError, ValueError, httpx.HTTPError):
            self._http.DeactivateNode(fleet.DeactivateNodeRequest(node_id=int(self._memory.read_text())))

    def _beats(self) -> None:
        while not self._stop.wait(BEAT * 0.4):
            with contextlib.suppress(httpx.HTTPError):  # `receive` notices it, and reports it
                self._http.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=BEAT))

    def _ask(self, fn: Callable[[Any], Any], request: Any) -> Any:
        try:
            return _call(fn, request, self._stop, 15.0)
        except Refused as error:
            raise Away(f"The server does not know this client now ({error}).") from None
        # bytes that are not one of Flower's messages
        except ValueError as error:
            raise Away(f"The server's answer cannot be read ({first_line(error)}).") from None

    def receive(self) -> Parts | None:
        found = self._ask(self._http.PullMessages, fleet.PullMessagesRequest(node=self._node))
        if not found.messages_list:
            return None
        about = message_from_proto(found.messages_list[0]).metadata
        try:
            message = self._take(found.message_object_trees[0], about.run_id, about.message_id, about.ttl)
        except Away:
            raise
        # any error that Flower's decoding raises for malformed bytes
        except Exception as error:
            raise UnalikeError(f"A request cannot be read ({type(error).__name__}).") from None
        self._asked, self._since = message, time.perf_counter()
        try:
            if notice := about_of(message.content).get("notice"):
                self._say(printable(notice))
            return parts_of(message.content)
        except (UnalikeError, ValueError):
            # an empty request, which is answered with an error
            return [b""]

    def reply(self, answer: bytes) -> None:
        assert self._asked is not None
        about: dict[str, Any] = {"process": self._process, "seconds": time.perf_counter() - self._since}
        reply, more = Message(content([answer], **about), reply_to=self._asked), {"clientapp_runtime_list": [0.0]}
        with contextlib.suppress(transfer.ObjectPushError):  # too late: the server has closed the exchange
            self._push([reply], fleet.PushMessagesRequest, reply.metadata.run_id, node=self._node, **more)

    def leave(self) -> None:
        self._stop.set()
        if self._node is not None:
            with contextlib.suppress(httpx.HTTPError):
                self._http.DeactivateNode(fleet.DeactivateNodeRequest(node_id=self._node.node_id))
        self._http.close()


# ---------------------------------------------------------------- the SuperLink, with two ports


def registered(keys: Path) -> dict[bytes, Any]:
    """Return the registered keys, by their bytes as they appear in Flower's calls."""
    public = [load_ssh_public_key(key) for key in roster(keys).values()]
    return {b64encode(public_key_to_bytes(key)): key for key in public}  # type: ignore[arg-type]


def admission(keys: Mapping[bytes, Any]) -> Callable[[str, dict[bytes, bytes]], int]:
    """Return the function that judges calls at the outer port by path and headers: only clients' calls, with a
    registered key. A body as large as an object's is read only if the call is signed; Flower itself checks the
    signature of every call."""

    def admit(path: str, headers: dict[bytes, bytes]) -> int:
        if not path.startswith("/v1/fleet/"):
            return -404
        key = keys.get(headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER.encode(), b""))
        if key is None:
            return -401
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) <= MAX_CALL:
            return MAX_CALL
        if not _signed(key, headers):
            return -401
        return MAX_OBJECT if path == "/v1/fleet/push-object" else MAX_CALL

    return admit


def _signed(key: Any, headers: dict[bytes, bytes]) -> bool:
    """Return whether a call's signature is valid for this key and recent."""
    try:
        timestamp = headers[TIMESTAMP_HEADER.encode()]
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.encode()], validate=True)
        age = (now() - datetime.datetime.fromisoformat(timestamp.decode("ascii"))).total_seconds()
        recent = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
        return recent and verify_signature(key, timestamp, signature)
    except (KeyError, ValueError, TypeError):
        return False


def inspection(path: str) -> Callable[[bytes], bool] | None:
    """Return the check for a call's complete body, if its path has one. A client's answer must be one message, from
    that client, in reply to a request, with objects as our messages have them. (Flower would accept a request to
    another client in the server's name.)"""
    return _proper_answer if path == "/v1/fleet/push-messages" else None


def _proper_answer(body: bytes) -> bool:
    try:
        request = fleet.PushMessagesRequest.FromString(body)
        (message,), (tree,) = request.messages_list, request.message_object_trees
        about = message.metadata
        return bool(about.reply_to_message_id) and about.src_node_id == request.node.node_id and bool(object_ids(tree))
    # any error that protobuf raises for malformed bytes
    except Exception:
        return False


def bounded_trees(store: Any) -> None:
    """Limit the trees that Flower's object store returns to the size of our messages: objects declared in several
    messages could add up to a tree of any size."""
    from flwr.supercore.object_store import NoObjectInStoreError

    def get_object_tree(self: Any, object_id: str) -> Any:
        left = MAX_OBJECTS

        def build(object_id: str, depth: int) -> Any:
            nonlocal left
            left -= 1
            entry = self.store.get(object_id)
            if entry is None or left < 0 or depth > MAX_DEPTH:
                raise NoObjectInStoreError(f"The objects of '{object_id}' are none of a message of ours.")
            return ObjectTree(
                object_id=object_id, children=[build(child, depth + 1) for child in entry.child_object_ids]
            )

        with self.lock_store:
            return build(object_id, 1)

    store.get_object_tree = get_object_tree


async def _superlink(
    outer: socket.socket, inner: socket.socket, tls: dict[str, dict[str, str]], keys: dict[bytes, Any]
) -> None:
    """Run Flower's SuperLink. It puts clients' calls, control and tasks on one port and asks only clients for a key;
    here the outer port lets only clients' calls through, and the inner one, on loopback, requires a secret."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import uvicorn
        from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
        from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
        from flwr.superlink.main import create_app
    bounded_trees(InMemoryObjectStore)
    secret = os.environ.pop(SECRET).encode()
    app = create_app(_parse_superlink_lifespan_config(), SuperLinkLifespan)
    gate = Gate(len(keys), raise_file_limit())

    def known(path: str, headers: dict[bytes, bytes]) -> int:
        return MAX_MESSAGE if hmac.compare_digest(headers.get(SECRET_HEADER.encode(), b""), secret) else -404

    doors = {"inner": door(app, known), "outer": door(app, admission(keys), inspection, gate)}
    quiet: dict[str, Any] = {"access_log": False, "log_level": "warning", "timeout_graceful_shutdown": 1, "ws": "none"}
    servers = {}
    for name, guarded in doors.items():
        options: dict[str, Any] = {"lifespan": "on" if name == "inner" else "off", **tls[name], **quiet}
        settings = uvicorn.Config(guarded, **options)
        servers[name] = uvicorn.Server(settings) if name == "inner" else gated(settings, gate)
    tasks = [asyncio.create_task(servers["inner"].serve(sockets=[inner]))]
    while not servers["inner"].started and not tasks[0].done():
        await asyncio.sleep(0.02)
    tasks.append(asyncio.create_task(servers["outer"].serve(sockets=[outer])))
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for server in servers.values():
        server.should_exit = True
    await asyncio.gather(*tasks)


def main() -> None:
    """Run a SuperLink on two sockets that the parent process has opened, with certificates from these folders; it ends
    with its parent. `python -m unalike.network.flower OUTER INNER OUTER_KEYS INNER_KEYS SCRATCH`."""
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
    doors = socket.socket(fileno=int(outer)), socket.socket(fileno=int(inner))
    asyncio.run(_superlink(*doors, tls, registered(Path(outer_keys))))


if __name__ == "__main__":
    main()
