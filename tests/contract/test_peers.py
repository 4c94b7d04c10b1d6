"""Rows that pass between clients, and methods without a server: by hand, and what is refused."""

import numpy as np
import pytest
import torch
from small import ENGINES, federation, model, refused, run

import unalike as ua
from unalike.contract.peers import parcels_of
from unalike.testing.toys import OpenRing, Ring

VECTOR = 39 * 4  # bytes of the small model's vector


class Post(ua.Method):
    """Everybody sends its own number to somebody, who keeps what it gets."""

    keeps = {"got": ua.Field("scalar"), "also": ua.Field("scalar")}
    sends = {
        "number": ua.Field("scalar", read="sealed"),
        "seen": ua.Field("scalar", read="peers"),
        "total": ua.Field("scalar"),
    }

    def send(self, me, s, m):
        return {}, {"number": me.n, "seen": 100 * me.n, "total": me.n}

    def take(self, me, s, m):
        return {"got": m.number, "also": m.get("seen", m.number) + m.get("own", 0)}, {}


def posted(body, **changes):
    class One(Post):
        def round(self, server, cohort):
            body(self, server, cohort)

    return run(One(), **{"rounds": 1, "clients_per_round": [[1, 3, 4]], **changes})


SIZES = {0: 8, 1: 4, 2: 12, 3: 10, 4: 2, 5: 6}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_row_goes_to_its_receiver_whatever_the_order(engine):
    def body(self, server, cohort):
        sent = cohort.call(self.send)
        to = {"number": sent.pass_on("number", to=[4, 1, 3]), "seen": sent.pass_on("seen", to=[3, 4, 1])}
        cohort.only([4, 3, 1]).call(self.take, own=ua.PerClient(torch.tensor([0.4, 0.3, 0.1])), **to)

    kept = posted(body, engine=engine).clients
    assert [kept[k]["got"].item() for k in (1, 3, 4)] == [SIZES[3], SIZES[4], SIZES[1]]
    also = [kept[k]["also"].item() for k in (1, 3, 4)]
    assert also == pytest.approx([100 * SIZES[4] + 0.1, 100 * SIZES[1] + 0.3, 100 * SIZES[3] + 0.4])


def test_rows_may_go_to_clients_that_sent_nothing_and_in_two_calls():
    def body(self, server, cohort):
        everyone = cohort.everyone
        rows = cohort.call(self.send).pass_on("number", to=[0, 2, 5])
        everyone.only([5]).call(self.take, number=rows)
        everyone.only([2, 0]).call(self.take, number=rows)

    kept = posted(body).clients
    assert [kept[k]["got"].item() for k in (0, 2, 5)] == [SIZES[1], SIZES[3], SIZES[4]]


def test_bytes_between_clients_count_once():
    line = run(Ring(), rounds=1).history[0]
    assert (line["bytes_peer"], line["bytes_up"]) == (3 * VECTOR, 0)
    assert line["bytes_down"] == 3 * 4  # a number, share, to each
    line = run(OpenRing(), rounds=1).history[0]
    assert (line["bytes_peer"], line["bytes_up"]) == (3 * VECTOR, 3 * VECTOR)  # the server reads it on the way
    done = run(Ring(), rounds=2)
    assert done.summary()["bytes_peer"] == 6 * VECTOR
    plain = run(ua.FedAvg(), rounds=1)
    assert "bytes_peer" not in plain.history[0] and "bytes_peer" not in plain.summary()


def test_bytes_between_clients_before_round_1():
    class Early(Ring):
        def setup(self, server, everyone):
            self.round(server, everyone)

    done = run(Early(), rounds=1)
    assert done.history[0]["setup_bytes_peer"] == 6 * VECTOR
    assert done.summary()["bytes_peer"] == 9 * VECTOR


# ---------------------------------------------------------------- what the server half cannot do


