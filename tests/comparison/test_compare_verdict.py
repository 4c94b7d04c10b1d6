"""The verdict as a pure function: fabricated rounds in, sentences out; and the statistics under it."""

import dataclasses as dc
import json
import math
import random

import pytest
import scipy.stats
from toys import Ring

from unalike.comparison import results, tune, verdict
from unalike.comparison.jobs import Arm, Tuned
from unalike.methods import METHODS
from unalike.metrics.lines import choose
from unalike.results import evidence, stats
from unalike.results.evidence import SCORES, Evidence, Outcome, Traits

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


def say(*found, score=ACCURACY, target=0.5):
    """The verdict by wish; the first method is the baseline."""
    text = verdict.verdict(found, found[0], score, target)
    assert all("\n" not in line and ": " in line for line in text)
    return {line.partition(":")[0]: line.partition(": ")[2] for line in text}


def p_of(a, b):
    return verdict.p_word(scipy.stats.ttest_rel(a, b).pvalue)


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


def test_spread():
    assert stats.deviation([1.0]) is None and stats.deviation([1.0, 3.0]) == pytest.approx(math.sqrt(2))
    assert verdict.spread([0.5]) == "0.500" and verdict.spread([0.5, 0.7]) == "0.600 ± 0.141"


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
    assert text["Lowest loss"].startswith("b, 0.550 ± 0.056 against fedavg's 1.050 ± 0.050 (t(2) = -")


@pytest.mark.parametrize(
    "size,b,base,target",
    [(1e-4, "0.000055 ± 0.000006", "0.000105 ± 0.000005", 0.000111), (1e4, "5500 ± 557", "10500 ± 500", 11100)],
)
def test_a_loss_of_any_size_is_told_in_digits_that_it_needs(size, b, base, target):
    """As the losses above, in other units: the verdict must not depend on these."""
    fedavg = method("fedavg", [v * size for v in (1.0, 1.1, 1.05)], own=[])
    other = method("b", [v * size for v in (0.5, 0.61, 0.54)], own=[])
    text = say(fedavg, other, score=LOSS)
    assert text["Lowest loss"].startswith(f"b, {b} against fedavg's {base} (t(2) = -")
    assert text["In short"].startswith("b, clearly better than fedavg by ")
    assert evidence.target_of(fedavg, LOSS) == pytest.approx(target)
    case = results.Case(
        "",
        [fedavg, other],
        fedavg,
        LOSS,
        None,
        verdict.against([fedavg, other], fedavg, lambda e: e.selected, False),
        [],
        [],
    )
    rows = results.rows(case)
    assert rows[1]["loss"] == b.replace(" ± 0.", " ±.").replace("± ", "±")
    assert float(rows[1]["to fedavg"]) == pytest.approx(-0.5 * size, rel=0.01)
    gain = [
        method("centralized", [v * share * size for v in (1.0, 1.1, 1.05)], reference=True) for share in (0.7, 0.999)
    ]
    little = [say(method("fedavg", [v * size for v in (1.0, 1.1, 1.0501)]), g, score=LOSS) for g in gain]
    assert ["gain little" in text["Against all data in one place"] for text in little] == [False, True]


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


def varied(values, shift):
    """All shifted by as much on average, and not by the same."""
    return [v + shift + 1e-3 * k for v, k in zip(values, (1, -1, 0, 1, -1), strict=True)]


BASE = [0.70, 0.72, 0.71, 0.73, 0.69]
FAR = [0.80, 0.83, 0.81, 0.82, 0.80]


def test_a_clear_winner():
    text = say(method("fedavg", BASE), method("scaffold", FAR, STATE), method("fedprox", [v + 1e-3 for v in BASE]))
    assert text["Highest accuracy"].startswith("scaffold, 0.812 ± 0.013 against fedavg's 0.710 ± 0.016 (t(4) = ")
    assert "p < 0.001" in text["Highest accuracy"]
    assert text["How sure"] == "paired t-tests over 5 seeds (df 4), corrected for all methods tried."
    assert text["Simplest that is not worse"] == "scaffold; it reads sums only."
    assert text["In short"] == "scaffold, clearly better than fedavg by 0.102." and next(iter(text)) == "In short"


