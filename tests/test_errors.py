"""A user's mistake ends in one line that says what was given, what must hold and what to do; never in a traceback's
insides, and never in a wrong result."""

import dataclasses as dc
import json

import numpy as np
import pytest
import safetensors.torch
import torch
from small import ENGINES, LOCAL, SIZES, federation, model, refused, run
from torch import nn

import unalike as ua
from unalike.errors import did_you_mean

# ---------------------------------------------------------------- what is given to simulate

ARGUMENTS = {
    "method as a class": ({"method": ua.FedAvg}, r"method must be a method such as ua.FedAvg\(\); got FedAvg"),
    "method as text": ({"method": "fedavg"}, "method must be a method such as .*; got str"),
    "data as a list": ({"data": [1]}, "The data must be a Federation; got list"),
    "a data set": ({"data": ua.load("digits")}, r"must be a Federation; got Dataset: use Dataset.split"),
    "model as text": ({"module": "mlp"}, "The model must be a torch.nn.Module; got str"),
    "engine": ({"engine": "bached"}, "There is no engine 'bached'. Did you mean 'batched'"),
    "engine option": ({"wrokers": 2}, "There is no engine option 'wrokers'. Did you mean 'workers'"),
    "dtype": ({"dtype": "float23"}, "There is no dtype 'float23'. Did you mean 'float32'"),
    "torch dtype": ({"dtype": torch.float64}, "There is no dtype torch.float64. Did you mean 'float64'"),
    "device": ({"device": "cdua"}, "There is no device 'cdua'. Did you mean 'cuda'"),
    "device of another kind": ({"device": "meta"}, "There is no device 'meta'. There are: auto, cpu, cuda"),
    "device number": ({"device": "cuda:x"}, "There is no device 'cuda:x'"),
    "precision": ({"precision": "bf61"}, "There is no precision 'bf61'. Did you mean 'bf16'"),
    "loss": ({"loss": "cross-entrpy"}, "There is no loss 'cross-entrpy'. Did you mean 'cross-entropy'"),
    "buffers": ({"buffers": "avrage"}, "There is no buffer policy 'avrage'. Did you mean 'average'"),
    "head": ({"head": "33"}, "The model has no layer '33' to be its head. Did you mean '3'"),
    "head that is not called": ({"module": nn.ModuleDict({"a": nn.Linear(5, 3)})}, "does not accept the data"),
    "rounds": ({"rounds": 1.5}, "rounds must be a whole number of at least 0; got 1.5"),
    "negative rounds": ({"rounds": -1}, "rounds must be a whole number of at least 0; got -1"),
    "checkpoint_every": ({"checkpoint_every": 0}, "checkpoint_every must be a whole number of at least 1; got 0"),
    "evaluate_every": ({"evaluate_every": True}, "evaluate_every must be a whole number of at least 1; got True"),
    "evaluate_clients": ({"evaluate_clients": "some"}, "evaluate_clients must be .*'none' or .* got 'some'"),
    "evaluate no clients": ({"evaluate_clients": 0}, "evaluate_clients must be .* got 0"),
    "seed": ({"seed": "one"}, "seed='one' must be an integer"),
    "too many clients": ({"clients_per_round": 7}, "clients_per_round.*7.*6 clients"),
    "a share above one": ({"clients_per_round": 1.5}, r"must be a fraction in \(0, 1\]"),
    "a client that is not there": ({"clients_per_round": [[0, 6]]}, "the list of round 1 names client 6 of 6"),
    "too few rates": ({"local": dc.replace(LOCAL, lr=[0.1, 0.1])}, "lr has 2 entries for 6 clients: give one each"),
    "model for other data": ({"module": nn.Linear(4, 3)}, r"does not accept the data: a batch of shape \[2, 5\]"),
    "too few outputs": ({"module": nn.Linear(5, 2)}, "run to 2 and the model has 2 outputs: it needs at least 3"),
    "nothing to train": ({"module": nn.Tanh()}, "The model has no trainable weights"),
    "mean loss": ({"loss": nn.functional.cross_entropy}, "one value per sample"),
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name):
    changes, message = ARGUMENTS[name]
    with refused(message):
        run(**changes)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there():
    with refused("device='cuda' was asked for and this machine has no CUDA device: use 'auto' or 'cpu'"):
        run(device="cuda")


