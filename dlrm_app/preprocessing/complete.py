"""The end of a run: shards get their final names, rejects their line numbers, and the manifest is written."""

import json
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from isal import isal_zlib

from dlrm_app.checksums import checksum
from dlrm_app.dataset.label_counts import label_counts
from dlrm_app.dataset.manifest import Manifest, read_manifest, write_manifest
from dlrm_app.dataset.splits import LabelCounts, ManifestSource, Shard, Split, WeightSums
from dlrm_app.encoding.columns import MadeColumns
from dlrm_app.encoding.dense import is_target
from dlrm_app.encoding.own_clicks import learnt_rows, own_click_share
from dlrm_app.encoding.row_samples import (
    DAY_CONTENTS,
    SAMPLE_FILE,
    KnownShare,
    RowSample,
    read_row_sample,
    warn_of_copies,
)
from dlrm_app.encoding.value_shares import add_up
from dlrm_app.errors import DataError, Problem
from dlrm_app.files import sync_folder, written_whole
from dlrm_app.journal import Journal
from dlrm_app.logs.rejects import REJECTS, write_rejects
from dlrm_app.logs.sources.source import InputFile, content_checksum, sample_checksum
from dlrm_app.logs.sources.store import in_threads
from dlrm_app.logs.sources.units import FileExtent
from dlrm_app.preprocessing.passes.encode_pass import EncodedSplit, EncodedUnit
from dlrm_app.preprocessing.passes.plan import InputPlan
from dlrm_app.preprocessing.rejects import rejects_of
from dlrm_app.preprocessing.work.shared_folder import shared_folder
from dlrm_app.records import Json
from dlrm_app.text import listed

logger = logging.getLogger(__name__)

MadeShards = Mapping[str, Sequence[tuple[Path, Shard]]]
"""Split → (temporary path, shard) for each of its shards, in order."""


def refuse_empty(plan: InputPlan, empty: Mapping[str, int]) -> None:
    """Raises DataError for the first of the splits without rows. ``empty``: split → its malformed lines.

    If splits are dealt by contents, all malformed lines count as train's, because their split is unknown.
    """
    for name, rejects in empty.items():
        share, again = plan.fractions.get(name), f"then delete {plan.output} and start again"
        if rejects or share is None:
            rule = f"gives the {name} split no rows, because all of its {rejects:,} lines are malformed"
            key = f"input.{'train' if share is not None else name}"
            raise DataError(Problem(key, rule, f"correct its input, {again}"))
        rule = f"gives the {name} split no rows: by split.by={plan.splits_by} that share of so few rows is less than one"
        raise DataError(Problem(f"split.{name}={share}", rule, f"give a larger share, {again}"))


def complete(
    plan: InputPlan,
    journal: Journal[EncodedUnit],
    units: Sequence[EncodedUnit],
    shards: MadeShards,
    columns: MadeColumns,
    config: Json,
) -> Manifest:
    """Completes the dataset from ``units``, in order. ``config``: the configuration to keep in the manifest."""
    splits = {split: _summarize(plan, units, split, shards[split]) for split in plan.splits}
    refuse_empty(plan, {name: split.rejects for name, split in splits.items() if split.rows == 0})
    for name, split in splits.items():
        _move(plan.output, [path for path, _ in shards[name]], split.shards)
    with written_whole(plan.output / REJECTS) as temporary:
        write_rejects(temporary, rejects_of(plan, journal, units))
    studied = [part for unit in units for name, part in unit.splits.items() if name in plan.studied]
    rows, missing = sum(part.rows for part in studied), zip(*(part.missing for part in studied), strict=True)
    rates = [sum(counts) / max(rows, 1) for counts in missing]
    rates_of = iter(rates)
    label = plan.spec.label if any(split.positives is not None for split in splits.values()) else None
    labels, best_scores = [*plan.spec.labels] if label is not None else [], _best_scores(plan)
    manifest = Manifest(
        dataset=plan.spec.name,
        label=label,
        dense=[replace(column, missing_rate=next(rates_of)) for column in columns.dense],
        sparse=[replace(column, missing_rate=next(rates_of)) for column in columns.sparse],
        splits=splits,
        sources=_sources(plan, journal, units),
        config=config,
        best=best_scores.get(plan.spec.label or ""),
        further_best={
            label.name: best_scores[label.name] for label in labels[1:] if label.name in best_scores
        },
        lineage=columns.lineage,
        kept=list(plan.kept_columns),
        own_clicks=_own_clicks(plan, units, columns),
        contents=_write_contents(plan, journal, units),
        target_label=_target_label(columns, config) if label is None else None,
        weight=plan.spec.weight if label is not None else None,
        labels=labels,
        negatives_kept=plan.kept_shares,
        vectors=[replace(column, missing_rate=next(rates_of)) for column in columns.vectors],
        path=plan.output,
    )
    write_manifest(plan.output, manifest)
    return manifest


def _summarize(
    plan: InputPlan, units: Sequence[EncodedUnit], split: str, shards: Sequence[tuple[Path, Shard]]
) -> Split:
    parts = [unit.splits[split] for unit in units if split in unit.splits]
    return Split(
        rows=sum(part.rows for part in parts),
        positives=sum(part.positives or 0 for part in parts) if plan.has_label(split) else None,
        rejects=sum(part.rejects for part in parts),
        shards=[
            replace(shard, path=f"{split}/part-{number:05d}.parquet")
            for number, (_, shard) in enumerate(shards)
        ],
        left_out=sum(part.left_out for part in parts),
        weights=_sum_weights([part.weights for part in parts if part.weights]),
        labels=_count_labels(plan, split, parts) if plan.has_label(split) else {},
        values=add_up(part.values for part in parts),
    )