@pytest.mark.parametrize(
    "look",
    [
        lambda rows: rows.rows,
        lambda rows: rows + 1,
        lambda rows: 2.0 * rows,
        lambda rows: torch.ones(3) - rows,
        lambda rows: torch.stack([torch.ones(3), rows]),
        lambda rows: torch.mean(rows),
        lambda rows: rows[0],
        lambda rows: list(rows),
        lambda rows: np.asarray(rows),
        lambda rows: float(rows),
        lambda rows: len(rows),
    ],
)
def test_the_server_half_cannot_open_what_it_passes_on(look):
    with refused("The rows of 'number' that are passed on cannot be opened by the server: give them to a call"):
        posted(lambda self, server, cohort: look(cohort.call(self.send).pass_on("number", to=cohort.ids)))


def test_a_text_of_it_has_no_numbers():
    def body(self, server, cohort):
        assert repr(cohort.call(self.send).pass_on("number", to=cohort.ids)) == "Sealed('number', 3 rows)"

    posted(body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda r, c: r.each("number"), "'number' is declared read='sealed': the server cannot read it"),
        (lambda r, c: r.sum("number"), "'number' is declared read='sealed'"),
        (lambda r, c: r.mean("number"), "'number' is declared read='sealed'"),
        (lambda r, c: r.pass_on("total", to=c.ids), "'total' is declared read='sum': passing it on .* read='sealed'"),
        (lambda r, c: r.pass_on("numbr", to=c.ids), "no field 'numbr'.*number"),
        (lambda r, c: r.pass_on("number", to=[1, 3]), "has 2 receivers for 3 clients that were called"),
        (lambda r, c: r.pass_on("number", to=[1, 3, 3]), "names client 3 twice"),
    ],
)
def test_what_replies_refuse(body, words):
    with refused(words):
        posted(lambda self, server, cohort: body(cohort.call(self.send), cohort))


def test_a_client_without_a_row_is_not_called():
    def body(self, server, cohort):
        rows = cohort.call(self.send).pass_on("number", to=[1, 3, 5])
        cohort.call(self.take, number=rows)

    with refused("Client 4 is called with 'number', and no row of 'number' is passed on to it"):
        posted(body)


def test_rows_of_another_round_are_refused():
    kept = []

    def body(self, server, cohort):
        kept.append(cohort.call(self.send).pass_on("number", to=cohort.ids))
        cohort.call(self.take, number=kept[0])

    with refused("came in round 1 and are passed on in round 2"):
        posted(body, rounds=2, clients_per_round=[[1, 3, 4]] * 2)


def test_a_sealed_field_has_the_runs_dtype():
    class Whole(Post):
        def send(self, me, s, m):
            return {}, {"number": me.n.long(), "seen": me.n, "total": me.n}

        def round(self, server, cohort):
            cohort.call(self.send)

    with refused("sends 'number' as torch.int64: a sealed field is torch.float32"):
        run(Whole(), rounds=1)


def test_receivers_whose_sender_did_not_answer_are_missing():
    """Clients 1, 3 and 4 were called and 3 did not answer: its receiver, 5, has no row."""
    from unalike.channel import Sums
    from unalike.contract import Field, Outcome, Replies

    sums = Sums({"x": Field("scalar", read="sealed")}, ua.FedAvg())
    sums.add(Outcome(np.array([1, 4]), {"x": torch.tensor([10.0, 40.0])}, np.array([1, 1]), np.zeros(2)))
    parcels = parcels_of(Replies(sums, torch.float32, np.array([1, 3, 4]), (0, 0)).pass_on("x", to=[6, 5, 0]))
    assert (parcels.senders.tolist(), parcels.receivers.tolist(), parcels.missing.tolist()) == ([1, 4], [6, 0], [5])
    there, found = parcels.at(np.array([5, 0, 6]), "x")
    assert there.tolist() == [False, True, True]
    assert (found.rows.tolist(), found.senders.tolist()) == ([40.0, 10.0], [4, 1])


# ---------------------------------------------------------------- without a server


def without(**members):
    return type("Mine", (Ring,), members)()


