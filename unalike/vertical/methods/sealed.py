"""Regression under encryption between guest and hosts, without a third party (Yang et al., our reading).

    host → guest    z_k = X_k θ_k                                in clear
    guest → host    [r], r = σ(z) − y of each row                under the guest's key
    host → guest    [X_kᵀ r + mask]                              the mask hides the gradient from the guest
    guest → host    X_kᵀ r + mask                                the host takes the mask off and makes its step

The true logistic loss, as no product of secrets is needed. The guest sees the hosts' z_k. A host sees its own
gradient: with no more rows in a batch than it has columns it can solve for r, and so for the labels; batches of fewer
than 16 × its columns are refused (`small_batches=True` takes them). That is a bound for one gradient: over many
epochs a host gathers more equations, each at another θ.

Numbers are whole multiples: columns of 2⁻²⁰, residues of 2⁻⁴⁰. `cipher="ckks"` is approximate instead (about 1e-6);
its mask is only a thousand times the gradient's bound, so the guest still learns the gradient's first digits if it is
that large.
"""

from __future__ import annotations

import dataclasses as dc
from typing import ClassVar

from torch import Tensor

from unalike.contract import Fields
from unalike.settings.knobs import knob
from unalike.vertical import ciphers
from unalike.vertical.exchange import Hosts, PerParty
from unalike.vertical.fields import Field, answer
from unalike.vertical.method import Me
from unalike.vertical.methods.regression import SHARE, LinearRegression, LogisticRegression, Regression


@dc.dataclass(frozen=True)
class Sealed(Regression):
    """What both sealed regressions share."""

    cipher: str = knob("paillier", "the encryption", choices=("paillier", "ckks"))
    bits: int = knob(2048, "length of the Paillier key", least=512, most=8192)
    randomness: str = knob("short", "Paillier's noise: short exponents, or the textbook's", choices=("short", "full"))

    sends: ClassVar[dict[str, Field]] = {
        "key": Field((), to="hosts", kind="bytes", tells="the guest's public key"),
        "z": SHARE,
        "residue": Field(to="hosts", sealed=True, tells="nothing without the guest's key"),
        "slope": Field(("columns", "outputs"), sealed=True, masked=True, tells="nothing: the host's mask is over it"),
        "opened": Field(
            ("columns", "outputs"), to="hosts", kind="bytes", masked=True,
            tells="the host's own gradient, once it takes its mask off; in small batches that tells the labels",
        ),
    }  # fmt: skip
    protected: ClassVar[bool] = True

    def begin(self, guest: Me, hosts: Hosts) -> None:
        guest.scheme = ciphers.made(self.cipher, self.bits, self.randomness)
        hosts.call(self.take_key, key=guest.scheme.public())

    @answer("key")
    def take_key(self, me: Me, m: Fields) -> None:
        me.scheme = ciphers.taken(self.cipher, m.key, self.bits, self.randomness)

    @answer("rows residue", gives="slope")
    def gradient(self, me: Me, m: Fields) -> dict[str, Tensor]:
        sealed, me.mask = me.scheme.products(m.residue, me.x[m.rows], me.outputs)
        return {"slope": sealed}

    @answer("rows opened")
    def descend(self, me: Me, m: Fields) -> None:
        total = me.scheme.unmasked(m.opened, me.mask).reshape(me.columns, me.outputs)
        me.theta = me.theta - self.lr * (total / len(m.rows) + self.l2 * me.theta)

    def step(self, guest: Me, hosts: Hosts, rows: Tensor) -> float | None:
        z, y = self.scores(guest, hosts, rows), guest.y[rows]
        residue = guest.loss.residue(z, y)
        replies = hosts.call(self.gradient, rows=rows, residue=guest.scheme.seal(residue))
        counts = [hosts.numbers("slope", k) for k in range(len(hosts))]
        opened = [
            guest.scheme.opened(s, n, who) for s, n, who in zip(replies.each("slope"), counts, hosts.names, strict=True)
        ]
        hosts.call(self.descend, rows=rows, opened=PerParty(opened))
        self.learn(guest, Fields(rows=rows, d=residue / len(rows)))
        return float(guest.loss.loss(z, y))


@dc.dataclass(frozen=True)
class SealedLogistic(Sealed, LogisticRegression):
    """Logistic regression whose residues are encrypted."""

    name: ClassVar[str] = "sealed-logistic"
    forms: ClassVar[dict[str, str]] = {}


@dc.dataclass(frozen=True)
class SealedLinear(Sealed, LinearRegression):
    """Linear regression whose residues are encrypted."""

    name: ClassVar[str] = "sealed-linear"
    forms: ClassVar[dict[str, str]] = {}
