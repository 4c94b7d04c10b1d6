"""[models.NAME]: a config whose clients have different networks."""

import copy
import json
import tomllib

import pytest
import torch
from small import refused
from test_config import SCHEMA, numbers, valid

import unalike as ua
from unalike import config

TEXT = """
[data]
name = "digits"
clients = 4
test = 0.2

[model]
loss = "cross-entropy"

[models.small]
name = "linear"

[models.large]
name = "mlp"
hidden = [6]
head = "head"

[local]
batch_size = 100

[run]
rounds = 2
architecture = "small:1, large:3"
"""


def tables(text=TEXT):
    return tomllib.loads(text)


def test_file_and_python_give_the_same_run(tmp_path):
    given = tables()
    given["run"]["folder"] = str(tmp_path / "out")
    done = config.run(given)
    networks = {"small": ua.models.softmax_regression(64, 10), "large": ua.models.mlp(64, (6,), classes=10)}
    fed = ua.load("digits").split(clients=4, test=0.2)
    names = ["small", "large", "large", "large"]
    local = ua.LocalTraining(batch_size=100)
    same = ua.simulate(networks, fed, ua.FedAvg(), rounds=2, architecture=names, local=local, head={"large": "head"})
    assert numbers(done.history) == numbers(same.history)
    assert all(torch.equal(done.server.w[name], same.server.w[name]) for name in networks)
    written = tomllib.loads((tmp_path / "out/config.toml").read_text())
    assert valid(written, SCHEMA) and written["facts"]["models"]["large"]["clients"] == 3
    again = config.run({**config.read_tables(tmp_path / "out/config.toml")}, resume=True)
    assert numbers(again.history) == numbers(done.history)


def test_lists_and_one_network():
    names = ["large", "small", "large", "large"]
    given = tables(TEXT.replace('"small:1, large:3"', json.dumps(names)))
    assert valid(given, SCHEMA)
    done = config.run({**given, "run": {**given["run"], "rounds": 0}})
    assert [done.architectures.name(k) for k in range(4)] == names
    del given["models"]["small"], given["run"]["architecture"]
    assert isinstance(config.run({**given, "run": {"rounds": 0}}).server.w, torch.Tensor)


@pytest.mark.parametrize(
    ("old", "new", "match", "schema"),
    [
        ('architecture = "small:1, large:3"', "", "needs architecture, which client has which network", True),
        ('loss = "cross-entropy"', 'name = "mlp"', r"\[model\] has name, and there are \[models.NAME\]", False),
        ("hidden = [6]", "hiden = [6]", r"\[models.large\].*hiden", False),
        ("hidden = [6]", 'loss = "cross-entropy"', r"\[models.large\] has loss, which is the same for all", False),
        ('name = "linear"', 'name = "liner"', "model 'liner'", False),
        ('name = "linear"', 'name = "linear"\nfile = "a.py:b"', "a name and a file", False),
        ("[models.small]", "[models.'a b']", r"\[models.a b\] is the name of a network", True),
        ("small:1", "small:2", "5 entries for 4 clients", True),
        ("small:1", "tiny:1", "client 0 'tiny'", True),
        ('[models.small]\nname = "linear"', "[models]\nsmall = 3", "must be a table; got 3", False),
    ],
)
def test_mistakes_are_one_line(old, new, match, schema):
    assert old in TEXT
    wrong = tables(TEXT.replace(old, new))
    assert valid(copy.deepcopy(wrong), SCHEMA) == schema  # what only the check can see, it sees
    with refused(match):
        config.run(wrong)


def test_architecture_is_for_several_networks():
    wrong = {"data": {"name": "digits"}, "run": {"rounds": 1, "architecture": "a:10"}}
    assert not valid(wrong, SCHEMA)
    with refused("is for several networks: give them as .models.NAME. tables"):
        config.check(wrong)
