"""What the noise of a run's channel spends of its clients' privacy, exchange by exchange."""

from __future__ import annotations

import dataclasses as dc
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from unalike.channel import Channel
from unalike.channel.accountant import Accountant, Guarantee
from unalike.channel.calibrate import noise_for
from unalike.channel.events import ZERO_OUT, Event, GaussianSum, together
from unalike.channel.stage import Stage
from unalike.channel.stages import GaussianNoise, Noise, TreeNoise
from unalike.errors import UnalikeError
from unalike.nn.task import Task
from unalike.run.sampling import Bernoulli, Listed, Sampling, Turns
from unalike.run.settings import RunSettings
from unalike.training import LocalTraining

SPENT = "_spent"  # among the server's values: what was spent so far
SAMPLES_SPENT = "_samples_spent"  # and for single samples
EACH_ROUND = "_spent_each_round"  # and how many exchanges the last round had, of drawn clients and of everybody


class Spending:
    """The events of a run so far, at the settings' δ.

    values: the server's, where they are kept. q: the probability that a client is drawn for a round; where clients are
    not drawn in secret (`tree-noise`, `local-noise`) it plays no part.
    """

    def __init__(self, channel: Channel, settings: RunSettings, q: float, values: dict[str, Any]):
        self.channel, self.q, self.values = channel, q, values
        self.delta, self.most = settings.delta, settings.max_epsilon
        self._after(self.events(0, 1, 0)).spent(
            self.delta
        )  # a package that is missing is missed before the first round

    @property
    def account(self) -> Accountant:
        """What was spent so far."""
        return Accountant(self.values.get(SPENT, ()))

    def events(self, round: int, drawn: int, everyone: int) -> list[Event]:
        """Return what so many exchanges spend, with a round's clients and with everybody."""
        return [*self._of(self.q, drawn, round), *(e for _ in range(everyone) for e in self._of(1.0, 1, round))]

    def _of(self, q: float, exchanges: int, round: int) -> list[Event]:
        """Return what exchanges with the same clients spend."""
        if not exchanges:
            return []
        central = [stage.z for stage in self.channel.noises if isinstance(stage, GaussianNoise)]
        # sums of the same drawn clients are one release: drawing twice would hide better than drawing once
        joint = [GaussianNoise(together(*central * exchanges)).event(q)] if central else []
        others = [stage for stage in self.channel.noises if not isinstance(stage, GaussianNoise)]
        trees = [s.event(q) for s in others if isinstance(s, TreeNoise) and round % s.leaves == 0]
        return [*joint, *trees, *(s.event(q) for s in others if not isinstance(s, TreeNoise) for _ in range(exchanges))]

    def add(self, round: int, noised: Mapping[str, int]) -> None:
        """Take a round's exchanges down (-1: the set-up's)."""
        events = self.events(round, noised["drawn"], noised["everyone"])
        self.values[SPENT] = self._after(events).rows
        if round >= 0:
            self.values[EACH_ROUND] = [noised["drawn"], noised["everyone"]]

    def _after(self, events: list[Event]) -> Accountant:
        account = self.account
        for event in events:
            account.add(event)
        return account

    def used_up(self, round: int) -> bool:
        """Return whether this round, if it is like the one before it, would spend more than is allowed."""
        if self.most is None:
            return False
        drawn, everyone = self.values.get(EACH_ROUND, (1, 0))
        account = self._after(self.events(round, drawn, everyone))
        return account.spent(self.delta).epsilon > self.most and account.tight(self.delta).epsilon > self.most

    def line(self, last: bool) -> dict[str, float | None]:
        """Return ε for a round's line; of the last round also the smaller one that takes a second to compute."""
        account = self.account
        found = {"epsilon": account.spent(self.delta).epsilon}
        if last:
            found["epsilon_pld"] = account.tight(self.delta).epsilon
        return {name: value if math.isfinite(value) else None for name, value in found.items()}

    def ahead(self, rounds: int) -> Guarantee:
        """Return what so many rounds of one exchange each will spend."""
        account = Accountant()
        for t in range(rounds):
            for event in self.events(t, 1, 0):
                account.add(event)
        return account.tight(self.delta)

    def guarantee(self) -> Guarantee:
        """Return the smallest ε that can be shown for what was spent so far, with δ and who counts as a neighbour."""
        return self.account.tight(self.delta)


class SampleSpending:
    """What a client's noised training (DP-SGD) has spent for each of its samples, of a client that takes part in every
    round: towards whoever sees what it sends. Counted apart from what a channel's noise spends for whole clients."""

    def __init__(self, local: LocalTraining, tasks: Iterable[Task], settings: RunSettings, values: dict[str, Any]):
        self.local, self.delta, self.values = local, settings.delta, values
        if any(task.buffer_layout.size for task in tasks):
            raise UnalikeError(
                "sample_clip: BatchNorm mixes the samples of a batch, so that none has a gradient of its own: take "
                "another norm (--norm group), or none."
            )

    def add(self, passes: np.ndarray) -> None:
        """Take a round down, or the set-up: how often each client had any one of its samples in a step."""
        account = Accountant(self.values.get(SAMPLES_SPENT, ()), "sample")
        account.add(GaussianSum(self.local.sample_noise), int(passes.max()))
        self.values[SAMPLES_SPENT] = account.rows

    def guarantee(self) -> Guarantee:
        """Return the ε so far; who takes part, and how many samples there are, is the same in both runs compared."""
        return Accountant(self.values.get(SAMPLES_SPENT, ()), "sample").tight(self.delta, ZERO_OUT)

    def line(self) -> dict[str, float | None]:
        """Return ε for a round's line."""
        found = self.guarantee().epsilon
        return {"sample_epsilon": found if math.isfinite(found) else None}


def chosen_noise(stages: tuple[Stage, ...], settings: RunSettings, q: float) -> tuple[Stage, ...]:
    """Return the stages with a number in place of 'auto': the least noise with which all rounds spend at most the
    settings' ε, one exchange each."""
    waiting = [stage for stage in stages if isinstance(stage, Noise) and stage.multiplier == "auto"]
    if settings.epsilon is None or not waiting:
        if settings.epsilon is not None:
            raise UnalikeError("epsilon finds the noise of a stage without a number: channel='clip:1.0,noise:auto'.")
        return stages
    if len(waiting) > 1 or not isinstance(waiting[0], GaussianNoise | TreeNoise):
        raise UnalikeError("channel: 'auto' is for one stage, noise or tree-noise; give the others a number.")
    stage, rounds = waiting[0], max(1, settings.rounds)
    if isinstance(stage, TreeNoise):
        rounds = -(-rounds // stage.leaves)
    z = noise_for(settings.epsilon, settings.delta, rounds, lambda z: dc.replace(stage, multiplier=z).event(q))
    found = dc.replace(stage, multiplier=math.ceil(z * 1e4) / 1e4)  # in few digits, rounded up
    return tuple(found if one is stage else one for one in stages)


def drawing(channel: Channel, sampling: Sampling, population: int) -> float:
    """Return the probability that a client is drawn for a round; refuse a sampling that the noise does not fit."""
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
    """Refuse a sampling with which a client may take part twice in a tree."""
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
