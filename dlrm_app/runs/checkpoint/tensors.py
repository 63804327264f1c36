"""The tensors of a run, under names that do not depend on the sharding plan.

    model/<parameter>            every weight
    table/<table>/<state>        a table's optimizer state: sum, exp_avg, exp_avg_sq
    dense/<parameter>/<state>    the dense optimizer's state
    ema/<parameter>              moving averages of the dense weights, with optimizer.dense.ema_decay

fbgemm's fused optimizers and torch's give the same state different names. torchrec keeps the state of a table that
a torch optimizer steps as plain local tensors, which a checkpoint would take for replicas of one tensor.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata, TensorProperties
from torch.distributed._shard.sharded_tensor.shard import Shard
from torchrec.optim.keyed import CombinedOptimizer

from dlrm_app.runs.checkpoint.marker import MODEL
from dlrm_app.tables.sparse_optimizers import ROW, SPARSE_OPTIMIZERS
from dlrm_app.tables.table import is_frozen, table_of

Tensors = dict[str, Any]
Pieces = dict[tuple[str, tuple[int, ...]], torch.Tensor]
"""(tensor's name, offsets of the piece in it) → values."""


def local_pieces(tensors: Tensors) -> Pieces:
    """Views of this rank's pieces."""
    pieces = {}
    for name, value in tensors.items():
        if isinstance(value, ShardedTensor):
            for shard in value.local_shards():
                pieces[name, tuple(shard.metadata.shard_offsets)] = shard.tensor
        else:
            pieces[name, (0,) * value.dim()] = value
    return pieces


def collect_tensors(
    model: nn.Module, optimizers: CombinedOptimizer, table_kinds: Mapping[str, str]
) -> Tensors:
    """Views of every tensor that a resumed run needs; loading into them changes the run.

    ``table_kinds``: each table's optimizer kind. Optimizer states exist after ``create_states`` or the first step.
    Step counters are left out: ``set_step`` restores them.
    """
    tensors = collect_weights(model)
    by_table = {table_of(name): value for name, value in tensors.items()}
    for key, name, value in _states(optimizers):
        table = table_of(key)
        if table is None:
            tensors[f"dense/{key}/{name}"] = value
            continue
        optimizer = SPARSE_OPTIMIZERS[table_kinds[table]]
        state = optimizer.state_name(name.rpartition(".")[2])
        tensors[f"table/{table}/{state}"] = shard_like_weight(
            value, by_table[table], is_per_row=optimizer.state[state] == ROW
        )
    return tensors


def table_name(name: str) -> str | None:
    """The table that the weights or optimizer state ``name`` belong to; None for the dense part's tensors."""
    return name.split("/")[1] if name.startswith("table/") else table_of(name)


def collect_weights(model: nn.Module, dense: str = MODEL) -> Tensors:
    """Views of every weight, as in ``collect_tensors``. ``dense``: the name prefix of weights outside of tables.

    Frozen tables are left out: their rows are the dataset's, whose checksum the marker has.
    """
    return {
        f"{dense if table_of(name) is None else MODEL}/{name}": value
        for name, value in model.state_dict().items()
        if not is_frozen(name)
    }


def _states(optimizers: CombinedOptimizer) -> Iterator[tuple[str, str, Any]]:
    """(parameter, state name, tensor) without the step counters and without the optimizers' own prefixes."""
    for prefix, part in optimizers.optimizers:
        for key, states in part.state_dict()["state"].items():
            for name, value in states.items():
                if name != "step" and isinstance(value, torch.Tensor | ShardedTensor):
                    yield key.removeprefix(f"{prefix}."), name, value


def shard_like_weight(state: Any, weight: Any, *, is_per_row: bool) -> Any:
    """``state``, sharded like its table's ``weight``; one number a row is kept as [rows], not [rows, 1].

    torchrec's own places of such numbers overlap if rows are cut unevenly too. A plain tensor does not tell the size:
    it is empty on a rank that holds none of the table.
    """
    is_sharded = isinstance(state, ShardedTensor)
    if not isinstance(weight, ShardedTensor):
        return state.view(-1) if is_per_row and not is_sharded else state
    layout, shards = weight.metadata(), weight.local_shards()
    if is_sharded:
        values = [each.tensor for each in state.local_shards()]
    else:  # from a dense kernel, whose parameter holds the rank's pieces of a table stacked by rows
        values = list(state.split([len(shard.tensor) for shard in shards])) if shards else []
    locate = partial(_locate_rows, layout) if is_per_row else lambda piece: piece
    local = [
        Shard(value.view(-1) if is_per_row else value, locate(shard.metadata))
        for value, shard in zip(values, shards, strict=True)
    ]
    pieces = [locate(piece) for piece in layout.shards_metadata]
    num_rows = sum(piece.shard_sizes[0] for piece in pieces)
    properties = TensorProperties(dtype=state.dtype, requires_grad=False)
    metadata = ShardedTensorMetadata(
        pieces, torch.Size([num_rows]) if is_per_row else layout.size, tensor_properties=properties
    )
    return ShardedTensor._init_from_local_shards_and_global_metadata(
        local, metadata, process_group=weight._process_group
    )


def _locate_rows(layout: ShardedTensorMetadata, piece: ShardMetadata) -> ShardMetadata:
    """Place of the per-row numbers of a weight's ``piece``: those of one shard of columns follow those of another."""
    columns = sorted({other.shard_offsets[1] for other in layout.shards_metadata})
    start = columns.index(piece.shard_offsets[1]) * layout.size[0] + piece.shard_offsets[0]
    return ShardMetadata([start], [piece.shard_sizes[0]], piece.placement)


def create_states(optimizer: CombinedOptimizer) -> None:
    """Creates the state that torch optimizers create at their first step, so that it can be loaded into.

    It steps with zero gradients: call it before the weights are loaded. Fused optimizers have state from the start.
    """
    for prefix, part in optimizer.optimizers:
        if prefix != "fused":
            part.init_state()
            part.zero_grad()


def set_step(optimizer: CombinedOptimizer, step: int) -> None:
    """Sets every optimizer's count of steps, on which Adam's bias correction depends."""
    optimizer.set_optimizer_step(step)
    for _, part in optimizer.optimizers:
        for states in part.state.values():
            if isinstance(count := states.get("step"), torch.Tensor):
                count.fill_(step)
