"""Printed numbers: how they are read, where they stand among our rows, and what is counted."""

import csv
import dataclasses as dc
from types import SimpleNamespace

import pytest
from paths import ROOT

from unalike.errors import UnalikeError
from unalike.reproduce import define, judge, measure, overview, pages, pictures, results, tally
from unalike.reproduce.numbers import Numbers, Printed, parse

PAPERS = {"feddc": 335, "rfedavg": 104, "fedfa": 144, "fedavgr": 79}


@pytest.mark.parametrize(
    "given, value, spread, more",
    [
        (93.1, 93.1, None, False),
        ("93.1 ± 0.4", 93.1, 0.4, False),
        ("> 600", 600.0, None, True),
        (">600", 600.0, None, True),
        ("7", 7.0, None, False),
    ],
)
def test_how_a_number_is_written(given, value, spread, more):
    found = parse(given)
    assert (found.value, found.spread, found.more_than) == (value, spread, more)


@pytest.mark.parametrize("given", ["about 7", "< 600", "7 ±", ""])
def test_a_number_that_is_none_is_an_error_of_one_line(given):
    with pytest.raises(UnalikeError, match="A printed number is written"):
        parse(given)
    assert parse(None) is None


@pytest.mark.parametrize("name, count", PAPERS.items())
def test_every_printed_result_is_counted_once(name, count):
    """Tables and figures without those about data, and without speedups, which follow from rounds."""
    paper = define.paper(name)
    with (ROOT / "unalike/reproduce/printed" / f"{name}.csv").open(encoding="utf-8") as file:
        lines = [line for line in csv.DictReader(file) if line["table"] != "text" and line["method"]]
    kept = [line for line in lines if line["metric"] != "speedup"]
    counted = paper.numbers.counted()
    assert len(counted) == len(kept) == count
    assert len({(one.table, one.row, one.method, one.metric) for one in counted}) == count


def test_notes_say_more_than_and_doubt():
    every = {(p.table, p.row, p.method, p.metric): p for p in define.paper("feddc").numbers.all}
    late = every["table1", "cifar10/iid/p15/100", "fedavg", "rounds_to_target"]
    assert late.more_than and late.value == 1000 and "81.67" in late.doubt
    sure = every["table1", "fashion-mnist/d1/full/100", "fedavg", "rounds_to_target"]
    assert sure.more_than and not sure.doubt
    assert not every["table1", "mnist/d1/full/100", "fedavg", "rounds_to_target"].more_than
    whole = [one for name in PAPERS for one in define.paper(name).numbers.all]
    assert sum(bool(one.doubt) for one in whole) == 34 and sum(one.other is not None for one in whole) == 8
    two = every["table1", "fashion-mnist/d1/p15/100", "feddc", "rounds_to_target"]
    assert (two.value, two.other, two.doubt) == (87, 86, "")  # a speedup that another number of rounds would mean


def test_of_two_printed_numbers_the_nearer_counts():
    two = dc.replace(parse(75.0), other=57.0)
    for ours, verdict in ((76, judge.REPRODUCES), (58, judge.REPRODUCES), (66, judge.CLOSE), (120, judge.DIFFERS)):
        assert _cell(two, [float(ours)], ROUNDS).verdict == verdict


