"""The rows that dlrm-evaluate measures models on: a dataset that fits them, or each model's own of the same files."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dlrm_app.config.evaluate import EvaluateConfig
from dlrm_app.config.metrics import metric_of
from dlrm_app.dataset.label import LabelRule, as_written
from dlrm_app.dataset.manifest import MANIFEST, Manifest, read_manifest
from dlrm_app.encoding.value_shares import deviation_text, deviations
from dlrm_app.errors import ConfigError, DataError, Problem, refuse_if
from dlrm_app.evaluation.groups import refuse_shared
from dlrm_app.evaluation.problems import by_problems, group_problems
from dlrm_app.runs.checkpoint.trained import TrainedModel, known_rows, refuse_moved, usual_values
from dlrm_app.text import listed
from dlrm_app.typed import setting

logger = logging.getLogger(__name__)


def with_deciding_metric(config: EvaluateConfig, models: Sequence[TrainedModel]) -> EvaluateConfig:
    """``config`` with the metric whose fall importance measures: if it names none, the one that decides which
    evaluation of the first model's run is the best. A metric of groups takes the run's groups, if ``config`` names
    none.

    Raises ConfigError if there are no groups.
    """
    if not config.importance.repeats or not models:
        return config
    run = models[0].evaluation
    name = config.importance.metric or run.best
    config = replace(config, importance=replace(config.importance, metric=name))
    metric = metric_of(name)
    if metric is None or not metric.of_groups or config.group_by is not None:
        return config
    if run.group_by is None:
        rule = "is measured within groups of rows, and group_by names none"
        raise ConfigError(Problem("importance.metric", rule, "add group_by=COLUMN", name))
    return replace(config, group_by=run.group_by)


def open_rows(path: Path, models: Sequence[TrainedModel], config: EvaluateConfig) -> Manifest:
    """The dataset to evaluate on. Raises DlrmError if it is damaged or does not fit the models."""
    if config.data.path is None:
        refuse_moved(path, models[0].name, "add data.path=FOLDER")
    manifest = _counted(read_manifest(path), config)
    refuse_if(by_problems(manifest, config.by))
    if models:
        rows_for(models[0], manifest, config)
    for trained in models:
        refuse_if(group_problems(manifest, trained.features, config.group_by))
    refuse_shared(manifest, config.split, config.group_by)
    return manifest


def warn_of_unusual_values(models: Sequence[TrainedModel], rows: Manifest, split: str) -> None:
    """Warns of each model whose own rows had other shares of missing and unseen values, or other lengths of lists."""
    for trained in models:
        usual = usual_values(trained, rows)
        if usual is not None and (found := deviations(usual, rows.splits[split].values)):
            logger.warning(
                deviation_text(found, f"the rows of {split} in {rows.path}, scored by {trained.name},")
            )


def _counted(manifest: Manifest, config: EvaluateConfig) -> Manifest:
    """``manifest``, without the weights of rows unless ``config`` wants them."""
    return manifest if config.weights else manifest.without_weights()


def rows_for(trained: TrainedModel, manifest: Manifest, config: EvaluateConfig) -> Manifest:
    """``manifest`` as the model reads it.

    Raises DataError if it does not fit, or unless ``config`` says so has another label.
    """
    label = LabelRule(config.other_label == "ignore", "other_label=ignore")
    rows = known_rows(trained, manifest, label)
    refuse_other_conditions(trained, manifest)
    return rows


def refuse_other_conditions(trained: TrainedModel, manifest: Manifest) -> None:
    """Raises DataError if a label of the dataset is ``given`` another one than the model's, or none: the rows that
    count for it are others.
    """
    known = {label.name: label.given for label in manifest.labels}
    problems = [
        Problem(
            label.name,
            f"is given {known[label.name] or 'no other label'} there, and {label.given or 'none'} in the model",
        )
        for label in trained.spec.labels
        if label.name in known and known[label.name] != label.given
    ]
    main = trained.spec.labels[0].name if trained.spec.labels else None
    if known and manifest.label != main and any(label.given for label in trained.spec.labels):
        problems.append(Problem(str(main), f"comes first in the model, {manifest.label} comes first there"))
    if problems:
        cure = f"preprocess the rows with {setting('dataset.labels', as_written(trained.spec.labels))}, as the model's were"
        summary = Problem(str(manifest.path), "has labels with other conditions than the model", cure)
        raise DataError(summary, *problems)


def same_rows(trained: TrainedModel, manifest: Manifest, config: EvaluateConfig) -> Manifest:
    """``manifest`` as the model reads it, or the model's own dataset.

    Raises DataError if that was made of other files.
    """
    try:
        rows = rows_for(trained, manifest, config)
        _name_lacking_labels(trained, manifest)
        return rows
    except DataError as error:
        if config.data.path is not None or not (Path(trained.data_path) / MANIFEST).is_file():
            raise
        own = known_rows(trained, _counted(read_manifest(Path(trained.data_path)), config))
        files = _files(own, config.split)
        if not files or files != _files(manifest, config.split):
            rule = "was not made of the same files, which would do too"
            raise DataError(*error.problems, Problem(str(own.path), rule, "preprocess these")) from error
    refuse_if(group_problems(own, trained.features, config.group_by))
    refuse_shared(own, config.split, config.group_by)
    logger.info("%s is measured on its own dataset %s, made of the same files", trained.name, own.path)
    return own


def _name_lacking_labels(trained: TrainedModel, manifest: Manifest) -> None:
    there = {manifest.label, *(label.name for label in manifest.labels)}
    if lacking := [label.name for label in trained.spec.labels if label.name not in there]:
        logger.warning(
            "%s lacks %s, which %s has learnt too: measured on what it has",
            manifest.path,
            listed(lacking),
            trained.name,
        )


def _files(manifest: Manifest, split: str) -> list[str]:
    """Checksums of the files that ``split`` was made of: its own, else those of train, of which it is a share."""
    files = {
        name: [each.checksum for each in manifest.sources if each.split == name] for name in (split, "train")
    }
    return files[split] or files["train"]
