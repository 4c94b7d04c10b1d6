"""Does a GPU give the CPU's results? Every method and model kind, eager, compiled and captured; golden numbers; resume.

python benchmarks/gpu_check.py        # needs a CUDA device; torch, numpy and safetensors are enough
"""

import sys
import tempfile
import time
from pathlib import Path

import torch

import unalike as ua
from unalike import testing

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from toys import TOYS

STRENGTHS = {"fedprox": {"mu": 1.0}, "fedavgr": {"trace": 1e-2, "frobenius": 1e-2, "mmd": 0.1}, "flhc": {"warmup": 0}}
STRENGTHS |= {"rfedavg": {"lam": 0.3}, "rfedavg-plus": {"lam": 0.3}, "oneshot": {"epochs": 3}}
OURS = [cls(**STRENGTHS.get(name, {})) for name, cls in ua.METHODS.items()]
METHODS = [*OURS, *TOYS]
LIMIT = {"float64": 1e-9, "float32": 1e-5}


def main() -> int:
    wrong = 0
    if not torch.cuda.is_available():
        print("skipped: needs a CUDA device")
        return 0
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}", flush=True)
    for kind in ("linear", "mlp", "cnn", "norm", "lstm"):
        for method in METHODS:
            for dtype in ("float64", "float32") if kind != "lstm" else ("float64",):
                reference = testing.run(method, kind, engine="sequential", dtype=dtype, device="cpu")
                cases = [("sequential", {}), ("batched", {"compile": False})]
                if dtype == "float32" and (
                    (kind == "mlp" and method in OURS) or (kind == "norm" and method == OURS[0])
                ):
                    cases.append(("batched", {"compile": True}))
                for engine, options in cases:
                    began = time.time()
                    try:
                        run = testing.run(method, kind, engine=engine, dtype=dtype, device="cuda", **options)
                    except Exception as error:
                        print(
                            "WRONG", kind, type(method).__name__, dtype, engine, options, repr(error)[:300], flush=True
                        )
                        wrong += 1
                        continue
                    move(run)
                    off = testing.difference(reference, run)
                    bad = off > LIMIT[dtype]
                    wrong += bad
                    modes = {p.mode for ps in getattr(run.engine, "_programs", {}).values() for p in ps}
                    notes = [n for ps in getattr(run.engine, "_programs", {}).values() for p in ps for n in p.notes]
                    print(
                        f"{'WRONG' if bad else 'ok':<6}{kind:<7}{type(method).__name__:<14}{dtype:<8}{engine:<11}"
                        f"{','.join(modes):<10}{off:.1e}  {time.time() - began:.1f}s {notes or ''}", flush=True,
                    )  # fmt: skip
    wrong += not resumed()
    print("all as on the CPU" if not wrong else f"{wrong} WRONG")
    return int(bool(wrong))


def move(run):
    """Bring what a run holds to the CPU for comparison."""
    for name, value in run.server._values.items():
        if isinstance(value, torch.Tensor):
            run.server._values[name] = value.cpu()
    store = run.clients
    run.clients = [{n: v.cpu() for n, v in store[k].items()} for k in range(run.population)]


def resumed() -> bool:
    """With deterministic=True a resumed run is the uninterrupted one, bit for bit."""
    options = dict(engine="batched", device="cuda", deterministic=True, compile=False)
    whole = testing.run(ua.Scaffold(), "mlp", rounds=3, **options)
    with tempfile.TemporaryDirectory() as folder:
        testing.run(ua.Scaffold(), "mlp", rounds=1, folder=f"{folder}/run", **options)
        again = testing.run(ua.Scaffold(), "mlp", rounds=3, folder=f"{folder}/run", resume=True, **options)
    same = bool(torch.equal(whole.server.w, again.server.w))
    print("resumed on the GPU:", "bit-identical" if same else "DIFFERENT", flush=True)
    return same


if __name__ == "__main__":
    raise SystemExit(main())
