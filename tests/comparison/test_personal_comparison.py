"""Personal and global methods side by side: two measures that are not mixed, who gains, newcomers, equal cost."""

import json
import shlex
from pathlib import Path

import pytest

from unalike.cli import main
from unalike.comparison import gains, results, verdict
from unalike.comparison.jobs import Arm
from unalike.metrics import names
from unalike.results import evidence
from unalike.results.evidence import SCORES, Evidence, Outcome, Traits

ACCURACY, OWN = SCORES[0], SCORES[1]
GLOBAL, PERSONAL = Traits(), Traits(personal=True)


def arm(name):
    return Arm(name, name, "", {"data": {}, "model": {}, "method": {"name": name}, "local": {}, "run": {}})


def lines(*own, test=None, sent=10, batches=5, validation=None, **more):
    """A run's rounds with these means over clients; `test`: of the global model on the test set."""
    out = []
    for k, value in enumerate(own, 1):
        line = {"round": k, "train_loss": 1.0, "bytes_up": sent, "batches": batches, "clients_accuracy_mean": value}
        line |= {} if test is None else {"test_accuracy": test}
        out.append(line | more | ({"validation_accuracy": validation[k - 1]} if validation else {}))
    return out


def method(name, own, kind=GLOBAL, reference=False, **more):
    given = {"final": own, "selected": own, "own": own, "bytes": [5000] * len(own), "seconds": [1.0] * len(own)}
    return Evidence(name, name, list(range(len(own))), reference, kind, **given | more)


def say(*found, score=OWN):
    out = verdict.verdict(found, found[0], score, None)
    rows = {answer.wish: f"{answer.method} | {answer.sure}" for answer in out.answers}
    return {line.partition(":")[0]: line.partition(": ")[2] for line in out.lines} | rows


# ---------------------------------------------------------------- two measures


def test_scores_on_clients_own_data_have_the_mean_over_clients_first():
    known = names.numbers({"auc": True, "accuracy": True})
    own = [score.key for score in names.scores(known, "clients")]
    assert own == ["clients_auc_mean", "pooled_auc", "clients_accuracy_mean", "clients_loss"]
    assert [s.key for s in names.scores(known, "test")] == ["test_auc", "test_accuracy", "test_loss"]
    line = {"test_auc": 0.5, "pooled_auc": 0.6, "clients_auc_mean": 0.7}
    assert [names.score_in(line, known, by).key for by in ("", "clients")] == ["test_auc", "clients_auc_mean"]


def concluded(by="clients", **runs):
    made = {(name.replace("_", "-"), 0): Outcome(0, rounds) for name, rounds in runs.items()}
    clients = lambda name, seed, round, metric: {0: 0.5, 1: len(name) / 10}  # noqa: E731
    (case,) = results.conclude([arm(name) for name, _ in made], [0], made, by=by, clients=clients)
    return case, {row["method"]: row for row in results.rows(case)}


def test_the_two_measures_have_a_column_each():
    runs = {
        "fedavg": lines(0.4, test=0.8),
        "ditto": lines(0.6, test=0.7),
        "fedper": lines(0.5),
        "local_only": lines(0.3),
    }
    case, table = concluded(**runs)
    assert case.score == OWN and case.base.label == "fedavg"
    assert {m: (row["own data"], row["test set"]) for m, row in table.items()} == {
        "fedavg": ("40.0 %", "80.0 %"),
        "ditto": ("60.0 %", "70.0 %"),
        "fedper": ("50.0 %", "–"),
        "local-only": ("30.0 %", "–"),
    }
    assert [table[name]["model"] for name in ("fedavg", "ditto", "local-only")] == ["shared", "own", "own"]
    measured = next(line for line in case.lines if line.startswith("Measured"))
    assert "each client's own model with ditto, fedper and local-only; the global model with fedavg)" in measured
    assert (table["ditto"]["gain over fedavg"], table["fedper"]["gain over alone"]) == ("0 %", "0 %")
    assert table["local-only"]["gain over fedavg"] == "50 %" and table["fedavg"]["gain over fedavg"] == "–"
    assert "accuracy" not in table["fedavg"] and case.lines[0].startswith(
        "In short: one seed decides nothing; in it ditto"
    )

    del runs["fedper"]  # which has no global model
    case, table = concluded(by="test", **runs)
    assert case.score == ACCURACY
    assert (table["ditto"]["accuracy"], table["ditto"]["own data"]) == ("70.0 %", "60.0 %")
    assert any("Clients' own models (ditto and local-only) are in the column own data." in line for line in case.lines)


def test_global_methods_are_compared_as_ever():
    case, table = concluded(by="", fedavg=lines(0.4, test=0.8), fedprox=lines(0.6, test=0.7), local_only=lines(0.9))
    assert case.score == ACCURACY and "test set" not in table["fedavg"]
    assert not any(title.startswith("gain") for title in table["fedavg"]) and "Who gains" not in str(case.lines)


# ---------------------------------------------------------------- who gains