# ---------------------------------------------------------------- data


def test_a_client_without_samples():
    x, y = torch.randn(3, 5), torch.tensor([0, 1, 2])
    data = ua.Federation.from_arrays([(x, y), (x[:0], y[:0]), (x, y)], classes=3)
    with refused(r"1 of 3 clients have no training samples \(client 1\)"):
        run(data=data, clients_per_round=1)


@pytest.mark.parametrize("label", (-1, 3))
def test_a_label_outside_the_classes(label):
    x, y = torch.randn(3, 5), torch.tensor([0, 1, 2])
    data = ua.Federation.from_arrays([(x, y), (x, torch.tensor([0, label, 1]))], classes=3)
    with refused(f"client 1, sample 1 of its training split has the label {label}"):
        run(data=data, clients_per_round=1)


def test_a_test_label_outside_the_outputs():
    x, y = torch.randn(3, 5), torch.tensor([0, 1, 2])
    data = ua.Federation.from_arrays([(x, y)], test=(x, y + 2))
    with refused("labels run to 4 and the model has 3 outputs"):
        run(data=data, clients_per_round=1)


def test_samples_that_are_not_numbers():
    x, y = torch.randn(3, 5), torch.tensor([0, 1, 2])
    x[1, 2] = float("nan")
    with refused("x of client 0, sample 1 of its training split has a value that is NaN"):
        run(data=ua.Federation.from_arrays([(x, y)]), clients_per_round=1)


# ---------------------------------------------------------------- divergence


@pytest.mark.parametrize("engine", ENGINES)
def test_a_diverged_client_is_named_and_the_checkpoint_stays(engine, tmp_path):
    """Client 3 has a rate of 3e38 from the third round on."""
    rate = lambda client, round: 3e38 if client == 3 and round >= 2 else 0.1  # noqa: E731
    given = {"local": dc.replace(LOCAL, lr=rate, epochs=3), "engine": engine, "rounds": 5, "clients_per_round": 6}
    held = []
    keep = ua.Callback()
    keep.on_start = held.append
    with refused("Round 3: the loss or weights of client 3 became NaN", ua.Diverged) as caught:
        run(ua.Scaffold(), folder=tmp_path / "run", callbacks=[keep], **given)
    assert (caught.value.round, caught.value.clients) == (3, [3])
    manifest = json.loads((tmp_path / "run/checkpoint/manifest.json").read_text())
    assert manifest["round"] == 2
    server = safetensors.torch.load_file(tmp_path / "run/checkpoint" / manifest["server"])
    good = run(ua.Scaffold(), **{**given, "rounds": 2})
    assert torch.equal(server["w"], good.server.w) and torch.equal(server["control"], good.server.control)
    again = run(ua.Scaffold(), folder=tmp_path / "run", resume=True, **{**given, "rounds": 2})
    for other in (held[0], again):  # what clients of the failed round returned is gone, on disk and in memory
        assert all(torch.equal(other.clients[k]["control"], good.clients[k]["control"]) for k in range(6))
    with refused("holds another run: there local.lr"):  # a smaller rate is another run
        run(ua.Scaffold(), folder=tmp_path / "run", resume=True, **{**given, "local": dc.replace(LOCAL, epochs=3)})


# ---------------------------------------------------------------- a method's own mistakes


class Plain(ua.Method):
    pass


class SendsMore(ua.Method):
    def done(self, me, s, m, theta):
        return {}, {"delta": theta - m.w, "detla": theta}


class SendsLess(ua.Method):
    def done(self, me, s, m, theta):
        return {}, {"delta": (theta - m.w)[:3]}


class SendsText(ua.Method):
    def done(self, me, s, m, theta):
        return {}, {"delta": "theta"}


class KeepsMore(ua.Method):
    def done(self, me, s, m, theta):
        return {"memory": theta}, {"delta": theta - m.w}


class KeepsLess(ua.Method):
    keeps = {"memory": ua.Field()}

    def done(self, me, s, m, theta):
        return {"memory": theta[:3]}, {"delta": theta - m.w}


