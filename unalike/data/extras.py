"""Extra parts of a federation, beside its clients' splits: a public set (from a file, as arrays or of noise), and
further splits of the training samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from unalike import draws
from unalike.data.columns import as_pair, as_tensor, chunks
from unalike.data.federation import Federation
from unalike.data.files import SUFFIXES, load_arrays
from unalike.data.public import Public
from unalike.data.remote import RemoteFederation
from unalike.errors import UnalikeError

# "noise:1000" is a public set of 1000 samples of noise
NOISE = "noise"
MOST = 1 << 40  # a larger number of rows is a mistake


def noise_like(fed: Federation, n: int, seed: int = 0) -> torch.Tensor:
    """Return n samples of noise as a public set that uses nobody's samples. Each number is uniform in its range over
    all clients' training samples; whole numbers stay whole."""
    draws.check_seed(seed)
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n < MOST:
        raise UnalikeError(f"{n!r} samples of noise were asked for: it must be a whole number of at least 1.")
    if isinstance(fed, RemoteFederation):
        raise UnalikeError("The range of data on other machines is not known here: give the public set as a file.")
    low, high = _range(fed.train.x)
    shape, random = (n, *fed.train.x.shape[1:]), draws.generator(seed, "noise")
    if not fed.train.x.is_floating_point():
        return torch.from_numpy(random.integers(low.numpy(), high.numpy() + 1, shape)).to(fed.train.x.dtype)
    x = low.numpy() + random.random(shape) * (high - low).numpy()
    return torch.from_numpy(x).to(fed.train.x.dtype)


def _range(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the minimum and maximum of every number of a sample; missing cells do not count."""
    lows, highs = [], []
    for chunk in chunks(x):
        chunk = chunk.cpu()
        chunk = chunk.double() if chunk.is_floating_point() else chunk
        gap = torch.isnan(chunk)
        lows.append(chunk.masked_fill(gap, float("inf")).amin(0) if gap.any() else chunk.amin(0))
        highs.append(chunk.masked_fill(gap, float("-inf")).amax(0) if gap.any() else chunk.amax(0))
    low, high = torch.stack(lows).amin(0), torch.stack(highs).amax(0)
    empty = torch.isinf(low)  # a column that is empty in all rows
    return low.masked_fill(empty, 0), high.masked_fill(empty, 0)


def read_public(file: Path) -> Public:
    """Read a public set: an .npz or .safetensors file with x and, if it is labelled, y."""
    if file.suffix not in SUFFIXES or not file.is_file():
        raise UnalikeError(f"The public set {file} must be an .npz or .safetensors file with x, and y or none.")
    content = load_arrays(file)
    if set(content) not in ({"x"}, {"x", "y"}):
        raise UnalikeError(f"{file} has the keys {', '.join(sorted(content))}: a public set has x, and y or none.")
    if "y" in content:
        return as_pair(content["x"], content["y"], str(file))
    return as_tensor(content["x"], f"x of {file}"), None


def parse_public(text: str) -> int | Path:
    """Return the number of samples in "noise:1000", or the path of a file."""
    name, colon, number = text.partition(":")
    if name == NOISE and colon:
        if not number.isdecimal() or not 1 <= int(number[:18]) < MOST:
            raise UnalikeError(f"public={text!r}: after the colon there must be a whole number, as in 'noise:1000'.")
        return int(number)
    if Path(text).suffix not in SUFFIXES:
        raise UnalikeError(
            f"public={text!r} must be a share of the samples such as 0.1, a number of them, an .npz or .safetensors "
            "file with x and perhaps y, or 'noise:1000'."
        )
    return Path(text)


def rows_aside(public: Any, total: int) -> int:
    """Return how many of `total` rows to set aside: `public` is a share in [0, 1) or a whole number."""
    whole = isinstance(public, int) and not isinstance(public, bool)
    if not (whole and public >= 0) and not (isinstance(public, float) and 0 <= public < 1):
        raise UnalikeError(f"public={public!r} must be a share in [0, 1) or a whole number of samples.")
    rows = public if whole else int(total * public + 0.5)
    if rows >= total or (public and not rows):
        raise UnalikeError(f"public={public!r} of {total} samples is {rows}: leave some on either side.")
    return int(rows)


def with_extras(
    fed: Federation,
    public: Any = None,
    labels: bool = True,
    splits: dict[str, float] | None = None,
    seed: int = 0,
    shipped: bool = False,
    ready: Callable[[Federation], Federation] = lambda fed: fed,
) -> Federation:
    """Return the federation with a public set and with further splits by their shares. public: a file, 'noise:1000', a
    pair (x, y or None) or a data set; None or 0 for no public set. Without `labels` the public set's labels are left
    out; `shipped`: the server sends the set to every client once. `ready` prepares and changes the clients' samples; it
    is called after the public set is made, which it does not concern, and before the further splits."""
    if isinstance(public, (int, float)):
        public = public or None
    if isinstance(public, (int, float)):
        raise UnalikeError(
            f"public={public!r} sets samples aside before clients get theirs, and these data come with their clients: "
            "give a file, or noise such as 'noise:1000'."
        )
    if isinstance(public, str):
        wanted = parse_public(public)
        public = (noise_like(fed, wanted, seed), None) if isinstance(wanted, int) else read_public(wanted)
    elif hasattr(public, "x") and hasattr(public, "y"):  # a data set
        public = public.x, public.y
    if public is not None:
        fed = fed.replace(public=public)
        fed = fed if labels or fed.public is None else fed.with_public(fed.public[0])
    fed = fed.replace(shipped=True) if shipped else fed
    fed = ready(fed)
    return fed.named_splits(seed=seed, **splits) if splits else fed
