"""What the time of the training steps went into."""

from statistics import fmean

from dlrm_app.reports.run.run_record import RunRecord
from dlrm_app.runs.events import PARTS, TITLES
from dlrm_app.table import Cell, Column, Columns, html_table, share
from dlrm_app.text import fixed


def step_section(record: RunRecord) -> str:
    """A line for each part, with its share as a bar; empty where none was measured."""
    events = [event.step_ms for event in record.train if event.step_ms]
    events = events[1:] or events  # the first has the start's slow steps
    means = {part: fmean(step_ms.get(part, 0.0) for step_ms in events) for part in PARTS if events}
    total = sum(means.values())
    if not total:
        return ""
    rows: list[list[str | Cell]] = [
        [TITLES[part], Cell(fixed(ms, 2), ms), share(ms / total), PARTS[part]]
        for part, ms in means.items()
        if ms
    ]
    rows.append(["all", Cell(fixed(total, 2), total), "", ""])
    columns: Columns = ["part", "ms a step", "share", Column("what it is", is_words=True)]
    return f"<h2>Where a step's time goes</h2>{html_table(columns, rows)}"
