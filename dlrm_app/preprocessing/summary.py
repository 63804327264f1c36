"""The summary of a finished dataset: rows and rejects of its splits, warnings, the next command."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from dlrm_app.dataset.arrow import Bags, read_ids
from dlrm_app.dataset.label_counts import class_lines, given_lines, label_table
from dlrm_app.dataset.lineage import growth_table
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.dataset.shard_files import ShardReader
from dlrm_app.dataset.vector_columns import vector_lines
from dlrm_app.logs.rejects import OPENS_A_QUOTE, REJECTS, read_rejects
from dlrm_app.result import Paragraph, Result
from dlrm_app.text import NONE, bytes_text, listed, percent

_LOOK_ROWS = 1 << 20
"""The approximate number of rows that are checked, evenly spread."""


@dataclass(frozen=True)
class Dataset(Result):
    """A finished dataset. ``seconds``: the time that it took; None if it is unknown, as after a resume."""

    manifest: Manifest
    seconds: float | None = None

    @property
    def path(self) -> Path:
        """The dataset's folder."""
        return self.manifest.folder

    def paragraphs(self) -> Iterable[Paragraph]:
        """Rows, positives, rejects and bytes of every split, and warnings."""
        manifest = self.manifest
        yield _split_table(manifest)
        if manifest.labels:
            yield label_table(manifest)
            yield from given_lines(manifest)
        yield from class_lines(manifest)
        if self.seconds is not None:
            rows = sum(split.rows for split in manifest.splits.values())
            yield f"{rows:,} rows in {self.seconds:.1f} s: {rows / self.seconds:,.0f} rows/s"
        yield from _short_source_warnings(manifest)
        yield from _sampling_lines(manifest)
        yield from _reject_lines(manifest)
        yield from vector_lines(manifest)
        if manifest.best is not None:
            yield f"best reachable AUC {manifest.best['auc']:.4f}, log loss {manifest.best['logloss']:.4f}"
        for label, best in manifest.further_best.items():
            yield f"best reachable of {label}: AUC {best['auc']:.4f}, log loss {best['logloss']:.4f}"
        if manifest.lineage and manifest.lineage.growth:
            yield f"vocabularies on day {manifest.lineage.day}:"
            yield growth_table(manifest.lineage)
        yield from _unknown_lookups(manifest)
        yield from _own_click_lines(manifest)


def _split_table(manifest: Manifest) -> Paragraph:
    rows = [
        [
            name,
            f"{split.rows:,}",
            NONE if split.positives is None else f"{split.positives / max(split.rows, 1):.2%}",
            f"{split.rejects:,}",
            bytes_text(sum(shard.bytes for shard in split.shards)),
        ]
        for name, split in manifest.splits.items()
    ]
    return ["split", "rows", "positives", "rejects", "size"], rows


def _num_rejects(manifest: Manifest) -> int:
    return sum(split.rejects for split in manifest.splits.values())


def _short_source_warnings(manifest: Manifest) -> Iterator[str]:
    published = manifest.config["dataset"].get("published_rows") or {}
    for source in manifest.sources:
        expected = published.get(Path(source.path).name.partition(".")[0], 0)
        if expected > source.rows + _num_rejects(manifest):
            yield (
                f"warning: {source.path} has {source.rows:,} rows, {expected:,} were published: is it a part, "
                "or was its copy cut short?"
            )


def _sampling_lines(manifest: Manifest) -> Iterator[str]:
    if manifest.negatives_kept:
        left_out = {name: split.left_out for name, split in manifest.splits.items()}
        shares = [
            f"{share:g} of {name}'s" + f" ({left_out[name]:,} left out)" * bool(left_out[name])
            for name, share in manifest.negatives_kept.items()
        ]
        yield (
            f"negatives kept: {', '.join(shares)}; the loss and metrics count with that, so predictions and "
            "metrics are those of all rows"
        )


def _reject_lines(manifest: Manifest) -> Iterator[str]:
    rejected = Path(f"{manifest.path}/{REJECTS}")
    if not _num_rejects(manifest):
        return
    yield f"rejected lines: {rejected}"
    if opened := sum(OPENS_A_QUOTE in each.reason for each in read_rejects(rejected)):
        yield (
            f"warning: {opened:,} of them {OPENS_A_QUOTE}: the next lines of such a value are taken for rows "
            "where they look like some, so set dataset.line_breaks=true and preprocess again"
        )


def _unknown_lookups(manifest: Manifest) -> list[str]:
    """The share of lookups of values that an earlier dataset's vocabularies lack, by feature.

    It is estimated from rows of the first split.
    """
    encoding = manifest.config["encoding"]
    vocabularies = [column for column in manifest.sparse if column.encoding["kind"] == "vocab"]
    if encoding["kind"] != "from_dataset" or not vocabularies:
        return []
    name = next(iter(manifest.splits))
    lookups, unknown = Counter[str](), Counter[str]()
    for table in _read_sample(manifest, name, [column.name for column in vocabularies]):
        for column in vocabularies:
            ids = read_ids(table, column)
            values = ids.values if isinstance(ids, Bags) else ids
            lookups[column.name] += int(np.count_nonzero(values != column.encoding["missing_id"]))
            unknown[column.name] += int(np.count_nonzero(values == column.encoding["rare_id"]))
    shares = Counter({feature: count / lookups[feature] for feature, count in unknown.items() if count})
    worst = listed([f"{feature} {percent(share)}" for feature, share in shares.most_common()], 8)
    text = f"lookups in {name} of values that the vocabulary of {encoding['path']} does not know: {worst}"
    return [text] if shares else []


def _read_sample(manifest: Manifest, name: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Reads some row groups of a split, evenly spread, with about _LOOK_ROWS rows."""
    split = manifest.splits[name]
    reader = ShardReader(manifest.folder, columns)
    groups = [(shard, index) for shard in split.shards for index in range(len(shard.row_groups))]
    for shard, index in groups[:: max(split.rows // _LOOK_ROWS, 1)]:
        yield reader.read(shard, index)


def _own_click_lines(manifest: Manifest) -> list[str]:
    """A warning for each split whose target columns contain its rows' own clicks."""
    encoding, lines = manifest.config["encoding"], []
    known = encoding["path"] if encoding["kind"] == "from_dataset" else None
    for name, share in manifest.own_clicks.items():
        rows = f"rows of {known}" if known else "training rows"
        cure = (
            f"train on {known}, or give"
            if known and name == "train"
            else "metrics of new rows are worse; give"
        )
        lines.append(
            f"warning: about {percent(share)} of the {name} rows are {rows}, "
            f"whose target columns contain their own clicks: {cure} other rows"
        )
    return lines
