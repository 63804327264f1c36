"""Delta and Iceberg tables as input: ``delta://PATH?version=12``, ``iceberg://CATALOG/NAMESPACE.TABLE?snapshot=34``.

Their libraries only list the files of one version, which are then read like other Parquet files. Other words after the
``?`` filter by keys of partitions: ``dt=2026-11-22&dt=2026-11-23``, ``dt>=2026-11-22&dt<2026-12-01``.
"""

import glob
import logging
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq

from dlrm_app.errors import ConfigError, DataError, Problem, first_line
from dlrm_app.logs.sources.folders import NoFilesError, above_all, local_path
from dlrm_app.logs.sources.store import address_of, in_threads, is_url, object_version, objects_below
from dlrm_app.text import listed, without_credentials
from dlrm_app.typed import install_command, setting

logger = logging.getLogger(__name__)

_MARKS = {
    "_delta_log/*": "delta",
    "metadata/*.metadata.json": "iceberg",
    ".hoodie/*": "hudi",
    ".hoodie_partition_metadata": "hudi",
    "snapshot/snapshot-*": "paimon",
}
"""The files that a table's folder has; of Hudi, also the folder of a partition."""
_COPIES = {
    "hudi": "spark.read.format('hudi').load(PATH).write.parquet(NEW)",
    "paimon": "spark.read.format('paimon').load(PATH).write.parquet(NEW)",
}
"""Table that is not read → how to write its rows as files that are read."""
_ABOVE = 5
"""The most folders above the files in which a table is searched for, if their names are not keys."""
_VERSION = {"delta": "version", "iceberg": "snapshot"}
_FORM = {"delta": "delta://PATH", "iceberg": "iceberg://CATALOG/NAMESPACE.TABLE"}
_PACKAGE = {"delta": "deltalake", "iceberg": "pyiceberg"}
_WORD = re.compile(r"([^<>=]+)(<=|>=|<|>|=)(.*)", re.DOTALL)
_Rank = tuple[bool, Decimal, str]
"""A sort key of a value: numbers by size, then texts (such as dates) by characters."""
_COMPARE: dict[str, Callable[[_Rank, _Rank], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
_WRITE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[^/]+$")
"""Spark's id of a write, which the names of all its files contain; for other writers, the file's own name."""
_MORE = {"delta": "", "iceberg": ", with the catalog and the name that pyiceberg knows it by"}
_NO_TABLE = ("TableNotFoundError", "NoSuchTableError")
"""Errors that the libraries raise if there is no such table."""
_NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"
NaturalKey = list[tuple[int, str]]
"""A sort key of a text that compares numbers as numbers."""


class NamedFile(NamedTuple):
    """A file that a setting names. ``partition``: key → the value of all its rows.

    For a table, ``written`` orders files by the time of writing, and ``fault`` is the reason why the file cannot be
    read by itself.
    """

    path: str
    partition: dict[str, str | None]
    written: int = 0
    fault: str = ""
    is_of_table: bool = False


class _LakeTable(NamedTuple):
    """A table as typed. ``filters``: (key, sign, value)."""

    kind: str
    place: str
    version: int | None
    filters: list[tuple[str, str, str]]


def is_table(name: str) -> bool:
    """True if ``name`` is a lake table, not files."""
    return name.partition("://")[0] in _VERSION


def partition_of(path: str) -> dict[str, str | None]:
    """Key → value, from the folders of ``path`` that are named key=value, as in Hive's partitions."""
    folders = path.split("/")[:-1]
    pairs = [folder.partition("=") for folder in folders if re.fullmatch(r"[^=]+=[^=]*", folder)]
    return {unquote(key): None if value == _NO_PARTITION else unquote(value) for key, _, value in pairs}


def refuse_table(key: str, name: str, paths: Sequence[str], above: str) -> None:
    """Raises ConfigError if ``paths``, the files of the folder or glob ``name``, belong to a table.

    The folder of a table also holds files that the table has dropped or replaced. ``above``: the folder above all
    ``paths``, as they are written. Partitions of Hudi may be folders without keys, such as 2026/11/22: on this machine
    it is looked for up to five folders higher.
    """
    start, seen = above_all(name), set[str]()
    top = _whole(start)
    for inside in dict.fromkeys(path.removeprefix(above).rpartition("/")[0] for path in paths):
        folder, higher = _whole(start + inside), 0
        while folder and folder not in seen and higher <= _ABOVE:
            seen.add(folder)
            last = folder.rpartition("/")[2]
            if "=" not in last:
                if (kind := _kind_of(folder, is_higher=higher > 0)) is not None:
                    raise ConfigError(_table_problem(kind, key, name, folder))
                is_top = len(folder) <= len(top) and last != "data"
                if is_top and is_url(folder):
                    break
                higher += is_top
            folder = folder.rpartition("/")[0]


def _whole(place: str) -> str:
    return place.rstrip("/") if is_url(place) else str(Path(place).absolute())


def _kind_of(folder: str, *, is_higher: bool) -> str | None:
    """The kind of the table whose folder is ``folder``, if it is one. ``is_higher``: it lies above what is named."""

    def has_mark(mark: str) -> bool:
        if not is_url(folder):
            return any(True for _ in Path(folder).glob(mark))
        if "*" in mark:
            return any(True for _ in objects_below(f"{folder}/{mark}")[0])
        with suppress(DataError):
            return bool(object_version(address_of(f"{folder}/{mark}")))
        return False

    marks = [mark for mark, kind in _MARKS.items() if kind == "hudi" or not is_higher]
    marked = in_threads(has_mark, marks)  # a store takes its time for each
    return next((_MARKS[mark] for mark, is_marked in zip(marks, marked, strict=True) if is_marked), None)


def _table_problem(kind: str, key: str, name: str, folder: str) -> Problem:
    place, typed = _table_name(kind, folder, _whole(name))
    rule = f"names files of the {kind.capitalize()} table {place}, which may have dropped some of them"
    if kind in _COPIES:
        cure = f"write its rows as they are now to files, as by {_COPIES[kind]}, and name these"
    else:
        cure = f"type {setting(key, typed)}{_MORE[kind]}"
    return Problem(f"{key}={without_credentials(name)}", rule, cure)


def _table_name(kind: str, folder: str, name: str) -> tuple[str, str]:
    """Returns (the table's folder; its URL, with filters for the partitions that the folder or glob ``name`` means)."""
    keys = {key: value or "" for key, value in partition_of(f"{name.removeprefix(folder)}/").items()}
    words = [f"{key}={quote(value, safe=' :/,')}" for key, value in keys.items() if not glob.has_magic(value)]
    place = typed = without_credentials(folder).removeprefix(f"{Path.cwd()}/")
    if kind == "iceberg":
        namespace, _, table = folder.rpartition("/")
        typed = f"{_catalog()}/{namespace.rpartition('/')[2].removesuffix('.db')}.{table}"
    return place, f"{kind}://{typed}{'?' * bool(words)}{'&'.join(words)}"


def _catalog() -> str:
    """The catalog in pyiceberg's configuration if there is one; otherwise the word CATALOG."""
    if find_spec("pyiceberg") is None:
        return "CATALOG"
    from pyiceberg.utils.config import Config  # an extra

    names = list(Config().config.get("catalog") or {})
    return names[0] if len(names) == 1 else "CATALOG"


def with_versions(key: str, given: Any, before: Any) -> Any:
    """The names ``given`` of setting ``key``, with a version added to every table.

    The version is the one in ``before`` (the names of an earlier run with the same output), otherwise the newest.
    Raises ConfigError.
    """
    if not isinstance(given, str):
        return given and [with_versions(key, name, before) for name in given]
    if not is_table(given) or (table := _parsed(key, given)).version is not None:
        return given
    start = f"{given}{'&' if '?' in given else '?'}{_VERSION[table.kind]}="
    kept, origin = [before] if isinstance(before, str) else before or [], "as the output was begun with"
    versioned = next((name for name in kept if name.startswith(start)), None)
    if versioned is None:
        with _explained(key, given):
            versioned, origin = f"{start}{_open(table)[0]}", "the newest"
    logger.info(f"{key}={versioned}, {origin}")
    return versioned


def table_files(key: str, name: str, natural: Callable[[str], NaturalKey]) -> list[NamedFile]:
    """The files of the table ``name`` that pass its filters, sorted by partition, then by time, then by name.

    ``natural``: a sort key for texts that compares numbers as numbers. Raises ConfigError.
    """

    def order(file: NamedFile) -> tuple[list[NaturalKey], int, NaturalKey]:
        return [natural(value or "") for value in file.partition.values()], file.written, natural(file.path)

    table = _parsed(key, name)
    with _explained(key, name):
        found = sorted(_open(table)[1], key=order)
    files = [file._replace(is_of_table=True) for file in found if _is_wanted(file.partition, table.filters)]
    faults = [f"has the file {file.path}, which {file.fault}" for file in files if file.fault]
    for file in files:
        if lacking := [asked for asked, _, _ in table.filters if asked not in file.partition]:
            has = f"has the keys {listed([*file.partition], 12)}" if file.partition else "has no keys"
            cure = "correct the filter, or run rewrite_data_files if the key is younger than the file"
            faults.append(f"has the file {file.path}, which {has}, it lacks {listed(lacking)}: {cure}")
    if not files:
        texts = dict.fromkeys("/".join(f"{k}={v or ''}" for k, v in file.partition.items()) for file in found)
        faults.append("has no rows" + f" of these keys, only {listed([*texts], 5)}" * bool(texts))
    if faults:
        rule, _, cure = faults[0].partition(": ")
        raise (ConfigError if files else NoFilesError)(Problem(f"{key}={name}", rule, cure))
    return files


def _parsed(key: str, name: str) -> _LakeTable:
    kind, _, rest = name.partition("://")
    place, _, query = rest.partition("?")
    if find_spec(_PACKAGE[kind]) is None:
        rule = f"needs the package {_PACKAGE[kind]}"
        raise ConfigError(Problem(f"{key}={name}", rule, install_command(kind)))
    words = [_WORD.fullmatch(text) for text in filter(None, query.split("&"))]
    filters = [(unquote(word[1]), word[2], unquote(word[3])) for word in words if word is not None]
    versions = [each for each in filters if each[0] == _VERSION[kind]]
    is_table = place and (kind == "delta" or all(place.partition("/")))
    if not is_table or None in words or any(sign != "=" or not it.isdecimal() for _, sign, it in versions):
        form = f"{_FORM[kind]}?{_VERSION[kind]}=NUMBER&KEY=VALUE&KEY>=VALUE"
        raise ConfigError(
            Problem(f"{key}={name}", "names no table", f"write {form}; all after the ? is optional")
        )
    version = int(versions[-1][2]) if versions else None
    return _LakeTable(kind, place, version, [each for each in filters if each not in versions])


def _is_wanted(partition: Mapping[str, str | None], filters: list[tuple[str, str, str]]) -> bool:
    """True if ``partition`` has one of the values given for each key and lies in all ranges. A missing key passes."""
    alternatives: dict[object, list[bool]] = {}
    for each in filters:
        key, sign, text = each
        value, limit = _rank(partition.get(key)), _rank(text)
        if sign == "=":
            fits = value == limit
        else:
            fits = value is not None and limit is not None and _COMPARE[sign](value, limit)
        alternatives.setdefault(key if sign == "=" else each, []).append(fits or key not in partition)
    return all(map(any, alternatives.values()))


def _rank(value: str | None) -> _Rank | None:
    """The sort key of ``value``; None if there is no value."""
    if not value:
        return None
    return (False, Decimal(value), "") if _NUMBER.fullmatch(value) else (True, Decimal(0), value)


@contextmanager
def _explained(key: str, name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # from a library, a file system or a catalog's service
        reason = first_line(error)
        kind = NoFilesError if type(error).__name__ in _NO_TABLE else ConfigError
        raise kind(Problem(f"{key}={name}", f"cannot be read as a table ({reason})")) from error


def _open(table: _LakeTable) -> tuple[int, Iterator[NamedFile]]:
    """Returns (the version of ``table`` to read, its files)."""
    if table.kind == "delta":
        from deltalake import DeltaTable  # an extra

        delta = DeltaTable(table.place, version=table.version)
        return delta.version(), _delta_files(delta, table.place.rstrip("/"))
    from pyiceberg.catalog import load_catalog  # an extra

    catalog, _, identifier = table.place.partition("/")
    iceberg = load_catalog(catalog).load_table(identifier)
    snapshot = iceberg.current_snapshot() if table.version is None else iceberg.snapshot_by_id(table.version)
    if snapshot is None:
        snapshot_ids = [each.snapshot_id for each in reversed(iceberg.snapshots())]
        raise ValueError(f"it has no such snapshot; the last are: {listed(snapshot_ids, 5) or 'none'}")
    return snapshot.snapshot_id, _iceberg_files(iceberg, snapshot)


def _delta_files(table: Any, place: str) -> Iterator[NamedFile]:
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode != "none":
        raise ValueError(
            f"its files have other names of columns (column mapping, mode {mode}): write a copy without it"
        )
    has_vectors = "deletionVectors" in (table.protocol().reader_features or [])
    vectors = table.deletion_vectors() if has_vectors else []
    deleted = {unquote(path.as_py()).rpartition("/")[2] for batch in vectors for path in batch["filepath"]}
    actions = pa.table(table.get_add_actions(flatten=True))
    keys = [name for name in actions.column_names if name.startswith("partition.")]
    texts = {key.removeprefix("partition."): actions[key].cast(pa.string()).to_pylist() for key in keys}
    paths = [unquote(path) for path in actions["path"].to_pylist()]
    writes = [found[0] for path in paths if (found := _WRITE.search(path.rpartition("/")[2]))]
    times: dict[str, int] = {}
    for write, time in zip(writes, actions["modification_time"].to_pylist(), strict=True):
        times[write] = min(time, times.get(write, time))
    for row, (path, write) in enumerate(zip(paths, writes, strict=True)):
        fault = "has rows deleted by a deletion vector: run REORG TABLE … APPLY (PURGE)"
        full = path if re.match("/|[a-z0-9]+:/", path) else f"{place}/{path}"
        partition = {key: values[row] for key, values in texts.items()}
        yield NamedFile(
            local_path(full), partition, times[write], fault * (path.rpartition("/")[2] in deleted)
        )


def _iceberg_files(table: Any, snapshot: Any) -> Iterator[NamedFile]:
    schema = table.schemas().get(snapshot.schema_id, table.schema())
    ids: dict[str, set[int]] = {}
    for field in (field for each in table.schemas().values() for field in each.fields):
        ids.setdefault(field.name, set()).add(field.field_id)
    reused = {field.name: field.field_id for field in schema.fields if len(ids[field.name]) > 1}
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            file, fault = entry.data_file, ""
            partition: dict[str, str | None] = {}
            for value, field in zip(file.partition, table.specs()[file.spec_id].fields, strict=True):
                name, kind = schema.find_column_name(field.source_id), schema.find_type(field.source_id)
                text = None if value is None else field.transform.to_human_string(kind, value)
                partition |= {field.name: text} | ({name: text} if str(field.transform) == "identity" else {})
            if file.content:  # 0, a plain number in tables of version 1: data
                kind = file.content.name.lower().replace("_", " ")
                fault = f"deletes rows ({kind}): run rewrite_data_files"
            elif file.file_format.name != "PARQUET":
                fault = f"is {file.file_format.name}, not Parquet: rewrite it (write.format.default)"
            elif reused and (names := _other_columns(table.io, file.file_path, reused)):
                fault = f"has other columns as {', '.join(names)}, since renamed or dropped: run rewrite_data_files"
            yield NamedFile(local_path(file.file_path), partition, entry.sequence_number or 0, fault)


def _other_columns(io: Any, path: str, ids: dict[str, int]) -> list[str]:
    """The names of columns whose id in the file at ``path`` differs from their id in the table, ``ids``."""
    with io.new_input(path).open() as file:
        metadata = {field.name: field.metadata or {} for field in pq.read_schema(file) if field.name in ids}
    return [name for name, own in metadata.items() if own.get(b"PARQUET:field_id") != b"%d" % ids[name]]
