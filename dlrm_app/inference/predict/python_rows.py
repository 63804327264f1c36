"""Rows as Python programs have them → a table, or a refusal that says what to give.

Types of other libraries are recognized by the names of their modules, so that none of these is imported.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dlrm_app.errors import DataError, Problem
from dlrm_app.logs.arrow_types import with_plain_types
from dlrm_app.logs.spec import Spec
from dlrm_app.text import listed

ROWS = "the rows"
"""The name of rows in errors."""
_CURE = "give a DataFrame, a pyarrow Table, a mapping of columns to lists, or a list of mappings"
_NAMED = "give the names: pandas.DataFrame(rows, columns=[…])"
_READ = "give what it holds, as by json.loads or pandas.read_csv; dlrm-predict input=FILE scores a file"


def to_table(rows: object, spec: Spec, context: Mapping[str, object] | None = None) -> pa.Table:
    """``rows`` as a table. Raises DataError for those that cannot be read, with what to give.

    Mappings of which some leave out a column of ``context`` take it from there.
    """
    lists = {column.name for column in spec.columns if column.separator is not None}
    try:
        table = _as_table(_listed(rows), lists, context or {})
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        rule = f"cannot be read as a table ({' '.join(str(error).split())})"
        cure = f"{_CURE}, with each column once and its values of one type"
        raise DataError(Problem(ROWS, rule, cure)) from error
    table = with_plain_types(table)
    for number, column in enumerate(table.columns):
        # pandas has NaN for a missing text too
        if pa.types.is_floating(column.type) and pc.all(pc.is_null(column, nan_is_null=True)).as_py():
            table = table.set_column(number, table.column_names[number], pa.nulls(len(table)))
    return table


def context_table(context: Mapping[str, object], table: pa.Table, spec: Spec) -> pa.Table | None:
    """A row with the columns of ``context`` that ``table`` does not have; None if it has all. Raises DataError."""
    shared = {name: value for name, value in context.items() if name not in table.column_names}
    if not shared:
        return None
    if unknown := [name for name in shared if name not in {column.name for column in spec.columns}]:
        rule = f"has {listed(unknown)}, which the model does not read"
        raise DataError(Problem("context", rule, "leave it out, or correct its name"))
    return to_table([shared], spec)


def _is_of(rows: object, library: str, *names: str) -> bool:
    """True if the class of ``rows`` is of ``library`` and has one of ``names``."""
    kind = type(rows)
    return kind.__module__.partition(".")[0] == library and kind.__name__ in names


def _is_record(row: object) -> bool:
    """True for a named tuple, and an object of a dataclass."""
    return hasattr(row, "_asdict") or (dataclasses.is_dataclass(row) and not isinstance(row, type))


def _has_fields(rows: object) -> bool:
    """True for arrays and rows of NumPy whose fields have names."""
    return isinstance(rows, np.ndarray | np.void) and rows.dtype.names is not None


def _is_streamed(rows: object) -> bool:
    return isinstance(rows, Iterator) and not hasattr(rows, "read") and not hasattr(rows, "schema")


def _plain(value: Any) -> Any:
    """Python's values of an array, a tensor or a number. NumPy's times stay: nanoseconds would become numbers."""
    if str(getattr(value, "dtype", "")).endswith("[ns]"):
        return list(value) if np.ndim(value) else value
    return value.tolist() if hasattr(value, "tolist") else value


class _RowsForm(NamedTuple):
    """A form of rows, and what it is read as."""

    fits: Callable[[Any], bool]
    read: Callable[[Any], object]


_FORMS = (
    _RowsForm(lambda rows: _is_of(rows, "polars", "LazyFrame"), lambda rows: rows.collect()),
    _RowsForm(lambda row: _is_record(row) or isinstance(row, np.void), lambda row: [row]),
    _RowsForm(
        _has_fields, lambda rows: {name: _plain(np.atleast_1d(rows[name])) for name in rows.dtype.names}
    ),
    _RowsForm(lambda rows: isinstance(rows, np.ndarray) and rows.ndim == 1 and rows.dtype == object, list),
    _RowsForm(
        lambda rows: _is_of(rows, "pandas", "Series") and any(isinstance(row, Mapping) for row in rows), list
    ),
    _RowsForm(_is_streamed, list),
)
"""The forms of rows that are not tables, mappings or sequences of rows yet; the first that fits counts."""


class _Refused(NamedTuple):
    """A form of rows, or of one row in a list, whose values have no certain columns."""

    fits: Callable[[Any], bool]
    what: str
    cure: str


_REFUSED = (
    _Refused(lambda rows: isinstance(rows, str | bytes | bytearray | memoryview), "text or bytes", _READ),
    _Refused(lambda rows: hasattr(rows, "read"), "an open file", _READ),
    _Refused(lambda rows: isinstance(rows, AbstractSet), "a set, which has no order", _CURE),
    _Refused(
        lambda rows: _is_of(rows, "torch", "Tensor") or isinstance(rows, np.ndarray | list | tuple),
        "values without names of columns",
        _NAMED,
    ),
    _Refused(
        lambda rows: _is_of(rows, "pandas", "Series"),
        "a column, and a row has the names of columns as its index",
        "give a DataFrame",
    ),
)
"""Forms that are refused by name; others by the name of their class."""


def _refusal(rows: object, subject: str = "are") -> DataError:
    found = next((each for each in _REFUSED if each.fits(rows)), None)
    what, cure = found[1:] if found else (f"of the class {type(rows).__name__}", _CURE)
    return DataError(Problem(ROWS, f"{subject} {what}", cure))


def _listed(rows: object) -> object:
    """``rows``, or the table, mapping or list that they stand for."""
    return next((form.read(rows) for form in _FORMS if form.fits(rows)), rows)


def _as_table(rows: Any, lists: Collection[str], context: Mapping[str, object]) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    if _is_of(rows, "pandas", "DataFrame"):
        return _table_of_frame(rows)
    if _is_of(rows, "pandas", "Series") and all(isinstance(name, str) for name in rows.index):
        rows = dict(rows)
    if isinstance(rows, Mapping):
        if not rows:
            return pa.table({})
        is_row = not any(
            isinstance(value, Mapping)
            or (_is_list(value) and (name not in lists or any(map(_is_list, value))))
            for name, value in rows.items()
        )
        return _table_of([rows], {}) if is_row else _table_of_columns(rows, lists)
    if isinstance(rows, Sequence) and not isinstance(rows, str | bytes | bytearray | memoryview):
        return _table_of([_row(row, number) for number, row in enumerate(rows)], context)
    is_column = _is_of(rows, "pandas", "Series")
    if not is_column and (hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__")):
        return pa.table(rows)
    raise _refusal(rows)


def _row(row: Any, number: int) -> Mapping[str, Any]:
    """Row ``number`` of a list as a mapping."""
    if hasattr(row, "_asdict"):
        named: Mapping[str, Any] = row._asdict()
        return named
    if _is_record(row):
        return {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    if _has_fields(row):
        return {name: row[name] for name in row.dtype.names}
    if hasattr(row, "keys"):
        return dict(row)
    raise _refusal(row, f"must be mappings of columns to values, and row {number} is")


def _table_of(rows: Sequence[Mapping[str, Any]], context: Mapping[str, object]) -> pa.Table:
    """A table of ``rows``: what one of them leaves out, as its first keys may, is that of ``context``, or missing."""
    names = dict.fromkeys(name for row in rows for name in row)
    if rows and not names:
        raise DataError(Problem(ROWS, "have no columns", _CURE))
    return _named({name: _array([row.get(name, context.get(name)) for row in rows], name) for name in names})


def _table_of_frame(frame: Any) -> pa.Table:
    """A table of a DataFrame of pandas. Columns of objects follow the rules of lists, the others are Arrow's."""
    if not (frame.columns.is_unique and any(kind == np.dtype(object) for kind in frame.dtypes)):
        return pa.Table.from_pandas(frame, preserve_index=False)
    return pa.table({str(name): _array(frame[name], name) for name in frame.columns})


