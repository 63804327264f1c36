"""The inputs of a synthetic model as a dataset folder, whole or not at all, the same bytes with any number of threads."""

import logging
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from dlrm_app.config.datasets import GenerateConfig
from dlrm_app.dataset.arrow import numbers_of
from dlrm_app.dataset.manifest import (
    MANIFEST,
    DenseColumn,
    Manifest,
    Shard,
    SparseColumn,
    Split,
    write_manifest,
)
from dlrm_app.errors import refuse_if
from dlrm_app.files import checksum, folder_written_whole, output_problems, room_problems, sync_folder
from dlrm_app.loader.prefetch import map_in_order
from dlrm_app.progress import work_bar
from dlrm_app.synthetic.inputs import LABEL, Feature, Inputs, make_inputs
from dlrm_app.tables.specs import resolve_tables
from dlrm_app.text import next_line, typed_settings

logger = logging.getLogger(__name__)

COIN = {"auc": 0.5, "logloss": math.log(2)}
"""The best that a model can reach on labels of a thrown coin."""
GROUP_BYTES = 4 << 20
MIN_GROUP_ROWS, MAX_GROUP_ROWS = 256, 32768


@dataclass(frozen=True)
class Layout:
    """Rows per row group, a power of two, and row groups per shard."""

    group_rows: int
    shard_groups: int = 16

    @property
    def shard_rows(self) -> int:
        """Rows of a whole shard."""
        return self.group_rows * self.shard_groups