class ReadsEach(ua.Method):
    def round(self, server, cohort):
        cohort.call(self.client, w=server.w).each("delta")


class ReadsOther(ua.Method):
    def round(self, server, cohort):
        cohort.call(self.client, w=server.w).mean("delat")


class Returns(ua.Method):
    def done(self, me, s, m, theta):
        return theta


class StopsShort(ua.Method):
    def client(self, me, s, m):
        return me.train(m.w)


class ReadsNothing(ua.Method):
    def client(self, me, s, m):
        return me.train(m.ww).then(self.done)


class WrongSetting(ua.Method):
    def client(self, me, s, m):
        return me.train(m.w, stesp=3).then(self.done)


class WrongShape(ua.Method):
    sends = {"delta": ua.Field("modle")}


class NoData(ua.Method):
    def client(self, me, s, m):
        return me.losses(m.w, data="validation").then(self.done)


class Text(ua.Method):
    def round(self, server, cohort):
        cohort.call(self.client, w=server.w, text="hello")


class Rows(ua.Method):
    def round(self, server, cohort):
        cohort.call(self.client, w=ua.PerClient(server.w.expand(2, -1)))


class Nobody(ua.Method):
    def round(self, server, cohort):
        cohort.only([]).call(self.client, w=server.w)


class Stranger(ua.Method):
    def round(self, server, cohort):
        cohort.only([5]).call(self.client, w=server.w)


class NoTable(ua.Method):
    def round(self, server, cohort):
        server.table("last")


class NoValue(ua.Method):
    def round(self, server, cohort):
        server.contrl  # noqa: B018 (reading it is the mistake)


class PersonalStopsShort(ua.Method):
    def personal(self, me, s, m):
        return me.losses(m.w)  # no vector: only a training's result is one


METHODS = [
    (SendsMore, "SendsMore.client sends 'detla', which `sends` does not declare. Did you mean 'delta'"),
    (SendsLess, r"SendsLess.client sends 'delta' with shape \[3\]; `sends` declares \[39\]"),
    (SendsText, "SendsText.*'?delta'?"),
    (KeepsMore, "KeepsMore.* 'memory'.*`keeps` does not declare"),
    (KeepsLess, r"KeepsLess.* 'memory' with shape \[3\]; `keeps` declares \[39\]"),
    (ReadsEach, "'delta' is declared read='sum': reading it client by client needs read='each'"),
    (ReadsOther, "The replies have no field 'delat'. Did you mean 'delta'"),
    (Returns, r"Returns.done must end with \(state, reply\).*it returned Tensor"),
    (StopsShort, r"client asked for train without .then\(...\)"),
    (ReadsNothing, "There is no field 'ww' here. Did you mean 'w'"),
    (WrongSetting, "There is no setting of LocalTraining 'stesp'. Did you mean 'steps'"),
    (WrongShape, "WrongShape declares the shape 'modle'.*Did you mean 'model'"),
    (NoData, r"no per-client validation data: make them with split_clients\(validation=0.2\)"),
    (Text, "A message holds tensors and numbers; got str"),
    (Rows, "PerClient 'w' has 2 rows for 3 clients: give one row each"),
    (Nobody, "Nobody called a cohort of no clients in round 1"),
    (Stranger, "client 5 is not in this cohort of 3"),
    (NoTable, "The method declares no table 'last'"),
    (NoValue, "The server has no 'contrl'"),
    (PersonalStopsShort, r"personal asked for average without .then\(...\)"),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("method", "message"), METHODS)
def test_methods(method, message, engine):
    with refused(message):
        run(method(), engine=engine, rounds=1, clients_per_round=[[0, 1, 2]])


def test_the_plain_method_is_none_of_these():
    """What the classes above are variations of does run."""
    run(Plain(), rounds=1)


# ---------------------------------------------------------------- client functions that fail, or that cannot be stacked


class Branches(ua.Method):
    def done(self, me, s, m, theta):
        return {}, {"delta": theta - m.w if (theta > m.w).any() else 0 * theta}


class Breaks(ua.Method):
    """A function whose shapes do not fit, whoever runs it."""

    def done(self, me, s, m, theta):
        return {}, {"delta": theta @ torch.zeros(3)}


