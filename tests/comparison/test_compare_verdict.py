"""The verdict as a pure function: fabricated rounds in, sentences out; and the statistics under it."""

import dataclasses as dc
import json
import math
import random

import pytest
import scipy.stats

from unalike.comparison import results, tune, verdict
from unalike.comparison.jobs import Arm, Tuned
from unalike.methods import METHODS
from unalike.metrics.lines import choose
from unalike.results import evidence, stats
from unalike.results.evidence import SCORES, Evidence, Outcome, Traits
from unalike.testing.toys import Ring

ACCURACY, OWN, LOSS = SCORES[0], SCORES[1], SCORES[2]
NOTHING, STATE, EACH, PEERS = Traits(), Traits(state=("control",)), Traits(each=("accuracy",)), Traits(peers=("mean",))


def lines(*scores, own=0.5, worst=0.2, variance=100.0, sent=10, validation=None, **more):
    """A run's rounds with these scores on the test set; bytes are `sent` each way."""
    out = []
    for k, value in enumerate(scores, 1):
        line = {
            "round": k,
            "train_loss": 1.0,
            "bytes_down": sent,
            "bytes_up": sent,
            "seconds": 0.5,
            "test_accuracy": value,
            "clients_accuracy_mean": own,
            "clients_accuracy_worst20": worst,
            "clients_accuracy_variance_pp2": variance,
            **more,
        }
        out.append(line | ({"validation_accuracy": validation[k - 1]} if validation else {}))
    return out


def method(name, selected, kind=NOTHING, reference=False, **more):
    """Evidence with one number a seed; what is not said is unremarkable."""
    count = len(selected)
    given = {
        "final": selected,
        "selected": selected,
        "own": selected,
        "worst": selected,
        "variance": [100.0 * k for k in range(1, count + 1)],
        "rounds_to": [10 + k % 2 for k in range(count)],
        "bytes_to": [1000 + k % 2 for k in range(count)],
        "bytes": [5000] * count,
        "seconds": [1.0] * count,
        "selected_round": [1] * count,
        **more,
    }
    return Evidence(name, name, list(range(count)), reference, kind, **given)


def judge(*found, score=ACCURACY, target=0.5):
    """The verdict; the first method is the baseline."""
    out = verdict.verdict(found, found[0], score, target)
    assert all("\n" not in line and ": " in line for line in out.lines)
    return out


def say(*found, **more):
    """The sentences by their title, and the rows of the table by wish: "method | how sure"."""
    out = judge(*found, **more)
    rows = {answer.wish: f"{answer.method} | {answer.sure}" for answer in out.answers}
    return {line.partition(":")[0]: line.partition(": ")[2] for line in out.lines} | rows


# ---------------------------------------------------------------- statistics


@pytest.mark.parametrize("df", [*range(1, 12), 29, 30])
@pytest.mark.parametrize("t", [0.0, 0.3, -1.0, 2.5, 12.7, 80.0])
def test_student_s_t_is_scipy_s(t, df):
    assert stats.two_sided(t, df) == pytest.approx(2 * scipy.stats.t.sf(abs(t), df), abs=1e-12)


def test_the_paired_test_is_scipy_s():
    draw = random.Random(7)
    for n in (2, 3, 5, 12):
        a, b = [draw.random() for _ in range(n)], [draw.random() for _ in range(n)]
        mine, theirs = stats.paired(a, b), scipy.stats.ttest_rel(a, b)
        assert (mine.t, mine.p, mine.df) == (pytest.approx(theirs.statistic), pytest.approx(theirs.pvalue), n - 1)
    assert stats.paired([0.5], [0.4]) is None
    same = stats.paired([0.5, 0.25], [0.5, 0.25])
    assert (same.t, same.p) == (0, 1)
    always = stats.paired([0.75, 0.5], [0.5, 0.25])  # the same difference, exactly
    assert always.t == math.inf and always.p == scipy.stats.binomtest(2, 2).pvalue  # the sign test's
    nine = stats.paired([0.25] * 9, [0.5] * 9)
    assert nine.t == -math.inf and nine.p == pytest.approx(scipy.stats.binomtest(0, 9).pvalue)


def test_holm():
    # by hand: 3 * 0.01, 2 * 0.03, then not below the one before
    assert stats.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert stats.holm([0.6, 0.7]) == [1.0, 1.0]
    assert stats.holm([]) == []
    # by hand: 0.02 has half of the level: 0.02 * 2; the rest share what is left, 1/2: 0.03 * 2, then 0.04
    assert stats.holm([0.02, 0.03, 0.04], [2, 1, 1]) == pytest.approx([0.04, 0.06, 0.06])


