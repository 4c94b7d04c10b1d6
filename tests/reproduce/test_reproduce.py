"""`unalike reproduce`: definitions, the queue, what is kept, what is said."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import small
import torch
from paths import ROOT

import unalike as ua
from unalike import config
from unalike.cli import main
from unalike.errors import UnalikeError
from unalike.files import OtherProcesses
from unalike.methods.fedavgr import trace_norm
from unalike.reproduce import choose, define, jobs, judge, measure, overview, pages, results
from unalike.reproduce.centroids import Centroids
from unalike.reproduce.local_models import LocalModels
from unalike.reproduce.numbers import number, parse
from unalike.run.folder import read_rounds
from unalike.text import parse_budget

TINY = """
name = "Tiny"
title = "a paper of a test"
cite = "nobody"
local_models = true

[base.data]
name = "synthetic-feddc"
clients = 4
samples = 20
[base.local]
epochs = 1
batch_size = 5
lr = 0.1
[base.run]
rounds = 40
clients_per_round = 0.5
engine = "sequential"
checkpoint_every = 3

[method.fedavg]
label = "FedAvg"
method = { name = "fedavg" }
[method.feddc]
label = "FedDC"
method = { name = "feddc", alpha = 0.01 }

[part.near]
label = "near"
target = 0.5
data = { alpha = 0.0, beta = 0.0 }
[part.far]
label = "far"
data = { alpha = 0.0, beta = 1.0 }
only.feddc.method = { alpha = 0.5 }
[part.short]
label = "short"
run = { rounds = 3 }

[[table]]
id = "one"
title = "a table"
methods = ["fedavg", "feddc"]
measures = ["best test_accuracy", "rounds-to test_accuracy"]
seeds = 2
rows = [[["near"]]]

[[table]]
id = "sweep"
title = "a study"
methods = ["fedavg", "feddc"]
measures = ["final test_accuracy"]
rows = [[["near", "far"], ["short"], { set = "method.alpha", values = [0.1, 0.2] }]]

[numbers.one.near]
origin = "made up for this test"
fedavg = [0.0, 1]

[quick]
title = "a claim"
methods = ["fedavg", "feddc"]
measures = ["final test_accuracy"]
seeds = 2
rows = [[["near"], ["short"]]]
claims = [{ text = "FedDC beats FedAvg", higher = "feddc", lower = "fedavg", by = 200.0 }]
"""


@pytest.fixture
def tiny(tmp_path):
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    return file


def go(tiny, *words):
    home = tiny.parent
    return main(
        ["reproduce", str(tiny), *words, "--folder", str(home / "runs"), "--results", str(home / "kept"), "--json"]
    )


def kept(home, kind="results"):
    """Results without what a clock decides, or who else is at work."""
    out = {}
    for result in lines(home / "kept" / "tiny" / kind):
        fields = ("trial", "row", "method", "seed", "fold", "choice", "key")
        name = "-".join(str(result.get(field)) for field in fields)
        out[name] = {k: v for k, v in result.items() if not k.startswith(("seconds", "beside"))}
    return out


def lines(folder):
    """All whole lines of a folder's files."""
    texts = [text for file in sorted(folder.glob("*.jsonl")) for text in file.read_text().splitlines(keepends=True)]
    return [json.loads(text) for text in texts if text.endswith("\n")]


def assert_near(mine, theirs):
    """The same results to rounding, which one flipped sample of the test set's hundreds may be."""
    assert mine.keys() == theirs.keys()
    for name, result in mine.items():
        other = theirs[name]
        assert result["settings"] == other["settings"] and result["bytes"] == other["bytes"]
        assert result["final"] == pytest.approx(other["final"], abs=1e-5)


# ---------------------------------------------------------------- definitions


@pytest.mark.parametrize("name", define.names())
def test_every_run_of_every_paper_is_a_config_that_passes(name):
    paper = define.paper(name)
    for table in (*paper.tables.values(), *paper.quick):
        assert table.rows and len({row.id for row in table.rows}) == len(table.rows)
        for text in table.measures:
            assert measure.measure(text).how in measure.HOW
        for row in table.rows:
            for method in table.methods:
                config.check(paper.job(row, method, 0).tables)
                assert not table.choose or paper.choices


@pytest.mark.parametrize("name", define.names())
def test_numbers_belong_to_rows_and_methods_and_say_where_they_come_from(name):
    paper = define.paper(name)
    for table, rows in paper.tree.get("numbers", {}).items():
        for row, numbers in rows.items():
            assert row in {r.id for r in paper.tables[table].rows}, row
            assert len(numbers["origin"]) > 20
            assert {*numbers} - {"origin"} <= {*paper.tables[table].methods}


def test_quick_checks_have_two_seeds_and_claims():
    for name in define.names():
        assert all(quick.seeds >= 2 and quick.claims for quick in define.paper(name).quick)


def test_parts_methods_and_sweeps_are_laid_over_each_other(tiny):
    paper = define.paper(str(tiny))
    near, far = (next(r for r in paper.tables["sweep"].rows if r.id == f"{n}-short-alpha=0.2") for n in ("near", "far"))
    assert paper.settings(far, "feddc")["method"]["alpha"] == 0.2  # the study wins over what the part says
    assert "alpha" not in paper.settings(near, "fedavg")["method"]
    assert paper.settings(near, "feddc")["run"] == {**paper.tree["base"]["run"], "rounds": 3}
    jobs = {paper.job(r, "fedavg", 0).key for r in paper.tables["sweep"].rows}
    assert len(jobs) == 2  # FedAvg has no alpha: one run a data set, not two
    assert paper.job(near, "feddc", 0).key != paper.job(near, "feddc", 1).key


def test_a_method_that_brings_another_model_drops_the_settings_of_the_first(tiny):
    tree = define.config.load_toml(tiny)
    tree["part"]["near"]["model"] = {"name": "mlp", "hidden": [3]}
    tree["method"]["feddc"]["model"] = {"name": "linear"}
    tree["method"]["fedavg"]["model"] = {"name": "mlp", "skip": True}
    paper = define.Paper("tiny", tree)
    row = paper.tables["one"].rows[0]
    assert paper.settings(row, "feddc")["model"] == {"name": "linear"}
    assert paper.settings(row, "fedavg")["model"] == {"name": "mlp", "hidden": [3], "skip": True}


