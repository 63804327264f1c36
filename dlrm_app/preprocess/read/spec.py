"""The format of a raw click log: columns in the order of the file, from conf/dataset/*.yaml.

- {name: clicked, role: label}                                     # 0 or 1
- {name: age, role: dense, kind: integer}                          # integer or float
- {name: items, role: sparse, kind: string, separator: "|"}        # integer, hex or string; a list
- {name: session, role: ignore}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dlrm_app.config.datasets import DatasetConfig
from dlrm_app.errors import refuse_if

ROLES = ("label", "dense", "sparse", "ignore")
KINDS = {"dense": ("integer", "float"), "sparse": ("integer", "hex", "string")}
KEYS = ("name", "role", "kind", "separator")


@dataclass(frozen=True)
class Column:
    """A column of the raw log. ``separator`` is set where its values are lists."""

    name: str
    role: str
    kind: str | None = None
    separator: str | None = None


@dataclass(frozen=True)
class Spec:
    """The raw log's format. ``delimiter`` and ``quote`` are single bytes."""

    name: str
    delimiter: str
    quote: str | None
    header: bool
    columns: tuple[Column, ...]

    @property
    def label(self) -> str | None:
        """The label column's name, if there is one."""
        return next((column.name for column in self.columns if column.role == "label"), None)

    @property
    def dense(self) -> list[Column]:
        return [column for column in self.columns if column.role == "dense"]

    @property
    def sparse(self) -> list[Column]:
        return [column for column in self.columns if column.role == "sparse"]

    def without_label(self) -> "Spec":
        """The format of files that lack the label column."""
        columns = tuple(column for column in self.columns if column.role != "label")
        return Spec(self.name, self.delimiter, self.quote, self.header, columns)


def read_spec(config: DatasetConfig) -> Spec:
    """The format that ``config`` describes. Raises ConfigError with every fault."""
    problems = _character_faults("delimiter", config.delimiter)
    if config.quote is not None:
        problems += _character_faults("quote", config.quote)
        if config.quote == config.delimiter:
            problems.append("dataset.quote and dataset.delimiter must differ")
    columns = []
    for index, entry in enumerate(config.columns):
        if not isinstance(entry, Mapping) or "name" not in entry or "role" not in entry:
            problems.append(f"dataset.columns[{index}] must be a mapping with name and role, got {entry!r}")
            continue
        problems += _column_faults(index, entry, config)
        columns.append(Column(**{key: entry.get(key) for key in KEYS}))  # type: ignore[arg-type]  # checked above
    problems += _whole_faults(columns)
    refuse_if(problems)
    return Spec(config.name, config.delimiter, config.quote, config.header, tuple(columns))


def _character_faults(key: str, value: str) -> list[str]:
    if _is_mark(value):
        return []
    return [f"dataset.{key} must be one ASCII character that no number holds, nor a line end, got {value!r}"]


def _is_mark(value: Any) -> bool:
    """True if the parser can tell it from the digits, signs and points of numbers."""
    return (
        isinstance(value, str)
        and len(value) == 1
        and value.isascii()
        and not value.isalnum()
        and value not in "\r\n\0+-."
    )


def _column_faults(index: int, entry: Mapping[str, Any], config: DatasetConfig) -> list[str]:
    where = f"dataset.columns[{index}] ({entry['name']})"
    faults = [
        f"{where}: {key} is not a key of a column: use {', '.join(KEYS)}" for key in entry if key not in KEYS
    ]
    role, kind, separator = entry["role"], entry.get("kind"), entry.get("separator")
    if role not in ROLES:
        faults.append(f"{where}: role must be one of {', '.join(ROLES)}, got {role!r}")
    if role in KINDS and kind not in KINDS[role]:
        faults.append(
            f"{where}: kind of a {role} column must be one of {', '.join(KINDS[role])}, got {kind!r}"
        )
    if separator is not None:
        if role != "sparse":
            faults.append(f"{where}: separator is for sparse columns, whose values may be lists")
        taken = (config.delimiter, config.quote)
        if not _is_mark(separator) or separator in taken:
            faults.append(
                f"{where}: separator must be one ASCII character that nothing else uses, got {separator!r}"
            )
    return faults


def _whole_faults(columns: list[Column]) -> list[str]:
    names = [column.name for column in columns if column.role != "ignore"]
    faults = [
        f"dataset.columns: two columns are named {name}"
        for name in sorted(set(names))
        if names.count(name) > 1
    ]
    if sum(column.role == "label" for column in columns) > 1:
        faults.append("dataset.columns: only one column can have the role label")
    if not any(column.role == "sparse" for column in columns):
        faults.append("dataset.columns: at least one column must have the role sparse")
    for name in names:
        if not isinstance(name, str) or not name or "/" in name or name.startswith("."):
            faults.append(
                f"dataset.columns: {name!r} cannot name a column, for it names a file as well: leave out /"
            )
    return faults
