"""Run folders: what is in them, continuing from them, and what happens when they cannot be written or read."""

import dataclasses as dc
import errno
import functools
import inspect
import json
import os
import shutil
import subprocess
import sys
import tomllib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import ROOT, TESTS
from small import ENGINES, LOCAL, assert_same, federation, logged, model, refused, run, timeless

import unalike as ua
from unalike import files as whole_files
from unalike.run import folder as runs
from unalike.run.folder import RunFolder
from unalike.settings.toml import dump_toml, flatten

METHODS = {"fedavg": ua.FedAvg(), "fedprox": ua.FedProx(mu=0.1), "scaffold": ua.Scaffold()}
SETUPS = {
    "plain": {},
    "adam kept, BatchNorm averaged": {
        "module": model(batch_norm=True),
        "local": dc.replace(LOCAL, optimizer="adam", lr=0.01, keep_optimizer=True),
        "buffers": "average",
    },
    "momentum kept, BatchNorm local": {
        "module": model(batch_norm=True),
        "local": dc.replace(LOCAL, momentum=0.9, keep_optimizer=True),
        "buffers": "local",
    },
}


class Break(ua.Callback):
    """What a user's Ctrl-C does, after a round was logged and before it is saved."""

    def __init__(self, round):
        self.round = round

    def on_round(self, run, line):
        if line["round"] == self.round:
            raise KeyboardInterrupt


@functools.cache
def whole(method, engine="sequential", setup="plain", rounds=5):
    return run(METHODS[method], engine=engine, rounds=rounds, **SETUPS[setup])


# ---------------------------------------------------------------- continuing


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_resumed_equals_uninterrupted(method, engine, setup, tmp_path):
    for every in (1, 3):
        given = {"engine": engine, "checkpoint_every": every, "folder": tmp_path / str(every), **SETUPS[setup]}
        run(METHODS[method], rounds=2, **given)
        resumed = run(METHODS[method], rounds=5, resume=True, **given)
        assert_same(whole(method, engine, setup), resumed)


