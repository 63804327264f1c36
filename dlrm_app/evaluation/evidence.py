"""Measures why a model may have learnt nothing or too much: a sample of rows, and one small batch through the model.

Called only for an evaluation that has no good verdict from its metrics, so that a good run pays nothing.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torchrec.modules.mlp import Perceptron

from dlrm_app.dataset.arrow import Bags
from dlrm_app.dataset.manifest import Manifest, SparseColumn
from dlrm_app.distributed.collectives import all_gather_objects
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.evaluation.column_auc import auc_of, auc_of_ids
from dlrm_app.evaluation.evaluate import ForwardPasses
from dlrm_app.evaluation.measurements import Evidence, TrainedSoFar
from dlrm_app.kernels.dense_layers import LinearRelu
from dlrm_app.loader.batch import EvalBatches
from dlrm_app.loader.reader import SplitReader
from dlrm_app.loader.rows import Rows
from dlrm_app.model.initial_weights import local_parts, table_weights
from dlrm_app.model.regularization import RegularizedPerceptron
from dlrm_app.sharding.sharder import undisturbed
from dlrm_app.tables.table import Table

SAMPLED_ROWS = 1 << 16
"""Rows of each split that are looked at."""
SAMPLED_WEIGHTS = 1 << 14
"""Rows of each part of a table that are looked at: the first, which a vocabulary gives to frequent values."""
MISSING_OR_RARE = {"hash": 1, "vocab": 2}
"""Ids below this stand for missing and rare values, which tell nothing about a value."""


def gather(
    manifest: Manifest,
    split: str,
    tables: Sequence[Table],
    passes: ForwardPasses,
    batches: EvalBatches,
    runtime: Runtime,
    trained: TrainedSoFar,
) -> Evidence:
    """Evidence about the model of ``passes`` and the rows that it learnt and was judged on. Every rank must call it.

    ``batches``: of ``split``; the first is used.
    """
    features = [name for table in tables for name in table.features]
    scales, aucs, unknown = runtime.on_first(_look, manifest, split, features)
    silent, spread = _fire(passes, batches)
    growth, largest = _weights(passes.model, tables)
    return Evidence(
        train=manifest.clicks_and_rows("train"),
        here=manifest.clicks_and_rows(split),
        trained=trained,
        dataset=str(manifest.path),
        scales=scales,
        column_aucs=aucs,
        crowded={
            c.name: c.distinct / c.num_embeddings
            for c in manifest.sparse
            if c.distinct is not None and c.name in features
        },
        unknown=unknown,
        silent=silent,
        growth=growth,
        table_values=largest,
        spread=spread,
    )


def _look(
    manifest: Manifest, split: str, features: Sequence[str]
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """(size of each dense column, AUC of each column of the log alone, share of unknown lookups by feature),
    from samples of rows.
    """
    train, here = _sample(manifest, "train", features), _sample(manifest, split, features)
    columns = {column.name: column for column in manifest.sparse}
    dense, labels = np.concatenate([rows.dense for rows in train]), _labels(train)
    scales: dict[str, float] = {}
    unknown: dict[str, float] = {}
    aucs: dict[str, list[float]] = defaultdict(list)  # by column of the log, which others are made of
    for number, column in enumerate(manifest.dense):
        values = dense[:, number].astype(np.float64)
        scales[column.name] = float(np.sqrt(np.mean(values**2)))
        aucs[column.transform.get("column", column.name)].append(auc_of(values, labels))
    for number, name in enumerate(features):
        (ids, bags), (others, _) = _ids(train, number), _ids(here, number)
        unknown[name] = _unknown(ids, others, columns[name])
        if bags is None:
            aucs[columns[name].encoding.get("column", name)].append(auc_of_ids(ids, labels))
    known = {name: [auc for auc in some if not math.isnan(auc)] for name, some in aucs.items()}
    best = {name: max(some, key=lambda auc: abs(auc - 0.5)) for name, some in known.items() if some}
    return scales, best, unknown


def _sample(manifest: Manifest, split: str, features: Sequence[str]) -> list[Rows]:
    """Row groups spread over the split, with at least SAMPLED_ROWS rows if it has them."""
    reader = SplitReader(manifest, split, features)
    groups = [group for group, rows in enumerate(reader.group_rows) if rows]
    wanted = max(1, math.ceil(SAMPLED_ROWS / max(1, max(reader.group_rows, default=1))))
    step = max(1, len(groups) // wanted)
    return [reader.decode(group) for group in groups[::step][: wanted + 1]]


def _labels(parts: Sequence[Rows]) -> NDArray[np.bool_]:
    return np.concatenate([rows.labels for rows in parts]) > 0.5


def _ids(parts: Sequence[Rows], number: int) -> tuple[NDArray[np.int32], bool | None]:
    """(the ids of all lookups of a feature, True if it is multi-hot or None)."""
    columns = [rows.features[number] for rows in parts]
    values = [column.values if isinstance(column, Bags) else column for column in columns]
    return np.concatenate(values), True if isinstance(columns[0], Bags) else None


def _unknown(ids: NDArray[np.int32], others: NDArray[np.int32], column: SparseColumn) -> float:
    """The share of ``others`` not among one half of ``ids``, minus the same share of the other half."""
    known, rest = np.unique(ids[::2]), ids[1::2]
    known = known[known >= MISSING_OR_RARE.get(column.encoding["kind"], 0)]
    if not (len(rest) and len(others)):
        return 0.0
    return float(np.isin(rest, known).mean() - np.isin(others, known).mean())


@torch.no_grad()
def _fire(passes: ForwardPasses, batches: EvalBatches) -> tuple[float | None, float | None]:
    """(share of ReLU units that fire for no row, standard deviation of logits) over the first batch of all ranks.

    Hooks are for this pass alone. None for units if the model has none that can be watched.
    """
    fired: list[torch.Tensor] = []

    def note(_module: nn.Module, _inputs: object, output: object) -> None:
        # a unit has fired if any row of the batch has a value above 0; while the
        # pipeline traces the model there are none
        if type(output) is torch.Tensor:
            fired.append((output > 0).any(0).cpu())

    handles = [
        module.register_forward_hook(note)
        for module in passes.model.modules()
        if isinstance(module, LinearRelu | RegularizedPerceptron)
        or (isinstance(module, Perceptron) and module._activation_fn is torch.relu)
    ]
    model = passes.model.eval()
    try:
        with undisturbed(model), closing(passes.over(batches)) as scored:
            logits = [main[: batch.num_valid, 0].double().cpu() for batch, main in islice(scored, 1)]
    finally:
        for handle in handles:
            handle.remove()
        model.train()
    found = all_gather_objects((fired, logits))
    all_logits = torch.cat([part for _, parts in found for part in parts])
    spread = float(all_logits.std()) if all_logits.numel() > 1 else None
    layers = [torch.stack([*units]).any(0) for units in zip(*(units for units, _ in found), strict=True)]
    silent = float(1 - torch.cat(layers).double().mean()) if layers else None
    finite = spread is not None and math.isfinite(spread)
    return silent, spread if finite else None


@torch.no_grad()
def _weights(model: nn.Module, tables: Sequence[Table]) -> tuple[float | None, float | None]:
    """(the largest root mean square of a linear layer's weights over that of fresh ones, the largest sampled
    table weight).
    """
    growths = [
        float(layer.weight.double().square().mean().sqrt()) * math.sqrt(3 * layer.in_features)
        for layer in model.modules()
        if isinstance(layer, nn.Linear)  # fresh weights are U(-a, a), a = 1/sqrt(in_features)
    ]
    parts = [
        part[:SAMPLED_WEIGHTS].abs().max()
        for _, weight in table_weights(model.state_dict(), {table.name: table for table in tables})
        for part, _, _ in local_parts(weight)
        if part.numel()
    ]
    largest = max((float(part) for part in parts), default=0.0)
    largest = max(all_gather_objects(largest))
    finite = [growth for growth in growths if math.isfinite(growth)]
    return max(finite, default=None), largest if math.isfinite(largest) else None
