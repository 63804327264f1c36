"""Measures why a model may have learnt nothing or too much: a sample of rows, and one small batch through the model.

Called only for an evaluation that has no good verdict from its metrics, so that a good run pays nothing.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice

import numpy as np
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import nn
from torchrec.modules.mlp import Perceptron

from dlrm_app.dataset.arrow import Bags
from dlrm_app.dataset.columns import have_same_ids
from dlrm_app.dataset.encoding_files import read_vocabulary
from dlrm_app.dataset.manifest import Manifest, SparseColumn
from dlrm_app.distributed.collectives import all_gather_objects
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.evaluation.column_auc import auc_of, auc_of_ids, auc_of_lists, auc_of_pair
from dlrm_app.evaluation.evaluate import ForwardPasses
from dlrm_app.evaluation.label_rows import LabelRows
from dlrm_app.evaluation.measurements import Evidence, Leaks, ListAndColumn, TrainedSoFar
from dlrm_app.kernels.dense_layers import LinearRelu
from dlrm_app.loader.batch import EvalBatches
from dlrm_app.loader.reader import SplitReader
from dlrm_app.loader.rows import Rows
from dlrm_app.model.initial_weights import local_parts, table_weights
from dlrm_app.model.regularization import RegularizedPerceptron
from dlrm_app.sharding.sharder import undisturbed
from dlrm_app.tables.table import Table, features_of

SAMPLED_ROWS = 1 << 16
"""Rows of each split that are looked at."""
SAMPLED_WEIGHTS = 1 << 14
"""Rows of each part of a table that are looked at: the first, which a vocabulary gives to frequent values."""
MISSING_OR_RARE = {"hash": 1, "vocab": 2}
"""Ids below this stand for missing and rare values, which tell nothing about a value."""


def gather(
    manifest: Manifest,
    rows: LabelRows,
    tables: Sequence[Table],
    passes: ForwardPasses,
    batches: EvalBatches,
    runtime: Runtime,
    trained: TrainedSoFar,
) -> Evidence:
    """Collects evidence for why the model of ``passes`` scores as it does on one label's ``rows``. Every rank must call
    it.

    ``batches``: of the split of ``rows``; the first is used.
    """
    features = features_of(tables)
    scales, aucs, unknown = runtime.on_first(_look, manifest, features, rows)
    silent, spread = _fire(passes, batches, rows.number)
    growth, largest = _weights(passes.model, tables)
    return Evidence(
        train=_class_sums(manifest, "train", rows),
        here=_class_sums(manifest, rows.split, rows),
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


def _class_sums(manifest: Manifest, split: str, rows: LabelRows) -> tuple[float, float]:
    """(positives, rows) of a label; where its condition holds, if it is given another one."""
    if rows.number == 0:
        return manifest.clicks_and_rows(split)
    label = manifest.labels[rows.number]
    return (
        manifest.where_given(split, label)[:2] if label.name in manifest.splits[split].labels else (0.0, 0.0)
    )


def _look(
    manifest: Manifest, features: Sequence[str], label: LabelRows
) -> tuple[dict[str, float], Leaks, dict[str, float]]:
    """(size of each dense column, AUC of each column of the log alone, and of each list with the column whose values it
    shares, share of unknown lookups by feature), from samples of rows.
    """
    train, here = _sample(manifest, "train", features), _sample(manifest, label.split, features)
    columns = {column.name: column for column in manifest.sparse}
    dense = np.concatenate([rows.dense for rows in train]).astype(np.float64)
    read = {name: _ids(train, number) for number, name in enumerate(features)}
    scales = {c.name: float(np.sqrt(np.mean(dense[:, n] ** 2))) for n, c in enumerate(manifest.dense)}
    unknown = {
        name: _unknown(read[name].values, _ids(here, number).values, columns[name])
        for number, name in enumerate(features)
    }
    # by column of the log, which others are made of
    aucs: dict[str | ListAndColumn, list[float]] = defaultdict(list)
    for chosen, labels in _outcomes(manifest, train, label):
        for number, column in enumerate(manifest.dense):
            aucs[column.transform.get("column", column.name)].append(auc_of(dense[chosen, number], labels))
        for names, auc in _list_aucs(manifest, read, chosen, labels):
            aucs[names].append(auc)
    known = {name: [auc for auc in some if not math.isnan(auc)] for name, some in aucs.items()}
    best = {name: max(some, key=lambda auc: abs(auc - 0.5)) for name, some in known.items() if some}
    return scales, best, unknown


def _list_aucs(
    manifest: Manifest, read: Mapping[str, Bags], chosen: NDArray[np.intp], labels: NDArray[np.bool_]
) -> Iterator[tuple[str | ListAndColumn, float]]:
    """(column of the log, AUC) of each feature alone, and of each list with each column of one value a row whose values
    have the same ids. ``read``: feature → its ids.
    """
    columns = {column.name: column for column in manifest.sparse if column.name in read}
    taken = {name: _some_of(read[name], chosen) for name in columns}
    singles = {name: bags.values for name, bags in taken.items() if not columns[name].multi_hot}
    for name, ids in singles.items():
        yield columns[name].encoding.get("column", name), auc_of_ids(ids, labels)
    for name, bags in taken.items():
        if not columns[name].multi_hot:
            continue
        yield name, auc_of_lists(bags.values, bags.offsets, labels)
        for other, ids in singles.items():
            if (in_list := _ids_in(manifest, columns[other], columns[name])) is not None:
                yield ListAndColumn(name, other), auc_of_pair(in_list[ids], bags.values, bags.offsets, labels)


def _ids_in(manifest: Manifest, column: SparseColumn, other: SparseColumn) -> NDArray[np.int64] | None:
    """[num_embeddings] the id that ``other`` gives the value of each id of ``column``, -1 for none and for missing and
    rare values, which need not be the same; None if their values cannot be compared.
    """
    least = MISSING_OR_RARE.get(column.encoding["kind"], 0)
    if have_same_ids(column, other):
        found = np.arange(column.num_embeddings, dtype=np.int64)
    elif column.encoding["kind"] == other.encoding["kind"] == "vocab":
        values, others = (read_vocabulary(manifest.folder, each) for each in (column, other))
        if values["value"].type != others["value"].type:
            return None
        places = pc.index_in(values["value"], value_set=others["value"].combine_chunks())
        found = np.full(column.num_embeddings, -1, np.int64)
        known = places.is_valid().to_numpy()
        found[values["id"].to_numpy()[known]] = others["id"].to_numpy()[places.drop_null().to_numpy()]
    else:
        return None
    found[:least] = -1
    return found


def _some_of(bags: Bags, chosen: NDArray[np.intp]) -> Bags:
    lengths = np.diff(bags.offsets)[chosen]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    places = np.arange(offsets[-1]) + np.repeat(bags.offsets[:-1][chosen] - offsets[:-1], lengths)
    return Bags(bags.values[places], offsets.astype(np.int32))


def _outcomes(
    manifest: Manifest, parts: Sequence[Rows], label: LabelRows
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.bool_]]]:
    """Yields the label's rows and their labels; then, if it has a condition, only those where that holds, because some
    leaks show only there.
    """
    numbers = np.concatenate([rows.supervision for rows in parts]).T[: max(1, len(manifest.labels))]
    values = label.outcomes(torch.from_numpy(np.ascontiguousarray(numbers)))[0].numpy()
    known = ~np.isnan(values)
    before = label.given[label.number]
    for chosen in [known] if before is None else [known, known & (numbers[before] == 1)]:
        rows = np.flatnonzero(chosen)
        yield rows, values[rows] > 0.5


def _sample(manifest: Manifest, split: str, features: Sequence[str]) -> list[Rows]:
    """Row groups spread over the split, with at least SAMPLED_ROWS rows if it has them."""
    reader = SplitReader(manifest, split, features)
    groups = [group for group, rows in enumerate(reader.group_rows) if rows]
    wanted = max(1, math.ceil(SAMPLED_ROWS / max(1, max(reader.group_rows, default=1))))
    step = max(1, len(groups) // wanted)
    return [reader.decode(group) for group in groups[::step][: wanted + 1]]


def _ids(parts: Sequence[Rows], number: int) -> Bags:
    """The ids of a feature, one a row or lists."""
    columns = [rows.features[number] for rows in parts]
    values = [column.values if isinstance(column, Bags) else column for column in columns]
    lengths = [
        np.diff(column.offsets) if isinstance(column, Bags) else np.ones(len(column), np.int32)
        for column in columns
    ]
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    return Bags(np.concatenate(values), offsets.astype(np.int32))


def _unknown(ids: NDArray[np.int32], others: NDArray[np.int32], column: SparseColumn) -> float:
    """The share of ``others`` not among one half of ``ids``, minus the same share of the other half."""
    known, rest = np.unique(ids[::2]), ids[1::2]
    known = known[known >= MISSING_OR_RARE.get(column.encoding["kind"], 0)]
    if not (len(rest) and len(others)):
        return 0.0
    return float(np.isin(rest, known).mean() - np.isin(others, known).mean())


@torch.no_grad()
def _fire(passes: ForwardPasses, batches: EvalBatches, label: int) -> tuple[float | None, float | None]:
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
            logits = [every[: batch.num_valid, label].double().cpu() for batch, every in islice(scored, 1)]
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
    """(the largest RMS of a linear layer's weights over that of fresh ones, the largest sampled table weight)."""
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