@pytest.mark.parametrize("engine", ENGINES)
def test_rounds_after_the_checkpoint_are_run_again(engine, tmp_path):
    """Broken off in round 5 with checkpoints at 0 and 3: rounds 4 and 5 leave no trace, also not in client files."""
    given = {"engine": engine, "checkpoint_every": 3, "rounds": 5, "folder": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        run(ua.Scaffold(), callbacks=[Break(5)], **given)
    assert len(logged(tmp_path / "run")) == 5
    with pytest.raises(KeyboardInterrupt):
        run(ua.Scaffold(), callbacks=[Break(5)], resume=True, **given)
    assert_same(whole("scaffold", engine), run(ua.Scaffold(), resume=True, **given))


def test_loopback_forgets_clients_that_came_after_the_checkpoint(tmp_path):
    """Client 5 first takes part in round 2, which is lost; on the second try its state must be none again."""
    given = {"engine": "loopback", "checkpoint_every": 5, "rounds": 4, "folder": tmp_path / "run"}
    given["clients_per_round"] = [[0, 1], [1, 5], [2, 5], [0, 5]]
    with pytest.raises(KeyboardInterrupt):
        run(ua.Scaffold(), callbacks=[Break(2)], **given)
    resumed = run(ua.Scaffold(), resume=True, **given)
    assert_same(run(ua.Scaffold(), **{**given, "folder": None}), resumed)


def test_another_engine_may_continue(tmp_path):
    run(ua.Scaffold(), rounds=2, folder=tmp_path / "run", engine="loopback")
    resumed = run(ua.Scaffold(), rounds=5, folder=tmp_path / "run", engine="workers", workers=2, resume=True)
    assert_same(whole("scaffold"), resumed)


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    done = run(ua.Scaffold(), rounds=5, folder=tmp_path / "run")
    before = {f: f.read_bytes() for f in sorted((tmp_path / "run").rglob("*")) if f.is_file()}
    again = run(ua.Scaffold(), rounds=5, folder=tmp_path / "run", resume=True)
    assert_same(done, again)
    assert again.seconds_total == pytest.approx(done.seconds_total, abs=1e-3) and again.rounds_done == 5
    assert {f: f.read_bytes() for f in sorted((tmp_path / "run").rglob("*")) if f.is_file()} == before


def test_more_rounds_are_written_into_the_config(tmp_path):
    run(rounds=2, folder=tmp_path / "run")
    run(rounds=4, folder=tmp_path / "run", resume=True)
    assert tomllib.loads((tmp_path / "run/config.toml").read_text())["run"]["rounds"] == 4


def test_state_in_mapped_files_resumes(tmp_path):
    given = {"folder": tmp_path / "run", "state_memory": 1}
    first = run(ua.Scaffold(), rounds=2, **given)
    assert first.clients.mapped and list((tmp_path / "run/clients").glob("*.rows"))
    del first
    resumed = run(ua.Scaffold(), rounds=5, resume=True, **given)
    assert resumed.clients.mapped
    assert_same(whole("scaffold"), resumed)


@dc.dataclass(frozen=True)
class Hoard(ua.Method):
    """Keeps everything a server may keep: many tensors in a list, text, numbers, a table; setup must not run twice."""

    keeps = {"seen": ua.Field("scalar")}
    sends = {"delta": ua.Field(), "loud": ua.Field("scalar", read="each")}
    tables = {"last": ua.Field("scalar")}

    def setup(self, server, everyone):
        server.w = server.w + 0.01
        server.many = [torch.full((k,), k, dtype=torch.float64 if k % 2 else torch.int64) for k in range(12)]
        server.note, server.number, server.list = 'a "note"\n', 0.1, [1, [2.5, "x"]]

    def done(self, me, s, m, theta):
        return {"seen": s.seen + 1}, {"delta": theta - m.w, "loud": me.n + s.seen}

    def round(self, server, cohort):
        replies = cohort.call(self.client, w=server.w)
        server.w = server.w + replies.mean("delta") + 1e-3 * sum(t.sum() for t in server.many) * server.number
        server.many = [t + k for k, t in enumerate(server.many)]
        server.table("last")[replies.ids] = server.table("last")[replies.ids] + replies.each("loud")


@pytest.mark.parametrize("stop", (0, 2))
def test_all_that_a_server_keeps_comes_back(stop, tmp_path):
    run(Hoard(), rounds=stop, folder=tmp_path / "run")
    assert_same(run(Hoard(), rounds=4), run(Hoard(), rounds=4, folder=tmp_path / "run", resume=True))


@pytest.mark.parametrize(
    "value",
    ({1: 2}, object(), [torch.zeros(2, 2), 2.0], (1, 2), [[1, (2,)]], {"a": {2: 1}}, (torch.zeros(1),), {"a": {1}}),
)
def test_a_server_value_that_a_checkpoint_cannot_hold(value, tmp_path):
    class Odd(ua.FedAvg):
        def setup(self, server, everyone):
            server.odd = value

    with refused("server's 'odd' is .* which a checkpoint cannot hold"):
        run(Odd(), folder=tmp_path / "run")


def test_a_server_value_comes_back_as_it_was(tmp_path):
    value = {"a": [1, 2.5, None, True, "x", float("inf")], "b": {}, "c": {"d": [[]]}}

    class Odd(ua.FedAvg):
        def setup(self, server, everyone):
            server.odd = value

    run(Odd(), rounds=1, folder=tmp_path / "run")
    assert run(Odd(), rounds=2, folder=tmp_path / "run", resume=True).server.odd == value


@pytest.mark.parametrize("most", [1 << 20, 39 * 4 * 5])  # the second: two segments of two rows at a time
def test_many_small_segments_become_few(most, tmp_path, monkeypatch):
    """Clients enough that rows are seldom written twice: without merging there would be a file a round."""
    monkeypatch.setattr(runs, "SEGMENTS", 8)
    monkeypatch.setattr(runs, "SEGMENT_BYTES", most)
    written, segment = [], RunFolder._segment

    def spy(self, name, round, part, ids, rows):
        if part:
            written.append(len(ids) * 39 * 4)
        return segment(self, name, round, part, ids, rows)

    monkeypatch.setattr(RunFolder, "_segment", spy)
    data = federation(sizes=(3,) * 200)
    given = {"clients_per_round": 2, "data": data, "evaluate_every": 50, "rounds": 50}
    with pytest.raises(KeyboardInterrupt):
        run(ua.Scaffold(), folder=tmp_path / "run", callbacks=[Break(40)], **given)
    files = list((tmp_path / "run/checkpoint").glob("clients-*"))
    assert written and max(written) <= most and len(files) <= (9 if most > 1000 else 25)
    assert_same(run(ua.Scaffold(), **given), run(ua.Scaffold(), folder=tmp_path / "run", resume=True, **given))


def test_segments_are_merged(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "SEGMENT_BYTES", 300)  # three clients' rows of 39 numbers need two such
    given = {"clients_per_round": 2, "folder": tmp_path / "run"}
    most, merged = 0, 0
    for rounds in range(1, 25):
        run(ua.Scaffold(), rounds=rounds, resume=rounds > 1, **given)
        files = sorted(f.name for f in (tmp_path / "run/checkpoint").glob("clients-*"))
        most, merged = max(most, len(files)), merged + any(f"{rounds:06d}-002" in f for f in files)
    assert merged >= 2 and 8 <= most <= 12
    manifest = json.loads((tmp_path / "run/checkpoint/manifest.json").read_text())
    assert sum(part["rows"] for part in manifest["segments"]["clients"]) < 24 * 2
    resumed = run(ua.Scaffold(), rounds=26, resume=True, **given)
    assert_same(run(ua.Scaffold(), rounds=26, clients_per_round=2), resumed)


# ---------------------------------------------------------------- rounds.jsonl


def test_one_line_a_round_readable_at_once(tmp_path):
    seen = []

    class Look(ua.Callback):
        def on_round(self, run, line):
            seen.append(logged(tmp_path / "run"))
            assert seen[-1][-1] == line

    done = run(folder=tmp_path / "run", checkpoint_every=100, callbacks=[Look()])
    assert [len(lines) for lines in seen] == [1, 2, 3]
    assert logged(tmp_path / "run") == done.history and [line["round"] for line in done.history] == [1, 2, 3]


@pytest.mark.parametrize(
    "tail", ('{"round": 3, "tra', '{"round": 3}', "\x00\x00\x00", "[3]\n", "7", '{"x": 1}\n', "\udcff")
)
def test_a_half_written_last_line(tail, tmp_path):
    run(ua.Scaffold(), rounds=2, folder=tmp_path / "run")
    with open(tmp_path / "run/rounds.jsonl", "a", errors="surrogateescape") as file:
        file.write(tail)
    assert_same(whole("scaffold"), run(ua.Scaffold(), rounds=5, folder=tmp_path / "run", resume=True))


# ---------------------------------------------------------------- config.toml

# Where the config says what a parameter of `simulate` was; None: it does not decide what is computed.
WHERE = {
    "model": "model.fingerprint", "federation": "data.fingerprint", "method": "method.name", "rounds": "run.rounds",
    "clients_per_round": "participation.kind", "local": "local.lr", "loss": "model.loss", "metrics": "model.metrics",
    "head": "model.head", "output": "model.output", "buffers": "model.buffers", "seed": "run.seed",
    "engine": "run.engine", "device": "run.device", "dtype": "run.dtype", "precision": "run.precision",
    "deterministic": "run.deterministic",
    "keep_checkpoints": None, "from_round": None,
    "checkpoint_every": "run.checkpoint_every", "evaluate_every": "run.evaluate_every",
    "evaluate_clients": "run.evaluate_clients", "engine_options": "engine.workers",
    "callbacks": None, "folder": None, "resume": None, "state_memory": None, "recipe": None,
    "allow_samples": None, "new_clients": None, "new_steps": None,  # where there are any: tests/run/test_newcomers.py
    "channel": None, "epsilon": None,  # where there are any, "channel.stages": tests/channel/test_written.py
    "delta": None, "max_epsilon": None, "exchanges": None,
    "clock": None, "asynchronous": None, "staleness": None,  # where there are any: tests/run/test_asynchronous.py
    "architecture": None,  # of several networks: "model.architecture_fingerprint"
}  # fmt: skip


def test_config_holds_all_that_decides_the_run(tmp_path):
    given = {"engine": "workers", "workers": 2, "output": lambda out: out}
    run(ua.FedProx(mu=0.25), folder=tmp_path / "run", rounds=1, **given)
    config = tomllib.loads((tmp_path / "run/config.toml").read_text())
    flat = flatten(config)
    assert set(WHERE) == set(inspect.signature(ua.simulate).parameters)
    assert {key for key in WHERE.values() if key} <= set(flat)
    assert config["method"] == {"name": "FedProx", "mu": 0.25}
    assert config["participation"] == {"kind": "Uniform", "count": 3}
    local = {k: v for k, v in dc.asdict(LOCAL).items() if v is not None and k != "sample_noise"}  # only if there is any
    assert config["local"] == local | {"betas": [0.9, 0.999]}
    assert config["engine"] == {"workers": 2, "took": "workers", "compiled": False}


texts = st.text(max_size=12)
values = st.recursive(
    st.one_of(texts, st.booleans(), st.integers(), st.floats(allow_nan=False)),
    lambda v: st.lists(v, max_size=3),
    max_leaves=5,
)
tables = st.recursive(
    st.dictionaries(texts, values, max_size=3),
    lambda t: st.dictionaries(texts, st.one_of(values, t), max_size=3),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None)
@given(tables)
def test_toml_round_trip(tree):
    assert tomllib.loads(dump_toml(tree)) == tree


def test_toml_of_awkward_values():
    tree = {
        "μ": np.float64(0.1),
        "n": np.int64(3),
        "f": np.float32(0.5),
        "half": "\ud800",
        "nul": "\0\x7f\r\n",
        "no": None,
    }
    assert tomllib.loads(dump_toml({"a b": {**tree, "é.": {}}})) == {
        "a b": {"μ": 0.1, "n": 3, "f": 0.5, "half": "?", "nul": "\0\x7f\r\n", "é.": {}}
    }
    assert np.isnan(tomllib.loads(dump_toml({"x": float("nan")}))["x"])


@dc.dataclass(frozen=True)
class Hooked(ua.FedAvg):
    """A hyper-parameter that is a function, whose repr is new in every process."""

    hook: object = None


def test_functions_and_arrays_among_the_settings(tmp_path):
    for resume in (False, True):  # functions made anew, as in a new process
        local = dc.replace(LOCAL, epochs=lambda client, round: 1 + client % 2, lr=np.full(6, 0.1))
        run(Hooked(hook=lambda x: x), local=local, folder=tmp_path / "run", rounds=1 + resume, resume=resume)
    config = tomllib.loads((tmp_path / "run/config.toml").read_text())
    assert config["local"]["lr"] == [0.1] * 6 and "lambda" in config["local"]["epochs"]
    assert config["method"]["hook"].startswith("function ")


def other_weights():
    torch.manual_seed(8)
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Identity(), torch.nn.Tanh(), torch.nn.Linear(4, 3))


