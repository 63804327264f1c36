"""Makes the dataset of a day's training from finished datasets: the day's rows, and rows of earlier days.

It is a normal dataset, so the order of its rows depends only on its manifest, and a run on it can be resumed. Shards
of the day itself are hard links. From earlier days a share of every row group is copied, picked by the two dates.

    train   the day's training rows, then the ``Earlier`` ones
    val     the day's held-out rows
    test    all of the day's rows, to score earlier models
"""

import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import (
    Bags,
    array_of,
    numbers_of,
    read_ids,
    read_other_label,
    read_weights,
    shard_schema,
    with_ids,
)
from dlrm_app.dataset.columns import is_opinion
from dlrm_app.dataset.encoding_files import copy_encoding_files, ids_known_on
from dlrm_app.dataset.label_counts import add_counts, add_weights, count_labels, label_counts
from dlrm_app.dataset.manifest import Manifest, write_manifest
from dlrm_app.dataset.shard_files import ShardReader
from dlrm_app.dataset.shard_writer import ShardWriter
from dlrm_app.dataset.splits import Shard, Split, WeightSums
from dlrm_app.dates import HOURS, Hour, day_number
from dlrm_app.encoding.dense import missing_value
from dlrm_app.encoding.sparse import MISSING_ID
from dlrm_app.errors import DataError, Problem
from dlrm_app.files import written_whole
from dlrm_app.loader.batch_order import permutation
from dlrm_app.text import listed

PICK = 3
"""The purpose of the permutation, see GROUP_ORDER in loader/batch_order."""


@dataclass(frozen=True)
class Earlier:
    """A ``share`` of the rows in ``split`` of the ``dataset`` of an earlier ``day``."""

    day: date
    dataset: Manifest
    split: str
    share: float


def write_rows(dataset: Manifest, day: date, earlier: Sequence[Earlier], folder: Path) -> None:
    """Makes the dataset ``folder`` from ``dataset`` (that of ``day``) and ``earlier`` rows to train on.

    An unfinished ``folder`` is deleted first. In columns that an earlier day lacks its values are missing. Raises
    DataError if its columns differ otherwise.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    dataset = replace(dataset, lineage=dataset.encoding_lineage)
    copy_encoding_files(dataset, folder)
    train, val = dataset.splits["train"], dataset.splits["val"]
    all_rows = _sum([train, val], rejects=0)
    splits = {
        name: replace(split, shards=_linked(dataset, split.shards, folder, name))
        for name, split in (("train", train), ("val", val), ("test", all_rows))
    }
    for rows in earlier:
        name = f"train/part-{len(splits['train'].shards):05d}.parquet"
        copied = _write_shard(folder, name, _picked(rows, dataset, day), dataset)
        if copied.rows:
            splits["train"] = _sum([splits["train"], copied], train.rejects)
    share = dataset.kept_share("train")
    kept = {name: share for name in splits if share < 1}
    write_manifest(folder, replace(dataset, splits=splits, negatives_kept=kept))


def _sum(splits: Sequence[Split], rejects: int) -> Split:
    names = dict.fromkeys(name for split in splits for name in split.labels)
    positives = [split.positives for split in splits if split.positives is not None]
    return Split(
        sum(split.rows for split in splits),
        sum(positives) if len(positives) == len(splits) else None,
        rejects,
        [shard for split in splits for shard in split.shards],
        weights=add_weights(split.weights for split in splits),
        labels={name: add_counts([split.labels[name] for split in splits]) for name in names},
    )


def _linked(dataset: Manifest, shards: Sequence[Shard], folder: Path, split: str) -> list[Shard]:
    """Hard links to the shards under new names in ``folder``; copies if the file system has no hard links."""
    (folder / split).mkdir()
    linked = [replace(s, path=f"{split}/part-{number:05d}.parquet") for number, s in enumerate(shards)]
    for shard, link in zip(shards, linked, strict=True):
        try:
            os.link(dataset.folder / shard.path, folder / link.path)
        except OSError:
            shutil.copyfile(dataset.folder / shard.path, folder / link.path)
    return linked


def _write_shard(folder: Path, name: str, tables: Iterator[pa.Table], dataset: Manifest) -> Split:
    positives, sums = 0, np.zeros(2)
    names, labels = [label.name for label in dataset.other_labels], []
    with written_whole(folder / name) as temporary, temporary.open("wb") as file:
        group_rows = max(dataset.splits["train"].shards[0].row_groups)
        writer = ShardWriter(file, group_rows, _schema(dataset), name)
        for table in tables:
            writer.write_table(table)
            if dataset.label is not None:
                clicks = numbers_of(table.column(dataset.label))
                positives += int(clicks.sum())
                weights = np.ones(len(clicks))
                if dataset.weight:
                    weights = read_weights(table, dataset.weight).astype(np.float64)
                    sums += weights.sum(), weights @ clicks
                if names:
                    others = np.stack([read_other_label(table, each) for each in names])
                    labels.append(count_labels(dataset.labels, clicks, others, weights).tolist())
        shard = writer.finish()
    summed = WeightSums(float(sums[0]), float(sums[1])) if dataset.is_weighted else None
    return Split(
        shard.rows,
        None if dataset.label is None else positives,
        0,
        [shard],
        weights=summed,
        labels=label_counts(
            dataset.labels,
            labels,
            is_weighted=dataset.is_weighted,
            is_sampled=dataset.kept_share("train") < 1,
        ),
    )


def _schema(manifest: Manifest) -> pa.Schema:
    others = [label.name for label in manifest.other_labels]
    columns = manifest.dense, manifest.sparse, manifest.kept
    return shard_schema(manifest.label, *columns, manifest.weight, others, manifest.vectors)


def _other_columns(earlier: Manifest, dataset: Manifest) -> list[str]:
    """The columns (label, dense, sparse, kept) that differ in form or order, or that only one of the two has.

    Those that rows of ``earlier`` may lack are left out.
    """
    then, now = _schema(earlier), _schema(dataset)
    made = {name for name in now.names if name not in then.names and name in _makeable(dataset)}
    if then == pa.schema([field for field in now if field.name not in made]):
        return []
    schemas = [{field.name: str(field.type) for field in schema} for schema in (then, now)]
    columns = {name: name for schema in schemas for name in schema if name not in made}
    columns |= {part: kept.name for each in (earlier, dataset) for kept in each.kept for part in kept.parts}
    names = [name for part, name in columns.items() if schemas[0].get(part) != schemas[1].get(part)]
    return list(dict.fromkeys(names)) or ["in another order"]


def _makeable(dataset: Manifest) -> set[str]:
    """The columns of shards that earlier rows may lack: new dense and sparse columns, vectors, and other labels."""
    dense = {column.name for column in dataset.dense if not is_opinion(column)}
    sparse = {name for column in dataset.sparse for name in (column.name, column.weights) if name}
    vectors = {column.name for column in dataset.vectors}
    return dense | sparse | vectors | {label.name for label in dataset.other_labels}


def _completed(table: pa.Table, dataset: Manifest) -> pa.Table:
    """``table`` with the columns of ``dataset``; those that it lacks are missing in all rows."""
    transforms = {column.name: column.transform for column in dataset.dense}
    words = {column.name: column.num_words for column in dataset.vectors}
    schema = _schema(dataset)
    for field in schema:
        if field.name in table.column_names:
            continue
        value: list[float] | float = [0] * words.get(field.name, 0)
        value = value if pa.types.is_list(field.type) else MISSING_ID
        if pa.types.is_floating(field.type):  # a number, or another label
            transform = transforms.get(field.name)
            value = math.nan if transform is None else missing_value(transform)
        table = table.append_column(field, pa.array([value] * len(table), field.type))
    return table.select(schema.names)


def _refuse_other_share(earlier: Earlier, dataset: Manifest) -> None:
    """Raises DataError if the ``earlier`` rows kept another share of negatives than the day's."""
    then, now = earlier.dataset.kept_share(earlier.split), dataset.kept_share("train")
    if then != now:
        rule = (
            f"has kept {then:g} of the negatives, {dataset.folder} {now:g}, and rows that are learnt "
            "together must be one sample"
        )
        cure = "give the dataset.negatives_kept of the days before, or another output"
        raise DataError(Problem(str(earlier.dataset.folder), rule, cure))


