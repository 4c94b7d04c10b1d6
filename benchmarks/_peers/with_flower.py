"""Flower's simulation on Ray: its FedAvg strategy, a ClientApp as in its PyTorch quickstart, one core a client."""

import time

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train_client(message, context):
    from torch_work import loaded, train  # here: a worker of Ray gets this function, not this file

    config = message.content["config"]
    work, module = loaded(config["folder"])
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = map(torch.from_numpy, work.client(config["client"]))
    train(module, x, y, work)
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}), reply_to=message)


class Timed(FedAvg):
    """FedAvg that sends each round's clients the data they are to train on, so that all frameworks train the same."""

    def __init__(self, work, clock):
        super().__init__(fraction_evaluate=0.0)
        self.work, self.clock = work, clock

    def configure_train(self, server_round, arrays, config, grid):
        self.clock.next()
        nodes, cohort = list(grid.get_node_ids()), self.work.cohorts[server_round - 1].tolist()
        return [
            Message(
                RecordDict({"arrays": arrays, "config": ConfigRecord({"client": c, "folder": str(self.work.folder)})}),
                dst_node_id=nodes[c],
                message_type=MessageType.TRAIN,
            )
            for c in cohort
        ]

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.clock.done(lambda: {k: v.numpy() for k, v in arrays.to_torch_state_dict().items()})
        return arrays, metrics


if __name__ == "__main__":
    from work import begin

    work, clock = begin()
    cores = clock.start()

    @server_app.main()
    def main(grid, context):
        initial = ArrayRecord({name: Array(np.asarray(value)) for name, value in work.initial.items()})
        while len(list(grid.get_node_ids())) < work.clients:
            time.sleep(0.01)
        Timed(work, clock).start(grid=grid, initial_arrays=initial, num_rounds=work.rounds)

    run_simulation(
        server_app,
        client_app,
        num_supernodes=work.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": cores, "include_dashboard": False},
        },
    )
