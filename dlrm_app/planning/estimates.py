"""Estimates of a run by dlrm-plan: a whole step, part by part, and a rank's memory beside its tables.

What the tables' own exchanges need is the plan's "inputs and outputs".
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from dlrm_app.config.like_train import PlanConfig
from dlrm_app.config.optimizer import DENSE_STATES, DenseSettings
from dlrm_app.config.train import TrainerConfig
from dlrm_app.errors import ConfigError
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.build import build_model
from dlrm_app.runs.events import PARTS, TITLES
from dlrm_app.sharding.cluster import Cluster
from dlrm_app.sharding.plan import EstimatedPlan
from dlrm_app.sharding.step_estimate import described_machine, step_shape, step_work
from dlrm_app.table import text_table
from dlrm_app.tables.specs import Table
from dlrm_app.text import memory_text


def estimate_text(config: PlanConfig, plan: EstimatedPlan, tables: list[Table], num_dense: int) -> str:
    """A whole step and a rank's memory, or why they are not known: tables can be planned without a model that fits them."""
    spec, trainer, dense = ModelSpec(config.model, tables, num_dense), config.trainer, config.optimizer.dense
    try:
        model = build_model(spec, META)
    except ConfigError as error:
        return f"no estimate of a whole step: {error}"
    machine = described_machine(config.topology, plan.cluster)
    shape = step_shape(plan, model, config.model, trainer.global_batch_size, dense.kind)
    by_part = machine.estimate_ms(step_work(shape), trainer.precision)
    times = {part: by_part[part] for part in PARTS if part in by_part}
    total = sum(times.values())
    rows = [[TITLES[part], f"{ms:,.2f}", f"{ms / total:.0%}"] for part, ms in times.items()]
    speed = 1000 * trainer.global_batch_size / total
    basis = "half of the rates that topology gives, which were not measured"
    if config.topology.efficiency:
        basis = "rates measured by dlrm-bench"
    needed = estimate_run(spec, trainer, dense, plan.cluster.num_ranks, plan.cluster.device)
    problem = shortage(needed, plan.cluster)
    lines = [
        f"a whole step, estimated from {basis}: {speed:,.0f} samples/s if nothing overlaps and reading keeps up",
        text_table(["", "ms", "share"], [*rows, ["all", f"{total:,.2f}", ""]]),
        str(needed),
        *([f"warning: {problem}"] if problem else []),
    ]
    return "\n".join(lines)


META = torch.device("meta")
BATCHES = {"base": 2, "sparse_dist": 3, "prefetch": 4}
"""Number of batches that a pipeline holds on the device."""
SORT_BYTES = 48
"""A looked-up id in fbgemm's backward pass: it and its place, 8 bytes each, before and after sorting, and runs of both."""
CONTEXT = 600 << 20
"""Bytes of CUDA, with the libraries' kernels; not measured here."""
NCCL_BUFFERS = 400 << 20
"""Bytes of NCCL, on more than one rank; not measured here."""


@dataclass(frozen=True)
class RunMemory:
    """Bytes on one rank."""

    dense: int
    activations: int
    batches: int
    sort_buffers: int
    context: int

    @property
    def total(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self))

    def __str__(self) -> str:
        parts = [(part.name.replace("_", " "), getattr(self, part.name)) for part in fields(self)]
        listed = ", ".join(f"{name} {memory_text(size)}" for name, size in parts if size)
        return f"beside its tables a rank needs about {memory_text(self.total)}: {listed}"


def estimate_run(
    spec: ModelSpec, trainer: TrainerConfig, dense: DenseSettings, num_ranks: int, device_type: str
) -> RunMemory:
    """Memory that a rank of ``num_ranks`` needs for training steps; of bf16 an upper bound. Raises ConfigError."""
    tables, num_dense = spec.tables, spec.num_dense
    rows = -(-trainer.global_batch_size // num_ranks) * spec.config.ensemble_size
    model = build_model(spec, META)
    model.get_submodule("sparse_arch").embedding_bag_collection = _Pooled(tables, rows)
    weights = sum(parameter.numel() for parameter in model.parameters())
    ids = rows * sum(sum(table.expected_pooling_factors) for table in tables)
    features = sum(len(table.features) for table in tables)
    batch = 4 * (rows * (num_dense + 1 + features) + ids)
    on_gpu = device_type == "cuda"
    # weights, gradients, the buckets in which they are summed, and what the optimizer keeps
    copies = 3 + DENSE_STATES[dense.kind] + (dense.ema_decay is not None)
    return RunMemory(
        dense=4 * weights * copies,
        activations=_activation_bytes(model, rows, num_dense),
        batches=int(batch * BATCHES[trainer.pipeline]),
        sort_buffers=int(SORT_BYTES * ids),
        context=(CONTEXT + NCCL_BUFFERS * (num_ranks > 1)) if on_gpu else 0,
    )


def shortage(needed: RunMemory, cluster: Cluster) -> str | None:
    """The cure where that is more than what the plan keeps from the tables; None where it is not."""
    kept = cluster.memory - cluster.usable
    if needed.total <= kept:
        return None
    share = min(0.99, needed.total / cluster.memory + 0.01)
    return (
        f"{needed}, more than the {memory_text(kept)} that topology.reserved_share={cluster.reserved_share:g} keeps from the "
        f"tables: use topology.reserved_share={share:.2f}, a smaller trainer.global_batch_size, or more ranks"
    )


class _Pooled(nn.Module):
    """Stands in for the tables: their pooled vectors, on the meta device."""

    def __init__(self, tables: Sequence[Table], rows: int) -> None:
        super().__init__()
        self._keys = [name for table in tables for name in table.features]
        self._widths = [table.dim for table in tables for _ in table.features]
        self._rows = rows

    def forward(self, _: KeyedJaggedTensor) -> KeyedTensor:
        values = torch.empty(self._rows, sum(self._widths), device=META, requires_grad=True)
        return KeyedTensor(self._keys, self._widths, values, key_dim=1)


def _activation_bytes(model: nn.Module, rows: int, num_dense: int) -> int:
    """Bytes kept for the backward pass, counted on the meta device, and twice the largest of it.

    That is a gradient and what it is made of.
    """
    kept = {parameter.untyped_storage()._cdata: 0 for parameter in model.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept.setdefault(storage._cdata, storage.nbytes())
        alive.append(tensor)  # or its storage's address would be another's
        return tensor

    alive: list[torch.Tensor] = []
    ids = KeyedJaggedTensor([], torch.empty(0, dtype=torch.int32), lengths=torch.empty(0, dtype=torch.int32))
    model.train()
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(torch.empty(rows, num_dense, device=META), ids)
        nn.functional.binary_cross_entropy_with_logits(logits, torch.empty_like(logits))
    return sum(kept.values()) + 2 * max(kept.values(), default=0)
