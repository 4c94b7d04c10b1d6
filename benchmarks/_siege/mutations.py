"""Structured changes of valid messages: fields, types, lengths, numbers, order, repeats, headers, nested JSON, the
bytes of safetensors. Each takes a message and a random generator and gives bytes, or none where it does not apply."""

import json
import random
import struct

import torch

from unalike.messages import wire

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
VALUES = (float("nan"), float("inf"), -float("inf"), 1e38, -1e30, 1e18, 1e-45, 0.0, 1.0, -1.0, 255.0)
# what a leaf of JSON may become, whatever it was
LEAVES = (
    None, True, False, 0, 1, -1, 2, 7, 1 << 31, 1 << 48, 1 << 63, 10**400, 0.5, float("nan"), float("inf"), 1e300, "",
    "x", "0", "\x1b[2J", "\u202e", "../../etc/passwd", "x" * 100_000, [], [0], {}, {"a": 1}, [[[[]]]], [None] * 50,
)  # fmt: skip


def opened(message: bytes) -> tuple[dict, dict]:
    """Return a copy of a message's header, without its format, and its tensors."""
    header, tensors = wire.decode(message)
    header.pop("format")
    return json.loads(json.dumps(header)), dict(tensors)


def places(value, path=()):
    """Return the paths to all parts of nested JSON."""
    out = [path] if path else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        out += places(part, (*path, key))
    return out


def at(value, path):
    for key in path:
        value = value[key]
    return value


# ---------------------------------------------------------------- headers


def leaf(message, draw):
    """Another value at any place of the header."""
    header, tensors = opened(message)
    path = draw.choice(places(header))
    at(header, path[:-1])[path[-1]] = draw.choice(LEAVES)
    return wire.encode(header, tensors)


def nudge(message, draw):
    """A number of the header that is a little, or a lot, other."""
    header, tensors = opened(message)
    found = [path for path in places(header) if type(at(header, path)) in (int, float)]
    if not found:
        return None
    path = draw.choice(found)
    at(header, path[:-1])[path[-1]] = at(header, path) + draw.choice((1, -1, 2, 0.5, 1000, -(1 << 40)))
    return wire.encode(header, tensors)


def drop_key(message, draw):
    header, tensors = opened(message)
    path = draw.choice(places(header))
    del at(header, path[:-1])[path[-1]]
    return wire.encode(header, tensors)


def add_key(message, draw):
    header, tensors = opened(message)
    homes = [(), *(path for path in places(header) if isinstance(at(header, path), dict))]
    at(header, draw.choice(homes))[draw.choice(("extra", "kind", "run", "__proto__", "\n", "client", "sealed"))] = (
        draw.choice(LEAVES)
    )
    return wire.encode(header, tensors)


def swap_keys(message, draw):
    header, tensors = opened(message)
    if len(header) < 2:
        return None
    one, two = draw.sample(sorted(header), 2)
    header[one], header[two] = header[two], header[one]
    return wire.encode(header, tensors)


def deep(message, draw):
    """JSON nested beyond what Python's parser takes."""
    depth = draw.choice((50, 900, 5000))
    return raw_header(message, lambda text: text[:-1] + ', "deep": ' + "[" * depth + "]" * depth + "}")


def doubled_key(message, draw):
    header, _ = opened(message)
    key = draw.choice(sorted(header))
    return raw_header(message, lambda text: text[:-1] + f", {json.dumps(key)}: 7}}")


def raw_header(message, change):
    """The message with another text for the header in its metadata."""
    length = struct.unpack("<Q", message[:8])[0]
    outer = json.loads(message[8 : 8 + length])
    outer["__metadata__"]["unalike"] = change(outer["__metadata__"]["unalike"])
    text = json.dumps(outer).encode()
    return struct.pack("<Q", len(text)) + text + message[8 + length :]


# ---------------------------------------------------------------- tensors


def _some(message, draw):
    header, tensors = opened(message)
    return header, tensors, draw.choice(sorted(tensors)) if tensors else None


def drop_tensor(message, draw):
    header, tensors, name = _some(message, draw)
    if name is None:
        return None
    del tensors[name]
    return wire.encode(header, tensors)


def rename_tensor(message, draw):
    header, tensors, name = _some(message, draw)
    if name is None:
        return None
    tensors[draw.choice(("", "w", "loss", "x" * 5000, "\x1b[31m", f"{name}.", "0", "__ids__"))] = tensors.pop(name)
    return wire.encode(header, tensors)


def add_tensor(message, draw):
    header, tensors, name = _some(message, draw)
    like = torch.zeros(3) if name is None else tensors[name]
    tensors[draw.choice(("extra", "w", "buffers", "loss", "delta2"))] = like.clone()
    return wire.encode(header, tensors)


def many_tensors(message, draw):
    header, tensors = opened(message)
    return wire.encode(header, {**tensors, **{f"t{k}": torch.zeros(1) for k in range(draw.choice((70, 2000)))}})


