"""Scored rows from tensors, with or without weights."""

import torch

from dlrm_app.evaluation.scored_rows import ScoredRows


def scored(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None = None) -> ScoredRows:
    rows = ScoredRows.unweighted(logits, labels > 0.5)
    return rows if weights is None else ScoredRows(rows.logits, rows.labels, weights)
