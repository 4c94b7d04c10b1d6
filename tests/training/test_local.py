"""Local training held against torch.optim, and the order of samples."""

import numpy as np
import pytest
import torch
from reference import ENGINES, Each, batches, fedavg, federation, mlp, simulate, vector

import unalike as ua
from unalike import draws
from unalike.client import one_client
from unalike.training.order import Order

SIZES = (7, 4, 11)
OPTIMIZERS = {
    "sgd": (dict(lr=0.3), lambda p, **o: torch.optim.SGD(p, lr=0.3, **o)),
    "momentum": (dict(lr=0.3, momentum=0.8), lambda p, **o: torch.optim.SGD(p, lr=0.3, momentum=0.8, **o)),
    "nesterov": (
        dict(lr=0.3, momentum=0.8, nesterov=True),
        lambda p, **o: torch.optim.SGD(p, lr=0.3, momentum=0.8, nesterov=True, **o),
    ),
    "rmsprop": (
        dict(lr=0.02, optimizer="rmsprop", smoothing=0.9, eps=1e-6),
        lambda p, **o: torch.optim.RMSprop(p, lr=0.02, alpha=0.9, eps=1e-6, **o),
    ),
    "rmsprop-momentum": (
        dict(lr=0.02, optimizer="rmsprop", momentum=0.7),
        lambda p, **o: torch.optim.RMSprop(p, lr=0.02, momentum=0.7, **o),
    ),
    "adam": (
        dict(lr=0.05, optimizer="adam", betas=[0.8, 0.95], eps=1e-7),
        lambda p, **o: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.95), eps=1e-7, **o),
    ),
}


def sgd(rate):
    """SGD with `rate(client, round)`."""
    return lambda parameters, k, t: torch.optim.SGD(parameters, lr=rate(k, t))


