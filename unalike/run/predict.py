"""Use a trained model: rows as the user has them go in; class names, or numbers in their own unit, come out."""

from __future__ import annotations

import dataclasses as dc
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from unalike.client import Job, OneClient
from unalike.client.calls import ModelCalls
from unalike.client.evaluation import own_model, predicts
from unalike.client.samples import no_labels
from unalike.contract import BUFFERS, EVALUATION, Answer, Batch, Call, Fields, Me
from unalike.contract.method import settings
from unalike.data import tables
from unalike.data.columns import first_infinite_row
from unalike.data.preparation import Preparation
from unalike.data.schema import Schema
from unalike.engines.families import Families, divided
from unalike.errors import UnalikeError, did_you_mean, first_line, unknown
from unalike.messages.request import message_parts
from unalike.nn.metrics import two_sided
from unalike.nn.numerics import numerics
from unalike.nn.output import Output, picker
from unalike.run.evaluate import global_models, published, rows_of, shares_one_model

if TYPE_CHECKING:
    from unalike.run.run import Run

SLICE = 1024  # rows per forward pass


@dc.dataclass(frozen=True)
class Prediction:
    """A model's answer for some rows: each row's class by number, and the probability of every class [n, classes]."""

    classes: np.ndarray
    probabilities: np.ndarray
    names: tuple[str, ...] | None = None

    @property
    def labels(self) -> list[str] | list[int]:
        """Return each row's class by name if classes have names, else by number."""
        return self.classes.tolist() if self.names is None else [self.names[k] for k in self.classes]

    def __len__(self) -> int:
        return len(self.classes)

    def __repr__(self) -> str:
        some = ", ".join(
            f"{label} ({p:.2f})" for label, p in zip(self.labels[:3], self.probabilities.max(1), strict=False)
        )
        return f"Prediction({len(self)} rows: {some}{', …' if len(self) > 3 else ''})"


@dc.dataclass(frozen=True, repr=False)
class Predictor:
    """A model with everything needed to use it.

    shape: of a sample before preparation; tokens: whether samples are whole numbers. preparation: how features and the
    predicted number are scaled. schema: of the table that the data came from. classes: number of classes, None for
    regression. about: the method and other facts worth keeping.
    """

    module: nn.Module
    shape: tuple[int, ...]
    tokens: bool = False
    preparation: Preparation | None = None
    schema: Schema | None = None
    classes: int | None = None
    label_names: tuple[str, ...] | None = None
    output: Output = None
    about: Mapping[str, Any] = dc.field(default_factory=dict)

    def __repr__(self) -> str:
        what = "numbers" if self.classes is None else f"{self.classes} classes"
        source = "rows of a table" if self.schema else f"samples {list(self.shape)}"
        return f"Predictor({what} from {source}, {self.about.get('method', {}).get('name', 'a model')})"

    def predict(self, rows: Any) -> Prediction | np.ndarray:
        """Predict rows as the user has them, without preparation: an array [n, ...] or, if the data came from a table,
        a file, a data frame or a list of dicts. Numbers are returned in the table's unit."""
        x = self.prepared(rows)
        pick, first = picker(self.output), next(self.module.parameters(), x)
        self.module.eval()
        outputs = []
        with torch.no_grad():
            for part in x.split(SLICE) if len(x) else (x,):
                part = part.to(first.device)
                outputs.append(pick(self.module(part.to(first.dtype) if part.is_floating_point() else part)))
        output = torch.cat(outputs).double().cpu()
        return self._numbers(output) if self.classes is None else self._classes(output)

    def prepared(self, rows: Any) -> Tensor:
        """Return rows as the model sees them."""
        if _is_table(rows):
            if self.schema is None:
                raise UnalikeError(
                    f"A {type(rows).__name__} was given, and this model did not learn from a table: give an array of "
                    f"shape [n, {', '.join(map(str, self.shape))}]."
                )
            x = coded(self.schema, rows)
        else:
            x = _tensor(rows)
            self._check(x)
        row = first_infinite_row(x, gaps=self.preparation is not None)  # missing cells are filled by the preparation
        if row is not None:
            raise UnalikeError(f"x has a value that is NaN or infinite in row {row}: all must be finite.")
        if self.preparation is None:
            return x
        return self.preparation.apply(x.double())

    def _check(self, x: Tensor) -> None:
        if tuple(x.shape[1:]) != self.shape or not x.dim():
            raise UnalikeError(
                f"x has shape {list(x.shape)}: it must be [n, {', '.join(map(str, self.shape))}], one row per sample "
                "(x[None] for a single one)."
            )
        if x.dtype in (torch.uint8, torch.bool) and not self.tokens:
            kind = str(x.dtype).removeprefix("torch.")
            raise UnalikeError(f"x is {kind} and the model learned from floats: convert it, for images x / 255.")

    def _numbers(self, output: Tensor) -> np.ndarray:
        flat = output.reshape(len(output), -1)
        if self.preparation is not None and self.preparation.target is not None:
            mean, scale = (torch.as_tensor(v, dtype=torch.float64).reshape(-1) for v in self.preparation.target)
            flat = flat * scale + mean
        return (flat[:, 0] if flat.shape[1] == 1 else flat.reshape(output.shape)).numpy()

    def _classes(self, output: Tensor) -> Prediction:
        if output.dim() == 1:
            output = output[:, None]
        if output.shape[1] == 1 and self.classes == 2:  # one logit, as with binary cross-entropy
            output = two_sided(output)
        if output.dim() != 2 or output.shape[1] < (self.classes or 0):
            raise UnalikeError(
                f"The model's outputs are {list(output.shape)} for {self.classes} classes: there must be one per class "
                "and row."
            )
        probabilities = output.softmax(1).numpy()
        return Prediction(probabilities.argmax(1), probabilities, self.label_names)


