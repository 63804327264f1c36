"""NumPy arrays ↔ Arrow arrays, without pandas.

pyarrow's own conversions, ``pa.array`` of a NumPy array and ``to_numpy``, import pandas wherever it is installed: a seventh
of a second of a command's start, for nothing.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def array_of(values: NDArray[Any]) -> pa.Array:
    """An Arrow array over the memory of ``values`` [R], numbers; a copy of what is not contiguous."""
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, buffer])


def numbers_of(array: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """The values [R] of an Arrow array of numbers without nulls; not to be written to, they may be Arrow's own memory.

    Raises ValueError if there are nulls.
    """
    if array.null_count:
        raise ValueError(f"{array.null_count} values are missing")
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    kind = np.dtype(array.type.to_pandas_dtype())
    if not len(array):
        return np.empty(0, kind)
    return np.frombuffer(array.buffers()[1], kind, len(array), array.offset * kind.itemsize)
