"""Numbers of the authors' programs, and of restatements computed twice, for the methods that share data, mix samples or
distil predictions robustly or class by class. Draws that a file holds are put in the place of the method's own."""

import numpy as np
import pytest
import torch
from goldens import KEYS, Ledger, everywhere, golden, watched
from test_golden_distillation import (
    NETS,
    Lookup,
    OwnStarts,
    families,
    federation,
    local,
    near,
    network,
    place,
    places,
    tensor,
)
from torch import nn

import unalike as ua
from unalike.methods.astraea import schedule

ledger = Ledger()
FILE = "file"  # the case of a file's own numbers


def given(file, fields):
    """Declare what of a file goes in, beyond what all files have."""
    ledger.replays(file, FILE, fields=fields)


def whole(line, **compared):
    """Assert that these are all the numbers of a round, beside what goes in."""
    assert set(line) - KEYS - {"draws", "lr_of_client"} == set(compared)
    return compared.items()


def sent(run, before, name="delta"):
    """The vectors that clients sent last, by client as a file names them."""
    rows = before.double() + getattr(run.server, f"sent_{name}").double()
    return {str(k): row for k, row in zip(run.server.sent_ids, rows, strict=True)}


def near_each(values, wanted, dtype, atol=1e-9):
    assert set(values) == set(wanted)
    for k, value in values.items():
        near(np.asarray(value), wanted[k], dtype, atol)


# ---- data sharing

given("own_data_sharing", "public")


@everywhere
@ledger.replays("own_data_sharing", "rounds", fields="theta w")
def test_data_sharing(case, engine, dtype):
    file = golden("own_data_sharing")
    rows, hyper = file[case], file["hyper"]
    shares = torch.full((4, 3), -1)
    for k, some in enumerate(hyper["shared_rows_of_client"]):
        shares[k, : len(some)] = torch.tensor(some)

    class Given(ua.DataSharing):
        def shares(self, server, everyone):
            return shares

    method = watched(Given(warm_epochs=2, batch=hyper["batch_size"], lr=hyper["lr"], shuffle=False))
    training = local(lr=hyper["lr"], epochs=hyper["epochs"], batch_size=hyper["batch_size"])
    cohorts = [line["participants"] for line in rows]
    setting = {"local": training, "engine": engine, "dtype": dtype, "clients_per_round": cohorts}
    module, before = network(NETS["a"], file["w0"]), file["w_after_warm_up"]
    for t, line in enumerate(rows):
        run = ua.simulate(module, federation(file), method, rounds=t + 1, **setting)
        moved = run.server.sent_delta.double() / run.server.sent_samples.double()[:, None]
        theta = {str(k): tensor(before) + row for k, row in zip(run.server.sent_ids, moved, strict=True)}
        for name, value in whole(line, theta=theta, w=run.server.w):
            near_each(value, line[name], dtype) if name == "theta" else near(value, line[name], dtype)
        before = line["w"]


@everywhere
@ledger.replays("own_data_sharing", FILE, fields="w_after_warm_up")
def test_data_sharing_warms_up(case, engine, dtype):
    file = golden("own_data_sharing")
    method = ua.DataSharing(warm_epochs=2, batch=3, lr=0.1, shuffle=False)
    run = ua.simulate(network(NETS["a"], file["w0"]), federation(file), method, rounds=0, engine=engine, dtype=dtype)
    near(run.server.w, file["w_after_warm_up"], dtype)


@ledger.replays("own_data_sharing", FILE, fields="emd_before emd_after")
def test_earth_movers_distance(case):
    file = golden("own_data_sharing")
    counts = federation(file).label_counts()
    y = np.array(file["public"]["y"])
    shared = [np.bincount(y[rows], minlength=3) for rows in file["hyper"]["shared_rows_of_client"]]
    np.testing.assert_allclose(ua.metrics.label_emd(counts), file["emd_before"], atol=1e-9)
    after = ua.metrics.label_emd(counts + np.stack(shared), counts.sum(0))
    np.testing.assert_allclose(after, file["emd_after"], atol=1e-9)


# ---- Cronus

given("own_cronus", "public architectures architecture_of_client w0_of_client")


