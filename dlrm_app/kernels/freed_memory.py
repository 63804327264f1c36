"""Memory that is freed and soon wanted again stays with the process."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h's


def keep_freed_memory() -> None:
    """Lets malloc keep what a batch has freed, in this process.

    Results between layers are megabytes, which glibc otherwise gives back to the system after each step and gets again, page
    by page and filled with zeros, in the next (docs/experiments/index.md).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 32 << 20)  # the most that every glibc takes
        mallopt(_TRIM_THRESHOLD, 1 << 30)
