"""Schemas of configurations: sections of keys with values, and rules over several keys.

A schema is a dataclass whose fields are sections (dataclasses too) or values (values.py).
A field without a default, or with "???", is required.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from dlrm_app.config.values import Share, converted, type_problem, value_problems
from dlrm_app.errors import Problem
from dlrm_app.text import listed

Schema = TypeVar("Schema", bound="Section")
REQUIRED: Any = "???"
"""The mark in conf/ of a value without a default."""
COMMON_NAMES = {
    "batchsize": "trainer.global_batch_size",
    "learningrate": "optimizer.sparse.lr",
    "dataset": "data.path",
}
"""Keys of other programs → the key with the same meaning here."""
_types: dict[object, dict[str, Any]] = {}


def types_of(schema: Any) -> dict[str, Any]:
    """Key → its annotation, in the order of the fields.

    ``from_`` is the field of the key ``from``, which is reserved in Python.
    """
    if schema not in _types:
        hints = get_type_hints(schema, include_extras=True)
        _types[schema] = {field.name.rstrip("_"): hints[field.name] for field in fields(schema)}
    return _types[schema]


def is_section(annotation: object) -> bool:
    """True if ``annotation`` is a section, a part of the configuration with its own keys."""
    return is_dataclass(annotation)


def type_of(key: str, schema: object) -> Any:
    """The annotation of the dotted ``key``; None if there is no such key. Below a value of type Any all keys exist."""
    found: Any = schema
    for name in key.split("."):
        if is_section(found):
            found = types_of(found).get(name)
        elif is_free_form(found):
            found = get_args(found)[1]
        elif found is not Any:
            return None
    return found


def is_free_form(annotation: object) -> bool:
    """True if such a value may have any keys."""
    return get_origin(annotation) is dict


def known_keys(schema: object, prefix: str = "") -> Iterator[str]:
    """Every dotted key, sections included."""
    for name, annotation in types_of(schema).items():
        yield f"{prefix}{name}"
        if is_section(annotation):
            yield from known_keys(annotation, f"{prefix}{name}.")


def flattened(values: Mapping[str, object], schema: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """(dotted key, value) of nested ``values``, as far as the schema has sections: other mappings are values."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and is_section(type_of(key, schema)):
            yield from flattened(value, schema, f"{key}.")
        else:
            yield key, value


def defaults_of(schema: Any) -> dict[str, object]:
    """Every key with its default, or "???" if it has none."""
    return {
        key: defaults_of(annotation) if is_section(annotation) else _default(field)
        for field, (key, annotation) in zip(fields(schema), types_of(schema).items(), strict=True)
    }


def unknown_key(key: str, schema: object) -> Problem:
    """The problem of an unknown ``key``, with the nearest key of ``schema``."""
    keys = [*known_keys(schema), "experiment", *["merlin"] * ("tables" in types_of(schema))]
    last_words = {name.rpartition(".")[2]: name for name in reversed(keys)}
    # the last word may be right, and the section wrong or missing
    near = difflib.get_close_matches(key, keys, n=1, cutoff=0.5) if "." in key else []
    near += [last_words[each] for each in difflib.get_close_matches(key.split(".")[-1], last_words, n=1)]
    if (usual := COMMON_NAMES.get(key.replace("_", ""))) in keys:
        near = [str(usual)]
    rule = "is not a known key"
    return Problem(key, rule, f"did you mean {near[0]}?" if near else "see --help for the keys")


def required(key: str) -> Problem:
    return Problem(key, "is required and has no default", f"give {key}=...")


def mapping_problems(
    values: Mapping[Any, Any], schema: object, prefix: str = "", *, is_resolved: bool = False
) -> Iterator[Problem]:
    """Problems: keys that are not in ``schema``, and values of a wrong type.

    A ``${...}`` that is not resolved yet is accepted.
    """
    for name, value in values.items():
        key = f"{prefix}{name}"
        is_open = isinstance(value, str) and (value == REQUIRED or ("${" in value and not is_resolved))
        if (kind := type_of(key, schema)) is None:
            yield unknown_key(key, schema)
        elif is_section(kind) and isinstance(value, Mapping):
            yield from mapping_problems(value, schema, f"{key}.", is_resolved=is_resolved)
        elif is_section(kind) and not is_open:
            yield _section_problem(key, value, kind)
        elif not is_open and (problem := type_problem(key, value, kind)):
            yield problem


def _section_problem(key: str, value: object, section: object) -> Problem:
    names = listed(list(types_of(section)), most=8)
    return Problem(key, f"must be given key by key, as {key}.NAME=VALUE: {names}", value=value)


def build(
    schema: Callable[..., Schema], values: Mapping[str, object], problems: list[Problem]
) -> Schema | None:
    """Builds the configuration of these values; adds keys that are unknown, missing or of a wrong type to ``problems``.

    Returns None if a value cannot be converted. A missing text becomes empty, so that other problems can be found.
    Values outside of their range or choices are kept: ``Section.problems`` finds them.
    """
    problems += mapping_problems(values, schema, is_resolved=True)
    return _build(schema, values, problems, "")


def _build(
    schema: Callable[..., Schema], values: Mapping[str, object], problems: list[Problem], prefix: str
) -> Schema | None:
    made: dict[str, object] = {}
    for field, (name, annotation) in zip(fields(cast(Any, schema)), types_of(schema).items(), strict=True):
        key, value = f"{prefix}{name}", values.get(name, {} if is_section(annotation) else _default(field))
        if value == REQUIRED:
            problems.append(required(key))
            value = ""
        if not is_section(annotation):
            with suppress(msgspec.ValidationError):
                made[field.name] = converted(value, annotation)
        elif (
            isinstance(value, Mapping)
            and (part := _build(annotation, value, problems, f"{key}.")) is not None
        ):
            made[field.name] = part
    return schema(**made) if len(made) == len(types_of(schema)) else None


class Section:
    """A part of a configuration, or a whole configuration."""

    __slots__ = ()

    def problems(self, prefix: str = "") -> list[Problem]:
        """Problems of all sections: values outside of their range or choices, and those from ``rules``."""
        found: list[Problem] = []
        for field, (name, annotation) in zip(
            fields(cast(Any, self)), types_of(type(self)).items(), strict=True
        ):
            value, key = getattr(self, field.name), f"{prefix}{name}"
            if isinstance(value, Section):
                found += value.problems(f"{key}.")
            else:
                found += value_problems(key, value, annotation)
        return [*found, *(each.within(prefix.rstrip("."), ".") for each in self.rules())]

    def rules(self) -> Iterable[Problem]:
        """Problems of several keys together. Keys are named as in this section; "" is the section itself."""
        return ()

    def unread(self, key: str) -> str:
        """The rule by which this command does not read ``key``, if it is typed; empty if it reads it."""
        return ""

    def needless(self, *keys: str, rule: str, cure: str = "leave it out") -> list[Problem]:
        """Problems: those of ``keys`` that are given although they have no effect."""
        given = {
            key: value for key in keys if (value := getattr(self, key)) is not None and value is not False
        }
        return [Problem(key, rule, cure, value) for key, value in given.items() if value != []]


@dataclass(slots=True)
class DatasetPathConfig(Section):
    path: str | None = None


@dataclass(slots=True)
class RejectsConfig(Section):
    max_fraction: Share = REQUIRED


def _default(field: "Field[Any]") -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return REQUIRED if field.default is MISSING else field.default
