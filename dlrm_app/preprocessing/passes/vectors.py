"""The pass over columns of vectors by raw value: each gets a vocabulary and its vectors from a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from dlrm_app.config.values import VectorType
from dlrm_app.dataset.manifest import Manifest, SparseColumn
from dlrm_app.encoding.vector_tables import VectorGrowth, make_vector_table
from dlrm_app.journal import Finish, Journal
from dlrm_app.logs.spec import LogColumn
from dlrm_app.preprocessing.work.executor import NumberedItem


@dataclass(frozen=True)
class MadeVectors:
    """A column of the dataset, and what its file has that was not known before."""

    column: SparseColumn
    growth: VectorGrowth


@dataclass(frozen=True)
class MakeVectors:
    """Makes ``columns`` in the dataset ``output``. ``parent``: the dataset whose vocabularies grow, on ``day``."""

    title: ClassVar[str] = "vectors"
    reads: ClassVar[tuple[str, ...]] = ()
    output: Path
    columns: tuple[LogColumn, ...]
    dtype: VectorType
    parent: Manifest | None
    day: int | None
    journal: Journal[MadeVectors]

    def __call__(self, item: NumberedItem) -> Finish[MadeVectors]:
        column = self.columns[item.number]
        made = make_vector_table(column, self.output, self.dtype, self.parent, self.day)
        return self.journal.begin(item.name).finish(MadeVectors(*made))
