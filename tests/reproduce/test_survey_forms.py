"""`unalike reproduce`: networks and groups, targets and differences, trials that are kept, processes that share."""

import dataclasses as dc
import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import small
from test_reproduce import CHOOSING, TINY, go, kept

import unalike as ua
from unalike.errors import UnalikeError
from unalike.reproduce import choose, command, define, groups, jobs, measure, pages, pictures, results, shared
from unalike.reproduce.groups import of_groups
from unalike.reproduce.shared import FOLDER, Shared
from unalike.run.folder import read_rounds

# ---------------------------------------------------------------- several networks, groups of clients

NETWORKS = """
[part.mixed]
label = "two networks"
data = { name = "digits", clients = 4, partition = "dirichlet:0.3", test = 0.2 }
models = { small = { name = "linear" }, large = { name = "mlp", hidden = [8] } }
run = { rounds = 2, architecture = "small:1, large:3" }
"""


@pytest.fixture
def mixed(tmp_path):
    file = tmp_path / "tiny.toml"
    text = TINY.replace("local_models = true\n", "") + NETWORKS
    text = text.replace('name = "synthetic-feddc"\nclients = 4\nsamples = 20\n', "seed = 0\n")
    file.write_text(text.replace('rows = [[["near"], ["short"]]]', 'rows = [[["mixed"]]]'))
    return file


@pytest.mark.slow
def test_a_row_of_several_networks_has_the_numbers_of_each(mixed, tmp_path):
    assert go(mixed, "--quick", "--seeds", "1") == 0
    result = next(r for r in kept(tmp_path, "quick").values() if r["method"] == "fedavg")
    assert result["settings"]["models"]["large"]["hidden"] == [8] and "name" not in result["settings"].get("model", {})
    final = result["final"]
    counted = 1 / 4 * final["own_small_accuracy"] + 3 / 4 * final["own_large_accuracy"]
    assert counted == pytest.approx(final["clients_accuracy_mean"], abs=1e-6)
    for name in ("small", "large"):  # FedAvg's clients have the network's global model
        assert final[f"common_{name}_accuracy"] == pytest.approx(final[f"test_{name}_accuracy"], abs=1e-6)
    assert final["common_small_accuracy"] != pytest.approx(final["own_small_accuracy"], abs=1e-3)
    one = measure.measure("final own_small_accuracy")
    assert one.unit == "%" and one.of(result, None) == pytest.approx(100 * final["own_small_accuracy"])


def test_own_models_are_judged_on_the_common_test_set():
    fed = small.federation()
    networks = {"a": small.model(), "b": ua.models.mlp(5, (6,), classes=3)}
    run = small.run(ua.LocalOnly(), module=networks, data=fed, architecture="a:2, b:4", rounds=2, clients_per_round=1.0)
    line = of_groups(run)
    x, y = fed.global_test
    own = [float((run.predict(x, client=k).classes == y.numpy()).mean()) for k in range(6)]
    assert line["round"] == 2
    assert line["common_a_accuracy"] == pytest.approx(np.mean(own[:2]))
    assert line["common_b_accuracy"] == pytest.approx(np.mean(own[2:]))
    assert len({round(value, 6) for value in own}) > 1


def test_planted_groups_have_numbers_and_one_network_has_none():
    fed = small.federation().skewed("permute:2:0.34", seed=1)
    run = small.run(ua.FedAvg(), data=fed, rounds=1)
    line, values = of_groups(run), run.client_values["accuracy"]
    honest = fed.planted["permute"] == 0
    assert honest.sum() == 4 and {*line} == {"round", "own_permute0_accuracy", "own_permute1_accuracy"}
    assert line["own_permute0_accuracy"] == pytest.approx(values[honest].mean())
    assert line["own_permute1_accuracy"] == pytest.approx(values[~honest].mean())
    assert of_groups(small.run(ua.FedAvg(), rounds=1)) == {"round": 1}


