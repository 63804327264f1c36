"""DLRM whose dot products are between two learned mixtures of the features' vectors (torchrec's DLRM_Projection)."""

from torch import nn
from torchrec.models.dlrm import DLRM_Projection
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dlrm_app.config.model import ModelConfig
from dlrm_app.model.sparse_arch import SparseFirst


class ProjectionModel(SparseFirst, DLRM_Projection):
    """torchrec's, whose tables come before its bottom MLP."""


def build(
    config: ModelConfig, bags: EmbeddingBagCollection, num_dense: int, bottom: list[int], top: list[int]
) -> nn.Module:
    """``projection_branch1`` and ``2`` end with how many vectors, as wide as the tables, each mixture has."""
    assert config.projection_branch1 is not None
    assert config.projection_branch2 is not None
    dim = bags.embedding_bag_configs()[0].embedding_dim
    *hidden1, num_vectors1 = config.projection_branch1
    *hidden2, num_vectors2 = config.projection_branch2
    branches = [*hidden1, num_vectors1 * dim], [*hidden2, num_vectors2 * dim]
    return ProjectionModel(bags, num_dense, bottom, top, *branches)
