"""One day: encodes it, judges it by earlier models, trains on it, and compares the new model on held-out rows.

    OUTPUT/days/2026-11-02/dataset/   the day's rows, by dlrm-preprocess
                           rows/      the rows to train on: the day's, and some of earlier days
                           model/     the run, by dlrm-train
                           retrain/   the run from scratch, if one is due, and its rows
                           export/    by dlrm-export, if the model is published
                           settings.json  all settings that decide the result
                           day.json   written last

Every step leaves a file that marks it as done. A call after an interruption continues with the first step that is not.
"""

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dlrm_app.checksums import checksum
from dlrm_app.config.days import DaysConfig
from dlrm_app.config.overrides import Settings
from dlrm_app.dataset.manifest import MANIFEST, Manifest, read_manifest
from dlrm_app.dates import day_of
from dlrm_app.evaluation.result import EvaluationResult
from dlrm_app.files import write_json
from dlrm_app.records import read_record
from dlrm_app.runs.checkpoint.evaluation import Judgement
from dlrm_app.runs.events import RunResult
from dlrm_app.text import bullets
from dlrm_app.tools.daily.gate import judge_after, judge_before, why_held
from dlrm_app.tools.daily.measure import (
    PROFILE,
    asked_rows,
    hours_of,
    known_rows,
    missing_shares,
    shifts,
    weights_of,
    write_measures,
)
from dlrm_app.tools.daily.new_columns import refuse_new_columns
from dlrm_app.tools.daily.record import (
    RECORD,
    SETTINGS,
    UNREPORTED,
    DayRecord,
    Holdout,
    LabelDay,
    Scores,
    holdouts_of,
    labels_of,
    read_day_settings,
    redo_hint,
    vocabulary_growth,
    write_record,
)
from dlrm_app.tools.daily.rows import Earlier, write_rows
from dlrm_app.tools.daily.settings import (
    evaluate_settings,
    export_settings,
    keys_as_typed,
    of_later_days,
    preprocess_settings,
    setting_changes,
    settings_of,
    train_settings,
)
from dlrm_app.tools.daily.steps import RunCommand, Steps
from dlrm_app.tools.daily.usual import ComparedDay

if TYPE_CHECKING:
    from dlrm_app.distributed.runtime import Runtime

logger = logging.getLogger(__name__)
_SHOWN_CHANGES = 8
"""Changed settings that a message shows."""
_COMPARED_DAYS = 31
"""Published days that a new day is searched for repeated rows of."""


