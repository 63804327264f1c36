"""Evaluation of predictions: metrics over all ranks, their intervals, curves, and dlrm-evaluate's job."""
