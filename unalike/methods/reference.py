"""Reference lines between which every federated method should lie: all data in one place, and no cooperation at all.

`Centralized` trains on everybody's data as one client, one round being one local training; it is evaluated on the same
test data as the others. `LocalOnly` lets every client train its own model on its own data and never send it anywhere,
nor BatchNorm's statistics, whatever `buffers` says; there is no global model, so only clients' own numbers are
reported.
"""

from __future__ import annotations

import dataclasses as dc

from torch import Tensor

from unalike.contract import Answer, Cohort, Field, Fields, Me, Message, Method, Server


@dc.dataclass(frozen=True)
class Centralized(Method):
    """All training data as one client's."""

    name = "centralized"
    pooled = True


class OwnModel(Method):
    """Every client keeps a model of its own, `theta`, and BatchNorm's statistics; there is no global model."""

    buffers = "local"
    keeps = {"theta": Field()}

    def kept(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        return {"theta": theta}, {}

    def published(self, server: Server) -> Message:
        return {}

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor:
        return me.own(s.theta)

    def models(self, server: Server) -> dict[str, tuple[Tensor, float]]:
        return {}


@dc.dataclass(frozen=True)
class LocalOnly(OwnModel):
    """Each client by itself; a client that never takes part keeps the initial model."""

    name = "local-only"
    keeps = {"model": Field()}
    sends = {}

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.train(me.own(s.model)).then(self.done)

    def done(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        return {"model": theta}, {}

    def round(self, server: Server, cohort: Cohort) -> None:
        cohort.call(self.client)

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor:
        return me.own(s.model)
