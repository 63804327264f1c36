"""Text → columns of raw values, a row group at a time, and the lines that could not be used."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlrm_app.preprocess.read import fields, lines
from dlrm_app.preprocess.read.spec import Spec
from dlrm_app.preprocess.units.dictionary import Columns

_KEY_KINDS = {"integer": fields.KEY_INTEGER, "hex": fields.KEY_HEX, "string": fields.KEY_STRING}
_DENSE_KINDS = {"integer": fields.DENSE_INTEGER, "float": fields.DENSE_FLOAT}
_MAX_REJECTS = 4096
_FIRST_LIST_ROOM = 4
_STAGGER = 72
"""Values by which the columns' arrays are longer than they need be: at a distance of a power of two, the ends to
which a row's values go would all fall on the same few lines of the processor's caches."""


@dataclass(frozen=True, slots=True)
class Reject:
    """A line left out: its number from 0 within the text given, its position there, why."""

    line: int
    start: int
    end: int
    reason: int
    detail: int


@dataclass(frozen=True, slots=True)
class RawColumns:
    """R rows: labels uint8 [R], dense float64 [N, R] (NaN where missing), keys uint64 [F, R] (MISSING_KEY).

    List columns: row r of column l holds ``list_keys[l, list_ends[l, r]:list_ends[l, r + 1]]``. Spans, where kept,
    are the positions in the text of the values behind the keys.
    """

    labels: NDArray[np.uint8]
    dense: NDArray[np.float64]
    keys: NDArray[np.uint64]
    one_hot: Columns
    """The bits of the dense columns, then the keys, all uint64."""
    spans: NDArray[np.int64]
    list_ends: NDArray[np.int64]
    list_keys: NDArray[np.uint64]
    list_spans: NDArray[np.int64]


class Parser:
    """Collects rows of ``spec`` in arrays of ``capacity`` rows that are used again and again."""

    def __init__(self, spec: Spec, capacity: int, *, keep_spans: bool = False) -> None:
        self.spec = spec
        self._capacity = capacity
        self._keep_spans = keep_spans
        self._marks = (ord(spec.delimiter), ord(spec.quote) if spec.quote else -1)
        one_hot = [column.name for column in spec.sparse if column.separator is None]
        self._num_lists = len(spec.sparse) - len(one_hot)
        self._columns = _column_codes(spec)
        spans_room = capacity if keep_spans else 0
        self._labels = np.zeros(capacity, np.uint8)
        values = np.empty((len(spec.dense) + len(one_hot), capacity + _STAGGER), np.uint64)
        self._values = values.reshape(-1)
        self._dense, self._keys = values[: len(spec.dense)].view(np.float64), values[len(spec.dense) :]
        self._spans = np.zeros((len(one_hot), spans_room, 2), np.int64)
        self._list_ends = np.zeros((self._num_lists, capacity + 1), np.int64)
        self._rejects = np.empty((_MAX_REJECTS, 5), np.int64)
        self._list_keys, self._list_spans = self._list_room(_FIRST_LIST_ROOM * capacity)
        self.rows = 0

    def _list_room(self, room: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        spans_room = room if self._keep_spans else 0
        return np.empty((self._num_lists, room), np.uint64), np.zeros(
            (self._num_lists, spans_room, 2), np.int64
        )

    def _make_list_room(self) -> None:
        old_keys, old_spans = self._list_keys, self._list_spans
        self._list_keys, self._list_spans = self._list_room(2 * old_keys.shape[1] + fields.MAX_LINE)
        self._list_keys[:, : old_keys.shape[1]] = old_keys
        self._list_spans[:, : old_spans.shape[1]] = old_spans

    @property
    def is_full(self) -> bool:
        return self.rows == self._capacity

    def parse(
        self, text: NDArray[np.uint8], start: int, stop: int, num_lines: int
    ) -> tuple[int, int, list[Reject]]:
        """Reads up to ``num_lines`` lines of text[start:stop], until the rows are full or many are rejected.

        Gives (position behind the last line read, lines read, rejects among them).
        """
        out = (self._labels, self._dense, self._keys, self._spans)
        at, self.rows, count, num_rejects, why = lines.parse_lines(
            text,
            start,
            stop,
            num_lines,
            self._marks,
            self._columns,
            out,
            (self._list_ends, self._list_keys, self._list_spans),
            self.rows,
            self._rejects,
        )
        if why == lines.LISTS_FULL:
            self._make_list_room()
        return at, count, [Reject(*row) for row in self._rejects[:num_rejects].tolist()]

    def _columns_of(self, rows: int) -> Columns:
        begins = np.arange(len(self._dense) + len(self._keys)) * (self._capacity + _STAGGER)
        return Columns(self._values, begins, begins + rows)

    def take(self) -> RawColumns:
        """The rows collected, as views that hold until the next parse, which begins anew."""
        rows, self.rows = self.rows, 0
        return RawColumns(
            self._labels[:rows],
            self._dense[:, :rows],
            self._keys[:, :rows],
            self._columns_of(rows),
            self._spans[:, :rows],
            self._list_ends[:, : rows + 1],
            self._list_keys,
            self._list_spans,
        )


def _column_codes(spec: Spec) -> NDArray[np.int64]:
    """[C, 3]: for each column of the file what it holds, which output column it fills, its separator or -1."""
    num_dense = num_keys = num_lists = 0
    codes = []
    for column in spec.columns:
        if column.role == "label":
            codes.append((fields.LABEL, 0, -1))
        elif column.role == "dense":
            codes.append((_DENSE_KINDS[column.kind or ""], num_dense, -1))
            num_dense += 1
        elif column.role == "sparse" and column.separator is None:
            codes.append((_KEY_KINDS[column.kind or ""], num_keys, -1))
            num_keys += 1
        elif column.role == "sparse":
            codes.append((_KEY_KINDS[column.kind or ""], num_lists, ord(column.separator or "")))
            num_lists += 1
        else:
            codes.append((fields.IGNORE, 0, -1))
    return np.array(codes, np.int64)
