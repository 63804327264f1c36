"""Makes small logs: the description of their columns, and their rows as CSV."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

Rows = pa.Table | Mapping[str, Any]
"""A table, or its columns by name."""


def make_log(folder: Path, columns: Sequence[str], rows: Rows, *more: str) -> list[str]:
    """Writes the description of ``columns`` to log.yaml and ``rows`` to log.csv; the keys of dlrm-preprocess for both."""
    return [
        f"dataset={describe(folder, columns, *more)}",
        f"input.train={write_csv(folder / 'log.csv', rows)}",
    ]


def describe(folder: Path, columns: Sequence[str], *more: str, name: str = "log") -> Path:
    """Writes the description of a CSV log with ``columns``, entries in YAML, and ``more`` lines to ``name``.yaml."""
    lines = ["name: log", 'delimiter: ","', "header: true", *more, "columns:"]
    path = folder / f"{name}.yaml"
    path.write_text("\n".join([*lines, *(f"  - {column}" for column in columns)]) + "\n")
    return path


def write_csv(path: Path, rows: Rows) -> Path:
    """Writes numbers with all their digits, lists with | between elements, and nothing where a value is missing."""
    table = rows if isinstance(rows, pa.Table) else pa.table(dict(rows))
    lines = map(",".join, zip(*map(_texts, table.columns), strict=True))
    path.write_text("\n".join([",".join(table.column_names), *lines]) + "\n")
    return path


def _texts(column: pa.ChunkedArray) -> list[str]:
    kind = column.type.value_type if pa.types.is_list(column.type) else column.type
    form = np.float32 if kind == pa.float32() else int if kind == pa.bool_() else str

    def text(value: Any) -> str:
        if isinstance(value, list):
            return "|".join(map(text, value))
        return "" if value is None else str(form(value))

    return [text(value) for value in column.to_pylist()]
