"""Account for the privacy that the noise of a run's channel spends, exchange by exchange."""

from __future__ import annotations

import dataclasses as dc
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from unalike.channel import Channel, parse
from unalike.channel.accountant import Accountant, Guarantee
from unalike.channel.calibrate import noise_for
from unalike.channel.events import ZERO_OUT, Event, GaussianSum, together
from unalike.channel.passage import SECRET
from unalike.channel.stage import Stage
from unalike.channel.stages import GaussianNoise, Noise, TreeNoise
from unalike.errors import UnalikeError
from unalike.nn.task import Task
from unalike.run.folder import written_facts
from unalike.run.ledger import Ledger
from unalike.run.sampling import Bernoulli, Listed, Sampling, Turns
from unalike.run.settings import RunSettings
from unalike.training import LocalTraining

# key in the server's values: events so far
SPENT = "_spent"
SAMPLES_SPENT = "_samples_spent"  # the same for single samples
# number of exchanges of the last round, with drawn clients and with all
EACH_ROUND = "_spent_each_round"
# for each tree-noise, the tree that was counted last
TREES = "_spent_trees"
# number of the ledger's lines that are included
LINES = "_spent_lines"
LASTING = (SPENT, EACH_ROUND, TREES, LINES, SECRET)  # keys that survive when a round is undone


class Exhausted(UnalikeError):
    """Raised instead of an exchange that would spend more privacy than is allowed."""


