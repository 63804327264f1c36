"""Embeddings that travel in fewer bits: plain torch that rounds at the same places trains alike."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from dlrm_app.config.sharding import CollectivesConfig
from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.sharding.sharder import quantized_collectives
from tests.composed import compose_config
from tests.integration.sharded_losses import BATCH, COMMON, NUM_STEPS, WIDE_TABLES
from tests.integration.test_sharded_parity import sharded
from tests.plain_model import PlainModel
from tests.plain_training import plain_copy, run_plain
from tests.random_batches import NUM_DENSE, draw
from tests.trainable import trainable_of

CASES = [(kind, "sgd", bits) for kind in ("table_wise", "row_wise") for bits in ("fp16", "bf16")]
TOLERANCE = 1e-6
"""Of a loss."""


ROUND: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fp16": lambda x: x.half().float(),
    "bf16": lambda x: x.bfloat16().float(),
}


class Travel(torch.autograd.Function):
    """Rounds a value on its way there, and its gradient on its way back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bits: str) -> torch.Tensor:
        ctx.bits = bits
        return ROUND[bits](x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ROUND[ctx.bits](gradient), None


class RoundingModel(PlainModel):
    """table_wise: pooled vectors travel. row_wise: each half of a table gives a part, and the sum is rounded too."""

    sharding, bits = "", ""

    def pooled(self, ids: dict[str, list[list[int]]]) -> list[torch.Tensor]:
        if self.sharding == "table_wise":
            return [Travel.apply(vector, self.bits) for vector in super().pooled(ids)]
        return [self.sum_of_parts(feature, ids[feature], self.bits) for feature in self.table_of]

    def sum_of_parts(self, feature: str, bags: list[list[int]], bits: str) -> torch.Tensor:
        weight = self.bags[self.table_of[feature]].weight
        middle = -(-len(weight) // 2)
        parts = []
        for low, high in ((0, middle), (middle, len(weight))):
            held = [[i for i in bag if low <= i < high] for bag in bags]
            flat = torch.tensor([i for bag in held for i in bag], dtype=torch.int64)
            offsets = torch.tensor([0, *map(len, held)]).cumsum(0)
            parts.append(F.embedding_bag(flat, weight, offsets, mode="sum", include_last_offset=True))
        rounded = [ROUND[bits](part.detach()) for part in parts]
        travelled = ROUND[bits](rounded[0] + rounded[1])
        summed = Travel.apply(parts[0] + parts[1], bits)  # for its gradient
        return summed + (travelled - summed).detach()


def plain_losses(model: PlainModel, config: TrainConfig, sharding: str, bits: str | None) -> torch.Tensor:
    plain = copy.deepcopy(model)
    if bits is not None:
        plain.__class__ = RoundingModel
        plain.sharding, plain.bits = sharding, bits
    return run_plain(
        plain, config, [draw(seed, BATCH, WIDE_TABLES) for seed in range(NUM_STEPS)], WIDE_TABLES
    )


@pytest.mark.slow
def test_losses_match_plain_torch_with_the_same_rounding() -> None:
    """Over 10 steps on 2 ranks; those that round nothing are far off."""
    config = compose_config("train", TrainConfig, [*COMMON, "optimizer=sgd"])
    with start_runtime(num_threads=1) as runtime:
        plain = plain_copy(trainable_of(config, WIDE_TABLES, NUM_DENSE, runtime))
    exact = plain_losses(plain, config, "table_wise", None)
    for (sharding, _, bits), run in zip(CASES, sharded(CASES, 2), strict=True):
        found, rounded = torch.tensor(run["losses"]), plain_losses(plain, config, sharding, bits)
        assert float((found - rounded).abs().max()) < TOLERANCE, (sharding, bits)
        assert float((found - exact).abs().max()) > 5 * TOLERANCE, (sharding, bits)


def test_nothing_is_rounded_unless_asked_for() -> None:
    assert quantized_collectives(CollectivesConfig()) is None
