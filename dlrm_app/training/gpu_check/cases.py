"""What is checked: small runs of dlrm-train that must lose as one on the CPU does, whose checkpoint they go on from."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from dlrm_app.config.sharding import SHARDING_TYPES
from dlrm_app.loader.batch_order import enough_lanes
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS

STEPS = 8
FIRST = 1
"""The step of the CPU's checkpoint that a run on the device goes on from."""
UVM = ("fused_uvm", "fused_uvm_caching")
BY_COLUMN = ("column_wise", "table_column_wise", "grid_shard")
ROUNDING = 2e-4
"""By how much losses of fp32 may differ, relative: summed in another order, and amplified by seven updates."""
COARSE = 2e-2
"""As much, where products or tables have 8 to 11 bits."""

TABLES = """\
pooling: sum
init: uniform
specs:
  - {name: small, rows: 100, dim: 32, features: [small]}
  - {name: bag, rows: 5_000, dim: 32, features: [bag], pooling_factors: [3]}
  - {name: shared, rows: 2_000, dim: 32, features: [left, right]}
  - {name: large, rows: 50_000, dim: 32, features: [large]}
"""
FEATURES = ("small", "bag", "left", "right", "large")


@dataclass(frozen=True)
class Case:
    """A run whose losses are compared with those of the CPU's run ``reference``.

    legs: settings of dlrm-train, of one run or of several, each going on from the one before.
    is_fresh: it begins with weights of its own in place of the CPU's first checkpoint.
    """

    name: str
    reference: str
    legs: tuple[tuple[str, ...], ...]
    tolerance: float = ROUNDING
    is_fresh: bool = False


@dataclass(frozen=True)
class Reference:
    """A run on one process of the CPU."""

    name: str
    settings: tuple[str, ...] = field(default=())


def common_settings(ranks: int) -> list[str]:
    """Of every run on ``ranks`` ranks and of those that they are compared with."""
    lanes = enough_lanes(ranks)
    return [
        f"trainer.global_batch_size={batch_size(ranks)}",
        f"data.lanes={lanes}",
        f"trainer.max_steps={STEPS}",
        "trainer.log_every_steps=1",
        "trainer.timeout_minutes=2",
        "model.bottom_mlp=[64]",
        "model.top_mlp=[64]",
        "evaluation.batch_size=128",
        "evaluation.group_by=small",
        "report.enabled=false",
    ]


def batch_size(ranks: int) -> int:
    """Rows over all ranks."""
    return 4 * enough_lanes(ranks)


def references() -> list[Reference]:
    """Everything that the cases are compared with, on any device."""
    lag = [
        Reference(f"{kind}, semi_sync", (f"optimizer={kind}", "trainer.pipeline=semi_sync"))
        for kind, optimizer in SPARSE_OPTIMIZERS.items()
        if "cpu" in optimizer.devices
    ]
    return [*(Reference(kind, (f"optimizer={kind}",)) for kind in SPARSE_OPTIMIZERS), *lag]


def cases(device: str) -> list[Case]:
    """All that ``device`` can do, the broadest first, for time may run out."""
    by_name: dict[str, Case] = {}
    for case in (
        *_single(device),
        *_resumed(device),
        *_kernels(device),
        *_pipelines(device),
        *_types(device),
    ):
        by_name.setdefault(case.name, case)
    return list(by_name.values())


def kernels_of(device: str) -> tuple[str, ...]:
    """Where tables may lie."""
    return ("fused", *UVM) if device == "cuda" else ("fused",)


def is_fused(optimizer: str, device: str) -> bool:
    """Whether fbgemm updates inside the backward pass."""
    return device in SPARSE_OPTIMIZERS[optimizer].devices


def _case(optimizer: str, kind: str, kernel: str, pipeline: str = "sparse_dist") -> Case:
    reference = f"{optimizer}, semi_sync" if pipeline == "semi_sync" else optimizer
    name = f"{pipeline}, {optimizer}, {kind}, {kernel}"
    return Case(name, reference, (_settings(optimizer, kind, kernel, pipeline),))


def _settings(
    optimizer: str, kind: str, kernel: str, pipeline: str = "sparse_dist", *more: str
) -> tuple[str, ...]:
    kernels = (
        []
        if kind == "data_parallel" or kernel == "dense"
        else [f"sharding.tables={{*:{{kernels:[{kernel}]}}}}"]
    )
    return (
        f"optimizer={optimizer}",
        f"sharding.types=[{kind}]",
        *kernels,
        f"trainer.pipeline={pipeline}",
        *more,
    )


def _single(device: str) -> Iterator[Case]:
    """What is one of a kind."""
    plain = _settings("adagrad", "table_wise", "fused")
    yield Case("initial weights are the CPU's", "adagrad", (plain,), is_fresh=True)
    yield Case("bf16", "adagrad", ((*plain, "trainer.precision=bf16"),), COARSE)
    yield Case("fp16 tables", "adagrad", ((*plain, "tables.data_type=fp16"),), COARSE, is_fresh=True)
    if device == "cuda":
        yield Case("TF32", "adagrad", ((*plain, "trainer.tf32=true"),), COARSE)
        yield Case("torch.compile", "adagrad", ((*plain, "trainer.compile=true"),))


def _resumed(device: str) -> Iterator[Case]:
    """Stopped half-way under one kernel or plan, resumed under another."""
    pairs = [("table_wise fused", "row_wise fused"), ("row_wise fused", "column_wise fused")]
    if device == "cuda":
        ring = [f"table_wise {kernel}" for kernel in ("fused", *UVM, "fused")]
        pairs += list(pairwise(ring))
    for before, after in pairs:
        legs = (
            (*_settings("adagrad", *before.split()), f"trainer.max_steps={STEPS // 2}"),
            _settings("adagrad", *after.split()),
        )
        yield Case(f"resume: {before} → {after}", "adagrad", legs)


def _kernels(device: str) -> Iterator[Case]:
    for kernel in kernels_of(device):
        for kind in SHARDING_TYPES:
            if kind != "data_parallel":
                yield _case("adagrad", kind, kernel)
    for kernel in kernels_of(device):
        for optimizer in SPARSE_OPTIMIZERS:
            yield _case(optimizer, "table_wise", kernel if is_fused(optimizer, device) else "dense")


def _pipelines(device: str) -> Iterator[Case]:
    if device == "cuda":
        for optimizer in ("adagrad", "rowwise_adagrad", "adam"):
            yield _case(optimizer, "table_wise", "fused_uvm_caching", "prefetch")
    for pipeline in ("base", "fused_sparse_dist", "semi_sync"):
        for kernel in kernels_of(device):
            yield _case("adagrad", "table_wise", kernel, pipeline)
        for optimizer in SPARSE_OPTIMIZERS:
            if is_fused(optimizer, device) and (pipeline != "semi_sync" or is_fused(optimizer, "cpu")):
                yield _case(optimizer, "table_wise", "fused", pipeline)


def _types(device: str) -> Iterator[Case]:
    for kind in SHARDING_TYPES:
        for optimizer, entry in SPARSE_OPTIMIZERS.items():
            if kind in BY_COLUMN and entry.reduces_over_rows:
                continue  # trains otherwise there, see docs/how-to/optimizers.md
            kernel = "fused" if is_fused(optimizer, device) and kind != "data_parallel" else "dense"
            yield _case(optimizer, kind, kernel)
