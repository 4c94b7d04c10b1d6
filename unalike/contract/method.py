"""The method: both halves, its declared fields, and its identity."""

from __future__ import annotations

import dataclasses as dc
import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from torch import Tensor, nn

from unalike.contract.client import Answer, Batch, Me
from unalike.contract.fields import Field, Fields
from unalike.contract.requests import Request
from unalike.contract.server import Cohort, Message, Server
from unalike.errors import UnalikeError
from unalike.settings.knobs import check_fields

# functions that a server may not call on a client
NOT_CALLED = ("check_clients", "network_options", "setup", "round", "published", "models", "predict")


class Method:
    """The base class of methods, with FedAvg's behaviour; a method overrides what differs.

    Hyper-parameters are the fields of a frozen dataclass, each with its description (`ua.knob`), by which its bounds
    are checked. A subclass's own `__post_init__` checks relations between fields; it runs after that.
    """

    # name on the command line, for methods in unalike/methods
    name: ClassVar[str] = ""
    keeps: ClassVar[dict[str, Field]] = {}
    sends: ClassVar[dict[str, Field]] = {"delta": Field()}
    tables: ClassVar[dict[str, Field]] = {}
    nets: ClassVar[dict[str, Callable[[dict[str, int]], nn.Module]]] = {}  # further networks, built from the sizes
    # the part of the model that a newcomer trains (see `arrival`)
    adapts: ClassVar[str] = "all"
    # how BatchNorm's statistics are treated, if the method requires it: see [run] buffers
    buffers: ClassVar[str | None] = None
    # it works on a public set, which the federation must have
    needs_public: ClassVar[bool] = False
    # False: there is no network, and `predict` gives the outputs
    needs_model: ClassVar[bool] = True
    # the model of `ua.models` that the method uses in place of the run's
    network: ClassVar[str] = ""
    # it works on the CPU, also where there is a GPU
    on_cpu: ClassVar[bool] = False
    # False: clients' models are vectors, although there is a `predict` (an option's)
    predicts: ClassVar[bool] = True
    # it trains on all clients' data as one client: the centralized reference
    pooled: ClassVar[bool] = False
    # samples that clients send, in words ("samples"): run and clients must allow it
    ships: ClassVar[str] = ""
    # why clients cannot have different networks ("compares clients' models")
    one_network: ClassVar[str] = ""
    # its server asks who answered or takes part: impossible under noise on sums
    sees_who: ClassVar[bool] = False
    # whether replies may arrive late, from older versions: "no"; "can": its one call means the same with whoever
    # arrives; "is": it is made for it (`cohort.start`, `cohort.arrived`)
    asynchronous: ClassVar[str] = "no"
    # parts of messages with a row for each client (`PerClient`) that it needs where replies are hidden in sums: clients
    # refuse all others there, because the server could isolate one client's reply by them
    own_rows: ClassVar[tuple[str, ...]] = ()
    # the server holds no model and reads no reply: it only pairs clients
    serverless: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        relations = cls.__dict__.get("__post_init__")
        # a frozen dataclass's own checks come after those for every method
        if relations is not None:

            @functools.wraps(relations)
            def checked(self: Method) -> None:
                check_fields(self, f"{type(self).__name__} ")
                relations(self)

            setattr(cls, "__post_init__", checked)  # noqa: B010 (mypy knows no other way)

    def __post_init__(self) -> None:
        check_fields(self, f"{type(self).__name__} ")

    def check_clients(self, clients: int) -> None:
        """Raise `UnalikeError` if the method is impossible with this number of clients; called before anything is
        written."""

    def network_options(self) -> dict[str, int]:
        """Return the options of the model `network`, except those that the data decide."""
        return {}

    def setup(self, server: Server, everyone: Cohort) -> None:
        """Prepare the server's own state before round 1; may also exchange messages with `everyone.call(...)`."""

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        """Run the client's part of a round."""
        return me.train(m.w).then(self.done)

    def done(self, me: Me, s: Fields, m: Fields, theta: Tensor) -> Answer:
        """Return what the client keeps, and what it sends."""
        return {}, {"delta": theta - m.w}

    def round(self, server: Server, cohort: Cohort) -> None:
        """Run the server's part of a round."""
        server.w = server.w + cohort.call(self.client, w=server.w).mean("delta")

    def published(self, server: Server) -> Message:
        """Return the message from which a client finds its own model (see `personal`); empty for a serverless
        method."""
        return {} if self.serverless else {"w": server.w}

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor | Request:
        """Return the vector that is evaluated on this client's own data, or a request that ends in one (a training
        without `.then` gives its result). For several, [k, P], the mean of their outputs is evaluated."""
        return m.w

    def arrival(self, me: Me, s: Fields, m: Fields) -> Tensor | Request:
        """Return the vector (or several, or a request, as in `personal`) with which a client starts that takes no
        part in training: it trains the part `adapts` of it on its own data and is then evaluated. The message is the
        one that `published` sends to all; there is no state. Without a global model it starts with the run's start
        vector."""
        return dict.get(m, "w", me.start)

    def predict(self, me: Me, s: Fields, m: Fields, batch: Batch) -> Tensor:
        """Return the outputs of this client's own model for a batch, one row per sample, if that model is more than one
        vector (several, prototypes, a forest). A method that overrides this is evaluated by it, not by `personal`."""
        raise NotImplementedError

    def models(self, server: Server) -> dict[str, Tensor] | dict[str, tuple[Tensor, float]]:
        """Return the vectors evaluated on the global test set by name: the first is the one that is reported
        (`test_*`), the others are logged as `test_<name>_*`. With pairs (vector, weight) the reported numbers are the
        weighted mean of the models' numbers, and every model is logged under its name. Empty: there is no global
        model."""
        return {} if self.serverless else {"global": server.w}


