"""What the engines need to know of a user's model: its vector, its loss, its head, and how to call it purely."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from unalike import layers, random
from unalike.errors import UnalikeError, unknown
from unalike.layout import Layout, find_head

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy, one value a sample."""
    return F.cross_entropy(logits, y, reduction="none")


def squared_error(prediction: Tensor, y: Tensor) -> Tensor:
    """Squared error, one value a sample."""
    return (prediction.reshape(y.shape) - y).square().reshape(y.shape[0], -1).mean(-1)


def accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """1 where the largest logit is the label."""
    return (logits.argmax(-1) == y).to(logits.dtype)


LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy, "squared-error": squared_error}


class Model:
    """A module, its loss and metrics, its layout, and pure calls of it.

    `loss(output, y)` and each metric give one value a sample (or a tensor whose first dimension is the sample), so
    that a short or padded batch is averaged over its real samples only.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss | nn.Module | str | None = None,
        metrics: Mapping[str, Loss] | None = None,
        head: str | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        precision: str = "highest",
        buffers: str = "average",
    ):
        if not isinstance(module, nn.Module):
            raise UnalikeError(f"The model must be a torch.nn.Module; got {type(module).__name__}.")
        if buffers not in ("average", "local", "freeze"):
            raise unknown("buffer policy", buffers, ("average", "local", "freeze"))
        self.module = copy.deepcopy(module).to(device=device, dtype=dtype)
        self.device, self.dtype, self.precision, self.buffer_policy = (
            torch.device(device),
            dtype,
            precision,
            buffers,
        )
        self.head = find_head(module, head)
        self.layout = Layout(((n, p.shape) for n, p in self.module.named_parameters() if p.requires_grad), self.head)
        floats = {n: b for n, b in self.module.named_buffers() if b.is_floating_point()}
        self.buffer_layout = Layout((n, b.shape) for n, b in floats.items())
        self.start = self.layout.flat(dict(self.module.named_parameters()))
        self.start_buffers = self.buffer_layout.flat(floats).to(self.start)
        self.loss = _per_sample(loss)
        self._metrics = dict(metrics) if metrics is not None else None

    def metrics_for(self, y: Tensor) -> dict[str, Loss]:
        """The metrics given, else accuracy where the labels are classes."""
        if self._metrics is not None:
            return self._metrics
        return {} if y.is_floating_point() else {"accuracy": accuracy}

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """One loss a sample, [batch]."""
        value = self.loss(output.to(self.dtype), y)
        if value.dim() == 0 or value.shape[0] != y.shape[0]:
            raise UnalikeError(
                f"The loss must give one value a sample, [{y.shape[0]}]; it gave shape {list(value.shape)}: "
                "use reduction='none'."
            )
        return value.reshape(value.shape[0], -1).mean(-1)

    def live(self) -> Live:
        """A copy whose parameters are views of one vector: what a single client trains."""
        return Live(self)

    def pure(self, align: int = 1) -> Pure:
        """A copy to be called with any vector: what `vmap` and second-order steps need."""
        return Pure(self, align)

    def check(self, x: Tensor, y: Tensor) -> int:
        """Try two samples; returns the width of the features. Finds the usual mistakes before any training."""
        x, y = x[:2], y[:2]
        call = self.pure()
        with torch.no_grad():
            try:
                out, features, _ = call(self.start, self.start_buffers, x, train=False, want_features=True)
            except UnalikeError:
                raise
            except Exception as error:
                raise UnalikeError(
                    f"The model does not accept the data: a batch of shape {list(x.shape)} ({x.dtype}) gave: {error}"
                ) from error
            try:
                self.losses(out, y)
            except UnalikeError:
                raise
            except Exception as error:
                raise UnalikeError(
                    f"The loss does not accept outputs {list(out.shape)} and labels {list(y.shape)} ({y.dtype}): "
                    f"{error}"
                ) from error
        self.outputs = int(out.shape[-1])
        if features is None:
            raise UnalikeError(f"The head {self.head!r} is not called by the model's forward: name another head.")
        self.features = int(features.reshape(features.shape[0], -1).shape[-1])
        self._check_hidden_randomness(call, x)
        return self.features

    def _check_hidden_randomness(self, call: Pure, x: Tensor) -> None:
        key = torch.zeros((), dtype=torch.int64, device=x.device)
        with torch.no_grad(), torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            weight = x.new_full((x.shape[0],), 1 / x.shape[0], dtype=self.dtype)
            a, b = (call(self.start, self.start_buffers, x, key, weight)[0] for _ in range(2))
        if not torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)):
            warnings.warn(
                "The model draws random numbers of its own in forward (F.dropout?): runs will not repeat. "
                "Use nn.Dropout layers, which unalike makes a function of the seed.",
                stacklevel=4,
            )


def _per_sample(loss: Loss | nn.Module | str | None) -> Loss:
    if loss is None:
        return cross_entropy
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise unknown("loss", loss, LOSSES)
        return LOSSES[loss]
    if isinstance(loss, nn.Module) and getattr(loss, "reduction", "none") != "none":
        loss = copy.deepcopy(loss)
        loss.reduction = "none"
    return loss


class _Copy:
    """What both kinds of copy share: features caught on the way into the head."""

    def __init__(self, model: Model, pure: bool):
        self.model = model
        self.module = layers.prepare(model.module, pure)
        self.module.requires_grad_(False)
        self.keyed = layers.keyed_layers(self.module)
        self.weighted = layers.weighted_layers(self.module)
        self.bf16 = model.precision == "bf16" and model.device.type == "cuda"
        self._caught: list[Tensor] = []
        head = self.module.get_submodule(model.head)
        head.register_forward_pre_hook(lambda _, args: self._caught.append(args[0]) if self._want else None)
        self._want = False

    def set_training(self, train: bool) -> None:
        if self.module.training != train:
            self.module.train(train)
        if train and self.model.buffer_policy == "freeze":
            for m in self.module.modules():
                if isinstance(m, nn.modules.batchnorm._BatchNorm):
                    m.eval()

    def features(self) -> Tensor | None:
        """The head's input in the last call, one row a sample."""
        caught, self._caught = self._caught, []
        return caught[-1].flatten(1) if caught else None


