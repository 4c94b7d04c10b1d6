"""`unalike compare` as a user meets it: own data without Python, killed and gone on, mistakes in one line."""

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from paths import ROOT
from small import logged, timeless

from unalike import config
from unalike.cli import compare, main
from unalike.comparison import arms, gains, jobs
from unalike.config import defaults
from unalike.data.federation import Federation

SMALL = "--data digits --partition dirichlet:0.3 --clients 6 --hidden 8 --epochs 1"
FILES = ("comparison.json", "comparison.csv", "comparison.md", "report.html")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def do(capsys, line):
    """(exit code, standard output, standard error)"""
    capsys.readouterr()
    code = main(shlex.split(line))
    return code, *capsys.readouterr()


def found(folder):
    """All that a comparison wrote but the times."""
    with (Path(folder) / "comparison.csv").open(newline="") as file:
        rows = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
    content = json.loads((Path(folder) / "comparison.json").read_text())
    for case in content["cases"]:
        for method in case["methods"]:
            del method["seconds"]
    table = [{k: v for k, v in row.items() if k != "time"} for row in content.pop("table")]
    return rows, table, {k: v for k, v in content.items() if k != "command"}


def patients(rows_of=lambda name, k: None, header=("hospital", "outcome", "age", "dose")):
    """A CSV's text: four hospitals, two outcomes that the two numbers tell; `rows_of` may replace a row."""
    draw, lines = np.random.default_rng(3), [",".join(header)]
    for h, name in enumerate(("north", "south", "east", "west")):
        for k in range(24):
            age, dose = draw.normal(size=2) + 0.2 * h
            outcome = "ill" if age + dose > 0.4 * h else "well"
            lines.append(rows_of(name, k) or f"{name},{outcome},{age:.3f},{dose:.3f}")
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- it runs


def test_every_run_is_an_ordinary_folder_and_the_same_command_repeats_nothing(here, capsys):
    line = f"compare scaffold {SMALL} --rounds 3 --seeds 4,7 --target 0.1 --folder out"
    code, out, said = do(capsys, line)
    assert code == 0
    names = [f"{m}-seed{s}" for s in (4, 7) for m in ("fedavg", "scaffold", "centralized", "local-only")]
    assert sorted(p.name for p in Path("out").iterdir()) == sorted([*FILES, *names])
    assert max(map(len, (out + said).splitlines())) <= 80
    for wish in ("How sure", "the highest accuracy", "fewest rounds", "fewest bytes", "the simplest", "is it worth"):
        assert f"\n{wish}" in out
    assert out.startswith("In short: ") and out.index("what you care about") < out.index("\nmethod ")
    assert "report.html" in said and "[8/8] local-only-seed7: accuracy" in said
    for name in names:
        tables = config.read(f"out/{name}/config.toml")
        assert tables["run"]["seed"] == tables["data"]["seed"] == int(name[-1])  # the split's seed is the run's
        assert {k: tables["data"][k] for k in ("test", "validation")} == defaults.SHARES
        assert [row["round"] for row in logged(f"out/{name}")] == [1, 2, 3]
    facts = {n: config.load_toml(f"out/{n}/config.toml")["facts"] for n in names}
    assert len({facts[n]["data"]["fingerprint"] for n in names if n.endswith("4")}) == 1  # paired: one split, one start
    assert len({facts[n]["model"]["fingerprint"] for n in names if n.endswith("4")}) == 1
    assert len({facts[n]["data"]["fingerprint"] for n in names}) == 2

    rows, table, _ = found("out")
    title = json.loads(Path("out/comparison.json").read_text())["title"]
    assert title == "2 methods on digits" and f"<title>{title} " in Path("out/report.html").read_text()
    for row in rows:  # what a reference line would send is nobody's traffic, as the table has it
        sent = row["method"] in ("fedavg", "scaffold")
        assert bool(row["bytes"]) == sent and (sent or row["rounds_to"] == row["bytes_to"] == "")
    assert [row["all bytes"] == "–" for row in table] == [False, False, True, True, True]
    assert table[-1]["method"] == "constant" and float(table[-1]["accuracy"].split()[0]) < 25

    before, stamps = found("out"), {p: p.stat().st_mtime_ns for p in Path("out").glob("*/rounds.jsonl")}
    assert do(capsys, "report out --out again.html")[0] == 0
    code, again, said = do(capsys, line)
    assert code == 0 and again == out and said.count("(was there)") == 8
    assert found("out") == before and {p: p.stat().st_mtime_ns for p in Path("out").glob("*/rounds.jsonl")} == stamps
    code, _, said = do(capsys, line.replace("4,7", "4,7,9").replace("scaffold", "scaffold fedprox"))
    assert code == 0 and said.count("(was there)") == 8 and len(list(Path("out").glob("*-seed*"))) == 15


