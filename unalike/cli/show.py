"""What a person sees on a terminal: settings as a tree, progress as a bar or as plain lines, tables. All of it is
readable without colour."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses as dc
import json
import math
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text
from rich.tree import Tree

from unalike import config
from unalike.channel import Sight
from unalike.metrics.lines import traffic
from unalike.metrics.names import Number, score_in
from unalike.results.evidence import figure
from unalike.run.callbacks import Callback
from unalike.run.run import Run
from unalike.text import size, span

# most characters of the middle column in a table of three
WIDEST = 26


def console(quiet: bool = False) -> Console:
    """Return the console for messages: standard error, so that standard output holds results only."""
    return Console(stderr=True, quiet=quiet, highlight=False, markup=False, emoji=False)


# ---------------------------------------------------------------- in words


def near(path: str | Path) -> str:
    """Return a path as one would type it in the current folder."""
    full = Path(path).resolve()
    here = Path.cwd()
    return shlex.quote(str(full.relative_to(here) if full.is_relative_to(here) else full))


def document(content: Any) -> None:
    """Print the JSON document of --json; values that JSON cannot express become null."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(k): plain(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [plain(v) for v in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    print(json.dumps(plain(content), default=str))


def answer(args: argparse.Namespace, content: Any, text: str) -> int:
    """Print the result of a command, as its one JSON document or as text; return the exit code 0."""
    if args.json:
        document(content)
    elif text:
        print(text)
    return 0


def written(args: argparse.Namespace, kind: str, file: Path) -> int:
    """Report that a file was written; `kind` is its key in the JSON document."""
    bytes = file.stat().st_size
    return answer(args, {kind: str(file), "bytes": bytes}, f"written to {near(file)} ({size(bytes)})")


# ---------------------------------------------------------------- results


def width() -> int:
    return shutil.get_terminal_size().columns


def table(columns: list[str], rows: list[list[str]], title: str = "") -> str:
    """Return a plain table: numbers aligned to the right, the last column wrapped to the terminal."""
    columns, rows = columns or [""] * len(rows[0]), [*rows]
    wide = [max(len(r[k]) for r in [columns, *rows]) for k in range(len(columns))]
    numeric = [k > 0 and all(r[k][:1].isdigit() or not r[k] for r in rows) for k in range(len(columns))]
    room = max(20, width() - sum(wide[:-1]) - 2 * (len(wide) - 1))
    lines = [title] if title else []
    for row in [columns, *rows] if any(columns) else rows:
        cells = [c.rjust(w) if n else c.ljust(w) for c, w, n in zip(row, wide, numeric, strict=True)]
        last = [cells[-1]] if wide[-1] <= room else textwrap.wrap(row[-1], room) or [""]
        head = "  ".join(cells[:-1])
        lines += ["  ".join([head if k == 0 else " " * len(head), part]).rstrip() for k, part in enumerate(last)]
    return "\n".join(lines)


def prose(text: str) -> str:
    """Fill paragraphs to the terminal's width; indented lines stay as they are."""

    def fill(line: str) -> str:
        return textwrap.fill(line, width() - 1, subsequent_indent=" " * 8 if line.startswith(" ") else "")

    blocks = [b.splitlines() if b.startswith(" ") else [b] for b in text.split("\n\n")]
    return "\n\n".join("\n".join(map(fill, lines)) for lines in blocks)


def headline(score: Number, value: float) -> str:
    """Return a score in words, as the report and the verdict show it: "accuracy 83.0 %"."""
    whose = " on own data" if score.key.startswith("clients") else ""
    return f"{score.name} {figure(score.unit, [value])}{whose}"


def sights(rows: Sequence[Sight]) -> list[dict[str, str]]:
    """Return the rows of "who sees what" for JSON."""
    return [dc.asdict(row) for row in rows]


def sight_table(rows: Sequence[Sight]) -> str:
    """Return "who sees what" as a table; a party that sees several things is named once."""
    named = [row.who if k == 0 or rows[k - 1].who != row.who else "" for k, row in enumerate(rows)]
    cells = [[who, row.of, row.words] for who, row in zip(named, rows, strict=True)]
    wide = max(len(row.of) for row in rows)
    # a method's description is a sentence: the second column goes below it
    if wide > WIDEST:
        cells = [[who, f"{row.of}: {row.words}"] for who, row in zip(named, rows, strict=True)]
    return table([], cells, "who sees what")


# ---------------------------------------------------------------- before and during a run


def settings_tree(tables: dict[str, dict[str, Any]], found: dict[str, str]) -> Tree:
    """Return all settings as a tree: those asked for line by line, defaults together in one line."""
    tree = Tree("settings")
    for name, values in tables.items():
        if name == "clock" and not values:
            continue  # no time is kept
        branch = tree.add(name)
        for key, value in values.items():
            branch.add(Text(_pair(key, value)))
        if name == config.MODELS_TABLE or (name == "model" and config.MODELS_TABLE in tables):
            continue  # the defaults differ between networks
        if name == "data" and config.data_parts(values):
            continue
        defaults = {k: s.default for k, s in config.SETTINGS[name](values).items() if k not in (*values, "resume")}
        rest = [_pair(k, d).replace(" ", "") for k, d in defaults.items() if writable(d)]
        if rest:
            branch.add(Text("default: " + ", ".join(rest)))
    branch = tree.add("found")
    for key, text in found.items():
        branch.add(Text(f"{key}: {text}"))
    return tree


