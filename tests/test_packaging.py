"""The wheel: what is in it runs with what it says it needs, and its page on an index has no dead links."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile

from paths import ROOT
from test_core_only import process, site_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
COMMANDS = """
from unalike.cli import main
for words in ("--version", "list", "run --table t.csv --client site --label y --rounds 1 --folder out", "demo"):
    print(words, "->", main(words.split()))
"""


def wheel(folder):
    """Build the wheel from a copy: a build leaves its own files beside the sources."""
    source = folder / "source"
    skip = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(ROOT / "unalike", source / "unalike", ignore=skip)
    (source / "docs").mkdir()
    for name in ("pyproject.toml", "LICENSE", PROJECT["readme"]):
        shutil.copy(ROOT / name, source / name)
    done = subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def test_the_command_works_with_the_plain_dependencies(tmp_path):
    needs = [re.match(r"[\w-]+", need)[0] for need in PROJECT["dependencies"]]
    site = site_of(needs, tmp_path / "site")
    with zipfile.ZipFile(wheel(tmp_path)) as files:
        files.extractall(site)
        metadata = next(files.read(name).decode() for name in files.namelist() if name.endswith("METADATA"))
    rows = [f"{'ab'[k % 2]},{'yn'[k // 2 % 2]},{k}" for k in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["site,y,x", *rows]))
    done = process(site, COMMANDS, cwd=tmp_path)
    codes = dict(re.findall(r"^(\S+)(?: .*)? -> (\d)$", done.stdout, re.M))
    assert codes == {"--version": "0", "list": "0", "run": "0", "demo": "2"}, done.stderr
    assert "needs scikit-learn, which is missing: pip install 'unalike[app]'." in done.stderr
    assert (ROOT / PROJECT["readme"]).read_text().splitlines()[0] in metadata


def test_the_page_of_an_index_has_no_relative_links():
    links = re.findall(r"\]\(([^)]*)\)|(?:src|href)=\"([^\"]*)\"", (ROOT / PROJECT["readme"]).read_text())
    assert all("".join(link).startswith("https://") for link in links), links


def test_versions_of_python_that_are_named():
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if c.startswith("Programming Language")]
    assert named == ["3.11", "3.12", "3.13"] and PROJECT["requires-python"] == ">=3.11"
