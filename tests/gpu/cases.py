"""Trainings on a device whose losses must match a CPU reference run, and the settings that they share."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise, product

from dlrm_app.config.sharding import SHARDING_TYPES
from dlrm_app.machine import has_old_torchrec
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS

STEPS = 8
UVM = ("fused_uvm", "fused_uvm_caching")
BY_COLUMN = ("column_wise", "table_column_wise", "grid_shard")
ROUNDING = 2e-4
"""Relative difference allowed between fp32 losses: sums in another order, amplified by seven updates."""
COARSE = 2e-2
"""The same for products, tables or messages of 8 to 11 bits."""
PLAIN = ("optimizer=adagrad",)
ONE_BY_ONE = ("sharding.types=[table_wise]", "sharding.tables={*:{kernels:[fused]}}")

TABLES = """\
pooling: sum
init: uniform
specs:
  - {name: small, rows: 100, dim: 32, features: [small]}
  - {name: bag, rows: 5_000, dim: 32, features: [bag], pooling_factors: [3]}
  - {name: shared, rows: 2_000, dim: 32, features: [left, right]}
  - {name: large, rows: 50_000, dim: 32, features: [large]}
"""

COMMON = (
    f"trainer.max_steps={STEPS} trainer.log_every_steps=1 trainer.timeout_minutes=2 trainer.threads=1 "
    "model.bottom_mlp=[64] model.top_mlp=[64] evaluation.batch_size=128 evaluation.group_by=small "
    "report.enabled=false"
).split()
ALIKE = {
    "mid_epoch_evaluation": "evaluation.every_steps=3",
    "mid_epoch_evaluation-base": "evaluation.every_steps=3 trainer.pipeline=base",
    "deterministic": "trainer.deterministic=true",
    "background_saves": "checkpoint.asynchronous=true checkpoint.every_steps=2",
    "compile": "trainer.compile=true",
}
"""Settings that leave the losses as they are."""
COARSELY = {
    "bf16": "trainer.precision=bf16",
    "tf32": "trainer.tf32=true",
    "compile-bf16-tf32": "trainer.compile=true trainer.precision=bf16 trainer.tf32=true",
}
for bits in ("fp16", "bf16"):
    COARSELY[f"exchange-{bits}"] = f"sharding.collectives={{forward:{bits},backward:{bits}}}"
"""Settings that round."""
SMALL_CACHE = "sharding.tables={*:{kernels:[fused_uvm_caching],cache_load_factor:0.01}}"
UNDER_PRESSURE = {
    "small_cache": f"{SMALL_CACHE} evaluation.every_steps=3",
    "small_cache-prefetch": f"{SMALL_CACHE} trainer.pipeline=prefetch",
}
"""A cache of a hundredth of the rows, which every batch overflows, and evaluations that walk through it."""
ATTENTIVE = (
    "tables.specs=[{name:bag,rows:5000,dim:32,features:[small,bag],pooling:{attention:small}},"
    "{name:shared,rows:2000,dim:32,features:[left,right],pooling:{attention:left,softmax:true}},"
    "{name:large,rows:50000,dim:32,features:[large]}]"
)
RICH = "RICH"
"""Stands, in the settings of a case, for a dataset with vectors, weighted lists, two labels and weights of rows."""
OF_RICH = {
    "vectors": "",
    "vectors-row_wise": "sharding.types=[row_wise]",
    "vectors-column_wise": "sharding.types=[column_wise] sharding.tables={*:{min_partition:4}}",
    "vectors-ensemble": "model.ensemble_size=2",
    "vectors-concat": "model=concat model.bottom_mlp=[]",
    "vectors-dcn": "model=dcn",
}
"""Settings of runs on that dataset."""
MODELS = {
    "attention": ATTENTIVE,
    "attention-row_wise": f"{ATTENTIVE} sharding.types=[row_wise]",
    "attention-ensemble": f"{ATTENTIVE} model.ensemble_size=2",
    "mean_pooling": "tables.pooling=mean",
    "mean_pooling-row_wise": "tables.pooling=mean sharding.types=[row_wise]",
    "batch_norm": "model.batch_norm=true",
    "dropout": "model.dropout=0.002",
    "dense_embedding": "model.dense_embedding_dim=4",
    "dense_knots": "model=dcn_parallel model.bottom_mlp=[] model.dense_knots=4",
    "ensemble": "model.ensemble_size=2",
    "ema": "optimizer.dense.ema_decay=0.9",
    "dcn": "model=dcn",
    "dcn_parallel": "model=dcn_parallel model.bottom_mlp=[]",
    "projection": "model=projection",
    "concat": "model=concat model.bottom_mlp=[]",
    "gdcn": "model=gdcn model.bottom_mlp=[]",
    "gdcn_parallel": "model=gdcn_parallel model.bottom_mlp=[]",
    "finalnet": "model=finalnet model.bottom_mlp=[] model.dropout=0",
    "dcnv3": "model=dcnv3 model.bottom_mlp=[] model.top_mlp=[] model.dropout=0 model.dcnv3_linear_dropout=0",
    "qnn": "model=qnn model.bottom_mlp=[] model.top_mlp=[] model.dropout=0",
    "calibrate": "trainer.calibrate=true",
    "warm_start": "warm_start.checkpoint=PLAIN",
}
"""Settings of the reference run too; it may begin with a plain run's weights."""