def test_within_noise_is_said_and_the_simple_method_wins():
    other = [v + d for v, d in zip(BASE, (0.01, -0.01, 0.02, -0.005, 0.001), strict=True)]
    text = say(method("fedavg", BASE), method("feddc", other, STATE))
    assert text["Highest accuracy"].startswith("no clear winner; feddc has 0.713 ± 0.0")
    assert "within noise (t(4) = 0.597, p = 0.58)" in text["Highest accuracy"]
    assert text["Simplest that is not worse"] == "fedavg; nothing is clearly better than it with this evidence."
    assert text["In short"] == "fedavg; no other is shown to be better here."


def test_ahead_in_every_seed_is_not_enough():
    text = say(method("fedavg", [0.5, 0.6, 0.7]), method("b", [0.9, 0.62, 0.71]), method("c", [0.88, 0.63, 0.70]))
    assert text["Highest accuracy"].startswith(
        "b leads in every seed, 0.743 ± 0.143 against fedavg's 0.600 ± 0.100, but 3"
    )
    assert "3 seeds do not show it (t(2) = 1.1" in text["Highest accuracy"]
    assert text["Highest accuracy"].endswith("c is within noise of b.")
    assert text["Simplest that is not worse"].endswith("b is ahead in every seed: more seeds could show it.")
    assert text["How sure"].startswith("3 seeds are few")
    assert text["In short"] == "fedavg, until more seeds decide; b leads it by 0.143, in every seed."


def test_weak_evidence_is_called_weak():
    """p = 0.03 by itself, 0.06 when two methods were tried."""
    shift = (0.02, 0.04, 0.03)
    found = stats.paired(shift, (0, 0, 0))
    assert 0.025 < found.p < 0.05 < 2 * found.p
    up, down = ([v + s * d for v, d in zip(BASE[:3], shift, strict=True)] for s in (1, -1))
    text = say(method("fedavg", BASE[:3]), method("b", up), method("c", [0.70, 0.73, 0.70]))
    assert text["Highest accuracy"].startswith("b, weakly: 0.740")
    assert text["In short"] == "b, weakly: it leads fedavg by 0.030 in every seed; more seeds decide."
    assert f"corrected {verdict.p_word(2 * found.p)}" in text["Highest accuracy"]
    assert text["Simplest that is not worse"].startswith("fedavg; nothing is clearly better")
    text = say(method("fedavg", BASE[:3]), method("b", down), method("c", [0.70, 0.73, 0.70]))
    assert text["Worse than fedavg"].startswith("weakly, b (t(2) = -")


def test_two_seeds_are_never_more_than_weak():
    text = say(method("fedavg", [0.5, 0.6]), method("b", [0.7001, 0.8]))
    assert text["Highest accuracy"].startswith("b, weakly: ")
    assert text["Simplest that is not worse"].startswith("fedavg; ")


def test_one_seed_says_nothing():
    text = say(method("fedavg", [0.5]), method("b", [0.9]), method("local-only", [], reference=True, own=[0.1]))
    assert text["How sure"].startswith("one seed was run, so no difference here can be told from chance")
    assert text["Highest accuracy"] == "b has 0.900, fedavg 0.500 (one seed: untested)."
    assert text["Simplest that is not worse"] == "one seed cannot say; fedavg until more do."
    assert text["Is federating worth it"].endswith("(one seed: untested).")
    assert text["In short"] == "one seed decides nothing; in it b is 0.400 ahead of fedavg."
    text = say(method("fedavg", [0.5]), method("b", [0.4]))
    assert text["In short"] == "one seed decides nothing; in it no method is ahead of fedavg."


def test_the_baseline_may_be_the_best_and_others_clearly_worse():
    text = say(
        method("fedavg", FAR), method("feddyn", BASE, STATE), method("b", [v + 1e-3 * k for k, v in enumerate(BASE)])
    )
    assert text["Highest accuracy"] == "fedavg, 0.812 ± 0.013; no other is ahead."
    assert text["Worse than fedavg"].startswith("feddyn (t(4) = -") and " and b (t(4) = -" in text["Worse than fedavg"]
    assert "weakly" not in text["Worse than fedavg"]


