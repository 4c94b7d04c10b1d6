"""The server's draws: functions of (seed, round, purpose)."""

import numpy as np
import pytest
import torch
from small import assert_same, federation, refused, run

import unalike as ua
from unalike.contract import ServerDraws


class Drawing(ua.FedAvg):
    """Writes down what it draws."""

    def draws(self, server):
        return [
            server.uniform("u", (2,)).tolist(),
            server.normal("n", (2, 1)).tolist(),
            server.integers("i", (3,), 1000).tolist(),
            [server.coin(f"c{k}", 0.5) for k in range(8)],
            server.shuffled("s", 9).tolist(),
            server.draw("d", 5).tolist(),
        ]

    def setup(self, server, everyone):
        server.drawn = [self.draws(server)]

    def round(self, server, cohort):
        super().round(server, cohort)
        server.drawn = [*server.drawn, self.draws(server)]


def data():
    return federation().with_public(torch.randn(20, 5), torch.arange(20) % 3)


def test_draws_differ_by_round_and_seed_and_come_again_when_resumed(tmp_path):
    whole = run(Drawing(), data=data(), rounds=3)
    run(Drawing(), data=data(), rounds=1, folder=tmp_path / "run")
    assert_same(whole, run(Drawing(), data=data(), rounds=3, folder=tmp_path / "run", resume=True))
    drawn = whole.server.drawn
    assert len(drawn) == 4
    other = run(Drawing(), data=data(), rounds=1, seed=1).server.drawn
    for kind in range(6):
        assert len({str(part[kind]) for part in (*drawn, *other)}) == 6, kind


def made(seed=3, round=2, labels=None, rows=60, dtype=torch.float32):
    public = torch.zeros(rows, 1), labels
    return ServerDraws(seed, torch.zeros(1, dtype=dtype), public, round)


def test_numbers_are_of_the_runs_dtype_and_in_their_range():
    draws = made(dtype=torch.float64)
    u, z, i = draws.uniform("a", (4000,)), draws.normal("a", (4000,)), draws.integers("a", (4000,), 7)
    assert (u.dtype, z.dtype, i.dtype) == (torch.float64, torch.float64, torch.int64)
    assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 0.02
    assert abs(z.mean()) < 0.06 and abs(z.std() - 1) < 0.05
    assert i.unique().tolist() == list(range(7))
    torch.testing.assert_close(made().uniform("a", (4000,)).double(), u)  # the same numbers in float32


def test_coins_fall_as_often_as_they_should():
    draws = made()
    assert not any(draws.coin(f"{k}", 0.0) for k in range(50)) and all(draws.coin(f"{k}", 1.0) for k in range(50))
    assert 60 < sum(draws.coin(f"{k}", 0.25) for k in range(400)) < 140
    assert type(draws.coin("x", 0.5)) is bool


def test_purposes_are_apart():
    draws = made()
    assert draws.shuffled("a", 20).tolist() != draws.shuffled("b", 20).tolist()
    assert sorted(draws.shuffled("a", 20).tolist()) == list(range(20))
    assert not torch.equal(draws.uniform("a", (3,)), draws.uniform("b", (3,)))


def test_rows_of_the_public_set():
    rows = made().draw("d", 25)
    assert rows.dtype == torch.int64 and rows.tolist() == sorted(set(rows.tolist())) and len(rows) == 25
    assert rows.min() >= 0 and rows.max() < 60
    assert made().draw("d", 60).tolist() == list(range(60))


def test_rows_by_class():
    """Of 30, 20 and 10 rows of three classes 12 are 6, 4 and 2; of 13 the one more goes where 6.5,
    4.33 and 2.17 leave most."""
    y = torch.tensor([0] * 30 + [1] * 20 + [2] * 10)[torch.randperm(60)]
    assert np.bincount(y[made(labels=y).draw("d", 12, stratify=True)]).tolist() == [6, 4, 2]
    assert np.bincount(y[made(labels=y).draw("d", 13, stratify=True)]).tolist() == [7, 4, 2]
    assert made(labels=y).draw("d", 60, stratify=True).tolist() == list(range(60))


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda d: d.coin("c", 1.1), r"coin\('c'\) has p=1.1: it must be in \[0, 1\]"),
        (lambda d: d.integers("i", (2,), 0), r"integers\('i'\) has high=0"),
        (lambda d: d.draw("d", 61), "asked for 61 of 60 public rows"),
        (lambda d: d.draw("d", 5, stratify=True), "needs classes: the public set has none"),
        (lambda d: ServerDraws(0, torch.zeros(1)).draw("d", 5), "needs a public set"),
    ],
)
def test_mistakes(ask, words):
    with refused(words):
        ask(made())


def test_their_names_are_the_servers_own():
    with refused("server.draw is the server's own"):
        run(type("Bad", (ua.FedAvg,), {"setup": lambda self, server, e: setattr(server, "draw", 1)})(), rounds=0)