def test_a_client_gains_that_is_evaluated_in_both_and_strictly_better():
    mine, theirs = {0: 0.5, 1: 0.7, 2: 0.2, 7: 1.0}, {0: 0.4, 1: 0.7 - 1e-7, 2: 0.3, 9: 0.0}
    assert gains.share(mine, theirs, True) == gains.share(mine, theirs, False) == pytest.approx(1 / 3)
    better, worse = {1: 3.0, 2: 3.0, 3: 0.0}, {1: 1.0, 2: 1.0, 3: 1.0}
    assert gains.share(better, worse, True) == pytest.approx(2 / 3)
    assert gains.share(better, worse, False) == pytest.approx(1 / 3)  # of what is better when lower
    assert gains.share({}, theirs, True) is None and gains.share({5: 1.0}, theirs, True) is None


def test_gains_are_of_the_judged_round_of_each_seed():
    """fedavg is judged in round 2 of seed 0 and round 1 of seed 1; ditto in round 1; seed 1 of local-only diverged."""
    fedavg = method("fedavg", [0.5, 0.5], selected_round=[2, 1])
    ditto = method("ditto", [0.6, 0.6], PERSONAL, selected_round=[1, 1])
    alone = method("local-only", [0.5], PERSONAL, True, diverged={1: 1}, selected_round=[3])
    alone.seeds = [0, 1]
    values = {
        ("fedavg", 0, 2): {0: 0.5, 1: 0.5, 2: 0.5, 3: 0.5},
        ("fedavg", 1, 1): {0: 0.5, 1: 0.5},
        ("ditto", 0, 1): {0: 0.9, 1: 0.6, 2: 0.6, 3: 0.1},
        ("ditto", 1, 1): {0: 0.9, 1: 0.5},
        ("local-only", 0, 3): {0: 0.95, 1: 0.1, 2: 0.1, 3: 0.1},
    }
    found = [fedavg, ditto, alone]
    gains.count(found, found, lambda label, seed, round: values[label, seed, round], True)
    assert (ditto.gain_fedavg, ditto.lose_fedavg) == ([0.75, 0.5], [0.25, 0.0])
    assert (ditto.gain_alone, ditto.lose_alone) == ([0.5, None], [0.25, None])
    assert fedavg.gain_fedavg == [] and alone.gain_fedavg == [0.25, None]
    text = say(*found)
    assert text["Who gains"] == (
        "with ditto, the best on clients' own data on average, 62 % of the clients do better and 12 % worse than "
        "with fedavg's model; 50 % of the clients do better and 25 % worse than by training alone. With fedavg 75 % do "
        "better than by training alone."
    )


def test_training_alone_is_spoken_of_where_models_are_personal():
    fedavg, alone = method("fedavg", [0.5, 0.52, 0.54]), method("local-only", [0.7, 0.73, 0.74], PERSONAL, True)
    text = say(fedavg, method("ditto", [0.5, 0.53, 0.51], PERSONAL), alone)
    assert text["In short"].endswith(
        "But on clients' own data training alone has more than fedavg (72.3 % against 52.0 % on average)."
    )
    assert "training alone" not in say(fedavg, method("fedprox", [0.5, 0.53, 0.51]), alone)["In short"]


# ---------------------------------------------------------------- clients that come later


def test_the_best_for_clients_that_come_later():
    base = method("fedavg", [0.5, 0.5, 0.5], new=[0.60, 0.61, 0.59])
    other = method("ditto", [0.6, 0.6, 0.6], PERSONAL, new=[0.70, 0.72, 0.70])
    none = method("fedmd", [0.4, 0.4, 0.4], PERSONAL)
    alone = method("local-only", [0.4, 0.4, 0.4], PERSONAL, True, new=[0.2, 0.2, 0.2])
    text = say(base, other, none, alone)
    assert text["clients that come later"].startswith("ditto, 70.7 % (fedavg 60.0 %) | not decided: ahead in all 3")
    assert text["Clients that come later"] == (
        "they train on their own data first; fedmd has no model for them; the same training from the untrained model "
        "gives them 20.0 %."
    )
    assert not any("come later" in wish for wish in say(none, method("fedper", [0.4, 0.5, 0.4])))


# ---------------------------------------------------------------- equal cost


def equalized(**runs):
    made = {name: [Outcome(0, rounds)] for name, rounds in runs.items()}
    found = [
        evidence.gather(name, name, outcomes, OWN, Traits(), name == "centralized") for name, outcomes in made.items()
    ]
    evidence.equalize(found, made, OWN)
    return {e.label: (e.equal_bytes, e.equal_steps) for e in found}


def test_scores_at_equal_bytes_and_steps_by_hand():
    """The least bytes are b's 40, the least mini-batches a's 20; the reference line sends less and does not count."""
    found = equalized(
        a=lines(0.1, 0.2, 0.3, 0.4, sent=20, batches=5),
        b=lines(0.5, 0.6, 0.7, 0.8, sent=10, batches=9),
        centralized=lines(0.9, sent=1, batches=1),
    )
    assert found == {"a": ([0.2], [0.4]), "b": ([0.8], [0.6]), "centralized": ([], [])}


