"""The tables' initial weights: a function of (seed, table, row) alone, and of a row's generation if it is not 0, so
that every sharding plan starts alike. Also sets the last bias, so that a model begins by predicting the share of
positives.

Tables are always drawn on the CPU: a GPU's generator gives other numbers from the same seed.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor

from dlrm_app.loader.prefetch import map_in_order
from dlrm_app.model.branches import BranchHeads
from dlrm_app.model.labels import LabelTops
from dlrm_app.tables.table import Table, table_of

BLOCK_ROWS = 8192


@torch.no_grad()
def init_tables(
    model: nn.Module,
    tables: Sequence[Table],
    seed: int,
    generations: Mapping[str, torch.Tensor] = MappingProxyType({}),
) -> None:
    """Sets every weight of ``tables`` that this rank holds. ``model`` may be sharded or not.

    ``generations``: table → the number of times that each row's id was given to another value, int32 [rows]; default 0.
    """
    by_name = {table.name: table for table in tables if not table.is_frozen}
    for name, weight in table_weights(model.state_dict(), by_name):
        table = by_name[name]
        for part, row, column in local_parts(weight):
            _fill(part, row, column, table, seed, generations.get(name))


def table_weights(state: Mapping[str, object], tables: Mapping[str, Table]) -> Iterator[tuple[str, object]]:
    """(table name, weight) of every table in a model's state dictionary."""
    for key, value in state.items():
        name = table_of(key)
        if name is not None and name in tables:
            yield name, value


def local_parts(weight: object) -> list[tuple[torch.Tensor, int, int]]:
    """(tensor, first row, first column) of every part of the table that this rank holds."""
    if isinstance(weight, ShardedTensor):
        return [
            (shard.tensor, shard.metadata.shard_offsets[0], shard.metadata.shard_offsets[1])
            for shard in weight.local_shards()
        ]
    assert isinstance(weight, torch.Tensor)
    return [(weight, 0, 0)]


def _fill(
    part: torch.Tensor,
    first_row: int,
    first_column: int,
    table: Table,
    seed: int,
    generations: torch.Tensor | None,
) -> None:
    """Draws blocks of rows, each from its own seed, and copies the part that overlaps ``part`` [rows, columns]."""
    num_rows, num_columns = part.shape
    last_row = first_row + num_rows
    blocks = range(first_row // BLOCK_ROWS, math.ceil(last_row / BLOCK_ROWS))
    # each block has its own generator; torch draws from a generator on one thread only
    num_threads = torch.get_num_threads()
    drawn = map_in_order(
        lambda block: draw_block(table, seed, block, generations), blocks, num_threads, num_threads
    )
    for block, values in zip(blocks, drawn, strict=True):
        start = block * BLOCK_ROWS
        low, high = max(start, first_row), min(start + len(values), last_row)
        part[low - first_row : high - first_row].copy_(
            values[low - start : high - start, first_column : first_column + num_columns]
        )


def draw_block(table: Table, seed: int, block: int, generations: torch.Tensor | None = None) -> torch.Tensor:
    """Rows [block × BLOCK_ROWS, …) of a fresh table, at most BLOCK_ROWS of them: float32 [n, table.dim].

    uniform: U(-a, a), a = 1/sqrt(rows) unless ``init_scale`` is given (the DLRM paper's code); normal: N(0,
    s²), s = 1/sqrt(dim) unless given. ``generations`` [table.rows]:
    a generation above 0 changes the row's seed.
    """
    values = _draw(table, block, f"{seed}/{table.name}/{block}")
    if generations is not None:
        of_rows = generations[block * BLOCK_ROWS :][: len(values)]
        for generation in sorted({*of_rows.tolist()} - {0}):
            rows = of_rows == generation
            values[rows] = _draw(table, block, f"{seed}/{table.name}/{block}/{generation}")[rows]
    return values


def _draw(table: Table, block: int, seed: str) -> torch.Tensor:
    generator = torch.Generator()
    digest = hashlib.sha256(seed.encode()).digest()
    generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    values = torch.empty(min(BLOCK_ROWS, table.rows - block * BLOCK_ROWS), table.dim)
    if table.init == "zeros":
        return values.zero_()
    if table.init == "normal":
        return values.normal_(0.0, table.init_scale or table.dim**-0.5, generator=generator)
    bound = table.init_scale or table.rows**-0.5
    return values.uniform_(-bound, bound, generator=generator)


@torch.no_grad()
def set_base_rate(model: nn.Module, rate: float, label: int = 0) -> None:
    """Sets the last bias of every ``over_arch`` in ``model`` to the logit of ``rate``, in (0, 1).

    ``label``: the number of the label, of several, whose top MLP it is.

    The initial bias of focal loss (Lin et al. 2017, arXiv:1708.02002, section 4.1): where positives are rare, the first
    steps would only lower all logits, and one epoch may not be enough for that.
    """
    for bias in last_biases(model, label):
        bias.fill_(math.log(rate / (1 - rate)))


def last_biases(model: nn.Module, label: int) -> Iterator[torch.Tensor]:
    """The last bias, [1], of every ``over_arch`` in ``model``, and of each of its branches; of several labels, those of
    ``label`` alone.
    """
    for name, module in model.named_modules():
        if name.rpartition(".")[2] == "over_arch":
            module = module.tops[label] if isinstance(module, LabelTops) else module
            of_branches = next((part for part in module.modules() if isinstance(part, BranchHeads)), None)
            linear = [layer for layer in (of_branches or module).modules() if isinstance(layer, nn.Linear)]
            yield from (layer.bias for layer in (linear if of_branches else linear[-1:]))
