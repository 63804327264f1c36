"""Plain torch beside models with vectors: frozen EmbeddingBags and rows' own vectors, each through a Linear."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from dlrm_app.checksums import checksum
from dlrm_app.tables.table import Table
from dlrm_app.tables.vector_rows import VectorRows
from dlrm_app.training.setup import Trainable
from tests.plain_model import PlainModel
from tests.plain_training import weights_of
from tests.random_batches import NUM_DENSE, Ids

PROJECTIONS = "sparse_arch/embedding_bag_collection/combination/projections/layers"


def frozen_table(
    folder: Path,
    name: str,
    rows: int,
    width: int,
    features: tuple[str, ...],
    dtype: str = "fp32",
    **more: str,
) -> Table:
    """A table of random vectors, in a file of ``folder``; its first two rows are zeros, as a dataset's are."""
    path = folder / f"{name}.npy"
    if not path.exists():
        vectors = np.random.default_rng(rows + width).normal(size=(rows, width))
        vectors[:2] = 0
        np.save(path, vectors.astype(np.float16 if dtype == "fp16" else np.float32))
    vectors_of = VectorRows(str(path), checksum(path), width, dtype)
    return Table(name, rows, -(-width // 4) * 4, features, data_type=dtype, vectors=vectors_of, **more)


class PlainWithVectors(PlainModel):
    """``sizes``: column → the numbers of its vectors, which stand behind the dense features."""

    def __init__(
        self,
        kind: str,
        tables: Sequence[Table],
        dense: dict[str, torch.Tensor],
        sizes: Mapping[str, int],
        norm: str | None,
    ) -> None:
        super().__init__(kind, tables, dense)
        self.sizes, self.norm = sizes, norm
        for table in tables:
            self.bags[table.name].weight.requires_grad_(not table.is_frozen)

    def project(self, name: str, vectors: torch.Tensor) -> torch.Tensor:
        if self.norm == "l2":
            vectors = vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-12)
        weight, bias = (self.dense[f"{PROJECTIONS}/{name}/{part}"] for part in ("weight", "bias"))
        return F.linear(vectors, weight, bias)

    def pooled(self, ids: Ids) -> list[torch.Tensor]:
        names, frozen = [*self.table_of], {t.name for t in self.tables if t.is_frozen}
        vectors = [
            self.project(name, each) if self.table_of[name] in frozen else each
            for name, each in zip(names, super().pooled(ids), strict=True)
        ]
        at = NUM_DENSE
        for name, size in self.sizes.items():
            vectors.append(self.project(name, self.rows[:, at : at + size]))
            at += size
        return vectors

    def forward(self, dense: torch.Tensor, ids: Ids) -> torch.Tensor:
        self.rows = dense
        return super().forward(dense[:, :NUM_DENSE], ids)


def plain_with_vectors(trainable: Trainable) -> PlainWithVectors:
    """The same model in plain torch, with the same weights."""
    weights, config = weights_of(trainable), trainable.spec.config
    dense = {name: value for name, value in weights.items() if not name.startswith("bags.")}
    plain = PlainWithVectors(
        config.kind, trainable.tables, dense, trainable.spec.vectors, config.vectors.norm
    )
    plain.stride = config.stride
    for table in trainable.tables:
        plain.bags[table.name].weight.data.copy_(weights[f"bags.{table.name}.weight"])
    return plain