def _table_of_columns(columns: Mapping[str, Any], lists: Collection[str]) -> pa.Table:
    """A table of ``columns``; a single value beside lists is that of every row. ``lists``: the columns of lists."""
    if any(isinstance(each, Mapping) for each in columns.values()):
        cure = "give a list of mappings, or lists by column, as DataFrame.to_dict('list') does"
        raise DataError(Problem(ROWS, "are mappings within a mapping", cure))
    lengths = {name: len(each) for name, each in columns.items() if _is_list(each)}
    if len(set(lengths.values())) > 1:
        shown = listed([f"{name} {length:,}" for name, length in lengths.items()])
        raise DataError(Problem(ROWS, f"have columns of different lengths: {shown}", "give one value a row"))
    if len(lengths) < len(columns):
        texts = [n for n in lengths if n in lists and not any(map(_is_list, columns[n]))]
        if texts and lengths[texts[0]]:
            rule = "may be one list for all rows, or the text of a list for each"
            cure = f"give what all rows share as context={{{texts[0]!r}: […], …}}, or a list for each row"
            raise _refused_column(texts[0], rule, cure)
    rows = max(lengths.values())
    return _named({n: _array(each if _is_list(each) else [each] * rows, n) for n, each in columns.items()})


def _named(columns: Mapping[str, Any]) -> pa.Table:
    if odd := [name for name in columns if not isinstance(name, str)]:
        rule = f"have columns whose names are not texts: {listed(list(map(repr, odd)))}"
        raise DataError(Problem(ROWS, rule, "give the names of the log's columns"))
    return pa.table(columns)


