"""Progress for people: a bar on the first rank, nothing on the others."""

from typing import Any

from tqdm import tqdm

from dlrm_app.runtime import Runtime


def progress_bar(
    title: str, total: int, runtime: Runtime, unit: str = "batch", scale: bool = False, initial: int = 0
) -> Any:
    """A tqdm bar with rate and time left; silent on every rank but the first."""
    return tqdm(
        total=total,
        initial=initial,
        desc=title,
        unit=unit,
        unit_scale=scale,
        disable=not runtime.is_first,
        mininterval=0.5,
        dynamic_ncols=True,
        leave=False,
    )


def format_table(headings: list[str], rows: list[list[str]]) -> str:
    """Right-aligned columns under their headings, as the commands print results."""
    widths = [max(len(row[place]) for row in [headings, *rows]) for place in range(len(headings))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in [headings, *rows]
    )
