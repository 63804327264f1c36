"""Log lines of a run at its start and during training."""

import logging
import math
from collections.abc import Mapping

from dlrm_app.config.train import ModelConfig, TrainerConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.runs.checkpoint.evaluation import LEARNT, TOO_EARLY, Evaluation, Judgement
from dlrm_app.runs.events import TrainEvent
from dlrm_app.runs.shown_metrics import EMA_METRICS, metrics_text, shown_of_groups
from dlrm_app.tables.table import Table
from dlrm_app.text import duration
from dlrm_app.training.instruments import largest_part
from dlrm_app.training.state import TrainingRun

logger = logging.getLogger(__name__)


def log_start(
    manifest: Manifest, tables: list[Table], trainer: TrainerConfig, model: ModelConfig, runtime: Runtime
) -> None:
    """Logs device, data, model and the number of rows left out, before the first step."""
    rows, batch_size = manifest.splits["train"].rows, trainer.global_batch_size
    logger.info(
        f"{runtime.world_size} rank(s) on {runtime.device.type}, {runtime.num_threads} thread(s) each; {rows:,} "
        f"rows in {manifest.path}, {rows // batch_size:,} steps of {batch_size:,} an epoch ({rows % batch_size:,} "
        "rows left out of each)"
    )
    weights = sum(table.rows * table.dim for table in tables)
    kind = model.kind
    if model.ensemble_size > 1:
        kind += f" × {model.ensemble_size}, each with rows and weights of its own,"
    logger.info("%s with %d tables, %s table weights", kind, len(tables), f"{weights:,}")
    if runtime.device.type == "cuda" and trainer.precision == "fp32" and not trainer.tf32:
        logger.info(
            "the dense part multiplies in fp32; trainer.tf32=true and trainer.precision=bf16 are several times faster"
        )


def warn_of_untaught(untaught: Mapping[str, str]) -> None:
    """Warns of labels that cannot be learnt from the rows. ``untaught``: label → why."""
    for why in untaught.values():
        logger.warning("%s: the model cannot learn it, and dlrm-export refuses the model", why)


def epoch_title(run: TrainingRun) -> str:
    """The epoch of the next step, as text."""
    return f"epoch {run.progress.epoch + 1}/{run.config.trainer.epochs}"


def log_step(run: TrainingRun, event: TrainEvent, seconds_per_step: float) -> None:
    """Logs one line for the steps since the last one, so that a log file shows the progress too."""
    progress = run.progress
    logger.info(
        "%s, step %s/%s: loss %.5f%s, %s samples/s%s, %s of training left",
        epoch_title(run),
        f"{progress.step:,}",
        f"{run.num_steps:,}",
        event.loss,
        "" if math.isnan(event.ne) else f", NE {event.ne:.4f}, calibration {event.calibration:.3f}",
        f"{event.samples_per_second:,.0f}",
        f" ({part})" if (part := largest_part(event.step_ms)) else "",
        duration(seconds_per_step * (run.num_steps - progress.step)),
    )


def log_evaluation(evaluation: Evaluation) -> None:
    """Logs one line for an evaluation."""
    metrics = evaluation.metrics
    logger.info(
        "%s after epoch %d, step %s: %s (%s)",
        evaluation.split,
        evaluation.epoch + 1,
        f"{evaluation.step:,}",
        metrics_text(metrics),
        f"{metrics['num_samples']:,.0f} rows" + _weighed(metrics),
    )
    _log_groups(metrics)
    for name, each in evaluation.labels.items():
        rows = f"{each['num_samples']:,.0f} rows" + _weighed(each)
        logger.info("  %s: %s (%s)", name, metrics_text(each), rows)
        _log_groups(each)
    if "ema_auc" in metrics:
        logger.info("  with the average of the dense weights: %s", metrics_text(metrics, EMA_METRICS, "ema_"))
    for name, judgement in evaluation.by_label.items():
        log_judgement(evaluation.split + f", {name}" * bool(name), judgement)


def _log_groups(metrics: Mapping[str, float]) -> None:
    if shown := shown_of_groups(metrics):
        counts = metrics["groups"], metrics["groups_without_click"]
        template = "  within groups: %s (%s groups with a click; %s without are left out)"
        logger.info(template, metrics_text(metrics, shown), *(f"{number:,.0f}" for number in counts))


def _weighed(metrics: Mapping[str, float]) -> str:
    """The weight of the rows and the AUC without weights, in words; nothing if rows have none."""
    if "weight" not in metrics:
        return ""
    return f" of weight {metrics['weight']:,.6g}; unweighted AUC {metrics['auc_unweighted']:.5f}"


def log_judgement(title: str, judgement: Judgement) -> None:
    """Logs a verdict that is not good or has a cause: a warning with likely causes, or one line if undecided."""
    if judgement.verdict == LEARNT and not judgement.causes:
        return
    is_early = [cause.name for cause in judgement.causes] == [TOO_EARLY]
    if is_early or not (judgement.is_bad or judgement.causes):
        logger.info("%s: %s", title, judgement.says)
        return
    logger.warning("%s: the model is %s", title, judgement.text)
