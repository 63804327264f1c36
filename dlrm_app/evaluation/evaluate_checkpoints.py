"""Metrics of checkpoints and of scores (dlrm-evaluate), and paired tests of whether they differ on the same rows."""

import gc
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from dlrm_app.config.evaluate import EvaluateConfig
from dlrm_app.config.metrics import metric_of
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.collectives import all_gather_objects
from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.errors import DataError, Problem
from dlrm_app.evaluation.by_value import group_by_value, measure_by_value
from dlrm_app.evaluation.evaluate import (
    ForwardPasses,
    batch_rows,
    evaluate,
    metrics_of_labels,
    metrics_where_given,
)
from dlrm_app.evaluation.evaluated_rows import (
    open_rows,
    same_rows,
    warn_of_unusual_values,
    with_deciding_metric,
)
from dlrm_app.evaluation.group_results import GroupedScores, group_results
from dlrm_app.evaluation.importance import measure_importance
from dlrm_app.evaluation.importance_result import Importance
from dlrm_app.evaluation.intervals import auc_interval, compare_aucs, holm, logloss_interval
from dlrm_app.evaluation.judgement import judge, judged_where_given
from dlrm_app.evaluation.measurements import Measurements
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.evaluation.result import (
    Comparison,
    EvaluationResult,
    Interval,
    LabelResult,
    ModelResult,
    PairedTest,
    ValueResult,
)
from dlrm_app.evaluation.scored_rows import ScoredRows
from dlrm_app.evaluation.scores import measure_scores
from dlrm_app.files import explained_disk_errors, write_json
from dlrm_app.loader.batch import EvalBatches, choose_loading
from dlrm_app.loader.reader import verify_together
from dlrm_app.loader.shuffled_rows import SampledRows
from dlrm_app.runs.checkpoint.evaluation import Judgement
from dlrm_app.runs.checkpoint.load import load_trained, open_trained
from dlrm_app.runs.checkpoint.trained import TrainedModel


@dataclass(frozen=True)
class MeasuredModel:
    """A model's metrics on a split, and this rank's ``rows``.

    ``step``, ``seconds``: the checkpoint's step and the time that the evaluation took; None for files of scores.
    ``others``: the metrics of other labels.
    ``where_given``: the metrics of labels that are given another one, on the rows where that one is 1.
    """

    path: str
    step: int | None
    values: dict[str, float]
    rows: ScoredRows
    ne_error: float
    grouped: GroupedScores | None = None
    others: Mapping[str, ClickMetrics] = field(default_factory=dict)
    where_given: Mapping[str, ClickMetrics] = field(default_factory=dict)
    importance: Importance | None = None
    seconds: float | None = None

    @classmethod
    def of(
        cls, path: str, step: int | None, metrics: ClickMetrics, values: dict[str, float]
    ) -> "MeasuredModel":
        """Takes what ``metrics`` has computed, ``values``."""
        return cls(path, step, values, metrics.rows(), metrics.ne_error, GroupedScores.of(metrics))

    def judged(self, split: str) -> Judgement:
        """The verdict on the metrics, without causes: they lie in the training, whose log and page name them."""
        return judge(Measurements.of(split, self.values, self.ne_error, steps=self.step), None)


def evaluate_checkpoints(config: EvaluateConfig) -> EvaluationResult:
    """Evaluates according to ``config``. Returns what is also written to ``config.output``. Raises DlrmError."""
    with start_runtime(config.threads, job="evaluate") as runtime:
        paths = [path for path in (config.checkpoint, config.against) if path]
        models = [open_trained(Path(path), runtime, config.which, config.ema) for path in paths]
        data_path = config.data.path or (models[0].data_path if models else None)
        manifest = None
        measured = []
        if data_path is not None:
            folder = Path(data_path)
            config = with_deciding_metric(config, models)
            manifest = rows = runtime.together(lambda: open_rows(folder, models, config))
            verify_together(rows, config.data.verify, runtime)
            runtime.on_first(lambda: warn_of_unusual_values(models, rows, config.split))
            measured = [measure(trained, rows, config, runtime) for trained in models]
        for other in measured[1:]:
            refuse_other_labels(other, measured[0])
        if config.scores or config.blend:
            logits = [each.rows.logits for each in measured]
            for name, metrics in measure_scores(config, logits, manifest, runtime):
                measured.append(MeasuredModel.of(name, None, metrics, metrics.compute()))
        result = compare(measured, manifest, str(data_path or config.scores[0]), config, runtime)
        if runtime.is_first and config.output:
            with explained_disk_errors(Path(config.output), "then evaluate again"):
                Path(config.output).parent.mkdir(parents=True, exist_ok=True)
                write_json(Path(config.output), asdict(result))
        return result


