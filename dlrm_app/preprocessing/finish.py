"""The end of a run: refuses too many rejects; otherwise shards get their final names, rejects their line numbers, and the
manifest is written.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from isal import isal_zlib

from dlrm_app.dataset.arrow import Bags, read_ids
from dlrm_app.dataset.lineage import growth_table
from dlrm_app.dataset.manifest import Manifest, Shard, Split, read_manifest, write_manifest
from dlrm_app.dataset.manifest import Source as ManifestSource
from dlrm_app.dataset.shard_files import ShardReader
from dlrm_app.errors import DataError
from dlrm_app.files import checksum, sync_folder, written_whole
from dlrm_app.preprocessing.encode.columns import MadeColumns
from dlrm_app.preprocessing.encode.dense import is_target
from dlrm_app.preprocessing.passes.contents import (
    CONTENTS,
    DAY_CONTENTS,
    Contents,
    Seen,
    read_contents,
    warn_of_copies,
)
from dlrm_app.preprocessing.passes.encode_pass import EncodedUnit
from dlrm_app.preprocessing.passes.plan import Plan
from dlrm_app.preprocessing.passes.targets import learnt_rows, own_click_share
from dlrm_app.preprocessing.read.parser import (
    OPENS_A_QUOTE,
    REJECTS,
    RejectedLine,
    read_rejects,
    write_rejects,
)
from dlrm_app.preprocessing.units.journal import Journal
from dlrm_app.preprocessing.units.remote import in_threads
from dlrm_app.preprocessing.units.source import MAX_RATIO, Source, content_checksum, sample_checksum
from dlrm_app.table import text_table
from dlrm_app.text import NONE, bytes_text, listed, next_line, percent

logger = logging.getLogger(__name__)

MadeShards = Mapping[str, Sequence[tuple[Path, Shard]]]
"""Split → (temporary path, shard) for each of its shards, in order."""


def finish(
    plan: Plan,
    journal: Journal[EncodedUnit],
    units: Sequence[EncodedUnit],
    shards: MadeShards,
    columns: MadeColumns,
    config: dict[str, Any],
) -> Manifest:
    """Completes the dataset from ``units``, in order. ``config``: the configuration to keep in the manifest."""
    splits = {split: _summarize(plan, units, split, shards[split]) for split in plan.splits}
    empty = [name for name, split in splits.items() if split.rows == 0]
    if empty and not any(split.rejects for split in splits.values()):
        raise DataError(
            f"the {empty[0]} split has no rows: split.{empty[0]}={plan.fractions.get(empty[0])} by split.by={plan.splits_by} is less than a "
            f"row of so few: give a larger share, then delete {plan.output} and start again"
        )
    if empty:
        raise DataError(
            f"the {empty[0]} split has no rows, because all of its {splits[empty[0]].rejects:,} lines are malformed: "
            f"correct its input, then delete {plan.output} and start again"
        )
    for name, split in splits.items():
        _move(plan.output, [path for path, _ in shards[name]], split.shards)
    with written_whole(plan.output / REJECTS) as temporary:
        write_rejects(temporary, rejects_of(plan, journal, units))
    studied = [part for unit in units for name, part in unit.splits.items() if name in plan.studied]
    rows, missing = sum(part.rows for part in studied), zip(*(part.missing for part in studied), strict=True)
    rates = [sum(counts) / max(rows, 1) for counts in missing]
    num_dense = len(columns.dense)
    label = plan.spec.label if any(split.positives is not None for split in splits.values()) else None
    manifest = Manifest(
        dataset=plan.spec.name,
        label=label,
        dense=[replace(c, missing_rate=r) for c, r in zip(columns.dense, rates[:num_dense], strict=True)],
        sparse=[replace(c, missing_rate=r) for c, r in zip(columns.sparse, rates[num_dense:], strict=True)],
        splits=splits,
        sources=_sources(plan, units),
        config=config,
        best=_best(plan),
        lineage=columns.lineage,
        kept=list(plan.kept),
        own_clicks=_own_clicks(plan, units, columns),
        contents=_write_contents(plan, journal, units),
        target_label=_target_label(columns, config) if label is None else None,
        path=plan.output,
    )
    write_manifest(plan.output, manifest)
    return manifest


def _target_label(columns: MadeColumns, config: dict[str, Any]) -> str | None:
    """The label whose shares the target columns of unlabelled rows are; None without such columns. They come from another dataset."""
    if not any(map(is_target, columns.dense)):
        return None
    encoding = config["encoding"]
    known = read_manifest(Path(encoding["path"] or encoding["grow_from"]))
    return known.label or known.target_label


def _summarize(
    plan: Plan, units: Sequence[EncodedUnit], split: str, shards: Sequence[tuple[Path, Shard]]
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
    )


def _move(output: Path, paths: Sequence[Path], shards: Sequence[Shard]) -> None:
    """Gives a split's shards their final names; after an interrupted move some have them already."""
    for path, shard in zip(paths, shards, strict=True):
        final = output / shard.path
        final.parent.mkdir(exist_ok=True)
        if path.exists():
            path.replace(final)
        elif not final.exists():
            raise DataError(f"{path} is gone: something deleted it; delete {output} and start again")
    sync_folder((output / shards[0].path).parent)


