"""What must outlive a power cut is written through to the disk before its name is given to it."""

import os
from pathlib import Path

import pytest
import small
from test_network_messages import Direct, data, own, served, tables

import unalike as ua
from unalike.network.client import Client
from unalike.network.policy import Policy


@pytest.fixture
def disk(monkeypatch):
    """All that is synced and renamed, in order: ("sync", file, bytes) and ("rename", file, name)."""
    events, sync, replace = [], os.fsync, os.replace

    def spy_sync(descriptor):
        sync(descriptor)
        found = os.fstat(descriptor)
        events.append(("sync", found.st_ino, found.st_size))

    def spy_replace(old, new):
        events.append(("rename", os.stat(old).st_ino, Path(new).name))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", spy_sync)
    monkeypatch.setattr(os, "replace", spy_replace)
    return events


def test_the_rounds_of_a_checkpoint_are_on_the_disk_before_it(disk, tmp_path):
    """One round, one line: when a manifest gets its name, the lines of all its rounds have been synced."""
    lines = []

    class Look(ua.Callback):
        def on_round(self, run, line):
            lines.append(os.path.getsize(tmp_path / "run" / "rounds.jsonl"))

    small.run(ua.Scaffold(), folder=tmp_path / "run", rounds=3, callbacks=[Look()])
    log = os.stat(tmp_path / "run" / "rounds.jsonl").st_ino
    synced, at_manifest = 0, []
    for kind, file, what in disk:
        if (kind, file) == ("sync", log):
            synced = what
        if (kind, what) == ("rename", "manifest.json"):
            at_manifest.append(synced)
    assert at_manifest[-3:] == lines and len(set(lines)) == 3


def renamed_before_synced(disk):
    synced = set()
    for kind, file, what in disk:
        if kind == "sync":
            synced.add(file)
        elif file not in synced:
            yield what


def test_a_real_clients_state_is_on_the_disk_before_it_has_its_name(disk, tmp_path):
    people = [Client(own(data(), k), tmp_path / f"site-{k}", Policy.open(repeatable=True)) for k in range(4)]
    served(tables("scaffold"), Direct(people))
    names = [what for kind, _, what in disk if kind == "rename"]
    assert names.count("state.safetensors") == 4 * 4  # each round, and the last acknowledgement
    assert list(renamed_before_synced(disk)) == []
