"""The stage that leaves the server sums, in simulation: exact sums of codes, everything inside, the rest refused."""

import numpy as np
import pytest
import torch
from small import federation, model, refused, run

import unalike as ua
from unalike.channel import Channel, SecureSum, acting
from unalike.channel.channel import shared_draws
from unalike.channel.stage import Way
from unalike.channel.summing import Summing, grouped
from unalike.client import data_sizes
from unalike.contract import Field
from unalike.nn.task import Task
from unalike.run.sampling import Bernoulli, Listed

DATA = federation(sizes=(8, 4, 12, 10))


def summed(method=None, channel="secure-sum", **changes):
    return run(method, data=DATA, rounds=2, clients_per_round=1.0, channel=channel, **changes)


def apart(one, other):
    """Return the largest difference of two runs' models."""
    pairs = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("engine", ["sequential", "batched", "workers", "loopback"])
def test_engines_have_the_same_bits_as_codes_added_in_the_clear(engine):
    """The server's sum is the unit times the sum of whole numbers, which no order of clients changes."""
    parts = []

    class Listen(ua.Callback):
        def on_reply(self, run, outcome):
            parts.append({name: total.clone() for name, total in outcome.summed.items()})

    done = summed(ua.FedAvg(weights="uniform"), "quantise:8:0.1,secure-sum", engine=engine, callbacks=[Listen()])
    assert all(part["delta"].dtype == torch.int64 for part in parts)
    plain = summed(ua.FedAvg(weights="uniform"), "quantise:8:0.1,secure-sum")
    assert apart(done, plain) <= (0 if engine in ("sequential", "loopback") else 1e-6)


def test_few_neighbours_have_the_same_bits():
    """Ten clients on a ring, each with the next two on either side, of which two open."""
    given = {"data": federation(sizes=[5] * 10), "clients_per_round": 1.0, "channel": "secure-sum:0.4:4"}
    done = run(ua.FedAvg(), engine="loopback", rounds=2, **given)
    assert apart(done, run(ua.FedAvg(), engine="sequential", rounds=2, **given)) == 0
    assert (SecureSum(threshold=0.4, neighbours=4).degree(10), SecureSum(threshold=0.4).opening(10)) == (4, 4)


def test_codes_are_those_that_travel_in_the_open():
    """The same run without the secure sum adds the same codes as floats."""
    method, channel = ua.FedAvg(weights="uniform"), "quantise:8:0.1:nearest"
    assert apart(summed(method, channel), summed(method, f"{channel},secure-sum")) < 1e-6


SOME = {
    "fedavg": ua.FedAvg(), "scaffold": ua.Scaffold(), "feddc": ua.FedDC(), "fedavgm": ua.METHODS["fedavgm"](),
    "fedadam": ua.METHODS["fedadam"](), "fednova": ua.FedNova(), "rfedavg-plus": ua.RFedAvgPlus(),
    "ditto": ua.METHODS["ditto"](),
}  # fmt: skip


@pytest.mark.parametrize("name", SOME)
def test_methods_run_as_in_the_open(name):
    done, plain = summed(SOME[name]), summed(SOME[name], None)
    assert apart(done, plain) < 1e-5
    for mine, theirs in zip(done.history, plain.history, strict=True):
        assert mine["train_loss"] == pytest.approx(theirs["train_loss"], abs=1e-6)


@pytest.mark.parametrize("name", ua.METHODS)
def test_every_method_is_taken_or_refused_by_the_field_that_it_reads(name):
    """By its declaration, without a run."""
    method = ua.METHODS[name]()
    fields = {n: f.read for n, f in method.sends.items()}
    single = [n for n, read in fields.items() if read in ("each", "peers")]
    if method.pooled or not any(read != "sealed" for read in fields.values()):
        with refused(r"pools all data|sends the server nothing"):
            acting([SecureSum()], method)
    elif single:
        with refused(f"reads '{single[0]}' of every single client"):
            acting([SecureSum()], method)
    else:
        assert acting([SecureSum()], method) == [tuple(n for n, read in fields.items() if read == "sum")]