def compare(
    measured: Sequence[MeasuredModel],
    manifest: Manifest | None,
    dataset: str,
    config: EvaluateConfig,
    runtime: Runtime,
) -> EvaluationResult:
    """The results of models on the same rows, with intervals and tests. Every rank must call it.

    ``manifest``: the dataset of the rows; None if they come from files of scores. ``dataset``: its name in the result.
    """
    intervals, comparison, tests = find_intervals(measured, config.confidence)
    by = [[] for _ in measured] if manifest is None else measure_by(measured, manifest, config, runtime)
    return EvaluationResult(
        dataset=dataset,
        fingerprint=manifest.fingerprint() if manifest else "",
        split=config.split,
        group_by=config.group_by,
        confidence=config.confidence,
        models=[
            ModelResult(
                checkpoint=each.path,
                step=each.step,
                metrics=each.values,
                auc_interval=interval,
                judgement=each.judged(config.split),
                logloss_interval=logloss_interval(each.rows, config.confidence),
                by=its_values,
                labels=label_results(each.others, measured[0].others, config, each.step),
                where_given=[
                    replace(label, judgement=judged_where_given(label.judgement))
                    for label in label_results(each.where_given, measured[0].where_given, config, each.step)
                ],
                importance=each.importance,
                groups=group_results(
                    each.grouped, None if each is measured[0] else measured[0].grouped, config.confidence
                ),
                seconds=each.seconds,
            )
            for each, interval, its_values in zip(measured, intervals, by, strict=True)
        ],
        comparison=comparison,
        tests=tests,
        ema=config.ema,
    )


def refuse_other_labels(first: MeasuredModel, second: MeasuredModel) -> None:
    """Raises DataError, on every rank, unless both models were measured on rows of the same labels and weights in the
    same order.
    """
    ours, theirs = first.rows, second.rows
    what = "" if torch.equal(ours.labels, theirs.labels) else "labels"
    if not what and (ours.is_weighted, theirs.is_weighted) != (False, False):
        is_same = ours.is_weighted == theirs.is_weighted and torch.equal(ours.weights, theirs.weights)
        what = "" if is_same else "weights"
    if what := next(filter(None, all_gather_objects(what)), ""):
        rule = (
            f"cannot be compared with {second.path}, because the {what} of their datasets' rows are "
            "not the same in the same order"
        )
        raise DataError(Problem(str(first.path), rule, "preprocess both alike, except for the encoding"))


def measure(
    trained: TrainedModel, others: Manifest, config: EvaluateConfig, runtime: Runtime
) -> MeasuredModel:
    """Loads, evaluates and frees the model.

    The rows are those of ``others`` or, if these are encoded in another way, of the model's own dataset of
    the same files.
    """
    manifest = runtime.together(lambda: same_rows(trained, others, config))
    if manifest.path != others.path:
        verify_together(manifest, config.data.verify, runtime)
    rows = trained.evaluation.batch_size, trained.trainer.global_batch_size
    size = config.batch_size or batch_rows(*rows, runtime)
    batches = runtime.together(
        lambda: EvalBatches(
            manifest,
            config.split,
            trained.features,
            batch_size=size,
            rank=runtime.rank,
            world_size=runtime.world_size,
            loading=choose_loading(config.data.prefetch_batches, config.data.decode_workers, runtime),
        )
    )
    model = load_trained(trained, config.sharding, config.topology, size, runtime)
    passes = ForwardPasses(model, runtime.device)
    metrics = metrics_of_labels(manifest, config.split, config.group_by, config.ranking)
    where_given = metrics_where_given(manifest, config.split)
    with batches:
        values, seconds = evaluate(
            passes, batches, metrics | where_given, runtime, f"evaluate {trained.name}"
        )
    importance = _importance(trained, passes, manifest, size, config, runtime)
    main, *rest = metrics.values()
    labels, stored = manifest.other_labels, manifest.splits[config.split].labels
    of_labels = {label.name: each for label, each in zip(labels, rest, strict=True) if label.name in stored}
    of_factors = {rows.name_in(manifest.labels): each for rows, each in where_given.items()}
    del model, passes
    gc.collect()  # its parts refer to one another; another model may need the memory
    step = trained.marker.progress.step
    found = MeasuredModel.of(str(trained.folder), step, main, values)
    return replace(found, others=of_labels, where_given=of_factors, importance=importance, seconds=seconds)


