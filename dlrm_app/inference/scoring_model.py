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


class Bf16Linear(nn.Module):
    """A linear layer whose product has factors in bfloat16 and gives float32, as in the training step's autocast."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("weight", linear.weight.detach().to(torch.bfloat16))
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().to(torch.bfloat16))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(values.to(torch.bfloat16), self.weight, self.bias).float()


class Int8Linear(nn.Module):
    """A linear layer whose product has factors in int8: an output's weights have one scale, and so does each row's input.

    A row's scale is its own, so that a row's score does not depend on the rows beside it.
    """

    weight: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        scale = weight.abs().amax(1).clamp(min=_TINY) / _INT8_MAX
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        scale = values.abs().amax(1, keepdim=True).clamp(min=_TINY) / _INT8_MAX
        rounded = (values / scale).round().to(torch.int8)
        product = torch._int_mm(rounded, self.weight.t()) * scale * self.scale
        return product if self.bias is None else product + self.bias


_INT8_MAX, _TINY = 127.0, 1e-12


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


def build_scoring_model(
    trained: TrainedModel, types: Mapping[str, str], dense: str, num_shards: int = 1
) -> ScoringModel:
    """The model of a checkpoint with tables of ``types`` (name → type) and linear layers of type ``dense``.

    Tables in several shards are torchrec's. Holds the quantized tables and, while it is built, the largest of the trained ones. Raises DataError.
    """
    weights = CheckpointWeights(trained)
    model = weights.model
    stacked = ARCHITECTURES[trained.spec.config.kind].interacts
    if num_shards > 1:
        model.sparse_arch = ShardedTables(trained.tables, types, weights.table, num_shards, stacked=stacked)
    else:
        model.sparse_arch = QuantizedTables(trained.tables, types, weights.table, stacked=stacked)
    if dense in _LINEAR:
        _replace_linear(model, _LINEAR[dense])
    return ScoringModel(model).eval().requires_grad_(False)


_LINEAR: dict[str, type[nn.Module]] = {"bf16": Bf16Linear, "int8": Int8Linear}


def _replace_linear(model: nn.Module, kind: type[nn.Module]) -> None:
    """Puts a ``kind`` in the place of every linear layer but those of one output: 8 bits of a logit would tie rows."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and child.out_features > 1:
                setattr(module, name, kind(child))