def test_run_twice_the_same_verdict_and_numbers_and_a_run_alone_too(here, capsys):
    line = f"compare fedavg feddyn {SMALL} --rounds 3 --seeds 2 --folder"
    first, second = do(capsys, f"{line} a --quiet"), do(capsys, f"{line} b --quiet")
    assert first[0] == 0 and first[2] == second[2] == ""
    assert found("a") == found("b")
    assert do(capsys, "run a/feddyn-seed1/config.toml --folder alone -q")[0] == 0
    assert timeless(logged("alone")) == timeless(logged("a/feddyn-seed1"))


def test_json_is_one_document(here, capsys):
    code, out, said = do(capsys, f"compare fedavg {SMALL} --rounds 1 --seeds 2, --no-references --folder a --json")
    content = json.loads(out)
    assert (code, said) == (0, "") and content["folder"] == "a" and content["report"] == "a/report.html"
    assert content["seeds"] == [2] and content["verdict"] and content["table"][0]["method"] == "fedavg"
    assert content["command"].startswith("unalike compare fedavg --data digits") and "--seeds 2," in content["command"]
    assert "--no-references" in content["command"]


@pytest.mark.slow
def test_killed_and_started_again_it_ends_with_the_same_numbers(here, capsys):
    line = f"compare fedavg scaffold {SMALL} --rounds 8 --checkpoint-every 3 --seeds 2 --no-references --folder"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    start = "import sys; from unalike.cli import main; sys.exit(main())"
    child = subprocess.Popen(
        [sys.executable, "-c", start, *shlex.split(f"{line} killed")], env=environment, stderr=subprocess.PIPE
    )
    half = Path("killed/scaffold-seed0/rounds.jsonl")
    deadline = time.monotonic() + 60
    while not (half.exists() and half.read_text().count("\n") >= 2) and child.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    assert child.returncode == -signal.SIGKILL and not Path("killed/comparison.json").exists()
    code, _, said = do(capsys, f"{line} killed")
    assert code == 0 and "fedavg-seed0: accuracy" in said and said.count("(was there)") >= 1
    assert do(capsys, f"{line} smooth -q")[0] == 0
    assert found("killed") == found("smooth")


def test_seeds_are_added_until_it_is_decided_or_the_budget_is_spent(here, monkeypatch):
    """No run is made: every seed takes ten seconds of a clock of our own."""
    now, made = [0.0], []

    def make(batch, watch):
        now[0] += 10.0 * len({job.seed for job in batch})
        made.extend(job.seed for job in batch)
        return {(job.arm.name, job.seed): None for job in batch}

    monkeypatch.setattr(jobs, "make", make)
    monkeypatch.setattr(compare.time, "perf_counter", lambda: now[0])
    arm = jobs.Arm("fedavg", "fedavg", "", {t: {} for t in ("data", "model", "method", "local", "run")})
    decided = lambda seeds: [SimpleNamespace(verdict=SimpleNamespace(decided=seeds >= 6))]  # noqa: E731

    def seeds(budget, skipped=()):
        made.clear()
        now[0] = 0.0
        monkeypatch.setattr(jobs, "with_seed", lambda tables, seed: tables)
        judge = lambda planned, outcomes: decided(len(planned))  # noqa: E731
        planned, outcomes, _ = compare.until_decided([arm], [0, 1, 2], budget, here, jobs.Watch(), judge, skipped)
        assert [job.seed for job in planned] == made and len(outcomes) == len(made)
        return list(made)

    assert seeds(0.0) == [0, 1, 2]
    assert seeds(49.0) == [0, 1, 2, 3]  # a fifth would end after 50 seconds
    assert seeds(1e6) == [0, 1, 2, 3, 4, 5]
    assert seeds(1e6, skipped=[3]) == [0, 1, 2, 4, 5, 6]  # on which settings were tuned
    decided = lambda seeds: [SimpleNamespace(verdict=SimpleNamespace(decided=False))]  # noqa: E731
    assert len(seeds(1e9)) == compare.MOST_SEEDS


def test_a_budget_from_the_command_line(here, capsys):
    line = f"compare fedavg fedprox {SMALL} --rounds 1 --seeds 2 --no-references --mu 0 --folder a"
    code, out, _ = do(capsys, f"{line} --budget 1h --json")
    content = json.loads(out)  # two names of one method: nothing is left to decide
    assert code in (0, 3) and content["seeds"] == [0, 1] and "--budget 1h" in content["command"]
    assert any(line.startswith("Identical: fedprox and fedavg") for line in content["verdict"])
    assert "Seeds: 2 and 0 more; the answer is sure." in content["notes"]
    code, _, said = do(capsys, f"{line} --budget soon")
    assert code == 2 and "--budget must be a time such as 25m, 90s or 2h; got 'soon'." in said


