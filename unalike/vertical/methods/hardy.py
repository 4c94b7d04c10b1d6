"""Logistic regression with a coordinator that holds the key (Hardy et al. 2017, our reading).

The loss is its second-order Taylor series, log 2 − y z/2 + z²/8 with y = ±1, so that four times the residue, z − 2y,
is a plain sum, which can be made under encryption:

    host → guest          [z_k]                             under the coordinator's key
    guest → host          [z − 2y]                          the guest's part is a fresh encryption
    party → coordinator   [X_kᵀ(z − 2y) + mask]             passed on by the guest
    coordinator → party   X_kᵀ(z − 2y) + mask               the party takes its mask off

Neither the guest nor hosts see another's z; the coordinator sees masked numbers alone, and must not work together
with any party. Each party sees its own gradient: batches must be large, as in `sealed`. The optimum is not that of
logistic regression, and for |z| above 3 the series is far off: columns must be standardised. The training loss is
nobody's to see.
"""

from __future__ import annotations

import dataclasses as dc
from typing import ClassVar

import torch
from torch import Tensor

from unalike.contract import Fields
from unalike.errors import UnalikeError
from unalike.settings.knobs import knob
from unalike.vertical import ciphers
from unalike.vertical.exchange import Hosts, PerParty
from unalike.vertical.fields import Field, answer
from unalike.vertical.method import Me
from unalike.vertical.methods.regression import SHARE, LogisticRegression

SEALED = "nothing without the coordinator's key"


@dc.dataclass(frozen=True)
class HardyLogistic(LogisticRegression):
    """Logistic regression by the Taylor loss, with a coordinator."""

    bits: int = knob(2048, "length of the Paillier key", least=512, most=8192)
    randomness: str = knob("short", "Paillier's noise: short exponents, or the textbook's", choices=("short", "full"))

    name: ClassVar[str] = "hardy"
    tasks: ClassVar[tuple[str, ...]] = ("binary",)
    forms: ClassVar[dict[str, str]] = {}
    protected: ClassVar[bool] = True
    coordinated: ClassVar[bool] = True
    sends: ClassVar[dict[str, Field]] = {
        "z": dc.replace(
            SHARE,
            tells="each host's share of the score of rows to be tested or predicted",
            sum_tells="the sum of the hosts' shares of the score of rows to be tested or predicted",
        ),
        "key": Field((), kind="bytes", tells="the coordinator's public key"),
        "public": Field((), to="hosts", kind="bytes", tells="the coordinator's public key"),
        "sealed_z": Field(sealed=True, tells=SEALED),
        "sealed_d": Field(to="hosts", sealed=True, tells=SEALED),
        "slope": Field(("columns", "outputs"), sealed=True, masked=True, tells=SEALED),
        "closed": Field((), to="coordinator", sealed=True, masked=True, tells="nothing: a party's mask is over it"),
        "open": Field((), kind="bytes", masked=True, tells="the guest's gradient; hosts' are masked"),
        "opened": Field((), to="hosts", kind="bytes", masked=True, tells="its gradient; labels in small batches"),
    }  # fmt: skip

    def start(self, me: Me) -> None:
        super().start(me)
        if me.is_guest and self.intercept:
            me.theta = torch.zeros(me.columns + 1, me.outputs, dtype=torch.float64)

    def begin(self, guest: Me, hosts: Hosts) -> None:
        (key,) = hosts.coordinator.call(self.make_key).each("key")
        guest.scheme = ciphers.taken("paillier", key, self.bits, self.randomness)
        hosts.call(self.take_key, public=key)

    @answer("", gives="key")
    def make_key(self, me: Me, m: Fields) -> dict[str, Tensor]:
        me.scheme = ciphers.made("paillier", self.bits, self.randomness)
        return {"key": me.scheme.public()}

    @answer("public")
    def take_key(self, me: Me, m: Fields) -> None:
        me.scheme = ciphers.taken("paillier", m.public, self.bits, self.randomness)

    @answer("rows", gives="z")
    def partial(self, me: Me, m: Fields) -> dict[str, Tensor]:
        if me.training[m.rows].any():
            raise UnalikeError(f"{me.name} does not tell its share of training rows in clear.")
        return super().partial(me, m)

    @answer("rows", gives="sealed_z")
    def sealed_share(self, me: Me, m: Fields) -> dict[str, Tensor]:
        return {"sealed_z": me.scheme.seal(me.x[m.rows] @ me.theta)}

    @answer("rows sealed_d", gives="slope")
    def gradient(self, me: Me, m: Fields) -> dict[str, Tensor]:
        sealed, me.mask = me.scheme.products(m.sealed_d, self._x(me, m.rows), me.outputs)
        return {"slope": sealed}

    @answer("closed", gives="open")
    def open_masked(self, me: Me, m: Fields) -> dict[str, Tensor]:
        return {"open": me.scheme.opened(m.closed, None, "the guest")}

    @answer("rows opened")
    def descend(self, me: Me, m: Fields) -> None:
        total = me.scheme.unmasked(m.opened, me.mask).reshape(me.theta.shape)
        shrunk = me.theta.clone()
        if me.is_guest and self.intercept:
            shrunk[-1] = 0
        me.theta = me.theta - self.lr * (total / (4 * len(m.rows)) + self.l2 * shrunk)

    def step(self, guest: Me, hosts: Hosts, rows: Tensor) -> float | None:
        shares = hosts.call(self.sealed_share, rows=rows).each("sealed_z")
        own = self._x(guest, rows) @ guest.theta - 2 * (2 * guest.y[rows].double()[:, None] - 1)
        total = guest.scheme.added([*shares, guest.scheme.seal(own)], len(rows) * guest.outputs, hosts.names)
        slopes = hosts.call(self.gradient, rows=rows, sealed_d=total).each("slope")
        mine = self.gradient(guest, Fields(rows=rows, sealed_d=total))["slope"]
        (opened,) = hosts.coordinator.call(self.open_masked, closed=torch.cat([mine, *slopes])).each("open")
        counts = [len(guest.theta), *(hosts.numbers("slope", k) for k in range(len(hosts)))]
        parts = guest.scheme.parts(opened, counts, "the coordinator")
        hosts.call(self.descend, rows=rows, opened=PerParty(parts[1:]))
        self.descend(guest, Fields(rows=rows, opened=parts[0]))
        return None

    def scores(self, guest: Me, hosts: Hosts, rows: Tensor) -> Tensor:
        own = self._x(guest, rows) @ guest.theta
        return own + hosts.call(self.partial, rows=rows).sum("z") if len(hosts) else own

    def _x(self, me: Me, rows: Tensor) -> Tensor:
        x = me.x[rows]
        return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1) if me.is_guest and self.intercept else x
