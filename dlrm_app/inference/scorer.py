"""The scorer that dlrm-predict, dlrm-serve and Python share: from rows to a checkpoint's or an export's logits.

Shapes: B batch rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dlrm_app.checksums import checksum
from dlrm_app.dataset.manifest import Manifest, read_manifest
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.inference.exported_model import WITHOUT_LABELS, ExportedModel, open_export
from dlrm_app.inference.formats import Inputs
from dlrm_app.inference.record import ENCODING, RECORD, is_export
from dlrm_app.inference.scoring_model import build_scoring_model, to_inputs
from dlrm_app.inference.tables import table_types
from dlrm_app.kernels.install import install
from dlrm_app.loader.batch import CPU, BatchMaker
from dlrm_app.loader.rows import Ranges, Rows
from dlrm_app.runs.checkpoint.load import open_trained
from dlrm_app.runs.checkpoint.trained import TrainedModel, known_rows, refuse_moved


@dataclass(frozen=True)
class Scorer:
    """A model to score with.

    ``logits``: inputs → logits [B], or [B, L] of several ``labels``.
    ``features``: the sparse features, in the order in which it reads them.
    ``identity``: a checksum of the model.
    ``encoding``: the folder with the encoding of raw rows.
    ``check``: returns a dataset's manifest as the model reads it, or raises DataError.
    ``trained``: the checkpoint; None for an export.
    """

    path: Path
    identity: str
    features: list[str]
    encoding: Path
    logits: Callable[[Inputs], torch.Tensor]
    check: Callable[[Manifest], Manifest]
    trained: TrainedModel | None = None
    labels: Sequence[str] = ()
    """The names of several labels, the main one first."""

    def of_rows(self, manifest: Manifest, batch_size: int) -> Callable[[Rows], NDArray[np.float32]]:
        """Makes a function from any number of rows, encoded as ``manifest`` says, to their logits [R], or [R, L].

        Each batch is padded to ``batch_size`` rows: a row's logit does not depend on how many rows there are. A logit
        may be nan, see ``unscored``.
        """
        maker = BatchMaker(manifest, self.features, batch_size)
        none = np.empty((0, len(self.labels)) if self.labels else 0, np.float32)

        def score(rows: Rows) -> NDArray[np.float32]:
            logits = [none]
            for start in range(0, len(rows), batch_size):
                stop = min(start + batch_size, len(rows))
                (batch,) = maker.make(Ranges([rows], np.array([[start, stop, 0]]), batch_size, 1))
                logits.append(self.logits(to_inputs(batch))[: batch.num_valid].numpy().copy())
            return np.concatenate(logits)

        return score


def encoding_of(model: Scorer, cure: str) -> Manifest:
    """The encoding of raw rows for the model. Raises DataError if its dataset was moved; ``cure``: what to give then."""
    if model.trained is not None:
        refuse_moved(model.encoding, model.trained.name, cure)
    return read_manifest(model.encoding)


NO_SCORE = "has no score: the model computes nan, as it may of numbers that are too large for float32"


def unscored(logits: NDArray[np.float32]) -> NDArray[np.int64]:
    """The places of the rows with a NaN among their ``logits`` [R], or [R, L], to be reported instead of a score."""
    return np.flatnonzero(np.isnan(logits).any(axis=tuple(range(1, logits.ndim))))


def open_scorer(path: Path, runtime: Runtime, which: str, ema: bool) -> Scorer:
    """Opens the export, run or checkpoint at ``path``, on every rank. Raises DlrmError.

    ``which``, ``ema``: the checkpoint of a run, and its dense weights, see ``open_trained``; exports have one model.
    """
    if is_export(path):
        return scorer_of_export(runtime.together(open_export, path))
    trained = open_trained(path, runtime, which, ema)
    types = table_types(trained.tables, "fp32", {})
    scoring = runtime.together(build_scoring_model, trained, types)
    model = install(scoring, CPU, trained.trainer.kernels)

    @torch.no_grad()
    def logits(inputs: Inputs) -> torch.Tensor:
        values: torch.Tensor = model(*inputs)[1]
        return values

    return Scorer(
        trained.folder,
        checksum(trained.folder / "complete.json") + ("-ema" if ema else ""),
        trained.features,
        Path(trained.data_path),
        logits,
        partial(known_rows, trained, label=WITHOUT_LABELS),
        trained,
        [label.name for label in trained.spec.labels],
    )


def scorer_of_export(export: ExportedModel) -> Scorer:
    return Scorer(
        export.folder,
        checksum(export.folder / RECORD),
        export.features,
        export.folder / ENCODING,
        lambda inputs: export.score(inputs)[1],
        export.check_columns,
        labels=export.labels,
    )
