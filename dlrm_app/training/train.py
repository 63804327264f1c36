"""A training run: build, then for every epoch train and evaluate, and at the end test and report."""

import logging
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from typing import Any, NoReturn

import torch

from dlrm_app.checkpoint.policy import Checkpoints, check_resumable, find_checkpoint, restore
from dlrm_app.config.train import TrainConfig
from dlrm_app.data.batch import Batch, EvalBatches, TrainBatches
from dlrm_app.display.progress import progress_bar
from dlrm_app.distributed.quiet import quiet_libraries
from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.distributed.signals import Stopped, StopWish, stop_on_signals
from dlrm_app.errors import DlrmError, refuse_if
from dlrm_app.evaluation.curves import measure_curves
from dlrm_app.evaluation.evaluate import evaluate, evaluation_problems
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.sharding.plan.plan_file import write_plan
from dlrm_app.sharding.plan.plan_table import log_plan
from dlrm_app.training.eval_schedule import is_eval_due
from dlrm_app.training.loss_meter import LossMeter
from dlrm_app.training.nonfinite import check_finite, count_skipped
from dlrm_app.training.report.page import write_report
from dlrm_app.training.run import Progress, TrainingRun
from dlrm_app.training.run_folder import create_run_folder
from dlrm_app.training.setup import build_trainable, open_dataset
from dlrm_app.training.skipping import place_gate
from dlrm_app.training.summary import format_summary, say_metrics, say_step, say_what_starts
from dlrm_app.training.table_health.health import TableHealth

logger = logging.getLogger(__name__)


def train(config: TrainConfig) -> dict[str, Any]:
    """Runs ``config`` to its end and gives what result.json holds. Raises DlrmError for what a user can cure."""
    quiet_libraries()
    trainer = config.trainer
    timeout = timedelta(minutes=trainer.timeout_minutes)
    place = start_runtime(trainer.threads, numa=trainer.numa, timeout=timeout)
    with place as runtime, stop_on_signals(runtime) as stop_wish:
        run = prepare(config, runtime)
        try:
            with Checkpoints(run) as checkpoints:
                train_epochs(run, checkpoints, stop_wish)
        except DlrmError:  # a stop too; the run is as saved as it can be
            report_unfinished(run)
            raise
        return finish(run)


def train_epochs(run: TrainingRun, checkpoints: Checkpoints, stop_wish: StopWish) -> None:
    """Trains, evaluates and saves until there is nothing left to train."""
    while run.why_done is None:
        train_epoch(run, checkpoints, stop_wish)
        if not run.progress.has_evaluated("val"):
            evaluate_split(run, "val")
        end_epoch(run)
        if run.config.checkpoint.every_epoch or run.why_done is not None:
            checkpoints.save()


def prepare(config: TrainConfig, runtime: Runtime) -> TrainingRun:
    """Opens dataset and checkpoint, builds the model, makes the run folder; what fails, fails on every rank."""
    manifest, tables = runtime.together(lambda: open_dataset(config, runtime))
    runtime.together(lambda: refuse_if(evaluation_problems(config.evaluation, manifest, tables)))
    found = find_checkpoint(config, runtime)
    if found:
        runtime.together(lambda: check_resumable(*found, config, manifest))
    say_what_starts(config, manifest, tables, runtime)
    torch.manual_seed(config.trainer.seed)
    trainable = runtime.together(lambda: build_trainable(config, tables, len(manifest.dense), runtime))
    log_plan(trainable.plan)
    gate = place_gate(trainable.model, runtime) if config.trainer.on_nonfinite == "skip" else None
    health = TableHealth(trainable.model, tables, manifest, runtime.device)  # before a checkpoint is loaded
    folder = create_run_folder(config.output, config.resume != "none", runtime)
    run = TrainingRun(
        config, runtime, manifest, trainable, folder, health, Progress(), LossMeter(runtime), gate
    )
    if found:
        restore(run, *found)
        folder.take_up_metrics(found[0].parents[1], found[1]["metrics_bytes"])
    else:
        folder.take_up_metrics(folder.path, 0)
    folder.write_start(config, manifest, runtime)
    runtime.together(lambda: folder.open_logs(config, run.progress.step))
    if runtime.is_first:
        write_plan(folder.path / "plan.yaml", trainable.plan)
    return run


