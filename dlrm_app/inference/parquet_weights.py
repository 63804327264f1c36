"""Writes plain weights as Parquet files, for users who build their own server.

tables/<table>.parquet has id, vector and, for vocabularies, the raw value of the id (null for the ids of
missing and rare values; a column for each feature of a shared table). dense.parquet has name, shape and values of every
other weight.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from dlrm_app.dataset.arrow import array_of, numbers_of
from dlrm_app.dataset.encoding_files import read_vocabulary
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.inference.delta import locate_rows
from dlrm_app.inference.record import RowsAt
from dlrm_app.inference.scoring_model import BLOCK_ROWS, CheckpointWeights
from dlrm_app.inference.tables import refuse_unfit
from dlrm_app.tables.table import Table

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


def write_parquet(
    folder: Path,
    weights: CheckpointWeights,
    tables: Sequence[Table],
    types: dict[str, str],
    manifest: Manifest,
) -> dict[str, list[RowsAt]]:
    """Writes FOLDER/tables and FOLDER/dense.parquet, a table at a time.

    Returns the files' names → the places of their rows.
    """
    (folder / "tables").mkdir()
    places = {}
    for table in tables:
        raw = _raw_values(table, manifest)
        kind = pa.float32() if types[table.name] == "fp32" else pa.float16()
        fields = [pa.field("id", pa.int32(), nullable=False)]
        fields += [pa.field(name, column.type) for name, column in raw.items()]
        fields.append(pa.field("vector", pa.list_(kind, table.dim), nullable=False))
        name, schema = f"tables/{table.name}.parquet", pa.schema(fields)
        # vectors are stored plain, so that their rows can be found in the file; compression would not shorten them
        written = {"data_page_size": 1 << 30, "use_dictionary": list(raw)}
        compression = dict.fromkeys(["id", *raw], "snappy") | {"vector.list.element": "none"}
        with pq.ParquetWriter(folder / name, schema, **written, compression=compression) as writer:
            for first, vectors in _blocks(weights, table, types):
                columns = [array_of(np.arange(first, first + len(vectors), dtype=np.int32))]
                columns += [column.slice(first, len(vectors)) for column in raw.values()]
                flat = array_of(vectors.reshape(-1).numpy())
                columns.append(pa.FixedSizeListArray.from_arrays(flat, table.dim))
                writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=BLOCK_ROWS)
        stored = (
            (table.name, first, vectors.view(torch.uint8).numpy())
            for first, vectors in _blocks(weights, table, types)
        )
        places[name] = locate_rows(folder / name, stored)
    values = [value.detach().contiguous() for value in weights.dense.values()]
    dense = {
        "name": [f"dense.{name.partition('/')[2].removeprefix('model.')}" for name in weights.dense],
        "shape": pa.array([list(value.shape) for value in values], pa.list_(pa.int64())),
        "values": pa.array([value.reshape(-1).numpy() for value in values], pa.list_(pa.float32())),
    }
    pq.write_table(pa.table(dense), folder / "dense.parquet")
    return places


def _blocks(
    weights: CheckpointWeights, table: Table, types: dict[str, str]
) -> Iterator[tuple[int, torch.Tensor]]:
    """(First row, rows) of the blocks of ``table``, in the type that the file has."""
    first = 0
    for block in refuse_unfit(weights.blocks(table), table, types[table.name]):
        yield first, block.to(_DTYPES[types[table.name]]).contiguous()
        first += len(block)


def _raw_values(table: Table, manifest: Manifest) -> dict[str, pa.Array]:
    """Column name → the raw value of every id, for those features of ``table`` that have a vocabulary."""
    sparse = {column.name: column for column in manifest.sparse}
    columns = {}
    for feature in table.features:
        encoding = sparse[feature].encoding
        if encoding["kind"] != "vocab":
            continue
        vocabulary = read_vocabulary(manifest.folder, sparse[feature])
        lines = np.full(table.rows, -1, np.int64)
        lines[numbers_of(vocabulary.column("id"))] = np.arange(len(vocabulary))
        values = vocabulary.column("value").combine_chunks()
        name = "value" if len(table.features) == 1 else f"value_{feature}"
        columns[name] = values.take(pa.array(lines, mask=lines < 0))
    return columns
