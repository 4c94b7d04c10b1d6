"""Random draws inside a model as a function of a key, the same on every engine: in layers, and in calls of its own
forward.

Each number depends on its position along every dimension, not on a running count: padding after a short batch changes
nothing, whichever dimension the batch is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from unalike import draws

# the buffer in which a step passes a layer its key
KEY = "_unalike_key"


def placed(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return 64 random bits (as int64) for each position of this shape."""
    *rest, last = [torch.arange(size, device=key.device) for size in shape or (1,)]
    for place in rest:
        key = draws.bits(key[..., None], place)
    found = draws.bits(key[..., None], last)
    return found if shape else found[0]


def kept(key: Tensor, shape: tuple[int, ...], p: float, dtype: torch.dtype) -> Tensor:
    """Return the keep-or-drop factors of a dropout with probability p: 0 or 1 / (1 - p)."""
    keep = _keeps(key, shape, p)
    return keep.to(dtype) * (1 / (1 - p) if p < 1 else 0.0)


def _keeps(key: Tensor, shape: tuple[int, ...], p: float) -> Tensor:
    """Return which positions a dropout with probability p keeps, bool."""
    return draws.whole_of(placed(key, shape)) >= round(p * (1 << 24))


def layer_mask(layer: nn.Module, x: Tensor, p: float, shape: tuple[int, ...]) -> Tensor:
    """Return the dropout factors of a layer, from the layer's own key. A layer called twice draws anew."""
    key = getattr(layer, KEY)
    setattr(layer, KEY, key + 1)
    return kept(key, shape, p, x.dtype)


# ---------------------------------------------------------------- attention


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    draw: Tensor | None = None,
) -> Tensor:
    """Return the result of F.scaled_dot_product_attention, computed by plain products, because its backward pass has no
    rule for stacks. draw: the key of its dropout."""
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    weights = attention_weights(query, key, attn_mask, is_causal, scale)
    if dropout_p and draw is not None:
        weights = weights * kept(draw, tuple(weights.shape), dropout_p, weights.dtype)
    return weights @ value


def attention_weights(
    query: Tensor, key: Tensor, mask: Tensor | None = None, causal: bool = False, scale: float | None = None
) -> Tensor:
    """Return the softmax over the keys, [..., queries, keys]; zeros for a query that may attend to none. mask: True
    where it may attend, or numbers to be added."""
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is None:
        return scores.softmax(-1)
    if mask.dtype != torch.bool:
        seen = mask > -math.inf
        scores = scores + torch.where(seen, mask, 0).to(scores.dtype)
        mask = seen
    # a finite number, not -inf: a query that sees nothing would have a gradient of nan
    scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
    return scores.softmax(-1) * mask.any(-1, keepdim=True).to(scores.dtype)