def cronus(file, dtype):
    """The method with the file's starts, one client that lies, and a server that keeps what it saw."""

    class Poisoned(OwnStarts, ua.Cronus):
        keeps = {"theta": ua.Field(), "liar": ua.Field("scalar")}

        def setup(self, server, everyone):
            super().setup(server, everyone)
            everyone.call(self.marked, liar=ua.PerClient((torch.arange(len(everyone)) == 3).to(getattr(torch, dtype))))

        def marked(self, me, s, m):
            return {"liar": m.liar}, {}

        def scored(self, me, s, m, logits):
            wrong = (torch.tensor(file["public"]["y"]) + 1) % 3
            lie = (wrong[:, None] == torch.arange(3)).to(logits.dtype)
            return {}, {"odds": torch.where(s.liar > 0, lie, logits.softmax(-1))}

        def round(self, server, cohort):
            call = cohort.only(cohort.ids).call

            def watching(fn, **message):
                replies = call(fn, **message)
                server.seen, server.ids = replies.each("odds"), replies.ids.tolist()
                return replies

            cohort.call = watching
            super().round(server, cohort)

        def filtered(self, odds):
            type(self).aggregate_seen, type(self).kept_seen = super().filtered(odds)
            return self.aggregate_seen, self.kept_seen

    Poisoned.case, Poisoned.dtype = file, dtype
    return Poisoned(epsilon=0.25, tolerance=1e-3, warm_epochs=file["hyper"]["warm_up_epochs"])


@everywhere
@ledger.replays("own_cronus", "rounds", fields="predictions aggregate kept_clients_of_each_row theta")
def test_cronus(case, engine, dtype):
    file = golden("own_cronus")
    rows, hyper, method = file[case], file["hyper"], cronus(file, dtype)
    modules, more = families(file)
    training = local(lr=hyper["lr"], epochs=hyper["epochs"], batch_size=hyper["batch_size"])
    for t, line in enumerate(rows):
        run = ua.simulate(
            modules, federation(file), method, rounds=t + 1, local=training, engine=engine, dtype=dtype,
            clients_per_round=[row["participants"] for row in rows], **more,
        )  # fmt: skip
        ids = np.array(run.server.ids)
        kept = [ids[row].tolist() for row in method.kept_seen.numpy()]
        seen = {str(k): odds for k, odds in zip(ids, run.server.seen, strict=True)}
        found = {"predictions": seen, "aggregate": method.aggregate_seen, "kept_clients_of_each_row": kept}
        compared = dict(whole(line, theta=[run.clients[k]["theta"] for k in range(5)], **found))
        near_each(compared["predictions"], line["predictions"], dtype)
        near(compared["aggregate"], line["aggregate"], dtype)
        assert kept == line["kept_clients_of_each_row"]
        for value, wanted in zip(compared["theta"], line["theta"], strict=True):
            near(value, wanted, dtype)


@everywhere
@ledger.replays("own_cronus", FILE, fields="theta_after_warm_up")
def test_cronus_warms_up(case, engine, dtype):
    file = golden("own_cronus")
    modules, more = families(file)
    run = ua.simulate(
        modules, federation(file), cronus(file, dtype), rounds=0, local=local(lr=0.1, batch_size=4), engine=engine,
        dtype=dtype, **more,
    )  # fmt: skip
    for k, wanted in enumerate(file["theta_after_warm_up"]):
        near(run.clients[k]["theta"], wanted, dtype)


# ---- FD and FD-FL


def label_logits(run):
    return run.server.total / len(run.server.sent_ids)


@everywhere
@ledger.replays("feddistill_repo", FILE, fields="FedDistill FedDistill-FL")
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("reading", ["others", "program"])
def test_fd(case, reading, average, engine, dtype):
    file = golden("feddistill_repo")
    hyper, content = file["hyper"], file["FedDistill-FL" if average else "FedDistill"]
    assert set(content) == {"rounds", "recommended_rounds"}
    lines = content["rounds" if reading == "program" else "recommended_rounds"]
    rates = {(int(k), t): r for t, row in enumerate(content["rounds"]) for k, r in row["lr_of_client"].items()}
    training = local(
        lr=lambda k, t: rates.get((k, t), hyper["lr"]), epochs=1, batch_size=hyper["batch_size"], drop_last=True
    )
    module = network(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), file["w0"])
    method, before = watched(ua.FD(hyper["strength"], average, reading)), tensor(file["w0"])
    for t, line in enumerate(lines):
        run = ua.simulate(
            module, federation(file), method, rounds=t + 1, local=training, engine=engine, dtype=dtype,
            clients_per_round=[row["participants"] for row in lines],
        )  # fmt: skip
        ids = map(str, line["participants"])
        theta = sent(run, before) if average else {k: run.clients[int(k)]["theta"] for k in ids}
        found = {"theta": theta, **({"w": run.server.w} if average else {})}
        if reading == "program":
            found |= {"label_logits": label_logits(run)}
            found |= {f"{name}__f64": value for name, value in found.items()}  # theirs is float32
        else:
            found |= {"sum_of_label_logits": run.server.total, "clients_with_label": run.server.share}
        for name, value in whole(line, **found):
            theirs = reading == "program" and not name.endswith("__f64")
            each = near_each if name.startswith("theta") else lambda v, *more: near(np.asarray(v), *more)
            each(value, line[name], dtype, 2e-6 if theirs else 1e-9)
        before = tensor(line.get("w__f64", line.get("w", file["w0"])))


