"""Finds the columns of a Parquet file that a format reads, by name or by position, and checks their types."""

from collections.abc import Sequence

import pyarrow as pa

from dlrm_app.dataset.parquet_format import WRITER
from dlrm_app.errors import ConfigError, Problem, refuse_if
from dlrm_app.logs.labels import cure_of_lacking
from dlrm_app.logs.rejects import SAYS_ALL, rule_name
from dlrm_app.logs.sources.parquet_units import footer_of, schema_of
from dlrm_app.logs.sources.source import InputFile
from dlrm_app.logs.spec import ELEMENT_WEIGHTS, FORMATTED, OTHER_LABEL, VECTOR, Cures, LogColumn, Spec

NUMBER, TEXT, TIME, FLAG, NULL = "numbers", "strings", "times", "true or false", "nulls alone"
_FITTING = {
    "label": (NUMBER, TEXT, FLAG),
    "weight": (NUMBER, TEXT),
    ELEMENT_WEIGHTS: (NUMBER, TEXT),
    VECTOR: (NUMBER, TEXT),
    "integer": (NUMBER, TEXT, TIME, FLAG),
    "float": (NUMBER, TEXT, TIME, FLAG),
    "score": (NUMBER, TEXT),
    "string": (NUMBER, TEXT, FLAG, TIME),
    "hex": (TEXT,),
    "seconds": (NUMBER, TEXT, TIME),
    "milliseconds": (NUMBER, TEXT, TIME),
    "microseconds": (NUMBER, TEXT, TIME),
    "nanoseconds": (NUMBER, TEXT, TIME),
    "iso": (NUMBER, TEXT, TIME),
    FORMATTED: (TEXT, TIME),
}
LISTS = "lists of "
READABLE = [f"{lists}{content}" for lists in ("", LISTS) for content in (NUMBER, TEXT, TIME, FLAG, NULL)]
TEXTS = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())


def parquet_spec(source: InputFile, spec: Spec, labels: bool | None, cures: Cures) -> Spec:
    """``spec`` for a Parquet file, like ``beginning.file_spec`` for a text file.

    Columns are found by name; with ``spec.by_position`` in their order if no name fits. Raises ConfigError with every
    problem.
    """
    if footer_of(source).created_by == WRITER:
        rule = "is a shard of a dataset, which has ids in place of raw values"
        cure = "give the raw rows, and an output= outside of their folder"
        raise ConfigError(Problem(source.path, rule, cure))
    stored = schema_of(source)
    names = shown = run_ids_in(source)
    bare = spec.without_label()
    lower_names = {name.strip().casefold() for name in names}
    if spec.by_position and not {column.name.casefold() for column in spec.columns} & lower_names:
        for described in (spec.columns, bare.columns):
            if len(described) == len(stored.names):
                names = [*(column.name for column in described), *names[len(stored.names) :]]
                break
    cure = f"{cures.columns}, or add them, with nulls where nothing is known"
    if not spec.by_position and len(stored.names) in (len(spec.columns), len(bare.columns)):
        cure = f"{cure}; or take columns in their order by {cures.by_position}"
    if labels and spec.label not in names:
        cure = f"{cure}; if it has no {spec.label} column, add {cures.unlabelled}"
    cure += cure_of_lacking(spec, names, labels, cures)
    found = spec.in_columns(names, labels, source.path, cure)
    read = [name for name, column in zip(shown, found.order, strict=True) if column.role != "ignore"]
    refuse_if([*key_faults(source, read), *type_faults(source.path, stored, shown, found)])
    return found


def type_faults(origin: str, stored: pa.Schema, names: Sequence[str], spec: Spec) -> list[Problem]:
    """A problem for each column of ``names`` (in the order of ``spec``'s) whose type in ``stored`` does not fit it."""
    kinds = dict(zip(stored.names, stored.types, strict=True))
    return [
        Problem(f"{origin}: column {name}", f"is {kinds[name]}, {rule}", cure)
        for name, column in zip(names, spec.order, strict=True)
        if name in kinds
        for rule, cure in _faults(column, kinds[name])
    ]


def run_ids_in(source: InputFile) -> list[str]:
    """The names of the file's columns, then those keys of its partition that are not columns."""
    names: list[str] = schema_of(source).names
    return names + [key for key in source.partition if key not in names]


def key_faults(source: InputFile, names: Sequence[str]) -> list[Problem]:
    """A problem for each of ``names`` that is both a key of the file's folders and a column with other values.

    The values of the column are those of the footer's statistics. Files of a lake table have no such problem: the
    table's log gives their partitions.
    """
    schema = schema_of(source)
    doubled = [] if source.is_of_table else [n for n in names if n in source.partition and n in schema.names]
    return [
        Problem(
            str(source.path),
            f"has the column {name}, where {has}, and {name}={source.partition[name] or ''} in its "
            "folder's name",
            "drop the column from the files, or rename the key of the folders",
        )
        for name in doubled
        if (has := _others_than(source, name, schema.field(name).type))
    ]