def test_of_equals_the_simplest_is_recommended():
    near = [v + d for v, d in zip(FAR, (0.002, -0.003, 0.001, 0.001, -0.002), strict=True)]
    rest = [method("a", FAR, EACH), method("b", near, STATE, bytes=[9000] * 5), method("c", near, bytes=[9000] * 5)]
    text = say(method("fedavg", BASE), *rest)
    assert text["Simplest that is not worse"] == (
        f"c, not clearly worse than a (p = {p_of(near, FAR)}); it keeps nothing on clients and reads sums only."
    )
    assert text["In short"].startswith("c, clearly better than fedavg by 0.1")
    assert text["In short"].endswith(" a has the best accuracy, not clearly better than c's.")
    text = say(method("fedavg", BASE), *rest[:2])
    assert text["Simplest that is not worse"].endswith("; it reads sums only.")
    less = [v - d for v, d in zip(FAR, (0.02, 0.021, 0.019, 0.02, 0.022), strict=True)]
    text = say(method("fedavg", BASE), rest[0], method("d", less, bytes=[9000] * 5))
    assert text["Simplest that is not worse"] == "a; it keeps nothing on clients."  # d is simpler, and clearly worse


def test_the_worst_clients():
    a, b = method("fedavg", BASE), method("b", BASE, worst=[v + 0.1 for v in FAR], variance=[9.0] * 5)
    text = say(a, b)["Best for the worst clients (mean of the lowest 20 %)"]
    assert text.startswith("b, 0.912 ± 0.013 against fedavg's 0.710")
    assert text.endswith("Most even: b (variance over clients 9 pp², fedavg 300).")
    none = [method(n, BASE, worst=[], variance=[]) for n in ("fedavg", "b")]
    assert "Best for the worst clients (mean of the lowest 20 %)" not in say(*none)


def test_rounds_and_bytes_may_have_different_winners():
    quick = method("b", FAR, rounds_to=[3, 4, 3, 3, 4], bytes_to=[2000, 2100, 2050, 1990, 2010])
    text = say(method("fedavg", BASE), quick)
    assert text["Fewest rounds to accuracy 0.5"].startswith("b, 3.4 against fedavg's 10.4 (t(4) = -")
    assert text["Fewest bytes to accuracy 0.5"].startswith("fedavg, 1.0 kB; no other is ahead.")


def test_a_method_that_misses_the_target_in_a_seed_cannot_win_it():
    some = method("b", FAR, rounds_to=[1, 1, 1, 1, None], bytes_to=[1, 1, 1, 1, None])
    text = say(method("fedavg", BASE), some)
    assert text["Fewest rounds to accuracy 0.5"] == ("fedavg, 10.4. Reached by b in 4 of 5 seeds only: no mean for it.")
    missed = method("fedavg", BASE, rounds_to=[None] * 5, bytes_to=[None] * 5)
    text = say(missed, method("b", FAR))
    assert "b, 10.4; fedavg does not always reach it." in text["Fewest rounds to accuracy 0.5"]
    text = say(missed, some)
    assert "no method reaches it in every seed" in text["Fewest rounds and bytes to accuracy 0.5"]
    assert not any("Fewest" in wish for wish in say(missed, some, target=None))


def test_what_they_ask_for():
    text = say(method("fedavg", BASE), method("a", BASE, EACH), method("p", BASE, PEERS), method("s", BASE, STATE))
    assert text["What they ask for"] == (
        "a (accuracy) and p (mean) read values of each client, and cannot run unchanged behind secure aggregation; "
        "fedavg and s read sums only; s keeps state on clients, stale for those that come rarely."
    )
    sealed, public = Traits(sealed=("theta",), sums=False), Traits(public=True)
    text = say(method("fedavg", BASE), method("d", BASE, sealed), method("m", BASE, public), method("n", BASE, public))
    assert text["What they ask for"] == (
        "fedavg, m and n read sums only; of d the server reads nothing; m and n learn from a public set, which the "
        "others have no use for."
    )