def train_epoch(run: TrainingRun, checkpoints: Checkpoints, stop_wish: StopWish) -> None:
    """What is left of the current epoch, in the row order of (manifest, seed, epoch, global batch size).

    Ends before that when an evaluation says that the run has trained enough. Raises Stopped, with a checkpoint
    behind it, when a signal asks for it.
    """
    trainer, progress, meter = run.config.trainer, run.progress, run.meter
    batches = train_batches(run)
    num_steps = len(batches)
    if trainer.max_steps is not None:
        num_steps = min(num_steps, trainer.max_steps - progress.step)
    run.trainable.model.train()
    if evaluate_if_due(run) and run.why_done:  # a signal had ended the run between a step and its evaluation
        num_steps = 0
    meter.restart_clock()
    started = time.perf_counter()
    with batches, epoch_bar(run, progress.batch, progress.batch + num_steps) as bar:
        stream = first_batches(iter(batches), num_steps)
        for left in reversed(range(num_steps)):
            take_step(run, stream, bar)
            if run.gate and run.gate.has_closed:
                count_skipped(run, batches)
            if progress.step % trainer.log_every_steps == 0 or left == 0:
                check_finite(run, batches)
                log_loss(run, bar)
            progress.train_seconds += time.perf_counter() - started
            wants_stop = stop_wish.agreed(checkpoints.have_failed) and left > 0
            if not wants_stop and evaluate_if_due(run) and run.why_done:
                break
            if wants_stop or checkpoints.are_due():
                check_finite(run, batches)  # never save what cannot go on
                checkpoints.save()
            if wants_stop:
                leave_early(run, stop_wish)
            started = time.perf_counter()
        log_loss(run, bar)
    stop_wish.settle()
    run.trainable.pipeline.detach()  # evaluation runs the plain forward; the next step attaches again


def evaluate_if_due(run: TrainingRun) -> bool:
    """Evaluates on val in the middle of an epoch, if the configuration wants it after this step; says whether.

    The pipeline keeps the batches under way, whose ids are at their ranks already: training goes on as without.
    """
    progress, pipeline = run.progress, run.trainable.pipeline
    is_due = is_eval_due(run.config.evaluation, progress.step, progress.batch, run.batches_per_epoch)
    if not is_due or progress.has_evaluated("val"):
        return False
    pipeline.detach()
    evaluate_split(run, "val")
    pipeline.attach(sparse_dist=False)  # the ids of the first batch under way are not sent again
    run.meter.restart_clock()
    return True


def end_epoch(run: TrainingRun) -> None:
    """Turns to the next epoch, unless trainer.max_steps has cut this one short."""
    progress = run.progress
    if progress.batch == run.batches_per_epoch:
        progress.train_loss.append(run.meter.mean_of_epoch())
        progress.epoch, progress.batch = progress.epoch + 1, 0
        run.meter.start_epoch()


def take_step(run: TrainingRun, stream: Iterator[Batch], bar: Any) -> None:
    """Forward, backward and update on the next global batch."""
    run.learning_rates.apply(run.progress.step + 1)
    loss, _, _ = run.trainable.pipeline.progress(stream)
    global_batch_size = run.config.trainer.global_batch_size
    run.progress.step += 1
    if not (run.gate and run.gate.has_closed):
        run.meter.add(loss, run.progress.step)
    run.progress.batch += 1
    run.progress.samples += global_batch_size
    bar.update(global_batch_size)


def leave_early(run: TrainingRun, stop_wish: StopWish) -> NoReturn:
    """Leaves a run that is saved, on every rank."""
    stop_wish.settle()
    raise Stopped(
        f"stopped by {stop_wish.signal_name} after step {run.progress.step:,}; {run.folder.path} holds a checkpoint\n"
        "next: the same command with resume=auto goes on from there"
    )


def epoch_bar(run: TrainingRun, first_batch: int, num_batches: int) -> Any:
    """The progress bar of an epoch, in samples, which may begin in its middle."""
    size = run.config.trainer.global_batch_size
    title = f"epoch {run.progress.epoch + 1}/{run.config.trainer.epochs}"
    return progress_bar(
        title, num_batches * size, run.runtime.is_first, "sample", scale=True, initial=first_batch * size
    )


