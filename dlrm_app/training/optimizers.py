"""One optimizer for the whole model: fbgemm updates tables inside the backward pass, torch everything else.

Learning rates: pure functions of the step's number, and the class that sets them before each step.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from dlrm_app.config.optimizer import (
    DenseSettings,
    OptimizerConfig,
    ScheduleConfig,
    ScheduleSettings,
    SparseSettings,
)
from dlrm_app.runs.checkpoint.marker import EMA
from dlrm_app.runs.checkpoint.progress import Progress
from dlrm_app.runs.checkpoint.tensors import Tensors
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS, WEIGHT, table_settings
from dlrm_app.tables.table import Table, table_of


class TouchedRows(torch.optim.Optimizer):
    """Steps only the rows of tables [rows, D] whose gradient is not all zero, by the rule of ``settings.kind``.

    fbgemm's fused kernels do the same, so device and sharding change the speed but not the result. With
    ``settings.updated_rows="all"`` every row takes every step, as under torch's optimizers.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], settings: SparseSettings) -> None:
        super().__init__(parameters, {"lr": settings.lr})
        self._settings = settings
        self._kind = SPARSE_OPTIMIZERS[settings.kind]
        for group in self.param_groups:
            for table in group["params"]:
                state = {
                    name: torch.zeros_like(table) if kept_for == WEIGHT else table.new_zeros(len(table), 1)
                    for name, kept_for in self._kind.state.items()
                }
                self.state[table] = {"step": torch.tensor(0.0), **state}

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override] # the pipeline gives no closure
        """Takes one step with each table's ``grad`` [rows, D]."""
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None and len(table):  # a rank may hold none of a table's rows
                    self._step_table(table, table.grad, group["lr"])

    def _step_table(self, table: nn.Parameter, gradient: Tensor, lr: float) -> None:
        count, moments = self.state[table]["step"], dict(self.state[table])
        count += 1
        del moments["step"]
        if self._settings.updated_rows == "all":
            direction = self._kind.rule(table, gradient, moments, count.item(), self._settings)
            table.add_(direction, alpha=-lr)
            return
        rows = gradient.norm(dim=1).nonzero().squeeze(1)  # [R]; count_nonzero takes 20 times as long on CPU
        touched = {name: moment[rows] for name, moment in moments.items()}
        direction = self._kind.rule(table[rows], gradient[rows], touched, count.item(), self._settings)
        table.index_add_(0, rows, direction, alpha=-lr)
        for name, moment in touched.items():
            moments[name].index_copy_(0, rows, moment)


