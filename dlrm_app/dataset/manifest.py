"""The manifest: the content of a dataset folder. It is written last, so it also marks the dataset as complete.

    DATASET/manifest.json
    DATASET/train/part-00000.parquet  val/…  test/…
    DATASET/vocab/<feature>.parquet  waiting/<feature>.parquet  target/<feature>.parquet
    DATASET/rejects.jsonl

Columns in a shard: the label (uint8) unless ``manifest.label`` is None, the other labels (float32, NaN where a row
lacks one), and the weight (float32) of rows that have one; then every dense column (float32) and every sparse column
(int32, or list<int32> if multi-hot), under the names given here; then the weights of lists' elements (list<float32>),
vectors (``vector_columns``) and the parts of kept columns.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dlrm_app.dataset.lineage import Lineage
from dlrm_app.dataset.manifest_faults import KINDS_WITH_A_FILE, faults_of
from dlrm_app.dataset.splits import LabelCounts, ManifestSource, Shard, Split, ValueCounts, WeightSums
from dlrm_app.dataset.vector_columns import VectorColumn
from dlrm_app.errors import DataError, Problem
from dlrm_app.records import ALWAYS, IF_SET, NOT_WRITTEN, Format, Json

MANIFEST = "manifest.json"
SUGGESTION = "delete the folder and preprocess again"


@dataclass(frozen=True)
class DenseColumn:
    """A float32 column. ``transform`` is everything needed to encode a raw value at serving time."""

    name: str
    transform: Json
    missing_rate: float = 0.0


@dataclass(frozen=True)
class SparseColumn:
    """A column of ids in [0, ``num_embeddings``).

    ``encoding``: everything needed to encode a raw value at serving time, with vocab/<name>.parquet for a vocabulary.
    ``distinct``: the number of distinct raw values, of all columns that share the vocabulary.
    ``collisions``: the number of distinct values that share their id with another one; None if not counted.
    ``estimated``: True if ``distinct`` and ``collisions`` are estimates.
    ``weights``: the column with a weight for each id of the lists, if they have any.
    """

    name: str
    num_embeddings: int
    encoding: Json
    multi_hot: bool = False
    distinct: int | None = None
    missing_rate: float = 0.0
    collisions: int | None = None
    estimated: bool = False
    weights: str | None = field(default=None, metadata=IF_SET)


TIME = "time"
"""The kind of kept columns that are times."""


@dataclass(frozen=True)
class KeptColumn:
    """The raw values of a sparse column, a time, or a column that is read for this alone: keys that no model reads.

    Shards hold them as two int32 columns, ``parts``.

    ``kind`` is the column's in the log's description, or TIME. The key of an integer or of hex digits is the number
    itself, that of a time the number of microseconds since 1970. That of a text is a hash, and among n texts any two
    share one with probability n²/2^65: 3e-6 for ten million. ``missing`` is the key of a missing value.
    """

    name: str
    kind: str
    missing: int = 1 << 63

    @property
    def parts(self) -> tuple[str, str]:
        """The columns with the lower and the upper 32 bits."""
        return f"{self.name}:low", f"{self.name}:high"


@dataclass(frozen=True)
class LearntLabel:
    """One of several labels that a model learns, a column of 0 and 1 in the log.

    ``given``: a label before it without which it is never 1, such as the click of an order; the model predicts the
    probability of both (``model.labels``).
    ``loss_weight``: the factor of its loss.
    """

    name: str
    given: str | None = field(default=None, metadata=IF_SET)
    loss_weight: float = 1.0


@dataclass(frozen=True)
class Manifest:
    """Everything that a reader of the dataset can rely on.

    ``kept`` columns lie beside the features. ``best`` holds the best reachable ``auc`` and ``logloss``, which are known
    for synthetic data. ``lineage`` is set if vocabularies grow.
    """

    dataset: str
    label: str | None
    dense: list[DenseColumn]
    sparse: list[SparseColumn]
    splits: dict[str, Split]
    sources: list[ManifestSource]
    config: Json
    best: dict[str, float] | None = None
    lineage: Lineage | None = field(default=None, metadata=IF_SET)
    kept: list[KeptColumn] = field(default_factory=list, metadata=IF_SET)
    own_clicks: dict[str, float] = field(default_factory=dict, metadata=IF_SET)
    """Split → the share of its rows whose own clicks are in the target columns that encode them."""
    contents: dict[str, str] | None = field(default=None, metadata=IF_SET)
    """``file`` and ``checksum`` of a sample of the rows by hashes of their contents, if these decided the splits."""
    target_label: str | None = field(default=None, metadata=IF_SET)
    """The label whose shares the target columns are, if the rows have no label themselves."""
    weight: str | None = field(default=None, metadata=IF_SET)
    """The column with the weights of the rows, if they have any."""
    labels: list[LearntLabel] = field(default_factory=list, metadata=IF_SET)
    """All labels of rows with several, the main one (``label``) first; empty for rows with one."""
    further_best: dict[str, dict[str, float]] = field(default_factory=dict, metadata=IF_SET)
    """Other label → its best reachable ``auc`` and ``logloss``, if they are known."""
    negatives_kept: dict[str, float] = field(default_factory=dict, metadata=IF_SET)
    """Split → the share of its negatives that sampling has kept, of splits that were sampled."""
    usual: dict[str, ValueCounts] = field(default_factory=dict, metadata=IF_SET)
    """Column → the counts of its values that are usual, of an encoding without rows; see ``encoding/value_shares.py``."""
    vectors: list[VectorColumn] = field(default_factory=list, metadata=IF_SET)
    """The columns with a vector in each row."""
    lacks_vectors: bool = field(default=False, metadata=IF_SET)
    """True in an export, which has the vectors by raw value in its tables."""
    format: str = field(default="dlrm-dataset", metadata=ALWAYS)
    version: int = field(default=1, metadata=ALWAYS)
    path: Path | None = field(default=None, compare=False, metadata=NOT_WRITTEN)
    """The folder that it was read from."""
    known_on: int | None = field(default=None, compare=False, metadata=NOT_WRITTEN)
    """The number of the day whose vocabularies rows are read with: later ids become rare values."""

    @property
    def usual_values(self) -> dict[str, ValueCounts]:
        """Column → the counts of its values in rows that are held out: val's, or test's; empty without both."""
        held_out = [self.splits[name] for name in ("val", "test") if name in self.splits]
        return self.usual or next((split.values for split in held_out if split.values), {})

    @property
    def shards(self) -> list[Shard]:
        """The shards of all splits."""
        return [shard for split in self.splits.values() for shard in split.shards]

    @property
    def folder(self) -> Path:
        """The folder that it was read from. Raises ValueError if it was not read from one."""
        if self.path is None:
            raise ValueError("the manifest was not read from a folder: use read_manifest")
        return self.path

    @property
    def rules(self) -> list[tuple[str, Json]]:
        """(name, transform or encoding) of every feature, the sparse ones first."""
        return [(c.name, c.encoding) for c in self.sparse] + [(c.name, c.transform) for c in self.dense]

    @property
    def encoding_files(self) -> list[str]:
        """The files beside the manifest for encoding raw rows and for the next growth, relative to the folder."""
        rules = [rule for _, rule in self.rules]
        files = [rule["file"] for rule in rules if rule["kind"] in KINDS_WITH_A_FILE]
        files += [rule["contents"]["file"] for rule in rules if "contents" in rule]
        files += [rule["vectors"]["file"] for rule in rules if "vectors" in rule and not self.lacks_vectors]
        return list(dict.fromkeys(files + (self.lineage.files if self.lineage else [])))

    @property
    def encoding_lineage(self) -> Lineage | None:
        """The lineage, without ``growth``, for rows that are encoded with these vocabularies unchanged."""
        return self.lineage and replace(self.lineage, growth=[])

    @property
    def is_weighted(self) -> bool:
        """True if rows have weights."""
        return self.weight is not None

    @property
    def other_labels(self) -> list[LearntLabel]:
        """The labels beside the main one."""
        return self.labels[1:]

    def with_labels(self, labels: Sequence[LearntLabel]) -> "Manifest":
        """This dataset for a model of ``labels``, the main one first; rows lack those that it does not have."""
        return self if [*labels] == self.labels else replace(self, labels=[*labels])

    def kept_share(self, split: str) -> float:
        """The share of the negatives of ``split`` that sampling has kept: 1 if it kept all."""
        return self.negatives_kept.get(split, 1.0)

    def clicks_and_rows(
        self, split: str, *, all_negatives: bool = True, label: LearntLabel | None = None
    ) -> tuple[float, float]:
        """(the sum of the weights of the positives of ``split``, that of all its rows); without weights, their numbers.

        ``all_negatives``: negatives count 1 / ``kept_share`` times, as in metrics; False: once, as in the loss.
        ``label``: another label than the main one; only the rows that have it count.
        """
        part, share = self.splits[split], self.kept_share(split) if all_negatives else 1.0
        if label is not None and label.name != self.label:
            return self._of_counts(part.labels[label.name], share)
        clicks, rows = self._clicks_and_rows(part.positives or 0, part.rows, part.weights)
        return clicks, rows if share == 1.0 else clicks + (rows - clicks) / share

    def where_given(self, split: str, label: LearntLabel) -> tuple[float, float, float]:
        """Sums of weights over the rows of ``split`` where the label's ``given`` is 1: (its positives, the rows that
        have it, all of them).

        Rows count as in ``clicks_and_rows``.

        For a label that stands alone, the sums are over all rows. A dataset of an earlier version lacks these counts;
        there, all rows where ``given`` is 1 count as having the label.
        """
        by_name = {each.name: each for each in self.labels}
        if label.given is None:
            clicks, rows = self.clicks_and_rows(split, label=label)
            return clicks, rows, self.clicks_and_rows(split)[1]
        holding, _ = self.clicks_and_rows(split, label=by_name[label.given])
        counts = self.splits[split].labels[label.name].where_given
        if counts is None:
            return self.clicks_and_rows(split, label=label)[0], holding, holding
        return *self._of_counts(counts, self.kept_share(split)), holding

    def _of_counts(self, counts: LabelCounts, share: float) -> tuple[float, float]:
        clicks, rows = self._clicks_and_rows(counts.positives, counts.rows, counts.weights)
        if (less := counts.negatives) is not None:
            of_clicks, of_rows = self._clicks_and_rows(less.positives, less.rows, less.weights)
            clicks, rows = clicks + of_clicks * (1 / share - 1), rows + of_rows * (1 / share - 1)
        return clicks, rows

    def _clicks_and_rows(self, clicks: int, rows: int, weights: WeightSums | None) -> tuple[float, float]:
        """The sums of ``weights`` if rows count by them; otherwise the numbers."""
        if self.weight and weights:
            return weights.positives, weights.all
        return float(clicks), float(rows)

    def without_weights(self) -> "Manifest":
        """This dataset with rows that all count once."""
        return replace(self, weight=None)

    def fingerprint(self) -> str:
        """A sha256 over everything that decides which rows a reader sees and how they are encoded."""
        content: Json = {
            "label": self.label,
            "dense": [(c.name, c.transform) for c in self.dense],
            "sparse": [
                (c.name, c.num_embeddings, c.encoding, c.multi_hot, *([c.weights] if c.weights else []))
                for c in self.sparse
            ],
            "splits": {
                name: [(s.path, s.checksum, s.row_groups) for s in split.shards]
                for name, split in self.splits.items()
            },
        }
        if self.labels:
            content["labels"] = [(each.name, each.given) for each in self.labels]
        if self.vectors:
            content["vectors"] = [(each.name, each.size, each.dtype) for each in self.vectors]
        if self.negatives_kept:
            content["negatives_kept"] = self.negatives_kept
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


_FORMAT = Format(Manifest, SUGGESTION)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes DATASET/manifest.json, complete or not at all; the last step of preprocessing."""
    _FORMAT.write(folder / MANIFEST, manifest)


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest of the dataset in ``folder``.

    Raises DataError if the folder is missing or unfinished, or has another format version.
    """
    path = folder / MANIFEST
    if not folder.is_dir():
        cure = f"give the folder of a dataset, or make one with dlrm-preprocess output={folder}"
        raise DataError(Problem(str(folder), "does not exist", cure))
    if not path.is_file():
        rule = f"holds no {MANIFEST}, so it is not a dataset, or its preprocessing has not finished"
        cure = "then run the same dlrm-preprocess command again, it resumes where it stopped"
        raise DataError(Problem(str(folder), rule, cure))
    manifest = _FORMAT.read(path)
    if faults := faults_of(manifest):
        raise DataError(Problem(str(path), f"is damaged ({', '.join(faults)})", SUGGESTION))
    return replace(manifest, path=folder)


def label_of(manifest: Manifest, split: str) -> str:
    """The name of the label's column. Raises DataError if ``split`` is missing or has no labels."""
    if split not in manifest.splits:
        rule = f"has no {split} split, only {', '.join(manifest.splits)}"
        raise DataError(Problem(str(manifest.folder), rule, "preprocess with one"))
    if manifest.label is None or manifest.splits[split].positives is None:
        cure = "it can be predicted on, but to train or evaluate preprocess a labelled input"
        raise DataError(Problem(str(manifest.folder), f"has no labels in its {split} split", cure))
    return manifest.label
