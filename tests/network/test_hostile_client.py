"""A hostile client with a registered key, against a real federation on this machine: it costs its own rounds only."""

import secrets
import signal
import socket
import ssl
import threading

import httpx
import pytest
from test_flower import SECONDS, data, nobody_left, simulated, wait_for
from test_network_messages import close, own, tables

import unalike as ua
from unalike.messages.request import united
from unalike.network import one_machine, server
from unalike.network.client import Client
from unalike.network.limits import Limits
from unalike.network.policy import Policy

pytest.importorskip("flwr")
__all__ = ["nobody_left"]  # a fixture
pytestmark = pytest.mark.slow


def deep(flower, depth):
    node = flower.ObjectTree(object_id=secrets.token_hex(32))
    for _ in range(depth):
        node = flower.ObjectTree(object_id=secrets.token_hex(32), children=[node])
    return node


class Hostile:
    """Takes the place of a joined client. `lie` answers the requests of rounds; the others are answered honestly."""

    def __init__(self, here, name):
        self.flower = one_machine.flower()
        self.end = self.flower.FlowerClient(
            here.address, (here.folder / "outer" / "ca.crt").read_bytes(), here.homes / name / "key",
            here.folder / "hostile", patience=SECONDS,
        )  # fmt: skip
        self.tried = []

    def declare(self, tree, **about):
        """Declare an answer to the last request, with this tree, and upload nothing."""
        flower, end = self.flower, self.end
        reply = flower.Message(flower.content([b"x"]), reply_to=end._asked)
        reply.metadata.__dict__["_message_id"] = tree.object_id
        head = flower.message_to_proto(flower.remove_content_from_message(reply))
        for name, value in about.items():
            setattr(head.metadata, name, value)
        request = flower.fleet.PushMessagesRequest(messages_list=[head], message_object_trees=[tree], node=end._node)
        try:
            end._ask(end._http.PushMessages, request)
            self.tried.append("taken")
        except flower.Away as error:
            self.tried.append(str(error)[:60])

    def lie(self, round):
        flower = self.flower
        if round == 0:  # half an upload
            self.declare(deep(flower, 2))
        elif round == 1:  # deeper than any message
            self.declare(deep(flower, 50))
        elif round == 2:  # a request to somebody else in the server's name
            self.declare(deep(flower, 2), src_node_id=1, reply_to_message_id="")
        else:
            self.end.reply(secrets.token_bytes(5000))


def test_a_registered_client_that_lies_in_every_way_costs_its_own_rounds(tmp_path):
    fed = data(3)
    settings = tables("fedavg", rounds=5, run={"evaluate_clients": "none"})
    with one_machine.federation(fed) as (here, link):
        assert wait_for(lambda: link.online() == {0, 1, 2})
        here.processes["client-0002"].send_signal(signal.SIGKILL)
        here.processes.forget("client-0002")
        hostile = Hostile(here, "client-0002")
        hostile.end.join()
        honest = Client(own(fed, 2), tmp_path / "state", Policy.open(repeatable=True))
        asked = []

        def attend():
            while not stop.is_set():
                try:
                    parts = hostile.end.receive()
                    if parts is None:
                        stop.wait(0.1)
                        continue
                    header = united(parts)[0]
                    if header["kind"] == "request":
                        asked.append(header["round"])
                        hostile.lie(header["round"])
                    else:
                        hostile.end.reply(honest.answer(parts))
                except Exception as error:  # of its own doing
                    hostile.tried.append(repr(error)[:80])

        stop = threading.Event()
        thread = threading.Thread(target=attend, daemon=True)
        thread.start()
        said = []
        flood(here)
        try:
            real = server.run(
                settings, link, here.public, wait=SECONDS, deadline=15.0, classes=3, say=said.append,
                limits=Limits(tries=0),
            )  # fmt: skip
        finally:
            stop.set()
            thread.join(SECONDS)
            hostile.end.leave()
            honest.close()
    # half an upload is begun; what is no answer does not pass the door
    assert hostile.tried[0] == "taken" and all("(400" in told for told in hostile.tried[1:3]), hostile.tried
    assert isinstance(real, ua.Run) and len(real.history) == 5, said
    assert [line.get("lost") for line in real.history] == [1] * 5, (said, hostile.tried)
    close(real.server.w, simulated(settings, fed, clients_per_round=[[0, 1]] * 5).server.w)


def flood(here):
    """Outsiders: a large body without a key, and connections that say nothing."""
    address = ("127.0.0.1", int(here.address.rpartition(":")[2]))
    idle = [socket.create_connection(address) for _ in range(80)]
    context = ssl.create_default_context(cafile=str(here.folder / "outer" / "ca.crt"))
    for one in idle:
        one.close()
    with httpx.Client(verify=context, timeout=30) as http:
        try:
            answer = http.post(f"https://{here.address}/v1/fleet/push-object", content=bytes(30 << 20))
            assert answer.status_code in (401, 413)
        except httpx.TransportError:
            pass  # it closed before the body was sent