# ---- mixup


@everywhere
@ledger.replays("localmixup_repo", "rounds", fields="draws theta w")
def test_local_mixup(case, engine, dtype):
    file = golden("localmixup_repo")
    lines, hyper = file[case], file["hyper"]
    module, fed = network(NETS["a"], file["w0"]), federation(file)
    training = local(lr=hyper["lr"], epochs=hyper["epochs"], batch_size=hyper["batch_size"])
    participants = [line["participants"] for line in lines]
    found = places(module, fed, training, participants)
    steps = [
        (number, draw)
        for t, line in enumerate(lines)
        for k, drawn in line["draws"].items()
        for number, draw in zip(found[t, int(k)], drawn, strict=True)
    ]
    shares = Lookup([(n, draw["lambda"]) for n, draw in steps], getattr(torch, dtype))
    order = Lookup([(n, [*draw["partner"], 1, 2][: hyper["batch_size"]]) for n, draw in steps])

    class Given(ua.LocalMixup):
        def lam(self, batch):
            return shares(batch)

        def partners(self, batch):
            return order(batch)[: len(batch.y)]

    method, before = watched(Given(hyper["beta_a"])), tensor(file["w0"])
    for t, line in enumerate(lines):
        run = ua.simulate(
            module, fed, method, rounds=t + 1, local=training, engine=engine, dtype=dtype,
            clients_per_round=participants,
        )  # fmt: skip
        for name, value in whole(line, theta=sent(run, before), w=run.server.w):
            near_each(value, line[name], dtype) if name == "theta" else near(value, line[name], dtype)
        before = tensor(line["w"])


MIXES = {"fedmix_rounds": ua.FedMix, "naivemix_rounds": ua.NaiveMix}
given("own_fedmix", "means_of_client")


@everywhere
@ledger.replays("own_fedmix", *MIXES, fields="theta last_batch_loss w")
def test_mixes(case, engine, dtype):
    file = golden("own_fedmix")
    lines, hyper = file[case], file["hyper"]
    module, fed = network(NETS["a"], file["w0"]), federation(file)
    training = local(lr=hyper["lr"], epochs=hyper["epochs"], batch_size=hyper["batch_size"])
    participants, means = [line["participants"] for line in lines], sum(file["means_of_client"])
    found = places(module, fed, training, participants)
    numbers = Lookup([(n, [(j + k + r) % means]) for (r, k), some in found.items() for j, n in enumerate(some)])
    losses = {}  # of every step, by the number that its batch draws

    class Given(MIXES[case]):
        def chosen(self, batch, count):
            return numbers(batch)

        def mixed(self, batch, xs, ys):
            loss = super().mixed(batch, xs, ys)
            if engine == "sequential":
                losses[int(place(batch))] = float(loss.detach())
            return loss

    method = watched(Given(lam=hyper["lambda"], group=hyper["M"], short="own"))
    before = tensor(file["w0"])
    for t, line in enumerate(lines):
        run = ua.simulate(
            module, fed, method, rounds=t + 1, local=training, engine=engine, dtype=dtype,
            clients_per_round=participants,
        )  # fmt: skip
        last = {k: losses.get(found[t, int(k)][-1]) for k in line["theta"]}
        for name, value in whole(line, theta=sent(run, before), w=run.server.w, last_batch_loss=last):
            if name != "last_batch_loss" or engine == "sequential":  # a stack's losses are seen in their means only
                near_each(value, line[name], dtype) if name != "w" else near(value, line[name], dtype)
        before = tensor(line["w"])


