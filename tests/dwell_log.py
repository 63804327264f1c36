"""A small log of histories whose elements have dwell times: its description, its rows, and both forms of files."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests import make_log

COLUMNS = [
    "{name: clicked, role: label}",
    "{name: age, role: dense, kind: integer}",
    "{name: item, role: sparse, kind: integer}",
    '{name: seen, role: sparse, kind: integer, separator: "|"}',
    "{name: dwell, role: element_weights, weights_of: seen}",
]
DWELL = COLUMNS[-1]
NUM_ITEMS = 30


def describe(folder: Path, *more: str, columns: list[str] = COLUMNS) -> Path:
    """Writes the description of the log, with ``more`` lines, to log.yaml."""
    return make_log.describe(folder, columns, "null_values: [NA]", *more)


def draw_rows(num_rows: int, seed: int = 0) -> pa.Table:
    """Rows whose clicks depend on the elements by their dwell times. A tenth of the lists are empty."""
    random = np.random.default_rng(seed)
    worth = np.random.default_rng(9).normal(0, 1, NUM_ITEMS)
    sizes = random.integers(1, 7, num_rows) * (random.random(num_rows) > 0.1)
    seen = [random.integers(0, NUM_ITEMS, size) for size in sizes]
    dwell = [np.round(random.exponential(1.0, size), 3).astype(np.float32) for size in sizes]
    logits = np.array([w @ worth[ids] for w, ids in zip(dwell, seen, strict=True)]) - 0.5
    return pa.table(
        {
            "clicked": (random.random(num_rows) < 1 / (1 + np.exp(-logits))).astype(np.int64),
            "age": random.integers(18, 70, num_rows),
            "item": random.integers(0, NUM_ITEMS, num_rows),
            "seen": pa.array(seen, pa.list_(pa.int64())),
            "dwell": pa.array(dwell, pa.list_(pa.float32())),
        }
    )


def write_parquet(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path)
