"""Reads the description of a raw log, as in conf/dataset/*.yaml. Files with a header may have the columns in any order.

- {name: clicked, role: label}                                     # 0 or 1, or true and false
- {name: age, role: dense, kind: integer}                          # integer or float
- {name: items, role: sparse, kind: string, separator: "|"}        # integer, hex or string; a list
- {name: tags, role: sparse, kind: string, separator: ",", brackets: "[]"}  # lists as Python writes them: "['a', 'b']"
- {name: city, role: sparse, kind: string, whole: true}            # 1015.0 is 1015
- {name: topics, role: sparse, kind: string, separator: "|", weights: ":"}  # elements with weights: t1:0.5|t2:1
- {name: bought, role: sparse, kind: integer, separator: "|", padding: "0"}  # lists filled up with 0
- {name: seen, role: sparse, kind: string, separator: "|", last: 20}  # its last 20 elements, where the newest are;
                                                                   # first: 20 where the newest come first
- {name: boosted, role: dense, kind: score}                        # another model's probability of a click
- {name: shown_at, role: time, kind: iso}                          # seconds, milliseconds or iso; for derived columns
and splits
- {name: importance, role: weight}                               # how much the row counts: a number from 0 on
- {name: dwell, role: element_weights, weights_of: seen}         # how much each element of a list counts, in its order
- {name: query_text, role: vector, size: 384}                   # a vector in each row; in text: numbers between blanks,
                                                                   # or the given separator, also in brackets
- {name: left_at, role: time, format: "%d/%m/%Y %H:%M"}           # strptime's directives, in place of kind
- {name: session, role: ignore}

Where several columns have the role label, ``label`` names the one to learn, or ``labels`` all of them (``labels.py``).
Columns computed from these are listed under ``derived``; ``read_derived.py`` reads them.
- {name: hour, kind: hour, of: shown_at, zone: Asia/Tokyo}
- {name: shop_hour, kind: cross, of: [shop, hour]}
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dlrm_app.config.datasets import AUTO, DatasetConfig
from dlrm_app.errors import Problem, refuse_if
from dlrm_app.logs.column_rules import KEYS, MAX_NULL, entry_faults, is_mark
from dlrm_app.logs.labels import read_labels
from dlrm_app.logs.read_derived import DERIVED_KINDS, read_derived
from dlrm_app.logs.sources.quoted_breaks import Quoting
from dlrm_app.logs.spec import ELEMENT_WEIGHTS, FORMATTED, OTHER_LABEL, VECTOR, LogColumn, Spec
from dlrm_app.text import listed

_MAX_NAME = 220
"""Bytes of a column's name; file systems have 255 for the name of a file, which has marks of its own."""
_FILE_NAME = f"leave out /, NUL and a dot in front, and take at most {_MAX_NAME} bytes"


def cross_name(parts: Sequence[str]) -> str:
    """The name of a cross of ``encoding.crosses``."""
    return "_x_".join(map(str, parts))


def read_spec(config: DatasetConfig, crosses: object = None) -> Spec:
    """The format that ``config`` and ``crosses`` (encoding.crosses) describe. Raises ConfigError with every problem."""
    columns, column_faults = _read_columns(config)
    entries, cross_faults = _read_crosses(crosses)
    derived, derived_faults = read_derived([*(config.derived or []), *entries], columns)
    labels, label_faults = read_labels(config, [column.name for column in columns if column.role == "label"])
    main = labels[0].name if labels else config.label
    nulls, null_faults = _read_null_words(config.null_values)
    refuse_if(
        [
            *_mark_faults(config),
            *column_faults,
            *cross_faults,
            *derived_faults,
            *label_faults,
            *_whole_faults([*columns, *derived], "" if label_faults else main),
            *null_faults,
        ]
    )
    if main is not None:
        columns = _with_label_roles(columns, main, [label.name for label in labels[1:]])
    spec = Spec(
        config.name,
        config.delimiter,
        config.quote,
        config.header,
        tuple(columns),
        nulls,
        derived=tuple(derived),
        labels=tuple(labels) if len(labels) > 1 else (),
        quoting=Quoting(ord(config.delimiter), ord(config.quote))
        if config.quote and config.line_breaks
        else None,
    )
    return spec if spec.label is not None else spec.without_weight()


def with_crosses(spec: Spec, crosses: Sequence[Sequence[str]] | None) -> Spec:
    """``spec`` with ``crosses`` of its columns as last derived columns. Raises ConfigError if a name is taken."""
    kind = DERIVED_KINDS["cross"]
    made = [
        LogColumn(cross_name(parts), kind.role, kind.kind, rule="cross", of=tuple(parts))
        for parts in crosses or ()
    ]
    derived = (*spec.derived, *made)
    refuse_if(_whole_faults([*spec.columns, *derived], ""))
    return replace(spec, derived=derived)


def _mark_faults(config: DatasetConfig) -> list[Problem]:
    rule = "must be one ASCII character that no number holds, nor a line end"
    faults = [
        Problem(f"dataset.{key}", rule, value=mark)
        for key, mark in (("delimiter", config.delimiter), ("quote", config.quote or '"'))
        if not is_mark(mark)
    ]
    if config.quote == config.delimiter:
        faults.append(Problem("dataset.quote", "must differ from dataset.delimiter", value=config.quote))
    return faults


