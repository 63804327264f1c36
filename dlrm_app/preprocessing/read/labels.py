"""Several labels of a log: ``labels`` of its description, the main one first.

labels: [click, {order: {given: click, loss_weight: 2}}]
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dlrm_app.dataset.manifest import LearntLabel
from dlrm_app.errors import Problem
from dlrm_app.text import listed

KEY = "dataset.labels"
_KEYS = ("given", "loss_weight")


def read_labels(entries: Sequence[Any], columns: Sequence[str]) -> tuple[list[LearntLabel], list[Problem]]:
    """(the labels that ``entries`` describe, problems). ``columns``: those with the role label."""
    found: list[LearntLabel] = []
    problems = [] if entries else [Problem(KEY, "is empty", "name the main label, then the others")]
    for index, entry in enumerate(entries):
        given = {entry: {}} if isinstance(entry, str) else entry
        values = next(iter(given.values())) if isinstance(given, Mapping) and len(given) == 1 else None
        if not isinstance(values, Mapping):
            rule = "must be a column, or {column: {given: …, loss_weight: …}}"
            problems.append(Problem(f"{KEY}[{index}]", rule, value=entry))
            continue
        (name,) = map(str, given)
        faults = _faults(name, values, [label.name for label in found], columns)
        problems += [fault.within(f"{KEY}: {name}") for fault in faults]
        if not faults:
            found.append(LearntLabel(name, values.get("given"), float(values.get("loss_weight", 1))))
    return found, problems


def _faults(
    name: str, values: Mapping[str, Any], before: Sequence[str], columns: Sequence[str]
) -> list[Problem]:
    unknown = [str(key) for key in values if key not in _KEYS]
    weight, given = values.get("loss_weight", 1), values.get("given")
    is_weight = isinstance(weight, int | float) and not isinstance(weight, bool) and 0 < weight < float("inf")
    faults = (
        [] if name in columns else [Problem("", f"must be a column with the role label, {listed(columns)}")]
    )
    faults += [Problem("", "is named twice")] if name in before else []
    faults += (
        [Problem(listed(unknown), "is not a key of a label", "use given or loss_weight")] if unknown else []
    )
    faults += [] if is_weight else [Problem("loss_weight", "must be a number above 0", value=weight)]
    if given is not None and given not in before:
        rule = (
            f"must be a label listed before it ({listed(before)})" if before else "is not for the first label"
        )
        faults.append(Problem("given", rule, value=given))
    return faults