def test_the_default_folder_is_found_again_by_the_same_settings(here, capsys):
    line = f"compare fedavg {SMALL} --rounds 1 --seeds 1 --no-references"
    assert do(capsys, f"{line} -q")[0] == 0
    assert "(was there)" in do(capsys, line)[2]
    assert "(was there)" in do(capsys, line.replace("fedavg", "fedavg fedprox"))[2]  # one more method joins them
    assert "(was there)" not in do(capsys, f"{line} --lr 0.2")[2]
    assert len(list(Path("runs").glob("compare-digits-*"))) == 2


def test_one_that_diverges_does_not_stop_the_others(here, capsys):
    line = f"compare fedavg fedprox {SMALL} --rounds 2 --seeds 2 --mu 1e4 --no-references --folder a"
    code, out, said = do(capsys, line)
    assert code == 3 and "fedprox-seed0: diverged in round 1" in said
    assert "In short: fedavg is the only method that got through; its accuracy is" in out.replace("\n  ", " ")
    assert "\nDiverged: fedprox in 2 of 2 seeds (round 1)" in out
    rows, table, _ = found("a")
    assert all(row["bytes"] for row in rows)
    assert [row["diverged_in_round"] for row in rows] == ["", "1", "", "1"]
    assert table[1]["accuracy"] == "diverged"
    assert do(capsys, line)[1] == out


def test_where_all_diverge_at_once_there_is_a_verdict_and_no_page(here, capsys):
    Path("my.csv").write_text(patients())
    line = "compare fedavg --table my.csv --client hospital --label outcome --lr 1e30 --rounds 2 --seeds 1 --folder a"
    code, out, said = do(capsys, line)
    assert code == 3 and "In short: no verdict; no method got through in every seed." in out and "no page" in said
    assert "Measured: " not in out and "How sure" not in out
    assert [row["accuracy"] for row in found("a")[1]][:3] == ["diverged"] * 3
    assert not Path("a/report.html").exists()
    code, out, _ = do(capsys, f"{line} --json")
    assert code == 3 and json.loads(out)["report"] is None and json.loads(out)["title"] == "fedavg on my"


def test_lists_are_a_grid_and_flags_go_to_the_methods_that_have_them(here, capsys):
    start = compare._defaults([("data", "digits")])

    def labels(methods, *given):
        made = arms.arms_of(methods, [("data", "digits"), *given], start, True)
        return [(a.label, a.case, a.tables["method"], a.tables["local"]["lr"]) for a in made]

    grid = labels(["fedavg", "fedprox"], ("mu", "0.1,1"), ("lr", "0.1,0.2"))
    assert [g[0] for g in grid[:2]] == ["fedavg lr=0.1", "fedavg lr=0.2"] and len(grid) == 6
    assert grid[-1] == ("fedprox mu=1 lr=0.2", "", {"name": "fedprox", "mu": 1}, 0.2)
    both = labels(["feddyn", "feddc"], ("feddc.alpha", "0.5"))
    assert [g[2] for g in both] == [{"name": "feddyn"}, {"name": "feddc", "alpha": 0.5}]
    assert [g[2].get("alpha") for g in labels(["feddyn", "feddc"], ("alpha", "0.5"))] == [0.5, 0.5]
    assert [g[2].get("alpha") for g in labels(["fedavg", "feddc"], ("method.alpha", "0.5"))] == [None, 0.5]
    cases = labels(["fedavg"], ("partition", "iid,dirichlet:0.1"), ("hidden", "16,8"), ("betas", "0.8,0.9"))
    assert [(g[0], g[1]) for g in cases] == [("fedavg", "partition=iid"), ("fedavg", "partition=dirichlet:0.1")]
    wide = arms.arms_of(["fedavg"], [("data", "digits"), ("hidden", "[16],[8,8]")], start, True)
    assert [a.tables["model"]["hidden"] for a in wide] == [[16], [8, 8]] and wide[0].name == "fedavg-hidden-16"
    assert len({a.name for a in wide}) == 2
    Path("own.py").write_text(OWN)
    own = arms.arms_of(["own.py:Broken"], [("data", "digits"), ("strength", "1,2")], start, True)
    assert [(a.label, a.method) for a in own] == [("Broken strength=1", "Broken"), ("Broken strength=2", "Broken")]
    assert not any(a.free_rate for a in arms.arms_of(["fedavg"], [("data", "digits"), ("lr", "1")], start, True))


