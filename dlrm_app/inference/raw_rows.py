"""Tables of raw rows → the rows that a model scores, encoded as those that it was trained on."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.manifest import Manifest
from dlrm_app.encoding.encoder import Encoder
from dlrm_app.encoding.value_shares import ValueCounter, ValueWatch
from dlrm_app.loader.reader import TableReader
from dlrm_app.loader.rows import Rows, in_given_order
from dlrm_app.logs.arrow_rows import ArrowCursor
from dlrm_app.logs.first_rows import TimeWatch
from dlrm_app.logs.rejects import RejectedLine
from dlrm_app.logs.spec import Spec

CHUNK_ROWS = 1 << 15
"""Rows encoded at a time."""


class ReadRows(NamedTuple):
    """Rows to score.

    ``numbers``: their places in the table.
    ``rejects``: the rows between them that are malformed.
    """

    rows: Rows
    numbers: NDArray[np.int64]
    rejects: list[RejectedLine]


class RawRows:
    """Encodes tables with the columns of ``spec`` by ``manifest``, for a model that reads ``features``.

    One thread at a time may use it.
    """

    def __init__(self, spec: Spec, manifest: Manifest, features: Sequence[str]) -> None:
        self._cursor = ArrowCursor(pa.table({}), spec)
        columns = manifest.dense, manifest.sparse
        self._encoder = Encoder(spec, *columns, manifest.folder, vectors=manifest.vectors)
        self._reader = TableReader(manifest, features)
        self.watch = ValueWatch(manifest.usual_values, ValueCounter(*columns, manifest.vectors))
        """Compares all rows that were read with the usual ones."""
        self._times = TimeWatch(spec.times)

    def read(self, table: pa.Table, shared: pa.Table | None = None) -> Iterator[ReadRows]:
        """The rows of ``table``, many at a time. ``shared``: a row with the columns that ``table`` lacks, whose
        values are those of all rows.
        """
        self._cursor.restart(table, shared)
        for raw in self._cursor.rows(CHUNK_ROWS, None):
            self._times.add(raw.times)
            encoded = self._encoder.encode(raw, counts_unseen=True)
            self.watch.counter.add(encoded)
            rows = in_given_order(self._reader.read_encoded(encoded))
            yield ReadRows(rows, self._cursor.row_lines(), self._cursor.take_rejects())
