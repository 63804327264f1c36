"""The gate's rules on made-up days: each holds back what it is for, and lets an ordinary day pass."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.config.days import DaysConfig, GateConfig
from dlrm_app.runs.checkpoint.evaluation import CONSTANT, LEARNT, UNDECIDED, Judgement
from dlrm_app.tools.daily.gate import judge_after, judge_before, why_held
from dlrm_app.tools.daily.measure import weigh
from dlrm_app.tools.daily.record import DayRecord, DayWeights, Holdout, LabelDay, Scores
from dlrm_app.tools.daily.score_rules import converged
from dlrm_app.tools.daily.usual import ComparedDay, usual
from tests.composed import compose_config


def scores(auc: float | None = 0.75, reach: float = 0.005, **other: float) -> Scores:
    bounds = (None, None) if auc is None else (auc - reach, auc + reach)
    return Scores(auc, *bounds, **{"logloss": 0.4, "calibration": 1.0, **other})


def calibrated(calibration: float, reach: float = 1.05) -> Scores:
    low, high = calibration / reach, calibration * reach
    return scores(calibration=calibration, calibration_low=low, calibration_high=high)


def a_day(rows: int = 1000, auc: float | None = 0.75, **other: Any) -> DayRecord:
    day = {"day": "2026-11-01", "positives": 100, "published": True, "sources": [], "unseen": {}}
    return DayRecord(**{**day, "rows": rows, "next_day": scores(auc), **other})


@pytest.fixture(scope="module")
def gate() -> GateConfig:
    words = ['input.days="{day}"', "dataset=x", "output=o", "days.from=2026-11-01"]
    return compose_config("days", DaysConfig, words).gate


def held(day: DayRecord, before: list[DayRecord], gate: GateConfig) -> list[str]:
    """The rules that hold the day back."""
    days = ComparedDay(day, before, gate, {"item"})
    verdicts = judge_before(days) + judge_after(days)
    assert (why_held(verdicts) is None) == (not any(each.holds for each in verdicts))
    return [each.rule for each in verdicts if each.holds]


USUAL = {
    "missing": {"country": 0.02, "price": 0.3},
    "shift": {"price": 0.03, "item": 0.9},
    "known_rows": 0.01,
    "hours": {f"{hour:02}": [100, 2] for hour in range(24)},
    "unseen": {"item": 0.1},
    "next_day": calibrated(1.0),
    "weights": {"rows": DayWeights(1000, 1.5, 1.0, 0.1), "positives": DayWeights(100, 1.0, 1.0, 0.2)},
}


def weighted(mean: float = 1.5, spread: float = 1.0, error: float = 0.1, of_clicks: float = 1.0) -> Any:
    rows, clicks = DayWeights(1000, mean, spread, error), DayWeights(100, of_clicks, 1.0, 0.2)
    return {"weights": {"rows": rows, "positives": clicks}}


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({}, None),
        ({"rows": 900}, None),
        ({"rows": 499}, "rows"),
        ({"positives": 160}, None),
        ({"positives": 30}, "clicks"),
        ({"positives": 300}, "clicks"),
        ({"missing": {"country": 1.0, "price": 0.3}}, "missing"),
        ({"missing": {"country": 0.15, "price": 0.35}}, None),
        (weighted(0.0015, of_clicks=0.001), "weights"),
        (weighted(1500, of_clicks=1000), "weights"),
        (weighted(of_clicks=0.001), "weights"),
        (weighted(0, 0, 0, 0), "weights"),
        (weighted(spread=9), "weights"),  # a few rows have nearly all weight
        (weighted(spread=9, error=1), None),  # as one row of such a log may do by chance
        (weighted(2.5, 1.5, of_clicks=1.7), None),
        ({"unseen": {"item": 0.45}}, "unseen"),
        ({"shift": {"price": 3.0, "item": 0.9}}, "shift"),
        ({"shift": {"price": 0.2, "item": 2.5}}, None),
        ({"known_rows": 1.0}, "known rows"),
        ({"known_rows": 0.1}, None),
        ({"hours": USUAL["hours"] | {"23": [0, 0]}}, "hours"),
        ({"hours": USUAL["hours"] | {"23": [80, 1]}}, None),
        ({"next_day": calibrated(3.1)}, "calibration"),
        ({"next_day": calibrated(0.3)}, "calibration"),
        ({"next_day": calibrated(3.1, 2.0)}, None),  # of so few clicks that it may be chance
        ({"next_day": calibrated(1.5)}, None),
    ],
)
@pytest.mark.parametrize("num_before", [1, 2, 9])
def test_each_rule_holds_the_days_it_is_for(
    gate: GateConfig, num_before: int, change: dict[str, Any], rule: str | None
) -> None:
    before = [a_day(**USUAL) for _ in range(num_before)]
    assert held(a_day(**{**USUAL, **change}), before, gate) == ([] if rule is None else [rule])


@pytest.mark.parametrize(
    ("auc", "is_held"),
    [(0.74, False), (0.69, True), (0.698, False)],  # the last's interval reaches the limit
)
def test_a_fall_of_the_auc_is_compared_with_the_days_before(
    gate: GateConfig, auc: float, is_held: bool
) -> None:
    before = [a_day(), a_day(), a_day(auc=0.76)]
    assert held(a_day(auc=auc), before, gate) == ["auc"] * is_held


@pytest.mark.parametrize(
    ("rows", "positives", "of_the_days_before", "is_held"),
    [
        (1000, 0, [100, 100], True),
        (1000, 1000, [100, 100], True),
        (1000, 0, [1, 0], False),  # a click in 2,000 rows: 61% of such days have none
        (1000, 0, [1, 9], True),  # 0.7%
        (1000, 1000, [1000, 999], False),
        (1000, 0, [], True),  # a first model of rows without clicks
        (1000, 0, [0, 0], False),  # as days.accept has let in
        (1000, 1, [], False),
    ],
)
def test_a_day_of_one_class_is_held_back_unless_clicks_are_rare(
    gate: GateConfig, rows: int, positives: int, of_the_days_before: list[int], is_held: bool
) -> None:
    before = [a_day(positives=clicks) for clicks in of_the_days_before]
    assert held(a_day(rows, None, positives=positives), before, gate) == ["labels"] * is_held


def test_a_fall_as_large_as_the_usual_changes_is_honest(gate: GateConfig) -> None:
    """The window has one level, the weeks before it have others: only a fall beyond four usual changes is damage."""
    wild, calm = ([a_day(auc=auc) for auc in aucs] for aucs in ([0.74, 0.76] * 4, [0.76] * 8))
    assert held(a_day(auc=0.69), wild, gate) == []
    assert held(a_day(auc=0.66), wild, gate) == ["auc"]
    assert held(a_day(auc=0.69), calm, gate) == ["auc"]


def test_the_first_days_of_a_model_do_not_count_as_usual(gate: GateConfig) -> None:
    aucs = [0.52, 0.60, 0.65, 0.68, 0.672, 0.676, 0.674, 0.677]
    assert converged(aucs, 0.05) == aucs[2:]
    assert held(a_day(auc=0.594), [a_day(auc=auc) for auc in aucs], gate) == ["auc"]


def test_the_second_day_must_only_be_better_than_chance(gate: GateConfig) -> None:
    first = a_day(next_day=None, holdout=Holdout(0.8))
    assert held(a_day(auc=0.49), [first], gate) == ["auc"]
    assert held(a_day(auc=0.7, unseen={"user": 1.0}), [first], gate) == []
    assert held(a_day(2, None, positives=1, next_day=None), [], gate) == []


def test_an_hour_that_chance_lets_pass_hides_no_other(gate: GateConfig) -> None:
    before = [a_day(hours={"03": [2, 1], "12": [1000, 1]})]
    assert held(a_day(hours={"12": [200, 1]}), before, gate) == ["hours"]


def test_an_hour_that_one_day_lacks_is_still_looked_for(gate: GateConfig) -> None:
    """Such a day is in the window if the user has accepted it."""
    hours: dict[str, list[int]] = {"12": [1000, 1], "23": [1000, 1]}
    before = [a_day(hours=hours), a_day(hours={"12": [1000, 1]}), a_day(hours=hours)]
    assert held(a_day(hours={"12": [1000, 1]}), before, gate) == ["hours"]
    assert held(a_day(hours=hours), [a_day(hours={"12": [1000, 1]})], gate) == []


def test_hours_of_few_rows_are_seldom_held_by_chance(gate: GateConfig) -> None:
    """A day of 24 hours of 5 rows each lacks one of them on 15% of days, those of Poisson's distribution."""
    random = np.random.default_rng(1)
    for mean in (1, 3, 5, 8, 12, 20):
        before = [a_day(hours={f"{hour:02}": [mean, 1] for hour in range(24)})]
        days = [
            {f"{hour:02}": [int(rows), 1] for hour, rows in enumerate(random.poisson(mean, 24)) if rows}
            for _ in range(200)
        ]
        assert sum(bool(held(a_day(hours=hours), before, gate)) for hours in days) <= 4


