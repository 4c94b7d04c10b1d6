"""A run from a file is the run from Python; mistakes in a file are one line."""

import json

import pytest
import torch

import unalike as ua
from unalike import config, core

GOOD = """
[data]
name = "digits"
partition = "dirichlet:0.1"
clients = 8
test = 0.2

[model]
name = "mlp"
hidden = [16]

[method]
name = "fedprox"
mu = 0.5

[local]
epochs = 1
batch_size = 10

[run]
rounds = 2
clients_per_round = 0.5
seed = 4
"""


def numbers(lines):
    return [{k: v for k, v in line.items() if not k.startswith("seconds")} for line in lines]


def test_file_and_python_give_the_same_run(tmp_path, capsys):
    file = tmp_path / "run.toml"
    file.write_text(GOOD + f'folder = "{tmp_path}/out"\n')
    assert core.main([str(file)]) == 0
    assert "test_accuracy" in capsys.readouterr().out
    from_file = [json.loads(line) for line in (tmp_path / "out" / "rounds.jsonl").read_text().splitlines()]
    fed = ua.load("digits").split(ua.partition.Dirichlet(0.1), clients=8, seed=0, test=0.2)
    with torch.random.fork_rng():
        torch.manual_seed(ua.random.key(4, "model") & 0xFFFFFFFF)
        module = ua.models.mlp(64, (16,), classes=10)
    run = ua.simulate(
        module, fed, ua.FedProx(mu=0.5), rounds=2, clients_per_round=0.5, seed=4,
        local=ua.LocalTraining(epochs=1, batch_size=10),
    )  # fmt: skip
    assert numbers(from_file) == numbers(run.history)
    assert core.main([str(file)]) == 2
    assert core.main([str(file), "--resume"]) == 0


@pytest.mark.parametrize(
    "old,new,line",
    [
        ('name = "fedprox"', 'name = "fedprx"', "There is no method 'fedprx'. Did you mean 'fedprox'?"),
        ("mu = 0.5", "nu = 0.5", "[method] has no setting 'nu'. There are: mu, name."),
        ("mu = 0.5", 'mu = "strong"', "[method] mu must be a number; got 'strong'."),
        ("[local]", "[locl]", "has a table [locl], which means nothing. Did you mean 'local'?"),
        ("epochs = 1", "epoch = 1", "[local] has no setting 'epoch'. Did you mean 'epochs'?"),
        ("rounds = 2", "round = 2", "[run] has no setting 'round'. Did you mean 'rounds'?"),
        ("rounds = 2", "", "[run] needs rounds"),
        ("clients_per_round = 0.5", 'clients_per_round = "bernouli:0.5"', "no sampling 'bernouli'. Did you mean"),
        ("clients_per_round = 0.5", 'clients_per_round = "bernoulli:x"', "after the colon there must be a number"),
        ('name = "digits"', 'name = "digit"', "Did you mean 'digits'?"),
        ('name = "digits"', "", "[data] needs a name or a folder"),
        ("dirichlet:0.1", "dirichlett:0.1", "Did you mean 'dirichlet'?"),
        ("clients = 8", "clients = 'x'", "clients must be a whole number"),
        ('name = "mlp"', 'name = "cnn-smal"', "There is no model 'cnn-smal'."),
        ("hidden = [16]", "hiden = [16]", "[model] has no setting 'hiden'. Did you mean 'hidden'?"),
        ("[data]", "[data", "is not TOML"),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, old, new, line):
    assert old in GOOD
    file = tmp_path / "run.toml"
    file.write_text(GOOD.replace(old, new))
    assert core.main([str(file)]) == 2
    said = capsys.readouterr().err.strip()
    assert line in said
    assert len(said.splitlines()) == 1


def test_samplings_and_full_batch():
    assert config.make_local({"batch_size": "full", "steps": 1}).batch_size is None
    assert config.make_sampling("bernoulli:0.15") == ua.sampling.Bernoulli(0.15)
    assert config.make_sampling("by-size:3") == ua.sampling.BySize(3)


def test_no_such_file(capsys):
    assert core.main(["nowhere.toml"]) == 2
    assert "There is no file 'nowhere.toml'." in capsys.readouterr().err
