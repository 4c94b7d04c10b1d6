"""What FedMD, FedDF, FedGen, FedMix, Def-KT and FedProto must be: what they are with a knob off, that the knob bites,
and what travels. The numbers of programs and restatements are in test_golden_distillation.py."""

import dataclasses as dc

import numpy as np
import pytest
import torch
from small import refused
from torch import nn

import unalike as ua
from unalike import testing
from unalike.client.evaluation import predicts

EXACT = {"engine": "sequential", "dtype": "float64", "device": "cpu"}
COLD = {"warm_public": 0, "warm_own": 0}
ORDERED = ua.LocalTraining(epochs=2, batch_size=5, lr=0.05, shuffle=False)
ALL = {"clients_per_round": 1.0}


def run(method, kind="mlp", **changes):
    return testing.run(method, kind, **{**EXACT, **changes})


def apart(a, b, name="theta", other="theta"):
    """The largest difference of what clients keep."""
    rows = [(a.clients[k], b.clients[k]) for k in range(a.population)]
    return max(float((mine[name] - yours[other]).abs().max()) for mine, yours in rows if mine and yours)


def farthest(a, b):
    return float((a.server.w - b.server.w).abs().max())


# ---- alone


@pytest.mark.parametrize("off", [ua.FedMD(digest_epochs=0, **COLD), ua.FedProto(lam=0.0)], ids=lambda m: m.name)
def test_off_is_training_alone(off):
    alone = run(ua.LocalOnly())
    done = run(off)
    assert apart(done, alone, "theta", "model") < 1e-12
    assert np.allclose(done.client_values["loss"], alone.client_values["loss"])  # judged by what they learned
    on = dc.replace(off, digest_epochs=1) if isinstance(off, ua.FedMD) else dc.replace(off, lam=1.0)
    assert apart(run(on), alone, "theta", "model") > 1e-6


def test_a_client_alone_digests_nothing():
    """The consensus is its own logits: with the squared distance the gradient is zero."""
    setting = {"clients_per_round": [[2]], "rounds": 2, "local": ORDERED}
    digested = run(ua.FedMD(distance="squared", optimizer="sgd", lr=0.1, **COLD), **setting)
    assert apart(digested, run(ua.FedMD(digest_epochs=0, **COLD), **setting)) < 1e-12
    setting["clients_per_round"] = [[2, 3]]
    together = run(ua.FedMD(distance="squared", optimizer="sgd", lr=0.1, **COLD), **setting)
    assert (together.clients[2]["theta"] - digested.clients[2]["theta"]).abs().max() > 1e-6


def test_fedmd_warms_up_by_plain_training():
    """On the public set and then on its own data, in stored order, by plain PyTorch."""
    module, fed = testing.task("mlp")
    local = ua.LocalTraining(epochs=2, batch_size=5, lr=0.1, shuffle=False)
    method = ua.FedMD(digest_epochs=0, warm_public=3, warm_own=1, batch=4)
    done = ua.simulate(module, fed, method, rounds=1, clients_per_round=[[0]], local=local, **EXACT)
    plain = module.double()
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1)
    for (x, y), size, epochs in ((fed.public, 4, 3), (fed.train.of(0), 5, 1 + 2)):
        for _ in range(epochs):
            for xs, ys in zip(x.split(size), y.split(size), strict=True):
                sgd.zero_grad()
                nn.functional.cross_entropy(plain(xs), ys).backward()
                sgd.step()
    wanted = nn.utils.parameters_to_vector(plain.parameters())
    assert (done.clients[0]["theta"] - wanted).abs().max() < 1e-12


@pytest.mark.parametrize("several", [False, True])
def test_fedmd_starts_of_ones_own(several):
    """Clients that do nothing in the round show where they began."""
    module, fed = testing.task("mlp")
    names = {"architecture": ["left", "right"] * 3} if several else {}
    modules = {"left": module, "right": module} if several else module
    setting = {**testing.settings(), **EXACT, "rounds": 1, "clients_per_round": [[0]], **names}
    done = ua.simulate(modules, fed, ua.FedMD(starts="own", **COLD), **setting)
    begun = [done.clients[k]["theta"] for k in range(1, 6)]
    given = nn.utils.parameters_to_vector(module.parameters()).double()
    first = [torch.equal(theta, given) for theta in begun]
    assert first == [several, False, False, False, False]  # client 1 is the first of the second network
    apart_by = 2 if several else 1  # the networks' own numbers: 1 and 3, 2 and 4
    assert all((a - b).abs().max() > 1e-3 for a, b in zip(begun, begun[apart_by:], strict=False))
    assert done.history[0]["setup_bytes_down"] == 6 * 8 * len(given)