OTHERS = {
    "run.seed": {"seed": 1},
    "run.dtype": {"dtype": "float64"},
    "run.evaluate_every": {"evaluate_every": 2},
    "run.evaluate_clients": {"evaluate_clients": 2},
    "local.lr": {"local": dc.replace(LOCAL, lr=0.2)},
    "local.epochs": {"local": dc.replace(LOCAL, epochs=None, steps=2)},
    "participation.count": {"clients_per_round": 2},
    "method.server_lr": {"method": ua.FedAvg(server_lr=0.5)},
    "method.mu": {"method": ua.FedProx()},
    "model.loss": {"loss": torch.nn.MultiMarginLoss()},
    "model.metrics": {"metrics": {"error": lambda output, y: (output.argmax(-1) != y).float()}},
    "model.head": {"head": "0"},
    "model.buffers": {"buffers": "local"},
    "model.fingerprint": {"module": other_weights()},
    "data.fingerprint": {"data": federation(seed=1)},
}


def test_another_run_in_the_folder_names_the_first_difference(tmp_path):
    run(rounds=1, folder=tmp_path / "run")
    before = (tmp_path / "run/config.toml").read_bytes()
    for key, changes in OTHERS.items():
        for resume in (False, True):
            with refused(rf"holds another run: there {key} is .*, here .*[Cc]hoose another folder"):
                run(**changes, rounds=1, folder=tmp_path / "run", resume=resume)
    assert (tmp_path / "run/config.toml").read_bytes() == before


