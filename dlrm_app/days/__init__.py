"""dlrm-days: a log that grows by days. Each day is encoded, judged by yesterday's model, learnt and published."""
