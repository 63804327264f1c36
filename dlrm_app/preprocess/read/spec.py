"""The format of a raw click log, from conf/dataset/*.yaml. Files with a header may have its columns in any order.

- {name: clicked, role: label}                                     # 0 or 1, or true and false
- {name: age, role: dense, kind: integer}                          # integer or float
- {name: items, role: sparse, kind: string, separator: "|"}        # integer, hex or string; a list
- {name: session, role: ignore}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dlrm_app.config.datasets import DatasetConfig
from dlrm_app.errors import refuse_if
from dlrm_app.text import listed

ROLES = ("label", "dense", "sparse", "ignore")
KINDS = {"dense": ("integer", "float"), "sparse": ("integer", "hex", "string")}
KEYS = ("name", "role", "kind", "separator")
MAX_NULL = 255


@dataclass(frozen=True)
class Column:
    """A column of the raw log. ``separator`` is set where its values are lists."""

    name: str
    role: str
    kind: str | None = None
    separator: str | None = None


@dataclass(frozen=True)
class Spec:
    """The raw log's format. ``delimiter`` and ``quote`` are single bytes.

    ``null_values``: texts that stand for a missing value. ``order``: the columns as one file has them, if not as ``columns``.
    """

    name: str
    delimiter: str
    quote: str | None
    header: bool
    columns: tuple[Column, ...]
    null_values: tuple[str, ...] = ()
    order: tuple[Column, ...] = ()

    @property
    def fields(self) -> tuple[Column, ...]:
        """The columns in the order of the file."""
        return self.order or self.columns

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
        """The format of files that lack the label column, and the other labels that are described."""
        return replace(self, columns=tuple(c for c in self.columns if "label" not in (c.role, c.kind)))

    def in_columns(self, names: Sequence[str], labels: bool | None, file: str, cure: str) -> "Spec":
        """The format of ``file`` whose columns are ``names``: others than those described are ignored.

        ``labels``: whether the label is read; None: if it is there. Raises ConfigError, with ``cure``, for what is not there.
        """
        alike = {name.strip().casefold(): name for name in names}
        if labels is None:
            labels = (self.label or "").casefold() in alike
        spec = self if labels else self.without_label()
        known = {column.name: column for column in spec.columns}
        wanted = [column.name for column in spec.columns if column.role != "ignore"]
        faults = [f"{file} names {name} twice" for name in wanted if names.count(name) > 1]
        if lacking := [name for name in wanted if name not in names]:
            others = [f"{alike[n.casefold()]!r} is not {n!r}" for n in lacking if n.casefold() in alike]
            hint = f" ({', '.join(others[:3])}: case and spaces count)" if others else ""
            known_names = f"{', '.join(lacking)}{hint}; it has {listed(names, 12)}"
            faults.append(f"{file} lacks the columns {known_names}: {cure}")
        refuse_if(faults)
        return replace(spec, order=tuple(known.get(name, Column(name, "ignore")) for name in names))


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
    problems += _whole_faults(columns, config.label)
    if config.label is not None:
        others = {c.name for c in columns if c.role == "label" and c.name != config.label}
        columns = [Column(c.name, "ignore", "label") if c.name in others else c for c in columns]
    # YAML reads NULL and null, without quotes, as nothing
    given = [
        text for each in config.null_values or () for text in (["NULL", "null"] if each is None else [each])
    ]
    if any(not 1 <= len(text.encode()) <= MAX_NULL or "\n" in text for text in given):
        problems.append(f"dataset.null_values must be texts of one line and 1 to {MAX_NULL} bytes")
    refuse_if(problems)
    marks = config.delimiter, config.quote
    return Spec(config.name, *marks, config.header, tuple(columns), tuple(given))


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


def _whole_faults(columns: list[Column], label: str | None) -> list[str]:
    names = [column.name for column in columns if column.role != "ignore"]
    faults = [
        f"dataset.columns: two columns are named {name}"
        for name in sorted(set(names))
        if names.count(name) > 1
    ]
    labels = [column.name for column in columns if column.role == "label"]
    if label is None and len(labels) > 1:
        faults.append(
            f"dataset.columns: {' and '.join(labels)} have the role label: say dataset.label=NAME of the one to learn"
        )
    if label is not None and label not in labels:
        faults.append(f"dataset.label must be a column with the role label, {listed(labels)}, got {label!r}")
    if not any(column.role == "sparse" for column in columns):
        faults.append("dataset.columns: at least one column must have the role sparse")
    for name in names:
        if not isinstance(name, str) or not name or "/" in name or name.startswith("."):
            faults.append(
                f"dataset.columns: {name!r} cannot name a column, for it names a file as well: leave out /"
            )
    return faults
