"""Updates tables on CPU, in place of fbgemm's operators: compiled, with all of torch's threads.

fbgemm 1.8 has a vectorised kernel for row-wise Adagrad of tables that one feature reads. It mixes SSE with
AVX: on some of Intel's CPUs it takes ten times as long as on others. Everything else is a plain loop in one
thread (docs/experiments/training.md).
Here the ids of each table are sorted together with their bags, then the rows are divided among the threads.
Each row's gradient is summed in the order of the batch, for every number of threads.

Shapes: N ids, F features, B bags of a feature, D a table's width, W the sum of the features' widths. Ids and
offsets are int64, values are float32, weights are float32 or float16. A key:
the id, then 32 bits for the bag (feature · B + its row).
"""

from collections.abc import Callable

import numpy as np
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from torch import Tensor

from dlrm_app.kernels import openmp
from dlrm_app.kernels.compiled import Untyped, njit
from dlrm_app.kernels.rows import (
    ALL_WEIGHTS,
    LINE,
    bring_to_write,
    can_read,
    end_of_table,
    read_weight,
    write_weight,
)

_DIGIT = 11
"""Bits that one pass of the radix sort uses."""
_DISTANCE = 16
"""Keys to prefetch ahead: a row is prefetched this many keys before it is updated."""
BAG = 0xFFFFFFFF
"""The mask of a key's bag."""
SGD, ADAGRAD, ROWWISE_ADAGRAD = range(3)
"""The rules. Adagrad keeps a sum of squares for each weight, row-wise Adagrad one for each row."""


def make_update(rule: int, of_fbgemm: Untyped) -> Callable[..., None]:
    """Makes the operator of ``rule``, with the arguments in the order of fbgemm's schema.

    Unsupported cases go to ``of_fbgemm``.
    """

    def update(keyset: Untyped, *arguments: Untyped) -> None:
        if not _is_ours(rule, arguments):
            of_fbgemm.call_boxed(keyset, *arguments)
            return
        if rule == SGD:
            state, state_offsets, lr, eps = arguments[1], arguments[3], arguments[13], 0.0
        else:
            state, _, state_offsets, lr, eps = [*arguments[13:], 0.0][:5]
        update_tables(rule, arguments, state, state_offsets, torch.tensor([lr.item(), eps]))

    return update


def _is_ours(rule: int, arguments: Untyped) -> bool:
    """True if our operator supports it: readable weights, int64 ids, no bag weights, weight decay or max norm."""
    gradient, weights, ids, bag_weights = (arguments[k] for k in (0, 1, 8, 11))
    decay_and_max_norm = [*arguments[18:19], *arguments[20:21]] if rule == ROWWISE_ADAGRAD else []
    is_plain = gradient.dtype == torch.float32 and ids.dtype == torch.int64 and bag_weights is None
    return can_read(weights) and is_plain and not any(decay_and_max_norm)


def update_tables(rule: int, arguments: Untyped, state: Tensor, state_offsets: Tensor, rates: Tensor) -> None:
    """Sums each row's gradient and steps the row. ``rates``: [lr, eps]."""
    gradient, weights, _, weight_offsets, dim_offsets, _, row_offsets, _, ids, offsets, pooling = arguments[
        :11
    ]
    num_features = len(weight_offsets)
    batch, width = gradient.shape
    is_mean = pooling == PoolingMode.MEAN.value
    sizes = [len(ids), num_features, batch, width, is_mean, rule]
    keys, spare = torch.empty(2, len(ids), dtype=torch.int64)
    ids, offsets, dim_offsets = ids.contiguous(), offsets.contiguous(), dim_offsets.long()
    openmp.run(_run_sort, sizes, [row_offsets, ids, offsets, keys, spare])
    layout = [weight_offsets, state_offsets, dim_offsets, row_offsets, offsets, keys]
    run_update = _run_update if weights.dtype == torch.float32 else _run_update_of_halves
    openmp.run(run_update, sizes, [*layout, gradient.contiguous(), weights, state, rates])


