"""DLRM: pairwise dot products of the features' vectors (Naumov et al. 2019, arXiv:1906.00091)."""

from torch import nn
from torchrec.models.dlrm import DLRM
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dlrm_app.config.model import ModelConfig
from dlrm_app.model.sparse_arch import SparseFirst


class DotModel(SparseFirst, DLRM):
    """torchrec's, whose tables come before its bottom MLP."""


def build(
    config: ModelConfig, bags: EmbeddingBagCollection, num_dense: int, bottom: list[int], top: list[int]
) -> nn.Module:
    return DotModel(bags, num_dense, bottom, top)