def _read_columns(config: DatasetConfig) -> tuple[list[LogColumn], list[Problem]]:
    columns, faults = [], []
    for index, entry in enumerate(config.columns):
        is_named = isinstance(entry, Mapping) and isinstance(entry.get("name"), str | int)
        if not is_named or "role" not in entry:
            place = f"dataset.columns[{index}]"
            faults.append(Problem(place, "must be a mapping with name and role", value=entry))
            continue
        place = f"dataset.columns[{index}] ({entry['name']})"
        faults += [problem.within(place) for problem in entry_faults(entry, config)]
        columns.append(LogColumn(**{key: entry.get(key) for key in KEYS}))
        if columns[-1].format is not None:
            columns[-1] = replace(columns[-1], kind=FORMATTED)
        if columns[-1].role == VECTOR and columns[-1].separator is None:
            columns[-1] = replace(columns[-1], separator=" ")
    return _as_their_lists(columns), faults + _element_weight_faults(columns)


def _read_crosses(crosses: object) -> tuple[list[dict[str, Any]], list[Problem]]:
    """Returns (entries of derived columns, problems) for ``crosses`` (encoding.crosses)."""
    if crosses in (None, AUTO):
        return [], []
    if not (isinstance(crosses, list) and all(isinstance(parts, list) for parts in crosses)):
        rule = "must hold lists of columns, such as [[shop, device]]"
        return [], [Problem("encoding.crosses", rule, value=crosses)]
    return [{"name": cross_name(parts), "kind": "cross", "of": parts} for parts in crosses], []


def _read_null_words(given: Sequence[str | None] | None) -> tuple[tuple[str, ...], list[Problem]]:
    # YAML reads NULL and null, without quotes, as nothing
    words = [word for each in given or () for word in (["NULL", "null"] if each is None else [each])]
    if any(not 1 <= len(word.encode()) <= MAX_NULL or "\n" in word for word in words):
        return (), [Problem("dataset.null_values", f"must be texts of one line and 1 to {MAX_NULL} bytes")]
    return tuple(words), []


def _with_label_roles(columns: Sequence[LogColumn], main: str, others: Sequence[str]) -> list[LogColumn]:
    """``columns``, where the label that is not ``main`` is one of the ``others``, or is ignored."""
    return [
        LogColumn(column.name, OTHER_LABEL if column.name in others else "ignore", "label")
        if column.role == "label" and column.name != main
        else column
        for column in columns
    ]


def _element_weight_faults(columns: Sequence[LogColumn]) -> list[Problem]:
    """Problems of element weights: those whose list does not exist, and lists that two columns weigh."""
    lists = [column.name for column in columns if column.role == "sparse" and column.separator is not None]
    weighing = [c for c in columns if c.role == ELEMENT_WEIGHTS and isinstance(c.weights_of, str)]
    faults = [
        Problem(
            f"dataset.columns: {column.name}.weights_of",
            f"must be a sparse column of lists, {listed(lists) if lists else 'and there is none'}",
            "give that column a separator, or name another one",
            column.weights_of,
        )
        for column in weighing
        if column.weights_of not in lists
    ]
    counts = Counter([column.weights_of for column in weighing] + [c.name for c in columns if c.weights])
    return faults + [
        Problem("dataset.columns", f"gives {name} the element weights of {count} columns", "keep one of them")
        for name, count in counts.items()
        if count > 1
    ]


def _as_their_lists(columns: Sequence[LogColumn]) -> list[LogColumn]:
    """``columns``, where element weights are written and cut as their lists are."""
    lists = {column.name: column for column in columns if column.role == "sparse"}
    return [
        replace(
            c,
            separator=c.separator or of.separator,
            first=of.first,
            last=of.last,
            brackets=c.brackets or (of.brackets if c.separator is None else None),
        )
        if c.role == ELEMENT_WEIGHTS and (of := lists.get(str(c.weights_of)))
        else c
        for c in columns
    ]


def _whole_faults(columns: list[LogColumn], label: str | None) -> list[Problem]:
    """Problems of all columns together. ``label``: the main one; empty if there are problems of labels already."""
    names = [column.name for column in columns if column.role != "ignore"]
    names += [column.written_weights.name for column in columns if column.weights]
    labels = [column.name for column in columns if column.role == "label"]
    weights = [column.name for column in columns if column.role == "weight"]
    twice = sorted((name for name, count in Counter(names).items() if count > 1), key=str)
    faults = [Problem("dataset.columns", f"names two columns {name}") for name in twice]
    if label is None and len(labels) > 1:
        both = " and ".join(labels)
        cure = "say dataset.label=NAME of the one to learn, or dataset.labels=[NAME, NAME] of several"
        faults.append(Problem("dataset.columns", f"gives {both} the role label", cure))
    if len(weights) > 1:
        rule = f"gives {' and '.join(weights)} the role weight, and a row has one weight"
        cure = "give the others role: ignore, or write their product"
        faults.append(Problem("dataset.columns", rule, cure))
    if label and label not in labels:
        rule = f"must be a column with the role label, {listed(labels)}"
        faults.append(Problem("dataset.label", rule, value=label))
    return faults + [
        Problem("dataset.columns", f"has a column {name!r}, and a column also names a file", _FILE_NAME)
        for name in names
        if not is_column_name(name)
    ]


def is_column_name(name: object) -> bool:
    """True if ``name`` can stand in the name of a file."""
    if not isinstance(name, str) or not 1 <= len(name.encode("utf-8", "replace")) <= _MAX_NAME:
        return False
    return "/" not in name and "\0" not in name and not name.startswith(".")
