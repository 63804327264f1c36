"""Counts of the rows that have other labels: of parts of a split, of a whole one, and in words."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dlrm_app.dataset.manifest import LearntLabel, Manifest
from dlrm_app.dataset.splits import LabelCounts, WeightSums
from dlrm_app.table import Columns, Rows, integer, share
from dlrm_app.text import NONE

LabelSums = Sequence[Sequence[float]]
"""WIDTH numbers for each other label, [L - 1, WIDTH]. First four: the rows that have it, those where it is 1, and the
sums of the weights of both. Then these four among the rows whose main label is 0; all eight again for the rows where
its ``given`` is 1 (0 if it has none); and the rows where it is 1 and its ``given`` is 0.
"""
WIDTH = 17


def count_labels(
    labels: Sequence[LearntLabel],
    main: NDArray[np.uint8],
    others: NDArray[np.floating],
    weights: NDArray[np.floating],
) -> NDArray[np.float64]:
    """The ``LabelSums`` of rows with ``main`` labels [R] and ``others`` [L - 1, R], NaN where a row lacks one.

    ``weights`` [R]: rounded to float32, as shards hold them.
    """
    each = weights.astype(np.float32).astype(np.float64)
    among = np.stack([np.ones(len(main)), main == 0])
    values = dict(zip((label.name for label in labels), [main, *others], strict=True))
    found = []
    for label in labels[1:]:
        is_known, is_positive = ~np.isnan(values[label.name]), values[label.name] == 1
        sums = [rows @ counted for rows in among for counted in _each(is_known, is_positive, each)]
        where_given, lacks_given = [0.0] * 8, 0.0
        if label.given is not None:
            holds = values[label.given] == 1
            its = _each(is_known & holds, is_positive & holds, each)
            where_given = [rows @ counted for rows in among for counted in its]
            lacks_given = (is_positive & (values[label.given] == 0)).sum()
        found.append([*map(float, [*sums, *where_given, lacks_given])])
    return np.array(found).reshape(-1, WIDTH)


def _each(
    is_known: NDArray[np.bool_], is_positive: NDArray[np.bool_], weights: NDArray[np.float64]
) -> tuple[NDArray[np.generic], ...]:
    return is_known, is_positive, np.where(is_known, weights, 0.0), np.where(is_positive, weights, 0.0)


def label_counts(
    labels: Sequence[LearntLabel], parts: Sequence[LabelSums], *, is_weighted: bool, is_sampled: bool
) -> dict[str, LabelCounts]:
    """The counts of a split from those of its ``parts``.

    Sums of weights are rounded to twelve digits, so that they do not depend on the size of parts.
    """
    found = {}
    for number, label in enumerate(labels[1:]):
        sums = [math.fsum(part[number][place] for part in parts if part) for place in range(WIDTH)]
        counts, where_given = (_counts(sums[at : at + 8], is_weighted, is_sampled) for at in (0, 8))
        found[label.name] = replace(
            counts, without_given=int(sums[16]), where_given=where_given if label.given is not None else None
        )
    return found


def _counts(sums: Sequence[float], is_weighted: bool, is_sampled: bool) -> LabelCounts:
    """``sums`` [8]: of all rows, then of those without the main label."""
    weights = WeightSums(*(float(f"{each:.12g}") for each in sums[2:4])) if is_weighted else None
    negatives = _counts(sums[4:], is_weighted, False) if is_sampled else None
    return LabelCounts(int(sums[0]), int(sums[1]), weights, negatives)


def add_weights(parts: Iterable[WeightSums | None]) -> WeightSums | None:
    """The sums of several splits together; None if rows have no weights."""
    given = [part for part in parts if part]
    return WeightSums(sum(w.all for w in given), sum(w.positives for w in given)) if given else None


def add_counts(parts: Sequence[LabelCounts]) -> LabelCounts:
    """The counts of several splits together."""
    negatives = [part.negatives for part in parts if part.negatives]
    where_given = [part.where_given for part in parts if part.where_given]
    return LabelCounts(
        sum(part.rows for part in parts),
        sum(part.positives for part in parts),
        add_weights(part.weights for part in parts),
        add_counts(negatives) if negatives else None,
        sum(part.without_given for part in parts),
        add_counts(where_given) if where_given else None,
    )


MOST_WEIGHT = 10.0
"""The largest factor of a balanced label's loss. Beyond it the noise of a few rows would move the tables that all
labels share.
"""


def balanced_labels(manifest: Manifest) -> list[LearntLabel]:
    """The labels, each with a loss that counts as if no row lacked it, up to ``MOST_WEIGHT`` times.

    A label without a ``loss_weight`` of its own (one other than 1) gets all training rows over those that have it; of
    a label that is given another one, among the rows where that one is 1. Rows count by their weights.
    """
    found = manifest.labels[:1]
    for label in manifest.other_labels:
        _, known, everywhere = manifest.where_given("train", label)
        balanced = label.loss_weight == 1 and known > 0
        weight = min(everywhere / known, MOST_WEIGHT) if balanced else label.loss_weight
        found.append(replace(label, loss_weight=weight))
    return found


def label_table(manifest: Manifest) -> tuple[Columns, Rows]:
    """The table of other labels by split."""
    rows: Rows = [
        [
            name,
            label.name,
            label.given or NONE,
            integer(counts.rows),
            share(counts.positives / max(counts.rows, 1)),
        ]
        for name, split in manifest.splits.items()
        for label in manifest.other_labels
        if (counts := split.labels.get(label.name)) is not None
    ]
    return ("split", "label", "given", "rows that have it", "positives"), rows


def one_class_labels(manifest: Manifest, split: str) -> dict[str, str]:
    """Label → the reason why nothing can be learnt or measured of it in ``split``: no row has it, or all rows that
    count have the same value.

    Labels of both classes are left out, as are all labels of a split without labels. A label that is given another one
    counts where that one is 1, and rows count by their weights.
    """
    if manifest.label is None or manifest.splits[split].positives is None:
        return {}
    found = {}
    for label in manifest.labels or [LearntLabel(manifest.label)]:
        counts = manifest.where_given(split, label)[:2]
        numbers = manifest.without_weights().where_given(split, label)[:2]
        if why := _one_class(label, f"of {split}", counts, numbers):
            found[label.name] = why
    return found


def _one_class(
    label: LearntLabel, where: str, sums: tuple[float, float], numbers: tuple[float, float]
) -> str | None:
    """``sums``: of the weights of the positives and of all rows; ``numbers``: of rows."""
    positives, rows = sums
    which = f"{where} with {label.given} 1" if label.given is not None else where
    if not numbers[1]:
        return f"no row {which} has {label.name}"
    weighing = " and weigh more than 0" * (numbers != sums)
    if not rows:
        return f"all {numbers[1]:,.0f} rows {which} that have {label.name} weigh 0"
    for value, others in ((0, positives), (1, rows - positives)):
        if others <= ROUNDING * rows:
            return f"{label.name} is {value} in all rows {which} that have it{weighing}"
    return None


ROUNDING = 1e-12
"""A sum of weights of at most this share of another one counts as 0."""


def given_lines(manifest: Manifest) -> Iterator[str]:
    """A line for each label that is given another one, with the rows that teach it, and warnings."""
    for label in manifest.other_labels:
        if label.given is not None and "train" in manifest.splits and manifest.splits["train"].labels:
            yield _taught_line(manifest.without_weights(), label)
    for name, split in manifest.splits.items():
        for label in manifest.other_labels:
            counts = split.labels.get(label.name)
            if counts is not None and counts.without_given:
                yield (
                    f"warning: {counts.without_given:,} of {name}'s rows have {label.name} 1 and {label.given} 0, and "
                    f"given: {label.given} says that there are none: they teach nothing of {label.name}; leave it out "
                    "if they are right"
                )


def class_lines(manifest: Manifest) -> Iterator[str]:
    """A warning for each label of which a split has only one class, or no rows."""
    for split in manifest.splits:
        for why in one_class_labels(manifest, split).values():
            then = (
                "no model can learn it, and dlrm-export refuses one that was trained on it"
                if split == "train"
                else "it has no AUC there"
            )
            yield f"warning: {why}: {then}"


def _taught_line(manifest: Manifest, label: LearntLabel) -> str:
    _, known, holding = manifest.where_given("train", label)
    lacking = holding - known
    more = f", which count for {lacking:,.0f} more that lack it" if lacking > 0.5 and known else ""
    return (
        f"{label.name} is learnt from the {known:,.0f} rows of train with {label.given} 1 that have it{more}"
    )