def test_what_leaves_the_client_is_said_once_for_those_of_which_the_same_is_said():
    alike, other = Traits(leaves="its model (x)"), Traits(leaves="class counts (y)")
    text = say(method("fedavg", BASE, alike), method("a", BASE, other), method("b", BASE, alike))
    assert text["Leaves the client"] == "fedavg and b: its model (x). a: class counts (y)."
    assert "Leaves the client" in say(method("fedavg", BASE, alike))
    assert "Leaves the client" not in say(method("fedavg", BASE), method("b", BASE))


def test_against_the_reference_lines():
    pooled = method("centralized", varied(FAR, 0.05), reference=True)
    alone = method("local-only", [], reference=True, own=[v - 0.2 for v in BASE])
    text = say(method("fedavg", BASE), method("b", FAR), pooled, alone)
    assert text["Against all data in one place"] == (
        "centralized has 0.862 ± 0.013, the best method (b) is 0.050 below."
    )
    assert text["Is federating worth it"].startswith(
        "yes; on clients' own test data b has 0.812 ± 0.013 and training alone"
    )
    text = say(method("fedavg", [0.5, 0.6, 0.7]), method("centralized", [0.9, 0.62, 0.71], reference=True))
    assert text["Against all data in one place"].endswith("(fedavg) is 0.143 below in every seed, yet not shown.")
    text = say(method("fedavg", [0.5, 0.6, 0.7]), method("centralized", [0.9, 0.62, 0.69], reference=True))
    assert text["Against all data in one place"].endswith("(fedavg) is 0.137 below, within noise.")
    text = say(method("fedavg", BASE), method("centralized", varied(BASE, -0.05), reference=True))
    assert text["Against all data in one place"].endswith("0.050 above. All data in one place would gain little.")


def test_a_difference_that_is_not_shown_is_not_called_little():
    def little(pooled, base=BASE, **more):
        found = say(method("fedavg", base), method("centralized", pooled, reference=True, **more))
        return "would gain little" in found["Against all data in one place"]

    noisy = [v + d for v, d in zip(BASE, (0.10, -0.11, 0.12, -0.13, 0.03), strict=True)]  # + 0.002 on average
    assert abs(stats.mean(noisy) - stats.mean(BASE)) < verdict.LITTLE and not little(noisy)
    assert not little([v - 2 * d for v, d in zip(BASE, (0.10, -0.11, 0.12, -0.13, 0.03), strict=True)])
    assert little(varied(BASE, 0.002)) and not little(varied(BASE, 0.02))
    assert not little(varied(BASE, 0.002), final=varied(BASE, 0.05))  # the last round says otherwise
    assert not little([0.5], base=[0.5]) and not little([0.5, 0.6], base=[0.5, 0.6])  # untested; two seeds


def test_the_best_of_several_is_corrected_for_all_of_them():
    """p = 0.03 of one method is clear; of the best of four it is not."""
    shift = (0.02, 0.04, 0.03)
    low = [0.5, 0.51, 0.5]
    best = method("b", [v + d for v, d in zip(low, shift, strict=True)])
    p = stats.paired(best.own, low).p
    assert 0.025 < p < 0.05
    alone, pooled = method("local-only", [], reference=True, own=low), method("centralized", low, reference=True)
    text = say(best, alone, pooled)
    assert text["Is federating worth it"].startswith("yes; ") and text["Is federating worth it"].endswith(
        f"p = {verdict.p_word(p)})."
    )
    others = [method(name, [0.51, 0.5, 0.5]) for name in "cde"]
    text = say(best, *others, alone, pooled)
    assert text["Is federating worth it"].startswith("yes, weakly shown; on clients' own test data b has")
    assert text["Is federating worth it"].endswith(f"p = {verdict.p_word(p)}, corrected {verdict.p_word(4 * p)}).")
    assert "0.030 above, weakly shown." in text["Against all data in one place"]
    text = say(*others, best, method("local-only", [], reference=True, own=[v + 0.1 for v in best.own]))
    assert text["Is federating worth it"].startswith("not shown; ")  # the same difference in each of three seeds