def test_the_money_of_one_who_bets_on_signs_by_hand():
    """Two seeds with differences 1 and 1: sizes 1 and 1; each bet is multiplied by 1 + tanh(boldness) twice."""
    sides = [(share / 2, sign * bold) for bold, share in stats.BOLDNESS.items() for sign in (1, -1)]
    money = sum(stake * (1 + math.tanh(bet)) ** 2 for stake, bet in sides)
    found = stats.sequential([2.0, 3.0], [1.0, 2.0])
    assert found.p == pytest.approx(1 / money) and (found.ahead, found.behind, found.seeds) == (2, 0, 2)
    assert stats.sequential([1.0, 2.0], [2.0, 3.0]).p == pytest.approx(found.p)  # two-sided
    assert stats.sequential([1.0], [1.0]).p == 1 and stats.sequential([1.0, 1.0], [1.0, 1.0]).p == 1
    # the most money so far counts: what was sure stays sure
    wins = [1.0] * 12
    assert stats.sequential([*wins, -3.0, -3.0], [0.0] * 14).p == stats.sequential(wins, [0.0] * 12).p
    # in units of its own: the size of all differences does not matter, their signs and relative sizes do
    a, b = [0.5, 0.7, 0.6, 0.9], [0.4, 0.8, 0.5, 0.6]
    assert stats.sequential([1e6 * v for v in a], [1e6 * v for v in b]).p == pytest.approx(stats.sequential(a, b).p)


def test_equal_methods_are_seldom_told_apart_at_any_look():
    """Whatever the noise: a twentieth at most, though every prefix of 40 seeds is looked at."""
    draw = random.Random(3)
    kinds = {
        "normal": lambda: draw.gauss(0, 1),
        "coins": lambda: draw.choice([-1.0, 1.0]),
        "heavy": lambda: draw.gauss(0, 1) / abs(draw.gauss(0, 1)),
        "grid": lambda: round(draw.gauss(0, 0.7)) / 100,
    }
    for noise in kinds.values():
        false = sum(stats.sequential([noise() for _ in range(40)], [0.0] * 40).p <= 0.05 for _ in range(300))
        assert false <= 22  # 15 expected at most; 22 has a chance below 0.05


def test_the_least_number_of_seeds_and_luck():
    assert stats.least_seeds(1.0) == 1 and stats.least_seeds(0.05) == 7
    assert stats.sequential([1.0] * 7, [0.0] * 7).p <= 0.05 < stats.sequential([1.0] * 6, [0.0] * 6).p
    assert stats.luck(1, 3) == 1 / 8
    # two others, one seed: the baseline is the least of three
    assert stats.luck(2, 1) == pytest.approx(2 / 3)
    assert 0 < stats.luck(60, 10) < 60 / 2**10
    draw = random.Random(1)
    seen = 0
    for _ in range(4000):
        base = [draw.random() for _ in range(3)]
        seen += any(all(draw.random() > b for b in base) for _ in range(2))
    assert seen / 4000 == pytest.approx(stats.luck(2, 3), abs=0.02)


def test_spread():
    assert stats.deviation([1.0]) is None and stats.deviation([1.0, 3.0]) == pytest.approx(math.sqrt(2))
    assert evidence.figure("percent", [0.5]) == "50.0 %"
    assert evidence.figure("percent", [0.5, 0.7]) == "60.0 % ± 14.1"
    assert evidence.figure("plain", [0.5, 0.7], spread=False) == "0.600"
    assert evidence.gap("percent", -0.0123, []) == "1.2 points" and evidence.gap("plain", 0.5, [1e4]) == "0"


# ---------------------------------------------------------------- from rounds to evidence


def test_the_round_is_chosen_on_validation_data_and_never_on_test_data():
    rounds = lines(0.5, 0.9, 0.6, validation=[0.3, 0.4, 0.35])
    found = evidence.gather("a", "a", [Outcome(0, rounds)], ACCURACY, Traits())
    assert (found.selected, found.selected_round, found.final, found.validation) == ([0.9], [2], [0.6], [0.4])
    rounds[2]["validation_accuracy"] = 0.5  # the best on test data is passed over
    assert evidence.gather("a", "a", [Outcome(0, rounds)], ACCURACY, Traits()).selected == [0.6]
    plain = evidence.gather("a", "a", [Outcome(0, lines(0.5, 0.9, 0.6))], ACCURACY, Traits())
    assert (plain.selected, plain.validation) == ([0.6], [])


def test_of_rounds_with_the_same_validation_accuracy_the_least_loss_and_then_the_last_is_chosen():
    """30 samples know 30 accuracies: the first of equals would be the least trained round."""
    rounds = lines(0.5, 0.6, 0.7, 0.8, 0.9, validation=[0.3, 0.4, 0.4, 0.4, 0.1])
    assert choose(rounds, ACCURACY)["round"] == 4
    for line, loss in zip(rounds, (0.1, 0.9, 0.5, 0.6, 0.1), strict=True):
        line["validation_loss"] = loss
    assert choose(rounds, ACCURACY)["round"] == 3
    rounds[3]["validation_loss"] = 0.5
    assert choose(rounds, ACCURACY)["round"] == 4
    rounds[3]["validation_loss"] = float("nan")
    assert choose(rounds, ACCURACY)["round"] == 3
    assert choose(rounds, LOSS)["round"] == 5


@pytest.mark.parametrize("samples, chosen", [(99, 2), (100, 1)])
def test_few_validation_samples_choose_by_their_loss(samples, chosen):
    rounds = [
        {"round": 1, "validation_accuracy": 0.9, "validation_loss": 0.5, "validation_samples": samples},
        {"round": 2, "validation_accuracy": 0.8, "validation_loss": 0.4, "validation_samples": samples},
        {"round": 3, "validation_accuracy": 0.8, "validation_loss": 0.6, "validation_samples": samples},
    ]
    assert choose(rounds, ACCURACY)["round"] == chosen


