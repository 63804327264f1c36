"""The end of a run: shards get their final names, rejects their line numbers, and the manifest is written."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isal import isal_zlib

from dlrm_app.dataset.manifest import DenseColumn, Manifest, Shard, SparseColumn, Split, write_manifest
from dlrm_app.dataset.manifest import Source as ManifestSource
from dlrm_app.errors import DataError
from dlrm_app.files import sync_folder, written_whole
from dlrm_app.preprocess.job.reject_limit import rejects_of
from dlrm_app.preprocess.passes.encode_pass import EncodedUnit
from dlrm_app.preprocess.read.rejects import REJECTS, write_rejects
from dlrm_app.preprocess.units.journal import Journal
from dlrm_app.preprocess.units.work_plan import Plan

logger = logging.getLogger(__name__)

MadeShards = Mapping[str, Sequence[tuple[Path, Shard]]]
"""The shards of each split in order, and where they lie before they have their final names."""


def finish(
    plan: Plan,
    journal: Journal[EncodedUnit],
    units: Sequence[EncodedUnit],
    shards: MadeShards,
    dense: Sequence[DenseColumn],
    sparse: Sequence[SparseColumn],
    config: dict[str, Any],
) -> Manifest:
    """Completes the dataset of ``units``, in order; ``config`` is what the manifest keeps of the configuration."""
    splits = {split: _summarize(plan, units, split, shards[split]) for split in plan.splits}
    empty = [name for name, split in splits.items() if split.rows == 0]
    if empty:
        raise DataError(
            f"the {empty[0]} split has no rows, for all {splits[empty[0]].rejects:,} lines of it are malformed: "
            f"correct its input, then delete {plan.output} and start again"
        )
    for name, split in splits.items():
        _move(plan.output, [path for path, _ in shards[name]], split.shards)
    with written_whole(plan.output / REJECTS) as temporary:
        write_rejects(temporary, rejects_of(plan, journal, units))
    rates = _missing_rates(plan, units, len(dense) + len(sparse))
    labelled = any(split.positives is not None for split in splits.values())
    manifest = Manifest(
        dataset=plan.spec.name,
        label=plan.spec.label if labelled else None,
        dense=[replace(column, missing_rate=rate) for column, rate in zip(dense, rates, strict=False)],
        sparse=[
            replace(column, missing_rate=rate)
            for column, rate in zip(sparse, rates[len(dense) :], strict=True)
        ],
        splits=splits,
        sources=_sources(plan, units),
        config=config,
        best=_best(plan),
        path=plan.output,
    )
    write_manifest(plan.output, manifest)
    return manifest


def _summarize(
    plan: Plan, units: Sequence[EncodedUnit], split: str, shards: Sequence[tuple[Path, Shard]]
) -> Split:
    parts = [unit.splits[split] for unit in units if split in unit.splits]
    has_label = plan.spec_of(split).label is not None
    return Split(
        rows=sum(part.rows for part in parts),
        positives=sum(part.positives or 0 for part in parts) if has_label else None,
        rejects=sum(part.rejects for part in parts),
        shards=[
            replace(shard, path=f"{split}/part-{number:05d}.parquet")
            for number, (_, shard) in enumerate(shards)
        ],
    )


def _move(output: Path, paths: Sequence[Path], shards: Sequence[Shard]) -> None:
    """Gives a split's shards their final names; those that an interrupted move had reached have them already."""
    for path, shard in zip(paths, shards, strict=True):
        final = output / shard.path
        final.parent.mkdir(exist_ok=True)
        if path.exists():
            path.replace(final)
        elif not final.exists():
            raise DataError(f"{path} is gone: something deleted it; delete {output} and start again")
    sync_folder((output / shards[0].path).parent)


def _missing_rates(plan: Plan, units: Sequence[EncodedUnit], num_columns: int) -> list[float]:
    """The share of missing values of each dense and sparse column, over the studied splits."""
    parts = [part for unit in units for name, part in unit.splits.items() if name in plan.studied]
    rows = sum(part.rows for part in parts)
    return [sum(part.missing[column] for part in parts) / max(rows, 1) for column in range(num_columns)]


def _sources(plan: Plan, units: Sequence[EncodedUnit]) -> list[ManifestSource]:
    """``checksum`` is of the text, so the same for a file and its .gz; ``bytes`` is the file's size."""
    sources = []
    for source in plan.sources:
        crc, rows = 0, 0
        for unit in units:
            if unit.text.source == source.index:
                crc = isal_zlib.crc32_combine(crc, unit.text.crc, unit.text.size)
                rows += unit.rows
        checksum = f"crc32:{crc:08x}"
        sources.append(
            ManifestSource(
                source.path, source.split, source.bytes, checksum, rows, modified_ns=source.modified_ns
            )
        )
    return sources


def _best(plan: Plan) -> dict[str, float] | None:
    """The best reachable scores that dlrm-generate left beside every source, by rows; None if any lacks them or is damaged."""
    totals, rows = {"auc": 0.0, "logloss": 0.0}, 0
    for source in plan.sources:
        path = Path(f"{source.path}.best.json")
        if not path.is_file():
            return None
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            count = value.get("rows", 1)
            if any(value.get(key) is None for key in totals):
                return None
            totals = {key: total + float(value[key]) * count for key, total in totals.items()}
        except (ValueError, TypeError, AttributeError) as error:
            logger.warning("%s is not what dlrm-generate wrote (%s): it is left out", path, error)
            return None
        rows += count
    return {key: total / rows for key, total in totals.items()} if rows else None
