"""Engines: they run the client half of a method. `choose_engine` takes the one asked for, or the one that fits."""

from unalike.engines.choose import ENGINES, choose_engine

__all__ = ["ENGINES", "choose_engine"]
