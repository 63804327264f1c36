"""The rows that each of several labels is measured on, and how often each of them counts.

Where a label's condition is 0, the label counts as 0, whatever the log says. Where the condition holds, some rows
may lack the label; the rows that have it stand for them and count holding / known times each. If labels are missing at
random there, the condition holds in the same share of the measured rows as of the log's.

Shapes: n rows, L labels.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dlrm_app.dataset.manifest import LearntLabel, Manifest
from dlrm_app.evaluation.scored_rows import ScoredRows
from dlrm_app.loader.supervision import Chosen, Supervision
from dlrm_app.model.labels import conditional_logits, givens

logger = logging.getLogger(__name__)
ROUNDING = 1e-9
"""Sums of weights differ by this share without a difference in rows."""


@dataclass(frozen=True)
class LabelRows:
    """The rows of ``split`` that a label is measured on.

    ``number``: the label's number.
    ``given``: for each label, the number of the label that it is given.
    ``counts``: for each label, the number of rows where its condition holds for each of these rows that has the label.
    ``is_conditional``: True for the rows where the condition holds alone, with scores given the condition.
    """

    split: str = ""
    number: int = 0
    given: tuple[int | None, ...] = (None,)
    counts: tuple[float, ...] = (1.0,)
    is_conditional: bool = False

    def name_in(self, labels: Sequence[LearntLabel]) -> str:
        """The label's name; ``order|click`` if it is measured where its condition holds."""
        before = self.given[self.number]
        name = labels[self.number].name
        return f"{name}|{labels[before].name}" if self.is_conditional and before is not None else name

    def outcomes(self, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """``labels`` [L, n] → (the label [n], NaN where it is not known; the times that each row counts, None if once)."""
        return self._outcomes(labels, self.number)

    def _outcomes(self, labels: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        own, before = labels[number], self.given[number]
        if before is None:
            return own, None
        condition, times = self._outcomes(labels, before)
        # a label of 1 counts although its condition is 0, as an order without a click: metrics should show it
        value = torch.where(own.isnan() & (condition == 0), 0.0, own)
        value = torch.where(condition.isnan(), torch.nan, value)
        if self.counts[number] != 1:
            more = torch.where(condition > 0.5, self.counts[number], 1.0)
            times = more if times is None else times * more
        return value, times

    def scored(self, logits: torch.Tensor, supervision: Supervision) -> tuple[ScoredRows, Chosen]:
        """Rows with ``logits`` [n, L] of all labels → (those that are measured, which of the rows they are)."""
        if self.number == 0:
            return ScoredRows.of_label(logits[:, 0], supervision.labels[0], supervision), slice(None)
        if self.is_conditional:
            return self._where_given(logits, supervision)
        value, times = self.outcomes(supervision.labels)
        chosen = ~value.isnan()
        rows = ScoredRows.of_label(logits[:, self.number], value, supervision)[chosen]
        return (rows if times is None else rows.counted(times[chosen])), chosen

    def _where_given(self, logits: torch.Tensor, supervision: Supervision) -> tuple[ScoredRows, Chosen]:
        before = self.given[self.number]
        assert before is not None
        own, condition = supervision.labels[self.number], supervision.labels[before]
        chosen = (condition > 0.5) & ~own.isnan()
        given = conditional_logits(logits[:, self.number], logits[:, before]).float()
        return ScoredRows.of_label(given, own, supervision)[chosen], chosen


MAIN = LabelRows()


def rows_of_labels(manifest: Manifest, split: str) -> list[LabelRows]:
    """The rows of ``split`` that each label is measured on, the main one first."""
    if not manifest.labels:
        return [LabelRows(split)]
    given, stored = givens(manifest.labels), manifest.splits[split].labels
    has = {manifest.label, *stored}
    counts = []
    for label in manifest.labels:
        times = 1.0
        if label.given is not None and {label.name, label.given} <= has:
            _, known, holding = manifest.where_given(split, label)
            times = holding / known if known else 1.0
            if (
                stored[label.name].where_given is None
                and stored[label.name].rows < manifest.splits[split].rows
            ):
                logger.warning(
                    f"{manifest.path} is of an earlier version, which did not count the rows with {label.given} that lack "
                    f"{label.name}: where there are some, calibration of {label.name} is off; preprocess again"
                )
        counts.append(1.0 if abs(times - 1) < ROUNDING else times)
    return [LabelRows(split, number, given, tuple(counts)) for number in range(len(given))]
