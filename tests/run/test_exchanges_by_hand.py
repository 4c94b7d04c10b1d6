"""What a round's exchanges add up to: batch orders across exchanges, sums of replies."""

import dataclasses as dc
import itertools

import pytest
import small
import torch

import unalike as ua


@dc.dataclass(frozen=True)
class Twice(ua.Method):
    """Train at a rate of next to nothing, then in earnest: in one exchange or in two."""

    exchanges: int = 2

    keeps = {"seen": ua.Field("scalar")}
    sends = {"delta": ua.Field(), "nothing": ua.Field("scalar")}

    def idle(self, me, s, m):
        return me.train(m.w, lr=1e-30).then(self.idled)

    def idled(self, me, s, m, theta):
        return {"seen": s.seen + 1}, {"nothing": 0.0 * theta.sum()}

    def client(self, me, s, m):
        return me.train(m.w).then(self.done)

    def both(self, me, s, m):
        return me.train(m.w, lr=1e-30).then(self.second)

    def second(self, me, s, m, theta):
        return me.train(m.w).then(self.done)

    def round(self, server, cohort):
        if self.exchanges == 2:
            cohort.call(self.idle, w=server.w)
        function = self.client if self.exchanges == 2 else self.both
        server.w = server.w + cohort.call(function, w=server.w).mean("delta")


@pytest.mark.parametrize("engine", small.ENGINES)
def test_every_training_of_a_round_has_a_batch_order_of_its_own(engine):
    """The second training of a round draws another order than the first would, and it is the same order whether it
    comes in the exchange of the first or in the next."""
    given = {"engine": engine, "rounds": 1, "clients_per_round": 6, "dtype": "float64"}
    apart, together, once = (small.run(m, **given).server.w for m in (Twice(2), Twice(1), ua.FedAvg()))
    torch.testing.assert_close(apart, together, rtol=0, atol=1e-12)
    assert (apart - once).abs().max() > 1e-6


ROWS = torch.tensor(list(itertools.permutations([1e8, 1.0, -1e8]))).T  # every column sums to 1, in another order


@dc.dataclass(frozen=True)
class Echo(ua.Method):
    """Clients send back the rows they were given."""

    sends = {"row": ua.Field((6,), weight="one")}

    def client(self, me, s, m):
        return {}, {"row": m.row}

    def round(self, server, cohort):
        replies = cohort.call(self.client, row=ua.PerClient(ROWS))
        server.sum, server.mean = replies.sum("row"), replies.mean("row")


@pytest.mark.parametrize("engine", small.ENGINES)
def test_sums_of_replies_are_float64(engine):
    """In float32, 1e8 + 1 is 1e8: whatever the order of adding, one of the columns would sum to 0."""
    done = small.run(Echo(), engine=engine, rounds=1, clients_per_round=3, dtype="float32")
    assert done.server.sum.tolist() == [1.0] * 6
    assert done.server.mean.tolist() == pytest.approx([1 / 3] * 6, rel=1e-6)
