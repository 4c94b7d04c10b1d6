"""The methods, one file each; METHODS finds them by the name used on the command line.

A method is a class in a file of this folder, made from `Method`, with a `name`: nothing else is to be edited.
"""

import importlib
import pkgutil
from typing import Any

from unalike.contract import Method

# The files in the order in which lists show their methods; "*": all others.
ORDER = (
    "fedavg", "fedprox", "scaffold", "qfedavg", "fednova", "feddyn", "feddc", "rfedavg", "rfedavg_plus", "fedfa",
    "fedavgr", "oneshot", "flhc", "fedopt", "*", "reference",
)  # fmt: skip


def _named(file: str) -> dict[str, type[Method]]:
    """Return the methods of a file by name."""
    module = importlib.import_module(f"{__name__}.{file}")
    classes = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Method)]
    return {c.name: c for c in classes if c.__module__ == module.__name__ and "name" in vars(c)}


_files = [module.name for module in pkgutil.iter_modules(__path__)]
_files.sort(key=lambda file: (ORDER.index(file if file in ORDER else "*"), file))
METHODS = {name: cls for file in _files for name, cls in _named(file).items()}
CLASSES = {cls.__name__: cls for cls in METHODS.values()}

__all__ = ["METHODS", *sorted(CLASSES)]


def __getattr__(name: str) -> Any:
    if name not in CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return CLASSES[name]
