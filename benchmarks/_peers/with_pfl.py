"""pfl-research: SimulatedBackend with FederatedAveraging, weighted by samples.

pfl's data sets do not shuffle; a client's samples are put into a new order once a round here, not once an epoch.
"""

import itertools

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional as F
from torch_work import module_of, weights_of
from work import begin

work, clock = begin()


class Timed(TrainingProcessCallback):
    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        clock.done(lambda: weights_of(module))
        if clock.more:
            torch.set_num_threads(clock.next())
        return False, Metrics()


def loss(x, y):
    return F.cross_entropy(module(x), y)


def metrics(x, y):
    with torch.no_grad():
        return {"loss": Weighted(F.cross_entropy(module(x), y, reduction="sum").item(), len(y))}


def client(c):
    rows = slice(work.offsets[c], work.offsets[c + 1])
    if not work.shuffle:
        return Dataset(raw_data=(x[rows], y[rows]), user_id=str(c))
    order = torch.randperm(int(work.offsets[c + 1] - work.offsets[c]))
    return Dataset(raw_data=(x[rows][order], y[rows][order]), user_id=str(c))


module, x, y = module_of(work), torch.from_numpy(work.x), torch.from_numpy(work.y)
module.loss, module.metrics = loss, metrics
torch.set_num_threads(clock.start())
turns = itertools.chain.from_iterable(work.cohorts.tolist())
data = FederatedDataset(client, lambda: next(turns))
FederatedAveraging().run(
    NNAlgorithmParams(
        central_num_iterations=work.rounds,
        evaluation_frequency=work.rounds + 1,  # it evaluates in the first round in any case
        train_cohort_size=work.cohorts.shape[1],
        val_cohort_size=0,
    ),
    SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
    PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
    NNTrainHyperParams(local_num_epochs=work.epochs, local_learning_rate=work.lr, local_batch_size=work.batch),
    NNEvalHyperParams(local_batch_size=None),
    callbacks=[Timed()],
)
