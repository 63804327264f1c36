"""Results of an evaluation of checkpoints: records for the JSON file, and their tables. Does not import torch."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dlrm_app.config.metrics import metric_of
from dlrm_app.evaluation.importance_result import Importance
from dlrm_app.records import Number
from dlrm_app.result import Paragraph, Result
from dlrm_app.runs.checkpoint.evaluation import LEARNT, Judgement
from dlrm_app.text import NONE, fixed

HEADINGS = {
    "auc_unweighted": "unweighted AUC",
    "pr_auc": "PR-AUC",
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

    @property
    def bounds(self) -> str:
        """``0.71234 to 0.72345``; a dash for undefined bounds."""
        return NONE if math.isnan(self.low) else f"{self.low:.5f} to {self.high:.5f}"


@dataclass(frozen=True)
class Comparison:
    """The AUCs of two models on the same rows, their difference (first minus second) and its two-sided p-value."""

    first: Interval
    second: Interval
    difference: Interval
    p_value: float


@dataclass(frozen=True)
class PairedTest:
    """A model's AUC minus the first model's; ``adjusted_p`` is Holm's, over all tested models."""

    comparison: Comparison
    adjusted_p: float


@dataclass(frozen=True)
class GroupResult:
    """A metric of groups (``group_by``), such as ndcg@10: its mean over them, where a group is one independent draw.

    ``difference``, ``p_value``: the mean minus the first model's over the same groups, paired, and the two-sided
    p-value of no difference; None for the first model itself.
    """

    name: str
    interval: Interval
    difference: Interval | None = None
    p_value: float | None = None


@dataclass(frozen=True)
class ValueResult:
    """Metrics of the rows with one ``value`` of a ``column``, or of the values that are too rare to be listed."""

    column: str
    value: str
    rows: int
    clicks: int
    auc: Interval
    logloss: float
    ne: float
    calibration: float


@dataclass(frozen=True)
class LabelResult:
    """A model's metrics of another label, over the rows that it is measured on (``label_rows``).

    ``difference``: its AUC minus that of the first model, on the same rows; None for the first model itself.
    """

    name: str
    metrics: dict[str, Number]
    auc_interval: Interval
    logloss_interval: Interval
    difference: Interval | None = None
    judgement: Judgement | None = None
    groups: list[GroupResult] = field(default_factory=list)
    """The metrics of groups; empty without ``group_by``."""


@dataclass(frozen=True)
class ModelResult:
    """One model's part of ``output``.

    ``checkpoint``: its folder; or a file of scores or a blend, which have no step.
    """

    checkpoint: str
    step: int | None
    metrics: dict[str, Number]
    auc_interval: Interval
    judgement: Judgement | None = None
    logloss_interval: Interval | None = None
    by: list[ValueResult] = field(default_factory=list)
    """The metrics by values of the columns ``by=`` names."""
    labels: list[LabelResult] = field(default_factory=list)
    """The metrics of other labels; all others are of the main one."""
    where_given: list[LabelResult] = field(default_factory=list)
    """The metrics of each label that is given another one, on the rows where that one is 1: ``order|click``."""
    importance: Importance | None = None
    """How much each column matters, if that was asked for."""
    groups: list[GroupResult] = field(default_factory=list)
    """The metrics of groups; empty without ``group_by``."""
    seconds: float | None = None
    """The time that the evaluation took; None for files of scores and blends."""

    @property
    def name(self) -> str:
        """Run and step, as text; for a file of scores, the path as it was typed."""
        if self.step is None:
            return self.checkpoint
        path = Path(self.checkpoint).absolute()
        return f"{path.parents[1].name}/{path.name}"


