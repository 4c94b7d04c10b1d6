"""The clients' port: what an outsider, and a client that lies, can make the SuperLink read, keep and wait for."""

import asyncio
import contextlib
import datetime
import hashlib
import ssl
from base64 import b64encode
from types import SimpleNamespace

import pytest
from small import refused

from unalike.network import door as doors
from unalike.network import keys
from unalike.network.door import Gate, door, gated

flwr = pytest.importorskip("flwr")


async def app(scope, receive, send):
    """Reads a whole body, and answers how long it was."""
    length = 0
    while True:
        event = await receive()
        length += len(event.get("body", b""))
        if not event.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(length).encode()})


def call(guard, path="/v1/fleet/x", headers=(), body=(b"",), never=False):
    """Make one call in process; return its status and how many pieces of the body were read."""
    sent, read = [], 0
    pieces = list(body)

    async def receive():
        nonlocal read
        read += 1
        if not pieces and never:
            await asyncio.sleep(60)
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces) or never}

    async def send(event):
        sent.append(event)

    scope = {"type": "http", "path": path, "headers": list(headers), "client": ("1.2.3.4", 5)}
    asyncio.run(guard(scope, receive, send))
    return sent[0]["status"], read


def test_a_body_is_not_read_before_path_and_key_are_known():
    judged = []

    def admit(path, headers):
        judged.append(path)
        return {"/a": -404, "/b": -401, "/c": 10}[path]

    guard = door(app, admit)
    assert call(guard, "/a") == (404, 0)
    assert call(guard, "/b") == (401, 0)
    assert call(guard, "/c", body=(b"12345", b"67890")) == (200, 2)
    assert judged == ["/a", "/b", "/c"]


@pytest.mark.parametrize("length", [b"11", b"99999999999999999999", b"-1", b"ten"])
def test_a_length_beyond_the_limit_is_refused_before_a_byte_is_read(length):
    assert call(door(app, lambda path, headers: 10), headers=[(b"content-length", length)]) == (413, 0)


def test_bytes_are_counted_whatever_the_length_said():
    assert call(door(app, lambda path, headers: 10), body=[b"1234"] * 1000) == (413, 3)


def test_a_body_that_stops_coming_is_given_up(monkeypatch):
    monkeypatch.setattr(doors, "PAUSE", 0.01)
    assert call(door(app, lambda path, headers: 10), body=(b"1",), never=True)[0] == 408


def test_a_call_that_does_not_end_is_given_up(monkeypatch):
    monkeypatch.setattr(doors, "WHOLE", 0.01)

    async def sleeper(scope, receive, send):
        await asyncio.sleep(60)

    assert call(door(sleeper, lambda path, headers: 10))[0] == 408


def test_a_whole_body_is_inspected_and_then_handed_on():
    guard = door(app, lambda path, headers: 10, lambda path: (lambda body: body == b"good") if path == "/p" else None)
    assert call(guard, "/p", body=(b"go", b"od")) == (200, 2)
    assert call(guard, "/p", body=(b"ba", b"d")) == (400, 2)
    assert call(guard, "/q", body=(b"ba", b"d")) == (200, 2)


def test_what_is_no_http_is_refused():
    sent = []

    async def send(event):
        sent.append(event)

    asyncio.run(door(app, lambda path, headers: 10)({"type": "websocket", "path": "/"}, None, send))
    assert sent[0]["status"] == 404


# ---------------------------------------------------------------- connections


def test_connections_are_counted_by_peer():
    gate = Gate(keys=1, most=100)
    assert all(gate.enter("a") for _ in range(doors.PER_PEER)) and not gate.enter("a") and gate.enter("b")
    gate.leave("a")
    assert gate.enter("a")
    assert Gate(keys=100).per_peer == 800
    few = Gate(most=1)
    assert few.enter("a") and not few.enter("b")
    few.leave("a")
    assert few.enter("b") and "a" not in few.open


