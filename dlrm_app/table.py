"""Tables, as text for logs and as HTML for pages."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from dlrm_app.text import NONE, percent


@dataclass(frozen=True)
class Column:
    """A heading. Words are aligned left, numbers right."""

    title: str
    is_words: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell with ``text``; on a page it also has a bar behind the text, from 0 to 1 of the cell's width."""

    text: str
    bar: float | None = None

    def html(self) -> str:
        text = escape(self.text)
        if self.text == NONE:
            text = f'<span class="none">{text}</span>'
        if self.bar is None:
            return text
        length = 0.0 if math.isnan(self.bar) else 100 * min(1.0, max(0.0, self.bar))
        return f'<span class="bar" style="--length:{length:.1f}%">{text}</span>'


Columns = Sequence[str | Column]
Rows = Sequence[Sequence[str | Cell]]


def share(value: float | None) -> Cell:
    """A share as a percentage, with a bar of that length."""
    return Cell(percent(value), value)


def integer(value: float | None) -> str:
    """A number such as ``1,234``; a dash if it is unknown."""
    return NONE if value is None else f"{value:,.0f}"


def text_table(columns: Columns, rows: Rows) -> str:
    """Headings and ``rows`` as aligned lines of text."""
    heads = _columns(columns)
    lines = [[head.title for head in heads], *([_cell(cell).text for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            text.ljust(width) if head.is_words else text.rjust(width)
            for text, width, head in zip(line, widths, heads, strict=True)
        ).rstrip()
        for line in lines
    )


def html_table(columns: Columns, rows: Rows) -> str:
    heads = _columns(columns)
    classes = [' class="words"' if head.is_words else "" for head in heads]
    head_cells = "".join(
        f'<th scope="col"{kind}>{escape(head.title)}</th>' for head, kind in zip(heads, classes, strict=True)
    )
    body = "".join(f"<tr>{_html_cells(row, classes)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{head_cells}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _html_cells(row: Sequence[str | Cell], classes: Sequence[str]) -> str:
    name, *others = (_cell(cell).html() for cell in row)
    cells = (f"<td{kind}>{cell}</td>" for cell, kind in zip(others, classes[1:], strict=True))
    return f'<th scope="row" class="words">{name}</th>{"".join(cells)}'


def _columns(columns: Iterable[str | Column]) -> list[Column]:
    """Headings as Columns; the first column holds names, so it is aligned as words."""
    return [
        column if isinstance(column, Column) else Column(column, is_words=index == 0)
        for index, column in enumerate(columns)
    ]


def _cell(cell: str | Cell) -> Cell:
    return cell if isinstance(cell, Cell) else Cell(cell)
