"""Parties over real TLS: the same model as a simulation, strangers refused, a party killed and resumed."""

import contextlib
import dataclasses as dc
import json
import socket

import numpy as np
import pytest
import torch
from vertical_cases import bank_and_shop
from vertical_door import HERE, Killed

from unalike import vertical as v
from unalike.errors import UnalikeError
from unalike.messages import wire
from unalike.network import keys
from unalike.vertical import line
from unalike.vertical.exchange import Hosts
from unalike.vertical.links import Direct
from unalike.vertical.node import Node
from unalike.vertical.parties import held_out
from unalike.vertical.run import Session, Settings, read_history
from unalike.vertical.serve import Guest
from unalike.vertical.tables import read_table


def guest_of(door, folder, bank, **options):
    table = read_table("bank", bank, "customer", "default")
    return Guest(table, door.listener, ["shop"], folder, patience=10.0, say=door.said.append, **options)


def shop_node(door, shop, kind=Node):
    return kind(read_table("shop", shop, "customer"), folder=door.ring / "shop-state", secret=True)


def simulated(guest, nodes, method, settings):
    """Train in this process on the rows that were matched over the network; return all parties."""
    copies = []
    for one in (guest.node, *nodes):
        copies.append(Node(one.table, one.name))
        copies[-1].positions, copies[-1].matched, copies[-1].role = one.positions, one.matched, one.role
    train, test = held_out(len(guest.node.positions), guest.test, settings.seed)
    session = Session(
        copies[0],
        [Direct(copy) for copy in copies[1:]],
        method,
        settings,
        train,
        test,
        "standard",
        2,
        guest.uses,
        guest.unmatched,
        Direct(Node(None, "coordinator")) if method.coordinated else None,
    )
    session.set_up()
    for number in range(1, settings.epochs + 1):
        session.epoch(number)
    return copies


METHOD, HOW = v.LogisticRegression(lr=0.5), Settings(epochs=4, batch_size=40)


def test_a_bank_and_a_shop_match_train_and_predict(door, tmp_path):
    bank, shop = bank_and_shop(tmp_path)
    node = shop_node(door, shop)
    door.join(node)
    guest = guest_of(door, tmp_path / "run", bank, unmatched="mask")
    guest.train(METHOD, HOW, 2)
    assert guest.report.matched == {"shop": 110} and guest.report.aligned == 120
    facts = json.loads((tmp_path / "run" / "vertical.json").read_text())
    assert [one["party"] for one in facts["coefficients"]] == ["bank"]  # the shop keeps its own
    same = simulated(guest, (node,), METHOD, HOW)
    for here, there in zip(same, (guest.node, node), strict=True):
        assert torch.equal(here.me.theta, there.me.theta)

    again = guest_of(door, tmp_path / "predict", bank, unmatched="mask")
    found = again.predict(guest.node.share(4), "zero", None)
    assert len(found) == 120 and (found.classes == guest.table.y.numpy()).mean() > 0.8
    joint = METHOD.scores(same[0].me, Hosts([Direct(same[1])], METHOD, {"shop": 2}, 1), torch.arange(120))
    assert np.abs(torch.sigmoid(joint)[:, 0].numpy() - found.probabilities[guest.node.positions, 1]).max() < 1e-12
    door.listener.done()
    door.threads[0].join(10)
    assert "shop is done" in door.said


def test_a_prediction_with_rows_or_a_host_missing(door, tmp_path):
    bank, shop = bank_and_shop(tmp_path)
    node = shop_node(door, shop)
    door.join(node)
    guest = guest_of(door, tmp_path / "run", bank)
    guest.train(METHOD, dc.replace(HOW, epochs=1, fallback="alone"), 2)
    share, alone = guest.node.share(1), (tmp_path / "run" / "alone.share").read_bytes()
    again = guest_of(door, tmp_path / "again", bank, unmatched="mask")
    with pytest.raises(UnalikeError, match=r"10 of 120 rows are not at every party: missing at shop \(10\)"):
        again.predict(share, "refuse", None)
    joint = again.predict(share, "alone", alone).probabilities
    lonely = guest_of(door, tmp_path / "lonely", bank, unmatched="mask")
    lonely.hosts = []
    own = lonely.predict(share, "alone", alone, ["shop"]).probabilities
    without = ~again.node.matched["shop"].numpy()[np.argsort(again.node.positions.numpy())]
    assert without.sum() == 10 and (joint[without] == own[without]).all() and (joint[~without] != own[~without]).all()
    zero = lonely.predict(share, "zero", None, ["shop"]).probabilities[:, 1]
    x = guest.node.preparation.apply(guest.table.x).double()
    assert np.abs(zero - torch.sigmoid(x @ guest.node.me.theta + guest.node.me.b)[:, 0].numpy()).max() < 1e-12


