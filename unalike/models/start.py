"""Where a model starts: a model of `ua.models` remembers how it was built, so that a run can draw its weights from the
run's own seed. Then Python, a config file and the command line start with the same numbers, in every process."""

from __future__ import annotations

import copy
import dataclasses as dc
import functools
import inspect
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from unalike import draws
from unalike.errors import UnalikeError, line_of

Builder = TypeVar("Builder", bound=Callable[..., nn.Module])


@dc.dataclass(frozen=True)
class Built:
    """How a model was built: the builder's name in MODELS, its options, and a checksum of the weights it drew (None: a
    run starts from the weights as they are)."""

    name: str
    options: dict[str, Any]
    checksum: int | None


def remembered(name: str) -> Callable[[Builder], Builder]:
    """Decorate a builder of MODELS, a function or a class, so that its modules remember how they were built."""

    def decorate(builder: Builder) -> Builder:
        signature = inspect.signature(builder)

        def remember(module: nn.Module, *given: Any, **named: Any) -> nn.Module:
            options = dict(signature.bind(*given, **named).arguments)
            module.built = Built(name, options, checksum(module))  # type: ignore[assignment]
            return module

        if not inspect.isclass(builder):
            return functools.wraps(builder)(lambda *a, **k: remember(builder(*a, **k), *a, **k))  # type: ignore
        kind: Any = builder
        init = kind.__init__

        @functools.wraps(init)
        def remembering(self: nn.Module, *given: Any, **named: Any) -> None:
            init(self, *given, **named)
            # a subclass draws more weights, and is not in MODELS
            if type(self) is kind:
                remember(self, *given, **named)

        kind.__init__ = remembering
        return kind

    return decorate


def function(kind: type[nn.Module]) -> Callable[..., nn.Module]:
    """Return a function that builds modules of a class, so that all models are built in the same way."""

    @functools.wraps(kind, updated=())
    def build(*given: Any, **named: Any) -> nn.Module:
        return kind(*given, **named)

    return build


def checksum(module: nn.Module) -> int | None:
    """Return a checksum of all weights and buffers, equal in float32 and float64; None if they have no values."""
    total = 0
    for name, value in module.state_dict().items():
        if value.is_meta:
            return None
        total = zlib.crc32(f"{name}{list(value.shape)}".encode(), total)
        total = zlib.crc32(value.detach().cpu().double().contiguous().numpy(), total)
    return total


def keep_start(module: nn.Module) -> nn.Module:
    """Return the module, marked so that a run starts from its weights as they are, even if they are untouched since it
    was built (for comparing with another program)."""
    if built := built_as(module):
        module.built = dc.replace(built, checksum=None)  # type: ignore[assignment]
    return module


def built_as(module: nn.Module) -> Built | None:
    """Return how a model of `ua.models` was built; None for any other."""
    found = getattr(module, "built", None)
    return found if isinstance(found, Built) else None


def untouched(module: nn.Module) -> Built | None:
    """Return how a model was built if its weights are still the ones drawn then; None otherwise."""
    built = built_as(module)
    return built if built and built.checksum is not None and built.checksum == checksum(module) else None


def from_seed(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return the module that `build` makes with torch's generator seeded from the run's seed."""
    with draws.torch_seed(seed, "model"):
        return build()


def redrawn(module: nn.Module, build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a copy of the module with the weights that `build` draws from the seed; frozen layers, hooks and the like
    are kept."""
    copied = copy.deepcopy(module)
    copied.load_state_dict(from_seed(build, seed).state_dict())
    return copied


def own(build: Callable[..., Any], seed: int) -> nn.Module:
    """Return the model that a user's own function (or class) builds from the seed."""
    name = getattr(build, "__name__", type(build).__name__)
    try:
        module = from_seed(build, seed)
    except UnalikeError:
        raise
    except Exception as error:
        raise UnalikeError(
            f"{name}() does not build a model: {line_of(error)}. It is called without arguments: give those it needs "
            f"with `lambda: {name if name.isidentifier() else 'Net'}(...)`."
        ) from error
    if not isinstance(module, nn.Module):
        raise UnalikeError(f"{name}() must return a torch.nn.Module; it returned {type(module).__name__}.")
    return module