def make_dense_optimizer(
    settings: DenseSettings, parameters: Sequence[nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer of the dense part. It first clips the gradient's global norm if ``clip_norm`` is set."""
    # one pass over each weight on CPU; on CUDA torch's default takes all weights at once
    in_one_pass = True if all(each.device.type == "cpu" for each in parameters) else None
    common: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay, "fused": in_one_pass}
    optimizer: torch.optim.Optimizer
    if settings.kind == "sgd":
        optimizer = torch.optim.SGD(parameters, momentum=settings.momentum, **common)
    elif settings.kind == "adagrad":
        optimizer = torch.optim.Adagrad(parameters, eps=settings.eps, **common)
    else:
        adam = torch.optim.AdamW if settings.kind == "adamw" else torch.optim.Adam
        optimizer = adam(parameters, eps=settings.eps, betas=(settings.beta1, settings.beta2), **common)
    clip_norm = settings.clip_norm
    if clip_norm is not None:
        # replicated gradients are already averaged here, so every rank finds the same norm
        def clip(*_: object) -> None:
            torch.nn.utils.clip_grad_norm_(parameters, clip_norm)

        optimizer.register_step_pre_hook(clip)
    return optimizer


def combine_optimizers(
    model: DistributedModelParallel, tables: Sequence[Table], config: OptimizerConfig
) -> CombinedOptimizer:
    """Fused table optimizers, the torch optimizers of dense-kernel tables, and the dense part's, as one."""
    by_name = {table.name: table for table in tables}
    dense: dict[str, nn.Parameter] = {}
    groups: dict[str, tuple[SparseSettings, dict[str, nn.Parameter]]] = {}
    for key, parameter in in_backward_optimizer_filter(model.named_parameters()):
        name = table_of(key)
        if name is None:
            dense[key] = parameter
        else:
            settings = table_settings(by_name[name], config.sparse)
            groups.setdefault(repr(settings), (settings, {}))[1][key] = parameter
    optimizers: list[tuple[str, KeyedOptimizer]] = [("fused", model.fused_optimizer)]
    for number, (settings, parameters) in enumerate(groups.values()):
        make_touched = partial(TouchedRows, settings=settings)
        optimizers.append((f"tables_{number}", KeyedOptimizerWrapper(parameters, make_touched)))
    make_dense = partial(make_dense_optimizer, config.dense)
    optimizers.append(("dense", KeyedOptimizerWrapper(dense, make_dense)))
    return CombinedOptimizer(optimizers)


class DenseEma:
    """Averages of the dense weights of the sharded ``model``, and copies of its buffers.

    After the first step they equal the weights; after each later step decay · average + (1 - decay) · weights. Batch
    norm's running moments are copied, as in torch: they are averages already, and an average of them would
    lag behind the tables.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        # views
        self._weights = {name: value for name, value in model.state_dict().items() if table_of(name) is None}
        self._averages = {name: value.clone() for name, value in self._weights.items()}
        self._buffers = [name for name, _ in model.named_buffers() if name in self._weights]
        self._parameters = [name for name in self._weights if name not in self._buffers]
        self._average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]

    def update(self, updates: int) -> None:
        """Adds the weights to the average, after the ``updates``-th step."""
        if updates <= 1:
            self.start()
            return
        averages, weights = (
            [of[name] for name in self._parameters] for of in (self._averages, self._weights)
        )
        self._average(averages, weights, updates)
        self._copy(self._buffers)

    def start(self) -> None:
        """Starts again from the current weights."""
        self._copy(self._weights)

    def _copy(self, names: Iterable[str]) -> None:
        for name in names:
            self._averages[name].copy_(self._weights[name])

    @contextmanager
    @torch.no_grad()
    def in_place(self) -> Iterator[None]:
        """Puts the averages into the model for the block; then the weights are put back."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for name, weight in self._weights.items():
            before = weight.clone()
            weight.copy_(self._averages[name])
            self._averages[name].copy_(before)

    def tensors(self) -> Tensors:
        """The averages by their names in a checkpoint."""
        return {f"{EMA}/{name}": average for name, average in self._averages.items()}


def lr_factor(step: int, schedule: ScheduleSettings, merits: Sequence[float] = ()) -> float:
    """Factor of the learning rate in ``step``; the first step is 1. ``merits``: of all evaluations on val before it,
    higher is better.

    Warm-up: step / warmup_steps. Then 1 up to the last step before the decay, included. Decay, with x the share
    of ``decay_steps`` done, end_factor + (1 - end_factor) times (1 - x)^power (polynomial) or (1 + cos πx) / 2
    (cosine). step: step_factor to the power of the milestones passed. plateau: to the power of ``num_falls``.

    The polynomial is MLPerf DLRM's (LRPolicyScheduler in facebookresearch/dlrm). Between warm-up and decay, MLPerf's
    stays at the last but one value of the warm-up, lower than here by 1 / warmup_steps.
    """
    if step < schedule.warmup_steps:
        return step / schedule.warmup_steps
    if schedule.kind == "step":
        return schedule.step_factor ** sum(step > milestone for milestone in schedule.milestones or ())
    if schedule.kind == "plateau":
        return max(schedule.end_factor, schedule.step_factor ** num_falls(merits, schedule.patience))
    if schedule.kind == "constant":
        return 1.0
    assert schedule.decay_steps is not None  # fit_to_run gives one
    share = min(1.0, max(0.0, (step - schedule.first_decay_step) / schedule.decay_steps))
    rest = (1 + math.cos(math.pi * share)) / 2 if schedule.kind == "cosine" else (1 - share) ** schedule.power
    return schedule.end_factor + (1 - schedule.end_factor) * rest


def num_falls(merits: Sequence[float], patience: int) -> int:
    """Counts how often ``patience`` + 1 evaluations in a row were not better than the best; then it begins again.

    As in torch's ReduceLROnPlateau with threshold 0. A function of all evaluations, so a resumed run has
    nothing else to remember.
    """
    best, num_worse, falls = -math.inf, 0, 0
    for merit in merits:
        num_worse = 0 if merit > best else num_worse + 1
        best = max(best, merit)
        if num_worse > patience:
            falls, num_worse = falls + 1, 0
    return falls


def fit_to_run(schedule: ScheduleSettings, num_steps: int) -> ScheduleSettings:
    """``schedule`` with a decay that ends at the run's last step, if it has no end of its own."""
    if schedule.decay_steps is not None:
        return schedule
    return replace(schedule, decay_steps=max(1, num_steps - schedule.first_decay_step))


class LearningRates:
    """Sets the learning rate of every optimizer, the fused ones too.

    fbgemm updates tables in the backward pass with the rate known at lookup. torchrec's fused optimizers pass that rate
    on in ``zero_grad``, so ``apply(step)`` must come before the step. ``progress``: the run's, with its evaluations.
    """

    def __init__(
        self,
        optimizer: CombinedOptimizer,
        tables: Sequence[Table],
        config: OptimizerConfig,
        schedule: ScheduleConfig,
        num_steps: int,
        progress: Progress,
    ) -> None:
        self._progress = progress
        parts = {"sparse": schedule.sparse, "dense": schedule.dense}
        self._schedules = {part: fit_to_run(each, num_steps) for part, each in parts.items()}
        self._lr = {"sparse": config.sparse.lr, "dense": config.dense.lr}
        self._groups = list(_find_groups(optimizer, tables, config))

    def apply(self, step: int) -> None:
        """Sets the rates of ``step``; the first step is 1."""
        factors = self._factors(step)
        for group, lr, part in self._groups:
            group["lr"] = lr * factors[part]

    def at(self, step: int) -> dict[str, float]:
        """The rates of ``optimizer.sparse`` and ``optimizer.dense`` in ``step``.

        A table's own rate has the same factor.
        """
        return {part: self._lr[part] * factor for part, factor in self._factors(step).items()}

    def _factors(self, step: int) -> dict[str, float]:
        merits = self._progress.val_merits(before=step)
        return {part: lr_factor(step, schedule, merits) for part, schedule in self._schedules.items()}

    def have_fallen(self) -> bool:
        """True if the evaluation after the last step has just lowered a rate."""
        step = self._progress.step
        return self._progress.has_evaluated("val") and self._factors(step + 1) != self._factors(step)


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
