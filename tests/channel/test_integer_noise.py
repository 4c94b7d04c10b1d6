"""Noise of whole numbers: its law is the golden one, shares add up to what is stated, replies stay within a bound."""

import math

import numpy as np
import pytest
import torch
from goldens import golden
from ways import channel_of, exchanged, sent

from unalike.channel.integer_events import DiscreteGaussianSum, SkellamSum, rounded_norms
from unalike.channel.stage import Flight, Form
from unalike.channel.stages.integer_noise import gaussian_table, inverted, poisson_table
from unalike.errors import UnalikeError

CASES = golden("channel_integer_noise")["cases"]
KINDS = ["skellam", "discrete-gaussian"]
MANY = 20_000


def law(table):
    """Return the least number of a table, and the probabilities from it on."""
    low, cumulated = table
    return low, np.diff(cumulated, prepend=0.0)


@pytest.mark.parametrize("case", [c for c in CASES if c["rule"] == "discrete_gaussian"], ids=lambda c: c["sigma2"])
def test_a_discrete_gaussian_is_the_golden_one(case):
    low, p = law(gaussian_table(case["sigma2"]))
    k = np.arange(low, low + len(p))
    assert p[-low : -low + 7] == pytest.approx(case["pmf_0_to_6"], abs=1e-9)
    assert float((p * k**2).sum()) == pytest.approx(case["variance"], abs=1e-9)
    assert p == pytest.approx(p[::-1], abs=1e-15)


@pytest.mark.parametrize("case", [c for c in CASES if c["rule"] == "skellam"], ids=lambda c: c["variance"])
def test_two_poisson_numbers_differ_by_the_golden_skellam(case):
    _, p = law(poisson_table(case["variance"] / 2))
    found = np.convolve(p, p[::-1])  # of the difference, 0 in the middle
    middle = len(p) - 1
    assert found[middle : middle + 7] == pytest.approx(case["pmf_0_to_6"], abs=1e-9)
    assert float(found.sum()) == pytest.approx(case["pmf_sum"], abs=1e-9)
    assert float((found * (np.arange(len(found)) - middle) ** 2).sum()) == pytest.approx(case["variance"], abs=1e-9)


@pytest.mark.parametrize("rate", [1e-3, 0.7, 30.0, 1e5])
def test_a_poisson_table_holds_the_whole_law(rate):
    low, p = law(poisson_table(rate))
    k = np.arange(low, low + len(p), dtype=np.float64)
    assert float((p * k).sum()) == pytest.approx(rate, rel=1e-9)
    assert float((p * (k - rate) ** 2).sum()) == pytest.approx(rate, rel=1e-9)
    assert p[-1] < 1e-15 and (low == 0 or p[0] < 1e-15)


