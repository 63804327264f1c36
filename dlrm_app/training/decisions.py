"""When a run evaluates in the middle of an epoch, and when it has trained enough. Arithmetic on its configuration and past."""

from collections.abc import Sequence

from dlrm_app.config.train import EvaluationConfig
from dlrm_app.runs.checkpoint.marker import Evaluation, Progress


def is_val_due(config: EvaluationConfig, progress: Progress, batches_per_epoch: int) -> bool:
    """True if val is to be evaluated now, in the middle of an epoch; a resumed run may have done so before.

    ``per_epoch`` spreads that many evenly, the last of them at the epoch's end, where every run evaluates anyway.
    """
    if not 0 < progress.batch < batches_per_epoch or progress.has_evaluated("val"):
        return False
    if config.per_epoch is not None:
        before, done = ((progress.batch - n) * config.per_epoch // batches_per_epoch for n in (1, 0))
        return done > before
    return config.every_steps is not None and progress.step % config.every_steps == 0


def reason_to_stop(config: EvaluationConfig, evals: Sequence[Evaluation]) -> str | None:
    """The reason why the run has trained enough, from all its evaluations so far; None to continue."""
    aucs = [each.comparable_auc for each in evals if each.split == "val"]
    if not aucs:
        return None
    if config.target_auc is not None and aucs[-1] >= config.target_auc:
        return f"AUC on val is {aucs[-1]:.5f}, evaluation.target_auc={config.target_auc} is reached"
    best = max(aucs)
    since = len(aucs) - 1 - aucs.index(best)
    if config.patience is not None and since >= config.patience:
        return f"AUC on val has not risen above {best:.5f} in {since} evaluations (evaluation.patience={config.patience})"
    return None
