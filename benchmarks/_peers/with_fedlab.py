"""FedLab's StandalonePipeline with its FedAvg handler and trainer.

Its mean gives every client the same weight whatever its number of samples; with clients of one size that is FedAvg's.
It imports torchvision, for data sets that are not used here and in a build that fits not every PyTorch: where it does
not load, an empty stand-in takes its place.
"""

import sys
from unittest.mock import MagicMock

import torch

try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError):
    parts = ("", ".transforms", ".datasets", ".datasets.utils", ".datasets.folder", ".models")
    sys.modules.update({f"torchvision{part}": MagicMock() for part in parts})

from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.core.standalone import StandalonePipeline
from torch.utils.data import DataLoader, TensorDataset
from torch_work import module_of, weights_of
from work import begin

work, clock = begin()


class Silent:
    """Instead of its logger, which writes to the screen."""

    def info(self, text):
        pass


class Clients:
    """Loaders are made when a client's turn comes, as in the data sets that come with FedLab."""

    def get_dataloader(self, client, batch_size):
        rows = slice(work.offsets[client], work.offsets[client + 1])
        return DataLoader(TensorDataset(x[rows], y[rows]), batch_size=batch_size, shuffle=work.shuffle)


class Handler(FedAvgServerHandler):
    def sample_clients(self):
        return work.cohorts[self.round].tolist()


class Pipeline(StandalonePipeline):
    def evaluate(self):  # called after every round
        clock.done(lambda: weights_of(self.handler.model))
        if clock.more:
            torch.set_num_threads(clock.next())


x, y = torch.from_numpy(work.x), torch.from_numpy(work.y)
torch.set_num_threads(clock.start())
handler = Handler(module_of(work), work.rounds, work.cohorts.shape[1] / work.clients, logger=Silent())
trainer = FedAvgSerialClientTrainer(module_of(work), work.clients, logger=Silent())
trainer.setup_dataset(Clients())
trainer.setup_optim(work.epochs, work.batch, work.lr)
Pipeline(handler, trainer).main()