def choose_layout(row_bytes: int) -> Layout:
    """Row groups near GROUP_BYTES: a reader of 64 lanes holds up to two of each lane in memory."""
    rows = 1 << int(math.log2(max(1, GROUP_BYTES // row_bytes)))
    return Layout(min(max(rows, MIN_GROUP_ROWS), MAX_GROUP_ROWS))


def write_inputs(config: GenerateConfig) -> Manifest:
    """Writes the dataset that ``config`` describes to ``config.output``.

    Raises ConfigError for tables that cannot be, if the output is in the way, or the disk has too little room.
    """
    output = Path(config.output)
    refuse_if(output_problems("output", output, is_folder=True) or _taken_problems(output, config.overwrite))
    inputs = make_inputs(_features(config), config.num_dense, config.alpha, config.seed)
    sizes = {"train": config.rows, "val": config.val_rows, "test": config.test_rows}
    output.parent.mkdir(parents=True, exist_ok=True)
    refuse_if(room_problems("rows", output.parent, sum(sizes.values()) * inputs.row_bytes))
    with folder_written_whole(output) as folder:
        present = {split: rows for split, rows in sizes.items() if rows}
        layout = choose_layout(inputs.row_bytes)
        splits = write_splits(folder, inputs, present, config.start_row, layout, config.threads)
        manifest = _manifest(inputs, splits, config)
        write_manifest(folder, manifest)
    _log_next_command(config, manifest)
    return manifest


def _features(config: GenerateConfig) -> list[Feature]:
    features, problems = [], []
    for table in resolve_tables(config.tables, None):
        if table.rows >= 2**31:
            problems.append(
                f"table {table.name} has {table.rows:,} rows: ids are int32, give at most 2^31 - 1"
            )
        for name, num_ids in zip(table.features, table.expected_pooling_factors, strict=True):
            if not num_ids.is_integer():
                problems.append(
                    f"table {table.name}: feature {name} has the pooling factor {num_ids}: give a whole number"
                )
            features.append(Feature(name, table.rows, int(num_ids)))
    refuse_if(problems)
    return features


def _manifest(inputs: Inputs, splits: dict[str, Split], config: GenerateConfig) -> Manifest:
    asked = asdict(config)
    keys = ("format", "seed", "start_row", "rows", "val_rows", "test_rows", "alpha", "num_dense", "tables")
    return Manifest(
        dataset="synthetic",
        label=LABEL,
        dense=[DenseColumn(name, {"kind": "none"}) for name in inputs.dense_names],
        sparse=[
            SparseColumn(f.name, f.num_embeddings, {"kind": "none"}, multi_hot=f.is_multi_hot)
            for f in inputs.features
        ],
        splits=splits,
        sources=[],
        config={key: asked[key] for key in keys},
        best=COIN,
    )


def _taken_problems(output: Path, overwrite: bool) -> list[str]:
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return []
    if not (output / MANIFEST).is_file():
        return [f"output={output} exists and is no dataset folder: give another name"]
    if overwrite:
        return []
    return [f"output={output} exists: choose another name, or overwrite=true to replace it"]


def write_splits(
    folder: Path,
    inputs: Inputs,
    sizes: Mapping[str, int],
    first_row: int,
    layout: Layout,
    threads: int | None = None,
) -> dict[str, Split]:
    """Writes ``sizes[split]`` rows of each split to ``folder``, those from ``first_row`` on."""
    splits = {}
    with work_bar(total=sum(sizes.values()), unit=" rows", unit_scale=True, desc="writing") as bar:
        for name, rows in sizes.items():
            (folder / name).mkdir()
            shards, positives = [], 0
            for shard, clicks in _write_split(
                folder, name, inputs, range(first_row, first_row + rows), layout, threads
            ):
                shards.append(shard)
                positives += clicks
                bar.update(shard.rows)
            sync_folder(folder / name)
            splits[name] = Split(rows, positives, rejects=0, shards=shards)
            first_row += rows
    return splits


def _write_split(
    folder: Path, name: str, inputs: Inputs, rows: range, layout: Layout, threads: int | None
) -> Iterator[tuple[Shard, int]]:
    """(each shard of ``rows`` as the manifest has it, its positive labels)."""
    shards = [rows[start : start + layout.shard_rows] for start in range(0, len(rows), layout.shard_rows)]

    def write(index: int) -> tuple[Shard, int]:
        path = f"{name}/part-{index:05d}.parquet"
        return _write_shard(folder, path, inputs, shards[index], layout.group_rows)

    num_threads = threads or os.cpu_count() or 1
    return map_in_order(write, range(len(shards)), num_threads, num_threads)


def _write_shard(folder: Path, name: str, inputs: Inputs, rows: range, group_rows: int) -> tuple[Shard, int]:
    """Writes a shard by Arrow's own writer: here drawing takes longer than writing."""
    path = folder / name
    row_groups, positives = [], 0
    ids = [feature.name + (".list.element" if feature.is_multi_hot else "") for feature in inputs.features]
    with path.open("wb") as file:
        with pq.ParquetWriter(
            file,
            inputs.schema,
            compression="none",
            use_dictionary=[LABEL, *ids],
            write_statistics=False,
            write_page_checksum=True,
            store_schema=False,
        ) as writer:
            for start in range(rows.start, rows.stop, group_rows):
                table = inputs.rows(start, min(group_rows, rows.stop - start))
                writer.write_table(table, row_group_size=len(table))
                row_groups.append(len(table))
                positives += int(np.count_nonzero(numbers_of(table.column(LABEL))))
        file.flush()
        os.fsync(file.fileno())
    return Shard(name, len(rows), path.stat().st_size, checksum(path), row_groups), positives


def _log_next_command(config: GenerateConfig, manifest: Manifest) -> None:
    size = sum(shard.bytes for shard in manifest.shards)
    rows = ", ".join(f"{split.rows:,} rows of {name}" for name, split in manifest.splits.items())
    typed = [each for each in typed_settings() if each.lstrip("'").startswith(("tables=", "experiment="))]
    model = [] if any("experiment=" in each for each in typed) else ["model=concat"]
    command = next_line("dlrm-train", {"data.path": config.output}, *typed, *model, "output=run")
    logger.info(
        f"{config.output}: {rows}; {len(manifest.sparse)} sparse and {len(manifest.dense)} dense features, "
        f"{size / 1e6:,.0f} MB\n{command}"
    )