def test_own_data_worst_and_variance_are_of_the_chosen_round():
    rounds = lines(0.5, validation=[0.9]) + lines(0.6, own=0.1, worst=0.0, validation=[0.1])
    rounds[1]["round"] = 2
    found = evidence.gather("a", "a", [Outcome(3, rounds)], ACCURACY, Traits())
    assert (found.own, found.worst, found.variance, found.seeds) == ([0.5], [0.2], [100.0], [3])


def test_rounds_and_bytes_to_a_target_with_a_seed_that_misses_it():
    outcomes = [Outcome(0, lines(0.4, 0.5, 0.6)), Outcome(1, lines(0.4, 0.45, 0.49))]
    outcomes[0].lines[0] |= {"setup_bytes_down": 7, "setup_bytes_up": 0}
    found = evidence.gather("a", "a", outcomes, ACCURACY, Traits())
    evidence.aim(found, outcomes, ACCURACY, 0.5)
    assert (found.rounds_to, found.bytes_to, found.reached) == ([2, None], [47, None], 1)
    assert found.bytes == [67, 60]
    assert evidence.target_of(found, ACCURACY) == round(0.95 * (0.6 + 0.49) / 2, 3)


def test_a_loss_counts_downwards():
    rounds = [{"round": k, "train_loss": 1.0, "test_loss": v, "validation_loss": v} for k, v in ((1, 2.0), (2, 1.0))]
    outcome = [Outcome(0, rounds), Outcome(1, rounds)]
    score = evidence.score_of(outcome)
    assert score == LOSS
    found = evidence.gather("a", "a", outcome, score, Traits())
    evidence.aim(found, outcome, score, 1.5)
    assert (found.selected, found.rounds_to) == ([1.0, 1.0], [2, 2])
    text = say(method("fedavg", [1.0, 1.1, 1.05]), method("b", [0.5, 0.61, 0.54]), score=LOSS)
    assert text["the lowest loss"].startswith("b, 0.550 (fedavg 1.050) | not decided: ahead in all 3 seeds; luck")


@pytest.mark.parametrize(
    "size,b,base,target", [(1e-4, "0.0000557", "0.000105", 0.000111), (1e4, "5567", "10500", 11100)]
)
def test_a_loss_of_any_size_is_told_in_digits_that_it_needs(size, b, base, target):
    """As the losses above, in other units: the verdict must not depend on these."""
    few, many = ([v * size for v in values] * 4 for values in ((1.0, 1.1, 1.05), (0.5, 0.61, 0.56)))
    fedavg, other = method("fedavg", few, own=[]), method("b", many, own=[])
    text = say(fedavg, other, score=LOSS)
    assert text["the lowest loss"] == f"b, {b} (fedavg {base}) | sure: ahead in 12 of 12 seeds"
    assert text["In short"].startswith("b, surely better than fedavg: by ")
    assert evidence.target_of(fedavg, LOSS) == pytest.approx(target)
    case = results.Case("", [fedavg, other], fedavg, LOSS, None, [], judge(fedavg, other, score=LOSS))
    rows = results.rows(case)
    assert rows[1]["loss"].split(" ±")[0] == b and rows[1]["sure"] == "better" and rows[1]["ahead in"] == "12/12"
    assert float(rows[1]["to fedavg"]) == pytest.approx(-0.493 * size, rel=0.02)


def test_the_score_is_the_first_that_all_have():
    own = [{k: v for k, v in line.items() if k != "test_accuracy"} for line in lines(0.5)]
    assert evidence.score_of([Outcome(0, lines(0.5))]) == ACCURACY
    assert evidence.score_of([Outcome(0, lines(0.5)), Outcome(0, own)]) == OWN
    assert evidence.score_of([Outcome(0, lines(0.5)), Outcome(0, own, diverged=2)]) == ACCURACY
    assert evidence.score_of([Outcome(0, [])]) is None


def test_a_run_that_ends_in_nan_has_diverged():
    outcomes = [Outcome(0, lines(0.5)), Outcome(1, lines(float("nan"), train_loss=float("nan"))), Outcome(2, [], 1)]
    found = evidence.gather("a", "a", outcomes, ACCURACY, Traits())
    assert found.diverged == {1: 1, 2: 1} and found.selected == [0.5] and not found.complete


def test_what_methods_ask_for_comes_from_their_declarations():
    kinds = {name: evidence.traits(cls()) for name, cls in METHODS.items()}
    assert (
        kinds["fedavg"] == kinds["fedprox"] == Traits(leaves="its change of the model (the server reads the sum only)")
    )
    assert kinds["scaffold"].state == ("control",) and not kinds["scaffold"].each
    assert kinds["fedfa"].each == ("accuracy", "taken") and kinds["fedfa"].state == ("taken",)
    assert kinds["rfedavg"].peers == ("mean",) and "shown to all" in kinds["rfedavg"].words
    assert kinds["rfedavg-plus"].state == ()  # carried from one exchange to the next only
    assert evidence.traits(Ring()).words == "not theta, sealed from client to client"
    assert kinds["fedavg"].words == "sums"


