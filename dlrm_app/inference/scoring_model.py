"""The model as it is served: plain tensors in, probabilities out, no process group, no shards.

Shapes: B batch rows, N dense features, F sparse features, V ids of all features and rows.
"""

from collections.abc import Mapping

import torch
from torch import nn

from dlrm_app.inference.formats import Inputs
from dlrm_app.inference.tables import QuantizedTables, ShardedTables
from dlrm_app.loader.batch import Batch
from dlrm_app.model.architectures import ARCHITECTURES
from dlrm_app.model.build import build_model
from dlrm_app.model.loss import ClickTask
from dlrm_app.runs.checkpoint.load import load_tensors
from dlrm_app.runs.checkpoint.marker import TrainedModel
from dlrm_app.runs.checkpoint.tensors import Tensors, collect_weights
from dlrm_app.tables.specs import Table, table_of

CPU = torch.device("cpu")


def to_inputs(batch: Batch) -> Inputs:
    """The rows of ``batch``, padding included, as a scoring model takes them."""
    sparse = batch.sparse_features
    lengths = sparse.lengths().view(len(sparse.keys()), -1)
    return batch.dense_features, sparse.values().to(torch.int32), lengths.to(torch.int32)


class ScoringModel(nn.Module):
    """``forward(dense, values, lengths)`` gives probabilities [B] and their logits [B], both float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @property
    def tables(self) -> QuantizedTables | ShardedTables:
        """The tables, in every architecture in one place."""
        found = self.model.sparse_arch
        assert isinstance(found, (QuantizedTables, ShardedTables))
        return found

    def forward(
        self, dense: torch.Tensor, values: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.model(dense, (values, lengths)).float().squeeze(-1)
        return torch.sigmoid(logits), logits


class CheckpointWeights:
    """Reads a checkpoint's weights whole, whatever plan wrote them, a table at a time."""

    def __init__(self, trained: TrainedModel) -> None:
        self._folder = trained.folder
        self.model = build_model(trained.spec, CPU)
        """Its dense part has the checkpoint's weights, its tables none."""
        named = collect_weights(ClickTask(self.model, CPU, trains_in_bf16=False), trained.dense)
        self._tables = {table_of(name): (name, meta) for name, meta in named.items() if table_of(name)}
        self.dense: Tensors = {name: value for name, value in named.items() if table_of(name) is None}
        load_tensors(self._folder, self.dense)

    def table(self, table: Table) -> torch.Tensor:
        """[rows, dim] in the type that it was trained in."""
        name, meta = self._tables[table.name]
        weights = torch.empty(meta.shape, dtype=meta.dtype)
        load_tensors(self._folder, {name: weights})
        return weights


def build_scoring_model(trained: TrainedModel, types: Mapping[str, str], num_shards: int = 1) -> ScoringModel:
    """The model of a checkpoint with tables of ``types`` (name → type).

    Tables in several shards are torchrec's. Holds the quantized tables and, while it is built, the largest of the trained ones. Raises DataError.
    """
    weights = CheckpointWeights(trained)
    model = weights.model
    stacked = ARCHITECTURES[trained.spec.config.kind].interacts
    if num_shards > 1:
        model.sparse_arch = ShardedTables(trained.tables, types, weights.table, num_shards, stacked=stacked)
    else:
        model.sparse_arch = QuantizedTables(trained.tables, types, weights.table, stacked=stacked)
    return ScoringModel(model).eval().requires_grad_(False)
