"""The end of a run: shards get their final names, rejects their line numbers, and the manifest is written."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isal import isal_zlib

from dlrm_app.data.manifest import DenseColumn, Manifest, Shard, SparseColumn, Split, write_manifest
from dlrm_app.data.manifest import Source as ManifestSource
from dlrm_app.errors import DataError
from dlrm_app.files import sync_folder, written_whole
from dlrm_app.preprocess.job.journal import Journal
from dlrm_app.preprocess.job.work_plan import Plan
from dlrm_app.preprocess.read.rejects import REJECTS, read_entries, write_entries

Results = Sequence[Mapping[str, Any]]
MadeShard = tuple[Path, Mapping[str, Any]]
"""Where a shard lies before it has its final name, and what the manifest says of it."""
_SHOWN = 5


def finish(
    plan: Plan,
    journal: Journal,
    results: Results,
    shards: Mapping[str, Sequence[MadeShard]],
    dense: Sequence[DenseColumn],
    sparse: Sequence[SparseColumn],
    config: dict[str, Any],
) -> Manifest:
    """Completes the dataset of which ``results`` are the encoded units and ``shards`` the files, both in order."""
    splits = {split: _split(plan, results, split, shards[split]) for split in plan.splits}
    empty = [split for split, found in splits.items() if found.rows == 0]
    if empty:
        raise DataError(f"the {empty[0]} split has no rows: give an input with some, or a larger share")
    for split, made in shards.items():
        _move(plan.output / split, made)
    with written_whole(plan.output / REJECTS) as temporary:
        write_entries(temporary, _all_rejects(plan, journal, results))
    rates = _missing_rates(plan, results, len(dense) + len(sparse))
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
        sources=_sources(plan, results),
        config=config,
        best=_best(plan),
        path=plan.output,
    )
    write_manifest(plan.output, manifest)
    return manifest


def made_shards(plan: Plan, journal: Journal, results: Results) -> dict[str, list[MadeShard]]:
    """The shards that the units left, of each split, in order; those without rows are left out."""
    made: dict[str, list[MadeShard]] = {split: [] for split in plan.splits}
    for result in results:
        for split, part in result["splits"].items():
            if part["shard"] is not None and part["rows"]:
                path = journal.path(result["source"], result["unit"], f".{split}.parquet")
                made[split].append((path, part["shard"]))
    return made


def _split(plan: Plan, results: Results, split: str, made: Sequence[MadeShard]) -> Split:
    parts = [result["splits"][split] for result in results if split in result["splits"]]
    has_label = plan.spec_of(split).label is not None
    kept = [made_shard for made_shard in made if made_shard[1]["rows"]]
    return Split(
        rows=sum(part["rows"] for part in parts),
        positives=sum(part["positives"] for part in parts) if has_label else None,
        rejects=sum(part["rejects"] for part in parts),
        shards=[Shard(f"{split}/{_shard_name(place)}", **shard) for place, (_, shard) in enumerate(kept)],
    )


def _shard_name(place: int) -> str:
    return f"part-{place:05d}.parquet"


def _move(folder: Path, made: Sequence[MadeShard]) -> None:
    """Gives the shards their final names; those that an interrupted move had reached have them already."""
    folder.mkdir(exist_ok=True)
    for place, (path, _) in enumerate(made_shard for made_shard in made if made_shard[1]["rows"]):
        final = folder / _shard_name(place)
        if path.exists():
            path.replace(final)
        elif not final.exists():
            raise DataError(f"{path} is gone: something deleted it; delete {folder.parent} and start again")
    sync_folder(folder)


def _all_rejects(plan: Plan, journal: Journal, results: Results) -> Iterator[dict[str, Any]]:
    """Every reject with its file and its line number there, from 1."""
    source, first_line = -1, 1
    for result in results:
        if result["source"] != source:
            source, first_line = result["source"], 2 if plan.spec.header else 1
        path = journal.path(result["source"], result["unit"], ".rejects")
        if path.exists():
            for entry in read_entries(path):
                yield {"file": plan.sources[source].path, **entry, "line": first_line + entry["line"]}
        first_line += result["lines"]


def refuse_if_many_rejects(plan: Plan, journal: Journal, results: Results, max_fraction: float) -> None:
    """Raises DataError naming the first rejects if they are more than ``max_fraction`` of all lines."""
    lines = sum(result["lines"] for result in results)
    rejects = sum(part["rejects"] for result in results for part in result["splits"].values())
    if rejects <= max_fraction * lines:
        return
    found = _all_rejects(plan, journal, results)
    first = [next(found) for _ in range(min(rejects, _SHOWN))]
    shown = [f"  {entry['file']}:{entry['line']}: {entry['reason']}" for entry in first]
    raise DataError(
        "\n".join(
            [
                f"{rejects:,} of {lines:,} lines are malformed, more than rejects.max_fraction={max_fraction} allows:",
                *shown,
                *(["  …"] if rejects > len(shown) else []),
                "check dataset= and the files, or raise rejects.max_fraction to leave these lines out",
            ]
        )
    )


def _missing_rates(plan: Plan, results: Results, num_columns: int) -> list[float]:
    """The share of missing values of each dense and sparse column, over the studied splits."""
    missing, rows = [0] * num_columns, 0
    for result in results:
        for split, part in result["splits"].items():
            if split in plan.studied:
                rows += part["rows"]
                missing = [total + count for total, count in zip(missing, part["missing"], strict=True)]
    return [count / max(rows, 1) for count in missing]


def _sources(plan: Plan, results: Results) -> list[ManifestSource]:
    """``checksum`` is of the text, so the same for a file and its .gz; ``bytes`` is the file's size."""
    found = []
    for source in plan.sources:
        crc, rows = 0, 0
        for result in results:
            if result["source"] == source.place:
                crc = isal_zlib.crc32_combine(crc, result["crc"], result["size"])
                rows += sum(part["rows"] for part in result["splits"].values())
        found.append(ManifestSource(source.path, source.split, source.bytes, f"crc32:{crc:08x}", rows))
    return found


def _best(plan: Plan) -> dict[str, float] | None:
    """The best reachable scores that dlrm-generate left beside every source, by rows; None if any lacks them."""
    totals, rows = {"auc": 0.0, "logloss": 0.0}, 0
    for source in plan.sources:
        path = Path(f"{source.path}.best.json")
        if not path.is_file():
            return None
        value = json.loads(path.read_text(encoding="utf-8"))
        count = value.get("rows", 1)
        if any(value.get(key) is None for key in totals):
            return None
        totals = {key: total + value[key] * count for key, total in totals.items()}
        rows += count
    return {key: total / rows for key, total in totals.items()} if rows else None
