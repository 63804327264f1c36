"""dlrm-serve: an export behind HTTP, raw rows in, probabilities out."""
