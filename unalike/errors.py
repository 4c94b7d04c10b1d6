"""Errors that the user can correct: one line that says what was given, what must hold and what to do.

The command line prints the line and exits with code 2. A traceback appears only for faults of the program itself.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Sequence


class UnalikeError(Exception):
    """A mistake in the request or in the data; the message is one complete line."""


class NoSuchField(UnalikeError, AttributeError):
    """Raised when a message, a state or the server has no field of this name; an AttributeError too, so that `hasattr`
    works."""


class EngineRefused(UnalikeError):
    """Raised when an engine cannot run a model or method, with the reason. If the model is the reason, `auto` takes
    another engine."""


class Diverged(UnalikeError):
    """Raised when a client's loss or weights become NaN or infinite. The last checkpoint is still good."""

    def __init__(self, message: str, round: int, clients: list[int]):
        super().__init__(message)
        self.round, self.clients = round, clients


class Withheld(UnalikeError):
    """Raised in place of an error that may quote a client's own numbers: this text may leave the client, its cause is
    for the owner's terminal."""


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error without its full stop, with the second one where it ends in a
    colon; or the error's type where it has no message."""
    first, *more = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return (f"{first} {more[0]}" if first.endswith(":") and more else first).rstrip(".")


def line_of(error: BaseException) -> str:
    """Return another library's error in one line: its type and its first line."""
    kind, said = type(error).__name__, first_line(error)
    return kind if said == kind else f"{kind}: {said}"


def did_you_mean(given: str, options: Iterable[str]) -> str:
    """Return ' Did you mean X?' for a near miss, else ' There are: ...' with all options."""
    names = {option: option.lstrip("-") for option in sorted(options)}  # dashes of flags do not count as likeness
    if not names:
        return ""
    bare = given.lstrip("-")
    # nor does a beginning that many names share: 'fedsgd' is not near 'feddc'
    head = bare[:3] if sum(name.startswith(bare[:3]) for name in names.values()) >= 3 else ""

    def nearness(option: str) -> float:
        return difflib.SequenceMatcher(None, names[option].replace(head, "", 1), bare.replace(head, "", 1)).ratio()

    best = max(names, key=nearness)
    return f" Did you mean {best!r}?" if nearness(best) >= 0.6 else f" There are: {', '.join(names)}."


def unknown(what: str, given: object, options: Iterable[str]) -> UnalikeError:
    """Return the error for a name that is not in a registry."""
    return UnalikeError(f"There is no {what} {given!r}.{did_you_mean(str(given), options)}")


def either(options: Sequence[str]) -> str:
    """Return options as text: 'a', 'b' or 'c'."""
    return " or ".join(part for part in (", ".join(map(repr, options[:-1])), repr(options[-1])) if part)


def one_of(owner: object, name: str, *options: str) -> None:
    """Check that an attribute of `owner` is one of a few words."""
    value = getattr(owner, name)
    if value not in options:
        raise UnalikeError(f"{type(owner).__name__} {name} must be {either(options)}; got {value!r}.")


def complain(error: BaseException, again: str = "") -> int:
    """Print the error as one line on standard error and return the exit code: 2 for a mistake of the user, 3 for a run
    that diverged, 1 for a fault of the program."""
    if isinstance(error, KeyboardInterrupt):
        print(f"\nunalike: stopped{again}", file=sys.stderr)
        return 130
    if isinstance(error, UnalikeError):
        line, code = str(error), 3 if isinstance(error, Diverged) else 2
    elif isinstance(error, OSError | MemoryError):
        line, code = line_of(error), 2
    else:
        line, code = f"a fault of ours, or of code of your own (--debug shows where): {line_of(error)}", 1
    line = " ".join(line.splitlines())
    print(line if line.startswith("unalike") else f"unalike: {line}", file=sys.stderr)
    return code
