"""Checks that several schemas share: each gives the problems of one value, named by its key."""

import math
from collections.abc import Iterable

FP32_MAX = 3.4028234663852886e38
MAX_BATCH_ROWS = 2**24
"""Of one rank; told before an epoch of training, which memory for more would not survive."""


def one_of(key: str, value: str, choices: Iterable[str]) -> list[str]:
    """A name from a list."""
    return [] if value in choices else [f"{key} must be one of {', '.join(choices)}, got {value!r}"]


def positive(key: str, value: int | None) -> list[str]:
    """A count of at least 1, or nothing."""
    return [] if value is None or value >= 1 else [f"{key} must be at least 1, got {value}"]


def threads_problems(key: str, value: int | None) -> list[str]:
    """Threads of one process."""
    return within(key, value, 1, 4096)


def batch_rows(key: str, value: int) -> list[str]:
    """Rows of a batch on one rank."""
    return positive(key, value) or within(key, value, 1, MAX_BATCH_ROWS)


def at_least_zero(key: str, value: float) -> list[str]:
    """A finite number that is not negative, and that fp32 holds."""
    if math.isfinite(value) and value >= 0:
        return _beyond_fp32(key, value)
    return [f"{key} must be at least 0, got {value}"]


def above_zero(key: str, value: float | None) -> list[str]:
    """A finite positive number that fp32 holds, or nothing."""
    if value is None:
        return []
    if math.isfinite(value) and value > 0:
        return _beyond_fp32(key, value)
    return [f"{key} must be a positive number, got {value}"]


def _beyond_fp32(key: str, value: float) -> list[str]:
    """What torch would not take for a tensor's arithmetic."""
    return (
        [f"{key} must be at most {FP32_MAX:.3g}, as fp32 holds it, got {value}"] if value > FP32_MAX else []
    )


def within(key: str, value: float | None, low: float, high: float) -> list[str]:
    """A number from ``low`` to ``high``, or nothing."""
    if value is None or low <= value <= high:
        return []
    return [f"{key} must lie between {low} and {high}, got {value}"]
