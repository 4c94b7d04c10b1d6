"""A bank and a shop as processes of their own, killed by signal 9 in the middle of an epoch."""

import signal
import socket
import subprocess
import sys
import time

import pytest
from vertical_cases import bank_and_shop

from unalike.network import keys
from unalike.vertical.node import read_share

HERE = "127.0.0.1"


@pytest.fixture
def start(tmp_path):
    """Start commands, each with a log; all are ended with the test."""
    started = []

    def begin(command):
        words = [sys.executable, "-m", "unalike", "vertical", *command.split()]
        with open(tmp_path / f"log-{len(started)}.txt", "wb") as log:
            started.append(subprocess.Popen(words, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def free_port():
    with socket.create_server((HERE, 0)) as door:
        return door.getsockname()[1]


def wait_for(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def share(folder, epoch):
    return read_share((folder / f"epoch-{epoch}.share").read_bytes())[1]


@pytest.mark.slow
def test_killed_processes_give_the_model_of_an_uninterrupted_run(tmp_path, start):
    """Both runs have the alignment of the first, so that they see the same batches."""
    bank_and_shop(tmp_path)
    keys.make_server(tmp_path / "keys", [HERE])
    keys.make_node(tmp_path / "shop").rename(tmp_path / "keys" / "clients" / "shop.pub")
    port, epochs = free_port(), 40
    serve = (
        "serve --table bank=bank.csv --id customer --label bank:default --keys keys --host shop --protection paillier "
        f"--bits 512 --epochs {epochs} --batch-size 40 --bind {HERE} --port {port} --wait 100 --out "
    )
    join = (
        f"join {HERE}:{port} --table shop=shop.csv --id customer --ca keys/ca.crt --key shop --wait 100 "
        "--least-bits 512 --state "
    )
    guest, host = start(serve + "one"), start(join + "state-one")
    assert guest.wait(200) == 0 and host.wait(60) == 0
    for name, of in (("two", "one"), ("state-two", "state-one")):
        inner = "bank" if name == "two" else "."
        (tmp_path / name / inner).mkdir(parents=True)
        (tmp_path / name / inner / "alignment").write_bytes((tmp_path / of / inner / "alignment").read_bytes())
    (tmp_path / "two" / "config.toml").write_bytes((tmp_path / "one" / "config.toml").read_bytes())

    guest, host = start(serve + "two --resume"), start(join + "state-two")
    state, own = tmp_path / "state-two", tmp_path / "two" / "bank"
    wait_for(lambda: any(state.glob("epoch-*.share")))
    host.send_signal(signal.SIGKILL)
    host.wait(20)
    host = start(join + "state-two")
    reached = max(int(file.stem.split("-")[1]) for file in state.glob("epoch-*.share"))
    wait_for(lambda: any(int(file.stem.split("-")[1]) > reached + 1 for file in own.glob("epoch-*.share")))
    guest.send_signal(signal.SIGKILL)
    guest.wait(20)
    guest = start(serve + "two --resume")
    assert guest.wait(200) == 0 and host.wait(60) == 0
    for first, second in ((tmp_path / "one" / "bank", own), (tmp_path / "state-one", state)):
        whole, broken = share(first, epochs), share(second, epochs)
        assert whole.keys() == broken.keys() and all((whole[n] == broken[n]).all() for n in whole)


@pytest.mark.slow
def test_trees_of_parties_killed_after_every_tree_are_those_of_an_uninterrupted_run(tmp_path, start):
    """Bank and shop are killed in turn, each after a tree, and both after the last but one."""
    bank_and_shop(tmp_path)
    keys.make_server(tmp_path / "keys", [HERE])
    keys.make_node(tmp_path / "shop").rename(tmp_path / "keys" / "clients" / "shop.pub")
    port, trees = free_port(), 5
    serve = (
        "serve --table bank=bank.csv --id customer --label bank:default --keys keys --host shop --method secure-boost "
        f"--trees {trees} --depth 2 --bins 8 --bits 512 --epochs {trees} --unmatched missing --bind {HERE} "
        f"--port {port} --wait 100 --out "
    )
    join = (
        f"join {HERE}:{port} --table shop=shop.csv --id customer --ca keys/ca.crt --key shop --wait 100 "
        "--least-bits 512 --state "
    )
    guest, host = start(serve + "one"), start(join + "state-one")
    assert guest.wait(200) == 0 and host.wait(60) == 0
    for name, of, inner in (("two", "one", "bank"), ("state-two", "state-one", ".")):
        (tmp_path / name / inner).mkdir(parents=True)
        (tmp_path / name / inner / "alignment").write_bytes((tmp_path / of / inner / "alignment").read_bytes())
    (tmp_path / "two" / "config.toml").write_bytes((tmp_path / "one" / "config.toml").read_bytes())

    own, state = tmp_path / "two" / "bank", tmp_path / "state-two"
    reached = lambda: max([int(file.stem.split("-")[1]) for file in own.glob("epoch-*.share")], default=0)  # noqa: E731
    guest, host, kills = start(serve + "two --resume"), start(join + "state-two"), 0
    while guest.poll() is None and reached() < trees - 1:
        before = reached()
        wait_for(lambda now=before, run=guest: reached() > now or run.poll() is not None)
        if kills % 2 == 0 or reached() == trees - 1:
            host.send_signal(signal.SIGKILL)
            host.wait(20)
            host = start(join + "state-two")
        if kills % 2 or reached() == trees - 1:
            guest.send_signal(signal.SIGKILL)
            guest.wait(20)
            guest = start(serve + "two --resume")
        kills += 1
    assert guest.wait(200) == 0 and host.wait(60) == 0 and kills >= 2
    for first, second in ((tmp_path / "one" / "bank", own), (tmp_path / "state-one", state)):
        whole, broken = share(first, trees), share(second, trees)
        assert whole.keys() == broken.keys() and all((whole[n] == broken[n]).all() for n in whole)
    assert (share(own, trees)["forest"][0] == 1).any()  # the shop's columns are split by too
