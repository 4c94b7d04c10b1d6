"""The beginning and the end of a local training: statistics that go on, and models that are not finite."""

from types import SimpleNamespace

import pytest
import small
import torch
from torch import nn

import unalike as ua
from unalike.client.plan import judged


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_statistics_go_on_from_the_servers(engine):
    """Full batches at next to no rate: a running mean goes a tenth of the way, 0.1 x̄ and then 0.19 x̄."""
    module = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3))
    local = ua.LocalTraining(steps=1, batch_size=None, lr=1e-30)
    done = small.run(module=module, engine=engine, rounds=2, clients_per_round=1.0, local=local, dtype="float64")
    mean = small.federation().train.x.double().mean(0)  # a client's mean counts by its samples
    torch.testing.assert_close(done.model[0].running_mean, 0.19 * mean, rtol=0, atol=1e-12)


INF, NAN = float("inf"), float("nan")


def test_a_model_that_is_not_finite_has_diverged_whatever_its_losses_were():
    """The last step may be the one: its loss was taken before it. A replaced step tells no loss."""
    theta = torch.tensor([[1.0, 2.0], [INF, 0.0], [NAN, 0.0], [1.0, 1.0]])
    loss = torch.tensor([0.5, 0.5, 0.5, NAN])
    assert judged(SimpleNamespace(step=None), theta, loss).tolist() == [0.5, INF, INF, INF]
    told = judged(SimpleNamespace(step=lambda: None), theta, torch.full((4,), NAN))
    assert told.isnan().tolist() == [True, False, False, True] and told[1:3].tolist() == [INF, INF]
