"""The report in a real headless Chromium: what a person can do on the page, and what the page must never do.

`make test` fetches a Chromium first where there is none (tests/browser.py).
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import Browser, browser

import unalike as ua
from unalike import config, report

HOSTILE = "</script><img src=x onerror=alert(1)>"
NAMES = [
    HOSTILE,
    "<svg onload=alert(2)>",
    "javascript:alert(3)",
    "Ærøskøbing & Søn",
    "a" * 200,
    "six",
    "seven",
    "eight",
]


@pytest.fixture(scope="module")
def chromium():
    with browser() as one:
        yield one


def federation(classes: bool = True) -> ua.Federation:
    whole = ua.load("digits").split(ua.partition.Dirichlet(0.3), clients=len(NAMES), seed=1, test=0.25)
    pairs = [whole.train.of(k) for k in range(len(NAMES))]
    tests = [whole.test.of(k) for k in range(len(NAMES))]
    if not classes:
        pairs, tests = ([(x, y.float()) for x, y in part] for part in (pairs, tests))
    named = {"client_tests": tests, "names": NAMES}
    return ua.Federation.from_arrays(pairs, **named, test=whole.global_test if classes else None)


def simulate(folder: Path, method: ua.Method, seed: int, **options) -> None:
    torch.manual_seed(seed)
    local = ua.LocalTraining(epochs=1, batch_size=16, lr=0.1)
    options = {"rounds": 6, "callbacks": [report.Record()], **options}
    fed = options.pop("federation", None) or federation()
    module = options.pop("model", None) or torch.nn.Linear(64, 10)
    ua.simulate(module, fed, method, local=local, seed=seed, folder=folder, **options)


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Path:
    """Two methods, two seeds, clients with the worst of names, a verdict to match."""
    home = tmp_path_factory.mktemp("report")
    for (name, method), seed in itertools.product({"fedavg": ua.FedAvg(), "scaffold": ua.Scaffold()}.items(), (0, 1)):
        simulate(home / f"{name}-{seed}", method, seed)
    wide = {f"a wide column {k}": "some words" for k in range(12)}
    said = {
        "verdict": ["In short: scaffold.", "Measured: accuracy.", f"Note: {HOSTILE}"],
        "answers": [
            {"data": "", "wish": "the highest accuracy", "method": "scaffold, 90.0 %", "sure": "sure: in all seeds"},
            {"data": "", "wish": "bytes", "method": HOSTILE, "sure": "cannot be told"},
        ],
        "statistics": [{"what": "accuracy", "method": HOSTILE, "p": 0.01}],
        "table": [{"method": HOSTILE, "accuracy": 0.9, **wide}],
        "command": HOSTILE,
    }
    return report.write(home, comparison=said)


@pytest.fixture
def page(chromium, compared) -> Browser:
    chromium.size(1200, 900)
    chromium.scheme("light")
    chromium.open(compared)
    yield chromium
    assert chromium.troubles() == []
    assert chromium.requests() == [compared.resolve().as_uri()]
    assert not [e for e in chromium.events if e.get("method") == "Page.javascriptDialogOpening"]


def press(page: Browser, selector: str, x: float = 0.5, y: float = 0.5) -> None:
    """A click of the mouse on a part of an element, scrolled into view."""
    page.settle()
    script = f"""(() => {{
      const node = document.querySelector({json.dumps(selector)});
      node.scrollIntoView({{block: "center", behavior: "instant"}});
      const box = node.getBoundingClientRect();
      return [box.left + box.width * {x}, box.top + box.height * {y}];
    }})()"""
    page.click(*page.run(script))


def focus(page: Browser, selector: str) -> None:
    """As the Tab key would; scrolling is over before the next key (a scroll hides the values)."""
    script = f"""new Promise(done => {{
      const node = document.querySelector({json.dumps(selector)});
      const later = () => setTimeout(done, 200);
      let quiet = later();
      addEventListener("scroll", () => {{ clearTimeout(quiet); quiet = later(); }});
      node.scrollIntoView({{block: "center", behavior: "instant"}});
      node.focus({{preventScroll: true}});
    }})"""
    page.run(script)
    page.settle()


def text(page: Browser, selector: str) -> str:
    return page.run(f"document.querySelector({json.dumps(selector)}).textContent")


def test_it_opens_and_has_all_its_parts(page):
    parts = page.run("[...document.querySelectorAll('section')].map(s => s.id)")
    # the answer, a picture, then all else
    parts_expected = "verdict curves answers numbers clients labels drift privacy repeat settings"
    assert parts == parts_expected.split()
    assert page.run("document.documentElement.dataset.ready") == "yes"
    seen = page.run("[...document.querySelectorAll('#privacy details')].map(d => d.querySelectorAll('tr').length)")
    assert seen and min(seen) > 5


def test_the_answer_is_bold_and_doubt_is_not(page):
    weight = "Number(getComputedStyle(document.querySelector('{}')).fontWeight)"
    assert text(page, "#verdict p") == "scaffold." and page.run(weight.format("#verdict p")) >= 600
    rows = page.run(
        "[...document.querySelectorAll('table.answers tbody tr')].map(r => [...r.children].map(c => c.textContent))"
    )
    assert [row[0] for row in rows] == ["the highest accuracy", "bytes"]
    assert page.run(weight.format("#answers td.sure")) >= 600
    assert page.run("document.querySelectorAll('#answers td.sure').length") == 1
    assert (
        page.run("[...document.querySelectorAll('#answers details, #settings details')].filter(d => d.open).length")
        == 0
    )


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_without_a_sign(page, compared, width, scheme):
    page.size(width, 900)
    page.scheme(scheme)
    page.open(compared)
    page.run("choose(4); document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.settle()
    assert page.run("document.documentElement.scrollWidth") == width
    boxes = page.run(
        "[...document.querySelectorAll('.scroll')].map(b => [b.scrollWidth > b.clientWidth + 2, "
        "!b.previousSibling.hidden, b.tabIndex, b.getAttribute('aria-label')])"
    )
    assert boxes and all(wide == told and tab == 0 and label for wide, told, tab, label in boxes)
    assert any(wide for wide, *_ in boxes)
    outside = """[...document.querySelectorAll('section *:not(.scroll *):not(option)')].filter(n => {
      const b = n.getBoundingClientRect(), s = n.closest('section').getBoundingClientRect();
      return b.width > 0 && b.right > s.right + 1 && !n.closest('svg, .choice'); }).length"""
    assert page.run(outside) == 0
    # the sign goes when the end is seen
    page.run("(() => { const b = document.querySelector('#numbers .scroll'); b.scrollLeft = b.scrollWidth; })()")
    page.settle()
    assert not page.run("document.querySelector('#numbers .scroll').classList.contains('cut')")


def test_a_line_upon_another_can_be_seen(page):
    page.run("""(() => {
      const host = document.querySelector('#curves .host'), points = [1, 2, 3].map(x => ({ x, y: x / 4 }));
      const moved = points.map(p => ({ x: p.x, y: p.y / 2 }));
      const series = [points, moved, points].map((some, k) => ({ label: `m${k}`, color: k, points: some }));
      lines(host, { series, xAxis: AXES.rounds, format: FORMAT.percent, percent: true, title: "t" });
    })()""")
    dashes = page.run(
        "[...document.querySelectorAll('#curves svg .line')].map(n => getComputedStyle(n).strokeDasharray !== 'none')"
    )
    assert dashes == [False, False, True]


def test_a_reference_line_is_not_the_best(page):
    bold = "[...lastRound().querySelectorAll('tbody tr')].map(r => r.querySelectorAll('td.best').length)"
    both = page.run(bold)
    assert sum(both) > 0
    page.run("data.summary.rows[0].reference = true")
    assert page.run(bold)[0] == 0 and page.run(bold)[1] >= max(1, both[1])


def test_a_client_has_a_page_of_its_own(page, compared):
    page.run("choose(2)")
    assert "What it gains" in text(page, "#client") and "to FedAvg" in text(page, "#client table")
    press(page, "#client button.only")
    shown = "[...document.querySelectorAll('section')].filter(s => s.getBoundingClientRect().height > 0).map(s => s.id)"
    assert page.run(shown) == ["clients"] and page.run("location.hash") == "#client-2"
    assert page.run("document.activeElement.textContent") == "Show all clients"
    page.open("about:blank")
    page.open(f"{compared.resolve().as_uri()}#client-2")
    assert page.run(shown) == ["clients"] and text(page, "#client header h3") == NAMES[2]
    press(page, "#client button.only")
    assert len(page.run(shown)) > 5
    page.open("about:blank")
    page.open(compared)


def test_every_picture_has_words_and_a_table(page):
    bare = "[...document.querySelectorAll('svg.plot, canvas.plot')].filter(n => !n.getAttribute('aria-label')).length"
    assert page.run(bare) == 0
    page.run("document.querySelector('#clients select').dispatchEvent(new Event('change')); choose(0)")
    assert page.run("[...document.querySelectorAll('figure')].filter(f => !f.querySelector('details')).length") == 0
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.settle()
    counts = page.run("[...document.querySelectorAll('figure')].map(f => f.querySelectorAll('tbody tr').length)")
    assert len(counts) == 10 and min(counts) > 0


def test_axes_and_metrics_switch(page):
    before = text(page, "#curves svg")
    assert "rounds" in before
    press(page, "#axis input[value=bytes]")
    assert "kB" in text(page, "#curves svg") and "bytes, all clients" in text(page, "#curves svg")
    press(page, "#axis input[value=seconds]")
    assert "seconds of training" in text(page, "#curves svg")
    page.run(
        "(() => { const s = document.querySelector('#metric select'); s.value = 'test_loss';"
        " s.dispatchEvent(new Event('change')); })()"
    )
    assert "%" not in text(page, "#curves svg")
    assert "Loss, test set" in page.run("document.querySelector('#curves svg').getAttribute('aria-label')")


def test_the_curve_is_the_mean_over_seeds(page, compared):
    """The first table's last row against rounds.jsonl."""
    page.run("document.querySelector('#curves details').open = true")
    page.settle()
    cell = page.run("[...document.querySelectorAll('#curves tbody tr')].at(-1).children[1].textContent")
    lines = [json.loads((compared.parent / f"fedavg-{s}/rounds.jsonl").read_text().splitlines()[-1]) for s in (0, 1)]
    values = 100 * np.array([line["test_accuracy"] for line in lines])
    assert cell == f"{values.mean():.1f} % ± {values.std(ddof=1):.1f} %"


