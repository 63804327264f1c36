"""The format of a raw click log, from conf/dataset/*.yaml. Files with a header may have the columns in any order.

- {name: clicked, role: label}                                     # 0 or 1, or true and false
- {name: age, role: dense, kind: integer}                          # integer or float
- {name: items, role: sparse, kind: string, separator: "|"}        # integer, hex or string; a list
- {name: tags, role: sparse, kind: string, separator: ",", brackets: "[]"}  # lists as Python writes them: "['a', 'b']"
- {name: seen, role: sparse, kind: string, separator: "|", last: 20}  # its last 20 elements, where the newest are;
                                                                   # first: 20 where the newest come first
- {name: boosted, role: dense, kind: score}                        # another model's probability of a click
- {name: shown_at, role: time, kind: iso}                          # seconds, milliseconds or iso; for derived columns
- {name: importance, role: weight}                               # how much the row counts: a number from 0 on
- {name: dwell, role: element_weights, weights_of: seen}         # how much each element of a list counts, in its order
- {name: left_at, role: time, format: "%d/%m/%Y %H:%M"}           # strptime's directives, in place of kind
- {name: session, role: ignore}

Where several columns have the role label, ``label`` names the one to learn, or ``labels`` all of them (``labels.py``).
Columns computed from these are listed under ``derived``; ``derived.py`` computes them.
- {name: hour, kind: hour, of: shown_at, zone: Asia/Tokyo}
- {name: shop_hour, kind: cross, of: [shop, hour]}
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from dlrm_app.config.datasets import AUTO, DatasetConfig
from dlrm_app.dataset.manifest import LearntLabel
from dlrm_app.errors import ConfigError, Problem, refuse_if
from dlrm_app.logs.labels import read_labels
from dlrm_app.logs.time_format import format_problems
from dlrm_app.logs.zones import Offsets, offsets_of
from dlrm_app.text import listed

SCORE = "score"
OTHER_LABEL = "other label"
"""The role, given here alone, of the labels beside the main one: 0, 1 or missing."""
FORMATTED = "formatted"
"""The kind of times that have a ``format``."""
ELEMENT_WEIGHTS = "element_weights"
ROLES = ("label", "weight", "dense", "sparse", ELEMENT_WEIGHTS, "time", "ignore")
KINDS = {
    "dense": ("integer", "float", SCORE),
    "sparse": ("integer", "hex", "string"),
    "time": ("seconds", "milliseconds", "iso", FORMATTED),
}
KEYS = ("name", "role", "kind", "separator", "first", "last", "format", "weights_of", "brackets")
BRACKETS = ("[]", "()", "{}")
DERIVED_KEYS = ("name", "kind", "of")
CLOCKS = ("hour", "weekday")
"""Kinds of derived columns that may have a ``zone``."""
MAX_NULL = 255


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


@dataclass(frozen=True)
class LogColumn:
    """A column of the raw log, or a derived one. ``separator`` is set if its values are lists, of which the ``first``
    or the ``last`` elements are kept; None: all. ``format``: of a time of kind FORMATTED. ``weights_of``: the list
    whose elements these numbers weigh. ``brackets``: those around each list; blanks and quotes around its elements are
    left out too.

    ``rule`` and ``of``: the kind and the inputs of a derived column. ``zone``: the time zone of its clock, with the
    ``offsets`` that this machine knows; None for UTC.
    """

    name: str
    role: str
    kind: str | None = None
    separator: str | None = None
    first: int | None = None
    last: int | None = None
    format: str | None = None
    weights_of: str | None = None
    brackets: str | None = None
    rule: str | None = None
    of: tuple[str, ...] = ()
    zone: str | None = None
    offsets: Offsets = ()

    @property
    def derivation(self) -> dict[str, Any] | None:
        """The derivation, in the manifest's form; None for a column of the log."""
        if self.rule is None:
            return None
        clock = {"zone": self.zone, "offsets": list(map(list, self.offsets))} if self.zone else {}
        return {"kind": self.rule, "of": list(self.of), **clock}


