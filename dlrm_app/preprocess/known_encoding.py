"""What is to be said of rows that were encoded by an earlier dataset, after a look at some of them."""

from collections import Counter

import numpy as np

from dlrm_app.dataset.arrow import Bags, read_ids
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.dataset.shard_files import ShardReader
from dlrm_app.preprocess.passes.targets import OwnClicks
from dlrm_app.text import listed, percent

_ROWS = 1 << 20
"""Rows to look at, about, evenly spread."""


def notes_on_known(manifest: Manifest) -> list[str]:
    """How many lookups the vocabularies do not know, and whether target columns tell training rows their own clicks."""
    name = "train" if "train" in manifest.splits else next(iter(manifest.splits))
    split, path = manifest.splits[name], manifest.config["encoding"]["path"]
    groups = [(shard, index) for shard in split.shards for index in range(len(shard.row_groups))]
    vocabularies = [column for column in manifest.sparse if column.encoding["kind"] == "vocab"]
    names = [column.name for column in manifest.sparse]
    names += [manifest.label] if manifest.label and split.positives is not None else []
    reader = ShardReader(manifest.folder, names)
    own, lookups, unknown = OwnClicks(manifest), Counter[str](), Counter[str]()
    for shard, index in groups[:: max(split.rows // _ROWS, 1)]:
        table = reader.read(shard, index)
        if name == "train":
            own.add(table)
        for column in vocabularies:
            ids = read_ids(table, column)
            values = ids.values if isinstance(ids, Bags) else ids
            lookups[column.name] += int(np.count_nonzero(values != column.encoding["missing_id"]))
            unknown[column.name] += int(np.count_nonzero(values == column.encoding["rare_id"]))
    shares = Counter({feature: unknown[feature] / max(lookups[feature], 1) for feature in lookups})
    worst = [f"{feature} {percent(share)}" for feature, share in shares.most_common()]
    notes = [f"lookups in {name} of values that the vocabulary of {path} does not know: {listed(worst, 8)}"]
    warning = f"warning: about {percent(own.share)} of the training rows seem to be rows of {path}, whose target columns "
    warning += f"tell them their own clicks: train on {path}, or give other rows"
    return notes * bool(worst) + [warning] * bool(own.share)
