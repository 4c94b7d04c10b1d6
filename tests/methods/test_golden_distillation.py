"""Numbers of the authors' programs, and of restatements computed twice, for the methods that distil, share prototypes,
means of samples or a generator. Draws that a file holds are put in the place of the method's own."""

import dataclasses as dc

import numpy as np
import pytest
import torch
from goldens import WHOLE, Ledger, everywhere, golden, watched
from torch import nn

import unalike as ua
from unalike.contract import Vectors

ledger = Ledger()
GIVEN = "architectures architecture_of_client"
NETS = {
    "a": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
    "b": lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
}


def federation(case):
    fed = ua.Federation.from_arrays([(np.array(c["x"]), np.array(c["y"])) for c in case["clients"]], classes=3)
    return fed.with_public(np.array(case["public"]["x"]), np.array(case["public"]["y"])) if "public" in case else fed


def tensor(values, dtype="float64"):
    return torch.tensor(values, dtype=getattr(torch, dtype))


def network(build, vector=None):
    """A module in float64, at this vector where one is given."""
    module = build().double()
    if vector is not None:
        nn.utils.vector_to_parameters(tensor(vector), module.parameters())
    return module


def local(**settings):
    return ua.LocalTraining(shuffle=False, **settings)


def near(value, wanted, dtype, atol=1e-9):
    assert not torch.is_tensor(value) or value.dtype == getattr(torch, dtype)
    atol = max(2e-6, atol) if dtype == "float32" else atol
    np.testing.assert_allclose(np.asarray(value), wanted, atol=atol, rtol=0)


# ---- each client begins at its own vector


class OwnStarts:
    """Mixed into a method whose clients keep `theta`: they begin at given vectors, one each."""

    serverless = False  # here a message brings the vectors

    def place(self, me, s, m):
        return {"theta": m.start}, {}

    def setup(self, server, everyone):
        kinds = self.case.get("architecture_of_client", ["a"] * len(everyone))
        for kind in sorted(set(kinds)):
            ids = [k for k, name in enumerate(kinds) if name == kind]
            rows = tensor([self.case["w0_of_client"][k] for k in ids], self.dtype)
            everyone.only(ids).call(self.place, start=ua.PerClient(rows))
        super().setup(server, everyone)


def begun(kind, settings, case, dtype, **more):
    """The method as a subclass that begins at the case's own vectors."""
    cls = type(kind.__name__, (OwnStarts, kind), {"case": case, "dtype": dtype, **more})
    return cls(**settings)


def families(case):
    """The modules by name and each client's, or one module."""
    kinds = case.get("architecture_of_client")
    starts = case.get("w0", {})
    if kinds is None or len(set(kinds)) == 1:
        return network(NETS["a"], starts["a"] if isinstance(starts, dict) and starts else None), {}
    return {n: network(NETS[n], starts.get(n)) for n in sorted(set(kinds))}, {"architecture": kinds}


def part(values, name):
    """The vector of an architecture: `server.w` is one tensor where there is only one."""
    return values if torch.is_tensor(values) else values[name]


def near_each(values, wanted, dtype, atol=1e-9):
    assert set(values) == set(wanted)
    for k, value in values.items():
        near(value, wanted[k], dtype, atol)


# ---- FedDF


class Seen(ua.FedDF):
    """With a server that keeps what it had in the last round: the clients' models, their mean outputs, the start."""

    def round(self, server, cohort):
        server.before = server.w
        super().round(server, cohort)

    def target(self, teachers, shares=None):
        type(self).teacher_mean = teachers.mean(0)
        return super().target(teachers, shares)

    def distilled(self, server, students, target, replies):
        sent = server.before + replies.each("delta")
        parts = {n: replies.ids_of(n) for n in replies.architectures} or {"a": replies.ids}
        models = {str(k): row for n, ids in parts.items() for k, row in zip(ids, part(sent, n), strict=True)}
        starts = students.items() if isinstance(students, Vectors) else [("a", students)]
        type(self).seen = {"theta": models, "start": {n: v for n, v in starts if n in parts}}
        return super().distilled(server, students, target, replies)