def test_a_noisy_history_switches_no_rule_off(gate: GateConfig) -> None:
    before = [
        a_day(next_day=calibrated(c), positives=p)
        for c, p in zip([0.2, 5, 1, 0.3, 3] * 2, [20, 500] * 5, strict=True)
    ]
    assert set(held(a_day(next_day=calibrated(9.0), positives=2), before, gate)) == {"calibration", "clicks"}


@given(st.lists(st.floats(-5, 5), min_size=4, max_size=15), st.floats(1e6, 1e9))
def test_a_single_odd_day_hardly_moves_what_is_usual(values: list[float], odd: float) -> None:
    found = usual([*values, odd])
    assert found is not None
    assert min(values) <= found.level <= max(values)
    assert found.spread <= 1.4826 * (max(values) - min(values)) + 1e-9


def test_a_model_is_worse_only_beyond_chance(gate: GateConfig) -> None:
    for holdout, is_held in (
        (Holdout(0.7), False),
        (Holdout(0.7, 0.71, -0.01, -0.02, 0.001), False),
        (Holdout(0.7, 0.7, -1e-16, -1e-16, -1e-16), False),  # two equal AUCs, rounded
        (Holdout(0.7, 0.71, -0.01, -0.02, -0.001), True),
    ):
        verdicts = judge_after(ComparedDay(a_day(holdout=holdout), [], gate))
        assert (why_held(verdicts) is not None) == is_held
        assert why_held(verdicts, is_accepted=True) == why_held(verdicts)
    assert "AUC of 0.7000 on the rows held back, the one before 0.7100: a difference of -0.0100" in why_held(
        verdicts
    )


