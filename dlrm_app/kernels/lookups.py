"""Looks up and pools rows of tables on CPU, in place of fbgemm's operator: compiled, with all of torch's threads.

fbgemm 1.8 looks rows up in one thread (docs/experiments/training.md). Here the batch is divided among the threads, and
the rows of later ids are prefetched into the cache. Bags are summed in their order, as in fbgemm, so the
result is the same to the bit.

Shapes: N ids, F features, B bags of a feature, D a table's width, W the sum of the features' widths. Ids and
offsets are int64, values are float32, weights are float32 or float16.
"""

from collections.abc import Callable

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from dlrm_app.kernels import openmp
from dlrm_app.kernels.compiled import Untyped, njit
from dlrm_app.kernels.rows import ALL_WEIGHTS, LINE, bring_to_read, can_read, end_of_table

_DISTANCE = 32
"""Ids to prefetch ahead: a row is prefetched this many ids before it is added."""
LANES = 4
"""fbgemm's tables have a multiple of this many columns."""
_POOLINGS = (PoolingMode.SUM.value, PoolingMode.MEAN.value)


def make_lookup(of_fbgemm: Untyped) -> Callable[..., Tensor]:
    """Makes the operator, with the arguments in the order of fbgemm's schema. Unsupported cases go to ``of_fbgemm``."""

    def look_up(keyset: Untyped, *arguments: Untyped) -> Tensor:
        if _is_ours(arguments):
            pooled = pool_rows(arguments)
            if pooled is not None:
                return pooled
        theirs: Tensor = of_fbgemm.call_boxed(keyset, *arguments)
        return theirs

    return look_up


def _is_ours(arguments: Untyped) -> bool:
    """True if our operator supports the call, with several threads: int64 ids, sums or means without bag weights."""
    weights, ids, pooling, bag_weights, output_type = (arguments[k] for k in (0, 5, 7, 8, 9))
    is_plain = bag_weights is None and pooling in _POOLINGS and output_type == SparseType.FP32.as_int()
    return torch.get_num_threads() > 1 and can_read(weights) and ids.dtype == torch.int64 and is_plain


def pool_rows(arguments: Untyped) -> Tensor | None:
    """The pooled rows [B, W]; None if an id is outside of its table: fbgemm's operator then raises its error."""
    weights, weight_offsets, dim_offsets, width, row_offsets, ids, offsets, pooling = arguments[:8]
    num_features = len(weight_offsets)
    batch = (len(offsets) - 1) // num_features
    pooled = torch.empty(batch, width)
    is_outside = torch.zeros(1, dtype=torch.int64)
    sizes = [len(ids), num_features, batch, width, pooling == PoolingMode.MEAN.value]
    layout = [weight_offsets, dim_offsets.long(), row_offsets, ids.contiguous(), offsets.contiguous()]
    run_lookup = _run_lookup if weights.dtype == torch.float32 else _run_lookup_of_halves
    openmp.run(run_lookup, sizes, [*layout, weights, pooled, is_outside])
    return None if is_outside.item() else pooled


def _sum_of_rows(lanes: int) -> Untyped:
    """Makes a compiled function that adds ``lanes`` columns at once; numba itself has no vector types."""

    @intrinsic
    def add_up(typing_context, pooled, at, ids, start, end, weights, dim, column):  # type: ignore[no-untyped-def]
        """``pooled[at:at + lanes]`` = the sum over k from ``start`` to ``end`` of row ``ids[k]``'s values
        from ``column`` on.
        """

        def generate(context: Untyped, builder: Untyped, signature: Untyped, arguments: Untyped) -> Untyped:
            result, its_ids, table = (
                context.make_array(signature.args[k])(context, builder, arguments[k]).data for k in (0, 2, 5)
            )
            _, at, _, start, end, _, dim, column = arguments
            lines = ir.VectorType(ir.FloatType(), lanes)
            is_half = weights.dtype == types.uint16
            stored = ir.VectorType(ir.HalfType(), lanes) if is_half else lines
            total = cgutils.alloca_once_value(builder, ir.Constant(lines, None))
            with cgutils.for_range_slice(builder, start, end, ir.Constant(start.type, 1)) as (k, _):
                row = builder.load(builder.gep(its_ids, [k]))
                begin = builder.gep(table, [builder.add(builder.mul(row, dim), column)])
                values = builder.load(builder.bitcast(begin, stored.as_pointer()), align=2 if is_half else 4)
                values = builder.fpext(values, lines) if is_half else values
                builder.store(builder.fadd(builder.load(total), values), total)
            target = builder.bitcast(builder.gep(result, [at]), lines.as_pointer())
            builder.store(builder.load(total), target, align=4)
            return context.get_dummy_value()

        number = types.intp
        return types.void(pooled, number, ids, number, number, weights, number, number), generate

    return add_up


