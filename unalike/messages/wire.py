"""Messages as bytes: safetensors with a JSON header. No pickle, no code that could run.

Layout: the safetensors format, whose metadata holds one entry "unalike" with the header. A reader checks the header and
the declared fields before it uses a number.
"""

from __future__ import annotations

import json
import reprlib
import struct
from typing import Any

import safetensors.torch
from torch import Tensor

from unalike.errors import UnalikeError

FORMAT = 1
MAX_HEADER = 8 << 20


def encode(header: dict[str, Any], tensors: dict[str, Tensor]) -> bytes:
    """Return one message as bytes. Empty and 0-dimensional tensors keep their shapes."""
    # tensors that share memory (an expanded row, a view, one tensor under two names) are written out separately
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    return safetensors.torch.save(plain, metadata={"unalike": json.dumps({"format": FORMAT, **header})})


def decode(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the header and tensors of a message; anything else gives one clear error."""
    header = header_of(data)
    try:
        tensors = safetensors.torch.load(data)
    # safetensors, torch and Python each raise their own errors for malformed bytes
    except Exception as error:
        what = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnalikeError(f"A message of {len(data)} bytes is not readable as safetensors: {what}.") from error
    return header, tensors


def payload(tensors: dict[str, Tensor]) -> int:
    """Return the bytes of the numbers themselves, by which methods are compared."""
    return sum(t.numel() * t.element_size() for t in tensors.values())


def header_of(data: bytes) -> dict[str, Any]:
    """Return the header of a message."""
    if len(data) < 8:
        raise UnalikeError(f"A message of {len(data)} bytes is too short to be one of unalike's.")
    (length,) = struct.unpack("<Q", data[:8])
    if length > min(MAX_HEADER, len(data) - 8):
        raise UnalikeError(f"A message says its header has {length} bytes and has only {len(data)} in all.")
    try:
        header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["unalike"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnalikeError("A message has no header of unalike's: it comes from another program.") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        found = header.get("format") if isinstance(header, dict) else header
        raise UnalikeError(
            f"A message has format {reprlib.repr(found)}; this version reads {FORMAT}: use one version everywhere."
        )
    return header