def _importance(
    trained: TrainedModel,
    passes: ForwardPasses,
    manifest: Manifest,
    batch_size: int,
    config: EvaluateConfig,
    runtime: Runtime,
) -> Importance | None:
    """The importance of the columns that the model reads, if ``config`` asks for it."""
    name = config.importance.metric
    if not config.importance.repeats or name is None:
        return None
    metric = metric_of(name)
    loading = choose_loading(config.data.prefetch_batches, config.data.decode_workers, runtime)
    rows = runtime.together(
        lambda: SampledRows(
            manifest,
            config.split,
            trained.features,
            config.importance.rows,
            batch_size,
            runtime,
            loading,
            config.group_by if metric is not None and metric.of_groups else None,
        )
    )
    return measure_importance(
        passes,
        rows,
        runtime,
        metric=name,
        repeats=config.importance.repeats,
        confidence=config.confidence,
        title=f"importance in {trained.name}",
    )


def label_results(
    measured: Mapping[str, ClickMetrics],
    first: Mapping[str, ClickMetrics],
    config: EvaluateConfig,
    step: int | None,
) -> list[LabelResult]:
    """The results of other labels of a model at ``step``, compared with those of the ``first`` model. Every rank must
    call it.
    """
    found, confidence = [], config.confidence
    for name, metrics in measured.items():
        values, rows = metrics.compute(), metrics.rows()
        judgement = judge(Measurements.of(config.split, values, metrics.ne_error, steps=step), None)
        interval, difference = Interval(values["auc"], *[math.nan] * 3), None
        others = first[name] if measured is not first and name in first else None
        if others is not None and not all(all_gather_objects(torch.equal(rows.labels, others.rows().labels))):
            others = None
        if not math.isnan(values["auc"]):
            interval = auc_interval(rows, confidence)
            if others is not None:
                difference = compare_aucs(rows, others.rows().logits, confidence).difference
        loss_interval = logloss_interval(rows, confidence)
        theirs = None if others is None else GroupedScores.of(others)
        groups = group_results(GroupedScores.of(metrics), theirs, confidence)
        found.append(LabelResult(name, values, interval, loss_interval, difference, judgement, groups))
    return found


def measure_by(
    measured: Sequence[MeasuredModel], manifest: Manifest, config: EvaluateConfig, runtime: Runtime
) -> list[list[ValueResult]]:
    """The metrics of each model by the values of the columns in ``config.by``."""
    groups = [group_by_value(manifest, config.split, name, runtime) for name in config.by]
    return [
        [value for group in groups for value in measure_by_value(group, each.rows, config.confidence)]
        for each in measured
    ]


def find_intervals(
    measured: Sequence[MeasuredModel], confidence: float
) -> tuple[list[Interval], Comparison | None, list[PairedTest]]:
    """The models' AUCs with their intervals, the first two compared, and tests of the others against the first."""
    if any(math.isnan(each.values["auc"]) for each in measured):
        return [Interval(each.values["auc"], *[math.nan] * 3) for each in measured], None, []
    first, *others = measured
    if not others:
        return [auc_interval(first.rows, confidence)], None, []
    compared = [
        compare_aucs(replace(first.rows, logits=each.rows.logits), first.rows.logits, confidence)
        for each in others
    ]
    adjusted = holm([each.p_value for each in compared])
    intervals = [compared[0].second, *(each.first for each in compared)]
    less = compared[0].difference
    difference = Interval(-less.value, less.standard_error, -less.high, -less.low)
    comparison = Comparison(intervals[0], intervals[1], difference, compared[0].p_value)
    return intervals, comparison, list(map(PairedTest, compared, adjusted))
