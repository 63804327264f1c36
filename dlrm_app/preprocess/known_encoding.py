"""What is to be said of rows whose encoding was made of other rows, after a look at some of them."""

from collections import Counter

import numpy as np

from dlrm_app.dataset.arrow import Bags, read_ids
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.dataset.shard_files import ShardReader
from dlrm_app.preprocess.encode.dense import is_target
from dlrm_app.preprocess.passes.targets import OwnClicks
from dlrm_app.text import listed, percent

_ROWS = 1 << 20
"""Rows to look at, about, evenly spread."""


def notes_on_rows(manifest: Manifest) -> list[str]:
    """How many lookups an earlier dataset's vocabularies do not know, and the splits that target columns tell their own clicks."""
    encoding = manifest.config["encoding"]
    known = encoding["path"] if encoding["kind"] == "from_dataset" else None
    # the training rows of a dataset that makes its target columns are told the clicks of others
    targets = any(is_target(column) for column in manifest.dense)
    names = [name for name in manifest.splits if known or (targets and name != "train")]
    notes = []
    for name in names:
        own, unknown = _look_at(manifest, name)
        if known and unknown and name == names[0]:
            worst = [f"{feature} {percent(share)}" for feature, share in unknown.most_common()]
            notes.append(
                f"lookups in {name} of values that the vocabulary of {known} does not know: {listed(worst, 8)}"
            )
        if own.share:
            rows = f"rows of {known}" if known else "training rows"
            cure = f"train on {known}, or give" if name == "train" else "metrics of new rows are worse; give"
            warning = (
                f"warning: about {percent(own.share)} of the {name} rows seem to be {rows}, whose target"
            )
            notes.append(f"{warning} columns tell them their own clicks: {cure} other rows")
    return notes


def _look_at(manifest: Manifest, name: str) -> tuple[OwnClicks, Counter[str]]:
    """The split's share of own clicks, and of lookups that the vocabularies do not know, by feature."""
    split = manifest.splits[name]
    groups = [(shard, index) for shard in split.shards for index in range(len(shard.row_groups))]
    vocabularies = [column for column in manifest.sparse if column.encoding["kind"] == "vocab"]
    names = [column.name for column in manifest.sparse]
    names += [manifest.label] if manifest.label and split.positives is not None else []
    reader = ShardReader(manifest.folder, names)
    own, lookups, unknown = OwnClicks(manifest), Counter[str](), Counter[str]()
    for shard, index in groups[:: max(split.rows // _ROWS, 1)]:
        table = reader.read(shard, index)
        own.add(table)
        for column in vocabularies:
            ids = read_ids(table, column)
            values = ids.values if isinstance(ids, Bags) else ids
            lookups[column.name] += int(np.count_nonzero(values != column.encoding["missing_id"]))
            unknown[column.name] += int(np.count_nonzero(values == column.encoding["rare_id"]))
    return own, Counter({feature: unknown[feature] / max(lookups[feature], 1) for feature in lookups})
