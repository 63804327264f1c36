"""Faults of a manifest that its types do not show: counts that do not add up, names that occur twice, files outside."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlrm_app.dataset.splits import Split, WeightSums
from dlrm_app.files import escapes

if TYPE_CHECKING:
    from dlrm_app.dataset.manifest import Manifest

KINDS_WITH_A_FILE = ("vocab", "target")
"""Kinds of encodings and transforms that are read from a file beside the manifest."""


def faults_of(manifest: "Manifest") -> list[str]:
    """All faults of ``manifest``, in words."""
    faults = [*_column_faults(manifest)]
    for name, split in manifest.splits.items():
        faults += _count_faults(name, split, manifest.kept_share(name))
        others = [each.name for each in manifest.other_labels] if split.positives is not None else []
        faults += _label_faults(name, split, others)
    faults += [
        f"{shard.path} has {shard.rows} rows, its row groups {shard.row_groups}"
        for shard in manifest.shards
        if shard.rows != sum(shard.row_groups) or min(shard.row_groups, default=0) < 0
    ]
    return [*faults, *_name_faults(manifest), *_file_faults(manifest)]


def _column_faults(manifest: "Manifest") -> Iterator[str]:
    for name, rule in manifest.rules:
        if not isinstance(rule.get("kind"), str):
            yield f"{name} has no kind"
    for column in manifest.sparse:
        if not 1 <= column.num_embeddings < 2**31:
            yield f"{column.name} has {column.num_embeddings} ids, which int32 cannot number"
        if column.weights and not column.multi_hot:
            yield f"{column.name} has element weights and no lists"


def _count_faults(name: str, split: Split, kept_share: float) -> Iterator[str]:
    in_shards = sum(shard.rows for shard in split.shards)
    if split.rows != in_shards:
        yield f"{name} has {split.rows} rows, its shards {in_shards}"
    if split.positives is not None and not 0 <= split.positives <= split.rows:
        yield f"{name} has {split.positives} positives in {split.rows} rows"
    for column, counts in split.values.items():
        if not counts.can_be:
            yield f"{name} counts values of {column} that cannot be"
    sums = split.weights or WeightSums(0.0, 0.0)
    if not 0 <= sums.positives <= sums.all:
        yield f"{name} has positives of weight {sums.positives} in rows of weight {sums.all}"
    if not 0 < kept_share <= 1:
        yield f"{name} keeps {kept_share} of its negatives"


def _label_faults(name: str, split: Split, others: list[str]) -> Iterator[str]:
    if others != [*split.labels]:
        yield f"{name} counts the labels {[*split.labels]}, not {others}"
    for label, counts in split.labels.items():
        if not 0 <= counts.positives <= counts.rows <= split.rows:
            yield f"{name} has {counts.positives} positives in {counts.rows} rows with {label} of {split.rows}"


def _name_faults(manifest: "Manifest") -> Iterator[str]:
    labels: list[str | None] = [each.name for each in manifest.labels] or [manifest.label]
    if labels[0] != manifest.label:
        yield f"{labels[0]} comes before the label {manifest.label}"
    columns = [name for name, _ in manifest.rules]
    weights = [name for name in (manifest.weight, *(column.weights for column in manifest.sparse)) if name]
    parts = [part for column in manifest.kept for part in column.parts]
    parts += [column.name for column in manifest.vectors]
    paths = [shard.path for shard in manifest.shards]
    for name, times in Counter([*labels, *weights, *columns, *parts, *paths]).items():
        if times > 1:
            yield f"{name} occurs {times} times"


def _file_faults(manifest: "Manifest") -> Iterator[str]:
    rules = [rule for _, rule in manifest.rules]
    with_a_file = [rule for rule in rules if rule.get("kind") in KINDS_WITH_A_FILE]
    files = [rule.get("file") for rule in with_a_file]
    for file in files:
        if not isinstance(file, str):
            yield f"{file!r} is not a file"
    for rule in with_a_file:
        if not isinstance(rule.get("checksum"), str):
            yield f"{rule.get('file')!r} has no checksum"
    names = [file for file in files if isinstance(file, str)] + [shard.path for shard in manifest.shards]
    names += [rule[part]["file"] for rule in rules for part in ("contents", "vectors") if part in rule]
    names += [manifest.contents["file"]] if manifest.contents else []
    names += manifest.lineage.files if manifest.lineage else []
    for name in names:
        if escapes(name):
            yield f"{name!r} is outside the folder"