# ---------------------------------------------------------------- the verdict, branch by branch

BASE = [0.70, 0.72, 0.71, 0.73, 0.69] * 2
FAR = [0.80, 0.83, 0.81, 0.82, 0.80] * 2
NEAR = [v + d for v, d in zip(BASE, (0.01, -0.01, 0.02, -0.005, 0.001, -0.02, 0.01, -0.01, 0.005, -0.002), strict=True)]


def varied(values, shift):
    """All shifted by as much on average, and not by the same."""
    return [v + shift + 1e-3 * (k % 3 - 1) for k, v in enumerate(values)]


def test_a_sure_winner():
    text = say(method("fedavg", BASE), method("scaffold", FAR, STATE), method("fedprox", NEAR))
    assert text["the highest accuracy"] == "scaffold, 81.2 % (fedavg 71.0 %) | sure: ahead in 10 of 10 seeds"
    assert text["the simplest that is not worse"] == "scaffold | it reads sums only"
    assert text["In short"] == "scaffold, surely better than fedavg: by 10.2 points, ahead in 10 of 10 seeds."
    assert next(iter(text)) == "In short" and "too few" not in text["How sure"]
    assert judge(method("fedavg", BASE), method("scaffold", FAR)).decided


def test_what_cannot_be_told_is_said_and_the_simple_method_wins():
    more = [v + 1e-3 for v in NEAR]
    text = say(method("fedavg", BASE), method("feddc", more, STATE))
    assert text["the highest accuracy"] == "feddc, 71.1 % (fedavg 71.0 %) | cannot be told: ahead in 5 of 10 seeds"
    assert text["the simplest that is not worse"] == "fedavg | nothing is surely better than it"
    assert text["In short"] == "fedavg; no other is shown to be better here."
    assert not judge(method("fedavg", BASE), method("feddc", more, STATE)).decided


def test_ahead_in_every_seed_comes_with_its_chance_by_luck():
    text = say(method("fedavg", [0.5, 0.6, 0.7]), method("b", [0.9, 0.62, 0.71]), method("c", [0.88, 0.63, 0.70]))
    luck = "luck alone does that in 21 % of comparisons"
    assert text["the highest accuracy"] == f"b, 74.3 % (fedavg 60.0 %) | not decided: ahead in all 3 seeds; {luck}"
    assert text["In short"] == (
        f"not decided after 3 seeds. b is ahead of fedavg by 14.3 points in all of them, but {luck}; --budget adds "
        "seeds until it is decided."
    )
    assert "3 seeds are too few to be sure of anything, 8 are the least" in text["How sure"]


def test_few_seeds_without_a_leader_name_the_baseline_for_now():
    text = say(method("fedavg", [0.5, 0.6, 0.7]), method("b", [0.51, 0.62, 0.69]))
    assert text["In short"] == (
        "fedavg for now; 3 seeds are too few to show that another is better; --budget adds seeds until it is decided."
    )


def test_further_shares_are_percent_too():
    e = method("fedavg", [0.5], others={"balanced accuracy": [0.833], "AUC": [0.9]})
    assert (results._other(e, "balanced accuracy"), results._other(e, "AUC")) == ("83.3 %", "0.900")


def test_one_seed_says_nothing():
    text = say(method("fedavg", [0.5]), method("b", [0.9]), method("local-only", [], reference=True, own=[0.1]))
    assert text["How sure"].startswith("one seed was run, so no difference here can be told from chance")
    assert text["the highest accuracy"] == "b, 90.0 % (fedavg 50.0 %) | cannot be told from one seed"
    assert text["is it worth federating (own data)"].startswith("not shown: b 90.0 %, local-only 10.0 % | cannot")
    assert text["In short"] == "one seed decides nothing; in it b is 40.0 points ahead of fedavg."
    text = say(method("fedavg", [0.5]), method("b", [0.4]))
    assert text["In short"] == "one seed decides nothing; in it no method is ahead of fedavg."


def test_the_baseline_may_be_the_best_and_others_surely_worse():
    out = judge(method("fedavg", FAR), method("feddyn", BASE, STATE), method("b", varied(BASE, 0.001)))
    text = say(method("fedavg", FAR), method("feddyn", BASE, STATE), method("b", varied(BASE, 0.001)))
    assert text["the highest accuracy"] == "fedavg, 81.2 % | sure: every other method is worse"
    assert text["Surely worse than fedavg"] == "feddyn (behind in 10 of 10 seeds) and b (behind in 10 of 10 seeds)."
    assert out.decided and text["In short"] == "fedavg; no other is shown to be better here."


def test_of_equals_the_simplest_is_recommended():
    near = [v + d for v, d in zip(FAR, (0.002, -0.003, 0.001, 0.001, -0.002) * 2, strict=True)]
    more = {"bytes": [9000] * 10}
    rest = [method("a", FAR, EACH), method("b", near, STATE, **more), method("c", near, **more)]
    text = say(method("fedavg", BASE), *rest)
    assert text["the simplest that is not worse"] == (
        "c | not shown to be worse than a; it keeps nothing on clients and reads sums only"
    )
    assert text["In short"].startswith("c, surely better than fedavg: by 10.2 points")
    assert text["In short"].endswith(" a has the best accuracy, not surely better than c's.")
    assert text["the highest accuracy"].endswith("sure: ahead in 10 of 10 seeds; b and c may be as good")
    less = varied(FAR, -0.02)
    text = say(method("fedavg", BASE), rest[0], method("d", less, **more))
    assert text["the simplest that is not worse"] == "a | it keeps nothing on clients"  # d is simpler, and behind


