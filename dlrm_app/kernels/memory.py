"""Makes a process keep freed memory. By default allocators return it to the system, and get it back page by page,
filled with zeros.
"""

import ctypes
import os
from functools import cache
from threading import Lock
from types import ModuleType

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h's
_OPTIONS = "_RJEM_MALLOC_CONF"
"""The variable with options of polars' allocator, which are read once, when polars is loaded."""


def keep_freed_memory() -> None:
    """Makes malloc keep the memory that a batch has freed, in this process (docs/experiments/preprocessing.md)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 32 << 20)  # the largest value that every glibc accepts
        mallopt(_TRIM_THRESHOLD, 1 << 30)


def give_back() -> None:
    """Returns the memory that malloc keeps to the system, after something large was freed for good."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


_loading = Lock()  # cache alone would let two threads change the environment at the same time


def load_polars() -> ModuleType:
    """Loads polars. Its allocator then keeps freed memory for two seconds instead of half a second.

    malloc keeps it too. The user's own options stay in force.
    """
    with _loading:
        return _load_polars()


@cache
def _load_polars() -> ModuleType:
    keep_freed_memory()
    given = os.environ.get(_OPTIONS)
    os.environ[_OPTIONS] = ",".join(["dirty_decay_ms:2000,muzzy_decay_ms:0", *([given] if given else [])])
    try:
        import polars
    finally:
        del os.environ[_OPTIONS]
        if given is not None:
            os.environ[_OPTIONS] = given
    return polars
