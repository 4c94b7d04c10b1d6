"""A task: a user's module with its loss, metrics and head, as one flat vector, and two ways to call it."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from unalike import draws
from unalike.errors import EngineRefused, UnalikeError, first_line, unknown
from unalike.nn import layers
from unalike.nn.keyed import KEY, OwnCalls
from unalike.nn.layout import Layout, find_head
from unalike.nn.metrics import BUILT_IN, MEANS, OF_CLASSES, OF_NUMBERS, Metric, named, statistics, whole
from unalike.nn.networks import Network
from unalike.nn.normed import redraw
from unalike.nn.numerics import plain_convolutions
from unalike.nn.output import Output, picker

Loss = Callable[[Tensor, Tensor], Tensor]
IGNORED = -100  # a label that counts for nothing, as PyTorch has it


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy, one value per sample."""
    if logits.dim() != 2 or y.is_floating_point() or torch.compiler.is_compiling() or not is_batchedtensor(logits):
        return F.cross_entropy(logits, y, reduction="none")
    # the same operations as PyTorch's in a stack, without the second that its import takes before a first round
    counts = y != IGNORED
    chosen = F.log_softmax(logits, -1).gather(-1, torch.where(counts, y, 0)[:, None])[:, 0]
    return torch.where(counts, -chosen, 0.0)


def squared_error(prediction: Tensor, y: Tensor) -> Tensor:
    """Return the squared error, one value per sample."""
    return (prediction.reshape(y.shape) - y).square().reshape(y.shape[0], -1).mean(-1)


def default_loss(y: Tensor) -> Loss:
    """Return squared error for one number per sample; cross-entropy for classes, and for rows of class shares."""
    return squared_error if y.is_floating_point() and y.dim() == 1 else cross_entropy


BUFFER_POLICIES = ("average", "local", "freeze")
LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy, "squared-error": squared_error}
DISTANCES = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)  # losses of outputs that are the targets themselves
# number of a model's own draws, beside the numbers of layers
OWN = -1
# samples per pass when a whole set is evaluated
SLICE = 2048


