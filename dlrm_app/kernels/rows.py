"""Access to rows of tables in compiled functions: weights are float32, or float16 with its bits as uint16."""

import platform
from functools import cache
from typing import TYPE_CHECKING

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dlrm_app.kernels.compiled import Untyped, njit

if TYPE_CHECKING:  # the loader copies rows without torch
    import torch

LINE = 16
"""float32 values in a cache line."""
ALL_WEIGHTS = 1 << 48
"""A nominal array length; it is never checked, since rows lie within their tables."""


@cache
def converts_halves() -> bool:
    """True if the CPU converts float16 in hardware, as every 64-bit Arm CPU does.

    Otherwise LLVM would call a function.
    """
    import torch

    return platform.machine() == "aarch64" or bool(torch.cpu.get_capabilities().get("f16c"))


def can_read(weights: "torch.Tensor") -> bool:
    """True if ``weights`` are float32, or float16 that the CPU can convert."""
    kind = str(weights.dtype)
    return kind == "torch.float32" or (kind == "torch.float16" and converts_halves())


@intrinsic
def read_weight(typing_context: Untyped, weights: Untyped, index: Untyped) -> Untyped:
    """``weights[index]`` as float32; a float16's bits are stored as uint16."""

    def generate(context: Untyped, builder: Untyped, signature: Untyped, arguments: Untyped) -> Untyped:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        value = builder.load(builder.gep(array.data, [arguments[1]]))
        if weights.dtype == types.uint16:
            value = builder.fpext(builder.bitcast(value, ir.HalfType()), ir.FloatType())
        return value

    return types.float32(weights, types.intp), generate


@intrinsic
def write_weight(typing_context: Untyped, weights: Untyped, index: Untyped, value: Untyped) -> Untyped:
    """Sets ``weights[index] = value``; for float16, the nearest value."""

    def generate(context: Untyped, builder: Untyped, signature: Untyped, arguments: Untyped) -> Untyped:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        value = arguments[2]
        if weights.dtype == types.uint16:
            value = builder.bitcast(builder.fptrunc(value, ir.HalfType()), ir.IntType(16))
        builder.store(value, builder.gep(array.data, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(weights, types.intp, types.float32), generate


def _bring(is_to_write: bool) -> Untyped:
    @intrinsic
    def bring(typing_context: Untyped, values: Untyped, index: Untyped) -> Untyped:
        """Prefetches the cache line of ``values[index]``."""

        def generate(context: Untyped, builder: Untyped, signature: Untyped, arguments: Untyped) -> Untyped:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            pointer = builder.bitcast(builder.gep(array.data, [arguments[1]]), cgutils.voidptr_t)
            number = ir.IntType(32)
            takes = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
            prefetch = cgutils.get_or_insert_function(builder.module, takes, "llvm.prefetch.p0i8")
            builder.call(prefetch, [pointer, number(int(is_to_write)), number(3), number(1)])
            return context.get_dummy_value()

        return types.void(values, types.intp), generate

    return bring


bring_to_read, bring_to_write = _bring(False), _bring(True)


@njit(cache=True)
def end_of_table(row_offsets: Untyped, feature: int) -> int:
    """The end (exclusive) of the features of a table whose first is ``feature``; a table's features are consecutive.

    ``row_offsets``: the number of each feature's first row, and of all rows. An empty table and the next one
    begin at the same place of the weights, but the numbers differ (dlrm_app/sharding/sharder.py).
    """
    end = feature + 1
    while end < len(row_offsets) - 1 and row_offsets[end] == row_offsets[feature]:
        end += 1
    return end
