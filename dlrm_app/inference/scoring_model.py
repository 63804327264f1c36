"""The model for serving: plain tensors in, probabilities out, no process group, no sharding across ranks.

Shapes: B batch rows, N dense features, F sparse features, V ids of all features and rows.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from dlrm_app.inference.attentive_tables import AttentiveTables
from dlrm_app.inference.formats import Inputs
from dlrm_app.inference.projected_tables import ProjectedTables
from dlrm_app.inference.sharded_tables import ShardedTables
from dlrm_app.inference.tables import QuantizedTables
from dlrm_app.loader.batch import CPU, Batch
from dlrm_app.model.architectures import ARCHITECTURES
from dlrm_app.model.build import build_model
from dlrm_app.model.frozen_rows import vector_blocks
from dlrm_app.model.loss import ClickTask
from dlrm_app.model.mixed_bags import Combination
from dlrm_app.runs.checkpoint.load import load_tensors
from dlrm_app.runs.checkpoint.storage import TensorReader
from dlrm_app.runs.checkpoint.tensors import Tensors, collect_weights
from dlrm_app.runs.checkpoint.trained import TrainedModel
from dlrm_app.tables.table import Table, table_of

BLOCK_ROWS = 1 << 17
"""Rows of a table that an export holds at a time, as they were trained."""


def to_inputs(batch: Batch) -> Inputs:
    """Turns the rows of ``batch``, padding included, into a scoring model's inputs."""
    sparse = batch.sparse_features
    lengths = sparse.lengths().view(len(sparse.keys()), -1)
    weights = sparse.weights_or_none()
    inputs = batch.dense_features, sparse.values().to(torch.int32), lengths.to(torch.int32)
    return inputs if weights is None else (*inputs, weights)


class ScoringModel(nn.Module):
    """A model whose ``forward(dense, values, lengths)`` returns probabilities [B] and logits [B], both float32; [B, L]
    of L labels.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @property
    def tables(self) -> QuantizedTables | ShardedTables:
        """The model's tables, which every architecture keeps in the same place."""
        found = self.model.sparse_arch
        found = found.tables if isinstance(found, ProjectedTables) else found
        found = found.sums if isinstance(found, AttentiveTables) else found
        assert isinstance(found, (QuantizedTables, ShardedTables))
        return found

    def forward(
        self, dense: torch.Tensor, values: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.model(dense, (values, lengths)).float().squeeze(-1)
        return torch.sigmoid(logits), logits


class WeightedScoringModel(ScoringModel):
    """A ScoringModel that also takes a weight for each id. It is a class of its own, because the formats take no
    arguments that may be left out.
    """

    def forward(  # type: ignore[override]  # one argument more
        self, dense: torch.Tensor, values: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.model(dense, (values, lengths, weights)).float().squeeze(-1)
        return torch.sigmoid(logits), logits


class CheckpointWeights:
    """Reads a checkpoint's weights, a block of a table's rows at a time, for every sharding plan."""

    def __init__(self, trained: TrainedModel) -> None:
        self._reader = TensorReader(trained.folder)
        self.model = build_model(trained.spec, CPU)
        """The model; its dense part has the checkpoint's weights, its tables have none."""
        named = collect_weights(ClickTask(self.model, CPU, trains_in_bf16=False), trained.dense)
        self._tables = {table_of(name): (name, meta) for name, meta in named.items() if table_of(name)}
        self.dense: Tensors = {name: value for name, value in named.items() if table_of(name) is None}
        load_tensors(self._reader, self.dense)

    def blocks(self, table: Table, num_rows: int = BLOCK_ROWS) -> Iterator[torch.Tensor]:
        """Reads a table's weights in blocks of ``num_rows`` rows [n, dim], in the type that it was trained in."""
        if table.is_frozen:
            yield from vector_blocks(table, num_rows)
            return
        name, _ = self._tables[table.name]
        saved = self._reader.tensors.get(name)
        if saved is None or tuple(saved.size) != (table.rows, table.dim):
            load_tensors(self._reader, {name: torch.empty(table.rows, table.dim, device="meta")})  # raises
        assert saved is not None
        for first in range(0, table.rows, num_rows):
            block = torch.empty(min(num_rows, table.rows - first), table.dim, dtype=saved.dtype)
            self._reader.fill({(name, (first, 0)): block})
            yield block


def trained_module(trained: TrainedModel) -> nn.Module:
    """The model of a checkpoint as it was trained, with whole tables, in eval mode. Raises DataError."""
    weights = CheckpointWeights(trained)
    model = weights.model
    for module in [*model.modules()]:
        if isinstance(module, EmbeddingBagCollection | EmbeddingCollection):
            module.to_empty(device=CPU)
    by_table = {table_of(name): weight for name, weight in model.named_parameters()}
    for table in trained.tables:
        weight, first = by_table[table.name], 0
        for block in weights.blocks(table):
            with torch.no_grad():
                weight[first : first + len(block)] = block
            first += len(block)
    return model.eval()


def build_scoring_model(trained: TrainedModel, types: Mapping[str, str], num_shards: int = 1) -> ScoringModel:
    """Builds the model of a checkpoint with tables of ``types`` (name → type).

    Tables in several shards are torchrec's. Needs memory for the quantized tables and a block of rows. Raises
    DataError.
    """
    weights = CheckpointWeights(trained)
    model = weights.model
    stacked = ARCHITECTURES[trained.spec.config.kind].interacts
    combined = next((module for module in model.modules() if isinstance(module, Combination)), None)
    attends = any(table.attention for table in trained.tables)
    projections = combined.projections if combined is not None else None
    given = trained.tables, types, weights.blocks
    stacks = stacked and projections is None
    tables = (
        ShardedTables(*given, num_shards, stacked=stacks and not attends)
        if num_shards > 1
        else QuantizedTables(*given, stacked=stacks and not attends)
    )
    model.sparse_arch = tables
    if combined is not None and attends:
        model.sparse_arch = AttentiveTables(trained.tables, tables, combined.attention, stacked=stacks)
    if projections is not None:
        model.sparse_arch = ProjectedTables(model.sparse_arch, projections, trained.spec, stacked=stacked)
    is_weighted = any(table.weighted for table in trained.tables)
    scoring = WeightedScoringModel(model) if is_weighted else ScoringModel(model)
    return scoring.eval().requires_grad_(False)