def test_fedmd_sends_predictions_and_nothing_else():
    rows, classes = 4, 3
    done = run(ua.FedMD(rows=rows, **COLD), dtype="float32")
    for line in done.history:
        assert line["bytes_up"] == line["clients"] * 4 * rows * classes
        assert line["bytes_down"] == line["clients"] * (4 * rows * classes + 2 * 8 * rows)  # and which rows, twice
    whole = run(ua.FedMD(**COLD), dtype="float32")
    public = len(testing.task("mlp")[1].public[0])
    assert whole.history[0]["bytes_up"] == whole.history[0]["bytes_down"] == 5 * 4 * public * classes
    assert "setup_bytes_down" not in whole.history[0]


def test_the_order_of_public_samples_does_not_matter_to_a_whole_digest():
    module, fed = testing.task("mlp")
    order = torch.randperm(len(fed.public[0]), generator=torch.Generator().manual_seed(0))
    other = fed.with_public(*(part[order] for part in fed.public))
    method = ua.FedMD(batch=1000, digest_epochs=3, lr=0.01, **COLD)
    setting = {**EXACT, "rounds": 2, "local": ORDERED}
    one, two = (ua.simulate(module, data, method, **setting) for data in (fed, other))
    assert apart(one, two) < 1e-11
    few = dc.replace(method, batch=4)
    assert apart(*(ua.simulate(module, data, few, **setting) for data in (fed, other))) > 1e-6


def test_an_optimizer_of_the_digest_that_lives_on_is_another_run():
    fresh, kept = (run(ua.FedMD(keep_optimizer=keep, **COLD), rounds=1, **ALL) for keep in (False, True))
    assert apart(fresh, kept) == 0.0
    fresh, kept = (run(ua.FedMD(keep_optimizer=keep, **COLD), rounds=2, **ALL) for keep in (False, True))
    assert apart(fresh, kept) > 1e-6


# ---- FedDF


def test_feddf_of_one_model_stays_there():
    """Target and student are the same model: there is nothing to learn but rounding, which Adam makes larger."""
    setting = {"clients_per_round": [[2]], "rounds": 1}
    assert farthest(run(ua.FedDF(steps=1), **setting), run(ua.FedAvg(), **setting)) < 1e-10
    several = {"rounds": 1, **ALL}
    assert farthest(run(ua.FedDF(steps=1), **several), run(ua.FedAvg(), **several)) > 1e-4


def test_feddf_targets():
    teachers = torch.tensor([[[0.0, 2.0]], [[4.0, 0.0]]], dtype=torch.float64)  # two teachers, one row
    low, high = 1 / (1 + np.e), np.e / (1 + np.e)  # σ(2, 1)
    assert np.allclose(ua.FedDF().target(teachers), [[high, low]])
    first, second = 1 / (1 + np.e**2), 1 / (1 + np.e**-4)
    mean = (first + second) / 2
    for targets in ("probabilities", "losses"):
        assert np.allclose(ua.FedDF(targets=targets).target(teachers), [[mean, 1 - mean]])
    warm = 1 / (1 + np.e**-0.5)
    assert np.allclose(ua.FedDF(temperature=2.0).target(teachers), [[warm, 1 - warm]])
    shares = np.array([0.75, 0.25])  # logits (1, 1.5)
    even = 1 / (1 + np.e**0.5)
    assert np.allclose(ua.FedDF().target(teachers, shares), [[even, 1 - even]])
    mean = 0.75 * first + 0.25 * second
    assert np.allclose(ua.FedDF(targets="probabilities").target(teachers, shares), [[mean, 1 - mean]])


