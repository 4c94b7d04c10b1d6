"""Run folders that somebody has been at: links, pipes, flipped bytes, crafted manifests, code of another's."""

import json
import os
import shutil
import tomllib

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import assert_same, logged, refused, run

import unalike as ua
from unalike import config
from unalike import files as whole_files
from unalike.cli import main
from unalike.report import export
from unalike.run import manifest as manifests


def begun(folder, **changes):
    return run(ua.Scaffold(), rounds=2, folder=folder, **changes)


def resumed(folder, rounds=3, **changes):
    return run(ua.Scaffold(), rounds=rounds, folder=folder, resume=True, **changes)


def newest(folder):
    return json.loads((folder / "checkpoint/manifest.json").read_text())


def rewrite(folder, **changes):
    """The manifest with these entries, and the hash that a forger would give it."""
    manifest = {key: value for key, value in newest(folder).items() if key != "sha256"} | changes
    (folder / "checkpoint/manifest.json").write_bytes(manifests.sealed(manifest))


def flip(file, place=-1):
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


# ---------------------------------------------------------------- links, pipes, files of the user's


def test_a_link_in_a_run_folder_is_refused_and_its_target_is_left_alone(tmp_path):
    """checkpoint/ as a link to a folder of the user's: its files stay."""
    begun(tmp_path / "run")
    mine = tmp_path / "mine"
    shutil.move(tmp_path / "run/checkpoint", mine)
    (mine / "letter.txt").write_text("dear")
    (mine / "server-000009.safetensors").write_text("mine too")
    (tmp_path / "run/checkpoint").symlink_to(mine)
    before = sorted(mine.iterdir())
    with refused(r"run/checkpoint is a link, where only a plain file may be"):
        resumed(tmp_path / "run")
    assert sorted(mine.iterdir()) == before


@pytest.mark.parametrize("name", ("config.toml", "rounds.jsonl", "checkpoint/manifest.json", "clients", "record"))
def test_every_link_is_refused(name, tmp_path):
    begun(tmp_path / "run")
    place, target = tmp_path / "run" / name, tmp_path / "target"
    if place.exists():
        shutil.move(place, target)
    else:
        target.mkdir()
    place.symlink_to(target)
    with refused(f"{name} is a link"):
        resumed(tmp_path / "run")


def test_a_link_under_the_name_of_a_new_file_is_not_written_through(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".note.new").symlink_to(victim)
    whole_files.replace(tmp_path / "note", b"new")
    assert victim.read_text() == "precious" and (tmp_path / "note").read_bytes() == b"new"
    (tmp_path / "note").unlink()
    (tmp_path / "note").symlink_to(victim)  # the target's own name: the link goes, its target stays
    whole_files.replace(tmp_path / "note", b"newer")
    assert victim.read_text() == "precious" and not (tmp_path / "note").is_symlink()
    with pytest.raises(FileExistsError):
        whole_files.write(victim, b"over")


