"""What the keys of one column in the description of a raw log may be, by its role."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from dlrm_app.config.datasets import DatasetConfig
from dlrm_app.errors import Problem
from dlrm_app.logs.spec import ELEMENT_WEIGHTS, FORMATTED, KEY_KINDS, SCORE, VECTOR
from dlrm_app.logs.time_format import format_problems
from dlrm_app.text import listed

ROLES = ("label", "weight", "dense", "sparse", ELEMENT_WEIGHTS, VECTOR, "time", "ignore")

KINDS = {
    "dense": ("integer", "float", SCORE),
    "sparse": KEY_KINDS,
    "time": ("seconds", "milliseconds", "microseconds", "nanoseconds", "iso", FORMATTED),
}

KEYS = (
    *("name", "role", "kind", "separator", "first", "last", "format", "weights_of", "brackets"),
    *("weights", "padding", "whole", "size"),
)

BRACKETS = ("[]", "()", "{}")

MAX_NULL = 255
"""Bytes of a null word."""
MAX_SIZE = 1 << 16
"""The most numbers of a vector."""


def is_mark(value: object) -> bool:
    """True if the parser can distinguish ``value`` from the digits, signs and points of numbers."""
    if not (isinstance(value, str) and len(value) == 1 and value.isascii()):
        return False
    return not value.isalnum() and value not in "\r\n\0+-."


def entry_faults(entry: Mapping[str, Any], config: DatasetConfig) -> list[Problem]:
    """Problems of an entry of ``dataset.columns``, which has a name and a role."""
    return [
        problem
        for rules in (
            _role_rules,
            _list_rules,
            _value_rules,
            _element_weight_rules,
            _format_rules,
            _vector_rules,
        )
        for is_kept, problem in rules(entry, config)
        if not is_kept
    ]


Rules = Iterable[tuple[bool, Problem]]
"""True if a rule is kept, and its problem if not."""


def _role_rules(entry: Mapping[str, Any], config: DatasetConfig) -> Rules:
    role, kind, form = entry["role"], entry.get("kind"), entry.get("format")
    kinds = tuple(each for each in KINDS.get(str(role), ()) if each != FORMATTED)
    unknown = [key for key in entry if key not in KEYS]
    removed = ": times are in UTC, or name their offset" * ("offset" in unknown)
    rule = f"is not a key of a column{removed}"
    yield not unknown, Problem(listed(unknown), rule, f"use {', '.join(KEYS)}")
    yield role in ROLES, Problem("role", f"must be one of {', '.join(ROLES)}", value=role)
    has_kind = not kinds or (kind in kinds if form is None else role != "time" or kind is None)
    yield has_kind, Problem("kind", f"of a {role} column must be one of {', '.join(kinds)}", value=kind)


def _list_rules(entry: Mapping[str, Any], config: DatasetConfig) -> Rules:
    role, separator, brackets = entry["role"], entry.get("separator"), entry.get("brackets")
    rule = "is for sparse columns, whose values may be lists, and for vectors"
    yield separator is None or role in ("sparse", ELEMENT_WEIGHTS, VECTOR), Problem("separator", rule)
    may_repeat = brackets is not None and config.quote is not None  # the delimiter, within quotes
    taken = [config.quote, *([] if may_repeat else [config.delimiter])]
    taken += [*f"{brackets}\t"] if brackets else []
    is_separator = separator is None or (is_mark(separator) and separator not in taken)
    rule = "must be one ASCII character that nothing else uses"
    yield is_separator, Problem("separator", rule, value=separator)
    are_brackets = brackets in BRACKETS and (separator is not None or role in (ELEMENT_WEIGHTS, VECTOR))
    rule = "are those around lists, whose elements have a separator"
    cure = f"use one of {', '.join(BRACKETS)}, with a separator"
    yield brackets is None or are_brackets, Problem("brackets", rule, cure, brackets)
    first, last = entry.get("first"), entry.get("last")
    cure = "give the end where its newest elements are"
    yield first is None or last is None, Problem("first and last", "cut a list at both ends", cure)
    for key, most in (("first", first), ("last", last)):
        is_number = separator is not None and type(most) is int and most > 0
        rule = "must be a number of elements, of at least 1, that a list keeps"
        yield most is None or role == ELEMENT_WEIGHTS or is_number, Problem(key, rule, value=most)
    mark, is_list = entry.get("weights"), role == "sparse" and separator is not None
    rule = "must be one ASCII character, between an element of a list and its weight, that nothing else uses"
    is_good = is_list and is_mark(mark) and mark not in (*taken, separator)
    yield mark is None or is_good, Problem("weights", rule, 'such as ":"', mark)


_WORDS = {"integer": r"[+-]?[0-9]+(\.0*)?", "hex": r"[0-9a-fA-F]{1,8}", "string": r"(?s:.+)"}
"""The words that can be values of a sparse column."""


def _value_rules(entry: Mapping[str, Any], config: DatasetConfig) -> Rules:
    role, kind, padding, whole = entry["role"], entry.get("kind"), entry.get("padding"), entry.get("whole")
    is_list = role == "sparse" and entry.get("separator") is not None
    rule = "is the element that lists are filled up with, a text"
    cure = "put it in quotes, and give the column a separator"
    is_word = is_list and isinstance(padding, str) and len(padding.encode()) <= MAX_NULL
    yield padding is None or is_word, Problem("padding", rule, cure, padding)
    fits = re.fullmatch(_WORDS.get(str(kind), ""), str(padding)) is not None
    cure = "give another word, or kind: string"
    yield not is_word or fits, Problem("padding", f"must be a value of kind: {kind}", cure, padding)
    is_whole = isinstance(whole, bool) and (role, kind) == ("sparse", "string")
    rule = "must be true or false, of a sparse column of kind: string"
    yield whole is None or is_whole, Problem("whole", rule, value=whole)


def _element_weight_rules(entry: Mapping[str, Any], config: DatasetConfig) -> Rules:
    weights_of, is_weight = entry.get("weights_of"), entry["role"] == ELEMENT_WEIGHTS
    rule = f"names the list that a column with role: {ELEMENT_WEIGHTS} weighs"
    is_named = isinstance(weights_of, str) if is_weight else weights_of is None
    yield is_named, Problem("weights_of", rule, "give both, or neither")
    own = [key for key in ("kind", "first", "last") if entry.get(key) is not None]
    rule = "is taken from the list that the column weighs"
    yield (not (is_weight and own), Problem(listed(own), rule, "leave it out"))


def _format_rules(entry: Mapping[str, Any], config: DatasetConfig) -> Rules:
    if (form := entry.get("format")) is not None:
        rule = "is for columns with role: time, whose kind it replaces"
        yield entry["role"] == "time", Problem("format", rule, "leave it out")
        yield from ((False, problem) for problem in format_problems(form))


def _vector_rules(entry: Mapping[str, Any], config: DatasetConfig) -> Rules:
    size, is_vector = entry.get("size"), entry["role"] == VECTOR
    is_size = type(size) is int and 1 <= size <= MAX_SIZE
    rule = f"must be the numbers of each vector, from 1 to {MAX_SIZE}"
    yield not is_vector or is_size, Problem("size", rule, value=size)
    yield is_vector or size is None, Problem("size", f"is for columns with role: {VECTOR}", "leave it out")
    own = [key for key in ("kind", "first", "last") if is_vector and entry.get(key) is not None]
    yield not own, Problem(listed(own), f"is not a key of a column with role: {VECTOR}", "leave it out")
    is_free = not is_vector or entry.get("separator") is not None or config.delimiter != " "
    cure = "give another character"
    yield (is_free, Problem("separator", "is needed where columns are delimited by a blank", cure))