def test_the_key_knows_what_is_computed_not_where(tiny):
    paper = define.paper(str(tiny))
    row = paper.tables["one"].rows[0]
    job = paper.job(row, "feddc", 0)
    for table, changes in (
        ("run", {"device": "cpu", "engine": "batched", "precision": "tf32"}),
        ("data", {"folder": "x"}),
    ):
        same = {**job.tables, table: job.tables[table] | changes}
        assert define.Job("tiny", row.id, "feddc", 0, same).key == job.key
    other = {**job.tables, "local": job.tables["local"] | {"lr": 0.2}}
    assert define.Job("tiny", row.id, "feddc", 0, other).key != job.key


@pytest.mark.parametrize(
    "words, message",
    [
        (["nothing"], "There is no paper 'nothing'"),
        (["feddc", "table9"], "There is no table of feddc 'table9'"),
        (["feddc", "table3", "mnist-d3-*", "--full"], "There is no row of feddc table3"),
        (["feddc", "table3", "--quick"], "--quick has a table of its own"),
        (["feddc", "--quick", "--full"], "give one of them"),
        (["feddc", "--full", "--budget", "soon"], "--budget must be a time"),
        (["feddc", "--full", "--seeds", "1,1"], "--seeds 1,1 has a seed twice"),
        (["feddc", "--full", "--data", "mnist"], "SET=FOLDER"),
        (["--resume"], "There is nothing to go on with"),
    ],
)
def test_mistakes_are_one_line(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_budgets():
    assert [parse_budget(t) for t in ("25m", "90s", "2h", "7")] == [1500, 90, 7200, 7]


# ---------------------------------------------------------------- the queue


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_a_killed_queue_repeats_nothing_and_ends_with_the_same_numbers(engine, tiny, tmp_path, capsys):
    """One run after another, and the seeds of a method in one stack."""
    whole = tmp_path / "whole"
    whole.mkdir()
    for file in (tiny, whole / "tiny.toml"):
        file.write_text(TINY.replace('engine = "sequential"', f'engine = "{engine}"'))
    assert go(whole / "tiny.toml", "one", "--full") == 0

    command = [sys.executable, "-m", "unalike.core", "reproduce", str(tiny), "one", "--full"]
    command += ["--folder", str(tmp_path / "runs"), "--results", str(tmp_path / "kept"), "--quiet"]
    slow = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=slow, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    began = time.monotonic()
    half, some = None, "*" if engine == "sequential" else "*-feddc-*"  # the second stack
    while half is None and process.poll() is None and time.monotonic() - began < 300:
        done = len(lines(tmp_path / "kept" / "tiny" / "results"))
        for manifest in (tmp_path / "runs" / "tiny").glob(f"{some}/checkpoint/manifest.json"):
            text = manifest.read_text() if manifest.exists() else ""
            if done and text and 3 <= json.loads(text)["round"] < 40:
                half = manifest.parents[1]
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert half is not None, "it was over before it could be killed"
    before = lines(tmp_path / "kept" / "tiny" / "results")
    assert 1 <= len(before) < 4
    speaks = half if engine == "sequential" else next(half.parent.glob("*-feddc-seed0-*"))  # the first of a stack
    first = json.loads((speaks / "checkpoint" / "manifest.json").read_text())["round"]

    capsys.readouterr()
    assert main(["reproduce", "--resume", "--folder", str(tmp_path / "runs")]) == 0
    heard = capsys.readouterr()
    assert f"{4 - len(before)} runs made" in heard.out
    assert f"goes on after round {first}" in heard.err
    page = tmp_path / "runs" / "tiny" / "one.html"
    assert str(page) in heard.out and "FedDC" in page.read_text()
    after = lines(tmp_path / "kept" / "tiny" / "results")
    assert after[: len(before)] == before and len(after) == 4
    mine, theirs = kept(tmp_path), kept(whole)
    if engine == "sequential":
        assert mine == theirs
    assert {r["together"] for r in theirs.values()} == {1 if engine == "sequential" else 2}
    assert_near(mine, theirs)


BATCHED = TINY.replace('engine = "sequential"', 'engine = "batched"')


@pytest.mark.slow
def test_seeds_of_a_tiny_model_are_one_stack_with_the_results_of_runs_alone(tmp_path, capsys):
    results = []
    for seeds in (["3"], ["0,", "1,", "2,"]):
        home = tmp_path / str(len(seeds))
        home.mkdir()
        (home / "tiny.toml").write_text(BATCHED if seeds[1:] else BATCHED.replace('"batched"', '"auto"'))
        for some in seeds:
            assert go(home / "tiny.toml", "--quick", "--seeds", some) == 0
        results.append(kept(home, "quick"))
    stacked, alone = results
    assert len(stacked) == 6 and {r["together"] for r in stacked.values()} == {3}
    assert {r["together"] for r in alone.values()} == {1}
    assert all("3 runs in one stack" in r["engine"] for r in stacked.values())
    assert_near(stacked, alone)
    taken = {config.load_toml(file)["facts"]["run"]["engine"] for file in tmp_path.glob("1/runs/tiny/*/config.toml")}
    assert taken == {"batched"}  # `auto` would measure in each run, and might find differently
    assert all("test_all_accuracy" in r["final"] for r in stacked.values())  # what callbacks see on the way, too


@pytest.mark.slow
def test_a_stack_that_diverges_is_said_to(tmp_path):
    (tmp_path / "tiny.toml").write_text(BATCHED.replace('label = "near"', 'label = "near"\nlocal = { lr = 1e39 }'))
    assert go(tmp_path / "tiny.toml", "--quick") == 0
    assert [r["diverged"] for r in kept(tmp_path, "quick").values()] == [1, 1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        ('engine = "sequential"', 'engine = "workers"'),
        ('engine = "sequential"\n', "[base.model]\nname = 'mlp'\nhidden = [2000]\n"),
    ],
)
def test_a_large_model_and_another_engine_are_not_stacked(change, tmp_path):
    (tmp_path / "tiny.toml").write_text(TINY.replace("checkpoint_every = 3\n", "").replace(*change))
    assert go(tmp_path / "tiny.toml", "--quick") == 0
    assert {r["together"] for r in kept(tmp_path, "quick").values()} == {1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stacks", "model", "together"), [("always", "[base.model]\nname = 'mlp'\nhidden = [2000]\n", 2), ("never", "", 1)]
)
def test_stacks_are_made_as_asked_for(stacks, model, together, tmp_path):
    text = TINY.replace('engine = "sequential"', "").replace("[base.local]", model + "[base.local]")
    (tmp_path / "tiny.toml").write_text(text.replace("checkpoint_every = 3\n", ""))
    assert go(tmp_path / "tiny.toml", "--quick", "--stacks", stacks) == 0
    assert {r["together"] for r in kept(tmp_path, "quick").values()} == {together}


