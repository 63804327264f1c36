"""A page with charts in the report's style; a pointer near a point shows the point's text."""

from html import escape

from dlrm_app.display.page import page, text_of


def charts_page(title: str, kind: str, *, summary: str, content: str, more_style: str = "") -> str:
    """The HTML; ``summary`` is text, ``content`` HTML, ``more_style`` adds to style.css."""
    return page(
        title,
        kind,
        summary=escape(summary),
        content=content,
        style=text_of(__package__, "style.css") + more_style,
        script=text_of(__package__, "hover.js"),
    )
