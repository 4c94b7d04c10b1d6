"""The command line as a user meets it: same run by any road, mistakes in one line, Ctrl-C and go on."""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import ROOT
from small import logged, timeless

import unalike as ua
from unalike import config, core, text
from unalike.cli import completion, demo, main, parser
from unalike.cli import list as list_
from unalike.client import OneClient
from unalike.config import flags
from unalike.methods import METHODS
from unalike.settings import typed
from unalike.settings.toml import dump_toml

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
batch_size = 10

[run]
rounds = 3
clients_per_round = 0.5
seed = 4
"""
SAME_FLAGS = (
    "--data digits --partition dirichlet:0.1 --clients 8 --test 0.2 --model mlp --hidden 16 --method fedprox --mu 0.5 "
    "--batch-size 10 --rounds 3 --clients-per-round 0.5 --seed 4"
)
OWN = """
from torch import nn
from helper import WIDTH

def build(features, classes, width=WIDTH):
    return nn.Sequential(nn.Flatten(), nn.Linear(features, width), nn.ReLU(), nn.Linear(width, classes))

def text(features):
    return "a model"

def fails():
    raise RuntimeError("no\\nway")

def scalar(output, y):
    return nn.functional.cross_entropy(output, y)

def each(output, y):
    return nn.functional.cross_entropy(output, y, reduction="none")

def top2(output, y):
    return (output.topk(2, 1).indices == y[:, None]).any(1).float()

ready = nn.Linear(64, 10)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of one's own with a config and a file of models, losses and metrics."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "run.toml").write_text(GOOD)
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "helper.py").write_text("WIDTH = 8\n")
    sys.modules.pop("helper", None)
    yield tmp_path
    sys.path[:] = [p for p in sys.path if p != str(tmp_path)]


def do(capsys, line):
    """(exit code, standard output, standard error)"""
    capsys.readouterr()
    code = main(shlex.split(line))
    return code, *capsys.readouterr()


def process(line, cwd):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", "import sys; from unalike.cli import main; sys.exit(main())", *shlex.split(line)],
        cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


# ---------------------------------------------------------------- the same run by any road


def test_flags_file_python_and_core_are_the_same_run(here, capsys):
    assert do(capsys, f"run {SAME_FLAGS} --folder flags")[0] == 0
    assert do(capsys, "run run.toml --folder file")[0] == 0
    (here / "core.toml").write_text(GOOD + 'folder = "core"\n')
    assert core.main(["core.toml", "--quiet"]) == 0
    fed = ua.load("digits").split(ua.partition.Dirichlet(0.1), clients=8, test=0.2)
    module = ua.models.mlp(64, (16,), classes=10)
    local = ua.LocalTraining(batch_size=10)
    ua.simulate(
        module, fed, ua.FedProx(0.5), rounds=3, clients_per_round=0.5, seed=4, local=local, folder="python"
    )  # fmt: skip
    first = timeless(logged("flags"))
    assert len(first) == 3
    assert first == timeless(logged("file")) == timeless(logged("core")) == timeless(logged("python"))
    configs = [
        Path(name, "config.toml").read_text().replace(str(here / name), "") for name in ("flags", "file", "core")
    ]
    assert configs[0] == configs[1] == configs[2]
    assert do(capsys, "run flags/config.toml --folder again")[0] == 0  # what a run writes can be run
    assert timeless(logged("again")) == first


def test_more_rounds_and_another_folder_give_the_uninterrupted_run(here, capsys):
    assert do(capsys, "run run.toml --rounds 1 --folder a -q")[0] == 0
    assert do(capsys, "run --resume a --rounds 3 -q")[0] == 0
    assert do(capsys, "run run.toml --folder b -q")[0] == 0
    assert timeless(logged("a")) == timeless(logged("b"))
    code, _, said = do(capsys, "run --resume a --rounds 2")
    assert code == 2 and "has done 3 rounds" in said
    shutil.move("a", "moved")
    assert do(capsys, "run --resume moved --rounds 4 -q")[0] == 0
    assert len(logged("moved")) == 4 and not Path("a").exists()
    (here / "with.toml").write_text(GOOD.replace("rounds = 3", "rounds = 5") + 'folder = "moved"\n')
    assert do(capsys, "run --resume with.toml -q")[0] == 0
    assert len(logged("moved")) == 5