@njit(cache=True)
def sort_with_bags(ids, bags, first_bag, num_rows, keys, spare):  # type: ignore[no-untyped-def]  # compiled
    """Fills ``keys``, sorted by id, then by bag. Ids outside of the table (no forward pass allows them)
    become -1 at the end.

    ``bags``: the starts of the bags of the table's features in ``ids``, and the last bag's end.
    ``first_bag``: the first bag's number.
    """
    count, largest = 0, 1
    for bag in range(len(bags) - 1):
        for k in range(bags[bag], bags[bag + 1]):
            if 0 <= ids[k] < num_rows:
                largest = max(largest, ids[k])
                keys[count] = ids[k] << 32 | (first_bag + bag)
                count += 1
    keys[count:] = -1
    num_bits = 0
    while largest >> num_bits:
        num_bits += 1
    num_passes = (num_bits + _DIGIT - 1) // _DIGIT
    digit = (num_bits + num_passes - 1) // num_passes
    mask = (1 << digit) - 1
    starts = np.empty((1 << digit) + 1, np.int64)
    source, target = keys, spare
    for number in range(num_passes):
        shift = 32 + number * digit
        starts[:] = 0
        for k in range(count):
            starts[(source[k] >> shift & mask) + 1] += 1
        for bucket in range(mask):
            starts[bucket + 1] += starts[bucket]
        for k in range(count):
            bucket = source[k] >> shift & mask
            target[starts[bucket]] = source[k]
            starts[bucket] += 1
        source, target = target, source
    if num_passes % 2:
        keys[:count] = spare[:count]


@openmp.kernel
def _run_sort(arguments: openmp.Arguments) -> None:
    """Sorts the tables whose ids begin in this thread's share; the features of a table are consecutive."""
    num_ids, num_features, batch = openmp.sizes(arguments, 3)
    row_offsets = openmp.integers(arguments[1], num_features + 1)
    ids = openmp.integers(arguments[2], num_ids)
    offsets = openmp.integers(arguments[3], num_features * batch + 1)
    keys, spare = openmp.integers(arguments[4], num_ids), openmp.integers(arguments[5], num_ids)
    first, last = openmp.share(num_ids)
    feature = 0
    while feature < num_features:
        end = end_of_table(row_offsets, feature)
        num_rows = row_offsets[end] - row_offsets[feature]
        start, stop = offsets[feature * batch], offsets[end * batch]
        if first <= start < last:
            bags = offsets[feature * batch : end * batch + 1]
            sort_with_bags(ids, bags, feature * batch, num_rows, keys[start:stop], spare[start:stop])
        feature = end


@njit(cache=True, error_model="numpy", fastmath={"contract", "nsz"})
def _step_adagrad(gradient, weights, state, lr, eps):  # type: ignore[no-untyped-def]  # compiled
    for d in range(len(gradient)):
        moment = state[d] + gradient[d] * gradient[d]
        state[d] = moment
        write_weight(weights, d, read_weight(weights, d) - lr * gradient[d] / (np.sqrt(moment) + eps))


@njit(cache=True, error_model="numpy", fastmath={"contract", "nsz"})
def _step_sgd(gradient, weights, lr):  # type: ignore[no-untyped-def]  # compiled
    for d in range(len(gradient)):
        write_weight(weights, d, read_weight(weights, d) - lr * gradient[d])


@njit(cache=True, error_model="numpy", fastmath={"contract", "nsz", "reassoc"})
def _mean_square(gradient):  # type: ignore[no-untyped-def]  # compiled
    total = np.float32(0)
    for d in range(len(gradient)):
        total += gradient[d] * gradient[d]
    return total / np.float32(len(gradient))


