"""A federation whose clients bring raw features, without a network between them."""

import json

import numpy as np
import pytest
import torch
from test_network_messages import KEYS, Direct, tables
from test_secure_between import signing_keys

import unalike as ua
from unalike import config
from unalike.channel import Paillier, SecureSum
from unalike.cli import main
from unalike.client.preparing import SENDS
from unalike.crypto.common_key import CommonKey
from unalike.data.preparation import Recipe
from unalike.data.schema import Column, Schema
from unalike.engines.preparing import RUN
from unalike.messages import wire
from unalike.network import server
from unalike.network.client import Client
from unalike.network.join import read_client, read_schema
from unalike.network.limits import Limits
from unalike.network.policy import Policy
from unalike.network.preparing import beginning
from unalike.network.seal import Keyring

UNITS, SITES = np.array([1e-3, 1.0, 2000.0]), len(KEYS)
RINGS = [None] * SITES  # the clients' signing keys, where `signed` gives them some


def raw(target=False):
    """Four clients with features in unlike units, cells missing, and tests of their own."""
    rng = np.random.default_rng(5)
    parts = []
    for k in range(SITES):
        x = (rng.normal(size=(20 + k, 3)) + 3) * UNITS
        y = x @ (1 / UNITS) * 10 if target else (x[:, 2] > 6000).astype(int)
        x[rng.random(x.shape) < 0.1] = np.nan
        parts.append((x, y))
    fed = ua.Federation.from_arrays(parts, test=parts[0]).split_clients(test=0.2)
    return fed.replace(recipe=Recipe.of(None, 3, target=target))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return signing_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def signed(pairs, monkeypatch):
    """Clients with real signing keys, known to the server, as sums under masks need them."""
    public = {name: file.read_bytes() for name, file in zip(KEYS, pairs, strict=True)}
    monkeypatch.setattr("test_prepared.KEYS", public)
    monkeypatch.setattr("test_prepared.RINGS", [Keyring(file.with_suffix(""), file.parent) for file in pairs])


def joined(fed, folder, common=None):
    def own(k):
        pair = lambda split: [fed.splits[split].of(k)]  # noqa: E731
        return ua.Federation.from_arrays(pair("train"), client_tests=pair("test"))

    rules = Policy.open(repeatable=True)
    return [Client(own(k), folder / str(k), rules, common=common, sealer=RINGS[k]) for k in range(SITES)]


@pytest.mark.parametrize("target", [False, True])
def test_raw_features_are_prepared_by_sums_and_the_run_is_the_simulations(target, tmp_path):
    fed, answers = raw(target), []

    def read(k, header, answer):
        if header["kind"] == "prepare":
            answers.append(wire.decode(answer))
        return answer

    link, settings = Direct(joined(fed, tmp_path), read), tables("scaffold", model={"name": "linear"})
    settings["model"].pop("hidden")
    real = server.run(settings, link, KEYS, test=fed.global_test, classes=fed.classes, recipe=fed.recipe, deadline=5.0)
    simulation = config.run({**settings, "run": {**settings["run"], "engine": "sequential"}}, federation=fed.prepared())
    assert real.data.preparation == simulation.data.preparation and real.data.preparation.indicators == (0, 1, 2)
    torch.testing.assert_close(real.server.w, simulation.server.w, rtol=1e-6, atol=1e-6)
    assert real.history[-1]["test_loss"] == pytest.approx(simulation.history[-1]["test_loss"], rel=1e-5)
    assert len(answers) == 2 * SITES  # and no other message of theirs speaks of features
    for header, sent in answers:
        assert set(header) == {"format", "kind", "version", "samples"} and set(sent) < set(SENDS)
    assert {header["kind"] for _, header in link.asked} == {"hello", "prepare", "plan", "request", "evaluate", "end"}


