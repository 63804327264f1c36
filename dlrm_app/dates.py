"""Days as they are named in settings: dates such as 2026-11-02, hours such as 2026-11-02T05, or whole numbers."""

from datetime import date, datetime, timedelta

_EPOCH = date(1970, 1, 1)
HOURS = 24


class Hour(datetime):
    """An hour of a day where others have a day; its text is 2026-11-02T05."""

    def isoformat(self, sep: str = "T", timespec: str = "hours") -> str:
        return f"{self:%Y-%m-%d}{sep}{self:%H}"

    def __str__(self) -> str:
        return self.isoformat()


def hours_of(day: date) -> list[Hour]:
    return [Hour(day.year, day.month, day.day, hour) for hour in range(HOURS)]


def day_of(text: str) -> date:
    """The date, or the hour, with this text. Raises ValueError for other texts."""
    name, _, hour = text.partition("T")
    day = date.fromisoformat(name)
    found = Hour(day.year, day.month, day.day, int(hour)) if hour else day
    if found.isoformat() != text:  # Python accepts other forms too
        raise ValueError(f"{text!r} is neither a date as 2026-11-02 nor an hour as 2026-11-02T05")
    return found


def day_number(day: str) -> int:
    """Days since 1970-01-01 for a date, hours for an hour, or the number itself. Raises ValueError for other texts."""
    if not is_date(day):
        if str(int(day)) != day:
            raise ValueError(f"{day!r} is neither a date as 2026-11-02 nor a whole number")
        return int(day)
    known = day_of(day)
    days = known.toordinal() - _EPOCH.toordinal()
    return days * HOURS + known.hour if isinstance(known, Hour) else days


def is_date(day: str) -> bool:
    """True for a date such as 2026-11-02 or an hour of one, False for a number."""
    return "-" in day


def are_comparable(day: str, other: str) -> bool:
    """True if both are dates, both hours, or both numbers, so that one comes before the other."""
    return (is_date(day), "T" in day) == (is_date(other), "T" in other)


def in_units_of(day: str, days: int) -> int:
    """``days`` days as a difference of ``day_number``s of days like ``day``."""
    return days * HOURS if "T" in day else days


def day_after(day: str, days: int = 1) -> str:
    """The day that is ``days`` after ``day``; for an hour, the hour."""
    number = day_number(day) + days
    if not is_date(day):
        return str(number)
    if "T" not in day:
        return (_EPOCH + timedelta(number)).isoformat()
    return hours_of(_EPOCH + timedelta(number // HOURS))[number % HOURS].isoformat()
