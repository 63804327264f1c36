"""A study: runs trials with values from Optuna until there are enough, and makes the table of their results.

Optuna keeps the trials in OUTPUT/study.log, a journal that any number of processes can append to. The same command,
started again or on other machines that see the folder, continues the study.

Optuna's journal has no heartbeats, and ``study.optimize`` counts the trials of its own process only. So processes ask
for trials under a lock of OUTPUT, and hold the lock of their trial's folder. If nobody holds it, the process is gone,
and the trial is continued.
"""

import fcntl
import logging
import math
import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, TrialState

from dlrm_app.config.like_train import TuneConfig, TuneSettings
from dlrm_app.config.metrics import metric_of
from dlrm_app.config.overrides import Settings
from dlrm_app.distributed.ranks import visible_gpus
from dlrm_app.errors import DlrmError
from dlrm_app.files import explained_disk_errors
from dlrm_app.locks import held_lock
from dlrm_app.result import Paragraph, Result
from dlrm_app.runs.tracking import track_study
from dlrm_app.table import Column, Rows
from dlrm_app.text import NONE, count, fixed
from dlrm_app.tools.tuning.trial import (
    TRAIN,
    TrialError,
    common_settings,
    distribution,
    drawn_settings,
    final_command,
    known_values,
    refuse_other_space,
    trained_values,
    write_study_settings,
)
from dlrm_app.typed import words_of

logger = logging.getLogger(__name__)

FOLDER = "folder"
"""The attribute of a trial with its run folder."""
JOURNAL, TRIALS = "study.log", "trials"
MAX_FAILURES = 3
"""The number of failed trials that ends a study without any success: the others would fail too."""
ENDS = {
    TrialState.COMPLETE: "done",
    TrialState.PRUNED: "given up",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "runs, or was interrupted",
    TrialState.WAITING: "waits",
}


@dataclass(frozen=True)
class Study(Result):
    """A study in the folder ``path``. ``trials``: the best first.

    ``command``: trains with the values of the best trial.
    ``page``: the study's page, if it was written.
    """

    path: Path
    metric: str
    trials: tuple[FrozenTrial, ...]
    command: str | None
    page: Path | None = None

    def paragraphs(self) -> Iterable[Paragraph]:
        yield trials_table(self.trials[:_SHOWN], self.metric)
        if self.page is not None:
            yield f"page: {self.page}"


_SHOWN = 5
"""The number of trials that a study's text shows."""


