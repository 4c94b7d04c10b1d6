"""`unalike join` before it reaches for any server: its mistakes, and the examples of how to start it."""

import configparser
import contextlib
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from small import federation as few
from small import refused

from unalike.cli import main, parser
from unalike.errors import UnalikeError
from unalike.network import keys
from unalike.network.policy import Policy, policy_of, read_policy

EXAMPLES = Path(__file__).parents[2] / "examples" / "federation"


def joined(tmp_path, *words, server="localhost:1"):
    np.savez(tmp_path / "mine.npz", x=np.zeros((20, 2), np.float32), y=np.zeros(20, np.int64))
    flags = ("--ca", "ca.crt", "--key", "key", "--data", str(tmp_path / "mine.npz"), "--state", str(tmp_path / "state"))
    return main(["join", server, *flags, *map(str, words)])


def test_a_policy_with_an_unknown_setting_ends_it(tmp_path, capsys):
    (tmp_path / "policy.toml").write_text("least_bach = 4\n")
    assert joined(tmp_path, "--policy", tmp_path / "policy.toml") == 2
    said = capsys.readouterr().err
    assert "has no setting 'least_bach'. Did you mean 'least_batch'?" in said and len(said.splitlines()) == 1


def test_asking_needs_a_person(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert joined(tmp_path, "--ask") == 2
    said = capsys.readouterr().err
    assert "--ask waits for a yes at a terminal, and there is none" in said and len(said.splitlines()) == 1
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":8443", "localhost:port", "localhost:70000"])
def test_an_address_without_a_port_is_no_fault_of_ours(tmp_path, address, capsys):
    keys.make_node(tmp_path / "a")
    assert joined(tmp_path, "--key", tmp_path / "a", server=address) == 2
    said = capsys.readouterr().err
    assert said == (
        "unalike: The server is given as HOST:PORT, such as server.example.org:8443; got " + repr(address) + ".\n"
    )


def test_a_certificate_that_is_none_is_named(tmp_path, capsys):
    keys.make_node(tmp_path / "a")
    for content in (b"{}", b"\xff\x00", b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"):
        (tmp_path / "other.crt").write_bytes(content)
        assert joined(tmp_path, "--key", tmp_path / "a", "--ca", tmp_path / "other.crt") == 2
        said = capsys.readouterr().err
        assert "other.crt is no certificate: give the federation's ca.crt." in said and len(said.splitlines()) == 1


def test_a_peers_key_that_is_none_is_named(tmp_path, capsys):
    keys.make_node(tmp_path / "a")
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "b.pub").write_text("hello")
    assert joined(tmp_path, "--key", tmp_path / "a", "--peers", tmp_path / "peers") == 2
    assert f"The public key {tmp_path / 'peers' / 'b.pub'} is not of `unalike keys node`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "answer"), [("yes", True), ("Y", True), ("no", False), ("", False), ("of course", False)]
)
def test_only_a_yes_is_a_yes(typed, answer, monkeypatch, capsys):
    from unalike.network.join import ask

    monkeypatch.setattr("builtins.input", lambda words: typed)
    assert ask("It wants all.") is answer and "It wants all." in capsys.readouterr().out


def test_a_table_of_other_columns_is_refused_before_anything_is_sent(tmp_path):
    (tmp_path / "schema.json").write_text(
        '{"columns": [{"name": "age", "kind": "number", "values": []}], "label": "y", "label_names": ["a", "b"]}'
    )
    (tmp_path / "mine.csv").write_text("size,y\n1,a\n2,b\n")
    with refused("'age'"):
        from unalike.network.join import read_client

        read_client(tmp_path / "mine.csv", schema=tmp_path / "schema.json", unseen="refuse")


def test_the_service_and_the_container_start_what_there_is():
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str
    unit.read(EXAMPLES / "unalike-join.service")
    words = shlex.split(unit["Service"]["ExecStart"].replace("\\\n", " "))[1:]
    container = (EXAMPLES / "Containerfile").read_text()
    entry, command = (
        json.loads(container.split(name)[1].split("]")[0].replace("\\\n", "") + "]") for name in ("ENTRYPOINT ", "CMD ")
    )
    for given in (words, [*entry[1:], *command]):
        args = parser("join").parse_args(given)
        assert args.command == "join" and args.policy.endswith("policy.toml") and args.state.startswith("/var/lib")
        args.policy = str(EXAMPLES / "policy.toml")
        assert policy_of(args).max_runs == 20
    assert Policy.of(read_policy(EXAMPLES / "policy.toml"), "example").least_batch == 8


def test_clients_of_a_local_federation_are_given_the_files_that_the_run_names(monkeypatch):
    """They are the user's own clients, and the code is the user's too."""
    pytest.importorskip("flwr")
    from unalike.network import one_machine

    given = []

    @contextlib.contextmanager
    def federation(data, kept, files, stages):
        given.extend(files)
        raise UnalikeError("enough is seen")
        yield

    monkeypatch.setattr(one_machine, "federation", federation)
    with pytest.raises(UnalikeError, match="enough"):
        one_machine.run({"method": {"file": "own.py:Mine"}, "model": {"file": "net.py:Net"}}, few())
    assert given == [Path("own.py"), Path("net.py")]


@pytest.mark.parametrize("flags", [["--partition", "iid"], ["--data", "digits"], ["--data.seed", "3"]])
def test_a_server_has_no_data_to_deal(flags, tmp_path, capsys):
    assert main(["serve", "--keys", str(tmp_path), *flags]) == 2
    assert f"{flags[0]} is of [data], and the clients' data are their own" in capsys.readouterr().err


def test_a_server_s_help_is_without_what_it_refuses(capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    out = capsys.readouterr().out
    assert "[model]:" in out and "[data]:" not in out and "--dry-run" not in out
