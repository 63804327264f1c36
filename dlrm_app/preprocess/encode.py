"""Raw columns → the columns of a dataset, by the transforms and encodings that its manifest states."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.data.manifest import DenseColumn, SparseColumn
from dlrm_app.preprocess.dense import DenseTransform
from dlrm_app.preprocess.parser import RawColumns
from dlrm_app.preprocess.sparse import SparseEncoder
from dlrm_app.preprocess.spec import Spec


class Encoder:
    """Encodes rows parsed by ``spec`` as ``dense`` and ``sparse`` say; ``folder`` holds the vocabularies.

    For serving: ``Encoder(spec, manifest.dense, manifest.sparse, manifest.path)``.
    """

    def __init__(
        self, spec: Spec, dense: Sequence[DenseColumn], sparse: Sequence[SparseColumn], folder: Path
    ) -> None:
        self._label = spec.label
        self._dense = [(column.name, DenseTransform(column.transform)) for column in dense]
        self._sparse = [
            (column, SparseEncoder(column.encoding, column.num_embeddings, folder)) for column in sparse
        ]
        self._slots = list_slots(spec)
        fields = [(self._label, pa.uint8())] if self._label else []
        fields += [(column.name, pa.float32()) for column in dense]
        ids = pa.int32()
        fields += [(column.name, pa.list_(ids) if column.multi_hot else ids) for column in sparse]
        self.schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])

    def encode(self, raw: RawColumns) -> tuple[pa.Table, NDArray[np.int64]]:
        """(the rows as a table, how many values of each dense and sparse column are missing [N + F])."""
        arrays = [pa.array(raw.labels)] if self._label else []
        missing = []
        for place, (_, transform) in enumerate(self._dense):
            values, count = transform.apply(raw.dense[place])
            arrays.append(pa.array(values))
            missing.append(count)
        for column, encoder in self._sparse:
            is_list, slot = self._slots[column.name]
            if is_list:
                ends = raw.list_ends[slot]
                ids, _ = encoder.apply(raw.list_keys[slot, : ends[-1]])
                arrays.append(pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), pa.array(ids)))
                missing.append(int((ends[1:] == ends[:-1]).sum()))
            else:
                ids, count = encoder.apply(raw.keys[slot])
                arrays.append(pa.array(ids))
                missing.append(count)
        return pa.Table.from_arrays(arrays, schema=self.schema), np.array(missing, np.int64)


def list_slots(spec: Spec) -> dict[str, tuple[bool, int]]:
    """For each sparse column whether the parser gives lists, and which of its arrays."""
    slots, counts = {}, [0, 0]
    for column in spec.sparse:
        is_list = column.separator is not None
        slots[column.name] = (is_list, counts[is_list])
        counts[is_list] += 1
    return slots
