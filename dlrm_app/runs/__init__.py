"""The files that a run writes: its folder, events, TensorBoard scalars, checkpoints."""