@pytest.mark.parametrize(
    "paper, table, row, method, measure_, value, spread",
    [
        ("rfedavg", "table1", "mnist-sim0-silo", "fedprox", 0, 85.74, 5.61),
        ("rfedavg", "program", "cifar10-sim0-silo", "rfedavg-plus-code", 0, 47.41, 0.32),
        ("rfedavg", "epochs", "mnist-sim100-silo-steps", "fedavg", 0, 99.28, 0.01),
        ("rfedavg", "table2", "sent140-users-device-text", "fedavg", 0, 72.88, 0.26),
        ("rfedavg", "table3", "mnist-sim0-device", "rfedavg", 0, 204800, None),
        ("rfedavg", "table3", "mnist-sim0-silo", "rfedavg-plus", 0, 2048, None),
        ("fedfa", "table2", "05-05", "fedprox", 1, 33.60, None),
        ("fedfa", "table3", "1-1", "fedfa-mo-samples", 3, 818.9, None),
        ("feddc", "table3", "fashion-d1-full-100", "feddc", 0, None, None),
        ("feddc", "table1", "fashion-d1-p15-100", "feddc", 0, 87, None),
        ("feddc", "table3", "synthetic-01-set-p15", "feddc", 0, 99.62, None),
        ("feddc", "table3", "cifar100-iid-classes-full-100", "feddc", 0, 55.52, None),
        ("feddc", "ablation", "cifar10-d2-p15-100", "feddc", 0, 84.58, None),
        ("fedavgr", "table3", "a1a-shards-300", "fedavg", 0, 84.29, 0.06),
        ("fedavgr", "table2-synthetic", "synthetic-250", "mmd", 0, 96.12, None),
        ("fedavgr", "search", "svmguide1-shards-300-lr=5e-05-sigma=0.1", "fedavg", 0, 90.95, 0.86),
        ("fedavgr", "figure2-synthetic", "synthetic11-100", "fedavgr", 1, 0.098, None),
        ("fedavgr", "figure2-synthetic", "synthetic11-100", "fedavgr", 3, 0.019, None),
        ("feddc", "alpha", "cifar10-d2-p15-100-alpha=0.01", "feddc", 0, None, None),
    ],
)
def test_where_printed_numbers_stand(paper, table, row, method, measure_, value, spread):
    (found,) = (r for r in define.paper(paper).tables[table].rows if r.id == row)
    one = found.paper(method, measure_)
    assert (one and one.value, one and one.spread) == (value, spread)


@pytest.mark.parametrize("name", PAPERS)
def test_places_name_rows_methods_and_measures_that_are_there(name):
    """A misspelt row or method would be 'no row here' without a word: what has no row is listed."""
    paper = define.paper(name)
    without = {
        "feddc": set(),
        "rfedavg": {"sent140/iid/silo", "sent140/non-iid/silo", "rnn/silo", "rnn/device"},
        "fedfa": {"femnist", "sent140"},
        "fedavgr": set(),
    }[name]
    cells = [(t.id, _cell(row.paper(m, k), row=row, method=m)) for t in paper.tables.values()
             for row in t.rows for m in t.methods for k in range(len(t.measures))]  # fmt: skip
    judged = tally.tally(paper, cells)
    assert {one.printed.row for one in judged if one.cell is None} == without
    assert {*paper.own} <= {one.printed.method for one in judged}


def test_searches_are_for_baselines_and_what_was_found_is_what_they_say():
    """A setting is matched on printed numbers of baselines, never on the paper's own method."""
    for paper in map(define.paper, PAPERS):
        searches = [table for name, table in paper.tables.items() if name.startswith("search")]
        assert not {method for table in searches for method in table.methods} & {*paper.own}
    paper = define.paper("fedavgr")
    folder = ROOT / "experiments" / "fedavgr" / "results"
    if not folder.is_dir():
        pytest.skip("a copy of the package without its results")
    table, there = paper.tables["search"], results.Results(folder)
    cells = [cell for cell in pages.Found(paper, table, table.rows, [0], there).cells if cell.done]
    for row in paper.tables["found"].rows:
        of_set = [cell for cell in cells if cell.row.begins == row.begins]
        best = min(of_set, key=lambda cell: abs(cell.difference))
        tables = [paper.settings(one, "fedavg") for one in (best.row, row)]
        assert tables[0] == tables[1] and best.verdict == judge.REPRODUCES


# ---------------------------------------------------------------- verdicts


def _cell(paper, values=(), unit="final test_accuracy", missed=0, row=None, method="m", **more):
    row = row or define.Row("r", "r", ({"label": "r"},), None, {})
    seeds = [*range(len(values), len(values) + missed)]
    one = measure.measure(unit)
    return measure.Cell(row, method, one, paper, dict(enumerate(values)), seeds, len(values) + missed, **more)


ROUNDS = "rounds-to test_accuracy"


