"""Killing the process at any moment loses at most the rounds since the last checkpoint, and changes no result."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from killing import ROUNDS, go
from paths import ROOT
from small import assert_same, logged, timeless


def start(*args):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, ROOT / "tests/killing.py", *map(str, args)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def answer(process):
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return json.loads(out)


@pytest.mark.slow
def test_ten_kills_at_random_moments(tmp_path):
    result = answer(start("random", tmp_path))
    codes, rounds = zip(*result["kills"], strict=True)
    unfinished = [r for code, r in zip(codes, rounds, strict=True) if code == -signal.SIGKILL and r < ROUNDS]
    assert len(unfinished) >= 7 and len(set(unfinished)) >= 4, result
    assert list(rounds) == sorted(rounds) and result["last"] == 0
    assert_same(go(tmp_path / "whole"), go(tmp_path / "killed"))
    assert timeless(logged(tmp_path / "whole")) == timeless(logged(tmp_path / "killed"))
    assert len(logged(tmp_path / "killed")) == ROUNDS


@pytest.mark.slow
def test_a_kill_at_every_use_of_the_disk(tmp_path):
    """Two rounds with checkpoints before and after them write seven files and the log, and remove one; loopback also
    writes and keeps the states of two clients in each round."""
    for engine, more in answer(start("steps", tmp_path)).items():
        least = {"before replace": 7 + 8 * (engine == "loopback"), "half written": 8, "before unlink": 1}
        assert more.keys() == least.keys() and all(more[fault] >= least[fault] for fault in least), (engine, more)


@pytest.mark.slow
def test_a_program_killed_in_the_middle(tmp_path):
    process = start("run", tmp_path / "killed")
    log = tmp_path / "killed/rounds.jsonl"
    until = time.monotonic() + 60
    while not (log.exists() and log.read_bytes().count(b"\n") >= 20):
        assert process.poll() is None and time.monotonic() < until, process.communicate()[1]
        time.sleep(0.001)
    process.kill()
    process.communicate()
    done = len(logged(tmp_path / "killed"))
    assert process.returncode == -signal.SIGKILL and 20 <= done < ROUNDS
    assert_same(go(tmp_path / "whole"), go(tmp_path / "killed"))
