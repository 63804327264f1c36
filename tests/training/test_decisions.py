"""When runs evaluate and when they have trained enough."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.config.train import EvaluationConfig
from dlrm_app.runs.checkpoint.evaluation import Evaluation
from dlrm_app.runs.checkpoint.progress import Progress
from dlrm_app.training.loop import is_val_due
from dlrm_app.training.state import reason_to_stop


@given(st.integers(1, 300), st.integers(1, 40))
def test_evaluations_within_an_epoch_are_evenly_spread(num_batches: int, per_epoch: int) -> None:
    """With the one at the epoch's end, that many (or one a step, if there are fewer steps), equally far apart."""
    config = EvaluationConfig(per_epoch=per_epoch)
    due = [
        batch for batch in range(1, num_batches + 1) if is_val_due(config, Progress(batch=batch), num_batches)
    ]
    ends = [0, *due, num_batches]
    assert len(due) + 1 == min(per_epoch, num_batches)
    gaps = {after - before for before, after in pairwise(ends)}
    assert max(gaps) - min(gaps) <= 1


def test_every_so_many_steps_are_counted_over_the_whole_run() -> None:
    """Ten batches an epoch: the steps between the epochs' ends, where a run evaluates anyway."""

    def at(step: int) -> Progress:
        return Progress(step=step, batch=(step - 1) % 10 + 1)

    config = EvaluationConfig(every_steps=5)
    due = [step for step in range(1, 31) if is_val_due(config, at(step), 10)]
    assert due == [5, 15, 25]
    assert not any(is_val_due(EvaluationConfig(), at(step), 31) for step in range(31))


def test_an_evaluation_that_was_made_already_is_not_made_again() -> None:
    """As of a checkpoint that was saved after it."""
    config, progress = EvaluationConfig(every_steps=2), Progress(step=4, batch=4)
    progress.evals = [Evaluation("test", 0, 4, {}), Evaluation("val", 0, 2, {})]
    assert is_val_due(config, progress, 10)
    progress.evals.append(Evaluation("val", 0, 4, {}))
    assert not is_val_due(config, progress, 10)


def val(*aucs: float) -> list[Evaluation]:
    pairs = [("val", auc) for auc in aucs], [("test", 0.99) for _ in aucs]
    return [Evaluation(split, 0, 0, {"auc": auc}) for pair in zip(*pairs, strict=True) for split, auc in pair]


def test_a_target_ends_the_run_at_the_evaluation_that_reaches_it() -> None:
    config = EvaluationConfig(target_auc=0.8, best="auc")
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
    reason = reason_to_stop(EvaluationConfig(patience=2, best="auc"), val(*aucs))
    assert (reason is not None) == ends
    if reason:
        assert "evaluation.patience=2" in reason


@pytest.mark.parametrize(("losses", "ends"), [((0.7, 0.71, 0.69), False), ((0.7, 0.71, 0.7), True)])
def test_patience_follows_the_metric_that_decides(losses: tuple[float, ...], ends: bool) -> None:
    """The lowest log loss is the best, whatever the AUC does."""
    evals = [
        Evaluation("val", 0, 0, {"auc": 0.5 - 0.1 * step, "logloss": loss})
        for step, loss in enumerate(losses)
    ]
    reason = reason_to_stop(EvaluationConfig(patience=2, best="logloss"), evals)
    assert (reason is not None) == ends
    assert not ends or "log loss on val has not fallen below 0.70000" in str(reason)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"best": "ndcg@10"}, "is measured within groups of rows, and evaluation.group_by names none"),
        ({"best": "ndcg@7", "group_by": "user"}, "because evaluation.ranking holds 5, 10"),
        ({"best": "mrr@10", "group_by": "user"}, "must be one of auc, pr_auc, logloss"),
        ({"best": "recall"}, "must be one of auc, pr_auc, logloss"),
        ({"ranking": [5, 5]}, "evaluation.ranking names 5 twice"),
        ({"ranking": [0]}, "at least 1"),
    ],
)
def test_a_metric_that_is_not_measured_cannot_decide(settings: dict[str, Any], words: str) -> None:
    found = "\n".join(
        map(str, EvaluationConfig(**{"ranking": [5, 10], "best": "auc", **settings}).problems("evaluation."))
    )
    assert words in found


def test_evaluations_are_ordered_by_the_metric_that_decides() -> None:
    """The log loss decides between those without the metric, and all of these come last."""
    first, second, third = (
        Evaluation("val", 0, step, metrics)
        for step, metrics in enumerate(
            [
                {"auc": 0.8, "logloss": 0.3, "ndcg@10": 0.5},
                {"auc": 0.7, "logloss": 0.2, "ndcg@10": 0.6},
                {"auc": math.nan, "logloss": 0.1},
            ]
        )
    )
    for metric, best in (("auc", first), ("logloss", third), ("ndcg@10", second), ("pr_auc", third)):
        assert Progress(evals=[first, second, third], best=metric).best_val() is best


def labelled(weights: list[float], *aucs: float, loss: float = 0.5) -> Evaluation:
    """An evaluation of click, order and like."""
    main, *others = ({"auc": auc, "logloss": loss} for auc in aucs)
    names = ("order", "like")
    return Evaluation("val", 0, 0, main, labels=dict(zip(names, others, strict=True)), loss_weights=weights)


def test_all_labels_decide_by_the_weights_of_their_losses() -> None:
    weights = [1.0, 2.0, 0.5]
    first, second = labelled(weights, 0.8, 0.6, 0.7), labelled(weights, 0.75, 0.7, 0.6)
    assert first.merit("auc")[0] == pytest.approx((0.8 + 2 * 0.6 + 0.5 * 0.7) / 3.5)
    assert first.merit("logloss")[0] == pytest.approx(-0.5)
    assert Progress(evals=[first, second]).best_val() is second
    alone = replace(first, loss_weights=[], labels={}), replace(second, loss_weights=[], labels={})
    assert Progress(evals=[*alone]).best_val() is alone[0]
    reason = reason_to_stop(EvaluationConfig(patience=1, best="auc"), [second, first])
    assert "mean AUC of all labels on val has not risen above" in str(reason)


def test_a_label_without_the_metric_counts_for_nothing() -> None:
    weights = [1.0, 2.0, 0.5]
    assert labelled(weights, 0.8, math.nan, 0.7).merit("auc")[0] == pytest.approx((0.8 + 0.5 * 0.7) / 1.5)
    assert labelled(weights, math.nan, 0.9, 0.9, loss=0.3).merit("auc") == (-math.inf, -0.3)


def test_two_rhythms_at_once_and_impossible_values_are_refused() -> None:
    config = EvaluationConfig(batch_size=1, every_steps=5, per_epoch=0, target_auc=80.2, patience=0)
    found = "\n".join(map(str, config.problems("evaluation.")))
    for words in ("both say when", "per_epoch must be at least 1", "at most 1, got 80.2", "patience must be"):
        assert words in found