def test_ctrl_c_leaves_a_folder_and_the_command_to_go_on(here, capsys):
    child = process("run run.toml --rounds 100000 --engine batched --folder 'with space'", here)
    log, until = here / "with space/rounds.jsonl", time.monotonic() + 60
    while not (log.exists() and log.read_bytes().count(b"\n") >= 3):
        assert child.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    out, said = child.communicate(timeout=60)
    assert child.returncode == 130 and out == "" and "Traceback" not in said
    command = said.strip().splitlines()[-1].strip()
    assert command == "unalike run --resume 'with space'"
    done = json.loads((here / "with space/checkpoint/manifest.json").read_text())["round"]
    assert done >= 2
    assert main([*shlex.split(command)[1:], "--rounds", str(done + 3), "-q"]) == 0
    assert do(capsys, f"run run.toml --rounds {done + 3} --engine batched --folder whole -q")[0] == 0
    assert timeless(logged("with space")) == timeless(logged("whole"))


def test_interrupted_before_round_1(here, capsys, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(config.runner, "make_data", interrupted)
    code, out, said = do(capsys, "run run.toml --json")
    assert code == 130 and "stopped before round 1" in said
    assert json.loads(out) == {"stopped": True, "folder": None, "resume": None}


# ---------------------------------------------------------------- what is printed, and where


def test_results_on_standard_output_and_the_rest_on_standard_error(here, capsys):
    code, out, said = do(capsys, "run run.toml")
    assert code == 0
    assert out.startswith("after 3 rounds\n") and "test accuracy" in out and "├" not in out
    assert "settings\n" in said and "compiles: nothing" in said and "mu = 0.5" in said and "optimizer=" in said
    assert "round 3/3  train loss" in said and "written to runs/fedprox-digits-1" in said
    assert max(map(len, (out + said).splitlines())) <= 80 and "\x1b" not in out + said
    code, out, said = do(capsys, "run run.toml --rounds 20 --quiet")
    assert code == 0 and said == "" and out.startswith("after 20 rounds")
    code, out, said = do(capsys, "--json run run.toml --rounds 20")
    assert code == 0 and said == ""
    assert json.loads(out)["folder"] == str(here / "runs/fedprox-digits-3")
    assert json.loads(out)["final"]["test_accuracy"] > 0.1


def test_a_run_without_any_score_says_why(here, capsys):
    (here / "mine").mkdir()
    for k in range(2):
        np.savez(here / "mine" / f"{k}.npz", x=np.eye(4, dtype="f") + k, y=np.arange(4) % 2)
    flags = "--method fedavg --rounds 1 --model linear --evaluate-clients none --quiet"
    _, out, _ = do(capsys, f"run --data-folder mine {flags}")
    assert "train loss" in out and "not scored: there was no test set" in out and max(map(len, out.splitlines())) <= 80
    assert "not scored" not in do(capsys, "run run.toml --quiet")[1]


def test_the_time_of_a_clock_is_printed_beside_the_machine_s(here, capsys):
    code, out, _ = do(capsys, "run run.toml --speeds lognormal:1.0 --quiet")
    time = json.loads(Path("runs/fedprox-digits-1/rounds.jsonl").read_text().splitlines()[-1])["virtual_seconds"]
    assert code == 0 and re.search(rf"^virtual time +{re.escape(text.span(time))}$", out, re.MULTILINE)


def test_an_estimate_after_round_1(here, capsys):
    said = do(capsys, "run run.toml --rounds 9")[2]
    assert "after one round: at most" in said and "MB of memory" in said


@pytest.mark.parametrize(
    "line",
    ["list", "list methods", "list method scaffold", "list data synthetic-feddc", "list model mlp",
     "list engine batched", "list partition dirichlet", "list stages", "list stage noise", "config check run.toml",
     "config schema",
     "doctor --no-probe", "new mine", "completion bash", "run run.toml --dry-run", "--version",
     "run run.toml --rounds 0"],
)  # fmt: skip
def test_every_command_prints_one_json_document(here, capsys, line):
    code, out, said = do(capsys, line + " --json")
    assert code == 0 and said == ""
    json.loads(out, parse_constant=pytest.fail)


@pytest.mark.parametrize(
    "command", ["", "run", "demo", "list", "new", "config", "config check", "doctor", "completion"]
)
def test_help_fits_80_columns(here, capsys, command):
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--help"])
    out = capsys.readouterr().out
    assert end.value.code == 0 and "usage: unalike" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    "line", ["list", "list methods", "list stages", "list method scaffold", "list data digits", "doctor --no-probe"]
)
def test_tables_fit_80_columns(here, capsys, line):
    code, out, _ = do(capsys, line)
    assert code == 0 and max(map(len, out.splitlines())) <= 80


