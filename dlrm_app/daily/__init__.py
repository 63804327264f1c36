"""dlrm-days: a log that grows day by day. Each day is encoded, scored by yesterday's model, trained on and published."""
