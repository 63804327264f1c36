"""Days as they are named in settings: dates such as 2026-11-02, or whole numbers."""

from datetime import date, timedelta

_EPOCH = date(1970, 1, 1)


def day_number(day: str) -> int:
    """Days since 1970-01-01 for a date, or the number itself. Raises ValueError for other texts."""
    known = date.fromisoformat(day) if is_date(day) else int(day)
    if str(known) != day:  # Python accepts other forms too
        raise ValueError(f"{day!r} is neither a date as 2026-11-02 nor a whole number")
    return known if isinstance(known, int) else (known - _EPOCH).days


def is_date(day: str) -> bool:
    """True for a date such as 2026-11-02, False for a number."""
    return "-" in day


def day_after(day: str, days: int = 1) -> str:
    """The day that is ``days`` after ``day``."""
    number = day_number(day) + days
    return (_EPOCH + timedelta(number)).isoformat() if is_date(day) else str(number)