@contextlib.asynccontextmanager
async def serving(gate, **options):
    """The door on a real socket of loopback, with an app that answers at once."""
    import socket

    import uvicorn

    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    options |= {"lifespan": "off", "log_level": "error", "ws": "none"}
    server = gated(uvicorn.Config(door(app, lambda path, headers: 1 << 20, gate=gate), **options), gate)
    task = asyncio.create_task(server._serve([sock]))
    while not server.started and not task.done():
        await asyncio.sleep(0.01)
    try:
        yield port
    finally:
        server.should_exit = True
        await task


GET = b"POST /v1/fleet/x HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"


async def closed(reader):
    """Read until the other end closes."""
    with contextlib.suppress(ConnectionError):
        while await reader.read(1 << 16):
            pass


def test_idle_connections_and_endless_headers_are_closed_and_others_are_served(monkeypatch):
    monkeypatch.setattr(doors, "HEADERS", 0.2)
    gate = Gate()
    gate.per_peer = 6

    async def scene():
        async with serving(gate) as port:
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
            endless = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(ConnectionError):
                for _ in range(100):
                    endless[1].write(b"x: " + b"y" * 4096)
                    await endless[1].drain()
            await closed(endless[0])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(2):  # a connection that is kept, with a body larger than headers may be
                writer.write(GET % 100_000 + bytes(100_000))
                assert b"200" in await reader.readuntil(b"100000")
            crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(9)]  # beyond the peer's share
            for one, _ in [*silent, *crowd, (reader, writer)]:
                await closed(one)  # by the server, when their time is over
            while gate.open:
                await asyncio.sleep(0.01)
            for _, one in [*silent, *crowd, endless, (reader, writer)]:
                one.close()

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_a_handshake_that_does_not_come_is_given_up(monkeypatch, tmp_path):
    monkeypatch.setattr(doors, "HANDSHAKE", 0.2)
    keys.make_server(tmp_path / "keys", [])
    gate, folder = Gate(), tmp_path / "keys"

    async def scene():
        tls = {"ssl_keyfile": str(folder / "server.key"), "ssl_certfile": str(folder / "server.crt")}
        async with serving(gate, **tls) as port:
            silent = await asyncio.open_connection("127.0.0.1", port)
            context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(GET % 3 + b"abc")
            assert b"200" in await reader.readuntil(b"\r\n\r\n")
            writer.close()
            await closed(silent[0])
            while gate.open:
                await asyncio.sleep(0.01)
            silent[1].close()

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_the_limit_of_files_is_raised():
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
    try:
        assert doors.raise_file_limit() == min(before[1], 65_536) - doors.RESERVE
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(before[1], 65_536)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# ---------------------------------------------------------------- who is let in


@pytest.fixture(scope="module")
def flower():
    from unalike.network import one_machine

    return one_machine.flower()


