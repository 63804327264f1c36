"""Columns of vectors: a vector of numbers in each row. ``arrow`` packs them for shards."""

from collections.abc import Sequence
from dataclasses import dataclass

from dlrm_app.config.values import VectorType


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
