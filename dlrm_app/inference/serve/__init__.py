"""dlrm-serve: serves an export over HTTP; raw rows in, probabilities out."""
