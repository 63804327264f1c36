"""One day: encoded with the vocabularies grown, judged by the models before, learnt, compared on the rows held back.

    OUTPUT/days/2026-11-02/dataset/   the day's rows, by dlrm-preprocess
                           rows/      what is trained on: these, and some of the days before
                           model/     the run, by dlrm-train
                           retrain/   the run from scratch, where one is due, and its rows
                           export/    by dlrm-export, if the model is published
                           settings.json  all settings that decide the result
                           day.json   written last

Every step leaves a file by which it is known to be done: a call after an interruption goes on behind the last one.
"""

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

from dlrm_app.config.days import DaysConfig
from dlrm_app.daily.gate import Days, judge_after, judge_before, reason
from dlrm_app.daily.measure import PROFILE, hours_of, known_rows, missing_shares, shifts, write_measures
from dlrm_app.daily.record import (
    RECORD,
    SECONDS,
    SETTINGS,
    UNREPORTED,
    DayRecord,
    Holdout,
    Scores,
    Vocabulary,
    redo,
)
from dlrm_app.daily.rows import Earlier, write_rows
from dlrm_app.daily.words import (
    evaluate_words,
    export_words,
    of_later_days,
    preprocess_words,
    setting_changes,
    settings_of,
    train_words,
)
from dlrm_app.dataset.manifest import MANIFEST, Manifest, read_manifest
from dlrm_app.errors import DataError, Problem
from dlrm_app.evaluation.result import EvaluationResult
from dlrm_app.files import checksum, write_json
from dlrm_app.records import from_json
from dlrm_app.runs.checkpoint.marker import Judgement
from dlrm_app.runs.events import RunResult
from dlrm_app.text import bullets

logger = logging.getLogger(__name__)
POLL_SECONDS = 0.2
_SHOWN_CHANGES = 8
"""Changed settings that a message shows."""
_COMPARED_DAYS = 31
"""Published days whose rows are looked for among those of a new day."""

Run = Callable[[str, Sequence[str], Path], None]
"""Runs a command with settings, and what it prints into a file. Raises DlrmError."""


