"""Clients lost in the middle of a round, work that a client does not do, messages that are too long."""

import pytest
from small import refused
from test_network_messages import Direct, data, own, served, tables

from unalike.errors import UnalikeError
from unalike.network.client import Client
from unalike.network.link import Lost
from unalike.network.policy import Policy


def people(folder, rules):
    return [Client(own(data(), k), folder / f"site-{k}", rules) for k in range(4)]


def test_a_client_lost_in_the_first_exchange_of_a_round_is_counted(tmp_path):
    """FedFa has two exchanges. In round 2 site-1 is lost in the first one; all who are asked answer the second."""

    def meddle(k, header, answer):
        return Lost("it has left") if (k, header.get("round"), header.get("exchange")) == (1, 1, 0) else answer

    said = []
    link = Direct(people(tmp_path, Policy.open(repeatable=True)), meddle)
    run = served(tables("fedfa"), link, said)
    second = [k for k, header in link.asked if (header.get("round"), header.get("exchange")) == (1, 1)]
    assert second[:3] == [0, 2, 3]
    assert [line.get("lost") for line in run.history] == [None, 1, None]
    assert said[-1] == "clients lost: 1, in 1 of 3 rounds"


def test_a_methods_own_amount_of_work_is_within_a_clients_rules_too(tmp_path):
    """[local] asks for 1 to 3 steps; OneShot's 60 epochs are 60 times as many, and nobody here does more than 3."""
    said = []
    with refused("none of 4 clients gave an answer of use"):
        served(tables("oneshot", method={"epochs": 60}), Direct(people(tmp_path, Policy.open(max_steps=3))), said)
    for k, steps in enumerate((120, 60, 180, 180)):
        refusal = f"The run wants {steps} steps per round of this client, which does 3 at most (--max-steps)"
        assert any(f"site-{k}" in text and refusal in text for text in said), said


def test_a_methods_own_amount_of_work_may_be_small_enough(tmp_path):
    run = served(tables("oneshot", method={"epochs": 1}), Direct(people(tmp_path, Policy.open(max_steps=3))))
    assert [line.get("lost") for line in run.history] == [None] * 3


def test_a_message_that_is_too_long_is_not_taken(monkeypatch):
    """Both ends read a message object by object and stop at the limit, whatever was announced."""
    pytest.importorskip("flwr")
    from flwr.supercore.task_identity import TaskIdentity

    from unalike.network import app, flower

    for name in ("_run_id", "_task_id", "_node_id"):  # Message() reads them
        monkeypatch.setattr(TaskIdentity, name, 1)
    message = flower.Message(app.content((b"x" * 500, b"y" * 500)), 1, "train")
    objects = {name: thing.deflate() for name, thing in flower.objects.get_all_nested_objects(message).items()}
    tree, name = flower.objects.get_object_tree(message), message.object_id
    whole = sum(map(len, objects.values()))
    monkeypatch.setattr(flower, "MAX_MESSAGE", whole)
    assert app.parts_of(flower._fetch(tree, name, objects.get, 5.0).content) == [b"x" * 500, b"y" * 500]
    monkeypatch.setattr(flower, "MAX_MESSAGE", whole - 1)
    with pytest.raises(UnalikeError, match=f"more than {whole - 1} bytes"):
        flower._fetch(tree, name, objects.get, 5.0)
