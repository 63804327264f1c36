"""A training run: build, then for every epoch train and evaluate, and at the end test and report."""

import logging
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dlrm_app.config.train import TrainConfig
from dlrm_app.data.batch import Batch, EvalBatches, TrainBatches
from dlrm_app.data.manifest import Manifest
from dlrm_app.errors import DlrmError
from dlrm_app.runtime import Runtime, start_runtime
from dlrm_app.sharding.plan_file import write_plan
from dlrm_app.training.build import Trainable, build_trainable, open_dataset
from dlrm_app.training.evaluation import evaluate
from dlrm_app.training.loss_meter import LossMeter
from dlrm_app.training.metrics import ClickMetrics
from dlrm_app.training.progress import progress_bar
from dlrm_app.training.run_folder import RunFolder, create_run_folder
from dlrm_app.training.summary import format_summary, say_metrics, say_what_starts


@dataclass
class Progress:
    """How far a run has come: epochs done, steps and samples over all of them, and what they gave."""

    epoch: int = 0
    step: int = 0
    samples: int = 0
    train_seconds: float = 0.0
    train_loss: list[float] = field(default_factory=list)
    evals: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class TrainingRun:
    """Everything that the steps of one run share."""

    config: TrainConfig
    runtime: Runtime
    manifest: Manifest
    trainable: Trainable
    folder: RunFolder
    progress: Progress = field(default_factory=Progress)

    @property
    def is_out_of_steps(self) -> bool:
        """Whether trainer.max_steps is reached."""
        limit = self.config.trainer.max_steps
        return limit is not None and self.progress.step >= limit


def train(config: TrainConfig) -> dict[str, Any]:
    """Runs ``config`` to its end and gives what result.json holds. Raises DlrmError for what a user can cure."""
    quiet_libraries()
    with start_runtime(config.trainer.threads) as runtime:
        run = prepare(config, runtime)
        while run.progress.epoch < config.trainer.epochs and not run.is_out_of_steps:
            train_epoch(run)
            evaluate_split(run, "val")
            run.progress.epoch += 1
        return finish(run)


def prepare(config: TrainConfig, runtime: Runtime) -> TrainingRun:
    """Opens the dataset, builds the model and makes the run folder; whatever fails, fails on every rank."""
    manifest, tables = runtime.together(lambda: open_dataset(config, runtime.world_size))
    say_what_starts(config, manifest, tables, runtime)
    trainable = runtime.together(lambda: build_trainable(config, tables, len(manifest.dense), runtime))
    folder = create_run_folder(config.output, runtime)
    folder.write_start(config, runtime)
    if runtime.is_first:
        write_plan(folder.path / "plan.yaml", trainable.plan)
    return TrainingRun(config, runtime, manifest, trainable, folder)


def train_epoch(run: TrainingRun) -> None:
    """One pass over the training rows, in the order of (manifest, seed, epoch, global batch size)."""
    trainer, progress, pipeline = run.config.trainer, run.progress, run.trainable.pipeline
    batches = train_batches(run)
    num_steps = len(batches)
    if trainer.max_steps is not None:
        num_steps = min(num_steps, trainer.max_steps - progress.step)
    meter = LossMeter(run.runtime)
    run.trainable.model.train()
    started = time.perf_counter()
    title, num_samples = f"epoch {progress.epoch + 1}/{trainer.epochs}", num_steps * trainer.global_batch_size
    with batches, progress_bar(title, num_samples, run.runtime, "sample", scale=True) as bar:
        stream = first_batches(iter(batches), num_steps)
        for left in reversed(range(num_steps)):
            loss, _, _ = pipeline.progress(stream)
            meter.add(loss)
            progress.step += 1
            bar.update(trainer.global_batch_size)
            if progress.step % trainer.log_every_steps == 0 or left == 0:
                log_loss(run, meter, bar)
    pipeline.detach()  # evaluation runs the plain forward; the next step attaches again
    progress.samples += num_samples
    progress.train_seconds += time.perf_counter() - started
    progress.train_loss.append(meter.mean_of_epoch())


