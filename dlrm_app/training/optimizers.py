"""One optimizer for all: tables updated inside the backward pass where fbgemm can, everything else beside it."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from dlrm_app.config.optimizer import DenseSettings, OptimizerConfig, SparseSettings
from dlrm_app.runs.checkpoint.marker import EMA
from dlrm_app.runs.checkpoint.tensors import Tensors
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS, WEIGHT, table_settings
from dlrm_app.tables.specs import Table, table_of


class TouchedRows(torch.optim.Optimizer):
    """Steps the rows of tables [rows, D] whose gradient is not all zero, by the rule of ``settings.kind``.

    fbgemm's fused kernels touch no other rows either, so device and sharding change the speed but not the result. With
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
    def step(self, closure: Any = None) -> None:  # type: ignore[override] # the pipeline gives no closure
        """One step with each table's ``grad`` [rows, D]."""
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
    """The optimizer of the dense part, which clips the gradient's global norm first if asked to."""
    # one pass over each weight on CPU; on CUDA torch's default takes all weights at once
    in_one_pass = True if all(each.device.type == "cpu" for each in parameters) else None
    common: dict[str, Any] = {
        "lr": settings.lr,
        "weight_decay": settings.weight_decay,
        "fused": in_one_pass,
    }
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
        # replicated gradients are averaged by then, so every rank finds the same norm
        def clip(*_: Any) -> None:
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

    After the first step they are its weights; after each further one decay · average + (1 - decay) · weights. Batch
    norm's running moments stay those of the weights, as in torch: they are averages already, and an average of them would
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
        """Takes the weights in, after the ``updates``-th step that changed them."""
        if updates <= 1:
            self.start()
            return
        averages, weights = (
            [of[name] for name in self._parameters] for of in (self._averages, self._weights)
        )
        self._average(averages, weights, updates)
        self._copy(self._buffers)

    def start(self) -> None:
        """Begins again with the present weights."""
        self._copy(self._weights)

    def _copy(self, names: Iterable[str]) -> None:
        for name in names:
            self._averages[name].copy_(self._weights[name])

    @contextmanager
    @torch.no_grad()
    def in_place(self) -> Iterator[None]:
        """The model computes with the averages inside the block, and with the same weights as before after it."""
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
