"""When runs evaluate and when that ends them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.config.train import EvaluationConfig
from dlrm_app.training.eval_schedule import is_eval_due, reason_to_stop


@given(st.integers(1, 300), st.integers(1, 40))
def test_so_many_an_epoch_are_evenly_spread(num_batches: int, per_epoch: int) -> None:
    """With the one at the epoch's end, that many (or one a step, if there are fewer steps), equally far apart."""
    config = EvaluationConfig(per_epoch=per_epoch)
    due = [batch for batch in range(1, num_batches + 1) if is_eval_due(config, 10_000, batch, num_batches)]
    places = [0, *due, num_batches]
    assert len(due) + 1 == min(per_epoch, num_batches)
    gaps = {after - before for before, after in pairwise(places)}
    assert max(gaps) - min(gaps) <= 1


def test_every_so_many_steps_are_counted_over_the_whole_run() -> None:
    """Ten batches an epoch: the steps between the epochs' ends, where a run evaluates anyway."""
    config = EvaluationConfig(every_steps=5)
    due = [step for step in range(1, 31) if is_eval_due(config, step, (step - 1) % 10 + 1, 10)]
    assert due == [5, 15, 25]
    assert not any(is_eval_due(EvaluationConfig(), step, step, 31) for step in range(31))


def val(*aucs: float) -> list[dict[str, object]]:
    events = [[{"split": "val", "auc": auc}, {"split": "test", "auc": 0.99}] for auc in aucs]
    return [event for pair in events for event in pair]


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
    found = "\n".join(config.problems())
    for words in ("both say when", "per_epoch must be at least 1", "[0, 1], got 80.2", "patience must be"):
        assert words in found
