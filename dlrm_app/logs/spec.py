"""The format of a raw click log: its columns and their roles. ``read_spec`` reads it from a description."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from dlrm_app.dataset.manifest import LearntLabel
from dlrm_app.errors import Problem, refuse_if
from dlrm_app.logs.sources.quoted_breaks import Quoting
from dlrm_app.logs.zones import Offsets
from dlrm_app.text import listed

SCORE = "score"
OTHER_LABEL = "other label"
"""The role, given here alone, of all labels except the main one: 0, 1 or missing."""
KEY_KINDS = ("integer", "hex", "string")
"""The kinds of sparse columns."""
FORMATTED = "formatted"
"""The kind of times that have a ``format``."""
ELEMENT_WEIGHTS = "element_weights"
VECTOR = "vector"
"""The role of columns whose values are vectors of ``size`` numbers."""
LOOKED_UP = "looked up"
"""The role, of derived columns alone, of those that look vectors up by the values of another column."""


@dataclass(frozen=True)
class LogColumn:
    """A column of the raw log, or a derived one.

    ``separator``: the mark between the elements, if the values are lists.
    ``first``, ``last``: the number of elements of a list that are kept, from its beginning or its end; None: all.
    ``format``: the format of a time of kind FORMATTED.
    ``weights_of``: the list whose elements these numbers weigh.
    ``brackets``: the brackets around each list; blanks and quotes around its elements are left out too.
    ``weights``: the mark between an element and its weight.
    ``padding``: the element that fills lists up to one length.
    ``whole``: numbers among strings are whole, so that 1015.0 is 1015.
    ``size``: the numbers of a vector.
    ``is_kept``: its keys are read for the dataset's ``kept`` columns alone.
    ``rule``, ``of``: the kind and the inputs of a derived column.
    ``zone``: the time zone of a derived column's clock; None for UTC.
    ``offsets``: the zone's offsets that this machine knows.
    ``file``: the file of the vectors that a derived column looks up.
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
    weights: str | None = None
    padding: str | None = None
    whole: bool | None = None
    size: int | None = None
    is_kept: bool = False
    rule: str | None = None
    of: tuple[str, ...] = ()
    zone: str | None = None
    offsets: Offsets = ()
    file: str | None = None

    @property
    def derivation(self) -> dict[str, Any] | None:
        """The derivation, in the manifest's form; None for a column of the log."""
        if self.rule is None:
            return None
        clock = {"zone": self.zone, "offsets": list(map(list, self.offsets))} if self.zone else {}
        return {"kind": self.rule, "of": list(self.of), **clock}

    @property
    def written_weights(self) -> "LogColumn":
        """The element weights that are written within this list."""
        return LogColumn(
            f"{self.name}_weights",
            ELEMENT_WEIGHTS,
            separator=self.separator,
            first=self.first,
            last=self.last,
            weights_of=self.name,
        )


