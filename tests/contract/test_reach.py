"""Each further thing that a method can ask for: the same on every engine, resumed as uninterrupted, and right."""

import dataclasses as dc

import numpy as np
import pytest
import reach
import torch

import unalike as ua
from unalike import testing
from unalike.contract import Field, Method
from unalike.errors import UnalikeError

LOCAL = ua.LocalTraining(epochs=1, batch_size=5, lr=0.05, shuffle=False)


@pytest.mark.parametrize("kind, dtype", [("mlp", "float32"), ("norm", "float64")])
@pytest.mark.parametrize("toy", reach.REACHING, ids=lambda toy: toy.__name__)
def test_every_engine_agrees(toy, kind, dtype):
    testing.check_engines(toy(), kind, dtype)


@pytest.mark.parametrize("toy", reach.REACHING, ids=lambda toy: toy.__name__)
def test_resumed_is_uninterrupted(toy):
    testing.check_resume(toy(), "mlp")


LONG = [
    pytest.param(toy, marks=pytest.mark.slow) for toy in (reach.Mixed, reach.Dual)
]  # as Consensus, minutes of a compiler


@pytest.mark.slow
@pytest.mark.parametrize("toy", [reach.Consensus, *LONG, reach.Noisy], ids=lambda toy: toy.__name__)
def test_compiled_equals_eager(toy):
    eager, traced = (testing.run(toy(), "mlp", engine="batched", dtype="float64", compile=c) for c in (False, True))
    assert testing.difference(eager, traced) < 1e-9
    drawn = toy is reach.Noisy  # on a CPU, what draws is not compiled
    words = [note.partition(":")[2] for note in traced.engine.notes]
    assert words == ([" they draw random numbers"] * len(words) if drawn else []) and bool(words) == drawn


def run(method, data=None, **changes):
    module, usual = testing.task("mlp")
    settings = {"rounds": 1, "local": LOCAL, "dtype": "float64", "engine": "sequential", **changes}
    return ua.simulate(module, data or usual, method, **settings)


# ---------------------------------------------------------------- data by name


class OnPublic(Method):
    """FedAvg on the public set alone."""

    def client(self, me, s, m):
        return me.train(m.w, data="public").then(self.done)


def test_training_on_public_data_is_training_on_a_client_that_has_them():
    _, data = testing.task("mlp")
    one = ua.Federation.from_arrays([(data.public[0], data.public[1])], classes=3)
    local = dc.replace(LOCAL, epochs=2)
    public, whole = run(OnPublic(), local=local), run(ua.FedAvg(), data=one, local=local)
    assert torch.allclose(public.server.w, whole.server.w, atol=1e-14, rtol=0)  # an average of equal vectors


class OwnRows(Method):
    """Every client trains on public rows of its own."""

    def round(self, server, cohort):
        rows = torch.arange(4) + torch.from_numpy(cohort.ids)[:, None]
        server.w = server.w + cohort.call(self.client, w=server.w, rows=ua.PerClient(rows)).mean("delta")

    def client(self, me, s, m):
        return me.train(m.w, data="public", only=m.rows).then(self.done)


def test_clients_that_read_other_rows_of_the_public_set_do_so_in_a_stack():
    each, stacked = run(OwnRows(), rounds=2), run(OwnRows(), rounds=2, engine="batched")
    assert testing.difference(each, stacked) < 1e-9
    assert testing.difference(each, run(OnPublic(), rounds=2)) > 1e-3


class OneLoss(Method):
    """The same loss on one's own samples, on public ones, and with a tensor for each of them."""

    def client(self, me, s, m):
        return me.train(m.w, loss=self.size, steps=1).then(self.public)

    def public(self, me, s, m, theta):
        return me.train(theta, data="public", loss=self.size, steps=1).then(self.rows)

    def rows(self, me, s, m, theta):
        return me.train(theta, data="public", loss=self.size, steps=1, rows={"weight": m.weight}).then(self.done)

    def size(self, batch):
        weight = batch.rows.weight if "weight" in batch.rows else 1 + batch.source
        return 0.1 * batch.mean(weight * batch.output.square().sum(-1))

    def round(self, server, cohort):
        weight = torch.arange(11, dtype=server.w.dtype)
        server.w = server.w + cohort.call(self.client, w=server.w, weight=weight).mean("delta")


