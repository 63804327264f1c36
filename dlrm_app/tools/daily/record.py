"""The record of a day, written last: its sources, its scores, and if its model is published.

    OUTPUT/days/2026-11-02/day.json
    OUTPUT/days.jsonl                 all records, one a line, for people and programs

Seconds are in seconds.json, so that an interrupted day has the same record as an uninterrupted one.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from dlrm_app.dataset.manifest import Manifest
from dlrm_app.dataset.splits import ManifestSource
from dlrm_app.encoding.row_samples import Z_95
from dlrm_app.errors import DataError
from dlrm_app.evaluation.measurements import effective_numbers
from dlrm_app.evaluation.result import EvaluationResult, LabelResult, ModelResult
from dlrm_app.files import write_text
from dlrm_app.records import ALWAYS, IF_SET, Format, Json, Number, read_record
from dlrm_app.runs.checkpoint.evaluation import Judgement
from dlrm_app.text import json_text

DAYS, LINES, RECORD, SECONDS, SETTINGS = "days", "days.jsonl", "day.json", "seconds.json", "settings.json"
LOCK = ".lock"
"""The file in OUTPUT that is locked by whoever writes below it."""
UNREPORTED = "unreported"
"""The file in a held day's folder until days.on_held has been called."""
_IF_SET = ("labels", "asked", "weights")
"""Keys of days with several labels, or with weights."""
_NOT_IN_LINES = ("parent_record", "settings", "sources", "format", "version")


@dataclass(frozen=True)
class Scores:
    """Metrics of a model on rows that it was not trained on, with the bounds of their 95% intervals."""

    auc: float | None
    auc_low: float | None
    auc_high: float | None
    logloss: float | None
    calibration: float | None
    logloss_low: float | None = None
    logloss_high: float | None = None
    calibration_low: float | None = None
    calibration_high: float | None = None
    ne: float | None = None
    effective: list[float] = field(default_factory=list, metadata=IF_SET, kw_only=True)
    """The effective numbers of positives and negatives, if rows have weights."""

    @classmethod
    def of(cls, result: EvaluationResult, model: int = 0) -> "Scores":
        """The scores of the first model of an evaluation, or of another; undefined ones are None."""
        return cls.of_metrics(result.models[model])

    @classmethod
    def of_metrics(cls, scored: ModelResult | LabelResult) -> "Scores":
        """The scores of a model, or of one of its other labels; undefined ones are None."""
        auc, metrics, loss = scored.auc_interval, scored.metrics, scored.logloss_interval
        low, high = (loss.low, loss.high) if loss else (math.nan, math.nan)
        effective = effective_numbers(metrics)
        calibration, positives = metrics["calibration"], metrics["positives"]
        share = positives / max(metrics["num_samples"], 1)
        if effective is not None:
            positives, share = effective[0], effective[0] / sum(effective)
        # clicks are counted, and their number is uncertain as a binomial's; the sum of the predictions is not
        reach = math.exp(Z_95 * math.sqrt((1 - share) / positives)) if positives else math.nan
        of_auc = auc.value, auc.low, auc.high
        of_calibration = calibration / reach, calibration * reach
        of_rows = cls(
            *_known(*of_auc, metrics["logloss"], calibration, low, high, *of_calibration, metrics["ne"])
        )
        return replace(of_rows, effective=list(effective or ()))


@dataclass(frozen=True)
class Holdout:
    """The AUC of the day's model on the held-out rows, the previous model's, and the 95% interval of their difference.

    ``scores``, ``scores_before``: all metrics of both.
    """

    auc: float | None
    before: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    scores: Scores | None = None
    scores_before: Scores | None = None

    @classmethod
    def of(cls, result: EvaluationResult) -> "Holdout":
        """The scores from an evaluation of the new model, against the previous model if there is one."""
        gap = result.comparison and result.comparison.difference
        new, *old = (Scores.of(result, model) for model in range(len(result.models)))
        difference, low, high = _known(gap.value, gap.low, gap.high) if gap else (None, None, None)
        before = old[0] if old else None
        auc_before = None if before is None else before.auc
        return cls(new.auc, auc_before, difference, low, high, new, before)


