"""Numbers of the authors' programs, and of restatements computed twice, for the methods that users look for on label
skew: after every round that a file has, what each client sent and keeps, and what the server holds. The last test asks
that every number of the files is compared, or listed as left out in docs/readings.md."""

import numpy as np
import torch
from goldens import WHOLE, Ledger, everywhere, golden, watched
from torch import nn
from torch.nn import functional as F

import unalike as ua

ledger = Ledger()
replays = ledger.replays
FLOAT32 = 2e-6  # the program averages, or weighs, in float32


def small(bias=True):
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3, bias=bias))


def projecting():
    return nn.Sequential(
        nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 4), nn.Identity(), nn.Linear(4, 3)
    )


class Rounds(ua.Callback):
    """The server's values and every client's state after each round."""

    def __init__(self):
        self.seen = []

    def on_round(self, run, line):
        clients = [{name: value.clone() for name, value in run.clients[k].items()} for k in range(run.population)]
        self.seen.append((dict(run.server.values), clients))


class Replay:
    """A golden file's data, a method run on them, and comparisons after each round."""

    def __init__(self, file, engine, dtype):
        self.file, self.engine, self.dtype = golden(file), engine, dtype
        self.hyper = self.file["hyper"]

    def module(self, build=small, vector=None):
        module = build().double()
        start = self.file.get("w0", self.file.get("w")) if vector is None else vector
        nn.utils.vector_to_parameters(torch.as_tensor(start, dtype=torch.float64), module.parameters())
        return module

    def run(self, method, rows, build=small, **local):
        """Yield (what the file has, the server's values, the clients' states) of every round."""
        fed = ua.Federation.from_arrays([(np.array(c["x"]), np.array(c["y"])) for c in self.file["clients"]], classes=3)
        rounds, given = Rounds(), {"batch_size": self.hyper.get("batch_size"), "lr": self.hyper.get("lr"), **local}
        ua.simulate(
            self.module(build), fed, watched(method), rounds=len(rows), engine=self.engine, dtype=self.dtype,
            clients_per_round=[row["participants"] for row in rows], evaluate_every=100, callbacks=[rounds],
            local=ua.LocalTraining(shuffle=False, **given),
        )  # fmt: skip
        for row, (server, clients) in zip(rows, rounds.seen, strict=True):
            yield row, server, clients

    def near(self, value, wanted, atol=1e-9):
        assert not torch.is_tensor(value) or value.dtype == getattr(torch, self.dtype)
        tolerance = max(2e-6, atol) if self.dtype == "float32" else atol
        np.testing.assert_allclose(np.asarray(value), wanted, atol=tolerance, rtol=0)

    def compare(self, rounds, atol=1e-9):
        """Compare `w` and every participant's `theta` in every round."""
        before = torch.tensor(self.file["w0"], dtype=torch.float64)
        for row, server, _ in rounds:
            self.near(server["w"], row["w"], atol)
            assert sorted(server["sent_ids"]) == sorted(map(int, row["theta"]))
            for k, delta in zip(server["sent_ids"], server["sent_delta"], strict=True):
                self.near((before + delta.double()).to(delta.dtype), row["theta"][str(k)], atol)
            before = torch.tensor(row["w"], dtype=torch.float64)


MOON = {"epochs": 2, "momentum": 0.9, "weight_decay": 1e-5}


@everywhere
@replays("moon_repo_full", "rounds", "recommended_rounds", fields="theta w")
def test_moon(case, engine, dtype):
    replay = Replay("moon_repo_full", engine, dtype)
    method = ua.Moon(replay.hyper["mu"], replay.hyper["temperature"])
    replay.compare(replay.run(method, replay.file[case], projecting, **MOON))


@everywhere
@replays("moon_repo_full", "rounds", fields="previous_models_after")
def test_moons_last_models(case, engine, dtype):
    replay = Replay("moon_repo_full", engine, dtype)
    method = ua.Moon(replay.hyper["mu"], replay.hyper["temperature"])
    for row, _, clients in replay.run(method, replay.file[case], projecting, **MOON):
        for k, wanted in enumerate(row["previous_models_after"]):
            replay.near(clients[k]["last"], wanted)


