"""The record of a day, written last: what it was made of, how it was judged, whether its model is published.

    OUTPUT/days/2026-11-02/day.json
    OUTPUT/days.jsonl                 all of them, a line each, for people and programs

No seconds stand here, so that a day that was interrupted leaves the same bytes as one that was not (seconds.json has them).
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dlrm_app.dataset.manifest import Source
from dlrm_app.errors import DataError
from dlrm_app.evaluation.result import EvaluationResult, Interval
from dlrm_app.files import checksum, write_json, write_text
from dlrm_app.records import from_json

DAYS, LINES, RECORD, SECONDS = "days", "days.jsonl", "day.json", "seconds.json"
_NOT_IN_LINES = ("parent_record", "sources", "settings", "version")


@dataclass(frozen=True)
class Scores:
    """Metrics of a model on all rows of a day that it has not learnt; ``auc_low`` to ``auc_high``: the 95% interval."""

    auc: float | None
    auc_low: float | None
    auc_high: float | None
    logloss: float | None
    calibration: float | None

    @classmethod
    def of(cls, result: EvaluationResult) -> "Scores":
        """Those of the first model of an evaluation; None for what is undefined."""
        model = result.models[0]
        interval = model.auc_interval
        values = (interval.value, interval.low, interval.high)
        return cls(*map(_known, (*values, model.metrics["logloss"], model.metrics["calibration"])))


@dataclass(frozen=True)
class Holdout:
    """The day's new model on the rows held back: its AUC, that of the model before, their difference with its 95% interval."""

    auc: float | None
    before: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, result: EvaluationResult) -> "Holdout":
        """That of an evaluation of the new model, against the one before if there is one."""
        auc = _known(result.models[0].auc_interval.value)
        if result.comparison is None:
            return cls(auc)
        gap: Interval = result.comparison.difference
        before = _known(result.models[1].auc_interval.value)
        return cls(auc, before, _known(gap.value), _known(gap.low), _known(gap.high))


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Vocabulary:
    """Ids that a day added, freed (expired) and gave again, over all vocabularies, and the rows that their tables have now."""

    new: int
    expired: int
    reused: int
    rows: int


@dataclass(frozen=True)
class DayRecord:
    """A day that is done. ``parent``: the day whose model and vocabularies it began with; ``held``: why it is not published.

    ``unseen_share``: of lookups, those of values that the parent's vocabularies do not know; None without vocabularies.
    ``next_day``, ``first_model``, ``full_retrain``: the parent's model, that of the first day, and the newest one trained
    from scratch, on this day before it is learnt.
    """

    day: str
    rows: int
    positives: int
    unseen_share: float | None
    unseen: dict[str, float]
    vocabulary: Vocabulary | None
    next_day: Scores | None
    first_model: Scores | None
    full_retrain: Scores | None
    holdout: Holdout | None
    published: bool
    held: str | None
    retrained: bool
    parent: str | None
    parent_record: str | None
    sources: list[Source]
    settings: list[str]
    version: int = 1


def write_record(folder: Path, record: DayRecord) -> None:
    """Writes FOLDER/day.json, the last act of a day."""
    write_json(folder / RECORD, asdict(record))


def read_record(folder: Path) -> DayRecord | None:
    """The record of the day in ``folder``; None if it is not done. Raises DataError for a damaged one."""
    path = folder / RECORD
    if not path.is_file():
        return None
    try:
        return from_json(DayRecord, json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise DataError(f"{path} is damaged or of another version ({error}): {redo([folder])}") from error


def redo(folders: Sequence[Path]) -> str:
    """What to type so that days are done again."""
    return f"delete {' '.join(map(str, folders))} and run the same command"


def parent_checksum(output: Path, parent: str | None) -> str | None:
    """Checksum of the record of the day ``parent``."""
    return None if parent is None else checksum(output / DAYS / parent / RECORD)


def write_lines(output: Path, records: Sequence[DayRecord], marks: Mapping[str, str]) -> None:
    """Writes OUTPUT/days.jsonl, a line for each record; ``marks``: day → why it is not what its files would give now."""
    lines = [json.dumps(line_of(record, marks.get(record.day)), ensure_ascii=False) for record in records]
    write_text(output / LINES, "".join(f"{line}\n" for line in lines))


def line_of(record: DayRecord, mark: str | None) -> dict[str, Any]:
    """The line of a day in days.jsonl."""
    values = {key: value for key, value in asdict(record).items() if key not in _NOT_IN_LINES}
    return {**values, "mark": mark}


def read_marks(output: Path) -> dict[str, str]:
    """Day → its mark in OUTPUT/days.jsonl."""
    if not (output / LINES).is_file():
        return {}
    values = map(json.loads, (output / LINES).read_text(encoding="utf-8").splitlines())
    return {value["day"]: value["mark"] for value in values if value["mark"]}
