"""Neural networks as the engines need them: the task, its flat vector, layers that stack, fast kernels, numerics."""
