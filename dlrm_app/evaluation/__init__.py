"""Evaluation of predictions: metrics over all ranks, their confidence intervals, curves, and dlrm-evaluate's job."""