def test_everything_that_is_called_sure_is_corrected_together():
    """7 seeds ahead are sure of one method alone; with another, and the worst clients beside it, they are not."""
    alone = dict(rounds_to=[], bytes_to=[], worst=[])
    ahead = [v + 0.1 for v in BASE[:7]]
    text = say(method("fedavg", BASE[:7], **alone), method("b", ahead, **alone), target=None)
    assert text["the highest accuracy"].endswith("sure: ahead in 7 of 7 seeds")
    text = say(method("fedavg", BASE[:7]), method("b", ahead), method("c", NEAR[:7]), target=None)
    assert "not decided: ahead in all 7" in text["the highest accuracy"]
    claims = judge(method("fedavg", BASE), method("b", FAR), method("c", NEAR)).claims.values()
    weights = [0.7 / 2 if c.wish == "the highest accuracy" else 0.3 / 6 for c in claims]
    assert [c.corrected for c in claims] == pytest.approx(stats.holm([c.test.p for c in claims], weights))


def test_identical_runs_are_called_identical():
    same, other = lines(0.5, 0.6), lines(0.5, 0.7)
    made = {"fedavg": [Outcome(0, same)], "fedprox": [Outcome(0, lines(0.5, 0.6, sent=99))], "b": [Outcome(0, other)]}
    found = [evidence.gather(label, label, runs, ACCURACY, Traits()) for label, runs in made.items()]
    evidence.find_twins(found, made)
    assert [e.twin for e in found] == ["", "fedavg", ""]
    text = say(*found)
    assert text["Identical"].startswith("fedprox and fedavg have the same numbers in every round of every seed")
    assert ("the highest accuracy", "fedprox") not in judge(*found).claims
    same = say(*found[:2])
    assert same["the highest accuracy"] == "fedavg, 60.0 % | no other is ahead"
    case = results.Case("", found, found[0], ACCURACY, None, [], judge(*found))
    assert [row["to fedavg"] for row in results.rows(case)] == ["", "identical", "+10.0"]


def test_the_worst_clients():
    wish = "the worst-served clients (lowest 20 %)"
    a, b = method("fedavg", BASE), method("b", NEAR, worst=[v + 0.1 for v in FAR])
    assert say(a, b)[wish] == "b, 91.2 % (fedavg 71.0 %) | sure: ahead in 10 of 10 seeds"
    assert wish not in say(*[method(n, BASE, worst=[]) for n in ("fedavg", "b")])


def test_rounds_and_bytes_may_have_different_winners():
    quick = method("b", FAR, rounds_to=[3, 4] * 5, bytes_to=[2000, 2100] * 5)
    text = say(method("fedavg", BASE), quick)
    assert text["fewest rounds to accuracy 50.0 %"] == "b, 3.5 (fedavg 10.5) | sure: ahead in 10 of 10 seeds"
    assert text["fewest bytes to accuracy 50.0 %"] == "fedavg, 1.0 kB | sure: every other method is worse"


def test_a_method_that_misses_the_target_in_a_seed_cannot_win_it():
    wish = "fewest rounds to accuracy 50.0 %"
    some = method("b", FAR, rounds_to=[1] * 9 + [None], bytes_to=[1] * 9 + [None])
    text = say(method("fedavg", BASE), some)
    assert text[wish] == "fedavg, 10.5 | the only one that has it"
    assert text["Not always reached"] == "accuracy 50.0 % by b in 9 of 10 seeds."
    missed = method("fedavg", BASE, rounds_to=[None] * 10, bytes_to=[None] * 10)
    text = say(missed, method("b", FAR))
    assert text[wish] == "b, 10.5 | not tested: fedavg has none in some seed"
    assert wish not in say(missed, some) and wish not in say(missed, some, target=None)


def test_what_they_ask_for():
    text = say(method("fedavg", BASE), method("a", BASE, EACH), method("p", BASE, PEERS), method("s", BASE, STATE))
    assert text["What they ask for"] == (
        "a (accuracy) and p (mean) read values of each client, and cannot run unchanged behind secure aggregation; "
        "s keeps state on clients, stale for those that come rarely."
    )
    sealed, public = Traits(sealed=("theta",), sums=False), Traits(public=True)
    text = say(method("fedavg", BASE), method("d", BASE, sealed), method("m", BASE, public), method("n", BASE, public))
    assert text["What they ask for"] == (
        "of d the server reads nothing; m and n learn from a public set, which the others have no use for."
    )
    assert "What they ask for" not in say(method("fedavg", BASE), method("b", FAR))