@dataclass(frozen=True)
class Day:
    """The work of ``day``, after those ``published`` before it; ``is_first_rank``: this process writes, others wait for its files.

    ``days``: the folder of all days. The last one published is the parent, whose model and vocabularies it begins with.
    """

    config: DaysConfig
    day: date
    published: Sequence[DayRecord]
    days: Path
    run: Run
    is_first_rank: bool

    @cached_property
    def folder(self) -> Path:
        return self.days / self.day.isoformat()

    @cached_property
    def parent(self) -> Path | None:
        return self.days / self.published[-1].day if self.published else None

    def window(self, size: int) -> Sequence[DayRecord]:
        """The last ``size`` days that were published."""
        return self.published[-size:] if size else []

    def learn(self) -> DayRecord:
        """Does all that is not done yet, and gives the record, which is written."""
        self._begin()
        dataset = self._encode()
        record = self._measure(dataset)
        is_accepted = self.config.days.is_accepted(self.day)
        before = Days(record, self.published, self.config.gate, {column.name for column in dataset.sparse})
        verdicts = judge_before(before)
        held = reason(verdicts, is_accepted=is_accepted)
        if held is None:
            holdout = self._train()
            record = replace(record, holdout=holdout, judgement=read_judgement(self.folder / "model"))
            after = judge_after(replace(before, day=record))
            verdicts, held = [*verdicts, *after], reason(after, is_accepted=is_accepted)
        if held is None:
            record = replace(record, retrained=self._retrain())
            self._export()
        record = replace(record, rules=verdicts, published=held is None, held=held)
        self._once(self.folder / RECORD, lambda: self._finish(record))
        return record

    def _finish(self, record: DayRecord) -> None:
        """Writes the record; before it, that days.on_held is to be called."""
        if record.held and self.config.days.command_on_held:
            (self.folder / UNREPORTED).touch()
        write_json(self.folder / RECORD, asdict(record))

    @property
    def _words(self) -> dict[str, list[str]]:
        """Command → the settings that it is called with on this day."""
        parent, folder = self.parent, self.folder
        manifest = read_manifest(parent / "dataset") if parent else None
        model = parent / "model" if parent else None
        words = {
            "preprocess": preprocess_words(self.config, self.day, manifest, folder / "dataset"),
            "train": train_words(self.config, folder / "rows", model, folder / "model"),
        }
        if self.config.days.export:
            words["export"] = export_words(self.config, folder / "rows", folder / "model", folder / "export")
        return words

    def _begin(self) -> None:
        """Keeps the day's settings. An unfinished day that was begun with others begins anew."""
        words, path = self._words, self.folder / SETTINGS
        settings = settings_of(self.config, words)
        if self.is_first_rank and (before := read_settings(path)) != settings:
            if self.folder.exists() and any(self.folder.iterdir()):
                changes = (
                    setting_changes(before, settings, words) if before else ["its settings are not known"]
                )
                logger.warning(
                    "%s was begun with other settings and begins anew:\n%s",
                    self.day,
                    bullets(changes, _SHOWN_CHANGES),
                )
                shutil.rmtree(self.folder)
            elif (
                self.parent
                and (earlier := of_later_days(read_settings(self.parent / SETTINGS)))
                and (changes := setting_changes(earlier, of_later_days(settings), words))
            ):
                shown = bullets(changes, _SHOWN_CHANGES)
                logger.info("%s: other settings than on %s:\n%s", self.day, self.parent.name, shown)
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(path, settings)
        while read_settings(path) != settings:  # written by the first rank
            time.sleep(POLL_SECONDS)

    def _measure(self, dataset: Manifest) -> DayRecord:
        """The record of the day before it is learnt: its rows, and the scores of earlier models on them."""
        with self._timed("judge"):
            self._once(self.folder / PROFILE, lambda: write_measures(dataset, self.folder))
        unseen_share, unseen, vocabulary = _growth(dataset)
        rows, scores = read_manifest(self.folder / "rows").splits["test"], self._judge()
        earlier = [self.days / record.day for record in self.window(_COMPARED_DAYS)]
        return DayRecord(
            day=self.day.isoformat(),
            rows=rows.rows,
            positives=rows.positives or 0,
            unseen_share=unseen_share if self.parent else None,
            unseen=unseen if self.parent else {},
            vocabulary=vocabulary,
            next_day=scores.get("next_day"),
            first_model=scores.get("first_model"),
            full_retrain=scores.get("full_retrain"),
            missing=missing_shares(dataset),
            shift=shifts(
                dataset, [self.days / record.day for record in self.window(self.config.gate.window)]
            ),
            known_rows=known_rows(self.folder, earlier),
            hours=hours_of(dataset),
            published=False,
            parent=self.parent.name if self.parent else None,
            parent_record=checksum(self.parent / RECORD) if self.parent else None,
            settings=checksum(self.folder / SETTINGS),
            sources=dataset.sources,
        )

    def _encode(self) -> Manifest:
        """The day's dataset, and the rows that are trained on."""
        days, output, words = self.config.days, self.folder / "dataset", self._words["preprocess"]
        with self._timed("encode"):
            self._once(output / MANIFEST, lambda: self.run("preprocess", words, self._log))
        dataset = read_manifest(output)
        with self._timed("replay"):
            replayed = self.window(days.replay_window) if days.replay else []
            earlier = [self._earlier(record, "train", days.replay) for record in replayed]
            # no model has learnt these yet
            earlier += [self._earlier(record, "val") for record in self.window(1)]
            self._write_rows(dataset, earlier, self.folder / "rows")
        return dataset

    def _earlier(self, record: DayRecord, split: str, share: float = 1.0) -> Earlier:
        dataset = read_manifest(self.days / record.day / "dataset")
        return Earlier(date.fromisoformat(record.day), dataset, split, share)

    def _write_rows(self, dataset: Manifest, earlier: Sequence[Earlier], folder: Path) -> None:
        self._once(folder / MANIFEST, lambda: write_rows(dataset, self.day, earlier, folder))

    def _judge(self) -> dict[str, Scores]:
        """Field of the record → scores on all rows of this day: the parent's model, the first day's, the newest from scratch."""
        models = {}
        if self.parent:
            models["next_day"] = self.parent / "model"
            models["first_model"] = self.days / self.published[0].day / "model"
        if retrained := [record.day for record in self.published if record.retrained]:
            models["full_retrain"] = self.days / retrained[-1] / "retrain" / "model"
        with self._timed("judge"):
            return {field: Scores.of(self._evaluate("test", [model])) for field, model in models.items()}

    def _train(self) -> Holdout:
        """The new model on the rows held back, beside the one that it began with."""
        before = self.parent / "model" if self.parent else None
        with self._timed("train"):
            self._fit(self.folder / "rows", before, self.folder / "model")
        models = [self.folder / "model", *([before] if before else [])]
        with self._timed("judge"):
            return Holdout.of(self._evaluate("val", models))

    def _retrain(self) -> bool:
        """Trains from scratch on the last days if that is due; True if it was."""
        every = self.config.days.full_retrain
        if (
            every is None
            or len(self.published) + 1 < every
            or any(day.retrained for day in self.window(every - 1))
        ):
            return False
        window = self.window(self.config.days.retrain_window - 1)
        rows, model = self.folder / "retrain" / "rows", self.folder / "retrain" / "model"
        with self._timed("retrain"):
            if not (model / "result.json").is_file():
                earlier = [self._earlier(record, split) for record in window for split in ("train", "val")]
                self._write_rows(read_manifest(self.folder / "dataset"), earlier, rows)
            self._fit(rows, None, model)
            if self.is_first_rank:
                shutil.rmtree(rows, ignore_errors=True)  # copies of all rows of the window
        return True

    def _export(self) -> None:
        if not self.config.days.export:
            return
        output = self.folder / "export"
        words = export_words(self.config, self.folder / "rows", self.folder / "model", output)
        if self.config.days.is_accepted(self.day):
            words.append("judgement=ignore")
        with self._timed("export"):
            self._once(output / "export.json", lambda: self.run("export", words, self._log))

    def _fit(self, rows: Path, before: Path | None, model: Path) -> None:
        words = train_words(self.config, rows, before, model)
        self._once(model / "result.json", lambda: self.run("train", words, self._log), on_all_ranks=True)

    def _evaluate(self, split: str, models: Sequence[Path]) -> EvaluationResult:
        path = self.folder / f"{split}_of_{'_'.join(models[0].relative_to(self.days).parts)}.json"
        words = evaluate_words(self.config, self.folder / "rows", split, models, path)
        self._once(path, lambda: self.run("evaluate", words, self._log), on_all_ranks=True)
        try:
            return from_json(EvaluationResult, json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise DataError(Problem(str(path), f"is damaged ({error})", redo([path]))) from error

    @property
    def _log(self) -> Path:
        return self.folder / "log.txt"

    def _once(self, mark: Path, work: Callable[[], None], *, on_all_ranks: bool = False) -> None:
        """Lets the first rank, or all, do ``work``, which leaves ``mark``, unless it is there; the others wait for it."""
        if (self.is_first_rank or on_all_ranks) and not mark.is_file():
            work()
        while not mark.is_file():  # whoever writes it ends the other ranks where it fails
            time.sleep(POLL_SECONDS)

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        """Adds the seconds of the block to those of ``step`` in seconds.json."""
        logger.info("%s: %s", self.day, step)
        started = time.perf_counter()
        try:
            yield
        finally:
            if self.is_first_rank:
                spent = read_seconds(self.folder)
                spent[step] = round(spent.get(step, 0.0) + time.perf_counter() - started, 3)
                write_json(self.folder / SECONDS, spent)


def read_judgement(model: Path) -> Judgement | None:
    """The judgement of the finished run in ``model`` on its val split, the rows held back."""
    path = model / "result.json"
    try:
        evaluation = RunResult.from_json(json.loads(path.read_text(encoding="utf-8"))).evals.get("val")
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(Problem(str(path), f"is damaged ({error})", redo([model]))) from error
    return evaluation.judgement if evaluation is not None else None


def read_settings(path: Path) -> dict[str, Any]:
    """Key → value of the settings that a day was begun with; empty if they are not known."""
    try:
        return from_json(dict[str, Any], json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def read_seconds(folder: Path) -> dict[str, float]:
    """Step → its seconds on the day in ``folder``, interruptions included; none if unknown."""
    try:
        return from_json(dict[str, float], json.loads((folder / SECONDS).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _growth(dataset: Manifest) -> tuple[float | None, dict[str, float], Vocabulary | None]:
    """(share of the day's lookups of values that the parent's vocabularies did not know, by feature, what these gained and lost)."""
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


def prune(days: Path, records: Sequence[DayRecord], num_kept: int) -> None:
    """Deletes what days before the last ``num_kept`` published ones hold, but for the models that coming days are judged by."""
    published = [record.day for record in records if record.published]
    retrained = [record.day for record in records if record.retrained]
    for day in (record.day for record in records if record.day < published[-num_kept:][0]):
        parts = ["dataset", "rows", "export"]
        parts += ["model"] if day != published[0] else []
        parts += ["retrain"] if day not in retrained[-1:] else []
        for part in parts:
            shutil.rmtree(days / day / part, ignore_errors=True)


def publish(folder: Path) -> None:
    """Lets OUTPUT/published be a link to the ``folder`` of a day, in one step. Raises DataError if it is something else."""
    output = folder.parents[1]
    link, target = output / "published", folder.relative_to(output)
    if link.exists() and not link.is_symlink():
        raise DataError(
            Problem(
                str(link), "is no link to the day that is published", "remove it and run the same command"
            )
        )
    if not link.is_symlink() or link.readlink() != target:
        temporary = output / ".published.partial"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.replace(link)