class Spending:
    """The privacy events of a run so far, at the settings' δ.

    values: the server's values, which store the events. q: the probability that a client is drawn for a round; unused
    where clients are not drawn in secret (`tree-noise`, `local-noise`). expected: a cohort's mean size. most: the ε
    that must not be exceeded, if any.

    The order of calls: a round begins (`begin`), each of its exchanges asks first (`ask`) and is counted before its sum
    is noised (`take`), and the round ends (`end`).
    """

    def __init__(self, channel: Channel, settings: RunSettings, q: float, values: dict[str, Any], expected: float):
        self.channel, self.q, self.values = channel, q, values
        self.delta, self.most, self.goal = settings.delta, settings.max_epsilon, settings.epsilon
        self.exchanges = settings.exchanges
        self.ledger: Ledger | None = None
        self.trees = [stage for stage in channel.noises if isinstance(stage, TreeNoise)]
        for stage in channel.noises:
            if isinstance(stage, GaussianNoise):
                # refuses, before round 1, a count that leaves no noise for the updates
                stage.updates(expected)
        self._judged: tuple[list[list], bool] = [], False
        self.begin(0)
        # so that a missing package is noticed before the first round
        self._after(1, 0).spent(self.delta)

    @property
    def account(self) -> Accountant:
        """Return the account of everything spent so far."""
        return Accountant(self.values.get(SPENT, ()))

    def notes(self, population: int) -> list[str]:
        """Return remarks about δ for the user."""
        if self.delta <= 1 / population:
            return []
        return [
            f"δ = {self.delta:g} is more than 1 / {population} clients: the promise may fail for one of them; take it "
            "well below."
        ]

    # ---- a round

    def begin(self, round: int) -> None:
        """Begin a round (-1: the set-up)."""
        self._round, self._counts = round, (0, 0)
        self._before = [*self.values.get(SPENT, ())]
        self._counted = [*self.values.get(TREES, [-1] * len(self.trees))]

    def ask(self, exchange: int, of_round: bool) -> None:
        """Refuse an exchange that would spend too much; record it in the ledger before it is made."""
        if self.most is None and self.ledger is None:
            return
        counts = self._one_more(of_round)
        account = self._after(*counts)
        if self._too_much(account):
            self.values[EACH_ROUND] = [*counts]
            where = f"of round {self._round + 1}" if self._round >= 0 else "before round 1"
            raise Exhausted(
                f"Exchange {exchange + 1} {where} would spend more than ε = {self.most:g}: the run ends after "
                f"{max(0, self._round)} rounds."
            )
        if self.ledger is not None:
            self.values[LINES] = self.ledger.write(self._round, exchange, account.rows)

    def take(self, of_round: bool) -> None:
        """Count an exchange that brought replies; its sum is noised and passed on after this."""
        counts = self._one_more(of_round)
        if self.goal is not None:
            self._check_plan(*counts)
        self._counts = counts
        self.values[SPENT] = self._after(*counts).rows
        if self.trees:
            self.values[TREES] = self._trees_of(self._round)

    def end(self) -> None:
        """End a round."""
        self.values.setdefault(SPENT, [])
        if self.begun:
            self.values[EACH_ROUND] = [*self._counts]

    @property
    def begun(self) -> bool:
        """Return whether this round has spent anything."""
        return any(self._counts)

    def _one_more(self, of_round: bool) -> tuple[int, int]:
        drawn, everyone = self._counts
        return (drawn + 1, everyone) if of_round else (drawn, everyone + 1)

    def _check_plan(self, drawn: int, everyone: int) -> None:
        """Refuse exchanges for which the noise 'auto' was not calibrated, before anything is spent."""
        if self._round < 0 or (everyone and self.q < 1):
            raise UnalikeError(
                "channel: 'auto' is found for sums of a round's clients, and this method also asks everybody: give the "
                "noise a number (noise:2.0)."
            )
        if drawn + everyone > self.exchanges:
            raise UnalikeError(
                f"channel: 'auto' was found for exchanges={self.exchanges} a round, and round {self._round + 1} has "
                f"more: give exchanges={drawn + everyone}, or as many as there are."
            )

    # ---- events

    def events(self, round: int, drawn: int, everyone: int, counted: list[int]) -> list[Event]:
        """Return the events of this many exchanges with a round's clients and with all clients; counted: for each
        tree-noise, the tree that was counted last."""
        found = [*self._of(self.q, drawn), *(e for _ in range(everyone) for e in self._of(1.0, 1))]
        # a tree is spent by its first exchange, in whichever round it happens
        if drawn or everyone:
            at = zip(self.trees, self._trees_of(round), counted, strict=True)
            found += [tree.event(self.q) for tree, now, last in at if now != last]
        return found

    def _of(self, q: float, exchanges: int) -> list[Event]:
        """Return the events of exchanges with the same clients, without those of tree-noise."""
        if not exchanges:
            return []
        central = [stage.z for stage in self.channel.noises if isinstance(stage, GaussianNoise)]
        # sums over the same drawn clients are one release: drawing twice would hide better than drawing once
        joint = [GaussianNoise(together(*central * exchanges)).event(q)] if central else []
        others = [stage for stage in self.channel.noises if not isinstance(stage, GaussianNoise | TreeNoise)]
        return [*joint, *(stage.event(q) for stage in others for _ in range(exchanges))]

    def _trees_of(self, round: int) -> list[int]:
        return [round // tree.leaves for tree in self.trees]

    def _after(self, drawn: int, everyone: int) -> Accountant:
        """Return the account after this many exchanges of this round."""
        account = Accountant(self._before)
        for event in self.events(self._round, drawn, everyone, self._counted):
            account.add(event)
        return account

    # ---- limits

    def used_up(self, round: int) -> bool:
        """Return whether this round, if it is like the previous one, would spend more than is allowed."""
        if self.most is None:
            return False
        self.begin(round)
        return self._too_much(self._after(*self.values.get(EACH_ROUND, (1, 0))))

    def _too_much(self, account: Accountant) -> bool:
        if self.most is None:
            return False
        # the same question is asked several times, and the answer may take a second
        if self._judged[0] != account.rows:
            spends = (way(self.delta).epsilon > self.most for way in (account.spent, account.tight))
            self._judged = account.rows, all(spends)
        return self._judged[1]

    def keep(self, ledger: Ledger) -> bool:
        """Keep a ledger from now on. Exchanges that it records after the checkpoint were spent too; their rounds are
        repeated with other noise, in a new tree. Return whether there are any: then clients must be drawn again too,
        because two sums of one draw spend more than sums of two draws."""
        known, self.ledger = self.values.get(LINES, 0), ledger
        if ledger.count < known:
            raise ledger.changed()
        if ledger.count > known:
            self.values.update({SPENT: ledger.last, LINES: ledger.count})
            # the same draws around other replies would reveal the difference
            for name in (TREES, SECRET):
                self.values.pop(name, None)
        return ledger.count > known

    def stay_within(self, done: int, rounds: int) -> None:
        """Limit a resumed run to the ε for which its noise was calibrated, if all its rounds would spend more."""
        if self.goal is None or SPENT not in self.values:
            return
        if self._ahead(self.account, self.values.get(TREES), done, rounds).tight(self.delta).epsilon > self.goal:
            self.most = self.goal if self.most is None else min(self.most, self.goal)

    def line(self, last: bool) -> dict[str, float | None]:
        """Return ε for a round's line; in the last round also the tighter ε, which takes a second to compute."""
        account = self.account
        found = {"epsilon": account.spent(self.delta).epsilon}
        if last:
            found["epsilon_pld"] = account.tight(self.delta).epsilon
        return {name: value if math.isfinite(value) else None for name, value in found.items()}

    def ahead(self, rounds: int) -> Guarantee:
        """Return the guarantee after `rounds` rounds, with the number of exchanges per round from the settings."""
        return self._ahead(Accountant(), None, 0, rounds).tight(self.delta)

    def _ahead(self, account: Accountant, counted: list[int] | None, done: int, rounds: int) -> Accountant:
        """Return the account after the rounds still to come."""
        last = [-1] * len(self.trees) if counted is None else counted
        for t in range(done, rounds):
            for event in self.events(t, self.exchanges, 0, last):
                account.add(event)
            last = self._trees_of(t)
        return account

    def guarantee(self) -> Guarantee:
        """Return the smallest ε that can be shown for everything spent so far, with δ and the neighbouring relation."""
        return self.account.tight(self.delta)


class SampleSpending:
    """Account for noised local training (DP-SGD): the privacy spent per sample, for a client that takes part in every
    round, towards anyone who sees its replies. Separate from the channel's noise, which protects whole clients."""

    def __init__(self, local: LocalTraining, tasks: Iterable[Task], settings: RunSettings, values: dict[str, Any]):
        self.local, self.delta, self.values = local, settings.delta, values
        if any(task.buffer_layout.size for task in tasks):
            raise UnalikeError(
                "sample_clip: BatchNorm mixes the samples of a batch, so that none has a gradient of its own: take "
                "another norm (--norm group), or none."
            )

    def add(self, passes: np.ndarray) -> None:
        """Count a round, or the set-up: how often each client used any one of its samples in a step."""
        account = Accountant(self.values.get(SAMPLES_SPENT, ()), "sample")
        account.add(GaussianSum(self.local.sample_noise), int(passes.max()))
        self.values[SAMPLES_SPENT] = account.rows

    def guarantee(self) -> Guarantee:
        """Return the ε so far. The neighbouring runs have the same clients and the same numbers of samples."""
        return Accountant(self.values.get(SAMPLES_SPENT, ()), "sample").tight(self.delta, ZERO_OUT)

    def line(self) -> dict[str, float | None]:
        """Return ε for a round's line."""
        found = self.guarantee().epsilon
        return {"sample_epsilon": found if math.isfinite(found) else None}


def chosen_noise(stages: tuple[Stage, ...], settings: RunSettings, q: float) -> tuple[Stage, ...]:
    """Return the stages with 'auto' replaced by a number: the least noise with which all rounds spend at most the
    settings' ε, for the number of exchanges per round that they name. A resumed run keeps its number."""
    waiting = [stage for stage in stages if isinstance(stage, Noise) and stage.multiplier == "auto"]
    if settings.epsilon is None or not waiting:
        if settings.epsilon is not None:
            raise UnalikeError("epsilon finds the noise of a stage without a number: channel='clip:1.0,noise:auto'.")
        return stages
    if len(waiting) > 1 or not isinstance(waiting[0], GaussianNoise | TreeNoise):
        raise UnalikeError("channel: 'auto' is for one stage, noise or tree-noise; give the others a number.")
    stage, others = waiting[0], [s for s in stages if isinstance(s, Noise) and s is not waiting[0]]
    if any(not isinstance(other, GaussianNoise) for other in [*others, *([stage] if others else [])]):
        raise UnalikeError(
            "channel: 'auto' beside other noise is for 'noise' beside 'noise': give all of them a number."
        )
    z = _taken_noise(settings, stages, stage)
    if z is None:
        z = math.ceil(_least_noise(stage, others, settings, q) * 1e4) / 1e4  # rounded up to a few digits
    found = dc.replace(stage, multiplier=z)
    return tuple(found if one is stage else one for one in stages)


def _least_noise(stage: Noise, others: list[Noise], settings: RunSettings, q: float) -> float:
    """Return the noise that a stage needs for all rounds, beside other stages whose noise is given."""
    assert settings.epsilon is not None
    rounds, n = max(1, settings.rounds), settings.exchanges
    if not isinstance(stage, TreeNoise):
        known = [other.z for other in others]
        joint = lambda z: GaussianNoise(together(*[z, *known] * n)).event(q)  # noqa: E731
        return noise_for(settings.epsilon, settings.delta, rounds, joint)
    if n > 1:
        raise UnalikeError(f"channel: a tree has one exchange per round; got exchanges={n}.")
    trees = -(-rounds // stage.leaves)
    return noise_for(settings.epsilon, settings.delta, trees, lambda z: dc.replace(stage, multiplier=z).event(q))


def _taken_noise(settings: RunSettings, stages: tuple[Stage, ...], stage: Stage) -> float | None:
    """Return the noise that was calibrated when this run began; None for a new run."""
    if not settings.resume or settings.folder is None:
        return None
    texts = written_facts(Path(settings.folder)).get("channel", {}).get("stages", [])
    if len(texts) != len(stages):
        # the folder holds another run, which is reported later
        return None
    (then,) = parse(texts[stages.index(stage)])
    return then.z if isinstance(then, Noise) and type(then) is type(stage) else None


def drawing(channel: Channel, sampling: Sampling, population: int) -> float:
    """Return the probability that a client is drawn for a round; refuse a sampling that does not fit the noise."""
    trees = [stage for stage in channel.noises if isinstance(stage, TreeNoise)]
    if isinstance(sampling, Bernoulli) and not trees:
        return sampling.probability
    everybody = sampling.size(population) == population
    if channel.central and not trees and not everybody:
        raise UnalikeError(
            f"channel: noise on sums needs each client drawn by itself, or everybody: give clients_per_round="
            f"'bernoulli:{sampling.size(population) / population:.3g}' (ua.sampling.Bernoulli in Python)."
        )
    for tree in trees:
        check_turns(tree, sampling, population)
    return 1.0


def check_turns(tree: TreeNoise, sampling: Sampling, population: int) -> None:
    """Refuse a sampling with which a client could take part twice in one tree."""
    if isinstance(sampling, Turns) and sampling.rounds(population) % tree.leaves == 0:
        return
    if isinstance(sampling, Listed):
        total = math.lcm(len(sampling.rounds), tree.leaves)
        rounds = [sampling.rounds[t % len(sampling.rounds)] for t in range(total)]
        parts = [sum(rounds[t : t + tree.leaves], ()) for t in range(0, total, tree.leaves)]
        if all(len(set(part)) == len(part) for part in parts):
            return
    if tree.leaves == 1:
        return
    raise UnalikeError(
        f"channel: {tree}: a client takes part once at most in a tree of {tree.leaves} rounds: give clients_per_round="
        f"'turns:{-(-population // tree.leaves)}', whose every turn is a whole number of trees."
    )