def test_a_grid_over_data_ends_in_a_verdict_for_each(here, capsys):
    line = "compare fedavg --data digits --partition iid,shards:2 --clients 5 --rounds 1 --seeds 1 --no-references"
    code, out, _ = do(capsys, f"{line} --hidden 8 --folder a -q")
    assert code == 0 and out.startswith("partition=iid\n") and "\npartition=shards:2\n" in out
    assert {row["data"] for row in found("a")[0]} == {"partition=iid", "partition=shards:2"}


def test_tuning_gives_every_method_the_same_trials_on_another_seed(here, capsys):
    line = f"compare fedavg fedprox {SMALL} --rounds 2 --seeds 1 --no-references --tune 3 --folder a"
    code, out, said = do(capsys, line)
    assert code == 0
    assert "\nTuned on validation data, 3 trials each of 1 rounds, seed 1: fedavg " in out
    trials = sorted(p.name for p in Path("a/tune").iterdir())
    assert trials == [f"{m}-00{k}" for m in ("fedavg", "fedprox") for k in range(3)]
    seen = {p: config.read(f"a/tune/{p}/config.toml") for p in trials}
    assert {t["run"]["seed"] for t in seen.values()} == {1} and {t["run"]["rounds"] for t in seen.values()} == {1}
    tuning = json.loads(Path("a/comparison.json").read_text())["tuning"]
    for name in ("fedavg", "fedprox"):
        best = max(range(3), key=lambda k: (tuning[name][k]["validation"], -k))
        chosen = config.read(f"a/{name}-seed0/config.toml")
        assert chosen["local"] == seen[f"{name}-00{best}"]["local"]
        assert chosen["method"] == seen[f"{name}-00{best}"]["method"]
    assert "report" in said and do(capsys, line)[1] == out


# ---------------------------------------------------------------- data of one's own


def test_a_csv_goes_through_without_python(here, capsys):
    Path("my.csv").write_text(patients())
    code, out, said = do(
        capsys, "compare fedavg fedprox --table my.csv --client hospital --label outcome --rounds 4 --folder a"
    )
    assert code == 0 and "accuracy on clients' own test samples" in out and "my; mlp; 4 rounds of all clients" in said
    assert all((Path("a") / name).stat().st_size > 100 for name in FILES)
    page = Path("a/report.html").read_text()
    assert "north" in page and "<title>2 methods on my " in page
    assert "\nFew samples: rounds were chosen by the loss on 8 validation samples" in out  # 2 of each hospital's 24


def test_a_folder_of_npz_files_goes_through_without_python(here, capsys):
    draw = np.random.default_rng(0)
    Path("clients").mkdir()
    for name in "abc":
        x = draw.normal(size=(60, 3)).astype(np.float32)
        np.savez(f"clients/{name}.npz", x=x, y=(x[:, 0] > 0).astype(int) * (name != "c"))
    line = "compare fedavg --data-folder clients --rounds 4 --seeds 2 --folder"
    code, out, said = do(capsys, f"{line} a")
    assert code == 0 and "the highest" not in out and "is it worth" in out
    assert "note: 1 of 3 clients have samples of one class (client 2 ('c'))" in " ".join(said.split())
    x = draw.normal(size=(60, 3)).astype(np.float32)
    np.savez("clients/a.npz", x=x, y=(x[:, 0] > 0).astype(int))
    code, _, said = do(capsys, f"{line} a")  # the data changed: what was run is of others
    assert code == 2 and "was run on other data than these: choose another --folder" in said


@pytest.mark.parametrize("kind", ["0 and 1", "one-hot", "fractions", "integers"])
def test_classes_saved_as_floats_are_a_regression_and_told(here, kind):
    truth = np.arange(20) % 2
    y = {"0 and 1": truth.astype(float), "one-hot": np.eye(2)[truth], "fractions": truth + 0.5, "integers": truth}[kind]
    Path("clients").mkdir()
    np.savez("clients/a.npz", x=np.ones((20, 2), np.float32), y=y)
    notes = []
    watch = jobs.Watch()
    watch.note = notes.append
    made = arms.arms_of(["fedavg"], [("data-folder", "clients")], compare._defaults([]), True)
    jobs.settle(made, 0, watch)
    told = "y is float: taken as regression; save it as integers for classes." in notes
    assert told == (kind in ("0 and 1", "one-hot"))


