"""Periodic embeddings of dense features, against the formula in plain Python and a model in plain torch."""

import math

import pytest
import torch

from dlrm_app.dataset.columns import number_features
from dlrm_app.dataset.manifest import DenseColumn
from dlrm_app.model.architectures import ARCHITECTURES
from dlrm_app.model.dense_embedding import PeriodicEmbedding, set_moments
from tests.model.test_parity import MODELS
from tests.plain_training import assert_trains_like_plain, compose_train

CONCAT = ["model=concat", "model.bottom_mlp=[]", "model.top_mlp=[16]"]


def test_a_value_becomes_itself_standardised_and_its_waves() -> None:
    embedding = PeriodicEmbedding(2, [0, 1], 3)
    rows = torch.tensor([[1.0, -2.0], [3.0, 5.0], [8.0, 0.5]])
    set_moments(embedding, rows)
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
    set_moments(embedding, torch.full((4, 1), 7.0))
    assert embedding(torch.tensor([[7.0], [9.0]]))[:, 0].tolist() == [0.0, 2.0]


def test_scale_and_shift_of_a_feature_make_no_difference() -> None:
    rows = torch.rand(50, 3, generator=torch.Generator().manual_seed(0))
    embedding = PeriodicEmbedding(3, [0, 1, 2], 4)
    set_moments(embedding, rows)
    expected = embedding(rows)
    moved = rows * torch.tensor([1000.0, 0.01, 3.0]) - 5
    set_moments(embedding, moved)
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
    set_moments(embedding, rows)
    found = embedding(rows)
    assert found.shape == (20, 3 + 2 * 4)
    assert torch.equal(found[:, 1], rows[:, 1])
    assert found[:, [0, 2]].mean(0).abs().max() < 1e-6
