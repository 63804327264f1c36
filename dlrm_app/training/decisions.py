"""Decides what follows a step: the next one, an evaluation, a save, a stop. Arithmetic on a run's configuration and past."""

from collections.abc import Sequence
from dataclasses import dataclass

from dlrm_app.config.train import EvaluationConfig, TrainConfig
from dlrm_app.runs.checkpoint.marker import Evaluation, Progress


@dataclass(frozen=True)
class AfterStep:
    """Actions after a step, in this order; none: the next step."""

    evaluate: bool = False
    save: bool = False
    stop: bool = False
    """Stop now; the run can be resumed."""


def decide_after_step(
    config: TrainConfig,
    progress: Progress,
    batches_per_epoch: int,
    *,
    stop_requested: bool,
    save_overdue: bool,
    is_last: bool,
) -> AfterStep:
    """Decides what follows the step just taken, ``is_last`` of those left in the epoch. The same on every rank.

    ``stop_requested``: by a signal to any rank, or because a save has failed. A run that stops is saved at once and
    evaluates when it is resumed. ``save_overdue``: so many minutes have passed.
    """
    stop = stop_requested and not is_last
    every_steps = config.checkpoint.every_steps
    return AfterStep(
        evaluate=not stop and is_val_due(config.evaluation, progress, batches_per_epoch),
        save=stop or save_overdue or (every_steps is not None and progress.step % every_steps == 0),
        stop=stop,
    )


def is_val_due(config: EvaluationConfig, progress: Progress, batches_per_epoch: int) -> bool:
    """True if val is to be evaluated now, in the middle of an epoch; a resumed run may have done so before."""
    is_due = is_eval_due(config, progress.step, progress.batch, batches_per_epoch)
    return is_due and not progress.has_evaluated("val")


def is_eval_due(config: EvaluationConfig, step: int, batch: int, batches_per_epoch: int) -> bool:
    """True if an evaluation is due in the middle of an epoch, ``step`` steps into the run and ``batch`` into the epoch.

    ``per_epoch`` spreads that many evenly, the last of them at the epoch's end, where every run evaluates anyway.
    """
    if not 0 < batch < batches_per_epoch:
        return False
    if config.per_epoch is not None:
        done, before = (n * config.per_epoch // batches_per_epoch for n in (batch, batch - 1))
        return done > before
    return config.every_steps is not None and step % config.every_steps == 0


def overfitting(train_loss: Sequence[float], evals: Sequence[Evaluation]) -> str | None:
    """Advice for a run whose last whole epoch lowered the loss on its own rows and the AUC on val; None if it did not.

    train_loss: the mean over each epoch done. Rows told apart by rare ids are learnt by heart when they come again, which
    most models of click logs do in their second epoch (Zhang et al. 2022, arXiv:2209.06053).
    """
    by_epoch = {each.epoch: each.comparable_auc for each in evals if each.split == "val"}
    last = len(train_loss) - 1
    if last < 1 or not {last - 1, last} <= by_epoch.keys():
        return None
    if train_loss[last] >= train_loss[last - 1] or by_epoch[last] >= by_epoch[last - 1]:
        return None
    best = max(range(last + 1), key=lambda epoch: by_epoch.get(epoch, -1.0)) + 1
    return (
        f"epoch {last + 1} lowered the loss on its own rows ({train_loss[last - 1]:.4f} to {train_loss[last]:.4f}), but AUC on "
        f"val too ({by_epoch[last - 1]:.4f} to {by_epoch[last]:.4f}): use trainer.epochs={best} or evaluation.patience=1"
    )


def has_reached_target(config: EvaluationConfig, evals: Sequence[Evaluation]) -> bool:
    """True if the latest AUC on val is evaluation.target_auc or above."""
    aucs = [each.comparable_auc for each in evals if each.split == "val"]
    return bool(aucs) and config.target_auc is not None and aucs[-1] >= config.target_auc


def reason_to_stop(config: EvaluationConfig, evals: Sequence[Evaluation]) -> str | None:
    """The reason why the run has trained enough, from all its evaluations so far; None to continue."""
    aucs = [each.comparable_auc for each in evals if each.split == "val"]
    if not aucs:
        return None
    if has_reached_target(config, evals):
        return f"AUC on val is {aucs[-1]:.5f}, evaluation.target_auc={config.target_auc} is reached"
    if config.patience is not None:
        best = max(range(len(aucs)), key=lambda index: aucs[index])
        if len(aucs) - 1 - best >= config.patience:
            return (
                f"AUC on val has not risen above {aucs[best]:.5f} in {len(aucs) - 1 - best} evaluations "
                f"(evaluation.patience={config.patience})"
            )
    return None