def test_a_run_from_before_a_method_had_an_option_goes_on(tmp_path):
    """The config lacks the option: it is at its default, which is what the method was then; nothing else will do."""
    run(ua.FedProx(mu=0.1), rounds=1, folder=tmp_path / "run")
    file = tmp_path / "run/config.toml"
    file.write_text("".join(line for line in file.read_text().splitlines(True) if not line.startswith("mu = ")))
    with refused(r"holds another run: there method.mu is None, here 0.1"):
        run(ua.FedProx(mu=0.1), rounds=2, folder=tmp_path / "run", resume=True)
    default = ua.FedProx().mu
    assert default != 0.1 and len(run(ua.FedProx(), rounds=2, folder=tmp_path / "run", resume=True).history) == 2


# ---------------------------------------------------------------- folders that will not do


def test_a_folder_with_this_run_needs_resume(tmp_path):
    run(rounds=2, folder=tmp_path / "run")
    with refused(r"already holds this run \(round 2\).*resume=True"):
        run(rounds=2, folder=tmp_path / "run")


def test_a_run_cannot_go_back(tmp_path):
    run(rounds=2, folder=tmp_path / "run")
    with refused("has done 2 rounds and rounds=1"):
        run(rounds=1, folder=tmp_path / "run", resume=True)


