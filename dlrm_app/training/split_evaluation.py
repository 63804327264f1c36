"""What a training run evaluates: a split, with its weights and with their average, told to everybody who listens."""

from collections.abc import Callable

from dlrm_app.evaluation.curves import measure_curves
from dlrm_app.evaluation.evaluate import evaluate
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.loader.batch import Batch, EvalBatches
from dlrm_app.loader.loading import choose_loading
from dlrm_app.runs.checkpoint.progress import Evaluation
from dlrm_app.runs.events import HealthEvent
from dlrm_app.training.run import TrainingRun
from dlrm_app.training.summary import log_evaluation

EMA_METRICS = ("auc", "logloss", "calibration")
"""What an evaluation also tells of the averaged dense weights, with ema_ before the name."""


def evaluate_split(run: TrainingRun, split: str) -> None:
    """Evaluates on ``split``, if the dataset has it with labels, and writes what it finds."""
    if split not in run.manifest.splits or run.manifest.splits[split].positives is None:
        return
    metrics = ClickMetrics(split, run.config.evaluation.group_by)
    on_batch = run.health.start_split() if run.health else None
    if split == "val":
        run.folder.mlperf.start_evaluation(run.epochs_trained)
    scores = measure(run, split, metrics, f"evaluate {split}", on_batch)
    if split == "val":
        run.folder.mlperf.end_evaluation(run.epochs_trained, scores["auc"])
    curves = measure_curves(*metrics.rows())
    if run.ema:
        with run.ema.in_place():
            averaged = measure(run, split, metrics, f"evaluate {split}, averaged")
        scores |= {f"ema_{name}": averaged[name] for name in EMA_METRICS}
    epoch, step = run.progress.last_epoch, run.progress.step
    evaluation = Evaluation(split, epoch, step, scores)
    run.progress.evals.append(evaluation)
    run.folder.log(evaluation)
    if run.health:
        run.folder.log(HealthEvent(split, epoch, step, run.health.measure()))
    run.folder.write_curves(split, epoch, step, curves)
    log_evaluation(evaluation)


def measure(
    run: TrainingRun,
    split: str,
    metrics: ClickMetrics,
    title: str,
    on_batch: Callable[[Batch], None] | None = None,
) -> dict[str, float]:
    """What ``metrics`` finds of every row of ``split``. Every rank must call it, with no pipeline attached."""
    with split_batches(run, split) as batches:
        return evaluate(run.trainable.model, batches, metrics, run.runtime, title, on_batch)


def split_batches(run: TrainingRun, split: str) -> EvalBatches:
    """This rank's batches of ``split``, in the order of its files, as the run evaluates on them."""
    config, runtime = run.config, run.runtime
    return EvalBatches(
        run.manifest,
        split,
        run.trainable.features,
        batch_size=config.evaluation_rows(runtime.world_size, runtime.device_type),
        rank=runtime.rank,
        world_size=runtime.world_size,
        loading=choose_loading(config.data.prefetch_batches, config.data.decode_workers, runtime),
    )
