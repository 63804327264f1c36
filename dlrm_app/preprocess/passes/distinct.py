"""Distinct values and collisions of each feature, out of the sketches that the units left."""

from dataclasses import dataclass, replace
from typing import ClassVar

from dlrm_app.dataset.manifest import SparseColumn
from dlrm_app.preprocess.passes.encode_pass import EncodedUnit
from dlrm_app.preprocess.passes.sketch import TOTAL_KEYS, Sketches, SketchFile, count_collisions
from dlrm_app.preprocess.units.executor import Finish
from dlrm_app.preprocess.units.journal import Journal

_TOGETHER = 8
"""Features whose sketches are joined at a time: enough for files to be read in few pieces, few enough to share out."""


@dataclass(frozen=True)
class CountedFeatures:
    """A group's columns, with their numbers of distinct values and collisions."""

    columns: tuple[SparseColumn, ...]


@dataclass(frozen=True)
class CountDistinct:
    """Joins the sketches of the features of a group; ``sparse``: all features, in their order."""

    title: ClassVar[str] = "counting distinct values"
    encoded: Journal[EncodedUnit]
    units: tuple[tuple[int, int], ...]
    sparse: tuple[SparseColumn, ...]
    journal: Journal[CountedFeatures]

    @property
    def num_groups(self) -> int:
        return -(-len(self.sparse) // _TOGETHER)

    def __call__(self, group: int) -> Finish[CountedFeatures]:
        first = group * _TOGETHER
        columns = self.sparse[first : first + _TOGETHER]
        totals = Sketches(len(columns), TOTAL_KEYS)
        for source, unit in self.units:
            SketchFile(self.encoded.path(source, unit, ".sketch"), len(self.sparse)).join_into(totals, first)
        counted = tuple(_with_counts(column, totals, feature) for feature, column in enumerate(columns))
        return self.journal.unit(0, group).finish(CountedFeatures(counted))


def _with_counts(column: SparseColumn, totals: Sketches, feature: int) -> SparseColumn:
    is_hashed = column.encoding["kind"] == "hash"
    return replace(
        column,
        distinct=totals.distinct(feature),
        collisions=count_collisions(totals, feature, column.num_embeddings) if is_hashed else None,
        estimated=not totals.is_exact(feature),
    )
