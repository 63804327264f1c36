"""What a run says at its start and at its end."""

import logging
from typing import Any

from dlrm_app.config.train import TrainConfig
from dlrm_app.data.manifest import Manifest
from dlrm_app.display.numbers import duration
from dlrm_app.display.table import text_table
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.sharding.kernels import log_dense_kernel
from dlrm_app.tables.specs import Table
from dlrm_app.training.run import TrainingRun

logger = logging.getLogger(__name__)

HEADINGS = ["", "train loss", "AUC", "log loss", "NE", "calibration"]


def say_what_starts(config: TrainConfig, manifest: Manifest, tables: list[Table], runtime: Runtime) -> None:
    """Device, data, model, and which rows are left out, before the first step."""
    rows = manifest.splits["train"].rows
    batch_size = config.trainer.global_batch_size
    logger.info(
        "%d rank(s) on %s, %d thread(s) each; %s rows in %s, %s steps of %s an epoch (%d rows left out of each)",
        runtime.world_size,
        runtime.device.type,
        runtime.num_threads,
        f"{rows:,}",
        manifest.path,
        f"{rows // batch_size:,}",
        f"{batch_size:,}",
        rows % batch_size,
    )
    weights = sum(table.rows * table.dim for table in tables)
    kind = config.model.kind
    if config.model.ensemble_size > 1:
        kind += f" × {config.model.ensemble_size}, each with rows and weights of its own,"
    logger.info("%s with %d tables, %s table weights", kind, len(tables), f"{weights:,}")
    log_dense_kernel(tables, config.optimizer.sparse, config.sharding, runtime.device.type)


def say_step(run: TrainingRun, loss: float, seconds_per_step: float) -> None:
    """One line for the steps since the last; it stays where a progress bar does not, in a log file."""
    progress, trainer = run.progress, run.config.trainer
    logger.info(
        "epoch %d/%d, step %s/%s: loss %.5f, %s samples/s, %s of training left",
        progress.epoch + 1,
        trainer.epochs,
        f"{progress.step:,}",
        f"{run.num_steps:,}",
        loss,
        f"{trainer.global_batch_size / seconds_per_step:,.0f}",
        duration(seconds_per_step * (run.num_steps - progress.step)),
    )


def say_metrics(split: str, epoch: int, step: int, values: dict[str, float]) -> None:
    """One line for an evaluation."""
    logger.info(
        "%s after epoch %d, step %s: AUC %.5f, log loss %.5f, NE %.4f, calibration %.4f (%s rows)",
        split,
        epoch + 1,
        f"{step:,}",
        values["auc"],
        values["logloss"],
        values["ne"],
        values["calibration"],
        f"{values['num_samples']:,.0f}",
    )


def format_summary(
    train_loss: list[float], evals: list[dict[str, Any]], best: dict[str, float] | None
) -> str:
    """The table that a run ends with: a line for each epoch, one for test, one for the best that the data allows."""
    by_epoch = {event["epoch"]: event for event in evals if event["split"] == "val"}
    rows = [
        [f"epoch {epoch + 1}", f"{loss:.5f}", *_cells(by_epoch.get(epoch))]
        for epoch, loss in enumerate(train_loss)
    ]
    rows += [["test", "", *_cells(event)] for event in evals if event["split"] == "test"]
    if best:
        rows.append(["best reachable", "", f"{best['auc']:.5f}", f"{best['logloss']:.5f}", "", ""])
    return text_table(HEADINGS, rows)


def _cells(event: dict[str, Any] | None) -> list[str]:
    if event is None:
        return ["", "", "", ""]
    return [
        f"{event['auc']:.5f}",
        f"{event['logloss']:.5f}",
        f"{event['ne']:.4f}",
        f"{event['calibration']:.4f}",
    ]
