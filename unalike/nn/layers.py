"""Layers that behave the same for one client and for a stack of clients.

`prepare` deep-copies a user's module and changes the class of the few layers that cannot be used as they are: dropout
draws from a counter instead of a global generator; BatchNorm, attention and recurrent layers get forms that live under
`vmap`. Names and parameters stay, so a prepared copy takes the same vector as the module it came from.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from unalike.errors import EngineRefused, UnalikeError
from unalike.nn.keyed import KEY, KeyedAttention, layer_mask
from unalike.nn.layout import layer_of
from unalike.nn.linear import DirectLinear, better
from unalike.nn.normed import make_plain
from unalike.nn.recurrent import CELLS, PURE, Unrolled

# the buffer in which a step passes its sample weights
WEIGHT = "_unalike_weight"


class CounterDropout(nn.Dropout):
    """nn.Dropout with a mask that is a function of (seed, round, client, step, layer)."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return input
        return input * layer_mask(self, input, self.p, tuple(input.shape))


class CounterChannelDropout(nn.Dropout2d):
    """nn.Dropout1d/2d/3d likewise: whole channels of [batch, channels, ...]."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return input
        mask = layer_mask(self, input, self.p, tuple(input.shape[:2]))
        return input * mask.reshape(*mask.shape, *([1] * (input.dim() - 2)))


class PoolingFirst(nn.Sequential):
    """nn.Sequential that takes the maximum of a pooling before the ReLU ahead of it: the same numbers and gradients to
    the bit, and the ReLU has a quarter of the work. Its layers are seen in their usual order."""

    def forward(self, input: Tensor) -> Tensor:
        waiting: nn.Module | None = None
        for layer in self:
            if waiting is not None:
                if isinstance(layer, nn.MaxPool2d) and not layer.return_indices and not _hooked(layer):
                    input, waiting = torch.relu_(layer(input)), None
                    continue
                input, waiting = waiting(input), None
            if type(layer) is nn.ReLU and not _hooked(layer):
                waiting = layer
            else:
                input = layer(input)
        return input if waiting is None else waiting(input)


def _hooked(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks)


class LoneBatchNorm(_BatchNorm):
    """BatchNorm that accepts a batch with a single value per channel: such a batch has no variance, so it is normalised
    with the running statistics, as in evaluation, and leaves them unchanged."""

    _unalike_kind: type[_BatchNorm]

    def _check_input_dim(self, input: Tensor) -> None:
        self._unalike_kind._check_input_dim(self, input)

    def forward(self, input: Tensor) -> Tensor:
        if self.training and input.dim() > 1 and input.numel() == input.shape[1]:
            return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(input)


class PureBatchNorm(LoneBatchNorm):
    """The same with sample weights (padding does not count); it replaces its statistics instead of writing into them,
    as `vmap` and `grad` require."""

    running_mean: Tensor
    running_var: Tensor

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        shape = [1, -1] + [1] * (input.dim() - 2)
        mean, var = self.running_mean, self.running_var
        if self.training:
            weight = getattr(self, WEIGHT)
            dims = [0, *range(2, input.dim())]
            positions = input[0, 0].numel()
            w = weight.reshape(-1, *([1] * (input.dim() - 1))) / positions  # weights sum to one over the real samples
            own_mean = (input * w).sum(dims)
            own_var = ((input - own_mean.reshape(shape)).square() * w).sum(dims)
            count = (weight > 0).sum() * positions
            many = (count > 1).to(own_var.dtype)
            mean, var = many * own_mean + (1 - many) * mean, many * own_var + (1 - many) * var
            self.update_statistics(own_mean.detach(), own_var.detach(), count, many)
        y = (input - mean.reshape(shape)) * torch.rsqrt(var.reshape(shape) + self.eps)
        if self.weight is not None:
            y = y * self.weight.reshape(shape) + self.bias.reshape(shape)
        return y

    def update_statistics(self, mean: Tensor, var: Tensor, count: Tensor, many: Tensor) -> None:
        """Bring the running statistics nearer to those of a batch; many: 1, or 0 where it has a single value per
        channel and changes nothing."""
        m = many * (self.momentum or 0.0)
        self.running_mean = (1 - m) * self.running_mean + m * mean
        self.running_var = (1 - m) * self.running_var + m * (var * count / (count - 1).clamp(min=1))


class SafeGroupNorm(nn.GroupNorm):
    """GroupNorm, also of what the model was given: with its channels last and no gradient of its own PyTorch's backward
    pass ends the process on a CPU (torch 2.13)."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input if input.requires_grad else input.contiguous())


