"""DP-SGD in a client's own steps: the same on every engine, what it is worth, and what it would not cover."""

import math

import numpy as np
import pytest
import small
import torch
from torch import nn

import unalike as ua
from unalike.channel.accountant import epsilon_of_mu
from unalike.client.sample_privacy import passes, private_gradient
from unalike.errors import UnalikeError

ENGINES = ("sequential", "batched", "loopback")


def local(**changes):
    return ua.LocalTraining(**{"epochs": 1, "batch_size": 4, "lr": 0.1, **changes})


def run(method=None, engine="sequential", dtype="float64", rounds=2, **changes):
    module = changes.pop("module", None)
    return small.run(method, module=module, engine=engine, dtype=dtype, rounds=rounds, local=local(**changes))


class Given:
    """A batch of given gradients, the last of which only fills it."""

    weights = torch.tensor([0.5, 0.5, 0.0])

    def gradients(self, vector):
        return torch.tensor([[3.0, 4.0], [0.3, 0.4], [100.0, 100.0]])

    def normal(self, purpose, shape):
        return torch.tensor([1.0, -1.0])


def test_gradients_are_clipped_one_by_one_and_the_sum_has_the_noise():
    """(3, 4) is cut to (0.6, 0.8), (0.3, 0.4) stays; noise of 2 · 1 on the sum is 1 on the mean of two."""
    found = private_gradient(Given(), torch.zeros(2), local(sample_clip=1.0, sample_noise=2.0))
    assert found.tolist() == pytest.approx([0.45 + 1.0, 0.6 - 1.0])


@pytest.mark.parametrize("engine", ENGINES)
def test_with_a_long_clip_and_no_noise_it_is_training(engine):
    plain = small.run(dtype="float64", rounds=2, local=local())
    assert torch.allclose(run(engine=engine, sample_clip=1e6).server.w, plain.server.w, rtol=0, atol=1e-14)


@pytest.mark.parametrize("method", [ua.FedAvg(), ua.Scaffold(), ua.FedDyn()], ids=lambda m: m.name)
def test_engines_agree(method):
    changes = {"sample_clip": 0.3, "sample_noise": 0.5, "momentum": 0.5}
    one, *others = (run(method, engine, **changes).server.w for engine in ENGINES)
    assert all(torch.allclose(one, other, rtol=0, atol=1e-13) for other in others)
    assert not torch.allclose(one, run(method, sample_clip=0.3, momentum=0.5).server.w, atol=1e-3)


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_a_step_has_the_stated_noise(engine):
    torch.manual_seed(3)
    wide = nn.Sequential(nn.Linear(5, 1200), nn.Tanh(), nn.Linear(1200, 3))
    both = [
        small.run(module=wide, dtype="float64", rounds=1, engine=engine, clients_per_round=[[1]], local=one)
        for one in (local(sample_clip=0.1, sample_noise=z, lr=0.5) for z in (3.0, 0.0))
    ]
    noise = (both[0].server.w - both[1].server.w).double()  # one step of 4 samples: 0.5 · 3 · 0.1 / 4
    assert float(noise.square().mean().sqrt()) == pytest.approx(0.0375, rel=6 / math.sqrt(2 * noise.numel()))


def test_each_pass_is_one_release_of_each_sample():
    found = run(rounds=3, epochs=2, sample_clip=1.0, sample_noise=2.0)
    expected = [epsilon_of_mu(math.sqrt(2 * t) / 2.0, 1e-5) for t in (1, 2, 3)]
    assert [line["sample_epsilon"] for line in found.history] == pytest.approx(expected)
    assert all(line["train_loss"] is None for line in found.history)
    assert found.summary()["sample_guarantee"].endswith("(zero out one sample; exact)")
    assert run(rounds=1, sample_clip=1.0).history[0]["sample_epsilon"] is None  # a clip alone hides nothing


@pytest.mark.parametrize(
    "changes, most", [({"epochs": 3}, 3), ({"steps": 5}, 5), ({"epochs": 0.5}, 1), ({"steps": 2}, 2)]
)
def test_the_client_that_takes_most_passes(changes, most):
    """Sizes 8 and 2, batches of 4: a pass has two steps, or one."""
    assert passes(local(**{"epochs": None, **changes}), np.arange(2), np.array([8, 2]), 0).max() == most


def test_a_resumed_run_goes_on_counting(tmp_path):
    settings = {"local": local(sample_clip=1.0, sample_noise=2.0)}
    whole = small.run(rounds=3, **settings)
    small.run(rounds=1, folder=tmp_path / "a", **settings)
    parts = small.run(rounds=3, folder=tmp_path / "a", resume=True, **settings)
    assert torch.equal(parts.server.w, whole.server.w)
    assert small.timeless(parts.history) == small.timeless(whole.history)


@pytest.mark.parametrize("method", [ua.Moon(), ua.FedSAM(0.1), ua.QFedAvg(q=1.0), ua.IFCA(2)], ids=lambda m: m.name)
@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_other_looks_at_samples_are_refused(method, engine):
    with pytest.raises(UnalikeError, match="sample_clip covers plain training") as error:
        run(method, engine, sample_clip=1.0)
    assert "\n" not in str(error.value)


def test_what_has_no_meaning_is_refused():
    with pytest.raises(UnalikeError, match="sample_noise needs sample_clip"):
        local(sample_noise=1.0)
    with pytest.raises(UnalikeError, match="BatchNorm mixes the samples"):
        run(module=small.model(batch_norm=True), sample_clip=1.0)


