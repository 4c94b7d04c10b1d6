"""Noise has the law that is accounted for, and what it does not cover is refused."""

import math

import pytest
import torch
from goldens import golden
from ways import channel_of, exchanged, rows, sent, total

import unalike as ua
from unalike.channel import GaussianNoise, LocalNoise, TreeNoise, parse
from unalike.channel.events import noise_beside_count
from unalike.channel.stages.noise import fine, laplace
from unalike.channel.stages.tree import nodes
from unalike.errors import UnalikeError

CASES = golden("channel_dp_mechanisms")["cases"]
MANY = 20_000


def moments(values, sigma, fourth=3.0):
    """Check mean, deviation and fourth moment of a symmetric law with six of their standard errors."""
    x, n = values.double().flatten() / sigma, values.numel()
    assert abs(float(x.mean())) < 6 / math.sqrt(n)
    assert float(x.square().mean()) == pytest.approx(1, abs=6 * math.sqrt((fourth - 1) / n))
    assert float(x.pow(4).mean()) == pytest.approx(fourth, rel=0.25)


@pytest.mark.parametrize("case", [c for c in CASES if c["rule"] == "dp_fedavg"], ids=lambda c: c["name"])
def test_the_noised_sum_is_the_golden_one(case):
    noise = channel_of(f"clip:{case['clip']},noise:{case['noise_multiplier']}", 6).stages[1]
    some = total({"delta": rows(case["clipped"]).sum(0)}, normals=case["standard_normals"])
    noise.server(some)
    assert some.sums["delta"].tolist() == pytest.approx(case["noised_sum"], abs=1e-12)


@pytest.mark.parametrize("case", [c for c in CASES if c["rule"] == "dp_fedavg"], ids=lambda c: c["name"])
def test_a_mean_is_of_the_expected_cohort(case):
    sums = exchanged(channel_of(f"clip:{case['clip']},noise:0", 6), rows(case["updates"]), case["expected_cohort"])
    assert torch.allclose(sums.total("delta"), rows(case["clipped"]).sum(0), rtol=0, atol=1e-12)
    assert sums.weights["delta"] == case["expected_cohort"]


def test_the_noise_of_a_sum_has_the_stated_deviation():
    sums = exchanged(channel_of("clip:0.5,noise:3.0", MANY), torch.zeros(4, MANY, dtype=torch.float64), 7.0)
    moments(sums.total("delta"), 1.5)


def test_another_exchange_has_other_noise():
    channel, nothing = channel_of("clip:1.0,noise:1.0", 50), torch.zeros(2, 50, dtype=torch.float64)
    found = [exchanged(channel, nothing, 2.0, when=when).total("delta") for when in ((0, 0), (0, 1), (1, 0), (-1, 0))]
    assert len(torch.cat(found).unique()) == 200


def test_beside_an_adaptive_clip_the_sum_has_more_noise():
    """Sum and count together spend what z says; the golden rule is (z^-2 - (2 std)^-2)^-1/2."""
    channel = channel_of("adaptive-clip:0.5:0.5:0.2:0.2,noise:1.0", MANY)
    sums = exchanged(channel, torch.zeros(10, MANY, dtype=torch.float64), 10.0)
    moments(sums.total("delta"), 0.5 * (1 - 4.0**-2) ** -0.5)
    assert channel.stages[1].updates(10.0) == pytest.approx(noise_beside_count(1.0, 2.0))
    with pytest.raises(UnalikeError, match=r"needs noise above 0.5 beside noise 1; got 0.4. Raise the std of adaptive"):
        exchanged(channel, torch.zeros(2, MANY, dtype=torch.float64), 2.0)


def test_an_adaptive_clip_keeps_its_bound_with_the_server():
    channel, values = channel_of("adaptive-clip:0.5:0.5:0.2:0.2,noise:0.5", 3), {}
    exchanged(channel, torch.ones(10, 3, dtype=torch.float64), 10.0, values=values)
    assert values["_channel clip"] > 0.5  # nobody was within the bound
    assert channel.told(values) == {"clip": values["_channel clip"]}


@pytest.mark.parametrize("law, fourth, sigma", [("gaussian", 3.0, 1.0), ("laplace", 6.0, math.sqrt(2))])
def test_local_noise_is_in_every_reply(law, fourth, sigma):
    clip = "clip:2.0:1" if law == "laplace" else "clip:2.0"
    stage = channel_of(f"{clip},local-noise:1.5:{law}", MANY).stages[1]
    values = sent(stage, delta=torch.zeros(3, MANY, dtype=torch.float64)).flights["delta"].values
    for row in values:
        moments(row, 3.0 * sigma, fourth)
    assert len(values.unique()) == values.numel()


def test_laplace_and_uniforms_of_53_bits():
    given = {"p 0": 0.5, "p 1": 3 / 2**24, "p 2": 31 / 32}
    found = fine(lambda purpose, shape: torch.full((1, *shape), given[purpose]), "p", (1,))
    assert float(found) == 0.5 + 3 / 2**48 + 31 / 2**53
    most = fine(lambda purpose, shape: torch.full((1, *shape), 1 - 2**-24), "p", (1,))
    assert float(most) == 1 - 2**-53
    end = laplace(lambda purpose, shape: torch.full((1, *shape), (1 - 2**-24) if " up" in purpose else 0.0), "p", (1,))
    assert float(end) == pytest.approx(53 * math.log(2))  # the tail is as long as the bits are many


