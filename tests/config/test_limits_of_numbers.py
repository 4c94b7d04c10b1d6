"""Numbers that cannot be are refused when a config is checked, not when its run begins."""

import pytest
from small import refused

from unalike import config


def checked(**changes):
    tables = {"data": {"name": "digits", "partition": "iid", "clients": 4}, "run": {"rounds": 1}}
    for place, value in changes.items():
        table, _, name = place.partition("_")
        tables[table][name] = value
    return config.check(tables)


@pytest.mark.parametrize(
    ("place", "least"),
    [
        ("data_clients", 1), ("data_seed", 0), ("data_test", 0), ("data_validation", 0), ("run_rounds", 0),
        ("run_seed", 0), ("run_checkpoint_every", 1), ("run_evaluate_every", 1), ("run_state_memory", 0),
    ],
)  # fmt: skip
def test_the_least_of_each(place, least):
    checked(**{place: least})
    table, _, name = place.partition("_")
    with refused(rf"\[{table}\] {name} must be at least {least}; got {least - 1}"):
        checked(**{place: least - 1})


@pytest.mark.parametrize(("place", "engine"), [("workers", "workers"), ("clients_at_once", "batched")])
def test_the_least_of_an_engines_options(place, engine):
    checked(run_engine=engine, **{f"run_{place}": 1})
    with refused(rf"\[run\] {place} must be at least 1; got 0"):
        checked(run_engine=engine, **{f"run_{place}": 0})


@pytest.mark.parametrize(("test", "validation"), [(0.5, 0.5), (0.75, 0.25), (0.0, 1.0), (1.0, 0.0), (0.7, 0.6)])
def test_something_is_left_to_train_on(test, validation):
    with refused("test and validation must leave something to train on: together less than 1"):
        checked(data_test=test, data_validation=validation)


def test_half_and_a_quarter_leave_a_quarter():
    checked(data_test=0.5, data_validation=0.25)
