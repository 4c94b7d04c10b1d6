"""The page itself: one HTML file that contains its style, its script and its numbers, and contacts no other address.

Text from outside (names of clients, folders, settings) reaches the page as JSON and is inserted as text, never as HTML;
text that this file writes into the page is escaped. A content security policy allows only the one script and the one
style, by their hashes, and no address at all, so that even a mistake here could not run or send anything.
"""

from __future__ import annotations

import base64
import hashlib
import html as _html
import json
from importlib.resources import files
from typing import Any

# One colour per method, of the same hue in both schemes: at least 3 : 1 against the page, and far enough from each
# other for people who see no red or no green (tests/report/test_report.py computes both).
LIGHT = ("#3e7ff6", "#af2f2d", "#3f997f", "#4a2eab", "#b37600", "#8b3062", "#007f9b", "#572601")
DARK = ("#5faaf7", "#f09d97", "#9ffed8", "#805bdb", "#f3c112", "#ac5182", "#6cd9f8", "#e1762b")


def html(data: dict[str, Any], comparison: dict[str, Any], live: str | None = None) -> str:
    """Return the whole file; live: the version string of a page served by `unalike watch`, which may ask its server for
    a newer version and nothing else."""
    here = files("unalike.report")
    script = (here / "page.js").read_text(encoding="utf-8")
    style = _palette() + (here / "page.css").read_text(encoding="utf-8")
    rules = {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(style),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        **({} if live is None else {"connect-src": "'self'"}),
    }
    policy = "; ".join(f"{name} {value}" for name, value in rules.items())
    content = {**data, "comparison": _comparison(comparison), "colors": len(LIGHT), "live": live}
    # "<" and ">" as JSON's own escapes: no text can end the element; U+2028 is none of ours but costs nothing.
    numbers = json.dumps(content, separators=(",", ":"), allow_nan=False)
    numbers = numbers.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    title = _html.escape(data["title"])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title} · unalike</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<noscript><p class="bare">{title}. The pictures of this page need JavaScript; nothing leaves the page.</p></noscript>
<main id="page" aria-label="Report"></main>
<div id="tip" role="status" aria-live="polite" hidden></div>
<script type="application/json" id="data">{numbers}</script>
<script>{script}</script>
</body>
</html>
"""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _palette() -> str:
    """Return the colours as CSS variables: --c0, --c1, ... in both schemes."""

    def block(colors: tuple[str, ...]) -> str:
        return "".join(f"--c{k}:{color};" for k, color in enumerate(colors))

    dark = block(DARK)
    return (
        f":root{{{block(LIGHT)}}}\n"
        f"@media (prefers-color-scheme: dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
        f":root[data-theme=dark]{{{dark}}}\n"
        f"@media print{{:root,:root[data-theme=dark],:root:not([data-theme=light]){{{block(LIGHT)}}}}}\n"
    )


def _comparison(given: dict[str, Any]) -> dict[str, Any]:
    """Return verdict, table, command and diverged runs as plain text, whatever types the file had."""
    verdict = given.get("verdict") or []
    lines = [verdict] if isinstance(verdict, str) else [str(line) for line in verdict]
    rows = given.get("table") or []
    if rows and all(isinstance(row, dict) for row in rows):
        columns = list(dict.fromkeys(key for row in rows for key in row))
        rows = [columns, *([row.get(key, "") for key in columns] for row in rows)]
    table = [[_cell(cell) for cell in row] for row in rows if isinstance(row, list | tuple)]
    command = given.get("command")
    return {
        "verdict": lines,
        "answers": _answers(given.get("answers")),
        "statistics": _statistics(given.get("statistics")),
        "method": str(given.get("statistics_method") or ""),
        "table": table,
        "command": str(command) if command else None,
        "diverged": _diverged(given),
    }


def _answers(rows: Any) -> list[list[str]]:
    """Return the verdict's table with its header; the data come first if there are several cases."""
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        return []
    keys = {"wish": "what you care about", "method": "method", "sure": "how sure"}
    keys = {"data": "data", **keys} if len({str(row.get("data")) for row in rows}) > 1 else keys
    return [[*keys.values()], *([_cell(row.get(key)) for key in keys] for row in rows)]


def _statistics(rows: Any) -> list[list[str]]:
    """Return the statistical tests behind the verdict, with a header."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return []
    keys = ("data", "what", "method", "against", "difference", "standard_error", "ahead", "seeds", "p", "p_corrected")
    shown = [key for key in keys if any(row.get(key) not in (None, "") for row in rows)]
    return [[key.replace("_", " ") for key in shown], *([_cell(row.get(key)) for key in shown] for row in rows)]


def _diverged(given: dict[str, Any]) -> list[str]:
    """Return every run that diverged, by method, setting and seed."""
    try:
        return [
            f"{', '.join(filter(None, [case['case'], method['label']]))}, seed {seed} (round {round})"
            for case in given.get("cases") or []
            for method in case["methods"]
            for seed, round in method["diverged"].items()
        ]
    except (AttributeError, KeyError, TypeError):
        return []  # not cases that we wrote


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
