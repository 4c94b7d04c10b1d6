"""What a report's head says of a run."""

from types import SimpleNamespace

import pytest

from unalike.report import read


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([{"under_way": 3}], " with 15 clients at work"),
        ([{}, {}], " with 15 clients in each"),
        ([{}, {"under_way": 3}], ""),  # methods that wait beside one that does not: no words fit both
    ],
)
def test_clients_of_an_asynchronous_run_are_at_work(lines, words):
    config = {"run": {"clients_per_round": 15}}
    assert read._share([SimpleNamespace(config=config, facts={}, lines=[line]) for line in lines]) == words
