"""The pictures of a paper's page: a number over rounds, one picture per row, or across the rows of a table; and all its
printed numbers against ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from unalike.metrics.names import of
from unalike.reproduce import measure
from unalike.reproduce.define import Paper, Row, Table
from unalike.reproduce.judge import CLOSE, CONTRADICTS, DIFFERS, ORDER, REPRODUCES, WITHIN
from unalike.reproduce.results import Result
from unalike.reproduce.tally import Judged
from unalike.results import stats

if TYPE_CHECKING:
    from unalike.reproduce.pages import Found

PLOT, HIGH, LEFT, BOTTOM = 500, 330, 46, 44
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0")
Points = list[tuple[float, float]]


def groups(table: Table, rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each picture, by its name: each row by itself or, if a picture spans rows, all rows with the
    same first part."""
    out: dict[str, list[Row]] = {}
    for row in rows:
        out.setdefault(row.begins if table.across else row.id, []).append(row)
    return out


def curves(found: Found, row: Row) -> str:
    """Return a picture of a number over rounds, one line per method (mean over seeds); circles at the end are the
    paper's numbers, diamonds its rounds to the target."""
    one = measure.measure(found.table.measures[0])
    if one.unit in ("s", "bytes"):  # a curve would show nothing
        return ""
    key = one.key or "test_accuracy"
    timed = found.table.over == "virtual time"
    series = {m: _mean_curve(found.results_of(row, m), key, timed) for m in found.table.methods}
    series = {m: points for m, points in series.items() if len(points) > 1}
    if not series:
        return ""
    rounds = max(points[-1][0] for points in series.values())
    circles: dict[str, tuple[float, float]] = {}
    diamonds: dict[str, tuple[float, float]] = {}
    for method in series:
        printed = row.paper(method, 0)
        if printed is None or printed.more_than:
            continue
        if one.unit == "%":
            circles[method] = rounds, printed.value
        if one.unit == "rounds" and isinstance(row.target, float) and printed.value <= rounds:
            diamonds[method] = printed.value, 100 * row.target
    values = [v for points in series.values() for _, v in points[len(points) // 20 :]]
    values += [value for _, value in circles.values()]
    below = [(rounds * k / 4, f"{rounds * k / 4:.0f}") for k in range(5)]
    title = f"{of(key).words} over {'virtual seconds' if timed else 'rounds'}: {row.label}"
    return _picture(found, series, values, (0.0, rounds), below, title, circles, diamonds)


def across(found: Found, rows: Sequence[Row]) -> str:
    """Return a picture of the table's first number across rows, one line per method."""
    one = measure.measure(found.table.measures[0])
    cells = {(cell.row.id, cell.method): cell.mean for cell in found.shown() if cell.measure == one}
    series: dict[str, Points] = {}
    for method in found.table.methods:
        means = [(float(k), cells.get((row.id, method))) for k, row in enumerate(rows)]
        series[method] = [(k, mean) for k, mean in means if mean is not None]
    series = {m: points for m, points in series.items() if points}
    if not series or len(rows) < 2:
        return ""
    values = [v for points in series.values() for _, v in points]
    below = [(float(k), row.ends) for k, row in enumerate(rows)]
    title = f"{one.words} across {found.table.across}: {rows[0].label.partition(', ')[0]}"
    return _picture(found, series, values, (-0.3, len(rows) - 0.7), below, title)


def against(found: Found, rows: Sequence[Row]) -> str:
    """Return a picture of the table's first number against its second one, which may span decades: one point per row
    and method."""
    up, along = (measure.measure(text) for text in found.table.measures[:2])
    means = {(cell.row.id, cell.method, cell.measure): cell.mean for cell in found.shown()}
    points = []
    for method in found.table.methods:
        for row in rows:
            x, y = means.get((row.id, method, along)), means.get((row.id, method, up))
            if x and y is not None:
                points.append((method, row, x, y))
    if len(points) < 2:
        return ""
    ticks = _doubling(min(x for _, _, x, _ in points), max(x for _, _, x, _ in points))
    below = [(math.log10(tick), f"{tick:.5g}") for tick in ticks]
    title = f"{up.words} against {along.words}: {rows[0].label.partition(', ')[0]}"
    marks = [(method, math.log10(x), y, row.ends) for method, row, x, y in points]
    series: dict[str, Points] = {method: [] for method in dict.fromkeys(method for method, *_ in points)}
    ends = below[0][0], below[-1][0]
    return _picture(found, series, [y for *_, y in points], ends, below, title, marks=marks)


def _picture(
    found: Found,
    series: dict[str, Points],
    values: Sequence[float],
    ends: tuple[float, float],
    below: Sequence[tuple[float, str]],
    title: str,
    circles: dict[str, tuple[float, float]] | None = None,
    diamonds: dict[str, tuple[float, float]] | None = None,
    marks: Sequence[tuple[str, float, float, str]] = (),
) -> str:
    """Return lines as SVG. values: what must be visible; ends: of the horizontal axis; below: the labels under it;
    marks: single points of a method, and what a browser says of each when the mouse is over it."""
    ticks = _ticks(min(values), max(values))
    low, high = ticks[0], ticks[-1]
    labels = {method: found.paper.methods[method]["label"] for method in series}
    wide = LEFT + PLOT + 40 + 7 * max(map(len, labels.values()))

    def place(at: float, value: float) -> tuple[float, float]:
        x = LEFT + PLOT * (at - ends[0]) / (ends[1] - ends[0])
        y = 10 + (HIGH - 10 - BOTTOM) * (high - min(max(value, low), high)) / (high - low)
        return x, y

    size = f'viewBox="0 0 {wide} {HIGH}" font-family="sans-serif" font-size="11"'
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', f'<rect width="{wide}" height="{HIGH}" fill="white"/>']
    for value in ticks:
        _, y = place(ends[0], value)
        out.append(f'<path d="M{LEFT} {y:.1f}H{LEFT + PLOT}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 4}" y="{y + 4:.1f}" text-anchor="end">{value:.5g}</text>')
    for at, text in below:
        x, _ = place(at, low)
        lines = text.split(", ")  # a long label has several lines
        for k, line in enumerate(lines):
            y = HIGH - 28 + 11 * k - 3 * (len(lines) > 1)
            out.append(f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{escape(line)}</text>')
    for k, (method, points) in enumerate(series.items()):
        colour, label = COLOURS[k % len(COLOURS)], escape(labels[method])
        path = "L".join("{:.1f} {:.1f}".format(*place(*point)) for point in points)
        out += [f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'] if points else []
        own = [(*place(x, y), words) for owner, x, y, words in marks if owner == method]
        for n, (x, y, words) in enumerate(own):
            hover = f"<title>{label}, {escape(words)}</title>"
            out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}">{hover}</circle>')
            if k == 0:  # the first method's points are named, aslant: some lie close together
                turned = f"translate({x + (-7, 7)[n % 2]:.1f} {y + (-5, 8)[n % 2]:.1f}) rotate(30)"
                out.append(f'<text transform="{turned}" text-anchor="{("end", "start")[n % 2]}">{escape(words)}</text>')
        out.append(f'<text x="{LEFT + PLOT + 20}" y="{20 + 15 * k}" fill="{colour}">{label}</text>')
        mark = f'fill="white" stroke="{colour}" stroke-width="2"'
        if circles and method in circles:
            x, y = place(*circles[method])
            out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {mark}/>')
        if diamonds and method in diamonds:
            x, y = place(*diamonds[method])
            out.append(f'<path d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z" {mark}/>')
    out.append(f'<text x="{LEFT}" y="{HIGH - 8}">{escape(title)}</text></svg>')
    return "\n".join(out) + "\n"


# ---------------------------------------------------------------- printed against ours

SIDE, GAP, TOP, LEGEND = 300, 70, 40, 520
SHADES = {REPRODUCES: "#3ca951", CLOSE: "#4269d0", WITHIN: "#efb118", DIFFERS: "#e4572e", CONTRADICTS: "#9498a0"}
UNITS = {"%": "accuracy, %", "rounds": "rounds to the target", "pp²": "variance over clients, pp²"}


def diagonal(paper: Paper, judged: Sequence[Judged]) -> str:
    """Return a picture of printed numbers against ours, one point per number: one panel per unit, the paper's own
    methods as diamonds."""
    points: dict[str, list[tuple[float, float, Judged]]] = {}
    for one in judged:
        if one.cell and one.cell.mean is not None and one.verdict in SHADES and one.cell.measure.unit in UNITS:
            points.setdefault(one.cell.measure.unit, []).append((one.printed.value, one.cell.mean, one))
    panels = [_panel(paper, unit, points[unit], k) for k, unit in enumerate(u for u in UNITS if u in points)]
    wide, high = max(LEFT + len(panels) * (SIDE + GAP), LEGEND), TOP + SIDE + 50
    # a width, so that a picture of one panel is not drawn larger than one of two
    size = f'width="{wide}" viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="11"'
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', f'<rect width="{wide}" height="{high}" fill="white"/>']
    for k, (word, shade) in enumerate(SHADES.items()):
        x = LEFT + (0, 80, 130, 245, 300)[k]
        out.append(f'<circle cx="{x}" cy="12" r="4" fill="{shade}"/><text x="{x + 8}" y="16">{word}</text>')
    name = escape(paper.name)
    out.append(f'<text x="{LEFT}" y="32">{name}: diamonds are its own methods, circles its baselines</text>')
    return "\n".join([*out, *panels, "</svg>"]) + "\n" if panels else ""


def _panel(paper: Paper, unit: str, points: Sequence[tuple[float, float, Judged]], number: int) -> str:
    """Return one square: printed numbers horizontally, ours vertically, with the same ticks on both axes."""
    values = [value for x, y, _ in points for value in (x, y)]
    scale = math.log if unit == "rounds" else float  # rounds range from 20 to 1000
    ticks = _doubling(min(values), max(values)) if unit == "rounds" else _ticks(min(values), max(values))
    left, low = LEFT + number * (SIDE + GAP), TOP + SIDE

    def place(value: float) -> float:
        return SIDE * (scale(value) - scale(ticks[0])) / (scale(ticks[-1]) - scale(ticks[0]))

    out = [f'<path d="M{left} {low}l{SIDE} -{SIDE}" stroke="#999"/>']
    for tick in ticks:
        at, text = place(tick), f"{tick:.5g}"
        out.append(f'<path d="M{left} {low - at:.1f}h{SIDE}M{left + at:.1f} {low}v-{SIDE}" stroke="#eee"/>')
        out.append(f'<text x="{left - 4}" y="{low - at + 4:.1f}" text-anchor="end">{text}</text>')
        out.append(f'<text x="{left + at:.1f}" y="{low + 14}" text-anchor="middle">{text}</text>')
    for x, y, one in sorted(points, key=lambda point: -ORDER.index(point[2].verdict)):
        out.append(_mark(left + place(x), low - place(y), one, one.printed.method in paper.own))
    out.append(f'<text x="{left}" y="{low + 32}">{UNITS[unit]}: printed across, ours upwards</text>')
    return "\n".join(out)


def _mark(x: float, y: float, one: Judged, own: bool) -> str:
    """Return a point; a browser shows its description when the mouse is over it."""
    fill = f'fill="{SHADES[one.verdict]}" fill-opacity="0.75"'
    words = f"{one.printed.table}, {one.printed.row}, {one.printed.method}, {one.printed.metric}: {one.verdict}"
    title = f"<title>{escape(words)}</title>"
    if own:
        return f'<path d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z" {fill}>{title}</path>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" {fill}>{title}</circle>'


def _doubling(low: float, high: float) -> list[float]:
    """Return 1, 2, 5, 10, 20, 50, ... around these positive limits."""
    sizes = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [n * 10.0**size for size in sizes for n in (1, 2, 5)]
    first = max(tick for tick in every if tick <= low)
    return [tick for tick in every if first <= tick <= min(t for t in every if t >= high)]


def _ticks(low: float, high: float) -> list[float]:
    """Return four to eight round numbers around these limits."""
    spread = max(high - low, 1e-9)
    size = 10 ** math.floor(math.log10(spread / 4))
    step = next(size * n for n in (1, 2, 5, 10) if spread / (size * n) <= 6)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [step * k for k in range(first, last + 1)]


def _mean_curve(results: Sequence[Result], key: str, timed: bool = False) -> Points:
    """Return the mean over seeds, in the rounds that all of them have; timed: over the mean virtual time of these."""
    pairs = [zip(curve["round"], curve.get(key, ()), strict=False) for curve in (r["curve"] for r in results)]
    found = [{round: value for round, value in pair if value is not None} for pair in pairs]
    if not found:
        return []
    scale = 100 if of(key).unit == "percent" else 1
    rounds = sorted(set.intersection(*(set(curve) for curve in found)))
    means = [(r, scale * stats.mean([curve[r] for curve in found])) for r in rounds]
    if not timed:
        return means
    times = [dict(zip(r["curve"]["round"], r["curve"].get("virtual_seconds", ()), strict=False)) for r in results]
    return [(stats.mean([at[round] for at in times]), mean) for round, mean in means if all(round in t for t in times)]