@dataclass(frozen=True)
class Case:
    """A run whose losses are compared with those of the CPU reference run with the settings ``model``.

    legs: further settings of dlrm-train, for one run or several, each resuming the one before, and the first the CPU's
    checkpoint unless ``is_fresh``: then it draws its own initial weights.
    """

    name: str
    model: tuple[str, ...] = PLAIN
    legs: tuple[tuple[str, ...], ...] = (ONE_BY_ONE,)
    tolerance: float = ROUNDING
    is_fresh: bool = False


def cases(device: str) -> list[Case]:
    """Everything that ``device`` and the installed torchrec support, what tells most first; each name once."""
    fresh = Case("initial_weights", is_fresh=True)
    found = (fresh, *_optimizers(device), *_resumed(device), *_single(device), *_sharded(device))
    return list({case.name: case for case in found}.values())


def _single(device: str) -> Iterator[Case]:
    on_gpu = {
        name: words
        for name, words in UNDER_PRESSURE.items()
        if device == "cuda" and not ("prefetch" in name and has_old_torchrec())
    }
    for settings, tolerance in ((ALIKE, ROUNDING), (COARSELY, COARSE), (on_gpu, ROUNDING)):
        for name, words in settings.items():
            yield Case(name, legs=((*ONE_BY_ONE, *words.split()),), tolerance=tolerance)
    for name, words in MODELS.items():
        tolerance = {"batch_norm": COARSE, "dropout": 5 * COARSE}.get(
            name, ROUNDING
        )  # a GPU draws other masks
        yield Case(name, (*PLAIN, *words.split()), ((),), tolerance, is_fresh=name == "warm_start")
    for name, words in OF_RICH.items():
        own = [word for word in words.split() if not word.startswith("sharding")]
        leg = tuple(word for word in words.split() if word.startswith("sharding"))
        yield Case(name, (RICH, *PLAIN, *own), (leg,))
    yield Case("fp16_tables", legs=((*ONE_BY_ONE, "tables.data_type=fp16"),), tolerance=COARSE, is_fresh=True)


def _resumed(device: str) -> Iterator[Case]:
    """Stopped half-way under one kernel or sharding type, resumed under another."""
    pairs = [("table_wise fused", "row_wise fused"), ("row_wise fused", "column_wise fused")]
    if device == "cuda":
        pairs += pairwise(f"table_wise {kernel}" for kernel in ("fused", *UVM, "fused"))
    for before, after in pairs:
        first = (*_placed(*before.split()), f"trainer.max_steps={STEPS // 2}")
        name = f"resume-{before}-{after}".replace(" ", "_")
        yield Case(name, legs=(first, _placed(*after.split())))


Group = tuple[str, Iterable[str], Iterable[str], Iterable[str]]
"""A pipeline with optimizers, sharding types and kernels: every combination is a case."""


def _optimizers(device: str) -> Iterator[Case]:
    """Every optimizer with every kernel."""
    groups: list[Group] = [("sparse_dist", SPARSE_OPTIMIZERS, ["table_wise"], _kernels(device))]
    if device == "cuda" and not has_old_torchrec():
        some = ["adagrad", "rowwise_adagrad", "adam"]
        groups.append(("prefetch", some, ["table_wise"], ["fused_uvm_caching"]))
    return _combined(device, groups)


def _sharded(device: str) -> Iterator[Case]:
    """Every other two of optimizer, sharding type, kernel and pipeline."""
    groups: list[Group] = [
        ("sparse_dist", ["adagrad"], SHARDING_TYPES, _kernels(device)),
        ("sparse_dist", SPARSE_OPTIMIZERS, SHARDING_TYPES, ["fused"]),
        ("base", ["adagrad"], ["table_wise"], _kernels(device)),
        ("base", SPARSE_OPTIMIZERS, ["table_wise"], ["fused"]),
    ]
    return _combined(device, groups)


def _kernels(device: str) -> tuple[str, ...]:
    return ("fused", *UVM) if device == "cuda" else ("fused",)


def _combined(device: str, groups: Iterable[Group]) -> Iterator[Case]:
    for pipeline, *parts in groups:
        for optimizer, kind, kernel in product(*parts):
            entry = SPARSE_OPTIMIZERS[optimizer]
            if kind in BY_COLUMN and entry.reduces_over_rows:
                continue  # training differs from unsplit rows, see docs/how-to/optimizers.md
            kernel = kernel if device in entry.devices and kind != "data_parallel" else "dense"
            name = f"{pipeline}-{optimizer}-{kind}-{kernel}"
            leg = (*_placed(kind, kernel), f"trainer.pipeline={pipeline}")
            yield Case(name, (f"optimizer={optimizer}",), (leg,))


def _placed(kind: str, kernel: str) -> tuple[str, ...]:
    types = f"sharding.types=[{kind}]"
    return (types,) if kernel == "dense" else (types, f"sharding.tables={{*:{{kernels:[{kernel}]}}}}")