class KeyedAttention(nn.MultiheadAttention):
    """nn.MultiheadAttention by plain products, with dropout from a key."""

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        single, time_first = query.dim() == 2, not self.batch_first and query.dim() == 3
        parts = self._projected(query, key, value)
        if single or time_first:
            parts = [t.unsqueeze(0) if single else t.transpose(0, 1) for t in parts]
        q, k, v = (self._heads(t) for t in self._extended(*parts))  # [batch, heads, time, width]
        padding = key_padding_mask[None] if single and key_padding_mask is not None else key_padding_mask
        weights = attention_weights(q, k, self._mask(attn_mask, padding, q, k))
        if self.dropout and self.training:
            weights = weights * layer_mask(self, weights, self.dropout, tuple(weights.shape))
        out = self.out_proj((weights @ v).transpose(1, 2).flatten(2))
        out = out[0] if single else out.transpose(0, 1) if time_first else out
        if not need_weights:
            return out, None
        weights = weights.mean(1) if average_attn_weights else weights
        return out, weights[0] if single else weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Return queries, keys and values; if all have the same input, by one product."""
        if self.in_proj_weight is not None and query is key and key is value:
            return list(F.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1))
        weights: tuple[Tensor, ...] = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [F.linear(*part) for part in zip((query, key, value), weights, biases, strict=True)]

    def _extended(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        """Return keys and values extended by the learnt one and the zero one, if the layer has them."""
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (torch.cat([t, b.expand(len(t), 1, -1)], 1) for t, b in ((k, self.bias_k), (v, self.bias_v)))
        if self.add_zero_attn:
            k, v = (F.pad(t, (0, 0, 0, 1)) for t in (k, v))
        return q, k, v

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _mask(self, attn: Tensor | None, padding: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
        """Return both masks as one to be added, [batch, heads, queries, keys] or broadcastable to it."""
        given = [] if attn is None else [attn.reshape(-1, self.num_heads, *attn.shape[-2:]) if attn.dim() > 2 else attn]
        given += [] if padding is None else [padding[:, None, None]]
        parts = [self._added(part, q.dtype, k.shape[-2]) for part in given]
        return sum(parts[1:], parts[0]) if parts else None

    def _added(self, mask: Tensor, dtype: torch.dtype, keys: int) -> Tensor:
        """Return a mask as numbers to be added; True means that a key is hidden. A layer's own extra keys are visible
        to all."""
        if mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -math.inf)
        return F.pad(mask, (0, keys - mask.shape[-1]))


# ---------------------------------------------------------------- calls of a model's own forward


class OwnCalls(TorchFunctionMode):
    """Answers the random calls of a model's forward (F.dropout, torch.rand, dropout within attention, …) from a key.

    The number of the call decides what it draws. stacked: attention is computed by plain products, and padding has no
    gradient; seen: collects the kinds of calls.
    """

    def __init__(self, key: Tensor, stacked: bool = False, seen: set[str] | None = None):
        super().__init__()
        self.key, self.stacked, self.seen, self.calls = key, stacked, seen, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if func is F.embedding:
            return self._embedding(*args, **kwargs)
        if func not in ANSWERS:
            return func(*args, **kwargs)
        answer = ANSWERS[func](self, *args, **kwargs)
        return func(*args, **kwargs) if answer is None else answer

    def next_key(self) -> Tensor:
        """Return the key for the next call."""
        if self.seen is not None:
            self.seen.add("draws")
        self.calls += 1
        return draws.fold(self.key, self.calls)

    def _attention(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.seen is not None:
            self.seen.add("attention")
        dropout = args[1] if len(args) > 1 else kwargs.get("dropout_p", 0.0)
        if dropout:
            return attention(query, key, value, *args, **kwargs, draw=self.next_key())
        compute = attention if self.stacked else F.scaled_dot_product_attention
        return compute(query, key, value, *args, **kwargs)

    def _embedding(
        self,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor:
        """Embed; in a stack torch would leave out the gradient of the first client's padding alone."""
        if padding_idx is not None and self.seen is not None:
            self.seen.add("padding")
        if padding_idx is None or not self.stacked or max_norm is not None or scale_grad_by_freq:
            return F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        rows = F.embedding(input, weight)
        return torch.where((input == padding_idx % len(weight))[..., None], rows.detach(), rows)


# An answer is the call's value, from the mode's next key; None: the call draws nothing, or from its own generator.


