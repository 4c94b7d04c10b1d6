"""The generated pages are up to date, links lead somewhere, and what pages name exists: files, modules, tests."""

import importlib.util
import pkgutil
import re

import pytest
from paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_method_pages_are_what_the_generator_gives_now():
    pytest.importorskip("rich")
    made = generator().pages()
    folder = ROOT / "docs" / "methods"
    there = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    stale = sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))
    assert not stale, f"{', '.join(stale)} in docs/methods/ are not what the methods say now: run `make docs`"


def test_the_page_of_stages_is_what_the_generator_gives_now():
    pytest.importorskip("rich")
    there = (ROOT / "docs" / "stages.md").read_text(encoding="utf-8")
    assert generator().stages() == there, "docs/stages.md is not what the stages say now: run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_relative_links_lead_to_a_file(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = [t.split("#")[0] for t in LINK.findall(text) if not re.match(r"[a-z]+:", t)]
    missing = [t for t in targets if t and not (page.parent / t).exists()]
    assert not missing, f"{page.relative_to(ROOT)} links to {', '.join(missing)}, which is not there"


def test_tests_named_in_the_readings_exist():
    named = set(re.findall(r"`(test_\w+)(?:\[[^\]]*\])?`", (ROOT / "docs" / "readings.md").read_text(encoding="utf-8")))
    numbers = {"test_accuracy", "test_cluster0_accuracy"}  # of a round's line
    files = (ROOT / "tests").rglob("*.py")
    there = {name for file in files for name in re.findall(r"^ *def (test_\w+)", file.read_text(), re.M)}
    assert named - numbers <= there, f"docs/readings.md names {sorted(named - numbers - there)}"
    assert len(named) > 10


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_files_and_modules_that_a_page_names_exist(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    files = re.findall(r"`((?:unalike|tests|benchmarks|docs|examples)/[\w./-]*)`", text)
    missing = [file for file in files if not (ROOT / file).exists()]
    assert not missing, f"{page.relative_to(ROOT)} names {', '.join(missing)}, which is not there"
    for name in re.findall(r"`(unalike(?:\.[a-zA-Z]\w*)+)", text):
        pkgutil.resolve_name(name)
