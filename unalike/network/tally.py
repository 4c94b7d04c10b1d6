"""Count a client's answers in a run, against what its owner allows.

A server numbers rounds and exchanges as it likes, and every answer that is computed anew has fresh noise: many answers
for one round would let it average the noise away. So a client counts them itself.
"""

from __future__ import annotations

import collections
import dataclasses as dc

from unalike.contract import Call, Evaluate
from unalike.errors import UnalikeError
from unalike.network.policy import Policy


def _counter() -> collections.Counter[int]:
    return collections.Counter()


@dc.dataclass
class Tally:
    """Answers of one run, by round: how often the round was begun, exchanges since it last began, and evaluations."""

    begun: collections.Counter[int] = dc.field(default_factory=_counter)
    exchanges: collections.Counter[int] = dc.field(default_factory=_counter)
    evaluations: collections.Counter[int] = dc.field(default_factory=_counter)

    def add(self, round: int, exchange: int, evaluation: bool = False) -> None:
        """Count an answer."""
        if evaluation:
            self.evaluations[round] += 1
        elif exchange == 0 or round not in self.begun:
            self.begun[round] += 1
            self.exchanges[round] = 1
        else:
            self.exchanges[round] += 1

    def admit(self, call: Call, policy: Policy) -> None:
        """Count an answer that is to be computed; refuse it if the limit is reached."""
        evaluation, round = isinstance(call.function, Evaluate), call.round
        most = policy.max_exchanges * (1 + policy.max_repeats if evaluation else 1)
        if not evaluation and call.exchange >= most:
            raise UnalikeError(_too_many(round, f"exchange {call.exchange + 1}", f"max_exchanges = {most}"))
        counts = self.evaluations if evaluation else self.exchanges
        begins = not evaluation and (call.exchange == 0 or round not in self.begun)
        if not begins and counts[round] >= most:
            raise UnalikeError(_too_many(round, "one answer more", f"max_exchanges = {policy.max_exchanges}"))
        if begins and self.begun[round] > policy.max_repeats:
            raise UnalikeError(_too_many(round, "a new beginning", f"max_repeats = {policy.max_repeats}"))
        new = begins and not self.begun[round] and round >= 0
        if new and policy.max_rounds is not None and len([n for n in self.begun if n >= 0]) >= policy.max_rounds:
            raise UnalikeError(
                f"The run wants one round more of this client, which answers {policy.max_rounds} at most (max_rounds)."
            )
        self.add(round, call.exchange, evaluation)


def _too_many(round: int, what: str, rule: str) -> str:
    return f"The run wants {what} of round {round + 1} of this client, whose policy has {rule}."
