"""DLRM's interaction on CPU in one pass over its inputs, forward and backward: only the needed products, no copies.

Replaces torchrec's InteractionArch, which multiplies all pairs twice and copies half of the products.

Shapes: B batch rows, F sparse features, V = F + 1 vectors of a row, the dense one first, D their width, P = V · F / 2
pairs of them.
"""

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch.autograd.function import FunctionCtx, once_differentiable
from torchrec.models.dlrm import InteractionArch

from dlrm_app.kernels import openmp
from dlrm_app.kernels.compiled import Untyped, njit
from dlrm_app.kernels.dense_layers import is_traced

_OPTIONS = {"cache": True, "fastmath": {"reassoc", "contract", "nsz"}, "error_model": "numpy"}
"""Compiler options: sums may be reordered, so that they are vectorised; nan and inf are kept."""
_BLOCK, _LANES = 4, 16
"""Rows and columns of a product that are computed together: enough independent sums to keep the CPU's units busy."""
_SAME, _zero = ir.VectorType(ir.IntType(32), _LANES), ir.IntType(32)(0)


class DotInteraction(InteractionArch):
    """torchrec's InteractionArch, compiled for the CPU's vectors; it computes in float32, also in a bf16 step."""

    def forward(self, dense_features: torch.Tensor, sparse_features: torch.Tensor) -> torch.Tensor:
        """([B, D], [B, F, D]) → [B, D + P]."""
        inputs = dense_features, sparse_features
        if is_traced(*inputs) or not all(map(_is_ours, inputs)):
            return super().forward(*inputs)
        return PairwiseDots.apply(*(values.float().contiguous() for values in inputs))  # type: ignore[no-untyped-call]


def _is_ours(values: torch.Tensor) -> bool:
    return values.device.type == "cpu" and values.dtype in (torch.float32, torch.bfloat16)


class PairwiseDots(torch.autograd.Function):
    """(dense [B, D], sparse [B, F, D]) → [B, D + P]: ``dense``, then x_i · x_j of the row's vectors for all i < j.

    Both must be contiguous float32 on the CPU. Second derivatives are not supported.
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
    """Computes the rows from ``first`` to ``last``. Inlined into the kernel it would take a quarter longer."""
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


@intrinsic
def _multiply_block(typing_context, pairs, vectors, product, block, first):  # type: ignore[no-untyped-def]  # compiled
    """Computes _BLOCK rows and _LANES columns of the product in registers, which LLVM would not do by itself.

    product[i, d] = the sum over j of (pairs[j, i] + pairs[i, j]) · vectors[j, d], i from ``block`` on, d from
    ``first`` on.
    """

    def generate(context: Untyped, builder: Untyped, signature: Untyped, arguments: Untyped) -> Untyped:
        arrays = [
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[:3], arguments[:3], strict=True)
        ]
        (pairs, vectors, product), (block, first) = arrays, arguments[3:]
        number, lanes = ir.IntType(64), ir.VectorType(ir.FloatType(), _LANES)
        multiply_add = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(lanes, [lanes] * 3), f"llvm.fmuladd.v{_LANES}f32"
        )

        def address(array: Untyped, row: Untyped, column: Untyped) -> Untyped:
            width = builder.extract_value(array.shape, 1)
            return builder.gep(array.data, [builder.add(builder.mul(row, width), column)])

        def whole(pointer: Untyped) -> Untyped:
            return builder.bitcast(pointer, lanes.as_pointer())

        def spread(pointer: Untyped) -> Untyped:
            alone = builder.insert_element(ir.Constant(lanes, ir.Undefined), builder.load(pointer), _zero)
            return builder.shuffle_vector(alone, ir.Constant(lanes, ir.Undefined), ir.Constant(_SAME, None))

        rows = [builder.add(block, number(k)) for k in range(_BLOCK)]
        sums = [cgutils.alloca_once_value(builder, ir.Constant(lanes, None)) for _ in rows]
        end = builder.extract_value(vectors.shape, 0)
        above = builder.add(block, number(_BLOCK))
        above = builder.select(builder.icmp_signed("<", above, end), above, end)
        for start, stop, is_above in ((number(0), above, True), (block, end, False)):
            with cgutils.for_range_slice(builder, start, stop, number(1)) as (j, _):
                vector = builder.load(whole(address(vectors, j, first)), align=4)
                for row, total in zip(rows, sums, strict=True):
                    factor = spread(address(pairs, j, row) if is_above else address(pairs, row, j))
                    builder.store(builder.call(multiply_add, [factor, vector, builder.load(total)]), total)
        for row, total in zip(rows, sums, strict=True):
            builder.store(builder.load(total), whole(address(product, row, first)), align=4)
        return context.get_dummy_value()

    return types.void(pairs, vectors, product, types.intp, types.intp), generate


@openmp.kernel
def _run_dots(arguments: openmp.Arguments) -> None:
    batch, features, dim = openmp.sizes(arguments, 3)
    num_pairs = (features + 1) * features // 2
    dense = openmp.carray(arguments[1], (batch, dim))
    sparse = openmp.carray(arguments[2], (batch, features, dim))
    crossed = openmp.carray(arguments[3], (batch, dim + num_pairs))
    _dots(dense, sparse, crossed, *openmp.share(batch))


@openmp.kernel
def _run_gradients(arguments: openmp.Arguments) -> None:
    """Computes a row's gradients: pairs [V, V], symmetric (only the upper half is stored), times vectors [V, D].

    V is padded with zeros to whole blocks, and D to whole CPU vectors.
    """
    batch, features, dim = openmp.sizes(arguments, 3)
    num_pairs = (features + 1) * features // 2
    dense = openmp.carray(arguments[1], (batch, dim))
    sparse = openmp.carray(arguments[2], (batch, features, dim))
    gradient = openmp.carray(arguments[3], (batch, dim + num_pairs))
    of_dense = openmp.carray(arguments[4], (batch, dim))
    of_sparse = openmp.carray(arguments[5], (batch, features, dim))
    first, last = openmp.share(batch)
    num_vectors = features + 1
    num_rows, width = -(-num_vectors // _BLOCK) * _BLOCK, -(-dim // _LANES) * _LANES
    pairs = np.zeros((num_rows, num_rows), np.float32)
    vectors, product = np.zeros((num_vectors, width), np.float32), np.zeros((num_rows, width), np.float32)
    for row in range(first, last):
        pair = dim
        for i in range(features):
            for j in range(i + 1, num_vectors):
                pairs[i, j] = gradient[row, pair]
                pair += 1
        for d in range(dim):
            vectors[0, d] = dense[row, d]
        for j in range(features):
            for d in range(dim):
                vectors[j + 1, d] = sparse[row, j, d]
        for block in range(0, num_rows, _BLOCK):
            for d in range(0, width, _LANES):
                _multiply_block(pairs, vectors, product, block, d)
        for d in range(dim):
            of_dense[row, d] = product[0, d] + gradient[row, d]
        for j in range(features):
            for d in range(dim):
                of_sparse[row, j, d] = product[j + 1, d]
