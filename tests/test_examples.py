"""The examples of examples/, run: small where they can be made small, as they stand in `make acceptance`."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

HOME = ROOT / "examples"


def example(name):
    """The functions of an example, without what it does when it is run."""
    return runpy.run_path(str(HOME / f"{name}.py"))


@pytest.mark.filterwarnings("ignore:.*missing")
def test_hospitals(tmp_path, capsys):
    parts = example("hospitals")
    file = tmp_path / "patients.csv"
    parts["write_patients"](file, rows=40)
    parts["from_python"](file)
    assert "a patient of 71: ['ill']" in capsys.readouterr().out
    code = parts["as_a_command"](file, tmp_path / "out", "--rounds", "3", "--seeds", "1", "--no-references", "-q")
    assert code in (0, 3) and (tmp_path / "out/report.html").exists()


def test_own_model_and_method():
    run, best = example("own_model_and_method")["train"](rounds=2)
    last = run.history[-1]
    assert best.round in (1, 2) and 0 < last["test_sure"] < 1 and "Gentle" in repr(run)


def test_sweep(tmp_path):
    parts = example("sweep")
    found = parts["sweep"](rounds=1, seeds=1)
    parts["write"](found, tmp_path)
    assert len(found) == 9 and (tmp_path / "sweep.csv").read_text().count("\n") == 10
    assert (tmp_path / "sweep.svg").read_text().count("<polyline") == 3


def test_personal_and_private():
    parts = example("personal_and_private")
    assert set(parts["personal"](rounds=1)) == {"one model", "own models", "alone"}
    lines = parts["private"](rounds=2).history
    assert 0 < lines[0]["epsilon"] < lines[1]["epsilon"]


def test_the_notebook(capsys):
    cells = json.loads((HOME / "first_steps.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            exec("".join(cell["source"]).replace("rounds=10", "rounds=1"), names)
    assert set(names["runs"]) == {"FedAvg", "SCAFFOLD"} and len(names["found"].labels) == 5


def test_every_example_is_in_the_list():
    listed = (HOME / "README.md").read_text(encoding="utf-8")
    for path in (p for p in HOME.iterdir() if p.name != "__pycache__"):
        assert path.name == "README.md" or f"]({path.name}" in listed, path.name


@pytest.mark.slow
@pytest.mark.parametrize("name, more", [("hospitals", []), ("own_model_and_method", ["--prove"]), ("sweep", []),
                                        ("personal_and_private", [])])  # fmt: skip
def test_as_they_stand(name, more, tmp_path):
    words = [sys.executable, str(HOME / f"{name}.py"), *more]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 3) if name == "hospitals" else done.returncode == 0, done.stderr
    assert done.stdout and (name != "sweep" or Path(tmp_path / "sweep.svg").exists())
