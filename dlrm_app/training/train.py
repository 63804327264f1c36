"""Runs a training: prepares it, continues from a checkpoint if there is one, trains and reports the result."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch

from dlrm_app.config.optimizer import OptimizerConfig
from dlrm_app.config.train import DistillationConfig, TrainConfig, WarmStartConfig
from dlrm_app.dataset.label_counts import one_class_labels
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.collectives import broadcast_from_first
from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.distributed.signals import stop_on_signals
from dlrm_app.errors import DlrmError
from dlrm_app.loader.soft_labels import SoftLabels, open_soft_labels
from dlrm_app.runs.checkpoint.evaluation import Evaluation
from dlrm_app.runs.checkpoint.inherit import Described
from dlrm_app.runs.checkpoint.load import find_checkpoint
from dlrm_app.runs.checkpoint.marker import Checkpoint
from dlrm_app.runs.checkpoint.names import checkpoint_name, checkpoints_of, list_checkpoints
from dlrm_app.runs.checkpoint.progress import Progress
from dlrm_app.runs.checkpoint.save import Checkpoints
from dlrm_app.runs.checkpoint.trained import TrainedModel
from dlrm_app.runs.events import RunResult
from dlrm_app.runs.folder import RunFolder, open_run_folder
from dlrm_app.runs.run import Run
from dlrm_app.sharding.constraints import log_dense_kernel
from dlrm_app.sharding.plan import log_plan
from dlrm_app.sharding.plan_file import write_plan
from dlrm_app.stores.names import here, portable
from dlrm_app.tables.sparse_optimizers import optimizer_kinds
from dlrm_app.tables.table import Table, in_order
from dlrm_app.training.begin import StartingPoint, load_start
from dlrm_app.training.evaluation import evaluate_split
from dlrm_app.training.initial_rows import draw_generations, init_vectors, rows_given_since
from dlrm_app.training.instruments import LossMeter, Throughput, Trace
from dlrm_app.training.loop import train_epochs
from dlrm_app.training.optimizers import DenseEma, LearningRates
from dlrm_app.training.setup import (
    Trainable,
    begin_at_base_rate,
    begin_at_sample,
    build_trainable,
    model_of,
    open_dataset,
    set_deterministic,
)
from dlrm_app.training.state import Instruments, RunState, TrainingRun
from dlrm_app.training.step_parts import StepParts
from dlrm_app.training.summary import log_start, warn_of_untaught
from dlrm_app.training.warm_start import check_resumable, check_warm_start, choose_lanes, read_previous

logger = logging.getLogger(__name__)

PageWriter = Callable[[Path], Path]
"""Writes the report of the run in a folder; returns its path. Raises OSError or DlrmError."""


def train(config: TrainConfig, write_page: PageWriter | None = None, command: Sequence[str] = ()) -> Run:
    """Runs ``config`` to its end and returns the finished run, on every rank.

    Raises DlrmError for problems a user can fix.

    ``write_page`` is called on the first rank when the run ends or fails, unless report.enabled is false. ``command``:
    the words that the configuration was composed of, for environment.json.
    """
    trainer = config.trainer
    timeout = timedelta(minutes=trainer.timeout_minutes)
    started = start_runtime(trainer.threads, job="train", timeout=timeout)
    with started as runtime, stop_on_signals(runtime) as stop_request:
        if not (runtime.is_first and config.report.enabled):
            write_page = None
        manifest, tables = open_dataset(config, runtime)
        with open_run_folder(config.output, config.resume, runtime) as folder:
            run = prepare(config, manifest, tables, folder, runtime)
            if run.why_done and (ended := folder.result_at(run.checkpoint)):
                finished = repeat_end(run, ended)
            else:
                try:
                    with Checkpoints(checkpoints_of(folder.path), config.checkpoint, runtime) as checkpoints:
                        write_run_start(run, checkpoints, command)
                        train_epochs(run, checkpoints, stop_request)
                except (DlrmError, OSError):  # or a stop; all that can be saved is saved
                    if write_page:
                        write_unfinished(folder.path, write_page)
                    raise
                finished = finish(run)
            return replace(finished, report=write_page(folder.path)) if write_page else finished


def prepare(
    given: TrainConfig, manifest: Manifest, tables: list[Table], folder: RunFolder, runtime: Runtime
) -> TrainingRun:
    """Opens the checkpoint, builds the model and loads it. An error is raised on every rank. Writes nothing."""
    checkpoint = find_checkpoint(given.resume, given.output, runtime)
    lanes = runtime.together(choose_lanes, given.data.lanes, checkpoint, runtime.world_size)
    config = replace(given, data=replace(given.data, lanes=lanes))
    previous, before = find_previous(checkpoint, config, manifest, tables, runtime)
    if previous is not None:
        tables = in_order(tables, previous.order)
    log_start(manifest, tables, config.trainer, config.model, runtime)
    log_dense_kernel(tables, config.optimizer.sparse, config.sharding, runtime.device.type)
    trainable = build_model_to_train(config, manifest, tables, runtime, draws=checkpoint is None)
    soft_labels = teacher_scores(config.distillation, manifest, runtime)
    state = new_state(trainable, config.optimizer, config.evaluation.best, runtime)
    if previous is not None:
        resumes = checkpoint is not None
        load_start(state, starting_point(previous, resumes, config.warm_start, manifest, state))
    if checkpoint is None and soft_labels is None:
        state.progress.untaught = untaught_labels(manifest, previous)
    warn_of_untaught(state.progress.untaught)
    return TrainingRun(
        config=config,
        runtime=runtime,
        manifest=manifest,
        trainable=trainable,
        learning_rates=new_learning_rates(config, manifest, state),
        soft_labels=soft_labels,
        folder=folder,
        checkpoint=checkpoint,
        before=before,
        state=state,
        instruments=Instruments(
            Throughput(), StepParts(trainable.model, runtime), Trace(config.profiler, folder.path, runtime)
        ),
    )


def build_model_to_train(
    config: TrainConfig, manifest: Manifest, tables: list[Table], runtime: Runtime, *, draws: bool
) -> Trainable:
    """The sharded model with its optimizer. ``draws``: False if a checkpoint, which has every weight, is to be loaded.

    Raises DlrmError on every rank.
    """
    torch.manual_seed(config.trainer.seed)
    set_deterministic(config.trainer.deterministic)
    spec, kept_share = model_of(config, manifest, tables), manifest.kept_share("train")
    build = partial(build_trainable, config, spec, runtime, draws=draws, kept_share=kept_share)
    trainable = runtime.together(build)
    if draws:
        runtime.together(set_initial_weights, trainable, manifest)
    log_plan(trainable.plan)
    return trainable


def teacher_scores(
    distillation: DistillationConfig, manifest: Manifest, runtime: Runtime
) -> SoftLabels | None:
    """The scores to learn from; None without distillation.scores. Raises DlrmError on every rank."""
    if distillation.scores is None:
        return None
    return open_soft_labels(Path(distillation.scores), distillation.share, manifest, runtime)


def new_learning_rates(config: TrainConfig, manifest: Manifest, state: RunState) -> LearningRates:
    """The learning rates of all steps, from the step that ``state`` has reached."""
    trainable, num_steps = state.trainable, config.trainer.num_steps(manifest.splits["train"].rows)
    return LearningRates(
        trainable.optimizer, trainable.tables, config.optimizer, config.schedule, num_steps, state.progress
    )


def find_previous(
    checkpoint: Checkpoint | None,
    config: TrainConfig,
    manifest: Manifest,
    tables: list[Table],
    runtime: Runtime,
) -> tuple[TrainedModel | None, TrainConfig | None]:
    """(the model that training begins with, the settings of the run that is resumed), if there are any.

    Raises DlrmError on every rank.
    """
    if checkpoint is not None:
        return runtime.together(check_resumable, checkpoint, config, manifest, tables)
    if config.warm_start.checkpoint is None:
        return None, None
    return choose_previous(Path(config.warm_start.checkpoint), config, manifest, tables, runtime), None


def new_state(trainable: Trainable, settings: OptimizerConfig, best: str, runtime: Runtime) -> RunState:
    """The state of a run before its first step. ``best``: the metric that says which evaluation is the best."""
    kinds = optimizer_kinds(trainable.tables, settings.sparse)
    decay = settings.dense.ema_decay
    ema = None if decay is None else DenseEma(trainable.model, decay)
    return RunState(trainable, kinds, ema, LossMeter(runtime), runtime, Progress(best=best))


def choose_previous(
    path: Path, config: TrainConfig, manifest: Manifest, tables: list[Table], runtime: Runtime
) -> TrainedModel:
    """The checkpoint at ``path`` or, of a run folder, its newest by the first rank's choice.

    Raises DlrmError on every rank.
    """
    newest: list[TrainedModel] = []

    def choose() -> str:
        newest.append(read_previous(path)[0])  # its run does not delete it until this function returns
        return portable(newest[0].folder)

    begun = here(runtime.on_first(choose))
    return runtime.together(check_warm_start, begun, config, manifest, tables)


def untaught_labels(manifest: Manifest, previous: TrainedModel | None) -> dict[str, str]:
    """Label → why a run on the dataset learns nothing of it, unless the run begins with a model that has learnt it."""
    found = one_class_labels(manifest, "train")
    if previous is None:
        return found
    lacking, learnt = previous.marker.progress.untaught, [each.name for each in previous.spec.labels]
    first = manifest.label if not learnt else learnt[0]
    has_learnt = {first, *learnt} - {*lacking}
    return {name: why for name, why in found.items() if name not in has_learnt}


def starting_point(
    previous: TrainedModel, resumes: bool, given: WarmStartConfig, manifest: Manifest, state: RunState
) -> StartingPoint:
    """Describes what the run takes over: its own checkpoint whole, or parts of another run's, by ``warm_start``."""
    trainable = state.trainable
    now = Described(trainable.spec, [column.name for column in manifest.dense])
    if resumes:
        return StartingPoint(previous, now, resumes=True)
    rows = state.runtime.together(rows_given_since, previous.columns, trainable.tables, manifest)
    return StartingPoint(
        previous, now, optimizer=given.optimizer, may_differ=bool(given.allow), given_again=rows
    )