def _sources(plan: Plan, units: Sequence[EncodedUnit]) -> list[ManifestSource]:
    """The manifest's sources. ``checksum``: that of the text, so the same for a file and its .gz; for Parquet, ``content_checksum``."""

    def describe(source: Source) -> ManifestSource:
        read = [unit for unit in units if unit.text.source == source.index]
        crc = reduce(lambda crc, unit: isal_zlib.crc32_combine(crc, unit.text.crc, unit.text.size), read, 0)
        checksum = content_checksum(source) if source.format == "parquet" else f"crc32:{crc:08x}"
        rows, version = sum(unit.rows for unit in read), (source.modified_ns, source.tag)
        sample = sample_checksum(source)
        return ManifestSource(source.path, source.split, source.bytes, checksum, rows, *version, sample)

    return in_threads(describe, plan.sources)


def _best(plan: Plan) -> dict[str, float] | None:
    """The mean, by rows, of the best reachable scores that dlrm-generate wrote beside every source; None if any is missing or damaged."""
    paths, keys = [Path(f"{source.path}.best.json") for source in plan.sources], ("auc", "logloss")
    if not all(path.is_file() for path in paths):
        return None
    try:
        values = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        if any(value.get(key) is None for value in values for key in keys):
            return None
        rows = [value.get("rows", 1) for value in values]
        totals = {key: sum(float(v[key]) * n for v, n in zip(values, rows, strict=True)) for key in keys}
        return {key: total / sum(rows) for key, total in totals.items()} if sum(rows) else None
    except (ValueError, TypeError, AttributeError) as error:
        logger.warning(f"{listed(paths)} are not all what dlrm-generate wrote ({error}): left out")
        return None


_SHOWN = 5
"""The number of rejects that an error shows."""
_LOOK_ROWS = 1 << 20
"""The approximate number of rows that are checked, evenly spread."""


@dataclass
class RejectLimit:
    """Checks units as they are encoded, to fail as soon as the share of malformed lines must become too large."""

    plan: Plan
    journal: Journal[EncodedUnit]
    max_fraction: float
    _units: list[EncodedUnit] = field(default_factory=list)
    _size: int = 0
    _lines: int = 0
    _rejects: int = 0

    def check(self, unit: EncodedUnit) -> None:
        """Raises DataError if there are too many rejects, ``unit`` included."""
        self._units.append(unit)
        self._size += unit.text.size
        self._lines += unit.lines
        self._rejects += unit.rejects
        total = sum(source.bytes * (MAX_RATIO if source.is_compressed else 1) for source in self.plan.sources)
        if self._rejects > self.max_fraction * self._lines * max(total / max(self._size, 1), 1):
            self.refuse(sorted(self._units, key=lambda unit: (unit.text.source, unit.text.unit)))

    def refuse(self, units: Sequence[EncodedUnit]) -> None:
        """Raises DataError naming the first rejects of ``units`` if they are more than ``max_fraction`` of all lines."""
        lines, rejects = sum(unit.lines for unit in units), sum(unit.rejects for unit in units)
        if rejects <= self.max_fraction * lines:
            return
        first = islice(rejects_of(self.plan, self.journal, units), _SHOWN)
        shown = "\n".join(f"  {reject.file}:{reject.line}: {reject.reason}" for reject in first)
        raise DataError(
            f"{rejects:,} of {lines:,} lines are malformed, more than rejects.max_fraction={self.max_fraction} allows; the "
            f"first:\n{shown}\ncheck dataset= and the files, or raise rejects.max_fraction to leave these lines out"
        )


def rejects_of(
    plan: Plan, journal: Journal[EncodedUnit], units: Sequence[EncodedUnit]
) -> Iterator[RejectedLine]:
    """Every reject of ``units`` (in order), with its file and its line number there, from 1."""
    source, first_line = -1, 1
    for unit in units:
        if unit.text.source != source:
            source = unit.text.source
            is_text = plan.sources[source].format != "parquet"
            first_line = 2 if plan.spec.header and is_text else 1
        path = journal.path(source, unit.text.unit, ".rejects")
        if path.exists():
            for reject in read_rejects(path):
                yield reject._replace(file=plan.sources[source].path, line=first_line + reject.line)
        first_line += unit.lines