def _others_than(source: InputFile, name: str, kind: pa.DataType) -> str:
    """The values of column ``name`` in words, if they may be others than the one in the name of the file's folder."""
    footer, value = footer_of(source), source.partition[name]
    paths = [footer.schema.column(at).path for at in range(footer.num_columns)]
    if name not in paths:
        return f"values are {kind}"
    index = paths.index(name)
    for group in map(footer.row_group, range(footer.num_row_groups)):
        statistics = group.column(index).statistics
        if statistics is None or not statistics.has_null_count:
            return "the footer does not say which values it has"
        if value is None:
            if statistics.null_count < group.num_rows:
                return "values are not null"
        elif statistics.null_count:
            return "values are null"
        elif group.num_rows and not statistics.has_min_max:
            return "the footer does not say which values it has"
        elif group.num_rows:
            try:
                ends = statistics.min, statistics.max
            except OverflowError:  # times that Python does not have
                return "values lie outside of the years 1 to 9999"
            if {*ends} != {_as_kind(value, kind)}:
                return f"values are {ends[0]} to {ends[1]}"
    return ""


def _as_kind(text: str, kind: pa.DataType) -> object:
    """``text`` as a value of Arrow type ``kind``; None if it is not one."""
    try:
        return pa.scalar(text).cast(kind.value_type if pa.types.is_dictionary(kind) else kind).as_py()
    except pa.ArrowException:
        return None


def names_of(source: InputFile, spec: Spec) -> dict[str, str]:
    """Column that is read → its name in the file. ``spec``: from ``parquet_spec``."""
    pairs = zip(run_ids_in(source), spec.fields, strict=False)
    return {column.name: name for name, column in pairs if column.role != "ignore"}


def refuse_other_types(sources: Sequence[InputFile], specs: Sequence[Spec]) -> None:
    """Raises ConfigError for every column that holds numbers in one Parquet file and strings in another."""
    first: dict[str, tuple[str, str]] = {}
    problems = []
    last: object = None
    for source, spec in zip(sources, specs, strict=True):
        if source.format == "parquet":
            schema = schema_of(source)
            kind = schema, spec.columns, tuple(source.partition)
            if kind == last:
                continue  # it has the columns of the file before
            last = kind
            for name, stored in names_of(source, spec).items():
                content = content_of(schema.field(stored).type) if stored in schema.names else TEXT
                if content == NULL:
                    continue
                before, path = first.setdefault(name, (content, source.path))
                if before != content:
                    rule = f"holds {content}, that of {path} {before}"
                    problems.append(Problem(f"{source.path}: column {stored}", rule, "cast one of them"))
    refuse_if(problems)


def is_list(kind: pa.DataType) -> bool:
    """True for Arrow's types of lists."""
    views = pa.types.is_list_view, pa.types.is_large_list_view
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, *views)
    return any(is_such(kind) for is_such in kinds)


def content_of(kind: pa.DataType) -> str:
    """The content of a column of Arrow type ``kind``, in words."""
    if pa.types.is_dictionary(kind):
        return content_of(kind.value_type)
    if is_list(kind):
        return f"{LISTS}{content_of(kind.value_type)}"
    if pa.types.is_boolean(kind):
        return FLAG
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return NUMBER
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return TIME
    if pa.types.is_null(kind):
        return NULL
    return TEXT if kind in TEXTS else str(kind)


def _faults(column: LogColumn, kind: pa.DataType) -> list[tuple[str, str]]:
    """(the reason why ``column`` cannot be read from Arrow type ``kind``, a cure); none if it can."""
    if column.role == "ignore":
        return []
    content, fitting = content_of(kind), (TEXT,) if column.weights else _FITTING[rule_name(column)]
    items, is_list = content.removeprefix(LISTS), content.startswith(LISTS)
    fits = items == NULL or items in fitting
    if column.separator is None:
        fits = fits and not is_list
        cure = ", or add a separator to it in dataset.columns, which makes it a list"
    else:
        fits, cure = items in (TEXT, NULL) or (fits and is_list), ""
    if fits and pa.types.is_fixed_size_list(kind) and column.size not in (None, kind.list_size):
        return [(f"the vectors' size is {column.size}", f"give size: {kind.list_size}, or cast it")]
    if fits:
        return []
    is_role = column.role in (*SAYS_ALL, OTHER_LABEL)
    what = f"a {column.role}" if is_role else f"a {column.role} column of kind {column.kind}"
    what = "another label" if column.role == OTHER_LABEL else what
    lists = " in lists" * (column.separator is not None)
    takes = f"which {what} cannot be read from: it takes {' or '.join(fitting)}{lists}"
    return [(takes, f"cast it{cure * is_list}")]