@pytest.mark.slow
def test_every_method_s_page_fits_80_columns(here, capsys):
    for name in METHODS:
        code, out, _ = do(capsys, f"list method {name}")
        assert code == 0 and max(map(len, out.splitlines())) <= 80, name
        assert "the server sees" in out and "vector" in out


def test_a_stage_shows_its_settings_and_how_it_is_written(capsys):
    out = " ".join(do(capsys, "list stages")[1].split())
    assert "topk:share:feedback share: of the entries that travel [0.01]; feedback: whether" in out
    assert "bounded" not in out and "Compression hides nothing that can be relied on" in out
    assert "multiplier 1.0 a number or text" in " ".join(do(capsys, "list stage noise")[1].split())
    assert "who sees what the server the clients: who takes part" in " ".join(do(capsys, "list scaffold")[1].split())


def test_a_method_shows_what_it_reads_what_the_server_sees_and_its_bytes(capsys):
    out = " ".join(do(capsys, "list method scaffold")[1].split())
    assert "leaves the client its change of the model and the change of its control variate (the server reads" in out
    assert "reads sums of delta, control" in out
    assert "the server sees every message" in out
    assert "down 2 vectors of the model's size, 4 bytes per parameter each" in out
    assert do(capsys, "list scaffold")[1] == do(capsys, "list method scaffold")[1]


@pytest.mark.parametrize("name", ["feddf", "oneshot"])
def test_bytes_are_counted_without_hundreds_of_steps(name, monkeypatch):
    """By default FedDF's server makes 500 steps per round and a client of OneShot 300 passes."""
    steps, descend = [], OneClient._descend
    monkeypatch.setattr(OneClient, "_descend", lambda *given: steps.append(1) or descend(*given))
    list_.method_facts(name)
    assert 0 < len(steps) < 20


def test_dry_run_trains_and_writes_nothing(here, capsys):
    code, out, _ = do(capsys, "run run.toml --dry-run --folder never")
    assert code == 0 and "participants: 4 per round" in out and "rounds = 3" in out
    assert not Path("never").exists()


@pytest.mark.slow
def test_doctor_probes(capsys):
    from unalike.cli import doctor

    found = doctor.probe(seconds=0.2)
    assert [p["engine"] for p in found] == ["batched", "workers"] or ua.engines.available_cores() == 1
    assert all(p["milliseconds"] > 0 for p in found)


def test_words():
    assert [text.span(s) for s in (0.04, 9.94, 61, 150, 7200, 1e6)] == [
        "0.0 s", "9.9 s", "61 s", "2 min", "2 h 0 min", "11 days"]  # fmt: skip
    assert [text.size(n) for n in (999, 1000, 12_345_678, 10**15)] == ["999 B", "1.0 kB", "12.3 MB", "1000.0 TB"]


