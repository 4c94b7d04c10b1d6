"""A stack of clients at once: `vmap` over their vectors, for GPUs and for tiny models on a CPU.

engine.py       how many clients stand in a stack; the way through a cohort
stack.py        one stack on its way through a client function
step.py         one training step of a stack: eager, compiled, or replayed
beside.py       compiling beside the rounds
recorded.py     calls of compiled code on a CPU without PyTorch's checks
graphs.py       static buffers of compiled steps, and CUDA graphs over them
captured.py     a whole exchange as one CUDA graph
lockstep.py     several runs as one stack
"""

from unalike.engines.batched.engine import Batched

__all__ = ["Batched"]
