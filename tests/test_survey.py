"""docs/survey.md against the registries: every line of the survey is there, and every name on the page exists."""

import re
from collections import Counter

import pytest
from paths import ROOT

import unalike as ua
from unalike.channel.stages import STAGES
from unalike.cli import COMMANDS
from unalike.config import NAMES
from unalike.methods import METHODS

PAGE = ROOT / "docs" / "survey.md"
KINDS = {
    "method": METHODS,
    "stage": STAGES,
    "partition": ua.partition.PARTITIONS,
    "skew": ua.skew.CHANGES,
    "model": ua.models.MODELS,
    "data": NAMES["data"],
    "vertical": ua.vertical.METHODS,
    "command": COMMANDS,
}
SECTIONS = [8, 10, 11, 8, 24, 9, 8, 7]  # six of techniques, the skews, the models
NAMED = re.compile(r"(\w+) `([^`]+)`")


def rows():
    """Every line of the tables: section, name, where, what to know."""
    out, section = [], ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        section = line.removeprefix("## ") if line.startswith("## ") else section
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("| ") else []
        if cells and cells[1] != "where":
            out.append((section, cells[0], cells[1], cells[2].rstrip("| ")))
    return out


def test_every_line_of_the_survey_is_there():
    counted = Counter(section for section, *_ in rows())
    assert [*counted.values()] == SECTIONS and sum(SECTIONS[:6]) == 70
    assert all(section.endswith(f"({count})") for section, count in counted.items())
    assert len({(section, name) for section, name, *_ in rows()}) == sum(SECTIONS)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[1])
def test_what_is_said_to_be_there_is_there(row):
    _, name, where, note = row
    if where == "–":
        assert len(note) > 20, f"{name}: why is it not there?"
        return
    assert where == ", ".join(f"{kind} `{what}`" for kind, what in NAMED.findall(where)), where
    for kind, what in NAMED.findall(where):
        known = (ROOT / what).is_file() if kind == "file" else what in KINDS[kind]
        assert known, f"{name}: there is no {kind} {what!r}"


def test_a_registered_name_is_not_said_to_be_missing():
    """What has been built since must be on the page."""
    missing = " ".join(name.lower() for _, name, where, _ in rows() if where == "–")
    for name in (*METHODS, *STAGES, *ua.vertical.METHODS):
        assert not re.search(rf"\b{re.escape(name)}\b", missing), name