@dataclass(frozen=True)
class LabelDay:
    """The counts and scores of another label on a day.

    ``rows``, ``positives``: the number of rows that have it, and of those where it is 1.
    ``next_day``: the scores of yesterday's model on these rows.
    ``holdout``, ``judgement``: the scores of the new model on the held-out rows, and the verdict on them.
    """

    rows: int
    positives: int
    next_day: Scores | None = None
    holdout: Holdout | None = None
    judgement: Judgement | None = None


EFFECTIVE = "effective share"
"""The share of rows that would hold as much information if all weights were equal."""


@dataclass(frozen=True)
class DayWeights:
    """The weights of some of a day's ``rows``.

    ``spread``: their standard deviation, divided by their ``mean``.

    ``error``: the standard error of the logarithm of the effective number of rows.
    """

    rows: int
    mean: float
    spread: float
    error: float

    @property
    def measured(self) -> dict[str, tuple[float, float]]:
        """Name of a measurement → (its value, the standard error of its logarithm)."""
        effective = 1 / (1 + self.spread**2)
        return {
            "mean weight": (self.mean, self.spread / math.sqrt(self.rows)),
            EFFECTIVE: (effective, self.error),
        }


def labels_of(result: EvaluationResult) -> dict[str, Scores]:
    """The scores of the other labels of the first model of an evaluation."""
    return {each.name: Scores.of_metrics(each) for each in result.models[0].labels}


def holdouts_of(result: EvaluationResult) -> dict[str, Holdout]:
    """Other label → the new model's scores, against the previous model's if there is one."""
    new, *old = ({each.name: each for each in model.labels} for model in result.models)
    found = {}
    for name, label in new.items():
        scores, before = Scores.of_metrics(label), old[0].get(name) if old else None
        if before is None:
            found[name] = Holdout(scores.auc, scores=scores)
            continue
        gap = before.difference  # the model before minus the new one
        scores_before = Scores.of_metrics(before)
        difference, low, high = _known(-gap.value, -gap.high, -gap.low) if gap else (None, None, None)
        found[name] = Holdout(scores.auc, scores_before.auc, difference, low, high, scores, scores_before)
    return found


@dataclass(frozen=True)
class Verdict:
    """The verdict of a rule of the gate on a day.

    ``value``: what was measured.
    ``holds``: True if the day is held back.
    ``says``: the measurement in words.
    ``cure``: the limit that was exceeded, and what to check.
    """

    rule: str
    value: Number | None
    limit: Number | None
    holds: bool
    says: str
    cure: str = ""


def _known(*values: float) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


