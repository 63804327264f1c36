"""One day: encoded with the vocabularies grown, judged by the models before, learnt, compared on the rows held back.

    OUTPUT/days/2026-11-02/dataset/   the day's rows, by dlrm-preprocess
                           rows/      what is trained on: these, and some of the days before
                           model/     the run, by dlrm-train
                           retrain/   the run from scratch, where one is due, and its rows
                           export/    by dlrm-export, if the model is published
                           day.json   written last

Every step leaves a file by which it is known to be done: a call after an interruption goes on behind the last one.
"""

import json
import logging
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

from dlrm_app.config.days import DaysConfig
from dlrm_app.dataset.manifest import MANIFEST, Manifest, read_manifest
from dlrm_app.days.gate import reason_after, reason_before
from dlrm_app.days.record import (
    DAYS,
    SECONDS,
    DayRecord,
    Holdout,
    Scores,
    Vocabulary,
    parent_checksum,
    redo,
    write_record,
)
from dlrm_app.days.rows import Part, refuse_other_columns, write_rows
from dlrm_app.days.words import evaluate_words, export_words, preprocess_words, train_words
from dlrm_app.errors import DataError
from dlrm_app.evaluation.result import EvaluationResult
from dlrm_app.files import write_json
from dlrm_app.records import from_json

logger = logging.getLogger(__name__)
POLL_SECONDS = 0.2

Run = Callable[[str, Sequence[str], Path], None]
"""Runs a command with settings, and what it prints into a file. Raises DlrmError."""


@dataclass(frozen=True)
class History:
    """The days that are done, in order."""

    output: Path
    records: Sequence[DayRecord]

    @property
    def published(self) -> list[DayRecord]:
        """Those whose models were published; the last is the parent of the next day."""
        return [record for record in self.records if record.published]

    def window(self, size: int) -> list[DayRecord]:
        """The last ``size`` of these."""
        return self.published[-size:] if size else []

    def folder(self, day: str) -> Path:
        """The folder of a day."""
        return self.output / DAYS / day


