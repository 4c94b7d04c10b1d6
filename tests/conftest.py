import torch

# The tests' models are tiny, and xdist already keeps the cores busy.
torch.set_num_threads(1)
