"""Compiled functions run by the OpenMP threads that torch already has.

numba's own parallel loops would bring a second pool of threads, and torch's, which go on spinning for a while after each
of its operators, would keep the cores from them.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numba import carray, cfunc, types

from dlrm_app.kernels.compiled import njit

__all__ = ["IS_AVAILABLE", "carray", "integers", "kernel", "run", "share", "sizes"]

_LIBRARIES: Any = ctypes.CDLL(None)
"""The libraries that torch has loaded for all, its OpenMP among them."""

IS_AVAILABLE = torch._C.has_openmp and all(
    hasattr(_LIBRARIES, name) for name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
)
"""True if torch's OpenMP can be called; otherwise no ``kernel`` may be defined."""

_thread = types.ExternalFunction("omp_get_thread_num", types.int32())
_num_threads = types.ExternalFunction("omp_get_num_threads", types.int32())
_ARGUMENTS = types.CPointer(types.CPointer(types.float32))

Arguments: TypeAlias = Any
"""A kernel's arguments: the address of its sizes, then of each tensor."""


def kernel(function: Any) -> Any:
    """Compiles ``function(arguments)``, which each thread of a team calls: what ``run`` takes."""
    return cfunc(types.void(_ARGUMENTS), cache=True)(function)


@njit(cache=True, inline="always")
def integers(pointer: Any, count: int) -> Any:
    """The ``count`` int64 numbers at ``pointer``."""
    return carray(pointer, 2 * count).view(np.int64)


@njit(cache=True, inline="always")
def sizes(arguments: Arguments, count: int) -> Any:
    """The ``count`` whole numbers that ``run`` was given."""
    return integers(arguments[0], count)


@njit(cache=True)
def share(rows: int) -> tuple[int, int]:
    """The first of this thread's ``rows``, and the one behind its last."""
    thread, threads = _thread(), _num_threads()
    return rows * thread // threads, rows * (thread + 1) // threads


def run(compiled: Any, numbers: Sequence[int], tensors: Sequence[torch.Tensor]) -> None:
    """Calls a ``kernel`` in as many threads as torch uses. The tensors are contiguous and float32, on the CPU."""
    given = (ctypes.c_int64 * len(numbers))(*numbers)
    addresses = [ctypes.addressof(given), *(tensor.data_ptr() for tensor in tensors)]
    arguments = (ctypes.c_void_p * len(addresses))(*addresses)
    _LIBRARIES.GOMP_parallel(
        ctypes.c_void_p(compiled.address), ctypes.byref(arguments), torch.get_num_threads(), 0
    )
