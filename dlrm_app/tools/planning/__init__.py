"""dlrm-plan's job."""
