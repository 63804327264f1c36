"""A training run: build, go on from a checkpoint if there is one, then step, decide and act until all is done."""

import logging
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import islice
from typing import Any, NoReturn

from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.distributed.signals import Stopped, StopRequest, stop_on_signals
from dlrm_app.errors import DlrmError
from dlrm_app.loader.batch import Batch, TrainBatches
from dlrm_app.progress import progress_bar
from dlrm_app.reports.run_page import write_report
from dlrm_app.runs.checkpoint.load import find_checkpoint
from dlrm_app.runs.checkpoint.marker import Progress
from dlrm_app.runs.checkpoint.names import resume_hint
from dlrm_app.runs.checkpoint.save import Checkpoints
from dlrm_app.runs.events import RunResult, SkipEvent, TrainEvent
from dlrm_app.runs.folder import RunFolder, open_run_folder
from dlrm_app.sharding.plan import log_plan
from dlrm_app.sharding.plan_file import write_plan
from dlrm_app.tables.specs import Table
from dlrm_app.text import setting
from dlrm_app.training.compile_choice import with_compile
from dlrm_app.training.decisions import decide_after_step, has_reached_target, is_val_due, overfitting
from dlrm_app.training.evaluation import evaluate_split, fit_final_bias
from dlrm_app.training.instruments import Adviser, LossMeter, Throughput, Trace
from dlrm_app.training.mlperf_log import MlperfLog, open_division_reasons
from dlrm_app.training.nonfinite import (
    NonfiniteGuard,
    raise_if_nonfinite,
    raise_if_skips_are_useless,
    record_skip,
)
from dlrm_app.training.optimizers import DenseEma
from dlrm_app.training.precision_choice import with_precision
from dlrm_app.training.resume import check_resumable, check_warm_start, with_lanes
from dlrm_app.training.setup import (
    begin_at_base_rate,
    build_trainable,
    distilled_labels,
    epoch_batches,
    open_dataset,
    set_deterministic,
    set_seed,
    set_step_seed,
)
from dlrm_app.training.state import TrainingRun, begin_with, restore, save
from dlrm_app.training.step_parts import StepParts
from dlrm_app.training.summary import log_division, log_start, log_step, print_end
from dlrm_app.training.table_health import TableHealth

logger = logging.getLogger(__name__)


def train(config: TrainConfig) -> RunResult:
    """Runs ``config`` to its end and gives what result.json holds. Raises DlrmError for what a user can mend."""
    trainer = config.trainer
    timeout = timedelta(minutes=trainer.timeout_minutes)
    started = start_runtime(trainer.threads, numa=trainer.numa, timeout=timeout)
    with started as runtime, stop_on_signals(runtime) as stop_request:
        manifest, tables = runtime.together(lambda: open_dataset(config, runtime))
        with open_run_folder(config.output, config.resume, runtime) as folder:
            wants_mlperf = config.logging.mllog and runtime.is_first
            mlperf = MlperfLog(folder.path / "mlperf.txt" if wants_mlperf else None)
            run = prepare(config, manifest, tables, folder, runtime, mlperf)
            if run.why_done and (result := folder.result_at(run.checkpoint)):
                return repeat_end(run, result)
            try:
                with Checkpoints(folder.path / "checkpoints", config.checkpoint, runtime) as checkpoints:
                    begin(run, checkpoints)
                    train_epochs(run, checkpoints, stop_request)
            except (DlrmError, OSError):  # a stop too; the run is as saved as it can be
                report_unfinished(run)
                raise
            return finish(run)


