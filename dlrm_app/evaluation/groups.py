"""The groups of GAUC are raw values: keys of a kept column, or ids of a feature if few rows share a group."""

import numpy as np

from dlrm_app.dataset.arrow import numbers_of
from dlrm_app.dataset.manifest import Manifest, SparseColumn
from dlrm_app.dataset.shard_files import ShardReader
from dlrm_app.errors import DataError, Problem
from dlrm_app.text import percent

MOST_SHARED = 0.1
"""The largest share of rows in groups that hold several values."""


def refuse_shared(manifest: Manifest, split: str, group_by: str | None) -> None:
    """Raises DataError if too many rows of ``split`` would be grouped with rows of other values.

    Reads the ids of one column.
    """
    if group_by is None or any(column.name == group_by for column in manifest.kept):
        return
    column = next(column for column in manifest.sparse if column.name == group_by)
    shared, why = shared_rows(manifest, split, column)
    if shared > MOST_SHARED:
        rule = (
            f"puts about {percent(shared)} of the rows of {split} in {manifest.path} in groups of "
            f"several values, because {why}; GAUC allows {percent(MOST_SHARED)}"
        )
        raise DataError(Problem(f"group_by={group_by}", rule, f"preprocess with keep=[{group_by}]"))


def shared_rows(manifest: Manifest, split: str, column: SparseColumn) -> tuple[float, str]:
    """(the share of rows of ``split`` whose id stands for several values, the reason).

    Of a vocabulary: rows of the rare id. Of a hash among n ids: values are spread evenly, so a row shares its
    id with probability 1 - (1 - 1/n)^(d - 1), where d is the number of distinct values; k of the n ids occur,
    so that is about k/n.
    """
    kind = column.encoding["kind"]
    if kind not in ("hash", "vocab"):
        return 0.0, ""
    reader = ShardReader(manifest.folder, [column.name])
    rare = 0
    occur = np.zeros(column.num_embeddings, bool)
    for shard in manifest.splits[split].shards:
        for index in range(len(shard.row_groups)):
            ids = numbers_of(reader.read(shard, index).column(column.name))
            occur[ids] = True
            rare += int(np.count_nonzero(ids == column.encoding.get("rare_id", -1)))
    if kind == "vocab":
        return rare / max(1, manifest.splits[split].rows), "all rare values share one id"
    num_ids = column.num_embeddings - 1
    return int(occur[1:].sum()) / max(1, num_ids), f"values are hashed to {num_ids:,} ids"
