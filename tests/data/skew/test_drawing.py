"""A picture of the clients: an SVG that stands by itself and says what the data are."""

import base64
import re
import struct
import xml.etree.ElementTree as ElementTree
import zlib

import numpy as np
import pytest
import torch

import unalike as ua
from unalike.data.skew.drawing import COLOURS, PLAIN, _png

SVG = "{http://www.w3.org/2000/svg}"


def drawn(fed, *panels, **options):
    """The elements of a picture, by name."""
    root = ElementTree.fromstring(ua.skew.picture(fed, panels or ("labels", "samples", "rounds"), **options))
    found: dict[str, list] = {}
    for element in root.iter():
        found.setdefault(element.tag.removeprefix(SVG), []).append(element)
    return found


def words(found):
    return [text.text for text in found["text"]]


def small(**options):
    """Three clients of 4, 1 and 9 samples; the last has only class 1."""
    rows = [(np.zeros((n, 2), np.float32), np.array(y)) for n, y in ((4, [0, 0, 0, 1]), (1, [0]), (9, [1] * 9))]
    return ua.Federation.from_arrays(rows, **options)


def pictures(text, clients=6, **options):
    return ua.load("digits", image=True).split(text, clients, **options)


def test_areas_are_numbers_of_samples():
    found = drawn(small(), "labels")
    radius = {(c.get("cx"), c.get("cy")): float(c.get("r")) for c in found["circle"]}
    largest = max(radius.values())
    assert sorted(round(9 * (r / largest) ** 2) for r in radius.values()) == [1, 1, 3, 9]
    heights = [float(bar.get("height")) for bar in found["rect"]]
    assert heights == pytest.approx([36 * 4 / 9, 4, 36], abs=0.06)
    assert {c.get("fill") for c in found["circle"]} == {PLAIN}  # nothing is planted
    assert "up to 9" in words(found) and words(found)[-4:] == ["0", "1", "2", "client"]


def test_clients_stand_by_their_group_in_its_colour():
    groups = np.array([1, 0, 1])
    found = drawn(small().replace(planted={"mine": groups}), "labels")
    assert [bar.get("fill") for bar in found["rect"]] == [COLOURS[0], COLOURS[1], COLOURS[1]]
    assert words(found)[-3:] == ["mine:", "group 0", "group 1"] and words(found)[-7:-3] == ["1", "0", "2", "client"]
    levels = drawn(small().replace(planted={"mine": np.array([0.0, 0.5, 1.0])}), "labels")
    shades = [bar.get("fill") for bar in levels["rect"]]
    assert shades[0] == COLOURS[0] and shades[2] == COLOURS[2] and len(set(shades)) == 3


def test_many_clients_and_classes_fit():
    y = np.arange(3000) % 100
    many = ua.Dataset(np.zeros((3000, 2), np.float32), y).split("iid", 500)
    found = drawn(many, "labels")
    assert len(found["rect"]) == 24 and "95–99" in words(found)
    right = max(float(r.get("x")) + float(r.get("width")) for r in found["rect"])
    assert right <= 720 and float(found["svg"][0].get("height")) < 700


def test_pictures_are_the_clients_own():
    fed = pictures("iid|rotate:3")
    found = drawn(fed, "samples")
    assert len(found["image"]) == 3 * 10  # a client of every group, a sample of every label
    names = [match[1] for word in words(found) if (match := re.fullmatch(r"client (\d+)", word))]
    assert [fed.planted["rotate"][int(k)] for k in names] == [0, 1, 2]
    first = found["image"][0].get("href").removeprefix("data:image/png;base64,")
    pixels = unpacked(base64.b64decode(first))
    x, y = fed.train.of(int(names[0]))
    own = (x[y == 0][:, 0] * 255).round().byte().numpy()
    assert any(np.abs(pixels.astype(int) - picture).max() <= 1 for picture in own)


def unpacked(png):
    """The pixels of a PNG file whose rows are not filtered."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    height = struct.unpack(">I", png[20:24])[0]
    at = png.index(b"IDAT")
    size = struct.unpack(">I", png[at - 4 : at])[0]
    assert struct.unpack(">I", png[at + 4 + size : at + 8 + size])[0] == zlib.crc32(png[at : at + 4 + size])
    return np.frombuffer(zlib.decompress(png[at + 4 : at + 4 + size]), np.uint8).reshape(height, -1)[:, 1:]


def test_png_keeps_the_pixels():
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    assert (unpacked(_png(pixels)).reshape(2, 4, 3) == pixels).all() and _png(pixels)[25] == 2  # red, green, blue
    assert _png(pixels[:, :, :1])[25] == 0  # grey


def test_signals_are_curves_and_vectors_points():
    found = drawn(ua.load("series", sensors=4).split(), "labels", "samples")
    assert len(found["polyline"]) == 3 + 4 * 10 and "image" not in found  # three lines of the scale
    shifted = ua.load("digits").split("iid|shift:3:2", 4)
    points = [c for c in drawn(shifted, "samples")["circle"] if c.get("fill-opacity")]
    assert len(points) == 400
    sides = [np.mean([float(c.get("cx")) for c in points if c.get("fill") == COLOURS[g]]) for g in (0, 1)]
    assert abs(sides[0] - sides[1]) > 200  # the groups lie apart


def test_tokens_and_joined_federations_are_drawn_too():
    tokens = ua.Federation.from_arrays([(torch.zeros(3, 5, dtype=torch.long), [0, 1, 1])] * 2)
    assert "sizes and labels" in words(drawn(tokens)) and len(drawn(tokens)["text"]) == 7
    joined = ua.Federation.joined({"pictures": pictures("iid", 2), "vectors": ua.load("digits").split("iid", 3)})
    found = drawn(joined)
    assert len(found["image"]) == 10 and words(found)[-3:] == ["network:", "group 0", "group 1"]


def test_one_client_as_rounds_pass():
    fed = pictures("iid|drift:9:permute:2", 4)
    found = drawn(fed, "rounds")
    assert [w for w in words(found) if w.startswith("round")] == [f"round {r}" for r in (1, 3, 5, 7, 9)]
    client = int(np.argmax(fed.planted["permute"]))
    assert words(found)[0] == f"client {client} as rounds pass" and len(found["image"]) == 50
    assert "text" not in drawn(pictures("iid", 4), "rounds")  # nothing drifts
    stream = ua.load("digits").split("iid|stream:9:0.2:labels", 4)
    circles = [(float(c.get("cx")), float(c.get("cy"))) for c in drawn(stream, "rounds")["circle"]]
    assert max(y for x, y in circles if x < 130) < min(y for x, y in circles if x > 350)  # from class 0 to class 9


def test_the_same_seed_draws_the_same():
    fed = pictures("iid")
    assert ua.skew.picture(fed, seed=1) == ua.skew.picture(fed, seed=1) != ua.skew.picture(fed, seed=2)


def test_names_are_text():
    fed = small(names=["<b>", "&", '"c"'])
    assert "<b>" not in ua.skew.picture(fed) and "&lt;b&gt;" in ua.skew.picture(fed)


def test_mistakes():
    with pytest.raises(ua.UnalikeError, match="no panel 'sizes': take some of labels, samples, rounds"):
        ua.skew.picture(small(), ["sizes"])
