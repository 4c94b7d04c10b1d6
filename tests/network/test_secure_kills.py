"""Real processes, killed in each stage of a secure sum: sums are right, or the round is void with a clear line."""

import json
import signal
import socket
import subprocess
import sys

import pytest
import safetensors.torch
import torch
from test_flower import SECONDS, Watched, close, data, log, nobody_left, read_state, simulated, unalike, wait_for  # noqa: F401 (a fixture)
from test_network_messages import tables

import unalike as ua
from unalike.cli import main
from unalike.network import one_machine, server

pytestmark = pytest.mark.slow


def settings_of(channel, rounds, **run):
    return tables("scaffold", rounds=rounds, run={"channel": channel, "evaluate_clients": "none", **run})


def joins(here, name):
    return log(here, name).splitlines().count("joined")


def restart(here, *names):
    """Start clients again, and wait until they are back; a request that waited for them may come at once."""
    before = {name: joins(here, name) for name in names}
    for name in names:
        here.processes.forget(name)
        here.start(name)
    for name in names:
        assert wait_for(lambda name=name: joins(here, name) > before[name])


def kill(here, *names):
    """Kill clients so that they cannot have answered: stopped first."""
    victims = [here.processes[name] for name in names]
    for victim in victims:
        victim.send_signal(signal.SIGSTOP)
    for victim in victims:
        victim.kill()
        victim.wait()


def test_a_client_is_killed_in_each_stage():
    """Whoever is lost before its answer came is not in the sum; after it, it is, and its state too."""
    fed, stages = data(), ["key", "deal", "agree", "request", "open"]  # three losses in a row would set it aside
    settings = settings_of("secure-sum:0.5:agree=true", len(stages) + 1)
    with one_machine.federation(fed) as (here, link):
        watched, said, killed = Watched(link), [], []

        def before(header):
            stage = header.get("stage", header["kind"])
            round = header.get("round", 0)
            watched.deadline = SECONDS
            if round < len(stages) and stages[round] == stage and stage not in killed:
                killed.append(stage)
                kill(here, "client-0002")
                watched.deadline = 8.0

        class Restart(ua.Callback):
            def on_round(self, run, line):
                if line["round"] <= len(stages):
                    restart(here, "client-0002")

        watched.before = before
        real = server.run(
            settings, watched, here.public, wait=SECONDS, deadline=SECONDS, classes=3, say=said.append,
            callbacks=[Restart()],
        )  # fmt: skip
        state = {k: read_state(here, k) for k in range(4)}
    assert killed == stages
    everybody, others = [0, 1, 2, 3], [0, 1, 3]
    lists = [others, others, everybody, others, everybody, everybody]
    assert [line.get("lost", 0) for line in real.history] == [4 - len(some) for some in lists]
    close(real.server.w, simulated(settings, fed, clients_per_round=lists).server.w)
    close(real.server.control * 4, sum(state.values()))


def test_a_void_round_is_asked_for_again_when_clients_are_back():
    """Two of four are killed in the stage of masked answers, where three must stay; they come back, and no round is
    lost."""
    fed, settings = data(), settings_of("secure-sum:0.5", 3)
    with one_machine.federation(fed) as (here, link):
        watched, said, killed = Watched(link), [], []

        def before(header):
            watched.deadline = SECONDS
            if header["kind"] == "request" and header["round"] == 1 and not killed:
                killed.extend(["client-0001", "client-0002"])
                kill(here, *killed)
                watched.deadline = 8.0

        def say(text):
            said.append(text)
            if text.endswith("It is asked for again."):
                restart(here, *killed)

        watched.before = before
        real = server.run(
            settings, watched, here.public, wait=SECONDS, deadline=SECONDS, classes=3, say=say,
            check=lambda: None,
        )  # fmt: skip
    assert any("2 of 4 clients answered, and 3 must: the sum is void" in text for text in said)
    assert [line.get("lost", 0) for line in real.history] == [0, 0, 0]
    close(real.server.w, simulated(settings, fed).server.w)


@pytest.mark.parametrize("channel", ["paillier:1024", "ckks:symmetric"])
def test_clients_are_killed_while_they_encrypt_vote_and_open(channel):
    """Their common key comes with the federation. One is killed before its answer came; another one before it has voted
    for the sum, which its answer is in; a third one while two others open the sum."""
    fed, settings = data(), settings_of(channel, 4)
    with one_machine.federation(fed, stages=ua.channel.parse(channel)) as (here, link):
        watched, said = Watched(link), []
        kills = {("request", 0): "client-0002", ("vote", 1): "client-0001", ("open", 2): "client-0003"}

        def before(header):
            victim = kills.pop((header.get("stage", header["kind"]), header.get("round", 0)), None)
            watched.deadline = 8.0 if victim else SECONDS
            if victim:
                kill(here, victim)

        class Restart(ua.Callback):
            def on_round(self, run, line):
                restart(here, *{1: ["client-0002"], 2: ["client-0001"], 3: ["client-0003"]}.get(line["round"], []))

        watched.before = before
        real = server.run(
            settings, watched, here.public, wait=SECONDS, deadline=SECONDS, classes=3, say=said.append,
            callbacks=[Restart()],
        )  # fmt: skip
    assert not kills and [line.get("lost", 0) for line in real.history] == [1, 0, 0, 0]
    lists = [[0, 1, 3], *[[0, 1, 2, 3]] * 3]
    close(real.server.w, simulated(settings, fed, clients_per_round=lists).server.w)


