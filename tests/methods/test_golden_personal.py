"""Numbers of the authors' programs, and of restatements computed twice, for the methods with personal models: common
vectors, clients' own vectors and what they predict with. Coins that a file holds are put in the place of the method's
own. `replays` says which cases and which of their numbers a test compares; the last test here asks that there are no
others, but for those that docs/readings.md lists as left out."""

import dataclasses as dc

import numpy as np
import pytest
import torch
from goldens import Ledger, everywhere, golden, watched
from torch import nn

import unalike as ua
from unalike.run.predict import predictor

NORM = "local_after_training server personal"
ledger = Ledger()
replays = ledger.replays
NETS = {
    "softmax": lambda: nn.Linear(4, 3),
    "relu": lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)),
    "tanh": lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)),
    "norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)),
}


class Replay:
    """A golden file's data, a method run on them, and comparisons."""

    def __init__(self, file, engine, dtype):
        self.file = golden(file)
        self.engine, self.dtype = engine, dtype

    def run(self, net, w0, method, rows, rate=0.1, split=None, **local):
        module = NETS[net]().double()
        nn.utils.vector_to_parameters(torch.tensor(w0, dtype=torch.float64), module.parameters())
        fed = ua.Federation.from_arrays(
            [(np.array(x), np.array(y)) for x, y in zip(self.file["x"], self.file["y"], strict=True)],
            classes=3, client_splits=split,
        )  # fmt: skip
        whole = list(range(len(fed)))
        settings = {"batch_size": 3, **local}
        run = ua.simulate(
            module, fed, method, rounds=len(rows), engine=self.engine, dtype=self.dtype, evaluate_every=100,
            clients_per_round=[row.get("participants", whole) for row in rows],
            local=ua.LocalTraining(shuffle=False, lr=rate, **settings),
        )  # fmt: skip
        self.seen = sorted({k for row in rows for k in row.get("participants", whole)})
        return run

    def near(self, value, wanted, atol=1e-9, single=2e-6):
        tolerance = single if self.dtype == "float32" else atol
        np.testing.assert_allclose(np.asarray(value), wanted, atol=tolerance, rtol=0)

    def own(self, run, field, wanted, ids=None):
        """What clients keep."""
        for k in self.seen if ids is None else ids:
            assert run.clients[k][field].dtype == getattr(torch, self.dtype)
            self.near(run.clients[k][field], wanted[k])

    def sent(self, run, rows, field, **tolerance):
        """What this round's clients sent (of a `watched` method), as vectors after training."""
        before = rows[-2]["global_w"] if len(rows) > 1 else self.file["w0"]
        wanted, ids = rows[-1][field], rows[-1]["participants"]
        for at, k in enumerate(ids):
            row = wanted[str(k)] if isinstance(wanted, dict) else wanted[at]
            self.near(run.server.sent_delta[at].double() + torch.tensor(before, dtype=torch.float64), row, **tolerance)

    def personal(self, run, wanted, ids=None, **tolerance):
        """What clients predict with."""
        for k in range(len(wanted)) if ids is None else ids:
            module = predictor(run, k).module
            self.near(nn.utils.parameters_to_vector(module.parameters()).detach(), wanted[k], **tolerance)


@everywhere
@replays(
    "pfedme_official", "full_beta1", "partial_beta1", "partial_beta2_lambda5_K5", "net_partial_beta0.5",
    fields="global_w local_w theta",
)  # fmt: skip
def test_pfedme(case, engine, dtype):
    replay = Replay("pfedme_official", engine, dtype)
    about, rows = replay.file["cases"][case], replay.file["results"][case]
    hyper, model = about["hyper"], about["model"]
    method = ua.PFedMe(hyper["lambda"], hyper["inner_lr"], hyper["K_inner_steps"], hyper["beta"], 1e-3, "samples")
    net = "softmax" if model == "softmax" else "relu"
    for judged in ("theta", "w"):
        run = replay.run(
            net, replay.file["models"][model]["w0"], dc.replace(method, judged=judged), rows, hyper["lr"],
            steps=hyper["R_local_rounds"],
        )  # fmt: skip
        replay.near(run.server.w, rows[-1]["global_w"])
        wanted = rows[-1]["theta" if judged == "theta" else "local_w"]
        replay.own(run, "own", wanted, rows[-1]["participants"])


