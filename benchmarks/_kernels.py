"""Are the convolution kernels right, and how fast is each with which configuration? Needs a CUDA device; a minute.

    python benchmarks/_kernels.py [conv1 conv2 odd] [--before FILE] [--seconds 50]
    python benchmarks/_kernels.py plain [--seconds 45]

Each kernel is compared with float64 on the same bf16 numbers, at the shapes of FedDC's CIFAR CNN (100 clients, 50
pictures) and an odd one. Then each runs alone with its own configurations and those of EXTRA below, compiled in
parallel; the fastest comes first, and `*` marks the package's own. TFLOP/s count the products which the gradient needs,
not zeros or padding; GB/s count every operand once. At the end come whole operations, tuned. FILE is an older
conv_pool.py (`git show REF:unalike/nn/kernels/conv_pool.py > FILE`) whose operations run beside them; when --seconds
are over, configurations that are left are skipped.

`plain` is about convolutions with no pooling behind them, at the shapes of a small residual model and of ResNet18 (20
clients, 32 pictures), in tf32 and bf16: relative errors against float64, milliseconds beside those of cuDNN's grouped
convolution, some shapes with each configuration, and cuDNN with its search and with the channels last.
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
# of `plain`: clients, pictures, height, width, channels, filters, window, stride, padding
ALONE = {
    "residual 32": (20, 32, 32, 32, 32, 32, 3, 1, 1), "residual 64": (20, 32, 16, 16, 64, 64, 3, 1, 1),
    "resnet 64": (20, 32, 32, 32, 64, 64, 3, 1, 1), "resnet 128": (20, 32, 16, 16, 128, 128, 3, 1, 1),
    "resnet 256": (20, 32, 8, 8, 256, 256, 3, 1, 1), "resnet 512": (20, 32, 4, 4, 512, 512, 3, 1, 1),
    "resnet down": (20, 32, 32, 32, 64, 128, 3, 2, 1), "residual 1x1": (20, 32, 16, 16, 32, 64, 1, 1, 0),
    "odd": (3, 5, 11, 10, 24, 48, 5, 1, 2),
}  # fmt: skip
KINDS = {"tf32": torch.float32, "bf16": torch.bfloat16}
# further configurations: constants, warps, stages
EXTRA = {
    "_convolve": [({"BM": 256}, 4, 3), ({"BM": 128}, 8, 3), ({"BM": 128}, 4, 2), ({"BM": 256}, 8, 4)],
    "_window_gradient": [({"BM": 128}, 4, 3), ({"BM": 64}, 4, 4), ({"BM": 128}, 8, 2)],
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


def all_tuned():
    """Return the kernels that try configurations, by name."""
    from unalike.nn.kernels.tuned import Tuned

    modules = [importlib.import_module(f"unalike.nn.kernels.{name}") for name in ("conv", "conv_pool")]
    return {n: v for module in modules for n, v in vars(module).items() if isinstance(v, Tuned)}


def launches(kernels, *calls):
    """Return the kernels that the calls would launch, with grid and arguments, without running them."""
    found = []
    tuned = all_tuned()
    for name, kernel in tuned.items():
        kernel.only = lambda grid, _, n=name, k=kernel: lambda *args: found.append((n, k, grid, args))
    torch.backends.cudnn.benchmark = False
    try:
        for call in calls:
            call()
    finally:
        for kernel in tuned.values():
            del kernel.only
    return found


def pooled_launches(kernels, shape):
    x, lines, bias, grad = tensors(*shape)
    won = torch.zeros(grad.shape, dtype=torch.int8, device="cuda").random_(0, 5)
    found = launches(
        kernels,
        lambda: kernels.conv_pool(x, lines, bias),
        lambda: kernels.conv_pool_backward(grad, won, x, lines, shape[4] > 4),
    )
    return [(name, *case, *work(name, shape)) for name, *case in found]


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


def compiled(cases):
    """Compile kernels (kernel, grid, arguments, configuration) in parallel; return each one's error, or None."""

    def compile_one(case):
        kernel, grid, args, config = case
        try:
            kernel.kernel.warmup(*args, grid=grid, **config.all_kwargs())
        except Exception as problem:
            return repr(problem)

    with ThreadPoolExecutor(12) as pool:
        return list(pool.map(compile_one, cases))


