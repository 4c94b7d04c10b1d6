"""A run: rounds, evaluation, the cohort of each round, callbacks, and the folder it is written to."""
