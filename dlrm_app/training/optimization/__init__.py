"""What turns gradients into steps: optimizers, their learning rates over a run, and averages of weights."""
