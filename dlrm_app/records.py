"""Records: dataclasses stored as JSON, with a format and a version in files that users keep; values by dotted keys."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, cast

import msgspec.inspect
from msgspec.inspect import (
    DataclassType,
    DictType,
    FloatType,
    IntType,
    ListType,
    TupleType,
    Type,
    UnionType,
    VarTupleType,
)

from dlrm_app.checksums import text_checksum
from dlrm_app.errors import DataError, Problem
from dlrm_app.files import write_json, write_text, yaml_text
from dlrm_app.text import json_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
Json: TypeAlias = dict[str, Any]
"""The content of a JSON object."""
Number = int | float
"""A number whose file says whether it is an integer: 900, not 900.0."""


def leaves(values: Mapping[str, Any], separator: str = ".", prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(``section.key``, value) for each value in nested mappings, in order."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, separator, f"{prefix}{key}{separator}")
        else:
            yield f"{prefix}{key}", value


def read_record(path: Path, kind: type[T], cure: str) -> T:
    """The record of type ``kind`` in a JSON file. Raises DataError, with ``cure``, if the file holds anything else."""
    try:
        return from_json(kind, json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise DataError(Problem(str(path), f"is damaged ({error})", cure)) from error


class Versioned(Protocol):
    """A frozen dataclass whose fields ``format`` and ``version`` have the current values as their defaults."""

    @property
    def format(self) -> str:
        """The name of the format, such as dlrm-dataset."""

    @property
    def version(self) -> int:
        """The version of the format."""


R = TypeVar("R", bound=Versioned)


@dataclass(frozen=True)
class Format(Generic[R]):
    """The file of a versioned record of type ``kind``: JSON, or YAML if the file's name ends in .yaml.

    ``cure``: ends every message about a file that cannot be used; ``{folder}`` stands for the file's folder.
    ``is_sealed``: True if the file has a checksum of its values.
    ``comment``: the first line of a YAML file.

    Fields that a later release of the same version adds are ignored.
    """

    kind: type[R]
    cure: str
    is_sealed: bool = False
    comment: str = ""

    def write(self, path: Path, record: R) -> None:
        """Writes ``record``; the file is complete or absent."""
        value = as_json(record)
        if path.suffix == ".yaml":
            write_text(path, self.comment + _yaml_text(value))
        else:
            write_json(path, _sealed(value) if self.is_sealed else value)

    def read(self, path: Path) -> R:
        """Reads a record. Raises DataError for a damaged file, another format or another version; OSError."""
        cure = self.cure.format(folder=path.parent)
        try:
            value = (
                _read_yaml(path) if path.suffix == ".yaml" else json.loads(path.read_text(encoding="utf-8"))
            )
            if fault := self._other_format(value):
                raise DataError(fault.within(str(path)).also(f"or {cure}"))
            if self.is_sealed:
                value = _unsealed(value)
            written = {each.name: each.metadata for each in self._fields if each.metadata != NOT_WRITTEN}
            if any(metadata == ALWAYS and name not in value for name, metadata in written.items()):
                raise ValueError(f"expected the fields {', '.join(written)}")
            return from_json(self.kind, {key: part for key, part in value.items() if key in written})
        except ValueError as error:
            rule = f"is damaged, or not a {self._own('format')} file ({error})"
            raise DataError(Problem(str(path), rule, cure)) from error

    def _other_format(self, value: Any) -> Problem | None:
        """The reason why this program cannot read ``value``; None if it can. Raises ValueError if it is not a record."""
        name, version = self._own("format"), self._own("version")
        if not isinstance(value, dict):
            raise ValueError(f"expected a mapping, got {repr(value)[:100]}")
        found, found_version = value.get("format", name), value.get("version", version)
        if found != name:
            return Problem("", f"is of the format {found!r}, not {name!r}", "give another file")
        if type(found_version) is not int:
            raise ValueError(f"version must be of type int, got {found_version!r}")
        if found_version != version:
            age = "a newer" if found_version > version else "an older"
            rule = f"has version {found_version} of {name}, this program reads version {version}"
            return Problem("", rule, f"use {age} dlrm-app, the one that wrote it")
        return None

    def _own(self, name: str) -> Any:
        return next(each.default for each in self._fields if each.name == name)

    @property
    def _fields(self) -> tuple[Field[Any], ...]:
        return fields(cast("type[DataclassInstance]", self.kind))


ALWAYS = {"written": "always"}
"""Metadata of a field that files must have, although it has a default."""
NOT_WRITTEN = {"written": "never"}
"""Metadata of a field that files do not have."""
IF_SET = {"written": "if set"}
"""Metadata of a field that files have only if it is not empty: most records do without, and files stay short."""


def as_json(value: Any) -> Any:
    """Converts a record to JSON's types, the inverse of ``from_json``. A class may define its own ``to_json``."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        parts = {each.name: (each.metadata, getattr(value, each.name)) for each in fields(value)}
        return {
            name: as_json(part)
            for name, (metadata, part) in parts.items()
            if metadata != NOT_WRITTEN and (part or metadata != IF_SET)
        }
    if isinstance(value, Mapping):
        return {key: as_json(part) for key, part in value.items()}
    return [as_json(part) for part in value] if isinstance(value, list | tuple) else value


