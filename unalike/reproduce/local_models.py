"""Means of local models, as FedDyn's and FedDC's programs evaluate them beside the global model.

    sel   the mean of this round's participants' models
    all   the mean of every client's last model; for a client that never took part, the initial model

Weighted as the method weighs updates (by samples, or not at all). A simulation sees every reply on its way, so neither
the method nor its messages change, and bytes stay the same; it costs memory for one model per client, and their
evaluation. The numbers go to locals.jsonl in the run's folder; the models lie beside each checkpoint, so that a resumed
run continues with them. Nothing is done for a method whose reply is not a difference of models (q-FedAvg, FedNova,
FL+HC), or without a global test set.
"""

from __future__ import annotations

from typing import Any

import safetensors.torch
import torch

from unalike.contract.call import Outcome
from unalike.errors import UnalikeError
from unalike.files import replace
from unalike.run.callbacks import Callback
from unalike.run.run import Run

FILE = "locals.jsonl"
METHODS = ("FedAvg", "FedProx", "Scaffold", "FedDyn", "FedDC")


class LocalModels(Callback):
    """Evaluate the two means on the global test set. The run needs a folder."""

    def on_start(self, run: Run) -> None:
        self.there = type(run.method).__name__ in METHODS and run.data.global_test is not None
        if not self.there:
            return
        self.path = run.home("LocalModels").path
        server, population = run.server, run.population
        weighted = run.method.sends["delta"].weighting(run.method) == "samples"
        sizes = torch.tensor(run.data.train.sizes).double() if weighted else torch.ones(population).double()
        self.weights = sizes.to(server.w.device)
        self.moved = torch.zeros(population, len(server.w), dtype=server.w.dtype, device=server.w.device)
        self.initial = run.task.start.to(server.w)
        if run.rounds_done:
            self._load(run)
        run.home("LocalModels").trim(FILE, run.rounds_done)
        self._begin(run)

    def _begin(self, run: Run) -> None:
        self.sent = run.server.w.clone()
        self.ids: list[torch.Tensor] = []

    def on_reply(self, run: Run, outcome: Outcome) -> None:
        if not self.there:
            return
        ids = torch.from_numpy(outcome.ids).to(self.moved.device)
        self.moved[ids] = self.sent - self.initial + outcome.up["delta"].to(self.moved)
        self.ids.append(ids)

    def on_round(self, run: Run, line: dict[str, Any]) -> None:
        if not self.there:
            return
        round, ids = line["round"], torch.cat(self.ids)
        if run.evaluated(round):
            out: dict[str, Any] = {"round": round}
            for name, rows in (("sel", ids), ("all", None)):
                scores = run.test_scores(self._mean(rows))
                out |= {f"test_{name}_{key}": value for key, value in scores.items()}
            run.home("LocalModels").append(FILE, out)
        self._begin(run)
        if run.saved(round):
            self.save(run)

    def _mean(self, ids: torch.Tensor | None) -> torch.Tensor:
        weights, rows = (self.weights, self.moved) if ids is None else (self.weights[ids], self.moved[ids])
        share = (weights / weights.sum()).to(rows.dtype)
        return self.initial + share @ rows

    def save(self, run: Run) -> None:
        """Save before the checkpoint of the same round; the previous file is kept until this one counts."""
        if run.rounds_done == run.rounds:
            for old in self.path.glob("locals-*.safetensors"):  # the run is finished: nothing will be resumed
                old.unlink()
            return
        with run.home("LocalModels").writing():
            replace(self._file(run.rounds_done), safetensors.torch.save({"moved": self.moved.cpu()}))
        for old in sorted(self.path.glob("locals-*.safetensors"))[:-2]:
            old.unlink()

    def _file(self, round: int) -> Any:
        return self.path / f"locals-{round:06d}.safetensors"

    def _load(self, run: Run) -> None:
        if run.rounds_done == run.rounds:
            return
        try:
            moved = safetensors.torch.load_file(self._file(run.rounds_done))["moved"]
        except (OSError, KeyError) as error:
            raise UnalikeError(
                f"{self.path} lacks the local models of round {run.rounds_done}: delete it and start anew."
            ) from error
        self.moved.copy_(moved)

    def on_end(self, run: Run) -> None:
        if self.there and run.rounds_done < run.rounds:  # stopped on the way: there is a checkpoint of this round
            self.save(run)
