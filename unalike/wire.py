"""Messages as bytes: safetensors with a JSON header. No pickle, nothing that could run.

Layout: the safetensors format, whose metadata holds one entry "unalike" with the header. A reader checks the header
and the declared fields before it looks at a number.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from unalike.errors import UnalikeError

FORMAT = 1
MAX_HEADER = 8 << 20


def encode(header: dict[str, Any], tensors: dict[str, Tensor]) -> bytes:
    """One message. Tensors of no elements and 0-dimensional ones are kept as they are."""
    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    text = json.dumps({"format": FORMAT, **header}, allow_nan=True)
    # tensors that share memory (an expanded row, a view) are written out each on its own
    plain = {name: t.clone() if t.untyped_storage().nbytes() != t.nbytes else t for name, t in plain.items()}
    return safetensors.torch.save(plain, metadata={"unalike": text})


def decode(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a message; anything else is one clear error."""
    header = _header(data)
    try:
        tensors = safetensors.torch.load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise UnalikeError(f"A message of {len(data)} bytes is not readable as safetensors: {error}.") from error
    return header, tensors


def payload(tensors: dict[str, Tensor]) -> int:
    """The bytes of the numbers themselves: what methods are compared by."""
    return sum(t.numel() * t.element_size() for t in tensors.values())


def _header(data: bytes) -> dict[str, Any]:
    if len(data) < 8:
        raise UnalikeError(f"A message of {len(data)} bytes is too short to be one of unalike's.")
    (length,) = struct.unpack("<Q", data[:8])
    if length > min(MAX_HEADER, len(data) - 8):
        raise UnalikeError(f"A message says its header has {length} bytes and has only {len(data)} in all.")
    try:
        header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["unalike"])
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise UnalikeError("A message has no header of unalike's: it comes from another program.") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        found = header.get("format") if isinstance(header, dict) else header
        raise UnalikeError(f"A message has format {found!r}; this version reads {FORMAT}: use one version everywhere.")
    return header
