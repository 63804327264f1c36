"""A table begins with the same weights on a GPU as on CPU."""

import torch
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dlrm_app.model.initial_weights import init_tables
from dlrm_app.tables.bags import meta_bags
from tests.cuda_without_gpu.make_believe import CPU, GPU, MakeBelieveGpu
from tests.random_batches import TABLES


def fresh_tables() -> EmbeddingBagCollection:
    return meta_bags(TABLES).to_empty(device=CPU)


def test_weights_are_those_of_the_cpu() -> None:
    on_cpu, on_gpu = fresh_tables(), fresh_tables()
    init_tables(on_cpu, TABLES, seed=3)
    with MakeBelieveGpu():
        on_gpu.to(GPU)
        init_tables(on_gpu, TABLES, seed=3)
        for name, weight in on_gpu.state_dict().items():
            assert weight.is_cuda
            assert torch.equal(weight.cpu(), on_cpu.state_dict()[name])