class Task:
    """A module, its loss and metrics, its layout, and pure calls of it.

    `loss(output, y)` returns one value per sample (or a tensor whose first dimension is the sample), so that a short or
    padded batch is averaged over its real samples only. metrics: see `unalike.nn.metrics`. unit: (mean, scale) of
    standardised targets: metrics are in the original unit, y * scale + mean; the loss is in the standardised one.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss | nn.Module | str | None = None,
        metrics: Mapping[str, Any] | Sequence[Any] | None = None,
        head: str | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        precision: str = "highest",
        buffers: str = "average",
        unit: tuple[Any, Any] | None = None,
        output: Output = None,
    ):
        if not isinstance(module, nn.Module):
            raise UnalikeError(f"The model must be a torch.nn.Module; got {type(module).__name__}.")
        if any(nn.parameter.is_lazy(p) for p in (*module.parameters(), *module.buffers())):
            raise UnalikeError("The model has lazy layers without a shape yet: call the model once on a batch before.")
        if any(isinstance(layer, torch.jit.ScriptModule) for layer in module.modules()):
            raise UnalikeError("The model has layers made by torch.jit: give those that they were made of.")
        if not_real := [name for name, p in module.named_parameters() if p.is_complex()]:
            raise UnalikeError(
                f"Parameter {not_real[0]!r} is complex: keep it as a real one with a last dimension of two, and call "
                "torch.view_as_complex on it in forward."
            )
        if buffers not in BUFFER_POLICIES:
            raise unknown("buffer policy", buffers, BUFFER_POLICIES)
        self.module = layers.moved(layers.copied(module), device, dtype)
        self.device, self.dtype, self.precision, self.buffer_policy = (torch.device(device), dtype, precision, buffers)
        self.head = find_head(module, head)
        trained = ((n, p.shape) for n, p in self.module.named_parameters() if p.requires_grad)
        self.layout = Layout(trained, self.head, norms=layers.norm_names(self.module))
        self.start = self.layout.flat(dict(self.module.named_parameters()))
        self._take_buffers(layers.statistics(self.module))
        self.loss = _per_sample(loss, dtype, self.device)
        self.metrics, self.unit = named(metrics), unit
        self.output, self.pick = output, picker(output)
        self.nets: dict[str, Network] = {}  # further networks of a method, by name
        # kinds of random calls in the model's forward; known after `check`
        self.own_calls = frozenset(("draws", "attention", "padding"))
        self._sample: tuple[Tensor, Tensor] | None = None
        self.repeats = True  # whether the model gives the same twice; `check` finds out

    def _take_buffers(self, floats: Mapping[str, Tensor]) -> None:
        self.buffer_layout = Layout((n, b.shape) for n, b in floats.items())
        self.start_buffers = self.buffer_layout.flat(dict(floats)).to(self.start)

    @property
    def constants(self) -> dict[str, Tensor]:
        """Return the float buffers that are no statistics."""
        known = {name for name, *_ in self.buffer_layout.places}
        return {n: b for n, b in self.module.named_buffers() if b.is_floating_point() and n not in known}

    def metrics_for(self, y: Tensor) -> dict[str, Metric]:
        """Return the given metrics; by default accuracy if the labels are classes; rmse, mae and r2 if they are numbers
        and the loss is a distance from them."""
        if self.metrics is not None:
            return self.metrics
        distance = self.loss is squared_error or isinstance(self.loss, DISTANCES)
        default = OF_CLASSES if not y.is_floating_point() else OF_NUMBERS if distance else ()
        return {name: BUILT_IN[name] for name in default}

    def original(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs and targets in the unit of the metrics."""
        if self.unit is None or not y.is_floating_point():
            return output, y
        mean, scale = (torch.as_tensor(v, dtype=torch.float64, device=y.device) for v in self.unit)
        return output.reshape(y.shape).double() * scale + mean, y.double() * scale + mean

    @functools.cached_property
    def sizes(self) -> dict[str, int]:
        """Return the named sizes that shapes of declared fields use; known after `check`."""
        return Sizes(
            self.layout,
            model=self.layout.size,
            body=self.layout.body_size,
            head=self.layout.head_size,
            optimizer=2 * self.layout.size + 1,
            features=self.features,
            pairs=self.features * (self.features + 1) // 2,
            classes=self.outputs,
            **self._known,
            **{name: net.size for name, net in self.nets.items()},
            **{f"optimizer {name}": 2 * net.size + 1 for name, net in self.nets.items()},
        )

    def take_nets(self, builders: Mapping[str, Callable[[dict[str, int]], nn.Module]], seed: int) -> None:
        """Build a method's further networks; their start weights are a function of the seed."""
        sizes = dict(self.sizes)
        self.nets = {name: Network(name, build, sizes, seed, self.start) for name, build in builders.items()}
        self.__dict__.pop("sizes", None)

    @property
    def averages_buffers(self) -> bool:
        """Return whether the server averages BatchNorm's statistics."""
        return bool(self.buffer_layout.size) and self.buffer_policy == "average"

    def fresh(self, seed: int, number: int) -> Tensor:
        """Return a vector of newly initialised weights, a function of (seed, number); number 0 is the given module."""
        if number == 0:
            return self.start
        # on the CPU, so that draws do not depend on the device
        module = layers.copied(self.module).cpu()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(draws.key(seed, "init", number) & 0xFFFFFFFF)
            for layer in module.modules():
                if callable(reset := getattr(layer, "reset_parameters", None)):
                    redraw(layer, reset)
        return self.layout.flat(dict(module.named_parameters())).to(self.device)

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Return one loss per sample, [batch]."""
        value = self.loss(output.to(self.dtype), y)
        if not isinstance(value, Tensor) or value.dim() == 0 or value.shape[0] != y.shape[0]:
            got = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise UnalikeError(
                f"The loss must give one value per sample, [{y.shape[0]}]; it gave {got}: use reduction='none'."
            )
        if value.dim() == 1 and value.is_floating_point():
            return value
        return value.reshape(value.shape[0], -1).mean(-1)

    def outputs_of(self, bound: BoundModule, x: Tensor, y: Tensor) -> Tensor:
        """Return the outputs for a whole set."""
        return torch.cat([output for output, _ in self.forward(bound, x, y)])

    def forward(self, bound: BoundModule, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the outputs and labels of a whole set, in slices."""
        for a in range(0, len(y), SLICE):
            xs, ys = x[a : a + SLICE].to(self.device), y[a : a + SLICE].to(self.device)
            with torch.no_grad():
                output, _ = bound(xs, train=False)
            yield output, ys

    def measured(self, outputs: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return the metrics that need all outputs of a set, and the means of their statistics, float64."""
        metrics = {name: m for name, m in self.metrics_for(y).items() if m.grouped is not None}
        outputs, y = self.original(outputs, y.to(self.device))
        sizes = np.array([len(y)])
        out = {n: torch.from_numpy(m.grouped(outputs, y, sizes))[0] for n, m in metrics.items() if m.grouped}
        out |= {MEANS + name: s.means(outputs, y) for name, s in statistics(metrics, of_all=True).items()}
        return {name: value.to(self.device) for name, value in out.items()}

    def live(self) -> BoundModule:
        """Return a copy whose parameters are views of one vector, for training a single client."""
        return BoundModule(self)

    def pure(
        self, align: int | None = None, fast: bool = False, later: bool = False, turned: frozenset[str] = frozenset()
    ) -> FunctionalModule:
        """Return a copy that can be called with any vector, as second-order steps and `vmap` require. With `align` it
        is for stacks of clients, and is tried on one; `fast` gives it layers with their own kernels, `later` without
        those that take seconds to make; turned: weights that lie as such layers read them."""
        pure = FunctionalModule(self, align or 1, fast, later, turned)
        if align is not None and self._sample is not None:
            self._try_stack(pure, *self._sample)
        return pure

    def _try_stack(self, pure: FunctionalModule, x: Tensor, y: Tensor) -> None:
        """Check that two clients in a stack, each with a padded batch, have the same gradient and buffers as one client
        alone."""

        def objective(vector: Tensor, buffers: Tensor, x: Tensor, y: Tensor, weight: Tensor, key: Tensor) -> Any:
            out, _, new = pure(vector, buffers, x, key, weight)
            return (self.losses(out, y) * weight).sum(), new

        live, n = self.live(), len(y)
        live.vector.copy_(self.start)
        key = torch.zeros((), dtype=torch.int64, device=x.device)
        weight = torch.tensor([1 / n] * n + [0.0], dtype=self.dtype, device=x.device)
        one = (self.layout.repack(self.start, pure.layout), self.start_buffers, _padded(x), _padded(y), weight, key)

        def trial() -> tuple[Tensor, tuple[Tensor, Tensor]]:
            live.buffers.copy_(self.start_buffers)
            gradient = live.gradient(self.losses(live(x, key)[0], y).mean())
            two = [torch.stack([t, t]) for t in one]
            stacked = functools.partial(stacked_gradient(objective, (0,) * len(one)), *two)
            if pure.fast:
                from unalike.nn.fast import compile_ahead

                compile_ahead(stacked, self.device)
            return gradient, stacked()

        try:
            gradient, (g, new) = self._tried(trial)
        except Exception as error:
            raise EngineRefused(
                f"the model cannot be stacked over clients: {first_line(error).split('. ')[0]}"
            ) from error
        slack = 0.02 if self.precision == "highest" else 0.1  # wide tolerance: only a wrong gradient must be found
        found = [(pure.layout.repack(g[k], self.layout), new[k]) for k in range(2)]
        for got, want in [pair for f in found for pair in zip(f, (gradient, live.buffers), strict=True)]:
            apart, size = float((got - want).norm()), float(want.norm())
            if math.isfinite(size) and not apart <= slack * size + 1e-6:  # (NaN is not)
                raise EngineRefused(
                    "a layer of the model mixes the samples of a batch, and the padding of a stack would change it"
                )

    def _tried(self, trial: Callable[[], Any]) -> Any:
        """Return the result of a trial on a few samples; on a GPU by PyTorch's own convolutions, by cuDNN's if a layer
        needs those. Generators are left as they were."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            if self.device.type == "cuda":
                with suppress(Exception), plain_convolutions(self.device):
                    return trial()
            return trial()

    def check(self, x: Tensor, y: Tensor, **known: int) -> int:
        """Try the model on two samples and return the width of the features. This finds the usual mistakes before any
        training. known: sizes of the data that shapes of fields may name: "samples", "public"."""
        self._sample = x, y = x[:2], y[:2]
        self._known = {"input": x[0].numel(), **known}
        self.own_calls = frozenset(("draws", "attention", "padding"))
        self.__dict__.pop("sizes", None)
        key = torch.zeros((), dtype=torch.int64, device=x.device)
        seen: set[str] = set()

        def trial() -> tuple[Tensor, Tensor | None, list[Tensor]]:
            live = self.live()
            live.vector.copy_(self.start)
            out, features = live(x, train=False, want_features=True)
            trained = []
            for _ in range(2):
                live.buffers.copy_(self.start_buffers)
                trained.append(live(x, key, seen=seen)[0])
            return trial() if self._finds_statistics(live) else (out, features, trained)

        with torch.no_grad():
            try:
                out, features, trained = self._tried(trial)
                self.own_calls = frozenset(seen)
            except UnalikeError:
                raise
            except Exception as error:
                raise UnalikeError(
                    f"The model does not accept the data: a batch of shape {list(x.shape)} ({x.dtype}) gave: "
                    f"{first_line(error)}"
                ) from error
            if not isinstance(out, Tensor) or out.dim() == 0 or len(out) != len(y):
                got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
                part = "" if isinstance(out, Tensor) else " Say which part: output='logits', output=0 or a function."
                raise UnalikeError(
                    f"The model must give one tensor with one row per sample; {len(y)} samples gave {got}.{part}"
                )
            self._check_rows("The loss", self.losses, out, y)
            self._check_metrics(out, y)
        if features is None:
            raise UnalikeError(f"The head {self.head!r} is not called by the model's forward: name another head.")
        self.outputs = int(out.shape[-1]) if out.dim() > 1 else 1
        self.features = int(features.shape[-1])
        self.repeats = torch.equal(*(torch.nan_to_num(t) for t in trained))
        if not self.repeats:
            warnings.warn(
                "The model draws random numbers of its own in forward: runs will not repeat. Use nn.Dropout layers, "
                "F.dropout, torch.rand, torch.randn or torch.bernoulli, which unalike makes functions of the seed.",
                stacklevel=4,
            )
        return self.features

    def _finds_statistics(self, live: BoundModule) -> bool:
        """Return whether training has changed buffers that were taken for constants: these are statistics too."""
        now, changed = dict(live.module.named_buffers()), {}
        for name, before in self.constants.items():
            if torch.equal(torch.nan_to_num(before), torch.nan_to_num(now[name])):
                continue
            if before.shape != now[name].shape or not before.isfinite().all():
                raise UnalikeError(
                    f"The model changes its buffer {name!r} in training, so that clients' values are averaged: it must "
                    "begin with finite numbers and keep its shape."
                )
            changed[name] = before
        if changed:
            kept = {name for name, *_ in self.buffer_layout.places} | changed.keys()
            self._take_buffers({name: b for name, b in self.module.named_buffers() if name in kept})
        return bool(changed)

    def _check_metrics(self, out: Tensor, y: Tensor) -> None:
        """Try every metric; a user's own that returns a single number is one of a whole set."""
        original = self.original(out, y)
        for name, metric in self.metrics_for(y).items():
            metric.check(y)
            if metric.rows is None:
                continue
            single = _gives_one_number(metric.rows, *original)
            if single and self.metrics is not None:
                self.metrics[name] = whole(metric, metric.rows)
            else:
                self._check_rows(f"The metric {name!r}", metric.rows, *original)
        self.statistics = {name: len(s.means(*original)) for name, s in statistics(self.metrics_for(y)).items()}

    def _check_rows(self, what: str, fn: Loss, out: Tensor, y: Tensor) -> None:
        """Check that a loss or metric returns one value per sample, which depends on that sample's output and label
        alone."""
        try:
            rows = fn(out, y)
            alone = [fn(out[k : k + 1], y[k : k + 1]) for k in range(len(y))]
        except UnalikeError:
            raise
        except Exception as error:
            hint = "" if what == "The loss" else " (One of a whole set says so: metric.whole = True.)"
            raise UnalikeError(
                f"{what} does not accept outputs {list(out.shape)} and labels {list(y.shape)} ({y.dtype}): "
                f"{first_line(error)}{hint}"
            ) from error
        got = list(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        if got != [len(y)]:
            raise UnalikeError(f"{what} must give one value per sample, [{len(y)}]; it gave {got}.")
        if not torch.allclose(rows.double(), torch.cat(alone).double(), rtol=1e-4, atol=1e-6, equal_nan=True):
            raise UnalikeError(
                f"{what} mixes samples: outputs {list(out.shape)} and labels {list(y.shape)} must go together row by "
                "row; give both the same shape."
            )


Model = Task  # its name in `ua.model`


class Sizes(dict[str, int]):
    """Sizes by name; parts of the model's vector are among them ("all but norm")."""

    def __init__(self, layout: Layout, **sizes: int):
        super().__init__(sizes)
        self.layout = layout

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and self.layout.has(name))

    def __missing__(self, name: str) -> int:
        return self.layout.part_size(name)


def stacked_gradient(objective: Callable[..., Any], dims: tuple[int | None, ...]) -> Callable[..., Any]:
    """Return a function that gives each client's gradient of its objective by its first argument, and the objective's
    further results.

    Clients do not meet in an objective, so the gradient of their sum is that of each. It is computed by autograd over
    the stack: faster than `vmap(grad(...))`, which only the compiler can follow and which imports it (seconds).
    """
    if torch.compiler.is_compiling():
        return vmap(grad(objective, has_aux=True), in_dims=dims)

    def gradient(vectors: Tensor, *others: Any) -> tuple[Tensor, Any]:
        with torch.enable_grad():
            vectors = vectors.detach().requires_grad_(True)
            values, aside = vmap(objective, in_dims=dims)(vectors, *others)
            if not values.requires_grad:
                return torch.zeros_like(vectors, requires_grad=False), aside
            (found,) = torch.autograd.grad(values.sum(), vectors, materialize_grads=True)
        return found, aside

    return gradient


def _padded(rows: Tensor) -> Tensor:
    return torch.cat([rows, rows[:1]])


def _gives_one_number(metric: Loss, out: Tensor, y: Tensor) -> bool:
    """Return whether a metric gives one number for all samples."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # two samples may be too few for it
            value = metric(out.cpu(), y.cpu())
    except Exception:  # `_check_rows` reports what is wrong
        return False
    return isinstance(value, float | int) or getattr(value, "shape", None) == ()


def _per_sample(loss: Loss | nn.Module | str | None, dtype: torch.dtype, device: torch.device) -> Loss:
    if loss is None:
        return cross_entropy
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise unknown("loss", loss, LOSSES)
        return LOSSES[loss]
    if isinstance(loss, type) or not callable(loss):
        given = loss.__name__ + ", a class" if isinstance(loss, type) else repr(loss)
        raise UnalikeError(
            f"loss must be a name, a function of (output, y) or a module such as nn.MSELoss(); got {given}."
        )
    if isinstance(loss, nn.Module):
        loss = copy.deepcopy(loss).to(device=device, dtype=dtype)
        reduction = getattr(loss, "reduction", "none")
        if reduction not in ("mean", "none"):
            raise UnalikeError(f"The loss has reduction={reduction!r}: it must be 'mean' or 'none'.")
        loss.__dict__["reduction"] = "none"
    return loss


class _Copy:
    """Base of both kinds of copy: it catches the features on their way into the head."""

    def __init__(self, task: Task, pure: bool):
        self.task = task
        self.module = layers.prepare(task.module, pure)
        self.module.requires_grad_(False)
        self._keyed = layers.keyed_layers(self.module)
        self.weighted = layers.weighted_layers(self.module)
        self.bf16 = task.precision == "bf16"
        self._caught: list[Tensor] | None = None
        self._training: bool | None = None
        self.module.get_submodule(task.head).register_forward_pre_hook(self._catch, with_kwargs=True)

    @property
    def keyed(self) -> bool:
        """Return whether a call in training draws random numbers, so that it needs a key."""
        return bool(self._keyed) or "draws" in self.task.own_calls

    def _catch(self, _: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        if self._caught is not None:
            tensors = [value for value in (*args, *named.values()) if isinstance(value, Tensor)]
            if not tensors:
                raise UnalikeError(f"The head {self.task.head!r} is called without a tensor: name another head.")
            self._caught.append(tensors[0])

    def set_training(self, train: bool) -> None:
        """Set training or evaluation mode; frozen BatchNorm stays in evaluation, and recurrent layers (whose modes are
        the same without dropout) in training, because cuDNN has no backward pass for the other."""
        if self._training == train:
            return
        self._training = train
        self.module.train(train)
        for m in self.module.modules():
            if isinstance(m, _BatchNorm) and self.task.buffer_policy == "freeze":
                m.training = False
            if isinstance(m, nn.RNNBase) and not m.dropout:
                m.training = True

    def _own_calls(self, key: Tensor | None, like: Tensor, stacked: bool, seen: set[str] | None = None) -> Any:
        """Return the context in which the model is called: its own draws come from the key."""
        calls = self.task.own_calls
        if not ("draws" in calls or (stacked and calls & {"attention", "padding"})):
            return nullcontext()
        own = torch.zeros((), dtype=torch.int64, device=like.device) if key is None else draws.fold(key, OWN)
        return OwnCalls(own, stacked, seen)

    def _listen(self, want: bool) -> list[Tensor]:
        """Return a new list for each call, so that no tensor of a call outlives it (a compiler would have to keep
        it)."""
        box: list[Tensor] = []
        self._caught = box if want else None
        return box

    def _features(self, box: list[Tensor]) -> Tensor | None:
        """Return the head's input in this call, one row per sample."""
        self._caught = None
        return box[-1].flatten(1) if box else None


class FunctionalModule(_Copy):
    """`pure(vector, buffers, x, key, weight)` -> (output, features, new buffers), a function of its arguments."""

    def __init__(
        self, task: Task, align: int = 1, fast: bool = False, later: bool = False, turned: frozenset[str] = frozenset()
    ):
        super().__init__(task, pure=True)
        self.layout = task.layout.aligned(align, turned)
        trained = {name for name, *_ in self.layout.places}
        numbers = (*self.module.named_parameters(), *self.module.named_buffers())
        # in bf16: whether the model also has float32 numbers (frozen weights, statistics, a table of positions)
        self.mixed = self.bf16 and any(t.is_floating_point() for name, t in numbers if name not in trained)
        for layer in self.module.modules() if self.mixed else ():
            if isinstance(layer, _ConvNd):  # which `autocast` does not reach under `vmap`
                layer.to(torch.bfloat16).register_forward_pre_hook(_in_bf16, with_kwargs=True)
        self.fast: list[str] = []
        self.slow_to_make: frozenset[str] = frozenset()  # kinds of fast layers that are not there yet
        if fast:
            from unalike.nn.fast import fitting, kinds, quicken

            at_once, others = kinds(task.precision, task.device, task.dtype)
            self.fast = quicken(self.module, at_once if later else at_once | others)
            if later and fitting(self.module, others):
                self.slow_to_make = others

    def duplicate(self) -> FunctionalModule:
        """Return a copy with a module of its own: a module may be called by only one thread at a time."""
        return copy.deepcopy(self, {id(self.task): self.task, **layers.computed(self.module)})

    def quicker(self) -> FunctionalModule:
        """Return a copy with all its fast layers."""
        from unalike.nn.fast import quicken

        pure = self.duplicate()
        pure.fast += quicken(pure.module, self.slow_to_make)
        pure.slow_to_make = frozenset()
        return pure

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
        if self.bf16:  # the whole vector at once: one conversion, and one of its gradient
            vector, x = vector.to(torch.bfloat16), x.to(torch.bfloat16) if x.is_floating_point() else x
        tensors = self.layout.views(vector)
        for name in self.layout.turned:
            if name.removesuffix(".weight") not in self.fast:  # PyTorch's layers know the usual order
                tensors[name] = tensors[name].contiguous()
        buffer_views = self.task.buffer_layout.views(buffers) if self.task.buffer_layout.size else {}
        tensors.update(buffer_views)
        if train:
            if key is not None:
                tensors.update({name: draws.fold(key, index) for name, index in self._keyed})
            if weight is not None:
                tensors.update(dict.fromkeys(self.weighted, weight))
        box = self._listen(want_features)
        with self._own_calls(key if train else None, x, stacked=True), self._casting():
            out = self.task.pick(functional_call(self.module, tensors, (x,)))
        features = self._features(box)
        if train and buffer_views:  # functional_call writes replaced buffers back into the dict
            buffers = torch.cat([tensors[n].reshape(-1) for n, *_ in self.task.buffer_layout.places])
        if self.bf16:
            out = out.float()
            features = features.float() if features is not None else None
        return out, features, buffers

    def _casting(self) -> AbstractContextManager[Any]:
        """Return the context in which bf16 and float32 numbers meet, if there are both: a compiled step takes half as
        long again even with an `autocast` that is switched off."""
        return _in_bfloat16(self.task.device.type) if self.mixed else nullcontext()

    def head(self, vector: Tensor, features: Tensor) -> Tensor:
        """Return the head's output for these features, with a model vector or with the head's numbers alone, both in
        the layout that methods see."""
        layout = self.task.layout
        if vector.shape[-1] == layout.size:
            vector = layout.head(vector)
        tensors, at = {}, 0
        for (name, _, size, shape), inside in zip(layout.places, layout.chosen("head"), strict=True):
            if inside:
                tensors[name.removeprefix(self.task.head + ".")] = vector.narrow(-1, at, size).reshape(shape)
                at += size
        if self.bf16:
            tensors, features = {n: t.to(torch.bfloat16) for n, t in tensors.items()}, features.to(torch.bfloat16)
        with self._casting():
            out = functional_call(self.module.get_submodule(self.task.head), tensors, (features,))
        return out.float() if self.bf16 else out


def _in_bfloat16(device: str, enabled: bool = True) -> AbstractContextManager[Any]:
    """Return `autocast` without its cache, which within a context of the caller's would keep weights beyond a step."""
    return torch.autocast(device, torch.bfloat16, enabled=enabled, cache_enabled=False)


def _in_bf16(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if args:
        return (args[0].to(torch.bfloat16), *args[1:]), named
    return args, {**named, "input": named["input"].to(torch.bfloat16)}


class BoundModule(_Copy):
    """One vector, one gradient vector, one buffer vector; the module's tensors are views into them."""

    def __init__(self, task: Task):
        super().__init__(task, pure=False)
        self.vector = torch.zeros_like(task.start)
        self._buffers = task.start_buffers.clone()
        self.channels_last = task.device.type == "cpu" and any(isinstance(m, nn.Conv2d) for m in self.module.modules())
        tensors, views = dict(self.module.named_parameters()), task.layout.views(self.vector)
        # the trained tensors in the order of the vector, and the same numbers as plain tensors
        self.weights, self.values = [tensors[name].requires_grad_(True) for name in views], [*views.values()]
        for weight, value in zip(self.weights, self.values, strict=True):
            weight.data = value
        self._views: list[tuple[nn.Module, str, Tensor]] = []
        for name, view in task.buffer_layout.views(self._buffers).items():
            owner, _, leaf = name.rpartition(".")
            self._views.append((self.module.get_submodule(owner), leaf, view))
            self._views[-1][0]._buffers[leaf] = view
        self._keyed_layers: list[tuple[Any, int]] = [
            (self.module.get_submodule(name.rpartition(".")[0]), index) for name, index in self._keyed
        ]

    @property
    def buffers(self) -> Tensor:
        """Return all float buffers as one vector; it can also be set. A layer may have replaced its tensors."""
        for owner, leaf, view in self._views:
            new = owner._buffers[leaf]
            if new is not view and new is not None:
                view.copy_(new.detach())
                owner._buffers[leaf] = view
        return self._buffers

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Return the loss's gradient, one tensor for each of `weights`."""
        found = torch.autograd.grad(loss, self.weights, allow_unused=True)
        return [
            torch.zeros_like(w) if g is None else g.to_dense() if g.is_sparse else g
            for w, g in zip(self.weights, found, strict=True)
        ]

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the loss's gradient as one vector."""
        return torch.cat([g.reshape(-1) for g in self.gradients(loss)])

    def _precision(self, device: str) -> AbstractContextManager[Any]:
        """Return the context of the model's own precision, whatever the caller's is."""
        needed = self.bf16 or torch.is_autocast_enabled(device)
        return _in_bfloat16(device, self.bf16) if needed else nullcontext()

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """Return the head's input for these samples, [batch, features]."""
        features = self(x, train=False, want_features=True)[1]
        # `Task.check` has checked that the head is called
        assert features is not None
        return features

    def __call__(
        self,
        x: Tensor,
        key: Tensor | None = None,
        train: bool = True,
        want_features: bool = False,
        seen: set[str] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return (output, features); seen: collects the kinds of random calls in the model's own forward."""
        self.set_training(train)
        if train and key is not None:
            for layer, index in self._keyed_layers:
                layer._buffers[KEY] = draws.fold(key, index)
        box = self._listen(want_features)
        if self.channels_last and x.dim() == 4:
            x = x.contiguous(
                memory_format=torch.channels_last
            )  # what oneDNN's convolutions like best: 1.2 to 1.3 times
        own = self._own_calls(key if train else None, x, stacked=False, seen=seen)
        with own, self._precision(x.device.type):
            out = self.task.pick(self.module(x))
        features = self._features(box)
        if self.bf16:
            out = out.float()
            features = features.float() if features is not None else None
        return out, features