@pytest.mark.slow
def test_a_model_that_cannot_be_stacked_is_run_as_it_can_be(tmp_path):
    (tmp_path / "own.py").write_text(
        "import torch\n\n\nclass Peeks(torch.nn.Linear):\n    def forward(self, x):\n"
        "        return super().forward(x) * (1.0 if x.sum().item() == 0.5 else 2.0)\n\n\n"
        "def model(features: int, classes: int) -> torch.nn.Module:\n    return Peeks(features, classes)\n"
    )
    own = f'[base.model]\nfile = "{tmp_path / "own.py"}:model"\n'
    for engine, code in (("auto", 0), ("batched", 2)):
        text = TINY.replace('engine = "sequential"', f'engine = "{engine}"').replace(
            "[base.local]", own + "[base.local]"
        )
        (tmp_path / "tiny.toml").write_text(text)
        define.paper.cache_clear()
        assert go(tmp_path / "tiny.toml", "--quick", "--seeds", "2" if code == 0 else "3,4") == code
    assert {r["together"] for r in kept(tmp_path, "quick").values()} == {1}
    assert len(kept(tmp_path, "quick")) == 4


@pytest.mark.slow
def test_a_budget_stops_a_stack_and_it_goes_on(tmp_path, capsys, monkeypatch):
    file = tmp_path / "tiny.toml"
    file.write_text(BATCHED)
    with monkeypatch.context() as patched:
        asked = iter(range(1000))  # when each of two runs begins, and after each of their rounds
        patched.setattr(jobs.Clock, "over", property(lambda self: next(asked) >= 2 + 2 * 4))
        assert go(file, "one", "--full") == 0
    first = json.loads(capsys.readouterr().out)
    assert first["stopped"] and first["tables"][0]["missing"] == 4
    folders = [*(tmp_path / "runs" / "tiny").iterdir()]
    assert [len(read_rounds(f / "rounds.jsonl")) for f in folders] == [5, 5]
    assert go(file, "one", "--full") == 0
    assert json.loads(capsys.readouterr().out)["tables"][0]["missing"] == 0
    assert [len(read_rounds(f / "rounds.jsonl")) for f in folders] == [40, 40]


@pytest.mark.slow
def test_a_budget_stops_the_queue_and_the_same_command_goes_on(tiny, tmp_path, capsys):
    assert go(tiny, "one", "--full", "--budget", "0.05s", "--seeds", "1") == 0
    first = json.loads(capsys.readouterr().out)
    assert first["stopped"] and first["tables"][0]["missing"] == 2
    folders = list((tmp_path / "runs" / "tiny").iterdir())
    done = [len(read_rounds(f / "rounds.jsonl")) for f in folders]
    assert done and 1 <= done[0] < 40
    assert go(tiny, "one", "--full", "--seeds", "1") == 0
    second = json.loads(capsys.readouterr().out)
    assert not second["stopped"] and second["tables"][0]["missing"] == 0
    assert len(read_rounds(folders[0] / "rounds.jsonl")) == 40


@pytest.mark.slow
def test_runs_are_shared_by_tables_and_results_alone_suffice(tiny, tmp_path, capsys):
    import shutil

    assert go(tiny, "sweep", "--full") == 0
    assert len(kept(tmp_path)) == 6  # FedAvg once a data set
    shutil.rmtree(tmp_path / "runs")
    capsys.readouterr()
    assert go(tiny, "sweep", "--full") == 0
    assert json.loads(capsys.readouterr().out)["tables"][0]["missing"] == 0
    assert not (tmp_path / "runs" / "tiny").exists()


