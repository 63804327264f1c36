"""The usual value of a number over earlier days, and how far a new day may be off."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from dlrm_app.config.days import GateConfig
from dlrm_app.tools.daily.record import DayRecord, Verdict

USUAL_CHANGES = 4
"""A change of up to this many usual ones is not a sign of damage: tastes drift, and some days are harder."""


MOST_ALLOWED = 2
"""A change above this many limits holds a day back, however much earlier days differ."""


ENOUGH_DAYS = 4
"""The least number of days with a usual spread. The first days differ because the model still learns."""


_DEVIATIONS = 1.4826
"""A normal distribution's standard deviation, divided by its median absolute deviation."""


Rule = Callable[["ComparedDay"], Verdict | None]


@dataclass(frozen=True)
class ComparedDay:
    """A day, and the days ``published`` before it, in order, that it is compared with."""

    day: DayRecord
    published: Sequence[DayRecord]
    gate: GateConfig
    ids: Collection[str] = ()
    """The sparse columns."""

    @property
    def before(self) -> Sequence[DayRecord]:
        """The last days of the window."""
        return self.published[-self.gate.window :]


@dataclass(frozen=True)
class Usual:
    """The median of some values, and their usual distance from it."""

    level: float
    spread: float

    def allowed(self, limit: float) -> float:
        """The largest distance from the level that does not hold a day back."""
        return min(max(limit, USUAL_CHANGES * self.spread), MOST_ALLOWED * limit)


def usual(values: Iterable[float]) -> Usual | None:
    """Median and spread of ``values``; None without values. Fewer than ENOUGH_DAYS have the spread 0."""
    numbers = list(values)
    if not numbers:
        return None
    level = median(numbers)
    spread = _DEVIATIONS * median(abs(value - level) for value in numbers)
    return Usual(level, spread if len(numbers) >= ENOUGH_DAYS else 0.0)


def limit_text(key: str, value: float) -> str:
    return f"gate.{key}={value:g}"