def seen_by(method, several, **changes):
    """What `target` was given in the last round, [(teachers, shares)], and the run."""
    seen, module, fed = [], *testing.task("mlp")

    class Noted(type(method)):
        def target(self, teachers, shares=None):
            seen.append((teachers, shares))
            return super().target(teachers, shares)

    names = {"architecture": ["left", "right", "right", "left", "right", "left"]} if several else {}
    modules = {"left": module, "right": module} if several else module
    setting = {**testing.settings(), **EXACT, "rounds": 1, "clients_per_round": [[0, 1, 2, 4]], **names, **changes}
    noted = Noted(**{f.name: getattr(method, f.name) for f in dc.fields(method)})
    return seen, ua.simulate(modules, fed, noted, **setting)


def test_feddf_weighs_teachers_by_their_samples():
    """Sizes are 7, 4, 12 and 1 of clients 0, 1, 2 and 4; with two networks teachers come one after another's."""
    method = ua.FedDF(steps=2, teachers="samples")
    (one,), (two,) = (seen_by(method, several)[0] for several in (False, True))
    assert np.allclose(one[1], np.array([7, 4, 12, 1]) / 24)
    assert np.allclose(two[1], np.array([7, 4, 12, 1]) / 24)  # the left ones, client 0, then the right ones
    assert (one[0] - two[0]).abs().max() < 1e-12
    setting = {"clients_per_round": [[1, 2, 3]]}  # right, right, left: another order than the clients'
    ((models, mixed),), _ = seen_by(method, True, **setting)
    assert np.allclose(mixed, np.array([9, 4, 12]) / 25)
    ((plain, _),), _ = seen_by(method, False, **setting)
    assert (models - plain[[2, 0, 1]]).abs().max() < 1e-12
    assert seen_by(ua.FedDF(steps=2), True)[0][0][1] is None


def test_feddf_may_begin_at_the_last_student():
    """With a rate of nearly zero the student stays where it began: at the first model, whatever clients learned."""
    tiny = {"steps": 1, "lr": 1e-15}
    last, mean = (run(ua.FedDF(start=start, **tiny), rounds=2) for start in ("last", "mean"))
    assert (last.server.w - last.task.start).abs().max() < 1e-12
    assert farthest(mean, run(ua.FedAvg(), rounds=2)) < 1e-12


def test_feddf_takes_the_best_student_on_held_out_samples():
    """Of students of 0, 2, 4, 6 and 7 steps the one with the most held-out public samples right."""
    setting = {"rounds": 1, "local": ORDERED}
    chosen = run(ua.FedDF(steps=7, batch=3, lr=0.3, validation=0.4, every=2), **setting)
    held, rest = chosen.server.held, chosen.server.rest
    assert sorted([*held.tolist(), *rest.tolist()]) == [*range(testing.PUBLIC)] and len(held) == 4
    x, y = (part[held] for part in chosen.data.public)

    def right(vector):
        module = testing.task("mlp")[0].double()
        nn.utils.vector_to_parameters(vector, module.parameters())
        return int((module(x).argmax(-1) == y).sum())

    ways = []

    class Noted(ua.FedDF):
        def gap(self, batch):
            ways.append(batch.vector.detach().clone())
            return super().gap(batch)

    again = run(Noted(steps=7, batch=3, lr=0.3, validation=0.4, every=2), **setting)
    assert torch.equal(again.server.w, chosen.server.w) and len(ways) == 7
    looked = [ways[0], ways[2], ways[4], ways[6]]  # the one after the last step is not seen here
    assert right(chosen.server.w) >= max(map(right, looked))
    assert len({right(vector) for vector in looked}) > 1
    short = []

    class Patient(Noted):
        def gap(self, batch):
            short.append(0)
            return super().gap(batch)

    run(Patient(steps=50, batch=3, lr=1e-12, validation=0.4, every=2, patience=6), **setting)
    assert len(short) == 6  # nothing is gained: it stops


def test_feddf_needs_labels_to_choose_a_student():
    module, fed = testing.task("mlp")
    with refused("FedDF validation=0.4 chooses students by labels of public samples, and these have none"):
        ua.simulate(module, fed.with_public(fed.public[0]), ua.FedDF(validation=0.4), rounds=1, **EXACT)
    with refused("validation=0.01 of 11 public samples is 0: leave some on either side"):
        run(ua.FedDF(validation=0.01))


