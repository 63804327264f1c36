"""The files that a run leaves: folder, events, TensorBoard's scalars, checkpoints."""