@dataclass(frozen=True)
class Spec:
    """The raw log's format. ``delimiter`` and ``quote`` are single bytes.

    ``null_values``: the null words. ``order``: the columns in the order of one file, if it differs from ``columns``.
    ``derived``: columns computed from these. ``by_position``: Parquet with other names is read by its columns' order.
    ``labels``: those of rows with several, the main one first.
    """

    name: str
    delimiter: str
    quote: str | None
    header: bool
    columns: tuple[LogColumn, ...]
    null_values: tuple[str, ...] = ()
    order: tuple[LogColumn, ...] = ()
    derived: tuple[LogColumn, ...] = ()
    by_position: bool = False
    labels: tuple[LearntLabel, ...] = ()

    @property
    def fields(self) -> tuple[LogColumn, ...]:
        """The columns in the order of the file."""
        return self.order or self.columns

    @cached_property
    def label(self) -> str | None:
        """The label column's name, if there is one."""
        return next((column.name for column in self.columns if column.role == "label"), None)

    @cached_property
    def weight(self) -> str | None:
        """The name of the column with the weights of the rows, if there is one."""
        return next((column.name for column in self.columns if column.role == "weight"), None)

    @cached_property
    def dense(self) -> list[LogColumn]:
        """The dense columns, derived ones last."""
        return [column for column in (*self.columns, *self.derived) if column.role == "dense"]

    @property
    def numbers(self) -> list[LogColumn]:
        """The dense columns, without other models' scores."""
        return [column for column in self.dense if column.kind != SCORE]

    @cached_property
    def sparse(self) -> list[LogColumn]:
        """The sparse columns, derived ones last."""
        return [column for column in (*self.columns, *self.derived) if column.role == "sparse"]

    @cached_property
    def element_weights(self) -> list[LogColumn]:
        """The columns with the weights of lists' elements."""
        return [column for column in self.columns if column.role == ELEMENT_WEIGHTS]

    @cached_property
    def times(self) -> list[LogColumn]:
        """The times, which are read only for derived columns."""
        return [column for column in self.columns if column.role == "time"]

    @property
    def is_weighted(self) -> bool:
        """True if rows have weights."""
        return self.weight is not None

    @cached_property
    def other_labels(self) -> list[LogColumn]:
        """The columns of other labels than the main one, in the order of ``labels``."""
        columns = {column.name: column for column in self.columns if column.role == OTHER_LABEL}
        return [columns[label.name] for label in self.labels[1:]]

    @property
    def beside(self) -> list[LogColumn]:
        """The columns of numbers that are read beside the dense ones: the weight, other labels, then the times."""
        weight = (column for column in self.columns if column.role == "weight")
        return [*weight, *self.other_labels, *self.times]

    def without_label(self) -> "Spec":
        """The format of files without the label column and without other labels; weights are not read."""
        columns = tuple(c for c in self.columns if "label" not in (c.role, c.kind))
        return replace(self, columns=columns, labels=()).without_weight()

    def without_weight(self) -> "Spec":
        """The format of rows that are scored, whose weights do not matter: files need not have them."""
        return replace(
            self, columns=tuple(map(_unweighted, self.columns)), order=tuple(map(_unweighted, self.order))
        )

    def in_columns(self, names: Sequence[str], labels: bool | None, file: str, cure: str) -> "Spec":
        """The format of ``file``, whose columns are ``names``; columns that are not described are ignored.

        ``labels``: True if the label is read; None reads it if it exists. Raises ConfigError, with ``cure``, for
        missing columns.
        """
        alike = {name.strip().casefold(): name for name in names}
        if labels is None:
            labels = (self.label or "").casefold() in alike
        spec = self if labels else self.without_label()
        known = {column.name: column for column in spec.columns}
        wanted = [column.name for column in spec.columns if column.role != "ignore"]
        counts = Counter(names)
        faults = [Problem(file, f"names {name} twice") for name in wanted if counts[name] > 1]
        if lacking := [name for name in wanted if not counts[name]]:
            others = [f"{alike[n.casefold()]!r} is not {n!r}" for n in lacking if n.casefold() in alike]
            hint = f" ({', '.join(others[:3])}: case and spaces count)" if others else ""
            known_names = f"{', '.join(lacking)}{hint}; it has {listed(names, 12)}"
            faults.append(Problem(file, f"lacks the columns {known_names}", cure))
        refuse_if(faults)
        return replace(spec, order=tuple(known.get(name, LogColumn(name, "ignore")) for name in names))


def _unweighted(column: LogColumn) -> LogColumn:
    return replace(column, role="ignore") if column.role == "weight" else column


class Cures(NamedTuple):
    """What to do about a file that is not as described. ``unlabelled``: the setting for one without a label."""

    unlabelled: str
    columns: str = "correct dataset.columns"
    header: str = "set dataset.header=true"
    no_header: str = "set dataset.header=false"
    by_position: str = "input.by_position=true"


def list_slots(spec: Spec) -> dict[str, tuple[bool, int]]:
    """Sparse column → (True if its values are lists, the number of its array in the parser)."""
    slots, counts = {}, [0, 0]
    for column in spec.sparse:
        is_list = column.separator is not None
        slots[column.name] = (is_list, counts[is_list])
        counts[is_list] += 1
    return slots


