"""Vertical regression, in clear: the survey's Algorithm 2 with its roles put right (the guest has the labels).

    z = Σ_k X_k θ_k + b        d = ∂L/∂z, mean over the batch        θ_k ← θ_k − η (X_kᵀ d + λ θ_k)

Hosts send z_k, the guest returns d. It is centralised gradient descent on the joined columns, to the last bits. The
intercept is the guest's and is not shrunk. **Hosts learn the labels**: the sign of a row's d is its label, at any batch
size. `protection="paillier"` or `"ckks"` hides d, `"coordinator"` hides z_k too.
"""

from __future__ import annotations

import dataclasses as dc
from typing import ClassVar

import torch
from torch import Tensor

from unalike.contract import Fields
from unalike.settings.knobs import knob
from unalike.vertical.exchange import Hosts
from unalike.vertical.fields import Field, answer
from unalike.vertical.method import Me, Vertical

SHARE = Field(
    read="sum",
    tells="each host's share of every row's score",
    sum_tells="the sum of the hosts' shares of every row's score, and no host's own",
)
RESIDUE = Field(to="hosts", tells="the labels: the sign of a row's number is its label")


@dc.dataclass(frozen=True)
class Regression(Vertical):
    """What all forms of regression share: scores are sums of the parties' shares."""

    lr: float = knob(0.1, "step size", above=0)
    l2: float = knob(0.0, "strength of the penalty λ/2 |θ|²; the intercept has none", least=0)
    intercept: bool = knob(True, "whether the guest learns an intercept")

    sends: ClassVar[dict[str, Field]] = {"z": SHARE, "d": RESIDUE}
    keeps: ClassVar[tuple[str, ...]] = ("theta", "b")

    def start(self, me: Me) -> None:
        me.theta = torch.zeros(me.columns, me.outputs, dtype=torch.float64)
        me.b = torch.zeros(me.outputs, dtype=torch.float64)

    @answer("rows", gives="z")
    def partial(self, me: Me, m: Fields) -> dict[str, Tensor]:
        return {"z": me.x[m.rows] @ me.theta}

    @answer("rows d")
    def learn(self, me: Me, m: Fields) -> None:
        me.theta = me.theta - self.lr * (me.x[m.rows].T @ m.d + self.l2 * me.theta)
        if me.is_guest and self.intercept:
            me.b = me.b - self.lr * m.d.sum(0)

    def scores(self, guest: Me, hosts: Hosts, rows: Tensor) -> Tensor:
        own = guest.x[rows] @ guest.theta + guest.b
        return own + hosts.call(self.partial, rows=rows).sum("z") if len(hosts) else own

    def step(self, guest: Me, hosts: Hosts, rows: Tensor) -> float | None:
        z, y = self.scores(guest, hosts, rows), guest.y[rows]
        hosts.also(guest).call(self.learn, rows=rows, d=guest.loss.residue(z, y) / len(rows))
        return float(guest.loss.loss(z, y))


@dc.dataclass(frozen=True)
class LogisticRegression(Regression):
    """Logistic regression: two classes, or several by softmax."""

    name: ClassVar[str] = "logistic"
    tasks: ClassVar[tuple[str, ...]] = ("binary", "classes")
    forms: ClassVar[dict[str, str]] = {
        "paillier": "sealed-logistic", "ckks": "sealed-logistic", "coordinator": "hardy",
    }  # fmt: skip


@dc.dataclass(frozen=True)
class LinearRegression(Regression):
    """Linear regression: a number to predict, by half the squared error."""

    name: ClassVar[str] = "linear"
    tasks: ClassVar[tuple[str, ...]] = ("number",)
    forms: ClassVar[dict[str, str]] = {"paillier": "sealed-linear", "ckks": "sealed-linear"}