@everywhere
@replays("moon_repo_full", "rounds", fields="last_batch_contrastive_loss")
def test_moons_contrast_of_the_last_mini_batch(case, engine, dtype):
    """One step less in the last round leaves the model of which the program says the contrast, written out here."""
    replay = Replay("moon_repo_full", engine, dtype)
    rows, hyper = replay.file[case], replay.hyper
    sizes = [len(c["y"]) for c in replay.file["clients"]]
    steps = [2 * -(-n // 3) for n in sizes]
    method = ua.Moon(hyper["mu"], hyper["temperature"])
    for last in range(len(rows)):
        rest = {**MOON, "epochs": None, "steps": lambda k, t, last=last: steps[k] - (t == last)}
        *_, (row, server, _) = replay.run(method, rows[: last + 1], projecting, **rest)
        w = rows[last - 1]["w"] if last else replay.file["w0"]
        for k, delta in zip(server["sent_ids"], server["sent_delta"], strict=True):
            x = torch.tensor(replay.file["clients"][k]["x"], dtype=torch.float64)[3 * ((sizes[k] - 1) // 3) :]
            old = rows[last - 1]["previous_models_after"][k] if last else w
            z, near, far = (
                replay.module(projecting, vector)[:-1](x)
                for vector in (torch.tensor(w, dtype=torch.float64) + delta.double(), w, old)
            )
            cos = torch.stack([F.cosine_similarity(z, other, dim=-1) for other in (near, far)], -1)
            loss = F.cross_entropy(cos / hyper["temperature"], torch.zeros(len(x), dtype=torch.int64))
            wanted = row["last_batch_contrastive_loss"][str(k)]
            replay.near(loss.item() if last else 0.0, wanted, 1e-9)


@everywhere
@replays("fedntd_repo", "rounds", fields="theta w lr")
def test_fedntd(case, engine, dtype):
    replay = Replay("fedntd_repo", engine, dtype)
    hyper, rows = replay.hyper, replay.file[case]
    assert {row["lr"] for row in rows} == {hyper["lr"]}
    method = ua.FedNTD(hyper["beta"], hyper["tau"])
    replay.compare(replay.run(method, rows, epochs=2, momentum=0.9, weight_decay=1e-5), FLOAT32)


@everywhere
@replays("fedrs_repo", "rounds", fields="theta w")
def test_fedrs_as_its_program_has_it(case, engine, dtype):
    replay = Replay("fedrs_repo", engine, dtype)
    local = {name: replay.hyper[name] for name in ("steps", "momentum", "weight_decay", "clip_norm")}
    method = ua.FedRS(replay.hyper["alpha"], "share")
    replay.compare(replay.run(method, replay.file[case], lambda: small(bias=False), **local), FLOAT32)


@everywhere
@replays("fedsam_repo", "sam_rounds", "asam_rounds", fields="theta w")
def test_fedsam(case, engine, dtype):
    replay = Replay("fedsam_repo", engine, dtype)
    hyper = replay.hyper
    method = ua.FedSAM(hyper["rho"]) if case == "sam_rounds" else ua.FedASAM(hyper["rho"], hyper["eta (asam only)"])
    local = {"epochs": hyper["epochs"], "weight_decay": hyper["weight_decay"]}
    replay.compare(replay.run(method, replay.file[case], **local), FLOAT32)


@everywhere
@replays("fedexp_repo", "rounds", fields="lr epsilon delta eta_g w w_evaluated")
def test_fedexp(case, engine, dtype):
    replay = Replay("fedexp_repo", engine, dtype)
    hyper, rows, decay = replay.hyper, replay.file[case], 0.998
    method = ua.FedExP(decay**2 * hyper["epsilon0"], decay**2, "participants")
    local = {name: hyper[name] for name in ("steps", "clip_norm", "weight_decay")}
    for t, (row, server, _) in enumerate(replay.run(method, rows, lr=decay * hyper["lr0"], lr_decay=decay, **local)):
        for k, delta in zip(server["sent_ids"], server["sent_delta"], strict=True):
            replay.near(delta, row["delta"][str(k)])
        replay.near(server["last"], row["w"])
        replay.near(server["w"], row["w_evaluated"])
        np.testing.assert_allclose(server["rate"], row["eta_g"], rtol=1e-9 if dtype == "float64" else 1e-5)
        np.testing.assert_allclose(hyper["lr0"] * decay ** (t + 1), row["lr"], rtol=1e-10)
        np.testing.assert_allclose(method.epsilon * method.epsilon_decay**t, row["epsilon"], rtol=1e-10)


LOGITS = {
    "fedlc_softmax_rounds": lambda hyper: ua.FedLC(hyper["tau"]),
    "fedlc_paper_rounds": lambda hyper: ua.FedLC(hyper["tau"], "others"),
    "fedrs_paper_rounds": lambda hyper: ua.FedRS(hyper["alpha_fedrs"]),
}


@everywhere
@replays("own_fedlc_fedrs", *LOGITS, fields="theta w")
def test_fedlc_and_fedrs(case, engine, dtype):
    replay = Replay("own_fedlc_fedrs", engine, dtype)
    replay.compare(replay.run(LOGITS[case](replay.hyper), replay.file[case], epochs=replay.hyper["epochs"]))


@everywhere
@replays(
    "own_ccvr", WHOLE,
    fields="client_statistics pooled_mean pooled_cov virtual_features virtual_labels w_calibrated",
)  # fmt: skip
def test_ccvr(case, engine, dtype):
    """The server's rate is 0: the model that is calibrated is the file's."""
    replay = Replay("own_ccvr", engine, dtype)
    file, head, seen = replay.file, replay.hyper["head_training"], {}

    class Given(ua.CCVR):
        def noise(self, server, shape):
            return torch.tensor(file["z"], dtype=getattr(torch, dtype)).transpose(0, 1)

        def drawn(self, server, count, mean, cov):
            seen.update(count=count, mean=mean, cov=cov, **(made := super().drawn(server, count, mean, cov)))
            return made

    method = Given(
        server_lr=0.0, virtual=4, epochs=head["epochs"], batch=head["batch_size"], lr=head["lr"], shuffle=False,
        asked="round",
    )  # fmt: skip
    [(_, server, _)] = replay.run(method, [{"participants": [0, 1, 2, 3]}], lr=0.1, epochs=1)
    for k, wanted in enumerate(file["client_statistics"]):
        n, total, square = (server[f"sent_{name}"][k].double() for name in ("count", "total", "square"))
        assert n.tolist() == wanted["n"]
        mean = total / n.clamp(min=1)[:, None]
        row, column = torch.triu_indices(5, 5)
        cov = (square - n[:, None] * mean[:, row] * mean[:, column]) / (n - 1).clamp(min=1)[:, None]
        np.testing.assert_allclose(mean, wanted["mean"], atol=1e-9 if dtype == "float64" else 2e-6)
        wanted = np.array(wanted["cov"])
        np.testing.assert_allclose(cov, wanted[:, row, column], atol=1e-9 if dtype == "float64" else 2e-6)
        assert np.array_equal(wanted, wanted.transpose(0, 2, 1))
    for name in ("mean", "cov"):
        np.testing.assert_allclose(seen[name], file[f"pooled_{name}"], atol=1e-9 if dtype == "float64" else 2e-6)
    replay.near(seen["x"], file["virtual_features"], 1e-8)
    assert seen["y"].tolist() == file["virtual_labels"]
    replay.near(server["w"], file["w_calibrated"])
    replay.near(server["trained"], file["w"])


def test_every_number_of_the_golden_files_is_compared_or_listed_as_left_out():
    ledger.check()
