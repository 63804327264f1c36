"""The values of a unit that was encoded with vocabularies that are to grow, as files beside its rows.

<unit>.counts has what ``passes/counting`` describes of the values that the vocabularies lack, with their ids for now, from 0 on;
behind that a batch for each feature of the values that they have: their ids and counts alone.

Counts are of studied splits; a value that only the others have counts 0.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.preprocess.encode.sparse import look_up
from dlrm_app.preprocess.encode.unit_values import UnitValues
from dlrm_app.preprocess.passes.counting import gather_texts, in_buckets, read_columns, write_counts
from dlrm_app.preprocess.read.spec import Spec
from dlrm_app.preprocess.units.journal import Unit

_COLUMNS = ("bucket", "key", "count", "id")
_NONE = UnitValues((np.zeros(1, np.uint64), np.full(1, -1, np.int32)), 0)
"""Of a feature without a vocabulary."""


def write_unit_counts(
    unit: Unit[Any], spec: Spec, counts: Mapping[int, UnitValues], text: NDArray[np.uint8] | None
) -> None:
    """Writes the files of a unit; ``text`` where strings are among the values."""
    features = [counts.get(feature, _NONE) for feature in range(len(spec.sparse))]
    quote = ord(spec.quote) if spec.quote else -1
    newcomers: list[dict[str, NDArray[Any]]] = []
    known: list[dict[str, NDArray[Any]]] = []
    texts = []
    for column, feature in zip(spec.sparse, features, strict=True):
        keys, numbers, spans = feature.newcomers()
        order, buckets = in_buckets(keys)
        batch: tuple[NDArray[Any], ...] = (buckets, keys, numbers, np.arange(len(keys), dtype=np.int32))
        newcomers.append({name: part[order] for name, part in zip(_COLUMNS, batch, strict=True)})
        if text is not None:
            texts.append(gather_texts(text, spans[order] * (column.kind == "string"), quote))
        ids, numbers = feature.known()
        zeros = np.zeros(len(ids), np.uint64)
        batch = (zeros.astype(np.uint8), zeros, numbers, ids)
        known.append(dict(zip(_COLUMNS, batch, strict=True)))
    texts += [pa.nulls(len(batch["id"]), pa.string()) for batch in known if texts]
    with unit.write(".counts") as temporary:
        write_counts(temporary, [*newcomers, *known], texts)


def read_known(path: Path, feature: int, num_features: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """(ids, counts) of the values of ``feature`` that the vocabulary has."""
    ids, counts = read_columns(path, num_features + feature, "id", "count")
    return ids, counts


def given_ids(
    path: Path, feature: int, vocabulary: tuple[NDArray[np.uint64], NDArray[np.int32]]
) -> NDArray[np.int32]:
    """The ids in ``vocabulary`` of the values that had ids for now, in the order of these; ``path``: <unit>.counts."""
    keys, numbers = read_columns(path, feature, "key", "id")
    ids = np.empty(len(keys), np.int32)
    ids[numbers] = look_up(keys, vocabulary)
    return ids
