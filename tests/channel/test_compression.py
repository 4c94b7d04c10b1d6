"""Stages that compress: golden numbers, what holds on the average and over rounds, bytes, orders that are refused."""

import dataclasses as dc
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from goldens import golden

import unalike as ua
from unalike import draws
from unalike.channel import QSGD, STC, BFloat, Channel, Clip, Half, Quantise, RandomK, TernGrad, TopK, parse
from unalike.channel.stage import Flight, Way
from unalike.errors import UnalikeError

STOCHASTIC = [Quantise(8), Quantise(2), Quantise(3, limit=4.0), QSGD(1), QSGD(20), TernGrad()]
STAGES = [*STOCHASTIC, Quantise(6, None, "nearest"), TernGrad(2.5), Half(), BFloat(), TopK(0.1), RandomK(0.1), STC(0.1)]

TASK = SimpleNamespace(layout=None, dtype=torch.float32, sizes={"model": 1000})


class Given:
    """Draws that hand out the given uniforms."""

    def __init__(self, uniforms):
        self.uniforms = torch.tensor(uniforms, dtype=torch.float64)

    def uniform(self, purpose, shape):
        return self.uniforms.reshape(-1, *shape)

    def uniform_blocks(self, purpose, count):
        yield draws.WHOLE, self.uniform(purpose, (count,))


def common(purpose):
    return draws.generator(5, purpose)


def own_draws(ids=(0,), dtype=torch.float64):
    return draws.KeyedDraws(torch.from_numpy(draws.client_keys(3, 0, "channel", np.array(ids))), dtype)


def send(stages, rows, draw=None, kept=None):
    """Rows of a field through some stages; the flight and the way it took."""
    flight = Flight.of(torch.as_tensor(rows))
    draw = draw or own_draws(range(len(flight.values)), flight.values.dtype)
    way = Way({"delta": flight}, draw, common, {} if kept is None else kept)
    for stage in stages:
        for name, field in stage.keeps(["delta"]).items():
            way.kept.setdefault(name, torch.zeros_like(flight.values))
            assert field == "delta"
        stage.client(way)
    return way.flights["delta"], way