def coded(schema: Schema, rows: Any) -> Tensor:
    """Return rows of a table as features, coded by the schema of the table from which the model learned."""
    x, _ = tables.encoded(schema, rows, label=False)
    return torch.as_tensor(x, dtype=torch.float64)


def _is_table(rows: Any) -> bool:
    """Return whether rows have named columns: a file, a data frame, a dict of columns, a list of dicts."""
    if isinstance(rows, str | os.PathLike | Mapping) or hasattr(rows, "columns") or hasattr(rows, "column_names"):
        return True
    return isinstance(rows, list | tuple) and len(rows) > 0 and isinstance(rows[0], Mapping)


def _tensor(rows: Any) -> Tensor:
    try:
        x = rows if isinstance(rows, Tensor) else torch.as_tensor(np.asarray(rows))
    except (TypeError, ValueError) as error:
        raise UnalikeError(f"x cannot be taken as an array of numbers: {first_line(error)}.") from None
    return x.detach().cpu()


# ---------------------------------------------------------------- from a run


def predictor(run: Run, client: int | str | None = None, architecture: str | None = None) -> Predictor:
    """Return the run's global model (of this architecture), or a client's own model, ready for use."""
    number = None if client is None else _client(run, client)
    name = _architecture(run, number, architecture)
    data = run.parts[next(iter(run.tasks)) if name is None else name]
    if client is not None and data.preparation is not None and data.preparation.own:
        raise UnalikeError(
            "With scale='client' a client's own model reads rows in its own units, which are known where its rows are: "
            "prepare with scale='standard', or predict with the global model."
        )
    module = _global_module(run, name) if number is None else _own_module(run, number, name)
    x, names, preparation = data.train.x, data.label_names, data.preparation
    about: dict[str, Any] = {"method": settings(run.method), "rounds": run.rounds_done, "seed": run.seed}
    about |= ({} if client is None else {"client": client}) | ({} if name is None else {"architecture": name})
    return Predictor(
        module=module.cpu(),
        shape=tuple(x.shape[1:]) if preparation is None else (len(preparation.center),),
        tokens=not x.is_floating_point(),
        preparation=preparation,
        schema=data.schema,
        classes=data.classes,
        label_names=None if names is None else tuple(names),
        output=None if isinstance(module, SEVERAL) else (run.task if name is None else run.tasks[name]).output,
        about=about,
    )


def _global_module(run: Run, architecture: str | None) -> nn.Module:
    models, shares = global_models(run.method, run.server)
    # one model per kind of client: none of them is the global model
    if len(shares) > 1:
        raise UnalikeError(
            f"{type(run.method).__name__} has {len(models)} models ({', '.join(models)}), each for some clients: say "
            "whose is wanted, client=0."
        )
    return run.model if architecture is None else run.models[architecture]