def test_the_same_difference_in_every_seed_is_at_most_weak():
    """One test sample more in each of some seeds is no certainty: t is infinite, and says nothing."""
    few = say(method("fedavg", [0.5, 0.625, 0.75]), method("b", [0.53125, 0.65625, 0.78125]))
    assert few["In short"] == "fedavg, until more seeds decide; b leads it by 0.031, in every seed."
    assert few["Highest accuracy"].endswith(
        "3 seeds do not show it (the same difference in every seed, sign test p = 0.25)."
    )
    many = say(method("fedavg", [0.5] * 9), method("b", [0.53125] * 9))
    assert many["Highest accuracy"].startswith("b, weakly: ") and many["Highest accuracy"].endswith(
        "sign test p = 0.004)."
    )
    assert many["Simplest that is not worse"].startswith("fedavg; ")


def test_local_only_may_be_better_or_not_shown_to_be_worse():
    base = method("fedavg", BASE)
    text = say(base, method("local-only", [], reference=True, own=FAR))["Is federating worth it"]
    assert text.startswith("not for clients that only meet data like their own; ") and "p < 0.001" in text
    near = [v + d for v, d in zip(BASE, (0.01, -0.01, 0.02, -0.005, 0.001), strict=True)]
    text = say(base, method("local-only", [], reference=True, own=near))["Is federating worth it"]
    assert text.startswith("not shown; ")


def test_diverged_methods_are_named_and_left_out():
    bad = method("b", [0.99], diverged={1: 7, 2: 4})
    bad.seeds = [0, 1, 2]
    text = say(method("fedavg", BASE[:3]), bad, method("c", [0.70, 0.73, 0.70]))
    assert text["Diverged"].startswith("b in 2 of 3 seeds (round 4); not judged")
    assert not text["Highest accuracy"].startswith("b") and " b " not in text["Highest accuracy"]
    lost = method("fedavg", [], diverged={0: 1, 1: 1})
    text = say(method("b", BASE[:2]), lost)
    assert text["In short"].startswith("b is the only method that got through; its accuracy is 0.7")
    assert say(lost, method("b", [], diverged={0: 3}))["In short"] == "no verdict; no method got through in every seed."


# ---------------------------------------------------------------- has anything been learned


def guess(value, seeds=3):
    return method("constant", [value] * seeds, reference=True)


def test_no_verdict_where_no_method_beats_a_constant_guess():
    text = say(method("fedavg", [0.60, 0.61, 0.62]), method("b", [0.63, 0.58, 0.60]), guess(0.62))
    assert text["In short"] == "no verdict; no method has learned anything here."
    assert (
        "the best accuracy of a method is 0.610 ± 0.010 (fedavg); the same answer for every sample has 0.620"
        in (text["What is wrong"])
    )
    assert text["What to try"].startswith("--tune 8") and set(text) == {"In short", "What is wrong", "What to try"}


def test_better_by_chance_is_not_better_than_a_constant_guess():
    text = say(method("fedavg", [0.60, 0.61, 0.62]), method("b", [0.66, 0.61, 0.60]), guess(0.60))
    assert text["In short"].startswith("no verdict")
    text = say(method("fedavg", [0.60, 0.61, 0.62]), method("b", [0.90, 0.91, 0.89]), guess(0.60))
    assert text["In short"].startswith("b, clearly better") and text["Learned nothing"].startswith("fedavg (0.610")


def test_the_same_gain_in_every_seed_beats_a_constant_guess_and_one_seed_need_only_be_better():
    assert not say(method("fedavg", [0.9] * 3), method("b", [0.9] * 3), guess(0.5))["In short"].startswith("no verdict")
    assert say(method("fedavg", [0.5]), guess(0.5, 1))["In short"].startswith("no verdict")
    text = say(method("fedavg", [0.6]), guess(0.5, 1))["In short"]
    assert text == "fedavg is the only method; its accuracy is 0.600, that of the same answer for every sample 0.500."


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
    assert "centralized lr=1 has 0.500" in text["Against all data in one place"]
    assert "training alone (local-only lr=1) 0.500" in text["Is federating worth it"]


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
