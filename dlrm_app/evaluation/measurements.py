"""The measurements that an evaluation is judged by: metrics, and evidence for causes. Does not import torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

NORMAL_99 = 2.5758
"""Standard errors on each side of a 99% interval. With 95%, one evaluation of noise in twenty would have a verdict."""
LEARNT_NE = 0.99
"""An NE below this: there is something to learn, and the model has learnt it."""
FACTOR = 1.5
"""The limit of calibration, or of its inverse: beyond it a share of rows or their weights are not what they should be."""
FEW_STEPS, LEAST_MOVED = 30, 0.01
"""Limits: of steps, and of learning rate times steps, about the most that Adam and Adagrad move a weight."""


@dataclass(frozen=True)
class Measurements:
    """One evaluation.

    ``ne_error``: the standard error of ``ne``.
    ``train_ne``: the epoch's mean loss over that of a constant; None if they cannot be compared, as with labels of one
    class or a teacher's scores.
    ``steps``: the steps taken so far; None if unknown.
    ``effective``: the effective numbers of positives and negatives, if rows have weights.
    """

    split: str
    num_samples: int
    positives: int
    auc: float
    ne: float
    ne_error: float
    calibration: float
    train_ne: float | None = None
    steps: int | None = None
    effective: tuple[float, float] | None = None

    @classmethod
    def of(
        cls,
        split: str,
        metrics: Mapping[str, float],
        ne_error: float,
        train_ne: float | None = None,
        steps: int | None = None,
    ) -> "Measurements":
        """Takes ``metrics`` as ``ClickMetrics`` computes them."""
        counts = int(metrics["num_samples"]), int(metrics["positives"])
        numbers = metrics["auc"], metrics["ne"], ne_error, metrics["calibration"]
        return cls(split, *counts, *numbers, train_ne, steps, effective_numbers(metrics))

    @property
    def has_classes(self) -> bool:
        """True if the rows have labels of both classes."""
        if self.effective is not None:
            return min(self.effective) > 0
        return 0 < self.positives < self.num_samples

    @property
    def is_off_by_a_factor(self) -> bool:
        """True if the sum of the predictions is far from the number of positives, beyond what chance gives."""
        if not self.has_classes or not self.calibration > 0:
            return False
        positives, _ = self.effective or (self.positives, 0)
        return abs(math.log(self.calibration)) > math.log(FACTOR) + NORMAL_99 / math.sqrt(positives)

    @property
    def reach(self) -> float:
        """Half the 99% interval of the AUC of random scores (Mann & Whitney 1947).

        It needs no pass over the rows. Rows with weights count as their effective numbers (Kish 1965).
        """
        positives, negatives = self.effective or (self.positives, self.num_samples - self.positives)
        return NORMAL_99 * math.sqrt((positives + negatives + 1) / (12 * positives * negatives))


def effective_numbers(metrics: Mapping[str, float]) -> tuple[float, float] | None:
    """The effective numbers of positives and negatives in ``metrics``; None if rows have no weights."""
    if "weight" not in metrics:
        return None
    return metrics["effective_positives"], metrics["effective_negatives"]


@dataclass(frozen=True)
class TrainedSoFar:
    """A model's training until now: steps, rows, key of a learning rate → value, and the steps of the whole run."""

    steps: int
    rows: int
    rates: Mapping[str, float] = field(default_factory=dict)
    planned: int = 0

    @property
    def is_early(self) -> bool:
        """True if it is too early to expect a useful model."""
        return self.steps < FEW_STEPS or 2 * self.steps < self.planned


class ListAndColumn(NamedTuple):
    """A list, and a column of one value whose values it may hold."""

    items: str
    column: str

    def __str__(self) -> str:
        return f"{self.items} with {self.column}"


Leaks = Mapping[str | ListAndColumn, float]
"""A column, or a list with a column, → the AUC of it alone."""


@dataclass(frozen=True)
class Evidence:
    """Measurements that tell causes apart; those that were not made are empty or None.

    ``train``, ``here``: (positives, rows) of the train split and of the split judged, or the sums of their weights.
    ``scales``: column → the root mean square of its dense values.
    ``column_aucs``: column, or list with a column → its AUC alone.
    ``crowded``: column → raw values for each row of its table.
    ``unknown``: column → the share of lookups of values that train does not have, above the same share in train's rows.
    ``silent``: the share of the model's units that never fire.
    ``growth``: the root mean square of a layer's weights over that of initial ones.
    ``table_values``: the largest weight in a table.
    ``spread``: the standard deviation of the logits.
    """

    train: tuple[float, float]
    here: tuple[float, float]
    trained: TrainedSoFar
    dataset: str = ""
    scales: Mapping[str, float] = field(default_factory=dict)
    column_aucs: Leaks = field(default_factory=dict)
    crowded: Mapping[str, float] = field(default_factory=dict)
    unknown: Mapping[str, float] = field(default_factory=dict)
    silent: float | None = None
    growth: float | None = None
    table_values: float | None = None
    spread: float | None = None