@dataclass(frozen=True)
class EvaluationResult(Result):
    """The content of ``output``, as JSON: the results of models on the same rows.

    ``comparison``: the first two models.
    ``tests``: each other model against the first, with Holm's adjustment over all.
    """

    dataset: str
    fingerprint: str
    split: str
    group_by: str | None
    confidence: float
    models: list[ModelResult]
    comparison: Comparison | None
    tests: list[PairedTest] = field(default_factory=list)
    ema: bool = False
    """True if checkpoints were evaluated with the average of their dense weights."""

    def paragraphs(self) -> Iterable[Paragraph]:
        """A row for each model, and the differences between their AUCs."""
        interval = f"{100 * self.confidence:g}% interval"
        names = [model.name + ", averaged" * (self.ema and model.step is not None) for model in self.models]
        yield from _metric_table(self.split, names, self.models, interval)
        yield from _group_table(self.split, str(self.group_by), names, self.models, interval)
        of_models = [[*model.labels, *model.where_given] for model in self.models]
        for label in dict.fromkeys(each.name for measured in of_models for each in measured):
            found = {
                name: each
                for name, measured in zip(names, of_models, strict=True)
                for each in measured
                if each.name == label
            }
            title, results = f"{label} in {self.split}", [*found.values()]
            yield from _metric_table(title, [*found], results, interval)
            yield from _group_table(title, str(self.group_by), [*found], results, interval)
        for model in self.models:
            judged = {label.name: label.judgement for label in (*model.labels, *model.where_given)}
            for name, judgement in {"": model.judgement, **judged}.items():
                if judgement is not None and judgement.verdict != LEARNT:
                    subject = f"{model.name}, {name}" if name else model.name
                    yield f"{'warning: ' * judgement.is_bad}{subject}: {judgement.text}"
        yield from self._by_value(interval)
        for name, model in zip(names, self.models, strict=True):
            if model.importance is not None:
                yield from model.importance.paragraphs(f" of {name}" * (len(self.models) > 1), interval)
        if len(self.tests) > 1:
            yield f"minus the AUC of {self.models[0].name} (DeLong, paired; p by Holm over all):"
            tested = [
                [model.name, *_cells(test.comparison.difference), f"{test.adjusted_p:.3g}"]
                for model, test in zip(self.models[1:], self.tests, strict=True)
            ]
            yield ["", "AUC", interval, "p"], tested
        elif self.comparison:
            value, bounds = _cells(self.comparison.difference)
            p_value = f"p = {self.comparison.p_value:.3g} for no difference (DeLong, paired)"
            yield f"difference in AUC {value} ({interval} {bounds}), {p_value}"

    def _by_value(self, interval: str) -> Iterable[Paragraph]:
        for column in dict.fromkeys(each.column for each in self.models[0].by):
            for model in self.models:
                rows = [
                    [
                        each.value,
                        f"{each.rows:,}",
                        f"{each.clicks:,}",
                        fixed(each.auc.value, 5),
                        each.auc.bounds,
                        *(fixed(number, 5) for number in (each.logloss, each.ne, each.calibration)),
                    ]
                    for each in model.by
                    if each.column == column
                ]
                yield f"by {column}" + f", {model.name}" * (len(self.models) > 1) + ":"
                yield [column, "rows", "clicks", "AUC", interval, "log loss", "NE", "calibration"], rows


def _metric_table(
    title: str, names: Sequence[str], results: Sequence[ModelResult | LabelResult], interval: str
) -> Iterable[Paragraph]:
    """The numbers of rows, and a row of metrics for each of ``results``."""
    first = results[0].metrics
    shown = {key: heading for key, heading in HEADINGS.items() if key in first}
    weighed = f"; of weight {first['weight']:,.6g}, by which they count" if "weight" in first else ""
    yield f"{title}: {first['num_samples']:,} rows, {first['positives']:,} of them positive{weighed}"
    counted = ("num_samples", "positives", "weight")
    for name, other in zip(names[1:], results[1:], strict=True):
        if any(first.get(key) != other.metrics.get(key) for key in counted):
            weight = other.metrics.get("weight")
            of_weight = "" if weight is None else f" of weight {weight:,.6g}"
            yield (
                f"warning: {name} is measured on {other.metrics['num_samples']:,} other rows{of_weight}, "
                "because its label has another condition: do not compare its numbers with those of the first model"
            )
    rows = [
        [
            name,
            f"{each.auc_interval.value:.5f}",
            f"{each.auc_interval.low:.5f} to {each.auc_interval.high:.5f}",
            *(f"{each.metrics[key]:.5f}" if key in each.metrics else NONE for key in shown),
        ]
        for name, each in zip(names, results, strict=True)
    ]
    yield ["", "AUC", interval, *shown.values()], rows


def _group_table(
    title: str, column: str, names: Sequence[str], results: Sequence[ModelResult | LabelResult], interval: str
) -> Iterable[Paragraph]:
    """The numbers of groups, and a row for each metric of groups and each of ``results``."""
    first = results[0]
    if not first.groups:
        return
    counts = first.metrics
    yield (
        f"{title} by {column}: {counts['groups']:,.0f} groups with a click, {counts['groups_without_click']:,.0f} "
        "without, which are left out"
    )
    are_compared = any(metric.difference is not None for result in results for metric in result.groups)
    rows = []
    for number, metric in enumerate(first.groups):
        heading = known.title if (known := metric_of(metric.name)) else metric.name
        for name, result in zip(names, results, strict=True):
            if number >= len(result.groups):
                continue
            own = result.groups[number]
            row = [heading, name, fixed(own.interval.value, 5), own.interval.bounds]
            if are_compared:
                row += _cells(own.difference) if own.difference else ["", ""]
                row.append("" if own.p_value is None else f"{own.p_value:.3g}")
            rows.append(row)
    compared = [f"minus {names[0]}, paired", interval, "p"] if are_compared else []
    yield ["metric", "model", "mean", interval, *compared], rows


def _cells(interval: Interval) -> list[str]:
    """``+0.00123`` and ``+0.00012 to +0.00234``; dashes for undefined values."""
    bounds = f"{interval.low:+.5f} to {interval.high:+.5f}"
    return [
        NONE if math.isnan(interval.value) else f"{interval.value:+.5f}",
        NONE if math.isnan(interval.low) else bounds,
    ]
