"""Calls of the model, its head and a method's further networks with any vector, as a batch makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from unalike.draws import Draws, KeyedDraws
from unalike.errors import UnalikeError, unknown
from unalike.nn.networks import Network
from unalike.nn.task import FunctionalModule, Task


class ModelCalls:
    """The calls that one batch can make.

    nets: the method's further networks; buffers: BatchNorm's statistics of the model; key, weight, train: as for
    `FunctionalModule`; drawn: returns the batch's random numbers, or their key; trains: the network that is trained
    (its new statistics are left in `statistics`); labelled: whether the samples have labels.
    """

    def __init__(
        self,
        task: Task,
        pure: Callable[[], FunctionalModule],
        nets: Mapping[str, Network],
        buffers: Tensor,
        weight: Tensor,
        key: Tensor | None = None,
        train: bool = True,
        drawn: Callable[[], Tensor | Draws] | None = None,
        trains: str | None = None,
        labelled: bool = True,
    ):
        self.layout, self.classes, self.has_statistics = task.layout, task.outputs, buffers.shape[-1] > 0
        self._losses, self._labelled = task.losses, labelled
        self._pure, self._nets, self._buffers, self._weight = pure, nets, buffers, weight
        self._model_key, self._train, self._drawn, self._trains = key, train, drawn, trains
        self.statistics: Tensor | None = None

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Return one loss per sample."""
        if not self._labelled:
            raise UnalikeError("The public set has no labels, and the loss of its samples was asked for.")
        return self._losses(output, y)

    def forward(self, vector: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the model's (output, features)."""
        pure, weight = self._pure(), self._weight
        if len(x) != len(weight):
            weight = weight.new_full((len(x),), 1 / len(x))
        vector = self.layout.repack(vector, pure.layout)
        out, features, _ = pure(vector, self._buffers, x, self._model_key, weight, self._train, want_features=True)
        # `Task.check` has checked that the head is called
        assert features is not None
        return out, features

    def head(self, vector: Tensor, features: Tensor) -> Tensor:
        """Return the head's output."""
        return self._pure().head(vector, features)

    def net(self, name: str, vector: Tensor, inputs: tuple[Tensor, ...], train: bool) -> Tensor:
        """Return the output of one of the method's networks."""
        if name not in self._nets:
            raise unknown("network", name, self._nets)
        net, weight = self._nets[name], self._weight
        if train and len(inputs[0]) != len(weight):
            weight = weight.new_full((len(inputs[0]),), 1 / len(inputs[0]))
        out, statistics = net(vector, inputs, weight, self.draws().key() if train and net.keyed else None, train)
        if train and name == self._trains:
            self.statistics = statistics.detach()
        return out

    def draws(self) -> Draws:
        """Return the source of this batch's random numbers."""
        if self._drawn is None:
            raise UnalikeError("There are draws in a training's loss and step; elsewhere use me.uniform and its kin.")
        found = self._drawn()
        return KeyedDraws(found, self._weight.dtype) if isinstance(found, Tensor) else found
