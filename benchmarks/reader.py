"""Draw docstrings at random for a reader who does not know the code: is each understood at first reading?

    python benchmarks/reader.py --seed 3 > page.md       # twenty; --count for another number

The page has paths, signatures and docstrings, and no code. The reader says of each, in other words, what it does;
someone who knows the code judges the answers. The goal is that eighteen of twenty are right. `methods/` is
left out: its docstrings hold a paper's equation, and have their own form.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "unalike"


def signature(node: ast.AST) -> str:
    """Return the first line of a function or a class as it is written, without decorators."""
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}({', '.join(map(ast.unparse, node.bases))})"
    assert isinstance(node, ast.FunctionDef)
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"def {node.name}({ast.unparse(node.args)}){returned}"


def documented(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, str]]:
    """Yield the signature and docstring of every function and class that has one; a method's class is named first."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            text = ast.get_docstring(node)
            if text:
                yield (f"{owner}: " if owner else "") + signature(node), text
            yield from documented(node, f"class {node.name}" if isinstance(node, ast.ClassDef) else owner)
        else:
            yield from documented(node, owner)


def drawn(seed: int, count: int) -> list[tuple[str, str, str]]:
    """Return (path, signature, docstring) of `count` docstrings outside `methods/`, without repetition."""
    files = sorted(f for f in PACKAGE.rglob("*.py") if "methods" not in f.relative_to(PACKAGE).parts)
    every = [
        (str(f.relative_to(PACKAGE.parent)), *found) for f in files for found in documented(ast.parse(f.read_text()))
    ]
    return random.Random(seed).sample(every, count)


def page(seed: int, count: int) -> str:
    """Return the questions as Markdown."""
    parts = [
        f"# {count} docstrings, seed {seed}\n\nWhat does each do? Answer in other words, without looking at the code."
    ]
    for number, (path, head, text) in enumerate(drawn(seed, count), 1):
        parts.append(f"## {number}. `{path}`\n\n```python\n{head}\n```\n\n> " + "\n> ".join(text.splitlines()))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    given = parser.parse_args()
    print(page(given.seed, given.count))


if __name__ == "__main__":
    main()
