"""A public set between server and clients, and clients' further splits, without a network between them."""

import json

import numpy as np
import pytest
import torch
from small import refused
from test_network_messages import (
    KEYS,
    ON_HALVES,
    ON_PUBLIC,
    Direct,
    changed,
    data,
    own,
    same_as_simulated,
    served,
    tables,
)

import unalike as ua
from unalike import config
from unalike.config import flags
from unalike.data.public import public_hash
from unalike.messages import wire
from unalike.network import one_machine, server
from unalike.network.client import Client
from unalike.network.join import read_client, read_shares, with_public
from unalike.network.policy import Policy


def public(rows=6, labels=True):
    rng = np.random.default_rng(3)
    x, y = torch.from_numpy(rng.normal(size=(rows, 5)).astype(np.float32)), torch.arange(rows) % 3
    return x, y if labels else None


def with_clients(folder, sets, split=False):
    fed, people = data(), []
    for k, pair in enumerate(sets):
        mine = own(fed, k).replace(classes=3, public=pair)
        mine = mine.named_splits(support=0.5) if split and k != 2 else mine
        people.append(Client(mine, folder / str(k), Policy.open(repeatable=True, allow_samples=True)))
    return people


@pytest.mark.parametrize("labels", [True, False])
def test_server_and_clients_have_the_same(labels, tmp_path):
    pair = public(labels=labels)
    people = with_clients(tmp_path, [pair] * 4)
    link = Direct(people)
    run = served(tables(run={"dtype": "float64"}), link, public=pair)
    assert run.data.public[0].dtype == torch.float64 and torch.equal(run.data.public[0], pair[0].double())
    [plan] = {header["plan"]["public"] for _, header in link.asked if header["kind"] == "plan"}
    assert plan == public_hash(pair)
    (node,) = people[1]._nodes.values()
    assert torch.equal(node.job.data.public[0], pair[0].double()) and (node.job.data.public[1] is None) != labels
    assert "setup_bytes_down" not in run.history[0]


@pytest.mark.parametrize("method", ON_PUBLIC)
def test_a_federation_computes_what_a_simulation_does(method, tmp_path):
    same_as_simulated(tables(method), Direct(with_clients(tmp_path, [public()] * 4)), public=public())


@pytest.mark.parametrize("method", ON_HALVES)
def test_clients_whose_samples_are_divided_compute_what_a_simulation_does(method, tmp_path):
    fed, settings = data().named_splits(support=0.5, query=0.5), tables(method)
    people = [Client(own(fed, k).replace(classes=3), tmp_path / str(k), Policy.open(repeatable=True)) for k in range(4)]
    real = served(settings, Direct(people))
    simulated = config.run({**settings, "run": {**settings["run"], "engine": "sequential"}}, federation=fed)
    torch.testing.assert_close(real.server.w, simulated.server.w, rtol=1e-6, atol=1e-6)
    assert real.history[-1]["clients_loss"] == pytest.approx(simulated.history[-1]["clients_loss"], rel=1e-5)


def test_a_run_without_one_is_what_it_always_was(tmp_path):
    link = Direct(people := with_clients(tmp_path, [None, public(), None, None]))
    served(tables(rounds=1), link)
    assert all("public" not in header["plan"] for _, header in link.asked if header["kind"] == "plan")
    (node,) = people[1]._nodes.values()
    assert node.job.data.public is None  # the run has none


LACKS = r"site-2: The run has a public set, and this client has none: give it the server's file \(--public\)\.$"
OTHER = r"site-2: The run's public set is not this client's: give both the same file \(--public\)\.$"


@pytest.mark.parametrize(
    "theirs, line", [(None, LACKS), (public(5), OTHER), (public(labels=False), OTHER)], ids=["none", "other", "labels"]
)
def test_a_client_without_it_is_refused_before_any_round(theirs, line, tmp_path):
    sets = [public(), public(), theirs, public()]
    link = Direct(with_clients(tmp_path / "a", sets))
    with refused(line):
        served(tables(), link, public=public())
    assert {header["kind"] for _, header in link.asked} == {"hello", "notice"}
    lying = lambda k, header, answer: (  # noqa: E731
        changed(answer, facts={**wire.decode(answer)[0]["facts"], "public": public_hash(public())})
        if header["kind"] == "hello"
        else answer
    )
    link, heard = Direct(with_clients(tmp_path / "b", sets), lying), []
    link.people[2].say = heard.append
    with refused(line):  # the client looks for itself too
        served(tables(), link, public=public())
    assert len(heard) == 1 and heard[0].startswith("refused: ")  # it is not told again what it said itself
    assert {header["kind"] for _, header in link.asked} == {"hello", "plan", "notice"}


def test_a_public_set_of_another_kind(tmp_path):
    pair = torch.zeros(4, 6), None
    with pytest.raises(ua.UnalikeError, match=r"public set has x float \[6\].*float \[5\]"):
        with_clients(tmp_path, [pair] * 4)
    nobody = with_clients(tmp_path / "b", [None] * 4)
    with refused("site-0: The run has a public set"):
        served(tables(), Direct(nobody), public=pair)


def test_public_labels_decide_the_classes_too(tmp_path):
    x, _ = public()
    pair = x, torch.tensor([0, 1, 2, 3, 4, 4])
    fed = data()
    people = [
        Client(own(fed, k).replace(classes=5, public=pair), tmp_path / str(k), Policy.open(repeatable=True))
        for k in range(4)
    ]
    run = server.run(tables(rounds=1), Direct(people), KEYS, deadline=5.0, public=pair)
    assert run.data.classes == 5


