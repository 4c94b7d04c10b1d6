"""The constant guess, by hand and against the keys of a run; which metrics suit some data."""

import math

import pytest
import torch
from small import federation, run

import unalike as ua
from unalike.metrics import constant_scores, headline

NAMES = ["auc", "f1", "accuracy", "balanced_accuracy", "log_loss", "brier", "calibration_error"]


def pairs(labels):
    y = torch.tensor(labels)
    return torch.zeros(len(y), 5), y


def test_the_constant_guess_of_classes_by_hand():
    """Three of four training samples are of class 0: it is guessed everywhere, with probability 3/4."""
    tests = [pairs([0, 1]), pairs([0, 0])]
    data = ua.Federation.from_arrays([pairs([0, 0, 0, 1])] * 2, test=pairs([0, 0, 1]), client_tests=tests)
    line = constant_scores(data, NAMES)
    assert line["test_accuracy"] == pytest.approx(2 / 3) and line["test_auc"] == 0.5 and line["test_f1"] == 0
    assert line["test_balanced_accuracy"] == 0.5 and line["pooled_auc"] == 0.5
    assert line["test_log_loss"] == line["test_loss"] == pytest.approx(-(2 * math.log(3 / 4) + math.log(1 / 4)) / 3)
    assert line["test_brier"] == pytest.approx((2 * (1 / 4) ** 2 + (3 / 4) ** 2) / 3)
    assert line["clients_accuracy_mean"] == line["pooled_accuracy"] == 0.75
    assert line["clients_auc_mean"] == 0.5 and line["clients_auc_count"] == 1  # the second client has one class
    assert line["pooled_calibration_error"] == pytest.approx(0)
    single = constant_scores(data, NAMES, torch_bce, outputs=1)
    assert single["test_log_loss"] == pytest.approx(line["test_log_loss"]) and single["test_f1"] == 0


def torch_bce(output, y):
    return torch.nn.functional.binary_cross_entropy_with_logits(output[:, 0], y.to(output.dtype), reduction="none")


def test_the_constant_guess_of_numbers():
    x = torch.zeros(4, 5)
    y = torch.tensor([1.0, 2.0, 3.0, 6.0])
    data = ua.Federation.from_arrays([(x, y)] * 2, test=(x, y))
    line = constant_scores(data)
    assert line["test_rmse"] == pytest.approx(math.sqrt(3.5)) and line["test_mae"] == pytest.approx(1.5)
    assert line["test_r2"] == pytest.approx(0, abs=1e-9) and line["test_loss"] == pytest.approx(3.5)
    assert constant_scores(data, unit=(7.0, 2.0))["test_rmse"] == pytest.approx(2 * math.sqrt(3.5))


def test_its_line_has_the_keys_of_a_round():
    data = federation(validation=True)
    done = run(data=data, metrics=NAMES)
    line = constant_scores(data, NAMES)
    prefixes = ("test_", "pooled_", "clients_", "validation_")
    assert line.keys() == {key for key in done.history[-1] if key.startswith(prefixes)}
    some = constant_scores(data, NAMES, clients=done.evaluated_clients[:2])
    assert some["clients_accuracy_mean"] != line["clients_accuracy_mean"]
    assert some["test_accuracy"] == line["test_accuracy"]


def test_a_class_without_training_samples_keeps_the_loss_finite():
    data = ua.Federation.from_arrays([pairs([0, 0, 1])], test=pairs([0, 2]), classes=3)
    assert math.isfinite(constant_scores(data)["test_loss"])


# ---------------------------------------------------------------- which metrics


@pytest.mark.parametrize(
    ("counts", "first"),
    [
        ([5, 5], ["accuracy", "auc"]),
        ([8, 2], ["auc", "balanced_accuracy"]),
        ([79, 21], ["accuracy", "auc"]),
        ([8, 1, 1], ["balanced_accuracy", "auc"]),
        ([1] * 21, ["accuracy", "balanced_accuracy"]),
    ],
)
def test_the_headline_of_classes(counts, first):
    labels = [k for k, count in enumerate(counts) for _ in range(count)]
    names = headline(ua.Federation.from_arrays([pairs(labels)]))
    assert names[:2] == first and ("auc" in names) == (len(counts) <= 20)
    assert {"accuracy", "balanced_accuracy", "f1", "brier", "calibration_error"} <= set(names)


def test_the_headline_of_numbers():
    assert headline(ua.Federation.from_arrays([(torch.zeros(2, 3), torch.zeros(2))])) == ["rmse", "mae", "r2"]
