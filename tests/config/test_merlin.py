"""NVIDIA Merlin's synthetic models have the published tables, layers and inputs."""

import math
from functools import cache

import pytest
import torch
from torch import nn

from dlrm_app.config.generate import GenerateConfig
from dlrm_app.config.train import TrainConfig
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.build import build_model
from dlrm_app.tables.specs import resolve_tables
from dlrm_app.tables.table import Table
from tests.composed import compose_config

# https://github.com/NVIDIA-Merlin/distributed-embeddings, examples/benchmarks/synthetic_models, README.md (tables, GiB)
# and config_v3.py (the rest): pooling factor of the second feature, then (count, rows, width) of tables of two features
# and of those read by one.
PUBLISHED = {
    "tiny": (55, 4.2, 10,
             [(1, 10_000, 8), (1, 1_000_000, 16), (1, 25_000_000, 16)],
             [(1, 25_000_000, 16), (16, 10, 8), (10, 1000, 8), (4, 10_000, 8), (2, 100_000, 16), (19, 1_000_000, 16)]),
    "small": (107, 26.3, 30,
              [(5, 10_000, 16), (3, 4_000_000, 32), (1, 50_000_000, 32)],
              [(1, 50_000_000, 32), (30, 10, 16), (30, 1000, 16), (5, 10_000, 16), (5, 100_000, 32),
               (27, 4_000_000, 32)]),
    "medium": (311, 206.2, 50,
               [(20, 100_000, 64), (5, 10_000_000, 64), (1, 100_000_000, 128)],
               [(1, 100_000_000, 128), (80, 10, 32), (60, 1000, 32), (80, 100_000, 64), (24, 200_000, 64),
                (40, 10_000_000, 64)]),
    "large": (612, 773.8, 100,
              [(40, 100_000, 64), (16, 15_000_000, 64), (1, 200_000_000, 128)],
              [(1, 200_000_000, 128), (100, 10, 32), (100, 10_000, 32), (160, 100_000, 64), (50, 500_000, 64),
               (144, 15_000_000, 64)]),
    "jumbo": (1022, 3109.5, 200,
              [(50, 100_000, 128), (24, 20_000_000, 128), (1, 400_000_000, 256)],
              [(1, 400_000_000, 256), (100, 10, 32), (200, 10_000, 64), (350, 100_000, 128), (80, 1_000_000, 128),
               (216, 20_000_000, 128)]),
    "colossal": (2002, 22327.4, 300,
                 [(100, 100_000, 128), (50, 40_000_000, 256), (1, 2_000_000_000, 256)],
                 [(1, 1_000_000_000, 256), (100, 10, 32), (400, 10_000, 128), (100, 100_000, 128),
                  (800, 1_000_000, 128), (450, 40_000_000, 256)]),
}  # fmt: skip

MODELS = {  # mlp_sizes, num_numerical_features, interact_stride
    "tiny": ([256, 128], 10, None),
    "small": ([512, 256, 128], 10, None),
    "medium": ([1024, 512, 256, 128], 25, 7),
    "large": ([2048, 1024, 512, 256], 100, 8),
    "jumbo": ([2048, 1024, 512, 256], 200, 20),
    "colossal": ([4096, 2048, 1024, 512, 256], 500, 30),
}


@cache
def tables_of(name: str) -> list[Table]:
    config = compose_config("train", TrainConfig, ["data.path=x", f"merlin={name}"])
    return resolve_tables(config.tables, None)


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_the_tables_are_the_published_ones(name: str) -> None:
    num_tables, gib, factor, shared, one_hot = PUBLISHED[name]
    tables = tables_of(name)
    assert len(tables) == num_tables
    assert round(sum(table.num_bytes for table in tables) / 2**30, 1) == gib
    expected = [(rows, dim, [1, factor]) for count, rows, dim in shared for _ in range(count)]
    expected += [(rows, dim, [1]) for count, rows, dim in one_hot for _ in range(count)]
    assert [(table.rows, table.dim, table.expected_pooling_factors) for table in tables] == expected
    assert {(table.pooling, table.data_type) for table in tables} == {("sum", "fp32")}
    names = [table.name for table in tables]
    features = [feature for table in tables for feature in table.features]
    assert (len({*names}), len({*features})) == (len(names), len(features))


@pytest.mark.parametrize("name", list(MODELS))
def test_the_models_are_the_published_ones(name: str) -> None:
    """Layers, stride and dense features; the recipes give the benchmark's optimizer and batch to the same tables."""
    mlp, num_dense, stride = MODELS[name]
    config = compose_config("train", TrainConfig, ["data.path=x", f"merlin={name}"])
    assert config.problems() == []
    model, optimizer = config.model, config.optimizer
    assert (model.kind, model.bottom_mlp, model.top_mlp, model.stride) == ("concat", [], [*mlp, 1], stride)
    for settings in (optimizer.sparse, optimizer.dense):
        assert (settings.kind, settings.lr, settings.eps) == ("adagrad", 0.001, 1e-7)
    assert config.trainer.global_batch_size == 65536
    inputs = compose_config("generate", GenerateConfig, ["output=unused", f"merlin={name}"])
    assert inputs.problems() == []
    assert (inputs.format, inputs.num_dense, inputs.alpha) == ("dataset", num_dense, 1.05)
    assert inputs.tables == config.tables


def test_the_first_layer_is_as_wide_as_what_is_concatenated() -> None:
    """Tiny plainly; Medium in windows of 7, the last one short."""
    for name in ("tiny", "medium"):
        mlp, num_dense, stride = MODELS[name]
        tables = tables_of(name)
        config = compose_config("train", TrainConfig, ["data.path=x", f"merlin={name}"])
        model = build_model(ModelSpec(config.model, tables, num_dense), torch.device("cpu"))
        width = sum(table.dim * len(table.features) for table in tables)
        assert width == {"tiny": 672, "medium": 17280}[name]
        shapes = [tuple(layer.weight.shape) for layer in model.modules() if isinstance(layer, nn.Linear)]
        first = math.ceil(width / (stride or 1)) + num_dense
        assert shapes == list(zip([*mlp, 1], [first, *mlp], strict=True))


def test_typed_values_win_over_a_preset() -> None:
    """A group as a whole: nothing of the preset's model stays in another one."""
    typed = ["model=dcn", "trainer.global_batch_size=64", "tables.specs=[{name: t, rows: 9, features: [a]}]"]
    config = compose_config("train", TrainConfig, ["data.path=x", "merlin=medium", *typed])
    plain = compose_config("train", TrainConfig, ["data.path=x", "model=dcn"])
    assert config.model == plain.model
    assert config.trainer.global_batch_size == 64
    assert [spec["name"] for spec in config.tables.specs] == ["t"]