@pytest.mark.slow
def test_times_are_those_of_runs_that_were_alone(tiny, tmp_path, capsys, monkeypatch):
    """A run beside another queue counts for everything but its time, and is made once more where that is asked for."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tiny.write_text(
        tiny.read_text() + '[[table]]\nid = "time"\ntitle = "t"\nmethods = ["fedavg"]\nmeasures = ["seconds"]\n'
        'rows = [[["near"], ["short"]]]\n[[table]]\nid = "score"\ntitle = "s"\nmethods = ["fedavg"]\n'
        'measures = ["final test_accuracy"]\nrows = [[["near"], ["short"]]]\n'
    )
    with company(tmp_path):
        assert go(tiny, "score", "--full") == 0
    folder = tmp_path / "kept/tiny/results"
    assert [line["beside"] for line in lines(folder)] == [1]
    paper, there = define.paper(str(tiny)), results.Results(folder)
    shown = {id: pages.Found(paper, table, table.rows, [0], there) for id, table in paper.tables.items()}
    assert shown["score"].missing()[0] == 0 and shown["score"].shown()
    assert shown["time"].missing()[0] == 1 and not shown["time"].shown()

    with company(tmp_path):  # once more, and not alone either
        assert go(tiny, "time", "--full") == 0
    (again,) = (tmp_path / "runs/tiny").glob("near-short-fedavg-*-again")
    assert [line["beside"] for line in lines(folder)] == [1, 1] and len(read_rounds(again / "beside.jsonl")) == 3
    assert go(tiny, "time", "--full") == 0
    assert sorted(line["beside"] for line in lines(folder)) == [0, 1, 1] and not read_rounds(again / "beside.jsonl")
    (counted,) = results.Results(folder).found.values()
    assert counted["beside"] == 0
    assert len([*(tmp_path / "runs/tiny").glob("near-short-fedavg-*")]) == 2
    capsys.readouterr()


@contextlib.contextmanager
def company(folder):
    """Another process with a queue."""
    made = "from unalike.files import OtherProcesses; c = OtherProcesses('queues')"
    hold = f"import time; {made}; print(1, flush=True); time.sleep(99)"
    options = {"stdout": subprocess.PIPE, "env": {**os.environ, "TMPDIR": str(folder)}}
    with subprocess.Popen([sys.executable, "-c", hold], **options) as other:
        assert other.stdout.readline()
        yield
        other.kill()


def test_company(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    one, two = OtherProcesses("queues"), OtherProcesses("queues")
    assert one.others() == two.others() == 1
    two.leave()
    assert one.others() == 0 and two.others() is None
    with company(tmp_path):
        assert one.others() == 1
    left = [*(tmp_path / "unalike-queues").iterdir()]
    assert len(left) == 2 and one.others() == 0  # killed: its file is still there, and is cleared away
    assert len([*(tmp_path / "unalike-queues").iterdir()]) == 1
    one.leave()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    lost = OtherProcesses("queues")
    assert lost.others() is None
    lost.leave()


def test_a_run_that_diverged_says_when_and_rows_without_numbers_are_counted(tiny):
    paper = define.paper(str(tiny))
    row = paper.tables["sweep"].rows[0]
    one = measure.measure("final test_accuracy")
    lost = measure.Cell(row, "fedavg", one, None, {}, [0], 1, (7,))
    assert pages.ours(lost) == "diverged (round 7)"
    assert pages.ours(measure.Cell(row, "x", one, None, {}, [0], 1)) == "–"
    claims = [measure.Claim("a", {0: 1.0}, 1, row=True), *[measure.Claim("b", {}, 0, row=True)] * 2]
    said = measure.in_words([*claims, measure.Claim("c", {}, 0)])
    assert said == [
        "Claim holds: a (1 of 1 seeds; +1.00 points)",
        "Claim not decided: c (no seed has both numbers)",
        "Not decided yet: 2 claims about rows that lack a number.",
    ]


@pytest.mark.slow
def test_rows_without_their_data_wait_and_the_others_go_on(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("UNALIKE_OFFLINE", "1")
    monkeypatch.setenv("UNALIKE_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "tiny.toml"
    file.write_text(
        TINY.replace(
            "[base.data]\nname",
            "[part.never]\nlabel = 'never'\ndata = { name = 'usps', partition = 'iid' }\n[base.data]\nname",
        )
        .replace("clients = 4\nsamples = 20\n", "clients = 4\n")
        .replace('rows = [[["near"]]]', 'rows = [[["never", "near"]]]')
    )
    text = file.read_text().replace(
        "data = { alpha = 0.0, beta = 0.0 }", "data = { alpha = 0.0, beta = 0.0, samples = 20 }"
    )
    file.write_text(text)
    assert go(file, "one", "--full", "--seeds", "1") == 0
    heard = capsys.readouterr()
    assert heard.err.startswith("left out: The data set 'usps'") and heard.err.count("left out") == 1
    assert json.loads(heard.out)["tables"][0]["missing"] == 2 and len(kept(tmp_path)) == 2
    assert go(file, "one", "never", "--full", "--seeds", "1") == 2  # nothing at all could be done


@pytest.mark.slow
def test_a_claim_that_fails_is_said_to_fail(tiny, tmp_path, capsys):
    assert go(tiny, "--quick") == 0
    claim = json.loads(capsys.readouterr().out)["tables"][0]["claims"][0]
    assert claim["holds"] is False and len(claim["margins"]) == 2
    assert len(kept(tmp_path, "quick")) == 4 and not kept(tmp_path)


# ---------------------------------------------------------------- what is kept and said


def test_what_is_kept_of_a_run(tiny, tmp_path):
    tiny.write_text(TINY.replace("lr = 0.1", "lr = 1.0"))  # FedAvg's accuracy then goes up and down to the end
    assert go(tiny, "one", "--full", "--seeds", "1") == 0
    for result in kept(tmp_path).values():
        folder = next((tmp_path / "runs" / "tiny").glob(f"*-{result['key']}"))
        lines = read_rounds(folder / "rounds.jsonl")
        accuracies = [line["test_accuracy"] for line in lines]
        best = max(accuracies)
        assert result["records"]["test_accuracy"][-1] == [accuracies.index(best) + 1, pytest.approx(best, abs=1e-6)]
        reached = next(line["round"] for line in lines if line["test_accuracy"] >= 0.9)
        assert measure.measure("rounds-to test_accuracy").of(result, 0.9) == reached > 1
        assert measure.measure("final test_accuracy").of(result, None) == pytest.approx(100 * accuracies[-1], abs=1e-4)
        assert measure.measure("best test_accuracy").of(result, None) == pytest.approx(100 * best, abs=1e-4)
        for count in (5, 10):
            mean = measure.measure(f"last{count} test_accuracy").of(result, None)
            assert mean == pytest.approx(100 * np.mean(accuracies[-count:]), abs=1e-4)
        if result["method"] == "fedavg":
            assert accuracies[-1] < best and abs(np.mean(accuracies[-5:]) - np.mean(accuracies[-10:])) > 1e-3
        assert "test_all_accuracy" in result["final"] and "folder" not in json.dumps(result["settings"])


def cell(paper, values, unit="final test_accuracy", missed=(), row=None):
    row = row or define.Row("r", "r", (), None, {})
    return measure.Cell(
        row, "m", measure.measure(unit), parse(paper), dict(enumerate(values)), [*missed], len(values) + len(missed)
    )


@pytest.mark.parametrize(
    "paper, values, unit, verdict",
    [
        (80.0, [80.4], "final test_accuracy", "reproduces"),
        (80.0, [81.9], "final test_accuracy", "close"),
        (80.0, [82.1], "final test_accuracy", "differs"),
        (80.0, [80.0, 83.0, 86.0], "final test_accuracy", "within the spread"),  # 3 apart, a deviation of 3
        (80.0, [82.0, 83.7, 85.4], "final test_accuracy", "differs"),  # 3.7 apart, more than two deviations of 1.7
        (80.0, [80.0, 86.0], "final test_accuracy", "differs"),  # two seeds have no deviation that counts
        (100, [105], "rounds-to test_accuracy", "reproduces"),
        (100, [125], "rounds-to test_accuracy", "close"),
        (100, [150], "rounds-to test_accuracy", "differs"),
        (2048, [2048], "delta-down", "reproduces"),
        (2048, [2808], "delta-down", "differs"),
        (None, [80.0], "final test_accuracy", judge.NO_NUMBER),
        (80.0, [], "final test_accuracy", "not run"),
    ],
)
def test_verdicts(paper, values, unit, verdict):
    assert cell(paper, values, unit).verdict == verdict


def test_a_target_never_reached_does_not_reproduce():
    one = measure.dc.replace(cell(100, [], "rounds-to test_accuracy", missed=[0]), rounds=200)
    assert one.verdict == "differs" and pages.ours(one) == "not reached"


def test_virtual_seconds_have_three_digits_and_no_more_decimals_than_they_need():
    one = measure.dc.replace(cell(100, [10252.2, 24102.9], "time-to test_accuracy", missed=[2]), done=3, paper=None)
    assert pages.ours(one) == "17,178 ± 9,794 (not reached in 1 of 3 seeds)"
    assert [number(v, "virtual s", sign=True) for v in (183.85, -35.218, 0.62155)] == ["+184", "-35.2", "+0.622"]
    assert measure.Claim("a", {0: 10702.34, 1: -335.1}, 1, "virtual s").words.endswith("; +10,702, -335 virtual s)")


def test_claims_about_several_rows(tiny):
    table = define.paper(str(tiny)).tables["sweep"]
    claim = {"rows": ["*"], "text": "FedDC is ahead", "higher": "feddc", "lower": "fedavg"}
    table = measure.dc.replace(table, claims=(claim,))
    first, second = table.rows[:2]
    one = measure.measure(table.measures[0])

    def told(row, **values):
        return [measure.Cell(row, method, one, None, {0: v}, [], 1) for method, v in values.items()]

    found = [*told(first, feddc=90.0, fedavg=80.0), *told(second, feddc=70.0, fedavg=80.0)]
    claims = measure.claims(table, found)
    assert len(claims) == len(table.rows)
    assert claims[0].words == f"holds: {first.label}: FedDC is ahead (1 of 1 seeds; +10.00 points)"
    assert claims[1].words.startswith(f"does not hold: {second.label}")
    variance = {**claim, "rows": [first.id], "measure": "final clients_accuracy_variance_pp2"}
    (one_row,) = measure.claims(measure.dc.replace(table, claims=(variance,)), found)
    assert one_row.unit == "pp²" and not one_row.margins  # nothing of that measure was run


def test_two_rows_of_one_name_are_refused(tmp_path):
    """Two values of a setting that is not in the name: one row would stand for both."""
    row = '[["near"], { set = ["local.epochs", "local.lr"], values = [[1, 0.1], [1, 0.2]] }]'
    text = re.sub(r"rows = .*", f"rows = [{row}]", TINY, count=1)
    (tmp_path / "tiny.toml").write_text(text)
    with pytest.raises(UnalikeError, match=r"tiny .* has two rows that are called near-epochs=1: give another label"):
        define.paper(str(tmp_path / "tiny.toml"))


def test_skewed_sizes_are_not_stacked(tiny, tmp_path):
    paper = define.paper(str(tiny))
    job = paper.job(paper.quick[0].rows[0], "fedavg", 0)
    made = jobs.Queue(tmp_path, results.Results(tmp_path / "no"), jobs.Clock(), {"engine": "batched"}, {})
    for sizes, stacked in (([10, 10, 10, 10, 10], True), ([10, 10, 10, 10, 200], False)):
        fed = ua.Federation.from_arrays([(torch.zeros(n, 30), torch.arange(n) % 5) for n in sizes], classes=5)
        assert made._stacks(job, fed) is stacked
        for asked in ("always", "never"):
            other = jobs.Queue(tmp_path, made.results, jobs.Clock(), made.machine, {}, stacks=asked)
            assert other._stacks(job, fed) is (asked == "always")
            other.machine = {"engine": "sequential"}
            assert not other._stacks(job, fed)


def test_claims_must_hold_in_every_seed(tiny):
    (quick,) = define.paper(str(tiny)).quick
    row = quick.rows[0]

    def both(first, second):
        cells = [cell(None, values, row=row) for values in (first, second)]
        named = [measure.dc.replace(c, method=m) for c, m in zip(cells, ("feddc", "fedavg"), strict=True)]
        return measure.claims(measure.dc.replace(quick, claims=({**quick.claims[0], "by": 1.0},)), named)[0]

    assert both([90.0, 90.0], [88.0, 87.0]).holds
    one = both([90.0, 90.0], [88.0, 89.5])
    assert not one.holds and one.words.startswith("is not clear") and "1 of 2 seeds" in one.words
    assert both([90.0, 90.0], [91.0, 91.0]).words.startswith("does not hold")
    assert both([], []).words.startswith("not decided")


# ---------------------------------------------------------------- claims about several methods

OWN, JUDGE = "final clients_accuracy_mean", "final validation_accuracy"


def survey(*numbers):
    """Cells of a row: (method, own accuracies by seed, validation accuracies by seed); None: it gave no number."""
    row, out = define.Row("r", "r", (), None, {}), []
    for method, *both in numbers:
        for text, given in zip((OWN, JUDGE), both, strict=True):
            values = {seed: value for seed, value in enumerate(given) if value is not None}
            missed = [seed for seed, value in enumerate(given) if value is None]
            out.append(measure.Cell(row, method, measure.measure(text), None, values, missed, len(given)))
    return row, out


def claimed(claim, *numbers):
    row, cells = survey(*numbers)
    table = define.Table("t", "t", [], [OWN, JUDGE], [row], 2, claims=({"text": "ahead", **claim},))
    return measure.claims(table, cells)[0]


BEST = {"best": ["a", "b"], "chosen_by": JUDGE, "lower": "base", "by": 20.0}
BASE = ("base", [50.0, 50.0], [50.0, 50.0])


def test_the_best_of_several_is_chosen_by_another_measure():
    """In seed 0 validation prefers a, which is 21 ahead, to b, which is 40 ahead on the test samples; in seed 1 b."""
    one = claimed(BEST, BASE, ("a", [71.0, 99.0], [80.0, 60.0]), ("b", [90.0, 69.0], [70.0, 61.0]))
    assert one.margins == {0: 21.0, 1: 19.0} and one.held == 1 and one.names == "a, b"
    assert one.words == "is not clear: ahead (1 of 2 seeds; +21.00, +19.00 points: a, b)"


def test_the_best_waits_for_all_and_leaves_out_those_that_diverged():
    a = ("a", [71.0, 72.0], [80.0, 60.0])
    assert not claimed(BEST, BASE, a).margins  # nobody has run b
    assert claimed(BEST, BASE, a, ("b", [90.0], [70.0])).margins == {0: 21.0}  # its second seed is missing
    both = claimed(BEST, BASE, a, ("b", [90.0, None], [70.0, None]))
    assert both.margins == {0: 21.0, 1: 22.0} and both.holds


def test_none_is_ahead_of_the_base():
    claim = {"none": ["a", "b"], "lower": "base", "by": 2.0}
    one = claimed(claim, BASE, ("a", [51.0, 40.0], [0.0, 0.0]), ("b", [49.0, 53.0], [9.0, 9.0]))
    assert one.margins == {0: 1.0, 1: 3.0} and one.held == 1 and one.names == "a, b"
    assert claimed({**claim, "by": 3.0}, BASE, ("a", [51.0, 40.0], [0, 0]), ("b", [49.0, 53.0], [0, 0])).holds


def test_a_number_is_at_least_this_in_so_many_seeds():
    numbers = BASE, ("a", [51.0, 40.0, 60.0], [0, 0, 0])
    one = claimed({"of": "a", "least": 50.0, "seeds": 1}, *numbers)
    assert one.margins == {0: 1.0, 1: -10.0, 2: 10.0} and one.held == 2 and one.holds
    assert not claimed({"of": "a", "least": 50.0}, *numbers).holds  # not in all
    assert not claimed({"of": "a", "least": 55.0, "seeds": 2}, *numbers).holds
    assert claimed({"of": "a", "most": 60.0}, *numbers).holds
    assert claimed({"of": "a", "most": 50.0}, *numbers).margins == {0: -1.0, 1: 10.0, 2: -10.0}
    assert not claimed({"of": "c", "least": 0.0}, *numbers).holds  # nobody has run it


def test_one_seed_of_two_is_two_of_four_and_a_run_without_a_number_does_not_count():
    """The table has two seeds: in more of them a claim must hold as often."""
    half = {"of": "a", "least": 50.0, "seeds": 1}
    assert claimed(half, ("a", [51.0, 40.0], [0, 0])).holds
    assert not claimed(half, ("a", [51.0, 40.0, 40.0, 40.0], [0, 0, 0, 0])).holds
    assert claimed(half, ("a", [51.0, 40.0, 40.0, 52.0], [0, 0, 0, 0])).holds
    lost = claimed({"of": "a", "least": 50.0}, ("a", [51.0, None], [0, 0]))
    assert not lost.holds and lost.words == "is not clear: ahead (1 of 2 seeds; +1.00 points)"


def test_gains_are_corrected_for_their_number():
    _, cells = survey(BASE, ("a", [51.0, 53.0], [0, 0]), ("b", [40.0, 41.0], [0, 0]), ("c", [60.0], [0.0]))
    found = measure.gains(cells, "r", measure.measure(OWN), "base")
    assert {m: gain.points for m, gain in found.items()} == {"a": 2.0, "b": -9.5, "c": 10.0}
    a, b = (measure.stats.paired(x, [50.0, 50.0]).p for x in ([51.0, 53.0], [40.0, 41.0]))
    assert b < a and found["b"].p == pytest.approx(2 * b) and found["a"].p == pytest.approx(max(a, 2 * b))
    assert found["c"].p is None  # one seed shows nothing


def test_a_wide_table_has_a_line_a_method(tiny):
    d = ("d", [10.0, 11.0], [1.0, 1.0])
    row, cells = survey(BASE, ("a", [51.0, 53.0], [1.0, 3.0]), ("c", [60.0, None], [None, None]), d)
    table = define.Table("t", "t", ["base", "a", "c", "d"], [OWN, JUDGE], [row], 2, against="base", wide=True)
    found = pages.Found.__new__(pages.Found)
    found.paper = define.Paper("tiny", define.config.load_toml(tiny))
    found.paper.methods.update({m: {"label": m.upper()} for m in table.methods})
    found.paper.methods["d"]["model"] = {"name": "mlp"}
    found.table, found.cells = table, cells
    columns = ["row", "method", "mean over clients", "validation accuracy", "gain over BASE", "p", "seeds"]
    assert pages.columns(found) == columns
    first, second, third, fourth = pages.lines(found)
    assert first == ["r", "BASE", "50.00 ± 0.00", "50.00 ± 0.00", "–", "–", "2"]
    assert second == ["r", "A", "52.00 ± 1.41", "2.00 ± 1.41", "+2.00", "0.295", "2"]
    assert third == ["r", "C", "60.00 (none in 1 of 2 seeds)", "–", "+10.00", "–", "2"]
    assert fourth[4:] == ["–", "–", "2"]  # another network: its gain says nothing, and it is not counted


def test_megabytes_are_of_all_rounds():
    one = measure.measure("traffic")
    assert one.of({"bytes": 2_500_000, "settings": {"method": {"name": "ditto"}}}, None) == 2.5 and one.unit == "MB"
    assert one.of({"bytes": 2_500_000, "settings": {"method": {"name": "local-only"}}}, None) is None


def test_methods_of_claims_are_in_their_tables():
    for name in define.names():
        paper = define.paper(name)
        for table in (*paper.tables.values(), *paper.quick):
            for claim in table.claims:
                named = {*claim.get("best", ()), *claim.get("none", ()), *claim.get("near", ())}
                given = [claim[key] for key in ("higher", "lower", "of") if key in claim]
                named |= {method for who in given for method in ([who] if isinstance(who, str) else who)}
                assert named <= {*table.methods} and named
                assert {claim.get(key, table.measures[0]) for key in ("measure", "chosen_by")} <= {*table.measures}
                assert not claim.get("rows") or any(
                    define.fnmatch.filter([row.id for row in table.rows], p) for p in claim["rows"]
                )


def test_pages_come_from_results_alone(tiny, tmp_path):
    assert go(tiny, "one", "--full") == 0
    paper = define.paper(str(tiny))
    found = results.Results(tmp_path / "kept" / "tiny" / "results")
    page = pages.write(paper, found, results.Results(tmp_path / "no"), tmp_path / "docs").read_text()
    assert "| near | FedAvg | best" not in page and "| near | FedAvg | test accuracy, best round" in page
    assert "differs" in page and "Missing:" in page and "sweep" in page
    svg = (tmp_path / "docs" / "images" / "tiny-one-near.svg").read_text()
    assert svg.count('<path d="M') >= 7 and "<circle" in svg  # five lines of the grid and two curves; the paper's point
    rows = (tmp_path / "docs" / "tiny.csv").read_text().splitlines()
    assert len(rows) == 1 + 4 and rows[1].startswith("one,near,fedavg,best test_accuracy,0,")
    index = overview.write([(paper, found, results.Results(tmp_path / "no"))], tmp_path / "docs").read_text()
    assert "Do the papers hold?" in index and "[one](tiny.md)" in index
    assert "## Surveys" in index and "What came out" not in page  # a file without printed numbers and notes
    (found.folder.parent / "notes.md").write_text("# Notes\n\n## What came out\n\nIt holds.\n\n## Else\n\nno\n")
    page = pages.write(paper, found, results.Results(tmp_path / "no"), tmp_path / "docs").read_text()
    assert "\n\n## What came out\n\nIt holds.\n\n## one" in page and "Else" not in page


def test_the_time_of_what_is_missing_is_taken_from_runs_like_it(tiny):
    paper = define.paper(str(tiny))
    row = paper.tables["one"].rows[0]
    settings = paper.settings(row, "feddc")
    assert measure.estimate(settings, []) is None
    one = {"settings": settings, "seconds_evaluation": 10.0, "rounds": 10, "participants": 2, "population": 4}
    slow, fast = ({**one, "device": name, "seconds_median": s} for name, s in (("slow", 3.0), ("fast", 1.0)))
    assert measure.estimate(settings, [slow]) == (pytest.approx(4.0 / 2 * 2 * 40), "slow")
    assert measure.estimate(settings, [slow, fast]) == (pytest.approx(2.0 / 2 * 2 * 40), "fast")
    # one with the same share of clients tells more, even with another method
    alike = {**slow, "settings": {**settings, "method": {"name": "fedavg"}}}
    whole = {**fast, "settings": {**settings, "run": {**settings["run"], "clients_per_round": 1.0}}}
    assert measure.estimate(settings, [alike, whole])[1] == "slow" and measure.estimate(settings, [whole])[1] == "fast"
    # the same data among ten times as many clients, half of them a round: as much work
    many = {**settings, "data": {**settings["data"], "clients": 40}}
    assert measure.estimate(many, [slow])[0] == pytest.approx(4.0 / 2 * 2 * 40)
    other = {**settings, "local": {**settings["local"], "epochs": 7}}
    assert measure.estimate(other, [slow, fast]) is None
    # four others used the device too: of a GPU a fifth of the time was this run's, of a CPU all of it
    shared = {**slow, "device": "NVIDIA", "beside": 4}
    assert measure.estimate(settings, [shared]) == (pytest.approx(4.0 / 2 * 2 * 40 / 5), "NVIDIA")
    assert measure.estimate(settings, [{**shared, "device": "x86_64 CPU"}])[0] == pytest.approx(4.0 / 2 * 2 * 40)


def test_the_commit_is_found_in_a_clone_a_worktree_and_among_packed_branches(tmp_path):
    git, worktree = tmp_path / "clone/.git", tmp_path / "worktree"
    (git / "refs/heads").mkdir(parents=True)
    (git / "worktrees/w").mkdir(parents=True)
    worktree.mkdir()
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "refs/heads/main").write_text("aaa\n")
    assert results.commit(git.parent) == "aaa"
    (git / "worktrees/w/HEAD").write_text("ref: refs/heads/other\n")
    (git / "worktrees/w/commondir").write_text("../..\n")
    (worktree / ".git").write_text(f"gitdir: {git}/worktrees/w\n")
    assert results.commit(worktree) is None
    (git / "packed-refs").write_text("# pack-refs\nbbb refs/heads/other\nccc refs/heads/another\n")
    assert results.commit(worktree) == "bbb"
    (git / "worktrees/w/HEAD").write_text("ddd\n")
    assert results.commit(worktree) == "ddd" and results.commit(tmp_path) is None


# ---------------------------------------------------------------- local models


def test_means_of_local_models(tmp_path):
    """sel and all against what the clients' own models are, followed by hand."""
    run = small.run(
        ua.FedAvg(weights="uniform"),
        rounds=1,
        folder=tmp_path / "a",
        callbacks=[LocalModels()],
        clients_per_round=[[0, 2, 3]],
    )
    first = read_rounds(tmp_path / "a" / "locals.jsonl")[0]
    assert first["test_sel_loss"] == pytest.approx(run.history[0]["test_loss"], rel=1e-6)  # FedAvg's w is that mean
    every = small.run(
        ua.FedAvg(weights="uniform"), rounds=2, folder=tmp_path / "b", callbacks=[LocalModels()], clients_per_round=1.0
    )
    for line, mine in zip(every.history, read_rounds(tmp_path / "b" / "locals.jsonl"), strict=True):
        assert mine["test_all_loss"] == pytest.approx(line["test_loss"], rel=1e-6)
        assert mine["test_sel_loss"] == pytest.approx(line["test_loss"], rel=1e-6)
    assert first["test_all_loss"] != pytest.approx(first["test_sel_loss"], rel=1e-6)  # three of six never moved