def prepare(
    given: TrainConfig,
    manifest: Manifest,
    tables: list[Table],
    folder: RunFolder,
    runtime: Runtime,
    mlperf: MlperfLog | None = None,
) -> TrainingRun:
    """Opens the checkpoint, builds the model and loads it; what fails, fails on every rank. Writes nothing."""
    checkpoint = find_checkpoint(given.resume, given.output, runtime)
    config = runtime.together(lambda: with_lanes(given, checkpoint, runtime.world_size))
    before = None
    if checkpoint is not None:
        before = runtime.together(lambda: check_resumable(checkpoint, config, manifest, tables))
    config = with_compile(with_precision(config, before, runtime), before, runtime)
    log_start(config, manifest, tables, runtime)
    set_seed(config.trainer.seed)
    set_deterministic(config.trainer.deterministic)
    guard = NonfiniteGuard(config.trainer.on_nonfinite == "skip", runtime.device)
    trainable = runtime.together(lambda: build_trainable(config, tables, len(manifest.dense), runtime, guard))
    begin_at_base_rate(trainable.model, config, manifest)
    ema_decay = config.optimizer.dense.ema_decay
    soft_labels = runtime.together(lambda: distilled_labels(config.distillation, manifest))
    log_plan(trainable.plan)
    run = TrainingRun(
        config,
        runtime,
        manifest,
        trainable,
        guard,
        # before a checkpoint is loaded: it compares with the initial weights
        health=TableHealth(trainable.model, tables, manifest, runtime.device)
        if config.evaluation.table_health
        else None,
        ema=None if ema_decay is None else DenseEma(trainable.model, ema_decay),
        soft_labels=soft_labels,
        folder=folder,
        mlperf=mlperf or MlperfLog(None),
        checkpoint=checkpoint,
        before=before,
        progress=Progress(),
        meter=LossMeter(runtime),
        throughput=Throughput(config.trainer.global_batch_size),
        parts=StepParts(
            trainable.model, trainable.optimizer, trainable.pipeline, runtime.device, runtime.world_size == 1
        ),
        adviser=Adviser(config, runtime.world_size),
        trace=Trace(config.profiler, folder.path, runtime),
    )
    if checkpoint is not None:
        restore(run, checkpoint)
    elif config.warm_start.checkpoint is not None:
        begin_with(run, runtime.together(lambda: check_warm_start(config, manifest, tables)))
    return run


def begin(run: TrainingRun, checkpoints: Checkpoints) -> None:
    """Writes down what the run is; one that goes on from another run's checkpoint gets one of its own before."""
    run.folder.go_on_from(run.checkpoint)
    if run.before is not None:
        run.folder.note_changes(run.before, run.config, run.progress.step)
    if checkpoints.are_none and run.progress.step:  # resume=auto would start afresh until the first save
        save(run, checkpoints)
        checkpoints.wait()
    run.folder.write_start(run.config, run.manifest, run.runtime)
    run.runtime.together(lambda: run.folder.open_logs(run.config, run.progress.step))
    if run.runtime.is_first:
        write_plan(run.folder.path / "plan.yaml", run.trainable.plan)
    if run.config.logging.mllog and run.runtime.is_first:
        reasons = open_division_reasons(run.config, run.manifest)
        log_division(reasons)
        run.mlperf.start_run(run.config, run.manifest, reasons)


def train_epochs(run: TrainingRun, checkpoints: Checkpoints, stop_request: StopRequest) -> None:
    """Trains, evaluates and saves until there is nothing left to train.

    Raises Stopped, with a checkpoint behind it, when a signal asks for it.
    """
    while run.why_done is None:
        run.mlperf.start_epoch(run.progress.epoch)
        train_epoch(run, checkpoints, stop_request)
        if not run.progress.has_evaluated("val"):
            evaluate_split(run, "val")
        run.mlperf.end_epoch(run.progress.last_epoch)
        end_epoch(run)
        if run.why_done is not None:
            run.mlperf.end_run(has_reached_target(run.config.evaluation, run.progress.evals))
        must_stop = stop_request.must_stop_now() and run.why_done is None
        if run.config.checkpoint.every_epoch or run.why_done is not None or must_stop:
            save(run, checkpoints)
        if must_stop:
            leave_early(run, stop_request)


