"""The pooled embeddings of the features as one tensor, without a copy where they already lie in order."""

import torch
from torch import fx, nn
from torchrec.models.dlrm import SparseArch
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor


class OrderedSparseArch(SparseArch):
    """torchrec's, whose result [B, F, D] is a view of what was looked up where that is in the features' order."""

    def __init__(self, bags: EmbeddingBagCollection) -> None:
        super().__init__(bags)
        self.stack = _Stack(self.sparse_feature_names, self.D)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        """Ids of F features → [B, F, D]."""
        return self.stack(self.embedding_bag_collection(features))


class _Stack(nn.Module):
    """A module, so that the pipelines, which trace the model, take it as a whole."""

    def __init__(self, features: list[str], dim: int) -> None:
        super().__init__()
        self._features = features
        self._dim = dim

    def forward(self, pooled: KeyedTensor) -> torch.Tensor:
        if not isinstance(pooled, fx.Proxy) and pooled.keys() == self._features:
            return pooled.values().view(-1, len(self._features), self._dim)
        by_name = pooled.to_dict()
        values = torch.cat([by_name[name] for name in self._features], dim=1)
        return values.reshape(-1, len(self._features), self._dim)