def test_a_choosing_feddf_goes_on_after_a_stop(tmp_path):
    method = ua.FedDF(steps=4, batch=3, lr=0.1, validation=0.4, every=2, teachers="samples", start="last")
    run(method, rounds=1, folder=tmp_path)
    assert torch.equal(run(method, rounds=2, folder=tmp_path, resume=True).server.w, run(method, rounds=2).server.w)


# ---- FedMix


def test_fedmix_without_a_share_is_fedavg_bit_for_bit():
    for engine in ("sequential", "batched"):
        off, like = (run(m, engine=engine) for m in (ua.FedMix(lam=0.0), ua.FedAvg()))
        assert torch.equal(off.server.w, like.server.w)


def test_fedmix_means():
    """Of every three samples in stored order, by client: sizes 7, 4, 12, 9, 1 and 6; what is left over is a mean of its
    own, or joins the one before."""
    joined = run(ua.FedMix(group=3), rounds=1)
    done = run(ua.FedMix(group=3, short="own"), rounds=1)
    x0, _ = testing.task("mlp")[1].train.of(0)
    assert len(joined.server.x) == 2 + 1 + 4 + 3 + 1 + 2
    assert (joined.server.x[:2] - torch.stack([x0[:3].mean(0), x0[3:].mean(0)])).abs().max() < 1e-12
    _, fed = testing.task("mlp")
    x, y = zip(*(fed.train.of(k) for k in range(len(fed))), strict=True)
    wanted = torch.cat([torch.stack([part.mean(0) for part in each.split(3)]) for each in x])
    labels = [torch.eye(3)[each].double() for each in y]
    assert len(done.server.x) == 3 + 2 + 4 + 3 + 1 + 2
    assert (done.server.x - wanted).abs().max() < 1e-12
    shares = torch.cat([torch.stack([part.mean(0) for part in each.split(3)]) for each in labels])
    assert (done.server.y - shares).abs().max() < 1e-12
    first = done.history[0]
    assert first["setup_bytes_up"] == len(wanted) * (6 + 3) * 8


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_fedmix_with_nothing_in_the_mean_is_training_on_smaller_samples(engine):
    """x̄ = 0 and ȳ = y: the loss is the cross-entropy at (1 − λ) x."""

    class Empty(ua.FedMix):
        def mixed(self, batch, xs, ys):
            return super().mixed(batch, 0 * xs, 0 * ys + batch.onehot[:1])  # a client has one class

    module, _ = testing.task("mlp")
    draw = torch.Generator().manual_seed(3)
    clients = [(torch.randn(5, 6, generator=draw, dtype=torch.float64), torch.full((5,), k)) for k in range(3)]
    setting = {**EXACT, "engine": engine, "rounds": 2, "local": ORDERED}
    mixed = ua.simulate(module, ua.Federation.from_arrays(clients, classes=3), Empty(0.3, 2), **setting)
    smaller = ua.Federation.from_arrays([(0.7 * x, y) for x, y in clients], classes=3)
    assert farthest(mixed, ua.simulate(module, smaller, ua.FedAvg(), **setting)) < 1e-12


def test_fedmix_needs_numbers():
    with refused("it needs numbers"):
        run(ua.FedMix(), "lstm")


# ---- Def-KT


def test_def_kt_without_learning_only_moves_models():
    method = ua.DefKT(epochs=0, pairs=1)
    alone = run(ua.LocalOnly(), rounds=1, **ALL)
    done = run(method, rounds=1, **ALL)
    a, b = [k for k in range(done.population) if done.clients[k]["theta"].any()]  # the others have kept nothing yet
    assert torch.equal(done.clients[a]["theta"], done.clients[b]["theta"])
    assert any(torch.equal(done.clients[a]["theta"], alone.clients[k]["model"]) for k in (a, b))


def test_def_kt_sends_a_model_a_pair_to_a_peer():
    done = run(ua.DefKT(), dtype="float32", clients_per_round=[[0, 1, 2, 4, 5], [3]], rounds=2)
    P = done.task.layout.size
    assert [line.get("bytes_peer", 0) for line in done.history] == [2 * 4 * P, 0]
    assert not any(line["bytes_down"] for line in done.history)


