"""What becomes of each embedding table in training."""
