"""What leaves a client, and who can read it: one line per method, made from its declarations."""

from __future__ import annotations

from unalike.contract.fields import Field
from unalike.contract.method import Method
from unalike.text import listed

NOTHING = "nothing"
POOLED = "all its samples (pooled in one place)"
READERS = {  # by `Field.read`
    "sum": "the server reads the sum only",
    "each": "the server reads each client's",
    "peers": "the server reads each client's and shows them to other clients",
    "sealed": "sealed from client to client: the server cannot read it",
}
PARTS = {"model": "the model", "body": "the model's body", "head": "the model's head"}
SHAPES = {
    "features": "one number per feature",
    "pairs": "one number per pair of features",
    "classes": "one number per class",
    "scalar": "one number",
    "public": "one row per public sample",
    "input": "of a sample's shape",
    "model": "of the model's size",
    "body": "of the body's size",
    "head": "of the head's size",
}


def privacy(method: Method) -> str:
    """Return what leaves a client under this method and, in brackets, who can read it."""
    if method.pooled:
        return POOLED
    parts = []
    for read, reader in READERS.items():
        words = dict.fromkeys(words_of(name, field) for name, field in method.sends.items() if field.read == read)
        if words:
            parts.append(f"{listed([*words])} ({reader})")
    return "; ".join(parts) or NOTHING


def words_of(name: str, field: Field) -> str:
    """Return what a field holds: in the method's words, as a change of the model, or else by its name and shape."""
    if field.what:
        return field.what
    if name == "delta" and isinstance(field.shape, str):
        return f"its change of {PARTS.get(field.shape, f'the model, {field.shape}')}"
    return f"{name} ({' × '.join(SHAPES.get(str(size), str(size)) for size in field.names)})"
