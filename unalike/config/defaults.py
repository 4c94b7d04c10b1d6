"""What data of one's own decide, where nobody said otherwise: splits to test on, metrics, model and local work.

`unalike run` and `unalike compare` ask here for tables, pictures and folders of one's own; data sets with a name are
run with the plain defaults.
"""

from __future__ import annotations

from typing import Any

from unalike.config.build import make_data
from unalike.config.tables import data_settings
from unalike.data.federation import Federation
from unalike.metrics.choose import headline

Tables = dict[str, dict[str, Any]]
SHARES = {"test": 0.2, "validation": 0.1}  # of every client's samples, held out where the data have no such split


def held_out(table: dict[str, Any], *splits: str) -> tuple[dict[str, Any], Federation]:
    """[data] with the shares it needs, and the federation: samples of each client are held out for these splits where
    neither the data nor the settings say otherwise."""
    fed, known = make_data(table), data_settings(table)
    free = [name for name in known if name not in table and name not in fed.splits]
    shares = {name: SHARES[name] for name in splits if name in free}
    return ({**table, **shares}, make_data({**table, **shares})) if shares else (dict(table), fed)


def own(tables: Tables) -> bool:
    """Whether the data are one's own, and not a set with a name."""
    return "name" not in tables["data"]


def suited(tables: Tables, fed: Federation) -> Tables:
    """Return the tables with metrics that suit these data, where none were given."""
    return {**tables, "model": {"metrics": headline(fed), **tables["model"]}}
