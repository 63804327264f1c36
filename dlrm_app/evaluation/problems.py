"""Checks evaluations before any work starts. Does not import torch."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dlrm_app.config.evaluate import EvaluateConfig
from dlrm_app.config.metrics import metric_of
from dlrm_app.config.train import EvaluationConfig, read_saved_config
from dlrm_app.dataset.manifest import Manifest, label_of, read_manifest
from dlrm_app.errors import Problem, refuse_all, refuse_if
from dlrm_app.files import is_file, output_problems
from dlrm_app.runs.checkpoint.marker import read_marker
from dlrm_app.runs.checkpoint.names import hold_checkpoint, refuse_no_checkpoint
from dlrm_app.runs.checkpoint.trained import dataset_of, refuse_moved
from dlrm_app.tables.table import Table, features_of


def evaluation_problems(
    config: EvaluationConfig, manifest: Manifest, tables: Sequence[Table]
) -> list[Problem]:
    """Problems: settings of a training run's evaluations that the dataset does not allow."""
    features = features_of(tables)
    problems = [
        each.within("evaluation", ".") for each in group_problems(manifest, features, config.group_by)
    ]
    comparing = {"target_auc": "AUC"}
    if (best := metric_of(config.best)) is not None and not best.of_one_class:
        comparing["patience"] = best.title
    if has_labelled_val(manifest):
        return problems + [
            replace(
                fault, key=f"evaluation.{key}", rule=f"compares {title}s on {fault.key}, which {fault.rule}"
            )
            for key, title in comparing.items()
            for fault in one_class_problems(manifest, "val")
            if getattr(config, key) is not None
        ]
    return problems + [
        Problem(
            f"evaluation.{key}",
            f"needs a labelled val split, which {manifest.path} does not have",
            "set it to null, or preprocess with split.val=0.1",
        )
        for key in ("every_steps", "per_epoch", "target_auc", "patience")
        if getattr(config, key) is not None
    ]


def one_class_problems(manifest: Manifest, split: str) -> list[Problem]:
    """The problem that the rows of ``split`` have labels of one class, so that they have no AUC; none otherwise."""
    rows, positives = manifest.splits[split].rows, manifest.splits[split].positives or 0
    if 0 < positives < rows:
        return []
    kind = "positive" if positives else "negative"
    cure = f"set it to null, or preprocess with a {split} split that has both"
    return [Problem(split, f"has only {kind} rows in {manifest.path}", cure)]


def has_labelled_val(manifest: Manifest) -> bool:
    """True if a training run can be evaluated on val."""
    return "val" in manifest.splits and manifest.splits["val"].positives is not None


def group_problems(manifest: Manifest, features: Sequence[str], group_by: str | None) -> list[Problem]:
    """Reasons why the rows cannot be grouped by ``group_by``. ``features``: those that the model reads."""
    one_hot = [c.name for c in manifest.sparse if c.name in features and not c.multi_hot]
    names = list(dict.fromkeys([*(column.name for column in manifest.kept), *one_hot]))
    if group_by is None or group_by in names:
        return []
    rule = (
        f"is neither a one-hot feature that the model reads nor a column that {manifest.path} keeps (keep=)"
    )
    cure = f"use one of {', '.join(names)}, or preprocess with keep=[{group_by}]"
    return [Problem(f"group_by={group_by}", rule, cure)]


def by_problems(manifest: Manifest, by: Sequence[str]) -> list[Problem]:
    """A problem for each column of ``by`` that has no values to measure by."""
    one_hot = [column.name for column in manifest.sparse if not column.multi_hot]
    names = list(dict.fromkeys([*one_hot, *(column.name for column in manifest.kept)]))
    return [
        Problem(
            f"by={name}",
            f"is neither a one-hot feature of {manifest.path} nor a column that it keeps (keep=)",
            f"use one of {', '.join(names)}",
        )
        for name in by
        if name not in names
    ]


def check_paths(config: EvaluateConfig, is_first: bool) -> None:
    """Raises one error with all problems of dlrm-evaluate's values and paths. Only the first rank checks ``output``."""
    problems = config.problems()
    if config.output is not None and is_first:
        problems += output_problems("output", Path(config.output))
    paths = [Path(path) for path in (config.checkpoint, config.against) if path]
    looks = [lambda path=path: refuse_no_checkpoint(path) for path in paths]
    problems += [
        Problem(f"scores={path}", "is not a file", "name a Parquet file")
        for path in config.scores
        if not is_file(Path(path))
    ]
    refuse_all(problems, *looks, lambda: _check_rows(config))


def _check_rows(config: EvaluateConfig) -> None:
    """Checks the dataset alone; its match with the models is checked once they are open."""
    path = config.data.path
    if path is None and config.checkpoint is not None:
        folder, _held = hold_checkpoint(Path(config.checkpoint), config.which)
        marker = read_marker(folder)
        path = dataset_of(folder, marker, str(read_saved_config(marker.config, folder).data.path))
        refuse_moved(Path(path), config.checkpoint, "add data.path=FOLDER")
    if path is None:
        return
    manifest = read_manifest(Path(path))
    label_of(manifest, config.split)
    features = [column.name for column in manifest.sparse]
    refuse_if(group_problems(manifest, features, config.group_by) + by_problems(manifest, config.by))
