"""Tables as HTML. Cells are HTML already; headings and facts are text."""

from collections.abc import Mapping, Sequence
from html import escape

from dlrm_app.display.numbers import data, percent


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], explained: Mapping[str, str] | None = None
) -> str:
    """A table whose first column is a name; ``explained``: heading → what it means, shown on hover."""
    meanings = explained or {}
    head = "".join(
        f'<th scope="col"{_title(meanings.get(heading))}>{escape(heading)}</th>' for heading in headings
    )
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def facts(values: Mapping[str, str]) -> str:
    """Names and values, both text, in two columns."""
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in values.items()
    )
    return f'<dl class="facts">{items}</dl>'


def bar(share: float | None) -> str:
    """A share as a number over a bar of that length, so that a column can be compared by eye."""
    if share is None:
        return '<span class="none">–</span>'
    width = 100 * min(1.0, max(0.0, share)) if share == share else 0.0
    return f'<span class="bar" style="--share:{width:.2f}%">{data(share, percent(share))}</span>'


def _title(text: str | None) -> str:
    return f' title="{escape(text)}"' if text else ""
