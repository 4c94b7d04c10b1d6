"""Start a method of your own: a file that already passes the contract tests,
and the test beside it.

  unalike new gentle
  python -m pytest test_gentle.py
  unalike run --data digits --method gentle.py:Gentle --strength 0.5 --rounds 10
"""

from __future__ import annotations

import argparse
import importlib.util
import keyword
from pathlib import Path

from unalike.cli import show
from unalike.errors import UnalikeError

METHOD = '''"""{Class}: say what it is in one sentence, with the paper it comes from.

The equation, how it differs from FedAvg, and known traps belong here.
"""

import dataclasses

from unalike import Method, knob


@dataclasses.dataclass(frozen=True)
class {Class}(Method):
    strength: float = knob(0.1, "how strongly a client is held to the received model", least=0, tune=(1e-3, 1.0))

    def client(self, me, s, m):
        """One client: train from the received model, its gradient plus strength·(θ − w)."""
        return me.train(m.w, pull=self.strength, push=-self.strength * m.w).then(self.done)

    def done(self, me, s, m, theta):
        """(what this client keeps, what it sends)"""
        return {{}}, {{"delta": theta - m.w}}

    def round(self, server, cohort):
        """The server: call the clients, read the weighted mean of what they sent."""
        server.w = server.w + cohort.call(self.client, w=server.w).mean("delta")
'''
TEST = """from {name} import {Class}

from unalike.testing import check_method


def test_{name}_keeps_the_contract(capsys):
    with capsys.disabled():  # so that it says what it checks while it runs
        check_method({Class}(strength=0.5), off={Class}(strength=0.0), say=print)
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the method's name, as a file is called")


def main(args: argparse.Namespace) -> int:
    name = args.name.replace("-", "_").lower()
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UnalikeError(f"unalike new: {args.name!r} cannot name a Python file; use letters, digits and _.")
    words = {"name": name, "Class": "".join(part.capitalize() for part in name.split("_"))}
    files = {Path(f"{name}.py"): METHOD, Path(f"test_{name}.py"): TEST}
    for file in files:
        if file.exists():
            raise UnalikeError(f"unalike new: {file} exists already; choose another name.")
    if importlib.util.find_spec(name) is not None:
        raise UnalikeError(f"unalike new: {name}.py would hide the Python module {name!r}; choose another name.")
    for file, text in files.items():
        file.write_text(text.format(**words), encoding="utf-8")
    test = f"python -m pytest test_{name}.py"
    run = f"unalike run --data digits --method {name}.py:{words['Class']} --rounds 10"
    text = "" if args.quiet else f"written:  {name}.py and test_{name}.py\ntest it:  {test}\nrun it:   {run}"
    return show.answer(args, {"files": [str(file) for file in files], "test": test, "run": run}, text)
