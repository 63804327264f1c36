"""DLRM: pairwise dot products of the features' vectors (Naumov et al. 2019, arXiv:1906.00091)."""

from torch import nn
from torchrec.models.dlrm import DLRM
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dlrm_app.config.model import ModelConfig


def build(
    config: ModelConfig, bags: EmbeddingBagCollection, num_dense: int, bottom: list[int], top: list[int]
) -> nn.Module:
    return DLRM(bags, num_dense, bottom, top)
