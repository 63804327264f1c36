"""The training loop: step, decide, evaluate, save, until nothing is left to train; a loss of NaN or inf ends it."""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import islice
from typing import NoReturn

from tqdm import tqdm

from dlrm_app.config.metrics import metric_of
from dlrm_app.config.train import EvaluationConfig
from dlrm_app.distributed.collectives import broadcast_from_first
from dlrm_app.distributed.signals import Stopped, StopRequest
from dlrm_app.loader.batch import Batch, TrainBatches, choose_loading
from dlrm_app.loader.batch_order import BatchPlan
from dlrm_app.loader.reader import SplitReader
from dlrm_app.progress import progress_bar
from dlrm_app.runs.checkpoint.load import load_tensors
from dlrm_app.runs.checkpoint.machines import first_whole
from dlrm_app.runs.checkpoint.names import checkpoint_name, checkpoints_of
from dlrm_app.runs.checkpoint.progress import Progress
from dlrm_app.runs.checkpoint.save import Checkpoints
from dlrm_app.runs.checkpoint.storage import TensorReader
from dlrm_app.runs.events import TrainEvent
from dlrm_app.sharding.sharder import reset_caches
from dlrm_app.training.divergence import check_finite
from dlrm_app.training.evaluation import evaluate_split, fit_final_bias
from dlrm_app.training.instruments import click_sums
from dlrm_app.training.setup import set_step_seed
from dlrm_app.training.state import TrainingRun
from dlrm_app.training.summary import epoch_title, log_step
from dlrm_app.typed import setting

logger = logging.getLogger(__name__)


def train_epochs(run: TrainingRun, checkpoints: Checkpoints, stop_request: StopRequest) -> None:
    """Trains, evaluates and saves until nothing is left to train.

    Raises Stopped, after saving a checkpoint, when a signal asks to stop, and DlrmError on every rank if a save failed.
    """
    while run.why_done is None:
        train_epoch(run, checkpoints, stop_request)
        end_evaluation(run)
        end_epoch(run)
        must_stop = stop_request.must_stop_now() and run.why_done is None
        wants_best = is_best_to_restore(run)
        if run.config.checkpoint.every_epoch or run.why_done is not None or must_stop or wants_best:
            run.save(checkpoints)
        if must_stop:
            leave_early(run, stop_request)


def end_evaluation(run: TrainingRun) -> None:
    """Evaluates on val at the end of an epoch or of the run. With trainer.calibrate it fits the last bias first.

    Every checkpoint from the end of an epoch or of the run then has a fitted bias, even after a stop and a resume.
    """
    progress = run.progress
    if run.config.trainer.calibrate:
        stale = ("val", progress.step)  # evaluated in the middle of the epoch, before the bias was fitted
        progress.evals = [each for each in progress.evals if (each.split, each.step) != stale]
        fit_final_bias(run)
    if not progress.has_evaluated("val"):
        evaluate_split(run, "val")


def train_epoch(run: TrainingRun, checkpoints: Checkpoints, stop_request: StopRequest) -> None:
    """Takes the remaining steps of the current epoch, in the row order of (manifest, seed, epoch, global batch size).

    Ends early when an evaluation says that the run has trained enough.
    """
    run.trainable.model.train()
    if is_val_due(run.config.evaluation, run.progress, run.batches_per_epoch):  # stopped just before it
        evaluate_in_epoch(run)
    go_back_to_best(run, checkpoints)
    batches, throughput = train_batches(run), run.instruments.throughput
    num_steps = steps_left(run, len(batches))
    throughput.restart()
    with batches, epoch_bar(run, num_steps) as bar:
        # a prefetching pipeline trains on its last batches once the stream has ended
        stream = run.instruments.parts.waiting(islice(batches, num_steps))
        for left in reversed(range(num_steps)):
            take_step(run, stream, bar)
            if run.progress.step % run.config.trainer.log_every_steps == 0 or left == 0:
                log_loss(run, batches, bar)
            with throughput.paused(run.progress):
                is_enough = act_after_step(run, batches, checkpoints, stop_request, is_last=left == 0)
            if is_enough:
                break
        log_loss(run, batches, bar)
    stop_request.settle()
    run.trainable.pipeline.detach()  # evaluation runs the plain forward pass; the next step attaches again


