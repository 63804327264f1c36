"""dlrm-days: a log that grows day by day. Each day is encoded, scored, trained on and published."""