def train_epoch(run: TrainingRun, checkpoints: Checkpoints, stop_request: StopRequest) -> None:
    """What is left of the current epoch, in the row order of (manifest, split, seed, epoch, global batch size).

    Ends before that when an evaluation says that the run has trained enough. Raises Stopped, with a checkpoint
    behind it, when a signal asks for it.
    """
    trainer, progress = run.config.trainer, run.progress
    batches = train_batches(run)
    num_steps = len(batches)
    if trainer.max_steps is not None:
        num_steps = min(num_steps, trainer.max_steps - progress.step)
    run.trainable.model.train()
    if is_val_due(run.config.evaluation, progress, run.batches_per_epoch):  # the run stopped before it
        without_pipeline(run, lambda: evaluate_split(run, "val"))
        num_steps = num_steps if run.why_done is None else 0
    run.throughput.restart()
    started = time.perf_counter()
    with batches, epoch_bar(run, progress.batch, progress.batch + num_steps) as bar:
        # a pipeline that prefetches drains where the stream ends
        stream = run.parts.waiting(islice(batches, num_steps))
        for left in reversed(range(num_steps)):
            take_step(run, stream, bar)
            if run.guard.has_skipped:
                skip_step(run, batches)
            if progress.step % trainer.log_every_steps == 0 or left == 0:
                check_finite(run, batches)
                log_loss(run, bar)
            stepped = time.perf_counter()
            progress.train_seconds += stepped - started
            agreed = stop_request.agreed(checkpoints.have_failed, checkpoints.are_overdue())
            after = decide_after_step(
                run.config,
                progress,
                run.batches_per_epoch,
                stop_requested=agreed.stop,
                save_overdue=agreed.save,
                is_last=left == 0,
            )
            if trainer.calibrate and progress.step == run.num_steps:
                without_pipeline(run, lambda: fit_final_bias(run))
            if after.evaluate:
                without_pipeline(run, lambda: evaluate_split(run, "val"))
                if run.why_done:
                    break
            # evaluating may have taken long
            if after.save or (after.evaluate and run.runtime.decide_first(checkpoints.are_overdue())):
                check_finite(run, batches)  # never save what cannot go on
                save(run, checkpoints)
                stop_request.has_saved()
            if after.stop:
                leave_early(run, stop_request)
            started = time.perf_counter()
            run.throughput.leave_out(started - stepped)
        log_loss(run, bar)
    stop_request.settle()
    run.trainable.pipeline.detach()  # evaluation runs the plain forward; the next step attaches again


def take_step(run: TrainingRun, stream: Iterator[Batch], bar: Any) -> None:
    """Forward, backward and update on the next global batch."""
    progress, global_batch_size = run.progress, run.config.trainer.global_batch_size
    run.learning_rates.apply(progress.step + 1)
    if run.config.model.dropout or run.config.model.bottom_dropout:
        set_step_seed(run.config.trainer.seed, progress.step + 1, run.runtime.rank)
    run.trace.before_step()
    with run.parts.step():
        loss, _, _ = run.trainable.pipeline.progress(stream)
    run.trace.after_step()
    progress.step += 1
    progress.batch += 1
    progress.samples += global_batch_size
    if not run.guard.has_skipped:
        if run.ema:
            run.ema.update(progress.updates)
        run.guard.watch(loss, progress.step)
        run.meter.add(loss)
        run.throughput.add_step()
    bar.update(global_batch_size)


def skip_step(run: TrainingRun, batches: TrainBatches) -> None:
    """Counts the step that was just skipped. Raises SharedError if more skips would be useless."""
    trainer, progress = run.config.trainer, run.progress
    bad = record_skip(run.trainable.model, batches, progress)
    run.folder.log(SkipEvent(bad.epoch, bad.step, bad.rows, bad.columns))
    raise_if_skips_are_useless(
        bad,
        len(progress.skipped),
        trainer.max_skipped,
        run.config.optimizer,
        resume_hint(run.folder.path / "checkpoints"),
    )


def check_finite(run: TrainingRun, batches: TrainBatches) -> None:
    """Raises SharedError if the loss of any rank was nan or inf. Every rank must call it."""
    raise_if_nonfinite(
        run.guard,
        run.trainable.model,
        batches,
        run.progress,
        run.config.optimizer,
        resume_hint(run.folder.path / "checkpoints"),
    )


def without_pipeline(run: TrainingRun, work: Callable[[], None]) -> None:
    """Does ``work``, which runs the plain forward, in the middle of an epoch.

    The pipeline keeps the batches under way, whose ids are at their ranks already: training goes on as without.
    """
    pipeline = run.trainable.pipeline
    pipeline.detach()
    work()
    pipeline.attach(sparse_dist=False)  # the ids of the first batch under way are not sent again


