"""Splits by a time column: which moments begin val and test, and how much of val is older than train.

<unit>.times is an Arrow file of a unit's distinct times in order, with the number of its rows up to each. Thresholds
are found by bisection over these files, which are mapped into memory: no pass has to sort all rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import array_of, numbers_of
from dlrm_app.errors import DataError, Problem, refuse_if
from dlrm_app.journal import Finish, Journal
from dlrm_app.logs.arrow_rows import open_cursor
from dlrm_app.logs.sources.feeds import InputUnit
from dlrm_app.logs.sources.units import UnitExtent
from dlrm_app.logs.spec import LogColumn, Spec

TIMES = ".times"
_ROWS = 1 << 16


@dataclass(frozen=True)
class TimeSplit:
    """The rule of a split by time.

    column: the time column
    moments: split → the first second since 1970 that belongs to it, where it was given
    missing: the split of rows whose time is missing; None: they are refused
    """

    column: str
    moments: Mapping[str, float]
    missing: str | None

    def names_of(self, fractions: Mapping[str, float]) -> list[str]:
        """The splits that are cut off the training input, in order of time."""
        return [name for name in ("val", "test") if name in self.moments or name in fractions]


@dataclass(frozen=True)
class TimeCuts:
    """The first second since 1970 of each split that is cut off the training input, in order of time.

    column: the time column
    missing: the split of rows whose time is missing
    """

    column: str
    starts: Mapping[str, float]
    missing: str | None

    def split_numbers(self, times: NDArray[np.float64]) -> NDArray[np.int64]:
        """The number of each row's split [R], in the order train, then ``starts``. ``times`` [R], NaN if missing."""
        numbers = np.searchsorted(np.array([*self.starts.values()]), times, side="right")
        if self.missing is not None:
            numbers[np.isnan(times)] = ["train", *self.starts].index(self.missing)
        return numbers


def only_times(spec: Spec, column: str) -> Spec:
    """``spec`` with the time ``column`` alone."""

    def narrowed(columns: tuple[LogColumn, ...]) -> tuple[LogColumn, ...]:
        return tuple(each if each.name == column else replace(each, role="ignore") for each in columns)

    return replace(spec, columns=narrowed(spec.columns), order=narrowed(spec.order), derived=(), labels=())


@dataclass(frozen=True)
class TimedUnit:
    """The record of a unit whose times are counted.

    rows: the rows that have a time
    missing: the rows whose time is missing
    """

    extent: UnitExtent
    rows: int
    missing: int


@dataclass(frozen=True)
class CountTimes:
    """Counts the times of each unit. ``file_specs``: of each source, with one column, the time."""

    title: ClassVar[str] = "counting times"
    reads: ClassVar[tuple[str, ...]] = ()
    file_specs: tuple[Spec, ...]
    journal: Journal[TimedUnit]

    def __call__(self, unit: InputUnit) -> Finish[TimedUnit]:
        files = self.journal.begin(unit.name)
        cursor = open_cursor(unit, self.file_specs[unit.source])
        times = np.concatenate([np.empty(0), *(raw.times[0].copy() for raw in cursor.rows(_ROWS, None))])
        present = times[~np.isnan(times)]
        with files.write(TIMES) as temporary:
            write_times(temporary, [present])
        return files.finish(TimedUnit(unit.finish(), len(present), len(times) - len(present)))


def write_times(path: Path, columns: Sequence[NDArray[np.float64]]) -> None:
    """Writes the distinct times of each column, whose times may repeat, with the number of rows up to each."""
    schema = pa.schema({"time": pa.float64(), "rows": pa.int64()})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for times in columns:
            distinct, counts = np.unique(times, return_counts=True)
            rows = np.cumsum(counts, dtype=np.int64)
            writer.write_batch(pa.record_batch([array_of(distinct), array_of(rows)], schema=schema))