def test_a_host_is_asked_before_ids_are_compared_and_told_of_the_end(door, tmp_path):
    bank, shop = bank_and_shop(tmp_path)
    node = Node(read_table("shop", shop, "customer"), methods=["sealed-logistic"], tell=door.said.append)
    door.join(node)
    with pytest.raises(UnalikeError, match=r"^shop takes part in sealed-logistic, not in 'logistic'"), door.listener:
        guest_of(door, tmp_path / "run", bank).train(METHOD, HOW, 2)
    door.threads[0].join(20)
    assert node._side is None and node.positions is None
    assert "refused: shop takes part in sealed-logistic, not in 'logistic'." in door.said
    assert "The guest ended the run before it was finished" in str(door.errors[0])


def test_a_coordinator_behind_the_real_link(door, tmp_path):
    bank, shop = bank_and_shop(tmp_path)
    node = shop_node(door, shop)
    door.join(node)
    door.join(Node(None, "coordinator", folder=tmp_path / "third"))
    guest = guest_of(door, tmp_path / "run", bank)
    method, how = v.HardyLogistic(lr=0.5, bits=512), Settings(epochs=2)
    guest.train(method, how, 2)
    for here, there in zip(simulated(guest, (node,), method, how), (guest.node, node), strict=True):
        assert torch.equal(here.me.theta, there.me.theta)
    assert not (tmp_path / "third").exists()


class Mortal(Node):
    """A party that dies at its twentieth call, which is in the middle of an epoch."""

    calls = 0

    def handle(self, header, tensors):
        self.calls += header.get("kind") == "call"
        if self.calls == 20:
            raise Killed
        return super().handle(header, tensors)


def test_a_host_that_is_killed_in_mid_epoch_and_starts_again_gives_the_same_model(door, tmp_path):
    bank, shop = bank_and_shop(tmp_path)
    first, second = shop_node(door, shop, Mortal), shop_node(door, shop)
    door.join(first, then=second)
    guest = guest_of(door, tmp_path / "run", bank)
    guest.train(METHOD, HOW, 2)
    assert any("shop is gone" in line for line in door.said) and second.me is not None
    for here, there in zip(simulated(guest, (second,), METHOD, HOW), (guest.node, second), strict=True):
        assert torch.equal(here.me.theta, there.me.theta)
    assert [line["epoch"] for line in read_history(tmp_path / "run")] == [1, 2, 3, 4]


def test_a_host_is_lost_while_another_answers(door, tmp_path):
    """The other host's answer to the lost batch must not be taken for one to a later request."""
    bank, shop = bank_and_shop(tmp_path)
    rows = [row.split(",") for row in shop.read_text().split()[1:]]
    depot = {"customer": [r[0] for r in rows], "stock": [float(len(r[1])) + k % 5 for k, r in enumerate(rows)]}
    first, second = shop_node(door, shop, Mortal), shop_node(door, shop)
    third = Node(read_table("depot", depot, "customer"), folder=door.ring / "depot-state", secret=True)
    door.join(third)
    door.join(first, then=second)
    guest = guest_of(door, tmp_path / "run", bank)
    guest.hosts = ["shop", "depot"]
    session = guest.train(METHOD, HOW, 2)
    assert any("shop is gone" in line for line in door.said) and len(read_history(tmp_path / "run")) == 4
    same = simulated(guest, (second, third), METHOD, HOW)
    for here, there in zip(same, (guest.node, second, third), strict=True):
        assert torch.equal(here.me.theta, there.me.theta)
    assert len(session.hosts) == 2


def test_a_guest_that_is_killed_between_the_parties_checkpoints_continues(door, tmp_path, monkeypatch):
    """The host has kept epoch 3 and the guest has not: both go on from 2."""
    bank, shop = bank_and_shop(tmp_path)
    node = shop_node(door, shop)
    door.join(node)
    guest, save = guest_of(door, tmp_path / "run", bank), Node.save

    def dying(self, epoch):
        if self.role == "guest" and epoch == 3:
            raise Killed
        save(self, epoch)

    monkeypatch.setattr(Node, "save", dying)
    with pytest.raises(Killed):
        guest.train(METHOD, HOW, 2)
    monkeypatch.undo()
    door.listener.close()
    door.listener = line.Listener(door.ring / "keys", (HERE, door.listener.port), 20.0, door.said.append)
    again = guest_of(door, tmp_path / "run", bank)
    again.train(METHOD, HOW, 2, resume=True)
    for here, there in zip(simulated(again, (node,), METHOD, HOW), (again.node, node), strict=True):
        assert torch.equal(here.me.theta, there.me.theta)


