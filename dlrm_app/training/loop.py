"""A training run: build, then for every epoch train and evaluate, and at the end test and report."""

import logging
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from dlrm_app.config.train import TrainConfig
from dlrm_app.data.batch import Batch, EvalBatches, TrainBatches
from dlrm_app.data.manifest import Manifest
from dlrm_app.errors import DlrmError
from dlrm_app.runtime import Runtime, start_runtime
from dlrm_app.sharding.plan_file import write_plan
from dlrm_app.training.build import Trainable, build_trainable, open_dataset
from dlrm_app.training.evaluation import evaluate
from dlrm_app.training.metrics import ClickMetrics
from dlrm_app.training.progress import format_table, progress_bar
from dlrm_app.training.run_folder import RunFolder, create_run_folder

logger = logging.getLogger(__name__)


@dataclass
class Progress:
    """Where a run stands; counters over the whole run."""

    epoch: int = 0
    step: int = 0
    samples: int = 0
    train_seconds: float = 0.0
    train_loss: list[float] = field(default_factory=list)
    evals: list[dict[str, Any]] = field(default_factory=list)


def train(config: TrainConfig) -> dict[str, Any]:
    """Runs ``config`` to its end and gives what result.json holds. Raises DlrmError for what a user can cure."""
    quiet_libraries()
    with start_runtime(config.trainer.threads) as runtime:
        manifest, tables = runtime.together(lambda: open_dataset(config, runtime.world_size))
        run = create_run_folder(config.output, runtime)
        run.write_start(config, runtime)
        trainable = runtime.together(
            lambda: build_trainable(config, tables, len(manifest.dense), runtime)
        )
        if runtime.is_first:
            write_plan(run.path / "plan.yaml", trainable.plan)
        say_what_starts(config, manifest, trainable, runtime, run)
        progress = run_epochs(config, manifest, trainable, runtime, run)
        result = finish(config, manifest, trainable, runtime, run, progress)
    return result


def run_epochs(
    config: TrainConfig, manifest: Manifest, trainable: Trainable, runtime: Runtime, run: RunFolder
) -> Progress:
    """Trains every epoch, evaluating on val after each."""
    progress = Progress()
    while progress.epoch < config.trainer.epochs and not is_out_of_steps(config, progress):
        train_epoch(config, manifest, trainable, runtime, run, progress)
        if "val" in manifest.splits:
            evaluate_split("val", config, manifest, trainable, runtime, run, progress)
        progress.epoch += 1
    return progress


def is_out_of_steps(config: TrainConfig, progress: Progress) -> bool:
    """Whether trainer.max_steps is reached."""
    return config.trainer.max_steps is not None and progress.step >= config.trainer.max_steps


def train_epoch(
    config: TrainConfig,
    manifest: Manifest,
    trainable: Trainable,
    runtime: Runtime,
    run: RunFolder,
    progress: Progress,
) -> None:
    """One pass over the training rows, in the order of (manifest, seed, epoch, global batch size)."""
    batches = TrainBatches(
        manifest,
        trainable.features,
        global_batch_size=config.trainer.global_batch_size,
        lanes=config.data.lanes,
        seed=config.trainer.seed,
        epoch=progress.epoch,
        rank=runtime.rank,
        world_size=runtime.world_size,
        shuffle=config.data.shuffle,
        prefetch=config.data.prefetch_batches,
    )
    num_steps = len(batches)
    if config.trainer.max_steps is not None:
        num_steps = min(num_steps, config.trainer.max_steps - progress.step)
    meter = LossMeter(runtime)
    trainable.model.train()
    started = time.perf_counter()
    title = f"epoch {progress.epoch + 1}/{config.trainer.epochs}"
    with (
        batches,
        progress_bar(title, num_steps * config.trainer.global_batch_size, runtime, "sample", scale=True) as bar,
    ):
        stream = first_batches(iter(batches), num_steps)
        for step_in_epoch in range(1, num_steps + 1):
            loss, _, _ = trainable.pipeline.progress(stream)
            meter.add(loss)
            progress.step += 1
            bar.update(config.trainer.global_batch_size)
            if progress.step % config.trainer.log_every_steps == 0 or step_in_epoch == num_steps:
                log_step(config, run, progress, meter, bar)
    trainable.pipeline.detach()  # evaluation runs the plain forward; the next epoch attaches again
    progress.samples += num_steps * config.trainer.global_batch_size
    progress.train_seconds += time.perf_counter() - started
    progress.train_loss.append(meter.mean_of_epoch())


