"""The ray engine: the same results as one client after another, also resumed, moved between workers and after a kill.

Ray runs in a process of its own that all tests here join; most also share two workers, because starting one means
importing torch once more.
"""

import contextlib
import dataclasses as dc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from paths import ROOT, TESTS
from small import refused, run

import unalike as ua
from unalike import config, testing
from unalike.contract import Field, Method
from unalike.engines.ray import QUIET, Exchange, Ray, Worker, deal, load_ray
from unalike.testing.toys import FeatureMean, ScalarsFirst, SharedBody

pytest.importorskip("ray")
ray = load_ray()
METHODS = (ua.FedAvg(), ua.Scaffold(), ua.FedDC(alpha=0.1), ua.RFedAvgPlus(lam=0.3), ua.FedFa())


@dc.dataclass(frozen=True)
class Fleeting(Method):
    """State that must be gone when a new round begins."""

    keeps = {"mark": Field("scalar", life="round")}

    def client(self, me, s, m):
        return me.train(m.w).then(self.marked)

    def marked(self, me, s, m, theta):
        return {"mark": s.mark + 1}, {"delta": (theta - m.w) / (1 + s.mark)}


TOYS = (Fleeting(), ScalarsFirst(), SharedBody())  # the last's personal models are evaluated by the workers
SERVE = """
import sys
from unalike.engines.ray import load_ray, local_ray
with local_ray(2):
    print(load_ray().get_runtime_context().gcs_address, flush=True)
    sys.stdin.read()
"""


def family(pid):
    """The processes that this one started, and those that they started."""
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            parents.setdefault(int(file.read_text().rpartition(")")[2].split()[1]), []).append(int(file.parent.name))
    found = list(parents.get(pid, []))
    for child in found:
        found.extend(parents.get(child, []))
    return found