# ---------------------------------------------------------------- trees


@pytest.mark.parametrize("case", [c for c in CASES if c["rule"] == "tree_prefix_sums"], ids=lambda c: c["name"])
def test_prefix_sums_on_a_tree_are_the_golden_ones(case):
    noise = channel_of("clip:1.0,tree-noise:1.0:8", 2).stages[1]
    drawn = {f"tree 0 node {place.replace(',', ' ')} of delta": v for place, v in case["node_noise"].items()}
    prefix = rows([0.0, 0.0])
    for t, (x, step) in enumerate(zip(case["x"], case["steps"], strict=True)):
        assert [list(node) for node in nodes(t + 1)] == step["nodes"]
        some = total({"delta": rows(x)}, lasting=drawn, when=(t, 0))
        noise.server(some)
        prefix = prefix + some.sums["delta"]
        assert prefix.tolist() == pytest.approx(step["noised_prefix"], abs=1e-12)


def test_a_new_tree_begins_after_its_leaves():
    channel, nothing = channel_of("clip:1.0,tree-noise:2.0:2", MANY), torch.zeros(2, MANY, dtype=torch.float64)
    steps = [exchanged(channel, nothing, 2.0, when=(t, 0)).total("delta") for t in range(4)]
    moments(steps[0], 2.0)
    moments(steps[0] + steps[1], 2.0)  # one node covers both
    moments(steps[2], 2.0)
    assert abs(float((steps[0] * steps[2]).mean())) < 6 * 4 / math.sqrt(MANY)


def test_a_tree_has_one_exchange_a_round():
    channel = channel_of("clip:1.0,tree-noise:2.0:2", 2)
    with pytest.raises(UnalikeError, match="one exchange per round"):
        exchanged(channel, torch.zeros(2, 2, dtype=torch.float64), 2.0, when=(0, 1))


# ---------------------------------------------------------------- what has no meaning


@pytest.mark.parametrize(
    "stages, why",
    [
        ("noise:1.0", "noise needs a clip before it"),
        ("noise:1.0,clip:1.0", "a clip after the noise bounds nothing"),
        ("clip:1.0,noise:1.0,clip:2.0", "a clip after the noise changes what was accounted for"),
        ("clip:1.0,noise:1.0,noise:1.0", "there is noise before it already"),
        ("clip:1.0:1,noise:1.0", "needs the ordinary norm"),
        ("clip:1.0,local-noise:1.0:laplace", "clip:1.0:1"),
        ("clip:1.0,noise:-1", "must be at least 0, or 'auto'; got -1.0"),
        ("clip:1.0,noise:nan", "must be a number or text, and finite; got nan"),
        ("clip:1.0,noise:much", "must be at least 0, or 'auto'; got 'much'"),
        ("clip:1.0,skellam:1.0", "whole codes of one common unit"),
        ("clip:0", "above 0"),
    ],
)
def test_an_order_without_meaning_is_one_line(stages, why):
    with pytest.raises(UnalikeError, match=why) as error:
        channel_of(stages, 3)
    assert "\n" not in str(error.value)


def test_noise_must_know_its_clips_fields():
    stages = parse([ua.channel.Clip(1.0, fields=("delta",)), GaussianNoise(1.0)])
    with pytest.raises(UnalikeError, match="'control' goes past clip"):
        channel_of(stages, 3, ua.Scaffold())
    alone = {"delta": "clip:1.0,noise:1.0"}
    with pytest.raises(UnalikeError, match="Scaffold sends 'control' past the noise"):
        channel_of(alone, 3, ua.Scaffold())
    apart = channel_of(alone | {"control": "clip:2.0,noise:1.0"}, 3, ua.Scaffold())
    assert [noise.bound({}) for noise in apart.noises] == [1.0, 2.0]


def test_auto_without_an_epsilon_is_one_line():
    channel = channel_of("clip:1.0,noise:auto", 3)
    with pytest.raises(UnalikeError, match="give epsilon"):
        exchanged(channel, torch.zeros(2, 3, dtype=torch.float64), 2.0)


def test_noise_reads_as_it_is_written():
    assert [str(stage) for stage in parse("clip:2.0,noise:auto,local-noise:1.0:laplace,tree-noise:1.5:4")] == [
        "clip:2.0", "noise:auto", "local-noise:1.0:laplace", "tree-noise:1.5:4",
    ]  # fmt: skip
    assert parse([{"kind": "noise", "multiplier": 2}]) == (GaussianNoise(2),)
    assert parse("local-noise:2.0") == (LocalNoise(2.0),) and parse("tree-noise:1.0:2") == (TreeNoise(1.0, 2),)
    with pytest.raises(UnalikeError, match="bounded"):
        parse([{"kind": "noise", "bounded": 3}])
