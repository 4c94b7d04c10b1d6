"""The code blocks of README.md, CONTRIBUTING.md and docs/*.md run: Python, config files, and command lines.

(tests/config holds the config files to the JSON Schema too; tests/test_core_only.py runs `unalike.core`.)
Blocks of one page run in order, in a folder of their own. A block that cannot run here stands under a comment
`<!-- not run: why -->` in its page.
"""

import dataclasses
import itertools
import re
import shlex
import shutil
import tomllib
import webbrowser
from pathlib import Path

import numpy as np
import pytest
import torch
from paths import ROOT
from PIL import Image
from small import federation, model

import unalike as ua
from unalike import cli, config
from unalike.cli import run
from unalike.reproduce.define import Paper

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^(?:<!-- not run: (.+) -->\n+)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ALLOWED_MARKS = 1

# Added to a command so that it is cheap: everything is checked, the data and the model are made, nothing is trained.
ADDED = {
    "run": ["--dry-run"],
    "local-federation": ["--dry-run"],
    "compare": ["--dry-run", "--no-references"],
    "doctor": ["--no-probe"],
}
# Commands with these words are parsed only, and the config file that `serve` names is checked.
ONLY_PARSED = {
    ("serve",): "waits for clients",
    ("join",): "waits for a server",
    ("audit",): "needs a client's folder; tests/network has one",
    ("status",): "likewise",
    ("watch",): "serves until Ctrl-C",
    ("demo",): "trains for ten seconds; tests/cli runs it",
    ("data", "get"): "asks the network",
    ("data", "import"): "takes official files",
    ("data", "describe"): "asks the network for a set that is not here",
    ("reproduce", "--quick"): "trains for minutes",
    ("reproduce", "--full"): "trains for hours",
    ("reproduce", "--resume"): "goes on with one of these",
    ("reproduce", "--pages"): "needs the results of all papers",
}
RUN = """
[data]
name = "digits"
partition = "dirichlet:0.3"
clients = 4
test = 0.2

[method]
name = "scaffold"

[local]
steps = 2

[run]
rounds = 2
"""
OWN = """
import unalike as ua


class Mine(ua.FedAvg):
    pass
"""


@dataclasses.dataclass(frozen=True)
class MyMethod(ua.Method):
    """The reader's own method: FedProx, with its knob called strength."""

    strength: float = 0.1

    def client(self, me, s, m):
        return me.train(m.w, pull=self.strength, push=-self.strength * m.w).then(self.done)


def blocks(page, language):
    """Return the page's blocks of a language, without those that are marked as not run."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [text for why, label, text in found if label == language and not why]


def with_blocks(language):
    """Parametrize a test with the pages that have blocks of a language."""
    pages = [page for page in PAGES if blocks(page, language)]
    return pytest.mark.parametrize("page", pages, ids=lambda page: page.relative_to(ROOT).as_posix())


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with all that pages take for granted: files of the reader's own and a few finished runs."""
    folder = tmp_path_factory.mktemp("reader")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_files(folder)
        for name in ("scaffold-digits-1", "demo/scaffold"):
            assert cli.main(["run", "run.toml", "--folder", f"runs/{name}", "--quiet"]) == 0
        assert cli.main(["run", "run.toml", "--method", "fedavg", "--folder", "runs/demo/fedavg", "--quiet"]) == 0
        compare = "compare fedavg --data digits --rounds 1 --seeds 1 --no-references --folder runs/mine --quiet"
        assert cli.main(compare.split()) == 0
    for name in ("first", "a", "b"):
        shutil.copytree(folder / "runs/scaffold-digits-1", folder / "runs" / name)
    return folder


def write_files(folder):
    draw = np.random.default_rng(0)
    (folder / "run.toml").write_text(RUN)
    (folder / "own.py").write_text(OWN)
    rows = [
        f"{('north', 'south')[k % 2]},{('ill', 'well')[k // 2 % 2]},{20 + k % 50},{k % 4 / 2},{'fm'[k % 3 == 0]}"
        for k in range(80)
    ]
    (folder / "patients.csv").write_text("\n".join(["hospital,outcome,age,dose,sex", *rows]))
    people = range(120)
    bank = [f"c{k},{k * 37 % 91},{k * 53 % 71},{('no', 'yes')[k * 37 % 91 + k % 17 < 50]}" for k in people]
    shop = [f"c{k},{k % 17},{k * 29 % 67}" for k in people if k % 12]
    (folder / "bank.csv").write_text("\n".join(["customer,income,debt,default", *bank]))
    (folder / "shop.csv").write_text("\n".join(["customer,returned,late", *shop]))
    for k in range(24):
        picture = folder / f"pics/{'ab'[k % 2]}/{'xy'[k // 2 % 2]}/{k}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (9, 8), k).save(picture)
    np.save(folder / "rows.npy", np.zeros((3, 64), np.float32))
    (folder / "clients").mkdir()
    for name in "abc":
        np.savez(folder / f"clients/{name}.npz", x=draw.normal(size=(20, 4)), y=np.arange(20) % 2)


