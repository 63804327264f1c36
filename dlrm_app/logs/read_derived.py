"""Reads ``dataset.derived``: the columns that are computed from others, with every problem in them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dlrm_app.errors import ConfigError, Problem
from dlrm_app.logs.spec import LOOKED_UP, LogColumn
from dlrm_app.logs.zones import offsets_of

DERIVED_KEYS = ("name", "kind", "of")


CLOCKS = ("hour", "weekday")
"""Kinds of derived columns that may have a ``zone``."""


class DerivedKind(NamedTuple):
    """A kind of derived columns: their role, the kind of their values, and the inputs that they need."""

    role: str
    kind: str
    parts: tuple[str, ...]


_TIME, _ONE, _LIST = "a column of role time", "a sparse column of one value", "a sparse column of lists"
_SPARSE = f"{_ONE} or {_LIST.removeprefix('a sparse column ')}"


DERIVED_KINDS = {
    "hour": DerivedKind("sparse", "integer", (_TIME,)),
    "weekday": DerivedKind("sparse", "integer", (_TIME,)),
    "seconds_since": DerivedKind("dense", "float", (_TIME, _TIME)),
    "in_list": DerivedKind("dense", "float", (_ONE, _LIST)),
    "cross": DerivedKind("sparse", "hex", (_ONE,)),
    "vectors": DerivedKind(LOOKED_UP, "", (_SPARSE,)),
}
"""The kinds of derived columns, in the order in which they are computed. A cross has two or more parts. Vectors are
looked up when rows are encoded, and the kind of their values is that of the column that they are ``of``.
"""
_OWN_KEYS = {"hour": {"zone"}, "weekday": {"zone"}, "vectors": {"file"}}
"""Kind → the keys that it alone has."""


def read_derived(
    entries: Sequence[Any], columns: Sequence[LogColumn]
) -> tuple[list[LogColumn], list[Problem]]:
    """Returns (the columns that ``entries`` of dataset.derived declare, the problems of the others)."""
    faults: list[Problem] = []
    made = []
    for index, entry in enumerate(entries):
        is_named = isinstance(entry, Mapping) and isinstance(entry.get("name"), str)
        keys = {*entry} - _OWN_KEYS.get(str(entry.get("kind")), set()) if is_named else set()
        needs_file = is_named and entry.get("kind") == "vectors" and not isinstance(entry.get("file"), str)
        if keys != {*DERIVED_KEYS} or str(entry["kind"]) not in DERIVED_KINDS or needs_file:
            form = (
                f"{', '.join(DERIVED_KEYS)}, of kind {', '.join(DERIVED_KINDS)}, zone for {' and '.join(CLOCKS)}, and "
                "file for vectors"
            )
            faults.append(Problem(f"dataset.derived[{index}]", f"must be a mapping with {form}", value=entry))
            continue
        name, kind, of = (entry[key] for key in DERIVED_KEYS)
        of = tuple(map(str, of if isinstance(of, list | tuple) else (of,)))
        column = LogColumn(name, DERIVED_KINDS[kind].role, DERIVED_KINDS[kind].kind, rule=kind, of=of)
        if kind == "vectors":
            column = _like_its_values(replace(column, file=entry["file"]), columns)
        try:
            zone = entry.get("zone")
            made.append(column if zone is None else replace(column, zone=zone, offsets=offsets_of(str(zone))))
        except ConfigError as error:
            faults += [fault.within(f"dataset.derived[{index}]", ".") for fault in error.problems]
    by_name = {column.name: column for column in (*columns, *made)}
    faults += [fault.within(f"dataset.derived: {c.name}") for c in made for fault in _part_faults(c, by_name)]
    return made, faults


def _like_its_values(column: LogColumn, columns: Sequence[LogColumn]) -> LogColumn:
    """``column``, whose values are those of the column that it is ``of``."""
    of = next((each for each in columns if (each.name,) == column.of), None)
    return column if of is None else replace(column, kind=of.kind, separator=of.separator)


def _part_faults(column: LogColumn, by_name: Mapping[str, LogColumn]) -> list[Problem]:
    """Reasons why the derived ``column`` cannot be computed from the columns that it names."""
    wanted = DERIVED_KINDS[column.rule or ""].parts
    wanted *= max(len(column.of), 2) if column.rule == "cross" else 1
    if len({*column.of}) != len(wanted):
        return [
            Problem(
                "of",
                f"must name {len(wanted)} different columns, {', then '.join(wanted)}",
                value=[*column.of],
            )
        ]
    faults = [
        Problem(str(part), f"must be {rule}, it is {what}")
        for part, rule in zip(column.of, wanted, strict=True)
        if (what := _nature(by_name.get(part))) != rule and not (rule == _SPARSE and what in (_ONE, _LIST))
    ]
    if not faults and _LIST in wanted and len({by_name[part].kind for part in column.of}) > 1:
        rule = f"must name columns of one kind, {' and '.join(column.of)} differ"
        faults.append(Problem("of", rule))
    return faults


def _nature(column: LogColumn | None) -> str:
    """The kind of input that ``column`` is for a derived column, in words."""
    if column is None:
        return "no column"
    if column.role == "time":
        return _TIME
    if column.role != "sparse" or column.rule == "cross":
        return "a cross" if column.role == "sparse" else f"of role {column.role}"
    return _ONE if column.separator is None else _LIST
