"""Log lines of a run at its start and during training, and the table that it prints at its end."""

import logging
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.runs.checkpoint.marker import LEARNT, TOO_EARLY, Evaluation
from dlrm_app.runs.events import RunResult, TrainEvent
from dlrm_app.sharding.constraints import log_dense_kernel
from dlrm_app.table import text_table
from dlrm_app.tables.specs import Table
from dlrm_app.text import duration, next_line
from dlrm_app.training.instruments import largest_part
from dlrm_app.training.state import TrainingRun

logger = logging.getLogger(__name__)

HEADINGS = ["", "train loss", "AUC", "log loss", "NE", "calibration"]
DECIMALS = {"auc": 5, "logloss": 5, "ne": 4, "calibration": 4}


def log_start(config: TrainConfig, manifest: Manifest, tables: list[Table], runtime: Runtime) -> None:
    """Logs device, data, model and the number of rows left out, before the first step."""
    rows, batch_size = manifest.splits["train"].rows, config.trainer.global_batch_size
    logger.info(
        f"{runtime.world_size} rank(s) on {runtime.device.type}, {runtime.num_threads} thread(s) each; {rows:,} rows in "
        f"{manifest.path}, {rows // batch_size:,} steps of {batch_size:,} an epoch ({rows % batch_size:,} rows left out of each)"
    )
    weights = sum(table.rows * table.dim for table in tables)
    kind = config.model.kind
    if config.model.ensemble_size > 1:
        kind += f" × {config.model.ensemble_size}, each with rows and weights of its own,"
    logger.info("%s with %d tables, %s table weights", kind, len(tables), f"{weights:,}")
    trainer = config.trainer
    if runtime.device.type == "cuda" and trainer.precision == "fp32" and not trainer.tf32:
        logger.info(
            "the dense part multiplies in fp32; trainer.tf32=true and trainer.precision=bf16 are several times faster"
        )
    log_dense_kernel(tables, config.optimizer.sparse, config.sharding, runtime.device.type)


def epoch_title(run: TrainingRun) -> str:
    """The epoch of the next step, as text."""
    return f"epoch {run.progress.epoch + 1}/{run.config.trainer.epochs}"


def log_step(run: TrainingRun, event: TrainEvent, seconds_per_step: float) -> None:
    """Logs one line for the steps since the last one, so that a log file shows the progress too."""
    progress = run.progress
    logger.info(
        "%s, step %s/%s: loss %.5f, %s samples/s%s, %s of training left",
        epoch_title(run),
        f"{progress.step:,}",
        f"{run.num_steps:,}",
        event.loss,
        f"{event.samples_per_second:,.0f}",
        f" ({part})" if (part := largest_part(event.step_ms)) else "",
        duration(seconds_per_step * (run.num_steps - progress.step)),
    )


def log_evaluation(evaluation: Evaluation) -> None:
    """Logs one line for an evaluation."""
    metrics = evaluation.metrics
    logger.info(
        "%s after epoch %d, step %s: AUC %.5f, log loss %.5f, NE %.4f, calibration %.4f (%s rows)",
        evaluation.split,
        evaluation.epoch + 1,
        f"{evaluation.step:,}",
        *(metrics[name] for name in DECIMALS),
        f"{metrics['num_samples']:,.0f}",
    )
    if "ema_auc" in metrics:
        logger.info(
            "  with the average of the dense weights: AUC %.5f, log loss %.5f, calibration %.4f",
            *(metrics[f"ema_{name}"] for name in ("auc", "logloss", "calibration")),
        )
    log_judgement(evaluation)


def log_judgement(evaluation: Evaluation) -> None:
    """Logs a verdict that is not good: a warning with the likely causes, or one line if it cannot be told."""
    judgement = evaluation.judgement
    if judgement is None or judgement.verdict == LEARNT:
        return
    is_early = [cause.name for cause in judgement.causes] == [TOO_EARLY]
    if not judgement.is_bad or is_early:
        logger.info("%s: %s", evaluation.split, judgement.says)
        return
    logger.warning("%s: the model is %s", evaluation.split, judgement.text)


def print_end(run: TrainingRun, result: RunResult) -> None:
    """Prints the table of epochs, the run's result and what to type next."""
    folder, evals = run.folder.path, run.progress.evals
    print(f"\n{format_summary(result.train_loss, evals, result.best_reachable)}\n")
    print(
        f"{result.steps:,} steps, {result.samples_per_second:,.0f} samples/s while training; run folder {folder}\n"
        f"ended because {result.ended_because}"
    )
    print(next_command(folder, evals, run.progress.best_val()))


def next_command(folder: Path, evals: Sequence[Evaluation], best: Evaluation | None) -> str:
    """The next command after a run: export it, with which=best if the last evaluation on val is not the ``best``."""
    if not evals:
        return next_line("dlrm-evaluate", {"checkpoint": folder, "split": "train"})
    last = [each for each in evals if each.split == "val"][-1:]
    judged = (best if best is not None else evals[-1]).judgement
    if judged is not None and judged.is_bad:  # which dlrm-export would refuse
        return next_line("dlrm-report", {}, shlex.quote(str(folder)))
    which = {} if best is None or best in last else {"which": "best"}
    return next_line("dlrm-export", {"checkpoint": folder, **which, "output": f"{folder}_export"})


def format_summary(
    train_loss: Sequence[float], evals: Sequence[Evaluation], best: Mapping[str, float] | None
) -> str:
    """The final table of a run: a line for each epoch, one for test, and one for the best that the data allows."""
    by_epoch = {each.epoch: each for each in evals if each.split == "val"}
    rows = [
        [f"epoch {epoch + 1}", f"{loss:.5f}", *_cells(by_epoch.get(epoch))]
        for epoch, loss in enumerate(train_loss)
    ]
    rows += [["test", "", *_cells(each)] for each in evals if each.split == "test"]
    if best:
        rows.append(["best reachable", "", f"{best['auc']:.5f}", f"{best['logloss']:.5f}", "", ""])
    return text_table(HEADINGS, rows)


def _cells(evaluation: Evaluation | None) -> list[str]:
    if evaluation is None:
        return [""] * len(DECIMALS)
    return [f"{evaluation.metrics[name]:.{decimals}f}" for name, decimals in DECIMALS.items()]
