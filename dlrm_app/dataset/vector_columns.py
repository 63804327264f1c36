"""Columns of vectors: a vector of numbers in each row. ``arrow`` packs them for shards."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlrm_app.config.values import VectorType
from dlrm_app.text import percent

if TYPE_CHECKING:
    from dlrm_app.dataset.manifest import Manifest


@dataclass(frozen=True)
class VectorColumn:
    """A vector of ``size`` numbers in each row, of zeros where it is missing. ``dtype``: the type that shards keep."""

    name: str
    size: int
    dtype: VectorType
    missing_rate: float = 0.0

    @property
    def num_words(self) -> int:
        """The words of 32 bits that a vector takes in a shard: a number, or two of float16."""
        return -(-self.size // 2) if self.dtype == "fp16" else self.size


def sizes_of(columns: Sequence[VectorColumn]) -> dict[str, int]:
    """Column → the numbers of its vectors."""
    return {column.name: column.size for column in columns}


def width_of(columns: Sequence[VectorColumn]) -> int:
    """The numbers of all vectors of a row."""
    return sum(column.size for column in columns)


def vector_lines(manifest: "Manifest") -> Iterator[str]:
    """A line for each column of vectors: of what they are, and how many rows have none."""
    for column in manifest.sparse:
        if vectors := column.encoding.get("vectors"):
            (of,) = column.encoding["derived"]["of"]
            what = f"vectors of {vectors['width']:,} numbers ({vectors['dtype']}) for {column.distinct:,} values of {of}"
            yield f"{column.name}: {what}; {percent(column.missing_rate)} of the rows have none"
    for row in manifest.vectors:
        what = f"a vector of {row.size:,} numbers ({row.dtype}) in each row"
        yield f"{row.name}: {what}; {percent(row.missing_rate)} of the rows have none"
