"""Values of settings: their types, ranges and choices, which msgspec reads from annotations, and these rules in words.

``Annotated[int, Meta(ge=1)]`` has a range, ``Literal["auc", "logloss"]`` choices.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from dlrm_app.errors import Problem

_FP32_MAX, _INT64_MAX = 3.4028234663852886e38, 2**63 - 1

Count = Annotated[int, msgspec.Meta(ge=1)]
Several = Annotated[int, msgspec.Meta(ge=2)]
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
SPLITS: tuple[Split, ...] = get_args(Split)
Which = Literal["newest", "best"]
VectorType = Literal["fp16", "fp32"]


def type_problem(key: str, value: object, annotation: object) -> Problem | None:
    """The problem of ``value`` if its type does not fit ``annotation``; its range is not checked."""
    try:
        converted(value, annotation)
    except msgspec.ValidationError:
        choices = [] if _without_none(annotation) is bool else _choices(_without_none(annotation))
        rule = f"one of {', '.join(choices)}" if choices else _kind(_bare(annotation))
        if _beyond_64_bits(value):
            rule = f"a number of at most 63 bits, {_INT64_MAX}"
        return Problem(key, f"must be {rule}", value=value)
    return None


def converted(value: object, annotation: object) -> Any:
    """Converts ``value`` to the annotation's type, such as "5" to 5. Raises msgspec.ValidationError; ignores ranges."""
    if _beyond_64_bits(value):
        raise msgspec.ValidationError("on which arithmetic would fail later")
    bare = _bare(annotation)
    return msgspec.convert(_with_text(value, bare), bare, strict=False)


def takes_texts(annotation: object) -> bool:
    """True for a setting whose values are texts of the user's own, or lists of these."""
    given = _without_none(annotation)
    if get_origin(given) is list:
        given = _without_none(get_args(given)[0])
    return given is str


def value_problems(key: str, value: Any, annotation: object) -> Iterator[Problem]:
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


def file_problems(key: str, value: object) -> Iterator[Problem]:
    """The problem of an input that is given and is neither a file, a glob nor a list of them."""
    is_list = isinstance(value, list) and len(value) > 0 and all(isinstance(item, str) for item in value)
    if not is_list and value is not None and not (isinstance(value, str) and value):
        yield Problem(key, "must be a file, a glob or a list of them", value=value)


def choice_problems(key: str, value: str, choices: Iterable[str]) -> list[Problem]:
    """Problems of a name that must be in ``choices``, for lists from a registry or a user's file."""
    return [] if value in choices else [Problem(key, f"must be one of {', '.join(choices)}", value=value)]


@cache
def _bare(annotation: object) -> Any:
    """The annotation without ranges, and with choices replaced by their types."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _bare(arguments[0])
    if origin is Literal:
        return reduce(or_, {type(choice) for choice in arguments})
    if origin in (Union, UnionType):
        return reduce(or_, map(_bare, arguments))
    return origin[tuple(map(_bare, arguments))] if origin in (list, dict) else annotation


def _without_none(annotation: object) -> Any:
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    return reduce(or_, (each for each in get_args(annotation) if each is not NoneType))


def _with_text(value: object, bare: object) -> object:
    """``value`` with numbers turned into texts if ``bare`` asks for texts."""
    given = _without_none(bare)
    if given is str and type(value) in (int, float):
        return str(value)
    if get_origin(given) is list and isinstance(value, list):
        return [_with_text(part, get_args(given)[0]) for part in value]
    if get_origin(given) is dict and isinstance(value, dict):
        return {name: _with_text(part, get_args(given)[1]) for name, part in value.items()}
    return value


def _beyond_64_bits(value: object) -> bool:
    if isinstance(value, Mapping | list):
        return any(map(_beyond_64_bits, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, int) and abs(value) > _INT64_MAX


def _kind(bare: object) -> str:
    """A type in words: ``a whole number``, ``a list of texts``."""
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    given = _without_none(bare)
    if get_origin(given) is dict:
        return "a mapping, as {name: value}"
    if get_origin(given) is list:
        kind = kinds.get(get_args(given)[0])
        return f"a list of {kind[2:]}s" if kind else "a list, as [a,b]"
    return kinds.get(given, "a text")


def _choices(given: object) -> list[str]:
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