class Pure(_Copy):
    """`pure(vector, buffers, x, key, weight)` -> (output, features, new buffers), a function of its arguments."""

    def __init__(self, model: Model, align: int = 1):
        super().__init__(model, pure=True)
        self.layout = model.layout.aligned(align)

    def __call__(
        self,
        vector: Tensor,
        buffers: Tensor,
        x: Tensor,
        key: Tensor | None = None,
        weight: Tensor | None = None,
        train: bool = True,
        want_features: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        self.set_training(train)
        tensors = self.layout.views(vector)
        if self.bf16:
            tensors = {n: t.to(torch.bfloat16) for n, t in tensors.items()}
            x = x.to(torch.bfloat16) if x.is_floating_point() else x
        buffer_views = self.model.buffer_layout.views(buffers) if self.model.buffer_layout.size else {}
        tensors.update(buffer_views)
        if train:
            if key is not None:
                tensors.update({name: random.fold(key, index) for name, index in self.keyed})
            if weight is not None:
                tensors.update(dict.fromkeys(self.weighted, weight))
        self._want = want_features
        out = functional_call(self.module, tensors, (x,))
        features = self.features() if want_features else None
        if train and buffer_views:  # functional_call writes replaced buffers back into the dict
            buffers = torch.cat([tensors[n].reshape(-1) for n, *_ in self.model.buffer_layout.places])
        if self.bf16:
            out = out.float()
            features = features.float() if features is not None else None
        return out, features, buffers


class Live(_Copy):
    """One vector, one gradient vector, one buffer vector; the module's tensors are views into them."""

    def __init__(self, model: Model):
        super().__init__(model, pure=False)
        self.vector, self.gradient = torch.zeros_like(model.start), torch.zeros_like(model.start)
        self.buffers = model.start_buffers.clone()
        values, gradients = model.layout.views(self.vector), model.layout.views(self.gradient)
        for name, p in self.module.named_parameters():
            if name in values:
                p.requires_grad_(True)
                p.data, p.grad = values[name], gradients[name]
        for name, view in model.buffer_layout.views(self.buffers).items():
            owner, _, leaf = name.rpartition(".")
            self.module.get_submodule(owner)._buffers[leaf] = view
        self._keyed_layers: list[tuple[Any, int]] = [
            (self.module.get_submodule(name.rpartition(".")[0]), index) for name, index in self.keyed
        ]

    def __call__(
        self, x: Tensor, key: Tensor | None = None, train: bool = True, want_features: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        self.set_training(train)
        if train and key is not None:
            for layer, index in self._keyed_layers:
                layer._buffers[layers.KEY] = random.fold(key, index)
        self._want = want_features
        with torch.autocast("cuda", torch.bfloat16, enabled=self.bf16):
            out = self.module(x)
        features = self.features() if want_features else None
        if self.bf16:
            out = out.float()
            features = features.float() if features is not None else None
        return out, features
