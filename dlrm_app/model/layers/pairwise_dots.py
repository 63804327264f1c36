"""DLRM's interaction on CPU in one pass over its inputs, forward and backward: the needed products alone, no copies.

Shapes: B batch rows, F sparse features, V = F + 1 vectors of a row, the dense one first, D their width, P = V · F / 2
pairs of them.
"""

import numpy as np
import torch
from torch.autograd.function import FunctionCtx, once_differentiable

from dlrm_app import openmp
from dlrm_app.compiled import njit

_OPTIONS = {"cache": True, "fastmath": {"reassoc", "contract", "nsz"}, "error_model": "numpy"}
"""Sums may be taken in another order, so that they are taken in vectors; nan and inf stay what they are."""


class PairwiseDots(torch.autograd.Function):
    """(dense [B, D], sparse [B, F, D]) → [B, D + P]: ``dense``, then x_i · x_j of the row's vectors for all i < j.

    Both are contiguous and float32, on the CPU. No second derivatives.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        """Computes the dot products."""
        batch, features, dim = sparse.shape
        crossed = dense.new_empty(batch, dim + (features + 1) * features // 2)
        openmp.run(_run_dots, sparse.shape, [dense, sparse, crossed])
        ctx.save_for_backward(dense, sparse)
        return crossed

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradient of x_i: the sum over j ≠ i of the pair's gradient times x_j."""
        dense, sparse = ctx.saved_tensors  # type: ignore[attr-defined]
        of_dense, of_sparse = torch.empty_like(dense), torch.empty_like(sparse)
        openmp.run(_run_gradients, sparse.shape, [dense, sparse, gradient.contiguous(), of_dense, of_sparse])
        return of_dense, of_sparse


@njit(**_OPTIONS)
def _dot(left: np.ndarray, right: np.ndarray) -> np.float32:
    total = np.float32(0)
    for d in range(len(left)):
        total += left[d] * right[d]
    return total


@njit(**_OPTIONS)
def _dots(dense: np.ndarray, sparse: np.ndarray, crossed: np.ndarray, first: int, last: int) -> None:
    features, dim = sparse.shape[1:]
    for row in range(first, last):
        for d in range(dim):
            crossed[row, d] = dense[row, d]
        pair = dim
        for j in range(features):
            crossed[row, pair] = _dot(dense[row], sparse[row, j])
            pair += 1
        for i in range(features):
            for j in range(i + 1, features):
                crossed[row, pair] = _dot(sparse[row, i], sparse[row, j])
                pair += 1


@njit(**_OPTIONS)
def _gradients(
    dense: np.ndarray,
    sparse: np.ndarray,
    gradient: np.ndarray,
    of_dense: np.ndarray,
    of_sparse: np.ndarray,
    first: int,
    last: int,
) -> None:
    """A row's gradients are pairs [V, V], symmetric, times vectors [V, D]; V filled up with zeros for whole CPU vectors."""
    features, dim = sparse.shape[1:]
    num_vectors = features + 1
    padded = (num_vectors + 15) // 16 * 16
    pairs = np.zeros((padded, padded), np.float32)
    vectors = np.zeros((dim, padded), np.float32)  # transposed
    product = np.zeros((padded, dim), np.float32)
    for row in range(first, last):
        pair = dim
        for i in range(features):
            for j in range(i + 1, num_vectors):
                pairs[i, j] = gradient[row, pair]
                pairs[j, i] = gradient[row, pair]
                pair += 1
        for d in range(dim):
            vectors[d, 0] = dense[row, d]
        for j in range(features):
            for d in range(dim):
                vectors[d, j + 1] = sparse[row, j, d]
        _multiply(pairs, vectors, product, num_vectors)
        for d in range(dim):
            of_dense[row, d] = product[0, d] + gradient[row, d]
        for j in range(features):
            for d in range(dim):
                of_sparse[row, j, d] = product[j + 1, d]


@njit(**_OPTIONS)
def _multiply(left: np.ndarray, right: np.ndarray, product: np.ndarray, rows: int) -> None:
    """The first ``rows`` rows of left [M, K] times right [N, K] transposed, four at once; M is a multiple of four."""
    for i in range(0, rows, 4):
        for n in range(len(right)):
            total0 = total1 = total2 = total3 = np.float32(0)
            for k in range(right.shape[1]):
                factor = right[n, k]
                total0 += left[i, k] * factor
                total1 += left[i + 1, k] * factor
                total2 += left[i + 2, k] * factor
                total3 += left[i + 3, k] * factor
            product[i, n] = total0
            product[i + 1, n] = total1
            product[i + 2, n] = total2
            product[i + 3, n] = total3


@openmp.kernel
def _run_dots(arguments: openmp.Arguments) -> None:
    batch, features, dim = openmp.sizes(arguments, 3)
    num_pairs = (features + 1) * features // 2
    first, last = openmp.share(batch)
    _dots(
        openmp.carray(arguments[1], (batch, dim)),
        openmp.carray(arguments[2], (batch, features, dim)),
        openmp.carray(arguments[3], (batch, dim + num_pairs)),
        first,
        last,
    )


@openmp.kernel
def _run_gradients(arguments: openmp.Arguments) -> None:
    batch, features, dim = openmp.sizes(arguments, 3)
    num_pairs = (features + 1) * features // 2
    first, last = openmp.share(batch)
    _gradients(
        openmp.carray(arguments[1], (batch, dim)),
        openmp.carray(arguments[2], (batch, features, dim)),
        openmp.carray(arguments[3], (batch, dim + num_pairs)),
        openmp.carray(arguments[4], (batch, dim)),
        openmp.carray(arguments[5], (batch, features, dim)),
        first,
        last,
    )