@dataclass(frozen=True)
class Spec:
    """The raw log's format.

    ``delimiter``, ``quote``: single bytes.
    ``null_values``: the null words.
    ``order``: the columns in the order of one file, if it differs from ``columns``.
    ``derived``: columns computed from these.
    ``by_position``: Parquet columns with other names are read by their order.
    ``labels``: the labels if rows have several, the main one first.
    ``quoting``: that of texts if values in quotes may hold line breaks.
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
    quoting: Quoting | None = None

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
        """The sparse columns that models may read, derived ones last."""
        columns = (*self.columns, *self.derived)
        return [column for column in columns if column.role == "sparse" and not column.is_kept]

    @cached_property
    def kept(self) -> list[LogColumn]:
        """The columns whose keys are read for the dataset's ``kept`` columns alone."""
        return [column for column in self.columns if column.is_kept]

    @cached_property
    def element_weights(self) -> list[LogColumn]:
        """The weights of lists' elements: columns of their own, then those that are written within lists."""
        own = [column for column in self.columns if column.role == ELEMENT_WEIGHTS]
        return own + [column.written_weights for column in self.sparse if column.weights is not None]

    @cached_property
    def vectors(self) -> list[LogColumn]:
        """The columns of vectors, a vector in each row."""
        return [column for column in self.columns if column.role == VECTOR]

    @cached_property
    def looked_up(self) -> list[LogColumn]:
        """The columns that look vectors up by the values of a sparse column."""
        return [column for column in self.derived if column.role == LOOKED_UP]

    @cached_property
    def times(self) -> list[LogColumn]:
        """The times, which are read for derived columns and for splits."""
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
    def extra_numbers(self) -> list[LogColumn]:
        """The columns of numbers read in addition to the dense ones: the weight, other labels, then the times."""
        weight = (column for column in self.columns if column.role == "weight")
        return [*weight, *self.other_labels, *self.times]

    def keeping(self, names: Sequence[str]) -> "Spec":
        """The format in which the ignored columns among ``names`` are read as keys, by their kind or as strings."""

        def kept(columns: tuple[LogColumn, ...]) -> tuple[LogColumn, ...]:
            return tuple(
                replace(
                    column,
                    role="sparse",
                    kind=column.kind if column.kind in KEY_KINDS else "string",
                    is_kept=True,
                )
                if column.role == "ignore" and column.name in names
                else column
                for column in columns
            )

        return replace(self, columns=kept(self.columns), order=kept(self.order))

    def without_label(self) -> "Spec":
        """The format of files without the label column and without other labels; weights are not read."""
        columns = tuple(c for c in self.columns if "label" not in (c.role, c.kind))
        return replace(self, columns=columns, labels=()).without_weight()

    @cached_property
    def derived_from(self) -> frozenset[str]:
        """The columns that derived ones are computed from."""
        return frozenset(name for column in self.derived for name in column.of)

    def without_unused_times(self) -> "Spec":
        """The format of rows that are scored: files need not have a time that only decided the splits of training."""

        def without(columns: tuple[LogColumn, ...]) -> tuple[LogColumn, ...]:
            return tuple(
                replace(column, role="ignore")
                if column.role == "time" and column.name not in self.derived_from
                else column
                for column in columns
            )

        return replace(self, columns=without(self.columns), order=without(self.order))

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
        by_lower = {name.strip().casefold(): name for name in names}
        if labels is None:
            labels = (self.label or "").casefold() in by_lower
        spec = self if labels else self.without_label()
        by_name = {column.name: column for column in spec.columns}
        wanted = [column.name for column in spec.columns if column.role != "ignore"]
        counts = Counter(names)
        faults = [Problem(file, f"names {name} twice") for name in wanted if counts[name] > 1]
        if lacking := [name for name in wanted if not counts[name]]:
            others = [f"{by_lower[n.casefold()]!r} is not {n!r}" for n in lacking if n.casefold() in by_lower]
            hint = f" ({', '.join(others[:3])}: case and spaces count)" if others else ""
            known_names = f"{', '.join(lacking)}{hint}; it has {listed(names, 12)}"
            faults.append(Problem(file, f"lacks the columns {known_names}", cure))
        refuse_if(faults)
        return replace(spec, order=tuple(by_name.get(name, LogColumn(name, "ignore")) for name in names))


def _unweighted(column: LogColumn) -> LogColumn:
    return replace(column, role="ignore") if column.role == "weight" else column


class Cures(NamedTuple):
    """Cures for a file that is not as described. ``unlabelled``: the setting for one without a label."""

    unlabelled: str
    columns: str = "correct dataset.columns"
    header: str = "set dataset.header=true"
    no_header: str = "set dataset.header=false"
    by_position: str = "input.by_position=true"
    quote: str = "set dataset.quote='\"'"


def list_slots(spec: Spec) -> dict[str, tuple[bool, int]]:
    """Sparse column, then kept one → (True if its values are lists, the number of its array in the parser)."""
    slots, counts = {}, [0, 0]
    for column in (*spec.sparse, *spec.kept):
        is_list = column.separator is not None
        slots[column.name] = (is_list, counts[is_list])
        counts[is_list] += 1
    return slots


def weight_slots(spec: Spec) -> dict[str, tuple[int, int]]:
    """Column of element weights → (the number of its array in the parser, after those of the lists; that of its list)."""
    slots = list_slots(spec)
    first = sum(is_list for is_list, _ in slots.values())
    return {
        column.name: (slot, slots[column.weights_of or ""][1])
        for slot, column in enumerate(spec.element_weights, first)
    }
