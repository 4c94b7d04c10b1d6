"""Draw a federation's clients as one SVG: their sizes and labels, samples of some, and how these change with the round.
Colours show what a made-to-order skew planted, and are legible on light and dark pages."""

from __future__ import annotations

import base64
import dataclasses
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import numpy as np
import torch

from unalike import draws
from unalike.errors import UnalikeError

WIDTH, LEFT, RIGHT = 720, 92, 12
# at most: clients, rows of classes, samples per client
CLIENTS, CLASSES, KINDS = 24, 20, 10
ROWS, ROUNDS, DOTS = 6, 5, 400
TEXT, LINE = "#6e7781", "#8b949e66"
# colours of groups, in turn
COLOURS = ("#8b949e", "#2f81f7", "#e8833a", "#2da44e", "#a371f7", "#d4a72c", "#e5534b", "#2aa8b5")
PLAIN = "#2f81f7"
PANELS = ("labels", "samples", "rounds")


def picture(fed: Any, panels: Sequence[str] = PANELS, seed: int = 0) -> str:
    """Return the clients as an SVG. Panels: "labels" has sizes and labels of up to 24 clients; "samples" has some
    samples of up to 6 clients, one per label; "rounds" has one client's samples in several rounds, if data drift. The
    other panels then show the last drifting round. Which clients and samples are shown depends on the seed and the data
    alone."""
    unknown = [panel for panel in panels if panel not in PANELS]
    if unknown or not panels:
        raise UnalikeError(
            f"A picture has no panel {unknown[0] if unknown else ''!r}: take some of {', '.join(PANELS)}."
        )
    if fed.remote:
        raise UnalikeError("There is no picture of clients whose samples are on other machines.")
    now = fed if fed.drift is None else fed.at(fed.drift.rounds)
    page = _Page(_Shades.of(fed), draws.check_seed(seed))
    draw: dict[str, Callable[[], None]] = {
        "labels": lambda: _labels(page, now),
        "samples": lambda: _samples(page, now),
        "rounds": lambda: _rounds(page, fed),
    }
    for panel in panels:
        draw[panel]()
    page.legend()
    return page.svg(f"{len(fed):,} clients with {int(fed.sizes.sum()):,} training samples")


@dataclasses.dataclass
class _Shades:
    """The colour of every client: its group's colour, or stronger the farther it is changed."""

    what: str
    values: np.ndarray

    @classmethod
    def of(cls, fed: Any) -> _Shades:
        name = next(iter(fed.planted), "")
        return cls(name, fed.planted[name] if name else np.zeros(len(fed), np.int64))

    @property
    def groups(self) -> bool:
        return self.values.dtype.kind in "iu"

    def order(self, clients: np.ndarray) -> np.ndarray:
        """Return the clients sorted by group."""
        return clients[np.argsort(self.values[clients], kind="stable")] if self.groups else clients

    def __getitem__(self, k: Any) -> str:
        value = self.values[k]
        if not self.what:
            return PLAIN
        if self.groups:
            return TEXT if value < 0 else COLOURS[int(value) % len(COLOURS)]
        return _mixed(COLOURS[0], COLOURS[2], 0.0 if np.isnan(value) else float(np.clip(value, 0, 1)))


def _mixed(one: str, other: str, share: float) -> str:
    ends = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in (one, other)]
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in zip(*ends, strict=True))


