"""FedAvg as one would write it by hand in PyTorch: the bare loop that everything is measured against."""

import torch
from torch_work import module_of, train, weights_of
from work import begin

work, clock = begin()
module, x, y = module_of(work), torch.from_numpy(work.x), torch.from_numpy(work.y)
clock.start()
while clock.more:
    torch.set_num_threads(clock.next())
    start = {name: value.clone() for name, value in module.state_dict().items()}
    total, mean = 0, {name: torch.zeros_like(value) for name, value in start.items()}
    for c in work.cohorts[clock.round]:
        module.load_state_dict(start)
        rows = slice(work.offsets[c], work.offsets[c + 1])
        train(module, x[rows], y[rows], work)
        n = len(y[rows])
        total += n
        for name, value in module.state_dict().items():
            mean[name] += n * value
    module.load_state_dict({name: value / total for name, value in mean.items()})
    clock.done(lambda: weights_of(module))