FEDDF = ("feddf_repo_one_arch", "feddf_repo_two_archs")
for file in FEDDF:
    ledger.replays(file, WHOLE, fields=f"public {GIVEN}")
    ledger.replays(file, "rounds", fields="theta start_of_student teacher_mean w")


@everywhere
@pytest.mark.parametrize("name", FEDDF)
def test_feddf(name, engine, dtype):
    case = golden(name)
    hyper = case["hyper"]
    modules, more = families(case)
    method = Seen(
        steps=hyper["N_batches"], lr=hyper["distill_lr"], batch=hyper["public_batch_size"], clip=hyper["clip_norm"],
        weights="uniform", shuffle=False,
    )  # fmt: skip
    training = {key: hyper["local"][key] for key in ("lr", "epochs", "batch_size")}
    for rounds in range(1, len(case["rounds"]) + 1):
        run = ua.simulate(
            modules, federation(case), method, rounds=rounds, local=local(**training), engine=engine, dtype=dtype,
            clients_per_round=[line["participants"] for line in case["rounds"]], **more,
        )  # fmt: skip
        line, atol = case["rounds"][rounds - 1], 2e-6 if "one" in name else 1e-9  # float32 weights in theirs
        for kind, wanted in line["w"].items():
            near(part(run.server.w, kind), wanted, dtype, atol)
        near_each(method.seen["theta"], line["theta"], dtype, atol)
        near_each(method.seen["start"], line["start_of_student"], dtype, atol)
        rounding = 1e-5 if dtype == "float32" else atol  # outputs: sums over features, after three rounds
        near(method.teacher_mean, line["teacher_mean"], dtype, rounding)


# ---- FedMD


ledger.replays("own_fedmd", WHOLE, fields=f"public w0_of_client theta_after_warm_up {GIVEN}")


@everywhere
@ledger.replays("own_fedmd", "rounds", fields="public_rows logits consensus theta_after_digest theta")
def test_fedmd(case, engine, dtype):
    case = golden("own_fedmd")
    digest, lines = case["hyper"]["digest"], case["rounds"]

    class Given(OwnStarts, ua.FedMD):
        """With the file's public rows, of which there is another number in every round; clients keep their models
        after the digest too, and the server its consensus."""

        aligned = 0  # how many there are now
        keeps = {"theta": ua.Field(), "digested": ua.Field()}
        sends = {"logits": ua.Field(("aligned", "classes"), weight="one")}

        def revisit(self, me, s, m, theta):
            return me.train(theta).then(self.both, digested=theta)

        def both(self, me, s, m, theta, digested):
            return {"theta": theta, "digested": digested}, {}

        def round(self, server, cohort):
            only = cohort.only

            def noting(ids):
                part = only(ids)
                call = part.call

                def noted(fn, **message):
                    server.consensus = message["consensus"]
                    return call(fn, **message)

                part.call = noted
                return part

            cohort.only = noting if self.digest_epochs else only
            super().round(server, cohort)

        def alignment(self, server, cohort):
            rows = torch.tensor(lines[cohort.round]["public_rows"])
            type(self).aligned = len(rows)
            return {"rows": rows}

    Given.case, Given.dtype = case, dtype
    method = watched(
        Given(
            digest_epochs=digest["epochs"], batch=digest["batch_size"], lr=digest["lr"], optimizer="sgd",
            warm_public=2, warm_own=2,
        )
    )  # fmt: skip
    modules, more = families(case)
    for rounds in range(1, len(lines) + 1):
        run = ua.simulate(
            modules, federation(case), method, rounds=rounds, local=local(**case["hyper"]["revisit"]), engine=engine,
            dtype=dtype, clients_per_round=[line["participants"] for line in lines], **more,
        )  # fmt: skip
        line = lines[rounds - 1]
        for k, wanted in enumerate(line["theta"]):
            near(run.clients[k]["theta"], wanted, dtype)
        sent = {str(k): row for k, row in zip(run.server.sent_ids, run.server.sent_logits, strict=True)}
        near_each(sent, line["logits"], dtype)
        near(run.server.consensus, line["consensus"], dtype)
        digested = {str(k): run.clients[k]["digested"] for k in line["participants"]}
        near_each(digested, line["theta_after_digest"], dtype)
    run = ua.simulate(
        modules, federation(case), dc.replace(method, digest_epochs=0), rounds=1, engine=engine, dtype=dtype,
        local=local(**case["hyper"]["revisit"]), clients_per_round=[[0]], **more,
    )  # fmt: skip
    for k in (1, 2, 3):  # the warm-up is all that they did
        near(run.clients[k]["theta"], case["theta_after_warm_up"][k], dtype)


