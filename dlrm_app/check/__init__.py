"""dlrm-check's job: is a dataset whole, and what is in it."""
