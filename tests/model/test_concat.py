"""The model that concatenates: equal to plain torch, for tables of unequal widths, with strides and in bf16."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dlrm_app.config.train import TrainConfig
from dlrm_app.errors import ConfigError, Problem, refuse_if
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.build import build_model
from dlrm_app.model.concat import StridedMean
from dlrm_app.model.problems import model_problems
from dlrm_app.tables.table import Table
from tests.composed import compose_config
from tests.plain_model import PlainModel
from tests.plain_training import assert_trains_like_plain, compose_train, train_both
from tests.random_batches import NUM_DENSE
from tests.refusals import is_like, refused

TABLES = [
    Table("shared", 100, 8, ("f1", "f2")),
    Table("bags", 50, 4, ("f3",), pooling="mean"),
    Table("long", 20_000, 16, ("f4",), init="normal"),
]
CONCAT = ["model=concat", "model.bottom_mlp=[]", "model.top_mlp=[16,8]"]


@pytest.mark.parametrize(
    ("stride", "optimizer"), [(None, "rowwise_adagrad"), (1, "adagrad"), (5, "adagrad"), (7, "adagrad")]
)
def test_ten_steps_equal_plain_torch(stride: int | None, optimizer: str) -> None:
    """Same losses at every step and same weights at the end; 36 values, so that 5 and 7 leave a window short."""

    def set_stride(plain: PlainModel) -> None:
        plain.stride = stride

    config = compose_train(*CONCAT, f"model.stride={stride or 'null'}", f"optimizer={optimizer}")
    assert_trains_like_plain(config, TABLES, change_plain=set_stride)


def test_bf16_rounds_the_dense_part_and_stays_near() -> None:
    """The losses of ten steps differ from those in fp32, by what eight bits can make."""
    bf16, _, _, _ = train_both(compose_train(*CONCAT, "trainer.precision=bf16"), TABLES)
    fp32, _, _, _ = train_both(compose_train(*CONCAT), TABLES)
    assert not torch.equal(bf16, fp32)
    torch.testing.assert_close(bf16, fp32, rtol=0, atol=2**-7)


@given(width=st.integers(1, 60), stride=st.integers(1, 70))
def test_every_value_counts_once_in_the_strided_means(width: int, stride: int) -> None:
    """Each value's influence is 1 over the size of its window; windows are of one size but for the first and last."""
    pooling = StridedMean(width, stride)
    influence = pooling(torch.eye(width))  # [width, windows]
    assert influence.shape == (width, pooling.width)
    assert (influence > 0).sum(1).tolist() == [1] * width
    sizes = (influence > 0).sum(0)
    torch.testing.assert_close(influence.sum(0), torch.ones(pooling.width))
    assert sizes[1:-1].tolist() == [stride] * max(0, pooling.width - 2)
    if pooling.width > 1:
        assert 0 <= (stride - sizes[-1]) - (stride - sizes[0]) <= 1


@pytest.mark.parametrize("kind", ["dlrm", "dcn", "projection"])
def test_tables_of_unequal_widths_are_refused_naming_concat(kind: str) -> None:
    config = compose_config("train", TrainConfig, ["data.path=unused", f"model={kind}"])
    with refused(ConfigError, f"model={kind}", "needs tables of one width...", cure="...model=concat..."):
        build_model(ModelSpec(config.model, TABLES, NUM_DENSE), torch.device("cpu"))


def test_concat_needs_no_dense_column() -> None:
    config = compose_train(*CONCAT)
    model = build_model(ModelSpec(config.model, TABLES, 0), torch.device("cpu"))
    first = next(module for module in model.modules() if isinstance(module, nn.Linear))
    assert first.in_features == 8 + 8 + 4 + 16


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model=concat", "model.bottom_mlp=[16]"], ["model.bottom_mlp=[16]", "model.bottom_mlp=[]"]),
        (["model.stride=3"], ["model.stride=3", "model=concat"]),
        ([*CONCAT, "model.stride=0"], ["model.stride must be at least 1"]),
        ([*CONCAT, "model.top_mlp=[1]"], ["model.top_mlp needs a hidden layer", "[1]"]),
    ],
)
def test_settings_that_cannot_be_are_refused(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        refuse_if(model_problems(compose_train(*overrides).model))
    for word in words:
        assert word in str(caught.value)


def test_an_architecture_needs_its_own_keys() -> None:
    (problem,) = model_problems(compose_train("model.kind=dcn", "model.dcn_num_layers=3").model)
    assert is_like(problem, "model.dcn_low_rank_dim", "is needed by model.kind=dcn")
    (problem,) = model_problems(compose_train("model.kind=dln").model)
    known = "dlrm, dcn, dcn_parallel, projection, concat, gdcn, gdcn_parallel, finalnet, dcnv3, qnn"
    cure = "or name the file that registers it: plugins=[FILE.py]"
    assert problem == Problem("model.kind", f"must be one of {known}", cure, "dln")
