"""dlrm-bench: measures the time of a run by part, or this machine for a topology file."""