class _Page:
    """The page being drawn, from the top down; `y` is where the next item goes."""

    def __init__(self, shades: _Shades, seed: int):
        self.shades, self.seed, self.y, self.parts = shades, seed, 0.0, list[str]()

    def text(self, x: float, y: float, words: str, anchor: str = "start", size: int = 12, weight: str = "") -> None:
        bold = f' font-weight="{weight}"' if weight else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{TEXT}"{bold}>'
            f"{escape(words)}</text>"
        )

    def title(self, words: str) -> None:
        self.y += 22
        self.text(0, self.y, words, size=13, weight="600")
        self.y += 8

    def rect(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>')

    def circle(self, x: float, y: float, radius: float, colour: str, more: str = "") -> None:
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{colour}"{more}/>')

    def line(self, points: Sequence[tuple[float, float]], colour: str, width: float = 1) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>')

    def legend(self) -> None:
        """Draw the legend of the colours."""
        if not self.shades.what:
            return
        self.y += 22
        self.text(0, self.y, f"{self.shades.what}:")
        x = LEFT
        if self.shades.groups:
            known = np.unique(self.shades.values[self.shades.values >= 0])
            marks = [(f"group {g}", COLOURS[g % len(COLOURS)]) for g in known[: len(COLOURS)]]
        else:
            marks = [(word, _mixed(COLOURS[0], COLOURS[2], at)) for word, at in (("0", 0.0), ("½", 0.5), ("1", 1.0))]
        for word, colour in marks:
            self.circle(x + 5, self.y - 4, 5, colour)
            self.text(x + 15, self.y, word)
            x += 30 + 7 * len(word)

    def svg(self, alt: str) -> str:
        high = round(self.y + 14)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {high}" width="{WIDTH}" height="{high}" '
            f'role="img" aria-label={quoteattr(alt)} font-family="system-ui, sans-serif">\n'
            f"<title>{escape(alt)}</title>\n" + "\n".join(self.parts) + "\n</svg>\n"
        )


def _name(fed: Any, k: int) -> str:
    return str(k) if fed.names is None else fed.names[k]


# ---------------------------------------------------------------- sizes and labels


def _labels(page: _Page, fed: Any) -> None:
    """Draw one column per client: a bar for its size, and below it its labels."""
    clients = page.shades.order(np.linspace(0, len(fed) - 1, min(len(fed), CLIENTS)).astype(int))
    step = min(34.0, (WIDTH - LEFT - RIGHT) / len(clients))
    page.title("sizes and labels" if fed.classes is not None else "sizes, and the number to predict")
    sizes, high = fed.sizes[clients], 36.0
    page.text(LEFT - 8, page.y + high, f"up to {sizes.max():,}", "end", 11)
    for i, k in enumerate(clients):
        tall = high * sizes[i] / max(sizes.max(), 1)
        page.rect(LEFT + (i + 0.15) * step, page.y + high - tall, 0.7 * step, tall, page.shades[k])
    page.y += high + 12
    (_bubbles if fed.classes is not None else _histograms)(page, fed, clients, step)
    every = max(1, int(np.ceil(26 / step)))
    short = fed.names is None or max(len(fed.names[k]) for k in clients) <= 3
    for i, k in enumerate(clients):
        if i % every == 0:
            page.text(LEFT + (i + 0.5) * step, page.y + 10, _name(fed, k) if short else str(k), "middle", 11)
    page.text(LEFT - 8, page.y + 10, "client", "end", 11)
    page.y += 14


def _bubbles(page: _Page, fed: Any, clients: np.ndarray, step: float) -> None:
    """Draw one row per class (or per several classes): circles whose area is the number of samples."""
    counts, names = _binned(fed.label_counts()[clients], _label_names(fed))
    _circles(page, counts, names, step, [page.shades[k] for k in clients])


def _circles(page: _Page, counts: np.ndarray, names: list[str], step: float, colours: list[str]) -> None:
    high = min(step, 22.0)
    most = 0.48 * high / max(counts.max(), 1) ** 0.5
    for c, name in enumerate(names):
        y = page.y + (c + 0.5) * high
        page.text(LEFT - 8, y + 4, name[:14], "end", 11)
        page.line([(LEFT, y), (LEFT + step * len(counts), y)], LINE, 0.5)
        for i in np.flatnonzero(counts[:, c]):
            page.circle(LEFT + (i + 0.5) * step, y, most * counts[i, c] ** 0.5, colours[i])
    page.y += high * len(names) + 4


def _binned(counts: np.ndarray, names: list[str]) -> tuple[np.ndarray, list[str]]:
    """Merge neighbouring classes until at most 20 remain."""
    if len(names) <= CLASSES:
        return counts, names
    first = np.linspace(0, len(names), CLASSES, endpoint=False).astype(int)
    last = [*(first[1:] - 1), len(names) - 1]
    return np.add.reduceat(counts, first, axis=1), [
        f"{a}–{b}" if a < b else str(a) for a, b in zip(first, last, strict=True)
    ]


def _label_names(fed: Any) -> list[str]:
    return [str(c) for c in range(fed.classes)] if fed.label_names is None else fed.label_names


