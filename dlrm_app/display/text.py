"""Lists and tables as plain text, for messages and logs."""

from collections.abc import Iterable, Sequence


def listed(names: Sequence[object], most: int = 3) -> str:
    """``a, b, c and 7 more``: the first ``most`` names, and how many are left out."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def first_lines(lines: Sequence[str], most: int) -> list[str]:
    """The first ``most`` lines, and one that counts those left out."""
    return [*lines[:most], *([f"… and {len(lines) - most:,} more"] if len(lines) > most else [])]


def text_table(headings: Sequence[str], rows: Iterable[Sequence[str]], align: str | None = None) -> list[str]:
    """The lines of a table in columns of equal width, headings first.

    ``align`` has one letter per column, ``l`` or ``r``; by default the first column is aligned left, all others right.
    """
    lines = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    align = align or "l" + "r" * (len(headings) - 1)
    return [
        "  ".join(
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(line, widths, align, strict=True)
        ).rstrip()
        for line in lines
    ]