def test_a_client_that_is_started_anew_prepares_as_before(tmp_path):
    fed, settings = raw(), tables(model={"name": "linear"}, rounds=2)
    settings["model"].pop("hidden")
    link = Direct(joined(fed, tmp_path))

    def restart(k, header, answer):
        if header["kind"] == "request" and header["round"] == 0:
            link.people[k].close()
            link.people[k] = joined_one(fed, k, tmp_path)
        return answer

    link.meddle = restart
    real = server.run(settings, link, KEYS, classes=2, recipe="standard", deadline=5.0)
    simulation = config.run({**settings, "run": {**settings["run"], "engine": "sequential"}}, federation=fed.prepared())
    torch.testing.assert_close(real.server.w, simulation.server.w, rtol=1e-6, atol=1e-6)


def joined_one(fed, k, folder):
    pair = lambda split: [fed.splits[split].of(k)]  # noqa: E731
    own = ua.Federation.from_arrays(pair("train"), client_tests=pair("test"))
    return Client(own, folder / str(k), Policy.open(repeatable=True))


def test_missing_cells_without_preparation_are_refused(tmp_path):
    link, settings = Direct(joined(raw(), tmp_path)), tables()
    with pytest.raises(ua.UnalikeError, match=r"NaN or infinite.*prepare"):
        server.run(settings, link, KEYS, classes=2, deadline=5.0)


def test_a_run_that_prepares_features_does_not_go_on_without(tmp_path):
    """Its clients would go on training in other units, or be told to clean data that were good."""
    fed, settings = raw(), tables(rounds=1)
    settings["run"]["folder"] = str(tmp_path / "run")
    people, options = joined(fed, tmp_path), {"classes": 2, "deadline": 5.0}
    server.run(settings, Direct(people), KEYS, recipe=fed.recipe, **options)
    settings["run"]["rounds"] = 2
    with pytest.raises(ua.UnalikeError, match="began with features that were prepared: give --schema FILE, or --prep"):
        server.run(settings, Direct(people), KEYS, resume=True, **options)
    server.run(settings, Direct(people), KEYS, recipe=fed.recipe, resume=True, **options)


def test_a_recipe_for_other_features(tmp_path):
    with pytest.raises(ua.UnalikeError, match="prepares 5 features; samples of the clients are"):
        server.run(tables(), Direct(joined(raw(), tmp_path)), KEYS, recipe=Recipe.of(None, 5), deadline=5.0)


def test_what_was_done_to_the_features_is_kept_with_the_run(tmp_path):
    fed = raw().prepared()
    run = ua.simulate(ua.models.softmax_regression(6, 2), fed, ua.FedAvg(), rounds=1, folder=tmp_path / "run")
    kept = json.loads((tmp_path / "run" / "preparation.json").read_text())
    assert kept == {
        "schema": None,
        "preparation": json.loads(json.dumps(run.data.preparation.plain())),
        "label_names": None,
    }


TABLE = "age,sex,dose,outcome\n61,f,2000,ill\n,m,1500,well\n33,m,,well\n70,x,900,ill\n52,f,1200,well\n"


def schema(folder):
    found = Schema((Column("age"), Column("sex", "category", ("f", "m")), Column("dose")), "outcome", ("ill", "well"))
    (folder / "schema.json").write_text(json.dumps(found.plain()))
    return folder / "schema.json"


def test_clients_bring_tables_and_share_a_schema(tmp_path):
    people = []
    for k in range(SITES):
        lines = TABLE.splitlines()
        (tmp_path / f"{k}.csv").write_text("\n".join(lines[:1] + lines[1 + k % 2 :]) + "\n")
        own = read_client(tmp_path / f"{k}.csv", test=0.3, schema=schema(tmp_path))
        people.append(Client(own, tmp_path / str(k), Policy.open(repeatable=True)))
    shared = read_schema(tmp_path / "schema.json")
    settings = tables(model={"name": "linear"}, run={"folder": str(tmp_path / "run")})
    settings["model"].pop("hidden")
    run = server.run(settings, Direct(people), KEYS, recipe="standard", schema=shared, deadline=5.0)
    assert run.data.preparation.features == ["age", "sex=f", "sex=m", "dose", "age missing", "dose missing"]
    kept = json.loads((tmp_path / "run" / "preparation.json").read_text())
    assert kept["label_names"] == ["ill", "well"] and Schema.from_plain(kept["schema"]) == shared
    model = ua.load_model(tmp_path / "run" / "model.unalike")  # the server has no data that an export could be made of
    assert model.predict([{"age": 50, "sex": "f", "dose": None}]).labels[0] in ("ill", "well")