def _sealed(value: Json) -> Json:
    return {**value, "checksum": text_checksum(json_text(value))}


def _unsealed(value: Json) -> Json:
    """``value`` without its checksum. Raises ValueError if it has other values than were written."""
    rest = {key: part for key, part in value.items() if key != "checksum"}
    if value.get("checksum") != text_checksum(json_text(rest)):
        raise ValueError("its values are not those that were written")
    return rest


def _yaml_text(value: Json) -> str:
    """``value`` as YAML. Format and version come first, because people add entries at the end."""
    import yaml

    first = {key: value[key] for key in ("format", "version")}
    text: str = yaml.safe_dump({**first, **value}, sort_keys=False, default_flow_style=None, width=120)
    return text


def _read_yaml(path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(yaml_text(path))
    except yaml.YAMLError as error:
        raise ValueError(str(error).splitlines()[0]) from error


def from_json(kind: type[T], value: Any) -> T:
    """Converts ``value``, read from JSON, to ``kind``: the inverse of ``as_json``.

    Fields with a default may be missing. A float that is null is nan; ``Number`` keeps integers as such. A class with
    its own ``to_json`` has a ``from_json``, which gives the values of the fields. Raises ValueError, naming the field,
    if it has other fields or types than ``kind``.
    """
    wanted: Any = kind  # mypy holds a type for unhashable
    try:
        return msgspec.convert(_field_values(_type_info(wanted), value), kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


@cache
def _type_info(kind: Any) -> Type:
    return msgspec.inspect.type_info(kind)


def _field_values(kind: Type, value: Any) -> Any:
    """``value`` as msgspec converts it to ``kind``: nan instead of null. Raises ValueError for unknown fields."""
    match kind, value:
        case UnionType(), None if kind.includes_none:
            return None
        case UnionType(), _:
            for part in kind.types:
                value = _field_values(part, value)
        case FloatType(), None:
            return math.nan
        case DataclassType(), dict():
            if hasattr(kind.cls, "from_json"):
                value = kind.cls.from_json(value)
            types = {each.name: each.type for each in kind.fields}
            if not value.keys() <= types.keys():
                raise ValueError(f"expected the fields {', '.join(types)}, got {', '.join(map(str, value))}")
            return {key: _field_values(types[key], part) for key, part in value.items()}
        case DictType(), dict():
            return {key: _field_values(kind.value_type, part) for key, part in value.items()}
        case TupleType(), list() if len(value) == len(kind.item_types):
            return [*map(_field_values, kind.item_types, value)]
        case ((ListType() | VarTupleType()), list()) if not isinstance(kind.item_type, IntType):
            return [_field_values(kind.item_type, part) for part in value]
    return value