@dc.dataclass(frozen=True)
class BreaksFor(ua.Method):
    """One that fails for the client with so many samples only, without branching: an index out of range."""

    samples: int = 0

    def done(self, me, s, m, theta):
        row = torch.where(me.n == self.samples, 1000, 0)
        return {}, {"delta": theta - m.w + 0 * theta[row]}


class BreaksInTraining(ua.Method):
    def client(self, me, s, m):
        return me.train(m.w, loss=self.extra).then(self.done)

    def extra(self, batch):
        return (batch.features @ torch.zeros(99)).sum()


class BreaksInAverage(ua.Method):
    def client(self, me, s, m):
        return me.average(self.rows, m.w).then(self.done)

    def rows(self, batch):
        return batch.features @ torch.zeros(99)


class BreaksBeforeTraining(ua.Method):
    def client(self, me, s, m):
        return me.train(m.w[:3]).then(self.done)


@pytest.mark.parametrize("engine", ("sequential", "workers", "loopback"))
def test_branching_on_values_is_fine_one_client_at_a_time(engine):
    done = run(Branches(), engine=engine)
    assert torch.isfinite(done.server.w).all() and len(done.history) == 3


def test_branching_on_values_cannot_be_stacked():
    with refused("Branches.done works for one client but not for a stack .*engine='workers' or 'sequential'"):
        run(Branches(), engine="batched")


def test_that_line_has_no_insides():
    with refused("^((?!vmap|github).)*$"):
        run(Branches(), engine="batched")


def cases():
    for engine in ENGINES:
        yield pytest.param(Breaks(), "Breaks.done", r"m.w \[39\], result \[39\]", None, engine)
        for client in (2, 0):  # the largest, which is the first of a stack, and another
            yield pytest.param(BreaksFor(SIZES[client]), "BreaksFor.done", r"result \[39\]", client, engine)
        for method in (BreaksInTraining, BreaksInAverage, BreaksBeforeTraining):
            yield pytest.param(method(), f"{method.__name__}.client", r"m.w \[39\]", None, engine)


@pytest.mark.parametrize(("method", "function", "shapes", "client", "engine"), list(cases()))
def test_a_client_function_that_fails_is_named(method, function, shapes, client, engine):
    """Client, function and shapes; not a word of vmap's."""
    who = r"\d" if client is None else client
    with refused(rf"^(?!.*vmap){function} failed for client {who} \(given .*{shapes}.*\): \w+Error: ."):
        run(method, engine=engine, rounds=1, clients_per_round=[[0, 1, 2]])


def test_a_function_of_nobody_cannot_travel():
    class Local(ua.Method):
        def round(self, server, cohort):
            cohort.call(lambda me, s, m: ({}, {"delta": m.w}), w=server.w)

    for engine in ("loopback", "sequential", "batched"):  # a simulation refuses what a network would
        with refused("not a function of Local: only a method's own functions can be called"):
            run(Local(), engine=engine)


def test_errors_leave_pytorch_as_it_was():
    """Threads and switches are put back when a run ends in an error."""
    threads, exact = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(2)
    try:
        with refused("must end with"):
            run(Returns(), engine="workers", deterministic=True)
        assert torch.get_num_threads() == 2 and torch.are_deterministic_algorithms_enabled() == exact
    finally:
        torch.set_num_threads(threads)


def test_rates_that_cannot_be():
    for lr in (0.0, -1.0, float("inf"), np.array([0.1] * 5 + [0.0])):
        with refused("lr must be a finite number above 0"):
            run(local=dc.replace(LOCAL, lr=lr), data=federation(), module=model(), clients_per_round=6)


@pytest.mark.parametrize(
    "given,near",
    [("fedprx", "fedprox"), ("fedavgg", "fedavg"), ("fed-avg", "fedavg"), ("scafold", "scaffold"), ("fedsgd", None)],
)
def test_a_name_that_only_begins_like_others_is_not_near(given, near):
    """Most methods begin with fed."""
    said = did_you_mean(given, ua.METHODS)
    assert said == (f" Did you mean {near!r}?" if near else f" There are: {', '.join(sorted(ua.METHODS))}.")
