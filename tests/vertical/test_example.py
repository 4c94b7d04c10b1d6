"""examples/vertical: its commands, run as they stand in its README; and the command line's mistakes."""

import csv
import re
import runpy
import shlex
import socket
import threading
from pathlib import Path

import pytest
from paths import ROOT
from vertical_cases import bank_and_shop

from unalike import cli

EXAMPLE = ROOT / "examples" / "vertical"
TABLES = "--table bank=bank.csv --table shop=shop.csv --id customer --label bank:default"


def lines_of(text):
    return [line for block in re.findall(r"^```\n(.*?)^```$", text, re.M | re.S) for line in block.splitlines()]


def run(command):
    """Run one line of the README, in this process."""
    words = shlex.split(command)
    if words[0] == "mv":
        Path(words[1]).rename(words[2])
        return 0
    if words[0] == "python":
        runpy.run_path(str(EXAMPLE / words[1]), run_name="__main__")
        return 0
    assert words[0] == "unalike"
    return cli.main(words[1:])


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as door:
        return door.getsockname()[1]


def test_the_example_s_commands(tmp_path, monkeypatch, capsys):
    """Everything as it stands, but a free port, shorter keys and, of the listening side, this machine alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["tables.py"])
    port = free_port()
    text = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    assert text.count("--bits 2048") == 1 and text.count("localhost:8444") == 2
    text = text.replace("--bits 2048", "--bits 512").replace(
        "--protection paillier --lr", "--protection paillier --bits 512 --lr"
    )
    commands, waiting = lines_of(text.replace("localhost:8444", f"localhost:{port}")), None
    assert len(commands) == 13
    for command in commands:
        if " serve " in command or " --keys keys --host shop --out between" in command:
            codes: list[int] = []
            own = f"{command} --port {port} --bind localhost --wait 60"
            waiting = threading.Thread(target=lambda own=own, codes=codes: codes.append(run(own)), daemon=True)
            waiting.start()
            continue
        assert run(f"{command} --least-bits 512" if " join " in command else command) == 0, command
        if waiting is not None and " join " in command:
            waiting.join(60)
            assert codes == [0]
    said = capsys.readouterr().out
    assert "The cooperation is worth it to bank" in said and "residue: bank → shop, sealed" in said
    tables = {}
    for name in ("predicted", "without-the-shop", "between"):
        with open(f"{name}.csv", encoding="utf-8") as file:
            tables[name] = [row["prediction"] for row in csv.DictReader(file)]
        assert len(tables[name]) == 1350
    with open("bank.csv", encoding="utf-8") as file:
        true = [row["default"] for row in csv.DictReader(file)]
    right = {name: sum(a == b for a, b in zip(found, true, strict=True)) / 1350 for name, found in tables.items()}
    assert right["predicted"] > right["without-the-shop"] + 0.03 and right["between"] > right["without-the-shop"] + 0.03


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"run {TABLES} --method logistc", "There is no vertical method 'logistc'. Did you mean 'logistic'?"),
        (f"run {TABLES} --cut 3", "unalike vertical: logistic has no setting --cut."),
        (
            f"run {TABLES} --protection rot13",
            "has protection 'none', 'paillier', 'ckks' or 'coordinator'; got 'rot13'.",
        ),
        (f"run {TABLES} --lr -1", "LogisticRegression lr must be a number above 0; got -1.0."),
        (f"run {TABLES} --protection paillier --bits 512 --batch-size 20", "16 × 2 = 32 rows are needed"),
        ("align --table bank --id customer --label bank:default", "--table 'bank' must be two names with '='"),
        ("align --table bank=bank.csv --id customer --label bank:default", "for two parties or more"),
        (f"{'align ' + TABLES} --id bank:customer", "does not say which column it is at shop"),
        (f"run {TABLES} --test 0.999", "test=0.999 leaves none of 110 rows to learn from"),
        (f"run {TABLES} --table shop=bank.csv", "--table shop=… is given twice"),
        (f"run {TABLES} --secure-sum", "secure_sum needs two hosts or more"),
        (
            "join localhost:1 --ca bank.csv --key bank.csv --state z --methods sealed",
            "There is no vertical method 'sealed'",
        ),
        ("predict nowhere --table bank=bank.csv --id customer", "nowhere holds no vertical run"),
        ("join localhost --ca x --key y --state z", "'localhost' must be HOST:PORT"),
        ("join localhost:1 --ca x --key y --state z", "there is no file x"),
        (f"serve {TABLES} --keys keys", "each party gives its own table only"),
        ("serve --table shop=shop.csv --id customer --label bank:default --keys keys", "the label is at bank"),
        ("serve --table bank=bank.csv --id customer --label bank:default --keys keys", "give --out"),
        ("serve --table bank=bank.csv --id customer --label bank:default --keys keys --out r", "give --host"),
        (
            "serve --table bank=bank.csv --id customer --label bank:default --keys keys --out r --host shop",
            "has no server.key",
        ),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, capsys, line, expected):
    monkeypatch.chdir(tmp_path)
    bank_and_shop(tmp_path)
    assert cli.main(["vertical", *shlex.split(line)]) == 2
    said = capsys.readouterr().err
    assert expected in said and said.count("\n") == 1


def test_resume_and_json_from_the_command_line(tmp_path, monkeypatch, capsys):
    import json

    monkeypatch.chdir(tmp_path)
    bank_and_shop(tmp_path)
    words = ["--json", "vertical", "run", *shlex.split(TABLES), "--out", "r", "--batch-size", "30"]
    whole = [*words[:-4], "--batch-size", "30"]
    assert cli.main([*words, "--epochs", "2"]) == 0 and cli.main([*words, "--epochs", "4"]) == 2
    assert cli.main([*words, "--epochs", "4", "--resume"]) == 0 and cli.main([*whole, "--epochs", "4"]) == 0
    first, refused, resumed, uninterrupted = map(json.loads, capsys.readouterr().out.splitlines())
    assert "already holds this run" in refused["error"] and len(first["history"]) == 2
    assert resumed["history"] == uninterrupted["history"] and resumed["sees"][0]["field"] == "rows"


def predicted(words, capsys):
    code = cli.main(["vertical", "predict", "r", *shlex.split(words)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_predictions_from_the_command_line(tmp_path, monkeypatch, capsys):
    """Capitals count as they did in training; every row needs an id; parts of absent hosts need not be there."""
    monkeypatch.chdir(tmp_path)
    bank, shop = bank_and_shop(tmp_path)
    shop.write_text(shop.read_text().replace("\nc", "\nC"))
    flags = "--fold-case --epochs 2 --fallback alone --out r"
    assert cli.main(["--quiet", "vertical", "run", *shlex.split(f"{TABLES} {flags}")]) == 0
    capsys.readouterr()
    both = "--table bank=bank.csv --table shop=shop.csv --id customer"
    code, joint, _ = predicted(both, capsys)
    for file in (tmp_path / "r" / "shop").iterdir():
        file.unlink()
    _, alone, _ = predicted("--table bank=bank.csv --id customer", capsys)
    assert code == 0 and len(joint.splitlines()) == len(alone.splitlines()) == 121
    same = sum(a == b for a, b in zip(joint.splitlines(), alone.splitlines(), strict=True))
    assert same == 11  # the head, and the ten people whom the shop does not know
    assert predicted(both, capsys)[::2] == (2, "unalike: r/shop has no part of a model.\n")
    (tmp_path / "r" / "shop" / "epoch-2.share").write_bytes(b"x")
    assert "r/shop/epoch-2.share cannot be used" in predicted(both, capsys)[2]
    bank.write_text(bank.read_text() + bank.read_text().splitlines()[1] + "\n")
    twice = predicted("--table bank=bank.csv --id customer --duplicates drop", capsys)
    assert twice[0] == 2 and "bank has ids twice (line 2 and line 122): give each row" in twice[2]
    (tmp_path / "r" / "config.toml").write_text("x = [")
    assert predicted("--table bank=bank.csv --id customer", capsys)[::2] == (2, "unalike: r holds no vertical run.\n")