@everywhere
@ledger.replays("own_fedmix", FILE, fields="means_x means_y one_step_checks")
def test_means_and_a_naive_step(case, engine, dtype):
    """One step of a whole client at rate 1 shows the gradient (FedMix's is in test_golden_distillation.py)."""
    file = golden("own_fedmix")
    for check in file["one_step_checks"]:
        for kind, cls in (("fedmix", ua.FedMix), ("naivemix", ua.NaiveMix)):
            wanted = {name: check[name] for name in check if name.startswith(kind)}

            class Given(cls):
                def chosen(self, batch, count, number=check["mean_number"]):
                    return torch.tensor([number])

            method = Given(lam=file["hyper"]["lambda"], group=file["hyper"]["M"], short="own")
            run = ua.simulate(
                network(NETS["a"], file["w0"]), federation(file), method, rounds=1, engine=engine, dtype=dtype,
                local=local(lr=1.0, batch_size=None), clients_per_round=[[check["client"]]],
            )  # fmt: skip
            near(run.server.x, file["means_x"], dtype)
            near(run.server.y, file["means_y"], dtype)
            for name, value in wanted.items():
                moved = tensor(file["w0"], dtype) - run.server.w
                near(moved if name.endswith("gradient") else run.history[0]["train_loss"], value, dtype)


# ---- XorMixFL

given("own_xormix", "server_base")


@everywhere
@ledger.replays("own_xormix", FILE, fields="uploads decoded")
def test_xormixfl(case, engine, dtype):
    file = golden("own_xormix")
    base = file["server_base"]
    pictures = [(np.array(c["x"]) / 255, np.array(c["y"])) for c in file["clients"]]
    fed = ua.Federation.from_arrays(pictures, classes=3).with_public(np.array(base["x"]) / 255, np.array(base["y"]))

    class Seen(ua.XorMixFL):
        def decoded(self, pairs, labels, x, y):
            type(self).uploads = torch.cat([pairs.long(), labels], 1).tolist()
            type(self).made = super().decoded(pairs, labels, x, y)
            return self.made

    method = Seen(samples=5, pairs="next", epochs=2, batch=4, lr=0.1, shuffle=False)
    module = network(lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), file["w0"])
    run = ua.simulate(module, fed, method, rounds=1, engine=engine, dtype=dtype, allow_samples=True)
    assert method.uploads == [[*up["xor"], up["label_i"], up["label_j"]] for up in file["uploads"]]
    assert method.made[0].long().tolist() == file["decoded"]["x"] and method.made[1].tolist() == file["decoded"]["y"]
    near(run.server.w, file["w"], dtype)  # a number that goes in, elsewhere


# ---- Astraea


@everywhere
@ledger.replays("own_astraea", "rounds", fields="mediator_models w")
def test_astraea(case, engine, dtype):
    file = golden("own_astraea")
    hyper, lines = file["hyper"], file[case]
    noise = torch.zeros(5, 7, 4, dtype=getattr(torch, dtype))
    for k, rows in enumerate(file["noise_rows_of_client"]):
        noise[k, : len(rows)] = tensor(rows, dtype).reshape(-1, 4)

    class Given(ua.Astraea):
        """With the file's noise, the same in every round."""

        keeps = {"noise": ua.Field((7, 4))}

        def setup(self, server, everyone):
            everyone.call(self.place, noise=ua.PerClient(noise))
            super().setup(server, everyone)

        def place(self, me, s, m):
            return {"noise": m.noise}, {}

        def rows(self, s, copy):
            return {"noise": copy[:, None] * s.noise[(copy.cumsum(0) - 1).clamp(min=0, max=6)]}

        def moved(self, batch):
            return batch.x + batch.rows.noise

    module = network(NETS["a"], file["w0"])
    training = local(lr=hyper["lr"], epochs=1, batch_size=hyper["batch_size"])
    for t, line in enumerate(lines):
        run = ua.simulate(
            module, federation(file), Given(hyper["alpha"], hyper["gamma"], passes=2), rounds=t + 1, local=training,
            engine=engine, dtype=dtype,
        )  # fmt: skip
        for name, value in whole(line, mediator_models=run.server.models, w=run.server.w):
            near(value, line[name], dtype)
    assert run.server.counts.tolist() == file["counts_after"]


@ledger.replays(
    "own_astraea", FILE,
    fields="class_totals extra_copies_of_class noise_rows_of_client counts_after mediators schedule_trace",
)  # fmt: skip
def test_astraeas_schedule(case):
    file = golden("own_astraea")
    counts = federation(file).label_counts()
    totals = torch.tensor(counts.sum(0)).double()
    copies = ua.Astraea(file["hyper"]["alpha"]).copies(totals)
    assert totals.tolist() == file["class_totals"] and copies.tolist() == file["extra_copies_of_class"]
    groups, trace = schedule(counts * (1 + copies.numpy()), file["hyper"]["gamma"])
    assert groups == file["mediators"]
    for found, wanted in zip(trace, file["schedule_trace"], strict=True):
        np.testing.assert_allclose(found.pop("kl"), wanted.pop("kl"), atol=1e-9)
        assert found == wanted


def test_every_number_of_these_files_is_compared():
    ledger.check()