def test_the_legend_hides_and_highlights(page):
    shown = "[...document.querySelectorAll('#curves svg .line')].length"
    assert page.run(shown) == 2
    press(page, "#curves .legend button")
    assert page.run(shown) == 1
    assert page.run("document.querySelector('#drift .legend button').getAttribute('aria-pressed')") == "false"
    press(page, "#drift .legend button")
    assert page.run(shown) == 2
    assert page.run("document.querySelectorAll('#curves .faded').length") > 0  # the pointer rests on a legend


def test_values_are_read_with_the_keyboard(page):
    focus(page, "#curves svg")
    page.key("End", 35)
    assert not page.run("document.getElementById('tip').hidden")
    assert "6 rounds" in text(page, "#tip") and "FedAvg" in text(page, "#tip") and "%" in text(page, "#tip")
    page.key("ArrowLeft", 37)
    assert "5 rounds" in text(page, "#tip")
    page.key("Escape", 27)
    assert page.run("document.getElementById('tip').hidden")


def test_a_client_is_chosen_with_the_mouse(page):
    assert text(page, "#client") == ""
    press(page, "#clients circle.open")  # the worst
    worst = page.run(
        "data.runs[0].values.map((v, k) => [v, k]).filter(p => p[0] !== null).sort((a, b) => a[0] - b[0])[0][1]"
    )
    assert text(page, "#client header h3") == NAMES[worst]
    assert page.run("document.querySelectorAll('#client svg').length") == 2  # labels and history
    assert page.run("document.querySelectorAll('#client svg .line').length") == 2  # one a method
    labels = page.run("[...document.querySelectorAll('#client svg.s0 .rect:not(.all)')].length")
    assert labels == 10
    press(page, "#labels canvas", x=0.99)
    other = text(page, "#client header h3")
    assert other in NAMES and other != NAMES[worst]
    press(page, "#drift [data-client='3']")
    assert text(page, "#client header h3") == NAMES[3]