def test_one_loss_serves_several_kinds_of_samples():
    """A step that was built for one kind is not taken for another."""
    testing.check_engines(OneLoss(), "mlp", "float64")


def test_all_clients_see_the_same_public_batches():
    """In an order that is drawn, and new in every round."""
    local = ua.LocalTraining(steps=2, batch_size=4, lr=0.05)
    run_ = run(OnPublic(), local=local, rounds=2, clients_per_round=[[0, 1, 2], [3]])
    alone = run(OnPublic(), local=local, rounds=2, clients_per_round=[[5], [0]])
    assert torch.allclose(run_.server.w, alone.server.w, atol=1e-14)  # an average of equal vectors
    again = run(OnPublic(), local=local, rounds=1, seed=1)
    assert float((again.server.w - run(OnPublic(), local=local, rounds=1).server.w).abs().max()) > 1e-4


@dc.dataclass(frozen=True)
class Chosen(Method):
    rows: tuple[int, ...] = (2, 9, 4)

    def client(self, me, s, m):
        return me.train(m.w, data=("train", "public"), only=m.rows).then(self.done)

    def round(self, server, cohort):
        rows = torch.tensor(self.rows, dtype=torch.int64)
        server.w = server.w + cohort.call(self.client, w=server.w, rows=rows).mean("delta")


class Picked(Method):
    """Every client trains on rows of its own that it is told, some twice; fewer than others where there is a -1."""

    rows = torch.tensor([[3, 3, 0, 5], [2, -1, -1, -1], [11, 0, 11, -1]])

    def round(self, server, cohort):
        server.w = server.w + cohort.call(self.client, w=server.w, rows=ua.PerClient(self.rows)).mean("delta")

    def client(self, me, s, m):
        return me.train(m.w, only=m.rows).then(self.counted)

    def counted(self, me, s, m, theta):
        return {}, {"delta": me.steps * (theta - m.w)}


