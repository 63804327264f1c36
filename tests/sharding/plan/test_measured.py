"""Estimated beside measured: said once, for every rank, with the largest first."""

import logging
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.sharding.plan.measured import lines
from dlrm_app.training.setup import build_trainable
from tests.plain_training import SMALL
from tests.random_batches import NUM_DENSE, TABLES

MIB = 2**20


def planned(memory: list[float], time: list[float]) -> Any:
    return cast(Any, SimpleNamespace(loads=SimpleNamespace(device=np.array(memory), time=np.array(time))))


def test_each_rank_has_a_line_after_that_of_the_largest() -> None:
    plan = planned([1 * MIB, 2 * MIB], [0.5, 0.25])
    heading, largest, first, second = lines(plan, torch.tensor([[7.0 * MIB, 9.0], [8.0 * MIB, 3.0]]))
    assert "tables alone" in heading
    for line, figures in (
        (largest, ["2.0 MiB", "8.0 MiB", "0.500 ms", "9.0 ms"]),
        (first, ["1.0 MiB", "7.0 MiB", "0.500 ms", "9.0 ms"]),
        (second, ["2.0 MiB", "8.0 MiB", "0.250 ms", "3.0 ms"]),
    ):
        found = [line.index(figure) for figure in figures]
        assert found == sorted(found), line


def test_many_ranks_are_told_by_the_largest_alone() -> None:
    plan = planned([1.0 * MIB] * 17, [0.5] * 17)
    assert len(lines(plan, torch.ones(17, 2))) == 2


def test_on_a_cpu_that_nobody_described_nothing_is_compared(caplog: pytest.LogCaptureFixture) -> None:
    with start_runtime(num_threads=1) as runtime, caplog.at_level(logging.INFO):
        trainable = build_trainable(compose_config("train", TrainConfig, SMALL), TABLES, NUM_DENSE, runtime)
        trainable.measured.log_once(trainable.plan, 0.125)
    assert "estimated" not in caplog.text


def test_a_run_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    described = ["nodes=1", "devices_per_node=1", "device=cpu", "memory_gib=8"]
    topology = [f"topology.{key}" for key in described]
    config = compose_config("train", TrainConfig, [*SMALL, *topology])
    with (
        start_runtime(num_threads=1) as runtime,
        caplog.at_level(logging.INFO, "dlrm_app.sharding.plan.measured"),
    ):
        trainable = build_trainable(config, TABLES, NUM_DENSE, runtime)
        for _ in range(2):
            trainable.measured.log_once(trainable.plan, 0.125)
    (said,) = [r.getMessage() for r in caplog.records if r.name == "dlrm_app.sharding.plan.measured"]
    assert "125.0 ms measured" in said
