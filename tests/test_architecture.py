"""The architecture as docs/architecture.md draws it, read from the imports themselves."""

import ast
import inspect
import re
import typing
from collections import defaultdict

import pytest
from paths import ROOT

import unalike as ua
from unalike.contract import Batch, Cohort, Me, Method, Replies, Server

PACKAGE = ROOT / "unalike"
MODULES = {
    ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p for p in PACKAGE.rglob("*.py")
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}

# What each folder may import, from the bottom up. `unalike` itself is its version.
BASE = {"errors", "draws", "files", "text", "unalike"}
MAY = {
    "errors": set(),
    "draws": {"errors"},
    "files": {"errors"},
    "text": {"errors"},
    "crypto": BASE,
    "settings": BASE,
    "training": BASE | {"settings"},
    "nn": BASE | {"settings"},
    "models": BASE | {"settings"},
    "data": BASE | {"settings"},
    "contract": BASE | {"settings", "training", "nn"},
    "trees": BASE | {"settings", "contract", "nn"},
    "methods": BASE | {"settings", "contract", "trees"},
    "channel": BASE | {"settings", "contract", "crypto", "training", "nn"},
    "messages": BASE | {"contract", "nn"},
    "metrics": BASE | {"nn", "data"},
    "client": BASE | {"contract", "channel", "crypto", "messages", "nn", "training", "data"},
    "engines": BASE | {"settings", "client", "channel", "contract", "crypto", "messages", "nn", "training", "data"},
    "run": BASE
    | {
        "settings",
        "engines",
        "client",
        "channel",
        "contract",
        "messages",
        "metrics",
        "models",
        "nn",
        "training",
        "trees",
        "data",
    },
    "config": BASE
    | {"settings", "run", "engines", "client", "metrics", "methods", "models", "channel", "contract", "nn"}
    | {"training", "data"},
    "network": BASE
    | {"settings", "channel", "config", "run", "client", "crypto", "messages", "methods", "contract", "training"}
    | {"engines", "nn", "data"},
    "vertical": BASE
    | {"crypto", "trees", "settings", "contract", "channel", "messages", "nn", "data", "run", "network"},
    "results": BASE | {"metrics", "contract"},
    "report": BASE | {"settings", "results", "metrics", "config", "run", "contract", "trees"},
    "comparison": BASE
    | {"settings", "methods", "report", "results", "metrics", "config", "run", "engines", "nn", "data"},
    "reproduce": BASE
    | {"settings", "report", "results", "metrics", "config", "run", "engines", "contract", "nn", "data"},
    "testing": {"run", "methods", "models", "contract", "training", "data"},
    "core": {"errors", "config", "run", "reproduce"},
    "__main__": {"cli"},
}
MAY["cli"] = set(MAY) - {"core", "__main__"} | BASE
MAY["unalike"] = {
    "channel",
    "settings",
    "contract",
    "data",
    "draws",
    "errors",
    "methods",
    "metrics",
    "models",
    "nn",
    "run",
    "training",
    "trees",
    "vertical",
}


def folder(module):
    return module.split(".")[1] if "." in module else module


def imported(tree):
    """Modules of ours that a file imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "unalike":
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield node.lineno, full if full in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names if a.name.split(".")[0] == "unalike")


def edges():
    for name, tree in TREES.items():
        for line, other in imported(tree):
            if folder(name) != folder(other):
                yield name, line, folder(name), folder(other)


def test_folders_import_what_they_may():
    wrong = [f"{name}:{line} imports {other}" for name, line, here, other in edges() if other not in MAY[here]]
    assert not wrong, "\n".join(wrong)
    assert {folder(name) for name in MODULES} == set(MAY)


def test_there_is_no_cycle_between_folders():
    """A folder comes after all it may import: then nothing can go round."""
    left, order = {k: v - {"unalike"} for k, v in MAY.items() if k != "unalike"}, []
    while left:
        free = sorted(k for k, v in left.items() if v <= set(order))
        assert free, f"a cycle among {sorted(left)}"
        order += free
        left = {k: v for k, v in left.items() if k not in free}


def test_a_wrong_import_would_be_found():
    tree = ast.parse("def f():\n    from unalike.engines import choose\n")
    assert list(imported(tree)) == [(2, "unalike.engines.choose")] and "engines" not in MAY["contract"]


def private(name):
    return name.startswith("_") and not name.startswith("__")


def defined(tree):
    """Private names that a module defines: functions, classes, variables, attributes and keywords."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.keyword | ast.arg) and node.arg:
            yield node.arg


def bases(tree):
    """Modules of ours that a module's classes inherit from: their private names are the family's own."""
    names = {a.asname or a.name: n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
    for node in ast.walk(tree):
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            if isinstance(base, ast.Name) and names.get(base.id) in MODULES:
                yield names[base.id]


def test_no_module_uses_anothers_private_names():
    own = {name: {n for n in defined(tree) if private(n)} for name, tree in TREES.items()}
    owners = defaultdict(set)
    for name, names in own.items():
        for one in names:
            owners[one].add(name)
    wrong = []
    for name, tree in TREES.items():
        family = own[name].union(*(own[base] for base in bases(tree)))
        for node in ast.walk(tree):
            used = [node.attr] if isinstance(node, ast.Attribute) else []
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "unalike":
                used = [alias.name for alias in node.names]
            for one in used:
                if private(one) and one in owners and one not in family:
                    wrong.append(f"{name}:{node.lineno} uses {one} of {', '.join(sorted(owners[one]))}")
    assert not wrong, "\n".join(wrong)


def test_few_modules_stand_beside_the_folders():
    assert len(list(PACKAGE.glob("*.py"))) <= 8


@pytest.mark.parametrize("kind", [Method, Me, Batch, Server, Cohort, Replies], ids=lambda kind: kind.__name__)
def test_an_author_s_editor_knows_every_type(kind):
    """No Any in the signatures that a method's author sees."""
    for name, member in inspect.getmembers(kind):
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        function = member.fget if isinstance(member, property) else member
        hints = inspect.signature(function)
        texts = [str(p.annotation) for p in hints.parameters.values()] + [str(hints.return_annotation)]
        assert not any(re.search(r"\bAny\b", text) for text in texts), f"{kind.__name__}.{name}: {hints}"
        if name in vars(kind):
            assert hints.return_annotation is not inspect.Signature.empty, f"{kind.__name__}.{name}: {hints}"


def test_methods_have_types_too():
    for path in (PACKAGE / "methods").glob("*.py"):
        if path.name == "__init__.py":
            continue
        assert not re.search(r"(server|cohort|everyone): Any|-> Any", path.read_text(encoding="utf-8")), path


def test_the_page_names_every_folder():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for name in MAY:
        assert f"`{name}" in page, name


def test_what_the_public_face_promises():
    for name in ua.__all__:
        assert hasattr(ua, name), name
    assert typing.get_type_hints(Method.round)["server"] is Server
