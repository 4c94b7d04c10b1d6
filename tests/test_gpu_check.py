"""benchmarks/gpu_check.py, without a GPU: the part on pictures goes through, NaN is no agreement, and what breaks off
is no success."""

import importlib.util
import math

import pytest
import torch
from paths import ROOT

import unalike as ua
from unalike.data.pixels import Held


@pytest.fixture
def check():
    spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "benchmarks" / "gpu_check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("factor", "wrong"), [(1.0, 0), (1.01, 8)])
def test_pictures(check, factor, wrong, monkeypatch):
    def here(*given, compile=False, **options):
        return simulate(*given, **{**options, "device": "cpu", "compile": False})

    simulate, read = ua.simulate, Held.read
    monkeypatch.setattr(ua, "simulate", here)
    monkeypatch.setattr(Held, "read", lambda self, rows=None: read(self, rows) * (1.0 if rows is None else factor))
    assert check.pictures() == wrong


def test_a_number_that_is_none_is_not_near(check):
    one = torch.ones(3)
    assert check.apart([one, 1.1 * one], [one, one]) == pytest.approx(0.1, rel=1e-5)
    for given in ([one, one * math.nan], [one * math.nan, one]):
        assert math.isnan(check.apart(given, [one, one]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pictures", "layers"], "there is no 'layers'"),
        (["methods", "3/2"], "a share is K/N"),
        (["methods", "a/2"], "a share is K/N"),
        (["methods", "1/2/3"], "a share is K/N"),
        (["methods", "1/2", "--processes", "2"], "leave K/N out"),
    ],
)
def test_what_does_not_exist_is_no_success(check, words, said, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpu_check.py", *words])
    with pytest.raises(SystemExit, match="2"):
        check.main()
    assert said in capsys.readouterr().err


def test_parts_side_by_side_are_summed_up(check, tmp_path, monkeypatch, capsys):
    """One part holds, one differs, one breaks off, one compares nothing: methods are dealt to two processes."""
    program = tmp_path / "parts.py"
    program.write_text(
        "import sys\n"
        "if sys.argv[1] == 'resume':\n    sys.exit()\n"
        "print('ok    a\\nok      b' if sys.argv[1] != 'reach' else 'ok a\\nWRONG b 1e-3', flush=True)\n"
        "sys.exit({'reach': 1, 'drift': 'it broke'}.get(sys.argv[1]))\n"
    )
    monkeypatch.setattr(check, "__file__", str(program))
    monkeypatch.setattr(check, "SHARED", {"methods": 2})
    assert check.side_by_side(["methods", "reach", "drift", "resume"], 2, 60.0) == 1
    assert capsys.readouterr().out.splitlines() == [
        "methods 1/2: 2 as on the CPU, 0 not", "methods 2/2: 2 as on the CPU, 0 not",
        "reach: 1 as on the CPU, 1 not; exit code 1", "  WRONG b 1e-3",
        "drift: 2 as on the CPU, 0 not; exit code 1", "  it broke",
        "resume: 0 as on the CPU, 0 not; nothing was compared", "3 of 5 WRONG or not ended",
    ]  # fmt: skip
    assert check.side_by_side(["methods"], 2, 60.0) == 0
    assert "all as on the CPU" in capsys.readouterr().out
