"""Who sees what: one table from a method's declarations, a channel's stages and a few facts."""

import dataclasses as dc

import pytest
import torch
from small import LOCAL, federation, model
from torch import nn

import unalike as ua
from unalike.channel import STAGES, Sees, Stage, parse, who_sees
from unalike.channel.who_sees import CLIENTS, MODEL, SERVER, WIRE
from unalike.methods import METHODS


def said(rows, who, of=None):
    return [row.words for row in rows if row.who == who and of in (None, row.of)]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_and_stage_has_words(name):
    method = METHODS[name]()
    rows = who_sees(method)
    assert all(row.who and row.of and row.words for row in rows)
    assert [*dict.fromkeys(row.who for row in rows)][-2:] == [WIRE, MODEL] and rows[0].who == SERVER
    for read, words in (("each", "by design"), ("peers", "by design"), ("sealed", "sealed for another client")):
        fields = [f for f in method.sends.values() if f.read == read]
        assert any(words in text for text in said(rows, SERVER)) or not fields


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_has_words(name):
    sees = STAGES[name]().sees
    assert sees.server and "does not say" not in sees.server


def test_fedavg_hides_nothing_without_a_channel():
    rows = who_sees(ua.FedAvg())
    assert said(rows, SERVER, "its change of the model") == [
        "each client's own, though the method needs the sum only: training samples can be rebuilt from it"
    ]
    assert "training loss" in said(rows, SERVER, "the clients")[0]
    assert said(rows, CLIENTS, "its change of the model") == ["nothing but what the sum does to the model"]
    assert "nothing bounds that here" in said(rows, MODEL, "what it tells")[0]
    assert said(rows, MODEL, "who holds it") == ["the server, and every client that it sends it to"]


def test_noise_in_local_steps_hides_samples_not_clients():
    words = said(who_sees(ua.FedAvg(), samples=True), SERVER, "its change of the model")[0]
    assert "rebuilt" not in words and "one sample" in words and "in common is not hidden" in words


def test_compression_is_called_no_privacy():
    rows = who_sees(ua.FedAvg(), parse("clip:2,quantise:8"), reply=(400, 104))
    assert (
        "hides nothing" in said(rows, SERVER, "quantise:8")[0] and "hides nothing" in said(rows, SERVER, "clip:2.0")[0]
    )
    assert "rebuilt" in said(rows, SERVER, "its change of the model")[0]
    assert said(rows, WIRE, "a reply") == ["104 bytes, 400 without the channel"]


@dc.dataclass(frozen=True)
class Masked(Stage):
    """Leaves the server the sum."""

    @property
    def sees(self):
        return Sees(server="the sum only", clients="nothing", wire="masks", shields=True)


class Noisy(Stage):
    private = True


def test_a_stage_brings_its_own_words():
    rows = who_sees(ua.FedAvg(), [Masked()])
    assert said(rows, SERVER, "its change of the model") == ["the sum only"] and not said(rows, SERVER, "masked")
    assert said(rows, CLIENTS, "masked") == ["nothing"] and said(rows, WIRE, "masked") == ["masks"]
    silent = who_sees(ua.FedAvg(), [Noisy()])
    assert said(silent, SERVER, "noisy") == ["a stage that does not say what it hides: it is taken to hide nothing"]
    sealed = who_sees(ua.DefKT(), [Masked()])
    assert "sealed for another client" in said(sealed, SERVER)[-1]


def test_noise_takes_the_losses_along_and_bounds_the_model():
    rows = who_sees(ua.FedAvg(), [Noisy()], real=True)
    assert "loss" not in said(rows, SERVER, "the clients")[0] and not said(rows, CLIENTS, "the clients")
    assert "as far as ε allows" in said(rows, MODEL, "what it tells")[0]


def test_between_machines_and_in_a_simulation():
    assert said(who_sees(ua.FedAvg(), real=True), WIRE) == ["TLS: sizes and times only"]
    assert "simulation" in said(who_sees(ua.FedAvg()), WIRE)[0]
    assert "seed" in said(who_sees(ua.FedAvg(), real=True), CLIENTS, "the clients")[0]
    assert not said(who_sees(ua.FedAvg()), CLIENTS, "the clients")


def test_of_a_run():
    given = {"rounds": 0, "local": LOCAL, "engine": "sequential"}
    rows = ua.simulate(model(batch_norm=True), federation(), ua.FedAvg(), channel="half", **given).who_sees()
    assert said(rows, SERVER, "BatchNorm's statistics") == ["each client's own, past the channel"]
    assert said(rows, WIRE, "a reply") == ["94 bytes, 188 without the channel"]
    assert said(rows, SERVER, "clients' scores") == [
        "what evaluation measures on each client's own samples: it goes past the channel"
    ]
    silent = ua.simulate(model(), federation(), ua.FedAvg(), evaluate_clients="none", **given).who_sees()
    assert not said(silent, SERVER, "clients' scores")
    alone = ua.simulate(model(), federation(), ua.DefKT(), **given).who_sees()
    assert said(alone, MODEL, "who holds it") == ["there is none for all: each client has its own"]
    assert not said(alone, SERVER, "BatchNorm's statistics") and not said(alone, WIRE, "a reply")
    pooled = ua.simulate(model(), federation(), ua.Centralized(), **given).who_sees()
    assert said(pooled, SERVER) == ["all of it: it is pooled in one place"]


class Replies(ua.Callback):
    """What the server gets of each client."""

    def on_reply(self, run, outcome):
        self.update = outcome.up["delta"][0]


@pytest.mark.parametrize("channel", ["none", "quantise:8", "half", "clip:0.1"])
def test_what_hides_nothing_hides_nothing(channel):
    """A client's only sample, after ten local steps, is read off its reply: a row of the first layer's change over the
    change of its bias."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(1, 64, generator=draw)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 20), nn.Tanh(), nn.Linear(20, 3))
    fed = ua.Federation.from_arrays([(x, torch.tensor([1]))], classes=3)
    seen = Replies()
    local = ua.LocalTraining(steps=10, batch_size=1, lr=0.1)
    ua.simulate(net, fed, ua.FedAvg(), rounds=1, local=local, channel=channel, callbacks=[seen], engine="sequential")
    rows, bias = seen.update[: 64 * 20].view(20, 64), seen.update[64 * 20 : 65 * 20]
    most = int(bias.abs().argmax())
    rebuilt = rows[most] / bias[most]
    assert float(torch.corrcoef(torch.stack([rebuilt, x[0]]))[0, 1]) > 0.99
    assert float((rebuilt - x[0]).abs().max()) < 0.05 * float(x.abs().max())
