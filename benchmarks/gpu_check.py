"""Does a GPU give the CPU's results? Every method and model kind, eager, compiled and captured; golden numbers; resume.

    python benchmarks/gpu_check.py                    # all, one part after another
    python benchmarks/gpu_check.py exchanges early    # parts of it
    python benchmarks/gpu_check.py methods 2/8        # every eighth method, from the second
    python benchmarks/gpu_check.py --processes 12     # all in so many processes side by side, and a summary

It needs a CUDA device; torch, numpy and safetensors are enough.
"""

import argparse
import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest.mock
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn

import unalike as ua
from unalike import testing
from unalike.engines.batched import lockstep
from unalike.engines.batched.captured import Captured
from unalike.engines.sequential import Sequential
from unalike.nn.capture import graphed

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from reach import REACHING

from unalike.testing.toys import TOYS

STRENGTHS = {"fedprox": {"mu": 1.0}, "fedavgr": {"trace": 1e-2, "frobenius": 1e-2, "mmd": 0.1}, "flhc": {"warmup": 0}}
STRENGTHS |= {"rfedavg": {"lam": 0.3}, "rfedavg-plus": {"lam": 0.3}, "oneshot": {"epochs": 3}}
STRENGTHS |= {"fedbuff": {"buffer": 2}}
STRENGTHS |= {"cfl": {"eps1": 9.0, "eps2": 0.0, "after": 0, "gamma": 0.0}, "fedfmc": {"fork": 1, "consolidate": 1}}
OURS = [cls(**STRENGTHS.get(name, {})) for name, cls in ua.METHODS.items()]
METHODS = [*OURS, *TOYS]
LIMIT = {"float64": 1e-9, "float32": 1e-5}
# methods whose server, or whose model, takes so many steps that rounding grows; in float64 they agree like all others
GROWS = {"FedDF": 3e-2, "Virtual": 1e-4}


SHARED = {"methods": 8, "early": 2}  # parts that several processes share: how many


def main() -> int:
    global METHODS, OURS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help=f"{', '.join(PARTS)}; K/N: the Kth of N shares of the methods")
    parser.add_argument("--processes", type=int, default=0, help="run in so many processes side by side")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds for all of these [3600]")
    given = parser.parse_args()
    parts = [name for name in given.what if "/" not in name]
    if unknown := [name for name in parts if name not in PARTS]:
        parser.error(f"there is no {unknown[0]!r}; there are {', '.join(PARTS)}")
    shares = [name.split("/") for name in given.what if "/" in name]
    if shares and given.processes:
        parser.error("--processes makes shares of its own: leave K/N out")
    for share in shares:
        numbers = [int(number) for number in share if number.isdecimal()]
        if len(numbers) != len(share) or len(share) != 2 or not 1 <= numbers[0] <= numbers[1] <= len(METHODS):
            parser.error(f"a share is K/N, of {len(METHODS)} methods; got {'/'.join(share)}")
    if not torch.cuda.is_available():
        print("skipped: needs a CUDA device")
        return 0
    if given.processes:
        return side_by_side(parts or list(PARTS), given.processes, given.limit)
    for k, count in (map(int, share) for share in shares):
        METHODS, OURS = METHODS[k - 1 :: count], OURS[k - 1 :: count]
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}", flush=True)
    wrong = sum(PARTS[name]() for name in parts or PARTS)
    print("all as on the CPU" if not wrong else f"{wrong} WRONG")
    return int(bool(wrong))


