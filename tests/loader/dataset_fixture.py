"""A small dataset folder with a signal that a model can learn, for any test that needs one."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.metrics import log_loss, roc_auc_score

from dlrm_app.checksums import checksum
from dlrm_app.dataset.manifest import DenseColumn, Manifest, SparseColumn, read_manifest, write_manifest
from dlrm_app.dataset.splits import Shard, Split

LABEL = "label"


def write_dataset(
    folder: Path,
    rows: dict[str, int] | int = 4096,
    *,
    num_dense: int = 3,
    one_hot: Sequence[int] = (50, 1000),
    multi_hot: Sequence[int] = (30,),
    seed: int = 0,
    rows_per_group: int = 256,
    rows_per_shard: int = 1024,
    labelled: bool = True,
    shifts: Mapping[str, float] | None = None,
) -> Manifest:
    """Writes a dataset of ``rows`` training rows (and a quarter each of val and test, unless ``rows`` says).

    Columns: i0… (dense), c0… (one-hot, tables of ``one_hot`` rows), m0… (multi-hot, 0 to 4 ids a row).
    The click probability is a sigmoid of a weighted sum of the dense values and of an effect of every id;
    ``manifest.best`` holds what the true probabilities reach on test. ``shifts`` are added to the logits of a split.
    """
    sizes = {"train": rows, "val": rows // 4, "test": rows // 4} if isinstance(rows, int) else rows
    generator = np.random.default_rng(seed)
    weights = generator.normal(size=num_dense)
    effects = [generator.normal(size=size) for size in (*one_hot, *multi_hot)]
    splits, best = {}, None
    for split, size in sizes.items():
        columns, logits = _draw(size, num_dense, one_hot, multi_hot, weights, effects, generator)
        chances = 1 / (1 + np.exp(-logits - (shifts or {}).get(split, 0.0)))
        labels = (generator.random(size) < chances).astype(np.uint8)
        if labelled:
            columns = {LABEL: pa.array(labels), **columns}
        shards = _write_shards(folder, split, pa.table(columns), rows_per_group, rows_per_shard)
        splits[split] = Split(size, int(labels.sum()) if labelled else None, 0, shards)
        if split == "test" and 0 < labels.sum() < size:
            best = {"auc": float(roc_auc_score(labels, chances)), "logloss": float(log_loss(labels, chances))}
    manifest = Manifest(
        dataset="fixture",
        label=LABEL if labelled else None,
        dense=[DenseColumn(f"i{place}", {"kind": "none"}) for place in range(num_dense)],
        sparse=[SparseColumn(f"c{place}", size, {"kind": "none"}) for place, size in enumerate(one_hot)]
        + [
            SparseColumn(f"m{place}", size, {"kind": "none"}, multi_hot=True)
            for place, size in enumerate(multi_hot)
        ],
        splits=splits,
        sources=[],
        config={},
        best=best,
    )
    write_manifest(folder, manifest)
    return read_manifest(folder)


def rewrite(folder: Path, split: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replaces the rows of a split by what ``change`` makes of them; the manifest agrees with the files."""
    manifest = read_manifest(folder)
    entry = manifest.splits[split]
    table = change(pa.concat_tables([pq.read_table(folder / shard.path) for shard in entry.shards]))
    groups, rows = entry.shards[0].row_groups[0], entry.shards[0].rows
    shutil.rmtree(folder / split)
    shards = _write_shards(folder, split, table, groups, rows)
    positives = int(table[LABEL].to_numpy().sum())
    write_manifest(
        folder,
        replace(manifest, splits={**manifest.splits, split: Split(len(table), positives, 0, shards)}),
    )


def set_value(folder: Path, column: str, row: int, value: float, shard: int = 0) -> None:
    """Changes one value of a training shard; the manifest agrees with the file."""
    manifest = read_manifest(folder)
    train = manifest.splits["train"]
    entry = train.shards[shard]
    path = folder / entry.path
    table = pq.read_table(path)
    place = table.schema.get_field_index(column)
    values = table.column(place).to_numpy().copy()
    values[row] = value
    pq.write_table(
        table.set_column(place, column, pa.array(values)), path, row_group_size=entry.row_groups[0]
    )
    train.shards[shard] = replace(entry, bytes=path.stat().st_size, checksum=checksum(path))
    write_manifest(folder, manifest)


def _draw(
    size: int,
    num_dense: int,
    one_hot: Sequence[int],
    multi_hot: Sequence[int],
    weights: np.ndarray,
    effects: list[np.ndarray],
    generator: np.random.Generator,
) -> tuple[dict[str, Any], np.ndarray]:
    """(the columns as Arrow arrays, the logit of every row)."""
    dense = generator.normal(size=(size, num_dense)).astype(np.float32)
    columns: dict[str, Any] = {f"i{place}": pa.array(dense[:, place]) for place in range(num_dense)}
    logits = dense @ weights - 1
    for place, num_embeddings in enumerate(one_hot):
        ids = (generator.random(size) ** 2 * num_embeddings).astype(np.int32)
        columns[f"c{place}"] = pa.array(ids)
        logits += effects[place][ids]
    for place, num_embeddings in enumerate(multi_hot):
        lengths = generator.integers(0, 5, size)
        offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)
        ids = generator.integers(0, num_embeddings, offsets[-1]).astype(np.int32)
        columns[f"m{place}"] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))
        np.add.at(logits, np.repeat(np.arange(size), lengths), effects[len(one_hot) + place][ids] / 2)
    return columns, logits


def _write_shards(
    folder: Path, split: str, table: pa.Table, rows_per_group: int, rows_per_shard: int
) -> list[Shard]:
    (folder / split).mkdir(parents=True)
    shards = []
    for place, start in enumerate(range(0, len(table), rows_per_shard)):
        part = table.slice(start, rows_per_shard)
        path = folder / split / f"part-{place:05d}.parquet"
        pq.write_table(part, path, row_group_size=rows_per_group, write_page_checksum=True)
        metadata = pq.read_metadata(path)
        groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        shards.append(Shard(f"{split}/{path.name}", len(part), path.stat().st_size, checksum(path), groups))
    return shards
