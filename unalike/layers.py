"""Layers that behave the same for one client and for a stack of clients.

`prepare` deep-copies a user's module and changes the class of the few layers that cannot be used as they are: dropout
draws from a counter instead of a global generator; BatchNorm and LSTM get forms that live under `vmap`. Names and
parameters stay, so a prepared copy takes the same vector as the module it came from.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unalike import random
from unalike.errors import EngineRefused, UnalikeError

KEY, WEIGHT = (
    "_unalike_key",
    "_unalike_weight",
)  # buffers through which a step hands in its key and sample weights


def _mask(x: Tensor, key: Tensor, p: float, rows: int, shape: tuple[int, ...]) -> Tensor:
    """Keep-or-drop factors; counted sample by sample, so that padding behind a short batch changes nothing."""
    keep = random.uniform(key, (rows, *shape), torch.float32) >= p
    return keep.to(x.dtype) / (1 - p)


class CounterDropout(nn.Dropout):
    """nn.Dropout whose mask is a function of (seed, round, client, step, layer)."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return x * _mask(x, getattr(self, KEY), self.p, x.shape[0], tuple(x.shape[1:]))


class CounterChannelDropout(nn.Dropout2d):
    """nn.Dropout1d/2d/3d likewise: whole channels of [batch, channels, ...]."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        mask = _mask(x, getattr(self, KEY), self.p, x.shape[0], (x.shape[1],))
        return x * mask.reshape(*mask.shape, *([1] * (x.dim() - 2)))


class PureBatchNorm(_BatchNorm):
    """BatchNorm with sample weights (padding counts for nothing) that replaces its statistics instead of writing
    into them, which is what `vmap` and `grad` can follow."""

    def _check_input_dim(self, input: Tensor) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        shape = [1, -1] + [1] * (x.dim() - 2)
        if self.training or self.running_mean is None:
            weight = getattr(self, WEIGHT)
            dims = [0, *range(2, x.dim())]
            positions = x[0, 0].numel()
            w = weight.reshape(-1, *([1] * (x.dim() - 1)))
            mean = (x * w).sum(dims) / positions  # weights of a step sum to one over its samples
            var = ((x - mean.reshape(shape)).square() * w).sum(dims) / positions
            if self.training and self.running_mean is not None and self.running_var is not None:
                count = (weight > 0).sum() * positions
                unbiased = var.detach() * count / (count - 1).clamp(min=1)
                live = (count > 0).to(var.dtype)  # a client that has finished keeps its statistics
                m = self.momentum * live
                self.running_mean = (1 - m) * self.running_mean + m * mean.detach()
                self.running_var = (1 - m) * self.running_var + m * unbiased
        else:
            mean, var = self.running_mean, self.running_var  # type: ignore[assignment]
        y = (x - mean.reshape(shape)) * torch.rsqrt(var.reshape(shape) + self.eps)
        if self.weight is not None:
            y = y * self.weight.reshape(shape) + self.bias.reshape(shape)
        return y


class PureLSTM(nn.LSTM):
    """nn.LSTM unrolled into plain products: slower for one client, but it can be stacked over clients."""

    def forward(self, x: Tensor, state=None):  # type: ignore[override]
        if self.batch_first:
            x = x.transpose(0, 1)  # [time, batch, features] from here on
        directions = 2 if self.bidirectional else 1
        hidden, cells = [], []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(directions):
                suffix = f"_l{layer}" + ("_reverse" if direction else "")
                w_in, w_rec = getattr(self, "weight_ih" + suffix), getattr(self, "weight_hh" + suffix)
                gates_in = F.linear(x, w_in)
                if self.bias:
                    gates_in = gates_in + (getattr(self, "bias_ih" + suffix) + getattr(self, "bias_hh" + suffix))
                index = layer * directions + direction
                if state is None:
                    h = c = torch.zeros_like(gates_in[0, :, : self.hidden_size])
                else:
                    h, c = state[0][index], state[1][index]
                steps = range(x.shape[0])
                out = []
                for t in reversed(steps) if direction else steps:
                    i, f, g, o = (gates_in[t] + F.linear(h, w_rec)).chunk(4, -1)
                    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                    h = torch.sigmoid(o) * torch.tanh(c)
                    out.append(h)
                if direction:
                    out.reverse()
                outputs.append(torch.stack(out))
                hidden.append(h)
                cells.append(c)
            x = torch.cat(outputs, -1) if directions == 2 else outputs[0]
            if self.dropout and self.training and layer < self.num_layers - 1:
                key = random.fold(getattr(self, KEY), layer)
                mask = _mask(x, key, self.dropout, x.shape[1], (x.shape[0], x.shape[2]))
                x = x * mask.transpose(0, 1)
        if self.batch_first:
            x = x.transpose(0, 1)
        return x, (torch.stack(hidden), torch.stack(cells))


def prepare(module: nn.Module, pure: bool) -> nn.Module:
    """A copy for an engine. `pure`: it will be called through `functional_call`, perhaps under `vmap`."""
    module = copy.deepcopy(module)
    for index, (name, layer) in enumerate(module.named_modules()):
        kind = type(layer)
        if kind in (nn.AlphaDropout, nn.FeatureAlphaDropout):
            raise UnalikeError(f"Layer {name!r} is {kind.__name__}, which has no counter-based form: use nn.Dropout.")
        if kind in (nn.GRU, nn.RNN) and pure:
            raise EngineRefused(f"layer {name!r} is {kind.__name__}, which cannot be stacked over clients")
        if isinstance(layer, _BatchNorm):
            if layer.momentum is None and layer.track_running_stats:
                raise UnalikeError(
                    f"Layer {name!r} has momentum=None, a running count that cannot be averaged: give it a momentum."
                )
            if isinstance(layer, nn.SyncBatchNorm):
                raise UnalikeError(f"Layer {name!r} is SyncBatchNorm: use nn.BatchNorm, each client has its own.")
            if pure:
                layer.__class__ = PureBatchNorm
                layer.register_buffer(WEIGHT, torch.zeros(()), persistent=False)
        if kind is nn.Dropout:
            layer.__class__ = CounterDropout
        elif kind in (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d):
            layer.__class__ = CounterChannelDropout
        elif kind is nn.LSTM and (pure or layer.dropout):
            if layer.proj_size:
                raise EngineRefused(f"layer {name!r} is an LSTM with projections, which cannot be stacked")
            layer.__class__ = PureLSTM
        if isinstance(layer, CounterDropout | CounterChannelDropout | PureLSTM):
            layer.register_buffer(KEY, torch.zeros((), dtype=torch.int64), persistent=False)
            layer._unalike_index = index  # the same in every copy: each layer draws from a key of its own
    return module


def keyed_layers(module: nn.Module) -> list[tuple[str, int]]:
    """(buffer name, layer number) of every layer that draws."""
    return [
        (f"{name}.{KEY}" if name else KEY, layer._unalike_index)
        for name, layer in module.named_modules()
        if hasattr(layer, "_unalike_index")
    ]


def weighted_layers(module: nn.Module) -> list[str]:
    """Buffer names of every layer that wants the sample weights."""
    return [f"{n}.{WEIGHT}" if n else WEIGHT for n, m in module.named_modules() if isinstance(m, PureBatchNorm)]