def first_batches(stream: Iterator[Batch], count: int) -> Iterator[Batch]:
    """The first ``count`` batches, so that a pipeline reading ahead drains at that place."""
    for _ in range(count):
        yield next(stream)


class LossMeter:
    """Mean training loss over all ranks, since the last reading and since the epoch's start."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._sum = torch.zeros((), dtype=torch.float64, device=runtime.device)
        self._count = 0
        self._epoch_sum = 0.0
        self._epoch_count = 0
        self._last_read = time.perf_counter()

    def add(self, loss: torch.Tensor) -> None:
        """Adds this rank's loss of one step, without waiting for the device."""
        self._sum += loss
        self._count += 1

    def read(self) -> tuple[float, float]:
        """(mean loss over all ranks, seconds per step) since the last reading. Every rank must call it."""
        if self._runtime.world_size > 1:
            dist.all_reduce(self._sum)
        total = float(self._sum) / self._runtime.world_size
        mean = total / self._count
        self._epoch_sum += total
        self._epoch_count += self._count
        now = time.perf_counter()
        seconds = (now - self._last_read) / self._count
        self._sum.zero_()
        self._count = 0
        self._last_read = now
        return mean, seconds

    def mean_of_epoch(self) -> float:
        """The mean loss over every step read so far."""
        return self._epoch_sum / max(1, self._epoch_count)


def log_step(config: TrainConfig, run: RunFolder, progress: Progress, meter: LossMeter, bar: Any) -> None:
    """Writes a train event; refuses to go on from a loss that is no number."""
    loss, seconds = meter.read()
    run.log_event(
        "train",
        epoch=progress.epoch,
        step=progress.step,
        loss=loss,
        samples_per_second=config.trainer.global_batch_size / seconds,
        lr={"sparse": config.optimizer.sparse.lr, "dense": config.optimizer.dense.lr},
    )
    bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
    if not loss < float("inf"):
        raise DlrmError(
            f"the training loss became {loss} between steps {progress.step - config.trainer.log_every_steps + 1} "
            f"and {progress.step} (epoch {progress.epoch + 1}): lower optimizer.sparse.lr "
            f"({config.optimizer.sparse.lr}) or optimizer.dense.lr ({config.optimizer.dense.lr}), "
            "or check the dense columns for extreme values"
        )


def evaluate_split(
    split: str,
    config: TrainConfig,
    manifest: Manifest,
    trainable: Trainable,
    runtime: Runtime,
    run: RunFolder,
    progress: Progress,
) -> None:
    """Evaluates on ``split`` and writes an eval event."""
    batches = EvalBatches(
        manifest,
        split,
        trainable.features,
        batch_size=config.evaluation.batch_size,
        rank=runtime.rank,
        world_size=runtime.world_size,
        prefetch=config.data.prefetch_batches,
    )
    with batches:
        values = evaluate(trainable.model, batches, ClickMetrics(split), runtime, f"evaluate {split}")
    event = {"split": split, "epoch": progress.epoch, "step": progress.step, **values}
    progress.evals.append(event)
    run.log_event("eval", **event)
    logger.info(
        "%s after epoch %d, step %d: AUC %.5f, log loss %.5f, NE %.4f, calibration %.4f (%d rows)",
        split,
        progress.epoch + 1,
        progress.step,
        values["auc"],
        values["logloss"],
        values["ne"],
        values["calibration"],
        values["num_samples"],
    )


