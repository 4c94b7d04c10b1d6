"""FedBCD: several local steps per exchange (Liu et al. 2019, our reading).

All parties keep the same batch for Q steps. The guest's own part is always fresh, the others' z as they were sent. A
host:

- `reading="frozen"`, all that a host without labels can do: the d that it was sent, for all Q steps;
- `reading="exact"`: its own part fresh. For squared errors d is linear in z and a host can mend it itself; for the
  logistic loss it must be given the others' scores **and the labels**, which is for experiments.

`order="parallel"`: all start from the same z. `"sequential"`: one after another, each with the others' refreshed z. Q
= 1 in parallel is Algorithm 2. With linear shares z_k a frozen host's Q steps are nearly one step of Q times the
rate: savings on regression say nothing about networks (for those: `SplitNN(steps=Q)`).
"""

from __future__ import annotations

import dataclasses as dc
from typing import ClassVar

import torch
from torch import Tensor

from unalike.contract import Fields
from unalike.settings.knobs import knob
from unalike.vertical.exchange import Hosts, PerParty
from unalike.vertical.fields import Field, answer
from unalike.vertical.losses import LOSSES
from unalike.vertical.method import Me
from unalike.vertical.methods.regression import RESIDUE, SHARE, Regression


@dc.dataclass(frozen=True)
class FedBCD(Regression):
    """Regression with several steps per exchange."""

    steps: int = knob(5, "Q, steps of every party per exchange", least=1)
    order: str = knob("parallel", "who steps when", choices=("parallel", "sequential"))
    reading: str = knob("frozen", "what a host's later steps go by", choices=("frozen", "exact"))

    name: ClassVar[str] = "fedbcd"
    forms: ClassVar[dict[str, str]] = {}

    @property
    def sends(self) -> dict[str, Field]:  # type: ignore[override]
        """What crosses depends on the reading: labels cross in the exact one."""
        up = {"z": dc.replace(SHARE, read="each")}
        if self.reading == "frozen":
            return {**up, "d": RESIDUE}
        return {
            **up,
            "d": RESIDUE,
            "others": Field(to="hosts", tells="the other parties' scores"),
            "label": Field(("rows",), to="hosts", tells="the labels themselves"),
        }

    @answer("rows d")
    def learn(self, me: Me, m: Fields) -> None:
        for _ in range(self.steps):
            self._descend(me, m.rows, m.d)

    @answer("rows d")
    def learn_linear(self, me: Me, m: Fields) -> None:
        start = me.x[m.rows] @ me.theta
        for _ in range(self.steps):
            self._descend(me, m.rows, m.d + (me.x[m.rows] @ me.theta - start) / len(m.rows))

    @answer("rows others label")
    def learn_exact(self, me: Me, m: Fields) -> None:
        loss = LOSSES["binary" if me.outputs == 1 else "classes"]
        y = m.label if me.outputs == 1 else m.label.long()
        for _ in range(self.steps):
            z = m.others + me.x[m.rows] @ me.theta
            self._descend(me, m.rows, loss.residue(z, y) / len(m.rows))

    def step(self, guest: Me, hosts: Hosts, rows: Tensor) -> float | None:
        shares = hosts.call(self.partial, rows=rows).each("z")
        z = self._own(guest, rows) + torch.stack(shares).sum(0)
        before = float(guest.loss.loss(z, guest.y[rows]))
        if self.order == "parallel":
            self._host_steps(guest, hosts, rows, z, shares)
            self._guest_steps(guest, rows, torch.stack(shares).sum(0))
            return before
        self._guest_steps(guest, rows, torch.stack(shares).sum(0))
        for k in range(len(hosts)):
            one = hosts.only(k)
            self._host_steps(guest, one, rows, self._own(guest, rows) + torch.stack(shares).sum(0), [shares[k]])
            shares[k] = one.call(self.partial, rows=rows).each("z")[0]
        return before

    def _host_steps(self, guest: Me, hosts: Hosts, rows: Tensor, z: Tensor, shares: list[Tensor]) -> None:
        y = guest.y[rows]
        if self.reading == "exact" and not guest.loss.linear:
            others = PerParty([z - share for share in shares])
            hosts.call(self.learn_exact, rows=rows, others=others, label=y.double())
        else:
            d = guest.loss.residue(z, y) / len(rows)
            hosts.call(self.learn_linear if self.reading == "exact" else self.learn, rows=rows, d=d)

    def _guest_steps(self, guest: Me, rows: Tensor, others: Tensor) -> None:
        for _ in range(self.steps):
            self._descend(guest, rows, guest.loss.residue(self._own(guest, rows) + others, guest.y[rows]) / len(rows))

    def _own(self, guest: Me, rows: Tensor) -> Tensor:
        return guest.x[rows] @ guest.theta + guest.b

    def _descend(self, me: Me, rows: Tensor, d: Tensor) -> None:
        me.theta = me.theta - self.lr * (me.x[rows].T @ d + self.l2 * me.theta)
        if me.is_guest and self.intercept:
            me.b = me.b - self.lr * torch.sum(d, 0)