# ---- FedProto


PROTO = {
    "rounds": {"collect": "training"},
    "recommended_equal_clients_rounds": {},
    "recommended_by_counts_rounds": {"weights": "samples"},
}


ledger.replays("fedproto_repo_two_archs", WHOLE, fields=f"w0_of_client recommended {GIVEN}")
ledger.replays("fedproto_repo_two_archs", "rounds", fields="theta local_prototypes global_prototypes")
for reading in [*PROTO][1:]:
    ledger.replays("fedproto_repo_two_archs", reading, fields="theta known global_prototypes")


@everywhere
@pytest.mark.parametrize("reading", PROTO)
def test_fedproto(reading, engine, dtype):
    case = golden("fedproto_repo_two_archs")
    hyper, lines = case["hyper"], case[reading]
    modules, more = families(case)
    method = watched(begun(ua.FedProto, {"lam": hyper["lambda"], **PROTO[reading]}, case, dtype))
    training = {key: hyper[key] for key in ("lr", "momentum", "batch_size", "epochs")}
    for rounds in range(1, len(lines) + 1):
        run = ua.simulate(
            modules, federation(case), method, rounds=rounds, local=local(**training, drop_last=True), engine=engine,
            dtype=dtype, **more,
        )  # fmt: skip
        line = lines[rounds - 1]
        wanted = line["global_prototypes"]
        wanted = [wanted[str(c)] for c in range(3)] if isinstance(wanted, dict) else wanted
        near(run.server.prototypes, wanted, dtype)
        near(run.server.known, line.get("known", [1.0] * 3), dtype)
        for k, own in line.get("local_prototypes", {}).items():
            assert run.server.sent_share[int(k)].nonzero()[:, 0].tolist() == [*map(int, own)]
            near_each({c: run.server.sent_total[int(k), int(c)] for c in own}, own, dtype)
        for k, vector in enumerate(line["theta"]):
            near(run.clients[k]["theta"], vector, dtype)


# ---- Def-KT


ledger.replays("own_defkt", WHOLE, fields="w0_of_client")


@everywhere
@ledger.replays("own_defkt", "rounds", fields="pairs sent own_model_after_mutual theta")
def test_defkt(case, engine, dtype):
    case = golden("own_defkt")
    lines = case["rounds"]

    def taught(self, me, s, m, theta):
        return {"theta": theta, "sent": theta}, {"theta": theta}

    def learned(self, me, s, m, both):
        return {"theta": both[1], "dropped": both[0]}, {}

    def paired(self, server, cohort):
        pairs = np.array(lines[cohort.round]["pairs"])
        return pairs[:, 0], pairs[:, 1]

    keeps = {name: ua.Field() for name in ("theta", "sent", "dropped")}
    noted = {"paired": paired, "taught": taught, "learned": learned, "keeps": keeps}
    method = begun(ua.DefKT, {"epochs": 2, "lr": 0.05}, case, dtype, **noted)
    training = local(epochs=1, lr=0.1, batch_size=case["hyper"]["batch_size"])
    participants = [sorted(np.unique(line["pairs"]).tolist()) for line in lines]
    for rounds in range(1, len(lines) + 1):
        run = ua.simulate(
            network(NETS["a"]), federation(case), method, rounds=rounds, local=training, engine=engine, dtype=dtype,
            clients_per_round=participants,
        )  # fmt: skip
        line = lines[rounds - 1]
        for k, wanted in enumerate(line["theta"]):
            near(run.clients[k]["theta"], wanted, dtype)
        for name, wanted in (("sent", line["sent"]), ("dropped", line["own_model_after_mutual"])):
            near_each({k: run.clients[int(k)][name] for k in wanted}, wanted, dtype)
        assert {*line["sent"], *line["own_model_after_mutual"]} == {str(k) for pair in line["pairs"] for k in pair}


# ---- draws inside steps: each (round, client, step) is known by a number that its batches draw


