"""Faults made by hand, applied one by one to a copy of the tree: which of them do the tests of their area catch?

    python benchmarks/mutants.py                 all in benchmarks/faults/
    python benchmarks/mutants.py M03 E02         these
    python benchmarks/mutants.py --list          id, file and what is wrong with it
    python benchmarks/mutants.py --check         only: is every fault's text still there, exactly once?

A fault has an id, a file, what is wrong with it, `old` (a text that is in the file exactly once), `new` in its place,
and an area, whose tests should catch it: it is caught when one of them fails (or does not end). One marked `equivalent`
cannot be seen from outside; it is listed and not counted. A file of faults names its areas' tests under [areas]; areas
of several files are in areas.toml. When code changes, repair the text of its faults: `--check` says which are stale.
Two copies work side by side.
Goal: at least 95 % are caught.
"""

import argparse
import dataclasses as dc
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAULTS = Path(__file__).with_name("faults")
PARTS = ("unalike", "tests", "docs", "examples", "README.md", "pyproject.toml", ".browser")
GOAL = 0.95
SECONDS = 180  # for the tests of one fault
BASELINE_SECONDS = 1800  # for all tests that are named, once, without a fault
PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not network")


@dc.dataclass(frozen=True)
class Fault:
    """A change of one place in one file, and the tests that should notice it."""

    id: str
    file: str
    what: str
    old: str
    new: str
    tests: list[str]
    equivalent: bool = False

    def applied(self, root: Path) -> str | None:
        """Return the file's text with the fault in it; None where the old text is not there exactly once."""
        path = root / self.file
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return text.replace(self.old, self.new) if text.count(self.old) == 1 and self.old != self.new else None


def faults() -> list[Fault]:
    """Return the faults of all files, in the order of their names."""
    tables = [tomllib.loads(file.read_text(encoding="utf-8")) for file in sorted(FAULTS.glob("*.toml"))]
    areas = [area for table in tables for area in table.get("areas", {}).items()]
    tests, faults = dict(areas), [fault for table in tables for fault in table.get("fault", [])]
    for names in ([name for name, _ in areas], [fault["id"] for fault in faults]):
        if twice := {name for name in names if names.count(name) > 1}:
            sys.exit(f"{FAULTS.name}: {', '.join(sorted(twice))} stand there twice.")
    return [Fault(tests=tests[fault.pop("area")], **fault) for fault in faults]


def stale(some: list[Fault], root: Path = ROOT) -> list[str]:
    """Return a line for every fault that cannot be applied, or that names a test file that is not there."""
    lines = [f"{f.id} is stale: its text is not in {f.file} exactly once" for f in some if f.applied(root) is None]
    for fault in some:
        gone = [test for test in fault.tests if not (root / test.split("::")[0]).exists()]
        lines += [f"{fault.id} names {test}, which is not there" for test in gone]
    return lines


def copied(source: Path, target: Path) -> Path:
    """Copy the parts of the tree that tests need. (Compiled files come along from a copy: they fit its sources.)"""
    ignored = shutil.ignore_patterns("__pycache__") if source == ROOT else None
    for name in PARTS:
        if name == ".browser" and (source / name).exists():
            (target / name).symlink_to((source / name).resolve())
        elif (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=ignored)
        elif (source / name).exists():
            shutil.copy2(source / name, target / name)
    return target


def tested(tree: Path, tests: list[str], seconds: float, *more: str) -> tuple[int | None, str]:
    """Run tests in a tree: (exit code, None when they did not end; what was printed)."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *PYTEST, *more, *tests]
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and whatever its tests started
            process.wait()
        out.seek(0)
        return code, out.read()


def verdict(fault: Fault, base: Path) -> tuple[str, str]:
    """Return ("caught", the test), ("survived", "") or ("broken", why) for one fault."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = copied(base, Path(folder))
        text = fault.applied(tree)
        assert text is not None
        (tree / fault.file).write_text(text, encoding="utf-8")
        code, said = tested(tree, fault.tests, SECONDS)
    if code is None:
        return "caught", f"its tests did not end in {SECONDS} s"
    if code == 0:
        return "survived", ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", said, re.MULTILINE)
    if code == 1 and failed:
        return "caught", failed[1].removeprefix("tests/")
    return "broken", (said.strip().splitlines() or [f"pytest ended with {code}"])[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", help="the faults to try (default: all)")
    parser.add_argument("--list", action="store_true", help="list the faults and end")
    parser.add_argument("--check", action="store_true", help="check that every fault can be applied and end")
    parser.add_argument("--processes", type=int, default=2, help="copies that work side by side (default: 2)")
    args = parser.parse_args()
    some = faults()
    if unknown := set(args.ids) - {fault.id for fault in some}:
        sys.exit(f"There is no fault {', '.join(sorted(unknown))}: see --list.")
    some = [fault for fault in some if not args.ids or fault.id in args.ids]
    if args.list:
        for fault in some:
            print(f"{fault.id:5} {fault.file:38} {fault.what}{' (equivalent)' if fault.equivalent else ''}")
        return 0
    if lines := stale(some):
        print("\n".join(lines))
        return 1
    counted = [fault for fault in some if not fault.equivalent]
    print(f"{len(counted)} faults can be applied, {len(some) - len(counted)} more are equivalent", flush=True)
    return 0 if args.check else tried(counted, args.processes)


def tried(counted: list[Fault], processes: int) -> int:
    """Try these faults, print what became of each, and return the exit code."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        base = copied(ROOT, Path(folder))
        selection = sorted({test for fault in counted for test in fault.tests})
        code, said = tested(base, selection, BASELINE_SECONDS, "-n", str(processes))
        if code:
            print(f"Without any fault these tests fail already:\n{said[-3000:]}")
            return 1
        print(f"without any fault all tests pass ({time.perf_counter() - began:.0f} s)", flush=True)
        ends: list[str] = []
        with ThreadPoolExecutor(processes) as pool:
            for fault, (end, why) in zip(counted, pool.map(lambda fault: verdict(fault, base), counted), strict=True):
                ends.append(end)
                word = end if end == "caught" else end.upper()
                print(f"{fault.id:4} {word:8}  {fault.file}: {fault.what}{why and f' [{why}]'}", flush=True)
    share = ends.count("caught") / max(1, len(ends))
    print(f"caught {ends.count('caught')} of {len(ends)} ({100 * share:.0f} %), {time.perf_counter() - began:.0f} s")
    return 0 if share >= GOAL and "broken" not in ends else 1


if __name__ == "__main__":
    sys.exit(main())
