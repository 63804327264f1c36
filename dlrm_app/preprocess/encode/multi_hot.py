"""Synthetic multi-hot features from one-hot ones, by the rule of MLPerf's DLRM-DCNv2 benchmark.

There, an id of a table with n rows stands for itself and ``size - 1`` further ids drawn uniformly from the n, the
same ones whenever the id occurs (facebookresearch/dlrm, torchrec_dlrm/multi_hot.py, dist_type="uniform"). It draws
them beforehand into a matrix for every row of every table. Here they are hashes of (column, id, number): the same
distribution without 34 GB of matrices.
"""

import numpy as np
from numpy.typing import NDArray

from dlrm_app.kernels.compiled import njit
from dlrm_app.preprocess.units.hashing import mix, reduce_hash


def expand(ids: NDArray[np.int32], size: int, num_embeddings: int, column: int) -> NDArray[np.int32]:
    """[n * size]: for every id itself, then ``size - 1`` ids that belong to it; ``column`` is the column's index."""
    out = np.empty(len(ids) * size, np.int32)
    _expand(ids, size, num_embeddings, column, out)
    return out


@njit(nogil=True, cache=True)
def _expand(ids, size, num_embeddings, column, out):  # type: ignore[no-untyped-def]  # compiled
    salt = mix(np.uint64(column + 1))
    for i in range(len(ids)):
        out[i * size] = ids[i]
        for number in range(1, size):
            key = salt ^ (np.uint64(ids[i]) | (np.uint64(number) << np.uint64(32)))
            out[i * size + number] = np.int32(reduce_hash(mix(key), num_embeddings))
