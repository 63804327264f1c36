"""Checks whether a log whose last lines are val and test is in order of time, as such splits assume.

A log that was written by many workers, such as a Spark job's, is in no order: its last tenth is not its latest tenth.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlrm_app.logs.spec import Spec
from dlrm_app.preprocessing.passes.time_split import RowsByTime, moment_text, write_times

logger = logging.getLogger(__name__)

VAL_TIMES = ".val.times"
_SOME = 0.01
"""The share of val's rows from which a log counts as unordered: clocks of several servers differ by seconds."""


class SplitTimes:
    """The times of a unit's rows of one split: the newest ones of train, all of val."""

    def __init__(self, spec: Spec, split: str) -> None:
        self._columns = [column.name for column in spec.times] if split in ("train", "val") else []
        self._keeps_all = split == "val"
        self._parts: list[NDArray[np.float64]] = [np.full((len(self._columns), 1), np.nan)]

    def add(self, times: NDArray[np.float64]) -> None:
        """Adds rows; ``times`` [T, R], NaN if missing."""
        if self._columns and times.shape[1]:
            self._parts.append(
                times.copy() if self._keeps_all else np.fmax.reduce(times, axis=1, keepdims=True)
            )

    def newest(self) -> dict[str, float]:
        """Column → the newest time, without columns that have none."""
        newest = np.fmax.reduce(np.concatenate(self._parts, axis=1), axis=1)
        return {name: float(time) for name, time in zip(self._columns, newest, strict=True) if time == time}

    def write(self, path: Path) -> None:
        """Writes the times of all rows, of each column by itself."""
        write_times(path, [times[~np.isnan(times)] for times in np.concatenate(self._parts, axis=1)])


def warn_of_order(spec: Spec, newest: Sequence[Mapping[str, float]], val: Sequence[Path]) -> None:
    """Warns if rows of val are older than the newest one of train.

    Of several time columns, the one that comes nearest to the order of the lines counts: the others may be, for
    example, moments of registration. ``newest``: of train, by column, of each unit; ``val``: files of ``SplitTimes``.
    """
    found = []
    for number, column in enumerate(spec.times):
        ends = [unit[column.name] for unit in newest if column.name in unit]
        rows = RowsByTime(val, number)
        if ends and rows.total:
            older = rows.before(max(ends))
            found.append((older / rows.total, older, rows.total, column.name, max(ends)))
    if found and min(found)[0] >= _SOME:
        _, older, total, name, end = min(found)
        logger.warning(
            f"the lines are not in order of {name}: {older:,} of the {total:,} rows of val are older than the newest "
            f"row of train ({moment_text(end)}), so val does not show how the model does on later rows: consider "
            f"split.by={name}"
        )
