"""The files that a run leaves: folder, events, loggers, checkpoints."""
