"""A federation whose clients have samples of different shapes: who is asked what, equality with the simulation, and
what is refused."""

import dataclasses as dc
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small import refused, timeless
from test_network_messages import KEYS, Direct, data, own, tables

import unalike as ua
from unalike import config
from unalike.cli import serve
from unalike.data.joined import JoinedFederation
from unalike.data.public import public_hash
from unalike.network import client as clients
from unalike.network import one_machine, server
from unalike.network.client import Client
from unalike.network.policy import Policy

NETWORKS = {"pictures": {"name": "mlp", "hidden": [4]}, "signals": {"name": "mlp", "hidden": [5, 4]}}
INTERLEAVED = ["pictures", "signals", "signals", "pictures"]
SHAPES = {"pictures": (1, 3, 3), "signals": (5,)}


def part(name, sizes, public=6, tested=True):
    draw = torch.Generator().manual_seed(len(name))

    def samples(n):
        return torch.randn(n, *SHAPES[name], generator=draw), torch.randint(0, 3, (n,), generator=draw)

    tests = [samples(3) for _ in sizes] if tested else None
    fed = ua.Federation.from_arrays([samples(n) for n in sizes], test=samples(20), client_tests=tests, classes=3)
    return fed.with_public(samples(public)[0], torch.arange(public) % 3) if public else fed


def federation(architecture=None, **changes):
    parts = {"pictures": part("pictures", (8, 4), **changes), "signals": part("signals", (6, 10), **changes)}
    return JoinedFederation(parts, architecture)


def networks(name="fedavg", rounds=3, **run):
    out = tables(name, rounds)
    return {**out, "model": {}, "models": NETWORKS, "run": {**out["run"], **run}}


def people(fed, folder):
    """The clients, each with the samples of its own part."""
    out = []
    for k in range(len(fed)):
        mine = fed.part_of(k)
        tests = [mine.test.of(k)] if mine.test is not None else None
        one = ua.Federation.from_arrays([mine.train.of(k)], client_tests=tests, classes=3)
        one = one if mine.public is None else one.with_public(*mine.public)
        out.append(Client(one, folder / f"site-{k}", Policy.open(repeatable=True)))
    return out


def served(settings, link, fed, said=None, **changes):
    say = (said if said is not None else []).append
    having = one_machine._having(fed)
    having |= {"architecture": None} if "architecture" in settings["run"] else {}
    return server.run(settings, link, KEYS, classes=3, deadline=5.0, say=say, **{**having, **changes})


def simulated(settings, fed):
    return config.run({**settings, "run": {**settings["run"], "engine": "sequential"}}, federation=fed)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedmd"])
def test_it_equals_the_simulation(name, tmp_path):
    fed = federation()
    link = Direct(people(fed, tmp_path))
    done = served(networks(name, folder=str(tmp_path / "run")), link, fed)
    reference = simulated(networks(name), fed)
    assert done.data.remote and not reference.data.remote
    for network in NETWORKS:
        torch.testing.assert_close(done.server.w[network], reference.server.w[network], rtol=1e-6, atol=1e-6)
    for mine, yours in zip(timeless(done.history), timeless(reference.history), strict=True):
        assert mine.keys() == yours.keys() and "clients_loss" in mine
        assert mine == pytest.approx(yours, rel=1e-5, abs=1e-6)
    plans = {k: header["plan"] for k, header in link.asked if header["kind"] == "plan"}
    assert [plans[k]["public"] for k in (0, 2)] == [public_hash(p.public) for p in fed.own.values()]
    files = sorted(file.name for file in (tmp_path / "run").glob("*.unalike"))
    assert files == ["model-pictures.unalike", "model-signals.unalike"] or name == "fedmd"
    written = config.load_toml(tmp_path / "run" / "config.toml")
    assert "architecture" not in written["run"]


def test_clients_in_any_order_and_a_run_that_goes_on(tmp_path):
    fed, where = federation(INTERLEAVED), str(tmp_path / "run")
    given = {"folder": where, "architecture": INTERLEAVED}
    link = Direct(people(fed, tmp_path))
    served(networks("scaffold", rounds=2, **given), link, fed)
    done = served(networks("scaffold", rounds=4, **given), link, fed, resume=True)
    whole = simulated(networks("scaffold", rounds=4), fed)
    for network in NETWORKS:
        torch.testing.assert_close(done.server.w[network], whole.server.w[network], rtol=1e-6, atol=1e-6)
    assert (
        done.data.architecture == INTERLEAVED == config.load_toml(tmp_path / "run/config.toml")["run"]["architecture"]
    )
    assert done.data.names == [*KEYS]


def test_a_part_without_tests_of_its_clients_is_left_out_of_their_numbers(tmp_path):
    parts = {"pictures": part("pictures", (8, 4)), "signals": part("signals", (6, 10), tested=False)}
    fed = JoinedFederation(parts)
    done = served(networks(rounds=1), Direct(people(fed, tmp_path)), fed)
    assert done.client_values["client"].tolist() == [0, 1]


