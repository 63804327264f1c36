"""The training loop and what surrounds it: optimizers, evaluation, metrics, the run folder."""
