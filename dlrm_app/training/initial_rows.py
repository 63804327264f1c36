"""Initial rows that are not drawn by (seed, table, row) alone: rows of a later generation, and vectors from a file.

A growing vocabulary may give an id to another value: that row is drawn by its generation too.
``tables.specs[…].init_from`` names a Parquet file with the columns ``value`` (as raw logs have it) and ``vector`` (a
list of numbers, as wide as the table or as one model's share of it in an ensemble; every model then begins with the
same vector). Values that share an id begin with their mean.
"""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dlrm_app.dataset.columns import describe_columns
from dlrm_app.dataset.dictionary import JaggedColumns
from dlrm_app.dataset.encoding_files import VocabularyRows, read_rows
from dlrm_app.dataset.lineage import relate
from dlrm_app.dataset.manifest import Manifest, SparseColumn
from dlrm_app.encoding.sparse import SparseEncoder
from dlrm_app.errors import DataError, Problem
from dlrm_app.logs.vector_files import VectorFile
from dlrm_app.model.initial_weights import init_tables, local_parts, table_weights
from dlrm_app.records import Json
from dlrm_app.tables.table import Table
from dlrm_app.text import count

logger = logging.getLogger(__name__)


def draw_generations(model: nn.Module, tables: Sequence[Table], manifest: Manifest, seed: int) -> None:
    """Draws the rows of ``model``, sharded or not, whose ids now belong to another value. Raises DataError."""
    generations = {}
    for table, rows in _histories(tables, manifest):
        if rows.generation.any():
            generations[table.name] = torch.zeros(table.rows, dtype=torch.int32)
            generations[table.name][: len(rows.generation)] = torch.from_numpy(rows.generation)
    init_tables(model, [table for table in tables if table.name in generations], seed, generations)


def rows_given_since(known: Json, tables: Sequence[Table], manifest: Manifest) -> dict[str, torch.Tensor]:
    """Table → the rows [R] whose ids were assigned after the dataset of a model was made.

    ``known``: that dataset's columns.

    Raises DataError.
    """
    day = relate(known, describe_columns(manifest)).day
    if day is None:
        return {}
    return {
        table.name: torch.from_numpy(np.flatnonzero(rows.given_day > day))
        for table, rows in _histories(tables, manifest)
    }


def _histories(tables: Sequence[Table], manifest: Manifest) -> Iterator[tuple[Table, VocabularyRows]]:
    columns = {column.name: column for column in manifest.sparse}
    for table in tables if manifest.lineage else ():
        column = columns[table.features[0]]
        if column.encoding["kind"] == "vocab":
            yield table, read_rows(manifest.folder, column)


def vector_problems(tables: Sequence[Table], manifest: Manifest) -> list[Problem]:
    """Problems of the files of vectors that ``tables`` name, found in the files' footers."""
    columns = {column.name: column for column in manifest.sparse}
    problems = []
    for table in tables:
        if table.init_from is None:
            continue
        kind = columns[table.features[0]].encoding["kind"]
        if kind not in ("hash", "vocab"):
            rule = f"needs raw values to find vectors by, which {table.features[0]} does not have ({kind})"
            problems.append(Problem(_key(table), rule, "leave it out"))
            continue
        if problem := _file(table, columns[table.features[0]]).problem():
            problems.append(problem)
    return problems


def _key(table: Table) -> str:
    return f"init_from={table.init_from} of table {table.name}"


def _file(table: Table, column: SparseColumn) -> VectorFile:
    assert table.init_from is not None
    return VectorFile(table.init_from, column.encoding["raw"], _key(table))


@torch.no_grad()
def init_vectors(model: nn.Module, tables: Sequence[Table], manifest: Manifest, num_models: int) -> None:
    """Sets the rows of ``model``, sharded or not, that files have vectors for; logs how many values are unknown.

    ``num_models``: the size of the ensemble. Raises DataError, naming the file, for invalid vectors or values.
    """
    by_name = {table.name: table for table in tables if table.init_from is not None}
    columns = {column.name: column for column in manifest.sparse}
    for name, weight in table_weights(model.state_dict(), by_name):
        table, column = by_name[name], columns[by_name[name].features[0]]
        parts, num_unknown = local_parts(weight), 0
        found = [torch.zeros(len(part), 1, dtype=torch.int32, device=part.device) for part, _, _ in parts]
        for part_of_file in _file(table, column).read():
            ids = _ids(column, manifest.folder, part_of_file.keys)
            vectors = _as_wide(table, part_of_file.vectors, num_models)
            num_unknown += int((ids < 0).sum())
            for (part, first, column_from), counts in zip(parts, found, strict=True):
                here = (ids >= first) & (ids < first + len(part))
                rows = (ids[here] - first).to(part.device)
                part[rows[counts[rows, 0] == 0]] = 0
                counts.index_add_(0, rows, torch.ones_like(counts[rows]))
                part.index_add_(0, rows, vectors[here, column_from : column_from + part.shape[1]].to(part))
        for (part, _, _), counts in zip(parts, found, strict=True):
            part /= counts.clamp(min=1)
        logger.info(
            "table %s begins with vectors of %s, %s unknown to the vocabulary",
            name,
            table.init_from,
            count(num_unknown, "value"),
        )


def _ids(column: SparseColumn, folder: Path, keys: NDArray[np.uint64]) -> torch.Tensor:
    """The id of every value; -1 for a value that the vocabulary does not have."""
    ids = SparseEncoder([column], folder).apply(JaggedColumns.joined([keys])).ids
    return torch.from_numpy(np.where(ids == column.encoding.get("rare_id", -1), -1, ids).astype(np.int64))


def _as_wide(table: Table, vectors: NDArray[np.float32], num_models: int) -> torch.Tensor:
    """The vectors as float32 [rows, table.dim]; each model of an ensemble gets a copy."""
    width, wanted = vectors.shape[1], sorted({table.dim, table.dim // num_models})
    if width not in wanted:
        rule = (
            f"must have {' or '.join(map(str, wanted))} numbers in each vector, as wide as the table's rows "
            "or as one model's share of them"
        )
        raise DataError(Problem(_key(table), rule, value=[width]))
    return torch.from_numpy(vectors).repeat(1, table.dim // width)
