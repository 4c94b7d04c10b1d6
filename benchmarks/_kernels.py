"""Are the convolution kernels right, and how fast is each with which configuration? Needs a CUDA device; a minute.

    python benchmarks/_kernels.py [conv1 conv2 odd] [--before FILE] [--seconds 50]

Each kernel is compared with float64 on the same bf16 numbers, at the shapes of FedDC's CIFAR CNN (100 clients, 50
pictures) and an odd one. Then each runs alone with its own configurations and those of EXTRA below, compiled in
parallel; the fastest comes first, and `*` marks the package's own. TFLOP/s count the products which the gradient needs,
not zeros or padding; GB/s count every operand once. At the end come whole operations, tuned. FILE is an older
kernels.py (`git show REF:unalike/nn/kernels.py > FILE`) whose operations run beside them; when --seconds are over,
configurations that are left are skipped.
"""

import argparse
import importlib.util
import inspect
import time
from concurrent.futures import ThreadPoolExecutor

import torch

STEPS = 50
# clients, pictures, height, width, channels, filters, window
SHAPES = {"conv1": (100, 50, 32, 32, 4, 64, 5), "conv2": (100, 50, 14, 14, 64, 64, 5), "odd": (3, 5, 11, 10, 16, 16, 3)}
# further configurations: constants, warps, stages
EXTRA = {
    "_forward": [
        ({"BP": 32, "BK": 64, "NEAR": False}, 4, 3), ({"BP": 32, "BK": 64, "NEAR": True}, 8, 3),
        ({"BP": 64, "BK": 64, "NEAR": False}, 4, 3), ({"BP": 32, "BK": 32, "NEAR": True}, 4, 4),
        ({"BP": 32, "BK": 64, "NEAR": False}, 4, 1), ({"BP": 64, "BK": 64, "NEAR": True}, 4, 2),
    ],
    "_forward_small": [({"BP": 16}, 4, 2), ({"BP": 16}, 4, 3), ({"BP": 32}, 4, 1), ({"BP": 32}, 8, 2)],
    "_weight_gradient": [
        ({"BM": 64, "BK": 128, "NEAR": False}, 4, 3), ({"BM": 64, "BK": 256, "NEAR": False}, 4, 3),
        ({"BM": 32, "BK": 256, "NEAR": False}, 8, 4), ({"BM": 128, "BK": 128, "NEAR": False}, 4, 3),
        ({"BM": 64, "BK": 256, "NEAR": True}, 4, 3), ({"BM": 32, "BK": 128, "NEAR": True}, 4, 4),
    ],
    "_weight_gradient_small": [({"BP": 16}, 4, 2), ({"BP": 16}, 4, 4), ({"BP": 32}, 4, 1), ({"BP": 32}, 8, 2)],
    "_input_gradient": [
        ({"BM": 128, "NEAR": False}, 4, 3), ({"BM": 256, "NEAR": False}, 4, 3), ({"BM": 128, "NEAR": True}, 8, 3),
        ({"BM": 128, "NEAR": True}, 4, 4), ({"BM": 128, "NEAR": False}, 4, 1), ({"BM": 256, "NEAR": True}, 4, 2),
    ],
}  # fmt: skip