def train_batches(run: TrainingRun) -> TrainBatches:
    """This rank's batches of the current epoch."""
    return TrainBatches(
        run.manifest,
        run.trainable.features,
        global_batch_size=run.config.trainer.global_batch_size,
        lanes=run.config.data.lanes,
        seed=run.config.trainer.seed,
        epoch=run.progress.epoch,
        rank=run.runtime.rank,
        world_size=run.runtime.world_size,
        shuffle=run.config.data.shuffle,
        prefetch=run.config.data.prefetch_batches,
    )


def first_batches(stream: Iterator[Batch], count: int) -> Iterator[Batch]:
    """The first ``count`` batches, so that a pipeline reading ahead drains at that place."""
    for _ in range(count):
        yield next(stream)


def log_loss(run: TrainingRun, meter: LossMeter, bar: Any) -> None:
    """Writes a train event; refuses to go on from a loss that is no number."""
    loss, seconds = meter.read()
    optimizer, progress = run.config.optimizer, run.progress
    run.folder.log_event(
        "train",
        epoch=progress.epoch,
        step=progress.step,
        loss=loss,
        samples_per_second=run.config.trainer.global_batch_size / seconds,
        lr={"sparse": optimizer.sparse.lr, "dense": optimizer.dense.lr},
    )
    bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
    if not loss < float("inf"):
        raise DlrmError(
            f"the training loss became {loss} by step {progress.step} (epoch {progress.epoch + 1}): "
            f"lower optimizer.sparse.lr ({optimizer.sparse.lr}) or optimizer.dense.lr ({optimizer.dense.lr}), "
            "or look for extreme values in the dense columns; trainer.log_every_steps=1 finds the step"
        )


def evaluate_split(run: TrainingRun, split: str) -> None:
    """Evaluates on ``split``, if the dataset has it with labels, and writes an eval event."""
    if split not in run.manifest.splits or run.manifest.splits[split].positives is None:
        return
    batches = EvalBatches(
        run.manifest,
        split,
        run.trainable.features,
        batch_size=run.config.evaluation.batch_size,
        rank=run.runtime.rank,
        world_size=run.runtime.world_size,
        prefetch=run.config.data.prefetch_batches,
    )
    with batches:
        values = evaluate(run.trainable.model, batches, ClickMetrics(split), run.runtime, f"evaluate {split}")
    epoch, step = len(run.progress.train_loss) - 1, run.progress.step
    event = {"split": split, "epoch": epoch, "step": step, **values}
    run.progress.evals.append(event)
    run.folder.log_event("eval", **event)
    say_metrics(split, epoch, step, values)


def finish(run: TrainingRun) -> dict[str, Any]:
    """Evaluates on test, writes result.json and prints the table of epochs."""
    evaluate_split(run, "test")
    progress = run.progress
    val = [event for event in progress.evals if event["split"] == "val"]
    best = max(val, key=lambda event: event["auc"], default=None)
    result = {
        "evals": {event["split"]: event for event in progress.evals},
        "best_epoch": best["epoch"] if best else None,
        "best_reachable": run.manifest.best,
        "steps": progress.step,
        "train_loss": progress.train_loss,
        "train_seconds": progress.train_seconds,
        "samples_per_second": progress.samples / max(progress.train_seconds, 1e-9),
        "world_size": run.runtime.world_size,
    }
    run.folder.write_result(result)
    if run.runtime.is_first:
        print(f"\n{format_summary(progress.train_loss, progress.evals, run.manifest.best)}\n")
        print(
            f"{progress.step:,} steps, {result['samples_per_second']:,.0f} samples/s; run folder {run.folder.path}"
        )
        print(f"next: less {run.folder.path / 'metrics.jsonl'}")
    return result


def quiet_libraries() -> None:
    """torchrec and torch log every plan and warn of their own deprecations; a run's lines would drown in them."""
    for name in ("torchrec", "torch.distributed", "fbgemm_gpu", "torch.fx._symbolic_trace"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for module in ("torch", "torchrec", "fbgemm_gpu"):
        warnings.filterwarnings("ignore", category=FutureWarning, module=rf"{module}\.")
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=rf"{module}\.")
    # fbgemm's dense kernel differentiates in its own way, which torch cannot see; tests compare it with torch's
    warnings.filterwarnings("ignore", message="fbgemm::dense_embedding_codegen_lookup_function")