def _picked(earlier: Earlier, dataset: Manifest, day: date) -> Iterator[pa.Table]:
    """The ``earlier`` rows that ``day`` trains on, a table for each row group, with the ids of ``dataset``."""
    schema, manifest, share = _schema(dataset), earlier.dataset, earlier.share
    if names := _other_columns(manifest, dataset):
        rule = f"has other columns than {dataset.folder} ({listed(names)}), so no model can learn both"
        cure = "give the columns of the days before, or another output"
        raise DataError(Problem(str(manifest.folder), rule, cure))
    _refuse_other_share(earlier, dataset)
    current_ids = {
        column.name: ids_known_on(dataset.folder, column, day_number(earlier.day.isoformat()))
        for column in dataset.sparse
        if column.encoding["kind"] == "vocab"
    }
    reader = ShardReader(manifest.folder, [name for name in schema.names if name in _schema(manifest).names])
    group, seen = 0, 0
    for shard in manifest.splits[earlier.split].shards:
        for index, rows in enumerate(shard.row_groups):
            wanted = int((seen + rows) * share) - int(seen * share)
            if wanted:
                chosen = array_of(picked_rows(rows, wanted, day, earlier.day, group))
                table = _completed(reader.read(shard, index).take(chosen), dataset).cast(schema)
                yield _with_current_ids(table, dataset, current_ids).combine_chunks()
            group, seen = group + 1, seen + rows


def _with_current_ids(
    table: pa.Table, dataset: Manifest, current_ids: Mapping[str, NDArray[np.int32]]
) -> pa.Table:
    """``table`` with the rare id for each id that now belongs to another value. ``current_ids``: by feature."""
    for column in dataset.sparse:
        if column.name in current_ids:
            field = table.schema.field(column.name)
            ids = with_ids(read_ids(table, column), current_ids[column.name])
            array = (
                pa.ListArray.from_arrays(array_of(ids.offsets), array_of(ids.values), type=field.type)
                if isinstance(ids, Bags)
                else array_of(ids)
            )
            table = table.set_column(table.schema.names.index(column.name), field, array)
    return table


def picked_rows(rows: int, wanted: int, day: date, earlier: date, group: int) -> NDArray[np.int64]:
    """The numbers of ``wanted`` of the ``rows`` rows of a row group of the day ``earlier``, for ``day``; sorted."""
    if wanted == rows:
        return np.arange(rows)
    order = permutation(rows, _number(day), _number(earlier), PICK, group)
    return np.sort(order[:wanted])


def _number(day: date) -> int:
    return day.toordinal() * HOURS + day.hour if isinstance(day, Hour) else day.toordinal()
