"""The guest's ends of the links to other parties: in one process, and the same through bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from unalike.errors import UnalikeError
from unalike.messages import wire
from unalike.vertical.node import Node, Parts


class Gone(UnalikeError):
    """Raised when a party's connection broke: it may come back."""

    def __init__(self, name: str, why: str):
        super().__init__(f"{name} is gone: {why}.")
        self.name = name


class Link(Protocol):
    """One party, as the guest reaches it."""

    name: str

    def send(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> None: ...
    def receive(self) -> Parts: ...


class Direct:
    """A party in this process; messages are passed directly."""

    def __init__(self, node: Node):
        self.node, self.name = node, node.name

    def send(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        try:
            self._answer: Parts = self.node.handle(header, tensors)
        except UnalikeError as error:
            self._answer = {"kind": "error", "reason": str(error)}, {}

    def receive(self) -> Parts:
        return self._answer


class Loopback:
    """A party in this process; messages become the bytes that a network would carry."""

    def __init__(self, node: Node):
        self.node, self.name = node, node.name

    def send(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self._answer = self.node.answer(wire.encode(header, tensors))

    def receive(self) -> Parts:
        return wire.decode(self._answer)


ENGINES: dict[str, Any] = {"direct": Direct, "loopback": Loopback}


def ask(link: Link, kind: str, tensors: dict[str, Tensor] | None = None, **more: Any) -> Parts:
    """Send one request and return its answer; a refusal becomes an error of one line with the party's name."""
    link.send({"kind": kind, **more}, tensors or {})
    return answered(link)


def introduced(links: Sequence[Link], headers: Sequence[Mapping[str, Any]]) -> None:
    """Send all hosts of a secure sum each other's keys, which came with their answers to `setup` or `adopt`."""
    introductions = [header.get("introduction") for header in headers]
    for link in links:
        ask(link, "introductions", introductions=introductions)


def answered(link: Link) -> Parts:
    """Return a party's answer to the last request sent."""
    try:
        header, tensors = link.receive()
    except Gone:
        raise
    except UnalikeError as error:
        raise UnalikeError(f"{link.name} answered with something else: {error}") from None
    if header.get("kind") == "error":
        reason = str(header.get("reason"))[:500]
        raise UnalikeError(reason if reason.startswith(f"{link.name} ") else f"{link.name}: {reason}")
    return header, tensors
