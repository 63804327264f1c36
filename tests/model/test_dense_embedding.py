"""Periodic embeddings and polylines of dense features, against formulas in plain Python, NumPy and plain torch."""

import math

import numpy as np
import pytest
import torch

from dlrm_app.dataset.columns import number_features
from dlrm_app.dataset.manifest import DenseColumn
from dlrm_app.errors import ConfigError
from dlrm_app.model.architectures import ARCHITECTURES
from dlrm_app.model.dense_embedding import (
    POINTS_SCALE,
    PeriodicEmbedding,
    PolylineVectors,
    begin_with_sample,
    with_polylines,
)
from dlrm_app.model.feature_vectors import DenseVectors
from dlrm_app.model.problems import model_problems
from tests.model.test_parity import MODELS
from tests.plain_training import assert_trains_like_plain, compose_train

CONCAT = ["model=concat", "model.bottom_mlp=[]", "model.top_mlp=[16]"]


def test_a_value_becomes_itself_standardised_and_its_waves() -> None:
    embedding = PeriodicEmbedding(2, [0, 1], 3)
    rows = torch.tensor([[1.0, -2.0], [3.0, 5.0], [8.0, 0.5]])
    begin_with_sample(embedding, rows)
    found = embedding(rows)
    assert found.shape == (3, 2 * (1 + 3))
    for b in range(3):
        for n in range(2):
            column = rows[:, n].tolist()
            mean = sum(column) / 3
            value = (column[b] - mean) / math.sqrt(sum((x - mean) ** 2 for x in column) / 3)
            assert found[b, n].item() == pytest.approx(value, abs=1e-6)
            angles = [2 * math.pi * value * f for f in embedding.frequencies[n].tolist()]
            waves = [*map(math.sin, angles), *map(math.cos, angles)]
            for e in range(3):
                products = zip(waves, embedding.weight[n, e].tolist(), strict=True)
                expected = max(0.0, sum(w * x for w, x in products) + embedding.bias[n, e].item())
                assert found[b, 2 + 3 * n + e].item() == pytest.approx(expected, abs=1e-5)


def test_a_feature_that_never_changes_stays_finite() -> None:
    embedding = PeriodicEmbedding(1, [0], 2)
    begin_with_sample(embedding, torch.full((4, 1), 7.0))
    assert embedding(torch.tensor([[7.0], [9.0]]))[:, 0].tolist() == [0.0, 2.0]


def test_scale_and_shift_of_a_feature_make_no_difference() -> None:
    rows = torch.rand(50, 3, generator=torch.Generator().manual_seed(0))
    embedding = PeriodicEmbedding(3, [0, 1, 2], 4)
    begin_with_sample(embedding, rows)
    expected = embedding(rows)
    moved = rows * torch.tensor([1000.0, 0.01, 3.0]) - 5
    begin_with_sample(embedding, moved)
    torch.testing.assert_close(embedding(moved), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", [*ARCHITECTURES])
def test_ten_steps_equal_plain_torch(kind: str) -> None:
    """Every architecture takes them."""
    settings = CONCAT if kind == "concat" else MODELS[kind]
    # with Adagrad's usual eps a step jumps where a gradient passes 0, so its rounding would decide about whole steps
    keys = ["optimizer=adagrad", "optimizer.sparse.eps=1e-3", "model.dense_embedding_dim=3"]
    keys += (
        ["optimizer.dense.kind=sgd"] if kind == "dcnv3" else []
    )  # products of small vectors have small gradients
    assert_trains_like_plain(compose_train(*keys, *settings))


def test_target_columns_stay_as_they_are() -> None:
    """What is known of clicks is no number of the log: it has no waves, and keeps its scale."""
    kinds = ["log1p", "target", "standardize"]
    numbers = number_features([DenseColumn(kind, {"kind": kind}) for kind in kinds])
    assert numbers == [0, 2]
    rows = torch.rand(20, 3, generator=torch.Generator().manual_seed(1))
    embedding = PeriodicEmbedding(3, numbers, 4)
    begin_with_sample(embedding, rows)
    found = embedding(rows)
    assert found.shape == (20, 3 + 2 * 4)
    assert torch.equal(found[:, 1], rows[:, 1])
    assert found[:, [0, 2]].mean(0).abs().max() < 1e-6


def polylines(
    sample: torch.Tensor, features: list[int], num_knots: int
) -> tuple[DenseVectors, PolylineVectors]:
    """(vectors of width 3, the same with polylines that begin with ``sample`` and have points of any size)."""
    torch.manual_seed(0)
    vectors = DenseVectors(sample.shape[1], 3, 0.1)
    bent = with_polylines(vectors, features, num_knots)
    begin_with_sample(bent, sample)
    torch.nn.init.normal_(bent.points)
    return vectors, bent


def test_a_polyline_is_interpolated_between_quantiles() -> None:
    sample = torch.randn(1001, 3, generator=torch.Generator().manual_seed(3)) * torch.tensor(
        [1.0, 50.0, 0.01]
    )
    vectors, bent = polylines(sample, [0, 2], 5)
    rows = torch.cat([sample, 100 * sample])  # beyond the sample the lines are level
    added = (bent(rows) - vectors(rows)).detach().unflatten(1, (3, 3))
    assert not added[:, 1].any()
    for number, feature in enumerate((0, 2)):
        knots = np.quantile(sample[:, feature].numpy(), [0, 0.25, 0.5, 0.75, 1])
        for place in range(3):
            points = POINTS_SCALE * bent.points[number, :, place].detach().numpy()
            expected = np.interp(rows[:, feature].numpy(), knots, points)
            np.testing.assert_allclose(added[:, feature, place], expected, atol=2e-4)


def test_a_value_of_many_rows_has_a_point_of_its_own() -> None:
    sample = torch.cat([torch.zeros(70), torch.linspace(1, 30, 30)]).unsqueeze(1)
    vectors, bent = polylines(sample, [0], 6)
    zero, above = (bent(torch.tensor([[value]])) - vectors(torch.tensor([[value]])) for value in (0.0, 1e-6))
    torch.testing.assert_close(zero[0], POINTS_SCALE * bent.points[0, 0])
    torch.testing.assert_close(above[0], POINTS_SCALE * bent.points[0, 3], rtol=1e-4, atol=1e-4)
    assert bent(torch.full((1, 1), 7.0)).isfinite().all()


def test_a_sample_of_one_value_stays_finite() -> None:
    _, bent = polylines(torch.full((4, 1), 7.0), [0], 3)
    assert bent(torch.tensor([[7.0], [9.0], [-1e30]])).isfinite().all()


@pytest.mark.parametrize("kind", ["dcn_parallel", "finalnet"])
def test_ten_steps_with_polylines_equal_plain_torch(kind: str) -> None:
    keys = ["optimizer=adagrad", "optimizer.sparse.eps=1e-3", "model.dense_knots=4"]
    assert_trains_like_plain(compose_train(*keys, *MODELS[kind]))


def test_polylines_need_vectors_of_dense_features() -> None:
    (problem,) = model_problems(compose_train("model.dense_knots=4").model)
    assert str(problem).startswith("model.dense_knots=4 is not a setting of model.kind=dlrm: set ")
    assert "model=dcn_parallel or gdcn or" in problem.cure
    both = compose_train("model.dense_knots=4", "model.dense_embedding_dim=2", *MODELS["gdcn"]).model
    assert [each.key for each in model_problems(both)] == ["model.dense_knots"]
    with pytest.raises(ConfigError, match="needs a model whose dense_arch is DenseVectors"):
        with_polylines(torch.nn.Linear(2, 3), [0], 4)
