"""DLRM: pairwise dot products of the features' vectors (Naumov et al. 2019, arXiv:1906.00091)."""

import torch
from torch import nn
from torchrec.models.dlrm import DLRM, InteractionArch
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dlrm_app.config.model import ModelConfig
from dlrm_app.kernels import openmp
from dlrm_app.kernels.traced import is_traced
from dlrm_app.model.sparse_arch import SparseFirst


class DotInteraction(InteractionArch):
    """torchrec's, in one compiled pass where the vectors lie on the CPU; in float32 there, also in a bf16 step."""

    def forward(self, dense_features: torch.Tensor, sparse_features: torch.Tensor) -> torch.Tensor:
        """([B, D], [B, F, D]) → [B, D + pairs]."""
        if not _are_compiled_for(dense_features, sparse_features):
            return super().forward(dense_features, sparse_features)
        from dlrm_app.kernels.pairwise_dots import PairwiseDots  # compiled when it is first needed

        dense, sparse = dense_features.float().contiguous(), sparse_features.float().contiguous()
        return PairwiseDots.apply(dense, sparse)  # type: ignore[no-untyped-call]


def _are_compiled_for(dense: torch.Tensor, sparse: torch.Tensor) -> bool:
    if is_traced(dense, sparse) or not openmp.IS_AVAILABLE:
        return False
    return all(
        values.device.type == "cpu" and values.dtype in (torch.float32, torch.bfloat16)
        for values in (dense, sparse)
    )


class DotModel(SparseFirst, DLRM):
    """torchrec's, whose tables come before its bottom MLP."""


def build(
    config: ModelConfig, bags: EmbeddingBagCollection, num_dense: int, bottom: list[int], top: list[int]
) -> nn.Module:
    model = DotModel(bags, num_dense, bottom, top)
    model.inter_arch = DotInteraction(len(model.sparse_arch.sparse_feature_names))
    return model