@pytest.mark.parametrize(
    "paper, values, missed, rounds, verdict",
    [
        ("> 600", [], 1, 600, judge.REPRODUCES),
        ("> 600", [], 1, 599, judge.SHORT),
        ("> 600", [700.0], 0, 1000, judge.REPRODUCES),
        ("> 600", [550.0], 0, 1000, judge.REPRODUCES),
        ("> 600", [430.0], 0, 1000, judge.CLOSE),
        ("> 600", [300.0], 0, 1000, judge.DIFFERS),
        (100, [], 1, 129, judge.SHORT),
        (100, [], 1, 130, judge.DIFFERS),
        (100, [105.0], 1, 500, judge.DIFFERS),  # half of the seeds never get there
        (100, [105.0, 100.0], 1, 500, judge.REPRODUCES),
        (100, [], 0, 0, judge.NOT_RUN),
    ],
)
def test_rounds_to_a_target(paper, values, missed, rounds, verdict):
    assert _cell(parse(paper), values, ROUNDS, missed, rounds=rounds).verdict == verdict


@pytest.mark.parametrize(
    "paper, values, verdict",
    [
        ("80 ± 5.0", [84.9], judge.REPRODUCES),
        ("80 ± 0.1", [80.5], judge.REPRODUCES),
        ("80 ± 0.1", [80.6], judge.CLOSE),
        ("80 ± 1.5", [82.0], judge.CLOSE),
        ("80 ± 1.5", [82.9], judge.WITHIN),
        ("80 ± 1.5", [83.1], judge.DIFFERS),
        ("80 ± 3", [87.0, 91.0, 95.0], judge.DIFFERS),  # 11 apart, two of hypot(4, 3) are 10
        ("80 ± 4", [87.0, 91.0, 95.0], judge.WITHIN),
        ("80 ± 4", [88.2, 93.8], judge.DIFFERS),  # two seeds: their deviation does not count
    ],
)
def test_the_printed_spread_counts(paper, values, verdict):
    assert _cell(parse(paper), values).verdict == verdict


def test_verdicts_without_a_number_to_reach():
    doubt = dc.replace(parse(80.0), doubt="another table says 81")
    assert _cell(doubt, [80.0]).verdict == judge.CONTRADICTS and _cell(doubt).verdict == judge.NOT_RUN
    assert _cell(None, [80.0], figure=True).verdict == judge.FIGURE
    assert _cell(None, [80.0]).verdict == judge.NO_NUMBER
    assert _cell(parse(80.0), missed=1, diverged=(7,)).verdict == judge.DIFFERS
    assert _cell(parse("> 600"), [], ROUNDS, 1, diverged=(7,), rounds=700).verdict == judge.DIFFERS


def test_the_rules_on_the_page_are_those_that_are_computed():
    for text in ("0.5 points", "within 10 %", "2 points (30 %", "two standard deviations", "1.3 times"):
        assert text in judge.RULES
    assert judge.NEAR["%"] == (0.5, 2.0) and judge.NEAR["rounds"] == judge.NEAR["pp²"] == (0.10, 0.30)
    for word in (*judge.ORDER[:6], judge.FIGURE, judge.NO_NUMBER, judge.NO_ROW):
        assert f"**{word}**" in judge.RULES.replace("\n  ", " ")


# ---------------------------------------------------------------- all numbers of a paper


class Tiny:
    """A paper with three printed numbers, of which one has two readings and one no row."""

    name, own = "Tiny <1>", ["mine"]
    numbers = Numbers("tiny", {})


def _judged():
    paper = Tiny()
    first, second, third = (
        Printed(value, table="t", row=row, method=method, metric="accuracy")
        for value, row, method in ((80.0, "a", "mine"), (90.0, "b", "theirs"), (70.0, "c", "theirs"))
    )
    paper.numbers.all = [first, second, third]
    cells = [
        ("t", _cell(first, [83.0])),
        ("t", _cell(first, [80.2])),  # another reading
        ("u", _cell(dc.replace(first, table="t"), [80.0])),  # shown once more, and not counted
        ("t", _cell(second, [80.0])),
    ]
    return paper, tally.tally(paper, cells)


def test_the_nearest_reading_counts_and_every_number_has_a_verdict():
    _, judged = _judged()
    assert define.paper("rfedavg").numbers.source("program") is None  # shows table1's once more
    assert define.paper("fedavgr").numbers.source("table2-synthetic") == "table2"
    assert [one.verdict for one in judged] == [judge.REPRODUCES, judge.DIFFERS, judge.NO_ROW]
    assert judged[0].cell.mean == 80.2
    assert tally.counts(judged) == {judge.REPRODUCES: 1, judge.DIFFERS: 1, judge.NO_ROW: 1}