def test_further_splits_come_from_the_clients(tmp_path):
    people = with_clients(tmp_path, [None] * 4, split=True)
    run = served(tables(rounds=1), Direct(people))
    fed = data()
    halves = [-(-int(n) // 2) for n in fed.sizes]
    halves[2] = 0  # it has none
    assert run.data.splits["support"].sizes.tolist() == halves and list(run.data.further) == ["support"]


@pytest.mark.parametrize(
    "more",
    [{"two words": 1}, {"public": 1}, {"support": -1}, {"support": "1"}, {f"s{k}": 1 for k in range(64)}],
    ids=["name", "public", "below 0", "text", "too many"],
)
def test_splits_that_cannot_be(more, tmp_path):
    def meddle(k, header, answer):
        if header["kind"] != "hello":
            return answer
        facts = wire.decode(answer)[0]["facts"]
        return changed(answer, facts={**facts, "sizes": {**facts["sizes"], **more}})

    with refused("site-0 does not say properly"):
        served(tables(), Direct(with_clients(tmp_path, [None] * 4), meddle))


def test_a_plan_with_a_public_set_that_is_none(tmp_path):
    [client] = with_clients(tmp_path, [public()])
    plan = {
        "version": ua.__version__, "clients": 4, "client": 0, "classes": 3, "mean": 8.0, "tables": {}, "run": {},
        "files": {}, "preparation": None, "public": "../..",
    }  # fmt: skip
    answer, _ = wire.decode(client.answer((wire.encode({"kind": "plan", "run": "0" * 16, "plan": plan}, {}),)))
    assert answer["kind"] == "error" and answer["reason"] == "The plan's public is '../..', which cannot be."


# ---- files, and what a run says of itself


def test_files_of_clients_have_further_splits(tmp_path):
    fed = data().named_splits(support=0.5, query=0.5).replace(validation=data().train)
    one_machine.write_client(fed, 1, tmp_path / "one.safetensors")
    mine = read_client(tmp_path / "one.safetensors")
    assert list(mine.splits) == ["train", "validation", "test", "query", "support"]
    for name in fed.splits:
        assert torch.equal(mine.splits[name].x, fed.splits[name].of(1)[0])
    one_machine.write_public(public(), tmp_path / "public.safetensors")
    few = mine.replace(classes=3 if int(mine.train.y.max()) == 2 else 2)
    more = with_public(few, tmp_path / "public.safetensors")
    more.check()
    assert more.classes == 3 and more.public_fingerprint() == public_hash(public())
    one_machine.write_public(public(labels=False), tmp_path / "bare.safetensors")
    assert with_public(few, tmp_path / "bare.safetensors").public[1] is None
    for k in range(2):
        one_machine.write_client(fed, k, tmp_path / f"{k}.safetensors")
    folder = tmp_path / "folder"
    folder.mkdir()
    for k in range(2):
        (tmp_path / f"{k}.safetensors").rename(folder / f"{k}.safetensors")
    read = ua.Federation.from_folder(folder)
    assert read.splits["query"].sizes.tolist() == fed.splits["query"].sizes[:2].tolist()


@pytest.mark.parametrize("keys", [("x_tset", "y_tset"), ("x_support",), ("x_public", "y_public"), ("x_a b", "y_a b")])
def test_keys_that_mean_nothing(keys, tmp_path):
    x, y = np.zeros((2, 3)), np.array([0, 1])
    np.savez(tmp_path / "a.npz", x=x, y=y, **{key: x if key[0] == "x" else y for key in keys})
    with refused(f"unknown key '{keys[0]}'"):
        read_client(tmp_path / "a.npz")


def test_shares_on_the_command_line():
    assert read_shares("support=0.5, query=0.25") == {"support": 0.5, "query": 0.25}
    with refused("--splits half: give shares by name"):
        read_shares("half")
    words = ["serve", "--public", "a.npz", "--rounds", "3"]
    assert flags.split(words) == (["serve", "--public", "a.npz"], [("rounds", "3")])
    assert flags.split(["run", "--public", "a.npz"]) == (["run"], [("public", "a.npz")])


@pytest.mark.parametrize("shipped", [True, False])
def test_a_runs_facts_and_its_first_round(shipped, tmp_path):
    fed = data().with_public(*public(), shipped=shipped)
    run = ua.simulate(ua.models.softmax_regression(5, 3), fed, ua.FedAvg(), rounds=2, folder=tmp_path / "run")
    facts = config.load_toml(tmp_path / "run" / "config.toml")
    facts = facts.get("facts", facts)["data"]
    assert facts["public_samples"] == 6 and facts["public_fingerprint"] == fed.public_fingerprint()
    each = 6 * 5 * 4 + 6 * 8  # float32 samples, int64 labels
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    if shipped:
        assert (lines[0]["setup_bytes_down"], lines[0]["setup_bytes_up"]) == (4 * each, 0)
        assert run.summary()["bytes_down"] == 4 * each + sum(line["bytes_down"] for line in lines)
    else:
        assert "setup_bytes_down" not in lines[0]
    assert "setup_bytes_down" not in lines[1]


def test_shipped_bytes_of_joined_parts():
    pictures = ua.Federation.from_arrays([(np.zeros((2, 4), np.float32), [0, 1])] * 3)
    signals = ua.Federation.from_arrays([(np.zeros((2, 7), np.float32), [0, 1])] * 2)
    a = pictures.with_public(torch.zeros(5, 4), shipped=True)
    fed = ua.Federation.joined({"a": a, "b": signals.with_public(torch.zeros(5, 7), shipped=True)})
    assert fed.shipped_bytes() == 3 * 5 * 4 * 4 + 2 * 5 * 7 * 4
    assert len(fed.public_fingerprint()) == 16 != fed.public_fingerprint() != a.public_fingerprint()
    assert ua.Federation.joined({"a": pictures, "b": signals}).public_fingerprint() is None