def test_a_model_that_learnt_nothing_holds_the_day(gate: GateConfig) -> None:
    for verdict, rules in ((CONSTANT, ["learnt"]), (LEARNT, []), (UNDECIDED, [])):
        judgement = Judgement(verdict, "no better than a constant: NE 1.0003", measured={"ne": 1.0003})
        assert held(a_day(judgement=judgement), [], gate) == rules
    assert held(a_day(), [], gate) == []


@pytest.mark.parametrize(
    ("auc", "ne", "rows", "verdict", "rules"),
    [
        (0.5, 1.002, 2500, UNDECIDED, ["learnt"]),
        (0.52, 1.0, 2500, UNDECIDED, ["learnt"]),
        (0.58, 0.98, 2500, UNDECIDED, []),
        (0.5, 1.002, 200, UNDECIDED, []),  # so few rows tell nothing either
        (0.5, 1.002, 2500, LEARNT, []),  # yesterday's model had learnt nothing, this one has
    ],
)
def test_days_of_noise_are_held_though_few_rows_are_held_out(
    gate: GateConfig, auc: float, ne: float, rows: int, verdict: str, rules: list[str]
) -> None:
    loss = {"ne": ne, "logloss": 0.5, "logloss_low": 0.48, "logloss_high": 0.52}
    judgement = Judgement(verdict, "cannot be told apart from chance on 120 rows of val", measured={"ne": ne})
    day = a_day(rows, positives=rows // 4, next_day=scores(auc, 0.02, **loss), judgement=judgement)
    assert held(day, [], gate) == rules


def test_one_odd_day_does_not_raise_the_limit_of_unseen(gate: GateConfig) -> None:
    before = [a_day(**USUAL) for _ in range(6)] + [a_day(**{**USUAL, "unseen": {"item": 0.9}})]
    assert held(a_day(**{**USUAL, "unseen": {"item": 0.45}}), before, gate) == ["unseen"]
    assert held(a_day(**{**USUAL, "unseen": {"item": 0.35}}), before, gate) == []


def test_a_new_model_of_worse_loss_or_calibration_holds_the_day(gate: GateConfig) -> None:
    def of(loss: float, calibration: float = 1.0) -> Scores:
        bounds = {"logloss": loss, "logloss_low": loss - 0.01, "logloss_high": loss + 0.01}
        return replace(calibrated(calibration), **bounds)

    for new, rule in ((of(0.41), None), (of(0.45), "new log loss"), (of(0.39, 1.9), "new calibration")):
        day = a_day(holdout=Holdout(0.7, 0.7, 0.0, -0.01, 0.01, new, of(0.4)))
        assert held(day, [], gate) == ([rule] if rule else [])


def test_each_other_label_has_a_gate_of_its_own(gate: GateConfig) -> None:
    """A day whose clicks are as ever is held back for its orders, by the rule that would hold it for its clicks."""

    def with_orders(**order: Any) -> DayRecord:
        usual_label: dict[str, Any] = {"rows": 1000, "positives": 100, "next_day": calibrated(1.0)}
        return a_day(**{**USUAL, "labels": {"order": LabelDay(**{**usual_label, **order})}})

    before = [with_orders() for _ in range(6)]
    worse = Holdout(0.6, 0.7, -0.1, -0.12, -0.08, scores(0.6), scores(0.7))
    for change, rule in (
        ({}, None),
        ({"positives": 0}, "labels of order"),
        ({"positives": 500}, "clicks of order"),
        ({"next_day": scores(0.5)}, "auc of order"),
        ({"next_day": calibrated(4.0)}, "calibration of order"),
        ({"holdout": worse}, "new auc of order"),
        ({"rows": 0, "positives": 0, "next_day": None}, None),
    ):
        assert held(with_orders(**change), before, gate) == ([] if rule is None else [rule])


def test_accepting_a_day_does_not_publish_worse_orders(gate: GateConfig) -> None:
    worse = Holdout(0.6, 0.7, -0.1, -0.12, -0.08, scores(0.6), scores(0.7))
    day = a_day(**USUAL, labels={"order": LabelDay(1000, 500, calibrated(1.0), worse)})
    before = [a_day(**USUAL, labels={"order": LabelDay(1000, 100, calibrated(1.0))}) for _ in range(6)]
    days = ComparedDay(day, before, gate, {"item"})
    assert why_held(judge_before(days)) is not None
    assert why_held(judge_before(days), is_accepted=True) is None
    assert "order: " in str(why_held(judge_after(days), is_accepted=True))


@pytest.mark.parametrize(("asked", "is_held"), [(1000, True), (20, False)])
def test_a_day_whose_orders_are_half_open_is_held_back(gate: GateConfig, asked: int, is_held: bool) -> None:
    """Unless so few rows have a click that chance explains it."""
    before = [a_day(**{**USUAL, "missing": {"order|click": 0.1}}) for _ in range(3)]
    day = a_day(**{**USUAL, "missing": {"order|click": 0.5}, "asked": {"order|click": asked}})
    assert held(day, before, gate) == ["missing"] * is_held


@pytest.mark.parametrize("kind", ["equal", "lognormal", "heavy", "pareto", "sampled"])
def test_weights_that_are_drawn_alike_hold_no_day(gate: GateConfig, kind: str) -> None:
    """100 days of 2,000 rows each, compared with one day, and with seven; those of other units are all held."""
    random = np.random.default_rng(7)

    def day(factor: float = 1.0) -> DayRecord:
        weights = {
            "equal": lambda: np.ones(2000),
            "lognormal": lambda: random.lognormal(0, 1, 2000),
            "heavy": lambda: random.lognormal(0, 2, 2000),
            "pareto": lambda: 1 + random.pareto(2.5, 2000),
            "sampled": lambda: np.where(random.random(2000) < 0.05, 1.0, 20.0),
        }[kind]() * factor
        is_click = random.random(2000) < 0.1
        return a_day(2000, weights=weigh([(weights.astype(np.float32), is_click)]), positives=200)

    days = [day() for _ in range(100)]
    for size in (1, 7):
        found = [held(each, days[n - size : n], gate) for n, each in enumerate(days) if n >= size]
        assert sum(map(bool, found)) == 0
        for factor in (0.001, 1000):
            assert held(day(factor), days[:size], gate) == ["weights"]