_sum_line, _sum_lanes = _sum_of_rows(LINE), _sum_of_rows(LANES)


@njit(cache=True, error_model="numpy")
def _pool(ids, bags, num_rows, weights, dim, pooled, at, width, is_mean):  # type: ignore[no-untyped-def]  # compiled
    """Pools consecutive bags of a feature into ``pooled``, the first at ``at``.
    Returns False if an id is outside of the table.

    ``bags``: the start of each bag in ``ids``, and the end of the last one.
    """
    last = bags[-1] - 1
    for bag in range(len(bags) - 1):
        start, end = bags[bag], bags[bag + 1]
        for k in range(start, end):
            if not 0 <= ids[k] < num_rows:
                return False
            next_row = ids[min(k + _DISTANCE, last)]
            for d in range(0, dim, LINE):
                bring_to_read(weights, next_row * dim + d)
        whole = dim - dim % LINE
        for d in range(0, whole, LINE):
            _sum_line(pooled, at + d, ids, start, end, weights, dim, d)
        for d in range(whole, dim, LANES):
            _sum_lanes(pooled, at + d, ids, start, end, weights, dim, d)
        if is_mean and end - start > 1:
            factor = np.float32(1) / np.float32(end - start)
            for d in range(dim):
                pooled[at + d] *= factor
        at += width
    return True


@njit(cache=True, error_model="numpy")
def _look_up_share(arguments: openmp.Arguments, weights: Untyped) -> None:
    """Pools this thread's share of the batch's rows, all features."""
    num_ids, num_features, batch, width, is_mean = openmp.sizes(arguments, 5)
    weight_offsets = openmp.integers(arguments[1], num_features)
    dim_offsets = openmp.integers(arguments[2], num_features + 1)
    row_offsets = openmp.integers(arguments[3], num_features + 1)
    ids = openmp.integers(arguments[4], num_ids)
    offsets = openmp.integers(arguments[5], num_features * batch + 1)
    pooled = openmp.carray(arguments[7], batch * width)
    is_outside = openmp.integers(arguments[8], 1)
    first, last = openmp.share(batch)
    end = 0
    for feature in range(num_features):
        if feature == end:
            end = end_of_table(row_offsets, feature)
            num_rows = row_offsets[end] - row_offsets[feature]
        bags = offsets[feature * batch + first : feature * batch + last + 1]
        table = weights[weight_offsets[feature] :]
        dim = dim_offsets[feature + 1] - dim_offsets[feature]
        at = first * width + dim_offsets[feature]
        if not _pool(ids, bags, num_rows, table, dim, pooled, at, width, is_mean):
            is_outside[0] = 1
            return


@openmp.kernel
def _run_lookup(arguments: openmp.Arguments) -> None:
    _look_up_share(arguments, openmp.carray(arguments[6], ALL_WEIGHTS))


@openmp.kernel
def _run_lookup_of_halves(arguments: openmp.Arguments) -> None:
    _look_up_share(arguments, openmp.carray(arguments[6], ALL_WEIGHTS).view(np.uint16))
