"""A clock that is off is named: the server refuses such a client as it would a stranger."""

import datetime

import pytest

from unalike.network.clock import clock_words

DATE, NOW = "Tue, 17 Nov 2026 04:00:00 GMT", datetime.datetime(2026, 11, 17, 4, tzinfo=datetime.UTC)


@pytest.mark.parametrize("seconds", [-299, -1, 0, 3])
def test_clocks_that_agree(seconds):
    assert clock_words(DATE, NOW + datetime.timedelta(seconds=seconds)) == ""


@pytest.mark.parametrize(("seconds", "words"), [(60, "60 s ahead of"), (-400, "400 s behind")])
def test_clocks_that_do_not(seconds, words):
    found = clock_words(DATE, NOW + datetime.timedelta(seconds=seconds))
    assert found == f"This machine's clock is {words} the server's: set both right."


@pytest.mark.parametrize("date", [None, "", "yesterday", "Tue, 99 Nov 2026 04:00:00 GMT"])
def test_an_answer_without_a_time(date):
    assert clock_words(date, NOW) == ""