def test_def_kt_pairs_are_drawn():
    seen = []

    class Noted(ua.DefKT):
        def paired(self, server, cohort):
            senders, receivers = super().paired(server, cohort)
            seen.append((senders.tolist(), receivers.tolist()))
            return senders, receivers

    for _ in range(2):
        run(Noted(pairs=2), rounds=3, **ALL)
    assert seen[:3] == seen[3:] and len({str(pairs) for pairs in seen}) > 1
    for senders, receivers in seen:
        assert len(senders) == len(receivers) == 2 and len({*senders, *receivers}) == 4


def test_def_kt_of_equal_models_is_plain_training():
    """Both models are the same: the KL terms are zero, both take the same steps and stay the same."""
    seen = []

    class Noted(ua.DefKT):
        def learned(self, me, s, m, both):
            seen.append(both)
            return super().learned(me, s, m, both)

    still = {"rounds": 1, "clients_per_round": [[0, 2]], "local": ua.LocalTraining(epochs=1, batch_size=5, lr=1e-300)}
    done = run(Noted(lr=0.1, epochs=2, strength=5.0), **still)  # what is sent is the start, as the receiver's own
    assert torch.equal(seen[0][0], seen[0][1]) and (seen[0][0] - done.task.start).abs().max() > 1e-3
    alone = run(ua.DefKT(lr=0.1, epochs=2, strength=0.0), **still)
    receiver = next(k for k in (0, 2) if (done.clients[k]["theta"] - done.task.start).abs().max() > 1e-3)
    assert (done.clients[receiver]["theta"] - alone.clients[receiver]["theta"]).abs().max() < 1e-12


def test_def_kt_strength():
    weak, strong = (run(ua.DefKT(strength=strength), rounds=1, **ALL) for strength in (0.0, 1.0))
    assert apart(weak, strong) > 1e-6


# ---- FedProto


def test_fedproto_keeps_prototypes_of_classes_that_nobody_brought():
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    clients = [(x[:6], torch.arange(6) % 2), (x[6:], 1 + torch.arange(6) % 2)]  # classes 0 and 1; 1 and 2
    fed = ua.Federation.from_arrays(clients, classes=4)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4))

    def after(cohorts):
        return ua.simulate(module, fed, ua.FedProto(), rounds=len(cohorts), clients_per_round=cohorts, **EXACT).server

    both, one = after([[0, 1]]), after([[0, 1], [0]])
    assert both.known.tolist() == [1, 1, 1, 0] == one.known.tolist()
    assert torch.equal(one.prototypes[2], both.prototypes[2]) and not one.prototypes[3].any()
    assert not torch.equal(one.prototypes[:2], both.prototypes[:2])


def test_fedproto_does_not_depend_on_the_order_of_clients():
    """Clients are renumbered: each has what it had, and the prototypes are the same."""
    module, fed = testing.task("mlp")
    order = [3, 0, 5, 1, 4, 2]
    other = ua.Federation.from_arrays([fed.train.of(k) for k in order], classes=3)
    setting = {**EXACT, "rounds": 2, "local": ORDERED}
    one, two = (ua.simulate(module, data, ua.FedProto(), **setting) for data in (fed, other))
    assert (one.server.prototypes - two.server.prototypes).abs().max() < 1e-12
    for place, client in enumerate(order):
        assert (one.clients[client]["theta"] - two.clients[place]["theta"]).abs().max() < 1e-12
    assert apart(one, two) > 1e-3  # by number they are others


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_fedproto_predicts_by_the_nearest_prototype(engine):
    setting = {"rounds": 2, "engine": engine, "local": ORDERED}
    near, head = (run(ua.FedProto(inference=how), **setting) for how in ("prototypes", "head"))
    assert apart(near, head) < 1e-12  # training is the same
    module, (x, y) = testing.task("mlp")[0].double(), near.data.splits["test"].of(2)
    nn.utils.vector_to_parameters(near.clients[2]["theta"], module.parameters())
    features = module[:-1](x) if isinstance(module, nn.Sequential) else torch.tanh(module.fc1(x))
    far = (features[:, None] - near.server.prototypes).square().mean(-1)
    found = near.client_values["accuracy"][2], near.client_values["loss"][2]
    assert found[0] == (far.argmin(-1) == y).double().mean()
    assert abs(found[1] - float(nn.functional.cross_entropy(-far, y).detach())) < 1e-9
    assert near.client_values["loss"][2] != head.client_values["loss"][2]
    assert predicts(near.method) and not predicts(head.method)  # whose clients' models are vectors