def test_the_server_finds_out_that_shapes_differ(tmp_path):
    """Nothing was said of parts: [run] architecture, and what the clients tell."""
    fed = federation(public=0)
    settings = networks(architecture="pictures:2, signals:2")
    nothing = {"parts": None, "architecture": None}
    done = served(settings, Direct(people(fed, tmp_path / "a")), fed, **nothing)
    assert isinstance(done.data, JoinedFederation) and done.server.w["signals"].shape == (5 * 5 + 5 + 5 * 4 + 4 + 15,)
    assert "test_loss" not in done.history[0]
    link = Direct(people(fed, tmp_path / "b"))
    with refused(r"have different shapes, and there is one test set: give one for each network \(pictures=FILE\)"):
        served(settings, link, fed, test=fed.own["signals"].global_test, **nothing)


@pytest.mark.parametrize(
    ("architecture", "line"),
    [
        (
            ["pictures", "signals", "signals", "signals"],
            r"site-2 has samples x float \[5\], y integer \[\], and site-1 x float \[1, 3, 3\], y integer \[\], both "
            "for the network 'signals': prepare all in the same way",
        ),
        (None, r"site-2 has samples x float \[5\].* and site-0 x float \[1, 3, 3\], y integer \[\]: prepare all"),
    ],
)
def test_clients_of_a_network_agree(architecture, line, tmp_path):
    link, heard = Direct(people(federation(public=0), tmp_path)), []
    for client in link.people:
        client.say = heard.append
    settings = networks(architecture=architecture) if architecture else tables()
    with refused(line):
        server.run(settings, link, KEYS, deadline=5.0)
    assert {header["kind"] for _, header in link.asked} == {"hello", "notice"}
    assert heard and all(
        text.startswith("the server did without this client: it has samples x float [5]") for text in heard
    )


def test_labels_agree_between_all(tmp_path):
    fed = federation(public=0)
    some = people(fed, tmp_path)
    x, y = fed.part_of(3).train.of(3)
    some[3].close()
    some[3] = Client(ua.Federation.from_arrays([(x, y.float())]), tmp_path / "other")
    with refused(r"site-3 has samples x float \[5\], y float \[\], and site-0 .*y integer"):
        served(networks(), Direct(some), fed)


def test_public_sets_of_parts(tmp_path):
    fed = federation()
    there, having = people(fed, tmp_path), one_machine._having(fed)["parts"]
    few = tuple(t[:4] for t in fed.own["signals"].public)
    shorter = {**having, "signals": dc.replace(having["signals"], public=few)}
    with refused("site-2: The run's public set is not this client's"):
        served(networks(), Direct(there), fed, parts=shorter)
    for k in (2, 3):
        there[k].data = there[k].data.with_public(*few)
    with refused("The public sets of 'signals' and 'pictures' have 4 and 6 samples: row i must be the same thing"):
        served(networks(), Direct(there), fed, parts=shorter)


def test_shipped_public_sets_count(tmp_path):
    fed = federation()
    fed = JoinedFederation({name: one.replace(shipped=True) for name, one in fed.own.items()})
    done = served(networks(rounds=1), Direct(people(fed, tmp_path)), fed)
    assert done.history[0]["setup_bytes_down"] == 2 * (6 * 9 * 4 + 6 * 8) + 2 * (6 * 5 * 4 + 6 * 8)


def test_features_of_a_part_are_prepared(tmp_path):
    raw = federation(INTERLEAVED, public=0)
    rows = raw.own["signals"]
    rows = rows.map(lambda columns: type(columns)(columns.x * 1000 + 5, columns.y, columns.offsets))
    recipe = ua.data.preparation.Recipe.of(None, 5)
    fed = JoinedFederation({**raw.own, "signals": rows.replace(recipe=recipe)}, INTERLEAVED)
    settings, said = networks(), []
    done = served(settings, Direct(people(fed, tmp_path)), fed, said)
    whole = JoinedFederation({**raw.own, "signals": rows.prepared(recipe)}, INTERLEAVED)
    assert said == ["features prepared from sums over 2 clients"]
    for network in NETWORKS:
        torch.testing.assert_close(
            done.server.w[network], simulated(settings, whole).server.w[network], rtol=1e-6, atol=1e-6
        )
    loop = {**settings, "run": {**settings["run"], "engine": "loopback"}}
    prepared = config.runner.by_messages(fed)
    torch.testing.assert_close(config.run(loop, federation=prepared).server.w["signals"], done.server.w["signals"])


# ---- files, flags, and where a network starts


