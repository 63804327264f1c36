"""Trained models: checkpoints that are not loaded yet, with what their markers say of model, settings and dataset."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dlrm_app.config.train import EvaluationConfig, TrainerConfig, read_saved_config
from dlrm_app.dataset.columns import number_features, read_as_known, refuse_other_columns, vectors_of
from dlrm_app.dataset.label import SAME_LABEL, LabelRule, known_labels
from dlrm_app.dataset.manifest import MANIFEST, DenseColumn, Manifest, read_manifest
from dlrm_app.dataset.splits import ValueCounts
from dlrm_app.errors import DataError, Problem
from dlrm_app.locks import SharedLock
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.plugins import refuse_other_plugins
from dlrm_app.records import Json
from dlrm_app.runs.checkpoint.marker import EMA, MODEL, Marker
from dlrm_app.stores.fetch import fetched
from dlrm_app.stores.names import is_in_store, url_of
from dlrm_app.tables.specs import resolve_tables
from dlrm_app.tables.table import Table, features_of, in_order
from dlrm_app.typed import setting


@dataclass(frozen=True)
class TrainedModel:
    """A complete checkpoint, not loaded yet: the description of its model, and the settings that it computes with."""

    folder: Path
    marker: Marker
    spec: ModelSpec
    trainer: TrainerConfig
    evaluation: EvaluationConfig
    data_path: str
    """The dataset that the model was trained on."""
    dense: str = MODEL
    """MODEL, or EMA to use the average of the dense weights."""
    held: SharedLock | None = field(default=None, compare=False)
    """While it is held, the run does not delete the checkpoint."""

    @property
    def columns(self) -> Json:
        """The encoding of the model's dataset."""
        return self.marker.columns

    @property
    def dense_names(self) -> list[str]:
        """The dense columns, in the order that the model reads them."""
        return [column["name"] for column in self.columns["dense"]]

    @property
    def input_names(self) -> list[str]:
        """The numbers that the model reads of a row: the dense columns, and each number of its vectors."""
        vectors = self.spec.vectors.items()
        return self.dense_names + [f"{name}[{place}]" for name, size in vectors for place in range(size)]

    @property
    def tables(self) -> Sequence[Table]:
        """The model's tables, in the order that it reads them."""
        return self.spec.tables

    @property
    def order(self) -> dict[str, Sequence[str]]:
        """Table → its features, in the order that the model reads them."""
        return {table.name: table.features for table in self.tables}

    @property
    def features(self) -> list[str]:
        """The sparse features, in the order that the model reads them."""
        return features_of(self.tables)

    @property
    def name(self) -> str:
        """Run and step, as text."""
        average = ", averaged" if self.dense == EMA else ""
        return f"{self.folder.absolute().parents[1].name}/{self.folder.name}{average}"


def dataset_of(folder: Path, marker: Marker, typed: str) -> str:
    """The dataset that the checkpoint at ``folder`` was trained on, where it is now. ``typed``: where it was.

    Found from any working folder, also after run and dataset were moved together, or in the folder that was typed.
    """
    moved = folder.absolute().parents[1] / marker.dataset_at
    if url_of(moved):
        fetched(moved)
    if (moved / MANIFEST).is_file():
        with suppress(DataError):
            if read_manifest(moved).fingerprint() == marker.dataset:
                is_absolute = Path(typed).is_absolute() or is_in_store(typed)
                return os.path.normpath(moved) if is_absolute else os.path.relpath(moved)
    return str(fetched(typed)) if is_in_store(typed) else typed


def refuse_moved(path: Path, model: str, cure: str) -> None:
    """Raises DataError if the dataset at ``path``, on which ``model`` was trained, no longer exists.

    ``cure``: the setting that names it where it is now.
    """
    if not path.is_dir():
        rule = f"does not exist, and {model} was trained on the dataset there"
        raise DataError(Problem(str(path), rule, f"if it was moved, {cure}"))


def usual_values(trained: TrainedModel, rows: Manifest) -> Mapping[str, ValueCounts] | None:
    """The counts of values that are usual for the model, to compare other ``rows`` with.

    None if these are its own dataset, or that is gone.
    """
    folder = Path(trained.data_path)
    if rows.fingerprint() == trained.marker.dataset or not (folder / MANIFEST).is_file():
        return None
    own = read_manifest(folder)
    return own.usual_values if own.fingerprint() == trained.marker.dataset else None


def describe_trained(folder: Path, marker: Marker, dense: str = MODEL) -> TrainedModel:
    """Describes the model of the checkpoint at ``folder`` by its ``marker``. Raises DataError for unknown settings."""
    config = read_saved_config(marker.config, folder)
    refuse_other_plugins(config.model.kind, config.plugins, str(folder))
    feature_rows = {column["name"]: column["num_embeddings"] for column in marker.columns["sparse"]}
    groups = [*marker.tables.values()]
    weighted = [column["name"] for column in marker.columns["sparse"] if column.get("weights")]
    data_path = dataset_of(folder, marker, config.data.path)
    vectors = vectors_of(marker.columns["sparse"], Path(data_path))
    tables = resolve_tables(config.tables, feature_rows, groups, weighted, vectors)
    tables = in_order(tables, marker.tables)
    columns = [DenseColumn(**column) for column in marker.columns["dense"]]
    numbers, labels = number_features(columns), known_labels(marker.columns)
    sizes = {column["name"]: column["size"] for column in marker.columns.get("vectors", [])}
    spec = ModelSpec(config.model, tables, len(columns), config.trainer.seed, numbers, labels, sizes)
    return TrainedModel(folder, marker, spec, config.trainer, config.evaluation, data_path, dense)


def check_columns(trained: TrainedModel, manifest: Manifest) -> None:
    """Raises DataError naming every column that ``manifest`` and the model's dataset encode differently."""
    if trained.marker.dataset != manifest.fingerprint():
        encoding = setting("encoding.path", trained.data_path)
        refuse_other_columns(trained.columns, manifest, trained.features, trained.folder, encoding)


def known_rows(trained: TrainedModel, manifest: Manifest, label: LabelRule = SAME_LABEL) -> Manifest:
    """``manifest`` as the model reads it, also with vocabularies of another day. Raises DataError if it does not fit.

    ``label``: as in ``refuse_other_columns``.
    """
    rows = manifest
    if trained.marker.dataset != manifest.fingerprint():
        encoding = setting("encoding.path", trained.data_path)
        columns, features = trained.columns, trained.features
        rows = read_as_known(columns, manifest, features, trained.folder, encoding, label)
    return rows.with_labels(trained.spec.labels)