def is_val_due(config: EvaluationConfig, progress: Progress, batches_per_epoch: int) -> bool:
    """True if val must be evaluated now, in the middle of an epoch. A resumed run may have done it already.

    ``per_epoch`` spreads its evaluations evenly; the last is at the epoch's end, where every run evaluates anyway.
    """
    if not 0 < progress.batch < batches_per_epoch or progress.has_evaluated("val"):
        return False
    if config.per_epoch is not None:
        before, done = ((progress.batch - n) * config.per_epoch // batches_per_epoch for n in (1, 0))
        return done > before
    return config.every_steps is not None and progress.step % config.every_steps == 0


def steps_left(run: TrainingRun, num_batches: int) -> int:
    """Steps left in the current epoch."""
    if run.why_done is not None:
        return 0
    max_steps = run.config.trainer.max_steps
    return num_batches if max_steps is None else min(num_batches, max_steps - run.progress.step)


def take_step(run: TrainingRun, stream: Iterator[Batch], bar: tqdm) -> None:
    """Takes one step on the next global batch: forward, backward, update."""
    progress, instruments, trainer = run.progress, run.instruments, run.config.trainer
    run.learning_rates.apply(progress.step + 1)
    if run.config.model.dropout or run.config.model.bottom_dropout:
        set_step_seed(trainer.seed, progress.step + 1, run.runtime.rank)
    with instruments.parts.step(may_profile=not instruments.trace.is_active):
        output = run.trainable.pipeline.progress(stream)
    instruments.trace.after_step()
    progress.step += 1
    progress.batch += 1
    progress.samples += trainer.global_batch_size
    if run.state.ema:
        run.state.ema.update(progress.step)
    clicks = None  # a teacher's scores are not clicks
    if run.soft_labels is None:
        clicks = click_sums(output.logits[:, 0], output.supervision, run.manifest.kept_share("train"))
    run.state.meter.add(output.loss, progress.step, clicks)
    instruments.throughput.add_step()
    bar.update(trainer.global_batch_size)


def act_after_step(
    run: TrainingRun,
    batches: TrainBatches,
    checkpoints: Checkpoints,
    stop_request: StopRequest,
    *,
    is_last: bool,
) -> bool:
    """Evaluates, saves or stops after a step, if that is due. ``is_last``: the step is the epoch's last.

    Returns True if an evaluation says that the run has trained enough.
    """
    agreed = stop_request.agreed(checkpoints.have_failed(), checkpoints.are_overdue())
    if agreed.fail:
        checkpoints.wait()  # raises the background save's error on every rank
    stops = agreed.stop and not is_last  # such a run evaluates when it is resumed
    evaluates = not stops and is_val_due(run.config.evaluation, run.progress, run.batches_per_epoch)
    every_steps = run.config.checkpoint.every_steps
    saves = stops or agreed.save or (every_steps is not None and run.progress.step % every_steps == 0)
    if evaluates:
        evaluate_in_epoch(run)
        if run.why_done is not None:
            return True
        saves = saves or is_best_to_restore(run)
    # evaluating may have taken long
    if saves or (evaluates and broadcast_from_first(checkpoints.are_overdue())):
        check_finite(run, batches)  # never save what cannot be resumed
        run.save(checkpoints)
        stop_request.has_saved()
    if stops:
        leave_early(run, stop_request)
    if evaluates:
        go_back_to_best(run, checkpoints)
    return False


def evaluate_in_epoch(run: TrainingRun) -> None:
    """Evaluates on val with the plain forward pass.

    The pipeline keeps the batches whose ids were already exchanged, so training continues as if nothing had happened.
    """
    pipeline = run.trainable.pipeline
    pipeline.detach()
    evaluate_split(run, "val")
    pipeline.attach(sparse_dist=False)  # the ids of the first kept batch are not sent again


def is_best_to_restore(run: TrainingRun) -> bool:
    """True if the evaluation after the last step is the best so far, to which a schedule may go back."""
    best = run.progress.best_val()
    return run.config.schedule.restore_best and best is not None and best.step == run.progress.step


def go_back_to_best(run: TrainingRun, checkpoints: Checkpoints) -> None:
    """Loads the weights and optimizer states of the best evaluation if the last one has just lowered the rates.

    The checkpoint of the last step, if there is one, was saved before: a run that continues from it comes here too.
    """
    best = run.progress.best_val()
    if not run.config.schedule.restore_best or best is None or not run.learning_rates.have_fallen():
        return
    checkpoints.wait()
    folders = [checkpoints_of(run.folder.path)] + ([run.checkpoint.folder.parent] if run.checkpoint else [])
    paths = [folder / checkpoint_name(best.step) for folder in folders]
    path = first_whole(paths, run.runtime)
    rates = run.learning_rates.at(run.progress.step + 1)
    if path is None:
        logger.warning(
            "the checkpoint of the best evaluation, after step %d, is gone: training continues", best.step
        )
        return
    run.runtime.together(load_tensors, TensorReader(path), run.state.tensors())
    reset_caches(run.trainable.model)
    metric = metric_of(run.progress.best)
    assert metric is not None
    logger.info(
        f"{best.decides(metric.title)} on val stands still: back to the weights of step {best.step}, with the rates "
        f"{rates}"
    )


def end_epoch(run: TrainingRun) -> None:
    """Moves on to the next epoch, unless trainer.max_steps has cut this one short."""
    progress, meter = run.progress, run.state.meter
    if progress.batch == run.batches_per_epoch:
        progress.train_loss.append(meter.mean_of_epoch())
        progress.epoch, progress.batch = progress.epoch + 1, 0
        meter.start_epoch()


def leave_early(run: TrainingRun, stop_request: StopRequest) -> NoReturn:
    """Raises Stopped on every rank, once the run is saved."""
    stop_request.settle()
    output = "" if run.config.output else f" {setting('output', run.folder.path)}"
    raise Stopped(
        f"stopped by {stop_request.signal_name} after step {run.progress.step:,}; {run.folder.path} holds a "
        "checkpoint\n"
        f"next: the same command with resume=auto{output} continues from there"
    )


def epoch_bar(run: TrainingRun, num_steps: int) -> AbstractContextManager[tqdm]:
    """The progress bar of an epoch, in samples; a resumed epoch begins in the middle."""
    size, first = run.config.trainer.global_batch_size, run.progress.batch
    total, is_first = (first + num_steps) * size, run.runtime.is_first
    return progress_bar(epoch_title(run), total, is_first, "sample", scale=True, initial=first * size)


def train_batches(run: TrainingRun) -> TrainBatches:
    """This rank's remaining batches of the current epoch."""
    data, trainer, runtime, progress = run.config.data, run.config.trainer, run.runtime, run.progress
    assert data.lanes is not None
    plan = BatchPlan(
        global_batch_size=trainer.global_batch_size,
        lanes=data.lanes,
        seed=trainer.seed,
        epoch=progress.epoch,
        ensemble_size=run.config.model.ensemble_size,
        start_batch=progress.batch,
        rank=runtime.rank,
        world_size=runtime.world_size,
        shuffle=data.shuffle,
    )
    source = SplitReader(run.manifest, "train", run.trainable.features, run.soft_labels)
    return TrainBatches(source, plan, choose_loading(data.prefetch_batches, data.decode_workers, runtime))


def log_loss(run: TrainingRun, batches: TrainBatches, bar: tqdm) -> None:
    """Reports the mean loss since the last report, if steps were taken. Raises SharedError if a loss is NaN or inf."""
    meter, instruments, progress = run.state.meter, run.instruments, run.progress
    if not meter.has_unread:
        return
    check_finite(run, batches)
    loss = meter.read()
    seconds_per_step = instruments.throughput.seconds_per_step()
    samples_per_second = run.config.trainer.global_batch_size / seconds_per_step
    lr = run.learning_rates.at(progress.step)
    step_ms = instruments.parts.mean_ms(seconds_per_step)
    scored = meter.read_clicks()
    event = TrainEvent(progress.epoch, progress.step, loss, samples_per_second, lr, step_ms, *scored)
    run.folder.tell(event)
    bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
    log_step(run, event, seconds_per_step)