# ---------------------------------------------------------------- the demo


def test_the_demo_keeps_its_promise(here, capsys):
    code, out, said = do(capsys, "demo")
    assert code == 0, out
    assert "As expected: SCAFFOLD is" in out and "worst 20 %" in out and "runs are in runs/demo" in said
    assert max(map(len, (out + said).splitlines())) <= 80
    assert all(len(logged(f"runs/demo/{name}")) == 40 for name in ("fedavg", "fedprox", "scaffold"))
    code, out, _ = do(capsys, "demo --rounds 2 --json")  # again, over its own runs; two rounds teach nobody
    assert code == 1 and not json.loads(out)["ok"]
    code, out, _ = do(capsys, "demo --rounds 1 -q")
    assert code == 1 and re.search(r"NOT as expected: fedavg \d+\.\d %", out)


def test_the_demo_s_expectation_can_fail():
    good = {"fedavg": 0.8, "fedprox": 0.8, "scaffold": 0.9}
    assert demo.verdict(good)[0]
    assert not demo.verdict(good | {"scaffold": 0.8})[0]
    assert not demo.verdict(good | {"fedprox": 0.74})[0]
    assert not demo.verdict(good | {"scaffold": float("nan")})[0]


def test_the_demo_removes_nothing_that_is_not_its_own(here, capsys):
    assert do(capsys, "run run.toml --folder mine/scaffold -q")[0] == 0
    code, _, said = do(capsys, "demo --folder mine")
    assert code == 2 and "holds a run that is not the demo's" in said
    assert len(logged("mine/scaffold")) == 3


# ---------------------------------------------------------------- things of one's own


def test_own_model_loss_metric_and_data(here, capsys):
    import numpy as np

    Path("data").mkdir()
    rng = np.random.default_rng(0)
    for k in range(4):
        np.savez(f"data/{k}.npz", x=rng.normal(size=(20, 5)).astype("float32"), y=np.arange(20) % 3)
    line = "run --data-folder data --test 0.2 --rounds 2 --model own.py:build --width 4 --loss own.py:each"
    code, out, _ = do(capsys, f"{line} --metrics own.py:top2 --folder out --json")
    assert code == 0 and "clients_top2_mean" in json.loads(out)["final"]
    written = config.load_toml("out/config.toml")
    assert written["model"]["file"] == f"{here}/own.py:build" and written["model"]["width"] == 4
    Path("elsewhere").mkdir()
    os.chdir("elsewhere")
    assert do(capsys, "run --resume ../out --rounds 3 -q --allow-code")[0] == 0  # paths are absolute


@pytest.mark.slow
def test_a_new_method_passes_its_tests_and_runs(here, capsys):
    code, out, _ = do(capsys, "new gentle-touch")
    assert code == 0 and "python -m pytest test_gentle_touch.py" in out
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_gentle_touch.py"],
        cwd=here, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout
    line = "run run.toml --method gentle_touch.py:GentleTouch --strength 0.5 --folder gentle -q"
    assert do(capsys, line)[0] == 0
    assert config.load_toml("gentle/config.toml")["method"]["strength"] == 0.5


def test_another_method_leaves_the_former_s_settings_behind(here, capsys):
    assert do(capsys, "run run.toml --method scaffold --folder s -q")[0] == 0
    assert config.load_toml("s/config.toml")["method"] == {"name": "scaffold"}
    (here / "typo.toml").write_text(GOOD.replace("mu =", "muu ="))
    code, _, said = do(capsys, "run typo.toml --method scaffold")
    assert code == 2 and "no setting 'muu'" in said


# ---------------------------------------------------------------- mistakes