def test_local_models_change_nothing_and_resume_exactly(tmp_path):
    plain = small.run(ua.FedDC(), rounds=6)
    whole = small.run(ua.FedDC(), rounds=6, folder=tmp_path / "whole", callbacks=[LocalModels()], checkpoint_every=2)
    small.assert_same(plain, whole)

    class Stop(ua.Callback):
        def on_round(self, run, line):
            return line["round"] == 3

    part = {"folder": tmp_path / "part", "checkpoint_every": 2, "resume": True}
    small.run(ua.FedDC(), rounds=6, callbacks=[LocalModels(), Stop()], **part)
    small.run(ua.FedDC(), rounds=6, callbacks=[LocalModels()], **part)
    assert (tmp_path / "part" / "locals.jsonl").read_text() == (tmp_path / "whole" / "locals.jsonl").read_text()
    assert not [*(tmp_path / "part").glob("locals-*")]


# ---------------------------------------------------------------- cross-validation


def test_folds_are_disjoint_and_cover_every_client():
    fed = small.federation()
    fed = fed.replace(names=[f"client of {k}" for k in range(len(fed))])
    folds = [choose.fold(fed, k, 3, 0) for k in range(3)]
    assert all(f.facts == fed.facts and f.test is None and f.global_test is None for f in folds)
    for client in range(len(fed)):
        whole = {tuple(x.tolist()) for x in fed.train.of(client)[0]}
        parts = [{tuple(x.tolist()) for x in f.validation.of(client)[0]} for f in folds]
        assert set.union(*parts) == whole and sum(map(len, parts)) == len(whole)
        for f, held in zip(folds, parts, strict=True):
            assert {tuple(x.tolist()) for x in f.train.of(client)[0]} == whole - held


