"""The dataset that a day's training reads: the day's rows, with rows of days before. Made of finished datasets.

It is a dataset like any other, so the order of its rows depends on its manifest alone, and a run on it can be resumed. Shards
of the day itself are hard links; of the days before, rows are copied: a share of every row group, picked by the two dates.

    train   the day's training rows, then those of the days before
    val     the day's rows that are held back
    test    all of the day's rows: what the models before are judged on
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import Bags, array_of, numbers_of, read_ids, with_ids
from dlrm_app.dataset.encoding_files import copy_encoding_files, ids_known_on
from dlrm_app.dataset.manifest import Manifest, Shard, Split, write_manifest
from dlrm_app.dataset.shard_files import ShardReader
from dlrm_app.errors import DataError
from dlrm_app.files import written_whole
from dlrm_app.loader.batch_order import permutation
from dlrm_app.preprocess.passes.shuffle import ShardWriter
from dlrm_app.text import day_number

LISTS = pa.list_(pa.field("element", pa.int32(), nullable=False))
PICK = 3
"""What the permutation is for: see GROUP_ORDER in loader/batch_order."""


@dataclass(frozen=True)
class Part:
    """``share`` of the training rows of the dataset of an earlier ``day``."""

    manifest: Manifest
    day: date
    share: float


def write_rows(dataset: Manifest, day: date, earlier: Sequence[Part], folder: Path) -> None:
    """Makes the dataset ``folder`` of ``dataset``, that of ``day``, and of ``earlier`` ones; what was left of it is removed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    dataset = replace(dataset, lineage=dataset.encoding_lineage)
    copy_encoding_files(dataset, folder)
    train, val = dataset.splits["train"], dataset.splits["val"]
    both = [*train.shards, *val.shards]
    splits = {
        "train": replace(train, shards=_linked(dataset, train.shards, folder, "train")),
        "val": replace(val, shards=_linked(dataset, val.shards, folder, "val")),
        "test": Split(
            train.rows + val.rows,
            _sum(train.positives, val.positives),
            0,
            _linked(dataset, both, folder, "test"),
        ),
    }
    for part in earlier:
        split = splits["train"]
        shard, positives = _copy(part, dataset, day, folder, f"train/part-{len(split.shards):05d}.parquet")
        if shard.rows:
            rows = split.rows + shard.rows
            shards = [*split.shards, shard]
            splits["train"] = Split(rows, _sum(split.positives, positives), split.rejects, shards)
    write_manifest(folder, replace(dataset, splits=splits))


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def _linked(dataset: Manifest, shards: Sequence[Shard], folder: Path, split: str) -> list[Shard]:
    """The shards under new names in ``folder``, which take no room; copies where a file system has no hard links."""
    (folder / split).mkdir()
    linked = [replace(s, path=f"{split}/part-{number:05d}.parquet") for number, s in enumerate(shards)]
    for shard, link in zip(shards, linked, strict=True):
        try:
            os.link(dataset.folder / shard.path, folder / link.path)
        except OSError:
            shutil.copyfile(dataset.folder / shard.path, folder / link.path)
    return linked


def _copy(part: Part, dataset: Manifest, day: date, folder: Path, name: str) -> tuple[Shard, int | None]:
    """Writes the picked rows of ``part`` as the shard ``name``; its entry in the manifest, and the clicks in it."""
    positives = 0
    with written_whole(folder / name) as temporary, temporary.open("wb") as file:
        schema = schema_of(dataset)
        rows = max(dataset.splits["train"].shards[0].row_groups)
        writer = ShardWriter(file, rows, schema, name)
        for table in _picked(part, day, dataset, schema):
            writer.write_table(table)
            if dataset.label is not None:
                positives += int(numbers_of(table.column(dataset.label)).sum())
        shard = writer.finish()
    return shard, None if dataset.label is None else positives


def _picked(part: Part, day: date, dataset: Manifest, schema: pa.Schema) -> Iterator[pa.Table]:
    reader = ShardReader(part.manifest.folder, schema.names)
    known = _known(part, dataset)
    group, seen = 0, 0
    for shard in part.manifest.splits["train"].shards:
        for index, rows in enumerate(shard.row_groups):
            wanted = int((seen + rows) * part.share) - int(seen * part.share)
            chosen = picked_rows(rows, wanted, day, part.day, group)
            if len(chosen):
                table = reader.read(shard, index).select(schema.names).take(array_of(chosen)).cast(schema)
                yield _as_known(table, dataset, known).combine_chunks()
            group, seen = group + 1, seen + rows


def _known(part: Part, dataset: Manifest) -> dict[str, NDArray[np.int32]]:
    """Feature → what each id of the earlier day is now: a rare value, if the id was given to another value since."""
    day = day_number(part.day.isoformat())
    return {
        column.name: ids_known_on(dataset.folder, column, day)
        for column in dataset.sparse
        if column.encoding["kind"] == "vocab"
    }


def _as_known(table: pa.Table, dataset: Manifest, known: Mapping[str, NDArray[np.int32]]) -> pa.Table:
    for column in dataset.sparse:
        if column.name in known:
            at = table.schema.get_field_index(column.name)
            ids = with_ids(read_ids(table, column), known[column.name])
            if isinstance(ids, Bags):
                array = pa.ListArray.from_arrays(array_of(ids.offsets), array_of(ids.values), type=LISTS)
            else:
                array = array_of(ids)
            table = table.set_column(at, table.schema.field(at), array)
    return table


def picked_rows(rows: int, wanted: int, day: date, earlier: date, group: int) -> NDArray[np.int64]:
    """Which ``wanted`` of the ``rows`` rows of a row group of the day ``earlier`` are trained on again on ``day``, rising."""
    if wanted == rows:
        return np.arange(rows)
    order = permutation(rows, day.toordinal(), earlier.toordinal(), PICK, group)
    return np.sort(order[:wanted])


def schema_of(manifest: Manifest) -> pa.Schema:
    """The columns of a shard, as preprocessing writes them."""
    label = [] if manifest.label is None else [(manifest.label, pa.uint8())]
    dense = [(column.name, pa.float32()) for column in manifest.dense]
    ids = [(column.name, LISTS if column.multi_hot else pa.int32()) for column in manifest.sparse]
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in (*label, *dense, *ids)])


def refuse_other_columns(part: Part, dataset: Manifest) -> None:
    """Raises DataError unless rows of ``part`` have the columns of ``dataset``."""
    if schema_of(part.manifest) != schema_of(dataset):
        raise DataError(
            f"{part.manifest.folder} has other columns than {dataset.folder}: rows of it cannot be trained on again; "
            "give days.replay=0 until those days have left the window"
        )