MISTAKES = [
    ("rnu", "unalike: there is no 'rnu'. Did you mean 'run'?"),
    ("list mehtods", "unalike: There is no kind 'mehtods'. Did you mean 'methods'?"),
    ("list method scafold", "unalike: There is no method 'scafold'. Did you mean 'scaffold'?"),
    ("config chek run.toml", "unalike config: there is no 'chek'. Did you mean 'check'?"),
    ("new 3d", "unalike new: '3d' cannot name a Python file; use letters, digits and _."),
    ("new random", "unalike new: random.py would hide the Python module 'random'; choose another name."),
    ("run nowhere.toml", "unalike: There is no file 'nowhere.toml'."),
    ("run run.toml run.toml", "unalike run: 'run.toml' is one too many. `unalike run --help` shows what there is."),
    ("run run.toml --rouns 3", "unalike run: there is no setting --rouns here. Did you mean '--rounds'?"),
    ("run run.toml --balanced", "unalike run: there is no setting --balanced here. `unalike run --help` lists them."),
    ("run run.toml --vocabulary 9", "unalike run: there is no setting --vocabulary here. It is a setting of the model "
     "char-lstm and tweet-lstm."),
    ("run run.toml --method feddc --data synthetic-feddc --alpha 1", "unalike run: --alpha is a setting of data and "
     "method: say --data.alpha or --method.alpha."),
    ("run run.toml --local.lrr 3", "unalike run: [local] has no setting 'lrr'. Did you mean 'lr'?"),
    ("run run.toml --lr fast", "unalike run: --lr must be a number or a list of numbers; got 'fast'."),
    ("run run.toml --lr nan", "unalike run: --lr must be a number or a list of numbers, and finite; got nan."),
    ("run run.toml --rounds", "unalike run: --rounds needs a value: a whole number."),
    ("run run.toml --rounds 2.5", "unalike run: --rounds must be a whole number; got 2.5."),
    ("run run.toml --rounds -3", "unalike: [run] rounds must be at least 0; got -3."),
    (f"run run.toml --rounds {10**30}", "unalike run: --rounds must be a whole number that fits in 64 bits; got "
     f"{10**30}."),
    ("run run.toml --method fedprx", "unalike: There is no method 'fedprx'. Did you mean 'fedprox'?"),
    ("run run.toml --engine bached", "unalike: There is no engine 'bached'. Did you mean 'batched'?"),
    ("run run.toml --device cdua", "unalike: There is no device 'cdua'. Did you mean 'cuda'?"),
    ("run run.toml --clients-per-round 9", "unalike: clients_per_round: 9 of 8 clients; it must be a whole number "
     "from 1 to 8."),
    ("run run.toml --clients 1000000000000", "unalike: The partition 'dirichlet' must give each of 1000000000000 "
     "clients 1 or more of 1438 samples: ask for at most 1438 clients."),
    ("run run.toml --data-folder nowhere", "unalike: HERE/nowhere is not a folder: give a folder with one .npz or "
     ".safetensors file per client."),
    ("run run.toml --model own.py:biuld", "unalike: own.py has no 'biuld'. Did you mean 'build'?"),
    ("run run.toml --model own.py:text", "unalike: HERE/own.py:text must return a torch.nn.Module; it returned "
     "'a model'."),
    ("run run.toml --model own.py:fails", "unalike: HERE/own.py:fails cannot be built from {}: RuntimeError: no."),
    ("run run.toml --model own.py:ready", "unalike: own.py:ready must be a function or class that builds a model; it "
     "is a model."),
    ("run run.toml --model own.py:build --widht 3", "unalike run: there is no setting --widht here. Did you mean "
     "'--width'?"),
    ("run run.toml --loss own.py:scalar", "unalike: The loss must give one value per sample, [2]; it gave shape []: "
     "use reduction='none'."),
    ("run run.toml --method own.py:build", "unalike: 'own.py:build' is not a method: it must be a class made from "
     "unalike.Method."),
    ("local-federation 8 run.toml --data digits --partition iid|stream:5 --dry-run", "unalike: 'stream:5' makes data "
     "drift as rounds pass, and real clients' data change by themselves: leave it out, or simulate it (`unalike run "
     "--engine loopback`)."),
    ("run --resume nowhere", "unalike: nowhere holds no run: there is no nowhere/config.toml."),
    ("run --resume", "unalike run: --resume needs the folder of the run to continue: --resume FOLDER."),
    ("demo --rounds 0", "unalike demo: --rounds must be at least 1; got 0."),
    ("completion bsh", "unalike completion: there is no 'bsh'. Did you mean 'bash'?"),
    ("doctor --jsn", "unalike doctor: '--jsn' is one too many. Did you mean '--json'?"),
]  # fmt: skip