def test_another_table_cannot_continue_a_run(door, tmp_path):
    bank, shop = bank_and_shop(tmp_path)
    node = shop_node(door, shop)
    door.join(node)
    guest = guest_of(door, tmp_path / "run", bank)
    guest.train(METHOD, dc.replace(HOW, epochs=1), 2)
    node.table = dc.replace(node.table, ids=node.table.ids[::-1])
    node.positions = None
    with pytest.raises(UnalikeError, match=r"shop: .*is of a table with other ids"):
        guest_of(door, tmp_path / "run", bank).train(METHOD, HOW, 2, resume=True)
    node.table = read_table("shop", shop, "customer", drop=["returns"])
    with pytest.raises(UnalikeError, match=r"shop: .* has another model: other columns, or another method"):
        guest_of(door, tmp_path / "run", bank).train(METHOD, HOW, 2, resume=True)


@pytest.mark.parametrize(("name", "key", "line_of"), [
    ("bakery", "shop", "'bakery' is not registered here"),
    ("shop", "depot", "not the one that 'shop' is registered with"),
])  # fmt: skip
def test_strangers_are_refused_in_one_line(door, name, key, line_of):
    with pytest.raises(UnalikeError, match=line_of):
        line.connect((HERE, door.listener.port), door.ring / "keys" / "ca.crt", door.ring / key, name)
    with pytest.raises(UnalikeError, match="did not come within 0 s"):
        door.listener.links(["shop"], 0)


def test_another_guest_s_certificate_is_refused(door, tmp_path):
    keys.make_server(tmp_path / "other", [HERE])
    door.join(Node(None, "coordinator"), ca=tmp_path / "other" / "ca.crt")
    door.threads[0].join(20)
    assert "is not the guest of this ca.crt" in str(door.errors[0])


def test_nonsense_at_the_door_does_not_disturb(door):
    with socket.create_connection((HERE, door.listener.port)) as stream:
        stream.sendall(b"GET / HTTP/1.1\r\n\r\n" * 20)
        stream.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            while stream.recv(1000):
                pass
    door.join(Node(None, "coordinator"))
    assert door.listener.links(["coordinator"], 10.0)[0].name == "coordinator"


class Garbler(Node):
    """A party whose answers are not what was asked for."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.garbled = {}

    def answer(self, data):
        header, _ = wire.decode(data)
        wrong = self.garbled.get(header.get("function") or header.get("kind"))
        return super().answer(data) if wrong is None else wrong


def test_a_host_that_answers_garbage_is_named(door, tmp_path):
    bank, shop = bank_and_shop(tmp_path)
    node = shop_node(door, shop, Garbler)
    door.join(node)
    replies = {
        b"nonsense": "shop answered with something else: A message says its header",
        wire.encode({"kind": "reply"}, {"z": torch.zeros(3, 1).double()}): r"shop sent 'z' with shape \[3, 1\]",
        wire.encode({"kind": "reply"}, {"z": torch.full((40, 1), float("nan")).double()}): "NaN or infinite",
        wire.encode({"kind": "reply"}, {"z": torch.zeros(40, 1)}): "shop sent 'z' as torch.float32",
        wire.encode({"kind": "reply"}, {"y": torch.zeros(40, 1).double()}): "shop sent y; z was expected",
        wire.encode({"kind": "error", "reason": "no more"}, {}): "shop: no more",
    }
    for k, (data, expected) in enumerate(replies.items()):
        node.garbled = {"partial": data}
        with pytest.raises(UnalikeError, match=expected):
            guest_of(door, tmp_path / f"run{k}", bank).train(METHOD, HOW, 2)
    node.garbled = {
        "hello": wire.encode({"kind": "hello", "name": "shop", "role": "host", "columns": 3, "rows": 1}, {})
    }
    with pytest.raises(UnalikeError, match="shop answered with something else than who it is"):
        guest_of(door, tmp_path / "last", bank).train(METHOD, HOW, 2)


def test_trees_grow_over_the_real_link_and_a_host_killed_in_mid_tree_gives_the_same_ones(door, tmp_path):
    bank, shop = bank_and_shop(tmp_path)
    method, how = v.SecureBoost(trees=4, depth=2, bins=8, bits=512), Settings(epochs=4)
    first, second = shop_node(door, shop, Mortal), shop_node(door, shop)
    door.join(first, then=second)
    guest = guest_of(door, tmp_path / "run", bank, unmatched="missing")
    guest.train(method, how, 2)
    assert any("shop is gone" in line for line in door.said) and second.me is not None
    clear = dc.replace(method, cipher="none")
    here, there = simulated(guest, (second,), clear, how), (guest.node, second)
    assert torch.equal(here[0].me.value, there[0].me.value) and torch.equal(here[0].me.forest, there[0].me.forest)
    assert torch.equal(here[1].me.lookup, there[1].me.lookup) and bool((here[0].me.forest[0] == 1).any())
