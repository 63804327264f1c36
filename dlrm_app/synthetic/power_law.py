"""Random numbers at any index of a stream, and ids whose frequencies fall off as a power of their rank."""

import math

import numpy as np

from dlrm_app.kernels.compiled import njit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_TINY = 2.0**-53
_HARMONIC = 1e-6


@njit(nogil=True, cache=True, inline="always")
def uniform(key, index):  # type: ignore[no-untyped-def]  # compiled; inlined into its callers' loops
    """A number in (0, 1): SplitMix64 (Steele, Lea, Flood 2014) at ``index`` of the stream ``key``."""
    x = np.uint64(key) + np.uint64(index + 1) * _GOLDEN
    x = (x ^ (x >> _30)) * _MIX_1
    x = (x ^ (x >> _27)) * _MIX_2
    x = x ^ (x >> _31)
    return (np.float64(x >> _11) + 0.5) * _TINY


@njit(nogil=True, cache=True, inline="always")
def power_law_span(rows, exponent):  # type: ignore[no-untyped-def]  # compiled
    """What ``power_law`` needs to know of a table of ``rows`` rows."""
    log_size = math.log(rows + 1.0)
    return log_size if abs(exponent) < _HARMONIC else math.expm1(exponent * log_size)


@njit(nogil=True, cache=True, inline="always")
def power_law(u, span, exponent):  # type: ignore[no-untyped-def]  # compiled
    """The inverse, at ``u``, of the distribution function of a density x^-a on [1, rows + 1); ``exponent`` is 1 - a.

    The id is the whole part less one. NVIDIA Merlin's distributed-embeddings draws its ids so: power_law(1, rows + 1,
    a, u) - 1 of examples/benchmarks/synthetic_models/synthetic_models.py, which has no a = 1.
    """
    return math.exp(u * span) if abs(exponent) < _HARMONIC else (1.0 + u * span) ** (1.0 / exponent)
