"""The inputs of a synthetic model: ids by a power law, uniform dense features and random labels, in a dataset folder.

They are drawn as in NVIDIA Merlin's distributed-embeddings (examples/benchmarks/synthetic_models/synthetic_models.py,
InputGenerator); ids may repeat within a row there too. Row r does not depend on other rows, processes or threads; the
folder is complete or absent, with the same bytes for any number of threads.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.checksums import checksum
from dlrm_app.config.generate import GenerateConfig
from dlrm_app.dataset.arrow import array_of, numbers_of
from dlrm_app.dataset.manifest import MANIFEST, DenseColumn, Manifest, SparseColumn, write_manifest
from dlrm_app.dataset.splits import Shard, Split
from dlrm_app.errors import Problem, refuse_if
from dlrm_app.files import folder_written_whole, output_problems, room_problems, written_whole
from dlrm_app.kernels.compiled import njit
from dlrm_app.loader.prefetch import map_in_order
from dlrm_app.progress import work_bar
from dlrm_app.result import Paragraph, Result
from dlrm_app.tables.specs import resolve_tables
from dlrm_app.tools.synthetic.distribution import power_law, power_law_span, uniform

LABEL = "label"
DENSE_LIMIT = np.float32(100)
_BELOW_LIMIT = np.nextafter(DENSE_LIMIT, np.float32(0))
COIN = {"auc": 0.5, "logloss": math.log(2)}
"""The best scores that a model can reach on random labels."""
GROUP_BYTES = 4 << 20
MIN_GROUP_ROWS, MAX_GROUP_ROWS = 256, 32768
SHARD_GROUPS = 16


@dataclass(frozen=True)
class Feature:
    """A sparse feature: ``num_ids`` ids a row, each in [0, ``num_embeddings``).

    Its column holds lists if ``num_ids`` is above 1.
    """

    name: str
    num_embeddings: int
    num_ids: int


@dataclass(frozen=True)
class Inputs:
    """Makes rows with ``num_dense`` dense features and sparse ``features``; ids are drawn with exponent ``alpha``."""

    num_dense: int
    features: Sequence[Feature]
    alpha: float
    keys: NDArray[np.uint64]
    """Keys of the random streams of the label, each dense and each sparse column, in this order."""

    @property
    def dense_names(self) -> list[str]:
        return [f"num_{index}" for index in range(self.num_dense)]

    @property
    def row_bytes(self) -> int:
        return 1 + 4 * (self.num_dense + sum(feature.num_ids for feature in self.features))

    @property
    def group_rows(self) -> int:
        """Rows of a row group: a power of two, about GROUP_BYTES. 64 lanes of a reader hold up to two groups each."""
        rows = 1 << int(math.log2(max(1, GROUP_BYTES // self.row_bytes)))
        return min(max(rows, MIN_GROUP_ROWS), MAX_GROUP_ROWS)

    @property
    def schema(self) -> pa.Schema:
        """The columns: label, dense, then sparse in the order of ``features``."""
        ids = pa.int32()
        lists = pa.list_(pa.field("item", ids, nullable=False))
        fields = [(LABEL, pa.uint8()), *((name, pa.float32()) for name in self.dense_names)]
        fields += [(feature.name, lists if feature.num_ids > 1 else ids) for feature in self.features]
        return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])

    def rows(self, first_row: int, num_rows: int) -> pa.Table:
        """Draws rows from ``first_row`` on."""
        schema = self.schema
        coin, *draws = (_draw_uniform(key, first_row, num_rows) for key in self.keys[: 1 + self.num_dense])
        dense = [np.minimum((draw * DENSE_LIMIT).astype(np.float32), _BELOW_LIMIT) for draw in draws]
        columns = [array_of((coin < 0.5).astype(np.uint8)), *map(array_of, dense)]
        for feature, key in zip(self.features, self.keys[1 + self.num_dense :], strict=True):
            first, count = first_row * feature.num_ids, num_rows * feature.num_ids
            ids = array_of(_draw_ids(key, first, count, feature.num_embeddings, 1.0 - self.alpha))
            if feature.num_ids > 1:
                offsets = np.arange(num_rows + 1, dtype=np.int32) * feature.num_ids
                ids = pa.ListArray.from_arrays(array_of(offsets), ids, type=schema.field(feature.name).type)
            columns.append(ids)
        return pa.Table.from_arrays(columns, schema=schema)


def make_inputs(features: Sequence[Feature], num_dense: int, alpha: float, seed: int) -> Inputs:
    """The inputs of ``seed``. A column's values depend only on the seed, its index and its own settings."""
    generator = np.random.Generator(np.random.Philox(key=[seed, 2]))
    keys = generator.integers(2**63, size=1 + num_dense + len(features)).astype(np.uint64)
    return Inputs(num_dense, features, alpha, keys)


@njit(nogil=True, cache=True)
def _draw_uniform(key, first, count):  # type: ignore[no-untyped-def]  # compiled
    values = np.empty(count, np.float64)
    for i in range(count):
        values[i] = uniform(key, first + i)
    return values


@njit(nogil=True, cache=True)
def _draw_ids(key, first, count, rows, exponent):  # type: ignore[no-untyped-def]  # compiled
    ids = np.empty(count, np.int32)
    span = power_law_span(rows, exponent)
    for i in range(count):
        # the largest draws may round up to rows + 1
        ids[i] = min(np.int64(power_law(uniform(key, first + i), span, exponent)) - 1, rows - 1)
    return ids