def writable(value: Any) -> bool:
    """Return whether a default has a readable written form."""
    return isinstance(value, str | int | float | tuple) and not isinstance(value, type) and value != ()


def _pair(key: str, value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return f"{key} = {text if len(text) <= 100 else text[:97] + '...'}"


def _parameters(run: Run) -> str:
    """Return the number of parameters of the model, or of each of several networks."""
    if run.architectures is None:
        return f"{run.task.layout.size:,} parameters"
    counts = {name: len(run.architectures.clients(name)) for name in run.tasks}
    return "; ".join(f"{n}: {t.layout.size:,} parameters, {counts[n]:,} clients" for n, t in run.tasks.items())


def facts(run: Run) -> dict[str, str]:
    """Return facts that are known once a run is set up: data, model, engine, what is compiled."""
    sizes = run.data.train.sizes
    engine, _, why = run.reason.partition(": ")
    step = "the training step, when first used: 10 to 40 s for each width of a stack"
    return {
        "data": f"{run.population:,} clients, {sizes.sum():,} samples ({sizes.min():,} to {sizes.max():,} each)",
        "model": _parameters(run),
        "participants": f"{run.sampling.size(run.population):,} per round",
        **({} if run.channel is None else {"channel": ", then ".join(map(str, run.channel.stages))}),
        "engine": f"{engine} on {run.task.device}",
        "because": why,
        "compiles": step if getattr(run.engine, "compile", False) else "nothing",
    }


class Live(Callback):
    """Show progress: a bar on a terminal, elsewhere a plain line from time to time; after round 1 also the time left
    and the memory."""

    def __init__(self, where: Console, tables: dict[str, dict[str, Any]] | None = None, title: str = "round"):
        self.console, self.tables, self.title = where, tables, title
        self.terminal = where.is_terminal and not where.is_dumb_terminal and not where.quiet
        self.bar: Bar | None = None
        self.score, self.said = "", 0.0

    def on_start(self, run: Run) -> None:
        if self.tables is not None:
            self.console.print(settings_tree(self.tables, facts(run)))
        if not run.vectors() and "test" not in run.data.splits:
            self.say(
                "note: there is no model for all, and clients have no test samples for their own: nothing can be "
                "judged; --test 0.2 ([data] test) holds some out of each client's."
            )
        self.began = self.warm = time.perf_counter()
        self.first = run.rounds_done
        self.bytes = sum(map(traffic, run.history))
        for note in run.folder.notes if run.folder else ():
            self.say(f"note: {note}")
        if self.first:
            self.say(f"continuing after round {self.first}")
        if self.terminal:
            words, text = TextColumn("{task.description}"), TextColumn("{task.fields[text]}")
            self.bar = Bar(words, BarColumn(bar_width=16), MofNCompleteColumn(), text, console=self.console)
            self.task = self.bar.add_task(self.title, total=run.rounds, completed=self.first, text="")
            self.bar.start()

    def on_round(self, run: Run, line: dict[str, Any]) -> None:
        done, now = line["round"], time.perf_counter()
        if done == self.first + 1:
            # the first round compiles and warms up, so the time left is estimated from later rounds
            self.warm = now
        rounds, spent = (done - self.first - 1, now - self.warm) if now > self.warm else (1, now - self.began)
        left = spent / rounds * (run.rounds - done)
        self.bytes += traffic(line)
        if score := score_in(line, run.numbers):
            self.score = f"{headline(score, line[score.key])}  "
        ending = f"{span(left)} left" if done < run.rounds else f"in {span(now - self.began)}"
        epsilon = line.get("epsilon_pld", line.get("epsilon"))
        privacy = "" if epsilon is None else f"ε {epsilon:.3g}  "
        text = f"{self.score}{privacy}{size(self.bytes)}  {ending}"
        if self.bar is not None:
            self.bar.update(self.task, completed=done, text=text)
        elif now - self.said >= max(2.0, 0.05 * left) or done == run.rounds:
            self.said = now
            loss = "" if line["train_loss"] is None else f"train loss {line['train_loss']:.3f}  "
            self.say(f"{self.title} {done}/{run.rounds}  {loss}{text}")
        if done == self.first + 1 and run.rounds - done > 5 and self.tables is not None:
            self.say(f"after one round: at most {span(left)} to go{_memory(run.task.device)}")

    def on_end(self, run: Run) -> None:
        self.stop()
        for note in [note for note in run.notes if run.folder is None or note not in run.folder.notes]:
            self.say(f"note: {note}")

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    def stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def _memory(device: torch.device) -> str:
    """Return the peak memory so far."""
    text = ""
    with contextlib.suppress(ImportError):  # not on Windows
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        text = f", {size(peak)} of memory"
    if device.type == "cuda":
        text += f", {size(torch.cuda.max_memory_allocated(device))} of the GPU's"
    return text