def tensors(c, b, h, w, i, o, k):
    """Return pictures, weights, a bias and a gradient of the pooled pictures."""
    g = torch.Generator("cuda").manual_seed(0)
    shapes = (c, b, h, w, i), (c, k, k, i, o), (c, o), (c, b, (h - k + 1) // 2, (w - k + 1) // 2, o)
    x, lines, bias, grad = (torch.randn(shape, generator=g, device="cuda") for shape in shapes)
    if i == 4:  # three colours and a channel of zeros, as the layer makes them
        x[..., 3], lines[..., 3, :] = 0, 0
    return [t.bfloat16() for t in (x, lines / (k * i**0.5), bias, grad)]


def check(kernels, fast, shape):
    """Print each result's relative error for the first, a middle and the last client; return how many are wrong."""
    x, lines, bias, grad = tensors(*shape)
    c, k = shape[0], shape[6]
    y, won = kernels.conv_pool(x, lines, bias)
    some = torch.tensor(sorted({0, c // 2, c - 1}))
    back = kernels.conv_pool_backward(grad, won, x, lines, True)
    d, _ = kernels.unpool(grad, won, x, lines)
    x, lines, bias, grad, y, won, d = (t[some].cpu() for t in (x, lines, bias, grad, y, won, d))
    exact = [t.double() for t in (x, lines, bias)]
    want, places = fast.conv_pool(*exact)
    wants = fast.conv_pool_backward(grad.double(), won, *exact[:2], True)
    pairs = {"y": (y, want)} | {n: (a[some].cpu(), b) for n, a, b in zip(("dx", "dw", "db"), back, wants, strict=True)}
    errors = {n: ((a.double() - b).norm() / b.norm()).item() for n, (a, b) in pairs.items()}
    # two places whose values are nearly equal may change
    errors["won"] = (places != won).double().mean().item()
    spread = torch.zeros(d.shape, dtype=d.dtype)
    top, left = grad.shape[2:4]
    for q in range(4):
        rows, columns = slice(q // 2, 2 * top, 2), slice(k - 1 + q % 2, k - 1 + 2 * left, 2)
        spread[:, :, rows, columns] = torch.where(won == q, grad, 0)
    errors["d"] = float(not torch.equal(d, spread))
    wrong = {n for n, e in errors.items() if not e < 0.01}
    texts = (f"{n} {e:.1e}{' WRONG' if n in wrong else ''}" for n, e in errors.items())
    print("  errors: " + ", ".join(texts), flush=True)
    return len(wrong)


def launches(kernels, shape):
    """Return every kernel's grid and arguments at this shape, without running it: name -> (kernel, grid, arguments)."""
    x, lines, bias, grad = tensors(*shape)
    found = {}
    tuned = {n: v for n, v in vars(kernels).items() if isinstance(v, kernels._Tuned)}
    won = torch.zeros(grad.shape, dtype=torch.int8, device="cuda").random_(0, 5)
    for name, kernel in tuned.items():
        kernel.only = lambda grid, _, name=name, kernel=kernel: lambda *args: found.update({name: (kernel, grid, args)})
    torch.backends.cudnn.benchmark = False
    try:
        kernels.conv_pool(x, lines, bias)
        kernels.conv_pool_backward(grad, won, x, lines, shape[4] > 4)
    finally:
        for kernel in tuned.values():
            del kernel.only
    return found


def work(name, shape):
    """Return the operations a kernel must compute and the bytes it must move."""
    c, b, h, w, i, o, k = shape
    top, left = (h - k + 1) // 2, (w - k + 1) // 2
    pooled, weights, x = c * b * top * left * o, c * k * k * i * o * 2, c * b * h * w * i * 2
    d = c * b * 2 * top * (w + k - 1) * o * 2
    forward = x + weights + 3 * pooled
    moved = {
        "_forward": forward,
        "_forward_small": forward,
        "_weight_gradient": x + d + weights,
        "_weight_gradient_small": forward,
        "_input_gradient": d + x + weights,
    }
    return 2 * pooled * 4 * k * k * i, moved[name]


def explore(kernels, shape, until):
    """Time each kernel of this shape with each configuration."""
    import triton

    bench = triton.testing.do_bench
    cases = []
    for name, (kernel, grid, args) in launches(kernels, shape).items():
        extra = [triton.Config(constants, num_warps=w, num_stages=s) for constants, w, s in EXTRA[name]]
        cases += [(name, kernel, grid, args, config, config in kernel.configs) for config in (*kernel.configs, *extra)]

    cases.sort(key=lambda case: not case[-1])  # the package's own first, should time run out

    def compile_one(case):
        _, kernel, grid, args, config, _ = case
        try:
            kernel.kernel.warmup(*args, grid=grid, **config.all_kwargs())
        except Exception as problem:
            return repr(problem)

    with ThreadPoolExecutor(8) as pool:
        problems = list(pool.map(compile_one, cases))
    results = {}
    for (name, kernel, grid, args, config, own), problem in zip(cases, problems, strict=True):
        text = f"{'*' if own else ' '} {config.kwargs} {config.num_warps} warps {config.num_stages} stages"
        try:
            if problem is None and time.perf_counter() > until:
                problem = "skipped: no time left"
            if problem is None:
                launch = kernel.only(grid, config)
                ms = bench(lambda: launch(*args), warmup=3, rep=12, return_mode="median")  # noqa: B023
                results.setdefault(name, []).append((ms, text))
        except Exception as error:
            problem = repr(error)
        if problem is not None:
            print(f"  {name} {text}: {problem.splitlines()[0][:150]}", flush=True)
    for name, lines in results.items():
        operations, moved = work(name, shape)
        for ms, text in sorted(lines):
            rates = f"{operations / ms / 1e9:6.1f} TFLOP/s {moved / ms / 1e6:6.0f} GB/s"
            print(f"  {name:<23}{STEPS * ms:8.2f} ms per {STEPS}  {rates}  {text}", flush=True)


def whole(kernels, shape, label):
    """Time both operations, tuned; return the milliseconds per round."""
    import triton

    x, lines, bias, grad = tensors(*shape)
    # older kernels took PyTorch's layout of weights
    if "lines" not in inspect.signature(kernels.conv_pool).parameters:
        lines = lines.permute(0, 4, 3, 1, 2).contiguous()
    began, total = time.perf_counter(), 0.0
    _, won = kernels.conv_pool(x, lines, bias)
    calls = {"forward": lambda: kernels.conv_pool(x, lines, bias)}
    calls["backward"] = lambda: kernels.conv_pool_backward(grad, won, x, lines, shape[4] > 4)
    if hasattr(kernels, "unpool") and shape[4] > 4:
        calls["(unpool)"] = lambda: kernels.unpool(grad, won, x, lines)
    for name, call in calls.items():
        call()
        torch.cuda.synchronize()
        spent, ms = time.perf_counter() - began, triton.testing.do_bench(call, warmup=5, rep=30, return_mode="median")
        total += ms if not name.startswith("(") else 0
        print(f"  {label:<7}{name:<9}{STEPS * ms:8.2f} ms per {STEPS} (ready after {spent:.1f} s)", flush=True)
    return STEPS * total


def older(path):
    spec = importlib.util.spec_from_file_location("kernels_before", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def attempt(function, *args):
    """Call it; print an error in one line and go on."""
    try:
        return function(*args)
    except Exception as error:
        print(f"  {function.__name__} FAILED: {repr(error)[:300]}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--before", help="an older kernels.py")
    parser.add_argument("--seconds", type=float, default=50)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: needs a CUDA device")
        return 0
    import triton

    from unalike.nn import fast, kernels

    until, wrong, rounds = time.perf_counter() + args.seconds, 0, {}
    print(f"torch {torch.__version__}, triton {triton.__version__}, {torch.cuda.get_device_name()}", flush=True)
    for name in args.shapes:
        print(f"\n{name}: {SHAPES[name]}", flush=True)
        torch.backends.cudnn.benchmark, began = False, time.perf_counter()
        found = attempt(check, kernels, fast, SHAPES[name])
        wrong += 1 if found is None else found
        print(f"  first configurations compiled, run and compared: {time.perf_counter() - began:.1f} s", flush=True)
        if name != "odd":
            attempt(explore, kernels, SHAPES[name], until)
    for name in args.shapes:
        if name != "odd":
            print(f"\n{name}, whole operations", flush=True)
            torch.backends.cudnn.benchmark = True
            rounds.setdefault("now", []).append(attempt(whole, kernels, SHAPES[name], "now"))
            for label, kernel in vars(kernels).items():
                if isinstance(kernel, kernels._Tuned) and kernel.search.cache:
                    print(f"    {label}: {kernel.search.best_config}", flush=True)
            if args.before and time.perf_counter() < until + 30:
                rounds.setdefault("before", []).append(attempt(whole, older(args.before), SHAPES[name], "before"))
    for label, times in rounds.items():
        print(f"{label}: {sum(t or float('nan') for t in times):.1f} ms per {STEPS} steps in these operations")
    print("all right" if not wrong else f"{wrong} WRONG")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