def train_batches(run: TrainingRun) -> TrainBatches:
    """This rank's batches of the current epoch."""
    return TrainBatches(
        run.manifest,
        run.trainable.features,
        global_batch_size=run.config.trainer.global_batch_size,
        lanes=run.config.data.lanes,
        seed=run.config.trainer.seed,
        epoch=run.progress.epoch,
        members=run.config.model.ensemble_size,
        start_batch=run.progress.batch,
        rank=run.runtime.rank,
        world_size=run.runtime.world_size,
        shuffle=run.config.data.shuffle,
        prefetch=run.config.data.prefetch_batches,
    )


def first_batches(stream: Iterator[Batch], count: int) -> Iterator[Batch]:
    """The first ``count`` batches, so that a pipeline reading ahead drains at that place."""
    for _ in range(count):
        yield next(stream)


def log_loss(run: TrainingRun, bar: Any) -> None:
    """Writes a train event, unless every step since the last was skipped."""
    if not run.meter.has_unread:
        return
    loss, seconds = run.meter.read()
    progress = run.progress
    run.folder.log_event(
        "train",
        epoch=progress.epoch,
        step=progress.step,
        loss=loss,
        samples_per_second=run.config.trainer.global_batch_size / seconds,
        lr=run.learning_rates.at(progress.step),
    )
    bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
    say_step(run, loss, seconds)
    run.trainable.measured.say_once(run.trainable.plan, seconds)


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
    metrics = ClickMetrics(split, run.config.evaluation.group_by)
    run.health.start_split()
    with batches:
        title = f"evaluate {split}"
        values = evaluate(run.trainable.model, batches, metrics, run.runtime, title, run.health.see)
    epoch, step = run.progress.last_epoch, run.progress.step
    event = {"split": split, "epoch": epoch, "step": step, **values}
    run.progress.evals.append(event)
    run.folder.log_event("eval", **event)
    run.folder.log_event("health", split=split, epoch=epoch, step=step, tables=run.health.measure())
    curves = measure_curves(*metrics.rows())
    run.folder.write_curves(split, {"epoch": epoch, "step": step, **(asdict(curves) if curves else {})})
    say_metrics(split, epoch, step, values)


def report_unfinished(run: TrainingRun) -> None:
    """Writes report.html for a run that ends before its time, if that can be done."""
    if run.runtime.is_first and run.config.report.enabled:
        try:
            logger.info("report: %s", write_report(run.folder.path))
        except (OSError, DlrmError) as error:  # a full disk, say: why the run ended matters more
            logger.warning("no report: %s", error)


def finish(run: TrainingRun) -> dict[str, Any]:
    """Evaluates on test, writes result.json and says how the run ended."""
    evaluate_split(run, "test")
    progress = run.progress
    best = progress.best_val()
    cut_short = [run.meter.mean_of_epoch()] if progress.batch else []
    train_loss = [*progress.train_loss, *cut_short]
    result = {
        "evals": {event["split"]: event for event in progress.evals},
        "ended_because": run.why_done,
        "best_epoch": best["epoch"] if best else None,
        "best_val_auc": best["auc"] if best else None,
        "best_reachable": run.manifest.best,
        "steps": progress.step,
        "skipped_steps": progress.skipped,
        "train_loss": train_loss,
        "train_seconds": progress.train_seconds,
        "wall_seconds": time.perf_counter() - run.started,
        "samples_per_second": progress.samples / max(progress.train_seconds, 1e-9),
        "world_size": run.runtime.world_size,
    }
    run.folder.write_result(result)
    if run.runtime.is_first:
        say_end(run, result)
    return result


def say_end(run: TrainingRun, result: dict[str, Any]) -> None:
    """The table of epochs, what came of the run and what to type next; the report's path last."""
    progress, folder = run.progress, run.folder.path
    print(f"\n{format_summary(result['train_loss'], progress.evals, run.manifest.best)}\n")
    print(
        f"{progress.step:,} steps, {result['samples_per_second']:,.0f} samples/s; run folder {folder}\n"
        f"ended because {run.why_done}"
    )
    if progress.skipped:
        print(f"{len(progress.skipped):,} steps were skipped, for their loss was no finite number")
    print(
        f"next: dlrm-evaluate checkpoint={folder} split={progress.evals[-1]['split'] if progress.evals else 'train'}"
    )
    if run.config.report.enabled:
        print(f"report: {write_report(folder)}")
