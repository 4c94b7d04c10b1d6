"""Under a channel that protects a reply tells nothing of its client but its fields: no loss, no samples, no work."""

import numpy as np
import pytest
import torch
from small import federation, model
from test_network_messages import Direct, people, served, simulated, tables

import unalike as ua
from unalike import report
from unalike.channel import Channel
from unalike.contract.fields import LOSS
from unalike.messages import wire
from unalike.run.callbacks import Progress

__all__ = ["people"]  # a fixture
CLIP = {"channel": "clip:1.0"}


@pytest.fixture
def hides(monkeypatch):
    monkeypatch.setattr(Channel, "hidden", property(lambda self: True))


def replies(link_people, settings, change=lambda header, sent: None):
    """The run, the replies as they came, and what the server said."""
    seen, said = [], []

    def meddle(client, header, answer):
        answered, sent = wire.decode(answer)
        if header["kind"] != "request":
            return answer
        seen.append((dict(answered), dict(sent)))
        if client != 2:
            return answer
        change(answered, sent)
        answered.pop("format")
        return wire.encode(answered, sent)

    return served(settings, Direct(link_people, meddle), said), seen, said


def test_a_hidden_reply_tells_its_fields_only(people, hides):
    run, seen, said = replies(people, tables(rounds=2, run=CLIP))
    for header, sent in seen:
        assert not {"samples", "batches", "loss"} & header.keys() and LOSS not in sent
        assert {"round", "exchange", "trained", "run"} <= header.keys()
    assert len(seen) == 8 and not any("left out" in line for line in said)
    assert [line["train_loss"] for line in run.history] == [None, None]
    assert all(line["batches"] == 0 and line["test_loss"] > 0 for line in run.history)


def test_an_open_reply_tells_what_it_always_did(people):
    run, seen, _ = replies(people, tables(rounds=1, run=CLIP))
    assert [header["samples"] for header, _ in seen] == [8, 4, 12, 10]
    assert all(LOSS in sent and header["batches"] > 0 for header, sent in seen)
    assert run.history[0]["train_loss"] > 0 and run.history[0]["batches"] > 0


@pytest.mark.parametrize("hidden", ["samples", "batches", LOSS])
def test_a_reply_that_tells_more_is_left_out(people, hides, hidden):
    def tell(header, sent):
        if hidden == LOSS:
            sent[LOSS] = torch.tensor(1.0, dtype=torch.float64)
        else:
            header[hidden] = 12

    run, _, said = replies(people, tables(rounds=1, run=CLIP), tell)
    assert run.history[0]["lost"] == 1
    assert any(f"its reply tells {hidden!r}, which the run's channel hides" in line for line in said)


def test_a_reply_that_tells_less_counts_only_where_the_channel_hides(people):
    def hide(header, sent):
        del header["samples"]

    run, _, said = replies(people, tables(rounds=1, run=CLIP), hide)
    assert run.history[0]["lost"] == 1 and any("it has None samples now and had 12" in line for line in said)


def test_sample_counts_of_the_beginning_still_weigh(people, hides):
    """They are told at `hello`: the means are those of a simulation, by samples."""
    run, *_ = replies(people, tables(rounds=2, run={**CLIP, "seed": 3}))
    also = simulated(tables(rounds=2, run={**CLIP, "seed": 3}))
    torch.testing.assert_close(run.server.w, also.server.w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ["sequential", "batched", "loopback"])
def test_a_simulation_tells_as_little(hides, engine):
    heard = []

    class Reads(ua.FedAvg):
        def round(self, server, cohort):
            replies = cohort.call(self.client, w=server.w)
            heard.append(replies.losses())
            server.w = server.w + replies.mean("delta")

    local = ua.LocalTraining(epochs=1, batch_size=4, lr=0.1)
    run = ua.simulate(model(), federation(), Reads(), rounds=2, engine=engine, local=local, channel="clip:1.0")
    assert all(np.isnan(losses).all() and len(losses) for losses in heard)
    assert [(line["train_loss"], line["batches"]) for line in run.history] == [(None, 0)] * 2


def test_a_channel_that_protects_hides():
    for private in (False, True):
        fake = type("Fake", (Channel,), {"private": private, "stages": (), "__init__": lambda self: None})()
        assert fake.hidden is private


def test_divergence_is_still_found(hides):
    local = ua.LocalTraining(epochs=5, batch_size=4, lr=1e38)
    for engine in ("sequential", "batched", "loopback"):
        with pytest.raises(ua.Diverged, match="became NaN or infinite"):
            ua.simulate(model(), federation(), ua.FedAvg(), rounds=3, engine=engine, local=local, channel="clip:1.0")


def test_everything_that_shows_losses_does_without(hides, tmp_path, capsys):
    settings = tables(rounds=2, run={**CLIP, "folder": str(tmp_path / "run")})
    run = simulated(settings)
    progress = Progress()
    progress.on_start(run)
    progress.first = 0
    progress.on_round(run, run.history[-1])
    assert "Training loss" not in capsys.readouterr().err
    page = report.write(tmp_path / "run").read_text()
    assert "NaN" not in page and "nan" not in repr(run).lower()
    assert run.summary()["final"]["train_loss"] is None


@pytest.mark.parametrize("run", [{}, {"channel": "clip:1.0,noise:1.0"}], ids=["open", "hidden"])
def test_passes_of_noised_training_are_counted_between_machines(people, run):
    """No reply tells them: one for the body and three for the head, in each of two rounds."""
    noised = {"sample_clip": 1.0, "sample_noise": 5.0}
    settings = tables("fedrep", 2, run=run, local=noised, method={"head_epochs": 3})
    spent = served(settings, Direct(people)).server.values["_samples_spent"]
    assert spent == simulated(settings).server.values["_samples_spent"]
    assert [row[-1] for row in spent] == [8]