@pytest.mark.parametrize("engine", ("sequential", "batched", "loopback"))
def test_rows_of_ones_own_samples_may_come_twice_or_be_fewer(engine):
    _, data = testing.task("mlp")
    picked = [row[row >= 0] for row in Picked.rows]
    parts = [(x[rows], y[rows]) for (x, y), rows in zip(map(data.train.of, (0, 1, 2)), picked, strict=True)]
    local = ua.LocalTraining(epochs=1, batch_size=2, lr=0.05, shuffle=False)
    done = run(Picked(), clients_per_round=[[0, 1, 2]], rounds=1, engine=engine, local=local)

    sizes = torch.tensor([7.0, 4.0, 12.0], dtype=torch.float64)
    each = []
    for k, part in enumerate(parts):
        alone = ua.Federation.from_arrays([part], classes=3)
        one = ua.simulate(
            testing.task("mlp")[0], alone, ua.FedAvg(), rounds=1, engine="sequential", dtype="float64", local=local
        )
        each.append(sizes[k] / sizes.sum() * -(-len(part[1]) // 2) * (one.server.w - done.task.start))
    assert torch.allclose(done.server.w - done.task.start, torch.stack(each).sum(0), atol=1e-12)


@pytest.mark.parametrize("engine", ("sequential", "batched"))
def test_a_union_is_own_samples_then_the_chosen_public_ones(engine):
    _, data = testing.task("mlp")
    px, py = data.public
    rows = [2, 9, 4]
    parts = [(torch.cat([x, px[rows]]), torch.cat([y, py[rows]])) for x, y in (data.train.of(k) for k in range(6))]
    joined = ua.Federation.from_arrays(parts, classes=3)
    ids = [[0, 2, 4]]
    union = run(Chosen(), clients_per_round=ids, engine=engine)
    # the weights of the mean are samples, and those are the client's own
    whole = run(ua.FedAvg(weights="uniform"), data=joined, clients_per_round=ids)
    alone = [run(Chosen(), clients_per_round=[[k]], engine=engine).server.w for k in ids[0]]
    assert torch.allclose(torch.stack(alone).mean(0), whole.server.w, atol=1e-12)
    n = data.sizes[ids[0]]
    wanted = sum(float(k) / n.sum() * w for k, w in zip(n, alone, strict=True))
    assert torch.allclose(union.server.w, wanted, atol=1e-12)


@pytest.mark.parametrize("engine", ("sequential", "batched"))
@pytest.mark.parametrize(
    "rows, words", [((11,), "row 11 of a public set that has 11"), ((-2, 3), "row -2"), ((), r"whole numbers \[r\]")]
)
def test_rows_that_are_not_there_are_refused(rows, words, engine):
    with pytest.raises(UnalikeError, match=words):
        run(Chosen(rows), engine=engine)


def test_without_a_public_set_or_labels_it_says_so():
    _, data = testing.task("mlp")
    with pytest.raises(UnalikeError, match="works on a public set, and there is none: give --public"):
        run(OnPublic(), data=data.replace(public=None))
    for engine in ("sequential", "batched"):
        with pytest.raises(UnalikeError, match=r"has no labels: train on it with own=0\.0"):
            run(OnPublic(), data=data.with_public(data.public[0]), engine=engine)
    with pytest.raises(UnalikeError, match=r"no per-client support data: make them with named_splits\(support=0.5\)"):
        run(reach.Query(), data=data.replace(splits={}))


class PublicCounts(Method):
    sends = {"counts": Field("classes", weight="one")}

    def client(self, me, s, m):
        return me.sum(self.labels, data="public").then(self.end)

    def labels(self, batch):
        return batch.onehot

    def end(self, me, s, m, counts):
        return {}, {"counts": counts}

    def round(self, server, cohort):
        server.counts = cohort.call(self.client).sum("counts")


def test_unlabelled_rows_have_no_class():
    """Cronus' shape on a public set without labels gives what it gives with them: it never reads them."""
    _, data = testing.task("mlp")
    bare = data.with_public(data.public[0])
    for engine in ("sequential", "batched"):
        ends = [run(reach.Mixed(), data=some, engine=engine).server.w for some in (data, bare)]
        assert torch.equal(*ends)
        counts = [run(PublicCounts(), data=some, engine=engine).server.counts.sum() for some in (data, bare)]
        assert [int(count) for count in counts] == [6 * 11, 0]


def test_outputs_of_own_samples_have_zeros_behind():
    class Own(Method):
        keeps = {"logits": Field(("samples", "classes"))}

        def client(self, me, s, m):
            return me.outputs(m.w, data="train").then(self.end)

        def end(self, me, s, m, rows):
            return {"logits": rows}, {"delta": torch.zeros_like(m.w)}

    for engine in ("sequential", "batched", "loopback"):
        done = run(Own(), engine=engine)
        for client in range(6):
            x, _ = done.data.train.of(client)
            got = done.clients[client]["logits"]
            assert got.shape == (12, 3) and not got[len(x) :].any()
            with torch.no_grad():
                torch.testing.assert_close(got[: len(x)], done.model(x))


def test_support_and_query_are_named_splits():
    ids = [[0, 1, 2], [2, 3, 5]]
    runs = [
        run(reach.Query(), engine=e, rounds=2, clients_per_round=ids)
        for e in ("sequential", "workers", "batched", "loopback")
    ]
    assert all(testing.difference(runs[0], other) < 1e-9 for other in runs[1:])
    with pytest.raises(UnalikeError, match="Client 4 has no"):
        run(
            reach.Query(),
            testing.task("mlp")[1].replace(splits={}).named_splits(support=0.4, query=0.6),
            clients_per_round=[[4]],
        )


def test_counts_of_labels_by_hand():
    done = run(reach.Fisher(), clients_per_round=[[0, 3]])
    wanted = np.zeros(3)
    for client in (0, 3):
        for number, label in enumerate(done.data.train.of(client)[1].tolist()):
            wanted[label] += 1 + number
    assert done.server.counts.tolist() == wanted.tolist()


def test_the_fisher_by_hand():
    done = run(reach.Fisher(), clients_per_round=[[2]], rounds=1)
    x, y = done.data.train.of(2)
    after = run(ua.FedAvg(), clients_per_round=[[2]]).model
    squares = []
    for k in range(len(y)):
        after.zero_grad()
        torch.nn.functional.cross_entropy(after(x[k : k + 1]), y[k : k + 1]).backward()
        squares.append(torch.cat([p.grad.reshape(-1) for p in after.parameters()]).square())
    torch.testing.assert_close(done.server.fisher, torch.stack(squares).mean(0))


# ---------------------------------------------------------------- steps


@dc.dataclass(frozen=True)
class Part(Method):
    part: str = "head"

    def client(self, me, s, m):
        return me.train(m.w, part=self.part).then(self.done)


@pytest.mark.parametrize("engine", ("sequential", "batched"))
@pytest.mark.parametrize("part", ("head", "body", "first 2", "all but first 1", "head + first 1", "last 2"))
def test_only_the_part_moves_and_clipping_sees_no_other(part, engine):
    """As if the other weights were frozen in the module itself."""
    module, data = testing.task("mlp")
    local = ua.LocalTraining(
        steps=3, batch_size=4, lr=0.1, momentum=0.9, weight_decay=0.1, clip_norm=0.3, shuffle=False
    )
    changes = {"rounds": 2, "local": local, "dtype": "float64", "clients_per_round": [[0], [2]]}
    done = ua.simulate(module, data, Part(part), engine=engine, **changes)
    layout = done.task.layout
    inside = layout.mask(part)
    for (name, *_), moves in zip(layout.places, layout.chosen(part), strict=True):
        dict(module.named_parameters())[name].requires_grad_(moves)
    frozen = ua.simulate(module, data, ua.FedAvg(), engine="sequential", **changes)
    assert torch.allclose(done.server.w[inside], frozen.server.w, atol=1e-12)
    assert torch.equal(done.server.w[~inside], done.task.start[~inside])


def test_the_optimizers_state_goes_on():
    """Adam's state as a field of the method's own is what `keep_optimizer` keeps."""

    class Kept(Method):
        keeps = {"adam": Field("optimizer")}

        def client(self, me, s, m):
            return me.train(m.w, slots=s.adam).then(self.end)

        def end(self, me, s, m, theta, slots):
            return {"adam": slots}, {"delta": theta - m.w}

    for optimizer in ({"optimizer": "adam"}, {"momentum": 0.9}, {"optimizer": "rmsprop", "momentum": 0.5}):
        local = dc.replace(LOCAL, lr=0.01, **optimizer)
        for engine in ("sequential", "batched"):
            mine = run(Kept(), local=local, rounds=3, engine=engine)
            usual = run(ua.FedAvg(), local=dc.replace(local, keep_optimizer=True), rounds=3, engine=engine)
            assert torch.allclose(mine.server.w, usual.server.w, atol=1e-13), (optimizer, engine)
            fresh = run(ua.FedAvg(), local=local, rounds=3, engine=engine)
            assert not torch.allclose(mine.server.w, fresh.server.w, atol=1e-6)


def test_what_does_not_move_stays_whatever_the_optimizer_remembers():
    class Then(Method):
        """All of the vector, then its head with the same momentum."""

        def client(self, me, s, m):
            return me.train(m.w, slots=torch.zeros(2 * len(m.w) + 1, dtype=m.w.dtype)).then(self.head)

        def head(self, me, s, m, theta, slots):
            return me.train(theta, part="head", slots=slots).then(self.end, body=me.layout.body(theta))

        def end(self, me, s, m, theta, body, slots):
            return {}, {"delta": me.layout.join(me.layout.body(theta) - body, me.layout.head(theta))}

    for engine in ("sequential", "batched"):
        done = run(Then(), local=dc.replace(LOCAL, momentum=0.9), engine=engine)
        assert torch.equal(done.task.layout.body(done.server.w), done.task.layout.body(done.task.start))
        assert not torch.equal(done.task.layout.head(done.server.w), done.task.layout.head(done.task.start))


def test_the_same_batches_again():
    @dc.dataclass(frozen=True)
    class Twice(Method):
        same: bool = True

        def client(self, me, s, m):
            return me.train(m.w).then(self.again)

        def again(self, me, s, m, theta):
            return me.train(m.w, same_batches=self.same).then(self.end, first=theta)

        def end(self, me, s, m, theta, first):
            return {}, {"delta": theta - first}

    local = ua.LocalTraining(steps=3, batch_size=3, lr=0.1)
    for engine in ("sequential", "batched"):
        start = run(Twice(), local=local, engine=engine)
        assert torch.equal(start.server.w, start.task.start)
        other = run(Twice(same=False), local=local, engine=engine)
        assert not torch.equal(other.server.w, other.task.start)

    class First(Method):
        def client(self, me, s, m):
            return me.train(m.w, same_batches=True).then(self.done)

    for engine in ("sequential", "batched"):
        with pytest.raises(UnalikeError, match="no training in this function"):
            run(First(), engine=engine)


def test_a_number_of_each_sample_by_hand():
    done = run(reach.Dual(), clients_per_round=[[0, 1], [0]], rounds=2)
    for client, times in ((0, 2), (1, 1)):
        _, y = done.data.train.of(client)
        wanted = torch.zeros(12, dtype=torch.float64)
        for _ in range(times):
            wanted[: len(y)] = 0.5 * wanted[: len(y)] + 0.1 * (y + 1)
        torch.testing.assert_close(done.clients[client]["alpha"], wanted)


def test_draws_differ_between_steps_rounds_clients_and_purposes():
    seen = []

    class Watch(Method):
        def client(self, me, s, m):
            return me.train(m.w, step=self.step, steps=2).then(self.done)

        def step(self, theta, batches, lr):
            batch = batches[0]
            seen.append(
                (float(batch.uniform("a", ())), float(batch.normal("b", ())), int(batch.integers("c", (), 1000)))
            )
            return theta

    run(Watch(), rounds=2, clients_per_round=[[0, 1], [0, 1]])
    assert len(seen) == 8 and all(len(set(column)) == 8 for column in zip(*seen, strict=True))
    assert all(0 <= u < 1 and 0 <= k < 1000 for u, _, k in seen)


def test_a_step_says_what_it_must_return():
    class Wrong(Method):
        def client(self, me, s, m):
            return me.train(m.w, step=self.step, state={"count": me.n}).then(self.done)

        def step(self, theta, batches, lr, count):
            return theta

    for engine in ("sequential", "batched"):
        with pytest.raises(UnalikeError, match="was given the state count and returned none"):
            run(Wrong(), engine=engine)


@pytest.mark.parametrize(
    "given, words",
    [
        ({"own": 0.0}, "leaves nothing to train on"),
        ({"state": {"a": torch.zeros(1)}}, "belongs to a replaced step"),
        ({"net": "critic"}, "train it with own=0.0"),
        ({"data": ("public", "train")}, "or both"),
        ({"data": ("train", "test")}, "or both"),
        ({"rows": {"a": 1.0}}, "hold tensors by name"),
        ({"only": torch.tensor([12])}, "only= asks for row 12 of a client that has 12"),
        ({"only": torch.tensor([-2])}, "only= asks for row -2 of a client that has 12"),
        ({"only": torch.tensor([1.0])}, "only= must be whole numbers"),
        ({"only": torch.tensor([1, -1, 2])}, "a -1 before other rows"),
        ({"data": "public", "only": torch.tensor([11])}, "only= asks for row 11 of a public set that has 11"),
        ({"part": "heads"}, "no part 'heads'. Did you mean 'head'"),
        ({"data": "support", "rows": {"a": torch.zeros(1)}}, "needs a row for each of"),
        ({"data": "test"}, "test samples are for judging"),
        ({"keep_optimizer": True}, "a method keeps an optimizer's state by slots="),
        ({"step": lambda t, b, lr: t, "pull": 1.0}, "a replaced step does all by itself"),
        ({"step": lambda t, b, lr: t, "loss": lambda b: 0.0}, "a replaced step does all by itself"),
        ({"slots": torch.zeros(7)}, "slots= has 7 numbers"),
        (
            {"data": "public", "only": torch.zeros(12, dtype=torch.int64)},
            "asks for 12 rows of a public set that has 11",
        ),
    ],
)
def test_requests_that_cannot_be(given, words):
    class Asks(Method):
        def client(self, me, s, m):
            return me.train(m.w, **given).then(self.done)

    for engine in ("sequential", "batched"):
        with pytest.raises(UnalikeError, match=words):
            run(Asks(), engine=engine, clients_per_round=[[2]])


# ---------------------------------------------------------------- networks, and models that are more than a vector


def test_a_further_networks_statistics_move_with_its_vector_and_no_optimizer_touches_them():
    done = run(reach.Adversary(), local=dc.replace(LOCAL, weight_decay=0.5))
    net = done.task.nets["critic"]
    before, after = net.start[net.weights :], done.server.critic[net.weights :]
    assert net.weights == 8 * 4 + 4 + 4 + 4 + 4 + 1 and len(before) == 8  # 5 features and 3 classes; mean and variance
    assert before.tolist() == [0.0] * 4 + [1.0] * 4 and (after[4:] != before[4:]).all()
    assert (after[4:] > 0.5).all()  # a decay of 0.5 a step would have halved them
    other = run(reach.Adversary(), seed=1).task.nets["critic"].start
    assert not torch.equal(other, net.start) and torch.equal(
        run(reach.Adversary()).task.nets["critic"].start, net.start
    )


def test_a_model_that_is_two_vectors_is_judged_by_its_outputs():
    for engine in ("sequential", "batched", "loopback"):
        done = run(
            reach.Ensemble(), rounds=2, engine=engine, clients_per_round=[[0, 1, 2], [3]], metrics=["accuracy", "auc"]
        )
        x, y = done.data.test.of(1)
        own = done.module_with(done.clients[1]["own"], done.buffers)
        with torch.no_grad():
            output = torch.stack([done.model(x).softmax(-1), own(x).softmax(-1)]).mean(0).log()
        wanted = torch.nn.functional.cross_entropy(output, y)
        assert abs(done.client_values["loss"][1] - float(wanted)) < 1e-9
        assert abs(done.client_values["accuracy"][1] - float((output.argmax(-1) == y).double().mean())) < 1e-9
        torch.testing.assert_close(torch.from_numpy(done.predict(x, client=1).probabilities), output.softmax(-1))
        with pytest.raises(UnalikeError, match="more than one network, and cannot be written as one file"):
            done.save("model.unalike", client=1)


def test_a_method_without_a_model():
    _, data = testing.task("mlp")
    lines = []
    for engine in ("sequential", "workers", "batched", "loopback"):
        done = ua.simulate(None, data, reach.Prototypes(), rounds=1, engine=engine, metrics=["accuracy", "auc"])
        lines.append({k: v for k, v in done.history[-1].items() if not k.startswith("seconds")})
    assert all(line == lines[0] for line in lines) and lines[0]["bytes_down"] == 0
    means = torch.stack([data.train.x[data.train.y == c].mean(0) for c in range(3)]).float()
    torch.testing.assert_close(done.server.means, means)
    found = done.predict(data.test.x, client=3).classes
    near = (data.test.x[:, None] - means).square().sum(-1).argmin(-1)
    assert abs(lines[0]["pooled_accuracy"] - float((near == data.test.y).double().mean())) < 1e-6
    assert found.tolist() == near.tolist()
    with pytest.raises(UnalikeError, match="FedAvg trains a model: give one"):
        ua.simulate(None, data, ua.FedAvg(), rounds=1)


# ---------------------------------------------------------------- what strangers found


def test_the_same_batches_a_third_time():
    seen = []

    class Thrice(Method):
        def client(self, me, s, m):
            return me.train(m.w, step=self.look).then(self.second)

        def look(self, theta, batches, lr):
            seen.append(batches[0].index.tolist())
            return theta

        def second(self, me, s, m, theta):
            return me.train(theta, step=self.look, same_batches=True).then(self.third)

        def third(self, me, s, m, theta):
            return me.train(theta, step=self.look, same_batches=True).then(self.done)

    run(Thrice(), local=ua.LocalTraining(steps=2, batch_size=4, lr=0.1), clients_per_round=[[2]])
    assert seen[:2] == seen[2:4] == seen[4:] and len(seen) == 6

    class Other(Method):
        def client(self, me, s, m):
            return me.train(m.w, data="public").then(self.second)

        def second(self, me, s, m, theta):
            return me.train(theta, same_batches=True).then(self.done)

    for engine in ("sequential", "batched"):
        with pytest.raises(UnalikeError, match="was on other data, or in batches of another size"):
            run(Other(), engine=engine)


@pytest.mark.parametrize("compile", (False, pytest.param(True, marks=pytest.mark.slow)))
def test_an_argument_may_change_its_kind_between_rounds(compile):
    """A whole number in one round, a fraction in the next; and one that is there in the second round only."""

    class Changing(Method):
        def client(self, me, s, m):
            args = {"scale": m.scale, **({"more": m.more} if "more" in m else {})}
            return me.train(m.w, loss=self.size, args=args).then(self.done)

        def size(self, batch, scale, more=None):
            extra = 0.0 if more is None else more * batch.uniform("drawn", ())
            return (0.1 * scale + extra) * batch.mean(batch.output.square().sum(-1))

        def round(self, server, cohort):
            message = {"scale": torch.tensor(2)} if cohort.round == 0 else {"scale": 0.5, "more": 0.25}
            server.w = server.w + cohort.call(self.client, w=server.w, **message).mean("delta")

    one = run(Changing(), rounds=2)
    assert testing.difference(one, run(Changing(), rounds=2, engine="batched", compile=compile)) < 1e-9


def test_a_state_keeps_its_kind():
    class Grows(Method):
        def client(self, me, s, m):
            return me.train(m.w, step=self.step, state={"count": torch.zeros((), dtype=torch.int64)}).then(self.end)

        def step(self, theta, batches, lr, count):
            return theta, {"count": count + 0.5}

        def end(self, me, s, m, theta, count):
            return {}, {"delta": theta - m.w}

    for engine in ("sequential", "batched"):
        with pytest.raises(UnalikeError, match=r"state 'count' as int64 \[\], and must return it as such"):
            run(Grows(), engine=engine)


def test_outputs_know_whose_samples_they_are_of():
    class Sources(Method):
        sends = {"sources": Field("public", weight="one")}

        def client(self, me, s, m):
            return me.outputs(m.w, fn=self.source).then(self.end)

        def source(self, batch):
            return batch.source.to(batch.output.dtype)

        def end(self, me, s, m, sources):
            return {}, {"sources": sources}

        def round(self, server, cohort):
            server.sources = cohort.call(self.client, w=server.w).mean("sources")

    for engine in ("sequential", "batched"):
        assert run(Sources(), engine=engine).server.sources.tolist() == [1.0] * 11


@pytest.mark.parametrize("engine", ("sequential", "batched"))
def test_a_loss_without_labels_is_refused_wherever_it_is_asked_for(engine):
    _, data = testing.task("mlp")
    bare = data.with_public(data.public[0])

    class Asks(Method):
        asks = staticmethod(lambda me, at: me.losses(at, data="public"))

        def client(self, me, s, m):
            return self.asks(me, m.w).then(self.done)

    class Gradients(Asks):
        asks = staticmethod(lambda me, at: me.gradient(at, data="public"))

    class Steps(Asks):
        asks = staticmethod(lambda me, at: me.train(at, data="public", step=lambda t, batches, lr: batches[0].grad(t)))

    for method in (Asks(), Gradients(), Steps()):
        with pytest.raises(UnalikeError, match="The public set has no labels"):
            run(method, data=bare, engine=engine)


def test_a_loss_of_the_methods_own_calls_the_model_only_where_it_asks():
    """With own=0.0: a penalty on weights alone works on samples that the model could not take."""

    class Penalty(Method):
        def round(self, server, cohort):
            server.w = server.train(server.w, data=None, own=0.0, loss=self.size, steps=2, lr=0.1)

        def size(self, batch):
            return 0.5 * batch.vector.square().sum()

    done = run(Penalty())
    torch.testing.assert_close(done.server.w, 0.81 * done.task.start)


def test_the_rest_of_a_kept_optimizer_rests_too():
    class Head(Method):
        keeps = {"momentum": Field("optimizer")}

        def client(self, me, s, m):
            part = {} if me.round == 0 else {"part": "head"}
            return me.train(m.w, slots=s.momentum, **part).then(self.end)

        def end(self, me, s, m, theta, slots):
            return {"momentum": slots}, {"delta": theta - m.w}

    local = dc.replace(LOCAL, momentum=0.9)
    for engine in ("sequential", "batched"):
        first, second = (
            run(Head(), local=local, rounds=r, engine=engine, clients_per_round=[[0], [0]]) for r in (1, 2)
        )
        layout = first.task.layout
        before, after = (done.clients[0]["momentum"][: layout.size] for done in (first, second))
        assert torch.equal(layout.body(before), layout.body(after)) and before.abs().max() > 0
        assert not torch.equal(layout.head(before), layout.head(after))


def test_a_layer_does_not_take_the_name_of_a_methods_number():
    class Counts(Method):
        clusters = 2
        sends = {"delta": Field(), "each": Field(("clusters",))}

        def done(self, me, s, m, theta):
            return {}, {"delta": theta - m.w, "each": torch.ones(2, dtype=theta.dtype)}

    module = torch.nn.Sequential()
    module.add_module("clusters", torch.nn.Linear(6, 3))
    ua.simulate(module, testing.task("mlp")[1], Counts(), rounds=1, local=LOCAL)


def test_a_method_that_trains_needs_a_model_and_what_has_a_row_a_sample_stays():
    class Trains(reach.Prototypes):
        def client(self, me, s, m):
            return me.train(torch.zeros(0)).then(self.end)

    _, data = testing.task("mlp")
    with pytest.raises(UnalikeError, match="Trains trains, and there is no model"):
        ua.simulate(None, data, Trains(), rounds=1)

    class Tells(Method):
        sends = {"losses": Field("samples")}

    with pytest.raises(UnalikeError, match="such fields stay with the client"):
        run(Tells())


def test_naming_another_optimizer_leaves_the_runs_momentum_behind():
    class Adam(Method):
        def client(self, me, s, m):
            return me.train(m.w, optimizer="adam", lr=0.01).then(self.done)

    ends = [run(Adam(), local=dc.replace(LOCAL, **more)).server.w for more in ({}, {"momentum": 0.9, "nesterov": True})]
    assert torch.equal(*ends)


def test_hasattr_is_answered():
    class Asks(Method):
        def client(self, me, s, m):
            assert not hasattr(m, "more") and not hasattr(s, "more")
            return super().client(me, s, m)

        def round(self, server, cohort):
            assert not hasattr(server, "more") and getattr(server, "more", 1) == 1
            super().round(server, cohort)

    run(Asks())


def test_differences_that_a_proof_must_see():
    a, b = run(ua.FedAvg()), run(ua.FedAvg())
    assert testing.difference(a, b) == 0.0
    b.server.values["w"] = b.server.w.clone()
    b.server.w[3] = float("nan")
    assert testing.difference(a, b) == float("inf")
    a.server.values["w"], b.server.values["w"] = ua.Vectors({"a": torch.zeros(2)}), ua.Vectors({"a": torch.ones(2)})
    assert testing.difference(a, b) == 1.0
    a.server.values["w"], b.server.values["w"] = [torch.zeros(2)], [torch.full((2,), 3.0)]
    assert testing.difference(a, b) == 3.0
    a.server.values["w"] = b.server.values["w"] = torch.zeros(0)
    assert testing.difference(a, b) == 0.0