def sample(clients=3, size=200, dtype=torch.float64):
    return torch.randn(clients, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


# ---- golden numbers


def quantiser(case):
    rule = case["rule"]
    if rule == "qsgd":
        return QSGD(case["levels"])
    if rule == "terngrad":
        return TernGrad(case.get("clip_sigmas"))
    return Quantise(case["bits"], case.get("limit"), {"grid_stochastic": "stochastic"}.get(rule, "nearest"))


QUANTISED = golden("channel_quantise")["cases"]


@pytest.mark.parametrize("case", QUANTISED, ids=[f"{c['rule']}-{c['name']}" for c in QUANTISED])
def test_quantisers(case):
    stage = quantiser(case)
    x = torch.tensor([case["x"]], dtype=torch.float64)
    flight, _ = send([stage], x, Given(case.get("uniforms", [])))
    assert flight.values[0].tolist() == case["codes"]
    np.testing.assert_allclose(flight.dense()[0], case["decoded"], atol=1e-12, rtol=0)
    np.testing.assert_allclose(float(flight.unit) * stage.most, case["scale"], atol=1e-12, rtol=0)


SPARSE = golden("channel_sparsify")["cases"]


@pytest.mark.parametrize("case", SPARSE, ids=[c["name"] for c in SPARSE])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sparsifiers(case, dtype, monkeypatch):
    share, kept = case["keep"] / case["size"], {}
    stage = {"topk": TopK, "stc": STC, "randomk": RandomK}[case["rule"]](share)
    assert stage.feedback == case.get("error_feedback", True)
    for step in case["steps"]:
        if case["rule"] == "randomk":
            monkeypatch.setattr(RandomK, "places", lambda *_, at=step["indices"]: torch.tensor([at]))
        flight, way = send([stage], torch.tensor([step["update"]], dtype=dtype), kept=kept)
        kept, near = way.kept, {"atol": 1e-12 if dtype == torch.float64 else 1e-6, "rtol": 0}
        assert flight.at[0].tolist() == step["indices"]
        np.testing.assert_allclose(flight.dense()[0], step["sent"], **near)
        if "values" in step:
            np.testing.assert_allclose(flight.worth()[0], step["values"], **near)
        if stage.feedback:
            np.testing.assert_allclose(kept["error-delta"][0], step["error_after"], **near)
        else:
            assert kept == {}


# ---- what holds whatever the numbers


@pytest.mark.parametrize("stage", [*STOCHASTIC, RandomK(0.3)], ids=str)
def test_right_on_the_average(stage):
    x = sample(1, 12)
    clients = 600 if isinstance(stage, RandomK) else 4000
    if isinstance(stage, RandomK):
        exchanges = [lambda purpose, k=k: draws.generator(k, purpose) for k in range(clients)]
        decoded = torch.cat([stage.one(Flight.of(x), "delta", Way({}, own_draws(), e)).dense() for e in exchanges])
    else:
        decoded = send([stage], x.expand(clients, -1))[0].dense()
    spread = decoded.std(0) / clients**0.5
    assert ((decoded.mean(0) - x[0]).abs() <= 4.5 * spread + 1e-9).all()
    assert decoded.std(0).max() > 0


@pytest.mark.parametrize("stage", [TopK(0.1), STC(0.1), RandomK(0.1, True)], ids=str)
def test_nothing_is_lost_with_feedback(stage):
    kept, sent, updates = {}, 0, 0
    for k in range(6):
        update = sample() * (k + 1)
        flight, way = send([stage], update, kept=kept)
        kept, sent, updates = way.kept, sent + flight.dense(), updates + update
        assert int((flight.dense() != 0).sum(1).max()) <= 20
        torch.testing.assert_close(sent + kept["error-delta"], updates, atol=1e-12, rtol=0)
    assert float(kept["error-delta"].abs().max()) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_a_client_alone_is_its_row_in_a_stack(stage, dtype):
    rows = sample(5, dtype=dtype)
    rows[3] = 0
    whole = send([stage], rows)[0].dense()
    assert not whole[3].any() and whole.dtype == dtype
    for k in range(5):
        alone = send([stage], rows[[k]], own_draws([k], dtype))[0].dense()
        torch.testing.assert_close(alone[0], whole[k], atol=0, rtol=1e-6 if dtype == torch.float32 else 1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_a_block_at_a_time_is_all_at_once(stage, clients, dtype, monkeypatch):
    rows = sample(clients, 203, dtype)
    rows[0, 200] = 10.0  # the unit comes from the last block
    flight, way = send([stage], rows)
    monkeypatch.setattr(draws, "BLOCK", 20)
    other, theirs = send([stage], rows)
    assert torch.equal(flight.values, other.values) and torch.equal(flight.dense(), other.dense())
    assert all(torch.equal(value, theirs.kept[name]) for name, value in way.kept.items())


def test_what_goes_in_stays_as_it_is():
    for stage in STAGES:
        rows = sample()
        errors = {"error-delta": sample().flip(0)}
        send([stage], rows, kept=dict(errors))
        assert torch.equal(rows, sample()) and torch.equal(errors["error-delta"], sample().flip(0))


def test_of_equal_entries_the_first_travel():
    # the largest comes last: places are ascending all the same
    x = torch.tensor([[0.0, 2.0, -2.0, 1.0, 2.0, 0.0], [0.0] * 6, [-1.0] * 6, [0.0, 2.0, 0.0, 2.0, 2.0, 3.0]])
    for dtype in (torch.float32, torch.float64):
        assert send([TopK(1 / 3)], x.to(dtype))[0].at.tolist() == [[1, 2], [0, 1], [0, 1], [1, 5]]


def test_all_draw_the_same_places_and_others_in_the_next_exchange():
    stage, rows = RandomK(0.1), sample()
    at = send([stage], rows)[0].at
    assert (at == at[0]).all() and (at.diff(dim=1) > 0).all()
    assert torch.equal(send([stage], rows[:1])[0].at[0], at[0])
    way = Way({"delta": Flight.of(rows), "control": Flight.of(rows)}, own_draws(range(3)), common)
    stage.client(way)
    assert not torch.equal(way.flights["control"].at, way.flights["delta"].at)


def test_a_unit_common_to_all():
    flight, _ = send([Quantise(4, limit=0.7)], sample())
    assert flight.form.unit == "common" and flight.unit == 0.7 / 7
    assert float(flight.dense().abs().max()) == pytest.approx(0.7)


def test_kept_entries_are_quantised():
    rows = sample()
    flight, _ = send([TopK(0.1), Quantise(8)], rows)
    plain, _ = send([TopK(0.1)], rows)
    assert flight.values.shape == (3, 20) and torch.equal(flight.at, plain.at)
    assert 0 < float((flight.dense() - plain.dense()).abs().max()) < float(rows.abs().max()) / 127
    assert flight.form.bytes == 20 + 20 + 8  # codes, places of 8 bits, a unit of float64


# ---- bytes


@pytest.mark.parametrize(
    ("stages", "bytes"),
    [
        ([Quantise(8)], 1000 + 4), ([Quantise(3)], 375 + 4), ([Quantise(8, 0.1)], 1000), ([QSGD(127)], 1000 + 4),
        ([QSGD(4)], 500 + 4), ([QSGD(1)], 250 + 4), ([TernGrad()], 250 + 4), ([Half()], 2000), ([BFloat()], 2000),
        ([TopK(0.01)], 40 + 13), ([TopK(0.5)], 2000 + 125), ([RandomK(0.01)], 40), ([STC(0.01)], 2 + 13 + 4),
        ([TopK(0.01), Quantise(4)], 5 + 13 + 4), ([RandomK(0.01), Half()], 20),
    ],
    ids=lambda value: ",".join(map(str, value)) if isinstance(value, list) else None,
)  # fmt: skip
def test_bytes(stages, bytes):
    flight, _ = send(stages, sample(1, 1000, torch.float32))
    assert flight.form.bytes == bytes
    form = Flight.of(sample(1, 1000, torch.float32)).form
    for stage in stages:
        form = stage.form(form)
    assert form == flight.form


# ---- orders and settings


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("quantise:8,qsgd:4", "qsgd:4: quantise:8 comes before it and settles how numbers travel"),
        ("half,bfloat", "bfloat: half comes before it"),
        ("stc:0.1,quantise", "quantise:8: stc:0.1 comes before it"),
        ("quantise:4,topk:0.1", "topk:0.1: it comes after quantise:4, which makes codes of numbers: put it before"),
        ("half,clip:1.0", "clip:1.0: it comes after half"),
        ("quantise:8:0.1,clip:1.0", "clip:1.0: it comes after quantise:8:0.1"),
        ("topk:0.1,randomk:0.1", "randomk:0.1: topk:0.1 comes before it and chooses what travels"),
        ("quantise:1", "bits must lie in [2, 16]"),
        ("quantise:8:0", "limit must be a number above 0"),
        ("quantise:8:none:up", "rounding must be"),
        ("topk:0", "share must lie in (0, 1]"),
        ("topk:1.5", "share must lie in (0, 1]"),
        ([{"kind": "qsgd", "levels": 2.5}], "levels must be a whole number"),
        ([{"kind": "stc", "feedback": 1}], "feedback must be true or false"),
    ],
)
def test_refused(given, words):
    with pytest.raises(UnalikeError) as error:
        Channel(parse(given), ua.FedAvg(), TASK)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_fields_that_differ_do_not_meet():
    stages = parse({"delta": "topk:0.1,quantise:8", "control": "quantise:4"})
    channel = Channel(stages, ua.Scaffold(), TASK)
    assert channel.forms(["delta", "control"])["control"].bits == 4
    with pytest.raises(UnalikeError, match="leave one of them out"):
        Channel([*stages, Half()], ua.Scaffold(), TASK)


@pytest.mark.parametrize("stage", [*STAGES, TopK(0.1, False), Quantise(4, 0.5, "nearest"), Clip(2.0)], ids=str)
def test_as_text_and_back(stage):
    assert parse(str(stage)) == (stage,)
    table = {"kind": stage.name, **{f.name: getattr(stage, f.name) for f in dc.fields(stage) if f.name != "fields"}}
    assert parse([table]) == (stage,)
