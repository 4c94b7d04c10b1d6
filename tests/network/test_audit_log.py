"""The log of all that left: every answer is in it, and a line that is changed or gone is noticed."""

import hashlib
import json
import stat

import pytest
import torch
from asked import OTHER, RUN, ask, client, judge, plan, tell, told
from small import refused

import unalike as ua
from unalike.cli import main
from unalike.messages import wire
from unalike.network import audit
from unalike.network.client import ANSWERS


def lines(folder):
    return [json.loads(line) for line in (folder / audit.FILE).read_text().splitlines()]


def talk(folder):
    """A short life of a client: (client, the answers that left)."""
    here, left = client(folder), []
    answer = here.answer
    here.answer = lambda parts: left.append(answer(parts)) or left[-1]
    tell(here, {"kind": "hello", "version": ua.__version__})
    recipe = ua.data.preparation.Recipe.of(None, 5).plain()
    tell(here, {"kind": "prepare", "version": ua.__version__, "recipe": recipe})
    told(here)
    ask(here)
    ask(here)  # again: the stored answer
    judge(here)
    ask(here, round=1, acknowledged=0)
    ask(here, function="nothing")
    tell(here, {"kind": "wrap", "run": RUN, "round": 1, "at": 0, "rows": []})
    here.answer([b"no message"])
    tell(here, {"kind": "end", "run": RUN, "acknowledged": 1})
    return here, left


def test_every_number_that_leaves_is_in_the_log(tmp_path):
    _, left = talk(tmp_path)
    found = lines(tmp_path)
    assert {line["answer"] for line in found} == set(range(len(left)))
    for number, answer in enumerate(left):
        header, tensors = wire.decode(answer)
        mine = {line["field"]: line for line in found if line["answer"] == number}
        for name, value in tensors.items():
            data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            line = mine.pop(name)
            assert line["sha256"] == hashlib.sha256(data).hexdigest() and line["bytes"] == len(data)
            assert line["shape"] == list(value.shape)
        if header["kind"] == "error":
            assert mine.pop("reason")["words"] == header["reason"] and not mine
    kinds = [line["kind"] for line in audit._firsts(found)]
    assert kinds[:7] == ["hello", "prepare", "plan", "request", "request", "evaluate", "request"]
    assert kinds[7:] == ["error", "error", "error", "end"]
    hello = {line["field"]: line for line in found if line["kind"] == "hello"}
    assert {*hello} == {f"facts.{name}" for name in ("sizes", "classes", "x", "y", "public")}
    assert [line["again"] for line in audit._firsts(found)].count(True) == 1
    first = next(line for line in found if line["field"] == "delta")
    assert (first["run"], first["round"], first["exchange"], first["dtype"]) == (RUN, 0, 0, "F32")
    assert next(line for line in found if line["field"] == "samples")["bytes"] == 2  # "40"
    assert "values" not in first and len(json.dumps(first)) < 500


def test_a_new_kind_of_answer_is_in_the_log_too(tmp_path, monkeypatch):
    secret = wire.encode({"kind": "reply", "shares": [1, 2]}, {"masked": torch.arange(3)})
    monkeypatch.setitem(ANSWERS, "shares", lambda client, request: secret)
    tell(client(tmp_path), {"kind": "shares", "run": RUN})
    assert [(line["kind"], line["field"]) for line in lines(tmp_path)] == [("shares", "shares"), ("shares", "masked")]


def test_the_log_is_the_owners_alone(tmp_path):
    here, _ = talk(tmp_path / "state")
    ask(here, round=2)
    modes = {f.name: stat.S_IMODE(f.stat().st_mode) for f in (tmp_path / "state").rglob("*") if f.name != "lock"}
    assert modes.pop(RUN) == 0o700 and stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    assert {*modes} == {"audit.jsonl", "audit.head", "runs.json", "policy.toml", "plan.json", "state.safetensors"}
    assert {*modes.values()} == {0o600}


def remove(n):
    return lambda all_: all_[:n] + all_[n + 1 :]


FORGED = {
    "the first is gone": remove(0),
    "one is gone": remove(7),
    "the last is gone": lambda all_: all_[:-1],
    "all are gone": lambda all_: [],
    "two have changed places": lambda all_: [*all_[:3], all_[4], all_[3], *all_[5:]],
    "one came twice": lambda all_: [*all_[:4], all_[3], *all_[4:]],
    "a number was changed": lambda all_: [*all_[:5], all_[5].replace('"bytes": ', '"bytes": 1'), *all_[6:]],
    "no line at all": lambda all_: [*all_[:5], "what", *all_[5:]],
    "a list": lambda all_: [*all_[:5], "[1]", *all_[5:]],
}


