"""Split networks: every party has a bottom network on its own columns, the guest a top network on all their outputs.

    host → guest    f_k(x_k), the "cut"              guest → host    ∂L/∂f_k, the "slope"

The gradient is that of one network whose first part is block-diagonal; it is *not* the dense network of the same
widths. With `steps` > 1 each party makes several steps per exchange with the others' part as it was (FedBCD,
parallel, frozen).

**Slopes tell labels**: rows of one class get slopes in one direction (Li et al. 2022), and the first components often
separate classes by themselves. `noise` and `clip` of a run bound that, with an ε; encryption does not exist for this
method.
"""

from __future__ import annotations

import dataclasses as dc
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from unalike.contract import Fields
from unalike.draws import torch_seed
from unalike.errors import UnalikeError
from unalike.settings.knobs import knob
from unalike.vertical.exchange import Hosts, PerParty
from unalike.vertical.fields import Field, answer
from unalike.vertical.losses import LOSSES, Loss
from unalike.vertical.method import Me, Vertical


@dc.dataclass(frozen=True)
class SplitNN(Vertical):
    """A network cut between the parties: bottoms of `hidden` and `cut` tanh units, a top of `top` tanh units.

    Subclass it and override `bottom` or `top_net` for networks of your own.
    """

    lr: float = knob(0.1, "step size", above=0)
    cut: tuple[int, ...] = knob((8,), "outputs of the parties' bottoms, the guest's first; one number for all")
    hidden: int = knob(0, "units of a bottom's first layer; 0: it has one layer", least=0)
    top: int = knob(16, "units of the top's first layer; 0: it has one layer", least=0)
    steps: int = knob(1, "steps of every party per exchange", least=1)

    name: ClassVar[str] = "split-network"
    sends: ClassVar[dict[str, Field]] = {
        "cut": Field(("rows", "width"), tells="how a host's network sees every row; its columns can be guessed"),
        "slope": Field(("rows", "width"), to="hosts", tells="labels, by its direction and length"),
    }  # fmt: skip
    keeps: ClassVar[tuple[str, ...]] = ("net", "top")

    def __post_init__(self) -> None:
        if not isinstance(self.cut, tuple):  # of a list, as a message brings it, or one number
            object.__setattr__(self, "cut", (self.cut,) if isinstance(self.cut, int) else tuple(self.cut))
        if not self.cut or any(type(width) is not int or width < 1 for width in self.cut):
            raise UnalikeError(f"SplitNN cut must be whole numbers of at least 1; got {self.cut!r}.")
        super().__post_init__()

    def loss(self, y: Tensor, classes: int | None) -> Loss:
        return LOSSES["number" if y.is_floating_point() else "classes"]

    def sizes(self, index: int) -> dict[str, int]:
        return {"width": self.width(index)}

    def width(self, index: int) -> int:
        """Return how many outputs the bottom of a party has."""
        if len(self.cut) > 1 and index >= len(self.cut):
            raise UnalikeError(
                f"SplitNN cut={self.cut!r} has no width for party {index}: give one for each, or one for all."
            )
        return self.cut[index] if len(self.cut) > 1 else self.cut[0]

    def bottom(self, me: Me) -> nn.Module:
        """Return a party's own network."""
        widths = [me.columns, *([self.hidden] if self.hidden else []), self.width(me.index)]
        layers = [(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(widths)]
        return nn.Sequential(*(part for layer in layers for part in layer))

    def top_net(self, me: Me) -> nn.Module:
        """Return the guest's network on all cuts."""
        width = sum(self.width(k) for k in range(me.parties))
        first = [nn.Linear(width, self.top), nn.Tanh()] if self.top else []
        return nn.Sequential(*first, nn.Linear(self.top or width, me.outputs))

    def start(self, me: Me) -> None:
        with torch_seed(me.seed, "vertical network", me.name):
            me.net = self.bottom(me).double()
            if me.is_guest:
                me.top = self.top_net(me).double()

    @answer("rows", gives="cut")
    def forward(self, me: Me, m: Fields) -> dict[str, Tensor]:
        return {"cut": self._out(me, m.rows).detach()}

    @answer("rows slope")
    def backward(self, me: Me, m: Fields) -> None:
        for _ in range(self.steps):
            parameters = list(me.net.parameters())
            me.descend(parameters, torch.autograd.grad(self._out(me, m.rows), parameters, m.slope), self.lr)

    def step(self, guest: Me, hosts: Hosts, rows: Tensor) -> float | None:
        cuts = [cut.requires_grad_() for cut in hosts.call(self.forward, rows=rows).each("cut")] if len(hosts) else []
        first = 0.0
        slopes: list[Tensor] = []
        for turn in range(self.steps):
            loss = guest.loss.loss(guest.top(torch.cat([self._out(guest, rows), *cuts], 1)), guest.y[rows])
            mine = [*guest.net.parameters(), *guest.top.parameters()]
            gradients = torch.autograd.grad(loss, [*mine, *cuts])
            if turn == 0:
                first, slopes = float(loss.detach()), list(gradients[len(mine) :])
            guest.descend(mine, gradients[: len(mine)], self.lr)
        if len(hosts):
            hosts.call(self.backward, rows=rows, slope=PerParty(slopes))
        return first

    def scores(self, guest: Me, hosts: Hosts, rows: Tensor) -> Tensor:
        cuts = hosts.call(self.forward, rows=rows).each("cut") if len(hosts) else []
        with torch.no_grad():
            return guest.top(torch.cat([self._out(guest, rows), *cuts], 1))

    def _out(self, me: Me, rows: Tensor) -> Tensor:
        """Return a party's cut; zeros for rows that it does not have."""
        out = me.net(me.x[rows])
        return out if len(me.present) != len(me.x) or me.present.all() else out * me.present[rows][:, None]
