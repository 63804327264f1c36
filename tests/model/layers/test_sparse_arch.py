"""Embeddings as one tensor in the features' order, whatever order they were looked up in."""

import torch
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedTensor

from dlrm_app.model.layers.sparse_arch import OrderedSparseArch

TABLES = [
    EmbeddingBagConfig(name=f"t{n}", embedding_dim=4, num_embeddings=3, feature_names=[f"f{n}"])
    for n in range(3)
]


def test_what_lies_in_order_is_not_copied() -> None:
    values = torch.arange(24.0).view(2, 12)
    stacked = OrderedSparseArch(EmbeddingBagCollection(tables=TABLES)).stack(
        KeyedTensor(["f0", "f1", "f2"], [4, 4, 4], values)
    )
    assert stacked.data_ptr() == values.data_ptr()
    assert torch.equal(stacked, values.view(2, 3, 4))


def test_another_order_is_put_right() -> None:
    values = torch.arange(24.0).view(2, 12)
    stacked = OrderedSparseArch(EmbeddingBagCollection(tables=TABLES)).stack(
        KeyedTensor(["f2", "f0", "f1"], [4, 4, 4], values)
    )
    assert torch.equal(stacked, values.view(2, 3, 4)[:, [1, 2, 0]])
