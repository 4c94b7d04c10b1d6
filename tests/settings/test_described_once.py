"""A setting is described in one place, and a method is one file: everything else reads it from there."""

import dataclasses as dc
import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import unalike as ua
from unalike import config
from unalike.comparison import tune
from unalike.data.sources import FEDERATIONS, SOURCES
from unalike.engines.choose import OPTIONS
from unalike.models import MODELS
from unalike.run.settings import RunSettings
from unalike.settings import typed
from unalike.settings.knobs import NONE, check, knobs
from unalike.training.settings import LocalTraining

METHOD = '''"""Toy: a method of one file.

It is FedAvg with a spring.
"""
import dataclasses as dc

from unalike.contract import Field, Method, knob


@dc.dataclass(frozen=True)
class Toy(Method):
    pluck: float = knob(0.5, "how hard the spring is plucked", least=0, below=2, tune=(0.25, 1.0))
    tone: str = knob("low", "of the spring", choices=("low", "high"), tune=["low", "high"])
    shares: str = knob("uniform", "of clients in the mean", choices=("samples", "uniform"))

    name = "toy-spring"
    sends = {"delta": Field(weight="shares")}

    def __post_init__(self):
        if self.pluck > 1 and self.tone == "low":
            raise ValueError("too low")
'''
SETTING = '    toy_rounds: int = knob(3, "rounds of play", least=1, how=True)\n'
LOOK = """
import contextlib, io, inspect, json, sys
import unalike as ua
from unalike import config
from unalike.cli import main
from unalike.comparison import tune
from unalike.reproduce.define import HOW

def said(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(SystemExit):
        main(list(words))
    return " ".join(out.getvalue().split())

def wrong(table, **values):
    tables = {"data": {"name": "digits"}, "run": {"rounds": 1}, "method": {"name": "toy-spring"}}
    tables[table] = tables[table] | values
    try:
        config.check(tables)
    except ua.UnalikeError as error:
        return str(error)

json.dump({
    "file": ua.__file__, "schema": config.schema(), "help": said("run", "--help"), "list": said("list", "methods"),
    "detail": said("list", "method", "toy-spring"), "class": ua.Toy.__name__, "all": ua.__all__, "dir": dir(ua),
    "trials": tune.trials({"name": "toy-spring"}, False, 20, 0), "weight": ua.Toy.sends["delta"].weighting(ua.Toy()),
    "signature": list(inspect.signature(ua.simulate).parameters), "doc": ua.simulate.__doc__, "how": sorted(HOW),
    "method": [wrong("method", pluck=-1), wrong("method", pluck=2.0), wrong("method", tone="x"), wrong("method")],
    "run": [wrong("run", toy_rounds=0), wrong("run", toy_rounds="x"), wrong("run", toy_round=1)],
    "flags": said("run", "--data", "digits", "--rounds", "1", "--toy-rounds", "0", "--method", "toy-spring"),
    "flag": said("run", "--data", "digits", "--rounds", "1", "--pluck", "-1", "--method", "toy-spring"),
}, sys.stdout)
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What a copy of the package says that has one more file, and one more line."""
    pytest.importorskip("rich")
    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(Path(ua.__file__).parent, copy / "unalike", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "unalike/methods/toy.py").write_text(METHOD)
    file = copy / "unalike/run/settings.py"
    before, found, after = file.read_text().partition("    device: str = knob(")
    file.write_text(before + SETTING + found + after)
    paths = os.pathsep.join([str(copy), os.environ.get("PYTHONPATH", "")])
    given = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", LOOK], cwd=copy, env=given, capture_output=True, text=True, check=True)
    out = json.loads(done.stdout)
    assert out["file"].startswith(str(copy))
    return out


def test_a_method_is_one_file(seen):
    assert seen["class"] in seen["all"] and seen["class"] in seen["dir"]
    assert "toy-spring" in seen["list"] and "how hard the spring is plucked" in seen["detail"]
    assert "--pluck X how hard the spring is plucked (toy-spring) [0.5]" in seen["help"]
    assert "--tone TEXT of the spring: low, high (toy-spring) [low]" in seen["help"]
    assert seen["weight"] == "one"
    assert seen["method"] == [
        "Toy pluck must lie in [0, 2); got -1.",
        "Toy pluck must lie in [0, 2); got 2.0.",
        "Toy tone must be 'low' or 'high'; got 'x'.",
        None,
    ]
    assert seen["flag"] == "unalike: Toy pluck must lie in [0, 2); got -1."
    table = seen["schema"]["properties"]["method"]
    assert table["properties"]["pluck"] == {
        "type": "number", "description": "how hard the spring is plucked", "default": 0.5
    }  # fmt: skip
    (rule,) = [
        r["then"] for r in table["allOf"] if r["if"].get("properties", {}).get("name") == {"const": "toy-spring"}
    ]
    assert rule["properties"]["pluck"] == {"minimum": 0} and rule["properties"]["tone"] == {"enum": ["low", "high"]}
    drawn = [trial["method"] for trial in seen["trials"][1:]]
    assert all(0.25 <= values["pluck"] <= 1 for values in drawn) and {v["tone"] for v in drawn} == {"low", "high"}
    assert "shares" not in drawn[0]


