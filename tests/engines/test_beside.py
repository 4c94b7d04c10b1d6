"""Steps that are compiled in a thread of their own while rounds go on. Without a GPU the early steps are not captured,
and run as they are on static buffers."""

import math
import sys
import threading
import time
import types

import pytest
import torch

import unalike as ua
from unalike import testing
from unalike.engines.batched import Batched, beside, engine, graphs
from unalike.engines.batched.step import Step
from unalike.nn import fast

RUN = {"engine": "batched", "dtype": "float64", "clients_per_round": 1.0}


class Waiting(ua.Callback):
    """After the round that has begun to compile, wait for the end of it; notes which rounds had a compiled step."""

    def __init__(self, wait=True):
        self.wait, self.early, self.settled, self.steps = wait, [], [], []

    def on_round(self, run, line):
        steps = run.engine.steps_made
        self.early.append(any(step.early for step in steps))
        self.settled.append(run.engine.settled)
        self.steps.append(steps[0])
        for step in steps:
            if step.beside is not None and self.wait:
                step.beside.wait(60)


class Early(Batched):
    def __init__(self, job):
        super().__init__(job, fast=True)
        self.compile = True

    def begins_early(self):
        return True


@pytest.fixture
def early(monkeypatch):
    """Batched as it is on a GPU, as far as a CPU can: early steps; a compiler that gives the function back."""
    monkeypatch.setattr(torch, "compile", lambda f, **k: f)
    monkeypatch.setattr(engine, "WORTH", 0.0)
    monkeypatch.setitem(ua.engines.ENGINES, "batched", Early)


def test_rounds_begin_at_once_and_change_over(early):
    clock = Waiting()
    run = testing.run(ua.Scaffold(), "linear", rounds=8, callbacks=[clock], **RUN)
    assert clock.early == [True] * 4 + [False] * 4  # begun in the fourth round, used from the fifth on
    assert clock.settled == [False] * 4 + [True] * 4
    assert [step is clock.steps[0] for step in clock.steps] == clock.early  # another one from then on
    assert [step.mode for step in run.engine.steps_made] == ["compiled"] and not run.engine.notes
    plain = testing.run(ua.Scaffold(), "linear", rounds=8, **{**RUN, "engine": "sequential"})
    assert testing.difference(plain, run) < 1e-9


@pytest.mark.slow  # traces, which takes a quarter of a minute
@pytest.mark.parametrize("kind", ["linear", "norm"])
def test_a_compiler_in_a_thread_of_its_own(monkeypatch, kind):
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **k: compile(f, **{**k, "backend": "aot_eager"}))
    monkeypatch.setattr(engine, "WORTH", 0.0)
    monkeypatch.setitem(ua.engines.ENGINES, "batched", Early)
    run = testing.run(ua.Scaffold(), kind, rounds=6, callbacks=[Waiting()], **RUN)
    assert not run.engine.notes and not any(step.early for step in run.engine.steps_made)
    plain = testing.run(ua.Scaffold(), kind, rounds=6, **{**RUN, "engine": "sequential"})
    assert testing.difference(plain, run) < 1e-9


LATER = (frozenset(), frozenset({"alone", "norms"}))  # kinds of fast layers


@pytest.fixture
def layers(monkeypatch):
    """Fast layers that are made beside the rounds, in runs that are too short to compile."""
    monkeypatch.setattr(fast, "ON_CPU", LATER)
    monkeypatch.setattr(engine, "SOON", 0.0)
    monkeypatch.setattr(engine, "WORTH", 1e6)


class OwnLayers(Waiting):
    """Notes which layers the rounds had."""

    def __init__(self):
        super().__init__()
        self.fast = []

    def on_round(self, run, line):
        super().on_round(run, line)
        self.fast.append(tuple(self.steps[-1].pure.fast))


