"""Trains on every rank, then measures health and curves."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.manifest import Manifest, SparseColumn
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.evaluation.curves import measure_curves
from dlrm_app.training.setup import Trainable, build_trainable
from dlrm_app.training.table_health import TableHealth
from tests.random_batches import NUM_DENSE, TABLES, draw, to_batch

TRAIN_SEEDS, EVAL_SEEDS, BATCH = range(6), range(100, 103), 32
MANIFEST = Manifest(
    dataset="random",
    label="label",
    dense=[],
    sparse=[
        SparseColumn("f1", 100, {"missing_id": 0, "rare_id": 1}, distinct=80, collisions=20),
        SparseColumn("f2", 100, {"missing_id": 0, "rare_id": 1}, distinct=120, collisions=10),
        SparseColumn("f3", 50, {}, multi_hot=True),
        SparseColumn("f4", 20_000, {"missing_id": 0}),
    ],
    splits={},
    sources=[],
    config={},
)


def train_and_measure(
    sharding_type: str, optimizer: str, runtime: Runtime
) -> tuple[Trainable, dict[str, dict[str, float | None]]]:
    overrides = [
        "data.path=unused",
        "trainer.global_batch_size=64",
        f"optimizer={optimizer}",
        f"sharding.types=[{sharding_type}]",
        "model.bottom_mlp=[16]",
        "model.top_mlp=[16]",
    ]
    trainable = build_trainable(compose_config("train", TrainConfig, overrides), TABLES, NUM_DENSE, runtime)
    health = TableHealth(trainable.model, TABLES, MANIFEST, runtime.device)
    stream = (to_batch(*draw(seed, BATCH), runtime.rank, runtime.world_size) for seed in TRAIN_SEEDS)
    for _ in TRAIN_SEEDS:
        trainable.pipeline.progress(stream)
    for _ in range(2):  # the second evaluation does not count the first one's lookups again
        see = health.start_split()
        for seed in EVAL_SEEDS:
            see(to_batch(*draw(seed, BATCH), runtime.rank, runtime.world_size))
    return trainable, health.measure()


def draw_scores() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(5001, generator=generator) * 1.5 - 1
    return logits, torch.rand(5001, generator=generator) < logits.sigmoid()


def curves_of_part(rank: int, world_size: int) -> dict[str, Any]:
    """The first of several ranks has few rows, the last one the rest."""
    logits, labels = draw_scores()
    cuts = [0, *[700] * (world_size - 1), len(logits)]
    rows = slice(cuts[rank], cuts[rank + 1])
    curves = measure_curves(logits[rows], labels[rows])
    assert curves is not None
    return asdict(curves)


def measure(cases: Sequence[tuple[str, str]], runtime: Runtime) -> dict[str, Any]:
    """What this rank finds of each case (sharding type, optimizer), and its curves of some rows and of none."""
    return {
        "health": [train_and_measure(*case, runtime)[1] for case in cases],
        "curves": curves_of_part(runtime.rank, runtime.world_size),
        "of no rows": measure_curves(torch.empty(0), torch.empty(0, dtype=torch.bool)),
    }