@dataclass(frozen=True)
class ModelInputs(Result):
    """A dataset of synthetic inputs in the folder ``path``."""

    path: Path
    manifest: Manifest

    def paragraphs(self) -> Iterable[Paragraph]:
        manifest = self.manifest
        rows = ", ".join(f"{split.rows:,} rows of {name}" for name, split in manifest.splits.items())
        size = sum(shard.bytes for shard in manifest.shards) / 1e6
        columns = f"{len(manifest.sparse)} sparse and {len(manifest.dense)} dense features"
        yield f"{self.path}: {rows}; {columns}, {size:,.0f} MB"


def write_inputs(config: GenerateConfig) -> ModelInputs:
    """Writes the dataset that ``config`` describes to ``config.output``.

    Raises ConfigError for impossible tables, if the output exists, or if the disk has too little room.
    """
    output = Path(config.output)
    refuse_if(output_problems("output", output, is_folder=True))
    if output.is_dir() and any(output.iterdir()) and not (output / MANIFEST).is_file():
        refuse_if([Problem(f"output={output}", "exists and is not a dataset folder", "give another name")])
    inputs = make_inputs(_features(config), config.num_dense, config.alpha, config.seed)
    sizes = {"train": config.rows, "val": config.val_rows, "test": config.test_rows}
    output.parent.mkdir(parents=True, exist_ok=True)
    refuse_if(room_problems("rows", output.parent, sum(sizes.values()) * inputs.row_bytes))
    with folder_written_whole(output) as folder:
        splits = write_splits(folder, inputs, sizes, config.start_row, inputs.group_rows, config.threads)
        manifest = _manifest(inputs, splits, config)
        write_manifest(folder, manifest)
    return ModelInputs(output, manifest)


def _features(config: GenerateConfig) -> list[Feature]:
    features, problems = [], []
    for table in resolve_tables(config.tables, None):
        name = f"table {table.name}"
        if table.rows >= 2**31:
            rule = f"has {table.rows:,} rows, but ids are int32"
            problems.append(Problem(name, rule, "give at most 2^31 - 1"))
        for feature, num_ids in zip(table.features, table.expected_pooling_factors, strict=True):
            if not num_ids.is_integer():
                rule = f"reads feature {feature} with the pooling factor {num_ids}"
                problems.append(Problem(name, rule, "give a whole number"))
            features.append(Feature(feature, table.rows, int(num_ids)))
    refuse_if(problems)
    return features


def _manifest(inputs: Inputs, splits: dict[str, Split], config: GenerateConfig) -> Manifest:
    keys = ("format", "seed", "start_row", "rows", "val_rows", "test_rows", "alpha", "num_dense", "tables")
    return Manifest(
        dataset="synthetic",
        label=LABEL,
        dense=[DenseColumn(name, {"kind": "none"}) for name in inputs.dense_names],
        sparse=[
            SparseColumn(f.name, f.num_embeddings, {"kind": "none"}, multi_hot=f.num_ids > 1)
            for f in inputs.features
        ],
        splits=splits,
        sources=[],
        config={key: asdict(config)[key] for key in keys},
        best=COIN,
    )


def write_splits(
    folder: Path,
    inputs: Inputs,
    sizes: Mapping[str, int],
    first_row: int,
    group_rows: int,
    threads: int | None = None,
) -> dict[str, Split]:
    """Writes ``sizes[split]`` rows of each split to ``folder``, from row ``first_row`` on; empty splits are skipped."""
    splits, shard_rows, num_threads = {}, group_rows * SHARD_GROUPS, threads or os.cpu_count() or 1
    with work_bar(total=sum(sizes.values()), unit=" rows", unit_scale=True, desc="writing") as bar:
        for name, num_rows in sizes.items():
            if not num_rows:
                continue
            (folder / name).mkdir()
            rows = range(first_row, first_row := first_row + num_rows)
            parts = [
                (f"{name}/part-{index:05d}.parquet", rows[start : start + shard_rows])
                for index, start in enumerate(range(0, num_rows, shard_rows))
            ]
            write = partial(_write_shard, folder, inputs, group_rows)
            shards, positives = [], 0
            for shard, clicks in map_in_order(write, parts, num_threads, num_threads):
                shards.append(shard)
                positives += clicks
                bar.update(shard.rows)
            splits[name] = Split(num_rows, positives, rejects=0, shards=shards)
    return splits


def _write_shard(folder: Path, inputs: Inputs, group_rows: int, part: tuple[str, range]) -> tuple[Shard, int]:
    """Writes a shard of (name, rows).

    Returns (the shard, its positive labels). Arrow's writer takes less time than drawing.
    """
    name, rows = part
    table = inputs.rows(rows.start, len(rows))
    with written_whole(folder / name) as temporary:
        pq.write_table(
            table,
            temporary,
            row_group_size=group_rows,
            compression="none",
            use_dictionary=[LABEL, *(f.name + ".list.element" * (f.num_ids > 1) for f in inputs.features)],
            write_statistics=False,
            write_page_checksum=True,
            store_schema=False,
        )
    groups = [len(rows[start : start + group_rows]) for start in range(0, len(rows), group_rows)]
    shard = Shard(name, len(rows), (folder / name).stat().st_size, checksum(folder / name), groups)
    return shard, int(np.count_nonzero(numbers_of(table.column(LABEL))))