@pytest.mark.parametrize("line,expected", MISTAKES)
def test_mistakes_are_one_line_and_code_2(here, capsys, line, expected):
    code, out, said = do(capsys, line)
    assert (code, out) == (2, "")
    assert said == expected.replace("HERE", str(here)) + "\n"
    assert not Path("runs").exists()


def test_a_folder_that_holds_a_run_or_something_else(here, capsys):
    assert do(capsys, "run run.toml --folder a -q")[0] == 0
    code, _, said = do(capsys, "run run.toml --folder a")
    assert code == 2
    assert said == "unalike: a holds a run already: go on with `unalike run --resume a`, or give another --folder.\n"
    code, _, said = do(capsys, "run --resume a --lr 0.7")
    assert code == 2 and "holds another run: there local.lr is 0.1, here 0.7" in said
    code, _, said = do(capsys, "run --resume a --folder b")
    assert code == 2 and "leave --folder out" in said
    code, _, said = do(capsys, "run run.toml --resume a")
    assert code == 2 and "not both" in said
    code, _, said = do(capsys, "run run.toml --folder .")
    assert code == 2 and "is not empty and holds no run" in said
    code, _, said = do(capsys, "run run.toml --folder run.toml")
    assert code == 2 and "is a file" in said


def test_config_files_that_are_none(here, capsys):
    for name, content, line in [
        ("empty", b"", "[data] needs a name or a folder"),
        ("binary", bytes(range(256)), "is not a text file"),
        ("deep", b"a = " + b"[" * 5000 + b"]" * 5000, "is not TOML"),
        ("long", b"[run]\nrounds = " + b"9" * 5000, "is not TOML"),
        ("hex", b"[data]\nname='digits'\n[run]\nrounds = 0x" + b"f" * 5000, "thousands of digits"),
        ("flat", b"rounds = 3", "has rounds outside of a table: it belongs under [run]"),
        ("table", b"data = 3", "data must be a table, [data]; got 3"),
        ("nul", b'[data]\nfolder = "a\\u0000b"\n[run]\nrounds=1', "[data] folder must be text"),
        ("path", b'[data]\nname = "digits"\n[model]\nfile = "' + b"a" * 5000 + b'.py:f"\n[run]\nrounds=1', "no file"),
    ]:
        Path(name).write_bytes(content)
        for command in ("config check", "run"):
            code, _, said = do(capsys, f"{command} {name}")
            assert code == 2 and line in said and said.count("\n") == 1, said
    Path("folder").mkdir()
    assert "Is a directory" in do(capsys, "config check folder")[2]


def test_debug_shows_where(here, capsys):
    with pytest.raises(ua.UnalikeError):
        main(["run", "run.toml", "--lr", "x", "--debug"])


def test_a_fault_of_ours_is_one_line_and_code_1(here, capsys, monkeypatch):
    def broken(*args, **kwargs):
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr(config.checks, "make_method", broken)
    code, _, said = do(capsys, "run run.toml")
    assert code == 1 and said.count("\n") == 1 and "ZeroDivisionError: a" in said and "--debug" in said
    code, out, _ = do(capsys, "run run.toml --json")
    assert code == 1 and "error" in json.loads(out)