# ---- every pass is counted, also those that a method asks for by itself

PRIVATE = local(sample_clip=1.0, sample_noise=5.0)
BOTH = pytest.mark.parametrize("engine", ["sequential", "batched"])


def public():
    draw = torch.Generator().manual_seed(1)
    rows = torch.randn(16, 5, generator=draw), torch.randint(0, 3, (16,), generator=draw)
    return small.federation().replace(public=rows)


def counted(found):
    """How many Gaussian releases of each sample were taken down."""
    return sum(row[-1] for row in found.server.values["_samples_spent"])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "method, made",
    [(ua.FedAvg(), 1), (ua.FedRep(head_epochs=50), 51), (ua.OneShot(epochs=50), 50), (ua.Reptile(steps=100), 100)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_passes_that_a_method_asks_for_are_counted(engine, method, made):
    """The smallest client has 4 samples, one batch: a hundred steps are a hundred passes."""
    found = small.run(method, local=PRIVATE, rounds=1, clients_per_round=1.0, engine=engine)
    assert counted(found) == made


@BOTH
def test_passes_of_the_set_up_are_counted(engine):
    found = small.run(ua.FedMD(warm_own=25), data=public(), local=PRIVATE, rounds=0, engine=engine)
    assert counted(found) == 25


@pytest.mark.parametrize("engine", ENGINES)
def test_a_channel_that_hides_replies_hides_no_pass(engine):
    settings = {"channel": "clip:1.0,noise:1.0", "clients_per_round": 1.0, "engine": engine}
    assert counted(small.run(ua.FedRep(head_epochs=3), local=PRIVATE, rounds=2, **settings)) == 8


class Asks(ua.Method):
    """A method that makes one request of its clients and sends what comes of it."""

    sends = {"sent": ua.Field("model", weight="one")}

    def __init__(self, **asked):
        self.asked = asked

    def client(self, me, s, m):
        return me.train(m.w, **self.asked).then(self.done, w=m.w)

    def done(self, me, s, m, theta, w):
        return {}, {"sent": theta - w}

    def round(self, server, cohort):
        server.w = server.w + cohort.call(self.client, w=server.w).mean("sent")


class Looks(Asks):
    """The mean of a split's samples."""

    sends = {"sent": ua.Field((5,), weight="one")}

    def client(self, me, s, m):
        return me.average(self.inputs, m.w, **self.asked).then(self.done, w=0.0)

    def inputs(self, batch):
        return batch.x

    def round(self, server, cohort):
        server.seen = cohort.call(self.client, w=server.w).mean("sent")


class Doubles(Asks):
    def client(self, me, s, m):
        return me.train(m.w, epochs=2 * me.local.epochs).then(self.done, w=m.w)


class ByValue(Asks):
    def client(self, me, s, m):
        return me.train(m.w, epochs=int(me.n)).then(self.done, w=m.w)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_runs_own_settings_are_seen_where_passes_are_counted(engine):
    how = local(epochs=3, sample_clip=1.0, sample_noise=5.0)
    assert counted(small.run(Doubles(), local=how, rounds=1, engine=engine)) == 6


@pytest.mark.parametrize("engine", ENGINES)
def test_passes_that_hang_on_a_clients_values_are_refused(engine):
    with pytest.raises(UnalikeError, match=r"sample_clip cannot count it|looks at the value of a tensor"):
        small.run(ByValue(), local=PRIVATE, rounds=1, engine=engine)


@BOTH
@pytest.mark.parametrize("asked", [{"sample_clip": None, "sample_noise": 0.0}, {"sample_noise": 0.1}], ids=str)
def test_a_training_cannot_change_the_noise(engine, asked):
    with pytest.raises(UnalikeError, match="is a setting of the run, by which privacy is counted"):
        small.run(Asks(**asked), local=PRIVATE, rounds=1, engine=engine)


@BOTH
@pytest.mark.parametrize("data", ["train", "test", "validation"])
def test_no_split_of_a_clients_own_is_looked_at(engine, data):
    fed = small.federation(validation=True)
    with pytest.raises(UnalikeError, match="sample_clip covers plain training"):
        small.run(Looks(data=data), data=fed, local=PRIVATE, rounds=1, engine=engine)


@BOTH
@pytest.mark.parametrize("asked", [{"data": "validation"}, {"data": ("train", "public")}], ids=str)
def test_no_other_split_is_trained_on(engine, asked):
    fed = small.federation(validation=True) if asked["data"] == "validation" else public()
    with pytest.raises(UnalikeError, match="sample_clip covers plain training"):
        small.run(Asks(**asked), data=fed, local=PRIVATE, rounds=1, engine=engine)


@BOTH
def test_averages_over_the_public_set_are_free(engine):
    found = small.run(Looks(data="public"), data=public(), local=PRIVATE, rounds=1, engine=engine)
    assert torch.allclose(found.server.seen, public().public[0].mean(0))
    assert counted(found) == 0


def nothing(batch):
    return 0.0 * batch.output.sum()


@BOTH
@pytest.mark.parametrize("asked", [{"own": 0.0, "loss": nothing}, {"own": 1.0}], ids=["own loss", "plain"])
def test_training_on_the_public_set_is_as_without_a_clip(engine, asked):
    given = {"data": public(), "rounds": 1, "clients_per_round": 1.0, "engine": engine}
    one, other = (small.run(Asks(data="public", **asked), local=how, **given) for how in (PRIVATE, local()))
    assert torch.equal(one.server.w, other.server.w)
    assert counted(one) == 0