@dataclass(frozen=True)
class Day:
    """The work of ``day``, after ``history``; ``is_first_rank``: this process writes, the others wait for its files."""

    config: DaysConfig
    day: date
    history: History
    run: Run
    is_first_rank: bool

    @cached_property
    def name(self) -> str:
        return self.day.isoformat()

    @cached_property
    def folder(self) -> Path:
        return self.history.folder(self.name)

    @cached_property
    def parent(self) -> str | None:
        """The day whose model and vocabularies this one begins with."""
        return self.history.published[-1].day if self.history.published else None

    def learn(self) -> DayRecord:
        """Does all that is not done yet, and gives the record, which is written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        dataset = self._encode()
        next_day, first, retrained = self._judge()
        unseen_share, unseen, vocabulary = _growth(dataset)
        split = read_manifest(self.folder / "rows").splits["test"]
        before = self.history.window(self.config.days.replay_window or 1)
        held = None
        if self.name not in self.config.days.accept:
            held = reason_before(split.rows, unseen, next_day, before, self.config.days)
        holdout = None
        if held is None:
            holdout = self._train()
            held = reason_after(holdout)
        is_retrained = held is None and self._retrain()
        if held is None and self.config.days.export:
            self._export()
        record = DayRecord(
            day=self.name,
            rows=split.rows,
            positives=split.positives or 0,
            unseen_share=unseen_share if self.parent else None,
            unseen=unseen if self.parent else {},
            vocabulary=vocabulary,
            next_day=next_day,
            first_model=first,
            full_retrain=retrained,
            holdout=holdout,
            published=held is None,
            held=held,
            retrained=is_retrained,
            parent=self.parent,
            parent_record=parent_checksum(self.history.output, self.parent),
            sources=dataset.sources,
            settings=self._settings(),
        )
        self._once(self.folder / "day.json", lambda: write_record(self.folder, record))
        return record

    def _settings(self) -> list[str]:
        config, days = self.config, self.config.days
        kept = [f"days.{key}={getattr(days, key)}" for key in ("holdout", "replay", "replay_window")]
        words = [f"preprocess.{word}" for word in config.preprocess] + [
            f"train.{word}" for word in config.train
        ]
        return [f"dataset={config.dataset}", *kept, *words]

    def _encode(self) -> Manifest:
        """The day's dataset, and the rows that are trained on."""
        parent = read_manifest(self.history.folder(self.parent) / "dataset") if self.parent else None
        words = preprocess_words(self.config, self.day, parent, self.folder / "dataset")
        with self._timed("encode"):
            self._once(
                self.folder / "dataset" / MANIFEST,
                lambda: self.run("preprocess", words, self._log),
            )
        dataset = read_manifest(self.folder / "dataset")
        with self._timed("replay"):
            days = self.config.days
            self._write_rows(dataset, self.history.window(days.replay_window), days.replay, "rows")
        return dataset

    def _write_rows(self, dataset: Manifest, earlier: Sequence[DayRecord], share: float, name: str) -> None:
        def work() -> None:
            parts = []
            for record in earlier if share else ():
                manifest = read_manifest(self.history.folder(record.day) / "dataset")
                parts.append(Part(manifest, date.fromisoformat(record.day), share))
                refuse_other_columns(parts[-1], dataset)
            write_rows(dataset, self.day, parts, self.folder / name)

        self._once(self.folder / name / MANIFEST, work)

    def _judge(self) -> tuple[Scores | None, Scores | None, Scores | None]:
        """The parent's model, the first day's and the newest from scratch on all rows of this day."""
        published = self.history.published
        if not published:
            return None, None, None
        retrained = [record for record in published if record.retrained]
        models = {
            "next_day": self.history.folder(published[-1].day) / "model",
            "first_model": self.history.folder(published[0].day) / "model",
        }
        if retrained:
            models["full_retrain"] = self.history.folder(retrained[-1].day) / "retrain" / "model"
        with self._timed("judge"):
            scores = {
                name: Scores.of(self._evaluate(f"{name}.json", "test", [model]))
                for name, model in models.items()
                if name != "first_model" or model != models["next_day"]
            }
        return scores["next_day"], scores.get("first_model", scores["next_day"]), scores.get("full_retrain")

    def _train(self) -> Holdout:
        """The new model on the rows held back, beside the one that it began with."""
        before = self.history.folder(self.parent) / "model" if self.parent else None
        with self._timed("train"):
            self._fit(self.folder / "rows", before, self.folder / "model")
        models = [self.folder / "model", *([before] if before else [])]
        with self._timed("judge"):
            return Holdout.of(self._evaluate("holdout.json", "val", models))

    def _fit(self, rows: Path, before: Path | None, model: Path) -> None:
        if not (model / "result.json").is_file():
            self.run("train", train_words(self.config, rows, before, model), self._log)
            self._wait_for(model / "result.json")

    def _retrain(self) -> bool:
        """Trains from scratch on the last days if that is due; True if it was."""
        every, published = self.config.days.full_retrain, self.history.published
        since = next((n for n, record in enumerate(reversed(published)) if record.retrained), len(published))
        if every is None or since + 1 < every:
            return False
        window = self.history.window(self.config.days.retrain_window - 1)
        folder = self.folder / "retrain"
        with self._timed("retrain"):
            dataset = read_manifest(self.folder / "dataset")
            if not (folder / "model" / "result.json").is_file():
                self._write_rows(dataset, window, 1.0, "retrain/rows")
            self._fit(folder / "rows", None, folder / "model")
            if self.is_first_rank:
                shutil.rmtree(folder / "rows", ignore_errors=True)  # copies of all rows of the window
        return True

    def _export(self) -> None:
        output = self.folder / "export"
        words = export_words(self.config, self.folder / "rows", self.folder / "model", output)
        with self._timed("export"):
            self._once(output / "export.json", lambda: self.run("export", words, self._log))

    def _evaluate(self, name: str, split: str, models: Sequence[Path]) -> EvaluationResult:
        path = self.folder / name
        if not path.is_file():
            self.run("evaluate", evaluate_words(self.folder / "rows", split, models, path), self._log)
            self._wait_for(path)
        try:
            value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return from_json(EvaluationResult, value)
        except ValueError as error:
            raise DataError(f"{path} is damaged ({error}): {redo([path])}") from error

    @property
    def _log(self) -> Path:
        return self.folder / "log.txt"

    def _once(self, mark: Path, work: Callable[[], None]) -> None:
        """Lets the first rank do ``work``, which leaves ``mark``, unless it is there; the others wait for it."""
        if self.is_first_rank and not mark.is_file():
            work()
        self._wait_for(mark)

    def _wait_for(self, mark: Path) -> None:
        while not mark.is_file():  # whoever writes it ends the other ranks where it fails
            time.sleep(POLL_SECONDS)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        """Adds the seconds of the block, of the clock and of this process's cores, to those of ``name`` in seconds.json."""
        logger.info("%s: %s", self.name, name)
        clock, cores = time.perf_counter(), _cpu_seconds()
        try:
            yield
        finally:
            if self.is_first_rank:
                spent = read_seconds(self.folder)
                before = spent.get(name, [0.0, 0.0])
                now = (time.perf_counter() - clock, _cpu_seconds() - cores)
                spent[name] = [round(a + b, 3) for a, b in zip(before, now, strict=True)]
                write_json(self.folder / SECONDS, spent)


def _cpu_seconds() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def read_seconds(folder: Path) -> dict[str, list[float]]:
    """Step → [seconds, seconds of the first rank's cores] of the day in ``folder``, interruptions included; none if unknown."""
    try:
        return dict(json.loads((folder / SECONDS).read_text(encoding="utf-8")))
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


def prune(history: History, num_kept: int) -> None:
    """Deletes what days before the last ``num_kept`` published ones hold, but for the models that coming days are judged by."""
    published = history.published
    retrained = [record for record in published if record.retrained]
    for record in history.records:
        if record.day >= published[-num_kept:][0].day:
            return
        parts = ["dataset", "rows", "export"]
        parts += ["model"] if record != published[0] else []
        parts += ["retrain"] if record not in retrained[-1:] else []
        for part in parts:
            shutil.rmtree(history.folder(record.day) / part, ignore_errors=True)


def publish(history: History) -> None:
    """Lets OUTPUT/published be a link to the newest published day, in one step."""
    link, target = history.output / "published", Path(DAYS) / history.published[-1].day
    if link.is_symlink() and link.readlink() == target:
        return
    temporary = history.output / ".published.partial"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)
