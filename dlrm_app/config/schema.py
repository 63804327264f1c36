"""Schemas of configurations: types, ranges and choices by annotations, and rules over several keys.

A schema is a dataclass whose fields are sections (dataclasses too) or values. msgspec reads a value's annotation, such as
``Annotated[int, Meta(ge=1)]`` or ``Literal["auc", "logloss"]``. A field without a default, or with "???", is required.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache, reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

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
_types: dict[Any, dict[str, Any]] = {}
_FP32_MAX, _INT64_MAX = 3.4028234663852886e38, 2**63 - 1

Count = Annotated[int, msgspec.Meta(ge=1)]
Whole = Annotated[int, msgspec.Meta(ge=0)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=_INT64_MAX)]
BatchRows = Annotated[int, msgspec.Meta(ge=1, le=2**24)]  # of one rank: more would not fit into memory
Threads = Annotated[int, msgspec.Meta(ge=1, le=4096)]  # of one process
Positive = Annotated[float, msgspec.Meta(gt=0, le=_FP32_MAX)]
NonNegative = Annotated[float, msgspec.Meta(ge=0, le=_FP32_MAX)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
BelowOne = Annotated[float, msgspec.Meta(ge=0, lt=1)]
# up to a year: torch can represent it in nanoseconds
Minutes = Annotated[float, msgspec.Meta(gt=0, le=525_600)]
Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
Which = Literal["newest", "best"]


def types_of(schema: Any) -> dict[str, Any]:
    """Key → its annotation, in the order of the fields. ``from_`` is the field of the key ``from``, which is reserved in Python."""
    if schema not in _types:
        hints = get_type_hints(schema, include_extras=True)
        _types[schema] = {field.name.rstrip("_"): hints[field.name] for field in fields(schema)}
    return _types[schema]


def is_section(annotation: Any) -> bool:
    """True if ``annotation`` is a section, a part of the configuration with its own keys."""
    return is_dataclass(annotation)


def type_of(key: str, schema: Any) -> Any:
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


def is_free_form(annotation: Any) -> bool:
    """True if such a value may have any keys."""
    return get_origin(annotation) is dict


def known_keys(schema: Any, prefix: str = "") -> Iterator[str]:
    """Every dotted key, sections included."""
    for name, annotation in types_of(schema).items():
        yield f"{prefix}{name}"
        if is_section(annotation):
            yield from known_keys(annotation, f"{prefix}{name}.")


def defaults_of(schema: Any) -> dict[str, Any]:
    """Every key with its default, or "???" if it has none."""
    return {
        key: defaults_of(annotation) if is_section(annotation) else _default(field)
        for field, (key, annotation) in zip(fields(schema), types_of(schema).items(), strict=True)
    }


def unknown_key(key: str, schema: Any) -> Problem:
    """The problem of an unknown ``key``, with the nearest key of ``schema``."""
    known = [*known_keys(schema), "experiment"]
    last_words = {name.rpartition(".")[2]: name for name in reversed(known)}
    # the last word may be right, and the section wrong or missing
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5) if "." in key else []
    near += [last_words[each] for each in difflib.get_close_matches(key.split(".")[-1], last_words, n=1)]
    if (usual := COMMON_NAMES.get(key.replace("_", ""))) in known:
        near = [str(usual)]
    return Problem(
        key, "is not a known key", f"did you mean {near[0]}?" if near else "see --help for the keys"
    )


def required(key: str) -> Problem:
    """The problem of a missing ``key``."""
    return Problem(key, "is required and has no default", f"give {key}=...")


def mapping_problems(
    values: Mapping[Any, Any], schema: Any, prefix: str = "", *, is_resolved: bool = False
) -> Iterator[Problem]:
    """Problems: keys that are not in ``schema``, and values of a wrong type. A ``${...}`` that is not resolved yet is accepted."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        is_open = isinstance(value, str) and (value == REQUIRED or ("${" in value and not is_resolved))
        if (kind := type_of(key, schema)) is None:
            yield unknown_key(key, schema)
        elif is_section(kind) and isinstance(value, Mapping):
            yield from mapping_problems(value, schema, f"{key}.", is_resolved=is_resolved)
        elif not is_open and (problem := type_problem(key, value, kind)):
            yield problem


def build(schema: Callable[..., Schema], values: Mapping[str, Any], problems: list[Problem]) -> Schema | None:
    """Builds the configuration of these values; adds keys that are unknown, missing or of a wrong type to ``problems``.

    Returns None if a value cannot be converted. A missing text becomes empty, so that other problems can be found.
    Values outside of their range or choices are kept: ``Section.problems`` finds them.
    """
    problems += mapping_problems(values, schema, is_resolved=True)
    return _made(schema, values, problems, "")


def _made(
    schema: Callable[..., Schema], values: Mapping[str, Any], problems: list[Problem], prefix: str
) -> Schema | None:
    made: dict[str, Any] = {}
    for field, (name, annotation) in zip(fields(cast(Any, schema)), types_of(schema).items(), strict=True):
        key, value = f"{prefix}{name}", values.get(name, {} if is_section(annotation) else _default(field))
        if value == REQUIRED:
            problems.append(required(key))
            value = ""
        if not is_section(annotation):
            with suppress(msgspec.ValidationError):
                made[field.name] = converted(value, annotation)
        elif (
            isinstance(value, Mapping) and (part := _made(annotation, value, problems, f"{key}.")) is not None
        ):
            made[field.name] = part
    return schema(**made) if len(made) == len(types_of(schema)) else None


def type_problem(key: str, value: Any, annotation: Any) -> Problem | None:
    """The problem of ``value`` if its type does not fit ``annotation``; its range is not checked."""
    if is_section(annotation):
        names = listed(list(types_of(annotation)), most=8)
        return Problem(key, f"must be given key by key, as {key}.NAME=VALUE: {names}", value=value)
    try:
        converted(value, annotation)
    except msgspec.ValidationError:
        choices = [] if _without_none(annotation) is bool else _choices(_without_none(annotation))
        rule = f"one of {', '.join(choices)}" if choices else _kind(_bare(annotation))
        if _beyond_64_bits(value):
            rule = f"a number of at most 63 bits, {_INT64_MAX}"
        return Problem(key, f"must be {rule}", value=value)
    return None


def converted(value: Any, annotation: Any) -> Any:
    """Converts ``value`` to the annotation's type, such as "5" to 5. Raises msgspec.ValidationError, but not for its range."""
    if _beyond_64_bits(value):
        raise msgspec.ValidationError("on which arithmetic would fail later")
    bare = _bare(annotation)
    return msgspec.convert(_with_text(value, bare), bare, strict=False)


def value_problems(key: str, value: Any, annotation: Any) -> Iterator[Problem]:
    """Problems of ``value`` with this annotation: its type, its range or its choices."""
    given = _without_none(annotation)
    if wrong_type := type_problem(key, value, annotation):
        yield wrong_type
    elif value is None or given is Any:
        return
    elif get_origin(given) is list:
        for part in value:
            yield from value_problems(key, part, get_args(given)[0])
    elif get_origin(given) is dict:
        for name, part in value.items():
            yield from value_problems(f"{key}.{name}", part, get_args(given)[1])
    else:
        try:
            msgspec.convert(value, given)
        except msgspec.ValidationError:
            near = difflib.get_close_matches(str(value), _choices(given), n=1)
            yield Problem(key, _rule(given, value), f"did you mean {near[0]}?" if near else "", value)


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


def file_problems(key: str, value: Any) -> Iterator[Problem]:
    """The problem of an input that is given and is neither a file, a glob nor a list of them."""
    is_list = isinstance(value, list) and len(value) > 0 and all(isinstance(item, str) for item in value)
    if not is_list and value is not None and not (isinstance(value, str) and value):
        yield Problem(key, "must be a file, a glob or a list of them", value=value)


def one_of(key: str, value: str, choices: Iterable[str]) -> list[Problem]:
    """Problems of a name that must be in ``choices``, for lists from a registry or a user's file."""
    return [] if value in choices else [Problem(key, f"must be one of {', '.join(choices)}", value=value)]


def _default(field: "Field[Any]") -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return REQUIRED if field.default is MISSING else field.default


@cache
def _bare(annotation: Any) -> Any:
    """The annotation without ranges, and with choices replaced by their types."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _bare(arguments[0])
    if origin is Literal:
        return reduce(or_, {type(choice) for choice in arguments})
    if origin in (Union, UnionType):
        return reduce(or_, map(_bare, arguments))
    return origin[tuple(map(_bare, arguments))] if origin in (list, dict) else annotation


def _without_none(annotation: Any) -> Any:
    """The annotation without None."""
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    return reduce(or_, (each for each in get_args(annotation) if each is not NoneType))


def _with_text(value: Any, bare: Any) -> Any:
    """``value`` with numbers turned into texts if ``bare`` asks for texts."""
    given = _without_none(bare)
    if given is str and type(value) in (int, float):
        return str(value)
    if get_origin(given) is list and isinstance(value, list):
        return [_with_text(part, get_args(given)[0]) for part in value]
    if get_origin(given) is dict and isinstance(value, dict):
        return {name: _with_text(part, get_args(given)[1]) for name, part in value.items()}
    return value


def _beyond_64_bits(value: Any) -> bool:
    """True if ``value`` holds a whole number that does not fit into 64 bits."""
    if isinstance(value, Mapping | list):
        return any(map(_beyond_64_bits, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, int) and abs(value) > _INT64_MAX


def _kind(bare: Any) -> str:
    """A type in words: ``a whole number``, ``a list of texts``."""
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    given = _without_none(bare)
    if get_origin(given) is dict:
        return "a mapping, as {name: value}"
    if get_origin(given) is list:
        kind = kinds.get(get_args(given)[0])
        return f"a list of {kind[2:]}s" if kind else "a list, as [a,b]"
    return kinds.get(given, "a text")


def _choices(given: Any) -> list[str]:
    """The choices of an annotation, as they are typed."""
    if get_origin(given) is Literal:
        return list(map(str, get_args(given)))
    if get_origin(given) in (Union, UnionType):
        return [choice for each in get_args(given) for choice in _choices(each)]
    return ["false", "true"] if given is bool else []


def _rule(given: Any, value: Any) -> str:
    """A rule in words: ``must be at least 1``, ``must be above 0 and at most 1``, ``must be one of auc, logloss``."""
    if choices := _choices(given):
        return f"must be one of {', '.join(choices)}"
    (meta,) = given.__metadata__
    if meta.pattern is not None:
        end = meta.pattern.strip("\\$")
        return f"must be a name that ends in {end}"
    if meta.multiple_of is not None:
        return f"must be a positive multiple of {meta.multiple_of}"
    bounds = {"above": meta.gt, "at least": meta.ge, "below": meta.lt, "at most": meta.le}
    shown = [
        f"{word} {bound:.3g}" if isinstance(bound, float) else f"{word} {bound}"
        for word, bound in bounds.items()
        if bound is not None and (bound != _FP32_MAX or value > bound)  # not a usual mistake
    ]
    return f"must be {' and '.join(shown)}"
