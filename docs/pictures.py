"""The pictures of docs/report.md: a comparison's report in Chromium, as a person sees it.

unalike report FOLDER && python docs/pictures.py FOLDER/report.html
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from browser import Browser, browser

IMAGES = Path(__file__).resolve().parent / "images"
CHOSEN = 5  # the client, by its rank, that the pictures show


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
        take(page, file, "light", 1120, "light", "verdict numbers curves")
        take(page, file, "clients", 1120, "light", "clients labels")
        take(page, file, "dark", 1120, "dark", "curves drift")
        take(page, file, "phone", 390, "light", "numbers curves clients")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
