"""A network, a method, a metric and a callback of your own.

python examples/own_model_and_method.py            # trains for a few seconds
python examples/own_model_and_method.py --prove    # and the proofs that the method is right: a minute
"""

from __future__ import annotations

import dataclasses as dc
import sys
from typing import Any

import torch
from torch import Tensor, nn

import unalike as ua


class Small(nn.Module):
    """Any nn.Module; the last Linear is the head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 24), nn.ReLU())
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@dc.dataclass(frozen=True)
class Gentle(ua.Method):
    """FedAvg whose clients are held to the model that they received, like by a spring (that is FedProx)."""

    strength: float = ua.knob(0.1, "of the spring", least=0, tune=(1e-3, 1.0))

    def client(self, me, s, m):
        pull = {"pull": self.strength, "push": -self.strength * m.w}  # the gradient gets strength·(θ − w)
        return me.train(m.w, **pull).then(self.done)


def sure(output: Tensor, y: Tensor) -> Tensor:
    """The probability of the right class, one value per sample."""
    return torch.softmax(output, -1).gather(-1, y[..., None])[..., 0]


class Best(ua.Callback):
    """Remember the best round on validation data."""

    def __init__(self) -> None:
        self.round, self.value = 0, 0.0

    def on_round(self, run: ua.Run, line: dict[str, Any]) -> None:
        if line["validation_accuracy"] > self.value:
            self.round, self.value = line["round"], line["validation_accuracy"]


def train(rounds: int = 15) -> tuple[ua.Run, Best]:
    shares = {"test": 0.2, "validation": 0.1}
    fed = ua.load("digits").split(ua.partition.Dirichlet(0.3), clients=20, seed=0, **shares)
    best = Best()
    metrics = {"accuracy": "accuracy", "sure": sure}
    run = ua.simulate(Small, fed, Gentle(0.01), rounds=rounds, metrics=metrics, callbacks=[best])
    return run, best


def prove() -> None:
    from unalike.testing import check_method

    check_method(Gentle(0.5), off=Gentle(0.0), say=print)


if __name__ == "__main__":
    run, best = train()
    print(run, f"best on validation data in round {best.round}: {best.value:.3f}")
    if "--prove" in sys.argv:
        prove()
