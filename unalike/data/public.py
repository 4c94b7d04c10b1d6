"""A public set: samples that belong to no client, which the server and every client have.

Methods that compare or distil predictions use them. They have the kind and shape of the clients' samples, with or
without labels.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from unalike.data.columns import Columns, agree, as_pair, as_tensor, digest
from unalike.errors import UnalikeError

Public = tuple[torch.Tensor, torch.Tensor | None]

# above this size, a column's fingerprint uses a sample of its rows
WHOLE_BYTES = 64 << 20


def as_public(given: Any, train: Columns) -> Public:
    """Return the pair (x, y or None) as tensors; raise unless its samples are of the kind of the training samples."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise UnalikeError(
            f"The public set is a {type(given).__name__}: it must be a pair (x, y), or (x, None) without labels."
        )
    x = as_tensor(given[0], "x of the public set")
    if given[1] is None:
        stand_in = train.y[:1].expand(len(x) if x.ndim else 0, *train.y.shape[1:])
        agree((x, stand_in), (train.x, train.y), "The public set", "the training split")
        y = None
    else:
        x, y = as_pair(x, given[1], "the public set")
        agree((x, y), (train.x, train.y), "The public set", "the training split")
    if not len(x):
        raise UnalikeError("The public set is empty: give at least one sample, or leave it out.")
    return x, y


def hash_tensor(sha: Any, tensor: torch.Tensor) -> None:
    """Feed a column's type, shape and content to a hash; above 64 MB only rows at a fixed stride, and the last one."""
    sha.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
    size = tensor.numel() * tensor.element_size()
    if size > WHOLE_BYTES:
        digest(sha, tensor[-1:])
        tensor = tensor[:: -(-size // WHOLE_BYTES)]
    digest(sha, tensor)


def public_hash(public: Public) -> str:
    """Return 16 hex digits that identify a public set: server and clients must have the same."""
    sha = hashlib.sha256()
    for tensor in public:
        sha.update(b"none") if tensor is None else hash_tensor(sha, tensor)
    return sha.hexdigest()[:16]
