"""Reads ``dataset.derived``: the columns that are computed from others, with every problem in them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dlrm_app.errors import ConfigError, Problem
from dlrm_app.logs.spec import LogColumn
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


DERIVED_KINDS = {
    "hour": DerivedKind("sparse", "integer", (_TIME,)),
    "weekday": DerivedKind("sparse", "integer", (_TIME,)),
    "seconds_since": DerivedKind("dense", "float", (_TIME, _TIME)),
    "in_list": DerivedKind("dense", "float", (_ONE, _LIST)),
    "cross": DerivedKind("sparse", "hex", (_ONE,)),
}
"""The kinds of derived columns, in the order in which they are computed. A cross has two or more parts."""


def read_derived(
    entries: Sequence[Any], columns: Sequence[LogColumn]
) -> tuple[list[LogColumn], list[Problem]]:
    """Returns (the columns that ``entries`` of dataset.derived declare, the problems of the others)."""
    faults: list[Problem] = []
    made = []
    for index, entry in enumerate(entries):
        is_named = isinstance(entry, Mapping) and isinstance(entry.get("name"), str)
        keys = {*entry} - {"zone"} if is_named and entry.get("kind") in CLOCKS else {*entry}
        if not is_named or keys != {*DERIVED_KEYS} or str(entry["kind"]) not in DERIVED_KINDS:
            form = f"{', '.join(DERIVED_KEYS)}, of kind {', '.join(DERIVED_KINDS)}, and zone for {' and '.join(CLOCKS)}"
            faults.append(Problem(f"dataset.derived[{index}]", f"must be a mapping with {form}", value=entry))
            continue
        name, kind, of = (entry[key] for key in DERIVED_KEYS)
        of = tuple(map(str, of if isinstance(of, list | tuple) else (of,)))
        column = LogColumn(name, DERIVED_KINDS[kind].role, DERIVED_KINDS[kind].kind, rule=kind, of=of)
        try:
            zone = entry.get("zone")
            made.append(column if zone is None else replace(column, zone=zone, offsets=offsets_of(str(zone))))
        except ConfigError as error:
            faults += [fault.within(f"dataset.derived[{index}]", ".") for fault in error.problems]
    by_name = {column.name: column for column in (*columns, *made)}
    faults += [fault.within(f"dataset.derived: {c.name}") for c in made for fault in _part_faults(c, by_name)]
    return made, faults


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
        if (what := _nature(by_name.get(part))) != rule
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
