"""The gate's rules on made-up days: each holds back what it is for, and lets an ordinary day pass."""

from dataclasses import replace

import pytest

from dlrm_app.config.compose import compose_config
from dlrm_app.config.days import DaysConfig, DaysSettings
from dlrm_app.days.gate import reason_after, reason_before, reason_judged
from dlrm_app.days.record import DayRecord, Holdout, Scores
from dlrm_app.runs.checkpoint.marker import CONSTANT, LEARNT, UNDECIDED, Judgement


def scores(auc: float | None, reach: float = 0.005) -> Scores:
    if auc is None:
        return Scores(None, None, None, 0.4, 1.0)
    return Scores(auc, auc - reach, auc + reach, 0.4, 1.0)


def published(rows: int = 1000, auc: float = 0.75, **unseen: float) -> DayRecord:
    day = {"day": "2026-11-01", "positives": 100, "published": True, "sources": []}
    return DayRecord(**day, rows=rows, unseen=unseen, next_day=scores(auc))


@pytest.fixture
def settings() -> DaysSettings:
    words = ['input.days="{day}"', "dataset=x", "output=o", "days.from=2026-11-01"]
    return compose_config("days", DaysConfig, words).days


@pytest.mark.parametrize(
    ("rows", "unseen", "auc", "reason"),
    [
        (900, {"user": 0.2}, 0.74, None),
        (499, {"user": 0.1}, 0.75, "its 499 rows are less than days.min_rows=0.5 of the 1,000"),
        (500, {"user": 0.1}, 0.75, None),
        (
            1000,
            {"user": 0.45},
            0.75,
            "45% of the lookups in user are of values never seen, 10% on the days before",
        ),
        (
            1000,
            {"user": 0.1},
            0.69,
            "yesterday's model has an AUC of 0.6900 on it, 0.7500 on the days before: lower by more than 0.0500",
        ),
        (1000, {"user": 0.1}, 0.698, None),  # lower by more than 0.05, but its interval reaches up to that
    ],
)
def test_a_day_is_compared_with_those_before(
    settings: DaysSettings, rows: int, unseen: dict[str, float], auc: float | None, reason: str | None
) -> None:
    before = [published(user=0.1), published(rows=900, user=0.05), published(rows=1100, auc=0.76, user=0.1)]
    found = reason_before(rows, 100, unseen, scores(auc), before, settings)
    assert (found is None) == (reason is None)
    assert (reason or "") in (found or "")


@pytest.mark.parametrize(
    ("rows", "positives", "of_the_days_before", "is_held"),
    [
        (1000, 0, [100, 100], True),
        (1000, 1000, [100, 100], True),
        (1000, 1, [100, 100], False),
        (1000, 0, [1, 0], False),  # a click in 2,000 rows: 61% of such days have none
        (1000, 0, [1, 9], True),  # 0.7%
        (1000, 1000, [1000, 999], False),
        (1000, 0, [], True),  # a first model of rows without clicks
        (1000, 0, [0, 0], False),  # as days.accept has let in
        (1000, 1, [], False),
    ],
)
def test_a_day_of_one_class_is_held_back_unless_clicks_are_rare(
    settings: DaysSettings, rows: int, positives: int, of_the_days_before: list[int], is_held: bool
) -> None:
    before = [replace(published(), positives=clicks) for clicks in of_the_days_before]
    found = reason_before(rows, positives, {}, scores(None), before, settings)
    assert (found is not None) == is_held
    assert found is None or "is positive" in found


def test_a_fall_as_large_as_the_usual_changes_is_honest(settings: DaysSettings) -> None:
    """The window has one level, the weeks before it have others: only a fall beyond four usual changes is damage."""
    aucs = [0.74, 0.76] * 4
    assert reason_before(1000, 100, {}, scores(0.69), [published(auc=auc) for auc in aucs], settings) is None
    assert reason_before(1000, 100, {}, scores(0.67), [published(auc=auc) for auc in aucs], settings)
    assert reason_before(1000, 100, {}, scores(0.69), [published(auc=0.76) for _ in aucs], settings)
    assert reason_before(1000, 100, {}, scores(0.786), [published(auc=0.811)], settings) is None


def test_of_the_second_day_the_model_must_only_be_better_than_chance(settings: DaysSettings) -> None:
    first = replace(published(), next_day=None, holdout=Holdout(0.8))
    assert reason_before(1000, 100, {}, scores(0.49), [first], settings) is not None
    assert reason_before(1000, 100, {"user": 1.0}, scores(0.7), [first], settings) is None
    assert reason_before(2, 1, {}, None, [], settings) is None


def test_a_model_is_worse_only_beyond_chance() -> None:
    assert reason_after(Holdout(0.7)) is None
    assert reason_after(Holdout(0.7, 0.71, -0.01, -0.02, 0.001)) is None
    assert "AUC 0.7000 after 0.7100, a difference of -0.0100" in (
        reason_after(Holdout(0.7, 0.71, -0.01, -0.02, -0.001)) or ""
    )


def test_a_model_that_learnt_nothing_holds_the_day() -> None:
    assert reason_judged(Judgement(CONSTANT, "no better than a constant: NE 1.0003")) == (
        "its model is no better than a constant: NE 1.0003"
    )
    for verdict in (LEARNT, UNDECIDED):
        assert reason_judged(Judgement(verdict, "NE 0.8")) is None
    assert reason_judged(None) is None
