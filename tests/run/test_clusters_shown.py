"""Which cluster each client is in, in lines and in the record; agreement with planted groups."""

import numpy as np
import pytest
import torch
from small import ENGINES, federation, run

import unalike as ua
from unalike.contract import Field
from unalike.metrics.clusters import adjusted_rand
from unalike.report import Record
from unalike.report.read import find, read

GROUPS = np.array([0, 0, 1, 1, 2, 2])


def data():
    return federation().replace(planted={"strength": np.linspace(0, 1, 6), "permute": GROUPS})


class Told(ua.Method):
    """The server knows each client's cluster."""

    def setup(self, server, everyone):
        server.cluster = torch.tensor([0, 0, 1, 1, 1, -1])


class Hidden(ua.Method):
    """Clients keep their own: large ones are in cluster 1."""

    keeps = {"cluster": Field("scalar")}

    def done(self, me, s, m, theta):
        return {"cluster": (me.n > 7).to(me.n)}, {"delta": theta - m.w}


def test_adjusted_rand_by_hand():
    # pairs together in both: 1 + 3 = 4 of 15; found 1 + 6, planted 3 + 3: chance 7·6/15, most 6.5
    assert adjusted_rand([0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1]) == pytest.approx((4 - 2.8) / (6.5 - 2.8))
    assert adjusted_rand([5, 5, 2], [1, 1, 0]) == 1
    assert adjusted_rand([0, 0, 0, 0], [0, 1, 2, 3]) == 0


def test_a_server_that_knows():
    line = run(Told(), data=data(), rounds=1).history[-1]
    assert line["clusters"] == 2  # the client of cluster -1 has none yet
    assert line["cluster_ari"] == pytest.approx(adjusted_rand([0, 0, 1, 1, 1], GROUPS[:5]))
    assert "cluster_ari" not in run(Told(), rounds=1).history[-1]  # nothing was planted
    assert "clusters" not in run(rounds=1).history[-1]


@pytest.mark.parametrize("engine", ENGINES)
def test_clients_that_keep_it_for_themselves(engine):
    made = run(Hidden(), data=data(), engine=engine, clients_per_round=[[0, 1, 2], [3]], rounds=2)
    assert made.clusters.tolist() == [1, 0, 1, 1, -1, -1]
    assert made.history[-1]["cluster_ari"] == pytest.approx(adjusted_rand([1, 0, 1, 1], GROUPS[:4]))


def test_the_report_shows_who_is_with_whom(tmp_path):
    given = {"data": data(), "clients_per_round": [[0, 1, 2], [3]], "folder": tmp_path / "run"}
    run(Hidden(), rounds=2, callbacks=[Record()], **given)
    page = read(find([tmp_path]))
    found = page["runs"][0]["clusters"]
    assert found["rounds"] == [1, 2]
    assert found["of"] == [[1, 0, 1, -1, -1, -1], [1, 0, 1, 1, -1, -1]]
    assert [(part["cluster"], part["clients"]) for part in found["parts"]] == [(-1, 2), (0, 1), (1, 3)]
    assert page["clients"][0]["planted"] == GROUPS.tolist()
    assert page["runs"][0]["score"] == "accuracy"
    assert found["ari"] == pytest.approx(adjusted_rand([1, 0, 1, 1], GROUPS[:4]), rel=1e-4)
