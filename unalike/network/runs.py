"""The runs of a client: the current one, and the records of earlier ones."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

from unalike.errors import UnalikeError
from unalike.files import replace
from unalike.network.policy import Policy

RUN_ID = re.compile(r"[0-9a-f]{16}")
FILE, PLAN = "runs.json", "plan.json"


class Runs:
    """The runs that a client's folder knows, the current one last; only that one is answered."""

    def __init__(self, folder: Path):
        self.folder = folder
        plain = _read(folder / FILE) or {}
        names, total = plain.get("runs", []), plain.get("total", 0)
        self.names = [name for name in names if isinstance(name, str) and RUN_ID.fullmatch(name)]
        self.total = total if type(total) is int else len(self.names)

    @property
    def current(self) -> str | None:
        """Return the run that was planned last."""
        return self.names[-1] if self.names else None

    def check(self, run: str, policy: Policy) -> None:
        """Refuse a run beyond the number that the policy allows."""
        if run not in self.names and policy.max_runs is not None and self.total >= policy.max_runs:
            raise UnalikeError(f"This client has taken part in {self.total} runs, and does so at most (max_runs).")

    def begin(self, run: str, plan: Any, policy: Policy) -> None:
        """Make this run the current one, keep its plan, and forget runs that are too old."""
        text = json.dumps(plan)
        kept = {"plan": plan, "sha256": hashlib.sha256(text.encode()).hexdigest()}
        replace(self.folder / run / PLAN, json.dumps(kept).encode(), mode=0o600)
        self.total += run not in self.names
        self.names = [name for name in self.names if name != run] + [run]
        old, self.names = self.names[: -policy.keep_runs], self.names[-policy.keep_runs :]
        replace(self.folder / FILE, json.dumps({"runs": self.names, "total": self.total}).encode(), mode=0o600)
        for name in old:
            if not (self.folder / name).is_symlink():
                shutil.rmtree(self.folder / name, ignore_errors=True)

    def plan(self, run: str) -> Any:
        """Return the kept plan of the current run."""
        if self.current is not None and run != self.current:
            raise UnalikeError(f"This client answers one run at a time, now {self.current}, and not {run}.")
        file = self.folder / run / PLAN
        if not file.exists():
            raise UnalikeError(
                f"This client has nothing of the run {run}: {self.folder} is new, or not the folder that it began "
                "with. Put that back (--state), or begin a new run."
            )
        kept = _read(file) or {}
        if hashlib.sha256(json.dumps(kept.get("plan")).encode()).hexdigest() != kept.get("sha256"):
            raise UnalikeError(f"{file} is not what was written: put the right folder back, or begin a new run.")
        return kept["plan"]


def _read(file: Path) -> dict[str, Any] | None:
    """Return the table in a JSON file; None if there is none that can be read."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
