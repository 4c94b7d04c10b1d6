"""Device, dtype and precision of a run, and PyTorch's global switches, which are set for a while and then restored."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import torch
from torch import Tensor

from unalike.errors import UnalikeError, unknown

DTYPES = {"float32": torch.float32, "float64": torch.float64}
DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("highest", "tf32", "bf16")


def find_device(name: str) -> torch.device:
    """Return the device of this name; "auto" is CUDA if available."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise unknown("device", name, DEVICES) from None
    if device.type not in DEVICES:
        raise unknown("device", name, DEVICES)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UnalikeError(f"device={name!r} was asked for and this machine has no CUDA device: use 'auto' or 'cpu'.")
    return device


def check_precision(precision: str, device: torch.device) -> None:
    """Raise if the device does not have this precision."""
    if precision != "highest" and device.type == "cpu" and not (precision == "bf16" and _bf16_on_cpu()):
        raise UnalikeError(f"precision={precision!r} is not for this CPU: use 'highest'.")


def _bf16_on_cpu() -> bool:
    """Return whether this CPU multiplies bfloat16 in hardware; otherwise it is slower than float32."""
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # a build without oneDNN
        return False


@contextmanager
def numerics(precision: str, deterministic: bool) -> Iterator[None]:
    """Set PyTorch's switches for products and convolutions, and restore them at the end of the block. The caller's
    `autocast` is off within: a run's precision is its own."""
    matmul, conv = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    before, search = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = False  # `search_convolutions` turns it on
    if deterministic:
        torch.use_deterministic_algorithms(True)
    try:
        with kept_memory(), ExitStack() as off:
            for device in ("cpu", "cuda"):
                if torch.is_autocast_enabled(device):
                    off.enter_context(torch.autocast(device, enabled=False))
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, conv
        torch.backends.cudnn.benchmark = search
        # the call alone imports the compiler, which takes 1.7 s
        if torch.are_deterministic_algorithms_enabled() != before:
            torch.use_deterministic_algorithms(before)


def search_convolutions(wanted: bool) -> None:
    """Let cuDNN look for its fastest convolutions when it meets one of a new shape (seconds each), or not any more."""
    torch.backends.cudnn.benchmark = wanted and not torch.are_deterministic_algorithms_enabled()


@contextmanager
def plain_convolutions(device: torch.device) -> Iterator[None]:
    """Use PyTorch's own convolutions on a GPU, for a trial on a few samples: cuDNN's take seconds to set up."""
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = before and device.type != "cuda"
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


def finite_rows(values: Tensor) -> Tensor:
    """Return which rows of a tensor are finite throughout, bool [rows]."""
    # 0 times infinity or NaN is NaN; on a CPU many times as fast as `isfinite`
    return (values.reshape(len(values), -1) * 0).sum(1) == 0


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit PyTorch to one thread: on small operations its threads cost more than they gain, and on a busy machine they
    wait for each other (measured: up to 60 times slower). It also makes results independent of the number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # glibc's names: M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
KEEPING = {MMAP_THRESHOLD: 1 << 30, TRIM_THRESHOLD: 1 << 29}
# glibc adjusts them by itself until somebody sets them; this is where it ends in a program that uses large blocks
USUAL = {MMAP_THRESHOLD: 32 << 20, TRIM_THRESHOLD: 64 << 20}


class _Keeping:
    """How many ask glibc to keep freed memory."""

    lock, count = threading.Lock(), 0


@contextmanager
def kept_memory() -> Iterator[None]:
    """Let glibc keep freed memory for a while: a step frees and requests the same blocks again, and fresh pages
    cost more than the arithmetic of a small recurrent step (measured: 14 ms to 10 on a CPU)."""
    _keep(1)
    try:
        yield
    finally:
        _keep(-1)


def _keep(change: int) -> None:
    with _Keeping.lock:
        _Keeping.count += change
        if _Keeping.count == max(0, change):  # the first one comes, or the last one goes
            _set_malloc(KEEPING if change > 0 else USUAL)


def _set_malloc(values: dict[int, int]) -> None:
    if sys.platform != "linux":
        return
    with suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        for name, value in values.items():
            mallopt(name, value)
