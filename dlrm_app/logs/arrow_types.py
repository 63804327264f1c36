"""The types of Arrow that other libraries write in streams and frames, as those that columns are read from."""

import pyarrow as pa


def with_plain_types(table: pa.Table) -> pa.Table:
    """``table`` with texts and lists for views of them, as polars writes, with the values of categories within lists,
    and with one dictionary for the chunks of a column.
    """
    for number, column in enumerate(table.columns):
        plain = _plain(column.type)
        if plain != column.type:
            table = table.set_column(number, table.column_names[number], _cast(column, plain))
    return table.unify_dictionaries() if any(len(each.chunks) > 1 for each in table.columns) else table


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _plain(kind.value_type), kind.ordered)
    if pa.types.is_list_view(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = kind.value_type
        element = _plain(element.value_type if pa.types.is_dictionary(element) else element)
        return pa.list_(element) if element != kind.value_type or pa.types.is_list_view(kind) else kind
    return kind


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    try:
        return column.cast(kind)
    except pa.ArrowNotImplementedError:  # categories within lists, and categories whose names are views
        return pa.chunked_array([pa.array(column.to_pylist(), kind)])
