"""When a run saves itself, what it keeps, and how it goes on."""

import logging
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dlrm_app.checkpoint.format import (
    checkpoint_name,
    list_checkpoints,
    read_marker,
    remove_all_but,
    val_auc,
)
from dlrm_app.checkpoint.pieces import copy_pieces, own_pieces
from dlrm_app.checkpoint.save import (
    load_tensors,
    open_checkpoint,
    random_state,
    save_checkpoint,
    set_random_state,
)
from dlrm_app.checkpoint.state import Tensors, collect_tensors, create_states, set_step
from dlrm_app.checkpoint.writer import Writer
from dlrm_app.config.train import TrainConfig
from dlrm_app.data.columns import describe_columns
from dlrm_app.data.manifest import Manifest
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import ConfigError, DataError, DlrmError, SharedError
from dlrm_app.sharding.plan.plan_file import plan_to_dict
from dlrm_app.tables.sparse_optimizers import optimizer_kinds
from dlrm_app.training.run import TrainingRun

logger = logging.getLogger(__name__)

FIXED_KEYS = (
    ("data", "lanes"),
    ("data", "shuffle"),
    ("trainer", "seed"),
    ("trainer", "global_batch_size"),
)
"""Keys that decide which rows make which batch: a run that goes on must have them as they were."""

LAST_SECONDS = 60.0
"""How long a run that ends by an error of one rank waits for the save under way."""


class Checkpoints:
    """Saves ``run`` when its configuration says so; leaving the block waits for the save under way."""

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self._config = run.config.checkpoint
        self._parent = run.folder.path / "checkpoints"
        self._writer = Writer(self._config.asynchronous)
        self._saved_at = time.monotonic()
        self._described: dict[str, Any] | None = None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        all_leave_together = error is None or isinstance(error, SharedError)
        if all_leave_together or self._run.runtime.world_size == 1:
            self._writer.finish()
        else:
            self._writer.abandon(LAST_SECONDS)

    @property
    def have_failed(self) -> bool:
        """Whether this rank knows that a save in the background failed: the next ``save`` raises it everywhere."""
        return self._writer.has_failed

    def are_due(self) -> bool:
        """Whether the configuration wants one after this step. The clock of ``every_minutes`` is the first rank's."""
        every_steps, every_minutes = self._config.every_steps, self._config.every_minutes
        due = every_steps is not None and self._run.progress.step % every_steps == 0
        if every_minutes is not None and not due:
            elapsed = time.monotonic() - self._saved_at
            due = self._run.runtime.decide_first(elapsed >= 60 * every_minutes)
        return due

    def save(self) -> None:
        """Saves now, or begins to, once the save under way has ended. Raises SharedError for one that failed."""
        run, group = self._run, self._writer.group
        self._writer.finish()
        folder = self._parent / checkpoint_name(run.progress.step)
        content = {
            "progress": asdict(run.progress),
            "meter": run.meter.state(),
            "random_state": random_state(),
            "dataset": run.manifest.fingerprint(),
            "columns": self._columns(),
            "config": asdict(run.config),
            "world_size": run.runtime.world_size,
            "plan": plan_to_dict(run.trainable.plan),
            "metrics_bytes": run.folder.metrics_bytes(),
        }
        tensors = run_tensors(run)
        pieces = copy_pieces(tensors) if self._writer.in_background else own_pieces(tensors)

        def write() -> None:
            save_checkpoint(folder, tensors, pieces, content, run.runtime, group)
            if run.runtime.is_first:
                remove_all_but(self._parent, self._kept())

        self._saved_at = time.monotonic()
        self._writer.start(write)

    def _columns(self) -> dict[str, Any]:
        """How the dataset is encoded, for whoever evaluates the model on other rows; read once, by the first rank."""
        if self._described is None:
            self._described = describe_columns(self._run.manifest) if self._run.runtime.is_first else {}
        return self._described

    def _kept(self) -> set[Path]:
        found = list_checkpoints(self._parent)
        kept = set(found[: self._config.keep_last])
        scores = {path: score for path in found if (score := val_auc(read_marker(path))) is not None}
        best = sorted(scores, key=lambda path: scores[path], reverse=True)
        return kept | set(best[: self._config.keep_best])


def run_tensors(run: TrainingRun) -> Tensors:
    """Every tensor of ``run`` under names that no plan changes."""
    kinds = optimizer_kinds(run.trainable.tables, run.config.optimizer.sparse)
    return collect_tensors(run.trainable.model, run.trainable.optimizer, kinds)


def find_checkpoint(config: TrainConfig, runtime: Runtime) -> tuple[Path, dict[str, Any]] | None:
    """The checkpoint that ``resume`` names, verified, with its marker; None to start afresh.

    ``resume=auto``: the newest in the run folder that is whole, saying which ones are not. A path: that one,
    or the newest of that run folder. Raises DlrmError where a named one cannot be used.
    """
    if config.resume == "none":
        return None
    if config.resume == "auto":
        for folder in list_checkpoints(Path(config.output or "") / "checkpoints"):
            try:
                return folder, open_checkpoint(folder, runtime)
            except DlrmError as error:
                logger.warning("%s\ngoing back to the checkpoint before it", error)
        return None
    folder = Path(config.resume)
    if found := list_checkpoints(folder / "checkpoints"):
        folder = found[0]
    return folder, open_checkpoint(folder, runtime)


def check_resumable(folder: Path, marker: dict[str, Any], config: TrainConfig, manifest: Manifest) -> None:
    """Raises an error naming all that makes the run under ``config`` another one than the checkpoint's."""
    if marker["dataset"] != manifest.fingerprint():
        raise DataError(
            f"checkpoint {folder} was trained on another dataset ({marker['config']['data']['path']}) than "
            f"{config.data.path}: name that one, or start a new run with resume=none and another output"
        )
    now = asdict(config)
    problems = []
    for section, key in FIXED_KEYS:
        then = marker["config"][section][key]
        if then != now[section][key]:
            problems.append(
                f"{section}.{key} is {now[section][key]}, the run in {folder} has {then}: "
                f"give {section}.{key}={then}, or start a new run"
            )
    if problems:
        raise ConfigError(problems)


def restore(run: TrainingRun, folder: Path, marker: dict[str, Any]) -> None:
    """Makes ``run`` the one that was saved, to the bit where ranks and plan are the same."""
    create_states(run.trainable.optimizer)
    tensors = run_tensors(run)
    run.runtime.together(lambda: load_tensors(folder, tensors))
    for name, value in marker["progress"].items():
        setattr(run.progress, name, value)
    set_step(run.trainable.optimizer, run.progress.updates)
    run.meter.load_state(marker["meter"])
    set_random_state(marker["random_state"])
    logger.info(
        "going on from %s: epoch %d, step %s", folder, run.progress.epoch + 1, f"{run.progress.step:,}"
    )
