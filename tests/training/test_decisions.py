"""What follows a step: when runs evaluate, save and stop."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.config.train import CheckpointConfig, EvaluationConfig, TrainConfig
from dlrm_app.runs.checkpoint.marker import Evaluation, Progress
from dlrm_app.training.decisions import (
    AfterStep,
    decide_after_step,
    is_eval_due,
    overfitting,
    reason_to_stop,
)


@given(st.integers(1, 300), st.integers(1, 40))
def test_so_many_an_epoch_are_evenly_spread(num_batches: int, per_epoch: int) -> None:
    """With the one at the epoch's end, that many (or one a step, if there are fewer steps), equally far apart."""
    config = EvaluationConfig(per_epoch=per_epoch)
    due = [batch for batch in range(1, num_batches + 1) if is_eval_due(config, 10_000, batch, num_batches)]
    ends = [0, *due, num_batches]
    assert len(due) + 1 == min(per_epoch, num_batches)
    gaps = {after - before for before, after in pairwise(ends)}
    assert max(gaps) - min(gaps) <= 1


def test_every_so_many_steps_are_counted_over_the_whole_run() -> None:
    """Ten batches an epoch: the steps between the epochs' ends, where a run evaluates anyway."""
    config = EvaluationConfig(every_steps=5)
    due = [step for step in range(1, 31) if is_eval_due(config, step, (step - 1) % 10 + 1, 10)]
    assert due == [5, 15, 25]
    assert not any(is_eval_due(EvaluationConfig(), step, step, 31) for step in range(31))


def decide(
    progress: Progress, *, stop: bool = False, overdue: bool = False, is_last: bool = False
) -> AfterStep:
    """After a step of a run of ten batches an epoch that evaluates every 2 steps and saves every 3."""
    config = TrainConfig(
        evaluation=EvaluationConfig(every_steps=2), checkpoint=CheckpointConfig(every_steps=3)
    )
    return decide_after_step(config, progress, 10, stop_requested=stop, save_overdue=overdue, is_last=is_last)


@given(st.integers(1, 40), st.booleans(), st.booleans())
def test_a_run_that_stops_is_saved_and_does_not_evaluate(
    step: int, overdue: bool, has_evaluated: bool
) -> None:
    """Neither the rhythm nor the clock changes that; what was due is done when the run goes on."""
    evals = [Evaluation("val", 0, step, {"auc": 0.7})] if has_evaluated else []
    progress = Progress(step=step, batch=(step - 1) % 10 + 1, evals=evals)
    assert decide(progress, stop=True, overdue=overdue) == AfterStep(save=True, stop=True)


@given(st.integers(1, 40), st.booleans())
def test_after_an_epochs_last_step_no_run_stops(step: int, overdue: bool) -> None:
    progress = Progress(step=step, batch=(step - 1) % 10 + 1)
    stopped = decide(progress, stop=True, overdue=overdue, is_last=True)
    assert stopped == decide(progress, overdue=overdue, is_last=True)
    assert not stopped.stop


def test_both_rhythms_are_kept_side_by_side() -> None:
    done = {step: decide(Progress(step=step, batch=(step - 1) % 10 + 1)) for step in range(1, 13)}
    assert [step for step, after in done.items() if after.evaluate] == [2, 4, 6, 8, 12]
    assert [step for step, after in done.items() if after.save] == [3, 6, 9, 12]
    assert decide(Progress(step=1, batch=1), overdue=True) == AfterStep(save=True)
    assert decide(Progress(step=1, batch=1)) == AfterStep()


def test_an_evaluation_that_was_made_already_is_not_made_again() -> None:
    """As of a checkpoint that was saved after it."""
    progress = Progress(step=4, batch=4)
    assert decide(progress).evaluate
    progress.evals = [Evaluation("test", 0, 4, {}), Evaluation("val", 0, 2, {})]
    assert decide(progress).evaluate
    progress.evals.append(Evaluation("val", 0, 4, {}))
    assert not decide(progress).evaluate


def val(*aucs: float) -> list[Evaluation]:
    pairs = [("val", auc) for auc in aucs], [("test", 0.99) for _ in aucs]
    return [Evaluation(split, 0, 0, {"auc": auc}) for pair in zip(*pairs, strict=True) for split, auc in pair]


def test_a_target_ends_the_run_at_the_evaluation_that_reaches_it() -> None:
    config = EvaluationConfig(target_auc=0.8)
    assert reason_to_stop(config, val(0.7, 0.79)) is None
    assert "evaluation.target_auc=0.8" in str(reason_to_stop(config, val(0.7, 0.8)))
    assert reason_to_stop(config, []) is None


@pytest.mark.parametrize(
    ("aucs", "ends"),
    [
        ((0.7, 0.71, 0.72), False),
        ((0.7, 0.69), False),
        ((0.7, 0.69, 0.7), True),  # as good as the best is not better
        ((0.7, 0.69, 0.71, 0.70), False),
        ((0.7, 0.69, 0.71, 0.70, 0.70), True),
    ],
)
def test_patience_counts_evaluations_since_the_best(aucs: tuple[float, ...], ends: bool) -> None:
    reason = reason_to_stop(EvaluationConfig(patience=2), val(*aucs))
    assert (reason is not None) == ends
    if reason:
        assert "evaluation.patience=2" in reason


def test_two_rhythms_at_once_and_impossible_values_are_refused() -> None:
    config = EvaluationConfig(batch_size=1, every_steps=5, per_epoch=0, target_auc=80.2, patience=0)
    found = "\n".join(map(str, config.problems("evaluation.")))
    for words in (
        "both say when",
        "per_epoch must be at least 1",
        "between 0 and 1, got 80.2",
        "patience must be",
    ):
        assert words in found


def val_aucs(*aucs: float) -> list[Evaluation]:
    """One evaluation at the end of each epoch."""
    return [Evaluation("val", epoch, 10 * (epoch + 1), {"auc": auc}) for epoch, auc in enumerate(aucs)]


def test_overfitting_is_noticed_and_the_key_named() -> None:
    advice = overfitting([0.50, 0.45, 0.40], val_aucs(0.78, 0.77, 0.76))
    assert advice is not None
    for words in ("(0.4500 to 0.4000)", "(0.7700 to 0.7600)", "trainer.epochs=1 or"):
        assert words in advice


@pytest.mark.parametrize(
    ("train_loss", "aucs"),
    [
        ([0.50], [0.78]),
        ([0.50, 0.45], [0.77, 0.78]),  # learns
        ([0.50, 0.55], [0.78, 0.77]),  # both worse: a rate too high, say
        ([0.50, 0.45], []),  # no val
        ([0.50, 0.45], [0.78]),  # the last epoch was not evaluated
    ],
)
def test_what_is_no_overfitting(train_loss: list[float], aucs: list[float]) -> None:
    assert overfitting(train_loss, val_aucs(*aucs)) is None