def _histograms(page: _Page, fed: Any, clients: np.ndarray, step: float) -> None:
    """Draw the distribution of the number to predict for each client; of several numbers the first."""
    targets = [fed.train.of(int(k))[1].double().reshape(int(fed.sizes[k]), -1)[:, 0].numpy() for k in clients]
    pool = np.concatenate(targets)
    low, high, bins, tall = float(pool.min()), float(pool.max()), 24, 160.0
    edges = np.linspace(low, high if high > low else low + 1, bins + 1)
    for share in (0, 0.5, 1):
        y = page.y + tall * (1 - share)
        page.text(LEFT - 8, y + 4, f"{edges[0] + share * (edges[-1] - edges[0]):.3g}", "end", 11)
        page.line([(LEFT, y), (LEFT + step * len(clients), y)], LINE, 0.5)
    for i, (k, target) in enumerate(zip(clients, targets, strict=True)):
        counts = np.histogram(target, edges)[0]
        for b in np.flatnonzero(counts):
            wide = 0.9 * step * counts[b] / counts.max()
            page.rect(
                LEFT + (i + 0.5) * step - wide / 2, page.y + tall * (1 - (b + 1) / bins), wide, tall / bins,
                page.shades[k],
            )  # fmt: skip
    page.y += tall + 12


# ---------------------------------------------------------------- samples


def _samples(page: _Page, fed: Any) -> None:
    """Draw samples of some clients, one column per label: pictures, signals, or vectors as points."""
    own = {k: fed.train.of(int(k)) for k in _some_clients(page.shades, len(fed))}
    drawn = {k: pair for k, pair in own.items() if pair[0].is_floating_point() and pair[0].dim() > 2}
    if not drawn and not hasattr(fed, "parts") and fed.train.x.is_floating_point() and fed.train.x.dim() == 2:
        return _points(page, fed)
    if not drawn:
        return None  # tokens, or joined vectors of different lengths
    page.title("samples by label, one row per client" if fed.classes is not None else "samples, one row per client")
    return _cells(page, fed, [(f"client {_name(fed, k)}"[:14], pair, page.shades[k]) for k, pair in drawn.items()])


def _some_clients(shades: _Shades, clients: int) -> np.ndarray:
    """Return up to six clients: one of each group, or evenly from the first to the last."""
    if shades.what and shades.groups:
        return np.unique(shades.values, return_index=True)[1][:ROWS]
    return np.linspace(0, clients - 1, min(clients, ROWS)).astype(int)