def test_resume_needs_a_folder():
    with refused("resume=True needs the folder"):
        run(resume=True)


def test_a_folder_with_other_things(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for resume in (False, True):
        with refused("is not empty and holds no run"):
            run(folder=tmp_path, resume=resume)
    assert [f.name for f in tmp_path.iterdir()] == ["notes.txt"]
    with refused("is a file"):
        run(folder=tmp_path / "notes.txt")


def test_a_mistake_leaves_no_folder(tmp_path):
    for wrong in ({"engine": "bached"}, {"wrokers": 2}, {"evaluate_clients": 0}, {"clients_per_round": 7}):
        with refused("."):
            run(folder=tmp_path / "run", **wrong)
        assert not (tmp_path / "run").exists()


def test_a_folder_that_was_only_begun(tmp_path):
    """Killed before the config was in place, or before the first checkpoint."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a/.config.toml.new").write_text("[run")
    assert_same(whole("scaffold"), run(ua.Scaffold(), rounds=5, folder=tmp_path / "a", resume=True))
    shutil.rmtree(tmp_path / "a/checkpoint")
    (tmp_path / "a/rounds.jsonl").unlink()
    assert_same(whole("scaffold"), run(ua.Scaffold(), rounds=5, folder=tmp_path / "a", resume=True))


# ---------------------------------------------------------------- full disks


class Full:
    """Calls of a function, of which the n-th finds the disk full."""

    def __init__(self, function, n):
        self.function, self.left = function, n

    def __call__(self, *args, **kwargs):
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.function(*args, **kwargs)


class Torn:
    """An open file that takes half of what is written, and then the disk is full."""

    def __init__(self, file):
        self.file = file

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class TornOpen(Full):
    def __call__(self, *args, **kwargs):
        self.left -= 1
        file = self.function(*args, **kwargs)
        return Torn(file) if self.left == 0 else file


@pytest.mark.parametrize("engine", ("sequential", pytest.param("loopback", marks=pytest.mark.slow)))
@pytest.mark.parametrize("fault", ("replace", pytest.param("fsync", marks=pytest.mark.slow), "open", "write"))
def test_a_full_disk_at_every_moment(fault, engine, tmp_path):
    """One line, the last checkpoint is whole, and after making room the run goes on as if nothing had happened."""
    places, name, make = {
        "replace": ([os], "replace", lambda n: Full(os.replace, n)),
        "fsync": ([os], "fsync", lambda n: Full(os.fsync, n)),
        "open": ([runs, whole_files], "open", lambda n: Full(open, n)),
        "write": ([runs, whole_files], "open", lambda n: TornOpen(open, n)),
    }[fault]
    given = {"engine": engine, "rounds": 2, "clients_per_round": 2}
    smooth = run(ua.Scaffold(), **given)
    n = 0
    while True:
        n += 1
        folder = tmp_path / f"{n}"
        with pytest.MonkeyPatch.context() as patch:
            full = make(n)
            for place in places:
                patch.setattr(place, name, full, raising=False)
            try:
                run(ua.Scaffold(), folder=folder, **given)
                break
            except ua.UnalikeError as error:
                assert "\n" not in str(error) and "No space left" in str(error)
        assert_same(smooth, run(ua.Scaffold(), folder=folder, resume=True, **given))
    # every moment was tried: config and rounds.jsonl, then the server and the manifest of rounds 0 to 2 and the clients
    # of two rounds; the log is opened once and synced with each manifest; loopback writes two files of two clients
    files = 2 + 3 * 2 + 2
    renamed = files + (2 * 2 * 2 if engine == "loopback" else 0) + 2  # two manifests are kept beside their next
    assert n - 1 == {"replace": renamed, "fsync": files + 3, "open": renamed + 1, "write": renamed + 1}[fault]


REAL = """
import resource, sys
sys.path.insert(0, "tests")
import small, unalike as ua
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # what the system does to a file that reaches a quota
try:
    small.run(ua.Scaffold(), rounds=50, folder=sys.argv[1], checkpoint_every=2)
except ua.UnalikeError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_disk_that_is_really_full(tmp_path):
    root = ROOT
    done = subprocess.run(
        [sys.executable, "-c", REAL, tmp_path / "run"], cwd=root, env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, done.stderr
    [line] = done.stdout.splitlines()
    assert "Cannot write to" in line and "The checkpoint of round" in line
    lines = (tmp_path / "run/rounds.jsonl").read_text().splitlines()
    assert 4 < len(lines) < 50
    resumed = run(ua.Scaffold(), rounds=50, folder=tmp_path / "run", checkpoint_every=2, resume=True)
    assert_same(run(ua.Scaffold(), rounds=50), resumed)


# ---------------------------------------------------------------- broken checkpoints


def test_a_broken_file_of_a_checkpoint_is_named(tmp_path):
    run(ua.Scaffold(), rounds=2, folder=tmp_path / "run", keep_checkpoints=1)
    checkpoint = tmp_path / "run/checkpoint"
    files = sorted(checkpoint.iterdir())
    assert len(files) == 4  # the manifest, the server, two rounds' clients
    damages = {"half": lambda b: b[: len(b) // 2], "empty": lambda b: b"", "foreign": lambda b: b"\xff" * len(b)}
    for file in files:
        good = file.read_bytes()
        for damage in damages.values():
            file.write_bytes(damage(good))
            with refused(f"{file.name} cannot be read"):
                run(ua.Scaffold(), rounds=3, folder=tmp_path / "run", resume=True)
        file.unlink()
        with refused("no checkpoint to continue" if file.name == "manifest.json" else f"{file.name} cannot be read"):
            run(ua.Scaffold(), rounds=3, folder=tmp_path / "run", resume=True)
        file.write_bytes(good)
    assert_same(run(ua.Scaffold()), run(ua.Scaffold(), rounds=3, folder=tmp_path / "run", resume=True))


def test_a_broken_config_is_named(tmp_path):
    run(rounds=1, folder=tmp_path / "run")
    for text in (b"[run", b"\xff\xfe"):
        (tmp_path / "run/config.toml").write_bytes(text)
        with refused("config.toml is not readable"):
            run(rounds=1, folder=tmp_path / "run", resume=True)


def test_timeless_leaves_only_times_out():
    assert timeless([{"round": 1, "seconds": 2.0, "seconds_evaluation": 1.0}]) == [{"round": 1}]


def test_one_process_at_a_time_writes_to_a_folder(tmp_path):
    """A second writer would trim the rounds of the first under its hands."""
    folder = tmp_path / "run"
    holder = (
        "import sys, small\n"
        "class Wait(small.ua.Callback):\n"
        "    def on_round(self, run, line):\n"
        "        if line['round'] == 2:\n"
        "            print('here', flush=True)\n"
        "            sys.stdin.read()\n"
        f"small.run(folder={str(folder)!r}, callbacks=[Wait()])\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    other = subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert other.stdout.readline() == "here\n"
        with refused("is being written by another process: wait for it, or choose another"):
            run(folder=folder, resume=True)
    finally:
        other.kill()
        other.communicate()
    assert_same(run(), run(folder=folder, resume=True))  # the lock went with its process


def test_a_folder_that_lacks_rounds_is_not_continued(tmp_path):
    run(folder=tmp_path / "run")
    file = tmp_path / "run" / "rounds.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    with refused("has 2 of the 3 rounds before the checkpoint"):
        run(folder=tmp_path / "run", resume=True, rounds=5)
