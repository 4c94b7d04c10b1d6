"""Clips: no reply is longer than its bound, whatever it holds, and none is changed that is not."""

import math

import pytest
import torch
from goldens import golden
from ways import rows, sent, total

from unalike import draws
from unalike.channel import AdaptiveClip, Clip, ClipLayers
from unalike.channel.stage import Flight, Form
from unalike.channel.stage import norms as channel_norms
from unalike.errors import UnalikeError
from unalike.nn.layout import Layout

CASES = golden("channel_dp_mechanisms")["cases"]


def of(rule):
    return [pytest.param(case, id=case["name"]) for case in CASES if case["rule"] == rule]


def norms(*values):
    return torch.cat(values, 1).double().norm(dim=1)


@pytest.mark.parametrize("case", of("dp_fedavg"))
def test_a_clip_is_the_golden_one(case):
    way = sent(Clip(case["clip"]), delta=rows(case["updates"]))
    assert torch.allclose(way.flights["delta"].values, rows(case["clipped"]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("stage", [Clip(0.7), ClipLayers(0.7), AdaptiveClip(0.7)])
def test_two_fields_together_are_within_the_bound(stage, dtype):
    """SCAFFOLD's two fields: two bounds of C would let a client move the sum by √2 C."""
    draw = torch.Generator().manual_seed(0)
    long = [torch.randn(50, 30, generator=draw, dtype=dtype) * 10.0 ** (k - 3) for k in range(6)]
    way = sent(stage, delta=torch.cat(long), control=torch.cat(long[::-1]))
    found = norms(way.flights["delta"].values, way.flights["control"].values)
    assert found.max() <= 0.7
    assert found.max() > 0.69  # and not clipped to less


@pytest.mark.parametrize("size", [1, 6, 7, 13])
def test_a_norm_is_added_up_a_block_at_a_time(size, monkeypatch):
    values = torch.arange(1.0, 2 * size + 1).reshape(2, size)
    wanted = [math.sqrt(sum(v * v for v in row)) for row in values.tolist()]
    monkeypatch.setattr(draws, "BLOCK", 6)
    short = sent(Clip(0.5), delta=values.double()).flights["delta"].values
    assert short.norm(dim=1).tolist() == pytest.approx([0.5, 0.5])
    assert channel_norms([Flight.of(values), Flight.of(values)]).tolist() == pytest.approx(
        [2**0.5 * long for long in wanted], rel=1e-15
    )


@pytest.mark.parametrize("stage", [Clip(5.0), ClipLayers(9.0), AdaptiveClip(5.0), Clip(9.0, 1)])
def test_a_short_reply_is_left_as_it_is_to_the_bit(stage):
    values = torch.tensor([[1.0, -2.0, 0.1], [0.0, 0.0, 0.0]])
    assert torch.equal(sent(stage, delta=values).flights["delta"].values, values)


def test_a_clip_of_absolute_values():
    found = sent(Clip(2.0, 1), delta=rows([[3.0, -1.0]]), more=rows([[0.0, 4.0]])).flights
    assert found["delta"].values[0].tolist() == pytest.approx([0.75, -0.25])
    assert found["more"].values[0].tolist() == pytest.approx([0.0, 1.0])


def test_by_layer_every_tensor_has_its_own_share():
    layout = Layout([("a", (2,)), ("b", (1, 2)), ("c", (1,))])
    values = rows([[3.0, 4.0, 0.1, 0.0, -7.0]])
    way = sent(ClipLayers(2.0), layout=layout, delta=values, scalar=rows([[9.0]]))  # four tensors: 2 / √4 = 1 each
    assert way.flights["delta"].values[0].tolist() == pytest.approx([0.6, 0.8, 0.1, 0.0, -1.0])
    assert way.flights["scalar"].values.tolist() == [pytest.approx([1.0])]


def test_codes_stay_whole_and_are_worth_less():
    form = Form(2, 2, 8, "codes", unit="sent")
    flight = Flight(form, rows([[3.0, 4.0], [0.0, 1.0]]), unit=rows([[2.0], [2.0]]))
    way = sent(Clip(5.0), delta=rows([[1.0]]))
    way.flights = {"delta": flight}
    Clip(5.0).client(way)
    assert torch.equal(way.flights["delta"].values, flight.values)
    assert way.flights["delta"].worth().flatten().tolist() == pytest.approx([3.0, 4.0, 0.0, 2.0], abs=1e-5)


def test_codes_of_a_common_unit_cannot_be_clipped():
    way = sent(Clip(5.0), delta=rows([[1.0]]))
    way.flights = {"delta": Flight(Form(1, 1, 8, "codes", unit="common"), rows([[3.0]]), unit=2.0)}
    with pytest.raises(UnalikeError, match="put the clip before"):
        Clip(5.0).client(way)


# ---------------------------------------------------------------- adaptive


@pytest.mark.parametrize("case", of("adaptive_clip"))
def test_an_adaptive_clip_is_the_golden_one(case):
    values = {}
    for step in case["steps"]:
        clients = len(step["norms"])
        first = case["steps"][0]["clip"]
        stage = AdaptiveClip(first, case["target_quantile"], case["rate"], case["count_noise_std"] / clients)
        told = stage.told(values)
        assert told["clip"] == pytest.approx(step["clip"], abs=1e-12)
        way = sent(stage, told, delta=rows([[norm] for norm in step["norms"]]))
        assert way.extra["within"].tolist() == step["bits"]
        expected = [min(norm, told["clip"]) for norm in step["norms"]]
        assert way.flights["delta"].values[:, 0].tolist() == pytest.approx(expected, abs=1e-12)
        bits = {"within": float(way.extra["within"].sum())}
        stage.server(total({"delta": rows([0.0])}, clients, clients, bits, values, step["standard_normal"]))
        assert values["clip"] == pytest.approx(step["clip_after"], abs=1e-12)


def test_the_share_is_of_the_expected_cohort_and_moves_by_half_a_client():
    """One client more or less moves the share by ½ of a client, not by a whole one: so a count needs half the noise."""
    stage = AdaptiveClip(1.0, 0.5, 0.2, 0.0)
    found = []
    for came, within in ((10, 5.0), (11, 6.0), (11, 5.0), (0, 0.0)):
        values = {}
        stage.server(total({"delta": rows([0.0])}, came, 10.0, {"within": within}, values))
        found.append(math.log(values["clip"]) / -0.2)
    assert found == pytest.approx([0.0, 0.05, -0.05, 0.0])
