"""Learning rates over a run: pure functions of the step's number, and what sets them before each step."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer

from dlrm_app.config.optimizer import OptimizerConfig, ScheduleConfig, ScheduleSettings
from dlrm_app.tables.sparse_optimizers import table_settings
from dlrm_app.tables.specs import Table, table_of


def lr_factor(step: int, schedule: ScheduleSettings) -> float:
    """Factor of the learning rate in ``step``, of which the first is 1.

    Warm-up: step / warmup_steps. Then 1 up to and with the last step before the decay; from there, with x the share
    of ``decay_steps`` done, end_factor + (1 - end_factor) times (1 - x)^power (polynomial) or (1 + cos πx) / 2
    (cosine). step: step_factor once for each milestone left behind.

    The polynomial is MLPerf DLRM's (LRPolicyScheduler in facebookresearch/dlrm), which stays at the warm-up's last
    but one value between warm-up and decay, a (1 / warmup_steps)th lower than here.
    """
    if step < schedule.warmup_steps:
        return step / schedule.warmup_steps
    if schedule.kind == "step":
        return schedule.step_factor ** sum(step > milestone for milestone in schedule.milestones or ())
    if schedule.kind == "constant":
        return 1.0
    assert schedule.decay_steps is not None  # fit_to_run gives one
    share = min(1.0, max(0.0, (step - schedule.first_decay_step) / schedule.decay_steps))
    rest = (1 + math.cos(math.pi * share)) / 2 if schedule.kind == "cosine" else (1 - share) ** schedule.power
    return schedule.end_factor + (1 - schedule.end_factor) * rest


def fit_to_run(schedule: ScheduleSettings, num_steps: int) -> ScheduleSettings:
    """``schedule`` with the open end of a decay at the run's last step."""
    if schedule.decay_steps is not None:
        return schedule
    return replace(schedule, decay_steps=max(1, num_steps - schedule.first_decay_step))


class LearningRates:
    """Sets the learning rate of every optimizer, the fused ones too.

    fbgemm updates tables in the backward pass with the rate that the lookup saw, which torchrec's fused optimizers hand
    over in ``zero_grad``: ``apply(step)`` must come before the step.
    """

    def __init__(
        self,
        optimizer: CombinedOptimizer,
        tables: Sequence[Table],
        config: OptimizerConfig,
        schedule: ScheduleConfig,
        num_steps: int,
    ) -> None:
        parts = {"sparse": schedule.sparse, "dense": schedule.dense}
        self._schedules = {part: fit_to_run(each, num_steps) for part, each in parts.items()}
        self._lr = {"sparse": config.sparse.lr, "dense": config.dense.lr}
        self._groups = list(_find_groups(optimizer, tables, config))

    def apply(self, step: int) -> None:
        """Sets the rates of ``step``, of which the first is 1."""
        factors = {part: lr_factor(step, schedule) for part, schedule in self._schedules.items()}
        for group, lr, part in self._groups:
            group["lr"] = lr * factors[part]

    def at(self, step: int) -> dict[str, float]:
        """The rates of ``optimizer.sparse`` and ``optimizer.dense`` in ``step``; a table's own keeps its ratio."""
        return {part: self._lr[part] * lr_factor(step, each) for part, each in self._schedules.items()}


def _find_groups(
    optimizer: CombinedOptimizer, tables: Sequence[Table], config: OptimizerConfig
) -> Iterator[tuple[dict[str, Any], float, str]]:
    """(parameter group, its learning rate at factor 1, ``sparse`` or ``dense``) of every optimizer."""
    by_name = {table.name: table for table in tables}
    for leaf in _leaves(optimizer):
        key = next(iter(leaf.params), None)
        if key is None:  # a rank may hold no table
            continue
        if name := table_of(key):
            lr, part = table_settings(by_name[name], config.sparse).lr, "sparse"
        else:
            lr, part = config.dense.lr, "dense"
        for group in leaf.param_groups:
            yield group, lr, part


def _leaves(optimizer: KeyedOptimizer) -> Iterator[KeyedOptimizer]:
    if isinstance(optimizer, CombinedOptimizer):
        for _, part in optimizer.optimizers:
            yield from _leaves(part)
    else:
        yield optimizer
