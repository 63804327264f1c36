"""When a run evaluates, and when its evaluations end it: arithmetic on its configuration and its past."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dlrm_app.config.train import EvaluationConfig


def is_eval_due(config: EvaluationConfig, step: int, batch: int, batches_per_epoch: int) -> bool:
    """Whether to evaluate in the middle of an epoch, ``step`` steps into the run and ``batch`` into the epoch.

    ``per_epoch`` spreads that many evenly, the last of them at the epoch's end, where every run evaluates anyway.
    """
    if not 0 < batch < batches_per_epoch:
        return False
    if config.per_epoch is not None:
        done, before = (n * config.per_epoch // batches_per_epoch for n in (batch, batch - 1))
        return done > before
    return config.every_steps is not None and step % config.every_steps == 0


def reason_to_stop(config: EvaluationConfig, evals: Sequence[Mapping[str, Any]]) -> str | None:
    """Why the run has trained enough, from all its evaluations so far; None to go on."""
    aucs = [-1.0 if math.isnan(event["auc"]) else event["auc"] for event in evals if event["split"] == "val"]
    if not aucs:
        return None
    if config.target_auc is not None and aucs[-1] >= config.target_auc:
        return f"AUC on val is {aucs[-1]:.5f}, evaluation.target_auc={config.target_auc} is reached"
    if config.patience is not None:
        best = max(range(len(aucs)), key=lambda place: aucs[place])
        if len(aucs) - 1 - best >= config.patience:
            return (
                f"AUC on val has not risen above {aucs[best]:.5f} in {len(aucs) - 1 - best} evaluations "
                f"(evaluation.patience={config.patience})"
            )
    return None