def _cells(page: _Page, fed: Any, rows: list[tuple[str, Any, str]], same: bool = False) -> None:
    """Draw rows of samples (x, y) with their name and colour, one column per label; same: all rows belong to one
    client."""
    kinds = np.arange(KINDS)
    if fed.classes is not None:
        kinds = np.unique(np.concatenate([y.numpy() for _, (_, y), _ in rows]))[:KINDS]
    picked = [
        _one_of_each(x, y, kinds, fed.classes is not None, page.seed, 0 if same else row)
        for row, (_, (x, y), _) in enumerate(rows)
    ]
    shown = torch.cat([x.reshape(-1) for samples in picked for x in samples if x is not None])
    some = shown[:: len(shown) // 100_000 + 1].float()
    low, high = (float(edge) for edge in torch.quantile(some, torch.tensor([0.01, 0.99])))
    step = min(56.0, (WIDTH - LEFT - RIGHT) / len(kinds))
    if fed.classes is not None:
        for c, kind in enumerate(kinds):
            page.text(LEFT + (c + 0.5) * step, page.y + 12, _label_names(fed)[kind][:8], "middle", 11)
        page.y += 16
    for (name, _, colour), samples in zip(rows, picked, strict=True):
        page.text(LEFT - 14, page.y + step / 2 + 4, name, "end", 11)
        page.rect(LEFT - 8, page.y + 2, 4, step - 4, colour)
        for c, x in enumerate(samples):
            if x is not None:
                (_image if x.dim() == 3 else _curve)(page, LEFT + c * step, page.y, step, x, (low, high), colour)
        page.y += step
    page.y += 4


def _one_of_each(x: torch.Tensor, y: torch.Tensor, kinds: np.ndarray, by_label: bool, seed: int, row: int) -> list[Any]:
    """Return a sample of each label, None where there is none; without labels, any samples."""
    random = draws.generator(seed, "picture", row)
    if not by_label:
        some = random.permutation(len(x))[: len(kinds)]
        return [x[int(i)] for i in np.sort(some)]
    places = [np.flatnonzero(y.numpy() == kind) for kind in kinds]
    drawn = random.random(len(kinds))
    return [x[int(p[int(u * len(p))])] if len(p) else None for p, u in zip(places, drawn, strict=True)]


def _image(
    page: _Page, x0: float, y0: float, step: float, x: torch.Tensor, reach: tuple[float, float], colour: str
) -> None:
    channels = x.float() if len(x) == 3 else x[:1].float()
    pixels = ((channels - reach[0]) / max(reach[1] - reach[0], 1e-12)).clamp(0, 1).mul(255).round().byte()
    data = base64.b64encode(_png(pixels.permute(1, 2, 0).numpy())).decode()
    page.parts.append(
        f'<image x="{x0 + 2:.1f}" y="{y0 + 2:.1f}" width="{step - 4:.1f}" height="{step - 4:.1f}" '
        f'style="image-rendering:pixelated" href="data:image/png;base64,{data}"/>'
    )


def _png(pixels: np.ndarray) -> bytes:
    """Return uint8 pixels [height, width, 1 or 3] as a PNG file."""
    height, width, channels = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def _curve(
    page: _Page, x0: float, y0: float, step: float, x: torch.Tensor, reach: tuple[float, float], colour: str
) -> None:
    values = x[0].double().numpy()[:: x.shape[1] // 64 + 1]
    height = np.clip((values - reach[0]) / max(reach[1] - reach[0], 1e-12), -0.1, 1.1)
    across = np.linspace(x0 + 4, x0 + step - 4, len(values))
    page.line([*zip(across, y0 + step - 6 - (step - 12) * height, strict=True)], colour, 1.5)


def _points(page: _Page, fed: Any) -> None:
    """Draw vectors of features as points: the two directions in which all clients' samples are spread most."""
    page.title("samples by their first two principal components")
    random = draws.generator(page.seed, "picture")
    clients = np.sort(random.permutation(len(fed))[:DOTS])
    rows = [np.sort(random.permutation(int(fed.sizes[k]))[: -(-DOTS // len(clients))]) for k in clients]
    x = torch.cat([fed.train.of(int(k))[0][torch.from_numpy(r)] for k, r in zip(clients, rows, strict=True)]).double()
    x = (x - x.nanmean(0)).nan_to_num()
    if x.shape[1] < 2:
        x = torch.cat([x, torch.zeros_like(x)], 1)
    axes = torch.linalg.svd(x, full_matrices=False)[2][:2]
    # fixes the sign, so that it is the same on every machine
    axes = axes * axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()
    flat = (x @ axes.T).numpy()
    low, span = flat.min(0), np.maximum(np.ptp(flat, axis=0), 1e-12)
    wide, high = WIDTH - LEFT - RIGHT, 260.0
    for (a, b), k in zip((flat - low) / span, np.repeat(clients, [len(r) for r in rows]), strict=True):
        page.circle(LEFT + a * wide, page.y + 6 + (1 - b) * high, 3, page.shades[k], ' fill-opacity="0.75"')
    page.y += high + 12


# ---------------------------------------------------------------- rounds


def _rounds(page: _Page, fed: Any) -> None:
    """Draw the client that changes most, in some rounds from the first to the last that changes."""
    if fed.drift is None:
        return
    values = np.nan_to_num(page.shades.values.astype(np.float64), nan=-1)
    client = int(np.argmax(values))
    rounds = np.unique(np.linspace(1, fed.drift.rounds, ROUNDS).round().astype(int)).tolist()
    states = [fed.at(r).train.of(client) for r in rounds]
    page.title(f"client {_name(fed, client)} as rounds pass")
    colour = page.shades[client]
    if states[0][0].is_floating_point() and states[0][0].dim() > 2:
        return _cells(page, fed, [(f"round {r}", state, colour) for r, state in zip(rounds, states, strict=True)], True)
    if fed.classes is None:
        return
    counts = np.stack([np.bincount(y.numpy(), minlength=fed.classes) for _, y in states])
    counts, names = _binned(counts, _label_names(fed))
    step = 60.0
    _circles(page, counts, names, step, [colour] * len(rounds))
    for i, r in enumerate(rounds):
        page.text(LEFT + (i + 0.5) * step, page.y + 10, f"round {r}", "middle", 11)
    page.y += 14
