"""The findings as a text table and as a page with a bar a part."""

from html import escape
from pathlib import Path

from dlrm_app.bench.result import BenchResult, Section
from dlrm_app.files import explained_disk_errors, write_text
from dlrm_app.reports.page import configuration, facts, page
from dlrm_app.table import Cell, Column, Columns, html_table, share, text_table
from dlrm_app.text import fixed, percent

MEANING = {
    "ms": "median of the repetitions",
    "quartiles": "half of the repetitions lie between",
    "share": "of all",
    "least": "the part's matrix products or its bytes of memory at the rates measured here, whichever takes longer, and what is sent",
    "reached": "least over measured: 100% is as fast as the machine",
}
COLUMNS: Columns = ["", *(Column(title, meaning) for title, meaning in MEANING.items())]


def show_bench(result: BenchResult, output: str | None, config: dict[str, object]) -> None:
    """Prints the tables, and writes them as bench.html into the folder ``output``."""
    print(f"\n{bench_text(result)}")
    if output is None:
        print("\nnext: add output=FOLDER for bench.json and a page with bars")
        return
    folder = Path(output)
    with explained_disk_errors(folder, "then measure again"):
        write_text(folder / "bench.html", bench_page(result, folder.absolute().name, config))
    print(f"\nwrote {folder / 'bench.json'} and {folder / 'bench.html'}")


def bench_text(result: BenchResult) -> str:
    """Tables under their names, the machine first."""
    blocks = ["\n".join(f"{name}: {value}" for name, value in result.machine.items())]
    blocks += [f"{_title(section)}\n{text_table(COLUMNS, _rows(section))}" for section in result.sections]
    return "\n\n".join(blocks)


def bench_page(result: BenchResult, title: str, config: dict[str, object]) -> str:
    """The page."""
    sections = [
        f"<h2>{escape(_title(section))}</h2>{html_table(COLUMNS, _rows(section))}"
        for section in result.sections
    ]
    return page(
        title,
        "benchmark",
        summary="Medians on this machine; bars are shares of a section's time, and of what the machine could reach.",
        sections=[facts(result.machine), *sections, configuration(config)],
    )


def _title(section: Section) -> str:
    speed = section.rows_per_second
    return ", ".join(filter(None, [section.name, f"{speed:,.0f} rows/s" if speed else "", section.note]))


def _rows(section: Section) -> list[list[str | Cell]]:
    whole = section.all.ms
    return [
        [
            line.name,
            Cell(fixed(line.ms, 2), line.ms),
            f"{fixed(line.low, 2)} – {fixed(line.high, 2)}",
            share(line.ms / whole if whole else None),
            Cell(fixed(line.floor_ms, 2), line.floor_ms),
            Cell(percent(line.reached), line.reached, line.reached),
        ]
        for line in (*section.parts, section.all)
        if line is section.all or line.ms >= 0.0005
    ]