@pytest.mark.slow
def test_several_quick_tables(tmp_path, capsys):
    file = tmp_path / "tiny.toml"
    head, _, quick = TINY.partition("[quick]\n")
    second = quick.replace('rows = [[["near"]', 'rows = [[["far"]').replace("a claim", "another")
    file.write_text(f'{head}[[quick]]\nid = "first"\n{quick}[[quick]]\nid = "second"\n{second}')
    assert go(file, "--quick", "--seeds", "1") == 0
    said = json.loads(capsys.readouterr().out)
    assert [table["table"] for table in said["tables"]] == ["first", "second"]
    assert len(kept(tmp_path, "quick")) == 4
    there = results.Results(tmp_path / "kept" / "tiny" / "quick")
    page = pages.write(define.paper(str(file)), results.Results(tmp_path / "no"), there, tmp_path / "docs").read_text()
    assert "## first: a claim" in page and "## second: another" in page


# ---------------------------------------------------------------- targets and differences


def test_a_target_may_be_what_another_method_ends_with(tmp_path):
    """FedAvg ends with 0.6 in seed 0 and 0.8 in seed 1, which B reaches in rounds 2 and 5; C never does in seed 1."""
    row = define.Row("r", "r", (), "fedavg", {})

    def job(row, method, seed):
        return define.Job("p", row.id, method, seed, {"data": {"seed": 0}, "run": {"seed": [method, seed]}})

    def result(method, seed, *records):
        final = {"test_accuracy": records[-1][1]}
        key = job(row, method, seed).key
        return {"key": key, "final": final, "records": {"test_accuracy": [*records]}, "diverged": None}

    there = results.Results(tmp_path / "no")
    for one in (
        result("fedavg", 0, [1, 0.7], [9, 0.6]), result("fedavg", 1, [8, 0.8]),
        result("b", 0, [1, 0.5], [2, 0.6], [3, 0.9]), result("b", 1, [5, 0.81]),
        result("c", 0, [7, 0.65]), result("c", 1, [7, 0.79]),
    ):  # fmt: skip
        there.found[one["key"]] = one

    table = define.Table("t", "t", ["fedavg", "b", "c"], ["rounds-to test_accuracy"], [row], 2)
    cells = measure.cells(None, table, [row], [0, 1], there, job)
    assert {cell.method: cell.values for cell in cells} == {"fedavg": {0: 1, 1: 8}, "b": {0: 2, 1: 5}, "c": {0: 7}}
    assert cells[2].missed == [1]
    there.found[job(row, "fedavg", 1).key]["diverged"] = 3  # then there is no target
    cells = measure.cells(None, table, [row], [0, 1], there, job)
    assert cells[1].values == {0: 2} and cells[1].missed == [1]


def test_a_target_must_be_a_method_of_the_table(tmp_path):
    tree = define.config.load_toml(_written(tmp_path, TINY.replace("target = 0.5", 'target = "fedvag"')))
    with pytest.raises(UnalikeError, match=r"There is no method of tiny one, the target of near, 'fedvag'.*fedavg"):
        define.Paper("tiny", tree)


def test_further_seeds_need_a_choice(tmp_path):
    tree = define.config.load_toml(_written(tmp_path, TINY.replace('title = "a table"', 'title = "t"\nfurther = 3')))
    with pytest.raises(UnalikeError, match=r"^tiny one has further seeds .*: it needs choose = true\.$"):
        define.Paper("tiny", tree)


def _written(folder, text):
    (folder / "tiny.toml").write_text(text)
    return folder / "tiny.toml"


def test_a_pair_of_methods_is_their_difference():
    """a loses 3 points and 1 point, b 2 and 4: in seed 0 a loses more, in seed 1 less."""
    own = {"a": [80.0, 80.0], "a0": [83.0, 81.0], "b": [70.0, 70.0], "b0": [72.0, 74.0]}
    row, one = define.Row("r", "r", (), None, {}), measure.measure("final test_accuracy")
    cells = [measure.Cell(row, m, one, None, dict(enumerate(v)), [], 2) for m, v in own.items()]
    claim = {"text": "a loses less", "higher": ["a", "a0"], "lower": ["b", "b0"]}
    table = define.Table("t", "t", [*own], ["final test_accuracy"], [row], 2, claims=(claim,))
    (found,) = measure.claims(table, cells)
    assert found.margins == {0: -1.0, 1: 3.0} and found.held == 1 and not found.holds
    (found,) = measure.claims(table, [cell for cell in cells if cell.method != "b0"])
    assert not found.margins  # nobody has run b0


