"""Distinct values and collisions of each feature, out of the sketches that the units left."""

from dataclasses import dataclass
from typing import Any

from dlrm_app.data.manifest import SparseColumn
from dlrm_app.preprocess.journal import Journal
from dlrm_app.preprocess.sketch import TOTAL_KEYS, Sketch, SketchFile, count_collisions


@dataclass(frozen=True)
class CountDistinct:
    """Joins the sketches of one feature, landed as unit ``place``."""

    encoded: Journal
    units: tuple[tuple[int, int], ...]
    sparse: tuple[SparseColumn, ...]
    num_features: int
    journal: Journal

    def __call__(self, place: int) -> dict[str, Any]:
        total = Sketch(TOTAL_KEYS)
        for source, unit in self.units:
            SketchFile(self.encoded.path(source, unit, ".sketch"), self.num_features).join_into(total, place)
        column = self.sparse[place]
        collisions = None
        if column.encoding["kind"] == "hash":
            collisions = count_collisions(total, column.num_embeddings)
        result = {"distinct": total.distinct(), "collisions": collisions, "estimated": not total.exact}
        self.journal.land(0, place, result)
        return result
