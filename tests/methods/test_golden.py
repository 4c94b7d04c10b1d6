"""Numbers of the authors' own programs, replayed through the public face on every engine."""

import json

import numpy as np
import pytest
import torch
from paths import GOLDEN
from torch import nn

import unalike as ua
from unalike.client.calls import ModelCalls
from unalike.methods.fedavgr import trace_norm
from unalike.methods.flhc import agglomerate

ENGINES = ("sequential", "workers", "batched", "loopback")
FEDDC = ("feddc_repo_syn00_full", "feddc_repo_syn00_partial", "feddc_repo_syn01_full", "feddc_repo_syn01_full_lrdecay")


DTYPES = ("float32", "float64")


def near(run, name, wanted, dtype):
    """Golden numbers carry nine to twelve digits; the official fp32 ones (and float32 runs) are good to 2e-6."""
    value = run.server.values[name] if isinstance(name, str) else run.clients[name[0]][name[1]]
    atol = 2e-6 if dtype == "float32" else 1e-9
    np.testing.assert_allclose(value.numpy(), wanted, atol=atol, rtol=0)


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FEDDC)
@pytest.mark.parametrize("method", ["FedAvg", "FedProx", "SCAFFOLD", "FedDyn", "FedDC"])
def test_feddc_repository(name, method, engine, dtype):
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
        "FedDyn": ua.FedDyn(alpha=hyper["alpha_FedDyn"]),
        "FedDC": ua.FedDC(alpha=hyper["alpha_FedDC"], scaling="official"),
    }
    kept = {"SCAFFOLD": {"control": "c_i"}, "FedDyn": {"drift": "h_i"}, "FedDC": {"drift": "h_i", "memory": "g_i"}}
    participants = [line["participants"] for line in lines]
    digits = "" if dtype == "float32" else "__f64"
    for rounds in range(1, len(lines) + 1):
        run = replay(case, methods[method], nn.Linear(3, 2).double(), rounds, participants, local, engine, dtype)
        line = lines[rounds - 1]
        near(run, "w", line["global_w" + digits], dtype)
        if method == "SCAFFOLD":
            near(run, "control", line["c_server" + digits], dtype)
        for mine, theirs in kept.get(method, {}).items():
            for k, row in enumerate(line[theirs + digits]):
                near(run, (k, mine), row, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ENGINES)
def test_scaffold_option_ii(engine, dtype):
    case = golden("rfedavg_repo_tiny")
    lines = golden("own_tinynet_paper_readings")["results"]["SCAFFOLD_option_II_uniform_etag1_lr0.1_E2_B3"]
    local = ua.LocalTraining(epochs=2, batch_size=3, lr=0.1, shuffle=False)
    for rounds in range(1, len(lines) + 1):
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        run = replay(case, ua.Scaffold(), net, rounds, 4, local, engine, dtype)
        line = lines[rounds - 1]
        near(run, "w", line["global_w"], dtype)
        near(run, "control", line["c_server"], dtype)


def tiny():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


class UniformProx(ua.FedProx):
    """FedProx averaged without the weights, as rFedAvg's program does."""

    sends = {"delta": ua.Field(weight="one")}


