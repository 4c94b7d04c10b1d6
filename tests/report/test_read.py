"""What a report's head says of a run."""

from types import SimpleNamespace

import pytest

from unalike.report import read


@pytest.mark.parametrize(
    ("line", "words"), [({"under_way": 3}, " with 15 clients at work"), ({}, " with 15 clients in each")]
)
def test_clients_of_an_asynchronous_run_are_at_work(line, words):
    run = SimpleNamespace(config={"run": {"clients_per_round": 15}}, facts={}, lines=[line])
    assert read._share(run) == words