def test_slow_classes_are_seen_after_each_of_the_last_evaluations(tmp_path):
    how = {"rounds": 7, "evaluate_every": 1, "folder": tmp_path / "run", "clock": ua.Clock(slow="classes:0")}
    run = small.run(callbacks=[groups.BySpeed()], **how)
    lines = read_rounds(tmp_path / "run" / groups.FILE)
    assert [line["round"] for line in lines] == [3, 4, 5, 6, 7]
    assert lines[-1] == {**of_groups(run), "round": 7}


def test_who_never_reaches_a_target_is_not_sooner():
    """Seed 0: both reach it; 1: only b does; 2: only a does; 3: none; in seed 4 only b has run."""
    of = {"a": ({0: 9.0, 2: 5.0}, [1, 3]), "b": ({0: 4.0, 1: 6.0}, [2, 3, 4])}
    row, text = define.Row("r", "r", (), None, {}), "time-to test_accuracy"
    cells = [measure.Cell(row, m, measure.measure(text), None, *v, 4) for m, v in of.items()]
    claim = {"text": "b is sooner", "higher": "a", "lower": "b"}
    table = define.Table("t", "t", [*of], [text], [row], 4, claims=(claim,))
    (found,) = measure.claims(table, cells)
    assert (found.held, found.seeds, found.finite, found.holds) == (2, 4, {0: 5.0}, False)
    (found,) = measure.claims(table, [dc.replace(cell, values={}, missed=[0]) for cell in cells])
    assert found.words == "does not hold: b is sooner (0 of 1 seeds)"


# ---------------------------------------------------------------- trials


TRIED = CHOOSING.replace("folds = 2\nrounds = 2\n", "folds = 3\ntried = 1\nrounds = 5\nevery = 2\nlast = 2\n")


def trials(home):
    return {name: result for name, result in kept(home).items() if result.get("trial")}


@pytest.mark.slow
def test_one_fold_is_tried_and_scored_by_its_last_evaluations(tmp_path):
    file = _written(tmp_path, TRIED.replace("rounds = 40", "rounds = 2"))
    assert go(file, "one", "--full", "--seeds", "1") == 0
    found = trials(tmp_path)
    assert len(found) == 4 and {result["fold"] for result in found.values()} == {0}
    for result in found.values():
        (folder,) = (tmp_path / "runs" / "tiny").glob(f"*-{result['key']}")
        lines = {line["round"]: line.get("validation_accuracy") for line in read_rounds(folder / "rounds.jsonl")}
        assert [r for r, value in lines.items() if value is not None] == [2, 4, 5]
        assert result["score"] == pytest.approx((lines[4] + lines[5]) / 2)
        assert result["settings"]["run"]["seed"] == choose.SEED
    choice = next(v for v in kept(tmp_path).values() if "choice" in v)
    first = [r for r in found.values() if r["method"] == "fedavg"]
    assert {*choice["steps"][0]["scores"]} == {r["score"] for r in first}


@pytest.mark.slow
def test_trials_that_are_there_are_not_made_again(tmp_path, monkeypatch):
    file = _written(tmp_path, TRIED.replace("rounds = 40", "rounds = 2"))
    assert go(file, "one", "--full", "--seeds", "1") == 0
    file_of_results = tmp_path / "kept" / "tiny" / "results" / "one.jsonl"
    before = file_of_results.read_text().splitlines(keepends=True)
    (choice,) = (line for line in before if '"choice"' in line)
    lost = next(line for line in before if '"trial"' in line and '"method":"feddc"' in line)
    file_of_results.write_text("".join(line for line in before if line not in (choice, lost)))
    shutil.rmtree(tmp_path / "runs")
    made = []
    real = jobs.Queue.go
    monkeypatch.setattr(jobs.Queue, "go", lambda self, job, *rest: made.append(job.name) or real(self, job, *rest))
    assert go(file, "one", "--full", "--seeds", "1") == 0
    after = file_of_results.read_text().splitlines(keepends=True)
    assert [name.rpartition("-")[2] for name in made] == [json.loads(lost)["key"]]
    assert sorted(after) == sorted(before) and after[-1] == choice


def test_steps_wait_only_for_what_they_are_given():
    def step(method, *give):
        return {"method": method, "give": [*give]}

    both = [step("a", "a", "b", "c"), step("b", "b", "c"), step("d", "d"), step("c", "c"), step("e", "e")]
    assert [[s["method"] for s in wave] for wave in choose._waves(both)] == [["a"], ["b", "d"], ["c", "e"]]


