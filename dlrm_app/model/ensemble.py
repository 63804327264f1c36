"""Several models in one, each with its own columns of every table and its own dense weights: a deep ensemble.

Lakshminarayanan et al. 2017 (arXiv:1612.01474). Shapes: K models, B batch rows, F sparse features, D each
model's share of the tables' width, N dense features.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F
from torchrec.models.dlrm import SparseArch
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


class Ensemble(nn.Module):
    """``models`` side by side over tables K · D wide: model k reads columns [k · D, (k + 1) · D) of every row.

    In training each model reads its own rows, so that each sees the data in another order: a batch is K pieces
    of B rows, piece k for model k. In evaluation all models see all rows.
    """

    def __init__(self, bags: EmbeddingBagCollection, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.sparse_arch = SparseArch(bags)
        for model in models:
            model.sparse_arch = nn.Identity()  # its input is embeddings already
        self.models = nn.ModuleList(models)

    def forward(self, dense_features: torch.Tensor, sparse_features: KeyedJaggedTensor) -> torch.Tensor:
        """Training: [K · B, N] and K · B rows of ids → each row's logit by its model, [K · B, 1].

        Evaluation: [B, N] and B rows of ids → the logit of the mean of all models' probabilities, [B, 1].
        """
        count = len(self.models)
        embedded = torch.unflatten(self.sparse_arch(sparse_features), 2, (count, -1))  # [rows, F, K, D]
        if not self.training:
            logits = [model(dense_features, embedded[:, :, k]) for k, model in enumerate(self.models)]
            return logit_of_mean(torch.stack(logits))
        dense = torch.unflatten(dense_features, 0, (count, -1))
        vectors = torch.unflatten(embedded, 0, (count, -1)).diagonal(dim1=0, dim2=3)  # [B, F, D, K]
        return torch.cat([model(dense[k], vectors[..., k]) for k, model in enumerate(self.models)])


def logit_of_mean(logits: torch.Tensor) -> torch.Tensor:
    """[K, …] → […]: the logit of the mean of the K probabilities, exact for large logits too.

    The mean of the logits is not used: its probability is nearer to 0 or 1 than the mean. With rare clicks, models
    that are calibrated alone would together predict too few (4% too few if 3% click and logits differ by 0.3).
    """
    return F.logsigmoid(logits).logsumexp(0) - F.logsigmoid(-logits).logsumexp(0)