def explore(launched, until):
    """Time each launched kernel (label, kernel, grid, arguments, operations, bytes) with each configuration."""
    import triton

    bench = triton.testing.do_bench
    cases = []
    amounts = {label: (operations, moved) for label, _, _, _, operations, moved in launched}
    for name, kernel, grid, args, _, _ in launched:
        extra = [triton.Config(constants, num_warps=w, num_stages=s) for constants, w, s in EXTRA[name.split()[0]]]
        cases += [(name, kernel, grid, args, config, config in kernel.configs) for config in (*kernel.configs, *extra)]

    cases.sort(key=lambda case: not case[-1])  # the package's own first, should time run out

    problems = compiled([case[1:5] for case in cases])
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
        operations, moved = amounts[name]
        for ms, text in sorted(lines):
            rates = f"{operations / ms / 1e9:6.1f} TFLOP/s {moved / ms / 1e6:6.0f} GB/s"
            print(f"  {name:<29}{STEPS * ms:8.2f} ms per {STEPS}  {rates}  {text}", flush=True)


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


# ---------------------------------------------------------------- convolutions alone


def alone(shape, kind):
    """Return pictures, weights and a gradient of the result, as the kernels take them."""
    c, b, h, w, i, o, k, stride, padding = shape
    g = torch.Generator("cuda").manual_seed(0)
    high, wide = ((n + 2 * padding - k) // stride + 1 for n in (h, w))
    shapes = (c, b, h, w, i), (c, o, k, k, i), (c, b, high, wide, o)
    x, lines, grad = (torch.randn(shape, generator=g, device="cuda") for shape in shapes)
    return [t.to(kind) for t in (x, lines / (k * i**0.5), grad)]


def ours(kernels, shape, kind):
    x, lines, grad = alone(shape, kind)
    return {
        "forward": lambda: kernels.conv(x, lines, *shape[7:]),
        "dx": lambda: kernels.conv_input_gradient(grad, x, lines, *shape[7:]),
        "dw": lambda: kernels.conv_weight_gradient(grad, x, lines, *shape[7:]),
    }


def grouped(shape, kind, layout):
    """Return the same three of PyTorch's convolution with one group per client."""
    from unalike.nn.fast.conv import own_filters
    from unalike.nn.fast.conv_pool import in_groups

    c, stride, padding = shape[0], shape[7], shape[8]
    x, lines, grad = alone(shape, kind)
    x, grad = (in_groups(t).contiguous(memory_format=layout) for t in (x, grad))
    lines = own_filters(lines).contiguous(memory_format=layout)
    steps = [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], c
    back = torch.ops.aten.convolution_backward
    return {
        "forward": lambda: torch.ops.aten.convolution(x, lines, None, *steps),
        "dx": lambda: back(grad, x, lines, None, *steps, [True, False, False]),
        "dw": lambda: back(grad, x, lines, None, *steps, [False, True, False]),
    }


def check_alone(kernels, shape, kind):
    """Print the relative errors of the first and the last client, and whether results repeat; return how many are
    wrong."""
    x, lines, grad = alone(shape, kind)
    wrong, texts, limit = 0, [], 3e-3 if kind == torch.float32 else 6e-3
    for name, call in ours(kernels, shape, kind).items():
        got, again, errors = call(), call(), []
        for n in {0, len(x) - 1}:
            picture, filters = (t[n].double().permute(0, 3, 1, 2) for t in (x, lines))
            leaves = picture.requires_grad_(), filters.requires_grad_()
            y = torch.nn.functional.conv2d(*leaves, None, *shape[7:])
            gradients = torch.autograd.grad(y, leaves, grad[n].double().permute(0, 3, 1, 2))
            want = {"forward": y.detach(), "dx": gradients[0], "dw": gradients[1]}[name].permute(0, 2, 3, 1)
            errors.append(((got[n].double() - want).norm() / want.norm()).item())
        bad = not max(errors) < limit or not torch.equal(got, again)
        wrong += bad
        texts.append(f"{name} {max(errors):.1e}{' WRONG' if bad else ''}")
    print("  errors: " + ", ".join(texts), flush=True)
    return wrong


def timed(label, calls, shape, until):
    """Print the milliseconds of each call beside their rate; one that fails does not stop the others."""
    import triton

    c, b, h, w, i, o, k, stride, padding = shape
    pixels = c * b * ((h + 2 * padding - k) // stride + 1) * ((w + 2 * padding - k) // stride + 1)
    texts = []
    for name, call in calls.items():
        if time.perf_counter() > until:
            texts.append(f"{name} skipped")
            continue
        try:
            ms = triton.testing.do_bench(call, warmup=2, rep=8, return_mode="median")
            texts.append(f"{name} {ms:7.3f} ms {2e-9 * pixels * k * k * i * o / ms:6.1f} TFLOP/s")
        except Exception as error:
            texts.append(f"{name} {repr(error).splitlines()[0][:80]}")
    print(f"  {label:<36}" + ", ".join(texts), flush=True)


def compile_first(kernels, cases):
    """Compile the first configuration of each kernel that the cases need; most differ in their sizes alone."""
    wanted = {}
    for _, shape, dtype in cases:
        for _, kernel, grid, args, *_ in attempt(alone_launches, kernels, shape, dtype) or ():
            fixed = (a for a, p in zip(args, kernel.kernel.params, strict=False) if p.is_constexpr)
            wanted[kernel, dtype, *fixed] = kernel, grid, args, kernel.configs[0]
    compiled(wanted.values())


def plain(kernels, seconds):
    """Check and time convolutions alone; return how many results are wrong. What matters most comes first."""
    began = time.perf_counter()
    until, wrong = began + seconds, 0
    cases = [(f"{name}, {kind}", shape, dtype) for kind, dtype in KINDS.items() for name, shape in ALONE.items()]
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True

    def each(part):
        for name, shape, dtype in cases:
            if not name.startswith("odd") and time.perf_counter() < until:
                attempt(part, name, shape, dtype)
        print(f"  ({time.perf_counter() - began:.0f} s so far)", flush=True)

    def first(name, shape, dtype):
        torch.backends.cudnn.benchmark = False
        timed(f"{name}: ours", ours(kernels, shape, dtype), shape, until)
        timed(f"{name}: cuDNN", grouped(shape, dtype, torch.contiguous_format), shape, until)

    def last(name, shape, dtype):
        torch.backends.cudnn.benchmark = True
        timed(f"{name}: cuDNN, searched", grouped(shape, dtype, torch.contiguous_format), shape, until)
        timed(f"{name}: last, searched", grouped(shape, dtype, torch.channels_last), shape, until)
        torch.backends.cudnn.benchmark = False
        timed(f"{name}: last", grouped(shape, dtype, torch.channels_last), shape, until)

    attempt(compile_first, kernels, cases)
    print(f"first configurations compiled ({time.perf_counter() - began:.0f} s so far)", flush=True)
    for name, shape, dtype in cases:
        print(f"{name}: {shape}", flush=True)
        torch.backends.cudnn.benchmark = False
        found = attempt(check_alone, kernels, shape, dtype)
        wrong += 1 if found is None else found
    print(f"\nfirst configurations ({time.perf_counter() - began:.0f} s so far)", flush=True)
    each(first)
    # half of the time that is left for our configurations, the rest for cuDNN's
    own = time.perf_counter() + max(0.0, until - time.perf_counter()) / 2
    for name, shape, dtype in cases:
        if name.startswith(("residual 32,", "resnet 128,", "resnet 512,")) and time.perf_counter() < own:
            print(f"\n{name}, each configuration", flush=True)
            attempt(explore, alone_launches(kernels, shape, dtype), own)
    print("\ncuDNN, other ways", flush=True)
    each(last)
    return wrong


def alone_launches(kernels, shape, kind):
    x, lines, grad = alone(shape, kind)
    operations = 2 * grad.numel() * lines[0, 0].numel()
    moved = sum(t.numel() * t.element_size() for t in (x, lines, grad))
    found = []
    for name, call in ours(kernels, shape, kind).items():
        found += [(f"{n} {name}", *case, operations, moved) for n, *case in launches(kernels, call)]
    return found


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
        print(f"  {getattr(function, '__name__', function)} FAILED: {repr(error)[:300]}", flush=True)


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

    from unalike.nn import kernels
    from unalike.nn.fast import conv_pool as fast

    until, wrong, rounds = time.perf_counter() + args.seconds, 0, {}
    print(f"torch {torch.__version__}, triton {triton.__version__}, {torch.cuda.get_device_name()}", flush=True)
    if args.shapes == ["plain"]:
        wrong = plain(kernels, args.seconds)
        print("all right" if not wrong else f"{wrong} WRONG")
        return int(bool(wrong))
    for name in args.shapes:
        print(f"\n{name}: {SHAPES[name]}", flush=True)
        torch.backends.cudnn.benchmark, began = False, time.perf_counter()
        found = attempt(check, kernels, fast, SHAPES[name])
        wrong += 1 if found is None else found
        print(f"  first configurations compiled, run and compared: {time.perf_counter() - began:.1f} s", flush=True)
        if name != "odd":
            attempt(lambda shape: explore(pooled_launches(kernels, shape), until), SHAPES[name])
    for name in args.shapes:
        if name != "odd":
            print(f"\n{name}, whole operations", flush=True)
            torch.backends.cudnn.benchmark = True
            rounds.setdefault("now", []).append(attempt(whole, kernels, SHAPES[name], "now"))
            for label, kernel in all_tuned().items():
                if kernel.search.cache:
                    print(f"    {label}: {kernel.search.best_config}", flush=True)
            if args.before and time.perf_counter() < until + 30:
                rounds.setdefault("before", []).append(attempt(whole, older(args.before), SHAPES[name], "before"))
    for label, times in rounds.items():
        print(f"{label}: {sum(t or float('nan') for t in times):.1f} ms per {STEPS} steps in these operations")
    print("all right" if not wrong else f"{wrong} WRONG")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
