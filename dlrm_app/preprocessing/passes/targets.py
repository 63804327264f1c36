"""Target encoding: the click rate of a sparse column's value, as a dense column beside it (Micci-Barreca 2001).

The column holds log((c + a·p) / (n - c + a·(1 - p))) - log(p / (1 - p)), where n training rows have the value's id, c
of them with a click, p is the share of clicks in all training rows, and a is the strength of that prior. It is 0 for an
id without rows.

Rows with weights count by weight, divided by the mean weight of the training rows. In a sampled log, each negative also
counts for those that sampling left out, so n is the number of all rows.

Each of several labels has such a column beside every sparse one. Of a label that is given another, the rows count
where its condition holds, and only rows that have the label.

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
from dlrm_app.dataset.manifest import DenseColumn, LearntLabel, Manifest, SparseColumn
from dlrm_app.encoding.dense import TARGET, folded_file, is_target
from dlrm_app.encoding.encoder import Encoder
from dlrm_app.encoding.own_clicks import LEARNT_ROWS
from dlrm_app.encoding.row_hash import deal_keys
from dlrm_app.encoding.row_samples import RowSample, RowSampler, read_row_sample, warn_of_copies
from dlrm_app.errors import ConfigError, Problem
from dlrm_app.files import written_whole
from dlrm_app.journal import Finish, Journal
from dlrm_app.logs.arrow_rows import open_cursor
from dlrm_app.logs.raw_columns import RawColumns
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

    The counts go to ``<unit>.counts`` in the journal's folder, of all columns by the main label, then by the next
    one, and so on; a sample of the rows to ``<unit>.contents``.
    ``columns``: the numbers, in ``sparse``, of the columns that get a target column; their vocabularies are in the
    output.
    """

    title: ClassVar[str] = "counting clicks"
    reads: ClassVar[tuple[str, ...]] = ()
    plan: InputPlan
    dense: tuple[DenseColumn, ...]
    sparse: tuple[SparseColumn, ...]
    columns: tuple[int, ...]
    journal: Journal[CountedUnit]

    def __call__(self, unit: InputUnit) -> Finish[CountedUnit]:
        labels = self.plan.spec.labels or (None,)
        counts = [[KeyCounts() for _ in self.columns] for _ in labels]
        spec, contents = self.plan.file_specs[unit.source], RowSampler()
        cursor, encoder = open_cursor(unit, spec), Encoder(spec, self.dense, self.sparse, self.plan.output)
        places = [encoder.schema.get_field_index(self.sparse[column].name) for column in self.columns]
        num_rows = 0
        for split, raw, row_hashes in self.plan.rows(unit, cursor, wants_hashes=True):
            if split == "train" and row_hashes is not None:
                num_rows += len(raw.labels)
                encoded, folds = encoder.encode(raw), 2 * folds_of(self.plan.seed, row_hashes)
                ids = [encoded.values(place).astype(np.uint64) for place in places]
                for label, of_label in zip(labels, counts, strict=True):
                    outcomes, weights = self._outcomes(label, raw)
                    rows = ~np.isnan(outcomes)
                    offsets = (folds[rows] + outcomes[rows]).astype(np.uint64)
                    for count, each in zip(of_label, ids, strict=True):
                        keys = each[rows] * np.uint64(2 * NUM_FOLDS) + offsets
                        count.add(*_sums_of(keys, None if weights is None else weights[rows]))
                if self.plan.contents_identify_rows:
                    contents.add(row_hashes)
        extent = unit.finish()
        files = self.journal.begin(unit.name)
        with files.write(".counts") as temporary:
            write_counts(temporary, [count.sorted() for of_label in counts for count in of_label])
        with files.write(".contents") as temporary:
            contents.sample.write(temporary)
        return files.finish(CountedUnit(extent, cursor.line, num_rows))

    def _outcomes(
        self, label: LearntLabel | None, raw: RawColumns
    ) -> tuple[NDArray[np.floating], NDArray[np.floating] | None]:
        """(``label`` [R] of the rows, NaN where they say nothing of it; how much they count, None: each once).

        The main label's counts are corrected for negatives that sampling left out where they are added up.
        """
        spec, main = self.plan.spec, raw.labels.astype(np.float64)
        share = self.plan.kept_shares.get("train", 1.0)
        weights = raw.weights if spec.is_weighted else None
        if label is None:
            return main, weights
        if share < 1:  # counts of one file are of one type
            weights = raw.weights
        if label == spec.labels[0]:
            return main, weights
        by_name = dict(zip((each.name for each in spec.labels), [main, *raw.other_labels], strict=True))
        outcomes = by_name[label.name]
        if label.given is not None:
            outcomes = np.where(by_name[label.given] == 1, outcomes, np.nan)
        return outcomes, weights if share == 1 else raw.weights * np.where(main > 0, 1.0, 1 / share)


