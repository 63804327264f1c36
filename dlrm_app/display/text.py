"""Lists in messages that name a few and count the rest."""

from collections.abc import Sequence


def listed(names: Sequence[object], most: int = 3) -> str:
    """``a, b, c and 7 more``: the first ``most`` names, and how many are left out."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def first_lines(lines: Sequence[str], most: int) -> list[str]:
    """The first ``most`` lines, and one that counts those left out."""
    return [*lines[:most], *([f"… and {len(lines) - most:,} more"] if len(lines) > most else [])]


def bullets(lines: Sequence[str], most: int | None = None) -> str:
    """A line each, of the first ``most``."""
    return "\n".join(f"  - {line}" for line in first_lines(lines, len(lines) if most is None else most))