def end_epoch(run: TrainingRun) -> None:
    """Turns to the next epoch, unless trainer.max_steps has cut this one short."""
    progress = run.progress
    if progress.batch == run.batches_per_epoch:
        progress.train_loss.append(run.meter.mean_of_epoch())
        progress.epoch, progress.batch = progress.epoch + 1, 0
        run.meter.start_epoch()
        if run.runtime.is_first and (advice := overfitting(progress.train_loss, progress.evals)):
            logger.warning("%s", advice)


def leave_early(run: TrainingRun, stop_request: StopRequest) -> NoReturn:
    """Leaves a run that is saved, on every rank."""
    stop_request.settle()
    output = "" if run.config.output else f" {setting('output', run.folder.path)}"
    raise Stopped(
        f"stopped by {stop_request.signal_name} after step {run.progress.step:,}; {run.folder.path} holds a checkpoint\n"
        f"next: the same command with resume=auto{output} goes on from there"
    )


def epoch_bar(run: TrainingRun, first_batch: int, num_batches: int) -> Any:
    """The progress bar of an epoch, in samples, which may begin in its middle."""
    size = run.config.trainer.global_batch_size
    title = run.epoch_title
    return progress_bar(
        title, num_batches * size, run.runtime.is_first, "sample", scale=True, initial=first_batch * size
    )


def train_batches(run: TrainingRun) -> TrainBatches:
    """This rank's batches of the current epoch."""
    progress = run.progress
    return epoch_batches(
        run.config,
        run.manifest,
        run.trainable.features,
        run.runtime,
        progress.epoch,
        progress.batch,
        run.soft_labels,
    )


def log_loss(run: TrainingRun, bar: Any) -> None:
    """Writes a train event, unless every step since the last was skipped."""
    if not run.meter.has_unread:
        return
    loss = run.meter.read()
    samples_per_second, seconds_per_step = run.throughput.read()
    progress = run.progress
    lr = run.learning_rates.at(progress.step)
    step_ms = run.parts.mean_ms(run.runtime)
    event = TrainEvent(progress.epoch, progress.step, loss, samples_per_second, lr, step_ms)
    run.folder.log(event)
    bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
    log_step(run, event, seconds_per_step)
    run.adviser.look_at(step_ms)


def report_unfinished(run: TrainingRun) -> None:
    """Writes report.html for a run that ends before its time, if that can be done."""
    if run.runtime.is_first and run.config.report.enabled:
        try:
            logger.info("report: %s", write_report(run.folder.path))
        except (OSError, DlrmError) as error:  # a full disk, say: why the run ended matters more
            logger.warning("no report: %s", error)


def finish(run: TrainingRun) -> RunResult:
    """Evaluates on test, writes result.json and says how the run ended."""
    run.trace.close()
    if run.config.evaluation.test:
        evaluate_split(run, "test")
    progress = run.progress
    best = progress.best_val()
    cut_short = [run.meter.mean_of_epoch()] if progress.batch else []
    result = RunResult(
        evals={each.split: each for each in progress.evals},
        ended_because=run.why_done,
        best_epoch=best.epoch if best else None,
        best_val_auc=best.metrics["auc"] if best else None,
        best_reachable=run.manifest.best,
        steps=progress.step,
        skipped_steps=progress.skipped,
        train_loss=[*progress.train_loss, *cut_short],
        train_seconds=progress.train_seconds,
        wall_seconds=time.perf_counter() - run.started,
        samples_per_second=progress.samples_per_second,
        world_size=run.runtime.world_size,
    )
    run.folder.write_result(result)
    if run.runtime.is_first:
        print_end(run, result)
    return result


def repeat_end(run: TrainingRun, result: RunResult) -> RunResult:
    """Says again how ``run``, which has nothing left to train, ended; its files stay as they are."""
    if run.runtime.is_first:
        logger.info("finished already: nothing is left to train, and nothing is written")
        run.progress.evals.extend(each for split, each in result.evals.items() if split == "test")
        print_end(run, result)
    return result