def test_every_client_of_a_machine_gets_its_own_kind(tmp_path, monkeypatch):
    fed, words = federation(INTERLEAVED), {}
    processes = SimpleNamespace(start=lambda name, given, **more: words.update({name: given}))
    monkeypatch.setattr(one_machine, "Superlink", lambda *given: given[-1].close())
    monkeypatch.setattr(one_machine.keys, "make_server", lambda path, names: (path / "clients").mkdir(parents=True))
    monkeypatch.setattr(one_machine.keys, "make_node", lambda path: path.with_suffix(".pub").write_bytes(b"key"))
    monkeypatch.setattr(one_machine.keys, "roster", lambda path: {})
    local = one_machine.Local(fed, tmp_path, processes)
    for k, name in enumerate(local.names):
        local.start(name)
        given = dict(zip(words[name], words[name][1:], strict=False))
        mine = one_machine_client(given)
        assert torch.equal(mine.train.x, fed.part_of(k).train.of(k)[0])
        assert torch.equal(mine.public[0], fed.part_of(k).public[0])


def one_machine_client(given):
    from unalike.network.join import read_client, with_public

    return with_public(read_client(one_machine.Path(given["--data"])), one_machine.Path(given["--public"]))


def arguments(**given):
    return SimpleNamespace(**{**dict.fromkeys(serve.OWN), **given})


def test_flags_of_the_server_by_network(tmp_path):
    fed = federation()
    for name, one in fed.own.items():
        one_machine.write_public(one.public, tmp_path / f"{name}.safetensors")
    texts = [f"{name}={tmp_path}/{name}.safetensors" for name in fed.own]
    found = serve.own_things(arguments(public=texts, prepare=["signals=standard"]), [*NETWORKS])
    assert [*found] == ["parts"] and found["parts"]["signals"].recipe == "standard"
    assert all(torch.equal(found["parts"][name].public[0], p.public[0]) for name, p in fed.own.items())
    assert found["parts"]["pictures"].recipe is None
    plain = serve.own_things(arguments(public=[f"{tmp_path}/signals.safetensors"]), [])
    assert torch.equal(plain["public"][0], fed.own["signals"].public[0]) and plain["test"] is None
    with refused("--public signal=a.npz: there is no such network. Did you mean 'signals'"):
        serve.own_things(arguments(public=["signal=a.npz"]), [*NETWORKS])
    with refused("--public b.npz: give it once, or once for each of several networks"):
        serve.own_things(arguments(public=["a.npz", "b.npz"]), [*NETWORKS])
    with refused("--public is given by network: give --test-set so too"):
        serve.own_things(arguments(public=texts, test_set=["a.npz"]), [*NETWORKS])
    with refused("There is no scale 'standart'. Did you mean 'standard'"):
        serve.own_things(arguments(prepare=["standart"]), [])
    command = serve.command(arguments(public=texts), ["serve"], dict.fromkeys(serve.OWN))
    assert command == f"serve --public {texts[0]} --public {texts[1]}"


def test_serverless_clients_must_start_alike(tmp_path, monkeypatch):
    fed, build = data(), clients.config.make_model
    some = [Client(own(fed, k), tmp_path / str(k), Policy.open(), sealer=object()) for k in range(4)]
    table = {"name": "mlp", "hidden": [4]}

    def other(table, federation, seed):
        module = build(table, federation, seed)
        with torch.no_grad():
            next(module.parameters()).view(-1)[0] += 1e-6
        return module

    digests = [clients.network_digest(build(table, fed, seed), start=True) for seed in (0, 0, 1)]
    assert digests[0] == digests[1] != digests[2] and [len(d) for d in digests] == [32] * 3
    assert digests[0][:16] == digests[2][:16] == clients.network_digest(build(table, fed, 0))
    server.run(tables("def-kt", rounds=0), Direct(some), KEYS, deadline=5.0)
    monkeypatch.setattr(clients.config, "make_model", other)  # the server builds its own by another way
    server.run(tables("fedavg", rounds=0), Direct(some), KEYS, deadline=5.0)  # the server sends the weights
    with refused("site-0: The weights that this client's network starts with are not the server's, and nobody sends"):
        server.run(tables("def-kt", rounds=0), Direct(some), KEYS, deadline=5.0)
    monkeypatch.setattr(clients.config, "make_model", lambda t, f, seed: build({**t, "hidden": [7]}, f, seed))
    with refused("site-0: The network that this client builds is not the one that the server builds"):
        server.run(tables("def-kt", rounds=0), Direct(some), KEYS, deadline=5.0)


def test_numbering_that_does_not_fit():
    with refused("The parts have the clients {'pictures': 2, 'signals': 2}, and {'pictures': 3, 'signals': 1}"):
        federation(["pictures", "signals", "pictures", "pictures"])
    fed = federation(INTERLEAVED)
    assert fed.sizes.tolist() == [8, 6, 10, 4]
    want = torch.cat([fed.part_of(k).train.of(k)[1] for k in range(4)])
    assert torch.equal(fed.train.y, want) and np.array_equal(fed.label_counts().sum(1), fed.sizes)
