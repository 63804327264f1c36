"""Settings given from Python → the words that a command line would have."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dlrm_app.config.schema import is_section, type_of
from dlrm_app.errors import ConfigError, Problem
from dlrm_app.typed import as_typed

Settings = str | os.PathLike[str] | Mapping[str, Any]
"""A word as it is typed (``"model=dcn"``), or keys (dotted or nested) and their values."""


def words_of(schema: type[Any], settings: Sequence[Settings], keywords: Mapping[str, Any]) -> list[str]:
    """The words of ``settings`` and ``keywords``, in order. Raises ConfigError for values that no setting can have."""
    words: list[str] = []
    for given in (*settings, keywords):
        if isinstance(given, Mapping):
            words += (f"{key}={_value(key, value)}" for key, value in _leaves(given, schema))
        elif isinstance(given, str | os.PathLike):
            words.append(os.fspath(given))
        else:
            rule = "must be text as it is typed, or a mapping of keys to values"
            raise ConfigError(Problem("a setting", rule, value=given))
    return words


def _leaves(given: Mapping[str, Any], schema: type[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of nested mappings, as far as the schema has sections: other mappings are values."""
    for name, value in given.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and is_section(type_of(key, schema)):
            yield from _leaves(value, schema, f"{key}.")
        else:
            yield key, value


def _value(key: str, value: Any) -> str:
    try:
        return as_typed(_plain(value))
    except TypeError as error:
        rule = "takes text, numbers, true or false, None, paths, and lists and mappings of these"
        raise ConfigError(Problem(key, rule, value=value)) from error


def _plain(value: Any) -> Any:
    """``value`` as Python's own types. Paths, and results with a path, become text; NumPy's scalars become numbers."""
    if isinstance(value, str | bool | int | float | None):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if callable(item := getattr(value, "item", None)):
        return _plain(item())
    raise TypeError(f"{value!r} is no setting")
