"""A page that needs nothing from elsewhere: its style and script stand within it."""

from html import escape
from importlib.resources import files
from string import Template


def page(title: str, kind: str, *, summary: str, content: str, style: str, script: str = "") -> str:
    """The HTML of ``title``, a ``kind`` of page; ``summary``, ``content`` are HTML, ``style`` adds to page.css."""
    return Template(text_of(__package__, "page.html")).substitute(
        title=escape(title),
        kind=escape(kind),
        summary=summary,
        content=content,
        style=text_of(__package__, "page.css") + style,
        script=f"\n<script>\n{script}</script>" if script else "",
    )


def text_of(package: str, name: str) -> str:
    """A file that is installed beside the modules of ``package``."""
    return files(package).joinpath(name).read_text(encoding="utf-8")
