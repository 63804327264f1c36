"""The models that train.py and estimates.py measure."""

from collections.abc import Sequence
from dataclasses import dataclass

KAGGLE_ROWS = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""Criteo Kaggle's 33.8 million values by column."""


@dataclass(frozen=True)
class Shapes:
    """Of a model: rows of its tables and their width, the layers of its MLPs, and what lies between them.

    ids: of each feature, a row; without any, 1.
    """

    rows: Sequence[int]
    dim: int
    bottom: Sequence[int]
    top: Sequence[int]
    interaction: str = "dlrm"
    num_dense: int = 13
    ids: Sequence[int] = ()

    @property
    def ids_per_feature(self) -> list[int]:
        """One number a table."""
        return list(self.ids or [1] * len(self.rows))


SPEED = Shapes([10_000] * 26, 32, (512, 256, 32), (512, 256, 1))
KAGGLE = Shapes(KAGGLE_ROWS, 16, (512, 256, 64, 16), (512, 256, 1))
DCN = Shapes([10_000] * 26, 32, (512, 256, 32), (512, 256, 1), "dcn")
DCN_LAYERS, DCN_RANK = 3, 512
"""As MLPerf's DLRM-DCNv2 and dlrm_main.py's defaults have them."""

_TINY_ROWS = [10_000, 250_000, 6_250_000, 6_250_000]
_TINY_ROWS += [10] * 16 + [1_000] * 10 + [10_000] * 4 + [100_000] * 2 + [250_000] * 19
TINY = Shapes(_TINY_ROWS, 16, (16,), (256, 128, 1), num_dense=10, ids=[10] * 3 + [1] * (len(_TINY_ROWS) - 3))
"""NVIDIA Merlin's synthetic Tiny (conf/tables/merlin_tiny.yaml) as far as dlrm_main.py can have it and memory allows.

Its 55 tables, 10 dense features and MLP; a quarter of the rows where there are a million and more; one width for all, one
feature a table, of which the three shared ones keep that with 10 ids; dot products and a layer of 16, for dlrm_main.py
has no plain concatenation.
"""
