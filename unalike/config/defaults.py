"""Defaults for a user's own data, where settings leave them open: splits to test on, metrics, model and local work.

`unalike run` and `unalike compare` use them for tables, pictures and folders; data sets with a name get the plain
defaults.
"""

from __future__ import annotations

import math
from typing import Any

from unalike.config.build import as_stored, joined, make_data
from unalike.config.tables import MODELS_TABLE, data_parts, data_settings
from unalike.data.federation import Federation
from unalike.data.tables import remarks
from unalike.metrics.choose import headline

ROUNDS = 30
LEAST_BATCH, LARGEST_BATCH = 16, 256
# steps per round, for a client of the usual size
LEAST_STEPS, MOST_STEPS = 12, 24
Tables = dict[str, dict[str, Any]]
# shares of every client's samples, held out if the data have no such split
SHARES = {"test": 0.2, "validation": 0.1}


def held_out(table: dict[str, Any], *splits: str) -> tuple[dict[str, Any], Federation, list[str]]:
    """Return [data] with the shares it needs, the federation, and remarks on it: samples of each client are held out
    for these splits unless the data or the settings say otherwise. With [data.NAME] tables, this concerns the user's
    own data among them."""
    if parts := data_parts(table):
        found = {name: _held_out_of_part(part, splits) for name, part in parts.items()}
        notes = [f"{name}: {note}" for name, (_, _, some) in found.items() for note in some]
        return {name: t for name, (t, _, _) in found.items()}, joined({n: f for n, (_, f, _) in found.items()}), notes
    stored, changes = as_stored(table)
    raw, known = make_data(stored, raw=True), data_settings(table)
    free = [name for name in known if name not in table and name not in raw.splits]
    shares = {name: SHARES[name] for name in splits if name in free}
    notes = [*remarks(raw), *_ranges(raw)]
    if "validation" in shares and not (raw.sizes * shares["validation"] >= 0.5).any():
        del shares["validation"]
        notes.append("Clients have too few samples to choose a round by: the last round is judged.")
    if shares:
        table, stored = {**table, **shares}, {**stored, **shares}
        raw = make_data(stored, raw=True) if not changes else raw
    fed = make_data(table) if changes else raw if raw.recipe is None else raw.prepared()
    return dict(table), fed, notes


def _held_out_of_part(table: dict[str, Any], splits: tuple[str, ...]) -> tuple[dict[str, Any], Federation, list[str]]:
    return held_out(table, *splits) if "name" not in table else (table, make_data(table), [])


def _ranges(raw: Federation) -> list[str]:
    """Return a remark if features have very different ranges, and what is done about it."""
    recipe, x = raw.recipe, raw.train.x
    if recipe is None or recipe.names is None or not any(recipe.scaled):
        return []
    which = [k for k, scaled in enumerate(recipe.scaled) if scaled]
    size = x[:, which].abs().nan_to_num().amax(0)
    low, high = (which[int(k)] for k in (size.argmin(), size.argmax()))
    if size.max() < 10 * max(float(size.min()), 0.1):  # nearly the same ranges
        return []
    reach = f"from {size.min():.3g} at most ({recipe.names[low]}) to {size.max():.4g} ({recipe.names[high]})"
    done = {
        "standard": "standardised by sums over all clients",
        "client": "standardised by every client for itself",
        "none": "left so (--scale none), which models seldom learn from",
        "raw": "left so (--scale raw), as trees may have them",
    }[recipe.scale]
    return [f"Features reach {reach}: {done}."]


def own(tables: Tables) -> bool:
    """Return whether the data are the user's own, not a set with a name."""
    return any("name" not in table for table in (data_parts(tables["data"]) or {"": tables["data"]}).values())


def suited(tables: Tables, fed: Federation) -> Tables:
    """Return the tables with open settings filled in to suit these data: metrics, model, local work.

    Chosen over seventeen real tables (benchmarks/tables.py, docs/tables.md): twelve to 24 steps per round for a client
    of the usual size, rates that fall, a little weight decay.
    """
    local: dict[str, Any] = {"lr": 0.1 if fed.classes is not None else 0.03, "lr_decay": 0.93, "weight_decay": 0.003}
    rows = float(fed.train.sizes.mean())
    given = tables["local"].get("batch_size")
    batch = given if isinstance(given, int) else 2 ** round(math.log2(min(LARGEST_BATCH, max(LEAST_BATCH, rows / 8))))
    if "steps" not in tables["local"]:
        steps = 1.0 if given == "full" else max(1.0, rows / batch)  # steps in one pass
        local["epochs"] = float(f"{min(max(2.0, LEAST_STEPS / steps), MOST_STEPS / steps):.3g}")
    model = tables["model"]
    if not {"name", "file"} & model.keys() and MODELS_TABLE not in tables:
        pictures = fed.train.x.dim() == 4
        model = ({"name": "cnn-small"} if pictures else {"name": "mlp", "hidden": [32], "skip": True}) | model
    return {
        **tables,
        "model": {"metrics": headline(fed), **model},
        "local": {**local, "batch_size": batch, **tables["local"]},
    }