def test_one_reading_counts_for_all_numbers_of_a_row():
    """One reading has the mean, the other the worst clients and nearly the mean: that one counts for both."""
    row, other = (define.Row(name, name, ({"label": name},), None, {}) for name in ("a", "a-otherwise"))
    paper = SimpleNamespace(numbers=Numbers("tiny", {}))
    mean, worst = (
        Printed(value, table="t", row="a", method="mine", metric=metric)
        for value, metric in ((80.0, "mean"), (30.0, "worst"))
    )
    paper.numbers.all = [mean, worst, dc.replace(worst, table="u"), dc.replace(worst, table="u", value=31.0)]
    ours = ((row, mean, 80.0), (row, worst, 60.0), (other, mean, 81.0), (other, worst, 30.1))
    cells = [("t", _cell(printed, [value], row=one)) for one, printed, value in ours]
    judged = tally.tally(paper, cells)
    assert [one.cell and one.cell.mean for one in judged] == [81.0, 30.1, None]  # the repeated one stands once
    assert [one.verdict for one in judged] == [judge.CLOSE, judge.REPRODUCES, judge.NO_ROW]


def test_the_picture_has_a_point_a_number_on_or_off_the_diagonal():
    paper, judged = _judged()
    svg = pictures.diagonal(paper, judged)
    assert svg.count("<title>") == 2 and "Tiny &lt;1&gt;" in svg
    assert 'width="520" viewBox="0 0 520 390"' in svg  # one panel: as wide as the legend
    (diamond,) = (line for line in svg.splitlines() if "t, a, mine, accuracy: reproduces" in line)
    (circle,) = (line for line in svg.splitlines() if "t, b, theirs, accuracy: differs" in line)
    assert diamond.startswith("<path") and circle.startswith('<circle cx="346.0" cy="340.0"')  # right end, bottom
    late = _cell(parse("> 600"), [400.0], ROUNDS)
    assert "rounds to the target" in pictures.diagonal(paper, [tally.Judged(late.paper, late)])
    assert pictures.diagonal(paper, [tally.Judged(late.paper, None)]) == ""


def test_the_time_of_a_set_that_was_not_run_is_that_of_another_a_sample(tmp_path, monkeypatch):
    paper = define.paper("fedavgr")
    rows = {row.id: row for row in paper.tables["table3"].rows}
    assert paper.like(rows["mnist-shards-300"], "fedavg")["data"]["name"] == "dna"
    assert paper.larger(rows["mnist-shards-300"], "fedavg") == 60_000 / 2_000
    assert paper.larger(rows["dna-shards-300"], "fedavg") == 1.0
    assert paper.larger(paper.tables["table2-synthetic"].rows[0], "fedavg") == 1.0  # drawn: its size is not a fact
    monkeypatch.setattr(measure, "estimate", lambda tables, done: (10.0, "cpu"))
    row = rows["mnist-shards-300"]
    found = pages.Found(paper, paper.tables["table3"], [row], range(10), results.Results(tmp_path))
    assert next(found.lacking_runs()) == (row, "fedavg", 10, (300.0, "cpu"))


def test_the_page_shows_what_settings_were_searched_for(tmp_path):
    (tmp_path / "notes.md").write_text("# Notes\n\n## Settings left out\n\n| rate | 0.1 |\n\n## Else\n\nno\n")
    empty = results.Results(tmp_path / "results")
    page = overview.write([(define.paper("fedavgr"), empty, empty)], tmp_path / "docs").read_text()
    assert "## Settings that the papers leave out\n" in page and "**FedAvgR.**\n\n| rate | 0.1 |\n" in page