def test_a_missing_package_is_named(here, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "unalike.cli.doctor", None)
    monkeypatch.setattr(sys.modules["importlib"], "import_module", lambda name: __import__("shtabb"))
    code, _, said = do(capsys, "list")
    assert code == 2 and "shtabb is missing: pip install 'unalike[app]'" in said


# ---------------------------------------------------------------- flags


def test_flags_are_read_as_the_settings_want_them():
    words = "run a.toml --lr -0.5 --no-shuffle --nesterov --hidden 32,16 --betas 0.8,0.9 --epochs 3 --data=digits -q"
    plain, said = flags.split(words.split())
    assert plain == ["run", "a.toml", "-q"]
    tables = flags.collect([*said, ("model", "mlp"), ("metrics", "a.py:f,b.py:g"), ("steps", "[1, 2]")], {})
    assert tables["local"] == {
        "lr": -0.5, "shuffle": False, "nesterov": True, "betas": [0.8, 0.9], "epochs": 3, "steps": [1, 2]
    }  # fmt: skip
    assert tables["model"] == {"name": "mlp", "hidden": [32, 16], "metrics": ["a.py:f", "b.py:g"]}
    assert flags.split(["run", "--nesterov", "run.toml", "--shuffle", "false"]) == (
        ["run", "run.toml"], [("nesterov", None), ("shuffle", "false")])  # fmt: skip


def test_every_declared_flag_is_read_by_us_and_not_by_argparse():
    run = next(a for a in parser()._subparsers._group_actions[0].choices.items() if a[0] == "run")[1]
    groups = {g.title: g._group_actions for g in run._action_groups}
    for table in config.TABLES:
        for action in groups[f"[{table}]"]:
            (option,) = action.option_strings
            assert flags.split(["run", option]) == (["run"], [(option[2:], None)])
            where, name = action.dest.split(".")
            assert where == table
            _, _, owners = config.every(table)[name]
            choice = {"table": "x.csv"} if owners[0] == "table" else {"name": owners[0]}
            chosen = {t: {} for t in config.TABLES} | ({table: choice} if table in config.NAMES else {})
            with contextlib.suppress(ua.UnalikeError):  # needs a value
                assert flags.place(option[2:], None, chosen)[:2] == (table, name)
            assert name in flags.known(chosen)[table]
    assert {f"--{n}" for n in ("help", "json", "quiet", "debug", "resume", "dry-run")} <= flags.OWN


def test_every_general_setting_has_a_meaning():
    for table in ("local", "run"):
        assert set(config.every(table)) == {n for n, knob in config.described(table).items() if knob.words}


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_completion_scripts(capsys, tmp_path, shell):
    code, out, _ = do(capsys, f"completion {shell}")
    assert code == 0 and "dry" in out
    if shell == "tcsh" or not shutil.which(shell):
        return
    file = tmp_path / "script"
    file.write_text(out)
    assert subprocess.run([shell, "-n", str(file)], capture_output=True, text=True).stderr == ""
    if shell == "bash":
        ask = (
            f"source {file}; COMP_WORDS=(unalike run --engine ''); COMP_CWORD=3; _shtab_unalike; echo ${{COMPREPLY[@]}}"
        )
        said = subprocess.run(["bash", "-c", ask], capture_output=True, text=True).stdout
        assert said.split() == ["auto", *ua.engines.ENGINES]


# ---------------------------------------------------------------- any config at all