def set_initial_weights(trainable: Trainable, manifest: Manifest) -> None:
    """Sets the weights that come from the dataset or from files; the others are drawn. Raises DataError."""
    model, tables, spec = trainable.model, trainable.tables, trainable.spec
    if spec.config.initial_bias == "base_rate":
        begin_at_base_rate(model, manifest)
    begin_at_sample(model, manifest)
    draw_generations(model, tables, manifest, spec.seed)
    init_vectors(model, tables, manifest, spec.config.ensemble_size)


def write_run_start(run: TrainingRun, checkpoints: Checkpoints, command: Sequence[str]) -> None:
    """Writes the run's description. A run that continues another run's checkpoint first saves one of its own."""
    folder, config, step = run.folder, asdict(run.config), run.progress.step
    folder.continue_from(run.checkpoint)
    if run.before is not None:
        folder.note_changes(asdict(run.before), config, step)
    is_first_save = broadcast_from_first(not list_checkpoints(checkpoints_of(folder.path)))
    if is_first_save and step:  # until then resume=auto would start from step 0
        run.save(checkpoints)
        checkpoints.wait()
    folder.write_start(config, run.manifest, run.runtime, step, command)
    if run.runtime.is_first:
        write_plan(folder.path / "plan.yaml", run.trainable.plan)


