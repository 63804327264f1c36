"""Columns of Arrow → columns of raw values, by the rules of ``fields`` for text; single values are ``arrow_values``'.

A null in a list is a missing value, like an empty element of text.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.logs.arrow_columns import Fault, Reading, ReadValues
from dlrm_app.logs.arrow_lists import ends_of, lists_of, split_weights
from dlrm_app.logs.arrow_texts import shown_text
from dlrm_app.logs.arrow_values import ArrowValues
from dlrm_app.logs.codes import column_codes, kind_code, vector_slots
from dlrm_app.logs.null_words import null_lists, null_words_of
from dlrm_app.logs.parser import Cursor, Position
from dlrm_app.logs.raw_columns import RawColumns, RawList, RepeatedList, are_missing, raw_columns
from dlrm_app.logs.rejects import EXCERPT_BYTES, NEVER_MISSING, SAYS_ALL, RejectedLine
from dlrm_app.logs.sources.feeds import InputUnit
from dlrm_app.logs.sources.parquet_units import ParquetUnit
from dlrm_app.logs.spec import ELEMENT_WEIGHTS, VECTOR, LogColumn, Spec, list_slots, weight_slots
from dlrm_app.logs.strings import ABSENT, BAD, PRESENT

_local = threading.local()


N = TypeVar("N", bound=np.generic)


class ArrowCursor(Position):
    """A position in the rows of ``table``, whose columns have the names of ``spec``'s.

    ``keeps_spans``: keeps the positions of strings in ``texts()``.
    """

    def __init__(self, table: pa.Table, spec: Spec, *, keeps_spans: bool = False) -> None:
        super().__init__(spec, keeps_spans)
        codes = column_codes(spec)
        self._columns = [
            Reading(column, codes[number], kind_code(column), null_words_of(column, spec))
            for number, column in enumerate(spec.fields)
            if column.role != "ignore" and (column.role != "label" or column.name in table.column_names)
        ]
        self._slots = list_slots(spec)
        self._numbers = [column.name for column in (*spec.extra_numbers, *spec.dense)]
        self._lists = [name for name, (is_list, _) in self._slots.items() if is_list]
        self._lists += [*weight_slots(spec), *vector_slots(spec)]
        """The names of lists, of element weights and of vectors, by their slots."""
        self._num_keys = sum(not is_list for is_list, _ in self._slots.values())
        self.restart(table)

    def restart(self, table: pa.Table, shared: pa.Table | None = None) -> None:
        """Moves to the beginning of ``table``, which has the columns of the one before. ``shared``: a row with the
        columns that ``table`` lacks, whose values are those of every row; each is read once.
        """
        self._table, self.line, self._first_line = table, 0, 0
        self._shared = {} if shared is None else _chunks_of(shared)
        self._values = ArrowValues(self._keeps_spans)

    def texts(self) -> NDArray[np.uint8]:
        """The bytes of all strings read so far, in which spans are positions."""
        return self._values.texts()

    def rows(self, capacity: int, until: int | None) -> Iterator[RawColumns]:
        """The rows before number ``until``, up to ``capacity`` at a time, valid until the next request.

        Bad rows are left out.
        """
        stop = len(self._table) if until is None else min(until, len(self._table))
        while self.line < stop:
            start = self._first_line = self.line
            self.line = min(self.line + capacity, stop)
            is_whole = self.line - start == len(self._table)
            yield self._read(start, self._table if is_whole else self._table.slice(start, self.line - start))

    def _read(self, start: int, table: pa.Table) -> RawColumns:
        """The rows of ``table``. ``start``: the number of its first row in the whole table."""
        spec, count, num_numbers = self._spec, len(table), len(self._numbers)
        values = _thread_room("values", np.uint64, num_numbers + self._num_keys, count)
        labels = np.zeros(count)
        states = _thread_room("states", np.uint8, len(self._columns), count)
        spans = np.zeros((self._num_keys, count if self._keeps_spans else 0, 2), np.int64)
        dense = dict(zip(self._numbers, values.view(np.float64), strict=False)) | {spec.label: labels}
        found: dict[str, RawList] = {}
        chunks = _chunks_of(table) | self._shared
        for reading, its_states in zip(self._columns, states, strict=True):
            column = reading.column
            stored, read = chunks[column.name], slice(1 if column.name in self._shared else count)
            if column.separator is not None:
                array = stored[0] if len(stored) == 1 else table[column.name].combine_chunks()
                lists_read = self._read_lists(array, reading, its_states[read])
                found |= lists_read if read.stop == count else _repeated(lists_read, count)
            else:
                is_sparse, slot = column.role == "sparse", self._slots.get(column.name, (False, 0))[1]
                its_values = values[num_numbers + slot] if is_sparse else dense[column.name]
                its_spans = spans[slot] if is_sparse else _NO_SPANS
                out = ReadValues(its_values[read], its_states[read], its_spans)
                self._values.fill_all(stored, reading, out)
                if read.stop < count:
                    its_values[read.stop :] = its_values[0]
                if column.role in NEVER_MISSING:
                    its_states[its_states == ABSENT] = BAD
            if read.stop < count:
                its_states[read.stop :] = its_states[0]
        lists = [found[name] for name in self._lists]
        faults = self._bad_columns(states)
        faults += self._unlike(lists) if spec.element_weights else ()
        faults += self._unsized(found) if spec.vectors else ()
        if faults:
            rows = self._reject(start, table, faults)
            values, spans, labels = values[:, rows], spans[:, rows[: spans.shape[1]]], labels[rows]
            lists, count = [each.take(rows) for each in lists], len(rows)
        return raw_columns(spec, (labels == 1).view(np.uint8), values, count, spans, lists)

    def _bad_columns(self, states: NDArray[np.uint8]) -> list[Fault]:
        """The columns with bad values, of the states [C, R] of all."""
        # once for all columns: with few rows, calls take most of the time
        if states.max(initial=PRESENT) < BAD:
            return []
        pairs = zip(self._columns, states == BAD, strict=True)
        return [Fault(reading.column, is_bad) for reading, is_bad in pairs if is_bad.any()]

    def _unlike(self, lists: Sequence[RawList]) -> Iterator[Fault]:
        """The columns of element weights with other numbers of elements than their lists have."""
        slots = weight_slots(self._spec)
        for column in self._spec.columns:
            if column.role != ELEMENT_WEIGHTS:
                continue
            weights, elements = (lists[slot] for slot in slots[column.name])
            sizes = np.diff(weights.ends), np.diff(elements.ends) - are_missing(elements)
            if (is_bad := sizes[0] != sizes[1]).any():
                yield Fault(column, is_bad, sizes)

    def _unsized(self, found: Mapping[str, RawList]) -> Iterator[Fault]:
        """The columns of vectors with other sizes than theirs. A vector may be missing."""
        for column in self._spec.vectors:
            sizes = np.diff(found[column.name].ends)
            wanted = np.full_like(sizes, column.size or 0)
            if (is_bad := (sizes != 0) & (sizes != wanted)).any():
                yield Fault(column, is_bad, (sizes, wanted))

    def _reject(self, start: int, table: pa.Table, faults: Sequence[Fault]) -> NDArray[np.int64]:
        """Records every row with a bad value and its first bad column. Returns the numbers of the other rows."""
        keep = ~np.any([fault.is_bad for fault in faults], axis=0)
        for row in np.flatnonzero(~keep).tolist():
            fault = next(fault for fault in faults if fault.is_bad[row])
            name = fault.column.name
            values = {column: shown_text(table[column][row]) for column in table.column_names}
            values |= {column: shown_text(chunks[0][0]) for column, chunks in self._shared.items()}
            excerpt, reason = "\t".join(values.values()), fault.reason(row, values[name])
            self._rejects.append(RejectedLine(None, start + row, reason, name, excerpt[:EXCERPT_BYTES]))
        return np.flatnonzero(keep)

    def _read_lists(self, array: pa.Array, reading: Reading, states: NDArray[np.uint8]) -> dict[str, RawList]:
        """Reads lists, and the weights written within them, by name; sets the states of rows with a bad list to BAD, of
        others to PRESENT.
        """
        column = reading.column
        ends, elements, is_bare = lists_of(array, column, null_lists(reading.content, reading.nulls))
        found = {}
        states.fill(PRESENT)
        if column.weights is not None:
            elements, weights = split_weights(elements, column.weights)
            own = reading.of_weights()
            found[own.column.name] = self._list_of(ends, weights, own, states)
        found[column.name] = self._list_of(ends, elements, reading, states)
        if is_bare is not None:
            states[is_bare] = BAD
        return found

    def _list_of(
        self, ends: NDArray[np.int64], elements: pa.Array, reading: Reading, states: NDArray[np.uint8]
    ) -> RawList:
        """The lists of ``elements``; sets the states of rows with a bad one to BAD."""
        column, read = reading.column, self._values.of(elements, reading)
        keys = read.values.view(np.uint64)
        if column.role in (ELEMENT_WEIGHTS, VECTOR):
            keys = (keys.view(np.float64) + 0.0).view(np.uint64)  # -0.0 has the bits of MISSING_KEY
        is_bad = read.states != PRESENT if column.role in SAYS_ALL else read.states == BAD
        if is_bad.any():
            num_bad = ends_of(is_bad)
            states[num_bad[ends[1:]] > num_bad[ends[:-1]]] = BAD
        return RawList(ends, keys, read.spans)


def _chunks_of(table: pa.Table) -> dict[str, list[pa.Array]]:
    batches = table.to_batches()
    if len(batches) == 1:  # which hands out arrays in less time
        return dict(zip(table.column_names, ([array] for array in batches[0].columns), strict=True))
    return {name: column.chunks for name, column in zip(table.column_names, table.itercolumns(), strict=True)}


def _repeated(lists: Mapping[str, RawList], rows: int) -> dict[str, RawList]:
    return {name: RepeatedList.of(each, rows) for name, each in lists.items()}


_NO_SPANS = np.zeros((0, 2), np.int64)


def _thread_room(name: str, kind: type[N], num_columns: int, num_rows: int) -> NDArray[N]:
    """The calling thread's array ``name``. New memory for every unit would take as long as decoding it."""
    size = num_columns * num_rows
    room: NDArray[N] | None = getattr(_local, name, None)
    if room is None or len(room) < size:
        room = np.empty(size, kind)
        setattr(_local, name, room)
    return room[:size].reshape(num_columns, num_rows)


def keys_of(values: pa.Array, kind: str) -> tuple[NDArray[np.uint64], str | None]:
    """Returns (the keys [R] of raw values of a sparse column of ``kind``, the reason why the first bad one is refused).

    Bad values have no key.
    """
    column = LogColumn("value", "sparse", kind)
    cursor = ArrowCursor(pa.table({"value": values}), Spec("values", ",", None, False, (column,)))
    keys = [raw.one_hot[0].copy() for raw in cursor.rows(len(values), None)]
    rejects = cursor.take_rejects()
    return np.concatenate([np.empty(0, np.uint64), *keys]), rejects[0].reason if rejects else None


def open_cursor(unit: InputUnit, spec: Spec, *, keeps_spans: bool = False) -> Cursor | ArrowCursor:
    """A cursor at the beginning of ``unit``, of a file of format ``spec``."""
    if isinstance(unit, ParquetUnit):
        return ArrowCursor(unit.table, spec, keeps_spans=keeps_spans)
    return Cursor(unit, spec, keeps_spans=keeps_spans)