def test_uniform_numbers_are_inverted_at_the_edges():
    table = -1, np.array([0.25, 0.75, 1.0])
    given = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53], dtype=torch.float64)
    assert inverted(table, given).tolist() == [-1, -1, 0, 0, 1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_shares_of_clients_add_up(kind):
    """quantise:8:1.27 has codes of 0.01; z = 2 and C = 0.1 make a deviation of 0.2 in the sum, 20 codes."""
    channel = channel_of(f"clip:0.1,quantise:8:1.27,{kind}:2.0:5", MANY)
    noise = channel.stages[2]
    assert noise.sigma == pytest.approx(20) and noise.share == pytest.approx(80)
    total = exchanged(channel, torch.zeros(5, MANY, dtype=torch.float64), 5.0).total("delta")
    codes = total / 0.01
    assert torch.allclose(codes, codes.round(), atol=1e-6)
    deviation = float(total.square().mean().sqrt())
    assert deviation == pytest.approx(0.2, rel=6 / math.sqrt(2 * MANY))
    assert abs(float(total.mean())) < 6 * 0.2 / math.sqrt(MANY)


@pytest.mark.parametrize("kind", KINDS)
def test_each_client_has_its_own_share_and_the_codes_hold_it(kind):
    channel = channel_of(f"clip:0.1,quantise:8:1.27,{kind}:2.0:5", MANY)
    noise = channel.stages[2]
    form = Form(MANY, MANY, 8, "codes", unit="common", most=127)
    way = sent(channel.stages[0], delta=torch.zeros(3, MANY, dtype=torch.float64))
    way.flights = {"delta": Flight(form, torch.zeros(3, MANY, dtype=torch.float64), unit=0.01)}
    noise.client(way)
    found = way.flights["delta"]
    for row in found.values:
        assert float(row.square().mean()) == pytest.approx(80, rel=6 * math.sqrt(2 / MANY))
    assert not torch.equal(found.values[0], found.values[1])
    assert found.form.most == 127 + noise.largest and 2 ** (found.form.bits - 1) > found.form.most
    assert found.values.abs().max() <= noise.largest


def test_a_reply_that_rounding_made_too_long_is_shrunk():
    channel = channel_of("clip:0.1,quantise:8:1.27,skellam:0:1", 4)
    noise = channel.stages[2]
    assert noise.lengths == rounded_norms(10.0, 4)
    form = Form(4, 4, 8, "codes", unit="common", most=127)
    way = sent(channel.stages[0], delta=torch.zeros(2, 4, dtype=torch.float64))
    values = torch.tensor([[9.0, 9.0, -9.0, 9.0], [6.0, 5.0, -5.0, 5.0]], dtype=torch.float64)
    way.flights = {"delta": Flight(form, values, unit=0.01)}
    noise.client(way)
    found = way.flights["delta"].values
    assert found[0].norm() <= noise.lengths[1] and torch.equal(found[0], torch.tensor([5.0, 5.0, -5.0, 5.0]).double())
    assert torch.equal(found[1], values[1])


def test_what_a_sum_spends_is_of_the_longest_reply():
    skellam, gaussian = (channel_of(f"clip:0.1,quantise:8:1.27,{k}:2.0:5", 4).stages[2] for k in KINDS)
    l1, l2 = rounded_norms(10.0, 4)
    assert skellam.event(0.5) == SkellamSum(skellam.sigma**2, l1, l2, 0.5)
    assert gaussian.event(1.0) == DiscreteGaussianSum(skellam.sigma**2, l1, l2, 1.0, 5, 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("came", [1, 2, 7])
def test_shares_that_are_missing_the_server_adds(kind, came):
    """Five shares are a deviation of 20 codes; who comes beyond them brings more."""
    channel = channel_of(f"clip:0.1,quantise:8:1.27,{kind}:2.0:5", MANY)
    total = exchanged(channel, torch.zeros(came, MANY, dtype=torch.float64), 5.0).total("delta")
    codes, expected = total / 0.01, 20 * math.sqrt(max(came, 5) / 5)
    assert torch.allclose(codes, codes.round(), atol=1e-6)
    assert float(codes.square().mean().sqrt()) == pytest.approx(expected, rel=6 / math.sqrt(2 * MANY))
    assert abs(float(codes.mean())) < 6 * expected / math.sqrt(MANY)


def test_missing_shares_of_no_noise_are_nothing():
    channel = channel_of("clip:0.1,quantise:8:1.27,skellam:0:5", 4)
    assert not exchanged(channel, torch.zeros(2, 4, dtype=torch.float64), 5.0).total("delta").any()


@pytest.mark.parametrize(
    "stages, why",
    [
        ("clip:0.1,quantise:8,skellam:1.0", "whole codes of one common unit"),
        ("quantise:8:1.0,clip:0.1,skellam:1.0", "put it before"),
        ("adaptive-clip:0.1,quantise:8:1.0,skellam:1.0", "take clip"),
        ("clip:0.1,topk:0.5,quantise:8:1.0,skellam:1.0", "adds an error of earlier rounds after the clip"),
        ("clip:0.1,topk:0.5:false,quantise:8:1.0,skellam:1.0", "for all entries"),
        ("clip:0.1,quantise:8,noise:1.0", "quantise may make a reply longer"),
        ("clip:0.1,half,noise:1.0", "half may make a reply longer"),
        ("clip:0.1,topk:0.5,noise:1.0", "topk adds an error of earlier rounds after the clip"),
        ("clip:0.1,topk:0.5:false,local-noise:1.0", "which entries travel would go past the noise"),
        ("clip:0.1,quantise:8,local-noise:1.0", "put it before"),
        ("adaptive-clip:0.1,local-noise:1.0", "bit of an adaptive clip before it would go past the noise: take clip"),
        ("adaptive-clip:0.1,clip:1.0,local-noise:1.0", "would go past the noise: take clip"),
    ],
)
def test_what_compression_would_break_is_one_line(stages, why):
    with pytest.raises(UnalikeError, match=why) as error:
        channel_of(stages, 8).forms(["delta"])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("before", ["topk:0.5", "quantise:4", "ternary", "topk:0.5,quantise:4"])
def test_what_was_compressed_can_be_clipped_and_noised(before):
    channel = channel_of(f"{before},clip:0.1,noise:1.0", 8)
    assert channel.forms(["delta"])["delta"] == channel_of(before, 8).forms(["delta"])["delta"]
    assert channel.noises[0].bound({}) == 0.1


def test_a_wider_bound_where_rounding_stretches():
    assert channel_of("clip:0.5,bfloat,noise:1.0", 8).noises[0].bound({}) == pytest.approx(0.5 * (1 + 2**-8))