def _array(values: Any, name: str) -> Any:
    """The ``values`` of a column for a table; in a list, NaN is missing among texts too. Arrow's type follows the first
    value of dates with and without times, and of flags among numbers: the first become times, the others are refused.
    """
    if hasattr(values, "to_arrow"):  # a Series of polars
        return values.to_arrow()
    if _is_of(values, "pandas", "DataFrame"):
        raise _refused_column(name, "is a DataFrame", "give one of its columns, as frame['shop']")
    if _is_of(values, "torch", "Tensor"):
        values = values.numpy(force=True)
    if isinstance(values, np.ndarray) and (values.ndim > 1 or values.dtype == object):
        values = list(values)
    elif _is_of(values, "pandas", "Series") and values.dtype == object:
        values = values.tolist()
    types = {*map(type, values)} if isinstance(values, list | tuple) else {type(values)}
    if any(issubclass(kind, AbstractSet) for kind in types):
        raise _refused_column(name, "is a set, or holds sets, which have no order", "give lists")
    if not isinstance(values, list | tuple):
        return values
    if {date, datetime} <= types:
        values = [datetime(*each.timetuple()[:3]) if type(each) is date else each for each in values]
    has_flags = bool(types & {bool, np.bool_})
    if has_flags and any(isinstance(each, float | np.floating) and each == each for each in values):
        raise _refused_column(name, f"holds true or false among numbers, {values[:3]}", "give one type")
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return _array_of_arrays(values, name)


def _array_of_arrays(values: Sequence[Any], name: str) -> pa.Array:
    """The ``values`` of a column, some of which are arrays or tensors."""
    plain = [_plain(each) for each in values]
    try:
        return pa.array(plain, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        types = sorted({type(each).__name__ for each in plain if each is not None})
        why = " ".join(str(error).split())
        rule = f"holds values of the types {listed(types)}, of which Arrow makes no column ({why})"
        raise _refused_column(name, rule, "give numbers, texts, or lists of these, of one type") from error


def _refused_column(name: str, rule: str, cure: str) -> DataError:
    return DataError(Problem(f"{ROWS}: column {name}", rule, cure))


def _is_list(value: Any) -> bool:
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
        return False
    return getattr(value, "ndim", 1) > 0  # arrays and tensors of one value have no length