IdCounts = NDArray[np.int64] | NDArray[np.float64]
"""Numbers of rows, or the sums of their weights."""


def _sums_of(
    keys: NDArray[np.uint64], weights: NDArray[np.floating] | None
) -> tuple[NDArray[np.uint64], IdCounts]:
    """Returns (the distinct ``keys``, how often each occurs or the sum of the ``weights`` of its rows)."""
    if weights is None:
        return np.unique(keys, return_counts=True)
    distinct, places = np.unique(keys, return_inverse=True)
    return distinct, np.bincount(places, weights.astype(np.float32), len(distinct))


def folds_of(seed: int, keys: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """The folds [R] of training rows with these ``keys``, from ``InputPlan.rows``."""
    return (deal_keys(keys, seed, FOLDS) % np.uint64(NUM_FOLDS)).astype(np.uint8)


@dataclass(frozen=True)
class AddUpClicks:
    """Makes the file of a target column, and its values by fold in the journal's folder.

    Items are numbered by label, and within a label by source.
    ``contents``: the file with the sample of the training rows, and its checksum; empty without one.
    """

    title: ClassVar[str] = "adding up clicks"
    reads: ClassVar[tuple[str, ...]] = ("clicks/*",)
    plan: InputPlan
    counted: Journal[CountedUnit]
    units: tuple[CountedUnit, ...]
    sources: tuple[SparseColumn, ...]
    contents: dict[str, str]
    journal: Journal[DenseColumn]

    def __call__(self, item: NumberedItem) -> Finish[DenseColumn]:
        label, place = divmod(item.number, len(self.sources))
        source = self.sources[place]
        rows, clicks = self._add_up(label, place, source.num_embeddings)
        all_rows, all_clicks = rows.sum(1), clicks.sum(1)
        rate = share_of(all_clicks.sum().item(), all_rows.sum().item())
        strength = prior_strength(all_rows, all_clicks, rate)
        # two endings, so that no column's file is another one's of another label
        file = f"target/{source.name}.label{label}.pq" if label else f"target/{source.name}.parquet"
        name = f"{source.name}_target" + (f"_{self.plan.spec.labels[label].name}" if label else "")
        values = log_odds(all_rows, all_clicks, strength, rate)
        self._write_folded(file, rows, clicks, strength)
        transform = {
            "kind": TARGET,
            "column": source.name,
            "file": file,
            "checksum": _write(self.plan.output / file, all_rows, all_clicks, values),
            "rate": rate,
            "strength": strength,
            "folds": NUM_FOLDS,
            **({"label": self.plan.spec.labels[label].name} if label else {}),
            **({"contents": self.contents} if self.contents else {}),
        }
        return self.journal.begin(item.name).finish(DenseColumn(name, transform))

    def _add_up(self, label: int, place: int, num_ids: int) -> tuple[IdCounts, IdCounts]:
        """Returns (rows, clicks) [ids, NUM_FOLDS] of all units."""
        counts = self._read(label, place, num_ids)
        if self.plan.spec.is_weighted:  # the prior counts rows, so the mean weight of all must be 1
            weight = (self._read(0, place, num_ids) if label else counts).sum()
            counts *= sum(unit.rows for unit in self.units) / (weight or 1.0)
        if (share := self.plan.kept_shares.get("train", 1.0)) < 1 and not label:
            counts[:, 0] /= share
        by_label = counts.reshape(num_ids, NUM_FOLDS, 2)
        return by_label.sum(2), by_label[:, :, 1]

    def _read(self, label: int, place: int, num_ids: int) -> NDArray[Any]:
        """The counts of all units, [ids · NUM_FOLDS, 2]: of rows without the label and with it."""
        is_count = not self.plan.spec.is_weighted and self.plan.kept_shares.get("train", 1.0) == 1
        counts: NDArray[Any] = np.zeros((num_ids * NUM_FOLDS, 2), np.int64 if is_count else np.float64)
        for unit in self.units:
            path = self.counted.path(unit.extent.name, ".counts")
            keys, numbers = read_counts(path, label * len(self.sources) + place)
            counts.reshape(-1)[keys.astype(np.int64)] += numbers  # a file has each key once
        return counts

    def _write_folded(self, file: str, rows: IdCounts, clicks: IdCounts, strength: float) -> None:
        """Writes the values for the rows of each fold, from the rows of the other folds."""
        values = np.empty(rows.shape, np.float32)
        for fold in range(NUM_FOLDS):
            others = rows.sum(1) - rows[:, fold], clicks.sum(1) - clicks[:, fold]
            rate = share_of(others[1].sum().item(), others[0].sum().item())
            values[:, fold] = log_odds(*others, strength, rate)
        with (
            written_whole(folded_file(self.journal.folder, file)) as temporary,
            temporary.open("wb") as stream,
        ):
            np.save(stream, values)


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
