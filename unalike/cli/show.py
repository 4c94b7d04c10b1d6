"""What a person sees: settings as a tree, a progress bar or plain lines, tables; all readable without colour."""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.tree import Tree

from unalike.callbacks import Callback


def console(quiet: bool = False) -> Console:
    """Where a person reads: standard error, so that standard output holds results only."""
    return Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=False)


def size(count: float) -> str:
    """Bytes in words."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return ""


def span(seconds: float) -> str:
    """Seconds in words."""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def settings_tree(tables: dict[str, dict[str, Any]], facts: dict[str, str]) -> Tree:
    """Everything that was decided, before round 1."""
    tree = Tree("settings")
    for name, table in tables.items():
        if table:
            branch = tree.add(name)
            for key, value in table.items():
                branch.add(f"{key} = {_short(value)}")
    if facts:
        branch = tree.add("found")
        for key, text in facts.items():
            branch.add(f"{key}: {text}")
    return tree


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def facts(run: Any) -> dict[str, str]:
    """What a run found out: data, model, engine, bytes."""
    sizes = run.data.train.sizes
    return {
        "data": f"{run.population:,} clients, {sizes.sum():,} samples ({sizes.min():,} to {sizes.max():,} each)",
        "model": f"{run._model.layout.size:,} parameters",
        "participants": f"{run.sampling.size(run.population):,} a round",
        "engine": run.reason,
    }


class Live(Callback):
    """A bar on a terminal, a plain line now and then elsewhere; time and memory after round 1."""

    def __init__(self, where: Console, tables: dict[str, dict[str, Any]] | None = None, title: str = ""):
        self.console, self.tables, self.title = where, tables, title
        self.terminal = where.is_terminal and not where.quiet
        self.bar: Bar | None = None
        self.bytes = 0

    def on_start(self, run: Any) -> None:
        if self.tables is not None:
            self.console.print(settings_tree(self.tables, facts(run)))
        compiles = getattr(run.engine, "compile", False)
        if compiles:
            self.console.print("compiling: the first round of each cohort width takes 10 to 40 s longer")
        self.began, self.first, self.said = time.perf_counter(), run.rounds_done, 0.0
        if run.rounds_done:
            self.console.print(f"continuing after round {run.rounds_done}")
        if self.terminal:
            words, text = TextColumn("{task.description}"), TextColumn("{task.fields[text]}")
            self.bar = Bar(words, BarColumn(bar_width=12), MofNCompleteColumn(), text, console=self.console)
            self.task = self.bar.add_task(self.title or "round", total=run.rounds, completed=run.rounds_done, text="")
            self.bar.start()

    def on_round(self, run: Any, line: dict[str, Any]) -> None:
        done = line["round"]
        spent = time.perf_counter() - self.began
        left = spent / (done - self.first) * (run.rounds - done)
        self.bytes += line["bytes_up"] + line["bytes_down"]
        parts = [
            f"{k.replace('_', ' ')} {line[k]:.4f}" for k in ("train_loss", "test_accuracy") if line.get(k) is not None
        ]
        if "test_accuracy" not in line and line.get("clients_accuracy_mean") is not None:
            parts.append(f"clients' accuracy {line['clients_accuracy_mean']:.4f}")
        parts += [size(self.bytes), f"{span(left)} left"]
        text = "  ".join(parts)
        if self.bar is not None:
            self.bar.update(self.task, completed=done, text=text)
        elif spent - self.said >= 2 or done in (run.rounds, self.first + 1):
            self.said = spent
            self.console.print(f"{self.title + ' ' if self.title else ''}round {done}/{run.rounds}  {text}")
        if done == self.first + 1 and run.rounds - done > 5 and not self.title:
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
            self.console.print(f"after one round: about {span(left)} to go, {size(memory)} of memory")

    def on_end(self, run: Any) -> None:
        self.stop()

    def stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def table(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    """A plain table; numbers to the right."""
    out = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for k, name in enumerate(columns):
        numeric = bool(rows) and all(r[k].lstrip("-")[:1].isdigit() for r in rows if r[k])
        out.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        out.add_row(*row)
    return out