def _count_labels(plan: InputPlan, split: str, parts: Sequence[EncodedSplit]) -> dict[str, LabelCounts]:
    return label_counts(
        plan.spec.labels,
        [part.labels for part in parts],
        is_weighted=plan.spec.is_weighted,
        is_sampled=split in plan.kept_shares,
    )


def _sum_weights(sums: Sequence[tuple[float, float]]) -> WeightSums | None:
    """The sums of all units, rounded to twelve digits, so that they do not depend on the size of units."""
    if not sums:
        return None
    return WeightSums(*(float(f"{math.fsum(each):.12g}") for each in zip(*sums, strict=True)))


def _move(output: Path, paths: Sequence[Path], shards: Sequence[Shard]) -> None:
    """Gives a split's shards their final names. Some have them already after an interrupted move."""
    finals = [output / shard.path for shard in shards]
    for final in finals:
        final.parent.mkdir(exist_ok=True)
    for path in shared_folder(output).rename(zip(paths, finals, strict=True)):
        cure = f"delete {output} and start again"
        raise DataError(Problem(str(path), "is gone, something deleted it", cure))
    sync_folder(finals[0].parent)


def _sources(
    plan: InputPlan, journal: Journal[EncodedUnit], units: Sequence[EncodedUnit]
) -> list[ManifestSource]:
    """The manifest's sources. ``checksum``: of the text, the same for a file and its .gz; for Parquet, of all bytes."""
    read = {source.index: (0, 0) for source in plan.sources}  # the crc of the text, and the rows
    for unit in units:
        for source, part in _parts(plan, journal, unit):
            crc, rows = read[source]
            read[source] = isal_zlib.crc32_combine(crc, part.crc, part.size), rows + part.lines

    def describe(source: InputFile) -> ManifestSource:
        crc, rows = read[source.index]
        checksum = content_checksum(source) if source.format == "parquet" else f"crc32:{crc:08x}"
        version, sample = (source.modified_ns, source.tag), sample_checksum(source)
        return ManifestSource(source.path, source.split, source.bytes, checksum, rows, *version, sample)

    return in_threads(describe, plan.sources)


def _parts(
    plan: InputPlan, journal: Journal[EncodedUnit], unit: EncodedUnit
) -> Iterator[tuple[int, FileExtent]]:
    """(number of a source, its part in ``unit``) for each source of the unit.

    ``lines`` of a part: its rows without rejected ones, but with negatives that sampling left out.
    """
    extent = unit.extent
    if not extent.files:
        yield extent.source, FileExtent(extent.size, extent.file_bytes, extent.crc, unit.rows + unit.left_out)
        return
    rejects = Counter(each.file for each in rejects_of(plan, journal, [unit])) if unit.rejects else Counter()
    for source, part in enumerate(extent.files, extent.source):
        yield source, replace(part, lines=part.lines - rejects[plan.sources[source].path])


def _best_scores(plan: InputPlan) -> dict[str, dict[str, float]]:
    """Label → the mean, by rows, of the best reachable scores in the files that dlrm-generate adds to the sources.

    Labels are left out if a file is missing or damaged, or does not name them.
    """
    paths = [Path(f"{source.path}.best.json") for source in plan.sources]
    if not all(path.is_file() for path in paths):
        return {}
    try:
        values = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        others = [label.name for label in plan.spec.labels[1:]]
        bests = {name: _mean([value.get("labels", {}).get(name, {}) for value in values]) for name in others}
        bests[plan.spec.label or ""] = _mean(values)
        return {name: best for name, best in bests.items() if best is not None}
    except (ValueError, TypeError, AttributeError) as error:
        logger.warning(f"{listed(paths)} are not all what dlrm-generate wrote ({error}): left out")
        return {}


def _mean(scores: Sequence[Json]) -> dict[str, float] | None:
    """The mean of best ``scores``, by rows; None if one is missing."""
    keys = ("auc", "logloss")
    if any(each.get(key) is None for each in scores for key in keys):
        return None
    rows = [each.get("rows", 1) for each in scores]
    totals = {key: sum(float(v[key]) * n for v, n in zip(scores, rows, strict=True)) for key in keys}
    return {key: total / sum(rows) for key, total in totals.items()} if sum(rows) else None


def _own_clicks(plan: InputPlan, units: Sequence[EncodedUnit], columns: MadeColumns) -> dict[str, float]:
    """Split → the share of its rows whose own clicks are in the target columns that encode them.

    Leaves out splits whose share may be due to chance.
    """
    learnt, shares = learnt_rows(columns.dense, plan.output), {}
    for name in plan.splits if learnt is not None else ():
        known = sum((unit.splits[name].known for unit in units if name in unit.splits), KnownShare())
        if learnt is not None and (share := own_click_share(known, learnt)) is not None:
            shares[name] = share
    return shares


def _target_label(columns: MadeColumns, config: Json) -> str | None:
    """The label from which another dataset made the target columns; None without such columns."""
    if not any(map(is_target, columns.dense)):
        return None
    encoding = config["encoding"]
    base = read_manifest(Path(encoding["path"] or encoding["grow_from"]))
    return base.label or base.target_label


def _write_contents(
    plan: InputPlan, journal: Journal[EncodedUnit], units: Sequence[EncodedUnit]
) -> dict[str, str] | None:
    """Writes a sample of all rows if they are dealt by their contents. Returns its file and checksum."""
    if plan.splits_by != "content" or not plan.contents_identify_rows:
        return None
    paths = [journal.path(unit.extent.name, ".contents") for unit in units]
    sample = RowSample.joined(map(read_row_sample, paths), DAY_CONTENTS)
    sample.write(plan.output / SAMPLE_FILE)
    warn_of_copies(sample, "rows")
    return {"file": SAMPLE_FILE, "checksum": checksum(plan.output / SAMPLE_FILE)}