def _architecture(run: Run, client: int | None, asked: str | None) -> str | None:
    """Return the architecture of the model to use: the one asked for, or the client's; None if there is only one."""
    if run.architectures is None:
        if asked is not None:
            raise UnalikeError(f"architecture={asked!r}: all clients have one network, leave it out.")
        return None
    if client is not None:
        if asked is not None:
            raise UnalikeError("Give a client or an architecture: a client has its own network.")
        return run.architectures.name(client)
    if asked is not None and asked not in run.tasks:
        raise unknown("architecture", asked, run.tasks)
    return asked


def _client(run: Run, client: int | str) -> int:
    """Return a client's number, given its number or name."""
    names = run.data.names or []
    if isinstance(client, str):
        if client not in names:
            known = did_you_mean(client, names) if names else " Clients have numbers here, and no names."
            if run.newcomers is not None and client in (run.newcomers.data.names or ()):
                known = " It took no part in training (new_clients): the clients that did are in run.data.names."
            raise UnalikeError(f"There is no client {client!r}.{known}")
        return names.index(client)
    if isinstance(client, bool) or not isinstance(client, int | np.integer) or not 0 <= client < len(run.data):
        raise UnalikeError(f"client={client!r} must be a client's name, or its number from 0 to {len(run.data) - 1}.")
    return int(client)


class _OwnModel(Job):
    """The job of finding a client's own model; for a model that is more than one vector, the values its outputs are
    computed from."""

    seen: tuple[Me, Fields, Fields]

    def function(self, function: Any) -> Callable[..., Any]:
        return self._look if predicts(self.method) else own_model(self.method)

    def _look(self, me: Me, s: Fields, m: Fields) -> Answer:
        self.seen = me, s, m
        return {}, {}


class MethodOutputs(nn.Module):
    """A client's own model where it is more than one vector: forward gives the method's outputs (`Method.predict`)."""

    def __init__(self, one: OneClient, job: _OwnModel):
        super().__init__()
        self.one, self.job = one, job

    def forward(self, x: Tensor) -> Tensor:
        one, task = self.one, self.job.task
        x = x.to(task.device, task.dtype if x.is_floating_point() else None)
        weight = torch.full((len(x),), 1 / max(1, len(x)), dtype=task.dtype, device=task.device)
        calls = ModelCalls(task, lambda: one.functional, one.nets, one.buffers, weight, train=False)
        labels = no_labels(len(x), self.job.data.train.y)
        return self.job.method.predict(*self.job.seen, Batch(x, labels, weight, calls)).cpu()


class MeanOutput(nn.Module):
    """A client's own model where it consists of several models: forward gives the mean of their outputs."""

    def __init__(self, models: Sequence[nn.Module], output: Output):
        super().__init__()
        self.models, self.pick = nn.ModuleList(models), picker(output)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.pick(model(x)) for model in self.models]).mean(0)


SEVERAL = (MethodOutputs, MeanOutput)  # models that consist of more than one network


def _own_module(run: Run, client: int, architecture: str | None) -> nn.Module:
    """Return a module with a client's own model, found in the same way as for evaluation."""
    task = run.task
    if shares_one_model(run.method) and task.buffer_policy != "local":
        return _global_module(run, architecture)
    if run.data.remote:
        raise UnalikeError("The clients' own models stay with them in a real federation: only the global one is here.")
    shared, rows = message_parts(published(run), run.population, run.server.values, task)
    ids = np.array([client])
    call = Call("personal", shared, rows_of(run, rows, ids), run.rounds_done - 1, EVALUATION)
    engine = run.engine
    if isinstance(engine, Families):
        ((name, call, _),) = divided(engine.architectures, call, ids)
        engine = engine.parts[name]
    state, first = run.clients.read(ids)
    job = _OwnModel(**{f.name: getattr(engine.job, f.name) for f in dc.fields(engine.job) if f.init})
    one = OneClient(job)
    with numerics(run.settings.precision, run.settings.deterministic):
        _, sent, _ = one.run(call, client, {n: v[0] for n, v in state.items()}, first[0], call.message(0))
    if predicts(run.method):
        return MethodOutputs(one, job)
    vector, buffers = sent["vector"], sent.get(BUFFERS, one.buffers)
    if vector.dim() == 1:
        return run.module_with(vector, buffers, architecture)
    return MeanOutput([run.module_with(each, buffers, architecture) for each in vector], job.task.output)
