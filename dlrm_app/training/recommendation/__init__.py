"""dlrm-train recommend=true: the recipe for a dataset and this machine, with reasons, and the command to type."""
