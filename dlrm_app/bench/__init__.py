"""dlrm-bench: where the time of a run goes, and this machine as a topology file."""
