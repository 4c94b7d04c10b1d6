"""What the page shows of boosted trees (`unalike.trees.picture`). The file is somebody else's: all of it becomes plain
text and finite numbers, and what is no tree is left out."""

from __future__ import annotations

from typing import Any

from unalike.metrics.lines import is_finite
from unalike.trees import picture

FILE = picture.FILE
MOST_NODES = 4 << 10  # of a tree of the greatest depth


def shown(views: list[Any]) -> list[dict[str, Any]]:
    """Return the views of trees that are such."""
    return [_view(view) for view in views if isinstance(view, dict)]


def _view(view: dict[str, Any]) -> dict[str, Any]:
    who, trees = view.get("who"), view.get("trees")
    return {
        "who": None if who is None else str(who),
        "trees": trees if type(trees) is int else None,
        "shares": [_shares(one) for one in _list(view.get("shares")) if isinstance(one, dict)],
        "drawn": [d for one in _list(view.get("drawn")) if (d := _drawn(one))][: picture.MOST_TREES],
    }


def _shares(one: dict[str, Any]) -> dict[str, Any]:
    rows = [row for row in _list(one.get("rows")) if isinstance(row, list) and len(row) == 2 and is_finite(row[1])]
    return {"of": str(one.get("of", "")), "rows": [[str(name), float(share)] for name, share in rows]}


def _drawn(one: Any) -> dict[str, Any] | None:
    """Return a tree every split of which has both children; None where it is none."""
    if not isinstance(one, dict):
        return None
    nodes = [n for node in _list(one.get("nodes"))[:MOST_NODES] if (n := _node(node))]
    places = {place for place, *_ in nodes}
    splits = {place for place, *rest in nodes if len(rest) > 1}
    reached = {1} | {2 * place + k for place in splits for k in (0, 1)}
    return {"title": str(one.get("title", "")), "nodes": nodes} if places == reached else None


def _node(node: Any) -> list[Any] | None:
    if (
        not isinstance(node, list)
        or len(node) not in (2, 4)
        or type(node[0]) is not int
        or not 0 < node[0] < MOST_NODES
    ):
        return None
    if len(node) == 2:
        return [node[0], float(node[1])] if is_finite(node[1]) else None
    gain = float(node[2]) if is_finite(node[2]) else None
    return [node[0], str(node[1]), gain, bool(node[3])]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