def test_the_ranking_is_by_the_best_score_of_each_method():
    steps = [
        {"method": "a", "scores": [0.1, 0.5]}, {"method": "b", "scores": [None, 0.6]},
        {"method": "c", "scores": [0.55, 0.2]}, {"method": "d", "scores": [None, None]},
    ]  # fmt: skip
    assert choose.ranking({"steps": steps}) == ["b", "c", "a"]


PROX = '[method.fedprox]\nlabel = "FedProx"\nmethod = { name = "fedprox" }\n'
STEPS = """steps = [
  { method = "fedavg", set = "local.lr", values = [1e-9, 0.01], give = ["fedavg"] },
  { method = "fedprox", set = "local.lr", values = [1e-9, 1e-8], give = ["fedprox"] },
  { method = "feddc", set = "local.lr", values = [1e-9, 0.3], give = ["feddc"] },
]
"""
FURTHER = 'methods = ["fedavg", "fedprox", "feddc"]\nseeds = 1\nbest = 1\nfurther = 2\nagainst = "fedavg"\n'


def further():
    head, _, rest = TRIED.replace("rounds = 40", "rounds = 2").partition('id = "one"\n')
    rest = rest.replace('methods = ["fedavg", "feddc"]\n', FURTHER, 1).replace("seeds = 2\n", "", 1)
    return (
        head.replace("[method.feddc]", PROX + "[method.feddc]")
        + 'id = "one"\n'
        + rest.partition("steps = [")[0]
        + STEPS
    )


@pytest.mark.slow
def test_the_best_by_validation_have_further_seeds(tmp_path, capsys):
    """FedDC alone has a rate that learns: it has seeds 1 and 2 too, and so has FedAvg, which all are compared with."""
    file = _written(tmp_path, further())
    assert go(file, "one", "--full") == 0
    said = json.loads(capsys.readouterr().out)["tables"][0]
    there = results.Results(tmp_path / "kept" / "tiny" / "results")
    assert choose.ranking(next(v for v in there.found.values() if "choice" in v))[0] == "feddc"
    made = {(v["method"], v["seed"]) for v in there.found.values() if "final" in v}
    assert made == {("fedprox", 0), *((m, seed) for m in ("fedavg", "feddc") for seed in (0, 1, 2))}
    assert said["missing"] == 0 and {row["seeds"] for row in said["rows"]} == {"1", "3"}
    assert main_list(file, capsys) == {"runs": 7, "done": 7}
    assert go(file, "one", "--full", "--seeds", "2") == 0  # seeds that are asked for are for all
    found = results.Results(tmp_path / "kept" / "tiny" / "results").found.values()
    assert {v["seed"] for v in found if "final" in v and v["method"] == "fedprox"} == {0, 1}


def main_list(file, capsys):
    capsys.readouterr()
    assert go(file, "one", "--list") == 0
    table = json.loads(capsys.readouterr().out)[str(file)]["tables"]["one"]
    return {name: table[name] for name in ("runs", "done")}


# ---------------------------------------------------------------- several processes


def test_a_run_is_taken_by_one(tmp_path):
    mine, yours = Shared(tmp_path), Shared(tmp_path)
    assert mine.take("a") and not yours.take("a") and yours.take("b")
    mine.leave("a")
    assert yours.take("a") and not mine.take("a")
    yours.leave("a")
    yours.leave("b")
    assert not (tmp_path / FOLDER).exists()


def test_a_file_that_is_removed_while_it_is_locked_is_locked_anew(tmp_path, monkeypatch):
    """The owner leaves between our opening the file and our locking it: a lock on the removed file is none."""
    mine, yours, real, late = Shared(tmp_path), Shared(tmp_path), shared.hold, []

    def hold(path):
        handle = real(path)
        if not late:
            late.append(path.unlink())
        return handle

    with monkeypatch.context() as patched:
        patched.setattr(shared, "hold", hold)
        assert mine.take("a")
    assert not yours.take("a")
    mine.leave("a")


@pytest.fixture
def queue(tmp_path):
    paper = define.paper(str(_written(tmp_path, TINY.replace("local_models = true\n", ""))))
    there = results.Results(tmp_path / "kept")
    made = jobs.Queue(tmp_path / "runs", there, jobs.Clock(), {}, {}, quiet=True)
    yield made, [paper.job(paper.quick[0].rows[0], "fedavg", seed) for seed in (0, 1)]
    made.close()