@pytest.mark.parametrize("name", FORGED)
def test_a_log_that_was_changed_is_noticed(name, tmp_path, capsys):
    here, _ = talk(tmp_path)
    here.close()
    assert main(["audit", str(tmp_path)]) == 0
    file = tmp_path / audit.FILE
    file.write_text("".join(f"{line}\n" for line in FORGED[name](file.read_text().splitlines())))
    assert main(["audit", str(tmp_path)]) == 1
    assert "The audit log" in capsys.readouterr().out
    with refused("move the log away to begin a new one"):
        client(tmp_path)


def test_half_a_line_of_a_machine_that_stopped_is_cut_off(tmp_path):
    here, _ = talk(tmp_path)
    here.close()
    file = tmp_path / audit.FILE
    before = file.read_bytes()
    file.write_bytes(before + b'{"line": 99, "ti')
    again = client(tmp_path)
    assert file.read_bytes() == before
    tell(again, {"kind": "hello", "version": ua.__version__})
    assert not audit.read(tmp_path).fault and len(audit.read(tmp_path).lines) == len(before.splitlines()) + 5


def test_nothing_leaves_that_cannot_be_noted(tmp_path):
    here = client(tmp_path)
    (tmp_path / "elsewhere").write_text("")
    (tmp_path / audit.FILE).symlink_to(tmp_path / "elsewhere")
    with refused("nothing leaves without it"):
        tell(here, {"kind": "hello", "version": ua.__version__})
    assert (tmp_path / "elsewhere").read_text() == ""


def test_what_a_request_says_does_not_fill_the_log(tmp_path):
    here = client(tmp_path)
    tell(here, {"kind": "x" * 1000, "run": "y" * 100_000, "round": [1] * 10_000, "exchange": 10**400})
    assert len((tmp_path / audit.FILE).read_text()) < 2000


def test_the_log_in_plain_words(tmp_path, capsys):
    talk(tmp_path)
    assert main(["audit", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "11 answers left this machine" in out and "scores on its own samples:" in out
    assert f"run {RUN}: 2 rounds" in out and "The log is whole" in out
    assert main(["audit", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (delta,) = [one for one in found["fields"] if one["field"] == "delta"]
    assert found["whole"] and delta == {"kind": "request", "field": "delta", "times": 3, "bytes": 3 * 18 * 4}
    assert main(["audit", str(tmp_path), "--lines", "--run", OTHER]) == 0
    assert "delta" not in capsys.readouterr().out
    assert main(["audit", str(tmp_path / "none")]) == 2


def test_where_a_client_stands(tmp_path, capsys):
    here, _ = talk(tmp_path)
    tell(here, {"kind": "plan", "run": OTHER, "plan": plan()})
    assert main(["status", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "repeatable = true" in out and "runs: 2, of which 2 are kept" in out and "last round: 2" in out
    assert f"{OTHER}: " in out and "the present one" in out and "3 requests refused" in out
    assert main(["status", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] == [RUN, OTHER] and found["bytes"] == sum(line["bytes"] for line in lines(tmp_path))


SERVER = {
    "version": 1, "run": RUN, "method": "FedAvg", "round": 3, "rounds": 30, "time": 1.0, "done": False, "lost": 2,
    "losses": [{"round": 3, "train_loss": 0.4, "lost": 1}],
    "clients": [
        {"name": "a\x1b[31m", "state": "away", "samples": 120, "last_round": 2, "lost": 1, "reason": "no\nanswer"}
    ],
}  # fmt: skip


def test_where_a_server_stands(tmp_path, capsys):
    (tmp_path / "status.json").write_text(json.dumps(SERVER))
    assert main(["status", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f"FedAvg, run {RUN}: round 3 of 30, at work" in out and "round 3: train_loss 0.4, lost 1" in out
    assert "a\\x1b[31m" in out and "120 samples, last round 2, lost 1 (no\\nanswer)" in out and "\x1b" not in out
    (tmp_path / "status.json").write_text("[1]")
    assert main(["status", str(tmp_path)]) == 2


def test_where_a_run_stands(tmp_path, capsys):
    (tmp_path / "rounds.jsonl").write_text('{"round": 1, "test_accuracy": 0.5}\n{"round": 2, "te')
    assert main(["status", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "1 rounds are done\n  round 1: test_accuracy 0.5\n"
    assert main(["status", str(tmp_path / "nothing")]) == 2
