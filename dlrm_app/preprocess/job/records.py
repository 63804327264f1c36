"""Records: frozen dataclasses that passes hand to one another, and their JSON in the journal."""

from dataclasses import is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

VERSION = 1
"""Of all records of a run; raise it whenever one of them changes."""

T = TypeVar("T")


def from_json(kind: type[T], value: Any) -> T:
    """``value``, read from JSON, as ``kind``: the inverse of ``dataclasses.asdict``.

    Knows dataclasses, ``tuple[X, ...]``, ``list[X]``, ``dict[str, X]``, ``X | None`` and what JSON itself has.
    Raises ValueError if ``value`` has other fields than ``kind``.
    """
    converted: T = _convert(kind, value)
    return converted


def _convert(kind: Any, value: Any) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        fields = _fields(kind)
        if not isinstance(value, dict) or set(value) != set(fields):
            raise ValueError(f"expected the fields {', '.join(fields)}")
        return kind(**{name: _convert(fields[name], part) for name, part in value.items()})
    if origin in (tuple, list):
        return origin(_convert(parts[0], part) for part in value)
    if origin is dict:
        return {key: _convert(parts[1], part) for key, part in value.items()}
    if origin is UnionType:
        return None if value is None else _convert(parts[0], value)
    return value


@cache
def _fields(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