def weight_slots(spec: Spec) -> dict[str, tuple[int, int]]:
    """Column of element weights → (the number of its array in the parser, behind the lists; that of its list)."""
    slots = list_slots(spec)
    first = sum(is_list for is_list, _ in slots.values())
    return {
        column.name: (slot, slots[column.weights_of or ""][1])
        for slot, column in enumerate(spec.element_weights, first)
    }


def cross_name(parts: Sequence[str]) -> str:
    """The name of a cross of ``encoding.crosses``."""
    return "_x_".join(map(str, parts))


def read_spec(config: DatasetConfig, crosses: Any = None) -> Spec:
    """The format that ``config`` and ``crosses`` (encoding.crosses) describe. Raises ConfigError with every problem."""
    rule = "must be one ASCII character that no number holds, nor a line end"
    problems = [
        Problem(f"dataset.{key}", rule, value=mark)
        for key, mark in (("delimiter", config.delimiter), ("quote", config.quote or '"'))
        if not _is_mark(mark)
    ]
    if config.quote == config.delimiter:
        problems.append(Problem("dataset.quote", "must differ from dataset.delimiter", value=config.quote))
    columns = []
    for index, entry in enumerate(config.columns):
        is_named = isinstance(entry, Mapping) and isinstance(entry.get("name"), str | int)
        if not is_named or "role" not in entry:
            problems.append(
                Problem(f"dataset.columns[{index}]", "must be a mapping with name and role", value=entry)
            )
            continue
        problems += _column_faults(index, entry, config)
        columns.append(LogColumn(**{key: entry.get(key) for key in KEYS}))
        if columns[-1].format is not None:
            columns[-1] = replace(columns[-1], kind=FORMATTED)
    problems += _element_weight_faults(columns)
    columns = _as_their_lists(columns)
    crosses = [] if crosses in (None, AUTO) else crosses
    if not (isinstance(crosses, list) and all(isinstance(parts, list) for parts in crosses)):
        problems.append(
            Problem("encoding.crosses", "must hold lists of columns, such as [[shop, device]]", value=crosses)
        )
        crosses = []
    entries = [{"name": cross_name(parts), "kind": "cross", "of": parts} for parts in crosses]
    derived = _read_derived([*(config.derived or []), *entries], columns, problems)
    labels, faults = read_labels(config, [column.name for column in columns if column.role == "label"])
    problems += faults
    main = labels[0].name if labels else config.label
    problems += _whole_faults([*columns, *derived], "" if faults else main)
    if main is not None:
        others = {label.name: OTHER_LABEL for label in labels[1:]}
        columns = [
            LogColumn(c.name, others.get(c.name, "ignore"), "label")
            if c.role == "label" and c.name != main
            else c
            for c in columns
        ]
    # YAML reads NULL and null, without quotes, as nothing
    given = [
        text for each in config.null_values or () for text in (["NULL", "null"] if each is None else [each])
    ]
    if any(not 1 <= len(text.encode()) <= MAX_NULL or "\n" in text for text in given):
        problems.append(
            Problem("dataset.null_values", f"must be texts of one line and 1 to {MAX_NULL} bytes")
        )
    refuse_if(problems)
    form = config.name, config.delimiter, config.quote, config.header
    several = tuple(labels) if len(labels) > 1 else ()
    spec = Spec(*form, tuple(columns), tuple(given), derived=tuple(derived), labels=several)
    return spec if spec.label is not None else spec.without_weight()


def _is_mark(value: object) -> bool:
    """True if the parser can distinguish ``value`` from the digits, signs and points of numbers."""
    if not (isinstance(value, str) and len(value) == 1 and value.isascii()):
        return False
    return not value.isalnum() and value not in "\r\n\0+-."