def test_tables_that_do_not_fit_a_schema(tmp_path):
    (tmp_path / "a.csv").write_text(TABLE)
    with pytest.raises(ua.UnalikeError, match="give --schema too"):
        read_client(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("age,sex,dose\n1,f,2\n")
    with pytest.raises(ua.UnalikeError, match="no column 'outcome'"):
        read_client(tmp_path / "b.csv", schema=schema(tmp_path))
    (tmp_path / "no.json").write_text("[1, 2]")
    for file, words in (("no.json", "is no schema"), ("nothing.json", "cannot be read")):
        with pytest.raises(ua.UnalikeError, match=words):
            read_schema(tmp_path / file)


OTHERS = {
    "column 'age' is in one of them only": lambda s: s.columns[1:],
    "column 'dose' is a number in one and a date in the other": lambda s: (*s.columns[:2], Column("dose", "date")),
    "column 'sex' has other categories, or in another order: 'x'": lambda s: (
        s.columns[0],
        Column("sex", "category", ("f", "m", "x")),
        s.columns[2],
    ),
    "their columns are in another order, from 'age' on": lambda s: (s.columns[1], s.columns[0], s.columns[2]),
}


@pytest.mark.parametrize("difference", OTHERS)
def test_a_federation_of_another_schema_is_told_nothing(difference, tmp_path):
    (tmp_path / "a.csv").write_text(TABLE)
    own = read_client(tmp_path / "a.csv", schema=schema(tmp_path))
    here = Client(own, tmp_path / "state", Policy.open())
    theirs = Schema(OTHERS[difference](own.schema), "outcome", ("ill", "well"))
    hello = {"kind": "hello", "version": ua.__version__}
    header, _ = wire.decode(here.answer([wire.encode({**hello, "schema": theirs.plain()}, {})]))
    assert difference in header["reason"] and "facts" not in header
    header, _ = wire.decode(here.answer([wire.encode({**hello, "schema": own.schema.plain()}, {})]))
    assert header["facts"]["sizes"]["train"] == 5


@pytest.mark.parametrize("plain", [[], {"columns": 1}, {"columns": [{"name": [], "kind": {}, "values": []}]}, "text"])
def test_a_schema_that_is_none(plain, tmp_path):
    (tmp_path / "a.csv").write_text(TABLE)
    here = Client(read_client(tmp_path / "a.csv", schema=schema(tmp_path)), tmp_path / "state")
    plain = {**plain, "label": "y", "label_names": None} if isinstance(plain, dict) else plain
    hello = wire.encode({"kind": "hello", "version": ua.__version__, "schema": plain}, {})
    assert wire.decode(here.answer([hello]))[0]["reason"] == "The server's schema is none."


def test_a_server_tells_its_schema(tmp_path):
    (tmp_path / "a.csv").write_text(TABLE)
    people = [Client(read_client(tmp_path / "a.csv", schema=schema(tmp_path)), tmp_path / str(k)) for k in range(SITES)]
    theirs = Schema((Column("age"), Column("dose")), "outcome", ("ill", "well"))
    with pytest.raises(ua.UnalikeError, match="site-0: This client's schema is not the federation's: column 'sex'"):
        server.run(tables(), Direct(people), KEYS, recipe="standard", schema=theirs, deadline=5.0)


def test_words_that_the_schema_does_not_have(tmp_path):
    (tmp_path / "a.csv").write_text(TABLE)
    with pytest.raises(ua.UnalikeError, match=r"column 'sex' of .* has 'x' in line 5"):
        read_client(tmp_path / "a.csv", schema=schema(tmp_path), unseen="refuse")
    for column, cell, word in (("dose", "1500", "much"), ("age", "61", "old")):
        (tmp_path / "b.csv").write_text(TABLE.replace(cell, word))
        with pytest.raises(ua.UnalikeError, match=column):
            read_client(tmp_path / "b.csv", schema=schema(tmp_path))
    (tmp_path / "c.csv").write_text(TABLE.replace("dose", "amount"))
    with pytest.raises(ua.UnalikeError, match="'dose'"):
        read_client(tmp_path / "c.csv", schema=schema(tmp_path))


# ---------------------------------------------------------------- hidden sums


def hidden_run(link, fed, channel="secure-sum", said=None, **options):
    settings = tables("scaffold", model={"name": "linear"}, rounds=1, run={"channel": channel})
    settings["model"].pop("hidden")
    say = (said if said is not None else []).append
    return server.run(settings, link, KEYS, classes=fed.classes, recipe=fed.recipe, deadline=5.0, say=say, **options)


def test_where_the_channel_hides_replies_these_sums_are_hidden_too(tmp_path, signed, capsys):
    fed, answers, said = raw(), [], []

    def read(k, header, answer):
        if header["kind"] == "prepare" and header["stage"] == "sums":
            answers.append(wire.decode(answer))
        return answer

    people, log = joined(fed, tmp_path), []
    people[0].say = log.append
    real = hidden_run(Direct(people, read), fed, said=said)
    assert [line for line in log if "opened" in line] == [
        *["features: opened the sum of 4 clients, 0 lost"] * 2,
        "round 1: opened the sum of 4 clients, 0 lost",
    ]
    assert real.data.preparation == fed.prepared().preparation
    assert said == ["features prepared from sums over 4 clients, by secure-sum"]
    assert len(answers) == 2 * SITES and all(name.startswith("sum:") for _, sent in answers for name in sent)
    assert main(["audit", str(tmp_path / "0")]) == 0
    assert "preparing features by hidden sums: " in capsys.readouterr().out


def strict(fed, folder, *require):
    people = joined(fed, folder)
    people[1].close()
    pair = lambda split: [fed.splits[split].of(1)]  # noqa: E731
    own = ua.Federation.from_arrays(pair("train"), client_tests=pair("test"))
    people[1] = Client(own, folder / "strict", Policy.open(repeatable=True, require=require), sealer=RINGS[1])
    return people


def test_a_client_that_wants_secure_sums_gives_none_in_the_open(tmp_path, signed):
    fed = raw()
    with pytest.raises(ua.UnalikeError, match=r"sums of its features by secure-sum:0.6 only .* in the open"):
        hidden_run(Direct(strict(fed, tmp_path, "secure-sum:0.6")), fed, channel="none")
    with pytest.raises(ua.UnalikeError, match=r"by secure-sum:0.9 only .* by secure-sum:0.67"):
        hidden_run(Direct(strict(fed, tmp_path / "more", "secure-sum:0.9")), fed)
    hidden_run(Direct(strict(fed, tmp_path / "same", "secure-sum:0.6")), fed, said=[])


def lost_in(round, stage, who=(2,)):
    """Lose clients in a stage of one of the two sums."""

    def meddle(k, header, answer):
        kind = header.get("stage", header["kind"])
        return None if k in who and kind == stage and header.get("round", 0) == round else answer

    return meddle


def test_a_client_that_is_lost_before_anything_is_opened_is_done_without(tmp_path, signed):
    fed, said = raw(), []
    real = hidden_run(Direct(joined(fed, tmp_path), lost_in(0, "sums")), fed, said=said, limits=Limits(least=3))
    assert "features prepared from sums over 3 clients, by secure-sum" in said
    words = "site-2 does not take part now: it does not answer, and features are prepared from all clients' sums."
    assert words in said
    assert real.data.preparation != fed.prepared().preparation


def test_a_client_that_keeps_the_features_from_being_prepared_is_named(tmp_path, signed):
    with pytest.raises(ua.UnalikeError, match="The features cannot be prepared: site-2 does not answer, and features"):
        hidden_run(Direct(joined(raw(), tmp_path), lost_in(0, "sums")), raw())


def test_a_client_that_is_lost_after_the_first_sum_ends_the_preparation(tmp_path, signed):
    """Sums over the others would tell its own, by their difference."""
    fed = raw()
    with pytest.raises(ua.UnalikeError, match="The features cannot be prepared: 3 of 4 clients answered, and 4 must"):
        hidden_run(Direct(joined(fed, tmp_path), lost_in(1, "sums")), fed, limits=Limits(least=3))


def test_a_client_that_others_have_agreed_to_a_sum_with_is_not_done_without(tmp_path):
    fed, people = raw(), joined(raw(), tmp_path, CommonKey.new("ckks-symmetric"))
    words = "The features cannot be prepared: 2 of the 4 clients in the sum have agreed to it, and 3 must"
    with pytest.raises(ua.UnalikeError, match=words):
        hidden_run(Direct(people, lost_in(0, "vote", (1, 2))), fed, "ckks:symmetric", limits=Limits(least=3))
    real = hidden_run(Direct(people), fed, "ckks:symmetric")  # a sum over the same clients they agree to
    assert real.data.preparation == fed.prepared().preparation


def begin(person, stage, number):
    """Tell a client its number and how its sums are hidden."""
    return wire.decode(person.answer((wire.encode(beginning(stage, [number])[number], {}),)))[0]


def test_a_beginning_that_fails_or_a_new_number_makes_a_client_forget_nothing(tmp_path):
    person = joined(raw(), tmp_path)[0]
    assert begin(person, SecureSum(), 0)["kind"] == "reply"
    person._secures[RUN]._sums[0, 0] = {frozenset({0, 1, 2, 3})}
    assert "have a common key" in begin(person, Paillier(), 0)["reason"]
    assert begin(person, SecureSum(), 5)["kind"] == "reply"
    assert person._secures[RUN]._sums == {(0, 0): {frozenset({0, 1, 2, 3})}}


def test_the_name_of_the_preparation_is_no_run_s(tmp_path):
    person = joined(raw(), tmp_path)[0]
    begin(person, SecureSum(), 0)
    answer = person.answer((wire.encode({"kind": "plan", "run": RUN, "plan": {}}, {}),))
    assert "no run's name" in wire.decode(answer)[0]["reason"]


@pytest.mark.parametrize("other", [(1, SecureSum(), 0), (0, SecureSum(least=4), 0), (0, SecureSum(), 50)])
def test_a_second_plan_of_a_run_does_not_change_the_rules_of_its_sums(other, tmp_path):
    person = joined(raw(), tmp_path)[0]
    first = person._hiding("0123456789abcdef", 0, SecureSum())
    assert person._hiding("0123456789abcdef", 0, SecureSum()) is first
    with pytest.raises(ua.UnalikeError, match="A second plan of run 0123456789abcdef has another"):
        person._hiding("0123456789abcdef", *other)


def test_hidden_sums_without_a_beginning_are_refused(tmp_path):
    person = joined(raw(), tmp_path)[0]

    def told(**header):
        message = {"kind": "prepare", "version": ua.__version__, **header}
        return wire.decode(person.answer((wire.encode(message, {}), wire.encode({}, {}))))[0]["reason"]

    assert "was not told how sums are hidden" in told(stage="sums", recipe=raw().recipe.plain(), round=0)
    table = {"kind": "secure-sum"}
    for wrong in ({"channel": [table]}, {"channel": [], "client": 0}, {"channel": [{"kind": "half"}], "client": 0}):
        assert "does not say how sums are hidden" in told(stage="begin", **wrong)
    assert "There is no stage" in told(stage="begin", channel=[{"kind": "none such"}], client=0)
