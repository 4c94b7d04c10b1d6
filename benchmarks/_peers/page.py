"""Tables and charts for docs/benchmarks.md: plain SVG in colours that read on light and on dark pages."""

import math
from pathlib import Path
from xml.sax.saxutils import escape

DOCS = Path(__file__).parents[2] / "docs"
TEXT, LINE, OURS, OTHER = "#7d8590", "#7d859055", "#2f81f7", "#9a8c98"


def put(name, text):
    """Replace what stands between the markers of this name in docs/benchmarks.md."""
    page = DOCS / "benchmarks.md"
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, rest = page.read_text().split(begin)
    page.write_text(f"{head}{begin}\n{text.strip()}\n{end}{rest.split(end)[1]}")


def _label(x, y, words, anchor="start", size=12, weight="normal"):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" '
        f'fill="{TEXT}">{escape(words)}</text>'
    )


def _picture(file, width, height, alt, parts):
    (DOCS / "images").mkdir(exist_ok=True)
    (DOCS / "images" / file).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(alt)}" font-family="system-ui, sans-serif">\n<title>{escape(alt)}</title>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def bars(file, alt, panels):
    """Horizontal bars. panels: {title: [(name, value, what is written beside it, whether it is ours)]}."""
    width, left, right, parts, y = 720, 170, 150, [], 0
    for title, rows in panels.items():
        y += 28
        parts.append(_label(10, y, title, size=14, weight="bold"))
        longest = max(value for _, value, _, _ in rows)
        for name, value, words, ours in rows:
            y += 26
            length = max(1.0, (width - left - right) * value / longest)
            parts += [
                _label(left - 8, y + 4, name, "end", weight="bold" if ours else "normal"),
                f'<rect x="{left}" y="{y - 8}" width="{length:.1f}" height="16" rx="2" '
                f'fill="{OURS if ours else OTHER}"/>',
                _label(left + length + 6, y + 4, words),
            ]
        y += 18
    _picture(file, width, y + 6, alt, parts)


def curves(file, alt, panels):
    """Small plots, two in a row, both axes logarithmic. panels: {"title: detail": [(x, seconds)]}."""
    width, height, parts = 360, 230, []
    for k, (title, points) in enumerate(panels.items()):
        x0, y0 = (k % 2) * width, (k // 2) * height
        across, up = ([math.log10(point[axis]) for point in points] for axis in (0, 1))
        low, high = min(up) - 0.15, max(max(up), min(up) + 0.5) + 0.15  # a flat curve should look flat

        def place(a, b, x0=x0, y0=y0, across=across, low=low, high=high):
            return (
                x0 + 60 + 260 * (a - across[0]) / ((across[-1] - across[0]) or 1),
                y0 + 185 - 130 * (b - low) / (high - low),
            )

        places = [place(a, b) for a, b in zip(across, up, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts += [
            _label(x0 + 50, y0 + 18, title.partition(": ")[0], size=13, weight="bold"),
            _label(x0 + 50, y0 + 32, title.partition(": ")[2], size=11),
            f'<polyline points="{x0 + 50},{y0 + 44} {x0 + 50},{y0 + 190} {x0 + 340},{y0 + 190}" fill="none" '
            f'stroke="{LINE}"/>',
            f'<polyline points="{path}" fill="none" stroke="{OURS}" stroke-width="2"/>',
        ]
        for (x, y), (value, seconds) in zip(places, points, strict=True):
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{OURS}"/>',
                _label(x, y - 8, f"{seconds:.3g} s", "middle", 10),
                _label(x, y0 + 206, f"{value:,}", "middle", 10),
            ]
    _picture(file, 2 * width, height * ((len(panels) + 1) // 2), alt, parts)
