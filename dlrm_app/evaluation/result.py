"""Results of an evaluation of checkpoints: records as they land on disk, and their tables as text. No torch."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from dlrm_app.table import Cell, Column, Rows, text_table
from dlrm_app.text import NONE, count

HEADINGS = {
    "pr_auc": "PR-AUC",
    "gauc": "GAUC",
    "logloss": "log loss",
    "ne": "NE",
    "calibration": "calibration",
    "accuracy": "accuracy",
}


@dataclass(frozen=True)
class Interval:
    """An estimate, its standard error, and the bounds of its confidence interval."""

    value: float
    standard_error: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """The AUCs of two models on the same rows, their difference (first less second) and its two-sided p-value."""

    first: Interval
    second: Interval
    difference: Interval
    p_value: float


@dataclass(frozen=True)
class PairedTest:
    """A run's AUC less the first run's; ``adjusted_p`` is Holm's, over all runs that were tested."""

    comparison: Comparison
    adjusted_p: float


@dataclass(frozen=True)
class FeatureImportance:
    """Loss without ``feature``: AUC as it is less AUC permuted, and log loss permuted less log loss as it is."""

    feature: str
    auc_lost: Interval
    logloss_gained: Interval


@dataclass(frozen=True)
class Importance:
    """All features of a model, those whose AUC is missed most first, on ``rows`` rows, each permuted ``repeats`` times."""

    rows: int
    repeats: int
    confidence: float
    features: list[FeatureImportance]

    @property
    def title(self) -> str:
        """Says in a line what its numbers are."""
        return (
            f"what is lost where one feature's values are permuted, over {self.rows:,} rows, "
            f"{count(self.repeats, 'time')} each"
        )


@dataclass(frozen=True)
class ModelResult:
    """One model's part of ``output``. ``checkpoint``: its folder, or a file of scores, or a blend, which have no step."""

    checkpoint: str
    step: int | None
    metrics: dict[str, float]
    auc_interval: Interval
    importance: Importance | None

    @property
    def name(self) -> str:
        """Run and step, for people; of scores the file as it was typed."""
        if self.step is None:
            return self.checkpoint
        path = Path(self.checkpoint).absolute()
        return f"{path.parents[1].name}/{path.name}"


@dataclass(frozen=True)
class EvaluationResult:
    """The content of ``output``, as JSON: models on the same rows.

    ``comparison``: of the first two; ``tests``: of each further model against the first, with Holm's adjustment over all.
    """

    dataset: str
    fingerprint: str
    split: str
    group_by: str | None
    confidence: float
    models: list[ModelResult]
    comparison: Comparison | None
    tests: list[PairedTest] = field(default_factory=list)


def format_result(result: EvaluationResult, are_averaged: bool) -> str:
    """A row a model, and of two models a line on their difference."""
    percent = f"{100 * result.confidence:g}%"
    first = result.models[0].metrics
    shown = {key: title for key, title in HEADINGS.items() if key in first}
    rows = [
        [
            model.name + ", averaged" * (are_averaged and model.step is not None),
            f"{model.auc_interval.value:.5f}",
            f"{model.auc_interval.low:.5f} to {model.auc_interval.high:.5f}",
            *(f"{model.metrics[key]:.5f}" for key in shown),
        ]
        for model in result.models
    ]
    lines = [
        f"{result.split}: {first['num_samples']:,} rows, {first['positives']:,} of them positive",
        text_table(["", "AUC", f"{percent} interval", *shown.values()], rows),
    ]
    if len(result.tests) > 1:
        lines.append(f"less the AUC of {result.models[0].name} (DeLong, paired; p by Holm over all):")
        tested = [
            [model.name, f"{interval.value:+.5f}", bounds(interval), f"{test.adjusted_p:.3g}"]
            for model, test in zip(result.models[1:], result.tests, strict=True)
            for interval in [test.comparison.difference]
        ]
        lines.append(text_table(["", "AUC", f"{percent} interval", "p"], tested))
    elif result.comparison:
        difference = result.comparison.difference
        lines.append(
            f"difference in AUC {difference.value:+.5f} ({percent} interval {difference.low:+.5f} to "
            f"{difference.high:+.5f}), p = {result.comparison.p_value:.3g} for no difference (DeLong, paired)"
        )
    return "\n".join(lines)


def importance_table(importance: Importance) -> tuple[list[Column], Rows]:
    """A row a feature, for text and for pages."""
    percent = f"{100 * importance.confidence:g}%"
    columns = [
        Column("feature", is_words=True),
        Column("AUC lost", "AUC as it is less AUC with the feature permuted, the mean over repeats"),
        Column(f"{percent} interval", "over rows and orders"),
        Column("log loss gained", "nats a row"),
        Column(f"{percent} interval", "over rows and orders"),
    ]
    largest = max((each.auc_lost.value for each in importance.features), default=0.0) or math.nan
    rows = [
        [
            Cell(each.feature),
            Cell(signed(each.auc_lost.value), each.auc_lost.value, each.auc_lost.value / largest),
            Cell(bounds(each.auc_lost)),
            Cell(signed(each.logloss_gained.value), each.logloss_gained.value),
            Cell(bounds(each.logloss_gained)),
        ]
        for each in importance.features
    ]
    return columns, rows


def signed(value: float) -> str:
    """``+0.00123``; a dash for what is undefined."""
    return NONE if math.isnan(value) else f"{value:+.5f}"


def bounds(interval: Interval) -> str:
    """``+0.00012 to +0.00234``; a dash for what is undefined."""
    return NONE if math.isnan(interval.low) else f"{interval.low:+.5f} to {interval.high:+.5f}"
