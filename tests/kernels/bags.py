"""Four tables of fbgemm's for the compiled kernels, the second read by two features, and bags of ids for them."""

from typing import Any

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

ROWS, FEATURE_TABLES = (7, 5_000, 3, 40), (0, 1, 1, 2, 3)


def make_tables(dims: tuple[int, ...], **options: Any) -> SplitTableBatchedEmbeddingBagsCodegen:
    torch.manual_seed(0)
    specs = [
        (rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for rows, dim in zip(ROWS, dims, strict=True)
    ]
    tables = SplitTableBatchedEmbeddingBagsCodegen(specs, feature_table_map=list(FEATURE_TABLES), **options)
    tables.init_embedding_weights_uniform(-1, 1)
    return tables


def draw_bags(
    generator: torch.Generator, batch: int, most: int, least: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids [N], offsets [F · B + 1]) of bags of ``least`` to ``most`` ids, which may be equal."""
    lengths = torch.randint(least, most + 1, (len(FEATURE_TABLES), batch), generator=generator)
    ids = [
        torch.randint(ROWS[table], (int(lengths[feature].sum()),), generator=generator)
        for feature, table in enumerate(FEATURE_TABLES)
    ]
    return torch.cat(ids), torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])


def pool_plainly(
    weights: list[torch.Tensor], ids: torch.Tensor, offsets: torch.Tensor, mode: str
) -> torch.Tensor:
    """The pooled rows of all features beside each other, by torch."""
    pooled, batch = [], (len(offsets) - 1) // len(FEATURE_TABLES)
    for feature, table in enumerate(FEATURE_TABLES):
        bags = offsets[feature * batch : (feature + 1) * batch + 1]
        its_ids = ids[bags[0] : bags[-1]]
        pooled.append(
            torch.nn.functional.embedding_bag(
                its_ids, weights[table], bags - bags[0], mode=mode, include_last_offset=True
            )
        )
    return torch.cat(pooled, dim=1)
