"""Show a comparison while it runs: a live table on a terminal, elsewhere one line per finished run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from unalike.cli import show
from unalike.comparison.jobs import Job, Watch
from unalike.metrics.names import Number, numbers, score_in
from unalike.results.evidence import Outcome, figure, last
from unalike.run.callbacks import Callback
from unalike.run.run import Run
from unalike.text import span

MOST = 30  # most lines of the live table


class Scoreboard(Watch):
    """Show progress and scores, one row per method."""

    def __init__(self, where: Console):
        self.console = where
        self.terminal = where.is_terminal and not where.is_dumb_terminal and not where.quiet
        self.live: Live | None = None
        self.jobs: Sequence[Job] = ()
        self.known = numbers()  # labels and units of the runs' metrics
        self.shown: Number | None = None  # the score in the live table
        # the score that methods are compared by: see metrics/names.scores
        self.by = ""

    def __enter__(self) -> Scoreboard:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    def title(self, text: str) -> None:
        self.console.print(text)

    def note(self, text: str) -> None:
        self.console.print(f"note: {text}")

    # ---- events

    def begin(self, jobs: Sequence[Job], what: str) -> None:
        self.stop()
        self.jobs, self.what, self.began = jobs, what, time.perf_counter()
        self.rounds: dict[str, int] = {}  # by label, the sum over its runs
        self.now: dict[str, float] = {}
        self.scores: dict[str, list[float | None]] = {}
        self.finished = self.made = 0
        self.left = sum(job.rounds for job in jobs)  # rounds still to be run
        self.fresh = 0  # rounds run by this process
        if self.terminal:
            self.live = Live(console=self.console, refresh_per_second=4, get_renderable=self._table, transient=True)
            self.live.start()

    def callback(self, job: Job) -> list[Callback]:
        return [_Rounds(self, job)]

    def round(self, job: Job, line: dict[str, Any]) -> None:
        label = job.arm.label
        self.rounds[label] = self.rounds.get(label, 0) + 1
        self.left, self.fresh = self.left - 1, self.fresh + 1
        if score := self._score(line):
            self.now[label], self.shown = line[score.key], score

    def done(self, job: Job, outcome: Outcome, fresh: bool) -> None:
        label = job.arm.label
        self.finished += 1
        ended = self.rounds.get(label, 0)
        whole = job.rounds * (len(self.scores.get(label, [])) + 1)
        # rounds of a run that existed already, or that diverged
        self.left -= max(0, whole - ended)
        self.rounds[label] = max(ended, whole)
        self.now.pop(label, None)
        end = last(outcome.lines)
        self.known = numbers(outcome.metrics)
        score = None if outcome.diverged is not None or end is None else self._score(end)
        value = end[score.key] if end and score else None
        self.shown = score or self.shown
        self.scores.setdefault(label, []).append(value)
        if self.live is None:
            count = f"[{self.finished:>{len(str(len(self.jobs)))}}/{len(self.jobs)}]"
            seconds = sum(line.get("seconds", 0) + line.get("seconds_evaluation", 0) for line in outcome.lines)
            how = f"diverged in round {outcome.diverged}" if outcome.diverged is not None else _words(end, score)
            when = f"in {span(seconds)}" if fresh else "(was there)"
            self.say(f"{count} {job.folder.name}: {how} {when}{self._to_go() if fresh else ''}")

    def _score(self, line: dict[str, Any]) -> Number | None:
        """Return the score that methods are compared by, or another score if the line lacks it."""
        return score_in(line, self.known, self.by) or score_in(line, self.known)

    def stop(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    # ---- display

    def _to_go(self) -> str:
        if not self.fresh or not self.left:
            return ""
        return f", {span((time.perf_counter() - self.began) / self.fresh * self.left)} left"

    def _table(self) -> Group:
        table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
        for title in ("method", self.what, "", "now", "last round, mean"):
            table.add_column(Text(title, style="bold"), no_wrap=True)
        mine: dict[str, list[int]] = {}  # rounds of each run of the method
        for job in self.jobs:
            mine.setdefault(job.arm.label, []).append(job.rounds)
        for label, rounds in itertools.islice(mine.items(), MOST):
            scores = self.scores.get(label, [])
            known = [s for s in scores if s is not None]
            bad = len(scores) - len(known)
            mean = _figure(sum(known) / len(known), self.shown) if known else ""
            mean += f"  {bad} diverged" if bad else ""
            table.add_row(
                Text(label),
                f"{len(scores)}/{len(rounds)}",
                ProgressBar(total=sum(rounds), completed=self.rounds.get(label, 0), width=16),
                _figure(self.now[label], self.shown) if label in self.now else "",
                mean,
            )
        spent = span(time.perf_counter() - self.began)
        text = f"{self.finished}/{len(self.jobs)} {self.what}, {spent}{self._to_go()}"
        return Group(table, Text(text))


class _Rounds(Callback):
    """Report every round to the scoreboard."""

    def __init__(self, board: Scoreboard, job: Job):
        self.board, self.job = board, job

    def on_start(self, run: Run) -> None:
        self.board.known = run.numbers
        for line in run.history:  # lines of a run that is resumed
            self.board.round(self.job, line)
        self.board.fresh -= len(run.history)

    def on_round(self, run: Run, line: dict[str, Any]) -> None:
        self.board.round(self.job, line)


def _figure(value: float, score: Number | None) -> str:
    """Return a score in the format of the verdict."""
    return figure("plain" if score is None else score.unit, [value])


def _words(line: dict[str, Any] | None, score: Number | None) -> str:
    if line is None or score is None:
        return "done"
    return show.headline(score, line[score.key])