def test_fedproto_never_predicts_a_class_without_a_prototype():
    method, me = ua.FedProto(inference="prototypes"), type("Me", (), {"own": lambda self, kept: kept})()
    batch = type("One", (), {"forward": lambda self, vector: (torch.ones(1, 3), torch.tensor([[0.0, 2.0]]))})()
    known, at = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([[0.0, 0.0], [4.0, 4.0], [0.0, 2.0]])
    state = ua.Fields({"theta": torch.zeros(1)})
    outputs = method.predict(me, state, ua.Fields({"prototypes": at, "known": known}), batch)
    assert outputs[0, :2].tolist() == [-2.0, -10.0] and outputs[0, 2] < -1e8
    assert method.predict(me, state, ua.Fields({}), batch).tolist() == [[1.0, 1.0, 1.0]]  # the head's


def test_fedproto_collects_while_training_with_sgd_only():
    with refused("knows SGD"):
        run(ua.FedProto(collect="training"))  # the shared settings clip gradients


def test_fedproto_collects_of_the_last_pass():
    """With a rate of nearly zero the model stands still: both ways see the same features, of one pass."""
    setting = {"local": ua.LocalTraining(epochs=3, batch_size=2, lr=1e-12), **ALL, "rounds": 1}
    for weights in ("uniform", "samples"):
        after, met = (run(ua.FedProto(weights=weights, collect=c), **setting) for c in ("after", "training"))
        assert (after.server.prototypes - met.server.prototypes).abs().max() < 1e-9


# ---- FedGen


def test_fedgen_begins_with_fedavg():
    on = ua.FedGen(hidden=8, noise=4, generated=5, steps=3)
    assert farthest(run(on, rounds=1), run(ua.FedAvg(), rounds=1)) < 1e-12
    assert farthest(run(on, rounds=2), run(ua.FedAvg(), rounds=2)) > 1e-6


def test_fedgen_fades():
    method = ua.FedGen(alpha=10.0, decay=0.5, floor=1e-2)
    assert [method.faded(10.0, t) for t in (0, 1, 2)] == [10.0, 5.0, 2.5]
    assert method.faded(10.0, 20) == 1e-2 and method.faded(0.0, 5) == 0.0 and method.faded(1e-3, 5) == 1e-3


def test_fedgen_counts_labels():
    counts = []

    class Noted(ua.FedGen):
        def end(self, me, s, m, share, theta):
            kept, sent = super().end(me, s, m, share, theta)
            counts.append(sent["counts"].round().tolist())
            return kept, sent

    labels = [torch.tensor([0, 0, 0, 2, 2, 2, 2, 0, 1]), torch.tensor([1, 1, 2, 2, 0])]
    fed = ua.Federation.from_arrays([(torch.ones(len(y), 6).double(), y) for y in labels], classes=3)
    module, _ = testing.task("mlp")
    local = ua.LocalTraining(epochs=2, batch_size=4, lr=0.05, shuffle=False, drop_last=True)

    def counted(how):
        counts.clear()
        ua.simulate(module, fed, Noted(steps=0, counts=how), rounds=1, local=local, **EXACT)
        return [list(map(int, each)) for each in counts]

    assert counted("all") == [[4, 1, 4], [1, 2, 2]]
    assert counted("met") == [[1 + 2 * 4, 1, 1 + 2 * 4], [1, 1 + 2 * 2, 1 + 2 * 2]]  # two passes without the last one


# ---- two architectures that are copies of each other


@pytest.mark.parametrize(
    "method", [ua.FedMD(warm_public=1, warm_own=1, lr=0.01), ua.FedProto(lam=1.0)], ids=lambda m: m.name
)
@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_copies_of_an_architecture_are_one(method, engine):
    module, fed = testing.task("mlp")
    setting = {**testing.settings(), **EXACT, "engine": engine}
    one = ua.simulate(module, fed, method, **setting)
    names = ["left", "right", "right", "left", "right", "left"]
    two = ua.simulate({"left": module, "right": module}, fed, method, architecture=names, **setting)
    assert apart(one, two) < 1e-12
