"""Records stored as JSON: reads them back as dataclasses, and lists the values of nested mappings by dotted keys."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from dlrm_app.errors import DataError, Problem

T = TypeVar("T")


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


def from_json(kind: type[T], value: Any) -> T:
    """Converts ``value``, read from JSON, to ``kind``: the inverse of ``dataclasses.asdict``.

    Supports dataclasses, ``tuple[X, ...]``, ``list[X]``, ``dict[str, X]``, ``X | None`` and JSON's own
    types; fields with a default may be missing. A float that is null is nan. Raises ValueError, naming
    the field, if it has other fields or types than ``kind``.
    """
    converted: T = _convert(kind, value, "")
    return converted


def _convert(kind: Any, value: Any, name: str) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is UnionType:
        return None if value is None else _convert(parts[0], value, name)
    if isinstance(kind, type) and is_dataclass(kind):
        types, required = _fields(kind)
        if not isinstance(value, dict) or not required <= set(value) <= set(types):
            raise ValueError(f"{name}: " * bool(name) + f"expected the fields {', '.join(types)}")
        return kind(**{key: _convert(types[key], part, f"{name}.{key}") for key, part in value.items()})
    if kind is float and value is None:
        return math.nan
    wanted, given = list if origin is tuple else origin or kind, type(value)
    if given is not wanted and (wanted, given) != (float, int):
        raise ValueError(f"{name.lstrip('.')} must be of type {wanted.__name__}, got {repr(value)[:100]}")
    if origin in (tuple, list):
        if parts[0] is int and {type(part) for part in value} == {int}:
            return origin(value)  # fast path: there can be many
        return origin(_convert(parts[0], part, f"{name}[{index}]") for index, part in enumerate(value))
    if origin is dict:
        return {key: _convert(parts[1], part, f"{name}.{key}") for key, part in value.items()}
    return value


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], set[str]]:
    """(field → type, the fields without a default)."""
    required = {
        each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING
    }
    return get_type_hints(kind), required