@dataclass(frozen=True)
class Day:
    """The work of ``day``. Every rank makes one, and all do the same steps in the same order.

    ``published``: the days published before it. The last one is the parent: the day begins with its model and
    vocabularies.
    ``days``: the folder of all days.
    """

    config: DaysConfig
    day: date
    published: Sequence[DayRecord]
    days: Path
    run: RunCommand
    ranks: "Runtime"

    @cached_property
    def folder(self) -> Path:
        return self.days / self.day.isoformat()

    @cached_property
    def _steps(self) -> Steps:
        return Steps(self.day, self.folder, self.run, self.ranks)

    @cached_property
    def parent(self) -> Path | None:
        return self.days / self.published[-1].day if self.published else None

    def window(self, size: int) -> Sequence[DayRecord]:
        """The last ``size`` days that were published."""
        return self.published[-size:] if size else []

    def learn(self) -> DayRecord:
        """Does the steps that are left. Returns the record, which is written."""
        self._begin()
        dataset = self._encode()
        has_weights = self.config.train.get("trainer.weights") is not False
        record = self._measure(dataset if has_weights else dataset.without_weights())
        is_accepted = self.config.days.is_accepted(self.day)
        compared = ComparedDay(
            record, self.published, self.config.gate, {column.name for column in dataset.sparse}
        )
        verdicts = judge_before(compared)
        held = why_held(verdicts, is_accepted=is_accepted)
        if held is None:
            record = self._train(record)
            after = judge_after(replace(compared, day=record))
            verdicts, held = [*verdicts, *after], why_held(after, is_accepted=is_accepted)
        if held is None:
            record = replace(record, retrained=self._retrain())
            self._export()
        return self._finish(replace(record, rules=verdicts, published=held is None, held=held))

    def _finish(self, record: DayRecord) -> DayRecord:
        """Writes the record. Notes first that days.on_held must be called for it."""

        def write() -> None:
            if record.held and self.config.days.command_on_held:
                (self.folder / UNREPORTED).touch()
            write_record(self.folder, record)

        self.ranks.on_first(write)
        return record

    @cached_property
    def _command_settings(self) -> dict[str, dict[str, object]]:
        parent, folder = self.parent, self.folder
        manifest = read_manifest(parent / "dataset") if parent else None
        model = parent / "model" if parent else None
        settings = {
            "preprocess": preprocess_settings(self.config, self.day, manifest, folder / "dataset"),
            "train": train_settings(self.config, folder / "rows", model, folder / "model"),
        }
        if self.config.days.export:
            settings["export"] = export_settings(
                self.config, folder / "rows", folder / "model", folder / "export"
            )
        return settings

    def _begin(self) -> None:
        """Writes the day's settings. Deletes an unfinished day that was begun with other settings."""
        called, path = self._command_settings, self.folder / SETTINGS
        settings = settings_of(self.config, called)

        def write() -> None:
            before = read_day_settings(path)
            if before == settings:
                return
            if self.folder.exists() and any(self.folder.iterdir()):
                changes = (
                    setting_changes(before, settings, called) if before else ["its settings are not known"]
                )
                text = "%s was begun with other settings and begins again:\n%s"
                logger.warning(text, self.day, bullets(changes, _SHOWN_CHANGES))
                shutil.rmtree(self.folder)
            elif changes := self._changes_since_parent(settings, called):
                text = "%s: other settings than on %s:\n%s"
                logger.info(text, self.day, self.published[-1].day, bullets(changes, _SHOWN_CHANGES))
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(path, settings)

        self.ranks.on_first(write)
        if self.parent and not self._steps.is_done(self.folder / "dataset" / MANIFEST):
            manifest, model = read_manifest(self.parent / "dataset"), self.parent / "model"
            with keys_as_typed("train"):
                self.ranks.on_first(lambda: refuse_new_columns(called, manifest, model))

    def _changes_since_parent(
        self, settings: Mapping[str, object], called: Mapping[str, Settings]
    ) -> list[str]:
        before = of_later_days(read_day_settings(self.parent / SETTINGS)) if self.parent else {}
        return setting_changes(before, of_later_days(settings), called) if before else []

    def _measure(self, dataset: Manifest) -> DayRecord:
        """The record of the day before training: its rows, and the scores of earlier models on them."""
        with self._steps.timed("judge"):
            self._steps.once(self.folder / PROFILE, lambda: write_measures(dataset, self.folder))
        results = self._score_with_earlier_models()
        return self.ranks.on_first(lambda: self._record(dataset, results))

    def _record(self, dataset: Manifest, results: Mapping[str, EvaluationResult]) -> DayRecord:
        scores = {field: Scores.of(result) for field, result in results.items()}
        of_labels = labels_of(results["next_day"]) if "next_day" in results else {}
        unseen_share, unseen, vocabulary = vocabulary_growth(dataset)
        rows = read_manifest(self.folder / "rows").splits["test"]
        compared, in_window = (
            [self.days / record.day for record in self.window(size)]
            for size in (_COMPARED_DAYS, self.config.gate.window)
        )
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
            shift=shifts(dataset, in_window),
            known_rows=known_rows(self.folder, compared),
            hours={} if self.config.input.are_hours else hours_of(dataset),
            labels={
                name: LabelDay(counts.rows, counts.positives, of_labels.get(name))
                for name, counts in rows.labels.items()
            },
            asked=asked_rows(dataset),
            weights=weights_of(dataset),
            published=False,
            parent=self.parent.name if self.parent else None,
            parent_record=checksum(self.parent / RECORD) if self.parent else None,
            settings=checksum(self.folder / SETTINGS),
            sources=dataset.sources,
        )

    def _encode(self) -> Manifest:
        """Makes the day's dataset, and the dataset of the rows to train on. Returns the first."""
        days = self.config.days
        output = self.folder / "dataset"
        settings = self._command_settings["preprocess"]
        with self._steps.timed("encode"):
            self._steps.once(output / MANIFEST, lambda: self._steps.call("preprocess", settings))
        dataset = self.ranks.on_first(lambda: read_manifest(output))
        with self._steps.timed("replay"):
            replayed = self.window(days.replay_window) if days.replay else []
            earlier = [self._earlier(record, "train", days.replay) for record in replayed]
            # no model was trained on the parent's held-out rows yet
            earlier += [self._earlier(record, "val") for record in self.window(1)]
            self._write_rows(dataset, earlier, self.folder / "rows")
        return dataset

    def _earlier(self, record: DayRecord, split: str, share: float = 1.0) -> Earlier:
        dataset = read_manifest(self.days / record.day / "dataset")
        return Earlier(day_of(record.day), dataset, split, share)

    def _write_rows(self, dataset: Manifest, earlier: Sequence[Earlier], folder: Path) -> None:
        self._steps.once(folder / MANIFEST, lambda: write_rows(dataset, self.day, earlier, folder))

    def _score_with_earlier_models(self) -> dict[str, EvaluationResult]:
        """Field of the record → the evaluation on all rows of this day.

        They are those of the parent's model, of the first day's, and of the newest one trained from scratch.
        """
        models = {}
        if self.parent:
            models["next_day"] = self.parent / "model"
            models["first_model"] = self.days / self.published[0].day / "model"
        if retrained := [record.day for record in self.published if record.retrained]:
            models["full_retrain"] = self.days / retrained[-1] / "retrain" / "model"
        with self._steps.timed("judge"):
            return {field: self._evaluate("test", [model]) for field, model in models.items()}

    def _train(self, record: DayRecord) -> DayRecord:
        """Trains the day's model. Returns ``record`` with its scores and the parent's on the held-out rows."""
        before, model = self.parent / "model" if self.parent else None, self.folder / "model"
        with self._steps.timed("train"):
            self._fit(self.folder / "rows", before, model)
        with self._steps.timed("judge"):
            result = self._evaluate("val", [model, *([before] if before else [])])
        judged = self.ranks.on_first(lambda: read_judgements(model))
        holdouts = holdouts_of(result)
        labels = {
            name: replace(day, holdout=holdouts.get(name), judgement=judged.get(name))
            for name, day in record.labels.items()
        }
        return replace(record, holdout=Holdout.of(result), judgement=judged.get(""), labels=labels)

    def _retrain(self) -> bool:
        """Trains from scratch on the last days if that is due. Returns True if it was."""
        every = self.config.days.full_retrain
        if every is None or len(self.published) + 1 < every:
            return False
        if any(record.retrained for record in self.window(every - 1)):
            return False
        rows, model = self.folder / "retrain" / "rows", self.folder / "retrain" / "model"
        with self._steps.timed("retrain"):
            if not self._steps.is_done(model / "result.json"):
                window = self.window(self.config.days.retrain_window - 1)
                earlier = [self._earlier(record, split) for record in window for split in ("train", "val")]
                self._write_rows(read_manifest(self.folder / "dataset"), earlier, rows)
            self._fit(rows, None, model)
            # they are copies of all rows of the window
            self.ranks.on_first(lambda: shutil.rmtree(rows, ignore_errors=True))
        return True

    def _export(self) -> None:
        if not self.config.days.export:
            return
        output = self.folder / "export"
        settings = export_settings(self.config, self.folder / "rows", self.folder / "model", output)
        if self.config.days.is_accepted(self.day):
            settings["judgement"] = "ignore"
        with self._steps.timed("export"):
            self._steps.once(output / "export.json", lambda: self._steps.call("export", settings))

    def _fit(self, rows: Path, before: Path | None, model: Path) -> None:
        settings = train_settings(self.config, rows, before, model)
        self._steps.once_on_all(model / "result.json", lambda: self._steps.call("train", settings))

    def _evaluate(self, split: str, models: Sequence[Path]) -> EvaluationResult:
        path = self.folder / f"{split}_of_{'_'.join(models[0].relative_to(self.days).parts)}.json"
        settings = evaluate_settings(self.config, self.folder / "rows", split, models, path)
        self._steps.once_on_all(path, lambda: self._steps.call("evaluate", settings))
        return self.ranks.on_first(lambda: read_record(path, EvaluationResult, redo_hint([path])))


def read_judgements(model: Path) -> dict[str, Judgement]:
    """The judgements of the finished run in ``model`` on its val split, the rows held back: ``Evaluation.by_label``."""
    evaluation = read_record(model / "result.json", RunResult, redo_hint([model])).evals.get("val")
    return evaluation.by_label if evaluation is not None else {}