def test_a_client_is_chosen_with_the_keyboard(page):
    focus(page, "#labels canvas")
    page.key("ArrowRight", 39)
    first = text(page, "#client header h3")
    page.key("ArrowRight", 39)
    assert {first, text(page, "#client header h3")} <= set(NAMES) and first != text(page, "#client header h3")
    focus(page, "#clients figure svg")
    page.key("Home", 36)
    page.key("ArrowRight", 39)
    assert page.run("document.activeElement.tagName") == "svg"  # redrawn, and still where it was


def test_hostile_names_are_only_words(page):
    page.run("choose(0)")
    assert text(page, "#client header h3") == HOSTILE
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.settle()
    assert page.run("document.querySelectorAll('img, iframe, object, embed, svg[onload]').length") == 0
    assert page.run("document.scripts.length") == 2
    assert (
        HOSTILE in text(page, "#answers table")
        and HOSTILE in text(page, "#answers .note")
        and HOSTILE in text(page, "#repeat pre")
        and HOSTILE in text(page, "#clients table")
    )


def test_dark_as_the_system_says_and_as_one_chooses(page):
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.run(ground)
    page.scheme("dark")
    dark = page.run(ground)
    assert light != dark
    press(page, ".theme input[value=light]")
    assert page.run(ground) == light
    page.scheme("light")
    press(page, ".theme input[value=dark]")
    assert page.run(ground) == dark
    press(page, ".theme input[value=auto]")
    assert page.run(ground) == light


