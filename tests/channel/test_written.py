"""Channels as users write them: texts, tables, lists, stages of one's own; and on which fields a stage acts."""

import dataclasses as dc

import pytest
from small import LOCAL, federation, model

import unalike as ua
from unalike.channel import STAGES, acting, as_table, as_text, parse
from unalike.channel.stages import Clip, Half, Quantise, TopK


@pytest.mark.parametrize(
    ("given", "stages"),
    [
        ("clip:1.0,topk:0.01", (Clip(1.0), TopK(0.01))),
        (" clip : 2 , topk:0.1:false ", (Clip(2.0), TopK(0.1, False))),
        ("topk:feedback=false", (TopK(feedback=False),)),
        ("topk:0.5:feedback=FALSE", (TopK(0.5, False),)),
        ("quantise:4:none:nearest", (Quantise(4, None, "nearest"),)),
        ("quantise:4:0.5", (Quantise(4, 0.5),)),
        ("clip:1@delta", (Clip(1.0, fields=("delta",)),)),
        ("half@delta+control", (Half(fields=("delta", "control")),)),
        ("Clip", (Clip(),)),
        ("none", ()),
        ("none", ()),
        (None, ()),
        ([], ()),
        (Clip(3.0), (Clip(3.0),)),
        (["clip:1.0", {"kind": "topk", "share": 0.1}, Half()], (Clip(), TopK(0.1), Half())),
        ({"delta": "clip:1.0", "control": [Half()]}, (Clip().on(["delta"]), Half().on(["control"]))),
    ],
)  # fmt: skip
def test_all_ways_to_write_a_channel(given, stages):
    assert parse(given) == stages


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("clipp:1", "There is no stage of a channel 'clipp'. Did you mean 'clip'?"),
        ("clip:x", "'clip:x' has norm='x', which cannot be: 'clip:norm:order'"),
        ("clip:1:2:3", "'clip:1:2:3' has 3 arguments: write at most 'clip:norm:order'"),
        ("clip:nrm=1", "There is no setting of the stage clip 'nrm'. Did you mean 'norm'?"),
        ("topk:0.1:maybe", "feedback='maybe'"),
        ("clip:-1", "clip: norm must be a number above 0"),
        ({"kind": "clip", "nrm": 1}, "There is no setting of the stage clip 'nrm'"),
        ({"kind": "clip", "norm": "1"}, "clip: norm must be a number; got '1'"),
        ({"kind": "clip", "norm": True}, "clip: norm must be a number; got True"),
        ({"kind": "clip", "fields": "delta"}, "clip: fields must be a list of texts"),
        ({"kind": 3}, "kind must be the name of a stage; got 3"),
        ("", "channel is empty: name its stages, such as clip:1.0, or write none"),
        (" , ", "channel is empty"),
        (3.5, "channel must be stages, such as 'clip:1.0,topk:0.01'; got 3.5"),
    ],
)
def test_mistakes_are_one_line(given, line):
    with pytest.raises(ua.UnalikeError) as error:
        parse(given)
    assert line in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_reads_its_own_text_and_table(name):
    stage = STAGES[name]()
    assert parse(str(stage)) == (stage,)
    on = stage.on(["delta", "control"])
    assert parse(str(on)) == (on,)
    table = {"kind": name, **{f.name: getattr(stage, f.name) for f in stage.arguments()}, "fields": ["delta"]}
    assert as_table(as_text(table)) == table and parse(table) == parse(as_text(table)) == (stage.on(["delta"]),)


def test_fields_that_stages_act_on():
    assert acting(parse("clip:1.0,topk:0.1"), ua.Scaffold()) == [("delta", "control")] * 2
    assert acting(parse("topk:0.1@control"), ua.Scaffold()) == [("control",)]
    assert acting(parse("clip:1.0"), ua.FD()) == [("total", "share")]  # a clip is over all that is sent


@pytest.mark.parametrize(
    ("channel", "method", "line"),
    [
        ("topk:0.1", ua.FD(), "topk:0.1: FD sends total and share, nothing of the model's size: name the fields"),
        ("clip:1.0", ua.LocalOnly(), "channel: clip:1.0: LocalOnly sends the server nothing: leave the channel out"),
        ("clip:1.0", ua.DefKT(), "DefKT sends the server nothing"),
        ("clip:1.0", ua.Centralized(), "Centralized pools all data: there are no replies"),
        ("clip:1.0@delt", ua.FedAvg(), "There is no field for clip:1.0@delt 'delt'. Did you mean 'delta'?"),
    ],
)  # fmt: skip
def test_a_channel_that_would_do_nothing_is_refused(channel, method, line):
    with pytest.raises(ua.UnalikeError) as error:
        acting(parse(channel), method)
    assert line in str(error.value)


def test_what_a_channel_saves():
    channel = simulated("topk:0.1", method=ua.Scaffold(), rounds=0).channel
    each = 4 * 39 - (4 * 4 + 3)  # of 39 numbers 4 are sent, with 6 bits for the place of each
    assert channel.sizes["delta"] == 39 and channel.saved(["delta"]) == each
    assert channel.saved(["delta", "control"]) == 2 * each
    assert simulated("clip:1.0", rounds=0).channel.saved(["delta"]) == 0


@dc.dataclass(frozen=True)
class Damp(ua.channel.Stage):
    """Everything times a factor."""

    factor: float = ua.knob(0.5, "what it is multiplied by", least=0)

    def one(self, flight, name, way):
        return dc.replace(flight, values=flight.values * self.factor)


def simulated(channel, method=None, **changes):
    given = {"rounds": 2, "local": LOCAL, "engine": "sequential", **changes}
    return ua.simulate(model(), federation(), method or ua.FedAvg(), channel=channel, **given)


def test_a_stage_of_ones_own():
    assert Damp.name == "damp" and str(Damp(0.25)) == "damp:0.25"
    still, plain = simulated([Damp(0.0)]), simulated([])
    assert (still.server.w == still.task.start).all() and not (plain.server.w == still.server.w).all()
    assert "bytes_up_plain" not in plain.history[0] and "bytes_up_plain" not in plain.summary()
    assert still.history[0]["bytes_up_plain"] == still.history[0]["bytes_up"] == plain.history[0]["bytes_up"]
    assert still.summary()["bytes_up_plain"] == 2 * plain.history[0]["bytes_up"]
    with pytest.raises(ua.UnalikeError, match="damp: factor must be a number of at least 0; got -1"):
        Damp(-1)


def test_bytes_with_and_without(tmp_path):
    done, plain = simulated("topk:0.1"), simulated(())
    assert [line["bytes_up_plain"] for line in done.history] == [line["bytes_up"] for line in plain.history]
    assert done.history[0]["bytes_up"] == 6 * (4 * 4 + 3)


def test_a_run_that_goes_on_has_the_same_channel(tmp_path):
    simulated("topk:0.1", folder=tmp_path / "run")
    for other in ("topk:0.2", "none", "topk:0.1@delta", "topk:0.1,half"):
        with pytest.raises(ua.UnalikeError, match=r"holds another run: there channel\.stages is"):
            simulated(other, folder=tmp_path / "run", resume=True, rounds=3)
    assert simulated([TopK(0.1)], folder=tmp_path / "run", resume=True, rounds=3).rounds_done == 3
