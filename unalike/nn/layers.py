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
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from unalike import draws
from unalike.errors import EngineRefused, UnalikeError

KEY, WEIGHT = "_unalike_key", "_unalike_weight"  # buffers by which a step hands in its key and its sample weights


def _mask(layer: nn.Module, x: Tensor, p: float, shape: tuple[int, ...]) -> Tensor:
    """Keep-or-drop factors. Each is drawn by its place along every dimension and not by a running number: padding
    behind a short batch changes nothing, whichever dimension the batch is. A layer called twice draws anew."""
    key = getattr(layer, KEY)
    setattr(layer, KEY, key + 1)
    places = [torch.arange(size, device=x.device) for size in shape]
    for place in places[:-1]:
        key = draws.bits(key[..., None], place)
    keep = draws.whole(key[..., None], places[-1]) >= round(p * (1 << 24))
    return keep.to(x.dtype) * (1 / (1 - p) if p < 1 else 0.0)


class CounterDropout(nn.Dropout):
    """nn.Dropout whose mask is a function of (seed, round, client, step, layer)."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return x * _mask(self, x, self.p, tuple(x.shape))


class CounterChannelDropout(nn.Dropout2d):
    """nn.Dropout1d/2d/3d likewise: whole channels of [batch, channels, ...]."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        mask = _mask(self, x, self.p, tuple(x.shape[:2]))
        return x * mask.reshape(*mask.shape, *([1] * (x.dim() - 2)))


class LoneBatchNorm(_BatchNorm):
    """BatchNorm for which a batch with a single value a channel is no error: it has no variance, so it is normalised
    with the running statistics, as in evaluation, and leaves them as they are."""

    _unalike_kind: type[_BatchNorm]

    def _check_input_dim(self, input: Tensor) -> None:
        self._unalike_kind._check_input_dim(self, input)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.dim() > 1 and x.numel() == x.shape[1]:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


class PureBatchNorm(LoneBatchNorm):
    """The same with sample weights (padding counts for nothing); it replaces its statistics instead of writing into
    them, which is what `vmap` and `grad` can follow."""

    running_mean: Tensor
    running_var: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)
        shape = [1, -1] + [1] * (x.dim() - 2)
        mean, var = self.running_mean, self.running_var
        if self.training:
            weight = getattr(self, WEIGHT)
            dims = [0, *range(2, x.dim())]
            positions = x[0, 0].numel()
            w = weight.reshape(-1, *([1] * (x.dim() - 1))) / positions  # weights sum to one over the real samples
            own_mean = (x * w).sum(dims)
            own_var = ((x - own_mean.reshape(shape)).square() * w).sum(dims)
            count = (weight > 0).sum() * positions
            many = (count > 1).to(own_var.dtype)
            mean, var = many * own_mean + (1 - many) * mean, many * own_var + (1 - many) * var
            unbiased = own_var.detach() * count / (count - 1).clamp(min=1)
            m = self.momentum * many
            self.running_mean = (1 - m) * self.running_mean + m * own_mean.detach()
            self.running_var = (1 - m) * self.running_var + m * unbiased
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
                x = x * _mask(self, x, self.dropout, tuple(x.shape))
        if self.batch_first:
            x = x.transpose(0, 1)
        return x, (torch.stack(hidden), torch.stack(cells))


def prepare(module: nn.Module, pure: bool) -> nn.Module:
    """Return a copy for an engine. `pure`: it will be called through `functional_call`, perhaps under `vmap`."""
    module = copy.deepcopy(module)
    for index, (name, layer) in enumerate(module.named_modules()):
        kind = type(layer)
        if kind in (nn.AlphaDropout, nn.FeatureAlphaDropout):
            raise UnalikeError(f"Layer {name!r} is {kind.__name__}, which has no counter-based form: use nn.Dropout.")
        if isinstance(layer, nn.SyncBatchNorm):
            raise UnalikeError(f"Layer {name!r} is SyncBatchNorm: use nn.BatchNorm, each client has its own.")
        if isinstance(layer, nn.GRU | nn.RNN) and pure:
            raise EngineRefused(f"layer {name!r} is {kind.__name__}, which cannot be stacked over clients")
        if isinstance(layer, _BatchNorm):
            _prepare_batch_norm(name, layer, pure)
        elif isinstance(layer, _NormBase) and layer.track_running_stats and pure:
            raise EngineRefused(f"layer {name!r} is {kind.__name__} with running statistics, which cannot be stacked")
        if kind is nn.Dropout:
            layer.__class__ = CounterDropout
        elif kind in (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d):
            layer.__class__ = CounterChannelDropout
        elif isinstance(layer, nn.LSTM) and (pure or layer.dropout):
            if kind is not nn.LSTM or layer.proj_size:
                what = "an LSTM with projections" if layer.proj_size else f"an LSTM of its own kind ({kind.__name__})"
                if not pure:
                    raise UnalikeError(
                        f"Layer {name!r} is {what}, whose dropout has no counter-based form: set it to 0."
                    )
                raise EngineRefused(f"layer {name!r} is {what}, which cannot be stacked over clients")
            layer.__class__ = PureLSTM
        if isinstance(layer, CounterDropout | CounterChannelDropout | PureLSTM):
            layer.register_buffer(KEY, torch.zeros((), dtype=torch.int64), persistent=False)
            layer._unalike_index = index  # the same in every copy: each layer draws from a key of its own
    return module


def _prepare_batch_norm(name: str, layer: _BatchNorm, pure: bool) -> None:
    kind = type(layer)
    if not layer.track_running_stats or layer.running_mean is None:
        raise UnalikeError(
            f"Layer {name!r} has no running statistics: what it computes in evaluation would depend on which samples "
            "are evaluated together: set track_running_stats=True, or use GroupNorm."
        )
    if layer.momentum is None:
        raise UnalikeError(
            f"Layer {name!r} has momentum=None, a running count that cannot be averaged: give it a momentum."
        )
    if kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
        layer._unalike_kind = kind  # type: ignore[assignment]
        layer.__class__ = PureBatchNorm if pure else LoneBatchNorm
    elif pure:
        raise EngineRefused(f"layer {name!r} is {kind.__name__}, a BatchNorm that cannot be stacked over clients")
    if pure:
        layer.register_buffer(WEIGHT, torch.zeros(()), persistent=False)


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


def norm_names(module: nn.Module) -> frozenset[str]:
    """Return the names of the parameters of layers that normalise."""
    kinds = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
    owners = [name for name, layer in module.named_modules() if isinstance(layer, kinds)]
    return frozenset(
        name for name, _ in module.named_parameters() if any(name.rpartition(".")[0] == owner for owner in owners)
    )