def test_what_another_process_makes_is_waited_for(queue, tmp_path, monkeypatch):
    mine, (first, second) = queue
    other, theirs = Shared(tmp_path / "kept"), results.Results(tmp_path / "kept")
    assert other.take(first.key)
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        assert len(waits) == 1 and mine.results.of(second)  # the rest is done already
        theirs.add("one", {"key": first.key, "final": {}, "from": "another"})
        other.leave(first.key)

    monkeypatch.setattr(jobs.time, "sleep", sleep)
    done = mine.make([first, second])
    assert waits == [jobs.WAIT] and mine.made == 1 and done[0]["from"] == "another" and len(done) == 2


def test_other_tables_come_before_waiting(tmp_path, monkeypatch):
    """A run of the first table is another process's: all of the second table is made before it is waited for."""
    file = _written(tmp_path, TINY.replace("local_models = true\n", "").replace("rounds = 40", "rounds = 2"))
    paper, kept = define.paper(str(file)), tmp_path / "kept" / "tiny" / "results"
    there = paper.job(paper.tables["one"].rows[0], "fedavg", 0)
    other, theirs, waits = Shared(kept), results.Results(kept), []
    assert other.take(there.key)

    def sleep(seconds):
        waits.append(seconds)
        first, sweep = ((kept / f"{table}.jsonl").read_text().splitlines() for table in ("one", "sweep"))
        assert len(waits) == 1 and len(first) == 3 and len(sweep) == 6
        theirs.add("one", {**json.loads(first[0]), "key": there.key})
        other.leave(there.key)

    monkeypatch.setattr(jobs.time, "sleep", sleep)
    assert go(file, "--full") == 0 and waits == [jobs.WAIT]


@pytest.mark.parametrize("others", [0, 1])
def test_what_is_timed_comes_last_only_beside_others(tmp_path, monkeypatch, others):
    text = TINY.replace('measures = ["best test_accuracy", "rounds-to test_accuracy"]', 'measures = ["seconds"]')
    file, order = _written(tmp_path, text), []
    monkeypatch.setattr(jobs.OtherProcesses, "others", lambda self: others)
    monkeypatch.setattr(
        command, "_table", lambda args, paper, table, rows, queue, waits: order.append((table.id, waits))
    )
    go(file, "--full")
    first = [] if others else [("one", False)]
    assert order == [*first, ("sweep", False), ("sweep", True), ("one", True)]


def test_a_choice_that_others_are_making_is_left_to_them(tmp_path):
    """Unless it waits, nothing is chosen, and nothing is kept, while another process has a trial."""
    paper = define.paper(str(_written(tmp_path, CHOOSING)))
    table = next(table for table in paper.tables.values() if table.choose)
    there = results.Results(tmp_path / "kept")
    made = jobs.Queue(tmp_path / "runs", there, jobs.Clock(), {}, {}, quiet=True)
    real, taken, other = made.runs, [], Shared(tmp_path / "kept")

    def runs(wanted, *more):
        if not taken:
            taken.append(wanted[0].key)
            assert other.take(wanted[0].key)
        return real(wanted, *more)

    made.runs = runs
    assert choose.choose(paper, table.rows[0], made, waits=False) is None
    assert taken[0] not in there.found and choose.known(paper, table.rows[0], there) is None
    other.leave(taken[0])
    assert choose.choose(paper, table.rows[0], made, waits=False)["steps"]
    made.close()


def test_a_run_whose_process_ended_is_made_here(queue, tmp_path, monkeypatch):
    mine, (first, second) = queue
    other = Shared(tmp_path / "kept")
    assert other.take(first.key)
    monkeypatch.setattr(jobs.time, "sleep", lambda seconds: other.leave(first.key))
    assert len(mine.make([first, second])) == 2 and mine.made == 2
    assert not (tmp_path / "kept" / FOLDER).exists()


def test_waiting_ends_with_the_budget(queue, tmp_path, monkeypatch):
    mine, (first, _) = queue
    other = Shared(tmp_path / "kept")
    assert other.take(first.key)
    monkeypatch.setattr(jobs.Clock, "over", property(lambda self: True))
    with pytest.raises(jobs.OutOfTime):
        mine.make([first])
    other.leave(first.key)


