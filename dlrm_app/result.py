"""The results of jobs: records whose text a command prints, and which a notebook shows as tables."""

from collections.abc import Iterable
from html import escape

from dlrm_app.table import Columns, Rows, html_table, text_table

Paragraph = str | tuple[Columns, Rows]
"""A text, or a table as (headings, rows)."""


class Result:
    """The base of all results. ``paragraphs`` gives the content, which ``str()`` and notebooks format."""

    def paragraphs(self) -> Iterable[Paragraph]:
        """The result's texts and tables, in order."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(each if isinstance(each, str) else text_table(*each) for each in self.paragraphs())

    def _repr_html_(self) -> str:
        return "".join(_html(each) for each in self.paragraphs())


def _html(paragraph: Paragraph) -> str:
    if isinstance(paragraph, str):
        return f'<pre style="white-space: pre-wrap">{escape(paragraph)}</pre>' if paragraph.strip() else ""
    return html_table(*paragraph)
