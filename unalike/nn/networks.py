"""Further networks of a method, for example a generator: each is one flat vector, and can be called with any vector."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from unalike import draws
from unalike.errors import UnalikeError, first_line
from unalike.nn import layers
from unalike.nn.layout import Layout


class Network:
    """A network that a method declares in `nets`.

    Its vector holds the weights, then BatchNorm's statistics (beginning at `weights`): they travel with the vector, and
    no optimizer changes them.
    """

    def __init__(
        self, name: str, build: Callable[[dict[str, int]], nn.Module], sizes: dict[str, int], seed: int, like: Tensor
    ):
        """build: a function of the sizes ("features", "classes", …); like: a tensor of the run's dtype and device."""
        with draws.torch_seed(seed, "net", name):
            try:
                module = build(sizes)
            except Exception as error:
                raise UnalikeError(f"The network {name!r} cannot be built: {first_line(error)}") from error
        if not isinstance(module, nn.Module):
            raise UnalikeError(f"The network {name!r} must be a torch.nn.Module; got {type(module).__name__}.")
        if any(isinstance(layer, nn.AlphaDropout | nn.FeatureAlphaDropout) for layer in module.modules()):
            raise UnalikeError(
                f"The network {name!r} has a dropout for SELU, which is for models alone: use nn.Dropout."
            )
        self.name = name
        self.module = layers.prepare(module.to(like), pure=True).requires_grad_(False)
        self.keyed, self.weighted = layers.keyed_layers(self.module), layers.weighted_layers(self.module)
        tensors = dict(self.module.named_parameters())
        floats = layers.statistics(self.module)
        self.weights = sum(p.numel() for p in tensors.values())
        self.layout = Layout((n, tuple(t.shape)) for n, t in (*tensors.items(), *floats.items()))
        self.size = self.layout.size
        self.start = self.layout.flat({**tensors, **floats}).to(like)

    def copy(self) -> Network:
        """Return a copy with its own module: a module may be called by only one thread at a time."""
        other = copy.copy(self)
        other.module = layers.copied(self.module)
        return other

    def __call__(
        self, vector: Tensor, inputs: tuple[Any, ...], weight: Tensor, key: Tensor | None = None, train: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the output with this vector, and BatchNorm's statistics afterwards (new ones in training mode).

        weight: of each row of the inputs, 0 for padding; key: for dropout.
        """
        if self.module.training != train:
            self.module.train(train)
        tensors = self.layout.views(vector)
        if train:
            if key is not None:
                tensors.update({name: draws.fold(key, index) for name, index in self.keyed})
            tensors.update(dict.fromkeys(self.weighted, weight))
        out = functional_call(self.module, tensors, inputs)
        statistics = [tensors[name].reshape(-1) for name, offset, *_ in self.layout.places if offset >= self.weights]
        return out, torch.cat(statistics) if statistics else vector[..., self.size :]
