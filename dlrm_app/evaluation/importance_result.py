"""How much each column matters to a model: records for the JSON file, and their table. Does not import torch."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from dlrm_app.config.metrics import metric_of
from dlrm_app.result import Paragraph


@dataclass(frozen=True)
class ColumnImportance:
    """How much worse the metric is when a column of the log is shuffled among the rows, and its interval.

    made: the columns of the dataset that are made of it and shuffled with it
    """

    column: str
    fall: float
    low: float
    high: float
    made: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PairImportance:
    """How much worse the metric is when two columns, of which one tells most of the other, are shuffled together."""

    columns: list[str]
    fall: float
    low: float
    high: float


@dataclass(frozen=True)
class Importance:
    """Permutation importance on ``rows`` rows, the mean of ``repeats`` shuffles: of every column that the model reads,
    the largest first, and of pairs that tell each other.

    ``metric``: the name of the one whose fall is measured, or whose rise if lower is better.
    """

    rows: int
    repeats: int
    columns: list[ColumnImportance]
    pairs: list[PairImportance]
    metric: str = "auc"

    @property
    def title(self) -> str:
        """The metric's title, such as ``NDCG@10``."""
        return metric.title if (metric := metric_of(self.metric)) is not None else self.metric

    @property
    def change(self) -> str:
        """How a metric becomes worse: ``fall``, or ``rise`` if lower is better."""
        metric = metric_of(self.metric)
        return "fall" if metric is None or metric.rises else "rise"

    def paragraphs(self, name: str, interval: str) -> Iterable[Paragraph]:
        """A row for each column, and a line for each pair that hides the importance of its columns."""
        yield (
            f"importance of columns{name}: the {self.change} of the {self.title} when a column is shuffled "
            f"(mean of {self.repeats} on {self.rows:,} rows)"
        )
        rows = [
            [each.column, f"{each.fall:+.5f}", f"{each.low:+.5f} to {each.high:+.5f}", ", ".join(each.made)]
            for each in self.columns
        ]
        yield ["column", self.change, interval, "shuffled with it"], rows
        yield from map(self.pair_text, self.hiding_pairs())

    def pair_text(self, pair: PairImportance) -> str:
        alone = " and ".join(f"{self.fall_of(column):.5f}" for column in pair.columns)
        return (
            f"{' and '.join(pair.columns)} tell each other: the {self.title} {self.change}s by {pair.fall:.5f} "
            f"({pair.low:.5f} to {pair.high:.5f}) when both are shuffled, by {alone} when one is"
        )

    def fall_of(self, column: str) -> float:
        """The fall for one column alone."""
        return next(each.fall for each in self.columns if each.column == column)

    def hiding_pairs(self) -> list[PairImportance]:
        """The pairs whose columns matter more together than the sum of both alone."""
        return [pair for pair in self.pairs if pair.low > sum(map(self.fall_of, pair.columns))]