def other_dtype(message, draw):
    header, tensors, name = _some(message, draw)
    if name is None:
        return None
    tensors[name] = tensors[name].to(draw.choice(DTYPES))
    return wire.encode(header, tensors)


def other_shape(message, draw):
    header, tensors, name = _some(message, draw)
    if name is None:
        return None
    value = tensors[name]
    flat = value.reshape(-1)
    tensors[name] = draw.choice(
        (value[None], flat[:0], flat[:1], flat[:-1], torch.cat([flat, flat[:1]]), flat.reshape(1, -1), flat.repeat(3),
         value.expand(2, *value.shape), flat.sum())
    )  # fmt: skip
    return wire.encode(header, tensors)


def other_values(message, draw):
    """One number, or all of them, replaced."""
    header, tensors, name = _some(message, draw)
    if name is None or not tensors[name].numel():
        return None
    value = tensors[name].clone().reshape(-1)
    new = draw.choice(VALUES)
    if not value.is_floating_point() and not abs(new) < 128:
        new = draw.choice((0, 1, -1, 100))
    new = abs(new) if value.dtype == torch.uint8 else new
    where = slice(None) if draw.random() < 0.3 else draw.randrange(len(value))
    value[where] = new
    tensors[name] = value.reshape(tensors[name].shape)
    return wire.encode(header, tensors)


def moved_values(message, draw):
    """Numbers that are plausible and other."""
    header, tensors, name = _some(message, draw)
    if name is None or not tensors[name].is_floating_point():
        return None
    tensors[name] = draw.choice(
        (tensors[name] * 1.5, -tensors[name], tensors[name].flip(-1 if tensors[name].dim() else ()))
    )
    return wire.encode(header, tensors)


def swap_tensors(message, draw):
    header, tensors = opened(message)
    if len(tensors) < 2:
        return None
    one, two = draw.sample(sorted(tensors), 2)
    tensors[one], tensors[two] = tensors[two], tensors[one]
    return wire.encode(header, tensors)


# ---------------------------------------------------------------- bytes


def flip(message, draw):
    data = bytearray(message)
    for _ in range(draw.choice((1, 1, 1, 8))):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


def cut(message, draw):
    return message[: draw.randrange(len(message))]


def longer(message, draw):
    more = draw.randbytes(draw.choice((1, 8, 1000)))
    return draw.choice((message + more, more + message, message + message))


def noise(message, draw):
    return draw.randbytes(draw.choice((0, 1, 7, 8, 9, 64, 5000)))


def other_length(message, draw):
    length = struct.unpack("<Q", message[:8])[0]
    new = draw.choice((0, 1, length - 1, length + 1, len(message), 1 << 30, 1 << 40, (1 << 64) - 1))
    return struct.pack("<Q", new) + message[8:]


def safetensors_header(message, draw):
    """Offsets that overlap, leave gaps or lie outside; kinds and shapes that do not fit; names twice."""
    length = struct.unpack("<Q", message[:8])[0]
    outer = json.loads(message[8 : 8 + length])
    names = [name for name in outer if name != "__metadata__"]
    if not names:
        return None
    entry = outer[draw.choice(names)]
    start, end = entry["data_offsets"]
    change = draw.choice(
        (
            {"data_offsets": [start, end + 4]}, {"data_offsets": [start + 1, end]}, {"data_offsets": [end, start]},
            {"data_offsets": [-4, end]}, {"data_offsets": [0, 1 << 62]}, {"data_offsets": "all"},
            {"data_offsets": [start]}, {"dtype": "F31"}, {"dtype": 7}, {"dtype": "C64"}, {"dtype": "BOOL"},
            {"shape": [1 << 40]}, {"shape": [-1]}, {"shape": [1 << 32, 1 << 32]}, {"shape": "long"}, {"shape": []},
            {"shape": [0]}, {"shape": [1.5]}, {"more": 1},
        )
    )  # fmt: skip
    entry |= change
    text = json.dumps(outer)
    if draw.random() < 0.1:
        text = text[:-1] + f", {json.dumps(names[0])}: {json.dumps(entry)}}}"
    text = text.encode()
    return struct.pack("<Q", len(text)) + text + message[8 + length :]


CHANGES = {
    change.__name__: change
    for change in (
        leaf, leaf, nudge, drop_key, add_key, swap_keys, deep, doubled_key, drop_tensor, rename_tensor, add_tensor,
        many_tensors, other_dtype, other_shape, other_values, moved_values, swap_tensors, flip, cut, longer, noise,
        other_length, safetensors_header,
    )
}  # fmt: skip


def mutated(message: bytes, draw: random.Random) -> tuple[str, bytes]:
    """Return a changed form of a message, and the name of the change."""
    while True:
        name = draw.choice(sorted(CHANGES))
        out = CHANGES[name](message, draw)
        if out is not None and out != message:
            return name, out