def test_what_leaves_the_client_and_epsilon_stand_beside_each_method():
    kind = Traits(leaves="its model (x)")
    found = [method("fedavg", BASE, kind, epsilon=[2.0, 3.14159]), method("b", FAR, kind),
             method("centralized", FAR, reference=True)]  # fmt: skip
    rows = results.rows(results.Case("", found, found[0], ACCURACY, None, [], judge(*found)))
    assert [row["leaves the client"] for row in rows] == ["its model (x)", "its model (x)", "–"]
    assert [row["ε"] for row in rows] == ["3.14", "none", "–"]
    rows = results.rows(results.Case("", found[1:], found[1], ACCURACY, None, [], judge(*found[1:])))
    assert "ε" not in rows[0]
    line = lines(0.5, epsilon=4.0)
    line[-1]["epsilon_pld"] = 3.5
    assert evidence.gather("a", "a", [Outcome(0, line)], ACCURACY, Traits()).epsilon == [3.5]


def test_against_the_reference_lines():
    pooled = method("centralized", varied(FAR, 0.05), reference=True)
    alone = method("local-only", [], reference=True, own=varied(BASE, -0.2))
    text = say(method("fedavg", BASE), method("b", FAR), pooled, alone)
    assert text["all data in one place instead"] == (
        "b 81.2 %, centralized 86.2 % | sure: centralized is ahead of every method"
    )
    assert text["is it worth federating (own data)"] == (
        "yes: b 81.2 %, local-only 51.0 % | sure: ahead in 10 of 10 seeds"
    )
    text = say(method("fedavg", [0.5, 0.6, 0.7]), method("centralized", [0.9, 0.62, 0.69], reference=True))
    assert text["all data in one place instead"].endswith("not decided: centralized is ahead in 2 of 3 seeds")
    text = say(method("fedavg", BASE), method("local-only", [], reference=True, own=FAR))
    assert text["is it worth federating (own data)"] == (
        "no: fedavg 71.0 %, local-only 81.2 % | sure: local-only is ahead of every method"
    )
    text = say(method("fedavg", BASE), method("local-only", [], reference=True, own=NEAR))
    assert text["is it worth federating (own data)"].startswith("not shown: fedavg 71.0 %")


def test_diverged_methods_are_named_and_left_out():
    bad = method("b", [0.99], diverged={1: 7, 2: 4})
    bad.seeds = [0, 1, 2]
    text = say(method("fedavg", BASE[:3]), bad, method("c", [0.70, 0.73, 0.70]))
    assert text["Diverged"].startswith("b in 2 of 3 seeds (round 4); not judged")
    assert not text["the highest accuracy"].startswith("b")
    lost = method("fedavg", [], diverged={0: 1, 1: 1})
    text = say(method("b", BASE[:2]), lost)
    assert text["In short"].startswith("b is the only method that got through; its accuracy is 71.0 %")
    assert say(lost, method("b", [], diverged={0: 3}))["In short"] == "no verdict; no method got through in every seed."


# ---------------------------------------------------------------- has anything been learned


def guess(value, seeds=3):
    return method("constant", [value] * seeds, reference=True)


def test_no_verdict_where_no_method_beats_a_constant_guess():
    text = say(method("fedavg", [0.60, 0.61, 0.62]), method("b", [0.63, 0.58, 0.60]), guess(0.62))
    assert text["In short"] == "no verdict; no method has learned anything here."
    assert (
        "the best accuracy of a method is 61.0 % ± 1.0 (fedavg); the same answer for every sample has 62.0 %"
        in (text["What is wrong"])
    )
    assert text["What to try"].startswith("--tune 8") and set(text) == {"In short", "What is wrong", "What to try"}


def test_better_by_chance_is_not_better_than_a_constant_guess():
    text = say(method("fedavg", [0.60, 0.61, 0.62]), method("b", [0.66, 0.61, 0.60]), guess(0.60))
    assert text["In short"].startswith("no verdict")
    text = say(method("fedavg", [0.60, 0.61, 0.62]), method("b", [0.90, 0.91, 0.89]), guess(0.60))
    assert "b is ahead of fedavg" in text["In short"] and text["Learned nothing"].startswith("fedavg (61.0 %")


def test_the_same_gain_in_every_seed_beats_a_constant_guess_and_one_seed_need_only_be_better():
    assert not say(method("fedavg", [0.9] * 3), method("b", [0.9] * 3), guess(0.5))["In short"].startswith("no verdict")
    assert say(method("fedavg", [0.5]), guess(0.5, 1))["In short"].startswith("no verdict")
    text = say(method("fedavg", [0.6]), guess(0.5, 1))["In short"]
    assert text == "fedavg is the only method; its accuracy is 60.0 %, that of the same answer for every sample 50.0 %."


def test_of_a_loss_less_must_be_had_than_the_guess():
    assert say(method("fedavg", [2.0, 2.1, 2.2]), guess(2.0), score=LOSS)["In short"].startswith("no verdict")
    assert say(method("fedavg", [1.0, 1.1, 1.2]), guess(2.0), score=LOSS)["In short"].startswith(
        "fedavg is the only method"
    )


def test_advice_names_the_likeliest_cause_first():
    tables = {"data": {"table": "a.csv"}, "model": {"name": "linear"}, "method": {}, "local": {}, "run": {"rounds": 20}}
    raw = Arm("fedavg", "fedavg", "", tables, unscaled=True)
    assert results._advice(raw, tuned=False).startswith("--scale standard, which") and "data describe" in (
        results._advice(raw, tuned=False)
    )
    fine = results._advice(dc.replace(raw, unscaled=False), tuned=True)
    assert fine.startswith("--rounds 40; --model mlp") and "--tune" not in fine