def test_what_was_not_run_is_told_from_what_has_too_few_seeds(tmp_path, monkeypatch):
    paper = define.paper("rfedavg")
    monkeypatch.setattr(measure, "estimate", lambda tables, done: (60.0, "GPU"))
    row = next(row for row in paper.tables["table1"].rows if row.id == "mnist-sim0-silo")
    there, empty = results.Results(tmp_path / "results"), results.Results(tmp_path / "quick")
    line = {
        "last5": {"test_accuracy": [0.9, 0.0]},
        "rounds": 60,
        "participants": 20,
        "parameters": 0,
        "down": 0,
        "up": 0,
    }
    there.add("table1", {**line, "key": paper.job(row, "fedavg", 1).key, "seed": 1})
    found = overview._missing(overview.Entry(paper, there, empty))
    nothing, fewer, why = found["MNIST"]
    assert (fewer.numbers, fewer.runs, fewer.seconds) == (1, 2, {"GPU": 120.0}) and why == "time"
    # 36 accuracies, of which one has a run, and the bytes of two methods in two settings, whose runs are the same
    assert (nothing.numbers, nothing.runs) == (39, 3 * 35)
    assert nothing.words == ["39", "105", "1 h 45 min on GPU"] and fewer.words == ["1", "2", "2 min on GPU"]
    assert found["CIFAR-10"][1].words == ["–", "–", "–"] and found["CIFAR-10"][2] == "time"
    assert found["Sent140"][0].runs == 36 and "import" in found["Sent140"][2]
    page = overview.write([(paper, there, empty)], tmp_path / "docs").read_text()
    # the one that was run has a tenth of the printed accuracy
    assert "The paper prints 125 numbers. 104 of them are results (21 in their text are left out), and " in page
    assert "left out), and 1 can be judged: 0 reproduce, 0 are close, 0 are further" in page
    assert "1 differ. Of the others 87 were not run and 16 have no row here, 0 were run for too few" in page
    assert "\n- rFedAvg, table3 rnn/silo: 2 (the features of Sent140's model)\n" in page
    assert "| rFedAvg | MNIST | 39 | 105 | 1 h 45 min on GPU | 1 | 2 | 2 min on GPU | time |" in page
    # one run is enough for a number with two readings: flags left on, or set
    synthetic = overview._missing(overview.Entry(define.paper("feddc"), empty, empty))["synthetic"]
    assert (synthetic[0].numbers, synthetic[0].runs, synthetic[1].runs) == (30, 90, 0)


def test_what_was_too_short_says_what_longer_runs_take(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "estimate", lambda tables, done: (60.0, "GPU"))
    paper = define.paper("feddc")
    row = next(row for row in paper.tables["table1"].rows if row.id == "mnist-d1-p15-100")
    there, empty = results.Results(tmp_path / "results"), results.Results(tmp_path / "quick")
    line = {
        "rounds": 300,
        "participants": 15,
        "parameters": 0,
        "down": 0,
        "up": 0,
        "records": {},
        "final": {},
        "last10": {},
    }
    for method in ("fedavg", "scaffold"):  # of which the first alone has a longer run
        there.add("table1", {**line, "curve": {"round": []}, "key": paper.job(row, method, 0).key, "seed": 0})
    entry = overview.Entry(paper, there, empty)
    short = {one.printed.method for one in entry.judged if one.verdict == judge.SHORT}
    assert "fedavg" in short and len(short) == tally.counts(entry.judged)[judge.SHORT]
    words = f"FedDC: {len(short)} numbers had too few rounds to say; for 1 of them longer runs are defined (60 s on"
    assert overview._too_short(entry).startswith(words)
    assert words in overview.write([(paper, there, empty)], tmp_path / "docs").read_text()
    assert not overview._too_short(overview.Entry(paper, empty, empty))


def test_a_number_that_two_tables_print_differs_once(tmp_path):
    paper = define.paper("fedfa")
    row = next(row for row in paper.tables["table2"].rows if row.id == "iid")
    there, empty = results.Results(tmp_path / "results"), results.Results(tmp_path / "quick")
    line = {"final": {"clients_accuracy_mean": 0.1}, "rounds": 100, "curve": {"round": []}, "records": {}}
    there.add("table2", {**line, "key": paper.job(row, "fedfa", 0).key, "seed": 0})
    page = overview.write([(paper, there, empty)], tmp_path / "docs").read_text()
    assert page.count("- Synthetic_iid, FedFa, mean over clients, last round: printed 85.70, ours 10.00") == 1
