"""README's block of Python repeats in fresh processes, goes on after a kill, and is what the command line computes."""

import json
import re
import subprocess
import sys

import pytest
import torch
from paths import ROOT
from small import timeless

from unalike import config

KILLED = """
import os, signal, unalike as ua
class Die(ua.Callback):
    def on_round(self, run, line):
        if line["round"] == 4:
            os.kill(os.getpid(), signal.SIGKILL)
"""
END = "\nimport json; print(json.dumps(run.history))\n"
SAME = {
    "data": {"name": "digits", "partition": "dirichlet:0.1", "clients": 50, "seed": 0, "test": 0.2},
    "model": {"name": "mlp", "hidden": [32]},
    "method": {"name": "scaffold"},
    "local": {"epochs": 5, "batch_size": 10, "lr": 0.05},
    "run": {"rounds": 6, "clients_per_round": 0.2},
}


def block(**changes):
    """README's first block of Python, with six rounds and without what it shows afterwards."""
    text = re.search(r"^```python\n(.*?)^\)\n", (ROOT / "README.md").read_text(), re.S | re.M)[0]
    more = "".join(f"    {name}={value},\n" for name, value in changes.items())
    text = text.removeprefix("```python\n").replace("rounds=30", "rounds=6").removesuffix(")\n")
    assert "rounds=6" in text and "ua.simulate(" in text
    return f"{text}{more})\n"


def process(program, folder):
    return subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_killed_and_continued_in_fresh_processes_is_the_command_line_s_run(tmp_path):
    killed = process(KILLED + block(callbacks="[Die()]"), tmp_path)
    assert killed.returncode == -9, killed.stderr
    resumed = process(block(resume=True) + END, tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    torch.manual_seed(77)  # whatever was drawn before, in this process
    run = config.run(SAME)
    assert timeless(json.loads(resumed.stdout)) == timeless(run.history)
