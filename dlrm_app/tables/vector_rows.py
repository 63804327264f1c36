"""The vectors by id that a dataset keeps, read a block of rows at a time.

Shapes: R rows, W the numbers of a vector.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlrm_app.errors import DataError, Problem
from dlrm_app.records import Json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CURE = "copy the dataset folder again from where it is whole, or preprocess again"


@dataclass(frozen=True)
class VectorRows:
    """The file at ``path`` with ``width`` numbers of ``dtype`` for each id; ``checksum`` is the manifest's."""

    path: str
    checksum: str
    width: int
    dtype: str

    @classmethod
    def of(cls, rule: Json, folder: Path) -> VectorRows:
        """The vectors that ``rule``, of a column's encoding in the dataset ``folder``, describes."""
        return cls(str(folder / rule["file"]), rule["checksum"], rule["width"], rule["dtype"])

    def verify(self) -> None:
        """Raises DataError if the file is missing or has changed."""
        from dlrm_app.checksums import file_difference

        if difference := file_difference(Path(self.path), None, self.checksum):
            raise DataError(replace(difference, cure=_CURE))

    def open(self) -> NDArray[np.floating]:
        """The vectors [ids, W], of which only those that are used are read. Raises DataError."""
        import numpy as np

        try:
            rows: NDArray[np.floating] = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(Problem(self.path, f"cannot be read ({error})", _CURE)) from error
        if rows.ndim != 2 or rows.shape[1] != self.width:
            raise DataError(Problem(self.path, f"must hold {self.width} numbers a row", _CURE, rows.shape))
        return rows