def test_within_the_least_cost_the_round_is_chosen_as_ever():
    found = equalized(
        a=lines(0.1, 0.2, 0.3, sent=20, validation=[0.9, 0.1, 1.0]),
        b=lines(0.5, 0.6, sent=20, validation=[0.1, 0.2]),
        c=lines(0.7, 0.8, sent=50, validation=[0.1, 0.2]),
    )
    assert [found[name][0] for name in "abc"] == [[0.1], [0.6], [None]]
    old = lines(0.5, 0.6)  # of a run folder that does not count mini-batches
    for line in old:
        del line["batches"]
    assert equalized(a=lines(0.1, 0.2), b=old)["a"] == ([0.2], [])


def test_a_method_without_mini_batches_takes_equal_steps_from_nobody():
    """FedMeta's clients answer gradients of all their samples, and read no mini-batch."""
    none = lines(0.9, 0.9, batches=0)
    found = equalized(a=lines(0.1, 0.2, batches=5), b=lines(0.5, 0.6, batches=10), fedmeta=none)
    assert {name: steps for name, (_, steps) in found.items()} == {"a": [0.2], "b": [0.5], "fedmeta": []}


def test_the_verdict_says_it_if_another_is_best_at_equal_cost():
    base = method("fedavg", [0.5, 0.52], equal_bytes=[0.5, 0.52], equal_steps=[0.4, 0.4])
    other = method("ditto", [0.6, 0.61], PERSONAL, equal_bytes=[0.4, 0.49], equal_steps=[0.5, 0.5])
    text = say(base, other)
    assert text["At equal bytes (the least that one of the methods needs)"] == (
        "on average fedavg has more, 51.0 % ± 1.4 against 44.5 % ± 6.4 of ditto, which has the best mean after all "
        "rounds (ahead in 2 of 2 seeds, not tested)."
    )
    assert not any(wish.startswith("At equal local steps") for wish in text)
    other.equal_bytes = [None, None]
    third = method("fedprox", [0.5, 0.51], equal_bytes=[0.45, 0.46])
    text = say(base, other, third)
    assert text["At equal bytes (the least that one of the methods needs)"].endswith(
        "ditto has not finished a round by then."
    )


# ---------------------------------------------------------------- as a user meets it

SMALL = "--data digits --partition 'iid|permute:2' --clients 6 --hidden 8 --epochs 1 --seeds 1"


def do(capsys, line):
    capsys.readouterr()
    code = main(shlex.split(line))
    return code, *capsys.readouterr()


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def test_personal_and_global_methods_on_real_data(here, capsys):
    line = f"compare fedavg ditto fedper {SMALL} --rounds 2 --lr 0.5 --new-clients 2 --no-references --folder out"
    code, out, said = do(capsys, line)
    assert code in (0, 3) and max(map(len, (out + said).splitlines())) <= 80
    assert "local-only is run too" in out and "ditto-seed0: accuracy" in said and "on own data in" in said
    for title in ("own data", "test set", "gain over fedavg", "gain over alone", "new clients", "as they come"):
        assert title in out
    content = json.loads(Path("out/comparison.json").read_text())
    by_name = {e["label"]: e for e in content["cases"][0]["methods"]}
    assert set(by_name) == {"fedavg", "ditto", "fedper", "local-only", "constant"}
    for e in (by_name["ditto"], by_name["fedper"]):
        for seed, round, share in zip((0,), e["selected_round"], e["gain_fedavg"], strict=True):
            mine = gains.client_values(Path(f"out/{e['label']}-seed{seed}"), round, "accuracy")
            other = by_name["fedavg"]["selected_round"][seed]
            theirs = gains.client_values(Path(f"out/fedavg-seed{seed}"), other, "accuracy")
            assert len(mine) == 4  # two came later
            assert share == sum(mine[k] > theirs[k] + 1e-4 for k in mine) / 4
    assert by_name["ditto"]["test"] and not by_name["fedper"]["test"] and len(by_name["fedper"]["new"]) == 1
    # trains twice a round: as many mini-batches as fedavg in all its rounds are those of its first
    rounds = [json.loads(text) for text in Path("out/ditto-seed0/rounds.jsonl").read_text().splitlines()]
    assert by_name["ditto"]["equal_steps"][0] == rounds[0]["clients_accuracy_mean"]
    markdown = Path("out/comparison.md").read_text()
    assert "at equal bytes" in markdown and "at equal steps" in markdown


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("fedavg fedper --score test", "fedper has none"),
        ("fedavg --score clients --evaluate-clients none", "not evaluated on test samples of their own"),
        ("fedavg --score mean", "There are: clients, test"),
        ("fedavg --new-clients 6", "a whole number below the 6 clients"),
    ],
)
def test_what_cannot_be_had_is_one_line(here, capsys, line, words):
    code, out, said = do(capsys, f"compare {line} {SMALL} --rounds 1")
    assert code == 2 and words in said and said.count("\n") == 1 and not out
    assert not Path("runs").exists()


def test_what_was_not_recorded_is_not_counted(tmp_path):
    assert gains.client_values(tmp_path, 1, "accuracy") == {}
