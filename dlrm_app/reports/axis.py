"""Axes with round ticks: pure arithmetic."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ROUND_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
MAX_STEPS = 5


@dataclass(frozen=True)
class Axis:
    """A range of values and the ticks within it, as (value, label)."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    title: str = ""

    def share(self, value: float) -> float:
        """Where ``value`` lies between ``low`` (0) and ``high`` (1)."""
        return (value - self.low) / (self.high - self.low)


def linear_axis(
    values: Sequence[float],
    title: str = "",
    *,
    label: Callable[[float, int], str] | None = None,
    from_zero: bool = False,
    ends_on_ticks: bool = True,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    smallest_step: float = 0.0,
) -> Axis:
    """An axis around all finite ``values``.

    ``label(value, decimals)`` writes a tick. With ``ends_on_ticks`` the range is widened to round numbers.
    One value alone gets some room, but never beyond ``bounds``.
    """
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if from_zero:
        low = min(0.0, low)
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-300):
        pad = abs(high) / 10 or 1.0
        low, high = (low if from_zero else low - pad), high + pad
    low, high = max(low, bounds[0]), min(high, bounds[1])
    step = max(smallest_step, round_step(high - low, MAX_STEPS))
    first = math.floor(low / step + 1e-9) if ends_on_ticks else math.ceil(low / step - 1e-9)
    last = math.ceil(high / step - 1e-9) if ends_on_ticks else math.floor(high / step + 1e-9)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9) + (step_digits(step) > 1))
    write = label or (lambda value, digits: f"{value:,.{digits}f}")
    ticks = [(k * step, write(k * step, decimals)) for k in range(first, last + 1)]
    if ends_on_ticks:
        low, high = ticks[0][0], ticks[-1][0]
    return Axis(low, high, ticks, title)


def round_step(span: float, num_steps: int) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that covers ``span`` in at most ``num_steps`` steps."""
    rough = span / num_steps
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in ROUND_STEPS if power * factor >= rough * (1 - 1e-9))


def step_digits(step: float) -> int:
    """How many digits that count a round step has: 2 for 2.5, else 1."""
    return 2 if f"{step:e}".startswith("2.5") else 1


LOGIT_TICKS = (
    *(1e-6, 1e-5, 1e-4, 0.001, 0.01, 0.03, 0.1, 0.25),
    *(0.5, 0.75, 0.9, 0.97, 0.99, 0.999, 0.9999, 1 - 1e-5, 1 - 1e-6),
)
LOGIT_GAP = 0.13
"""The share of an axis that a label takes."""


def logit_axis(low: float, high: float, title: str) -> Axis:
    """An axis of logits whose ticks are labelled with their probabilities, that leave room for them."""
    if high <= low:
        low, high = low - 1, high + 1
    ticks: list[tuple[float, str]] = []
    for probability in LOGIT_TICKS:
        logit = math.log(probability / (1 - probability))
        far_enough = not ticks or (logit - ticks[-1][0]) / (high - low) >= LOGIT_GAP
        if low <= logit <= high and far_enough:
            ticks.append((logit, f"{100 * probability:.6g}%"))
    if len(ticks) < 2:  # a narrow range lies between two of them
        ends = (low, (low + high) / 2, high)
        ticks = [(logit, f"{100 / (1 + math.exp(-logit)):.3g}%") for logit in ends]
    return Axis(low, high, ticks, title)