CHOOSING = (
    TINY.replace("local_models = true\n", "").replace('title = "a table"', 'title = "a table"\nchoose = true')
    + """
[choose]
folds = 2
rounds = 2
steps = [
  { method = "fedavg", set = "local.lr", values = [1e-9, 0.3], give = ["fedavg", "feddc"] },
  { method = "feddc", set = "method.alpha", values = [0.0, 0.1], give = ["feddc"] },
]
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_settings_are_chosen_by_cross_validation_once(engine, tmp_path, capsys):
    file = tmp_path / "tiny.toml"
    text = CHOOSING.replace('engine = "sequential"', f'engine = "{engine}"\nevaluate_clients = "none"')
    file.write_text(text.replace("rounds = 40", "rounds = 3"))
    define.paper.cache_clear()
    assert go(file, "one", "--full", "--seeds", "1") == 0
    content = kept(tmp_path)
    choice = next(v for v in content.values() if "choice" in v)
    first, second = choice["steps"]
    assert first["chosen"] == [0.3] and first["scores"][1] > first["scores"][0]  # a rate of 1e-9 learns nothing
    used = {v["method"]: v["settings"] for v in content.values() if "settings" in v and "trial" not in v}
    assert used["fedavg"]["local"]["lr"] == used["feddc"]["local"]["lr"] == 0.3
    assert used["feddc"]["method"]["alpha"] == second["chosen"][0]
    assert len([*(tmp_path / "runs" / "tiny").glob("*-fold?-*")]) == 8
    capsys.readouterr()
    assert go(file, "one", "--full", "--seeds", "1") == 0 and kept(tmp_path) == content


@pytest.mark.slow
def test_folds_and_rates_are_one_stack_and_score_as_alone(tmp_path, monkeypatch):
    sizes, scores = [], []
    real = jobs.together
    monkeypatch.setattr(jobs, "together", lambda starts, *rest: sizes.append(len(starts)) or real(starts, *rest))
    for engine in ("batched", "sequential"):
        home = tmp_path / engine
        home.mkdir()
        text = CHOOSING.replace('engine = "sequential"', f'engine = "{engine}"').replace("rounds = 40", "rounds = 2")
        (home / "tiny.toml").write_text(text.replace("[1e-9, 0.3]", "[1e39, 0.3, 0.1]"))
        assert go(home / "tiny.toml", "one", "--full", "--seeds", "1") == 0
        choice = next(v for v in kept(home).values() if "choice" in v)
        scores.append([step["scores"] for step in choice["steps"]])
    prints = []
    for k in (0, 1):
        files = tmp_path.glob(f"*/runs/tiny/*-fold{k}-*/config.toml")
        prints.append({config.load_toml(file)["facts"]["data"]["fingerprint"] for file in files})
    assert [len(p) for p in prints] == [1, 1] and prints[0] != prints[1]  # each on its own part of the data
    assert sizes == [6, 2, 2]  # three rates of two folds; then two folds of each of FedDC's two values
    assert scores[0][0].pop(0) is scores[1][0].pop(0) is None  # a rate that diverges leaves the others alone
    for stacked, alone in zip(*scores, strict=True):
        assert stacked == pytest.approx(alone, abs=1e-6)


# ---------------------------------------------------------------- FedAvgR's figure and norm


def test_the_distance_among_the_clients_mean_features(tmp_path):
    class Features(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(2, 2, bias=False)

        def forward(self, x):
            return self.head(x)  # features are the inputs

    means = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 4.0]])
    spread = torch.tensor([[1.0, 2.0], [-1.0, -2.0]])
    data = ua.Federation.from_arrays([(m + spread, torch.tensor([0, 1])) for m in means])
    settings = {"rounds": 4, "evaluate_every": 2, "checkpoint_every": 2, "clients_per_round": 1.0}
    small.run(module=Features(), data=data, folder=tmp_path / "a", callbacks=[Centroids()], **settings)
    lines = read_rounds(tmp_path / "a" / "centroids.jsonl")
    assert [line["round"] for line in lines] == [0, 2, 4]
    assert [line["centroid_distance"] for line in lines] == pytest.approx([(5 + 4 + 3) / 3] * 3)  # by hand


def test_the_distance_is_that_of_the_model_at_the_time_and_survives_resuming(tmp_path):
    class Stop(ua.Callback):
        def on_round(self, run, line):
            return line["round"] == 3

    for name, parts in (("whole", [[]]), ("parts", [[Stop()], []])):
        for more in parts:
            small.run(rounds=6, folder=tmp_path / name, resume=True, callbacks=[Centroids(), *more], checkpoint_every=2)
            if more:  # a round that was measured and lost before its checkpoint
                with (tmp_path / name / "centroids.jsonl").open("a") as file:
                    file.write('{"round": 4, "centroid_distance": 0.0}\n')
    whole, parts = (read_rounds(tmp_path / name / "centroids.jsonl") for name in ("whole", "parts"))
    assert whole == parts and [line["round"] for line in whole] == [*range(7)]
    assert len({line["centroid_distance"] for line in whole}) == 7


def test_numbers_that_are_infinite_for_a_while_do_not_spoil_the_mean():
    assert results._last([{"a": float("inf")}, {"a": float("nan")}, {"a": 1.0}], ["a"], 5) == {"a": [1.0, 0.0]}


def test_numbers_at_a_round():
    result = {"diverged": None, "start": {"d": 0.5}, "curve": {"round": [1, 30], "d": [0.4, 0.1]}}
    found = [measure.measure(f"at {round} d").of(result, None) for round in (0, 1, 30, 60)]
    assert found == [0.5, 0.4, 0.1, None]
    assert measure.measure("at 30 centroid_distance").words == "round 30 centroid distance"


@pytest.mark.parametrize("values", [(1.0, 0.3, 0.0), (1.0, 1e-3, 1e-3), (2.0, 0.0, 0.0), (0.0, 0.0, 0.0)])
def test_the_trace_norm_leaves_zero_singular_values_alone(values):
    draw = torch.Generator().manual_seed(0)
    u, _, v = torch.linalg.svd(torch.randn(3, 8, dtype=torch.float64, generator=draw), full_matrices=False)
    values = torch.tensor(values, dtype=torch.float64)
    weight = ((u * values) @ v).requires_grad_(True)
    norm = trace_norm(weight)
    norm.backward()
    assert norm.item() == pytest.approx(values.sum().item(), abs=1e-9)
    kept = values > 0
    torch.testing.assert_close(weight.grad, u[:, kept] @ v[kept], atol=1e-6, rtol=0)
    single = trace_norm(weight.detach().float())
    assert single.item() == pytest.approx(values.sum().item(), rel=1e-6, abs=1e-6)


# ---------------------------------------------------------------- where little is installed


def test_it_runs_without_anything_but_the_core(tiny, tmp_path):
    program = (
        "import sys\n"
        "for name in ('rich', 'shtab', 'sklearn', 'PIL', 'pandas', 'scipy'): sys.modules[name] = None\n"
        "from unalike.core import main\n"
        f"words = ['reproduce', {str(tiny)!r}, '--quick', '--quiet', '--folder', {str(tmp_path / 'runs')!r}]\n"
        f"sys.exit(main([*words, '--results', {str(tmp_path / 'kept')!r}]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Claim does not hold: FedDC beats FedAvg (0 of 2 seeds" in done.stdout
    assert len(kept(tmp_path, "quick")) == 4