@pytest.fixture
def reader(prepared, tmp_path, monkeypatch):
    """The reader's machine: a fresh copy of the prepared folder, an empty cache, no network and no browser."""
    monkeypatch.chdir(shutil.copytree(prepared, tmp_path / "reader"))
    monkeypatch.setenv("UNALIKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UNALIKE_OFFLINE", "1")
    monkeypatch.setattr(webbrowser, "open", lambda address: True)


@with_blocks("python")
def test_python_blocks_run(page, tmp_path, monkeypatch):
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    given = {
        "np": np,
        "torch": torch,
        "dataclasses": dataclasses,
        "ua": ua,
        "Method": ua.Method,
        "Field": ua.Field,
        "knob": ua.knob,
    }
    names = {**given, "model": model(), "fed": federation(), "MyMethod": MyMethod, "__name__": "page"}
    for text in blocks(page, "python"):
        exec(compile(text, f"{page.name}, a block", "exec"), names)
    if page.name == "methods.md":  # its blocks are pieces of methods: put together they must train
        pieces = {name: names[name] for name in ("keeps", "sends", "tables", "setup", "round")}
        whole = [names[name]() for name in ("FedProx", "FedEma", "OwnHead")]
        for method in (*whole, type("Pieces", (ua.Scaffold,), pieces)()):
            assert ua.simulate(model(), federation(), method, rounds=2).history[-1]["round"] == 2
    if page.name == "contract.md":  # each of its methods trains
        made = [v for v in names.values() if isinstance(v, type) and issubclass(v, ua.Method) and v is not ua.Method]
        for kind in set(made) - {MyMethod, names["Consensus"]}:  # Consensus asks, and Digest goes on with the answers
            assert ua.simulate(model(), names["fed"], kind(), rounds=2).history[-1]["round"] == 2, kind


@with_blocks("toml")
def test_config_blocks_are_right(page):
    for text in blocks(page, "toml"):
        config.check(tomllib.loads(text))


def test_the_paper_of_one_s_own_is_right():
    (text,) = blocks(ROOT / "docs/reproduce.md", "ini")
    paper = Paper("mine", tomllib.loads(text))
    for table in (*paper.quick, *paper.tables.values()):
        for row, method in itertools.product(table.rows, table.methods):
            config.check(paper.settings(row, method))


def commands(text):
    """Yield the command lines of a block, each with the error that the page shows for it, or with None.

    Where a block has prompts, other lines are what was printed.
    """
    lines = text.replace("\\\n", " ").splitlines()
    prompt = "$ " if any(line.startswith("$ ") for line in lines) else ""
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith(f"{prompt}unalike "):
            yield line.removeprefix(prompt), after if prompt and re.match(r"unalike( \w+)?: ", after) else None


def words_of(command):
    """Return a command's words: no comment, no redirection, no pipe."""
    words = shlex.split(command, comments=True)[1:]
    end = next((k for k, word in enumerate(words) if word in ("|", ">", "2>", "2>&1")), len(words))
    return words[:end]


def only_parse(args):
    """Stand in for a command: check the config it names, and do nothing."""
    if args.command == "serve":
        config.check(run.tables_of(args))
    return 0


COMMANDS = [page for page in PAGES if any(list(commands(text)) for text in blocks(page, ""))]


@pytest.mark.parametrize("page", COMMANDS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_command_lines_run(page, reader, capsys):
    for command, error in [pair for text in blocks(page, "") for pair in commands(text)]:
        words = words_of(command)
        with pytest.MonkeyPatch.context() as patch:
            if any(set(parts) <= set(words) for parts in ONLY_PARSED):
                patch.setattr(f"unalike.cli.{words[0].replace('-', '_')}.main", only_parse)
            extra = [] if error else ADDED.get(words[0], [])
            code = cli.main(words + [word for word in extra if word not in words])
        printed = capsys.readouterr().err.replace(f"{Path.cwd()}/", "")  # pages show paths as the reader gives them
        assert code == (2 if error else 0), f"{page.name}: {command}: {printed}"
        assert error is None or error in printed.splitlines(), f"{page.name}: {command}: {printed}"


def test_few_blocks_are_not_run():
    marks = [(page.name, why) for page in PAGES for why, *_ in BLOCK.findall(page.read_text(encoding="utf-8")) if why]
    assert len(marks) <= ALLOWED_MARKS, marks


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_is_of_a_kind_that_is_read(page):
    text = page.read_text(encoding="utf-8")
    labels = [label for _, label, _ in BLOCK.findall(text)]
    assert set(labels) <= {"", "python", "toml", "ini"} and len(re.findall(r"^\s*```", text, re.M)) == 2 * len(labels)
