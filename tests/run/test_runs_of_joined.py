"""Runs on joined federations: clients whose samples have different shapes, each with the network of its part."""

import pytest
import torch
from small import ENGINES, refused, run
from torch import nn

import unalike as ua
from unalike.engines import costs
from unalike.engines.sequential import Sequential
from unalike.report import Record

LOCAL = ua.LocalTraining(epochs=1, batch_size=4, lr=0.1)


def part(shape, sizes, seed, tested=True):
    draw = torch.Generator().manual_seed(seed)

    def samples(n):
        return torch.randn(n, *shape, generator=draw), torch.randint(0, 3, (n,), generator=draw)

    tests = [samples(3) for _ in sizes] if tested else None
    return ua.Federation.from_arrays([samples(n) for n in sizes], test=samples(20), client_tests=tests, classes=3)


def joined(**changes):
    return ua.Federation.joined({"rows": part((5,), (8, 4, 6), 0), "pictures": part((1, 4, 4), (5, 9), 1, **changes)})


def networks():
    torch.manual_seed(0)
    rows = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    return {"rows": rows, "pictures": nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Tanh(), nn.Linear(4, 3))}


def several(method=None, data=None, **changes):
    return run(method, module=networks(), data=data or joined(), **{"clients_per_round": 1.0, **changes})


@pytest.mark.parametrize("method", [ua.Scaffold(), ua.RFedAvgPlus(lam=0.1)], ids=lambda m: m.name)
def test_every_engine_gives_the_same(method):
    first, *others = (several(method, engine=engine) for engine in ENGINES)
    for other in others:
        for name in ("rows", "pictures"):
            torch.testing.assert_close(first.server.w[name], other.server.w[name], rtol=1e-5, atol=1e-5)
        assert first.history[-1]["clients_loss"] == pytest.approx(other.history[-1]["clients_loss"], abs=1e-5)


def test_auto_looks_at_a_parts_own_clients():
    jobs = [engine.job for engine in several(rounds=0).engine.parts.values()]
    assert [costs.workload(job, 2) for job in jobs] == [(2.0, 10 / 3), (3.0, 5.0)]  # 8, 4, 6 and 5, 9 by fours
    assert all(costs._step(costs._engine(job, Sequential), 3) > 0 for job in jobs)
    assert several(engine="auto", rounds=1).reason.startswith("batched: rows: batched: 39 parameters")


def test_each_part_is_a_federation_of_its_own_under_fedavg():
    local = ua.LocalTraining(epochs=2, batch_size=None, lr=0.1)
    both = several(local=local, dtype="float64")
    for name, own in joined().own.items():
        alone = run(module=networks()[name], data=own, local=local, dtype="float64", clients_per_round=1.0)
        torch.testing.assert_close(both.server.w[name], alone.server.w, rtol=1e-12, atol=1e-12)
        assert both.history[-1][f"test_{name}_loss"] == pytest.approx(alone.history[-1]["test_loss"], rel=1e-9)
    line = both.history[-1]
    assert line["test_loss"] == pytest.approx(0.6 * line["test_rows_loss"] + 0.4 * line["test_pictures_loss"])


def test_resumed_recorded_and_used(tmp_path):
    whole = several(ua.Scaffold(), rounds=4)
    several(ua.Scaffold(), rounds=2, folder=tmp_path / "run", callbacks=[Record()])
    again = several(ua.Scaffold(), rounds=4, folder=tmp_path / "run", resume=True, callbacks=[Record()])
    assert all(torch.equal(part, again.server.w[name]) for name, part in whole.server.w.items())
    x = joined().own["pictures"].global_test[0]
    assert (again.predict(x, client=4).classes == again.predict(x, architecture="pictures").classes).all()
    with refused(r"x has shape \[20, 1, 4, 4\]: it must be \[n, 5\]"):
        again.predict(x, client=0)


def test_a_part_without_client_tests_is_left_out_of_their_numbers():
    done = several(data=joined(tested=False))
    assert done.client_values["client"].tolist() == [0, 1, 2] and "test_pictures_loss" in done.history[-1]


def test_what_does_not_fit_is_refused():
    with refused("Joined federations need a network each, by name: {'rows', 'pictures'}"):
        run(data=joined())
    with refused("There are the networks 'rows', 'other' for the data 'rows', 'pictures': give one each"):
        run(module={"rows": networks()["rows"], "other": networks()["rows"]}, data=joined())
    with refused("leave out architecture"):
        several(architecture=["rows"] * 2 + ["pictures"] * 3)
    assert several(architecture="rows:3, pictures:2", rounds=0).architectures.name(3) == "pictures"  # as the data say
    with refused("Clients have 2 networks"):
        several(rounds=0).model  # noqa: B018
