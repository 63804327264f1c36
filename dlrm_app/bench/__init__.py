"""dlrm-bench: where the time of a run goes, each part beside the least that it could take on this machine."""