def test_a_number_to_predict_is_compared_by_its_error(here, capsys):
    Path("my.csv").write_text(patients())
    line = "compare fedavg fedprox --table my.csv --client hospital --label dose --categorical outcome --regression"
    code, out, _ = do(capsys, f"{line} --rounds 3 --folder a -q")
    assert code == 0 and "\nthe lowest RMSE " in out and "RMSE over all clients' test samples together" in out
    found = config.load_toml("a/fedavg-seed0/config.toml")["facts"]["model"]
    assert found["loss"] == "squared_error" and found["parameters"] == (3 * 32 + 32) + (3 + 32) + 1


def test_data_with_splits_of_their_own_keep_them(here):
    x, y = np.ones((20, 2), np.float32), np.arange(20) % 2
    Path("clients").mkdir()
    np.savez("clients/a.npz", x=x, y=y, x_test=x[:4], y_test=y[:4])
    table, fed, _ = defaults.held_out({"folder": "clients"}, "test", "validation")
    assert table == {"folder": "clients", "validation": 0.1} and len(fed.test.y) == 4 and len(fed.validation.y) == 2
    given = {"folder": "clients", "validation": 0.0}
    assert defaults.held_out(given, "test", "validation")[0] == given


def test_the_centralized_reference_makes_as_many_passes_as_the_clients_together():
    assert jobs.pooled_work({"epochs": 5, "lr": 0.1}, 10, 50) == {"epochs": 1.0, "lr": 0.1}
    assert jobs.pooled_work({"steps": 3}, 0.2, 50) == {"steps": 30}
    assert jobs.pooled_work({"epochs": [1, 3], "lr": [0.1, 0.3]}, 1.0, 2) == {"epochs": 2.0, "lr": pytest.approx(0.2)}


def test_a_taste_has_all_parts_and_few_samples():
    fed = config.make_data({"name": "digits", "clients": 5, "test": 0.2, "validation": 0.1})
    few = jobs.taste(fed)
    assert isinstance(few, Federation) and few.train.sizes.tolist() == [8, 8, 8] and few.classes == 10
    assert (few.train.of(1)[0] == fed.train.of(1)[0][:8]).all() and len(few.global_test[0]) == 8
    assert (few.validation.of(2)[0] == fed.validation.of(2)[0][:8]).all() and len(few.test) == 3
    named = fed.replace(names=list("abcde"), label_names=list("0123456789"))
    assert jobs.taste(named).facts == {**named.facts, "names": list("abc")}


def test_drifting_data_have_more_groups_than_a_taste_has_clients(here, capsys):
    line = "compare fedavg --data digits --partition iid|drift:2:shift:1:5|stream:3 --clients 6 --rounds 1 --seeds 1"
    assert do(capsys, f"{line} --no-references --folder there")[0] == 0


# ---------------------------------------------------------------- mistakes

