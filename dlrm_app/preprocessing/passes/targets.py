"""Target encoding: the click rate of a sparse column's value, as a dense column beside it (Micci-Barreca 2001).

The column holds log((c + a·p) / (n - c + a·(1 - p))) - log(p / (1 - p)), where n training rows have the value's id, c
of them with a click, p is the share of clicks in all training rows, and a is the strength of that prior. It is 0 for an
id without rows.

Rows with weights count by weight, divided by the mean weight of the training rows. In a sampled log, each negative also
counts for those that sampling left out, so n is the number of all rows.

A training row must not see its own click. So training rows are dealt to NUM_FOLDS folds by their contents, copies of a
row to the same fold, and a row is encoded with n, c and p of the other folds. All other rows, including those scored
later, are encoded with all training rows.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dlrm_app.checksums import checksum
from dlrm_app.dataset.arrow import array_of
from dlrm_app.dataset.encoding_files import read_clicks, read_rows, write_file
from dlrm_app.dataset.manifest import DenseColumn, Manifest, SparseColumn
from dlrm_app.encoding.dense import TARGET, folded_file, is_target
from dlrm_app.encoding.encoder import Encoder
from dlrm_app.encoding.own_clicks import LEARNT_ROWS
from dlrm_app.encoding.row_hash import deal_keys
from dlrm_app.encoding.row_samples import (
    RowSample,
    RowSampler,
    read_row_sample,
    warn_of_copies,
)
from dlrm_app.errors import ConfigError, Problem
from dlrm_app.files import written_whole
from dlrm_app.journal import Finish, Journal
from dlrm_app.logs.arrow_rows import open_cursor
from dlrm_app.logs.sources.feeds import InputUnit
from dlrm_app.logs.sources.source import InputFile, content_checksum
from dlrm_app.preprocessing.passes.counts import KeyCounts, read_counts, write_counts
from dlrm_app.preprocessing.passes.plan import FOLDS, CountedUnit, InputPlan
from dlrm_app.preprocessing.work.executor import NumberedItem
from dlrm_app.text import memory_text

NUM_FOLDS = 10
STRONGEST = 1e5
"""The strength if click rates differ by no more than chance: values of the column are then almost 0."""
_BYTES_PER_ID = 40 * NUM_FOLDS
"""Memory for adding up one id: two counts and a value for each fold, and temporary arrays."""


@dataclass(frozen=True)
class CountClicks:
    """Counts the training rows of a unit by id, fold and label.

    The counts go to ``<unit>.counts`` in the journal's folder, a sample of the rows to ``<unit>.contents``.
    ``columns``: the numbers, in ``sparse``, of the columns that get a target column; their vocabularies are in the
    output.
    """

    title: ClassVar[str] = "counting clicks"
    plan: InputPlan
    dense: tuple[DenseColumn, ...]
    sparse: tuple[SparseColumn, ...]
    columns: tuple[int, ...]
    journal: Journal[CountedUnit]

    def __call__(self, unit: InputUnit) -> Finish[CountedUnit]:
        counts = [KeyCounts() for _ in self.columns]
        spec, contents = self.plan.file_specs[unit.source], RowSampler()
        cursor, encoder = open_cursor(unit, spec), Encoder(spec, self.dense, self.sparse, self.plan.output)
        places = [encoder.schema.get_field_index(self.sparse[column].name) for column in self.columns]
        num_rows = 0
        for split, raw, row_hashes in self.plan.rows(unit, cursor, wants_hashes=True):
            if split == "train" and row_hashes is not None:
                num_rows += len(raw.labels)
                encoded = encoder.encode(raw)
                offsets = (2 * folds_of(self.plan.seed, row_hashes) + raw.labels).astype(np.uint64)
                for count, place in zip(counts, places, strict=True):
                    keys = encoded.values(place).astype(np.uint64) * np.uint64(2 * NUM_FOLDS) + offsets
                    count.add(*_sums_of(keys, raw.weights, self.plan.spec.is_weighted))
                if self.plan.contents_identify_rows:
                    contents.add(row_hashes)
        extent = unit.finish()
        files = self.journal.begin(unit.name)
        with files.write(".counts") as temporary:
            write_counts(temporary, [count.sorted() for count in counts])
        with files.write(".contents") as temporary:
            contents.sample.write(temporary)
        return files.finish(CountedUnit(extent, cursor.line, num_rows))


IdCounts = NDArray[np.int64] | NDArray[np.float64]
"""Numbers of rows, or the sums of their weights."""


def _sums_of(
    keys: NDArray[np.uint64], weights: NDArray[np.float64], is_weighted: bool
) -> tuple[NDArray[np.uint64], IdCounts]:
    """Returns (the distinct ``keys``, how often each occurs or the sum of the weights of its rows)."""
    if not is_weighted:
        return np.unique(keys, return_counts=True)
    distinct, places = np.unique(keys, return_inverse=True)
    return distinct, np.bincount(places, weights.astype(np.float32), len(distinct))


def folds_of(seed: int, keys: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """The folds [R] of training rows with these ``keys``, from ``InputPlan.rows``."""
    return (deal_keys(keys, seed, FOLDS) % np.uint64(NUM_FOLDS)).astype(np.uint8)


@dataclass(frozen=True)
class AddUpClicks:
    """Makes the file of a target column, and its values by fold in the journal's folder.

    ``contents``: the file with the sample of the training rows, and its checksum; empty without one.
    """

    title: ClassVar[str] = "adding up clicks"
    plan: InputPlan
    counted: Journal[CountedUnit]
    units: tuple[CountedUnit, ...]
    sources: tuple[SparseColumn, ...]
    contents: dict[str, str]
    journal: Journal[DenseColumn]

    def __call__(self, item: NumberedItem) -> Finish[DenseColumn]:
        number, source = item.number, self.sources[item.number]
        rows, clicks = self._add_up(number, source.num_embeddings)
        all_rows, all_clicks = rows.sum(1), clicks.sum(1)
        rate = share_of(all_clicks.sum().item(), all_rows.sum().item())
        strength = prior_strength(all_rows, all_clicks, rate)
        file = f"target/{source.name}.parquet"
        values = log_odds(all_rows, all_clicks, strength, rate)
        self._write_folded(source.name, rows, clicks, strength)
        transform = {
            "kind": TARGET,
            "column": source.name,
            "file": file,
            "checksum": _write(self.plan.output / file, all_rows, all_clicks, values),
            "rate": rate,
            "strength": strength,
            "folds": NUM_FOLDS,
            **({"contents": self.contents} if self.contents else {}),
        }
        return self.journal.begin(item.name).finish(DenseColumn(f"{source.name}_target", transform))

    def _add_up(self, number: int, num_ids: int) -> tuple[IdCounts, IdCounts]:
        """Returns (rows, clicks) [ids, NUM_FOLDS] of all units."""
        share = self.plan.kept_shares.get("train", 1.0)
        is_weighted = self.plan.spec.is_weighted
        kind = np.float64 if is_weighted or share < 1 else np.int64
        counts: NDArray[Any] = np.zeros((num_ids * NUM_FOLDS, 2), kind)  # by label
        for unit in self.units:
            path = self.counted.path(unit.extent.name, ".counts")
            keys, numbers = read_counts(path, number)
            counts.reshape(-1)[keys.astype(np.int64)] += numbers  # a file has each key once
        if is_weighted:  # the prior counts rows, so the mean weight must be 1
            counts *= sum(unit.rows for unit in self.units) / (counts.sum() or 1.0)
        if share < 1:
            counts[:, 0] /= share
        by_label = counts.reshape(num_ids, NUM_FOLDS, 2)
        return by_label.sum(2), by_label[:, :, 1]

    def _write_folded(self, name: str, rows: IdCounts, clicks: IdCounts, strength: float) -> None:
        """Writes the values for the rows of each fold, from the rows of the other folds."""
        values = np.empty(rows.shape, np.float32)
        for fold in range(NUM_FOLDS):
            others = rows.sum(1) - rows[:, fold], clicks.sum(1) - clicks[:, fold]
            rate = share_of(others[1].sum().item(), others[0].sum().item())
            values[:, fold] = log_odds(*others, strength, rate)
        with (
            written_whole(folded_file(self.journal.folder, name)) as temporary,
            temporary.open("wb") as file,
        ):
            np.save(file, values)


def _write(path: Path, rows: IdCounts, clicks: IdCounts, values: NDArray[np.float32]) -> str:
    columns = {"rows": array_of(rows), "clicks": array_of(clicks), "log_odds": array_of(values)}
    return write_file(path, columns)


def grow_target(
    target: DenseColumn, parent: Manifest, output: Path, sparse: Sequence[SparseColumn], day: int
) -> DenseColumn:
    """The target column for a day's ``sparse`` columns. Old ids keep their values.

    An id that was given on ``day`` has no rows, and gets the click rate of values that no vocabulary contains.
    ``output`` has the vocabularies; the file is written there.
    """
    rule = target.transform
    if contents := rule.get("contents"):
        (output / contents["file"]).parent.mkdir(exist_ok=True)
        shutil.copyfile(parent.folder / contents["file"], output / contents["file"])
    source = next(column for column in sparse if column.name == rule["column"])
    num_before = next(column.num_embeddings for column in parent.sparse if column.name == source.name)
    old_rows, old_clicks, old_values = read_clicks(parent.folder, rule, num_before)
    stays = np.flatnonzero(read_rows(output, source).given_day[:num_before] != day)
    rows, clicks = (np.zeros(source.num_embeddings, old.dtype) for old in (old_rows, old_clicks))
    values = np.full(source.num_embeddings, old_values[source.encoding.get("rare_id", 0)])
    rows[stays], clicks[stays], values[stays] = old_rows[stays], old_clicks[stays], old_values[stays]
    return replace(
        target, transform={**rule, "checksum": _write(output / rule["file"], rows, clicks, values)}
    )


def base_click_problems(base: Manifest, sources: Sequence[InputFile]) -> list[Problem]:
    """A problem for each training file whose clicks are in the target columns of ``base``.

    Each of its rows would see its own click. Files are compared by their text, plain or compressed.
    """
    encoding = base.config.get("encoding", {})
    has_targets = any(is_target(column) for column in base.dense)
    if not has_targets or encoding.get("path") or encoding.get("grow_from"):
        return []  # in the last two cases its target columns come from other files
    learnt = {source.checksum for source in base.sources if source.split == "train"}
    return [
        Problem(
            f"input.train={source.path}",
            f"gave the target columns of {base.path} their clicks, so its rows would see their own",
            f"train on {base.path}, or give other rows",
        )
        for source in sources
        if source.split == "train" and learnt and content_checksum(source) in learnt
    ]


def write_learnt(samples: Sequence[Path], output: Path) -> dict[str, str]:
    """Joins the ``samples`` of units and writes the result. Returns its file and checksum, for the manifest."""
    sample = RowSample.joined(map(read_row_sample, samples))
    (output / LEARNT_ROWS).parent.mkdir(exist_ok=True)
    sample.write(output / LEARNT_ROWS)
    warn_of_copies(sample, "training rows")
    return {"file": LEARNT_ROWS, "checksum": checksum(output / LEARNT_ROWS)}


def prior_strength(rows: IdCounts, clicks: IdCounts, rate: float) -> float:
    """The number of rows that the prior counts for, in [1, STRONGEST], by beta-binomial moments (Kleinman 1973).

    rows, clicks [ids]; rate: the share of clicks in all rows. The more the click rates of ids differ beyond chance, the
    weaker is the prior. It needs no setting, so it fits any column and any rate of clicks.
    """
    rows, clicks = rows[rows > 0], clicks[rows > 0]
    spread = float((rows * (clicks / rows - rate) ** 2).sum()) / (rate * (1 - rate))
    correlation = (spread - len(rows)) / max((rows - 1).sum().item(), 1)
    return float(np.clip(1 / max(correlation, 1e-9) - 1, 1.0, STRONGEST))


def log_odds(rows: IdCounts, clicks: IdCounts, strength: float, rate: float) -> NDArray[np.float32]:
    """The column's value for every id; rows, clicks [ids]."""
    prior = strength * rate, strength * (1 - rate)
    return (np.log((clicks + prior[0]) / (rows - clicks + prior[1])) - np.log(prior[0] / prior[1])).astype(
        np.float32
    )


def share_of(clicks: float, rows: float) -> float:
    """The share of clicks, kept away from 0 and 1, whose log odds are infinite."""
    return (clicks + 0.5) / (rows + 1)


def refuse_if_clicks_are_too_many(sources: Sequence[SparseColumn], memory_bytes: int) -> None:
    """Raises ConfigError if counting the clicks of all ids of ``sources`` takes more than ``memory_bytes``."""
    needed = sum(source.num_embeddings for source in sources) * _BYTES_PER_ID
    if needed > memory_bytes:
        raise ConfigError(
            Problem(
                "dense.target_columns",
                f"counts the clicks of {sum(s.num_embeddings for s in sources):,} ids, which takes "
                f"{memory_text(needed)} of memory, more than memory_gib allows ({memory_text(memory_bytes)})",
                "raise memory_gib, name fewer columns, or give fewer ids (encoding.min_count, "
                "encoding.num_embeddings)",
            )
        )
