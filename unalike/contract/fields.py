"""Declared fields: the parts of messages, replies, client states and server tables."""

from __future__ import annotations

import dataclasses as dc
from typing import Any

from torch import Tensor

from unalike.errors import NoSuchField, UnalikeError, did_you_mean

BUFFERS = "buffers"  # the reserved field in which BatchNorm's statistics travel
LOSS = "training_loss"  # the reserved field in which a client's mean training loss travels
OPTIMIZER = "optimizer."  # prefix of the client state that a kept optimizer lives in

READS = ("sum", "each", "peers", "sealed")


@dc.dataclass(frozen=True)
class Field:
    """One declared part of a reply, of a client's state or of a server table.

    shape: "model", "body" (all but the head), "head" or another part of the model's vector ("all but norm": see
      `Layout.chosen`), the name of one of the method's `nets`, "optimizer" (an optimizer's state: see `Me.train`) or
      "optimizer NAME" (of one of `nets`), "features", "pairs" (the upper triangle of features × features), "classes",
      "input" (numbers in a sample), "public" (rows of the public set), "scalar", or a tuple of numbers and names (a
      name that is none of these is an attribute of the method: `("clusters", "model")`; a number, or a function of the
      model's layout that gives one: `PowerSGD.left_size`). What a client keeps may have
      the shape "samples", one for each of its training samples: in a simulation with zeros behind, as many as the
      largest client has.
    read: who may see a single client's value. "sum": nobody, the server gets the weighted sum; "each": the server;
      "peers": the server and other clients, to whom it sends values, or what it makes of them; "sealed": one other
      client, and not the server, which can only hand it on (`replies.pass_on`).
    weight: what the value is weighted by in sums and means: "samples", "one", or the name of an option of the method
      that is "samples" or "uniform"; fixed before anything is sent.
    by: where clients have different networks, "all": sums and means are over everybody (but fields of the model's
      shape are always those of one network); "network": each network's clients have sums of their own.
    life: for client state: "run", or "round" for what is only carried from one exchange to the next.
    numbers: for client state: "real" (numbers of the run's dtype), "double" (float64), "whole" (int64) or
      "byte" (whole, from 0 to 255).
    what: what the value is, in words, where neither the name `delta` nor the shape says it ("its class counts"): for
      the line that tells what leaves a client (`privacy`). Nothing is computed from it.
    """

    shape: str | tuple[int | str, ...] = "model"
    read: str = "sum"
    weight: str = "samples"
    life: str = "run"
    by: str = "all"
    numbers: str = "real"
    what: str = dc.field(default="", compare=False)

    def __post_init__(self) -> None:
        for value, options, what in (
            (self.read, READS, "read"),
            (self.life, ("run", "round"), "life"),
            (self.by, ("all", "network"), "by"),
            (self.numbers, ("real", "double", "whole", "byte"), "numbers"),
        ):
            if value not in options:
                raise UnalikeError(f"Field({what}={value!r}): must be one of {', '.join(options)}.")

    def weighting(self, method: object) -> str:
        """Return "samples" or "one"."""
        if self.weight in ("samples", "one"):
            return self.weight
        found = {"samples": "samples", "uniform": "one"}.get(getattr(method, self.weight, ""))
        if found is None:
            raise UnalikeError(
                f"{type(method).__name__} declares weight={self.weight!r}: it must be 'samples', 'one', or an option "
                "of the method that is 'samples' or 'uniform'."
            )
        return found

    @property
    def names(self) -> tuple[int | str, ...]:
        """Return the numbers and names that the shape consists of."""
        return self.shape if isinstance(self.shape, tuple) else (self.shape,)

    def resolve(self, sizes: dict[str, int], method: object) -> tuple[int, ...]:
        """Return the shape in numbers."""
        if self.shape == "scalar":
            return ()
        out = []
        for name in self.names:
            if isinstance(name, int):
                out.append(name)
            elif dict.__contains__(sizes, name):
                out.append(sizes[name])
            elif isinstance(getattr(method, name, None), int):
                out.append(getattr(method, name))
            # a part of the model, which may be a layer of that name
            elif name in sizes:
                out.append(sizes[name])
            elif callable(size := getattr(method, name, None)) and (layout := getattr(sizes, "layout", None)):
                out.append(size(layout))
            else:
                _check_part(sizes, name, method)
                raise UnalikeError(
                    f"{type(method).__name__} declares the shape {self.shape!r}, and {name!r} is neither a size of "
                    f"the model nor an attribute of the method.{did_you_mean(name, ['scalar', *sizes])}"
                )
        return tuple(out)


def _check_part(sizes: dict[str, int], name: str, method: object) -> None:
    """Raise if an option of the method names this part and the model does not have it."""
    given = name.removeprefix("all but ")
    options = dc.fields(method) if dc.is_dataclass(method) else ()
    option = next((f.name for f in options if getattr(method, f.name) == given), None)
    if option is not None:
        try:
            sizes[name]
        except UnalikeError as error:
            said = str(error)
            raise UnalikeError(f"{type(method).__name__} {option}={given!r}: {said[:1].lower()}{said[1:]}") from None
        except KeyError:  # not a model's sizes
            return


class Fields(dict[str, Tensor]):
    """A message or a state: `m.w` is `m["w"]`; the error for a missing name lists the names that exist. A field may
    have any name, even `update` or `items`: as attributes, fields take precedence over a dict's own methods."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and dict.__contains__(self, name):
            return dict.__getitem__(self, name)
        return super().__getattribute__(name)

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NoSuchField(f"There is no field {name!r} here.{did_you_mean(name, dict.keys(self))}")


class PerClient:
    """A part of a message that differs between clients: one row each, in the order of the cohort."""

    def __init__(self, rows: Tensor):
        self.rows = rows
