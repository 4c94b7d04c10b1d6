"""A real federation on loopback: Flower's SuperLink, a process for every client, TLS and keys."""

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import uuid
from pathlib import Path

import pytest
import torch
from small import federation, refused
from test_network_messages import payload, tables

import unalike as ua
from unalike import config
from unalike.cli import main, serve
from unalike.errors import UnalikeError
from unalike.messages import wire
from unalike.messages.request import united
from unalike.network import keys, one_machine, server

pytest.importorskip("flwr")

SECONDS = 90  # patience with a busy machine; nothing takes it when all is well


@pytest.fixture(autouse=True)
def nobody_left(monkeypatch):
    """Every process that a test starts inherits a mark, and none with the mark may be there at the end."""
    mark = f"unalike-test-{uuid.uuid4().hex}"
    monkeypatch.setenv("UNALIKE_TEST_MARK", mark)
    yield mark
    wait_for(lambda: not marked(mark), 15)
    left = marked(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def marked(mark):
    """Processes that inherited the mark, except this one."""
    found = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            other = folder.name.isdecimal() and int(folder.name) != os.getpid()
            if other and mark.encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def wait_for(what, seconds=SECONDS):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.1)
    return None


def data(clients=4):
    return federation(sizes=(8, 4, 12, 10)[:clients])


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def simulated(settings, fed, **run):
    return config.run({**settings, "run": {**settings["run"], "engine": "sequential", **run}}, federation=fed)


class Watched:
    """A link that counts the numbers that pass, and remembers who answered which round."""

    def __init__(self, link):
        self.link, self.online, self.close = link, link.online, link.close
        self.bytes = {"down": 0, "up": 0}
        self.answered = {}
        self.before, self.deadline = lambda header: None, SECONDS

    def exchange(self, requests, seconds):
        header = united(next(iter(requests.values())))[0]
        training = header["kind"] == "request"
        self.before(header)
        if training:
            self.bytes["down"] += sum(wire.payload(wire.decode(p)[1]) for parts in requests.values() for p in parts)
        for client, answer in self.link.exchange(requests, min(seconds, self.deadline)):
            if training and isinstance(answer, bytes):
                self.bytes["up"] += payload(answer)
                self.answered.setdefault(header["round"], []).append(client)
            yield client, answer


CHANNELS = {"scaffold": "clip:1.0,topk:0.1,quantise:8:none:nearest", "feddc": "topk:0.3,qsgd:15"}


@pytest.mark.slow
@pytest.mark.parametrize("methods", [["scaffold"], ["fedavg", "rfedavg-plus", "feddc", "fedfa"]], ids=len)
def test_methods_compute_what_a_simulation_does(methods):
    """One federation for all of them, one after another: two of the five have two exchanges a round, two a channel."""
    fed = data()
    with one_machine.federation(fed) as (here, link):
        for method in methods:
            settings, watched, said = tables(method, run={"evaluate_every": 3}), Watched(link), []
            settings["run"] |= {"channel": CHANNELS[method]} if method in CHANNELS else {}
            real = server.run(
                settings, watched, here.public, wait=SECONDS, deadline=SECONDS, classes=3, test=fed.global_test,
                say=said.append, check=here.processes.check,
            )  # fmt: skip
            simulation = simulated(settings, fed)
            close(real.server.w, simulation.server.w)
            assert not said
            for name, passed in watched.bytes.items():
                assert passed == real.summary()[f"bytes_{name}"] == simulation.summary()[f"bytes_{name}"] > 0
            final, wanted = real.summary()["final"], simulation.summary()["final"]
            assert final["clients_accuracy_mean"] == pytest.approx(wanted["clients_accuracy_mean"], abs=1e-6)


