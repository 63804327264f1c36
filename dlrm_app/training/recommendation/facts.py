"""What a recommendation goes by: the dataset as its manifest tells it. No shard is read."""

from dataclasses import dataclass

from dlrm_app.dataset.manifest import Manifest


@dataclass(frozen=True)
class DatasetFacts:
    """Counts of rows are those of train. A share is None where the manifest does not tell it."""

    name: str
    rows: int
    positives: int
    val_positives: int | None
    """None without a labelled val split."""
    val_rows: int
    num_dense: int
    num_sparse: int
    num_multi_hot: int
    num_embeddings: int
    """Over all sparse columns, of which each would have a table of its own."""
    largest: int
    missing: float
    """The highest share of missing values of any column."""
    colliding: float | None
    """Of the distinct values, those that share their id with another."""
    rare: float | None
    """Of a vocabulary's distinct values, those that have no row of their own."""
    encoding: str | None
    min_count: int | None
    has_target_columns: bool


def dataset_facts(manifest: Manifest) -> DatasetFacts:
    """The facts of a dataset that has a labelled train split."""
    train, val = manifest.splits["train"], manifest.splits.get("val")
    encoding = manifest.config.get("encoding", {})
    missing = [column.missing_rate for column in manifest.dense]
    missing += [column.missing_rate for column in manifest.sparse]
    kinds = {column.encoding["kind"] for column in manifest.sparse}
    return DatasetFacts(
        name=manifest.dataset,
        rows=train.rows,
        positives=train.positives or 0,
        val_positives=val.positives if val else None,
        val_rows=val.rows if val else 0,
        num_dense=len(manifest.dense),
        num_sparse=len(manifest.sparse),
        num_multi_hot=sum(column.multi_hot for column in manifest.sparse),
        num_embeddings=sum(column.num_embeddings for column in manifest.sparse),
        largest=max((column.num_embeddings for column in manifest.sparse), default=0),
        missing=max(missing, default=0.0),
        colliding=_colliding(manifest),
        rare=_rare(manifest),
        encoding=next((kind for kind in ("hash", "vocab") if kind in kinds), None),
        min_count=encoding.get("min_count") if encoding.get("kind") == "vocab" else None,
        has_target_columns=any(column.transform["kind"] == "target" for column in manifest.dense),
    )


def _colliding(manifest: Manifest) -> float | None:
    counted = [
        (column.collisions, column.distinct)
        for column in manifest.sparse
        if column.collisions is not None and column.distinct is not None
    ]
    distinct = sum(values for _, values in counted)
    return sum(collisions for collisions, _ in counted) / distinct if distinct else None


def _rare(manifest: Manifest) -> float | None:
    """Rows 0 and 1 of a vocabulary are for what is missing, and rare or new."""
    counted = [
        (column.num_embeddings - 2, column.distinct)
        for column in manifest.sparse
        if column.encoding["kind"] == "vocab" and column.distinct is not None
    ]
    distinct = sum(values for _, values in counted)
    kept = sum(min(rows, values) for rows, values in counted)
    return 1 - kept / distinct if distinct else None