def gone(pids, seconds=30):
    """Whether these processes end in time."""
    until = time.monotonic() + seconds
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.fixture(scope="module")
def cluster():
    """The address of a Ray with two cores."""
    process = subprocess.Popen([sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    address = process.stdout.readline().strip()
    assert address, "Ray did not start"
    yield address
    started = family(process.pid)
    process.communicate("")
    assert process.returncode == 0
    assert len(started) > 4 and gone(started)


@pytest.fixture(scope="module")
def joined(cluster):
    ray.init(address=cluster, **QUIET)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def crew(joined):
    """Workers for many runs, which take no cores from others: `start` makes a new one of an old one."""
    idle, new = [], ray.remote(Worker).options(num_cpus=0).remote

    def dismiss(engine):
        for actor in engine.actors:
            with contextlib.suppress(ray.exceptions.RayError):  # a dead one
                ray.get(actor.__ray_ready__.remote())
                idle.append(actor)
        engine.actors.clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ray, "_new", lambda engine: idle.pop() if idle else new())
        patch.setattr(Ray, "close", dismiss)
        yield
    for actor in idle:
        ray.kill(actor)


@pytest.fixture
def sent(monkeypatch):
    """The clients whose rows went down to a worker, call by call."""
    found, missing = [], Exchange._missing

    def noted(exchange, slot, ids):
        rows = missing(exchange, slot, ids)
        found.extend(int(k) for whose, _ in rows for k in whose)
        return rows

    monkeypatch.setattr(Exchange, "_missing", noted)
    return found


# ---------------------------------------------------------------- the contract


SLOW = [pytest.param(toy, marks=pytest.mark.slow) for toy in TOYS]


@pytest.mark.parametrize("method", (*METHODS, *SLOW), ids=lambda m: type(m).__name__)
def test_is_sequential_bit_for_bit(method, crew):
    """With a model that is not stacked, each client is computed by the same code."""
    torch.set_num_threads(1)
    alone = testing.run(method, "norm", engine="sequential", rounds=3)
    dealt = testing.run(method, "norm", engine="ray", rounds=3)
    assert dealt.engine.inner.startswith(("workers", "sequential")) and dealt.engine.at_once == 1
    assert testing.difference(alone, dealt) == 0
    for mine, yours in zip(alone.history, dealt.history, strict=True):
        assert mine.keys() == yours.keys()
        assert all(mine[name] == yours[name] for name in mine if not name.startswith("seconds"))
    assert sorted(alone.clients.known()) == sorted(dealt.clients.known())


def test_replies_go_through_a_channel(crew):
    torch.set_num_threads(1)
    settings = {"rounds": 3, "channel": "clip:0.1,topk:0.1,quantise:8"}
    alone, dealt = (testing.run(ua.Scaffold(), "norm", engine=name, **settings) for name in ("sequential", "ray"))
    assert testing.difference(alone, dealt) == 0
    assert [line["bytes_up"] for line in alone.history] == [line["bytes_up"] for line in dealt.history]


class Personal(ua.FedAvg):
    """Each client's own model is the global one, trained a little more: with an optimizer that it keeps."""

    def personal(self, me, s, m):
        return me.train(m.w, steps=1).then(lambda me, s, m, theta: theta)


def test_evaluation_leaves_nothing(crew):
    local = ua.LocalTraining(steps=2, batch_size=5, lr=0.05, momentum=0.9, keep_optimizer=True)
    settings = {"local": local, "rounds": 3, "clients_per_round": 1.0}
    alone, dealt = (testing.run(Personal(), "cnn", engine=engine, **settings) for engine in ("sequential", "ray"))
    assert testing.difference(alone, dealt) == 0
    assert alone.history[-1]["clients_loss"] == dealt.history[-1]["clients_loss"]


@pytest.mark.slow
def test_several_networks_take_turns_on_the_same_cores(crew):
    from test_families import several

    alone, dealt = (several(ua.Scaffold(), engine=engine, dtype="float64") for engine in ("sequential", "ray"))
    assert all(float((part - dealt.server.w[name]).abs().max()) < 1e-9 for name, part in alone.server.w.items())
    assert {engine.part for engine in dealt.engine.parts.values()} == {0.5}


def test_clients_that_arrive_when_they_can(crew):
    clock = ua.Clock(speeds="lognormal:1.0", dropout=0.2)
    model, data = testing.task("norm")
    given = testing.settings(rounds=4, clients_per_round=3, clock=clock)
    alone, dealt = (ua.simulate(model, data, ua.FedBuff(2), engine=engine, **given) for engine in ("sequential", "ray"))
    assert torch.equal(alone.server.w, dealt.server.w)
    assert max(line["staleness_most"] for line in dealt.history) > 0


def test_workers_know_who_is_late(crew, tmp_path):
    """The speeds change in the second round, and with them the steps that fit."""
    (speeds := tmp_path / "speeds.csv").write_text("client,from,speed\n0,0,1\n1,0,1\n1,4,0.5\n")
    clock = ua.Clock(speeds=str(speeds), cutoff=4.0, late="partial")
    model, data = testing.task("norm")
    given = testing.settings(
        rounds=3, clients_per_round=1.0, clock=clock, local=ua.LocalTraining(steps=4, batch_size=2, lr=0.1)
    )
    alone, dealt = (ua.simulate(model, data, ua.FedAvg(), engine=engine, **given) for engine in ("sequential", "ray"))
    assert torch.equal(alone.server.w, dealt.server.w)
    assert [line["batches"] for line in alone.history] == [line["batches"] for line in dealt.history]
    assert len({line["batches"] / line["clients"] for line in alone.history}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["sequential", "batched"])
def test_data_that_drift(inner, crew, monkeypatch):
    """Workers are sent the samples of every phase, and one that takes a dead one's place in the middle has them."""
    model, data = testing.task("mlp")
    data = data.skewed("drift:4:noise:1|stream:3")
    given = testing.settings(rounds=5, dtype="float64")
    alone, still = (ua.simulate(model, fed, SharedBody(), engine="sequential", **given) for fed in (data, data.at(1)))
    rounds, call = [], Ray.call

    def with_a_death(engine, order, ids):
        if order.round == 3 and order.round not in rounds:
            engine.replace(0)
        rounds.append(order.round)
        return call(engine, order, ids)

    monkeypatch.setattr(Ray, "call", with_a_death)
    dealt = ua.simulate(model, data, SharedBody(), engine="ray", inner=inner, **given)
    assert testing.difference(alone, dealt) < 1e-9 < testing.difference(alone, still)
    assert alone.history[-1]["clients_loss"] == pytest.approx(dealt.history[-1]["clients_loss"], rel=1e-9)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_stacks_agree(method, crew):
    """A tiny model is stacked by each worker."""
    testing.check_engines(method, "mlp", "float32", ("sequential", "ray"))
    testing.check_engines(method, "mlp", "float64", ("sequential", "ray"))


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_resumed_is_uninterrupted(method, crew):
    testing.check_resume(method, "mlp", "ray")


def test_another_number_of_workers_goes_on_with_a_run(crew, tmp_path, sent):
    whole = testing.run(ua.Scaffold(), "cnn", engine="sequential", rounds=4)
    testing.run(ua.Scaffold(), "cnn", engine="ray", workers=2, rounds=2, folder=tmp_path / "run")
    del sent[:]
    rest = testing.run(ua.Scaffold(), "cnn", engine="ray", workers=1, rounds=4, folder=tmp_path / "run", resume=True)
    assert testing.difference(whole, rest) == 0
    assert sorted(sent) == [0, 1, 2, 3, 4, 5]  # everybody had rows in the checkpoint, and they went down once


# ---------------------------------------------------------------- who does what


def test_rows_stay_with_their_worker(crew, sent):
    everybody = {"clients_per_round": 1.0, "rounds": 4}
    dealt = testing.run(ua.Scaffold(), "cnn", engine="ray", **everybody)
    assert sent == []
    assert set(dealt.engine.owner) == {0, 1}
    assert testing.difference(testing.run(ua.Scaffold(), "cnn", engine="sequential", **everybody), dealt) == 0


def test_rows_move_when_their_worker_is_busy(crew, sent):
    """Clients 1 and 3 meet on different workers than those that ran them with others."""
    data = ua.Federation.from_arrays([(torch.randn(4, 5), torch.arange(4) % 3) for _ in range(4)], classes=3)
    cohorts = {"clients_per_round": [[0, 1, 2, 3], [0, 2], [0, 1], [1, 3]], "rounds": 8, "data": data}
    dealt = run(ua.Scaffold(), engine="ray", inner="sequential", **cohorts)
    assert 0 < len(sent) < 8 * 4
    assert testing.difference(run(ua.Scaffold(), **cohorts), dealt) == 0


def test_dealing():
    nobody = np.full(10, -1)
    assert np.bincount(deal(np.ones(10), nobody, 2)).tolist() == [5, 5]
    assert deal(np.array([5, 1, 1, 1, 1, 1]), nobody[:6], 2).tolist() == [0, 1, 1, 1, 1, 1]
    mine = np.array([1, 0, 1, 0, 1, 0, 1, 0, 1, 0])
    assert (deal(np.ones(10), mine, 2) == mine).all()
    crowded = deal(np.ones(10), np.ones(10, dtype=int), 2)
    assert np.bincount(crowded).tolist() == [5, 5]  # five of them move
    assert np.bincount(deal(np.ones(3), nobody[:3], 8), minlength=8).max() == 1


# ---------------------------------------------------------------- a worker dies


class Killer(ua.Callback):
    """Kills a worker in a given round, once it has begun to train there."""

    def __init__(self, folder, round):
        self.folder, self.round, self.killed = folder, round, []

    def on_start(self, run):
        self.pids = ray.get([a.__ray_call__.remote(lambda worker: os.getpid()) for a in run.engine.actors])

    def on_round(self, run, line):
        if line["round"] == self.round - 1:
            self.thread = threading.Thread(target=self.kill)
            self.thread.start()

    def kill(self):
        steps = self.folder / str(self.pids[0])
        before = steps.stat().st_size
        while steps.stat().st_size < before + 4:
            time.sleep(0.002)
        os.kill(self.pids[0], signal.SIGKILL)
        self.killed.append(self.pids[0])

    def on_end(self, run):
        self.thread.join()


def counting(folder):
    """Cross-entropy that takes its time and leaves a byte for every step in a file of its process."""

    def loss(output, y):
        with open(folder / str(os.getpid()), "ab") as file:
            file.write(b".")
        time.sleep(0.02)
        return torch.nn.functional.cross_entropy(output, y, reduction="none")

    return loss


@pytest.mark.slow
@pytest.mark.parametrize("method", (ua.Scaffold(), FeatureMean()), ids=lambda m: type(m).__name__)
def test_a_killed_worker_changes_nothing(method, crew, tmp_path, sent):
    """SCAFFOLD's clients have rows by then; FeatureMean's train in the second exchange, with what the first left."""
    many = {"rounds": 3, "clients_per_round": 1.0}
    killer = Killer(tmp_path, round=2)
    killed = testing.run(method, "cnn", engine="ray", loss=counting(tmp_path), callbacks=[killer], **many)
    assert len(killer.killed) == 1 and sent
    assert len(list(tmp_path.iterdir())) == 4  # this process tried the loss, and three workers
    assert testing.difference(testing.run(method, "cnn", engine="sequential", **many), killed) == 0


def test_clients_that_kill_every_worker(crew, monkeypatch):
    monkeypatch.setattr("unalike.engines.ray.TRIES", 1)

    def deadly(output, y):
        if os.getppid() != parent and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.nn.functional.cross_entropy(output, y, reduction="none")

    here, parent = os.getpid(), os.getppid()
    with refused("Round 1: 2 Ray workers died one after another with client 0"):
        testing.run(ua.FedAvg(), "cnn", engine="ray", workers=1, inner="sequential", loss=deadly)


# ---------------------------------------------------------------- a Ray of its own, or somebody's

SCRIPT = """
import json, os, sys
import torch
from test_ray import family
import unalike as ua
from unalike import testing
from unalike.engines.ray import load_ray

ray = load_ray()

class Mine(ua.FedAvg):
    def client(self, me, s, m):
        return me.train(m.w).then(self.halved)

    def halved(self, me, s, m, theta):
        return {}, {"delta": (theta - m.w) / 2}

class Stop(ua.Callback):
    def on_start(self, run):
        self.run = run
        self.pids = ray.get([a.__ray_call__.remote(lambda worker: os.getpid()) for a in run.engine.actors])

    def on_round(self, run, line):
        if line["round"] == 2:  # the workers commit the first round when the second begins
            look = lambda worker: worker.rows.mapped and worker.folder.exists()
            self.started = family(os.getpid())
            self.mapped = ray.get([a.__ray_call__.remote(look) for a in run.engine.actors])
            raise KeyboardInterrupt

torch.set_num_threads(1)
loss = lambda output, y: torch.nn.functional.nll_loss(output.log_softmax(-1), y, reduction="none")
local = ua.LocalTraining(steps=2, batch_size=5, lr=0.05, momentum=0.9, keep_optimizer=True)
settings = {"loss": loss, "local": local, "state_memory": 0}
alone = testing.run(Mine(), "cnn", engine="sequential", **settings)
stop = Stop()
try:
    testing.run(Mine(), "cnn", engine="ray", workers=2, callbacks=[stop], **settings)
except KeyboardInterrupt:
    left = ray.is_initialized()
joined = testing.run(Mine(), "cnn", engine="ray", address=sys.argv[1], **settings)
print(json.dumps({
    "differences": [testing.difference(alone, other) for other in (stop.run, joined)],
    "pids": stop.pids,
    "mapped": stop.mapped,
    "started": stop.started,
    "left": [left, ray.is_initialized()],
}))
"""


@pytest.mark.slow
def test_a_ray_of_its_own_and_one_that_it_joins(cluster, tmp_path):
    """With a method and a loss of the script's own. An interrupted run leaves nothing; one that joined leaves Ray."""
    (tmp_path / "script.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "script.py", cluster],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, TESTS, TESTS / "engines")))},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0 and error == "", error
    said = json.loads(out)
    assert said["differences"] == [0, 0] and said["left"] == [False, False]
    assert len(said["pids"]) == 2 and set(said["pids"]) <= set(said["started"]) and gone(said["started"])
    assert said["mapped"] == [True, True]
    assert not [pid for pid in said["pids"] if Path(tempfile.gettempdir(), f"unalike-ray-rows-{pid}").exists()]
    assert not list(Path(tempfile.gettempdir()).glob(f"unalike-ray-*/session_*_{process.pid}"))
    host, port = cluster.split(":")
    socket.create_connection((host, int(port)), timeout=10).close()


def test_a_failing_client_is_named(crew):
    class Wrong(ua.FedAvg):
        def client(self, me, s, m):
            return me.train(m.w @ m.w[:3]).then(self.done)

    with refused(r"Wrong\.client failed for client 0 \(given m\.w .*RuntimeError"):
        testing.run(Wrong(), "cnn", engine="ray")


def test_a_method_of_a_file(crew, tmp_path):
    (tmp_path / "neighbour.py").write_text("HALF = 0.5\n")
    (tmp_path / "mine.py").write_text(
        "import neighbour\nimport unalike as ua\n\n\nclass Mine(ua.FedAvg):\n"
        "    def client(self, me, s, m):\n        return me.train(m.w).then(self.halved)\n\n"
        "    def halved(self, me, s, m, theta):\n        return {}, {'delta': (theta - m.w) * neighbour.HALF}\n"
    )
    tables = {
        "data": {"name": "digits", "clients": 4},
        "model": {"name": "linear"},
        "method": {"file": f"{tmp_path / 'mine.py'}:Mine"},
        "local": {"steps": 2},
    }
    dealt = config.run({**tables, "run": {"rounds": 2, "engine": "ray", "workers": 2, "inner": "sequential"}})
    alone = config.run({**tables, "run": {"rounds": 2, "engine": "sequential"}})
    assert testing.difference(alone, dealt) == 0


# ---------------------------------------------------------------- mistakes


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with refused("needs Ray: pip install 'unalike\\[ray\\]'"):
        run(engine="ray")


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()

    def guarded(output, y):
        with lock:
            return torch.nn.functional.cross_entropy(output, y, reduction="none")

    with refused(r"The loss \(guarded\) cannot be sent to Ray's workers: cannot pickle '_thread.lock' object"):
        run(engine="ray", loss=guarded)
    with refused(r"The metric 'right' \(guarded\) cannot be sent"):
        run(engine="ray", metrics={"right": guarded})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"workers": 0}, "workers must be a whole number of at least 1; got 0"),
        ({"inner": "loopback"}, "There is no inner engine 'loopback'"),
        ({"address": "nowhere"}, "address='nowhere' must be 'auto', 'host:port' or 'ray://host:port'"),
        ({"address": "127.0.0.1:1"}, "There is no Ray cluster to join at '127.0.0.1:1': .*refused"),
    ],
)
def test_bad_options(options, match, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with refused(match):
        run(engine="ray", **options)


def test_bad_options_for_this_cluster(crew):
    with refused("Ray has 2 cores here and 3 are asked for: give workers=2"):
        run(engine="ray", workers=3)
    with refused("The batched engine cannot run this model: .*OwnGRU"):
        module = torch.nn.Sequential(Recurrent(), torch.nn.Linear(4, 3))
        run(engine="ray", inner="batched", module=module, workers=1)


class OwnGRU(torch.nn.GRU):
    pass


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = OwnGRU(5, 4, batch_first=True)

    def forward(self, x):
        return self.cell(x[:, None])[0][:, 0]