# ---------------------------------------------------------------- a picture across rows


def test_a_picture_goes_across_rows_that_begin_alike():
    parts = [{"label": "MNIST"}, {"label": "ε = 1"}], [{"label": "MNIST"}, {"label": "ε = <8>"}]
    rows = [define.Row(f"mnist-{k}", "MNIST, x", tuple(own), None, {}, "mnist") for k, own in enumerate(parts)]
    other = define.Row("cifar-0", "CIFAR", ({"label": "CIFAR"},), None, {}, "cifar")
    fields = {"id": "t", "title": "", "methods": ["a", "b"], "measures": ["final test_accuracy", "sent"], "seeds": 1}
    table = define.Table(rows=[*rows, other], across="ε", **fields)
    assert pictures.groups(table, table.rows) == {"mnist": rows, "cifar": [other]}
    assert [*pictures.groups(dc.replace(table, across=""), table.rows)] == ["mnist-0", "mnist-1", "cifar-0"]
    one, two = map(measure.measure, table.measures)
    values = {"a": (50.0, 90.0), "b": (40.0, None)}
    cells = [measure.Cell(row, m, one, None, {0: v} if v else {}, [], 1)
             for m, found in values.items() for row, v in zip(rows, found, strict=True)]  # fmt: skip
    cells += [measure.Cell(row, "a", two, None, {0: 1e6}, [], 1) for row in rows]  # another measure is not in it
    paper = SimpleNamespace(methods={"a": {"label": "A"}, "b": {"label": "B"}})
    svg = pictures.across(SimpleNamespace(table=table, paper=paper, shown=lambda: cells), rows)
    assert 'text-anchor="middle">ε = 1<' in svg and "ε = &lt;8&gt;" in svg and "across ε: MNIST" in svg
    ys = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", next(p for p in svg.splitlines() if "#4269d0" in p))]
    assert len(ys) == 2 and ys[0] > ys[1] and "1e+06" not in svg  # higher is nearer to the top
    assert not pictures.across(SimpleNamespace(table=table, paper=paper, shown=lambda: cells), rows[:1])


def test_a_picture_of_one_number_against_another():
    rows = [define.Row(f"mnist-{k}", "MNIST, x", ({"label": f"<{k}> bits"},), None, {}, "mnist") for k in (1, 8)]
    fields = {"id": "t", "title": "", "methods": ["a", "b"], "measures": ["final test_accuracy", "sent"], "seeds": 1}
    table = define.Table(rows=rows, across="bits", against_second=True, **fields)
    paper = SimpleNamespace(methods={"a": {"label": "A"}, "b": {"label": "B"}})
    numbers = {("a", 0): (50.0, 10.0), ("a", 1): (90.0, 1000.0), ("b", 0): (70.0, 100.0), ("b", 1): (80.0, None)}
    cells = [measure.Cell(rows[k], method, measure.measure(name), None, {0: value} if value else {}, [], 1)
             for (method, k), pair in numbers.items()
             for name, value in zip(table.measures, pair, strict=True)]  # fmt: skip
    svg = pictures.against(SimpleNamespace(table=table, paper=paper, shown=lambda: cells), rows)
    points = re.findall(r'cx="([\d.]+)" cy="([\d.]+)" r="4" fill="(.*?)"><title>(.*?)<', svg)
    places = {words: (float(x), float(y)) for x, y, _, words in points}
    assert [*places] == [
        "A, &lt;1&gt; bits",
        "A, &lt;8&gt; bits",
        "B, &lt;1&gt; bits",
    ]  # what lacks a number is not shown
    (x1, y1), (x2, y2), (x3, y3) = places.values()
    assert x3 - x1 == pytest.approx(x2 - x3, abs=0.2) and x1 < x3 < x2  # decades are equally wide
    assert y1 > y3 > y2 and ">1000<" in svg
    assert not pictures.against(SimpleNamespace(table=table, paper=paper, shown=lambda: cells[:2]), rows)


def test_what_a_client_sends():
    assert measure.measure("sent").of({"up": 6500, "participants": 5}, None) == pytest.approx(1.3)
    assert measure.measure("sent").of({"up": 0, "participants": 0}, None) == 0.0  # a last round without clients
