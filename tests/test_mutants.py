"""The faults that benchmarks/mutants.py makes can still be made: code that moves takes its faults along."""

import importlib.util
import sys

import pytest
from paths import ROOT

FILE = ROOT / "benchmarks" / "mutants.py"


@pytest.fixture(scope="module")
def mutants():
    spec = importlib.util.spec_from_file_location("mutants", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # where its dataclass looks for itself
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutants"]


def test_every_fault_can_be_applied(mutants):
    assert not mutants.stale(mutants.faults())


def test_a_text_that_is_gone_or_there_twice_is_stale(mutants, tmp_path):
    (tmp_path / "code.py").write_text("a = 1\nb = 1\n")
    fault = mutants.Fault("X", "code.py", "", "a = 1", "a = 2", [])
    assert fault.applied(tmp_path) == "a = 2\nb = 1\n" and not mutants.stale([fault], tmp_path)
    for old in ("c = 1", " = 1"):
        assert mutants.stale([mutants.dc.replace(fault, old=old)], tmp_path) == [
            "X is stale: its text is not in code.py exactly once"
        ]
    assert mutants.stale([mutants.dc.replace(fault, tests=["t.py::test_it"])], tmp_path) == [
        "X names t.py::test_it, which is not there"
    ]


def test_every_method_has_two_faults(mutants):
    """Counted by the file; the server optimizers share theirs, and so do the reference lines."""
    import unalike as ua

    shared = {"fedopt.py": 2 * 4, "reference.py": 2 * 2}
    here = [fault.file for fault in mutants.faults() if not fault.equivalent]
    for kind in set(ua.METHODS.values()):
        file = f"unalike/methods/{kind.__module__.rpartition('.')[2]}.py"
        assert here.count(file) >= shared.get(file.rpartition("/")[2], 2), file