class RowsByTime:
    """The rows of all units that have a time, in order of time, from files of ``write_times``."""

    def __init__(self, paths: Sequence[Path], column: int = 0) -> None:
        read = (_read_times(path, column) for path in paths)
        self._units = [(times, rows) for times, rows in read if len(times)]
        self.total = sum(int(rows[-1]) for _, rows in self._units)

    def up_to(self, time: float) -> int:
        """The number of rows at or before ``time``."""
        places = ((rows, np.searchsorted(times, time, side="right")) for times, rows in self._units)
        return sum(int(rows[place - 1]) for rows, place in places if place)

    def before(self, time: float) -> int:
        """The number of rows before ``time``."""
        return self.up_to(np.nextafter(time, -np.inf))

    def time_of(self, row: int) -> float:
        """The time of row number ``row``, counted in order of time: the smallest with more than ``row`` rows up to it."""
        low = min(float(times[0]) for times, _ in self._units)
        high = max(float(times[-1]) for times, _ in self._units)
        if self.up_to(low) > row:
            return low
        while low < (middle := low + (high - low) / 2) < high:  # low has too few rows, high enough
            low, high = (low, middle) if self.up_to(middle) > row else (middle, high)
        return high


def _read_times(path: Path, column: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
        batch = reader.get_batch(column)
        return numbers_of(batch.column("time")), numbers_of(batch.column("rows"))


def cut_times(
    rule: TimeSplit, fractions: Mapping[str, float], rows: RowsByTime, units: Sequence[TimedUnit]
) -> TimeCuts:
    """The cuts by ``rule``: of splits with a fraction, the latest rows before the next split, rounded down.

    Rows of equal times stay together, in the later split. Raises DataError for times that are missing, and ConfigError
    if a split would have no rows.
    """
    total, missing = sum(unit.rows for unit in units), sum(unit.missing for unit in units)
    if missing and rule.missing is None:
        fault = f"is missing in {missing:,} of {total + missing:,} rows, so their split is unknown"
        cure = "say where they go with split.missing=train, or remove them from the log"
        raise DataError(Problem(f"split.by={rule.column}", fault, cure))
    starts: dict[str, float] = {}
    stop = total
    for name in reversed(rule.names_of(fractions)):
        key = f"split.{name}={fractions.get(name)}"
        if name in rule.moments:
            key, starts[name] = f"split.{name}_from={moment_text(rule.moments[name])}", rule.moments[name]
        elif size := min(int(total * fractions[name]), stop):
            starts[name] = rows.time_of(stop - size)
        else:
            fault = f"of the {total:,} rows of input.train is less than one, so the {name} split has no rows"
            raise DataError(Problem(key, fault, "give a larger share"))
        before = rows.before(starts[name])
        refuse_if(_empty_problems(rule.column, name, key, rows, before, stop))
        stop = before
    return TimeCuts(rule.column, dict(reversed(starts.items())), rule.missing)


def _empty_problems(
    column: str, name: str, key: str, rows: RowsByTime, before: int, stop: int
) -> list[Problem]:
    """A problem if the split from row ``before`` to ``stop`` is empty, or leaves nothing before it."""
    if before == stop:
        latest = f"the latest {column} before it is {moment_text(rows.time_of(stop - 1))}" if stop else ""
        cure = "give an earlier moment"
        return [Problem(key, f"gives the {name} split no rows: {latest}".rstrip(": "), cure)]
    if before == 0:
        since = moment_text(rows.time_of(0))
        fault = (
            f"leaves no rows before the {name} split: equal times stay together, and the earliest is {since}"
        )
        return [Problem(key, fault, "give a smaller share or a later moment, or split.by=content")]
    return []


def moment_text(seconds: float) -> str:
    """The moment ``seconds`` after 1970 in UTC, such as 2026-11-20 or 2026-11-20T06:30:00."""
    text = str(np.datetime64(round(seconds * 1e6), "us")).removesuffix(".000000")
    return text.removesuffix("T00:00:00")