@everywhere
@replays("ditto_official", "full_lambda1", "full_lambda0", "partial_lambda0.5", fields="global_w personal")
def test_ditto(case, engine, dtype):
    replay = Replay("ditto_official", engine, dtype)
    rows, lam = replay.file["results"][case], replay.file["cases"][case]["hyper"]["lambda"]
    run = replay.run("softmax", replay.file["w0"], ua.Ditto(lam), rows, steps=6)
    replay.near(run.server.w, rows[-1]["global_w"])
    replay.own(run, "v", rows[-1]["personal"])
    replay.personal(run, rows[-1]["personal"])


@everywhere
@replays("l2gd_dittorepo", "full_lambda1", "partial_lambda0.5", fields="global_w personal")
def test_l2gd_without_a_coin(case, engine, dtype):
    replay = Replay("l2gd_dittorepo", engine, dtype)
    rows, lam = replay.file["results"][case], replay.file["cases"][case]["hyper"]["lambda"]
    run = replay.run("softmax", replay.file["w0"], ua.L2GD(lam, variant="steady"), rows, steps=6)
    replay.near(run.server.w, rows[-1]["global_w"])
    replay.personal(run, rows[-1]["personal"])


class GivenCoins(ua.L2GD):
    """The file's coins, and its mini-batches: the t-th local step of the run reads batch t."""

    def coin(self, server):
        server.taken = server.values.get("taken", -1) + 1
        return bool(self.coins[server.taken])

    def local(self, me, s, m):
        if not self.mini:
            return super().local(me, s, m)
        step = torch.as_tensor(sum(1 - c for c in self.coins[: me.round]), dtype=me.n.dtype)
        return me.train(
            me.own(s.x), own=0.0, loss=self.some, args={"step": step, "n": me.n}, steps=1, lr=m.scale * me.lr
        ).then(self.kept)

    def some(self, batch, step, n):
        batches = torch.ceil(n / 3)
        mine = (batch.index // 3 == step % batches).to(n.dtype)
        return (mine * batch.losses * (batch.weights > 0)).sum() / (mine * (batch.weights > 0)).sum()


@everywhere
@replays("own_l2gd", "full_batch", "mini_batch", fields="personal mean")
def test_l2gd(case, engine, dtype):
    replay = Replay("own_l2gd", engine, dtype)
    rows, hyper = replay.file["results"][case], replay.file["hyper"]
    method = type("Coins", (GivenCoins,), {"coins": [r["coin"] for r in rows], "mini": case == "mini_batch"})
    run = replay.run(
        "softmax",
        replay.file["w0"],
        method(hyper["lambda"], hyper["p"]),
        rows,
        hyper["alpha"],
        steps=1,
        batch_size=None,
    )
    replay.personal(run, rows[-1]["personal"])
    replay.near(torch.stack([run.clients[k]["x"] for k in replay.seen]).double().mean(0), rows[-1]["mean"])


@everywhere
@replays(
    "own_apfl", "fixed_full", "adaptive_partial",
    fields="global_w v alpha mixed_after_training personal_with_new_global",
)  # fmt: skip
def test_apfl(case, engine, dtype):
    replay = Replay("own_apfl", engine, dtype)
    rows = replay.file["results"][case]
    method = ua.APFL(0.5, alpha_lr=0.1 if "adaptive" in case else 0.0)
    run = replay.run("softmax", replay.file["w0"], watched(method), rows, epochs=2)
    replay.near(run.server.w, rows[-1]["global_w"])
    replay.own(run, "v", rows[-1]["v"])
    replay.own(run, "alpha", rows[-1]["alpha"])
    for at, k in enumerate(rows[-1]["participants"]):
        v, alpha = (run.clients[k][name].double() for name in ("v", "alpha"))
        theta = torch.tensor(rows[-2]["global_w"], dtype=torch.float64) + run.server.sent_delta[at].double()
        replay.near(alpha * v + (1 - alpha) * theta, rows[-1]["mixed_after_training"][str(k)])
    replay.personal(run, rows[-1]["personal_with_new_global"])


@everywhere
@replays(
    "apfl_fedtorch_alpha", "0.1", "0.3", "0.5", "0.9", fields="alpha v w new_alpha_paper_rule gradient_wrt_v"
)  # fmt: skip
def test_apfls_first_step_of_alpha(case, engine, dtype):
    replay = Replay("apfl_fedtorch_alpha", engine, dtype)
    row = next(row for row in replay.file["results"] if row["alpha"] == float(case))
    replay.file |= {"x": [replay.file["x"]], "y": [replay.file["y"]]}  # the file has one client

    class Begun(ua.APFL):  # its own vector is not the start
        def own(self, me, s):
            return torch.tensor(row["v"], dtype=s.v.dtype), torch.full_like(s.alpha, row["alpha"])

    rate = replay.file["hyper"]["eta"]
    run = replay.run("softmax", row["w"], Begun(row["alpha"], alpha_lr=rate), [{}], rate, steps=1, batch_size=None)
    replay.near(run.clients[0]["alpha"], row["new_alpha_paper_rule"])
    replay.near(run.clients[0]["v"], np.array(row["v"]) - rate * np.array(row["gradient_wrt_v"]))


@everywhere
@replays(
    "apfl_dittorepo", "full_alpha0.5", "partial_alpha0.25", "full_alpha1", "full_alpha0",
    fields="global_w personal interpolation",
)  # fmt: skip
def test_apfl_as_dittos_authors_wrote_it(case, engine, dtype):
    replay = Replay("apfl_dittorepo", engine, dtype)
    rows, alpha = replay.file["results"][case], replay.file["cases"][case]["hyper"]["alpha"]
    run = replay.run("softmax", replay.file["w0"], ua.APFL(alpha, reading="program"), rows, steps=6)
    replay.near(run.server.w, rows[-1]["global_w"])
    replay.own(run, "v", rows[-1]["personal"])
    replay.personal(run, rows[-1]["interpolation"], replay.seen)


@everywhere
@replays(
    "perfedavg_fo_official", "full", "partial", "net_partial", fields="global_w local_w personal_after_last_round"
)  # fmt: skip
def test_per_fedavg_first_order(case, engine, dtype):
    replay = Replay("perfedavg_fo_official", engine, dtype)
    about, rows = replay.file["cases"][case], replay.file["results"][case]
    hyper, model = about["hyper"], about["model"]
    method = watched(ua.PerFedAvg(hyper["alpha_inner_lr"], "first-order", weights="samples", judged="two steps"))
    net = "softmax" if model == "softmax" else "relu"
    w0 = replay.file["models"][model]["w0"]
    run = replay.run(net, w0, method, rows, hyper["beta_meta_lr"], steps=hyper["steps"])
    replay.near(run.server.w, rows[-1]["global_w"])
    replay.sent(run, rows, "local_w")
    replay.personal(run, about["personal_after_last_round"])


@everywhere
@replays("perfedavg_hf_dittorepo", "full", "partial", fields="global_w")
def test_per_fedavg_hessian_free(case, engine, dtype):
    replay = Replay("perfedavg_hf_dittorepo", engine, dtype)
    rows, hyper = replay.file["results"][case], replay.file["cases"][case]["hyper"]
    method = ua.PerFedAvg(hyper["alpha_inner_lr"], "hessian-free", hyper["delta"])
    run = replay.run("softmax", replay.file["w0"], method, rows, hyper["beta"], steps=hyper["steps"])
    replay.near(run.server.w, rows[-1]["global_w"])


@everywhere
@replays("own_perfedavg", "exact", "hf", "first_order", fields="global_w local_w personal")
def test_per_fedavg(case, engine, dtype):
    replay = Replay("own_perfedavg", engine, dtype)
    variant = {"hf": "hessian-free", "first_order": "first-order"}.get(case, case)
    rows, hyper = replay.file["results"][case], replay.file["hyper"]

    class Three(ua.PerFedAvg):  # the file reads three mini-batches a step for every variant
        def client(self, me, s, m):
            return me.train(m.w, step=self.step, batches=3).then(self.done)

    method = Three(hyper["alpha"], variant, hyper["delta"])
    run = replay.run(
        "softmax", replay.file["w0"], watched(method), rows, hyper["beta"], steps=hyper["steps"],
        batch_size=hyper["batch_size"],
    )  # fmt: skip
    loose = {"single": 1e-5} if case == "hf" else {}  # a difference of float32 gradients over 2δ = 0.002 loses digits
    replay.near(run.server.w, rows[-1]["global_w"], **loose)
    replay.sent(run, rows, "local_w", **loose)
    replay.personal(run, rows[-1]["personal"], **loose)


@everywhere
@replays("own_reptile", "eps1", "eps0.5", fields="global_w personal")
def test_reptile(case, engine, dtype):
    replay = Replay("own_reptile", engine, dtype)
    rows = replay.file["results"][case]
    run = replay.run("softmax", replay.file["w0"], ua.Reptile(float(case[3:])), rows, steps=4)
    replay.near(run.server.w, rows[-1]["global_w"])
    replay.personal(run, rows[-1]["personal"])


@everywhere
@replays("own_fedmeta", "maml", "fomaml", "metasgd", fields="global_w alpha meta_gradients personal")
def test_fedmeta(case, engine, dtype):
    replay = Replay("own_fedmeta", engine, dtype)
    rows, hyper, cut = replay.file["results"][case], replay.file["hyper"], replay.file["support_sizes"]
    each = [(np.array(x), np.array(y)) for x, y in zip(replay.file["x"], replay.file["y"], strict=True)]
    split = {
        "support": [(x[:c], y[:c]) for (x, y), c in zip(each, cut, strict=True)],
        "query": [(x[c:], y[c:]) for (x, y), c in zip(each, cut, strict=True)],
    }
    method = watched(ua.FedMeta(hyper["alpha"], hyper["beta"], "meta-sgd" if case == "metasgd" else case))
    run = replay.run("softmax", replay.file["w0"], method, rows, split=split, epochs=1)
    replay.near(run.server.w, rows[-1]["global_w"])
    replay.near(run.server.a, rows[-1]["alpha"])
    replay.near(run.server.sent_g, rows[-1]["meta_gradients"])
    replay.personal(run, rows[-1]["personal"])


@everywhere
@replays(
    "own_fedamp", "fedamp_full_start_cloud", "fedamp_full_start_own", "fedamp_partial_start_cloud",
    "heurfedamp_full_start_cloud", "heurfedamp_partial_start_own", "fedamp_alpha_tiny_is_local_prox",
    fields="attention cloud personal",
)  # fmt: skip
def test_fedamp(case, engine, dtype):
    replay = Replay("own_fedamp", engine, dtype)
    rows, hyper = replay.file["results"][case], replay.file["cases"][case]["hyper"]
    start = replay.file["cases"][case]["start"]
    method = ua.FedAMP(hyper["lambda"], hyper["alpha"], hyper["sigma"], start)
    if case.startswith("heur"):
        method = ua.HeurFedAMP(hyper["lambda"], hyper["alpha"], hyper["sigma"], start, hyper["self_weight"])
    seen = {}

    class Looking(type(method)):
        def attention(self, rows, at):
            seen["attention"] = super().attention(rows, at)
            return seen["attention"]

        def clouds(self, server, cohort):
            seen["cloud"] = super().clouds(server, cohort)
            return seen["cloud"]

    looking = Looking(**{f.name: getattr(method, f.name) for f in dc.fields(method)})
    run = replay.run("softmax", replay.file["w0"], looking, rows, epochs=2)
    replay.personal(run, rows[-1]["personal"])
    for at, k in enumerate(rows[-1]["participants"]):
        wanted = rows[-1]["attention"][str(k)]
        ids = sorted([k, *wanted["others"]])
        weights = dict(zip(ids, seen["attention"][at].tolist(), strict=True))
        replay.near([weights[other] for other in wanted["others"]], wanted["weights"])
        replay.near(1 - sum(weights.values()), wanted["self"])
        replay.near(seen["cloud"][at], rows[-1]["cloud"][str(k)])


@everywhere
@replays("mapper_dittorepo", "full", fields="personal")
def test_mapper_as_dittos_authors_wrote_it(case, engine, dtype):
    replay = Replay("mapper_dittorepo", engine, dtype)
    first, hyper = replay.file["results"][case][:1], replay.file["cases"][case]["hyper"]
    run = replay.run(
        "softmax", replay.file["w0"], ua.Mapper((0.25, 0.5, 0.75)), first, hyper["lr"],
        steps=hyper["steps"] + 1,  # the program's loop does one more than it says
    )  # fmt: skip
    replay.own(run, "v", first[0]["personal"])


@everywhere
@replays("own_mapper", "gentle", "choice_varies", fields="global_w v chosen_lambda personal")
def test_mapper(case, engine, dtype):
    if case == "choice_varies" and dtype == "float32":
        pytest.skip("the file: its very large rate is for float64")
    replay = Replay("own_mapper", engine, dtype)
    rows, hyper = replay.file["results"][case], replay.file["hyper"]
    run = replay.run("softmax", replay.file["w0"], ua.Mapper(tuple(hyper["grid"])), rows, hyper["lr"][case], steps=4)
    replay.near(run.server.w, rows[-1]["global_w"], 1e-8)
    replay.own(run, "v", rows[-1]["v"])
    replay.own(run, "lam", rows[-1]["chosen_lambda"])
    replay.personal(run, rows[-1]["personal"], replay.seen)


def decayed(method, decay):
    """The method with weight decay on weight matrices alone, as FedRep's program has it: a pull of its own."""

    class Decayed(type(method)):
        def client(self, me, s, m):
            return self.matrices(me, super().client(me, s, m))

        def then_body(self, me, s, m, theta):
            return self.matrices(me, super().then_body(me, s, m, theta))

        def personal(self, me, s, m):
            found = super().personal(me, s, m)
            return self.matrices(me, found) if self.tune_epochs else found

        def matrices(self, me, request):
            layout = me.layout
            shapes = {name: torch.full(shape, float(len(shape) > 1)) for name, _, _, shape in layout.places}
            return dc.replace(request, pull=decay * layout.flat(shapes).to(request.at), unclipped=("pull",))

    return Decayed(**{f.name: getattr(method, f.name) for f in dc.fields(method)})


@everywhere
@replays(
    "fedrep_repo", "fedrep_full", "fedrep_partial", "fedrep_partial_no_momentum",
    "fedrep_partial_with_their_weight_decay", "fedper_full", "fedper_partial", "lg_partial",
    fields="global_all personal",
)  # fmt: skip
def test_fedrep_and_its_relatives(case, engine, dtype):
    replay = Replay("fedrep_repo", engine, dtype)
    about = replay.file["cases"][case]
    hyper, rows = about["hyper"], [{"participants": p} for p in about["participants"]]
    wanted, tuned = replay.file["results"][case][-2:]  # after the last round, and after tuning
    head = hyper["local_epochs"] - hyper["rep_epochs"]
    method = {
        "fedrep": ua.FedRep(newcomer="mean", head_epochs=head, body_epochs=hyper["rep_epochs"]),
        "fedper": ua.FedPer(newcomer="mean"),
        "lg": ua.LGFedAvg(newcomer="mean"),
    }[hyper["alg"]]
    if "strip_weight_decay" not in hyper:
        method = decayed(method, 1e-4)
    about = {"epochs": hyper["local_epochs"], "momentum": hyper["momentum"]}
    for passes, row in ((0, wanted), (10, tuned)):
        run = replay.run("tanh", replay.file["w0"], dc.replace(method, tune_epochs=passes), rows, **about)
        replay.near(run.server.w, row["global_all"])
        replay.personal(run, row["personal"])


@everywhere
@replays("lgfedavg_official", "full", "partial", fields="personal")
def test_lg_fedavg(case, engine, dtype):
    replay = Replay("lgfedavg_official", engine, dtype)
    rows = [{"participants": p} for p in replay.file["cases"][case]["participants"]]
    run = replay.run("tanh", replay.file["w0"], ua.LGFedAvg(), rows, epochs=3, momentum=0.5)
    replay.personal(run, replay.file["results"][case][-1]["personal"])


@everywhere
@replays("fedbabu_official", "full", "partial", fields="personal")
def test_fedbabu(case, engine, dtype):
    replay = Replay("fedbabu_official", engine, dtype)
    rows = [{"participants": p} for p in replay.file["cases"][case]["participants"]]
    n = len(rows)
    rate = lambda k, t: 0.1 * (0.1 if t >= n // 2 else 1) * (0.1 if t >= 3 * n // 4 else 1)  # noqa: E731
    run = replay.run("tanh", replay.file["w0"], ua.FedBABU(epochs=0), rows, rate, epochs=3, momentum=0.5)
    replay.near(run.server.w, replay.file["results"][case][-1]["personal"][0])
    head = run.server.layout.head(run.server.w)
    assert torch.equal(head, torch.tensor(replay.file["w0"], dtype=torch.float64).to(head.dtype)[-len(head) :])


@everywhere
@replays("fedbn_official", "uniform", "sample_weights", fields=f"{NORM} running server_running")
def test_fedbn(case, engine, dtype):
    replay = Replay("fedbn_official", engine, dtype)
    rows, method = replay.file["results"][case], ua.FedBN("samples" if case == "sample_weights" else "uniform")
    run = replay.run("norm", replay.file["w0"], watched(method), rows, 0.2, epochs=2)
    replay.near(run.server.w, rows[-1]["server"])
    replay.personal(run, rows[-1]["personal"])
    replay.near(run.buffers, rows[-1]["server_running"])
    own, before = run.task.layout.mask("norm"), torch.tensor(rows[-2]["server"], dtype=torch.float64)
    for k, local in enumerate(torch.tensor(rows[-1]["local_after_training"], dtype=torch.float64)):
        replay.near(run.clients[k]["norm"], local[own])
        replay.near(before[~own] + run.server.sent_delta[k].double(), local[~own])
        norm = next(m for m in predictor(run, k).module.modules() if isinstance(m, nn.BatchNorm1d))
        replay.near(torch.cat([norm.running_mean, norm.running_var]), rows[-1]["running"][k])


@everywhere
@replays("fedbn_official", "fedavg_same_net", fields=NORM)
def test_fedavg_of_a_net_with_batch_norm(case, engine, dtype):
    replay = Replay("fedbn_official", engine, dtype)
    rows = replay.file["results"][case]
    run = replay.run("norm", replay.file["w0"], watched(ua.FedAvg("uniform")), rows, 0.2, epochs=2)
    replay.near(run.server.w, rows[-1]["server"])
    replay.personal(run, rows[-1]["personal"])
    before = torch.tensor(rows[-2]["server"], dtype=torch.float64)
    replay.near(before + run.server.sent_delta.double(), rows[-1]["local_after_training"])


def test_every_number_of_the_golden_files_is_compared_or_listed_as_left_out():
    ledger.check()
