"""unalike, engine "auto" unless the work says another."""

import torch
from torch_work import module_of
from work import begin

import unalike as ua

work, clock = begin()


class Timed(ua.Callback):
    def on_round(self, run, line):
        clock.done(lambda: {name: value.detach().numpy() for name, value in run.model.named_parameters()})
        if clock.more:
            clock.next()


module, x, y = module_of(work), torch.from_numpy(work.x), torch.from_numpy(work.y)
clock.start()
ua.simulate(
    module, ua.Federation(ua.data.Columns(x, y, work.offsets)), ua.FedAvg(), rounds=work.rounds,
    clients_per_round=[cohort.tolist() for cohort in work.cohorts], device="cpu", **work.options,
    local=ua.LocalTraining(epochs=work.epochs, batch_size=work.batch, lr=work.lr, shuffle=work.shuffle),
    callbacks=[Timed()],
)  # fmt: skip