def _column_faults(index: int, entry: Mapping[str, Any], config: DatasetConfig) -> list[Problem]:
    role, kind, separator, first, last, form, weights_of, brackets = (entry.get(key) for key in KEYS[1:])
    kinds = tuple(each for each in KINDS.get(str(role), ()) if each != FORMATTED)
    unknown = [key for key in entry if key not in KEYS]
    may_repeat = brackets is not None and config.quote is not None  # the delimiter, within quotes
    taken = (
        config.quote,
        *([] if may_repeat else [config.delimiter]),
        *(f"{brackets} \t" if brackets else ""),
    )
    is_separator = _is_mark(separator) and separator not in taken
    removed = ": times are in UTC, or name their offset" * ("offset" in unknown)
    rules = [
        (
            not unknown,
            Problem(listed(unknown), f"is not a key of a column{removed}", f"use {', '.join(KEYS)}"),
        ),
        (role in ROLES, Problem("role", f"must be one of {', '.join(ROLES)}", value=role)),
        (
            not kinds or (kind in kinds if form is None else role != "time" or kind is None),
            Problem("kind", f"of a {role} column must be one of {', '.join(kinds)}", value=kind),
        ),
        (
            separator is None or role in ("sparse", ELEMENT_WEIGHTS),
            Problem("separator", "is for sparse columns, whose values may be lists"),
        ),
        (
            isinstance(weights_of, str) if role == ELEMENT_WEIGHTS else weights_of is None,
            Problem(
                "weights_of",
                f"names the list that a column with role: {ELEMENT_WEIGHTS} weighs",
                "give both, or neither",
            ),
        ),
        (
            separator is None or is_separator,
            Problem("separator", "must be one ASCII character that nothing else uses", value=separator),
        ),
        (
            brackets is None or (brackets in BRACKETS and (separator is not None or role == ELEMENT_WEIGHTS)),
            Problem(
                "brackets",
                "are those around lists, whose elements have a separator",
                f"use one of {', '.join(BRACKETS)}, with a separator",
                brackets,
            ),
        ),
        (
            first is None or last is None,
            Problem(
                "first and last", "cut a list at both ends", "give the end where its newest elements are"
            ),
        ),
        *(
            (
                most is None
                or role == ELEMENT_WEIGHTS
                or (separator is not None and type(most) is int and most > 0),
                Problem(key, "must be a number of elements, of at least 1, that a list keeps", value=most),
            )
            for key, most in (("first", first), ("last", last))
        ),
    ]
    if role == ELEMENT_WEIGHTS:
        given = [
            key for key, value in (("kind", kind), ("first", first), ("last", last)) if value is not None
        ]
        problem = Problem(listed(given), "is that of the list that it weighs", "leave it out")
        rules.append((not given, problem))
    if form is not None:
        rule = "is for columns with role: time, whose kind it replaces"
        rules.append((role == "time", Problem("format", rule, "leave it out")))
        rules += [(False, problem) for problem in format_problems(form)]
    place = f"dataset.columns[{index}] ({entry['name']})"
    return [problem.within(place) for is_kept, problem in rules if not is_kept]


def _element_weight_faults(columns: Sequence[LogColumn]) -> list[Problem]:
    """Problems: weights of what is no list, and lists that two columns weigh."""
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
    counts = Counter(column.weights_of for column in weighing)
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


def _read_derived(entries: Any, columns: Sequence[LogColumn], faults: list[Problem]) -> list[LogColumn]:
    """The columns that ``entries`` (dataset.derived) declare; adds problems to ``faults``."""
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
    known = {column.name: column for column in (*columns, *made)}
    faults += [fault.within(f"dataset.derived: {c.name}") for c in made for fault in _part_faults(c, known)]
    used = {name for column in made for name in column.of}
    faults += [
        Problem(
            f"dataset.columns: {column.name}",
            "is a time of which dataset.derived makes nothing",
            "give it role: ignore",
        )
        for column in columns
        if column.role == "time" and column.name not in used
    ]
    return made


def _part_faults(column: LogColumn, known: Mapping[str, LogColumn]) -> list[Problem]:
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
        if (what := _nature(known.get(part))) != rule
    ]
    if not faults and _LIST in wanted and len({known[part].kind for part in column.of}) > 1:
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


def _whole_faults(columns: list[LogColumn], label: str | None) -> list[Problem]:
    """Problems of all columns together. ``label``: the main one; empty if there are problems of labels already."""
    names = [column.name for column in columns if column.role != "ignore"]
    labels = [column.name for column in columns if column.role == "label"]
    weights = [column.name for column in columns if column.role == "weight"]
    twice = sorted((name for name, count in Counter(names).items() if count > 1), key=str)
    faults = [Problem("dataset.columns", f"names two columns {name}") for name in twice]
    if label is None and len(labels) > 1:
        both = " and ".join(labels)
        faults.append(
            Problem(
                "dataset.columns",
                f"gives {both} the role label",
                "say dataset.label=NAME of the one to learn, or dataset.labels=[NAME, NAME] of several",
            )
        )
    if len(weights) > 1:
        rule = f"gives {' and '.join(weights)} the role weight, and a row has one weight"
        faults.append(
            Problem("dataset.columns", rule, "give the others role: ignore, or write their product")
        )
    if label and label not in labels:
        faults.append(
            Problem("dataset.label", f"must be a column with the role label, {listed(labels)}", value=label)
        )
    return faults + [
        Problem("dataset.columns", f"has a column {name!r}, and a column also names a file", "leave out /")
        for name in names
        if not is_column_name(name)
    ]


def is_column_name(name: object) -> bool:
    """True if ``name`` can stand in the name of a file."""
    return isinstance(name, str) and name != "" and "/" not in name and not name.startswith(".")
