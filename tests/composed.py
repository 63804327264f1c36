"""Configurations composed of words, as they are typed."""

from collections.abc import Callable, Sequence
from typing import Any

from dlrm_app.config import compose
from dlrm_app.config.overrides import Overrides, overrides_of
from dlrm_app.config.schema import Schema
from dlrm_app.config.words import WordReader
from dlrm_app.errors import refuse_if


def read_words(schema: type[Any], command: str, words: Sequence[str]) -> dict[str, Any]:
    """Key or group → value."""
    settings, problems = WordReader(schema, command).read(words).finish()
    refuse_if(problems)
    return settings


def overrides(command: str, schema: type[Any], words: Sequence[str]) -> Overrides:
    """The choices and values of ``words``, all of which must be right."""
    found, problems = overrides_of(read_words(schema, command, words), schema, command)
    assert problems == []
    return found


def compose_config(
    command: str,
    schema: type[Schema],
    words: Sequence[str],
    validate: Callable[[Schema], object] = lambda _: None,
    complete: compose.Completion = lambda typed: {},
) -> Schema:
    """The configuration of ``dlrm-<command> *words``."""
    settings, problems = WordReader(schema, command).read(words).finish()
    return compose.compose_config(command, schema, settings, validate, complete, problems)