def in_round(body):
    return {"round": lambda self, server, cohort: body(self, server, cohort)}


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (in_round(lambda self, server, c: setattr(server, "x", torch.ones(2))), "assigns server.x, a tensor"),
        (in_round(lambda self, server, c: setattr(server, "x", [torch.ones(2)])), "assigns server.x, a tensor"),
        (in_round(lambda self, server, c: setattr(server, "x", {"a": np.ones(2)})), "assigns server.x, a tensor"),
        (in_round(lambda self, server, c: server.w), "is serverless: there is no server.w. .* me.start"),
        (in_round(lambda self, server, c: c.call(self.train, x=torch.ones(2))), "sends 'x', a tensor"),
        (in_round(lambda self, server, c: c.call(self.train, x=ua.PerClient(torch.ones(3)))), "sends 'x', a tensor"),
        (in_round(lambda self, server, c: c.call(self.train).sum("theta")), "is serverless, and reads replies"),
        (in_round(lambda self, server, c: c.call(self.train).mean("theta")), "is serverless, and reads replies"),
        (in_round(lambda self, server, c: c.call(self.train).each("theta")), "is serverless, and reads replies"),
        (in_round(lambda self, server, c: c.call(self.train).losses()), "is serverless, and reads replies"),
        ({"sends": {"theta": ua.Field(read="peers")}}, "sends 'theta' with read='peers': it must be 'sealed'"),
        ({"tables": {"rows": ua.Field()}}, "is serverless, and declares a table"),
        ({"personal": ua.Method.personal}, "`personal` must say which vector is a client's own"),
        ({"published": lambda self, server: {"w": torch.ones(2)}}, "sends 'w', a tensor"),
    ],
)
def test_what_a_method_without_a_server_may_not_do(members, words):
    with refused(words):
        run(without(**members), rounds=1)


def test_what_it_may_do():
    def body(self, server, cohort):
        server.pairs, server.words = [[1, 2]], {"a": "b"}
        replies = cohort.call(self.train, share=0.5)
        assert replies.count == 3 and replies.ids.tolist() == cohort.ids.tolist()

    done = run(without(**in_round(body)), rounds=1)
    assert done.server.values == {"pairs": [[1, 2]], "words": {"a": "b"}}


def test_everybody_begins_with_the_runs_first_vector_and_has_its_own():
    done = run(Ring(), rounds=0, module=model())
    start = torch.cat([p.detach().reshape(-1) for p in model().parameters()])
    assert torch.equal(done.task.start, start)
    with refused("has no global model"):
        _ = done.model
    trained = run(Ring(), rounds=1)
    x = federation().train.x[:2].numpy()
    assert not np.allclose(*(trained.predict(x, client=k).probabilities for k in (0, 1)))
    assert {"clients_accuracy_mean"} <= trained.history[0].keys()
    assert "test_accuracy" not in trained.history[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_statistics_stay_with_the_client(engine):
    done = run(Ring(), rounds=1, module=model(batch_norm=True), clients_per_round=[[0, 1, 2]], engine=engine)
    kept = [done.clients[k]["buffers"] for k in range(3)]
    assert not torch.equal(kept[0], kept[1]) and done.task.buffer_policy == "local"


def test_runs_in_one_stack_have_each_its_own_start():
    from unalike.engines.batched.lockstep import together

    def one(member, seed):
        module = torch.nn.Linear(5, 3)
        torch.nn.init.constant_(module.weight, 0.1 * seed)
        torch.nn.init.zeros_(module.bias)
        extra = {} if member is None else {"member": member}
        return run(Ring(), module=module, seed=seed, rounds=2, engine="batched", **extra)

    both = together([lambda member, seed=seed: one(member, seed) for seed in (1, 2)])
    for seed, done in zip((1, 2), both, strict=True):
        for k in range(6):
            torch.testing.assert_close(done.clients[k]["theta"], one(None, seed).clients[k]["theta"])