def test_clients_that_were_killed_before_they_voted_vote_when_they_are_back():
    """Two of four, where three must vote: their answers are in the sum, and nobody computes them again."""
    fed, settings = data(), settings_of("ckks:symmetric", 3)
    with one_machine.federation(fed, stages=ua.channel.parse("ckks:symmetric")) as (here, link):
        watched, said, killed, requests = Watched(link), [], [], []

        def before(header):
            watched.deadline = SECONDS
            requests.extend([header["round"]] if header["kind"] == "request" else [])
            if header.get("stage") == "vote" and header["round"] == 1 and not killed:
                killed.extend(["client-0001", "client-0002"])
                kill(here, *killed)
                watched.deadline = 8.0

        def say(text):
            said.append(text)
            if text.endswith("It is asked for again."):
                restart(here, *killed)

        watched.before = before
        real = server.run(
            settings, watched, here.public, wait=SECONDS, deadline=SECONDS, classes=3, say=say,
            check=lambda: None,
        )  # fmt: skip
    assert any("2 of the 4 clients in the sum have agreed to it, and 3 must. It is asked" in text for text in said)
    assert requests == [0, 1, 2] and [line.get("lost", 0) for line in real.history] == [0, 0, 0]
    close(real.server.w, simulated(settings, fed).server.w)


# a server that kills itself when a stage of round 2 is done, and clients have answered
DOOMED = """
import os, signal, sys
from unalike.cli import main
from unalike.engines import encrypted, secure
kind = secure.MaskedSums if hasattr(secure.MaskedSums, sys.argv[1]) else encrypted.EncryptedSums
inner, stage = getattr(kind, sys.argv[1]), sys.argv.pop(1)
rounds = []
def outer(*args):
    out = inner(*args)
    rounds.append(stage)
    if len(rounds) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return out
setattr(kind, stage, outer)
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("channel", "stages"),
    [
        ("secure-sum:0.5:agree=true", ("_group", "_deal", "_mask", "_agree", "_open")),
        ("paillier:1024", ("_added", "_votes", "_opened")),
    ],
)
def test_a_server_is_killed_in_each_stage(channel, stages, tmp_path):
    """Each time a new server goes on with the round, with new secrets; the run is that of a server that was never
    killed. Clients have agreed to a sum and opened one when they are asked for these again."""
    fed, names, folder = data(3), ("a", "b", "c"), tmp_path / "run"
    rounds = len(stages) + 2
    for k, name in enumerate(names):
        assert main(["keys", "node", str(tmp_path / name / "key")]) == 0
        one_machine.write_client(fed, k, tmp_path / name / "data.safetensors")
    assert main(["keys", "server", str(tmp_path / "keys"), "--host", "localhost"]) == 0
    assert main(["keys", "common", str(tmp_path / "common.key"), "--bits", "1024"]) == 0
    for name in names:
        (tmp_path / "keys" / "clients" / f"{name}.pub").write_bytes((tmp_path / name / "key.pub").read_bytes())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def join(home):
        own = ("--key", home / "key", "--data", home / "data.safetensors", "--state", home / "state")
        own += ("--common", tmp_path / "common.key")
        few = ("--least-batch", 1, "--least-steps", 1, "--max-repeats", 9)
        where = ("--ca", tmp_path / "keys" / "ca.crt", "--peers", tmp_path / "keys" / "clients")
        return unalike("join", f"localhost:{port}", *where, *own, "--device", "cpu", *few)

    (tmp_path / "run.toml").write_text(
        '[method]\nname = "scaffold"\n[model]\nname = "mlp"\nhidden = [4]\nclasses = 3\n'
        f'[local]\nbatch_size = 4\n[run]\nrounds = {rounds}\nfolder = "{folder}"\nchannel = "{channel}"\n'
    )
    flags = ("--keys", tmp_path / "keys", "--port", port, "--deadline", 60, "--wait", SECONDS, "-q", "--json")
    joined = [join(tmp_path / name) for name in names]
    try:
        begin = (tmp_path / "run.toml",)
        for done, stage in enumerate(stages):
            words = [sys.executable, "-c", DOOMED, stage, "serve", *begin, *flags]
            doomed = subprocess.Popen([*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            out, _ = doomed.communicate(timeout=2 * SECONDS)
            assert doomed.returncode == -signal.SIGKILL, out
            lines = (folder / "rounds.jsonl").read_text().splitlines()
            assert json.loads(lines[-1])["round"] == done + 1
            begin = ("--resume", folder)
        last = unalike("serve", "--resume", folder, *flags)
        out, _ = last.communicate(timeout=2 * SECONDS)
        assert last.returncode == 0 and json.loads(out.strip().splitlines()[-1])["rounds"] == rounds, out
    finally:
        for process in joined:
            process.terminate()
        logs = [process.communicate(timeout=SECONDS)[0] for process in joined]
    # each time all of them open a secure sum, and two of them one under encryption
    assert sum("opened the sum of 3 clients" in text for text in logs) >= (3 if "secure" in channel else 2), logs
    server_file = json.loads((folder / "checkpoint" / "manifest.json").read_text())["server"]
    w = safetensors.torch.load_file(folder / "checkpoint" / server_file)["w"]
    assert torch.equal(w, simulated(settings_of(channel, rounds), fed).server.w)