def test_statistics_of_batch_norm_are_inside():
    done, plain = (summed(ua.FedAvg(), channel, module=model(batch_norm=True)) for channel in ("secure-sum", None))
    assert apart(done, plain) < 1e-5
    assert not np.isclose(done.model.state_dict()["1.running_mean"].sum(), 0)


def test_loss_and_sizes_are_told_as_sums_alone():
    seen = []

    class Listen(ua.Callback):
        def on_reply(self, run, outcome):
            seen.append(outcome)

    summed(engine="loopback", callbacks=[Listen()])
    assert [len(outcome.ids) for outcome in seen] == [4, 4]  # one outcome for everybody
    assert all(np.isnan(outcome.loss).all() and not outcome.up for outcome in seen)


@pytest.mark.parametrize(
    ("channel", "words"),
    [
        ("topk:0.1,secure-sum", "entries of each client's own choice"),
        ("quantise:8,secure-sum", "a unit of each client's own"),
        ("secure-sum,clip:1.0", "must come before"),
        ("secure-sum@delta", "on all fields"),
        ("secure-sum,secure-sum", "one of them is enough"),
    ],
)
def test_orders_without_meaning_are_refused(channel, words):
    with refused(words):
        summed(channel=channel)


def test_a_number_beyond_the_limit_is_an_error_not_another_number():
    with refused("'delta' goes to .*, beyond 1e-06: give secure-sum a larger"):
        summed(channel="secure-sum:limit=1e-6")


def begun(**changes):
    """Return a run that has done no round."""
    return run(data=DATA, rounds=0, **changes)


@pytest.mark.parametrize("stage", ["secure-sum", "paillier:1024", "ckks"])
def test_a_run_whose_sums_would_all_be_void_does_not_begin(stage):
    for few in (2, Listed(((0, 1),))):
        with refused("2 clients take part, and a sum of fewer than 3"):
            begun(clients_per_round=few, channel=stage)
    with refused("4 clients take part, and a sum of fewer than 5"):
        begun(clients_per_round=Bernoulli(1.0), channel=f"{stage}:least=5")
    for enough in (3, Bernoulli(0.1), Listed(((0, 1), (1, 2, 3)))):
        begun(clients_per_round=enough, channel=stage)


def test_a_sum_of_too_few_is_void():
    with refused("2 clients take part, and a sum of fewer than 3"):
        run(data=DATA, rounds=2, clients_per_round=Listed(((0, 1, 2), (1, 2))), channel="secure-sum")


def test_a_diverged_client_is_noticed_before_codes_hide_it():
    with pytest.raises(ua.Diverged, match="a client became NaN or infinite"):
        summed(local=ua.LocalTraining(epochs=1, batch_size=4, lr=1e42))


def test_numbers_that_no_code_can_hold_are_beyond_the_limit_too():
    """Beyond 2^63 units, where they would become another number."""
    with refused("'delta' goes to .*e.3., beyond 8192"):
        summed(local=ua.LocalTraining(epochs=1, batch_size=4, lr=1e38))


@pytest.mark.parametrize("kind", ["skellam", "discrete-gaussian"])
def test_a_sum_with_fewer_shares_of_noise_than_stated_is_void(kind):
    noise = f"clip:0.1,quantise:12:0.1,{kind}:1.0"
    method = ua.FedAvg(weights="uniform")
    done = summed(method, f"{noise}:4,secure-sum")
    assert apart(done, summed(method, f"{noise}:4")) < 1e-6  # the same draws, the same sum
    some = Listed(((0, 1, 2, 3), (0, 1, 3)))
    with refused("Round 2: 3 clients' shares .* states 4: the sum is void"):
        run(method, data=DATA, rounds=2, clients_per_round=some, channel=f"{noise}:4,secure-sum")
    with refused("4 clients take part in a round, .* must have 5 shares"):
        begun(method=method, clients_per_round=1.0, channel=f"{noise}:5,secure-sum")
    begun(method=method, clients_per_round=1.0, channel=f"{noise}:5")  # the server adds the missing share


