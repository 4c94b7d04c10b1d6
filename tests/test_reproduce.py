"""`unalike reproduce`: definitions, the queue, what is kept, what is said."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import small

import unalike as ua
from unalike import config
from unalike.cli import main
from unalike.reproduce import choose, define, measure, pages, results
from unalike.reproduce.locals import LocalModels
from unalike.reproduce.queue import parse_budget
from unalike.runs import read_rounds

ROOT = Path(__file__).parents[1]
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
    """Results without what a clock decides."""
    out = {}
    for file in sorted((home / "kept" / "tiny" / kind).glob("*.json")):
        result = json.loads(file.read_text())
        out[file.name] = {k: v for k, v in result.items() if not k.startswith("seconds")}
    return out


# ---------------------------------------------------------------- definitions


@pytest.mark.parametrize("name", define.names())
def test_every_run_of_every_paper_is_a_config_that_passes(name):
    paper = define.paper(name)
    for table in (*paper.tables.values(), paper.quick):
        assert table.rows and len({row.id for row in table.rows}) == len(table.rows)
        for text in table.measures:
            assert measure.measure(text).how in measure.VALUES
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
        quick = define.paper(name).quick
        assert quick.seeds == 2 and quick.claims
        for claim in quick.claims:
            assert {claim["higher"], claim["lower"]} <= {*quick.methods}


def test_parts_methods_and_sweeps_are_laid_over_each_other(tiny):
    paper = define.paper(str(tiny))
    near, far = (next(r for r in paper.tables["sweep"].rows if r.id == f"{n}-short-alpha=0.2") for n in ("near", "far"))
    assert paper.settings(far, "feddc")["method"]["alpha"] == 0.2  # the study wins over what the part says
    assert "alpha" not in paper.settings(near, "fedavg")["method"]
    assert paper.settings(near, "feddc")["run"] == {**paper.tree["base"]["run"], "rounds": 3}
    jobs = {paper.job(r, "fedavg", 0).key for r in paper.tables["sweep"].rows}
    assert len(jobs) == 2  # FedAvg has no alpha: one run a data set, not two
    assert paper.job(near, "feddc", 0).key != paper.job(near, "feddc", 1).key


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
        (["feddc", "--full", "--seeds", "1,1"], "--seeds must be"),
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


def test_a_killed_queue_repeats_nothing_and_ends_with_the_same_numbers(tiny, tmp_path, capsys):
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "tiny.toml").write_text(TINY)
    assert go(whole / "tiny.toml", "one", "--full") == 0

    command = [sys.executable, "-m", "unalike.core", "reproduce", str(tiny), "one", "--full"]
    command += ["--folder", str(tmp_path / "runs"), "--results", str(tmp_path / "kept"), "--quiet"]
    slow = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=slow, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    began = time.monotonic()
    half = None
    while half is None and process.poll() is None and time.monotonic() - began < 300:
        done = len(list((tmp_path / "kept" / "tiny" / "results").glob("*.json")))
        for manifest in (tmp_path / "runs" / "tiny").glob("*/checkpoint/manifest.json"):
            text = manifest.read_text() if manifest.exists() else ""
            if done and text and 3 <= json.loads(text)["round"] < 40:
                half = manifest.parents[1]
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert half is not None, "it was over before it could be killed"
    before = {f.name: f.stat().st_mtime_ns for f in (tmp_path / "kept" / "tiny" / "results").glob("*.json")}
    assert 1 <= len(before) < 4
    first = json.loads((half / "checkpoint" / "manifest.json").read_text())["round"]

    capsys.readouterr()
    assert main(["reproduce", "--resume", "--folder", str(tmp_path / "runs")]) == 0
    heard = capsys.readouterr()
    assert f"{4 - len(before)} runs made" in heard.out
    assert f"goes on after round {first}" in heard.err
    page = tmp_path / "runs" / "tiny" / "one.html"
    assert str(page) in heard.out and "FedDC" in page.read_text()
    for name, at in before.items():
        assert (tmp_path / "kept" / "tiny" / "results" / name).stat().st_mtime_ns == at
    assert kept(tmp_path) == kept(whole)


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


def test_runs_are_shared_by_tables_and_results_alone_suffice(tiny, tmp_path, capsys):
    import shutil

    assert go(tiny, "sweep", "--full") == 0
    assert len(kept(tmp_path)) == 6  # FedAvg once a data set
    shutil.rmtree(tmp_path / "runs")
    capsys.readouterr()
    assert go(tiny, "sweep", "--full") == 0
    assert json.loads(capsys.readouterr().out)["tables"][0]["missing"] == 0
    assert not (tmp_path / "runs" / "tiny").exists()


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


def test_a_claim_that_fails_is_said_to_fail(tiny, tmp_path, capsys):
    assert go(tiny, "--quick") == 0
    claim = json.loads(capsys.readouterr().out)["tables"][0]["claims"][0]
    assert claim["holds"] is False and len(claim["margins"]) == 2
    assert len(kept(tmp_path, "quick")) == 4 and not kept(tmp_path)


# ---------------------------------------------------------------- what is kept and said


def test_what_is_kept_of_a_run(tiny, tmp_path):
    assert go(tiny, "one", "--full", "--seeds", "1") == 0
    for result in kept(tmp_path).values():
        folder = next((tmp_path / "runs" / "tiny").glob(f"*-{result['key']}"))
        lines = read_rounds(folder / "rounds.jsonl")
        accuracies = [line["test_accuracy"] for line in lines]
        best = max(accuracies)
        assert result["records"]["test_accuracy"][-1] == [accuracies.index(best) + 1, pytest.approx(best, abs=1e-6)]
        reached = next(line["round"] for line in lines if line["test_accuracy"] >= 0.5)
        assert measure.measure("rounds-to test_accuracy").of(result, 0.5) == reached
        assert measure.measure("best test_accuracy").of(result, None) == pytest.approx(100 * best, abs=1e-4)
        assert measure.measure("last5 test_accuracy").of(result, None) == pytest.approx(100 * np.mean(accuracies[-5:]))
        assert "test_all_accuracy" in result["final"] and "folder" not in json.dumps(result["settings"])


def cell(paper, values, unit="final test_accuracy", missed=(), row=None):
    row = row or define.Row("r", "r", (), None, {})
    return measure.Cell(
        row, "m", measure.measure(unit), paper, dict(enumerate(values)), [*missed], len(values) + len(missed)
    )


@pytest.mark.parametrize(
    "paper, values, unit, verdict",
    [
        (80.0, [80.4], "final test_accuracy", "reproduces"),
        (80.0, [81.9], "final test_accuracy", "close"),
        (80.0, [82.1], "final test_accuracy", "does not"),
        (80.0, [80.0, 86.0], "final test_accuracy", "close"),  # 3 apart, within two deviations of 4.2
        (100, [105], "rounds-to test_accuracy", "reproduces"),
        (100, [125], "rounds-to test_accuracy", "close"),
        (100, [150], "rounds-to test_accuracy", "does not"),
        (2048, [2048], "delta-down", "reproduces"),
        (2048, [2808], "delta-down", "does not"),
        (None, [80.0], "final test_accuracy", measure.NOT_AT_HAND),
        (80.0, [], "final test_accuracy", "not run"),
    ],
)
def test_verdicts(paper, values, unit, verdict):
    assert cell(paper, values, unit).verdict == verdict


def test_a_target_never_reached_does_not_reproduce():
    one = cell(100, [], "rounds-to test_accuracy", missed=[0])
    assert one.verdict == "does not" and pages.ours(one) == "none"


def test_claims_must_hold_in_every_seed(tiny):
    quick = define.paper(str(tiny)).quick
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


def test_pages_come_from_results_alone(tiny, tmp_path):
    assert go(tiny, "one", "--full") == 0
    paper = define.paper(str(tiny))
    found = results.Results(tmp_path / "kept" / "tiny" / "results")
    page = pages.write(paper, found, results.Results(tmp_path / "no"), tmp_path / "docs").read_text()
    assert "| near | FedAvg | best" not in page and "| near | FedAvg | test accuracy, best round" in page
    assert "does not" in page and "Missing:" in page and "sweep" in page
    svg = (tmp_path / "docs" / "images" / "tiny-one-near.svg").read_text()
    assert svg.count('<path d="M') >= 7 and "<circle" in svg  # five lines of the grid and two curves; the paper's point
    rows = (tmp_path / "docs" / "tiny.csv").read_text().splitlines()
    assert len(rows) == 1 + 4 and rows[1].startswith("one,near,fedavg,best test_accuracy,0,")
    index = pages.index([(paper, found, results.Results(tmp_path / "no"))], tmp_path / "docs").read_text()
    assert "Do the papers hold?" in index and "[one](tiny.md)" in index


def test_the_time_of_what_is_missing_is_taken_from_runs_like_it(tiny):
    paper = define.paper(str(tiny))
    row = paper.tables["one"].rows[0]
    settings = paper.settings(row, "feddc")
    assert measure.estimate(settings, []) is None
    one = {"settings": settings, "seconds": 30.0, "seconds_evaluation": 10.0, "rounds": 10, "participants": 2}
    slow, fast = {**one, "device": "slow"}, {**one, "device": "fast", "seconds": 10.0}
    assert measure.estimate(settings, [slow]) == (pytest.approx(4.0 / 2 * 2 * 40), "slow")
    assert measure.estimate(settings, [slow, fast]) == (pytest.approx(2.0 / 2 * 2 * 40), "fast")
    other = {**settings, "local": {**settings["local"], "epochs": 7}}
    assert measure.estimate(other, [slow, fast]) is None


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
    folds = [choose.fold(fed, k, 3, 0) for k in range(3)]
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


def test_settings_are_chosen_by_cross_validation_once(tmp_path, capsys):
    file = tmp_path / "tiny.toml"
    file.write_text(CHOOSING)
    define.paper.cache_clear()
    assert go(file, "one", "--full", "--seeds", "1") == 0
    content = kept(tmp_path)
    choice = next(v for v in content.values() if "choice" in v)
    first, second = choice["steps"]
    assert first["chosen"] == [0.3] and first["scores"][1] > first["scores"][0]  # a rate of 1e-9 learns nothing
    used = {v["method"]: v["settings"] for v in content.values() if "settings" in v}
    assert used["fedavg"]["local"]["lr"] == used["feddc"]["local"]["lr"] == 0.3
    assert used["feddc"]["method"]["alpha"] == second["chosen"][0]
    assert len([*(tmp_path / "runs" / "tiny").glob("*-fold?-*")]) == 8
    capsys.readouterr()
    assert go(file, "one", "--full", "--seeds", "1") == 0 and kept(tmp_path) == content


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
