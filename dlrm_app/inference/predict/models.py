"""What scores: an export, or a checkpoint's model as it was trained, whole in each process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from dlrm_app.config.predict import PredictConfig
from dlrm_app.dataset.manifest import Manifest, read_manifest
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.files import checksum
from dlrm_app.inference.encoding import ENCODING
from dlrm_app.inference.exported_model import open_export
from dlrm_app.inference.record import RECORD, is_export
from dlrm_app.inference.scoring_model import build_scoring_model, to_inputs
from dlrm_app.inference.tables.quantized import table_types
from dlrm_app.loader.batch import Batch
from dlrm_app.runs.checkpoint.load import open_trained
from dlrm_app.runs.checkpoint.marker import check_columns


@dataclass(frozen=True)
class Model:
    """``logits`` gives [B] of a batch; ``features`` in the order that it reads them.

    ``identity``: a checksum that no other model has. ``check`` raises DataError for a dataset that it cannot read.
    ``encoding``: the folder that raw rows are encoded by.
    """

    name: str
    identity: str
    features: list[str]
    encoding: Path
    logits: Callable[[Batch], torch.Tensor]
    check: Callable[[Manifest], None]


def open_model(config: PredictConfig, runtime: Runtime) -> Model:
    """Verifies and loads ``config.model``, on every rank. Raises DlrmError."""
    path = Path(config.model)
    return _from_export(path, runtime) if is_export(path) else _from_checkpoint(path, config, runtime)


def _from_export(path: Path, runtime: Runtime) -> Model:
    export = runtime.together(lambda: open_export(path))

    def logits(batch: Batch) -> torch.Tensor:
        return export.run(to_inputs(batch))[1]

    identity = checksum(path / RECORD)
    return Model(str(path), identity, export.features, path / ENCODING, logits, export.check_columns)


def _from_checkpoint(path: Path, config: PredictConfig, runtime: Runtime) -> Model:
    trained = open_trained(path, runtime, config.which, config.ema)
    types = table_types(trained.tables, "fp32", {})
    model = runtime.together(lambda: build_scoring_model(trained, types, "fp32"))

    @torch.no_grad()
    def logits(batch: Batch) -> torch.Tensor:
        values: torch.Tensor = model(*to_inputs(batch))[1]
        return values

    def check(manifest: Manifest) -> None:
        check_columns(trained, manifest)

    identity = checksum(trained.folder / "complete.json") + ("-ema" if config.ema else "")
    return Model(trained.name, identity, trained.features, Path(trained.config.data.path), logits, check)


def encoding_of(config: PredictConfig, model: Model) -> Manifest:
    """What raw rows are encoded by. Raises DataError if that is not what the model reads."""
    manifest = read_manifest(Path(config.encoding) if config.encoding else model.encoding)
    model.check(manifest)
    return manifest