def report(manifest: Manifest, seconds: float | None = None) -> None:
    """Logs rows, positives, rejects and bytes of every split, and the next command. ``seconds``: the time of the run, if it is known."""
    splits, rejected = manifest.splits, f"{manifest.path}/{REJECTS}"
    table = [
        [
            name,
            f"{split.rows:,}",
            NONE if split.positives is None else f"{split.positives / max(split.rows, 1):.2%}",
            f"{split.rejects:,}",
            bytes_text(sum(shard.bytes for shard in split.shards)),
        ]
        for name, split in splits.items()
    ]
    lines = [text_table(["split", "rows", "positives", "rejects", "size"], table)]
    if seconds is not None:
        rows = sum(split.rows for split in splits.values())
        lines.append(f"{rows:,} rows in {seconds:.1f} s: {rows / seconds:,.0f} rows/s")
    rejects = sum(split.rejects for split in splits.values())
    published = manifest.config["dataset"].get("published_rows") or {}
    lines += [
        f"warning: {source.path} has {source.rows:,} rows, {expected:,} were published: is it a part, or was its copy cut short?"
        for source in manifest.sources
        if (expected := published.get(Path(source.path).name.partition(".")[0], 0)) > source.rows + rejects
    ]
    if rejects:
        lines.append(f"rejected lines: {rejected}")
        if opened := sum(OPENS_A_QUOTE in each.reason for each in read_rejects(Path(rejected))):
            lines.append(
                f"warning: {opened:,} of them {OPENS_A_QUOTE}: the next lines of such a value are taken for rows "
                "where they look like some, so join the lines of values and preprocess again"
            )
    if manifest.best is not None:
        lines.append(
            f"best reachable AUC {manifest.best['auc']:.4f}, log loss {manifest.best['logloss']:.4f}"
        )
    if manifest.lineage and manifest.lineage.growth:
        lines += [f"vocabularies on day {manifest.lineage.day}:", text_table(*growth_table(manifest.lineage))]
    logger.info(
        "\n".join([*lines, *_unknown_lookups(manifest), *_own_click_lines(manifest), next_command(manifest)])
    )


def _unknown_lookups(manifest: Manifest) -> list[str]:
    """The share of lookups by feature that an earlier dataset's vocabularies do not know, estimated on rows of the first split."""
    encoding = manifest.config["encoding"]
    vocabularies = [column for column in manifest.sparse if column.encoding["kind"] == "vocab"]
    if encoding["kind"] != "from_dataset" or not vocabularies:
        return []
    name = next(iter(manifest.splits))
    lookups, unknown = Counter[str](), Counter[str]()
    for table in _look_at(manifest, name, [column.name for column in vocabularies]):
        for column in vocabularies:
            ids = read_ids(table, column)
            values = ids.values if isinstance(ids, Bags) else ids
            lookups[column.name] += int(np.count_nonzero(values != column.encoding["missing_id"]))
            unknown[column.name] += int(np.count_nonzero(values == column.encoding["rare_id"]))
    shares = Counter({feature: count / lookups[feature] for feature, count in unknown.items() if count})
    worst = listed([f"{feature} {percent(share)}" for feature, share in shares.most_common()], 8)
    text = f"lookups in {name} of values that the vocabulary of {encoding['path']} does not know: {worst}"
    return [text] if shares else []


def _look_at(manifest: Manifest, name: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Reads some row groups of a split, evenly spread, with about _LOOK_ROWS rows."""
    split = manifest.splits[name]
    reader = ShardReader(manifest.folder, columns)
    groups = [(shard, index) for shard in split.shards for index in range(len(shard.row_groups))]
    for shard, index in groups[:: max(split.rows // _LOOK_ROWS, 1)]:
        yield reader.read(shard, index)


def _own_clicks(plan: Plan, units: Sequence[EncodedUnit], columns: MadeColumns) -> dict[str, float]:
    """Split → the share of its rows whose own clicks are in the target columns that encode them, if it is more than chance repeats."""
    learnt, shares = learnt_rows(columns.dense, plan.output), {}
    for name in plan.splits if learnt is not None else ():
        seen = sum((unit.splits[name].seen for unit in units if name in unit.splits), Seen())
        if learnt is not None and (share := own_click_share(seen, learnt)) is not None:
            shares[name] = share
    return shares


def _write_contents(
    plan: Plan, journal: Journal[EncodedUnit], units: Sequence[EncodedUnit]
) -> dict[str, str] | None:
    """Writes the sample of all rows where they are dealt by their contents. Returns its file and checksum."""
    if plan.splits_by != "content" or not plan.are_told_apart:
        return None
    paths = [journal.path(unit.text.source, unit.text.unit, ".contents") for unit in units]
    sample = Contents.joined(map(read_contents, paths), DAY_CONTENTS)
    sample.write(plan.output / CONTENTS)
    warn_of_copies(sample, "rows")
    return {"file": CONTENTS, "checksum": checksum(plan.output / CONTENTS)}


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
            f"warning: about {percent(share)} of the {name} rows are {rows}, whose target columns contain their own clicks: {cure} other rows"
        )
    return lines


def next_command(manifest: Manifest) -> str:
    """The line with the next command: training, or evaluation without training rows, or a check without labels."""
    path = {"data.path": manifest.path}
    labelled = [name for name, split in manifest.splits.items() if split.positives is not None]
    if "train" in labelled:
        model = {} if manifest.dense else {"model": "concat"}  # other models need dense columns
        return next_line("dlrm-train", {**path, **model, "tables": "dataset", "trainer.epochs": 1})
    if labelled:
        return next_line("dlrm-evaluate", {"checkpoint": "RUN", **path, "split": labelled[0]})
    return next_line("dlrm-check", path)