def close(run, module, deltas=None):
    torch.testing.assert_close(run.server.w, vector(module), atol=1e-10, rtol=0)
    if deltas is not None:
        torch.testing.assert_close(run.server.deltas, deltas, atol=1e-10, rtol=0)


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize(
    "extra", [{}, {"weight_decay": 0.1}, {"clip_norm": 0.2}, {"weight_decay": 0.1, "clip_norm": 0.2}]
)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_is_torch_optim(name, extra, engine):
    ours, make = OPTIMIZERS[name]
    decay = {"weight_decay": extra["weight_decay"]} if "weight_decay" in extra else {}
    fed = federation(SIZES)
    expected = fedavg(
        mlp(), fed, lambda p, k, t: make(p, **decay), lambda k, t: batches(SIZES[k], 3, -(-SIZES[k] // 3) * 2),
        clip_norm=extra.get("clip_norm"),
    )  # fmt: skip
    local = ua.LocalTraining(epochs=2, batch_size=3, shuffle=False, **ours, **extra)
    close(simulate(mlp(), fed, local, engine), *expected)


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_the_rate_decays_by_round(engine):
    fed = federation(SIZES)
    expected = fedavg(
        mlp(), fed, sgd(lambda k, t: 0.4 * 0.5**t), lambda k, t: batches(SIZES[k], 3, -(-SIZES[k] // 3)), 3
    )
    local = ua.LocalTraining(epochs=1, batch_size=3, lr=0.4, lr_decay=0.5, shuffle=False)
    close(simulate(mlp(), fed, local, engine, rounds=3), *expected)


AMOUNTS = {  # settings, and the steps they mean for (client, round); the clients have 3, 2 and 4 batches of 3
    "epochs": (dict(epochs=2), lambda k, t: (6, 4, 8)[k]),
    "half a pass": (dict(epochs=0.5), lambda k, t: (2, 1, 2)[k]),
    "epochs listed": (dict(epochs=[1, 3, 1.5]), lambda k, t: (3, 6, 6)[k]),
    "epochs by function": (dict(epochs=lambda k, t: 1 + k + t), lambda k, t: (3, 2, 4)[k] * (1 + k + t)),
    "steps": (dict(steps=5), lambda k, t: 5),
    "steps listed": (dict(steps=np.array([1, 9, 2])), lambda k, t: (1, 9, 2)[k]),
    "steps by function": (dict(steps=lambda k, t: 2 * k + t + 1), lambda k, t: 2 * k + t + 1),
    "drop_last": (dict(epochs=2, drop_last=True), lambda k, t: (4, 2, 6)[k]),
    "drop_last steps": (dict(steps=5, drop_last=True), lambda k, t: 5),
    "full batch": (dict(epochs=3, batch_size=None), lambda k, t: 3),
    "full batch steps": (dict(steps=2, batch_size=None), lambda k, t: 2),
    "larger than a client": (dict(epochs=2, batch_size=10), lambda k, t: (2, 2, 4)[k]),
}


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("name", AMOUNTS)
def test_amounts_of_work(name, engine):
    given, steps = AMOUNTS[name]
    given = {"batch_size": 3, "lr": 0.3, "shuffle": False, **given}
    fed = federation(SIZES)

    def slices(k, t):
        return batches(SIZES[k], given["batch_size"], steps(k, t), given.get("drop_last", False))

    expected = fedavg(mlp(), fed, sgd(lambda k, t: 0.3), slices, rounds=2)
    close(simulate(mlp(), fed, ua.LocalTraining(**given), engine, rounds=2), *expected)


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("rate", [[0.5, 0.1, 0.3], np.array([0.5, 0.1, 0.3]), lambda k, t: 0.1 * (1 + k) / (1 + t)])
def test_a_rate_for_each_client(rate, engine):
    fed = federation(SIZES)
    of = rate if callable(rate) else lambda k, t: rate[k]
    expected = fedavg(mlp(), fed, sgd(of), lambda k, t: batches(SIZES[k], 3, -(-SIZES[k] // 3)), rounds=2)
    local = ua.LocalTraining(epochs=1, batch_size=3, lr=rate, shuffle=False)
    close(simulate(mlp(), fed, local, engine, rounds=2), *expected)


def test_a_part_of_a_pass_is_rounded_up_but_not_by_rounding_errors():
    ids = np.array([0])
    for epochs, n, steps in ((0.07, 100, 7), (0.1, 30, 3), (1.1, 10, 11), (0.25, 10, 3), (0.01, 10, 1), (1 / 3, 9, 3)):
        assert ua.LocalTraining(epochs=epochs, batch_size=1).counts(ids, np.array([n]), 0).tolist() == [steps]


def test_before_the_first_round_amounts_are_those_of_the_first():
    seen = []
    local = ua.LocalTraining(
        lr=lambda k, t: seen.append(t) or 0.1, steps=lambda k, t: seen.append(t) or 2, lr_decay=0.5
    )
    assert local.rates(np.array([0]), -1).tolist() == [0.1]
    assert local.counts(np.array([0]), np.array([9]), -1).tolist() == [2]
    assert set(seen) == {0}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["momentum", "rmsprop-momentum", "adam"])
def test_a_kept_optimizer_lives_through_the_run(name, engine):
    ours, make = OPTIMIZERS[name]
    fed = federation(SIZES)
    cohorts = [[0, 1, 2], [0, 2], [0, 1, 2]]  # client 1 misses a round
    slices = lambda k, t: batches(SIZES[k], 3, 4)  # noqa: E731
    kept = fedavg(mlp(), fed, lambda p, k, t: make(p), slices, 3, cohorts, kept={})
    fresh = fedavg(mlp(), fed, lambda p, k, t: make(p), slices, 3, cohorts)
    for keep, expected in ((True, kept), (False, fresh)):
        local = ua.LocalTraining(steps=4, batch_size=3, shuffle=False, keep_optimizer=keep, **ours)
        run = simulate(mlp(), fed, local, engine, rounds=3, clients_per_round=cohorts)
        close(run, *expected)
    assert (kept[1] - fresh[1]).abs().max() > 1e-3


# ---- the order of samples


def order(local, sizes, seed=0, round=0, ids=None):
    ids = np.arange(len(sizes)) if ids is None else np.array(ids)
    return Order(local, draws.client_keys(seed, round, "train 0", ids), np.array(sizes))


def read(order, first, last, client=0):
    """The samples that these steps of a client read, one list a step."""
    index, real = order.block(first, last)
    return [index[k, client][real[k, client]].tolist() for k in range(last - first)]


@pytest.mark.parametrize("batch_size,drop_last", [(1, False), (3, False), (3, True), (5, False), (50, False)])
def test_every_pass_is_a_permutation(batch_size, drop_last):
    local = ua.LocalTraining(batch_size=batch_size, drop_last=drop_last)
    passes = []
    for n in (3, 10, 17):
        per = n // batch_size if drop_last else -(-n // batch_size)
        if per == 0:
            continue
        steps = read(order(local, [n]), 0, 4 * per)
        assert {len(s) for s in steps[: n // batch_size]} <= {batch_size}
        for e in range(4):
            one = [k for step in steps[e * per : (e + 1) * per] for k in step]
            assert len(set(one)) == len(one) == (per * batch_size if drop_last else n)
            assert set(one) <= set(range(n))
            passes.append(tuple(one))
    assert len(set(passes)) > len(passes) / 2  # passes differ (small clients may repeat one)


def test_a_shuffle_favours_no_place():
    """Each sample comes first equally often: chi-square over 3,000 clients of 6 samples."""
    plan = order(ua.LocalTraining(batch_size=1), [6] * 3000)
    index, _ = plan.block(0, 6)
    for step in range(6):
        counts = torch.bincount(index[step, :, 0], minlength=6).double()
        assert float(((counts - 500) ** 2 / 500).sum()) < 25.7  # 5 degrees of freedom, one in 10,000


def test_the_order_is_a_function_of_seed_round_and_client():
    local = ua.LocalTraining(batch_size=3)
    sizes = [10, 17, 5]
    together = order(local, sizes)
    for k, n in enumerate(sizes):
        alone = order(local, [n], ids=[k])
        whole = read(alone, 0, 20)
        assert read(together, 0, 20, client=k) == whole  # whatever the cohort
        assert read(together, 0, 7, k) + read(together, 7, 8, k) + read(together, 8, 20, k) == whole  # or the block
    base = read(order(local, [17]), 0, 6)
    others = [order(local, [17], seed=1), order(local, [17], round=1), order(local, [17], ids=[1])]
    assert len({str(base), *(str(read(o, 0, 6)) for o in others)}) == 4


def test_a_client_that_has_finished_costs_nothing(monkeypatch):
    """Three clients of 10, 2 and 5 samples, batches of 3, who read 8, 2 and 2 batches: two passes of each."""
    sizes, ends, local = [10, 2, 5], np.array([8, 2, 2]), ua.LocalTraining(batch_size=3)
    whole, drawn, bits = order(local, sizes), [], draws.bits
    keys = draws.client_keys(0, 0, "train 0", np.arange(3))
    ended = Order(local, keys, np.array(sizes), ends=(ends, torch.from_numpy(ends)))
    monkeypatch.setattr(draws, "bits", lambda key, counter: drawn.append(len(counter)) or bits(key, counter))
    for first, last in ((0, 8), (0, 3), (3, 8)):
        for k, end in enumerate(ends):
            kept = read(ended, first, last, k)
            assert kept[: end - first] == read(whole, first, min(last, end), k)[: end - first] if first < end else kept
            assert all(later == read(whole, end - 1, end, k)[0] for later in kept[max(0, end - first) :])
    drawn.clear()
    ended.block(0, 8)
    assert drawn == [2 * 10 + 2 * 2 + 5]  # five samples are two batches: one pass


def test_blocks_are_cut_to_a_limit():
    plan = order(ua.LocalTraining(batch_size=3), [10, 17, 5])
    assert plan.block_steps(limit=1) == 1 and plan.block_steps(limit=90) == 10  # 3 clients x 3 samples per step


def test_a_client_trains_alike_in_any_cohort_and_chunk():
    fed = federation((9, 5, 12, 7))
    local = ua.LocalTraining(epochs=2, batch_size=4, lr=0.3)

    def delta(cohort, engine="sequential", seed=0, **more):
        run = simulate(mlp(), fed, local, engine, clients_per_round=[cohort], seed=seed, **more)
        return run.server.deltas[cohort.index(2)]

    alone = delta([2])
    for engine, more in (
        ("sequential", {}),
        ("workers", {}),
        *(("batched", {"clients_at_once": c}) for c in (1, 2, 4)),
    ):
        torch.testing.assert_close(delta([0, 1, 2, 3], engine, **more), alone, atol=1e-12, rtol=0)
    assert (delta([2], seed=1) - alone).abs().max() > 1e-4


def test_rounds_are_shuffled_anew():
    """The same start, client and data in two rounds: only the order can make a difference."""

    class Again(Each):
        def round(self, server, cohort):
            server.deltas = cohort.call(self.client, w=server.w).each("delta")

    fed = federation((9,))
    run = [
        simulate(mlp(), fed, ua.LocalTraining(batch_size=2, lr=0.5, shuffle=shuffle), rounds=r, method=Again())
        for shuffle in (True, False)
        for r in (1, 2)
    ]
    assert (run[0].server.deltas - run[1].server.deltas).abs().max() > 1e-4
    assert torch.equal(run[2].server.deltas, run[3].server.deltas)


# ---- mistakes

WRONG = [
    (dict(epochs=1, steps=1), "epochs or steps, not both"),
    (dict(epochs=0), "epochs must be a finite number above 0; got 0"),
    (dict(epochs="2"), "epochs must be a finite number above 0; got '2'"),
    (dict(epochs=[1, -1]), "got -1 for client 1"),
    (dict(steps=2.5), "steps must be a whole number above 0; got 2.5"),
    (dict(steps=True), "steps must be a whole number above 0; got True"),
    (dict(lr=float("nan")), "lr must be a finite number above 0; got nan"),
    (dict(lr=-0.1), "lr must be a finite number above 0; got -0.1"),
    (dict(lr=None), "lr must be a finite number above 0; got None"),
    (dict(lr_decay=0), "lr_decay must be a number above 0; got 0"),
    (dict(batch_size=0), "batch_size must be a whole number above 0, or None; got 0"),
    (dict(batch_size=True), "batch_size must be"),
    (dict(batch_size=2.0), "batch_size must be"),
    (dict(optimizer="adm"), "Did you mean 'adam'?"),
    (dict(optimizer=torch.optim.SGD), "There is no optimizer"),
    (dict(momentum=-1), "momentum must be a number of at least 0; got -1"),
    (dict(momentum="0.9"), "momentum must be a number of at least 0; got '0.9'"),
    (dict(weight_decay=float("inf")), "weight_decay must be a number of at least 0; got inf"),
    (dict(eps=None), "eps must be a number of at least 0; got None"),
    (dict(smoothing=1.5), "smoothing must lie in [0, 1]; got 1.5"),
    (dict(clip_norm=0), "clip_norm must be a number above 0, or None; got 0"),
    (dict(clip_norm="10"), "clip_norm must be a number above 0, or None; got '10'"),
    (dict(betas=0.9), "betas must be two numbers"),
    (dict(betas=(0.9, 1.0)), "betas must be two numbers"),
    (dict(shuffle="no"), "shuffle must be True or False; got 'no'"),
    (dict(nesterov=True), "nesterov=True needs"),
    (dict(optimizer="adam", momentum=0.9), "adam takes betas and no momentum"),
]


@pytest.mark.parametrize("given,words", WRONG)
def test_a_wrong_setting_gets_one_clear_line(given, words):
    with pytest.raises(ua.UnalikeError) as caught:
        ua.LocalTraining(**given)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize(
    "given,words",
    [
        (dict(lr=[0.1, 0.1]), "lr has 2 entries for 3 clients: give one each."),
        (dict(steps=lambda k, t: k), "steps must be a whole number above 0; got 0 for client 0."),
        (dict(epochs=lambda k, t: None), "epochs must be a finite number above 0; got None for client 0."),
        (dict(batch_size=5, drop_last=True), "Client 1 has 4 samples, fewer than batch_size=5"),
    ],
)
def test_a_setting_wrong_for_a_client_names_it(given, words, engine):
    with pytest.raises(ua.UnalikeError) as caught:
        simulate(mlp(), federation(SIZES), ua.LocalTraining(**given), engine)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_method_replaces_settings_by_name():
    local = ua.LocalTraining(epochs=3, lr=0.1, momentum=0.9)
    assert local.replaced(steps=4) == ua.LocalTraining(steps=4, lr=0.1, momentum=0.9)
    assert local.replaced(steps=4).replaced(epochs=2) == ua.LocalTraining(epochs=2, lr=0.1, momentum=0.9)
    with pytest.raises(ua.UnalikeError, match="Did you mean 'momentum'"):
        local.replaced(momentun=0.5)


@pytest.mark.parametrize("piece", [1, 2, 3])
def test_batches_are_told_apart_in_pieces(piece, monkeypatch):
    """Pieces within a pass and across its end, where the last batch is smaller."""
    run = lambda: simulate(mlp(), federation(SIZES), ua.LocalTraining(epochs=3, batch_size=3, lr=0.1)).server.w  # noqa: E731
    whole = run()
    monkeypatch.setattr(one_client, "PIECE", piece)
    assert torch.equal(run(), whole)