class Places(ua.Method):
    """Trains nothing that matters and notes which number the batches of each client and step draw."""

    def __init__(self):
        self.seen = []

    def client(self, me, s, m):
        return me.train(m.w, loss=self.note).then(self.done)

    def note(self, batch):
        self.seen.append(int(place(batch)))
        return 0.0 * batch.mean(batch.losses)


def place(batch):
    return batch.integers("place", (1,), 1 << 24)


def places(module, fed, training, participants):
    """{(round, client): the numbers of its steps}."""
    found, sizes = {}, fed.sizes
    for t, clients in enumerate(participants):
        for k in clients:
            method = Places()
            cohorts = [[k]] * (t + 1)
            ua.simulate(
                module, fed, method, rounds=t + 1, local=training, engine="sequential", clients_per_round=cohorts
            )
            steps = int(training.counts(np.array([k]), sizes[[k]], 0)[0])
            found[t, k] = method.seen[-steps:]
    return found


class Lookup:
    """Values by the numbers that batches draw, also where a batch stands for a stack of clients."""

    def __init__(self, pairs, dtype=None):
        numbers, values = zip(*pairs, strict=True)
        assert len(set(numbers)) == len(numbers)
        self.numbers, self.values = torch.tensor(numbers), torch.tensor(values, dtype=dtype)

    def __call__(self, batch):
        found = (self.numbers == place(batch)).long().argmax().reshape(1)
        return self.values[found][0]


# ---- FedMix


@everywhere
@pytest.mark.parametrize("variant", ["fedmix", "naive"])
def test_fedmix(variant, engine, dtype):
    case = golden("own_fedmix")
    hyper, lines = case["hyper"], case["fedmix_rounds" if variant == "fedmix" else "naivemix_rounds"]
    module, fed = network(NETS["a"], case["w0"]), federation(case)
    training = local(lr=hyper["lr"], epochs=hyper["epochs"], batch_size=hyper["batch_size"])
    participants = [line["participants"] for line in lines]
    means = sum(case["means_of_client"])
    found = places(module, fed, training, participants)
    drawn = [(n, [(j + k + r) % means]) for (r, k), numbers in found.items() for j, n in enumerate(numbers)]
    lookup = Lookup(drawn)

    class Given(ua.FedMix):
        def chosen(self, batch, count):
            assert count == means
            return lookup(batch)

    method = Given(lam=hyper["lambda"], group=hyper["M"], short="own", variant=variant)
    for rounds in range(1, len(lines) + 1):
        run = ua.simulate(
            module, fed, method, rounds=rounds, local=training, engine=engine, dtype=dtype,
            clients_per_round=participants,
        )  # fmt: skip
        near(run.server.w, lines[rounds - 1]["w"], dtype)
    near(run.server.x, case["means_x"], dtype)
    near(run.server.y, case["means_y"], dtype)


@everywhere
def test_fedmix_gradient(engine, dtype):
    """One step of the whole client at rate 1 shows the gradient."""
    case = golden("own_fedmix")
    for check in case["one_step_checks"]:

        class Given(ua.FedMix):
            def chosen(self, batch, count, number=check["mean_number"]):
                return torch.tensor([number])

        method = Given(lam=case["hyper"]["lambda"], group=case["hyper"]["M"], short="own")
        run = ua.simulate(
            network(NETS["a"], case["w0"]), federation(case), method, rounds=1,
            local=local(lr=1.0, batch_size=None), engine=engine, dtype=dtype, clients_per_round=[[check["client"]]],
        )  # fmt: skip
        near(tensor(case["w0"], dtype) - run.server.w, check["fedmix_gradient"], dtype)
        near(run.history[0]["train_loss"], check["fedmix_loss"], dtype)


# ---- FedGen


ledger.replays("fedgen_repo", WHOLE, fields="generator")
ledger.replays("fedgen_repo", "rounds", fields="draws lr_of_client label_counts intended")
ledger.replays(
    "fedgen_repo", "rounds", fields="theta theta__f64 w w__f64 generator generator__f64 generator_bn_running"
)