def check_serverless(method: Method) -> None:
    """Refuse a serverless method that declares something that needs a server."""
    kind = type(method)
    if not method.serverless:
        return
    for name, field in method.sends.items():
        if field.read != "sealed":
            raise UnalikeError(
                f"{kind.__name__} is serverless, and declares that it sends {name!r} with read={field.read!r}: it must "
                "be 'sealed', which other clients can read and the server cannot."
            )
    if method.tables:
        raise UnalikeError(f"{kind.__name__} is serverless, and declares a table: keep it at the clients (`keeps`).")
    if kind.personal is Method.personal and kind.predict is Method.predict:
        raise UnalikeError(f"{kind.__name__} is serverless: `personal` must say which vector is a client's own.")


def settings(method: Method) -> dict[str, Any]:
    """Return a method's name and hyper-parameters, as written into a run's config."""
    values: dict[str, Any] = dc.asdict(method) if dc.is_dataclass(method) else {}
    return {"name": type(method).__name__, **values}


def fingerprint(method: Method) -> str:
    """Return a short hash of a method's name and hyper-parameters: both ends of a federation must agree on it."""
    return hashlib.sha256(json.dumps(settings(method), sort_keys=True, default=str).encode()).hexdigest()[:12]


def function_name(method: Method, fn: Callable[..., Any]) -> str:
    """Return the name of this function in the method: calls use the name, in simulations and over a network."""
    name = fn.__name__
    if getattr(method, name, None) != fn:
        name = next((known for known in client_functions(method) if getattr(method, known) == fn), "")
    if not name:
        raise UnalikeError(
            f"{fn.__name__} is not a function of {type(method).__name__}: only a method's own functions can be called."
        )
    return name


def client_functions(method: Method) -> Iterator[str]:
    """Yield the names of functions that a server may call: the method's own public functions, without the server's half
    and `predict`."""
    for name in dir(type(method)):
        if not name.startswith("_") and name not in NOT_CALLED and callable(getattr(type(method), name)):
            yield name