def side_by_side(parts: list[str], processes: int, limit: float) -> int:
    """Run parts in processes of their own; print how many comparisons held, which did not, and what did not end."""
    ends = time.time() + limit
    # each alone would take all cores, and all of them together would wait for one another
    each = str(max(1, (os.cpu_count() or 1) // processes))
    alone = {**os.environ, "OMP_NUM_THREADS": each, "TORCHINDUCTOR_COMPILE_THREADS": each}
    shares = [[name, f"{k + 1}/{n}"] for name, n in SHARED.items() if name in parts for k in range(n)]
    tasks = [*shares, *([name] for name in parts if name not in SHARED)]

    def ran(task: list[str]) -> tuple[str, str]:
        command = [sys.executable, "-W", "ignore", __file__, *task]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, env=alone
        ) as process:
            try:
                out, _ = process.communicate(timeout=max(0.0, ends - time.time()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # the compiler's processes too, which hold its output open
                return process.communicate()[0], "did not end in time"
        return out, "" if process.returncode == 0 else f"exit code {process.returncode}"

    failed = 0
    with ThreadPoolExecutor(processes) as pool:
        for task, (out, end) in zip(tasks, pool.map(ran, tasks), strict=True):
            lines = out.splitlines()
            held = sum(line.startswith("ok") for line in lines)
            wrong = [line for line in lines if line.startswith("WRONG")]
            end = end or ("" if held or wrong else "nothing was compared")
            # an error of the program itself has its reason in its last line
            more = [*wrong, *lines[-1:]] if end and not wrong else wrong
            print(f"{' '.join(task)}: {held} as on the CPU, {len(wrong)} not{'; ' + end if end else ''}", flush=True)
            print("".join(f"  {line}\n" for line in more), end="", flush=True)
            failed += bool(end or wrong)
    print("all as on the CPU" if not failed else f"{failed} of {len(tasks)} WRONG or not ended")
    return int(bool(failed))


def methods() -> int:
    """Every method and kind of model, one client after another, stacked, and compiled."""
    wrong = 0
    for kind in ("linear", "mlp", "cnn", "norm", "lstm"):
        for method in METHODS:
            for dtype in ("float64", "float32") if kind != "lstm" else ("float64",):
                reference = testing.run(method, kind, engine="sequential", dtype=dtype, device="cpu")
                cases = [("sequential", {}), ("batched", {"compile": False})]
                if dtype == "float32" and (
                    (kind == "mlp" and method in OURS) or (kind == "norm" and isinstance(method, ua.FedAvg))
                ):
                    cases.append(("batched", {"compile": True}))
                for engine, options in cases:
                    wrong += compared(method, kind, reference, engine, dtype, **options)
    return wrong


def early() -> int:
    """Every method as it runs by default: steps captured as they are, before anything is compiled."""
    wrong = 0
    for method in METHODS:
        reference = testing.run(method, "mlp", engine="sequential", dtype="float64", device="cpu")
        wrong += compared(method, "mlp", reference, "batched", "float64")
    return wrong


def one_by_one() -> int:
    """Steps of one client as graphs, as for models that cannot be stacked."""
    wrong = 0
    with unittest.mock.patch.dict(ua.engines.ENGINES, {"sequential": Capturing}):
        for kind in ("linear", "mlp", "cnn", "norm", "lstm"):
            for method in (ua.FedAvg(), ua.Scaffold(), ua.FedDC(alpha=0.1)):
                adam = {"local": ua.LocalTraining(epochs=1, batch_size=4, lr=0.01, optimizer="adam")}
                # a bias before BatchNorm has no gradient but rounding, which Adam makes a whole step of
                for local in ({}, adam) if kind != "norm" else ({},):
                    given = {"engine": "sequential", "dtype": "float64", **local}
                    reference = testing.run(method, kind, device="cpu", **given)
                    wrong += compared(method, kind, reference, "sequential", "float64", **local)
    return wrong


class Capturing(Sequential):
    def __init__(self, job):
        super().__init__(job)
        if job.task.device.type == "cuda":
            self.capture()


class Looking(nn.Module):
    """Looks at a value: no graph can be made of it."""

    def forward(self, x):
        return x if x.abs().max().item() < 1e9 else x / 10


def failures() -> int:
    """Captures that fail: a run goes on as on the CPU, and the process can draw and capture as before."""
    wrong, (module, fed) = 0, testing.task("mlp")
    module = nn.Sequential(Looking(), module)
    plain = {"local": ua.LocalTraining(epochs=2, batch_size=5, lr=0.05)}
    ways = [("auto", ua.Scaffold(), {}), ("sequential", ua.Scaffold(), {}), ("sequential", ua.FedAvg(), plain)]
    for engine, method, more in ways:
        with unittest.mock.patch.dict(ua.engines.ENGINES, {"sequential": Capturing}):
            given = testing.settings(engine=engine, dtype="float64", **more)
            reference, run = (ua.simulate(module, fed, method, device=d, **given) for d in ("cpu", "cuda"))
        move(run)
        off = testing.difference(reference, run)
        bad = not off <= LIMIT["float64"] or not run.engine.notes
        wrong += bad
        words = f"looking {type(method).__name__} {engine:<11}{off:.1e} {run.engine.notes}"
        print(f"{'WRONG' if bad else 'ok':<6}{words}", flush=True)
        wrong += _mended(lambda: None, f"after {engine}")
    x = torch.zeros(3, device="cuda")
    wrong += _mended(lambda: x.sum().item(), "after a value was read")
    wrong += _mended(lambda: [][0], "after an error of Python")
    return wrong


def _mended(work, title) -> bool:
    """Whether this process can no longer draw, or capture into the pool of a capture of this work."""
    device, pool, x = torch.device("cuda", 0), torch.cuda.graph_pool_handle(), torch.zeros(3, device="cuda")
    before, problem = torch.cuda.memory_reserved(), ""
    try:
        for _ in range(20):
            with contextlib.suppress(Exception):
                graphed(lambda: (torch.ones(1 << 22, device=device), work()), device, lambda: None, pool)
        torch.rand(3, device=device)
        graph, _ = graphed(lambda: x.add_(1), device, lambda: None, pool)
        graph.replay()
        problem = "" if x.tolist() == [1, 1, 1] else f"replayed: {x.tolist()}"
        grown = torch.cuda.memory_reserved() - before
        problem = problem or ("" if grown < 10 << 24 else f"{grown >> 20} MB are kept")
    except Exception as error:
        problem = repr(error)[:300]
    print(f"{'WRONG' if problem else 'ok':<6}{title} {problem}", flush=True)
    return bool(problem)


def reach() -> int:
    """What methods can ask for further: public data, parts, states, draws, networks; stacked, and compiled."""
    wrong = 0
    for toy in REACHING:
        for kind, dtype in (("mlp", "float64"), ("cnn", "float32")):
            reference = testing.run(toy(), kind, engine="sequential", dtype=dtype, device="cpu")
            ways = [("sequential", {}), ("batched", {"compile": False})]
            ways += [("batched", {"compile": True})] if kind == "mlp" else []
            for engine, options in ways:
                wrong += compared(toy(), kind, reference, engine, dtype, **options)
    return wrong


def exchanges() -> int:
    """Everybody in every round, so that from the third on whole exchanges are replayed."""
    wrong, options = 0, {"rounds": 6, "clients_per_round": 1.0}
    for method in OURS:
        reference = testing.run(method, "linear", engine="sequential", dtype="float64", device="cpu", **options)
        wrong += compared(method, "linear", reference, "batched", "float64", compile=True, **options)
    return wrong


def drift() -> int:
    """Data that change as rounds pass, under steps and exchanges that were captured before they changed."""
    wrong, task, options = 0, testing.task, {"rounds": 7, "clients_per_round": 1.0}

    def drifting(kind):
        module, data = task(kind)
        return module, data.skewed("drift:6:3:shift:1|stream:5")

    testing.task = drifting
    try:
        for kind in ("linear", "mlp", "cnn"):
            reference = testing.run(ua.Scaffold(), kind, engine="sequential", dtype="float64", device="cpu", **options)
            for way in ({"compile": False}, {"compile": True}):
                wrong += compared(ua.Scaffold(), kind, reference, "batched", "float64", **way, **options)
    finally:
        testing.task = task
    return wrong


def compared(method, kind, reference, engine, dtype, **options) -> bool:
    """Whether a run on the GPU is wrong, in a line with how it ran."""
    began = time.time()
    try:
        run = testing.run(method, kind, engine=engine, dtype=dtype, device="cuda", **options)
    except Exception as error:
        print("WRONG", kind, type(method).__name__, dtype, engine, options, repr(error)[:300], flush=True)
        return True
    move(run)
    off = testing.difference(reference, run)
    bad = not off <= (GROWS.get(type(method).__name__, LIMIT[dtype]) if dtype == "float32" else LIMIT[dtype])
    programs = [p for ps in getattr(run.engine, "steps", {}).values() for p in ps]
    modes, notes = {p.mode for p in programs}, run.engine.notes
    if engine == "batched":
        known = run.engine.exchanges.known.items()
        modes |= {f"whole {function}" for (function, *_), e in known if isinstance(e, Captured)}
    print(
        f"{'WRONG' if bad else 'ok':<6}{kind:<7}{type(method).__name__:<14}{dtype:<8}{engine:<11}"
        f"{','.join(sorted(modes)):<10} {off:.1e}  {time.time() - began:.1f}s {notes or ''}", flush=True,
    )  # fmt: skip
    return bad


# pictures: clients, batch, height, width, channels, filters, window
SHAPES = [(3, 7, 32, 32, 4, 64, 5), (2, 5, 14, 14, 64, 64, 5), (3, 4, 13, 11, 8, 32, 3), (2, 3, 9, 9, 20, 128, 3),
          (4, 2, 32, 32, 4, 16, 5), (2, 6, 18, 18, 32, 64, 5)]  # fmt: skip
# the same, and stride and padding
ALONE = [(3, 5, 11, 10, 24, 48, 5, 1, 2), (2, 4, 8, 8, 64, 128, 3, 2, 1), (1, 3, 9, 7, 16, 32, 1, 2, 0),
         (2, 7, 16, 16, 128, 64, 3, 1, 1), (2, 32, 8, 8, 64, 64, 3, 1, 1)]  # fmt: skip
# clients, batch, height, width, channels, window, stride, padding
EACH = [(3, 5, 32, 32, 32, 3, 1, 1), (2, 4, 9, 7, 33, 5, 2, 2), (2, 3, 8, 8, 130, 3, 2, 0)]
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 8e-3}  # of one number of that kind, with a little room


def apart(got, want) -> float:
    """The largest relative difference of tensors from those of a CPU; NaN if there is one."""
    both = zip(got, want, strict=True)
    return float(torch.stack([(g.double().cpu() - w.double()).norm() / w.double().norm() for g, w in both]).max())


def operations() -> int:
    """Each kernel and its backward against the same operation in float64 on the CPU, on the same rounded numbers."""
    from unalike.nn.fast import conv, conv_pool, depthwise, norms, recurrent

    wrong = 0

    def compare(what, kind, got, want):
        nonlocal wrong
        off = apart(got, want)
        wrong += not off <= ROUNDING[kind]
        word = "ok" if off <= ROUNDING[kind] else "WRONG"
        print(f"{word:<6}{what:<52}{str(kind)[6:]:<10}{off:.1e}", flush=True)

    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False  # strict float32
    for kind in ROUNDING:
        for c, b, h, w, i, o, k in SHAPES if kind == torch.bfloat16 else SHAPES[:1]:  # float32 is not used: a sample
            x, lines, bias = torch.randn(c, b, h, w, i), torch.randn(c, k, k, i, o) / (k * i**0.5), torch.randn(c, o)
            here = [t.to(kind).double() for t in (x, lines, bias)]
            there = [t.cuda().to(kind) for t in (x, lines, bias)]
            y, won = conv_pool.conv_pool(*there)
            want, _ = conv_pool.conv_pool(*here)
            shape = f"{c}×{b}×{h}×{w}×{i}, {o} filters of {k}×{k}"
            compare(f"convolution {shape}", kind, [y], [want])
            g = torch.randn(y.shape).to(kind)
            got = conv_pool.conv_pool_backward(g.cuda(), won, there[0], there[1], True)
            want = conv_pool.conv_pool_backward(g.double(), won.cpu(), here[0], here[1], True)
            compare(f"  its gradients {shape}", kind, got, want)
        for c, b, h, w, i, o, k, stride, padding in ALONE:
            x, lines = torch.randn(c, b, h, w, i), torch.randn(c, o, k, k, i) / (k * i**0.5)
            here, there = [t.to(kind).double() for t in (x, lines)], [t.cuda().to(kind) for t in (x, lines)]
            (y,), (want,) = conv.conv(*there, stride, padding), conv.conv(*here, stride, padding)
            shape = f"{c}×{b}×{h}×{w}×{i}, {o} filters of {k}×{k}, stride {stride}"
            compare(f"plain convolution {shape}", kind, [y], [want])
            g = torch.randn(y.shape).to(kind)
            got = conv.conv_backward(g.cuda(), *there, stride, padding, True)
            want = conv.conv_backward(g.double(), *here, stride, padding, True)
            compare(f"  its gradients {shape}", kind, got, want)
        for c, b, h, w, i, k, stride, padding in EACH:
            x, lines = torch.randn(c, b, h, w, i), torch.randn(c, k, k, i) / k
            here, there = [t.to(kind).double() for t in (x, lines)], [t.cuda().to(kind) for t in (x, lines)]
            got, want = (depthwise.depthwise(*given, stride, padding) for given in (there, here))
            shape = f"{c}×{b}×{h}×{w}×{i}, {k}×{k}, stride {stride}"
            compare(f"each channel {shape}", kind, got, want)
            g = torch.randn(got[0].shape).to(kind)
            got = depthwise.depthwise_backward(g.cuda(), *there, stride, padding, True)
            want = depthwise.depthwise_backward(g.double(), *here, stride, padding, True)
            compare(f"  its gradients {shape}", kind, got, want)
            for last in (True, False):  # the channels in memory
                x, g = (torch.randn(c, b, h, w, i).permute(0, 1, 4, 2, 3).to(kind) for _ in range(2))
                x, g = (t + 1 if last else (t + 1).contiguous() for t in (x, g))
                few = [torch.randn(c, b, i) for _ in range(3)]
                where = f"{c}×{b}×{i}×{h}×{w}, channels {'last' if last else 'first'}"
                got, want = norms.moments(x.cuda()), norms.moments(x.double())
                compare(f"moments {where}", kind, got, want)
                want = norms.sums(g.double(), x.double(), few[0].double())
                compare(f"  sums {where}", kind, norms.sums(g.cuda(), x.cuda(), few[0].cuda()), want)
                want = norms.scaled(x.double(), *(t.double() for t in few[:2]))
                compare(f"  scaled {where}", kind, [norms.scaled(x.cuda(), *(t.cuda() for t in few[:2]))], [want])
                want = norms.scaled_back(g.double(), x.double(), *(t.double() for t in few))
                got = norms.scaled_back(g.cuda(), x.cuda(), *(t.cuda() for t in few))
                compare(f"  its gradient {where}", kind, [got], [want])
                for groups in (n for n in (1, 2, 8, i) if i % n == 0):
                    factors = torch.randn(c, i), torch.randn(c, i)
                    got = norms.group_norm(x.cuda(), *(t.cuda() for t in factors), groups, 1e-5)
                    want = norms.group_norm(x.double(), *(t.double() for t in factors), groups, 1e-5)
                    compare(f"{groups} groups {where}", kind, got, want)
                    given = (g, x, factors[0], *want[1:])
                    want = norms.group_norm_backward(*(t.double() for t in given))
                    wide = (kind, kind, *[torch.float32] * 3)
                    got = norms.group_norm_backward(*(t.to(k).cuda() for t, k in zip(given, wide, strict=True)))
                    compare(f"  its gradients {where}", kind, got, want)
        for c, steps, b, width in ((3, 9, 4, 100), (2, 5, 7, 33)):
            gates, weight = torch.randn(c, steps, b, 4 * width), torch.randn(c, 4 * width, width) / width**0.5
            there = [t.cuda().to(kind) for t in (gates, weight)]
            out = recurrent.lstm(*there)
            want = recurrent.lstm(*(t.to(kind).double() for t in (gates, weight)))
            compare(f"LSTM {c}×{steps}×{b}×{width}", kind, out[:1], want[:1])
            g = torch.randn(out[0].shape).to(kind)
            got = recurrent.lstm_backward(g.cuda(), *out, there[1])
            want = recurrent.lstm_backward(g.double(), *(t.double().cpu() for t in (*out, there[1])))
            compare(f"  its gradients {c}×{steps}×{b}×{width}", kind, got, want)
            gates, weight = torch.randn(c, steps, b, 3 * width), torch.randn(c, 3 * width, width) / width**0.5
            given = gates, weight, torch.randn(c, 3 * width)
            there = [t.cuda().to(kind) for t in given]
            out, want = recurrent.gru(*there), recurrent.gru(*(t.to(kind).double() for t in given))
            compare(f"GRU {c}×{steps}×{b}×{width}", kind, out[:1], want[:1])
            g = torch.randn(out[0].shape).to(kind)
            got = recurrent.gru_backward(g.cuda(), *out, there[1])
            want = recurrent.gru_backward(g.double(), *(t.double().cpu() for t in (*out, there[1])))
            compare(f"  its gradients {c}×{steps}×{b}×{width}", kind, got, want)
    return wrong


def move(run):
    """Bring what a run holds to the CPU for comparison."""
    for name, value in run.server.values.items():
        if isinstance(value, torch.Tensor):
            run.server.values[name] = value.cpu()
    store = run.clients
    run.clients = [{n: v.cpu() for n, v in store[k].items()} for k in range(run.population)]


def resume() -> int:
    """With deterministic=True a resumed run is the uninterrupted one, bit for bit."""
    options = dict(engine="batched", device="cuda", deterministic=True, compile=False)
    whole = testing.run(ua.Scaffold(), "mlp", rounds=3, **options)
    with tempfile.TemporaryDirectory() as folder:
        testing.run(ua.Scaffold(), "mlp", rounds=1, folder=f"{folder}/run", **options)
        again = testing.run(ua.Scaffold(), "mlp", rounds=3, folder=f"{folder}/run", resume=True, **options)
    same = bool(torch.equal(whole.server.w, again.server.w))
    print("ok    resumed on the GPU: bit-identical" if same else "WRONG resumed on the GPU: different", flush=True)
    return not same


class Changing(ua.Callback):
    """Waits for what is compiled beside the rounds, so that the next round changes over; counts the waits."""

    count = 0

    def on_round(self, run, line):
        for step in run.engine.steps_made if hasattr(run.engine, "steps_made") else []:
            if step.beside is not None:
                step.beside.wait()
                self.count += 1


def architectures() -> int:
    """Architectures of benchmarks/models.py: one by one, stacked, captured as they are and changed over in mid-run."""
    from models import MODELS

    from unalike.engines.batched import engine as batched

    wrong, batched.SOON = 0, 0.0
    texts = ("attention", "transformer", "gpt", "lora", "bilstm", "gru", "rnn")
    for name in ("mlp", *texts, "batchnorm", "residual", "depthwise", "unet", "mobile"):
        build, data = MODELS[name]
        x, y = data(4 * 3 * 8)
        fed = ua.Federation(ua.data.Columns(x, y, [0, 24, 40, 72, 96]))
        vectors = {}
        for way in WAYS:
            torch.manual_seed(0)
            began, changing = time.time(), Changing()
            options = {"callbacks": [changing], **WAYS[way]}
            layers = way == "own layers"
            if layers and name in ("mlp", *texts):
                continue
            batched.WORTH = float("inf") if layers else 0.0
            run = ua.simulate(
                build(), fed, ua.FedAvg(), rounds=6, local=ua.LocalTraining(epochs=1, batch_size=8, lr=0.01),
                evaluate_clients="none", **options,
            )  # fmt: skip
            vectors[way] = (run.server.w - run.task.start).double().cpu()
            off = apart([vectors[way]], [vectors["on a CPU"]])
            modes = {step.mode for step in getattr(run.engine, "steps_made", [])}
            bad = not off <= (2e-2 if layers else 2e-3) or (way in ("changing", "own layers") and changing.count == 0)
            bad |= layers and not all(step.pure.fast for step in run.engine.steps_made)
            wrong += bad
            print(
                f"{'WRONG' if bad else 'ok':<6}{name:<12}{way:<16}{off:.1e} {time.time() - began:6.1f}s "
                f"{','.join(modes)} {run.engine.notes or ''}", flush=True,
            )  # fmt: skip
    return wrong


WAYS = {
    "on a CPU": {"engine": "sequential", "device": "cpu"},
    "one by one": {"engine": "sequential", "device": "cuda"},
    "eager": {"engine": "batched", "device": "cuda", "compile": False},
    "changing": {"engine": "batched", "device": "cuda"},
    "own layers": {"engine": "batched", "device": "cuda", "precision": "tf32"},
}


def pictures() -> int:
    """Pictures that are held as bytes beside the same numbers as float32: eager, early, compiled, whole exchanges."""
    from unalike.data.pixels import numbers, pixels

    wrong, g = 0, torch.Generator().manual_seed(0)
    held = pixels(
        torch.randint(0, 256, (96, 3, 8, 8), dtype=torch.uint8, generator=g), (0.5, 0.4, 0.3), (0.2, 0.3, 0.1)
    )
    models = {
        "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 5)),
        "cnn": lambda: nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 5)),
    }
    ways = {"eager": {"compile": False}, "early": {}, "compiled": {"compile": True}, "moved": {}}
    for name, build in models.items():
        for way, options in ways.items():
            local = ua.LocalTraining(epochs=1, batch_size=8, lr=0.05, augment="flip,crop:1" if way == "moved" else None)
            vectors = []
            for x in (held, numbers(held)):
                torch.manual_seed(0)
                fed = ua.Federation(ua.data.Columns(x, torch.arange(96) % 5, [0, 24, 48, 72, 96]))
                run = ua.simulate(
                    build(), fed, ua.FedAvg(), rounds=6, local=local, engine="batched", device="cuda",
                    evaluate_clients="none", **options,
                )  # fmt: skip
                vectors.append((run.server.w - run.task.start).double().cpu())
            off = apart(vectors[:1], vectors[1:])
            wrong += not off <= 1e-4
            word = "ok" if off <= 1e-4 else "WRONG"
            print(f"{word:<6}{name:<8}as bytes {way:<10}{off:.1e} {run.engine.notes or ''}", flush=True)
    return wrong