@everywhere
@pytest.mark.parametrize("weights", ["broadcast", "intended"])
def test_fedgen(weights, engine, dtype):
    case = golden("fedgen_repo")
    hyper, lines = case["hyper"], case["rounds"]
    module = network(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), case["w0"])
    fed = federation(case)
    rates = {(int(k), t): rate for t, line in enumerate(lines) for k, rate in line["lr_of_client"].items()}
    training = local(
        lr=lambda k, t: rates.get((k, t), hyper["client lr"]), steps=hyper["local_steps"],
        batch_size=hyper["batch_size"], drop_last=True,
    )  # fmt: skip
    participants = [line["participants"] for line in lines]
    found = places(module, fed, training, participants)
    steps = {  # of clients, by the numbers that their batches draw
        number: draw
        for t, line in enumerate(lines)
        for k, draws in line["draws"]["clients"].items()
        for number, draw in zip(found[t, int(k)], draws, strict=False)
    }
    kind = getattr(torch, dtype)
    at_clients = {
        "labels": Lookup([(n, d["sampled_labels"]) for n, d in steps.items()]),
        "made": Lookup([(n, d["eps_sampled"]) for n, d in steps.items()], kind),
        "like": Lookup([(n, d["eps_same_labels"]) for n, d in steps.items()], kind),
    }

    class Given(ua.FedGen):
        """With the file's draws; on the server they come in the order of its steps."""

        given = None

        def setup(self, server, everyone):
            width = hyper_of_generator["hidden"]
            running = torch.cat([torch.zeros(width), torch.ones(width)])
            server.generator = torch.cat([tensor(case["generator"]["g0"], dtype), running.to(kind)])

        def round(self, server, cohort):
            type(self).given = iter(lines[cohort.round]["draws"]["generator"])
            super().round(server, cohort)

        def fool(self, batch, **args):
            type(self).now = next(self.given)
            return super().fool(batch, **args)

        def labels(self, batch, purpose, known):
            return torch.tensor(self.now["labels"]) if purpose == "taught" else at_clients["labels"](batch)

        def noises(self, batch, purpose, count):
            return tensor(self.now["eps"], dtype) if purpose == "taught" else at_clients[purpose](batch)

    hyper_of_generator = {"noise": 3, "hidden": 6}
    method = Given(
        alpha=hyper["alpha0"], beta=hyper["beta0"], generated=hyper["gen_batch_size"], steps=hyper["generator_steps"],
        lr=hyper["generator_adam"]["lr"], weight_decay=hyper["generator_adam"]["weight_decay"], weights=weights,
        counts="met", **hyper_of_generator,
    )  # fmt: skip
    method, before = watched(method), tensor(case["w0"])
    for rounds in range(1, len(lines) + 1):
        run = ua.simulate(
            module, fed, method, rounds=rounds, local=training, engine=engine, dtype=dtype,
            clients_per_round=participants,
        )  # fmt: skip
        line, server = lines[rounds - 1], run.server
        who, size = [*map(str, server.sent_ids)], len(case["generator"]["g0"])
        theta = dict(zip(who, before.to(server.w) + server.sent_delta, strict=True))
        found = {"theta": theta, "w": server.w, "generator": server.generator[:size]}
        found["generator_bn_running"] = server.generator[size:].reshape(2, -1)
        near_each(dict(zip(who, server.sent_counts.double(), strict=True)), line["label_counts"], "float64")
        if weights == "intended":
            compare(found, line["intended"], dtype, 1e-9)
        else:  # the program's own numbers are float32
            compare(found, {name: line[name] for name in found}, dtype, 2e-6)
            exact = {name.removesuffix("__f64"): line[name] for name in line if name.endswith("__f64")}
            compare({name: found[name] for name in exact}, exact, dtype, 1e-9)
        before = tensor(line["intended"]["w"] if weights == "intended" else line["w__f64"])


def compare(found, wanted, dtype, atol):
    """All of a round's numbers; Adam's first steps on small gradients are loose in float32."""
    assert set(found) == set(wanted)
    for name, value in found.items():
        loose = 1e-4 if dtype == "float32" and name.startswith("generator") else atol
        near_each(value, wanted[name], dtype, loose) if name == "theta" else near(value, wanted[name], dtype, loose)


def test_every_number_of_these_files_is_compared():
    ledger.check()
