"""Logs of other programs, told to small stand-ins of them, and flags that ask for them."""

import json
import shlex
import sys
import types
from pathlib import Path

import pytest
import torch
from small import refused

import unalike as ua
from unalike import config
from unalike.cli import main
from unalike.run import callbacks

SMALL = "--data digits --clients 4 --test 0.2 --rounds 2 --clients-per-round 2"


def federation():
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    pairs = [(x[:6], torch.arange(6) % 2), (x[6:], torch.arange(6) % 2)]
    return ua.Federation.from_arrays(pairs, test=(x, torch.arange(12) % 2))


def run(callback, **more):
    torch.manual_seed(0)
    return ua.simulate(torch.nn.Linear(3, 2), federation(), ua.FedProx(mu=0.5), rounds=2, callbacks=[callback], **more)


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in that writes down what it is told."""
    told = []

    class Log:
        def log(self, numbers, step):
            told.append(("log", step, numbers))

        def finish(self):
            told.append(("finish",))

    module = types.ModuleType("wandb")
    module.init = lambda **options: told.append(("init", options)) or Log()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return told


@pytest.fixture
def mlflow(monkeypatch):
    told = []
    module = types.ModuleType("mlflow")
    for name in ("set_tracking_uri", "set_experiment", "start_run", "log_params", "log_metrics", "end_run"):
        setattr(module, name, lambda *given, _name=name, **named: told.append((_name, *given, *named.values())))
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return told


def test_weights_and_biases_is_offline_and_has_every_number(wandb, tmp_path):
    done = run(ua.WandB(tmp_path / "w", project="mine", name="first"))
    options = wandb[0][1]
    assert options["mode"] == "offline" and options["project"] == "mine" and options["name"] == "first"
    assert options["dir"] == str(tmp_path / "w") and (tmp_path / "w").is_dir()
    assert options["config"]["method"] == "FedProx" and options["config"]["method.mu"] == "0.5"
    assert [entry[1] for entry in wandb if entry[0] == "log"] == [1, 2] and wandb[-1] == ("finish",)
    last = wandb[-2][2]
    assert last["test_accuracy"] == done.history[-1]["test_accuracy"] and "round" not in last
    assert all(isinstance(value, int | float) for value in last.values())


def test_mlflow_writes_files_here_unless_told_otherwise(mlflow, tmp_path):
    done = run(ua.MLflow(tmp_path / "m"))
    assert mlflow[0] == ("set_tracking_uri", (tmp_path / "m").resolve().as_uri())
    names = [entry[0] for entry in mlflow]
    assert names == ["set_tracking_uri", "set_experiment", "start_run", "log_params", *["log_metrics"] * 2, "end_run"]
    assert mlflow[-2][1]["train_loss"] == done.history[-1]["train_loss"] and mlflow[-2][2] == 2
    mlflow.clear()
    run(ua.MLflow(tracking="http://127.0.0.1:5000"))
    assert mlflow[0][1] == "http://127.0.0.1:5000"


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_what_is_not_installed_is_said(monkeypatch, name, tmp_path):
    monkeypatch.setitem(sys.modules, name, None)
    with refused(f"is not installed: pip install {name}"):
        run(callbacks.log(name, tmp_path))


def do(capsys, line):
    capsys.readouterr()
    code = main(shlex.split(line))
    return code, *capsys.readouterr()


def test_logs_from_the_command_line(wandb, mlflow, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, _, _ = do(capsys, f"run {SMALL} --log wandb,mlflow --folder r -q")
    assert code == 0 and wandb[0][1]["dir"].endswith("r/wandb") and mlflow[0][1].endswith("/r/mlflow")
    code, _, said = do(capsys, f"run {SMALL} --log wandbb --folder q")
    assert code == 2 and "Did you mean 'wandb'?" in said and not Path("q").exists()


def test_several_seeds_of_one_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, _ = do(capsys, f"run {SMALL} --seeds 2 --folder r")
    assert code == 0 and "mean ± standard deviation over 2 seeds" in out and "test accuracy" in out
    lines = [json.loads(Path(f"r/seed{s}/rounds.jsonl").read_text().splitlines()[-1]) for s in (0, 1)]
    values = [line["test_accuracy"] for line in lines]
    assert f"{100 * sum(values) / 2:.2f} % ± {100 * abs(values[0] - values[1]) / 2**0.5:.2f}" in out
    assert values[0] != values[1]
    tables = [config.read(f"r/seed{s}/config.toml") for s in (0, 1)]
    assert all(t["run"]["seed"] == t["data"]["seed"] for t in tables)
    code, out, _ = do(capsys, f"run {SMALL} --seeds 5, --folder j --json")
    assert json.loads(out)["seeds"] == [5] and json.loads(out)["runs"][0]["final"]
    code, _, said = do(capsys, f"run {SMALL} --seeds 2 --seed 3")
    assert code == 2 and "leave --seed and --resume out" in said


def test_fedsgd_is_understood_and_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, _, said = do(capsys, f"run {SMALL} --method fedsgd --folder a")
    assert code == 0 and "fedsgd is run as fedavg with one step on all samples of a client" in " ".join(said.split())
    assert do(capsys, f"run {SMALL} --method fedavg --steps 1 --batch-size full --folder b -q")[0] == 0
    mine, theirs = (Path(f"{name}/rounds.jsonl").read_text().splitlines() for name in "ab")
    keep = lambda line: {k: v for k, v in json.loads(line).items() if not k.startswith("seconds")}  # noqa: E731
    assert [keep(line) for line in mine] == [keep(line) for line in theirs]
    Path("sgd.toml").write_text(
        '[data]\nname = "digits"\n[method]\nname = "fedsgd"\n[local]\nlr = 0.3\n[run]\nrounds = 1\n'
    )
    tables = config.read("sgd.toml")
    assert tables["method"] == {"name": "fedavg"} and tables["local"] == {"steps": 1, "batch_size": "full", "lr": 0.3}
    code, _, said = do(capsys, "run sgd.toml --folder c")
    assert code == 0 and "fedsgd is run as fedavg" in " ".join(said.split())
    code, _, said = do(capsys, "compare fedsgd --data digits")
    assert code == 2 and "fedsgd is fedavg with one step on the full batch" in said


def test_models_are_functions():
    from unalike import models

    for name, build in models.MODELS.items():
        function = getattr(models, name.replace("-", "_"))
        assert isinstance(function, types.FunctionType), name
        assert function is build or function.__wrapped__ is build
    built = models.resnet18(classes=3)
    assert isinstance(built, models.ResNet18) and models.start.built_as(built).name == "resnet18"


def test_the_contract_test_says_what_it_does(monkeypatch):
    from unalike import testing

    for name in ("check_engines", "check_resume", "check_vanishes", "check_bites"):
        monkeypatch.setattr(testing, name, lambda *given, **named: None)
    said = []
    testing.check_method(ua.FedProx(mu=1.0), off=ua.FedProx(mu=0.0), kinds=("linear", "mlp"), say=said.append)
    assert [text.partition(": ")[0] for text in said] == ["FedProx"] * 4
    assert "linear (1 of 2)" in said[0] and "resumed" in said[2] and "FedAvg" in said[3]