@pytest.fixture
def signed(flower, tmp_path):
    """The door's judgement, and the headers that a registered client sends."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

    (tmp_path / "clients").mkdir()
    keys.make_node(tmp_path / "a")
    (tmp_path / "a.pub").rename(tmp_path / "clients" / "a.pub")
    private = load_ssh_private_key((tmp_path / "a").read_bytes(), None)

    def headers(when=0.0, **more):
        stamp = (flower.now() + datetime.timedelta(seconds=when)).isoformat().encode()
        return {
            b"flwr-public-key": b64encode(public_key_to_bytes(private.public_key())),
            b"flwr-timestamp": stamp,
            b"flwr-signature": b64encode(sign_message(private, stamp)),
            **{name.replace("_", "-").encode(): value for name, value in more.items()},
        }

    return flower.admission(flower.registered(tmp_path)), headers


PUSH = "/v1/fleet/push-object"


def test_large_bodies_only_of_who_has_signed(flower, signed):
    admit, headers = signed
    small, large = {"content_length": b"9"}, {"content_length": b"%d" % (flower.MAX_CALL + 1)}
    assert admit("/v1/control/start-run", headers(**small)) == -404
    assert admit(PUSH, {}) == admit(PUSH, {**headers(**small), b"flwr-public-key": b"x"}) == -401
    assert admit(PUSH, headers(**small)) == flower.MAX_CALL
    assert admit(PUSH, headers(**large)) == flower.MAX_OBJECT
    assert admit("/v1/fleet/pull-messages", headers(**large)) == flower.MAX_CALL
    for wrong in (
        headers(when=-400, **large),
        headers(when=60, **large),
        {**headers(**large), b"flwr-signature": b64encode(b"no")},
        {**headers(**large), b"flwr-signature": b"!"},
        {**headers(**large), b"flwr-timestamp": b"yesterday"},
        {name: value for name, value in headers(**large).items() if name != b"flwr-signature"},
        {**headers(when=-400)},  # a body of no stated length
    ):
        assert admit(PUSH, wrong) == -401
    assert admit(PUSH, headers()) == flower.MAX_OBJECT


def tree(flower, depth=1, width=1, name="0"):
    """Objects, each of `width` children, so many levels deep."""
    children = [] if depth == 1 else [tree(flower, depth - 1, width, f"{name}.{k}") for k in range(width)]
    return flower.ObjectTree(object_id=hashlib.sha256(name.encode()).hexdigest(), children=children)


def answer(flower, tree, count=1, **about):
    from flwr.proto.message_pb2 import Message, Metadata

    about = {"src_node_id": 7, "dst_node_id": 1, "reply_to_message_id": "m", **about}
    messages = [Message(metadata=Metadata(**about))] * count
    request = flower.fleet.PushMessagesRequest(messages_list=messages, message_object_trees=[tree], node={"node_id": 7})
    return request.SerializeToString()


def test_an_answer_is_one_message_of_its_sender_with_objects_of_ours(flower):
    check = flower.inspection("/v1/fleet/push-messages")
    assert flower.inspection(PUSH) is None
    good = tree(flower, 3, 2)
    assert check(answer(flower, good))
    assert not check(answer(flower, good, count=2)) and not check(answer(flower, good, count=0))
    assert not check(answer(flower, good, src_node_id=1)), "a request to another client in the server's name"
    assert not check(answer(flower, good, reply_to_message_id=""))
    assert not check(answer(flower, tree(flower, 4)))
    assert not check(answer(flower, tree(flower, 90)))
    assert not check(answer(flower, tree(flower, 2, flower.MAX_OBJECTS)))
    assert not check(b"\xff" * 40)
    with refused("nested more than 3 deep"):
        flower.object_ids(tree(flower, 4))
    with refused("more than 192 objects"):
        flower.object_ids(tree(flower, 3, 14))
    assert len(flower.object_ids(tree(flower, 3, 13))) == 1 + 13 + 169


def test_objects_that_stand_for_a_tree_without_end_are_none(flower):
    """Declared two by two in many messages, forty levels stand for 10**12 objects."""
    from flwr.supercore.object_store import in_memory_object_store as stores

    class Store(stores.InMemoryObjectStore):
        pass

    flower.bounded_trees(Store)
    store = Store()
    good = tree(flower, 3, 3)
    store.preregister(1, good)
    assert store.get_object_tree(good.object_id) == good
    entry = stores.ObjectEntry
    store.store["0"] = entry(b"", False, [], 0, {1})
    for k in range(1, 40):
        store.store[str(k)] = entry(b"", False, [str(k - 1)] * 2, 0, {1})
    for name in ("39", "nobody"):
        with pytest.raises(stores.NoObjectInStoreError):
            store.get_object_tree(name)


# ---------------------------------------------------------------- messages


def test_nobody_can_foresee_an_object_and_one_exchange_shares_what_is_common():
    from unalike.network.app import about_of, content, parts_of

    first, second = content([b"hello"]), content([b"hello"])
    assert first["0.0"].object_id != second["0.0"].object_id
    one, two = content([b"all", b"a"], b"s" * 16, process="p", seconds=0.5), content([b"all", b"b"], b"s" * 16)
    assert one["0.0"].object_id == two["0.0"].object_id and one["1.0"].object_id != two["1.0"].object_id
    assert parts_of(one) == [b"all", b"a"] and about_of(one) == {"process": "p", "seconds": 0.5}
    assert about_of(two) == {} and about_of(content([b""], process=3)) == {}


def test_one_record_under_many_names_is_refused(monkeypatch):
    from flwr.app import ConfigRecord, RecordDict

    from unalike.network import app as ours

    monkeypatch.setattr(ours, "MAX_MESSAGE", 1000)
    record = ConfigRecord({"bytes": bytes(101)})
    assert len(ours.parts_of(RecordDict({f"0.{k}": record for k in range(9)}))[0]) == 909
    with refused("A message has more than 1000 bytes"):
        ours.parts_of(RecordDict({f"0.{k}": record for k in range(10)}))
    with refused("more than 8 parts"):
        ours.parts_of(RecordDict({f"{k}.0": ConfigRecord({"bytes": b""}) for k in range(10)}))
    for name in ("0.٣", "0." + "9" * 5000):
        with refused("none of ours"):
            ours.parts_of(RecordDict({name: record}))


class Table:
    """Flower's SuperLink as the server's end sees it: messages that are declared, objects that come one by one."""

    def __init__(self, flower):
        self.flower, self.declared, self.objects, self.looks, self.confirmed = flower, [], {}, 0, []
        self.on_look = lambda looks: None

    def declare(self, client, reply, upload=True):
        from flwr.app.message import remove_content_from_message

        nested = self.flower.objects.get_all_nested_objects(reply)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        head = self.flower.message_to_proto(remove_content_from_message(reply))
        self.declared.append((f"asked-{client}", head, self.flower.objects.get_object_tree(reply)))
        for object_id, one in nested.items():
            self.objects[object_id] = one.deflate() if upload else b""
        return nested

    def PullMessages(self, request):
        self.looks += 1
        self.on_look(self.looks)
        found = [one for one in self.declared if one[0] in request.message_ids]
        for asked, head, _ in found:
            head.metadata.reply_to_message_id = asked
        return self.flower.runtime.PullAppMessagesResponse(
            messages_list=[head for _, head, _ in found], message_object_trees=[tree for *_, tree in found]
        )

    def PullObject(self, request):
        from flwr.proto.message_pb2 import PullObjectResponse

        data = self.objects[request.object_id]
        self.looks += 0 if data else 1
        return PullObjectResponse(object_found=True, object_available=bool(data), object_content=data)

    def ConfirmMessageReceived(self, request):
        from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse

        self.confirmed.append(request.message_object_id)
        return ConfirmMessageReceivedResponse()


@pytest.fixture
def end(flower, monkeypatch):
    """The server's end over such a table, for three clients."""
    from concurrent.futures import ThreadPoolExecutor

    out = object.__new__(flower.FlowerServer)
    out._http, out._run, out._poll, out._node = Table(flower), 1, 0.001, flower.Node(node_id=1)
    out._pool, out.times = ThreadPoolExecutor(2), flower.Times()
    out._ids, out._processes, out._doubled, out.told = [11, 12, 13], {}, set(), []
    out.notice = lambda client, text: out.told.append((client, text))
    monkeypatch.setattr(flower.FlowerServer, "_ask", lambda self, fn, request: fn(request))
    pushed = type("Pushed", (), {"message_ids": ["asked-0", "asked-1", "asked-2"]})
    monkeypatch.setattr(flower.FlowerServer, "_push", lambda self, messages, *rest: pushed)
    monkeypatch.setattr(flower.FlowerServer, "_message", lambda self, *parts: None)
    # a look takes a second, of a clock that nothing else moves
    clock = SimpleNamespace(monotonic=lambda: out._http.looks, sleep=lambda seconds: None)
    monkeypatch.setattr(flower, "time", clock)
    yield out
    out._pool.shutdown()