program = {"delta": "batch", "weights": "uniform"}
RFEDAVG = {
    "FedAvg": ua.FedAvg(weights="uniform"),
    "FedProx_lambda0.5": UniformProx(mu=1.0),  # it adds 0.5 ‖θ − w‖², which is our μ = 1
    "SCAFFOLD_etag1": ua.FedAvg(weights="uniform"),  # their SCAFFOLD corrects a copy: it is FedAvg
    "qFedAvg_L10_q1": ua.QFedAvg(q=1.0, lipschitz=10.0, h="rfedavg_repo"),
    "rFedAvg_lambda0.3": ua.RFedAvg(lam=0.3, **program),
    "rFedAvgPlus_lambda0.3": ua.RFedAvgPlus(lam=0.3, include_self=True, **program),
    "rFedAvg_lambda0.3_C0.5": ua.RFedAvg(lam=0.3, **program),
    "rFedAvgPlus_lambda0.3_C0.5": ua.RFedAvgPlus(lam=0.3, include_self=True, **program),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", RFEDAVG)
def test_rfedavg_repository(name, engine, dtype):
    case = golden("rfedavg_repo_tiny")
    lines = case["results"][name]
    local = ua.LocalTraining(epochs=2, batch_size=3, lr=0.1, shuffle=False, drop_last=True)
    participants = [line["participants"] for line in lines]
    for rounds in range(1, len(lines) + 1):
        run = replay(case, RFEDAVG[name], tiny(), rounds, participants, local, engine, dtype)
        near(run, "w", lines[rounds - 1]["global_w"], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("reach", ["full", "partial"])
@pytest.mark.parametrize("name,method", [("rFedAvg", ua.RFedAvg(lam=0.3)), ("rFedAvgPlus", ua.RFedAvgPlus(lam=0.3))])
def test_rfedavg_as_in_the_paper(name, method, reach, engine, dtype):
    case = golden("rfedavg_repo_tiny")
    lines = golden("own_tinynet_paper_readings")["results"][
        f"{name}_paper_reading_{reach}_lambda0.3_lr0.1_E2epochs_B3_keep_last"
    ]
    local = ua.LocalTraining(epochs=2, batch_size=3, lr=0.1, shuffle=False)
    participants = [line["participants"] for line in lines]
    for rounds in range(1, len(lines) + 1):
        run = replay(case, method, tiny(), rounds, participants, local, engine, dtype)
        near(run, "w", lines[rounds - 1]["global_w"], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", golden("qfedavg_fair_flearn")["results"])
def test_qfedavg(name, engine, dtype):
    case, lines = golden("feddc_repo_syn01_full"), golden("qfedavg_fair_flearn")["results"][name]
    q = float(name.split(",")[0].removeprefix("q="))
    local = ua.LocalTraining(epochs=2, batch_size=4, lr=0.1, shuffle=False)
    participants = [sorted(line["participants_in_order"]) for line in lines]
    run = replay(case, ua.QFedAvg(q=q), nn.Linear(3, 2).double(), len(lines), participants, local, engine, dtype)
    near(run, "w", lines[-1]["global_w"], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", golden("fednova_official")["cases"])
def test_fednova(name, engine, dtype):
    case, nova = golden("feddc_repo_syn01_full"), golden("fednova_official")
    given, lines = nova["cases"][name], nova["results"][name]
    local = ua.LocalTraining(
        epochs=nova["hyper"]["local_epochs_per_client"], batch_size=4, lr=0.1, shuffle=False,
        momentum=given["client_momentum"],
    )  # fmt: skip
    method = ua.FedNova(server_momentum=given["server_momentum_gmf"], mu=given["prox_mu"])
    for rounds in range(1, len(lines) + 1):
        run = replay(case, method, nn.Linear(3, 2).double(), rounds, 4, local, engine, dtype)
        near(run, "w", lines[rounds - 1]["global_w"], dtype)


FEDFA = {
    "alpha0.5_b1_full": ua.FedFa(client_momentum=0.9),
    "alpha1_b1_partial": ua.FedFa(alpha=1.0, beta=0.0),
    "alpha0.5_b3_partial": ua.FedFa(every=3),
    "FedFa-mo_b1_full": ua.FedFa(client_momentum=0.9, weighting="samples"),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FEDFA)
def test_fedfa(name, engine, dtype):
    case, lines = golden("feddc_repo_syn01_full"), golden("own_fedfa")["results"][name]
    local = ua.LocalTraining(epochs=2, batch_size=4, lr=0.1, shuffle=False)
    participants = [line["participants"] for line in lines]
    for rounds in range(1, len(lines) + 1):
        module = nn.Linear(3, 2).double()
        run = replay(case, FEDFA[name], module, rounds, participants, local, engine, dtype)
        near(run, "w", lines[rounds - 1]["global_w"], dtype)
        near(run, "momentum", lines[rounds - 1]["m_s"], dtype)


def test_fedfa_weights():
    for case in golden("own_fedfa")["weight_vectors"]:
        method = ua.FedFa(alpha=case["alpha"], beta=1 - case["alpha"], c=case["c"])
        got = method.information(torch.tensor(case["acc"]), torch.tensor(case["f"], dtype=torch.float64))
        np.testing.assert_allclose(got.numpy(), case["weight"], atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", golden("own_flhc_clustering")["results"])
def test_flhc_clustering(name):
    case = golden("own_flhc_clustering")
    want = case["results"][name]
    linkage, metric = name.split("/")
    groups, merges = agglomerate(
        np.array(case["updates"]), case["n_clusters"], linkage, metric.replace("cos", "cosine")
    )
    assert sorted(map(sorted, groups)) == sorted(map(sorted, want["clusters"]))
    for (a, b, d), (wa, wb, wd) in zip(merges, want["merges"], strict=True):
        assert sorted([sorted(a), sorted(b)]) == sorted([sorted(wa), sorted(wb)])
        assert abs(d - wd) < 1e-9


def test_fedavgr_terms():
    """Each term and its gradient on the golden numbers: W [D][C], ω [d][D], b [D]."""
    case = golden("own_fedavgr_terms")
    tensor = lambda name: torch.tensor(case[name], dtype=torch.float64)  # noqa: E731
    module = ua.models.FourierFeatures(3, 2, width=5).double()
    with torch.no_grad():
        module.frequency.copy_(tensor("omega"))
        module.phase.copy_(tensor("b"))
        module.head.weight.copy_(tensor("W").T)
    model = ua.model.Model(module, dtype=torch.float64)
    x, y, target = tensor("x"), torch.tensor(case["y"]), tensor("Z").mean(0)
    model.check(x, y)
    live, weight = model.live(), torch.full((6,), 1 / 6, dtype=torch.float64)

    def gradients(trace, frobenius, mmd, data):
        live.vector.copy_(model.start)
        output, features = live(x, want_features=True)
        tensors = dict(live.module.named_parameters())
        vector = lambda: torch.cat([tensors[n].reshape(-1) for n, *_ in model.layout.places])  # noqa: E731
        calls = ModelCalls(model, model.pure, {}, live.buffers, weight)
        batch = ua.Batch(x, y, weight, calls, output=output, features=features, vector=vector)
        method = ua.FedAvgR(trace, frobenius, mmd)
        loss = method.regulariser(batch, target if mmd else None) + data * model.losses(output, y).mean()
        views = model.layout.views(live.gradient(loss))
        return loss.item(), [views["head.weight"].T, views["frequency"], views["phase"]]

    asked = {
        "ce": (0, 0, 0, 1), "trace_norm_W": (1, 0, 0, 0), "fro_phi": (0, 1, 0, 0), "mmd2_linear": (0, 0, 1, 0),
        "total": (case["alpha"], case["beta"], case["gamma"], 1),
    }  # fmt: skip
    for name, strengths in asked.items():
        value, got = gradients(*strengths)
        assert abs(value - {**case["terms"], "total": case["total"]}[name]) < 1e-9
        for mine, theirs in zip(got, case["grad_W_omega_b"][name], strict=True):
            wanted = torch.zeros_like(mine) if theirs is None else torch.tensor(theirs, dtype=torch.float64)
            torch.testing.assert_close(mine, wanted, atol=1e-9, rtol=0)


@pytest.mark.parametrize("shape", [(3, 7), (7, 3), (4, 4), (1, 5)])
def test_the_trace_norms_gradient_is_uv(shape):
    weight = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    value = trace_norm(weight)
    value.backward()
    u, s, v = torch.linalg.svd(weight.detach(), full_matrices=False)
    assert abs(value.item() - s.sum().item()) < 1e-9
    torch.testing.assert_close(weight.grad, u @ v, atol=1e-9, rtol=0)
