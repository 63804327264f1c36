"""Reads the settings that are given to the library's functions."""

import os
from collections.abc import Mapping, Sequence
from types import NoneType

from dlrm_app.api.commands import COMMANDS
from dlrm_app.config.schema import flattened
from dlrm_app.config.words import WordReader
from dlrm_app.errors import ConfigError, Problem
from dlrm_app.typed import word

Given = str | os.PathLike[str] | Mapping[str, object]
"""A word as it is typed (``"model=dcn"``), or keys (dotted or nested) and their values."""


def read_settings(
    name: str, given: Sequence[Given], keywords: Mapping[str, object]
) -> tuple[dict[str, object], list[str], list[Problem]]:
    """The settings of ``dlrm-<name>``, the words that a command line would have, and the problems of given words.

    Raises ConfigError for values that no setting can have.
    """
    command = COMMANDS[name]()
    reader = WordReader(command.schema, name, command.positional)
    words: list[str] = []
    for each in (*given, keywords):
        if isinstance(each, Mapping):
            settings = {key: _value(key, value) for key, value in flattened(each, command.schema)}
            reader.add(settings)
            words += (word(key, value) for key, value in settings.items())
        elif isinstance(each, str | os.PathLike):
            reader.read([os.fspath(each)])
            words.append(os.fspath(each))
        else:
            rule = "must be text as it is typed, or a mapping of keys to values"
            raise ConfigError(Problem("a setting", rule, value=each))
    typed, problems = reader.finish()
    return typed, words, problems


def _value(key: str, value: object) -> object:
    try:
        return _plain(value)
    except TypeError as error:
        rule = "takes text, numbers, true or false, None, paths, and lists and mappings of these"
        raise ConfigError(Problem(key, rule, value=value)) from error


def _plain(value: object) -> object:
    """``value`` as Python's own types. Paths, and results with a path, become text; NumPy's scalars become numbers."""
    if type(value) in (str, bool, int, float, NoneType):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if callable(item := getattr(value, "item", None)):
        return _plain(item())
    if isinstance(value, str | int | float):  # of a class of their own
        return value
    raise TypeError(f"{value!r} is not a setting")