OWN = """
import dataclasses as dc
import unalike as ua

@dc.dataclass(frozen=True)
class Broken(ua.Method):
    strength: float = 1.0

    def done(self, me, s, m, theta):
        return {}, {"delta": theta[:3]}
"""
CSVS = {
    "text.csv": lambda name, k: "east,ill,high,1" if (name, k) == ("east", 2) else None,
    "nan.csv": lambda name, k: "east,ill,nan,1" if (name, k) == ("east", 2) else None,
    "labels.csv": lambda name, k: f"{name},{name}{k},1,2",
}
MISTAKES = [
    ("fedavg scafold --data digits", "unalike: There is no method 'scafold'. Did you mean 'scaffold'?"),
    ("fedavg fedavg --data digits", "unalike compare: fedavg is listed twice; for two settings "
     "give a list, --lr 0.1,1."),
    ("--data digits", "unalike compare: the following arguments are required: METHOD"),
    ("fedavg", "unalike: [data] needs a name or a folder, or a table alone (`unalike list data` has the names)."),
    ("fedavg --data digits --seeds 0", "unalike compare: --seeds 0 runs nothing: give at least 1."),
    ("fedavg --data digits --seeds", "unalike compare: argument --seeds: expected one argument"),
    ("fedavg --data digits --seeds two", "unalike compare: --seeds must be how many (3) or which (0,1,2); got 'two'."),
    ("fedavg --data digits --seeds 1,1", "unalike compare: --seeds 1,1 has a seed twice: a paired test "
     "counts each once."),
    ("fedavg --data digits --seed 3", "unalike compare: there are several seeds here: give --seeds (3, or 0,1,2)."),
    ("fedavg --data digits --method fedprox", "unalike compare: there is no --method here; methods are named without a "
     "flag."),
    ("fedprox --data digits --muu 1,2", "unalike compare: there is no setting --muu here. `unalike run --help` lists "
     "them."),
    ("fedavg --data digits --mu 1,2", "unalike compare: there is no setting --mu here. It is a setting of the method "
     "fedprox, fednova, fedasync, lg-fedavg and moon."),
    ("fedprox --data digits --mu 1,1", "unalike compare: --mu 1,1 has a value twice."),
    ("fedprox --data digits --fedprox.muu 1", "unalike compare: fedprox has no setting 'muu'. Did you mean 'mu'?"),
    ("fedprox --data digits --lr 0.1,fast", "unalike compare: --lr must be a number or a list of numbers; got "
     "'0.1,fast'."),
    ("fedprox --data digits --mu 1,-1", "unalike: FedProx mu must be at least 0; got -1."),
    ("feddc --data synthetic-feddc --alpha 1", "unalike compare: --alpha is a setting of data and method: say "
     "--data.alpha or --method.alpha."),
    ("fedavg --data digits --rounds 0", "unalike compare: --rounds must be at least 1; got 0."),
    ("fedavg --data digits --tune 0", "unalike compare: --tune must be at least 1 trial; got 0."),
    ("fedavg --data digits --tune 2 --lr 0.1,1", "unalike compare: a list of settings and --tune both choose settings: "
     "give one of the two."),
    ("fedavg --data digits --tune 2 --validation 0", "unalike: --tune chooses on validation data, and there are none: "
     "give --validation 0.1."),
    ("fedavg --data digits --tune-rounds 2", "unalike compare: --tune-rounds is at least 1, and goes with --tune."),
    ("a.toml b.toml fedavg", "unalike compare: give one config file at most; got a.toml and b.toml."),
    ("fedavg --data digits --clients 3 --clients-per-round 4", "unalike: clients_per_round: 4 of 3 clients; it must be "
     "a whole number from 1 to 3."),
    ("own.py:Broken --data digits", "unalike: Broken cannot run here: *"),
    ("fedavg --table my.csv --client hospitl --label outcome", "unalike: HERE/my.csv has no column 'hospitl'. Did you "
     "mean 'hospital'?"),
    ("fedavg --table text.csv --client hospital --label outcome", "unalike: The column 'age' of HERE/text.csv is a "
     "number but has 'high' in line 52: *"),
    ("fedavg --table nan.csv --client hospital --label outcome --missing refuse", "unalike: Of HERE/nan.csv 1 cell is "
     "missing: age 1; the first in line 52: *"),
    ("fedavg --table labels.csv --client hospital --label outcome", "unalike: The label column 'outcome' of "
     "HERE/labels.csv has another value in each of 96 rows: *"),
    ("fedavg --data-folder rows", "unalike: The data have 11 different labels in 11 samples: labels must be classes "
     "that repeat; give floats for regression."),
    ("fedavg --data-folder hole", "unalike: *a.npz* NaN *"),
    ("fedavg --data-folder same", "unalike: The label is 0 in every sample: nothing to learn."),
    ("fedavg --data-folder same-floats", "unalike: The label is the same in every sample: nothing to learn."),
]  # fmt: skip


@pytest.mark.parametrize("line,expected", MISTAKES)
def test_mistakes_are_one_line_and_code_2_before_anything_is_run(here, capsys, line, expected):
    Path("own.py").write_text(OWN)
    Path("my.csv").write_text(patients())
    for name, rows in CSVS.items():
        if name in line:
            Path(name).write_text(patients(rows))
    for folder, x in (("rows", 1.0), ("hole", np.nan)):
        Path(folder).mkdir()
        np.savez(f"{folder}/a.npz", x=np.full((16, 2), x, np.float32), y=np.arange(16))
    for folder, kind in (("same", np.int64), ("same-floats", np.float32)):
        Path(folder).mkdir()
        np.savez(f"{folder}/a.npz", x=np.ones((16, 2), np.float32), y=np.zeros(16, kind))
    code, out, said = do(capsys, f"compare {line} --folder out")
    assert (code, out) == (2, ""), said
    start, *rest = expected.replace("HERE", str(here)).split("*")
    assert said.startswith(start) and said.count("\n") == 1 and all(part in said for part in rest), said
    assert rest or said == start + "\n"
    assert not Path("out").exists() and not Path("runs").exists()