# ---------------------------------------------------------------- grids, cases, tuning


def arm(label, name="fedavg", case=""):
    tables = {"data": {}, "model": {}, "method": {"name": name}, "local": {}, "run": {}}
    return Arm(label, f"{case}{label}", case, tables)


def test_of_a_grid_validation_data_choose_the_setting():
    arms = [arm("fedavg lr=1"), arm("fedavg lr=2"), arm("local-only", "local-only")]
    runs = {
        ("fedavg lr=1", 0): Outcome(0, lines(0.9, validation=[0.4])),
        ("fedavg lr=2", 0): Outcome(0, lines(0.6, validation=[0.5])),
        ("local-only", 0): Outcome(0, [{k: v for k, v in lines(0.1)[0].items() if k != "test_accuracy"}]),
    }
    (case,) = results.conclude(arms, [0], runs)
    assert case.judged == ["fedavg lr=2", "local-only"] and case.base.label == "fedavg lr=2"
    assert case.target == 0.57 and case.lines[2].endswith("does best on validation data: fedavg lr=2.")
    assert [row["method"] for row in results.rows(case)] == ["fedavg lr=1", "fedavg lr=2", "local-only"]
    for run in runs.values():
        run.lines[0].pop("validation_accuracy", None)
    (case,) = results.conclude(arms, [0], runs, target=0.8)
    assert case.judged[0] == "fedavg lr=1" and "too good" in case.lines[2] and case.target == 0.8


def test_cases_are_judged_apart():
    arms = [arm("fedavg", case="iid"), arm("fedavg", case="skewed")]
    runs = {("iidfedavg", 0): Outcome(0, lines(0.9)), ("skewedfedavg", 0): Outcome(0, lines(0.5))}
    cases = results.conclude(arms, [0], runs)
    assert [(c.name, c.base.selected) for c in cases] == [("iid", [0.9]), ("skewed", [0.5])]


def test_a_grid_names_settings_that_diverged_and_the_setting_of_a_reference_line():
    names = ("fedavg", "centralized", "local-only")
    arms = [arm(f"{name} lr={lr}", name) for name in names for lr in (1, 2)]
    runs = {}
    for a in arms:
        good = Outcome(0, lines(0.5, validation=[0.5]))
        runs[a.name, 0] = good if a.label.endswith("1") else Outcome(0, [], 1)
    (case,) = results.conclude(arms, [0], runs)
    text = {line.partition(":")[0]: line for line in case.lines}
    assert case.judged == [f"{name} lr=1" for name in names]
    assert "fedavg lr=2 in 1 of 1 seeds" in text["Diverged"] and "local-only lr=2 in 1" in text["Diverged"]
    shown = [answer.method for answer in case.answers]
    assert shown == [
        "fedavg lr=1 50.0 %, centralized lr=1 50.0 %",
        "not shown: fedavg lr=1 50.0 %, local-only lr=1 50.0 %",
    ]


def test_few_validation_samples_are_said():
    def said(samples, **more):
        one = dc.replace(arm("fedavg"), validation=samples)
        (case,) = results.conclude([one], [0], {("fedavg", 0): Outcome(0, lines(0.5, **more))})
        return [line for line in case.lines if line.startswith("Few samples: ")]

    assert "rounds were chosen by the loss on 29 validation samples" in said(29, validation=[0.5])[0]
    assert not said(100, validation=[0.5]) and not said(29) and not said(None)
    one = dc.replace(arm("fedavg"), tested=12)
    (case,) = results.conclude([one], [0], {("fedavg", 0): Outcome(0, lines(0.5))})
    assert "Few samples: scores are of 12 test samples in each seed." in case.lines


def test_all_runs_diverged():
    (case,) = results.conclude([arm("fedavg")], [0, 1], {("fedavg", s): Outcome(s, [], 1) for s in (0, 1)})
    assert results.rows(case)[0]["accuracy"] == "diverged" and case.lines[0].startswith("In short: no verdict")
    assert case.lines[1].startswith("Diverged: fedavg in 2 of 2 seeds (round 1)") and len(case.lines) == 2
    json.dumps(results._plain(case), allow_nan=False)


def test_trials_are_drawn_from_the_seed_and_what_is_set_stays():
    table = {"name": "fedprox"}
    trials = tune.trials(table, True, 8, 5)
    assert trials == tune.trials(table, True, 8, 5) != tune.trials(table, True, 8, 6)
    assert trials[0] == {"method": {}, "local": {}}
    assert trials[:4] == tune.trials(table, True, 4, 5)  # more trials are the same and others
    for trial in trials[1:]:
        assert 1e-3 <= trial["method"]["mu"] <= 1 and 3e-3 <= trial["local"]["lr"] <= 1
    assert all(
        t == {"method": {}, "local": {"lr": t["local"]["lr"]}}
        for t in tune.trials({"name": "fedprox", "mu": 1}, True, 3, 5)[1:]
    )
    assert all("lr" not in t["local"] for t in tune.trials(table, False, 3, 5))
    assert len(tune.trials({"name": "fedavg"}, False, 9, 5)) == 1
    assert [t["local"] for t in tune.trials({"name": "feddc"}, True, 8, 5)] == [t["local"] for t in trials]


