"""Two wishes that one model for all does not serve: a model for every client, and a promise about what it tells.

python examples/personal_and_private.py        # a few seconds; the ε needs pip install 'unalike[privacy]'
"""

from __future__ import annotations

import unalike as ua


def personal(rounds: int = 15) -> dict[str, float]:
    """Clients of two kinds, whose labels mean different things: the mean accuracy on clients' own test samples."""
    fed = ua.load("digits").split("iid|permute:2", clients=10, seed=0, test=0.2)
    local = ua.LocalTraining(epochs=2, batch_size=10, lr=0.1)
    out = {}
    for name, method in {"one model": ua.FedAvg(), "own models": ua.Ditto(), "alone": ua.LocalOnly()}.items():
        run = ua.simulate(ua.models.mlp(64, (32,), classes=10), fed, method, rounds=rounds, local=local)
        out[name] = run.history[-1]["clients_accuracy_mean"]
    return out


def private(rounds: int = 15, noise: float = 1.0) -> ua.Run:
    """Clip each client's update and add noise to the sum; every line of the run has the ε spent so far."""
    fed = ua.load("digits").split("iid", clients=100, seed=0, test=0.2)
    channel = ["clip:1.0", f"noise:{noise}"]
    local = ua.LocalTraining(epochs=1, batch_size=10, lr=0.1)
    model = ua.models.linear(64, 10)
    return ua.simulate(
        model,
        fed,
        ua.FedAvg(weights="uniform"),
        rounds=rounds,
        clients_per_round=ua.sampling.Bernoulli(0.3),
        channel=channel,
        local=local,
    )


if __name__ == "__main__":
    for name, value in personal().items():
        print(f"{name}: {value:.3f} on clients' own samples")
    last = private().history[-1]
    print(f"private: test accuracy {last['test_accuracy']:.3f}, epsilon {last.get('epsilon', float('nan')):.2f}")
