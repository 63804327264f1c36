"""Trainings on a device whose losses must match a CPU reference run, and the settings that they share."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from dlrm_app.config.sharding import SHARDING_TYPES
from dlrm_app.loader.batch_order import enough_lanes
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS

STEPS = 8
UVM = ("fused_uvm", "fused_uvm_caching")
BY_COLUMN = ("column_wise", "table_column_wise", "grid_shard")
ROUNDING = 2e-4
"""Relative difference allowed between fp32 losses: sums in another order, amplified by seven updates."""
COARSE = 2e-2
"""The same for products or tables of 8 to 11 bits."""

TABLES = """\
pooling: sum
init: uniform
specs:
  - {name: small, rows: 100, dim: 32, features: [small]}
  - {name: bag, rows: 5_000, dim: 32, features: [bag], pooling_factors: [3]}
  - {name: shared, rows: 2_000, dim: 32, features: [left, right]}
  - {name: large, rows: 50_000, dim: 32, features: [large]}
"""


@dataclass(frozen=True)
class Case:
    """A run whose losses are compared with those of the CPU reference run with ``optimizer``.

    legs: settings of dlrm-train, for one run or several, each resuming the one before.
    is_fresh: the first leg draws its own initial weights instead of resuming the CPU's checkpoint.
    """

    name: str
    optimizer: str
    legs: tuple[tuple[str, ...], ...]
    tolerance: float = ROUNDING
    is_fresh: bool = False


def batch_size(ranks: int) -> int:
    """Rows of a global batch."""
    return 4 * enough_lanes(ranks)


def common_settings(ranks: int) -> list[str]:
    """Settings of every run on ``ranks`` ranks and of its reference."""
    return [
        f"trainer.global_batch_size={batch_size(ranks)}",
        f"data.lanes={enough_lanes(ranks)}",
        f"trainer.max_steps={STEPS}",
        "trainer.log_every_steps=1",
        "trainer.timeout_minutes=2",
        "trainer.threads=1",
        "model.bottom_mlp=[64]",
        "model.top_mlp=[64]",
        "evaluation.batch_size=128",
        "evaluation.group_by=small",
        "report.enabled=false",
    ]


def cases(device: str) -> list[Case]:
    """Everything that ``device`` supports, the broadest first; each name once."""
    found = [*_single(device), *_resumed(device), *_kernels(device), *_pipelines(device), *_types(device)]
    return list({case.name: case for case in found}.values())


def _settings(
    optimizer: str, kind: str, kernel: str, pipeline: str = "sparse_dist", *more: str
) -> tuple[str, ...]:
    is_default = kind == "data_parallel" or kernel == "dense"
    kernels = [] if is_default else [f"sharding.tables={{*:{{kernels:[{kernel}]}}}}"]
    return (
        f"optimizer={optimizer}",
        f"sharding.types=[{kind}]",
        *kernels,
        f"trainer.pipeline={pipeline}",
        *more,
    )


def _case(optimizer: str, kind: str, kernel: str, pipeline: str = "sparse_dist") -> Case:
    name = f"{pipeline}-{optimizer}-{kind}-{kernel}"
    return Case(name, optimizer, (_settings(optimizer, kind, kernel, pipeline),))


def _kernels_of(device: str) -> tuple[str, ...]:
    return ("fused", *UVM) if device == "cuda" else ("fused",)


def _is_fused(optimizer: str, device: str) -> bool:
    return device in SPARSE_OPTIMIZERS[optimizer].devices


def _single(device: str) -> Iterator[Case]:
    plain = _settings("adagrad", "table_wise", "fused")
    yield Case("initial_weights", "adagrad", (plain,), is_fresh=True)
    yield Case("bf16", "adagrad", ((*plain, "trainer.precision=bf16"),), COARSE)
    yield Case("fp16_tables", "adagrad", ((*plain, "tables.data_type=fp16"),), COARSE, is_fresh=True)
    if device == "cuda":
        yield Case("tf32", "adagrad", ((*plain, "trainer.tf32=true"),), COARSE)
        yield Case("compile", "adagrad", ((*plain, "trainer.compile=true"),))


def _resumed(device: str) -> Iterator[Case]:
    """Stopped half-way under one kernel or sharding type, resumed under another."""
    pairs = [("table_wise fused", "row_wise fused"), ("row_wise fused", "column_wise fused")]
    if device == "cuda":
        pairs += pairwise(f"table_wise {kernel}" for kernel in ("fused", *UVM, "fused"))
    for before, after in pairs:
        first = (*_settings("adagrad", *before.split()), f"trainer.max_steps={STEPS // 2}")
        name = f"resume-{before}-{after}".replace(" ", "_")
        yield Case(name, "adagrad", (first, _settings("adagrad", *after.split())))


def _kernels(device: str) -> Iterator[Case]:
    for kernel in _kernels_of(device):
        for kind in SHARDING_TYPES:
            if kind != "data_parallel":
                yield _case("adagrad", kind, kernel)
        for optimizer in SPARSE_OPTIMIZERS:
            yield _case(optimizer, "table_wise", kernel if _is_fused(optimizer, device) else "dense")


def _pipelines(device: str) -> Iterator[Case]:
    if device == "cuda":
        for optimizer in ("adagrad", "rowwise_adagrad", "adam"):
            yield _case(optimizer, "table_wise", "fused_uvm_caching", "prefetch")
    for kernel in _kernels_of(device):
        yield _case("adagrad", "table_wise", kernel, "base")
    for optimizer in SPARSE_OPTIMIZERS:
        if _is_fused(optimizer, device):
            yield _case(optimizer, "table_wise", "fused", "base")


def _types(device: str) -> Iterator[Case]:
    for kind in SHARDING_TYPES:
        for optimizer, entry in SPARSE_OPTIMIZERS.items():
            if kind in BY_COLUMN and entry.reduces_over_rows:
                continue  # training differs from unsplit rows, see docs/how-to/optimizers.md
            kernel = "fused" if _is_fused(optimizer, device) and kind != "data_parallel" else "dense"
            yield _case(optimizer, kind, kernel)
