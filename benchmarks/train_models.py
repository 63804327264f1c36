"""The models that benchmarks train, their settings and their rows."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

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

    def settings(self) -> list[str]:
        """Keys of dlrm-train for the model."""
        dcn = [f"model.dcn_num_layers={DCN_LAYERS}", f"model.dcn_low_rank_dim={DCN_RANK}"]
        mlps = {"bottom": list(self.bottom), "top": list(self.top)}
        return [
            *(f"model={self.interaction}", *(dcn if self.interaction == "dcn" else [])),
            *(f"model.{name}_mlp={widths}".replace(" ", "") for name, widths in mlps.items()),
        ]

    def write_tables(self, path: Path) -> None:
        """Writes the specs of the tables, each with a feature of its own."""
        tables = enumerate(zip(self.rows, self.ids_per_feature, strict=True))
        specs = [
            {"name": f"t_{i}", "rows": n, "dim": self.dim, "features": [f"cat_{i}"], "pooling_factors": [ids]}
            for i, (n, ids) in tables
        ]
        path.write_text(yaml.safe_dump({"specs": specs}))

    def write_rows(self, folder: Path, num_rows: int, *keys: str) -> None:
        """Writes FOLDER/tables.yaml and synthetic rows, FOLDER/dataset."""
        self.write_tables(folder / "tables.yaml")
        words = [f"tables={folder}/tables.yaml", "format=dataset", f"num_dense={self.num_dense}", *keys]
        words += [f"rows={num_rows}", f"output={folder}/dataset"]
        command = [sys.executable, "-m", "dlrm_app.cli", "generate", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


SPEED = Shapes([10_000] * 26, 32, (512, 256, 32), (512, 256, 1))
KAGGLE = Shapes(KAGGLE_ROWS, 16, (512, 256, 64, 16), (512, 256, 1))
DCN = Shapes([10_000] * 26, 32, (512, 256, 32), (512, 256, 1), "dcn")
DCN_LAYERS, DCN_RANK = 3, 512
"""As MLPerf's DLRM-DCNv2 and dlrm_main.py's defaults have them."""

_TINY_ROWS = [10_000, 250_000, 6_250_000, 6_250_000]
_TINY_ROWS += [10] * 16 + [1_000] * 10 + [10_000] * 4 + [100_000] * 2 + [250_000] * 19
TINY = Shapes(_TINY_ROWS, 16, (16,), (256, 128, 1), num_dense=10, ids=[10] * 3 + [1] * (len(_TINY_ROWS) - 3))
"""NVIDIA Merlin's synthetic Tiny (conf/merlin/tiny.yaml) as far as dlrm_main.py can have it and memory allows.

Its 55 tables, 10 dense features and MLP; a quarter of the rows where there are a million and more; one
width for all, one feature a table, of which the three shared ones keep that with 10 ids; dot products and
a layer of 16, for dlrm_main.py has no plain concatenation.
"""
