"""Numbers of the authors' own programs, replayed through the public face on every engine."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import unalike as ua

GOLDEN = Path(__file__).parent / "golden"
ENGINES = ("sequential", "workers", "batched", "loopback")
FEDDC = ("feddc_repo_syn00_full", "feddc_repo_syn00_partial", "feddc_repo_syn01_full", "feddc_repo_syn01_full_lrdecay")


def golden(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())


def replay(case, method, module, rounds, participants, local, engine, dtype="float32"):
    fed = ua.Federation.from_arrays([(np.array(x), np.array(y)) for x, y in zip(case["x"], case["y"], strict=True)])
    with torch.no_grad():
        vector = torch.tensor(case["w0"], dtype=torch.float64)
        for p in module.parameters():
            p.copy_(vector[: p.numel()].reshape(p.shape))
            vector = vector[p.numel() :]
    return ua.simulate(
        module, fed, method, rounds=rounds, clients_per_round=participants, local=local, engine=engine, dtype=dtype
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FEDDC)
@pytest.mark.parametrize("method", ["FedAvg", "FedProx", "SCAFFOLD"])
def test_feddc_repository(name, method, engine):
    case = golden(name)
    hyper, lines = case["hyper"], case["results"][method]
    amount = {"steps": hyper["K_nominal_steps"]} if method == "SCAFFOLD" else {"epochs": hyper["local_epochs"]}
    local = ua.LocalTraining(
        **amount, batch_size=hyper["batch_size"], lr=hyper["lr"], lr_decay=hyper.get("lr_decay_per_round", 1.0),
        weight_decay=hyper["weight_decay"], clip_norm=hyper["clip_grad_norm"], shuffle=False,
    )  # fmt: skip
    methods = {
        "FedAvg": ua.FedAvg(),
        "FedProx": ua.FedProx(mu=2 * hyper["fedprox_coef_of_squared_norm"]),
        "SCAFFOLD": ua.Scaffold(scaling="official"),
    }
    participants = [line["participants"] for line in lines]
    for rounds in range(1, len(lines) + 1):
        run = replay(case, methods[method], nn.Linear(3, 2), rounds, participants, local, engine)
        line = lines[rounds - 1]
        np.testing.assert_allclose(run.server.w.numpy(), line["global_w"], atol=2e-6, rtol=0)
        if method == "SCAFFOLD":
            np.testing.assert_allclose(run.server.control.numpy(), line["c_server"], atol=2e-6, rtol=0)
            for k, c in enumerate(line["c_i"]):
                np.testing.assert_allclose(run.clients[k]["control"].numpy(), c, atol=2e-6, rtol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_scaffold_option_ii_in_float64(engine):
    case = golden("rfedavg_repo_tiny")
    lines = golden("own_tinynet_paper_readings")["results"]["SCAFFOLD_option_II_uniform_etag1_lr0.1_E2_B3"]
    local = ua.LocalTraining(epochs=2, batch_size=3, lr=0.1, shuffle=False)
    for rounds in range(1, len(lines) + 1):
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        run = replay(case, ua.Scaffold(), net, rounds, 4, local, engine, "float64")
        line = lines[rounds - 1]
        np.testing.assert_allclose(run.server.w.numpy(), line["global_w"], atol=1e-9, rtol=0)
        np.testing.assert_allclose(run.server.control.numpy(), line["c_server"], atol=1e-9, rtol=0)


@pytest.mark.parametrize("method,mu", [("FedAvg", None), ("FedProx", 1.0)])
def test_rfedavg_repository(method, mu):
    """Plain means, drop_last; its FedProx adds 0.5·‖θ − w‖², which is our μ = 1."""
    case = golden("rfedavg_repo_tiny")
    lines = case["results"][next(k for k in case["results"] if k.startswith(method))]
    local = ua.LocalTraining(epochs=2, batch_size=3, lr=0.1, shuffle=False, drop_last=True)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    run = replay(case, UniformProx(mu or 0.0), net, len(lines), 4, local, "batched", "float64")
    np.testing.assert_allclose(run.server.w.numpy(), lines[-1]["global_w"], atol=1e-9, rtol=0)


class UniformProx(ua.FedProx):
    """FedProx averaged without the weights, as that program does."""

    sends = {"delta": ua.Field(weight="one")}