def reply(flower, parts, **about):
    from flwr.app.message import Message

    from unalike.network.app import content

    flower.TaskIdentity.task_id, flower.TaskIdentity.run_id, flower.TaskIdentity.node_id = 1, 1, 1
    return Message(content(parts, **about), 1, "train", ttl=60)


REQUESTS = dict.fromkeys(range(3), (b"",))


def test_a_client_that_declares_and_does_not_upload_holds_up_nobody(flower, end):
    """It is the first to declare; the others declare later, one of them whole only at the deadline's last look."""
    table = end._http
    table.declare(0, reply(flower, [b"half"]), upload=False)
    late = {}

    def on_look(looks):
        if looks >= 2 and not late:
            table.declare(1, reply(flower, [b"one"]))
            late.update(table.declare(2, reply(flower, [b"two"]), upload=False))

    table.on_look = on_look
    answers = end.exchange(REQUESTS, 40)
    assert next(answers) == (1, b"one")
    for object_id, one in late.items():
        table.objects[object_id] = one.deflate()
    assert next(answers) == (2, b"two")
    (client, lost), *none = answers
    assert client == 0 and lost == "its answer had not come whole by the deadline" and not none
    assert len(table.confirmed) == 2


def test_what_has_come_by_the_deadline_is_taken(flower, end):
    for client in range(3):
        end._http.declare(client, reply(flower, [b"%d" % client]))
    assert dict(end.exchange(REQUESTS, -1.0)) == {0: b"0", 1: b"1", 2: b"2"}