def test_a_folder_that_a_link_stands_for_is_not_emptied(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letter.txt").write_text("dear")
    (tmp_path / ".note.new").symlink_to(mine)
    with whole_files.replacing(tmp_path / "note") as new:
        new.mkdir()
    assert (mine / "letter.txt").read_text() == "dear" and (tmp_path / "note").is_dir()


def test_only_files_with_our_names_are_removed(tmp_path):
    begun(tmp_path / "run")
    checkpoint = tmp_path / "run/checkpoint"
    notes = ("note.txt", "server.safetensors", "server-12.safetensors", "my-clients.safetensors", "manifest-old.json")
    for name in notes:
        (checkpoint / name).write_text("mine")
    (checkpoint / "server-000777.safetensors").write_text("a run's that was killed")
    resumed(tmp_path / "run")
    assert all((checkpoint / name).read_text() == "mine" for name in notes)
    assert not (checkpoint / "server-000777.safetensors").exists()


@pytest.mark.parametrize("name", ("config.toml", "rounds.jsonl", "checkpoint/manifest.json"))
def test_a_pipe_in_a_run_folder_is_not_waited_for(name, tmp_path, monkeypatch):
    begun(tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    os.mkfifo(tmp_path / "run" / name)
    with refused(f"{name} is a pipe|holds no run"):
        resumed(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--resume", "run"]) == 2
    if name != "checkpoint/manifest.json":  # which a report does not look at
        assert main(["report", "run"]) == 2


# ---------------------------------------------------------------- hashes


def test_a_flipped_byte_is_named_and_the_checkpoint_before_it_is_used(tmp_path):
    """A byte of a number: the file still reads as safetensors."""
    begun(tmp_path / "run")
    for name in (newest(tmp_path / "run")["server"], newest(tmp_path / "run")["segments"]["clients"][-1]["file"]):
        shutil.copytree(tmp_path / "run", tmp_path / name)
        flip(tmp_path / name / "checkpoint" / name)
        done = resumed(tmp_path / name)
        [note] = done.notes
        assert f"{name} cannot be read: it was changed" in note and "of round 1" in note and "\n" not in note
        assert_same(run(ua.Scaffold(), rounds=3), done)


def test_a_flipped_byte_that_all_kept_checkpoints_need_ends_in_one_line(tmp_path):
    begun(tmp_path / "run")
    first = newest(tmp_path / "run")["segments"]["clients"][0]["file"]
    flip(tmp_path / "run/checkpoint" / first)
    with refused(f"{first} cannot be read: it was changed after it was written"):
        resumed(tmp_path / "run")


def test_a_flipped_byte_is_named_where_the_model_is_exported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables = {
        "data": {"name": "synthetic-feddc", "clients": 2}, "model": {}, "method": {}, "local": {"epochs": 1},
        "run": {"rounds": 1, "folder": "out", "keep_checkpoints": 1},
    }  # fmt: skip
    config.run(tables)
    flip(tmp_path / "out/checkpoint" / newest(tmp_path / "out")["server"])
    with refused("server-000001.safetensors cannot be read: it was changed"):
        export.write_safetensors(tmp_path / "out", tmp_path / "model.safetensors")


def test_every_file_of_a_checkpoint_has_its_hash(tmp_path):
    begun(tmp_path / "run")
    found = manifests.files(manifests.read(tmp_path / "run/checkpoint/manifest.json"))
    assert len(found) == 3 and all(found.values())


def test_a_folder_without_hashes_goes_on(tmp_path):
    """As versions before wrote it."""
    begun(tmp_path / "run", keep_checkpoints=1)
    plain = {key: newest(tmp_path / "run")[key] for key in ("round", "server", "numbers", "segments")}
    for part in plain["segments"]["clients"]:
        del part["sha256"]
    (tmp_path / "run/checkpoint/manifest.json").write_text(json.dumps(plain))
    done = resumed(tmp_path / "run")
    assert not done.notes
    assert_same(run(ua.Scaffold(), rounds=3), done)


# ---------------------------------------------------------------- several checkpoints


def test_the_last_checkpoints_are_kept_and_share_clients_state(tmp_path):
    run(ua.Scaffold(), rounds=6, folder=tmp_path / "run", keep_checkpoints=3, clients_per_round=1)
    names = sorted(file.name for file in (tmp_path / "run/checkpoint").iterdir())
    assert [name for name in names if not name.startswith("clients")] == [
        "manifest-000004.json", "manifest-000005.json", "manifest.json",
        "server-000004.safetensors", "server-000005.safetensors", "server-000006.safetensors",
    ]  # fmt: skip
    named = [set(manifests.files(manifests.read(file))) for file in manifests.kept(tmp_path / "run/checkpoint")]
    assert len(named[0] & named[1] & named[2]) >= 3  # segments
    assert {name for name in names if name.endswith(".safetensors")} == set.union(*named)


@pytest.mark.parametrize("back", (3, 4))
def test_a_run_goes_back_to_a_kept_checkpoint(back, tmp_path):
    given = {"folder": tmp_path / "run", "keep_checkpoints": 3, "resume": True}
    run(ua.Scaffold(), rounds=5, **{**given, "resume": False})
    with refused("keeps no checkpoint of round 2: there are those of 5, 4, 3"):
        run(ua.Scaffold(), rounds=6, from_round=2, **given)
    seen = []

    class First(ua.Callback):
        def on_round(self, run, line):
            seen.append(line["round"])

    done = run(ua.Scaffold(), rounds=6, from_round=back, callbacks=[First()], **given)
    assert seen == [*range(back + 1, 7)]
    assert_same(run(ua.Scaffold(), rounds=6), done)


def test_going_back_needs_resume(tmp_path):
    with refused("from_round is where a run goes on from"):
        run(folder=tmp_path / "run", from_round=1)


def test_a_run_goes_back_once(tmp_path, monkeypatch):
    """config.toml does not keep the wish: the next --resume goes on from the last checkpoint."""
    monkeypatch.chdir(tmp_path)
    flags = ["--data", "synthetic-feddc", "--clients", "2", "--epochs", "1", "--folder", "out"]
    assert main(["run", *flags, "--rounds", "2"]) == 0
    assert main(["run", "--resume", "out", "--rounds", "3", "--from-round", "1"]) == 0
    assert "from_round" not in tomllib.loads((tmp_path / "out/config.toml").read_text())["run"]
    assert main(["run", "--resume", "out", "--rounds", "4"]) == 0
    assert [line["round"] for line in logged(tmp_path / "out")] == [1, 2, 3, 4]


class Poison(ua.FedAvg):
    """Its server's model is no number after round 2."""

    def round(self, server, cohort):
        super().round(server, cohort)
        server.w = server.w * (torch.nan if cohort.round == 1 else 1.0)


def test_a_state_that_nobody_can_go_on_from_is_not_written(tmp_path):
    with refused("Round 2: the server's 'w' became NaN or infinite; the checkpoint before is kept", ua.errors.Diverged):
        run(Poison(), rounds=3, folder=tmp_path / "run")
    assert newest(tmp_path / "run")["round"] == 1
    server = load_file(tmp_path / "run/checkpoint" / newest(tmp_path / "run")["server"])
    assert torch.isfinite(server["w"]).all()


# ---------------------------------------------------------------- crafted manifests and logs

CRAFTED = {
    "round text": ({"round": "2"}, "its round cannot be '2'"),
    "round below 0": ({"round": -1}, "its round cannot be -1"),
    "server list": ({"server": ["server-000002.safetensors"]}, "its server cannot be"),
    "server elsewhere": ({"server": "../../other.safetensors"}, "its server cannot be"),
    "segments text": ({"segments": "clients"}, "its segments cannot be"),
    "segments of numbers": ({"segments": {"clients": [7]}}, "its segments cannot be"),
    "segment elsewhere": ({"segments": {"clients": [{"file": "/etc/passwd", "rows": 1}]}}, "its segments cannot be"),
    "numbers a list": ({"numbers": [1]}, "its numbers cannot be"),
    "w a number": ({"numbers": {"w": 1}}, "the server's 'w' is no tensor there"),
    "a hash that is none": ({"log": 7}, "one of its hashes is none"),
    "another store": (
        {"segments": {"mine": [{"file": "clients-000001-000.safetensors", "rows": 1}]}}, "this run keeps no 'mine'",
    ),
    "more rounds than lines": ({"round": 9}, "has 2 of the 9 rounds"),
}  # fmt: skip


def test_crafted_manifests_end_in_one_line(tmp_path):
    begun(tmp_path / "run", keep_checkpoints=1)
    for changes, words in CRAFTED.values():
        shutil.copytree(tmp_path / "run", tmp_path / "crafted")
        rewrite(tmp_path / "crafted", **changes)
        with refused(words):
            resumed(tmp_path / "crafted")
        shutil.rmtree(tmp_path / "crafted")


@pytest.mark.parametrize("text", ("[]", "7", "{}", '"round"', "[" * 100_000))
def test_a_manifest_of_another_kind(text, tmp_path):
    begun(tmp_path / "run", keep_checkpoints=1)
    (tmp_path / "run/checkpoint/manifest.json").write_text(text)
    with refused("manifest.json cannot be read"):
        resumed(tmp_path / "run")


def test_a_manifest_with_a_flipped_byte_is_passed_over(tmp_path):
    begun(tmp_path / "run")
    file = tmp_path / "run/checkpoint/manifest.json"
    file.write_text(file.read_text().replace('"rows": 3', '"rows": 2', 1))
    done = resumed(tmp_path / "run")
    assert "manifest.json cannot be read: it was changed" in done.notes[0]
    assert_same(run(ua.Scaffold(), rounds=3), done)


def test_a_segment_of_other_clients_is_refused(tmp_path):
    """Written by a forger, with its hash: a row of a client that is not there."""
    begun(tmp_path / "run", keep_checkpoints=1)
    manifest = manifests.read(tmp_path / "run/checkpoint/manifest.json")
    part = manifest["segments"]["clients"][0]
    tensors = load_file(tmp_path / "run/checkpoint" / part["file"])
    save_file({**tensors, "__ids__": tensors["__ids__"] + 1000}, tmp_path / "run/checkpoint" / part["file"])
    del part["sha256"]
    rewrite(tmp_path / "run", segments=manifest["segments"])
    with refused(f"{part['file']} cannot be read: it is not of this run"):
        resumed(tmp_path / "run")


@pytest.mark.parametrize("old, new", (('"seconds"', '"sekonds"'), ('"clients": 3', '"clients": 2')))
@pytest.mark.parametrize("hashed", (True, False))
def test_a_flip_in_the_log_ends_in_one_line(old, new, hashed, tmp_path):
    begun(tmp_path / "run", keep_checkpoints=1)
    log = tmp_path / "run/rounds.jsonl"
    log.write_text(log.read_text().replace(old, new, 1))
    if not hashed:
        manifest = {k: v for k, v in newest(tmp_path / "run").items() if k not in ("sha256", "log")}
        (tmp_path / "run/checkpoint/manifest.json").write_text(json.dumps(manifest))
        if "clients" in old:
            return  # without a hash nobody can know
    with refused("rounds.jsonl was changed after it was written"):
        resumed(tmp_path / "run")


def test_a_folder_of_another_version_is_said(tmp_path):
    begun(tmp_path / "run")
    file = tmp_path / "run/config.toml"
    file.write_text(file.read_text().replace(f'version = "{ua.__version__}"', 'version = "9.9.9"'))
    [note] = resumed(tmp_path / "run").notes
    assert "was written by version '9.9.9'; this is" in note


# ---------------------------------------------------------------- code


OWN = '''"""A method of somebody's."""
from pathlib import Path

import unalike as ua

Path(__file__).with_name("has-run").touch()


class Mine(ua.FedAvg):
    pass
'''


@pytest.fixture
def foreign(tmp_path, monkeypatch, capsys):
    """A folder whose config names code, and a function that says whether the code has run since."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    flags = ["--data", "synthetic-feddc", "--clients", "2", "--epochs", "1", "--folder", "out", "--rounds", "1"]
    assert main(["run", "--method", "own.py:Mine", *flags]) == 0
    os.utime(tmp_path / "own.py", (1, 1))  # another file to the loader: what has run in this process runs again
    (tmp_path / "has-run").unlink()
    capsys.readouterr()
    return (tmp_path / "has-run").exists


REFUSED_CODE = (
    ["run", "--resume", "out", "--rounds", "2"], ["run", "out/config.toml", "--folder", "b"],
    ["local-federation", "2", "--resume", "out"], ["serve", "--keys", "k", "--resume", "out"],
    ["export", "out", "--deploy"], ["config", "check", "out/config.toml"], ["compare", "out/config.toml", "fedavg"],
)  # fmt: skip


def test_a_folder_brings_no_code_by_itself(foreign, capsys):
    for command in REFUSED_CODE:
        assert main(command) == 2
        line = capsys.readouterr().err
        assert "runs code" in line and "own.py" in line and "--allow-code" in line and line.count("\n") == 1, command
    with refused("runs code, .*own.py"):
        config.read("out/config.toml")
    assert not foreign()


def test_report_runs_no_code(foreign):
    assert main(["report", "out"]) == 0 and main(["export", "out", "--csv"]) == 0
    assert not foreign()


@pytest.mark.parametrize("said", (["--allow-code"], ["--method", "own.py:Mine"]))
def test_code_that_the_user_names_or_allows_is_run(said, foreign):
    assert main(["run", "--resume", "out", "--rounds", "2", *said]) == 0
    assert foreign()


def test_another_file_of_the_same_name_is_not_the_same(foreign, tmp_path, capsys):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/own.py").write_text(OWN)
    assert main(["run", "--resume", "out", "--rounds", "2", "--method", "other/own.py:Mine"]) == 2
    assert "runs code" in capsys.readouterr().err and not foreign()


def test_code_in_finds_every_file():
    tables = {"a": {"file": "/x/y.py:M"}, "b": [{"kind": "z.py:S"}, "clip:1.0,w.py:T:0.5"], "c": "small=v.py:f", "d": 7}
    assert [str(file) for file in config.code_in(tables)] == ["/x/y.py", "z.py", "w.py", "v.py"]
