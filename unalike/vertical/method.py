"""A method of vertical learning: one file with what the guest does, what hosts do, and what crosses between them.

The guest holds the labels and leads; hosts hold other columns of the same people. `step` is written for the guest: it
asks hosts by `hosts.call(self.function, rows=rows, …)` to run a function of the method that is marked by `@answer`,
at their own place, on their own columns (`me.x`). `sends` declares everything that crosses; nothing else can.
"""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from unalike.errors import UnalikeError, either, unknown
from unalike.settings import knobs
from unalike.settings.typed import WORDS
from unalike.trees.picture import Unit
from unalike.vertical.fields import Field
from unalike.vertical.losses import Loss, task_of

if TYPE_CHECKING:
    from unalike.vertical.exchange import Hosts

METHODS: dict[str, type[Vertical]] = {}


class Me:
    """One party while it takes part: its rows, its part of the model, and what a method keeps there.

    x: float64 [aligned rows, columns]; present: which of these rows it has; y: labels, only at the guest; outputs: of
    the model, one number or one per class; index: 0 for the guest, 1, 2, … for hosts; parties: their number, including
    the guest. A method adds its own attributes: `me.theta = …`.
    """

    def __init__(
        self,
        name: str,
        role: str,
        x: Tensor,
        outputs: int,
        seed: int,
        present: Tensor | None = None,
        index: int = 0,
        parties: int = 1,
    ):
        self.name, self.role, self.x, self.outputs, self.seed = name, role, x, outputs, seed
        self.index, self.parties = index, parties
        self.present = torch.ones(len(x), dtype=torch.bool) if present is None else present
        self.training = torch.zeros(len(x), dtype=torch.bool)  # at a host: which rows are used for training
        self.y: Tensor = torch.zeros(0)
        self.loss: Loss = Loss()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    @property
    def is_guest(self) -> bool:
        """Return whether this party holds the labels."""
        return self.role == "guest"

    @property
    def columns(self) -> int:
        """Return the number of values per row."""
        return self.x.shape[1]

    def descend(self, parameters: Any, gradients: Any, lr: float) -> None:
        """Take one gradient step on a network's parameters."""
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= lr * gradient


class Vertical:
    """The base class of all methods; hyper-parameters are fields of a frozen dataclass, each with its `knob`."""

    name: ClassVar[str] = ""
    sends: ClassVar[dict[str, Field]] = {}
    keeps: ClassVar[tuple[str, ...]] = ()  # attributes of `me`: tensors or networks, saved at their party
    tasks: ClassVar[tuple[str, ...]] = ("binary", "classes", "number")
    protected: ClassVar[bool] = False  # hosts must not learn labels: small batches are refused
    coordinated: ClassVar[bool] = False  # it needs a third party that holds the key
    # the same model with other protections: protection -> method
    forms: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls) -> None:
        if cls.__dict__.get("name"):
            METHODS[cls.name] = cls

    def __post_init__(self) -> None:
        described: Any = self
        types = {"int": int, "float": float, "bool": bool}
        kinds = {f.name: WORDS[types[f.type]] for f in dc.fields(described) if f.type in types}
        knobs.check_fields(self, f"{type(self).__name__} ", kinds)

    def loss(self, y: Tensor, classes: int | None) -> Loss:
        """Return the loss for the guest's labels."""
        return task_of(y, classes)

    def sizes(self, index: int) -> dict[str, int]:
        """Return the named sizes that shapes of fields use, for the party with this index."""
        return {}

    def start(self, me: Me) -> None:
        """Make a party's part of the model."""
        raise NotImplementedError

    def view(self, me: Me, names: Sequence[str], features: Sequence[str], unit: Unit) -> dict[str, Any] | None:
        """Return what a party may see of trees; None if the model has no trees. names: of all parties, if it knows
        them; features: of its columns; unit: converts a prepared value into its own unit."""
        return None

    def begin(self, guest: Me, hosts: Hosts) -> None:
        """Prepare for the first batch, also in a resumed run: distribute keys."""

    def step(self, guest: Me, hosts: Hosts, rows: Tensor) -> float | None:
        """Learn from one batch; return its loss if the guest knows it."""
        raise NotImplementedError

    def scores(self, guest: Me, hosts: Hosts, rows: Tensor) -> Tensor:
        """Return the joint model's outputs [rows, outputs]; an absent host counts as zeros."""
        raise NotImplementedError

    def under(self, protection: str, **more: Any) -> Vertical:
        """Return the method that learns the same model with this protection; more: settings of that method alone."""
        options = {"none": self.name, **self.forms}
        if protection not in options:
            raise UnalikeError(f"{type(self).__name__} has protection {either([*options])}; got {protection!r}.")
        kind, values = METHODS[options[protection]], settings_of(self)
        if kind is type(self):
            return self
        cipher = {"cipher": protection} if "cipher" in settings_names(kind) else {}
        return kind(**values, **cipher, **more)  # type: ignore[call-arg]

    @property
    def bare(self) -> Vertical:
        """Return the method that learns the same model without protection."""
        kind = METHODS[next((n for n, k in METHODS.items() if self.name in k.forms.values()), self.name)]
        return kind(**{name: getattr(self, name) for name in settings_names(kind)})  # type: ignore[call-arg]


def settings_names(kind: Any) -> list[str]:
    """Return the names of a method's settings."""
    return [f.name for f in dc.fields(kind)]


def settings_of(method: Any) -> dict[str, Any]:
    """Return a method's settings, as they are sent and written."""
    return {name: getattr(method, name) for name in settings_names(method)}


def built(name: str, settings: dict[str, Any]) -> Vertical:
    """Return the method that a request or a file names; raise an error of one line if it is invalid."""
    if name not in METHODS:
        raise unknown("vertical method", name, METHODS)
    strange = [key for key in settings if key not in settings_names(METHODS[name])]
    if strange:
        raise unknown(f"setting of {name}", strange[0], settings_names(METHODS[name]))
    return METHODS[name](**settings)  # type: ignore[call-arg]


def kept(method: Vertical, me: Me) -> dict[str, Tensor]:
    """Return a party's kept part of the model, as tensors by name."""
    out: dict[str, Tensor] = {}
    for name in method.keeps:
        value = getattr(me, name, None)
        if isinstance(value, nn.Module):
            out |= {f"{name}.{key}": tensor for key, tensor in value.state_dict().items()}
        elif isinstance(value, Tensor):
            out[name] = value
    return out


def put_back(method: Vertical, me: Me, tensors: dict[str, Tensor], where: str) -> None:
    """Set a party's part of the model to the kept tensors."""
    now = kept(method, me)
    if {n: t.shape for n, t in now.items()} != {n: t.shape for n, t in tensors.items()}:
        raise UnalikeError(f"{where} has another model: other columns, or another method.")
    for name in method.keeps:
        value = getattr(me, name, None)
        if isinstance(value, nn.Module):
            value.load_state_dict(
                {key.removeprefix(f"{name}."): t for key, t in tensors.items() if key.startswith(f"{name}.")}
            )
        elif isinstance(value, Tensor):
            setattr(me, name, tensors[name].clone())