NUMBERS = st.one_of(st.integers(-3, 60), st.integers(), st.sampled_from([10**12, 10**30, -(2**63), 2**64 - 1, 10**400]))
VALUES = st.recursive(
    st.one_of(
        st.booleans(), NUMBERS, st.floats(0, 1), st.floats(), st.text(max_size=8),
        st.sampled_from(["digits", "mlp", "scaffold", "full", "auto", "all", "iid", "shards:2", "dirichlet:0.1",
                         "dirichlet:1e400", "iid:x:y", "bernoulli:0.2", "bernoulli:inf", "by-size:3", "by-size:1e9",
                         "adam", "cpu", "cuda:9", "float64", "x.py:f", "\0.py:f", "squared-error", "a:b", "/", ""]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip


TEXTS = {
    "partition": ["iid", "iid:true", "dirichlet:0.1", "shards:2"],
    "evaluate_clients": ["auto", "all", "none", 3],
    "clients_per_round": [0.5, 1.0, 2, "bernoulli:0.5", "by-size:1", [[0, 1], [2]]],
    "batch_size": [1, 32, "full"],
    "device": ["auto", "cpu", "cuda", "cuda:1"],
    "loss": ["cross-entropy", "squared-error"],
    "weights": ["samples", "uniform"],
    "scaling": ["paper", "official"],
    "clients": [3, 10, 1000],
    "folder": ["runs/größe", "/tmp/x y"],
}


KNOWN = {table: config.every(table) for table in config.TABLES}
DESCRIBED = {table: config.described(table) for table in config.TABLES}


def plausible(table, name, hint):
    choices = DESCRIBED[table][name].choices or TEXTS.get(name)
    if choices:
        return st.sampled_from(list(choices))
    kinds = {bool: st.booleans(), int: st.integers(1, 60), float: st.floats(0.01, 0.4), str: st.text("abc", max_size=5)}
    fitting = [s for kind, s in kinds.items() if typed.fits({bool: True, int: 1, float: 0.5, str: ""}[kind], hint)]
    return st.one_of(*fitting) if fitting else st.lists(st.floats(0.1, 0.9), min_size=2, max_size=2)


@st.composite
def configs(draw):
    """A plausible config, of which some things are then made odd."""
    out = {table: {} for table in config.TABLES}
    for table, values in out.items():
        known = KNOWN[table]
        if table in config.NAMES:
            values["name"] = draw(st.sampled_from(list(config.NAMES[table])))
            known = {n: k for n, k in known.items() if values["name"] in k[2]}
        names = sorted(set(known) - {"name", "metrics"})
        for name in draw(st.lists(st.sampled_from(names), max_size=3, unique=True)) if names else ():
            values[name] = draw(plausible(table, name, known[name][0]))
    out["run"].setdefault("rounds", 1)
    for oddity in draw(st.lists(st.sampled_from(["value", "value", "setting", "key", "table", "gone"]), max_size=3)):
        table = draw(st.sampled_from(sorted(out)))
        inside = out[table] if isinstance(out[table], dict) else {}
        if oddity == "value" and inside:
            inside[draw(st.sampled_from(sorted(inside)))] = draw(VALUES)
        elif oddity == "setting" and table in config.TABLES:
            inside[draw(st.sampled_from(sorted(KNOWN[table])))] = draw(VALUES)
        elif oddity == "key":
            inside[draw(st.text(max_size=6))] = draw(VALUES)
        elif oddity == "table":
            out[draw(st.text(max_size=6) | st.sampled_from(config.TABLES))] = draw(VALUES)
        elif oddity == "gone":
            del out[table]
            out.setdefault("run", {"rounds": 1})
    return out


def checked(file):
    """config check: fine or one line, whatever the file holds."""
    out, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        code = main(["config", "check", str(file)])
    assert code in (0, 2) and out.getvalue().count("\n") + said.getvalue().count("\n") == 1, said.getvalue()
    assert "fault of ours" not in said.getvalue()
    return code


@pytest.mark.parametrize("examples", [100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_random_configs(examples, tmp_path):
    file, codes = tmp_path / "random.toml", {0: 0, 2: 0}

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(configs())
    def try_all(tree):
        file.write_text(dump_toml(tree), encoding="utf-8")
        codes[checked(file)] += 1

    try_all()
    assert min(codes.values()) >= examples // 10, codes  # good ones and bad ones


@settings(max_examples=50, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_random_bytes(tmp_path_factory, content):
    file = tmp_path_factory.getbasetemp() / "bytes.toml"
    file.write_bytes(content)
    checked(file)
