"""The findings as a page, and as Markdown to paste."""

from collections.abc import Sequence
from html import escape

from dlrm_app.reports.page import Tile, details, page, tiles
from dlrm_app.table import Cell, Column, Columns, Rows, html_table, share
from dlrm_app.text import NONE
from dlrm_app.training.gpu_check.outcome import Findings, Outcome, Speed, State

CASE_COLUMNS: Columns = (
    "case",
    Column("", is_words=True),
    Column(
        "losses differ by", "the largest of the losses of 8 steps and of val from those of the CPU, relative"
    ),
    "seconds",
    Column("remark", is_words=True),
)
SPEED_COLUMNS: Columns = (
    "precision",
    "samples/s",
    "ms a step",
    Column("floor, ms", "what the device's memory and matrix units, as measured here, would need"),
    Column("share of the floor", "floor over measured: 100% is as fast as it can be"),
)

NO_SPEED = "The speed was not measured."


def findings_page(findings: Findings) -> str:
    """gpu-check.html."""
    faults = [each for each in findings.outcomes if each.state in (State.DIFFERS, State.FAILED)]
    sections = [
        tiles(
            [
                Tile(
                    "Cases",
                    Cell(f"{findings.count(State.OK)} of {len(findings.outcomes)}"),
                    "lose as the CPU does",
                ),
                Tile("Differ", Cell(str(findings.count(State.DIFFERS))), "by more than rounding"),
                Tile("Failed", Cell(str(findings.count(State.FAILED))), "with an error"),
                Tile("Not run", Cell(str(findings.count(State.NOT_RUN))), "for want of time"),
            ]
        ),
        "<h2>What is wrong</h2>",
        html_table(CASE_COLUMNS, case_rows(faults)) if faults else "<p>No case differs or failed.</p>",
        "<h2>Speed</h2>",
        "<p>One step of MLPerf DLRM's widths on random batches, without the reader and evaluation.</p>",
        html_table(SPEED_COLUMNS, speed_rows(findings.speeds)) if findings.speeds else f"<p>{NO_SPEED}</p>",
        "<h2>Where a step waits for the GPU</h2>",
        _syncs_html(findings),
        "<h2>The machine</h2>",
        html_table(["check", Column("", is_words=True), Column("result", is_words=True)], findings.machine),
        details(
            f"All {len(findings.outcomes)} cases", html_table(CASE_COLUMNS, case_rows(findings.outcomes))
        ),
    ]
    return page(
        f"GPU check: {findings.ranks} × {findings.device}",
        "GPU check",
        summary=escape(f"{findings.versions}; {findings.seconds / 60:.1f} minutes."),
        content="\n".join(sections),
    )


def findings_markdown(findings: Findings) -> str:
    """gpu-check.md: counts, what is wrong, waits, speed and the machine; cases that are as they should be are counted."""
    faults = [each for each in findings.outcomes if each.state in (State.DIFFERS, State.FAILED)]
    counts = ", ".join(f"{findings.count(state)} {state.value}" for state in State)
    lines = [
        f"**dlrm-gpu-check** on {findings.ranks} × {findings.device}, {findings.seconds / 60:.1f} minutes; {findings.versions}",
        "",
        f"{len(findings.outcomes)} cases: {counts}",
        "",
        *(_markdown(CASE_COLUMNS, case_rows(faults)) if faults else []),
        *(_markdown(SPEED_COLUMNS, speed_rows(findings.speeds)) if findings.speeds else [NO_SPEED, ""]),
        *_syncs_lines(findings),
        "",
        *_markdown(["check", "", "result"], findings.machine),
    ]
    return "\n".join(lines) + "\n"


def case_rows(outcomes: Sequence[Outcome]) -> Rows:
    """Of CASE_COLUMNS."""
    return [
        [
            each.name,
            each.state.value,
            NONE if each.difference is None else Cell(f"{each.difference:.1e}", each.difference),
            f"{each.seconds:.1f}",
            each.remark,
        ]
        for each in outcomes
    ]


def speed_rows(speeds: Sequence[Speed]) -> Rows:
    """Of SPEED_COLUMNS."""
    return [_speed_row(each) for each in speeds]


def _speed_row(speed: Speed) -> list[str | Cell]:
    if speed.fault:
        return [f"{speed.name}: {speed.fault}", NONE, NONE, NONE, NONE]
    return [
        speed.name,
        Cell(f"{speed.rows_per_second:,.0f}", speed.rows_per_second),
        f"{speed.ms:.2f}",
        f"{speed.floor_ms:.2f}",
        share(speed.floor_ms / speed.ms),
    ]


def _syncs_html(findings: Findings) -> str:
    if isinstance(findings.syncs, list | tuple) and findings.syncs:
        rows = [[line, f"{count:.2f}"] for line, count in findings.syncs]
        return html_table(["place", "times a step"], rows)
    return "".join(f"<p>{escape(line)}</p>" for line in _syncs_lines(findings))


def _syncs_lines(findings: Findings) -> list[str]:
    if findings.syncs is None:
        return ["Waits for the GPU were not counted: there is none."]
    if isinstance(findings.syncs, str):
        return [f"Waits for the GPU were not counted: {findings.syncs}"]
    if not findings.syncs:
        return ["A step waits for the GPU nowhere that torch sees."]
    return ["Waits for the GPU, a step:", *(f"- {line}: {count:.2f}" for line, count in findings.syncs)]


def _markdown(columns: Columns, rows: Rows) -> list[str]:
    heads = [head.title if isinstance(head, Column) else head for head in columns]
    cells = [[cell.text if isinstance(cell, Cell) else cell for cell in row] for row in rows]
    lines = [heads, ["---"] * len(heads), *cells]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines] + [""]