def finish(
    config: TrainConfig,
    manifest: Manifest,
    trainable: Trainable,
    runtime: Runtime,
    run: RunFolder,
    progress: Progress,
) -> dict[str, Any]:
    """Evaluates on test, writes result.json and prints the table of epochs."""
    by_epoch = [event for event in progress.evals if event["split"] == "val"]
    progress.epoch = max(0, progress.epoch - 1)
    if "test" in manifest.splits and manifest.splits["test"].positives is not None:
        evaluate_split("test", config, manifest, trainable, runtime, run, progress)
    last = {event["split"]: event for event in progress.evals}
    best = max(by_epoch, key=lambda event: event["auc"], default=None)
    result = {
        "evals": last,
        "best_epoch": best["epoch"] if best else None,
        "best_reachable": manifest.best,
        "steps": progress.step,
        "train_loss": progress.train_loss,
        "train_seconds": progress.train_seconds,
        "samples_per_second": progress.samples / max(progress.train_seconds, 1e-9),
        "world_size": runtime.world_size,
    }
    run.write_result(result)
    if runtime.is_first:
        print(summary(progress, by_epoch, last.get("test"), manifest, result))
        print(f"\nrun folder: {run.path}\nnext: look at {run.path / 'metrics.jsonl'}, or train longer: trainer.epochs=…")
    return result


def summary(
    progress: Progress,
    by_epoch: list[dict[str, Any]],
    test: dict[str, Any] | None,
    manifest: Manifest,
    result: dict[str, Any],
) -> str:
    """The table that a run ends with: a line for each epoch, one for test, one for the best that the data allows."""
    rows = []
    for epoch, loss in enumerate(progress.train_loss):
        val = next((event for event in by_epoch if event["epoch"] == epoch), None)
        rows.append([f"epoch {epoch + 1}", f"{loss:.5f}", *_metric_cells(val)])
    if test:
        rows.append(["test", "", *_metric_cells(test)])
    if manifest.best:
        best = manifest.best
        rows.append(["best reachable", "", f"{best['auc']:.5f}", f"{best['logloss']:.5f}", "", ""])
    table = format_table(["", "train loss", "AUC", "log loss", "NE", "calibration"], rows)
    return f"\n{table}\n\n{result['steps']:,} steps, {result['samples_per_second']:,.0f} samples/s"


def _metric_cells(event: dict[str, Any] | None) -> list[str]:
    if event is None:
        return ["", "", "", ""]
    return [f"{event['auc']:.5f}", f"{event['logloss']:.5f}", f"{event['ne']:.4f}", f"{event['calibration']:.4f}"]


def say_what_starts(
    config: TrainConfig, manifest: Manifest, trainable: Trainable, runtime: Runtime, run: RunFolder
) -> None:
    """One paragraph before the first step: device, data, tables, and what is left out."""
    rows = manifest.splits["train"].rows
    batch_size = config.trainer.global_batch_size
    weights = sum(table.rows * table.dim for table in trainable.tables)
    logger.info(
        "%d rank(s) on %s, %d thread(s) each; %s rows in %s, %d steps of %d an epoch (%d rows left out of each)",
        runtime.world_size,
        runtime.device.type,
        runtime.num_threads,
        f"{rows:,}",
        manifest.path,
        rows // batch_size,
        batch_size,
        rows % batch_size,
    )
    logger.info(
        "%s with %d tables, %s table weights; run folder %s",
        config.model.kind,
        len(trainable.tables),
        f"{weights:,}",
        run.path,
    )


def quiet_libraries() -> None:
    """torchrec and torch log every plan and warn of their own deprecations; a run's lines would drown in them."""
    for name in ("torchrec", "torch.distributed", "fbgemm_gpu", "torch.fx._symbolic_trace"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for module in ("torch", "torchrec", "fbgemm_gpu"):
        warnings.filterwarnings("ignore", category=FutureWarning, module=rf"{module}\.")
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=rf"{module}\.")
    # fbgemm's dense kernel differentiates in its own way, which torch cannot see; tests compare it with torch's
    warnings.filterwarnings("ignore", message="fbgemm::dense_embedding_codegen_lookup_function")