class DirectEncoder(nn.TransformerEncoder):
    """An encoder that does not look at its mask to find out whether it is causal: a GPU would wait for the answer, and
    no graph can be captured. The mask itself says all."""

    def forward(self, src: Tensor, mask: Tensor | None = None, *given: Any, **more: Any) -> Tensor:
        if len(given) < 2:
            more["is_causal"] = bool(more.get("is_causal"))
        return super().forward(src, mask, *given, **more)


class DirectDecoder(nn.TransformerDecoder):
    """A decoder that does not look at its mask either."""

    def forward(self, tgt: Tensor, memory: Tensor, *given: Any, **more: Any) -> Tensor:
        if len(given) < 5:
            more["tgt_is_causal"] = bool(more.get("tgt_is_causal"))
        return super().forward(tgt, memory, *given, **more)


DIRECT: dict[type[nn.Module], type[nn.Module]] = {
    nn.TransformerEncoder: DirectEncoder,
    nn.TransformerDecoder: DirectDecoder,
}


class Enlarging(nn.ConvTranspose2d):
    """A transposed convolution whose windows do not overlap, as a product for each pixel: in a stack, cuDNN would take
    one client after another."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        if input.dim() != 4 or output_size is not None:
            return super().forward(input, output_size)
        (b, _, h, w), (high, wide) = input.shape, self.kernel_size
        y = (input.movedim(1, -1) @ self.weight.flatten(1)).unflatten(-1, (self.out_channels, high, wide))
        y = y.permute(0, 3, 1, 4, 2, 5).reshape(b, self.out_channels, h * high, w * wide)
        return y if self.bias is None else y + self.bias[:, None, None]

    @staticmethod
    def fits(layer: nn.Module) -> bool:
        """Return whether a layer is such a convolution."""
        if type(layer) is not nn.ConvTranspose2d or layer.groups != 1 or layer.dilation != (1, 1):
            return False
        return layer.kernel_size == layer.stride and not any((*layer.padding, *layer.output_padding))


class PureEmbeddingBag(nn.EmbeddingBag):
    """nn.EmbeddingBag of bags of one length, [batch, length], in plain operations: its own has no rule for stacks."""

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        if input.dim() != 2 or offsets is not None or self.max_norm is not None or self.scale_grad_by_freq:
            return super().forward(input, offsets, per_sample_weights)
        rows = F.embedding(input, self.weight)
        if per_sample_weights is not None:
            rows = rows * per_sample_weights[..., None]
        there = (input != (-1 if self.padding_idx is None else self.padding_idx))[..., None]  # no token is -1
        if self.mode == "max":
            rows = torch.where(there, rows, -torch.inf).max(1).values
            return torch.where(there.any(1), rows, 0)
        total = torch.where(there, rows, 0).sum(1)
        return total / there.sum(1).clamp(min=1) if self.mode == "mean" else total


def copied(module: nn.Module) -> nn.Module:
    """Return a deep copy of a module."""
    return copy.deepcopy(module, computed(module))


def moved(module: nn.Module, device: torch.device | str, dtype: torch.dtype) -> nn.Module:
    """Do `module.to`, which by itself would take the imaginary part of complex buffers away."""
    kept = [(name.rpartition("."), b) for name, b in module.named_buffers() if b.is_complex()]
    for (owner, _, name), _ in kept:
        setattr(module.get_submodule(owner), name, None)
    module.to(device=device, dtype=dtype)
    for (owner, _, name), buffer in kept:
        setattr(module.get_submodule(owner), name, buffer.to(device=device, dtype=dtype.to_complex()))
    return module


def computed(module: nn.Module) -> dict[int, Any]:
    """Return copies of the tensors that layers have computed and keep, as `weight_norm` does, in the form that
    `deepcopy` takes: by itself it refuses to copy them. Of what a call in a stack has left behind nothing is kept."""
    out: dict[int, Any] = {}
    for t in _tensors([vars(layer) for layer in module.modules()]):
        if torch._C._functorch.is_functorch_wrapped_tensor(t):
            out[id(t)] = torch.empty(0)
        elif not t.is_leaf:
            out[id(t)] = t.detach().clone()
    return out


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _tensors(inner)


def prepare(module: nn.Module, pure: bool) -> nn.Module:
    """Return a copy of a module for an engine. pure: it will be called through `functional_call`, perhaps under
    `vmap`."""
    module = copied(module)
    for index, (name, layer) in enumerate(module.named_modules()):
        kind = type(layer)
        if pure:
            make_plain(layer)
        if isinstance(layer, nn.SyncBatchNorm):
            raise UnalikeError(f"Layer {name!r} is SyncBatchNorm: use nn.BatchNorm, each client has its own.")
        if isinstance(layer, _BatchNorm):
            _prepare_batch_norm(name, layer, pure)
        elif isinstance(layer, _NormBase) and layer.track_running_stats and pure:
            raise EngineRefused(f"layer {name!r} is {kind.__name__} with running statistics, which cannot be stacked")
        if kind is nn.Dropout:
            layer.__class__ = CounterDropout
        elif kind is nn.Sequential and not pure:
            layer.__class__ = PoolingFirst
        elif kind is nn.GroupNorm and not pure:
            layer.__class__ = SafeGroupNorm
        elif pure and Enlarging.fits(layer):
            layer.__class__ = Enlarging
        elif kind is nn.Linear and not pure and better():
            layer.__class__ = DirectLinear
        elif kind in (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d):
            layer.__class__ = CounterChannelDropout
        elif isinstance(layer, nn.RNNBase) and (pure or layer.dropout):
            _prepare_recurrent(name, layer, pure)
        elif kind is nn.MultiheadAttention and (pure or layer.dropout):
            layer.__class__ = KeyedAttention
        elif kind in DIRECT:
            layer.__class__ = DIRECT[kind]
        elif isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            layer.sparse = False  # gradients are parts of a vector
            if pure and kind is nn.EmbeddingBag:
                layer.__class__ = PureEmbeddingBag
        elif kind in CELLS and pure:
            layer.__class__ = CELLS[kind]
        elif isinstance(layer, nn.TransformerEncoderLayer) and pure:
            # otherwise evaluation takes a kernel that cannot be stacked
            layer.activation_relu_or_gelu = 0
        drops = isinstance(layer, Unrolled | KeyedAttention) and layer.dropout
        if drops or isinstance(layer, CounterDropout | CounterChannelDropout):
            layer.register_buffer(KEY, torch.zeros((), dtype=torch.int64), persistent=False)
            # the same in every copy: each layer draws from its own key
            layer._unalike_index = index
    return module


def _prepare_recurrent(name: str, layer: nn.RNNBase, pure: bool) -> None:
    kind = type(layer)
    if kind in PURE and not layer.proj_size:
        layer.__class__ = PURE[kind]
        return
    what = "an LSTM with projections" if layer.proj_size else f"{_family(layer)} of its own kind ({kind.__name__})"
    if not pure:
        raise UnalikeError(f"Layer {name!r} is {what}, whose dropout has no counter-based form: set it to 0.")
    raise EngineRefused(f"layer {name!r} is {what}, which cannot be stacked over clients")


def _family(layer: nn.RNNBase) -> str:
    return next((f"a{'' if k is nn.GRU else 'n'} {k.__name__}" for k in PURE if isinstance(layer, k)), "an RNN")


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
    """Return (buffer name, layer number) of every layer that draws random numbers."""
    return [
        (f"{name}.{KEY}" if name else KEY, layer._unalike_index)
        for name, layer in module.named_modules()
        if hasattr(layer, "_unalike_index")
    ]


def weighted_layers(module: nn.Module) -> list[str]:
    """Return the buffer names of every layer that needs the sample weights."""
    return [f"{n}.{WEIGHT}" if n else WEIGHT for n, m in module.named_modules() if isinstance(m, PureBatchNorm)]


def statistics(module: nn.Module) -> dict[str, Tensor]:
    """Return the float buffers that training may change, such as BatchNorm's statistics: not those that are no part of
    the module's state (`persistent=False`), nor constants that cannot be averaged, such as a mask with infinities."""
    state = module.state_dict().keys()
    floats = {name: b for name, b in module.named_buffers() if b.is_floating_point() and name in state}
    return {name: b for name, b in floats.items() if bool(b.isfinite().all())}


def norm_names(module: nn.Module) -> frozenset[str]:
    """Return the names of the parameters of normalisation layers."""
    kinds = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
    owners = [name for name, layer in module.named_modules() if isinstance(layer, kinds)]
    return frozenset(name for name, _ in module.named_parameters() if layer_of(name) in owners)
