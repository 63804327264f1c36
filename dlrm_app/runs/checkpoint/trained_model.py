"""A model as a checkpoint tells of it: its configuration, its tables, and how its dataset was encoded. Needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlrm_app.config.saved import read_saved_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.columns import refuse_other_columns
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import DataError
from dlrm_app.runs.checkpoint.marker import Marker
from dlrm_app.tables.specs import Table, resolve_tables
from dlrm_app.text import setting

MODEL, EMA = "model", "ema"
"""What the names of a checkpoint's weights begin with, and of the averages of the dense ones."""


@dataclass(frozen=True)
class TrainedModel:
    """A whole checkpoint, not loaded yet, with how its dataset was encoded, its configuration, and its tables."""

    folder: Path
    marker: Marker
    columns: dict[str, Any]
    config: TrainConfig
    tables: Sequence[Table]
    dense: str = MODEL
    """MODEL, or EMA for the average of the dense weights in their place."""

    @property
    def features(self) -> list[str]:
        """The sparse features, in the order that the model reads them."""
        return [name for table in self.tables for name in table.features]

    @property
    def name(self) -> str:
        """Run and step, for people."""
        average = ", averaged" if self.dense == EMA else ""
        return f"{self.folder.absolute().parents[1].name}/{self.folder.name}{average}"


def describe_trained(folder: Path, marker: Marker, dense: str = MODEL) -> TrainedModel:
    """What ``marker``, of the checkpoint at ``folder``, tells of its model. Raises DataError where it does not tell all."""
    columns = marker.columns
    if columns is None:
        raise DataError(
            f"checkpoint {folder} was saved by an early dlrm-app and does not say how its dataset is encoded: save it "
            "again with the same dlrm-train command, resume=auto and a higher trainer.epochs or trainer.max_steps"
        )
    config = read_saved_config(marker.config, folder)
    feature_rows = {column["name"]: column["num_embeddings"] for column in columns["sparse"]}
    return TrainedModel(folder, marker, columns, config, resolve_tables(config.tables, feature_rows), dense)


def check_columns(trained: TrainedModel, manifest: Manifest) -> None:
    """Raises DataError naming every column that ``manifest`` encodes in another way than the model's dataset."""
    if trained.marker.dataset != manifest.fingerprint():
        encoding = setting("encoding.path", trained.config.data.path)
        refuse_other_columns(trained.columns, manifest, trained.features, trained.folder, encoding)
