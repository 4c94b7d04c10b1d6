"""The pictures of docs/report.md, a comparison's report in Chromium as a person sees it, and those of docs/skews.md.

unalike report FOLDER && python docs/pictures.py FOLDER/report.html
python docs/pictures.py skews
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from browser import Browser, browser

import unalike as ua

IMAGES = Path(__file__).resolve().parent / "images"
CHOSEN = 5  # the client, by its rank, that the pictures show

# docs/images/skews: the data set and its options, what is written, clients, and what is drawn
SKEWS = {
    "dirichlet": ("digits", {}, "dirichlet:0.1", 20, "labels"),
    "classes": ("digits", {}, "classes:1", 20, "labels"),
    "quantity": ("digits", {}, "quantity:0.5", 20, "labels"),
    "noise": ("digits", {"image": True}, "iid|noise:1:3", 12, "samples"),
    "impulse": ("digits", {"image": True}, "iid|impulse:0.4:3", 12, "samples"),
    "rotate": ("digits", {"image": True}, "iid|rotate:4", 12, "samples"),
    "blur": ("digits", {"image": True}, "iid|blur:3:1.5", 12, "samples"),
    "contrast": ("digits", {"image": True}, "iid|contrast:3", 12, "samples"),
    "colour": ("digits", {"image": True}, "iid|colour:3", 12, "samples"),
    "shift": ("digits", {}, "iid|shift:1:4", 12, "samples"),
    "views": ("digits", {"image": True}, "iid|views:2:0.5", 12, "samples"),
    "permute": ("digits", {"image": True}, "iid|permute:3", 12, "samples"),
    "crowd": ("digits", {"image": True}, "iid|crowd:0.6:0:3", 12, "samples"),
    "periods": ("series", {"trend": 3.0}, "periods", 12, "labels"),
    "offset": ("series", {"offset": 1.0}, None, None, "samples"),
    "drift": ("digits", {"image": True}, "iid|drift:50:rotate:2:180", 12, "rounds"),
    "stream": ("digits", {}, "iid|stream:50:0.3:labels", 12, "rounds"),
    "several": ("digits", {"image": True}, "dirichlet:0.3|quantity:1|rotate:3", 18, "labels samples"),
}
# The table of docs/skews.md: the number, the data set, and what is written, in front of the strength
MEASURED = {
    "label_distance": ("dirichlet:0.1", "prior-dirichlet:0.3", "shards:2", "classes:1"),
    "size_gini": ("quantity:0.5", "lognormal:1", "power-law:1"),
    "feature_mmd": (
        *("iid|noise:1", "iid|impulse:0.5", "iid|shift:1:4", "iid|rotate:4:180", "iid|blur:0:2", "iid|contrast"),
        *("iid|colour", "iid|views:2:0.5"),
    ),
    "disagreement": ("iid|permute:2", "iid|crowd:0.6"),
    "drift": ("iid|drift:10:rotate:4:180", "iid|drift:10:permute:2", "iid|stream:10:0.5:labels"),
}
STRENGTHS = (0, 0.25, 0.5, 0.75, 1)
SEEDS = 5


def measure_skews() -> str:
    """Every kind by its own number, at five strengths: means over seeds."""
    digits = ua.load("digits", image=True)
    lines = ["| measured by | written | " + " | ".join(f"@{s:g}" for s in STRENGTHS) + " |", "|---" * 7 + "|"]

    def row(name: str, written: str, feds: Callable[[float, int], ua.Federation]) -> None:
        means = [np.mean([ua.skew.measure(feds(s, i), i)[name] for i in range(SEEDS)]) for s in STRENGTHS]
        cells = [f"{mean:.3f}".replace("-0.000", "0.000") for mean in means]
        text = written.replace("|", "\\|")
        lines.append(f"| {name.replace('_', ' ')} | `{text}` | " + " | ".join(cells) + " |")

    for name, texts in MEASURED.items():
        for text in texts:
            row(name, text, lambda s, i, text=text: digits.split(f"{text}@{s}", 20, seed=i))
    series = ua.load("series", trend=3.0)
    row("label_distance", "periods", lambda s, i: series.split(f"periods@{s}", 20, seed=i))
    row("feature_mmd", "series, offset", lambda s, i: ua.load("series", offset=float(s), draw=i).split())
    return "\n".join(lines)


def draw_skews() -> None:
    """Write every picture of docs/skews.md, and its table."""
    page = IMAGES.parent / "skews.md"
    head, rest = page.read_text(encoding="utf-8").split("<!-- measured: begin -->")
    _, tail = rest.split("<!-- measured: end -->")
    table = measure_skews()
    page.write_text(f"{head}<!-- measured: begin -->\n{table}\n<!-- measured: end -->{tail}", encoding="utf-8")
    (IMAGES / "skews").mkdir(exist_ok=True)
    for name, (data, options, text, clients, panels) in SKEWS.items():
        fed = ua.load(data, **options).split(text, clients)
        (IMAGES / "skews" / f"{name}.svg").write_text(ua.skew.picture(fed, panels.split()), encoding="utf-8")


def take(page: Browser, file: Path, name: str, width: int, scheme: str, parts: str) -> None:
    """The named sections, one below the other."""
    page.size(width, 1000)
    page.scheme(scheme)
    page.open(file)
    page.run(f"choose(sorted(state.run)[{CHOSEN}][1])")
    keep = " ".join(parts.split())
    page.run(
        f"document.querySelectorAll('section').forEach(s => {{ s.hidden = !'{keep}'.split(' ').includes(s.id); }})"
    )
    page.run(
        "document.querySelectorAll('footer, nav.parts').forEach(n => { n.hidden = true; n.style.display = 'none'; })"
    )
    page.settle()
    page.size(width, page.run("document.documentElement.scrollHeight"))
    page.settle()
    page.screenshot(IMAGES / f"report-{name}.png")


def main(file: Path) -> None:
    IMAGES.mkdir(exist_ok=True)
    with browser() as page:
        take(page, file, "light", 1120, "light", "verdict curves answers")
        take(page, file, "clients", 1120, "light", "clients labels")
        take(page, file, "dark", 1120, "dark", "curves drift")
        take(page, file, "phone", 390, "light", "numbers curves clients")


if __name__ == "__main__":
    draw_skews() if sys.argv[1] == "skews" else main(Path(sys.argv[1]))
