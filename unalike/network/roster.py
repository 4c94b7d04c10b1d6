"""The clients that a run began with: roster.json in its folder.

A resumed server must send clients the same plan as the first server did (the run's name comes from the plan), even if
other clients are connected now than at the beginning.
"""

from __future__ import annotations

import dataclasses as dc
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unalike.errors import UnalikeError
from unalike.files import replace
from unalike.run.callbacks import Callback
from unalike.run.run import Run

if TYPE_CHECKING:
    from unalike.network.server import Clients

ROSTER = "roster.json"


@dc.dataclass(frozen=True)
class Roster:
    """keys: hashes of the clients' keys; classes, preparation: as in the plan; begun: samples in each split of each
    client as counted at the beginning, including absent clients; sizes: as told by the clients, by name; once: drawn
    when the run began, so that a run of the same plan that begins later is another one."""

    keys: list[str]
    classes: int | None
    preparation: dict[str, Any] | None
    begun: list[dict[str, int]]
    sizes: dict[str, dict[str, int]]
    once: str = ""

    @classmethod
    def of(cls, folder: str | Path | None, keys: list[str]) -> Roster | None:
        """Return the roster of the run in this folder; None if there is none, or if other clients are registered."""
        file = None if folder is None else Path(folder) / ROSTER
        if file is None or not file.is_file():
            return None
        try:
            found = cls(**json.loads(file.read_text(encoding="utf-8")))
            every = [*found.sizes.values(), *found.begun]
            fits = len(found.begun) == len(found.keys) and all(sizes["train"] > 0 for sizes in every)
            fits = fits and isinstance(found.once, str)
        except (ValueError, TypeError, KeyError, AttributeError):
            fits = False
        if not fits:
            raise UnalikeError(f"{file} is not as a server wrote it: put it back, or begin in another folder.")
        return found if found.keys == keys else None


class KeepRoster(Callback):
    """Writes the roster when a run begins; a resumed run keeps the first one and adds clients that have come since."""

    def __init__(self, clients: Clients):
        self.clients = clients

    def on_start(self, run: Run) -> None:
        self._keep(run)

    def on_round(self, run: Run, line: dict[str, Any]) -> None:
        self._keep(run)

    def _keep(self, run: Run) -> None:
        clients, earlier = self.clients, self.clients.earlier
        sizes = {clients.names[k]: fact["sizes"] for k, fact in clients.facts.items()}
        now = dc.replace(clients.roster, sizes={**(earlier.sizes if earlier else {}), **sizes})
        if run.folder is not None and now != self._kept:
            with run.folder.writing():
                replace(run.folder.path / ROSTER, json.dumps(dc.asdict(now)).encode())
            self._kept = now

    _kept: Roster | None = None