@pytest.mark.parametrize("name", METHODS)
def test_every_drawn_setting_can_be_made(name):
    for trial in tune.trials({"name": name}, True, 30, 1):
        METHODS[name](**trial["method"])


def test_every_range_is_of_a_method_and_its_settings():
    for name, cls in METHODS.items():
        ranges = tune.ranges({"name": name})
        assert all(part in cls.__dataclass_fields__ for names in ranges for part in names.split(", "))


def test_the_best_trial_is_the_first_of_the_best_that_did_not_diverge():
    def trial(value, diverged=None):
        return Outcome(9, lines(0.1, 0.1, validation=[0.0, value]), diverged)

    assert tune.best([trial(0.3), trial(0.5), trial(0.5)], ACCURACY) == (1, [0.3, 0.5, 0.5])
    assert tune.best([trial(0.3), trial(0.9, diverged=2)], ACCURACY) == (0, [0.3, None])
    assert tune.best([trial(0.9, 2), trial(0.9, 1)], ACCURACY) == (0, [None, None])


def test_the_note_on_tuning_says_what_was_chosen():
    trials = [{"method": {}, "local": {}}, {"method": {"mu": 0.25}, "local": {"lr": 0.5}}]
    arms = [arm("fedprox", "fedprox"), arm("fedavg")]
    found = {"fedprox": Tuned(trials, [0.1, 0.2], 1), "fedavg": Tuned(trials, [0.2, 0.1], 0)}
    assert results.tuning_notes(arms, found, 25, 3) == [
        "Tuned on validation data, 2 trials each of 25 rounds, seed 3: fedprox mu 0.25, lr 0.5; fedavg as it was."
    ]


def test_where_a_common_class_hides_what_was_learned_methods_are_compared_by_auc():
    metrics = {"accuracy": True, "auc": True}

    def runs(accuracy, auc):
        own = {"pooled_auc": auc, "test_accuracy": None}
        return {s: Outcome(s, lines(0.0, own=accuracy + s / 500, **own), metrics=metrics) for s in range(3)}

    made = {"fedavg": runs(0.77, 0.72), "fedprox": runs(0.76, 0.75), " constant": runs(0.78, 0.5)}
    outcomes = {(name, s): run for name, mine in made.items() for s, run in mine.items()}
    (case,) = results.conclude([arm("fedavg"), arm("fedprox", "fedprox")], [0, 1, 2], outcomes)
    assert case.score.key == "pooled_auc" and case.sound
    assert case.lines[2] == "Compared by AUC: no method has a better accuracy than the same answer for every sample."
    blind = {"fedavg": runs(0.77, 0.5), "fedprox": runs(0.76, 0.5), " constant": runs(0.78, 0.5)}
    outcomes = {(name, s): run for name, mine in blind.items() for s, run in mine.items()}
    (case,) = results.conclude([arm("fedavg"), arm("fedprox", "fedprox")], [0, 1, 2], outcomes)
    assert case.score.key == "clients_accuracy_mean" and not case.sound
    assert case.lines[1].startswith("Measured: accuracy") and "What is wrong" in case.lines[2]


def test_noise_seldom_looks_like_learning():
    """No method has learned anything: how often is there a verdict all the same?"""
    draw, said = random.Random(1), 0
    arms = [arm(name, name) for name in ("fedavg", "fedprox", "scaffold", "feddyn", "feddc")]
    for _ in range(120):
        outcomes = {}
        for s in range(3):
            guess = lines(0.0, own=0.6, pooled_auc=0.5, pooled_balanced_accuracy=0.5, test_accuracy=None)
            metrics = {"accuracy": True, "auc": True, "balanced_accuracy": True}
            outcomes[" constant", s] = Outcome(s, guess, metrics=metrics)
            for a in arms:
                noise = {name: 0.5 + draw.gauss(0, 0.03) for name in ("pooled_auc", "pooled_balanced_accuracy")}
                own = lines(0.0, own=0.6 + draw.gauss(0, 0.03), test_accuracy=None, **noise)
                outcomes[a.name, s] = Outcome(s, own, metrics=metrics)
        (case,) = results.conclude(arms, [0, 1, 2], outcomes)
        said += case.sound
    assert said <= 40  # a twentieth for each of five methods, and for all further looks together


def test_channels_are_compared_and_not_chosen():
    """By validation the one that costs accuracy for bytes would never be judged."""
    found = [
        method("fedavg channel=none", [0.9, 0.9], validation=[0.9, 0.9]),
        method("fedavg channel=topk:0.1", [0.8, 0.8], validation=[0.8, 0.8]),
        method("ditto lr=0.1 channel=topk:0.1", [0.7, 0.7], validation=[0.7, 0.7]),
        method("ditto lr=0.2 channel=topk:0.1", [0.6, 0.6], validation=[0.6, 0.6]),
    ]
    found = [dc.replace(e, method=e.label.partition(" ")[0]) for e in found]
    judged, notes = results._judged(found, SCORES[0])
    assert judged == found[:3] and "ditto lr=0.1" in notes[0]