def write_unfinished(folder: Path, write_page: PageWriter) -> None:
    """Writes the report of a run that was stopped or failed; only warns if it cannot."""
    try:
        logger.info("report: %s", write_page(folder))
    except (OSError, DlrmError) as error:  # such as a full disk; the end of the run matters more
        logger.warning("no report: %s", error)


def finish(run: TrainingRun) -> Run:
    """Evaluates on test and writes result.json."""
    run.instruments.trace.close()
    if run.config.evaluation.test:
        evaluate_split(run, "test")
    progress = run.progress
    best = progress.best_val()
    cut_short = [run.state.meter.mean_of_epoch()] if progress.batch else []
    result = RunResult(
        evals={each.split: each for each in progress.evals},
        ended_because=run.why_done,
        best_epoch=best.epoch if best else None,
        best_val_auc=best.metrics["auc"] if best else None,
        best_metric=progress.best,
        best_reachable=run.manifest.best,
        steps=progress.step,
        train_loss=[*progress.train_loss, *cut_short],
        train_seconds=progress.train_seconds,
        wall_seconds=time.perf_counter() - run.started,
        samples_per_second=progress.samples_per_second,
        world_size=run.runtime.world_size,
        further_best=run.manifest.further_best,
    )
    run.folder.write_result(result)
    if run.runtime.is_first:
        warn_of_unfitted_best(run, best)
    return Run(run.folder.path, result, tuple(progress.evals), best, untaught=progress.untaught)


def warn_of_unfitted_best(run: TrainingRun, best: Evaluation | None) -> None:
    """Warns if which=best would take a checkpoint that trainer.calibrate has not fitted."""
    in_epoch = best and best.step != run.progress.step and best.step % run.batches_per_epoch
    if run.config.trainer.calibrate and best and in_epoch:
        name = checkpoint_name(best.step)
        if (checkpoints_of(run.folder.path) / name).is_dir():
            logger.warning(
                "trainer.calibrate: which=best takes %s, saved within an epoch: its bias is not fitted", name
            )


def repeat_end(run: TrainingRun, result: RunResult) -> Run:
    """The finished ``run`` as it ended; its files stay as they are."""
    if run.runtime.is_first:
        logger.info("finished already: nothing is left to train, and nothing is written")
    tests = [each for split, each in result.evals.items() if split == "test"]
    evals, best = (*run.progress.evals, *tests), run.progress.best_val()
    return Run(run.folder.path, result, evals, best, untaught=run.progress.untaught)
