"""docs/threat-model.md: every finding is there, and every test that the page names exists."""

import re

from paths import ROOT, TESTS

PAGE = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")


def there():
    """The names of all tests in the tree."""
    files = TESTS.rglob("test_*.py")
    return {name for file in files for name in re.findall(r"^def (test_\w+)\(", file.read_text("utf-8"), re.MULTILINE)}


def test_every_test_that_the_page_names_exists():
    named = re.findall(r"`(test_\w+)`", PAGE)
    assert len(named) > 40
    assert not {*named} - there()


def test_every_finding_has_a_measure_and_a_test():
    rows = re.findall(r"^\| (\d+) [^|]+ \| [^|]+ \| ([^|]+) \|$", PAGE, re.MULTILINE)
    assert [int(number) for number, _ in rows] == [*range(1, 23)]
    assert all("`test_" in tests for _, tests in rows)
