"""What a hostile server reads of a client's samples by the smallest plan that the client's default policy allows.

    python benchmarks/leak.py

A client has 32 pictures of digits. The server's plans are as small as the policy takes them: one round, as few samples
a step and as few steps as allowed (8 and 4: all 32 in one pass). The server sends weights of its own making and
divides, x = dW/db, row by row of the first layer.

- linear: softmax regression from zero. A row is one class's: its quotient is a mean over samples.
- bins: a first layer whose rows all measure the same thing (how bright a picture is) with thresholds between them; the
  difference of two neighbouring rows is the sample that lies between their thresholds, if there is just one.

A sample counts as read when a quotient is within a tenth of its distance from the mean picture. Chance: the same count
for 32 other pictures of the same set, which the client does not have. Plans with fewer samples a step are shown beside
it; the default policy refuses them.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch

import unalike as ua
from unalike.messages import wire
from unalike.network import server
from unalike.network.client import Client
from unalike.network.policy import Policy

SAMPLES, CLOSE, BINS = 32, 0.1, 64


class Hostile:
    """A link to one client, whose server sends these weights in place of the run's."""

    def __init__(self, person: Client, weights):
        self.person, self.weights, self.delta = person, weights, None

    def online(self):
        return {0}

    def close(self, done):
        pass

    def exchange(self, requests, seconds):
        parts = [*requests[0]]
        header, tensors = wire.decode(parts[0])
        if header["kind"] == "request":
            header.pop("format")
            parts[0] = wire.encode(header, {**tensors, "w": self.weights(tensors["w"])})
        answer = self.person.answer(parts)
        found, sent = wire.decode(answer)
        if header["kind"] == "request" and found["kind"] == "reply":
            self.delta = sent["delta"].double()
        yield 0, answer


def attacked(kind: str, x, y, policy: Policy, batch: int, steps: int) -> np.ndarray | None:
    """Return the quotients that a plan gives the server; None where the client refuses it."""
    hidden = {"linear": None, "bins": [BINS]}[kind]
    model = {"name": "linear"} if hidden is None else {"name": "mlp", "hidden": hidden}
    tables = {
        "model": model, "method": {"name": "fedavg"}, "local": {"steps": steps, "batch_size": batch, "lr": 1e-3},
        "run": {"rounds": 1, "device": "cpu", "dtype": "float64", "evaluate_clients": "none"},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as home:
        person = Client(ua.Federation.from_arrays([(x, y)]), Path(home) / "client", policy)
        link = Hostile(person, weights(kind, x.shape[1]))
        try:
            server.run(tables, link, {"client": b"ecdsa-sha2-nistp384 0 c"}, classes=10, deadline=5.0)
        except ua.UnalikeError:
            return None
        finally:
            person.close()
    return quotients(kind, link.delta, x.shape[1])


def weights(kind: str, features: int):
    """Return the function that makes the server's weights of the run's: first layer's rows, their biases, the rest."""

    def made(w):
        if kind == "linear":
            return torch.zeros_like(w)
        out = torch.zeros_like(w)
        bright = torch.full((BINS, features), 1.0 / features, dtype=w.dtype)
        low, high = 0.2, 0.42  # what the server knows of such pictures: how bright most are
        out[: BINS * features] = bright.reshape(-1)
        out[BINS * features : BINS * (features + 1)] = -torch.linspace(low, high, BINS, dtype=w.dtype)
        out[BINS * (features + 1) :] = torch.linspace(-1, 1, len(w) - BINS * (features + 1), dtype=w.dtype)
        return out

    return made


def quotients(kind: str, delta, features: int) -> np.ndarray:
    """Return dW/db by row; of bins also that of neighbouring rows' differences."""
    rows = 10 if kind == "linear" else BINS
    dw, db = (
        delta[: rows * features].reshape(rows, features).numpy(),
        delta[rows * features : rows * (features + 1)].numpy(),
    )
    if kind == "bins":
        dw, db = np.concatenate([dw, dw[1:] - dw[:-1]]), np.concatenate([db, db[1:] - db[:-1]])
    there = np.abs(db) > 1e-12
    return dw[there] / db[there, None]


def read(found: np.ndarray, x: np.ndarray) -> int:
    """Return how many samples a quotient is close to."""
    mean = x.mean(0)
    distances = np.linalg.norm(x[:, None] - found[None], axis=2).min(1) if len(found) else np.full(len(x), np.inf)
    return int((distances < CLOSE * np.linalg.norm(x - mean, axis=1)).sum())


def measured(kind: str, policy: Policy, batch: int, steps: int, plans: int) -> tuple[float, float] | None:
    """Return how many samples are read on the average, and by chance; None where the plan is refused."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x, found = x / 16, []
    for seed in range(plans):
        order = np.random.default_rng(seed).permutation(len(x))
        own, other = order[:SAMPLES], order[SAMPLES : 2 * SAMPLES]
        got = attacked(kind, torch.tensor(x[own]), torch.tensor(y[own]), policy, batch, steps)
        if got is None:
            return None
        found.append((read(got, x[own]), read(got, x[other])))
    return tuple(np.mean(found, axis=0).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=20, help="plans of each kind, each with other samples [20]")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    least = Policy()
    for kind in ("linear", "bins"):
        for name, policy, batch, steps in (
            ("default", least, least.least_batch, least.least_steps),
            ("default", least, 1, 1),
            ("open", Policy.open(), 1, 1),
            ("open", Policy.open(), 8, 1),
        ):
            rows.append((kind, name, batch, steps, measured(kind, policy, batch, steps, args.plans)))
    if args.json:
        print(json.dumps(rows))
        return
    print(f"{'attack':<8}{'policy':<9}{'batch':>6}{'steps':>6}   samples of {SAMPLES} read, by chance")
    for kind, name, batch, steps, found in rows:
        told = "refused" if found is None else f"{found[0]:.1f}, {found[1]:.1f}"
        print(f"{kind:<8}{name:<9}{batch:>6}{steps:>6}   {told}")


if __name__ == "__main__":
    main()
