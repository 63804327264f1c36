"""DCNv2: low-rank cross layers (Wang et al. 2021, arXiv:2008.13535), as MLPerf's DLRM-DCNv2 has them."""

from torch import nn
from torchrec.models.dlrm import DLRM_DCN
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dlrm_app.config.model import ModelConfig
from dlrm_app.model.sparse_arch import SparseFirst


class CrossModel(SparseFirst, DLRM_DCN):
    """torchrec's, whose tables come before its bottom MLP."""


def build(
    config: ModelConfig, bags: EmbeddingBagCollection, num_dense: int, bottom: list[int], top: list[int]
) -> nn.Module:
    assert config.dcn_num_layers is not None
    assert config.dcn_low_rank_dim is not None
    return CrossModel(bags, num_dense, bottom, top, config.dcn_num_layers, config.dcn_low_rank_dim)