def test_an_adaptive_clip_s_count_is_inside_too():
    method, channel = ua.FedAvg(weights="uniform"), "adaptive-clip:0.1:std=0.6,noise:1.0"
    assert apart(summed(method, channel), summed(method, f"{channel},secure-sum")) < 1e-5


def test_places_that_all_draw_alike_add_up():
    method = ua.FedAvg(weights="uniform")
    assert apart(summed(method, "randomk:0.5"), summed(method, "randomk:0.5,secure-sum")) < 1e-6


def test_bytes_are_those_of_packed_codes_and_shares():
    done = summed(ua.FedAvg(), "quantise:8:0.1,secure-sum")
    size, ring = 39, 8 + 2
    numbers = -(-size * ring // 8) + -(-4 * 42 // 8)  # the model's; loss, trained, samples and count of 40 + 2 bits
    assert done.history[0]["bytes_up"] == 4 * (numbers + 64 + 3 * (126 + 33))


def test_who_can_open_what_is_said():
    assert SecureSum().promise(8) == (
        "5 of a client's 7 neighbours together with the server open what it sent; a server that lies needs more than 2 "
        "of them, and gets no sum of fewer than 2 others"
    )
    assert "lies opens it alone" in SecureSum(threshold=0.2).promise(11)
    assert "alone it may get a sum of 5, fewer than 6 (least)" in SecureSum(least=6).promise(8)
    assert "alone" not in SecureSum(least=6, agree=True).promise(8)
    seen = summed().who_sees()
    assert [row.words for row in seen if row.who == "together"] == [SecureSum().promise(4)]
    rows = [row.words for row in seen if row.who == "the server"]
    assert any("the sum over those who came" in words for words in rows) and not any("loss" in words for words in rows)


class Counts(ua.FedAvg):
    sends = {**ua.FedAvg.sends, "counts": Field((3,), weight="one")}


def test_whole_numbers_are_summed_as_they_are():
    task = Task(model(), device="cpu", dtype=torch.float32)
    task.check(*(part[:2] for part in DATA.train.of(0)), **data_sizes(DATA))
    channel = Channel([SecureSum()], Counts(), task)
    fields = {"counts": Counts.sends["counts"]}
    summing = Summing(channel, fields, Counts(), shared_draws(0, 0, 0), {"largest": 1.0}, 4)
    rows = torch.tensor([[1, 2, -3], [10, 20, 30]])
    slots = summing.slots({"counts": rows[0]})
    codes = summing.codes(slots, {"counts": rows}, Way({}, None, None), np.zeros(2), np.array([5, 6]))
    assert summing.decoded(slots[0], codes["counts"].sum(0)).tolist() == [11, 22, 27]
    assert codes[":samples"].sum() == 11 and codes[":count"].sum() == 2
    assert len(grouped(slots, 4)) == 1  # what a reply says about itself is in the same vector


class OwnRows(ua.FedAvg):
    """Sends each client a row that nobody reads."""

    def round(self, server, cohort):
        row = ua.PerClient(torch.arange(len(cohort.ids)))
        server.w = server.w + cohort.call(self.client, w=server.w, row=row).mean("delta")


class Declared(OwnRows):
    own_rows = ("row",)


def test_rows_for_single_clients_are_declared_or_refused():
    """Simulated as between machines, where clients refuse them."""
    with refused("OwnRows sends 'row' to each client for itself"):
        summed(OwnRows())
    assert torch.equal(summed(Declared(), engine="loopback").server.w, summed(engine="loopback").server.w)
