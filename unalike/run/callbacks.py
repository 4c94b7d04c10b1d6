"""Callbacks: code of yours that runs before, between and after rounds. Override the methods you need; `on_round` may
return True to end the run."""

from __future__ import annotations

import dataclasses as dc
import json
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unalike.errors import UnalikeError, did_you_mean, unknown
from unalike.metrics.lines import is_number, traffic
from unalike.metrics.names import scores

if TYPE_CHECKING:
    from unalike.contract.call import Outcome
    from unalike.run.run import Run


class Callback:
    """The base class: each method is called at its moment and does nothing."""

    def on_start(self, run: Run) -> None:
        """Called before the first round of this process."""

    def on_round(self, run: Run, line: dict[str, Any]) -> bool | None:
        """Called after each round with its line of rounds.jsonl; return True to end the run."""

    def on_reply(self, run: Run, outcome: Outcome) -> None:
        """Called with every stack of clients' replies before the server adds them up. For measurements in a
        simulation."""

    def on_end(self, run: Run) -> None:
        """Called after the last round, also when the run was stopped early."""


class StopAt(Callback):
    """End the run when a number of a round's line reaches a target: StopAt("test_accuracy", 0.9)."""

    def __init__(self, name: str, target: float, above: bool = True):
        self.name, self.target, self.above = name, target, above

    def on_round(self, run: Run, line: dict[str, Any]) -> bool:
        value = line.get(self.name)
        if value is None:
            if run.evaluated(line["round"]):
                raise UnalikeError(f"StopAt: a round has no {self.name!r}.{did_you_mean(self.name, line)}")
            return False
        return value >= self.target if self.above else value <= self.target


class Progress(Callback):
    """Print one line per round on standard error; on a terminal the line is rewritten in place."""

    def __init__(self, stream: Any = None):
        self.stream = stream or sys.stderr

    def on_start(self, run: Run) -> None:
        self.began, self.first = time.perf_counter(), run.rounds_done
        self.stream.writelines(f"note: {note}\n" for note in (run.folder.notes if run.folder else ()))
        self.stream.write(f"engine {run.reason}\n")
        self.stream.write(f"{run.engine.waits}\n" if run.engine.waits else "")

    def on_round(self, run: Run, line: dict[str, Any]) -> None:
        done, total = line["round"], run.rounds
        left = (time.perf_counter() - self.began) / (done - self.first) * (total - done)
        parts = [f"round {done}/{total}"]
        tests = [score for score in scores(run.numbers) if score.key.startswith("test_")]
        for number in (run.numbers["train_loss"], *tests, run.numbers["epsilon"]):
            if line.get(number.key) is not None:
                parts.append(f"{number.words} {line[number.key]:.4f}")
        parts += [f"{traffic(line):,} bytes", f"{left:.0f} s left"]
        text = "  ".join(parts)
        width = shutil.get_terminal_size().columns - 1
        self.stream.write(f"\r{text[:width]:<{width}}" if self.stream.isatty() else text + "\n")
        self.stream.flush()

    def on_end(self, run: Run) -> None:
        if self.stream.isatty():
            self.stream.write("\n")
        self.stream.writelines(f"note: {note}\n" for note in run.engine.notes)


class JSONL(Callback):
    """Append each round's line to a file of yours (a run folder has its own rounds.jsonl)."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def on_round(self, run: Run, line: dict[str, Any]) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise UnalikeError(f"JSONL cannot write to {self.path}: {error.strerror or error}.") from error


def _numbers(line: dict[str, Any]) -> dict[str, float]:
    """Return the numbers in a round's line, without the round's own number."""
    return {name: value for name, value in line.items() if is_number(value) and name != "round"}


def _settings(run: Run) -> dict[str, Any]:
    """Return the facts about a run that are sent to a logging program: the method with its settings, seed, rounds,
    clients."""
    own = {f"method.{field.name}": str(getattr(run.method, field.name)) for field in dc.fields(run.method)}  # type: ignore[arg-type]
    known = {"method": type(run.method).__name__, "seed": run.settings.seed, "rounds": run.rounds}
    return {**known, "clients": run.population, **own}


class TensorBoard(Callback):
    """Write every number of a round as a TensorBoard scalar (pip install unalike[tensorboard])."""

    def __init__(self, folder: str):
        self.folder = folder

    def on_start(self, run: Run) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UnalikeError("TensorBoard is not installed: pip install 'unalike[tensorboard]'.") from error
        self.writer = SummaryWriter(self.folder)

    def on_round(self, run: Run, line: dict[str, Any]) -> None:
        for name, value in _numbers(line).items():
            self.writer.add_scalar(name, value, line["round"])

    def on_end(self, run: Run) -> None:
        self.writer.close()


class WandB(Callback):
    """Log every number of a round with Weights & Biases (pip install wandb).

    Nothing is sent unless you set mode="online": the log is written into `folder`, and `wandb sync` sends it later.
    """

    def __init__(self, folder: str | Path = ".", project: str = "unalike", mode: str = "offline", **options: Any):
        self.folder, self.options = Path(folder), {"project": project, "mode": mode, **options}

    def on_start(self, run: Run) -> None:
        try:
            import wandb  # type: ignore[import-not-found]
        except ImportError as error:
            raise UnalikeError("Weights & Biases is not installed: pip install wandb.") from error
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = wandb.init(dir=str(self.folder), config=_settings(run), **self.options)

    def on_round(self, run: Run, line: dict[str, Any]) -> None:
        self.log.log(_numbers(line), step=line["round"])

    def on_end(self, run: Run) -> None:
        self.log.finish()


class MLflow(Callback):
    """Log every number of a round with MLflow, into a folder of files (pip install mlflow).

    tracking: the address of an MLflow server, to send the numbers there instead.
    """

    def __init__(self, folder: str | Path = "mlruns", experiment: str = "unalike", tracking: str | None = None):
        self.folder, self.experiment, self.tracking = Path(folder), experiment, tracking

    def on_start(self, run: Run) -> None:
        try:
            import mlflow  # type: ignore[import-not-found]
        except ImportError as error:
            raise UnalikeError("MLflow is not installed: pip install mlflow.") from error
        self.mlflow = mlflow
        mlflow.set_tracking_uri(self.tracking or self.folder.resolve().as_uri())
        mlflow.set_experiment(self.experiment)
        mlflow.start_run()
        mlflow.log_params(_settings(run))

    def on_round(self, run: Run, line: dict[str, Any]) -> None:
        self.mlflow.log_metrics(_numbers(line), step=line["round"])

    def on_end(self, run: Run) -> None:
        self.mlflow.end_run()


LOGS = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}  # by name on the command line


def log(name: str, folder: Path) -> Callback:
    """Return the callback of this name; it logs into a folder of that name inside the run's folder."""
    if name not in LOGS:
        raise unknown("log", name, LOGS)
    return LOGS[name](str(folder / name))  # type: ignore[abstract]
