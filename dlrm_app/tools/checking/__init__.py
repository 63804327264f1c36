"""dlrm-check: verifies a dataset and describes its content."""
