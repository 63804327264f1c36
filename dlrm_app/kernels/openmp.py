"""Runs compiled functions in the OpenMP threads that torch already has.

numba's own parallel loops would start a second pool of threads. torch's threads keep spinning for a while after each
operator, so the second pool would not get the cores.
"""

import ctypes
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from numba import carray, cfunc, types

from dlrm_app.kernels.compiled import Untyped, njit

__all__ = ["IS_AVAILABLE", "carray", "integers", "kernel", "run", "share", "sizes"]

_LIBRARIES: Untyped = ctypes.CDLL(None)
"""The libraries loaded in this process; torch's OpenMP is among them."""

IS_AVAILABLE = torch._C.has_openmp and all(
    hasattr(_LIBRARIES, name) for name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
)
"""True if torch's OpenMP can be called; otherwise a ``kernel`` cannot be defined."""

_thread = types.ExternalFunction("omp_get_thread_num", types.int32())
_num_threads = types.ExternalFunction("omp_get_num_threads", types.int32())
_ARGUMENTS = types.CPointer(types.CPointer(types.float32))

Arguments: TypeAlias = Untyped
"""A kernel's arguments: the address of its sizes, then the address of each tensor."""


def kernel(function: Untyped) -> Untyped:
    """Compiles ``function(arguments)`` for ``run``, which calls it in each thread."""
    return cfunc(types.void(_ARGUMENTS), cache=True)(function)


@njit(cache=True, inline="always")
def integers(pointer: Untyped, count: int) -> Untyped:
    """The ``count`` int64 numbers at ``pointer``."""
    return carray(pointer, 2 * count).view(np.int64)


@njit(cache=True, inline="always")
def sizes(arguments: Arguments, count: int) -> Untyped:
    """The first ``count`` of the ``numbers`` given to ``run``."""
    return integers(arguments[0], count)


@njit(cache=True)
def share(rows: int) -> tuple[int, int]:
    """This thread's share of ``rows``: [first, end)."""
    thread, threads = _thread(), _num_threads()
    return rows * thread // threads, rows * (thread + 1) // threads


def run(compiled: Untyped, numbers: Sequence[int], tensors: Sequence[torch.Tensor]) -> None:
    """Calls a ``kernel`` in as many threads as torch uses. The tensors must be contiguous and on the CPU."""
    given = (ctypes.c_int64 * len(numbers))(*numbers)
    addresses = [ctypes.addressof(given), *(tensor.data_ptr() for tensor in tensors)]
    arguments = (ctypes.c_void_p * len(addresses))(*addresses)
    _LIBRARIES.GOMP_parallel(
        ctypes.c_void_p(compiled.address), ctypes.byref(arguments), torch.get_num_threads(), 0
    )