def pictures(**options):
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3, stride=2),
        torch.nn.GroupNorm(2, 16), torch.nn.Flatten(), torch.nn.Linear(16, 3),
    )  # fmt: skip
    x, y = torch.randn(24, 1, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3
    fed = ua.Federation.from_arrays([(x[:9], y[:9]), (x[9:], y[9:])], classes=3)
    local = ua.LocalTraining(epochs=1, batch_size=4, lr=0.1)
    return ua.simulate(model, fed, ua.Scaffold(), local=local, **{**RUN, "rounds": 7, **options})


def test_rounds_change_over_to_fast_layers(early, layers):
    clock = OwnLayers()
    torch.manual_seed(0)
    run = pictures(callbacks=[clock])
    assert clock.fast == [()] * 4 + [("0", "1", "3", "4")] * 3 and not run.engine.notes
    assert clock.settled == [False] * 4 + [True] * 3 and all(clock.early)  # none was compiled
    torch.manual_seed(0)
    plain = pictures(engine="sequential")
    assert testing.difference(plain, run) < 1e-9


def test_fast_layers_and_then_a_compiled_step(early, layers, monkeypatch):
    monkeypatch.setattr(engine, "WORTH", 0.0)
    clock = OwnLayers()
    run = pictures(callbacks=[clock])
    assert clock.early == [True] * 5 + [False] * 2 and clock.fast[4:] == [("0", "1", "3", "4")] * 3
    assert [step.mode for step in run.engine.steps_made] == ["compiled"]


@pytest.mark.parametrize("factor", [2, math.nan])
def test_fast_layers_with_another_gradient_are_not_taken(early, layers, monkeypatch, factor):
    monkeypatch.setattr(fast.norms.FastBatchNorm, "forward", lambda self, x: factor * x)
    clock = OwnLayers()
    run = pictures(callbacks=[clock])
    assert clock.fast == [()] * 7 and clock.settled[-1]
    assert run.engine.notes == ["layers stayed PyTorch's: the fast layers do not give the same gradient here"]


def test_a_short_run_keeps_its_layers(early, layers, monkeypatch):
    monkeypatch.setattr(engine, "SOON", 1e6)
    clock = OwnLayers()
    pictures(callbacks=[clock])
    assert clock.fast == [()] * 7 and clock.settled == [False] * 3 + [True] * 4


def test_a_short_run_does_not_compile(early, monkeypatch):
    monkeypatch.setattr(engine, "WORTH", 1e6)
    clock = Waiting()
    run = testing.run(ua.FedAvg(), "linear", rounds=6, callbacks=[clock], **RUN)
    assert all(clock.early) and clock.settled == [False] * 3 + [True] * 3
    assert not any(step.beside for step in run.engine.steps_made)


def test_a_step_that_cannot_be_compiled_stays(early, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", fails)
    run = testing.run(ua.FedAvg(), "linear", rounds=7, callbacks=[Waiting()], **RUN)
    assert run.engine.notes == ["the steps were not compiled: no compiler here"] and run.engine.settled
    plain = testing.run(ua.FedAvg(), "linear", rounds=7, **{**RUN, "engine": "sequential"})
    assert testing.difference(plain, run) < 1e-9


def test_the_end_of_a_run_cancels_its_compiler(early, monkeypatch):
    ended, interval = [], sys.getswitchinterval()
    sys.setswitchinterval(0.004)

    def slow(*_):
        try:
            while True:
                time.sleep(0.001)
        finally:
            ended.append(sys.getswitchinterval())

    monkeypatch.setattr("unalike.engines.batched.step.Step.warm", slow)
    run = testing.run(ua.FedAvg(), "linear", rounds=5, callbacks=[Waiting(wait=False)], **RUN)
    (compilation,) = (step.beside for step in run.engine.steps_made)
    compilation.wait(30)
    assert compilation.done and compilation.step is None and not compilation.error
    assert ended == pytest.approx([beside.SWITCH]) and sys.getswitchinterval() == pytest.approx(0.004)
    sys.setswitchinterval(interval)


def test_the_pace_of_a_run(monkeypatch):
    now = iter([10.0, 15.0, 16.0, 18.0, 20.0])
    monkeypatch.setattr(beside.time, "perf_counter", lambda: next(now))
    pace = beside.Pace()
    pace.rounds = 100
    for round in (0, 0, 1, 2):
        pace.begin(round)
        assert not pace.known and pace.left == 0
    pace.begin(3)
    assert pace.known and pace.left == 97 * 1.0  # the quickest round so far
    pace.begin(4)
    assert pace.left == 96 * 1.0
    pace.rounds = 0
    assert pace.left == float("inf")


@pytest.mark.parametrize(
    ("sizes", "rooms"), [([4, 6, 6, 4], [6]), ([4, 6, 4, 6], [6]), ([4, 6, 3, 3], [4, 6]), ([4, 6, 3, 4], [6, 4])]
)  # the last of them begin to compile
def test_cohorts_of_several_sizes_share_what_is_compiled(early, monkeypatch, sizes, rooms):
    made = []
    init = beside.Compilation.__init__
    monkeypatch.setattr(beside.Compilation, "__init__", lambda self, *a: (init(self, *a), made.append(self))[0])
    options = {**RUN, "rounds": 10, "clients_per_round": [[*range(n)] for n in (*sizes, *sizes[1:], *sizes[1:])]}
    run = testing.run(ua.Scaffold(), "linear", callbacks=[Waiting()], **options)
    assert [one.room for one in made] == rooms  # the other cohorts have room in these
    assert sorted(step.width for step in run.engine.steps_made if not step.early) == sorted(rooms)
    plain = testing.run(ua.Scaffold(), "linear", **{**options, "engine": "sequential"})
    assert testing.difference(plain, run) < 1e-9


class Tape:
    """What stands for a graph without a GPU: it does the work again."""

    def __init__(self, work):
        self.replay = work


@pytest.fixture
def taped(early, monkeypatch):
    """Steps in "graphs"; a list of those."""
    captured, init = [], Step.__init__

    def graphed(work, device, warm, pool):
        captured.append(pool)
        warm()
        return Tape(work), None

    def on_a_gpu(self, *args, **options):
        init(self, *args, **options)
        self.mode, self.pool = "graph", lambda: "pool"

    monkeypatch.setattr(Step, "__init__", on_a_gpu)
    monkeypatch.setattr(graphs, "graphed", graphed)
    return captured


@pytest.mark.parametrize(("long", "waits"), [(0.0, True), (1e6, False)])
def test_rounds_that_are_long_go_step_by_step_meanwhile(taped, monkeypatch, long, waits):
    """Else what is made beside them would wait for the device, a round for each kernel."""
    waited, stop = [], threading.Event()
    stream = types.SimpleNamespace(synchronize=lambda: waited.append(1))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
    monkeypatch.setattr(beside, "LONG", long)
    monkeypatch.setattr("unalike.engines.batched.step.Step.warm", lambda *_: stop.wait(60))
    seen = []

    class Captures(ua.Callback):
        def on_round(self, run, line):
            run.engine.capture = True
            seen.append((len(waited), run.engine.captures))

    run = testing.run(ua.FedAvg(), "linear", rounds=6, callbacks=[Captures()], **RUN)
    stop.set()
    steps = run.engine.steps_made[0].static.capacity  # as many at most in a round
    assert seen[:3] == [(0, False)] * 3  # the pace is not known yet
    assert [captures for _, captures in seen[3:]] == [not waits] * 3
    assert [count > 0 for count, _ in seen[3:]] == [False, waits, waits] and seen[5][0] <= 2 * steps


def test_what_compiles_kernels_ahead_of_a_capture_leaves_no_trace(taped, monkeypatch):
    """It makes a step whose results mean nothing, and moves the step's counter."""
    ahead = []

    def compile_ahead(work, device):
        ahead.append(device)
        work()

    monkeypatch.setattr(fast, "compile_ahead", compile_ahead)
    monkeypatch.setattr(fast, "ON_CPU", (LATER[1], frozenset()))
    monkeypatch.setattr(engine, "WORTH", 1e6)
    torch.manual_seed(0)
    run = pictures(rounds=3)
    assert run.engine.steps_made[0].pure.fast and not run.engine.notes and taped and len(ahead) > len(taped)
    torch.manual_seed(0)
    plain = pictures(rounds=3, engine="sequential")
    assert testing.difference(plain, run) < 1e-9


def test_what_the_first_round_waits_for(early):
    job = testing.run(ua.FedAvg(), "linear", rounds=0, **RUN).engine.job
    assert "takes longer" in Batched(job, compile=True).waits
    assert not Batched(job, compile=False).waits and not ua.engines.ENGINES["batched"](job).waits
    assert not Batched(job, compile=True).early