def test_a_folder_that_holds_something_else(here, capsys):
    line = f"compare fedavg {SMALL} --rounds 2 --seeds 1 --no-references"
    assert do(capsys, f"{line} --folder a -q")[0] == 0
    code, _, said = do(capsys, f"{line} --folder a --lr 0.3")
    assert code == 2 and "a/fedavg-seed0 holds another run: there local.lr is 0.1, here 0.3." in said
    code, _, said = do(capsys, f"{line} --folder a --rounds 1")
    assert code == 2 and "holds a run of 2 rounds and 1 are asked for" in said
    code, _, said = do(capsys, f"{line} --folder a/fedavg-seed0")
    assert code == 2 and "is not a comparison's folder" in said
    Path("a/fedprox-seed0").mkdir()
    Path("a/fedprox-seed0/mine").write_text("")
    code, _, said = do(capsys, line.replace("fedavg", "fedavg fedprox") + " --folder a")
    assert code == 2 and "is not empty and holds no run" in said
    code, _, said = do(capsys, f"{line} --folder a --rounds 4")  # more rounds go on
    assert code == 0 and [row["round"] for row in logged("a/fedavg-seed0")] == [1, 2, 3, 4]


def test_dry_run_writes_nothing(here, capsys):
    code, out, _ = do(capsys, f"compare fedavg {SMALL} --seeds 2 --dry-run --folder a")
    assert code == 0 and out.endswith("6 runs\n") and not Path("a").exists()
    code, out, _ = do(capsys, f"compare fedavg {SMALL} --seeds 2 --dry-run --folder a --tune 4 --json")
    assert json.loads(out)["trials"] == 12


def test_ctrl_c_says_how_to_go_on(here, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs, "make", interrupted)
    code, out, said = do(capsys, f"compare fedavg {SMALL} --rounds 1 --seeds 1 --folder a")
    assert (code, out) == (130, "") and said.endswith("stopped; nothing is lost. The same command goes on.\n")


def test_a_config_file_is_the_base(here, capsys):
    Path("run.toml").write_text(
        '[data]\nname = "digits"\nclients = 4\n\n[model]\nname = "mlp"\nhidden = [8]\n\n[local]\nlr = 0.2\n\n'
        "[run]\nrounds = 2\n"
    )
    assert do(capsys, "compare run.toml fedprox --no-references --seeds 1 --folder a -q")[0] == 0
    tables = config.read("a/fedprox-seed0/config.toml")
    assert tables["local"] == {"lr": 0.2} and tables["model"]["hidden"] == [8] and tables["run"]["rounds"] == 2


def test_the_live_table(here, capsys):
    from rich.console import Console

    from unalike.cli.scoreboard import Scoreboard
    from unalike.results.evidence import Outcome

    screen = Console(force_terminal=True, width=80, height=30, record=True)
    board = Scoreboard(screen)
    made = arms.arms_of(["fedavg", "fedprox"], [("data", "digits")], compare._defaults([("data", "digits")]), True)
    planned = jobs.plan(made, [0, 1], Path("x"))
    with board:
        board.begin(planned, "runs")
        board.done(planned[0], Outcome(0, [{"round": 50, "test_accuracy": 0.75}]), fresh=True)
        board.round(planned[1], {"test_accuracy": 0.5})
        board.done(planned[1], Outcome(0, [], diverged=2), fresh=True)
        board.round(planned[2], {"test_accuracy": 0.25})
        screen.print(board._table())
    text = screen.export_text()
    shown = {line.split()[0]: line.split() for line in text.splitlines() if line.startswith("fed")}
    assert shown["fedavg"][1:2] == ["1/2"] and shown["fedavg"][-4:] == ["25.0", "%", "75.0", "%"]
    assert shown["fedprox"][1:2] == ["1/2"] and shown["fedprox"][-2:] == ["1", "diverged"]
    assert "2/4 runs" in text and board.left == 200 - 100 - 1


NETWORKS = """
[data]
name = "digits"
clients = 5

[models.small]
name = "linear"

[models.large]
name = "mlp"
hidden = [6]

[local]
batch_size = 100

[run]
rounds = 1
architecture = "small:4, large:1"
"""


def test_clients_with_different_networks_are_compared(here, capsys):
    (here / "run.toml").write_text(NETWORKS)
    line = "compare run.toml fedavg fedprox --seeds 1 --folder out --quiet"
    code, _, error = do(capsys, line.replace("fedprox", "centralized --no-references"))
    assert code == 2 and "Centralized trains one network on pooled data" in error
    assert not (here / "out").exists()
    assert do(capsys, f"{line} --no-references")[0] in (0, 3)
    written = [config.load_toml(file) for file in (here / "out").glob("*/config.toml")]
    assert [tree["facts"]["models"]["large"]["clients"] for tree in written] == [1, 1]
    (here / "run.toml").write_text(NETWORKS.replace("hidden = [6]", "hidden = [7]"))
    code, _, error = do(capsys, f"{line} --no-references")
    assert code == 2 and "models.large" in error


