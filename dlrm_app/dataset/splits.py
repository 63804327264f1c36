"""The splits of a dataset, as its manifest records them: their shards, the counts of their rows, and the input files."""

from dataclasses import astuple, dataclass, field

from dlrm_app.records import IF_SET


@dataclass(frozen=True)
class Shard:
    """A Parquet file. ``path`` is relative to the dataset folder; ``row_groups`` are rows per row group."""

    path: str
    rows: int
    bytes: int
    checksum: str
    row_groups: list[int] = field(hash=False)


@dataclass(frozen=True)
class WeightSums:
    """The sums of the weights of a split's rows: of ``all``, and of the ``positives``."""

    all: float
    positives: float


@dataclass(frozen=True)
class LabelCounts:
    """Counts of the rows of a split that have another label than the main one.

    ``positives``: the rows where it is 1.
    ``weights``: the sums of the weights of both, if rows have weights.
    ``negatives``: the counts of the main label's negatives among these rows, if sampling has kept a share of them.
    ``without_given``: the rows where the label is 1 and its ``given`` is 0.
    ``where_given``: the counts of the rows where its ``given`` is 1; None for a label that stands alone, and in a
    dataset of an earlier version.
    """

    rows: int
    positives: int
    weights: WeightSums | None = field(default=None, metadata=IF_SET)
    negatives: "LabelCounts | None" = field(default=None, metadata=IF_SET)
    without_given: int = field(default=0, metadata=IF_SET)
    where_given: "LabelCounts | None" = field(default=None, metadata=IF_SET)


@dataclass(frozen=True)
class ValueCounts:
    """Counts of a column's values in ``rows`` rows.

    missing: rows without a value, or with an empty list
    unseen: values that are not in the column's vocabulary, or too rare to be there
    values: values that are not missing; the elements of lists
    squares: the sum of the squares of the lists' lengths; 0 for one value a row
    sizes, size_squares: of a column of numbers, the sums of their sizes (``encoding/value_shares.py``) and of the
    squares of these
    """

    rows: int = 0
    missing: int = 0
    unseen: int = 0
    values: int = 0
    squares: int = 0
    sizes: int = field(default=0, metadata=IF_SET)
    size_squares: int = field(default=0, metadata=IF_SET)

    def __add__(self, other: "ValueCounts") -> "ValueCounts":
        pairs = zip(astuple(self), astuple(other), strict=True)
        return ValueCounts(*(mine + others for mine, others in pairs))

    @property
    def can_be(self) -> bool:
        """False for numbers that no rows have."""
        sums = (self.rows, self.missing, self.unseen, self.values, self.squares, self.size_squares)
        is_mean = self.sizes**2 <= self.rows * self.size_squares  # by Cauchy and Schwarz
        return min(sums) >= 0 and self.missing <= self.rows and self.unseen <= self.values and is_mean

    @property
    def unseen_share(self) -> float | None:
        """None without values."""
        return self.unseen / self.values if self.values else None

    @property
    def mean_length(self) -> float:
        """The mean length of the lists; 1 for one value a row."""
        return self.values / self.rows if self.squares else 1.0

    @property
    def mean_size(self) -> float:
        return self.sizes / self.rows

    @property
    def size_variance(self) -> float:
        return self.size_squares / self.rows - self.mean_size**2

    @property
    def length_variance(self) -> float:
        return self.squares / self.rows - self.mean_length**2 if self.squares else 0.0


@dataclass(frozen=True)
class Split:
    """A split.

    ``positives``: the number of positives; None without a label.
    ``rejects``: the number of malformed input lines.
    ``left_out``: the number of negatives that sampling left out.
    ``weights``: set if rows have weights.
    ``labels``: the counts of every other label.
    """

    rows: int
    positives: int | None
    rejects: int
    shards: list[Shard]
    left_out: int = field(default=0, metadata=IF_SET)
    weights: WeightSums | None = field(default=None, metadata=IF_SET)
    labels: dict[str, LabelCounts] = field(default_factory=dict, metadata=IF_SET)
    values: dict[str, ValueCounts] = field(default_factory=dict, metadata=IF_SET)
    """Column → the counts of its values, of splits that are held out and of those encoded as another dataset."""


@dataclass(frozen=True)
class ManifestSource:
    """An input file as it was when read. ``rows`` counts the negatives that sampling left out, too."""

    path: str
    split: str
    bytes: int
    checksum: str
    rows: int
    modified_ns: int
    """The time of the last change; 0 for an object of a store, which has a ``tag`` instead."""
    tag: str = ""
    """An object's version, as given by its store."""
    sample: str = ""
    """The checksum of some of its bytes, which are compared more often than all; empty for an object of a store."""

    @property
    def version(self) -> tuple[int, int, str]:
        """(bytes, date, tag)"""
        return self.bytes, self.modified_ns, self.tag
