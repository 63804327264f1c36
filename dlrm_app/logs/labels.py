"""Several labels of a log: ``labels`` of its description, the main one first.

labels: [click, {order: {given: click, loss_weight: 2}}]
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dlrm_app.config.datasets import DatasetConfig
from dlrm_app.dataset.manifest import LearntLabel
from dlrm_app.errors import Problem
from dlrm_app.logs.spec import Cures, Spec
from dlrm_app.text import listed

KEY = "dataset.labels"
_KEYS = ("given", "loss_weight")
MAX_WEIGHT = 1e6
"""Beyond it the other labels' part of a loss is lost to float32's rounding."""


def with_one_label(config: DatasetConfig) -> DatasetConfig:
    """``config`` with ``label`` in place of ``labels`` that name one column: they mean the same."""
    match config.labels:
        case [str(name)] if config.label is None:
            return replace(config, label=name, labels=None)
    return config


def read_labels(config: DatasetConfig, columns: Sequence[str]) -> tuple[list[LearntLabel], list[Problem]]:
    """(the labels that ``config.labels`` describes, problems). ``columns``: those with the role label."""
    entries = config.labels
    if entries is None:
        return [], []
    found: list[LearntLabel] = []
    names: list[str] = []
    problems = [] if entries else [Problem(KEY, "is empty", "name the main label, then the others")]
    if config.label is not None:
        cure = f"leave out dataset.label, or add {KEY}=null"
        problems.append(Problem("dataset.label", f"and {KEY} both name the label", cure, config.label))
    for index, entry in enumerate(entries):
        given = {entry: {}} if isinstance(entry, str) else entry
        values = next(iter(given.values())) if isinstance(given, Mapping) and len(given) == 1 else None
        if not isinstance(values, Mapping):
            rule, cure = "must be a column, or a column with settings", f"such as {{order: {{{_EXAMPLE}}}}}"
            problems.append(Problem(f"{KEY}[{index}]", rule, cure, entry))
            continue
        (name,) = map(str, given)
        faults = [*_name_faults(name, names, columns), *_setting_faults(values, names, len(entries) > 1)]
        problems += [fault.within(f"{KEY}: {name}") for fault in faults]
        names.append(name)
        if not faults:
            found.append(LearntLabel(name, values.get("given"), float(values.get("loss_weight", 1))))
    return found, problems


_EXAMPLE = "given: click, loss_weight: 2"


def _name_faults(name: str, before: Sequence[str], columns: Sequence[str]) -> list[Problem]:
    """Problems of a label's name. ``before``: the labels before it."""
    if name in before:
        return [Problem("", "is named twice", "name each label once")]
    if "|" in name:  # its metrics would be those of a label given another
        return [Problem("", "has a name with |, and order|click stands for order given click", "rename it")]
    if name not in columns:
        cure = f"give its column role: label, or use one of {listed(columns)}"
        return [Problem("", "is not a column with the role label", cure)]
    return []


def _setting_faults(values: Mapping[str, Any], before: Sequence[str], has_others: bool) -> list[Problem]:
    """Problems of a label's settings. ``before``: the labels before it; ``has_others``: it is not the only one."""
    faults = []
    if unknown := [str(key) for key in values if key not in _KEYS]:
        faults.append(Problem(listed(unknown), "is not a key of a label", f"use {' or '.join(_KEYS)}"))
    weight, given = values.get("loss_weight", 1), values.get("given")
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not is_number or not 0 < weight <= MAX_WEIGHT:
        rule = f"must be a number above 0, up to {MAX_WEIGHT:g}"
        faults.append(Problem("loss_weight", rule, "such as 2", weight))
    elif not has_others and "loss_weight" in values:
        faults.append(
            Problem("loss_weight", "weighs a label against others, and there are none", "leave it out")
        )
    if given is not None and not before:
        faults.append(Problem("given", "is not for the first label", "leave it out", given))
    elif given is not None and given not in before:
        faults.append(Problem("given", "must be a label before it", f"use one of {listed(before)}", given))
    return faults


def cure_of_lacking(spec: Spec, names: Collection[str], labels: bool | None, cures: Cures) -> str:
    """The addition to the cure of a file with columns ``names``: rows to score may lack labels."""
    lacking = [column.name for column in spec.other_labels if column.name not in names]
    if labels is not None or spec.label not in names or not lacking:
        return ""
    return f"; or leave the labels out by {cures.unlabelled}, if {listed(lacking)} is not known yet"
