"""Random click batches as plain lists and as the application's Batch, for comparisons with plain torch."""

from collections.abc import Sequence

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from dlrm_app.loader.batch import Batch
from dlrm_app.loader.supervision import Supervision
from dlrm_app.tables.table import Table

NUM_DENSE = 5
Ids = dict[str, list[list[int]]]

TABLES = [
    Table("shared", 100, 8, ("f1", "f2")),
    Table("bags", 50, 8, ("f3",), pooling="mean"),
    Table("long", 20_000, 8, ("f4",), init="normal"),
]


def draw(
    seed: int, num_rows: int, tables: Sequence[Table] = TABLES
) -> tuple[torch.Tensor, Ids, torch.Tensor]:
    """(dense [B, N], ids per feature and row, labels [B]); f3… have 0 to 3 ids a row, the others one."""
    generator = torch.Generator().manual_seed(seed)
    ids: Ids = {}
    for table in tables:
        for feature in table.features:
            counts = (
                torch.randint(0, 4, (num_rows,), generator=generator)
                if feature.startswith("f3")
                else [1] * num_rows
            )
            # squared: a few ids come up often, so that rows are hit twice in a batch
            ids[feature] = [
                (torch.rand(int(n), generator=generator) ** 2 * table.rows).long().tolist() for n in counts
            ]
    dense = torch.rand(num_rows, NUM_DENSE, generator=generator)
    labels = (torch.rand(num_rows, generator=generator) < 0.3).float()
    return dense, ids, labels


def element_weights(feature: str, bag: Sequence[int]) -> list[float]:
    """A weight for each id of ``bag``, from 0 to 2.5 for features that end in _w; 1 for others."""
    is_weighted = feature.endswith("_w")
    return [(7 * i + 3 * place) % 11 / 4 if is_weighted else 1.0 for place, i in enumerate(bag)]


def to_batch(
    dense: torch.Tensor, ids: Ids, labels: torch.Tensor, rank: int = 0, world_size: int = 1
) -> Batch:
    """The rows that ``rank`` of ``world_size`` would get."""
    rows = slice(rank * len(labels) // world_size, (rank + 1) * len(labels) // world_size)
    bags = {feature: lists[rows] for feature, lists in ids.items()}
    weights = [w for name, lists in bags.items() for bag in lists for w in element_weights(name, bag)]
    kjt = KeyedJaggedTensor(
        weights=torch.tensor(weights) if any(name.endswith("_w") for name in bags) else None,
        keys=list(bags),
        values=torch.tensor([i for lists in bags.values() for bag in lists for i in bag], dtype=torch.int64),
        lengths=torch.tensor([len(bag) for lists in bags.values() for bag in lists], dtype=torch.int64),
        stride=len(labels[rows]),
    )
    return Batch(dense[rows], kjt, Supervision.unweighted(labels[rows].unsqueeze(0)), len(labels[rows]))
