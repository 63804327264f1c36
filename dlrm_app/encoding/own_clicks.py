"""Recognizes rows whose own clicks are in the target columns that encode them."""

from collections.abc import Sequence
from pathlib import Path

from dlrm_app.dataset.manifest import DenseColumn
from dlrm_app.encoding.dense import is_target
from dlrm_app.encoding.row_samples import KnownShare, RowSample, cached_row_sample

MIN_OWN_CLICKS = 0.02
"""The share of rows with their own clicks above which a warning is logged."""
LEARNT_ROWS = "target/contents.npy"
"""A sample of the training rows whose clicks are in the target columns."""


def learnt_rows(dense: Sequence[DenseColumn], folder: Path) -> RowSample | None:
    """A sample of the rows whose clicks are in the target columns ``dense`` of the dataset in ``folder``.

    None if the dataset has no such sample.
    """
    rules = [column.transform.get("contents") for column in dense if is_target(column)]
    return next((cached_row_sample(folder / rule["file"], rule["checksum"]) for rule in rules if rule), None)


def own_click_share(known: KnownShare, learnt: RowSample) -> float | None:
    """The share of rows whose own clicks are in the target columns that encode them.

    None if it is not larger than the share of rows that repeat by chance, as in the training log.
    """
    return known.share if known.least > learnt.repeated_share + MIN_OWN_CLICKS else None