def _dropout(
    mode: OwnCalls, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor | None:
    return _dropped(mode, input, _whole(input), p, training, inplace)


def _channel_dropout(
    mode: OwnCalls, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor | None:
    return _dropped(mode, input, _channels(input), p, training, inplace)


def _dropped(
    mode: OwnCalls, input: Tensor, shape: tuple[int, ...], p: float, train: bool, inplace: bool
) -> Tensor | None:
    if not train or p == 0:
        return None
    factors = kept(mode.next_key(), shape, p, input.dtype)
    return input.mul_(factors) if inplace else input * factors


def _uniform_of(bits: Tensor, dtype: torch.dtype) -> Tensor:
    return draws.whole_of(bits).to(dtype) / (1 << 24)


def _exponential_of(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the exponentially distributed numbers that these bits hold: none is zero or infinite."""
    return -torch.log((draws.whole_of(bits).to(torch.float64) + 0.5) / (1 << 24)).to(dtype)


def _new(law: Callable[[Tensor, torch.dtype], Tensor]) -> Callable[..., Tensor | None]:
    """Return a function that answers a call that makes a tensor of some size, distributed by `law`."""

    def answer(mode: OwnCalls, *size: Any, dtype: Any = None, device: Any = None, **more: Any) -> Tensor | None:
        if more.get("generator") is not None or "names" in more:
            return None
        size = more["size"] if "size" in more else size[0] if size and not isinstance(size[0], int) else size
        values = law(placed(mode.next_key(), tuple(size)), dtype or torch.get_default_dtype())
        return values if device is None else values.to(device)

    return answer


def _like(law: Callable[[Tensor, torch.dtype], Tensor]) -> Callable[..., Tensor]:
    """Return a function that answers a call that makes a tensor like another, distributed by `law`."""

    def answer(mode: OwnCalls, input: Tensor, dtype: Any = None, **more: Any) -> Tensor:
        return law(placed(mode.next_key(), tuple(input.shape)), dtype or input.dtype)

    return answer


def _bernoulli(mode: OwnCalls, input: Tensor, p: Any = None, *, generator: Any = None) -> Tensor | None:
    if generator is not None:
        return None
    chance = input if p is None else p
    return (_uniform_of(placed(mode.next_key(), tuple(input.shape)), torch.float64) < chance).to(input.dtype)


def _bernoulli_(mode: OwnCalls, input: Tensor, p: Any = 0.5, *, generator: Any = None) -> Tensor | None:
    drawn = _bernoulli(mode, input, p, generator=generator)
    return None if drawn is None else input.copy_(drawn)


def _uniform_(
    mode: OwnCalls, input: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None
) -> Tensor | None:
    if generator is not None:
        return None
    return input.copy_(low + (high - low) * _uniform_of(placed(mode.next_key(), tuple(input.shape)), input.dtype))


def _normal_(
    mode: OwnCalls, input: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None
) -> Tensor | None:
    if generator is not None:
        return None
    return input.copy_(mean + std * draws.normal_of(placed(mode.next_key(), tuple(input.shape)), input.dtype))


def _exponential_(mode: OwnCalls, input: Tensor, lambd: float = 1.0, *, generator: Any = None) -> Tensor | None:
    if generator is not None:
        return None
    return input.copy_(_exponential_of(placed(mode.next_key(), tuple(input.shape)), input.dtype) / lambd)


def _normal(mode: OwnCalls, mean: Any, std: Any = 1.0, size: Any = None, **more: Any) -> Tensor | None:
    if more.get("generator") is not None or more.get("out") is not None:
        return None
    given = [t for t in (mean, std) if isinstance(t, Tensor)]
    shape = torch.broadcast_shapes(*(t.shape for t in given)) if size is None else tuple(size)
    dtype = more.get("dtype") or (given[0].dtype if given else torch.get_default_dtype())
    mean, std = (t.detach() if isinstance(t, Tensor) else t for t in (mean, std))  # as in torch: no gradient flows
    values = (mean + std * draws.normal_of(placed(mode.next_key(), tuple(shape)), dtype)).to(dtype)
    return values if more.get("device") is None else values.to(more["device"])


def _gumbel_softmax(
    mode: OwnCalls, logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    drawn = _exponential_of(placed(mode.next_key(), tuple(logits.shape)), logits.dtype)
    soft = ((logits - drawn.log()) / tau).softmax(dim)
    if not hard:
        return soft
    best = torch.zeros_like(soft).scatter(dim, soft.argmax(dim, keepdim=True), 1.0)
    return best - soft.detach() + soft


def _rrelu(
    mode: OwnCalls,
    input: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor | None:
    if not training:
        return None
    slope = lower + (upper - lower) * _uniform_of(placed(mode.next_key(), tuple(input.shape)), input.dtype)
    out = torch.where(input > 0, input, slope * input)
    return input.copy_(out) if inplace else out


def _alpha(shape: Callable[[Tensor], tuple[int, ...]]) -> Callable[..., Tensor | None]:
    """Return a function that answers a dropout for SELU: what it drops gets SELU's lower limit, and all is scaled so
    that mean and variance stay. shape: of the mask."""
    limit = 1.7580993408473766

    def answer(
        mode: OwnCalls, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
    ) -> Tensor | None:
        if not training or p == 0 or p == 1:
            return None
        keep = _keeps(mode.next_key(), shape(input), p).to(input.dtype)
        scale = ((limit**2 * p + 1) * (1 - p)) ** -0.5
        out = scale * (input * keep + limit * (keep - 1 + p))
        return input.copy_(out) if inplace else out

    return answer


def _whole(input: Tensor) -> tuple[int, ...]:
    return tuple(input.shape)


def _channels(input: Tensor) -> tuple[int, ...]:
    return *input.shape[:2], *([1] * (input.dim() - 2))


ANSWERS: dict[Any, Callable[..., Tensor | None]] = {
    F.dropout: _dropout,
    torch.dropout: _dropout,
    **dict.fromkeys((F.dropout1d, F.dropout2d, F.dropout3d), _channel_dropout),
    torch.rand: _new(_uniform_of),
    torch.randn: _new(draws.normal_of),
    torch.rand_like: _like(_uniform_of),
    torch.randn_like: _like(draws.normal_of),
    **dict.fromkeys((torch.bernoulli, torch.Tensor.bernoulli), _bernoulli),
    torch.Tensor.bernoulli_: _bernoulli_,
    torch.Tensor.uniform_: _uniform_,
    torch.Tensor.normal_: _normal_,
    torch.Tensor.exponential_: _exponential_,
    torch.normal: _normal,
    F.gumbel_softmax: _gumbel_softmax,
    **dict.fromkeys((F.rrelu, torch.rrelu), _rrelu),
    **dict.fromkeys((F.alpha_dropout, torch.alpha_dropout), _alpha(_whole)),
    **dict.fromkeys((F.feature_alpha_dropout, torch.feature_alpha_dropout), _alpha(_channels)),
}


def show_compiler() -> None:
    """Have the compiler ask `OwnCalls` about calls that it would make itself (torch 2.13: `randn_like` and others)."""
    from torch._dynamo.variables import torch as known

    with suppress(AttributeError):
        known.get_overridable_functions().update(ANSWERS)
