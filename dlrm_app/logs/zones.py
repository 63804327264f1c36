"""Offsets of time zones from UTC, from the IANA database of Python's zoneinfo."""

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from zoneinfo import ZoneInfo

from dlrm_app.errors import ConfigError, Problem

Offsets = tuple[tuple[int, int], ...]
"""(the first second since 1970, the seconds that local time is ahead of UTC from then on), by rising time."""
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=timezone.utc), datetime(2100, 1, 1, tzinfo=timezone.utc)
_DAY = timedelta(days=1)


@lru_cache(maxsize=64)
def offsets_of(zone: str) -> Offsets:
    """The offsets of ``zone``, such as Asia/Tokyo, from 1970 to 2099; times outside take the nearest.

    Raises ConfigError if there is no such zone.
    """
    try:
        clock = ZoneInfo(zone)
    # KeyError: the database lacks it; OSError: a folder's name
    except (OSError, KeyError, ValueError) as error:
        cure = "give a name of the IANA database, as Asia/Tokyo (pip install tzdata brings it)"
        raise ConfigError(Problem("zone", "is no time zone that this machine knows", cure, zone)) from error

    def offset_at(moment: datetime) -> int:
        return round((moment.astimezone(clock).utcoffset() or timedelta()).total_seconds())

    found = [(0, offset_at(_FIRST))]
    moment = _FIRST
    while moment < _LAST:
        following = moment + _DAY
        if offset_at(following) != found[-1][1]:
            change = _first_second(moment, following, lambda at: offset_at(at) != found[-1][1])
            found.append((change, offset_at(following)))
        moment = following
    return tuple(found)


def seconds_of(moment: str, zone: str | None) -> float:
    """The second since 1970 of a ``moment`` of ISO 8601; without an offset it is of the clock of ``zone``, or of UTC."""
    found = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    clock = ZoneInfo(zone) if zone is not None else timezone.utc
    return (found if found.tzinfo else found.replace(tzinfo=clock)).timestamp()


def _first_second(low: datetime, high: datetime, has_changed: Callable[[datetime], bool]) -> int:
    """The first second after ``low`` at which ``has_changed``, which it has at ``high``."""
    before, after = round(low.timestamp()), round(high.timestamp())
    while after - before > 1:
        middle = (before + after) // 2
        if has_changed(datetime.fromtimestamp(middle, timezone.utc)):
            after = middle
        else:
            before = middle
    return after
