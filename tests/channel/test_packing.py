"""A flight as bytes: what was packed comes out to the bit, in as many bytes as its form says; nothing else comes in."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unalike as ua
from unalike import draws
from unalike.channel import Channel, parse
from unalike.channel.packing import pack, unpack
from unalike.errors import UnalikeError

CHANNELS = [
    "clip:1.0", "quantise", "quantise:2", "quantise:3", "quantise:8:0.5", "quantise:16", "quantise:5:none:nearest",
    "qsgd:1", "qsgd:4", "qsgd:127", "ternary", "half", "bfloat", "topk:0.01", "topk:0.4", "topk:1.0", "randomk:0.1",
    "stc:0.1", "topk:0.1,quantise:6", "topk:0.1,half", "randomk:0.2:true,quantise:4:1.0", "randomk:0.2,bfloat",
]  # fmt: skip


def common(purpose):
    return draws.generator(5, purpose)


def fitted(text, size, dtype=torch.float32):
    return Channel(parse(text), ua.FedAvg(), SimpleNamespace(layout=None, dtype=dtype, sizes={"model": size}))


def flown(text, rows, keys=(4,)):
    """A stack through a channel: the channel and the flight."""
    channel = fitted(text, rows.shape[1], rows.dtype)
    draw = draws.KeyedDraws(torch.tensor(keys), rows.dtype)
    kept = {name: torch.zeros_like(rows) for name in channel.shapes}
    return channel, channel.client({"delta": rows}, draw, common, kept, {}).flights["delta"]


def sample(size, seed=0, dtype=torch.float32):
    return torch.randn(1, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def length(parts):
    return sum(value.numel() * value.element_size() for value in parts.values())


@pytest.mark.parametrize("text", CHANNELS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    size=st.sampled_from([1, 2, 7, 8, 9, 64, 100, 257, 1000]),
    seed=st.integers(0, 99),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    zero=st.booleans(),
)
def test_what_was_packed_comes_out(text, size, seed, dtype, zero):
    rows = sample(size, seed, dtype) * (0 if zero else 1)
    channel, flight = flown(text, rows)
    parts = pack(flight)
    assert length(parts) == flight.form.bytes == channel.forms(["delta"])["delta"].bytes
    out = unpack(channel.agreed("delta", common), parts)
    assert out.form == flight.form and out.values.dtype == dtype
    assert torch.equal(out.dense(), flight.dense()) and out.dense().shape == (1, size)


def test_a_field_without_numbers():
    for text in CHANNELS:
        channel, flight = flown(text, sample(0))
        parts = pack(flight)
        assert (
            length(parts) == flight.form.bytes and unpack(channel.agreed("delta", common), parts).dense().numel() == 0
        )


def test_bits_by_hand():
    _, flight = flown("quantise:3", torch.tensor([[3.0, -3.0, 0.0, 3.0, -3.0, 0.0, 0.0, 3.0, 3.0]]))
    assert flight.values.tolist() == [[3, -3, 0, 3, -3, 0, 0, 3, 3]] and float(flight.unit) == 1.0
    bits = "110 101 000 110 101 000 000 110 110".replace(" ", "")  # the lowest first; -3 is 101, 5 of 8
    wanted = [int(bits[k : k + 8][::-1], 2) for k in range(0, len(bits), 8)]
    assert pack(flight)["codes"].tolist() == wanted and len(wanted) == 4
    _, flight = flown("stc:0.25", torch.tensor([[0.0, 4.0, 0.0, 0.0, -2.0, 0.0, 0.0, 0.0]]))
    parts = pack(flight)  # places 1 and 4 of three bits: 100 001; of two entries the second is negative
    assert parts["places"].tolist() == [0b100001] and parts["codes"].tolist() == [0b10] and parts["unit"] == 3.0
    _, flight = flown("topk:0.5", torch.tensor([[0.0, 4.0, 1.0, 0.0, -2.0, 0.0, 0.0, 5.0]]))
    assert pack(flight)["places"].tolist() == [0b10010110]  # a bit for every entry


def packed(text="topk:0.02,quantise:5", size=100, **changes):
    channel, flight = flown(text, sample(size))
    return channel.agreed("delta", common), {**pack(flight), **changes}


def refused(blank, parts, words):
    with pytest.raises(UnalikeError) as error:
        unpack(blank, parts)
    assert words in str(error.value) and "\n" not in str(error.value)


def bits_of(*numbers, bits):
    ones = [(n >> k) & 1 for n in numbers for k in range(bits)]
    return torch.from_numpy(np.packbits(np.array(ones, dtype=np.uint8), bitorder="little"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"places": bits_of(3, 100, bits=7)}, "its places go to 100; they must lie below 100"),
        ({"places": bits_of(3, 3, bits=7)}, "not ascending"),
        ({"places": bits_of(4, 3, bits=7)}, "not ascending"),
        ({"places": bits_of(4, 5, 1, bits=7)[:2] | torch.tensor([0, 64], dtype=torch.uint8)}, "bits behind"),
        ({"places": bits_of(4, 5, 6, bits=7)}, "its places have the shape (3,) of torch.uint8; it must be (2,)"),
        ({"codes": bits_of(15, 16, bits=5)}, "its codes go to 16; they must lie in [-15, 15]"),
        ({"codes": bits_of(1, 1, 1, bits=5)}, "bits behind the last number"),
        ({"codes": bits_of(1, 1, bits=10)}, "its codes have the shape"),
        ({"codes": bits_of(1, 1, bits=5)[None]}, "its codes have the shape"),
        ({"codes": bits_of(1, 1, bits=5).to(torch.int64)}, "of torch.int64"),
        ({"unit": torch.tensor([math.nan])}, "its unit is nan; it must be finite and at least 0"),
        ({"unit": torch.tensor([-1.0])}, "its unit is -1.0"),
        ({"unit": torch.tensor([math.inf])}, "its unit is inf"),
        ({"unit": torch.tensor([1.0], dtype=torch.float64)}, "its unit have the shape"),
        ({"more": torch.zeros(1)}, "it has the parts codes, places, unit, more; they must be codes, places, unit"),
    ],
)
def test_refused(changes, words):
    refused(*packed(**changes), words)


def test_refused_too():
    blank, parts = packed()
    refused(blank, {name: parts[name] for name in ("codes", "unit")}, "they must be codes, places, unit")
    refused(blank, {}, "it has the parts none")
    blank, parts = packed("topk:0.5")
    refused(blank, {**parts, "places": parts["places"] * 0}, "it has 0 places; they must be 50")
    refused(blank, {**parts, "values": parts["values"].half()}, "of torch.float16; it must be (50,) of torch.float32")
    blank, parts = packed("qsgd:4")  # four bits hold more than the levels
    codes = parts["codes"].clone()
    codes[0] = 5
    refused(blank, {**parts, "codes": codes}, "its codes go to 5; they must lie in [-4, 4]")
