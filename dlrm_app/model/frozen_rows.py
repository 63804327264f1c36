"""The rows of frozen tables, which every model takes from the files of a dataset, whatever its sharding plan.

Shapes: R rows, D a table's width, W the numbers of a vector in its file.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from dlrm_app.model.initial_weights import local_parts, table_weights
from dlrm_app.tables.table import Table

_BLOCK_ROWS = 4096


@torch.no_grad()
def set_vectors(
    model: nn.Module, tables: Sequence[Table], chosen: Mapping[str, torch.Tensor] = MappingProxyType({})
) -> None:
    """Sets the rows of frozen ``tables`` that this rank holds from their files. ``model`` may be sharded or not.

    ``chosen``: table → the rows [R] of the file that it has, in order, if these are not all. Raises DataError for files
    that are missing or have changed.
    """
    by_name = {table.name: table for table in tables if table.is_frozen}
    for name, weight in table_weights(model.state_dict(), by_name):
        rows = _open_vectors(by_name[name])
        for part, first_row, first_column in local_parts(weight):
            part.zero_()  # rows and columns that the file does not have
            last = min(first_column + part.shape[1], rows.shape[1])
            for start in range(0, len(part), _BLOCK_ROWS):
                own = torch.arange(first_row + start, first_row + min(start + _BLOCK_ROWS, len(part)))
                wanted = own if name not in chosen else chosen[name][own]
                numbers = wanted[wanted < len(rows)].numpy()
                if not len(numbers):
                    continue
                low, high = int(numbers[0]), int(numbers[-1]) + 1
                block = rows[low:high] if high - low == len(numbers) else rows[numbers]
                values = torch.from_numpy(np.array(block[:, first_column:last]))
                part[start : start + len(numbers), : last - first_column] = values.to(part)


def _open_vectors(table: Table) -> NDArray[np.floating]:
    assert table.vectors is not None
    table.vectors.verify()
    return table.vectors.open()


def vector_blocks(table: Table, num_rows: int) -> Iterator[torch.Tensor]:
    """The rows of a frozen table, in blocks of ``num_rows`` [n, dim], verified before. Raises DataError."""
    rows = _open_vectors(table)
    for first in range(0, table.rows, num_rows):
        block = torch.from_numpy(np.array(rows[first : min(first + num_rows, table.rows)]))
        yield F.pad(block, (0, table.dim - block.shape[1]))