def test_a_setting_of_a_run_is_one_line(seen):
    assert "toy_rounds" in seen["signature"] and "toy_rounds: rounds of play" in seen["doc"]
    assert "--toy-rounds N rounds of play [3]" in seen["help"]
    assert seen["schema"]["properties"]["run"]["properties"]["toy_rounds"] == {
        "type": "integer", "minimum": 1, "description": "rounds of play", "default": 3
    }  # fmt: skip
    assert "toy_rounds" in seen["how"]
    assert seen["run"] == [
        "[run] toy_rounds must be at least 1; got 0.",
        "[run] toy_rounds must be a whole number; got 'x'.",
        "[run] has no setting 'toy_round'. Did you mean 'toy_rounds'?",
    ]
    assert seen["flags"] == "unalike: [run] toy_rounds must be at least 1; got 0."


def test_a_file_of_one_s_own_has_bounds_words_and_ranges(tmp_path):
    (tmp_path / "own.py").write_text(METHOD)
    table = {"file": f"{tmp_path}/own.py:Toy"}
    setting = config.method_settings(table)["pluck"]
    assert setting.hint is float and setting.default == 0.5 and setting.knob.words == "how hard the spring is plucked"
    tables = {"data": {"name": "digits"}, "run": {"rounds": 1}}
    config.check(tables | {"method": {**table, "pluck": 1.0}})
    with pytest.raises(ua.UnalikeError, match=r"^Toy pluck must lie in \[0, 2\); got 3.$"):
        config.check(tables | {"method": {**table, "pluck": 3}})
    with pytest.raises(ua.UnalikeError, match="too low"):  # its own __post_init__ comes after that
        config.check(tables | {"method": {**table, "pluck": 1.5}})
    assert tune.ranges(table) == {"pluck": (0.25, 1.0), "tone": ["low", "high"]}
    assert tune.ranges({**table, "tone": "low"}) == {"pluck": (0.25, 1.0)}


@pytest.mark.parametrize("cls", [*ua.METHODS.values(), RunSettings, LocalTraining], ids=lambda cls: cls.__name__)
def test_every_setting_has_a_knob_with_words_and_a_good_default(cls):
    assert set(knobs(cls)) == {f.name for f in dc.fields(cls)}
    for field in dc.fields(cls):
        knob = knobs(cls)[field.name]
        assert knob.words and "\n" not in knob.words
        if field.default is not dc.MISSING:
            check("", field.name, field.default, knob, optional=True)


def test_every_knob_has_words():
    for table in config.TABLES:
        for found in config.tables.uses(table).values():
            assert all(setting.knob == NONE or setting.knob.words for setting, _ in found)
    assert all(option.knob.words for name, option in OPTIONS.items() if name not in ("remote", "turns"))


def test_a_method_has_a_name_of_its_own():
    assert {cls.name: cls for cls in ua.METHODS.values()} == ua.METHODS
    assert all(getattr(ua, cls.__name__) is cls and cls.__name__ in ua.__all__ for cls in ua.METHODS.values())
    with pytest.raises(AttributeError, match="no attribute 'Scafold'"):
        ua.Scafold  # noqa: B018 (reading it is the mistake)


def test_simulate_shows_all_settings_of_a_run():
    shown = inspect.signature(ua.simulate).parameters
    assert {f.name for f in dc.fields(RunSettings)} <= set(shown)
    assert shown["rounds"].default is inspect.Parameter.empty and shown["engine"].default == "auto"
    assert all(f"{name}: {knob.text}" in ua.simulate.__doc__ for name, knob in knobs(RunSettings).items())
    with pytest.raises(TypeError, match="rounds"):
        ua.simulate(None, ua.load("digits").split(clients=3), ua.FedAvg())


@pytest.mark.parametrize("owners", [MODELS, {**SOURCES, **FEDERATIONS}, ua.METHODS], ids=["models", "data", "methods"])
def test_every_option_has_words(owners):
    assert not [(n, o) for n, owner in owners.items() for o, s in typed.hints(owner).items() if not s.knob.words]