SEVERAL = "--data digits --clients 6 --model small=linear,large=mlp --models.large.hidden 6 --epochs 1 --batch-size 50"
SEVERAL += " --architecture small:4,large:2 --rounds 1 --seeds 1"


def test_networks_from_the_command_line(here, capsys):
    """Everything is as from a file; centralized is left out by itself, and clients' own data are what counts."""
    code, out, _ = do(capsys, f"compare fedprox {SEVERAL} --loss cross-entropy --folder out --quiet")
    assert code in (0, 3) and "centralized is left out: it trains one network" in out
    names = {p.name for p in (here / "out").iterdir() if p.is_dir()}
    assert names == {"fedavg-seed0", "fedprox-seed0", "local-only-seed0"}
    written = config.load_toml("out/fedprox-seed0/config.toml")
    assert written["models"] == {"small": {"name": "linear"}, "large": {"name": "mlp", "hidden": [6]}}
    assert written["model"] == {"loss": "cross-entropy"} and written["run"]["architecture"] == "small:4,large:2"
    assert json.loads(Path("out/comparison.json").read_text())["cases"][0]["score"]["key"] == "clients_accuracy_mean"


@pytest.mark.parametrize(
    "line, expected",
    [
        (f"compare fedamp {SEVERAL}", "fedamp cannot run here: FedAMP has a table 'models'"),
        (f"compare fedproto {SEVERAL}", "fedproto cannot run here: FedProto sends 'total'"),
        (f"compare fedavg {SEVERAL} --models.lage.hidden 3", "there is no network 'lage'. Did you mean 'large'?"),
        (f"compare fedavg {SEVERAL} --models.large.hiden 3", "[models.large] has no setting 'hiden'. Did you mean"),
        (f"compare fedavg {SEVERAL} --hidden 3", "Say of which network: --models.large.hidden."),
        ("compare fedavg --data digits --model a=linear,a=mlp", "each network is NAME=MODEL, with a name of its own"),
        ("compare fedavg --data digits --model a=linear,mlp", "each network is NAME=MODEL, with a name of its own"),
        ("compare fedavg --data digits --model a=linear,b=nlp --architecture a:9,b:1", "no model 'nlp'"),
        ("compare fedavg --data digits --model a=linear,b=mlp", "[run] needs architecture"),
    ],
)
def test_mistakes_about_networks_are_one_line_and_nothing_is_run(here, capsys, line, expected):
    code, out, error = do(capsys, f"{line} --folder out")
    assert (code, out) == (2, "") and expected in error and error.count("\n") == 1, error
    assert not (here / "out").exists()


def test_clients_own_data_by_network(here, capsys):
    code, out, _ = do(capsys, f"compare fedavg --no-references {SEVERAL} --folder out --quiet")
    assert code in (0, 3) and "own data, small" in out and "own data, large" in out
    row = found("out")[0][0]
    values = gains.client_values(Path("out/fedavg-seed0"), int(row["selected_round"]), "accuracy")
    assert float(row["own_small"]) == pytest.approx(np.mean([values[k] for k in range(4)]))
    assert float(row["own_large"]) == pytest.approx(np.mean([values[k] for k in (4, 5)]))
    assert float(row["own"]) == pytest.approx(np.mean(list(values.values())), abs=1e-6)


def test_every_cluster_has_a_client_where_methods_are_tried(here, capsys):
    """Methods are tried on a few clients first: as many as there are clusters."""
    line = f"compare fedavg ifca --no-references {SMALL} --method.clusters 5 --rounds 1 --seeds 1 --quiet"
    assert do(capsys, f"{line} --folder out")[0] in (0, 3)
    code, _, error = do(capsys, f"{line.replace('clusters 5', 'clusters 7')} --folder more")
    assert code == 2 and "IFCA clusters=7 of 6 clients" in error and not (here / "more").exists()


def test_no_trial_has_more_clusters_than_clients(here, monkeypatch):
    tables = {"data": {"name": "digits"}, "model": {}, "method": {"name": "ifca"}, "local": {}, "run": {"rounds": 1}}
    made = []

    def noted(some, *watch, **rest):
        made.extend(job.tables["method"] for job in some)
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs, "make", noted)
    watch = type("Watch", (), {"begin": lambda *given: None})()
    for clients in (5, 6):
        made.clear()
        arm = jobs.Arm("ifca", "ifca", "", tables, clients=clients)
        with pytest.raises(KeyboardInterrupt):
            jobs.tuned([arm], 12, 1, 0, here / "out", watch)
        asked = [method.get("clusters", 2) for method in made]
        assert len(asked) == 12 and (6 in asked) == (clients == 6)  # the same draws