def test_an_answer_whose_objects_lie_is_lost_alone(flower, end):
    table = end._http
    for client in range(3):
        nested = table.declare(client, reply(flower, [b"%d" % client]))
        if client == 1:
            table.objects[next(iter(nested))] = b"no object at all"
    table.declared[2] = (*table.declared[2][:2], tree(flower, 9))
    answers = dict(end.exchange(REQUESTS, 5.0))
    assert answers[0] == b"0"
    assert "cannot be read" in answers[1] and "nested more than 3 deep" in answers[2]


def test_an_answer_beyond_the_largest_is_lost_alone(flower, end, monkeypatch):
    monkeypatch.setattr(flower, "MAX_MESSAGE", 2000)
    for client in range(3):
        end._http.declare(client, reply(flower, [bytes(1000 * (1 + client % 2))]))
    answers = dict(end.exchange(REQUESTS, 40))
    assert len(answers[0]) == len(answers[2]) == 1000 and "more than 2000 bytes" in answers[1]


def test_one_key_in_two_processes_is_noticed_and_a_restart_is_none(flower, end):
    for process in ("a", "a", "b", "b"):
        end._see(0, process)
    assert not end.told
    end._see(0, "a")
    end._see(0, "b")
    assert [client for client, _ in end.told] == [0] and "two processes use its key" in end.told[0][1]
    assert end._doubled == {0}


def test_a_clients_seconds_are_counted_of_the_slowest(flower, end):
    for client, seconds in enumerate((0.25, 0.5, 0.125)):
        end._http.declare(client, reply(flower, [b""], process="p", seconds=seconds))
    answers = end.exchange(REQUESTS, 40)
    assert [next(answers)[0] for _ in range(3)] == [0, 1, 2]  # and nobody asks for a fourth
    assert end.times.clients == 0.5 and end.times.superlink > 0


# ---------------------------------------------------------------- a client's end


def test_a_client_follows_nobody_unpacks_nothing_and_reads_no_endless_answer(flower):
    import httpx

    sent = {"redirect": 0, "endless": 0}

    def endless():
        while True:
            sent["endless"] += 1 << 16
            yield bytes(1 << 16)

    def serve(request):
        kind = request.url.path.rpartition("/")[2]
        if kind == "elsewhere":
            sent["redirect"] += 1
        return {
            "redirect": lambda: httpx.Response(307, headers={"location": "/elsewhere"}),
            "packed": lambda: httpx.Response(200, headers={"content-encoding": "gzip"}, content=b"\x1f\x8b"),
            "endless": lambda: httpx.Response(200, content=endless()),
            "plain": lambda: httpx.Response(200, content=b"fine"),
        }[kind]()

    with httpx.Client(transport=httpx.MockTransport(serve), base_url="https://a", follow_redirects=True) as http:
        flower.hardened(http)
        assert http.post("/plain").content == b"fine"
        assert http.post("/redirect").status_code == 307 and not sent["redirect"]
        with pytest.raises(httpx.RemoteProtocolError, match="packed"):
            http.post("/packed")
        with pytest.raises(httpx.RemoteProtocolError, match="does not end"):
            http.post("/endless")
        assert sent["endless"] < 2 * flower.MAX_CALL
        assert "gzip" not in http.build_request("POST", "/plain").headers["accept-encoding"]