@pytest.mark.parametrize("width", [320, 390, 768])
def test_nothing_sticks_out_on_a_phone(page, compared, width):
    page.size(width, 800)
    page.open(compared)
    page.run("choose(4)")  # a name of 200 letters
    page.settle()
    assert page.run("document.documentElement.scrollWidth") == width
    scale = "s => s.getBoundingClientRect().width / s.viewBox.baseVal.width"
    assert (
        page.run(f"Math.min(...[...document.querySelectorAll('svg.plot')].map({scale}))") > 0.95
    )  # drawn for this width, not shrunk to it


def test_it_prints_light_and_whole(page, compared):
    """From a phone in the dark: drawn for paper all the same, and afterwards for the phone again."""
    page.size(390, 800)
    page.scheme("dark")
    page.open(compared)
    drawn = "document.querySelector('#curves svg').viewBox.baseVal.width"
    page.run(f"addEventListener('beforeprint', () => {{ window.wide = {drawn}; }})")
    assert page.pdf().startswith(b"%PDF")
    assert page.run("window.wide") > 600
    assert page.run(drawn) < 390
    page.send("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.run("getComputedStyle(document.querySelector('.bar')).display") == "none"
    page.send("Emulation.setEmulatedMedia", media="")


def test_even_a_mistake_could_not_send_anything(chromium, compared):
    """The policy, tried out: a request, a picture, an inline handler, a new script."""
    chromium.open(compared)
    refused = """(async () => {
      const broken = [];
      document.addEventListener("securitypolicyviolation", e => broken.push(e.effectiveDirective));
      const failed = await fetch("http://127.0.0.1:9/").then(() => false, () => true);
      const words = '<img src="http://127.0.0.1:9/x.png"><b onclick="window.hit = 1">b</b>';
      document.body.insertAdjacentHTML("beforeend", words);
      document.body.lastChild.click();
      const script = document.createElement("script");
      script.textContent = "window.hit = 2";
      document.body.append(script);
      await new Promise(done => setTimeout(done, 100));
      return [failed, window.hit ?? null, broken.sort()];
    })()"""
    failed, hit, broken = chromium.run(refused)
    assert failed and hit is None
    assert set(broken) == {"connect-src", "img-src", "script-src-attr", "script-src-elem"}


# ---------------------------------------------------------------- with pieces missing


def opened(chromium: Browser, folder: Path) -> Browser:
    chromium.size(1000, 800)
    chromium.scheme("light")
    chromium.open(report.write(folder))
    chromium.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert chromium.troubles() == [] and len(chromium.requests()) == 1
    assert chromium.run("document.documentElement.dataset.ready") == "yes"
    return chromium


def test_a_run_that_recorded_nothing(chromium, tmp_path):
    simulate(tmp_path / "r", ua.FedAvg(), 0, callbacks=[])
    page = opened(chromium, tmp_path / "r")
    assert "recorded nothing of single clients" in text(page, "#clients")
    assert page.run("document.querySelector('#drift')") is None


def test_a_run_of_one_round_without_evaluation(chromium, tmp_path):
    simulate(tmp_path / "r", ua.FedAvg(), 0, rounds=1, evaluate_clients="none")
    opened(chromium, tmp_path / "r")


def test_clients_without_tests_of_their_own(chromium, tmp_path):
    table = {
        "data": {"name": "digits", "clients": 6},
        "model": {"name": "linear"},
        "run": {"rounds": 3, "folder": str(tmp_path / "r")},
    }
    config.run(table, callbacks=[report.Record()])
    page = opened(chromium, tmp_path / "r")
    assert "--test 0.2" in text(page, "#clients")
    press(page, "#labels canvas")
    assert "unalike run --data digits" in text(page, "#repeat pre")
    assert page.troubles() == []


def test_regression_has_no_classes(chromium, tmp_path):
    class One(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x)[:, 0]

    simulate(
        tmp_path / "r", ua.FedAvg(), 0, federation=federation(False), model=One(64, 1), loss="squared-error", rounds=3
    )
    page = opened(chromium, tmp_path / "r")
    assert page.run("document.querySelector('#labels')") is None
    press(page, "#clients circle.open")
    assert text(page, "#client header h3") in NAMES and page.troubles() == []


@pytest.mark.parametrize("missing", ["clients.json", "rounds.jsonl", "last.json"])
def test_records_that_are_lost(chromium, tmp_path, missing):
    simulate(tmp_path / "r", ua.FedAvg(), 0, rounds=3)
    (tmp_path / "r/record" / missing).unlink()
    opened(chromium, tmp_path / "r")


def test_methods_of_every_kind_together(chromium, tmp_path):
    """Some have no global model, some no drift, one stops early: the page takes what there is."""
    for name, method in {"a": ua.LocalOnly(), "b": ua.Centralized(), "c": ua.FedAvg()}.items():
        simulate(tmp_path / name, method, 0, rounds=2 if name == "c" else 4)
    simulate(tmp_path / "d", ua.FedAvg(), 1, rounds=4, callbacks=[])
    page = opened(chromium, tmp_path)
    assert page.run("data.groups.length") == 3


def test_five_hundred_clients_and_a_thousand_rounds(chromium, tmp_path):
    from test_report import big

    big(tmp_path / "r", 500, 1000)
    page = opened(chromium, tmp_path / "r")
    press(page, "#clients circle.dot")
    assert text(page, "#client header h3").startswith(HOSTILE) and page.troubles() == []


def test_the_live_page_is_loaded_again_when_there_is_more(chromium, tmp_path):
    import threading

    from unalike.report import watch

    simulate(tmp_path / "r", ua.FedAvg(), 0, rounds=1, callbacks=[])
    server = watch.server([tmp_path / "r"])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        chromium.open(f"http://127.0.0.1:{server.server_port}/")
        assert "live" in text(chromium, "header .badge") and chromium.run("data.runs[0].rounds") == 1
        simulate(tmp_path / "r", ua.FedAvg(), 0, rounds=2, callbacks=[], resume=True)
        while sum(event.get("method") == "Page.loadEventFired" for event in chromium.events) < 2:
            chromium.events.append(chromium._next(60))
        chromium.settle()
        assert chromium.run("data.runs[0].rounds") == 2
        assert chromium.troubles() == []
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_vertical_run_on_wide_and_narrow_pages(chromium: Browser, tmp_path):
    """Its parts are there, in its own words, and nothing sticks out of a phone's page."""
    draw = np.random.default_rng(0)
    table = draw.normal(size=(40, 5))
    parties = ua.vertical.split((table, (table[:, 0] > 0).astype(int)), {"bank": 2, HOSTILE: 3}, test=0.25)
    ua.vertical.fit(ua.vertical.LogisticRegression(), parties, epochs=2, folder=tmp_path / "run")
    page = report.write(tmp_path / "run")
    for width in (1280, 400):
        chromium.size(width, 900)
        chromium.open(page)
        heads = chromium.run("[...document.querySelectorAll('h2')].map(h => h.textContent)")
        assert heads == [
            "Over the run", "After the last epoch", "What the model learned", "Who are the same people",
            "Who sees what", "Settings",
        ]  # fmt: skip
        assert chromium.run("document.documentElement.scrollWidth") == width
        captions = chromium.run("[...document.querySelectorAll('#coefficients caption')].map(c => c.textContent)")
        assert captions == ["bank: seen by bank alone", f"{HOSTILE}: seen by {HOSTILE} alone"]
        cells = chromium.run("[...document.querySelectorAll('#sees tbody tr')].map(r => r.innerText).join(' ')")
        assert "the labels: the sign of a row's number is its label" in cells
        assert not chromium.troubles()


def test_boosted_trees_are_drawn_as_far_as_one_may_see_them(chromium, tmp_path):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(120, 4)).astype(np.float32)
    y = ((x[:, 0] > 0) & (x[:, 3] > 0)).astype(int)
    parties = ua.vertical.Parties.from_arrays({"bank": x[:, :2], "shop": x[:, 2:]}, y, test=0.2)
    method = ua.vertical.SecureBoost(trees=2, depth=2, bins=8, cipher="none")
    ua.vertical.fit(method, parties, epochs=2, folder=tmp_path / "v")
    view = tmp_path / "v" / "bank" / "forest.json"
    view.write_text(view.read_text().replace("column 0", HOSTILE))
    page = opened(chromium, tmp_path / "v")
    shown = text(page, "#trees")
    assert "what bank may see" in shown and "what shop may see" in shown and HOSTILE in shown
    assert page.run("document.querySelectorAll('#trees svg.tree').length") == 2
    assert page.run("document.querySelector('#clients')") is None  # parties are no clients
    fed = ua.Federation.from_arrays([(x[:60], y[:60]), (x[60:], y[60:])])
    ua.simulate(None, fed, ua.HistBoost(trees=2, depth=2, bins=8), rounds=2, engine="sequential", folder=tmp_path / "h",
                callbacks=[report.Record()])  # fmt: skip
    page = opened(chromium, tmp_path / "h")
    leaves = page.run("[...document.querySelectorAll('#trees svg.tree')].map(s => s.querySelectorAll('.dot').length)")
    assert len(leaves) == 2 and min(leaves) >= 3 and "share of all gain" in text(page, "#trees")