def together() -> int:
    """Three runs in one stack beside each of them alone on the CPU."""

    def one(method, kind, seed, member=None, **given):
        module, fed = testing.task(kind)
        given |= {"dtype": "float64", "rounds": 6, "clients_per_round": 0.7}
        return ua.simulate(
            module, fed.replace(public=None), method, **testing.settings(seed=seed, member=member, **given)
        )

    wrong, few = 0, ("fedavg", "scaffold", "feddyn", "feddc", "qfedavg", "rfedavg-plus", "fedavgr", "flhc", "oneshot")
    for kind in ("mlp", "cnn", "lstm"):
        for method in (ua.METHODS[name](**STRENGTHS.get(name, {})) for name in few):
            began = time.time()
            alone = [one(method, kind, seed, engine="sequential", device="cpu") for seed in range(3)]
            given = {"engine": "batched", "device": "cuda"}
            starts = [functools.partial(one, method, kind, seed, **given) for seed in range(3)]
            try:
                runs = lockstep.together(starts)
            except Exception as error:
                print("WRONG", kind, type(method).__name__, "together", repr(error)[:300], flush=True)
                wrong += 1
                continue
            for run in runs:
                move(run)
            off = max(testing.difference(*pair) for pair in zip(alone, runs, strict=True))
            shared = max(run.engine.together for run in runs)
            bad = shared < 3 or not off <= LIMIT["float64"]
            wrong += bad
            word = "WRONG" if bad else "ok"
            print(
                f"{word:<6}{kind:<7}{type(method).__name__:<14}{shared} together {off:.1e}  {time.time() - began:.1f}s "
                f"{runs[0].engine.notes or ''}", flush=True,
            )  # fmt: skip
    return wrong


PARTS = {
    "operations": operations, "early": early, "one-by-one": one_by_one, "failures": failures,
    "architectures": architectures, "exchanges": exchanges, "pictures": pictures,
    "drift": drift, "reach": reach, "methods": methods,
    "resume": resume, "together": together,
}  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main())
