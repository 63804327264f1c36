"""The record of a day, written last: what it was made of, how it was judged, whether its model is published.

    OUTPUT/days/2026-11-02/day.json
    OUTPUT/days.jsonl                 all of them, a line each, for people and programs

No seconds stand here, so that a day that was interrupted leaves the same bytes as one that was not (seconds.json has them).
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from dlrm_app.dataset.manifest import Source
from dlrm_app.errors import DataError
from dlrm_app.evaluation.result import EvaluationResult
from dlrm_app.files import write_text
from dlrm_app.records import from_json

DAYS, LINES, RECORD, SECONDS = "days", "days.jsonl", "day.json", "seconds.json"
_NOT_IN_LINES = ("parent_record", "sources", "version")


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
        auc, metrics = result.models[0].auc_interval, result.models[0].metrics
        return cls(*_known(auc.value, auc.low, auc.high, metrics["logloss"], metrics["calibration"]))


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
        aucs = [model.auc_interval.value for model in result.models]
        gap = result.comparison and result.comparison.difference
        return cls(*_known(*aucs, *((gap.value, gap.low, gap.high) if gap else ())))


def _known(*values: float) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


@dataclass(frozen=True)
class Vocabulary:
    """Ids that a day added, freed (expired) and gave again, over all vocabularies, and the rows that their tables have now."""

    new: int
    expired: int
    reused: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class DayRecord:
    """A day that is done. ``parent``: the day whose model and vocabularies it began with; ``held``: why it is not published.

    ``unseen_share``: of lookups, those of values that the parent's vocabularies do not know; None without vocabularies.
    ``next_day``, ``first_model``, ``full_retrain``: the parent's model, that of the first day, and the newest one trained
    from scratch, on this day before it is learnt. ``parent_record``: the checksum of the parent's record.
    """

    day: str
    rows: int
    positives: int
    unseen_share: float | None = None
    unseen: dict[str, float]
    vocabulary: Vocabulary | None = None
    next_day: Scores | None = None
    first_model: Scores | None = None
    full_retrain: Scores | None = None
    holdout: Holdout | None = None
    published: bool
    held: str | None = None
    retrained: bool = False
    parent: str | None = None
    parent_record: str | None = None
    sources: list[Source]
    version: int = 1


def read_records(output: Path) -> list[DayRecord]:
    """The records of all days that are done, in the order of the days. Raises DataError for a damaged one."""
    return [_read(path) for path in sorted((output / DAYS).glob(f"*-*-*/{RECORD}"))]


def _read(path: Path) -> DayRecord:
    try:
        return from_json(DayRecord, json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, AttributeError) as error:
        raise DataError(
            f"{path} is damaged or of another version ({error}): {redo([path.parent])}"
        ) from error


def redo(paths: Sequence[Path]) -> str:
    """What to type so that days are done again."""
    return f"delete {' '.join(map(str, paths))} and run the same command"


def write_lines(output: Path, records: Sequence[DayRecord], marks: Mapping[str, str]) -> None:
    """Writes OUTPUT/days.jsonl, a line for each record; ``marks``: day → why it is not what its files would give now."""
    keys = [each.name for each in fields(DayRecord) if each.name not in _NOT_IN_LINES]
    lines = [
        {key: asdict(record)[key] for key in keys} | {"mark": marks.get(record.day)} for record in records
    ]
    write_text(output / LINES, "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines))


def read_marks(output: Path) -> dict[str, str]:
    """Day → its mark in OUTPUT/days.jsonl."""
    if not (output / LINES).is_file():
        return {}
    values = map(json.loads, (output / LINES).read_text(encoding="utf-8").splitlines())
    return {value["day"]: value["mark"] for value in values if value["mark"]}