@njit(cache=True, inline="always")
def _begin_of_gradient(bag, width, batch, columns, feature):  # type: ignore[no-untyped-def]  # compiled
    """The start of a bag's part in the gradient [B, W].

    ``columns``: for each feature of the table, the start that bag 0 would have. ``feature``: the first feature.
    """
    column = columns[0] if len(columns) == 1 else columns[bag // batch - feature]
    return bag * width + column


@njit(cache=True, error_model="numpy", fastmath={"contract", "nsz"})
def _add(total, gradient, factor):  # type: ignore[no-untyped-def]  # compiled
    for d in range(len(total)):
        total[d] += gradient[d] * factor


@njit(cache=True, error_model="numpy")
def _step_row(rule, gradient, weights, state, row, lr, eps):  # type: ignore[no-untyped-def]  # compiled
    """Steps one row. ``weights``: the row's weights; ``state``: the table's sums of squares, by weight or by row."""
    dim = len(gradient)
    if rule == ADAGRAD:
        _step_adagrad(gradient, weights, state[row * dim : (row + 1) * dim], lr, eps)
    elif rule == ROWWISE_ADAGRAD:
        state[row] += _mean_square(gradient)
        _step_sgd(gradient, weights, lr / (np.sqrt(state[row]) + eps))
    else:
        _step_sgd(gradient, weights, lr)


@njit(cache=True, error_model="numpy")
def _update_rows(  # type: ignore[no-untyped-def]
    rule, keys, share, features, bags, gradient, sizes, table, total, rates
):
    """Steps the rows of a table whose first key is in ``share`` (compiled).

    ``keys``: the table's keys; ``features``: where their columns start, and the first one's number; ``bags``:
    where all bags start, if means are taken; ``sizes``: B, W; ``table``: weights and state; ``total`` [D]: a
    buffer for a row's gradient.
    """
    (first, last), (columns, feature), (batch, width) = share, features, sizes
    (weights, state), (lr, eps) = table, rates
    dim, k = len(total), first
    while 0 < k < last and keys[k] >> 32 == keys[k - 1] >> 32:
        k += 1
    while k < last and keys[k] >= 0:
        row, end = keys[k] >> 32, k + 1
        while end < len(keys) and keys[end] >> 32 == row:
            end += 1
        total[:] = 0
        for key in range(k, end):
            next_key = keys[min(key + _DISTANCE, len(keys) - 1)]
            if next_key >= 0:
                at = _begin_of_gradient(next_key & BAG, width, batch, columns, feature)
                its_row = next_key >> 32
                for d in range(0, dim, LINE):
                    bring_to_write(gradient, at + d)
                    bring_to_write(weights, its_row * dim + d)
                    if rule == ADAGRAD:
                        bring_to_write(state, its_row * dim + d)
                if rule == ROWWISE_ADAGRAD:
                    bring_to_write(state, its_row)
            bag, factor = keys[key] & BAG, np.float32(1)
            if len(bags):
                factor /= np.float32(bags[bag + 1] - bags[bag])
            at = _begin_of_gradient(bag, width, batch, columns, feature)
            _add(total, gradient[at : at + dim], factor)
        _step_row(rule, total, weights[row * dim : (row + 1) * dim], state, row, lr, eps)
        k = end


@njit(cache=True, error_model="numpy")
def _update_share(arguments: openmp.Arguments, weights: Untyped) -> None:
    """Steps the rows whose first key lies in this thread's share; the features of a table are consecutive."""
    num_ids, num_features, batch, width, is_mean, rule = openmp.sizes(arguments, 6)
    weight_offsets = openmp.integers(arguments[1], num_features)
    state_offsets = openmp.integers(arguments[2], num_features)
    dim_offsets = openmp.integers(arguments[3], num_features + 1)
    row_offsets = openmp.integers(arguments[4], num_features + 1)
    offsets = openmp.integers(arguments[5], num_features * batch + 1)
    keys = openmp.integers(arguments[6], num_ids)
    gradient = openmp.carray(arguments[7], batch * width)
    state = openmp.carray(arguments[9], ALL_WEIGHTS)
    lr, eps = openmp.carray(arguments[10], 2)
    rates = lr, eps
    bags = offsets if is_mean else offsets[:0]
    columns = dim_offsets[:-1] - np.arange(num_features) * batch * width
    total = np.empty(width, np.float32)
    first, last = openmp.share(num_ids)
    feature = 0
    while feature < num_features:
        end = end_of_table(row_offsets, feature)
        start, stop = offsets[feature * batch], offsets[end * batch]
        dim = dim_offsets[feature + 1] - dim_offsets[feature]
        its_keys, its_share = keys[start:stop], (max(first - start, 0), min(last, stop) - start)
        table = weights[weight_offsets[feature] :], state[state_offsets[feature] :]
        features, sizes = (columns[feature:end], feature), (batch, width)
        _update_rows(rule, its_keys, its_share, features, bags, gradient, sizes, table, total[:dim], rates)
        feature = end


@openmp.kernel
def _run_update(arguments: openmp.Arguments) -> None:
    _update_share(arguments, openmp.carray(arguments[8], ALL_WEIGHTS))


@openmp.kernel
def _run_update_of_halves(arguments: openmp.Arguments) -> None:
    _update_share(arguments, openmp.carray(arguments[8], ALL_WEIGHTS).view(np.uint16))
