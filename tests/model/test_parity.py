"""The sharded model on one rank and a model in plain torch agree, forward and after optimizer steps."""

import pytest
import torch

from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS
from tests.composed import compose_config
from tests.plain_training import assert_trains_like_plain, compose_train, weights_of
from tests.random_batches import NUM_DENSE, TABLES
from tests.trainable import trainable_of

MODELS = {
    "dlrm": ["model.bottom_mlp=[16]", "model.top_mlp=[16]"],
    "dcn": ["model=dcn", "model.bottom_mlp=[16]", "model.top_mlp=[16]", "model.dcn_low_rank_dim=3"],
    "dcn_parallel": [
        "model=dcn_parallel",
        "model.bottom_mlp=[]",
        "model.top_mlp=[16]",
        "model.dcn_num_layers=2",
    ],
    "projection": [
        "model=projection",
        "model.bottom_mlp=[16]",
        "model.top_mlp=[16]",
        "model.projection_branch1=[16,3]",
        "model.projection_branch2=[16,2]",
    ],
    "gdcn": ["model=gdcn", "model.bottom_mlp=[]", "model.top_mlp=[16]", "model.dcn_num_layers=2"],
    "gdcn_parallel": [
        "model=gdcn_parallel",
        "model.bottom_mlp=[]",
        "model.top_mlp=[16]",
        "model.dcn_num_layers=2",
    ],
    "finalnet": [
        "model=finalnet",
        "model.bottom_mlp=[]",
        "model.top_mlp=[16,8]",
        "model.finalnet_mlp2=[12]",
        "model.dropout=0",
    ],
    "dcnv3": [
        "model=dcnv3",
        "model.bottom_mlp=[]",
        "model.top_mlp=[]",
        "model.dcn_num_layers=2",
        "model.dcnv3_num_linear_layers=3",
        "model.num_heads=2",
        "model.batch_norm=true",
        "model.dropout=0",
        "model.dcnv3_linear_dropout=null",
    ],
    "qnn": [
        "model=qnn",
        "model.bottom_mlp=[]",
        "model.top_mlp=[]",
        "model.dcn_num_layers=2",
        "model.qnn_num_rows=3",
        "model.num_heads=2",
        "model.dropout=0",
    ],
}
CASES = [("dcn", "adagrad"), ("dcn_parallel", "adam"), ("projection", "sgd")]
CASES += [
    ("gdcn", "sgd"),
    ("gdcn_parallel", "adam"),
    ("finalnet", "adagrad"),
    ("dcnv3", "sgd"),
    ("qnn", "adam"),
]
CASES += [("dlrm", kind) for kind in SPARSE_OPTIMIZERS]


@pytest.mark.parametrize(("kind", "optimizer"), CASES)
def test_ten_steps_equal_plain_torch(kind: str, optimizer: str) -> None:
    """Same losses at every step and same weights at the end, for every architecture and every sparse optimizer."""
    assert_trains_like_plain(compose_train(f"optimizer={optimizer}", *MODELS[kind]))


@pytest.mark.parametrize(
    ("kind", "optimizer"), [("dlrm", "rowwise_adagrad"), ("dcn", "adagrad"), ("projection", "sgd")]
)
def test_the_libraries_own_code_trains_like_plain_torch(kind: str, optimizer: str) -> None:
    keys = [f"optimizer={optimizer}", "trainer.kernels=libraries", *MODELS[kind]]
    assert_trains_like_plain(compose_train(*keys))


def test_initial_weights_depend_on_the_seed_alone() -> None:
    """Same seed, same weights; another seed, others; and each table within its distribution's bound."""

    def fresh(seed: int) -> dict[str, torch.Tensor]:
        config = compose_config("train", TrainConfig, ["data.path=unused", f"trainer.seed={seed}"])
        with start_runtime(num_threads=1) as runtime:
            return weights_of(trainable_of(config, TABLES, NUM_DENSE, runtime))

    first, again, other = fresh(1), fresh(1), fresh(2)
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert not torch.equal(value, other[name]) or "bias" in name
    shared = first["bags.shared.weight"]
    assert shared.abs().max() <= 0.1
    assert shared.abs().max() > 0.095
    assert first["bags.long.weight"].std().item() == pytest.approx(8**-0.5, rel=0.02)
