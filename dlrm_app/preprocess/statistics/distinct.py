"""Distinct values and collisions of each feature, out of the sketches that the units left."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from dlrm_app.data.manifest import SparseColumn
from dlrm_app.preprocess.job.executor import Finish
from dlrm_app.preprocess.job.journal import Journal
from dlrm_app.preprocess.statistics.sketch import TOTAL_KEYS, Sketches, SketchFile, count_collisions

_TOGETHER = 8
"""Features whose sketches are joined at a time: enough for files to be read in few pieces, few enough to share out."""


@dataclass(frozen=True)
class CountDistinct:
    """Joins the sketches of the features of group ``place``; ``sparse``: all features, in their order."""

    encoded: Journal
    units: tuple[tuple[int, int], ...]
    sparse: tuple[SparseColumn, ...]
    journal: Journal

    @property
    def num_groups(self) -> int:
        return -(-len(self.sparse) // _TOGETHER)

    def __call__(self, place: int) -> Finish:
        first = place * _TOGETHER
        columns = self.sparse[first : first + _TOGETHER]
        totals = Sketches(len(columns), TOTAL_KEYS)
        for source, unit in self.units:
            SketchFile(self.encoded.path(source, unit, ".sketch"), len(self.sparse)).join_into(totals, first)
        result = {"features": [_found(totals, number, column) for number, column in enumerate(columns)]}
        return partial(self.journal.unit(0, place).land, result)


def _found(totals: Sketches, number: int, column: SparseColumn) -> dict[str, Any]:
    collisions = None
    if column.encoding["kind"] == "hash":
        collisions = count_collisions(totals, number, column.num_embeddings)
    return {
        "distinct": totals.distinct(number),
        "collisions": collisions,
        "estimated": not totals.is_exact(number),
    }
