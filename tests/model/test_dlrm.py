"""Embeddings as one tensor in the features' order, whatever order they were looked up in."""

import pytest
import torch
from torch import nn
from torchrec.distributed.types import LazyNoWait
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from dlrm_app.config.train import ModelConfig
from dlrm_app.model.architectures import ARCHITECTURES
from dlrm_app.model.dlrm import OrderedSparseArch

TABLES = [
    EmbeddingBagConfig(name=f"t{n}", embedding_dim=4, num_embeddings=3, feature_names=[f"f{n}"])
    for n in range(3)
]


def test_vectors_in_order_are_not_copied() -> None:
    values = torch.arange(24.0).view(2, 12)
    stacked = OrderedSparseArch(EmbeddingBagCollection(tables=TABLES)).stack(
        KeyedTensor(["f0", "f1", "f2"], [4, 4, 4], values)
    )
    assert stacked.data_ptr() == values.data_ptr()
    assert torch.equal(stacked, values.view(2, 3, 4))


def test_vectors_in_another_order_are_sorted() -> None:
    values = torch.arange(24.0).view(2, 12)
    stacked = OrderedSparseArch(EmbeddingBagCollection(tables=TABLES)).stack(
        KeyedTensor(["f2", "f0", "f1"], [4, 4, 4], values)
    )
    assert torch.equal(stacked, values.view(2, 3, 4)[:, [1, 2, 0]])


class Lookup(nn.Module):
    """Sends embeddings on their way and writes down when they are waited for."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self._events = events

    def forward(self, _: object) -> LazyNoWait[KeyedTensor]:
        self._events.append("lookup")
        on_the_way = LazyNoWait(KeyedTensor(["f0", "f1", "f2"], [4, 4, 4], torch.ones(2, 12)))
        on_the_way.callbacks.append(lambda pooled: self._events.append("arrived") or pooled)
        return on_the_way


KEYS = {
    "dlrm": {},
    "dcn": {"dcn_num_layers": 1, "dcn_low_rank_dim": 2},
    "projection": {"projection_branch1": [2], "projection_branch2": [2]},
}


@pytest.mark.parametrize("kind", KEYS)
def test_embeddings_travel_while_the_bottom_mlp_is_computed(kind: str) -> None:
    bags, events = EmbeddingBagCollection(tables=TABLES), []
    config = ModelConfig(kind=kind, bottom_mlp=[4], top_mlp=[1], **KEYS[kind])
    model = ARCHITECTURES[kind].build(config, bags, 5, [4], [3, 1])
    model.sparse_arch.embedding_bag_collection = Lookup(events)
    model.dense_arch.register_forward_hook(lambda *_: events.append("bottom MLP"))
    assert model(torch.ones(2, 5), KeyedJaggedTensor.empty()).shape == (2, 1)
    assert events == ["lookup", "bottom MLP", "arrived"]
