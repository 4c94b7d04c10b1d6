"""What the page shows of vertical runs, from vertical.json: the parties, how people were matched, who sees what, and
coefficients. The file is somebody else's: all of it becomes plain text and finite numbers."""

from __future__ import annotations

from typing import Any

from unalike.metrics.lines import is_finite
from unalike.text import listed

FILE = "vertical.json"
STEP = "epoch"
METRICS = {"accuracy": True, "auc": True, "rmse": False}  # of a line; whether higher is better
MOST_COLUMNS = 200  # of a party, in the table of coefficients


def metrics(lines: list[dict[str, Any]]) -> dict[str, bool]:
    """Return the metrics that a run's lines have."""
    return {name: higher for name, higher in METRICS.items() if any(f"test_{name}" in line for line in lines)}


def title(method: str, found: dict[str, Any]) -> str:
    """Return the headline of a run."""
    return f"{method}: {listed([party['name'] for party in _parties(found)])}"


def facts(found: dict[str, Any], epochs: int) -> list[str]:
    """Return what stands under the headline."""
    rows = found.get("rows")
    counts = [f"{rows[n]:,} {n} rows" for n in ("training", "test") if _has(rows, n)] if isinstance(rows, dict) else []
    parties = [f"{party['name']}: {party['columns']} columns" for party in _parties(found)]
    return [*parties, *counts, f"{epochs:,} epochs"]


def _parties(found: dict[str, Any]) -> list[dict[str, Any]]:
    given = found.get("parties")
    rows = [row for row in given if isinstance(row, dict) and "name" in row] if isinstance(given, list) else []
    return [{"name": str(row["name"]), "columns": row.get("columns", "?")} for row in rows]


def _has(rows: dict[str, Any], name: str) -> bool:
    return type(rows.get(name)) is int and rows[name] > 0


def shown(label: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return what the page shows of a run."""
    return {
        "label": label,
        "matching": [str(line) for line in _list(found.get("matching"))],
        "sees": [_sight(row) for row in _list(found.get("sees")) if isinstance(row, dict)],
        "coefficients": [c for one in _list(found.get("coefficients")) if (c := _coefficients(one))],
    }


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _sight(row: dict[str, Any]) -> list[str]:
    """Return a row of "who sees what": the receiver, what it is told, and by which field of whom, in which form."""
    receiver, field, sender, form, tells = (
        str(row.get(n, "")) for n in ("receiver", "field", "sender", "form", "tells")
    )
    return [receiver, tells, f"{field} from {sender}, {form}"]


def _coefficients(one: Any) -> dict[str, Any] | None:
    """Return a party's table, the largest coefficients first, the intercept last; None for what is none."""
    if not isinstance(one, dict):
        return None
    columns, values = _list(one.get("columns")), _list(one.get("values"))
    rows = [[str(c), [_number(v) for v in _list(row)]] for c, row in zip(columns, values, strict=False)]
    size = lambda row: (row[0] == "(intercept)", -max((abs(v) for v in row[1] if v is not None), default=0.0))  # noqa: E731
    ordered = sorted(rows, key=size)
    return {
        "party": str(one.get("party")),
        "outputs": [str(name) for name in _list(one.get("outputs"))],
        "rows": ordered[:MOST_COLUMNS],
        "more": max(0, len(ordered) - MOST_COLUMNS),
    }


def _number(value: Any) -> float | None:
    return float(f"{value:.4g}") if is_finite(value) else None
