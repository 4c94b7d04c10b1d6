"""A host's audit log: all that leaves it, from the very bytes, before they leave."""

import hashlib
import json

import pytest
import torch
from vertical_cases import bank_and_shop

from unalike import vertical as v
from unalike.cli import main
from unalike.errors import UnalikeError
from unalike.messages import wire
from unalike.network.audit import FILE, Audit
from unalike.vertical.line import Unlogged
from unalike.vertical.links import Gone, ask
from unalike.vertical.node import Node
from unalike.vertical.run import Settings
from unalike.vertical.serve import Guest
from unalike.vertical.tables import read_table


class Heard(Node):
    """A party that keeps the bytes of all its answers."""

    left: tuple = ()

    def answer(self, data):
        self.left = (*self.left, super().answer(data))
        return self.left[-1]


def lines(folder):
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def test_every_byte_that_leaves_a_host_is_in_its_log(door, tmp_path, capsys):
    bank, shop = bank_and_shop(tmp_path)
    state = tmp_path / "state"
    state.mkdir()
    node = Heard(read_table("shop", shop, "customer"), folder=state, secret=True)
    door.join(node, audit=Audit(state))
    guest = Guest(read_table("bank", bank, "customer", "default"), door.listener, ["shop"], tmp_path / "run", 20.0)
    guest.say = lambda text: None
    guest.train(v.LogisticRegression(), Settings(epochs=2, batch_size=50), 2)
    ask(door.listener.links(["shop"], 1.0)[0], "alignment")
    with pytest.raises(UnalikeError, match="which no party answers"):
        ask(door.listener.links(["shop"], 1.0)[0], "burn")
    door.listener.done()
    door.threads[0].join(20)
    found, fields = lines(state), []
    for number, answer in enumerate(node.left):
        header, tensors = wire.decode(answer)
        own = {line["field"]: line for line in found if line["answer"] == number}
        for name, value in tensors.items():
            data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            assert own[name]["sha256"] == hashlib.sha256(data).hexdigest() and own[name]["bytes"] == len(data)
            fields.append(name)
        if header["kind"] == "error":
            assert own["reason"]["words"] == header["reason"]
    assert {line["answer"] for line in found} == set(range(len(node.left)))
    assert fields.count("z") == 2 * (2 + 1) and fields.count("points") == 2
    zs = [line for line in found if line["field"] == "z"]
    assert [line["round"] for line in zs] == [0, 0, 0, 1, 1, 1] and {line["run"] for line in zs} == {node.alignment}

    assert main(["audit", str(state)]) == 0
    said = capsys.readouterr().out
    assert "masked ids of its own people, for matching:\n  points " in said
    assert "replies to a vertical run's batches:\n  z                             6 times" in said
    assert "2 rounds" in said and "The log is whole" in said
    (state / FILE).write_text((state / FILE).read_text().replace('"field": "z"', '"field": "y"', 1))
    assert main(["audit", str(state)]) == 1


class Full(Audit):
    """A log on a disk that is full."""

    def _append(self, lines, chain):
        raise UnalikeError("audit.jsonl cannot be written (No space left on device): nothing leaves without it.")


def test_nothing_leaves_that_cannot_be_noted(door, tmp_path):
    _, shop = bank_and_shop(tmp_path)
    door.join(Node(read_table("shop", shop, "customer"), secret=True), audit=Full(tmp_path))
    with pytest.raises(Gone):
        ask(door.listener.links(["shop"], 20.0)[0], "hello")
    door.threads[0].join(20)
    assert isinstance(door.errors[0], Unlogged) and "nothing leaves without it" in str(door.errors[0])