@pytest.mark.slow
def test_a_client_that_is_killed_in_the_middle_of_a_round():
    """The round closes by its deadline with the others; started again, the client goes on with its state: the run is
    the simulation in which it was absent from the rounds that it missed."""
    fed = data()
    settings = tables("scaffold", rounds=4, run={"evaluate_clients": "none"})
    with one_machine.federation(fed) as (here, link):
        watched = Watched(link)
        victim = here.processes["client-0002"]

        def kill(header):
            watched.deadline = 8.0 if header.get("round") == 1 else SECONDS
            if header.get("round") == 1:
                victim.send_signal(signal.SIGSTOP)  # so that it cannot have answered
                threading.Timer(0.5, victim.kill).start()

        class Restart(ua.Callback):
            def on_round(self, run, line):
                if line["round"] == 2:
                    here.processes.forget("client-0002")
                    here.start("client-0002")
                    assert wait_for(lambda: "joined" in log(here, "client-0002").splitlines()[-1:])

        watched.before, said = kill, []
        real = server.run(
            settings, watched, here.public, wait=SECONDS, deadline=SECONDS, classes=3, say=said.append,
            callbacks=[Restart()],
        )  # fmt: skip
        lists = [sorted(watched.answered[t]) for t in range(4)]
        state = {k: read_state(here, k) for k in range(4)}
    assert lists == [[0, 1, 2, 3], [0, 1, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert any("client-0002 is left out" in text for text in said)
    assert [line.get("lost") for line in real.history] == [None, 1, None, None]
    close(real.server.w, simulated(settings, fed, clients_per_round=lists).server.w)
    close(real.server.control * 4, sum(state.values()))  # SCAFFOLD's mean: no reply counted at one end alone


@pytest.mark.slow
def test_a_local_federation_that_is_resumed_computes_what_an_uninterrupted_one_does(tmp_path):
    """SCAFFOLD's clients keep state: with other keys, or without the state, it would not go on at all."""
    fed, folder = data(2), tmp_path / "run"
    settings = tables("scaffold", rounds=4, run={"folder": str(folder), "evaluate_clients": "none"})

    class Stop(ua.Callback):
        def on_round(self, run, line):
            if line["round"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        one_machine.run(settings, fed, deadline=SECONDS, callbacks=[Stop()])
    homes = [folder / "federation" / f"client-{k:04d}" for k in range(2)]
    assert all((home / "key").stat().st_mode & 0o777 == 0o600 for home in homes)
    assert all(list((home / "state").glob("*/state.safetensors")) for home in homes)
    with refused("holds a run on other data"):
        one_machine.run(settings, federation(sizes=(8, 5)), resume=True)
    real = one_machine.run(settings, fed, deadline=SECONDS, resume=True)
    whole = {k: v for k, v in settings["run"].items() if k != "folder"}
    assert [line["round"] for line in real.history] == [1, 2, 3, 4]
    close(real.server.w, simulated({**settings, "run": whole}, fed).server.w)
    shutil.rmtree(folder / "federation")
    with refused("lacks the clients' keys and state"):
        one_machine.run(settings, fed, resume=True)


def log(here, name):
    return (here.folder / f"{name}.log").read_text()


def read_state(here, k):
    import safetensors.torch

    (file,) = (here.homes / f"client-{k:04d}" / "state").glob("*/state.safetensors")
    return safetensors.torch.load_file(file)["control"]


# ---------------------------------------------------------------- who may come in


def test_who_may_come_in(tmp_path):
    """The outer door knows registered clients' calls and nothing else, the inner one a secret; a stranger's key and a
    stranger's certificate are refused."""
    import httpx

    flower = one_machine.flower()
    fed = data(1)
    with one_machine.federation(fed) as (here, link):
        assert wait_for(lambda: link.online() == {0})
        outside = f"https://{here.address}"
        ca = str(here.folder / "outer" / "ca.crt")
        with httpx.Client(verify=_context(ca)) as http:
            for path in (
                "/v1/control/register-node",
                "/v1/runtime/acquire-task",
                "/v1/control/start-run",
                "/docs",
                "/",
            ):
                assert http.post(outside + path).status_code == 404, path
            assert http.post(outside + "/v1/fleet/pull-messages").status_code == 401
        with httpx.Client(verify=_context(str(here.folder / "inner" / "ca.crt"))) as http:
            for headers in ({}, {"x-unalike-secret": "guess"}):
                answer = http.post(f"https://{here.superlink.address}/v1/control/list-nodes", headers=headers)
                assert answer.status_code == 404
        keys.make_node(tmp_path / "stranger")
        said = []
        stranger = flower.FlowerClient(
            here.address, Path(ca).read_bytes(), tmp_path / "stranger", tmp_path / "node", patience=1.0,
            say=said.append,
        )  # fmt: skip
        with refused("does not let this key in"):
            stranger.join()
        stranger.leave()
        assert [text.partition(" (")[0] for text in said] == [
            f"joining {here.address}",
            f"{here.address} refuses this key",
        ]
        assert "refuses this key (401);" in said[1]
        keys.make_server(tmp_path / "other", [])
        doubter = flower.FlowerClient(
            here.address, (tmp_path / "other" / "ca.crt").read_bytes(), tmp_path / "stranger", tmp_path / "node"
        )
        with refused("certificate is not to be trusted"):
            doubter.join()
        doubter.leave()


def test_a_server_that_is_not_there_is_waited_for_aloud(tmp_path):
    keys.make_server(tmp_path / "server", [])
    keys.make_node(tmp_path / "a")
    with one_machine.listen("127.0.0.1", 0) as door:
        address = f"127.0.0.1:{door.getsockname()[1]}"  # free again after the block
    said = []
    ca = (tmp_path / "server" / "ca.crt").read_bytes()
    client = one_machine.flower().FlowerClient(
        address, ca, tmp_path / "a", tmp_path / "node", wait=1.0, say=said.append
    )
    with refused("out of reach"):
        client.join()
    client.leave()
    assert [text.partition(" (")[0] for text in said] == [f"joining {address}", f"waiting for {address}"]


@pytest.mark.parametrize("before", [[], [412]])
def test_waiting_for_a_server_uses_up_no_patience_with_its_first_refusals(tmp_path, before):
    """A server that has just started answers 412 for a moment, also to a client that has waited for it for long."""
    import httpx

    keys.make_server(tmp_path / "server", [])
    keys.make_node(tmp_path / "a")
    flower, said = one_machine.flower(), []
    client = flower.FlowerClient(
        "127.0.0.1:1", (tmp_path / "server" / "ca.crt").read_bytes(), tmp_path / "a", tmp_path / "node", patience=0.6,
        say=said.append,
    )  # fmt: skip
    # it is away for 0.2 and 0.4 s, longer than the patience with a refusal
    coming = iter([*before, None, None, None, 412, 200])

    class Http:
        def ActivateNode(self, request):
            status = next(coming)
            if status is None:
                raise httpx.ConnectError("away")
            answer = httpx.Response(status, request=httpx.Request("POST", "https://server"))
            answer.raise_for_status()
            return types.SimpleNamespace(node_id=7)

        def DeactivateNode(self, request):
            pass

        def close(self):
            pass

    client._http = Http()
    client._beating.set()  # no thread for heartbeats
    client.join()
    client.leave()
    assert next(coming, "all asked") == "all asked"
    assert said == ["joining 127.0.0.1:1", "waiting for 127.0.0.1:1 (away)"]


def _context(ca):
    import ssl

    return ssl.create_default_context(cafile=ca)


def test_bytes_in_flowers_records():
    from flwr.app import ConfigRecord, MetricRecord, RecordDict

    from unalike.network import app

    big = os.urandom(2 * app.PIECE + 5)
    for parts in ([b""], [b"a"], [b"a", b""], [big, b"own"]):
        assert app.parts_of(app.content(parts)) == parts
    for wrong in (
        {"0": ConfigRecord({"bytes": b"a"})},
        {"0.0": ConfigRecord({"bytes": "text"})},
        {"0.0": ConfigRecord({"bytes": b"a", "more": 1})},
        {"0.1": ConfigRecord({"bytes": b"a"})},
        {"1.0": ConfigRecord({"bytes": b"a"})},
        {"-1.0": ConfigRecord({"bytes": b"a"})},
        {"0.0": ConfigRecord({})},
        {"0.0": MetricRecord({"bytes": 1})},
    ):
        with refused("A message "):
            app.parts_of(RecordDict(wrong))


# ---------------------------------------------------------------- the commands


def unalike(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-c", "import sys; from unalike.cli import main; sys.exit(main())", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options,
    )  # fmt: skip


RUN = ("--data", "digits", "--partition", "dirichlet:0.5", "--method", "scaffold", "--batch-size", "50")
EXTRAS = ("--public", "0.1", "--splits", "support=0.5,query=0.5")


def test_a_local_federation_by_command(tmp_path):
    command = unalike(
        "local-federation", 2, *RUN, *EXTRAS, "--rounds", 2, "--folder", tmp_path / "run", "--json", "-q",
        env={**os.environ, "HTTPS_PROXY": "http://127.0.0.1:9"},  # which would take nothing
    )  # fmt: skip
    out, _ = command.communicate(timeout=SECONDS)
    assert command.returncode == 0, out
    result = json.loads(out.strip().splitlines()[-1])
    simulation = config.run(
        {
            "data": {"name": "digits", "partition": "dirichlet:0.5", "clients": 2, "public": 0.1},
            "method": {"name": "scaffold"},
            "local": {"batch_size": 50},
            "run": {"rounds": 2, "engine": "sequential"},
        }
    )
    facts = config.load_toml(tmp_path / "run" / "config.toml")["facts"]["data"]
    assert (facts["public_samples"], facts["public_fingerprint"]) == (144, simulation.data.public_fingerprint())
    assert result["rounds"] == 2 and result["final"]["test_accuracy"] == simulation.summary()["final"]["test_accuracy"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM], ids=lambda s: s.name)
@pytest.mark.slow
def test_a_local_federation_that_is_stopped_leaves_nothing(how, nobody_left, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = unalike(
        "local-federation", 2, *RUN, "--rounds", 100000, "--folder", tmp_path / "run", "--deadline", 90,
        env={**os.environ, "TMPDIR": str(scratch)},
    )  # fmt: skip
    rounds = tmp_path / "run" / "rounds.jsonl"
    try:
        assert wait_for(lambda: command.poll() is not None or (rounds.exists() and rounds.read_text()))
        assert len(marked(nobody_left)) == 4  # itself, the SuperLink and two clients
    finally:
        command.send_signal(how)
        out, _ = command.communicate(timeout=SECONDS)
    assert command.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[how], out
    assert wait_for(lambda: not marked(nobody_left), 20), marked(nobody_left)
    assert wait_for(lambda: not list(scratch.glob("unalike-federation-*")), 20)
    if how is signal.SIGINT:
        assert "stopping ..." in out
        assert f"unalike local-federation 2 --deadline 90 --resume {tmp_path / 'run'}" in out.replace("\n", "")


def test_the_command_to_go_on_has_what_was_given():
    parser = argparse.ArgumentParser()
    serve.arguments(parser)
    for given in (
        ["--keys", "my keys"],
        [
            "--keys",
            "k",
            "--host",
            "0.0.0.0",
            "--port",
            "9000",
            "--deadline",
            "30.5",
            "--wait",
            "7",
            "--test-set",
            "a b",
        ],
    ):
        said = serve.command(parser.parse_args(given), ["serve", *given[:2]], serve.DEFAULTS)
        assert shlex.split(said) == ["serve", *given]


@pytest.mark.slow
def test_serve_and_join_by_command(tmp_path):
    """Keys by command, a server and two clients as anyone would start them; then the server is started anew."""
    fed = data(2)
    for name in ("a", "b"):
        assert main(["keys", "node", str(tmp_path / name / "key")]) == 0
        assert (tmp_path / name / "key").stat().st_mode & 0o777 == 0o600
    assert main(["keys", "server", str(tmp_path / "keys"), "--host", "localhost"]) == 0
    assert (tmp_path / "keys" / "ca.key").stat().st_mode & 0o777 == 0o600
    for k, name in enumerate(("a", "b")):
        (tmp_path / "keys" / "clients" / f"{name}.pub").write_bytes((tmp_path / name / "key.pub").read_bytes())
        one_machine.write_client(fed, k, tmp_path / name / "data.safetensors")
    public = tmp_path / "public.safetensors"
    one_machine.write_public((fed.train.x[:3], None), public)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ca = tmp_path / "keys" / "ca.crt"

    def join(home):
        own = ("--key", home / "key", "--data", home / "data.safetensors", "--state", home / "state")
        few = ("--least-batch", 1, "--least-steps", 1)
        return unalike("join", f"localhost:{port}", "--ca", ca, *own, "--device", "cpu", "--public", public, *few)

    joined = [join(tmp_path / name) for name in ("a", "b")]
    folder = tmp_path / "run"
    config_file = tmp_path / "run.toml"
    config_file.write_text(
        '[method]\nname = "scaffold"\n[model]\nname = "mlp"\nhidden = [4]\nclasses = 3\n'
        f'[local]\nbatch_size = 4\n[run]\nrounds = 2\nfolder = "{folder}"\n'
    )
    flags = ("--keys", tmp_path / "keys", "--port", port, "--deadline", 30, "--wait", SECONDS, "-q", "--json")
    flags += ("--public", public)
    try:
        first = unalike("serve", config_file, *flags)
        out, _ = first.communicate(timeout=SECONDS)
        assert first.returncode == 0, out
        second = unalike("serve", "--resume", folder, "--rounds", 4, *flags)
        out, _ = second.communicate(timeout=SECONDS)
        assert second.returncode == 0 and json.loads(out.strip().splitlines()[-1])["rounds"] == 4, out
    finally:
        for process in joined:
            process.terminate()
        logs = [process.communicate(timeout=SECONDS)[0] for process in joined]
    assert all(text.count("the run is over") == 2 for text in logs), logs
    simulation = simulated(tables("scaffold", rounds=4), fed)
    server_file = json.loads((folder / "checkpoint" / "manifest.json").read_text())["server"]
    import safetensors.torch

    close(safetensors.torch.load_file(folder / "checkpoint" / server_file)["w"], simulation.server.w)


def test_mistakes_are_one_line(tmp_path):
    (tmp_path / "keys" / "clients").mkdir(parents=True)
    with refused("has no client's key"):
        keys.roster(tmp_path / "keys")
    keys.make_node(tmp_path / "a")
    public = (tmp_path / "a.pub").read_bytes()
    for name, comment in (("a", b""), ("b", b" another's")):
        (tmp_path / "keys" / "clients" / f"{name}.pub").write_bytes(public.strip() + comment + b"\n")
    with refused("one key under two names"):
        keys.roster(tmp_path / "keys")
    (tmp_path / "keys" / "clients" / "b.pub").write_text("ssh-ed25519 AAAA")
    with refused(r"b\.pub is no key of `unalike keys node`"):
        keys.roster(tmp_path / "keys")
    with refused("is there already"):
        keys.make_node(tmp_path / "a")
    keys.make_server(tmp_path / "server", ["example.org"])
    with refused("has a ca.key already"):
        keys.make_server(tmp_path / "server", [])
    taken = one_machine.listen("127.0.0.1", 0)
    with taken, refused("Cannot listen on"):
        one_machine.listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UnalikeError, match="cannot be read"):
        one_machine.flower().FlowerClient("127.0.0.1:1", b"", tmp_path / "none", tmp_path / "node")
