"""docs/three-hospitals.md: its commands are run as they stand, in folders in the place of machines."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys

import numpy as np
import pytest
from paths import ROOT

from unalike import cli

PAGE = ROOT / "docs" / "three-hospitals.md"
LINE = re.compile(r"^(\w+)\$ (.+)$", re.MULTILINE)
SECONDS = 500  # for one step, on a machine that is busy
LASTING = ("serve", "join")  # commands that run side by side


def steps():
    """The page's blocks, each as pairs of a machine and a command."""
    blocks = re.findall(r"^```\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [LINE.findall(block) for block in blocks]


def test_the_page_goes_from_simulation_to_prediction():
    words = [shlex.split(command)[:2] for block in steps() for _, command in block]
    verbs = [second for first, second in words if first == "unalike"]
    for verb in ("run", "report", "data", "keys", "serve", "join", "status", "audit", "predict"):
        assert verb in verbs
    assert verbs.count("join") == 6 and {machine for block in steps() for machine, _ in block} == {*MACHINES}


MACHINES = ("laptop", "server", "a", "b", "c")


def rows(rng, count):
    age, dose = rng.integers(20, 90, count), rng.normal(5, 2, count).round(2)
    sex = rng.choice(["f", "m"], count)
    outcome = np.where(age / 90 + dose / 10 + (sex == "m") * 0.2 + rng.normal(0, 0.2, count) > 1.2, "ill", "well")
    return [f"{a},{d},{s},{o}" for a, d, s, o in zip(age, dose, sex, outcome, strict=True)]


def furnish(home):
    """Give every machine its folder and its patients."""
    rng, everybody = np.random.default_rng(0), []
    for name in MACHINES:
        (home / name).mkdir()
    for name in "abc":
        own = rows(rng, 80)
        (home / name / "patients.csv").write_text("age,dose,sex,outcome\n" + "\n".join(own) + "\n")
        everybody += [f"{row},hospital-{name}" for row in own]
        (home / name / "new.csv").write_text("age,dose,sex\n61,5.5,f\n33,2.0,m\n")
    (home / "laptop/patients.csv").write_text("age,dose,sex,outcome,hospital\n" + "\n".join(everybody) + "\n")


def started(home, machine, command, port):
    """Start a command that lasts as a process."""
    words = [sys.executable, "-m", "unalike", *shlex.split(command.replace("8443", str(port)))[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        words, cwd=home / machine, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ended(process, command):
    out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, f"{command}: {out}"


def done(command, capsys):
    """Run a command that ends at once, here; return what it prints."""
    words = shlex.split(command)
    if words[0] == "cp":
        for file in words[1:-1]:
            shutil.copy(file, words[-1])
        return ""
    assert cli.main(words[1:]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.slow
def test_its_commands_run_as_they_stand(tmp_path, monkeypatch, capsys):
    furnish(tmp_path)
    printed = {}
    for block in steps():
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        lasting = []
        try:
            for machine, command in block:
                if command.split()[1] in LASTING:
                    lasting.append((started(tmp_path, machine, command, port), command))
                    continue
                monkeypatch.chdir(tmp_path / machine)
                printed[command] = done(command, capsys)
            for process, command in lasting:
                ended(process, command)
        finally:
            for process, _ in lasting:
                process.kill()
    lines = (tmp_path / "server/run/rounds.jsonl").read_text().splitlines()
    assert len(lines) == 5
    assert re.search("well|ill", printed["unalike predict model.unalike new.csv"])
    assert "delta" in printed["unalike audit state"]