@dataclass(frozen=True)
class Vocabulary:
    """Ids that a day added, freed (expired) and reused, over all vocabularies, and the current rows of their tables."""

    new: int
    expired: int
    reused: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class DayRecord:
    """A finished day.

    ``parent``: the day whose model and vocabularies it began with.
    ``held``: the reason why it is not published.
    ``unseen_share``: the share of lookups of values that the parent's vocabularies lack; None without vocabularies.
    ``next_day``, ``first_model``, ``full_retrain``: scores before training on this day: of the parent's model, of the
    first day's, and of the newest one trained from scratch.
    ``missing``: column → its share of missing values.
    ``shift``: column → its population stability index against the most similar earlier day.
    ``known_rows``: the share of rows that an earlier day or row had.
    ``hours``: hour → rows and files, if files lie in folders of hours.
    ``labels``: other label → its counts and scores.
    ``asked``: other label → the training rows that should have it.
    ``weights``: the weights of all rows ("rows") and of the "positives", if rows have any.
    ``rules``: the verdicts of the gate.
    ``judgement``: the verdict on the new model, on the held-out rows.
    ``parent_record``, ``settings``: the checksums of the parent's record and of the day's settings.json.
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
    judgement: Judgement | None = None
    missing: dict[str, float] = field(default_factory=dict)
    shift: dict[str, float] = field(default_factory=dict)
    known_rows: float | None = None
    hours: dict[str, list[int]] = field(default_factory=dict)
    labels: dict[str, LabelDay] = field(default_factory=dict, metadata=IF_SET)
    asked: dict[str, int] = field(default_factory=dict, metadata=IF_SET)
    weights: dict[str, DayWeights] = field(default_factory=dict, metadata=IF_SET)
    rules: list[Verdict] = field(default_factory=list)
    published: bool
    held: str | None = None
    retrained: bool = False
    parent: str | None = None
    parent_record: str | None = None
    settings: str = ""
    sources: list[ManifestSource]
    format: str = "dlrm-day"
    version: int = field(default=1, metadata=ALWAYS)

    def of_label(self, name: str) -> "DayRecord":
        """The record with the rows and scores of the other label ``name``, to judge it like the main one."""
        label = self.labels[name]
        return replace(
            self,
            rows=label.rows,
            positives=label.positives,
            next_day=label.next_day,
            holdout=label.holdout,
            judgement=label.judgement,
            labels={},
        )


_FORMAT = Format(DayRecord, "delete {folder} and run the same command")


def write_record(folder: Path, record: DayRecord) -> None:
    """Writes FOLDER/day.json, the mark of a finished day."""
    _FORMAT.write(folder / RECORD, record)


def read_records(output: Path) -> list[DayRecord]:
    """Reads the records of all finished days, in the order of the days. Raises DataError for a damaged one."""
    return [_FORMAT.read(path) for path in sorted((output / DAYS).glob(f"*-*-*/{RECORD}"))]


def redo_hint(paths: Sequence[Path]) -> str:
    """A hint: how to make these days again."""
    return f"delete {' '.join(map(str, paths))} and run the same command"


def write_lines(output: Path, records: Sequence[DayRecord], marks: Mapping[str, str]) -> None:
    """Writes OUTPUT/days.jsonl, a line for each record.

    ``marks``: day → the reason why its files would now give another result.
    """
    keys = [each.name for each in fields(DayRecord) if each.name not in _NOT_IN_LINES]
    lines = []
    for record in records:
        values = asdict(record)
        line = {key: values[key] for key in keys if values[key] or key not in _IF_SET}
        lines.append(line | {"mark": marks.get(record.day)})
    write_text(output / LINES, "".join(f"{json_text(line)}\n" for line in lines))


def read_marks(output: Path) -> dict[str, str]:
    """Day → its mark in OUTPUT/days.jsonl."""
    if not (output / LINES).is_file():
        return {}
    values = map(json.loads, (output / LINES).read_text(encoding="utf-8").splitlines())
    return {value["day"]: value["mark"] for value in values if value["mark"]}


def read_day_settings(path: Path) -> Json:
    """Key → value of the settings that a day was begun with; empty if they are not known."""
    try:
        return read_record(path, Json, "")
    except (OSError, DataError):
        return {}


def read_seconds(folder: Path) -> dict[str, float]:
    """Step → its seconds on the day in ``folder``, interruptions included; none if unknown."""
    try:
        return read_record(folder / SECONDS, dict[str, float], "")
    except (OSError, DataError):
        return {}


def vocabulary_growth(dataset: Manifest) -> tuple[float | None, dict[str, float], Vocabulary | None]:
    """The share of lookups of values that the parent's vocabularies lack, this share by feature, and the growth."""
    growth = dataset.lineage.growth if dataset.lineage else []
    if not growth:
        return None, {}, None
    share = sum(each.unseen for each in growth) / max(sum(each.lookups for each in growth), 1)
    rows = {column.name: column.num_embeddings for column in dataset.sparse}
    vocabulary = Vocabulary(
        new=sum(each.new for each in growth),
        expired=sum(each.expired for each in growth),
        reused=sum(each.given_again for each in growth),
        rows=sum(rows[each.features[0]] for each in growth),
    )
    return share, {each.features[0]: each.unseen_share for each in growth}, vocabulary
