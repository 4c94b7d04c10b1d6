"""Write a trained model as one file: weights, how the model is built, how rows are prepared, and the names of classes.

It is a safetensors file; everything but the weights is JSON in its metadata. Reading it runs no code from the file: a
model of `ua.models` is built by its name, a model of your own by a function that you pass.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

import unalike
from unalike import draws
from unalike.data.preparation import Preparation
from unalike.data.schema import Schema
from unalike.errors import UnalikeError, first_line, line_of
from unalike.files import complaining, replace
from unalike.models import build as build_model
from unalike.models.start import built_as
from unalike.nn.output import Output
from unalike.run.predict import SEVERAL, Predictor

KEY, FORMAT = "unalike", 1
# the file's name in the run folder of a real federation
DEPLOYABLE = "model.unalike"
# options of models that name files of start weights; not needed here
FILES = ("weights", "vectors")
Build = Callable[[], nn.Module] | nn.Module


def save(predictor: Predictor, path: str | os.PathLike, source: str | None = None) -> Path:
    """Write a predictor as one file and return its path. source: where a model of your own is built, as a note for
    readers."""
    file, module = Path(path), predictor.module
    if isinstance(module, SEVERAL):
        raise UnalikeError(
            "This client's model is more than one network, and cannot be written as one file: predict with the run."
        )
    tensors = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    # copies, because safetensors refuses tied weights and tensors that are not contiguous
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    about = json.dumps(_description(predictor, source), default=_plain)
    with complaining(f"{file} cannot be written"):
        replace(file, safetensors.torch.save(tensors, {KEY: about}))
    return file


def load_model(path: str | os.PathLike, build: Build | None = None, output: Output = None) -> Predictor:
    """Read a model that `run.save` or `unalike export --deploy` wrote.

    build: for a model of your own, a function or class that builds it, or the module itself. output: the function that
    picks its outputs, if one was given to `simulate`.
    """
    tensors, about = _read(Path(path))
    if about.get("format") != FORMAT:
        raise UnalikeError(f"{path} has the format {about.get('format')!r}, and this version reads {FORMAT}: update.")
    try:
        module = _module(about["model"], tensors, build, path)
        return _predictor(module, about, output, path)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnalikeError(f"{path} is damaged: {line_of(error)}.") from error


# ---------------------------------------------------------------- writing


def _description(predictor: Predictor, source: str | None) -> dict[str, Any]:
    plain = {name: getattr(predictor, name) for name in ("shape", "tokens", "classes", "label_names", "about")}
    parts = {name: getattr(predictor, name) for name in ("preparation", "schema")}
    output = predictor.output
    return {
        "format": FORMAT,
        "version": unalike.__version__,
        "model": _definition(predictor.module, source),
        **plain,
        **{name: None if part is None else part.plain() for name, part in parts.items()},
        "output": {"function": getattr(output, "__qualname__", "function")} if callable(output) else output,
    }


def _definition(module: nn.Module, source: str | None) -> dict[str, Any]:
    """Return how the module is built: by name and options, if it is an unchanged model of `ua.models`."""
    built = built_as(module)
    if built:
        options = {name: value for name, value in built.options.items() if name not in FILES}
        blank = _blank(built.name, options)
        if repr(blank) == repr(module) and _shapes(blank.state_dict()) == _shapes(module.state_dict()):
            return {"name": built.name, "options": options}
    return {"class": type(module).__qualname__, "source": source}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


# ---------------------------------------------------------------- reading


def _read(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not file.is_file():
        raise UnalikeError(f"There is no model file {file}.")
    try:
        with safetensors.safe_open(file, framework="pt") as content:
            text = (content.metadata() or {}).get(KEY)
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 (it is no dict)
        about = json.loads(text) if text else None
    except Exception as error:
        raise UnalikeError(f"{file} cannot be read as a model: {first_line(error)}.") from error
    if not isinstance(about, dict):
        raise UnalikeError(
            f"{file} holds weights and nothing else: write the file with run.save(...) or `unalike export --deploy`."
        )
    return tensors, about


def _module(model: Mapping[str, Any], tensors: dict[str, Tensor], build: Build | None, path: Any) -> nn.Module:
    if build is None and "name" not in model:
        where = f", built by {model['source']}" if model.get("source") else ""
        raise UnalikeError(
            f"{path} holds a user's own model ({model['class']}{where}): give what builds it, "
            f"ua.load_model(path, build={model['class'].rpartition('.')[2]})."
        )
    # built without memory first, so that a file cannot make us allocate any amount
    if build is None:
        _fits(_blank(model["name"], model["options"]), tensors, path)
    # the drawn weights are replaced below; torch's generator is left unchanged
    with draws.torch_seed(0, "model"):
        if isinstance(build, nn.Module):
            module = build
        else:
            module = build() if build is not None else build_model(model["name"], **model["options"])
    if not isinstance(module, nn.Module):
        raise UnalikeError(f"build must give a torch.nn.Module; it gave {type(module).__name__}.")
    _fits(module, tensors, path)
    kinds = {value.dtype for value in tensors.values() if value.is_floating_point()}
    module = module.to(kinds.pop()) if len(kinds) == 1 else module
    module.load_state_dict(tensors)
    return module.eval()


def _blank(name: str, options: Mapping[str, Any]) -> nn.Module:
    """Return a model of `ua.models` whose weights have shapes but no values."""
    with torch.device("meta"):
        return build_model(name, **options)


def _shapes(tensors: Mapping[str, Any]) -> dict[str, list[int]]:
    return {name: list(value.shape) for name, value in tensors.items() if isinstance(value, Tensor)}


def _fits(module: nn.Module, tensors: dict[str, Tensor], path: Any) -> None:
    mine, there = _shapes(module.state_dict()), _shapes(tensors)
    for name in sorted({*mine, *there}):
        if mine.get(name) != there.get(name):
            raise UnalikeError(
                f"The model does not fit {path}: {name!r} is {mine.get(name, 'not there')} in the model and "
                f"{there.get(name, 'not there')} in the file; build the model as it was when it was saved."
            )


def _predictor(module: nn.Module, about: dict[str, Any], output: Output, path: Any) -> Predictor:
    kept = about["output"]
    if isinstance(kept, dict) and output is None:
        raise UnalikeError(
            f"{path} holds a model whose outputs a function picks ({kept['function']}): give it, "
            "ua.load_model(path, output=...)."
        )
    schema, preparation, names = about["schema"], about["preparation"], about["label_names"]
    return Predictor(
        module=module,
        shape=tuple(about["shape"]),
        tokens=bool(about["tokens"]),
        preparation=None if preparation is None else Preparation.from_plain(preparation),
        schema=None if schema is None else Schema.from_plain(schema),
        classes=about["classes"],
        label_names=None if names is None else tuple(names),
        output=output if output is not None else kept,
        about=about["about"],
    )