def tune(config: TuneConfig, typed: Settings, train: Sequence[str] = TRAIN) -> Study:
    """Runs trials until the study has ``tune.trials``. Raises DlrmError if all fail.

    ``typed``: the settings of this command; those of dlrm-train are common to all trials.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    output = Path(str(config.output)).absolute()
    with explained_disk_errors(output, "then type the same command again"):
        (output / TRIALS).mkdir(parents=True, exist_ok=True)
        study = open_study(output, config.tune, config.metric)
        common = common_settings(config, typed)
        write_study_settings(output, config.metric, common)
        refuse_other_space(study, output, config.tune.space)
        track_study(output, config.logging.all_trackers, common)
        _Trials(study, output, config, common, train).run()
        trials = ranked(study)
        is_done = bool(trials) and trials[0].state == TrialState.COMPLETE
        command = final_command(common, trials[0].params) if is_done else None
        return Study(output, config.metric, tuple(trials), command)


def open_study(output: Path, settings: TuneSettings, metric: str) -> optuna.Study:
    """Opens the study in ``output``, new or existing, which compares trials by ``metric``."""
    _cut_half_line(output / JOURNAL)
    study = load_study(output, "maximize" if _rises(metric) else "minimize")
    median = optuna.pruners.MedianPruner(n_startup_trials=settings.startup_trials)
    study.pruner = median if settings.prune else optuna.pruners.NopPruner()
    # processes that join later need another seed, or all would draw the same values
    seed = settings.seed + len(study.get_trials(deepcopy=False))
    study.sampler = optuna.samplers.TPESampler(
        n_startup_trials=settings.startup_trials, seed=seed, constant_liar=True
    )
    return study


def load_study(output: Path, direction: str | None = None) -> optuna.Study:
    """The study with its journal in ``output``. ``direction``: for a new study. Raises DlrmError for a damaged one."""
    journal = output / JOURNAL
    try:
        return optuna.create_study(
            study_name="dlrm-tune",
            storage=JournalStorage(JournalFileBackend(str(journal))),
            direction=direction,
            load_if_exists=True,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DlrmError(
            f"{journal} is damaged, or is not a study ({error}): take it from a copy, or choose another output"
        ) from error


def _cut_half_line(journal: Path) -> None:
    """Deletes an incomplete last line, left by a full disk: Optuna would join the next line to it and lose both."""
    if not journal.is_file():
        return
    lock = JournalFileSymlinkLock(str(journal))  # every writer holds it
    lock.acquire()
    try:
        content = journal.read_bytes()
        if content.startswith(b'{"op_code"'):  # otherwise another program's file
            os.truncate(journal, content.rfind(b"\n") + 1)
    finally:
        lock.release()


def ranked(study: optuna.Study) -> list[FrozenTrial]:
    """Finished trials, the best first; then pruned ones by their last value; then the others."""
    sign = -1.0 if study.direction == optuna.study.StudyDirection.MAXIMIZE else 1.0
    order = {TrialState.COMPLETE: 0, TrialState.PRUNED: 1}

    def rank(trial: FrozenTrial) -> tuple[int, float, int]:
        value = trial.value
        return order.get(trial.state, 2), math.inf if value is None else sign * value, trial.number

    # a trial that failed without an error was interrupted; it is run again under another number
    shown = [each for each in study.trials if each.state != TrialState.FAIL or "error" in each.user_attrs]
    return sorted(shown, key=rank)


def trials_table(trials: Sequence[FrozenTrial], metric: str) -> tuple[list[Column], Rows]:
    """A row for each trial: its score, its values and its end."""
    keys = list(dict.fromkeys(key for trial in trials for key in trial.params))
    columns = [
        Column("trial", is_words=True),
        Column(metric),
        *(Column(key) for key in keys),
        Column("evaluations"),
        Column("end", is_words=True),
    ]
    rows: Rows = [
        [
            str(trial.number),
            score_cell(trial),
            *(
                f"{value:.4g}" if isinstance(value := trial.params.get(key, NONE), float) else str(value)
                for key in keys
            ),
            str(len(trial.intermediate_values)),
            ENDS[trial.state] + (f": {trial.user_attrs['error']}" if "error" in trial.user_attrs else ""),
        ]
        for trial in trials
    ]
    return columns, rows


def score_cell(trial: FrozenTrial | None) -> str:
    """The metric of a finished or pruned trial."""
    has_ended = trial is not None and trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
    return fixed(trial.value if trial is not None and has_ended else None, 5)


@dataclass(frozen=True)
class _Trials:
    """Runs trials, ``tune.jobs`` at a time. ``common``: the settings of all trials."""

    study: optuna.Study
    output: Path
    config: TuneConfig
    common: Settings
    train: Sequence[str]
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Runs trials until the study has enough, each job on its own GPU. Raises the error that stopped a job."""
        jobs, gpus = self.config.tune.jobs, visible_gpus()
        if gpus and jobs > len(gpus):
            shared = count(len(gpus), "GPU")
            logger.warning("tune.jobs=%d share %s: use tune.jobs=%d", jobs, shared, len(gpus))
        with ThreadPoolExecutor(jobs) as pool:
            workers = [
                pool.submit(self._run_job, gpus[job % len(gpus)] if gpus else None) for job in range(jobs)
            ]
            try:
                for worker in workers:
                    worker.result()
            except BaseException:
                self.stopped.set()
                raise

    def _run_job(self, gpu: str | None) -> None:
        while not self.stopped.is_set():
            with ExitStack() as stack:
                trial = self._ask(stack)
                if trial is None:
                    return
                self._run(trial, gpu)

    def _ask(self, stack: ExitStack) -> optuna.Trial | None:
        """A trial whose folder ``stack`` locks: a new one, or one that was interrupted; None if there are enough."""
        with (self.output / ".lock").open("w") as alone:
            fcntl.flock(alone, fcntl.LOCK_EX)
            interrupted = self._queue_interrupted()
            trials = self.study.get_trials(deepcopy=False)
            failed = [each for each in trials if "error" in each.user_attrs]
            self._refuse_failures(trials, failed)
            done = [each for each in trials if each.state not in (TrialState.FAIL, TrialState.WAITING)]
            if len(done) + len(failed) >= self.config.tune.trials:
                return None
            drawn = {entry["key"]: distribution(entry) for entry in self.config.tune.space}
            if interrupted is not None:
                drawn = interrupted.distributions
            elif not trials:  # the first trial has dlrm-train's own values
                self.study.enqueue_trial(first := known_values(self.config))
                drawn = {key: drawn[key] for key in first}
            trial = self.study.ask(drawn)
            folder = trial.user_attrs.get(FOLDER, f"{TRIALS}/{trial.number:04d}")
            trial.set_user_attr(FOLDER, folder)
            stack.enter_context(self._held(folder))
            return trial

    def _refuse_failures(self, trials: Sequence[FrozenTrial], failed: Sequence[FrozenTrial]) -> None:
        """Raises DlrmError if trials fail and none with drawn values has succeeded: the next ones would fail too."""
        drawn = [each for each in trials if each.user_attrs.get(FOLDER) != f"{TRIALS}/0000"]
        if len(failed) >= MAX_FAILURES and all(each.state != TrialState.COMPLETE for each in drawn):
            raise DlrmError(
                f"{MAX_FAILURES} trials failed and no trial with drawn values succeeded; the last: "
                f"{failed[-1].user_attrs['error']}"
            )

    def _queue_interrupted(self) -> FrozenTrial | None:
        """Queues a trial whose process is gone as the next one, with its values and its folder; returns it."""
        for each in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if (folder := each.user_attrs.get(FOLDER)) is None:
                continue
            with suppress(DlrmError), self._held(folder):
                self.study.tell(each.number, state=TrialState.FAIL)
                self.study.enqueue_trial(each.params, user_attrs={FOLDER: folder})
                return each
        return None

    def _held(self, folder: str) -> AbstractContextManager[None]:
        return held_lock((self.output / folder).with_suffix(".lock"), "another process runs this trial")

    def _run(self, trial: optuna.Trial, gpu: str | None) -> None:
        """Trains, and tells Optuna how the trial ends. A trial that is interrupted stays open, to be continued."""
        metric, drawn = self.config.metric, drawn_settings(trial.params)
        logger.info("trial %d: %s", trial.number, " ".join(words_of(drawn)))
        settings = {**self.common, **drawn}
        folder = self.output / trial.user_attrs[FOLDER]
        values: list[float] = []
        try:
            with closing(trained_values(folder, settings, metric, self.stopped, self.train, gpu)) as trained:
                for number, value in enumerate(trained):
                    values.append(value)
                    if not math.isnan(value):
                        trial.report(value, number)
                        if trial.should_prune():
                            raise optuna.TrialPruned
            best = _best(values, metric)
        except TrialError as error:
            trial.set_user_attr("error", str(error))
            self.study.tell(trial, state=TrialState.FAIL)
            logger.warning("trial %d failed: %s", trial.number, error)
        except optuna.TrialPruned:
            self.study.tell(trial, state=TrialState.PRUNED)
            logger.info("trial %d given up at %s %.5f", trial.number, metric, _best(values, metric))
        else:
            self.study.tell(trial, best)
            logger.info("trial %d has %s %.5f", trial.number, metric, best)


def _best(values: Sequence[float], metric: str) -> float:
    """The best of the defined ``values``. Raises TrialError if there is none."""
    defined = [value for value in values if not math.isnan(value)]
    if not defined:
        raise TrialError(f"its {metric} is undefined" if values else "it was never evaluated")
    return max(defined) if _rises(metric) else min(defined)


def _rises(metric: str) -> bool:
    known = metric_of(metric)
    return known is None or known.rises
